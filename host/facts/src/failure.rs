//! Failures: one closed list of categories, and what to do about each code of the host.

use std::fmt;

use agent_host_protocol::{ErrorCode, FailureCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The category of a failure, the same for turns, tools, model calls and tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailureCategory {
    /// The grant, the policy or a person refused it.
    PermissionDenied,
    /// A rule of the sandbox stopped the runner.
    SandboxBlocked,
    /// A tool ran and failed.
    ToolFailed,
    /// A model failed, or answered something unusable.
    ModelFailed,
    /// No model or service is configured or ready.
    ProviderNotReady,
    /// Too many calls at once or in a time.
    RateLimit,
    /// The budget or the quota is used up.
    BudgetExceeded,
    /// The deadline passed.
    DeadlineExceeded,
    /// A person or a client stopped it, or the work around it ended.
    Cancelled,
    /// A person must do something first; nobody did in time.
    RequiresUserAction,
    /// A request or a response is larger than its limit.
    PayloadTooLarge,
    /// An argument or a configuration is malformed.
    InvalidArgument,
    /// The thing does not exist.
    MissingTarget,
    /// The write lost against another.
    Conflict,
    /// The runner crashed.
    RunnerCrashed,
    /// The runner broke the contract.
    ProtocolViolation,
    /// The runner says that it failed, with a code of its own.
    ExecutionFailed,
    /// The host or the executor stopped before the end.
    HostRestarted,
    /// No executor held the run to its end.
    ExecutorLost,
    /// A service or a connection broke on the way.
    StreamInterrupted,
    /// The host failed.
    InternalError,
    /// The record does not say why.
    Unknown,
}

impl FailureCategory {
    /// Every one.
    pub const ALL: [Self; 22] = [
        Self::PermissionDenied,
        Self::SandboxBlocked,
        Self::ToolFailed,
        Self::ModelFailed,
        Self::ProviderNotReady,
        Self::RateLimit,
        Self::BudgetExceeded,
        Self::DeadlineExceeded,
        Self::Cancelled,
        Self::RequiresUserAction,
        Self::PayloadTooLarge,
        Self::InvalidArgument,
        Self::MissingTarget,
        Self::Conflict,
        Self::RunnerCrashed,
        Self::ProtocolViolation,
        Self::ExecutionFailed,
        Self::HostRestarted,
        Self::ExecutorLost,
        Self::StreamInterrupted,
        Self::InternalError,
        Self::Unknown,
    ];

    /// The category as JSON shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PermissionDenied => "permission_denied",
            Self::SandboxBlocked => "sandbox_blocked",
            Self::ToolFailed => "tool_failed",
            Self::ModelFailed => "model_failed",
            Self::ProviderNotReady => "provider_not_ready",
            Self::RateLimit => "rate_limit",
            Self::BudgetExceeded => "budget_exceeded",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Cancelled => "cancelled",
            Self::RequiresUserAction => "requires_user_action",
            Self::PayloadTooLarge => "payload_too_large",
            Self::InvalidArgument => "invalid_argument",
            Self::MissingTarget => "missing_target",
            Self::Conflict => "conflict",
            Self::RunnerCrashed => "runner_crashed",
            Self::ProtocolViolation => "protocol_violation",
            Self::ExecutionFailed => "execution_failed",
            Self::HostRestarted => "host_restarted",
            Self::ExecutorLost => "executor_lost",
            Self::StreamInterrupted => "stream_interrupted",
            Self::InternalError => "internal_error",
            Self::Unknown => "unknown",
        }
    }

    /// The category with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|category| category.as_str() == name)
    }

    /// The category of a code of the host, of a provider or of a runner. `None` for codes that no list of the host has.
    #[must_use]
    pub fn of_code(code: &str) -> Option<Self> {
        let failure = FailureCode::ALL.into_iter().find(|failure| failure.as_str() == code);
        failure.map(of_failure).or_else(|| of_provider(code)).or_else(|| of_error(&ErrorCode::from(code)))
    }

    /// The remedy where only the category is known.
    #[must_use]
    pub const fn hint(self) -> &'static str {
        match self {
            Self::PermissionDenied => "Compare the grant of the run with its manifest and its binding, or ask for approval.",
            Self::SandboxBlocked => "Raise the limit that the message names, or let the runner need less.",
            Self::ToolFailed => "Look at the error of the tool, correct the arguments, and call it again.",
            Self::ModelFailed => "Look at the error of the model, then send the message again.",
            Self::ProviderNotReady => "Configure the model or the service, then send the message again.",
            Self::RateLimit => "Wait, then repeat; make fewer calls at once.",
            Self::BudgetExceeded => "Raise the budget of the binding or the quota of the provider, or finish with what there is.",
            Self::DeadlineExceeded => "Raise `deadline_ms` of the binding, or do less.",
            Self::Cancelled => "None needed: start another turn to go on.",
            Self::RequiresUserAction => "Ask again, and answer before the action expires.",
            Self::PayloadTooLarge => "Send less, or pass it as an artifact.",
            Self::InvalidArgument => "Correct what the message names.",
            Self::MissingTarget => "Look the id up in a list.",
            Self::Conflict => "Read again, then write.",
            Self::RunnerCrashed => "Look at the last words in the details of the run, and fix the runner.",
            Self::ProtocolViolation => "Fix the runner: it broke the contract.",
            Self::ExecutionFailed => "Look at the message: the runner knows.",
            Self::HostRestarted => "Send the message again if it should be answered.",
            Self::ExecutorLost => "Look at the executors of the queue, then put the run back.",
            Self::StreamInterrupted => "Repeat it.",
            Self::InternalError => "Look at the log of the host, then send the message again.",
            Self::Unknown => "Look at the record of the run.",
        }
    }
}

impl fmt::Display for FailureCategory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The remedy for a code: the one of the host's own codes, else that of the category.
#[must_use]
pub fn recovery_hint(code: &str, category: FailureCategory) -> &'static str {
    let failure = FailureCode::ALL.into_iter().find(|failure| failure.as_str() == code);
    failure.map_or_else(|| category.hint(), hint_of_failure)
}

const fn hint_of_failure(code: FailureCode) -> &'static str {
    match code {
        FailureCode::RunnerError => "Look at the message; the runner knows.",
        FailureCode::GuestTrapped => "The log in the details of the run has the last words of the runner.",
        FailureCode::GuestExited => "Let the runner return a completion or a failure.",
        FailureCode::GuestMemory => "Raise `limits.guest_memory_bytes`, or let the runner keep less.",
        FailureCode::GuestStack => "Let the runner recurse less.",
        FailureCode::GuestAbuse => "Let the runner pass large content by artifact.",
        FailureCode::InvalidResult => "Fix the runner: its return value breaks the contract.",
        FailureCode::RunnerNotFound => "Drop the component of the runner into the plugins directory.",
        FailureCode::RunnerStart => "The message says why the component cannot start.",
        FailureCode::DeadlineExceeded => "Raise `deadline_ms` of the binding, or do less.",
        FailureCode::CpuExceeded => "Raise `limits.tree_cpu_ms`, or let the runner and its children compute less.",
        FailureCode::Cancelled => "None needed: start another turn to go on.",
        FailureCode::HostRestarted => "Send the message again if it should be answered.",
        FailureCode::ReplayDiverged => "The details of the run have both sides of the first difference.",
        FailureCode::LeaseLost => "Look at the executors of the run, then put the run back.",
        FailureCode::ClaimTimeout => "Start an executor for the queue of the run, then put the run back.",
        FailureCode::InvalidConfig => "Correct the keys of the binding that the message names.",
        // `HostError`, and codes of later versions.
        _ => "Look at the log of the host, then send the message again.",
    }
}

const fn of_failure(code: FailureCode) -> FailureCategory {
    match code {
        FailureCode::RunnerError => FailureCategory::ExecutionFailed,
        FailureCode::GuestTrapped | FailureCode::GuestExited => FailureCategory::RunnerCrashed,
        FailureCode::GuestMemory | FailureCode::GuestStack | FailureCode::GuestAbuse => FailureCategory::SandboxBlocked,
        FailureCode::InvalidResult | FailureCode::ReplayDiverged => FailureCategory::ProtocolViolation,
        FailureCode::RunnerNotFound => FailureCategory::MissingTarget,
        FailureCode::RunnerStart | FailureCode::InvalidConfig => FailureCategory::InvalidArgument,
        FailureCode::DeadlineExceeded => FailureCategory::DeadlineExceeded,
        FailureCode::CpuExceeded => FailureCategory::BudgetExceeded,
        FailureCode::Cancelled => FailureCategory::Cancelled,
        FailureCode::HostRestarted => FailureCategory::HostRestarted,
        FailureCode::LeaseLost | FailureCode::ClaimTimeout => FailureCategory::ExecutorLost,
        // `HostError`, and codes of later versions.
        _ => FailureCategory::InternalError,
    }
}

fn of_error(code: &ErrorCode) -> Option<FailureCategory> {
    Some(match code {
        ErrorCode::Unauthorized => FailureCategory::PermissionDenied,
        ErrorCode::NotFound => FailureCategory::MissingTarget,
        ErrorCode::DeadlineExceeded => FailureCategory::DeadlineExceeded,
        ErrorCode::PayloadTooLarge => FailureCategory::PayloadTooLarge,
        ErrorCode::RateLimited => FailureCategory::RateLimit,
        ErrorCode::InvalidArgument => FailureCategory::InvalidArgument,
        ErrorCode::Conflict => FailureCategory::Conflict,
        ErrorCode::Cancelled => FailureCategory::Cancelled,
        ErrorCode::RuntimeError => FailureCategory::InternalError,
        _ => return None,
    })
}

/// Codes in the details of errors (docs/MODELS.md, docs/TOOLS.md, docs/APPROVALS.md, docs/EGRESS.md).
fn of_provider(code: &str) -> Option<FailureCategory> {
    Some(match code {
        "provider_not_ready" | "no_action_hook" => FailureCategory::ProviderNotReady,
        "provider_rate_limited" | "http_requests_at_once" | "child_runs_at_once" => FailureCategory::RateLimit,
        "quota_exceeded" | "budget_exhausted" => FailureCategory::BudgetExceeded,
        "context_length_exceeded" | "request_too_large" | "response_too_large" => FailureCategory::PayloadTooLarge,
        "operation_not_supported" | "extra_argument_refused" => FailureCategory::InvalidArgument,
        "model_not_found" => FailureCategory::MissingTarget,
        "provider_unauthorized"
        | "provider_refused"
        | "provider_unavailable"
        | "provider_error"
        | "provider_stalled"
        | "invalid_response"
        | "invalid_tool_call"
        | "script_unmatched"
        | "scripted_error" => FailureCategory::ModelFailed,
        "stream_interrupted" | "response_interrupted" => FailureCategory::StreamInterrupted,
        "denied_by_policy" | "child_runs" | "child_depth" => FailureCategory::PermissionDenied,
        "tool_error" => FailureCategory::ToolFailed,
        "effect_in_doubt" => FailureCategory::HostRestarted,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_category_reads_back_and_has_a_hint() {
        for category in FailureCategory::ALL {
            assert_eq!(FailureCategory::from_name(category.as_str()), Some(category));
            assert_eq!(serde_json::to_value(category).unwrap(), category.as_str());
            assert!(!category.hint().is_empty());
        }
    }

    #[test]
    fn every_code_of_the_host_has_a_category_and_a_hint() {
        for code in FailureCode::ALL {
            let category = FailureCategory::of_code(code.as_str()).unwrap();
            assert!(category != FailureCategory::Unknown && !recovery_hint(code.as_str(), category).is_empty(), "{code}");
        }
        for code in ErrorCode::NAMED {
            assert!(FailureCategory::of_code(code.as_str()).is_some(), "{code}");
        }
        assert_eq!(FailureCategory::of_code("my.code"), None);
    }
}
