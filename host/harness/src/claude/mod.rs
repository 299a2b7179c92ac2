//! Claude Code by its own protocol: `claude` with streams of JSON, one message a line, and control requests in both directions.

mod calls;
mod requests;
mod schema;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{sleep_until, timeout},
};

use self::schema::{Account, Block, ControlAnswer, Event, Initialized, Message, Piece, System, Tokens, ToolResult, TurnResult};
use crate::{
    acp_schema::{Content, Implementation, Update},
    agent_run::{AgentRun, Inputs, TurnEnd},
    client::{CANCEL_GRACE, Introduction, Login, end_of, introduction, slow, streams},
    failure::{RunFailure, TurnError, finish_reason, no_login},
    feed::{Feed, Writer},
    process::{AgentProcess, ReadBounds},
    projection::{MCP_SERVER, plain_text},
    results::Results,
    rpc::CallError,
    session,
    stop::{Stop, StopFlag},
    terminal::Terminals,
    turn::Turn,
};

/// The failure that Claude Code names where nobody is logged in.
const NO_LOGIN: &str = "authentication_failed";
/// The request that begins a conversation.
const FIRST: &str = "initialize";

/// The arguments after those of the command. `session` is an earlier one to go on with.
pub(crate) fn arguments(frame: Option<&AgentRun>, session: Option<&str>) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "-p",
        "--input-format",
        "stream-json",
        "--output-format",
        "stream-json",
        "--verbose",
        "--include-partial-messages",
        "--permission-prompt-tool",
        "stdio",
        // Its answers are not those of a permission.
        "--disallowedTools=AskUserQuestion",
    ]
    .map(str::to_owned)
    .into();
    arguments.extend(session.map(|session| format!("--resume={session}")));
    if let Some(file) = frame.and_then(|frame| frame.projection.mcp_file.as_ref()) {
        arguments.push(format!("--mcp-config={}", file.display()));
        // The gate of the host judges its tools.
        arguments.push(format!("--allowedTools=mcp__{MCP_SERVER}"));
    }
    arguments
}

/// The end of a conversation with one process.
pub(crate) enum Ended {
    /// The answer, or none.
    Turn(Result<TurnEnd, TurnError>),
    /// The earlier session cannot be loaded: another process begins a new one.
    NoSession(String),
}

/// The conversation with one process of Claude Code.
struct Client<'a> {
    frame: &'a AgentRun,
    results: &'a mut Results,
    writer: Writer,
    feed: Feed<Message>,
    turn: Turn,
    jobs: JoinSet<()>,
    /// The reason why no earlier session goes on, until the session is recorded.
    resumed: Option<Result<(), String>>,
    version: String,
    mode: Option<String>,
    /// The message of the model whose pieces have come.
    streamed: String,
    /// Tokens of the last request to the model: those in its context.
    context: Tokens,
    /// Words about a login that is missing.
    no_login: Option<String>,
}

/// Has Claude Code answer the input of the run. `resumed` says whether the process goes on with the earlier session.
pub(crate) async fn run(
    frame: &mut AgentRun,
    process: &mut AgentProcess,
    results: &mut Results,
    bounds: ReadBounds,
    resumed: Result<(), String>,
) -> Ended {
    let (stdin, stdout) = match streams(process) {
        Ok(streams) => streams,
        Err(failure) => return Ended::Turn(Err(failure.into())),
    };
    let mut inputs = frame.inputs.take();
    let mut client = Client {
        frame,
        results,
        writer: Writer::new(stdin, frame.stop.clone()),
        feed: Feed::new(stdout, bounds, Message::read),
        turn: Turn::default(),
        jobs: JoinSet::new(),
        resumed: Some(resumed),
        version: String::new(),
        mode: None,
        streamed: String::new(),
        context: Tokens::default(),
        no_login: None,
    };
    let begun = client.begin().await;
    let outcome = match begun {
        Ok(Some(reason)) => {
            drop(client);
            frame.inputs = inputs;
            return Ended::NoSession(reason);
        }
        Ok(None) => client.answer(&mut inputs).await,
        Err(error) => Err(error),
    };
    client.turn.end(client.results).await;
    client.feed.report_garbage(client.results).await;
    drop(client);
    Ended::Turn(end_of(process, outcome, |error| RunFailure::Agent(error.to_string())).await)
}

/// Starts the protocol and nothing more: version and login of Claude Code.
pub(crate) async fn probe(
    process: &mut AgentProcess,
    bounds: ReadBounds,
    patience: Duration,
) -> Result<Introduction, RunFailure> {
    let (stdin, stdout) = streams(process)?;
    let writer = Writer::new(stdin, StopFlag::default());
    let mut feed = Feed::new(stdout, bounds, Message::read);
    let examination = async {
        writer.send(initialize()).await;
        let answer = loop {
            match feed.next().await? {
                Some(Message::ControlResponse { response }) if response.request_id == FIRST => break answer_of(response)?,
                Some(_) => {}
                None => return Err(CallError::Gone),
            }
        };
        let Initialized { claude_code_version: version, account } = answer;
        let agent = Implementation { name: "claude-code".to_owned(), version };
        let login = account.as_ref().map_or(Login::Unknown, login);
        Ok(Introduction { agent, resumes: true, mcp: true, login, login_problem: None })
    };
    introduction(process, patience, examination).await
}

fn initialize() -> Value {
    json!({ "type": "control_request", "request_id": FIRST, "request": { "subtype": "initialize" } })
}

fn answer_of(response: ControlAnswer) -> Result<Initialized, RunFailure> {
    if response.subtype == "error" {
        return Err(RunFailure::Agent(response.error.unwrap_or_else(|| "it does not begin".to_owned())));
    }
    serde_json::from_value(response.response)
        .map_err(|error| RunFailure::Protocol(format!("the answer to `initialize` cannot be read: {error}")))
}

/// The login that an account is. Another provider than Anthropic has one of its own.
fn login(account: &Account) -> Login {
    let is_some = |source: &Option<String>| source.as_deref().is_some_and(|source| !matches!(source, "none" | ""));
    if is_some(&account.token_source) || is_some(&account.api_key_source) || is_some(&account.email) {
        Login::Yes
    } else if account.api_provider.as_deref().is_some_and(|provider| provider != "firstParty") {
        Login::Unknown
    } else {
        Login::No
    }
}

impl Client<'_> {
    /// Begins the conversation. Returns a reason where the earlier session cannot be loaded.
    async fn begin(&mut self) -> Result<Option<String>, CallError> {
        let patience = Duration::from_millis(self.frame.config.limits.start_timeout_ms);
        let deadline = tokio::time::Instant::now() + patience;
        self.writer.send(initialize()).await;
        loop {
            let message = tokio::select! {
                message = self.next_message() => message?,
                () = sleep_until(deadline) => return Err(slow(patience).into()),
            };
            match message {
                Message::ControlResponse { response } if response.request_id == FIRST => {
                    self.version = answer_of(response)?.claude_code_version;
                    return Ok(None);
                }
                Message::Result(end) if end.is_error && self.resumed == Some(Ok(())) => return Ok(Some(reason(&end))),
                Message::Result(end) => return Err(RunFailure::Agent(reason(&end)).into()),
                message => self.handle(message).await,
            }
        }
    }

    async fn answer(&mut self, inputs: &mut Option<Inputs>) -> Result<TurnEnd, CallError> {
        let mut prompt = self.frame.projection.prompt(&self.frame.context.input);
        loop {
            let end = self.answer_turn(&plain_text(&prompt)).await?;
            self.turn.end(self.results).await;
            self.results.end_message().await;
            let more = match inputs {
                Some(inputs) => inputs.take().await,
                None => Vec::new(),
            };
            if more.is_empty() {
                return Ok(TurnEnd { finish_reason: end_reason(&end), usage: end.usage.as_ref().map(usage) });
            }
            prompt = more.iter().flat_map(|input| self.frame.projection.text_blocks(input)).collect();
            *inputs = inputs.take().map(Inputs::again);
        }
    }

    async fn answer_turn(&mut self, prompt: &str) -> Result<TurnResult, CallError> {
        let content = json!([{ "type": "text", "text": prompt }]);
        let message = json!({ "role": "user", "content": content });
        self.writer.send(json!({ "type": "user", "session_id": "", "message": message, "parent_tool_use_id": null })).await;
        let outcome = self.until_result().await;
        if let Err(CallError::Turn(TurnError::Stopped(stop))) = outcome {
            let request = json!({ "subtype": "interrupt" });
            self.writer.send(json!({ "type": "control_request", "request_id": "interrupt", "request": request })).await;
            if stop == Stop::Cancelled {
                // What it still says belongs to the record.
                let _ = timeout(CANCEL_GRACE, self.until_result_in_spite_of_stop()).await;
            }
        }
        let end = outcome?;
        self.begin_session(&end.session_id).await;
        self.report_usage(&end).await;
        if let Some(said) = self.no_login.take() {
            return Err(no_login(&self.frame.config, &said).into());
        }
        if end.is_error && end.subtype != "error_max_turns" {
            return Err(RunFailure::Agent(reason(&end)).into());
        }
        Ok(end)
    }

    async fn until_result(&mut self) -> Result<TurnResult, CallError> {
        loop {
            match self.next_message().await? {
                Message::Result(end) => return Ok(end),
                message => self.handle(message).await,
            }
        }
    }

    async fn until_result_in_spite_of_stop(&mut self) -> Result<(), CallError> {
        while let Some(message) = self.feed.next().await? {
            if let Message::Result(_) = message {
                return Ok(());
            }
            self.handle(message).await;
        }
        Ok(())
    }

    /// The next message of the agent. May be dropped and called again.
    async fn next_message(&mut self) -> Result<Message, CallError> {
        loop {
            tokio::select! {
                message = self.feed.next() => return message?.ok_or(CallError::Gone),
                stop = self.frame.stop.stopped() => return Err(TurnError::Stopped(stop).into()),
                Some(_) = self.jobs.join_next(), if !self.jobs.is_empty() => {}
            }
        }
    }

    async fn handle(&mut self, message: Message) {
        match message {
            Message::System(system) => self.system(system).await,
            Message::StreamEvent { event, parent_tool_use_id: None } => self.event(event).await,
            Message::Assistant { message, error: Some(error), .. } => {
                if error == NO_LOGIN {
                    let said = message.content.into_iter().find_map(|block| match block {
                        Block::Text { text } => Some(text),
                        _ => None,
                    });
                    self.no_login = Some(said.unwrap_or(error));
                }
            }
            Message::Assistant { message, parent_tool_use_id, error: None } => {
                let is_own = parent_tool_use_id.is_none();
                let is_new = is_own && message.id != self.streamed;
                self.context = message.usage.filter(|_| is_own).unwrap_or(self.context);
                for block in message.content {
                    self.block(block, is_new).await;
                }
            }
            Message::User { message } => self.tool_results(message.content).await,
            Message::ControlRequest { request_id, request } => self.answer_request(request_id, request).await,
            Message::StreamEvent { .. } | Message::ControlResponse { .. } | Message::Result(_) | Message::Other => {}
        }
    }

    async fn system(&mut self, system: System) {
        if system.subtype == "init" {
            if !system.claude_code_version.is_empty() {
                self.version = system.claude_code_version;
            }
            self.begin_session(&system.session_id).await;
        }
        if let Some(mode) = system.permission_mode
            && self.mode.replace(mode.clone()).is_some_and(|before| before != mode)
        {
            self.update(Update::CurrentMode { mode }).await;
        }
    }

    /// Records the session, once.
    async fn begin_session(&mut self, session_id: &str) {
        if session_id.is_empty() {
            return;
        }
        if let Some(resumed) = self.resumed.take() {
            let agent = Implementation { name: "claude-code".to_owned(), version: self.version.clone() };
            session::record(self.results, self.frame, session_id, &agent, resumed).await;
        }
    }

    async fn event(&mut self, event: Event) {
        match event {
            Event::MessageStart { message } => {
                self.results.end_message().await;
                self.streamed = message.id;
            }
            Event::ContentBlockDelta { delta: Piece::Text { text } } => self.results.text(&text).await,
            Event::ContentBlockDelta { delta: Piece::Thinking { thinking } } => self.results.reasoning(&thinking).await,
            Event::ContentBlockDelta { delta: Piece::Other } | Event::Other => {}
        }
    }

    /// Records a block of a message. Words of a message that has come in pieces are in the record already.
    async fn block(&mut self, block: Block, is_new: bool) {
        match block {
            Block::Text { text } if is_new => {
                self.update(Update::AgentMessageChunk { content: Content::Text { text } }).await;
            }
            Block::Thinking { thinking } if is_new => self.results.reasoning(&thinking).await,
            Block::ToolUse { id, name, input } => {
                if let Some(entries) = calls::plan(&name, &input) {
                    self.update(Update::Plan { entries }).await;
                }
                self.update(Update::ToolCall(calls::begun(id, &name, input))).await;
            }
            Block::Text { .. } | Block::Thinking { .. } | Block::Other => {}
        }
    }

    async fn tool_results(&mut self, content: Value) {
        let Value::Array(blocks) = content else { return };
        for block in blocks {
            if block.get("type").is_none_or(|kind| kind != "tool_result") {
                continue;
            }
            if let Ok(result) = serde_json::from_value::<ToolResult>(block)
                && let Some(begun) = self.turn.call(&result.tool_use_id)
            {
                let call = calls::ended(result, begun);
                self.update(Update::ToolCallChange(call)).await;
            }
        }
    }

    async fn report_usage(&mut self, end: &TurnResult) {
        let size = end.model_usage.values().map(|model| model.context_window).max().unwrap_or_default();
        let Tokens { input_tokens, output_tokens, cache_read_input_tokens, cache_creation_input_tokens } = self.context;
        // An agent may say any numbers.
        let cached = [cache_read_input_tokens, cache_creation_input_tokens].into_iter().flatten();
        let used = cached.chain([input_tokens, output_tokens]).fold(0, u64::saturating_add);
        let cost = end.total_cost_usd.map(|amount| json!({ "amount": amount, "currency": "USD" }));
        self.update(Update::Usage { used, size, cost }).await;
    }

    async fn update(&mut self, update: Update) {
        self.turn.record(update, self.results, &Terminals::default()).await;
    }
}

/// The reason of a turn that failed.
fn reason(end: &TurnResult) -> String {
    let said = end.errors.join("; ");
    let said = Some(said).filter(|said| !said.is_empty()).or_else(|| end.result.clone());
    said.filter(|said| !said.is_empty()).unwrap_or_else(|| end.subtype.clone())
}

fn end_reason(end: &TurnResult) -> String {
    match end.subtype.as_str() {
        "success" => finish_reason(end.stop_reason.as_deref().unwrap_or_default()),
        other => finish_reason(other),
    }
}

fn usage(tokens: &Tokens) -> Value {
    let mut data = json!({ "input": tokens.input_tokens, "output": tokens.output_tokens });
    if let (Some(data), Some(cached)) = (data.as_object_mut(), tokens.cache_read_input_tokens) {
        data.insert("cached_input".to_owned(), json!(cached));
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_unknown_kinds_are_messages_and_other_lines_are_not() {
        let read = |line: &str| Message::read(line.as_bytes());
        assert!(matches!(read(r#"{"type":"galaxy"}"#), Some(Message::Other)));
        assert!(matches!(read(r#"{"type":"assistant","message":5}"#), Some(Message::Other)));
        assert!(matches!(read(r#"{"type":"result","subtype":"success","is_error":false}"#), Some(Message::Result(_))));
        for garbage in ["warning: x", "{}", "[1]", r#"{"type":1}"#] {
            assert!(read(garbage).is_none(), "{garbage}");
        }
    }

    #[test]
    fn a_login_is_what_the_account_says() {
        let said = |value: Value| login(&serde_json::from_value(value).unwrap());
        assert_eq!(said(json!({ "tokenSource": "none", "apiKeySource": "ANTHROPIC_API_KEY" })), Login::Yes);
        assert_eq!(said(json!({ "tokenSource": "none", "apiKeySource": "none", "apiProvider": "firstParty" })), Login::No);
        assert_eq!(said(json!({ "tokenSource": "none", "apiProvider": "bedrock" })), Login::Unknown);
    }
}
