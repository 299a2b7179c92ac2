//! `agent-host backend`: one request as a line of standard input, the facts of its turn as lines of standard output.
//!
//! The form is that of external backends of the Lime App Server: `{"type","payload"}` with every id in the payload, text as
//! `message.delta`. The process ends at the end of the turn, or where a person is asked: a new process brings the answer.

use std::{io::BufRead, process::ExitCode, time::Duration};

use agent_host_config::Config;
use agent_host_runs::facts::{Fact, FactType};
use clap::Args;
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::runs::Server;
use crate::{
    client::{Client, LineStream, segment},
    failure::Failure,
    output::Output,
};

/// Longest request line, in bytes.
const MAX_REQUEST_BYTES: u64 = 16 << 20;
/// Longest silence: the App Server ends a backend that says nothing for 30 s.
const HEARTBEAT: Duration = Duration::from_secs(8);

/// Serve one request of a Lime App Server: a line on standard input, facts as lines on standard output
///
/// `agent-host backend` is a command for `app-server --backend external --backend-command`.
#[derive(Debug, Args)]
pub(crate) struct Backend {
    #[command(flatten)]
    server: Server,
    /// The agent that answers; may be left out where the host has one
    #[arg(long, value_name = "ID")]
    agent: Option<String>,
}

#[derive(Deserialize)]
struct Line {
    kind: String,
    #[serde(default)]
    request: Map<String, Value>,
}

/// The ids that a request names.
struct Scope {
    session: String,
    thread: String,
    turn: Option<String>,
}

impl Backend {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        let line = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::Read::take(std::io::stdin().lock(), MAX_REQUEST_BYTES).read_line(&mut line).map(|_| line)
        });
        let line: Line = serde_json::from_str(&line.await??)
            .map_err(|error| Failure::new("invalid_json", format!("the request is a line with a JSON object: {error}")))?;
        let why = "a backend speaks for a host that runs";
        let client = Client::running(config, self.server.url.as_deref(), why).await?;
        let scope = Scope::of(&line.request)?;
        match line.kind.as_str() {
            "turnStart" => self.start(&client, &line.request, &scope, output).await?,
            "turnCancel" => cancel(&client, &scope, output).await?,
            "actionRespond" => respond(&client, &line.request, &scope, output).await?,
            "threadRead" => {
                let model: Value = client.get(&scope.path(""), &scope.query()).await?;
                output.json_line(&json!({ "type": "snapshot.updated", "payload": {
                    "source": "host", "sessionId": scope.session, "threadId": scope.thread, "threadReadModel": model,
                } }))?;
            }
            other => {
                let known = "turnStart, turnCancel, actionRespond or threadRead";
                return Err(Failure::new("invalid_argument", format!("`kind` is {known}, not `{}`", other.escape_debug())).into());
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn start(&self, client: &Client, request: &Map<String, Value>, scope: &Scope, output: Output) -> anyhow::Result<()> {
        let agent = match &self.agent {
            Some(agent) => agent.clone(),
            None => only_agent(client).await?,
        };
        let input = match request.get("input") {
            Some(Value::String(text)) => text.clone(),
            Some(input) => text(input, &["text", "content"]).unwrap_or_default(),
            None => String::new(),
        };
        let body = json!({ "agent": agent, "turnId": scope.turn, "input": { "text": input } });
        let lines = client.lines(Method::POST, &scope.path("/turns"), &scope.query(), Some(&body)).await?;
        relay(lines, None, output).await
    }
}

/// Cancels the turn, and says its end.
async fn cancel(client: &Client, scope: &Scope, output: Output) -> anyhow::Result<()> {
    let path = scope.path(&format!("/turns/{}/cancel", segment(scope.turn()?)));
    let ended: Value = client.ask(Method::POST, &path, &scope.query(), None).await?;
    match serde_json::from_value::<Fact>(ended) {
        Ok(fact) => say(&fact, output),
        // The turns before it are under way.
        Err(_) => Ok(output.json_line(&json!({ "type": "turn.canceled", "payload": {
            "source": "host", "sessionId": scope.session, "threadId": scope.thread, "turnId": scope.turn,
        } }))?),
    }
}

/// Answers an action, and says what follows.
async fn respond(client: &Client, request: &Map<String, Value>, scope: &Scope, output: Output) -> anyhow::Result<()> {
    let missing = |name: &str| Failure::new("invalid_argument", format!("`request.{name}` is missing"));
    let action = text_of(request, &["requestId", "actionId"]).ok_or_else(|| missing("requestId"))?;
    let given = text_of(request, &["decision"]).ok_or_else(|| missing("decision"))?;
    let decision = match given.as_str() {
        "allow_once" => "approve",
        "allow_for_session" => {
            let why = "`allow_for_session` is refused: the policy of the host decides what needs no answer; send `allow_once`";
            return Err(Failure::new("invalid_argument", why).into());
        }
        "cancel" => "deny",
        other => other,
    };
    let named = request
        .get("actionScope")
        .cloned()
        .unwrap_or_else(|| json!({ "sessionId": scope.session, "threadId": scope.thread, "turnId": scope.turn }));
    let body = json!({
        "decision": decision, "reason": request.get("reason"), "answer": request.get("answer"), "actionScope": named,
    });
    let path = scope.path(&format!("/actions/{}/respond", segment(&action)));
    let fact: Fact = client.ask(Method::POST, &path, &scope.query(), Some(&body)).await?;
    say(&fact, output)?;
    let mut query = scope.query().to_vec();
    query.push(("after", Some(fact.sequence.to_string())));
    let lines = client.lines(Method::GET, &scope.path("/events"), &query, None).await?;
    relay(lines, fact.turn_id, output).await
}

/// Says the facts of a turn until its end, or until a person is asked. `turn`: `None` for a stream of one turn.
async fn relay(mut lines: LineStream, turn: Option<String>, output: Output) -> anyhow::Result<()> {
    loop {
        let line = match tokio::time::timeout(HEARTBEAT, lines.next()).await {
            Ok(line) => line?,
            Err(_) => {
                output.json_line(
                    &json!({ "type": "run.status", "payload": { "source": "host", "phase": "acting", "reason": "alive" } }),
                )?;
                continue;
            }
        };
        let ended = || Failure::new("broken_stream", "the stream ended before the turn did");
        let line = line.ok_or_else(ended)?;
        let fact: Fact =
            serde_json::from_slice(&line).map_err(|error| Failure::new("broken_stream", format!("not a fact: {error}")))?;
        if turn.is_some() && fact.turn_id != turn {
            continue;
        }
        say(&fact, output)?;
        if fact.kind.is_turn_terminal() || fact.kind == FactType::ActionRequired {
            return Ok(());
        }
    }
}

/// Says a fact as a backend does: with every id in the payload.
fn say(fact: &Fact, output: Output) -> anyhow::Result<()> {
    let mut payload = fact.payload.clone();
    let ids = [("turnId", &fact.turn_id), ("runId", &fact.run_id), ("traceId", &fact.trace_id)];
    payload.extend(ids.into_iter().filter_map(|(name, id)| Some((name.to_owned(), id.clone()?.into()))));
    payload.insert("sessionId".to_owned(), fact.session_id.as_str().into());
    payload.insert("threadId".to_owned(), fact.thread_id.as_str().into());
    payload.insert("eventId".to_owned(), fact.event_id.as_str().into());
    let kind = if fact.kind == FactType::ModelDelta { "message.delta" } else { fact.kind.as_str() };
    Ok(output.json_line(&json!({ "type": kind, "payload": payload }))?)
}

/// The agent of a host that has one.
async fn only_agent(client: &Client) -> anyhow::Result<String> {
    #[derive(Deserialize)]
    struct Agents {
        agents: Vec<Agent>,
    }
    #[derive(Deserialize)]
    struct Agent {
        id: String,
    }
    let Agents { agents } = client.get("agents", &[]).await?;
    match agents.as_slice() {
        [only] => Ok(only.id.clone()),
        several => {
            let message = format!("the host has {} agents: name one with --agent ID", several.len());
            Err(Failure::new("invalid_argument", message).into())
        }
    }
}

impl Scope {
    fn of(request: &Map<String, Value>) -> Result<Self, Failure> {
        let member = |name: &str, keys: &[&str]| match request.get(name) {
            Some(Value::String(id)) => Some(id.clone()),
            Some(value) => text(value, keys),
            None => None,
        };
        let session = member("session", &["sessionId", "session_id", "id"]).or_else(|| text_of(request, &["sessionId"]));
        let missing =
            || Failure::new("invalid_argument", "`request.session` names the session: a text, or an object with `sessionId`");
        let session = session.filter(|session| !session.is_empty()).ok_or_else(missing)?;
        let thread =
            member("session", &["threadId", "thread_id"]).filter(|_| !request.get("session").is_some_and(Value::is_string));
        let turn = member("turn", &["turnId", "turn_id", "id"]).or_else(|| text_of(request, &["turnId"]));
        Ok(Self { thread: thread.unwrap_or_else(|| session.clone()), session, turn })
    }

    fn turn(&self) -> Result<&str, Failure> {
        self.turn.as_deref().ok_or_else(|| Failure::new("invalid_argument", "`request.turn` names the turn"))
    }

    fn path(&self, rest: &str) -> String {
        format!("api/v1/threads/{}{rest}", segment(&self.thread))
    }

    fn query(&self) -> [(&'static str, Option<String>); 1] {
        [("sessionId", Some(self.session.clone()).filter(|session| *session != self.thread))]
    }
}

fn text(value: &Value, keys: &[&str]) -> Option<String> {
    keys.iter().find_map(|key| value.get(key).and_then(Value::as_str)).map(str::to_owned)
}

fn text_of(members: &Map<String, Value>, keys: &[&str]) -> Option<String> {
    keys.iter().find_map(|key| members.get(*key).and_then(Value::as_str)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(request: Value) -> Result<(String, String, Option<String>), Failure> {
        let Value::Object(request) = request else { panic!("{request}") };
        Scope::of(&request).map(|scope| (scope.session, scope.thread, scope.turn))
    }

    #[test]
    fn a_request_names_its_session_as_a_text_or_as_an_object() {
        let both = Some(("s".to_owned(), "s".to_owned(), Some("t".to_owned())));
        assert_eq!(scope(json!({ "session": "s", "turn": "t" })).ok(), both);
        assert_eq!(scope(json!({ "session": { "sessionId": "s" }, "turn": { "turnId": "t" } })).ok(), both);
        let other = scope(json!({ "session": { "sessionId": "s", "threadId": "x" } })).ok();
        assert_eq!(other, Some(("s".to_owned(), "x".to_owned(), None)));
        assert!(scope(json!({ "turn": "t" })).is_err());
    }
}
