//! The context that the host passes to a run (protocol v1, sections 4 and 5), without history.

mod parts;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

pub use parts::{EventPart, join};

use crate::{
    id::{EventId, RunId},
    manifest::{BootstrapMode, KnowledgeOperation, ModelOperation, StateScope, ToolOperation},
    message::{ArtifactRef, ContentPart, Message},
    time::Timestamp,
};

/// The reason for the existence of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Trigger {
    /// As the type of the event, or coarser.
    #[serde(rename = "type")]
    pub kind: String,
    /// As the source of the event.
    pub source: String,
    /// Time at which the host accepted the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,
}

/// The event as a runner sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventContext {
    /// The host's own name for it.
    pub event_id: EventId,
    /// A stable protocol name, such as `message.received`.
    pub event_type: String,
    /// Time of the event, if the source knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_time: Option<Timestamp>,
    /// Source of the event.
    pub source: String,
    /// The name that the platform itself gave to the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_event_type: Option<String>,
    /// The raw payload, where it is large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_ref: Option<ArtifactRef>,
    /// Facts of the event.
    #[serde(default)]
    pub data: Map<String, Value>,
}

/// The conversation of an event.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "opaque ids of the platform; the names are the meaning")]
pub struct Conversation {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    pub conversation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    pub thread_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    pub launcher_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    pub launcher_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    pub bot_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    pub workspace_id: Option<String>,
}

impl Conversation {
    /// The ids that are there, each with its name.
    pub fn ids(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("conversation.conversation_id", &self.conversation_id),
            ("conversation.thread_id", &self.thread_id),
            ("conversation.launcher_type", &self.launcher_type),
            ("conversation.launcher_id", &self.launcher_id),
            ("conversation.bot_id", &self.bot_id),
            ("conversation.workspace_id", &self.workspace_id),
        ]
        .into_iter()
        .filter_map(|(name, id)| id.as_deref().map(|id| (name, id)))
    }
}

/// The author of an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Actor {
    /// `user`, `system`, ...
    pub actor_type: String,
    /// Opaque id of the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    pub actor_id: Option<String>,
    /// A name to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_name: Option<String>,
    /// More of it.
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

/// The subject of an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// `message`, `issue`, `schedule`, ...
    pub subject_type: String,
    /// Opaque id of the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    pub subject_id: Option<String>,
    /// More of it.
    #[serde(default)]
    pub data: Map<String, Value>,
}

/// The input of this event, without history.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Input {
    /// The text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Structured content.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<ContentPart>,
    /// Files, images, sound.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<ArtifactRef>,
    /// A form of the platform, for compatibility.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_chain: Option<Value>,
}

/// Input that arrived while a run was active.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SteeringInput {
    /// The event that brought it.
    pub event: EventContext,
    /// Input of the event.
    pub input: Input,
}

/// The capabilities of the client that shows the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Delivery {
    /// `api`, `cli`, `chat`, ...
    pub surface: String,
    /// Address of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_target: Option<Value>,
    /// Shows deltas.
    #[serde(default)]
    pub supports_streaming: bool,
    /// Can change what was shown.
    #[serde(default)]
    pub supports_edit: bool,
    /// Can react to a message.
    #[serde(default)]
    pub supports_reaction: bool,
    /// Longest message, in characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_message_size: Option<u32>,
    /// More of it.
    #[serde(default)]
    pub platform_capabilities: Map<String, Value>,
}

impl Delivery {
    /// The delivery to a client of this surface that shows deltas and does nothing else with an answer.
    #[must_use]
    pub fn streaming(surface: &str) -> Self {
        Self {
            surface: surface.to_owned(),
            reply_target: None,
            supports_streaming: true,
            supports_edit: false,
            supports_reaction: false,
            max_message_size: None,
            platform_capabilities: Map::new(),
        }
    }
}

/// A model that the run may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelResource {
    /// Opaque.
    pub model_id: String,
    /// `llm`, `embedding` or `rerank`.
    pub model_type: String,
    /// Provider of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Granted operations.
    pub operations: Vec<ModelOperation>,
}

/// A tool that the run may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolResource {
    /// Opaque.
    pub tool_name: String,
    /// Description of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Granted operations.
    pub operations: Vec<ToolOperation>,
}

/// A knowledge base that the run may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KnowledgeBaseResource {
    /// Opaque.
    pub kb_id: String,
    /// A name to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kb_name: Option<String>,
    /// Granted operations.
    pub operations: Vec<KnowledgeOperation>,
}

/// A skill that the run may read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkillResource {
    /// Opaque.
    pub skill_name: String,
    /// Purpose, for readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Text of the resource.
    pub content: ArtifactRef,
}

/// Areas of storage that the run may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct StorageResource {
    /// The plugin's own.
    pub plugin_storage: bool,
    /// The workspace's.
    pub workspace_storage: bool,
    /// The binding's.
    pub binding_storage: bool,
}

/// The part of the transcript that the run may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct HistoryResource {
    /// By pages.
    pub page: bool,
    /// By full-text search.
    pub search: bool,
}

/// The result of authorization for this run: manifest, binding and scope together.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[allow(missing_docs, reason = "each list is of what its type says")]
pub struct Resources {
    pub models: Vec<ModelResource>,
    pub tools: Vec<ToolResource>,
    pub knowledge_bases: Vec<KnowledgeBaseResource>,
    pub artifacts: Vec<ArtifactRef>,
    pub skills: Vec<SkillResource>,
    pub storage: StorageResource,
    pub history: HistoryResource,
    /// Names of platform actions that the run may ask for.
    pub platform_actions: Vec<String>,
    pub platform_capabilities: Map<String, Value>,
}

/// The decision about inlined items.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InlinePolicy {
    /// Kind of the inlined items.
    pub mode: BootstrapMode,
    /// Number of inlined items.
    #[serde(default)]
    pub delivered_count: u32,
    /// Of how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_total_count: Option<u32>,
    /// True if no further items exist.
    #[serde(default)]
    pub messages_complete: bool,
    /// Reason why no further items are inlined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The interfaces that answer this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are the functions and interfaces of the contract")]
pub struct AvailableApis {
    pub history_page: bool,
    pub history_search: bool,
    pub event_get: bool,
    pub event_page: bool,
    pub artifact_metadata: bool,
    pub artifact_read: bool,
    pub artifact_create: bool,
    pub state: bool,
    pub storage: bool,
    pub steering: bool,
    pub interactions: bool,
    pub runs: bool,
}

/// The APIs and cursors for a runner that needs more context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[allow(missing_docs, reason = "field names of the protocol")]
pub struct ContextAccess {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// The position right after this event in the transcript: page backward from here for what came before
    /// it, this event included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_cursor: Option<String>,
    /// Number of this event in the event log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_seq: Option<u64>,
    /// Number of this event's item in the transcript of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript_seq: Option<u64>,
    /// True if the transcript has items before this event's.
    #[serde(default)]
    pub has_history_before: bool,
    /// The session of the run: equal for the runs of one runner and binding in one thread of a conversation, of a workspace and
    /// bot. A runtime that keeps sessions or prompt caches names them so. Absent without a conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_key: Option<String>,
    pub inline_policy: InlinePolicy,
    pub available_apis: AvailableApis,
}

/// A snapshot of the state that the host keeps, a JSON object for each scope.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are the scopes")]
pub struct StateSnapshot {
    pub conversation: Map<String, Value>,
    pub actor: Map<String, Value>,
    pub subject: Map<String, Value>,
    pub runner: Map<String, Value>,
    pub binding: Map<String, Value>,
}

impl StateSnapshot {
    /// The values of one scope.
    #[must_use]
    pub fn scope(&self, scope: StateScope) -> &Map<String, Value> {
        match scope {
            StateScope::Conversation => &self.conversation,
            StateScope::Actor => &self.actor,
            StateScope::Subject => &self.subject,
            StateScope::Runner => &self.runner,
            StateScope::Binding => &self.binding,
        }
    }

    /// The values of one scope, to be filled.
    pub fn scope_mut(&mut self, scope: StateScope) -> &mut Map<String, Value> {
        match scope {
            StateScope::Conversation => &mut self.conversation,
            StateScope::Actor => &mut self.actor,
            StateScope::Subject => &mut self.subject,
            StateScope::Runner => &mut self.runner,
            StateScope::Binding => &mut self.binding,
        }
    }
}

/// Names content that does not change from run to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[allow(missing_docs, reason = "field names of the protocol")]
pub struct StaticRef {
    pub version: String,
    pub sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<ArtifactRef>,
}

/// About the host and this execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[allow(missing_docs, reason = "field names of the protocol")]
pub struct Runtime {
    pub host: String,
    pub host_version: String,
    pub trace_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// 1 for the first try, more where the run was retried.
    pub attempt: u32,
    #[serde(default)]
    pub static_refs: std::collections::BTreeMap<String, StaticRef>,
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

/// Inlined items, a convenience for simple runners. Never the whole history.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[allow(missing_docs, reason = "field names of the protocol")]
pub struct Bootstrap {
    pub messages: Vec<Message>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    pub artifacts: Vec<ArtifactRef>,
    pub metadata: Map<String, Value>,
}

/// The context of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[allow(missing_docs, reason = "field names of the protocol; each type says what it is")]
pub struct RunContext {
    pub run_id: RunId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    pub trigger: Trigger,
    pub event: EventContext,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Conversation>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Actor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    pub input: Input,
    pub delivery: Delivery,
    pub resources: Resources,
    pub context: ContextAccess,
    pub state: StateSnapshot,
    pub runtime: Runtime,
    /// The configuration of the binding.
    pub config: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// Fields of an entry adapter. A runner must not come to depend on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Value>,
    #[serde(default)]
    pub metadata: Map<String, Value>,
}
