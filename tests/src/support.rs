//! A host that is killed and comes back elsewhere, and those who watch its runs all the while.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{sync::watch, task::block_in_place};

use crate::{Process, process, world::PATIENCE};

/// Between two looks at what another process does.
const LOOK: Duration = Duration::from_millis(10);

/// Requests of this machine need no key.
const LOOPBACK: &str = "loopback_without_key = true";

/// Milliseconds since 1970.
pub fn now() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// A seeded generator (SplitMix64): the same moments each time.
pub struct Random(pub u64);

impl Random {
    /// The next number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// A host that lives again and again on the same directories.
pub struct Host {
    process: Option<Process>,
    dir: Option<TempDir>,
    config: String,
    variables: Vec<(&'static str, PathBuf)>,
    http: reqwest::Client,
    url: watch::Sender<String>,
}

impl Host {
    /// Starts a host with these components and this configuration.
    pub fn start(components: &[&str], config: &str) -> Self {
        let small = format!("{config}\n[limits]\nmax_live_runs = 50\n");
        Self::limited(components, &small)
    }

    /// As [`Host::start`], for a configuration that says what the limits are.
    pub fn limited(components: &[&str], config: &str) -> Self {
        Self::with_variables(components, config, Vec::new())
    }

    /// As [`Host::limited`], with more variables of the environment, in every life.
    pub fn with_variables(components: &[&str], config: &str, variables: Vec<(&'static str, PathBuf)>) -> Self {
        let start = || Process::start_with(Process::lay_out(components), LOOPBACK, config, &variables);
        let process = block_in_place(start);
        let url = watch::Sender::new(process.url.clone());
        Self { process: Some(process), dir: None, config: config.to_owned(), variables, http: reqwest::Client::new(), url }
    }

    /// A host with the guest that takes steps; `more` goes into its binding, and behind it.
    pub fn steps(more: &str) -> Self {
        Self::start(&["steps"], &format!("[[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\n{more}"))
    }

    /// Ends it as a power failure would.
    pub fn kill(&mut self) {
        let process = self.process.take().expect("it lives");
        self.dir = Some(block_in_place(|| process.kill()));
    }

    /// Asks it to end, and waits until it has.
    pub fn terminate(&mut self) {
        let process = self.process.take().expect("it lives");
        self.dir = Some(block_in_place(|| process.terminate()));
    }

    /// Starts it again.
    pub fn revive(&mut self) {
        let dir = self.dir.take().expect("it is dead");
        let process = block_in_place(|| Process::start_with(dir, LOOPBACK, &self.config, &self.variables));
        self.url.send_replace(process.url.clone());
        self.process = Some(process);
    }

    /// Tells it something else the next time.
    pub fn reconfigure(&mut self, change: impl FnOnce(&str) -> String) {
        self.config = change(&self.config);
    }

    /// Kills the process and starts another one on the same directories.
    pub fn kill_and_revive(&mut self) {
        self.kill();
        self.revive();
    }

    /// Starts it, and ends it so much later, wherever it is by then.
    pub async fn stillborn(&mut self, life: Duration) {
        let mut child = process::command(self.dir()).arg("serve").stdout(Stdio::null()).spawn().unwrap();
        tokio::time::sleep(life).await;
        child.kill().unwrap();
        block_in_place(|| child.wait()).unwrap();
    }

    /// The directories of the host.
    pub fn dir(&self) -> &Path {
        match (&self.process, &self.dir) {
            (Some(process), _) => process.dir.path(),
            (None, Some(dir)) => dir.path(),
            (None, None) => unreachable!("the directories are with the process, or here"),
        }
    }

    /// The ledger of a host that is dead.
    pub fn ledger(&self) -> agent_host_ledger::Ledger {
        assert!(self.process.is_none(), "the host has its ledger");
        agent_host_ledger::Options::new(self.dir().join("data").join("ledger")).open().unwrap()
    }

    /// Ends it in good order, and lets the ledger be checked.
    pub fn check(mut self) {
        self.terminate();
        let check = process::command(self.dir()).args(["ledger", "check", "--json"]).output().unwrap();
        assert!(check.status.success(), "{}{}", String::from_utf8_lossy(&check.stdout), String::from_utf8_lossy(&check.stderr));
    }

    fn path(&self, path: &str) -> String {
        format!("{}{path}", *self.url.borrow())
    }

    /// The present and later addresses of the host.
    pub fn urls(&self) -> watch::Receiver<String> {
        self.url.subscribe()
    }

    /// The answer of a GET request.
    pub async fn get(&self, path: &str) -> Value {
        let answer = self.http.get(self.path(path)).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer.json().await.unwrap()
    }

    /// The bytes at a path.
    pub async fn bytes(&self, path: &str) -> Vec<u8> {
        let answer = self.http.get(self.path(path)).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer.bytes().await.unwrap().to_vec()
    }

    /// Sends a message, and gives the id of its one run.
    pub async fn send(&self, text: &str) -> String {
        self.event(json!({ "event_type": "message.received", "input": { "text": text } })).await
    }

    /// Likewise in a conversation.
    pub async fn send_in(&self, conversation: &str, text: &str) -> String {
        let conversation = json!({ "conversation_id": conversation });
        self.event(json!({ "event_type": "message.received", "conversation": conversation, "input": { "text": text } })).await
    }

    async fn event(&self, event: Value) -> String {
        let answer = self.http.post(self.path("/api/v1/events")).json(&event).send().await.unwrap();
        assert_eq!(answer.status(), 202);
        let answer = answer.json::<Value>().await.unwrap();
        let [run] = answer["runs"].as_array().unwrap().as_slice() else { panic!("one binding, one run: {answer}") };
        run["run_id"].as_str().unwrap().to_owned()
    }

    /// Asks for the end of a run.
    pub async fn cancel(&self, run: &str) {
        assert_eq!(self.try_cancel(run).await, 202);
    }

    /// Asks for the end of a run that may have ended by itself.
    pub async fn try_cancel(&self, run: &str) -> u16 {
        let answer = self.http.post(self.path(&format!("/api/v1/runs/{run}/cancel"))).send().await.unwrap();
        assert!([202, 409].contains(&answer.status().as_u16()), "{}", answer.status());
        answer.status().as_u16()
    }

    /// The record of a run.
    pub async fn run(&self, run: &str) -> Value {
        self.get(&format!("/api/v1/runs/{run}")).await
    }

    /// All events of a run so far.
    pub async fn events(&self, run: &str) -> Vec<Value> {
        let mut events = Vec::new();
        let mut after = String::new();
        loop {
            let page = self.get(&format!("/api/v1/runs/{run}/events?limit=100{after}")).await;
            events.extend(page["items"].as_array().unwrap().iter().cloned());
            if page["has_more"] == false {
                return events;
            }
            after = format!("&after={}", page["next_cursor"].as_str().unwrap());
        }
    }

    /// Waits until the run has an event that is so.
    pub async fn until(&self, run: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let events = self.events(run).await;
            if let Some(found) = events.iter().find(|event| is_so(event)) {
                return found.clone();
            }
            assert!(began.elapsed() < PATIENCE, "it does not come: {}", lines_of(&events));
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until the run has taken a step.
    pub async fn until_step(&self, run: &str, step: &str) -> Value {
        self.until(run, |event| event["type"] == "x.step" && event["data"]["step"] == step).await
    }

    /// Waits until the run has this status.
    pub async fn until_status(&self, run: &str, status: &str) -> Value {
        let began = Instant::now();
        loop {
            let found = self.run(run).await;
            if found["status"] == status {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "it does not become {status}: {found:#}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until `/readyz` says so.
    pub async fn until_ready(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let found = self.get("/readyz").await;
            if is_so(&found) {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "it does not come to that: {found:#}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits for the end of a run.
    pub async fn ended(&self, run: &str) -> EndedRun {
        self.until(run, is_last).await;
        EndedRun::new(self.run(run).await, self.events(run).await)
    }

    /// Takes steps in a run of their own, to the end.
    pub async fn take(&self, steps: &str) -> EndedRun {
        let run = self.send(steps).await;
        self.ended(&run).await.completed()
    }
}

fn is_last(event: &Value) -> bool {
    event["type"] == "run.completed" || event["type"] == "run.failed"
}

/// Events, a line for each.
pub fn lines_of(events: &[Value]) -> String {
    let lines =
        events.iter().map(|event| format!("{} {} {} {}\n", event["sequence"], event["timestamp"], event["type"], event["data"]));
    lines.collect()
}

/// A run that has ended, and its events.
pub struct EndedRun {
    /// The record of the run.
    pub run: Value,
    /// All events of the run.
    pub events: Vec<Value>,
}

impl EndedRun {
    /// A run and all its events, which hold the invariants of every run, whatever happened to its host: events 1 to n, one end, and the
    /// right number of resumptions.
    pub fn new(run: Value, events: Vec<Value>) -> Self {
        let ended = Self { run, events };
        ended.is_sound();
        ended
    }

    fn is_sound(&self) {
        let sequences: Vec<_> = self.events.iter().map(|event| event["sequence"].as_u64().unwrap()).collect();
        assert_eq!(sequences, (1..=self.events.len() as u64).collect::<Vec<_>>(), "{self}");
        assert_eq!(self.run["last_sequence"], self.events.len() as u64, "{self}");
        let ends = self.events.iter().filter(|event| is_last(event)).count();
        assert!(ends == 1 && is_last(self.events.last().unwrap()), "{self}");
        let resumes: Vec<_> = self.statuses("resumed").iter().map(|data| data["resumes"].as_u64().unwrap()).collect();
        assert_eq!(resumes, (1..=resumes.len() as u64).collect::<Vec<_>>(), "{self}");
        // 0 may be left out.
        assert_eq!(self.run["resumes"].as_u64().unwrap_or(0), resumes.len() as u64, "{self}");
    }

    /// Asserts that the run completed.
    #[track_caller]
    pub fn completed(self) -> Self {
        assert_eq!(self.run["status"], "completed", "{self}");
        self
    }

    /// Asserts that the run failed with this code.
    #[track_caller]
    pub fn failed(self, code: &str) -> Self {
        assert_eq!((&self.run["status"], &self.run["failure"]["code"]), (&json!("failed"), &json!(code)), "{self}");
        self
    }

    /// Asserts that the run was cancelled.
    #[track_caller]
    pub fn cancelled(self) -> Self {
        assert_eq!(self.run["status"], "cancelled", "{self}");
        self
    }

    /// The number of resumptions.
    pub fn resumes(&self) -> usize {
        self.statuses("resumed").len()
    }

    /// The data of the events of one type.
    pub fn of(&self, kind: &str) -> Vec<&Value> {
        self.events.iter().filter(|event| event["type"] == kind).map(|event| &event["data"]).collect()
    }

    /// The facts about where it is in its life that have this reason.
    pub fn statuses(&self, reason: &str) -> Vec<&Value> {
        self.of("run.status").into_iter().filter(|data| data["reason"] == reason).collect()
    }

    /// The texts of its messages.
    pub fn message_texts(&self) -> Vec<&str> {
        self.of("message.completed").iter().map(|data| data["message"]["content"].as_str().unwrap()).collect()
    }

    /// The outcomes at the end of the guest `steps`, from its memory; they must equal the outcomes step by step.
    #[track_caller]
    pub fn outcomes(&self) -> Vec<Value> {
        let answers: Vec<Value> = serde_json::from_str(self.message_texts().last().unwrap()).unwrap();
        let outcomes: Vec<_> = self.of("x.step").iter().map(|data| data["outcome"].clone()).collect();
        assert_eq!(answers, outcomes, "what it remembers is not what it said: {self}");
        answers
    }

    /// The time of a step.
    #[track_caller]
    pub fn at(&self, step: &str) -> u64 {
        let found = self.events.iter().find(|event| event["type"] == "x.step" && event["data"]["step"] == step);
        found.unwrap_or_else(|| panic!("no step `{step}`: {self}"))["timestamp"].as_u64().unwrap()
    }
}

impl std::fmt::Display for EndedRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}\n{}", self.run, lines_of(&self.events))
    }
}

/// Each run began after the end of the one before.
pub fn in_order<'a>(ended: impl IntoIterator<Item = &'a EndedRun>) {
    let mut before: Option<&EndedRun> = None;
    for ended in ended {
        if let Some(before) = before {
            let [end, began] = [&before.run["finished_at"], &ended.run["started_at"]].map(Value::as_u64);
            assert!(end.is_some() && end <= began, "{before}\n{ended}");
        }
        before = Some(ended);
    }
}

/// Follows a run to its end as a browser does: where the stream breaks off it connects again, wherever the host is by
/// then, and says which event was the last.
pub async fn follow(urls: watch::Receiver<String>, run: String) -> Vec<Value> {
    let http = reqwest::Client::new();
    follow_at(&run, |path| http.get(format!("{}{path}", *urls.borrow()))).await
}

/// As [`follow`], at the host that each `get` asks.
pub async fn follow_at(run: &str, get: impl Fn(&str) -> RequestBuilder) -> Vec<Value> {
    let path = format!("/api/v1/runs/{run}/events");
    let (mut seen, mut last) = (Vec::new(), None::<String>);
    loop {
        let mut request = get(&path).header("accept", "text/event-stream");
        if let Some(id) = &last {
            request = request.header("last-event-id", id);
        }
        // A host that is about to end takes no new reader, and a warm one may reach no active host.
        if let Ok(answer) = request.send().await
            && !matches!(answer.status().as_u16(), 502..=504)
        {
            let status = answer.status();
            assert!(status == 200, "{run} after {last:?}: {status}: {}", answer.text().await.unwrap_or_default());
            let mut stream = answer.bytes_stream().eventsource();
            while let Some(Ok(event)) = stream.next().await {
                if event.id.is_empty() || event.data.is_empty() {
                    continue;
                }
                let data: Value = serde_json::from_str(&event.data).unwrap();
                assert_ne!(event.event, "problem", "the stream ends with an error, and does not break off: {data}");
                last = Some(event.id);
                let ends = is_last(&data);
                seen.push(data);
                if ends {
                    return seen;
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
