//! The example runners as users have them: their components in a real host, with people, webhooks and agents elsewhere.

use std::{
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use agent_host_protocol::{RunId, RunStatus};
use agent_host_runs::{Action, Response, facts::record::Decision};
use agent_host_tests::{
    World,
    webhook::Webhook,
    world::{PATIENCE, in_conversation},
};
use axum::{Json, Router, body::Body, extract::State, http::HeaderMap, routing::post};
use serde_json::{Value, json};

/// Must never be seen outside of the servers that it is for.
const CANARY: &str = "canary-http-51d0e2";

/// The first action of a run, as soon as it exists.
async fn await_action(world: &World, run: RunId) -> Action {
    let found = async {
        loop {
            if let Some(action) = world.host.actions(run).unwrap().into_iter().find(|action| action.resolved.is_none()) {
                return action;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("the run asks")
}

fn says(decision: Decision, reason: Option<&str>, answer: Option<Value>) -> Response {
    Response { decision, reason: reason.map(str::to_owned), answer }
}

async fn approval(webhook: &Webhook) -> World {
    let text = format!(
        r#"
[[action_hooks]]
actions = ["item.*"]
url = "{}"
secret = {{ file = "hook" }}

[[bindings]]
id = "approval"
runner = "plugin:agent-host/approval/default"
resources = {{ platform_api = ["item.delete"] }}
"#,
        webhook.url
    );
    World::from_text(&["approval"], &text, |dir| fs::write(dir.join("hook"), "a secret of the platform").unwrap()).await
}

#[tokio::test]
async fn approval_acts_when_it_may_and_goes_on_with_every_other_answer() {
    let webhook = Webhook::start("a secret of the platform").await;
    let world = approval(&webhook).await;
    let run = world.send(in_conversation("c", "delete 42")).await;
    let action = await_action(&world, run).await;
    assert_eq!(action.request["target"], json!({ "item_id": 42 }));
    assert!(webhook.seen().is_empty(), "nothing is done before somebody says so");
    world.host.respond(&action.action_id, says(Decision::Approve, None, None), None).await.unwrap();
    let ended = world.ended(run).await;
    assert!(ended.answer_text().starts_with("Done: item.delete of item 42"), "{}", ended.answer_text());
    assert_eq!(webhook.done(), [action.action_id]);
    webhook.check();

    let run = world.send(in_conversation("c", "delete 43")).await;
    let action = await_action(&world, run).await;
    world.host.respond(&action.action_id, says(Decision::Deny, Some("It is still needed."), None), None).await.unwrap();
    let spoken = world.ended(run).await.answer_text();
    assert!(spoken.contains("denied") && spoken.contains("It is still needed."), "{spoken}");
    assert_eq!(webhook.done().len(), 1);
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn approval_asks_what_was_meant_before_it_asks_whether_it_may() {
    let webhook = Webhook::start("a secret of the platform").await;
    let world = approval(&webhook).await;
    let run = world.send(in_conversation("c", "please delete item 7 or so")).await;
    let question = await_action(&world, run).await;
    assert_eq!(question.request["kind"], "question");
    world.host.respond(&question.action_id, says(Decision::Submit, None, None), None).await.unwrap();
    let action = loop {
        let action = await_action(&world, run).await;
        if action.action_id != question.action_id {
            break action;
        }
    };
    assert_eq!(action.request["kind"], "platform_action");
    world.host.respond(&action.action_id, says(Decision::Approve, None, None), None).await.unwrap();
    assert!(world.ended(run).await.answer_text().starts_with("Done"), "it goes on after both");
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn supervisor_gathers_what_its_children_say_and_survives_those_that_fail() {
    let text = r#"
[[bindings]]
id = "supervisor"
runner = "plugin:agent-host/supervisor/default"
resources = { runs = ["start", "get", "events", "cancel"], runner_ids = ["plugin:agent-host/echo/*", "plugin:test/steps/*"] }
config = { worker = "plugin:test/steps/default", at_once = 2 }
"#;
    let world = World::from_text(&["supervisor", "echo", "steps"], text, |_| {}).await;
    let ended = world.ended(world.send(in_conversation("c", "say one\nfail\nsay three\nsleep 20")).await).await;
    assert_eq!(ended.run.status, RunStatus::Completed, "{ended:#?}");
    let children = ended.events.iter().filter(|event| event.kind == "run.child.started").count();
    assert_eq!(children, 4);
    assert!(
        ended.answer_text().contains("one") && ended.answer_text().contains("three") && ended.answer_text().contains("fail"),
        "{}",
        ended.answer_text()
    );
    // Messages of a child do not join the conversation.
    let key = agent_host_protocol::grant::ConversationKey::new("", "c", "");
    let transcript =
        world.host.ledger().transcript(&key, None, None, 100, agent_host_protocol::page::Direction::Forward).unwrap();
    assert!(transcript.items.iter().filter_map(|item| item.run_id).all(|spoken| spoken == ended.run.run_id));

    let ended = world.ended(world.send(in_conversation("c", "fail\nfail")).await).await;
    assert_eq!(ended.run.status, RunStatus::Failed, "all of them failed: {}", ended.answer_text());
    world.host.shutdown(PATIENCE).await;
}

type Seen = Arc<Mutex<Vec<(HeaderMap, Value)>>>;

/// An agent elsewhere: it streams its answer, and repeats the secret that it was sent.
async fn elsewhere(seen: Seen) -> String {
    async fn answer(
        State(seen): State<Seen>,
        headers: HeaderMap,
        Json(body): Json<Value>,
    ) -> ([(&'static str, &'static str); 1], Body) {
        let token = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        let spoken = body["input"].as_str().unwrap_or_default().to_owned();
        seen.lock().unwrap().push((headers, body));
        let half = token.len() / 2;
        let pieces = [
            "data: {\"delta\": \"You said: \"}\n\n".to_owned(),
            format!("data: {{\"delta\": \"{spoken}. \"}}\n\ndata: {{\"delta\": \"Token: {}", &token[..half]),
            format!("{}\"}}\n\ndata: [DONE]\n\n", &token[half..]),
        ];
        let stream = futures_util::stream::iter(pieces.map(Ok::<_, std::io::Error>));
        ([("content-type", "text/event-stream")], Body::from_stream(stream))
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/run", listener.local_addr().unwrap());
    let app = Router::new().route("/run", post(answer)).with_state(seen);
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

async fn http_agent(url: &str, allow: &str, secrets: &str) -> World {
    let authority = url.trim_start_matches("http://").trim_end_matches("/run");
    let text = format!(
        r#"
[egress]
allow_addresses = {allow}

[[http_secrets]]
name = "agent"
value = {{ file = "canary" }}
hosts = ["{authority}"]

[[bindings]]
id = "http-agent"
runner = "plugin:agent-host/http-agent/default"
resources = {{ http_hosts = ["{authority}"], http_secrets = {secrets} }}
config = {{ url = "{url}", secret = "agent" }}
"#
    );
    World::from_text(&["http_agent"], &text, |dir| fs::write(dir.join("canary"), CANARY).unwrap()).await
}

#[tokio::test]
async fn http_agent_streams_what_another_agent_says_and_never_holds_the_secret() {
    let seen = Seen::default();
    let url = elsewhere(Arc::clone(&seen)).await;
    let world = http_agent(&url, r#"["127.0.0.1"]"#, r#"["agent"]"#).await;
    let ended = world.ended(world.send(in_conversation("c", "hello")).await).await;
    assert_eq!(ended.run.status, RunStatus::Completed, "{ended:#?}");
    assert!(ended.answer_text().starts_with("You said: hello. Token: Bearer [secret agent]"), "{}", ended.answer_text());
    assert!(ended.kinds().contains(&"message.delta"), "it streams");
    let (headers, body) = seen.lock().unwrap()[0].clone();
    assert_eq!(headers["authorization"], format!("Bearer {CANARY}"), "the host put it in");
    assert_eq!(body["run_id"], ended.run.run_id.to_string());
    // Neither in the record of the run nor in its journal.
    let data = world.dir.path().join("data");
    world.host.shutdown(PATIENCE).await;
    let mut looked_at = 0;
    let mut dirs = vec![data];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let bytes = fs::read(&path).unwrap();
            assert!(
                !bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes()),
                "the secret is in {}",
                path.display()
            );
            looked_at += 1;
        }
    }
    assert!(looked_at > 0);
}

#[tokio::test]
async fn http_agent_says_why_it_may_not_reach_the_other_agent() {
    let seen = Seen::default();
    let url = elsewhere(Arc::clone(&seen)).await;
    for (allow, secrets, code) in
        [("[]", r#"["agent"]"#, "address_not_allowed"), (r#"["127.0.0.1"]"#, "[]", "secret_not_granted")]
    {
        let world = http_agent(&url, allow, secrets).await;
        let ended = world.ended(world.send(in_conversation("c", "hello")).await).await;
        assert_eq!(ended.run.status, RunStatus::Failed);
        let failure = serde_json::to_string(&ended.run.failure).unwrap();
        assert!(failure.contains(code), "{failure}");
        world.host.shutdown(PATIENCE).await;
    }
    assert!(seen.lock().unwrap().is_empty(), "nothing went out");
}
