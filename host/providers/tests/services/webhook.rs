//! Webhooks against real servers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test"
)]

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use agent_host_protocol::{ApiError, ErrorCode};
use agent_host_providers::{
    secret::{Secret, SecretRef},
    webhook::{ActionHookConfig, ActionHooks, key, sign},
};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderName, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;

const SECRET: &str = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnk=";

#[derive(Clone, Default)]
struct Service {
    seen: Arc<Mutex<Vec<(Instant, HeaderMap, Bytes)>>>,
    answers: Arc<Mutex<VecDeque<Say>>>,
}

#[derive(Clone)]
enum Say {
    Status(u16, String),
    RetryAfter(u16, &'static str),
    Redirect(String),
    Hang,
    Endless,
    Break,
}

fn status(status: u16, body: &str) -> Say {
    Say::Status(status, body.to_owned())
}

async fn answer(State(service): State<Service>, headers: HeaderMap, body: Bytes) -> Response {
    service.seen.lock().unwrap().push((Instant::now(), headers, body));
    let say = {
        let mut answers = service.answers.lock().unwrap();
        if answers.len() > 1 { answers.pop_front().unwrap() } else { answers[0].clone() }
    };
    match say {
        Say::Status(status, body) => (StatusCode::from_u16(status).unwrap(), body).into_response(),
        Say::RetryAfter(status, after) => {
            (StatusCode::from_u16(status).unwrap(), [(HeaderName::from_static("retry-after"), after)]).into_response()
        }
        Say::Redirect(to) => (StatusCode::TEMPORARY_REDIRECT, [(HeaderName::from_static("location"), to)]).into_response(),
        Say::Hang => std::future::pending().await,
        Say::Endless => {
            Body::from_stream(futures_util::stream::repeat_with(|| Ok::<_, String>("[".repeat(1000)))).into_response()
        }
        Say::Break => {
            let pieces = futures_util::stream::iter([Ok("{"), Err("gone")]);
            Body::from_stream(pieces.then(|piece| async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                piece
            }))
            .into_response()
        }
    }
}

/// A service that answers so, one after the other; the last is repeated.
async fn service(answers: impl IntoIterator<Item = Say>) -> (Service, String) {
    let service = Service { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Service::default() };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let app = Router::new().route("/hook", post(answer)).with_state(service.clone());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (service, url)
}

struct Hooks {
    hooks: ActionHooks,
    _secret: tempfile::NamedTempFile,
}

fn config(url: &str, secret: SecretRef) -> ActionHookConfig {
    ActionHookConfig {
        actions: vec!["message.*".into(), "issue.close".into()],
        url: url.into(),
        secret,
        timeout_ms: 1_000,
        max_attempts: 3,
    }
}

fn hooks_with(url: &str, secret: &str, change: impl FnOnce(&mut ActionHookConfig)) -> Hooks {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), secret).unwrap();
    let mut config = config(url, SecretRef::File(file.path().into()));
    change(&mut config);
    config.check().unwrap();
    Hooks { hooks: ActionHooks::open(&[config]).unwrap(), _secret: file }
}

fn hooks(url: &str) -> Hooks {
    hooks_with(url, SECRET, |_| ())
}

impl Hooks {
    async fn call(&self) -> Result<Value, ApiError> {
        self.call_within(Duration::from_secs(20)).await
    }

    async fn call_within(&self, time: Duration) -> Result<Value, ApiError> {
        self.hooks.call("message.edit", "run-1.7", &json!({ "text": "ä" }), Instant::now() + time).await
    }
}

fn code(error: &ApiError) -> &str {
    error.details.as_ref().unwrap()["code"].as_str().unwrap()
}

#[tokio::test]
async fn a_request_is_signed_and_its_answer_comes_back() {
    let (service, url) = service([status(200, r#"{"id":7}"#)]).await;
    assert_eq!(hooks(&url).call().await.unwrap(), json!({ "id": 7 }));
    let (_, headers, body) = service.seen.lock().unwrap().remove(0);
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    assert_eq!((header("webhook-id"), header("idempotency-key")), ("run-1.7".into(), "run-1.7".into()));
    assert_eq!(header("content-type"), "application/json");
    let sent: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&sent["type"], &sent["data"]), (&json!("action.execute"), &json!({ "text": "ä" })));
    assert_eq!(sent.as_object().unwrap().len(), 3);
    let written: jiff::Timestamp = sent["timestamp"].as_str().unwrap().parse().unwrap();
    let at: i64 = header("webhook-timestamp").parse().unwrap();
    let now = jiff::Timestamp::now().as_second();
    assert!((now - 10..=now).contains(&at) && (now - 10..=now).contains(&written.as_second()));

    // By the definition of HMAC (RFC 2104), and not by the crate that signs.
    let signed = [format!("run-1.7.{at}.").as_bytes(), &body].concat();
    let mut key = b"canary-canary-canary".to_vec();
    key.resize(64, 0);
    let pad = |byte: u8| key.iter().map(|key| key ^ byte).collect::<Vec<u8>>();
    let hash = |bytes: Vec<u8>| <sha2::Sha256 as sha2::Digest>::digest(bytes).to_vec();
    let mac = hash([pad(0x5c), hash([pad(0x36), signed].concat())].concat());
    assert_eq!(header("webhook-signature"), format!("v1,{}", STANDARD.encode(mac)));
}

#[test]
fn signatures_are_those_of_other_implementations() {
    // Made with Python's hmac; the first is the example of the libraries of Standard Webhooks.
    let secret = key(&Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")).unwrap();
    let signature = sign(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
    assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    assert_eq!(sign(&[b'k'; 100], "a", 1, b"b"), "v1,WfySha71OXyxjHzjRE+ml5jL73R5dWEpbKPE+aVBb9I=");
    assert_eq!(key(&Secret::new("any text")).unwrap(), b"any text");
    assert_eq!(key(&Secret::new("whsec_YQ")).unwrap(), b"a", "padding may be missing");
    assert!(key(&Secret::new("whsec_?")).is_err() && key(&Secret::new("whsec_")).is_err());
}

#[tokio::test]
async fn an_unconfirmed_delivery_is_repeated_unchanged() {
    for first in [status(500, ""), status(503, "busy"), status(408, ""), status(425, ""), status(429, ""), Say::Hang, Say::Break]
    {
        let (service, url) = service([first, status(200, "true")]).await;
        assert_eq!(hooks(&url).call().await.unwrap(), json!(true));
        let seen = service.seen.lock().unwrap();
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[0].1["webhook-id"], seen[1].1["webhook-id"]);
        assert_eq!(seen[0].1["idempotency-key"], seen[1].1["idempotency-key"]);
        assert_eq!(seen[0].2, seen[1].2, "the body is the same");
        assert!(seen[1].0 - seen[0].0 >= Duration::from_millis(200), "there is a pause");
    }
}

#[tokio::test]
async fn attempts_end_and_the_last_failure_is_told() {
    for (say, expect, seen) in [
        (status(500, "it broke"), "webhook_failed", 3),
        (Say::Break, "webhook_unreachable", 3),
        (Say::Hang, "webhook_timeout", 3),
        (status(400, "no such message"), "webhook_refused", 1),
        (status(404, ""), "webhook_refused", 1),
        (status(410, "\u{1b}[31mgone"), "webhook_refused", 1),
    ] {
        let (service, url) = service([say]).await;
        let error = hooks_with(&url, SECRET, |config| config.timeout_ms = 200).call().await.unwrap_err();
        assert_eq!((code(&error), &error.code), (expect, &ErrorCode::RuntimeError));
        assert_eq!(error.retryable, seen == 3, "{error:?}");
        assert_eq!(service.seen.lock().unwrap().len(), seen);
        assert!(!error.message.contains('\u{1b}'), "{error:?}");
        if expect == "webhook_refused" {
            assert!(error.details.unwrap()["status"].is_u64());
        }
    }
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = hooks(&format!("http://{nobody}/canary")).call().await.unwrap_err();
    assert_eq!((code(&error), error.retryable), ("webhook_unreachable", true));
    assert!(!format!("{error:?}").contains("canary"), "{error:?}");
}

#[tokio::test]
async fn the_service_says_when_to_come_back() {
    let (service, url) = service([Say::RetryAfter(429, "1"), status(200, "1")]).await;
    assert_eq!(hooks(&url).call().await.unwrap(), json!(1));
    {
        let seen = service.seen.lock().unwrap();
        let pause = seen[1].0 - seen[0].0;
        assert!((Duration::from_secs(1)..Duration::from_secs(3)).contains(&pause), "{pause:?}");
    }
    // Later than the deadline: nobody waits for it.
    let (_service, url) = self::service([Say::RetryAfter(503, "3600")]).await;
    let started = Instant::now();
    let error = hooks(&url).call().await.unwrap_err();
    assert_eq!(code(&error), "webhook_failed");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn the_deadline_of_the_call_ends_everything() {
    let (service, url) = service([Say::Hang]).await;
    let started = Instant::now();
    let error =
        hooks_with(&url, SECRET, |config| config.timeout_ms = 60_000).call_within(Duration::from_millis(300)).await.unwrap_err();
    assert_eq!((code(&error), error.code.clone()), ("webhook_deadline", ErrorCode::DeadlineExceeded));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(service.seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn an_answer_is_json_or_nothing() {
    let deep = "[".repeat(100) + &"]".repeat(100);
    for (say, expect) in [
        (status(204, ""), Some(Value::Null)),
        (status(200, " \n"), Some(Value::Null)),
        (status(202, "\"later\""), Some(json!("later"))),
        (status(200, &format!("\"{}\"", "x".repeat((256 << 10) - 2))), Some(json!("x".repeat((256 << 10) - 2)))),
        (status(200, &format!("\"{}\"", "x".repeat((256 << 10) - 1))), None),
        (status(200, "<html>"), None),
        (status(200, "{} {}"), None),
        (status(200, &deep), None),
        (Say::Endless, None),
    ] {
        let (service, url) = service([say]).await;
        let answer = hooks(&url).call().await;
        match expect {
            Some(expect) => assert!(answer.unwrap() == expect),
            None => {
                let error = answer.unwrap_err();
                assert_eq!((code(&error), error.retryable), ("webhook_invalid_answer", false), "{error:?}");
            }
        }
        assert_eq!(service.seen.lock().unwrap().len(), 1, "it was heard, so it is not sent again");
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (elsewhere, other) = service([status(200, "1")]).await;
    let (service, url) = service([Say::Redirect(other)]).await;
    let error = hooks(&url).call().await.unwrap_err();
    assert_eq!((code(&error), error.details.as_ref().unwrap()["status"].as_u64()), ("webhook_redirected", Some(307)));
    assert_eq!((service.seen.lock().unwrap().len(), elsewhere.seen.lock().unwrap().len()), (1, 0));
}

#[tokio::test]
async fn a_service_that_repeats_the_secret_is_not_passed_on() {
    let bare = SECRET.strip_prefix("whsec_").unwrap();
    let (_one, url) = service([status(200, &format!(r#"{{"{SECRET}":["{bare}"]}}"#))]).await;
    let answer = hooks(&url).call().await.unwrap().to_string();
    assert!(!answer.contains(bare), "{answer}");
    let (_two, url) = service([status(400, &format!("{} {SECRET}", "x".repeat(280)))]).await;
    let error = hooks(&url).call().await.unwrap_err();
    assert!(!format!("{error:?}").contains("Y2FuYXJ5"), "{error:?}");
}

#[tokio::test]
async fn an_action_goes_to_the_first_webhook_that_names_it() {
    let (first, url) = service([status(200, "1")]).await;
    let (second, other) = service([status(200, "2")]).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), SECRET).unwrap();
    let secret = SecretRef::File(file.path().into());
    let all = ActionHookConfig { actions: vec!["*".into()], ..config(&other, secret.clone()) };
    let hooks = ActionHooks::open(&[config(&url, secret.clone()), all]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    for (action, expect) in [("message.edit", 1), ("message.", 1), ("issue.close", 1), ("issue.close2", 2), ("message", 2)] {
        assert!(hooks.has(action));
        assert_eq!(hooks.call(action, "id", &json!({}), deadline).await.unwrap(), json!(expect), "{action}");
    }
    assert_eq!((first.seen.lock().unwrap().len(), second.seen.lock().unwrap().len()), (3, 2));

    let few = ActionHooks::open(&[config(&url, secret)]).unwrap();
    assert!(!few.has("file.delete"));
    let error = few.call("file.delete", "id", &json!({}), deadline).await.unwrap_err();
    assert_eq!((code(&error), error.code.clone()), ("no_action_hook", ErrorCode::RuntimeError));
    assert!(error.message.contains("`file.delete`") && error.message.contains("action_hooks"), "{error:?}");
    for id in ["", "a b", "a\r\nb", "ä", &"x".repeat(257)] {
        assert_eq!(few.call("issue.close", id, &json!({}), deadline).await.unwrap_err().code, ErrorCode::InvalidArgument);
    }
}

#[tokio::test]
async fn a_secret_that_is_not_there_is_a_problem_and_no_error() {
    let (service, url) = service([status(200, "1")]).await;
    let hooks = ActionHooks::open(&[config(&url, SecretRef::Env("AGENT_HOST_NO_SUCH".into()))]).unwrap();
    assert!(hooks.problems()[0].contains("AGENT_HOST_NO_SUCH"), "{:?}", hooks.problems());
    let deadline = Instant::now() + Duration::from_secs(20);
    let error = hooks.call("message.edit", "id", &json!({}), deadline).await.unwrap_err();
    assert_eq!((code(&error), service.seen.lock().unwrap().len()), ("webhook_secret_missing", 0));
    let broken = hooks_with(&url, "whsec_canary!", |_| ());
    assert_eq!(broken.hooks.problems().len(), 1);
    assert!(!format!("{:?}{:?}", broken.hooks.problems(), broken.hooks).contains("canary"));
    assert_eq!(code(&broken.call().await.unwrap_err()), "webhook_secret_missing");
}

#[test]
fn a_configuration_that_cannot_be_used_is_refused_with_its_key() {
    let good = config("https://hooks.example/x", SecretRef::Env("KEY".into()));
    good.check().unwrap();
    let actions = |action: &str| ActionHookConfig { actions: vec![action.into()], ..good.clone() };
    let url = |url: &str| ActionHookConfig { url: url.into(), ..good.clone() };
    for (config, says) in [
        (ActionHookConfig { actions: Vec::new(), ..good.clone() }, "actions"),
        (actions(""), "actions"),
        (actions("a.*.b"), "actions"),
        (actions("**"), "actions"),
        (actions("a b"), "actions"),
        (url("hooks.example"), "url"),
        (url("ftp://hooks.example"), "url"),
        (url("https://user:password@hooks.example"), "password"),
        (ActionHookConfig { timeout_ms: 0, ..good.clone() }, "timeout_ms"),
        (ActionHookConfig { max_attempts: 0, ..good.clone() }, "max_attempts"),
        (ActionHookConfig { max_attempts: 21, ..good.clone() }, "max_attempts"),
    ] {
        let error = config.check().unwrap_err();
        assert!(error.contains(says), "{error}");
        assert_eq!(ActionHooks::open(&[config]).unwrap_err(), error);
    }
    let read: ActionHookConfig =
        toml::from_str("actions = [\"*\"]\nurl = \"https://a.example\"\nsecret = { env = \"KEY\" }").unwrap();
    assert_eq!((read.timeout_ms, read.max_attempts), (10_000, 5));
    assert!(toml::from_str::<ActionHookConfig>("actions = [\"*\"]\nurl = \"u\"\nsecret = { env = \"K\" }\nretries = 1").is_err());
}
