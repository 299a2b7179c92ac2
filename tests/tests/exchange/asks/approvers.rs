//! The people who may answer.

use serde_json::json;

use crate::asks::desk::{Desk, Setup, act, answered};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn only_known_approvers_may_answer() {
    let approvals = &[
        r#"{ action = "message.*", policy = "ask", approvers = ["alice", "carol"] }"#,
        r#"{ action = "interactions.ask", policy = "ask", approvers = ["bob"] }"#,
    ];
    let desk = Desk::new(Setup { approvals, approvers: &["alice", "bob", "carol"], ..Setup::default() }).await;
    let steps = [act("message.send", json!({})), act("issue.close", json!({})), "ask form - name".to_owned()];
    let (run, first) = desk.waiting(&steps.join(";;"), "approval").await;
    assert_eq!(desk.action(&first).await["request"]["approvers"], json!(["alice", "carol"]));
    let approve = json!({ "decision": "approve" }).to_string();

    for token in [None, Some(""), Some("mallory"), Some("alice"), Some("alice-token2"), Some("ALICE-TOKEN"), Some("alice-toke")] {
        let (status, answered_fact) = desk.send(token, &first, approve.clone()).await;
        assert_eq!((status, &answered_fact["code"]), (401, &json!("unauthenticated")), "{token:?} {answered_fact:#}");
    }
    // An unknown caller does not learn which actions exist.
    assert_eq!(desk.send(None, "nonsense", approve.clone()).await.0, 401);
    assert_eq!(desk.send(Some("bob-token"), "nonsense", approve.clone()).await.0, 404);
    let (status, answered_fact) = desk.send(Some("bob-token"), &first, approve.clone()).await;
    assert_eq!((status, &answered_fact["code"]), (403, &json!("forbidden")), "{answered_fact:#}");
    assert!(answered_fact["detail"].as_str().unwrap().contains("alice or carol"), "{answered_fact:#}");
    let url = format!("{}/api/v1/actions/{first}/respond", *desk.host.urls().borrow());
    let basic = reqwest::Client::new().post(url).basic_auth("alice", Some("alice-token")).json(&json!({ "decision": "approve" }));
    assert_eq!(basic.send().await.unwrap().status(), 401);
    assert_eq!(desk.action(&first).await["status"], "open");
    assert!(desk.hook.seen().is_empty());

    let (status, answered_fact) = desk.send(Some("alice-token"), &first, approve.clone()).await;
    assert_eq!((status, &answered_fact["answered"]["by"]), (200, &json!("alice")), "{answered_fact:#}");
    let (status, answered_fact) = desk.send(Some("carol-token"), &first, approve.clone()).await;
    assert_eq!((status, &answered_fact["action"]["answered"]["by"]), (409, &json!("alice")), "{answered_fact:#}");
    assert!(answered_fact["detail"].as_str().unwrap().contains("by alice"), "{answered_fact:#}");

    // A rule that names nobody, or no rule: each of them.
    let second = desk.wait_for_asks(&run, 2).await;
    assert_eq!(desk.send(None, &second, approve.clone()).await.0, 401);
    let deny = json!({ "decision": "deny", "reason": "no" }).to_string();
    assert_eq!(desk.send(Some("bob-token"), &second, deny).await.0, 200);

    let question = desk.wait_for_asks(&run, 3).await;
    let submit = json!({ "decision": "submit", "answer": "Ada" }).to_string();
    assert_eq!(desk.send(Some("alice-token"), &question, submit.clone()).await.0, 403);
    assert_eq!(desk.send(Some("bob-token"), &question, submit).await.0, 200);

    let ended = desk.host.ended(&run).await.completed();
    for (id, outcome, by) in [(&first, "executed", "alice"), (&second, "denied", "bob"), (&question, "submitted", "bob")] {
        let resolved = answered(&ended, id, outcome);
        let answered_fact = ended.of("action.answered").into_iter().find(|data| data["action_id"] == **id).unwrap().clone();
        assert_eq!(answered_fact["by"], by, "{ended}");
        // If the answer is the outcome, the end names its author.
        assert!(outcome == "executed" || resolved["by"] == by, "{ended}");
    }
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_command_line_says_who_answers() {
    let desk = Desk::new(Setup { approvers: &["alice"], ..Setup::default() }).await;
    let (run, id) = desk.waiting(&act("message.send", json!({})), "approval").await;
    let server = desk.host.urls().borrow().clone();
    let respond = |more: &[&str]| {
        let mut command = agent_host_tests::process::command(desk.host.dir());
        let output = command.args(["runs", "respond", "--server", &server, &id, "deny"]).args(more).output().unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        (output.status.success(), text)
    };
    let (done, text) = respond(&[]);
    assert!(!done && text.contains("approvers"), "{text}");
    let (done, text) = respond(&["--token", "guess-what"]);
    assert!(!done && !text.contains("guess-what"), "{text}");
    let (done, text) = respond(&["--token", "alice-token", "--reason", "no"]);
    assert!(done && !text.contains("alice-token"), "{text}");
    let ended = desk.host.ended(&run).await.completed();
    assert_eq!(answered(&ended, &id, "denied")["by"], "alice");
    desk.check();
}
