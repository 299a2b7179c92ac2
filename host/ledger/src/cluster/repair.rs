//! Repair: batches that the database lost are put back from a copy that has them.
//!
//! A copy has the rows, and not the batches one by one. So its rows become a snapshot, and the log goes on behind that with two batches that
//! have no rows: one stands for the last of the copy, and has its epoch, so that other copies which end there go on; the other begins a
//! new epoch. What the log had before is removed. Nothing counts before one last statement, and no host can take the ledger meanwhile.
//!
//! The copy must be the continuation of the log. It is where the log ends with a batch of one of the epochs that the copy remembers
//! ([`crate::store::Epochs`]): an epoch has one owner, which wrote both.

use std::{
    fs::File,
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    boundary::guard_open,
    cluster::{
        ClusterOptions,
        blobs::blobs_of,
        frame::empty_frame,
        log::Position,
        loss::{CopyEnd, LostBatch},
        schema::{TIMEOUT, check_cluster, seed_of},
        session::Session,
        source::{TRANSFER, check_source, each_blob, snapshot_lock},
        storage::ObjectStorage,
    },
    cluster_error::ClusterError,
    error::{LedgerError, OpenError},
    files::{blobs_path, path_of},
    postgres::{Param, Row},
    rows::Reader,
    store::{EpochEnd, database_path, open_copy, real_files},
    upkeep::compact::CACHE_BYTES,
};

const NAME: &str = "agent-host repair";
/// Pause between looks at a lease.
const PAUSE: Duration = Duration::from_millis(200);

/// The partition, its owner where that has a lease, the last batch of the log, the time that is left of the lease,
/// and the batch that the log goes on from.
const LOOK: &str = "select p.epoch, h.advertise, p.lost_batch, p.lost_by, l.seq, l.epoch, \
    coalesce(extract(epoch from h.lease_until - clock_timestamp()) * 1000, 0)::int8, p.log_first \
    from agent_host.partitions p \
    left join agent_host.hosts h on h.host_id = p.owner and h.incarnation = p.incarnation and h.lease_until > clock_timestamp() \
    left join (select p, seq, epoch from agent_host.log where p = $1::int8 order by seq desc limit 1) l on l.p = p.p \
    where p.p = $1::int8";

/// Removes the mark and begins a new epoch, so that the host whose batches are given up cannot leave it again. Nothing where somebody has
/// taken the ledger since it had the epoch `$2`.
const GIVE_UP: &str = "with taken as (update agent_host.partitions set epoch = epoch + 1 + floor(random() * 1000000)::int8, owner = null, \
    incarnation = null, lost_batch = null, lost_by = null where p = $1::int8 and epoch = $2::int8 returning epoch) \
    insert into agent_host.log (p, seq, epoch, frame) select $1::int8, $3::int8, taken.epoch, $4::bytea from taken returning seq";

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

/// The cluster before the repair.
struct ClusterState {
    epoch: u64,
    /// The batch that a copy must have for the log to go on from it.
    log_first: u64,
    lost: Option<LostBatch>,
    log_end: EpochEnd,
}

/// Puts back what the log of a partition lost, from its copy in `dir`, which no host has open. `progress` is called with a fraction. Blocks
/// meanwhile.
///
/// # Errors
/// [`OpenError`], where the copy cannot be read; as [`OpenError::Cluster`]: [`ClusterError::NothingLost`],
/// [`ClusterError::RepairHeld`], [`ClusterError::RepairBehind`], [`ClusterError::RepairForked`], [`ClusterError::SourceDamaged`],
/// [`ClusterError::SnapshotBusy`] and the reasons of joining a cluster. The repair can be repeated then.
pub fn repair_cluster(
    options: &ClusterOptions,
    partition: u32,
    dir: impl AsRef<Path>,
    repair: Repair,
    mut progress: impl FnMut(f64),
) -> Result<RepairedCluster, OpenError> {
    let (dir, server) = (dir.as_ref(), &options.server);
    let mut session = Session::new(server, NAME, TIMEOUT);
    let cluster = check_cluster(&mut session, server)?;
    if partition >= cluster.partitions {
        return Err(ClusterError::NoPartition { server: server.to_string(), partition, partitions: cluster.partitions }.into());
    }
    let partition = i64::from(partition);
    let seed = seed_of(cluster.seed, partition);
    let storage = cluster.storage()?;
    if !database_path(dir).exists() {
        return Err(OpenError::NoLedger { dir: dir.to_owned() });
    }
    check_source(dir, &mut progress)?;
    guard_open(dir, || {
        let store = open_copy(dir, CACHE_BYTES, seed, &real_files())?;
        let position = Position::of_copy(store.copied().unwrap_or_default());
        let repaired = {
            let reader = store.reader()?;
            let copy = CopyRepair { options, partition, dir, reader: &reader, seed, storage, position };
            copy.run(&mut session, repair, &mut progress)
        };
        store.close()?;
        repaired
    })
}

struct CopyRepair<'a> {
    options: &'a ClusterOptions,
    partition: i64,
    dir: &'a Path,
    reader: &'a Reader,
    storage: Option<Arc<ObjectStorage>>,
    seed: u64,
    position: Position,
}

impl CopyRepair<'_> {
    fn run(&self, session: &mut Session, repair: Repair, progress: &mut dyn FnMut(f64)) -> Result<RepairedCluster, OpenError> {
        let server = &self.options.server;
        let end =
            CopyEnd { dir: self.dir.display().to_string(), advertise: self.options.advertise.clone(), partition: self.partition };
        // Leaves the mark, where no other host has: nobody takes the ledger meanwhile.
        let is_there = match end.check(session, server, self.position) {
            Ok(()) => true,
            Err(ClusterError::LostCommits { .. }) => false,
            Err(error) => return Err(error.into()),
        };
        let state = self.look(session)?;
        let more = state.lost.clone().filter(|lost| lost.batch > self.position.last);
        if let (Repair::Whole, Some(lost)) = (repair, &more) {
            let (copy, batch, host) = (self.position.last, lost.batch, lost.host.clone());
            return Err(ClusterError::RepairBehind { dir: end.dir, copy, batch, host }.into());
        }
        let mut repaired = RepairedCluster {
            log_ended: state.log_end.last,
            last_batch: state.log_end.last,
            given_up: more,
            blobs: 0,
            missing_blobs: 0,
        };
        // A copy that ends before the log goes on from is only behind.
        if is_there || self.position.last < state.log_first {
            if repaired.given_up.is_none() {
                return Err(ClusterError::NothingLost { server: server.to_string(), copy: self.position.last }.into());
            }
            let next = state.log_end.last + 1;
            let frame = empty_frame(self.seed, next);
            let params = [Param::Int(self.partition), Param::number(state.epoch), Param::number(next), Param::Bytes(&frame)];
            let begun = session.query(GIVE_UP, &params).map_err(ClusterError::from)?;
            return if begun.is_empty() { Err(self.is_held("another host")) } else { Ok(repaired) };
        }
        if !self.position.epochs.go_on_from(state.log_end.last, state.log_end.epoch) {
            return Err(ClusterError::RepairForked {
                server: server.to_string(),
                dir: end.dir,
                copy: self.position.last,
                copy_epoch: self.position.epoch(),
                log: state.log_end.last,
                log_epoch: state.log_end.epoch,
            }
            .into());
        }
        self.put_back(&state, &mut repaired, progress)?;
        progress(1.0);
        Ok(repaired)
    }

    fn is_held<E: From<ClusterError>>(&self, host: &str) -> E {
        ClusterError::RepairHeld { server: self.options.server.to_string(), host: host.to_owned() }.into()
    }

    /// Reads the state of the cluster, in which no host may be active. A lease that nobody renews is waited for: a host that has found
    /// its batches lost is gone before its lease is over.
    fn look(&self, session: &mut Session) -> Result<ClusterState, ClusterError> {
        let server = &self.options.server;
        let mut until = None;
        loop {
            let rows = session.query_again(LOOK, &[Param::Int(self.partition)])?;
            let Some(row) = rows.first() else { return Err(ClusterError::NoCluster { server: server.to_string() }) };
            let Some(host) = row.text(1)? else { return Self::state(row) };
            let left = Duration::from_millis(row.int(6)?.and_then(|left| u64::try_from(left).ok()).unwrap_or_default());
            if Instant::now() > *until.get_or_insert_with(|| Instant::now() + left + PAUSE) {
                return Err(self.is_held(&format!("the host {host}")));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn state(row: &Row) -> Result<ClusterState, ClusterError> {
        let number = |column| row.int(column).map(|value| value.and_then(|value| u64::try_from(value).ok()).unwrap_or_default());
        let log_end = EpochEnd { last: number(4)?, epoch: number(5)? };
        Ok(ClusterState {
            epoch: row.number(0)?,
            log_first: row.number(7)?,
            lost: LostBatch::of(row.int(2)?, row.text(3)?),
            log_end,
        })
    }

    fn put_back(
        &self,
        state: &ClusterState,
        repaired: &mut RepairedCluster,
        progress: &mut dyn FnMut(f64),
    ) -> Result<(), OpenError> {
        let server = &self.options.server;
        let mut lock = snapshot_lock(server, self.partition, self.storage.clone(), NAME)?;
        self.blobs(repaired, progress)?;
        let (last, epoch) = (self.position.last, self.position.epoch());
        let made_by = format!("repair from the copy of {}", self.options.advertise);
        let counts = lock.write(self.reader, last, epoch, &made_by).map_err(|error| error.of_source(server))?;
        let frames = [empty_frame(self.seed, last), empty_frame(self.seed, last + 1)];
        let is_done = lock.finish_repair(state.epoch, last, epoch, counts, &frames).map_err(|error| error.of_source(server))?;
        if !is_done {
            return Err(self.is_held("another host"));
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
        let copies = blobs_of(self.storage.as_ref(), self.partition, || Session::new(&self.options.server, NAME, TRANSFER));
        let root = blobs_path(self.dir);
        let failed = |error: io::Error| LedgerError::Storage(error.to_string().into());
        each_blob(
            self.reader,
            progress,
            |_| Ok(0),
            |digest, _| {
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
            },
        )
    }
}
