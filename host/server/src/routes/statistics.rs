//! Runs, counted.

use std::str::FromStr;

use agent_host_protocol::{RunnerId, Scope, Timestamp};
use agent_host_runs::{GroupBy, Statistics, StatisticsQuery};
use axum::{Extension, http::StatusCode, response::Response};

use crate::{
    access::{ApiRequest, caller::Caller},
    http::{Problem, forwarded::RequestPart, json},
    openapi::refusals,
};

refusals!(StatisticsRefusals = [NotFound]);

/// Counts runs: how they ended, how long they took and waited, what they used
///
/// Computed from the records of the runs when it is asked for, so percentiles are exact. At most 250,000 runs are looked at, the
/// newest ones; where there are more, `truncated` is true and `covered_since` says from when on they are counted. A key of a
/// workspace sees the runs of that workspace. In a cluster with several partitions they are the counts of all, where the request names no workspace.
#[utoipa::path(get, path = "/api/v1/statistics", tag = "runs", security(("bearer" = ["runs:read"])),
    params(
        ("since" = Option<Timestamp>, Query, description = "Only runs created at this time or later."),
        ("until" = Option<Timestamp>, Query, description = "Only runs created before this time."),
        ("runner_id" = Option<RunnerId>, Query, description = "Only runs of this runner."),
        ("binding_id" = Option<String>, Query, description = "Only runs of this binding."),
        ("queue" = Option<String>, Query, description = "Only runs in this queue."),
        ("workspace_id" = Option<String>, Query, description = "Only runs of this workspace."),
        ("group_by" = inline(Option<GroupBy>), Query, description = "Counts by runner or binding, too: the thousand with the most runs."),
    ),
    responses((status = 200, description = "The counts.", body = Statistics), StatisticsRefusals))]
pub(crate) async fn statistics(part: Option<Extension<RequestPart>>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsRead)?;
    let query = &mut request.query;
    let filter = StatisticsQuery {
        since: query.parsed("since")?,
        until: query.parsed("until")?,
        runner_id: query.parsed::<RunnerId>("runner_id")?.map(|id| id.to_string()),
        binding_id: query.text("binding_id"),
        queue: query.text("queue"),
        workspace_id: query.text("workspace_id"),
        group_by: query.parsed::<By>("group_by")?.map(|By(by)| by),
    };
    query.finish()?;
    let Some(filter) = within_workspace(&request.caller, filter) else {
        return Err(Problem::not_found("there is no such workspace"));
    };
    // One such request reads at a time: others wait here, and do not occupy the threads that read for all requests.
    let _one_at_a_time = SCANS.acquire().await.map_err(Problem::internal)?;
    if let Some(Extension(RequestPart::Counts { most })) = part {
        let counts = request.app.read(move |records| records.count_runs(&filter, most)).await?;
        return Ok(json(StatusCode::OK, &counts));
    }
    let counted = request.app.read(move |records| records.statistics(&filter)).await?;
    Ok(json(StatusCode::OK, &counted))
}

/// Scans at the same time in this process.
static SCANS: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(2);

/// A key sees its workspace; another one is not there.
fn within_workspace(caller: &Caller, filter: StatisticsQuery) -> Option<StatisticsQuery> {
    let own = caller.0.workspace.clone();
    match (&own, &filter.workspace_id) {
        (Some(own), Some(requested)) if own != requested => None,
        (Some(_), _) => Some(StatisticsQuery { workspace_id: own, ..filter }),
        (None, _) => Some(filter),
    }
}

struct By(GroupBy);

impl FromStr for By {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "runner" => Ok(Self(GroupBy::Runner)),
            "binding" => Ok(Self(GroupBy::Binding)),
            _ => Err("it is `runner` or `binding`"),
        }
    }
}
