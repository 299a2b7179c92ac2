//! The acts of a front end in a thread: start a turn, cancel one, answer an action.

use std::time::Duration;

use agent_host_config::BusyThread;
use agent_host_protocol::{EventId, Run, RunId, Scope, context::Conversation, event::Envelope, message::ArtifactRef};
use agent_host_runs::{
    AcceptedEvent, AgentRun, EntryWrite, HostError, Idempotency, Response as Answer, RunRecord, TURN_ID, Thread, ThreadError,
    ThreadKey,
    facts::{Fact, FactType, record::Decision},
    turn_id,
};
use axum::{http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::{
    ThreadName,
    events::{StreamForm, of_turn, respond as stream_facts, shape, stream_form},
};
use crate::{
    access::{ApiRequest, caller::Caller},
    agents::actor_of,
    app::{App, off_thread},
    http::{Path, Problem, ProblemCode, body, json as answer_json, located, replayed},
    openapi::{ThreadParams, refusals},
};

/// Longest id of a turn that a client gives.
const MAX_TURN_ID_BYTES: usize = 128;
/// Time for the end of a turn that was cancelled: a guest has 20 ms.
const END: Duration = Duration::from_secs(10);
/// JSON may spell each byte of a reason with six, and has a few of its own.
const MAX_CANCEL_BODY_BYTES: usize = 6 * body::MAX_REASON_BYTES + 256;
/// Beside an answer: the names of its members, a decision and the scope.
const MORE_BYTES: usize = 4 * 1024;

/// A turn to be started.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StartTurn {
    /// The agent that answers: a binding.
    agent: String,
    /// An id for the turn. The same id with the same body is the same turn.
    #[serde(default)]
    #[schema(max_length = 128)]
    turn_id: Option<String>,
    /// The input.
    input: TurnInput,
    /// True if the turn may wait behind the active one. A turn is refused otherwise.
    #[serde(default)]
    queue_if_busy: bool,
    /// Kept with the run, under `client`.
    #[serde(default)]
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
}

/// The input of a turn.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TurnInput {
    /// The text.
    #[serde(default)]
    text: String,
    /// Uploads.
    #[serde(default)]
    attachments: Vec<ArtifactRef>,
}

/// A turn that was started.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct StartedTurn {
    session_id: String,
    thread_id: String,
    turn_id: String,
    run_id: RunId,
    /// The facts of the turn come after this number.
    event_cursor: String,
}

/// The entry of a turn that a client has named.
#[derive(Serialize, Deserialize)]
struct TurnEntry {
    run_id: RunId,
    body: String,
}

refusals!(
    StartRefusals =
        [JSON, WRITE, BEGIN] + [ThreadForgotten, TurnIdConflict, TurnAlreadyActive, Conflict, NotAcceptable, TooManyStreams]
);

/// Starts a turn
///
/// The turn is durable when this answers. `Accept: text/event-stream` or `application/x-ndjson` answers with the facts of the
/// thread until the end of the turn.
#[utoipa::path(post, path = "/api/v1/threads/{id}/turns", tag = "threads", security(("bearer" = ["events:write"])),
    params(
        ThreadParams,
        ("shape" = Option<String>, Query, description = "Of a stream: `seed`, `contracts` or `profile-0.4.0`."),
    ),
    request_body = StartTurn,
    responses(
        (status = 200, description = "The facts, until the end of the turn.", content(
            (String = "text/event-stream"),
            (String = "application/x-ndjson"),
        )),
        (status = 202, description = "The turn.", body = StartedTurn, headers(
            ("Location" = String, description = "The thread."),
            ("Idempotency-Replayed" = Option<String>, description = "`true` where the turn was started before."),
        )),
        StartRefusals,
    ))]
pub(crate) async fn start(Path(id): Path<String>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::EventsWrite)?;
    let name = request.thread(&id)?;
    let shape = shape(&mut request)?;
    request.query.finish()?;
    let form = stream_form(&request.headers)?;
    let limit = request.app.host.config().limits.http_body_bytes;
    let turn: StartTurn = request.json(limit).await?;
    if turn.turn_id.as_ref().is_some_and(|id| id.is_empty() || id.len() > MAX_TURN_ID_BYTES || id.chars().any(char::is_control)) {
        let detail = format!("`turnId` has 1 to {MAX_TURN_ID_BYTES} bytes and no control characters");
        return Err(Problem::invalid("turnId", detail));
    }
    if turn.input.text.is_empty() && turn.input.attachments.is_empty() {
        return Err(Problem::invalid("input", "`input` has a text or an attachment"));
    }
    request.app.host.await_agent(&turn.agent).await;
    request.app.host.agent(&turn.agent)?;
    let key = name.conversation();
    let (threads, found) = (request.app.host.threads(), name.clone());
    let cursor = off_thread(move || match found.load(&threads) {
        Ok(thread) => threads.last_sequence(&thread),
        Err(ThreadError::NotFound(_)) => Ok(0),
        Err(error) => Err(error),
    });
    let cursor = cursor.await?;
    let (run, repeated) = begin(&request.app, &request.caller, &name, turn).await?;
    let record = request.app.host.records().run(run)?.ok_or_else(|| Problem::internal("a turn was started without a run"))?;
    let turn_id = turn_id(&record.run);
    if form != StreamForm::Page {
        let after = if repeated { 0 } else { cursor };
        let facts = request.app.host.follow_thread(ThreadKey::Conversation(key), after)?;
        return stream_facts(&request.app, form, shape, of_turn(facts, turn_id));
    }
    let ids = ThreadKey::of(&record.run).ids();
    let location = format!("/api/v1/threads/{}", crate::http::percent::encode(&ids.thread_id));
    let started = StartedTurn {
        session_id: ids.session_id,
        thread_id: ids.thread_id,
        turn_id,
        run_id: run,
        event_cursor: cursor.to_string(),
    };
    Ok(replayed(located(StatusCode::ACCEPTED, location, &started), repeated))
}

/// Begins the turn, or finds the one of an earlier request; the second is true for that.
async fn begin(app: &App, caller: &Caller, name: &ThreadName, turn: StartTurn) -> Result<(RunId, bool), Problem> {
    let host = &app.host;
    let body = agent_host_protocol::hex::encode(&Sha256::digest(serde_json::to_vec(&turn).map_err(Problem::internal)?));
    let conflict = || {
        let detail = "`turnId` was used in this thread for another request: a new turn has a new id";
        Problem::new(ProblemCode::TurnIdConflict, detail).in_field("turnId")
    };
    let entry = turn.turn_id.as_ref().map(|id| {
        let mut digest = Sha256::new();
        for part in [&name.workspace, &name.session, &name.thread, id] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        format!("threads/turn/{}", agent_host_protocol::hex::encode(&digest.finalize()))
    });
    if let Some(key) = &entry
        && let Some(known) = host.records().entry(key)?
    {
        let known: TurnEntry = serde_json::from_str(known.get()).map_err(Problem::internal)?;
        return if known.body == body { Ok((known.run_id, true)) } else { Err(conflict()) };
    }
    let StartTurn { agent, turn_id, input, queue_if_busy, metadata } = turn;
    let mut envelope = Envelope {
        conversation: Some(Conversation {
            conversation_id: Some(name.session.clone()),
            thread_id: Some(name.thread.clone()).filter(|thread| !thread.is_empty()),
            workspace_id: caller.0.workspace.clone(),
            ..Conversation::default()
        }),
        actor: caller.0.end_user.as_deref().map(actor_of),
        ..Envelope::message(input.text, "api")
    };
    envelope.input.text = envelope.input.text.filter(|text| !text.is_empty());
    envelope.input.attachments = input.attachments;
    envelope.check().map_err(|why| Problem::invalid("input", why))?;
    let mut kept = Map::new();
    kept.extend(turn_id.map(|id| (TURN_ID.to_owned(), id.into())));
    if !metadata.is_empty() {
        kept.insert("client".to_owned(), Value::Object(metadata));
    }
    let busy = if queue_if_busy { BusyThread::Queue } else { BusyThread::Reject };
    let charged_key = host.charged_key(&caller.0)?;
    let run = AgentRun { busy, metadata: kept, charged_key, ..AgentRun::new(agent, envelope) };
    let idempotency =
        entry.as_ref().map(|key| Idempotency { key: key.clone(), body_hash: Sha256::digest(body.as_bytes()).into() });
    let entries = |_: EventId, runs: &[RunId]| -> Result<Vec<EntryWrite>, HostError> {
        let (Some(key), Some(run)) = (&entry, runs.first()) else { return Ok(Vec::new()) };
        Ok(vec![EntryWrite::put(key.clone(), &TurnEntry { run_id: *run, body: body.clone() })?])
    };
    let accepted = host.begin_agent_run(run, idempotency, &entries).await;
    match accepted {
        Ok(AcceptedEvent { runs, repeated, .. }) => match runs.first() {
            Some(run) => Ok((*run, repeated)),
            None => Err(Problem::internal("a turn was accepted without a run")),
        },
        Err(HostError::IdempotencyConflict) => Err(conflict()),
        Err(HostError::Busy { run_id }) => {
            let detail = "another turn of this thread is active: wait for its end, cancel it, or send `queueIfBusy`";
            let active = run_id.and_then(|id| host.records().run(id).ok().flatten()).map(|record| self::turn_id(&record.run));
            Err(Problem::new(ProblemCode::TurnAlreadyActive, detail).with_details(json!({ "activeTurnId": active })))
        }
        Err(error) => Err(Problem::of_field(error)),
    }
}

/// The reason of a cancellation.
#[derive(Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CancelTurn)]
struct Cancel {
    /// Kept with the run.
    #[serde(default)]
    #[schema(max_length = 1024)]
    reason: Option<String>,
}

/// The end of a turn that has no number yet.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct UnnumberedEnd {
    turn_id: String,
    /// `turn.canceled`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The reason why it has no number.
    reason: &'static str,
}

impl UnnumberedEnd {
    fn of(run: &Run) -> Self {
        let reason = "turns before this one are under way: its facts are numbered when they have ended";
        Self { turn_id: turn_id(run), kind: FactType::TurnCanceled.as_str(), reason }
    }
}

refusals!(CancelRefusals = [JSON, WRITE] + [NotFound, ThreadForgotten, TurnEnded, Conflict]);

/// Cancels a turn
///
/// Answers with the `turn.canceled` event, when the turn has ended. The number of that event is not known while turns before it
/// are under way: the answer is `202` then, and the event comes in the stream. The body may be left out.
#[utoipa::path(post, path = "/api/v1/threads/{id}/turns/{turn}/cancel", tag = "threads", security(("bearer" = ["runs:control"])),
    params(
        ThreadParams,
        ("turn" = String, Path, description = "The turn."),
    ),
    request_body = Option<Cancel>,
    responses(
        (status = 200, description = "The event that ends the turn.", body = Fact),
        (status = 202, description = "The turn is cancelled, and its end has no number yet.", body = UnnumberedEnd),
        CancelRefusals,
    ))]
pub(crate) async fn cancel(Path((id, turn)): Path<(String, String)>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsControl)?;
    let name = request.thread(&id)?;
    request.query.finish()?;
    let Cancel { reason } = request.optional_json(MAX_CANCEL_BODY_BYTES).await?;
    let reason = body::reason(reason, "cancelled by a client")?;
    let record = turn_of(&request.app, &name, &turn).await?;
    let ended = |run: &Run| {
        let detail = format!("turn {} has ended ({})", turn_id(run), run.status);
        Problem::new(ProblemCode::TurnEnded, detail)
    };
    if record.run.status.is_terminal() {
        return Err(ended(&record.run));
    }
    let run = record.run.run_id;
    match request.app.host.cancel(run, reason).await {
        Ok(_) => {}
        // It ended in this moment.
        Err(HostError::Conflict(_)) => {
            let now = request.app.host.records().run(run)?.map_or(record.run, |record| record.run);
            return Err(ended(&now));
        }
        Err(error) => return Err(error.into()),
    }
    let run = request.app.host.wait(run, END).await?;
    Ok(match event_of(&request.app, name, run.run_id, |fact| fact.kind.is_turn_terminal()).await? {
        Some(fact) => answer_json(StatusCode::OK, &fact),
        None => answer_json(StatusCode::ACCEPTED, &UnnumberedEnd::of(&run)),
    })
}

/// An answer to an action.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RespondAction {
    /// The decision.
    decision: Decision,
    /// Reason, for the runner and the record.
    #[serde(default)]
    reason: Option<String>,
    /// The answer to a question, or to a call of a tool of the client.
    #[serde(default)]
    answer: Option<Value>,
    /// The thread and the turn that the client means.
    action_scope: ActionScope,
}

/// The thread and the turn of an action.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ActionScope {
    session_id: String,
    thread_id: String,
    turn_id: String,
}

refusals!(RespondRefusals = [JSON, WRITE] + [NotFound, ThreadForgotten, ActionScopeMismatch, AlreadyAnswered, Expired, Conflict]);

/// Answers an action of a thread
///
/// Answers with the event that the answer is. The same answer again has the same event.
#[utoipa::path(post, path = "/api/v1/threads/{id}/actions/{action}/respond", tag = "threads", security(("bearer" = ["actions:respond"])),
    params(
        ThreadParams,
        ("action" = String, Path, description = "The action."),
    ),
    request_body = RespondAction,
    responses((status = 200, description = "The event.", body = Fact), RespondRefusals))]
pub(crate) async fn respond(Path((id, action)): Path<(String, String)>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::ActionsRespond)?;
    let by = request.app.host.answers_as(&request.caller.0)?;
    let name = request.thread(&id)?;
    request.query.finish()?;
    let limit = request.app.host.config().limits.answer_bytes * 6 + MORE_BYTES;
    let RespondAction { decision, reason, answer, action_scope } = request.json(limit).await?;
    let missing = || Problem::not_found(format!("this thread has no action `{}`", action.escape_debug()));
    let run = action.split_once('.').and_then(|(run, _)| run.parse::<RunId>().ok()).ok_or_else(missing)?;
    let record = turn_of(&request.app, &name, &run.to_string()).await.map_err(|problem| match problem.code() {
        ProblemCode::NotFound => missing(),
        _ => problem,
    })?;
    let ids = ThreadKey::of(&record.run).ids();
    let is_turn = action_scope.turn_id == turn_id(&record.run) || action_scope.turn_id == run.to_string();
    if action_scope.session_id != ids.session_id || action_scope.thread_id != ids.thread_id || !is_turn {
        let detail = "`actionScope` names another session, thread or turn than the action has: read the thread again";
        let scope = json!({ "sessionId": ids.session_id, "threadId": ids.thread_id, "turnId": turn_id(&record.run) });
        return Err(Problem::new(ProblemCode::ActionScopeMismatch, detail).in_field("actionScope").with_details(scope));
    }
    let answer = Answer { decision, reason, answer };
    match request.app.host.respond(&action, answer.clone(), by).await {
        Ok(_) => {}
        Err(HostError::Answered { action: first, .. }) if is_same(&answer, first.answered.as_ref()) => {}
        Err(error) => return Err(error.into()),
    }
    let wanted = action.clone();
    let is_end = move |fact: &Fact| fact.kind.is_action_terminal() && fact.scope.action_id.as_deref() == Some(wanted.as_str());
    // One turn of a thread is active: those before have ended, so its events have numbers.
    let event = event_of(&request.app, name, run, is_end).await?;
    Ok(answer_json(StatusCode::OK, &event.ok_or_else(|| Problem::internal("an answer is in no fact of its turn"))?))
}

/// True if an answer is the one that was given first.
fn is_same(answer: &Answer, first: Option<&Value>) -> bool {
    let Some(first) = first else { return false };
    let member = |name: &str| first.get(name).cloned().filter(|value| !value.is_null());
    member("decision") == Some(answer.decision.as_str().into())
        && member("answer") == answer.answer.clone().filter(|value| !value.is_null())
        && member("reason") == answer.reason.clone().map(Value::String)
}

/// A turn of a thread.
async fn turn_of(app: &App, name: &ThreadName, turn: &str) -> Result<RunRecord, Problem> {
    let missing = Problem::not_found(format!("this thread has no turn `{}`", turn.escape_debug()));
    let turn = turn.to_owned();
    let found = super::read(app, name.clone(), move |_, thread| Ok(thread.turn(&turn).cloned())).await?;
    found.ok_or(missing)
}

/// The event of a turn that was just committed; `None` where it has no number yet.
async fn event_of(
    app: &App,
    name: ThreadName,
    run: RunId,
    wanted: impl Fn(&Fact) -> bool + Send + 'static,
) -> Result<Option<Fact>, Problem> {
    super::read(app, name, move |threads, thread: &Thread| threads.fact_of(thread, run, wanted)).await
}
