//! Artifacts, entries, storage of the host itself and blobs: what is written outside of a run.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::{
    digest::{hex, parse_hex},
    error::LedgerError,
    files::{Blob, BlobReader, BlobWriter, DiskNeed, unreadable},
    handle::Ledger,
    operation::{ArtifactOperation, NewArtifact, Operation, RowsOperation, ValueRow, ValuesOperation, entry_rows},
    record::{ArtifactRecord, EntryWrite, StorageWrite},
    rows::bounded,
};

impl Ledger {
    /// Adds an artifact whose blob is written. The artifact is durable and readable when this function returns; hold the
    /// [`crate::Blob`] until then.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] where the id is not new or the blob not there, [`LedgerError::DiskLow`],
    /// [`LedgerError::WorkspaceFull`], [`LedgerError::Storage`] and [`LedgerError::Unavailable`].
    pub async fn add_artifact(&self, record: ArtifactRecord) -> Result<(), LedgerError> {
        let shared = self.shared();
        shared.disk.check(DiskNeed::NewEvent)?;
        // The host starts whatever is kept.
        if !matches!(record.source.as_str(), "skill" | "static") {
            self.check_quota(&record.scope.workspace)?;
        }
        let artifact = NewArtifact::prepare(&record, &shared.blobs)?;
        let bytes = artifact.rows.bytes().len();
        bounded(bytes)?;
        let (reply, answer) = oneshot::channel();
        self.admit(Operation::Artifact(Box::new(ArtifactOperation { artifact, reply })), bytes).await?;
        self.answer(answer).await.map(|_| ())
    }

    /// Puts and deletes entries, all of them or none. The changes are durable when this function returns.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`], [`LedgerError::Storage`] and [`LedgerError::Unavailable`].
    pub async fn put_entries(&self, entries: &[EntryWrite]) -> Result<(), LedgerError> {
        let rows = entry_rows(entries)?;
        if rows.is_empty() {
            return Ok(());
        }
        let bytes = rows.bytes().len();
        bounded(bytes)?;
        let (reply, answer) = oneshot::channel();
        self.admit(Operation::Rows(RowsOperation { rows, reply }), bytes).await?;
        self.answer(answer).await.map(drop)
    }

    /// Keeps and deletes storage of the host itself, of no run: all of it or none. The changes are durable when this function returns. An area
    /// that no grant names ([`agent_host_protocol::grant::Grant::storage_key`]) is out of reach of guests.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`], [`LedgerError::QuotaExceeded`], [`LedgerError::Storage`] and [`LedgerError::Unavailable`].
    pub async fn put_storage(&self, writes: Vec<StorageWrite>) -> Result<(), LedgerError> {
        let values: Vec<_> = writes.into_iter().map(ValueRow::storage).collect::<Result<_, _>>()?;
        let bytes = values.iter().map(ValueRow::bytes).sum();
        bounded(bytes)?;
        let (reply, answer) = oneshot::channel();
        self.admit(Operation::Values(ValuesOperation { values, reply }), bytes).await?;
        self.answer(answer).await.map(drop)
    }

    /// Begins a blob of at most `max_bytes`.
    ///
    /// # Errors
    /// [`LedgerError::DiskLow`], [`LedgerError::Storage`], [`LedgerError::Unavailable`].
    pub fn blob_writer(&self, max_bytes: u64) -> Result<BlobWriter, LedgerError> {
        self.open()?;
        BlobWriter::new(&self.shared().blobs, &self.shared().disk, max_bytes)
    }

    /// An existing blob, so that a write can refer to it; `None` if no blob has this name. The blob is kept while the value
    /// lives.
    ///
    /// # Errors
    /// [`LedgerError::Damaged`] where it cannot be looked at, [`LedgerError::Unavailable`].
    pub fn pin_blob(&self, sha256: &str) -> Result<Option<Blob>, LedgerError> {
        self.open()?;
        let Some(digest) = parse_hex(sha256) else { return Ok(None) };
        let blobs = &self.shared().blobs;
        // Pinned first: what is there afterwards stays there.
        let pin = blobs.pin(digest);
        let size = blobs.fetched_size(&digest).map_err(|error| unreadable(&error))?;
        Ok(size.map(|size| Blob { sha256: hex(&digest), size, pin: Arc::new(pin) }))
    }

    /// Opens a blob; nothing where there is none of this name.
    ///
    /// # Errors
    /// [`LedgerError::Damaged`] where it is there and cannot be opened, [`LedgerError::Unavailable`].
    pub fn blob(&self, sha256: &str) -> Result<Option<BlobReader>, LedgerError> {
        self.open()?;
        let Some(digest) = parse_hex(sha256) else { return Ok(None) };
        let blobs = &self.shared().blobs;
        blobs.fetched_size(&digest).map_err(|error| unreadable(&error))?;
        BlobReader::open(blobs.root(), &digest)
    }
}
