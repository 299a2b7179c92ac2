//! A conversation through the proxy: each operation in each of its successful ways, and in the ways in which clients err.

use std::time::Instant;

use agent_host_tests::{Process, process, world::PATIENCE};
use hmac::{Hmac, Mac};
use reqwest::{
    Client, Method, RequestBuilder,
    header::{HeaderMap, LOCATION},
};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::openapi::{GUESTS, agents, imports, mcp, threads, watched::Watched};

/// Messages are answered at once, an executor claims runs of `outside`; the other events go to [`GUESTS`].
const CONFIG: &str = r#"
[limits]
max_live_runs = 20
http_body_bytes = 65536

[[bindings]]
id = "echo"
runner = "plugin:agent-host/echo/default"
match = { event_type = "message\\..*" }

[[external_runners]]
id = "plugin:test/outside/default"
[external_runners.permissions]
state = ["runner"]
artifacts = ["metadata", "read", "create"]

[[bindings]]
id = "outside"
runner = "plugin:test/outside/default"
match = { event_type = "outside" }
state = { scopes = ["runner"] }
deliver = ["nobody"]
[bindings.queue]
name = "outside"
backoff_ms = 1

[[webhooks]]
name = "nobody"
url = "http://127.0.0.1:9/"
secret = { file = "secret" }
max_attempts = 1

[[webhook_sources]]
name = "git"
secret = { file = "secret" }
signature = { header = "x-sig", encoding = "hex", algorithm = "hmac-sha256" }
event_type = "nobody"
when = [{ value = "{/action}", matches = "opened" }]

[[schedules]]
id = "nightly"
cron = "0 3 * * *"
event = { event_type = "nobody" }

[agui.api]
agent = "echo"
"#;

const SECRET: &str = "a secret of the tests";

pub struct Talk {
    watched: Watched,
    http: Client,
}

/// The answer of a host.
pub struct HostAnswer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Talk {
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, self.watched.url(path))
    }

    pub async fn send(&self, request: RequestBuilder) -> HostAnswer {
        let answer = request.send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let bytes = answer.bytes().await.unwrap();
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into());
        HostAnswer { status, headers, body }
    }

    pub async fn get(&self, path: &str, status: u16) -> Value {
        let host_answer = self.send(self.request(Method::GET, path)).await;
        assert_eq!(host_answer.status, status, "{path}: {:#}", host_answer.body);
        host_answer.body
    }

    pub async fn post(&self, path: &str, body: Value, status: u16) -> HostAnswer {
        let host_answer = self.send(self.request(Method::POST, path).json(&body)).await;
        assert_eq!(host_answer.status, status, "{path}: {:#}", host_answer.body);
        host_answer
    }

    /// Sends an event, and gives its one run.
    async fn run(&self, event_type: &str, text: &str) -> String {
        let event = json!({ "event_type": event_type, "input": { "text": text } });
        let host_answer = self.post("/api/v1/events", event, 202).await;
        host_answer.body["runs"][0]["run_id"].as_str().unwrap_or_else(|| panic!("{:#}", host_answer.body)).to_owned()
    }

    pub async fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let body = self.get(path, 200).await;
            if is_so(&body) {
                return body;
            }
            assert!(began.elapsed() < PATIENCE, "{path} stays {body:#}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    pub async fn ended(&self, run: &str) {
        let ended = |run: &Value| matches!(run["status"].as_str(), Some("completed" | "failed" | "cancelled" | "timeout"));
        self.until(&format!("/api/v1/runs/{run}"), ended).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_of_a_conversation_is_as_it_is_described() {
    let dir = Process::lay_out(&["echo", "steps", "asks"]);
    std::fs::write(dir.path().join("secret"), SECRET).unwrap();
    let host = Process::start_in(dir, &format!("{CONFIG}{GUESTS}"));
    let talk = Talk { watched: Watched::new(&host.url).await, http: Client::new() };
    the_host(&talk).await;
    events(&talk).await;
    runs(&talk).await;
    actions(&talk).await;
    artifacts(&talk).await;
    queue(&talk).await;
    deliveries(&talk).await;
    hooks(&talk).await;
    agents::agents(&talk).await;
    agents::profile(&talk).await;
    agents::pipelines(&talk).await;
    agents::page(&talk).await;
    threads::threads(&talk).await;
    mcp::endpoint(&talk, "/mcp", "").await;
    imports::imports(&talk).await;
    keys(&talk).await;
    operations(&talk, &host.url).await;
    tokio::task::block_in_place(|| command_line(&talk, &host));

    let seen = talk.watched.seen();
    let missing: Vec<String> =
        talk.watched.described().into_iter().filter(|way| !seen.contains(way) && !cannot_be_had(way)).collect();
    assert!(missing.is_empty(), "nobody has looked at: {missing:#?}");
}

/// Cases outside of this conversation: other tests cover the forms of an artifact's content, a `HEAD` has no ranges, and an
/// endless stream does not pass a proxy that waits for its end.
fn cannot_be_had(way: &str) -> bool {
    way.starts_with("HEAD /api/v1/runs/{id}/calls/artifacts/") || way.starts_with("GET /api/v1/executors/{id}/events ")
}

async fn the_host(talk: &Talk) {
    assert_eq!(talk.get("/healthz", 200).await, "ok");
    talk.until("/readyz", |ready| ready["plugins_ready"] == 3).await;
    talk.get("/api/v1/openapi.json", 200).await;
    talk.get("/api/v1/openapi.json?x=1", 400).await;
    assert_eq!(talk.get("/api/v1/runners", 200).await["bindings"].as_array().unwrap().len(), 4);
    talk.get("/metrics", 200).await;
    talk.get("/api/v1/schedules", 200).await;
    talk.get("/api/v1/nothing", 404).await;
    let host_answer = talk.send(talk.request(Method::DELETE, "/api/v1/events")).await;
    assert_eq!((host_answer.status, host_answer.headers["allow"].to_str().unwrap()), (405, "GET,HEAD,POST"));
}

async fn events(talk: &Talk) {
    let path = "/api/v1/events";
    let full = json!({
        "event_type": "message.received", "source": "platform", "event_time": 1, "source_event_type": "x",
        "conversation": { "conversation_id": "c", "thread_id": "t", "workspace_id": null, "bot_id": "b" },
        "actor": { "actor_type": "user", "actor_id": "u", "actor_name": "U", "metadata": { "k": [1] } },
        "subject": { "subject_type": "message", "subject_id": "s", "data": {} },
        "input": { "text": "hello", "contents": [{ "type": "text", "text": "x" }, { "type": "location", "at": [1.5, 2] }] },
        "delivery": { "surface": "chat", "supports_streaming": true, "max_message_size": 100 },
        "data": { "x": { "y": null } }, "adapter": [1], "trace_id": "trace", "locale": "en", "timezone": "Europe/Berlin",
    });
    let once = || talk.request(Method::POST, path).header("idempotency-key", "k").header("prefer", "wait=30").json(&full);
    let host_answer = talk.send(once()).await;
    assert_eq!(
        (host_answer.status, &host_answer.body["runs"][0]["status"]),
        (200, &json!("completed")),
        "{:#}",
        host_answer.body
    );
    assert_eq!(talk.send(once()).await.headers["idempotency-replayed"], "true");
    let other = talk.request(Method::POST, path).header("idempotency-key", "k").json(&json!({ "event_type": "message.other" }));
    assert_eq!(talk.send(other).await.status, 422);
    let event = host_answer.body["event_id"].as_str().unwrap();
    assert_eq!(talk.get(&format!("/api/v1/events/{event}"), 200).await["runs"].as_array().unwrap().len(), 1);
    talk.get("/api/v1/events/7", 404).await;
    talk.get(&format!("/api/v1/events/{event}?x"), 400).await;

    // No binding matches this event.
    assert_eq!(talk.post(path, json!({ "event_type": "nobody" }), 202).await.body["runs"], json!([]));
    for (body, status) in [
        (json!({ "event_type": "a b" }), 400),
        (json!({ "event_type": "a", "more": 1 }), 400),
        (json!([]), 400),
        (json!({ "event_type": "message.x", "data": { "x": "y".repeat(100_000) } }), 413),
        (json!({ "event_type": "message.x", "input": { "attachments": [{ "artifact_id": "none", "media_type": "a/b" }] } }), 400),
    ] {
        talk.post(path, body, status).await;
    }
    let text = |kind: &str, body: &'static str| talk.request(Method::POST, path).header("content-type", kind).body(body);
    assert_eq!(talk.send(text("application/json", "{")).await.status, 400);
    assert_eq!(talk.send(text("text/plain", "{}")).await.status, 415);
}

async fn runs(talk: &Talk) {
    let run = talk.run("steps", "say hello; set key value; create; write abc 3; finish; attempt").await;
    talk.ended(&run).await;
    let of_run = |what: &str| format!("/api/v1/runs/{run}{what}");
    for what in ["", "/context", "/grant", "/audit", "/events", "/logs", "/journal", "/recording", "/actions"] {
        talk.get(&of_run(what), 200).await;
        talk.get(&of_run(&format!("{what}?nonsense=1")), 400).await;
        talk.get(&format!("/api/v1/runs/00000000-0000-7000-8000-000000000000{what}"), 404).await;
        talk.get(&format!("/api/v1/runs/x{what}"), 404).await;
    }
    for what in ["/audit?cursor=x", "/events?after=x", "/journal?cursor=x"] {
        assert_eq!(talk.get(&of_run(what), 400).await["code"], "invalid_cursor");
    }
    let page = talk.get(&of_run("/events?limit=2"), 200).await;
    talk.get(&of_run(&format!("/events?limit=2&after={}", page["next_cursor"].as_str().unwrap())), 200).await;
    let stream = |accept: &str| talk.request(Method::GET, &of_run("/events")).header("accept", accept);
    let host_answer = talk.send(stream("text/event-stream")).await;
    assert!(
        host_answer.status == 200 && host_answer.body.as_str().unwrap().contains("event: run.completed"),
        "{:#}",
        host_answer.body
    );
    assert_eq!(talk.send(stream("image/png")).await.status, 406);

    let query = "/api/v1/runs?status=completed&runner_id=plugin:test/steps/default&binding_id=steps&limit=1".to_owned();
    assert_eq!(talk.get(&query, 200).await["items"][0]["run_id"], *run);
    for query in
        ["status=done", "limit=0", "limit=101", "runner_id=x", "event_id=x", "parent_run_id=x", "cursor=x", "limit=1&limit=2"]
    {
        talk.get(&format!("/api/v1/runs?{query}"), 400).await;
    }

    let host_answer = talk.post(&of_run("/fork"), json!({ "at": 1, "input": "say other", "config": {} }), 202).await;
    let fork = host_answer.headers[LOCATION].to_str().unwrap().rsplit('/').next().unwrap().to_owned();
    talk.ended(&fork).await;
    talk.post(&of_run("/fork"), json!({ "at": 1000 }), 400).await;
    talk.post(&of_run("/fork"), json!({ "at": -1 }), 400).await;

    talk.post(&of_run("/cancel"), json!({}), 409).await;
    let long = talk.run("steps", "timer 600000").await;
    talk.until(&format!("/api/v1/runs/{long}"), |run| run["status"] == "waiting").await;
    // A failed run, cancelled, with a reason, in a list.
    talk.post(&format!("/api/v1/runs/{long}/cancel"), json!({ "reason": 7 }), 400).await;
    talk.post(&format!("/api/v1/runs/{long}/cancel"), json!({ "reason": "enough" }), 202).await;
    talk.ended(&long).await;
    let failed = talk.run("steps", "fail").await;
    talk.ended(&failed).await;
    talk.get("/api/v1/runs?status=failed", 200).await;
    talk.get(&format!("/api/v1/runs/{failed}/events"), 200).await;
    let echo = talk.run("message.received", "no journal?").await;
    talk.ended(&echo).await;
    talk.get(&format!("/api/v1/runs/{echo}/audit"), 200).await;
}

async fn actions(talk: &Talk) {
    let run = talk.run("asks", "ask form - name;;ask confirmation - sure").await;
    let open = talk.until("/api/v1/actions", |page| page["items"][0]["run_id"] == *run).await;
    let action = open["items"][0]["action_id"].as_str().unwrap().to_owned();
    let of_action = |what: &str| format!("/api/v1/actions/{action}{what}");
    talk.get("/api/v1/actions?limit=101", 400).await;
    talk.get("/api/v1/actions?limit=1", 200).await;
    assert_eq!(talk.get(&of_action(""), 200).await["status"], "open");
    talk.get("/api/v1/actions/none", 404).await;
    for body in [json!({ "decision": "approve" }), json!({ "decision": "maybe" }), json!({})] {
        talk.post(&of_action("/respond"), body, 400).await;
    }
    talk.post("/api/v1/actions/none/respond", json!({ "decision": "submit" }), 404).await;
    let answer = json!({ "decision": "submit", "answer": { "name": "Ada" }, "reason": "asked" });
    talk.post(&of_action("/respond"), answer.clone(), 200).await;
    assert_eq!(talk.post(&of_action("/respond"), answer, 409).await.body["code"], "already_answered");
    let second = talk.until("/api/v1/actions", |page| page["items"][0]["run_id"] == *run).await;
    let second = second["items"][0]["action_id"].as_str().unwrap().to_owned();
    talk.post(&format!("/api/v1/actions/{second}/respond"), json!({ "decision": "decline" }), 200).await;
    talk.ended(&run).await;
    let all = talk.get(&format!("/api/v1/runs/{run}/actions"), 200).await;
    assert_eq!(all["items"].as_array().unwrap().len(), 2);
}

async fn artifacts(talk: &Talk) {
    let path = "/api/v1/artifacts";
    let upload = |query: &str, kind: &str| {
        talk.request(Method::POST, &format!("{path}?{query}")).header("content-type", kind).body("some text")
    };
    let host_answer =
        talk.send(upload("name=a.txt&conversation_id=c&thread_id=t&workspace_id=w&expires_in_ms=600000", "text/plain")).await;
    assert_eq!(host_answer.status, 201, "{:#}", host_answer.body);
    let of_artifact = host_answer.headers[LOCATION].to_str().unwrap().to_owned();
    for (query, kind, status) in [
        ("", "multipart/form-data", 415),
        ("", "image/png", 415),
        ("expires_in_ms=0", "text/plain", 400),
        ("thread_id=t", "text/plain", 400),
    ] {
        assert_eq!(talk.send(upload(query, kind)).await.status, status, "{query} {kind}");
    }
    talk.get(&format!("{of_artifact}/metadata"), 200).await;
    talk.get(&format!("{of_artifact}?disposition=inline"), 200).await;
    talk.get(&format!("{of_artifact}?disposition=x"), 400).await;
    talk.get("/api/v1/artifacts/none", 404).await;
    talk.get("/api/v1/artifacts/none/metadata", 404).await;
    let etag = talk.send(talk.request(Method::GET, &of_artifact)).await.headers["etag"].clone();
    for method in [Method::GET, Method::HEAD] {
        let plain = || talk.request(method.clone(), &of_artifact);
        assert_eq!(talk.send(plain()).await.status, 200);
        assert_eq!(talk.send(plain().header("if-none-match", etag.clone())).await.status, 304);
    }
    let range = |range: &str| talk.request(Method::GET, &of_artifact).header("range", range);
    assert_eq!(talk.send(range("bytes=2-3")).await.status, 206);
    assert_eq!(talk.send(range("bytes=100-")).await.status, 416);
}

async fn queue(talk: &Talk) {
    let name = json!({ "name": "one", "queues": ["outside"], "slots": 10 });
    let executor = talk.post("/api/v1/executors", name, 201).await.body;
    let credential = executor["credential"].as_str().unwrap();
    let path = format!("/api/v1/executors/{}", executor["executor_id"].as_str().unwrap());
    for bad in [json!({}), json!({ "name": "" }), json!({ "name": "x", "slots": 0 }), json!({ "name": "x", "more": 1 })] {
        talk.post("/api/v1/executors", bad, 400).await;
    }
    talk.get("/api/v1/executors", 200).await;
    talk.get("/api/v1/executors/statistics", 200).await;
    talk.get(&path, 200).await;
    talk.get("/api/v1/executors/none", 404).await;
    let by = |token: &str, path: &str, body: &Value| talk.request(Method::POST, path).bearer_auth(token).json(body);
    let host_answer = talk.send(talk.request(Method::POST, &format!("{path}/heartbeat")).bearer_auth(credential)).await;
    assert_eq!(host_answer.status, 200, "{:#}", host_answer.body);
    talk.post("/api/v1/claims", json!({}), 403).await;
    assert_eq!(talk.send(by("ahx_nobody", "/api/v1/claims", &json!({}))).await.status, 401);
    assert_eq!(talk.send(by(credential, "/api/v1/claims", &json!({}))).await.status, 204);

    // Made by name, claimed, and given back; then claimed again, and brought to its end.
    let wanted = json!({ "binding_id": "outside", "input": { "text": "work" }, "queue": { "priority": 3 } });
    let made = talk.send(talk.request(Method::POST, "/api/v1/runs").header("idempotency-key", "made").json(&wanted)).await;
    assert_eq!(made.status, 202, "{:#}", made.body);
    let run = made.body["run_id"].as_str().unwrap().to_owned();
    for (bad, status) in [(json!({}), 400), (json!({ "binding_id": "none", "input": {} }), 404)] {
        talk.post("/api/v1/runs", bad, status).await;
    }
    let of_run = |what: &str| format!("/api/v1/runs/{run}{what}");
    let claim = |body: Value| by(credential, "/api/v1/claims", &body);
    let claimed = talk.send(claim(json!({ "wait_ms": 5000, "lease_ms": 30000 }))).await;
    assert_eq!((claimed.status, &claimed.body["run"]["run_id"]), (200, &json!(run)), "{:#}", claimed.body);
    let token = claimed.body["lease_token"].as_str().unwrap();
    assert_eq!(talk.send(by(token, &of_run("/start"), &json!({}))).await.status, 200);
    assert_eq!(talk.send(by(token, &of_run("/renew"), &json!({ "lease_ms": 20000 }))).await.status, 200);
    assert_eq!(talk.send(by(token, &of_run("/release"), &json!({ "reason": "not mine" }))).await.status, 200);
    assert_eq!(talk.send(by(token, &of_run("/renew"), &json!({}))).await.status, 409);
    let claimed = talk.send(claim(json!({ "wait_ms": 5000, "start": true }))).await;
    assert_eq!(claimed.status, 200, "{:#}", claimed.body);
    let token = claimed.body["lease_token"].as_str().unwrap();
    let access = |member: &str| claimed.body["mcp"][member].as_str().unwrap();
    mcp::endpoint(talk, access("path"), access("token")).await;
    let delta =
        json!({ "type": "message.delta", "data": { "message_id": "m", "chunk": { "role": "assistant", "content": "hel" } } });
    let append = |first: u64| by(token, &of_run("/append"), &json!({ "first": first, "results": [delta] }));
    assert_eq!(talk.send(append(1)).await.status, 200);
    assert_eq!(talk.send(append(7)).await.status, 409);
    assert_eq!(talk.send(by(token, &of_run("/append"), &json!({ "first": 2 }))).await.status, 400);
    let call = |function: &str, arguments: Value| by(token, &of_run(&format!("/calls/{function}")), &arguments);
    let set = talk.send(call("state.set", json!({ "scope": "runner", "key": "k", "value": 1 }))).await;
    assert_eq!(set.status, 200, "{:#}", set.body);
    assert_eq!(talk.send(call("state.set", json!({ "nonsense": 1 }))).await.status, 400);
    assert_eq!(talk.send(call("nothing.of_it", json!({}))).await.status, 404);
    assert_eq!(talk.send(call("models.invoke", json!({ "model_id": "m", "messages": [] }))).await.status, 403);
    let upload = talk.request(Method::POST, &of_run("/calls/artifacts?name=a")).bearer_auth(token).body("some bytes");
    let artifact = talk.send(upload).await;
    assert_eq!(artifact.status, 201, "{:#}", artifact.body);
    let content = of_run(&format!("/calls/artifacts/{}", artifact.body["artifact_id"].as_str().unwrap()));
    let content = || talk.request(Method::GET, &content).bearer_auth(token);
    assert_eq!(talk.send(content()).await.status, 200);
    assert_eq!(talk.send(content().header("range", "bytes=1-2")).await.status, 206);
    let done = json!({ "status": "completed", "message": { "role": "assistant", "content": "hello" } });
    assert_eq!(talk.send(by(token, &of_run("/finalize"), &done)).await.status, 200);
    assert_eq!(talk.send(by(token, &of_run("/finalize"), &json!({ "status": "odd" }))).await.status, 400);

    // Another attempt, and one that was given up, put back.
    let again = talk.post(&of_run("/retry"), json!({}), 202).await.body["run_id"].as_str().unwrap().to_owned();
    talk.post(&format!("/api/v1/runs/{again}/cancel"), json!({}), 202).await;
    talk.ended(&again).await;
    given_up(talk, credential).await;
    talk.get("/api/v1/dead-letters?cursor=x", 400).await;
    assert_eq!(talk.send(talk.request(Method::DELETE, &path).bearer_auth(credential)).await.status, 204);
}

/// A run whose only attempt is lost with its claim becomes a dead letter.
async fn given_up(talk: &Talk, credential: &str) {
    let wanted = json!({ "binding_id": "outside", "input": {}, "max_attempts": 1, "queue": { "priority": 9 } });
    let run = talk.post("/api/v1/runs", wanted, 202).await.body["run_id"].as_str().unwrap().to_owned();
    let claim = talk.request(Method::POST, "/api/v1/claims").bearer_auth(credential);
    let claimed = talk.send(claim.json(&json!({ "wait_ms": 5000, "start": true }))).await;
    assert_eq!(claimed.body["run"]["run_id"], *run, "{:#}", claimed.body);
    let token = claimed.body["lease_token"].as_str().unwrap();
    let native = talk.request(Method::POST, &format!("/api/v1/runs/{run}/append?form=ai-sdk&first=1")).bearer_auth(token);
    let native = native.header("content-type", "application/x-ndjson").body("{\"type\":\"finish\",\"finishReason\":\"stop\"}");
    let appended = talk.send(native).await;
    assert_eq!((appended.status, &appended.body["end"]["status"]), (200, &json!("completed")), "{:#}", appended.body);
    let release = talk.request(Method::POST, &format!("/api/v1/runs/{run}/release")).bearer_auth(token);
    assert_eq!(talk.send(release).await.status, 200);
    talk.until("/api/v1/dead-letters", |page| page["items"][0]["run_id"] == *run).await;
    let back = talk.send(talk.request(Method::POST, &format!("/api/v1/dead-letters/{run}/requeue"))).await;
    assert_eq!(back.status, 202, "{:#}", back.body);
}

/// No server listens at the webhook of the external run.
async fn deliveries(talk: &Talk) {
    let dead = |page: &Value| page["items"].as_array().unwrap().iter().any(|delivery| delivery["state"] == "dead");
    let page = talk.until("/api/v1/deliveries?state=dead", dead).await;
    let run = page["items"][0]["run_id"].as_str().unwrap();
    talk.get("/api/v1/deliveries?state=odd", 400).await;
    let retry = talk.request(Method::POST, &format!("/api/v1/deliveries/{run}/nobody/retry"));
    assert_eq!(talk.send(retry).await.status, 202);
    let none = talk.request(Method::POST, &format!("/api/v1/deliveries/{run}/none/retry"));
    assert_eq!(talk.send(none).await.status, 404);
}

async fn hooks(talk: &Talk) {
    talk.get("/api/v1/webhook-sources", 200).await;
    let signed = |body: &'static str| {
        let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
        mac.update(body.as_bytes());
        let signature: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let request = talk.request(Method::POST, "/api/v1/hooks/git").header("content-type", "application/json");
        request.header("x-sig", signature).body(body)
    };
    assert_eq!(talk.send(signed(r#"{"action":"opened"}"#)).await.status, 202);
    assert_eq!(talk.send(signed(r#"{"action":"closed"}"#)).await.status, 200);
    talk.post("/api/v1/hooks/git", json!({}), 401).await;
    talk.post("/api/v1/hooks/none", json!({}), 404).await;
}

async fn keys(talk: &Talk) {
    let made = talk.post("/api/v1/keys", json!({ "name": "a-key", "scopes": ["runs:read"], "workspace": "w" }), 201).await;
    for bad in [json!({}), json!({ "name": "x", "scopes": ["all"] })] {
        talk.post("/api/v1/keys", bad, 400).await;
    }
    let token = made.body["token"].as_str().unwrap();
    let with = |method: Method, path: &str| talk.request(method, path).bearer_auth(token);
    assert_eq!(talk.send(with(Method::GET, "/api/v1/runs")).await.status, 200);
    assert_eq!(talk.send(with(Method::GET, "/api/v1/keys")).await.status, 403);
    assert_eq!(talk.send(with(Method::GET, "/metrics")).await.status, 403);
    talk.get("/api/v1/keys", 200).await;
    talk.get("/api/v1/keys?limit=0", 400).await;
    let run = talk.get("/api/v1/runs?status=completed&limit=1", 200).await["items"][0]["run_id"].clone();
    let stream = talk.post("/api/v1/stream-tokens", json!({ "run_id": run }), 201).await.body["url"].clone();
    let opened = talk.request(Method::GET, stream.as_str().unwrap()).header("accept", "text/event-stream");
    assert_eq!(talk.send(opened).await.status, 200);
    assert_eq!(talk.send(talk.request(Method::GET, "/api/v1/runs?access_token=aht_x")).await.status, 401);
    talk.post("/api/v1/stream-tokens", json!({ "run_id": "nothing" }), 404).await;
    talk.post("/api/v1/stream-tokens", json!({}), 400).await;
    let path = format!("/api/v1/keys/{}", made.body["key_id"].as_str().unwrap());
    assert_eq!(talk.send(talk.request(Method::DELETE, &path)).await.status, 200);
    assert_eq!(talk.send(with(Method::GET, "/api/v1/runs")).await.status, 401);
    assert_eq!(talk.send(talk.request(Method::DELETE, "/api/v1/keys/none")).await.status, 404);
}

async fn operations(talk: &Talk, host: &str) {
    talk.get("/api/v1/statistics?group_by=runner", 200).await;
    talk.get("/api/v1/statistics?since=x", 400).await;
    talk.get("/api/v1/audit?action=runs.&limit=3", 200).await;
    talk.get("/api/v1/audit?run_id=x", 400).await;
    for (path, more) in [("/api/v1/audit", "outcome=ok"), ("/api/v1/events", "event_type=message.*")] {
        let page = talk.get(&format!("{path}?{more}&limit=1"), 200).await;
        assert_eq!(talk.get(&format!("{path}?cursor=x"), 400).await["code"], "invalid_cursor");
        let stream = |accept: &str| talk.request(Method::GET, path).header("accept", accept);
        assert_eq!(talk.send(stream("image/png")).await.status, 406);
        // A stream has no end of its own, and the proxy waits for the end of an answer.
        let stream = talk.http.get(format!("{host}{path}")).header("accept", "text/event-stream");
        let stream = stream.header("last-event-id", page["next_cursor"].as_str().unwrap()).send().await.unwrap();
        assert_eq!(stream.status(), 200);
    }
    talk.post("/api/v1/config/reload", json!({}), 200).await;
    talk.post("/api/v1/backup", json!({ "to": "first" }), 201).await;
    talk.post("/api/v1/backup", json!({ "to": "../first" }), 400).await;
}

/// The commands that speak with a server, which is the proxy.
fn command_line(talk: &Talk, host: &Process) {
    for line in ["runs list --limit 3", "actions list", "runners"] {
        let mut command = process::command(host.dir.path());
        let output = command.args(line.split(' ')).args(["--server", &talk.watched.url]).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
