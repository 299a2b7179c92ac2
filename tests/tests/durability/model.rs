//! A model server that outlives the host, counts what it is asked, and answers by nothing but the request.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    response::sse::{Event, Sse},
    routing::post,
};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};

/// Between two pieces of an answer.
const PIECE: Duration = Duration::from_millis(6);

/// The tool is called so in a report when its outcome is unknown.
pub const IN_DOUBT: &str = "(nobody knows)";

/// The running server.
pub struct ModelServer {
    pub url: String,
    request_count: ReceivedRequests,
}

/// Every request.
type ReceivedRequests = Arc<Mutex<Vec<Request>>>;

struct Request {
    task: String,
    step: usize,
    /// The conversation before the task.
    before: String,
}

impl ModelServer {
    pub async fn start() -> Self {
        let request_count = ReceivedRequests::default();
        let router = Router::new().route("/v1/chat/completions", post(answer)).with_state(Arc::clone(&request_count));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, request_count }
    }

    /// The number of requests for a step of a task.
    pub fn request_count(&self, task: &str, step: usize) -> usize {
        self.request_count
            .lock()
            .unwrap()
            .iter()
            .filter(|request_count| request_count.task == task && request_count.step == step)
            .count()
    }

    /// The conversation before each request of a task, as the agent remembers it.
    pub fn before(&self, task: &str) -> Vec<String> {
        let request_count = self.request_count.lock().unwrap();
        request_count
            .iter()
            .filter(|request_count| request_count.task == task)
            .map(|request_count| request_count.before.clone())
            .collect()
    }
}

/// The text of the model in a step, and its tool calls; `results` are the answers of tools so far.
pub fn script(task: &str, step: usize, results: &[String]) -> (String, Vec<(&'static str, Value)>) {
    let call = |tool, n| (tool, json!({ "note": format!("{task}/{n}") }));
    match step {
        0 => (format!("I begin with {task}, carefully and in small steps. "), vec![call("t__count", 1)]),
        1 => (format!("Now the rest of {task}, two things at once. "), vec![call("t__count", 2), call("t__look", 3)]),
        _ => (
            format!(
                "This is the report on {task}. The tools said: {}. That is all there is to say, however long it took, and \
                 however often somebody pulled the plug.",
                results.join(", then ")
            ),
            Vec::new(),
        ),
    }
}

/// The model's text about the answer of a tool.
fn understood(result: &str) -> String {
    if !result.starts_with("Error: ") {
        return result.to_owned();
    }
    if result.contains("its outcome is unknown") { IN_DOUBT.to_owned() } else { format!("[{result}]") }
}

async fn answer(
    State(request_count): State<ReceivedRequests>,
    Json(request): Json<Value>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let messages = request["messages"].as_array().unwrap();
    let last = messages.iter().rposition(|message| message["role"] == "user").unwrap();
    let (before, messages) = messages.split_at(last);
    let of = |role: &'static str| messages.iter().filter(move |message| message["role"] == role);
    let user = messages[0]["content"].to_string();
    let task = user.split("task:").nth(1).unwrap_or_else(|| panic!("no task: {request}"));
    let task: String = task.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '-').collect();
    let step = of("assistant").count();
    let results: Vec<_> = of("tool").map(|message| understood(message["content"].as_str().unwrap())).collect();
    let times = {
        let mut request_count = request_count.lock().unwrap();
        request_count.push(Request { task: task.clone(), step, before: Value::from(before).to_string() });
        request_count.len()
    };

    let (text, calls) = match task.strip_prefix("fickle-") {
        // Never the same twice; and long, so that it can be interrupted.
        Some(_) => (format!("{}But then, {times}. {}", "Let me think. ".repeat(20), "So it is. ".repeat(20)), Vec::new()),
        None => script(&task, step, &results),
    };
    let chunk = |delta: Value, reason: Value| json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }] });
    let mut chunks = Vec::new();
    // The same text each time, cut otherwise each time: what was given before does not end where a piece does.
    let letters: Vec<_> = text.chars().collect();
    for piece in letters.chunks(4 + times % 5) {
        chunks.push(chunk(json!({ "content": piece.iter().collect::<String>() }), Value::Null));
    }
    let tool_calls: Vec<_> = (0..)
        .zip(&calls)
        .map(|(index, (tool, arguments))| {
            let function = json!({ "name": tool, "arguments": arguments.to_string() });
            json!({ "index": index, "id": format!("{task}-{step}-{index}"), "type": "function", "function": function })
        })
        .collect();
    let reason = if calls.is_empty() { "stop" } else { "tool_calls" };
    if !calls.is_empty() {
        chunks.push(chunk(json!({ "tool_calls": tool_calls }), Value::Null));
    }
    chunks.push(chunk(json!({}), reason.into()));
    chunks.push(json!({ "choices": [], "usage": { "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15 } }));
    let events = chunks.into_iter().map(|chunk| chunk.to_string()).chain(["[DONE]".to_owned()]);
    Sse::new(stream::iter(events).then(|data| async {
        tokio::time::sleep(PIECE).await;
        Ok(Event::default().data(data))
    }))
}
