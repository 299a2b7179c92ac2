//! The thread that makes snapshots of the ledger of a cluster, one in each host.
//!
//! A warm host makes them from its copy, so that reading all rows is not in the way of runs. The active host makes one where none came
//! for twice as long: where no warm host is there, the log ends somewhere all the same.

use std::{
    io,
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    cluster::{
        log::LogPlace,
        member::is_stopped_within,
        session::Session,
        snapshots::{SnapshotError, SnapshotLock},
        storage::ObjectStorage,
    },
    lease::Lease,
    options::Options,
    postgres::{Connection, Param, PostgresError, PostgresServer},
    rows::{Reader, Views},
};

/// Longest pause between looks whether a snapshot is due.
const LOOK: Duration = Duration::from_secs(10);
/// Wait for an answer to a statement: a piece that is sent, or some dozens that are read back.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A host makes snapshots for at most one part of so many of its time, however large the ledger is.
const SHARE: u32 = 10;
/// The active host waits for so many times the log and the time after which a warm host makes a snapshot.
const ACTIVE_WAITS: u32 = 2;

/// The newest snapshot; its age, or that of the cluster where there is none; the bytes of the log from there to the batch `$2`, and the
/// epoch of that batch.
const LOOK_AT_SNAPSHOTS: &str = "select coalesce(n.seq, 0), \
    greatest((extract(epoch from clock_timestamp() - coalesce(n.read_back_at, c.created_at)) * 1000)::int8, 0), \
    coalesce((select sum(octet_length(f.frame)) from (select frame from agent_host.log where p = $1::int8 \
    and seq > coalesce(n.seq, 0) and seq <= $2::int8 order by seq limit 65536) f), 0)::int8, \
    (select epoch from agent_host.log where p = $1::int8 and seq = $2::int8) \
    from agent_host.cluster c left join (select seq, read_back_at from agent_host.snapshots \
    where p = $1::int8 and read_back_at is not null order by seq desc limit 1) n on true";

/// The settings of a [`SnapshotMaker`].
pub(crate) struct MakerOptions {
    pub(crate) server: PostgresServer,
    pub(crate) partition: i64,
    /// The object store of pieces; `None` where they are in the database.
    pub(crate) storage: Option<Arc<ObjectStorage>>,
    pub(crate) session_name: String,
    pub(crate) advertise: String,
    /// Bytes of log after which a snapshot is due.
    pub(crate) log_bytes: u64,
    /// Time after which a snapshot is due, where the log has any batch since the last one.
    pub(crate) interval: Duration,
}

impl MakerOptions {
    pub(crate) fn new(
        place: &LogPlace,
        storage: Option<Arc<ObjectStorage>>,
        session_name: String,
        advertise: &str,
        options: &Options,
    ) -> Self {
        Self {
            server: place.server.clone(),
            partition: place.partition,
            storage,
            session_name,
            advertise: advertise.to_owned(),
            log_bytes: options.snapshot_log_bytes,
            interval: options.snapshot_interval,
        }
    }
}

/// See the module. Dropping it ends the thread, also in the middle of a snapshot.
pub(crate) struct SnapshotMaker {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl SnapshotMaker {
    pub(crate) fn start(options: MakerOptions, views: Arc<Views>, lease: Arc<Lease>) -> io::Result<Self> {
        let stop = Arc::<(Mutex<bool>, Condvar)>::default();
        let session = Session::new(&options.server, &options.session_name, TIMEOUT);
        let work = Work { options, views, lease, stop: Arc::clone(&stop), session, not_before: Instant::now() };
        let thread = Builder::new().name("ledger-snapshot".to_owned()).spawn(move || work.run())?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for SnapshotMaker {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by itself.
            let _ = thread.join();
        }
    }
}

struct Work {
    options: MakerOptions,
    views: Arc<Views>,
    lease: Arc<Lease>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    session: Session,
    not_before: Instant,
}

impl Work {
    fn run(mut self) {
        let pause = (self.options.interval / 10).min(LOOK);
        while !is_stopped_within(&self.stop, pause) {
            if Instant::now() < self.not_before {
                continue;
            }
            let began = Instant::now();
            match self.make_what_is_due() {
                Ok(false) => continue,
                Ok(true) | Err(SnapshotError::Stopped) => {}
                // A ledger that is being closed, or a database that is away: others say so.
                Err(error) if self.is_stopped() => tracing::debug!(%error, "a snapshot was begun and not made"),
                Err(error) => {
                    tracing::warn!(%error, "a snapshot of the ledger could not be made: the log is not trimmed meanwhile, and the host tries again");
                }
            }
            self.not_before = Instant::now() + began.elapsed() * SHARE;
        }
    }

    fn is_stopped(&self) -> bool {
        *self.stop.0.lock() || self.views.current().is_none() || self.lease.ended().is_some()
    }

    /// The epoch of the batch, where a snapshot of it is due.
    fn due(
        &self,
        batch: u64,
        query: impl FnOnce(&'static str, &[Param<'_>]) -> Result<Vec<crate::postgres::Row>, PostgresError>,
    ) -> Result<Option<u64>, PostgresError> {
        let rows = query(LOOK_AT_SNAPSHOTS, &[Param::Int(self.options.partition), Param::number(batch)])?;
        let Some(row) = rows.first() else { return Ok(None) };
        let waits = if self.lease.epoch() > 0 { ACTIVE_WAITS } else { 1 };
        let age = Duration::from_millis(row.number(1)?);
        let is_due = row.number(2)? >= self.options.log_bytes.saturating_mul(u64::from(waits))
            || age >= self.options.interval.saturating_mul(waits);
        if batch <= row.number(0)? || !is_due || row.int(3)?.is_none() {
            return Ok(None);
        }
        Ok(Some(row.number(3)?))
    }

    /// Makes a snapshot where one is due and no other process makes one.
    fn make_what_is_due(&mut self) -> Result<bool, SnapshotError> {
        let Some(batch) = self.views.current().map(|view| view.last()).filter(|batch| *batch > 0) else { return Ok(false) };
        let mut session = std::mem::replace(&mut self.session, Session::new(&self.options.server, "", TIMEOUT));
        let looked = self.due(batch, |sql, params| session.query_again(sql, params));
        self.session = session;
        match looked {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(false),
            Err(error) => {
                tracing::debug!(%error, "the snapshots of the cluster cannot be looked at");
                return Ok(false);
            }
        }
        let is_stopped = || self.is_stopped();
        let connection = Connection::open(&self.options.server, &self.options.session_name, TIMEOUT)?;
        let Some(mut lock) = SnapshotLock::take(connection, self.options.partition, self.options.storage.clone(), &is_stopped)?
        else {
            return Ok(false);
        };
        // The rows of one moment, and the batch that they end with. Another host may have made a snapshot before the lock was free.
        let Some(view) = self.views.current() else { return Err(SnapshotError::Stopped) };
        let batch = view.last();
        let Some(epoch) = self.due(batch, |sql, params| lock.connection().query(sql, params))? else { return Ok(false) };
        let began = Instant::now();
        let counts = lock.write(&Reader::new(view), batch, epoch, &self.options.advertise)?;
        lock.finish(batch, counts)?;
        let trimmed = lock.trim()?;
        tracing::info!(
            partition = self.options.partition,
            batch,
            bytes = counts.bytes,
            sent_bytes = counts.sent_bytes,
            trimmed_batches = trimmed,
            took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            "a snapshot of the ledger is made"
        );
        Ok(true)
    }
}
