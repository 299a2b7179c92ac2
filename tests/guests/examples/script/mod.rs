//! Does the host calls that the event asks for, one after the other, and says what came of each.
//!
//! The `data` of the event has `steps`: objects with a `call` and its arguments. The answer is a result of type
//! `test.answer` with `outcomes`, one for each step: the value, or `{"error": CODE, "message", "retryable",
//! "details"}`. A step with `as` keeps its outcome under that name; an argument `$NAME` stands for it, or for its
//! artifact id or cursor. Nothing of this joins a transcript unless a step says so.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use agent_host_sdk::contract::agent_host::runner::{
    artifacts, events, history, knowledge, log, models, results, state, storage, tools,
};
use agent_host_sdk::contract::{
    ArtifactRef, CompletedMessage, ContentPart, CustomResult, Direction, PageRequest, Role, RunResult, StateUpdate, ToolCall,
    ToolDefinition, TranscriptItem,
};
use agent_host_sdk::serde_json::{self, Map, Value, json};
use agent_host_sdk::{
    ApiError, ArtifactOperation, Completion, Context, ConversationReach, ErrorCode, EventOperation, Failure, HistoryOperation,
    KnowledgeOperation, Manifest, Message, ModelOperation, StateScope, StorageArea, ToolOperation,
};

/// A manifest that asks for every permission of this version.
pub(crate) fn manifest(plugin: &str) -> Manifest {
    Manifest::new("test", plugin)
        .label("en", "Caller")
        .models([
            ModelOperation::Invoke,
            ModelOperation::Stream,
            ModelOperation::Rerank,
            ModelOperation::Embed,
            ModelOperation::CountTokens,
        ])
        .tools([ToolOperation::Detail, ToolOperation::Call])
        .knowledge_bases([KnowledgeOperation::List, KnowledgeOperation::Retrieve])
        .history([HistoryOperation::Page, HistoryOperation::Search])
        .conversations([ConversationReach::Workspace])
        .events([EventOperation::Get, EventOperation::Page])
        .artifacts([ArtifactOperation::Metadata, ArtifactOperation::Read, ArtifactOperation::Create])
        .state([StateScope::Conversation, StateScope::Actor, StateScope::Subject, StateScope::Runner, StateScope::Binding])
        .storage([StorageArea::Plugin, StorageArea::Workspace, StorageArea::Binding])
}

/// Does the steps.
pub(crate) fn run(ctx: Context) -> Result<Completion, Failure> {
    let data: Value = serde_json::from_str(&ctx.event().data).unwrap_or_default();
    let mut script = Script { ctx: &ctx, kept: BTreeMap::new(), open: Vec::new() };
    let mut outcomes = Vec::new();
    for step in data.get("steps").and_then(Value::as_array).into_iter().flatten() {
        let outcome = script.step(step).unwrap_or_else(|error| refusal(&error));
        if let Some(name) = step.get("as").and_then(Value::as_str) {
            script.kept.insert(name.to_owned(), outcome.clone());
        }
        outcomes.push(outcome);
    }
    let answer = CustomResult { type_: "test.answer".to_owned(), data: json!({ "outcomes": outcomes }).to_string() };
    results::emit(&[RunResult::Other(answer)]).map_err(ApiError::from)?;
    Ok(Completion::stop())
}

fn refusal(error: &ApiError) -> Value {
    let details: Option<Value> = error.details.as_deref().and_then(|text| serde_json::from_str(text).ok());
    json!({ "error": error.code.as_str(), "message": error.message, "retryable": error.retryable, "details": details })
}

/// A test that asks for what is not there.
fn usage(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::Other("guest".to_owned()), message)
}

#[allow(dead_code, reason = "held, and nothing else")]
enum OpenResource {
    Reader(artifacts::Reader),
    Writer(artifacts::Writer),
    Stream(models::ResponseStream),
}

struct Script<'a> {
    ctx: &'a Context,
    kept: BTreeMap<String, Value>,
    open: Vec<OpenResource>,
}

/// The arguments of one step.
struct Args(Map<String, Value>);

impl Args {
    fn text(&self, name: &str) -> Result<&str, ApiError> {
        self.maybe(name).ok_or_else(|| usage(format!("`{name}` is missing")))
    }

    fn maybe(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        self.0.get(name).and_then(Value::as_u64).unwrap_or(default)
    }

    fn small(&self, name: &str, default: u32) -> u32 {
        u32::try_from(self.number(name, u64::from(default))).unwrap_or(u32::MAX)
    }

    fn size(&self, name: &str) -> usize {
        usize::try_from(self.number(name, 0)).unwrap_or(usize::MAX)
    }

    fn list(&self, name: &str) -> &[Value] {
        self.0.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// A JSON value as text: a string is taken as it stands under `NAME_text`, so that it can be malformed.
    fn json(&self, name: &str) -> Option<String> {
        self.maybe(&format!("{name}_text")).map(str::to_owned).or_else(|| self.0.get(name).map(Value::to_string))
    }

    fn scope(&self) -> Result<StateScope, ApiError> {
        Ok(match self.text("scope")? {
            "conversation" => StateScope::Conversation,
            "actor" => StateScope::Actor,
            "subject" => StateScope::Subject,
            "runner" => StateScope::Runner,
            "binding" => StateScope::Binding,
            other => return Err(usage(format!("there is no scope `{other}`"))),
        })
    }

    fn area(&self) -> Result<StorageArea, ApiError> {
        Ok(match self.text("area")? {
            "plugin" => StorageArea::Plugin,
            "workspace" => StorageArea::Workspace,
            "binding" => StorageArea::Binding,
            other => return Err(usage(format!("there is no area `{other}`"))),
        })
    }

    /// `text`, or `fill` bytes of it.
    fn bytes(&self) -> Vec<u8> {
        let text = self.maybe("text").unwrap_or("x").as_bytes();
        match self.size("fill") {
            0 => text.to_vec(),
            fill => text.iter().copied().cycle().take(fill).collect(),
        }
    }
}

/// The part of bytes that a test compares.
fn bytes_json(bytes: &[u8]) -> Value {
    let beginning: Vec<u8> = bytes.iter().copied().take(64).collect();
    let sum = bytes.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    json!({ "bytes": bytes.len(), "text": String::from_utf8_lossy(&beginning), "sum": sum })
}

fn reference(artifact: &ArtifactRef) -> Value {
    json!({
        "artifact_id": artifact.artifact_id,
        "media_type": artifact.media_type,
        "name": artifact.name,
        "size": artifact.size,
        "sha256": artifact.sha256,
    })
}

fn artifact_ref(id: &str) -> ArtifactRef {
    // A runner's claims about an artifact besides its id are ignored.
    ArtifactRef { artifact_id: id.to_owned(), media_type: "image/lie".to_owned(), name: None, size: Some(1), sha256: None }
}

fn content(part: &ContentPart) -> Value {
    match part {
        ContentPart::Text(text) => json!({ "bytes": text.len(), "text": text.chars().take(300).collect::<String>() }),
        ContentPart::Artifact(artifact) => reference(artifact),
        ContentPart::Other(other) => serde_json::from_str(other).unwrap_or_default(),
    }
}

fn item(item: &TranscriptItem) -> Value {
    json!({
        "text": item.text,
        "role": item.role,
        "seq": item.seq,
        "cursor": item.cursor,
        "created_at": item.created_at,
        "artifacts": item.artifacts.iter().map(reference).collect::<Vec<_>>(),
    })
}

fn event(event: &agent_host_sdk::contract::Event) -> Value {
    json!({
        "event_id": event.event_id,
        "event_type": event.event_type,
        "source": event.source,
        "data": event.data,
        "raw": event.raw_ref.as_ref().map(reference),
        "whole": format!("{event:?}"),
    })
}

fn response(response: &models::Response, streamed: &str) -> Value {
    json!({
        "text": response.message.content.iter().filter_map(|part| match part {
            ContentPart::Text(text) => Some(text.as_str()),
            _ => None,
        }).collect::<String>(),
        "streamed": streamed,
        "finish_reason": response.finish_reason,
        "usage": response.usage.as_ref().map(|usage| json!({ "input": usage.input, "output": usage.output })),
        "tool_calls": response.message.tool_calls.iter().map(|call| json!([call.tool_name, call.parameters])).collect::<Vec<_>>(),
    })
}

fn tool_output(output: &tools::ToolOutput) -> Value {
    json!({ "content": output.content.iter().map(content).collect::<Vec<_>>(), "is_error": output.is_error })
}

impl Script<'_> {
    /// The arguments with what was kept in the place of its names.
    fn args(&self, step: &Value) -> Args {
        let mut args = step.as_object().cloned().unwrap_or_default();
        for value in args.values_mut() {
            let Some(kept) = value.as_str().and_then(|text| self.kept.get(text.strip_prefix('$')?)) else { continue };
            let member = ["artifact_id", "next", "cursor"].iter().find_map(|name| kept.get(name));
            *value = member.unwrap_or(kept).clone();
        }
        Args(args)
    }

    fn step(&mut self, step: &Value) -> Result<Value, ApiError> {
        let args = self.args(step);
        let call = args.text("call")?;
        match call.split_once('.').map_or(call, |(interface, _)| interface) {
            "state" => on_state(call, &args),
            "storage" => on_storage(call, &args),
            "artifacts" => self.on_artifacts(call, &args),
            "history" | "events" => on_records(call, &args),
            "models" => self.on_models(call, &args),
            "tools" => self.on_tools(call, &args),
            "knowledge" => on_knowledge(call, &args),
            "emit" => emit(&args),
            "log" => {
                let text = String::from_utf8_lossy(&args.bytes()).into_owned();
                (0..args.number("times", 1)).for_each(|_| log::write(log::Level::Info, &text));
                Ok(Value::Null)
            }
            "sleep" => {
                sleep(Duration::from_millis(args.number("ms", 0)));
                Ok(Value::Null)
            }
            // Until another run has put this key into the storage of the plugin.
            "await" => {
                while storage::get(StorageArea::Plugin, args.text("key")?)?.is_none() {
                    sleep(Duration::from_millis(20));
                }
                Ok(Value::Null)
            }
            "context" => Ok(self.context()),
            other => Err(usage(format!("there is no call `{other}`"))),
        }
    }

    fn context(&self) -> Value {
        let raw = self.ctx.contract();
        let resources = self.ctx.resources();
        let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
        json!({
            "state": {
                "conversation": parsed(&raw.state.conversation),
                "actor": parsed(&raw.state.actor),
                "subject": parsed(&raw.state.subject),
                "runner": parsed(&raw.state.runner),
                "binding": parsed(&raw.state.binding),
            },
            "tools": resources.tools.iter().map(|tool| tool.tool_name.as_str()).collect::<Vec<_>>(),
            "artifacts": resources.artifacts.iter().map(reference).collect::<Vec<_>>(),
            "attachments": self.ctx.attachments().iter().map(reference).collect::<Vec<_>>(),
            "latest_cursor": raw.context.latest_cursor,
            "event_id": self.ctx.event().event_id,
        })
    }

    fn on_artifacts(&mut self, call: &str, args: &Args) -> Result<Value, ApiError> {
        Ok(match call {
            // Written in `pieces`; with `drop`, never finished.
            "artifacts.create" => {
                let writer = artifacts::create(args.text("media_type")?, args.maybe("name"))?;
                let bytes = args.bytes();
                for piece in bytes.chunks(args.size("pieces").clamp(1, 1 << 20)) {
                    writer.write(piece)?;
                }
                if args.0.contains_key("drop") {
                    return Ok(Value::Null);
                }
                reference(&artifacts::Writer::finish(writer)?)
            }
            "artifacts.metadata" => {
                let metadata = artifacts::metadata(args.text("id")?)?;
                let times = json!({ "created_at": metadata.created_at, "expires_at": metadata.expires_at });
                json!({ "artifact": reference(&metadata.artifact), "times": times })
            }
            "artifacts.read" => {
                bytes_json(&artifacts::read_range(args.text("id")?, args.number("offset", 0), args.small("length", 1024))?)
            }
            "artifacts.read_all" => {
                let reader = artifacts::open(args.text("id")?)?;
                let mut all = Vec::new();
                loop {
                    let piece = reader.read(args.small("max", 1 << 20))?;
                    if piece.is_empty() {
                        break bytes_json(&all);
                    }
                    all.extend(piece);
                }
            }
            // Opened `times` over, and never given back.
            "artifacts.leak_readers" => {
                for _ in 0..args.number("times", 1) {
                    self.open.push(OpenResource::Reader(artifacts::open(args.text("id")?)?));
                }
                self.open.len().into()
            }
            "artifacts.leak_writers" => {
                for _ in 0..args.number("times", 1) {
                    self.open.push(OpenResource::Writer(artifacts::create("text/plain", None)?));
                }
                self.open.len().into()
            }
            other => return Err(usage(format!("there is no call `{other}`"))),
        })
    }

    fn on_models(&mut self, call: &str, args: &Args) -> Result<Value, ApiError> {
        let id = args.maybe("model").unwrap_or("chat");
        let tools = self.ctx.resources().tools.iter().map(|tool| ToolDefinition {
            name: tool.tool_name.clone(),
            description: None,
            parameters: r#"{"type":"object"}"#.to_owned(),
        });
        let request = models::Request {
            messages: vec![Message::user(args.maybe("text").unwrap_or("hello"))],
            tools: tools.collect(),
            extra_args: args.json("extra"),
        };
        Ok(match call {
            "models.invoke" => response(&models::invoke(id, &request)?, ""),
            "models.stream" => {
                let stream = models::stream(id, &request)?;
                let mut streamed = String::new();
                loop {
                    for chunk in stream.next()? {
                        match chunk {
                            models::Chunk::Text(text) => streamed.push_str(&text),
                            models::Chunk::Reasoning(_) => {}
                            models::Chunk::Done(done) => return Ok(response(&done, &streamed)),
                        }
                    }
                }
            }
            // Opened, and never read.
            "models.leak_streams" => {
                for _ in 0..args.number("times", 1) {
                    self.open.push(OpenResource::Stream(models::stream(id, &request)?));
                }
                self.open.len().into()
            }
            "models.embed" => models::embed(id, &[args.maybe("text").unwrap_or("hello").to_owned()])?.len().into(),
            "models.rerank" => {
                let documents = ["one".to_owned(), "two".to_owned()];
                models::rerank(id, "one", &documents, None)?.len().into()
            }
            "models.count" => models::count_tokens(id, &request.messages)?.into(),
            other => return Err(usage(format!("there is no call `{other}`"))),
        })
    }

    fn on_tools(&self, call: &str, args: &Args) -> Result<Value, ApiError> {
        Ok(match call {
            "tools.call" => {
                let parameters = args.json("parameters").unwrap_or_else(|| "{}".to_owned());
                let tool_name = args.text("tool")?.to_owned();
                let call_id = args.maybe("call_id").unwrap_or("c1").to_owned();
                tool_output(&tools::call(&ToolCall { call_id, tool_name, parameters })?)
            }
            "tools.call_many" => {
                let calls: Vec<_> = args
                    .list("calls")
                    .iter()
                    .enumerate()
                    .map(|(n, call)| ToolCall {
                        call_id: call["call_id"].as_str().map_or_else(|| format!("c{n}"), str::to_owned),
                        tool_name: call["tool"].as_str().unwrap_or_default().to_owned(),
                        parameters: call["parameters"].to_string(),
                    })
                    .collect();
                let outcomes = tools::call_many(&calls).into_iter();
                outcomes.map(|outcome| outcome.map_or_else(|error| refusal(&error.into()), |it| tool_output(&it))).collect()
            }
            "tools.detail" => serde_json::from_str(&tools::get_detail(args.text("tool")?)?.parameters).unwrap_or_default(),
            other => return Err(usage(format!("there is no call `{other}`"))),
        })
    }
}

fn on_state(call: &str, args: &Args) -> Result<Value, ApiError> {
    let scope = args.scope()?;
    Ok(match call {
        "state.get" => {
            state::get(scope, args.text("key")?)?.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap_or_default())
        }
        "state.set" => {
            let filled = || Value::from(String::from_utf8_lossy(&args.bytes())).to_string();
            state::set(scope, args.text("key")?, &args.json("value").unwrap_or_else(filled))?;
            Value::Null
        }
        "state.delete" => {
            state::delete(scope, args.text("key")?)?;
            Value::Null
        }
        "state.list" => json!(state::list_keys(scope, args.maybe("prefix"), args.small("limit", 100))?),
        other => return Err(usage(format!("there is no call `{other}`"))),
    })
}

fn on_storage(call: &str, args: &Args) -> Result<Value, ApiError> {
    let area = args.area()?;
    Ok(match call {
        "storage.get" => storage::get(area, args.text("key")?)?.map_or(Value::Null, |bytes| bytes_json(&bytes)),
        "storage.set" => {
            storage::set(area, args.text("key")?, &args.bytes())?;
            Value::Null
        }
        "storage.delete" => {
            storage::delete(area, args.text("key")?)?;
            Value::Null
        }
        "storage.list" => json!(storage::list(area, args.maybe("prefix"), args.small("limit", 100))?),
        other => return Err(usage(format!("there is no call `{other}`"))),
    })
}

fn on_records(call: &str, args: &Args) -> Result<Value, ApiError> {
    let owned = |name: &str| args.maybe(name).map(str::to_owned);
    Ok(match call {
        "history.page" => {
            let page = history::page(&PageRequest {
                conversation_id: owned("conversation"),
                before: owned("before"),
                after: owned("after"),
                limit: args.small("limit", 10),
                direction: if args.maybe("direction") == Some("forward") { Direction::Forward } else { Direction::Backward },
                include_artifacts: args.0.contains_key("artifacts"),
            })?;
            let items: Vec<_> = page.items.iter().map(item).collect();
            json!({ "items": items, "next": page.next, "prev": page.prev, "has_more": page.has_more })
        }
        "history.search" => {
            let found = history::search(args.text("query")?, args.json("filters").as_deref(), args.small("top_k", 10))?;
            found.iter().map(item).collect()
        }
        "events.get" => event(&events::get(args.text("id")?)?),
        "events.page" => {
            let types: Vec<_> = args.list("types").iter().filter_map(Value::as_str).map(str::to_owned).collect();
            let page = events::page(args.maybe("before"), &types, args.small("limit", 10))?;
            json!({ "items": page.items.iter().map(event).collect::<Vec<_>>(), "next": page.next, "has_more": page.has_more })
        }
        other => return Err(usage(format!("there is no call `{other}`"))),
    })
}

fn on_knowledge(call: &str, args: &Args) -> Result<Value, ApiError> {
    Ok(match call {
        "knowledge.list" => knowledge::list()?.into_iter().map(|base| Value::from(base.kb_id)).collect(),
        "knowledge.retrieve" => {
            let filters = args.json("filters");
            let query = match args.size("fill") {
                0 => args.text("query")?.to_owned(),
                fill => "x".repeat(fill),
            };
            let hits = knowledge::retrieve(args.text("kb")?, &query, args.small("top_k", 3), filters.as_deref())?;
            hits.iter().map(|hit| json!({ "text": hit.text, "score": hit.score, "metadata": hit.metadata })).collect()
        }
        other => return Err(usage(format!("there is no call `{other}`"))),
    })
}

/// Emits one batch: a `message` with `role` and perhaps an `artifact`, and `state`, a list of updates.
fn emit(args: &Args) -> Result<Value, ApiError> {
    let mut batch = Vec::new();
    if let Some(text) = args.maybe("message") {
        let role = match args.maybe("role") {
            Some("user") => Role::User,
            Some("system") => Role::System,
            Some("tool") => Role::Tool,
            _ => Role::Assistant,
        };
        let mut message = Message { role, ..Message::user(text) };
        message.content.extend(args.maybe("artifact").map(|id| ContentPart::Artifact(artifact_ref(id))));
        batch.push(RunResult::MessageCompleted(CompletedMessage { message_id: "m".to_owned(), message }));
    } else if let Some(id) = args.maybe("artifact") {
        batch.push(RunResult::ArtifactCreated(artifact_ref(id)));
    }
    for update in args.list("state") {
        let update = Args(update.as_object().cloned().unwrap_or_default());
        let value = update.json("value").unwrap_or_default();
        batch.push(RunResult::StateUpdated(StateUpdate { scope: update.scope()?, key: update.text("key")?.to_owned(), value }));
    }
    Ok(results::emit(&batch)?.into())
}
