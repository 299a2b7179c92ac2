//! Signed requests of other systems, and what is configured of them.

use agent_host_protocol::{Page, Scope};
use agent_host_runs::{HookError, HookOutcome, HookRequest, WebhookSourceReport};
use axum::{
    extract::{Path, Request, State, rejection::PathRejection},
    http::StatusCode,
    response::Response,
};
use serde::Serialize;

use super::accepted::Accepted;
use crate::{
    access::ApiRequest,
    app::App,
    http::{Problem, ProblemCode, Query, body, json, replayed, whole_page},
    openapi::refusals,
};

/// A request without effect.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct HookIgnored {
    ignored: bool,
}

refusals!(
    HookRefusals = [WRITE]
        + [
            WorkspaceFull,
            InvalidJson,
            NotFound,
            RunnerCompiling,
            RequestTimeout,
            PayloadTooLarge,
            IdempotencyConflict,
            QueueFull
        ]
);
refusals!(WebhookSourcesRefusals = []);

/// Takes a signed request of another system
///
/// The route needs no API key: the signature of the request, over the body as it is sent, replaces the key. The
/// `[[webhook_sources]]` entry of this name defines the signature and the event. The event is durable when this request
/// returns, and a repeated request gets the same answer.
#[utoipa::path(post, path = "/api/v1/hooks/{name}", tag = "events", security(()),
    params(("name" = String, Path, description = "The webhook source.")),
    request_body(content = serde_json::Value, description = "Whatever the other system sends."),
    responses(
        (status = 200, description = "No `when` of the source matches it: no event was made.", body = HookIgnored),
        (status = 202, description = "It is an event.", body = Accepted),
        HookRefusals,
    ))]
pub(crate) async fn hook(
    State(app): State<App>,
    name: Result<Path<String>, PathRejection>,
    query: Query,
    request: Request,
) -> Result<Response, Problem> {
    let name = name.ok().map(|Path(name)| name).filter(|name| app.host.has_hook(name));
    let Some(name) = name else { return Err(HookError::Unknown.into()) };
    let (parts, body) = request.into_parts();
    let limit = app.host.config().limits.http_body_bytes;
    let body = body::read(body, limit).await?;
    let query = query.all();
    let request = HookRequest { headers: &parts.headers, query: &query, body: &body };
    let accepted = match app.host.accept_hook(&name, &request).await? {
        HookOutcome::Ignored => return Ok(json(StatusCode::OK, &HookIgnored { ignored: true })),
        HookOutcome::Accepted(accepted) => accepted,
    };
    let repeated = accepted.repeated;
    Ok(replayed(json(StatusCode::ACCEPTED, &Accepted::ids(accepted)), repeated))
}

impl From<HookError> for Problem {
    fn from(error: HookError) -> Self {
        let message = error.to_string();
        match error {
            HookError::Unknown => Self::not_found(message),
            HookError::Unsigned => Self::new(ProblemCode::Unauthenticated, message),
            HookError::NoSecret => Self::new(ProblemCode::Unavailable, message),
            HookError::NoJson(_) => Self::new(ProblemCode::InvalidJson, message),
            HookError::Unmapped { field, message } => Self::invalid(field, message),
            HookError::NotAccepted(error) => error.into(),
            other => Self::internal(other),
        }
    }
}

/// Lists the webhook sources
#[utoipa::path(get, path = "/api/v1/webhook-sources", tag = "host", security(("bearer" = ["admin"])),
    responses((status = 200, description = "The sources, all of them.", body = Page<WebhookSourceReport>), WebhookSourcesRefusals))]
pub(crate) async fn webhook_sources(request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::Admin)?;
    let mut items = request.app.host.webhook_sources();
    items.retain(|source| request.caller.0.sees(source.workspace_id.as_deref()));
    Ok(whole_page(items))
}
