//! A ledger of its own, made the beginning of a cluster.
//!
//! The rows become the first snapshot of each partition ([`super::division`]), and the logs begin behind them with batches that have no rows.
//! Contents of blobs are in the database before the snapshot that names them. Nothing counts before one last transaction, which changes
//! nothing where a log has a batch meanwhile.

use std::{fs::File, path::Path, sync::Arc};

use crate::{
    boundary::guard_open,
    cluster::{
        blobs::blobs_of,
        division::{Division, PlaceOfEntry},
        frame::empty_frame,
        schema::{Cluster, FIRST_PARTITION, TIMEOUT, check_cluster, seed_of},
        session::Session,
        source::{TRANSFER, check_source, each_blob, snapshot_lock},
        storage::ObjectStorage,
    },
    cluster_error::ClusterError,
    digest::hex,
    error::{LedgerError, OpenError},
    files::{blobs_path, path_of},
    postgres::PostgresServer,
    rows::{FORMAT, Reader},
    store::{MissingLedger, open, read_format, real_files},
    upkeep::{backup::digest_of, compact::CACHE_BYTES},
};

/// The batch that stands for the ledger that was imported.
const FIRST: u64 = 1;
const NAME: &str = "agent-host import";

/// The content of an imported ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportedLedger {
    /// Number of its rows.
    pub rows: u64,
    /// Bytes of its rows in the database.
    pub bytes: u64,
    /// Number of its blobs.
    pub blobs: u64,
    /// Bytes of its blobs.
    pub blob_bytes: u64,
    /// Runs that have ended and whose ids do not say their partition: a version before has made them. Requests for them name the workspace.
    pub other_ids: u64,
}

/// Makes the ledger in `dir`, which no host has open, the beginning of the cluster in `server`, which has no batch yet. Everything of a workspace
/// goes to its partition, an entry to the place that `entries` tells. The ledger stays as it is; what only its log has is merged. `progress` is
/// called with a fraction. Blocks meanwhile.
///
/// # Errors
/// [`OpenError`], where the ledger cannot be read; [`ClusterError::HasBatches`], [`ClusterError::SourceDamaged`],
/// [`ClusterError::ImportFormat`], [`ClusterError::ImportDivides`], [`ClusterError::ImportOtherIds`], [`ClusterError::SnapshotBusy`] and the
/// other reasons of the cluster as [`OpenError::Cluster`]. The cluster is empty then, and the import can be repeated.
pub fn import_ledger(
    server: &PostgresServer,
    dir: impl AsRef<Path>,
    entries: PlaceOfEntry<'_>,
    mut progress: impl FnMut(f64),
) -> Result<ImportedLedger, OpenError> {
    let dir = dir.as_ref();
    let mut session = Session::new(server, NAME, TIMEOUT);
    let cluster = check_cluster(&mut session, server)?;
    let storage = cluster.storage()?;
    is_empty(&mut session, server)?;
    let found = read_format(dir, CACHE_BYTES, &real_files())?;
    if found != FORMAT {
        return Err(ClusterError::ImportFormat { dir: dir.display().to_string(), found, format: FORMAT }.into());
    }
    check_source(dir, &mut progress)?;
    guard_open(dir, || {
        let store = open(dir, CACHE_BYTES, MissingLedger::Refuse, &real_files())?;
        if store.copied().is_some() {
            return Err(ClusterError::IsACopy { dir: dir.display().to_string() }.into());
        }
        let imported = {
            let reader = store.reader()?;
            Import { server, dir, reader: &reader, cluster: &cluster, storage }.run(entries, &mut progress)
        };
        store.close()?;
        imported
    })
}

/// Fails where the cluster has a batch.
fn is_empty(session: &mut Session, server: &PostgresServer) -> Result<(), ClusterError> {
    let rows = session.query_again(
        "select exists (select 1 from agent_host.log) or exists (select 1 from agent_host.snapshots where read_back_at is not null)",
        &[],
    )?;
    match rows.first().map(|row| row.flag(0)).transpose()? {
        Some(false) => Ok(()),
        _ => Err(ClusterError::HasBatches { server: server.to_string() }),
    }
}

struct Import<'a> {
    server: &'a PostgresServer,
    dir: &'a Path,
    reader: &'a Reader,
    cluster: &'a Cluster,
    storage: Option<Arc<ObjectStorage>>,
}

impl Import<'_> {
    fn run(&self, entries: PlaceOfEntry<'_>, progress: &mut dyn FnMut(f64)) -> Result<ImportedLedger, OpenError> {
        let mut lock = snapshot_lock(self.server, FIRST_PARTITION, self.storage.clone(), NAME)?;
        let made_by = format!("import of {}", self.dir.display());
        let parts = self.cluster.partitions;
        let mut division =
            (parts > 1).then(|| Division::new(&self.dir.display().to_string(), self.reader, parts, entries)).transpose()?;
        let (blobs, blob_bytes) = self.blobs(division.as_ref(), progress)?;
        let written = match &mut division {
            Some(division) => lock.write_divided(self.reader, division, FIRST, &made_by),
            None => lock.write(self.reader, FIRST, 0, &made_by).map(|counts| vec![counts]),
        };
        let written = written.map_err(|error| error.of_source(self.server))?;
        let frame = |partition| empty_frame(seed_of(self.cluster.seed, partition), FIRST);
        let beginnings: Vec<_> = (0..).zip(&written).map(|(partition, counts)| (*counts, frame(partition))).collect();
        if !lock.finish_first(FIRST, &beginnings).map_err(|error| error.of_source(self.server))? {
            return Err(ClusterError::HasBatches { server: self.server.to_string() }.into());
        }
        progress(1.0);
        let (rows, bytes) = (written.iter().map(|counts| counts.rows).sum(), written.iter().map(|counts| counts.bytes).sum());
        Ok(ImportedLedger { rows, bytes, blobs, blob_bytes, other_ids: division.map_or(0, |division| division.other_ids) })
    }

    /// Sends every blob that a row refers to, to each partition with such a row. Gives how many, and their bytes.
    fn blobs(&self, division: Option<&Division<'_>>, progress: &mut dyn FnMut(f64)) -> Result<(u64, u64), OpenError> {
        let of = |part: u32| {
            let session = || Session::new(self.server, NAME, TRANSFER);
            blobs_of(self.storage.as_ref(), i64::from(part), session)
        };
        let copies: Vec<_> = (0..self.cluster.partitions).map(of).collect();
        let root = blobs_path(self.dir);
        let (mut blobs, mut blob_bytes) = (0, 0);
        let part_of = |key: &[u8]| division.map_or(Ok(0), |division| Ok(division.blob_ref(key)?.0));
        each_blob(self.reader, progress, part_of, |digest, part| {
            let path = path_of(&root, digest);
            let damaged = |reason: String| {
                let reason = format!("the blob {} {reason}", hex(digest));
                OpenError::from(ClusterError::SourceDamaged { dir: self.dir.display().to_string(), reason })
            };
            let (found, bytes) = digest_of(&path).map_err(|error| damaged(format!("cannot be read: {error}")))?;
            if found != hex(digest) {
                return Err(damaged("has another content than when it was written".to_owned()));
            }
            let file = File::open(&path).map_err(|error| damaged(format!("cannot be read: {error}")))?;
            let Some(copies) = copies.get(part as usize) else { return Ok(()) };
            copies.put(digest, file).map_err(|error| LedgerError::Storage(error.to_string().into()))?;
            blobs += 1;
            blob_bytes += bytes;
            Ok(())
        })?;
        Ok((blobs, blob_bytes))
    }
}
