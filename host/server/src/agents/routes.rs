//! The routes of AG-UI: an agent for each binding, under `/agents`.

use agent_host_protocol::Scope;
use agent_host_runs::Agent;
use axum::{
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, schema::SchemaType},
};

use super::{
    engine::{self, ReadMode, StartedRun},
    media,
    read::{self, ReadInput},
    session::{JoinPoint, Marks, Viewer},
    store::{RunEntry, Thread},
    stream,
    thread::{self, OpenActions, ThreadView},
};
use crate::{
    access::{ApiRequest, caller::Caller},
    agui::{
        capabilities,
        cursor::{Cursor, Place},
        input::RunAgentInput,
        legacy, strict,
        wire::{self, Wire},
    },
    app::{App, off_thread},
    http::{Path, Problem, ProblemCode, body, headers::last_event_id, json},
    openapi::refusals,
};

/// The agents that the configuration has.
#[derive(Serialize, ToSchema)]
struct Agents {
    agents: Vec<ListedAgent>,
}

/// An agent.
#[derive(Serialize, ToSchema)]
#[schema(as = AguiAgent)]
struct ListedAgent {
    /// Name in paths: the id of the binding.
    id: String,
    /// Name for people.
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// The runner that answers.
    runner_id: String,
}

refusals!(AgentsRefusals = []);

/// Lists the agents
///
/// Each binding whose runner is there is one.
#[utoipa::path(get, path = "/agents", tag = "agents", security(("bearer" = ["runs:read"])),
    responses((status = 200, description = "The agents.", body = Agents), AgentsRefusals))]
pub(crate) async fn agents(request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    let listed = |agent: Agent| ListedAgent {
        id: agent.id,
        name: agent.name,
        description: agent.description,
        runner_id: agent.runner_id.to_string(),
    };
    Ok(json(StatusCode::OK, &Agents { agents: request.app.host.agents().into_iter().map(listed).collect() }))
}

refusals!(AgentRefusals = [NotFound]);

/// Capabilities of an agent, in the form of AG-UI 1.0
#[utoipa::path(get, path = "/agents/{agent}/capabilities", tag = "agents", security(("bearer" = ["runs:read"])),
    params(("agent" = String, Path, description = "The agent.")),
    responses((status = 200, description = "Its capabilities.", body = Object), AgentRefusals))]
pub(crate) async fn capabilities(Path(agent): Path<String>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    Ok(json(StatusCode::OK, &capabilities::of(&request.app.host.agent(&agent)?)))
}

refusals!(
    RunRefusals = [JSON, WRITE]
        + [
            WorkspaceFull,
            NotFound,
            RunnerNotFound,
            RunnerCompiling,
            TokenBudgetExhausted,
            InvalidConfig,
            InvalidCursor,
            Conflict,
            ThreadBusy,
            RunIdConflict,
            InterruptsOpen,
            AlreadyAnswered,
            Expired,
            UnknownInterrupt,
            UnknownToolCall,
            RoleForbidden,
            NothingToDo,
            MediaInvalid,
            MediaTooLarge,
            MediaUnavailable,
            QueueFull,
            TooManyStreams,
            AgentRunInputInvalid,
            AgentRunMessagesInvalid,
            AgentSessionIdInvalid
        ]
);

/// The schema of a stream of events in the document. Readers of streams treat each event as an object of its own, which
/// AG-UI describes and this document does not.
pub(crate) enum EventStream {}

impl PartialSchema for EventStream {
    fn schema() -> RefOr<Schema> {
        let what = "Events of AG-UI 1.0 (<https://ag-ui.com/spec/1.0/schema.json>), each the `data` of a server-sent event.";
        ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some(what)).into()
    }
}

impl ToSchema for EventStream {
    fn name() -> std::borrow::Cow<'static, str> {
        "AguiEventStream".into()
    }
}

/// A `RunAgentInput`, for the description.
pub(crate) fn run_example() -> Value {
    serde_json::json!({
        "threadId": "550e8400-e29b-41d4-a716-446655440000",
        "runId": "run-001",
        "protocolVersion": "1.0",
        "state": {},
        "messages": [{ "id": "message-001", "role": "user", "content": "Hello" }],
        "tools": [],
        "context": [],
        "forwardedProps": {},
    })
}

/// Runs an agent, by AG-UI 1.0
///
/// Takes a `RunAgentInput`, answers with the stream of the run. The same `runId` again never runs twice: it attaches to the
/// run as it is. `forwardedProps.agentHost.cursor` attaches after an event. docs/AGUI.md says all of it.
#[utoipa::path(post, path = "/agents/{agent}/run", tag = "agents",
    security(("bearer" = ["events:write"])),
    params(("agent" = String, Path, description = "The agent.")),
    request_body(content = Object, description = "A `RunAgentInput` of AG-UI 1.0, or of before.", example = run_example),
    responses(
        (status = 200, description = "The events of the run.", content(
            (EventStream = "text/event-stream"),
            (String = "application/vnd.ag-ui.event+proto"),
        )),
        RunRefusals,
    ))]
pub(crate) async fn run(Path(agent): Path<String>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::EventsWrite)?;
    let read = read(&agent, &mut request).await?;
    let ApiRequest { app, caller, headers, .. } = request;
    app.host.agent(&agent)?;
    let props = ForwardedProps::of(&read.input)?;
    let started = engine::begin(&app, &caller, &agent, &read, ReadMode::Stream).await?;
    follow(&app, started, &read.input, props, &headers).await
}

/// The body of a request.
async fn read(agent: &str, request: &mut ApiRequest) -> Result<ReadInput, Problem> {
    body::require_json(&request.headers)?;
    let config = request.app.host.config();
    let body = std::mem::take(&mut request.body);
    if config.agui.is_strict(agent) {
        let body = body::read(body, config.limits.http_body_bytes).await?;
        let input = strict::parse(&body)?;
        media::check_signed(&request.app, &request.headers, &input)?;
        return Ok(ReadInput::strict(input));
    }
    read::read(&request.app, &request.headers, body).await
}

/// The stream of a run that was started.
pub(crate) async fn follow(
    app: &App,
    started: StartedRun,
    input: &RunAgentInput,
    props: ForwardedProps,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let StartedRun { thread, run, repeated, contradicted, .. } = started;
    // A client of server-sent events that connects again reads on in the same stream, so it is not greeted.
    let resumes = match (&props.after, last_event_id(headers)?.filter(|_| repeated)) {
        (After::Nothing, Some(id)) => Some(cursor(&id, &run.run_id, "Last-Event-ID")?),
        _ => None,
    };
    let joining = match (props.after, repeated) {
        (After::Nothing, true) if resumes.is_some() => JoinPoint::After { cursor: resumes, greeted: false },
        (After::Cursor(cursor), true) => JoinPoint::After { cursor: Some(cursor), greeted: props.marks != Marks::Agno },
        (_, true) if props.marks == Marks::Agno => JoinPoint::After { cursor: None, greeted: false },
        (_, true) => JoinPoint::Attaches,
        (_, false) => JoinPoint::Begins { contradicted, state: input.state.clone().unwrap_or(Value::Object(Map::new())) },
    };
    let viewer = Viewer { marks: props.marks, ..viewer(&run.run_id, headers, legacy::is_old(input.protocol_version.as_deref())) };
    stream::open(app, thread, run, joining, viewer).await
}

fn viewer(run_id: &str, headers: &HeaderMap, is_old: bool) -> Viewer {
    // Clients before 1.0 have a protobuf schema of their own, with fewer events.
    let wire = if is_old { Wire::Sse } else { wire::negotiate(headers) };
    Viewer { run_id: run_id.to_owned(), attached: None, wire, is_old, marks: Marks::Nothing, named: false, idle: None }
}

/// The members of `forwardedProps` that the host reads.
pub(crate) struct ForwardedProps {
    after: After,
    marks: Marks,
}

enum After {
    Nothing,
    Cursor(Place),
}

impl ForwardedProps {
    pub(crate) fn of(input: &RunAgentInput) -> Result<Self, Problem> {
        let props = &input.forwarded_props;
        if let Some(agno) = props.get("agnoBackground").filter(|agno| agno.get("enabled") == Some(&Value::Bool(true))) {
            let number = |name: &str| agno.get(name).and_then(Value::as_i64);
            let wrong = |name: &str, what: &str| {
                Problem::new(ProblemCode::InvalidCursor, format!("`{name}` is {what}"))
                    .in_field(format!("forwardedProps.agnoBackground.{name}"))
            };
            let after = match number("lastEventIndex") {
                None if agno.get("lastEventIndex").is_some_and(|index| !index.is_null()) => {
                    return Err(wrong("lastEventIndex", "a whole number from -1 on"));
                }
                None | Some(-1) => After::Nothing,
                Some(index) => {
                    let sequence = u64::try_from(index).map_err(|_| wrong("lastEventIndex", "a whole number from -1 on"))?;
                    let part = number("lastSubIndex").unwrap_or(i64::from(u32::MAX));
                    let part = u32::try_from(part).map_err(|_| wrong("lastSubIndex", "a whole number from 0 on"))?;
                    After::Cursor(Cursor { sequence, part }.into())
                }
            };
            return Ok(Self { after, marks: Marks::Agno });
        }
        let Some(ours) = props.get("agentHost") else { return Ok(Self { after: After::Nothing, marks: Marks::Nothing }) };
        let cursor = match ours.get("cursor") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(cursor(text, &input.run_id, "forwardedProps.agentHost.cursor")?),
            Some(_) => {
                let problem = Problem::new(ProblemCode::InvalidCursor, "the cursor is a text of `metadata.agentHost.cursor`");
                return Err(problem.in_field("forwardedProps.agentHost.cursor"));
            }
        };
        let marked = cursor.is_some() || ours.get("cursors") == Some(&Value::Bool(true));
        Ok(Self {
            after: cursor.map_or(After::Nothing, After::Cursor),
            marks: if marked { Marks::Cursors } else { Marks::Nothing },
        })
    }
}

/// A cursor `RUN_ID:PLACE` of this run.
pub(crate) fn cursor(text: &str, run_id: &str, field: &str) -> Result<Place, Problem> {
    let refused = |why: String| Problem::new(ProblemCode::InvalidCursor, why).in_field(field);
    let (run, place) = text
        .rsplit_once(':')
        .ok_or_else(|| refused(format!("`{}` is no cursor: send one that came with an event", text.escape_debug())))?;
    if run != run_id {
        return Err(refused(format!("the cursor is one of the run `{}`", run.escape_debug())));
    }
    place.parse().map_err(|error| refused(format!("{error}")))
}

refusals!(ConnectRefusals = [JSON] + [NotFound, InvalidCursor, TooManyStreams]);

/// Follows a thread, under a `runId` of its own
///
/// Starts no run. The answer has the messages and the state of the thread as snapshots, then the rest of the active run, if
/// there is one.
#[utoipa::path(post, path = "/agents/{agent}/connect", tag = "agents", security(("bearer" = ["runs:read"])),
    params(("agent" = String, Path, description = "The agent.")),
    request_body(content = Object, description = "A `RunAgentInput`; its messages are ignored.", example = run_example),
    responses(
        (status = 200, description = "The events.", content(
            (EventStream = "text/event-stream"),
            (String = "application/vnd.ag-ui.event+proto"),
        )),
        ConnectRefusals,
    ))]
pub(crate) async fn connect(Path(agent): Path<String>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    let ApiRequest { app, caller, headers, body, .. } = request;
    body::require_json(&headers)?;
    let ReadInput { input, .. } = read::read(&app, &headers, body).await?;
    app.host.agent(&agent)?;
    let thread = Thread::of(&caller, &input.thread_id);
    let props = ForwardedProps::of(&input)?;
    let viewer = viewer(&input.run_id, &headers, legacy::is_old(input.protocol_version.as_deref()));
    let viewer = Viewer { marks: props.marks, ..viewer };
    if let Some(run) = thread.run(&app, &input.run_id)? {
        return stream::open(&app, thread, run, JoinPoint::Attaches, viewer).await;
    }
    let last = thread.last(&app)?;
    let Some(run) = app.host.active_runs(&thread.key)?.into_iter().next() else {
        return stream::rest(&app, thread, last.map(|last| last.host_run), OpenActions::default(), viewer).await;
    };
    let waits = OpenActions::of(&app, &run)?;
    let run_id = last.filter(|last| last.host_run == run.run_id).map_or_else(|| run.run_id.to_string(), |last| last.run_id);
    let known = thread.run(&app, &run_id)?;
    let observed = known.unwrap_or_else(|| RunEntry::whole(agent, run_id.as_str(), run.run_id));
    let viewer = Viewer { attached: Some(run_id), ..viewer };
    if waits.is_empty() {
        stream::open(&app, thread, observed, JoinPoint::Attaches, viewer).await
    } else {
        stream::rest(&app, thread, Some(observed.host_run), waits, viewer).await
    }
}

refusals!(ShowRefusals = [NotFound, InvalidCursor]);

/// A thread, for a client that opens it
///
/// The newest messages, the state, the open questions, and the active run: all of one moment.
#[utoipa::path(get, path = "/agents/{agent}/threads/{thread}", tag = "agents", security(("bearer" = ["runs:read"])),
    params(
        ("agent" = String, Path, description = "The agent."),
        ("thread" = String, Path, description = "The thread, empty if it has no messages."),
        ("limit" = Option<u32>, Query, description = "Messages at least, where there are so many; 50 where it is left out.", minimum = 1, maximum = 100),
        ("before" = Option<String>, Query, description = "For older messages: the `before` of the answer with those that follow them."),
    ),
    responses((status = 200, description = "The thread.", body = ThreadView), ShowRefusals))]
pub(crate) async fn show(Path((agent, id)): Path<(String, String)>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsRead)?;
    let limit = request.query.limit()?;
    let before = request.query.text("before");
    request.query.finish()?;
    let thread = thread_of(&request.app, &request.caller, &agent, &id)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let hydrated = off_thread(move || thread::view(&request.app, &thread, limit, before)).await?;
    Ok(json(StatusCode::OK, &hydrated))
}

/// A thread of an agent.
fn thread_of(app: &App, caller: &Caller, agent: &str, id: &str) -> Result<Thread, Problem> {
    app.host.agent(agent)?;
    if id.is_empty() || id.len() > agent_host_protocol::event::MAX_FOREIGN_ID_LEN || id.chars().any(char::is_control) {
        return Err(Problem::not_found("the id of a thread has 1 to 256 bytes and no control characters"));
    }
    Ok(Thread::of(caller, id))
}

/// Fails if the caller sees no such run in a thread of this agent.
pub(crate) fn check_run(app: &App, caller: &Caller, agent: &str, thread: &str, run_id: &str) -> Result<(), Problem> {
    engine::find(app, &thread_of(app, caller, agent, thread)?, run_id).map(drop)
}

refusals!(EventsRefusals = [NotFound, InvalidCursor, TooManyStreams]);

/// The events of a run of a thread
///
/// From the beginning, or after `Last-Event-ID`; each event has a cursor as `id` and its type as `event`.
#[utoipa::path(get, path = "/agents/{agent}/threads/{thread}/runs/{run}/events", tag = "agents",
    security(("bearer" = ["runs:read"]), ("stream_token" = [])),
    params(
        ("agent" = String, Path, description = "The agent."),
        ("thread" = String, Path, description = "The thread."),
        ("run" = String, Path, description = "The `runId` of the client, or the id that the host has for it."),
        ("after" = Option<String>, Query, description = "The `id` of the last event that was seen."),
        ("Last-Event-ID" = Option<String>, Header, description = "Likewise. It wins over `after`."),
    ),
    responses(
        (status = 200, description = "The events.", content((EventStream = "text/event-stream"))),
        (status = 204, description = "That was the last event: nothing follows."),
        EventsRefusals,
    ))]
pub(crate) async fn events(
    Path((agent, id, run_id)): Path<(String, String, String)>,
    mut request: ApiRequest,
) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsRead)?;
    let after = request.query.text("after");
    request.query.finish()?;
    let thread = thread_of(&request.app, &request.caller, &agent, &id)?;
    let after = last_event_id(&request.headers)?.or(after);
    let cursor = after.map(|text| cursor(&text, &run_id, "Last-Event-ID")).transpose()?;
    read_on(&request.app, thread, &run_id, cursor, None).await
}

/// The events of a run after a cursor, with their ids.
pub(crate) async fn read_on(
    app: &App,
    thread: Thread,
    run_id: &str,
    cursor: Option<Place>,
    idle: Option<std::time::Duration>,
) -> Result<Response, Problem> {
    let run = engine::find(app, &thread, run_id)?;
    let viewer = Viewer {
        run_id: run_id.to_owned(),
        attached: None,
        wire: Wire::Sse,
        is_old: false,
        marks: Marks::Nothing,
        named: true,
        idle,
    };
    stream::open(app, thread, run, JoinPoint::After { cursor, greeted: false }, viewer).await
}

/// A run of which the end was asked for.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AguiCancelled)]
pub(crate) struct CancelledRun {
    pub(crate) thread_id: String,
    pub(crate) run_id: String,
    /// The value is always `true`: an ended run stays as it is.
    pub(crate) accepted: bool,
}

refusals!(CancelRefusals = [WRITE] + [NotFound]);

/// Asks for the end of a run
///
/// Clients that receive the run see it end as cancelled. A repeated request changes nothing.
#[utoipa::path(post, path = "/agents/{agent}/threads/{thread}/runs/{run}/cancel", tag = "agents",
    security(("bearer" = ["runs:control"])),
    params(
        ("agent" = String, Path, description = "The agent."),
        ("thread" = String, Path, description = "The thread."),
        ("run" = String, Path, description = "The `runId` of the client, or the id that the host has for it."),
    ),
    responses((status = 202, description = "It ends in a moment.", body = CancelledRun), CancelRefusals))]
pub(crate) async fn cancel(
    Path((agent, id, run_id)): Path<(String, String, String)>,
    request: ApiRequest,
) -> Result<Response, Problem> {
    request.allow(Scope::RunsControl)?;
    let thread = thread_of(&request.app, &request.caller, &agent, &id)?;
    engine::cancel(&request.app, &request.caller, &thread, &run_id).await?;
    Ok(json(StatusCode::ACCEPTED, &CancelledRun { thread_id: id, run_id, accepted: true }))
}

refusals!(ForgetRefusals = [WRITE] + [NotFound, Conflict]);

/// Deletes a thread
///
/// Deletes the messages, the state and the artifacts. Deleting a missing thread succeeds; a thread with an active run is
/// not deleted.
#[utoipa::path(delete, path = "/agents/{agent}/threads/{thread}", tag = "agents", security(("bearer" = ["runs:control"])),
    params(
        ("agent" = String, Path, description = "The agent."),
        ("thread" = String, Path, description = "The thread."),
    ),
    responses((status = 204, description = "It is gone."), ForgetRefusals))]
pub(crate) async fn forget(Path((agent, id)): Path<(String, String)>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsControl)?;
    let thread = thread_of(&request.app, &request.caller, &agent, &id)?;
    engine::forget(&request.app, &request.caller, &thread).await?;
    Ok((StatusCode::NO_CONTENT, [(header::CACHE_CONTROL, "no-store")]).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_one_of_its_run() {
        assert_eq!(cursor("r:1:3.2", "r:1", "f").unwrap(), Cursor { sequence: 3, part: 2 }.into());
        for text in ["3.2", "r:3", "q:3.2", "r:1:3", "r:1:-1.0", "r:1:", ""] {
            assert_eq!(cursor(text, "r:1", "f").unwrap_err().code(), ProblemCode::InvalidCursor, "{text}");
        }
    }
}
