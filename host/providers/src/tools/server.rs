//! One server: its known state, and the task that keeps it running.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_config::McpServerConfig;
use backon::{BackoffBuilder, ExponentialBuilder};
use parking_lot::Mutex;
use rmcp::{Peer, RoleClient, service::ClientLifecycleMode};
use serde::Serialize;
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::{
    Tool,
    connection::{Connection, ConnectionEnd},
    inbox::Inbox,
};
use crate::redact::Redactor;

/// The shortest and the longest wait before a server is started again.
const MIN_WAIT: Duration = Duration::from_millis(200);
/// See [`MIN_WAIT`].
const MAX_WAIT: Duration = Duration::from_secs(30);
/// After so long, a server counts as healthy: its next failure begins with the shortest wait again.
const HEALTHY_AFTER: Duration = Duration::from_secs(30);
/// Time to wait for further changes of a tool list before it is read again.
const SETTLE: Duration = Duration::from_millis(200);

/// The status of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum McpServerStatus {
    /// The server is being started for the first time.
    Starting,
    /// The server answers.
    Ready,
    /// The server could not be started, or its configuration is unusable. In the first case the start is tried again.
    Failed,
    /// The server was ready, went away, and is being restarted.
    Restarting,
}

/// The report on a server, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct McpServerReport {
    /// Id of the server.
    pub id: String,
    /// Status of the server.
    pub status: McpServerStatus,
    /// Number of present tools, or of the last known ones.
    pub tools: usize,
    /// Last problem, without secrets. `None` when the server is ready again, unless its tools have a problem.
    pub problem: Option<String>,
    /// Number of restarts.
    pub restarts: u32,
}

/// The tools of a server by full name.
pub(super) type ToolMap = BTreeMap<String, Arc<Tool>>;

#[derive(Debug)]
struct State {
    status: McpServerStatus,
    link: Option<Link>,
    tools: Arc<ToolMap>,
    problem: Option<String>,
    restarts: u32,
}

/// The way to a server that answers.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) peer: Peer<RoleClient>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) redactor: Redactor,
}

/// The values that callers, reports and the supervisor share.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) config: McpServerConfig,
    pub(super) permits: Arc<Semaphore>,
    /// Runtime for work that outlives a dropped call.
    pub(super) runtime: Handle,
    state: Mutex<State>,
    settled: watch::Sender<bool>,
    suspected: Notify,
}

impl Server {
    pub(super) fn new(config: McpServerConfig) -> Self {
        let state = State { status: McpServerStatus::Starting, link: None, tools: Arc::default(), problem: None, restarts: 0 };
        Self {
            permits: Arc::new(Semaphore::new(config.max_concurrent)),
            config,
            runtime: Handle::current(),
            state: Mutex::new(state),
            settled: watch::Sender::new(false),
            suspected: Notify::new(),
        }
    }

    pub(super) fn tools(&self) -> Arc<ToolMap> {
        self.state.lock().tools.clone()
    }

    /// The way to it, or why there is none.
    pub(super) fn link(&self) -> Result<Link, String> {
        let state = self.state.lock();
        state.link.clone().ok_or_else(|| match (&state.status, &state.problem) {
            (McpServerStatus::Starting, _) => "it is being started".into(),
            (_, Some(problem)) => problem.clone(),
            (_, None) => "it is being started again".into(),
        })
    }

    /// A call had trouble that may be the server's end: the supervisor looks after it.
    pub(super) fn suspect(&self) {
        self.suspected.notify_one();
    }

    pub(super) fn report(&self) -> McpServerReport {
        let state = self.state.lock();
        McpServerReport {
            id: self.config.id.clone(),
            status: state.status,
            tools: state.tools.len(),
            problem: state.problem.clone(),
            restarts: state.restarts,
        }
    }

    /// Waits until it was ready or has failed once.
    pub(super) async fn settled(&self) {
        let mut settled = self.settled.subscribe();
        // The sender lives in `self`.
        let _ = settled.wait_for(|settled| *settled).await;
    }

    /// Marks the configuration as unusable.
    pub(super) fn refuse(&self, problem: String) {
        self.away(McpServerStatus::Failed, problem);
    }

    fn ready(&self, connection: &Connection, tools: ToolMap, problem: Option<String>) {
        tracing::info!(server = self.config.id, tools = tools.len(), "the tool server is ready");
        {
            let mut state = self.state.lock();
            state.status = McpServerStatus::Ready;
            state.link = Some(connection.link());
            state.tools = Arc::new(tools);
            state.problem = problem;
        }
        self.settled.send_replace(true);
    }

    fn listed(&self, tools: ToolMap, problem: Option<String>) {
        tracing::info!(server = self.config.id, tools = tools.len(), "the tools of the server were listed again");
        let mut state = self.state.lock();
        state.tools = Arc::new(tools);
        state.problem = problem;
    }

    fn away(&self, status: McpServerStatus, problem: String) {
        tracing::warn!(server = self.config.id, "the tool server is not available: {problem}");
        {
            let mut state = self.state.lock();
            state.status = status;
            state.link = None;
            state.problem = Some(problem);
        }
        self.settled.send_replace(true);
    }

    /// Keeps the server running until `stop`; then ends it.
    pub(super) async fn supervise(self: Arc<Self>, stop: CancellationToken) {
        let waits = ExponentialBuilder::new().with_jitter().with_min_delay(MIN_WAIT).with_max_delay(MAX_WAIT).without_max_times();
        let mut wait = waits.build();
        let mut lifecycle = ClientLifecycleMode::Initialize;
        loop {
            let opened = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                opened = Connection::open(&self.config, lifecycle.clone()) => opened,
            };
            match opened {
                Ok((mut connection, list)) => {
                    let (began, problem) = (Instant::now(), list.problem.clone());
                    self.ready(&connection, list.tools, problem);
                    let ended = self.watch(&mut connection, &stop).await;
                    if let ConnectionEnd::Because(why) = &ended {
                        self.away(McpServerStatus::Restarting, why.clone());
                    }
                    connection.close().await;
                    if matches!(ended, ConnectionEnd::Stopped) {
                        return;
                    }
                    if began.elapsed() >= HEALTHY_AFTER {
                        wait = waits.build();
                    }
                }
                Err(failed) => {
                    self.away(McpServerStatus::Failed, failed.problem);
                    if failed.other_lifecycle {
                        lifecycle = other(&lifecycle);
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(wait.next().unwrap_or(MAX_WAIT).min(MAX_WAIT)) => {}
            }
            self.state.lock().restarts += 1;
        }
    }

    async fn watch(&self, connection: &mut Connection, stop: &CancellationToken) -> ConnectionEnd {
        enum Event {
            Changed,
            Suspected,
        }
        let inbox = connection.inbox();
        loop {
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => return ConnectionEnd::Stopped,
                why = connection.ended() => return ConnectionEnd::Because(why),
                () = inbox.tools_changed() => Event::Changed,
                () = self.suspected.notified() => Event::Suspected,
            };
            let patience = match event {
                Event::Changed => self.config.start_timeout(),
                // The server may be busy with another call.
                Event::Suspected => self.config.start_timeout().max(self.config.call_timeout()),
            };
            let lister = connection.lister();
            let list = async {
                if matches!(event, Event::Changed) {
                    sleep(SETTLE).await;
                }
                lister.list(&self.config, patience).await
            };
            let listed = tokio::select! {
                biased;
                () = stop.cancelled() => return ConnectionEnd::Stopped,
                why = connection.ended() => return ConnectionEnd::Because(why),
                listed = list => listed,
            };
            match listed {
                Ok(list) => {
                    let problem = list.problem.clone();
                    if matches!(event, Event::Changed) {
                        self.listed(list.tools, problem);
                    }
                }
                Err(failed) if failed.answered => {
                    tracing::warn!(server = self.config.id, "the tools cannot be listed again: {}", failed.problem);
                    self.state.lock().problem = Some(failed.problem);
                }
                Err(failed) => return ConnectionEnd::Because(failed.problem),
            }
        }
    }
}

/// Servers of the newest protocol say no hello; the others know nothing else.
fn other(lifecycle: &ClientLifecycleMode) -> ClientLifecycleMode {
    match lifecycle {
        ClientLifecycleMode::Initialize => {
            ClientLifecycleMode::Discover { preferred_versions: vec![rmcp::model::ProtocolVersion::V_2026_07_28] }
        }
        _ => ClientLifecycleMode::Initialize,
    }
}
