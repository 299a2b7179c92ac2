//! A platform action passes three gates: the manifest of the runner, its binding, and the approval policy.

use serde_json::{Value, json};

use crate::asks::desk::{Desk, Setup, act, unanswered};

const RULES: &[&str] = &[
    r#"{ action = "issue.close", target = { repo = "acme/secret" }, policy = "deny" }"#,
    r#"{ action = "issue.*", target = { repo = "acme/.*", number = "[0-9]+" }, policy = "allow" }"#,
    r#"{ action = "message.send", target = { channel = "general" }, policy = "allow" }"#,
    r#"{ action = "*", policy = "deny" }"#,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_action_needs_manifest_binding_and_policy() {
    // `repo.delete` is not in the manifest, `message.edit` not in the binding.
    let actions = &["message.send", "issue.close", "repo.delete"];
    let desk = Desk::new(Setup { approvals: RULES, actions, ..Setup::default() }).await;
    let close = |repo: &str, number: Value| format!("act issue.close {} {{}}", json!({ "repo": repo, "number": number }));
    let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    let steps = [
        act("repo.delete", json!({})),
        act("message.edit", json!({})),
        close("acme/secret", json!(1)),
        close("other/site", json!(1)),
        close("acme/site", json!("x1")),
        "act issue.close null {}".to_owned(),
        "act message.send {\"channel\":\"general\" {}".to_owned(),
        format!("act message.send {{\"channel\":\"general\"}} {deep}"),
        act("message.send", json!({ "text": "x".repeat(24 * 1024) })),
        // The executed calls.
        close("acme/site", json!(4)),
        act("message.send", json!({ "text": "hello" })),
    ];
    let run = desk.host.send(&steps.join(";;")).await;
    let ended = desk.host.ended(&run).await.completed();
    let outcomes = ended.outcomes();
    let errors: Vec<&str> = outcomes.iter().filter_map(|outcome| outcome["error"].as_str()).collect();
    let refusals = ["unauthorized"; 6].into_iter().chain(["invalid_argument", "invalid_argument", "payload_too_large"]);
    assert_eq!(errors, refusals.collect::<Vec<_>>(), "{ended}");
    for (place, outcome) in outcomes.iter().enumerate().take(6) {
        let denied = outcome["details"]["code"] == "denied_by_policy";
        assert_eq!(denied, place >= 2, "{place}: {outcome}");
    }

    // The refused calls are neither in the record nor at the webhook.
    let asked = desk.requested(&run).await;
    assert_eq!(asked.len(), 2, "{ended}");
    assert_eq!(desk.hook.done(), asked);
    for (id, outcome) in asked.iter().zip(&outcomes[9..]) {
        assert_eq!(outcome["executed"], json!({ "done": id, "times": 1 }), "{ended}");
        let resolved = unanswered(&ended, id, "executed");
        assert_eq!(resolved["result"], outcome["executed"], "{ended}");
    }
    let request = ended.of("action.requested")[1];
    assert_eq!((&request["policy"], &request["expires_at"]), (&json!("allow"), &Value::Null), "{ended}");
    assert!(ended.of("run.status").iter().all(|data| data["status"] != "waiting"), "it waited: {ended}");

    let order = desk.hook.seen().pop().unwrap().body["data"].clone();
    assert_eq!(order["action"], "message.send");
    assert_eq!((&order["target"], &order["payload"]), (&json!({ "channel": "general" }), &json!({ "text": "hello" })));
    assert_eq!((&order["run_id"], &order["runner_id"]), (&json!(run), &json!("plugin:test/asks/default")));
    assert_eq!(order["binding_id"], "asks");

    let audit = desk.audit(&run, "platform.request-action").await;
    let expected: Vec<_> = ["unauthorized"; 6]
        .into_iter()
        .chain(["invalid_argument", "invalid_argument", "payload_too_large", "ok", "ok"])
        .map(Value::from)
        .collect();
    assert_eq!(audit.iter().map(|(_, outcome)| outcome.clone()).collect::<Vec<_>>(), expected, "{audit:?}");
    assert_eq!((&audit[0].0, &audit[9].0), (&json!("repo.delete"), &json!("issue.close")));

    // An allowed action accepts no answer.
    let (status, problem) = desk.respond(&asked[0], json!({ "decision": "deny" })).await;
    assert_eq!(status, 409, "{problem}");
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_action_without_a_service_is_refused_without_asking() {
    let actions = &["message.send", "report.file"];
    let desk = Desk::new(Setup { actions, ..Setup::default() }).await;
    let run = desk.host.send(&format!("{};;say after", act("report.file", json!({})))).await;
    let ended = desk.host.ended(&run).await.completed();
    let outcome = &ended.outcomes()[0];
    assert_eq!((&outcome["error"], &outcome["details"]["code"]), (&json!("runtime_error"), &json!("no_action_hook")), "{ended}");
    assert!(outcome["message"].as_str().unwrap().contains("action_hooks"), "{ended}");
    assert!(ended.of("action.requested").is_empty() && desk.hook.seen().is_empty(), "{ended}");
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_binding_without_actions_and_questions_has_none() {
    let desk = Desk::new(Setup { actions: &[], resources: ", interactions = false", ..Setup::default() }).await;
    let steps = format!(
        "{0};;{0};;{1};;ask confirmation - well",
        act("message.send", json!({})),
        crate::asks::desk::emit("message.send", json!({}))
    );
    let run = desk.host.send(&steps).await;
    let ended = desk.host.ended(&run).await.completed();
    assert!(ended.outcomes().iter().all(|outcome| outcome["error"] == "unauthorized"), "{ended}");
    assert!(ended.of("action.requested").is_empty(), "{ended}");
    // The record has the first refusal of each kind, and at the end how often it came again.
    let denied = ended.of("permission.denied");
    let denied: Vec<_> = denied.iter().map(|denial| (denial["function"].as_str().unwrap(), denial["count"].as_u64())).collect();
    for function in ["platform.request-action", "interactions.ask"] {
        assert_eq!(denied.iter().filter(|denial| **denial == (function, None)).count(), 1, "{denied:?}");
    }
    assert!(denied.contains(&("platform.request-action", Some(1))), "{denied:?}");
    assert_eq!(denied.iter().filter(|(_, count)| count.is_some()).count(), 1, "{denied:?}");
    for action in ["platform.request-action", "interactions.ask", "results.emit"] {
        let audit = desk.audit(&run, action).await;
        assert!(audit.iter().any(|(_, outcome)| outcome == "unauthorized"), "{action}: {audit:?}");
    }
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_question_is_not_asked_where_the_policy_refuses_it() {
    let rules = &[r#"{ action = "interactions.ask", target = { kind = "form" }, policy = "deny" }"#];
    let desk = Desk::ruled(rules).await;
    let run = desk.host.send("ask form - no;;ask confirmation - yes").await;
    let id = desk.wait_for_asks(&run, 1).await;
    desk.decide(&id, "submit").await;
    let ended = desk.host.ended(&run).await.completed();
    let outcomes = ended.outcomes();
    assert_eq!((&outcomes[0]["error"], &outcomes[0]["details"]["code"]), (&json!("unauthorized"), &json!("denied_by_policy")));
    assert_eq!(outcomes[1], json!({ "submitted": true }), "{ended}");
    desk.check();
}
