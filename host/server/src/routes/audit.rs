//! The audit of the whole host.

use agent_host_protocol::{Page, RunId, Scope, Timestamp};
use agent_host_runs::AuditRecord;
use axum::{Extension, http::StatusCode, response::Response};

use super::feed::{Follow, feed_stream};
use crate::{
    access::ApiRequest,
    http::{Problem, forwarded::RequestPart, json},
    openapi::{FollowParams, PageParams, refusals},
};

/// Records that one request reads at most. A page of a rare selection can be empty and have more after it.
const EXAMINED: usize = 20_000;

refusals!(AuditRefusals = [InvalidCursor, NotAcceptable, TooManyStreams]);

/// Lists audit records of the host, newest first, or follows them
///
/// Requests to the control plane (`runs.cancel`, `executors.register`, `keys.create`, …) with the principal, its address and the
/// status in `details`, and host calls of runs. One request reads at most 20,000 records, so a page can have fewer items than
/// `limit` although `has_more` is true.
///
/// With `Accept: text/event-stream` the answer is a stream of the records that are written from now on, or after the cursor
/// `after`, oldest first: `data` is a record, `id` its cursor, `event` is `audit`. The `prev_cursor` of a page is the cursor of its
/// first record.
#[utoipa::path(get, path = "/api/v1/audit", tag = "host", security(("bearer" = ["admin"])),
    params(
        PageParams,
        FollowParams,
        ("action" = Option<String>, Query, description = "Only this action, or with `.` or `*` at the end: only actions that begin so."),
        ("principal" = Option<String>, Query, description = "Only requests of this principal: the id or name of a key, an executor or an approver."),
        ("outcome" = Option<String>, Query, description = "Only this outcome: `ok`, or the code of a refusal."),
        ("run_id" = Option<RunId>, Query, description = "Only records of this run."),
        ("since" = Option<Timestamp>, Query, description = "Only records of this time or later."),
        ("until" = Option<Timestamp>, Query, description = "Only records before this time."),
    ),
    responses(
        (status = 200, description = "A page of the audit, or the stream of it.", content(
            (Page<AuditRecord> = "application/json"),
            (String = "text/event-stream"),
        )),
        AuditRefusals,
    ))]
pub(crate) async fn audit(part: Option<Extension<RequestPart>>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may_everywhere(Scope::Admin)?;
    let query = &mut request.query;
    let selection = Selection {
        action: query.text("action"),
        principal: query.text("principal"),
        outcome: query.text("outcome"),
        run_id: query.parsed("run_id")?,
        since: query.parsed("since")?,
        until: query.parsed("until")?,
    };
    let follow = Follow::read(&request.headers, query)?;
    let (cursor, limit) = query.page()?;
    if let Follow::From(after) = follow {
        let feed = request.app.host.follow_audit(after.as_deref(), move |record| selection.has(record))?;
        return feed_stream(&request.app, "audit", feed, std::convert::identity, part);
    }
    let read = move |records: &agent_host_runs::Records| {
        records.audit_of_host(cursor.as_deref(), limit, EXAMINED, |record| selection.has(record))
    };
    Ok(json(StatusCode::OK, &request.app.read(read).await?))
}

/// The selection of records.
struct Selection {
    action: Option<String>,
    principal: Option<String>,
    outcome: Option<String>,
    run_id: Option<RunId>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

impl Selection {
    fn has(&self, record: &AuditRecord) -> bool {
        self.action.as_ref().is_none_or(|action| match action.strip_suffix('*') {
            Some(prefix) => record.action.starts_with(prefix),
            None if action.ends_with('.') => record.action.starts_with(action.as_str()),
            None => record.action == *action,
        }) && self.principal.as_ref().is_none_or(|principal| is_of(record, principal))
            && self.outcome.as_ref().is_none_or(|outcome| record.outcome == *outcome)
            && self.run_id.is_none_or(|run_id| record.run_id == Some(run_id))
            && self.since.is_none_or(|since| record.at >= since)
            && self.until.is_none_or(|until| record.at < until)
    }
}

fn is_of(record: &AuditRecord, principal: &str) -> bool {
    let Some(of) = record.details.as_ref().and_then(|details| details.get("principal")) else { return false };
    ["id", "name"].iter().any(|member| of.get(member).and_then(serde_json::Value::as_str) == Some(principal))
}
