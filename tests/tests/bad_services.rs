//! Models, tool servers, knowledge bases and guests that misbehave: each call ends with the documented error, the record of
//! the run has the reason, the host continues, and its memory returns to the level before.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use agent_host_protocol::event::Envelope;
use agent_host_tests::{
    World,
    world::{EndedRun, PATIENCE},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

fn chunk(delta: Value, finish: Value) -> String {
    format!("data: {}\n\n", json!({ "id": "x", "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] }))
}

/// Requests to the busy model.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Answers one request as the model that it names does.
async fn misbehave(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = Vec::new();
    let body = loop {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&request);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
        if body.len() >= length.unwrap_or(0) {
            break body.to_owned();
        }
    };
    let body: Value = serde_json::from_str(&body)?;
    let delta = chunk(json!({ "role": "assistant", "content": "Once" }), Value::Null);
    let stop = chunk(json!({}), json!("stop"));
    let usage = |usage: Value| format!("data: {}\n\ndata: [DONE]\n\n", json!({ "choices": [], "usage": usage }));
    let plain = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let chunked = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let text = match body["model"].as_str().unwrap_or_default() {
        "good" => format!("{plain}{delta}{stop}{}", usage(json!({ "prompt_tokens": 5, "completion_tokens": 1 }))),
        // Every second request is too many.
        "busy" if BUSY.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) => {
            "HTTP/1.1 429 Too Many Requests\r\nretry-after-ms: 20\r\nconnection: close\r\n\r\nslow down".to_owned()
        }
        "busy" => format!("{plain}{delta}{stop}{}", usage(json!({ "prompt_tokens": 5, "completion_tokens": 1 }))),
        "stall" => {
            stream.write_all(format!("{plain}{delta}").as_bytes()).await?;
            stream.flush().await?;
            // Until the host closes the connection.
            let _ = stream.read(&mut [0; 16]).await?;
            return Ok(());
        }
        "mute" => {
            let _ = stream.read(&mut [0; 16]).await?;
            return Ok(());
        }
        "garbage" => format!("{plain}{delta}data: {{\"choices\": \u{7}oh no\n\n{stop}"),
        "noise" => {
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n<html>\u{0}\u{1}</html>".to_owned()
        }
        "nonsense" => "I do not speak HTTP\r\n\r\n".to_owned(),
        "break" => format!("{chunked}{:x}\r\n{delta}\r\n", delta.len()),
        "short" => format!("{plain}{delta}"),
        "error" => format!("{plain}{delta}data: {}\n\n", json!({ "error": { "message": "I fell", "type": "server_error" } })),
        "lies" => format!("{plain}{delta}{stop}{}", usage(json!({ "prompt_tokens": -4, "completion_tokens": 1e300 }))),
        "zero" => format!("{plain}{delta}{stop}{}", usage(json!({ "prompt_tokens": 0, "completion_tokens": 0 }))),
        "call" => {
            let function = json!({ "name": "good__add", "arguments": "{\"a\": 1, " });
            let call = json!({ "tool_calls": [{ "index": 0, "id": "c", "type": "function", "function": function }] });
            format!("{plain}{}{}{}", chunk(call, Value::Null), chunk(json!({}), json!("tool_calls")), "data: [DONE]\n\n")
        }
        "endless" => {
            stream.write_all(plain.as_bytes()).await?;
            let piece = chunk(json!({ "content": "again and ".repeat(1000) }), Value::Null);
            loop {
                stream.write_all(piece.as_bytes()).await?;
            }
        }
        // A line that never ends.
        "line" => {
            stream.write_all(plain.as_bytes()).await?;
            stream.write_all(b"data: ").await?;
            loop {
                stream.write_all(&[b'x'; 64 * 1024]).await?;
            }
        }
        other => panic!("no model {other}"),
    };
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

/// A server of models that misbehave, and where it is.
async fn models() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move { drop(misbehave(stream).await) });
        }
    });
    format!("http://{address}/v1")
}

const MODELS: [&str; 14] = [
    "good", "stall", "mute", "garbage", "noise", "nonsense", "break", "short", "error", "lies", "zero", "call", "endless", "line",
];

/// Each misbehaviour of a tool server has a server of its own, so that one does not disturb the other.
const SERVERS: [&str; 7] = ["good", "crash", "hang", "garbage", "flood", "change", "large"];

async fn world() -> World {
    let url = models().await;
    let mut text = String::from("[limits]\nguest_handles = 100\n");
    for model in MODELS {
        text += &format!(
            "[[models]]\nid = \"{model}\"\nprovider = \"openai\"\nbase_url = \"{url}\"\nmax_retries = 0\nidle_timeout_ms = 400\nmax_response_bytes = 300000\n"
        );
    }
    text += &format!("[[models]]\nid = \"busy\"\nprovider = \"openai\"\nbase_url = \"{url}\"\nmax_retries = 1\n");
    // A port where nobody listens.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    text += &format!("[[models]]\nid = \"down\"\nprovider = \"openai\"\nbase_url = \"http://{closed}/v1\"\nmax_retries = 1\n");
    let chain = "max_retries = 0\nfallback = [\"good\"]\nprice = { input = 1.0 }\n";
    text += &format!("[[models]]\nid = \"chain\"\nprovider = \"openai\"\nbase_url = \"http://{closed}/v1\"\n{chain}");
    for server in SERVERS {
        let command = env!("CARGO_BIN_EXE_mcp-server");
        text += &format!("[[mcp_servers]]\nid = \"{server}\"\ncommand = \"{command}\"\n");
        if server == "hang" {
            text += "call_timeout_ms = 500\n";
        }
    }
    text += r#"
[[knowledge_bases]]
id = "open"

[[knowledge_bases]]
id = "closed"

[[bindings]]
id = "main"
runner = "plugin:test/caller/default"
match = { event_type = "test\\.main" }
resources = { tool_names = ["*"], kb_ids = ["open"] }

[[bindings]]
id = "hasty"
runner = "plugin:test/caller/default"
match = { event_type = "test\\.hasty" }
resources = { tool_names = ["*"] }
deadline_ms = 1000
"#;
    World::from_text(&["caller"], &text, |_| {}).await
}

fn event(binding: &str, steps: Value) -> Envelope {
    serde_json::from_value(json!({ "event_type": format!("test.{binding}"), "data": { "steps": steps } })).unwrap()
}

async fn run(world: &World, binding: &str, steps: Value) -> EndedRun {
    world.ended(world.send(event(binding, steps)).await).await
}

#[track_caller]
fn outcomes(ended: &EndedRun) -> Vec<Value> {
    let answer = ended.events.iter().find(|event| event.kind == "test.answer");
    let answer = answer.unwrap_or_else(|| panic!("the script did not come to its end: {ended:#?}"));
    answer.data_value()["outcomes"].as_array().unwrap().clone()
}

async fn play(world: &World, steps: Value) -> Vec<Value> {
    outcomes(&run(world, "main", steps).await)
}

#[track_caller]
fn refused(outcome: &Value, code: &str, category: &str) {
    assert_eq!((&outcome["error"], &outcome["details"]["code"]), (&json!(code), &json!(category)), "{outcome:#}");
}

/// The facts of one type.
fn facts(ended: &EndedRun, kind: &str) -> Vec<Value> {
    ended.events.iter().filter(|event| event.kind == kind).map(|event| event.data_value()).collect()
}

/// Checks that the host still serves.
async fn is_well(world: &World) {
    let did = play(
        world,
        json!([
            { "call": "models.stream", "model": "good" },
            { "call": "tools.call", "tool": "good__add", "parameters": { "a": 1, "b": 2 } },
            { "call": "knowledge.retrieve", "kb": "open", "query": "anything" },
        ]),
    )
    .await;
    assert_eq!(did[0]["text"], "Once", "{did:#?}");
    assert_eq!(did[1]["content"][0]["text"], "3", "{did:#?}");
    assert_eq!(did[2], json!([]));
    assert!(world.host.readiness().ready);
}

/// The effect of each model on a call.
const MODEL_TROUBLE: [(&str, &str, &str, bool); 11] = [
    ("stall", "runtime_error", "provider_stalled", true),
    ("mute", "runtime_error", "provider_stalled", true),
    ("garbage", "runtime_error", "invalid_response", false),
    ("noise", "runtime_error", "stream_interrupted", true),
    ("nonsense", "runtime_error", "provider_unavailable", true),
    ("break", "runtime_error", "stream_interrupted", true),
    ("short", "runtime_error", "stream_interrupted", true),
    ("error", "runtime_error", "provider_error", true),
    ("call", "runtime_error", "invalid_tool_call", true),
    ("endless", "payload_too_large", "response_too_large", false),
    ("line", "payload_too_large", "response_too_large", false),
];

#[tokio::test]
async fn a_model_that_misbehaves_is_an_error_with_a_name_and_a_fact() {
    let world = world().await;
    for (model, code, category, retryable) in
        MODEL_TROUBLE.into_iter().chain([("down", "runtime_error", "provider_unavailable", true)])
    {
        let steps = json!([{ "call": "models.stream", "model": model }, { "call": "models.invoke", "model": model }]);
        let ended = run(&world, "main", steps).await;
        let did = outcomes(&ended);
        for outcome in &did {
            refused(outcome, code, category);
            assert_eq!(outcome["retryable"], retryable, "{model}: {outcome}");
        }
        let (began, completed) = (facts(&ended, "model.call.started"), facts(&ended, "model.call.completed"));
        assert_eq!((began.len(), completed.len()), (2, 2), "{model}: {:?}", ended.kinds());
        for fact in completed {
            assert_eq!((&fact["model_id"], &fact["error"]["category"]), (&json!(model), &json!(category)), "{fact}");
            assert!(fact["duration_ms"].is_u64(), "{fact}");
        }
    }
    // A lie about what was used is no number at all.
    for model in ["lies", "zero"] {
        let ended = run(&world, "main", json!([{ "call": "models.stream", "model": model }])).await;
        let did = outcomes(&ended);
        assert_eq!((&did[0]["text"], &did[0]["usage"]), (&json!("Once"), &Value::Null), "{}", did[0]);
        assert_eq!(facts(&ended, "model.call.completed")[0]["usage"], "unknown");
    }
    // A request that was sent again is in the record of the call that came to a good end.
    let ended = run(&world, "main", json!([{ "call": "models.stream", "model": "busy" }])).await;
    assert_eq!(outcomes(&ended)[0]["text"], "Once");
    let completed = facts(&ended, "model.call.completed");
    let retry = &completed[0]["retries"][0];
    assert_eq!(retry["category"], "provider_rate_limited", "{}", completed[0]);
    assert!(retry["pause_ms"].as_u64().is_some_and(|pause| pause >= 20), "{}", completed[0]);
    assert_eq!(completed[0]["retries"].as_array().map(Vec::len), Some(1), "{}", completed[0]);
    // A model of a fallback chain that failed is in the record of the call, which counts for the model that answered.
    for call in ["models.stream", "models.invoke"] {
        let ended = run(&world, "main", json!([{ "call": call, "model": "chain" }])).await;
        if call == "models.stream" {
            assert_eq!(outcomes(&ended)[0]["text"], "Once");
        }
        let (began, completed) = (facts(&ended, "model.call.started"), facts(&ended, "model.call.completed"));
        assert_eq!((&began[0]["model_id"], &completed[0]["model_id"]), (&json!("chain"), &json!("good")), "{}", completed[0]);
        let failed = &completed[0]["fallbacks"][0];
        assert_eq!((&failed["model_id"], &failed["category"]), (&json!("chain"), &json!("provider_unavailable")));
        assert!(failed["duration_ms"].is_u64() && completed[0]["fallbacks"].as_array().map(Vec::len) == Some(1), "{failed}");
        assert_eq!(completed[0]["cost_micros"], Value::Null, "the price of `chain` is not that of `good`");
    }
    is_well(&world).await;
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn the_record_says_how_much_a_tool_gave() {
    let world = world().await;
    let repeat =
        |times: usize| json!({ "call": "tools.call", "tool": "good__repeat", "parameters": { "text": "word ", "times": times } });
    let ended = run(&world, "main", json!([repeat(3), repeat(10_000), { "call": "tools.call", "tool": "good__fail" }])).await;
    let ends = facts(&ended, "tool.call.completed");
    let measures: Vec<_> = ends.iter().map(|end| (&end["output_bytes"], &end["truncated"])).collect();
    let (small, large, error) = (json!(15), json!(50_000), json!("it did not work".len()));
    assert_eq!(measures, [(&small, &Value::Null), (&large, &json!(true)), (&error, &Value::Null)], "{ends:#?}");
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_tool_server_that_misbehaves_is_an_error_with_a_name_and_a_fact() {
    let world = world().await;
    let call = |tool: &str| json!({ "call": "tools.call", "tool": tool });
    let large = json!({ "text": "x".repeat(1024), "times": 100 * 1024 });
    let steps = json!([
        call("crash__crash"),
        call("hang__hang"),
        { "call": "tools.call", "tool": "large__repeat", "parameters": large },
        call("good__fail"),
        call("flood__flood"),
        call("garbage__garbage"),
        { "call": "tools.call", "tool": "good__add", "parameters": { "a": "one" } },
        { "call": "tools.call", "tool": "good__add", "parameters": [1, 2] },
        { "call": "tools.call", "tool": "good__add", "parameters_text": "{" },
        { "call": "tools.call", "tool": "good__nothing" },
        call("good__refuse"),
    ]);
    let ended = run(&world, "main", steps).await;
    let did = outcomes(&ended);
    refused(&did[0], "runtime_error", "tool_server_unavailable");
    assert_eq!(did[0]["retryable"], true);
    refused(&did[1], "deadline_exceeded", "tool_timeout");
    refused(&did[2], "payload_too_large", "tool_output_too_large");
    assert_eq!((&did[3]["is_error"], &did[3]["content"][0]["text"]), (&json!(true), &json!("it did not work")));
    assert_eq!(did[4]["content"][0]["text"], "after the flood");
    assert_eq!(did[5]["content"][0]["text"], "after the garbage");
    refused(&did[6], "invalid_argument", "invalid_parameters");
    assert_eq!(did[7]["error"], "invalid_argument");
    assert_eq!(did[8]["error"], "invalid_argument");
    assert_eq!(did[9]["error"], "not_found");
    refused(&did[10], "runtime_error", "tool_failed");

    // Every started call has its end in the record, under the same name.
    let categories: Vec<_> = facts(&ended, "tool.call.completed").into_iter().map(|fact| fact["category"].clone()).collect();
    let began = facts(&ended, "tool.call.started").len();
    assert_eq!(began, categories.len(), "{:?}", ended.kinds());
    assert_eq!(
        categories,
        [
            json!("tool_server_unavailable"),
            json!("tool_timeout"),
            json!("tool_output_too_large"),
            json!("tool_error"),
            Value::Null,
            Value::Null,
            json!("invalid_parameters"),
            json!("tool_failed"),
        ]
    );
    is_well(&world).await;

    // The broken servers are restarted.
    for server in ["crash", "large", "flood", "garbage"] {
        let began = Instant::now();
        loop {
            let add = json!([{ "call": "tools.call", "tool": format!("{server}__add"), "parameters": { "a": 1, "b": 2 } }]);
            let did = play(&world, add).await;
            if did[0]["content"][0]["text"] == "3" {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{server} does not come back: {did:#?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_tool_that_comes_later_is_not_in_the_grant_of_a_run_that_was_there_before() {
    let world = world().await;
    let later = json!({ "call": "tools.call", "tool": "change__later" });
    let did = play(
        &world,
        json!([
            later,
            { "call": "tools.call", "tool": "change__change" },
            later,
            { "call": "tools.detail", "tool": "change__later" },
            { "call": "tools.call", "tool": "change__picture" },
        ]),
    )
    .await;
    assert_eq!(did[0]["error"], "not_found");
    assert_eq!(did[1]["content"][0]["text"], "changed");
    assert_ne!(did[3]["content"][0]["text"], "here now", "{}", did[3]);
    // The next run has it, and has lost the other.
    let began = Instant::now();
    let did = loop {
        let did = play(&world, json!([{ "call": "context" }, later, { "call": "tools.call", "tool": "change__picture" }])).await;
        if did[1]["content"][0]["text"] == "here now" {
            break did;
        }
        assert!(began.elapsed() < PATIENCE, "the new tool does not come: {did:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let tools = did[0]["tools"].as_array().unwrap();
    assert!(tools.contains(&json!("change__later")) && !tools.contains(&json!("change__picture")), "{tools:?}");
    assert_eq!(did[2]["error"], "not_found", "{}", did[2]);
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_new_tool_is_refused_to_a_run_that_began_before_it() {
    let world = world().await;
    // Waits until the tool is available to other calls.
    let waits = json!([
        { "call": "await", "key": "changed" },
        { "call": "tools.call", "tool": "change__later" },
        { "call": "tools.detail", "tool": "change__later" },
        { "call": "context" },
    ]);
    let old = world.send(event("main", waits)).await;
    play(&world, json!([{ "call": "tools.call", "tool": "change__change" }])).await;
    let began = Instant::now();
    while play(&world, json!([{ "call": "tools.call", "tool": "change__later" }])).await[0]["content"][0]["text"] != "here now" {
        assert!(began.elapsed() < PATIENCE, "the new tool does not come");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    play(&world, json!([{ "call": "storage.set", "area": "plugin", "key": "changed" }])).await;
    let did = outcomes(&world.ended(old).await);
    assert_eq!((&did[1]["error"], &did[2]["error"]), (&json!("unauthorized"), &json!("unauthorized")), "{did:#?}");
    assert!(!did[3]["tools"].as_array().unwrap().contains(&json!("change__later")));
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_question_to_a_knowledge_base_is_judged_before_it_is_asked() {
    let world = world().await;
    let ask = |kb: &str, more: Value| {
        let mut call = json!({ "call": "knowledge.retrieve", "kb": kb, "query": "anything" });
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call
    };
    let did = play(
        &world,
        json!([
            { "call": "knowledge.list" },
            ask("open", json!({ "top_k": 50, "filters": { "topic": ["a", 1, true], "modified_at": { "gte": 5 } } })),
            ask("closed", json!({})),
            ask("nowhere", json!({})),
            ask("../open", json!({})),
            ask("open", json!({ "top_k": 0 })),
            ask("open", json!({ "top_k": 51 })),
            ask("open", json!({ "filters": [] })),
            ask("open", json!({ "filters": { "topic": [] } })),
            ask("open", json!({ "filters": { "topic": { "like": "x" } } })),
            ask("open", json!({ "filters": { "topic": null } })),
            ask("open", json!({ "filters_text": "{\"topic\":" })),
            ask("open", json!({ "fill": 40_000 })),
            ask("open", json!({ "query": "\"AND (( NOT" })),
        ]),
    )
    .await;
    assert_eq!((&did[0], &did[1]), (&json!(["open"]), &json!([])));
    let codes: Vec<_> = did[2..13].iter().map(|outcome| outcome["error"].as_str().unwrap_or("none")).collect();
    let mut expected = vec!["unauthorized", "not_found", "not_found"];
    expected.extend(["invalid_argument"; 7]);
    expected.push("payload_too_large");
    assert_eq!(codes, expected);
    assert_eq!(did[13], json!([]));
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_guest_that_hoards_floods_or_never_reads_harms_only_itself() {
    let world = world().await;
    let keep = json!({ "call": "artifacts.create", "media_type": "text/plain", "text": "x", "as": "it" });
    for steps in [
        json!([keep, { "call": "artifacts.leak_readers", "id": "$it", "times": 500 }]),
        json!([{ "call": "artifacts.leak_writers", "times": 500 }]),
    ] {
        let ended = run(&world, "main", steps).await;
        assert_eq!(ended.failure(), "runner.limit_exceeded", "{ended:#?}");
        assert!(ended.kinds().contains(&"sandbox.violation"), "{:?}", ended.kinds());
        is_well(&world).await;
    }
    // Streams that are never read: they end with the run, and each has its end in the record.
    let ended = run(&world, "main", json!([{ "call": "models.leak_streams", "model": "endless", "times": 20 }])).await;
    assert_eq!(outcomes(&ended)[0], 20);
    assert_eq!(facts(&ended, "model.call.started").len(), 20);
    let completed = facts(&ended, "model.call.completed");
    assert_eq!(completed.len(), 20);
    assert!(completed.iter().all(|fact| fact["error"]["code"].is_string()), "{completed:#?}");

    // Far more log than is taken.
    let ended = run(&world, "main", json!([{ "call": "log", "fill": 1_000_000, "times": 200 }])).await;
    assert_eq!(outcomes(&ended)[0], Value::Null, "a log never fails");

    // Names that are no names.
    let long = "x".repeat(5_000);
    for name in ["", "\u{0}", "../../etc/passwd", "good__add\n", long.as_str()] {
        let did = play(
            &world,
            json!([
                { "call": "models.stream", "model": name },
                { "call": "tools.call", "tool": name },
                { "call": "knowledge.retrieve", "kb": name, "query": "x" },
                { "call": "artifacts.metadata", "id": name },
            ]),
        )
        .await;
        for outcome in did {
            assert_eq!(outcome["error"], "not_found", "{outcome}");
            assert!(outcome["message"].as_str().unwrap().len() < 1000, "what was asked for is not said back at length");
        }
    }
    is_well(&world).await;

    // A deadline ends what hangs, and the record says so.
    for step in [
        json!({ "call": "tools.call", "tool": "good__wait", "parameters": { "ms": 8_000 } }),
        json!({ "call": "sleep", "ms": 60_000 }),
    ] {
        let ended = run(&world, "hasty", json!([step])).await;
        assert_eq!(ended.failure(), "deadline_exceeded");
        assert!(ended.kinds().contains(&"limit.reached"), "{:?}", ended.kinds());
        assert_eq!(facts(&ended, "tool.call.started").len(), facts(&ended, "tool.call.completed").len());
    }
    world.host.shutdown(PATIENCE).await;
}

/// The resident memory of this process, with pages of 4 KiB.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Open files and sockets of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test]
async fn memory_returns_to_where_it_was() {
    let world = world().await;
    let round = async || {
        for model in ["garbage", "break", "lies", "call", "endless", "line"] {
            play(&world, json!([{ "call": "models.stream", "model": model }])).await;
        }
        run(&world, "main", json!([{ "call": "models.leak_streams", "model": "endless", "times": 10 }])).await;
        run(&world, "main", json!([{ "call": "artifacts.leak_writers", "times": 500 }])).await;
        run(&world, "main", json!([{ "call": "log", "fill": 1_000_000, "times": 20 }])).await;
        let three_mib = json!({ "text": "x".repeat(1024), "times": 3 * 1024 });
        play(
            &world,
            json!([
                { "call": "tools.call", "tool": "large__repeat", "parameters": three_mib },
                { "call": "tools.call", "tool": "flood__flood" },
            ]),
        )
        .await;
    };
    for _ in 0..4 {
        round().await;
    }
    let (before, open_before) = (resident(), descriptors());
    for _ in 0..20 {
        round().await;
    }
    let (after, open) = (resident(), descriptors());
    eprintln!("{} MiB before, {} MiB after", before >> 20, after >> 20);
    // A leak in each round would be 3 MiB and more each time.
    assert!(after < before + (64 << 20), "{} MiB became {} MiB", before >> 20, after >> 20);
    // A handle that is left open in each of ten calls would be 200; other tests of this process have some of their own.
    assert!(open < open_before + 150, "{open_before} open files became {open}");
    is_well(&world).await;
    world.host.shutdown(PATIENCE).await;
}
