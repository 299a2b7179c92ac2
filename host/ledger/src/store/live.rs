//! The store of an open ledger, for the writer: a batch is durable in the log, then visible in memory, and merged into redb
//! later.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    error::{LedgerError, OpenError},
    options::Options,
    rows::{Layer, MalformedRow, Reader, Rows, View, Views},
    store::{
        Files, Identity, OpenedStore, io_error,
        log::{AppendError, Log},
        merge::{Job, MergeEvents, MergeState, Merger, Place},
    },
};

/// Interval between checks for the end of a merge while another merge waits.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

pub(crate) struct Store {
    dir: PathBuf,
    files: Files,
    /// Key of the checksums in the log, for `ledger.identity`. `None` for a copy of a cluster's ledger, which has no such file.
    identity: Option<u64>,
    log: Box<dyn Log>,
    views: Arc<Views>,
    merger: Merger,
    /// Rows of the part of the log that is being written.
    fresh: Layer,
    /// Time at which the first batch in `fresh` was written.
    behind_since: Option<Instant>,
    part_bytes: u64,
    interval: Duration,
}

/// The reason why a batch was not written.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// The log has failed, and nothing is changed. The next batch may succeed.
    Log(io::Error),
    /// The store has failed and cannot go on.
    Store(LedgerError),
}

impl From<AppendError> for WriteError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Refused(error) => Self::Log(error),
            AppendError::Lost(error) => Self::Store(error),
        }
    }
}

/// Bytes of frames that one part of the log has room for: half as much again as what a merge is begun with, so that the
/// writer can go on while the merge before is under way.
pub(crate) fn part_room(options: &Options) -> u64 {
    options.checkpoint_wal_bytes.saturating_add(options.checkpoint_wal_bytes / 2)
}

/// The place of the log.
pub(crate) enum LogSource {
    /// Files beside redb.
    Files,
    /// The log of a cluster, whose copy redb is.
    Cluster(Box<dyn Log>),
}

impl Store {
    /// Starts merging. `views` shows what `opened` has.
    pub(crate) fn start(
        mut opened: OpenedStore,
        log: LogSource,
        options: &Options,
        views: Arc<Views>,
        events: MergeEvents,
        files: Files,
    ) -> Result<Self, OpenError> {
        let dir: &Path = &options.dir;
        let (log, identity): (Box<dyn Log>, _) = match log {
            LogSource::Files => {
                let log = opened.log(dir, part_room(options), &files)?;
                let seed = opened.seed;
                if Identity::read(dir).map_err(io_error("read", dir))?.is_none() {
                    Identity { seed, last: opened.last }.write(dir, &files).map_err(io_error("write the identity of", dir))?;
                }
                (Box::new(log), Some(seed))
            }
            // The cluster knows which ledger it is, and how far it has come.
            LogSource::Cluster(log) => (log, None),
        };
        let place = Place {
            dir: options.dir.clone(),
            cache_bytes: options.cache_bytes,
            views: Arc::clone(&views),
            events,
            files: Files::clone(&files),
        };
        let merger = Merger::start(opened.database, place).map_err(io_error("start a thread for", dir))?;
        Ok(Self {
            dir: options.dir.clone(),
            files,
            identity,
            log,
            views,
            merger,
            fresh: Layer::default(),
            behind_since: None,
            part_bytes: options.checkpoint_wal_bytes,
            interval: options.checkpoint_interval,
        })
    }

    /// The committed rows.
    ///
    /// # Errors
    /// Fails if the ledger has failed.
    pub(crate) fn reader(&self) -> Result<Reader, LedgerError> {
        let view: Option<Arc<View>> = self.views.current();
        view.map(Reader::new).ok_or_else(|| LedgerError::unavailable("it has failed"))
    }

    /// Makes the changes durable and visible, in this order; returns their bytes in the log. Waits for a merge if the log
    /// has no room.
    pub(crate) fn write(&mut self, rows: &Rows) -> Result<u64, WriteError> {
        self.make_room(rows.bytes().len())?;
        let fresh = self.with(rows.bytes())?;
        let bytes = self.log.append(rows.bytes())?;
        self.show(fresh, self.log.last());
        Ok(bytes)
    }

    /// Makes the changes visible, which are durable: the log of a cluster has them. The caller moves the end of the log afterwards.
    pub(crate) fn follow(&mut self, payload: &[u8]) -> Result<(), WriteError> {
        self.make_room(payload.len())?;
        let fresh = self.with(payload)?;
        self.show(fresh, self.log.last() + 1);
        Ok(())
    }

    /// Waits for a merge if the log has no room.
    fn make_room(&mut self, bytes: usize) -> Result<(), WriteError> {
        if !self.log.has_room(bytes) {
            match self.merger.wait() {
                MergeState::Failing(reason) => {
                    let reason = format!("the log is full, and redb takes no rows: {reason}");
                    return Err(WriteError::Log(io::Error::other(reason)));
                }
                MergeState::Ended => return Err(WriteError::Store(LedgerError::unavailable("redb cannot be used"))),
                MergeState::Idle | MergeState::Busy => {}
            }
            self.freeze().map_err(WriteError::Log)?;
        }
        Ok(())
    }

    /// The rows in memory with these changes.
    fn with(&mut self, payload: &[u8]) -> Result<Layer, WriteError> {
        let mut fresh = self.fresh.for_next();
        let malformed = |MalformedRow| WriteError::Store(LedgerError::damaged("a batch holds something that is not a change"));
        fresh.apply(payload).map_err(malformed)?;
        Ok(fresh)
    }

    fn show(&mut self, fresh: Layer, last: u64) {
        self.fresh = fresh;
        self.views.show(&self.fresh, last);
        self.behind_since.get_or_insert_with(Instant::now);
    }

    /// The time at which [`Self::merge_what_is_due`] has work, or checks again.
    pub(crate) fn next_merge(&self) -> Option<Instant> {
        let due = self.behind_since? + self.interval;
        if self.merger.state() == MergeState::Idle { Some(due) } else { Some(due.max(Instant::now() + LOOK_AGAIN)) }
    }

    /// Begins a merge where enough was written or enough time has gone by, and no merge is under way.
    pub(crate) fn merge_what_is_due(&mut self) {
        let is_due = self.log.part_bytes() > self.part_bytes
            || self.behind_since.is_some_and(|since| since + self.interval <= Instant::now());
        if is_due
            && self.merger.state() == MergeState::Idle
            && let Err(error) = self.freeze()
        {
            tracing::error!(%error, "the log cannot continue in its other file; the host tries again");
        }
    }

    /// Hands the rows in memory to the idle merger, and continues with the other part of the log.
    fn freeze(&mut self) -> io::Result<()> {
        if self.fresh.is_empty() {
            return Ok(());
        }
        let (last, epochs, log_bytes) = (self.log.last(), self.log.epochs(), self.log.part_bytes());
        self.log.turn()?;
        let layer = Arc::new(std::mem::take(&mut self.fresh));
        self.behind_since = None;
        self.views.freeze(&layer);
        self.merger.begin(Job { layer, last, epochs, log_bytes });
        Ok(())
    }

    /// Merges all remaining rows and closes the files. All acknowledged rows are durable before this call.
    ///
    /// # Errors
    /// Fails if redb could not accept all rows. The rows are in the log.
    pub(crate) fn close(mut self) -> Result<(), LedgerError> {
        let left = "what redb lacks is in the log, and is taken over when the ledger is opened";
        let mut result = Ok(());
        if self.merger.wait() == MergeState::Idle
            && let Err(error) = self.freeze()
        {
            result = Err(LedgerError::unavailable(format!("{error}; {left}")));
        }
        if let MergeState::Failing(reason) = self.merger.wait() {
            result = Err(LedgerError::unavailable(format!("{reason}; {left}")));
        }
        let database = self.merger.end();
        // The log of a cluster that has lost batches ends the lease now, before anybody is told.
        let last = self.log.last();
        drop(self.log);
        // Reads that are under way fail.
        self.views.close();
        match database {
            Some(database) => {
                // Before another process can open redb.
                if result.is_ok()
                    && let Some(seed) = self.identity
                    && let Err(error) = (Identity { seed, last }).write(&self.dir, &self.files)
                {
                    tracing::warn!(%error, "ledger.identity could not be written: an older copy of the ledger would not be noticed");
                }
                result.and(database.close().map_err(LedgerError::unavailable))
            }
            None => result.and(Err(LedgerError::unavailable(format!("redb cannot be used; {left}")))),
        }
    }
}
