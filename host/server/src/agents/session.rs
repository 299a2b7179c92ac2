//! The stream of a run for one client, joined at the beginning, in the middle or after the end, and ended exactly once.
//!
//! All events come from the record of the host's run, so a client that reconnects sees the events that it missed. Every
//! event passes the verifier: no illegal stream of AG-UI leaves the host, whatever a runner does.

use std::{collections::VecDeque, pin::Pin, time::Duration};

use agent_host_protocol::{RunEvent, time};
use agent_host_runs::{HostError, RunRecord};
use futures_util::{Stream, StreamExt};
use serde_json::{Map, Value, json};

use super::{
    store::{RunEntry, Thread},
    thread::{self, MessageLimit},
};
use crate::{
    agui::{
        cursor::{Cursor, StampedEvent},
        event::{Event, Kind, Outcome, PROTOCOL_VERSION},
        fold,
        project::{End, Projector, Step},
        verify::{Verifier, Violation},
        wire::Wire,
    },
    app::App,
    http::Problem,
};

/// Parts from this number on are of events that the host says before the next event of the record.
const PRELUDE: u32 = u32::MAX - 1_024;

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
    After { cursor: Option<Cursor>, greeted: bool },
}

/// The events of a run, as they follow.
pub(super) type RunEvents = Pin<Box<dyn Stream<Item = Result<RunEvent, HostError>> + Send>>;

/// A run that a client receives.
pub(super) struct Session {
    pub(super) app: App,
    thread: Thread,
    run: RunEntry,
    pub(super) viewer: Viewer,
    joining: JoinPoint,
    projector: Projector,
    verifier: Verifier,
    follow: RunEvents,
    out: VecDeque<StampedEvent>,
    /// The state that the client has now; `None` if the run shares none.
    pub(super) state: Option<Value>,
    /// True if the client may have another state: the end sends a new one.
    is_stale: bool,
    /// The place of the last event that the client has, where it says so.
    cursor: Option<Cursor>,
    is_over: bool,
}

/// The part of a record before the place where a client joins.
struct Prefix {
    /// The verifier of a client that has received it.
    verifier: Verifier,
    /// Steps of its last event that the client has not.
    rest: Vec<Step>,
    end: Option<(End, Cursor)>,
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
        let cursor = if let JoinPoint::After { cursor, .. } = &joining { *cursor } else { None };
        Self {
            projector: Projector::new(run.host_run, external).with_children(thread::children(app)),
            app: app.clone(),
            thread,
            run,
            viewer,
            joining,
            verifier: Verifier::new(),
            follow,
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

    /// Tells what is there already.
    pub(super) fn join(&mut self, record: &RunRecord, delivered: u64) -> Result<(), Problem> {
        let from = self.run.from;
        self.state = thread::state(&self.app, self.run.host_run)?.map(Value::Object);
        let joining = self.joining.clone();
        if let JoinPoint::Begins { contradicted, state } = joining {
            return self.join_beginning(contradicted, &state);
        }
        let started = self.started();
        let Prefix { verifier, rest, end } = self.prefix(record, delivered, &started)?;
        match joining {
            JoinPoint::Attaches => {
                let until =
                    (!record.run.status.is_terminal()).then_some(MessageLimit { run: self.run.host_run, sequence: delivered });
                let mut prelude = vec![started, self.snapshot(until)?];
                prelude.extend(self.open_items(&verifier, end.is_some()));
                self.say(prelude, delivered);
                self.finish(end);
            }
            JoinPoint::After { greeted: true, .. } => {
                let mut prelude = vec![started];
                prelude.extend(self.open_items(&verifier, end.is_some()));
                // A client that is cut here is where it was.
                let at = self.cursor.unwrap_or(Cursor { sequence: from, part: PRELUDE });
                self.out.extend(prelude.into_iter().map(|event| StampedEvent { event, at }));
                self.finish(end);
            }
            _ if self.cursor.is_none_or(|cursor| cursor < Cursor { sequence: from, part: PRELUDE }) => {
                self.say(vec![started], from);
            }
            _ => {
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
        }
        if !self.is_over {
            self.take(rest);
        }
        Ok(())
    }

    fn join_beginning(&mut self, contradicted: bool, theirs: &Value) -> Result<(), Problem> {
        let from = self.run.from;
        let mut prelude = vec![self.started()];
        if contradicted {
            prelude.push(self.snapshot(Some(MessageLimit { run: self.run.host_run, sequence: from }))?);
        }
        if let Some(ours) = self.state.clone()
            && ours != *theirs
            && !(is_empty(&ours) && is_empty(theirs))
        {
            prelude.push(Kind::StateSnapshot { snapshot: ours }.into());
        }
        self.say(prelude, from);
        Ok(())
    }

    /// The events that a client has by now that joined at the beginning.
    fn prefix(&mut self, record: &RunRecord, delivered: u64, started: &Event) -> Result<Prefix, Problem> {
        let (run, from, cursor) = (&self.run, self.run.from, self.cursor);
        let mut prefix = Prefix { verifier: Verifier::new(), rest: Vec::new(), end: None };
        let mut fault = None;
        let _ = prefix.verifier.admit(started);
        thread::each(&self.app.host.records(), record, delivered, |event| {
            for step in self.projector.push(event) {
                let at = step.at();
                if at.sequence <= from || prefix.end.is_some() {
                    continue;
                }
                if cursor.is_some_and(|cursor| at > cursor) {
                    prefix.rest.push(step);
                    continue;
                }
                match step {
                    Step::Event(stamped) => {
                        fault = fault.take().or(prefix.verifier.admit(&stamped.event).err().filter(Violation::throws));
                    }
                    Step::End(end, at) if !answers(run, &end) => prefix.end = Some((end, at)),
                    Step::Past(_) | Step::Correct(..) | Step::End(..) => {}
                }
            }
        })?;
        match fault {
            Some(violation) => Err(Problem::internal(format!("run {} is no legal stream: {violation}", run.host_run))),
            None => Ok(prefix),
        }
    }

    /// The state, and the STARTs of what is open where the run has not ended.
    fn open_items(&self, seen: &Verifier, has_ended: bool) -> Vec<Event> {
        let state = self.state.clone().map(|snapshot| Event::from(Kind::StateSnapshot { snapshot }));
        let open = if has_ended { Vec::new() } else { seen.reopening() };
        state.into_iter().chain(open).collect()
    }

    fn finish(&mut self, end: Option<(End, Cursor)>) {
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
    pub(super) fn snapshot(&self, until: Option<MessageLimit>) -> Result<Event, Problem> {
        let limit = usize::try_from(self.app.host.config().agui.history_messages).unwrap_or(usize::MAX);
        let messages = thread::messages(&self.app, &self.thread.key, limit, until)?.messages;
        Ok(Kind::MessagesSnapshot { messages }.into())
    }

    /// Says events of the host between event `after` of the record and the next.
    pub(super) fn say(&mut self, events: Vec<Event>, after: u64) {
        for (part, event) in (PRELUDE..).zip(events) {
            self.out.push_back(StampedEvent { event, at: Cursor { sequence: after, part } });
        }
    }

    /// The next events.
    fn take(&mut self, steps: Vec<Step>) {
        for step in steps {
            let at = step.at();
            if at.sequence <= self.run.from || self.is_over {
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
                Step::Correct(_, at) => match self.snapshot(Some(MessageLimit { run: self.run.host_run, sequence: at.sequence }))
                {
                    Ok(event) => self.out.push_back(StampedEvent { event, at }),
                    Err(problem) => tracing::error!(problem = problem.to_json(), "a message could not be corrected"),
                },
                Step::End(end, at) if !answers(&self.run, &end) => self.end(end, at),
                Step::End(..) => {}
            }
        }
    }

    /// The one end.
    pub(super) fn end(&mut self, end: End, at: Cursor) {
        self.is_over = true;
        // State that was set otherwise than by a result is in no event.
        if let Some(known) = &self.state
            && let Ok(Some(state)) = thread::state(&self.app, self.run.host_run)
            && (*known != Value::Object(state.clone()) || self.is_stale && !state.is_empty())
        {
            let event = Kind::StateSnapshot { snapshot: Value::Object(state) }.into();
            // A client that is cut between the two has not seen the end.
            let before = match at.part.checked_sub(1) {
                Some(part) => Cursor { part, ..at },
                None => Cursor { sequence: at.sequence.saturating_sub(1), part: u32::MAX },
            };
            if self.cursor.is_none_or(|cursor| cursor < before) {
                self.out.push_back(StampedEvent { event, at: before });
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
        let at = Cursor { sequence: 0, part: 0 };
        self.out.clear();
        let closing = self.verifier.closing();
        self.out.extend(closing.into_iter().map(|event| StampedEvent { event, at }));
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
                event = self.follow.next() => event,
                () = self.app.closing.cancelled() => None,
            };
            match next {
                Some(Ok(event)) => {
                    let steps = self.projector.push(&event);
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
