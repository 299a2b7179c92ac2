//! `plugin:test/bench-calls/default` makes one host call many times: the text of the event is a JSON object, such as
//! `{"call": "state.get", "times": 1000}`. With `relay` it streams what a model says, one delta for each chunk. An event
//! with another text is only taken note of, so that a conversation has a history.
//!
//! All inputs of a call are made before the first call, also for zero calls: the difference of two runs is the cost of the
//! calls alone.
//!
//! With `until_ms` (since 1970) it then says what its clock shows, in microseconds, sleeps until that time, says that it is
//! awake, and sleeps `stay_ms` more: each of the two is a delta of its own.

use std::time::{SystemTime, UNIX_EPOCH};

use agent_host_sdk::contract::agent_host::runner::{
    artifacts, events, history, knowledge, log, models, results, state, storage, timers, tools,
};
use agent_host_sdk::contract::{Chunk, ContextOwnership, Direction, PageRequest, Request, ToolCall};
use agent_host_sdk::results::message_delta;
use agent_host_sdk::serde_json;
use agent_host_sdk::{
    ApiError, ArtifactOperation, Capabilities, Completion, Context, ContextPolicy, EventOperation, Failure, HistoryOperation,
    KnowledgeOperation, Manifest, Message, ModelOperation, Permissions, Runner, StateScope, StorageArea, ToolOperation,
};
use serde::Deserialize;

/// Bytes of the artifact that is read, and of one read.
const ARTIFACT_BYTES: usize = 64 * 1024;
const READ_BYTES: u32 = 16 * 1024;
/// Bytes of an artifact that is created, and of a storage value.
const CREATED_BYTES: usize = 4 * 1024;
const STORED_BYTES: usize = 1024;
/// Calls in one `call-many`.
const CALLS_AT_ONCE: u32 = 16;
/// Items of a page, and hits of a search.
const ITEMS: u32 = 10;
const HITS: u32 = 5;

/// The task in the event.
#[derive(Deserialize)]
struct Task {
    call: String,
    times: u32,
    #[serde(default)]
    until_ms: u64,
    #[serde(default)]
    stay_ms: u64,
}

/// A call, with its number.
type Call = Box<dyn FnMut(u32) -> Result<(), ApiError>>;

struct BenchCalls;

impl Runner for BenchCalls {
    fn manifest() -> Manifest {
        Manifest::new("test", "bench-calls")
            .label("en", "Calls")
            .capabilities(Capabilities {
                streaming: true,
                tool_calling: true,
                knowledge_retrieval: true,
                multimodal_input: false,
                event_context: true,
                platform_api: false,
                interrupt: true,
                steering: false,
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
                state: vec![StateScope::Conversation],
                storage: vec![StorageArea::Plugin],
                ..Permissions::default()
            })
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let Ok(task) = serde_json::from_str::<Task>(ctx.text()) else { return Ok(Completion::stop()) };
        if task.call == "relay" {
            relay(&ctx)?;
            return Ok(Completion::stop());
        }
        let Some(mut call) = prepared(&ctx, &task.call)? else {
            return Err(Failure::new("runner.error", format!("there is no call `{}` here", task.call)));
        };
        for number in 0..task.times {
            call(number)?;
        }
        if task.until_ms > 0 {
            sleep(&task)?;
        }
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(BenchCalls);

/// The call with this name, and all that it needs.
fn prepared(ctx: &Context, name: &str) -> Result<Option<Call>, Failure> {
    let (interface, _) = name.split_once('.').unwrap_or_default();
    match interface {
        "models" => of_models(ctx, name),
        "tools" => Ok(of_tools(ctx, name)),
        "knowledge" => Ok(of_knowledge(ctx, name)),
        "history" | "events" => of_records(ctx, name),
        "artifacts" => of_artifacts(name),
        "state" | "storage" => of_memory(name),
        _ => Ok(of_the_run(name)),
    }
}

fn of_the_run(name: &str) -> Option<Call> {
    Some(match name {
        "log.write" => Box::new(|number| {
            log::write(log::Level::Info, &format!("call {number} of a benchmark says a line"));
            Ok(())
        }),
        "timers.now" => Box::new(|_| {
            std::hint::black_box(timers::now());
            Ok(())
        }),
        "results.emit" => Box::new(|number| Ok(results::emit(&[message_delta("m1", format!("word {number} "))]).map(drop)?)),
        _ => return None,
    })
}

fn of_memory(name: &str) -> Result<Option<Call>, Failure> {
    const KEY: &str = "bench";
    let (scope, area) = (StateScope::Conversation, StorageArea::Plugin);
    let value = |number: u32| format!(r#"{{"number":{number},"summary":"what a runner remembers of a conversation"}}"#);
    state::set(scope, KEY, &value(0)).map_err(ApiError::from)?;
    storage::set(area, KEY, &bytes(STORED_BYTES, 0)).map_err(ApiError::from)?;
    Ok(Some(match name {
        "state.get" => Box::new(move |_| Ok(state::get(scope, KEY).map(drop)?)),
        "state.set" => Box::new(move |number| Ok(state::set(scope, KEY, &value(number))?)),
        "storage.get" => Box::new(move |_| Ok(storage::get(area, KEY).map(drop)?)),
        "storage.set" => Box::new(move |number| Ok(storage::set(area, KEY, &bytes(STORED_BYTES, number))?)),
        _ => return Ok(None),
    }))
}

fn of_records(ctx: &Context, name: &str) -> Result<Option<Call>, Failure> {
    const QUERY: &str = "history of a conversation";
    let request = PageRequest {
        conversation_id: None,
        before: None,
        after: None,
        limit: ITEMS,
        direction: Direction::Backward,
        include_artifacts: true,
    };
    let event = ctx.event().event_id.clone();
    if name == "history.search" {
        // The first brings the index up to the event of this run, as no later one does.
        history::search(QUERY, None, HITS).map_err(ApiError::from)?;
    }
    Ok(Some(match name {
        "history.page" => Box::new(move |_| Ok(history::page(&request).map(drop)?)),
        "history.search" => Box::new(|_| Ok(history::search(QUERY, None, HITS).map(drop)?)),
        "events.get" => Box::new(move |_| Ok(events::get(&event).map(drop)?)),
        "events.page" => Box::new(|_| Ok(events::page(None, &[], ITEMS).map(drop)?)),
        _ => return Ok(None),
    }))
}

fn of_artifacts(name: &str) -> Result<Option<Call>, Failure> {
    let id = created(ARTIFACT_BYTES, 0)?;
    Ok(Some(match name {
        "artifacts.metadata" => Box::new(move |_| Ok(artifacts::metadata(&id).map(drop)?)),
        "artifacts.read-range" => Box::new(move |number| {
            let offset = u64::from(number % 4) * u64::from(READ_BYTES);
            Ok(artifacts::read_range(&id, offset, READ_BYTES).map(drop)?)
        }),
        "artifacts.create" => Box::new(|number| created(CREATED_BYTES, number + 1).map(drop)),
        _ => return Ok(None),
    }))
}

fn created(size: usize, number: u32) -> Result<String, ApiError> {
    let writer = artifacts::create("application/octet-stream", Some("bench.bin"))?;
    writer.write(&bytes(size, number))?;
    Ok(artifacts::Writer::finish(writer)?.artifact_id)
}

/// Bytes that differ from those of another number, so that no two contents are one.
fn bytes(size: usize, number: u32) -> Vec<u8> {
    let mut bytes = vec![7; size];
    let now = timers::now().to_le_bytes();
    for (place, byte) in bytes.iter_mut().zip(now.into_iter().chain(number.to_le_bytes())) {
        *place = byte;
    }
    bytes
}

fn of_knowledge(ctx: &Context, name: &str) -> Option<Call> {
    let base = ctx.resources().knowledge_bases.first().map_or("no-base", |base| &base.kb_id).to_owned();
    Some(match name {
        "knowledge.list" => Box::new(|_| Ok(knowledge::list().map(drop)?)),
        "knowledge.retrieve" => {
            Box::new(move |_| Ok(knowledge::retrieve(&base, "where does the answer stand", HITS, None).map(drop)?))
        }
        _ => return None,
    })
}

fn of_tools(ctx: &Context, name: &str) -> Option<Call> {
    let tool = ctx.resources().tools.first().map_or("no-tool", |tool| &tool.tool_name).to_owned();
    let call = move |number: u32| ToolCall {
        call_id: format!("c{number}"),
        tool_name: tool.clone(),
        parameters: format!(r#"{{"a":{number},"b":2}}"#),
    };
    Some(match name {
        "tools.get-detail" => Box::new(move |_| Ok(tools::get_detail(&call(0).tool_name).map(drop)?)),
        "tools.call" => Box::new(move |number| Ok(tools::call(&call(number)).map(drop)?)),
        "tools.call-many" => Box::new(move |number| {
            let calls: Vec<_> = (0..CALLS_AT_ONCE).map(|place| call(number * CALLS_AT_ONCE + place)).collect();
            for outcome in tools::call_many(&calls) {
                outcome?;
            }
            Ok(())
        }),
        _ => return None,
    })
}

fn of_models(ctx: &Context, name: &str) -> Result<Option<Call>, Failure> {
    let operation = match name {
        "models.invoke" => ModelOperation::Invoke,
        "models.stream" => ModelOperation::Stream,
        "models.rerank" => ModelOperation::Rerank,
        "models.embed" => ModelOperation::Embed,
        "models.count-tokens" => ModelOperation::CountTokens,
        _ => return Ok(None),
    };
    let model = ctx.model_for(operation).map_or("no-model", |model| &model.model_id).to_owned();
    let request = Request {
        messages: vec![
            Message::system("You are an assistant that answers in one sentence."),
            Message::user("What does it cost to ask you something?"),
        ],
        tools: Vec::new(),
        extra_args: None,
    };
    let texts = ["The first of two short texts.".to_owned(), "The second of two short texts.".to_owned()];
    Ok(Some(match operation {
        ModelOperation::Invoke => Box::new(move |_| Ok(models::invoke(&model, &request).map(drop)?)),
        ModelOperation::Stream => Box::new(move |_| {
            let stream = models::stream(&model, &request)?;
            while !stream.next()?.is_empty() {}
            Ok(())
        }),
        ModelOperation::Rerank => Box::new(move |_| Ok(models::rerank(&model, "the second", &texts, Some(1)).map(drop)?)),
        ModelOperation::Embed => Box::new(move |_| Ok(models::embed(&model, &texts).map(drop)?)),
        ModelOperation::CountTokens => Box::new(move |_| Ok(models::count_tokens(&model, &request.messages).map(drop)?)),
    }))
}

/// Sleeps, and says so before and after.
fn sleep(task: &Task) -> Result<(), Failure> {
    let say = |text: String| results::emit(&[message_delta("m1", text)]).map_err(ApiError::from);
    // A host call brings the clock of the run up to date.
    timers::now();
    say(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros().to_string())?;
    timers::sleep_until(task.until_ms).map_err(ApiError::from)?;
    say("awake".to_owned())?;
    timers::sleep_until(timers::now() + task.stay_ms).map_err(ApiError::from)?;
    Ok(())
}

/// Relays the answer of a model at once: each chunk is a delta of its own, and chunks that arrived together are emitted
/// together.
fn relay(ctx: &Context) -> Result<(), ApiError> {
    let model = ctx.model_for(ModelOperation::Stream).map_or("no-model", |model| &model.model_id);
    let request = Request { messages: vec![Message::user(ctx.text())], tools: Vec::new(), extra_args: None };
    let stream = models::stream(model, &request)?;
    let mut out = ctx.message();
    loop {
        let chunks = stream.next()?;
        if chunks.is_empty() {
            return out.finish();
        }
        for chunk in chunks {
            if let Chunk::Text(text) = chunk {
                out.delta(&text)?;
            }
        }
        out.flush()?;
    }
}
