//! Agents that speak the Agent Client Protocol (version 1): one JSON object a line on standard input and output.

mod requests;

use std::time::Duration;

use agent_host_config::HarnessPreset;
use agent_host_protocol::context::Input;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    acp_schema::{AUTH_REQUIRED, Initialized, NewSession, PromptEnd, SessionNotification, VERSION},
    agent_run::{AgentRun, Inputs, TurnEnd},
    client::{CANCEL_GRACE, Introduction, Login, RpcClient, end_of, introduction, streams},
    failure::{RunFailure, TurnError, finish_reason, no_login},
    process::{AgentProcess, ReadBounds},
    results::Results,
    rpc::{CallError, Connection, Message, RpcError, read_answer},
    session,
    stop::{Stop, StopFlag},
    terminal::Terminals,
    turn::Turn,
};

/// Silence after which an agent that has loaded a session repeats no more of it.
const SILENCE: Duration = Duration::from_millis(250);
/// Longest time for an agent to repeat a session that it has loaded.
const MAX_HISTORY: Duration = Duration::from_secs(5);

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
    let (stdin, stdout) = streams(process)?;
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
    client.connection.feed.report_garbage(client.results).await;
    drop(client);
    end_of(process, outcome, |error| failure_of(frame, &error)).await
}

/// Starts the protocol, and asks for a session in `dir` to see whether the agent wants a login first. Nothing is sent to a model.
pub(crate) async fn probe(
    process: &mut AgentProcess,
    bounds: ReadBounds,
    patience: Duration,
    dir: &std::path::Path,
) -> Result<Introduction, RunFailure> {
    let (stdin, stdout) = streams(process)?;
    let mut connection = Connection::new(stdin, stdout, bounds, StopFlag::default());
    let examination = async {
        let agent = match connection.call("initialize", initialize()).await {
            Err(CallError::Rpc(error)) if error.code == AUTH_REQUIRED => {
                let login_problem = Some(error.to_string());
                return Ok(Introduction { login: Login::No, login_problem, ..Introduction::default() });
            }
            answer => read_answer::<Initialized>("initialize", answer?).map_err(CallError::Rpc)?,
        };
        let capabilities = &agent.agent_capabilities;
        let mut found = Introduction {
            resumes: capabilities.load_session || capabilities.session_capabilities.resume.is_some(),
            mcp: capabilities.mcp_capabilities.http,
            agent: agent.agent_info.unwrap_or_default(),
            ..Introduction::default()
        };
        let place = json!({ "cwd": dir, "mcpServers": [] });
        match connection.call("session/new", place).await {
            // An agent that knows of logins, and wants none.
            Ok(_) if !agent.auth_methods.is_empty() => found.login = Login::Yes,
            Err(CallError::Rpc(error)) if error.code == AUTH_REQUIRED => {
                found.login = Login::No;
                found.login_problem = Some(error.to_string());
            }
            // Any other refusal is a matter of the folder: it is no workspace.
            Ok(_) | Err(CallError::Rpc(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(found)
    };
    introduction(process, patience, examination).await
}

fn initialize() -> Value {
    json!({
        "protocolVersion": VERSION,
        "clientCapabilities": { "fs": { "readTextFile": true, "writeTextFile": true }, "terminal": true },
        "clientInfo": { "name": "agent-host", "title": "Agent Host", "version": env!("CARGO_PKG_VERSION") },
    })
}

fn failure_of(frame: &AgentRun, error: &RpcError) -> RunFailure {
    let text = error.to_string();
    if error.code == AUTH_REQUIRED {
        return no_login(&frame.config, &text);
    }
    RunFailure::Agent(text)
}

impl Client<'_> {
    async fn answer(&mut self, inputs: Option<Inputs>) -> Result<TurnEnd, CallError> {
        let agent = self.initialize().await?;
        let session_id = self.open_session(&agent).await?;
        // Gemini CLI asks a person before it follows a link out of the workspace, also one of its own client.
        let embeds = agent.agent_capabilities.prompt_capabilities.embedded_context;
        let input = &self.frame.context.input;
        let mut prompt = if embeds && self.frame.config.preset == HarnessPreset::Gemini {
            let page = self.frame.projection.prompt_with_page(input);
            page.map_err(|error| RunFailure::Files(format!("the page of the run cannot be read: {error}")))?
        } else {
            self.frame.projection.prompt(input)
        };
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
        let agent: Initialized = read_answer("initialize", result).map_err(CallError::Rpc)?;
        if agent.protocol_version != VERSION {
            let problem = format!("it speaks version {} of ACP, and the host version {VERSION}", agent.protocol_version);
            return Err(RunFailure::Protocol(problem).into());
        }
        Ok(agent)
    }

    /// Opens the session of the conversation, or a new one where that cannot be.
    async fn open_session(&mut self, agent: &Initialized) -> Result<String, CallError> {
        let capabilities = &agent.agent_capabilities;
        let info = agent.agent_info.clone().unwrap_or_default();
        let mut servers = Vec::new();
        if let Some(mcp) = self.frame.mcp.as_ref().filter(|_| capabilities.mcp_capabilities.http) {
            let authorization = json!({ "name": "Authorization", "value": format!("Bearer {}", mcp.token) });
            servers.push(json!({ "type": "http", "name": "agent-host", "url": mcp.url, "headers": [authorization] }));
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
                            if method == "session/load" {
                                self.pass_over_history().await?;
                            }
                            session::record(self.results, self.frame, earlier, &info, Ok(())).await;
                            return Ok(earlier.clone());
                        }
                        Err(CallError::Rpc(error)) => not_resumed = Some(error.to_string()),
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        let result = self.call_in_time("session/new", place).await?;
        let NewSession { session_id } = read_answer("session/new", result).map_err(CallError::Rpc)?;
        session::record(self.results, self.frame, &session_id, &info, Err(not_resumed.unwrap_or_default())).await;
        Ok(session_id)
    }

    /// Passes over the earlier turns that an agent repeats after it has answered that a session is loaded: Gemini CLI does not wait for
    /// them. Nothing marks their end but a silence.
    async fn pass_over_history(&mut self) -> Result<(), CallError> {
        let last = Instant::now() + MAX_HISTORY;
        loop {
            let silent = (Instant::now() + SILENCE).min(last);
            let message = tokio::select! {
                message = self.next_message() => message?,
                () = sleep_until(silent) => return Ok(()),
            };
            // No request waits for a response.
            self.handle(message, 0).await?;
        }
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
        let end: PromptEnd = read_answer("session/prompt", outcome?).map_err(CallError::Rpc)?;
        Ok(end)
    }
}

impl RpcClient for Client<'_> {
    fn parts(&mut self) -> (&mut Connection, &mut JoinSet<()>, &AgentRun) {
        (&mut self.connection, &mut self.jobs, self.frame)
    }

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
            None => return Err(CallError::Gone),
        }
        Ok(None)
    }
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
