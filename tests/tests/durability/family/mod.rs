//! Runs that start others and look after them, and runs that take what comes while they are active.

use crate::support;

mod children;
mod steering;
mod trees;

use std::time::{Duration, Instant};

use agent_host_tests::world::PATIENCE;
use serde_json::{Value, json};

use crate::family::support::Host;

/// The permissions of a runner that starts children.
const RUNS: &str = r#"runs = ["start", "get", "list", "events", "cancel"]"#;

/// A host with the guest that starts children and takes input; each text goes into its section. Tables in `resources` come
/// after the binding.
fn family(limits: &str, binding: &str, resources: &str) -> Host {
    let config = format!(
        "[limits]\nmax_live_runs = 50\n{limits}\n[[bindings]]\nid = \"family\"\nrunner = \"plugin:test/family/default\"\n\
         max_attempts = 100\n{binding}\n[bindings.resources]\n{RUNS}\n{resources}"
    );
    Host::limited(&["family"], &config)
}

/// An event with a text, in a conversation or none.
fn message(conversation: Option<&str>, text: &str) -> Value {
    let mut event = json!({ "event_type": "message.received", "input": { "text": text } });
    if let Some(id) = conversation {
        event["conversation"] = json!({ "conversation_id": id });
    }
    event
}

/// Sends an event, and gives what is answered.
async fn post(host: &Host, event: &Value) -> (u16, Value) {
    let url = format!("{}/api/v1/events", *host.urls().borrow());
    let answer = reqwest::Client::new().post(url).json(event).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// Sends an event, and gives the ids of its runs.
async fn runs(host: &Host, event: &Value) -> Vec<String> {
    let (status, answer) = post(host, event).await;
    assert_eq!(status, 202, "{answer}");
    answer["runs"].as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap().to_owned()).collect()
}

/// The runs that a run has started, as people find them, oldest first.
async fn children_of(host: &Host, parent: &str) -> Vec<Value> {
    let page = host.get(&format!("/api/v1/runs?parent_run_id={parent}&limit=100")).await;
    let mut found = page["items"].as_array().unwrap().clone();
    found.reverse();
    found
}

/// Waits until the children of a run are so.
async fn until_children(host: &Host, parent: &str, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let began = Instant::now();
    loop {
        let found = children_of(host, parent).await;
        if is_so(&found) {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "it does not come to that: {found:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn statuses(runs: &[Value]) -> Vec<&str> {
    runs.iter().map(|run| text(run, "status")).collect()
}

fn ids(runs: &[Value]) -> Vec<&str> {
    runs.iter().map(|run| text(run, "run_id")).collect()
}

fn has_ended(run: &Value) -> bool {
    ["completed", "failed", "cancelled", "timeout"].contains(&text(run, "status"))
}
