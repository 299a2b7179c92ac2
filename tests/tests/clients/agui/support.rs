//! A host whose agent does what a script says, a client that reads the raw wire, and what each stream must be.

use std::{collections::BTreeSet, fs, time::Duration};

use ag_ui::{Event, server::EventVerifier};
use agent_host_tests::{Process, world::PATIENCE};
use futures_util::{StreamExt, stream::BoxStream};
use reqwest::{Response, header::HeaderMap};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::block_in_place;

use crate::agui::proxy::Proxy;

/// Replies of the model.
const SCRIPT: &str = r#"
[[reply]]
text = "A model says this, word by word."
chunk_chars = 5
usage = { input = 11, output = 7 }
"#;

/// Uploads a picture as an attachment, by this request to `/api/v1/agent/attachments`.
pub async fn upload(request: reqwest::RequestBuilder, picture: &[u8]) -> Value {
    let head = b"--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.png\"\r\n\r\n";
    let request = request.header("content-type", "multipart/form-data; boundary=edge");
    let answer = request.body([head, picture, b"\r\n--edge--\r\n"].concat()).send().await.unwrap();
    answer.json().await.unwrap()
}

/// A host that lives again and again on the same directories, behind an address that stays.
pub struct Host {
    process: Option<Process>,
    dir: Option<TempDir>,
    server: String,
    config: String,
    proxy: Proxy,
    pub http: reqwest::Client,
}

/// The configuration of the host by default.
pub fn config(agui: &str, limits: &str) -> String {
    format!(
        r#"
[limits]
max_live_runs = 100
{limits}

[agui]
{agui}

[[models]]
id = "chat"
provider = "scripted"
script = "script.toml"

[[action_hooks]]
actions = ["message.*"]
url = "http://127.0.0.1:9/"
secret = {{ file = "hook-secret" }}

[[bindings]]
id = "stage"
runner = "plugin:test/stage/default"
match = {{ event_type = "nothing of this kind" }}
resources = {{ runs = ["start", "get", "events", "cancel"], platform_api = ["message.edit"] }}
"#
    )
}

impl Host {
    /// Starts a host; `agui` is in `[agui]`.
    pub async fn start(agui: &str) -> Self {
        Self::with_config("loopback_without_key = true", &config(agui, "")).await
    }

    /// Starts a host with this configuration; `server` is part of `[server]`.
    pub async fn with_config(server: &str, config: &str) -> Self {
        let dir = Process::lay_out(&["stage"]);
        Self::lives_in(dir, server, config).await
    }

    /// Likewise in a directory that is there.
    pub async fn lives_in(dir: TempDir, server: &str, config: &str) -> Self {
        fs::write(dir.path().join("script.toml"), SCRIPT).unwrap();
        fs::write(dir.path().join("hook-secret"), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let process = block_in_place(|| Process::start_as(dir, server, config));
        let proxy = Proxy::start(&process.url).await;
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Self { process: Some(process), dir: None, server: server.to_owned(), config: config.to_owned(), proxy, http }
    }

    /// An address that is the same after a restart.
    pub fn url(&self, path: &str) -> String {
        self.proxy.url(path)
    }

    /// The process.
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("it lives")
    }

    /// Ends it as a power failure would.
    pub fn kill(&mut self) {
        let process = self.process.take().expect("it lives");
        self.dir = Some(block_in_place(|| process.kill()));
    }

    /// Asks it to end, and waits until it has.
    pub fn terminate(&mut self) {
        let process = self.process.take().expect("it lives");
        self.dir = Some(block_in_place(|| process.terminate()));
    }

    /// Starts it again.
    pub fn revive(&mut self) {
        let dir = self.dir.take().expect("it is dead");
        let process = block_in_place(|| Process::start_as(dir, &self.server, &self.config));
        self.proxy.leads_to(&process.url);
        self.process = Some(process);
    }

    /// Sends a run, and gives whatever the host answers.
    pub async fn post(&self, path: &str, body: &Value) -> Response {
        let request = self.http.post(self.url(path)).header("accept", "text/event-stream");
        request.json(body).send().await.unwrap()
    }

    /// Starts a run, or looks at one again, and reads its stream.
    pub async fn run(&self, input: &Value) -> Wire {
        Wire::open(self.post("/agents/stage/run", input).await).await
    }

    /// Looks at what a thread does, under a run id of the client.
    pub async fn connect(&self, input: &Value) -> Wire {
        Wire::open(self.post("/agents/stage/connect", input).await).await
    }

    /// The events of a run, as they are in the log.
    ///
    /// None, where nothing follows.
    pub async fn events(&self, thread: &str, run: &str, last: Option<&str>) -> Option<Wire> {
        let path = format!("/agents/stage/threads/{thread}/runs/{run}/events");
        let mut request = self.http.get(self.url(&path)).header("accept", "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let answer = request.send().await.unwrap();
        if answer.status() == 204 { None } else { Some(Wire::open(answer).await) }
    }

    /// The first screen of a thread.
    pub async fn thread(&self, thread: &str) -> Value {
        let answer = self.http.get(self.url(&format!("/agents/stage/threads/{thread}"))).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{thread}");
        answer.json().await.unwrap()
    }

    /// Asks for the end of a run.
    pub async fn cancel(&self, thread: &str, run: &str) -> u16 {
        let path = format!("/agents/stage/threads/{thread}/runs/{run}/cancel");
        self.http.post(self.url(&path)).send().await.unwrap().status().as_u16()
    }

    /// The thread as soon as the condition holds.
    pub async fn until(&self, thread: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let began = std::time::Instant::now();
        loop {
            let found = self.thread(thread).await;
            if is_so(&found) {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "the thread does not come to that: {found:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The input of a run that takes these steps.
pub fn input(thread: &str, run: &str, script: &Value) -> Value {
    json!({
        "threadId": thread,
        "runId": run,
        "protocolVersion": "1.0",
        "state": {},
        "messages": [{ "id": format!("{run}-user"), "role": "user", "content": "Do it." }],
        "tools": [],
        "context": [],
        "forwardedProps": { "script": script },
    })
}

/// The same input with other members.
pub fn with(mut input: Value, members: Value) -> Value {
    let Value::Object(members) = members else { panic!("members: {members}") };
    for (name, value) in members {
        input[name] = value;
    }
    input
}

/// An event as it came.
#[derive(Debug, Clone)]
pub struct Frame {
    pub data: Value,
    /// The `id:` line.
    pub id: Option<String>,
}

/// A stream of events on the wire. The reader accepts the form for the simplest client: lines that end with LF, one `data:`
/// line in each event.
pub struct Wire {
    pub headers: HeaderMap,
    body: BoxStream<'static, Result<Vec<u8>, reqwest::Error>>,
    read: Vec<u8>,
    /// Length of the part of `read` in which no end of an event is. A whole run may be one event of megabytes.
    searched: usize,
    /// Comments so far.
    pub comments: usize,
    /// True if the connection broke off.
    pub broken: bool,
}

impl Wire {
    pub async fn open(answer: Response) -> Self {
        let headers = answer.headers().clone();
        if answer.status() != 200 {
            panic!("{}: {}", answer.status(), answer.text().await.unwrap());
        }
        assert_eq!(headers["content-type"], "text/event-stream", "{headers:?}");
        let body = answer.bytes_stream().map(|bytes| bytes.map(|bytes| bytes.to_vec())).boxed();
        Self { headers, body, read: Vec::new(), searched: 0, comments: 0, broken: false }
    }

    /// The next event; none at the end of the stream.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            while let Some(found) = memchr::memmem::find(&self.read[self.searched..], b"\n\n") {
                let frame: Vec<u8> = self.read.drain(..self.searched + found + 2).collect();
                self.searched = 0;
                let text = String::from_utf8(frame).expect("events are UTF-8");
                if let Some(frame) = self.parse(&text) {
                    return Some(frame);
                }
            }
            self.searched = self.read.len().saturating_sub(1);
            let more = tokio::time::timeout(PATIENCE, self.body.next()).await.expect("the stream goes on, or ends");
            match more {
                Some(Ok(bytes)) => self.read.extend(bytes),
                Some(Err(_)) => {
                    self.broken = true;
                    return None;
                }
                None => {
                    assert!(self.read.is_empty(), "half an event: {:?}", String::from_utf8_lossy(&self.read));
                    return None;
                }
            }
        }
    }

    fn parse(&mut self, text: &str) -> Option<Frame> {
        assert!(!text.contains('\r'), "{text:?}");
        let (mut data, mut id, mut kind) = (None, None, None);
        for line in text.lines().filter(|line| !line.is_empty()) {
            if line.starts_with(':') {
                self.comments += 1;
            } else if let Some(json) = line.strip_prefix("data: ") {
                assert!(data.is_none(), "two lines of data: {text}");
                data = Some(serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}")));
            } else if let Some(value) = line.strip_prefix("id: ") {
                id = Some(value.to_owned());
            } else if let Some(value) = line.strip_prefix("event: ") {
                kind = Some(value.to_owned());
            } else {
                panic!("a line that clients do not know: {line:?}");
            }
        }
        let data: Value = data?;
        if let Some(kind) = &kind {
            assert_eq!(data["type"], kind.as_str());
        }
        Some(Frame { data, id })
    }

    /// The next so many events, or those until the end.
    pub async fn take(&mut self, count: usize) -> Vec<Frame> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let Some(frame) = self.next().await else { break };
            taken.push(frame);
        }
        taken
    }

    /// The events until one is so, with it.
    pub async fn until(&mut self, is_so: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut seen = Vec::new();
        loop {
            let frame = self.next().await.unwrap_or_else(|| panic!("the stream ended before: {}", lines_of(&seen)));
            seen.push(frame.data);
            if seen.last().is_some_and(&is_so) {
                return seen;
            }
        }
    }

    /// All events to the end, which came in good order.
    pub async fn rest(mut self) -> Vec<Value> {
        let frames = self.take(usize::MAX).await;
        let events: Vec<Value> = frames.into_iter().map(|frame| frame.data).collect();
        assert!(!self.broken, "the connection broke off: {}", lines_of(&events));
        events
    }
}

/// Events, a line for each.
pub fn lines_of(events: &[Value]) -> String {
    events.iter().fold("\n".to_owned(), |text, event| format!("{text}{event}\n"))
}

pub fn is_terminal(event: &Value) -> bool {
    event["type"] == "RUN_FINISHED" || event["type"] == "RUN_ERROR"
}

/// The invariants of every complete stream: it begins with the run and ends with its one end, has the ids of the request,
/// and passes the verifier of another author.
#[track_caller]
pub fn sound(events: &[Value], thread: &str, run: &str) {
    let all = || lines_of(events);
    let (first, last) = (events.first().expect("something came"), events.last().unwrap());
    assert_eq!(first["type"], "RUN_STARTED", "{}", all());
    assert_eq!((&first["threadId"], &first["runId"]), (&json!(thread), &json!(run)), "{}", all());
    assert!(is_terminal(last), "no end: {}", all());
    assert_eq!(events.iter().filter(|event| is_terminal(event)).count(), 1, "{}", all());
    if last["type"] == "RUN_FINISHED" {
        assert_eq!((&last["threadId"], &last["runId"]), (&json!(thread), &json!(run)), "{}", all());
    }
    verified(events);
}

/// The rules of the `ag-ui` crate for servers, and nulls.
#[track_caller]
pub fn verified(events: &[Value]) {
    if let Err(fault) = faultless(events) {
        panic!("{fault}\nin {}", lines_of(events));
    }
}

/// Likewise, for those who say more about what was sent.
pub fn faultless(events: &[Value]) -> Result<(), String> {
    let mut verifier = EventVerifier::new();
    for event in events {
        let parse: Event = serde_json::from_value(event.clone()).map_err(|error| format!("{error}: {event}"))?;
        verifier.observe(&parse).map_err(|error| format!("{error:?}: {event}"))?;
        no_nulls(event)?;
    }
    Ok(())
}

/// No member that the protocol names is null, which is fatal to clients. Values of runners may be null.
fn no_nulls(event: &Value) -> Result<(), String> {
    const FREE: [&str; 4] = ["snapshot", "value", "result", "event"];
    for (name, value) in event.as_object().ok_or("an event is an object")? {
        if value.is_null() && !FREE.contains(&name.as_str()) {
            return Err(format!("{name} is null: {event}"));
        }
    }
    Ok(())
}

/// The messages and the state that a client derives from the events.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct View {
    pub messages: Vec<Value>,
    pub state: Value,
    /// Types of what ended a run.
    pub ends: Vec<String>,
}

impl View {
    pub fn of<'a>(events: impl IntoIterator<Item = &'a Value>) -> Self {
        let mut view = Self::default();
        for event in events {
            view.apply(event);
        }
        view
    }

    /// As the client does it, as far as the tests look: each delta is appended, a snapshot replaces.
    pub fn apply(&mut self, event: &Value) {
        let id = event["messageId"].clone();
        match event["type"].as_str().unwrap() {
            "TEXT_MESSAGE_START" => {
                let role = event["role"].as_str().unwrap_or("assistant");
                self.message(&id, json!({ "id": id, "role": role, "content": "" }));
            }
            "REASONING_MESSAGE_START" => {
                self.message(&id, json!({ "id": id, "role": "reasoning", "content": "" }));
            }
            "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT" => append(&mut self.find(&id)["content"], &event["delta"]),
            "TOOL_CALL_START" => self.call(event),
            "TOOL_CALL_ARGS" => {
                let call = event["toolCallId"].clone();
                let calls = self.messages.iter_mut().filter_map(|message| message.get_mut("toolCalls")?.as_array_mut());
                let found = calls.flatten().find(|known| known["id"] == call).unwrap_or_else(|| panic!("no call: {event}"));
                append(&mut found["function"]["arguments"], &event["delta"]);
            }
            "TOOL_CALL_RESULT" => {
                let message = json!({ "id": id, "role": "tool", "toolCallId": event["toolCallId"], "content": event["content"] });
                self.message(&id, message);
            }
            "MESSAGES_SNAPSHOT" => self.messages = event["messages"].as_array().unwrap().clone(),
            "STATE_SNAPSHOT" => self.state = event["snapshot"].clone(),
            "STATE_DELTA" => {
                for operation in event["delta"].as_array().unwrap() {
                    let path = operation["path"].as_str().unwrap();
                    let key = path.strip_prefix('/').unwrap().replace("~1", "/").replace("~0", "~");
                    match operation["op"].as_str().unwrap() {
                        "add" | "replace" => self.state[key] = operation["value"].clone(),
                        other => panic!("{other}: {event}"),
                    }
                }
            }
            _ => {}
        }
        if is_terminal(event) {
            self.ends.push(event["type"].as_str().unwrap().to_owned());
        }
    }

    fn message(&mut self, id: &Value, message: Value) {
        if !self.messages.iter().any(|known| known["id"] == *id) {
            self.messages.push(message);
        }
    }

    fn find(&mut self, id: &Value) -> &mut Value {
        self.messages.iter_mut().find(|message| message["id"] == *id).unwrap_or_else(|| panic!("no message {id}"))
    }

    fn call(&mut self, event: &Value) {
        let call = &event["toolCallId"];
        let known =
            |message: &Value| message["toolCalls"].as_array().is_some_and(|calls| calls.iter().any(|known| known["id"] == *call));
        if self.messages.iter().any(known) {
            return;
        }
        let function = json!({ "name": event["toolCallName"], "arguments": "" });
        let entry = json!({ "id": call, "type": "function", "function": function });
        let parent = event["parentMessageId"].as_str().map_or_else(|| call.clone(), |parent| json!(parent));
        match self.messages.iter_mut().find(|message| message["id"] == parent) {
            Some(message) => match message.get_mut("toolCalls").and_then(Value::as_array_mut) {
                Some(calls) => calls.push(entry),
                None => message["toolCalls"] = json!([entry]),
            },
            None => self.messages.push(json!({ "id": parent, "role": "assistant", "toolCalls": [entry] })),
        }
    }

    /// The texts of messages with this role.
    pub fn texts(&self, role: &str) -> Vec<String> {
        let of_role = self.messages.iter().filter(|message| message["role"] == role);
        of_role.filter_map(|message| message["content"].as_str()).filter(|text| !text.is_empty()).map(str::to_owned).collect()
    }

    /// Names of the tools that were called, with arguments and results, in the order of the names.
    pub fn calls(&self) -> BTreeSet<(String, String, String)> {
        let calls = self.messages.iter().filter_map(|message| message.get("toolCalls")?.as_array()).flatten();
        calls
            .map(|call| {
                let result = self.messages.iter().find(|message| message["toolCallId"] == call["id"]);
                let result = result.map_or_else(|| "(none)".to_owned(), |message| plain(&message["content"]));
                (plain(&call["function"]["name"]), plain(&call["function"]["arguments"]), result)
            })
            .collect()
    }

    /// The part on which two runs of the same script must agree: all but ids.
    pub fn essence(&self) -> Value {
        let calls: Vec<_> = self.calls().into_iter().collect();
        // No state is as good as an empty one.
        let state = if self.state.is_null() { json!({}) } else { self.state.clone() };
        json!({
            "assistant": self.texts("assistant"), "reasoning": self.texts("reasoning"),
            "calls": calls, "state": state, "ends": self.ends,
        })
    }
}

fn append(text: &mut Value, delta: &Value) {
    *text = json!(format!("{}{}", text.as_str().unwrap_or_default(), delta.as_str().unwrap()));
}

/// A text without its quotes.
pub fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The problem of an answer, and its status.
pub async fn problem(answer: Response) -> (u16, Value) {
    let status = answer.status().as_u16();
    let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
    let body = answer.text().await.unwrap();
    assert!(kind.starts_with("application/problem+json"), "{status} {kind}: {body}");
    let body: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
    assert_eq!(body["status"], status, "{body}");
    assert!(body["code"].as_str().is_some_and(|code| !code.is_empty()), "{body}");
    (status, body)
}
