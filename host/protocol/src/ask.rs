//! Requests of a run to people: platform actions and questions (wit/capabilities.wit, `platform` and `interactions`).

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{encoded::JsonText, time::Timestamp};

/// The outcome of a platform action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionOutcome {
    /// The operator's webhook has done it, and answered this.
    Executed(Value),
    /// A person said no, for this reason.
    Denied(String),
    /// No answer came in time.
    Expired,
}

/// The kind of answer that a question asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum QuestionKind {
    Confirmation,
    Choice,
    Form,
    PlanReview,
}

/// A question to a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Kind of the answer.
    pub kind: QuestionKind,
    /// Title, one line.
    pub title: String,
    /// More of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the answer, with its members in the order of the runner: forms are shown in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_schema: Option<JsonText>,
    /// Time after which no answer is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// The answer of a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// This.
    Submitted(Value),
    /// The person declined, with an optional reason.
    Declined(Option<String>),
    /// No answer came in time.
    Expired,
}
