//! One call of an agent: a run of it, followed to its end.

use std::{
    collections::BTreeMap,
    pin::Pin,
    time::{Duration, Instant},
};

use agent_host_config::BusyThread;
use agent_host_protocol::{
    ApiError, ErrorCode, Principal, ResultKind, RunEvent, RunId,
    context::{Conversation, Delivery},
    event::Envelope,
    message::{ArtifactRef, ContentPart},
};
use agent_host_runs::{Agent, AgentRun, Host, HostError};
use futures_util::{Stream, StreamExt, stream::FuturesUnordered};
use rmcp::{
    RoleServer,
    model::{CallToolResult, ContentBlock, ErrorData, JsonObject},
    service::RequestContext,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::questions::{self, NoAnswer, OpenQuestion};
use crate::mcp::{outcome, progress::Progress};

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
    let followed = match begin(host, principal, agent, arguments).await {
        Ok(followed) => followed,
        Err(refusal) => return Ok(outcome::of_refusal(&refusal)),
    };
    let events = match host.follow(followed.run_id, 0) {
        Ok(events) => events,
        Err(error) => return Ok(outcome::of_refusal(&refusal(error))),
    };
    let mut call = Call {
        host,
        principal,
        context: &context,
        progress: Progress::new(context.peer.clone(), context.meta.get_progress_token()),
        followed,
        told: RunOutput::default(),
    };
    let ended = call.follow(Box::pin(events)).await;
    match ended {
        CallEnd::Withdrawn => {
            match host.cancel(call.followed.run_id, WITHDRAWN.to_owned()).await {
                Ok(_) | Err(HostError::Conflict(_)) => {}
                Err(error) => {
                    tracing::warn!(run_id = %call.followed.run_id, %error, "a run that an MCP client has withdrawn cannot be cancelled")
                }
            }
            Err(outcome::withdrawn())
        }
        CallEnd::Run(status) => Ok(call.result(&status)),
        CallEnd::Waits(asked) => Ok(call.waiting(&asked)),
        CallEnd::Lost => Ok(outcome::of_refusal(&ApiError::retryable(
            ErrorCode::RuntimeError,
            format!("the host is going down; run {} goes on when it is back: call again with its `run_id`", call.followed.run_id),
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
        delivery: Some(Delivery {
            surface: SURFACE.to_owned(),
            reply_target: None,
            supports_streaming: true,
            supports_edit: false,
            supports_reaction: false,
            max_message_size: None,
            platform_capabilities: Map::new(),
        }),
        ..Envelope::message(text, "api")
    };
    // The host puts what it knows of an artifact in its place.
    let named = |id: String| ArtifactRef { artifact_id: id, media_type: String::new(), name: None, size: None, sha256: None };
    envelope.input.attachments = attachments.into_iter().map(named).collect();
    let run = AgentRun {
        binding_id: agent.id.clone(),
        envelope,
        client_tools: Vec::new(),
        state: Map::new(),
        history: Vec::new(),
        streamed: false,
        busy: BusyThread::Queue,
        replaces: None,
        branch: None,
        metadata: Map::new(),
    };
    let accepted = host.begin_agent_run(run, None, &|_, _| Ok(Vec::new())).await.map_err(refusal)?;
    let run_id = accepted.runs.first().copied();
    let run_id = run_id.ok_or_else(|| ApiError::new(ErrorCode::RuntimeError, "the message was accepted without a run"))?;
    Ok(CallRun { run_id, conversation: Some(conversation) })
}

/// A refusal of the host, with the code of a call.
fn refusal(error: HostError) -> ApiError {
    let message = error.to_string();
    match error {
        HostError::NotFound(_) => ApiError::new(ErrorCode::NotFound, message),
        HostError::Invalid(_) | HostError::InvalidConfig(_) => ApiError::invalid_argument(message),
        HostError::Conflict(_) | HostError::Busy { .. } => ApiError::new(ErrorCode::Conflict, message),
        HostError::Refused(refusal) => refusal,
        HostError::QueueFull { .. } => ApiError::retryable(ErrorCode::RateLimited, message),
        HostError::Unavailable(_) | HostError::ShuttingDown => ApiError::retryable(ErrorCode::RuntimeError, message),
        error => {
            tracing::error!(%error, "a call of an agent over MCP failed");
            ApiError::new(ErrorCode::RuntimeError, "the host failed in this call; its log has the reason")
        }
    }
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
    messages: Vec<Vec<ContentPart>>,
    artifacts: Vec<ArtifactRef>,
    /// The data of the terminal event.
    end: Value,
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
    followed: CallRun,
    told: RunOutput,
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
        let present = host.records().run(self.followed.run_id).ok().flatten().map_or(0, |record| record.run.last_sequence);
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
            let data: Value = serde_json::from_str(event.data.get()).unwrap_or_default();
            match ResultKind::from_name(&event.kind) {
                Some(ResultKind::ActionRequested) => {
                    if let Some(asked) = OpenQuestion::of(self.followed.run_id, &data) {
                        open.insert(asked.action_id.clone(), asked);
                    }
                }
                Some(ResultKind::ActionAnswered | ResultKind::ActionResolved) => {
                    if let Some(id) = data.get("action_id").and_then(Value::as_str) {
                        open.remove(id);
                    }
                }
                _ => {
                    if let Some(status) = self.take(&event, &data).await {
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
    async fn take(&mut self, event: &RunEvent, data: &Value) -> Option<String> {
        let kind = ResultKind::from_name(&event.kind);
        let text = |name: &str| data.get(name).and_then(Value::as_str);
        match kind {
            Some(ResultKind::MessageDelta) => {
                let piece = data.get("chunk").and_then(|chunk| chunk.get("content")).and_then(Value::as_str);
                self.told.pieces.push_str(piece.unwrap_or_default());
                self.told.in_pieces = true;
                if self.told.said_at.is_none_or(|at| at.elapsed() >= PIECES) {
                    self.say_pieces().await;
                }
            }
            Some(ResultKind::MessageCompleted) => {
                let message = data.get("message");
                let is_answer = message.and_then(|message| message.get("role")).is_some_and(|role| role == "assistant");
                let content = message.and_then(|message| message.get("content")).filter(|_| is_answer);
                let parts = content.map(parts).filter(|parts| !parts.is_empty()).unwrap_or_default();
                if !std::mem::take(&mut self.told.in_pieces) {
                    self.told.pieces = text_of(&parts);
                }
                self.say_pieces().await;
                self.told.messages.extend(Some(parts).filter(|parts| !parts.is_empty()));
            }
            Some(ResultKind::ToolCallStarted) => {
                let name = text("tool_name").unwrap_or_default().to_owned();
                self.progress.say(format!("calls `{name}`")).await;
            }
            Some(ResultKind::ArtifactCreated) => {
                let artifact = data.get("artifact").cloned().and_then(|artifact| serde_json::from_value(artifact).ok());
                self.told.artifacts.extend(artifact);
            }
            Some(ResultKind::RunCompleted | ResultKind::RunFailed) => {
                self.told.end = data.clone();
                let run = self.host.records().run(self.followed.run_id).ok().flatten();
                return Some(run.map_or_else(String::new, |record| record.run.status.to_string()));
            }
            _ => {}
        }
        None
    }

    async fn say_pieces(&mut self) {
        if !self.told.pieces.is_empty() {
            let pieces = std::mem::take(&mut self.told.pieces);
            self.told.said_at = Some(Instant::now());
            self.progress.say(pieces).await;
        }
    }

    fn about(&self, status: &str) -> Map<String, Value> {
        let mut about = Map::new();
        about.insert("run_id".to_owned(), self.followed.run_id.to_string().into());
        about.insert("status".to_owned(), status.into());
        about.insert("conversation".to_owned(), self.followed.conversation.clone().into());
        about
    }

    /// The result of a run that has ended.
    fn result(self, status: &str) -> CallToolResult {
        let mut about = self.about(status);
        let RunOutput { messages, artifacts, end, .. } = self.told;
        let text: Vec<String> = messages.iter().map(|parts| text_of(parts)).filter(|text| !text.is_empty()).collect();
        about.insert("output".to_owned(), text.join("\n\n").into());
        let mut blocks: Vec<ContentBlock> = messages.iter().flat_map(|parts| outcome::content(parts)).collect();
        let linked: Vec<&ArtifactRef> = messages.iter().flatten().filter_map(artifact).collect();
        let others = artifacts.iter().filter(|made| !linked.iter().any(|linked| linked.artifact_id == made.artifact_id));
        blocks.extend(others.map(|artifact| ContentBlock::resource_link(outcome::resource(artifact))));
        if let Some(reason) = end.get("finish_reason").filter(|reason| reason.is_string()) {
            about.insert("finish_reason".to_owned(), reason.clone());
        }
        let is_error = status != "completed";
        if is_error {
            let code = end.get("code").and_then(Value::as_str).unwrap_or(status);
            let message = end.get("message").or_else(|| end.get("error")).and_then(Value::as_str);
            let message = message.map_or_else(|| format!("the run ended as {status}"), str::to_owned);
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
            asked.action_id, self.followed.run_id
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

/// The content of a message, which JSON shows as a text or as parts.
fn parts(content: &Value) -> Vec<ContentPart> {
    match content {
        Value::String(text) if text.is_empty() => Vec::new(),
        Value::String(text) => vec![ContentPart::Text(text.clone())],
        parts => serde_json::from_value(parts.clone()).unwrap_or_default(),
    }
}

fn text_of(parts: &[ContentPart]) -> String {
    let text = |part: &ContentPart| match part {
        ContentPart::Text(text) => Some(text.clone()),
        _ => None,
    };
    parts.iter().filter_map(text).collect()
}
