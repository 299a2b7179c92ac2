//! Actions that a runner asks for and does not wait for.

use serde_json::{Value, json};

use crate::asks::{
    desk::{Desk, Setup, act, answered, emit, record, unanswered},
    support::lines_of,
};

const ALLOWED: &str = r#"{ action = "message.*", policy = "allow" }"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn allowed_actions_run_in_the_background() {
    let desk = Desk::ruled(&[ALLOWED]).await;
    desk.hook.hold();
    let run = desk
        .host
        .send(&format!(
            "{};;say meanwhile;;{}",
            emit("message.send", json!({ "n": 1 })),
            emit("message.send", json!({ "how": "refuse" }))
        ))
        .await;
    desk.host.until_step(&run, "say meanwhile").await;
    let id = desk.wait_for_asks(&run, 1).await;
    let refused = desk.wait_for_asks(&run, 2).await;
    for id in [&id, &refused] {
        assert!(id.starts_with(&format!("{run}.e")), "{id}");
        desk.hook.until(id, 1).await;
    }
    // The action accepts no answer; and the run does not end before it.
    let (status, response) = desk.respond(&id, json!({ "decision": "deny" })).await;
    assert_eq!(status, 409, "{response:#}");
    assert_eq!(desk.host.run(&run).await["status"], "running");
    desk.hook.release();
    let ended = desk.host.ended(&run).await.completed();
    assert!(ended.outcomes()[0]["emitted"].is_u64(), "{ended}");
    assert_eq!(unanswered(&ended, &id, "executed")["result"], json!({ "done": id, "times": 1 }));
    assert_eq!(unanswered(&ended, &refused, "failed")["error"]["category"], "webhook_refused");
    let position = |is: &dyn Fn(&Value) -> bool| ended.events.iter().position(is).unwrap();
    let meanwhile = position(&|event| event["data"]["step"] == "say meanwhile");
    assert!(meanwhile < position(&|event| event["type"] == "action.resolved"), "{ended}");
    assert_eq!(ended.message_texts()[0], "meanwhile");
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_ends_when_what_it_asked_for_in_passing_is_answered() {
    let mut desk = Desk::ruled(&[r#"{ action = "issue.*", policy = "ask", expires_ms = 6000 }"#]).await;
    for dies in [false, true] {
        let payload = |n: u32| json!({ "n": n });
        let batch = [emit("message.send", payload(1)), act("message.send", payload(2)), act("issue.close", payload(3))];
        let batch = batch.map(|step| step.trim_start_matches("act ").to_owned()).join(" ");
        let run = desk.host.send(&format!("{batch};;say after;;{}", emit("message.send", payload(4)))).await;
        let last = desk.wait_for_asks(&run, 4).await;
        let ids = desk.requested(&run).await;
        desk.host.until_step(&run, "say after").await;
        let waiting = desk.host.until_status(&run, "waiting").await;
        assert_eq!(waiting["status_reason"], "approval", "{waiting:#}");
        desk.parked(1).await;
        assert_eq!(desk.open(10).await.len(), 4);
        if dies {
            desk.host.kill_and_revive();
            desk.parked(1).await;
        }
        assert_eq!(desk.host.run(&run).await["status"], "waiting");
        // In another order than they were asked.
        desk.decide(&last, "approve").await;
        let (status, _) = desk.respond(&ids[0], json!({ "decision": "deny", "reason": "no" })).await;
        assert_eq!(status, 200);
        if dies {
            desk.host.kill_and_revive();
        }
        desk.decide(&ids[1], "approve").await;
        desk.refuses(&ids[1], json!({ "decision": "deny" }), 409, "already_answered").await;
        let ended = desk.host.ended(&run).await.completed();
        assert_eq!(ended.outcomes()[1], "after", "{ended}");
        assert_eq!(ended.message_texts()[0], "after", "{ended}");
        assert_eq!(ended.message_texts().len(), 2, "its guest said it again: {ended}");
        answered(&ended, &ids[0], "denied");
        answered(&ended, &ids[1], "executed");
        unanswered(&ended, &ids[2], "expired");
        answered(&ended, &ids[3], "executed");
        // A delivery during the kill may be repeated, with the same id.
        for (id, done) in ids.iter().zip([false, true, false, true]) {
            assert_eq!(desk.hook.times(id) > 0, done, "{ended}");
        }
    }
    desk.parked(0).await;
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_may_come_while_the_run_goes_on() {
    let desk = Desk::ruled(&[]).await;
    let run = desk.host.send(&format!("{};;sleep 1500;;say after;;ask form - name", emit("message.send", json!({})))).await;
    let id = desk.wait_for_asks(&run, 1).await;
    assert_eq!(desk.open(5).await, std::slice::from_ref(&id));
    desk.decide(&id, "approve").await;
    desk.hook.until(&id, 1).await;
    desk.host.until(&run, |event| event["type"] == "action.resolved").await;
    assert!(desk.host.events(&run).await.iter().all(|event| event["data"]["step"] != "say after"), "it waited");
    let question = desk.wait_for_asks(&run, 2).await;
    desk.decide(&question, "decline").await;
    let ended = desk.host.ended(&run).await.completed();
    answered(&ended, &id, "executed");
    answered(&ended, &question, "declined");
    desk.check();
}

/// While the guest waits for a question on disk, its background action is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_in_passing_finds_a_run_that_waits_for_another() {
    let mut desk = Desk::ruled(&[]).await;
    for dies in [false, true] {
        let run = desk.host.send(&format!("{};;ask form - name;;say after", emit("message.send", json!({})))).await;
        let question = desk.wait_for_asks(&run, 2).await;
        let [passing, _] = desk.requested(&run).await.try_into().unwrap();
        desk.host.until_status(&run, "waiting").await;
        let mut open = desk.open(5).await;
        open.sort_unstable();
        let mut both = [passing.clone(), question.clone()];
        both.sort_unstable();
        assert_eq!(open, both, "both can be answered");
        if dies {
            desk.host.kill_and_revive();
        }
        desk.decide(&passing, "approve").await;
        desk.hook.until(&passing, 1).await;
        desk.host.until_status(&run, "waiting").await;
        assert_eq!(desk.open(5).await, std::slice::from_ref(&question));
        desk.decide(&question, "decline").await;
        let ended = desk.host.ended(&run).await.completed();
        answered(&ended, &passing, "executed");
        answered(&ended, &question, "declined");
        assert_eq!(desk.hook.times(&passing), 1, "{ended}");
        assert_eq!(ended.message_texts()[0], "after", "{ended}");
    }
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn journal_entries_of_refused_calls_are_not_written() {
    let rules = &[ALLOWED, r#"{ action = "issue.*", policy = "deny" }"#];
    let desk =
        Desk::new(Setup { approvals: rules, actions: &["message.send", "issue.close", "report.file"], ..Setup::default() }).await;
    let good = act("message.send", json!({})).trim_start_matches("act ").to_owned();
    let steps = [
        emit("issue.close", json!({})),
        // All of a batch, or nothing.
        format!("emit-act {good} {}", act("issue.close", json!({})).trim_start_matches("act ")),
        emit("message.edit", json!({})),
        emit("report.file", json!({})),
        "emit-act message.send {\"a\" {}".to_owned(),
        emit("message.send", json!({})),
    ];
    let run = desk.host.send(&steps.join(";;")).await;
    let ended = desk.host.ended(&run).await.completed();
    let outcomes = ended.outcomes();
    for (place, (code, details)) in [
        ("unauthorized", "denied_by_policy"),
        ("unauthorized", "denied_by_policy"),
        ("unauthorized", ""),
        ("runtime_error", "no_action_hook"),
        ("invalid_argument", ""),
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(outcomes[place]["error"], *code, "{place}: {ended}");
        assert_eq!(outcomes[place]["details"]["code"].as_str().unwrap_or_default(), *details, "{place}: {ended}");
    }
    assert!(outcomes[1]["message"].as_str().unwrap().contains("result 1"), "{ended}");
    let asked = desk.requested(&run).await;
    assert_eq!((asked.len(), desk.hook.done()), (1, asked.clone()), "{ended}");
    unanswered(&ended, &asked[0], "executed");
    let audit = desk.audit(&run, "results.emit").await;
    assert_eq!(audit.iter().filter(|(_, outcome)| outcome == "unauthorized").count(), 3, "{audit:?}");
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn background_actions_are_executed_once_across_kills() {
    let mut desk = Desk::ruled(&[ALLOWED]).await;
    for asks in [false, true] {
        desk.hook.hold();
        let action = if asks { "issue.close" } else { "message.send" };
        // Once with the guest in the middle of something, once with nothing else to wait for.
        for (n, more) in ["sleep 1200;;say after", "say after"].iter().enumerate() {
            let run = desk.host.send(&format!("{};;{more}", emit(action, json!({ "n": n })))).await;
            let id = desk.wait_for_asks(&run, 1).await;
            if asks {
                desk.decide(&id, "approve").await;
            }
            for times in 1..=2 {
                desk.hook.until(&id, times).await;
                desk.host.kill_and_revive();
            }
            desk.hook.until(&id, 3).await;
            desk.hook.release();
            let ended = desk.host.ended(&run).await.completed();
            desk.hook.hold();
            let (kinds, resolved) = record(&ended, &id);
            assert_eq!((kinds.len(), &resolved["outcome"]), (2 + usize::from(asks), &json!("executed")), "{ended}");
            assert_eq!(ended.of("action.requested").len(), 1, "{ended}");
            assert_eq!(ended.message_texts().iter().filter(|text| **text == "after").count(), 1, "{ended}");
            assert_eq!(desk.hook.times(&id), 3);
        }
        desk.hook.release();
    }
    assert_eq!(desk.hook.done().len(), 4);
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn background_actions_end_with_the_failure_of_their_run() {
    let desk = Desk::ruled(&[ALLOWED]).await;
    let asks = emit("issue.close", json!({}));
    let run = desk.host.send(&format!("{asks};;fail")).await;
    let failed = desk.host.ended(&run).await.failed("asks.failed");
    let waits = desk.host.send(&format!("{asks};;say after")).await;
    desk.host.until_status(&waits, "waiting").await;
    desk.parked(1).await;
    desk.host.cancel(&waits).await;
    let cancelled = desk.host.ended(&waits).await;
    // With the guest in memory, and the webhook at work.
    desk.hook.hold();
    let works = desk.host.send(&format!("{asks};;{};;sleep 4000", emit("message.send", json!({})))).await;
    desk.wait_for_asks(&works, 2).await;
    let done = desk.requested(&works).await.pop().unwrap();
    desk.hook.until(&done, 1).await;
    desk.host.cancel(&works).await;
    let stopped = desk.host.ended(&works).await;
    desk.hook.release();
    for ended in [&cancelled, &stopped] {
        assert_eq!(ended.run["status"], "cancelled", "{ended}");
    }
    for ended in [&failed, &cancelled, &stopped] {
        let asked = ended.of("action.requested");
        assert!(!asked.is_empty(), "{ended}");
        for asked in asked {
            let id = asked["action_id"].as_str().unwrap();
            unanswered(ended, id, "cancelled");
            desk.refuses(id, json!({ "decision": "approve" }), 409, "already_answered").await;
        }
    }
    assert_eq!(desk.hook.done(), [done]);
    assert!(desk.open(5).await.is_empty());
    desk.check();
}

/// A run that has no journal waits for its actions in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_without_a_journal_waits_for_what_it_asked_in_passing() {
    let mut desk = Desk::new(Setup { binding: "durability = \"retry\"\n", ..Setup::default() }).await;
    let steps = format!("attempt;;{};;say after", emit("message.send", json!({})));
    let run = desk.host.send(&steps).await;
    let id = desk.wait_for_asks(&run, 1).await;
    desk.host.until_step(&run, "say after").await;
    desk.decide(&id, "approve").await;
    let ended = desk.host.ended(&run).await.completed();
    answered(&ended, &id, "executed");

    // The actions of an earlier attempt are closed.
    let run = desk.host.send(&steps).await;
    let first = desk.wait_for_asks(&run, 1).await;
    desk.host.until_step(&run, "say after").await;
    desk.host.kill_and_revive();
    let second = desk.wait_for_asks(&run, 2).await;
    desk.refuses(&first, json!({ "decision": "approve" }), 409, "already_answered").await;
    desk.decide(&second, "approve").await;
    let ended = desk.host.ended(&run).await.completed();
    unanswered(&ended, &first, "cancelled");
    answered(&ended, &second, "executed");
    assert_eq!(desk.hook.done().len(), 2, "{}", lines_of(&ended.events));
    desk.check();
}

/// Stops the host in order during a background action of a completed guest.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_that_stops_in_a_background_action_resolves_it_at_its_next_start() {
    let mut desk = Desk::ruled(&[ALLOWED]).await;
    desk.hook.hold();
    let run = desk.host.send(&format!("{};;say after", emit("message.send", json!({ "n": 1 })))).await;
    let id = desk.wait_for_asks(&run, 1).await;
    desk.hook.until(&id, 1).await;
    desk.host.until_step(&run, "say after").await;
    desk.host.terminate();
    desk.hook.release();
    desk.host.revive();
    let ended = desk.host.ended(&run).await.completed();
    // The call was open when the host stopped, so it is repeated under the same id.
    unanswered(&ended, &id, "executed");
    assert_eq!(ended.message_texts()[0], "after", "{ended}");
    assert_eq!(ended.message_texts().len(), 2, "its guest said it again: {ended}");
    assert_eq!(ended.events.last().unwrap()["type"], "run.completed", "{ended}");
    desk.check();
}

/// The same for a run that an executor holds: its background action is continued, and it ends when that is resolved.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_that_stops_in_a_background_action_of_a_claimed_run_resolves_it_at_its_next_start() {
    let binding = r#"
[[external_runners]]
id = "plugin:test/outside/default"

[external_runners.permissions]
platform_api = ["message.send"]

[[bindings]]
id = "outside"
runner = "plugin:test/outside/default"
match = { event_type = "job" }
resources = { platform_api = ["message.send"] }
approvals = [{ action = "message.*", policy = "allow" }]
"#;
    let mut desk = Desk::new(Setup { approvals: &[ALLOWED], binding, ..Setup::default() }).await;
    desk.hook.hold();
    let queue = crate::queue::desk::Desk::of(&desk.host);
    let executor = queue.executor("one").await;
    let run = queue.job("work", json!({})).await;
    let held = executor.claim().await;
    assert_eq!(held.run, run);
    let wanted = json!({ "action": "message.send", "target": {}, "payload": { "n": 1 } });
    held.does("append", json!({ "first": 1, "results": [{ "type": "action.requested", "data": wanted }] })).await;
    let id = desk.wait_for_asks(&run, 1).await;
    desk.hook.until(&id, 1).await;
    desk.host.terminate();
    desk.hook.release();
    desk.host.revive();
    desk.hook.until(&id, 2).await;
    held.complete().await;
    let ended = desk.host.ended(&run).await.completed();
    unanswered(&ended, &id, "executed");
    assert_eq!(ended.events.last().unwrap()["type"], "run.completed", "{ended}");
    desk.check();
}
