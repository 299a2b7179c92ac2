//! Bytes that a call gives, as a journal keeps them: short ones by themselves, long ones by the blob that has them.

use agent_host_protocol::ApiError;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

use crate::{
    execution::{Execution, blocking},
    record::{
        journal::{Outcome, Stop, Ticket},
        ledger_failed,
    },
};

/// Bytes that stand in the journal themselves.
const MAX_INLINE_BYTES: usize = 4 * 1024;

/// How bytes are kept.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kept {
    /// As Base64.
    Inline(String),
    /// In a blob.
    Blob { sha256: String, offset: u64, bytes: usize },
}

impl Execution {
    /// Records bytes that a call gives. `blob` says which blob has them, and where in it.
    pub(super) fn settle_bytes(&self, ticket: &Ticket, bytes: &[u8], blob: Option<(&str, u64)>) -> Result<(), ApiError> {
        if !self.journal.is_recording() {
            return Ok(());
        }
        let (kept, blobs) = match blob {
            Some((sha256, offset)) if bytes.len() > MAX_INLINE_BYTES => {
                // The journal keeps the content from now on, even where the artifact expires.
                let pinned = self.ledger.pin_blob(sha256).map_err(ledger_failed)?;
                (Kept::Blob { sha256: sha256.to_owned(), offset, bytes: bytes.len() }, pinned)
            }
            _ => (Kept::Inline(STANDARD.encode(bytes)), None),
        };
        let text = serde_json::to_string(&kept).unwrap_or_default();
        self.journal.settle(ticket, Outcome::Answer(text), blobs.into_iter().collect());
        Ok(())
    }

    /// The bytes that an execution before was given.
    pub(super) async fn kept(&self, kept: Kept) -> Result<Vec<u8>, ApiError> {
        let lost = |why: String| Stop::Lost(format!("bytes that the guest was given cannot be read again: {why}"));
        let (sha256, offset, bytes) = match kept {
            Kept::Inline(text) => match STANDARD.decode(text) {
                Ok(bytes) => return Ok(bytes),
                Err(error) => return self.stop(lost(error.to_string())).await,
            },
            Kept::Blob { sha256, offset, bytes } => (sha256, offset, bytes),
        };
        let read = match self.ledger.blob(&sha256) {
            Ok(Some(blob)) => blocking(move || blob.read_at(offset, bytes)).await.map_err(|error| error.message),
            Ok(None) => Err(format!("there is no blob {sha256}")),
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(read) if read.len() == bytes => Ok(read),
            Ok(read) => self.stop(lost(format!("{} of {bytes} bytes are left", read.len()))).await,
            Err(why) => self.stop(lost(why)).await,
        }
    }
}
