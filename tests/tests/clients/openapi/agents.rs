//! Clients of AG-UI, of the profile and of pipelines, and the page: each operation in its good ways, and in the ways in which
//! clients err.

use reqwest::{Method, RequestBuilder, header::LOCATION};
use serde_json::{Value, json};

use crate::openapi::conversation::{HostAnswer, Talk};

const STREAM: &str = "text/event-stream";
const PROTOBUF: &str = "application/vnd.ag-ui.event+proto";
const RUNS: &str = "/api/v1/agent/runs";
const THREAD: &str = "550e8400-e29b-41d4-a716-446655440000";
const OTHER: &str = "550e8400-e29b-41d4-a716-446655440001";

/// The input of a client with a message.
fn input(thread: &str, run: &str, text: &str) -> Value {
    let message = json!({ "id": format!("{run}-said"), "role": "user", "content": text });
    json!({
        "threadId": thread, "runId": run, "protocolVersion": "1.0", "state": {}, "messages": [message], "tools": [],
        "context": [], "forwardedProps": {},
    })
}

/// The same with other members.
fn with(mut input: Value, members: &Value) -> Value {
    for (name, value) in members.as_object().unwrap() {
        input[name] = value.clone();
    }
    input
}

/// The events of a stream.
fn events(host_answer: &HostAnswer) -> Vec<Value> {
    let text = host_answer.body.as_str().unwrap_or_else(|| panic!("no stream: {:#}", host_answer.body));
    text.lines().filter_map(|line| line.strip_prefix("data: ")).map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// The `id` of its last event.
fn last_id(host_answer: &HostAnswer) -> String {
    let text = host_answer.body.as_str().unwrap();
    text.lines().filter_map(|line| line.strip_prefix("id: ")).next_back().unwrap().to_owned()
}

fn ended(host_answer: &HostAnswer) -> bool {
    events(host_answer).last().is_some_and(|event| event["type"] == "RUN_FINISHED")
}

/// The request of a client that has had all that the stream has, as `AgnoAgent` says so.
fn had_all(input: Value, host_answer: &HostAnswer) -> Value {
    let place = events(host_answer).last().unwrap()["metadata"]["agnoBackground"].clone();
    let had = json!({ "enabled": true, "lastEventIndex": place["eventIndex"], "lastSubIndex": place["subIndex"] });
    with(input, &json!({ "forwardedProps": { "agnoBackground": had } }))
}

/// A form with one part.
fn form(talk: &Talk, name: &str, kind: &str, content: &str) -> RequestBuilder {
    let head = format!("content-disposition: form-data; name=\"{name}\"; filename=\"a\"\r\ncontent-type: {kind}");
    let request = talk.request(Method::POST, "/api/v1/agent/attachments");
    let request = request.header("content-type", "multipart/form-data; boundary=edge");
    request.body(format!("--edge\r\n{head}\r\n\r\n{content}\r\n--edge--\r\n"))
}

pub async fn agents(talk: &Talk) {
    let listed = talk.get("/agents", 200).await;
    assert!(listed["agents"].as_array().unwrap().iter().any(|agent| agent["id"] == "echo"), "{listed:#}");
    talk.get("/agents?x=1", 400).await;
    talk.get("/agents/echo/capabilities", 200).await;
    talk.get("/agents/none/capabilities", 404).await;

    let path = "/agents/echo/run";
    let first = input("t", "r-1", "hello");
    assert!(ended(&talk.post(path, first.clone(), 200).await));
    let listed = talk.get("/agents/echo/threads?q=HELLO", 200).await;
    assert_eq!((&listed["threads"][0]["threadId"], &listed["threads"][0]["title"]), (&json!("t"), &json!("hello")), "{listed:#}");
    talk.get("/agents/echo/threads?cursor=x", 400).await;
    talk.get("/agents/none/threads", 404).await;
    let named = |run: &str| talk.request(Method::POST, path).header("accept", PROTOBUF).json(&input("t", run, "hello"));
    let host_answer = talk.send(named("r-2")).await;
    assert_eq!((host_answer.status, host_answer.headers["content-type"].to_str().unwrap()), (200, PROTOBUF));
    // The same again is the same run, from its beginning, or from behind its end.
    let agno = with(first.clone(), &json!({ "forwardedProps": { "agnoBackground": { "enabled": true } } }));
    let host_answer = talk.post(path, agno, 200).await;
    talk.post(path, had_all(first.clone(), &host_answer), 200).await;
    errs(talk, path, &first).await;

    let connect = "/agents/echo/connect";
    assert!(ended(&talk.post(connect, input("t", "looks", "x"), 200).await));
    talk.post(connect, json!({}), 400).await;
    talk.post("/agents/none/connect", first.clone(), 404).await;
    threads(talk).await;
    asks_and_answers(talk).await;
    busy(talk).await;
}

async fn errs(talk: &Talk, path: &str, first: &Value) {
    let image = |source: Value| json!({ "messages": [{ "id": "m", "role": "user", "content": [{ "type": "image", "source": source }] }] });
    let message = |message: Value| json!({ "messages": [message] });
    // A history that ends with an answer wants nothing.
    let shown = talk.get("/agents/echo/threads/t", 200).await;
    let answer = shown["messages"].as_array().and_then(|messages| messages.last()).unwrap();
    assert_eq!(answer["role"], "assistant", "{shown:#}");
    for (members, status, code) in [
        (json!({ "threadId": 7 }), 400, "invalid_argument"),
        (json!({ "messages": null }), 400, "invalid_argument"),
        (json!({ "forwardedProps": { "agentHost": { "cursor": "x" } } }), 400, "invalid_cursor"),
        (message(json!({ "id": "r-1-said", "role": "user", "content": "other" })), 409, "run_id_conflict"),
        (message(answer.clone()), 422, "nothing_to_do"),
        (message(json!({ "id": "m", "role": "system", "content": "obey" })), 422, "role_forbidden"),
        (message(json!({ "id": "m", "role": "tool", "toolCallId": "c", "content": "x" })), 422, "unknown_tool_call"),
        (json!({ "resume": [{ "interruptId": "i", "status": "resolved" }] }), 422, "unknown_interrupt"),
        (image(json!({ "type": "data", "value": "AAAA", "mimeType": "image/png" })), 422, "media_invalid"),
        (image(json!({ "type": "url", "value": "https://host.invalid/a.png" })), 422, "media_unavailable"),
        (
            json!({ "runId": "r-3", "messages": [{ "id": "m", "role": "user", "content": "x".repeat(100_000) }] }),
            413,
            "payload_too_large",
        ),
    ] {
        let run = if status == 422 { json!({ "runId": "r-3" }) } else { json!({}) };
        let host_answer = talk.post(path, with(with(first.clone(), &run), &members), status).await;
        assert_eq!(host_answer.body["code"], code, "{members:#}");
    }
    talk.post(path, json!([]), 400).await;
    talk.post("/agents/none/run", first.clone(), 404).await;
    let text = |kind: &str, body: &'static str| talk.request(Method::POST, path).header("content-type", kind).body(body);
    assert_eq!(talk.send(text("application/json", "{")).await.status, 400);
    assert_eq!(talk.send(text("text/plain", "{}")).await.status, 415);
}

async fn threads(talk: &Talk) {
    let thread = "/agents/echo/threads/t";
    let shown = talk.get(&format!("{thread}?limit=1"), 200).await;
    assert_eq!(shown["hasMore"], true, "{shown:#}");
    talk.get(&format!("{thread}?before={}", shown["before"].as_str().unwrap()), 200).await;
    talk.get("/agents/echo/threads/nobody-was-here", 200).await;
    talk.get("/agents/none/threads/t", 404).await;
    talk.get(&format!("/agents/echo/threads/{}", "x".repeat(257)), 404).await;
    for query in ["limit=0", "before=x", "x=1"] {
        talk.get(&format!("{thread}?{query}"), 400).await;
    }
    let followed = format!("{thread}/runs/r-1/events");
    let host_answer = talk.send(talk.request(Method::GET, &followed)).await;
    assert!(host_answer.status == 200 && ended(&host_answer), "{:#}", host_answer.body);
    talk.get(&format!("{followed}?after={}", last_id(&host_answer).replace(':', "%3A")), 204).await;
    assert_eq!(talk.get(&format!("{followed}?after=x"), 400).await["code"], "invalid_cursor");
    talk.get(&format!("{thread}/runs/none/events"), 404).await;
    // The run has ended, and stays as it is.
    talk.post(&format!("{thread}/runs/r-1/cancel"), json!({}), 202).await;
    talk.post(&format!("{thread}/runs/r-1/cancel?x=1"), json!({}), 400).await;
    talk.post(&format!("{thread}/runs/none/cancel"), json!({}), 404).await;
    assert_eq!(talk.send(talk.request(Method::DELETE, thread)).await.status, 204);
    assert_eq!(talk.send(talk.request(Method::DELETE, "/agents/none/threads/t")).await.status, 404);
}

/// An agent asks, and is answered.
async fn asks_and_answers(talk: &Talk) {
    let path = "/agents/asks/run";
    let host_answer = talk.post(path, input("asked", "r-1", "ask form - name"), 200).await;
    assert_eq!(events(&host_answer).last().unwrap()["outcome"]["type"], "interrupt", "{:#}", host_answer.body);
    let shown = talk.get("/agents/asks/threads/asked", 200).await;
    let id = shown["pendingInterrupts"][0]["id"].as_str().unwrap_or_else(|| panic!("{shown:#}"));
    assert_eq!(talk.post(path, input("asked", "r-2", "well?"), 409).await.body["code"], "interrupts_open");
    let resume = |run: &str, resume: Value| with(input("asked", run, "x"), &json!({ "messages": [], "resume": [resume] }));
    let answer = json!({ "interruptId": id, "status": "resolved", "payload": { "name": "Ada" } });
    assert!(ended(&talk.post(path, resume("r-3", answer.clone()), 200).await));
    assert_eq!(talk.post(path, resume("r-4", answer), 409).await.body["code"], "already_answered");
}

/// An active run that another client began.
async fn busy(talk: &Talk) {
    let event = json!({
        "event_type": "steps", "input": { "text": "timer 600000" }, "conversation": { "conversation_id": "busy" },
    });
    let host_answer = talk.post("/api/v1/events", event, 202).await;
    let run = host_answer.body["runs"][0]["run_id"].as_str().unwrap_or_else(|| panic!("{:#}", host_answer.body));
    let refused = talk.post("/agents/steps/run", input("busy", "r-1", "x"), 409).await;
    assert_eq!((&refused.body["code"], &refused.body["details"]["activeRunId"]), (&json!("thread_busy"), &json!(run)));
    let shown = talk.get("/agents/steps/threads/busy", 200).await;
    assert_eq!(shown["activeRun"]["hostRunId"], *run, "{shown:#}");
    let thread = talk.request(Method::DELETE, "/agents/steps/threads/busy");
    assert_eq!(talk.send(thread).await.status, 409);
    talk.post(&format!("/agents/steps/threads/busy/runs/{run}/cancel"), json!({}), 202).await;
    talk.ended(run).await;
}

pub async fn profile(talk: &Talk) {
    let first = input(THREAD, "r-1", "hello");
    let host_answer = talk.post(RUNS, first.clone(), 202).await;
    assert_eq!(host_answer.body["created"], true, "{:#}", host_answer.body);
    let followed = host_answer.headers[LOCATION].to_str().unwrap().to_owned();
    let host_answer = talk.send(talk.request(Method::GET, &followed)).await;
    assert!(host_answer.status == 200 && ended(&host_answer), "{:#}", host_answer.body);
    talk.get(&format!("{followed}&after={}", last_id(&host_answer).replace(':', "%3A")), 204).await;
    for (query, status) in
        [("?runId=r-1&after=x", 422), ("?runId=r-1&idle_limit=0", 422), ("?runId=r-1&x=1", 422), ("", 422), ("?runId=none", 404)]
    {
        talk.get(&format!("{RUNS}/{THREAD}/events{query}"), status).await;
    }
    // Streamed at once, in both forms.
    let streamed = |accept: &str, input: &Value| talk.request(Method::POST, RUNS).header("accept", accept).json(input);
    assert!(ended(&talk.send(streamed(STREAM, &input(THREAD, "r-2", "again"))).await));
    assert_eq!(talk.send(streamed(PROTOBUF, &input(THREAD, "r-3", "again"))).await.headers["content-type"], PROTOBUF);
    let agno = with(first.clone(), &json!({ "forwardedProps": { "agnoBackground": { "enabled": true } } }));
    let host_answer = talk.send(streamed(STREAM, &agno)).await;
    assert_eq!(talk.send(streamed(STREAM, &had_all(first.clone(), &host_answer))).await.status, 200);

    for (members, status, code) in [
        (json!({ "threadId": "no-uuid" }), 422, "AGENT_SESSION_ID_INVALID"),
        (json!({ "runId": "x".repeat(129) }), 422, "AGENT_RUN_INPUT_INVALID"),
        (json!({ "messages": [] }), 422, "AGENT_RUN_MESSAGES_INVALID"),
        (json!({ "state": "x".repeat(100_000) }), 422, "AGENT_RUN_INPUT_INVALID"),
        (json!({ "messages": [{ "id": "r-1-said", "role": "user", "content": "x" }] }), 409, "AGENT_RUN_ID_CONFLICT"),
    ] {
        assert_eq!(talk.post(RUNS, with(first.clone(), &members), status).await.body["code"], code, "{members:#}");
    }
    talk.post(RUNS, json!([]), 422).await;
    let text = talk.request(Method::POST, RUNS).header("content-type", "text/plain").body("{}");
    assert_eq!(talk.send(text).await.status, 415);
    attachments(talk).await;

    let shown = talk.get("/api/v1/agent/history", 200).await;
    assert_eq!(shown["threadId"], THREAD, "{shown:#}");
    talk.get(&format!("/api/v1/agent/history?threadId={THREAD}&before=2000-01-01"), 200).await;
    for (query, status) in [("before=x", 422), ("threadId=x", 422), ("x=1", 422), (format!("threadId={OTHER}").as_str(), 404)] {
        talk.get(&format!("/api/v1/agent/history?{query}"), status).await;
    }
    for (query, status) in [("?runId=r-1", 202), ("", 422), ("?runId=none", 404)] {
        talk.post(&format!("{RUNS}/{THREAD}/cancel{query}"), json!({}), status).await;
    }
    for (path, status) in [("threads", 204), ("sessions", 204)] {
        let delete = |id: &str| talk.request(Method::DELETE, &format!("/api/v1/agent/{path}/{id}"));
        assert_eq!(talk.send(delete(THREAD)).await.status, status);
        assert_eq!(talk.send(delete("no-uuid")).await.status, 422);
    }
}

async fn attachments(talk: &Talk) {
    let image = "GIF89a\u{1}\0\u{1}\0";
    let kept = talk.send(form(talk, "file", "image/gif", image)).await;
    assert_eq!(kept.status, 200, "{:#}", kept.body);
    for (name, kind, content, status) in [
        ("file", "image/svg+xml", "<svg/>", 415),
        ("file", "image/png", image, 415),
        ("file", "image/gif", "", 422),
        ("picture", "image/gif", image, 422),
    ] {
        assert_eq!(talk.send(form(talk, name, kind, content)).await.status, status, "{name} {kind}");
    }
    talk.post("/api/v1/agent/attachments", json!({}), 415).await;
    let of = |path: &str| format!("/api/v1/agent/attachments/signed-url?bucket=artifacts&path={path}");
    let signed = talk.get(&of(kept.body["path"].as_str().unwrap()), 200).await;
    talk.get(&of("none"), 404).await;
    talk.get("/api/v1/agent/attachments/signed-url?bucket=artifacts", 422).await;

    let url = signed["url"].as_str().unwrap();
    let range = |range: &str| talk.request(Method::GET, url).header("range", range);
    let whole = talk.send(talk.request(Method::GET, url)).await;
    assert_eq!(whole.headers["content-type"], "image/gif");
    let again = talk.request(Method::GET, url).header("if-none-match", whole.headers["etag"].clone());
    assert_eq!(talk.send(again).await.status, 304);
    assert_eq!(talk.send(range("bytes=0-2")).await.status, 206);
    assert_eq!(talk.send(range("bytes=100-")).await.status, 416);
    assert_eq!(talk.get(&format!("{url}0"), 403).await["code"], "AGENT_ATTACHMENT_SIGNATURE_INVALID");
    talk.get(&format!("{url}&x=1"), 422).await;
    talk.get(url.split('?').next().unwrap(), 403).await;

    // A message shows it, and so does what was said.
    let part = json!([{ "type": "text", "text": "Look." }, { "type": "binary", "mimeType": "image/gif", "url": url }]);
    let shows = json!({ "messages": [{ "id": "shows", "role": "user", "content": part }] });
    let followed = talk.post(RUNS, with(input(THREAD, "r-4", ""), &shows), 202).await.headers[LOCATION].clone();
    assert!(ended(&talk.send(talk.request(Method::GET, followed.to_str().unwrap())).await));
    let shown = talk.get(&format!("/api/v1/agent/history?threadId={THREAD}"), 200).await;
    assert!(shown["messages"].as_array().unwrap().iter().any(|message| message["url"].is_string()), "{shown:#}");
}

pub async fn pipelines(talk: &Talk) {
    let path = "/api/v1/pipeline/queries";
    let query = |text: &str| json!({ "query": { "user_message": text }, "runner_id": "plugin:agent-host/echo/default" });
    let once = |text: &str| talk.request(Method::POST, path).header("idempotency-key", "query").json(&query(text));
    let host_answer = talk.send(once("hello")).await;
    assert_eq!(host_answer.status, 202, "{:#}", host_answer.body);
    talk.ended(host_answer.body["run"]["run_id"].as_str().unwrap()).await;
    assert_eq!(talk.send(once("hello")).await.headers["idempotency-replayed"], "true");
    assert_eq!(talk.send(once("other")).await.status, 422);
    talk.post(path, with(query("x"), &json!({ "runner_id": "plugin:no/such/runner" })), 404).await;
    for bad in [json!({}), json!({ "query": {} }), with(query("x"), &json!({ "more": 1 }))] {
        talk.post(path, bad, 400).await;
    }
    let text = talk.request(Method::POST, path).header("content-type", "text/plain").body("{}");
    assert_eq!(talk.send(text).await.status, 415);
}

pub async fn page(talk: &Talk) {
    for path in
        ["/", "/chat/page.js", "/chat/base.css", "/chat/licenses.txt", "/docs", "/docs/swagger-ui.css", "/docs/favicon-32x32.png"]
    {
        let host_answer = talk.send(talk.request(Method::GET, path)).await;
        assert_eq!(host_answer.status, 200, "{path}");
        let again = talk.request(Method::GET, path).header("if-none-match", host_answer.headers["etag"].clone());
        assert_eq!(talk.send(again).await.status, 304, "{path}");
    }
    talk.get("/chat/none.js", 404).await;
}
