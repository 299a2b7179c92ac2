//! `/api/v1/stream-tokens`: addresses of streams for programs that send no headers.

use agent_host_protocol::{RunId, Scope, Timestamp, time};
use axum::{Extension, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    access::{
        ApiRequest,
        caller::Caller,
        identity::TokenValidity,
        stream_token::{self, StreamName},
    },
    agents::routes::check_run,
    app::App,
    http::{Problem, json, query::ACCESS_TOKEN},
    openapi::refusals,
};

/// Four ids of at most 256 bytes, however they are spelt.
const MAX_BODY_BYTES: usize = 8 * 1024;
/// Validity where the request names none: a page opens its stream at once, and connects again within minutes.
const DEFAULT_MS: u64 = 5 * 60 * 1000;
/// Longest validity. Addresses remain in histories of browsers and in logs of proxies.
const MAX_MS: u64 = 60 * 60 * 1000;
/// Shortest validity.
const MIN_MS: u64 = 1000;

/// The stream that a token is to open: `run_id` alone, `thread_id` alone or with `session_id`, or `agent_id`, `thread_id` and `run_id`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewStreamToken {
    /// The run; with `agent_id`, by the `runId` of the client.
    #[serde(default)]
    run_id: Option<String>,
    /// The thread.
    #[serde(default)]
    thread_id: Option<String>,
    /// The conversation of the thread, where it has another id.
    #[serde(default)]
    session_id: Option<String>,
    /// The agent, for the AG-UI events of a run of one of its threads.
    #[serde(default)]
    agent_id: Option<String>,
    /// Time in ms for which the token opens its stream; 5 minutes if absent.
    #[serde(default)]
    #[schema(minimum = 1000, maximum = 3_600_000)]
    expires_in_ms: Option<u64>,
}

/// A token that opens one stream.
#[derive(Serialize, ToSchema)]
struct StreamToken {
    /// The value of the query parameter `access_token`.
    token: String,
    /// The end of its validity. A stream that is open goes on.
    expires_at: Timestamp,
    /// The address of the stream with the token, below that of the host.
    url: String,
}

refusals!(CreateRefusals = [JSON] + [NotFound, ThreadForgotten]);

/// Makes a token that opens one stream
///
/// For the `EventSource` of browsers, which sends no headers: the token is a part of the address. It has the rights of its maker, for
/// one stream of events of one run or one thread, and ends with the key or the token of its maker.
#[utoipa::path(post, path = "/api/v1/stream-tokens", tag = "keys", security(("bearer" = ["runs:read"])),
    request_body = NewStreamToken,
    responses((status = 201, description = "The token.", body = StreamToken), CreateRefusals))]
pub(crate) async fn create_stream_token(
    validity: Option<Extension<TokenValidity>>,
    mut request: ApiRequest,
) -> Result<Response, Problem> {
    request.allow(Scope::RunsRead)?;
    let new: NewStreamToken = request.json(MAX_BODY_BYTES).await?;
    let lifetime = new.expires_in_ms.unwrap_or(DEFAULT_MS);
    if !(MIN_MS..=MAX_MS).contains(&lifetime) {
        return Err(Problem::invalid("expires_in_ms", format!("`expires_in_ms` must be a number from {MIN_MS} to {MAX_MS}")));
    }
    let agent = new.agent_id.clone().unwrap_or_default();
    let stream = readable(&request.app, &request.caller, new).await?;
    let expires_at = time::now().saturating_add(lifetime);
    let path = stream.path(&agent);
    let validity = validity.as_ref().map(|Extension(validity)| validity);
    let token = stream_token::make(&request.app, &request.caller.0, validity, stream, expires_at)?;
    let joint = if path.contains('?') { '&' } else { '?' };
    let url = format!("{path}{joint}{ACCESS_TOKEN}={token}");
    Ok(json(StatusCode::CREATED, &StreamToken { token, expires_at, url }))
}

/// The stream that a request names, once it is clear that the caller may read it.
async fn readable(app: &App, caller: &Caller, new: NewStreamToken) -> Result<StreamName, Problem> {
    let NewStreamToken { run_id, thread_id, session_id, agent_id, .. } = new;
    if caller.0.end_user.is_some() && agent_id.is_none() {
        let detail = "an end user reads the threads of agents: name `agent_id`, `thread_id` and `run_id`";
        return Err(Problem::forbidden("agent_id", detail));
    }
    match (agent_id, thread_id, session_id, run_id) {
        (None, None, None, Some(run)) => {
            let id: RunId = run.parse().map_err(|error| Problem::not_found(format!("no run: {error}")))?;
            Ok(StreamName::Run(caller.run(app, id)?.run_id))
        }
        (None, Some(thread), session, None) => {
            let name = super::threads::ThreadName::of(caller, &thread, session.clone())?;
            super::threads::read(app, name, |_, _| Ok(())).await?;
            Ok(StreamName::thread(thread, session))
        }
        (Some(agent), Some(thread), None, Some(run)) => {
            check_run(app, caller, &agent, &thread, &run)?;
            Ok(StreamName::AgentRun { thread, run })
        }
        _ => Err(Problem::invalid(
            "run_id",
            "name one stream: `run_id` alone, `thread_id` alone or with `session_id`, or `agent_id`, `thread_id` and `run_id`",
        )),
    }
}
