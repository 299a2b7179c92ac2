//! A context in three parts, so that the ledger stores each fact once: what runs of one binding have alike, what the event
//! says already, and the rest. Read as one JSON object, they are the context.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    Actor, AvailableApis, Bootstrap, ContextAccess, Conversation, Delivery, EventContext, HistoryResource, InlinePolicy, Input,
    KnowledgeBaseResource, ModelResource, Resources, RunContext, Runtime, SkillResource, StateSnapshot, StaticRef,
    StorageResource, Subject, ToolResource, Trigger,
};
use crate::{Event, RunId, message::ArtifactRef, time::Timestamp};

/// The members that are equal for runs of one binding.
#[derive(Serialize)]
struct SharedPart<'a> {
    delivery: SharedDelivery<'a>,
    resources: SharedResources<'a>,
    context: SharedAccess<'a>,
    runtime: SharedRuntime<'a>,
    config: &'a Map<String, Value>,
    metadata: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct SharedDelivery<'a> {
    surface: &'a str,
    supports_streaming: bool,
    supports_edit: bool,
    supports_reaction: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_message_size: Option<u32>,
    platform_capabilities: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct SharedResources<'a> {
    models: &'a [ModelResource],
    tools: &'a [ToolResource],
    knowledge_bases: &'a [KnowledgeBaseResource],
    artifacts: [(); 0],
    skills: &'a [SkillResource],
    storage: StorageResource,
    history: HistoryResource,
    platform_actions: &'a [String],
    platform_capabilities: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct SharedAccess<'a> {
    /// Present if no item was inlined: otherwise its counts belong to one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    inline_policy: Option<&'a InlinePolicy>,
    available_apis: AvailableApis,
}

#[derive(Serialize)]
struct SharedRuntime<'a> {
    host: &'a str,
    host_version: &'a str,
    static_refs: &'a BTreeMap<String, StaticRef>,
    metadata: &'a Map<String, Value>,
}

/// The members of one run that its event does not have.
#[derive(Serialize)]
struct OwnPart<'a> {
    run_id: RunId,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_run_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery: Option<OwnDelivery<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resources: Option<OwnResources<'a>>,
    context: OwnAccess<'a>,
    state: &'a StateSnapshot,
    runtime: OwnRuntime<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bootstrap: Option<&'a Bootstrap>,
}

#[derive(Serialize)]
struct OwnDelivery<'a> {
    reply_target: &'a Value,
}

#[derive(Serialize)]
struct OwnResources<'a> {
    artifacts: &'a [ArtifactRef],
}

#[derive(Serialize)]
struct OwnAccess<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    latest_cursor: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transcript_seq: Option<u64>,
    has_history_before: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inline_policy: Option<&'a InlinePolicy>,
}

#[derive(Serialize)]
struct OwnRuntime<'a> {
    trace_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_at: Option<Timestamp>,
    attempt: u32,
}

impl RunContext {
    /// The members that are equal for runs of one binding, and the members of this run alone. [`EventPart`] has the others.
    #[must_use]
    pub fn parts(&self) -> (impl Serialize, impl Serialize) {
        // Every field is named: a new one belongs to one of the parts.
        let Self {
            run_id,
            parent_run_id,
            trigger: _,
            event: _,
            conversation: _,
            actor: _,
            subject: _,
            input: _,
            delivery,
            resources,
            context,
            state,
            runtime,
            config,
            bootstrap,
            adapter: _,
            metadata,
        } = self;
        let Delivery {
            surface,
            reply_target,
            supports_streaming,
            supports_edit,
            supports_reaction,
            max_message_size,
            platform_capabilities,
        } = delivery;
        let shared_delivery = SharedDelivery {
            surface,
            supports_streaming: *supports_streaming,
            supports_edit: *supports_edit,
            supports_reaction: *supports_reaction,
            max_message_size: *max_message_size,
            platform_capabilities,
        };
        let Resources {
            models,
            tools,
            knowledge_bases,
            artifacts,
            skills,
            storage,
            history,
            platform_actions,
            platform_capabilities,
        } = resources;
        let shared_resources = SharedResources {
            models,
            tools,
            knowledge_bases,
            artifacts: [],
            skills,
            storage: *storage,
            history: *history,
            platform_actions,
            platform_capabilities,
        };
        let ContextAccess {
            conversation_id: _,
            thread_id: _,
            latest_cursor,
            event_seq,
            transcript_seq,
            has_history_before,
            session_key,
            inline_policy,
            available_apis,
        } = context;
        let (shared_policy, own_policy) =
            if bootstrap.is_none() { (Some(inline_policy), None) } else { (None, Some(inline_policy)) };
        let Runtime {
            host,
            host_version,
            trace_id,
            deadline_at,
            locale: _,
            timezone: _,
            attempt,
            static_refs,
            metadata: runtime_metadata,
        } = runtime;
        let shared = SharedPart {
            delivery: shared_delivery,
            resources: shared_resources,
            context: SharedAccess { inline_policy: shared_policy, available_apis: *available_apis },
            runtime: SharedRuntime { host, host_version, static_refs, metadata: runtime_metadata },
            config,
            metadata,
        };
        let own = OwnPart {
            run_id: *run_id,
            parent_run_id: *parent_run_id,
            delivery: reply_target.as_ref().map(|reply_target| OwnDelivery { reply_target }),
            resources: (!artifacts.is_empty()).then_some(OwnResources { artifacts }),
            context: OwnAccess {
                latest_cursor: latest_cursor.as_deref(),
                event_seq: *event_seq,
                transcript_seq: *transcript_seq,
                has_history_before: *has_history_before,
                session_key: session_key.as_deref(),
                inline_policy: own_policy,
            },
            state,
            runtime: OwnRuntime { trace_id, deadline_at: *deadline_at, attempt: *attempt },
            bootstrap: bootstrap.as_ref(),
        };
        (shared, own)
    }
}

/// The members of a context that come from its event.
#[derive(Serialize)]
pub struct EventPart<'a> {
    trigger: Trigger,
    event: EventContext,
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation: Option<&'a Conversation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<&'a Actor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a Subject>,
    input: &'a Input,
    context: EventAccess<'a>,
    runtime: EventRuntime<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<&'a Value>,
}

#[derive(Serialize)]
struct EventAccess<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_id: Option<&'a str>,
}

#[derive(Serialize)]
struct EventRuntime<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    locale: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timezone: Option<&'a str>,
}

impl<'a> EventPart<'a> {
    /// The part of contexts of runs that answer this event.
    #[must_use]
    pub fn of(event: &'a Event) -> Self {
        let envelope = &event.envelope;
        let conversation = envelope.conversation.as_ref();
        Self {
            trigger: Trigger::of(event),
            event: EventContext::of(event),
            conversation,
            actor: envelope.actor.as_ref(),
            subject: envelope.subject.as_ref(),
            input: &envelope.input,
            context: EventAccess {
                conversation_id: conversation.and_then(|it| it.conversation_id.as_deref()),
                thread_id: conversation.and_then(|it| it.thread_id.as_deref()),
            },
            runtime: EventRuntime { locale: envelope.locale.as_deref(), timezone: envelope.timezone.as_deref() },
            adapter: envelope.adapter.as_ref(),
        }
    }
}

/// Puts the members of `part` beside those of `to`, also within members that are objects in both.
pub fn join(to: &mut Map<String, Value>, part: Map<String, Value>) {
    for (name, value) in part {
        match (to.get_mut(&name), value) {
            (Some(Value::Object(to)), Value::Object(part)) => join(to, part),
            (_, value) => drop(to.insert(name, value)),
        }
    }
}

impl Trigger {
    /// The trigger of runs that answer this event.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        let envelope = &event.envelope;
        // `run` is the contract's source of events that runs make; the protocol has no such trigger.
        let source = if envelope.source == "run" { "system" } else { &envelope.source };
        Self { kind: envelope.event_type.clone(), source: source.to_owned(), timestamp: Some(event.received_at) }
    }
}

impl EventContext {
    /// An event as a runner sees it: never the raw payload, nor the fields of an adapter.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        let envelope = &event.envelope;
        Self {
            event_id: event.event_id,
            event_type: envelope.event_type.clone(),
            event_time: envelope.event_time,
            source: envelope.source.clone(),
            source_event_type: envelope.source_event_type.clone(),
            raw_ref: envelope.raw_ref.clone(),
            data: envelope.data.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    fn object(value: impl Serialize) -> Map<String, Value> {
        to_value(value).unwrap().as_object().cloned().unwrap()
    }

    fn joined(context: &RunContext, event: &Event) -> Value {
        let (shared, own) = context.parts();
        let mut whole = object(shared);
        join(&mut whole, object(own));
        join(&mut whole, object(EventPart::of(event)));
        Value::Object(whole)
    }

    /// An event with every field, and the context of a run that answers it, also with every field.
    fn full() -> (Event, RunContext) {
        let artifact = json!({ "artifact_id": "a1", "media_type": "text/plain" });
        let conversation = json!({ "conversation_id": "c", "thread_id": "t", "workspace_id": "w" });
        let actor = json!({ "actor_type": "user", "actor_id": "ada", "metadata": { "vip": true } });
        let subject = json!({ "subject_type": "issue", "subject_id": "7", "data": { "open": true } });
        let input = json!({ "text": "hi", "attachments": [artifact], "message_chain": [1] });
        let event_id = crate::EventId::new();
        let event = from_value(json!({
            "event_id": event_id, "received_at": 7, "event_type": "message.received", "source": "platform", "event_time": 5,
            "source_event_type": "msg", "raw_ref": artifact, "data": { "resources": 1 }, "conversation": conversation,
            "actor": actor, "subject": subject, "input": input, "adapter": { "runtime": {} }, "locale": "de", "timezone": "UTC",
        }));
        let context = from_value(json!({
            "run_id": RunId::new(), "parent_run_id": RunId::new(),
            "trigger": { "type": "message.received", "source": "platform", "timestamp": 7 },
            "event": {
                "event_id": event_id, "event_type": "message.received", "event_time": 5, "source": "platform",
                "source_event_type": "msg", "raw_ref": artifact, "data": { "resources": 1 },
            },
            "conversation": conversation, "actor": actor, "subject": subject, "input": input,
            "delivery": { "surface": "chat", "reply_target": { "surface": 1 }, "max_message_size": 9, "supports_edit": true },
            "resources": {
                "models": [{ "model_id": "m", "model_type": "llm", "operations": ["invoke"] }], "artifacts": [artifact],
                "platform_actions": ["page"],
            },
            "context": {
                "conversation_id": "c", "thread_id": "t", "latest_cursor": "x", "event_seq": 3, "transcript_seq": 2,
                "has_history_before": true, "available_apis": { "runs": true },
                "inline_policy": { "mode": "recent_tail", "delivered_count": 1, "source_total_count": 1 },
            },
            "state": { "actor": { "k": [1] } },
            "runtime": {
                "host": "agent-host", "host_version": "1", "trace_id": "t", "deadline_at": 9, "locale": "de", "timezone": "UTC",
                "attempt": 2, "static_refs": { "s": { "version": "1", "sha256": "00" } }, "metadata": { "m": 1 },
            },
            "config": { "input": { "text": "of the configuration" } },
            "bootstrap": { "messages": [{ "role": "user", "content": "before" }] },
            "adapter": { "runtime": {} }, "metadata": { "n": 2 },
        }));
        (event.unwrap(), context.unwrap())
    }

    #[test]
    fn the_parts_of_a_context_are_the_whole_of_it() {
        let (mut event, mut context) = full();
        assert_eq!(joined(&context, &event), to_value(&context).unwrap());
        // With nothing in it that may be absent.
        event.envelope = from_value(json!({ "event_type": "tick", "source": "scheduler" })).unwrap();
        context.trigger = Trigger::of(&event);
        context.event = EventContext::of(&event);
        (context.conversation, context.actor, context.subject, context.adapter) = (None, None, None, None);
        (context.parent_run_id, context.bootstrap, context.input) = (None, None, Input::default());
        (context.context.conversation_id, context.context.thread_id) = (None, None);
        (context.delivery.reply_target, context.resources.artifacts) = (None, Vec::new());
        (context.runtime.locale, context.runtime.timezone) = (None, None);
        assert_eq!(joined(&context, &event), to_value(&context).unwrap());
    }

    #[test]
    fn runs_of_one_binding_share_a_part() {
        let (_, one) = full();
        let mut other = one.clone();
        (other.run_id, other.parent_run_id, other.bootstrap) = (RunId::new(), None, None);
        (other.context.event_seq, other.runtime.deadline_at, other.delivery.reply_target) = (Some(9), Some(99), None);
        let shared = |context: &RunContext| object(context.parts().0);
        // Inlined items belong to one run.
        assert!(
            shared(&one)["context"].get("inline_policy").is_none() && shared(&other)["context"].get("inline_policy").is_some()
        );
        other.bootstrap.clone_from(&one.bootstrap);
        assert_eq!(shared(&one), shared(&other));
    }
}
