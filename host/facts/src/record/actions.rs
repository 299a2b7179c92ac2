//! Requests to people and to clients.

use std::borrow::Cow;

use agent_host_protocol::{Timestamp, named_enum};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::CallFailure;

/// A request. `R` is what is asked: the host writes a type of its own, others read the members.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ActionRequest<R = Map<String, Value>> {
    /// The action; none in requests that a runner makes by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_id: Option<String>,
    /// The request.
    #[serde(flatten)]
    pub request: R,
}

named_enum! {
    /// The decision of a person.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Decision {
        /// To an action: do it.
        Approve = "approve",
        /// To an action: do not.
        Deny = "deny",
        /// To a question or a call to a tool of the client: this is the answer.
        Submit = "submit",
        /// To a question: I will not say. To a call: I will not do it.
        Decline = "decline",
        /// To an effect in doubt: do it again, it did not happen, or twice does no harm.
        Repeat = "repeat",
        /// For an effect in doubt: do not repeat it. The runner receives the error `outcome_unknown`.
        Skip = "skip",
    }
}

/// The answer of a person, or of the client whose tool was called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionAnswer {
    /// The action.
    pub action_id: String,
    /// The answer to a question, or to a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// Time of the answer.
    #[serde(default)]
    pub at: Timestamp,
    /// The person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The decision.
    pub decision: Decision,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The outcome of a request.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ActionEnd {
    /// The action.
    pub action_id: String,
    /// The person who decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    /// The duration of what was carried out, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The failure of what was carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallFailure>,
    /// The outcome: `executed`, `failed`, `submitted`, `declined`, `denied`, `repeat`, `skip`, `expired` or `cancelled`.
    #[serde(default)]
    pub outcome: Cow<'static, str>,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The answer of the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}
