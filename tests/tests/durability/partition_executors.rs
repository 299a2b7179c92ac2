//! Executors of no workspace in a cluster with several partitions: they take runs of all of them, at any host.

use std::time::{Duration, Instant};

use agent_host_ledger::Partition;
use agent_host_tests::world::PATIENCE;
use reqwest::{Method, RequestBuilder, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    cluster::{World, command_line_of},
    forwarding::{ForwardingHost, client, follow},
    partitions::{PARTITIONS, Workspace, answer, are_shared, is_ready},
};

/// A runner of executors, with a queue of its own.
pub const JOBS: &str = "[[external_runners]]\nid = \"plugin:test/jobs/default\"\n[[bindings]]\nid = \"jobs\"\nrunner = \"plugin:test/jobs/default\"\n\
    match = { event_type = \"job\\\\..*\" }\n[bindings.queue]\nname = \"jobs\"\nbackoff_ms = 0\n";

/// The executor, which sends its requests to any host.
pub struct Executor<'a> {
    hosts: &'a [ForwardingHost],
    id: String,
    credential: String,
}

/// A run that it holds.
pub struct Held {
    pub run: String,
    pub workspace: String,
    token: String,
}

impl<'a> Executor<'a> {
    /// Registers at a host, without a key: it is of no workspace.
    pub async fn register(hosts: &'a [ForwardingHost], at: usize, slots: u32) -> Self {
        let wanted = json!({ "name": "everywhere", "queues": ["jobs"], "slots": slots });
        let (status, made) = answer(client().post(hosts[at].url("/api/v1/executors")).json(&wanted)).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        Self::of(hosts, text("executor_id"), text("credential"))
    }

    /// The executor with this credential.
    pub fn of(hosts: &'a [ForwardingHost], id: String, credential: String) -> Self {
        Self { hosts, id, credential }
    }

    /// Id and credential.
    pub fn parts(self) -> (String, String) {
        (self.id, self.credential)
    }

    fn request(&self, method: Method, at: usize, path: &str) -> RequestBuilder {
        client().request(method, self.hosts[at].url(path)).bearer_auth(&self.credential)
    }

    fn path(&self, rest: &str) -> String {
        format!("/api/v1/executors/{}{rest}", self.id)
    }

    async fn claim(&self, at: usize, wait_ms: u64) -> (StatusCode, Value) {
        let wanted = json!({ "wait_ms": wait_ms, "start": true });
        answer(self.request(Method::POST, at, "/api/v1/claims").json(&wanted)).await
    }

    pub async fn claimed(&self, at: usize, wait_ms: u64) -> Held {
        let (status, claimed) = self.claim(at, wait_ms).await;
        assert_eq!(status, StatusCode::OK, "{claimed}");
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{claimed}")).to_owned();
        Held {
            run: text(&claimed["run"]["run_id"]),
            workspace: text(&claimed["run"]["workspace_id"]),
            token: text(&claimed["lease_token"]),
        }
    }

    /// As [`Self::finish`], while the partition may be moving.
    async fn finish_in_time(&self, at: usize, held: &Held) {
        let began = Instant::now();
        loop {
            let request =
                client().post(self.hosts[at].url(&format!("/api/v1/runs/{}/finalize", held.run))).bearer_auth(&held.token);
            let (status, run) = answer(request.json(&json!({ "status": "completed" }))).await;
            if status == StatusCode::OK {
                return;
            }
            assert!(status.is_server_error() && began.elapsed() < PATIENCE, "{status}: {run}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub async fn finish(&self, at: usize, held: &Held) {
        let request = client().post(self.hosts[at].url(&format!("/api/v1/runs/{}/finalize", held.run))).bearer_auth(&held.token);
        let (status, run) = answer(request.json(&json!({ "status": "completed" }))).await;
        assert_eq!((status, &run["status"]), (StatusCode::OK, &json!("completed")), "{run}");
    }

    /// The runs that the hosts say it holds.
    async fn held(&self, at: usize) -> Vec<String> {
        let (status, shown) = answer(self.request(Method::GET, at, &self.path(""))).await;
        assert_eq!(status, StatusCode::OK, "{shown}");
        let (_, list) = answer(client().get(self.hosts[at].url("/api/v1/executors"))).await;
        let listed: Vec<_> = list["items"].as_array().unwrap().iter().filter(|it| it["executor_id"] == *self.id).collect();
        assert!(listed.len() == 1 && listed[0]["held"] == shown["held"], "{list}\n{shown}");
        shown["held"].as_array().unwrap().iter().map(|run| run.as_str().unwrap().to_owned()).collect()
    }
}

/// A job of a workspace; gives its run.
pub async fn job(workspace: &Workspace, host: &ForwardingHost) -> String {
    sent(workspace, host, "job.added").await
}

async fn sent(workspace: &Workspace, host: &ForwardingHost, event_type: &str) -> String {
    let event = json!({ "event_type": event_type, "input": { "text": "a job" } });
    let (status, body) = answer(workspace.request(Method::POST, host, "/api/v1/events").json(&event)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{body}");
    body["runs"][0]["run_id"].as_str().unwrap().to_owned()
}

/// Hosts with a queue for executors, and a workspace in each partition.
async fn hosts(world: &World) -> (Vec<ForwardingHost>, Vec<Workspace>) {
    let hosts: Vec<ForwardingHost> = (0..3).map(|_| world.member()).collect();
    for host in &hosts {
        is_ready(host).await;
    }
    let mut workspaces = Vec::new();
    for partition in 0..PARTITIONS {
        let mut names = (0..).map(|n| format!("workspace-{n}"));
        let name = names.find(|name| Partition::new(partition, PARTITIONS).has(Some(name))).unwrap();
        workspaces.push(Workspace::make(&hosts[0], name).await);
    }
    let commands = tempfile::tempdir().unwrap();
    command_line_of(&world.url, commands.path());
    are_shared(commands.path(), hosts.len()).await;
    (hosts, workspaces)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_executor_of_no_workspace_takes_runs_of_all_partitions() {
    let mut world = World::with_partitions(PARTITIONS).await;
    let said = json!({ "type": "message.completed", "data": { "message": { "role": "assistant", "content": "done" } } });
    let (agent, script) = ("plugin:test/agent/default", format!("echo '{said}'"));
    world.config.push_str(&format!(
        "[[harnesses]]\nid = \"{agent}\"\npreset = \"command\"\ncommand = [\"sh\", \"-c\", {script:?}]\n\
         [[bindings]]\nid = \"coder\"\nrunner = \"{agent}\"\nmatch = {{ event_type = \"work\\\\..*\" }}\nmax_attempts = 3\n\
         [bindings.queue]\nname = \"agents\"\nbackoff_ms = 0\n",
    ));
    world.config.push_str(JOBS);
    let (hosts, workspaces) = hosts(&world).await;
    let executor = Executor::register(&hosts, 0, 2).await;
    assert_eq!(executor.claim(1, 0).await.0, StatusCode::NO_CONTENT);

    // The oldest run of all first, at whichever host.
    let mut runs = Vec::new();
    for (number, workspace) in workspaces.iter().enumerate().rev() {
        runs.push(job(workspace, &hosts[number % 3]).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for (number, run) in runs.iter().enumerate() {
        let held = executor.claimed(number % 3, 0).await;
        assert_eq!(held.run, *run, "{number}");
        executor.finish((number + 1) % 3, &held).await;
    }

    // It has as many slots as it says, in all partitions together.
    for workspace in &workspaces[..3] {
        job(workspace, &hosts[0]).await;
    }
    let mut all = Vec::new();
    for at in 0..2 {
        all.push(executor.claimed(at, 0).await);
    }
    let mut expect: Vec<_> = all.iter().map(|held| held.run.clone()).collect();
    expect.sort_unstable();
    for at in 0..3 {
        assert_eq!(executor.held(at).await, expect);
    }
    let (status, problem) = executor.claim(2, 0).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("conflict")), "{problem}");
    let beat = executor.request(Method::POST, 1, &executor.path("/heartbeat")).json(&json!({ "slots": 10 }));
    let (status, beat) = answer(beat).await;
    assert_eq!((status, &beat["slots"], beat["held"].as_array().unwrap().len()), (StatusCode::OK, &json!(10), 2), "{beat}");
    all.push(executor.claimed(2, 0).await);

    // A run that comes while it waits is its own at once. News come from each partition.
    let news = follow(executor.request(Method::GET, 2, &executor.path("/events")));
    let waiting = executor.claimed(1, 20_000);
    let sending = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        (job(&workspaces[3], &hosts[0]).await, Instant::now())
    };
    let (held, (run, sent)) = tokio::join!(waiting, sending);
    assert!(held.run == run && sent.elapsed() < Duration::from_secs(3), "{:?}", sent.elapsed());
    assert_eq!(held.workspace, workspaces[3].id);
    all.push(held);
    for held in &all {
        let workspace = workspaces.iter().find(|workspace| workspace.id == held.workspace).unwrap();
        let cancel = format!("/api/v1/runs/{}/cancel", held.run);
        let (status, run) = answer(workspace.request(Method::POST, &hosts[0], &cancel).json(&json!({}))).await;
        assert!(status.is_success(), "{status}: {run}");
    }
    for held in &all {
        let request = client().post(hosts[0].url(&format!("/api/v1/runs/{}/finalize", held.run))).bearer_auth(&held.token);
        let (status, run) = answer(request.json(&json!({ "status": "cancelled" }))).await;
        assert_eq!(status, StatusCode::OK, "{run}");
    }
    assert!(executor.held(0).await.is_empty());

    // It counts once, though each partition knows it.
    let request = || client().get(hosts[0].url("/api/v1/executors/statistics"));
    let (status, counts) = answer(request()).await;
    let (_, of_one) = answer(request().header("x-workspace", "")).await;
    assert_eq!((status, &counts["executors"]), (StatusCode::OK, &of_one["executors"]), "{counts} {of_one}");
    assert_eq!((&counts["slots"], &counts["heartbeat_age_ms"]["count"]), (&of_one["slots"], &counts["executors"]), "{counts}");

    // It is gone everywhere, and its runs go to others.
    let of_last = job(&workspaces[3], &hosts[2]).await;
    let held = executor.claimed(0, 1_000).await;
    assert_eq!(held.run, of_last);
    let (status, body) = answer(executor.request(Method::DELETE, 2, &executor.path(""))).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{body}");
    for at in 0..3 {
        assert_eq!(executor.claim(at, 0).await.0, StatusCode::UNAUTHORIZED);
    }
    let (events, _) = tokio::time::timeout(PATIENCE, news).await.expect("the news end with the executor").unwrap();
    for held in &all {
        let is_cancel = |news: &Value| news["type"] == "run.cancel_requested" && news["run_id"] == *held.run;
        let found = events.iter().filter(|event| is_cancel(&serde_json::from_str(&event.data).unwrap())).count();
        assert_eq!(found, 1, "{}: {events:?}", held.run);
    }

    // The coding agents of the configuration are such executors.
    agents_work(&workspaces, &hosts).await;

    // An executor that comes after a host has died, and while its partitions move, takes them there.
    let mut hosts = hosts;
    hosts.remove(1).host.kill();
    let began = Instant::now();
    let wanted = json!({ "name": "everywhere", "queues": ["jobs"], "slots": 5 });
    let made = loop {
        let (status, made) = answer(client().post(hosts[0].url("/api/v1/executors")).json(&wanted)).await;
        if status == StatusCode::CREATED {
            break made;
        }
        assert!(began.elapsed() < PATIENCE, "{status}: {made}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    let other = Executor { hosts: &hosts, id: text("executor_id"), credential: text("credential") };
    let held = other.claimed(1, 20_000).await;
    assert_eq!(held.run, of_last, "the run of the executor that left");
    other.finish(0, &held).await;
    agents_work(&workspaces, &hosts).await;
}

/// Two runs at one time, and one each second, whichever partitions they are of.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn limits_of_a_binding_hold_over_all_partitions() {
    let mut world = World::with_partitions(PARTITIONS).await;
    for (name, limit) in [("limited", "concurrency = 2"), ("rated", "per_minute = 60")] {
        world.config.push_str(&format!(
            "[[external_runners]]\nid = \"plugin:test/{name}/default\"\n[[bindings]]\nid = \"{name}\"\nrunner = \"plugin:test/{name}/default\"\n\
             match = {{ event_type = \"{name}\\\\..*\" }}\n[bindings.queue]\nname = \"jobs\"\nbackoff_ms = 0\n{limit}\n"
        ));
    }
    let (hosts, workspaces) = hosts(&world).await;
    let runs = 3 * workspaces.len();
    for n in 0..runs {
        sent(&workspaces[n % workspaces.len()], &hosts[n % 3], "limited.job").await;
    }
    let executor = Executor::register(&hosts, 0, 20).await;
    let mut held = vec![executor.claimed(0, 10_000).await, executor.claimed(1, 10_000).await];
    assert_eq!(executor.claim(2, 1_000).await.0, StatusCode::NO_CONTENT, "a third run at one time");
    let mut served = Vec::new();
    while served.len() < runs / 2 {
        let ended = held.remove(0);
        executor.finish(served.len() % 3, &ended).await;
        served.push(ended.workspace);
        held.push(executor.claimed(served.len() % 3, 10_000).await);
    }
    assert_eq!(executor.claim(0, 300).await.0, StatusCode::NO_CONTENT, "a third run at one time");
    // Workspaces take turns.
    assert!(workspaces.iter().all(|workspace| served.contains(&workspace.id)), "{served:?}");

    // The permits of a host that dies are those of the next owners.
    hosts[2].host.signal(Signal::KILL);
    let executor = Executor { hosts: &hosts[..2], ..executor };
    let began = Instant::now();
    let (status, claimed) = executor.claim(0, 0).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{claimed}");
    assert!(began.elapsed() < Duration::from_secs(3), "a partition without an owner is not waited for: {:?}", began.elapsed());
    for number in served.len()..runs {
        let ended = held.remove(0);
        executor.finish_in_time(number % 2, &ended).await;
        if number + 2 < runs {
            held.push(executor.claimed(number % 2, 20_000).await);
        }
    }
    assert_eq!(executor.claim(0, 0).await.0, StatusCode::NO_CONTENT);

    for workspace in &workspaces {
        sent(workspace, &hosts[0], "rated.job").await;
    }
    let mut began = Vec::new();
    for number in 0..workspaces.len() {
        let held = executor.claimed(number % 2, 20_000).await;
        began.push(Instant::now());
        executor.finish(number % 2, &held).await;
    }
    let (first, last) = (began[0], began[began.len() - 1]);
    // The first may have come late to the executor, and none comes early.
    assert!(last - first > Duration::from_millis(2_000), "{:?}", last - first);
}

/// An agent that the hosts run themselves answers each workspace.
async fn agents_work(workspaces: &[Workspace], hosts: &[ForwardingHost]) {
    for (number, workspace) in workspaces.iter().enumerate() {
        let host = &hosts[number % hosts.len()];
        let run = sent(workspace, host, "work.wanted").await;
        workspace.is_completed(host, &run).await;
    }
}
