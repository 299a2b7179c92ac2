//! Answers that are none, and answers that come second.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::asks::desk::{Desk, Setup, act, answered};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn invalid_answers_are_refused_without_effect() {
    let desk = Desk::ruled(&[]).await;
    let (run, id) = desk.waiting(&format!("{};;ask form - name", act("message.send", json!({}))), "approval").await;
    desk.parked(1).await;
    let before = desk.host.run(&run).await["last_sequence"].clone();

    let uuid = "0190aaaa-bbbb-7ccc-8ddd-eeeeffff0000";
    let long = "x".repeat(2_000);
    for foreign in [
        &format!("{run}.99"),
        &format!("{run}.e1"),
        &format!("{run}."),
        &format!("{id}0"),
        &format!("{run}.01"),
        &run,
        &format!("{uuid}.1"),
        "nonsense",
        "a.b",
        "%2e%2e",
        "..%2f..%2fetc",
        "%00",
        &long,
    ] {
        let (status, problem) = desk.respond(foreign, json!({ "decision": "approve" })).await;
        assert_eq!((status, &problem["code"]), (404, &json!("not_found")), "{foreign}: {problem:#}");
    }

    let nested = (0..100).fold(json!(1), |inner, _| json!([inner]));
    for (answer, status, code) in [
        // An answer of the wrong kind.
        (json!({ "decision": "submit", "answer": 1 }), 400, "invalid_argument"),
        (json!({ "decision": "repeat" }), 400, "invalid_argument"),
        // A malformed answer.
        (json!({ "decision": "perhaps" }), 400, "invalid_argument"),
        (json!({ "decision": 1 }), 400, "invalid_argument"),
        (json!({}), 400, "invalid_argument"),
        (json!([]), 400, "invalid_argument"),
        (json!({ "decision": "approve", "by": "me" }), 400, "invalid_argument"),
        (json!({ "decision": "approve", "answer": 1 }), 400, "invalid_argument"),
        (json!({ "decision": "deny", "reason": 5 }), 400, "invalid_argument"),
        // Too much of it.
        (json!({ "decision": "deny", "reason": "x".repeat(25_000) }), 400, "invalid_argument"),
        (json!({ "decision": "deny", "reason": "x".repeat(200_000) }), 413, "payload_too_large"),
        (json!({ "decision": "approve", "answer": nested }), 400, "invalid_argument"),
    ] {
        desk.refuses(&id, answer, status, code).await;
    }
    let (status, problem) = desk.send(None, &id, "{\"decision\": ").await;
    assert_eq!((status, &problem["code"]), (400, &json!("invalid_json")), "{problem:#}");
    let url = format!("{}/api/v1/actions/{id}/respond", *desk.host.urls().borrow());
    let http = reqwest::Client::new();
    assert_eq!(http.post(&url).body("decision=approve").send().await.unwrap().status(), 415);
    assert_eq!(http.get(&url).send().await.unwrap().status(), 405);
    assert_eq!(http.get(url.replace("/respond", "")).send().await.unwrap().status(), 200);
    assert_eq!(http.get(url.replace(&format!("{id}/respond"), "nonsense")).send().await.unwrap().status(), 404);

    // The run still waits, and its record is unchanged.
    assert_eq!(desk.host.run(&run).await["last_sequence"], before);
    assert_eq!((desk.action(&id).await["status"].clone(), desk.open(5).await), (json!("open"), vec![id.clone()]));
    desk.parked(1).await;
    desk.decide(&id, "approve").await;

    // The second answer gets the first one.
    for decision in ["approve", "deny"] {
        let problem = desk.refuses(&id, json!({ "decision": decision }), 409, "already_answered").await;
        assert_eq!(
            (&problem["action"]["action_id"], &problem["action"]["answered"]["decision"]),
            (&json!(id), &json!("approve")),
            "{problem:#}"
        );
        assert!(problem["detail"].as_str().unwrap().contains("approve"), "{problem:#}");
    }

    let question = desk.wait_for_asks(&run, 2).await;
    for (answer, status, code) in [
        (json!({ "decision": "approve" }), 400, "invalid_argument"),
        (json!({ "decision": "skip" }), 400, "invalid_argument"),
        (json!({ "decision": "decline", "answer": "x" }), 400, "invalid_argument"),
        (json!({ "decision": "submit", "answer": "x".repeat(25_000) }), 400, "invalid_argument"),
        (json!({ "decision": "submit", "answer": (0..100).fold(json!(1), |inner, _| json!([inner])) }), 400, "invalid_argument"),
    ] {
        desk.refuses(&question, answer, status, code).await;
    }
    let (status, _) = desk.respond(&question, json!({ "decision": "submit", "answer": "Ada" })).await;
    assert_eq!(status, 200);
    let ended = desk.host.ended(&run).await.completed();
    assert_eq!(ended.outcomes()[1], json!({ "submitted": "Ada" }), "{ended}");
    answered(&ended, &id, "executed");
    answered(&ended, &question, "submitted");

    // Of a run that has ended, no less.
    desk.refuses(&question, json!({ "decision": "decline" }), 409, "already_answered").await;
    desk.refuses(&id, json!({ "decision": "deny" }), 409, "already_answered").await;
    assert_eq!(desk.hook.times(&id), 1);
    desk.check();
}

/// Twenty concurrent answers: one counts, and the others receive it.
async fn twenty(desk: &Desk, parks: bool) {
    for round in 0..4 {
        let run = desk.host.send(&format!("{};;say after", act("message.send", json!({ "round": round })))).await;
        let id = desk.wait_for_asks(&run, 1).await;
        if round % 2 == 0 {
            desk.host.until_status(&run, "waiting").await;
            if parks {
                desk.parked(1).await;
            }
        }
        // Otherwise it is on its way out of memory.
        let answer = |n: usize| {
            let decision = if n.is_multiple_of(2) { "approve" } else { "deny" };
            desk.respond(&id, json!({ "decision": decision, "reason": format!("by {n}") }))
        };
        let answers: Vec<(u16, Value)> = join_all((0..20).map(answer)).await;
        let first: Vec<_> = answers.iter().filter(|(status, _)| *status == 200).collect();
        assert_eq!(first.len(), 1, "{answers:#?}");
        let (decision, reason) = (&first[0].1["answered"]["decision"], &first[0].1["answered"]["reason"]);
        for (status, problem) in answers.iter().filter(|(status, _)| *status != 200) {
            assert_eq!((*status, &problem["code"]), (409, &json!("already_answered")), "{problem:#}");
            assert_eq!(
                (&problem["action"]["answered"]["decision"], &problem["action"]["answered"]["reason"]),
                (decision, reason)
            );
        }
        let ended = desk.host.ended(&run).await.completed();
        let approved = decision == "approve";
        answered(&ended, &id, if approved { "executed" } else { "denied" });
        assert_eq!(desk.hook.times(&id), usize::from(approved), "{ended}");
        let outcome = &ended.outcomes()[0];
        assert!(if approved { outcome["executed"]["done"] == id.as_str() } else { outcome["denied"] == *reason }, "{ended}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_twenty_who_answer_at_once_one_has_answered() {
    let desk = Desk::ruled(&[]).await;
    twenty(&desk, true).await;
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_twenty_who_answer_a_run_in_memory_one_has_answered() {
    let desk = Desk::new(Setup { binding: "durability = \"fail\"\n", ..Setup::default() }).await;
    twenty(&desk, false).await;
    desk.check();
}
