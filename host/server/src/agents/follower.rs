//! The records that a stream follows: that of its run, and those of the live children.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use agent_host_protocol::{ResultKind, RunEvent, RunId};
use agent_host_runs::HostError;
use futures_util::{Stream, future};

use crate::{
    agui::project::{LiveChild, Projector, ended_child},
    app::App,
};

/// The events of a run, as they follow.
pub(super) type RunEvents = Pin<Box<dyn Stream<Item = Result<RunEvent, HostError>> + Send>>;

/// Reads the records of a run and of its live children as they grow. Each record is in order. A child's record is read to its end
/// before the event by which the parent hears of that end, and as far as it goes before an event that closes the child otherwise.
///
/// A follower holds one event of each record, and what [`agent_host_runs::Host::follow`] holds; nothing is read that is not asked
/// for.
pub(super) struct Follower {
    app: App,
    /// The run, then its children.
    tails: Vec<Tail>,
    /// The first one to be asked: none of them keeps the others from being read.
    turn: usize,
}

struct Tail {
    run: RunId,
    /// `None` at the end.
    events: Option<RunEvents>,
    held: Option<HeldEvent>,
}

/// An event that others come before.
struct HeldEvent {
    event: RunEvent,
    /// Events of children that come before: of each up to and with this one.
    after: Vec<(RunId, u64)>,
}

/// An event, and the run whose record it is of.
pub(super) type FollowedEvent = (RunId, RunEvent);

impl Follower {
    /// Follows a run, whose events are `events`.
    pub(super) fn new(app: &App, run: RunId, events: RunEvents) -> Self {
        Self { app: app.clone(), tails: vec![Tail { run, events: Some(events), held: None }], turn: 0 }
    }

    /// The next event of any of the records; `None` at the end of that of the run.
    pub(super) async fn next(&mut self, projector: &Projector) -> Option<Result<FollowedEvent, HostError>> {
        loop {
            let live = projector.live_children();
            if let Err(error) = self.keep(&live) {
                return Some(Err(error));
            }
            if let Some(event) = self.release(&live) {
                return Some(Ok(event));
            }
            let (place, event) = future::poll_fn(|context| self.poll(context)).await;
            let tail = self.tails.get_mut(place)?;
            match event {
                None if place == 0 => return None,
                None => tail.events = None,
                Some(Err(error)) => return Some(Err(error)),
                Some(Ok(event)) => {
                    let run = tail.run;
                    let after = self.before(run, &event, &live);
                    if after.is_empty() {
                        return Some(Ok((run, event)));
                    }
                    if let Some(tail) = self.tails.get_mut(place) {
                        tail.held = Some(HeldEvent { event, after });
                    }
                }
            }
        }
    }

    /// Follows the live children, and no others.
    fn keep(&mut self, live: &[LiveChild]) -> Result<(), HostError> {
        let Self { app, tails, .. } = self;
        let mut place = 0;
        tails.retain(|tail| {
            place += 1;
            place == 1 || live.iter().any(|child| child.run == tail.run)
        });
        for child in live {
            if tails.iter().any(|tail| tail.run == child.run) {
                continue;
            }
            let events = match app.host.follow(child.run, child.after) {
                Ok(events) => Some(Box::pin(events) as RunEvents),
                // Its record is deleted.
                Err(HostError::NotFound(_)) => None,
                Err(error) => return Err(error),
            };
            tails.push(Tail { run: child.run, events, held: None });
        }
        Ok(())
    }

    /// A held event that no other event comes before now.
    fn release(&mut self, live: &[LiveChild]) -> Option<FollowedEvent> {
        let ended: Vec<RunId> = self.tails.iter().filter(|tail| tail.events.is_none()).map(|tail| tail.run).collect();
        let is_read = |(run, sequence): &(RunId, u64)| {
            ended.contains(run) || live.iter().find(|child| child.run == *run).is_none_or(|child| child.after >= *sequence)
        };
        let tail = self.tails.iter_mut().find(|tail| tail.held.as_ref().is_some_and(|held| held.after.iter().all(is_read)))?;
        tail.held.take().map(|held| (tail.run, held.event))
    }

    /// The next event of a record that none is held of, with the place of the record.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<(usize, Option<Result<RunEvent, HostError>>)> {
        let count = self.tails.len();
        for step in 0..count {
            let place = (self.turn + step) % count;
            let Some(Tail { events: Some(events), held: None, .. }) = self.tails.get_mut(place) else { continue };
            if let Poll::Ready(event) = events.as_mut().poll_next(context) {
                self.turn = place + 1;
                return Poll::Ready((place, event));
            }
        }
        Poll::Pending
    }

    /// The events of children that come before an event of `run`.
    fn before(&self, run: RunId, event: &RunEvent, live: &[LiveChild]) -> Vec<(RunId, u64)> {
        let closing = match ResultKind::from_name(&event.kind) {
            Some(ResultKind::ChildEnded) => ended_child(event),
            Some(ResultKind::RunStatus | ResultKind::RunCompleted | ResultKind::RunFailed) => Some(run),
            _ => return Vec::new(),
        };
        let Some(closing) = closing else { return Vec::new() };
        let above: &[u64] = live.iter().find(|child| child.run == closing).map_or(&[], |child| &child.path);
        let is_closed = |child: &&LiveChild| child.path.starts_with(above);
        // The child that ends is one of those that are closed; the run that has an event is none.
        let closed = live.iter().filter(is_closed).filter(|child| child.run != run);
        let records = self.app.host.records();
        let last = |child: &LiveChild| Some((child.run, records.run(child.run).ok()??.run.last_sequence));
        closed.filter_map(last).collect()
    }
}
