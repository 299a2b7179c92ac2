//! Schedules, as they stand.

use agent_host_protocol::{Page, Scope};
use agent_host_runs::ScheduleReport;
use axum::response::Response;

use crate::{
    access::ApiRequest,
    http::{Problem, whole_page},
    openapi::refusals,
};

refusals!(SchedulesRefusals = []);

/// Lists the schedules
///
/// With their last and next ticks. A key of a workspace sees those whose events belong to it.
#[utoipa::path(get, path = "/api/v1/schedules", tag = "host", security(("bearer" = ["runs:read"])),
    responses((status = 200, description = "The schedules, all of them.", body = Page<ScheduleReport>), SchedulesRefusals))]
pub(crate) async fn schedules(request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    let mut items = request.app.host.schedules()?;
    items.retain(|schedule| request.caller.0.sees(schedule.workspace_id.as_deref()));
    Ok(whole_page(items))
}
