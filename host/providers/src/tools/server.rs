//! One server: what is known of it, and the task that keeps it running.

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
    connection::{Connection, Ended},
    inbox::Inbox,
};
use crate::redact::Redactor;

/// The shortest and the longest wait before a server is started again.
const MIN_WAIT: Duration = Duration::from_millis(200);
/// See [`MIN_WAIT`].
const MAX_WAIT: Duration = Duration::from_secs(30);
/// After so long, a server counts as healthy: its next failure begins with the shortest wait again.
const HEALTHY_AFTER: Duration = Duration::from_secs(30);
/// How long further changes of a tool list are waited for before it is read again.
const SETTLE: Duration = Duration::from_millis(200);

/// Where a server is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum McpServerStatus {
    /// It is being started for the first time.
    Starting,
    /// It answers.
    Ready,
    /// It could not be started, or cannot be used as it is configured. Unless the latter, it is tried again.
    Failed,
    /// It was ready, went away, and is started again.
    Restarting,
}

/// How a server is, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct McpServerReport {
    /// Its id.
    pub id: String,
    /// Where it is in its life.
    pub status: McpServerStatus,
    /// How many tools it offers, or offered last.
    pub tools: usize,
    /// What went wrong last, without secrets. None once it is ready again, unless something is wrong with its tools.
    pub problem: Option<String>,
    /// How often it was started again.
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

/// What callers, reports and the supervisor share.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) config: McpServerConfig,
    pub(super) permits: Arc<Semaphore>,
    /// Where work that outlives a dropped call goes.
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

    /// It cannot be used as it is configured.
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
        tracing::info!(server = self.config.id, tools = tools.len(), "the tools of the server were read again");
        let mut state = self.state.lock();
        state.tools = Arc::new(tools);
        state.problem = problem;
    }

    fn away(&self, status: McpServerStatus, problem: String) {
        tracing::warn!(server = self.config.id, "the tool server is away: {problem}");
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
                    if let Ended::Because(why) = &ended {
                        self.away(McpServerStatus::Restarting, why.clone());
                    }
                    connection.close().await;
                    if matches!(ended, Ended::Stopped) {
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

    async fn watch(&self, connection: &mut Connection, stop: &CancellationToken) -> Ended {
        enum Event {
            Changed,
            Suspected,
        }
        let inbox = connection.inbox();
        loop {
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => return Ended::Stopped,
                why = connection.ended() => return Ended::Because(why),
                () = inbox.tools_changed() => Event::Changed,
                () = self.suspected.notified() => Event::Suspected,
            };
            let patience = match event {
                Event::Changed => self.config.start_timeout(),
                // It may be busy with what another call asked.
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
                () = stop.cancelled() => return Ended::Stopped,
                why = connection.ended() => return Ended::Because(why),
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
                    tracing::warn!(server = self.config.id, "the tools cannot be read again: {}", failed.problem);
                    self.state.lock().problem = Some(failed.problem);
                }
                Err(failed) => return Ended::Because(failed.problem),
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
