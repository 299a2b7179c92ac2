//! Artifacts: what is said of bytes that the host keeps.

use std::sync::Arc;

use agent_host_protocol::{EventId, artifact::ArtifactMetadata, message::ArtifactRef};
use tokio::sync::oneshot;

use crate::{
    blobs::{Blobs, Pin, parse_hex},
    error::LedgerError,
    handle::Ledger,
    operation::{Operation, bounded, encode},
    read::json,
    record::{ArtifactRecord, UPLOAD},
    rows::Rows,
    schema::{self, BY_ARTIFACT, Table},
};

/// An id as it is made (a UUID has 36), with some room.
const MAX_ID_BYTES: usize = 64;

/// A new artifact, encoded, and its blob, pinned.
pub(crate) struct NewArtifact {
    pub(crate) id: String,
    pub(crate) rows: Rows,
    /// Held until the rows are committed.
    pub(crate) pin: Arc<Pin>,
}

pub(crate) struct ArtifactOperation {
    pub(crate) artifact: NewArtifact,
    pub(crate) reply: oneshot::Sender<Result<u64, LedgerError>>,
}

/// An id for a new artifact: a UUIDv7, so ids of later artifacts sort later.
#[must_use]
pub fn new_artifact_id() -> String {
    // Every id of the protocol is one; this one belongs to no event.
    EventId::new().to_string()
}

/// Whether the text can be the id of an artifact; one that cannot has never been given out.
fn is_id(id: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

impl NewArtifact {
    pub(crate) fn prepare(record: &ArtifactRecord, blobs: &Arc<Blobs>) -> Result<Self, LedgerError> {
        let id = &record.artifact_id;
        if !is_id(id) {
            return Err(LedgerError::invalid(format!("an artifact id has 1 to {MAX_ID_BYTES} letters, digits and `-`")));
        }
        let digest = parse_hex(&record.sha256)
            .ok_or_else(|| LedgerError::invalid("`sha256` of an artifact has 64 hexadecimal digits in lower case"))?;
        let pin = blobs.pin_existing(digest, record.size)?;
        let mut rows = Rows::default();
        rows.put(Table::Artifacts, id.as_bytes(), &encode(record)?);
        rows.put(Table::BlobRefs, &schema::blob_ref(&digest, BY_ARTIFACT, id.as_bytes()), &[]);
        if let Some(at) = record.expires_at {
            rows.put(Table::ArtifactExpiry, &schema::expiry(at, id), &[]);
        }
        if record.source == UPLOAD {
            rows.put(Table::Unreferenced, id.as_bytes(), &schema::number(record.created_at));
        }
        Ok(Self { id: id.clone(), rows, pin: Arc::new(pin) })
    }

    pub(crate) fn prepare_all(records: &[ArtifactRecord], blobs: &Arc<Blobs>) -> Result<Vec<Self>, LedgerError> {
        records.iter().map(|record| Self::prepare(record, blobs)).collect()
    }
}

/// Adds up what artifacts and the ids that an operation refers to take in the queue.
pub(crate) fn artifact_bytes(artifacts: &[NewArtifact], refers_to: &[String]) -> usize {
    let rows: usize = artifacts.iter().map(|artifact| artifact.rows.bytes().len()).sum();
    rows + refers_to.iter().map(String::len).sum::<usize>()
}

impl ArtifactRecord {
    /// How messages and events refer to it.
    #[must_use]
    pub fn reference(&self) -> ArtifactRef {
        ArtifactRef {
            artifact_id: self.artifact_id.clone(),
            media_type: self.media_type.clone(),
            name: self.name.clone(),
            size: Some(self.size),
            sha256: Some(self.sha256.clone()),
        }
    }

    /// What is said of it to guests and clients.
    #[must_use]
    pub fn metadata(&self) -> ArtifactMetadata {
        ArtifactMetadata { artifact: self.reference(), created_at: self.created_at, expires_at: self.expires_at }
    }
}

impl Ledger {
    /// Adds an artifact whose blob is written. It is durable and readable when this returns; hold the
    /// [`crate::Blob`] until then.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] where the id is not new or the blob not there, [`LedgerError::DiskLow`],
    /// [`LedgerError::Storage`] and [`LedgerError::Unavailable`].
    pub async fn add_artifact(&self, record: ArtifactRecord) -> Result<(), LedgerError> {
        let shared = self.shared();
        shared.disk.check(crate::disk::Need::NewEvent)?;
        let artifact = NewArtifact::prepare(&record, &shared.blobs)?;
        let bytes = artifact.rows.bytes().len();
        bounded(bytes)?;
        let (reply, answer) = oneshot::channel();
        self.admit(Operation::Artifact(Box::new(ArtifactOperation { artifact, reply })), bytes).await?;
        answer.await.map_err(|_| shared.unavailable())?.map(|_| ())
    }

    /// An artifact by its id: one that is committed and not collected. One that a run has made is there when the
    /// [`crate::Commit`] of its write has resolved. Who may see it, and whether its time is over, the caller decides.
    ///
    /// # Errors
    /// Where the ledger is damaged or not available.
    pub fn artifact(&self, id: &str) -> Result<Option<ArtifactRecord>, LedgerError> {
        let reader = self.reader()?;
        if !is_id(id) {
            return Ok(None);
        }
        reader.get(Table::Artifacts, id.as_bytes(), |bytes| json(Table::Artifacts, bytes))
    }
}
