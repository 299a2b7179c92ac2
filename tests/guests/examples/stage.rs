//! `plugin:test/stage/default` does what the steps of a script say, one after the other, so that a client sees whatever a
//! test wants it to see. The script is a list in the member `script` of what a front end passes on
//! (`event.data.agui.forwarded_props.script`), or the text of the event, where that is a JSON array. Without a script it
//! repeats its input in words.
//!
//! Each step is an object; `do` says which:
//!
//! - `{"do": "say", "text": "...", "id"?, "pieces"?, "delay_ms"?, "open"?}`: a message in so many pieces; an open one is never
//!   completed.
//! - `{"do": "think", "text", "id"?, "pieces"?, "delay_ms"?}`: what it thinks before it answers.
//! - `{"do": "tool", "calls": [{"id", "name", "parameters", "result" | "error"}], "delay_ms"?}`: tools that it executes itself:
//!   all begin, then the last ends first.
//! - `{"do": "client", "calls": [{"name", "parameters", "id"?}], "many"?}`: tools of the host or of the front end; says what
//!   came of each.
//! - `{"do": "ask", "kind": "confirmation" | "choice" | "form" | "plan", "title", "schema"? (a value, or its text),
//!   "expires_ms"?}`: says the answer.
//! - `{"do": "act", "action", "target"?, "payload"?}`: a platform action; says what came of it.
//! - `{"do": "state", "key", "value", "set"?}`: of scope conversation, as a result, or by `state.set`.
//! - `{"do": "result", "type", "data"}`: a result of a type that the contract does not name, such as `ui.step.started`.
//! - `{"do": "artifact", "text", "media_type"?, "name"?, "shown"?}`: makes an artifact; a shown one is part of a message.
//! - `{"do": "model", "prompt", "model"?}`: what a model streams, passed on.
//! - `{"do": "child", "script", "runner"?, "wait_ms"?}`: another run; says how it ended.
//! - `{"do": "children", "scripts", "steps"?}`: a run for each script, then these steps, then it waits for the runs; says how each
//!   ended.
//! - `{"do": "input"}`: says what it was given. `{"do": "history", "limit"?}`: says what was said before.
//! - `{"do": "repeat", "times", "steps"}`: these steps, so often.
//! - `{"do": "sleep", "ms"}`, `{"do": "fail", "code"?, "message"?}`, `{"do": "trap"}`, `{"do": "finish", "text"?, "usage"?}`.

use std::time::Duration;

use agent_host_sdk::contract::agent_host::runner::{history, interactions, platform, state, tools};
use agent_host_sdk::contract::{ContentPart, Message, RunResult, TokenUsage};
use agent_host_sdk::contract::{
    Direction, PageRequest, QuestionAnswer, QuestionKind, ToolCall, ToolCallCompleted, ToolCallStarted, ToolOutput,
};
use agent_host_sdk::results::{emit, message_completed, message_delta, other, reasoning_delta, state_updated};
use agent_host_sdk::serde_json::{self, Value, json};
use agent_host_sdk::{
    ApiError, ArtifactOperation, ArtifactRef, Capabilities, Completion, Context, ContextOwnership, ContextPolicy, Failure,
    HistoryOperation, Manifest, ModelOperation, ModelRequest, RunOperation, Runner, StartRun, StateScope, ToolOperation, timers,
};
use serde::Deserialize;

/// Default time limit of a child, in ms.
const CHILD_MS: u64 = 30_000;

struct Stage;

impl Runner for Stage {
    fn manifest() -> Manifest {
        Manifest::new("test", "stage")
            .label("en", "Stage")
            .description("en", "Does what a script says.")
            .capabilities(Capabilities {
                streaming: true,
                tool_calling: true,
                multimodal_input: true,
                interrupt: true,
                ..Capabilities::default()
            })
            .models([ModelOperation::Invoke, ModelOperation::Stream])
            .tools([ToolOperation::Detail, ToolOperation::Call])
            .history([HistoryOperation::Page])
            .artifacts([ArtifactOperation::Metadata, ArtifactOperation::Read, ArtifactOperation::Create])
            .state([StateScope::Conversation])
            .runs([RunOperation::Start, RunOperation::Get, RunOperation::Events, RunOperation::Cancel])
            .platform_actions(["message.edit"])
            .interactions()
            .context(ContextPolicy { ownership: ContextOwnership::Hybrid, ..ContextPolicy::default() })
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let data: Value = ctx.event_data()?;
        let props = data.pointer("/agui/forwarded_props/script");
        let script = match (props, ctx.text().trim_start().starts_with('[')) {
            (Some(script), _) => Some(Vec::<Step>::deserialize(script)?),
            (None, true) => Some(serde_json::from_str(ctx.text())?),
            (None, false) => None,
        };
        let Some(script) = script else {
            let words = ctx.text().split_inclusive(' ').collect();
            say(&ctx.next_message_id(), words, 0, false)?;
            return Ok(Completion::stop());
        };
        for step in script {
            if let Some(end) = take(&ctx, &data, step)? {
                return Ok(end);
            }
        }
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Stage);

#[derive(Clone, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
enum Step {
    Say(Text),
    Think(Text),
    Tool {
        calls: Vec<OwnCall>,
        #[serde(default)]
        delay_ms: u64,
    },
    Client {
        calls: Vec<AskedCall>,
        #[serde(default)]
        many: bool,
    },
    Ask {
        kind: String,
        title: String,
        schema: Option<Value>,
        expires_ms: Option<u64>,
    },
    Act {
        action: String,
        #[serde(default)]
        target: Value,
        #[serde(default)]
        payload: Value,
    },
    State {
        key: String,
        value: Value,
        #[serde(default)]
        set: bool,
    },
    Result {
        #[serde(rename = "type")]
        kind: String,
        data: Value,
    },
    Artifact {
        text: String,
        media_type: Option<String>,
        name: Option<String>,
        #[serde(default)]
        shown: bool,
    },
    Model {
        prompt: String,
        model: Option<String>,
    },
    Child {
        script: Value,
        runner: Option<String>,
        wait_ms: Option<u64>,
    },
    Children {
        scripts: Vec<Value>,
        #[serde(default)]
        steps: Vec<Step>,
    },
    Input,
    History {
        limit: Option<u32>,
    },
    Repeat {
        times: u32,
        steps: Vec<Step>,
    },
    Sleep {
        ms: u64,
    },
    Fail {
        code: Option<String>,
        message: Option<String>,
    },
    Trap,
    Finish {
        text: Option<String>,
        usage: Option<Usage>,
    },
}

#[derive(Clone, Deserialize)]
struct Text {
    id: Option<String>,
    text: String,
    pieces: Option<usize>,
    #[serde(default)]
    delay_ms: u64,
    #[serde(default)]
    open: bool,
}

impl Text {
    /// The text in its pieces, cut between letters.
    fn cut(&self) -> Vec<&str> {
        let letters = self.text.chars().count();
        let each = letters.div_ceil(self.pieces.unwrap_or(1).max(1)).max(1);
        let starts: Vec<usize> = self.text.char_indices().map(|(at, _)| at).step_by(each).collect();
        let ends = starts.iter().skip(1).copied().chain([self.text.len()]);
        starts.iter().zip(ends).filter_map(|(from, to)| self.text.get(*from..to)).collect()
    }
}

#[derive(Clone, Deserialize)]
struct OwnCall {
    id: String,
    name: String,
    #[serde(default)]
    parameters: Value,
    result: Option<String>,
    error: Option<String>,
    message_id: Option<String>,
}

#[derive(Clone, Deserialize)]
struct AskedCall {
    id: Option<String>,
    name: String,
    #[serde(default)]
    parameters: Value,
}

#[derive(Clone, Deserialize)]
struct Usage {
    input: u64,
    output: u64,
}

/// Executes one step; returns a completion after the last one.
fn take(ctx: &Context, data: &Value, step: Step) -> Result<Option<Completion>, Failure> {
    match step {
        Step::Say(text) => {
            let id = text.id.clone().unwrap_or_else(|| ctx.next_message_id());
            say(&id, text.cut(), text.delay_ms, text.open)?;
        }
        Step::Think(text) => {
            let id = text.id.clone().unwrap_or_else(|| ctx.next_message_id());
            for piece in text.cut() {
                emit(&[reasoning_delta(&id, piece)])?;
                pause(text.delay_ms)?;
            }
        }
        Step::Tool { calls, delay_ms } => execute(&calls, delay_ms)?,
        Step::Client { calls, many } => reply(ctx, &Value::from(call(ctx, calls, many)))?,
        Step::Ask { kind, title, schema, expires_ms } => reply(ctx, &ask(&kind, title, schema, expires_ms)?)?,
        Step::Act { action, target, payload } => {
            let outcome = platform::request_action(&action, &object(&target), &object(&payload)).map_err(ApiError::from);
            reply(ctx, &action_json(outcome))?;
        }
        Step::State { key, value, set: true } => {
            state::set(StateScope::Conversation, &key, &value.to_string()).map_err(ApiError::from)?;
        }
        Step::State { key, value, set: false } => {
            emit(&[state_updated(StateScope::Conversation, key, value)])?;
        }
        Step::Result { kind, data } => {
            emit(&[other(kind, data)])?;
        }
        Step::Artifact { text, media_type, name, shown } => {
            let media_type = media_type.as_deref().unwrap_or("text/plain");
            let made = ctx.artifacts().store(media_type, name.as_deref(), text)?;
            if shown {
                let message = Message { content: vec![ContentPart::Artifact(made)], ..Message::assistant("") };
                emit(&[message_completed(ctx.next_message_id(), message)])?;
            } else {
                reply(ctx, &artifact(&made))?;
            }
        }
        Step::Model { prompt, model } => {
            let model = match &model {
                Some(id) => ctx.model(id)?,
                None => ctx.default_model()?,
            };
            let mut out = ctx.message();
            model.stream(&ModelRequest::new().user(prompt))?.write_to(&mut out)?;
            out.finish()?;
        }
        Step::Child { script, runner, wait_ms } => {
            let runner = runner.as_deref().unwrap_or("plugin:test/stage/default");
            let child = ctx.runs().start(&StartRun::new(runner).text(script.to_string()).objective("to play a part"))?;
            let ended = child.wait(Duration::from_millis(wait_ms.unwrap_or(CHILD_MS)))?;
            let child_text = if ended.is_some() { child.end()?.text().map(str::to_owned) } else { None };
            reply(ctx, &json!({ "child": child.id(), "ended": ended.is_some(), "said": child_text }))?;
        }
        Step::Children { scripts, steps } => {
            let start = |script: &Value| {
                ctx.runs().start(&StartRun::new("plugin:test/stage/default").text(script.to_string()).objective("to play a part"))
            };
            let children = scripts.iter().map(start).collect::<Result<Vec<_>, _>>()?;
            for step in steps {
                if let Some(end) = take(ctx, data, step)? {
                    return Ok(Some(end));
                }
            }
            let mut ends = Vec::new();
            for child in &children {
                ends.push(child.wait(Duration::from_millis(CHILD_MS))?.is_some());
            }
            reply(ctx, &json!({ "ended": ends }))?;
        }
        Step::Input => reply(ctx, &input_json(ctx, data))?,
        Step::History { limit } => reply(ctx, &said_before(limit.unwrap_or(20))?)?,
        Step::Repeat { times, steps } => {
            for step in (0..times).flat_map(|_| steps.clone()) {
                if let Some(end) = take(ctx, data, step)? {
                    return Ok(Some(end));
                }
            }
        }
        Step::Sleep { ms } => timers::sleep(ms)?,
        Step::Fail { code, message } => {
            let code = code.unwrap_or_else(|| "stage.failed".to_owned());
            return Err(Failure::new(code, message.unwrap_or_else(|| "as it was asked to".to_owned())));
        }
        Step::Trap => std::process::abort(),
        Step::Finish { text, usage } => {
            let mut end = Completion::stop();
            if let Some(text) = text {
                end = end.message(text);
            }
            return Ok(Some(end.usage(usage.map(tokens))));
        }
    }
    Ok(None)
}

fn tokens(usage: Usage) -> TokenUsage {
    TokenUsage { input: usage.input, output: usage.output, cached_input: None, reasoning: None }
}

fn pause(ms: u64) -> Result<(), ApiError> {
    if ms == 0 { Ok(()) } else { timers::sleep(ms) }
}

fn say(id: &str, pieces: Vec<&str>, delay_ms: u64, open: bool) -> Result<(), ApiError> {
    for piece in &pieces {
        emit(&[message_delta(id, *piece)])?;
        pause(delay_ms)?;
    }
    if !open {
        emit(&[message_completed(id, pieces.concat())])?;
    }
    Ok(())
}

fn reply(ctx: &Context, value: &Value) -> Result<(), ApiError> {
    emit(&[message_completed(ctx.next_message_id(), value.to_string())]).map(drop)
}

/// JSON of an object; of an empty one where nothing was said.
fn object(value: &Value) -> String {
    if value.is_null() { "{}".to_owned() } else { value.to_string() }
}

/// The last that began ends first.
fn execute(calls: &[OwnCall], delay_ms: u64) -> Result<(), ApiError> {
    for call in calls {
        emit(&[RunResult::ToolCallStarted(ToolCallStarted {
            call_id: call.id.clone(),
            tool_name: call.name.clone(),
            parameters: object(&call.parameters),
            message_id: call.message_id.clone(),
        })])?;
        pause(delay_ms)?;
    }
    for call in calls.iter().rev() {
        let outcome = match &call.error {
            Some(error) => Err(error.clone()),
            None => Ok(vec![ContentPart::Text(call.result.clone().unwrap_or_default())]),
        };
        let done = ToolCallCompleted { call_id: call.id.clone(), tool_name: call.name.clone(), outcome };
        emit(&[RunResult::ToolCallCompleted(done)])?;
        pause(delay_ms)?;
    }
    Ok(())
}

fn call(ctx: &Context, calls: Vec<AskedCall>, many: bool) -> Vec<Value> {
    let calls: Vec<ToolCall> = calls
        .into_iter()
        .map(|call| {
            let made = ctx.tools().new_call(&call.name, object(&call.parameters).as_str());
            let call_id = call.id.unwrap_or(made.call_id);
            ToolCall { call_id, tool_name: call.name, parameters: object(&call.parameters) }
        })
        .collect();
    match calls.as_slice() {
        [one] if !many => vec![tool_json(tools::call(one).map_err(ApiError::from))],
        calls => ctx.tools().call_many(calls).into_iter().map(tool_json).collect(),
    }
}

fn tool_json(outcome: Result<ToolOutput, ApiError>) -> Value {
    match outcome {
        Ok(output) => {
            let parts: Vec<Value> = output.content.iter().map(part).collect();
            json!({ "text": output.text(), "parts": parts, "is_error": output.is_error })
        }
        Err(error) => refused(&error),
    }
}

fn ask(kind: &str, title: String, schema: Option<Value>, expires_ms: Option<u64>) -> Result<Value, Failure> {
    let kind = match kind {
        "confirmation" => QuestionKind::Confirmation,
        "choice" => QuestionKind::Choice,
        "form" => QuestionKind::Form,
        "plan" => QuestionKind::PlanReview,
        other => return Err(Failure::new("usage", format!("there is no question of kind `{other}`"))),
    };
    let question = interactions::Question {
        kind,
        title,
        description: None,
        // A text is the schema as it stands there: a value has lost the order of its members.
        answer_schema: schema.map(|schema| schema.as_str().map_or_else(|| schema.to_string(), str::to_owned)),
        expires_at: expires_ms.map(|ms| timers::now().saturating_add(ms)),
    };
    Ok(match interactions::ask(&question).map_err(ApiError::from) {
        Ok(QuestionAnswer::Submitted(answer)) => json!({ "submitted": parsed(&answer) }),
        Ok(QuestionAnswer::Declined(reason)) => json!({ "declined": reason }),
        Ok(QuestionAnswer::Expired) => json!("expired"),
        Err(error) => refused(&error),
    })
}

fn action_json(outcome: Result<platform::ActionOutcome, ApiError>) -> Value {
    match outcome {
        Ok(platform::ActionOutcome::Executed(result)) => json!({ "executed": parsed(&result) }),
        Ok(platform::ActionOutcome::Denied(reason)) => json!({ "denied": reason }),
        Ok(platform::ActionOutcome::Expired) => json!("expired"),
        Err(error) => refused(&error),
    }
}

fn refused(error: &ApiError) -> Value {
    json!({ "error": error.code.as_str(), "message": error.message })
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| json!({ "malformed": text }))
}

/// The values of the event and its context.
fn input_json(ctx: &Context, data: &Value) -> Value {
    let input = &ctx.contract().input;
    let agui = |name: &str| data.pointer(&format!("/agui/{name}")).cloned().unwrap_or_default();
    let tools: Vec<&str> = ctx.tools().list().iter().map(|tool| tool.tool_name.as_str()).collect();
    json!({
        "text": input.text,
        "contents": input.contents.iter().map(part).collect::<Vec<_>>(),
        "attachments": input.attachments.iter().map(artifact).collect::<Vec<_>>(),
        "actor": ctx.actor().and_then(|actor| actor.actor_id.clone()),
        "context": agui("context"),
        "state": parsed(&ctx.contract().state.conversation),
        "tools": tools,
        "agui": data.get("agui").cloned().unwrap_or_default(),
    })
}

fn part(part: &ContentPart) -> Value {
    match part {
        ContentPart::Text(text) => json!({ "text": text }),
        ContentPart::Artifact(made) => artifact(made),
        ContentPart::Other(other) => parsed(other),
    }
}

fn artifact(made: &ArtifactRef) -> Value {
    json!({ "artifact_id": made.artifact_id, "media_type": made.media_type, "size": made.size, "name": made.name })
}

fn said_before(limit: u32) -> Result<Value, ApiError> {
    let request = PageRequest {
        conversation_id: None,
        before: None,
        after: None,
        limit,
        direction: Direction::Backward,
        include_artifacts: true,
    };
    let page = history::page(&request)?;
    Ok(page.items.iter().map(|item| json!([item.role, item.item_type, item.text])).collect())
}
