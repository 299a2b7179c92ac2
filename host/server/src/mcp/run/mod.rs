//! The MCP endpoint of a run, for who holds the MCP token of its claim.
//!
//! The server shows what the run was granted and nothing else: tools ([`catalog`], [`functions`]), artifacts as resources and skills as
//! prompts ([`library`]). Every use of them is a call that passes the gate of the run ([`call`]), so it is judged, limited,
//! recorded and cancelled like a call of the executor. The sessions end with the claim.

mod call;
mod catalog;
mod functions;
mod library;

use std::{sync::Arc, time::Duration};

use agent_host_protocol::{ApiError, ErrorCode, RunId, manifest::ArtifactOperation};
use agent_host_runs::{CallError, Calls, Host};
use axum::{extract::Request, response::Response};
use futures_util::stream;
use rmcp::{
    RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ErrorData, GetPromptRequestParams, GetPromptResponse,
        Implementation, JsonObject, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
        PaginatedRequestParams, PromptsCapability, ReadResourceRequestParams, ReadResourceResponse, ResourcesCapability,
        ServerCapabilities, ServerConfig, ToolsCapability,
    },
    service::RequestContext,
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::{
    catalog::{Catalog, Target},
    functions::HostFunction,
};
use super::{
    endpoint::{Endpoint, Endpoints, SessionPlace},
    outcome,
    progress::Progress,
};
use crate::http::Problem;

/// Calls of one run over MCP that are under way at one time. The gate limits their rate.
const MAX_CALLS: usize = 64;
/// Bytes of a message besides the arguments of its call.
const MESSAGE_ROOM: usize = 64 * 1024;
/// Time between the end of a claim and the end of its sessions, in which open calls answer that the claim has ended.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Names the claim of a run.
type ClaimId = (RunId, u32);

/// The endpoints of the runs that executors hold.
#[derive(Default)]
pub(crate) struct RunEndpoints(Arc<Endpoints<ClaimId, RunServer>>);

impl RunEndpoints {
    /// Answers a request to the endpoint of a run. `calls` are those of the claim that the token of the request names.
    pub(crate) async fn answer(
        &self,
        host: &Host,
        server_closing: &CancellationToken,
        calls: Calls,
        request: Request,
    ) -> Result<Response, Problem> {
        let id = (calls.run_id(), calls.claim());
        let claim_end = calls.claim_end();
        let (endpoint, is_new) = self.0.of(&id, || {
            let shared = Arc::new(SharedRun {
                host: host.clone(),
                catalog: Catalog::of(&calls),
                open_calls: Semaphore::new(MAX_CALLS),
                calls: calls.clone(),
            });
            let body_bytes = calls.largest_body_bytes().saturating_add(MESSAGE_ROOM);
            let server = move |place| RunServer { shared: Arc::clone(&shared), _place: place };
            Endpoint::new(server_closing.child_token(), body_bytes, server)
        });
        if is_new {
            let (endpoints, server_closing) = (Arc::clone(&self.0), server_closing.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = claim_end.cancelled() => tokio::time::sleep(LAST_ANSWERS).await,
                    () = server_closing.cancelled() => {}
                }
                endpoints.end(&id);
            });
        }
        endpoint.answer(request).await
    }
}

/// The parts that the sessions of a run share.
struct SharedRun {
    host: Host,
    calls: Calls,
    catalog: Catalog,
    open_calls: Semaphore,
}

/// The server of one session.
pub(crate) struct RunServer {
    shared: Arc<SharedRun>,
    _place: SessionPlace,
}

impl RunServer {
    /// Calls a tool by its name in the list.
    async fn called(&self, name: &str, arguments: JsonObject, progress: Progress) -> Result<CallToolResult, ErrorData> {
        let SharedRun { host, calls, catalog, .. } = &*self.shared;
        let call_id = format!("call_{}", RunId::new());
        match catalog.target(name) {
            Some(Target::Granted) => {
                let after = host.records().run(calls.run_id()).ok().flatten().map_or(0, |record| record.run.last_sequence);
                let called = call::tool(calls, name, &call_id, arguments);
                let called = if progress.is_wanted() {
                    let reports = call::reports(host, calls.run_id(), after, call_id.clone());
                    progress.during(called, reports, "the tool is at work").await
                } else {
                    called.await
                };
                called.map(outcome::of_tool).or_else(outcome::failure)
            }
            Some(Target::Host(function)) => {
                let called = call::host_function(calls, function, arguments);
                progress.during(called, stream::empty(), function.waiting()).await
            }
            None => Err(self.unknown(name, &call_id, arguments).await),
        }
    }

    /// The refusal of a tool that is not in the list. It comes from the gate, so that the audit of the run has it.
    async fn unknown(&self, name: &str, call_id: &str, arguments: JsonObject) -> ErrorData {
        let calls = &self.shared.calls;
        let refused = match HostFunction::from_name(name) {
            Some(function) => match call::host_function(calls, function, arguments).await {
                Ok(result) => {
                    let refusal = result.structured_content.and_then(|content| content.get("error").cloned());
                    refusal.and_then(|refusal| serde_json::from_value::<ApiError>(refusal).ok())
                }
                Err(error) => return error,
            },
            None => match call::tool(calls, name, call_id, arguments).await {
                Ok(_) => None,
                Err(CallError::Refused(refusal)) => Some(refusal),
                Err(error) => return outcome::failed(error),
            },
        };
        let ungranted = || ApiError::new(ErrorCode::NotFound, format!("there is no tool `{}`", shown(name)));
        outcome::protocol_error(&refused.unwrap_or_else(ungranted))
    }

    fn artifacts_may_be_read(&self) -> bool {
        self.shared.calls.grant().permissions.artifacts.contains(&ArtifactOperation::Read)
    }

    /// Does something until the client withdraws the request.
    async fn unless_withdrawn<T>(
        context: &RequestContext<RoleServer>,
        work: impl Future<Output = Result<T, ErrorData>>,
    ) -> Result<T, ErrorData> {
        tokio::select! {
            biased;
            () = context.ct.cancelled() => Err(outcome::withdrawn()),
            done = work => done,
        }
    }
}

/// A name of a client, short enough for a message.
fn shown(name: &str) -> String {
    name.chars().take(128).flat_map(char::escape_debug).collect()
}

impl ServerHandler for RunServer {
    fn get_info(&self) -> ServerConfig {
        let mut capabilities = ServerCapabilities::default();
        capabilities.tools = Some(ToolsCapability::default());
        capabilities.resources = self.artifacts_may_be_read().then(ResourcesCapability::default);
        capabilities.prompts = (!self.shared.calls.grant().skills.is_empty()).then(PromptsCapability::default);
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("agent-host", env!("CARGO_PKG_VERSION")))
            .with_instructions("The tools, artifacts and skills that the host has granted to this run.")
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.shared.catalog.tools().to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Ok(_open) = self.shared.open_calls.try_acquire() else {
            let message =
                format!("{MAX_CALLS} calls of this run are under way, which is the most there may be: wait for one of them");
            return Ok(outcome::of_refusal(&ApiError::retryable(ErrorCode::RateLimited, message)).into());
        };
        let progress = Progress::new(context.peer.clone(), context.meta.get_progress_token());
        let called = self.called(&request.name, request.arguments.unwrap_or_default(), progress);
        Self::unless_withdrawn(&context, called).await.map(Into::into)
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        if !self.artifacts_may_be_read() {
            return Ok(ListResourcesResult::default());
        }
        library::resources(&self.shared.calls, request.and_then(|request| request.cursor))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let templates = if self.artifacts_may_be_read() { library::templates() } else { Vec::new() };
        Ok(ListResourceTemplatesResult::with_all_items(templates))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let read = library::read(&self.shared.calls, &request.uri);
        Self::unless_withdrawn(&context, read).await.map(Into::into)
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::with_all_items(library::prompts(&self.shared.calls)))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let prompt = library::prompt(&self.shared.calls, &request.name);
        Self::unless_withdrawn(&context, prompt).await.map(Into::into)
    }
}
