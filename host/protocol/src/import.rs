//! Results that only an importer writes: types beside those of the contract, for what a capture of another framework says and
//! no result of a runner can say.
//!
//! Threads show them as facts of source `import`. The host gives them no effect: nobody can answer an imported question.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    grant::Grant,
    id::{IdError, RunnerId},
};

/// Beginning of the ids of the runners of captures. The host itself executes their runs, and nothing configures them.
const RUNNERS: &str = "plugin:agent-host/import/";

crate::named_enum! {
    /// The form of native events.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Form {
        /// Chunks of a UI message stream or parts of a full stream of the AI SDK.
        AiSdk = "ai-sdk",
        /// Stream events of the OpenAI Agents SDK, for Python or for JavaScript.
        #[serde(rename = "openai-agents")]
        OpenAiAgents = "openai-agents",
        /// Parts of a stream of LangGraph, for Python or for JavaScript.
        #[serde(rename = "langgraph")]
        LangGraph = "langgraph",
        /// JSON-RPC messages of a session of the Model Context Protocol.
        Mcp = "mcp",
    }
}

impl Form {
    /// The runner of captures of this form: `plugin:agent-host/import/FORM`.
    ///
    /// # Errors
    /// None: the name of each form is a part of an id.
    pub fn runner(self) -> Result<RunnerId, IdError> {
        format!("{RUNNERS}{}", self.as_str()).parse()
    }

    /// The form of the captures whose runs this runner has; `None` for another runner.
    #[must_use]
    pub fn of_runner(id: &RunnerId) -> Option<Self> {
        Self::from_name(id.as_str().strip_prefix(RUNNERS)?)
    }

    /// The form of the capture that a run with this grant imports; `None` for another run, also for one of a plugin that has taken
    /// the name of such a runner.
    #[must_use]
    pub fn of_grant(grant: &Grant) -> Option<Self> {
        Self::of_runner(&grant.runner_id).filter(|_| grant.component.is_empty())
    }
}

/// The framework asked a person: [`ActionRequest`].
pub const ACTION_REQUESTED: &str = "import.action.requested";
/// The question of the framework has its outcome: [`ActionEnd`].
pub const ACTION_RESOLVED: &str = "import.action.resolved";
/// A tool of the framework reports its progress: [`ToolProgress`].
pub const TOOL_PROGRESS: &str = "import.tool.progress";
/// A task of the framework, such as a node of a graph, begins or begins again: [`TaskStart`].
pub const TASK_STARTED: &str = "import.task.started";
/// The task has ended, or waits for an answer: [`TaskEnd`].
pub const TASK_ENDED: &str = "import.task.ended";
/// An event that the importer does not know: [`NativeEvent`].
pub const NATIVE: &str = "import.native";

/// An executor has appended native events, and the results that follow are theirs: [`RawEvents`].
pub const EVENTS: &str = "import.events";

/// Every one.
pub const ALL: [&str; 7] = [ACTION_REQUESTED, ACTION_RESOLVED, TOOL_PROGRESS, TASK_STARTED, TASK_ENDED, NATIVE, EVENTS];

/// A question to a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionRequest {
    /// Id of the question.
    pub action_id: String,
    /// The tool call that waits for the answer: the question asks for permission to make the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The question in one line; absent where the capture has no words for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The value that the question shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// JSON Schema of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_schema: Option<Value>,
}

crate::named_enum! {
    /// The answer to a question.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ActionDecision {
        /// The call may be made, or the question was answered.
        Approve = "approve",
        /// Refused.
        Deny = "deny",
        /// Withdrawn without an answer.
        Cancel = "cancel",
        /// The capture goes on behind the question and does not say what was answered.
        Unknown = "unknown",
    }
}

/// The outcome of a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionEnd {
    /// Id of the question.
    pub action_id: String,
    /// The answer.
    pub decision: ActionDecision,
    /// Words of the person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The value that the person gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
}

/// The progress of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolProgress {
    /// Id of the call.
    pub tool_call_id: String,
    /// The part that is done.
    pub progress: f64,
    /// The whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// A message for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The start of a task. The same id again is another attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStart {
    /// Id of the task.
    pub task_id: String,
    /// Name of the task.
    pub name: String,
}

crate::named_enum! {
    /// The end of an attempt at a task.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum TaskOutcome {
        /// Well.
        Completed = "completed",
        /// With an error.
        Failed = "failed",
        /// The task waits for an answer, and begins again with it.
        Waiting = "waiting",
    }
}

/// The end of an attempt at a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskEnd {
    /// Id of the task.
    pub task_id: String,
    /// The end.
    pub outcome: TaskOutcome,
    /// The error of a task that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// An event of a framework that has no place among the results. The raw line is in the artifact of the capture in any case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NativeEvent {
    /// The form of the event.
    pub form: Form,
    /// Type of the event in its form; `unknown` where it has none.
    pub native_type: String,
    /// The event, where it is small and not deep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Value>,
    /// Size of an event that is not here, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// Native events that were appended together. What the translation of later ones needs to know follows from them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawEvents {
    /// Their form.
    pub form: Form,
    /// Number of the first, counted from 1 in the claim.
    pub first: u64,
    /// Their number.
    pub count: u64,
    /// The artifact that has them, one a line.
    pub artifact_id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_has_a_name_and_a_runner() {
        for form in Form::ALL {
            assert_eq!(serde_json::to_value(form).unwrap(), form.as_str());
            assert_eq!(Form::of_runner(&form.runner().unwrap()), Some(*form));
        }
        assert_eq!(Form::of_runner(&"plugin:agent-host/import/of-tomorrow".parse().unwrap()), None);
        assert_eq!(Form::of_runner(&"plugin:acme/import/mcp".parse().unwrap()), None);
    }
}
