//! The messages that the host puts into a context: manifest ∩ binding.

use serde_json::{Value, json};

use crate::operations::host::{Host, LIMITS, until};

fn host() -> Host {
    let binding = |id: &str, runner: &str, more: &str| {
        format!("[[bindings]]\nid = \"{id}\"\nrunner = \"{runner}\"\nmatch = {{ event_type = \"{id}\" }}\n{more}\n")
    };
    let stage = "plugin:test/stage/default";
    let tail = "bootstrap = { mode = \"recent_tail\", max_events = 2 }";
    let bindings = [
        binding("own", "plugin:agent-host/echo/default", tail),
        binding("default", stage, ""),
        binding("tail", stage, tail),
        binding("none", stage, "bootstrap = { mode = \"none\" }"),
        binding("few-bytes", stage, "bootstrap = { mode = \"recent_tail\", max_bytes = 600 }"),
        binding("summary", stage, "bootstrap = { mode = \"summary_tail\" }"),
    ];
    Host::start(&["echo", "stage"], &format!("{LIMITS}{}", bindings.concat()))
}

/// The context of an ended run of this binding, in the one conversation of the test.
async fn context(host: &Host, binding: &str, text: &str) -> Value {
    let event = json!({ "event_type": binding, "conversation": { "conversation_id": "c" }, "input": { "text": text } });
    let (_, answer) = host.post("/api/v1/events", &event).await;
    let id = answer["runs"][0]["run_id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    until("it ends", async || host.run(&id).await["status"] == "completed").await;
    host.get(&format!("/api/v1/runs/{id}/context")).await.1
}

fn inline_context(context: &Value) -> (Vec<&str>, &Value, &str) {
    let messages = context["bootstrap"]["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let policy = &context["context"]["inline_policy"];
    let texts = messages.iter().map(|message| message["content"].as_str().unwrap()).collect();
    (texts, &policy["mode"], policy["reason"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_context_has_the_messages_that_manifest_and_binding_allow() {
    let host = host();
    let set = json!([{ "do": "state", "key": "context.summary", "value": { "text": "They greet.", "transcript_seq": 2 }, "set": true }]);
    let first = context(&host, "default", "one").await;
    let (texts, mode, reason) = inline_context(&first);
    assert_eq!((texts.len(), mode, reason), (0, &json!("current_event"), "manifest"));
    context(&host, "default", &set.to_string()).await;

    let own = context(&host, "own", "two").await;
    let (texts, mode, reason) = inline_context(&own);
    assert_eq!((texts.len(), mode), (0, &json!("current_event")));
    assert!(reason.contains("self_managed"), "{reason}");

    let tail = context(&host, "tail", "three").await;
    let (texts, mode, reason) = inline_context(&tail);
    assert_eq!((texts.len(), texts[0], mode), (2, "two", &json!("recent_tail")), "{texts:?}");
    assert!(reason.starts_with("binding; the newest messages"), "{reason}");

    let none = context(&host, "none", "a text").await;
    assert_eq!(inline_context(&none), (vec![], &json!("none"), "binding"));
    // The oldest of the messages are left out.
    let long = "x".repeat(400);
    for text in [&long, &long, "three"] {
        context(&host, "default", text).await;
    }
    let few = context(&host, "few-bytes", "now").await;
    let (texts, mode, reason) = inline_context(&few);
    let size: usize = texts.iter().map(|text| text.len()).sum();
    assert!((1..=600).contains(&size) && *texts.last().unwrap() == "three" && mode == "recent_tail", "{texts:?}");
    assert!(reason.starts_with("binding"), "{reason}");
    let policy = &few["context"]["inline_policy"];
    assert_eq!(policy["delivered_count"], texts.len(), "{policy:#}");
    assert!(policy["source_total_count"].as_u64() > Some(texts.len() as u64), "{policy:#}");

    let summary = context(&host, "summary", "four").await;
    let (texts, mode, reason) = inline_context(&summary);
    assert_eq!((&summary["bootstrap"]["summary"], mode), (&json!("They greet."), &json!("summary_tail")));
    assert!(reason.contains("the summary of the runner and every message after it"), "{reason}");
    assert!(!texts.contains(&"one") && texts.contains(&"three"), "{texts:?}");
}
