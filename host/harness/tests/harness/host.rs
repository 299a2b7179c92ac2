//! A host that has what the test gives it: runs to claim, answers to questions. It keeps what it is told.

use std::{
    collections::VecDeque,
    sync::Mutex,
    time::{Duration, Instant},
};

use agent_host_harness::{Answer, Registered, Request, Transport, TransportError};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

/// Longest wait of a test for something that must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct State {
    claims: VecDeque<Value>,
    /// The results of each run.
    results: Vec<(String, Value)>,
    /// The ends of runs: the last part of the path, and the body.
    ends: Vec<(String, String, Value)>,
    questions: Vec<Value>,
    /// Answers of people, in turn; a question waits for one.
    answers: VecDeque<Value>,
    inputs: VecDeque<Value>,
    cancelled: Vec<String>,
    /// Runs whose deadline has passed.
    late: Vec<String>,
    registrations: Vec<Value>,
    artifacts: Vec<(String, Bytes)>,
}

#[derive(Default)]
pub(crate) struct TestHost(Mutex<State>);

fn answer(status: u16, body: &Value) -> Answer {
    Answer { status, retry_after: None, body: Bytes::from(body.to_string()) }
}

fn refusal(status: u16, code: &str) -> Answer {
    answer(status, &json!({ "code": code, "detail": code }))
}

impl TestHost {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap())
    }

    /// A run to claim.
    pub(crate) fn offer(&self, run_id: &str, text: &str, conversation_id: &str, state: Value) {
        self.offer_with(run_id, text, conversation_id, state, json!({}));
    }

    /// A run to claim, with more members of its context. `http_hosts` is one of the claim.
    pub(crate) fn offer_with(&self, run_id: &str, text: &str, conversation_id: &str, state: Value, more: Value) {
        let apis = json!({ "steering": true, "interactions": true, "state": true });
        let mut context = json!({
            "run_id": run_id,
            "trigger": { "type": "message.received", "source": "api" },
            "event": { "event_id": run_id, "event_type": "message.received", "source": "api", "data": {} },
            "conversation": { "conversation_id": conversation_id },
            "input": { "text": text },
            "delivery": { "surface": "api", "platform_capabilities": {} },
            "resources": {},
            "context": { "conversation_id": conversation_id, "inline_policy": { "mode": "none" }, "available_apis": apis },
            "state": { "conversation": state },
            "runtime": { "host": "test", "host_version": "1", "trace_id": "t", "attempt": 1 },
            "config": {},
        });
        context.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let http_hosts = context.as_object_mut().unwrap().remove("http_hosts").unwrap_or_else(|| json!([]));
        let claim = json!({
            "http_hosts": http_hosts,
            "run": { "run_id": run_id },
            "lease_token": format!("lease-{run_id}"),
            "lease_expires_at": agent_host_protocol::time::now() + 1_500,
            "context": context,
            "mcp": { "path": format!("/mcp/runs/{run_id}"), "token": "ahm_token-of-the-run" },
        });
        self.with(|state| state.claims.push_back(claim));
    }

    pub(crate) fn answer_next(&self, outcome: Value) {
        self.with(|state| state.answers.push_back(outcome));
    }

    pub(crate) fn say(&self, text: &str) {
        let event = json!({ "event_id": RUNS[0], "event_type": "message.received", "source": "api" });
        self.with(|state| state.inputs.push_back(json!({ "event": event, "input": { "text": text } })));
    }

    pub(crate) fn cancel(&self, run_id: &str) {
        self.with(|state| state.cancelled.push(run_id.to_owned()));
    }

    /// Ends a run as the host does at its deadline: nothing about it is taken from its executor any more.
    pub(crate) fn pass_deadline(&self, run_id: &str) {
        self.with(|state| state.late.push(run_id.to_owned()));
    }

    /// True if the executor has finalized or released a run.
    pub(crate) fn has_end(&self, run_id: &str) -> bool {
        self.with(|state| state.ends.iter().any(|(run, ..)| run == run_id))
    }

    pub(crate) fn results(&self, run_id: &str) -> Vec<Value> {
        self.with(|state| state.results.iter().filter(|(run, _)| run == run_id).map(|(_, result)| result.clone()).collect())
    }

    /// The data of the results of one type.
    pub(crate) fn data(&self, run_id: &str, kind: &str) -> Vec<Value> {
        self.results(run_id).into_iter().filter(|result| result["type"] == kind).map(|result| result["data"].clone()).collect()
    }

    /// The text of the completed messages.
    pub(crate) fn text(&self, run_id: &str) -> String {
        let messages = self.data(run_id, "message.completed");
        messages.iter().map(|data| data["message"]["content"].as_str().unwrap()).collect::<Vec<_>>().join("|")
    }

    pub(crate) fn questions(&self) -> Vec<Value> {
        self.with(|state| state.questions.clone())
    }

    pub(crate) fn registrations(&self) -> Vec<Value> {
        self.with(|state| state.registrations.clone())
    }

    pub(crate) fn artifacts(&self) -> Vec<(String, Bytes)> {
        self.with(|state| state.artifacts.clone())
    }

    /// Waits for something.
    pub(crate) async fn until<T>(&self, what: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            let results = self.with(|state| state.results.clone());
            assert!(began.elapsed() < PATIENCE, "{what} did not come; results: {results:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The end of a run: `finalize` or `release`, and the body.
    pub(crate) async fn end(&self, run_id: &str) -> (String, Value) {
        let found = |host: &Self| host.with(|state| state.ends.iter().find(|(run, ..)| run == run_id).cloned());
        let (_, how, body) = self.until("the end of the run", found).await;
        (how, body)
    }

    async fn ask(&self, run_id: &str, question: Value) -> Answer {
        self.with(|state| state.questions.push(question));
        loop {
            if let Some(outcome) = self.with(|state| state.answers.pop_front()) {
                return answer(200, &outcome);
            }
            if self.is_cancelled(run_id) {
                return refusal(409, "cancelled");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn is_late(&self, run_id: &str) -> bool {
        self.with(|state| state.late.iter().any(|run| run == run_id))
    }

    fn is_cancelled(&self, run_id: &str) -> bool {
        self.with(|state| state.cancelled.iter().any(|run| run == run_id))
    }

    async fn pull(&self, run_id: &str) -> Answer {
        for _ in 0..200 {
            if self.is_cancelled(run_id) {
                return refusal(409, "cancelled");
            }
            if self.is_late(run_id) {
                return refusal(409, "deadline_exceeded");
            }
            let inputs: Vec<Value> = self.with(|state| state.inputs.drain(..).collect());
            if !inputs.is_empty() {
                return answer(200, &json!({ "inputs": inputs }));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        answer(200, &json!({ "inputs": [] }))
    }

    async fn of_run(&self, run_id: &str, what: &str, body: Value) -> Answer {
        match what {
            // A call is refused for the deadline, and everything else because no claim is left.
            _ if !what.starts_with("calls/") && self.is_late(run_id) => refusal(409, "claim_lost"),
            "append" => self.with(|state| {
                let results = body["results"].as_array().unwrap().clone();
                let before = state.results.iter().filter(|(run, _)| run == run_id).count();
                assert_eq!(body["first"], before + 1, "results have no gap");
                let appended = before + results.len();
                state.results.extend(results.into_iter().map(|result| (run_id.to_owned(), result)));
                answer(200, &json!({ "appended": appended }))
            }),
            "renew" if self.is_cancelled(run_id) => answer(200, &json!({ "cancel_requested_at": 1 })),
            "renew" => answer(200, &json!({})),
            "calls/steering.pull" => self.pull(run_id).await,
            "calls/interactions.ask" => self.ask(run_id, body).await,
            "finalize" | "release" => self.with(|state| {
                state.ends.push((run_id.to_owned(), what.to_owned(), body));
                answer(200, &json!({}))
            }),
            _ => refusal(404, "not_found"),
        }
    }
}

/// Ids of runs.
pub(crate) const RUNS: [&str; 3] =
    ["01890a5d-ac96-774b-bcce-b302099a8051", "01890a5d-ac96-774b-bcce-b302099a8052", "01890a5d-ac96-774b-bcce-b302099a8053"];

impl Transport for TestHost {
    fn register(&self, registration: Value) -> BoxFuture<'_, Result<Registered, TransportError>> {
        Box::pin(async move {
            self.with(|state| state.registrations.push(registration));
            Ok(Registered { executor_id: "e1".to_owned(), credential: "ahx_credential".to_owned() })
        })
    }

    fn send<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<Answer, TransportError>> {
        Box::pin(async move {
            let path = request.path.trim_start_matches("/api/v1/");
            let body = request.body.as_ref().map(|(_, body)| body.clone()).unwrap_or_default();
            if path == "claims" {
                for _ in 0..10 {
                    if let Some(claim) = self.with(|state| state.claims.pop_front()) {
                        return Ok(answer(200, &claim));
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                return Ok(answer(204, &Value::Null));
            }
            if path.starts_with("executors/") {
                return Ok(answer(204, &Value::Null));
            }
            let (run_id, what) = path.strip_prefix("runs/").unwrap().split_once('/').unwrap();
            assert_eq!(request.token, format!("lease-{run_id}"));
            if let Some(name) = what.strip_prefix("calls/artifacts?name=") {
                let id = self.with(|state| {
                    state.artifacts.push((name.to_owned(), body));
                    state.artifacts.len()
                });
                return Ok(answer(201, &json!({ "artifact_id": format!("artifact-{id}") })));
            }
            if let Some(id) = what.strip_prefix("calls/artifacts/") {
                return Ok(Answer { status: 200, retry_after: None, body: Bytes::from(format!("content of {id}")) });
            }
            Ok(self.of_run(run_id, what, serde_json::from_slice(&body).unwrap()).await)
        })
    }

    fn base_url(&self) -> &str {
        "http://127.0.0.1:7070"
    }
}
