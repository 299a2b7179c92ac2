//! Child runs: subagents with a record of their own, whose content is shown under the id of the subagent.
//!
//! A child is projected by a [`Projector`] of its own. The events of a *live* child are pushed by the owner of the stream, as they
//! come; those of the others are read when the parent hears of the end of the child.

use std::{fmt, sync::Arc};

use agent_host_protocol::{ResultKind, RunEvent, RunId, RunStatus};
use agent_host_runs::facts::{
    open::OpenElements,
    record::{ChildEnd, ChildStart, read},
};

use super::{
    CloseReason, Projector, Step,
    ids::Ids,
    invocations::{Invocation, Invocations},
    out::Out,
};
use crate::agui::{
    cursor::{ChildPlace, Cursor, Place},
    event::Kind,
};

/// Children of a run that are live at one time, by the depth of the run. A stream follows the record of each, and its cursors have
/// a place in each. The first number is the default of `limits.child_runs_at_once`.
const LIVE: [usize; 2] = [16, 4];
/// Levels of children with content, whatever `limits.child_depth` allows.
const MAX_DEPTH: usize = 8;

/// The way in which the content of children is shown. Without a source, there is none.
#[derive(Clone, Default)]
pub(crate) struct Children {
    source: Option<Arc<Source>>,
    mode: ChildMode,
    /// The number of runs above those that start these children.
    depth: usize,
}

/// Calls for each event of a run up to a sequence number.
type Source = dyn Fn(RunId, u64, &mut dyn FnMut(&RunEvent)) + Send + Sync;

/// The time at which content is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ChildMode {
    /// When the parent hears of the end of the child.
    #[default]
    AtEnd,
    /// While the child runs.
    Live,
    /// When the parent hears of the end of the child, or ends itself, or when somebody looks: for views, not for streams.
    View,
}

impl fmt::Debug for Children {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, mode, depth } = self;
        f.debug_struct("Children").field("source", &source.is_some()).field("mode", mode).field("depth", depth).finish()
    }
}

impl Children {
    /// Children that are read from `source`, shown when they have ended.
    pub(crate) fn new(source: impl Fn(RunId, u64, &mut dyn FnMut(&RunEvent)) + Send + Sync + 'static) -> Self {
        Self { source: Some(Arc::new(source)), mode: ChildMode::AtEnd, depth: 0 }
    }

    /// The same, shown while they run.
    pub(crate) fn live(self) -> Self {
        Self { mode: ChildMode::Live, ..self }
    }

    /// The same, for a view of the run as it is.
    pub(crate) fn view(self) -> Self {
        Self { mode: ChildMode::View, ..self }
    }

    /// Calls `with` for each event of a run up to and with `until`.
    pub(crate) fn read(&self, run: RunId, until: u64, with: &mut dyn FnMut(&RunEvent)) {
        if let Some(source) = &self.source {
            source(run, until, with);
        }
    }

    /// For the children of a child.
    fn of_child(&self, is_live: bool) -> Self {
        let depth = self.depth + 1;
        let mode = if self.mode == ChildMode::Live && !is_live { ChildMode::AtEnd } else { self.mode };
        Self { source: self.source.clone().filter(|_| depth < MAX_DEPTH), mode, depth }
    }
}

/// A child whose record is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveChild {
    pub(crate) run: RunId,
    /// The way to it: the `run.child.started` of each run above it and its own, by their sequence numbers.
    pub(crate) path: Vec<u64>,
    /// The last event that was pushed.
    pub(crate) after: u64,
}

/// The child of whose end a parent hears with this event.
pub(crate) fn ended_child(event: &RunEvent) -> Option<RunId> {
    if ResultKind::from_name(&event.kind) != Some(ResultKind::ChildEnded) {
        return None;
    }
    read::<ChildEnd>(event)?.run_id.parse().ok()
}

/// The children of a run.
#[derive(Debug, Default)]
pub(super) struct ChildRuns {
    children: Children,
    invocations: Invocations,
    /// The content of those that have not ended, by their ids.
    runs: OpenElements<Child>,
    is_partial: bool,
}

/// The content of a child.
#[derive(Debug)]
struct Child {
    started: u64,
    run: RunId,
    is_live: bool,
    after: u64,
    projector: Box<Projector>,
}

impl Child {
    fn read(&mut self, children: &Children, until: u64) -> Vec<Step> {
        let mut steps = Vec::new();
        children.read(self.run, until, &mut |event| steps.extend(self.projector.push(event)));
        steps
    }

    fn is_whole(&self) -> bool {
        self.projector.is_over && !self.projector.is_partial()
    }
}

impl ChildRuns {
    pub(super) fn show(&mut self, children: Children) {
        self.children = children;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(super) const fn is_partial(&self) -> bool {
        self.is_partial
    }

    pub(super) fn child_started(&mut self, out: &mut Out, ids: &mut Ids, sequence: u64, started: ChildStart) {
        let ChildStart { run_id, runner_id, objective } = started;
        self.invocations.begin(out, &run_id, || {
            let name = runner_id.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("run").to_owned();
            let description = Some(objective).filter(|objective| !objective.is_empty());
            Invocation { id: ids.child(run_id.clone()), name, description, parent_tool_call_id: None }
        });
        if self.children.source.is_none() || self.runs.contains(&run_id) {
            return;
        }
        let (Ok(run), Some(subagent)) = (run_id.parse(), self.invocations.id_of(&run_id)) else { return };
        let count = self.runs.iter().filter(|(_, child)| child.is_live).count();
        let most = LIVE.get(self.children.depth).copied().unwrap_or_default();
        let is_live = self.children.mode == ChildMode::Live && count < most;
        let projector = Box::new(Projector::of_subagent(run, subagent.to_owned(), self.children.of_child(is_live)));
        self.runs.get_or_insert_with(&run_id, || Child { started: sequence, run, is_live, after: 0, projector });
    }

    /// Ends a child: what it has said and was not shown comes before. What a live child has said was pushed before.
    pub(super) fn child_ended(&mut self, out: &mut Out, ended: ChildEnd) {
        let ChildEnd { run_id, status, .. } = ended;
        let Some(subagent_run_id) = self.invocations.end(out, &run_id) else { return };
        if let Some(mut child) = self.runs.remove(&run_id) {
            if !child.is_live {
                out.adopt(child.read(&self.children, u64::MAX));
            }
            out.adopt(child.projector.close_aside(CloseReason::Fails, out.timestamp()));
            self.is_partial |= !child.is_whole();
        }
        out.say(match status {
            Some(RunStatus::Completed) => Kind::SubagentFinished { subagent_run_id, result: None, outcome: None },
            status => {
                let status = status.unwrap_or(RunStatus::Failed).as_str();
                Kind::SubagentError {
                    subagent_run_id,
                    message: format!("the run ended as {status}"),
                    code: Some(status.to_owned()),
                }
            }
        });
    }

    /// Closes what is open, with the run or for the time in which it waits.
    pub(super) fn close(&mut self, out: &mut Out, closing: CloseReason) {
        let Self { children, runs, is_partial, .. } = self;
        let ends = closing != CloseReason::Waits;
        runs.for_each(|child| {
            if ends && children.mode == ChildMode::View {
                out.adopt(child.read(children, u64::MAX));
            }
            out.adopt(child.projector.close_aside(closing, out.timestamp()));
            *is_partial |= ends && !child.is_whole();
        });
        self.invocations.close(out, closing);
        if ends {
            self.runs = OpenElements::default();
        }
    }

    /// Begins in another segment what is open.
    pub(super) fn resume(&mut self, out: &mut Out) {
        self.invocations.resume(out);
    }

    pub(super) fn for_each(&mut self, mut with: impl FnMut(&mut Projector)) {
        self.runs.for_each(|child| with(&mut child.projector));
    }

    /// The places in the records of live children of which something was shown.
    pub(super) fn places(&self) -> Vec<ChildPlace> {
        let live = self.runs.iter().filter(|(_, child)| child.is_live);
        let places = live.map(|(_, child)| ChildPlace { started: child.started, place: child.projector.place() });
        places.filter(|child| child.place != Place::default()).collect()
    }

    pub(super) fn live(&self, path: &mut Vec<u64>, live: &mut Vec<LiveChild>) {
        for (_, child) in self.runs.iter().filter(|(_, child)| child.is_live) {
            path.push(child.started);
            live.push(LiveChild { run: child.run, path: path.clone(), after: child.after });
            child.projector.ui.children.live(path, live);
            path.pop();
        }
    }

    /// Sets the cursors of the last steps of these children: see [`Projector::settle`].
    pub(super) fn settle(&mut self, places: &[ChildPlace]) {
        self.runs.for_each(|child| {
            let place = places.iter().find(|place| place.started == child.started);
            if let Some(place) = place.filter(|_| child.is_live) {
                child.projector.settle(&place.place);
            }
        });
    }

    fn has(&self, run: RunId) -> bool {
        self.runs.iter().any(|(_, child)| child.is_live && (child.run == run || child.projector.ui.children.has(run)))
    }

    /// Pushes an event of a live child; `last` is the cursor of the last step of the run itself.
    pub(super) fn push(&mut self, last: Cursor, run: RunId, event: &RunEvent) -> Vec<Step> {
        let (mut started, mut steps) = (0, Vec::new());
        self.runs.for_each(|child| {
            if child.is_live && child.run == run {
                child.after = child.after.max(event.sequence);
                (started, steps) = (child.started, child.projector.push(event));
            } else if child.is_live && child.projector.ui.children.has(run) {
                (started, steps) = (child.started, child.projector.push_child(run, event));
            }
        });
        if steps.is_empty() {
            return steps;
        }
        let here = Place { cursor: last, children: self.places() };
        let moved = |step: Step| {
            let at = here.clone().with_child(started, step.at().clone());
            step.moved(at)
        };
        steps.into_iter().map(moved).collect()
    }

    /// Shows what open children have said, up to `limit` or all that is there.
    pub(super) fn catch_up(&mut self, limit: Option<&Place>, with: &mut dyn FnMut(Step)) {
        let Self { children, runs, is_partial, .. } = self;
        runs.for_each(|child| {
            let place = limit.map(|limit| limit.child(child.started));
            // Nothing of it was shown by then.
            if place == Some(None) {
                return;
            }
            let place = place.flatten();
            child.read(children, place.map_or(u64::MAX, |place| place.cursor.sequence)).into_iter().for_each(&mut *with);
            child.projector.catch_up(place, with);
            *is_partial |= !child.is_whole();
        });
    }
}
