//! Rows of the ledger, manifests and executors as LangBot's classes have them. Times are seconds.

use serde_json::{Map, Value, json};

use super::{
    context,
    members::{Members, object, seconds},
    message, results,
};

/// A run as an `AgentRun`. Its times are there in ms too, as LangBot's host has them.
pub(super) fn run(run: Value) -> Value {
    let mut ours = Members::of(run);
    let mut queue = ours.within("queue");
    let status = match ours.text("status").as_deref() {
        Some("dispatching") => "claimed".to_owned(),
        // A run of LangBot that waits is one that runs.
        Some("waiting") => "running".to_owned(),
        status => status.unwrap_or_default().to_owned(),
    };
    let [created, started, finished] = ["created_at", "started_at", "finished_at"].map(|name| ours.take(name));
    let in_seconds = |time: &Option<Value>| time.as_ref().and_then(seconds);
    let usage = ours.take("usage");
    let cost = usage.as_ref().and_then(|usage| usage.get("cost_micros").cloned());
    let mut metadata = ours.within("metadata").rest();
    for name in ["parent_run_id", "retry_of"] {
        metadata.extend(ours.take(name).map(|id| (name.to_owned(), id)));
    }
    object([
        ours.named("run_id"),
        ours.named("event_id"),
        ours.named("agent_id"),
        ours.named("binding_id"),
        ours.named("runner_id"),
        ours.named("conversation_id"),
        ours.named("thread_id"),
        ours.named("workspace_id"),
        ours.named("bot_id"),
        ("status", Some(status.into())),
        ours.named("status_reason"),
        ("created_at", in_seconds(&created)),
        ("started_at", in_seconds(&started)),
        ("finished_at", in_seconds(&finished)),
        ours.seconds("updated_at"),
        ours.seconds("deadline_at"),
        ours.seconds("cancel_requested_at"),
        ("queue_name", queue.take("name")),
        queue.named("priority"),
        ("claimed_by_runtime_id", queue.take("executor_id")),
        ("claim_lease_expires_at", queue.take("lease_expires_at").as_ref().and_then(seconds)),
        ("dispatch_attempts", queue.take("claims")),
        ("last_claimed_at", queue.take("claimed_at").as_ref().and_then(seconds)),
        ("usage", usage.map(message::usage)),
        ("cost", cost.map(|cost| json!({ "cost_micros": cost }))),
        ("metadata", Some(Value::Object(metadata))),
        ("created_at_ms", created),
        ("started_at_ms", started),
        ("finished_at_ms", finished),
    ])
}

/// An event of a run as an `AgentRunEvent`, which reads as a `RunnerResult` too.
pub(super) fn run_event(event: Value) -> Value {
    let mut ours = Members::of(event);
    let data = ours.take("data").unwrap_or_else(|| json!({}));
    let usage = data.get("usage").filter(|usage| usage.is_object()).cloned().map(message::usage);
    let (kind, data) = results::to_langbot(&ours.text("type").unwrap_or_default(), data);
    let time = ours.take("created_at").or_else(|| ours.take("timestamp"));
    let time = time.as_ref().and_then(seconds);
    object([
        ours.named("run_id"),
        ours.named("sequence"),
        ("type", Some(kind.into())),
        ("data", Some(data)),
        ("usage", usage),
        ("created_at", time.clone()),
        ("timestamp", time),
        ours.named("source"),
        ours.named("metadata"),
    ])
}

/// An event of the log as an `AgentEventRecord`.
pub(super) fn event(event: Value) -> Value {
    let mut ours = Members::of(event);
    let mut conversation = ours.within("conversation");
    let mut actor = ours.within("actor");
    let mut subject = ours.within("subject");
    let summary = ours.within("input").take("text");
    let received = ours.take("received_at").as_ref().and_then(seconds);
    let place = ["conversation_id", "thread_id", "workspace_id", "bot_id"].map(|name| conversation.named(name));
    let people = ["actor_type", "actor_id", "actor_name"].map(|name| actor.named(name));
    let about = ["subject_type", "subject_id"].map(|name| subject.named(name));
    let mut record = Members::of(context::event(ours)).rest();
    let metadata = record.remove("data").unwrap_or_else(|| json!({}));
    // The reference to the payload is its name.
    let raw = record.remove("raw_ref").and_then(|raw| raw.get("ref_id").cloned());
    let more = [("input_summary", summary), ("created_at", received), ("raw_ref", raw), ("metadata", Some(metadata))];
    let more = place.into_iter().chain(people).chain(about).chain(more);
    record.extend(more.filter_map(|(name, value)| Some((name.to_owned(), value?))));
    Value::Object(record)
}

/// An item of a transcript as a `TranscriptItem`.
pub(super) fn transcript_item(item: Value) -> Value {
    let mut ours = Members::of(item);
    let content = ours.take("content");
    let text = match &content {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(parts)) => Some(parts.iter().filter_map(|part| part.get("text")?.as_str()).collect()),
        _ => None,
    };
    let parts = content.filter(Value::is_array).map(|parts| json!({ "content": message::content_to_langbot(parts) }));
    let attachments = ours.list("artifacts", context::attachment);
    let metadata = ours.take("run_id").map(|run| json!({ "run_id": run })).unwrap_or_else(|| json!({}));
    object([
        ours.named("transcript_id"),
        ours.named("event_id"),
        ours.named("conversation_id"),
        ours.named("thread_id"),
        ours.named("role"),
        ours.named("item_type"),
        ("content", text.map(Value::from)),
        ("content_json", parts),
        ("attachment_refs", Some(attachments.into())),
        ours.named("seq"),
        ours.named("cursor"),
        ours.seconds("created_at"),
        ("metadata", Some(metadata)),
    ])
}

/// A page of the host as a page of LangBot.
pub(super) fn page(page: Value, item: impl FnMut(Value) -> Value) -> Value {
    let mut ours = Members::of(page);
    let items = ours.list("items", item);
    object([
        ("items", Some(items.into())),
        ours.named("next_cursor"),
        ours.named("prev_cursor"),
        ("has_more", Some(ours.take("has_more").unwrap_or_else(|| false.into()))),
    ])
}

/// A manifest as a `RunnerManifest`. Permissions that LangBot does not have are in `metadata.permissions`.
pub(super) fn manifest(manifest: Value) -> Value {
    let mut ours = Members::of(manifest);
    let permissions = ours.take("permissions").unwrap_or_default();
    let mut capabilities = ours.within("capabilities");
    let may = |name: &str, known: &[&str]| -> Value {
        let operations = permissions.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let known = |operation: &&Value| operation.as_str().is_some_and(|operation| known.contains(&operation));
        operations.iter().filter(known).cloned().collect()
    };
    let asks = permissions.get("interactions").and_then(Value::as_bool).unwrap_or(false);
    let understands_events = capabilities.take("event_context").and_then(|it| it.as_bool()).unwrap_or(true);
    let usages = if understands_events { json!(["agent", "event"]) } else { json!(["agent"]) };
    let mut metadata = ours.within("metadata").rest();
    metadata.extend(["version", "author", "plugin"].into_iter().filter_map(|name| Some((name.to_owned(), ours.take(name)?))));
    let of_langbot = json!({
        "models": may("models", &["invoke", "stream", "rerank", "count_tokens"]),
        "tools": may("tools", &["detail", "call"]),
        "knowledge_bases": may("knowledge_bases", &["list", "retrieve"]),
        "history": may("history", &["page", "search"]),
        "events": may("events", &["get", "page"]),
        "storage": may("storage", &["plugin", "workspace"]),
        "interactions": if asks { json!(["request"]) } else { json!([]) },
    });
    metadata.insert("permissions".to_owned(), permissions);
    let able = ["streaming", "tool_calling", "knowledge_retrieval", "multimodal_input", "interrupt", "steering"];
    let mut able = object(able.map(|name| capabilities.named(name)));
    if let Value::Object(able) = &mut able {
        able.insert("interactions".to_owned(), asks.into());
    }
    object([
        ours.named("id"),
        ours.named("name"),
        ours.named("label"),
        ("component_kind", Some("Runner".into())),
        ("usages", Some(usages)),
        ours.named("description"),
        ("capabilities", Some(able)),
        ("permissions", Some(of_langbot)),
        ours.named("config_schema"),
        ("metadata", Some(Value::Object(metadata))),
    ])
}

/// An executor as an `AgentRuntime`, with the credential where it is new.
pub(super) fn executor(executor: Value) -> Value {
    let mut ours = Members::of(executor);
    let status = match ours.text("state").as_deref() {
        Some("gone") => "offline".to_owned(),
        state => state.unwrap_or_default().to_owned(),
    };
    let more = ["slots", "held", "queues", "runner_ids", "workspace"];
    let metadata: Map<String, Value> = more.into_iter().filter_map(|name| Some((name.to_owned(), ours.take(name)?))).collect();
    object([
        ("runtime_id", ours.take("executor_id")),
        ("status", Some(status.into())),
        ("display_name", ours.take("name")),
        ours.named("version"),
        ours.named("capabilities"),
        ours.named("labels"),
        ("metadata", Some(Value::Object(metadata))),
        ("last_heartbeat_at", ours.take("last_seen_at").as_ref().and_then(seconds)),
        ("created_at", ours.take("registered_at").as_ref().and_then(seconds)),
        ours.named("credential"),
    ])
}
