//! Against servers that others wrote: a model server and the protocol's own MCP server, both from npm.

use std::{
    env, fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use agent_host_protocol::RunStatus;
use agent_host_runs::knowledge_bases::AddOptions;
use agent_host_tests::{
    World,
    npm::{self, NodeServer},
    world::{EndedRun, PATIENCE},
};
use serde_json::{Value, json};

/// `@copilotkit/aimock`: a model server.
fn aimock() -> PathBuf {
    npm::program("@copilotkit/aimock", "1.43.0", "llmock")
}

/// `@modelcontextprotocol/server-everything`: one of every kind of tool.
fn everything() -> PathBuf {
    npm::program("@modelcontextprotocol/server-everything", "2026.8.31", "mcp-server-everything")
}

/// A model server that answers as `fixtures` say.
fn model_server(fixtures: Value, chaos: &[&str]) -> NodeServer {
    let files = [("fixtures.json", json!({ "fixtures": fixtures }).to_string())];
    let program = aimock();
    NodeServer::start(&files, |node, port| {
        node.arg(program).args(["-p", &port.to_string(), "-f", "fixtures.json", "--validate-on-load"]).args(chaos);
    })
}

/// The MCP server over streamable HTTP.
fn serve_everything(program: PathBuf) -> impl FnOnce(&mut Command, u16) {
    move |node, port| {
        node.arg(program).arg("streamableHttp").env("PORT", port.to_string());
    }
}

/// An agent with a chat model behind `url`; `more` is more configuration, the last of it for the binding.
fn agent(server: &NodeServer, of_model: &str, more: &str) -> String {
    format!(
        r#"
[[models]]
id = "chat"
provider = "openai"
base_url = "{}"
{of_model}

{more}

[[bindings]]
id = "agent"
runner = "plugin:agent-host/local-agent/default"
resources = {{ tool_names = ["e__*"] }}
"#,
        server.url("/v1")
    )
}

async fn configured_world(config: &str) -> World {
    World::from_text(&["local_agent"], config, |_| {}).await
}

/// The events of a run, one per line.
fn record(ended: &EndedRun) -> String {
    let lines = ended.events.iter().map(|event| format!("{} {}", event.kind, event.data.get()));
    lines.collect::<Vec<_>>().join("\n")
}

/// The facts of one kind, in order.
fn facts(ended: &EndedRun, kind: &str) -> Vec<Value> {
    ended.events.iter().filter(|event| event.kind == kind).map(|event| event.data_value()).collect()
}

#[track_caller]
fn completed(ended: &EndedRun) {
    assert_eq!(ended.run.status, RunStatus::Completed, "{}", record(ended));
}

#[track_caller]
fn failed(ended: &EndedRun, code: &str) {
    assert_eq!((ended.run.status, ended.failure()), (RunStatus::Failed, code), "{}", record(ended));
    let calls = facts(ended, "model.call.completed");
    assert_eq!(calls.last().unwrap()["error"]["category"], code, "{}", record(ended));
    assert!(!ended.kinds().contains(&"message.completed"), "{}", record(ended));
}

/// Runs a blocking function outside of the test's threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test]
async fn a_model_server_of_others_streams_its_answer_and_says_what_it_used() {
    let long = "The fjord is cold, the mountain is high, and the boat that leaves at nine is the last one of the day.";
    let server = blocking(move || {
        model_server(json!([{ "match": { "userMessage": "hello" }, "response": { "content": long }, "chunkSize": 7 }]), &[])
    })
    .await;
    let world = configured_world(&agent(&server, "", "")).await;
    let ended = world.say("hello").await;
    completed(&ended);
    assert_eq!((ended.answer_text().as_str(), ended.streamed().as_str()), (long, long));
    let [done] = &*facts(&ended, "model.call.completed") else { panic!("{}", record(&ended)) };
    assert_eq!(done["finish_reason"], "stop");
    assert!(done["usage"]["input"].as_u64() > Some(0) && done["usage"]["output"].as_u64() > Some(0), "{done}");
    assert_eq!(ended.run.usage.as_ref().unwrap().output, done["usage"]["output"].as_u64().unwrap());
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn an_agent_works_with_a_model_server_and_a_tool_server_of_others() {
    let fixtures = json!([
        {
            "match": { "userMessage": "sum", "hasToolResult": false },
            "response": {
                "content": "Let me add them.",
                "toolCalls": [
                    { "name": "e__get-sum", "arguments": { "a": 1, "b": 2 } },
                    { "name": "e__get-sum", "arguments": { "a": 20, "b": 22 } },
                ],
            },
        },
        {
            "match": { "userMessage": "sum", "hasToolResult": true, "toolResultContains": "42" },
            "response": { "content": "The sums are 3 and 42." },
        },
    ]);
    let (server, program) = blocking(move || (model_server(fixtures, &[]), everything())).await;
    let tools = format!(
        "[[mcp_servers]]\nid = \"e\"\ncommand = \"node\"\nargs = [{:?}, \"stdio\"]\nstart_timeout_ms = 60000\n",
        program.to_str().unwrap()
    );
    let world = configured_world(&agent(&server, "", &tools)).await;
    let ended = world.say("the sum, please").await;
    completed(&ended);
    assert_eq!(ended.answer_text(), "The sums are 3 and 42.", "{}", record(&ended));
    let models = facts(&ended, "model.call.completed");
    assert_eq!((&models[0]["finish_reason"], &models[1]["finish_reason"]), (&json!("tool-calls"), &json!("stop")));
    let calls = facts(&ended, "tool.call.completed");
    let results = calls.iter().map(|call| call["result"].to_string()).collect::<String>();
    assert!(calls.len() == 2 && results.contains("is 3.") && results.contains("is 42."), "{}", record(&ended));
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn refusals_of_a_model_server_have_the_documented_category() {
    let error = |ask: &str, status: u16, kind: &str, code: &str| {
        json!({
            "match": { "userMessage": ask },
            "response": { "error": { "message": format!("because of {ask}"), "type": kind, "code": code }, "status": status },
        })
    };
    let fixtures = json!([
        error("key", 401, "invalid_request_error", "invalid_api_key"),
        error("long", 400, "invalid_request_error", "context_length_exceeded"),
        error("wrong", 400, "invalid_request_error", "invalid_value"),
        error("busy", 429, "rate_limit_error", "rate_limit_exceeded"),
        error("poor", 429, "insufficient_quota", "insufficient_quota"),
        error("down", 503, "server_error", "server_error"),
        {
            "match": { "userMessage": "cut" },
            "response": { "content": "half of an answer that never ends" },
            "chunkSize": 5,
            "latency": 50,
            "truncateAfterChunks": 4,
        },
    ]);
    let server = blocking(move || model_server(fixtures, &[])).await;
    let world = configured_world(&agent(&server, "max_retries = 0", "")).await;
    for (ask, code, retryable) in [
        ("key", "provider_unauthorized", false),
        ("long", "context_length_exceeded", false),
        ("wrong", "provider_refused", false),
        ("busy", "provider_rate_limited", true),
        ("poor", "quota_exceeded", false),
        ("down", "provider_unavailable", true),
        // The server has no answer, and returns 404.
        ("something else", "model_not_found", false),
        ("cut", "stream_interrupted", true),
    ] {
        let ended = world.say(ask).await;
        failed(&ended, code);
        assert_eq!(ended.run.failure.as_ref().unwrap().retryable, retryable, "{}", record(&ended));
        // The text before the interruption is there, without a replacement of the rest.
        let came = ended.streamed();
        assert!("half of an answer".starts_with(&came) && came.is_empty() == (ask != "cut"), "{}", record(&ended));
    }
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_model_server_that_fails_once_is_asked_again() {
    let busy =
        json!({ "error": { "message": "slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded" }, "status": 429 });
    let fixtures = json!([
        { "match": { "userMessage": "again", "sequenceIndex": 0 }, "response": busy },
        { "match": { "userMessage": "again", "sequenceIndex": 1 }, "response": { "content": "Now I can." } },
    ]);
    let server = blocking(move || model_server(fixtures, &[])).await;
    let world = configured_world(&agent(&server, "", "")).await;
    let began = Instant::now();
    let ended = world.say("again").await;
    completed(&ended);
    assert_eq!(ended.answer_text(), "Now I can.");
    assert_eq!(facts(&ended, "model.call.completed").len(), 1, "the retry is within the call: {}", record(&ended));
    assert!(began.elapsed() >= Duration::from_secs(1), "`Retry-After: 1` was not respected: {:?}", began.elapsed());
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_retry_that_would_be_after_the_deadline_is_not_waited_for() {
    let busy = json!({ "error": { "message": "come back later", "type": "rate_limit_error" }, "status": 429, "retryAfter": 120 });
    let server = blocking(move || model_server(json!([{ "match": { "userMessage": "hello" }, "response": busy }]), &[])).await;
    let world = configured_world(&format!("{}deadline_ms = 40000\n", agent(&server, "", ""))).await;
    let began = Instant::now();
    let ended = world.say("hello").await;
    failed(&ended, "provider_rate_limited");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(ended.run.failure.as_ref().unwrap().details.as_ref().unwrap()["retry_after_ms"], 120_000, "{}", record(&ended));
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_model_server_that_answers_garbage_or_hangs_up_is_a_failure_with_a_category() {
    for (chaos, code) in [("--chaos-malformed", "invalid_response"), ("--chaos-disconnect", "provider_unavailable")] {
        let fixtures = json!([{ "match": { "userMessage": "hello" }, "response": { "content": "never seen" } }]);
        let server = blocking(move || model_server(fixtures, &[chaos, "1"])).await;
        let world = configured_world(&agent(&server, "max_retries = 1", "")).await;
        let ended = world.say("hello").await;
        failed(&ended, code);
        assert_eq!(ended.streamed(), "");
        world.host.shutdown(PATIENCE).await;
    }
}

#[tokio::test]
async fn a_knowledge_base_is_searched_with_embeddings_of_others() {
    let fixtures = json!([{ "match": { "userMessage": "boat" }, "response": { "content": "At nine [1]." } }]);
    let server = blocking(move || model_server(fixtures, &[])).await;
    let more = format!(
        "[[models]]\nid = \"meaning\"\ntype = \"embedding\"\nprovider = \"openai\"\nmodel = \"text-embedding-3-small\"\nbase_url = \"{}\"\n\n\
         [[knowledge_bases]]\nid = \"harbour\"\nembedding_model = \"meaning\"\n",
        server.url("/v1")
    );
    let world = configured_world(&agent(&server, "", &more)).await;
    let docs = world.dir.path().join("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(docs.join("boats.md"), "The last boat leaves at nine.\n").unwrap();
    let knowledge = agent_host_runs::knowledge(&world.host.config()).unwrap();
    let report = knowledge.add("harbour", &[docs], AddOptions::default(), &mut |_| {}).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    let hits = knowledge.retrieve("harbour", "boat", 3, None, deadline).await.unwrap();
    assert!(!hits.is_empty() && hits[0].metadata.get("degraded").is_none(), "{report:?} {hits:?}");
    assert_eq!(hits[0].metadata["retrieval"], "hybrid", "{hits:?}");
    drop(knowledge);
    let ended = world.say("When does the boat leave?").await;
    completed(&ended);
    assert!(ended.answer_text().starts_with("At nine [1].\n\n[1] "), "{}", ended.answer_text());
    world.host.shutdown(PATIENCE).await;
}

/// A scripted model that calls the tools of the server, by its input.
const SCRIPT: &str = r#"
[[reply]]
after_tool = true
text = "{{tool_results:4000}}"

[[reply]]
when = "^echo$"
tool_calls = [{ name = "e__echo", parameters = { message = "Grüße, 世界" } }]

[[reply]]
when = "^sum$"
tool_calls = [{ name = "e__get-sum", parameters = { a = 1, b = 2 } }]

[[reply]]
when = "^long$"
tool_calls = [{ name = "e__trigger-long-running-operation", parameters = { duration = 2, steps = 4 } }]

[[reply]]
when = "^image$"
tool_calls = [{ name = "e__get-tiny-image" }]

[[reply]]
when = "^env$"
tool_calls = [{ name = "e__get-env" }]

[[reply]]
when = "^wrong$"
tool_calls = [{ name = "e__get-sum", parameters = { a = "one" } }]
"#;

/// An agent with the scripted model and a tool server `e`.
async fn with_tools(server: &str) -> World {
    let config = format!(
        r#"
[[models]]
id = "chat"
provider = "scripted"
script = "script.toml"

[[mcp_servers]]
id = "e"
start_timeout_ms = 60000
{server}

[[bindings]]
id = "agent"
runner = "plugin:agent-host/local-agent/default"
resources = {{ tool_names = ["e__*"] }}
"#
    );
    let world = World::from_text(&["local_agent"], &config, |dir| fs::write(dir.join("script.toml"), SCRIPT).unwrap()).await;
    // A slow machine may not have started it within the patience of the host.
    let began = Instant::now();
    loop {
        let problems = world.host.readiness().problems;
        if problems.is_empty() {
            return world;
        }
        assert!(began.elapsed() < PATIENCE, "{problems:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn over_stdio(program: &std::path::Path) -> String {
    format!("command = \"node\"\nargs = [{:?}, \"stdio\"]", program.to_str().unwrap())
}

/// The checks for every transport.
async fn tools_work(world: &World) {
    let ended = world.say("echo").await;
    completed(&ended);
    assert_eq!(ended.answer_text(), "Echo: Grüße, 世界", "{}", record(&ended));

    let ended = world.say("sum").await;
    completed(&ended);
    assert_eq!(ended.answer_text(), "The sum of 1 and 2 is 3.", "{}", record(&ended));

    let ended = world.say("long").await;
    completed(&ended);
    assert!(ended.answer_text().contains("Long running operation completed"), "{}", record(&ended));
    let progress = facts(&ended, "tool.call.progress");
    let progress_values: Vec<_> = progress.iter().map(|report| report["progress"].as_f64().unwrap()).collect();
    // Four of them half a second apart; a machine that stands still for so long may leave one out, but not the last.
    assert!(
        progress_values.len() > 1 && progress_values.is_sorted_by(|a, b| a < b) && progress_values.last() == Some(&4.0),
        "{}",
        record(&ended)
    );
    assert!(progress.iter().all(|report| report["total"] == 4.0), "{}", record(&ended));
    assert!(facts(&ended, "tool.call.completed")[0]["duration_ms"].as_u64().unwrap() >= 2000, "{}", record(&ended));

    let ended = world.say("image").await;
    completed(&ended);
    let [call] = &*facts(&ended, "tool.call.completed") else { panic!("{}", record(&ended)) };
    let parts = call["result"].as_array().unwrap();
    let artifact = parts.iter().find_map(|part| part.get("artifact")).unwrap_or_else(|| panic!("{}", record(&ended)));
    let kept = world.host.ledger().artifact(artifact["artifact_id"].as_str().unwrap()).unwrap().unwrap();
    assert_eq!(kept.media_type, "image/png");
    let blob = world.host.ledger().blob(&kept.sha256).unwrap().unwrap();
    assert!(blob.read_at(0, 8).unwrap().starts_with(b"\x89PNG"));
    assert!(!record(&ended).contains("iVBORw0KGgo"), "the bytes are in no event: {}", record(&ended));

    let ended = world.say("wrong").await;
    completed(&ended);
    assert_eq!(facts(&ended, "tool.call.completed")[0]["category"], "invalid_parameters", "{}", record(&ended));
}

#[tokio::test]
async fn the_protocols_own_server_works_over_stdio_and_sees_nothing_of_the_host() {
    let program = blocking(everything).await;
    let world = with_tools(&over_stdio(&program)).await;
    tools_work(&world).await;

    let ended = world.say("env").await;
    completed(&ended);
    let sees: Value =
        serde_json::from_str(&ended.answer_text()).unwrap_or_else(|error| panic!("{error}: {}", ended.answer_text()));
    let sees = sees.as_object().unwrap();
    assert!(sees.contains_key("PATH"), "{sees:?}");
    let host: Vec<_> = env::vars().filter(|(name, _)| !["PATH", "HOME", "LANG", "TMPDIR"].contains(&name.as_str())).collect();
    assert!(host.iter().any(|(name, _)| name == "CARGO_PKG_NAME"), "cargo sets variables for its tests: {host:?}");
    for (name, _) in host {
        assert!(!sees.contains_key(&name), "the server sees {name} of the host");
    }
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn the_protocols_own_server_works_over_http_and_comes_back_after_it_was_killed() {
    let program = blocking(everything).await;
    let again = program.clone();
    let server = blocking(move || NodeServer::start(&[], serve_everything(program))).await;
    let port = server.port;
    let world = with_tools(&format!("url = \"{}\"", server.url("/mcp"))).await;
    tools_work(&world).await;

    drop(server);
    let ended = world.say("sum").await;
    completed(&ended);
    let [call] = &*facts(&ended, "tool.call.completed") else { panic!("{}", record(&ended)) };
    assert_eq!(call["category"], "tool_server_unavailable", "{}", record(&ended));

    let _server = blocking(move || NodeServer::start_on(port, &[], serve_everything(again))).await;
    let began = Instant::now();
    loop {
        let ended = world.say("sum").await;
        if ended.answer_text() == "The sum of 1 and 2 is 3." {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{}", record(&ended));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    world.host.shutdown(PATIENCE).await;
}
