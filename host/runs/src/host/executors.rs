//! Executors, their claims, and what they do with the runs that they hold: the facade delegates to `lifecycle`.

use std::{sync::Arc, time::Duration};

use agent_host_facts::import::Form;
use agent_host_protocol::{Run, RunId, SentResult, run::Terminal};
use futures_util::Stream;

use super::Host;
use crate::{
    calls::remote::Calls,
    lifecycle::{
        claims::{AppendOutcome, ClaimPeek, ClaimRequest, ClaimStart, ClaimedRun},
        executors::{Executor, ExecutorNews},
        registration::{ExecutorChange, Registration},
    },
    record::HostError,
};

impl Host {
    /// Claims the first run that matches, waiting at most `wait`. Returns `None` if no run came.
    ///
    /// # Errors
    /// Fails if the executor is not registered or has no free slot.
    pub async fn claim(&self, executor_id: &str, request: ClaimRequest, wait: Duration) -> Result<Option<ClaimedRun>, HostError> {
        self.0.cell.runs.claim(executor_id, request, wait).await
    }

    /// The run that [`Host::claim`] would give, after at most `wait`; it stays where it is.
    ///
    /// # Errors
    /// As [`Host::claim`].
    pub async fn peek(&self, executor_id: &str, request: ClaimRequest, wait: Duration) -> Result<ClaimPeek, HostError> {
        self.0.cell.runs.peek(executor_id, request, wait).await
    }

    /// Begins a run that was claimed; gives what its runner is given. Repeating it is harmless.
    ///
    /// # Errors
    /// Fails if the claim is not valid.
    pub async fn start_claimed(&self, run_id: RunId, token: &str) -> Result<(Arc<Run>, ClaimStart), HostError> {
        self.0.cell.runs.start_claimed(run_id, token).await
    }

    /// Makes a claim last longer; gives the run as it is.
    ///
    /// # Errors
    /// Fails if the claim is not valid.
    pub async fn renew(&self, run_id: RunId, token: &str, lease_ms: Option<u64>) -> Result<Arc<Run>, HostError> {
        self.0.cell.runs.renew(run_id, token, lease_ms).await
    }

    /// Gives a claim back: the run waits for another executor.
    ///
    /// # Errors
    /// Fails if the claim is not valid.
    pub async fn release(&self, run_id: RunId, token: &str, reason: String) -> Result<Arc<Run>, HostError> {
        self.0.cell.runs.release(run_id, token, reason).await
    }

    /// Ends a claimed run. After a retryable failure with attempts left, the run goes back to the queue instead.
    ///
    /// # Errors
    /// Fails if the claim is not valid.
    pub async fn finalize(&self, run_id: RunId, token: &str, terminal: Terminal) -> Result<Arc<Run>, HostError> {
        self.0.cell.runs.finalize(run_id, token, terminal).await
    }

    /// Appends results to a claimed run, and ends the run where `terminal` says how. `first` is the number of the first result;
    /// the executor counts from 1 in each claim. Results that the host already has are not appended again. The results are
    /// durable when this function returns.
    ///
    /// # Errors
    /// Fails if the claim is not valid, the run has not begun, a number is missing, or a result is refused. No result is
    /// appended then.
    pub async fn append(
        &self,
        run_id: RunId,
        token: &str,
        first: Option<u64>,
        results: Vec<SentResult>,
        terminal: Option<Terminal>,
    ) -> Result<AppendOutcome, HostError> {
        match terminal {
            None => self.0.cell.runs.append(run_id, token, first, results).await,
            Some(terminal) => self.0.cell.runs.append_and_finish(run_id, token, first, results, terminal).await,
        }
    }

    /// Appends native events of another framework to a claimed run, as results. `first` is the number of the first event; the
    /// executor counts from 1 in each claim. Events that the host already has are not appended again. The results are durable
    /// when this function returns.
    ///
    /// # Errors
    /// Fails as [`Host::append`] does, if an event is no JSON or too large, and if the claim appends something else.
    pub async fn append_native(
        &self,
        run_id: RunId,
        token: &str,
        form: Form,
        first: Option<u64>,
        text: &str,
    ) -> Result<AppendOutcome, HostError> {
        self.0.cell.runs.append_native(run_id, token, form, first, text).await
    }

    /// The host calls of a run, for who shows the token of its claim.
    ///
    /// # Errors
    /// Fails if the token does not belong to a claim of this run, the claim is no longer valid, or the run has not begun.
    pub fn claim_calls(&self, run_id: RunId, token: &str) -> Result<Calls, HostError> {
        self.0.cell.runs.claim_calls(run_id, token)
    }

    /// The host calls of a run, for the agent that has the token of its MCP endpoint.
    ///
    /// # Errors
    /// As [`Host::claim_calls`].
    pub fn mcp_calls(&self, run_id: RunId, token: &str) -> Result<Calls, HostError> {
        self.0.cell.runs.mcp_calls(run_id, token)
    }

    /// Registers an executor, which sees the runs of this workspace, or of all; gives its credential, once.
    ///
    /// # Errors
    /// Fails if the registration is invalid or cannot be written.
    pub async fn register_executor(
        &self,
        registration: Registration,
        workspace: Option<String>,
    ) -> Result<(Executor, String), HostError> {
        self.0.cell.runs.register_executor(registration, workspace).await
    }

    /// Registers an executor of no workspace under the credential that another partition has given. Repeating it is harmless.
    ///
    /// # Errors
    /// Fails if the registration is invalid, the credential is that of nobody or of somebody else, or it cannot be written.
    pub async fn register_executor_as(&self, registration: Registration, credential: &str) -> Result<Executor, HostError> {
        self.0.cell.runs.register_executor_as(registration, credential).await
    }

    /// An executor that is registered.
    ///
    /// # Errors
    /// Fails if no executor has this id.
    pub fn executor(&self, id: &str) -> Result<Executor, HostError> {
        self.0.cell.runs.executor(id)
    }

    /// All registered executors, in the order of their registration.
    #[must_use]
    pub fn executors(&self) -> Vec<Executor> {
        self.0.cell.runs.executors()
    }

    /// Renews the presence of an executor and changes it, durably. Returns true with the executor if something changed.
    ///
    /// # Errors
    /// Fails if the executor is not registered, a value is invalid, or the change cannot be written.
    pub async fn heartbeat(&self, id: &str, change: ExecutorChange) -> Result<(Executor, bool), HostError> {
        self.0.cell.runs.heartbeat(id, change).await
    }

    /// An executor goes: what it holds is taken from it, and its credential is no longer good.
    ///
    /// # Errors
    /// Fails if the executor is not registered or the change cannot be written.
    pub async fn deregister_executor(&self, id: &str) -> Result<(), HostError> {
        self.0.cell.runs.deregister_executor(id).await
    }

    /// News for an executor, as they come. The answer to its next request has those that came before it listened.
    ///
    /// # Errors
    /// Fails if the executor is not registered.
    pub fn executor_news(&self, id: &str) -> Result<impl Stream<Item = ExecutorNews> + Send + 'static + use<>, HostError> {
        self.0.cell.runs.executor_news(id)
    }
}
