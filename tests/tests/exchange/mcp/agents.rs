//! The agents of a host as tools, for who has a key.

use agent_host_tests::world::PATIENCE;
use reqwest::Method;
use serde_json::{Value, json};

use crate::mcp::{
    client::{Client, messages},
    programs::play,
    support::Host,
};

const CONFIG: &str = r#"
[[bindings]]
id = "echo"
runner = "plugin:agent-host/echo/default"
match = { event_type = "nothing" }

[[bindings]]
id = "steps"
runner = "plugin:test/steps/default"
match = { event_type = "nothing" }

[[bindings]]
id = "asks"
runner = "plugin:test/asks/default"
match = { event_type = "nothing" }
resources = { platform_api = ["message.send"] }

[[bindings]]
id = "stage"
runner = "plugin:test/stage/default"
match = { event_type = "nothing" }
"#;

fn host() -> Host {
    Host::limited(&["echo", "steps", "asks", "stage"], CONFIG)
}

async fn session(host: &Host, token: &str) -> Client {
    let mut client = Client::at(host, "/mcp", token);
    client.initialize().await;
    client
}

/// A key with these scopes.
async fn key(host: &Host, scopes: &[&str], workspace: Option<&str>) -> String {
    let key = json!({ "name": "tests", "scopes": scopes, "workspace": workspace });
    let answer = reqwest::Client::new().post(format!("{}/api/v1/keys", *host.urls().borrow())).json(&key).send().await.unwrap();
    assert_eq!(answer.status(), 201);
    answer.json::<Value>().await.unwrap()["token"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_agent_answers_as_a_tool_and_goes_on_with_its_conversation() {
    let host = host();
    let client = session(&host, "").await;
    let listed = client.request("tools/list", json!({})).await;
    let tools = listed.result()["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["echo", "steps", "asks", "stage"]);
    assert!(tools[2]["title"] == "Asks" && tools[2]["inputSchema"]["properties"]["text"].is_object(), "{:#}", tools[2]);

    let answered = client.call("echo", json!({ "text": "hello" })).await;
    let (content, first) = (&answered.result()["content"], &answered.result()["structuredContent"]);
    assert_eq!(
        (&answered.result()["isError"], &first["status"]),
        (&json!(false), &json!("completed")),
        "{:#}",
        answered.response
    );
    assert_eq!(content[0]["text"], first["output"]);
    assert!(first["output"].as_str().unwrap().contains("hello"), "{first:#}");
    let run = host.run(first["run_id"].as_str().unwrap()).await;
    assert_eq!((&run["binding_id"], &run["conversation_id"]), (&json!("echo"), &first["conversation"]));

    let second = client.done("echo", json!({ "text": "again", "conversation": first["conversation"] })).await;
    assert_eq!(second["conversation"], first["conversation"]);
    assert_ne!(second["run_id"], first["run_id"]);
    let other = client.done("echo", json!({ "text": "else" })).await;
    assert_ne!(other["conversation"], first["conversation"]);
    // A runner may give its answer with its end alone, or again with it.
    let said = json!({ "do": "say", "text": "the answer" });
    let end = json!({ "do": "finish", "text": "the answer" });
    for script in [json!([end]), json!([said, end])] {
        let ended = client.done("stage", json!({ "text": script.to_string() })).await;
        assert_eq!(ended["output"], "the answer", "{ended:#}");
    }
    // A run that has ended is read again.
    let repeated = client.done("echo", json!({ "run_id": first["run_id"] })).await;
    assert_eq!(repeated["output"], first["output"]);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn failures_and_artifacts_are_in_the_result() {
    let host = host();
    let client = session(&host, "").await;
    let failed = client.call("steps", json!({ "text": "say so far; fail" })).await;
    let result = failed.result();
    assert_eq!(
        (&result["isError"], &result["structuredContent"]["error"]["code"]),
        (&json!(true), &json!("steps.failed")),
        "{result:#}"
    );
    assert_eq!(result["structuredContent"]["output"], "so far");

    let made = client.call("steps", json!({ "text": "create; write abc 3; finish; say done" })).await;
    let content = made.result()["content"].as_array().unwrap();
    let link = content.iter().find(|block| block["type"] == "resource_link").unwrap_or_else(|| panic!("{content:#?}"));
    assert_eq!((&link["name"], &link["size"]), (&json!("steps.txt"), &json!(9)));
    let read = client.request("resources/read", json!({ "uri": link["uri"] })).await;
    assert_eq!(read.result()["contents"][0]["text"], "abcabcabc");
    assert_eq!(client.request("resources/read", json!({ "uri": "artifact://none" })).await.code(), (-32002, "not_found"));
    assert_eq!(
        client.request("resources/read", json!({ "uri": "file:///etc/passwd" })).await.code(),
        (-32602, "invalid_argument")
    );

    for (name, arguments, code) in [
        ("echo", json!({}), "invalid_argument"),
        ("echo", json!({ "text": "x", "run_id": "y" }), "invalid_argument"),
        ("echo", json!({ "text": 1 }), "invalid_argument"),
        ("echo", json!({ "text": "x", "more": 1 }), "invalid_argument"),
        ("echo", json!({ "text": "x", "attachments": ["none"] }), "invalid_argument"),
        ("echo", json!({ "run_id": agent_host_protocol::RunId::new().to_string() }), "not_found"),
        ("echo", json!({ "run_id": failed.result()["structuredContent"]["run_id"] }), "not_found"),
    ] {
        let answered = client.call(name, arguments.clone()).await;
        assert_eq!(answered.refusal(), code, "{arguments}: {:#}", answered.response);
    }
    assert_eq!(client.call("nobody", json!({ "text": "x" })).await.code(), (-32602, "not_found"));
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn keys_have_scopes_workspaces_and_sessions_of_their_own() {
    let host = host();
    let writer = key(&host, &["events:write"], Some("w")).await;
    let other = key(&host, &["events:write", "runs:read"], Some("v")).await;
    let reader = key(&host, &["runs:read"], None).await;
    let initialization = Client::initialization();
    let mut client = Client::at(&host, "/mcp", &reader);
    assert_eq!(client.refused(&initialization).await, (403, "forbidden".to_owned()));
    for token in ["ahk_x", "ahm_x", "ahl_x"] {
        client.token = token.to_owned();
        let (status, _) = client.refused(&initialization).await;
        assert!(status == 401 || status == 403, "{token}: {status}");
    }
    let client = session(&host, &writer).await;
    let said = client.done("steps", json!({ "text": "create; write abc 3; finish; say done" })).await;
    assert_eq!(host.run(said["run_id"].as_str().unwrap()).await["workspace_id"], "w");

    // Another key is another owner: neither the session nor the run is there for it.
    let mut stranger = session(&host, &other).await;
    let answered = stranger.call("steps", json!({ "run_id": said["run_id"] })).await;
    assert_eq!(answered.refusal(), "not_found");
    let made = client.call("steps", json!({ "text": "create; write abc 3; finish; say done" })).await;
    let link =
        made.result()["content"].as_array().unwrap().iter().find(|block| block["type"] == "resource_link").unwrap().clone();
    let read = stranger.request("resources/read", json!({ "uri": link["uri"] })).await;
    assert_eq!(read.code(), (-32002, "not_found"));
    let unscoped = client.request("resources/read", json!({ "uri": link["uri"] })).await;
    assert_eq!(unscoped.code(), (-32602, "unauthorized"));
    stranger.session.clone_from(&client.session);
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    assert_eq!(stranger.refused(&list).await, (404, "not_found".to_owned()));
    let end_user = client.http(Method::POST).header("x-end-user", "ann").json(&list).send().await.unwrap();
    assert_eq!(end_user.status(), 403);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn progress_is_streamed_and_a_cancelled_call_cancels_its_run() {
    let host = host();
    let client = session(&host, "").await;
    let params =
        json!({ "name": "steps", "arguments": { "text": "say one; sleep 300; say two" }, "_meta": { "progressToken": 7 } });
    let answered = client.request("tools/call", params).await;
    let progress: Vec<_> = answered.notifications.iter().map(|said| said["params"]["progress"].as_f64().unwrap()).collect();
    assert!(progress.windows(2).all(|pair| pair[0] < pair[1]), "{progress:?}");
    let said: String = answered.notifications.iter().map(|said| said["params"]["message"].as_str().unwrap()).collect();
    assert!(said.starts_with("onetwo"), "{:#?}", answered.notifications);

    let id = client.id();
    let params = json!({ "name": "steps", "arguments": { "text": "say begun; sleep 60000" }, "_meta": { "progressToken": 8 } });
    let call = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
    let mut calling = client.http(Method::POST).json(&call).send().await.unwrap();
    let mut stream = String::new();
    while !stream.contains("begun") {
        let piece = tokio::time::timeout(PATIENCE, calling.chunk()).await.unwrap().unwrap().expect("the stream goes on");
        stream.push_str(std::str::from_utf8(&piece).unwrap());
    }
    client.notify("notifications/cancelled", json!({ "requestId": id })).await;
    let runs = host.get("/api/v1/runs?limit=1").await;
    let run = runs["items"][0]["run_id"].as_str().unwrap();
    host.until_status(run, "cancelled").await;
    assert!(messages(&stream).iter().all(|message| message.get("result").is_none()));
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_elicitation_a_question_is_in_the_result_and_the_run_goes_on() {
    let host = host();
    let client = session(&host, "").await;
    let answered = client.call("asks", json!({ "text": "ask confirmation - Shall_I?;; say well" })).await;
    let waiting = answered.result()["structuredContent"].clone();
    assert_eq!(
        (&waiting["status"], &answered.result()["isError"]),
        (&json!("waiting"), &json!(false)),
        "{:#}",
        answered.response
    );
    assert_eq!(waiting["question"]["message"], "ShallI?\n\nAsked by a test.", "{waiting:#}");
    let action = waiting["question"]["action_id"].as_str().unwrap();
    assert!(answered.result()["content"][0]["text"].as_str().unwrap().contains(action));

    // Asked again, it says the same; answered, it comes to its end.
    let again = client.call("asks", json!({ "run_id": waiting["run_id"] })).await;
    assert_eq!(again.result()["structuredContent"]["question"]["action_id"], waiting["question"]["action_id"]);
    let url = format!("{}/api/v1/actions/{action}/respond", *host.urls().borrow());
    let given = reqwest::Client::new().post(url).json(&json!({ "decision": "submit", "answer": true })).send().await.unwrap();
    assert_eq!(given.status(), 200);
    let ended = client.done("asks", json!({ "run_id": waiting["run_id"] })).await;
    assert_eq!(ended["status"], "completed", "{ended:#}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_official_client_uses_agents_and_answers_their_questions() {
    let host = host();
    let token = key(&host, &["events:write", "actions:respond", "runs:read"], None).await;
    let settings = json!({ "url": format!("{}/mcp", *host.urls().borrow()), "token": token });
    let seen = play("agents", &settings).await;
    assert_eq!(seen["tools"], json!(["echo", "steps", "asks", "stage"]));
    assert_eq!(seen["echo"]["structuredContent"]["status"], "completed", "{seen:#}");
    assert!(seen["progress"].as_array().unwrap().iter().any(|said| said["message"] == "one"), "{seen:#}");
    let asked = seen["asked"].as_array().unwrap();
    assert_eq!(asked.len(), 3, "{seen:#}");
    assert_eq!(asked[0]["message"], "ShallI?\n\nAsked by a test.");
    assert_eq!(asked[1]["requestedSchema"]["properties"]["colour"]["type"], "string", "{seen:#}");
    assert_eq!(seen["answered"]["structuredContent"]["status"], "completed", "{seen:#}");
    let output = seen["answered"]["structuredContent"]["output"].as_str().unwrap();
    assert!(output.contains("blue") && output.contains("declined"), "{seen:#}");
    assert_eq!(seen["closed"]["structuredContent"]["status"], "waiting", "the user has closed the form: {seen:#}");
    assert_eq!(seen["silent"]["structuredContent"]["status"], "waiting", "a client without the capability: {seen:#}");
    assert_eq!(seen["read"], "abcabcabc");
    let cancelled = seen["cancelled"].as_str().unwrap();
    host.until_status(cancelled, "cancelled").await;
    host.check();
}
