use std::time::Duration;

use agent_host_sdk::contract::{RunResult, RunStatus, StartRequest};
use agent_host_sdk::testing::{ChildReply, TestHost, TestRun};
use agent_host_sdk::{ApiError, ErrorCode, RunOperation};
use serde_json::json;

use super::Supervisor;

const ECHO: &str = "plugin:agent-host/echo/default";
const SECOND: Duration = Duration::from_secs(1);

fn text(start: &StartRequest) -> String {
    start.input.text.clone().unwrap()
}

/// Returns a host on which each task takes 10 seconds, `fail` fails immediately, and `hang` never ends.
fn host() -> TestHost {
    TestHost::new().child(ECHO, |start| match text(start).as_str() {
        "fail" => ChildReply::failed("worker.broken", "it broke"),
        "hang" => ChildReply::never(),
        task => ChildReply::from(task.to_uppercase()).after(10 * SECOND),
    })
}

fn answer(run: &TestRun) -> String {
    run.messages().last().unwrap().text()
}

#[test]
fn tasks_are_done_beside_each_other_and_answered_in_order() {
    let run = host().config(json!({"at_once": 2})).run::<Supervisor>("one; two\n\n three ;");
    assert_eq!(answer(&run), "one: ONE\ntwo: TWO\nthree: THREE\n");
    assert_eq!(run.children.len(), 3);
    assert_eq!(run.most_children_at_once, 2);
    assert_eq!((text(&run.children[2].request).as_str(), run.children[2].request.objective.as_str()), ("three", "three"));
    assert_eq!(run.messages()[0].text(), "[1/3] done: one\n[2/3] done: two\n[3/3] done: three\n");
    assert_eq!(run.completion().contract().finish_reason, "stop");
}

#[test]
fn progress_is_streamed_while_others_work() {
    let run = host().run::<Supervisor>("fail; one");
    let deltas: Vec<_> = run
        .results
        .iter()
        .filter_map(|result| match result {
            RunResult::MessageDelta(chunk) => Some(chunk.text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(deltas[..2], ["[1/2] failed: fail\n", "[2/2] done: one\n"]);
    // The first delta was emitted before the second child ended.
    let emit = run.calls.iter().position(|call| *call == "results.emit").unwrap();
    assert!(run.calls.iter().skip(emit).any(|call| *call == "runs.wait-any"));
}

#[test]
fn some_that_fail_are_named_and_the_run_ends_well() {
    let run = host().run::<Supervisor>("one; fail; two");
    assert_eq!(answer(&run), "one: ONE\nfail: FAILED: worker.broken: it broke\ntwo: TWO\n1 of 3 tasks failed.");
    let metadata: serde_json::Value = serde_json::from_str(run.completion().contract().metadata.as_deref().unwrap()).unwrap();
    assert_eq!((&metadata["tasks"], &metadata["failed"]), (&json!(3), &json!(1)));
    assert_eq!(metadata["runs"][0], json!(run.children[0].run_id));
}

#[test]
fn only_where_all_fail_the_run_fails() {
    let run = host().run::<Supervisor>("fail; fail");
    assert_eq!(run.failure().code, "supervisor.all_failed");
    assert!(run.failure().message.contains("worker.broken: it broke"), "{}", run.failure().message);

    // A worker that is not granted has the same effect.
    let run = TestHost::new().config(json!({"worker": "plugin:a/b/c"})).run::<Supervisor>("one");
    assert_eq!(run.failure().code, "supervisor.all_failed");
    assert!(run.failure().message.contains("unauthorized"), "{}", run.failure().message);
}

#[test]
fn when_its_time_is_nearly_over_what_is_left_is_cancelled_and_the_rest_is_said() {
    let run = host().time(60 * SECOND).run::<Supervisor>("one; hang; two");
    assert_eq!(answer(&run), "one: ONE\nhang: FAILED: it did not end in time\ntwo: TWO\n1 of 3 tasks failed.");
    assert_eq!(run.children[1].status, RunStatus::Cancelled);
    assert!(run.children[1].cancelled.is_some());

    // With one child at a time, the task behind the hanging one never starts.
    let run = host().time(60 * SECOND).config(json!({"at_once": 1})).run::<Supervisor>("one; hang; two");
    assert_eq!(run.children.len(), 2);
    assert!(answer(&run).contains("two: FAILED: it did not end in time"));
}

#[test]
fn impossible_requests_are_refused_with_a_reason() {
    assert_eq!(host().deny(RunOperation::Start).run::<Supervisor>("one").failure().code, "supervisor.no_runs");
    assert_eq!(host().run::<Supervisor>(&"x;".repeat(257)).failure().code, "supervisor.too_many_tasks");
    let run = host().run::<Supervisor>(" ; \n");
    assert!(run.text().starts_with("Give me tasks"));
    assert!(run.children.is_empty());
}

#[test]
fn a_long_task_is_shown_short_and_handed_over_whole() {
    let long = "ä".repeat(100);
    let run = host().run::<Supervisor>(&long);
    assert_eq!(run.children[0].request.objective, format!("{}…", "ä".repeat(60)));
    assert_eq!(text(&run.children[0].request), long);
}

#[test]
fn a_cancelled_run_ends_as_cancelled_wherever_it_is() {
    let whole = host().run::<Supervisor>("one; two").calls.len();
    for calls in 0..whole {
        let run = host().cancel_after(calls).run::<Supervisor>("one; two");
        // `timers.now` cannot fail, so the last calls may be of this kind.
        assert_eq!(run.failure.map(|failure| failure.code).as_deref(), Some("cancelled"), "after {calls} of {whole} calls");
    }
    let mut host = host().fail("runs.wait-any", ApiError::new(ErrorCode::Cancelled, "by alice"));
    let run = host.run::<Supervisor>("one; two");
    assert_eq!(run.failure().code, "cancelled");
}
