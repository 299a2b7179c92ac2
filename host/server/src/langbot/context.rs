//! The context of a run as a `RunnerContext`.

use serde_json::{Map, Value, json};

use super::{
    LANGBOT_VERSION,
    members::{Members, object, seconds},
    message::element,
};

/// The scopes of state that LangBot has. A fifth, that of bindings, is left out.
const STATE_SCOPES: [&str; 4] = ["conversation", "actor", "subject", "runner"];
/// The operations of models that LangBot has.
const MODEL_OPERATIONS: [&str; 4] = ["invoke", "stream", "rerank", "count_tokens"];

/// The context of the host as a `RunnerContext`. Times become seconds. Members that LangBot does not have are in `metadata` of the
/// runtime, or left out: LangBot has no artifacts among the resources, no bootstrap and no state of bindings.
pub(super) fn to_langbot(context: Value) -> Value {
    let mut ours = Members::of(context);
    let actor_id = ours.take("actor");
    let sender_id = actor_id.as_ref().and_then(|actor| actor.get("actor_id")).cloned();
    let adapter = ours.take("adapter");
    let params = adapter.as_ref().and_then(|adapter| adapter.get("params")).cloned();
    let mut state = ours.within("state");
    let mut metadata = ours.within("metadata").rest();
    if let Some(parent) = ours.take("parent_run_id") {
        metadata.insert("parent_run_id".to_owned(), parent);
    }
    object([
        ours.named("run_id"),
        ("trigger", Some(trigger(ours.within("trigger")))),
        ("event", Some(event(ours.within("event")))),
        ("conversation", ours.take("conversation").map(|conversation| self::conversation(conversation, sender_id))),
        ("actor", actor_id),
        ours.named("subject"),
        ("input", Some(input(ours.within("input")))),
        ("delivery", Some(delivery(ours.within("delivery")))),
        ("resources", Some(resources(ours.within("resources")))),
        ("context", Some(access(ours.within("context")))),
        ("state", Some(object(STATE_SCOPES.map(|scope| state.named(scope))))),
        ("runtime", Some(runtime(ours.within("runtime")))),
        ours.named("config"),
        ("variables", Some(params.unwrap_or_else(|| json!({})))),
        ("adapter", adapter.map(|adapter| json!({ "extra": adapter }))),
        ("metadata", Some(Value::Object(metadata))),
    ])
}

/// The source of an event by the name that LangBot has for it.
fn event_source(source: String) -> Value {
    match source.as_str() {
        "pipeline_adapter" => "host_adapter".into(),
        // A run that was started by a run has the host as its source.
        "run" => "system".into(),
        _ => source.into(),
    }
}

fn trigger(mut ours: Members) -> Value {
    object([ours.named("type"), ("source", ours.text("source").map(event_source)), ours.seconds("timestamp")])
}

/// The event of a context, of a steering input or of the log.
pub(super) fn event(mut ours: Members) -> Value {
    let raw = ours.take("raw_ref").map(|raw| object([("ref_id", Members::of(raw).take("artifact_id"))]));
    object([
        ours.named("event_id"),
        ours.named("event_type"),
        ours.seconds("event_time"),
        ("source", ours.text("source").map(event_source)),
        ours.named("source_event_type"),
        ("raw_ref", raw),
        ours.named("data"),
    ])
}

/// A session of LangBot is a place of the platform: its kind and its id.
fn conversation(conversation: Value, sender_id: Option<Value>) -> Value {
    let part = |name: &str| conversation.get(name).and_then(Value::as_str);
    let session = part("launcher_type").zip(part("launcher_id")).map(|(kind, id)| format!("{kind}_{id}"));
    let mut members = Members::of(conversation).rest();
    let more = [("sender_id", sender_id), ("session_id", session.map(Value::from))];
    members.extend(more.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    Value::Object(members)
}

/// Parts of content that are artifacts are attachments in LangBot too.
pub(super) fn input(mut ours: Members) -> Value {
    let is_artifact = |part: &Value| part.get("type").and_then(Value::as_str) == Some("artifact");
    let contents = ours.list("contents", |part| part);
    let within = contents.iter().filter(|part| is_artifact(part)).filter_map(|part| part.get("artifact").cloned());
    let attachments: Vec<Value> = within.chain(ours.list("attachments", |artifact| artifact)).map(attachment).collect();
    let contents: Vec<Value> = contents.into_iter().map(element).collect();
    object([ours.named("text"), ("contents", Some(contents.into())), ("attachments", Some(attachments.into()))])
}

/// An artifact as an `InputAttachment`.
pub(super) fn attachment(artifact: Value) -> Value {
    let mut artifact = Members::of(artifact);
    let media_type = artifact.text("media_type");
    let kind = media_type.as_deref().and_then(|media_type| media_type.split('/').next());
    let kind = match kind {
        Some("image") => "image",
        Some("audio") => "voice",
        _ => "file",
    };
    let id = artifact.take("artifact_id");
    object([
        ("id", id.clone()),
        ("ref", id),
        ("type", Some(kind.into())),
        ("mime_type", media_type.map(Value::from)),
        artifact.named("size"),
        artifact.named("name"),
        ("source", Some("artifact".into())),
    ])
}

/// The host shows what a run says wherever it is followed, so every delivery replies by itself.
fn delivery(ours: Members) -> Value {
    let mut members = ours.rest();
    members.insert("automatic_reply".to_owned(), true.into());
    Value::Object(members)
}

fn resources(mut ours: Members) -> Value {
    let only = |mut resource: Value, known: &[&str]| {
        if let Some(Value::Array(operations)) = resource.get_mut("operations") {
            for operation in operations.iter_mut().filter(|operation| **operation == "embed") {
                // LangBot's name for every use of an embedding model.
                *operation = "invoke".into();
            }
            operations.retain(|operation| operation.as_str().is_some_and(|operation| known.contains(&operation)));
        }
        resource
    };
    let models = ours.list("models", |model| only(model, &MODEL_OPERATIONS));
    let tools = ours.list("tools", |tool| tool);
    let bases = ours.list("knowledge_bases", |base| base);
    let skills = ours.list("skills", |skill| {
        let mut skill = Members::of(skill);
        let name = skill.take("skill_name");
        object([("skill_name", name.clone()), ("display_name", name), skill.named("description")])
    });
    let mut storage = ours.within("storage");
    object([
        ("models", Some(models.into())),
        ("tools", Some(tools.into())),
        ("knowledge_bases", Some(bases.into())),
        ("skills", Some(skills.into())),
        ("storage", Some(object([storage.named("plugin_storage"), storage.named("workspace_storage")]))),
        ours.named("platform_capabilities"),
    ])
}

fn access(mut ours: Members) -> Value {
    let mut apis = ours.within("available_apis");
    let is_open = |apis: &mut Members, name: &str| Some(apis.take(name).unwrap_or_else(|| false.into()));
    let steering = is_open(&mut apis, "steering");
    let runs = is_open(&mut apis, "runs");
    let available = object([
        apis.named("history_page"),
        apis.named("history_search"),
        apis.named("event_get"),
        apis.named("event_page"),
        apis.named("state"),
        apis.named("storage"),
        ("steering_pull", steering),
        // The prompt of a pipeline is in its adapter; a run without one has none.
        ("prompt_get", Some(true.into())),
        ("run_get", runs.clone()),
        ("run_list", runs.clone()),
        ("run_events_page", runs.clone()),
        ("run_cancel", runs),
    ]);
    object([
        ours.named("conversation_id"),
        ours.named("thread_id"),
        ours.named("latest_cursor"),
        ours.named("event_seq"),
        ours.named("transcript_seq"),
        ours.named("has_history_before"),
        ours.named("inline_policy"),
        ("available_apis", Some(available)),
    ])
}

fn runtime(mut ours: Members) -> Value {
    let deadline = ours.take("deadline_at").and_then(|deadline| deadline.as_u64()).and_then(|ms| {
        // LangBot compares a deadline with `time.time()`, which has fractions.
        let (whole, rest) = (u32::try_from(ms / 1_000).ok()?, u32::try_from(ms % 1_000).ok()?);
        Some(Value::from(f64::from(whole) + f64::from(rest) / 1_000.0))
    });
    let trace = ours.take("trace_id");
    let mut metadata = ours.within("metadata").rest();
    metadata.extend(ours.rest());
    object([
        ("langbot_version", Some(LANGBOT_VERSION.into())),
        ("trace_id", trace),
        ("deadline_at", deadline),
        ("metadata", Some(Value::Object(metadata))),
    ])
}

/// An input that `steering.pull` gave, as a `SteeringInputItem` of the run that pulled it.
pub(super) fn steering(item: Value, run_id: &str, runner_id: &str, now_ms: u64) -> Value {
    let mut ours = Members::of(item);
    object([
        ("claimed_run_id", Some(run_id.into())),
        ("runner_id", Some(runner_id.into())),
        ("claimed_at", seconds(&now_ms.into())),
        ("event", Some(event(ours.within("event")))),
        ("input", Some(input(ours.within("input")))),
        ("metadata", Some(Value::Object(Map::new()))),
    ])
}
