//! `/api/v1/actions`: what runs ask people for.

use agent_host_runs::Decision;
use axum::{
    extract::{Path, Request, State},
    http::StatusCode,
    response::Response,
};
use serde::Deserialize;
use serde_json::json;

use crate::{
    app::{App, json as answer},
    body,
    problem::Problem,
    query::Query,
};

const MAX_BODY_BYTES: usize = 1024;

/// `POST /api/v1/actions/{id}/respond`: the answer is durable when this answers, and the run goes on by it.
pub(crate) async fn respond(
    State(app): State<App>,
    Path(id): Path<String>,
    query: Query,
    request: Request,
) -> Result<Response, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Answer {
        decision: Decision,
    }
    query.finish()?;
    let (parts, body) = request.into_parts();
    body::require_json(&parts.headers)?;
    let Answer { decision } = body::parse(&body::read(body, MAX_BODY_BYTES).await?)?;
    app.host.decide(&id, decision).await?;
    Ok(answer(StatusCode::OK, &json!({ "action_id": id, "decision": decision })))
}
