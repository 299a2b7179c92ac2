//! Two hosts on one ledger in PostgreSQL: when the active one is killed, the warm one goes on with its runs.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use agent_host_tests::{OutsideServer, Process, process::command, world::PATIENCE};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    model::{IN_DOUBT, ModelServer},
    postgres::{PASSWORD, Postgres, free_port},
    proxy::{Network, Proxy},
    undisturbed::{Counted, agent},
};

/// A lease that a test can wait for.
pub const LEASE_MS: u64 = 3_000;
/// Exit code of a host that lost the ledger.
pub const LEASE_LOST: i32 = 75;
/// The file where the tools count.
const COUNTED: &str = "counted";

/// A process of `agent-host serve` in a cluster.
pub struct Member {
    pub child: Child,
    pub url: String,
    pub dir: TempDir,
    /// The lines with the address, one for each time that the host becomes active.
    active: Receiver<String>,
}

impl Member {
    pub fn start(dir: TempDir, database: &str, port: u16, config: &str) -> Self {
        Self::start_with(dir, database, port, &format!("advertise = \"127.0.0.1:{port}\""), &[], config)
    }

    /// As [`Self::start`], with more in `[cluster]` and in the environment.
    pub fn start_with(dir: TempDir, database: &str, port: u16, cluster: &str, variables: &[(&str, &str)], config: &str) -> Self {
        let cluster = format!(
            "ledger = \"{database}\"\n[cluster]\n{cluster}\nlease_ms = {LEASE_MS}\npassword = {{ env = \"LEDGER_PASSWORD\" }}\n"
        );
        Self::start_as(dir, port, variables, &(cluster + config))
    }

    /// A host without a cluster where `config` has none. It begins with further keys of `[server]`.
    pub fn start_as(dir: TempDir, port: u16, variables: &[(&str, &str)], config: &str) -> Self {
        let file = format!("[server]\nlisten = \"127.0.0.1:{port}\"\nloopback_without_key = true\n{config}");
        fs::write(dir.path().join("agent-host.toml"), file).unwrap();
        let log = fs::OpenOptions::new().create(true).append(true).open(dir.path().join("log")).unwrap();
        let mut child = command(dir.path())
            .args(["serve", "--json"])
            .env("AGENT_HOST_LOG", "debug")
            .env("LEDGER_PASSWORD", PASSWORD)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (found, active) = channel();
        std::thread::spawn(move || {
            // To the end, so that the host can write.
            while let Some(Ok(line)) = lines.next() {
                if line.contains("\"listening\"") {
                    drop(found.send(line));
                }
            }
        });
        Self { child, url: format!("http://127.0.0.1:{port}"), dir, active }
    }

    pub fn is_active(&self) {
        let line = self.active.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no active host: {}", self.log()));
        assert!(line.contains(&self.url), "{line}");
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn kill(mut self) -> TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }

    pub fn terminate(mut self) -> TempDir {
        self.signal(rustix::process::Signal::TERM);
        let ended = self.child.wait().unwrap();
        assert!(ended.success(), "{ended}: {}", self.log());
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        let answer = reqwest::get(format!("{}{path}", self.url)).await.unwrap();
        (answer.status(), answer.json().await.unwrap_or_default())
    }

    /// Waits until the host answers as a warm one.
    async fn is_warm(&self) {
        let began = Instant::now();
        while reqwest::get(format!("{}/healthz", self.url)).await.is_err() {
            assert!(began.elapsed() < PATIENCE, "{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let answer = reqwest::get(format!("{}/api/v1/runs", self.url)).await.unwrap();
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.headers()["retry-after"], "1");
        assert_eq!(answer.json::<Value>().await.unwrap()["code"], "partition_moving");
        let (status, readiness) = self.get("/readyz").await;
        assert_eq!((status, &readiness["ready"]), (StatusCode::SERVICE_UNAVAILABLE, &json!(false)));
        assert!(readiness["ledger"].as_str().unwrap().contains("warm"), "{readiness}");
    }

    pub async fn send(&self, text: &str) -> String {
        let event = json!({ "event_type": "message.received", "input": { "text": text } });
        let answer = reqwest::Client::new().post(format!("{}/api/v1/events", self.url)).json(&event).send().await.unwrap();
        let status = answer.status();
        let answer: Value = answer.json().await.unwrap_or_default();
        assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
        answer["runs"][0]["run_id"].as_str().unwrap().to_owned()
    }

    pub async fn events(&self, run: &str) -> Vec<Value> {
        let (mut events, mut after) = (Vec::new(), String::new());
        loop {
            let (status, page) = self.get(&format!("/api/v1/runs/{run}/events?limit=100{after}")).await;
            assert_eq!(status, StatusCode::OK, "{page}");
            events.extend(page["items"].as_array().unwrap_or_else(|| panic!("{page}")).iter().cloned());
            if page["has_more"] != true {
                return events;
            }
            after = format!("&after={}", page["next_cursor"].as_str().unwrap());
        }
    }

    /// Waits until the events of a run are as wanted.
    pub async fn until(&self, run: &str, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let began = Instant::now();
        loop {
            let events = self.events(run).await;
            if is_so(&events) {
                return events;
            }
            assert!(began.elapsed() < PATIENCE, "{events:#?}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn is_over(events: &[Value]) -> bool {
    events.last().is_some_and(|event| event["type"] == "run.completed" || event["type"] == "run.failed")
}

pub fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

pub fn is_numbered(events: &[Value]) {
    let numbers: Vec<_> = events.iter().map(|event| event["sequence"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=events.len() as u64).collect::<Vec<_>>());
}

/// A ledger that a host had for itself goes on in a cluster, with its conversations; the host without the cluster keeps its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_embedded_ledger_goes_on_in_a_cluster() {
    let World { url, config, .. } = &World::start().await;
    let embedded = Member::start_as(lay_out(), free_port(), &[], config);
    embedded.is_active();
    let run = embedded.send("task:before").await;
    let before = embedded.until(&run, is_over).await;
    let data = embedded.dir.path().join("data");
    let cluster = tempfile::tempdir().unwrap();
    command_line_of(url, cluster.path());
    let import = || {
        let output = command(cluster.path())
            .args(["cluster", "import", "--json"])
            .arg(&data)
            .env("LEDGER_PASSWORD", PASSWORD)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let (done, _, error) = import();
    assert!(!done && error.contains("stop it first"), "{error}");
    let _alone = embedded.terminate();
    let (done, said, error) = import();
    assert!(done, "{error}");
    let said: Value = serde_json::from_str(&said).unwrap();
    assert!(said["rows"].as_u64().unwrap() > 5, "{said}");
    let shown = partition(cluster.path());
    assert_eq!((&shown["first_batch"], &shown["last_batch"]), (&json!(1), &json!(1)), "{shown}");
    assert_eq!(shown["snapshots"][0]["rows"], said["rows"], "{shown}");
    let (done, _, error) = import();
    assert!(!done && error.contains("has batches already"), "{error}");
    let member = Member::start(lay_out(), url, free_port(), config);
    member.is_active();
    assert_eq!(member.events(&run).await, before);
    let next = member.send("task:after").await;
    assert_eq!(types(&member.until(&next, is_over).await).last(), Some(&"run.completed"));
}

/// A database with a cluster, a model server and a folder for all hosts of a test.
pub struct World {
    pub postgres: Postgres,
    pub url: String,
    pub model: ModelServer,
    dir: TempDir,
    pub config: String,
}

impl World {
    pub async fn start() -> Self {
        Self::with_partitions(1).await
    }

    pub async fn with_partitions(partitions: u32) -> Self {
        let postgres = Postgres::start();
        let (url, model, dir) = (database(&postgres, partitions), ModelServer::start().await, tempfile::tempdir().unwrap());
        let config = agent(&model, &dir.path().join(COUNTED));
        Self { postgres, url, model, dir, config }
    }

    /// The effects of the tools so far.
    pub fn counted(&self) -> Counted {
        Counted::of(&self.dir.path().join(COUNTED))
    }
}

/// A database with a cluster that the command line has made.
fn database(postgres: &Postgres, partitions: u32) -> String {
    postgres.create("agents");
    let url = postgres.url("agents").replace(&format!(":{PASSWORD}"), "");
    let dir = tempfile::tempdir().unwrap();
    command_line_of(&url, dir.path());
    let count = partitions.to_string();
    let cluster = |what: &str| {
        let partitions = if what == "init" { &["--partitions", &count][..] } else { &[] };
        command(dir.path()).args(["cluster", what, "--json"]).args(partitions).env("LEDGER_PASSWORD", PASSWORD).output().unwrap()
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let none = cluster("status");
    assert!(!none.status.success() && text(&none.stderr).contains("cluster init"), "{none:?}");
    let made = cluster("init");
    assert!(made.status.success(), "{made:?}");
    let again = cluster("init");
    assert!(!again.status.success() && text(&again.stderr).contains("has a cluster already"), "{again:?}");
    for output in [none, made, again] {
        assert!(!format!("{}{}", text(&output.stdout), text(&output.stderr)).contains(PASSWORD));
    }
    url
}

/// A configuration for commands, which no host is started with.
pub fn command_line_of(url: &str, dir: &Path) {
    let file = format!(
        "[server]\nledger = \"{url}\"\n[cluster]\nadvertise = \"127.0.0.1:1\"\npassword = {{ env = \"LEDGER_PASSWORD\" }}\n"
    );
    fs::write(dir.join("agent-host.toml"), file).unwrap();
}

fn status(dir: &Path) -> Value {
    cluster_command(dir, &["status"]).unwrap_or_else(|error| panic!("{error}"))
}

/// The status of the one partition.
fn partition(dir: &Path) -> Value {
    status(dir)["partitions"][0].clone()
}

/// The answer of `agent-host cluster`, or what it says on standard error.
pub fn cluster_command(dir: &Path, words: &[&str]) -> Result<Value, String> {
    let output = command(dir).arg("cluster").args(words).arg("--json").env("LEDGER_PASSWORD", PASSWORD).output().unwrap();
    if output.status.success() {
        return Ok(serde_json::from_slice(&output.stdout).unwrap());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

pub fn lay_out() -> TempDir {
    Process::lay_out(&["local_agent"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_warm_host_goes_on_with_the_run_of_a_killed_one() {
    let World { url, model, config, .. } = &World::start().await;
    let ports = [free_port(), free_port()];

    let first = Member::start(lay_out(), url, ports[0], config);
    first.is_active();
    let calm = first.send("task:calm").await;
    let calm = first.until(&calm, is_over).await;
    let second = Member::start(lay_out(), url, ports[1], config);
    second.is_warm().await;

    // Killed in the middle of an answer of the model.
    let moved = first.send("task:moved").await;
    let before = first.until(&moved, |events| types(events).iter().filter(|kind| **kind == "message.delta").count() > 2).await;
    let dir = first.kill();
    let killed = Instant::now();
    second.is_active();
    println!("the warm host was active after {:?}", killed.elapsed());
    let after = second.until(&moved, is_over).await;
    is_numbered(&after);
    assert_eq!(after[..before.len()], before[..], "a client was shown something else");
    assert_eq!(types(&after).last(), Some(&"run.completed"), "{after:#?}");
    let end = |events: &[Value], task: &str| {
        let said = events.iter().rev().find(|event| event["type"] == "message.completed").unwrap().to_string();
        // A tool call that was under way is in doubt.
        let answers = said.matches(&format!("{task}/")).count() + said.matches(IN_DOUBT).count();
        (answers, said.contains("That is all there is to say"))
    };
    assert_eq!(end(&after, "moved"), end(&calm, "calm"));
    assert!(model.request_count("moved", 0) <= 2, "{}", model.request_count("moved", 0));
    let shown = status(second.dir.path());
    assert_eq!((&shown["hosts"][0]["active"], &shown["partitions"][0]["lost"]), (&json!(true), &json!(null)), "{shown}");

    // The killed host comes back as the warm one, and takes over when the other ends in good order.
    let first = Member::start(dir, url, ports[0], config);
    first.is_warm().await;
    // Known with the first heartbeat.
    let active = json!(format!("127.0.0.1:{}", ports[1]));
    let began = Instant::now();
    while first.get("/readyz").await.1["active_host"] != active {
        assert!(began.elapsed() < PATIENCE, "{}", first.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let began = Instant::now();
    let dir = second.terminate();
    first.is_active();
    assert!(began.elapsed() < Duration::from_millis(LEASE_MS) + Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(first.events(&moved).await, after);
    let logs = first.log() + &fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(logs.contains("has taken over the ledger") && !logs.contains(PASSWORD));
    let dir = first.terminate();
    let check = command(dir.path()).args(["ledger", "check", "--json"]).output().unwrap();
    assert!(check.status.success(), "{check:?}");
    // The files are a copy, which no host opens without its cluster.
    fs::write(dir.path().join("agent-host.toml"), "[server]\nlisten = \"127.0.0.1:0\"\n").unwrap();
    let alone = command(dir.path()).args(["serve"]).output().unwrap();
    assert!(!alone.status.success() && String::from_utf8_lossy(&alone.stderr).contains("copy of a cluster's"), "{alone:?}");
}

/// A warm host has its configuration before it takes over: what cannot serve ends it at once, it reads the configuration again when it is
/// told to, and runs get the files that are there at the takeover.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_warm_host_has_its_configuration_before_it_takes_over() {
    const FILE: &str = "rules.md";
    let World { url, config, .. } = &World::start().await;
    let first = Member::start(lay_out(), url, free_port(), config);
    first.is_active();
    let config = format!("{config}\n[[static_refs]]\nname = \"rules\"\npath = \"{FILE}\"\n");
    let mut broken = Member::start(lay_out(), url, free_port(), &config);
    let ended = broken.child.wait().unwrap();
    assert!(!ended.success() && broken.log().contains(&format!("{FILE} cannot be read")), "{ended}: {}", broken.log());

    let (dir, port) = (lay_out(), free_port());
    fs::write(dir.path().join(FILE), "Be kind.").unwrap();
    let second = Member::start(dir, url, port, &config);
    second.is_warm().await;
    second.signal(rustix::process::Signal::HUP);
    let began = Instant::now();
    while !second.log().contains("the configuration was reloaded") {
        assert!(began.elapsed() < PATIENCE, "{}", second.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (_, readiness) = second.get("/readyz").await;
    let would = &readiness["would_serve_with"];
    assert_eq!((&would["plugins_ready"], &would["plugins_refused"]), (&json!(1), &json!(0)), "{readiness}");
    assert!(would["configuration_problems"].is_u64(), "{readiness}");
    fs::write(second.dir.path().join(FILE), "Be brief.").unwrap();
    let _ended = first.terminate();
    second.is_active();
    let run = second.send("task:rules").await;
    second.until(&run, is_over).await;
    let (_, context) = second.get(&format!("/api/v1/runs/{run}/context")).await;
    let rules =
        context["runtime"]["static_refs"]["rules"]["content"]["artifact_id"].as_str().unwrap_or_else(|| panic!("{context}"));
    let content = reqwest::get(format!("{}/api/v1/artifacts/{rules}", second.url)).await.unwrap();
    assert_eq!(content.text().await.unwrap(), "Be brief.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_paused_host_ends_itself_and_calls_no_model() {
    let World { url, model, config, .. } = &World::start().await;
    let mut first = Member::start(lay_out(), url, free_port(), config);
    first.is_active();
    let second = Member::start(lay_out(), url, free_port(), config);
    second.is_warm().await;
    let run = first.send("task:paused").await;
    first.until(&run, |events| types(events).contains(&"message.delta")).await;
    first.signal(rustix::process::Signal::STOP);
    second.is_active();
    let events = second.until(&run, is_over).await;
    let asked: Vec<_> = (0..3).map(|step| model.request_count("paused", step)).collect();
    first.signal(rustix::process::Signal::CONT);
    let ended = first.child.wait().unwrap();
    assert_eq!(ended.code(), Some(LEASE_LOST), "{}", first.log());
    assert_eq!((0..3).map(|step| model.request_count("paused", step)).collect::<Vec<_>>(), asked);
    assert_eq!(second.events(&run).await, events);
    is_numbered(&events);
}

/// A run without a journal, whose requests wait for no write, on a host that the database does not hear any more: the host makes none after its
/// lease, and ends itself before it hears that another one has taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_that_is_cut_off_makes_no_request_after_its_lease() {
    const WAKE: Duration = Duration::from_millis(2 * LEASE_MS);
    let (world, outside) = (&World::start().await, OutsideServer::start().await);
    let config = format!(
        "[egress]\nallow_addresses = [\"127.0.0.1\"]\n[[bindings]]\nid = \"outside\"\nrunner = \"plugin:test/outside/default\"\n\
         resources = {{ http_hosts = [\"{}\"] }}\ndurability = \"fail\"\n",
        outside.authority
    );
    let place = || Process::lay_out(&["outside"]);
    let database = Proxy::start(world.postgres.port);
    let mut first = Member::start(place(), &database.url(&world.url), free_port(), &config);
    first.is_active();
    let second = Member::start(place(), &world.url, free_port(), &config);
    second.is_warm().await;
    let run = first
        .send(&format!("get {}; sleep {}; get {}", outside.url("ok/before"), WAKE.as_millis(), outside.url("ok/after")))
        .await;
    first.until(&run, |events| types(events).contains(&"x.step")).await;
    database.is(Network::Cut);
    let cut = Instant::now();
    second.is_active();
    let events = second.until(&run, is_over).await;
    assert_eq!(types(&events).last(), Some(&"run.failed"), "{events:#?}");
    // Some time after the run would have made the request.
    tokio::time::sleep((WAKE + Duration::from_secs(1)).saturating_sub(cut.elapsed())).await;
    assert_eq!((outside.visits("ok/before").len(), outside.visits("ok/after").len()), (1, 0), "{}", first.log());
    let ended = first.child.try_wait().unwrap();
    assert_eq!(ended.and_then(|ended| ended.code()), Some(LEASE_LOST), "{}", first.log());
}

/// The database loses what was acknowledged, as a standby does that is promoted without it: no host goes on, until the operator has put
/// it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_the_database_lost_is_put_back_by_the_operator() {
    let World { postgres, url, config, .. } = &World::start().await;
    let ports = [free_port(), free_port()];
    let mut first = Member::start(lay_out(), url, ports[0], config);
    first.is_active();
    let before = first.send("task:before").await;
    first.until(&before, is_over).await;
    let end = partition(first.dir.path())["last_batch"].as_u64().unwrap();
    let run = first.send("task:lost").await;
    let shown = first.until(&run, is_over).await;
    postgres.sql("agents", &format!("delete from agent_host.log where seq > {end}"));
    let event = json!({ "event_type": "message.received", "input": { "text": "task:next" } });
    let refused = reqwest::Client::new().post(format!("{}/api/v1/events", first.url)).json(&event).send().await;
    // The host may be gone before the answer is read.
    assert!(refused.is_err() || refused.is_ok_and(|answer| answer.status() == StatusCode::SERVICE_UNAVAILABLE));
    let ended = first.child.wait().unwrap();
    assert_eq!(ended.code(), Some(LEASE_LOST), "{}", first.log());
    assert!(first.log().contains("engine_lost_commits"), "{}", first.log());

    let mut second = Member::start(lay_out(), url, ports[1], config);
    let began = Instant::now();
    let waits = |readiness: &Value| {
        let problems = readiness["problems"].to_string();
        problems.contains("engine_lost_commits") && problems.contains(&format!("127.0.0.1:{}", ports[0]))
    };
    loop {
        let readiness = match reqwest::get(format!("{}/readyz", second.url)).await {
            Ok(answer) => answer.json().await.unwrap(),
            Err(_) => Value::Null,
        };
        if waits(&readiness) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{readiness}: {}", second.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let lost = partition(second.dir.path())["lost"].clone();
    assert_eq!(lost["host"], format!("127.0.0.1:{}", ports[0]), "{lost}");
    // A command that needs the ledger says so too.
    let commands = tempfile::tempdir().unwrap();
    command_line_of(url, commands.path());
    let keys = command(commands.path()).args(["keys", "list", "--json"]).env("LEDGER_PASSWORD", PASSWORD).output().unwrap();
    let said = String::from_utf8_lossy(&keys.stderr);
    assert!(!keys.status.success() && said.contains("engine_lost_commits"), "{said}");
    let repair = |dir: &Path| {
        let output = command(dir).args(["cluster", "repair", "--json"]).env("LEDGER_PASSWORD", PASSWORD).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let (done, said, error) = repair(first.dir.path());
    assert!(done, "{error}");
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["log_ended"], &said["last_batch"]), (&json!(end), &lost["batch"]), "{said}");
    let (done, _, error) = repair(first.dir.path());
    assert!(!done && error.contains("there is nothing to repair"), "{error}");
    // The copy of the host that waited has less: it ends, and begins from the snapshot of the repair.
    let ended = second.child.wait().unwrap();
    assert!(!ended.success() && second.log().contains("start the host again"), "{ended}: {}", second.log());
    let second = Member::start(second.kill(), url, ports[1], config);
    second.is_active();
    assert_eq!(second.events(&run).await, shown);
    let next = second.send("task:next").await;
    assert_eq!(types(&second.until(&next, is_over).await).last(), Some(&"run.completed"));
    assert_eq!(partition(second.dir.path())["lost"], json!(null));
}
