//! The stream of a run for one client, joined at the beginning, in the middle or after the end, and ended exactly once.
//!
//! All events come from the record of the host's run, so a client that reconnects sees the events that it missed. Every
//! event passes the verifier: no illegal stream of AG-UI leaves the host, whatever a runner does.

use std::{collections::VecDeque, mem, time::Duration};

use agent_host_protocol::time;
use agent_host_runs::RunRecord;
use serde_json::{Map, Value, json};

use super::{
    follower::{Follower, RunEvents},
    replay::{self, ReplayStep, StepState},
    store::{RunEntry, Thread},
    thread::{self, MessageLimit},
};
use crate::{
    agui::{
        cursor::{Cursor, Place, StampedEvent},
        event::{Event, Kind, Outcome, PROTOCOL_VERSION},
        fold,
        project::{Children, End, Projector, Step},
        verify::{Verifier, Violation},
        wire::Wire,
    },
    app::App,
    http::{Problem, ProblemCode},
};

/// Parts from this number on are of events that the host says before the next event of the record: the *prelude* of a stream, that
/// is RUN_STARTED, snapshots, and the STARTs of what is open, in this order.
const PRELUDE: u32 = u32::MAX - 1_024;
/// The part of the last event of a prelude.
const PRELUDE_END: u32 = u32::MAX - 1;

/// The form in which a client receives a run.
#[derive(Debug, Clone)]
pub(crate) struct Viewer {
    /// The id of the run, as the client knows it.
    pub(crate) run_id: String,
    /// The run that it watches under that id, where it is another.
    pub(crate) attached: Option<String>,
    pub(crate) wire: Wire,
    /// From before 1.0: what such clients throw on is said otherwise.
    pub(crate) is_old: bool,
    pub(crate) marks: Marks,
    /// True if each event has an id and a type of its own, for `EventSource`.
    pub(crate) named: bool,
    /// The stream ends where nothing comes for so long.
    pub(crate) idle: Option<Duration>,
}

/// Marks on events, so that a client can say how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Marks {
    #[default]
    Nothing,
    /// `metadata.agentHost.cursor`.
    Cursors,
    /// `metadata.agnoBackground`, after the convention of `AgnoAgent`.
    Agno,
}

/// The place where a client joins.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum JoinPoint {
    /// At the beginning of the run.
    Begins {
        /// True if the client showed a history that differs from the host's, and is notified.
        contradicted: bool,
        /// The state that it has.
        state: Value,
    },
    /// At the present place of the run: earlier events are sent as snapshots.
    Attaches,
    /// After an event that the client has. `greeted` clients first receive the open elements, because their verifier has no
    /// memory.
    After { cursor: Option<Place>, greeted: bool },
}

/// A run that a client receives.
pub(super) struct Session {
    pub(super) app: App,
    thread: Thread,
    run: RunEntry,
    pub(super) viewer: Viewer,
    joining: JoinPoint,
    projector: Projector,
    /// The records of child runs.
    children: Children,
    verifier: Verifier,
    follower: Follower,
    out: VecDeque<StampedEvent>,
    /// The state that the client has now; `None` if the run shares none.
    pub(super) state: Option<Value>,
    /// True if the client may have another state: the end sends a new one.
    is_stale: bool,
    /// The place of the last event that the client has, where it says so.
    cursor: Option<Place>,
    is_over: bool,
}

/// The part of the records before the place where a client joins.
struct Prefix {
    /// The verifier of a client that has received it.
    verifier: Verifier,
    /// Steps of its last event that the client has not.
    rest: Vec<Step>,
    end: Option<(End, Place)>,
    fault: Option<Violation>,
}

impl Prefix {
    /// Takes a step of the segment.
    fn take(&mut self, run: &RunEntry, (step, seen): ReplayStep) {
        if self.end.is_some() {
            return;
        }
        match (step, seen) {
            (step, StepState::Due) => self.rest.push(step),
            (Step::Event(stamped), StepState::Sent) => {
                self.fault = self.fault.take().or(self.verifier.admit(&stamped.event).err().filter(Violation::throws));
            }
            (Step::End(end, at), StepState::Sent) if !answers(run, &end) => self.end = Some((end, at)),
            (Step::Past(_) | Step::Correct(..) | Step::End(..), StepState::Sent) => {}
        }
    }
}

impl Session {
    /// A session that has sent no event. `external` is true if an executor executes the run.
    pub(super) fn new(
        app: &App,
        thread: Thread,
        run: RunEntry,
        joining: JoinPoint,
        viewer: Viewer,
        external: bool,
        follow: RunEvents,
    ) -> Self {
        let cursor = if let JoinPoint::After { cursor, .. } = &joining { cursor.clone() } else { None };
        let children = thread::children(app);
        // Two numbers are no place in several records.
        let shown = if viewer.marks == Marks::Agno { children.clone() } else { children.clone().live() };
        let entry = run.clone();
        let projector = Projector::new(run.host_run, external).with_children(shown);
        Self {
            projector: projector.with_answers(move |end| answers(&entry, end)),
            children,
            follower: Follower::new(app, run.host_run, follow),
            app: app.clone(),
            thread,
            run,
            viewer,
            joining,
            verifier: Verifier::new(),
            out: VecDeque::new(),
            state: None,
            is_stale: false,
            cursor,
            is_over: false,
        }
    }

    /// True if no event is left to send.
    pub(super) fn is_empty(&self) -> bool {
        self.is_over && self.out.is_empty()
    }

    /// The event of the record that a client which joins there has last; the follower reads on behind it.
    pub(super) fn delivered(joining: &JoinPoint, run: &RunEntry, record: &RunRecord) -> Result<u64, Problem> {
        let last = record.run.last_sequence;
        match joining {
            JoinPoint::Attaches => Ok(last),
            JoinPoint::After { cursor: Some(place), .. } if place.cursor.sequence > last => {
                let detail = format!("the run has {last} events, and the cursor is behind them");
                Err(Problem::new(ProblemCode::InvalidCursor, detail))
            }
            JoinPoint::After { cursor: Some(place), .. } if is_in_segment(run, place) => Ok(place.cursor.sequence),
            JoinPoint::Begins { .. } | JoinPoint::After { .. } => Ok(run.from),
        }
    }

    /// Sends what is there already.
    pub(super) fn join(&mut self, record: &RunRecord, delivered: u64) -> Result<(), Problem> {
        self.state = thread::state(&self.app, self.run.host_run)?.map(Value::Object);
        let (subagents, is_missed) = self.skip_earlier(record)?;
        let mut prefix = Prefix { verifier: Verifier::new(), rest: Vec::new(), end: None, fault: None };
        let started = self.started();
        for event in std::iter::once(&started).chain(&subagents) {
            let _ = prefix.verifier.admit(event);
        }
        let cursor = self.cursor.clone().filter(|place| is_in_segment(&self.run, place));
        self.replay(record, delivered, cursor.as_ref(), &mut prefix)?;
        if let Some(violation) = prefix.fault {
            return Err(Problem::internal(format!("run {} is no legal stream: {violation}", self.run.host_run)));
        }
        let Prefix { verifier, rest, end, .. } = prefix;
        match (self.joining.clone(), cursor) {
            (JoinPoint::Attaches, _) => {
                let until = (!record.run.status.is_terminal()).then(|| self.limit(delivered));
                let mut prelude = vec![started, self.snapshot(until.as_ref())?];
                prelude.extend(self.open_items(&verifier, end.is_some()));
                self.say(prelude, delivered);
                self.finish(end);
            }
            (JoinPoint::After { greeted: true, .. }, Some(at)) => {
                let mut prelude = vec![started];
                prelude.extend(self.open_items(&verifier, end.is_some()));
                // A client that is cut here is where it was.
                self.out.extend(prelude.into_iter().map(|event| StampedEvent { event, at: at.clone() }));
                self.finish(end);
            }
            (_, Some(at)) if (PRELUDE..PRELUDE_END).contains(&at.cursor.part) => self.say_rest(started, &verifier, &at, end)?,
            (_, Some(_)) => {
                // The client had all these events, and the state of that time.
                self.verifier = verifier;
                self.is_stale = true;
                // A client of events has the end as well, and does not come again; to a request, there is an answer.
                if end.is_some() && self.viewer.named {
                    self.is_over = true;
                } else {
                    self.finish(end);
                }
            }
            (joining, None) => self.begin(&joining, started, &verifier, is_missed)?,
        }
        if !self.is_over {
            self.take(rest);
        }
        Ok(())
    }

    /// Projects the segments before, of which nothing is sent. Gives the STARTs of children that go on in this segment, and whether
    /// the client of the segment before may lack something that children have said.
    fn skip_earlier(&mut self, record: &RunRecord) -> Result<(Vec<Event>, bool), Problem> {
        let Self { projector, children, run, app, .. } = self;
        let mut is_missed = false;
        thread::each(&app.host.records(), record, run.from, |event| {
            replay::push(projector, children, event, &mut |(step, _)| {
                if let Step::End(..) = step {
                    is_missed = true;
                }
            });
            is_missed &= projector.has_children();
        })?;
        // A place before is one of the segment before.
        projector.move_to(Cursor { sequence: run.from, part: PRELUDE_END });
        let subagents = if run.from > 0 { projector.resume() } else { Vec::new() };
        Ok((subagents, is_missed))
    }

    /// Projects the segment up to the place of the client: the record of the run up to event `delivered`, and those of its children
    /// up to their places in `cursor`, or as far as they go.
    fn replay(&mut self, record: &RunRecord, delivered: u64, cursor: Option<&Place>, prefix: &mut Prefix) -> Result<(), Problem> {
        let Self { projector, children, run, app, .. } = self;
        let (run, children) = (&*run, &*children);
        let mut take = |step| prefix.take(run, step);
        let mut before = Vec::new();
        thread::each_after(&app.host.records(), record, run.from, delivered, |event| match cursor {
            Some(place) if event.sequence == delivered => {
                before = replay::push_last(projector, children, event, place, &mut take);
            }
            _ => replay::push(projector, children, event, &mut take),
        })?;
        match cursor {
            Some(place) => replay::open_children(projector, children, before, place, &mut take),
            None => {
                replay::catch_up(projector, children, &mut take);
                Ok(())
            }
        }
    }

    /// Begins a stream: the children that go on in the segment have said something in the one before.
    fn begin(&mut self, joining: &JoinPoint, started: Event, verifier: &Verifier, is_missed: bool) -> Result<(), Problem> {
        let from = self.run.from;
        let (contradicted, theirs) = match joining {
            JoinPoint::Begins { contradicted, state } => (*contradicted, Some(state)),
            JoinPoint::After { greeted: true, .. } => (false, Some(&Value::Null)),
            _ => (false, None),
        };
        let mut prelude = vec![started];
        if contradicted || is_missed {
            prelude.push(self.snapshot(Some(&self.limit(from)))?);
        }
        if let (Some(ours), Some(theirs)) = (self.state.clone(), theirs)
            && ours != *theirs
            && !(is_empty(&ours) && is_empty(theirs))
        {
            prelude.push(Kind::StateSnapshot { snapshot: ours }.into());
        }
        prelude.extend(verifier.reopening());
        self.say(prelude, from);
        Ok(())
    }

    /// Says the rest of a prelude to a client that has it up to the place `at`.
    fn say_rest(&mut self, started: Event, verifier: &Verifier, at: &Place, end: Option<(End, Place)>) -> Result<(), Problem> {
        let sequence = at.cursor.sequence;
        let mut prelude = vec![started, self.snapshot(Some(&self.limit(sequence)))?];
        prelude.extend(self.open_items(verifier, end.is_some()));
        self.say(prelude, sequence);
        for stamped in mem::take(&mut self.out) {
            if stamped.at.cursor <= at.cursor {
                let _ = self.verifier.admit(&stamped.event);
            } else {
                self.out.push_back(stamped);
            }
        }
        self.finish(end);
        Ok(())
    }

    /// The messages that a client has at the present place, event `sequence` of the record.
    fn limit(&self, sequence: u64) -> MessageLimit {
        MessageLimit { run: self.run.host_run, sequence, place: self.projector.place() }
    }

    /// The state, and the STARTs of what is open where the run has not ended.
    fn open_items(&self, seen: &Verifier, has_ended: bool) -> Vec<Event> {
        let state = self.state.clone().map(|snapshot| Event::from(Kind::StateSnapshot { snapshot }));
        let open = if has_ended { Vec::new() } else { seen.reopening() };
        state.into_iter().chain(open).collect()
    }

    fn finish(&mut self, end: Option<(End, Place)>) {
        if let Some((end, at)) = end {
            self.end(end, at);
        }
    }

    pub(super) fn started(&self) -> Event {
        let mut event = Event::from(Kind::RunStarted {
            thread_id: self.thread.id.clone(),
            run_id: self.viewer.run_id.clone(),
            protocol_version: Some(PROTOCOL_VERSION),
            // Of the run that the client has asked for, not of one that it only watches.
            parent_run_id: self.run.parent_run_id.clone().filter(|_| self.viewer.attached.is_none()),
        });
        if let Some(attached) = &self.viewer.attached {
            event.metadata.insert("agentHost".to_owned(), json!({ "attachedRunId": attached }));
        }
        event.at(time::now())
    }

    /// The messages of the thread.
    pub(super) fn snapshot(&self, until: Option<&MessageLimit>) -> Result<Event, Problem> {
        let limit = usize::try_from(self.app.host.config().agui.history_messages).unwrap_or(usize::MAX);
        let messages = thread::messages(&self.app, &self.thread.key, limit, until)?.messages;
        Ok(Kind::MessagesSnapshot { messages }.into())
    }

    /// Says a prelude between event `after` of the record and the next. Each event has a part of its own, by what it is, so that a
    /// client which is cut in between gets the rest.
    pub(super) fn say(&mut self, events: Vec<Event>, after: u64) {
        let children = self.projector.place().children;
        let count = events.len();
        let mut open = PRELUDE + 2;
        for (index, event) in events.into_iter().enumerate() {
            let part = match &event.kind {
                _ if index + 1 == count => PRELUDE_END,
                Kind::RunStarted { .. } => PRELUDE,
                Kind::MessagesSnapshot { .. } => PRELUDE + 1,
                Kind::StateSnapshot { .. } => PRELUDE + 2,
                _ => {
                    open = (open + 1).min(PRELUDE_END - 1);
                    open
                }
            };
            let at = Place { cursor: Cursor { sequence: after, part }, children: children.clone() };
            self.out.push_back(StampedEvent { event, at });
        }
        self.projector.move_to(Cursor { sequence: after, part: PRELUDE_END });
    }

    /// The next events.
    fn take(&mut self, steps: Vec<Step>) {
        for step in steps {
            if self.is_over {
                continue;
            }
            match step {
                Step::Event(stamped) => {
                    if let (Some(state), Kind::StateDelta { delta }) = (&mut self.state, &stamped.event.kind) {
                        fold::patch(state, delta);
                    }
                    self.out.push_back(stamped);
                }
                Step::Past(_) => {}
                Step::Correct(_, at) => {
                    let limit = MessageLimit { run: self.run.host_run, sequence: at.cursor.sequence, place: at.clone() };
                    match self.snapshot(Some(&limit)) {
                        Ok(event) => self.out.push_back(StampedEvent { event, at }),
                        Err(problem) => tracing::error!(problem = problem.to_json(), "a message could not be corrected"),
                    }
                }
                Step::End(end, at) if !answers(&self.run, &end) => self.end(end, at),
                Step::End(..) => {}
            }
        }
    }

    /// The one end.
    pub(super) fn end(&mut self, end: End, at: Place) {
        self.is_over = true;
        // State that was set otherwise than by a result is in no event.
        if let Some(known) = &self.state
            && let Ok(Some(state)) = thread::state(&self.app, self.run.host_run)
            && (*known != Value::Object(state.clone()) || self.is_stale && !state.is_empty())
        {
            let event = Kind::StateSnapshot { snapshot: Value::Object(state) }.into();
            // A client that is cut between the two has not seen the end.
            let before = match at.cursor.part.checked_sub(1) {
                Some(part) => Cursor { part, ..at.cursor },
                None => Cursor { sequence: at.cursor.sequence.saturating_sub(1), part: u32::MAX },
            };
            if self.cursor.as_ref().is_none_or(|place| place.cursor < before) {
                let at = Place { cursor: before, children: at.children.clone() };
                self.out.push_back(StampedEvent { event, at });
            }
        }
        let (thread_id, run_id) = (self.thread.id.clone(), self.viewer.run_id.clone());
        // A client that watches another's run has used nothing.
        let own = |usage| if self.viewer.attached.is_some() { Vec::new() } else { usage };
        let kind = match end {
            End::Success { result, pending, usage } => {
                let outcome = Some(Outcome::Success { pending_tool_call_ids: pending });
                Kind::RunFinished { thread_id, run_id, result, outcome, usage: own(usage) }
            }
            End::Interrupt { interrupts, usage } => {
                let outcome = Some(Outcome::Interrupt { interrupts });
                Kind::RunFinished { thread_id, run_id, result: None, outcome, usage: own(usage) }
            }
            End::Cancelled { usage } => {
                Kind::RunFinished { thread_id, run_id, result: None, outcome: Some(Outcome::Cancelled), usage: own(usage) }
            }
            End::Error { message, code, usage } => Kind::RunError { message, code, usage: own(usage) },
        };
        self.out.push_back(StampedEvent { event: Event::from(kind).at(time::now()), at });
    }

    /// The stream cannot go on: it is ended in order. The run is what it is, and the client may come back to it.
    fn break_off(&mut self, code: &str, message: &str) {
        self.is_over = true;
        let at = Place::default();
        self.out.clear();
        let closing = self.verifier.closing();
        self.out.extend(closing.into_iter().map(|event| StampedEvent { event, at: at.clone() }));
        let kind = Kind::RunError { message: message.to_owned(), code: Some(code.to_owned()), usage: Vec::new() };
        self.out.push_back(StampedEvent { event: Event::from(kind).at(time::now()), at });
    }

    pub(super) async fn next(&mut self) -> Option<StampedEvent> {
        loop {
            if let Some(stamped) = self.out.pop_front() {
                match self.verifier.admit(&stamped.event) {
                    Ok(()) => return Some(stamped),
                    // Clients take it, and it should not be.
                    Err(violation) if !violation.throws() => {
                        tracing::warn!(run_id = %self.run.host_run, %violation, "an event is not as AG-UI wants it");
                        return Some(stamped);
                    }
                    Err(violation) => {
                        tracing::error!(run_id = %self.run.host_run, %violation, "an event was kept from the wire");
                        if self.verifier.is_over() {
                            return None;
                        }
                        self.break_off("internal", "the host could not project the events of the run; its log has the reason");
                        continue;
                    }
                }
            }
            if self.is_over {
                return None;
            }
            let next = tokio::select! {
                biased;
                event = self.follower.next(&self.projector) => event,
                () = self.app.closing.cancelled() => None,
            };
            match next {
                Some(Ok((run, event))) => {
                    let steps = if run == self.run.host_run {
                        self.projector.push(&event)
                    } else {
                        self.projector.push_child(run, &event)
                    };
                    self.take(steps);
                }
                Some(Err(error)) => {
                    tracing::error!(run_id = %self.run.host_run, %error, "a run could not be followed");
                    self.break_off("internal", "the host could not read further events; its log has the reason");
                }
                None => self.break_off(
                    "SERVER_SHUTDOWN",
                    "the host shuts down; the run continues after its next start: attach to it with the same `runId`",
                ),
            }
        }
    }
}

/// True if a place is one of this segment.
fn is_in_segment(run: &RunEntry, place: &Place) -> bool {
    place.cursor >= Cursor { sequence: run.from, part: PRELUDE }
}

/// True if a run waits only for the answers of this AG-UI run: its record may show a wait between two of the answers.
fn answers(run: &RunEntry, end: &End) -> bool {
    let has = |id: &str| run.answers.iter().any(|given| given.action_id == id) || run.taken.iter().any(|taken| taken.id == id);
    match end {
        End::Interrupt { interrupts, .. } => interrupts.iter().all(|interrupt| has(&interrupt.id)),
        End::Success { pending, .. } => !pending.is_empty() && pending.iter().all(|id| has(id)),
        End::Cancelled { .. } | End::Error { .. } => false,
    }
}

fn is_empty(state: &Value) -> bool {
    state.as_object().is_some_and(Map::is_empty) || state.is_null()
}
