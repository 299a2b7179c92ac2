//! The three kinds of host call that the gate distinguishes, as types.
//!
//! - [`ReadCall`]: has no effect. The gate records the answer.
//! - [`LedgerWrite`]: its effect is a write of the ledger. [`Execution::commit`] makes answer and effect one commit.
//! - [`OutsideEffect`]: its effect is outside of the ledger. The start of the effect is durable before the effect begins
//!   ([`Execution::start`]), and [`Execution::settle`] records its outcome.
//!
//! The ticket of a call is the right to settle it. A commit or a settlement consumes it.

use std::{borrow::Cow, collections::BTreeMap, marker::PhantomData};

use agent_host_ledger::RunWrite;
use agent_host_protocol::ApiError;
use serde::Serialize;

use super::{Execution, answer::Answer, writer::PendingWrite};
use crate::record::journal::{Effect, Outcome, RequestDigest, Ticket};

/// A host call.
pub(crate) struct Call<'a, K> {
    /// `interface.function`.
    pub(super) action: Cow<'static, str>,
    /// The thing that the call is about.
    pub(super) resource: Option<&'a str>,
    pub(super) scope: Option<&'static str>,
    /// Bytes of the request.
    pub(super) bytes: usize,
    /// The request, as the journal keeps it.
    pub(super) digest: RequestDigest,
    pub(super) rate: Rate,
    kind: PhantomData<fn() -> K>,
}

/// The rate that a call counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rate {
    /// Of host calls: a call over the rate is refused.
    Calls,
    /// Of pieces: a call over the rate waits.
    Pieces,
    /// Of results, so many at once: a call over the rate waits.
    Results(usize),
}

/// A kind of host call.
pub(crate) trait Kind: Send + 'static {
    /// The part of the call's ticket that its effect is given.
    type Ticket: Send;

    fn ticket(ticket: Ticket) -> Self::Ticket;
}

/// A call without an effect.
pub(crate) enum ReadCall {}

/// A call whose effect is a write of the ledger.
pub(crate) enum LedgerWrite {}

/// A call whose effect is outside of the ledger.
pub(crate) enum OutsideEffect {}

/// The ticket of a [`LedgerWrite`].
pub(crate) struct WriteTicket(Ticket);

/// The ticket of an [`OutsideEffect`].
pub(crate) struct EffectTicket(Ticket);

impl Kind for ReadCall {
    type Ticket = ();

    fn ticket(_: Ticket) {}
}

impl Kind for LedgerWrite {
    type Ticket = WriteTicket;

    fn ticket(ticket: Ticket) -> WriteTicket {
        WriteTicket(ticket)
    }
}

impl Kind for OutsideEffect {
    type Ticket = EffectTicket;

    fn ticket(ticket: Ticket) -> EffectTicket {
        EffectTicket(ticket)
    }
}

impl<'a> Call<'a, ReadCall> {
    pub(crate) fn read(action: impl Into<Cow<'static, str>>, digest: RequestDigest) -> Self {
        Self::new(action, digest)
    }
}

impl<'a> Call<'a, LedgerWrite> {
    pub(crate) fn write(action: impl Into<Cow<'static, str>>, digest: RequestDigest) -> Self {
        Self::new(action, digest)
    }

    /// A batch of results. They have a rate of their own, and a run that emits faster waits: a refusal would lose what a model
    /// has said.
    pub(crate) fn results(action: impl Into<Cow<'static, str>>, digest: RequestDigest, count: usize) -> Self {
        Self { rate: Rate::Results(count), ..Self::new(action, digest) }
    }
}

impl<'a> Call<'a, OutsideEffect> {
    pub(crate) fn effect(action: impl Into<Cow<'static, str>>, digest: RequestDigest) -> Self {
        Self::new(action, digest)
    }

    /// The next piece of a stream that was granted when it was opened. A guest that reads a fast stream waits, and then gets
    /// more at once: a refusal in the middle of a stream would help nobody.
    pub(crate) fn piece(action: impl Into<Cow<'static, str>>, digest: RequestDigest) -> Self {
        Self { rate: Rate::Pieces, ..Self::new(action, digest) }
    }
}

impl<'a, K> Call<'a, K> {
    fn new(action: impl Into<Cow<'static, str>>, digest: RequestDigest) -> Self {
        Self { action: action.into(), resource: None, scope: None, bytes: 0, digest, rate: Rate::Calls, kind: PhantomData }
    }

    pub(crate) fn resource(self, resource: impl Into<Option<&'a str>>) -> Self {
        Self { resource: resource.into(), ..self }
    }

    pub(crate) fn scope(self, scope: &'static str) -> Self {
        Self { scope: Some(scope), ..self }
    }

    pub(crate) fn bytes(self, bytes: usize) -> Self {
        Self { bytes, ..self }
    }
}

impl WriteTicket {
    /// Time on the clock of the run when the call was made first, in microseconds.
    pub(crate) fn began_us(&self) -> u64 {
        self.0.began_us
    }
}

impl EffectTicket {
    /// Time on the clock of the run when the call was made first, in microseconds.
    pub(crate) fn began_us(&self) -> u64 {
        self.0.began_us
    }

    /// The effect that an earlier execution has started, and whose outcome is unknown.
    pub(crate) fn doubt(&self) -> Option<Effect> {
        self.0.doubt
    }

    pub(super) fn inner(&self) -> &Ticket {
        &self.0
    }
}

/// A call that has passed the gate.
pub(crate) struct PassedCall<T> {
    pub(crate) outcome: Result<T, ApiError>,
    /// The rest of the journal entry, where an earlier execution made the call.
    pub(crate) past: Option<PastCall>,
}

/// The record of a call of an earlier execution, besides its outcome.
pub(crate) struct PastCall {
    /// The number of its effect; 0 where it had none.
    pub(crate) number: u64,
    /// The outcomes of the calls within it, by part.
    pub(crate) parts: BTreeMap<u32, Outcome>,
}

impl Execution {
    /// Writes the effect of a call. `make` gives the write and the answer of the call; both are one commit.
    ///
    /// # Errors
    /// Fails if `make` fails or the ledger refuses the write. No row is written then, and the gate records the error as the
    /// outcome.
    pub(crate) async fn commit<T: Serialize>(
        &self,
        ticket: WriteTicket,
        make: impl FnOnce(u64) -> Result<(RunWrite, T), ApiError>,
    ) -> Result<(T, PendingWrite), ApiError> {
        self.writer.commit(ticket.0, make).await
    }

    /// Records that a call waits: a later execution counts the time from here.
    pub(crate) fn start_wait(&self, ticket: &WriteTicket) {
        self.journal.start(&ticket.0, Effect { number: 0 });
    }

    /// Records the start of an effect that leaves no fact, with the next write. The effect itself begins by parts, which
    /// wait for entries of their own.
    pub(crate) fn start(&self, ticket: &EffectTicket) {
        self.journal.start(&ticket.0, Effect { number: 0 });
    }

    /// Records the outcome of an effect before the call ends, so that it travels with the fact of the end.
    pub(crate) async fn settle<T: Answer>(&self, ticket: EffectTicket, outcome: &Result<T, ApiError>) -> Result<(), ApiError> {
        let (outcome, blobs) = self.recorded(outcome).await?;
        self.journal.settle(ticket.0, outcome, blobs);
        Ok(())
    }
}
