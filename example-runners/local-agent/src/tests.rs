use agent_host_sdk::contract::{Hit, RunResult};
use agent_host_sdk::memory::CHECKPOINT_KEY;
use agent_host_sdk::testing::{AnswerReply, Reply, TestHost, TestRun, ToolReply};
use agent_host_sdk::{ApiError, ErrorCode, ModelOperation, Role, StateScope};
use serde_json::{Value, json};

use super::LocalAgent;

fn ask(host: &mut TestHost, text: &str) -> TestRun {
    host.run::<LocalAgent>(text)
}

fn add(host: TestHost) -> TestHost {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
    host.tool("calc__add", schema, |p: Value| match (p["a"].as_i64(), p["b"].as_i64()) {
        (Some(a), Some(b)) => ToolReply::from((a + b).to_string()),
        _ => ToolReply::failed("a and b are numbers"),
    })
}

/// Returns the texts of the tool messages of the last request.
fn tool_texts(run: &TestRun) -> Vec<String> {
    run.last_request().messages.iter().filter(|message| message.role == Role::Tool).map(|message| message.text()).collect()
}

#[test]
fn an_answer_is_streamed_and_completed() {
    let run =
        ask(&mut TestHost::new().replies("chat", [Reply::text("Hello there!").reasoning("A greeting.").usage(10, 3)]), "Hi");
    assert_eq!(run.text(), "Hello there!");
    assert_eq!(run.streamed(), "Hello there!");
    assert!(run.results.iter().any(|result| matches!(result, RunResult::ReasoningDelta(_))));
    let completion = run.completion().contract();
    assert_eq!(completion.finish_reason, "stop");
    assert_eq!(completion.usage.unwrap().input, 10);
    let [system, user] = run.last_request().messages.as_slice() else { panic!("{:?}", run.last_request()) };
    assert_eq!((system.text(), user.text()), ("You are a helpful assistant.".to_owned(), "Hi".to_owned()));
}

#[test]
fn a_binding_that_allows_no_streaming_gets_the_answer_whole() {
    let run = ask(&mut TestHost::new().deny(ModelOperation::Stream).replies("chat", ["Hello there!"]), "Hi");
    assert_eq!(run.text(), "Hello there!");
    assert!(run.calls.contains(&"models.invoke"));
}

#[test]
fn tools_are_called_at_once_and_their_results_go_back_to_the_model() {
    let calls = Reply::calls([("calc__add", json!({"a": 1, "b": 2})), ("calc__add", json!({"a": 3, "b": 4}))]);
    let mut host = add(TestHost::new()).replies("chat", [calls, "3 and 7".into()]);
    let run = ask(&mut host, "1+2 and 3+4?");
    assert_eq!(run.text(), "3 and 7");
    assert_eq!(tool_texts(&run), ["3", "7"]);
    assert_eq!(run.calls.iter().filter(|call| **call == "tools.call-many").count(), 1);
    // The host records calls of its tools; the runner must not record them again.
    assert!(!run.results.iter().any(|result| matches!(result, RunResult::ToolCallStarted(_))));
}

#[test]
fn a_tool_that_fails_is_told_to_the_model_which_goes_on() {
    let calls = Reply::raw_calls([
        ("calc__add", r#"{"a": 1}"#.to_owned()),
        ("calc__add", "{not json".to_owned()),
        ("calc__nothing", "{}".to_owned()),
        ("calc__down", "{}".to_owned()),
    ]);
    let mut host = add(TestHost::new())
        .tool("calc__down", json!({}), |_| ApiError::new(ErrorCode::RuntimeError, "the server crashed"))
        .replies("chat", [calls, "I could not.".into()]);
    let run = ask(&mut host, "add");
    assert_eq!(run.text(), "I could not.");
    let tool_results = tool_texts(&run);
    assert_eq!(tool_results[0], "Error: a and b are numbers");
    assert!(tool_results[1].contains("no JSON object"), "{}", tool_results[1]);
    assert!(tool_results[2].contains("no tool `calc__nothing`") && tool_results[2].contains("calc__add"), "{}", tool_results[2]);
    assert!(tool_results[3].contains("the server crashed"), "{}", tool_results[3]);
    // No service accepts parameters that are not JSON.
    let asked = &run.last_request().messages.iter().find(|message| !message.tool_calls.is_empty()).unwrap().tool_calls;
    assert_eq!(asked[1].parameters, "{}");
}

#[test]
fn a_model_that_never_stops_calling_tools_is_told_to_answer_and_then_the_run_fails() {
    let again = || Reply::calls([("calc__add", json!({"a": 1, "b": 1}))]);
    let mut host = add(TestHost::new()).config(json!({"max_steps": 2})).model("chat", move |_| again());
    let run = ask(&mut host, "loop");
    assert_eq!(run.failure().code, "local_agent.max_steps");
    assert_eq!(run.tool_calls.len(), 2);
    assert_eq!(run.requests.len(), 3);
    assert!(run.last_request().messages.last().unwrap().text().contains("No more tools"));

    let mut host = add(TestHost::new()).config(json!({"max_steps": 1})).replies("chat", [again(), "2, I think".into()]);
    assert_eq!(ask(&mut host, "loop").text(), "2, I think");
}

#[test]
fn a_failure_of_the_model_is_the_failure_of_the_run_with_its_code() {
    let mut error = ApiError::new(ErrorCode::RuntimeError, "the service is overloaded");
    error.retryable = true;
    error.details = Some(r#"{"code":"provider_overloaded"}"#.to_owned());
    let run = ask(&mut TestHost::new().replies("chat", [error.clone()]), "Hi");
    assert_eq!((run.failure().code.as_str(), run.failure().retryable), ("provider_overloaded", true));

    // Break in the middle of the stream: the text so far is emitted, and no message is completed.
    let run = ask(&mut TestHost::new().replies("chat", [Reply::text("half an").then_fails(error)]), "Hi");
    assert!(run.failure().message.contains("overloaded"));
    assert!(run.streamed().starts_with("half"));
    assert!(run.messages().is_empty());

    let run = ask(&mut TestHost::new().replies("chat", [Reply::text("").finish_reason("content-filter")]), "Hi");
    assert_eq!(run.failure().code, "local_agent.no_answer");
    assert!(run.failure().message.contains("content-filter"));
}

#[test]
fn without_a_model_the_run_says_what_to_configure() {
    let run = ask(&mut TestHost::new(), "Hi");
    assert_eq!(run.failure().code, "provider_not_ready");
    assert!(run.failure().message.contains("agent-host.toml"));

    let run = ask(&mut TestHost::new().config(json!({"model": "big"})).model("small", |_| "never"), "Hi");
    assert_eq!(run.failure().code, "provider_not_ready");
    assert!(run.failure().message.contains("`big`") && run.failure().message.contains("`small`"));
}

fn handbook() -> Vec<Hit> {
    let mut hours: Hit = ("d1", "The office opens at nine.").into();
    hours.metadata = json!({"title": "Handbook"}).to_string();
    vec![hours, ("d2", "Lunch is at noon.").into()]
}

#[test]
fn passages_for_the_question_are_cited_by_their_source() {
    let mut host = TestHost::new().knowledge("docs", handbook()).replies("chat", ["At nine [1]."]);
    let run = ask(&mut host, "When does the office open?");
    assert_eq!(run.text(), "At nine [1].\n\n[1] Handbook");
    let input = run.last_request().messages.last().unwrap().text();
    assert!(input.contains("[1] Handbook:\nThe office opens at nine."), "{input}");
    assert!(input.ends_with("When does the office open?"), "{input}");
}

#[test]
fn the_model_searches_by_itself_and_the_search_is_recorded() {
    let search = Reply::calls([("search_knowledge", json!({"query": "lunch"}))]);
    let wrong = Reply::calls([("search_knowledge", json!({"query": 7}))]);
    let mut host = TestHost::new().knowledge("docs", handbook()).replies("chat", [search, wrong, "At noon [1].".into()]);
    let run = ask(&mut host, "Food?");
    assert_eq!(run.text(), "At noon [1].\n\n[1] d2");
    let tool_results = tool_texts(&run);
    assert!(tool_results[0].contains("Lunch is at noon."));
    assert!(tool_results[1].contains("field `query`") && tool_results[1].contains("JSON Schema"), "{}", tool_results[1]);
    let ends = run.results.iter().filter_map(|result| match result {
        RunResult::ToolCallCompleted(done) => Some(done.outcome.is_ok()),
        _ => None,
    });
    assert_eq!(ends.collect::<Vec<_>>(), [true, false]);
}

#[test]
fn an_agent_without_its_knowledge_answers_and_says_so_in_the_log() {
    let mut host = TestHost::new()
        .knowledge("docs", handbook())
        .fail("knowledge.retrieve", ApiError::new(ErrorCode::RuntimeError, "the index is damaged"))
        .replies("chat", ["I do not know."]);
    let run = ask(&mut host, "When does the office open?");
    assert_eq!(run.text(), "I do not know.");
    assert!(run.log.iter().any(|(_, line)| line.contains("the index is damaged")));
}

#[test]
fn a_long_conversation_is_summed_up_after_the_answer_and_the_next_turn_knows_it() {
    let long = "word ".repeat(300);
    let mut host = TestHost::new()
        .config(json!({"context_tokens": 2000}))
        .history([
            ("user", "My name is Ada."),
            ("assistant", "Hello Ada."),
            ("user", long.as_str()),
            ("assistant", long.as_str()),
        ])
        .history([("user", long.as_str()), ("assistant", long.as_str())])
        .replies("chat", ["You are Ada.", "The user is Ada.", "Still Ada."]);
    let run = ask(&mut host, "Who am I?");
    assert_eq!(run.text(), "You are Ada.");
    let checkpoint = run.state(StateScope::Conversation, CHECKPOINT_KEY).unwrap();
    assert_eq!(checkpoint["text"], "The user is Ada.");

    let run = ask(&mut host, "And now?");
    assert_eq!(run.text(), "Still Ada.");
    let asked = &run.last_request().messages;
    assert!(asked[1].text().contains("The user is Ada."));
    assert!(!asked.iter().any(|message| message.text().contains("My name is Ada.")));
    assert!(asked.iter().any(|message| message.text() == "You are Ada."));
}

#[test]
fn a_summary_that_fails_does_not_take_the_answer_back() {
    let long = "word ".repeat(4000);
    let down = ApiError::new(ErrorCode::RuntimeError, "down");
    let mut host = TestHost::new()
        .config(json!({"context_tokens": 1000}))
        .history([("user", long.as_str()), ("assistant", "Well.")])
        .replies("chat", [Reply::text("Here."), down.into()]);
    let run = ask(&mut host, "Hm?");
    assert_eq!(run.text(), "Here.");
    assert!(run.log.iter().any(|(_, line)| line.ends_with("not summed up: runtime_error: down")), "{:?}", run.log);
}

#[test]
fn attachments_are_shown_or_read_on_demand() {
    let read = Reply::calls([("read_attachment", json!({"artifact_id": "artifact-2"}))]);
    let mut host = TestHost::new()
        .attachment("image/png", "cat.png", [1, 2, 3])
        .attachment("text/plain", "notes.txt", "Buy milk.")
        .replies("chat", [read, "Milk, and a cat.".into()]);
    let run = ask(&mut host, "What is this?");
    assert_eq!(run.text(), "Milk, and a cat.");
    assert_eq!(tool_texts(&run), ["Buy milk."]);
    let (_, first) = &run.requests[0];
    let input = first.messages.last().unwrap();
    assert_eq!(input.content.len(), 2);
    assert!(input.text().contains("notes.txt"));
}

#[test]
fn a_cancelled_run_ends_as_cancelled_wherever_it_is() {
    for calls in 0..6 {
        let step = Reply::calls([("calc__add", json!({"a": 1, "b": 1})), ("search_knowledge", json!({"query": "lunch"}))]);
        let mut host = add(TestHost::new()).knowledge("docs", handbook()).cancel_after(calls).replies("chat", [step, "2".into()]);
        assert_eq!(ask(&mut host, "lunch").failure().code, "cancelled", "after {calls} calls");
    }
}

/// Returns a host with a destructive tool and a harmless tool.
fn files() -> TestHost {
    add(TestHost::new()).tool("fs__delete", json!({}), |p: Value| format!("deleted {}", p["path"])).destructive("fs__delete")
}

fn delete(path: &str) -> (&'static str, Value) {
    ("fs__delete", json!({"path": path}))
}

#[test]
fn before_a_tool_that_destroys_the_user_is_asked() {
    let calls = Reply::calls([delete("a"), ("calc__add", json!({"a": 1, "b": 2})), delete("b"), delete("c")]);
    let answers = [AnswerReply::from(true), AnswerReply::declined("b is needed"), AnswerReply::expired()];
    let mut host = files().answers(answers).replies("chat", [calls, "Only a.".into()]);
    let run = ask(&mut host, "clean up");
    assert_eq!(run.text(), "Only a.");
    let tool_results = tool_texts(&run);
    assert_eq!(tool_results[..2], ["deleted \"a\"", "3"]);
    assert!(tool_results[2].ends_with("The user does not want it: b is needed"), "{}", tool_results[2]);
    assert!(tool_results[3].ends_with("did not answer."), "{}", tool_results[3]);
    assert_eq!(run.tool_calls.len(), 2);
    let titles: Vec<_> = run.questions.iter().map(|question| question.title.as_str()).collect();
    assert_eq!(titles, ["Call the tool fs__delete?"; 3]);
    assert_eq!(run.questions[1].description.as_deref(), Some(r#"{"path":"b"}"#));
    // Each result belongs to its own call.
    let answered: Vec<_> = run.last_request().messages.iter().filter_map(|message| message.tool_call_id.clone()).collect();
    assert_eq!(answered, ["call-1", "call-2", "call-3", "call-4"]);
}

#[test]
fn blobs_with_unknown_references_are_kept() {
    let again = || Reply::calls([delete("a")]);
    let down = || ApiError::new(ErrorCode::RuntimeError, "down");
    // The first detail is for the definitions, the second for the question.
    let unknown = ask(
        &mut files()
            .answers([AnswerReply::from(false)])
            .fail("tools.get-detail", down())
            .fail("tools.get-detail", down())
            .fail("tools.get-detail", down())
            .replies("chat", [again(), "ok".into()]),
        "clean up",
    );
    assert!(unknown.tool_calls.is_empty() && unknown.questions.len() == 1);

    let broken = ask(&mut files().answers([down()]).replies("chat", [again(), "ok".into()]), "clean up");
    assert!(broken.tool_calls.is_empty());
    assert!(tool_texts(&broken)[0].contains("could not be asked"), "{:?}", tool_texts(&broken));

    // If the run may not ask, the binding has decided: its tools are called as granted.
    let alone = ask(&mut files().replies("chat", [again(), "ok".into()]), "clean up");
    assert_eq!(alone.tool_calls.len(), 1);
}

#[test]
fn a_flood_of_destructive_calls_asks_no_more_than_is_called_at_once() {
    let flood = Reply::calls((0..40).map(|_| delete("a")));
    let mut host = files().answer(|_| false).replies("chat", [flood, "ok".into()]);
    let run = ask(&mut host, "clean up");
    assert_eq!(run.questions.len(), 32);
    assert!(run.tool_calls.is_empty());
    assert_eq!(tool_texts(&run).len(), 40);
    assert!(tool_texts(&run)[39].contains("at most 32"));
}

#[test]
fn the_model_asks_the_user() {
    let asks = Reply::calls([
        ("ask_user", json!({"question": "Which city?"})),
        ("ask_user", json!({"question": "Which day?", "choices": ["today", "tomorrow"]})),
        ("ask_user", json!({"question": "Why?"})),
        ("ask_user", json!({"question": "Sure?", "choices": []})),
    ]);
    let answers =
        [AnswerReply::from("Paris"), AnswerReply::from("today"), AnswerReply::declined("private"), AnswerReply::expired()];
    let mut host = TestHost::new().answers(answers).replies("chat", [asks, "Paris, today.".into()]);
    let run = ask(&mut host, "Book a table");
    assert_eq!(run.text(), "Paris, today.");
    let tool_results = tool_texts(&run);
    assert_eq!(tool_results, ["Paris", "today", "The user will not say: private", "The user did not answer. Go on without."]);
    assert!(run.questions[1].answer_schema.as_deref().unwrap().contains(r#"["today","tomorrow"]"#));

    // Without questions, the model is not offered the tool.
    let run = ask(&mut TestHost::new().replies("chat", ["Hello."]), "Hi");
    assert!(!run.last_request().tools.iter().any(|tool| tool.name == "ask_user"));
}

#[test]
fn messages_during_a_turn_join_the_next_one() {
    let step = || Reply::calls([("calc__add", json!({"a": 1, "b": 2}))]);
    let mut host = add(TestHost::new())
        .steering("in words, please")
        .steering_after_pulls(1, "and in French")
        .steering_after_pulls(2, "too late")
        .replies("chat", [step(), step(), "trois".into()]);
    let run = ask(&mut host, "1+2?");
    assert_eq!(run.text(), "trois");
    let last_messages: Vec<_> = run.requests.iter().map(|(_, request)| request.messages.last().unwrap().text()).collect();
    assert_eq!(last_messages, ["1+2?", "in words, please", "and in French"]);
    // The input follows the results of tools, as services require.
    let roles: Vec<_> = run.last_request().messages.iter().rev().take(3).map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Tool, Role::Assistant]);
    // Input after the last turn becomes a run of its own.
    assert_eq!(run.steering_left, ["too late"]);
}

#[test]
fn a_run_that_is_cancelled_while_it_asks_ends_as_cancelled() {
    let cancelled = || ApiError::new(ErrorCode::Cancelled, "by alice");
    for call in [delete("a"), ("ask_user", json!({"question": "?"}))] {
        let mut host = files().answers([cancelled()]).replies("chat", [Reply::calls([call])]);
        assert_eq!(ask(&mut host, "go").failure().code, "cancelled");
    }
}
