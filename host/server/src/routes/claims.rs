//! Claims: an executor takes a run from the queue, and does what it does for it under the token of its claim.

use std::{sync::Arc, time::Duration};

use agent_host_protocol::{
    PrincipalKind, Run, RunId, RunnerId, SentResult, Timestamp,
    message::TokenUsage,
    run::{RunCompletion, RunFailure, Terminal},
    sent,
};
use agent_host_runs::{AppendOutcome, ClaimRequest, ClaimStart, Claimed, facts::import::Form};
use axum::{
    Extension,
    body::Bytes,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::imports::{self, NativeLines};
use crate::{
    access::{ApiRequest, caller::bearer},
    control_audit::EndedRun,
    http::{Id, Problem, ProblemCode, body, forwarded::RequestPart, json},
    langbot,
    openapi::refusals,
};

/// Requests about a claim itself are small.
const MAX_BODY_BYTES: usize = 16 * 1024;
/// Beside the results of a batch: names of members, spaces, escapes.
const MORE_BYTES: usize = 64 * 1024;

refusals!(ClaimRefusals = [JSON, WRITE] + [Conflict]);
refusals!(HeldRefusals = [JSON, WRITE] + [NotFound, ClaimLost, Conflict]);
refusals!(
    AppendRefusals = [JSON, WRITE]
        + [NotFound, ClaimLost, Conflict, SequenceGap, IdempotencyConflict, Cancelled, RateLimited, DeadlineExceeded]
);

/// The request of a claim.
#[derive(Deserialize, Default, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Claim {
    /// Of these queues. None: all that the executor has registered for.
    queues: Vec<String>,
    /// Of these runners. None: all that the executor has registered for.
    runner_ids: Vec<RunnerId>,
    /// Duration of the lease, in ms. The policy of the run has the maximum.
    lease_ms: Option<u64>,
    /// Longest wait for a run if none is there, in ms: at most `limits.claim_wait_ms`.
    wait_ms: u64,
    /// If true, the run starts with the claim, and `start` is not needed.
    start: bool,
}

/// Claims a run
///
/// Returns the first run that matches, by priority, then by age. Without a run, the request waits up to `wait_ms`. A claim
/// is lost unless it is renewed in time, and a claimed run must be started in time. Send the credential of the executor.
#[utoipa::path(post, path = "/api/v1/claims", tag = "queue", security(("bearer" = ["runs:execute"])),
    request_body = Claim,
    responses(
        (status = 200, description = "The run, and the token of the claim.", body = Claimed),
        (status = 204, description = "There was none."),
        ClaimRefusals,
    ))]
pub(crate) async fn claim(part: Option<Extension<RequestPart>>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.query.finish()?;
    let PrincipalKind::Executor(executor_id) = request.caller.0.kind.clone() else {
        return Err(Problem::new(
            ProblemCode::Forbidden,
            "runs are claimed by executors: register one (POST /api/v1/executors), and send its credential",
        ));
    };
    let Claim { queues, runner_ids, lease_ms, wait_ms, start } = request.optional_json(MAX_BODY_BYTES).await?;
    let host = request.app.host.clone();
    let wait = Duration::from_millis(wait_ms.min(host.config().limits.claim_wait_ms));
    let claim = ClaimRequest { queues, runner_ids, lease_ms, start };
    if let Some(Extension(RequestPart::Peek)) = part {
        let closing = request.app.closing.clone();
        let Some(peeked) = closing.run_until_cancelled(host.peek(&executor_id, claim, wait)).await else {
            return Err(Problem::new(ProblemCode::PartitionMoving, "the partition goes to another host"));
        };
        return Ok(json(StatusCode::OK, &peeked?));
    }
    let claimed = host.claim(&executor_id, claim, wait).await?;
    Ok(match claimed {
        Some(claimed) => json(StatusCode::OK, &claimed),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// The token and the body of a request that writes to a run. Without a token, nothing of the body is read.
async fn written(request: &mut ApiRequest, limit: usize) -> Result<(String, Bytes), Problem> {
    body::require_json(&request.headers)?;
    let token = token(&request.headers)?.to_owned();
    Ok((token, body::read(std::mem::take(&mut request.body), limit + MORE_BYTES).await?))
}

/// The token of the claim.
fn token(headers: &HeaderMap) -> Result<&str, Problem> {
    bearer(headers).ok_or_else(|| {
        Problem::new(ProblemCode::Unauthenticated, "send `Authorization: Bearer TOKEN` with the lease token of the claim")
    })
}

/// A run that has begun.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RunStart {
    run: Run,
    #[serde(flatten)]
    start: ClaimStart,
}

/// Starts a run that was claimed
///
/// The deadline of the run counts from now. A repeated request returns the same context.
#[utoipa::path(post, path = "/api/v1/runs/{id}/start", tag = "queue", security(("bearer" = [])),
    params(Id<RunId>), request_body = Option<EmptyObject>,
    responses((status = 200, description = "The context of the run.", body = RunStart), HeldRefusals))]
pub(crate) async fn start(Id(id): Id<RunId>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.query.finish()?;
    let EmptyObject {} = request.optional_json(MAX_BODY_BYTES).await?;
    let (run, start) = request.app.host.start_claimed(id, token(&request.headers)?).await?;
    Ok(json(StatusCode::OK, &RunStart { run: Arc::unwrap_or_clone(run), start }))
}

/// An empty object.
#[derive(Deserialize, Default, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmptyObject {}

/// The duration of a lease.
#[derive(Deserialize, Default, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Renew {
    /// Duration from now, in ms. The policy of the run has the maximum.
    lease_ms: Option<u64>,
}

/// A claim that was renewed.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RenewedClaim {
    /// Time at which the claim is lost unless the lease is renewed again.
    lease_expires_at: Option<Timestamp>,
    /// Time of a cancel request. Stop working on the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel_requested_at: Option<Timestamp>,
    /// Deadline of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_at: Option<Timestamp>,
}

/// Renews a claim
#[utoipa::path(post, path = "/api/v1/runs/{id}/renew", tag = "queue", security(("bearer" = [])),
    params(Id<RunId>), request_body = Option<Renew>,
    responses((status = 200, description = "The claim.", body = RenewedClaim), HeldRefusals))]
pub(crate) async fn renew(Id(id): Id<RunId>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.query.finish()?;
    let Renew { lease_ms } = request.optional_json(MAX_BODY_BYTES).await?;
    let run = request.app.host.renew(id, token(&request.headers)?, lease_ms).await?;
    let lease_expires_at = run.queue.as_ref().and_then(|queue| queue.lease_expires_at);
    let renewed = RenewedClaim { lease_expires_at, cancel_requested_at: run.cancel_requested_at, deadline_at: run.deadline_at };
    Ok(json(StatusCode::OK, &renewed))
}

/// The reason for releasing a claim.
#[derive(Deserialize, Default, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Release {
    /// Kept with the run.
    reason: Option<String>,
}

/// Gives a claim back
///
/// The run waits for another executor. If the run had started, that counts as an attempt.
#[utoipa::path(post, path = "/api/v1/runs/{id}/release", tag = "queue", security(("bearer" = [])),
    params(Id<RunId>), request_body = Option<Release>,
    responses((status = 200, description = "The run.", body = Run), HeldRefusals))]
pub(crate) async fn release(Id(id): Id<RunId>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.query.finish()?;
    let Release { reason } = request.optional_json(MAX_BODY_BYTES).await?;
    let reason = body::reason(reason, "released")?;
    Ok(json(StatusCode::OK, &request.app.host.release(id, token(&request.headers)?, reason).await?))
}

/// Results to append.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Append {
    /// The number of the first result, as the executor counts them: from 1 in each claim, without a gap. Default: `sequence`
    /// of the first result, else the next number; only a request with a number can be repeated without harm.
    #[serde(default, alias = "sequence")]
    #[schema(minimum = 1)]
    first: Option<u64>,
    /// Judged together: all are appended, or none. A last result `run.completed` or `run.failed` ends the run.
    #[serde(default)]
    #[schema(max_items = 64)]
    results: Vec<SentResult>,
    /// In place of `results`: one result.
    #[serde(default)]
    result: Option<SentResult>,
}

/// The parts of an append.
struct AppendParts {
    first: Option<u64>,
    results: Vec<SentResult>,
    /// The end of the run, where the last result was one.
    terminal: Option<Terminal>,
}

impl Append {
    /// The results, and the end of the run where the last result is one.
    fn parts(self, run_id: RunId) -> Result<AppendParts, Problem> {
        let Self { first, mut results, result } = self;
        match (results.is_empty(), result) {
            (true, Some(result)) => results.push(result),
            (false, None) => {}
            _ => return Err(Problem::invalid("results", "an append has either `results` with at least one, or one `result`")),
        }
        let first = first.or_else(|| results.first().and_then(|result| result.sequence));
        let terminal = results.pop_if(|last| matches!(last.kind.as_str(), "run.completed" | "run.failed"));
        Ok(AppendParts { first, results, terminal: terminal.map(|last| ended(run_id, &last)).transpose()? })
    }
}

/// The end of a run that was sent as a result.
fn ended(run_id: RunId, result: &SentResult) -> Result<Terminal, Problem> {
    if let Some(sent) = result.run_id.filter(|sent| *sent != run_id) {
        return Err(Problem::invalid("results", format!("`{}` is of run {sent}, and this is run {run_id}", result.kind)));
    }
    let malformed = |error: serde_json::Error| Problem::invalid("results", format!("the data of `{}`: {error}", result.kind));
    let mut data: Map<String, Value> = serde_json::from_str(result.data.get()).map_err(malformed)?;
    let status = if result.kind == "run.completed" { "completed" } else { "failed" };
    data.insert("status".to_owned(), status.into());
    terminal(serde_json::from_value(Value::Object(data)).map_err(malformed)?)
}

/// Appends results to a run that was claimed
///
/// Results have the same effects as those of a guest (transcript, state, artifacts, actions), and are checked against the
/// grant of the run. Sending the same numbers again is harmless. With `form`, the body has native events of another framework,
/// one JSON value a line or one array, which become results; `finalize` ends the run.
#[utoipa::path(post, path = "/api/v1/runs/{id}/append", tag = "queue", security(("bearer" = [])),
    params(
        Id<RunId>,
        ("form" = inline(Option<Form>), Query, description = "The body has native events of this form."),
        ("first" = Option<u64>, Query, description = "With `form`: the number of the first event, counted from 1 in each claim. Default: the next.", minimum = 1),
    ),
    request_body(content((Append = "application/json"), (NativeLines = "application/x-ndjson")),
        description = "Results, or with `form` native events."),
    responses((status = 200, description = "The present state of the host.", body = AppendOutcome), AppendRefusals))]
pub(crate) async fn append(Id(id): Id<RunId>, mut request: ApiRequest) -> Result<Response, Problem> {
    if let Some(form) = imports::form(&mut request.query, "form")? {
        return append_native(id, request, form).await;
    }
    request.query.finish()?;
    let limit = request.app.host.config().limits.emit_bytes * 2;
    let (token, sent) = written(&mut request, limit).await?;
    let append: Append = match request.dialect {
        Some(dialect) => body::parse(&dialect.append(&sent, id)?)?,
        None => body::parse(&sent)?,
    };
    let AppendParts { first, results, terminal } = append.parts(id)?;
    let ends = terminal.is_some();
    let appended = request.app.host.append(id, &token, first, results, terminal).await?;
    let mut response = match request.dialect {
        Some(_) => json(StatusCode::OK, &langbot::appended(&appended, &sent, id)?),
        None => json(StatusCode::OK, &appended),
    };
    if ends {
        response.extensions_mut().insert(EndedRun);
    }
    Ok(response)
}

/// Appends native events.
async fn append_native(id: RunId, mut request: ApiRequest, form: Form) -> Result<Response, Problem> {
    let first: Option<u64> = request.query.parsed("first")?;
    request.query.finish()?;
    imports::require_native(&request.headers)?;
    let limit = request.app.host.config().limits.emit_bytes * 2;
    let token = token(&request.headers)?.to_owned();
    let sent = body::read(std::mem::take(&mut request.body), limit + MORE_BYTES).await?;
    let text = std::str::from_utf8(&sent).map_err(|_| Problem::invalid("body", "the body is not UTF-8 text"))?;
    Ok(json(StatusCode::OK, &request.app.host.append_native(id, &token, form, first, text).await?))
}

/// The end of a run.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, tag = "status", rename_all = "snake_case")]
pub(crate) enum Finalize {
    /// Well.
    Completed {
        /// `stop`, `length`, `tool-calls`, `handoff`, ...
        #[serde(default)]
        finish_reason: Option<String>,
        /// The final message, where no `message.completed` carried it.
        #[serde(default)]
        #[schema(value_type = Option<agent_host_protocol::message::Message>)]
        message: Option<Value>,
        /// Usage of the run.
        #[serde(default)]
        usage: Option<TokenUsage>,
        /// More of it.
        #[serde(default)]
        metadata: Option<Value>,
    },
    /// The run failed. If `retryable` is true and the run has attempts left, it goes back to the queue.
    Failed {
        /// Failure code, for programs.
        #[serde(default)]
        code: Option<String>,
        /// Description, for people.
        message: String,
        /// True if another attempt may succeed.
        #[serde(default)]
        retryable: bool,
        /// More of it.
        #[serde(default)]
        details: Option<Value>,
    },
    /// Because its end was asked for.
    Cancelled {
        /// Reason of the request.
        #[serde(default)]
        reason: Option<String>,
    },
}

/// Brings a run that was claimed to its end
///
/// Repeating it is harmless.
#[utoipa::path(post, path = "/api/v1/runs/{id}/finalize", tag = "queue", security(("bearer" = [])),
    params(Id<RunId>), request_body = Finalize,
    responses((status = 200, description = "The run.", body = Run), HeldRefusals))]
pub(crate) async fn finalize(Id(id): Id<RunId>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.query.finish()?;
    let limit = request.app.host.config().limits.result_bytes * 2;
    let (token, sent) = written(&mut request, limit).await?;
    let wanted = match request.dialect {
        Some(dialect) => body::parse(&dialect.finalize(&sent, id)?)?,
        None => body::parse(&sent)?,
    };
    Ok(json(StatusCode::OK, &request.app.host.finalize(id, &token, terminal(wanted)?).await?))
}

fn terminal(finalize: Finalize) -> Result<Terminal, Problem> {
    let shallow = |what: &str, value: &Option<Value>| match value {
        Some(value) if !agent_host_protocol::limits::is_shallow(value) => {
            Err(Problem::invalid(what, format!("`{what}` nests deeper than 64 levels: flatten it")))
        }
        _ => Ok(()),
    };
    Ok(match finalize {
        Finalize::Completed { finish_reason, message, usage, metadata } => {
            shallow("metadata", &metadata)?;
            let message = message.map(|message| {
                let raw = serde_json::value::to_raw_value(&message).map_err(Problem::internal)?;
                sent::message(&raw).map_err(|error| Problem::invalid("message", error.message))
            });
            Terminal::Completed(RunCompletion {
                finish_reason: finish_reason.unwrap_or_else(|| "stop".to_owned()),
                message: message.transpose()?,
                usage,
                metadata,
            })
        }
        Finalize::Failed { code, message, retryable, details } => {
            shallow("details", &details)?;
            let code = code.filter(|code| !code.is_empty()).unwrap_or_else(|| "runner.error".to_owned());
            Terminal::Failed(RunFailure { code, message, retryable, details })
        }
        Finalize::Cancelled { reason } => {
            Terminal::Cancelled { reason: reason.filter(|reason| !reason.is_empty()).unwrap_or_else(|| "cancelled".to_owned()) }
        }
    })
}
