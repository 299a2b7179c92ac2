//! A long wait for people: the run leaves memory, and survives restarts.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use crate::asks::{
    desk::{Desk, Setup, act, answered, ran_out, unanswered},
    support::{Random, follow, in_order, now},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_waits_for_an_answer_does_not_notice_its_hosts() {
    let mut desk = Desk::ruled(&[]).await;
    let (run, id) = desk.waiting(&format!("say before;;{};;say after", act("message.send", json!({}))), "approval").await;
    let follower = tokio::spawn(follow(desk.host.urls(), run.clone()));
    for kill in [true, false, true] {
        desk.parked(1).await;
        if kill {
            desk.host.kill();
        } else {
            desk.host.terminate();
        }
        desk.host.revive();
        assert_eq!(desk.host.run(&run).await["status"], "waiting");
        assert_eq!(desk.open(10).await, std::slice::from_ref(&id));
    }
    desk.decide(&id, "approve").await;
    let ended = desk.host.ended(&run).await.completed();
    assert_eq!(ended.outcomes()[1]["executed"], json!({ "done": id, "times": 1 }), "{ended}");
    assert_eq!(ended.message_texts()[..2], ["before", "after"], "{ended}");
    answered(&ended, &id, "executed");
    // A run that waited on disk was not interrupted.
    assert_eq!((ended.resumes(), ended.statuses("approval").len()), (0, 1), "{ended}");
    // A host that goes down says so to those who follow.
    let seen: Vec<_> = follower.await.unwrap().into_iter().filter(|event| event["type"].is_string()).collect();
    assert_eq!(seen, ended.events);
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_wait_at_once_and_outlive_their_host() {
    const RUNS: usize = 50;
    let mut desk = Desk::ruled(&[]).await;
    let mut asked = Vec::new();
    for n in 0..RUNS {
        let conversation = format!("c{n}");
        let steps = if n % 2 == 0 { act("message.send", json!({ "n": n })) } else { "ask confirmation - sure".to_owned() };
        asked.push((desk.host.send_in(&conversation, &steps).await, String::new()));
    }
    desk.parked(RUNS as u64).await;
    for (run, id) in &mut asked {
        *id = desk.wait_for_asks(run, 1).await;
    }
    let mut all: Vec<_> = asked.iter().map(|(_, id)| id.clone()).collect();
    all.sort_unstable();
    assert_eq!(desk.open(20).await, all);
    desk.host.kill_and_revive();
    desk.parked(RUNS as u64).await;
    assert_eq!(desk.open(7).await, all);
    // A later run waits for its turn.
    let behind = desk.host.send_in("c0", "say behind").await;

    let (some, others) = asked.split_at(RUNS / 2);
    let decision = |n: usize, id: &str| match (n % 2, id.len() % 2, n % 4) {
        (1, ..) => "submit",
        (_, _, 0) => "approve",
        _ => "deny",
    };
    join_all(some.iter().enumerate().map(|(n, (_, id))| desk.decide(id, decision(n, id)))).await;
    desk.host.kill_and_revive();
    join_all(others.iter().enumerate().map(|(n, (_, id))| desk.decide(id, decision(n + RUNS / 2, id)))).await;
    let mut approved = Vec::new();
    for (n, (run, id)) in asked.iter().enumerate() {
        let ended = desk.host.ended(run).await.completed();
        match decision(n, id) {
            "approve" => {
                answered(&ended, id, "executed");
                approved.push(id.clone());
            }
            "deny" => drop(answered(&ended, id, "denied")),
            _ => drop(answered(&ended, id, "submitted")),
        }
    }
    approved.sort_unstable();
    assert_eq!(desk.hook.done(), approved);
    in_order(&[desk.host.ended(&asked[0].0).await, desk.host.ended(&behind).await.completed()]);
    desk.parked(0).await;
    assert!(desk.open(10).await.is_empty());
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_action_whose_webhook_is_being_called_is_done_once_though_the_host_dies() {
    for rule in [r#"{ action = "*", policy = "ask" }"#, r#"{ action = "*", policy = "allow" }"#] {
        let mut desk = Desk::ruled(&[rule]).await;
        desk.hook.hold();
        let asks = rule.contains("ask");
        let run = desk.host.send(&format!("{};;say after", act("message.send", json!({})))).await;
        let id = desk.wait_for_asks(&run, 1).await;
        if asks {
            desk.decide(&id, "approve").await;
        }
        for times in 1..=2 {
            desk.hook.until(&id, times).await;
            desk.host.kill_and_revive();
        }
        desk.hook.until(&id, 3).await;
        assert_eq!(desk.action(&id).await["status"], "answered");
        let (status, problem) = desk.respond(&id, json!({ "decision": "deny" })).await;
        assert_eq!(status, 409, "it is being done: {problem:#}");
        desk.hook.release();
        let ended = desk.host.ended(&run).await.completed();
        assert_eq!(desk.hook.done(), std::slice::from_ref(&id), "{ended}");
        assert_eq!(ended.outcomes()[0]["executed"]["done"], id.as_str(), "{ended}");
        assert_eq!((ended.of("action.requested").len(), ended.resumes()), (1, 2), "{ended}");
        if asks {
            answered(&ended, &id, "executed");
        } else {
            unanswered(&ended, &id, "executed");
        }
        desk.check();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_that_was_given_counts_though_the_host_dies_at_once() {
    let mut random = Random(11);
    let mut desk = Desk::ruled(&[]).await;
    for round in 0..8 {
        let steps = if round % 2 == 0 { act("message.send", json!({ "n": round })) } else { "ask form - name".to_owned() };
        let run = desk.host.send(&format!("{steps};;say after")).await;
        let id = desk.wait_for_asks(&run, 1).await;
        if round < 4 {
            desk.parked(1).await;
        }
        let answer =
            if round % 2 == 0 { json!({ "decision": "approve" }) } else { json!({ "decision": "submit", "answer": round }) };
        let (status, problem) = desk.respond(&id, answer).await;
        assert_eq!(status, 200, "{problem:#}");
        if round % 3 != 0 {
            tokio::time::sleep(Duration::from_millis(random.below(40))).await;
        }
        desk.host.kill_and_revive();
        let ended = desk.host.ended(&run).await.completed();
        if round % 2 == 0 {
            assert_eq!(ended.outcomes()[0]["executed"]["done"], id.as_str(), "{ended}");
            answered(&ended, &id, "executed");
            assert!(desk.hook.times(&id) >= 1, "{ended}");
        } else {
            assert_eq!(ended.outcomes()[0], json!({ "submitted": round }), "{ended}");
            answered(&ended, &id, "submitted");
        }
    }
    assert_eq!(desk.hook.done().len(), 4);
    desk.check();
}

/// The host dies while an answer is on its way: either it was given, and counts, or it was not, and can be.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_in_which_the_host_dies_counts_or_can_be_given_again() {
    let mut random = Random(12);
    let mut desk = Desk::ruled(&[]).await;
    for round in 0..8 {
        let run = desk.host.send(&act("message.send", json!({ "n": round }))).await;
        let id = desk.wait_for_asks(&run, 1).await;
        let url = format!("{}/api/v1/actions/{id}/respond", *desk.host.urls().borrow());
        let request = reqwest::Client::new().post(url).json(&json!({ "decision": "deny", "reason": "first" })).send();
        let answer = tokio::spawn(request);
        tokio::time::sleep(Duration::from_millis(random.below(12))).await;
        desk.host.kill_and_revive();
        let given = answer.await.unwrap().is_ok_and(|answer| answer.status() == 200);
        let (status, problem) = desk.respond(&id, json!({ "decision": "deny", "reason": "second" })).await;
        assert!(status == 409 || (status == 200 && !given), "{given} {status} {problem:#}");
        let ended = desk.host.ended(&run).await.completed();
        let reason = if status == 200 { "second" } else { "first" };
        assert_eq!(ended.outcomes(), [json!({ "denied": reason })], "{ended}");
        assert_eq!(answered(&ended, &id, "denied")["reason"], reason);
    }
    assert!(desk.hook.seen().is_empty());
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cancelled_waiting_run_accepts_no_answer() {
    let mut desk = Desk::new(Setup { binding: "deadline_ms = 600000\n", ..Setup::default() }).await;
    for dies in [false, true] {
        for (steps, reason) in [(act("message.send", json!({})), "approval"), ("ask form - name".to_owned(), "question")] {
            let (run, id) = desk.waiting(&steps, reason).await;
            desk.parked(1).await;
            if dies {
                desk.host.kill_and_revive();
            }
            desk.host.cancel(&run).await;
            let ended = desk.host.ended(&run).await;
            assert_eq!(ended.run["status"], "cancelled", "{ended}");
            unanswered(&ended, &id, "cancelled");
            let yes = if reason == "approval" { "approve" } else { "submit" };
            let problem = desk.refuses(&id, json!({ "decision": yes }), 409, "already_answered").await;
            assert_eq!(problem["action"]["resolved"]["outcome"], "cancelled", "{problem:#}");
            assert!(desk.open(10).await.is_empty());
        }
    }
    assert!(desk.hook.seen().is_empty());
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waits_end_at_the_deadline_of_the_run() {
    let binding = "deadline_ms = 2500\nwaiting_counts = true\n";
    let mut desk = Desk::new(Setup { binding, ..Setup::default() }).await;
    for dies in [false, true] {
        let (run, id) = desk.waiting(&act("message.send", json!({})), "approval").await;
        let deadline = desk.host.run(&run).await["deadline_at"].as_u64().unwrap();
        let expires = desk.action(&id).await["request"]["expires_at"].as_u64().unwrap();
        assert!(expires <= deadline + 5, "people have until {expires}, the run until {deadline}");
        if dies {
            desk.host.kill();
            while now() <= deadline {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            desk.host.revive();
        }
        let ended = desk.host.ended(&run).await;
        assert_eq!(ended.run["status"], "timeout", "{ended}");
        assert!(ended.events.last().unwrap()["timestamp"].as_u64().unwrap() >= deadline, "{ended}");
        ran_out(&ended, &id);
        desk.refuses(&id, json!({ "decision": "approve" }), 410, "expired").await;
    }
    assert!(desk.hook.seen().is_empty());
    desk.parked(0).await;
    desk.check();
}

/// Fills in the form that a run asks for.
async fn answers(desk: &Desk, id: &str) {
    let (status, response) = desk.respond(id, json!({ "decision": "submit", "answer": { "name": "Ada" } })).await;
    assert_eq!(status, 200, "{response:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_time_in_which_people_answer_does_not_count() {
    let mut desk = Desk::new(Setup { binding: "deadline_ms = 1500\n", ..Setup::default() }).await;
    for dies in [false, true] {
        let (run, id) = desk.waiting("ask form - name;;sleep 200;;ask form - name;;sleep 200", "question").await;
        let deadline = desk.host.run(&run).await["deadline_at"].as_u64().unwrap();
        for round in 0..2 {
            if dies && round == 0 {
                desk.host.kill();
            }
            while now() <= deadline + 700 * round {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            if dies && round == 0 {
                desk.host.revive();
            }
            let id = if round == 0 { id.clone() } else { desk.wait_for_asks(&run, 2).await };
            answers(&desk, &id).await;
        }
        let ended = desk.host.ended(&run).await;
        assert_eq!(ended.run["status"], "completed", "{ended}");
        assert!(ended.run["finished_at"].as_u64() > Some(deadline), "{ended}");
    }
    // What the run does itself is counted as ever.
    let (run, id) = desk.waiting("ask form - name;;sleep 600000", "question").await;
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    answers(&desk, &id).await;
    assert_eq!(desk.host.ended(&run).await.run["status"], "timeout");
    desk.check();
}

/// Answers and cancels at once: the run has one end, and the action too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_and_a_cancel_at_once_leave_one_end() {
    let mut random = Random(13);
    let desk = Desk::ruled(&[]).await;
    for n in 0..20 {
        let run = desk.host.send(&format!("{};;say after", act("message.send", json!({ "n": n })))).await;
        let id = desk.wait_for_asks(&run, 1).await;
        tokio::time::sleep(Duration::from_millis(random.below(30))).await;
        let pause = Duration::from_millis(random.below(6));
        let cancel = async {
            tokio::time::sleep(pause).await;
            desk.host.try_cancel(&run).await
        };
        let ((status, problem), _) = tokio::join!(desk.respond(&id, json!({ "decision": "approve" })), cancel);
        let ended = desk.host.ended(&run).await;
        assert!(ended.run["status"] == "cancelled" || ended.run["status"] == "completed", "{ended}");
        assert!([200, 409].contains(&status), "{problem:#}");
        let (kinds, _) = crate::asks::desk::record(&ended, &id);
        assert_eq!(kinds.contains(&"answered".to_owned()), status == 200, "{problem:#}\n{ended}");
        assert!(status == 200 || desk.hook.times(&id) == 0, "{ended}");
    }
    desk.parked(0).await;
    desk.check();
}
