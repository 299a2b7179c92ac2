//! Ten thousand requests, most of them wrong in some way: each gets an answer of the documented form, and none breaks the host.

use std::{collections::BTreeMap, env, time::Duration};

use agent_host_tests::world::PATIENCE;
use futures_util::{StreamExt, stream};
use reqwest::{Client, Response};
use serde_json::{Value, json};

use crate::agui::{
    bodies::{Random, body},
    support::{Host, config, faultless, input, is_terminal, sound},
};

const AT_ONCE: usize = 32;

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_bodies_are_answered_as_the_documents_say() {
    let (seed, count) = (number("AGUI_SEED", 20_261_122), number("AGUI_BODIES", 10_000));
    println!("AGUI_SEED={seed} AGUI_BODIES={count}");
    let limits = "http_body_bytes = 200000";
    let agui = "[agui.api]\nagent = \"stage\"\nprofile = \"strict\"";
    let host = Host::with_config("loopback_without_key = true", &config(agui, limits)).await;
    let mut random = Random(seed);
    let requests: Vec<_> = (0..usize::try_from(count).unwrap())
        .map(|n| {
            let path = *random.of(&["/agents/stage/run", "/agents/stage/run", "/agents/stage/connect", "/api/v1/agent/runs"]);
            let accept = *random.of(&[
                "text/event-stream",
                "text/event-stream",
                "text/event-stream",
                "*/*",
                "application/json",
                "application/vnd.ag-ui.event+proto",
            ]);
            (n, path, accept, body(&mut random, n, path.starts_with("/api")))
        })
        .collect();
    // Straight to the host: nothing is cut here.
    let http = Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
    let url = host.process().url.clone();
    let answers: Vec<(usize, &str, Result<String, String>)> = stream::iter(&requests)
        .map(|(n, path, accept, body)| {
            let request = http.post(format!("{url}{path}")).header("content-type", "application/json").header("accept", *accept);
            let request = request.body(body.clone());
            async move {
                let checked = match request.send().await {
                    Ok(answer) => documented(answer).await,
                    Err(error) => Err(format!("no answer: {error:?}")),
                };
                (*n, *path, checked)
            }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let mut faults = Vec::new();
    for (n, path, checked) in answers {
        match checked {
            Ok(kind) => *kinds.entry(format!("{path} {kind}")).or_default() += 1,
            Err(fault) => faults.push(format!("{n} {path}: {fault}\n  {}", String::from_utf8_lossy(&requests[n].3))),
        }
    }
    println!("{kinds:#?}");
    let shown: Vec<&str> = faults.iter().take(5).map(String::as_str).collect();
    assert!(faults.is_empty(), "{} of {count} (AGUI_SEED={seed}):\n{}", faults.len(), shown.join("\n"));
    // Some valid requests succeed; and the host works as before.
    let streams: usize = kinds.iter().filter(|(kind, _)| kind.contains("stream")).map(|(_, count)| count).sum();
    assert!(streams > usize::try_from(count).unwrap() / 20, "{kinds:#?}");
    let valid_input = input("after-all", "after-all", &json!([{ "do": "say", "text": "Still here." }]));
    sound(&host.run(&valid_input).await.rest().await, "after-all", "after-all");
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// The kind of an answer, or its problem.
async fn documented(answer: Response) -> Result<String, String> {
    let status = answer.status().as_u16();
    let kind = answer.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
    let bytes = answer.bytes().await.map_err(|error| format!("{status} {kind}: it broke off: {error:?}"))?;
    let text = || String::from_utf8_lossy(&bytes).into_owned();
    match (status, kind.as_str()) {
        (200, "text/event-stream") => events(&text()),
        (200, "application/vnd.ag-ui.event+proto") => frames(&bytes),
        (202, "application/json") => {
            let accepted: Value = serde_json::from_str(&text()).map_err(|error| format!("{error}: {}", text()))?;
            let has = |name: &str| accepted[name].is_string();
            if has("taskId") && has("threadId") && has("runId") && accepted["created"].is_boolean() {
                Ok("accepted".to_owned())
            } else {
                Err(text())
            }
        }
        (400..500, "application/problem+json") => {
            let problem: Value = serde_json::from_str(&text()).map_err(|error| format!("{error}: {}", text()))?;
            let has_text = |name: &str| problem[name].as_str().is_some_and(|text| !text.is_empty());
            if problem["status"] == status && has_text("code") && has_text("title") && has_text("detail") && has_text("type") {
                Ok(format!("{status} {}", problem["code"].as_str().unwrap_or_default()))
            } else {
                Err(text())
            }
        }
        _ => Err(format!("{status} {kind}: {}", text())),
    }
}

fn events(text: &str) -> Result<String, String> {
    let mut events = Vec::new();
    for frame in text.split_inclusive("\n\n") {
        let frame = frame.strip_suffix("\n\n").ok_or_else(|| format!("half an event: {frame:?}"))?;
        if frame.starts_with(':') {
            continue;
        }
        let placed = frame.strip_prefix("id: ").and_then(|rest| rest.split_once('\n'));
        let frame = placed.map_or(frame, |(_, rest)| rest);
        let data = frame.strip_prefix("data: ").filter(|data| !data.contains(['\n', '\r']));
        let data = data.ok_or_else(|| format!("no line of data: {frame:?}"))?;
        events.push(serde_json::from_str::<Value>(data).map_err(|error| format!("{error}: {data}"))?);
    }
    let ends = events.iter().filter(|event| is_terminal(event)).count();
    if ends != 1 || !events.last().is_some_and(is_terminal) {
        return Err(format!("{ends} ends: {text}"));
    }
    faultless(&events).map_err(|fault| format!("{fault}\n{text}"))?;
    let last = events.last().unwrap_or(&Value::Null);
    if last["code"] == "internal" {
        return Err(format!("the host does not know what to say: {text}"));
    }
    Ok(format!("stream {} {}", last["type"], last["code"]))
}

/// Lengths and messages, to the end.
fn frames(mut bytes: &[u8]) -> Result<String, String> {
    let mut count = 0;
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or("half a length")?;
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        bytes = rest.get(length..).ok_or("half a message")?;
        count += 1;
    }
    if count < 2 { Err(format!("{count} messages")) } else { Ok("stream of protobuf".to_owned()) }
}
