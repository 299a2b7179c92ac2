//! Every function of the contract, called by a real guest: granted, not granted, and recorded.

use std::collections::BTreeMap;

use agent_host_protocol::Interface;
use agent_host_runs::{BindingConfig, ResourcePolicy};
use agent_host_tests::{
    World,
    world::{bound, in_conversation, limits},
};
use serde_json::Value;

const PROBE: &str = "plugin:test/probe/default";

/// The functions of the contract, read from the contract, so that one that is added cannot be forgotten here.
/// Methods of resources are left out: nobody has the resource.
fn contract() -> Vec<String> {
    let mut functions = Vec::new();
    for file in ["capabilities", "results"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit").join(file).with_extension("wit");
        let (mut interface, mut in_resource) = (String::new(), false);
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let code = line.trim();
            if let Some(name) = line.strip_prefix("interface ") {
                interface = name.trim_end_matches(" {").to_owned();
            } else if code.starts_with("resource ") {
                in_resource = true;
            } else if code == "}" {
                in_resource = false;
            } else if let Some((name, _)) = code.split_once(": func(").filter(|_| !in_resource) {
                functions.push(format!("{interface}.{}", name.trim_start_matches('%')));
            }
        }
    }
    assert!(functions.len() > 30, "the contract was not read: {functions:?}");
    functions
}

async fn probed(binding: BindingConfig) -> (BTreeMap<String, String>, Vec<agent_host_ledger::AuditRecord>) {
    let world = World::with(&["probe"], limits(), vec![binding]).await;
    let ended = world.ended(world.send(in_conversation("c", "probe")).await).await;
    let said: Value = serde_json::from_str(&ended.said()).unwrap_or_else(|error| panic!("{error}: {ended:#?}"));
    let answers = said
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, answer)| (name.clone(), answer.as_str().unwrap_or_default().to_owned()))
        .collect();
    let audit = world.host.ledger().audit_page(Some(ended.run.run_id), None, 100).unwrap().items;
    (answers, audit)
}

/// What works in this build, behind the gate.
const WORKS: [&str; 8] =
    ["results.emit", "log.write", "history.page", "state.get", "state.set", "state.delete", "state.list-keys", "timers.now"];

#[tokio::test]
async fn what_is_granted_works_or_says_that_it_is_not_here_yet() {
    let everything = ResourcePolicy {
        runs: Some(agent_host_protocol::manifest::RunOperation::ALL.to_vec()),
        storage: Some(agent_host_protocol::manifest::StorageArea::ALL.to_vec()),
        ..ResourcePolicy::default()
    };
    let (answers, audit) = probed(BindingConfig { resources: everything, ..bound(PROBE) }).await;
    for function in contract() {
        let answer = answers.get(&function).unwrap_or_else(|| panic!("the probe does not call {function}: {answers:#?}"));
        let interface = function.split('.').next().unwrap();
        if WORKS.contains(&function.as_str()) {
            assert_eq!(answer, "ok", "{function}");
        } else if ["platform", "http"].contains(&interface) {
            assert!(answer.starts_with("error unauthorized"), "{function}: {answer}");
        } else {
            assert!(
                answer.starts_with("error runtime_error") && answer.contains("not available in this build"),
                "{function}: {answer}"
            );
            assert!(
                audit.iter().any(|record| record.action == function && record.outcome == "runtime_error"),
                "{function} left no record"
            );
        }
    }
}

#[tokio::test]
async fn what_is_not_granted_is_refused_and_recorded() {
    let nothing = ResourcePolicy {
        models: Some(vec![]),
        tools: Some(vec![]),
        knowledge_bases: Some(vec![]),
        history: Some(vec![]),
        events: Some(vec![]),
        artifacts: Some(vec![]),
        storage: Some(vec![]),
        interactions: Some(false),
        steering: Some(false),
        ..ResourcePolicy::default()
    };
    let no_state = Some(serde_json::from_str(r#"{"scopes":[]}"#).unwrap());
    let (answers, audit) = probed(BindingConfig { resources: nothing, state: no_state, ..bound(PROBE) }).await;
    for function in contract() {
        let answer = &answers[&function];
        let interface = function.split('.').next().unwrap();
        // What every run has.
        if ["results", "log", "timers"].contains(&interface) {
            continue;
        }
        assert!(Interface::from_name(interface).is_some(), "{interface} is not an interface that a grant can give");
        assert!(answer.starts_with("error unauthorized"), "{function}: {answer}");
        assert!(
            audit.iter().any(|record| record.action == function && record.outcome == "unauthorized"),
            "{function} left no record"
        );
    }
}

#[tokio::test]
async fn a_grant_is_frozen_when_the_run_is_created() {
    let world = World::with(&["probe"], limits(), vec![bound(PROBE)]).await;
    let ended = world.ended(world.send(in_conversation("c", "probe")).await).await;
    let terms: Value = serde_json::from_str(world.host.ledger().terms(ended.run.run_id).unwrap().unwrap().get()).unwrap();
    assert_eq!(terms["grant"]["runner_id"], PROBE);
    assert_eq!(terms["grant"]["conversation"]["conversation"], "c");
    assert_eq!(terms["grant"]["permissions"]["http_hosts"], serde_json::json!([]), "reaching out is given by name");
    assert_eq!(
        terms["grant"]["permissions"]["state"],
        serde_json::json!(["conversation", "runner", "binding"]),
        "the event has no actor and no subject"
    );
}
