//! Repair: batches that the database lost are put back from a copy that has them.
//!
//! A copy has the rows, and not the batches one by one. So its rows become a snapshot, and the log goes on behind that with two batches that
//! have no rows: one stands for the last of the copy, and has its epoch, so that other copies which end there go on; the other begins a
//! new epoch. What the log had before is removed. Nothing counts before one last statement, and no host can take the ledger meanwhile.
//!
//! The copy must be the continuation of the log. It is where the log ends with a batch of the epoch that the last batch of the copy has:
//! an epoch has one owner, which wrote both.

use std::{
    fs::File,
    io,
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    boundary::guard_open,
    cluster::{
        ClusterOptions,
        blobs::{PostgresBlobs, each_blob},
        log::{Position, empty_frame},
        lost::{CopyEnd, LostBatch},
        schema::{PARTITION, TIMEOUT, check_cluster},
        session::Session,
        snapshots::SnapshotLock,
    },
    cluster_error::ClusterError,
    error::{LedgerError, OpenError},
    files::{BlobCopies, blobs_path, path_of},
    postgres::{Connection, Param, Row},
    rows::Reader,
    store::{database_path, open_copy, real_files},
    upkeep::{check::check, compact::CACHE_BYTES},
};

/// Wait for the transfer of a piece.
const TRANSFER: Duration = Duration::from_secs(30);
const NAME: &str = "agent-host repair";
/// Pause between looks at a lease.
const PAUSE: Duration = Duration::from_millis(200);
/// Part of the progress at which the copy is checked, and then its blobs are there.
const CHECKED: f64 = 0.3;
const BLOBS_SENT: f64 = 0.6;

/// The partition, its owner where that has a lease, the last batch of the log, and the time that is left of the lease.
const LOOK: &str = "select p.epoch, h.advertise, p.lost_batch, p.lost_by, l.seq, l.epoch, \
    coalesce(extract(epoch from h.lease_until - clock_timestamp()) * 1000, 0)::int8 from agent_host.partitions p \
    left join agent_host.hosts h on h.host_id = p.owner and h.incarnation = p.incarnation and h.lease_until > clock_timestamp() \
    left join (select p, seq, epoch from agent_host.log where p = $1::int8 order by seq desc limit 1) l on l.p = p.p \
    where p.p = $1::int8";

/// Removes the mark of a host whose batches are given up.
const GIVE_UP: &str =
    "update agent_host.partitions set lost_batch = null, lost_by = null where p = $1::int8 and epoch = $2::int8";

/// The handling of batches that the log lost, and only another copy has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// The repair is refused: that copy is the one to repair from.
    Whole,
    /// The rest is lost for good.
    GiveUpTheRest,
}

/// The outcome of a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairedCluster {
    /// Last batch that the log had.
    pub log_ended: u64,
    /// Last batch that is there now, before that of the new epoch.
    pub last_batch: u64,
    /// The batch that was given up, and the host that has it.
    pub given_up: Option<LostBatch>,
    /// Blobs that the database lost and that this host sent.
    pub blobs: u64,
    /// Blobs that a row refers to, and that neither the database nor this host has.
    pub missing_blobs: u64,
}

/// The cluster as the repair finds it.
struct Found {
    epoch: u64,
    lost: Option<LostBatch>,
    log_end: Position,
}

/// Puts back what the log of the cluster lost, from the copy in `dir`, which no host has open. `progress` is called with a fraction. Blocks
/// meanwhile.
///
/// # Errors
/// [`OpenError`], where the copy cannot be read; as [`OpenError::Cluster`]: [`ClusterError::NothingLost`],
/// [`ClusterError::RepairHeld`], [`ClusterError::RepairBehind`], [`ClusterError::RepairForked`], [`ClusterError::SourceDamaged`],
/// [`ClusterError::SnapshotBusy`] and the reasons of joining a cluster. The repair can be repeated then.
pub fn repair_cluster(
    options: &ClusterOptions,
    dir: impl AsRef<Path>,
    repair: Repair,
    mut progress: impl FnMut(f64),
) -> Result<RepairedCluster, OpenError> {
    let (dir, server) = (dir.as_ref(), &options.server);
    let mut session = Session::new(server, NAME, TIMEOUT);
    let cluster = check_cluster(&mut session, server)?;
    if !database_path(dir).exists() {
        return Err(OpenError::NoLedger { dir: dir.to_owned() });
    }
    // Before anything is sent: the copy is closed, and it is one.
    let store = open_copy(dir, CACHE_BYTES, cluster.seed, &real_files())?;
    store.close()?;
    let report = check(dir, |fraction| progress(fraction * CHECKED))?;
    if !report.is_ok() {
        let first = report.findings.first().map_or_else(|| "pages are not intact".to_owned(), ToString::to_string);
        let reason = format!("{} findings, first: {first}", report.findings_count);
        return Err(ClusterError::SourceDamaged { dir: dir.display().to_string(), reason }.into());
    }
    guard_open(dir, || {
        let store = open_copy(dir, CACHE_BYTES, cluster.seed, &real_files())?;
        let (last, epoch) = store.copied().unwrap_or_default();
        let position = Position { last, epoch, part_bytes: 0 };
        let repaired = {
            let reader = store.reader()?;
            let copy = CopyRepair { options, dir, reader: &reader, seed: cluster.seed, position };
            copy.run(&mut session, repair, &mut progress)
        };
        store.close()?;
        repaired
    })
}

struct CopyRepair<'a> {
    options: &'a ClusterOptions,
    dir: &'a Path,
    reader: &'a Reader,
    seed: u64,
    position: Position,
}

impl CopyRepair<'_> {
    fn run(&self, session: &mut Session, repair: Repair, progress: &mut dyn FnMut(f64)) -> Result<RepairedCluster, OpenError> {
        let server = &self.options.server;
        let end = CopyEnd { dir: self.dir.display().to_string(), advertise: self.options.advertise.clone() };
        // Leaves the mark, where no other host has: nobody takes the ledger meanwhile.
        let is_there = match end.check(session, server, self.position) {
            Ok(()) => true,
            Err(ClusterError::LostCommits { .. }) => false,
            Err(error) => return Err(error.into()),
        };
        let found = self.look(session)?;
        let more = found.lost.clone().filter(|lost| lost.batch > self.position.last);
        if let (Repair::Whole, Some(lost)) = (repair, &more) {
            let (copy, batch, host) = (self.position.last, lost.batch, lost.host.clone());
            return Err(ClusterError::RepairBehind { dir: end.dir, copy, batch, host }.into());
        }
        let mut repaired = RepairedCluster {
            log_ended: found.log_end.last,
            last_batch: found.log_end.last,
            given_up: more,
            blobs: 0,
            missing_blobs: 0,
        };
        if is_there {
            if repaired.given_up.is_none() {
                return Err(ClusterError::NothingLost { server: server.to_string(), copy: self.position.last }.into());
            }
            let params = [Param::Int(PARTITION), Param::number(found.epoch)];
            session.query_again(GIVE_UP, &params).map_err(ClusterError::from)?;
            return Ok(repaired);
        }
        if found.log_end.epoch != self.position.epoch || found.log_end.last >= self.position.last {
            return Err(ClusterError::RepairForked {
                server: server.to_string(),
                dir: end.dir,
                copy: self.position.last,
                copy_epoch: self.position.epoch,
                log: found.log_end.last,
                log_epoch: found.log_end.epoch,
            }
            .into());
        }
        self.put_back(&found, &mut repaired, progress)?;
        progress(1.0);
        Ok(repaired)
    }

    /// Reads the state of the cluster, in which no host may be active. A lease that nobody renews is waited for: a host that has found
    /// its batches lost is gone before its lease is over.
    fn look(&self, session: &mut Session) -> Result<Found, ClusterError> {
        let server = &self.options.server;
        let mut until = None;
        loop {
            let rows = session.query_again(LOOK, &[Param::Int(PARTITION)])?;
            let Some(row) = rows.first() else { return Err(ClusterError::NoCluster { server: server.to_string() }) };
            let Some(host) = row.text(1)? else { return Self::found(row) };
            let left = Duration::from_millis(row.int(6)?.and_then(|left| u64::try_from(left).ok()).unwrap_or_default());
            if Instant::now() > *until.get_or_insert_with(|| Instant::now() + left + PAUSE) {
                return Err(ClusterError::RepairHeld { server: server.to_string(), host: format!("the host {host}") });
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn found(row: &Row) -> Result<Found, ClusterError> {
        let number = |column| row.int(column).map(|value| value.and_then(|value| u64::try_from(value).ok()).unwrap_or_default());
        let log_end = Position { last: number(4)?, epoch: number(5)?, part_bytes: 0 };
        Ok(Found { epoch: row.number(0)?, lost: LostBatch::of(row.int(2)?, row.text(3)?), log_end })
    }

    fn put_back(&self, found: &Found, repaired: &mut RepairedCluster, progress: &mut dyn FnMut(f64)) -> Result<(), OpenError> {
        let server = &self.options.server;
        let is_stopped = || false;
        let connection = Connection::open(server, NAME, TRANSFER).map_err(ClusterError::from)?;
        let lock = SnapshotLock::take(connection, &is_stopped).map_err(ClusterError::from)?;
        let Some(mut lock) = lock else {
            return Err(ClusterError::SnapshotBusy { server: server.to_string() }.into());
        };
        self.blobs(repaired, progress)?;
        let Position { last, epoch, .. } = self.position;
        let made_by = format!("repair from the copy of {}", self.options.advertise);
        let counts = lock.write(self.reader, last, epoch, &made_by).map_err(|error| error.of_source(server))?;
        let frames = [empty_frame(self.seed, last), empty_frame(self.seed, last + 1)];
        let is_done = lock.finish_repair(found.epoch, last, epoch, counts, &frames).map_err(|error| error.of_source(server))?;
        if !is_done {
            return Err(ClusterError::RepairHeld { server: server.to_string(), host: "another host".to_owned() }.into());
        }
        repaired.last_batch = last;
        // What is left here is removed with the next snapshot.
        if let Err(error) = lock.remove_before(last) {
            tracing::warn!(%error, "what the log had before the repair could not be removed yet");
        }
        Ok(())
    }

    /// Sends the blobs that a row refers to, that the database lost and that this host has.
    fn blobs(&self, repaired: &mut RepairedCluster, progress: &mut dyn FnMut(f64)) -> Result<(), OpenError> {
        let copies = PostgresBlobs::new(Session::new(&self.options.server, NAME, TRANSFER));
        let root = blobs_path(self.dir);
        let failed = |error: io::Error| LedgerError::Storage(error.to_string().into());
        each_blob(self.reader, |digest, fraction| {
            progress(CHECKED + (BLOBS_SENT - CHECKED) * fraction);
            if copies.has(digest).map_err(failed)? {
                return Ok(());
            }
            match File::open(path_of(&root, digest)) {
                Ok(file) => {
                    copies.put(digest, file).map_err(failed)?;
                    repaired.blobs += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => repaired.missing_blobs += 1,
                Err(error) => return Err(failed(error).into()),
            }
            Ok(())
        })
    }
}
