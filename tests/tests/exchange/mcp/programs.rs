//! The client of the official TypeScript SDK, against the endpoint of a run.

use std::{path::Path, process::Stdio};

use agent_host_tests::{grants::EVERYTHING, npm, world::PATIENCE};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::mcp::{client::access, outside::ExecutorHost};

const STATE: &str = "state = { scopes = [\"runner\"] }";

/// Plays `client.mjs` against an endpoint; gives what the client has seen.
pub async fn play(scenario: &str, settings: &Value) -> Value {
    let modules = tokio::task::block_in_place(|| npm::packages("mcp-sdk", &["@modelcontextprotocol/sdk@1.32.2", "zod@4.1.13"]));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exchange/mcp/client.mjs");
    let mut node = Command::new("node");
    node.arg(script).arg(modules).arg(scenario).arg(settings.to_string());
    node.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = node.spawn().expect("install Node.js 20 or newer (https://nodejs.org)").wait_with_output();
    let output = tokio::time::timeout(PATIENCE, output).await.expect("the client comes to an end").unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_official_client_uses_the_endpoint_of_a_run() {
    let outside = ExecutorHost::with_tools("\"a__add\", \"a__wait\"", EVERYTHING, STATE, "", "").await;
    let held = outside.claimed_run().await;
    let (path, token) = access(&held);
    let url = format!("{}{path}", outside.host.urls().borrow().as_str());
    let settings = json!({ "url": url, "token": token });
    let asked = async {
        let asked = outside.host.until(&held.run, |event| event["type"] == "action.requested").await;
        let path = format!("/api/v1/actions/{}/respond", asked["data"]["action_id"].as_str().unwrap());
        outside.post(&path, "", &json!({ "decision": "submit", "answer": "blue" })).await
    };
    let (seen, (status, _)) = tokio::join!(play("run", &settings), asked);
    assert_eq!(status, 200);
    assert_eq!(seen["server"]["name"], "agent-host", "{seen:#}");
    assert!(seen["tools"].as_array().unwrap().contains(&json!("a__add")), "{seen:#}");
    assert_eq!(seen["sum"]["structuredContent"], json!({ "sum": 5 }));
    assert_eq!(seen["asked"]["structuredContent"], json!({ "outcome": "submitted", "answer": "blue" }));
    assert!(seen["progress"].as_array().unwrap().len() >= 2, "{seen:#}");
    assert_eq!(seen["read"], "kept by the client");
    assert_eq!(seen["unknown"]["code"], -32602, "{seen:#}");
    assert_eq!(seen["refused"]["structuredContent"]["error"]["code"], "invalid_argument", "{seen:#}");
    outside.complete(&held).await;
    outside.host.check();
}
