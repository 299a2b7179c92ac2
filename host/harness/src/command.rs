//! Programs of the preset `command`: one JSON request on standard input, results as JSON lines on standard output.
//!
//! The request has `schema`, `run_id`, `text`, `workspace`, `context_file`, `session_id` (of the turn before, else null) and perhaps
//! `mcp`. A line is a result as an executor appends it (docs/EXECUTORS.md): `type` and `data`. `run.completed` and `run.failed` end
//! the run; without them, exit code 0 is a success. `harness.session` with a `session_id` is handed to the next turn.

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::{
    acp_schema::Implementation,
    agent_run::{AgentRun, TurnEnd},
    failure::{RunFailure, TurnError, finish_reason},
    process::{AgentProcess, Line, Lines, ReadBounds},
    projection::text_of,
    results::Results,
    sandbox::COMPLAINT,
    session,
};

/// A line of the program.
#[derive(Deserialize)]
struct SentLine {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    data: Value,
}

/// The end that a program said itself.
enum SaidEnd {
    Completed(TurnEnd),
    Failed(RunFailure),
}

/// Has the program answer the input of the run.
pub(crate) async fn run(
    frame: &AgentRun,
    process: &mut AgentProcess,
    results: &mut Results,
    bounds: ReadBounds,
) -> Result<TurnEnd, TurnError> {
    let (Some(mut stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
        return Err(RunFailure::Unavailable("the process has no standard streams".to_owned()).into());
    };
    let request = request(frame);
    let writing = tokio::spawn(async move {
        // A program that does not read its request is told by nobody; its results count all the same.
        let _ = stdin.write_all(request.as_bytes()).await;
        let _ = stdin.shutdown().await;
    });
    let mut said = None;
    let mut garbage = 0_u32;
    let mut lines = Lines::new(stdout, bounds);
    let read = async {
        loop {
            match lines.next().await {
                Ok(Line::Text(line)) => match serde_json::from_slice(&line) {
                    Ok(line) => said = record(frame, results, line).await.or(said.take()),
                    Err(_) => garbage += 1,
                },
                Ok(Line::TooLong) => garbage += 1,
                Ok(Line::TooMuch) => return Err(TurnError::from(RunFailure::OutputLimit)),
                Ok(Line::End) | Err(_) => return Ok(()),
            }
        }
    };
    let outcome = tokio::select! {
        outcome = read => outcome,
        stop = frame.stop.stopped() => Err(TurnError::Stopped(stop)),
    };
    writing.abort();
    if garbage > 0 {
        let data = json!({ "lines": garbage, "detail": "lines on standard output that are no results were passed over" });
        results.add("harness.garbage", data, None).await;
    }
    outcome?;
    // A program may close its output and work on; the end of its process is the end of the run.
    let ended = tokio::select! {
        ended = process.wait() => ended.map_err(|error| RunFailure::Crashed(error.to_string()))?,
        stop = frame.stop.stopped() => return Err(TurnError::Stopped(stop)),
    };
    match said {
        Some(SaidEnd::Completed(end)) => return Ok(end),
        Some(SaidEnd::Failed(failure)) => return Err(failure.into()),
        None if ended.parts() == (Some(0), None) => return Ok(TurnEnd { finish_reason: "stop".to_owned(), usage: None }),
        None => {}
    }
    let errors = process.errors().await;
    Err(if ended.was_not_started() {
        RunFailure::Unavailable(format!("the program cannot be started: {errors}")).into()
    } else if errors.starts_with(COMPLAINT) {
        RunFailure::Unavailable(format!("the program has no sandbox: {errors}")).into()
    } else {
        RunFailure::Crashed(format!("{ended}: {errors}")).into()
    })
}

fn request(frame: &AgentRun) -> String {
    let mcp = frame.mcp.as_ref().map(|mcp| json!({ "url": mcp.url, "token": mcp.token }));
    let request = json!({
        "schema": "agent-host.harness_request.v1",
        "run_id": frame.context.run_id,
        "text": text_of(&frame.context.input),
        "workspace": frame.workspace.dir,
        "context_file": frame.projection.context_file,
        "session_id": session::earlier(&frame.context, &frame.workspace).ok(),
        "mcp": mcp,
    });
    format!("{request}\n")
}

/// Records a line. Returns the end of the run, if the line says so.
async fn record(frame: &AgentRun, results: &mut Results, line: SentLine) -> Option<SaidEnd> {
    let SentLine { kind, data } = line;
    let text = |path: &[&str]| path.iter().try_fold(&data, |value, member| value.get(member)).and_then(Value::as_str);
    match kind.as_str() {
        "message.delta" => results.text(text(&["chunk", "content"]).unwrap_or_default()).await,
        "reasoning.delta" => results.reasoning(text(&["chunk", "content"]).unwrap_or_default()).await,
        "message.completed" => {
            results.end_message_with(text(&["message", "content"]).unwrap_or_default()).await;
        }
        "harness.session" => {
            if let Some(id) = text(&["session_id"]).filter(|id| !id.is_empty()) {
                let version = text(&["version"]).unwrap_or_default().to_owned();
                let agent = Implementation { name: frame.config.id.name().to_owned(), version };
                let is_same = session::earlier(&frame.context, &frame.workspace).as_deref() == Ok(id);
                session::record(results, frame, id, &agent, if is_same { Ok(()) } else { Err(String::new()) }).await;
            }
        }
        "run.completed" => {
            let finish_reason = finish_reason(text(&["finish_reason"]).unwrap_or("stop"));
            return Some(SaidEnd::Completed(TurnEnd { finish_reason, usage: data.get("usage").cloned() }));
        }
        "run.failed" => {
            let message = text(&["message"]).unwrap_or("the program says no more");
            return Some(SaidEnd::Failed(RunFailure::Agent(message.to_owned())));
        }
        _ => results.add(kind, data, None).await,
    }
    None
}
