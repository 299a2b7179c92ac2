//! The rules of a stream, by what breaks them.

/// The reason why an event may not be sent now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("{event} before RUN_STARTED")]
    NotStarted { event: &'static str },
    #[error("RUN_STARTED while a run is active")]
    StillActive,
    #[error("{event} after {terminal}")]
    Over { event: &'static str, terminal: &'static str },
    #[error("{event}: {item} is open already")]
    AlreadyOpen { event: &'static str, item: String },
    #[error("{event}: {item} is not open")]
    NotOpen { event: &'static str, item: String },
    #[error("RUN_FINISHED while these are open: {items}")]
    LeftOpen { items: String },
    #[error("{event}: tagged with {tag}, but {item} belongs to {owner}")]
    ForeignTag { event: &'static str, tag: String, item: String, owner: String },
    #[error("SUBAGENT_STARTED: `{id}` has ended in this run, and an id is of one invocation")]
    SubagentReused { id: String },
    #[error("SUBAGENT_STARTED: its parent `{parent}` was not started in this run")]
    UnknownParent { parent: String },
    #[error("{event}: {what}")]
    Malformed { event: &'static str, what: &'static str },

    // No client checks the rules that follow.
    #[error("RUN_STARTED without a protocol version")]
    NoVersion,
    #[error("RUN_FINISHED of run `{finished}`, but `{started}` is active")]
    OtherRun { started: String, finished: String },
    #[error("{event}: it belongs to the run as a whole, and takes no tag of a subagent")]
    Untaggable { event: &'static str },
    #[error("{event}: `{id}` is a message of another kind, and ids are unique among all")]
    TakenId { event: &'static str, id: String },
    #[error("{event}: it is of {tag}, but {item} belongs to {owner}")]
    Misattributed { event: &'static str, tag: String, item: String, owner: String },
    #[error("ACTIVITY_DELTA: there is no activity `{id}` to change")]
    UnknownActivity { id: String },
    #[error("TOOL_CALL_RESULT: there is no call `{id}`")]
    UnknownCall { id: String },
    #[error("TOOL_CALL_RESULT: call `{id}` has a result")]
    AnsweredTwice { id: String },
    #[error("MESSAGES_SNAPSHOT without {item}, which is open")]
    DroppedOpen { item: String },
    #[error("RUN_FINISHED: `{id}` is pending, but it is no call without a result, or named twice")]
    NotPending { id: String },
    #[error("RUN_FINISHED: call `{id}` has no result, and is not named as pending: clients take it for theirs")]
    Unanswered { id: String },
}

impl Violation {
    /// True if clients throw. Otherwise [`super::Verifier::admit`] has counted the event as sent all the same: a stream
    /// with a flaw is better than none.
    pub(crate) const fn throws(&self) -> bool {
        match self {
            Self::NotStarted { .. }
            | Self::StillActive
            | Self::Over { .. }
            | Self::AlreadyOpen { .. }
            | Self::NotOpen { .. }
            | Self::LeftOpen { .. }
            | Self::ForeignTag { .. }
            | Self::SubagentReused { .. }
            | Self::UnknownParent { .. }
            | Self::Malformed { .. } => true,
            Self::NoVersion
            | Self::OtherRun { .. }
            | Self::Untaggable { .. }
            | Self::TakenId { .. }
            | Self::Misattributed { .. }
            | Self::UnknownActivity { .. }
            | Self::UnknownCall { .. }
            | Self::AnsweredTwice { .. }
            | Self::DroppedOpen { .. }
            | Self::NotPending { .. }
            | Self::Unanswered { .. } => false,
        }
    }
}
