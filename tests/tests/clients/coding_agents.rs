//! Coding agents as runners of a real host: a scripted one here, and programs that others wrote in the modules.

mod answers;
mod lives;
mod programs;
mod programs_of_your_own;

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use agent_host_tests::{
    process,
    support::{EndedRun, Host},
    world::PATIENCE,
};
use serde_json::{Value, json};

fn peer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/harness/tests/harness/peer.py").canonicalize().unwrap()
}

fn binding(runner: &str) -> String {
    format!(
        "[[bindings]]\nid = \"coder\"\nrunner = \"{runner}\"\nmax_attempts = 2\n[bindings.queue]\nbackoff_ms = 0\nlease_ms = 5000\n"
    )
}

fn scripted() -> Host {
    scripted_with("", "", "")
}

/// `egress` is before the harness, `keys` are more of its keys, and `resources` those of its binding.
fn scripted_with(egress: &str, keys: &str, resources: &str) -> Host {
    let (peer, folder) = (peer(), peer().parent().unwrap().to_owned());
    let runner = "plugin:test/peer/default";
    let harness = format!(
        "[[harnesses]]\nid = \"{runner}\"\npreset = \"acp\"\ncommand = [\"python3\", \"-B\", {peer:?}]\nreadable = [{folder:?}]\n{keys}"
    );
    let binding = binding(runner).replace("[bindings.queue]", &format!("{resources}[bindings.queue]"));
    Host::start(&[], &format!("{egress}{harness}{binding}"))
}

/// The workspace of a conversation.
fn workspace(host: &Host, conversation: &str) -> PathBuf {
    host.dir().canonicalize().unwrap().join("data/workspaces").join(conversation)
}

async fn said(host: &Host, text: &str) -> EndedRun {
    let run = host.send_in("c1", text).await;
    host.ended(&run).await
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The open question of a run.
async fn open_question(host: &Host, run: &str) -> Option<Value> {
    let actions = host.get(&format!("/api/v1/runs/{run}/actions")).await;
    actions["items"].as_array()?.iter().find(|action| action["status"] == "open").cloned()
}

/// Answers a question, and gives its request.
async fn answer(host: &Host, question: &Value, body: &Value) -> Value {
    let id = question["action_id"].as_str().unwrap();
    let url = format!("{}/api/v1/actions/{id}/respond", *host.urls().borrow());
    let answer = reqwest::Client::new().post(url).json(body).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
    question["request"].clone()
}

/// Waits for the question of a run, and answers it.
async fn respond(host: &Host, run: &str, body: Value) -> Value {
    let question = until("the question", async || open_question(host, run).await).await;
    answer(host, &question, &body).await
}

/// The answer to a question that is one of its options.
fn submit(option: &str) -> Value {
    json!({ "decision": "submit", "answer": option })
}

/// Makes a run in a conversation, on other terms than those of its binding.
async fn order(host: &Host, conversation: &str, text: &str, terms: Value) -> String {
    let mut run = terms;
    run["binding_id"] = json!("coder");
    run["input"] = json!({ "text": text });
    run["conversation"] = json!({ "conversation_id": conversation });
    let url = format!("{}/api/v1/runs", *host.urls().borrow());
    let answer = reqwest::Client::new().post(url).json(&run).send().await.unwrap();
    let (status, run) = (answer.status(), answer.json::<Value>().await.unwrap());
    assert_eq!(status, 202, "{run}");
    run["run_id"].as_str().unwrap().to_owned()
}

/// A server at an address of this machine that greets every connection in HTTP; gives its port.
fn greeter(address: &str) -> u16 {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            // To the end of the head.
            let _ = head.find(String::is_empty);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
        }
    });
    port
}

/// The processes whose command line has this text.
fn processes(text: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str().filter(|id| id.parse::<u32>().is_ok()).map(str::to_owned));
    ids.filter(|id| fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(text)))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_scripted_agent_answers_asks_and_keeps_its_session() {
    let host = scripted();
    let ended = said(&host, "remember one\nsay hello\ntool ls").await.completed();
    assert_eq!(ended.message_texts(), ["hello"]);
    assert_eq!(ended.of("tool.call.completed").len(), 1);
    assert!(ended.events.iter().filter(|event| event["type"] == "message.delta").all(|event| event["source"] == "executor"));
    let run = host.send_in("c1", "permission execute make it\nremember two\nrecall").await;
    let question = respond(&host, &run, submit("Allow_Once")).await;
    assert_eq!((&question["title"], &question["description"]), (&json!("make it"), &json!("make it")), "{question}");
    let ended = host.ended(&run).await.completed();
    assert!(ended.message_texts().concat().ends_with("one;two;"), "{ended}");
    let executors = host.get("/api/v1/executors").await;
    assert_eq!(executors["items"][0]["capabilities"]["state"], "ready", "{executors}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_scripted_agent_calls_the_tools_of_its_run_by_the_endpoint_that_it_was_given() {
    let host = scripted();
    let called = async |order: &str| -> Value {
        let ended = said(&host, order).await.completed();
        serde_json::from_str(&ended.message_texts().concat()).unwrap_or_else(|error| panic!("{error}: {ended}"))
    };
    let set = called(r#"mcp state_set {"scope":"conversation","key":"color","value":"blue"}"#).await;
    let tools = set["tools"].as_array().unwrap();
    assert!(tools.contains(&json!("history_page")) && !tools.contains(&json!("start_agent")), "{set}");
    assert!(set["called"]["result"].is_object() && set["called"]["result"]["isError"] != true, "{set}");
    let get = called(r#"mcp state_get {"scope":"conversation","key":"color"}"#).await;
    assert_eq!(get["called"]["result"]["structuredContent"]["value"], "blue", "{get}");
    let refused = called(r#"mcp start_agent {"runner_id":"plugin:test/peer/default","text":"go"}"#).await;
    assert!(refused["called"]["error"].is_object() || refused["called"]["result"]["isError"] == true, "{refused}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_agent_is_no_trusted_user_of_its_host() {
    let host = scripted();
    let url = host.urls().borrow().clone();
    // By the door of its run it is somebody without a key, and there is no other way.
    let ended = said(&host, &format!("door /api/v1/runs\nsay |\nfetch {url}/api/v1/runs")).await.completed();
    let said = ended.message_texts().concat();
    assert!(said.starts_with("401 ") && said.ends_with("|URLError"), "{ended}");
    assert_eq!(reqwest::get(format!("{url}/api/v1/runs")).await.unwrap().status(), 200, "a user of this machine needs no key");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_host_leaves_no_agent_and_its_run_goes_on_in_its_session() {
    let mut host = scripted();
    said(&host, "remember one").await.completed();
    let pid = workspace(&host, "c1").join("pid");
    let run = host.send_in("c1", &format!("recall\nremember x\nfile {}\nsleep 1.5\nsay done", pid.display())).await;
    let first = until("the agent", async || fs::read_to_string(&pid).ok().filter(|id| !id.is_empty())).await;
    host.kill();
    until("the end of the agent", async || (!Path::new(&format!("/proc/{first}")).exists()).then_some(())).await;
    host.revive();
    let ended = host.ended(&run).await.completed();
    assert_eq!(ended.run["attempt"], 2, "{ended}");
    assert!(ended.message_texts().concat().ends_with("one;x;done"), "the second attempt is in the session of the first: {ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_agent_in_a_sandbox_reaches_its_endpoint_and_the_hosts_of_its_binding() {
    let port = greeter("127.0.0.2");
    let may = format!("[\"127.0.0.2:{port}\"]");
    let host = scripted_with(
        "[egress]\nallow_addresses = [\"127.0.0.2\"]\n",
        &format!(
            "isolation = \"bwrap\"\npermissions = {{ state = [\"conversation\"], interactions = true, http_hosts = {may} }}\n"
        ),
        &format!("resources = {{ http_hosts = {may} }}\n"),
    );
    let set = said(&host, r#"mcp state_set {"scope":"conversation","key":"color","value":"blue"}"#).await.completed();
    let set: Value = serde_json::from_str(&set.message_texts().concat()).unwrap_or_else(|error| panic!("{error}: {set}"));
    assert!(set["called"]["result"].is_object() && set["called"]["result"]["isError"] != true, "{set}");
    // The host trusts programs of this machine, and an agent is none of them.
    let url = host.urls().borrow().clone();
    let orders = format!("fetch http://127.0.0.2:{port}/\nsay |\nfetch {url}/api/v1/runs\nsay |\nfetch http://example.com/");
    let ended = said(&host, &orders).await.completed();
    let texts = ended.message_texts().concat();
    assert!(texts.starts_with("200 5 hello|401 ") && texts.contains("does not connect to example.com:80"), "{ended}");
    let refused = json!({ "host": "example.com", "port": 80, "allowed": false, "reason": "host_not_allowed" });
    assert_eq!(ended.of("harness.network"), [&refused], "{ended}");
    let executors = host.get("/api/v1/executors").await;
    let capabilities = &executors["items"][0]["capabilities"];
    assert_eq!((&capabilities["isolation"], &capabilities["state"]), (&json!("bwrap"), &json!("ready")), "{executors}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_host_leaves_no_sandbox() {
    let mut host = scripted_with("", "isolation = \"bwrap\"\n", "");
    let space = workspace(&host, "c1");
    let forked = space.join("forked");
    let run = host.send_in("c1", &format!("fork {}\nhang", forked.display())).await;
    until("the process of the agent", async || fs::read_to_string(&forked).ok().filter(|id| !id.is_empty())).await;
    let space = space.to_string_lossy().into_owned();
    assert!(processes(&space).len() >= 4, "bwrap, two launchers, and a process of the agent: {:?}", processes(&space));
    host.kill();
    until("the end of all of it", async || processes(&space).is_empty().then_some(())).await;
    host.revive();
    host.cancel(&run).await;
    host.ended(&run).await.cancelled();
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_harness_elsewhere_brings_its_runner_and_serves_a_host_over_http() {
    let runner = "plugin:test/peer/default";
    let may = "[[executor_runners]]\nrunner_ids = [\"plugin:test/*\"]\n[executor_runners.permissions]\nstate = [\"conversation\"]\ninteractions = true\n";
    let host = Host::start(&[], &format!("{may}{}", binding(runner)));
    let elsewhere = tempfile::tempdir().unwrap();
    let (peer, folder) = (peer(), peer().parent().unwrap().to_owned());
    let harness = format!(
        "[[harnesses]]\nid = \"{runner}\"\npreset = \"acp\"\ncommand = [\"python3\", \"-B\", {peer:?}]\nreadable = [{folder:?}]\n\
         permissions = {{ state = [\"conversation\"], interactions = true }}\n"
    );
    fs::write(elsewhere.path().join("agent-host.toml"), harness).unwrap();
    let url = host.urls().borrow().clone();
    let mut child = process::command(elsewhere.path()).args(["harness", "--server", &url]).spawn().unwrap();
    let is_registered = async || host.get("/api/v1/executors").await["items"].as_array()?.first().cloned();
    until("the registration", is_registered).await;
    let ended = said(&host, "remember one\nsay hello").await.completed();
    assert_eq!(ended.message_texts(), ["hello"], "{ended}");
    let ended = said(&host, "recall").await.completed();
    assert_eq!(ended.message_texts(), ["one;"], "{ended}");
    assert!(elsewhere.path().join("data/workspaces/c1").is_dir());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    let status = tokio::task::block_in_place(|| child.wait()).unwrap();
    assert!(status.success(), "{status}");
    host.check();
}
