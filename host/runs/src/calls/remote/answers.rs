//! The answer of each function that is not a value of the protocol already: an object, so that fields can be added later.

use agent_host_protocol::{
    ApiError, Interface, RunId,
    ask::{ActionOutcome, Answer},
    child::RunSummary,
    http::HttpHead,
    tool::ToolOutput,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serialize;
use serde_json::{Value, json};

macro_rules! answers {
    ($($(#[$outer:meta])* $name:ident $(<$t:ident>)? { $($(#[$attribute:meta])* $member:ident: $type:ty),* $(,)? })*) => {$(
        #[derive(Serialize)]
        $(#[$outer])*
        pub(super) struct $name $(<$t>)? { $($(#[$attribute])* pub(super) $member: $type),* }
    )*};
}

answers! {
    /// Success without a value.
    Done {}
    Items<T> { items: Vec<T> }
    Hits<T> { hits: Vec<T> }
    Vectors { vectors: Vec<Vec<f32>> }
    Tokens { tokens: u64 }
    Keys { keys: Vec<String> }
    /// Absent where there is no value: a value may be `null`.
    Found {
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<Value>,
    }
    /// As Base64.
    Bytes {
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<String>,
    }
    Content { content: String }
    Inputs<T> { inputs: Vec<T> }
    Started { run_id: RunId }
    /// `null` where none has ended.
    Ended { run: Option<RunSummary> }
    Outcomes { outcomes: Vec<Outcome> }
}

/// The outcome of one part of a `call-many`.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Output(ToolOutput),
    Error(ApiError),
}

impl From<Result<ToolOutput, ApiError>> for Outcome {
    fn from(outcome: Result<ToolOutput, ApiError>) -> Self {
        outcome.map_or_else(Self::Error, Self::Output)
    }
}

pub(super) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// In the words of `action.resolved`.
pub(super) fn of_action(outcome: ActionOutcome) -> Value {
    match outcome {
        ActionOutcome::Executed(result) => json!({ "outcome": "executed", "result": result }),
        ActionOutcome::Denied(reason) => json!({ "outcome": "denied", "reason": reason }),
        ActionOutcome::Expired => json!({ "outcome": "expired" }),
    }
}

/// Likewise.
pub(super) fn of_question(answer: Answer) -> Value {
    match answer {
        Answer::Submitted(answer) => json!({ "outcome": "submitted", "answer": answer }),
        Answer::Declined(Some(reason)) => json!({ "outcome": "declined", "reason": reason }),
        Answer::Declined(None) => json!({ "outcome": "declined" }),
        Answer::Expired => json!({ "outcome": "expired" }),
    }
}

/// A response of somebody outside: its body is a text where it is one, else Base64.
#[derive(Serialize)]
pub(super) struct Response {
    #[serde(flatten)]
    head: HttpHead,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
}

impl Response {
    pub(super) fn new(head: HttpHead, bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self { head, text: Some(text), body: None },
            Err(error) => Self { head, text: None, body: Some(base64(error.as_bytes())) },
        }
    }
}

/// Unreachable by a valid table: a function that the table does not name is refused before.
pub(super) fn not_here(interface: Interface, function: &str) -> ApiError {
    tracing::error!(%interface, function, "a function of the table has no way to it");
    ApiError::new(agent_host_protocol::ErrorCode::RuntimeError, "the host does not implement this function; its log has details")
}
