//! What a run asks people for: actions on a platform and questions (wit/capabilities.wit, `platform` and `interactions`).

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::time::Timestamp;

/// What came of a platform action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionOutcome {
    /// The operator's webhook has done it, and answered this.
    Executed(Value),
    /// A person said no, for this reason.
    Denied(String),
    /// Nobody said anything in time.
    Expired,
}

/// What kind of answer a question wants.
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
    /// What kind of answer it wants.
    pub kind: QuestionKind,
    /// One line.
    pub title: String,
    /// More of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_schema: Option<Value>,
    /// When nobody needs to answer any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// What a person answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// This.
    Submitted(Value),
    /// They would not say, perhaps for this reason.
    Declined(Option<String>),
    /// Nobody said anything in time.
    Expired,
}
