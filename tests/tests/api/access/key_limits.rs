//! Limits of a key: requests in a minute, tokens in a day.

use agent_host_tests::Process;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    access::support::{Answer, Guarded, cli, message},
    watch::services::Model,
};

/// The seconds of `Retry-After`.
fn retry_after(answer: &Answer) -> u64 {
    answer.headers["retry-after"].to_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_key_sends_so_many_requests_in_a_minute() {
    let host = Guarded::small(&[], "", "");
    let wanted = json!({ "name": "slow", "scopes": ["runs:read"], "requests_per_minute": 5 });
    let (id, slow) = host.key_like(wanted).await;
    let (_, other) = host.key_like(json!({ "name": "other", "scopes": ["runs:read"] })).await;
    for _ in 0..5 {
        host.get(&slow, "/api/v1/runs").await.good();
    }
    let refused = host.get(&slow, "/api/v1/runs").await;
    refused.is(429, "rate_limited");
    assert!((1..=12).contains(&retry_after(&refused)), "{refused:?}");
    assert!(refused.json["detail"].as_str().unwrap().contains("`slow` may send 5 requests in a minute"), "{refused:?}");
    // Other keys, and what needs no key.
    host.get(&other, "/api/v1/runs").await.good();
    host.ask(Some(&slow), Method::GET, "/healthz", None).await.good();
    for bad in [json!({ "requests_per_minute": 0 }), json!({ "tokens_per_day": 0 })] {
        let mut wanted = json!({ "name": "bad", "scopes": ["runs:read"] });
        wanted.as_object_mut().unwrap().extend(bad.as_object().unwrap().clone());
        host.post(&host.root, "/api/v1/keys", &wanted).await.is(400, "invalid_argument");
    }
    let listed = host.get(&host.root, "/api/v1/keys").await.good();
    let listed = listed["items"].as_array().unwrap().iter().find(|key| key["key_id"] == *id).unwrap().clone();
    assert_eq!((&listed["requests_per_minute"], listed.get("tokens_today")), (&json!(5), None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_key_whose_tokens_of_the_day_are_used_begins_no_runs_also_after_a_restart() {
    let model = Model::start(json!({}), "an answer").await;
    let config = format!(
        "[[models]]\nid = \"chat\"\nprovider = \"openai\"\nbase_url = \"{}/v1\"\n\
         [[bindings]]\nid = \"agent\"\nrunner = \"plugin:agent-host/local-agent/default\"\n",
        model.url
    );
    let host = Guarded::small(&["local_agent"], "", &config);
    let scopes = ["events:write", "runs:control", "runs:read"];
    let (id, key) = host.key_like(json!({ "name": "small", "scopes": scopes, "tokens_per_day": 30 })).await;
    let (_, other) = host.key_like(json!({ "name": "other", "scopes": scopes })).await;
    // A call of a tool, and the answer: 19 tokens each. The run goes on beyond the budget.
    let (_, answered) = host.send(&key, "hello").await;
    host.until(&answered, "completed").await;
    let refused = host.post(&key, "/api/v1/events", &message("once more")).await;
    refused.is(429, "token_budget_exhausted");
    assert!((1..=86_400).contains(&retry_after(&refused)), "{refused:?}");
    let create = json!({ "binding_id": "agent", "input": { "text": "x" } });
    host.post(&key, "/api/v1/runs", &create).await.is(429, "token_budget_exhausted");
    host.post(&key, &format!("/api/v1/runs/{answered}/retry"), &json!({})).await.is(429, "token_budget_exhausted");
    let turn = json!({ "agent": "agent", "input": { "text": "x" } });
    host.post(&key, "/api/v1/threads/t/turns", &turn).await.is(429, "token_budget_exhausted");
    host.get(&key, &format!("/api/v1/runs/{answered}")).await.good();
    let (_, run) = host.send(&other, "hello").await;
    host.until(&run, "completed").await;
    let used = |listed: &Value| {
        let listed = listed["items"].as_array().unwrap().iter().find(|key| key["key_id"] == *id).unwrap();
        listed["tokens_today"].as_u64().unwrap()
    };
    assert_eq!(used(&host.get(&host.root, "/api/v1/keys").await.good()), 38);

    let Guarded { process, http, root } = host;
    let dir = process.terminate();
    assert_eq!(used(&cli(dir.path(), &["--json", "keys", "list"])), 38);
    let host = Guarded { process: Process::start_as(dir, "", &config), http, root };
    host.post(&key, "/api/v1/events", &message("once more")).await.is(429, "token_budget_exhausted");
    let (_, run) = host.send(&other, "hello").await;
    host.until(&run, "completed").await;
}
