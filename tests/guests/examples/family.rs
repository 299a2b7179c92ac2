//! `plugin:test/family/default` takes the steps that its text names, and says after each what came of it: an event
//! `x.step` with `step` and `outcome`, and in the end a message with all outcomes. Children are given steps of their own
//! in brackets, so a child can be a parent itself.
//!
//! The steps are separated by `;`, their words by spaces. `N` is a child by its number or its run id, `RUNNER` the name of a
//! runner of this component, or a whole id.
//!
//! - Children: `start RUNNER [STEPS] {"objective", "config", "attach", "pad"}`, `fan COUNT RUNNER [STEPS]` (`#` in the steps is the
//!   number), `wait MS N`, `any MS` (of those not waited for before), `all MS`, `get N`, `list LIMIT [PARENT]`, `list-until COUNT LIMIT`,
//!   `events N`, `cancel N`, `reach N` (tries all on its first child, and on itself), `circle` (starts itself, and so on).
//! - Input: `pull LIMIT MS`, `read-pulled` (what was attached to it).
//! - Others: `say TEXT`, `sleep MS`, `spin`, `trap`, `fail`, `id`, `parent`, `attempt`, `set KEY TEXT`, `await KEY`, `count NOTE`
//!   (the tool `t__count`), `history`, `create TEXT`, `read ID` (`given`: what came with the event), `read-child N`.
//! - Calls that may be refused: `try conversation-state`, `try storage`, `try model ID`, `try tool NAME`, `try http URL`,
//!   `try secret URL NAME`, `try platform ACTION`, `try ask`.
//!
//! `plugin:test/family/narrow` is the same with fewer permissions and without steering, `plugin:test/family/configured` has
//! a form.

use std::time::Duration;

use agent_host_sdk::contract::agent_host::runner::{
    artifacts, history, http, interactions, models, platform, results, runs, state, steering, storage, tools, types,
};
use agent_host_sdk::contract::{CustomResult, Direction, Input, PageRequest, RunResult, ToolCall};
use agent_host_sdk::serde_json::{self, Value, json};
use agent_host_sdk::{
    ApiError, ArtifactOperation, ArtifactRef, Capabilities, Completion, ContentPart, Context, Failure, FormItem,
    HistoryOperation, Manifest, ModelOperation, RunOperation, Runner, StateScope, StorageArea, ToolOperation, timers,
};

struct Family;
struct Narrow;
struct Configured;

impl Runner for Family {
    fn manifest() -> Manifest {
        all("Family")
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        take_all(ctx)
    }
}

impl Runner for Narrow {
    const NAME: &'static str = "narrow";

    fn manifest() -> Manifest {
        Manifest::new("test", "family").label("en", "Narrow").state([StateScope::Runner])
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        take_all(ctx)
    }
}

impl Runner for Configured {
    const NAME: &'static str = "configured";

    fn manifest() -> Manifest {
        all("Configured").form(FormItem::integer("n").required())
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        take_all(ctx)
    }
}

agent_host_sdk::export!(Family, Narrow, Configured);

fn all(label: &str) -> Manifest {
    Manifest::new("test", "family")
        .label("en", label)
        .capabilities(Capabilities { streaming: true, steering: true, ..Capabilities::default() })
        .runs([RunOperation::Start, RunOperation::Get, RunOperation::List, RunOperation::Events, RunOperation::Cancel])
        .models([ModelOperation::Invoke])
        .tools([ToolOperation::Detail, ToolOperation::Call])
        .history([HistoryOperation::Page])
        .artifacts([ArtifactOperation::Metadata, ArtifactOperation::Read, ArtifactOperation::Create])
        .state([StateScope::Conversation, StateScope::Runner])
        .storage([StorageArea::Plugin, StorageArea::Workspace])
        .platform_actions(["message.edit", "message.delete"])
        .http_hosts(["a.example:443", "b.example:443"])
        .interactions()
}

fn take_all(ctx: Context) -> Result<Completion, Failure> {
    let mut family = Parent::default();
    let mut outcomes = Vec::new();
    for step in parts(ctx.text()) {
        let outcome = family.take(&ctx, step)?;
        let data = json!({ "step": short(step), "outcome": outcome }).to_string();
        results::emit(&[RunResult::Other(CustomResult { type_: "x.step".to_owned(), data })]).map_err(ApiError::from)?;
        outcomes.push(outcome);
    }
    ctx.reply(&Value::from(outcomes).to_string())?;
    Ok(Completion::stop())
}

/// The steps of a text: what is in brackets belongs to a child.
fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut found) = (0_usize, 0, Vec::new());
    for (at, letter) in text.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ';' if depth == 0 => {
                found.extend(text.get(from..at));
                from = at + 1;
            }
            _ => {}
        }
    }
    found.extend(text.get(from..));
    found.into_iter().map(str::trim).filter(|step| !step.is_empty()).collect()
}

/// The text in the first brackets, and the text after them.
fn split_brackets(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    for (at, letter) in text.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some((text.get(1..at)?, text.get(at + 1..)?.trim()));
                }
            }
            _ => {}
        }
    }
    None
}

/// A long text as its beginning and its length.
fn short(text: &str) -> String {
    match text.char_indices().nth(120) {
        Some((at, _)) => format!("{}… {} bytes", text.get(..at.min(16)).unwrap_or_default(), text.len()),
        None => text.to_owned(),
    }
}

fn refusal(error: types::ApiError) -> Value {
    let error = ApiError::from(error);
    let details: Option<Value> = error.details.as_deref().and_then(|text| serde_json::from_str(text).ok());
    let code = details.as_ref().and_then(|details| details.get("code")).cloned().unwrap_or_default();
    json!({ "error": error.code.as_str(), "code": code, "retryable": error.retryable })
}

fn or_refusal<T: Into<Value>>(result: Result<T, types::ApiError>) -> Value {
    result.map_or_else(refusal, Into::into)
}

fn outcome_json<T>(result: Result<T, types::ApiError>) -> Value {
    or_refusal(result.map(|_| "ok"))
}

fn status(run: &runs::RunSummary) -> &str {
    match &run.status {
        runs::RunStatus::Created => "created",
        runs::RunStatus::Queued => "queued",
        runs::RunStatus::Claimed => "claimed",
        runs::RunStatus::Running => "running",
        runs::RunStatus::Waiting => "waiting",
        runs::RunStatus::Completed => "completed",
        runs::RunStatus::Failed => "failed",
        runs::RunStatus::Cancelled => "cancelled",
        runs::RunStatus::Timeout => "timeout",
        runs::RunStatus::Other(other) => other,
    }
}

fn ended(run: &runs::RunSummary) -> bool {
    run.finished_at.is_some()
}

fn summary_json(run: &runs::RunSummary) -> Value {
    json!({ "run_id": run.run_id, "parent": run.parent_run_id, "runner": run.runner_id, "status": status(run) })
}

#[derive(Default)]
struct Parent {
    children: Vec<String>,
    waited: Vec<String>,
    made: Option<ArtifactRef>,
    pulled: Vec<ArtifactRef>,
}

impl Parent {
    fn take(&mut self, ctx: &Context, step: &str) -> Result<Value, Failure> {
        let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
        let two = || rest.split_once(' ').ok_or_else(|| usage(step));
        Ok(match word {
            "say" => {
                ctx.reply(rest)?;
                rest.into()
            }
            "sleep" => {
                std::thread::sleep(Duration::from_millis(rest.parse()?));
                Value::Null
            }
            "spin" => {
                let mut turns = 0_u64;
                loop {
                    turns = std::hint::black_box(turns.wrapping_add(1));
                }
            }
            "trap" => std::process::abort(),
            "fail" => return Err(Failure::new("family.failed", "as it was asked to")),
            "id" => ctx.run_id().into(),
            "parent" => ctx.contract().parent_run_id.clone().into(),
            "attempt" => ctx.contract().runtime.attempt.into(),
            "set" => {
                let (key, text) = two()?;
                outcome_json(state::set(StateScope::Runner, key, &json!(text).to_string()))
            }
            "await" => {
                while state::get(StateScope::Runner, rest).map_err(ApiError::from)?.is_none() {
                    timers::sleep(50)?;
                }
                Value::Null
            }
            "count" => tool("t__count", rest),
            "history" => transcript(),
            "create" => {
                let made = create(rest);
                self.made = made.as_ref().ok().cloned();
                made.map_or_else(refusal, |made| made.artifact_id.into())
            }
            "read" if rest == "given" => ctx.attachments().first().map_or(Value::Null, |given| read(&given.artifact_id)),
            "read" => read(rest),
            "read-pulled" => self.pulled.iter().map(|given| read(&given.artifact_id)).collect(),
            "try" => attempt(rest).ok_or_else(|| usage(step))?,
            "pull" => {
                let (limit, wait) = two()?;
                let pulled = steering::pull(limit.parse()?, wait.parse()?);
                if let Ok(inputs) = &pulled {
                    self.pulled.extend(inputs.iter().flat_map(|given| given.input.attachments.iter().cloned()));
                }
                let text = |given: &steering::SteeringInput| Value::from(short(given.input.text.as_deref().unwrap_or_default()));
                or_refusal(pulled.map(|inputs| inputs.iter().map(text).collect::<Vec<_>>()))
            }
            _ => self.look_after(ctx, step, word, rest)?,
        })
    }

    fn look_after(&mut self, ctx: &Context, step: &str, word: &str, rest: &str) -> Result<Value, Failure> {
        let (first, more) = rest.split_once(' ').unwrap_or((rest, ""));
        Ok(match word {
            "start" => {
                let (steps, options) = split_brackets(more.trim()).ok_or_else(|| usage(step))?;
                self.start(ctx, first, steps, options)
            }
            "fan" => {
                let (runner, steps) = more.split_once(' ').ok_or_else(|| usage(step))?;
                let (steps, options) = split_brackets(steps.trim()).ok_or_else(|| usage(step))?;
                let count: usize = first.parse()?;
                (0..count).map(|n| self.start(ctx, runner, &steps.replace('#', &n.to_string()), options)).collect()
            }
            "circle" => {
                let id = self.start(ctx, "default", "circle", "");
                if id.is_string() { json!([id, self.all(600_000)]) } else { id }
            }
            "wait" => {
                let ids: Vec<String> = more.split_whitespace().map(|n| self.id(n)).collect();
                match runs::wait_any(&ids, first.parse()?) {
                    Ok(found) => found.map_or(Value::Null, |run| summary_json(&run)),
                    Err(error) => refusal(error),
                }
            }
            "any" => {
                let left: Vec<String> = self.children.iter().filter(|id| !self.waited.contains(id)).cloned().collect();
                match runs::wait_any(&left, first.parse()?) {
                    Ok(found) => found.map_or(Value::Null, |run| {
                        self.waited.push(run.run_id.clone());
                        let number = self.children.iter().position(|id| *id == run.run_id);
                        json!([number, status(&run)])
                    }),
                    Err(error) => refusal(error),
                }
            }
            "all" => self.all(first.parse()?),
            "get" => match runs::get(&self.id(first)) {
                Ok(run) => summary_json(&run),
                Err(error) => refusal(error),
            },
            "list" => {
                let parent = (!more.is_empty()).then_some(more);
                or_refusal(runs::list(parent, first.parse()?).map(|runs| runs.iter().map(summary_json).collect::<Vec<_>>()))
            }
            // So many runs of its conversation, as soon as there are so many.
            "list-until" => {
                let count: usize = first.parse()?;
                loop {
                    let runs = runs::list(None, more.parse()?).map_err(ApiError::from)?;
                    if runs.len() >= count {
                        break runs.iter().map(summary_json).collect();
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            "events" => self.events(&self.id(first)),
            "cancel" => outcome_json(runs::cancel(&self.id(first), more)),
            "reach" => self.reach(ctx, &self.id(first)),
            "read-child" => {
                let page = runs::events_page(&self.id(first), None, 100).map_err(ApiError::from)?;
                let made = page.items.iter().find(|event| event.type_ == "artifact.created").ok_or_else(|| usage(step))?;
                let data: Value = serde_json::from_str(&made.data)?;
                read(data.pointer("/artifact/artifact_id").and_then(Value::as_str).unwrap_or_default())
            }
            _ => return Err(usage(step)),
        })
    }

    /// A child by its number, or what was said instead of one.
    fn id(&self, name: &str) -> String {
        let child = name.parse::<usize>().ok().and_then(|n| self.children.get(n));
        child.cloned().unwrap_or_else(|| name.to_owned())
    }

    fn start(&mut self, ctx: &Context, runner: &str, steps: &str, options: &str) -> Value {
        let options: Value = serde_json::from_str(options).unwrap_or_default();
        let text = |name: &str| options.get(name).and_then(Value::as_str);
        let attach = match text("attach") {
            None => None,
            Some("made") => self.made.clone(),
            Some("given") => ctx.attachments().first().cloned(),
            Some(id) => Some(ArtifactRef {
                artifact_id: id.to_owned(),
                media_type: "text/plain".to_owned(),
                name: None,
                size: None,
                sha256: None,
            }),
        };
        let config = options.get("config").map(|config| match config {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        let pad = options.get("pad").and_then(Value::as_u64).and_then(|pad| usize::try_from(pad).ok()).unwrap_or_default();
        let request = runs::StartRequest {
            runner_id: if runner.contains(':') { runner.to_owned() } else { format!("plugin:test/family/{runner}") },
            input: Input {
                text: Some(steps.to_owned() + &"x".repeat(pad)),
                contents: Vec::new(),
                attachments: attach.into_iter().collect(),
                message_chain: None,
            },
            objective: text("objective").unwrap_or("to help").to_owned(),
            config,
        };
        match runs::start(&request) {
            Ok(id) => {
                self.children.push(id.clone());
                id.into()
            }
            Err(error) => refusal(error),
        }
    }

    /// Tries everything on the run that a child has started first, and on itself.
    fn reach(&self, ctx: &Context, child: &str) -> Value {
        let seen = self.events(child);
        let grandchild = seen.pointer("/outcomes/0").and_then(Value::as_str).unwrap_or_default();
        let mut outcomes = vec![Value::from(grandchild)];
        for id in [grandchild, ctx.run_id()] {
            outcomes.push(runs::get(id).map_or_else(refusal, |run| summary_json(&run)));
            outcomes.push(outcome_json(runs::wait_any(&[id.to_owned()], 0)));
            outcomes.push(outcome_json(runs::wait_any(&[child.to_owned(), id.to_owned()], 100)));
            outcomes.push(self.events(id));
            outcomes.push(outcome_json(runs::cancel(id, "")));
        }
        outcomes.push(outcome_json(runs::list(Some(grandchild), 10)));
        outcomes.push(outcome_json(runs::list(Some(child), 10)));
        outcomes.into()
    }

    /// Waits for all children, for so long in all.
    fn all(&self, ms: u64) -> Value {
        let until = timers::now().saturating_add(ms);
        let mut left = self.children.clone();
        while !left.is_empty() {
            let wait = u32::try_from(until.saturating_sub(timers::now())).unwrap_or(u32::MAX);
            match runs::wait_any(&left, wait) {
                Ok(Some(run)) if ended(&run) => left.retain(|id| *id != run.run_id),
                Ok(Some(run)) => return json!({ "error": "it has not ended", "run": summary_json(&run) }),
                Ok(None) => break,
                Err(error) => return refusal(error),
            }
        }
        let state = |id: &String| runs::get(id).map_or_else(refusal, |run| status(&run).into());
        self.children.iter().map(state).collect()
    }

    /// The types of all events of a child, page by page, and what its steps came to.
    fn events(&self, id: &str) -> Value {
        let (mut kinds, mut outcomes, mut after) = (Vec::new(), Vec::new(), None::<String>);
        loop {
            let page = match runs::events_page(id, after.as_deref(), 3) {
                Ok(page) => page,
                Err(error) => return refusal(error),
            };
            for event in &page.items {
                kinds.push(Value::from(event.type_.clone()));
                if event.type_ == "x.step" {
                    let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
                    outcomes.push(data.get("outcome").cloned().unwrap_or_default());
                }
            }
            if !page.has_more {
                return json!({ "kinds": kinds, "outcomes": outcomes });
            }
            after = page.next;
        }
    }
}

fn create(text: &str) -> Result<ArtifactRef, types::ApiError> {
    let writer = artifacts::create("text/plain", Some("family.txt"))?;
    writer.write(text.as_bytes())?;
    artifacts::Writer::finish(writer)
}

fn read(id: &str) -> Value {
    or_refusal(artifacts::read_range(id, 0, 1024).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

fn tool(name: &str, note: &str) -> Value {
    let parameters = json!({ "note": note }).to_string();
    outcome_json(tools::call(&ToolCall { call_id: format!("call-{note}"), tool_name: name.to_owned(), parameters }))
}

/// The texts of the newest items.
fn transcript() -> Value {
    let page = history::page(&PageRequest {
        conversation_id: None,
        before: None,
        after: None,
        limit: 50,
        direction: Direction::Backward,
        include_artifacts: false,
    });
    let text = |item: &agent_host_sdk::contract::TranscriptItem| Value::from(item.text.clone());
    or_refusal(page.map(|page| page.items.iter().map(text).collect::<Vec<_>>()))
}

/// Something that may be refused.
fn attempt(what: &str) -> Option<Value> {
    let mut words = what.split_whitespace();
    let (what, name) = (words.next()?, words.next().unwrap_or_default());
    Some(match what {
        "conversation-state" => outcome_json(state::get(StateScope::Conversation, "k")),
        "history" => transcript(),
        "storage" => outcome_json(storage::get(StorageArea::Workspace, "k")),
        "model" => {
            let message = agent_host_sdk::Message {
                role: agent_host_sdk::Role::User,
                content: vec![ContentPart::Text("hello".to_owned())],
                name: None,
                tool_calls: Vec::new(),
                tool_call_id: None,
            };
            outcome_json(models::invoke(name, &models::Request { messages: vec![message], tools: Vec::new(), extra_args: None }))
        }
        "tool" => tool(name, "tried"),
        "http" | "secret" => {
            let secret = words.next().map(|name| ("x-key".to_owned(), format!("{{{{secret:{name}}}}}")));
            outcome_json(http::send(&http::Request {
                method: "GET".to_owned(),
                url: name.to_owned(),
                headers: secret.into_iter().collect(),
                body: Vec::new(),
                timeout_ms: Some(2_000),
            }))
        }
        "platform" => outcome_json(platform::request_action(name, "{}", "{}")),
        "ask" => outcome_json(interactions::ask(&interactions::Question {
            kind: interactions::QuestionKind::Confirmation,
            title: "May I?".to_owned(),
            description: None,
            answer_schema: None,
            expires_at: None,
        })),
        _ => return None,
    })
}

fn usage(step: &str) -> Failure {
    Failure::new("usage", format!("there is no step `{}`, or not now", short(step)))
}
