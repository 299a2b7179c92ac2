//! The results of a run: what an agent says becomes events of its record, in order, in batches, and without secrets.
//!
//! One task appends. The queue to it is bounded, so that an agent that says more than the host takes is not read any further.
//! Pieces of one message that wait together become one result.

use std::sync::Arc;

use agent_host_protocol::{SentResult, fact};
use bytes::Bytes;
use serde_json::{Map, Value, json, value::RawValue};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use crate::{
    host_client::{HeldRun, HostError},
    secrets::{CleanStream, Secrets},
    stop::{Stop, StopFlag},
};

/// Results that wait to be appended.
const QUEUE: usize = 1_024;
/// Results in one batch: `limits.emit_results` of the host is at least this by default.
const BATCH: usize = 64;
/// Bytes in one batch, half of the default of `limits.emit_bytes`.
const BATCH_BYTES: usize = 128 * 1024;
/// Bytes of a message, and of one value in a result: `limits.result_bytes` of the host is 32 KiB by default, and JSON escapes.
const PIECE: usize = 12 * 1024;
/// Parts of the content of one tool call that are recorded; each can be an artifact.
const MAX_PARTS: usize = 50;
/// Largest result that waits, in bytes: a program may send any, and the queue holds many. `limits.result_bytes` is less by far.
const MAX_RESULT: usize = 1 << 20;

/// An entry of the queue.
enum Entry {
    Piece(Piece),
    Result(SentResult),
    /// Everything before is in the record when this is answered.
    Flush(oneshot::Sender<()>),
}

/// A piece of a message.
struct Piece {
    /// `message.delta` or `reasoning.delta`.
    kind: &'static str,
    message_id: String,
    text: String,
}

impl Piece {
    /// Adds the next piece to this one, if both are of one message.
    fn join(&mut self, next: &Self) -> bool {
        let fits = self.kind == next.kind && self.message_id == next.message_id && self.text.len() + next.text.len() <= PIECE;
        if fits {
            self.text.push_str(&next.text);
        }
        fits
    }

    fn into_result(self) -> Option<SentResult> {
        let chunk = json!({ "role": "assistant", "content": self.text });
        result(self.kind.to_owned(), &json!({ "message_id": self.message_id, "chunk": chunk }), None)
    }
}

/// A result of the executor API. `None` if the values are no JSON, which they always are.
fn result(kind: String, data: &Value, metadata: Option<&Value>) -> Option<SentResult> {
    let raw = |value: &Value| RawValue::from_string(value.to_string()).ok();
    let metadata = match metadata {
        Some(metadata) => Some(raw(metadata)?),
        None => None,
    };
    Some(SentResult { kind, data: raw(data)?, run_id: None, sequence: None, timestamp: None, metadata })
}

/// The message that is open.
#[derive(Default)]
struct OpenMessage {
    id: Option<String>,
    text: String,
    stream: CleanStream,
}

/// The results of one run.
pub(crate) struct Results {
    run: Arc<HeldRun>,
    secrets: Secrets,
    queue: mpsc::Sender<Entry>,
    appending: JoinHandle<()>,
    prefix: String,
    messages: u32,
    message: OpenMessage,
    reasoning: OpenMessage,
}

impl Results {
    /// Begins to append. The run is stopped when the host does not take results any more.
    pub(crate) fn new(run: Arc<HeldRun>, secrets: Secrets, attempt: u32, stop: StopFlag) -> Self {
        let (queue, entries) = mpsc::channel(QUEUE);
        let appending = tokio::spawn(append(Arc::clone(&run), entries, stop));
        Self {
            run,
            secrets,
            queue,
            appending,
            prefix: format!("a{attempt}"),
            messages: 0,
            message: OpenMessage::default(),
            reasoning: OpenMessage::default(),
        }
    }

    /// The way into the record for others than the agent.
    pub(crate) fn beside_turn(&self) -> BesideTurn {
        BesideTurn { secrets: self.secrets.clone(), queue: self.queue.clone() }
    }

    async fn put(&self, entry: Entry) {
        // Nobody takes results of a run that was stopped.
        let _ = self.queue.send(entry).await;
    }

    async fn put_piece(&self, kind: &'static str, message_id: String, text: &str) {
        self.put(Entry::Piece(Piece { kind, message_id, text: text.to_owned() })).await;
    }

    async fn put_result(&self, kind: String, data: &Value, metadata: Option<&Value>) {
        match result(kind, data, metadata) {
            Some(result) if result.bytes() <= MAX_RESULT => self.put(Entry::Result(result)).await,
            Some(result) => tracing::debug!(kind = result.kind, bytes = result.bytes(), "a result of an agent is too large"),
            None => {}
        }
    }

    fn next_id(&mut self) -> String {
        self.messages += 1;
        format!("{}-m{}", self.prefix, self.messages)
    }

    /// A piece of the answer.
    pub(crate) async fn text(&mut self, text: &str) {
        self.end_reasoning().await;
        let clean = self.message.stream.push(text, &self.secrets);
        self.put_text(&clean).await;
    }

    async fn put_text(&mut self, text: &str) {
        for piece in pieces(text) {
            if self.message.text.len() + piece.len() > PIECE {
                self.complete_message().await;
            }
            let id = match self.message.id.clone() {
                Some(id) => id,
                None => self.next_id(),
            };
            self.message.id = Some(id.clone());
            self.message.text.push_str(piece);
            self.put_piece("message.delta", id, piece).await;
        }
    }

    async fn complete_message(&mut self) {
        if let Some(id) = self.message.id.take() {
            let text = std::mem::take(&mut self.message.text);
            let message = json!({ "role": "assistant", "content": text });
            self.put_result("message.completed".to_owned(), &json!({ "message_id": id, "message": message }), None).await;
        }
    }

    /// A piece of the agent's reasoning.
    pub(crate) async fn reasoning(&mut self, text: &str) {
        self.end_message().await;
        let clean = self.reasoning.stream.push(text, &self.secrets);
        self.put_reasoning(&clean).await;
    }

    async fn put_reasoning(&mut self, text: &str) {
        for piece in pieces(text) {
            let id = match self.reasoning.id.clone() {
                Some(id) => id,
                None => self.next_id(),
            };
            self.reasoning.id = Some(id.clone());
            self.put_piece("reasoning.delta", id, piece).await;
        }
    }

    async fn end_reasoning(&mut self) {
        let rest = self.reasoning.stream.finish();
        self.put_reasoning(&rest).await;
        self.reasoning.id = None;
    }

    /// Completes the open message: what comes next is not a part of it.
    pub(crate) async fn end_message(&mut self) {
        let rest = self.message.stream.finish();
        self.put_text(&rest).await;
        self.complete_message().await;
    }

    /// Completes the open message; where there is none, this text is the message.
    pub(crate) async fn end_message_with(&mut self, text: &str) {
        if self.message.id.is_none() && self.message.stream.is_empty() {
            self.text(text).await;
        }
        self.end_message().await;
    }

    /// A result of another type. The open message is completed before.
    pub(crate) async fn add(&mut self, kind: impl Into<String>, data: Value, metadata: Option<Value>) {
        self.end_reasoning().await;
        self.end_message().await;
        let data = self.secrets.clean_value(data);
        let metadata = metadata.map(|metadata| self.secrets.clean_value(metadata));
        self.put_result(kind.into(), &data, metadata.as_ref()).await;
    }

    /// The first `max` bytes of `text`, without secrets. A secret is removed before the cut, which could leave a part of it.
    pub(crate) fn excerpt(&self, text: &str, max: usize) -> String {
        cut(&self.secrets.clean(text.to_owned()), max).to_owned()
    }

    /// The beginning of a tool call of the agent itself.
    pub(crate) async fn tool_started(&mut self, call: &str, name: &str, input: Value, about: Value) {
        let input = self.small(&format!("{name}-input.json"), input).await;
        let data = json!({ "tool_call_id": self.call_id(call), "tool_name": name, "parameters": input });
        self.add("tool.call.started", data, Some(about)).await;
    }

    /// The end of a tool call of the agent itself. `output` has the parts of the result.
    pub(crate) async fn tool_completed(&mut self, call: &str, name: &str, output: Result<Vec<Value>, String>, about: Value) {
        let mut data = json!({ "tool_call_id": self.call_id(call), "tool_name": name });
        let end = match output {
            Ok(parts) => {
                let mut small = Vec::with_capacity(parts.len());
                let mut bytes = 0;
                for part in parts.into_iter().take(MAX_PARTS) {
                    let part = self.small_part(name, part, bytes).await;
                    bytes += part.to_string().len();
                    small.push(part);
                }
                ("result", Value::Array(small))
            }
            Err(error) => ("error", Value::String(self.excerpt(&error, PIECE))),
        };
        if let Some(data) = data.as_object_mut() {
            data.insert(end.0.to_owned(), end.1);
        }
        self.add("tool.call.completed", data, Some(about)).await;
    }

    /// The agent's ids are unique in its session; a record may have several attempts.
    fn call_id(&self, call: &str) -> String {
        format!("{}-{}", self.prefix, cut(call, 128))
    }

    /// The plan of the agent.
    pub(crate) async fn plan(&mut self, steps: Vec<(String, String)>) {
        let done = steps.iter().all(|(_, status)| status == "completed");
        let steps: Vec<Value> =
            steps.iter().take(100).map(|(step, status)| json!({ "step": cut(step, 200), "status": cut(status, 40) })).collect();
        self.add(fact::PLAN, json!({ "steps": steps, "final": done }), None).await;
    }

    /// A part of the content of a tool call: a text that does not fit beside the `used` bytes of the parts before becomes an
    /// artifact, with its beginning beside it.
    async fn small_part(&self, name: &str, part: Value, used: usize) -> Value {
        if used + part.to_string().len() <= PIECE {
            return part;
        }
        let text = part.get("text").and_then(Value::as_str);
        let (content, media_type, file) = match text {
            Some(text) => (text.to_owned(), "text/plain", format!("{name}-output.txt")),
            None => (part.to_string(), "application/json", format!("{name}-output.json")),
        };
        let head = text.filter(|_| used < PIECE).map_or_else(String::new, |text| self.excerpt(text, PIECE / 4));
        match self.stored(&file, media_type, content).await {
            Ok(reference) => json!({ "type": "truncated", "text": head, "artifact": reference }),
            Err(bytes) => json!({ "type": "truncated", "text": head, "bytes": bytes }),
        }
    }

    /// Parameters of a tool call: large ones become an artifact.
    async fn small(&self, file: &str, value: Value) -> Value {
        let text = value.to_string();
        if text.len() <= PIECE {
            return value;
        }
        match self.stored(file, "application/json", text).await {
            Ok(reference) => json!({ "truncated": true, "artifact": reference }),
            Err(bytes) => json!({ "truncated": true, "bytes": bytes }),
        }
    }

    /// Stores a text as an artifact. Gives its size where the run may not create artifacts, or the host does not take it.
    async fn stored(&self, name: &str, media_type: &str, text: String) -> Result<Value, usize> {
        let text = self.secrets.clean(text);
        let bytes = text.len();
        self.run.create_artifact(name, media_type, Bytes::from(text)).await.map_err(|error| {
            tracing::debug!(%error, name, "an output is not kept as an artifact");
            bytes
        })
    }

    /// Waits until everything so far is in the record.
    pub(crate) async fn flush(&mut self) {
        self.end_reasoning().await;
        self.end_message().await;
        let (done, is_done) = oneshot::channel();
        if self.queue.send(Entry::Flush(done)).await.is_ok() {
            // The task ends only after the queue: an error means that the claim is lost.
            let _ = is_done.await;
        }
    }
}

/// The way into the record for what happens beside the turn of the agent. It ends with the results of the run.
#[derive(Clone)]
pub(crate) struct BesideTurn {
    secrets: Secrets,
    queue: mpsc::Sender<Entry>,
}

impl std::fmt::Debug for BesideTurn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BesideTurn").finish_non_exhaustive()
    }
}

impl BesideTurn {
    /// A result that belongs to no message. An open message goes on after it.
    pub(crate) async fn add(&self, kind: &str, data: Value) {
        if let Some(result) = result(kind.to_owned(), &self.secrets.clean_value(data), None) {
            // Nobody takes results of a run that has ended.
            let _ = self.queue.send(Entry::Result(result)).await;
        }
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        self.appending.abort();
    }
}

/// Appends what comes, until the claim is lost.
async fn append(run: Arc<HeldRun>, mut entries: mpsc::Receiver<Entry>, stop: StopFlag) {
    let mut waiting = Vec::new();
    while entries.recv_many(&mut waiting, BATCH * 4).await > 0 {
        if let Err(error) = append_entries(&run, waiting.drain(..)).await {
            tracing::debug!(%error, "results are not appended any more");
            stop.hear(&error);
            // The first reason counts.
            stop.stop(Stop::ClaimLost);
            return;
        }
    }
}

async fn append_entries(run: &HeldRun, entries: impl Iterator<Item = Entry>) -> Result<(), HostError> {
    let mut results: Vec<SentResult> = Vec::new();
    let mut open: Option<Piece> = None;
    for entry in entries {
        if let (Entry::Piece(next), Some(piece)) = (&entry, &mut open)
            && piece.join(next)
        {
            continue;
        }
        results.extend(open.take().and_then(Piece::into_result));
        match entry {
            Entry::Piece(piece) => open = Some(piece),
            Entry::Result(result) => results.push(result),
            Entry::Flush(done) => {
                append_all(run, std::mem::take(&mut results)).await?;
                // The run may not wait for it any more.
                let _ = done.send(());
            }
        }
    }
    results.extend(open.and_then(Piece::into_result));
    append_all(run, results).await
}

async fn append_all(run: &HeldRun, results: Vec<SentResult>) -> Result<(), HostError> {
    let mut batch = Vec::new();
    let mut bytes = 0;
    for result in results {
        if batch.len() == BATCH || (bytes + result.bytes() > BATCH_BYTES && !batch.is_empty()) {
            append_batch(run, std::mem::take(&mut batch)).await?;
            bytes = 0;
        }
        bytes += result.bytes();
        batch.push(result);
    }
    if batch.is_empty() { Ok(()) } else { append_batch(run, batch).await }
}

/// Appends a batch. Where the host refuses it, each result alone: one that the run may not have does not take others with it.
async fn append_batch(run: &HeldRun, batch: Vec<SentResult>) -> Result<(), HostError> {
    match run.append(&batch).await {
        Err(HostError::Refused { .. }) => {}
        other => return other,
    }
    for result in batch {
        match run.append(std::slice::from_ref(&result)).await {
            Err(HostError::Refused { code, detail }) => {
                tracing::debug!(kind = result.kind, code, detail, "the host does not take a result of an agent");
            }
            other => other?,
        }
    }
    Ok(())
}

/// `text` in pieces of at most [`PIECE`] bytes.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let piece = cut(rest, PIECE);
        rest = rest.get(piece.len()..).unwrap_or_default();
        (!piece.is_empty()).then_some(piece)
    })
}

/// The first `max` bytes of `text`, at a border of characters.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or(text)
}

/// The members of `map` that are there.
pub(crate) fn present(map: Map<String, Value>) -> Value {
    Value::Object(map.into_iter().filter(|(_, value)| !value.is_null()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(message_id: &str, text: &str) -> Piece {
        Piece { kind: "message.delta", message_id: message_id.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn pieces_of_one_message_become_one_result() {
        let mut first = delta("m1", "a");
        assert!(first.join(&delta("m1", "b")));
        assert!(!first.join(&delta("m2", "c")));
        assert!(!first.join(&Piece { kind: "reasoning.delta", ..delta("m1", "c") }));
        assert!(!first.join(&delta("m1", &"x".repeat(PIECE))), "a result has a bound");
        let result = first.into_result().unwrap();
        assert_eq!(result.data.get(), r#"{"chunk":{"content":"ab","role":"assistant"},"message_id":"m1"}"#);
    }

    #[test]
    fn a_long_text_is_cut_at_characters() {
        let text = "ä".repeat(PIECE);
        assert_eq!(pieces(&text).collect::<String>(), text);
        assert!(pieces(&text).all(|piece| piece.len() <= PIECE));
    }
}
