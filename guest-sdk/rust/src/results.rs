//! Results of the run: builders for results, and batches within the limits of the host.
//!
//! ```
//! use agent_host_sdk::serde_json::json;
//! use agent_host_sdk::{ApiError, StateScope, results};
//!
//! fn finish_step(step: u64) -> Result<(), ApiError> {
//!     let mut batch = results::Batch::new();
//!     batch.push(results::state_updated(StateScope::Conversation, "step", step))?;
//!     batch.push(results::other("acme.step", json!({"step": step})))?;
//!     batch.flush()
//! }
//! ```
//!
//! For text, use [`MessageWriter`](crate::MessageWriter). For other results, use the functions of this module, and
//! [`emit`] or a [`Batch`].

use crate::contract::{
    ActionRequest, CompletedMessage, ContentPart, CustomResult, Message, MessageChunk, Role, RunResult, StateScope, StateUpdate,
    ToolCallCompleted, ToolCallStarted,
};
use crate::error::ApiError;
use crate::host::results as host;
use crate::json::IntoJson;
use crate::limits::{BATCH_BYTES, BATCH_RESULTS, frame_bytes, json_len};

/// Destination of results. [`Host`] outside of tests.
pub trait Sink {
    /// Appends the results in order, all or none, and returns the sequence number of the last.
    ///
    /// # Errors
    /// Fails with the error of the host; no result is appended then.
    fn emit(&mut self, results: &[RunResult]) -> Result<u64, ApiError>;
}

/// The result stream of the calling run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

impl Sink for Host {
    fn emit(&mut self, results: &[RunResult]) -> Result<u64, ApiError> {
        Ok(host::emit(results)?)
    }
}

/// Appends results immediately and in order, all or none, and returns the sequence number of the last. The host refuses a
/// batch that is too large; [`Batch`] splits it.
///
/// # Errors
/// Fails with the error of the host; no result is appended then.
pub fn emit(results: &[RunResult]) -> Result<u64, ApiError> {
    Host.emit(results)
}

/// Collects results and emits them together: a host call for 64 results costs little more than for one. No batch has more
/// than [`BATCH_RESULTS`] results or [`BATCH_BYTES`].
///
/// Results that were not flushed are lost when the batch is dropped.
#[must_use = "results that are not flushed are not sent"]
#[derive(Debug, Default)]
pub struct Batch<S: Sink = Host> {
    sink: S,
    results: Vec<RunResult>,
    bytes: usize,
}

impl Batch {
    /// Creates a batch for the results of this run.
    pub fn new() -> Self {
        Self::default()
    }
}

impl<S: Sink> Batch<S> {
    pub(crate) fn with_sink(sink: S) -> Self {
        Self { sink, results: Vec::new(), bytes: 0 }
    }

    /// Adds a result. First emits the collected results if the new one does not fit into the same batch.
    ///
    /// # Errors
    /// Like [`Batch::flush`]; the new result is in the batch nonetheless.
    pub fn push(&mut self, result: RunResult) -> Result<(), ApiError> {
        let bytes = size(&result);
        let full = self.results.len() >= BATCH_RESULTS || self.bytes + bytes > BATCH_BYTES;
        let flushed = if full { self.flush() } else { Ok(()) };
        self.bytes += bytes;
        self.results.push(result);
        flushed
    }

    /// Emits the collected results, if any.
    ///
    /// # Errors
    /// Fails with the error of the host. The refused results are dropped, since they would be refused again.
    pub fn flush(&mut self) -> Result<(), ApiError> {
        if self.results.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        let outcome = self.sink.emit(&self.results);
        self.results.clear();
        outcome.map(|_sequence| ())
    }

    /// Takes the collected results out.
    pub(crate) fn take(&mut self) -> Vec<RunResult> {
        self.bytes = 0;
        std::mem::take(&mut self.results)
    }

    #[cfg(test)]
    pub(crate) fn sink(&self) -> &S {
        &self.sink
    }
}

/// Builds a delta of a message. [`MessageWriter`](crate::MessageWriter) emits these deltas.
pub fn message_delta(message_id: impl Into<String>, text: impl Into<String>) -> RunResult {
    RunResult::MessageDelta(assistant_chunk(message_id.into(), text.into()))
}

/// Builds a completed message. A message and its deltas share one id.
pub fn message_completed(message_id: impl Into<String>, message: impl Into<Message>) -> RunResult {
    RunResult::MessageCompleted(CompletedMessage { message_id: message_id.into(), message: message.into() })
}

/// Builds a delta of the reasoning before an answer.
pub fn reasoning_delta(message_id: impl Into<String>, text: impl Into<String>) -> RunResult {
    RunResult::ReasoningDelta(assistant_chunk(message_id.into(), text.into()))
}

/// Builds the start of a call of a local tool. The host records calls through the interface `tools` itself.
pub fn tool_call_started(call_id: impl Into<String>, tool_name: impl Into<String>, parameters: impl IntoJson) -> RunResult {
    RunResult::ToolCallStarted(ToolCallStarted {
        call_id: call_id.into(),
        tool_name: tool_name.into(),
        parameters: parameters.into_json(),
        message_id: None,
    })
}

/// Builds the end of a call of a local tool: its output, or the reason of the failure.
pub fn tool_call_completed(
    call_id: impl Into<String>,
    tool_name: impl Into<String>,
    outcome: Result<impl Into<String>, impl Into<String>>,
) -> RunResult {
    RunResult::ToolCallCompleted(ToolCallCompleted {
        call_id: call_id.into(),
        tool_name: tool_name.into(),
        outcome: match outcome {
            Ok(text) => Ok(vec![ContentPart::Text(text.into())]),
            Err(why) => Err(why.into()),
        },
    })
}

/// Builds an update of the state. Cheaper than [`State::set`](crate::state::State::set) if other results are sent anyway,
/// and stored atomically with them.
pub fn state_updated(scope: StateScope, key: impl Into<String>, value: impl IntoJson) -> RunResult {
    RunResult::StateUpdated(StateUpdate { scope, key: key.into(), value: value.into_json() })
}

/// Builds a request for a platform action without waiting for the outcome (a background action).
pub fn action_requested(action: impl Into<String>, target: impl IntoJson, payload: impl IntoJson) -> RunResult {
    RunResult::ActionRequested(ActionRequest { action: action.into(), target: target.into_json(), payload: payload.into_json() })
}

/// Builds a result of a type outside the contract. The host stores the result and does not act on it.
pub fn other(kind: impl Into<String>, data: impl IntoJson) -> RunResult {
    RunResult::Other(CustomResult { type_: kind.into(), data: data.into_json() })
}

impl Message {
    /// Creates a message of the assistant with one text.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::of(Role::Assistant, text)
    }

    /// Creates a message of the user with one text.
    pub fn user(text: impl Into<String>) -> Self {
        Self::of(Role::User, text)
    }

    /// Creates a system message with one text.
    pub fn system(text: impl Into<String>) -> Self {
        Self::of(Role::System, text)
    }

    /// Creates a tool message: the result of the tool call with this id, for the model.
    pub fn tool(call_id: impl Into<String>, text: impl Into<String>) -> Self {
        Self { tool_call_id: Some(call_id.into()), ..Self::of(Role::Tool, text) }
    }

    /// Returns the joined texts of the message.
    #[must_use]
    pub fn text(&self) -> String {
        self.content
            .iter()
            .filter_map(|part| if let ContentPart::Text(text) = part { Some(text.as_str()) } else { None })
            .collect()
    }

    pub(crate) fn of(role: Role, text: impl Into<String>) -> Self {
        Self { role, content: vec![ContentPart::Text(text.into())], name: None, tool_calls: Vec::new(), tool_call_id: None }
    }
}

impl From<String> for Message {
    fn from(text: String) -> Self {
        Self::assistant(text)
    }
}

impl From<&str> for Message {
    fn from(text: &str) -> Self {
        Self::assistant(text)
    }
}

/// The JSON of a text, for [`result_of`].
pub(crate) fn text(text: &str) -> Option<String> {
    Some(text.into_json())
}

/// Builds a result with the members that have a value.
pub(crate) fn result_of<const N: usize>(kind: &str, members: [(&str, Option<String>); N]) -> RunResult {
    let mut data = String::from("{");
    for (name, value) in members.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        if data.len() > 1 {
            data.push(',');
        }
        data.push_str(&name.into_json());
        data.push(':');
        data.push_str(&value);
    }
    data.push('}');
    RunResult::Other(CustomResult { type_: kind.to_owned(), data })
}

fn assistant_chunk(message_id: String, text: String) -> MessageChunk {
    MessageChunk { message_id, role: Role::Assistant, text }
}

// JSON members count with their length, strings with their escaped length, each part with its frame.
pub(crate) fn size(result: &RunResult) -> usize {
    frame_bytes(match result {
        RunResult::MessageDelta(chunk) | RunResult::ReasoningDelta(chunk) => json_len(&chunk.message_id) + json_len(&chunk.text),
        RunResult::MessageCompleted(completed) => json_len(&completed.message_id) + message_size(&completed.message),
        RunResult::ToolCallStarted(call) => json_len(&call.call_id) + json_len(&call.tool_name) + call.parameters.len(),
        RunResult::ToolCallCompleted(call) => {
            let outcome = match &call.outcome {
                Ok(parts) => parts.iter().map(part_size).sum(),
                Err(why) => json_len(why),
            };
            json_len(&call.call_id) + json_len(&call.tool_name) + outcome
        }
        RunResult::ArtifactCreated(artifact) => artifact_size(artifact),
        RunResult::StateUpdated(update) => json_len(&update.key) + update.value.len(),
        RunResult::ActionRequested(request) => json_len(&request.action) + request.target.len() + request.payload.len(),
        RunResult::Other(custom) => json_len(&custom.type_) + custom.data.len(),
    })
}

/// Returns the JSON documents in a result.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn json_of(result: &RunResult) -> Vec<&str> {
    match result {
        RunResult::ToolCallStarted(call) => vec![&call.parameters],
        RunResult::StateUpdated(update) => vec![&update.value],
        RunResult::ActionRequested(request) => vec![&request.target, &request.payload],
        RunResult::Other(custom) => vec![&custom.data],
        _ => Vec::new(),
    }
}

fn message_size(message: &Message) -> usize {
    let content: usize = message.content.iter().map(part_size).sum();
    let calls: usize = message
        .tool_calls
        .iter()
        .map(|call| frame_bytes(json_len(&call.call_id) + json_len(&call.tool_name) + call.parameters.len()))
        .sum();
    let names = message.name.as_deref().map_or(0, json_len) + message.tool_call_id.as_deref().map_or(0, json_len);
    content + calls + names
}

fn part_size(part: &ContentPart) -> usize {
    frame_bytes(match part {
        ContentPart::Text(text) => json_len(text),
        ContentPart::Artifact(artifact) => artifact_size(artifact),
        ContentPart::Other(json) => json.len(),
    })
}

fn artifact_size(artifact: &crate::contract::ArtifactRef) -> usize {
    json_len(&artifact.artifact_id)
        + json_len(&artifact.media_type)
        + artifact.name.as_deref().map_or(0, json_len)
        + artifact.sha256.as_deref().map_or(0, json_len)
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::Value;

    use super::*;
    use crate::contract::ErrorCode;

    /// Checks the type and the data of a result that the contract does not name.
    #[track_caller]
    pub(crate) fn check(result: RunResult, kind: &str, data: Value) {
        let RunResult::Other(custom) = result else { panic!("{result:?}") };
        assert_eq!((custom.type_.as_str(), serde_json::from_str::<Value>(&custom.data).unwrap()), (kind, data));
    }

    /// Test sink that stores batches and refuses the batch with the number `refuse`.
    #[derive(Debug, Default)]
    pub(crate) struct RecordingSink {
        pub(crate) batches: Vec<Vec<RunResult>>,
        pub(crate) refuse: Option<usize>,
    }

    impl Sink for RecordingSink {
        fn emit(&mut self, results: &[RunResult]) -> Result<u64, ApiError> {
            if self.refuse == Some(self.batches.len()) {
                self.refuse = None;
                return Err(ApiError {
                    code: ErrorCode::InvalidArgument,
                    message: "refused".to_owned(),
                    retryable: false,
                    details: None,
                });
            }
            self.batches.push(results.to_vec());
            Ok(self.batches.len() as u64)
        }
    }

    fn lengths(batch: &Batch<RecordingSink>) -> Vec<usize> {
        batch.sink().batches.iter().map(Vec::len).collect()
    }

    #[test]
    fn a_batch_has_at_most_64_results() {
        let mut batch = Batch::with_sink(RecordingSink::default());
        for n in 0..130 {
            batch.push(message_delta("m1", n.to_string())).unwrap();
        }
        batch.flush().unwrap();
        batch.flush().unwrap();
        assert_eq!(lengths(&batch), [64, 64, 2]);
    }

    #[test]
    fn a_batch_has_at_most_256_kib() {
        let mut batch = Batch::with_sink(RecordingSink::default());
        for _ in 0..10 {
            batch.push(message_delta("m1", "x".repeat(31 * 1024))).unwrap();
        }
        batch.flush().unwrap();
        assert_eq!(lengths(&batch), [8, 2]);
    }

    #[test]
    fn escapes_count_as_json_has_them() {
        let mut batch = Batch::with_sink(RecordingSink::default());
        for _ in 0..10 {
            batch.push(message_delta("m1", "\u{1}".repeat(10 * 1024))).unwrap();
        }
        batch.flush().unwrap();
        assert_eq!(lengths(&batch), [4, 4, 2]);
    }

    #[test]
    fn a_refused_batch_is_dropped_and_the_next_goes_through() {
        let mut batch = Batch::with_sink(RecordingSink { refuse: Some(0), ..RecordingSink::default() });
        batch.push(message_delta("m1", "bad")).unwrap();
        assert_eq!(batch.flush().unwrap_err().code, ErrorCode::InvalidArgument);
        batch.push(message_delta("m1", "good")).unwrap();
        batch.flush().unwrap();
        assert_eq!(batch.sink().batches, [[message_delta("m1", "good")]]);
    }
}
