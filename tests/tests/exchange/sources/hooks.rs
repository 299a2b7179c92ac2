//! Signed requests of other systems.

use std::fs;

use reqwest::header::{HeaderMap, HeaderName};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::sources::{
    receiver::{SECRET, now_s, signature},
    support::Host,
};

/// A host that other systems send requests to.
struct Hooked {
    host: Host,
    http: reqwest::Client,
    _secrets: TempDir,
}

const GITHUB: &str = "github-secret";

impl Hooked {
    fn new() -> Self {
        let secrets = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = secrets.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let config = format!(
            r#"
            [[webhook_sources]]
            name = "shop"
            secret = {{ file = {shop:?} }}
            signature = "standard"
            event_type = "order.{{/kind}}"
            conversation_id = "order-{{/order/id}}"
            workspace_id = "acme"
            actor_id = "{{/customer/id}}"
            actor_name = "{{/customer/name}}"
            subject_type = "order"
            subject_id = "{{/order/id}}"
            text = "{{/note}}"
            data = {{ total = "{{/order/total}}", region = "{{query:region}}" }}

            [[webhook_sources]]
            name = "git"
            secret = {{ file = {git:?} }}
            signature = "github"
            event_type = "github.{{header:x-github-event}}"
            when = [{{ value = "{{header:x-github-event}}", matches = "issues|push" }}]

            [[webhook_sources]]
            name = "broken"
            secret = {{ env = "AGENT_HOST_NO_SUCH_SECRET" }}
            signature = "standard"
            event_type = "a"

            [[bindings]]
            id = "hooked"
            runner = "plugin:agent-host/echo/default"
            "#,
            shop = file("shop", SECRET),
            git = file("git", GITHUB),
        );
        Self { host: Host::start(&["echo"], &config), http: reqwest::Client::new(), _secrets: secrets }
    }

    async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, Value, HeaderMap) {
        let headers: HeaderMap =
            headers.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect();
        let url = format!("{}/api/v1/hooks/{path}", *self.host.urls().borrow());
        let answer = self.http.post(url).headers(headers).body(body.to_owned()).send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        (status, answer.json().await.unwrap(), headers)
    }

    /// A request with a signature of Standard Webhooks.
    async fn shop(&self, id: &str, at: u64, body: &str) -> (u16, Value, HeaderMap) {
        let signature = format!("v1,bm90IHRoaXMgb25l {}", signature(SECRET, id, at, body.as_bytes()));
        let at = at.to_string();
        let headers = [("webhook-id", id), ("webhook-timestamp", at.as_str()), ("webhook-signature", signature.as_str())];
        self.post("shop?region=eu%20west", &headers, body).await
    }
}

fn order(note: &str) -> String {
    json!({
        "kind": "paid", "note": note,
        "order": { "id": 7, "total": { "amount": 12.5, "currency": "EUR" } },
        "customer": { "id": "c1" },
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_signed_request_is_an_event_once() {
    let mut hooked = Hooked::new();
    let (status, answer, headers) = hooked.shop("msg_1", now_s(), &order("hello")).await;
    assert_eq!(status, 202, "{answer:#}");
    assert!(!headers.contains_key("idempotency-replayed"));
    let event = hooked.host.get(&format!("/api/v1/events/{}", answer["event_id"].as_str().unwrap())).await;
    assert_eq!((&event["event_type"], &event["source"]), (&json!("order.paid"), &json!("platform")));
    assert_eq!(event["conversation"], json!({ "conversation_id": "order-7", "workspace_id": "acme" }));
    assert_eq!(event["actor"]["actor_id"], "c1");
    assert!(event["actor"].get("actor_name").is_none(), "{event:#}");
    assert_eq!(event["subject"]["subject_id"], "7");
    assert_eq!(event["input"]["text"], "hello");
    assert_eq!(event["data"]["total"], json!({ "amount": 12.5, "currency": "EUR" }));
    assert_eq!(event["data"]["region"], "eu west");
    assert_eq!(event["data"]["payload"]["note"], "hello");
    assert_eq!(event["data"]["webhook"], json!({ "name": "shop" }));
    hooked.host.ended(answer["run_ids"][0].as_str().unwrap()).await.completed();

    // The same once more, signed anew, and after a crash as well.
    hooked.host.kill_and_revive();
    let (status, again, headers) = hooked.shop("msg_1", now_s() + 1, &order("hello")).await;
    assert_eq!((status, &again), (202, &answer));
    assert_eq!(headers["idempotency-replayed"], "true");
    // Another message with the same id is a mistake of the sender.
    let (status, problem, _) = hooked.shop("msg_1", now_s(), &order("bye")).await;
    assert_eq!((status, &problem["code"]), (422, &json!("idempotency_conflict")));
    let (_, other, _) = hooked.shop("msg_2", now_s(), &order("bye")).await;
    assert_ne!(other["event_id"], answer["event_id"]);
    hooked.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unsigned_requests_are_refused_without_a_hint() {
    let hooked = Hooked::new();
    let body = order("hello");
    let now = now_s();
    let right = signature(SECRET, "m", now, body.as_bytes());
    let (at, old) = (now.to_string(), (now - 301).to_string());
    let old_signature = signature(SECRET, "m", now - 301, body.as_bytes());
    let other_key = signature("whsec_b3RoZXI=", "m", now, body.as_bytes());
    let (right, at, old) = (right.as_str(), at.as_str(), old.as_str());
    let (old_signature, other_key) = (old_signature.as_str(), other_key.as_str());
    let mut details = Vec::new();
    for headers in [
        &[][..],
        &[("webhook-id", "m"), ("webhook-timestamp", at), ("webhook-signature", other_key)],
        &[("webhook-id", "n"), ("webhook-timestamp", at), ("webhook-signature", right)],
        &[("webhook-id", "m"), ("webhook-timestamp", old), ("webhook-signature", old_signature)],
        &[("webhook-id", "m"), ("webhook-timestamp", at), ("webhook-signature", "v1,")],
        &[("webhook-timestamp", at), ("webhook-signature", right)],
    ] {
        let (status, problem, _) = hooked.post("shop", headers, &body).await;
        assert_eq!((status, &problem["code"]), (401, &json!("unauthenticated")), "{headers:?}");
        details.push(problem);
    }
    assert!(details.iter().all(|problem| *problem == details[0]), "they differ, which is a hint: {details:#?}");
    // One changed byte of the body.
    let headers = [("webhook-id", "m"), ("webhook-timestamp", at), ("webhook-signature", right)];
    assert_eq!(hooked.post("shop", &headers, &body.replace("hello", "hullo")).await.0, 401);
    assert_eq!(hooked.post("git", &headers, &body).await.0, 401, "a signature is good for one source");
    let (status, problem, _) = hooked.post("nobody", &headers, &body).await;
    assert_eq!((status, &problem["code"]), (404, &json!("not_found")));
    let (status, problem, _) = hooked.post("broken", &headers, &body).await;
    assert_eq!((status, &problem["code"]), (503, &json!("unavailable")));
    assert!(hooked.host.get("/api/v1/runs").await["items"].as_array().unwrap().is_empty());

    let sources = hooked.host.get("/api/v1/webhook-sources").await;
    let problem = |nth: usize| sources["items"][nth]["problem"].as_str();
    assert_eq!((problem(0), problem(1)), (None, None));
    assert!(problem(2).unwrap().contains("AGENT_HOST_NO_SUCH_SECRET"), "{sources:#}");
    assert!(!sources.to_string().contains("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
    let ready = hooked.host.get("/readyz").await;
    assert!(ready["problems"].to_string().contains("broken"), "{ready:#}");
    hooked.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_without_the_mapped_values_is_named() {
    let hooked = Hooked::new();
    for (body, code, field) in [
        ("no json", "invalid_json", Value::Null),
        ("{}", "invalid_argument", json!("conversation_id")),
        (r#"{"kind":"a b","order":{"id":1},"customer":{"id":1}}"#, "invalid_argument", json!("event_type")),
        (r#"{"kind":"a","order":{"id":1}}"#, "invalid_argument", json!("actor_id")),
        (r#"{"kind":"a","order":{"id":[1]},"customer":{"id":1}}"#, "invalid_argument", json!("conversation_id")),
    ] {
        let (status, problem, _) = hooked.shop("m", now_s(), body).await;
        assert_eq!((status, &problem["code"], &problem["field"]), (400, &json!(code), &field), "{body}");
    }
    // Nothing was written, so the id is free.
    let (status, answer, _) = hooked.shop("m", now_s(), &order("x")).await;
    assert_eq!(status, 202);
    assert_eq!(answer["run_ids"].as_array().unwrap().len(), 1);
    assert!(answer.get("runs").is_none(), "the sender may read no runs: {answer}");
    hooked.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn answers_without_a_request_are_ignored() {
    let hooked = Hooked::new();
    let send = async |event: &str, delivery: &str, body: &str| {
        let signature = hub_signature(body);
        let headers = [("x-github-event", event), ("x-github-delivery", delivery), ("x-hub-signature-256", signature.as_str())];
        hooked.post("git", &headers, body).await
    };
    let (status, answer, _) = send("ping", "d0", r#"{"zen":"."}"#).await;
    assert_eq!((status, answer), (200, json!({ "ignored": true })));
    let large = json!({ "text": "x".repeat(100_000), "small": 1 }).to_string();
    let (status, answer, _) = send("issues", "d1", &large).await;
    assert_eq!(status, 202, "{answer:#}");
    let event = hooked.host.get(&format!("/api/v1/events/{}", answer["event_id"].as_str().unwrap())).await;
    assert_eq!(event["event_type"], "github.issues");
    assert!(event["raw_ref"]["size"].as_u64().unwrap() > 100_000, "what is large is an artifact: {event:#}");
    let (_, again, _) = send("issues", "d1", &large).await;
    assert_eq!(again, answer);
    assert_eq!(hooked.host.get("/api/v1/runs").await["items"].as_array().unwrap().len(), 1);
    hooked.host.check();
}

fn hub_signature(body: &str) -> String {
    use hmac::Mac;
    let mut mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(GITHUB.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    let bytes = mac.finalize().into_bytes();
    format!("sha256={}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}
