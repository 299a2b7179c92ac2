//! Open calls, and the tickets that settle them.

use std::collections::BTreeMap;

use super::{Effect, Function, Outcome, RequestDigest, entry};

/// The number of a call of one execution. The calls within a `tools.call-many` have numbers of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallId(pub(super) u64);

/// The right to settle one call. The write, or the outcome, that settles the call consumes it, so a call is settled once.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(super) call: CallId,
    /// Time on the clock of the run when the first execution made the call, in microseconds.
    pub(crate) began_us: u64,
    /// The effect that an earlier execution has started, and whose outcome is unknown.
    pub(crate) doubt: Option<Effect>,
}

impl Ticket {
    pub(crate) fn call(&self) -> CallId {
        self.call
    }
}

/// A call that the gate has not closed.
pub(super) struct OpenCall {
    pub(super) id: CallId,
    pub(super) function: Function,
    pub(super) part: u32,
    pub(super) digest: RequestDigest,
    /// True if an earlier execution recorded the start of the effect.
    pub(super) in_doubt: bool,
    pub(super) started: bool,
    pub(super) settled: bool,
    /// Entries of earlier executions for the calls within this one.
    pub(super) parts: BTreeMap<u32, Part>,
}

/// The entry of earlier executions for a call within another.
#[derive(Debug)]
pub(super) enum Part {
    Answered(Outcome),
    Doubt(Effect),
}

impl OpenCall {
    /// The call as an entry. The write that takes the entry along sets its time.
    pub(super) fn entry(&self) -> entry::Call {
        entry::Call {
            function: self.function.0,
            part: self.part,
            hash: self.digest.hash,
            outline: self.digest.outline.clone(),
            after_us: 0,
        }
    }

    /// The entry that settles the call.
    pub(super) fn end(&self, outcome: Outcome) -> entry::Entry {
        if self.started || self.in_doubt {
            entry::Entry::Ended { part: self.part, after_us: 0, outcome }
        } else {
            entry::Entry::Call(self.entry(), outcome)
        }
    }
}
