//! State of the scripted host, and the implementation of its calls.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};

use serde_json::Value;

use super::Permission;
use super::beyond::Beyond;
use super::permission::DeclaredPermissions;
use super::script::{Reply, ToolReply};
use crate::contract::agent_host::runner::types;
use crate::contract::{
    ArtifactMetadata, ArtifactOperation, ArtifactRef, Chunk, Direction, ErrorCode, Event, EventOperation, EventPage,
    HistoryOperation, Hit, KnowledgeBaseResource, KnowledgeOperation, Message, ModelOperation, PageRequest, Request, RerankHit,
    Response, RunResult, StateScope, StorageArea, ToolCall, ToolDetail, ToolOperation, ToolOutput, TranscriptItem,
    TranscriptPage,
};
use crate::limits::{BATCH_BYTES, BATCH_RESULTS, RESULT_BYTES};
use crate::log::Level;
use crate::results::{json_of, size};

type Answer<T> = Result<T, types::ApiError>;

/// Answers a request of a chat model.
pub(super) type Chat = Box<dyn FnMut(&Request) -> Reply>;
/// Returns the vector of a text.
pub(super) type Embed = Box<dyn FnMut(&str) -> Vec<f32>>;
/// Returns the score of a document for a query.
pub(super) type Score = Box<dyn FnMut(&str, &str) -> f64>;
/// Returns the number of tokens of messages.
pub(super) type Count = Box<dyn FnMut(&[Message]) -> u64>;
/// Answers a call of a tool.
pub(super) type ToolFn = Box<dyn FnMut(Value) -> ToolReply>;

thread_local! {
    static HOST: RefCell<Option<ScriptedHost>> = const { RefCell::new(None) };
}

/// Calls `answer` with the host of this thread. Panics without a host.
pub(super) fn with<T>(call: &'static str, answer: impl FnOnce(&mut ScriptedHost) -> T) -> T {
    HOST.with(|host| match host.try_borrow_mut() {
        Ok(mut host) => match host.as_mut() {
            Some(host) => {
                host.calls.push(call);
                answer(host)
            }
            None => panic!(
                "`{call}` is a host call, and there is no host outside of a component: run the runner in a test with \
                 `agent_host_sdk::testing::TestHost::new().run::<YourRunner>(\"text\")`"
            ),
        },
        Err(_) => panic!("a scripted model or tool made the host call `{call}`: scripts only answer"),
    })
}

/// Like [`with`], but does nothing without a host, since nobody reads the log then.
pub(super) fn with_any(call: &'static str, answer: impl FnOnce(&mut ScriptedHost)) {
    HOST.with(|host| {
        if let Ok(mut host) = host.try_borrow_mut()
            && let Some(host) = host.as_mut()
        {
            host.calls.push(call);
            answer(host);
        }
    });
}

/// Installs the host of this thread; [`take`] removes it.
pub(super) fn install(host: ScriptedHost) {
    HOST.with(|place| *place.borrow_mut() = Some(host));
}

pub(super) fn take() -> ScriptedHost {
    HOST.with(|place| place.borrow_mut().take()).unwrap_or_default()
}

/// Model of the script.
pub(super) enum Model {
    Chat(Chat),
    Embedding(Embed),
    Rerank(Score),
}

impl Model {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Chat(_) => "llm",
            Self::Embedding(_) => "embedding",
            Self::Rerank(_) => "rerank",
        }
    }

    pub(super) fn operations(&self) -> &'static [ModelOperation] {
        match self {
            Self::Chat(_) => &[ModelOperation::Invoke, ModelOperation::Stream, ModelOperation::CountTokens],
            Self::Embedding(_) => &[ModelOperation::Embed],
            Self::Rerank(_) => &[ModelOperation::Rerank],
        }
    }
}

pub(super) struct Tool {
    pub(super) schema: String,
    pub(super) destructive: Option<bool>,
    pub(super) answer: ToolFn,
}

pub(super) struct Artifact {
    pub(super) reference: ArtifactRef,
    pub(super) content: Vec<u8>,
}

/// State of the scripted host. Insertion order is the order of the grant.
#[derive(Default)]
pub(super) struct ScriptedHost {
    pub(super) declared: DeclaredPermissions,
    pub(super) denied: Vec<Permission>,
    pub(super) models: Vec<(String, Model)>,
    pub(super) count: Option<Count>,
    pub(super) tools: Vec<(String, Tool)>,
    pub(super) knowledge: Vec<(String, Vec<Hit>)>,
    pub(super) transcript: Vec<TranscriptItem>,
    pub(super) events: Vec<Event>,
    pub(super) artifacts: Vec<Artifact>,
    pub(super) state: BTreeMap<(u8, String), String>,
    pub(super) storage: BTreeMap<(u8, String), Vec<u8>>,
    pub(super) now: u64,
    pub(super) failures: HashMap<String, VecDeque<types::ApiError>>,
    /// Number of calls before the run is cancelled.
    pub(super) cancel_after: Option<usize>,
    // Record of the run.
    pub(super) calls: Vec<&'static str>,
    pub(super) results: Vec<RunResult>,
    pub(super) batches: Vec<usize>,
    pub(super) log: Vec<(Level, String)>,
    pub(super) requests: Vec<(String, Request)>,
    pub(super) tool_calls: Vec<ToolCall>,
    pub(super) run_no: u64,
    pub(super) beyond: Beyond,
}

pub(super) fn refuse<T>(code: ErrorCode, message: impl Into<String>) -> Answer<T> {
    Err(types::ApiError { code, message: message.into(), retryable: false, details: None })
}

impl ScriptedHost {
    /// Fails if the run is cancelled, or if the test makes this call fail.
    pub(super) fn alive(&mut self, call: &'static str) -> Answer<()> {
        if self.cancel_after.is_some_and(|calls| self.calls.len() > calls) {
            return refuse(ErrorCode::Cancelled, "the run was cancelled");
        }
        match self.failures.get_mut(call).and_then(VecDeque::pop_front) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Checks the permission for a call. Panics if the interface is not declared, since the host would not admit the
    /// component; fails with `unauthorized` if the operation is not granted.
    pub(super) fn pass(&mut self, call: &'static str, permission: Permission) -> Answer<()> {
        self.alive(call)?;
        assert!(
            permission.interface_declared(&self.declared),
            "the runner calls `{call}`, but its manifest declares nothing of that interface: the host would refuse the \
             component. Declare {permission:?}, or do not call it"
        );
        if self.granted(permission) {
            return Ok(());
        }
        refuse(ErrorCode::Unauthorized, format!("{permission:?} is not granted to this run"))
    }

    pub(super) fn granted(&self, permission: Permission) -> bool {
        permission.declared(&self.declared) && !self.denied.contains(&permission)
    }

    pub(super) fn emit(&mut self, results: &[RunResult]) -> Answer<u64> {
        self.alive("results.emit")?;
        let sizes: Vec<usize> = results.iter().map(size).collect();
        if results.len() > BATCH_RESULTS {
            return refuse(ErrorCode::InvalidArgument, format!("a batch has at most {BATCH_RESULTS} results"));
        }
        // The SDK overestimates the frame, so these sizes are never below those of the host.
        if sizes.iter().any(|bytes| *bytes > RESULT_BYTES) || sizes.iter().sum::<usize>() > BATCH_BYTES {
            return refuse(ErrorCode::PayloadTooLarge, "a result or a batch of results is too large");
        }
        for result in results {
            if let Some(json) = json_of(result).iter().find(|json| serde_json::from_str::<Value>(json).is_err()) {
                return refuse(ErrorCode::InvalidArgument, format!("not JSON: {json}"));
            }
            match result {
                RunResult::StateUpdated(update) => {
                    let scope = Permission::State(update.scope);
                    if !self.granted(scope) {
                        return refuse(ErrorCode::Unauthorized, format!("{scope:?} is not granted to this run"));
                    }
                }
                RunResult::ActionRequested(asked) if !self.action_granted(&asked.action) => {
                    return refuse(ErrorCode::Unauthorized, format!("the action `{}` is not granted to this run", asked.action));
                }
                RunResult::ArtifactCreated(artifact) if self.artifact(&artifact.artifact_id).is_none() => {
                    return refuse(ErrorCode::NotFound, format!("there is no artifact {}", artifact.artifact_id));
                }
                _ => {}
            }
        }
        for result in results {
            match result {
                RunResult::StateUpdated(update) => self.state_write(update.scope, &update.key, &update.value)?,
                RunResult::MessageCompleted(done) => self.record_message(&done.message),
                _ => {}
            }
        }
        self.results.extend_from_slice(results);
        self.batches.push(results.len());
        Ok(self.results.len() as u64)
    }

    fn record_message(&mut self, message: &Message) {
        let role = role_name(message);
        let event_id = format!("event-{}", self.run_no);
        self.add_item(role, "message", &message.text(), &event_id);
    }

    /// Adds an item to the transcript, with the next number.
    pub(super) fn add_item(&mut self, role: &str, item_type: &str, text: &str, event_id: &str) {
        let seq = self.transcript.len() as u64 + 1;
        self.transcript.push(TranscriptItem {
            transcript_id: format!("item-{seq}"),
            event_id: event_id.to_owned(),
            run_id: None,
            conversation_id: Some("conversation-1".to_owned()),
            thread_id: None,
            role: role.to_owned(),
            item_type: item_type.to_owned(),
            text: Some(text.to_owned()),
            content: None,
            artifacts: Vec::new(),
            seq,
            cursor: seq.to_string(),
            created_at: self.now,
        });
    }

    pub(super) fn sleep_until(&mut self, at: u64) -> Answer<()> {
        self.alive("timers.sleep-until")?;
        self.now = self.now.max(at);
        Ok(())
    }

    fn reply(&mut self, call: &'static str, operation: ModelOperation, model_id: &str, request: &Request) -> Answer<Reply> {
        self.pass(call, Permission::Model(operation))?;
        self.requests.push((model_id.to_owned(), request.clone()));
        match self.model(model_id)? {
            Model::Chat(chat) => Ok(chat(request)),
            other => refuse(ErrorCode::InvalidArgument, format!("`{model_id}` is a model for {}", other.kind())),
        }
    }

    fn model(&mut self, model_id: &str) -> Answer<&mut Model> {
        match self.models.iter_mut().find(|(id, _)| id == model_id) {
            Some((_, model)) => Ok(model),
            None => refuse(ErrorCode::NotFound, format!("there is no model `{model_id}`")),
        }
    }

    pub(super) fn invoke(&mut self, model_id: &str, request: &Request) -> Answer<Response> {
        Ok(self.reply("models.invoke", ModelOperation::Invoke, model_id, request)?.end?)
    }

    pub(super) fn stream(&mut self, model_id: &str, request: &Request) -> Answer<Vec<Answer<Chunk>>> {
        let Reply { chunks, end } = self.reply("models.stream", ModelOperation::Stream, model_id, request)?;
        if chunks.is_empty()
            && let Err(error) = end
        {
            return Err(error.into());
        }
        let end = end.map(Chunk::Done).map_err(types::ApiError::from);
        Ok(chunks.into_iter().map(Ok).chain([end]).collect())
    }

    pub(super) fn rerank(
        &mut self,
        model_id: &str,
        query: &str,
        documents: &[String],
        top_k: Option<u32>,
    ) -> Answer<Vec<RerankHit>> {
        self.pass("models.rerank", Permission::Model(ModelOperation::Rerank))?;
        let Model::Rerank(score) = self.model(model_id)? else {
            return refuse(ErrorCode::InvalidArgument, format!("`{model_id}` does not rerank"));
        };
        let scored = documents.iter().zip(0..).map(|(document, index)| RerankHit { index, score: score(query, document) });
        let mut hits: Vec<_> = scored.collect();
        hits.sort_by(|a, b| b.score.total_cmp(&a.score));
        hits.truncate(top_k.map_or(usize::MAX, |top_k| top_k as usize));
        Ok(hits)
    }

    pub(super) fn embed(&mut self, model_id: &str, texts: &[String]) -> Answer<Vec<Vec<f32>>> {
        self.pass("models.embed", Permission::Model(ModelOperation::Embed))?;
        match self.model(model_id)? {
            Model::Embedding(embed) => Ok(texts.iter().map(|text| embed(text)).collect()),
            _ => refuse(ErrorCode::InvalidArgument, format!("`{model_id}` does not embed")),
        }
    }

    pub(super) fn count_tokens(&mut self, model_id: &str, messages: &[Message]) -> Answer<u64> {
        self.pass("models.count-tokens", Permission::Model(ModelOperation::CountTokens))?;
        self.model(model_id)?;
        Ok(match &mut self.count {
            Some(count) => count(messages),
            None => messages.iter().map(|message| message.text().len() as u64 / 4 + 4).sum(),
        })
    }

    pub(super) fn tool_detail(&mut self, name: &str) -> Answer<ToolDetail> {
        self.pass("tools.get-detail", Permission::Tool(ToolOperation::Detail))?;
        match self.tools.iter().find(|(id, _)| id == name) {
            Some((_, tool)) => Ok(ToolDetail {
                name: name.to_owned(),
                description: Some(format!("The tool {name}.")),
                parameters: tool.schema.clone(),
                read_only: None,
                idempotent: None,
                destructive: tool.destructive,
            }),
            None => refuse(ErrorCode::NotFound, format!("there is no tool `{name}`")),
        }
    }

    pub(super) fn tool_call(&mut self, function: &'static str, call: &ToolCall) -> Answer<ToolOutput> {
        self.pass(function, Permission::Tool(ToolOperation::Call))?;
        let parameters = match serde_json::from_str::<Value>(&call.parameters) {
            Ok(parameters) if parameters.is_object() => parameters,
            _ => {
                return refuse(ErrorCode::InvalidArgument, format!("the parameters of `{}` are no JSON object", call.tool_name));
            }
        };
        self.tool_calls.push(call.clone());
        match self.tools.iter_mut().find(|(id, _)| *id == call.tool_name) {
            Some((_, tool)) => Ok((tool.answer)(parameters).0?),
            None => refuse(ErrorCode::NotFound, format!("there is no tool `{}`", call.tool_name)),
        }
    }

    pub(super) fn knowledge_bases(&self) -> Vec<KnowledgeBaseResource> {
        let operations: Vec<_> = [KnowledgeOperation::List, KnowledgeOperation::Retrieve]
            .into_iter()
            .filter(|operation| self.granted(Permission::Knowledge(*operation)))
            .collect();
        let bases = self.knowledge.iter().map(|(id, _)| KnowledgeBaseResource {
            kb_id: id.clone(),
            kb_name: None,
            operations: operations.clone(),
        });
        if operations.is_empty() { Vec::new() } else { bases.collect() }
    }

    pub(super) fn knowledge_list(&mut self) -> Answer<Vec<KnowledgeBaseResource>> {
        self.pass("knowledge.list", Permission::Knowledge(KnowledgeOperation::List))?;
        Ok(self.knowledge_bases())
    }

    pub(super) fn retrieve(&mut self, kb_id: &str, query: &str, top_k: u32, filters: Option<&str>) -> Answer<Vec<Hit>> {
        self.pass("knowledge.retrieve", Permission::Knowledge(KnowledgeOperation::Retrieve))?;
        let Some((_, passages)) = self.knowledge.iter().find(|(id, _)| id == kb_id) else {
            return refuse(ErrorCode::NotFound, format!("there is no knowledge base `{kb_id}`"));
        };
        let filters = object(filters)?;
        let fits = |hit: &Hit| {
            let metadata: Value = serde_json::from_str(&hit.metadata).unwrap_or_default();
            filters.iter().all(|(key, value)| metadata.get(key) == Some(value))
        };
        let scored =
            passages.iter().filter(|hit| fits(hit)).map(|hit| Hit { score: similarity(query, &hit.text), ..hit.clone() });
        let mut hits: Vec<_> = scored.filter(|hit| hit.score > 0.0).collect();
        hits.sort_by(|a, b| b.score.total_cmp(&a.score));
        hits.truncate(top_k as usize);
        Ok(hits)
    }

    pub(super) fn history_page(&mut self, request: &PageRequest) -> Answer<TranscriptPage> {
        self.pass("history.page", Permission::History(HistoryOperation::Page))?;
        if !(1..=100).contains(&request.limit) {
            return refuse(ErrorCode::InvalidArgument, "a page has 1 to 100 items");
        }
        let (after, before) = (position(request.after.as_deref(), 0)?, position(request.before.as_deref(), u64::MAX)?);
        let mut items: Vec<_> = self.transcript.iter().filter(|item| item.seq > after && item.seq < before).cloned().collect();
        if matches!(request.direction, Direction::Backward) {
            items.reverse();
        }
        let has_more = items.len() > request.limit as usize;
        items.truncate(request.limit as usize);
        if !request.include_artifacts {
            items.iter_mut().for_each(|item| item.artifacts.clear());
        }
        let next = items.last().map(|item| item.cursor.clone()).filter(|_| has_more);
        let prev = items.first().map(|item| item.cursor.clone());
        Ok(TranscriptPage { items, next, prev, has_more })
    }

    /// Searches the transcript. Supports the filters `roles`, `since` and `until`.
    pub(super) fn history_search(&mut self, query: &str, filters: Option<&str>, top_k: u32) -> Answer<Vec<TranscriptItem>> {
        self.pass("history.search", Permission::History(HistoryOperation::Search))?;
        let filters = object(filters)?;
        let since = filters.get("since").and_then(Value::as_u64).unwrap_or(0);
        let until = filters.get("until").and_then(Value::as_u64).unwrap_or(u64::MAX);
        let roles = filters.get("roles").and_then(Value::as_array);
        let fits = |item: &&TranscriptItem| {
            (since..until).contains(&item.created_at)
                && roles.is_none_or(|roles| roles.iter().any(|role| role.as_str() == Some(&item.role)))
        };
        let text = |item: &TranscriptItem| similarity(query, item.text.as_deref().unwrap_or_default());
        let mut found: Vec<_> = self.transcript.iter().filter(fits).filter(|item| text(item) > 0.0).cloned().collect();
        found.sort_by(|a, b| text(b).total_cmp(&text(a)));
        found.truncate(top_k as usize);
        Ok(found)
    }

    pub(super) fn event_get(&mut self, event_id: &str) -> Answer<Event> {
        self.pass("events.get", Permission::Event(EventOperation::Get))?;
        match self.events.iter().find(|event| event.event_id == event_id) {
            Some(event) => Ok(event.clone()),
            None => refuse(ErrorCode::NotFound, format!("there is no event `{event_id}`")),
        }
    }

    pub(super) fn event_page(&mut self, before: Option<&str>, event_types: &[String], limit: u32) -> Answer<EventPage> {
        self.pass("events.page", Permission::Event(EventOperation::Page))?;
        let before = usize::try_from(position(before, u64::MAX)?).unwrap_or(usize::MAX);
        let fits = |event: &Event| event_types.is_empty() || event_types.contains(&event.event_type);
        let mut found: Vec<_> = self.events.iter().enumerate().take(before).filter(|(_, event)| fits(event)).collect();
        found.reverse();
        let has_more = found.len() > limit as usize;
        found.truncate(limit as usize);
        let next = found.last().map(|(place, _)| place.to_string()).filter(|_| has_more);
        Ok(EventPage { items: found.into_iter().map(|(_, event)| event.clone()).collect(), next, has_more })
    }

    fn artifact(&self, artifact_id: &str) -> Option<&Artifact> {
        self.artifacts.iter().find(|artifact| artifact.reference.artifact_id == artifact_id)
    }

    pub(super) fn artifact_metadata(&mut self, artifact_id: &str) -> Answer<ArtifactMetadata> {
        self.pass("artifacts.metadata", Permission::Artifact(ArtifactOperation::Metadata))?;
        match self.artifact(artifact_id) {
            Some(artifact) => {
                Ok(ArtifactMetadata { artifact: artifact.reference.clone(), created_at: self.now, expires_at: None })
            }
            None => refuse(ErrorCode::NotFound, format!("there is no artifact `{artifact_id}`")),
        }
    }

    pub(super) fn artifact_content(&mut self, call: &'static str, artifact_id: &str) -> Answer<Vec<u8>> {
        self.pass(call, Permission::Artifact(ArtifactOperation::Read))?;
        match self.artifact(artifact_id) {
            Some(artifact) => Ok(artifact.content.clone()),
            None => refuse(ErrorCode::NotFound, format!("there is no artifact `{artifact_id}`")),
        }
    }

    pub(super) fn artifact_create(&mut self) -> Answer<()> {
        self.pass("artifacts.create", Permission::Artifact(ArtifactOperation::Create))
    }

    pub(super) fn keep_artifact(&mut self, media_type: &str, name: Option<&str>, content: Vec<u8>) -> ArtifactRef {
        let reference = ArtifactRef {
            artifact_id: format!("artifact-{}", self.artifacts.len() + 1),
            media_type: media_type.to_owned(),
            name: name.map(str::to_owned),
            size: Some(content.len() as u64),
            sha256: None,
        };
        self.artifacts.push(Artifact { reference: reference.clone(), content });
        reference
    }

    pub(super) fn state_pass(&mut self, call: &'static str, scope: StateScope) -> Answer<()> {
        self.pass(call, Permission::State(scope))
    }

    pub(super) fn state_write(&mut self, scope: StateScope, key: &str, value: &str) -> Answer<()> {
        if serde_json::from_str::<Value>(value).is_err() {
            return refuse(ErrorCode::InvalidArgument, format!("the value of `{key}` is no JSON"));
        }
        self.state.insert((scope as u8, key.to_owned()), value.to_owned());
        Ok(())
    }

    pub(super) fn storage_pass(&mut self, call: &'static str, area: StorageArea) -> Answer<()> {
        self.pass(call, Permission::Storage(area))
    }
}

fn role_name(message: &Message) -> &'static str {
    use crate::contract::Role;
    match message.role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
}

pub(super) fn position(cursor: Option<&str>, otherwise: u64) -> Answer<u64> {
    match cursor.map(str::parse) {
        None => Ok(otherwise),
        Some(Ok(position)) => Ok(position),
        Some(Err(_)) => refuse(ErrorCode::InvalidArgument, "that is no cursor of this host"),
    }
}

fn object(filters: Option<&str>) -> Answer<serde_json::Map<String, Value>> {
    match filters.map(serde_json::from_str) {
        None => Ok(serde_json::Map::new()),
        Some(Ok(Value::Object(filters))) => Ok(filters),
        Some(_) => refuse(ErrorCode::InvalidArgument, "filters are a JSON object"),
    }
}

/// Returns the number of words of the query that the text contains.
fn similarity(query: &str, text: &str) -> f64 {
    let words = |text: &str| -> Vec<String> {
        text.split(|char: char| !char.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
    };
    let there = words(text);
    f64::from(u32::try_from(words(query).iter().filter(|word| there.contains(word)).count()).unwrap_or(u32::MAX))
}
