//! Results, and how a run ended.

use agent_host_protocol as p;
use p::ApiError;

use super::{
    artifact, json, json_option, message, parts, role, scope,
    service::{message_bytes, part_bytes},
};
use crate::bindings::{results as wr, runner as wx, types as wt};

/// Bytes of text in a result, near enough to its size as JSON to bound it before it is parsed.
pub(crate) fn result_bytes(result: &wr::RunResult) -> usize {
    match result {
        wr::RunResult::MessageDelta(chunk) | wr::RunResult::ReasoningDelta(chunk) => chunk.message_id.len() + chunk.text.len(),
        wr::RunResult::MessageCompleted(done) => done.message_id.len() + message_bytes(&done.message),
        wr::RunResult::ToolCallStarted(call) => call.call_id.len() + call.tool_name.len() + call.parameters.len(),
        wr::RunResult::ToolCallCompleted(call) => {
            let outcome = match &call.outcome {
                Ok(parts) => parts.iter().map(part_bytes).sum(),
                Err(error) => error.len(),
            };
            call.call_id.len() + call.tool_name.len() + outcome
        }
        wr::RunResult::ArtifactCreated(a) => part_bytes(&wt::ContentPart::Artifact(a.clone())),
        wr::RunResult::StateUpdated(update) => update.key.len() + update.value.len(),
        wr::RunResult::ActionRequested(action) => action.action.len() + action.target.len() + action.payload.len(),
        wr::RunResult::Other(other) => other.type_.len() + other.data.len(),
    }
}

pub(crate) fn result(result: wr::RunResult) -> Result<p::RunResult, ApiError> {
    use p::RunResult;
    Ok(match result {
        wr::RunResult::MessageDelta(chunk) => {
            RunResult::MessageDelta { message_id: chunk.message_id, role: role(chunk.role), text: chunk.text }
        }
        wr::RunResult::MessageCompleted(done) => {
            RunResult::MessageCompleted { message_id: done.message_id, message: message(done.message)? }
        }
        wr::RunResult::ReasoningDelta(chunk) => {
            RunResult::ReasoningDelta { message_id: chunk.message_id, role: role(chunk.role), text: chunk.text }
        }
        wr::RunResult::ToolCallStarted(call) => RunResult::ToolCallStarted {
            parameters: json("the parameters of a tool call", &call.parameters)?,
            call_id: call.call_id,
            tool_name: call.tool_name,
            message_id: call.message_id,
        },
        wr::RunResult::ToolCallCompleted(call) => RunResult::ToolCallCompleted {
            call_id: call.call_id,
            tool_name: call.tool_name,
            outcome: call.outcome.map(parts).transpose_ok()?,
        },
        wr::RunResult::ArtifactCreated(a) => RunResult::ArtifactCreated(artifact(a)),
        wr::RunResult::StateUpdated(update) => RunResult::StateUpdated {
            scope: scope(update.scope),
            value: json("the value of a state update", &update.value)?,
            key: update.key,
        },
        wr::RunResult::ActionRequested(action) => RunResult::ActionRequested {
            target: json("the target of an action", &action.target)?,
            payload: json("the payload of an action", &action.payload)?,
            action: action.action,
        },
        wr::RunResult::Other(other) => RunResult::Other { data: json("the data of a result", &other.data)?, kind: other.type_ },
    })
}

/// `Result<Result<T, E>, F>` where the inner error is the one that counts now.
trait TransposeOk<T, E, F> {
    fn transpose_ok(self) -> Result<Result<T, F>, E>;
}

impl<T, E, F> TransposeOk<T, E, F> for Result<Result<T, E>, F> {
    fn transpose_ok(self) -> Result<Result<T, F>, E> {
        match self {
            Ok(inner) => inner.map(Ok),
            Err(outer) => Ok(Err(outer)),
        }
    }
}

fn usage(usage: wt::TokenUsage) -> p::message::TokenUsage {
    let wt::TokenUsage { input, output, cached_input, reasoning } = usage;
    p::message::TokenUsage { input, output, cached_input, reasoning }
}

pub(crate) fn completion(done: wx::RunCompletion) -> Result<p::run::RunCompletion, ApiError> {
    Ok(p::run::RunCompletion {
        finish_reason: done.finish_reason,
        message: done.message.map(message).transpose()?,
        usage: done.usage.map(usage),
        metadata: json_option("the metadata of the completion", done.metadata)?,
    })
}

pub(crate) fn failure(failure: wx::RunFailure) -> Result<p::run::RunFailure, ApiError> {
    let code = if failure.code.is_empty() { p::FailureCode::RunnerError.as_str().to_owned() } else { failure.code };
    Ok(p::run::RunFailure {
        code,
        message: failure.message,
        retryable: failure.retryable,
        details: json_option("the details of the failure", failure.details)?,
    })
}
