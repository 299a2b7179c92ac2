//! The records of a run and of its children, projected up to the place of a client.
//!
//! In a stream, an event of a child may come before or after one of its parent: both orders are legal, and how two clients are
//! shown them may differ. The place of a client has its place in each record, and a projection only depends on these.

use agent_host_protocol::{RunEvent, RunId};

use crate::{
    agui::{
        cursor::Place,
        project::{Children, LiveChild, Projector, Step, ended_child},
    },
    http::{Problem, ProblemCode},
};

/// A step, and its state.
pub(super) type ReplayStep = (Step, StepState);

/// The state of a step for a client: sent to it before, or due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepState {
    Sent,
    Due,
}

/// A step of the run at `path`, for a client that is at `client` in the stream, or has all of it. What is due to the client follows
/// its place: only one record is in the middle of an event there.
fn sorted(step: Step, path: &[u64], client: Option<&Place>) -> ReplayStep {
    let Some(client) = client else { return (step, StepState::Sent) };
    match (step.at().descendant(path), client.descendant(path)) {
        (Some(at), Some(place)) if at.cursor <= place.cursor => (step, StepState::Sent),
        (Some(at), _) => {
            let at = client.clone().with_cursor(path, at.cursor);
            (step.moved(at), StepState::Due)
        }
        (None, _) => (step, StepState::Due),
    }
}

/// Pushes the next event of the run itself. A child that ends with it has said everything before.
pub(super) fn push(projector: &mut Projector, children: &Children, event: &RunEvent, with: &mut dyn FnMut(ReplayStep)) {
    finish_child(projector, children, event, with);
    projector.push(event).into_iter().for_each(|step| with((step, StepState::Sent)));
}

/// Pushes the event of the run itself at which the client is: after what it has of the children that were open then, and before
/// what it has of a child that began there. Gives the children that were open before.
pub(super) fn push_last(
    projector: &mut Projector,
    children: &Children,
    event: &RunEvent,
    place: &Place,
    with: &mut dyn FnMut(ReplayStep),
) -> Vec<LiveChild> {
    replay_children(projector, children, &[], Some(place), with);
    let before = projector.live_children();
    finish_child(projector, children, event, with);
    projector.push(event).into_iter().for_each(|step| {
        with(sorted(step, &[], Some(place)));
    });
    before
}

/// Pushes what the client at `place` has of the open children. `before` are those that the last event may have closed.
///
/// # Errors
/// `invalid_cursor` if the place names a child that is not open there, or an event that its record does not have.
pub(super) fn open_children(
    projector: &mut Projector,
    children: &Children,
    before: Vec<LiveChild>,
    place: &Place,
    with: &mut dyn FnMut(ReplayStep),
) -> Result<(), Problem> {
    replay_children(projector, children, &[], Some(place), with);
    projector.settle(place);
    let mut live = projector.live_children();
    live.extend(before);
    check(&live, &mut Vec::new(), place)
}

/// Pushes all that open children have said by now.
pub(super) fn catch_up(projector: &mut Projector, children: &Children, with: &mut dyn FnMut(ReplayStep)) {
    replay_children(projector, children, &[], None, with);
}

fn check(live: &[LiveChild], path: &mut Vec<u64>, place: &Place) -> Result<(), Problem> {
    for child in &place.children {
        path.push(child.started);
        let is_known = match live.iter().filter(|live| live.path == *path).map(|live| live.after).max() {
            Some(after) => after >= child.place.cursor.sequence,
            // The event of the child that the client has last may have closed it.
            None => path.len() > 1,
        };
        if !is_known {
            let detail = "the cursor names an event of a child run that the stream does not have there: send one that came with an \
                          event";
            return Err(Problem::new(ProblemCode::InvalidCursor, detail));
        }
        check(live, path, &child.place)?;
        path.pop();
    }
    Ok(())
}

/// The open live children of the run at `path`.
fn children_of(projector: &Projector, path: &[u64]) -> Vec<LiveChild> {
    let mut live = projector.live_children();
    live.retain(|child| child.path.split_last().is_some_and(|(_, above)| above == path));
    live
}

/// Pushes children of the run at `path` up to the place of the client; without one, all that is there.
fn replay_children(
    projector: &mut Projector,
    children: &Children,
    path: &[u64],
    client: Option<&Place>,
    with: &mut dyn FnMut(ReplayStep),
) {
    for child in children_of(projector, path) {
        // The client may have nothing of it.
        if client.is_none_or(|client| client.descendant(&child.path).is_some()) {
            replay_child(projector, children, &child, client, with);
        }
    }
}

fn replay_child(
    projector: &mut Projector,
    children: &Children,
    child: &LiveChild,
    client: Option<&Place>,
    with: &mut dyn FnMut(ReplayStep),
) {
    let until = client.and_then(|client| client.descendant(&child.path)).map_or(u64::MAX, |place| place.cursor.sequence);
    children.read(child.run, until, &mut |event| {
        if event.sequence <= child.after {
            return;
        }
        if event.sequence == until {
            replay_children(projector, children, &child.path, client, with);
        }
        finish_child(projector, children, event, with);
        projector.push_child(child.run, event).into_iter().for_each(|step| with(sorted(step, &child.path, client)));
    });
    replay_children(projector, children, &child.path, client, with);
}

/// Pushes the rest of the child that ends with this event of its parent.
fn finish_child(projector: &mut Projector, children: &Children, event: &RunEvent, with: &mut dyn FnMut(ReplayStep)) {
    let Some(run) = ended_child(event) else { return };
    if let Some(child) = live_child(projector, run) {
        replay_child(projector, children, &child, None, with);
    }
}

fn live_child(projector: &Projector, run: RunId) -> Option<LiveChild> {
    projector.live_children().into_iter().find(|live| live.run == run)
}

#[cfg(test)]
mod tests;
