//! Tools: MCP servers over stdio and streamable HTTP.
//!
//! Servers that are started, supervised and restarted; their tools under names that models accept; calls that are checked
//! first, bounded while they run, and limited in time. The caller decides who may call which tool.
//!
//! Guarantees, whatever a server does:
//! - A call ends by its deadline, and by `call_timeout_ms`. The server is notified of an early end.
//! - Incoming data are bounded in size and rate, and so in memory.
//! - Outgoing text contains none of the secrets that the server received.
//! - A failure has a category, in `details.code` of the error: `tool_not_found`, `tool_server_unavailable`,
//!   `tool_timeout`, `tool_output_too_large`, `tool_protocol_error`, `tool_failed` (the server answered with an error),
//!   `invalid_parameters`, `invalid_tool_schema`.
//!
//! Not guaranteed: the effects of a failed call, and that a server stops when asked to.

mod call;
mod connection;
mod failure;
mod inbox;
mod names;
mod output;
mod process;
mod schema;
mod server;
mod transport;
mod value;
mod web;

use std::{
    collections::HashSet,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

pub use agent_host_config::{EnvValue, McpServerConfig};
use agent_host_protocol::{ApiError, tool::ToolDetail};
use futures_util::future::join_all;
use parking_lot::Mutex;
use rmcp::model::JsonRpcMessage;
use serde_json::Value;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

pub use inbox::Progress;
pub use output::{ToolContent, ToolResult};
pub use schema::{check_schema, validate};
pub use server::{McpServerReport, McpServerStatus};

use crate::redact::Redactor;
use schema::Schema;
use server::Server;

/// The results of tools in the whole output of a server, for [`crate::fuzz`].
pub(crate) async fn results_in(output: &[u8], max_bytes: usize) -> Vec<Result<ToolResult, ApiError>> {
    let messages = transport::messages_in(output, max_bytes).await;
    let answers = messages.into_iter().filter_map(|message| match message {
        JsonRpcMessage::Response(response) => Some(response.result),
        _ => None,
    });
    answers.map(|answer| output::read("t__tool", answer, max_bytes, &Redactor::default())).collect()
}

/// Time limit for the end of all servers together.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// A tool that a server offers.
#[derive(Debug)]
pub struct Tool {
    /// `SERVER__TOOL`: at most 64 of `A-Za-z0-9_-`.
    pub name: String,
    /// As runners and models need to know it; `detail.name` is the full name.
    pub detail: ToolDetail,
    remote_name: String,
    schema: Arc<Schema>,
}

impl Tool {
    fn new(name: String, detail: ToolDetail, remote_name: String) -> Self {
        let schema = Arc::new(Schema::new(Arc::new(detail.parameters.clone())));
        Self { name, detail, remote_name, schema }
    }

    /// The name that its server gives it.
    #[must_use]
    pub fn remote_name(&self) -> &str {
        &self.remote_name
    }

    /// The id of its server.
    #[must_use]
    pub fn server(&self) -> &str {
        self.name.split_once("__").map_or("", |(server, _)| server)
    }

    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }
}

/// The options of a call.
#[derive(Clone, Copy)]
pub struct CallOptions<'a> {
    /// Deadline of the call.
    pub deadline: Instant,
    /// Receives the progress of the call, at most about twenty times a second. The function must not wait.
    pub progress: Option<&'a (dyn Fn(Progress) + Send + Sync)>,
}

impl fmt::Debug for CallOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallOptions").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// The tool servers of a host. Cheap to clone; a server ends with [`shutdown`](Self::shutdown), or, without grace, some
/// time after the last clone of the last [`Tools`] that has it is dropped.
#[derive(Debug, Clone)]
pub struct Tools {
    servers: Arc<[Arc<SharedServer>]>,
}

/// A server and what keeps it running. Shared by all [`Tools`] in which it is configured alike.
#[derive(Debug)]
struct SharedServer {
    server: Arc<Server>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
    stop: CancellationToken,
}

impl SharedServer {
    fn new(config: &McpServerConfig, problem: Option<String>) -> Self {
        let (server, stop) = (Arc::new(Server::new(config.clone())), CancellationToken::new());
        let supervisor = match problem {
            Some(problem) => {
                server.refuse(problem);
                None
            }
            None => Some(tokio::spawn(server.clone().supervise(stop.clone()))),
        };
        Self { server, supervisor: Mutex::new(supervisor), stop }
    }
}

impl Drop for SharedServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Tools {
    /// Starts a supervisor for each server; it is started in the background. Must be called within a tokio runtime.
    ///
    /// A server whose configuration cannot be used, or whose id is taken, is `failed` from the beginning.
    #[must_use]
    pub fn start(configs: &[McpServerConfig]) -> Self {
        Self::begin(configs, None)
    }

    /// As [`Tools::start`], for a configuration that replaces this one: a server with an unchanged configuration keeps its
    /// connection and belongs to both. The other servers of `self` run until it is dropped.
    #[must_use]
    pub fn restart(&self, configs: &[McpServerConfig]) -> Self {
        Self::begin(configs, Some(self))
    }

    fn begin(configs: &[McpServerConfig], before: Option<&Self>) -> Self {
        let mut ids = HashSet::new();
        let servers = configs.iter().map(|config| {
            let problem = match config.check() {
                Ok(()) if !ids.insert(config.id.as_str()) => Some("another MCP server has the same id".to_owned()),
                checked => checked.err(),
            };
            let same = |started: &&Arc<SharedServer>| problem.is_none() && started.server.config == *config;
            let running = before.and_then(|before| before.servers.iter().find(same));
            running.map_or_else(|| Arc::new(SharedServer::new(config, problem.clone())), Arc::clone)
        });
        Self { servers: servers.collect() }
    }

    fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().map(|started| &*started.server)
    }

    /// Waits until each server has listed its tools or failed once, but not longer than `within`.
    pub async fn ready(&self, within: Duration) {
        let settled = join_all(self.servers().map(Server::settled));
        // Servers that are not ready by then become ready later.
        let _ = timeout(within, settled).await;
    }

    /// The known tools, by name. The last list of an unreachable server stays.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Tool>> {
        let mut tools: Vec<_> = self.servers().flat_map(|server| server.tools().values().cloned().collect::<Vec<_>>()).collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        tools
    }

    /// The tool of this full name, if its server offers it now.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<Tool>> {
        self.find(name).map(|(_, tool)| tool)
    }

    fn find(&self, name: &str) -> Option<(&Server, Arc<Tool>)> {
        let (id, _) = name.split_once("__")?;
        // Of two servers with one id only the first was started.
        let server = self.servers().find(|server| server.config.id == id)?;
        Some((server, server.tools().get(name)?.clone()))
    }

    /// Calls a tool. The parameters are checked against its schema first. Dropping the future notifies the server.
    ///
    /// # Errors
    /// The call could not be made or finished; the category is in `details.code` (see the [module](self)).
    /// A tool that ran and reports a failure is a [`ToolResult`] with `is_error`.
    pub async fn call(&self, name: &str, parameters: Value, options: CallOptions<'_>) -> Result<ToolResult, ApiError> {
        let (server, tool) = self.find(name).ok_or_else(|| failure::not_found(name))?;
        call::call(server, &tool, parameters, options).await
    }

    /// The reports on all servers, in the order of the configuration.
    #[must_use]
    pub fn reports(&self) -> Vec<McpServerReport> {
        self.servers().map(Server::report).collect()
    }

    /// Ends all servers: their input is closed, then they receive a signal to end, then they are killed, each with its
    /// whole process group. Returns within about ten seconds. Open calls fail.
    pub async fn shutdown(&self) {
        let mut supervisors = Vec::new();
        for started in &*self.servers {
            started.stop.cancel();
            started.server.permits.close();
            supervisors.extend(started.supervisor.lock().take());
        }
        let aborts: Vec<_> = supervisors.iter().map(JoinHandle::abort_handle).collect();
        if timeout(SHUTDOWN_TIMEOUT, join_all(supervisors)).await.is_err() {
            // Dropping a supervisor kills its process.
            aborts.iter().for_each(tokio::task::AbortHandle::abort);
        }
    }
}
