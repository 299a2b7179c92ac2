//! The errors of the kernel.

use std::time::Duration;

use agent_host_ledger::LedgerError;
use agent_host_protocol::{ApiError, ErrorCode, RunId, RunnerId};
use serde_json::json;

use super::action::Action;

/// The reason why a request was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// No such thing, or not for you.
    #[error("{0}")]
    NotFound(String),
    /// The request is malformed.
    #[error("{0}")]
    Invalid(String),
    /// The cursor is malformed, or belongs to another sequence.
    #[error("{0}")]
    InvalidCursor(String),
    /// The thing is not in a state for it.
    #[error("{0}")]
    Conflict(String),
    /// The claim of a run does not count any more.
    #[error("{0}")]
    ClaimLost(String),
    /// Results were left out between what the host has and what is appended.
    #[error("result {expected} is the next one of this claim, and these begin with {first}: append the missing results first")]
    SequenceGap {
        /// The number of the next.
        expected: u64,
        /// The number that came.
        first: u64,
    },
    /// Another result was appended under this number.
    #[error("result {number} of this claim was appended before with another content: number new results from the next one on")]
    ResultConflict {
        /// The number of the result.
        number: u64,
    },
    /// The gate has refused what an executor does for its run.
    #[error("{}", .0.message)]
    Refused(ApiError),
    /// An action was answered before, or takes no answer any more.
    #[error("{message}")]
    Answered {
        /// Description of the problem.
        message: String,
        /// The action with what was said first.
        action: Box<Action>,
    },
    /// The time for it is over.
    #[error("{0}")]
    Expired(String),
    /// The caller is unknown.
    #[error("{0}")]
    Unauthenticated(String),
    /// The caller has no right to the request.
    #[error("{0}")]
    Forbidden(String),
    /// The idempotency key was used for another request.
    #[error(
        "the idempotency key was used before for another request: use a new key for each request, and the same key only to repeat one"
    )]
    IdempotencyConflict,
    /// The line of the conversation is full.
    #[error("{waiting} runs already wait in this line: let some end or cancel them, then send the request again")]
    QueueFull {
        /// Number of waiting runs.
        waiting: usize,
    },
    /// The run wants an idle conversation, and another run of it is active.
    #[error("another run of this conversation is active: wait for its end, or cancel it, then send the request again")]
    Busy {
        /// The active run. `None` where it is being created in this moment.
        run_id: Option<RunId>,
    },
    /// The disk is nearly full.
    #[error("the disk of the ledger is nearly full ({0}): free some space, then send the event again")]
    InsufficientStorage(String),
    /// The workspace keeps as much as it may.
    #[error("{0}")]
    WorkspaceFull(String),
    /// The host is going down.
    #[error("the host is shutting down: send the event again when it is back")]
    ShuttingDown,
    /// No plugin holds the runner.
    #[error("no plugin holds {id}. {hint}")]
    RunnerNotFound {
        /// The runner.
        id: RunnerId,
        /// The existing names.
        hint: String,
    },
    /// The plugin of the runner may be among those that are still being compiled.
    #[error("{0} is not there yet: plugins are still being compiled; send the request again after `Retry-After`")]
    RunnerCompiling(RunnerId),
    /// The runs for a key have used the tokens of its day.
    #[error(
        "runs for the key `{key}` have used its {limit} tokens of today: wait until the day ends (UTC), or use a key with a larger \
         `tokens_per_day`"
    )]
    TokenBudget {
        /// Name of the key.
        key: String,
        /// Tokens of a day.
        limit: u64,
        /// Time until the next day.
        again_in: Duration,
    },
    /// The configuration does not fit the runner.
    #[error("{0}")]
    InvalidConfig(String),
    /// The ledger cannot write.
    #[error("{0}")]
    Unavailable(String),
    /// The host failed.
    #[error("the host failed: {0}")]
    Internal(String),
}

impl HostError {
    /// The refusal of a claim of an executor that holds as many runs as it has slots.
    #[must_use]
    pub fn no_free_slot(held: usize, slots: u32) -> Self {
        Self::Conflict(format!("the executor holds {held} runs, and has {slots} slots: finish some first"))
    }

    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "not_found",
            Self::Invalid(_) => "invalid_argument",
            Self::InvalidCursor(_) => "invalid_cursor",
            Self::Conflict(_) => "conflict",
            Self::ClaimLost(_) => "claim_lost",
            Self::SequenceGap { .. } => "sequence_gap",
            Self::Refused(_) => "refused",
            Self::Answered { .. } => "already_answered",
            Self::Expired(_) => "expired",
            Self::Unauthenticated(_) => "unauthenticated",
            Self::Forbidden(_) => "forbidden",
            Self::IdempotencyConflict | Self::ResultConflict { .. } => "idempotency_conflict",
            Self::QueueFull { .. } => "queue_full",
            Self::Busy { .. } => "conflict",
            Self::InsufficientStorage(_) => "insufficient_storage",
            Self::WorkspaceFull(_) => "workspace_full",
            Self::ShuttingDown => "shutting_down",
            Self::RunnerNotFound { .. } => "runner_not_found",
            Self::RunnerCompiling(_) => "runner_compiling",
            Self::TokenBudget { .. } => "token_budget_exhausted",
            Self::InvalidConfig(_) => "invalid_config",
            Self::Unavailable(_) => "unavailable",
            Self::Internal(_) => "internal",
        }
    }
}

impl From<LedgerError> for HostError {
    fn from(error: LedgerError) -> Self {
        let message = error.to_string();
        match error {
            LedgerError::IdempotencyConflict { .. } => Self::IdempotencyConflict,
            LedgerError::InvalidCursor { .. } => Self::InvalidCursor(message),
            LedgerError::InvalidLimit { .. } => Self::Invalid(message),
            LedgerError::NotFound { .. } => Self::NotFound(message),
            LedgerError::Fenced { .. } => Self::ClaimLost(message),
            LedgerError::Terminal { .. } | LedgerError::Active { .. } | LedgerError::Conflict { .. } => Self::Conflict(message),
            LedgerError::QuotaExceeded { .. } | LedgerError::TooLarge { .. } => Self::Invalid(message),
            LedgerError::DiskLow { .. } => Self::InsufficientStorage(message),
            LedgerError::WorkspaceFull { .. } => Self::WorkspaceFull(message),
            LedgerError::Storage { .. } | LedgerError::Reopening | LedgerError::Unavailable { .. } => Self::Unavailable(message),
            _ => Self::Internal(message),
        }
    }
}

/// The error for a guest when the ledger refuses or fails. The author of the guest cannot act on the reason, so only the
/// log has it.
pub(crate) fn ledger_failed(error: LedgerError) -> ApiError {
    if let LedgerError::Conflict { .. } = error {
        return ApiError::retryable(ErrorCode::Conflict, error.to_string());
    }
    if let LedgerError::QuotaExceeded { .. } | LedgerError::TooLarge { .. } = error {
        return ApiError::new(ErrorCode::PayloadTooLarge, error.to_string());
    }
    if let LedgerError::WorkspaceFull { bytes, limit, .. } = error {
        // The id of a workspace is the platform's: the runner has it in its context, where it may.
        let message = format!(
            "the workspace keeps {bytes} bytes and may keep {limit}: it takes nothing more until its operator raises the quota or \
             something of it is deleted"
        );
        let details = json!({ "code": "workspace_full", "bytes": bytes, "limit": limit });
        return ApiError { details: Some(details), ..ApiError::new(ErrorCode::PayloadTooLarge, message) };
    }
    if let LedgerError::Fenced { .. } = error {
        return ApiError::new(ErrorCode::Other("claim_lost".to_owned()), error.to_string());
    }
    match HostError::from(error) {
        HostError::InvalidCursor(message) | HostError::Invalid(message) => ApiError::invalid_argument(message),
        HostError::Conflict(message) => ApiError::new(ErrorCode::Conflict, message),
        other => {
            tracing::error!(error = %other, "a host call failed");
            ApiError::retryable(ErrorCode::RuntimeError, "the host failed in this call; its log has the reason")
        }
    }
}

/// The reason why a run has no recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// No such run.
    #[error("there is no run {0}")]
    NotFound(RunId),
    /// The run left no journal.
    #[error(
        "run {0} has no journal: it has not begun, its binding has another `durability` than `resume`, or its journal was removed \
         (`[retention] journals_ms`)"
    )]
    NoJournal(RunId),
    /// The file or entry is no recording.
    #[error("this is no recording that this version reads: {0}")]
    Malformed(String),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] agent_host_ledger::LedgerError),
}

impl From<RecordingError> for HostError {
    fn from(error: RecordingError) -> Self {
        match error {
            RecordingError::NotFound(_) => Self::NotFound(error.to_string()),
            RecordingError::NoJournal(_) => Self::Conflict(error.to_string()),
            RecordingError::Malformed(_) => Self::Invalid(error.to_string()),
            RecordingError::Ledger(error) => error.into(),
        }
    }
}

impl From<ApiError> for HostError {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}
