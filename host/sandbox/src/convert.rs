//! From the contract to the protocol and back. Shapes only: no rule is judged here.

use agent_host_protocol as p;
use p::{ApiError, ErrorCode};
use serde_json::{Map, Value};

use crate::bindings::{context as wc, history as wh, log as wl, manifest as wm, results as wr, runner as wx, types as wt};

/// Maps enums of the contract to those of the protocol, variant by variant.
macro_rules! same {
    ($to:ident, $from:ident, $wit:ty, $protocol:ty, { $($variant:ident $(= $other:ident)?),* $(,)? }) => {
        pub(crate) fn $to(value: $wit) -> $protocol {
            match value { $(<$wit>::$variant => same!(@p $protocol, $variant $(, $other)?)),* }
        }
        #[allow(dead_code, reason = "not every enum travels both ways")]
        pub(crate) fn $from(value: $protocol) -> $wit {
            match value { $(same!(@q $protocol, $variant $(, $other)?) => <$wit>::$variant),* }
        }
    };
    (@p $protocol:ty, $variant:ident) => { <$protocol>::$variant };
    (@p $protocol:ty, $variant:ident, $other:ident) => { <$protocol>::$other };
    (@q $protocol:ty, $variant:ident) => { <$protocol>::$variant };
    (@q $protocol:ty, $variant:ident, $other:ident) => { <$protocol>::$other };
}

same!(role, role_out, wt::Role, p::message::Role, { System, Developer, User, Assistant, Tool });
same!(scope, scope_out, wm::StateScope, p::manifest::StateScope, { Conversation, Actor, Subject, Runner, Binding });
same!(model_op, model_op_out, wm::ModelOperation, p::manifest::ModelOperation, { Invoke, Stream, Rerank, Embed, CountTokens });
same!(tool_op, tool_op_out, wm::ToolOperation, p::manifest::ToolOperation, { Detail, Call });
same!(kb_op, kb_op_out, wm::KnowledgeOperation, p::manifest::KnowledgeOperation, { List, Retrieve });
same!(history_op, history_op_out, wm::HistoryOperation, p::manifest::HistoryOperation, { Page, Search });
same!(event_op, event_op_out, wm::EventOperation, p::manifest::EventOperation, { Get, Page });
same!(artifact_op, artifact_op_out, wm::ArtifactOperation, p::manifest::ArtifactOperation, { Metadata, Read, Create });
same!(area, area_out, wm::StorageArea, p::manifest::StorageArea, { Plugin, Workspace, Binding });
same!(run_op, run_op_out, wm::RunOperation, p::manifest::RunOperation, { Start, Get, List, Events, Cancel });
same!(ownership, ownership_out, wm::ContextOwnership, p::manifest::ContextOwnership, { SelfManaged, HostBootstrap, Hybrid });
same!(bootstrap_mode, bootstrap_mode_out, wm::BootstrapMode, p::manifest::BootstrapMode, { None, CurrentEvent, RecentTail, SummaryTail });
same!(direction, direction_out, wh::Direction, p::page::Direction, { Backward, Forward });

pub(crate) fn log_level(level: wl::Level) -> crate::calls::LogSource {
    use crate::calls::LogSource;
    match level {
        wl::Level::Trace => LogSource::Trace,
        wl::Level::Debug => LogSource::Debug,
        wl::Level::Info => LogSource::Info,
        wl::Level::Warn => LogSource::Warn,
        wl::Level::Error => LogSource::Error,
    }
}

// ---- JSON ----

/// Parses JSON of a guest.
///
/// # Errors
/// `invalid_argument` where it is not JSON, or nests too deep.
pub fn json(what: &str, text: &str) -> Result<Value, ApiError> {
    let value = serde_json::from_str(text).map_err(|error| ApiError::invalid_argument(format!("{what} is not JSON: {error}")))?;
    if p::limits::is_shallow(&value) {
        Ok(value)
    } else {
        Err(ApiError::invalid_argument(format!("{what} nests deeper than {} levels", p::limits::MAX_JSON_DEPTH)))
    }
}

fn json_option(what: &str, text: Option<String>) -> Result<Option<Value>, ApiError> {
    text.map(|text| json(what, &text)).transpose()
}

fn object(map: &Map<String, Value>) -> String {
    serde_json::to_string(map).unwrap_or_else(|_| "{}".to_owned())
}

// ---- errors ----

pub(crate) fn error_out(error: ApiError) -> wt::ApiError {
    let code = match error.code {
        ErrorCode::Unauthorized => wt::ErrorCode::Unauthorized,
        ErrorCode::NotFound => wt::ErrorCode::NotFound,
        ErrorCode::DeadlineExceeded => wt::ErrorCode::DeadlineExceeded,
        ErrorCode::PayloadTooLarge => wt::ErrorCode::PayloadTooLarge,
        ErrorCode::RateLimited => wt::ErrorCode::RateLimited,
        ErrorCode::InvalidArgument => wt::ErrorCode::InvalidArgument,
        ErrorCode::Conflict => wt::ErrorCode::Conflict,
        ErrorCode::Cancelled => wt::ErrorCode::Cancelled,
        ErrorCode::RuntimeError => wt::ErrorCode::RuntimeError,
        other => wt::ErrorCode::Other(other.as_str().to_owned()),
    };
    wt::ApiError {
        code,
        message: error.message,
        retryable: error.retryable,
        details: error.details.map(|details| details.to_string()),
    }
}

// ---- messages ----

fn artifact(artifact: wt::ArtifactRef) -> p::message::ArtifactRef {
    let wt::ArtifactRef { artifact_id, media_type, name, size, sha256 } = artifact;
    p::message::ArtifactRef { artifact_id, media_type, name, size, sha256 }
}

pub(crate) fn artifact_out(artifact: &p::message::ArtifactRef) -> wt::ArtifactRef {
    let p::message::ArtifactRef { artifact_id, media_type, name, size, sha256 } = artifact.clone();
    wt::ArtifactRef { artifact_id, media_type, name, size, sha256 }
}

fn part(part: wt::ContentPart) -> Result<p::message::ContentPart, ApiError> {
    Ok(match part {
        wt::ContentPart::Text(text) => p::message::ContentPart::Text(text),
        wt::ContentPart::Artifact(a) => p::message::ContentPart::Artifact(artifact(a)),
        wt::ContentPart::Other(text) => {
            let value = json("a content part", &text)?;
            if !value.get("type").is_some_and(Value::is_string) {
                return Err(ApiError::invalid_argument("a content part of another kind is a JSON object with a string `type`"));
            }
            p::message::ContentPart::Other(value)
        }
    })
}

fn part_out(part: &p::message::ContentPart) -> wt::ContentPart {
    match part {
        p::message::ContentPart::Text(text) => wt::ContentPart::Text(text.clone()),
        p::message::ContentPart::Artifact(a) => wt::ContentPart::Artifact(artifact_out(a)),
        p::message::ContentPart::Other(value) => wt::ContentPart::Other(value.to_string()),
    }
}

fn parts(all: Vec<wt::ContentPart>) -> Result<Vec<p::message::ContentPart>, ApiError> {
    all.into_iter().map(part).collect()
}

fn message(message: wt::Message) -> Result<p::message::Message, ApiError> {
    Ok(p::message::Message {
        role: role(message.role),
        content: parts(message.content)?,
        name: message.name,
        tool_calls: message
            .tool_calls
            .into_iter()
            .map(|call| {
                Ok(p::message::ToolCall {
                    parameters: json("the parameters of a tool call", &call.parameters)?,
                    call_id: call.call_id,
                    tool_name: call.tool_name,
                })
            })
            .collect::<Result<_, ApiError>>()?,
        tool_call_id: message.tool_call_id,
    })
}

fn message_out(message: &p::message::Message) -> wt::Message {
    wt::Message {
        role: role_out(message.role),
        content: message.content.iter().map(part_out).collect(),
        name: message.name.clone(),
        tool_calls: message
            .tool_calls
            .iter()
            .map(|call| wt::ToolCall {
                call_id: call.call_id.clone(),
                tool_name: call.tool_name.clone(),
                parameters: call.parameters.to_string(),
            })
            .collect(),
        tool_call_id: message.tool_call_id.clone(),
    }
}

fn localized(text: wt::LocalizedText) -> p::message::LocalizedText {
    p::message::LocalizedText::from_pairs(text)
}

// ---- results ----

fn part_bytes(part: &wt::ContentPart) -> usize {
    match part {
        wt::ContentPart::Text(text) | wt::ContentPart::Other(text) => text.len(),
        wt::ContentPart::Artifact(a) => a.artifact_id.len() + a.media_type.len() + a.name.as_ref().map_or(0, String::len),
    }
}

/// Bytes of text in a result, near enough to its size as JSON to bound it before it is parsed.
pub(crate) fn result_bytes(result: &wr::RunResult) -> usize {
    match result {
        wr::RunResult::MessageDelta(chunk) | wr::RunResult::ReasoningDelta(chunk) => chunk.message_id.len() + chunk.text.len(),
        wr::RunResult::MessageCompleted(done) => {
            let calls: usize =
                done.message.tool_calls.iter().map(|c| c.call_id.len() + c.tool_name.len() + c.parameters.len()).sum();
            done.message_id.len() + calls + done.message.content.iter().map(part_bytes).sum::<usize>()
        }
        wr::RunResult::ToolCallStarted(call) => call.call_id.len() + call.tool_name.len() + call.parameters.len(),
        wr::RunResult::ToolCallCompleted(call) => {
            let outcome = match &call.outcome {
                Ok(parts) => parts.iter().map(part_bytes).sum(),
                Err(error) => error.len(),
            };
            call.call_id.len() + call.tool_name.len() + outcome
        }
        wr::RunResult::ArtifactCreated(a) => part_bytes(&wt::ContentPart::Artifact(a.clone())),
        wr::RunResult::StateUpdated(update) => update.key.len() + update.value.len(),
        wr::RunResult::ActionRequested(action) => action.action.len() + action.target.len() + action.payload.len(),
        wr::RunResult::Other(other) => other.type_.len() + other.data.len(),
    }
}

pub(crate) fn result(result: wr::RunResult) -> Result<p::RunResult, ApiError> {
    use p::RunResult;
    Ok(match result {
        wr::RunResult::MessageDelta(chunk) => {
            RunResult::MessageDelta { message_id: chunk.message_id, role: role(chunk.role), text: chunk.text }
        }
        wr::RunResult::MessageCompleted(done) => {
            RunResult::MessageCompleted { message_id: done.message_id, message: message(done.message)? }
        }
        wr::RunResult::ReasoningDelta(chunk) => {
            RunResult::ReasoningDelta { message_id: chunk.message_id, role: role(chunk.role), text: chunk.text }
        }
        wr::RunResult::ToolCallStarted(call) => RunResult::ToolCallStarted {
            parameters: json("the parameters of a tool call", &call.parameters)?,
            call_id: call.call_id,
            tool_name: call.tool_name,
            message_id: call.message_id,
        },
        wr::RunResult::ToolCallCompleted(call) => RunResult::ToolCallCompleted {
            call_id: call.call_id,
            tool_name: call.tool_name,
            outcome: call.outcome.map(parts).transpose_ok()?,
        },
        wr::RunResult::ArtifactCreated(a) => RunResult::ArtifactCreated(artifact(a)),
        wr::RunResult::StateUpdated(update) => RunResult::StateUpdated {
            scope: scope(update.scope),
            value: json("the value of a state update", &update.value)?,
            key: update.key,
        },
        wr::RunResult::ActionRequested(action) => RunResult::ActionRequested {
            target: json("the target of an action", &action.target)?,
            payload: json("the payload of an action", &action.payload)?,
            action: action.action,
        },
        wr::RunResult::Other(other) => RunResult::Other { data: json("the data of a result", &other.data)?, kind: other.type_ },
    })
}

/// `Result<Result<T, E>, F>` where the inner error is the one that counts now.
trait TransposeOk<T, E, F> {
    fn transpose_ok(self) -> Result<Result<T, F>, E>;
}

impl<T, E, F> TransposeOk<T, E, F> for Result<Result<T, E>, F> {
    fn transpose_ok(self) -> Result<Result<T, F>, E> {
        match self {
            Ok(inner) => inner.map(Ok),
            Err(outer) => Ok(Err(outer)),
        }
    }
}

fn usage(usage: wt::TokenUsage) -> p::message::TokenUsage {
    let wt::TokenUsage { input, output, cached_input, reasoning } = usage;
    p::message::TokenUsage { input, output, cached_input, reasoning }
}

pub(crate) fn completion(done: wx::RunCompletion) -> Result<p::run::RunCompletion, ApiError> {
    Ok(p::run::RunCompletion {
        finish_reason: done.finish_reason,
        message: done.message.map(message).transpose()?,
        usage: done.usage.map(usage),
        metadata: json_option("the metadata of the completion", done.metadata)?,
    })
}

pub(crate) fn failure(failure: wx::RunFailure) -> Result<p::run::RunFailure, ApiError> {
    let code = if failure.code.is_empty() { p::FailureCode::RunnerError.as_str().to_owned() } else { failure.code };
    Ok(p::run::RunFailure {
        code,
        message: failure.message,
        retryable: failure.retryable,
        details: json_option("the details of the failure", failure.details)?,
    })
}

// ---- history ----

pub(crate) fn page_request(request: wh::PageRequest) -> crate::calls::PageRequest {
    crate::calls::PageRequest {
        conversation_id: request.conversation_id,
        before: request.before,
        after: request.after,
        limit: request.limit,
        direction: direction(request.direction),
        include_artifacts: request.include_artifacts,
    }
}

fn transcript_item_out(item: p::transcript::TranscriptItem) -> wh::TranscriptItem {
    let (text, content) = match item.content.as_slice() {
        [] => (None, None),
        [p::message::ContentPart::Text(text)] => (Some(text.clone()), None),
        parts => (None, serde_json::to_string(parts).ok()),
    };
    wh::TranscriptItem {
        transcript_id: item.transcript_id,
        event_id: item.event_id.to_string(),
        run_id: item.run_id.map(|id| id.to_string()),
        conversation_id: item.conversation_id,
        thread_id: item.thread_id,
        role: item.role,
        item_type: item.item_type,
        text,
        content,
        artifacts: item.artifacts.iter().map(artifact_out).collect(),
        seq: item.seq,
        cursor: item.cursor,
        created_at: item.created_at,
    }
}

pub(crate) fn page_out(page: p::Page<p::transcript::TranscriptItem>) -> wh::TranscriptPage {
    wh::TranscriptPage {
        items: page.items.into_iter().map(transcript_item_out).collect(),
        next: page.next_cursor,
        prev: page.prev_cursor,
        has_more: page.has_more,
    }
}

// ---- manifests ----

pub(crate) fn permissions(permissions: wm::Permissions) -> p::manifest::Permissions {
    fn all<A, B>(list: Vec<A>, f: impl Fn(A) -> B) -> Vec<B> {
        list.into_iter().map(f).collect()
    }
    p::manifest::Permissions {
        models: all(permissions.models, model_op),
        tools: all(permissions.tools, tool_op),
        knowledge_bases: all(permissions.knowledge_bases, kb_op),
        history: all(permissions.history, history_op),
        events: all(permissions.events, event_op),
        artifacts: all(permissions.artifacts, artifact_op),
        state: all(permissions.state, scope),
        storage: all(permissions.storage, area),
        runs: all(permissions.runs, run_op),
        platform_api: permissions.platform_actions,
        interactions: permissions.interactions,
        http_hosts: permissions.http_hosts,
    }
}

fn form_item(item: wm::FormItem) -> Result<p::manifest::FormItem, ApiError> {
    Ok(p::manifest::FormItem {
        default: json_option(&format!("the default of `{}`", item.name), item.default)?,
        name: item.name,
        kind: item.kind,
        label: localized(item.label),
        description: item.description.map(localized),
        required: item.required,
        options: item
            .options
            .into_iter()
            .map(|(name, label)| p::manifest::FormOption { name, label: localized(label) })
            .collect(),
    })
}

/// A manifest of the contract; what is wrong with it is said in words for its author.
pub(crate) fn manifest(manifest: wm::RunnerManifest) -> Result<p::RunnerManifest, String> {
    let id = p::RunnerId::new(&manifest.author, &manifest.plugin, &manifest.name).map_err(|error| error.to_string())?;
    let version = manifest
        .version
        .parse()
        .map_err(|error| format!("the version of {id} is not a semantic version such as 1.0.0: {error}"))?;
    let c = manifest.capabilities;
    let x = manifest.context;
    Ok(p::RunnerManifest {
        name: manifest.name,
        author: manifest.author,
        plugin: manifest.plugin,
        version,
        label: localized(manifest.label),
        description: manifest.description.map(localized),
        capabilities: p::manifest::Capabilities {
            streaming: c.streaming,
            tool_calling: c.tool_calling,
            knowledge_retrieval: c.knowledge_retrieval,
            multimodal_input: c.multimodal_input,
            event_context: c.event_context,
            platform_api: c.platform_api,
            interrupt: c.interrupt,
            steering: c.steering,
            stateful_session: c.stateful_session,
            self_managed_context: c.self_managed_context,
        },
        permissions: permissions(manifest.permissions),
        context: p::manifest::ContextPolicy {
            ownership: ownership(x.ownership),
            bootstrap: bootstrap_mode(x.bootstrap),
            max_inline_events: x.max_inline_events,
            max_inline_bytes: x.max_inline_bytes,
            supports_history_pull: x.supports_history_pull,
            supports_history_search: x.supports_history_search,
            supports_artifact_pull: x.supports_artifact_pull,
            owns_compaction: x.owns_compaction,
            wants_static_context_refs: x.wants_static_context_refs,
        },
        config_schema: manifest
            .config_schema
            .into_iter()
            .map(|item| form_item(item).map_err(|error| format!("the form of {id}: {}", error.message)))
            .collect::<Result<_, _>>()?,
        metadata: json(&format!("the metadata of {id}"), &manifest.metadata).map_err(|error| error.message)?,
        id,
    })
}

// ---- context ----

fn list<A, B>(items: &[A], f: impl Fn(&A) -> B) -> Vec<B> {
    items.iter().map(f).collect()
}

fn resources_out(resources: &p::context::Resources) -> wc::Resources {
    let storage = resources.storage;
    wc::Resources {
        models: list(&resources.models, |model| wc::ModelResource {
            model_id: model.model_id.clone(),
            model_type: model.model_type.clone(),
            provider: model.provider.clone(),
            operations: list(&model.operations, |op| model_op_out(*op)),
        }),
        tools: list(&resources.tools, |tool| wc::ToolResource {
            tool_name: tool.tool_name.clone(),
            description: tool.description.clone(),
            operations: list(&tool.operations, |op| tool_op_out(*op)),
        }),
        knowledge_bases: list(&resources.knowledge_bases, |kb| wc::KnowledgeBaseResource {
            kb_id: kb.kb_id.clone(),
            kb_name: kb.kb_name.clone(),
            operations: list(&kb.operations, |op| kb_op_out(*op)),
        }),
        artifacts: list(&resources.artifacts, artifact_out),
        skills: list(&resources.skills, |skill| wc::SkillResource {
            skill_name: skill.skill_name.clone(),
            description: skill.description.clone(),
            content: artifact_out(&skill.content),
        }),
        storage: [
            (storage.plugin_storage, wm::StorageArea::Plugin),
            (storage.workspace_storage, wm::StorageArea::Workspace),
            (storage.binding_storage, wm::StorageArea::Binding),
        ]
        .into_iter()
        .filter_map(|(granted, area)| granted.then_some(area))
        .collect(),
        platform_actions: resources.platform_actions.clone(),
        platform_capabilities: object(&resources.platform_capabilities),
    }
}

fn access_out(access: &p::context::ContextAccess) -> wc::ContextAccess {
    let apis = access.available_apis;
    wc::ContextAccess {
        conversation_id: access.conversation_id.clone(),
        thread_id: access.thread_id.clone(),
        latest_cursor: access.latest_cursor.clone(),
        event_seq: access.event_seq,
        transcript_seq: access.transcript_seq,
        has_history_before: access.has_history_before,
        inline_policy: wc::InlinePolicy {
            mode: bootstrap_mode_out(access.inline_policy.mode),
            delivered_count: access.inline_policy.delivered_count,
            source_total_count: access.inline_policy.source_total_count,
            messages_complete: access.inline_policy.messages_complete,
            reason: access.inline_policy.reason.clone(),
        },
        available_apis: wc::AvailableApis {
            history_page: apis.history_page,
            history_search: apis.history_search,
            event_get: apis.event_get,
            event_page: apis.event_page,
            artifact_metadata: apis.artifact_metadata,
            artifact_read: apis.artifact_read,
            artifact_create: apis.artifact_create,
            state: apis.state,
            storage: apis.storage,
            steering: apis.steering,
            interactions: apis.interactions,
            runs: apis.runs,
        },
    }
}

pub(crate) fn context_out(context: &p::context::RunContext) -> wc::RunContext {
    wc::RunContext {
        run_id: context.run_id.to_string(),
        parent_run_id: context.parent_run_id.map(|id| id.to_string()),
        trigger: wc::Trigger {
            type_: context.trigger.kind.clone(),
            source: context.trigger.source.clone(),
            timestamp: context.trigger.timestamp,
        },
        event: wc::Event {
            event_id: context.event.event_id.to_string(),
            event_type: context.event.event_type.clone(),
            event_time: context.event.event_time,
            source: context.event.source.clone(),
            source_event_type: context.event.source_event_type.clone(),
            raw_ref: context.event.raw_ref.as_ref().map(artifact_out),
            data: object(&context.event.data),
        },
        conversation: context.conversation.clone().map(|c| wc::Conversation {
            conversation_id: c.conversation_id,
            thread_id: c.thread_id,
            launcher_type: c.launcher_type,
            launcher_id: c.launcher_id,
            bot_id: c.bot_id,
            workspace_id: c.workspace_id,
        }),
        actor: context.actor.as_ref().map(|actor| wc::Actor {
            actor_type: actor.actor_type.clone(),
            actor_id: actor.actor_id.clone(),
            actor_name: actor.actor_name.clone(),
            metadata: object(&actor.metadata),
        }),
        subject: context.subject.as_ref().map(|subject| wc::Subject {
            subject_type: subject.subject_type.clone(),
            subject_id: subject.subject_id.clone(),
            data: object(&subject.data),
        }),
        input: wc::Input {
            text: context.input.text.clone(),
            contents: list(&context.input.contents, part_out),
            attachments: list(&context.input.attachments, artifact_out),
            message_chain: context.input.message_chain.as_ref().map(Value::to_string),
        },
        delivery: wc::Delivery {
            surface: context.delivery.surface.clone(),
            reply_target: context.delivery.reply_target.as_ref().map(Value::to_string),
            supports_streaming: context.delivery.supports_streaming,
            supports_edit: context.delivery.supports_edit,
            supports_reaction: context.delivery.supports_reaction,
            max_message_size: context.delivery.max_message_size,
            platform_capabilities: object(&context.delivery.platform_capabilities),
        },
        resources: resources_out(&context.resources),
        context: access_out(&context.context),
        state: wc::StateSnapshot {
            conversation: object(&context.state.conversation),
            actor: object(&context.state.actor),
            subject: object(&context.state.subject),
            runner: object(&context.state.runner),
            binding: object(&context.state.binding),
        },
        runtime: wc::Runtime {
            host: context.runtime.host.clone(),
            host_version: context.runtime.host_version.clone(),
            trace_id: context.runtime.trace_id.clone(),
            deadline_at: context.runtime.deadline_at,
            locale: context.runtime.locale.clone(),
            timezone: context.runtime.timezone.clone(),
            attempt: context.runtime.attempt,
            static_refs: context
                .runtime
                .static_refs
                .iter()
                .map(|(name, reference)| wc::StaticRef {
                    name: name.clone(),
                    version: reference.version.clone(),
                    sha256: reference.sha256.clone(),
                    content: reference.content.as_ref().map(artifact_out),
                })
                .collect(),
            metadata: object(&context.runtime.metadata),
        },
        config: object(&context.config),
        bootstrap: context.bootstrap.as_ref().map(|bootstrap| wc::Bootstrap {
            messages: list(&bootstrap.messages, message_out),
            summary: bootstrap.summary.clone(),
            artifacts: list(&bootstrap.artifacts, artifact_out),
            metadata: object(&bootstrap.metadata),
        }),
        adapter: context.adapter.as_ref().map(Value::to_string),
        metadata: object(&context.metadata),
    }
}
