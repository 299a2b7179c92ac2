//! Tools: those that were granted, and functions of the host.

use agent_host_tests::grants::{EVERYTHING, NOTHING};
use serde_json::{Value, json};

use crate::mcp::{
    client::Client,
    outside::{ClaimedRun, ExecutorHost},
};

const STATE: &str = "state = { scopes = [\"conversation\", \"runner\"] }";

/// The functions of the host, in their order.
const FUNCTIONS: [&str; 12] = [
    "knowledge_retrieve",
    "history_page",
    "history_search",
    "event_get",
    "state_get",
    "state_set",
    "artifact_read",
    "artifact_create",
    "ask_user",
    "request_action",
    "start_agent",
    "wait_agent",
];

async fn everything() -> (ExecutorHost, ClaimedRun) {
    let outside = ExecutorHost::with_tools("\"a__add\", \"a__wait\", \"a__fail\"", EVERYTHING, STATE, "", "").await;
    let held = outside.claimed_run().await;
    (outside, held)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_is_shown_what_it_was_granted_and_its_calls_are_in_the_audit() {
    let (outside, held) = everything().await;
    let mut client = Client::new(&outside, &held);
    let info = client.initialize().await;
    assert_eq!(info["serverInfo"]["name"], "agent-host");
    assert!(info["capabilities"]["tools"].is_object() && info["capabilities"]["resources"].is_object(), "{info:#}");
    assert!(info["capabilities"].get("prompts").is_none(), "there is no skill: {info:#}");

    let answered = client.request("tools/list", json!({})).await;
    let tools = answered.result()["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let granted = ["a__add", "a__fail", "a__wait"];
    assert_eq!(names, granted.into_iter().chain(FUNCTIONS).collect::<Vec<_>>());
    assert_eq!(tools[0]["inputSchema"]["required"], json!(["a", "b"]));
    assert_eq!(tools[0]["annotations"]["readOnlyHint"], true);
    let named = |name: &str| tools.iter().find(|tool| tool["name"] == name).unwrap();
    assert_eq!(named("knowledge_retrieve")["inputSchema"]["properties"]["kb_id"]["enum"], json!(["a-base"]));
    assert_eq!(named("state_get")["inputSchema"]["properties"]["scope"]["enum"], json!(["conversation", "runner"]));

    let answered = client.call("a__add", json!({ "a": 2, "b": 3 })).await;
    assert_eq!(answered.result()["content"], json!([{ "type": "text", "text": "5" }]));
    assert_eq!(answered.result()["structuredContent"], json!({ "sum": 5.0 }));
    // A failure that the tool reports is its result.
    let answered = client.call("a__fail", json!({})).await;
    assert_eq!(
        (&answered.result()["isError"], &answered.result()["content"][0]["text"]),
        (&json!(true), &json!("it did not work"))
    );

    client.done("state_set", json!({ "scope": "conversation", "key": "k", "value": { "n": 1.5 } })).await;
    let value = client.done("state_get", json!({ "scope": "conversation", "key": "k" })).await;
    assert_eq!(value, json!({ "value": { "n": 1.5 } }));
    let page = client.done("history_page", json!({ "limit": 1, "direction": "forward" })).await;
    assert_eq!(page["items"][0]["content"], "hello from a person", "{page:#}");
    let event = held.answer["run"]["event_id"].as_str().unwrap();
    assert_eq!(client.done("event_get", json!({ "event_id": event })).await["event_id"], event);
    let passages = client.done("knowledge_retrieve", json!({ "kb_id": "a-base", "query": "x" })).await;
    assert_eq!(passages["hits"], json!([]));
    assert_eq!(client.done("history_search", json!({ "query": "hello" })).await["items"].as_array().unwrap().len(), 1);
    let action = json!({ "action": "message.edit", "payload": { "text": "x" } });
    assert_eq!(client.done("request_action", action).await["outcome"], "executed");

    let audit = outside.audit(&held.run).await;
    for called in ["tools.call", "state.set", "state.get", "history.page", "events.get", "platform.request-action"] {
        assert!(audit.iter().any(|(action, outcome)| action == called && outcome == "ok"), "{called}: {audit:?}");
    }
    outside.complete(&held).await;
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_not_granted_is_not_there_and_the_gate_says_so() {
    let outside = ExecutorHost::new(NOTHING, "state = { scopes = [] }").await;
    let held = outside.claimed_run().await;
    let client = Client::open(&outside, &held).await;
    assert_eq!(client.tools().await, [] as [&str; 0]);
    for name in FUNCTIONS.into_iter().chain(["a__add", "a__tell", "nonsense", "tools.call"]) {
        let arguments = json!({ "scope": "runner", "key": "k", "media_type": "text/plain", "text": "x", "artifact_id": "a",
            "title": "t", "runner_id": "r", "run_ids": ["r"] });
        let arguments = match name {
            "artifact_read" => json!({ "artifact_id": "a" }),
            "artifact_create" => json!({ "media_type": "text/plain", "text": "x" }),
            "ask_user" => json!({ "title": "t" }),
            "start_agent" => json!({ "runner_id": "r", "text": "t" }),
            _ => arguments,
        };
        let answered = client.call(name, arguments).await;
        assert_eq!(answered.code(), (-32602, "unauthorized"), "{name}: {:#}", answered.response);
    }
    let resources = client.request("resources/list", json!({})).await;
    assert_eq!(resources.result()["resources"], json!([]));
    let read = client.request("resources/read", json!({ "uri": "artifact://a" })).await;
    assert_eq!(read.code(), (-32602, "unauthorized"));
    let prompt = client.request("prompts/get", json!({ "name": "pdf" })).await;
    assert_eq!(prompt.code(), (-32602, "not_found"));
    let audit = outside.audit(&held.run).await;
    let refused = |called: &str| audit.iter().filter(|(action, outcome)| action == called && outcome == "unauthorized").count();
    assert_eq!((refused("tools.call"), refused("state.set"), refused("interactions.ask")), (4, 1, 1), "{audit:?}");
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn refusals_of_a_granted_tool_are_results_with_the_code_of_the_host() {
    let (outside, held) = everything().await;
    let client = Client::open(&outside, &held).await;
    for (name, arguments, code) in [
        ("state_get", json!({ "scope": "runner" }), "invalid_argument"),
        ("state_get", json!({ "scope": "actor", "key": "k" }), "unauthorized"),
        ("state_get", json!({ "scope": "runner", "key": "k", "more": 1 }), "invalid_argument"),
        ("event_get", json!({ "event_id": "nonsense" }), "not_found"),
        ("artifact_create", json!({ "media_type": "text/plain" }), "invalid_argument"),
        ("artifact_create", json!({ "media_type": "text/plain", "content": "%" }), "invalid_argument"),
        ("artifact_read", json!({ "artifact_id": "nonsense" }), "not_found"),
        ("start_agent", json!({ "runner_id": "plugin:test/none/default", "text": "x" }), "unauthorized"),
        ("wait_agent", json!({ "run_ids": [held.run] }), "not_found"),
        ("ask_user", json!({ "title": "" }), "invalid_argument"),
        ("request_action", json!({ "action": "message.delete" }), "unauthorized"),
        ("knowledge_retrieve", json!({ "kb_id": "a-base", "query": "x", "top_k": 100_000 }), "invalid_argument"),
    ] {
        let answered = client.call(name, arguments.clone()).await;
        assert_eq!(answered.refusal(), code, "{name} {arguments}: {:#}", answered.response);
    }
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn progress_of_a_tool_reaches_a_client_that_asks_for_it() {
    let (outside, held) = everything().await;
    let client = Client::open(&outside, &held).await;
    let quiet = client.call("a__wait", json!({ "ms": 40 })).await;
    assert_eq!(quiet.notifications, [] as [Value; 0]);
    let params = json!({ "name": "a__wait", "arguments": { "ms": 400 }, "_meta": { "progressToken": "p1" } });
    let answered = client.request("tools/call", params).await;
    assert_eq!(answered.result()["content"][0]["text"], "done");
    let said: Vec<_> = answered.notifications.iter().map(|said| &said["params"]).collect();
    assert!(said.len() >= 2, "{said:#?}");
    for said in &said {
        assert_eq!((&said["progressToken"], &said["total"]), (&json!("p1"), &json!(4.0)), "{said:#}");
        assert!(said["message"].as_str().unwrap().starts_with("step "), "{said:#}");
    }
    let progress: Vec<_> = said.iter().map(|said| said["progress"].as_f64().unwrap()).collect();
    assert!(progress.windows(2).all(|pair| pair[0] < pair[1]), "{progress:?}");
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_person_answers_and_a_client_withdraws_its_question() {
    let (outside, held) = everything().await;
    let client = Client::open(&outside, &held).await;
    let schema = json!({ "type": "object", "properties": { "colour": { "type": "string" } } });
    let question = json!({ "title": "Which colour?", "answer_schema": schema, "wait_ms": 600_000 });
    let (answered, ()) = tokio::join!(client.call("ask_user", question.clone()), async {
        let asked = outside.host.until(&held.run, |event| event["type"] == "action.requested").await;
        assert_eq!(asked["data"]["title"], "Which colour?", "{asked:#}");
        let path = format!("/api/v1/actions/{}/respond", asked["data"]["action_id"].as_str().unwrap());
        let answer = json!({ "decision": "submit", "answer": { "colour": "blue" } });
        let (status, answer) = outside.post(&path, "", &answer).await;
        assert_eq!(status, 200, "{answer:#}");
    });
    assert_eq!(answered.result()["structuredContent"], json!({ "outcome": "submitted", "answer": { "colour": "blue" } }));

    let id = client.id();
    let asking = client.http(reqwest::Method::POST).json(&json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": { "name": "ask_user", "arguments": { "title": "And the size?" } } }));
    let asking = tokio::spawn(asking.send());
    outside.host.until(&held.run, |event| event["type"] == "action.requested" && event["data"]["title"] == "And the size?").await;
    client.notify("notifications/cancelled", json!({ "requestId": id, "reason": "not needed" })).await;
    let withdrawn = outside.host.until(&held.run, |event| event["data"]["outcome"] == "cancelled").await;
    assert_eq!(withdrawn["type"], "action.resolved", "{withdrawn:#}");
    assert_eq!(asking.await.unwrap().unwrap().status(), 200);
    // The session is still good.
    assert_eq!(client.done("state_get", json!({ "scope": "runner", "key": "none" })).await, json!({}));
    outside.complete(&held).await;
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_agent_is_started_and_waited_for() {
    let (outside, held) = everything().await;
    let client = Client::open(&outside, &held).await;
    let task = json!({ "runner_id": "plugin:test/steps/default", "text": "sleep 300; say done by another" });
    let started = client.done("start_agent", task).await;
    let child = started["run_id"].as_str().unwrap_or_else(|| panic!("{started:#}"));
    let ended = client.done("wait_agent", json!({ "run_ids": [child] })).await;
    assert_eq!((&ended["run"]["run_id"], &ended["run"]["status"]), (&json!(child), &json!("completed")), "{ended:#}");
    assert_eq!(ended["output"], json!("[null,\"done by another\"]"), "the last message: {ended:#}");
    outside.complete(&held).await;
    outside.host.check();
}
