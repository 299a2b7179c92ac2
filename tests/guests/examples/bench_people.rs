//! `plugin:test/bench-people/default` does what it cannot do alone: it asks a person, takes what is said to it meanwhile,
//! hands work to other runs, or sends requests to the outside. The text of the event is a JSON object:
//!
//! - `{"do": "nothing"}`
//! - `{"do": "ask"}`: one question, and a delta when it is answered.
//! - `{"do": "pull", "times": 3, "wait_ms": 1000}`: a delta, then three inputs, each with a delta that has its text.
//! - `{"do": "start", "runner": "plugin:...", "text": "...", "times": 9, "at_once": 3, "wait_ms": 1000}`: nine runs, three
//!   at once, each waited for.
//! - `{"do": "send", "method": "GET", "url": "http://...", "body_bytes": 0, "times": 9}`: nine requests, one after the other,
//!   each response read to its end.
//!
//! An event with another text is input that nobody pulled, and needs no answer.

use agent_host_sdk::contract::Input;
use agent_host_sdk::contract::agent_host::runner::{http, interactions, runs, steering};
use agent_host_sdk::results::{emit, message_delta};
use agent_host_sdk::{ApiError, Capabilities, Completion, Context, Failure, Manifest, RunOperation, Runner, serde_json};
use serde::Deserialize;

/// Inputs of one pull.
const INPUTS: u32 = 10;
/// Bytes of one read of a response.
const READ_BYTES: u32 = 64 * 1024;

/// The task in the event.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
enum Task {
    Nothing,
    Ask,
    Pull { times: u32, wait_ms: u32 },
    Start(Children),
    Send(Requests),
}

#[derive(Deserialize)]
struct Children {
    runner: String,
    text: String,
    times: u32,
    at_once: usize,
    wait_ms: u32,
}

#[derive(Deserialize)]
struct Requests {
    method: String,
    url: String,
    body_bytes: usize,
    times: u32,
}

struct BenchPeople;

impl Runner for BenchPeople {
    fn manifest() -> Manifest {
        Manifest::new("test", "bench-people")
            .label("en", "People")
            .capabilities(Capabilities { streaming: true, steering: true, ..Capabilities::default() })
            .interactions()
            .runs([RunOperation::Start, RunOperation::Get])
            .http_hosts(["127.0.0.1:*"])
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let Ok(task) = serde_json::from_str::<Task>(ctx.text()) else { return Ok(Completion::stop()) };
        match task {
            Task::Nothing => Ok(()),
            Task::Ask => ask(),
            Task::Pull { times, wait_ms } => pull(times, wait_ms),
            Task::Start(children) => start(&children),
            Task::Send(requests) => send(&requests),
        }
        .map(|()| Completion::stop())
    }
}

agent_host_sdk::export!(BenchPeople);

fn say(text: impl Into<String>) -> Result<(), ApiError> {
    emit(&[message_delta("m1", text)]).map(drop)
}

fn went_wrong(what: String) -> Failure {
    Failure::new("runner.error", what)
}

fn ask() -> Result<(), Failure> {
    let question = interactions::Question {
        kind: interactions::QuestionKind::Confirmation,
        title: "May the benchmark go on?".to_owned(),
        description: None,
        answer_schema: None,
        expires_at: None,
    };
    match interactions::ask(&question).map_err(ApiError::from)? {
        interactions::Answer::Submitted(answer) => Ok(say(answer)?),
        other => Err(went_wrong(format!("nobody confirmed it: {other:?}"))),
    }
}

fn pull(times: u32, wait_ms: u32) -> Result<(), Failure> {
    say("pulls")?;
    let mut left = times;
    while left > 0 {
        let inputs = steering::pull(INPUTS, wait_ms).map_err(ApiError::from)?;
        if inputs.is_empty() {
            return Err(went_wrong(format!("{left} inputs of {times} did not come within {wait_ms} ms")));
        }
        for taken in inputs {
            say(taken.input.text.unwrap_or_default())?;
            left = left.saturating_sub(1);
        }
    }
    Ok(())
}

fn start(children: &Children) -> Result<(), Failure> {
    let request = runs::StartRequest {
        runner_id: children.runner.clone(),
        input: Input { text: Some(children.text.clone()), contents: Vec::new(), attachments: Vec::new(), message_chain: None },
        objective: "to see what it costs".to_owned(),
        config: None,
    };
    let (mut left, mut open) = (children.times, Vec::new());
    loop {
        while left > 0 && open.len() < children.at_once {
            open.push(runs::start(&request).map_err(ApiError::from)?);
            left -= 1;
        }
        if open.is_empty() {
            return Ok(());
        }
        let ended = runs::wait_any(&open, children.wait_ms).map_err(ApiError::from)?;
        let Some(ended) = ended else { return Err(went_wrong(format!("no child ended within {} ms", children.wait_ms))) };
        if !matches!(ended.status, runs::RunStatus::Completed) {
            return Err(went_wrong(format!("a child did not complete: {ended:?}")));
        }
        open.retain(|id| *id != ended.run_id);
    }
}

fn send(requests: &Requests) -> Result<(), Failure> {
    let request = http::Request {
        method: requests.method.clone(),
        url: requests.url.clone(),
        headers: vec![("accept".to_owned(), "application/json".to_owned())],
        body: vec![b' '; requests.body_bytes],
        timeout_ms: None,
    };
    for _ in 0..requests.times {
        let response = http::send(&request).map_err(ApiError::from)?;
        if response.status() != 200 {
            return Err(went_wrong(format!("the server answers {}", response.status())));
        }
        while !response.read(READ_BYTES).map_err(ApiError::from)?.is_empty() {}
    }
    Ok(())
}
