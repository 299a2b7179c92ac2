//! The host calls of a guest: one trait for each interface of the contract. This crate declares the traits; the kernel
//! implements them behind its one gate.

use std::sync::Arc;

use agent_host_protocol::{
    ApiError, Interface, Page, RunEvent, RunId, Timestamp,
    artifact::ArtifactMetadata,
    ask::{ActionOutcome, Answer, QuestionKind},
    child::RunSummary,
    context::{EventContext, KnowledgeBaseResource, SteeringInput},
    knowledge::KnowledgeHit,
    manifest::{StateScope, StorageArea},
    model::{ModelResponse, RerankHit},
    page::Direction,
    tool::{ToolDetail, ToolOutput},
    transcript::TranscriptItem,
};
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;

use crate::handles::{ArtifactReader, ArtifactWriter, ResponseStream};

mod http;
mod no_run;
mod unparsed;

pub use http::{HttpBody, HttpCalls};
pub(crate) use no_run::NoRun;
pub use unparsed::{Batch, ChatMessages, ChatRequest, StartInput};

/// The host calls of one run. A value belongs to one run, so no function has a parameter for the run.
///
/// A refusal is an `Err`, which the guest can read; nothing here can trap it. Arguments that are JSON arrive
/// as text, because the gate looks at the size of a thing before anybody parses it.
pub trait HostCalls:
    ResultCalls
    + ModelCalls
    + ToolCalls
    + KnowledgeCalls
    + HistoryCalls
    + EventCalls
    + ArtifactCalls
    + StateCalls
    + StorageCalls
    + TimeCalls
    + PlatformCalls
    + InteractionCalls
    + SteeringCalls
    + ChildCalls
    + HttpCalls
    + Refusals
    + 'static
{
}

impl<T> HostCalls for T where
    T: ResultCalls
        + ModelCalls
        + ToolCalls
        + KnowledgeCalls
        + HistoryCalls
        + EventCalls
        + ArtifactCalls
        + StateCalls
        + StorageCalls
        + TimeCalls
        + PlatformCalls
        + InteractionCalls
        + SteeringCalls
        + ChildCalls
        + HttpCalls
        + Refusals
        + 'static
{
}

/// `results`.
pub trait ResultCalls: Send {
    /// `results.emit`: all of the batch or none; gives the sequence number of the last.
    fn emit(&mut self, batch: Batch) -> BoxFuture<'_, Result<u64, ApiError>>;
}

/// `models`.
pub trait ModelCalls: Send {
    /// `models.invoke`.
    fn model_invoke(&mut self, model_id: String, request: ChatRequest) -> BoxFuture<'_, Result<ModelResponse, ApiError>>;

    /// `models.stream`.
    fn model_stream(
        &mut self,
        model_id: String,
        request: ChatRequest,
    ) -> BoxFuture<'_, Result<Box<dyn ResponseStream>, ApiError>>;

    /// `models.rerank`.
    fn model_rerank(
        &mut self,
        model_id: String,
        query: String,
        documents: Vec<String>,
        top_k: Option<u32>,
    ) -> BoxFuture<'_, Result<Vec<RerankHit>, ApiError>>;

    /// `models.embed`.
    fn model_embed(&mut self, model_id: String, texts: Vec<String>) -> BoxFuture<'_, Result<Vec<Vec<f32>>, ApiError>>;

    /// `models.count-tokens`.
    fn model_count_tokens(&mut self, model_id: String, messages: ChatMessages) -> BoxFuture<'_, Result<u64, ApiError>>;
}

/// `tools`.
pub trait ToolCalls: Send {
    /// `tools.get-detail`.
    fn tool_detail(&mut self, tool_name: String) -> BoxFuture<'_, Result<ToolDetail, ApiError>>;

    /// `tools.call`.
    fn tool_call(&mut self, call: ToolRequest) -> BoxFuture<'_, Result<ToolOutput, ApiError>>;

    /// `tools.call-many`: one outcome for each call, in their order.
    fn tool_call_many(&mut self, calls: Vec<ToolRequest>) -> BoxFuture<'_, Vec<Result<ToolOutput, ApiError>>>;
}

/// A tool call, its parameters not yet parsed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolRequest {
    /// Names the call within the run.
    pub call_id: String,
    /// The tool.
    pub tool_name: String,
    /// JSON text.
    pub parameters: String,
}

/// `knowledge`.
pub trait KnowledgeCalls: Send {
    /// `knowledge.list`.
    fn knowledge_list(&mut self) -> BoxFuture<'_, Result<Vec<KnowledgeBaseResource>, ApiError>>;

    /// `knowledge.retrieve`; the filters are JSON text.
    fn knowledge_retrieve(
        &mut self,
        kb_id: String,
        query: String,
        top_k: u32,
        filters: Option<String>,
    ) -> BoxFuture<'_, Result<Vec<KnowledgeHit>, ApiError>>;
}

/// `history`.
pub trait HistoryCalls: Send {
    /// `history.page`.
    fn history_page(&mut self, request: PageRequest) -> BoxFuture<'_, Result<Page<TranscriptItem>, ApiError>>;

    /// `history.search`; the filters are JSON text.
    fn history_search(
        &mut self,
        query: String,
        filters: Option<String>,
        top_k: u32,
    ) -> BoxFuture<'_, Result<Vec<TranscriptItem>, ApiError>>;
}

/// A request for a page of the transcript, as the guest made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PageRequest {
    /// Another conversation than the run's own.
    pub conversation_id: Option<String>,
    /// Read what is older than this.
    pub before: Option<String>,
    /// Read what is newer than this.
    pub after: Option<String>,
    /// Largest number of items.
    pub limit: u32,
    /// Direction of the page.
    pub direction: Direction,
    /// True if items include references to their artifacts.
    pub include_artifacts: bool,
}

/// `events`.
pub trait EventCalls: Send {
    /// `events.get`.
    fn event_get(&mut self, event_id: String) -> BoxFuture<'_, Result<EventContext, ApiError>>;

    /// `events.page`: from newer to older.
    fn event_page(
        &mut self,
        before: Option<String>,
        event_types: Vec<String>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<EventContext>, ApiError>>;
}

/// `artifacts`.
pub trait ArtifactCalls: Send {
    /// `artifacts.metadata`.
    fn artifact_metadata(&mut self, artifact_id: String) -> BoxFuture<'_, Result<ArtifactMetadata, ApiError>>;

    /// `artifacts.read-range`.
    fn artifact_read_range(&mut self, artifact_id: String, offset: u64, length: u32) -> BoxFuture<'_, Result<Vec<u8>, ApiError>>;

    /// `artifacts.open`.
    fn artifact_open(&mut self, artifact_id: String) -> BoxFuture<'_, Result<Box<dyn ArtifactReader>, ApiError>>;

    /// `artifacts.create`.
    fn artifact_create(
        &mut self,
        media_type: String,
        name: Option<String>,
    ) -> BoxFuture<'_, Result<Box<dyn ArtifactWriter>, ApiError>>;
}

/// `state`.
pub trait StateCalls: Send {
    /// `state.get`.
    fn state_get(&mut self, scope: StateScope, key: String) -> BoxFuture<'_, Result<Option<Value>, ApiError>>;

    /// `state.set`; the value is JSON text.
    fn state_set(&mut self, scope: StateScope, key: String, value: String) -> BoxFuture<'_, Result<(), ApiError>>;

    /// `state.delete`.
    fn state_delete(&mut self, scope: StateScope, key: String) -> BoxFuture<'_, Result<(), ApiError>>;

    /// `state.list-keys`.
    fn state_list_keys(
        &mut self,
        scope: StateScope,
        prefix: Option<String>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<String>, ApiError>>;
}

/// `storage`.
pub trait StorageCalls: Send {
    /// `storage.get`.
    fn storage_get(&mut self, area: StorageArea, key: String) -> BoxFuture<'_, Result<Option<Vec<u8>>, ApiError>>;

    /// `storage.set`.
    fn storage_set(&mut self, area: StorageArea, key: String, value: Vec<u8>) -> BoxFuture<'_, Result<(), ApiError>>;

    /// `storage.delete`.
    fn storage_delete(&mut self, area: StorageArea, key: String) -> BoxFuture<'_, Result<(), ApiError>>;

    /// `storage.list`.
    fn storage_list(
        &mut self,
        area: StorageArea,
        prefix: Option<String>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<String>, ApiError>>;
}

/// `timers`, and the timers of WASI. The implementation moves the clock of the guest's [`crate::World`].
pub trait TimeCalls: Send {
    /// `timers.now`.
    fn now(&mut self) -> BoxFuture<'_, Timestamp>;

    /// `timers.sleep-until`.
    fn sleep_until(&mut self, at: Timestamp) -> BoxFuture<'_, Result<(), ApiError>>;

    /// `wasi:io/poll`: returns when the guest's clock shows at least this many microseconds. The function cannot refuse; a
    /// run that ends is dropped while it waits.
    fn wait_until(&mut self, elapsed_us: u64) -> BoxFuture<'_, ()>;
}

/// `platform`.
pub trait PlatformCalls: Send {
    /// `platform.request-action`: returns when it is done, or when it will not be.
    fn platform_request_action(&mut self, request: ActionRequest) -> BoxFuture<'_, Result<ActionOutcome, ApiError>>;
}

/// The request of a platform action, from the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActionRequest {
    /// Name of the action.
    pub action: String,
    /// JSON text.
    pub target: String,
    /// JSON text.
    pub payload: String,
}

impl ActionRequest {
    /// Bytes of text in it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.action.len() + self.target.len() + self.payload.len()
    }
}

/// `interactions`.
pub trait InteractionCalls: Send {
    /// `interactions.ask`: returns when a person has answered, or when nobody needs to any more.
    fn interaction_ask(&mut self, question: AskedQuestion) -> BoxFuture<'_, Result<Answer, ApiError>>;
}

/// A question to a person, as the guest asks it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AskedQuestion {
    /// Kind of answer.
    pub kind: QuestionKind,
    /// Title, one line.
    pub title: String,
    /// More of it.
    pub description: Option<String>,
    /// JSON Schema of the answer, as JSON text.
    pub answer_schema: Option<String>,
    /// Time after which no answer is accepted.
    pub expires_at: Option<Timestamp>,
}

impl AskedQuestion {
    /// Bytes of text in it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let texts = [&self.description, &self.answer_schema];
        self.title.len() + texts.into_iter().flatten().map(String::len).sum::<usize>()
    }
}

/// `steering`.
pub trait SteeringCalls: Send {
    /// `steering.pull`: waits up to `wait_ms` for the first, then gives all that is there, up to `limit`.
    fn steering_pull(&mut self, limit: u32, wait_ms: u32) -> BoxFuture<'_, Result<Vec<SteeringInput>, ApiError>>;
}

/// `runs`: the runs that this run started.
pub trait ChildCalls: Send {
    /// `runs.start`.
    fn run_start(&mut self, request: StartRequest) -> BoxFuture<'_, Result<RunId, ApiError>>;

    /// `runs.wait-any`: waits up to `wait_ms` until one of them has ended, and gives it.
    fn run_wait_any(&mut self, run_ids: Vec<String>, wait_ms: u32) -> BoxFuture<'_, Result<Option<RunSummary>, ApiError>>;

    /// `runs.get`.
    fn run_get(&mut self, run_id: String) -> BoxFuture<'_, Result<RunSummary, ApiError>>;

    /// `runs.list`.
    fn run_list(&mut self, parent_run_id: Option<String>, limit: u32) -> BoxFuture<'_, Result<Vec<RunSummary>, ApiError>>;

    /// `runs.events-page`: from older to newer.
    fn run_events_page(
        &mut self,
        run_id: String,
        after: Option<String>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<RunEvent>, ApiError>>;

    /// `runs.cancel`.
    fn run_cancel(&mut self, run_id: String, reason: String) -> BoxFuture<'_, Result<(), ApiError>>;
}

/// The request to start a child, from the guest.
#[derive(Debug, Clone, Serialize)]
pub struct StartRequest {
    /// Id of the runner.
    pub runner_id: String,
    /// Input of the child.
    pub input: StartInput,
    /// Reason, for people who read the run tree.
    pub objective: String,
    /// The configuration of the child, as JSON text.
    pub config: Option<String>,
}

impl StartRequest {
    /// Bytes of text in it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let config = self.config.as_ref().map_or(0, String::len);
        self.runner_id.len() + self.objective.len() + config + self.input.bytes()
    }
}

/// Answers of interfaces that the run was not granted.
pub trait Refusals: Send {
    /// A call of an interface that the run was not granted: records and returns the refusal.
    fn refuse(&mut self, interface: Interface, function: &'static str) -> BoxFuture<'_, ApiError>;
}

/// The diagnostic output of a run: its `log` calls, its standard output and its standard error.
///
/// Called from the guest's own turn, so it must not block.
pub trait RunLog: Send + Sync + 'static {
    /// Takes bytes as they come; a line may arrive in pieces.
    fn write(&self, source: LogSource, bytes: &[u8]);
}

/// A log that can be shared with the guest's streams.
pub type SharedLog = Arc<dyn RunLog>;

/// The source of a piece of log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum LogSource {
    Stdout,
    Stderr,
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}
