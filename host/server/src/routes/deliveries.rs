//! The unfinished deliveries to webhooks.

use agent_host_protocol::{Page, RunId, Scope};
use agent_host_runs::{Delivery, DeliveryFilter, DeliveryState};
use axum::{
    extract::{Path, rejection::PathRejection},
    http::StatusCode,
    response::Response,
};

use crate::{
    access::ApiRequest,
    http::{Problem, Query, json},
    openapi::{PageParams, refusals},
};

refusals!(ListRefusals = [InvalidCursor]);
refusals!(RetryRefusals = [WRITE] + [NotFound]);

/// Lists unfinished deliveries
///
/// Oldest run first. Finished deliveries are not listed.
#[utoipa::path(get, path = "/api/v1/deliveries", tag = "deliveries", security(("bearer" = ["runs:read"])),
    params(
        ("state" = Option<DeliveryState>, Query, description = "Only those in this state."),
        ("webhook" = Option<String>, Query, description = "Only those to this webhook."),
        ("run_id" = Option<RunId>, Query, description = "Only those of this run."),
        PageParams,
    ),
    responses((status = 200, description = "A page.", body = Page<Delivery>), ListRefusals))]
pub(crate) async fn list(mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsRead)?;
    let query = &mut request.query;
    let filter = DeliveryFilter {
        state: state(query)?,
        webhook: query.text("webhook"),
        run_id: query.parsed("run_id")?,
        workspace_id: request.caller.0.workspace.clone(),
    };
    let (cursor, limit) = query.page()?;
    Ok(json(StatusCode::OK, &request.app.host.deliveries(filter, cursor, limit).await?))
}

fn state(query: &mut Query) -> Result<Option<DeliveryState>, Problem> {
    let Some(name) = query.value("state") else { return Ok(None) };
    match DeliveryState::from_name(&name) {
        None => Err(Problem::invalid("state", "`state` must be one of: pending, dead")),
        known => Ok(known),
    }
}

/// Has a delivery tried again
///
/// A dead letter is put back, with all its attempts; one that waits for its time is tried as soon as there is room.
#[utoipa::path(post, path = "/api/v1/deliveries/{run_id}/{webhook}/retry", tag = "deliveries",
    security(("bearer" = ["runs:control"])),
    params(
        ("run_id" = String, Path, description = "The run."),
        ("webhook" = String, Path, description = "The webhook, by its name."),
    ),
    responses((status = 202, description = "The delivery.", body = Delivery), RetryRefusals))]
pub(crate) async fn retry(path: Result<Path<(String, String)>, PathRejection>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsControl)?;
    let Path((run_id, webhook)) = path.map_err(|_| Problem::not_found("the path is not UTF-8"))?;
    let run_id: RunId = run_id.parse().map_err(|error| Problem::not_found(format!("no run: {error}")))?;
    request.run(run_id)?;
    Ok(json(StatusCode::ACCEPTED, &request.app.host.retry_delivery(run_id, &webhook).await?))
}
