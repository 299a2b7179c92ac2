//! Coding agents as runners of a real host: a scripted one, and Claude Code against a scripted model, offline.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use agent_host_tests::{
    npm::{self, NodeServer},
    process,
    support::{EndedRun, Host},
    world::PATIENCE,
};
use serde_json::{Value, json};

/// The versions that are run: newer ones are tried by changing them here.
const CLAUDE: &str = "@agentclientprotocol/claude-agent-acp@0.49.0";
const AIMOCK: &str = "@copilotkit/aimock@1.43.0";

const CLAUDE_NATIVE: &str = "@anthropic-ai/claude-code@2.1.330";
const CODEX: &str = "@openai/codex@0.169.0";
const CODEX_ACP: &str = "@zed-industries/codex-acp@0.16.0";
const GEMINI: &str = "@google/gemini-cli@0.61.0";
const OPENCODE: &str = "opencode-ai@1.18.33";
const KIMI: &str = "@moonshot-ai/kimi-code@2.1.0";
const PI_ACP: &str = "pi-acp@0.0.34";
const PI: &str = "@earendil-works/pi-coding-agent@1.5.2";
/// Node.js for agents that want a newer one than the rest.
const NODE: &str = "22.23.3";

/// Answers of the model of the test.
const FIXTURES: &str = r#"{ "fixtures": [
    { "match": { "userMessage": "make the folder one", "hasToolResult": false },
      "response": { "toolCalls": [{ "name": "Bash", "arguments": "{\"command\":\"mkdir one\",\"description\":\"Make a folder\"}" }] } },
    { "match": { "userMessage": "make the folder two", "hasToolResult": false },
      "response": { "toolCalls": [{ "name": "Bash", "arguments": "{\"command\":\"mkdir two\",\"description\":\"Make a folder\"}" }] } },
    { "match": { "userMessage": "execute one", "hasToolResult": false },
      "response": { "toolCalls": [{ "name": "exec_command", "arguments": "{\"cmd\":\"mkdir one\"}" }] } },
    { "match": { "userMessage": "execute two", "hasToolResult": false },
      "response": { "toolCalls": [{ "name": "exec_command", "arguments": "{\"cmd\":\"mkdir two\"}" }] } },
    { "match": { "userMessage": "execute one", "hasToolResult": true }, "response": { "content": "Folder one is there." } },
    { "match": { "userMessage": "execute two", "hasToolResult": true }, "response": { "content": "There is no folder two." } },
    { "match": { "userMessage": "wait long", "hasToolResult": false },
      "response": { "toolCalls": [{ "name": "Bash", "arguments": "{\"command\":\"touch began && sleep 98765\",\"description\":\"Wait\"}" }] } },
    { "match": { "userMessage": "make the folder one", "hasToolResult": true }, "response": { "content": "Folder one is there." } },
    { "match": { "userMessage": "make the folder two", "hasToolResult": true }, "response": { "content": "There is no folder two." } },
    COLORS
    { "match": { "userMessage": "hello" }, "response": { "content": "Hello from the scripted model." } },
    { "match": { "userMessage": "<system-reminder>" }, "response": { "content": "Hello from the scripted model." } },
    { "match": { "userMessage": "and again" }, "response": { "content": "Again, in the same session." } }
] }"#;

/// The ways in which agents name a tool of an MCP server to their models, up to the name of the tool.
const TOOLS: [&str; 5] = ["mcp__agent-host__", "agent-host_", "mcp_agent-host_", "mcp__agent_host__", "mcp__agent_host."];

/// [`FIXTURES`], with a model that keeps a color and finds it again by tools of the host.
fn fixtures() -> String {
    let call = |text: String, name: String, arguments: Value| {
        let calls = json!([{ "name": name, "arguments": arguments.to_string() }]);
        json!({ "match": { "userMessage": text, "hasToolResult": false }, "response": { "toolCalls": calls } })
    };
    let mut colors =
        vec![json!({ "match": { "userMessage": "blue by ", "hasToolResult": true }, "response": { "content": "Blue." } })];
    for tools in TOOLS {
        let place = json!({ "scope": "conversation", "key": "color" });
        let mut value = place.clone();
        value["value"] = json!("blue");
        colors.push(call(format!("keep blue by {tools};"), format!("{tools}state_set"), value));
        colors.push(call(format!("find blue by {tools};"), format!("{tools}state_get"), place));
    }
    let colors: String = colors.iter().map(|fixture| format!("{fixture},\n")).collect();
    FIXTURES.replace("COLORS", &colors)
}

/// Stands before a model server that cannot name the namespace of a tool, as Codex wants it.
const NAMESPACES: &str = r#"
import http from "node:http";
const [port, model] = process.argv.slice(2);
http.createServer((request, response) => {
  const { url: path, method, headers } = request;
  const sent = http.request({ host: "127.0.0.1", port: model, path, method, headers }, (answer) => {
    response.writeHead(answer.statusCode, { "content-type": answer.headers["content-type"] ?? "text/plain" });
    let text = "";
    answer.setEncoding("utf8").on("data", (part) => { text += part; });
    answer.on("end", () => response.end(text.replaceAll('"name":"mcp__agent_host.', '"namespace":"mcp__agent_host","name":"')));
  });
  request.pipe(sent);
}).listen(Number(port), "127.0.0.1");
"#;

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

/// Answers the open question of a run.
async fn respond(host: &Host, run: &str, body: Value) -> Value {
    let path = format!("/api/v1/runs/{run}/actions");
    let action = until("the question", async || host.get(&path).await["items"].as_array()?.first().cloned()).await;
    let id = action["action_id"].as_str().unwrap();
    let url = format!("{}/api/v1/actions/{id}/respond", *host.urls().borrow());
    let answer = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
    action["request"].clone()
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
    let question = respond(&host, &run, json!({ "decision": "submit", "answer": "Allow_Once" })).await;
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

/// A model server that knows [`FIXTURES`].
fn scripted_model(modules: &Path) -> NodeServer {
    NodeServer::start(&[("fixtures.json", fixtures())], |node, port| {
        node.arg(modules.join(".bin/llmock")).args(["-p", &port.to_string(), "-f", "fixtures.json"]);
    })
}

/// Likewise, with the server that names namespaces before it.
fn model_with_namespaces(modules: &Path) -> (NodeServer, NodeServer) {
    let model = scripted_model(modules);
    let named = NodeServer::start(&[("relay.mjs", NAMESPACES.to_owned())], |node, port| {
        node.args(["relay.mjs", &port.to_string(), &model.port.to_string()]);
    });
    (model, named)
}

/// A host with one harness. `keys` are those of the harness beside its id and the port of the model.
fn with_agent(runner: &str, model: &NodeServer, keys: &str) -> Host {
    let harness = format!("[[harnesses]]\nid = \"{runner}\"\nconnect_ports = [{}]\n{keys}\n", model.port);
    Host::start(&[], &format!("{harness}{}", binding(runner)))
}

/// Two turns of one session.
async fn answers_two_turns(host: &Host) {
    let ended = said(host, "hello there").await.completed();
    assert_eq!(ended.message_texts(), ["Hello from the scripted model."], "{ended}");
    let session = ended.of("harness.session")[0]["session_id"].clone();
    let ended = said(host, "and again").await.completed();
    assert_eq!(ended.message_texts(), ["Again, in the same session."], "{ended}");
    let again = ended.of("harness.session")[0];
    assert_eq!((&again["resumed"], &again["session_id"]), (&json!(true), &session), "{ended}");
}

/// Two calls of the host's tools by the MCP endpoint of the run: a value that is kept, and found in the next run. `tools` are the names of
/// the agent for tools of the host.
async fn calls_tools_of_the_host(host: &Host, tools: &str) {
    let ended = said(host, &format!("keep blue by {tools};")).await.completed();
    assert!(ended.of("tool.call.completed")[0]["error"].is_null(), "{ended}");
    let ended = said(host, &format!("find blue by {tools};")).await.completed();
    let result = ended.of("tool.call.completed")[0]["result"].to_string();
    assert!(result.contains("blue"), "{ended}");
    assert_eq!(ended.message_texts().last().map(|text| text.trim()), Some("Blue."), "{ended}");
}

/// A command that a person allows, and one that a person declines.
async fn asks_for_commands(host: &Host, one: &str, two: &str) {
    let run = host.send_in("c1", one).await;
    let question = respond(host, &run, json!({ "decision": "submit", "answer": "Allow" })).await;
    assert_eq!(question["description"], "mkdir one", "{question}");
    let ended = host.ended(&run).await.completed();
    assert_eq!(ended.message_texts(), ["Folder one is there."], "{ended}");
    assert_eq!(ended.of("tool.call.started")[0]["parameters"]["command"], "mkdir one", "{ended}");
    assert!(workspace(host, "c1").join("one").is_dir());
    let run = host.send_in("c1", two).await;
    respond(host, &run, json!({ "decision": "decline" })).await;
    let ended = host.ended(&run).await.completed();
    assert!(ended.of("tool.call.completed")[0]["error"].is_string(), "{ended}");
    assert!(!workspace(host, "c1").join("two").exists());
}

/// The name of this machine's architecture in packages.
fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" }
}

/// A rule that lets an agent call tools that are neither files nor commands without a question: some ask for each tool of the host.
const TRUSTED: &str = "rules = [{ policy = \"allow\", kinds = [\"other\"] }]\n";

/// The package with the newer Node.js for this machine.
fn node_package() -> String {
    format!("node-linux-{}@{NODE}", architecture())
}

/// The program in it.
fn newer_node(modules: &Path) -> PathBuf {
    modules.join(format!("node-linux-{}/bin/node", architecture()))
}

/// Command and environment of Codex, with the model of the test.
fn codex(program: &Path, more: &str, port: u16) -> String {
    format!(
        "command = [{program:?}, {more}\"-c\", \"model_provider=mock\", \"-c\", 'model_providers.mock={{name=\"mock\",\
         base_url=\"http://127.0.0.1:{port}/v1\",env_key=\"OPENAI_API_KEY\",wire_api=\"responses\"}}']\n\
         env = {{ OPENAI_API_KEY = \"sk-of-the-test\" }}"
    )
}

/// Claude Code by its own protocol, with these further keys: two turns of one session, and two commands that it asks for.
async fn claude_code_answers(more: &str) {
    let modules = npm::packages("claude-code-native", &[CLAUDE_NATIVE, AIMOCK]);
    let model = scripted_model(&modules);
    // The package for this machine: no installation script has put its program into the other one.
    let program = modules.join(format!("@anthropic-ai/claude-code-linux-{}/claude", architecture()));
    let keys = format!(
        "preset = \"claude-code\"\nprotocol = \"native\"\n{more}command = [{program:?}]\n\
         env = {{ ANTHROPIC_BASE_URL = \"http://127.0.0.1:{}\", ANTHROPIC_API_KEY = \"sk-of-the-test\" }}",
        model.port
    );
    let host = with_agent("plugin:agent-host/claude-native/default", &model, &keys);
    answers_two_turns(&host).await;
    asks_for_commands(&host, "make the folder one", "make the folder two").await;
    calls_tools_of_the_host(&host, "mcp__agent-host__").await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claude_code_answers_by_its_own_protocol() {
    claude_code_answers("").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claude_code_answers_in_a_sandbox() {
    claude_code_answers("isolation = \"bwrap\"\n").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn codex_answers_by_its_own_protocol() {
    let modules = npm::packages("codex-native", &[CODEX, AIMOCK]);
    let (_model, named) = model_with_namespaces(&modules);
    // A model that Codex does not know has the tools themselves, and not a program that calls them.
    let command = codex(&modules.join(".bin/codex"), "\"app-server\", \"-c\", \"model=mock\", ", named.port);
    let keys = format!("preset = \"codex\"\nprotocol = \"native\"\n{command}");
    let host = with_agent("plugin:agent-host/codex-native/default", &named, &keys);
    answers_two_turns(&host).await;
    asks_for_commands(&host, "execute one", "execute two").await;
    calls_tools_of_the_host(&host, "mcp__agent_host.").await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn codex_answers_over_acp() {
    let modules = npm::packages("codex-acp", &[CODEX_ACP, AIMOCK]);
    let (_model, named) = model_with_namespaces(&modules);
    let keys = format!("preset = \"codex\"\n{}", codex(&modules.join(".bin/codex-acp"), "", named.port));
    let host = with_agent("plugin:agent-host/codex-acp/default", &named, &keys);
    answers_two_turns(&host).await;
    calls_tools_of_the_host(&host, "mcp__agent_host.").await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn gemini_answers_over_acp() {
    let modules = npm::packages("gemini", &[GEMINI, AIMOCK]);
    let model = scripted_model(&modules);
    let keys = format!(
        "preset = \"gemini\"\n{TRUSTED}command = [{:?}, \"--acp\"]\n\
         env = {{ GEMINI_API_KEY = \"sk-of-the-test\", GEMINI_DEFAULT_AUTH_TYPE = \"gemini-api-key\", \
         GEMINI_MODEL = \"gemini-2.5-flash\", GOOGLE_GEMINI_BASE_URL = \"http://127.0.0.1:{}\" }}",
        modules.join(".bin/gemini"),
        model.port
    );
    let host = with_agent("plugin:agent-host/gemini/default", &model, &keys);
    let ended = said(&host, "hello there").await.completed();
    assert_eq!(ended.message_texts(), ["Hello from the scripted model."], "{ended}");
    calls_tools_of_the_host(&host, "mcp_agent-host_").await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn opencode_answers_over_acp() {
    let modules = npm::packages("opencode", &[OPENCODE, AIMOCK]);
    let model = scripted_model(&modules);
    let settings = json!({
        "autoupdate": false, "share": "disabled", "model": "mock/m", "small_model": "mock/m", "enabled_providers": ["mock"],
        "provider": { "mock": {
            "npm": "@ai-sdk/openai-compatible", "name": "Mock", "models": { "m": { "name": "m" } },
            "options": { "baseURL": format!("http://127.0.0.1:{}/v1", model.port), "apiKey": "sk-of-the-test" },
        } },
    });
    let program = modules.join(format!("opencode-linux-{}/bin/opencode", architecture()));
    let keys =
        format!("preset = \"opencode\"\ncommand = [{program:?}, \"acp\"]\nenv = {{ OPENCODE_CONFIG_CONTENT = '{settings}' }}");
    let host = with_agent("plugin:agent-host/opencode/default", &model, &keys);
    answers_two_turns(&host).await;
    calls_tools_of_the_host(&host, "agent-host_").await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn kimi_answers_over_acp() {
    let modules = npm::packages("kimi", &[KIMI, &node_package(), AIMOCK]);
    let model = scripted_model(&modules);
    let keys = format!(
        "preset = \"kimi\"\n{TRUSTED}readable = [{modules:?}]\ncommand = [{:?}, {:?}, \"acp\"]\n\
         env = {{ KIMI_MODEL_NAME = \"mock\", KIMI_MODEL_API_KEY = \"sk-of-the-test\", KIMI_MODEL_PROVIDER_TYPE = \"openai\", \
         KIMI_MODEL_BASE_URL = \"http://127.0.0.1:{}/v1\" }}",
        newer_node(&modules),
        modules.join("@moonshot-ai/kimi-code/dist/main.mjs"),
        model.port
    );
    let host = with_agent("plugin:agent-host/kimi/default", &model, &keys);
    answers_two_turns(&host).await;
    calls_tools_of_the_host(&host, "mcp__agent-host__").await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pi_answers_over_acp() {
    let modules = npm::packages("pi", &[PI_ACP, PI, &node_package(), AIMOCK]);
    let model = scripted_model(&modules);
    // Pi has its providers in its home only: a program before it puts them there.
    let providers = json!({ "providers": { "mock": {
        "baseUrl": format!("http://127.0.0.1:{}/v1", model.port), "api": "openai-completions", "apiKey": "sk-of-the-test",
        "models": [{ "id": "mock" }],
    } } });
    let chosen = json!({ "defaultProvider": "mock", "defaultModel": "mock", "quietStartup": true });
    let node = newer_node(&modules);
    let begin = format!(
        "mkdir -p ~/.pi/agent && echo '{providers}' > ~/.pi/agent/models.json && echo '{chosen}' > ~/.pi/agent/settings.json && \
         exec {} {}",
        node.display(),
        modules.join("pi-acp/dist/index.js").display()
    );
    let path = format!("{}:{}:/usr/bin:/bin", node.parent().unwrap().display(), modules.join(".bin").display());
    let keys = format!(
        "preset = \"pi\"\nreadable = [{modules:?}]\ncommand = [\"sh\", \"-c\", {begin:?}]\nenv = {{ PATH = \"{path}\" }}"
    );
    let host = with_agent("plugin:agent-host/pi/default", &model, &keys);
    answers_two_turns(&host).await;
    calls_tools_of_the_host(&host, "mcp__agent_host__").await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claude_code_answers_two_turns_asks_and_is_cancelled() {
    let modules = npm::packages("claude-code", &[CLAUDE, AIMOCK]);
    let model = scripted_model(&modules);
    let (command, port) = (modules.join(".bin/claude-agent-acp"), model.port);
    let runner = "plugin:agent-host/claude-code/default";
    let harness = format!(
        "[[harnesses]]\nid = \"{runner}\"\npreset = \"claude-code\"\ncommand = [{command:?}]\nconnect_ports = [{port}]\n\
         env = {{ ANTHROPIC_BASE_URL = \"http://127.0.0.1:{port}\", ANTHROPIC_API_KEY = \"sk-of-the-test\" }}\n"
    );
    let host = Host::start(&[], &format!("{harness}{}", binding(runner)));
    let ended = said(&host, "hello there").await.completed();
    assert_eq!(ended.message_texts(), ["Hello from the scripted model."], "{ended}");
    assert_eq!(ended.of("harness.session")[0]["resumed"], false, "{ended}");
    let session = ended.of("harness.session")[0]["session_id"].clone();

    // The next message goes on with the session.
    let ended = said(&host, "and again").await.completed();
    assert_eq!(ended.message_texts(), ["Again, in the same session."], "{ended}");
    assert_eq!(
        (&ended.of("harness.session")[0]["resumed"], &ended.of("harness.session")[0]["session_id"]),
        (&json!(true), &session),
        "{ended}"
    );

    // A permission that is granted, and one that is not.
    let run = host.send_in("c1", "make the folder one").await;
    let question = respond(&host, &run, json!({ "decision": "submit", "answer": "Allow" })).await;
    assert_eq!(question["description"], "mkdir one", "{question}");
    let ended = host.ended(&run).await.completed();
    assert_eq!(ended.message_texts(), ["Folder one is there."], "{ended}");
    let call = ended.of("tool.call.started")[0];
    assert_eq!((&call["tool_name"], &call["parameters"]["command"]), (&json!("Bash"), &json!("mkdir one")), "{ended}");
    assert!(workspace(&host, "c1").join("one").is_dir());
    let run = host.send_in("c1", "make the folder two").await;
    respond(&host, &run, json!({ "decision": "decline" })).await;
    host.ended(&run).await.completed();
    assert!(!workspace(&host, "c1").join("two").exists());

    // A tool of the host, for which it asks over ACP.
    let run = host.send_in("c1", "keep blue by mcp__agent-host__;").await;
    let question = respond(&host, &run, json!({ "decision": "submit", "answer": "Allow" })).await;
    assert_eq!(question["title"], "mcp__agent-host__state_set", "{question}");
    let ended = host.ended(&run).await.completed();
    assert!(ended.of("tool.call.completed")[0]["error"].is_null(), "{ended}");

    // A cancel in the middle of a command of a shell leaves no process.
    let run = host.send_in("c1", "wait long").await;
    respond(&host, &run, json!({ "decision": "submit", "answer": "Allow" })).await;
    let began = workspace(&host, "c1").join("began");
    until("the command", async || began.exists().then_some(())).await;
    assert!(!processes("98765").is_empty());
    host.cancel(&run).await;
    host.ended(&run).await.cancelled();
    until("the end of the command", async || processes("98765").is_empty().then_some(())).await;
    until("the end of the agent", async || processes("claude-agent-acp/dist").is_empty().then_some(())).await;
    host.check();
}
