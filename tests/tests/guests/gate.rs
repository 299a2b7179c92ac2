//! Every function of the contract, called by a real guest: granted, not granted, granted for something else, and
//! recorded.

use std::{collections::BTreeMap, fs, path::Path};

use agent_host_ledger::AuditRecord;
use agent_host_protocol::Interface;
use agent_host_tests::{
    World,
    grants::{EVERYTHING, NOTHING},
    outside::serve_empty_objects,
    world::{EndedRun, in_conversation},
};
use serde_json::{Value, json};

/// The functions of the contract, read from the contract, so that one that is added cannot be forgotten here. Methods
/// of a resource are named `interface.resource.method`.
fn contract() -> Vec<String> {
    let mut functions = Vec::new();
    for file in ["capabilities", "results"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit").join(file).with_extension("wit");
        let (mut interface, mut resource) = (String::new(), None);
        for line in fs::read_to_string(path).unwrap().lines() {
            let code = line.trim();
            if let Some(name) = line.strip_prefix("interface ") {
                interface = name.trim_end_matches(" {").to_owned();
            } else if let Some(name) = code.strip_prefix("resource ") {
                resource = Some(name.trim_end_matches(" {").to_owned());
            } else if code == "}" {
                resource = None;
            } else if let Some((name, _)) = code.split_once(": func(").or_else(|| code.split_once(": static func(")) {
                let name = name.trim_start_matches('%');
                functions.push(match &resource {
                    Some(resource) => format!("{interface}.{resource}.{name}"),
                    None => format!("{interface}.{name}"),
                });
            }
        }
    }
    assert!(functions.len() > 40, "the contract was not read: {functions:?}");
    functions
}

/// False for functions that every run has, whatever its grant.
fn needs_a_grant(function: &str) -> bool {
    !matches!(function.split('.').next(), Some("results" | "log" | "timers"))
}

/// The methods of a resource are judged when the resource is given: without it there is nothing to call them on.
fn is_a_method(function: &str) -> bool {
    function.split('.').count() == 3
}

const SCRIPT: &str = r#"
[[reply]]
text = "probed"
"#;

/// A host with two of everything, the first of each granted to the binding, and this much of the operations.
async fn world(resources: &str, state: &str) -> World {
    world_with(resources, state, serve_empty_objects().await).await
}

async fn world_with(resources: &str, state: &str, port: u16) -> World {
    let text = format!(
        r#"
[egress]
allow_addresses = ["127.0.0.0/8"]

[[action_hooks]]
actions = ["*"]
url = "http://127.0.0.1:{port}/"
secret = {{ file = "hook-secret" }}

[[models]]
id = "a-chat"
provider = "scripted"
script = "script.toml"

[[models]]
id = "b-chat"
provider = "scripted"
script = "script.toml"

[[models]]
id = "a-embed"
type = "embedding"
provider = "scripted"

[[models]]
id = "a-rerank"
type = "rerank"
provider = "scripted"

[[mcp_servers]]
id = "a"
command = "{server}"

[[mcp_servers]]
id = "b"
command = "{server}"

[[knowledge_bases]]
id = "a-base"

[[knowledge_bases]]
id = "b-base"

[[bindings]]
id = "probe"
runner = "plugin:test/probe/default"
{state}
[bindings.resources]
model_ids = ["a-*"]
tool_names = ["a__add"]
kb_ids = ["a-base"]
runner_ids = ["plugin:test/steps/*"]
{resources}

[[bindings.approvals]]
action = "message.edit"
policy = "allow"
"#,
        server = env!("CARGO_BIN_EXE_mcp-server"),
    );
    let lay_out = |dir: &Path| {
        fs::write(dir.join("script.toml"), SCRIPT).unwrap();
        fs::write(dir.join("hook-secret"), "a secret of the platform").unwrap();
    };
    World::from_text(&["probe", "steps"], &text, lay_out).await
}

fn answers(ended: &EndedRun) -> BTreeMap<String, String> {
    serde_json::from_str(&ended.answer_text()).unwrap_or_else(|error| panic!("{error}: {ended:#?}"))
}

fn audit(world: &World, ended: &EndedRun) -> Vec<AuditRecord> {
    world.host.ledger().audit_page(ended.run.run_id, None, 100).unwrap().items
}

async fn probe(world: &World, names: Value) -> (BTreeMap<String, String>, Vec<AuditRecord>) {
    let ended = world.ended(world.send(in_conversation("c", &names.to_string())).await).await;
    (answers(&ended), audit(world, &ended))
}

#[track_caller]
fn refused(answers: &BTreeMap<String, String>, audit: &[AuditRecord], function: &str, code: &str) {
    let answer = answers.get(function).unwrap_or_else(|| panic!("the probe does not call {function}: {answers:#?}"));
    assert!(answer.starts_with(&format!("error {code}")), "{function}: {answer}");
    let record = audit.iter().find(|record| record.action == function && record.outcome == code);
    let record = record.unwrap_or_else(|| panic!("{function} left no record of its refusal: {audit:#?}"));
    assert!(record.run_id.is_some() && record.runner_id.is_some() && record.duration_us.is_some(), "{record:?}");
}

#[tokio::test]
async fn granted_requests_succeed() {
    let port = serve_empty_objects().await;
    let world = world_with(EVERYTHING, "", port).await;
    let (answers, audit) = probe(&world, json!({ "url": format!("http://127.0.0.1:{port}/") })).await;
    for function in contract() {
        assert_eq!(answers.get(&function).map(String::as_str), Some("ok"), "{function}");
        assert!(
            TRACED.contains(&function.as_str()) || audit.iter().any(|record| record.action == function && record.outcome == "ok"),
            "{function} left no record"
        );
    }
    world.host.shutdown(agent_host_tests::world::PATIENCE).await;
}

/// Functions with another trace than an audit record: events of the run, its log, the call that created the resource.
const TRACED: [&str; 7] = [
    "results.emit",
    "log.write",
    "timers.now",
    "models.response-stream.next",
    "http.response.status",
    "http.response.headers",
    "http.response.read",
];

#[tokio::test]
async fn an_empty_grant_opens_nothing() {
    let world = world(NOTHING, "state = { scopes = [] }").await;
    let (answers, audit) = probe(&world, json!({})).await;
    for function in contract().iter().filter(|function| needs_a_grant(function)) {
        let interface = function.split('.').next().unwrap();
        assert!(Interface::from_name(interface).is_some(), "{interface} is not an interface that a grant can give");
        if is_a_method(function) {
            assert!(!answers.contains_key(function), "{function} was called on something that must not be there");
        } else {
            refused(&answers, &audit, function, "unauthorized");
        }
    }
}

/// The operation that opens each function, in the words of a binding.
const OPERATIONS: [(&str, &str, &str); 32] = [
    ("models.invoke", "models", "invoke"),
    ("models.stream", "models", "stream"),
    ("models.rerank", "models", "rerank"),
    ("models.embed", "models", "embed"),
    ("models.count-tokens", "models", "count_tokens"),
    ("tools.get-detail", "tools", "detail"),
    ("tools.call", "tools", "call"),
    ("tools.call-many", "tools", "call"),
    ("knowledge.list", "knowledge_bases", "list"),
    ("knowledge.retrieve", "knowledge_bases", "retrieve"),
    ("history.page", "history", "page"),
    ("history.search", "history", "search"),
    ("events.get", "events", "get"),
    ("events.page", "events", "page"),
    ("artifacts.metadata", "artifacts", "metadata"),
    ("artifacts.read-range", "artifacts", "read"),
    ("artifacts.open", "artifacts", "read"),
    ("artifacts.create", "artifacts", "create"),
    // The probe uses the area `plugin` and the scope `runner`.
    ("storage.get", "storage", "plugin"),
    ("storage.set", "storage", "plugin"),
    ("storage.delete", "storage", "plugin"),
    ("storage.list", "storage", "plugin"),
    ("state.get", "state", "runner"),
    ("runs.start", "runs", "start"),
    ("runs.wait-any", "runs", "get"),
    ("runs.get", "runs", "get"),
    ("runs.list", "runs", "list"),
    ("runs.events-page", "runs", "events"),
    ("runs.cancel", "runs", "cancel"),
    ("platform.request-action", "platform_api", "message.edit"),
    ("http.send", "http_hosts", "probe.invalid:443"),
    ("interactions.ask", "interactions", "true"),
];

#[tokio::test]
async fn a_grant_for_one_operation_opens_no_other() {
    // Steering has one switch and one function, and the scopes of state are those of `state.get`.
    let listed = |function: &str| {
        OPERATIONS.iter().any(|(name, ..)| *name == function) || function.starts_with("state.") || function == "steering.pull"
    };
    for function in contract().iter().filter(|function| needs_a_grant(function) && !is_a_method(function)) {
        assert!(listed(function), "{function} is new: say here which operation opens it");
    }
    // Two grants that overlap in nothing: what the one opens, the other does not.
    let grants = [
        (
            r#"
models = ["invoke", "embed"]
tools = ["detail"]
knowledge_bases = ["list"]
history = ["page"]
events = ["get"]
artifacts = ["create"]
storage = ["binding"]
runs = ["start", "list"]
platform_api = ["message.delete"]
http_hosts = ["127.0.0.1:*"]
interactions = true
"#,
            r#"state = { scopes = ["conversation"] }"#,
        ),
        (
            r#"
models = ["stream", "rerank", "count_tokens"]
tools = ["call"]
knowledge_bases = ["retrieve"]
history = ["search"]
events = ["page"]
artifacts = ["metadata", "read"]
storage = ["plugin"]
runs = ["get", "events", "cancel"]
platform_api = ["message.edit"]
http_hosts = ["probe.invalid:443"]
interactions = false
"#,
            r#"state = { scopes = ["runner"] }"#,
        ),
    ];
    for (resources, state) in grants {
        let world = world(resources, state).await;
        let (answers, audit) = probe(&world, json!({})).await;
        for (function, policy, operation) in OPERATIONS {
            let line = resources.lines().chain([state]).find(|line| line.starts_with(policy)).unwrap();
            if line.contains(&format!("\"{operation}\"")) || line.ends_with(&format!("= {operation}")) {
                assert!(!answers[function].starts_with("error unauthorized"), "{function}: {}", answers[function]);
            } else {
                refused(&answers, &audit, function, "unauthorized");
            }
        }
        world.host.shutdown(agent_host_tests::world::PATIENCE).await;
    }
}

#[tokio::test]
async fn a_resource_that_is_not_granted_is_refused_and_one_that_is_not_there_is_not_found() {
    let world = world(EVERYTHING, "").await;
    let of_a_resource = [
        "models.invoke",
        "models.stream",
        "models.count-tokens",
        "models.embed",
        "models.rerank",
        "tools.get-detail",
        "tools.call",
        "knowledge.retrieve",
    ];
    let other = json!({ "model": "b-chat", "tool": "b__add", "knowledge_base": "b-base" });
    let (answers, audit) = probe(&world, other).await;
    for function in of_a_resource {
        refused(&answers, &audit, function, "unauthorized");
        assert!(answers[function].contains("resources."), "it says where to grant it: {}", answers[function]);
    }
    let elsewhere = json!({ "action": "message.delete", "runner": "plugin:test/probe/default", "url": "https://example.com/" });
    let (others, others_audit) = probe(&world, elsewhere).await;
    for function in ["platform.request-action", "runs.start", "http.send"] {
        refused(&others, &others_audit, function, "unauthorized");
    }
    // `call-many` answers for each call by itself.
    assert!(answers["tools.call-many"].starts_with("error unauthorized"), "{}", answers["tools.call-many"]);

    let nowhere = json!({ "model": "no-model", "tool": "no__tool", "knowledge_base": "no-base" });
    let (answers, audit) = probe(&world, nowhere).await;
    for function in of_a_resource {
        refused(&answers, &audit, function, "not_found");
    }
    world.host.shutdown(agent_host_tests::world::PATIENCE).await;
}

#[tokio::test]
async fn artifacts_of_another_conversation_are_not_found() {
    let world = world(EVERYTHING, "").await;
    // A run elsewhere leaves an event and an artifact.
    let elsewhere = world.ended(world.send(in_conversation("elsewhere", "{}")).await).await;
    let created = elsewhere.events.iter().find(|event| event.kind == "artifact.created").unwrap();
    let artifact = created.data_value()["artifact"]["artifact_id"].as_str().unwrap().to_owned();
    let event = elsewhere.run.event_id.to_string();

    let names = json!({ "artifact": artifact, "event": event, "conversation": "elsewhere" });
    let (foreign, audit) = probe(&world, names).await;
    for function in ["artifacts.metadata", "artifacts.read-range", "artifacts.open", "events.get"] {
        refused(&foreign, &audit, function, "not_found");
    }
    for function in ["history.page", "history.search"] {
        refused(&foreign, &audit, function, "unauthorized");
    }

    // An id that never was looks just the same.
    let never = "01900000-0000-7000-8000-000000000000";
    let (missing, _) = probe(&world, json!({ "artifact": never, "event": never })).await;
    for (function, id) in [("artifacts.metadata", &artifact), ("artifacts.open", &artifact), ("events.get", &event)] {
        assert_eq!(missing[function].replace(never, "ID"), foreign[function].replace(id.as_str(), "ID"), "{function}");
    }
    world.host.shutdown(agent_host_tests::world::PATIENCE).await;
}

#[tokio::test]
async fn a_grant_is_frozen_when_the_run_is_created() {
    let world = world("", "").await;
    let ended = world.ended(world.send(in_conversation("c", "{}")).await).await;
    let terms: Value = serde_json::from_str(world.host.ledger().terms(ended.run.run_id).unwrap().unwrap().get()).unwrap();
    let grant = &terms["grant"];
    assert_eq!(grant["runner_id"], "plugin:test/probe/default");
    assert_eq!(grant["conversation"]["conversation"], "c");
    assert_eq!(grant["models"], json!(["a-chat", "a-embed", "a-rerank"]));
    assert_eq!(grant["tools"], json!(["a__add"]));
    assert_eq!(grant["knowledge_bases"], json!(["a-base"]));
    assert_eq!(grant["permissions"]["http_hosts"], json!([]), "reaching out is given by name");
    assert_eq!(
        grant["permissions"]["state"],
        json!(["conversation", "runner", "binding"]),
        "the event has no actor and no subject"
    );
    world.host.shutdown(agent_host_tests::world::PATIENCE).await;
}
