//! The example configurations, and programs of the preset `command`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use agent_host_runs::Config;
use agent_host_tests::support::Host;
use serde_json::json;

use super::{binding, said};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../example-runners/harnesses").canonicalize().unwrap()
}

#[test]
fn each_preset_has_an_example_whose_binding_names_its_harness() {
    let mut presets = BTreeSet::new();
    for file in fs::read_dir(examples()).unwrap().flatten().map(|entry| entry.path()) {
        if file.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let config = Config::parse(&text, &examples()).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let ([harness], [binding]) = (config.harnesses.as_slice(), config.bindings.as_slice()) else {
            panic!("{}", file.display())
        };
        assert_eq!(harness.id, binding.runner, "{}", file.display());
        presets.insert(serde_json::to_value(harness.preset).unwrap().as_str().unwrap().to_owned());
    }
    let all = ["acp", "claude-code", "codex", "command", "gemini", "kimi", "opencode", "pi"];
    assert_eq!(presets.iter().map(String::as_str).collect::<Vec<_>>(), all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_example_of_a_program_answers_two_messages_of_one_session() {
    let text = fs::read_to_string(examples().join("command.toml")).unwrap();
    let (_, config) = text.split_once("loopback_without_key = true\n").unwrap();
    let program = examples().join("answer.py");
    let host = Host::start(&[], &config.replace("\"./answer.py\"", &format!("{program:?}")));
    let ended = said(&host, "hello").await.completed();
    assert_eq!(ended.message_texts(), ["Message 1: hello"], "{ended}");
    let ended = said(&host, "again").await.completed();
    assert_eq!(ended.message_texts(), ["Message 2: again"], "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_agent_claims_no_fact_of_the_host() {
    let claims = [
        json!({ "type": "model.call.started", "data": { "call_id": "m1", "model_id": "expensive" } }),
        json!({ "type": "action.answered", "data": { "action_id": "a1", "decision": "approve" } }),
        json!({ "type": "run.status", "data": { "status": "completed", "reason": "claimed" } }),
        json!({ "type": "acme.progress", "data": { "percent": 50 } }),
        json!({ "type": "message.completed", "data": { "message": { "role": "assistant", "content": "hello" } } }),
    ];
    let script: String = claims.iter().map(|claim| format!("echo '{claim}'\n")).collect();
    let runner = "plugin:test/liar/default";
    let harness = format!("[[harnesses]]\nid = \"{runner}\"\npreset = \"command\"\ncommand = [\"sh\", \"-c\", {script:?}]\n");
    let host = Host::start(&[], &format!("{harness}{}", binding(runner)));
    let ended = said(&host, "go").await.completed();
    assert_eq!(ended.message_texts(), ["hello"], "{ended}");
    assert_eq!(ended.of("acme.progress").len(), 1, "{ended}");
    assert!(ended.of("model.call.started").is_empty() && ended.of("action.answered").is_empty(), "{ended}");
    assert!(ended.statuses("claimed").is_empty(), "{ended}");
    let said = ended.events.iter().filter(|event| event["source"] == "executor").map(|event| &event["type"]);
    let kinds: BTreeSet<&str> = said.filter_map(|kind| kind.as_str()).collect();
    assert!(kinds.contains("acme.progress") && kinds.contains("message.completed"), "{ended}");
    host.check();
}
