//! Real runs keep the rules for runtime events: answers, artifacts, questions, failures, cancels, deadlines, restarts and retries. Their
//! facts are read from their evidence, which is verified too.

use agent_host_tests::{process, support::Host};
use serde_json::{Value, json};

/// The facts of a run without a conversation: a thread of its own.
async fn facts_of(host: &Host, run: &str) -> (Vec<Value>, String) {
    let evidence = String::from_utf8(host.bytes(&format!("/api/v1/runs/{run}/evidence")).await).unwrap();
    let lines: Vec<Value> = evidence.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["header"]["completeness"]["record"], "whole", "{run}");
    (lines.iter().filter(|line| line["type"] == "fact").map(|line| line["fact"].clone()).collect(), evidence)
}

/// Checks the facts and the evidence of a run with the binary; gives the facts.
async fn keeps_the_rules(host: &Host, run: &str, more: &[&str]) -> Vec<Value> {
    let (facts, evidence) = facts_of(host, run).await;
    let dir = tempfile::tempdir().unwrap();
    let log: String = facts.iter().map(|fact| format!("{fact}\n")).collect();
    std::fs::write(dir.path().join("log.jsonl"), &log).unwrap();
    std::fs::write(dir.path().join("run.jsonl"), evidence).unwrap();
    let check = process::command(dir.path()).args(["conformance", "log.jsonl"]).args(more).output().unwrap();
    assert!(check.status.success(), "{}\n{log}", String::from_utf8_lossy(&check.stdout));
    let verified = process::command(dir.path()).args(["evidence", "verify", "run.jsonl"]).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    facts
}

fn has(facts: &[Value], kind: &str) -> bool {
    facts.iter().any(|fact| fact["type"] == kind)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_that_work_fail_and_are_stopped_keep_the_rules() {
    let mut host = Host::steps("deadline_ms = 60000\n");
    let said = host.take("say hello").await;
    let facts = keeps_the_rules(&host, said.run["run_id"].as_str().unwrap(), &["--expect", "text-basic"]).await;
    assert_eq!(facts[0]["type"], "session.created");

    let made = host.take("create;write abc 5;finish;say done").await;
    keeps_the_rules(&host, made.run["run_id"].as_str().unwrap(), &["--expect", "artifact-evidence"]).await;

    let failed = host.send("fail").await;
    host.ended(&failed).await;
    keeps_the_rules(&host, &failed, &["--expect", "turn-failure"]).await;

    let cancelled = host.send("say a;timer 60000").await;
    host.until_step(&cancelled, "say a").await;
    host.cancel(&cancelled).await;
    host.ended(&cancelled).await;
    keeps_the_rules(&host, &cancelled, &["--expect", "cancel"]).await;

    // Active, then killed with the host, then resumed.
    let resumed = host.send("say before;timer 1500;say after").await;
    host.until_step(&resumed, "say before").await;
    keeps_the_rules(&host, &resumed, &["--open"]).await;
    host.kill_and_revive();
    host.ended(&resumed).await.completed();
    keeps_the_rules(&host, &resumed, &["--expect", "text-basic"]).await;
    keeps_the_rules(&host, &resumed, &["--expect", "stream-repair"]).await;

    host.reconfigure(|config| config.replace("deadline_ms = 60000", "deadline_ms = 300"));
    host.kill_and_revive();
    let late = host.send("say a;timer 60000").await;
    host.ended(&late).await;
    let facts = keeps_the_rules(&host, &late, &["--expect", "turn-failure"]).await;
    let end = facts.iter().find(|fact| fact["type"] == "turn.failed").unwrap();
    assert_eq!(end["payload"]["failureCategory"], "deadline_exceeded", "{end:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_retried_after_a_crash_keeps_the_rules() {
    let mut host = Host::steps("durability = \"retry\"\nmax_attempts = 3\n");
    let run = host.send("attempt;say hi;timer 1000;say end").await;
    host.until_step(&run, "say hi").await;
    host.kill_and_revive();
    host.ended(&run).await.completed();
    let facts = keeps_the_rules(&host, &run, &["--expect", "text-basic"]).await;
    assert!(has(&facts, "task.attempt.failed") && has(&facts, "task.attempt.completed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_and_children_keep_the_rules() {
    let server = env!("CARGO_BIN_EXE_mcp-server");
    let config = format!(
        "[[mcp_servers]]\nid = \"good\"\ncommand = \"{server}\"\n[[bindings]]\nid = \"stage\"\nrunner = \"plugin:test/stage/default\"\n\
         resources = {{ tool_names = [\"*\"], runs = [\"start\", \"get\", \"events\"] }}\n"
    );
    let host = Host::start(&["stage"], &config);
    let tool = |name: &str, parameters: Value| json!({ "do": "client", "calls": [{ "name": name, "parameters": parameters }] });
    let say = json!({ "do": "say", "text": "done" });
    let own = json!({ "do": "tool", "calls": [
        { "id": "1", "name": "look", "parameters": { "at": "x" }, "result": "found" },
        { "id": "2", "name": "look", "parameters": {}, "error": "it is dark" },
    ] });
    let child = json!({ "do": "child", "script": [{ "do": "artifact", "text": "of the child" }, say] });
    for (step, expected, kinds) in [
        (tool("good__add", json!({ "a": 1, "b": 2 })), "tool-success", &["tool.args"][..]),
        (tool("good__repeat", json!({ "text": "word ", "times": 10_000 })), "tool-success", &["artifact.changed"]),
        (tool("good__fail", json!({})), "tool-failure", &[]),
        (own, "tool-failure", &["tool.result"]),
        (child, "subagent-handoff", &["artifact.changed", "task.completed"]),
    ] {
        let run = host.take(&json!([step, say]).to_string()).await.run["run_id"].as_str().unwrap().to_owned();
        let facts = keeps_the_rules(&host, &run, &["--expect", expected]).await;
        for kind in kinds {
            assert!(has(&facts, kind), "{step} has no {kind}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_that_are_answered_declined_and_forgotten_keep_the_rules() {
    let host = Host::start(&["asks"], "[[bindings]]\nid = \"asks\"\nrunner = \"plugin:test/asks/default\"\n");
    let action = async |run: &str| -> String {
        let asked = host.until(run, |event| event["type"] == "action.requested").await;
        host.until_status(run, "waiting").await;
        asked["data"]["action_id"].as_str().unwrap().to_owned()
    };
    let answer = async |action: &str, body: Value| {
        let url = format!("{}/api/v1/actions/{action}/respond", *host.urls().borrow());
        let answer = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
        assert!(answer.status().is_success(), "{answer:?}");
    };
    let answered = host.send("say first;;ask confirmation - Really;;say last").await;
    let id = action(&answered).await;
    // The thread goes on: the question is open.
    let facts = keeps_the_rules(&host, &answered, &["--open"]).await;
    assert!(has(&facts, "action.required") && !has(&facts, "action.resolved"));
    answer(&id, json!({ "decision": "submit", "answer": true })).await;
    host.ended(&answered).await;
    keeps_the_rules(&host, &answered, &["--expect", "hitl-action"]).await;

    let declined = host.send("ask confirmation - Really;;say last").await;
    let id = action(&declined).await;
    answer(&id, json!({ "decision": "decline" })).await;
    host.ended(&declined).await;
    keeps_the_rules(&host, &declined, &[]).await;

    let expired = host.send("ask confirmation 300 Really;;say last").await;
    host.ended(&expired).await;
    assert!(has(&keeps_the_rules(&host, &expired, &[]).await, "action.expired"));

    let stopped = host.send("ask confirmation - Really").await;
    action(&stopped).await;
    host.cancel(&stopped).await;
    host.ended(&stopped).await;
    let facts = keeps_the_rules(&host, &stopped, &["--expect", "cancel"]).await;
    assert!(has(&facts, "action.canceled"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_that_breaks_keeps_the_rules() {
    let host = Host::start(&["hostile"], "[[bindings]]\nid = \"hostile\"\nrunner = \"plugin:test/hostile/default\"\n");
    for (text, category) in [("trap", "runner_crashed"), ("exit 3", "runner_crashed"), ("fail x", "execution_failed")] {
        let run = host.send(text).await;
        host.ended(&run).await;
        let facts = keeps_the_rules(&host, &run, &["--expect", "turn-failure"]).await;
        let end = facts.iter().find(|fact| fact["type"] == "turn.failed").unwrap();
        assert_eq!(end["payload"]["failureCategory"], category, "{text}: {end:#}");
    }
    for text in ["emit-unknown x.y", "emit-bad-json", "emit-terminal", "emit-many 64"] {
        let run = host.send(text).await;
        host.ended(&run).await;
        keeps_the_rules(&host, &run, &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_is_cancelled_in_line_keeps_the_rules() {
    let host = Host::steps("");
    let first = host.send_in("line", "say a;timer 2000").await;
    host.until_step(&first, "say a").await;
    let waiting = host.send_in("line", "say never").await;
    host.until_status(&waiting, "queued").await;
    host.cancel(&waiting).await;
    host.ended(&waiting).await;
    host.ended(&first).await.completed();
    let facts = thread_of(&host, "line").await;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("log.jsonl"), facts.iter().map(|fact| format!("{fact}\n")).collect::<String>()).unwrap();
    let check = process::command(dir.path()).args(["conformance", "log.jsonl", "--expect", "cancel"]).output().unwrap();
    assert!(check.status.success(), "{}\n{facts:#?}", String::from_utf8_lossy(&check.stdout));
    let of_waiting: Vec<_> = facts.iter().filter(|fact| fact["turnId"] == waiting.as_str()).map(|fact| &fact["type"]).collect();
    assert!(of_waiting.contains(&&json!("turn.canceled")) && !of_waiting.contains(&&json!("turn.started")), "{of_waiting:?}");
}

/// All facts of a thread, read in pages.
async fn thread_of(host: &Host, thread: &str) -> Vec<Value> {
    let mut facts: Vec<Value> = Vec::new();
    loop {
        let after = facts.len();
        let page = host.get(&format!("/api/v1/threads/{thread}/events?after={after}&limit=7")).await;
        facts.extend(page["items"].as_array().unwrap_or_else(|| panic!("{page:#}")).iter().cloned());
        if page["has_more"] == false {
            return facts;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_thread_of_a_conversation_keeps_the_rules_with_its_read_model_and_its_evidence() {
    let mut host = Host::steps("");
    let mut runs = Vec::new();
    for text in ["say one", "create;write abc 5;finish;say two", "fail"] {
        let run = host.send_in("c", text).await;
        host.ended(&run).await;
        runs.push(run);
    }
    let facts = thread_of(&host, "c").await;
    let log: String = facts.iter().map(|fact| format!("{fact}\n")).collect();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("log.jsonl"), &log).unwrap();
    let in_middle = facts.len() / 2;
    for path in ["/api/v1/threads/c".to_owned(), format!("/api/v1/threads/c?at={in_middle}")] {
        std::fs::write(dir.path().join("model.json"), host.bytes(&path).await).unwrap();
        let check =
            process::command(dir.path()).args(["conformance", "log.jsonl", "--read-model", "model.json"]).output().unwrap();
        let said = String::from_utf8_lossy(&check.stdout).into_owned();
        assert!(check.status.success() && said.contains("3 turns: conforms"), "{path}: {said}\n{log}");
    }
    // The evidence of the runs has the same facts, with the same numbers, also after a crash.
    host.kill_and_revive();
    let mut of_evidence = Vec::new();
    for run in &runs {
        of_evidence.extend(facts_of(&host, run).await.0);
    }
    assert_eq!(of_evidence, facts);
}
