//! The endpoints of MCP: the three methods of the streamable HTTP transport, for a run and for the agents.

use agent_host_protocol::{RunId, Scope, auth::MCP_PREFIX};
use agent_host_runs::Calls;
use axum::{
    extract::{Request, State},
    http::HeaderMap,
    response::Response,
};

use crate::{
    access::caller::{Caller, bearer},
    app::App,
    http::{Id, Problem, ProblemCode},
    openapi::refusals,
};

refusals!(MessageRefusals = [JSON] + [NotFound, NotAcceptable, ClaimLost, Conflict, TooManyStreams, ShuttingDown]);
refusals!(StreamRefusals = [NotFound, NotAcceptable, MethodNotAllowed, ClaimLost, Conflict, ShuttingDown]);
refusals!(EndRefusals = [NotFound, MethodNotAllowed, ClaimLost, Conflict, ShuttingDown]);

/// The host calls of the run, for the holder of its MCP token.
fn calls(app: &App, id: RunId, headers: &HeaderMap) -> Result<Calls, Problem> {
    let Some(token) = bearer(headers).filter(|token| token.starts_with(MCP_PREFIX)) else {
        let detail =
            "this takes the MCP token of the claim of the run, as `mcp.token` of its start has it: `Authorization: Bearer ahm_…`";
        return Err(Problem::new(ProblemCode::Unauthenticated, detail));
    };
    Ok(app.host.mcp_calls(id, token)?)
}

async fn answer(app: &App, id: RunId, request: Request) -> Result<Response, Problem> {
    let calls = calls(app, id, request.headers())?;
    app.mcp.runs.answer(&app.host, &app.closing, calls, request).await
}

/// Sends a message of MCP to a run that an executor holds
///
/// The streamable HTTP transport of MCP (docs/MCP.md): a request is answered with a stream of its notifications and its
/// answer. `initialize` begins a session, which `Mcp-Session-Id` names. Send the MCP token of the claim.
#[utoipa::path(post, path = "/mcp/runs/{id}", tag = "mcp", security(("bearer" = [])),
    params(Id<RunId>, ("Mcp-Session-Id" = Option<String>, Header, description = "The session, after `initialize`.")),
    request_body(content = serde_json::Map<String, serde_json::Value>, description = "A message of JSON-RPC 2.0."),
    responses(
        (status = 200, description = "The answer to a request, with its notifications.", content((String = "text/event-stream")),
            headers(("Mcp-Session-Id" = String, description = "Of the answer to `initialize`: the session."))),
        (status = 202, description = "A notification or a response was taken."),
        MessageRefusals,
    ))]
pub(crate) async fn message(State(app): State<App>, Id(id): Id<RunId>, request: Request) -> Result<Response, Problem> {
    answer(&app, id, request).await
}

/// Follows the messages of a session of MCP that answer no request
///
/// With `Last-Event-ID`, a stream that broke off continues. Send the MCP token of the claim.
#[utoipa::path(get, path = "/mcp/runs/{id}", tag = "mcp", security(("bearer" = [])),
    params(Id<RunId>,
        ("Mcp-Session-Id" = String, Header, description = "The session."),
        ("Last-Event-ID" = Option<String>, Header, description = "The `id` of the last message that was seen.")),
    responses(
        (status = 200, description = "The messages.", content((String = "text/event-stream"))),
        StreamRefusals,
    ))]
pub(crate) async fn follow(State(app): State<App>, Id(id): Id<RunId>, request: Request) -> Result<Response, Problem> {
    answer(&app, id, request).await
}

/// Ends a session of MCP
///
/// Send the MCP token of the claim.
#[utoipa::path(delete, path = "/mcp/runs/{id}", tag = "mcp", security(("bearer" = [])),
    params(Id<RunId>, ("Mcp-Session-Id" = String, Header, description = "The session.")),
    responses((status = 202, description = "The session has ended."), EndRefusals))]
pub(crate) async fn end(State(app): State<App>, Id(id): Id<RunId>, request: Request) -> Result<Response, Problem> {
    answer(&app, id, request).await
}

async fn answer_about_agents(app: &App, caller: Caller, request: Request) -> Result<Response, Problem> {
    // The right to write includes the right to read the answer.
    caller.may(Scope::EventsWrite)?;
    app.mcp.agents.answer(&app.host, &app.closing, caller.0, request).await
}

refusals!(AgentMessageRefusals = [JSON] + [NotFound, NotAcceptable, TooManyStreams, ShuttingDown]);
refusals!(AgentStreamRefusals = [NotFound, NotAcceptable, MethodNotAllowed, ShuttingDown]);
refusals!(AgentEndRefusals = [NotFound, MethodNotAllowed, ShuttingDown]);

/// Sends a message of MCP to the host, whose tools are its agents
///
/// The streamable HTTP transport of MCP (docs/MCP.md). `tools/call` begins a run of the agent with that name, streams its
/// progress, and answers with what the run says. Sessions belong to the key.
#[utoipa::path(post, path = "/mcp", tag = "mcp", security(("bearer" = ["events:write"])),
    params(("Mcp-Session-Id" = Option<String>, Header, description = "The session, after `initialize`.")),
    request_body(content = serde_json::Map<String, serde_json::Value>, description = "A message of JSON-RPC 2.0."),
    responses(
        (status = 200, description = "The answer to a request, with its notifications.", content((String = "text/event-stream")),
            headers(("Mcp-Session-Id" = String, description = "Of the answer to `initialize`: the session."))),
        (status = 202, description = "A notification or a response was taken."),
        AgentMessageRefusals,
    ))]
pub(crate) async fn agents_message(State(app): State<App>, caller: Caller, request: Request) -> Result<Response, Problem> {
    answer_about_agents(&app, caller, request).await
}

/// Follows the messages of a session of MCP that answer no request to an agent
///
/// With `Last-Event-ID`, a stream that broke off continues.
#[utoipa::path(get, path = "/mcp", tag = "mcp", security(("bearer" = ["events:write"])),
    params(("Mcp-Session-Id" = String, Header, description = "The session."),
        ("Last-Event-ID" = Option<String>, Header, description = "The `id` of the last message that was seen.")),
    responses(
        (status = 200, description = "The messages.", content((String = "text/event-stream"))),
        AgentStreamRefusals,
    ))]
pub(crate) async fn agents_follow(State(app): State<App>, caller: Caller, request: Request) -> Result<Response, Problem> {
    answer_about_agents(&app, caller, request).await
}

/// Ends a session of MCP with the agents
///
/// Runs that its calls have begun go on.
#[utoipa::path(delete, path = "/mcp", tag = "mcp", security(("bearer" = ["events:write"])),
    params(("Mcp-Session-Id" = String, Header, description = "The session.")),
    responses((status = 202, description = "The session has ended."), AgentEndRefusals))]
pub(crate) async fn agents_end(State(app): State<App>, caller: Caller, request: Request) -> Result<Response, Problem> {
    answer_about_agents(&app, caller, request).await
}
