//! Agents that speak the Agent Client Protocol (version 1): one JSON object a line on standard input and output.

mod connection;
mod requests;
mod terminal;
mod updates;

use std::time::Duration;

use agent_host_protocol::context::Input;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};

pub(crate) use self::connection::RpcError;
use self::{
    connection::{Connection, Message},
    terminal::Terminals,
    updates::Turn,
};
use crate::{
    acp_schema::{AUTH_REQUIRED, Initialized, NewSession, PromptEnd, SessionNotification, VERSION},
    agent_run::{AgentRun, Inputs, TurnEnd},
    failure::{MAX_REASON, RunFailure, TurnError},
    process::{AgentProcess, ReadBounds},
    results::{Results, cut},
    session,
    stop::{Stop, StopFlag},
};

/// Time for an agent to end its turn after it was cancelled. `queue.cancel_grace_ms` of a binding is 2 s by default.
const CANCEL_GRACE: Duration = Duration::from_millis(700);
/// Time for the exit status of an agent whose output has ended.
const LAST_STATUS: Duration = Duration::from_secs(2);

/// The reason why a request to the agent has no result.
enum CallError {
    /// The agent refused.
    Rpc(RpcError),
    /// The agent's output has ended.
    Gone,
    Turn(TurnError),
}

impl From<TurnError> for CallError {
    fn from(error: TurnError) -> Self {
        Self::Turn(error)
    }
}

/// The conversation with one process of an agent.
struct Client<'a> {
    frame: &'a AgentRun,
    results: &'a mut Results,
    connection: Connection,
    turn: Turn,
    terminals: Terminals,
    /// Requests of the agent that are being answered.
    jobs: JoinSet<()>,
    /// False while the agent repeats an earlier turn.
    is_recording: bool,
}

/// Has the agent answer the input of the run.
pub(crate) async fn run(
    frame: &mut AgentRun,
    process: &mut AgentProcess,
    results: &mut Results,
    bounds: ReadBounds,
) -> Result<TurnEnd, TurnError> {
    let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
        return Err(RunFailure::Unavailable("the process has no standard streams".to_owned()).into());
    };
    let inputs = frame.inputs.take();
    let mut client = Client {
        frame,
        results,
        connection: Connection::new(stdin, stdout, bounds, frame.stop.clone()),
        turn: Turn::default(),
        terminals: Terminals::default(),
        jobs: JoinSet::new(),
        is_recording: false,
    };
    let outcome = client.answer(inputs).await;
    client.turn.end(client.results).await;
    let garbage = client.connection.garbage();
    if garbage > 0 {
        let data = json!({ "lines": garbage, "detail": "lines on standard output that are no messages were passed over" });
        client.results.add("harness.garbage", data, None).await;
    }
    drop(client);
    match outcome {
        Ok(end) => Ok(end),
        Err(CallError::Turn(error)) => Err(error),
        Err(CallError::Rpc(error)) => Err(failure_of(frame, error).into()),
        Err(CallError::Gone) => Err(gone(process).await.into()),
    }
}

/// Starts the protocol and nothing more: name and version of the agent.
pub(crate) async fn probe(process: &mut AgentProcess, bounds: ReadBounds, patience: Duration) -> Result<Initialized, RunFailure> {
    let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
        return Err(RunFailure::Unavailable("the process has no standard streams".to_owned()));
    };
    let mut connection = Connection::new(stdin, stdout, bounds, StopFlag::default());
    let answered = async {
        let id = connection.request("initialize", initialize()).await;
        loop {
            match connection.next().await {
                Some(Message::Response { id: of, result }) if of == id => return Some(result),
                Some(_) => {}
                None => return None,
            }
        }
    };
    match timeout(patience, answered).await {
        Ok(Some(Ok(result))) => parse("initialize", result).map_err(|error| RunFailure::Protocol(error.message)),
        Ok(Some(Err(error))) => Err(RunFailure::Agent(error.to_string())),
        Ok(None) => Err(gone(process).await),
        Err(_) => Err(RunFailure::Unavailable(slow(patience))),
    }
}

fn initialize() -> Value {
    json!({
        "protocolVersion": VERSION,
        "clientCapabilities": { "fs": { "readTextFile": true, "writeTextFile": true }, "terminal": true },
        "clientInfo": { "name": "agent-host", "title": "Agent Host", "version": env!("CARGO_PKG_VERSION") },
    })
}

fn slow(patience: Duration) -> String {
    format!(
        "the agent did not answer within {} ms: start it in a terminal to see what it waits for, or raise `limits.start_timeout_ms` of \
         its harness",
        patience.as_millis()
    )
}

/// The failure of a run whose agent is gone.
async fn gone(process: &mut AgentProcess) -> RunFailure {
    let ended = timeout(LAST_STATUS, process.wait()).await;
    let errors = process.errors().await;
    match ended {
        Ok(Ok(ended)) if ended.was_not_started() => RunFailure::Unavailable(format!("the agent cannot be started: {errors}")),
        Ok(Ok(ended)) if errors.is_empty() => RunFailure::Crashed(ended.to_string()),
        Ok(Ok(ended)) => RunFailure::Crashed(format!("{ended}: {errors}")),
        _ => RunFailure::Crashed(format!("its output has ended: {errors}")),
    }
}

fn failure_of(frame: &AgentRun, error: RpcError) -> RunFailure {
    let text = error.to_string();
    if error.code == AUTH_REQUIRED {
        return RunFailure::Unavailable(format!(
            "nobody is logged in: give the harness `{}` a key in `env`, as its agent documents it ({text})",
            frame.config.id
        ));
    }
    RunFailure::Agent(text)
}

fn parse<T: DeserializeOwned>(method: &str, result: Value) -> Result<T, RpcError> {
    serde_json::from_value(result)
        .map_err(|error| RpcError::internal(format!("the answer to `{method}` cannot be read: {error}")))
}

impl Client<'_> {
    async fn answer(&mut self, inputs: Option<Inputs>) -> Result<TurnEnd, CallError> {
        let agent = self.initialize().await?;
        let session_id = self.open_session(&agent).await?;
        let mut prompt = self.frame.projection.prompt(&self.frame.context.input);
        let mut inputs = inputs;
        loop {
            self.is_recording = true;
            let end = self.prompt(&session_id, prompt).await?;
            self.is_recording = false;
            self.turn.end(self.results).await;
            self.results.end_message().await;
            // Taken from the host so far, and not answered yet.
            let more: Vec<Input> = match &mut inputs {
                Some(inputs) => inputs.take().await,
                None => Vec::new(),
            };
            if more.is_empty() {
                return Ok(TurnEnd { finish_reason: finish_reason(&end.stop_reason), usage: usage(&end) });
            }
            prompt = more.iter().flat_map(|input| self.frame.projection.text_blocks(input)).collect();
            inputs = inputs.map(Inputs::again);
        }
    }

    async fn initialize(&mut self) -> Result<Initialized, CallError> {
        let result = self.call_in_time("initialize", initialize()).await?;
        let agent: Initialized = parse("initialize", result).map_err(CallError::Rpc)?;
        if agent.protocol_version != VERSION {
            let problem = format!("it speaks version {} of ACP, and the host version {VERSION}", agent.protocol_version);
            return Err(TurnError::from(RunFailure::Protocol(problem)).into());
        }
        Ok(agent)
    }

    /// Opens the session of the conversation, or a new one where that cannot be.
    async fn open_session(&mut self, agent: &Initialized) -> Result<String, CallError> {
        let capabilities = &agent.agent_capabilities;
        let mut servers = Vec::new();
        if let Some(mcp) = self.frame.mcp.as_ref().filter(|_| capabilities.mcp_capabilities.http) {
            let authorization = json!({ "name": "Authorization", "value": format!("Bearer {}", mcp.token) });
            let url = format!("{}{}", self.frame.run.base_url(), mcp.path);
            servers.push(json!({ "type": "http", "name": "agent-host", "url": url, "headers": [authorization] }));
        }
        let place = json!({ "cwd": self.frame.workspace.dir, "mcpServers": servers });
        let earlier = session::earlier(&self.frame.context, &self.frame.workspace);
        let method = match (capabilities.session_capabilities.resume.is_some(), capabilities.load_session) {
            (true, _) => Some("session/resume"),
            (false, true) => Some("session/load"),
            (false, false) => None,
        };
        let mut not_resumed = earlier.as_ref().err().cloned();
        if let Ok(earlier) = &earlier {
            match method {
                None => not_resumed = Some("the agent cannot load sessions".to_owned()),
                Some(method) => {
                    let mut params = place.clone();
                    if let Some(params) = params.as_object_mut() {
                        params.insert("sessionId".to_owned(), json!(earlier));
                    }
                    match self.call_in_time(method, params).await {
                        Ok(_) => {
                            session::record(self.results, self.frame, earlier, agent, Ok(())).await;
                            return Ok(earlier.clone());
                        }
                        Err(CallError::Rpc(error)) => not_resumed = Some(error.to_string()),
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        let result = self.call_in_time("session/new", place).await?;
        let NewSession { session_id } = parse("session/new", result).map_err(CallError::Rpc)?;
        session::record(self.results, self.frame, &session_id, agent, Err(not_resumed.unwrap_or_default())).await;
        Ok(session_id)
    }

    async fn prompt(&mut self, session_id: &str, prompt: Vec<Value>) -> Result<PromptEnd, CallError> {
        let id = self.connection.request("session/prompt", json!({ "sessionId": session_id, "prompt": prompt })).await;
        let outcome = self.response(id).await;
        if let Err(CallError::Turn(TurnError::Stopped(stop))) = outcome {
            self.connection.writer.notify("session/cancel", json!({ "sessionId": session_id })).await;
            if stop == Stop::Cancelled {
                // What it still says belongs to the record.
                let _ = timeout(CANCEL_GRACE, self.response_in_spite_of_stop(id)).await;
            }
        }
        let end: PromptEnd = parse("session/prompt", outcome?).map_err(CallError::Rpc)?;
        Ok(end)
    }

    /// A request that is answered within the time for a start.
    async fn call_in_time(&mut self, method: &str, params: Value) -> Result<Value, CallError> {
        let patience = Duration::from_millis(self.frame.config.limits.start_timeout_ms);
        let response = async {
            let id = self.connection.request(method, params).await;
            self.response(id).await
        };
        match timeout(patience, response).await {
            Ok(outcome) => outcome,
            Err(_) => Err(TurnError::from(RunFailure::Unavailable(slow(patience))).into()),
        }
    }

    /// Waits for a response, and answers the agent meanwhile.
    async fn response(&mut self, id: u64) -> Result<Value, CallError> {
        loop {
            tokio::select! {
                message = self.connection.next() => {
                    if let Some(result) = self.handle(message, id).await? {
                        return Ok(result);
                    }
                }
                stop = self.frame.stop.stopped() => return Err(TurnError::Stopped(stop).into()),
                Some(_) = self.jobs.join_next(), if !self.jobs.is_empty() => {}
            }
        }
    }

    async fn response_in_spite_of_stop(&mut self, id: u64) -> Result<Value, CallError> {
        loop {
            let message = self.connection.next().await;
            if let Some(result) = self.handle(message, id).await? {
                return Ok(result);
            }
        }
    }

    /// Does what a message asks for. Returns the result of the response `awaited`, if the message is that.
    async fn handle(&mut self, message: Option<Message>, awaited: u64) -> Result<Option<Value>, CallError> {
        match message {
            Some(Message::Response { id, result }) if id == awaited => return result.map(Some).map_err(CallError::Rpc),
            Some(Message::Response { .. }) => {}
            Some(Message::Notification { method, params }) if method == "session/update" && self.is_recording => {
                match serde_json::from_value::<SessionNotification>(params) {
                    Ok(notification) => self.turn.record(notification.update, self.results, &self.terminals).await,
                    Err(error) => tracing::debug!(%error, "an update of an agent cannot be read"),
                }
            }
            Some(Message::Notification { .. }) => {}
            Some(Message::Request { id, method, params }) => self.answer_request(id, &method, params).await,
            Some(Message::TooMuch) => return Err(TurnError::from(RunFailure::OutputLimit).into()),
            Some(Message::Garbage) => {
                let problem = "its lines are no JSON-RPC messages; `command` of the harness must start it in its ACP mode";
                return Err(TurnError::from(RunFailure::Protocol(problem.to_owned())).into());
            }
            None => return Err(CallError::Gone),
        }
        Ok(None)
    }
}

/// The finish reason of the contract.
fn finish_reason(stop_reason: &str) -> String {
    match stop_reason {
        "end_turn" | "" | "cancelled" => "stop",
        "max_tokens" | "max_turn_requests" => "length",
        other => cut(other, MAX_REASON),
    }
    .to_owned()
}

fn usage(end: &PromptEnd) -> Option<Value> {
    let usage = end.usage.as_ref()?;
    let mut data = json!({ "input": usage.input_tokens, "output": usage.output_tokens });
    if let Some(data) = data.as_object_mut() {
        data.extend(usage.cached_read_tokens.map(|tokens| ("cached_input".to_owned(), json!(tokens))));
        data.extend(usage.thought_tokens.map(|tokens| ("reasoning".to_owned(), json!(tokens))));
    }
    Some(data)
}
