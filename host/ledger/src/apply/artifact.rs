//! Artifacts that are added, referred to and forgotten.

use crate::{
    apply::Batch,
    digest::parse_hex,
    error::LedgerError,
    operation::{ForgetOperation, NewArtifact},
    record::ArtifactRecord,
    rows::{BY_ARTIFACT, MAX_KEY_BYTES, Table, blob_ref, expiry, json},
};

impl Batch<'_> {
    pub(crate) fn has_artifact(&mut self, id: &str) -> Result<bool, LedgerError> {
        match self.artifacts.get(id) {
            Some(there) => Ok(*there),
            None if id.len() > MAX_KEY_BYTES => Ok(false),
            None => self.reader.has(Table::Artifacts, id.as_bytes()),
        }
    }

    pub(crate) fn check_artifacts(&mut self, artifacts: &[NewArtifact]) -> Result<(), LedgerError> {
        for (place, artifact) in artifacts.iter().enumerate() {
            let twice = artifacts.iter().take(place).any(|other| other.id == artifact.id);
            // An id that was forgotten in this batch is not given again either.
            if twice || self.artifacts.contains_key(&artifact.id) || self.has_artifact(&artifact.id)? {
                return Err(LedgerError::invalid(format!("artifact `{}` is already in the ledger: make a new id", artifact.id)));
            }
        }
        Ok(())
    }

    pub(crate) fn put_artifact(&mut self, artifact: NewArtifact) {
        self.rows.append(&artifact.rows);
        self.outcome.pins.push(artifact.pin);
        self.artifacts.insert(artifact.id, true);
    }

    pub(crate) fn refer_to(&mut self, ids: Vec<String>) {
        for id in ids {
            if id.len() <= MAX_KEY_BYTES {
                self.rows.delete(Table::Unreferenced, id.as_bytes());
                self.referenced.insert(id);
            }
        }
    }

    /// Forgets artifacts whose time is over or that nothing refers to; gives how many.
    pub(crate) fn forget(&mut self, forget: &ForgetOperation) -> Result<u64, LedgerError> {
        let mut old = Vec::new();
        for id in &forget.ids {
            // The next collection takes artifacts that this batch has added or forgotten.
            if self.artifacts.contains_key(id) {
                continue;
            }
            let referenced = self.referenced.contains(id);
            let reader = self.reader;
            let record = reader.get(Table::Artifacts, id.as_bytes(), |bytes| json::<ArtifactRecord>(Table::Artifacts, bytes))?;
            let Some(record) = record else { continue };
            let since = reader.number(Table::Unreferenced, id.as_bytes())?;
            let unreferenced = !referenced && since.is_some_and(|since| since <= forget.unreferenced_until);
            if record.is_expired(forget.now) || unreferenced {
                old.push(record);
            }
        }
        old.iter().for_each(|record| self.delete_artifact(record));
        Ok(old.len() as u64)
    }

    /// True if this batch has deleted the artifact.
    pub(crate) fn is_forgotten_artifact(&self, id: &str) -> bool {
        self.artifacts.get(id) == Some(&false)
    }

    pub(crate) fn delete_artifact(&mut self, record: &ArtifactRecord) {
        let id = record.artifact_id.as_bytes();
        self.rows.delete(Table::Artifacts, id);
        self.rows.delete(Table::Unreferenced, id);
        if let Some(at) = record.expires_at {
            self.rows.delete(Table::ArtifactExpiry, &expiry(at, &record.artifact_id));
        }
        if let Some(digest) = parse_hex(&record.sha256) {
            self.rows.delete(Table::BlobRefs, &blob_ref(&digest, BY_ARTIFACT, id));
        }
        self.artifacts.insert(record.artifact_id.clone(), false);
    }
}
