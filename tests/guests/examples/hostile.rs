//! `plugin:test/hostile/default` executes the first word of its input, with the other words as arguments. It answers `ok
//! ...`, or `error CODE: MESSAGE` if the host refused a call.

#![allow(clippy::panic, clippy::exit, reason = "to be a broken guest is what it is for")]

use std::fmt::Debug;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::time::{Duration, Instant, SystemTime};

use agent_host_sdk::contract::agent_host::runner::{history, log, results, state};
use agent_host_sdk::contract::{CustomResult, Direction, Message, PageRequest, RunCompletion, RunResult, StateUpdate, ToolCall};
use agent_host_sdk::results::{message_delta, state_updated};
use agent_host_sdk::serde_json::{Map, Value, json};
use agent_host_sdk::{
    ApiError, Capabilities, Completion, Context, ErrorCode, Failure, HistoryOperation, Manifest, Runner, StateScope,
};

#[allow(unsafe_code, clippy::allow_attributes_without_reason, reason = "generated")]
mod wasi_random {
    // The standard library asks for a few bytes only.
    wit_bindgen::generate!({
        inline: r#"
            package wasi:random@0.2.6;

            interface random {
                get-random-bytes: func(len: u64) -> list<u8>;
                get-random-u64: func() -> u64;
            }

            world hostile-random {
                import random;
            }
        "#,
        world: "hostile-random",
        generate_all,
    });
}

const SCOPES: [StateScope; 5] =
    [StateScope::Conversation, StateScope::Actor, StateScope::Subject, StateScope::Runner, StateScope::Binding];

struct Hostile;

impl Runner for Hostile {
    fn manifest() -> Manifest {
        Manifest::new("test", "hostile")
            .label("en", "Hostile")
            .capabilities(Capabilities { streaming: true, ..Capabilities::default() })
            .state(SCOPES)
            .history([HistoryOperation::Page])
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let mut words = Words(ctx.text());
        let command = words.next();
        match behave(&ctx, command, &mut words) {
            Ok(Answer::Say(text)) => ctx.reply(format!("ok {text}").trim_end())?,
            Ok(Answer::Complete(completion)) => return Ok(completion.into()),
            Ok(Answer::Fail(failure)) => return Err(failure),
            Err(error) => ctx.reply(&format!("error {error}"))?,
        }
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Hostile);

enum Answer {
    Say(String),
    Complete(RunCompletion),
    Fail(Failure),
}

fn say(text: impl ToString) -> Result<Answer, ApiError> {
    Ok(Answer::Say(text.to_string()))
}

/// The input, word by word; what is left is the last argument of some behaviours.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn next(&mut self) -> &'a str {
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest;
        word
    }

    fn number(&mut self) -> Result<u64, ApiError> {
        let word = self.next();
        word.parse().map_err(|_| usage(format!("`{word}` is not a number")))
    }

    fn size(&mut self) -> Result<usize, ApiError> {
        usize::try_from(self.number()?).map_err(|error| usage(error.to_string()))
    }

    fn scope(&mut self) -> Result<StateScope, ApiError> {
        Ok(match self.next() {
            "conversation" => StateScope::Conversation,
            "actor" => StateScope::Actor,
            "subject" => StateScope::Subject,
            "runner" => StateScope::Runner,
            "binding" => StateScope::Binding,
            other => return Err(usage(format!("`{other}` is not a scope"))),
        })
    }
}

/// A test that asks for what is not there: `error guest: ...`, a code that no host has.
fn usage(message: String) -> ApiError {
    ApiError { code: ErrorCode::Other("guest".to_owned()), message, retryable: false, details: None }
}

fn behave(ctx: &Context, command: &str, words: &mut Words<'_>) -> Result<Answer, ApiError> {
    match command {
        "ok" => say(words.0),

        // Ways to end.
        "trap" => trap(),
        "panic" => panic!("hostile was asked to panic"),
        "exit" => std::process::exit(i32::try_from(words.number()?).unwrap_or(i32::MAX)),
        "loop" => loop {
            std::hint::black_box(());
        },
        "loop-calls" => loop_calls(ctx),
        "ignore-cancel" => ignore_cancel(),
        "grow" => {
            let mut taken = Vec::new();
            loop {
                taken.push(std::hint::black_box(vec![1_u8; 1024 * 1024]));
            }
        }
        "recurse" => say(recurse(0, std::hint::black_box(u64::MAX))),
        "sleep" => {
            let start = Instant::now();
            std::thread::sleep(Duration::from_millis(words.number()?));
            say(format!("slept {} ms", start.elapsed().as_millis()))
        }
        "fail" => Ok(Answer::Fail(Failure::new(words.next(), words.0))),
        "bad-completion" => Ok(Answer::Complete(RunCompletion {
            finish_reason: "stop".to_owned(),
            message: None,
            usage: None,
            metadata: Some("{not json".to_owned()),
        })),
        "bad-message-tool-calls" => Ok(Answer::Complete(RunCompletion {
            finish_reason: "tool-calls".to_owned(),
            message: Some(Message {
                tool_calls: vec![ToolCall {
                    call_id: "c1".to_owned(),
                    tool_name: "weather".to_owned(),
                    parameters: "{not json".to_owned(),
                }],
                ..Message::assistant("calling")
            }),
            usage: None,
            metadata: None,
        })),

        command if command.starts_with("emit-") => emitting(command, words),
        command if command.starts_with("state-") => stateful(command, words),
        command if command.starts_with("history-") => remembering(command, words),

        "count-state" => {
            let key = words.next();
            let scope = StateScope::Conversation;
            let count = match state::get(scope, key)? {
                Some(json) => json.parse::<u64>().map_err(|error| usage(error.to_string()))?,
                None => 0,
            };
            state::set(scope, key, &(count + 1).to_string())?;
            say(count + 1)
        }
        "deep-json" => {
            let levels = words.size()?;
            let json = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
            emit_other("x.deep", &json)?;
            state::set(StateScope::Conversation, "deep", &json)?;
            say(levels)
        }
        "log-flood" => {
            let lines = words.number()?;
            for line in 0..lines {
                log::write(log::Level::Info, &format!("line {line} {}", "x".repeat(100)));
            }
            say(lines)
        }
        "stdout-flood" => {
            let bytes = words.size()?;
            let mut out = std::io::stdout().lock();
            let mut left = bytes;
            while left > 0 {
                let length = left.min(4096);
                if let Err(error) = out.write_all(&vec![b'x'; length]) {
                    return say(format!("{} of {bytes}: {error}", bytes - left));
                }
                left -= length;
            }
            say(bytes)
        }
        "probe-env" => say(machine()),
        "random" => {
            let bytes = wasi_random::wasi::random::random::get_random_bytes(words.number()?);
            say(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        }
        "pollables" => {
            let wait = |_| wasip2::clocks::monotonic_clock::subscribe_duration(1_000_000);
            let all: Vec<_> = (0..words.number()?).map(wait).collect();
            say(wasip2::io::poll::poll(&all.iter().collect::<Vec<_>>()).len())
        }
        "clock" => {
            let start = Instant::now();
            let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let wall = wall.map_err(|error| usage(error.to_string()))?.as_millis();
            say(json!({ "wall_ms": wall as u64, "elapsed_ns": start.elapsed().as_nanos() as u64 }))
        }
        "config" => say(&ctx.contract().config),
        "context" => say(digest(ctx)),
        other => Err(usage(format!("there is no behaviour `{other}`"))),
    }
}

fn trap() -> ! {
    #[cfg(target_family = "wasm")]
    core::arch::wasm32::unreachable();
    #[cfg(not(target_family = "wasm"))]
    std::process::abort()
}

/// Ends only by a bound of the stack of the engine: it keeps nothing in memory, and no optimizer
/// makes a loop of it.
fn recurse(depth: u64, limit: u64) -> u64 {
    if depth == limit { 0 } else { recurse(depth + 1, limit).wrapping_mul(31) ^ depth }
}

/// Calls the host as fast as possible until it is stopped.
fn loop_calls(ctx: &Context) -> Result<Answer, ApiError> {
    loop {
        log::write(log::Level::Debug, "again");
        let emitted = results::emit(&[message_delta("m0", "x")]).map(|_| ());
        let read = state::get(StateScope::Conversation, "x").map(|_| ());
        for outcome in [emitted, read] {
            if let Err(error) = outcome
                && matches!(error.code, ErrorCode::Cancelled | ErrorCode::DeadlineExceeded)
            {
                log::write(log::Level::Info, &format!("{} stops", ctx.run_id()));
                return Err(error.into());
            }
        }
    }
}

/// The same, but it does not care.
fn ignore_cancel() -> ! {
    loop {
        log::write(log::Level::Debug, "again");
        let _ignored = results::emit(&[message_delta("m0", "x")]);
        let _ignored = state::get(StateScope::Conversation, "x");
    }
}

fn emit_other(kind: &str, data: &str) -> Result<u64, ApiError> {
    let result = CustomResult { type_: kind.to_owned(), data: data.to_owned() };
    Ok(results::emit(&[RunResult::Other(result)])?)
}

fn emitting(command: &str, words: &mut Words<'_>) -> Result<Answer, ApiError> {
    let delta = || message_delta("m0", "x");
    match command {
        "emit-bad-json" => {
            let update = StateUpdate { scope: StateScope::Conversation, key: "bad".to_owned(), value: "{not json".to_owned() };
            let refused = results::emit(&[delta(), RunResult::StateUpdated(update)]);
            emit_other("x.bad", "{not json")?;
            say(refused?)
        }
        "emit-large" => say(results::emit(&[message_delta("m0", "x".repeat(words.size()?))])?),
        "emit-many" => say(results::emit(&vec![delta(); words.size()?])?),
        "emit-bytes-batch" => say(results::emit(&vec![message_delta("m0", "x".repeat(31 * 1024)); 10])?),
        "emit-data" => say(emit_other("x.odd", words.0)?),
        "emit-unknown" => say(emit_other(words.next(), r#"{"from":"hostile"}"#)?),
        "emit-terminal" => say(emit_other("run.completed", r#"{"finish_reason":"stop"}"#)?),
        "emit-state" => {
            let scope = words.scope()?;
            let key = words.next();
            say(results::emit(&[state_updated(scope, key, words.0)])?)
        }
        "emit-n" => {
            let mut last = 0;
            for _ in 0..words.number()? {
                last = results::emit(&[delta()])?;
            }
            say(last)
        }
        "emit-n-batched" => {
            let mut last = 0;
            let mut left = words.size()?;
            while left > 0 {
                let count = left.min(64);
                last = results::emit(&vec![delta(); count])?;
                left -= count;
            }
            say(last)
        }
        other => Err(usage(format!("there is no behaviour `{other}`"))),
    }
}

fn stateful(command: &str, words: &mut Words<'_>) -> Result<Answer, ApiError> {
    match command {
        "state-set" => {
            let scope = words.scope()?;
            let key = words.next();
            state::set(scope, key, words.0)?;
            say("")
        }
        "state-in-vain" => {
            for _ in 0..words.number()? {
                if state::get(StateScope::Actor, "x").is_ok() {
                    return say("it was granted");
                }
            }
            say("refused")
        }
        "state-get-n" => {
            for _ in 0..words.number()? {
                state::get(StateScope::Conversation, "x")?;
            }
            say("read")
        }
        "state-get" => {
            let scope = words.scope()?;
            say(state::get(scope, words.next())?.unwrap_or_else(|| "none".to_owned()))
        }
        "state-delete" => {
            let scope = words.scope()?;
            state::delete(scope, words.next())?;
            say("")
        }
        "state-huge" => {
            let value = format!("\"{}\"", "x".repeat(300 * 1024));
            state::set(StateScope::Conversation, "huge", &value)?;
            say(value.len())
        }
        "state-list" => say(state::list_keys(words.scope()?, None, 100)?.join(",")),
        other => Err(usage(format!("there is no behaviour `{other}`"))),
    }
}

fn remembering(command: &str, words: &mut Words<'_>) -> Result<Answer, ApiError> {
    let mut request = PageRequest {
        conversation_id: None,
        before: None,
        after: None,
        limit: 10,
        direction: Direction::Backward,
        include_artifacts: false,
    };
    match command {
        "history-page" => {}
        "history-foreign" => request.conversation_id = Some(words.next().to_owned()),
        "history-limit" => {
            request.limit = u32::try_from(words.number()?).unwrap_or(u32::MAX);
        }
        "history-cursor" => request.before = Some(words.next().to_owned()),
        other => return Err(usage(format!("there is no behaviour `{other}`"))),
    }
    let page = history::page(&request)?;
    say(format!("{} items, more: {}", page.items.len(), page.has_more))
}

/// The visible parts of the machine: for each the value found, or the reason why there is none.
fn machine() -> impl ToString {
    let mut found = Findings::default();
    found.see("env", Ok::<_, String>(std::env::vars_os().collect::<Vec<_>>()));
    found.see("args", Ok::<_, String>(std::env::args_os().collect::<Vec<_>>()));
    found.see("cwd", std::env::current_dir());
    for folder in ["/", ".", "/tmp", "/proc/self"] {
        let names = std::fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.path()).collect::<Vec<_>>());
        found.see(&format!("read_dir {folder}"), names);
    }
    for file in ["/etc/passwd", "../../../../etc/passwd", "/proc/self/environ"] {
        found.see(&format!("read {file}"), std::fs::read_to_string(file));
    }
    found.see("write", std::fs::write("/tmp/agent-host-was-here", "x"));
    found.see("resolve", "localhost:80".to_socket_addrs().map(Iterator::collect::<Vec<_>>));
    found.see("tcp connect", TcpStream::connect("127.0.0.1:80"));
    found.see("tcp listen", TcpListener::bind("127.0.0.1:0"));
    found.see("udp bind", UdpSocket::bind("127.0.0.1:0"));
    let mut input = String::new();
    found.see("stdin", std::io::stdin().take(1024).read_to_string(&mut input).map(|_| input));
    Value::Object(found.0)
}

#[derive(Default)]
struct Findings(Map<String, Value>);

impl Findings {
    fn see(&mut self, what: &str, found: Result<impl Debug, impl ToString>) {
        let found = match found {
            Ok(found) => format!("ok {found:?}"),
            Err(error) => format!("error {}", error.to_string()),
        };
        self.0.insert(what.to_owned(), Value::String(found));
    }
}

/// The fields that tests ask for.
fn digest(ctx: &Context) -> impl ToString {
    let raw = ctx.contract();
    let apis = ctx.available_apis();
    json!({
        "run_id": raw.run_id,
        "parent_run_id": raw.parent_run_id,
        "trigger": { "type": raw.trigger.type_, "source": raw.trigger.source },
        "event": {
            "event_id": raw.event.event_id,
            "event_type": raw.event.event_type,
            "source": raw.event.source,
            "source_event_type": raw.event.source_event_type,
            "data": raw.event.data,
        },
        "conversation_id": ctx.conversation_id(),
        "thread_id": ctx.conversation().and_then(|conversation| conversation.thread_id.as_ref()),
        "actor_id": ctx.actor().and_then(|actor| actor.actor_id.as_ref()),
        "subject_type": raw.subject.as_ref().map(|subject| &subject.subject_type),
        "text": raw.input.text,
        "contents": raw.input.contents.len(),
        "attachments": ctx.attachments().len(),
        "delivery": {
            "surface": raw.delivery.surface,
            "supports_streaming": raw.delivery.supports_streaming,
        },
        "resources": {
            "models": ctx.resources().models.len(),
            "tools": ctx.resources().tools.len(),
            "knowledge_bases": ctx.resources().knowledge_bases.len(),
            "storage": ctx.resources().storage.len(),
            "platform_actions": ctx.resources().platform_actions,
        },
        "context": {
            "latest_cursor": raw.context.latest_cursor,
            "event_seq": raw.context.event_seq,
            "transcript_seq": raw.context.transcript_seq,
            "has_history_before": raw.context.has_history_before,
        },
        "available_apis": {
            "history_page": apis.history_page,
            "history_search": apis.history_search,
            "event_get": apis.event_get,
            "event_page": apis.event_page,
            "artifact_metadata": apis.artifact_metadata,
            "artifact_read": apis.artifact_read,
            "artifact_create": apis.artifact_create,
            "state": apis.state,
            "storage": apis.storage,
            "steering": apis.steering,
            "interactions": apis.interactions,
            "runs": apis.runs,
        },
        "state": {
            "conversation": raw.state.conversation,
            "actor": raw.state.actor,
            "subject": raw.state.subject,
            "runner": raw.state.runner,
            "binding": raw.state.binding,
        },
        "runtime": {
            "host": raw.runtime.host,
            "host_version": raw.runtime.host_version,
            "deadline_at": raw.runtime.deadline_at,
            "locale": raw.runtime.locale,
            "timezone": raw.runtime.timezone,
            "attempt": raw.runtime.attempt,
        },
        "config": raw.config,
        "bootstrap_messages": raw.bootstrap.as_ref().map(|bootstrap| bootstrap.messages.len()),
        "adapter": raw.adapter,
        "metadata": raw.metadata,
    })
}
