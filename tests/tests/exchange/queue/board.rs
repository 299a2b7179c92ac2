//! The task board of the examples, as people start it, with a real host.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use agent_host_tests::world::PATIENCE;
use serde_json::{Value, json};

use crate::queue::{
    desk::{Desk, HeldRun, OUTSIDE, results_from},
    support::Host,
};

/// `board.py`, in a process of its own. Dropping the value kills it.
struct Board {
    child: Child,
    url: String,
    http: reqwest::Client,
}

impl Board {
    async fn start(host: &Host, agents: &str, slots: u32) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../example-runners/task-board/board.py");
        let mut command = Command::new("python3");
        command.arg("-B").arg(script).env("AGENT_HOST_SERVER", host.urls().borrow().as_str());
        command.env("BOARD_LISTEN", "127.0.0.1:0").env("BOARD_AGENTS", agents).env("BOARD_SLOTS", slots.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("python3 is there");
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            line
        });
        let line = line.await.unwrap();
        let url = line.split_whitespace().last().unwrap_or_default().trim_end_matches('/').to_owned();
        assert!(url.starts_with("http://127.0.0.1:"), "{line}");
        Self { child, url, http: reqwest::Client::new() }
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let answer = self.http.post(format!("{}{path}", self.url)).json(&body).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    async fn does(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{path}: {answer:#}");
        answer
    }

    /// Opens a task, and gives its id.
    async fn open(&self, task: Value) -> String {
        self.does("/tasks", task).await["id"].as_str().unwrap().to_owned()
    }

    async fn board(&self) -> Value {
        self.http.get(format!("{}/board", self.url)).send().await.unwrap().json().await.unwrap()
    }

    /// A task, once the board shows it so.
    async fn task(&self, id: &str, is: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let shown = self.board().await;
            let task = shown["tasks"].as_array().unwrap().iter().find(|task| task["id"] == id).cloned();
            match task {
                Some(task) if is(&task) => return task,
                task => assert!(Instant::now() < until, "{task:#?}\nof\n{shown:#}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn in_state(&self, id: &str, state: &str) -> Value {
        self.task(id, |task| task["state"] == state).await
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A host with the agents of the example, and one whose runs the test executes.
fn host() -> Host {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../example-runners/task-board");
    let config = std::fs::read_to_string(example.join("agent-host.toml")).unwrap();
    let script = example.join("script.toml");
    let config = config.replace("\"script.toml\"", &format!("{:?}", script.to_str().unwrap()));
    let outside = "[[bindings]]\nid = \"outside\"\nrunner = \"plugin:test/outside/default\"\nmatch = { event_type = \"message\\\\..*\" }\n\
                   [bindings.queue]\nbackoff_ms = 0\n";
    let asks = OUTSIDE.replace("[external_runners.permissions]", "[external_runners.permissions]\ninteractions = true");
    Host::start(&["local_agent"], &format!("{config}\n{asks}\n{outside}"))
}

async fn title(host: &Host, held: &HeldRun) -> String {
    host.get(&format!("/api/v1/runs/{}", held.run)).await["metadata"]["title"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_are_fanned_out_and_shown_with_the_record_of_their_runs() {
    let host = host();
    let board = Board::start(&host, "writer,critic", 2).await;
    let page = board.http.get(&board.url).send().await.unwrap();
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    assert!(page.text().await.unwrap().contains("Task board"));
    let task = json!({ "title": "A poem", "text": "Write a poem.", "policy": "all", "priority": 3 });
    let id = board.open(task).await;
    let done = board.in_state(&id, "done").await;
    let runs = done["runs"].as_array().unwrap();
    let mut agents: Vec<_> = runs.iter().map(|run| run["binding_id"].as_str().unwrap()).collect();
    agents.sort_unstable();
    assert_eq!(agents, ["critic", "writer"], "one run for each agent: {done:#}");
    for run in runs {
        assert_eq!((&run["event_id"], &run["metadata"]["title"]), (&json!(id), &json!("A poem")));
        let path = format!("{}/runs/{}/events", board.url, run["run_id"].as_str().unwrap());
        let record: Value = board.http.get(path).send().await.unwrap().json().await.unwrap();
        assert_eq!(record["items"].as_array().unwrap().last().unwrap()["type"], "run.completed", "{record:#}");
        let task = board.task(&id, |task| task["runs"].as_array().unwrap().iter().all(|run| run["said"] != "")).await;
        assert!(task["runs"][0]["said"].as_str().unwrap().contains("plays a script"), "{task:#}");
    }
    // In turn, and what cannot be is refused with a reason.
    let turns = [
        board.open(json!({ "title": "1", "policy": "round_robin" })).await,
        board.open(json!({ "title": "2", "policy": "round_robin" })).await,
    ];
    let mut took = Vec::new();
    for id in &turns {
        took.push(board.in_state(id, "done").await["runs"][0]["binding_id"].as_str().unwrap().to_owned());
    }
    assert_ne!(took[0], took[1]);
    for (wrong, says) in [
        (json!({}), "title"),
        (json!({ "title": "x", "priority": "high" }), "priority"),
        (json!({ "title": "x", "policy": "whoever" }), "least_busy"),
        (json!({ "title": "x", "retries": 1000 }), "retries"),
    ] {
        let (status, refused) = board.post("/tasks", wrong).await;
        assert!(status == 400 && refused["message"].as_str().unwrap().contains(says), "{refused}");
    }
    let foreign =
        board.http.post(format!("{}/tasks", board.url)).header("origin", "https://evil.example").json(&json!({ "title": "x" }));
    assert_eq!(foreign.send().await.unwrap().status(), 403);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_board_schedules_approves_retries_and_cancels_without_facts_of_its_own() {
    let host = host();
    let desk = Desk::of(&host);
    let executor = desk.executor("hands").await;
    let board = Board::start(&host, "outside", 1).await;
    // One run at a time: the most urgent of those that wait is next, and one that needs approval waits for it.
    let first = board.open(json!({ "title": "first" })).await;
    board.in_state(&first, "running").await;
    let waits = board.open(json!({ "title": "later", "priority": 1, "retries": 1 })).await;
    let urgent = board.open(json!({ "title": "urgent", "priority": 9, "approval": true })).await;
    board.in_state(&urgent, "needs approval").await;
    board.in_state(&waits, "waiting").await;
    board.does(&format!("/tasks/{urgent}/approve"), json!({})).await;
    board.in_state(&urgent, "waiting").await;
    let held = executor.claim().await;
    assert_eq!(title(&host, &held).await, "first");
    // A run asks a person, who answers on the page; what it says is shown while it runs.
    let delta = json!({ "first": 1, "results": [{ "type": "message.delta", "data": { "chunk": { "role": "assistant", "content": "half" } } }] });
    held.does("append", delta).await;
    board.task(&first, |task| task["runs"][0]["said"] == "half").await;
    let asking = tokio::spawn({
        let held = held.clone();
        async move { held.post("calls/interactions.ask", json!({ "kind": "form", "title": "Which colour?" })).await }
    });
    let until = Instant::now() + PATIENCE;
    let action = loop {
        let actions = board.board().await["actions"].clone();
        if let Some(action) = actions.as_array().unwrap().first() {
            break action["action_id"].as_str().unwrap().to_owned();
        }
        assert!(Instant::now() < until, "the board shows no question");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    board.does(&format!("/actions/{action}"), json!({ "decision": "submit", "answer": { "colour": "blue" } })).await;
    let (status, answer) = asking.await.unwrap();
    assert_eq!((status, &answer["answer"]["colour"]), (200, &json!("blue")), "{answer:#}");
    held.does("append", results_from(2, &["whole"])).await;
    held.complete().await;
    board.in_state(&first, "done").await;
    let held = executor.claim().await;
    assert_eq!(title(&host, &held).await, "urgent");
    // The board is killed in the middle, and another one finds everything at the host.
    drop(board);
    held.complete().await;
    let board = Board::start(&host, "outside", 1).await;
    let task = board.in_state(&urgent, "done").await;
    assert_eq!((task["runs"].as_array().unwrap().len(), &task["priority"]), (1, &json!(9)), "{task:#}");
    // A failed run is tried again as often as its task says, and then by hand.
    for tries in 1..=2 {
        let held = executor.claim().await;
        assert_eq!(title(&host, &held).await, "later", "try {tries}");
        held.does("finalize", json!({ "status": "failed", "message": "no luck", "retryable": false })).await;
    }
    let failed = board.in_state(&waits, "failed").await;
    assert_eq!(failed["runs"].as_array().unwrap().len(), 2, "{failed:#}");
    board.does(&format!("/runs/{}/retry", failed["runs"][0]["run_id"].as_str().unwrap()), json!({})).await;
    executor.claim().await.complete().await;
    board.in_state(&waits, "done").await;
    // A closed task ends its run.
    let closed = board.open(json!({ "title": "never" })).await;
    let held = executor.claim().await;
    board.does(&format!("/tasks/{closed}/close"), json!({})).await;
    held.post("finalize", json!({ "status": "cancelled" })).await;
    let task = board.in_state(&closed, "closed").await;
    assert_eq!(task["runs"][0]["status"], "cancelled", "{task:#}");
    let (status, _) = board.post("/tasks/nothing/close", json!({})).await;
    assert_eq!(status, 404);
    host.check();
}
