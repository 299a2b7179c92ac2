//! The application state of every request.

use std::{net::SocketAddr, ops::Deref, sync::Arc};

use agent_host_config::Config;
use agent_host_runs::{Host, LedgerError, Records, log_context::LogContext};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::{
    agui::shared::AguiState,
    http::{Problem, ProblemCode, metrics::HttpMetrics},
    mcp::McpState,
};

/// One pointer to the values that all requests share.
#[derive(Clone)]
pub(crate) struct App(Arc<SharedApp>);

/// The parts that all requests share.
pub(crate) struct SharedApp {
    pub(crate) host: Host,
    pub(crate) http: HttpMetrics,
    /// Fires when the server goes down: streams end, and requests that wait answer at once.
    pub(crate) closing: CancellationToken,
    /// Address of the server.
    pub(crate) local_addr: SocketAddr,
    pub(crate) agui: Arc<AguiState>,
    pub(crate) mcp: McpState,
    /// One permit for each open stream of events.
    subscribers: Arc<Semaphore>,
}

impl Deref for App {
    type Target = SharedApp;

    fn deref(&self) -> &SharedApp {
        &self.0
    }
}

/// The parts that all applications of a process share.
#[derive(Clone)]
pub(crate) struct ProcessShares {
    http: HttpMetrics,
    subscribers: Arc<Semaphore>,
}

impl ProcessShares {
    pub(crate) fn new(config: &Config) -> Self {
        let subscribers = config.limits.http_subscribers.min(Semaphore::MAX_PERMITS);
        Self { http: HttpMetrics::default(), subscribers: Arc::new(Semaphore::new(subscribers)) }
    }
}

impl App {
    pub(crate) fn new(host: Host, local_addr: SocketAddr, closing: CancellationToken, shares: ProcessShares) -> Self {
        let ProcessShares { http, subscribers } = shares;
        let (agui, mcp) = (Arc::default(), McpState::default());
        Self(Arc::new(SharedApp { host, http, closing, local_addr, agui, mcp, subscribers }))
    }

    /// A place for one stream of events, held for as long as it is open.
    pub(crate) fn subscribe(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.subscribers).try_acquire_owned().map_err(|_| {
            let limit = self.host.config().limits.http_subscribers;
            let detail = format!("{limit} streams of events are open, which is the most there may be: come back in a moment");
            Problem::new(ProblemCode::TooManyStreams, detail)
        })
    }

    /// Reads something of unknown size from the records, off the threads that serve.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Records) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, Problem> {
        let records = self.host.records();
        off_thread(move || read(&records)).await
    }
}

/// Does something that blocks, off the threads that serve.
pub(crate) async fn off_thread<T: Send + 'static, E: Into<Problem> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Problem> {
    let context = LogContext::current();
    match tokio::task::spawn_blocking(move || context.enter(work)).await {
        Ok(result) => result.map_err(Into::into),
        Err(error) => Err(Problem::internal(error)),
    }
}
