//! Writes to existing runs. No other code of the kernel submits a write of an existing run to the ledger.
//!
//! - [`RunWriter`] writes to the record of any run: one write, or a transaction that is made anew when another writer was
//!   faster.
//! - [`ExecutionWriter`] is the writer of one execution: it numbers the events, and each write takes along the journal
//!   entries and audit records that wait.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use agent_host_facts::record::Limit;
use agent_host_ledger::{
    AuditRecord, Commit, Ledger, LedgerError, NewContext, QueueShare, RunChange, RunRecord, RunWrite, StateWrite,
};
use agent_host_protocol::{ApiError, ErrorCode, EventSource, Run, RunId, encoded::json_string, run::Terminal, time};
use futures_util::{TryFutureExt, future::BoxFuture};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::record::{
    HostError,
    facts::Fact,
    journal::{CallId, Effect, Journal, Outcome, ReturnedEntries, Ticket},
    ledger_failed,
    terminal::results_lost,
    transcript::ItemPlace,
};

/// Pause between two tries of a write that the disk refused.
const STORAGE_PAUSE: Duration = Duration::from_secs(1);
/// Audit records that wait for a write to travel with; more go by themselves.
const MAX_AUDIT_WAITING: usize = 64;
/// Time that an audit record waits for a write to travel with. With the commit it stays below 100 ms.
const AUDIT_DELAY: Duration = Duration::from_millis(50);

/// The writer of one run.
#[derive(Clone)]
pub(crate) struct RunWriter {
    ledger: Ledger,
    run_id: RunId,
    run_no: u64,
    /// The claim that fences the writes: the ledger refuses them once the run has another claim.
    claim: Option<u32>,
}

/// The reaction of a transaction to a disk that refuses its write.
#[derive(Clone, Copy)]
pub(crate) enum OnStorageError<'a> {
    /// The write fails.
    Fail,
    /// The write is tried again until this token is cancelled: a full disk may have room later.
    Retry(&'a CancellationToken),
}

impl RunWriter {
    pub(crate) fn new(ledger: &Ledger, run_id: RunId, run_no: u64) -> Self {
        Self { ledger: ledger.clone(), run_id, run_no, claim: None }
    }

    pub(crate) fn of(ledger: &Ledger, record: &RunRecord) -> Self {
        Self::new(ledger, record.run.run_id, record.run_no)
    }

    /// The same writer, fenced by a claim.
    pub(crate) fn fenced(&self, claim: u32) -> Self {
        Self { claim: Some(claim), ..self.clone() }
    }

    /// Admits a write. The write is durable when the commit resolves; every later write of the run comes after it.
    pub(crate) fn append(&self, write: RunWrite) -> impl Future<Output = Result<Commit, LedgerError>> + Send + use<'_> {
        self.ledger.submit(RunWrite { run_no: self.run_no, claim: self.claim, ..write })
    }

    /// As [`Self::append`], in a share of the ledger's queue.
    fn append_within<'a>(
        &'a self,
        share: &'a QueueShare,
        write: RunWrite,
    ) -> impl Future<Output = Result<Commit, LedgerError>> + Send + use<'a> {
        self.ledger.submit_within(share, RunWrite { run_no: self.run_no, claim: self.claim, ..write })
    }

    /// Writes durably; gives the run as it is then.
    pub(crate) fn commit(&self, write: RunWrite) -> impl Future<Output = Result<Arc<Run>, LedgerError>> + Send + use<'_> {
        // Not an `async` block, which would have room for the first future twice.
        self.append(write).and_then(|commit| commit)
    }

    /// Writes durably the change that `make` derives from the record; `record` is the record as the caller has read it. If
    /// another writer has changed the record since, `make` is called again with the new one.
    pub(crate) async fn transact(
        &self,
        record: &RunRecord,
        on_storage_error: OnStorageError<'_>,
        mut make: impl FnMut(&RunRecord) -> Result<RunWrite, HostError>,
    ) -> Result<Arc<Run>, HostError> {
        let mut record = record.clone();
        loop {
            match self.commit(make(&record)?).await {
                Ok(run) => return Ok(run),
                // A refusal arrives after the write that caused it is visible.
                Err(error @ (LedgerError::Sequence { .. } | LedgerError::Transition(_))) => {
                    let now = self.record()?;
                    if now == record {
                        return Err(error.into());
                    }
                    record = now;
                }
                Err(LedgerError::Storage(reason)) if on_storage_error.retries() => {
                    tracing::error!(run_id = %self.run_id, %reason, "a write of a run was refused by the disk; trying again");
                    tokio::time::sleep(STORAGE_PAUSE).await;
                    record = self.record()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn record(&self) -> Result<RunRecord, HostError> {
        let record = self.ledger.run_by_no(self.run_no)?;
        record.ok_or_else(|| HostError::NotFound(format!("there is no run {}", self.run_id)))
    }
}

impl OnStorageError<'_> {
    fn retries(self) -> bool {
        match self {
            Self::Fail => false,
            Self::Retry(until) => !until.is_cancelled(),
        }
    }
}

/// The start of a run that is not written yet: it goes with the first write of the execution, so a run that says something
/// at once has one write less. Until then the run is as if it had not begun, for the host after a crash too.
#[derive(Clone)]
pub(crate) struct UnwrittenStart {
    pub(crate) change: RunChange,
    pub(crate) context: NewContext,
}

impl UnwrittenStart {
    fn put_before(self, write: RunWrite) -> RunWrite {
        let mut changes = vec![self.change];
        changes.extend(write.changes);
        RunWrite { changes, context: Some(self.context), ..write }
    }
}

impl From<UnwrittenStart> for RunWrite {
    fn from(start: UnwrittenStart) -> Self {
        start.put_before(Self::default())
    }
}

/// A write that was admitted.
pub(crate) struct PendingWrite {
    /// Sequence of the last event of the run.
    pub(crate) last: u64,
    /// `None` where it is durable already.
    commit: Option<Commit>,
}

impl PendingWrite {
    /// A write that is durable already.
    pub(crate) fn done(last: u64) -> Self {
        Self { last, commit: None }
    }

    /// Waits until it is durable.
    pub(crate) async fn durable(self) -> Result<(), ApiError> {
        match self.commit {
            Some(commit) => commit.await.map(drop).map_err(ledger_failed),
            None => Ok(()),
        }
    }
}

/// A write on its way to the ledger. The start, the audit records and the journal entries that travel with it go back where the
/// write is refused, or where its caller goes away before the ledger has admitted it.
struct Submission<'a> {
    writer: &'a ExecutionWriter,
    /// The call whose effect the write is.
    call: Option<CallId>,
    /// Sequence of the last event of the run, with the events of the write.
    last: u64,
    /// True if the ledger may refuse the write for a quota.
    in_doubt: bool,
    /// `None` until they are taken.
    parts: Option<(Option<UnwrittenStart>, Arc<[AuditRecord]>, ReturnedEntries)>,
    is_admitted: bool,
}

impl<'a> Submission<'a> {
    /// Makes the write and takes what travels with it. Not in the future of the caller, which would keep room for each of them.
    fn submit<M>(&mut self, make: M) -> Result<impl Future<Output = Result<Commit, LedgerError>> + Send + use<'a, M>, ApiError>
    where
        M: FnOnce(u64) -> Result<RunWrite, ApiError>,
    {
        let writer = self.writer;
        let mut write = make(writer.next_sequence())?;
        if let Some(place) = &writer.place {
            // Results of the runner have their items already.
            let facts = write.events.iter().filter(|event| event.source == EventSource::Host);
            write.transcript.extend(facts.filter_map(|event| place.of_event(event)));
        }
        self.last += write.events.len() as u64;
        // A quota that cannot be looked up is left to the ledger's writer as well.
        self.in_doubt = writer.may_meet_a_quota(&write.state).unwrap_or(true);
        let (journal, taken) = writer.journal.take().split();
        let audit: Arc<[_]> = std::mem::take(&mut *writer.audit.lock()).into();
        let write = RunWrite { audit: Arc::clone(&audit), journal, ..write };
        let start = writer.start.lock().take();
        let write = match start.clone() {
            Some(start) => start.put_before(write),
            None => write,
        };
        self.parts = Some((start, audit, taken));
        Ok(writer.writer.append_within(&writer.share, write))
    }
}

impl Drop for Submission<'_> {
    fn drop(&mut self) {
        let Some((start, audit, journal)) = self.parts.take().filter(|_| !self.is_admitted) else { return };
        *self.writer.start.lock() = start;
        self.writer.audit.lock().splice(..0, audit.iter().cloned());
        self.writer.journal.put_back(journal, self.call);
    }
}

/// The writer of one execution.
pub(crate) struct ExecutionWriter {
    writer: RunWriter,
    ledger: Ledger,
    /// The share of the run in the ledger's queue.
    share: QueueShare,
    journal: Arc<Journal>,
    /// The place of transcript items; `None` for a run without a conversation.
    place: Option<ItemPlace>,
    /// Sequence of the last event that was admitted.
    last_sequence: AtomicU64,
    /// Held while a sequence is taken and used.
    turn: tokio::sync::Mutex<()>,
    /// Travels with the next write.
    start: Mutex<Option<UnwrittenStart>>,
    /// Audit records that travel with the next write.
    audit: Mutex<Vec<AuditRecord>>,
    /// Notified when an audit record begins to wait.
    audit_waits: Notify,
}

impl ExecutionWriter {
    pub(crate) fn new(
        writer: RunWriter,
        journal: Arc<Journal>,
        place: Option<ItemPlace>,
        last_sequence: u64,
        start: Option<UnwrittenStart>,
    ) -> Self {
        let ledger = writer.ledger.clone();
        Self {
            writer,
            ledger,
            share: QueueShare::default(),
            journal,
            place,
            last_sequence: AtomicU64::new(last_sequence),
            turn: tokio::sync::Mutex::default(),
            start: Mutex::new(start),
            audit: Mutex::default(),
            audit_waits: Notify::new(),
        }
    }

    /// The claim under which the run is executed outside of the host.
    pub(crate) fn claim(&self) -> Option<u32> {
        self.writer.claim
    }

    pub(crate) fn last_sequence(&self) -> u64 {
        self.last_sequence.load(Ordering::Acquire)
    }

    /// The sequence of the next event.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.last_sequence() + 1
    }

    /// Writes to the record of the run. `make` is given the sequence of the first event. Journal entries and audit records
    /// that wait go with the write.
    pub(crate) async fn append(&self, make: impl FnOnce(u64) -> Result<RunWrite, ApiError>) -> Result<PendingWrite, ApiError> {
        self.write(None, make).await
    }

    /// Writes the start of the effect of a call.
    pub(crate) async fn start(
        &self,
        ticket: &Ticket,
        effect: Effect,
        make: impl FnOnce(u64) -> RunWrite,
    ) -> Result<PendingWrite, ApiError> {
        let make = |first| {
            self.journal.start(ticket, effect);
            Ok(make(first))
        };
        self.write(Some(ticket.call()), make).await
    }

    /// Writes the effect of a call together with its answer: both are one commit.
    pub(crate) async fn commit<T: Serialize>(
        &self,
        ticket: Ticket,
        make: impl FnOnce(u64) -> Result<(RunWrite, T), ApiError>,
    ) -> Result<(T, PendingWrite), ApiError> {
        let (call, mut answered) = (ticket.call(), None);
        let make = |first| {
            let (write, answer) = make(first)?;
            let text = json_string(&answer).map_err(|error| ApiError::invalid_argument(error.to_string()))?;
            self.journal.settle(ticket, Outcome::Answer(text), Vec::new());
            answered = Some(answer);
            Ok(write)
        };
        let written = self.write(Some(call), make).await?;
        let lost = || ApiError::new(ErrorCode::RuntimeError, "the host lost the answer of a write");
        answered.map(|answer| (answer, written)).ok_or_else(lost)
    }

    /// Only the writer of the ledger knows whether a write exceeds a quota of state. If a write may exceed one, this
    /// function waits for its commit; a refused write leaves no trace. `call` is the call whose effect the write is.
    async fn write(
        &self,
        call: Option<CallId>,
        make: impl FnOnce(u64) -> Result<RunWrite, ApiError>,
    ) -> Result<PendingWrite, ApiError> {
        let _turn = self.turn.lock().await;
        let before = self.last_sequence();
        let mut submission = Submission { writer: self, call, last: before, in_doubt: false, parts: None, is_admitted: false };
        let commit = submission.submit(make)?.await.map_err(ledger_failed)?;
        submission.is_admitted = true;
        let last = submission.last;
        // No await between the admission and this line, so that a dropped guest leaves no gap.
        self.last_sequence.store(last, Ordering::Release);
        if !submission.in_doubt {
            return Ok(PendingWrite { last, commit: Some(commit) });
        }
        match commit.await {
            Ok(_) => Ok(PendingWrite { last, commit: None }),
            Err(error) => {
                // Other writes of the run wait for the turn, so none has counted on.
                self.last_sequence.store(before, Ordering::Release);
                submission.is_admitted = false;
                Err(ledger_failed(error))
            }
        }
    }

    /// Adds a fact to the record of the run.
    pub(crate) async fn record_fact(&self, fact: &Fact) -> Result<(), ApiError> {
        self.append(|sequence| Ok(RunWrite { events: vec![fact.event(sequence, time::now())], ..RunWrite::default() }))
            .await
            .map(drop)
    }

    /// Writes the start of the run, where no write has taken it along.
    pub(crate) async fn write_start(&self) {
        if self.start.lock().is_none() {
            return;
        }
        if let Err(error) = self.write_waiting().await {
            tracing::error!(run_id = %self.writer.run_id, %error, "the start of a run could not be written; its next write tries again");
        }
    }

    /// Writes what waits, durably.
    pub(crate) async fn flush(&self) -> Result<(), ApiError> {
        self.write_waiting().await?.durable().await
    }

    /// Writes what waits. Rare beside the calls that may do it, so their futures have no room for it.
    fn write_waiting(&self) -> BoxFuture<'_, Result<PendingWrite, ApiError>> {
        Box::pin(self.append(|_| Ok(RunWrite::default())))
    }

    /// Adds a fact that is rare beside the calls that may add it, so their futures have no room for it.
    fn record_rare(&self, fact: Fact) -> BoxFuture<'_, Result<(), ApiError>> {
        Box::pin(async move { self.record_fact(&fact).await })
    }

    /// Writes what waits for a write to travel with, if it is much.
    pub(crate) async fn flush_if_full(&self) {
        if let Some(limit) = self.journal.just_full() {
            let effect = Some("the run can no longer be resumed".into());
            let fact =
                Fact::LimitReached(Limit { effect, limit: "journal_bytes".into(), value: Some(limit), ..Limit::default() });
            if let Err(error) = self.record_rare(fact).await {
                tracing::error!(run_id = %self.writer.run_id, %error, "a full journal could not be recorded");
            }
        }
        if self.audit.lock().len() < MAX_AUDIT_WAITING && !self.journal.has_many_waiting() {
            return;
        }
        if let Err(error) = self.write_waiting().await {
            tracing::error!(run_id = %self.writer.run_id, %error, "audit records and journal entries could not be written");
        }
    }

    /// Keeps an audit record for the next write.
    pub(crate) fn audit(&self, record: AuditRecord) {
        self.audit.lock().push(record);
        self.audit_waits.notify_one();
    }

    /// Writes audit records that no other write has taken along within [`AUDIT_DELAY`], as long as the future is polled.
    pub(crate) async fn write_waiting_audit(&self) -> Infallible {
        loop {
            self.audit_waits.notified().await;
            tokio::time::sleep(AUDIT_DELAY).await;
            if self.audit.lock().is_empty() {
                continue;
            }
            if let Err(error) = self.write_waiting().await {
                tracing::error!(run_id = %self.writer.run_id, %error, "audit records could not be written; the next write tries again");
            }
        }
    }

    /// Brings the run to its one end: status and terminal event in one commit. `make` is given the terminal and the sequence
    /// of the first event.
    ///
    /// The write is tried again while the disk refuses it, until `stopping` is cancelled. If earlier results of the run
    /// were lost to such a disk, the run ends as failed.
    pub(crate) fn end(
        &self,
        mut terminal: Terminal,
        stopping: &CancellationToken,
        make: impl Fn(&Terminal, u64) -> RunWrite,
    ) -> impl Future<Output = Result<Arc<Run>, HostError>> {
        let audit: Arc<[_]> = std::mem::take(&mut *self.audit.lock()).into();
        let (journal, _) = self.journal.take().split();
        let start = self.start.lock().take();
        // An end is not fenced: a run whose claim was lost in this moment ends all the same.
        let writer = RunWriter { claim: None, ..self.writer.clone() };
        let mut sequence = self.next_sequence();
        let whole = move |write: RunWrite| {
            let write = RunWrite { audit: Arc::clone(&audit), journal: journal.clone(), ..write };
            match start.clone() {
                Some(start) => start.put_before(write),
                None => write,
            }
        };
        async move {
            loop {
                match writer.commit(whole(make(&terminal, sequence))).await {
                    Ok(run) => {
                        self.last_sequence.store(run.last_sequence, Ordering::Release);
                        return Ok(run);
                    }
                    Err(LedgerError::Storage(reason)) if !stopping.is_cancelled() => {
                        tracing::error!(run_id = %writer.run_id, %reason, "the end of the run could not be written; trying again");
                        tokio::time::sleep(STORAGE_PAUSE).await;
                    }
                    Err(LedgerError::Sequence { expected, .. }) if sequence != expected => {
                        sequence = expected;
                        terminal = Terminal::Failed(results_lost());
                    }
                    Err(LedgerError::Transition(_)) if matches!(terminal, Terminal::Completed(_)) => {
                        terminal = Terminal::Failed(results_lost());
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    /// True if a write of state may exceed a quota: half of the quota is more than all writes that wait for their commit.
    fn may_meet_a_quota(&self, state: &[StateWrite]) -> Result<bool, ApiError> {
        // All that is written together counts, whichever scope it goes to.
        let (mut bytes, mut keys) = (0, 0);
        for write in state {
            let (Some(quota), Some(value)) = (write.quota, &write.value) else { continue };
            let used = self.ledger.state_usage(&write.scope_key).map_err(ledger_failed)?;
            bytes += (write.key.len() + value.get().len()) as u64;
            keys += 1;
            if used.bytes + bytes > quota.max_bytes / 2 || used.keys + keys > quota.max_keys / 2 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
