//! Runs that cannot leave memory wait all the same, with the same facts.

use serde_json::json;

use crate::asks::desk::{Desk, Setup, act, answered, ran_out, unanswered};

async fn desk(durability: &str) -> Desk {
    desk_with(durability, &[], "").await
}

async fn desk_with(durability: &str, approvals: &[&str], more: &str) -> Desk {
    let binding = format!("durability = \"{durability}\"\n{more}");
    Desk::new(Setup { binding: &binding, approvals, ..Setup::default() }).await
}

/// A run that waits in memory.
async fn in_memory(desk: &Desk, run: &str, reason: &str) {
    let waiting = desk.host.until_status(run, "waiting").await;
    assert_eq!(waiting["status_reason"], reason, "{waiting:#}");
    let ready = desk.host.get("/readyz").await;
    assert_eq!((&ready["live_runs"], &ready["parked_runs"]), (&json!(1), &json!(0)), "{ready}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_without_a_journal_waits_in_memory() {
    for durability in ["fail", "retry"] {
        let rules = &[r#"{ action = "issue.*", policy = "ask", expires_ms = 600 }"#];
        let desk = desk_with(durability, rules, "").await;
        let steps = [
            act("message.send", json!({})),
            "ask choice - colour {\"enum\":[\"red\"]}".to_owned(),
            act("issue.close", json!({})),
            act("message.send", json!({ "how": "refuse" })),
        ];
        let run = desk.host.send(&steps.join(";;")).await;
        let action = desk.wait_for_asks(&run, 1).await;
        in_memory(&desk, &run, "approval").await;
        assert_eq!(desk.open(5).await, std::slice::from_ref(&action));
        desk.refuses(&action, json!({ "decision": "submit" }), 400, "invalid_argument").await;
        let response_body = desk.decide(&action, "approve").await;
        assert_eq!(response_body["answered"]["decision"], "approve", "{response_body:#}");
        let question = desk.wait_for_asks(&run, 2).await;
        in_memory(&desk, &run, "question").await;
        desk.refuses(&question, json!({ "decision": "submit", "answer": "blue" }), 400, "invalid_argument").await;
        let (status, _) = desk.respond(&question, json!({ "decision": "submit", "answer": "red" })).await;
        assert_eq!(status, 200);
        let expires = desk.wait_for_asks(&run, 3).await;
        let refused = desk.wait_for_asks(&run, 4).await;
        desk.decide(&refused, "approve").await;
        let ended = desk.host.ended(&run).await.completed();
        let outcomes = ended.outcomes();
        assert_eq!(outcomes[0]["executed"]["done"], action.as_str(), "{ended}");
        assert_eq!(outcomes[1..3], [json!({ "submitted": "red" }), json!("expired")], "{ended}");
        assert_eq!(outcomes[3]["details"]["code"], "webhook_refused", "{ended}");
        answered(&ended, &action, "executed");
        answered(&ended, &question, "submitted");
        unanswered(&ended, &expires, "expired");
        answered(&ended, &refused, "failed");
        // The record shows the wait and its end.
        let statuses: Vec<_> =
            ended.of("run.status").iter().map(|data| (data["status"].clone(), data["reason"].clone())).collect();
        assert_eq!(statuses.iter().filter(|(status, _)| status == "waiting").count(), 4, "{ended}");
        assert_eq!(statuses.iter().filter(|(status, reason)| status == "running" && reason == "answered").count(), 4, "{ended}");
        assert!(desk.open(5).await.is_empty());
        assert_eq!(desk.hook.times(&action), 1);
        desk.check();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_with_an_open_response_waits_in_memory_and_reads_on() {
    let desk = Desk::ruled(&[]).await;
    let steps = format!("stream;;{};;ask form - name;;drain;;{}", act("message.send", json!({})), act("message.edit", json!({})));
    let run = desk.host.send(&steps).await;
    let action = desk.wait_for_asks(&run, 1).await;
    in_memory(&desk, &run, "approval").await;
    desk.decide(&action, "deny").await;
    let question = desk.wait_for_asks(&run, 2).await;
    in_memory(&desk, &run, "question").await;
    desk.decide(&question, "decline").await;
    let ended = desk.host.ended(&run).await.completed();
    let outcomes = ended.outcomes();
    assert_eq!(outcomes[1..3], [json!({ "denied": "" }), json!({ "declined": null })], "{ended}");
    assert_eq!(outcomes[3], "one two three four five six seven eight nine ten", "{ended}");
    assert_eq!(ended.of("model.call.completed").len(), 1, "{ended}");
    assert!(ended.statuses("woken").is_empty(), "{ended}");
    desk.check();
}

/// The stream is gone with the host; what was asked is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_with_an_open_response_is_asked_on_when_the_host_has_died() {
    let mut desk = Desk::ruled(&[]).await;
    let run = desk.host.send(&format!("stream;;{};;say after", act("message.send", json!({})))).await;
    let id = desk.wait_for_asks(&run, 1).await;
    in_memory(&desk, &run, "approval").await;
    desk.host.kill_and_revive();
    desk.host.until(&run, |event| event["data"]["reason"] == "resumed").await;
    desk.decide(&id, "approve").await;
    let ended = desk.host.ended(&run).await.completed();
    assert_eq!(ended.outcomes()[1]["executed"], json!({ "done": id, "times": 1 }), "{ended}");
    answered(&ended, &id, "executed");
    assert_eq!(ended.of("action.requested").len(), 1, "{ended}");
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn another_attempt_asks_anew() {
    let mut desk = desk("retry").await;
    let run = desk.host.send(&format!("attempt;;{}", act("message.send", json!({})))).await;
    let first = desk.wait_for_asks(&run, 1).await;
    in_memory(&desk, &run, "approval").await;
    desk.host.kill_and_revive();
    let second = desk.wait_for_asks(&run, 2).await;
    assert_ne!(first, second);
    in_memory(&desk, &run, "approval").await;
    assert_eq!(desk.open(5).await, std::slice::from_ref(&second));
    let response_body = desk.refuses(&first, json!({ "decision": "approve" }), 409, "already_answered").await;
    assert_eq!(response_body["action"]["resolved"]["outcome"], "cancelled", "{response_body:#}");
    desk.decide(&second, "approve").await;
    let ended = desk.host.ended(&run).await.completed();
    unanswered(&ended, &first, "cancelled");
    answered(&ended, &second, "executed");
    assert_eq!(ended.run["attempt"], 2, "{ended}");
    assert_eq!(desk.hook.done(), [second]);
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_is_to_fail_with_its_host_asks_no_more() {
    let mut desk = desk("fail").await;
    let run = desk.host.send(&act("message.send", json!({}))).await;
    let id = desk.wait_for_asks(&run, 1).await;
    in_memory(&desk, &run, "approval").await;
    desk.host.kill_and_revive();
    let ended = desk.host.ended(&run).await.failed("host_restarted");
    unanswered(&ended, &id, "cancelled");
    desk.refuses(&id, json!({ "decision": "approve" }), 409, "already_answered").await;
    assert!(desk.open(5).await.is_empty() && desk.hook.seen().is_empty());
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_waits_in_memory_is_cancelled_or_times_out_too() {
    let desk = desk_with("fail", &[], "deadline_ms = 2500\nwaiting_counts = true\n").await;
    for (steps, decision) in [(act("message.send", json!({})), "approve"), ("ask form - name".to_owned(), "submit")] {
        for cancels in [true, false] {
            let run = desk.host.send(&steps).await;
            let id = desk.wait_for_asks(&run, 1).await;
            desk.host.until_status(&run, "waiting").await;
            if cancels {
                desk.host.cancel(&run).await;
            }
            let ended = desk.host.ended(&run).await;
            assert_eq!(ended.run["status"], if cancels { "cancelled" } else { "timeout" }, "{ended}");
            ran_out(&ended, &id);
            let (status, code) = if cancels { (409, "already_answered") } else { (410, "expired") };
            desk.refuses(&id, json!({ "decision": decision }), status, code).await;
            assert!(desk.open(5).await.is_empty());
        }
    }
    assert!(desk.hook.seen().is_empty());
    desk.check();
}
