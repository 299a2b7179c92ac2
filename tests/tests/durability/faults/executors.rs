//! Executors that keep a list in the state of each conversation, and one of all jobs in the state of their runner, which several change
//! at the same time. Some sleep longer than their lease, and write then.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_tests::world::PATIENCE;
use reqwest::Method;
use serde_json::{Value, json};

use crate::faults::clients::Client;

/// The lease of a claim.
const LEASE_MS: u64 = 2_000;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// A binding whose runs executors take.
pub fn binding() -> String {
    format!(
        "[[external_runners]]\nid = \"plugin:test/lists/default\"\n[external_runners.permissions]\nstate = [\"conversation\", \"runner\"]\n\
         [[bindings]]\nid = \"lists\"\nrunner = \"plugin:test/lists/default\"\nmatch = {{ event_type = \"job\\\\..*\" }}\n\
         max_attempts = 100\n[bindings.queue]\nname = \"lists\"\nbackoff_ms = 0\nlease_ms = {LEASE_MS}\n"
    )
}

/// Claims by all executors: each run with the number of its claim.
#[derive(Default)]
pub struct Claims {
    given: Mutex<BTreeSet<(String, u64)>>,
    /// Claims that were lost, as their executors were told.
    lost: Mutex<usize>,
    /// The list of all jobs, as executors were shown it.
    shown: Mutex<Vec<Vec<Value>>>,
}

impl Claims {
    pub fn given(&self) -> usize {
        self.given.lock().unwrap().len()
    }

    pub fn lost(&self) -> usize {
        *self.lost.lock().unwrap()
    }

    /// The list of all jobs at the end. What executors were shown before is its beginning: no job was lost or moved.
    pub fn all_jobs(&self) -> Vec<String> {
        let mut shown = std::mem::take(&mut *self.shown.lock().unwrap());
        let all = shown.iter().max_by_key(|list| list.len()).unwrap().clone();
        shown.retain(|list| !all.starts_with(list));
        assert!(shown.is_empty(), "{shown:?} is no beginning of {all:?}");
        all.iter().map(|job| job.as_str().unwrap().to_owned()).collect()
    }
}

/// A claimed run.
struct Held<'a> {
    /// With the token of the lease.
    client: Client,
    claims: &'a Claims,
    run: String,
}

impl Held<'_> {
    /// Does something, in tries at any host. `None` where the claim is lost, and `Null` where another run has changed the value.
    async fn does(&self, what: &str, body: &Value) -> Option<Value> {
        let path = format!("/api/v1/runs/{}/{what}", self.run);
        let began = Instant::now();
        loop {
            let request = self.client.request(&Method::POST, &path).json(body);
            match self.client.answer(request).await {
                Some((200, answer)) => return Some(answer),
                Some((409, problem)) if problem["code"] == "claim_lost" => return None,
                Some((409, problem)) if problem["code"] == "conflict" && what == "calls/state.set" => return Some(Value::Null),
                Some((status, problem)) => panic!("{what} {body}: {status}: {problem}"),
                None => assert!(began.elapsed() < PATIENCE, "no host answers"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A list in the state.
    async fn list(&self, scope: &str) -> Option<Vec<Value>> {
        let list = self.does("calls/state.get", &json!({ "scope": scope, "key": "list" })).await?["value"].clone();
        Some(list.as_array().cloned().unwrap_or_default())
    }

    /// Adds the job to a list, and gives whether it is there then. False where another run has changed the list meanwhile.
    async fn add(&self, scope: &str, list: &mut Vec<Value>, job: &str) -> Option<bool> {
        if list.contains(&json!(job)) {
            return Some(true);
        }
        list.push(json!(job));
        let set = self.does("calls/state.set", &json!({ "scope": scope, "key": "list", "value": list })).await?;
        Some(!set.is_null())
    }

    /// Adds the job to the list of all jobs, which others change too.
    async fn add_to_all(&self, job: &str) -> Option<()> {
        loop {
            let mut all = self.list("runner").await?;
            self.claims.shown.lock().unwrap().push(all.clone());
            if self.add("runner", &mut all, job).await? {
                self.claims.shown.lock().unwrap().push(all);
                return Some(());
            }
        }
    }

    /// Adds the job to the lists, unless an earlier claim has done so.
    async fn work(&self, claim: u64, job: &str) -> Option<()> {
        let mut list = self.list("conversation").await?;
        let nap = if self.client.below(8) == 0 { LEASE_MS * 3 / 2 } else { self.client.below(150) };
        tokio::time::sleep(Duration::from_millis(nap)).await;
        assert!(self.add("conversation", &mut list, job).await?, "another run writes to the conversation of {job}");
        self.add_to_all(job).await?;
        let message = json!({ "type": "message.completed", "data": { "message_id": format!("m{claim}"),
            "message": { "role": "assistant", "content": Value::from(list).to_string() } } });
        self.does("append", &json!({ "first": 1, "results": [message] })).await?;
        self.does("finalize", &json!({ "status": "completed" })).await.map(drop)
    }
}

/// Claims and executes runs until it is told to stop.
pub async fn execute(client: Client, name: usize, claims: Arc<Claims>, stop: Arc<AtomicBool>) {
    let registration = json!({ "name": format!("executor-{name}"), "slots": 100 });
    let register = |client: &Client| client.request(&Method::POST, "/api/v1/executors").json(&registration);
    let (status, executor) = client.surely(register).await;
    assert_eq!(status, 201, "{executor}");
    let client = client.with(executor["credential"].as_str().map(str::to_owned));
    while !stop.load(Ordering::Relaxed) {
        let wish = json!({ "queues": ["lists"], "wait_ms": 500, "start": true });
        let request = client.request(&Method::POST, "/api/v1/claims").json(&wish);
        let answer = match client.answer(request).await {
            Some((200, answer)) => answer,
            Some((204, _)) => continue,
            Some((status, problem)) => panic!("{status}: {problem}"),
            // Also a claim whose answer is lost: its lease runs out.
            None => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        let token = text(&answer["lease_token"]);
        let held = Held { client: client.clone().with(Some(token)), claims: &claims, run: text(&answer["run"]["run_id"]) };
        let claim = answer["run"]["queue"]["claims"].as_u64().unwrap();
        assert!(claims.given.lock().unwrap().insert((held.run.clone(), claim)), "a claim was given twice: {answer}");
        if held.work(claim, &text(&answer["context"]["input"]["text"])).await.is_none() {
            *claims.lost.lock().unwrap() += 1;
        }
    }
}
