//! The data for executing a run again: its calls, a recording, and forks.

use agent_host_protocol::{Page, Run, RunId, Scope};
use agent_host_runs::{CallOutcome, Fork, JournaledCall, Recording, RecordingError};
use axum::{http::StatusCode, response::Response};
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::download::download;
use crate::{
    access::{ApiRequest, caller::Caller},
    app::{App, off_thread},
    http::{Id, Problem, ProblemCode, json, located},
    openapi::{PageParams, refusals},
};

refusals!(JournalRefusals = [NotFound, NoJournal, InvalidCursor]);

/// The host calls of a run in order, each with its answer
///
/// `next_cursor` is always present: an active run may make more calls.
#[utoipa::path(get, path = "/api/v1/runs/{id}/journal", tag = "runs", security(("bearer" = ["runs:read"])), params(Id<RunId>, PageParams),
    responses((status = 200, description = "A page of calls.", body = Page<JournaledCall>), JournalRefusals))]
pub(crate) async fn journal(Id(id): Id<RunId>, mut request: ApiRequest) -> Result<Response, Problem> {
    let (cursor, limit) = request.page(Scope::RunsRead)?;
    let from = cursor.map(|cursor| position(id, &cursor)).transpose()?.unwrap_or(0);
    require_journal(&request.app, &request.caller, id).await?;
    // One additional item shows that there are more.
    let calls = off_thread(move || request.app.host.calls(id, from, u64::from(limit) + 1)).await?;
    Ok(json(StatusCode::OK, &page(id, calls, from, limit)))
}

/// A page of so many calls, each with its parts. A call that has no answer yet comes again, with it.
fn page(id: RunId, mut calls: Vec<JournaledCall>, from: u64, limit: u32) -> Page<JournaledCall> {
    let last = from.saturating_add(u64::from(limit));
    let has_more = calls.iter().any(|call| call.call > last);
    calls.retain(|call| call.call <= last);
    let unanswered = calls.iter().find(|call| call.outcome == CallOutcome::Unknown).map(|call| call.call - 1);
    let next = unanswered.filter(|_| !has_more).or(calls.last().map(|call| call.call)).unwrap_or(from);
    Page { items: calls, next_cursor: Some(cursor(id, next)), prev_cursor: None, has_more }
}

/// A cursor says how many calls were read, and of which run: used on another it is refused.
fn cursor(id: RunId, position: u64) -> String {
    let mut hash = Sha256::new();
    hash.update(id.to_bytes());
    hash.update(position.to_be_bytes());
    let seal: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("j{position:016x}{seal}")
}

fn position(id: RunId, text: &str) -> Result<u64, Problem> {
    let digits = text.strip_prefix('j').and_then(|rest| rest.get(..16));
    let position = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    position.filter(|position| cursor(id, *position) == text).ok_or_else(|| {
        Problem::new(
            ProblemCode::InvalidCursor,
            format!("this is no cursor of the journal of run {id}: give one back as the host gave it"),
        )
    })
}

refusals!(RecordingRefusals = [NotFound, NoJournal, TooManyStreams]);

/// All that is needed to execute the run again, as a file
///
/// For `agent-host replay`. The recording contains the input of the runner and the answers of its calls: treat it like the
/// conversation.
#[utoipa::path(get, path = "/api/v1/runs/{id}/recording", tag = "runs", security(("bearer" = ["runs:read"])), params(Id<RunId>),
    responses((status = 200, description = "The recording.", body = Recording,
        headers(("Content-Disposition" = String, description = "A download, with a name."))), RecordingRefusals))]
pub(crate) async fn recording(Id(id): Id<RunId>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    require_journal(&request.app, &request.caller, id).await?;
    let host = request.app.host.clone();
    let recording = off_thread(move || host.recording(id)).await?;
    download(&request.app, recording, "application/json", &format!("run-{id}.recording.json"))
}

/// The parameters of a fork.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Fork)]
struct ForkRequest {
    /// Number of first calls that are shared with their answers, and not executed again.
    at: u64,
    /// Keys of the configuration that are replaced.
    #[serde(default)]
    config: Option<Map<String, Value>>,
    /// The text of the event, replaced.
    #[serde(default)]
    input: Option<String>,
}

refusals!(
    ForkRefusals = [JSON, WRITE]
        + [WorkspaceFull, NotFound, NoJournal, InvalidConfig, RunnerNotFound, TokenBudgetExhausted, Conflict, QueueFull]
);

/// Makes a run that shares the first calls of another
///
/// The new run is durable when this answers, and begins a moment later.
#[utoipa::path(post, path = "/api/v1/runs/{id}/fork", tag = "runs", security(("bearer" = ["runs:control"])), params(Id<RunId>),
    request_body = ForkRequest,
    responses((status = 202, description = "The new run.", body = Run, headers(("Location" = String, description = "The new run."))), ForkRefusals))]
pub(crate) async fn fork(Id(id): Id<RunId>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsControl)?;
    let limit = request.app.host.config().limits.http_body_bytes;
    let ForkRequest { at, config, input } = request.json(limit).await?;
    require_journal(&request.app, &request.caller, id).await?;
    let charged_key = request.app.host.charged_key(&request.caller.0)?;
    let run = request.app.host.fork(id, Fork { at, config, input, charged_key }).await.map_err(Problem::of_field)?;
    Ok(located(StatusCode::ACCEPTED, format!("/api/v1/runs/{}", run.run_id), &run))
}

/// Says apart a run that the caller does not see, and one that has no journal.
async fn require_journal(app: &App, caller: &Caller, id: RunId) -> Result<(), Problem> {
    caller.run(app, id)?;
    match app.read(move |records| records.has_journal(id)).await? {
        Some(true) => Ok(()),
        Some(false) => Err(Problem::new(ProblemCode::NoJournal, RecordingError::NoJournal(id).to_string())),
        None => Err(Problem::not_found(RecordingError::NotFound(id).to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(count: u64) -> Vec<JournaledCall> {
        let call = |call| JournaledCall {
            call,
            part: 0,
            function: "state.get".to_owned(),
            at_us: call,
            request: None,
            outcome: CallOutcome::Answer(Value::Null),
        };
        (1..=count).map(call).collect()
    }

    fn after(from: u64, count: u64) -> Vec<JournaledCall> {
        calls(count).into_iter().filter(|call| call.call > from).collect()
    }

    #[test]
    fn pages_follow_each_other_and_the_last_one_has_a_cursor_too() {
        let id = RunId::new();
        let (mut seen, mut from) = (Vec::new(), 0);
        loop {
            let page = page(id, after(from, 5), from, 2);
            seen.extend(page.items.iter().map(|call| call.call));
            from = position(id, page.next_cursor.as_deref().unwrap()).unwrap();
            if !page.has_more {
                break;
            }
        }
        assert_eq!(seen, [1, 2, 3, 4, 5]);
        // Of a run that went on.
        assert_eq!(page(id, after(from, 6), from, 2).items.first().map(|call| call.call), Some(6));
        let beyond = page(id, Vec::new(), u64::MAX, 100);
        assert!(beyond.items.is_empty() && !beyond.has_more);
        // An open call is listed again when it has its answer.
        let mut open = calls(2);
        open.last_mut().unwrap().outcome = CallOutcome::Unknown;
        assert_eq!(position(id, page(id, open, 0, 5).next_cursor.as_deref().unwrap()).unwrap(), 1);
    }

    #[test]
    fn a_cursor_is_good_for_its_own_journal_only() {
        let id = RunId::new();
        let text = cursor(id, 7);
        assert_eq!(position(id, &text).unwrap(), 7);
        let changed = text.replace("07", "08");
        for bad in
            ["", "j", "jj", "nonsense", "j0000000000000007", &changed, &text.to_uppercase(), &format!("{text}0"), "jäääääääää"]
        {
            assert_eq!(position(id, bad).unwrap_err().code(), ProblemCode::InvalidCursor, "{bad}");
        }
        assert!(position(RunId::new(), &text).is_err());
    }
}
