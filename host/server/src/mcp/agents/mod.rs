//! The agents of the host as tools of MCP, for who has an API key.
//!
//! Each agent is a tool. A call begins a run of the agent and follows its record ([`call`]): what the run says becomes
//! progress, its end the result. Questions of the run go to the client where it can ask its user ([`questions`]).

mod call;
mod questions;
mod resources;

use std::{sync::Arc, time::Duration};

use agent_host_protocol::{ApiError, ErrorCode, Principal};
use agent_host_runs::{Agent, Host, HostError};
use axum::{extract::Request, response::Response};
use rmcp::{
    RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, ErrorData, Implementation, ListResourceTemplatesResult, ListToolsResult,
        PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, ResourceTemplate, ResourcesCapability,
        ServerCapabilities, ServerConfig, Tool, ToolAnnotations, ToolsCapability,
    },
    service::RequestContext,
};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    endpoint::{Endpoint, Endpoints, SessionPlace},
    outcome,
};
use crate::http::Problem;

/// Calls of one owner that are under way at one time.
const MAX_CALLS: usize = 64;
/// Time after which the endpoint of an owner without a session is forgotten.
const UNUSED: Duration = Duration::from_secs(600);

/// The endpoints of those who use agents. A key whose rights have changed has another one.
#[derive(Default)]
pub(crate) struct AgentEndpoints(Arc<Endpoints<Principal, AgentServer>>);

impl AgentEndpoints {
    /// Answers a request of a principal, who may write events.
    pub(crate) async fn answer(
        &self,
        host: &Host,
        server_closing: &CancellationToken,
        principal: Principal,
        request: Request,
    ) -> Result<Response, Problem> {
        let (endpoint, is_new) = self.0.of(&principal, || {
            let open_calls = Semaphore::new(MAX_CALLS);
            let shared = Arc::new(SharedAgents { host: host.clone(), principal: principal.clone(), open_calls });
            let server = move |place| AgentServer { shared: Arc::clone(&shared), _place: place };
            Endpoint::new(server_closing.child_token(), host.config().limits.http_body_bytes, server)
        });
        if is_new {
            let (endpoints, server_closing) = (Arc::clone(&self.0), server_closing.clone());
            tokio::spawn(async move {
                loop {
                    tokio::select! {
                        () = tokio::time::sleep(UNUSED) => if endpoints.end_unused(&principal) { return },
                        () = server_closing.cancelled() => return endpoints.end(&principal),
                    }
                }
            });
        }
        endpoint.answer(request).await
    }
}

/// The parts that the sessions of an owner share.
struct SharedAgents {
    host: Host,
    principal: Principal,
    open_calls: Semaphore,
}

/// The server of one session.
pub(crate) struct AgentServer {
    shared: Arc<SharedAgents>,
    _place: SessionPlace,
}

/// The tool of an agent.
fn tool(agent: &Agent) -> Tool {
    let schema = json!({
        "type": "object",
        "properties": {
            "text": { "type": "string", "description": "The message to the agent." },
            "attachments": {
                "type": "array", "items": { "type": "string" },
                "description": "Ids of artifacts, as `POST /api/v1/artifacts` gives them.",
            },
            "conversation": {
                "type": "string",
                "description": "The `conversation` of an earlier answer, to go on with it. Default: a new one.",
            },
            "run_id": {
                "type": "string",
                "description": "In place of `text`: the `run_id` of an answer with `status` `waiting`, to wait for its end.",
            },
        },
        "additionalProperties": false,
    });
    let schema = schema.as_object().cloned().unwrap_or_default();
    let description = agent.description.clone().unwrap_or_else(|| format!("The agent {}.", agent.name));
    let tool = Tool::new(agent.id.clone(), description, Arc::new(schema)).with_title(&agent.name);
    tool.with_annotations(ToolAnnotations::new().open_world(true))
}

impl ServerHandler for AgentServer {
    fn get_info(&self) -> ServerConfig {
        let mut capabilities = ServerCapabilities::default();
        capabilities.tools = Some(ToolsCapability::default());
        capabilities.resources = Some(ResourcesCapability::default());
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("agent-host", env!("CARGO_PKG_VERSION")))
            .with_instructions("Each tool is an agent: send it a message, and its answer is the result.")
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.shared.host.agents().iter().map(tool).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Ok(_open) = self.shared.open_calls.try_acquire() else {
            let message = format!("{MAX_CALLS} calls are under way, which is the most there may be: wait for one of them");
            return Ok(outcome::of_refusal(&ApiError::retryable(ErrorCode::RateLimited, message)).into());
        };
        self.shared.host.await_agent(&request.name).await;
        let agent = match self.shared.host.agent(&request.name) {
            Err(error @ HostError::RunnerCompiling(_)) => {
                let refusal = ApiError::retryable(ErrorCode::RuntimeError, error.to_string());
                return Ok(outcome::of_refusal(&refusal).into());
            }
            found => found.map_err(|error| outcome::protocol_error(&ApiError::new(ErrorCode::NotFound, error.to_string())))?,
        };
        let arguments = request.arguments.unwrap_or_default();
        call::answer(&self.shared.host, &self.shared.principal, &agent, arguments, context).await.map(Into::into)
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let template = ResourceTemplate::new(format!("{}{{artifact_id}}", outcome::SCHEME), "artifact");
        let template = template.with_description("An artifact that an answer links to.");
        Ok(ListResourceTemplatesResult::with_all_items(vec![template]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(&self.shared.host, &self.shared.principal, &request.uri).await.map(Into::into)
    }
}
