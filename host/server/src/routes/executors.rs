//! Executors: they register, say that they live, and hear what is new.

use agent_host_protocol::{Page, PrincipalKind, Scope, Timestamp, time};
use agent_host_runs::{Executor, ExecutorChange, ExecutorState, Percentiles, Registration};
use axum::{
    Extension,
    http::StatusCode,
    response::{IntoResponse, Response, sse::Event},
};
use futures_util::StreamExt;
use serde::Serialize;

use crate::{
    access::ApiRequest,
    control_audit::AuditedChange,
    http::{Path, Problem, ProblemCode, forwarded::RequestPart, json, located, sse, whole_page},
    openapi::refusals,
};

/// Largest registration of an executor, in bytes.
const MAX_BODY_BYTES: usize = 64 * 1024;

refusals!(RegisterRefusals = [JSON, WRITE] + [Conflict]);
refusals!(ExecutorRefusals = [NotFound]);
refusals!(HeartbeatRefusals = [JSON, WRITE] + [NotFound]);
refusals!(DeregisterRefusals = [WRITE] + [NotFound]);

/// An executor that has registered.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RegisteredExecutor {
    #[serde(flatten)]
    executor: Executor,
    /// Credential, sent as `Authorization: Bearer`. Shown once.
    credential: String,
}

/// Registers an executor
///
/// The credential allows claiming runs and nothing else. The executor sees the workspace of the key that registers it.
#[utoipa::path(post, path = "/api/v1/executors", tag = "queue", security(("bearer" = ["runs:execute"])),
    request_body = Registration,
    responses(
        (status = 201, description = "The executor, with its credential.", body = RegisteredExecutor,
            headers(("Location" = String, description = "The executor."))),
        RegisterRefusals,
    ))]
pub(crate) async fn register(part: Option<Extension<RequestPart>>, mut request: ApiRequest) -> Result<Response, Problem> {
    if let Some(Extension(RequestPart::Registration { credential })) = part {
        let registration: Registration = request.json(MAX_BODY_BYTES).await?;
        let executor = request.app.host.register_executor_as(registration, &credential).await?;
        return Ok(json(StatusCode::OK, &executor));
    }
    request.allow(Scope::RunsExecute)?;
    if matches!(request.caller.0.kind, PrincipalKind::Executor(_)) {
        return Err(Problem::new(
            ProblemCode::Forbidden,
            "an executor does not register others: use an API key with the scope `runs:execute`",
        ));
    }
    let registration: Registration = request.json(MAX_BODY_BYTES).await?;
    let (executor, credential) = request.app.host.register_executor(registration, request.caller.0.workspace).await?;
    let location = format!("/api/v1/executors/{}", executor.executor_id);
    Ok(located(StatusCode::CREATED, location, &RegisteredExecutor { executor, credential }))
}

refusals!(ListRefusals = []);

/// Lists executors
///
/// The host determines the state of each executor.
#[utoipa::path(get, path = "/api/v1/executors", tag = "queue", security(("bearer" = ["runs:read"])),
    responses((status = 200, description = "All in one page, in the order in which they came.", body = Page<Executor>), ListRefusals))]
pub(crate) async fn list(request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    let mut items = request.app.host.executors();
    items.retain(|executor| request.caller.0.sees(executor.workspace.as_deref()));
    Ok(whole_page(items))
}

/// An executor that the caller sees: itself, or one of its workspace.
fn visible_executor(request: &ApiRequest, id: &str, scope: Scope) -> Result<Executor, Problem> {
    let ApiRequest { app, caller, query, .. } = request;
    query.finish()?;
    let is_another = !matches!(&caller.0.kind, PrincipalKind::Executor(own) if own == id);
    if is_another {
        // Before it is looked for: what there is, is not for those who may not ask.
        caller.may(scope)?;
    }
    let executor = app.host.executor(id)?;
    let sees = match &caller.0.kind {
        PrincipalKind::Executor(_) => !is_another,
        _ => caller.0.sees(executor.workspace.as_deref()),
    };
    if sees { Ok(executor) } else { Err(Problem::not_found(format!("there is no executor `{}`", executor.executor_id))) }
}

/// Shows an executor
#[utoipa::path(get, path = "/api/v1/executors/{id}", tag = "queue", security(("bearer" = ["runs:read"])),
    params(("id" = String, Path, description = "The executor.")),
    responses((status = 200, description = "The executor.", body = Executor), ExecutorRefusals))]
pub(crate) async fn show(Path(id): Path<String>, request: ApiRequest) -> Result<Response, Problem> {
    Ok(json(StatusCode::OK, &visible_executor(&request, &id, Scope::RunsRead)?))
}

/// The executors of a workspace, or of all, counted.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct ExecutorStatistics {
    /// Number of registered executors.
    executors: u64,
    /// Executors that made a request lately.
    online: u64,
    /// Executors that have been silent for `limits.executor_stale_ms`.
    stale: u64,
    /// Executors that have been silent for `limits.executor_gone_ms`.
    gone: u64,
    /// Runs that they hold.
    held: u64,
    /// Runs that the online executors can hold at one time.
    slots: u64,
    /// Time since the last request of each executor, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat_age_ms: Option<Percentiles>,
}

impl ExecutorStatistics {
    /// Of these executors, at this time.
    pub(crate) fn of(executors: &[Executor], now: Timestamp) -> Self {
        let of = |state: ExecutorState| executors.iter().filter(move |executor| executor.state == state);
        Self {
            executors: executors.len() as u64,
            online: of(ExecutorState::Online).count() as u64,
            stale: of(ExecutorState::Stale).count() as u64,
            gone: of(ExecutorState::Gone).count() as u64,
            held: executors.iter().map(|executor| executor.held.len() as u64).sum(),
            slots: of(ExecutorState::Online).map(|executor| u64::from(executor.slots)).sum(),
            heartbeat_age_ms: Percentiles::of(executors.iter().map(|executor| now.saturating_sub(executor.last_seen_at))),
        }
    }
}

/// Counts executors
///
/// By state, with their runs and the age of their last requests. A key of a workspace sees the executors of that workspace.
#[utoipa::path(get, path = "/api/v1/executors/statistics", tag = "queue", security(("bearer" = ["runs:read"])),
    responses((status = 200, description = "The counts.", body = ExecutorStatistics), ListRefusals))]
pub(crate) async fn statistics(request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    let mut items = request.app.host.executors();
    items.retain(|executor| request.caller.0.sees(executor.workspace.as_deref()));
    Ok(json(StatusCode::OK, &ExecutorStatistics::of(&items, time::now())))
}

/// Renews the presence of an executor
///
/// Every request with its credential or with the token of one of its claims does the same. A body changes labels, slots or
/// capabilities, durably.
#[utoipa::path(post, path = "/api/v1/executors/{id}/heartbeat", tag = "queue", security(("bearer" = ["runs:execute"])),
    params(("id" = String, Path, description = "The executor.")),
    request_body = Option<ExecutorChange>,
    responses((status = 200, description = "The executor, with its runs.", body = Executor), HeartbeatRefusals))]
pub(crate) async fn heartbeat(Path(id): Path<String>, mut request: ApiRequest) -> Result<Response, Problem> {
    visible_executor(&request, &id, Scope::RunsExecute)?;
    let change: ExecutorChange = request.optional_json(MAX_BODY_BYTES).await?;
    let (executor, changed) = request.app.host.heartbeat(&id, change).await?;
    let mut response = json(StatusCode::OK, &executor);
    if changed {
        response.extensions_mut().insert(AuditedChange);
    }
    Ok(response)
}

/// Deregisters an executor
///
/// The runs of the executor go back to the queue or fail, as the policy of each run says; its credential becomes invalid.
#[utoipa::path(delete, path = "/api/v1/executors/{id}", tag = "queue", security(("bearer" = ["runs:execute"])),
    params(("id" = String, Path, description = "The executor.")),
    responses((status = 204, description = "It is gone."), DeregisterRefusals))]
pub(crate) async fn deregister(Path(id): Path<String>, request: ApiRequest) -> Result<Response, Problem> {
    visible_executor(&request, &id, Scope::RunsExecute)?;
    request.app.host.deregister_executor(&id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Follows what is new for an executor
///
/// `run.cancel_requested` and `run.claim_lost`, as they happen. An executor learns missed news from its next request for
/// that run.
#[utoipa::path(get, path = "/api/v1/executors/{id}/events", tag = "queue", security(("bearer" = ["runs:execute"])),
    params(("id" = String, Path, description = "The executor.")),
    responses((status = 200, description = "News, without end.", body = String, content_type = "text/event-stream"), ExecutorRefusals))]
pub(crate) async fn news(Path(id): Path<String>, request: ApiRequest) -> Result<Response, Problem> {
    visible_executor(&request, &id, Scope::RunsExecute)?;
    let place = request.app.subscribe()?;
    let news = request.app.host.executor_news(&id)?;
    let events = news
        .map(|news| Event::default().event("news").json_data(&news).unwrap_or_default())
        .take_until(request.app.closing.clone().cancelled_owned());
    Ok(sse::respond(events, place))
}
