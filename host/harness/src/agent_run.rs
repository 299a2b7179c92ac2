//! Everything that one run of an agent is about.

use std::sync::Arc;

use agent_host_config::HarnessConfig;
use agent_host_protocol::context::{Input, RunContext, SteeringInput};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    enclosure::Enclosure,
    host_client::HeldRun,
    process::ProcessPlan,
    projection::{McpServer, Projection},
    stop::StopFlag,
    workspace::Workspace,
};

/// Messages that one pull takes.
const PULL: usize = 10;
/// Messages that wait for the end of the turn.
const WAITING: usize = 4 * PULL;
/// Longest wait of one pull, in ms.
const PULL_MS: u64 = 30_000;

/// One run of an agent.
pub(crate) struct AgentRun {
    pub(crate) run: Arc<HeldRun>,
    pub(crate) config: Arc<HarnessConfig>,
    pub(crate) context: RunContext,
    pub(crate) mcp: Option<McpServer>,
    pub(crate) workspace: Arc<Workspace>,
    pub(crate) projection: Projection,
    pub(crate) plan: ProcessPlan,
    /// The confinement of the agent's processes.
    pub(crate) enclosure: Enclosure,
    pub(crate) stop: StopFlag,
    /// Messages that arrive while the agent works; `None` where the run takes none.
    pub(crate) inputs: Option<Inputs>,
}

/// A turn that ended well.
pub(crate) struct TurnEnd {
    pub(crate) finish_reason: String,
    pub(crate) usage: Option<Value>,
}

/// Messages that arrive while the agent works. The pull that waits for them also learns of a cancel request at once.
pub(crate) struct Inputs {
    run: Arc<HeldRun>,
    stop: StopFlag,
    messages: mpsc::Receiver<Input>,
    pulling: JoinHandle<()>,
}

impl Inputs {
    pub(crate) fn new(run: Arc<HeldRun>, stop: StopFlag) -> Self {
        let (sender, messages) = mpsc::channel(WAITING);
        let pulling = tokio::spawn(pull(Arc::clone(&run), stop.clone(), sender));
        Self { run, stop, messages, pulling }
    }

    /// The next message; `None` where no more come. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> Option<Input> {
        self.messages.recv().await
    }

    /// The messages that have arrived. No more are taken from the host: a message that comes now becomes a run of its own.
    pub(crate) async fn take(&mut self) -> Vec<Input> {
        self.pulling.abort();
        // Ends at once: it was aborted, or had ended.
        let _ = (&mut self.pulling).await;
        let mut inputs = Vec::new();
        while let Ok(input) = self.messages.try_recv() {
            inputs.push(input);
        }
        inputs
    }

    /// Takes messages again.
    pub(crate) fn again(self) -> Self {
        Self::new(Arc::clone(&self.run), self.stop.clone())
    }
}

impl Drop for Inputs {
    fn drop(&mut self) {
        self.pulling.abort();
    }
}

async fn pull(run: Arc<HeldRun>, stop: StopFlag, sender: mpsc::Sender<Input>) {
    #[derive(Deserialize)]
    struct Pulled {
        inputs: Vec<SteeringInput>,
    }
    loop {
        // Room first: what the host has given must not be lost on the way.
        let Ok(room) = sender.reserve_many(PULL).await else { return };
        let pulled = run.call("steering.pull", &json!({ "limit": PULL, "wait_ms": PULL_MS })).await;
        let pulled = pulled.map(serde_json::from_value::<Pulled>);
        match pulled {
            Ok(Ok(Pulled { inputs })) => room.zip(inputs).for_each(|(place, SteeringInput { input, .. })| place.send(input)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "messages for a run that works cannot be read");
                return;
            }
            Err(error) => {
                stop.hear(&error);
                return;
            }
        }
    }
}
