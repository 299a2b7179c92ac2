//! Answers of real programs: turns of one session, tools of the host, commands that a person allows or declines.

use std::time::{Duration, Instant};

use agent_host_tests::{
    support::{EndedRun, Host, lines_of},
    world::PATIENCE,
};
use serde_json::{Value, json};

use super::{
    answer, binding, open_question, order,
    programs::{self, Program},
    respond, said, submit, until, workspace,
};

/// Allows what the agent of a run asks for at the moment.
pub(super) async fn allow_all(host: &Host, program: &Program, run: &str) {
    if let Some(question) = open_question(host, run).await {
        let allow = program.allow.unwrap_or_else(|| panic!("it does not ask: {question}"));
        answer(host, &question, &submit(allow)).await;
    }
}

/// Allows what the agent of a run asks for, to its end.
pub(super) async fn ended(host: &Host, program: &Program, run: &str) -> EndedRun {
    let began = Instant::now();
    while !host.run(run).await["finished_at"].is_u64() {
        allow_all(host, program, run).await;
        assert!(began.elapsed() < PATIENCE, "it does not end: {}", lines_of(&host.events(run).await));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    host.ended(run).await
}

fn decline() -> Value {
    json!({ "decision": "decline" })
}

/// Two turns of one session, with calls of the host's tools by the MCP endpoint of the run: a value that is kept, and found in the next
/// run. Gives the session.
pub(super) async fn answers(host: &Host, program: &Program) -> Value {
    let first = said(host, "hello there").await.completed();
    assert_eq!(last_text(&first), "Hello from the scripted model.", "{first}");
    let session = first.of("harness.session")[0].clone();
    assert_eq!(session["resumed"], false, "{first}");
    let tools = program.tools;
    let run = host.send_in("c1", &format!("keep blue by {tools};")).await;
    let kept = ended(host, program, &run).await.completed();
    assert!(kept.of("tool.call.completed")[0]["error"].is_null(), "{kept}");
    goes_on(&kept, &session["session_id"]);
    let run = host.send_in("c1", &format!("find blue by {tools};")).await;
    let found = ended(host, program, &run).await.completed();
    let result = found.of("tool.call.completed")[0]["result"].to_string();
    assert!(result.contains("blue"), "{found}");
    assert_eq!(last_text(&found), "Blue.", "{found}");
    goes_on(&found, &session["session_id"]);
    session["session_id"].clone()
}

/// The last message of a run.
pub(super) fn last_text(ended: &EndedRun) -> &str {
    ended.message_texts().last().copied().unwrap_or_default().trim()
}

/// The last session of a run is an earlier one.
pub(super) fn goes_on(ended: &EndedRun, session: &Value) {
    let last = *ended.of("harness.session").last().unwrap_or_else(|| panic!("no session: {ended}"));
    assert_eq!((&last["resumed"], &last["session_id"]), (&json!(true), session), "{ended}");
}

/// A command that a person allows, and one that a person declines.
pub(super) async fn asks_for_commands(host: &Host, program: &Program) {
    let Some(allow) = program.allow else { return };
    let shell = program.shell;
    let run = host.send_in("c1", &format!("make the folder one by {shell};")).await;
    let question = respond(host, &run, submit(allow)).await;
    assert!(question["description"].as_str().unwrap().contains("mkdir one"), "{question}");
    let granted = host.ended(&run).await.completed();
    assert_eq!(last_text(&granted), "Folder one is there.", "{granted}");
    assert_eq!(granted.of("tool.call.started").len(), 1, "{granted}");
    assert!(workspace(host, "c1").join("one").is_dir());
    let run = host.send_in("c1", &format!("make the folder two by {shell};")).await;
    respond(host, &run, decline()).await;
    let declined = host.ended(&run).await.completed();
    assert!(declined.of("tool.call.completed")[0]["error"].is_string(), "{declined}");
    assert!(!workspace(host, "c1").join("two").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claude_code_answers_in_a_sandbox() {
    let program = programs::claude_code();
    let host = program.host(None, "isolation = \"bwrap\"");
    answers(&host, &program).await;
    asks_for_commands(&host, &program).await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_example_agent_of_the_acp_sdk_asks_and_is_answered() {
    let runner = "plugin:test/example/default";
    let example = programs::example_of_the_sdk();
    let modules = example.ancestors().find(|dir| dir.ends_with("node_modules")).unwrap();
    let harness = format!(
        "[[harnesses]]\nid = \"{runner}\"\npreset = \"acp\"\ncommand = [\"node\", {example:?}]\nreadable = [{modules:?}]\n"
    );
    let host = Host::start(&[], &format!("{harness}{}", binding(runner)));
    let (allowed, declined, cancelled) =
        (host.send_in("c1", "go").await, host.send_in("c2", "go").await, host.send_in("c3", "go").await);
    host.until(&cancelled, |event| event["type"] == "tool.call.started").await;
    host.cancel(&cancelled).await;
    host.ended(&cancelled).await.cancelled();
    let question = respond(&host, &allowed, submit("Allow this change")).await;
    assert_eq!(question["title"], "Modifying critical configuration file", "{question}");
    respond(&host, &declined, decline()).await;
    let allowed = host.ended(&allowed).await.completed();
    assert!(allowed.message_texts().concat().ends_with("The changes have been applied."), "{allowed}");
    assert_eq!(allowed.of("tool.call.completed").len(), 2, "{allowed}");
    let declined = host.ended(&declined).await.completed();
    assert!(declined.message_texts().concat().ends_with("I'll skip the configuration update."), "{declined}");
    // It cannot load sessions, and says so.
    let run = order(&host, "c1", "go", json!({})).await;
    let again =
        until("the session", async || host.events(&run).await.into_iter().find(|event| event["type"] == "harness.session")).await;
    assert_eq!(again["data"]["reason"], "the agent cannot load sessions", "{again}");
    host.cancel(&run).await;
    host.ended(&run).await.cancelled();
    host.check();
}
