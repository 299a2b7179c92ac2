//! The reference agent with its component, a host, a model, tools and a knowledge base.

mod images;
mod prompts;

use std::{
    fs,
    time::{Duration, Instant},
};

use agent_host_protocol::{RunStatus, event::Envelope};
use agent_host_runs::knowledge_bases::AddOptions;
use agent_host_tests::{
    Process, World,
    world::{EndedRun, PATIENCE},
};
use futures_util::StreamExt;
use serde_json::{Value, json};

/// Must never be seen outside of the servers that it is for.
const CANARY: &str = "canary-7f3a91c2";

/// An agent with a scripted model, the tests' own tool server and a knowledge base; `more` goes into its binding.
fn agent(more: &str) -> String {
    format!(
        r#"
[[models]]
id = "chat"
provider = "scripted"
script = "script.toml"

[[mcp_servers]]
id = "t"
command = "{server}"
env = {{ CANARY = {{ file = "canary" }} }}
call_timeout_ms = 20000

[[knowledge_bases]]
id = "handbook"

[[bindings]]
id = "agent"
runner = "plugin:agent-host/local-agent/default"
resources = {{ tool_names = ["t__*"] }}
{more}
"#,
        server = env!("CARGO_BIN_EXE_mcp-server"),
    )
}

async fn world(script: &str, more: &str) -> World {
    configured_world(&agent(more), script).await
}

async fn configured_world(config: &str, script: &str) -> World {
    World::from_text(&["local_agent"], config, |dir| {
        fs::write(dir.join("script.toml"), script).unwrap();
        fs::write(dir.join("canary"), CANARY).unwrap();
    })
    .await
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

/// The tool facts by the name of the tool.
fn tool_fact(ended: &EndedRun, kind: &str, tool: &str) -> Value {
    let facts = facts(ended, kind);
    let mut of_tool = facts.iter().filter(|fact| fact["tool_name"] == tool);
    let fact = of_tool.next().unwrap_or_else(|| panic!("no {kind} of {tool}: {}", record(ended))).clone();
    assert!(of_tool.next().is_none(), "{kind} of {tool} is there twice:\n{}", record(ended));
    fact
}

/// The kinds of the events, without those that are said and those that repeat the one before.
fn course(ended: &EndedRun) -> Vec<&str> {
    let mut kinds = ended.kinds();
    kinds.retain(|kind| !kind.starts_with("message.") && !kind.starts_with("reasoning."));
    kinds.dedup();
    kinds
}

#[track_caller]
fn completed(ended: &EndedRun) {
    assert_eq!(ended.run.status, RunStatus::Completed, "{}", record(ended));
    ends_once(ended);
}

/// Every run has one end, every call that began has one, and nothing secret is in what it leaves.
#[track_caller]
fn ends_once(ended: &EndedRun) {
    let kinds = ended.kinds();
    let ends = kinds.iter().filter(|kind| ["run.completed", "run.failed"].contains(kind)).count();
    assert_eq!(ends, 1, "{}", record(ended));
    assert!(["run.completed", "run.failed"].contains(kinds.last().unwrap()), "{}", record(ended));
    for (kind, id) in [("model", "model_call_id"), ("tool", "tool_call_id")] {
        let ids = |state: &str| {
            let facts = facts(ended, &format!("{kind}.call.{state}"));
            let mut ids: Vec<_> = facts.iter().map(|fact| fact[id].as_str().unwrap().to_owned()).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(ids("started"), ids("completed"), "{}", record(ended));
    }
    assert!(!format!("{ended:?}").contains(CANARY), "{}", record(ended));
}

#[tokio::test]
async fn an_answer_is_streamed_and_its_model_call_is_a_fact() {
    let script = r#"
[[reply]]
reasoning = "They greet me."
text = "Hello, and a very good day to you! It is a pleasure to see you here, as it was the last time and will be the next."
chunk_chars = 5
delay_ms = 5
usage = { input = 12, output = 9 }
"#;
    let world = world(script, "").await;
    let ended = world.say("Hi").await;
    completed(&ended);
    assert_eq!(
        ended.answer_text(),
        "Hello, and a very good day to you! It is a pleasure to see you here, as it was the last time and will be the next."
    );
    assert_eq!(ended.streamed(), ended.answer_text());
    let deltas = ended.kinds().iter().filter(|kind| **kind == "message.delta").count();
    assert!(deltas > 1, "it was not streamed: {}", record(&ended));
    assert_eq!(course(&ended), ["model.call.started", "model.call.completed", "run.completed"]);

    let [started] = &*facts(&ended, "model.call.started") else { panic!("{}", record(&ended)) };
    let [done] = &*facts(&ended, "model.call.completed") else { panic!("{}", record(&ended)) };
    assert_eq!((&started["model_id"], &started["operation"]), (&json!("chat"), &json!("stream")));
    assert_eq!(done["model_call_id"], started["model_call_id"]);
    assert_eq!(done["finish_reason"], "stop");
    assert_eq!((&done["usage"]["input"], &done["usage"]["output"]), (&json!(12), &json!(9)));
    assert!(done["duration_ms"].as_u64().unwrap() >= 5, "{done}");
    assert!(done.get("error").is_none(), "{done}");
    assert_eq!(ended.end()["usage"]["output"], 9, "{}", record(&ended));
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn tools_are_called_at_once_and_every_step_is_a_fact_in_order() {
    let script = r#"
[[reply]]
after_tool = false
text = "Let me see. "
tool_calls = [
  { name = "t__wait", parameters = { ms = 600 } },
  { name = "t__add", parameters = { a = 1, b = 2 } },
  { name = "t__repeat", parameters = { text = "ha", times = 3 } },
]

[[reply]]
after_tool = true
text = "They say: {{tool_results}}"
usage = { input = 30, output = 4 }
"#;
    let world = world(script, "").await;
    let ended = world.say("Go").await;
    completed(&ended);
    // In the order of the calls, not of the answers.
    assert_eq!(ended.answer_text(), "They say: done\n3\nhahaha");
    let kinds = ended.kinds();
    let first = |kind: &str| kinds.iter().position(|found| *found == kind).unwrap_or_else(|| panic!("{}", record(&ended)));
    let last = |kind: &str| kinds.iter().rposition(|found| *found == kind).unwrap_or_else(|| panic!("{}", record(&ended)));
    let order = [
        first("model.call.started"),
        first("model.call.completed"),
        first("tool.call.started"),
        // All of them began before one of them ended.
        last("tool.call.started"),
        first("tool.call.completed"),
        last("tool.call.completed"),
        last("model.call.started"),
        last("model.call.completed"),
        last("run.completed"),
    ];
    assert!(order.is_sorted(), "{order:?}\n{}", record(&ended));
    assert_eq!(facts(&ended, "tool.call.started").len(), 3);
    let models = facts(&ended, "model.call.completed");
    assert_eq!((&models[0]["finish_reason"], &models[0]["usage"]), (&json!("tool-calls"), &json!("unknown")));
    assert_eq!(models[1]["usage"]["input"], 30);

    assert_eq!(tool_fact(&ended, "tool.call.started", "t__add")["parameters"], json!({ "a": 1, "b": 2 }));
    let done = tool_fact(&ended, "tool.call.completed", "t__add");
    assert!(done["result"].to_string().contains('3') && done["duration_ms"].is_u64(), "{done}");
    let waited = tool_fact(&ended, "tool.call.completed", "t__wait");
    assert!(waited["duration_ms"].as_u64().unwrap() >= 600, "{waited}");
    let progress = facts(&ended, "tool.call.progress");
    let place =
        |kind: &str| ended.events.iter().position(|event| event.kind == kind && event.data_value()["tool_name"] == "t__wait");
    assert!(place("tool.call.started") < place("tool.call.progress"), "{}", record(&ended));
    assert!(last("tool.call.progress") < place("tool.call.completed").unwrap(), "{}", record(&ended));
    assert!(progress.iter().all(|report| report["tool_name"] == "t__wait" && report["total"] == 4.0), "{progress:#?}");
    reaches_its_end(&progress);
    world.host.shutdown(PATIENCE).await;
}

/// Reports that come too fast for anyone to read may be left out; the last one may not.
#[track_caller]
fn reaches_its_end(progress: &[Value]) {
    let spoken: Vec<_> = progress.iter().map(|report| report["progress"].as_f64().unwrap()).collect();
    assert!(spoken.is_sorted_by(|a, b| a < b) && spoken.last() == Some(&4.0), "{progress:#?}");
    assert_eq!(progress.last().unwrap()["message"], "step 4");
}

#[tokio::test]
async fn the_last_progress_is_recorded_although_the_answer_follows_at_once() {
    let script = r#"
[[reply]]
after_tool = false
tool_calls = [{ name = "t__wait", parameters = { ms = 0 } }]

[[reply]]
text = "Waited."
"#;
    let world = world(script, "").await;
    for _ in 0..5 {
        let ended = world.say("Go").await;
        completed(&ended);
        reaches_its_end(&facts(&ended, "tool.call.progress"));
    }
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn knowledge_is_cited_by_source() {
    let script = r#"
[[reply]]
when = '(?s)<material>.*\[(?P<n>\d+)\] .*?(?P<passage>The office[^\n]*nine\.).*When does'
text = "It says “{{match.passage}}” [{{match.n}}]."

[[reply]]
when = "(?i)food"
after_tool = false
tool_calls = [{ name = "search_knowledge", parameters = { query = "lunch" } }]

[[reply]]
when = "(?i)food"
after_tool = true
tool_result = 'Lunch'
text = "At noon [1]."
"#;
    let world = world(script, "").await;
    let docs = world.dir.path().join("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(docs.join("hours.md"), "# Opening hours\n\nThe office opens at nine.\n").unwrap();
    fs::write(docs.join("meals.md"), "# Meals\n\nLunch is served at noon.\n").unwrap();
    // As `agent-host knowledge add` does it while the host serves.
    let knowledge = agent_host_runs::knowledge(&world.host.config()).unwrap();
    let report = knowledge.add("handbook", &[docs], AddOptions::default(), &mut |_| {}).await.unwrap();
    drop(knowledge);

    let ended = world.say("When does the office open?").await;
    completed(&ended);
    let spoken = ended.answer_text();
    assert!(spoken.starts_with("It says “The office opens at nine.” [1].\n\n[1] "), "{report:?}: {spoken}");
    assert!(spoken.contains("[1] Opening hours") || spoken.contains("hours.md"), "{spoken}");
    let audit = world.host.ledger().audit_page(ended.run.run_id, None, 100).unwrap().items;
    let asked = audit.iter().find(|record| record.action == "knowledge.retrieve").unwrap_or_else(|| panic!("{audit:#?}"));
    assert_eq!((asked.resource.as_deref(), &*asked.outcome), (Some("handbook"), "ok"));

    // The model searches by itself.
    let ended = world.say("Food?").await;
    completed(&ended);
    assert!(ended.answer_text().starts_with("At noon [1].\n\n[1] "), "{}", ended.answer_text());
    assert_eq!(tool_fact(&ended, "tool.call.started", "search_knowledge")["parameters"]["query"], "lunch");
    tool_fact(&ended, "tool.call.completed", "search_knowledge");
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_model_that_never_stops_asking_for_tools_is_stopped() {
    let script = r#"
[[reply]]
tool_calls = [{ name = "t__add", parameters = { a = 1, b = 1 } }]
"#;
    let world = world(script, "config = { max_steps = 2 }").await;
    let ended = world.say("Loop").await;
    ends_once(&ended);
    assert_eq!((ended.run.status, ended.failure()), (RunStatus::Failed, "local_agent.max_steps"), "{}", record(&ended));
    assert_eq!(facts(&ended, "tool.call.completed").len(), 2);
    assert_eq!(facts(&ended, "model.call.completed").len(), 3);
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_tool_that_fails_is_a_failure_with_a_category_and_the_agent_answers_all_the_same() {
    let script = r#"
[[reply]]
when = "^(?P<tool>fail|refuse|crash|hang|add)$"
after_tool = true
text = "I could not: {{tool_results:300}}"

[[reply]]
when = "^fail$"
tool_calls = [{ name = "t__fail" }]

[[reply]]
when = "^refuse$"
tool_calls = [{ name = "t__refuse" }]

[[reply]]
when = "^crash$"
tool_calls = [{ name = "t__crash" }]

[[reply]]
when = "^hang$"
tool_calls = [{ name = "t__hang" }]

[[reply]]
when = "^add$"
tool_calls = [{ name = "t__add", parameters = { a = "one", b = 2 } }]
"#;
    let config = agent("").replace("call_timeout_ms = 20000", "call_timeout_ms = 1000");
    let world = configured_world(&config, script).await;
    for (ask, category, says) in [
        ("fail", "tool_error", "it did not work"),
        ("refuse", "tool_failed", "is not good enough"),
        ("add", "invalid_parameters", ""),
        ("crash", "tool_server_unavailable", ""),
        ("hang", "tool_timeout", ""),
    ] {
        // After the crash it is started again, with a pause.
        let began = Instant::now();
        let ended = loop {
            let ended = world.say(ask).await;
            completed(&ended);
            let asked = facts(&ended, "tool.call.completed");
            let is_away = asked.first().is_none_or(|fact| fact["category"] == "tool_server_unavailable");
            if ask == "crash" || !is_away {
                break ended;
            }
            assert!(began.elapsed() < PATIENCE, "the server does not come back: {}", record(&ended));
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let done = tool_fact(&ended, "tool.call.completed", &format!("t__{ask}"));
        assert_eq!(done["category"], category, "{done}");
        assert!(done.get("result").is_none() && done["error"].as_str().unwrap().contains(says), "{done}");
        assert!(ended.answer_text().starts_with("I could not: Error: "), "{ask}: {}", ended.answer_text());
        assert_eq!(facts(&ended, "model.call.completed").len(), 2);
    }
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn without_a_model_the_run_fails_and_says_nothing() {
    let config = "[[bindings]]\nid = \"agent\"\nrunner = \"plugin:agent-host/local-agent/default\"\n";
    let world = configured_world(config, "").await;
    let ended = world.say_in("c", "Hi").await;
    ends_once(&ended);
    assert_eq!((ended.run.status, ended.failure()), (RunStatus::Failed, "provider_not_ready"), "{}", record(&ended));
    assert_eq!(course(&ended), ended.kinds(), "nothing is said in place of a model");
    assert!(ended.end()["message"].as_str().unwrap().contains("agent-host.toml"), "{}", ended.end());
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_model_without_its_key_is_not_ready_and_others_answer() {
    let config = r#"
[[models]]
id = "keyless"
provider = "openai"
base_url = "http://127.0.0.1:9/v1"
api_key = { env = "AGENT_HOST_TESTS_NO_SUCH_KEY" }

[[models]]
id = "chat"
provider = "scripted"
script = "script.toml"

[[bindings]]
id = "keyless"
runner = "plugin:agent-host/local-agent/default"
match = { conversation = "keyless" }
config = { model = "keyless" }

[[bindings]]
id = "chat"
runner = "plugin:agent-host/local-agent/default"
match = { conversation = "chat" }
config = { model = "chat" }
"#;
    let world = configured_world(config, "[[reply]]\ntext = \"Here.\"\n").await;
    let problems = world.host.readiness().problems;
    assert!(problems.iter().any(|problem| problem.contains("AGENT_HOST_TESTS_NO_SUCH_KEY")), "{problems:?}");
    let ended = world.say_in("keyless", "Hi").await;
    ends_once(&ended);
    assert_eq!((ended.run.status, ended.failure()), (RunStatus::Failed, "provider_not_ready"), "{}", record(&ended));
    assert_eq!(ended.streamed(), "");
    for fact in facts(&ended, "model.call.completed") {
        assert_eq!(fact["error"]["category"], "provider_not_ready", "{fact}");
    }
    assert_eq!(world.say_in("chat", "Hi").await.answer_text(), "Here.");
    world.host.shutdown(PATIENCE).await;
}

/// Longer than any test waits: 500 pieces of 400 ms.
fn slow_script() -> String {
    format!("[[reply]]\ntext = \"{}\"\nchunk_chars = 1\ndelay_ms = 400\n", "a".repeat(500))
}

/// Sends a message and waits until its run has an event of this kind.
async fn until(world: &World, text: &str, kind: &str) -> agent_host_protocol::RunId {
    let id = world.send(Envelope::message(text, "api")).await;
    let reached = async {
        let mut events = Box::pin(world.host.follow(id, 0).unwrap());
        while let Some(event) = events.next().await {
            if event.unwrap().kind == kind {
                return true;
            }
        }
        false
    };
    assert!(tokio::time::timeout(PATIENCE, reached).await.unwrap(), "the run ended without {kind}");
    id
}

#[tokio::test]
async fn a_run_that_is_cancelled_in_the_middle_of_a_stream_ends_at_once() {
    let world = world(&slow_script(), "").await;
    let id = until(&world, "Tell me everything", "message.delta").await;
    let began = Instant::now();
    world.host.cancel(id, "enough".to_owned()).await.unwrap();
    let ended = world.ended(id).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    ends_once(&ended);
    assert_eq!((ended.run.status, ended.failure()), (RunStatus::Cancelled, "cancelled"), "{}", record(&ended));
    let [done] = &*facts(&ended, "model.call.completed") else { panic!("{}", record(&ended)) };
    assert_eq!((&done["error"]["code"], &done["error"]["category"]), (&json!("cancelled"), &json!("cancelled")), "{done}");
    assert!(done["duration_ms"].is_u64(), "{done}");
    assert!(!ended.kinds().contains(&"message.completed"), "{}", record(&ended));
    assert!(ended.streamed().starts_with('a'));
    world.host.shutdown(PATIENCE).await;
}

/// A model that asks for the tool that never answers.
const HANGS: &str = "[[reply]]\ntool_calls = [{ name = \"t__hang\" }]\n";

#[tokio::test]
async fn a_run_that_is_cancelled_while_a_tool_works_ends_at_once() {
    let world = world(HANGS, "").await;
    let id = until(&world, "Go", "tool.call.started").await;
    let began = Instant::now();
    world.host.cancel(id, "enough".to_owned()).await.unwrap();
    let ended = world.ended(id).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    ends_once(&ended);
    assert_eq!((ended.run.status, ended.failure()), (RunStatus::Cancelled, "cancelled"), "{}", record(&ended));
    let done = tool_fact(&ended, "tool.call.completed", "t__hang");
    assert!(done.get("result").is_none() && done["error"].is_string(), "in the form of any other failure: {done}");
    assert_eq!((&done["code"], &done["category"]), (&json!("cancelled"), &json!("cancelled")), "{done}");
    assert_eq!(facts(&ended, "model.call.completed").len(), 1, "the model is not asked again");
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_deadline_that_passes_while_a_tool_hangs_ends_the_run() {
    let world = world(HANGS, "deadline_ms = 1500").await;
    let began = Instant::now();
    let ended = world.say("Go").await;
    // The deadline and not the timeout of the server, with much room for a slow machine.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    ends_once(&ended);
    assert_eq!((ended.run.status, ended.failure()), (RunStatus::Timeout, "deadline_exceeded"), "{}", record(&ended));
    let done = tool_fact(&ended, "tool.call.completed", "t__hang");
    assert!(done.get("result").is_none() && done["error"].is_string(), "in the form of any other failure: {done}");
    // Whichever sees the deadline first: the call, the gate, or the end of the run.
    assert!(
        ["tool_timeout", "deadline_exceeded", "cancelled"].contains(&done["category"].as_str().unwrap_or_default()),
        "{done}"
    );
    assert_eq!(facts(&ended, "limit.reached")[0]["limit"], "deadline_ms", "{}", record(&ended));
    world.host.shutdown(PATIENCE).await;
}
