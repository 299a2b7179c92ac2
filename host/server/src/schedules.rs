//! Schedules, as they stand.

use agent_host_protocol::{Page, Scope};
use agent_host_runs::ScheduleReport;
use axum::{extract::State, http::StatusCode, response::Response};

use crate::{
    app::{App, json},
    caller::Caller,
    openapi::refusals,
    problem::Problem,
    query::Query,
};

refusals!(SchedulesRefusals = []);

/// Lists the schedules
///
/// With their last and next ticks. A key of a workspace sees those whose events belong to it.
#[utoipa::path(get, path = "/api/v1/schedules", tag = "host", security(("bearer" = ["runs:read"])),
    responses((status = 200, description = "The schedules, all of them.", body = Page<ScheduleReport>), SchedulesRefusals))]
pub(crate) async fn schedules(State(app): State<App>, caller: Caller, query: Query) -> Result<Response, Problem> {
    caller.may(Scope::RunsRead)?;
    query.finish()?;
    let schedules = app.host.schedules()?.into_iter();
    let items: Vec<_> = schedules.filter(|schedule| caller.0.sees(schedule.workspace_id.as_deref())).collect();
    Ok(json(StatusCode::OK, &Page { items, next_cursor: None, prev_cursor: None, has_more: false }))
}
