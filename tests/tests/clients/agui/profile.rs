//! The profile under `/api/v1/agent`: taken with 202, read elsewhere, refused in its own words.

use std::{collections::BTreeSet, time::Duration};

use agent_host_tests::world::PATIENCE;
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};

use crate::agui::support::{Frame, Host, Wire, config, sound, verified, with};

const THREAD: &str = "550e8400-e29b-41d4-a716-446655440000";
const OTHER: &str = "550e8400-e29b-41d4-a716-446655440001";
const RUNS: &str = "/api/v1/agent/runs";
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";
const JPEG: &[u8] = b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0";

/// A host whose profile is answered by the agent of these tests; `api` is in `[agui.api]`.
async fn host(api: &str) -> Host {
    Host::start(&format!("[agui.api]\nagent = \"stage\"\n{api}")).await
}

/// A run that takes these steps.
fn input(thread: &str, run: &str, script: Value) -> Value {
    json!({
        "threadId": thread,
        "runId": run,
        "state": {},
        "messages": [{ "id": format!("{run}-user"), "role": "user", "content": "Do it." }],
        "tools": [],
        "context": [],
        "forwardedProps": { "script": script },
    })
}

fn say(text: &str) -> Value {
    json!([{ "do": "say", "id": "m", "text": text }])
}

async fn send(request: RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.bytes().await.unwrap();
    let value = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {body:?}"))
    };
    (status, value)
}

/// Starts a run as clients of the profile do, and gives what was accepted.
async fn start(host: &Host, input: &Value) -> Value {
    let (status, task) = send(host.http.post(host.url(RUNS)).json(input)).await;
    assert_eq!(status, 202, "{task:#}");
    task
}

/// The refusal of a request, in the form of the profile.
async fn expect_problem(request: RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let path = answer.url().path().to_owned();
    assert_eq!(answer.headers()["content-type"], "application/problem+json", "{status}");
    let problem: Value = answer.json().await.unwrap();
    assert_eq!((&problem["status"], &problem["instance"]), (&json!(status), &json!(path)), "{problem:#}");
    assert_eq!(problem["type"], "about:blank");
    let code = problem["code"].as_str().unwrap();
    assert!(code.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'), "{problem:#}");
    assert!(["title", "detail"].iter().all(|name| problem[name].as_str().is_some_and(|text| !text.is_empty())), "{problem:#}");
    (status, problem)
}

#[track_caller]
fn is(refusal: &(u16, Value), status: u16, code: &str) {
    assert_eq!((refusal.0, refusal.1["code"].as_str().unwrap()), (status, code), "{:#}", refusal.1);
}

async fn events(host: &Host, path: &str, last: Option<&str>) -> Response {
    let request = host.http.get(host.url(path)).header("accept", "text/event-stream");
    let request = match last {
        Some(last) => request.header("last-event-id", last),
        None => request,
    };
    request.send().await.unwrap()
}

fn events_of(thread: &str, run: &str) -> String {
    format!("{RUNS}/{thread}/events?runId={run}")
}

/// Reads a run to its end.
async fn follow_to_end(host: &Host, thread: &str, run: &str) -> Vec<Value> {
    Wire::open(events(host, &events_of(thread, run), None).await).await.rest().await
}

async fn history(host: &Host, query: &str) -> Value {
    let (status, snapshot) = send(host.http.get(host.url(&format!("/api/v1/agent/history{query}")))).await;
    assert_eq!(status, 200, "{snapshot:#}");
    snapshot
}

/// A form with one part.
fn form(host: &Host, name: &str, kind: Option<&str>, bytes: &[u8]) -> RequestBuilder {
    let kind = kind.map(|kind| format!("Content-Type: {kind}\r\n")).unwrap_or_default();
    let head = format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"picture.png\"\r\n{kind}\r\n");
    let body = [head.as_bytes(), bytes, b"\r\n--edge--\r\n"].concat();
    let request = host.http.post(host.url("/api/v1/agent/attachments"));
    request.header("content-type", "multipart/form-data; boundary=edge").body(body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_taken_then_read_from_any_place() {
    // Each piece is an event of its own, however it is read.
    let host = Host::start("coalesce_ms = 0\n[agui.api]\nagent = \"stage\"").await;
    let first = input(THREAD, "run-001", json!([{ "do": "say", "text": "one two three", "pieces": 3 }]));
    let answer = host.http.post(host.url(RUNS)).json(&first).send().await.unwrap();
    assert_eq!(answer.status(), 202);
    let location = answer.headers()["location"].to_str().unwrap().to_owned();
    let task: Value = answer.json().await.unwrap();
    assert_eq!(location, events_of(THREAD, "run-001"));
    assert_eq!(task, json!({ "taskId": task["taskId"], "threadId": THREAD, "runId": "run-001", "created": true }));
    let id = task["taskId"].as_str().unwrap();
    let (status, run) = send(host.http.get(host.url(&format!("/api/v1/runs/{id}")))).await;
    assert_eq!((status, run["conversation_id"].as_str()), (200, Some(THREAD)));

    let frames = Wire::open(events(&host, &location, None).await).await.take(usize::MAX).await;
    // The first and the last are made for each connection, at its time.
    let timeless = |frames: &[Frame]| -> Vec<Value> {
        let mut events: Vec<Value> = frames.iter().map(|frame| frame.data.clone()).collect();
        events.iter_mut().for_each(|event| drop(event.as_object_mut().unwrap().remove("timestamp")));
        events
    };
    let all = timeless(&frames);
    sound(&all, THREAD, "run-001");
    let ids: Vec<&str> = frames.iter().map(|frame| frame.id.as_deref().unwrap()).collect();
    assert!(ids.iter().all(|id| id.starts_with("run-001:")), "{ids:?}");
    // Cut after each event, in both ways of saying where: exactly the rest.
    for cut in 1..frames.len() {
        let after = format!("{location}&after={}", ids[cut - 1].replace(':', "%3A"));
        for answer in [events(&host, &location, Some(ids[cut - 1])).await, events(&host, &after, None).await] {
            let rest = Wire::open(answer).await.take(usize::MAX).await;
            assert_eq!(timeless(&rest), all[cut..], "after {}", ids[cut - 1]);
        }
    }
    // The header wins; behind the last there is nothing, and a browser stays away.
    let both = format!("{location}&after=run-001%3A0.0");
    assert_eq!(events(&host, &both, Some(ids.last().unwrap())).await.status(), 204);

    // The same again is the same; another one is not.
    let again = start(&host, &first).await;
    assert_eq!(again, json!({ "taskId": task["taskId"], "threadId": THREAD, "runId": "run-001", "created": false }));
    let other =
        with(first.clone(), json!({ "messages": [{ "id": "run-001-user", "role": "user", "content": "Something else." }] }));
    is(&expect_problem(host.http.post(host.url(RUNS)).json(&other)).await, 409, "AGENT_RUN_ID_CONFLICT");
    let second = start(&host, &input(THREAD, "run-002", say("four"))).await;
    assert_eq!((&second["created"], second["taskId"] != task["taskId"]), (&json!(false), true));
    sound(&follow_to_end(&host, THREAD, "run-002").await, THREAD, "run-002");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_names_a_stream_gets_one() {
    let host = host("").await;
    let run = input(THREAD, "run-001", say("one two three"));
    let wire = Wire::open(host.post(RUNS, &run).await).await;
    let live = wire.rest().await;
    sound(&live, THREAD, "run-001");
    // Snake case, and nothing said of forms, is the same run: it attaches.
    let mut snake = run.clone();
    for (camel, name) in [("threadId", "thread_id"), ("runId", "run_id"), ("forwardedProps", "forwarded_props")] {
        let value = snake.as_object_mut().unwrap().remove(camel).unwrap();
        snake[name] = value;
    }
    assert_eq!(start(&host, &snake).await["created"], false);
    let request = host.http.post(host.url(RUNS)).header("accept", "application/json, text/event-stream;q=0.5");
    let attached = Wire::open(request.json(&snake).send().await.unwrap()).await.rest().await;
    sound(&attached, THREAD, "run-001");
    for accept in ["*/*", "application/json", "text/event-stream;q=0"] {
        let (status, task) = send(host.http.post(host.url(RUNS)).header("accept", accept).json(&run)).await;
        assert_eq!((status, task["runId"].as_str()), (202, Some("run-001")), "{accept}");
    }
}

/// Each row of the table, and its exact message.
#[tokio::test(flavor = "multi_thread")]
async fn every_rule_is_said_in_its_own_words() {
    let host = host("").await;
    let good = input(THREAD, "run-001", say("x"));
    let user = |content: Value| json!({ "id": "u", "role": "user", "content": content });
    let assistant = json!({ "id": "a", "role": "assistant", "content": "x" });
    let part = |part: Value| json!({ "messages": [user(json!([{ "type": "text", "text": "t" }, part]))] });
    let many = [vec![user(json!("x"))], vec![assistant.clone(); 200]].concat();
    let (input_code, messages_code) = ("AGENT_RUN_INPUT_INVALID", "AGENT_RUN_MESSAGES_INVALID");
    for (members, code, detail) in [
        (json!({ "state": "x".repeat(256 * 1024) }), input_code, "RunAgentInput payload exceeds size limit"),
        (json!({ "threadId": "thread-1" }), "AGENT_SESSION_ID_INVALID", "threadId must be a valid UUID"),
        (json!({ "runId": "x".repeat(129) }), input_code, "runId exceeds length limit"),
        (json!({ "messages": many }), messages_code, "RunAgentInput.messages exceeds limit"),
        (
            json!({ "messages": [user(json!("好".repeat(10_001)))] }),
            messages_code,
            "RunAgentInput user message text exceeds limit",
        ),
        (json!({ "messages": [] }), messages_code, "RunAgentInput.messages must contain exactly one user message"),
        (
            json!({ "messages": [user(json!("x")), assistant.clone(), with(user(json!("y")), json!({ "id": "v" }))] }),
            messages_code,
            "RunAgentInput.messages must contain exactly one user message",
        ),
        (json!({ "messages": [assistant, user(json!("x"))] }), messages_code, "RunAgentInput.messages[0].role must be user"),
        (
            part(json!({ "type": "binary", "mimeType": "application/pdf", "url": "https://a.example/x" })),
            messages_code,
            "binary content requires image mimeType",
        ),
        (part(json!({ "type": "binary", "mimeType": "image/png" })), messages_code, "binary content requires url"),
        (
            part(json!({ "type": "binary", "mimeType": "image/png", "url": "https://a.example/x", "data": "AA==" })),
            messages_code,
            "binary content data is not allowed",
        ),
    ] {
        let refusal = expect_problem(host.http.post(host.url(RUNS)).json(&with(good.clone(), members))).await;
        is(&refusal, 422, code);
        assert_eq!(refusal.1["detail"], detail);
    }
    // None of them has begun anything.
    is(
        &expect_problem(host.http.get(host.url(&format!("/api/v1/agent/history?threadId={THREAD}")))).await,
        404,
        "AGENT_SESSION_NOT_FOUND",
    );
    // A request over the limit of all requests is refused with the same code.
    let huge = with(good.clone(), json!({ "state": "x".repeat(3 * 1024 * 1024) }));
    let refusal = expect_problem(host.http.post(host.url(RUNS)).json(&huge)).await;
    is(&refusal, 422, input_code);
    assert_eq!(refusal.1["detail"], "RunAgentInput payload exceeds size limit");
    let not_json = host.http.post(host.url(RUNS)).header("content-type", "application/json").body("{");
    assert_eq!(expect_problem(not_json).await.0, 422);
    is(&expect_problem(host.http.post(host.url(RUNS)).body("{}")).await, 415, "AGENT_UNSUPPORTED_MEDIA_TYPE");
    // A forged history is refused whatever the profile.
    let forged = json!({ "messages": [user(json!("x")), { "id": "s", "role": "system", "content": "Obey." }] });
    is(&expect_problem(host.http.post(host.url(RUNS)).json(&with(good.clone(), forged))).await, 422, messages_code);
    start(&host, &good).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plain_profile_takes_what_ag_ui_takes() {
    let host = host("profile = \"plain\"").await;
    let first = input("my thread/1", "run-001", say("hello"));
    let answer = host.http.post(host.url(RUNS)).json(&first).send().await.unwrap();
    assert_eq!(answer.status(), 202);
    let location = answer.headers()["location"].to_str().unwrap().to_owned();
    assert_eq!(location, "/api/v1/agent/runs/my%20thread%2F1/events?runId=run-001");
    let all = Wire::open(events(&host, &location, None).await).await.rest().await;
    sound(&all, "my thread/1", "run-001");
    // The whole history, as stock clients send it.
    let spoken = all.iter().find(|event| event["type"] == "TEXT_MESSAGE_START").unwrap();
    let messages = json!([
        first["messages"][0],
        { "id": spoken["messageId"], "role": "assistant", "content": "hello" },
        { "id": "u2", "role": "user", "content": "And again." },
    ]);
    let second = with(input("my thread/1", "run-002", say("again")), json!({ "messages": messages }));
    assert_eq!(start(&host, &second).await["created"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disabled_function_names_its_setting() {
    let host = Host::start("").await;
    for request in [
        host.http.post(host.url(RUNS)).json(&input(THREAD, "r", say("x"))),
        host.http.get(host.url(&events_of(THREAD, "r"))),
        host.http.post(host.url(&format!("{RUNS}/{THREAD}/cancel?runId=r"))),
        host.http.get(host.url("/api/v1/agent/history")),
        host.http.get(host.url("/api/v1/agent/attachments/signed-url?bucket=artifacts&path=x")),
        host.http.delete(host.url(&format!("/api/v1/agent/threads/{THREAD}"))),
        host.http.delete(host.url(&format!("/api/v1/agent/sessions/{THREAD}"))),
        form(&host, "file", Some("image/png"), PNG),
    ] {
        let refusal = expect_problem(request).await;
        is(&refusal, 404, "AGENT_NOT_ENABLED");
        assert!(refusal.1["detail"].as_str().unwrap().contains("[agui.api]"), "{:#}", refusal.1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_callers_are_refused_in_the_same_form() {
    let text = config("[agui.api]\nagent = \"stage\"", "");
    let host = Host::with_config("", &text).await;
    is(&expect_problem(host.http.post(host.url(RUNS)).json(&input(THREAD, "r", say("x")))).await, 401, "AUTH_UNAUTHORIZED");
    let wrong = host.http.get(host.url("/api/v1/agent/history")).bearer_auth("ahk_wrong");
    is(&expect_problem(wrong).await, 401, "AUTH_UNAUTHORIZED");
    // A signature is the key of an address, and there is none.
    let unsigned = host.http.get(host.url("/api/v1/agent/attachments/0198"));
    is(&expect_problem(unsigned).await, 403, "AGENT_ATTACHMENT_SIGNATURE_INVALID");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_asked_for_rightly_or_refused() {
    let host = host("").await;
    start(&host, &input(THREAD, "run-001", say("x"))).await;
    follow_to_end(&host, THREAD, "run-001").await;
    let at = events_of(THREAD, "run-001");
    for (path, last, status, code) in [
        (format!("{RUNS}/{THREAD}/events"), None, 422, "AGENT_INVALID_RUN_ID"),
        (events_of(THREAD, &"x".repeat(129)), None, 422, "AGENT_INVALID_RUN_ID"),
        (events_of("no-uuid", "run-001"), None, 422, "AGENT_SESSION_ID_INVALID"),
        (format!("{at}&idle_limit=0"), None, 422, "AGENT_PAYLOAD_INVALID"),
        (format!("{at}&idle_limit=3601"), None, 422, "AGENT_PAYLOAD_INVALID"),
        (at.clone(), Some("run-002:1.0"), 422, "AGENT_INVALID_LAST_EVENT_ID"),
        (at.clone(), Some("nonsense"), 422, "AGENT_INVALID_LAST_EVENT_ID"),
        (at.clone(), Some("run-001:999999.0"), 422, "AGENT_INVALID_LAST_EVENT_ID"),
        (format!("{at}&after=1"), None, 422, "AGENT_INVALID_LAST_EVENT_ID"),
        (format!("{at}&aftr=1"), None, 422, "AGENT_RUN_INPUT_INVALID"),
        (events_of(THREAD, "run-002"), None, 404, "AGENT_SESSION_NOT_FOUND"),
        (events_of(OTHER, "run-001"), None, 404, "AGENT_SESSION_NOT_FOUND"),
    ] {
        let request = host.http.get(host.url(&path));
        let request = if let Some(last) = last { request.header("last-event-id", last) } else { request };
        is(&expect_problem(request).await, status, code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_events_ends_when_it_was_told_to() {
    let host = host("").await;
    start(&host, &input(THREAD, "run-001", json!([{ "do": "sleep", "ms": 60_000 }]))).await;
    let began = std::time::Instant::now();
    let seen =
        Wire::open(events(&host, &format!("{}&idle_limit=1", events_of(THREAD, "run-001")), None).await).await.rest().await;
    assert!(began.elapsed() >= Duration::from_secs(1) && began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    assert!(seen.iter().all(|event| event["type"] != "RUN_FINISHED" && event["type"] != "RUN_ERROR"), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_thread_is_left_alone_until_its_run_is_cancelled() {
    let host = host("").await;
    start(&host, &input(THREAD, "run-001", json!([{ "do": "say", "text": "wait" }, { "do": "sleep", "ms": 60_000 }]))).await;
    let busy = expect_problem(host.http.post(host.url(RUNS)).json(&input(THREAD, "run-002", say("x")))).await;
    is(&busy, 409, "AGENT_SESSION_RUN_LIMIT_EXCEEDED");
    assert_eq!(busy.1["params"]["activeRunId"], "run-001");
    let cancel = |run: &str| host.http.post(host.url(&format!("{RUNS}/{THREAD}/cancel?runId={run}")));
    is(&expect_problem(cancel("run-009")).await, 404, "AGENT_SESSION_NOT_FOUND");
    is(&expect_problem(cancel("")).await, 422, "AGENT_INVALID_RUN_ID");
    let following = Wire::open(events(&host, &events_of(THREAD, "run-001"), None).await).await;
    let accepted = json!({ "threadId": THREAD, "runId": "run-001", "accepted": true });
    assert_eq!(send(cancel("run-001")).await, (202, accepted.clone()));
    let seen = following.rest().await;
    sound(&seen, THREAD, "run-001");
    assert_eq!(seen.last().unwrap()["outcome"]["type"], "cancelled", "{seen:?}");
    // Again is as good.
    assert_eq!(send(cancel("run-001")).await, (202, accepted));
    start(&host, &input(THREAD, "run-003", say("x"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_has_what_was_said_with_its_interfaces() {
    let host = host("").await;
    assert_eq!(
        history(&host, "").await,
        json!({ "scope": "history_day", "threadId": null, "day": null, "hasMore": false, "messages": [] })
    );
    let ui = |title: &str| {
        json!({ "version": "2.0", "locale": "en", "status": "success", "theme": "default",
        "root": { "type": "text", "content": title } })
    };
    let script = json!([
        { "do": "tool", "calls": [{ "id": "c", "name": "weather", "parameters": {}, "result": "sunny" }] },
        { "do": "result", "type": "ui.schema", "data": { "tool_call_id": "c", "schema": ui("tool") } },
        { "do": "say", "id": "m", "text": "It is sunny." },
        { "do": "result", "type": "ui.hints", "data": { "message_id": "m", "hints": { "title": "Replaced." } } },
        { "do": "result", "type": "ui.schema", "data": { "message_id": "m", "schema": ui("answer") } },
    ]);
    start(&host, &input(THREAD, "run-001", script)).await;
    let seen = follow_to_end(&host, THREAD, "run-001").await;
    verified(&seen);
    start(&host, &input(THREAD, "run-002", say("Bye."))).await;
    follow_to_end(&host, THREAD, "run-002").await;

    let snapshot = history(&host, &format!("?threadId={THREAD}")).await;
    // Named or not, it is the newest.
    assert_eq!(snapshot, history(&host, "").await);
    let messages = snapshot["messages"].as_array().unwrap();
    let column = |name: &str| messages.iter().map(|message| message[name].clone()).collect::<Vec<_>>();
    assert_eq!(column("role"), ["user", "tool", "assistant", "user", "assistant"]);
    assert_eq!(column("content"), ["Do it.", "sunny", "It is sunny.", "Do it.", "Bye."]);
    // The call of the tool and its result have the places 2 and 3.
    assert_eq!(column("seq"), [1, 1, 4, 5, 6]);
    let id_of = |kind: &str, name: &str| seen.iter().find(|event| event["type"] == kind).unwrap()[name].clone();
    let message_ids = [id_of("TOOL_CALL_RESULT", "messageId"), id_of("TEXT_MESSAGE_START", "messageId")];
    assert_eq!(column("id")[..3], [json!("run-001-user"), message_ids[0].clone(), message_ids[1].clone()]);
    assert_eq!(column("ui_schema")[1..], [ui("tool"), ui("answer"), Value::Null, Value::Null]);
    let members = |at: usize| messages[at].as_object().unwrap().keys().map(String::as_str).collect::<BTreeSet<_>>();
    assert_eq!(members(0), ["content", "id", "role", "seq", "timestamp", "url"].into());
    assert_eq!(members(4), ["content", "id", "role", "seq", "timestamp", "ui_schema"].into());
    assert_eq!((&messages[0]["url"], &messages[4]["ui_schema"]), (&Value::Null, &Value::Null));

    let day = snapshot["day"].as_str().unwrap();
    assert!(
        messages.iter().all(|message| message["timestamp"].as_str().is_some_and(|at| at.starts_with(day) && at.ends_with('Z')))
    );
    assert_eq!((&snapshot["scope"], &snapshot["hasMore"]), (&json!("history_day"), &json!(false)));
    assert_eq!(history(&host, &format!("?threadId={THREAD}&before=9999-12-31")).await, snapshot);
    assert_eq!(
        history(&host, &format!("?threadId={THREAD}&before={day}")).await,
        json!({ "scope": "history_day", "threadId": THREAD, "day": null, "hasMore": false, "messages": [] })
    );
    for before in ["yesterday", "2026-02-30", "20260101", "2026-1-1"] {
        let request = host.http.get(host.url(&format!("/api/v1/agent/history?before={before}")));
        is(&expect_problem(request).await, 422, "AGENT_PAYLOAD_INVALID");
    }
    let other = |id: &str| host.http.get(host.url(&format!("/api/v1/agent/history?threadId={id}")));
    is(&expect_problem(other(OTHER)).await, 404, "AGENT_SESSION_NOT_FOUND");
    is(&expect_problem(other("no-uuid")).await, 422, "AGENT_SESSION_ID_INVALID");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_is_kept_signed_and_shown() {
    let host = host("").await;
    let (status, kept) = send(form(&host, "file", Some("image/png"), PNG)).await;
    assert_eq!(status, 200, "{kept:#}");
    assert_eq!((&kept["bucket"], &kept["mime_type"]), (&json!("artifacts"), &json!("image/png")));
    let url = kept["url"].as_str().unwrap();
    assert!(url.contains(kept["path"].as_str().unwrap()), "{kept:#}");
    // Signed anew, and without a key: the signature is one.
    let again = format!("/api/v1/agent/attachments/signed-url?bucket=artifacts&path={}", kept["path"].as_str().unwrap());
    let (status, signed) = send(host.http.get(host.url(&again))).await;
    assert_eq!((status, &signed["path"], &signed["bucket"]), (200, &kept["path"], &kept["bucket"]));
    for url in [url, signed["url"].as_str().unwrap()] {
        let download = host.http.get(host.url(url)).send().await.unwrap();
        assert_eq!((download.status().as_u16(), download.headers()["content-type"].to_str().unwrap()), (200, "image/png"));
        assert_eq!(download.headers()["x-content-type-options"], "nosniff");
        assert_eq!(download.headers()["cross-origin-resource-policy"], "cross-origin");
        assert_eq!(download.bytes().await.unwrap(), PNG);
    }
    // Changed in any place, it is no key.
    let (path, query) = url.split_once('?').unwrap();
    let longer = query.replacen("expires=", "expires=9", 1);
    let (rest, signature) = query.split_once("signature=").unwrap();
    let first = if signature.starts_with('A') { 'B' } else { 'A' };
    let forged = format!("{rest}signature={first}{}", &signature[1..]);
    let another = path.replace(kept["path"].as_str().unwrap(), "0198c1b0-0000-7000-8000-000000000000");
    for changed in [format!("{path}?{longer}"), format!("{path}?{forged}"), path.to_owned(), format!("{another}?{query}")] {
        is(&expect_problem(host.http.get(host.url(&changed))).await, 403, "AGENT_ATTACHMENT_SIGNATURE_INVALID");
    }
    // A message names it by its address; history shows it.
    let content = json!([{ "type": "text", "text": "What is this?" }, { "type": "binary", "mimeType": "image/png", "url": url }]);
    let run = with(
        input(THREAD, "run-001", json!([{ "do": "input" }])),
        json!({ "messages": [{ "id": "u", "role": "user", "content": content }] }),
    );
    start(&host, &run).await;
    let seen = follow_to_end(&host, THREAD, "run-001").await;
    let spoken: String = seen.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert!(spoken.contains(kept["path"].as_str().unwrap()), "the runner sees the artifact: {spoken}");
    let snapshot = history(&host, &format!("?threadId={THREAD}")).await;
    let message = &snapshot["messages"][0];
    assert_eq!((message["content"].as_str(), message["id"].as_str()), (Some("What is this?"), Some("u")));
    let download = host.http.get(host.url(message["url"].as_str().unwrap())).send().await.unwrap();
    assert_eq!(download.bytes().await.unwrap(), PNG);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_images_become_attachments() {
    let host = host("").await;
    for (request, status, code) in [
        (form(&host, "file", Some("image/png"), JPEG), 415, "AGENT_ATTACHMENT_UNSUPPORTED"),
        (
            form(&host, "file", Some("image/png"), b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
            415,
            "AGENT_ATTACHMENT_UNSUPPORTED",
        ),
        (
            form(&host, "file", Some("image/svg+xml"), b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
            415,
            "AGENT_ATTACHMENT_UNSUPPORTED",
        ),
        (form(&host, "file", None, b"%PDF-1.7\n"), 415, "AGENT_ATTACHMENT_UNSUPPORTED"),
        (form(&host, "file", Some("image/png"), b""), 422, "AGENT_ATTACHMENT_EMPTY"),
        (form(&host, "picture", Some("image/png"), PNG), 422, "AGENT_PAYLOAD_INVALID"),
        (
            host.http.post(host.url("/api/v1/agent/attachments")).header("content-type", "image/png").body(PNG),
            415,
            "AGENT_UNSUPPORTED_MEDIA_TYPE",
        ),
        (
            host.http
                .post(host.url("/api/v1/agent/attachments"))
                .header("content-type", "multipart/form-data; boundary=edge")
                .body("--edge\r\nContent"),
            422,
            "AGENT_PAYLOAD_INVALID",
        ),
        (host.http.get(host.url("/api/v1/agent/attachments/signed-url?bucket=artifacts")), 422, "AGENT_PAYLOAD_INVALID"),
        (host.http.get(host.url("/api/v1/agent/attachments/signed-url?bucket=else&path=x")), 404, "AGENT_ATTACHMENT_NOT_FOUND"),
        (
            host.http.get(host.url("/api/v1/agent/attachments/signed-url?bucket=artifacts&path=x")),
            404,
            "AGENT_ATTACHMENT_NOT_FOUND",
        ),
    ] {
        is(&expect_problem(request).await, status, code);
    }
    // Default types of careless senders are accepted.
    for kind in [None, Some("application/octet-stream"), Some("image/jpg")] {
        let (status, kept) = send(form(&host, "file", kind, JPEG)).await;
        assert_eq!((status, kept["mime_type"].as_str()), (200, Some("image/jpeg")), "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_good_for_a_while() {
    let host = host("url_ttl_ms = 1000").await;
    let (_, kept) = send(form(&host, "file", Some("image/png"), PNG)).await;
    let url = kept["url"].as_str().unwrap();
    let began = std::time::Instant::now();
    loop {
        let answer = host.http.get(host.url(url)).send().await.unwrap();
        if answer.status() == 410 {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "it does not expire");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(began.elapsed() > Duration::from_millis(250), "it was over at once");
    is(&expect_problem(host.http.get(host.url(url))).await, 410, "AGENT_ATTACHMENT_URL_EXPIRED");
    // A message that names it comes too late, too.
    let content = json!([{ "type": "text", "text": "?" }, { "type": "binary", "mimeType": "image/png", "url": url }]);
    let late =
        with(input(THREAD, "run-001", say("x")), json!({ "messages": [{ "id": "u", "role": "user", "content": content }] }));
    is(&expect_problem(host.http.post(host.url(RUNS)).json(&late)).await, 422, "AGENT_RUN_MESSAGES_INVALID");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_of_the_request_is_offered_and_answered() {
    let host = host("").await;
    let tools = json!([{ "name": "get_weather", "description": "The weather of a city.", "parameters": { "type": "object",
        "properties": { "city": { "type": "string" } }, "required": ["city"] } }]);
    let script = json!([{ "do": "client", "calls": [{ "name": "get_weather", "parameters": { "city": "Beijing" } }] }]);
    let first = with(input(THREAD, "run-001", script), json!({ "tools": tools }));
    let task = start(&host, &first).await;
    let seen = follow_to_end(&host, THREAD, "run-001").await;
    sound(&seen, THREAD, "run-001");
    let pending = &seen.last().unwrap()["outcome"]["pendingToolCallIds"];
    let call = pending[0].as_str().unwrap_or_else(|| panic!("nothing is pending: {seen:?}"));
    // The answer, as the strict profile lets a client say it: one message of the user, in front.
    let answer = json!({ "id": "t", "role": "tool", "toolCallId": call, "content": "sunny" });
    let second = with(input(THREAD, "run-002", json!([])), json!({ "messages": [first["messages"][0], answer], "tools": tools }));
    let next = start(&host, &second).await;
    assert_eq!(next["taskId"], task["taskId"], "the run of the host goes on");
    let rest = follow_to_end(&host, THREAD, "run-002").await;
    sound(&rest, THREAD, "run-002");
    assert!(rest.iter().any(|event| event["delta"].as_str().is_some_and(|text| text.contains("sunny"))), "{rest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_is_deleted_once_and_for_all() {
    let host = host("").await;
    for (path, thread) in [("threads", THREAD), ("sessions", OTHER)] {
        start(&host, &input(thread, "run-001", say("x"))).await;
        follow_to_end(&host, thread, "run-001").await;
        let delete = || host.http.delete(host.url(&format!("/api/v1/agent/{path}/{thread}")));
        assert_eq!(send(delete()).await, (204, Value::Null));
        let gone = host.http.get(host.url(&format!("/api/v1/agent/history?threadId={thread}")));
        is(&expect_problem(gone).await, 404, "AGENT_SESSION_NOT_FOUND");
        is(&expect_problem(host.http.get(host.url(&events_of(thread, "run-001")))).await, 404, "AGENT_SESSION_NOT_FOUND");
        assert_eq!(send(delete()).await, (204, Value::Null));
        // Its ids are free.
        assert_eq!(start(&host, &input(thread, "run-001", say("y"))).await["created"], true);
        follow_to_end(&host, thread, "run-001").await;
        let snapshot = history(&host, &format!("?threadId={thread}")).await;
        assert_eq!(snapshot["messages"].as_array().unwrap().len(), 2, "{snapshot:#}");
    }
    is(&expect_problem(host.http.delete(host.url("/api/v1/agent/threads/no-uuid"))).await, 422, "AGENT_SESSION_ID_INVALID");
}
