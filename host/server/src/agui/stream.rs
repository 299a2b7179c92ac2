//! A run as a client receives it: joined at its beginning, in the middle or after its end, and ended exactly once.
//!
//! Everything is read from the record of the host's run, so a client that comes back sees what it would have seen. The
//! verifier stands before the wire: what is not a legal stream of AG-UI does not leave the host, whatever a runner does.

use std::{collections::VecDeque, convert::Infallible, pin::Pin, time::Duration};

use agent_host_protocol::{RunEvent, RunId, run::Execution, time};
use agent_host_runs::{HostError, OnDisconnect};
use axum::{
    body::{Body, Bytes},
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Map, Value, json};

use super::{
    coalesce::coalesce,
    cursor::{Cursor, Stamped},
    event::{Event, Kind, Outcome, PROTOCOL_VERSION},
    fold, legacy,
    project::{End, Projector, Step},
    store::{RunEntry, Thread},
    thread::{self, Asked, Until},
    verify::{Verifier, Violation},
    wire::{self, Wire},
};
use crate::{
    app::App,
    problem::{Problem, ProblemCode},
};

/// Proxies close what is silent for 30 seconds or more.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// Events that are written at one time, where so many are there.
const AT_ONCE: usize = 64;

/// What comes before the events of a record has places behind those of the event before them: the numbers from here on.
const PRELUDE: u32 = u32::MAX - 1_024;

/// How a client receives a run.
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
    /// Whether a record of its own is made of each event, as `EventSource` reads it: with an id and a type.
    pub(crate) named: bool,
    /// The stream ends where nothing comes for so long.
    pub(crate) idle: Option<Duration>,
}

/// What events carry so that a client can say how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Marks {
    #[default]
    Nothing,
    /// `metadata.agentHost.cursor`.
    Cursors,
    /// `metadata.agnoBackground`, after the convention of `AgnoAgent`.
    Agno,
}

/// Where a client joins.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Joining {
    /// At the beginning of the run.
    Begins {
        /// Whether it shows a history that is not the host's, and is told.
        contradicted: bool,
        /// The state that it has.
        state: Value,
    },
    /// Where the run is now: what was said before is told as snapshots.
    Attaches,
    /// After an event that it has. `greeted` is told first what is open, since its verifier knows nothing of before.
    After { cursor: Option<Cursor>, greeted: bool },
}

/// A run that a client receives.
struct Session {
    app: App,
    thread: Thread,
    run: RunEntry,
    viewer: Viewer,
    joining: Joining,
    projector: Projector,
    verifier: Verifier,
    follow: Pin<Box<dyn Stream<Item = Result<RunEvent, HostError>> + Send>>,
    out: VecDeque<Stamped>,
    /// The state that the client has now. Nothing where the run has none to share.
    state: Option<Value>,
    /// Whether the client may have another: then it is told at the end.
    is_stale: bool,
    /// The place of the last event that the client has, where it says so.
    cursor: Option<Cursor>,
    over: bool,
}

/// Opens the stream of a run.
pub(crate) async fn open(
    app: &App,
    thread: Thread,
    run: RunEntry,
    joining: Joining,
    viewer: Viewer,
) -> Result<Response, Problem> {
    let host_run = run.host_run;
    let record = app.host.ledger().run(host_run)?.ok_or_else(|| Problem::not_found("the run is gone"))?;
    let last = record.run.last_sequence;
    let cursor = match &joining {
        Joining::After { cursor: Some(cursor), .. } if cursor.sequence > last => {
            let detail = format!("the run has {last} events, and the cursor is behind them");
            return Err(Problem::new(ProblemCode::InvalidCursor, detail));
        }
        Joining::After { cursor, .. } => *cursor,
        _ => None,
    };
    // How far the record is told before it is followed.
    let told = match &joining {
        Joining::Begins { .. } => 0,
        Joining::Attaches => last,
        Joining::After { .. } => cursor.map_or(0, |cursor| cursor.sequence),
    };
    let mut session = Session {
        cursor,
        projector: Projector::new(host_run, record.run.execution == Execution::External),
        follow: Box::pin(app.host.follow(host_run, told)?),
        app: app.clone(),
        thread,
        run,
        viewer,
        joining,
        verifier: Verifier::new(),
        out: VecDeque::new(),
        state: None,
        is_stale: false,
        over: false,
    };
    let session = if matches!(session.joining, Joining::Begins { contradicted: false, .. }) {
        // Two reads of the ledger: not worth another thread.
        session.join(&record, told)?;
        session
    } else {
        let joined = tokio::task::spawn_blocking(move || session.join(&record, told).map(|()| session));
        joined.await.map_err(Problem::internal)??
    };
    if session.over && session.out.is_empty() {
        // Nothing is left, and a client that reads `EventSource` does not come again.
        return Ok((StatusCode::NO_CONTENT, [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))]).into_response());
    }
    session.respond(Some(host_run))
}

/// Answers with a thread in which no run is under way: what it is, and that there is nothing to wait for but what is asked.
pub(crate) async fn rest(
    app: &App,
    thread: Thread,
    last: Option<RunId>,
    asked: Asked,
    viewer: Viewer,
) -> Result<Response, Problem> {
    let run = RunEntry {
        agent: String::new(),
        run_id: viewer.run_id.clone(),
        host_run: last.unwrap_or_else(RunId::new),
        from: 0,
        taken: Vec::new(),
        answers: Vec::new(),
        at: 0,
    };
    let mut session = Session {
        projector: Projector::new(run.host_run, false),
        follow: Box::pin(stream::empty()),
        app: app.clone(),
        thread,
        run,
        viewer,
        joining: Joining::Attaches,
        verifier: Verifier::new(),
        out: VecDeque::new(),
        state: None,
        is_stale: false,
        cursor: None,
        over: false,
    };
    let session = tokio::task::spawn_blocking(move || {
        if let Some(last) = last {
            session.state = thread::state(&session.app, last)?.map(Value::Object);
        }
        let mut prelude = vec![session.started(), session.snapshot(None)?];
        prelude.extend(session.state.clone().map(|snapshot| Kind::StateSnapshot { snapshot }.into()));
        session.say(prelude, 0);
        let (pending, interrupts) = (asked.pending(), asked.interrupts());
        let end = if interrupts.is_empty() {
            End::Success { result: None, pending, usage: Vec::new() }
        } else {
            End::Interrupt { interrupts, usage: Vec::new() }
        };
        session.end(end, Cursor { sequence: 0, part: u32::MAX });
        Ok::<_, Problem>(session)
    });
    session.await.map_err(Problem::internal)??.respond(None)
}

impl Session {
    /// Tells what is there already.
    fn join(&mut self, record: &agent_host_ledger::RunRecord, told: u64) -> Result<(), Problem> {
        let (app, from, cursor) = (self.app.clone(), self.run.from, self.cursor);
        self.state = thread::state(&app, self.run.host_run)?.map(Value::Object);
        if let Joining::Begins { contradicted, state } = self.joining.clone() {
            let mut prelude = vec![self.started()];
            if contradicted {
                prelude.push(self.snapshot(Some(Until { run: self.run.host_run, sequence: from }))?);
            }
            if let Some(ours) = self.state.clone()
                && ours != state
                && !(is_empty(&ours) && is_empty(&state))
            {
                prelude.push(Kind::StateSnapshot { snapshot: ours }.into());
            }
            self.say(prelude, from);
            return Ok(());
        }
        // What a client that has been here from the beginning would have by now.
        let mut seen = Verifier::new();
        let started = self.started();
        let mut behind = Vec::new();
        let mut ended = None;
        let mut fault = None;
        let _ = seen.admit(&started);
        thread::each(app.host.ledger(), record, told, |event| {
            for step in self.projector.push(event) {
                let at = step.at();
                if at.sequence <= from || ended.is_some() {
                    continue;
                }
                // Parts of the last event that the client has not.
                if cursor.is_some_and(|cursor| at > cursor) {
                    behind.push(step);
                    continue;
                }
                match step {
                    Step::Event(stamped) => {
                        fault = fault.take().or(seen.admit(&stamped.event).err().filter(Violation::throws));
                    }
                    Step::End(end, at) if !answers(&self.run, &end) => ended = Some((end, at)),
                    Step::Past(_) | Step::Correct(..) | Step::End(..) => {}
                }
            }
        })?;
        if let Some(violation) = fault {
            return Err(Problem::internal(format!("run {} is no legal stream: {violation}", self.run.host_run)));
        }
        let state = self.state.clone().map(|snapshot| Event::from(Kind::StateSnapshot { snapshot }));
        match self.joining.clone() {
            Joining::Attaches => {
                let until = (!record.run.status.is_terminal()).then_some(Until { run: self.run.host_run, sequence: told });
                let mut prelude = vec![started, self.snapshot(until)?];
                prelude.extend(state);
                if ended.is_none() {
                    prelude.extend(seen.reopening());
                }
                self.say(prelude, told);
                if let Some((end, at)) = ended {
                    self.end(end, at);
                }
            }
            Joining::After { greeted: true, .. } => {
                let mut prelude = vec![started];
                prelude.extend(state);
                if ended.is_none() {
                    prelude.extend(seen.reopening());
                }
                // A client that is cut here is where it was.
                let at = cursor.unwrap_or(Cursor { sequence: from, part: PRELUDE });
                self.out.extend(prelude.into_iter().map(|event| Stamped { event, at }));
                if let Some((end, at)) = ended {
                    self.end(end, at);
                }
            }
            _ => {
                let is_new = cursor.is_none_or(|cursor| cursor < Cursor { sequence: from, part: PRELUDE });
                if is_new {
                    self.say(vec![started], from);
                } else {
                    // It had all of this, and the state as it was then.
                    self.verifier = seen;
                    self.is_stale = true;
                    match ended {
                        // A client of events has the end as well, and does not come again; to a request, there is an answer.
                        Some(_) if self.viewer.named => self.over = true,
                        Some((end, at)) => self.end(end, at),
                        None => {}
                    }
                }
            }
        }
        if !self.over {
            self.take(behind);
        }
        Ok(())
    }

    fn started(&self) -> Event {
        let mut event = Event::from(Kind::RunStarted {
            thread_id: self.thread.id.clone(),
            run_id: self.viewer.run_id.clone(),
            protocol_version: Some(PROTOCOL_VERSION),
            parent_run_id: None,
        });
        if let Some(attached) = &self.viewer.attached {
            event.metadata.insert("agentHost".to_owned(), json!({ "attachedRunId": attached }));
        }
        event.at(time::now())
    }

    /// The messages of the thread.
    fn snapshot(&self, until: Option<Until>) -> Result<Event, Problem> {
        let limit = usize::try_from(self.app.host.config().agui.history_messages).unwrap_or(usize::MAX);
        let messages = thread::messages(&self.app, &self.thread.key, limit, until)?.messages;
        Ok(Kind::MessagesSnapshot { messages }.into())
    }

    /// What stands before the events of the record, behind event `after` of it.
    fn say(&mut self, events: Vec<Event>, after: u64) {
        for (part, event) in (PRELUDE..).zip(events) {
            self.out.push_back(Stamped { event, at: Cursor { sequence: after, part } });
        }
    }

    /// The next events.
    fn take(&mut self, steps: Vec<Step>) {
        for step in steps {
            let at = step.at();
            if at.sequence <= self.run.from || self.over {
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
                Step::Correct(_, at) => match self.snapshot(Some(Until { run: self.run.host_run, sequence: at.sequence })) {
                    Ok(event) => self.out.push_back(Stamped { event, at }),
                    Err(problem) => tracing::error!(problem = problem.to_json(), "a message could not be corrected"),
                },
                Step::End(end, at) if !answers(&self.run, &end) => self.end(end, at),
                Step::End(..) => {}
            }
        }
    }

    /// The one end.
    fn end(&mut self, end: End, at: Cursor) {
        self.over = true;
        // What was set otherwise than by a result is in no event.
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
                self.out.push_back(Stamped { event, at: before });
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
        self.out.push_back(Stamped { event: Event::from(kind).at(time::now()), at });
    }

    /// The stream cannot go on: it is ended in order. The run is what it is, and the client may come back to it.
    fn break_off(&mut self, code: &str, message: &str) {
        self.over = true;
        let at = Cursor { sequence: 0, part: 0 };
        self.out.clear();
        let closing = self.verifier.closing();
        self.out.extend(closing.into_iter().map(|event| Stamped { event, at }));
        let kind = Kind::RunError { message: message.to_owned(), code: Some(code.to_owned()), usage: Vec::new() };
        self.out.push_back(Stamped { event: Event::from(kind).at(time::now()), at });
    }

    async fn next(&mut self) -> Option<Stamped> {
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
                        self.break_off("internal", "the host could not tell what the run did; its log says why");
                        continue;
                    }
                }
            }
            if self.over {
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
                    self.break_off("internal", "the host could not read on; its log says why");
                }
                None => self.break_off(
                    "SERVER_SHUTDOWN",
                    "the host goes down; the run goes on when it is back: attach to it with the same `runId`",
                ),
            }
        }
    }

    /// The response, which is read as fast as the client takes it.
    fn respond(self, watched: Option<RunId>) -> Result<Response, Problem> {
        let app = self.app.clone();
        let place = app.subscribe()?;
        let open = app.http.streaming();
        let viewer = self.viewer.clone();
        let window = app.host.config().agui.coalesce();
        let mut watching = watched.map(|run| Watching::new(&app, run));
        let events = stream::unfold(self, |mut session| async move { session.next().await.map(|event| (event, session)) });
        let wire = viewer.wire;
        let idle = viewer.idle;
        let encoded = coalesce(events, window).map(move |stamped| {
            if stamped.event.kind.is_terminal()
                && let Some(watching) = &mut watching
            {
                watching.over();
            }
            encode(&viewer, stamped)
        });
        let pieces = Box::pin(encoded.ready_chunks(AT_ONCE).map(joined));
        let body =
            stream::unfold((pieces, place, open, Duration::ZERO), move |(mut pieces, place, open, mut silent)| async move {
                loop {
                    let wait = idle.map_or(KEEP_ALIVE, |idle| KEEP_ALIVE.min(idle.saturating_sub(silent)));
                    match tokio::time::timeout(wait, pieces.next()).await {
                        Ok(piece) => {
                            return piece.map(|piece| (Ok::<_, Infallible>(piece), (pieces, place, open, Duration::ZERO)));
                        }
                        Err(_) => {
                            silent += wait;
                            if idle.is_some_and(|idle| silent >= idle) {
                                return None;
                            }
                            if wire == Wire::Sse {
                                return Some((Ok(COMMENT), (pieces, place, open, silent)));
                            }
                        }
                    }
                }
            });
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(wire.media_type())),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            // nginx collects answers by default, which would hold back every event.
            (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
        ];
        Ok((StatusCode::OK, headers, Body::from_stream(body)).into_response())
    }
}

/// Whether a run waits only for what this AG-UI run answers: it may be told so between one of its answers and the next.
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

fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() == 1 {
        return pieces.pop().unwrap_or_default();
    }
    pieces.concat().into()
}

fn encode(viewer: &Viewer, stamped: Stamped) -> Bytes {
    let Stamped { mut event, at } = stamped;
    // What the host says at a break has no place, and a client that has it goes on from where it was.
    let placed = Some(at).filter(|at| *at != Cursor::default());
    match (viewer.marks, placed) {
        (Marks::Cursors, Some(at)) => {
            let mark = event.metadata.entry("agentHost").or_insert_with(|| json!({}));
            if let Some(mark) = mark.as_object_mut() {
                mark.insert("cursor".to_owned(), format!("{}:{at}", viewer.run_id).into());
            }
        }
        (Marks::Agno, Some(at)) => {
            event.metadata.insert("agnoBackground".to_owned(), json!({ "eventIndex": at.sequence, "subIndex": at.part }));
        }
        _ => {}
    }
    let event = if viewer.is_old { legacy::down(event) } else { event };
    match viewer.wire {
        Wire::Sse if viewer.named => {
            let id = placed.map(|at| format!("{}:{at}", viewer.run_id));
            wire::sse_named(&event, id.as_deref())
        }
        Wire::Sse => wire::sse(&event),
        Wire::Protobuf => wire::protobuf(&event),
    }
}

/// Somebody receives a run. Where the configuration says so, a run whose client goes away is cancelled, unless
/// another receives it as well.
struct Watching {
    app: App,
    run: RunId,
    is_over: bool,
}

impl Watching {
    fn new(app: &App, run: RunId) -> Self {
        *app.agui.watchers.lock().entry(run).or_insert(0) += 1;
        Self { app: app.clone(), run, is_over: false }
    }

    fn over(&mut self) {
        self.is_over = true;
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut watchers = self.app.agui.watchers.lock();
        let left = watchers.get_mut(&self.run).map_or(0, |count| {
            *count = count.saturating_sub(1);
            *count
        });
        if left > 0 {
            return;
        }
        watchers.remove(&self.run);
        drop(watchers);
        let cancels = self.app.host.config().agui.on_disconnect == OnDisconnect::Cancel;
        if self.is_over || !cancels || self.app.closing.is_cancelled() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (host, run) = (self.app.host.clone(), self.run);
            runtime.spawn(async move {
                // One that has ended meanwhile has ended.
                let _ = host.cancel(run, "its client went away".to_owned()).await;
            });
        }
    }
}
