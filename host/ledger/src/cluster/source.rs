//! A closed ledger on this machine whose rows become a snapshot: what an import and a repair have in common.

use std::{path::Path, sync::Arc, time::Duration};

use crate::{
    cluster::{snapshots::SnapshotLock, storage::ObjectStorage},
    cluster_error::ClusterError,
    digest::Digest,
    error::{LedgerError, OpenError},
    postgres::{Connection, PostgresServer},
    rows::{Reader, Table, malformed, schema},
    upkeep::check::check,
};

/// Wait for the transfer of a piece.
pub(crate) const TRANSFER: Duration = Duration::from_secs(30);
/// Part of the progress at which the ledger is checked, and then its blobs are there.
const CHECKED: f64 = 0.3;
const BLOBS_SENT: f64 = 0.7;

/// Checks the ledger in `dir` as `agent-host ledger check` does.
///
/// # Errors
/// [`ClusterError::SourceDamaged`] where it has findings, and the reasons for which it cannot be opened.
pub(crate) fn check_source(dir: &Path, progress: &mut dyn FnMut(f64)) -> Result<(), OpenError> {
    let report = check(dir, |fraction| progress(fraction * CHECKED))?;
    if report.is_ok() {
        return Ok(());
    }
    let first = report.findings.first().map_or_else(|| "pages are not intact".to_owned(), ToString::to_string);
    let reason = format!("{} findings, first: {first}", report.findings_count);
    Err(ClusterError::SourceDamaged { dir: dir.display().to_string(), reason }.into())
}

/// Takes the lock of whoever makes snapshots, for a command that nobody stops.
pub(crate) fn snapshot_lock(
    server: &PostgresServer,
    partition: i64,
    storage: Option<Arc<ObjectStorage>>,
    name: &str,
) -> Result<SnapshotLock<'static>, ClusterError> {
    let connection = Connection::open(server, name, TRANSFER)?;
    let lock = SnapshotLock::take(connection, partition, storage, &|| false)?;
    lock.ok_or_else(|| ClusterError::SnapshotBusy { server: server.to_string() })
}

/// Calls `each` with every blob that a row refers to, once for each of the partitions to which `part_of` gives the keys of such rows.
pub(crate) fn each_blob(
    reader: &Reader,
    progress: &mut dyn FnMut(f64),
    part_of: impl Fn(&[u8]) -> Result<u32, LedgerError>,
    mut each: impl FnMut(&Digest, u32) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    let refs = reader.table(Table::BlobRefs)?;
    let all = refs.len()?.max(1);
    // The blob of the last row, and the partitions that have it.
    let (mut read, mut last, mut parts) = (0u64, None::<Digest>, Vec::new());
    for row in refs.iter()? {
        let (key, _) = row?;
        let (digest, ..) = schema::read_blob_ref(key.value()).ok_or_else(|| malformed(Table::BlobRefs))?;
        read += 1;
        #[expect(clippy::cast_precision_loss, reason = "a fraction for people")]
        progress(CHECKED + (BLOBS_SENT - CHECKED) * (read as f64 / all as f64));
        if last.as_ref() != Some(digest) {
            last = Some(*digest);
            parts.clear();
        }
        let part = part_of(key.value())?;
        if !parts.contains(&part) {
            parts.push(part);
            each(digest, part)?;
        }
    }
    Ok(())
}
