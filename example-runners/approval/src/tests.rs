use agent_host_sdk::testing::{ActionReply, AnswerReply, Permission, TestHost, TestRun};
use agent_host_sdk::{ApiError, ErrorCode};
use serde_json::{Value, json};

use super::{Approval, Intent};

fn ask(mut host: TestHost, text: &str) -> TestRun {
    host.run::<Approval>(text)
}

fn outcome(run: &TestRun) -> String {
    let metadata: Value = serde_json::from_str(run.completion().contract().metadata.as_deref().unwrap()).unwrap();
    metadata["outcome"].as_str().unwrap().to_owned()
}

fn deletes() -> TestHost {
    TestHost::new().action("item.delete", |target, _| ActionReply::executed(json!({"deleted": target["item_id"]})))
}

#[test]
fn a_clear_message_is_done_without_a_question() {
    let run = ask(deletes(), "Delete #42.");
    assert_eq!(run.text(), r#"Done: item.delete of item 42. The platform says: {"deleted":42}"#);
    assert_eq!(outcome(&run), "executed");
    assert_eq!(run.actions.len(), 1);
    assert_eq!((&run.actions[0].target, &run.actions[0].payload), (&json!({"item_id": 42}), &json!({"message": "Delete #42."})));
    assert!(run.questions.is_empty());
}

#[test]
fn a_denial_an_expiry_and_a_refusal_are_said_and_the_run_goes_on() {
    let run = ask(TestHost::new().actions([ActionReply::denied("It is in use.")]), "delete 42");
    assert_eq!(run.text(), "Item 42 stays as it is: item.delete was denied. It is in use.");
    assert_eq!(outcome(&run), "denied");

    let run = ask(TestHost::new().actions([ActionReply::expired()]), "delete 42");
    assert_eq!((outcome(&run).as_str(), run.text().as_str()), ("expired", "Item 42 stays as it is: nobody decided in time."));

    let run = ask(deletes().deny(Permission::Platform), "delete 42");
    assert_eq!((outcome(&run).as_str(), run.text().as_str()), ("refused", "I may not ask for item.delete here."));
    assert!(run.actions.is_empty());
}

#[test]
fn a_platform_that_fails_is_a_failure_with_its_code() {
    let down = ApiError { retryable: true, ..ApiError::new(ErrorCode::RuntimeError, "the webhook answered 500") };
    let run = ask(TestHost::new().actions([down]), "delete 42");
    assert_eq!((run.failure().code.as_str(), run.failure().retryable), ("runtime_error", true));
    assert!(run.failure().message.contains("500"));
    assert!(run.text().is_empty());
}

#[test]
fn an_unclear_order_is_asked_about_first() {
    let run = ask(deletes().answers([true]), "I do not need 42 any more");
    assert_eq!(outcome(&run), "executed");
    assert_eq!(run.questions[0].title, "delete item 42?");
    assert_eq!(run.questions[0].description.as_deref(), Some("I do not need 42 any more"));

    let run = ask(deletes().answers([AnswerReply::declined("I was joking.")]), "42 is ugly");
    assert_eq!((outcome(&run).as_str(), run.text().as_str()), ("not_asked", "Then nothing is done. I was joking."));
    assert!(run.actions.is_empty());

    let run = ask(deletes().answers([AnswerReply::expired()]), "42 is ugly");
    assert_eq!(run.text(), "Nobody answered, so nothing is done.");
    assert!(run.actions.is_empty());
}

#[test]
fn of_several_items_the_user_chooses_one() {
    let run = ask(deletes().answers(["43"]), "delete 42 or 43");
    assert_eq!(run.actions[0].target, json!({"item_id": 43}));
    assert!(run.questions[0].answer_schema.as_deref().unwrap().contains(r#"["42","43"]"#));
    for answer in [AnswerReply::declined(""), AnswerReply::expired(), AnswerReply::from("neither")] {
        let run = ask(deletes().answers([answer]), "delete 42 or 43");
        assert_eq!(outcome(&run), "not_asked", "{}", run.text());
        assert!(run.actions.is_empty());
    }
}

#[test]
fn a_long_message_is_shown_in_part() {
    let text = format!("42 {}", "ä".repeat(20_000));
    let run = ask(deletes().answers([true]), &text);
    assert_eq!(outcome(&run), "executed");
    assert_eq!(run.questions[0].description.as_ref().unwrap().chars().count(), 1_000);
    assert_eq!(run.actions[0].payload["message"].as_str().unwrap().chars().count(), 1_000);
}

#[test]
fn where_nobody_can_be_asked_nothing_unclear_is_done() {
    let run = ask(deletes(), "42 is ugly");
    assert_eq!(run.text(), "I am not sure what you mean. Say it as `delete 42`.");
    assert!(run.actions.is_empty());
    assert_eq!(ask(deletes(), "hello").text(), "Say which item, such as `delete 42`.");
}

#[test]
fn the_action_is_configured() {
    let host = TestHost::new().config(json!({"action": "item.archive"})).action("item.archive", |_, _| json!("ok"));
    let run = ask(host, "archive 7");
    assert_eq!(run.actions[0].action, "item.archive");
    // The configuration cannot add an action that the manifest does not name.
    let host = TestHost::new().config(json!({"action": "user.ban"})).action("user.ban", |_, _| json!("ok"));
    assert_eq!(outcome(&ask(host, "ban 7")), "refused");
}

#[test]
fn only_the_verb_and_one_number_are_clear() {
    let check = |text: &str, meant: Intent| assert_eq!(Intent::by(text, "delete"), meant, "{text}");
    check("delete 42", Intent::Clearly(42));
    check("  DELETE  (42)!", Intent::Clearly(42));
    check("archive 42", Intent::Perhaps(vec![42]));
    check("do not delete 42", Intent::Perhaps(vec![42]));
    check("delete 42 43", Intent::Perhaps(vec![42, 43]));
    check("42", Intent::Perhaps(vec![42]));
    check("delete it", Intent::Nothing);
    check("delete 99999999999999999999999", Intent::Nothing);
    check("", Intent::Nothing);
}

#[test]
fn a_cancelled_run_ends_as_cancelled_wherever_it_is() {
    for calls in 0..3 {
        let run = ask(deletes().answers([true]).cancel_after(calls), "42 is ugly");
        assert_eq!(run.failure().code, "cancelled", "after {calls} calls");
    }
}
