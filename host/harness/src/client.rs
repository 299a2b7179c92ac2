//! Parts of the clients of agents that all protocols share.

use std::time::Duration;

use serde_json::Value;
use tokio::{
    process::{ChildStdin, ChildStdout},
    task::JoinSet,
    time::timeout,
};

use crate::{
    acp_schema::Implementation,
    agent_run::AgentRun,
    failure::{RunFailure, TurnError},
    process::AgentProcess,
    rpc::{CallError, Connection, Message, RpcError},
    sandbox::COMPLAINT,
};

/// Time for an agent to end its turn after it was cancelled. `queue.cancel_grace_ms` of a binding is 2 s by default.
pub(crate) const CANCEL_GRACE: Duration = Duration::from_millis(700);
/// Time for the exit status of an agent whose output has ended.
const LAST_STATUS: Duration = Duration::from_secs(2);
/// Requests of an agent that are answered at one time; more are refused.
pub(crate) const MAX_JOBS: usize = 64;

/// A client of an agent that speaks JSON-RPC.
pub(crate) trait RpcClient {
    /// The connection, the requests of the agent that are being answered, and the stop of the run.
    fn parts(&mut self) -> (&mut Connection, &mut JoinSet<()>, &AgentRun);

    /// Does what a message asks for. Returns the result of the response `awaited`, if the message is that.
    async fn handle(&mut self, message: Option<Message>, awaited: u64) -> Result<Option<Value>, CallError>;

    /// A request that is answered within the time for a start.
    async fn call_in_time(&mut self, method: &str, params: Value) -> Result<Value, CallError> {
        let patience = Duration::from_millis(self.parts().2.config.limits.start_timeout_ms);
        let response = async {
            let id = self.parts().0.request(method, params).await;
            self.response(id).await
        };
        timeout(patience, response).await.unwrap_or_else(|_| Err(slow(patience).into()))
    }

    /// Waits for a response, and answers the agent meanwhile.
    async fn response(&mut self, id: u64) -> Result<Value, CallError> {
        loop {
            let message = self.next_message().await?;
            if let Some(result) = self.handle(message, id).await? {
                return Ok(result);
            }
        }
    }

    /// The next message of the agent. May be dropped and called again.
    async fn next_message(&mut self) -> Result<Option<Message>, CallError> {
        let (connection, jobs, frame) = self.parts();
        loop {
            tokio::select! {
                message = connection.next() => return Ok(message?),
                stop = frame.stop.stopped() => return Err(TurnError::Stopped(stop).into()),
                Some(_) = jobs.join_next(), if !jobs.is_empty() => {}
            }
        }
    }

    /// Waits for a response of an agent whose run is stopped.
    async fn response_in_spite_of_stop(&mut self, id: u64) -> Result<Value, CallError> {
        loop {
            let message = self.parts().0.next().await?;
            if let Some(result) = self.handle(message, id).await? {
                return Ok(result);
            }
        }
    }
}

/// True if the user of an agent is logged in, as far as the agent says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Login {
    /// Logged in, or nothing to log in to.
    Yes,
    /// The agent wants a login first.
    No,
    /// The agent does not say.
    #[default]
    Unknown,
}

/// The words of an agent about itself before its first turn.
#[derive(Debug, Default)]
pub(crate) struct Introduction {
    /// Name and version.
    pub(crate) agent: Implementation,
    /// True if the agent goes on with an earlier session.
    pub(crate) resumes: bool,
    /// True if the agent takes an MCP server by HTTP from the client.
    pub(crate) mcp: bool,
    /// State of the login.
    pub(crate) login: Login,
    /// The words of the agent about a login that is missing.
    pub(crate) login_problem: Option<String>,
}

/// The introduction of an agent by an examination that takes no longer than `patience`.
///
/// # Errors
/// Says why there is none.
pub(crate) async fn introduction(
    process: &mut AgentProcess,
    patience: Duration,
    examination: impl Future<Output = Result<Introduction, CallError>>,
) -> Result<Introduction, RunFailure> {
    match timeout(patience, examination).await {
        Ok(Ok(introduction)) => Ok(introduction),
        Ok(Err(CallError::Rpc(error))) => Err(RunFailure::Agent(error.to_string())),
        Ok(Err(CallError::Turn(TurnError::Failed(failure)))) => Err(failure),
        Ok(Err(CallError::Gone | CallError::Turn(TurnError::Stopped(_)))) => Err(gone(process).await),
        Err(_) => Err(slow(patience)),
    }
}

/// The end of a conversation with an agent, of which `refused` makes a failure where the agent refuses a request.
pub(crate) async fn end_of<T>(
    process: &mut AgentProcess,
    outcome: Result<T, CallError>,
    refused: impl FnOnce(RpcError) -> RunFailure,
) -> Result<T, TurnError> {
    match outcome {
        Ok(end) => Ok(end),
        Err(CallError::Turn(error)) => Err(error),
        Err(CallError::Rpc(error)) => Err(refused(error).into()),
        Err(CallError::Gone) => Err(gone(process).await.into()),
    }
}

/// The standard streams of an agent.
///
/// # Errors
/// Fails if they were taken before.
pub(crate) fn streams(process: &mut AgentProcess) -> Result<(ChildStdin, ChildStdout), RunFailure> {
    match (process.stdin.take(), process.stdout.take()) {
        (Some(stdin), Some(stdout)) => Ok((stdin, stdout)),
        _ => Err(RunFailure::Unavailable("the process has no standard streams".to_owned())),
    }
}

/// The failure of an agent that does not answer within `patience`.
pub(crate) fn slow(patience: Duration) -> RunFailure {
    RunFailure::Unavailable(format!(
        "the agent did not answer within {} ms: start it in a terminal to see what it waits for, or raise `limits.start_timeout_ms` of \
         its harness",
        patience.as_millis()
    ))
}

/// The failure of a run whose agent is gone.
async fn gone(process: &mut AgentProcess) -> RunFailure {
    let ended = timeout(LAST_STATUS, process.wait()).await;
    let errors = process.errors().await;
    match ended {
        Ok(Ok(ended)) if ended.was_not_started() => RunFailure::Unavailable(format!("the agent cannot be started: {errors}")),
        Ok(Ok(_)) if errors.starts_with(COMPLAINT) => RunFailure::Unavailable(format!("the agent has no sandbox: {errors}")),
        Ok(Ok(ended)) if errors.is_empty() => RunFailure::Crashed(ended.to_string()),
        Ok(Ok(ended)) => RunFailure::Crashed(format!("{ended}: {errors}")),
        _ => RunFailure::Crashed(format!("its output has ended: {errors}")),
    }
}
