//! Functions of LangBot's API for runners: each becomes a function of the contract, with its arguments and its answer.
//!
//! The names are those on LangBot's wire (`PluginToRuntimeAction`), so that its proxy classes work unchanged. A function that
//! the table does not have is called by its own name.

use agent_host_protocol::{ErrorCode, Run, limits::MAX_PAGE};
use agent_host_runs::Records;
use serde_json::{Map, Value, json};

use super::{
    context,
    members::{Members, object},
    message, rows,
};
use crate::http::{Problem, ProblemCode};

/// A function of LangBot, as the host executes it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Plan {
    /// A function of the contract.
    Call {
        /// Name of the function.
        function: &'static str,
        /// Arguments of the function.
        arguments: Value,
        /// The form of the answer.
        answer: Answer,
    },
    /// The version of LangBot whose names these are.
    Version,
    /// The prompt that a pipeline has prepared.
    Prompt,
    /// The run that calls, which its holder knows.
    OwnRun,
}

/// The form of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    /// As the contract has it.
    Same,
    /// `message` and `usage`.
    Invoked,
    /// Pieces, each a `chunk` or `usage`.
    Streamed,
    /// `results` with relevance.
    Reranked,
    /// `tool`.
    Tool,
    /// `result` of a tool.
    ToolResult,
    /// `results` of a knowledge base.
    Retrieved,
    /// `knowledge_bases`.
    Bases,
    /// A page of a transcript.
    History,
    /// Found items of a transcript, with the query.
    Found(String),
    /// One event of the log.
    Event,
    /// A page of events of the log.
    Events,
    /// Inputs that came during the run.
    Steering,
    /// A run.
    Run,
    /// A page of runs.
    Runs {
        /// True if no page is before it.
        is_first: bool,
    },
    /// A page of events of a run.
    RunEvents,
    /// The run with this id, as it is now.
    RunNow(String),
    /// A value of state.
    State,
    /// The success of a write.
    Success,
    /// Bytes as Base64.
    Bytes,
    /// The outcome of a platform action.
    Action,
}

/// The plan of a call of `run`. `None` for a function that LangBot does not have.
pub(crate) fn plan(function: &str, arguments: Value, run: &Run) -> Result<Option<Plan>, Problem> {
    let Value::Object(members) = arguments else {
        return Err(invalid(&format!("the arguments of `{function}` are a JSON object")));
    };
    let mut theirs = Members::of(Value::Object(members));
    let own = run.run_id.to_string();
    if theirs.text("run_id").is_some_and(|named| named != own) {
        return Err(invalid(&format!("`run_id` is not this run, {own}: leave it out, or send that id")));
    }
    let call = |function, arguments, answer| Ok(Some(Plan::Call { function, arguments, answer }));
    match function {
        "get_langbot_version" => Ok(Some(Plan::Version)),
        "get_prompt" => Ok(Some(Plan::Prompt)),
        "invoke_llm" => call("models.invoke", model(&mut theirs)?, Answer::Invoked),
        "invoke_llm_stream" => call("models.stream", model(&mut theirs)?, Answer::Streamed),
        "count_tokens" => {
            let id = required(&mut theirs, "llm_model_uuid")?;
            let arguments = object([
                ("model_id", Some(id.into())),
                ("messages", Some(messages(&mut theirs)?)),
                ("tools", tools(&mut theirs)),
            ]);
            call("models.count-tokens", arguments, Answer::Same)
        }
        "invoke_embedding" => {
            let arguments = object([("model_id", theirs.take("embedding_model_uuid")), theirs.named("texts")]);
            call("models.embed", arguments, Answer::Same)
        }
        "invoke_rerank" => {
            let arguments = object([
                ("model_id", theirs.take("rerank_model_uuid")),
                theirs.named("query"),
                theirs.named("documents"),
                theirs.named("top_k"),
            ]);
            call("models.rerank", arguments, Answer::Reranked)
        }
        "get_tool_detail" => call("tools.get-detail", object([theirs.named("tool_name")]), Answer::Tool),
        "call_tool" => {
            let parameters = theirs.take("parameters").unwrap_or_else(|| json!({}));
            let arguments = object([theirs.named("tool_name"), ("parameters", Some(parameters))]);
            call("tools.call", arguments, Answer::ToolResult)
        }
        "list_knowledge_bases" => call("knowledge.list", json!({}), Answer::Bases),
        "retrieve_knowledge" | "retrieve_knowledge_base" => {
            let arguments = object([
                theirs.named("kb_id"),
                ("query", theirs.take("query_text")),
                theirs.named("top_k"),
                ("filters", filters(&mut theirs)),
            ]);
            call("knowledge.retrieve", arguments, Answer::Retrieved)
        }
        "history_page" => {
            let arguments = object([
                theirs.named("conversation_id"),
                ("before", theirs.take("before_cursor")),
                ("after", theirs.take("after_cursor")),
                limit(&mut theirs),
                theirs.named("direction"),
                ("include_artifacts", theirs.take("include_attachments")),
            ]);
            call("history.page", arguments, Answer::History)
        }
        "history_search" => {
            let query = required(&mut theirs, "query")?;
            let arguments =
                object([("query", Some(query.clone().into())), theirs.named("top_k"), ("filters", filters(&mut theirs))]);
            call("history.search", arguments, Answer::Found(query))
        }
        "event_get" => call("events.get", object([theirs.named("event_id")]), Answer::Event),
        "event_page" => {
            own_conversation(&mut theirs, run)?;
            let arguments = object([theirs.named("event_types"), ("before", theirs.take("before_cursor")), limit(&mut theirs)]);
            call("events.page", arguments, Answer::Events)
        }
        "steering_pull" => {
            let one = matches!(theirs.text("mode").as_deref(), Some("one" | "one-at-a-time"));
            let limit = if one { ("limit", Some(1.into())) } else { limit(&mut theirs) };
            call("steering.pull", object([limit]), Answer::Steering)
        }
        "run_get" if theirs.peek("target_run_id").is_none_or(|target| target == own.as_str()) => Ok(Some(Plan::OwnRun)),
        "run_get" => call("runs.get", json!({ "run_id": target(&mut theirs, own) }), Answer::Run),
        "run_list" => {
            own_conversation(&mut theirs, run)?;
            let statuses: Vec<Value> = theirs.list("statuses", |status| status).into_iter().flat_map(statuses).collect();
            let before = theirs.take("before_cursor");
            let answer = Answer::Runs { is_first: before.is_none() };
            call("runs.list", object([("statuses", Some(statuses.into())), ("before", before), limit(&mut theirs)]), answer)
        }
        "run_events_page" => {
            let target = target(&mut theirs, own);
            let arguments = object([
                ("before", event_cursor(&mut theirs, "before_cursor", &target)),
                ("after", event_cursor(&mut theirs, "after_cursor", &target)),
                ("run_id", Some(target.into())),
                limit(&mut theirs),
                theirs.named("direction"),
            ]);
            call("runs.events-page", arguments, Answer::RunEvents)
        }
        "run_cancel" => {
            let target = target(&mut theirs, own);
            let arguments = object([("run_id", Some(target.clone().into())), theirs.named("reason")]);
            call("runs.cancel", arguments, Answer::RunNow(target))
        }
        "state_get" => call("state.get", object([theirs.named("scope"), theirs.named("key")]), Answer::State),
        "state_set" => {
            let value = theirs.take("value").unwrap_or_default();
            let arguments = object([theirs.named("scope"), theirs.named("key"), ("value", Some(value))]);
            call("state.set", arguments, Answer::Success)
        }
        "state_delete" => call("state.delete", object([theirs.named("scope"), theirs.named("key")]), Answer::Success),
        "state_list" => {
            let arguments = object([theirs.named("scope"), theirs.named("prefix"), limit(&mut theirs)]);
            call("state.list-keys", arguments, Answer::Same)
        }
        "call_platform_api" => {
            let target = object([theirs.named("bot_uuid"), theirs.named("context_tool")]);
            let payload = theirs.take("params").unwrap_or_else(|| json!({}));
            let arguments = object([theirs.named("action"), ("target", Some(target)), ("payload", Some(payload))]);
            call("platform.request-action", arguments, Answer::Action)
        }
        _ => Ok(storage(function, &mut theirs)),
    }
}

/// `get_plugin_storage` and its like: a verb, an area, and perhaps `_keys`.
fn storage(function: &str, theirs: &mut Members) -> Option<Plan> {
    let (verb, rest) = function.split_once('_')?;
    let (area, keys) = match rest {
        "plugin_storage" => ("plugin", false),
        "workspace_storage" => ("workspace", false),
        "plugin_storage_keys" => ("plugin", true),
        "workspace_storage_keys" => ("workspace", true),
        _ => return None,
    };
    let area = ("area", Some(Value::from(area)));
    let (function, arguments, answer) = match (verb, keys) {
        ("get", true) => ("storage.list", object([area]), Answer::Same),
        ("get", false) => ("storage.get", object([area, theirs.named("key")]), Answer::Bytes),
        ("set", false) => {
            let value = theirs.take("value_base64");
            ("storage.set", object([area, theirs.named("key"), ("value", value)]), Answer::Success)
        }
        ("delete", false) => ("storage.delete", object([area, theirs.named("key")]), Answer::Success),
        _ => return None,
    };
    Some(Plan::Call { function, arguments, answer })
}

fn invalid(detail: &str) -> Problem {
    agent_host_protocol::ApiError::invalid_argument(detail.to_owned()).into()
}

fn required(theirs: &mut Members, name: &str) -> Result<String, Problem> {
    theirs.text(name).ok_or_else(|| invalid(&format!("`{name}` is missing")))
}

/// LangBot sends an empty object where there are no filters.
fn filters(theirs: &mut Members) -> Option<Value> {
    theirs.take("filters").filter(|filters| filters.as_object().is_none_or(|filters| !filters.is_empty()))
}

fn target(theirs: &mut Members, own: String) -> String {
    theirs.text("target_run_id").unwrap_or(own)
}

/// Refuses the id of another conversation: the function reads the own one.
fn own_conversation(theirs: &mut Members, run: &Run) -> Result<(), Problem> {
    match theirs.text("conversation_id") {
        Some(named) if run.conversation_id.as_deref() != Some(&named) => {
            let detail = "`conversation_id` is not the conversation of this run: leave it out";
            Err(agent_host_protocol::ApiError::new(ErrorCode::Unauthorized, detail).into())
        }
        _ => Ok(()),
    }
}

fn messages(theirs: &mut Members) -> Result<Value, Problem> {
    let Some(Value::Array(sent)) = theirs.take("messages") else { return Err(invalid("`messages` is a list of messages")) };
    let place = |(place, message)| message::from_langbot(message).map_err(|error| invalid(&format!("message {place}: {error}")));
    sent.into_iter().enumerate().map(place).collect::<Result<Vec<_>, _>>().map(Value::from)
}

/// The tools that a model may call; `None` without any.
fn tools(theirs: &mut Members) -> Option<Value> {
    let tools = theirs.list("funcs", |function| {
        let mut function = Members::of(function);
        object([function.named("name"), function.named("description"), function.named("parameters")])
    });
    (!tools.is_empty()).then(|| tools.into())
}

/// The items of a page. LangBot's host gives its largest page to a client that asks for more.
fn limit(theirs: &mut Members) -> (&'static str, Option<Value>) {
    let wanted = theirs.take("limit");
    let too_many = wanted.as_ref().and_then(Value::as_u64).is_some_and(|limit| limit > u64::from(MAX_PAGE));
    ("limit", if too_many { Some(MAX_PAGE.into()) } else { wanted })
}

/// A cursor of the events of a run. LangBot's cursors are numbers of events, so a client may send such a number.
fn event_cursor(theirs: &mut Members, name: &str, run: &str) -> Option<Value> {
    let cursor = theirs.take(name)?;
    let number = match &cursor {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    };
    match (number, run.parse()) {
        (Some(number), Ok(run)) => Some(Records::run_cursor(run, number).into()),
        _ => Some(cursor),
    }
}

/// The statuses of the host that a status of LangBot stands for.
fn statuses(status: Value) -> Vec<Value> {
    match status.as_str() {
        Some("claimed") => vec!["dispatching".into(), status],
        Some("running") => vec![status, "waiting".into()],
        _ => vec![status],
    }
}

/// The arguments of a model call. The time-out bounds the waiting of the client, which keeps it itself.
fn model(theirs: &mut Members) -> Result<Value, Problem> {
    let id = required(theirs, "llm_model_uuid")?;
    let messages = messages(theirs)?;
    let tools = tools(theirs);
    let mut extra = theirs.within("extra_args").rest();
    if let Some(level) = theirs.take("reasoning_level") {
        extra.entry("reasoning_effort").or_insert(level);
    }
    let request = object([
        ("messages", Some(messages)),
        ("tools", tools),
        ("extra_args", (!extra.is_empty()).then_some(Value::Object(extra))),
    ]);
    Ok(json!({ "model_id": id, "request": request }))
}

/// An answer of the contract in the form of LangBot. `now` is the time in ms.
pub(crate) fn answered(answer: &Answer, value: Value, run: &Run, now: u64) -> Result<Value, Problem> {
    let mut ours = Members::of(value.clone());
    Ok(match answer {
        Answer::Same => value,
        Answer::Invoked | Answer::Streamed => object([
            ("message", ours.take("message").map(message::to_langbot)),
            ours.named("finish_reason"),
            ("usage", ours.take("usage").map(message::usage)),
        ]),
        Answer::Reranked => {
            let hit = |hit: Value| {
                let mut hit = Members::of(hit);
                object([hit.named("index"), ("relevance_score", hit.take("score"))])
            };
            json!({ "results": ours.list("hits", hit) })
        }
        Answer::Tool => {
            let description = ours.take("description");
            let tool = object([
                ours.named("name"),
                ("human_desc", description.clone()),
                ("description", description),
                ours.named("parameters"),
            ]);
            json!({ "tool": tool })
        }
        Answer::ToolResult => {
            let content = ours.take("content").map(message::content_to_langbot);
            let result = object([("content", content), ("structured", ours.take("structured")), ours.named("is_error")]);
            json!({ "result": result })
        }
        Answer::Retrieved => json!({ "results": ours.list("hits", passage) }),
        Answer::Bases => {
            let base = |base: Value| {
                let mut base = Members::of(base);
                let id = base.take("kb_id");
                object([("uuid", id.clone()), ("name", base.take("kb_name").or(id))])
            };
            json!({ "knowledge_bases": ours.list("items", base) })
        }
        Answer::History => rows::page(value, rows::transcript_item),
        Answer::Found(query) => {
            let items = ours.list("items", rows::transcript_item);
            json!({ "total_count": items.len(), "items": items, "query": query })
        }
        Answer::Event => rows::event(value),
        Answer::Events => rows::page(value, rows::event),
        Answer::Steering => {
            let (id, runner) = (run.run_id.to_string(), run.runner_id.to_string());
            json!({ "items": ours.list("inputs", |item| context::steering(item, &id, &runner, now)) })
        }
        Answer::Run | Answer::RunNow(_) => rows::run(value),
        Answer::Runs { is_first } => {
            let mut page = rows::page(value, rows::run);
            // The ledger does not count the runs of a list, so only a list that is one page has a count.
            let is_whole = *is_first && page.get("has_more") == Some(&Value::Bool(false));
            let count = page.get("items").and_then(Value::as_array).filter(|_| is_whole).map(Vec::len);
            if let (Value::Object(page), Some(count)) = (&mut page, count) {
                page.insert("total_count".to_owned(), count.into());
            }
            page
        }
        Answer::RunEvents => rows::page(value, rows::run_event),
        Answer::State => json!({ "value": ours.take("value") }),
        Answer::Success => json!({ "success": true }),
        Answer::Bytes => match ours.take("value") {
            Some(value) => json!({ "value_base64": value }),
            None => return Err(Problem::not_found("the area has no value with this key")),
        },
        Answer::Action => match ours.text("outcome").as_deref() {
            Some("executed") => json!({ "result": ours.take("result") }),
            Some("denied") => {
                let reason = ours.text("reason").unwrap_or_default();
                return Err(Problem::new(ProblemCode::Unauthorized, format!("the action was denied: {reason}")));
            }
            _ => {
                let detail = "nobody answered in time whether the action may be done";
                return Err(Problem::new(ProblemCode::DeadlineExceeded, detail));
            }
        },
    })
}

fn passage(hit: Value) -> Value {
    let mut ours = Members::of(hit);
    let score = ours.take("score").and_then(|score| score.as_f64());
    let source = ours.take("source");
    let mut metadata: Map<String, Value> = ours.within("metadata").rest();
    metadata.extend(source.map(|source| ("source".to_owned(), source)));
    object([
        ("id", ours.take("document_id")),
        ("content", Some(json!([{ "type": "text", "text": ours.take("text") }]))),
        ("metadata", Some(Value::Object(metadata))),
        // The nearer, the smaller.
        ("distance", Some(score.map_or(0.0, |score| 1.0 - score).into())),
        ("score", score.map(Value::from)),
    ])
}

/// A piece of a model's answer as an `LLMStreamEvent`.
pub(crate) fn streamed(piece: Value) -> Value {
    let mut ours = Members::of(piece);
    let chunk = |content: Option<Value>, more: Option<Value>| {
        let role = ("role", Some("assistant".into()));
        object([role, ("content", content), ("provider_specific_fields", more)])
    };
    if let Some(text) = ours.take("text") {
        return json!({ "chunk": chunk(Some(text), None) });
    }
    if let Some(reasoning) = ours.take("reasoning") {
        return json!({ "chunk": chunk(Some("".into()), Some(json!({ "reasoning_content": reasoning }))) });
    }
    let mut done = ours.within("done");
    let mut last = message::to_langbot(done.take("message").unwrap_or_default());
    if let Value::Object(last) = &mut last {
        // The text was there in pieces; here it is whole.
        let whole = last.remove("content").unwrap_or_default();
        last.insert("all_content".to_owned(), whole.as_str().unwrap_or_default().into());
        last.insert("content".to_owned(), "".into());
        last.insert("is_final".to_owned(), true.into());
    }
    object([("chunk", Some(last)), ("usage", done.take("usage").map(message::usage))])
}
