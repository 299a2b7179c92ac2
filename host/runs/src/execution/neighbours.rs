//! Neighbours: the other runs of a cell, as the calls of one run reach them.

use std::sync::Arc;

use agent_host_protocol::{ApiError, ErrorCode, Event, RunId, RunnerId, context::Input, grant::ConversationKey};
use agent_host_sandbox::Runner;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::sync::Notify;

use super::Execution;
use crate::record::HostError;

/// The other runs of a cell, as a run sees them.
pub(crate) trait Neighbours: Send + Sync {
    /// The runner that serves under this id.
    fn runner(&self, id: &RunnerId) -> Option<Runner>;

    /// Waits for a runner whose plugin may still be compiled at the start of the host; fails if it has not come in time.
    fn await_runner<'a>(&'a self, id: &'a RunnerId) -> BoxFuture<'a, Result<(), HostError>>;

    /// Starts a child of a run. The child is durable when this function returns. A repeated call returns the same child.
    fn start_child<'a>(
        &'a self,
        parent: &'a Arc<Execution>,
        event: &'a Event,
        request: ChildRequest,
    ) -> BoxFuture<'a, Result<RunId, ApiError>>;

    /// Records the end of a child in the record of its parent, as long as the parent is executed.
    fn report_end(&self, parent: &Arc<Execution>, child: RunId);

    /// Requests the cancellation of a run, durably.
    fn cancel(&self, run_id: RunId, reason: String) -> BoxFuture<'_, Result<(), HostError>>;

    /// Takes runs that wait in the line of a conversation and whose number `accepts` accepts: oldest first, at most
    /// `limit`.
    fn take_waiting(
        &self,
        conversation: &ConversationKey,
        limit: usize,
        accepts: &(dyn Fn(u64) -> bool + Sync),
    ) -> Vec<Box<dyn WaitingRun>>;

    /// Notified when a run joins the line of a conversation and waits. A run that joined before this call counts too.
    fn joined(&self, conversation: &ConversationKey) -> Option<Arc<Notify>>;
}

/// A run that was taken out of its line. Dropping it puts the run back into its place.
pub(crate) trait WaitingRun: Send {
    fn run_no(&self) -> u64;

    /// The event of the run becomes input of the run `taker`. Resolves when the end of the taken run is durable.
    fn give_to(self: Box<Self>, taker: RunId) -> BoxFuture<'static, ()>;
}

/// A child run that a run wants to start.
pub(crate) struct ChildRequest {
    pub(crate) runner: Runner,
    pub(crate) input: Input,
    pub(crate) objective: String,
    pub(crate) config: Map<String, Value>,
    /// Makes a repetition of the same call of the same parent harmless.
    pub(crate) idempotency_key: String,
}

/// No other runs: offline replay.
pub(crate) struct NoNeighbours;

impl Neighbours for NoNeighbours {
    fn runner(&self, _: &RunnerId) -> Option<Runner> {
        None
    }

    fn await_runner<'a>(&'a self, _: &'a RunnerId) -> BoxFuture<'a, Result<(), HostError>> {
        Box::pin(async { Ok(()) })
    }

    fn start_child<'a>(&'a self, _: &'a Arc<Execution>, _: &'a Event, _: ChildRequest) -> BoxFuture<'a, Result<RunId, ApiError>> {
        Box::pin(async { Err(ApiError::new(ErrorCode::RuntimeError, "there is no host to start runs in")) })
    }

    fn report_end(&self, _: &Arc<Execution>, _: RunId) {}

    fn cancel(&self, _: RunId, _: String) -> BoxFuture<'_, Result<(), HostError>> {
        Box::pin(async { Err(HostError::Unavailable("there is no host to cancel runs in".to_owned())) })
    }

    fn take_waiting(&self, _: &ConversationKey, _: usize, _: &(dyn Fn(u64) -> bool + Sync)) -> Vec<Box<dyn WaitingRun>> {
        Vec::new()
    }

    fn joined(&self, _: &ConversationKey) -> Option<Arc<Notify>> {
        None
    }
}
