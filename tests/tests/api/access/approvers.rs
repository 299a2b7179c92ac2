//! Approvers: the people who answer actions.

use serde_json::json;

use crate::access::support::Guarded;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_key_answers_under_its_own_name_and_is_no_approver() {
    let secrets = tempfile::tempdir().unwrap();
    let token = secrets.path().join("alice");
    std::fs::write(&token, "alice-token").unwrap();
    let config = format!(
        r#"
[[approvers]]
id = "alice"
token = {{ file = {token:?} }}

[[bindings]]
id = "ruled"
runner = "plugin:test/asks/default"
match = {{ event_type = "message.ruled" }}
approvals = [{{ action = "interactions.ask", policy = "ask", approvers = ["alice"] }}]

[[bindings]]
id = "asks"
runner = "plugin:test/asks/default"
match = {{ event_type = "message.received" }}
"#
    );
    let host = Guarded::small(&["asks"], "", &config);
    let alice = "alice-token";
    let submit = json!({ "decision": "submit", "answer": "Ada" });
    let answerer = host.key(&["actions:respond"], None).await;
    // Called as the approver is called, which changes nothing.
    let (_, namesake) = host.key_like(json!({ "name": "alice", "scopes": ["actions:respond"] })).await;
    let reader = host.key(&["runs:read"], None).await;

    let ask = async |event_type: &str| {
        let event = json!({ "event_type": event_type, "input": { "text": "ask form - name" } });
        let accepted = host.post(&host.root, "/api/v1/events", &event).await.good();
        let run = accepted["runs"][0]["run_id"].as_str().unwrap().to_owned();
        host.until(&run, "waiting").await;
        let actions = host.get(&reader, &format!("/api/v1/runs/{run}/actions")).await.good();
        format!("/api/v1/actions/{}/respond", actions["items"][0]["action_id"].as_str().unwrap())
    };
    let free = ask("message.received").await;
    host.ask(None, reqwest::Method::POST, &free, Some(&submit)).await.is(401, "unauthenticated");
    host.post(&reader, &free, &submit).await.is(403, "forbidden");
    let answered = host.post(&answerer, &free, &submit).await.good();
    assert_eq!(answered["answered"]["by"], "key:test");

    let ruled = ask("message.ruled").await;
    for key in [&answerer, &namesake, &host.root] {
        host.post(key, &ruled, &submit).await.is(403, "forbidden");
    }
    // An approver answers, and does nothing else.
    host.get(alice, "/api/v1/runs").await.is(403, "forbidden");
    host.get(alice, ruled.trim_end_matches("/respond")).await.is(403, "forbidden");
    let answered = host.post(alice, &ruled, &submit).await.good();
    assert_eq!(answered["answered"]["by"], "alice");
}
