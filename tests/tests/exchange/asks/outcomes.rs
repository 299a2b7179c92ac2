//! The outcomes of an action: approved, denied, expired, or not executed by its service.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::asks::desk::{Desk, Setup, act, answered, record, unanswered};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn approved_actions_are_executed_once() {
    let desk = Desk::ruled(&[]).await;
    let (run, id) =
        desk.waiting(&format!("say before;;{};;say after", act("message.send", json!({ "text": "hi" }))), "approval").await;
    desk.parked(1).await;
    assert!(id.starts_with(&format!("{run}.")), "{id}");
    assert_eq!(desk.open(1).await, std::slice::from_ref(&id));
    let shown = desk.action(&id).await;
    assert_eq!(
        (&shown["status"], &shown["run_id"], &shown["request"]["kind"]),
        (&json!("open"), &json!(run), &json!("platform_action"))
    );
    assert_eq!(shown["request"]["decisions"], json!(["approve", "deny"]));
    assert_eq!((&shown["request"]["action"], &shown["request"]["payload"]), (&json!("message.send"), &json!({ "text": "hi" })));
    assert!(shown["request"]["expires_at"].as_u64() > shown["requested_at"].as_u64(), "{shown:#}");
    assert!(desk.hook.seen().is_empty(), "nobody has said yes");

    let decided = desk.decide(&id, "approve").await;
    assert_eq!((&decided["action_id"], &decided["answered"]["decision"]), (&json!(id), &json!("approve")), "{decided:#}");
    let ended = desk.host.ended(&run).await.completed();
    assert_eq!(ended.outcomes(), [json!("before"), json!({ "executed": { "done": id, "times": 1 } }), json!("after")]);
    assert_eq!(ended.message_texts()[..2], ["before", "after"], "{ended}");
    assert_eq!(desk.hook.done(), std::slice::from_ref(&id));
    assert_eq!(desk.hook.times(&id), 1);
    let resolved = answered(&ended, &id, "executed");
    assert_eq!(resolved["result"]["done"], id.as_str());
    assert_eq!((ended.statuses("approval").len(), ended.statuses("woken").len(), ended.resumes()), (1, 1, 0), "{ended}");
    let shown = desk.action(&id).await;
    assert_eq!((&shown["status"], &shown["resolved"]), (&json!("resolved"), &resolved), "{shown:#}");
    assert_eq!(desk.host.get(&format!("/api/v1/runs/{run}/actions")).await["items"], json!([shown]));
    assert!(desk.open(10).await.is_empty());
    assert_eq!(desk.audit(&run, "platform.request-action").await, [(json!("message.send"), json!("ok"))]);
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn denied_and_expired_actions_are_not_executed() {
    let rules = &[r#"{ action = "issue.*", policy = "ask", expires_ms = 800 }"#];
    let desk = Desk::ruled(rules).await;
    let steps = [act("message.send", json!({})), act("message.send", json!({})), act("issue.close", json!({}))];
    let run = desk.host.send(&steps.join(";;")).await;
    let first = desk.wait_for_asks(&run, 1).await;
    let (status, decided) = desk.respond(&first, json!({ "decision": "deny", "reason": "not on a Friday" })).await;
    assert_eq!(
        (status, &decided["status"], &decided["resolved"]["outcome"]),
        (200, &json!("resolved"), &json!("denied")),
        "{decided:#}"
    );
    let second = desk.wait_for_asks(&run, 2).await;
    desk.decide(&second, "deny").await;
    let third = desk.wait_for_asks(&run, 3).await;
    let ended = desk.host.ended(&run).await.completed();
    assert_eq!(ended.outcomes(), [json!({ "denied": "not on a Friday" }), json!({ "denied": "" }), json!("expired")]);
    assert_eq!(answered(&ended, &first, "denied")["reason"], "not on a Friday");
    answered(&ended, &second, "denied");
    unanswered(&ended, &third, "expired");
    let fact =
        |kind: &str| ended.events.iter().rfind(|event| event["type"] == kind && event["data"]["action_id"] == third.as_str());
    let (asked, over) = (fact("action.requested").unwrap(), fact("action.resolved").unwrap());
    let expires_at = asked["data"]["expires_at"].as_u64().unwrap();
    assert_eq!(expires_at, asked["timestamp"].as_u64().unwrap() + 800, "{ended}");
    assert!(over["timestamp"].as_u64().unwrap() >= expires_at, "{ended}");
    assert!(desk.hook.seen().is_empty(), "{ended}");
    desk.refuses(&third, json!({ "decision": "approve" }), 410, "expired").await;
    desk.refuses(&first, json!({ "decision": "approve" }), 409, "already_answered").await;
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn actions_expire_while_the_host_is_stopped() {
    let mut desk = Desk::ruled(&[r#"{ action = "*", policy = "ask", expires_ms = 1500 }"#]).await;
    let (run, id) = desk.waiting(&act("message.send", json!({})), "approval").await;
    desk.host.kill();
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    desk.host.revive();
    let (status, _) = desk.respond(&id, json!({ "decision": "approve" })).await;
    assert_eq!(status, 410);
    let ended = desk.host.ended(&run).await.completed();
    assert_eq!(ended.outcomes(), [json!("expired")]);
    unanswered(&ended, &id, "expired");
    assert!(desk.hook.seen().is_empty());
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_webhook_that_fails_is_called_again_and_one_that_misbehaves_is_an_error() {
    let hook = "timeout_ms = 500\nmax_attempts = 3\n";
    let desk = Desk::new(Setup { hook, approvals: &[r#"{ action = "*", policy = "allow" }"#], ..Setup::default() }).await;
    let cases = [
        ("fails:2", "", 3),
        ("fails:9", "webhook_failed", 3),
        ("hang", "webhook_timeout", 3),
        ("break", "webhook_unreachable", 3),
        ("nonsense", "webhook_unreachable", 3),
        ("redirect", "webhook_redirected", 1),
        ("garbage", "webhook_invalid_answer", 1),
        ("refuse", "webhook_refused", 1),
        ("", "", 1),
    ];
    let steps: Vec<_> = cases.iter().map(|(how, ..)| act("message.send", json!({ "how": how }))).collect();
    let began = Instant::now();
    let run = desk.host.send(&steps.join(";;")).await;
    let ended = desk.host.ended(&run).await.completed();
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let outcomes = ended.outcomes();
    let asked = desk.requested(&run).await;
    assert_eq!(asked.len(), cases.len(), "{ended}");
    for (((how, code, times), id), outcome) in cases.iter().zip(&asked).zip(&outcomes) {
        assert_eq!(desk.hook.times(id), *times, "{how}: {ended}");
        if code.is_empty() {
            assert_eq!(outcome["executed"], json!({ "done": id, "times": times }), "{how}");
            unanswered(&ended, id, "executed");
        } else {
            assert_eq!((&outcome["error"], &outcome["details"]["code"]), (&json!("runtime_error"), &json!(code)), "{how}");
            assert_eq!(outcome["retryable"], *times > 1, "{how}: {outcome}");
            let resolved = unanswered(&ended, id, "failed");
            assert_eq!(
                (&resolved["error"]["code"], &resolved["error"]["category"]),
                (&json!("runtime_error"), &json!(code)),
                "{how}"
            );
        }
    }
    let refused: Vec<_> = desk.audit(&run, "platform.request-action").await.into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(refused.iter().filter(|outcome| *outcome == "runtime_error").count(), 7, "{refused:?}");
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_webhook_that_fails_after_an_approval_is_in_the_record_with_it() {
    let desk = Desk::new(Setup { hook: "timeout_ms = 300\nmax_attempts = 2\n", ..Setup::default() }).await;
    let (run, id) = desk.waiting(&act("message.send", json!({ "how": "hang" })), "approval").await;
    desk.decide(&id, "approve").await;
    let ended = desk.host.ended(&run).await.completed();
    assert_eq!(ended.outcomes()[0]["details"]["code"], "webhook_timeout", "{ended}");
    assert_eq!(answered(&ended, &id, "failed")["error"]["category"], "webhook_timeout", "{ended}");
    assert_eq!(desk.hook.times(&id), 2);
    desk.refuses(&id, json!({ "decision": "approve" }), 409, "already_answered").await;
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_does_not_outlive_its_deadline_or_its_end_for_a_webhook() {
    let binding = "deadline_ms = 2500\n";
    let desk = Desk::new(Setup { binding, approvals: &[r#"{ action = "*", policy = "allow" }"#], ..Setup::default() }).await;
    for cancels in [false, true] {
        let run = desk.host.send(&act("message.send", json!({ "how": "hang" }))).await;
        let id = desk.wait_for_asks(&run, 1).await;
        desk.hook.until(&id, 1).await;
        if cancels {
            desk.host.cancel(&run).await;
        }
        let ended = desk.host.ended(&run).await;
        assert_eq!(ended.run["status"], if cancels { "cancelled" } else { "timeout" }, "{ended}");
        let (_, resolved) = record(&ended, &id);
        // An unknown outcome is not reported as a failure, except for a timeout.
        assert!(["cancelled", "failed"].contains(&resolved["outcome"].as_str().unwrap()), "{ended}");
        assert_ne!(resolved["error"], json!({}), "{ended}");
    }
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_command_line_answers_too() {
    let desk = Desk::ruled(&[]).await;
    let (run, id) = desk
        .waiting(&format!("{};;ask form - name {}", act("message.send", json!({})), json!({ "type": "object" })), "approval")
        .await;
    let server = desk.host.urls().borrow().clone();
    let decided = |args: &[&str]| {
        let mut command = agent_host_tests::process::command(desk.host.dir());
        let output = command.args(["runs", "respond", "--server", &server]).args(args).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (fits, _, error) = decided(&[&id, "submit"]);
    assert!(!fits && error.contains("approve"), "{error}");
    let (done, text, error) = decided(&[&id, "deny", "--reason", "no"]);
    assert!(done && text.contains(&id), "{text}{error}");
    let (again, _, error) = decided(&[&id, "approve"]);
    assert!(!again && error.contains("answered before"), "{error}");
    let question = desk.wait_for_asks(&run, 2).await;
    let (done, text, error) = decided(&[&question, "submit", "--answer", r#"{"name":"Ada"}"#]);
    assert!(done, "{text}{error}");
    let ended = desk.host.ended(&run).await.completed();
    assert_eq!(ended.outcomes(), [json!({ "denied": "no" }), json!({ "submitted": { "name": "Ada" } })]);
    assert_eq!(ended.of("action.answered")[1]["answer"], json!({ "name": "Ada" }));
    assert_eq!(ended.of("action.answered")[0]["by"], Value::Null);
    desk.check();
}
