//! What webhooks are still to be told of runs.

use agent_host_protocol::{Page, RunId, Scope};
use agent_host_runs::{Delivery, DeliveryFilter, DeliveryState};
use axum::{
    extract::{Path, State, rejection::PathRejection},
    http::StatusCode,
    response::Response,
};

use crate::{
    app::{App, json},
    caller::Caller,
    openapi::{PageParams, refusals},
    problem::Problem,
    query::Query,
};

refusals!(ListRefusals = [InvalidCursor]);
refusals!(RetryRefusals = [WRITE] + [NotFound]);

/// Lists what webhooks are still to be told of runs
///
/// Oldest run first. What was delivered is listed no more.
#[utoipa::path(get, path = "/api/v1/deliveries", tag = "deliveries", security(("bearer" = ["runs:read"])),
    params(
        ("state" = Option<DeliveryState>, Query, description = "Only those in this state."),
        ("webhook" = Option<String>, Query, description = "Only those to this webhook."),
        ("run_id" = Option<RunId>, Query, description = "Only those of this run."),
        PageParams,
    ),
    responses((status = 200, description = "A page.", body = Page<Delivery>), ListRefusals))]
pub(crate) async fn list(State(app): State<App>, caller: Caller, mut query: Query) -> Result<Response, Problem> {
    caller.may(Scope::RunsRead)?;
    let filter = DeliveryFilter {
        state: state(&mut query)?,
        webhook: query.text("webhook"),
        run_id: query.parsed("run_id")?,
        workspace_id: caller.0.workspace.clone(),
    };
    let cursor = query.text("cursor");
    let limit = query.limit()?;
    query.finish()?;
    let page = app.host.deliveries(filter, cursor, limit).await?;
    Ok(json(StatusCode::OK, &page))
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
pub(crate) async fn retry(
    State(app): State<App>,
    caller: Caller,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Query,
) -> Result<Response, Problem> {
    caller.may(Scope::RunsControl)?;
    query.finish()?;
    let Path((run_id, webhook)) = path.map_err(|_| Problem::not_found("the path is not UTF-8"))?;
    let run_id: RunId = run_id.parse().map_err(|error| Problem::not_found(format!("no run: {error}")))?;
    caller.run(&app, run_id)?;
    Ok(json(StatusCode::ACCEPTED, &app.host.retry_delivery(run_id, &webhook).await?))
}
