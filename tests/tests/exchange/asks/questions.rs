//! Questions to people, of every kind.

use serde_json::{Value, json};

use crate::asks::desk::{Desk, Setup, answered, unanswered};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_question_of_each_kind_is_answered() {
    let mut desk = Desk::ruled(&[]).await;
    let choice = json!({ "enum": ["red", "green"] });
    let form = json!({
        "type": "object",
        "properties": { "name": { "type": "string", "maxLength": 10 }, "age": { "type": "integer", "minimum": 0 } },
        "required": ["name"],
        "additionalProperties": false,
    });
    // The title, the schema, what does not fit, what does, and what the guest gets.
    type Case<'a> = (&'a str, Option<&'a Value>, Vec<Value>, Option<Value>, Value);
    let cases: [Case<'_>; 4] = [
        ("confirmation", None, Vec::new(), None, json!(true)),
        ("choice", Some(&choice), vec![json!("blue"), json!(null), json!(["red"])], Some(json!("green")), json!("green")),
        (
            "form",
            Some(&form),
            vec![
                json!({ "age": 3 }),
                json!({ "name": 4 }),
                json!({ "name": "Ada", "age": -1 }),
                json!({ "name": "Ada", "more": 1 }),
                json!({ "name": "Ada Lovelace" }),
                json!("Ada"),
            ],
            Some(json!({ "name": "Ada", "age": 36 })),
            json!({ "name": "Ada", "age": 36 }),
        ),
        (
            "plan-review",
            None,
            Vec::new(),
            Some(json!({ "plan": ["one", { "two": 2.5 }] })),
            json!({ "plan": ["one", { "two": 2.5 }] }),
        ),
    ];
    let steps = cases.iter().map(|(kind, schema, ..)| {
        format!("ask {kind} - what-{kind} {}", schema.map(Value::to_string).unwrap_or_default()).trim_end().to_owned()
    });
    let run = desk.host.send(&steps.collect::<Vec<_>>().join(";;")).await;
    let mut ids = Vec::new();
    for (place, (kind, schema, wrong, answer, _)) in cases.iter().enumerate() {
        let id = desk.wait_for_asks(&run, place + 1).await;
        let waiting = desk.host.until_status(&run, "waiting").await;
        assert_eq!(waiting["status_reason"], "question", "{waiting:#}");
        desk.parked(1).await;
        if place == 2 {
            desk.host.kill_and_revive();
        }
        let request = desk.action(&id).await["request"].clone();
        assert_eq!((&request["kind"], &request["decisions"]), (&json!("question"), &json!(["submit", "decline"])));
        assert_eq!(request["question"], kind.replace('-', "_"), "{request:#}");
        assert_eq!((&request["title"], &request["description"]), (&json!(format!("what-{kind}")), &json!("Asked by a test.")));
        assert_eq!(request["answer_schema"], schema.cloned().unwrap_or_default());
        for wrong in wrong {
            let problem = desk.refuses(&id, json!({ "decision": "submit", "answer": wrong }), 400, "invalid_argument").await;
            assert!(problem["detail"].as_str().unwrap().contains("does not fit the question: /"), "{problem:#}");
        }
        let mut response = json!({ "decision": "submit" });
        if let Some(answer) = answer {
            response["answer"] = answer.clone();
        }
        let (status, problem) = desk.respond(&id, response).await;
        assert_eq!(status, 200, "{problem:#}");
        ids.push(id);
    }
    let ended = desk.host.ended(&run).await.completed();
    let expected: Vec<Value> = cases.iter().map(|(.., got)| json!({ "submitted": got })).collect();
    assert_eq!(ended.outcomes(), expected, "{ended}");
    for ((id, (.., got)), problem) in ids.iter().zip(&cases).zip(ended.of("action.answered")) {
        answered(&ended, id, "submitted");
        assert_eq!((&problem["action_id"], &problem["answer"]), (&json!(id), got), "{ended}");
    }
    let sources = ended.events.iter().filter(|event| event["type"] == "action.answered").map(|event| &event["source"]);
    assert_eq!(sources.collect::<Vec<_>>(), ["person"; 4], "{ended}");
    assert!(ended.statuses("approval").is_empty() && ended.statuses("question").len() == 4, "{ended}");
    assert_eq!(desk.audit(&run, "interactions.ask").await, vec![(Value::Null, json!("ok")); 4]);
    assert!(desk.hook.seen().is_empty());
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_question_may_be_declined_or_expire() {
    let desk =
        Desk::ruled(&[r#"{ action = "interactions.ask", target = { title = "short" }, policy = "ask", expires_ms = 700 }"#])
            .await;
    let steps = [
        "ask form - one",
        "ask confirmation - two",
        // By the runner, by the rule, by the shorter of both, and in the past.
        "ask form 700 three",
        "ask form - short",
        "ask form 60000 short",
        "ask form 0 six",
    ];
    let run = desk.host.send(&steps.join(";;")).await;
    let first = desk.wait_for_asks(&run, 1).await;
    let (status, _) = desk.respond(&first, json!({ "decision": "decline", "reason": "none of your business" })).await;
    assert_eq!(status, 200);
    let second = desk.wait_for_asks(&run, 2).await;
    desk.decide(&second, "decline").await;
    let ended = desk.host.ended(&run).await.completed();
    let expired = json!("expired");
    let expected = [
        json!({ "declined": "none of your business" }),
        json!({ "declined": null }),
        expired.clone(),
        expired.clone(),
        expired.clone(),
        expired,
    ];
    assert_eq!(ended.outcomes(), expected, "{ended}");
    answered(&ended, &first, "declined");
    answered(&ended, &second, "declined");
    for id in &desk.requested(&run).await[2..] {
        unanswered(&ended, id, "expired");
        desk.refuses(id, json!({ "decision": "submit", "answer": 1 }), 410, "expired").await;
    }
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_invalid_question_is_not_asked() {
    let desk = Desk::new(Setup { limits: "ask_bytes = 2000\n", ..Setup::default() }).await;
    let long = "x".repeat(301);
    let large = json!({ "description": "x".repeat(2_000) });
    let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    let steps = [
        format!("ask form - {long}"),
        "ask form - _".to_owned(),
        "ask form - well {".to_owned(),
        r#"ask form - well {"type":"nothing"}"#.to_owned(),
        "ask form - well 5".to_owned(),
        format!("ask form - well {deep}"),
        format!("ask form - well {large}"),
    ];
    let run = desk.host.send(&steps.join(";;")).await;
    let ended = desk.host.ended(&run).await.completed();
    let outcomes = ended.outcomes();
    let codes: Vec<&str> = outcomes.iter().map(|outcome| outcome["error"].as_str().unwrap_or("none")).collect();
    let mut expected = vec!["invalid_argument"; 6];
    expected.push("payload_too_large");
    assert_eq!(codes, expected, "{ended}");
    assert!(ended.of("action.requested").is_empty(), "{ended}");
    desk.check();
}
