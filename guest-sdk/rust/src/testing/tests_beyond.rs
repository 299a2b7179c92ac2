//! Tests of platform actions, questions, steering, child runs and HTTP against the scripted host.

use std::io::Read as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::contract::{ErrorCode, QuestionKind, RunStatus};
use crate::http::Request as HttpRequest;
use crate::interactions::{Answer, Confirmation, Question, Review};
use crate::runs::{Bounds, ChildEnd, StartRun};
use crate::{ActionOutcome, Completion, Failure, Manifest, RunOperation, results, timers};

const WORKER: &str = "plugin:acme/worker/default";
const SECOND: Duration = Duration::from_secs(1);

fn down() -> ApiError {
    ApiError { retryable: true, ..ApiError::new(ErrorCode::RuntimeError, "down") }
}

fn task(text: &str) -> StartRun {
    StartRun::new(WORKER).text(text).objective("test")
}

#[test]
fn an_action_is_executed_denied_expired_or_refused() {
    let mut host = TestHost::new().action("item.delete", |target, _| match target["id"].as_u64() {
        Some(1) => ActionReply::executed(json!({"deleted": 1})),
        Some(2) => ActionReply::denied("2 stays"),
        Some(3) => ActionReply::expired(),
        _ => down().into(),
    });
    host.with(|ctx| {
        let ask = |id: u64| ctx.platform().request_action("item.delete", json!({"id": id}), json!({}));
        let done = ask(1).unwrap();
        assert!(done.is_executed());
        assert_eq!(done.value::<Value>().unwrap(), Some(json!({"deleted": 1})));
        assert!(done.value::<u64>().is_err());
        let denied = ask(2).unwrap();
        assert_eq!(denied, ActionOutcome::Denied("2 stays".to_owned()));
        assert!(!denied.is_executed());
        assert_eq!(denied.value::<Value>().unwrap(), None);
        let before = timers::now();
        assert_eq!(ask(3).unwrap(), ActionOutcome::Expired);
        assert!(timers::now() > before);
        let large = ctx.platform().request_action("item.delete", "x".repeat(25_000), 0).unwrap_err();
        assert_eq!(large.code, ErrorCode::PayloadTooLarge);
        assert_eq!(ask(4).unwrap_err(), down());
        assert!(ctx.platform().can("item.delete") && !ctx.platform().can("item.make"));
        let other = ctx.platform().request_action("item.make", 1, 2).unwrap_err();
        assert_eq!(other.code, ErrorCode::Unauthorized);
    });
}

#[test]
fn actions_in_order_leave_those_with_a_script_of_their_own_alone() {
    struct Asks;
    impl Runner for Asks {
        fn manifest() -> Manifest {
            Manifest::new("acme", "asks").platform_actions(["a", "b"])
        }
        fn run(ctx: Context) -> Result<Completion, Failure> {
            #[derive(serde::Serialize)]
            struct Target {
                id: u8,
            }
            for action in ["a", "b", "b"] {
                let outcome = ctx.platform().request_action_of(action, &Target { id: 7 }, &())?;
                ctx.reply(&format!("{action}: {outcome:?}"))?;
            }
            Ok(Completion::stop())
        }
    }
    let replies = [ActionReply::denied("first"), ActionReply::expired()];
    let run = TestHost::new().action("a", |_, _| json!(1)).actions(replies).run::<Asks>("go");
    assert_eq!(run.text(), "a: ActionOutcome::Executed(\"1\")\nb: ActionOutcome::Denied(\"first\")\nb: ActionOutcome::Expired");
    assert_eq!(run.actions.len(), 3);
    assert_eq!((run.actions[0].action.as_str(), &run.actions[0].target), ("a", &json!({"id": 7})));

    // Without a script no action is granted, and a denied action is not granted either.
    assert_eq!(TestHost::new().run::<Asks>("go").failure().code, "unauthorized");
    let mut host = TestHost::new().action("a", |_, _| json!(1)).deny(Permission::Platform);
    assert_eq!(host.run::<Asks>("go").failure().code, "unauthorized");
}

#[test]
fn an_action_that_is_not_waited_for_needs_the_grant_too() {
    let request = || results::emit(&[results::action_requested("item.delete", json!({}), json!({}))]);
    assert_eq!(TestHost::new().with(|_| request()).unwrap_err().code, ErrorCode::Unauthorized);
    TestHost::new().action("item.delete", |_, _| json!(1)).with(|_| request()).unwrap();
}

#[test]
fn a_confirmation_is_yes_no_or_expired() {
    let mut host = TestHost::new().answers([
        AnswerReply::from(true),
        AnswerReply::from(false),
        AnswerReply::declined("not today"),
        AnswerReply::declined(""),
        AnswerReply::expired(),
        AnswerReply::from("maybe"),
        down().into(),
    ]);
    host.with(|ctx| {
        let ask = || ctx.ask(Question::confirm("Delete 3 files?").describe("a, b, c").expires_in(60 * SECOND));
        assert!(ask().unwrap().is_yes());
        assert_eq!(ask().unwrap(), Confirmation::No(None));
        assert_eq!(ask().unwrap(), Confirmation::No(Some("not today".to_owned())));
        assert_eq!(ask().unwrap(), Confirmation::No(None));
        let before = timers::now();
        assert_eq!(ask().unwrap(), Confirmation::Expired);
        assert_eq!(timers::now(), before + 60_000);
        assert_eq!(ask().unwrap_err().code, ErrorCode::RuntimeError);
        assert_eq!(ask().unwrap_err(), down());
    });
    let question = &host.host.beyond.questions[0];
    assert_eq!((question.kind, question.title.as_str()), (QuestionKind::Confirmation, "Delete 3 files?"));
    assert_eq!(question.description.as_deref(), Some("a, b, c"));
    assert_eq!(question.answer_schema.as_deref(), Some(r#"{"type":"boolean"}"#));
    assert_eq!(question.expires_at, Some(1_760_000_060_000));
}

#[test]
fn choices_texts_forms_and_plans_have_answers_of_their_type() {
    let mut host = TestHost::new().answers([
        AnswerReply::from("b\"c"),
        AnswerReply::declined("none"),
        AnswerReply::expired(),
        AnswerReply::from("42"),
        AnswerReply::from(json!({"id": 7})),
        AnswerReply::from(json!({"approved": true})),
        AnswerReply::from(json!({"approved": false, "comment": "shorter"})),
        AnswerReply::declined("drop it"),
        AnswerReply::expired(),
    ]);
    host.with(|ctx| {
        let choose = || ctx.ask(Question::choice("Which?", ["a", "b\"c"])).unwrap();
        assert_eq!(choose(), Answer::Submitted("b\"c".to_owned()));
        assert_eq!(choose(), Answer::Declined(Some("none".to_owned())));
        assert_eq!(choose().submitted(), None);
        assert_eq!(ctx.ask(Question::text("How old?")).unwrap().submitted().as_deref(), Some("42"));
        let form = Question::form("Order", json!({"type": "object"})).expires_at(5);
        assert_eq!(form.contract().expires_at, Some(5));
        assert_eq!(ctx.ask(form).unwrap(), Answer::Submitted(json!({"id": 7})));
        let review = || ctx.ask(Question::plan_review("The plan", "1. do it")).unwrap();
        assert_eq!(review(), Review::Approved(None));
        assert_eq!(review(), Review::Changes("shorter".to_owned()));
        assert_eq!(review(), Review::Declined(Some("drop it".to_owned())));
        assert_eq!(review(), Review::Expired);
    });
    let schemas: Vec<Value> = host
        .host
        .beyond
        .questions
        .iter()
        .filter_map(|question| question.answer_schema.as_deref())
        .map(|schema| serde_json::from_str(schema).unwrap())
        .collect();
    assert_eq!(schemas.len(), 9);
    assert_eq!(schemas[0], json!({"type": "string", "enum": ["a", "b\"c"]}));
    assert_eq!(schemas[5]["required"], json!(["approved"]));
}

#[cfg(feature = "schemars")]
#[test]
fn a_form_of_a_type_shows_its_fields_and_reads_them() {
    #[derive(Debug, PartialEq, serde::Deserialize, schemars::JsonSchema)]
    struct Order {
        /// Which one.
        id: u64,
    }
    let mut host = TestHost::new().answers([json!({"id": 7}), json!({"id": "seven"})]);
    host.with(|ctx| {
        assert_eq!(ctx.ask(Question::form_of("Order")).unwrap(), Answer::Submitted(Order { id: 7 }));
        let misfit = ctx.ask::<Answer<Order>>(Question::form_of("Order")).unwrap_err();
        assert!(misfit.message.contains("field `id`"), "{misfit}");
    });
    let schema = host.host.beyond.questions[0].answer_schema.clone().unwrap();
    assert!(schema.contains("Which one."), "{schema}");
}

#[test]
fn a_question_has_a_title_and_limits() {
    TestHost::new().answer(|_| true).with(|ctx| {
        let code = |title: &str, more: &str| ctx.ask(Question::confirm(title).describe(more)).unwrap_err().code;
        assert_eq!(code(" ", ""), ErrorCode::InvalidArgument);
        assert_eq!(code(&"x".repeat(301), ""), ErrorCode::InvalidArgument);
        assert_eq!(code("ok", &"x".repeat(25_000)), ErrorCode::PayloadTooLarge);
    });
}

#[test]
fn without_a_person_questions_are_not_granted() {
    TestHost::new().with(|ctx| {
        assert!(!ctx.available_apis().interactions);
        assert_eq!(ctx.ask(Question::confirm("?")).unwrap_err().code, ErrorCode::Unauthorized);
    });
    let mut denied = TestHost::new().answers([true]).deny(Permission::Interactions);
    assert_eq!(denied.with(|ctx| ctx.ask(Question::confirm("?"))).unwrap_err().code, ErrorCode::Unauthorized);
}

struct Listens;

impl Runner for Listens {
    fn manifest() -> Manifest {
        Manifest::new("acme", "listens").steering()
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        for turn in 1..=3 {
            for input in ctx.steering().inputs() {
                ctx.reply(&format!("{turn}: {}", input?.text()))?;
            }
        }
        Ok(Completion::stop())
    }
}

#[test]
fn input_arrives_at_the_start_after_a_pull_or_after_a_result() {
    let mut host = TestHost::new()
        .steering("a")
        .steering("b")
        .steering_after_pulls(1, "c")
        .steering_after_results(3, "d")
        .steering_after_pulls(9, "too late");
    let run = host.run::<Listens>("go");
    assert_eq!(run.text(), "1: a\n1: b\n2: c\n3: d");
    assert_eq!(run.steering_left, ["too late"]);
    assert!(TestHost::new().run::<Listens>("go").results.is_empty());

    let mut host = TestHost::new().without_conversation();
    assert!(!host.with(|ctx| ctx.available_apis().steering));
    let mut host = TestHost::new().deny(Permission::Steering);
    assert_eq!(host.run::<Listens>("go").failure().code, "unauthorized");
}

#[test]
fn a_wait_ends_with_the_first_input_or_with_its_time() {
    let mut host = TestHost::new().steering("a").steering("b").steering("c");
    host.with(|ctx| {
        let before = timers::now();
        let two = ctx.steering().wait(2, SECOND).unwrap();
        assert_eq!(two.iter().map(|input| input.text()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(two[0].message().text(), "a");
        assert_eq!(ctx.steering().pull(2).unwrap().len(), 1);
        assert_eq!(timers::now(), before);
        assert!(ctx.steering().wait(1, SECOND).unwrap().is_empty());
        assert_eq!(timers::now(), before + 1000);
        assert_eq!(ctx.steering().pull(0).unwrap_err().code, ErrorCode::InvalidArgument);
    });
}

#[test]
fn many_inputs_are_taken_in_few_calls_and_an_error_is_the_last() {
    let host = || (0..40).fold(TestHost::new(), |host, n| host.steering(&n.to_string()));
    let run = host().run::<Listens>("go");
    assert_eq!(run.results.len(), 40);
    assert_eq!(run.calls.iter().filter(|call| **call == "steering.pull").count(), 5);
    // A flood of input does not block the run.
    let mut flood = (0..150).fold(TestHost::new(), |host, n| host.steering(&n.to_string()));
    assert_eq!(flood.with(|ctx| ctx.steering().inputs().count()), 100);
    let mut broken = host().fail("steering.pull", down());
    let seen = broken.with(|ctx| ctx.steering().inputs().collect::<Vec<_>>());
    assert_eq!(seen, [Err(down())]);
}

#[test]
fn children_are_gathered_in_order_and_failures_are_values() {
    let mut host = TestHost::new().child(WORKER, |start| match start.input.text.as_deref().unwrap() {
        "fail" => ChildReply::failed("worker.broken", "it broke"),
        "late" => ChildReply::from("late").after(90 * SECOND),
        "never" => ChildReply::never(),
        "timeout" => ChildReply::timeout(),
        "twice" => ChildReply::messages(["first", "second"]),
        text => ChildReply::from(text.to_uppercase()).after(5 * SECOND),
    });
    host.with(|ctx| {
        let names = ["one", "fail", "late", "never", "timeout", "twice"];
        let children: Vec<_> = names.iter().map(|name| ctx.runs().start(&task(name)).unwrap()).collect();
        let before = timers::now();
        let ends = ctx.runs().gather(&children, 60 * SECOND).unwrap();
        assert_eq!(timers::now(), before + 60_000);
        let texts: Vec<_> = ends.iter().map(|gathered| gathered.end.text()).collect();
        assert_eq!(texts, [Some("ONE"), None, None, None, None, Some("second")]);
        let ends_text: Vec<_> = ends.iter().map(|gathered| gathered.end.to_string()).collect();
        assert_eq!(ends_text[1], "worker.broken: it broke");
        assert_eq!(ends_text[2], "it did not end in time");
        assert!(ends_text[4].starts_with("deadline_exceeded"), "{}", ends_text[4]);
        let ChildEnd::Completed(answer) = &ends[5].end else { panic!("{:?}", ends[5]) };
        assert_eq!((answer.finish_reason.as_str(), answer.messages.len()), ("stop", 2));

        // No child is cancelled: the late one may still be awaited.
        let late = children[2].wait(60 * SECOND).unwrap().unwrap();
        assert_eq!((late.status, late.run_id.as_str()), (RunStatus::Completed, children[2].id()));
        assert_eq!(children[2].end().unwrap().text(), Some("late"));
        children[3].cancel("enough").unwrap();
        assert_eq!(children[3].summary().unwrap().status, RunStatus::Cancelled);
        assert!(matches!(children[3].end().unwrap(), ChildEnd::Failed(failure) if failure.code == "cancelled"));
        assert_eq!(ctx.runs().list(100).unwrap().len(), 6);
        assert!(ctx.runs().list(100).unwrap().iter().all(|run| run.status.is_terminal()));
        assert_eq!(ctx.runs().list(1).unwrap()[0].run_id, children[5].id());
        assert_eq!(ctx.runs().list(0).unwrap_err().code, ErrorCode::InvalidArgument);
        assert_eq!(ctx.runs().wait_any([], SECOND).unwrap_err().code, ErrorCode::InvalidArgument);
        assert_eq!(ctx.runs().get("run-9").unwrap_err().code, ErrorCode::NotFound);
    });
}

#[test]
fn events_of_a_run_come_page_by_page() {
    let mut host = TestHost::new().child(WORKER, |_| ChildReply::messages(["a", "b", "c"]));
    host.with(|ctx| {
        let child = ctx.runs().start(&task("x")).unwrap();
        let mut events = child.events().limit(2);
        let kinds: Vec<_> = events.by_ref().map(|event| event.unwrap().type_).collect();
        assert_eq!(kinds, ["run.status", "message.completed", "message.completed", "message.completed", "run.completed"]);
        assert_eq!(events.cursor(), Some("4"));
        let last = child.events().starting_after("4").next().unwrap().unwrap();
        assert_eq!(last.data_as::<Value>().unwrap(), json!({"finish_reason": "stop"}));
        assert_eq!(child.events().limit(0).next().unwrap().unwrap_err().code, ErrorCode::InvalidArgument);
    });
    let calls = host.host.calls.iter().filter(|call| **call == "runs.events-page").count();
    assert_eq!(calls, 5);
}

/// Returns the ends of `tasks` tasks that take 10 seconds each, and the number of calls of `ended`.
fn work(host: TestHost, tasks: usize, at_once: usize, at_most: Duration) -> (Vec<ChildEnd>, usize, TestHost) {
    let mut host = host.child(WORKER, |start| {
        let text = start.input.text.clone().unwrap();
        if text == "2" { ChildReply::failed("no", "not 2").after(SECOND) } else { ChildReply::from(text).after(10 * SECOND) }
    });
    let mut deltas = 0;
    let ends = host.with(|ctx| {
        let tasks = (0..tasks).map(|n| task(&n.to_string()));
        ctx.runs().for_each_child(tasks, Bounds { at_once, at_most }, |_, _| {
            deltas += 1;
            Ok(())
        })
    });
    (ends.unwrap().into_iter().map(|gathered| gathered.end).collect(), deltas, host)
}

#[test]
fn children_run_beside_each_other_within_bounds() {
    let (ends, deltas, host) = work(TestHost::new(), 10, 3, 600 * SECOND);
    let texts: Vec<_> = ends.iter().map(|end| end.text().unwrap_or("-")).collect();
    assert_eq!(texts, ["0", "1", "-", "3", "4", "5", "6", "7", "8", "9"]);
    assert_eq!((deltas, host.host.beyond.most_children), (10, 3));

    // The host has room for 16: the other tasks wait, and none is lost.
    let (ends, deltas, host) = work(TestHost::new(), 40, 100, 600 * SECOND);
    assert_eq!(ends.iter().filter(|end| end.is_completed()).count(), 39);
    assert_eq!((deltas, host.host.beyond.most_children), (40, 16));

    // The host starts at most 256 children, even if earlier ones have ended.
    let (ends, _, _) = work(TestHost::new(), 300, 16, 6000 * SECOND);
    assert_eq!(ends.iter().filter(|end| end.is_completed()).count(), 255);
    assert!(ends[256..].iter().all(|end| matches!(end, ChildEnd::Refused(error) if error.code == ErrorCode::Unauthorized)));

    let (ends, _, host) = work(TestHost::new(), 2, 0, 600 * SECOND);
    assert!(ends.iter().all(ChildEnd::is_completed));
    assert_eq!(host.host.beyond.most_children, 1);
}

#[test]
fn when_the_time_is_over_what_runs_is_cancelled_and_the_rest_not_started() {
    let (ends, deltas, mut host) = work(TestHost::new(), 6, 2, 15 * SECOND);
    let finished: Vec<_> = ends.iter().map(ChildEnd::is_completed).collect();
    assert_eq!(finished, [true, true, false, false, false, false]);
    assert!(matches!(ends[2], ChildEnd::Failed(_)));
    assert_eq!(ends[3..], [ChildEnd::Unfinished, ChildEnd::Unfinished, ChildEnd::Unfinished]);
    assert_eq!(deltas, 3);
    let children = host.host.end_of_children();
    let status: Vec<_> = children.iter().map(|child| child.status.as_str().to_owned()).collect();
    assert_eq!(status, ["completed", "completed", "failed", "cancelled", "cancelled"]);
    assert!(children[3].cancelled.as_deref().unwrap().contains("no time left"));
}

#[test]
fn a_child_that_is_refused_is_a_value_and_a_cancelled_parent_an_error() {
    let mut host = TestHost::new().child(WORKER, |start| match start.input.text.as_deref() {
        Some("1") => ChildReply::from(ApiError::new(ErrorCode::Unauthorized, "not you")),
        _ => "ok".into(),
    });
    let bounds = Bounds { at_once: 2, at_most: 60 * SECOND };
    let tasks = || (0..3).map(|n| task(&n.to_string()));
    let ends = host.with(|ctx| ctx.runs().for_each_child(tasks(), bounds, |_, _| Ok(()))).unwrap();
    assert!(matches!(&ends[1].end, ChildEnd::Refused(error) if error.code == ErrorCode::Unauthorized));
    assert_eq!(ends[1].run, None);
    assert_eq!((ends[0].end.text(), ends[2].end.text()), (Some("ok"), Some("ok")));
    let unknown = host.with(|ctx| ctx.runs().start(&StartRun::new("plugin:a/b/c"))).unwrap_err();
    assert_eq!(unknown.code, ErrorCode::Unauthorized);

    let cancelled = ApiError::new(ErrorCode::Cancelled, "by alice");
    for call in ["runs.start", "runs.wait-any", "runs.events-page"] {
        let mut host = TestHost::new().child(WORKER, |_| "ok").fail(call, cancelled.clone());
        let error = host.with(|ctx| ctx.runs().for_each_child(tasks(), bounds, |_, _| Ok(()))).unwrap_err();
        assert!(error.is_cancelled(), "{call}");
    }
    // An error of `ended` ends the group and cancels running children.
    let mut host = TestHost::new().child(WORKER, |start| match start.input.text.as_deref() {
        Some("0") => ChildReply::from("ok"),
        _ => ChildReply::never(),
    });
    assert_eq!(host.with(|ctx| ctx.runs().for_each_child(tasks(), bounds, |_, _| Err(down()))).unwrap_err(), down());
    assert!(host.host.end_of_children().iter().skip(1).all(|child| child.status == RunStatus::Cancelled));
}

#[test]
fn operations_on_runs_are_granted_one_by_one() {
    let mut host = TestHost::new().child(WORKER, |_| "ok").deny(RunOperation::Events).deny(RunOperation::Cancel);
    host.with(|ctx| {
        let child = ctx.runs().start(&task("x")).unwrap();
        assert_eq!(child.cancel("no").unwrap_err().code, ErrorCode::Unauthorized);
        let ends = ctx.runs().gather([&child], SECOND).unwrap();
        assert!(matches!(&ends[0].end, ChildEnd::Refused(error) if error.code == ErrorCode::Unauthorized));
        let mut odd = task("x").config("no object");
        odd.contract_mut().objective.clear();
        assert_eq!(ctx.runs().start(&odd).unwrap_err().code, ErrorCode::InvalidArgument);
    });
}

#[test]
fn a_request_goes_out_with_its_placeholders_and_the_response_is_read() {
    let mut host = TestHost::new()
        .http("POST", "https://api.example.com/v1/ask", |request| {
            let asked: Value = serde_json::from_slice(&request.body).unwrap();
            HttpReply::from(json!({"you": asked})).header("X-Note", "n")
        })
        .http("*", "http://127.0.0.1:8080/*", |request| request.url.clone());
    host.with(|ctx| {
        let request = HttpRequest::post("https://api.example.com/v1/ask")
            .bearer_secret("KEY")
            .secret_header("x-key", "OTHER")
            .json(json!({"a": 1}))
            .timeout(5 * SECOND);
        assert_eq!(request.contract().timeout_ms, Some(5000));
        let response = request.send().unwrap();
        assert_eq!((response.status(), response.header("x-note").as_deref()), (200, Some("n")));
        assert!(response.is_success());
        assert_eq!(response.json::<Value>(100).unwrap(), json!({"you": {"a": 1}}));
        assert_eq!(ctx.http().get("http://127.0.0.1:8080/a").send().unwrap().text(100).unwrap(), "http://127.0.0.1:8080/a");
        let put = ctx.http().request("PUT", "http://127.0.0.1:8080/b").body([1, 2]).send().unwrap();
        assert_eq!(put.bytes(5).unwrap_err().code, ErrorCode::PayloadTooLarge);
        let mut text = String::new();
        HttpRequest::delete("http://127.0.0.1:8080/c").send().unwrap().reader().read_to_string(&mut text).unwrap();
        assert_eq!(text, "http://127.0.0.1:8080/c");
        let misfit = HttpRequest::put("http://127.0.0.1:8080/d").send().unwrap().json::<Value>(100).unwrap_err();
        assert_eq!(misfit.code, ErrorCode::RuntimeError);
    });
    let sent = &host.host.beyond.requests[0];
    assert_eq!(
        sent.headers,
        [("authorization", "Bearer {{secret:KEY}}"), ("x-key", "{{secret:OTHER}}"), ("content-type", "application/json")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
}

#[test]
fn an_error_of_the_other_side_says_its_status_and_what_it_said() {
    let mut host = TestHost::new().http("GET", "https://a.example/*", |request| match request.url.as_str() {
        "https://a.example/503" => HttpReply::status(503).body("x".repeat(5000)),
        "https://a.example/404" => HttpReply::status(404),
        _ => HttpReply::from("fine"),
    });
    host.with(|_| {
        let get = |path: &str| HttpRequest::get(format!("https://a.example/{path}")).send().unwrap().error_for_status();
        assert_eq!(get("ok").unwrap().text(10).unwrap(), "fine");
        let busy = Failure::from(get("503").unwrap_err());
        assert_eq!((busy.code.as_str(), busy.retryable), ("http_status", true));
        assert!(busy.message.contains("503: xxx") && busy.message.len() < 600, "{}", busy.message);
        let gone = get("404").unwrap_err();
        assert_eq!((gone.message.as_str(), gone.retryable), ("the other side answered 404", false));
    });
}

#[test]
fn lines_and_events_come_as_they_arrive_and_a_break_is_the_last_item() {
    let chunks = || HttpReply::chunks(["data: größ".as_bytes(), b"er\r", b"\n\r\nda", b"ta: b\n\n", b"", b"data: tail"]);
    let mut host = TestHost::new().http("GET", "https://a.example/whole", move |_| chunks()).http(
        "GET",
        "https://a.example/broken",
        move |_| chunks().then_fails(down()),
    );
    host.with(|_| {
        let get = |path: &str| HttpRequest::get(format!("https://a.example/{path}")).send().unwrap();
        let lines: Vec<_> = get("whole").lines().map(Result::unwrap).collect();
        assert_eq!(lines, ["data: größer", "", "data: b", "", "data: tail"]);
        let events: Vec<_> = get("whole").events().map(|event| event.unwrap().data).collect();
        assert_eq!(events, ["größer", "b"]);
        let events: Vec<_> = get("broken").events().collect();
        assert_eq!(events.len(), 3);
        assert_eq!(events[2], Err(down()));
        let pieces: Vec<_> = get("broken").pieces().collect();
        assert_eq!(pieces[..2], [Ok("data: größ".to_owned()), Ok("er\r".to_owned())]);
        assert_eq!(pieces.last(), Some(&Err(down())));
        let lines: Vec<_> = get("broken").lines().collect();
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[4], Err(down()));
    });
}

#[test]
fn a_line_without_end_is_refused_once() {
    let mut host = TestHost::new().http("GET", "*", |_| HttpReply::from("x".repeat(crate::http::LINE_BYTES + 1)));
    host.with(|_| {
        let get = || HttpRequest::get("https://a.example/").send().unwrap();
        let lines: Vec<_> = get().lines().map(|line| line.unwrap_err().code).collect();
        assert_eq!(lines, [ErrorCode::PayloadTooLarge]);
        let events: Vec<_> = get().events().map(|event| event.unwrap_err().code).collect();
        assert_eq!(events, [ErrorCode::PayloadTooLarge]);
    });
}

struct Fetches;

impl Runner for Fetches {
    fn manifest() -> Manifest {
        Manifest::new("acme", "fetches").http_hosts(["*.example.com", "10.0.0.1:*"])
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        ctx.reply(&ctx.http().get(ctx.text()).send()?.text(100)?)?;
        Ok(Completion::stop())
    }
}

#[test]
fn only_hosts_that_are_declared_and_scripted_are_reached() {
    let mut host = TestHost::new().http("GET", "*", |_| "hello");
    for granted in ["https://api.example.com/x", "https://a.b.example.com:443?q", "http://10.0.0.1:8080/", "https://10.0.0.1"] {
        assert_eq!(host.run::<Fetches>(granted).text(), "hello", "{granted}");
    }
    for refused in ["https://example.com/", "http://api.example.com/", "https://api.example.com:8443/", "https://evil.com/"] {
        assert_eq!(host.run::<Fetches>(refused).failure().code, "unauthorized", "{refused}");
    }
    for invalid in ["ftp://api.example.com/", "https://user@api.example.com/", "https:///", "https://api.example.com:x/"] {
        assert_eq!(host.run::<Fetches>(invalid).failure().code, "invalid_argument", "{invalid}");
    }
    assert_eq!(TestHost::new().run::<Fetches>("https://api.example.com/").failure().code, "unauthorized");
    let injected = HttpRequest::get("https://api.example.com/").header("x", "a\r\nb: c");
    assert_eq!(host.with(|_| injected.send()).unwrap_err().code, ErrorCode::InvalidArgument);
    let mut nobody = TestHost::new().http("GET", "*", |_| down());
    assert_eq!(nobody.run::<Fetches>("https://api.example.com/").failure().code, "runtime_error");
}

#[test]
fn skills_static_references_and_the_parent_are_in_the_context() {
    let mut host = TestHost::new()
        .skill("pdf", "Reads PDF.", "# How to read PDF")
        .static_ref("handbook", "Be kind.")
        .parent("run-0")
        .time(10 * SECOND);
    host.with(|ctx| {
        assert_eq!(ctx.skills().len(), 1);
        let skill = ctx.skill("pdf").unwrap();
        assert_eq!(ctx.artifacts().read_text(&skill.content.artifact_id, 100).unwrap(), "# How to read PDF");
        assert!(ctx.skill("none").is_none());
        let handbook = &ctx.static_refs()[0];
        assert_eq!(handbook.name, "handbook");
        let content = handbook.content.as_ref().unwrap();
        assert_eq!(ctx.artifacts().read_text(&content.artifact_id, 100).unwrap(), "Be kind.");
        assert_eq!(ctx.parent_run_id(), Some("run-0"));
        assert_eq!(ctx.time_left(), Some(10 * SECOND));
        timers::sleep(4_000).unwrap();
        assert_eq!(ctx.time_left(), Some(6 * SECOND));
        timers::sleep(40_000).unwrap();
        assert_eq!(ctx.time_left(), Some(Duration::ZERO));
    });
    assert_eq!(TestHost::new().with(|ctx| ctx.parent_run_id().map(str::to_owned)), None);
}

#[test]
fn an_undeclared_call_fails_the_test() {
    struct Undeclared;
    impl Runner for Undeclared {
        fn manifest() -> Manifest {
            Manifest::new("acme", "undeclared")
        }
        fn run(ctx: Context) -> Result<Completion, Failure> {
            match ctx.text() {
                "platform" => drop(ctx.platform().request_action("a", 1, 1)?),
                "interactions" => drop(ctx.ask(Question::confirm("?"))?),
                "steering" => drop(ctx.steering().pull(1)?),
                "runs" => drop(ctx.runs().start(&task("x"))?),
                _ => drop(ctx.http().get("https://a.example/").send()?),
            }
            Ok(Completion::stop())
        }
    }
    for interface in ["platform", "interactions", "steering", "runs", "http"] {
        let outcome = std::panic::catch_unwind(|| TestHost::new().run::<Undeclared>(interface));
        let why = *outcome.unwrap_err().downcast::<String>().unwrap();
        assert!(why.contains("its manifest declares nothing of that interface"), "{interface}: {why}");
    }
}
