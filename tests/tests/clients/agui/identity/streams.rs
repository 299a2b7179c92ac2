//! Streams of a token end with it, and with its provider.

use std::time::{Duration, Instant};

use agent_host_tests::{support::now, world::PATIENCE};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    Who, World,
    provider::{KeyServer, Pair, claims, entry, seconds, with},
};
use crate::agui::support::{Wire, input, plain};

/// Half a minute of text.
fn endless() -> Value {
    json!([{ "do": "say", "text": "word ".repeat(600), "pieces": 600, "delay_ms": 50 }])
}

async fn streaming(world: &World, token: &str, thread: &str) -> Wire {
    let run = input(thread, "r", &endless());
    let mut wire = Wire::open(world.send(&Who::token(token), Method::POST, "/agents/stage/run", Some(&run)).await).await;
    wire.until(|event| event["type"] == "TEXT_MESSAGE_CONTENT").await;
    wire
}

/// The frames up to the end of a stream that has no end of its run.
async fn cut(mut wire: Wire) {
    let cut = async {
        let mut last = None;
        while let Some(frame) = wire.next().await {
            last = Some(frame.data);
        }
        last
    };
    let last = tokio::time::timeout(PATIENCE, cut).await.expect("the stream ends").unwrap_or_default();
    assert!(last["type"] != "RUN_FINISHED" && last["type"] != "RUN_ERROR", "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_when_its_token_does() {
    let pair = Pair::ec("k");
    let server = KeyServer::start(&[&pair]).await;
    let world = World::start(&entry("login", &server.url())).await;
    let ends = seconds() + 4;
    let token = pair.token(&with(claims("login", "ada"), json!({ "exp": ends })));
    let wire = streaming(&world, &token, "t").await;
    cut(wire).await;
    // The leeway is a second.
    let late = now().saturating_sub((ends + 1) * 1000);
    assert!(now() >= (ends + 1) * 1000 && late < 5_000, "{late} ms late");
    assert_eq!(world.status(&token).await, 401);
    // The same user with another token has the thread.
    let next = Who::token(&pair.token(&claims("login", "ada")));
    assert!(world.json(&next, "/agents/stage/threads").await.to_string().contains("\"t\""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_ends_what_a_provider_that_is_removed_has_let_in() {
    let pair = Pair::ec("k");
    let server = KeyServer::start(&[&pair]).await;
    let (login, other) = (entry("login", &server.url()), entry("other", &server.url()));
    let world = World::start(&[login.as_str(), &other].concat()).await;
    let [ada, bob] = [("login", "ada"), ("other", "bob")].map(|(provider, user)| pair.token(&claims(provider, user)));
    let (hers, mut his) = (streaming(&world, &ada, "a").await, streaming(&world, &bob, "b").await);
    let fetches = server.fetches();
    let began = Instant::now();
    world.reload(&other).await;
    cut(hers).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let (status, headers, body) = world.refusal(&ada).await;
    assert_eq!((status, headers["www-authenticate"].to_str().unwrap()), (401, "Bearer error=\"invalid_token\""), "{body}");
    // A provider that stays keeps its keys and its streams.
    his.until(|event| event["type"] == "TEXT_MESSAGE_CONTENT").await;
    assert_eq!((world.status(&bob).await, server.fetches()), (200, fetches));
    // A provider that is changed lets in anew, by what holds now.
    world.reload(&other.replace("audiences = [\"agents\"]", "audiences = [\"elsewhere\"]")).await;
    cut(his).await;
    assert_eq!(world.refusal(&bob).await.0, 401);
    world.reload(&[login.as_str(), &other].concat()).await;
    assert_eq!((world.status(&ada).await, world.status(&bob).await), (200, 200));
    // A configuration that cannot be leaves what is.
    let file = world.host.process().dir.path().join("agent-host.toml");
    let text = std::fs::read_to_string(&file).unwrap().replace("\"runs:read\",", "\"on_behalf_of\",");
    std::fs::write(&file, text).unwrap();
    let answer = world.host.http.post(world.host.url("/api/v1/config/reload")).bearer_auth(&world.operator).send().await.unwrap();
    let (status, body) = crate::agui::support::problem(answer).await;
    assert_eq!((status, &body["code"]), (422, &json!("config_refused")), "{body}");
    assert!(plain(&body["detail"]).contains("`on_behalf_of`"), "{body}");
    assert_eq!(world.status(&ada).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_token_ends_with_the_token_that_named_its_user() {
    let pair = Pair::ec("k");
    let server = KeyServer::start(&[&pair]).await;
    let world = World::start(&entry("login", &server.url())).await;
    let ends = seconds() + 4;
    let token = pair.token(&with(claims("login", "ada"), json!({ "exp": ends })));
    let _wire = streaming(&world, &token, "t").await;
    let wanted = json!({ "agent_id": "stage", "thread_id": "t", "run_id": "r" });
    let made = world.send(&Who::token(&token), Method::POST, "/api/v1/stream-tokens", Some(&wanted)).await;
    let made: Value = made.json().await.unwrap();
    let open = async || reqwest::get(world.host.url(&plain(&made["url"]))).await.unwrap();
    let mut wire = Wire::open(open().await).await;
    wire.until(|event| event["type"] == "TEXT_MESSAGE_CONTENT").await;
    cut(wire).await;
    assert!(now() >= (ends + 1) * 1000);
    assert!(made["expires_at"].as_u64().unwrap() > now() + 60_000);
    let refused = open().await;
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["www-authenticate"]),
        (401, &"Bearer error=\"invalid_token\"".parse().unwrap())
    );
}
