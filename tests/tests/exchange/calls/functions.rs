//! Every function of the contract, granted and not.

use std::{collections::BTreeMap, fs, path::Path};

use agent_host_tests::grants::{EVERYTHING, NOTHING};
use serde_json::{Value, json};

use crate::calls::outside::{ClaimedRun, ExecutorHost};

/// The functions of the contract that an executor calls by name, read from the contract, so that one that is added cannot be
/// forgotten. Handles have no names here: what they give is answered whole, or by a route of its own.
fn contract() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit/capabilities.wit");
    let (mut interface, mut in_resource, mut functions) = (String::new(), false, Vec::new());
    for line in fs::read_to_string(path).unwrap().lines() {
        let code = line.trim();
        if let Some(name) = line.strip_prefix("interface ") {
            interface = name.trim_end_matches(" {").to_owned();
        } else if code.starts_with("resource ") {
            in_resource = true;
        } else if code == "}" {
            in_resource = false;
        } else if let Some((name, _)) = code.split_once(": func(")
            && !in_resource
        {
            functions.push(format!("{interface}.{}", name.trim_start_matches('%')));
        }
    }
    // A program has its own clock, and content has routes of its own.
    functions.retain(|function| !function.starts_with("timers.") && function != "artifacts.open");
    assert_eq!(functions.len(), 35, "{functions:?}");
    functions
}

/// Arguments of each that work. `artifact`, `event` and `child` are ids of such.
fn arguments(url: &str, artifact: &str, event: &str, child: &str) -> BTreeMap<&'static str, Value> {
    let message = json!({ "role": "user", "content": "hello" });
    let request = json!({ "messages": [message], "extra_args": { "temperature": 0 } });
    let tool = json!({ "call_id": "1", "tool_name": "a__add", "parameters": { "a": 1, "b": 2 } });
    [
        ("models.invoke", json!({ "model_id": "a-chat", "request": request })),
        ("models.stream", json!({ "model_id": "a-chat", "request": request })),
        ("models.rerank", json!({ "model_id": "a-rerank", "query": "q", "documents": ["a", "b"], "top_k": 1 })),
        ("models.embed", json!({ "model_id": "a-embed", "texts": ["a"] })),
        ("models.count-tokens", json!({ "model_id": "a-chat", "messages": [message] })),
        ("tools.get-detail", json!({ "tool_name": "a__add" })),
        ("tools.call", tool.clone()),
        ("tools.call-many", json!({ "calls": [tool] })),
        ("knowledge.list", json!({})),
        ("knowledge.retrieve", json!({ "kb_id": "a-base", "query": "q", "top_k": 3 })),
        ("history.page", json!({ "limit": 10 })),
        ("history.search", json!({ "query": "hello", "top_k": 5, "filters": { "roles": ["user"] } })),
        ("events.get", json!({ "event_id": event })),
        ("events.page", json!({ "event_types": ["message.received"] })),
        ("artifacts.create", json!({ "media_type": "text/plain", "name": "a.txt", "content": "aGVsbG8=" })),
        ("artifacts.metadata", json!({ "artifact_id": artifact })),
        ("artifacts.read-range", json!({ "artifact_id": artifact, "offset": 1, "length": 3 })),
        ("state.set", json!({ "scope": "runner", "key": "k", "value": { "a": 1.5 } })),
        ("state.get", json!({ "scope": "runner", "key": "k" })),
        ("state.list-keys", json!({ "scope": "runner" })),
        ("state.delete", json!({ "scope": "runner", "key": "k" })),
        ("storage.set", json!({ "area": "plugin", "key": "k", "value": "AAEC" })),
        ("storage.get", json!({ "area": "plugin", "key": "k" })),
        ("storage.list", json!({ "area": "plugin", "prefix": "k" })),
        ("storage.delete", json!({ "area": "plugin", "key": "k" })),
        ("platform.request-action", json!({ "action": "message.edit", "target": { "id": 1 }, "payload": { "text": "x" } })),
        ("interactions.ask", json!({ "kind": "confirmation", "title": "Shall I?" })),
        ("steering.pull", json!({ "limit": 5 })),
        (
            "runs.start",
            json!({ "runner_id": "plugin:test/steps/default", "input": { "text": "sleep 60000" }, "objective": "to see" }),
        ),
        ("runs.wait-any", json!({ "run_ids": [child], "wait_ms": 10 })),
        ("runs.get", json!({ "run_id": child })),
        ("runs.list", json!({})),
        ("runs.events-page", json!({ "run_id": child, "limit": 10 })),
        ("runs.cancel", json!({ "run_id": child, "reason": "enough" })),
        ("http.send", json!({ "method": "POST", "url": url, "headers": [["x-a", "b"]], "text": "hello" })),
    ]
    .into_iter()
    .collect()
}

/// Says yes to the one question that is open.
async fn confirm(outside: &ExecutorHost, held: &ClaimedRun) {
    let asked = outside.host.until(&held.run, |event| event["type"] == "action.requested" && event["data"]["kind"] == "question");
    let id = asked.await["data"]["action_id"].as_str().unwrap().to_owned();
    let (status, response) = outside.post(&format!("/api/v1/actions/{id}/respond"), "", &json!({ "decision": "submit" })).await;
    assert_eq!(status, 200, "{response:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn granted_functions_answer_as_the_contract_says() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let event = held.answer["run"]["event_id"].as_str().unwrap();
    let first = arguments("", "", event, "");
    let artifact = outside.answered(&held, "artifacts.create", first["artifacts.create"].clone()).await;
    let child = outside.answered(&held, "runs.start", first["runs.start"].clone()).await;
    let (artifact, child) = (artifact["artifact_id"].as_str().unwrap(), child["run_id"].as_str().unwrap());
    let all = arguments(&outside.url, artifact, event, child);
    let mut answers = BTreeMap::new();
    // Each after what it needs: the contract has `get` before `set`.
    let mut order = contract();
    order.sort_by_key(|function| match function.split_once('.').unwrap().1 {
        "set" | "create" => 0,
        "delete" | "cancel" => 2,
        _ => 1,
    });
    for function in &order {
        let arguments = all.get(function.as_str()).unwrap_or_else(|| panic!("{function} is new: say here how it is called"));
        let (answer, ()) = tokio::join!(outside.call(&held, function, arguments), async {
            if function == "interactions.ask" {
                confirm(&outside, &held).await;
            }
        });
        assert_eq!(answer.0, 200, "{function}: {:#}", answer.1);
        answers.insert(function.clone(), answer.1);
    }
    let answer = |function: &str| answers[function].clone();
    assert_eq!(answer("models.invoke")["message"]["content"], "a scripted answer in some words");
    assert_eq!(answer("models.rerank")["hits"].as_array().unwrap().len(), 1);
    assert_eq!(answer("models.embed")["vectors"].as_array().unwrap().len(), 1);
    assert!(answer("models.count-tokens")["tokens"].as_u64().unwrap() > 0);
    assert_eq!(answer("tools.get-detail")["name"], "a__add");
    assert_eq!(answer("tools.call")["is_error"], false);
    assert_eq!(answer("tools.call-many")["outcomes"][0]["output"]["is_error"], false, "{}", answer("tools.call-many"));
    assert_eq!(answer("knowledge.list")["items"][0]["kb_id"], "a-base");
    assert_eq!(answer("knowledge.retrieve"), json!({ "hits": [] }));
    // Calls of tools and their results are items as well.
    let history = answer("history.page");
    let message = history["items"].as_array().unwrap().iter().find(|item| item["role"] == "user").unwrap();
    assert_eq!(message["content"], "hello from a person");
    assert_eq!(answer("history.search")["items"][0]["content"], "hello from a person");
    assert_eq!(answer("events.get")["event_id"], event);
    assert_eq!(answer("events.page")["items"][0]["event_id"], event);
    assert_eq!(answer("artifacts.metadata")["size"], 5);
    assert_eq!(answer("artifacts.read-range"), json!({ "content": "ZWxs" }));
    assert_eq!(answer("state.get"), json!({ "value": { "a": 1.5 } }));
    assert_eq!(answer("state.list-keys"), json!({ "keys": ["k"] }));
    assert_eq!(answer("storage.get"), json!({ "value": "AAEC" }));
    assert_eq!(answer("storage.list"), json!({ "keys": ["k"] }));
    assert_eq!(answer("state.set"), json!({}));
    assert_eq!(answer("platform.request-action")["outcome"], "executed");
    assert_eq!(answer("interactions.ask"), json!({ "outcome": "submitted", "answer": true }));
    assert_eq!(answer("steering.pull"), json!({ "inputs": [] }));
    assert_eq!(answer("runs.wait-any"), json!({ "run": null }));
    assert_eq!(answer("runs.get")["parent_run_id"], held.run);
    assert_eq!(answer("runs.list")["items"].as_array().unwrap().len(), 2);
    assert_eq!((&answer("http.send")["status"], &answer("http.send")["text"]), (&json!(200), &json!("{}")));
    // A deleted value is absent, which differs from `null`.
    assert_eq!(outside.answered(&held, "state.get", all["state.get"].clone()).await, json!({}));
    assert_eq!(outside.answered(&held, "storage.get", all["storage.get"].clone()).await, json!({}));
    outside.complete(&held).await;
    let audit = outside.audit(&held.run).await;
    for function in contract() {
        assert!(audit.contains(&(function.clone(), "ok".to_owned())), "{function} left no record");
    }
    let ended = outside.host.ended(&held.run).await;
    assert_eq!(ended.run["status"], "completed");
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_empty_grant_opens_nothing() {
    let outside = ExecutorHost::new(NOTHING, "state = { scopes = [] }").await;
    let held = outside.claimed_run().await;
    let all = arguments("http://127.0.0.1:1/", "a", "e", "r");
    for function in contract() {
        let problem = outside.refused(&held, &function, all[function.as_str()].clone(), 403, "unauthorized").await;
        assert_eq!(problem["retryable"], false);
    }
    // A refused interface does not parse the request.
    outside.refused(&held, "models.invoke", json!({ "nonsense": 1 }), 403, "unauthorized").await;
    let content = outside.request(reqwest::Method::GET, &held.path("/calls/artifacts/a"), &held.token).send().await.unwrap();
    assert_eq!(content.status(), 403);
    let upload =
        outside.request(reqwest::Method::POST, &held.path("/calls/artifacts"), &held.token).body("x").send().await.unwrap();
    assert_eq!(upload.status(), 403);
    outside.complete(&held).await;
    let audit = outside.audit(&held.run).await;
    for function in contract().into_iter().chain(["artifacts.open".to_owned()]) {
        assert!(audit.contains(&(function.clone(), "unauthorized".to_owned())), "{function} left no record of its refusal");
    }
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_resource_that_is_not_granted_is_refused_and_one_that_is_not_there_is_not_found() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let request = json!({ "messages": [{ "role": "user", "content": "a" }] });
    let invoke = |model: &str| json!({ "model_id": model, "request": request });
    let refused = outside.refused(&held, "models.invoke", invoke("b-chat"), 403, "unauthorized").await;
    assert!(refused["detail"].as_str().unwrap().contains("resources.model_ids"), "{refused:#}");
    outside.refused(&held, "models.invoke", invoke("nobody"), 404, "not_found").await;
    outside.refused(&held, "models.stream", invoke("nobody"), 404, "not_found").await;
    outside.refused(&held, "tools.get-detail", json!({ "tool_name": "no__tool" }), 404, "not_found").await;
    outside.refused(&held, "history.page", json!({ "conversation_id": "elsewhere" }), 403, "unauthorized").await;
    let nobody = "01890a5d-ac96-774b-bcce-b302099a8057";
    outside.refused(&held, "runs.get", json!({ "run_id": nobody }), 404, "not_found").await;
    outside.refused(&held, "http.send", json!({ "method": "GET", "url": "https://example.com/" }), 403, "unauthorized").await;
    let many = json!({ "calls": [{ "call_id": "1", "tool_name": "no__tool", "parameters": {} }] });
    let outcomes = outside.answered(&held, "tools.call-many", many).await;
    assert_eq!(outcomes["outcomes"][0]["error"]["code"], "not_found", "{outcomes:#}");
    outside.complete(&held).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_come_side_by_side_and_none_is_taken_for_another() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let start =
        json!({ "runner_id": "plugin:test/steps/default", "input": { "text": "sleep 60000" }, "objective": "one of many" });
    let children = futures_util::future::join_all((0..8).map(|_| outside.answered(&held, "runs.start", start.clone()))).await;
    let ids: std::collections::BTreeSet<_> = children.iter().map(|child| child["run_id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 8, "each call has started a run of its own");
    let sets =
        (0..20).map(|n| outside.answered(&held, "state.set", json!({ "scope": "runner", "key": format!("k{n}"), "value": n })));
    futures_util::future::join_all(sets).await;
    let keys = outside.answered(&held, "state.list-keys", json!({ "scope": "runner", "limit": 100 })).await;
    assert_eq!(keys["keys"].as_array().unwrap().len(), 20);
    outside.complete(&held).await;
    for child in ids {
        outside.host.until_status(child, "cancelled").await;
    }
    outside.host.check();
}
