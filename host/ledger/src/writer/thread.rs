//! The one thread that writes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    apply::{Batch, Memory, Outcome, apply, forget_expired_keys},
    error::LedgerError,
    files::DiskNeed,
    options::Options,
    rows::{Rows, Table},
    store::{Store, WriteError},
    writer::{
        Shared,
        queue::{QueuedOperation, TakeOutcome},
    },
};

/// Between two looks whether redb is open again.
const REOPENING: Duration = Duration::from_millis(2);
/// Between two looks for idempotency keys whose time is over, in the ledger of a cluster.
const FORGETTING: Duration = Duration::from_secs(60);
/// Between two looks whether the database of a cluster knows less than this host.
const DOUBT: Duration = Duration::from_millis(500);
/// Between two looks at a disk that has refused a write.
const PROBE: Duration = Duration::from_secs(1);

pub(crate) struct Writer {
    shared: Arc<Shared>,
    store: Store,
    memory: Memory,
    rows: Rows,
    bounds: Bounds,
    /// The time of the next look for idempotency keys whose time is over. `None` where a merge forgets them.
    forgets_at: Option<Instant>,
    untold: Option<Untold>,
}

struct Bounds {
    batch_operations: usize,
    batch_bytes: usize,
}

/// The writer has failed; the reason is in [`Shared`], or in [`Untold`].
struct WriterFailed;

/// The failure of the ledger of a cluster, which nobody is told yet. The end of the lease, which comes when the rows in memory are merged, ends
/// the process before: clients go on at the next active host.
struct Untold {
    reason: String,
    /// The callers of the last batch.
    outcome: Option<Outcome>,
    /// Operations that were taken from the queue after it.
    operations: Vec<QueuedOperation>,
}

impl Writer {
    pub(crate) fn new(options: &Options, shared: Arc<Shared>, store: Store) -> Result<Self, LedgerError> {
        let reader = store.reader()?;
        let memory = Memory::load(&reader)?;
        shared.counters.set_parked(reader.table(Table::Parked)?.len()?);
        shared.counters.set_in_memory(memory.active.len());
        drop(reader);
        let bounds = Bounds { batch_operations: options.batch_operations.max(1), batch_bytes: options.batch_bytes };
        let forgets_at = shared.lease.as_ref().map(|_| Instant::now());
        Ok(Self { shared, store, memory, rows: Rows::default(), bounds, forgets_at, untold: None })
    }

    /// Works until the queue is closed and empty, or the store fails.
    pub(crate) fn run(mut self) {
        // Ends the waits for this thread, however it ends.
        let shared = Arc::clone(&self.shared);
        let mut last_words = FinalStatus { shared: &shared, ended: false };
        let mut operations = Vec::new();
        let stopped = loop {
            match self.shared.queue.take(&mut operations, self.wakes_at()) {
                TakeOutcome::Closed => break Ok(()),
                TakeOutcome::TimedOut => {
                    if let Err(stopped) = self.probe() {
                        break Err(stopped);
                    }
                }
                TakeOutcome::Operations => {
                    let began = Instant::now();
                    if let Err(stopped) = self.carry_out(&mut operations) {
                        break Err(stopped);
                    }
                    self.shared.counters.busy(began.elapsed());
                }
            }
            if let Err(stopped) = self.forget_keys() {
                break Err(stopped);
            }
            self.store.merge_what_is_due();
        };
        // Operations admitted from here on are refused, and readers get the reason.
        let closed = self.store.close();
        match (stopped, closed) {
            (Ok(()), Ok(())) => self.shared.end("it was closed"),
            (Ok(()), Err(error)) => self.shared.fail(&format!("it could not be closed: {error}")),
            (Err(WriterFailed), _) => {
                if let Some(Untold { reason, outcome, operations }) = self.untold {
                    self.shared.fail(&reason);
                    outcome.into_iter().for_each(|outcome| outcome.answer(Err(&self.shared.unavailable())));
                    drop(operations);
                }
            }
        }
        drop(operations);
        last_words.ended = true;
    }

    fn carry_out(&mut self, operations: &mut Vec<QueuedOperation>) -> Result<(), WriterFailed> {
        let mut waiting = operations.drain(..).peekable();
        while waiting.peek().is_some() {
            let reader = self.store.reader().map_err(|error| self.fail(&error))?;
            let mut units = 0;
            let mut count = 0;
            let mut batch = Batch::new(&mut self.memory, &reader, &mut self.rows);
            while count < self.bounds.batch_operations
                && batch.bytes() < self.bounds.batch_bytes
                && let Some(QueuedOperation { operation, place, of_share }) = waiting.next()
            {
                units += place.units();
                count += 1;
                // Its run may queue another one, for the next batch.
                drop(of_share);
                apply(&mut batch, operation);
            }
            let (mut outcome, finished) = batch.finish();
            let written = match finished {
                Ok(()) => self.write(),
                Err(error) => Err(WriteError::Log(std::io::Error::other(error))),
            };
            self.rows.clear();
            let result = match written {
                Ok(()) => Ok(()),
                Err(WriteError::Log(error)) => self.refuse(&error),
                Err(WriteError::Store(error)) => Err(Err(self.fail(&error))),
            };
            self.shared.overlay.settle(std::mem::take(&mut outcome.admitted));
            self.shared.queue.release(units);
            if result.is_ok() {
                self.shared.views.count(&mut self.memory.usage);
                let parked = self.shared.counters.parked().saturating_add_signed(outcome.parked);
                self.shared.counters.set_parked(parked);
            }
            self.memory.trim();
            self.shared.counters.set_in_memory(self.memory.active.len());
            if let Err(failed) = self.answer(outcome, result) {
                if let Some(untold) = &mut self.untold {
                    untold.operations = waiting.collect();
                }
                return Err(failed);
            }
            self.store.merge_what_is_due();
        }
        Ok(())
    }

    /// Writes the rows of a batch. A batch that changes nothing costs nothing.
    fn write(&mut self) -> Result<(), WriteError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.shared.disk.check(DiskNeed::AnyWrite) {
            return Err(WriteError::Log(std::io::Error::other(error)));
        }
        self.commit()
    }

    fn commit(&mut self) -> Result<(), WriteError> {
        self.shared.commits.begin();
        let written = self.store.write(&self.rows);
        self.shared.commits.end(match &written {
            Ok(_) => None,
            Err(WriteError::Log(error)) => Some(error.to_string()),
            Err(WriteError::Store(error)) => Some(error.to_string()),
        });
        let log_bytes = written?;
        self.shared.counters.batch(self.rows.count(), log_bytes);
        Ok(())
    }

    /// The time of the next work that nobody asks for: a merge, or a look at a disk that has failed or at the lease.
    fn wakes_at(&self) -> Option<Instant> {
        let probe = self.shared.commits.have_failed().then(|| Instant::now() + PROBE);
        let probe = probe.or_else(|| self.shared.lease.as_ref().map(|_| Instant::now() + DOUBT));
        self.store.next_merge().into_iter().chain(probe).chain(self.forgets_at).min()
    }

    /// Writes a batch without rows where the last one was refused, so that a host which gets no events meanwhile becomes ready again, and where
    /// the database may have lost batches.
    fn probe(&mut self) -> Result<(), WriterFailed> {
        let is_doubted = self.shared.lease.as_ref().is_some_and(|lease| lease.take_doubt());
        if !is_doubted && !self.shared.commits.have_failed() {
            return Ok(());
        }
        match self.commit() {
            Ok(()) | Err(WriteError::Log(_)) => Ok(()),
            Err(WriteError::Store(error)) => Err(self.fail(&error)),
        }
    }

    /// Forgets idempotency keys whose time is over, by a batch of its own: copies change by the log alone.
    fn forget_keys(&mut self) -> Result<(), WriterFailed> {
        if self.forgets_at.is_none_or(|at| at > Instant::now()) {
            return Ok(());
        }
        self.forgets_at = Some(Instant::now() + FORGETTING);
        let forgotten = match self.store.reader() {
            Ok(reader) => forget_expired_keys(&reader, agent_host_protocol::time::now(), &mut self.rows),
            Err(error) => Err(error),
        };
        let written = match forgotten {
            Ok(()) if self.rows.is_empty() => Ok(()),
            Ok(()) => self.commit(),
            Err(LedgerError::Reopening) => Ok(()),
            Err(error) => Err(WriteError::Store(error)),
        };
        self.rows.clear();
        match written {
            Ok(()) | Err(WriteError::Log(_)) => Ok(()),
            Err(WriteError::Store(error)) => Err(self.fail(&error)),
        }
    }

    /// After a batch that was not written: the store is as before the batch, so memory is read from it again.
    #[allow(clippy::type_complexity, reason = "refused, or refused and stopped")]
    fn refuse(&mut self, error: &std::io::Error) -> Result<(), Result<LedgerError, WriterFailed>> {
        tracing::error!(%error, "a batch could not be written; nothing of it was");
        self.shared.merge_failure.refused();
        let loaded = loop {
            match self.store.reader().and_then(|reader| Memory::load(&reader)) {
                // The merging thread ends this: it opens redb, or fails the ledger.
                Err(LedgerError::Reopening) => std::thread::sleep(REOPENING),
                loaded => break loaded,
            }
        };
        match loaded {
            Ok(memory) => {
                self.memory = memory;
                Err(Ok(LedgerError::Storage(error.to_string().into())))
            }
            Err(error) => Err(Err(self.fail(&error))),
        }
    }

    fn answer(
        &mut self,
        mut outcome: Outcome,
        result: Result<(), Result<LedgerError, WriterFailed>>,
    ) -> Result<(), WriterFailed> {
        match result {
            Ok(()) => {
                self.shared.watchers.notify(&outcome.touched, std::mem::take(&mut outcome.turns));
                outcome.answer(Ok(()));
                Ok(())
            }
            Err(Ok(error)) => {
                outcome.answer(Err(&error));
                Ok(())
            }
            Err(Err(failed)) => {
                match &mut self.untold {
                    Some(untold) => untold.outcome = Some(outcome),
                    None => outcome.answer(Err(&self.shared.unavailable())),
                }
                Err(failed)
            }
        }
    }

    fn fail(&mut self, error: &LedgerError) -> WriterFailed {
        tracing::error!(%error, "the ledger has failed");
        let reason = error.to_string();
        if self.shared.lease.is_some() {
            self.untold = Some(Untold { reason, outcome: None, operations: Vec::new() });
        } else {
            self.shared.fail(&reason);
        }
        WriterFailed
    }
}

struct FinalStatus<'a> {
    shared: &'a Shared,
    ended: bool,
}

impl Drop for FinalStatus<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.shared.fail("its writer thread has died");
        }
        // A writer that has failed leaves what was admitted meanwhile.
        self.shared.queue.abandon();
    }
}

impl std::fmt::Debug for WriterFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stopped")
    }
}
