//! Artifacts, checked and encoded.

use std::sync::Arc;

use agent_host_protocol::Timestamp;
use tokio::sync::oneshot;

use crate::{
    digest::parse_hex,
    error::LedgerError,
    files::{Blobs, Pin},
    record::{ArtifactRecord, UPLOAD},
    rows::{BY_ARTIFACT, Rows, Table, encode, schema},
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

/// Forgets those artifacts that are still to be forgotten when it is carried out. Answers with how many were.
pub(crate) struct ForgetOperation {
    pub(crate) ids: Vec<String>,
    /// The artifacts that expire up to this time.
    pub(crate) now: Timestamp,
    /// Uploads that nothing refers to, taken up to here.
    pub(crate) unreferenced_until: Timestamp,
    pub(crate) reply: oneshot::Sender<Result<u64, LedgerError>>,
}

/// True if the text can be the id of an artifact; any other text was never used as one.
pub(crate) fn is_id(id: &str) -> bool {
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
