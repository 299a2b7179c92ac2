//! Codex by its own protocol: `codex app-server`, JSON-RPC, one message a line.

mod items;
mod requests;
mod schema;

use std::time::Duration;

use agent_host_protocol::context::Input;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};

use self::schema::{
    AccountState, Delta, Initialized, Item, ItemState, OpenThread, Plan, TokenUsage, Tokens, TurnProblem, TurnState,
};
use crate::{
    acp_schema::{Content, Implementation, PlanEntry, Update},
    agent_run::{AgentRun, Inputs, TurnEnd},
    client::{CANCEL_GRACE, Introduction, Login, RpcClient, end_of, introduction, streams},
    failure::{RunFailure, TurnError, no_login},
    process::{AgentProcess, ReadBounds},
    projection::{MCP_SERVER, MCP_TOKEN, plain_text},
    results::Results,
    rpc::{CallError, Connection, Message, read_answer},
    session,
    stop::{Stop, StopFlag},
    terminal::Terminals,
    turn::Turn,
};

/// Variables of a key by which a harness logs in, the first that is there.
const KEYS: [&str; 2] = ["OPENAI_API_KEY", "CODEX_API_KEY"];

/// Arguments after those of the command: a login by key is kept in memory, not in the home.
pub(crate) const ARGUMENTS: [&str; 2] = ["-c", "cli_auth_credentials_store=\"ephemeral\""];

/// The conversation with one process of Codex.
struct Client<'a> {
    frame: &'a AgentRun,
    results: &'a mut Results,
    connection: Connection,
    turn: Turn,
    jobs: JoinSet<()>,
    thread: String,
    /// The turn that is answered; empty before its number is known.
    turn_id: String,
    /// False outside of a turn.
    is_recording: bool,
    /// True if the message that is open has come in pieces.
    has_pieces: bool,
    /// The end of the turn.
    ended: Option<schema::Turn>,
    /// The last error that Codex does not get over by itself.
    problem: Option<TurnProblem>,
    usage: Usage,
    /// Messages that are being steered in, by the number of the request.
    steering: Vec<(u64, Input)>,
    /// Messages that came too late for the turn.
    late: Vec<Input>,
}

/// Tokens of a run. Codex counts those of the whole thread.
#[derive(Default)]
struct Usage {
    before: Option<Tokens>,
    total: Tokens,
}

/// Has Codex answer the input of the run.
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
        jobs: JoinSet::new(),
        thread: String::new(),
        turn_id: String::new(),
        is_recording: false,
        has_pieces: false,
        ended: None,
        problem: None,
        usage: Usage::default(),
        steering: Vec::new(),
        late: Vec::new(),
    };
    let outcome = client.answer(inputs).await;
    client.turn.end(client.results).await;
    client.connection.feed.report_garbage(client.results).await;
    drop(client);
    end_of(process, outcome, |error| RunFailure::Agent(error.to_string())).await
}

/// Starts the protocol and nothing more: version and login of Codex. `has_key` says that the harness has a key to log in with.
pub(crate) async fn probe(
    process: &mut AgentProcess,
    bounds: ReadBounds,
    patience: Duration,
    has_key: bool,
) -> Result<Introduction, RunFailure> {
    let (stdin, stdout) = streams(process)?;
    let mut connection = Connection::new(stdin, stdout, bounds, StopFlag::default());
    let examination = async {
        let result = connection.call("initialize", initialize()).await?;
        let agent = implementation(&read_answer("initialize", result).map_err(CallError::Rpc)?);
        connection.writer.notify("initialized", Value::Null).await;
        let account = connection.call("account/read", json!({ "refreshToken": false })).await?;
        let account: AccountState = read_answer("account/read", account).map_err(CallError::Rpc)?;
        let login = if is_logged_in(&account) || has_key { Login::Yes } else { Login::No };
        Ok(Introduction { agent, resumes: true, mcp: true, login, login_problem: None })
    };
    introduction(process, patience, examination).await
}

/// True if the environment of a harness has a key to log in with.
pub(crate) fn has_key(env: &std::collections::BTreeMap<String, String>) -> bool {
    key(env).is_some()
}

fn key(env: &std::collections::BTreeMap<String, String>) -> Option<&str> {
    KEYS.iter().find_map(|name| env.get(*name)).map(String::as_str).filter(|key| !key.is_empty())
}

fn initialize() -> Value {
    let info = json!({ "name": "agent-host", "title": "Agent Host", "version": env!("CARGO_PKG_VERSION") });
    json!({ "clientInfo": info, "capabilities": null })
}

/// The version is in the user agent, as `NAME/VERSION (…)`.
fn implementation(agent: &Initialized) -> Implementation {
    let version = agent.user_agent.split_once('/').and_then(|(_, rest)| rest.split_whitespace().next());
    Implementation { name: "codex".to_owned(), version: version.unwrap_or_default().to_owned() }
}

/// A provider of models of the operator's own needs no login at OpenAI.
fn is_logged_in(account: &AccountState) -> bool {
    account.account.is_some() || !account.requires_openai_auth
}

fn text_input(text: &str) -> Value {
    json!([{ "type": "text", "text": text, "text_elements": [] }])
}

fn input_text(frame: &AgentRun, inputs: &[Input]) -> String {
    let blocks: Vec<Value> = inputs.iter().flat_map(|input| frame.projection.text_blocks(input)).collect();
    plain_text(&blocks)
}

impl Client<'_> {
    async fn answer(&mut self, mut inputs: Option<Inputs>) -> Result<TurnEnd, CallError> {
        let result = self.call_in_time("initialize", initialize()).await?;
        let info = implementation(&read_answer("initialize", result).map_err(CallError::Rpc)?);
        self.connection.writer.notify("initialized", Value::Null).await;
        self.log_in().await?;
        self.open_thread(&info).await?;
        let mut prompt = plain_text(&self.frame.projection.prompt(&self.frame.context.input));
        loop {
            self.answer_turn(&prompt, &mut inputs).await?;
            self.turn.end(self.results).await;
            self.results.end_message().await;
            let mut more = std::mem::take(&mut self.late);
            if let Some(inputs) = &mut inputs {
                more.extend(inputs.take().await);
            }
            if more.is_empty() {
                return Ok(TurnEnd { finish_reason: "stop".to_owned(), usage: self.usage.data() });
            }
            prompt = input_text(self.frame, &more);
            inputs = inputs.map(Inputs::again);
        }
    }

    /// Logs in by the key of the harness, where Codex wants a login.
    async fn log_in(&mut self) -> Result<(), CallError> {
        let result = self.call_in_time("account/read", json!({ "refreshToken": false })).await?;
        if is_logged_in(&read_answer("account/read", result).map_err(CallError::Rpc)?) {
            return Ok(());
        }
        let Some(key) = key(&self.frame.plan.env) else {
            return Err(no_login(&self.frame.config, "codex has no account").into());
        };
        match self.call_in_time("account/login/start", json!({ "type": "apiKey", "apiKey": key })).await {
            Err(CallError::Rpc(error)) => Err(no_login(&self.frame.config, &error.to_string()).into()),
            other => other.map(drop),
        }
    }

    /// The configuration of a thread. What the operator says in `command` counts before what a harness has by default.
    fn thread_params(&self) -> Value {
        let says = |key: &str| self.frame.plan.launch.args.iter().any(|argument| argument.contains(key));
        let mut params = json!({ "cwd": self.frame.workspace.dir });
        if let Some(params) = params.as_object_mut() {
            if !says("approval_policy") {
                params.insert("approvalPolicy".to_owned(), json!("untrusted"));
            }
            if !says("sandbox_mode") {
                // Codex cannot make a sandbox of its own within that of the harness.
                let sandbox = if self.frame.enclosure.confines() { "danger-full-access" } else { "workspace-write" };
                params.insert("sandbox".to_owned(), json!(sandbox));
            }
            if let Some(mcp) = &self.frame.mcp {
                let server = json!({ "url": mcp.url, "bearer_token_env_var": MCP_TOKEN });
                params.insert("config".to_owned(), json!({ "mcp_servers": { MCP_SERVER: server } }));
            }
        }
        params
    }

    /// Opens the thread of the conversation, or a new one where that cannot be.
    async fn open_thread(&mut self, info: &Implementation) -> Result<(), CallError> {
        let params = self.thread_params();
        let earlier = session::earlier(&self.frame.context, &self.frame.workspace);
        let reason = match earlier {
            Ok(earlier) => {
                let mut params = params.clone();
                if let Some(params) = params.as_object_mut() {
                    params.insert("threadId".to_owned(), json!(earlier));
                    params.insert("excludeTurns".to_owned(), json!(true));
                }
                match self.call_in_time("thread/resume", params).await {
                    Ok(_) => {
                        session::record(self.results, self.frame, &earlier, info, Ok(())).await;
                        self.thread = earlier;
                        return Ok(());
                    }
                    Err(CallError::Rpc(error)) => error.to_string(),
                    Err(error) => return Err(error),
                }
            }
            Err(reason) => reason,
        };
        let result = self.call_in_time("thread/start", params).await?;
        let OpenThread { thread } = read_answer("thread/start", result).map_err(CallError::Rpc)?;
        session::record(self.results, self.frame, &thread.id, info, Err(reason)).await;
        self.thread = thread.id;
        Ok(())
    }

    /// Has Codex answer one prompt. Messages that arrive meanwhile are steered into the turn.
    async fn answer_turn(&mut self, prompt: &str, inputs: &mut Option<Inputs>) -> Result<(), CallError> {
        self.is_recording = true;
        (self.ended, self.problem) = (None, None);
        let outcome = self.turn_with(prompt, inputs).await;
        if let Err(CallError::Turn(TurnError::Stopped(stop))) = outcome {
            let turn = json!({ "threadId": self.thread, "turnId": self.turn_id });
            let id = self.connection.request("turn/interrupt", turn).await;
            if stop == Stop::Cancelled {
                // What it still says belongs to the record.
                let _ = timeout(CANCEL_GRACE, self.until_ended_in_spite_of_stop(id)).await;
            }
        }
        self.is_recording = false;
        self.turn_id = String::new();
        outcome?;
        let Some(turn) = self.ended.take() else { return Ok(()) };
        if turn.status != "failed" {
            return Ok(());
        }
        let problem = turn.error.or_else(|| self.problem.take());
        let (info, message) = problem.map_or((None, "the turn failed".to_owned()), |problem| {
            let more = problem.additional_details.map(|more| format!(": {more}")).unwrap_or_default();
            (problem.codex_error_info, format!("{}{more}", problem.message))
        });
        if info.is_some_and(|info| info == "unauthorized") {
            return Err(no_login(&self.frame.config, &message).into());
        }
        Err(RunFailure::Agent(message).into())
    }

    async fn turn_with(&mut self, prompt: &str, inputs: &mut Option<Inputs>) -> Result<(), CallError> {
        let params = json!({ "threadId": self.thread, "input": text_input(prompt) });
        let id = self.connection.request("turn/start", params).await;
        let result = self.response(id).await?;
        let TurnState { turn } = read_answer("turn/start", result).map_err(CallError::Rpc)?;
        self.turn_id = turn.id;
        while self.ended.is_none() || !self.steering.is_empty() {
            let steered = async {
                match inputs {
                    Some(inputs) => inputs.next().await,
                    None => None,
                }
            };
            tokio::select! {
                message = self.next_message() => {
                    self.handle(message?, 0).await?;
                }
                Some(input) = steered => self.steer(input).await,
            }
        }
        Ok(())
    }

    async fn steer(&mut self, input: Input) {
        let text = input_text(self.frame, std::slice::from_ref(&input));
        let params = json!({ "threadId": self.thread, "expectedTurnId": self.turn_id, "input": text_input(&text) });
        let id = self.connection.request("turn/steer", params).await;
        self.steering.push((id, input));
    }

    async fn until_ended_in_spite_of_stop(&mut self, id: u64) -> Result<(), CallError> {
        self.response_in_spite_of_stop(id).await?;
        while self.ended.is_none() {
            let message = self.connection.next().await?;
            self.handle(message, 0).await?;
        }
        Ok(())
    }

    async fn record(&mut self, method: &str, params: Value) {
        // Threads of other agents that Codex starts are its own matter.
        let thread = params.get("threadId").and_then(Value::as_str);
        if !self.is_recording || thread.is_some_and(|thread| thread != self.thread) {
            return;
        }
        match method {
            "item/agentMessage/delta" | "item/plan/delta" => {
                if let Ok(Delta { delta }) = serde_json::from_value(params) {
                    self.has_pieces = true;
                    self.results.text(&delta).await;
                }
            }
            "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => {
                if let Ok(Delta { delta }) = serde_json::from_value(params) {
                    self.results.reasoning(&delta).await;
                }
            }
            "item/started" | "item/completed" => match serde_json::from_value::<ItemState>(params) {
                Ok(ItemState { item }) => self.item(item, method == "item/completed").await,
                Err(error) => tracing::debug!(%error, "an item of an agent cannot be read"),
            },
            "turn/plan/updated" => {
                if let Ok(Plan { plan }) = serde_json::from_value(params) {
                    let status = |status: &str| if status == "inProgress" { "in_progress" } else { status }.to_owned();
                    let entries = plan.into_iter().map(|it| PlanEntry { content: it.step, status: status(&it.status) }).collect();
                    self.update(Update::Plan { entries }).await;
                }
            }
            "thread/tokenUsage/updated" => {
                if let Ok(TokenUsage { token_usage }) = serde_json::from_value(params) {
                    self.usage.count(token_usage.total, token_usage.last);
                    let (used, size) = (token_usage.last.total_tokens, token_usage.model_context_window.unwrap_or_default());
                    self.update(Update::Usage { used, size, cost: None }).await;
                }
            }
            "error" if params.get("willRetry") != Some(&Value::Bool(true)) => {
                self.problem = params.get("error").cloned().and_then(|error| serde_json::from_value(error).ok());
            }
            "turn/completed" => {
                if let Ok(TurnState { turn }) = serde_json::from_value(params) {
                    self.ended = Some(turn);
                }
            }
            _ => {}
        }
    }

    async fn item(&mut self, item: Item, has_ended: bool) {
        if let Item::AgentMessage { text } = item {
            if has_ended {
                let had_pieces = std::mem::take(&mut self.has_pieces);
                if !had_pieces {
                    self.update(Update::AgentMessageChunk { content: Content::Text { text } }).await;
                }
                self.results.end_message().await;
            }
            return;
        }
        if let Some(call) = items::tool_call(item, has_ended) {
            self.update(Update::ToolCall(call)).await;
        }
    }

    async fn update(&mut self, update: Update) {
        self.turn.record(update, self.results, &Terminals::default()).await;
    }
}

impl RpcClient for Client<'_> {
    fn parts(&mut self) -> (&mut Connection, &mut JoinSet<()>, &AgentRun) {
        (&mut self.connection, &mut self.jobs, self.frame)
    }

    async fn handle(&mut self, message: Option<Message>, awaited: u64) -> Result<Option<Value>, CallError> {
        match message {
            Some(Message::Response { id, result }) if id == awaited => return result.map(Some).map_err(CallError::Rpc),
            Some(Message::Response { id, result }) => {
                let place = self.steering.iter().position(|(steered, _)| *steered == id);
                let input = place.map(|place| self.steering.swap_remove(place).1);
                // A turn that has ended, or takes no more, leaves the message to the next.
                self.late.extend(input.filter(|_| result.is_err()));
            }
            Some(Message::Notification { method, params }) => self.record(&method, params).await,
            Some(Message::Request { id, method, params }) => self.answer_request(id, &method, params).await,
            None => return Err(CallError::Gone),
        }
        Ok(None)
    }
}

impl Usage {
    fn count(&mut self, total: Tokens, last: Tokens) {
        let before = |total: u64, last: u64| total.saturating_sub(last);
        self.before.get_or_insert(Tokens {
            total_tokens: before(total.total_tokens, last.total_tokens),
            input_tokens: before(total.input_tokens, last.input_tokens),
            cached_input_tokens: before(total.cached_input_tokens, last.cached_input_tokens),
            output_tokens: before(total.output_tokens, last.output_tokens),
            reasoning_output_tokens: before(total.reasoning_output_tokens, last.reasoning_output_tokens),
        });
        self.total = total;
    }

    /// The usage of the run; `None` if Codex did not say any.
    fn data(&self) -> Option<Value> {
        let (before, total) = (self.before?, self.total);
        Some(json!({
            "input": total.input_tokens.saturating_sub(before.input_tokens),
            "output": total.output_tokens.saturating_sub(before.output_tokens),
            "cached_input": total.cached_input_tokens.saturating_sub(before.cached_input_tokens),
            "reasoning": total.reasoning_output_tokens.saturating_sub(before.reasoning_output_tokens),
        }))
    }
}
