//! Garbage: artifacts whose time is over or that nobody came to need, and files that no row refers to.
//!
//! Rows go first, durably, and files afterwards: a crash at any point leaves files that the next collection removes,
//! never a row without its file. The writer forgets rows, so a decision to forget and a reference that comes at the
//! same time are one after the other. A file goes under the lock of the pins, so nobody begins to need it meanwhile.

use std::{fs, io, ops::Bound, time::UNIX_EPOCH};

use agent_host_protocol::Timestamp;
use tokio::sync::oneshot;

use crate::{
    digest::Digest,
    error::LedgerError,
    files::each_blob,
    handle::Ledger,
    operation::{ForgetOperation, Operation},
    rows::{Table, malformed, schema},
    upkeep::blocking,
    writer::Shared,
};

/// Artifacts that the writer forgets in one operation: a few milliseconds.
const FORGET_AT_ONCE: usize = 500;

/// The counts of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CollectionCounts {
    /// Artifacts whose time was over, and uploads that nothing referred to.
    pub artifacts: u64,
    /// Blobs that no row referred to.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Temporary files that nobody wrote any more.
    pub temporary: u64,
}

impl Ledger {
    /// Removes what nothing needs any more: expired artifacts, uploads that nothing has referred to for
    /// `Options::artifact_unreferenced`, blobs that no artifact, storage value and journal refers to, and temporary files that
    /// nobody writes.
    ///
    /// A collection can run beside all other work and be interrupted at any point: the next one removes the rest. Two
    /// concurrent collections are harmless.
    ///
    /// # Errors
    /// Fails with the errors of the writer and of the file system. Data that were removed before stay removed.
    pub async fn collect_garbage(&self, now: Timestamp) -> Result<CollectionCounts, LedgerError> {
        let rows = self.collect_rows(now).await;
        // On a disk that is too full to write rows, files can still be removed.
        let ledger = self.clone();
        let files = blocking(move || ledger.collect_files(now)).await?;
        Ok(CollectionCounts { artifacts: rows?, ..files })
    }

    async fn collect_rows(&self, now: Timestamp) -> Result<u64, LedgerError> {
        let mut forgotten = 0;
        let until = now.saturating_sub(self.shared().artifact_unreferenced_ms);
        for table in [Table::ArtifactExpiry, Table::Unreferenced] {
            let mut after = None;
            loop {
                let ledger = self.clone();
                let begin = after.take();
                let found = blocking(move || ledger.forgettable(table, begin, now, until)).await?;
                if !found.ids.is_empty() {
                    forgotten += self.forget(found.ids, now, until).await?;
                }
                match found.last {
                    Some(last) => after = Some(last),
                    None => break,
                }
            }
        }
        Ok(forgotten)
    }

    async fn forget(&self, ids: Vec<String>, now: Timestamp, unreferenced_until: Timestamp) -> Result<u64, LedgerError> {
        let (reply, answer) = oneshot::channel();
        let bytes = ids.iter().map(String::len).sum();
        self.admit(Operation::Forget(Box::new(ForgetOperation { ids, now, unreferenced_until, reply })), bytes).await?;
        self.answer(answer).await
    }

    /// A piece of a table: ids of artifacts that may be forgotten.
    fn forgettable(
        &self,
        table: Table,
        after: Option<Vec<u8>>,
        now: Timestamp,
        until: Timestamp,
    ) -> Result<Forgettable, LedgerError> {
        let rows = self.reader()?.table(table)?;
        let start = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut found = Forgettable::default();
        let mut read = 0;
        for row in rows.range((start, Bound::Unbounded))?.take(FORGET_AT_ONCE) {
            let (key, value) = row?;
            read += 1;
            found.last = Some(key.value().to_vec());
            if table == Table::ArtifactExpiry {
                let (at, id) = schema::read_expiry(key.value()).ok_or_else(|| malformed(table))?;
                if at > now {
                    // The rows are sorted by time.
                    return Ok(Forgettable { last: None, ..found });
                }
                found.ids.push(id.to_owned());
            } else if schema::read_number(value.value()).ok_or_else(|| malformed(table))? <= until {
                found.ids.push(std::str::from_utf8(key.value()).map_err(|_| malformed(table))?.to_owned());
            }
        }
        if read < FORGET_AT_ONCE {
            found.last = None;
        }
        Ok(found)
    }

    fn collect_files(&self, now: Timestamp) -> Result<CollectionCounts, LedgerError> {
        self.open()?;
        let shared = self.shared();
        let failed = |error: io::Error| LedgerError::Storage(format!("blobs cannot be collected: {error}").into());
        let mut collected =
            CollectionCounts { temporary: shared.blobs.remove_temporary().map_err(failed)?, ..CollectionCounts::default() };
        let mut result = Ok(());
        each_blob(shared.blobs.root(), |digest, metadata| {
            let removed = self.collect_file(shared, &digest, metadata, now);
            match removed {
                Ok(true) => {
                    collected.blobs += 1;
                    collected.bytes += metadata.len();
                }
                Ok(false) => {}
                Err(error) => {
                    result = Err(error);
                    return Err(io::ErrorKind::Interrupted.into());
                }
            }
            Ok(())
        })
        .or_else(|error| if result.is_err() { Ok(()) } else { Err(failed(error)) })?;
        result?;
        // What the host before this one had written, and this one never read.
        for digest in shared.blobs.copied(shared.blob_grace_ms).map_err(failed)? {
            if !self.reader()?.needs_blob(&digest)? && shared.blobs.remove(&digest, || self.reader()?.needs_blob(&digest))? {
                collected.blobs += 1;
            }
        }
        Ok(collected)
    }

    fn collect_file(
        &self,
        shared: &Shared,
        digest: &Digest,
        metadata: &fs::Metadata,
        now: Timestamp,
    ) -> Result<bool, LedgerError> {
        let written = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let written = written.map_or(0, |at| u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
        if now.saturating_sub(written) < shared.blob_grace_ms || self.reader()?.needs_blob(digest)? {
            return Ok(false);
        }
        // Again, now that nobody can begin to need it.
        shared.blobs.remove(digest, || self.reader()?.needs_blob(digest))
    }
}

#[derive(Default)]
struct Forgettable {
    ids: Vec<String>,
    /// The place to continue, if there is more.
    last: Option<Vec<u8>>,
}
