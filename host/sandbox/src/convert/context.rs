//! The context of a run.

use agent_host_protocol as p;
use p::{ApiError, encoded::json_string};
use serde::Serialize;
use serde_json::Value;

use super::{
    artifact, artifact_out, bootstrap_mode_out, json_option, kb_op_out, message_out, model_op_out, object, part_out, parts,
    service::{artifact_bytes, part_bytes},
    tool_op_out,
};
use crate::bindings::{context as wc, manifest as wm};

fn list<A, B>(items: Vec<A>, f: impl Fn(A) -> B) -> Vec<B> {
    items.into_iter().map(f).collect()
}

fn resources_out(resources: p::context::Resources) -> wc::Resources {
    let storage = resources.storage;
    wc::Resources {
        models: list(resources.models, |model| wc::ModelResource {
            model_id: model.model_id,
            model_type: model.model_type,
            provider: model.provider,
            operations: list(model.operations, model_op_out),
        }),
        tools: list(resources.tools, |tool| wc::ToolResource {
            tool_name: tool.tool_name,
            description: tool.description,
            operations: list(tool.operations, tool_op_out),
        }),
        knowledge_bases: list(resources.knowledge_bases, |kb| wc::KnowledgeBaseResource {
            kb_id: kb.kb_id,
            kb_name: kb.kb_name,
            operations: list(kb.operations, kb_op_out),
        }),
        artifacts: list(resources.artifacts, artifact_out),
        skills: list(resources.skills, |skill| wc::SkillResource {
            skill_name: skill.skill_name,
            description: skill.description,
            content: artifact_out(skill.content),
        }),
        storage: [
            (storage.plugin_storage, wm::StorageArea::Plugin),
            (storage.workspace_storage, wm::StorageArea::Workspace),
            (storage.binding_storage, wm::StorageArea::Binding),
        ]
        .into_iter()
        .filter_map(|(granted, area)| granted.then_some(area))
        .collect(),
        platform_actions: resources.platform_actions,
        platform_capabilities: object(&resources.platform_capabilities),
    }
}

pub(crate) fn event_out(event: p::context::EventContext) -> wc::Event {
    wc::Event {
        event_id: event.event_id.to_string(),
        event_type: event.event_type,
        event_time: event.event_time,
        source: event.source,
        source_event_type: event.source_event_type,
        raw_ref: event.raw_ref.map(artifact_out),
        data: object(&event.data),
    }
}

pub(crate) fn input_out(input: p::context::Input) -> wc::Input {
    wc::Input {
        text: input.text,
        contents: list(input.contents, part_out),
        attachments: list(input.attachments, artifact_out),
        message_chain: input.message_chain.as_ref().map(Value::to_string),
    }
}

/// Bytes of text in an input, near enough to its size as JSON to bound it before it is parsed.
pub(crate) fn input_bytes(input: &wc::Input) -> usize {
    let texts = input.text.as_ref().map_or(0, String::len) + input.message_chain.as_ref().map_or(0, String::len);
    let attachments: usize = input.attachments.iter().map(artifact_bytes).sum();
    texts + attachments + input.contents.iter().map(part_bytes).sum::<usize>()
}

pub(crate) fn input(input: wc::Input) -> Result<p::context::Input, ApiError> {
    Ok(p::context::Input {
        text: input.text,
        contents: parts(input.contents)?,
        attachments: input.attachments.into_iter().map(artifact).collect(),
        message_chain: json_option("the message chain of the input", input.message_chain)?,
    })
}

/// The metadata of the runtime, with what the records of the contract have no member for.
fn runtime_metadata(mut metadata: serde_json::Map<String, Value>, session_key: Option<String>) -> String {
    #[derive(Serialize)]
    struct SessionKey<'a> {
        session_key: &'a str,
    }
    // Most runs have no other: their text takes no map.
    if let (true, Some(session_key)) = (metadata.is_empty(), &session_key)
        && let Ok(text) = json_string(&SessionKey { session_key })
    {
        return text;
    }
    metadata.extend(session_key.map(|key| ("session_key".to_owned(), key.into())));
    object(&metadata)
}

fn access_out(access: p::context::ContextAccess) -> wc::ContextAccess {
    let apis = access.available_apis;
    wc::ContextAccess {
        conversation_id: access.conversation_id,
        thread_id: access.thread_id,
        latest_cursor: access.latest_cursor,
        event_seq: access.event_seq,
        transcript_seq: access.transcript_seq,
        has_history_before: access.has_history_before,
        inline_policy: wc::InlinePolicy {
            mode: bootstrap_mode_out(access.inline_policy.mode),
            delivered_count: access.inline_policy.delivered_count,
            source_total_count: access.inline_policy.source_total_count,
            messages_complete: access.inline_policy.messages_complete,
            reason: access.inline_policy.reason,
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

pub(crate) fn context_out(mut context: p::context::RunContext) -> wc::RunContext {
    let session_key = context.context.session_key.take();
    wc::RunContext {
        run_id: context.run_id.to_string(),
        parent_run_id: context.parent_run_id.map(|id| id.to_string()),
        trigger: wc::Trigger {
            type_: context.trigger.kind,
            source: context.trigger.source,
            timestamp: context.trigger.timestamp,
        },
        event: event_out(context.event),
        conversation: context.conversation.map(|c| wc::Conversation {
            conversation_id: c.conversation_id,
            thread_id: c.thread_id,
            launcher_type: c.launcher_type,
            launcher_id: c.launcher_id,
            bot_id: c.bot_id,
            workspace_id: c.workspace_id,
        }),
        actor: context.actor.map(|actor| wc::Actor {
            actor_type: actor.actor_type,
            actor_id: actor.actor_id,
            actor_name: actor.actor_name,
            metadata: object(&actor.metadata),
        }),
        subject: context.subject.map(|subject| wc::Subject {
            subject_type: subject.subject_type,
            subject_id: subject.subject_id,
            data: object(&subject.data),
        }),
        input: input_out(context.input),
        delivery: wc::Delivery {
            surface: context.delivery.surface,
            reply_target: context.delivery.reply_target.as_ref().map(Value::to_string),
            supports_streaming: context.delivery.supports_streaming,
            supports_edit: context.delivery.supports_edit,
            supports_reaction: context.delivery.supports_reaction,
            max_message_size: context.delivery.max_message_size,
            platform_capabilities: object(&context.delivery.platform_capabilities),
        },
        resources: resources_out(context.resources),
        context: access_out(context.context),
        state: wc::StateSnapshot {
            conversation: object(&context.state.conversation),
            actor: object(&context.state.actor),
            subject: object(&context.state.subject),
            runner: object(&context.state.runner),
            binding: object(&context.state.binding),
        },
        runtime: wc::Runtime {
            host: context.runtime.host,
            host_version: context.runtime.host_version,
            trace_id: context.runtime.trace_id,
            deadline_at: context.runtime.deadline_at,
            locale: context.runtime.locale,
            timezone: context.runtime.timezone,
            attempt: context.runtime.attempt,
            static_refs: context
                .runtime
                .static_refs
                .into_iter()
                .map(|(name, reference)| wc::StaticRef {
                    name,
                    version: reference.version,
                    sha256: reference.sha256,
                    content: reference.content.map(artifact_out),
                })
                .collect(),
            metadata: runtime_metadata(context.runtime.metadata, session_key),
        },
        config: object(&context.config),
        bootstrap: context.bootstrap.map(|bootstrap| wc::Bootstrap {
            messages: list(bootstrap.messages, message_out),
            summary: bootstrap.summary,
            artifacts: list(bootstrap.artifacts, artifact_out),
            metadata: object(&bootstrap.metadata),
        }),
        adapter: context.adapter.as_ref().map(Value::to_string),
        metadata: object(&context.metadata),
    }
}
