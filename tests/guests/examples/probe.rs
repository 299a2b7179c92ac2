//! `plugin:test/probe/default` declares every permission, calls every function of the contract once
//! and answers with a JSON object: `"interface.function": "ok"` or `"error CODE: MESSAGE"`.
//!
//! Methods of a resource are called where the host gave the resource.
//!
//! The text of the event may name other things than those that the run was granted, as a JSON object with `model`,
//! `tool`, `knowledge_base`, `artifact`, `event` and `conversation`.

use std::collections::BTreeMap;

use agent_host_sdk::contract::agent_host::runner::{
    artifacts, events, history, http, interactions, knowledge, log, models, platform, results, runs, state, steering, storage,
    timers, tools, types,
};
use agent_host_sdk::contract::{
    ContextOwnership, ContextPolicy, CustomResult, Direction, Input, PageRequest, RunResult, ToolCall,
};
use agent_host_sdk::serde_json::json;
use agent_host_sdk::{
    ApiError, ArtifactOperation, Capabilities, Completion, Context, EventOperation, Failure, HistoryOperation,
    KnowledgeOperation, Manifest, Message, ModelOperation, Permissions, RunOperation, Runner, StateScope, StorageArea,
    ToolOperation,
};

struct Probe;

impl Runner for Probe {
    fn manifest() -> Manifest {
        Manifest::new("test", "probe")
            .label("en", "Probe")
            .capabilities(Capabilities {
                streaming: true,
                tool_calling: true,
                knowledge_retrieval: true,
                multimodal_input: true,
                event_context: true,
                platform_api: true,
                interrupt: true,
                steering: true,
                stateful_session: true,
                self_managed_context: true,
            })
            .context(ContextPolicy {
                ownership: ContextOwnership::SelfManaged,
                supports_history_search: true,
                ..ContextPolicy::default()
            })
            .permissions(Permissions {
                models: vec![
                    ModelOperation::Invoke,
                    ModelOperation::Stream,
                    ModelOperation::Rerank,
                    ModelOperation::Embed,
                    ModelOperation::CountTokens,
                ],
                tools: vec![ToolOperation::Detail, ToolOperation::Call],
                knowledge_bases: vec![KnowledgeOperation::List, KnowledgeOperation::Retrieve],
                history: vec![HistoryOperation::Page, HistoryOperation::Search],
                events: vec![EventOperation::Get, EventOperation::Page],
                artifacts: vec![ArtifactOperation::Metadata, ArtifactOperation::Read, ArtifactOperation::Create],
                state: vec![
                    StateScope::Conversation,
                    StateScope::Actor,
                    StateScope::Subject,
                    StateScope::Runner,
                    StateScope::Binding,
                ],
                storage: vec![StorageArea::Plugin, StorageArea::Workspace, StorageArea::Binding],
                runs: vec![
                    RunOperation::Start,
                    RunOperation::Get,
                    RunOperation::List,
                    RunOperation::Events,
                    RunOperation::Cancel,
                ],
                platform_actions: vec!["message.edit".to_owned(), "message.delete".to_owned()],
                interactions: true,
                http_hosts: vec!["probe.invalid:443".to_owned(), "127.0.0.1:*".to_owned()],
            })
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let mut seen = Seen::default();
        probe_models(&ctx, &mut seen);
        probe_tools(&ctx, &mut seen);
        probe_knowledge(&ctx, &mut seen);
        probe_records(&ctx, &mut seen);
        probe_artifacts(&ctx, &mut seen);
        probe_memory(&mut seen);
        probe_people(&ctx, &mut seen);
        probe_runs(&ctx, &mut seen);
        probe_http(&ctx, &mut seen);
        log::write(log::Level::Info, "probe");
        seen.note("log.write", None);
        let result = CustomResult { type_: "x.probe".to_owned(), data: "{}".to_owned() };
        seen.call("results.emit", results::emit(&[RunResult::Other(result)]));

        ctx.reply(&json!(seen.0).to_string())?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Probe);

/// The answers by function.
#[derive(Default)]
struct Seen(BTreeMap<&'static str, String>);

impl Seen {
    fn call<T>(&mut self, name: &'static str, outcome: Result<T, types::ApiError>) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.note(name, None);
                Some(value)
            }
            Err(error) => {
                self.note(name, Some(error));
                None
            }
        }
    }

    fn note(&mut self, name: &'static str, error: Option<types::ApiError>) {
        let outcome = match error {
            None => "ok".to_owned(),
            Some(error) => format!("error {}", ApiError::from(error)),
        };
        self.0.insert(name, outcome);
    }
}

/// A thing that the event names.
fn named(ctx: &Context, what: &str) -> Option<String> {
    let names: BTreeMap<String, String> = agent_host_sdk::serde_json::from_str(ctx.text()).ok()?;
    names.get(what).cloned()
}

fn model(ctx: &Context, operation: ModelOperation) -> String {
    if let Some(named) = named(ctx, "model") {
        return named;
    }
    ctx.model_for(operation).map_or("no-model", |model| &model.model_id).to_owned()
}

fn probe_models(ctx: &Context, seen: &mut Seen) {
    let request = models::Request { messages: vec![Message::user("probe")], tools: Vec::new(), extra_args: None };
    let invoke = model(ctx, ModelOperation::Invoke);
    seen.call("models.invoke", models::invoke(&invoke, &request));
    let stream = model(ctx, ModelOperation::Stream);
    if let Some(stream) = seen.call("models.stream", models::stream(&stream, &request)) {
        seen.call("models.response-stream.next", stream.next());
    }
    let rerank = model(ctx, ModelOperation::Rerank);
    let texts = ["one".to_owned(), "two".to_owned()];
    seen.call("models.rerank", models::rerank(&rerank, "probe", &texts, Some(1)));
    let embed = model(ctx, ModelOperation::Embed);
    seen.call("models.embed", models::embed(&embed, &texts));
    let count = model(ctx, ModelOperation::CountTokens);
    seen.call("models.count-tokens", models::count_tokens(&count, &request.messages));
}

fn probe_tools(ctx: &Context, seen: &mut Seen) {
    let granted = ctx.resources().tools.first().map_or("no-tool", |tool| &tool.tool_name);
    let named = named(ctx, "tool");
    let tool = named.as_deref().unwrap_or(granted);
    seen.call("tools.get-detail", tools::get_detail(tool));
    let call = ToolCall { call_id: "c1".to_owned(), tool_name: tool.to_owned(), parameters: r#"{"a":1,"b":2}"#.to_owned() };
    seen.call("tools.call", tools::call(&call));
    let outcomes = tools::call_many(&[ToolCall { call_id: "c2".to_owned(), ..call }]);
    seen.note("tools.call-many", outcomes.into_iter().find_map(Result::err));
}

fn probe_knowledge(ctx: &Context, seen: &mut Seen) {
    seen.call("knowledge.list", knowledge::list());
    let granted = ctx.resources().knowledge_bases.first().map_or("no-base", |base| &base.kb_id);
    let named = named(ctx, "knowledge_base");
    let base = named.as_deref().unwrap_or(granted);
    seen.call("knowledge.retrieve", knowledge::retrieve(base, "probe", 3, None));
}

fn probe_records(ctx: &Context, seen: &mut Seen) {
    let request = PageRequest {
        conversation_id: named(ctx, "conversation"),
        before: None,
        after: None,
        limit: 10,
        direction: Direction::Backward,
        include_artifacts: true,
    };
    seen.call("history.page", history::page(&request));
    let elsewhere = named(ctx, "conversation").map(|id| json!({ "conversation_id": id }).to_string());
    seen.call("history.search", history::search("probe", elsewhere.as_deref(), 3));
    let event = named(ctx, "event").unwrap_or_else(|| ctx.event().event_id.clone());
    seen.call("events.get", events::get(&event));
    seen.call("events.page", events::page(None, &[], 10));
}

fn probe_artifacts(ctx: &Context, seen: &mut Seen) {
    let created = seen.call("artifacts.create", artifacts::create("text/plain", Some("probe.txt")));
    let artifact = created.and_then(|writer| {
        seen.call("artifacts.writer.write", writer.write(b"probe"));
        seen.call("artifacts.writer.finish", artifacts::Writer::finish(writer))
    });
    let created = artifact.map_or_else(|| "no-artifact".to_owned(), |artifact| artifact.artifact_id);
    let id = named(ctx, "artifact").unwrap_or(created);
    seen.call("artifacts.metadata", artifacts::metadata(&id));
    seen.call("artifacts.read-range", artifacts::read_range(&id, 0, 5));
    if let Some(reader) = seen.call("artifacts.open", artifacts::open(&id)) {
        seen.call("artifacts.reader.read", reader.read(5));
    }
}

fn probe_memory(seen: &mut Seen) {
    let scope = StateScope::Runner;
    seen.call("state.set", state::set(scope, "probe", "1"));
    seen.call("state.get", state::get(scope, "probe"));
    seen.call("state.list-keys", state::list_keys(scope, Some("pro"), 10));
    seen.call("state.delete", state::delete(scope, "probe"));
    let area = StorageArea::Plugin;
    seen.call("storage.set", storage::set(area, "probe", b"1"));
    seen.call("storage.get", storage::get(area, "probe"));
    seen.call("storage.list", storage::list(area, Some("pro"), 10));
    seen.call("storage.delete", storage::delete(area, "probe"));
}

/// The question expires at once, since nobody answers a test.
fn probe_people(ctx: &Context, seen: &mut Seen) {
    let now = timers::now();
    seen.note("timers.now", None);
    seen.call("timers.sleep-until", timers::sleep_until(now + 1));
    let target = json!({ "message_id": "m1" }).to_string();
    let payload = json!({ "text": "probe" }).to_string();
    let action = named(ctx, "action").unwrap_or_else(|| "message.edit".to_owned());
    let edited = platform::request_action(&action, &target, &payload);
    seen.call("platform.request-action", edited);
    let question = interactions::Question {
        kind: interactions::QuestionKind::Confirmation,
        title: "Probe?".to_owned(),
        description: None,
        answer_schema: None,
        expires_at: Some(now + 50),
    };
    seen.call("interactions.ask", interactions::ask(&question));
    seen.call("steering.pull", steering::pull(10, 0));
}

fn probe_runs(ctx: &Context, seen: &mut Seen) {
    let request = runs::StartRequest {
        runner_id: named(ctx, "runner").unwrap_or_else(|| "plugin:test/steps/default".to_owned()),
        // The wait ends by a cancellation.
        input: Input { text: Some("sleep 60000".to_owned()), contents: Vec::new(), attachments: Vec::new(), message_chain: None },
        objective: "to see whether a run can be started".to_owned(),
        config: None,
    };
    let child = seen.call("runs.start", runs::start(&request));
    let child = child.unwrap_or_else(|| ctx.run_id().to_owned());
    seen.call("runs.wait-any", runs::wait_any(std::slice::from_ref(&child), 0));
    seen.call("runs.get", runs::get(&child));
    seen.call("runs.list", runs::list(None, 10));
    seen.call("runs.events-page", runs::events_page(&child, None, 10));
    // The guest's own run is not cancelled, because the rest of the probe would be lost.
    let cancelled = if child == ctx.run_id() { "no-run" } else { &child };
    seen.call("runs.cancel", runs::cancel(cancelled, "the probe is over"));
}

fn probe_http(ctx: &Context, seen: &mut Seen) {
    let url = named(ctx, "url").unwrap_or_else(|| "https://probe.invalid/".to_owned());
    let request = http::Request {
        method: "GET".to_owned(),
        url,
        headers: vec![("accept".to_owned(), "text/plain".to_owned())],
        body: Vec::new(),
        timeout_ms: Some(1000),
    };
    if let Some(response) = seen.call("http.send", http::send(&request)) {
        let _status = response.status();
        seen.note("http.response.status", None);
        let _headers = response.headers();
        seen.note("http.response.headers", None);
        seen.call("http.response.read", response.read(1024));
    }
}
