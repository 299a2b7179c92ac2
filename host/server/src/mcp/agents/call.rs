//! One call of an agent: a run of it, followed to its end.

use std::{
    collections::BTreeMap,
    pin::Pin,
    time::{Duration, Instant},
};

use agent_host_protocol::{
    ApiError, ErrorCode, Principal, ResultKind, RunEvent, RunId, RunStatus,
    context::{Conversation, Delivery},
    event::Envelope,
    message::{ArtifactRef, ContentPart, Message, Role},
    run::{RunCompletion, RunFailure},
};
use agent_host_runs::{
    Agent, AgentRun, Host, HostError,
    facts::record::{ActionRequest, ArtifactData, Delta, MessageEnd, ToolCallStart, read},
};
use futures_util::{Stream, StreamExt, stream::FuturesUnordered};
use rmcp::{
    RoleServer,
    model::{CallToolResult, ContentBlock, ErrorData, JsonObject},
    service::RequestContext,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::questions::{self, NoAnswer, OpenQuestion};
use crate::{
    http::Problem,
    mcp::{outcome, progress::Progress},
};

/// The source of these events, shown to runners in `delivery.surface`.
const SURFACE: &str = "mcp";
/// Pieces of a message are said together, at most this often.
const PIECES: Duration = Duration::from_millis(200);
/// The reason of a cancellation that is recorded.
const WITHDRAWN: &str = "the MCP client has cancelled the call";

/// The arguments of a call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    text: Option<String>,
    #[serde(default)]
    attachments: Vec<String>,
    conversation: Option<String>,
    run_id: Option<RunId>,
}

/// The run of a call.
struct CallRun {
    run_id: RunId,
    conversation: Option<String>,
}

/// Answers a call.
pub(super) async fn answer(
    host: &Host,
    principal: &Principal,
    agent: &Agent,
    arguments: JsonObject,
    context: RequestContext<RoleServer>,
) -> Result<CallToolResult, ErrorData> {
    let run = match begin(host, principal, agent, arguments).await {
        Ok(run) => run,
        Err(refusal) => return Ok(outcome::of_refusal(&refusal)),
    };
    let events = match host.follow(run.run_id, 0) {
        Ok(events) => events,
        Err(error) => return Ok(outcome::of_refusal(&refusal(error))),
    };
    let mut call = Call {
        host,
        principal,
        context: &context,
        progress: Progress::new(context.peer.clone(), context.meta.get_progress_token()),
        run,
        output: RunOutput::default(),
    };
    let ended = call.follow(Box::pin(events)).await;
    match ended {
        CallEnd::Withdrawn => {
            match host.cancel(call.run.run_id, WITHDRAWN.to_owned()).await {
                Ok(_) | Err(HostError::Conflict(_)) => {}
                Err(error) => {
                    tracing::warn!(run_id = %call.run.run_id, %error, "a run that an MCP client has withdrawn cannot be cancelled")
                }
            }
            Err(outcome::withdrawn())
        }
        CallEnd::Run(status) => Ok(call.result(&status)),
        CallEnd::Waits(asked) => Ok(call.waiting(&asked)),
        CallEnd::Lost => Ok(outcome::of_refusal(&ApiError::retryable(
            ErrorCode::RuntimeError,
            format!("the host is going down; run {} goes on when it is back: call again with its `run_id`", call.run.run_id),
        ))),
    }
}

/// Begins a run, or finds the one that is named.
async fn begin(host: &Host, principal: &Principal, agent: &Agent, arguments: JsonObject) -> Result<CallRun, ApiError> {
    let arguments: Arguments = serde_json::from_value(Value::Object(arguments))
        .map_err(|error| ApiError::invalid_argument(format!("the arguments: {error}")))?;
    let Arguments { text, attachments, conversation, run_id } = arguments;
    match (text, run_id) {
        (None, Some(run_id)) if attachments.is_empty() && conversation.is_none() => {
            let missing = || ApiError::new(ErrorCode::NotFound, format!("the agent has no run {run_id}"));
            let record = host.records().run(run_id).map_err(|error| refusal(error.into()))?.ok_or_else(missing)?;
            let run = record.run;
            if run.binding_id != agent.id || !principal.sees(run.workspace_id.as_deref()) {
                return Err(missing());
            }
            Ok(CallRun { run_id, conversation: run.conversation_id.clone() })
        }
        (Some(text), None) => start(host, principal, agent, text, attachments, conversation).await,
        _ => Err(ApiError::invalid_argument("a call has either `text`, or the `run_id` of a run that waits and nothing else")),
    }
}

async fn start(
    host: &Host,
    principal: &Principal,
    agent: &Agent,
    text: String,
    attachments: Vec<String>,
    conversation: Option<String>,
) -> Result<CallRun, ApiError> {
    let conversation = conversation.unwrap_or_else(|| format!("mcp-{}", RunId::new()));
    let mut envelope = Envelope {
        conversation: Some(Conversation {
            conversation_id: Some(conversation.clone()),
            workspace_id: principal.workspace.clone(),
            ..Conversation::default()
        }),
        delivery: Some(Delivery::streaming(SURFACE)),
        ..Envelope::message(text, "api")
    };
    // The host puts what it knows of an artifact in its place.
    let named = |id: String| ArtifactRef { artifact_id: id, media_type: String::new(), name: None, size: None, sha256: None };
    envelope.input.attachments = attachments.into_iter().map(named).collect();
    let charged_key = host.charged_key(principal).map_err(refusal)?;
    let run = AgentRun { charged_key, ..AgentRun::new(&*agent.id, envelope) };
    let accepted = host.begin_agent_run(run, None, &|_, _| Ok(Vec::new())).await.map_err(refusal)?;
    let run_id = accepted.runs.first().copied();
    let run_id = run_id.ok_or_else(|| ApiError::new(ErrorCode::RuntimeError, "the message was accepted without a run"))?;
    Ok(CallRun { run_id, conversation: Some(conversation) })
}

/// A refusal of the host, with the code that it has over HTTP.
fn refusal(error: HostError) -> ApiError {
    Problem::from(error).into_refusal()
}

/// The end of a call.
enum CallEnd {
    /// The run has ended, with this status.
    Run(String),
    /// The run waits for people whom the client cannot ask.
    Waits(OpenQuestion),
    /// The client has withdrawn the call.
    Withdrawn,
    /// The host goes down.
    Lost,
}

/// The output of the run so far.
#[derive(Default)]
struct RunOutput {
    messages: Vec<Message>,
    artifacts: Vec<ArtifactRef>,
    /// The reason of an end that is none of a failure.
    finish_reason: Option<String>,
    failure: Option<RunFailure>,
    /// Pieces of the present message that were not said yet.
    pieces: String,
    /// True if the present message comes in pieces.
    in_pieces: bool,
    said_at: Option<Instant>,
}

struct Call<'a> {
    host: &'a Host,
    principal: &'a Principal,
    context: &'a RequestContext<RoleServer>,
    progress: Progress,
    run: CallRun,
    output: RunOutput,
}

type Events = Pin<Box<dyn Stream<Item = Result<RunEvent, HostError>> + Send>>;

impl Call<'_> {
    /// Follows the run to its end, or to a question that nobody answers here.
    async fn follow(&mut self, mut events: Events) -> CallEnd {
        let (host, peer, principal) = (self.host, self.context.peer.clone(), self.principal);
        let can_ask = questions::can_ask(&peer, principal);
        // Open actions that the client is not asked, and those that it is asked.
        let mut open: BTreeMap<String, OpenQuestion> = BTreeMap::new();
        let mut asking = FuturesUnordered::new();
        let ct = self.context.ct.clone();
        // The record of a run that was asked of before begins with what it asked then: it is answered by now, or it is not.
        let present = host.records().run(self.run.run_id).ok().flatten().map_or(0, |record| record.run.last_sequence);
        loop {
            let seen = |sequence: u64| sequence >= present;
            let event = tokio::select! {
                biased;
                () = ct.cancelled() => return CallEnd::Withdrawn,
                Some((asked, outcome)) = asking.next() => {
                    let (asked, outcome): (OpenQuestion, Result<(), NoAnswer>) = (asked, outcome);
                    if let Err(NoAnswer::Here) = outcome {
                        return CallEnd::Waits(asked);
                    }
                    continue;
                }
                event = events.next() => event,
                () = self.progress.sign_of_life() => {
                    self.progress.say_alive("the agent is at work").await;
                    continue;
                }
            };
            let Some(Ok(event)) = event else { return CallEnd::Lost };
            match ResultKind::from_name(&event.kind) {
                Some(ResultKind::ActionRequested) => {
                    if let Some(asked) = OpenQuestion::of(&event) {
                        open.insert(asked.action_id.clone(), asked);
                    }
                }
                Some(ResultKind::ActionAnswered | ResultKind::ActionResolved) => {
                    if let Some(ActionRequest { action_id: Some(id), .. }) = read::<ActionRequest>(&event) {
                        open.remove(&id);
                    }
                }
                _ => {
                    if let Some(status) = self.take(&event).await {
                        return CallEnd::Run(status);
                    }
                }
            }
            if !seen(event.sequence) {
                continue;
            }
            while let Some((_, asked)) = open.pop_first() {
                if !can_ask {
                    return CallEnd::Waits(asked);
                }
                let peer = peer.clone();
                asking.push(async move {
                    let outcome = questions::ask(host, &peer, principal, &asked).await;
                    (asked, outcome)
                });
            }
        }
    }

    /// Takes an event of the run; gives the status of a run that it ends.
    async fn take(&mut self, event: &RunEvent) -> Option<String> {
        match ResultKind::from_name(&event.kind)? {
            ResultKind::MessageDelta => {
                let Delta { chunk, .. } = read(event)?;
                self.output.pieces.push_str(&chunk.content);
                self.output.in_pieces = true;
                if self.output.said_at.is_none_or(|at| at.elapsed() >= PIECES) {
                    self.say_pieces().await;
                }
            }
            ResultKind::MessageCompleted => {
                let MessageEnd { message, .. } = read(event)?;
                self.add(message).await;
            }
            ResultKind::ToolCallStarted => {
                let ToolCallStart { tool_name, .. } = read(event)?;
                self.progress.say(format!("calls `{tool_name}`")).await;
            }
            ResultKind::ArtifactCreated => {
                let ArtifactData { artifact } = read(event)?;
                self.output.artifacts.push(artifact);
            }
            ResultKind::RunCompleted => {
                if let Some(RunCompletion { finish_reason, message, .. }) = read(event) {
                    self.output.finish_reason = Some(finish_reason);
                    // A runner may give its last message again with its end, or there alone.
                    let said = self.output.messages.last().map(Message::text);
                    if let Some(message) = message.filter(|message| Some(message.text()) != said) {
                        self.add(message).await;
                    }
                }
                return Some(self.status());
            }
            ResultKind::RunFailed => {
                self.output.failure = read(event);
                return Some(self.status());
            }
            _ => {}
        }
        None
    }

    /// Adds a whole message to the answer; what was not said of it yet is said.
    async fn add(&mut self, message: Message) {
        let is_answer = message.role == Role::Assistant;
        if !std::mem::take(&mut self.output.in_pieces) && is_answer {
            self.output.pieces = message.text();
        }
        self.say_pieces().await;
        if is_answer && !message.content.is_empty() {
            self.output.messages.push(message);
        }
    }

    fn status(&self) -> String {
        let run = self.host.records().run(self.run.run_id).ok().flatten();
        run.map_or_else(String::new, |record| record.run.status.to_string())
    }

    async fn say_pieces(&mut self) {
        if !self.output.pieces.is_empty() {
            let pieces = std::mem::take(&mut self.output.pieces);
            self.output.said_at = Some(Instant::now());
            self.progress.say(pieces).await;
        }
    }

    fn about(&self, status: &str) -> Map<String, Value> {
        let mut about = Map::new();
        about.insert("run_id".to_owned(), self.run.run_id.to_string().into());
        about.insert("status".to_owned(), status.into());
        about.insert("conversation".to_owned(), self.run.conversation.clone().into());
        about
    }

    /// The result of a run that has ended.
    fn result(self, status: &str) -> CallToolResult {
        let mut about = self.about(status);
        let RunOutput { messages, artifacts, finish_reason, failure, .. } = self.output;
        let text: Vec<String> = messages.iter().map(Message::text).filter(|text| !text.is_empty()).collect();
        about.insert("output".to_owned(), text.join("\n\n").into());
        let mut blocks: Vec<ContentBlock> = messages.iter().flat_map(|message| outcome::content(&message.content)).collect();
        let linked: Vec<&ArtifactRef> = messages.iter().flat_map(|message| &message.content).filter_map(artifact).collect();
        let others = artifacts.iter().filter(|made| !linked.iter().any(|linked| linked.artifact_id == made.artifact_id));
        blocks.extend(others.map(|artifact| ContentBlock::resource_link(outcome::resource(artifact))));
        if let Some(reason) = finish_reason {
            about.insert("finish_reason".to_owned(), reason.into());
        }
        let is_error = status != RunStatus::Completed.as_str();
        if is_error {
            let (code, message) = match failure {
                Some(failure) => (failure.code, failure.message),
                None => (status.to_owned(), format!("the run ended as {status}")),
            };
            blocks.push(ContentBlock::text(&message));
            about.insert("error".to_owned(), json!({ "code": code, "message": message }));
        }
        let mut result = CallToolResult::success(blocks);
        result.structured_content = Some(Value::Object(about));
        result.is_error = Some(is_error);
        result
    }

    /// The result of a call whose run waits for people.
    fn waiting(self, asked: &OpenQuestion) -> CallToolResult {
        let mut about = self.about("waiting");
        let question = asked.message();
        about.insert(
            "question".to_owned(),
            json!({ "action_id": asked.action_id, "message": question, "request": asked.request }),
        );
        let text = format!(
            "The agent waits for an answer: {question}\nAnswer it at POST /api/v1/actions/{}/respond, then call this tool again with \
             `run_id` {}.",
            asked.action_id, self.run.run_id
        );
        outcome::with_text(text, Value::Object(about))
    }
}

fn artifact(part: &ContentPart) -> Option<&ArtifactRef> {
    match part {
        ContentPart::Artifact(artifact) => Some(artifact),
        _ => None,
    }
}
