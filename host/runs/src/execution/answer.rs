//! Answers of host calls as the journal keeps them: JSON, or bytes by the blob that has them.

use agent_host_ledger::Blob;
use agent_host_protocol::{ApiError, ErrorCode, encoded::json_string, hex};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Execution, blocking};
use crate::record::{
    journal::{Outcome, Stop},
    ledger_failed,
};

/// A longer answer becomes a blob beside the journal.
const MAX_INLINE_ANSWER: usize = 64 * 1024;
/// Largest answer, in bytes, that the journal stores inline; larger answers are blobs.
const MAX_INLINE_BYTES: usize = 4 * 1024;

/// The answer of a host call.
pub(crate) trait Answer: Sized + Send + Sync + 'static {
    /// The answer as an outcome, with the blobs that it needs.
    fn record(&self, run: &Execution) -> impl Future<Output = Result<(Outcome, Vec<Blob>), ApiError>> + Send;

    /// The answer that an earlier execution recorded. An answer that cannot be read stops the execution.
    fn recall(run: &Execution, outcome: Outcome) -> impl Future<Output = Result<Self, ApiError>> + Send;
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Answer for T {
    async fn record(&self, run: &Execution) -> Result<(Outcome, Vec<Blob>), ApiError> {
        let text = json_string(self).map_err(|error| host_failed(&error))?;
        if text.len() <= MAX_INLINE_ANSWER {
            return Ok((Outcome::Answer(text), Vec::new()));
        }
        // Rare beside the calls that may have one, so their futures have no room for it.
        let blob = Box::pin(long_answer_blob(run, text)).await?;
        Ok((Outcome::LongAnswer { sha256: blob.digest() }, vec![blob]))
    }

    async fn recall(run: &Execution, outcome: Outcome) -> Result<Self, ApiError> {
        let answer = match outcome {
            Outcome::Answer(text) => serde_json::from_str(&text),
            Outcome::LongAnswer { sha256 } => match run.long_answer(&sha256).await {
                Ok(bytes) => serde_json::from_slice(&bytes),
                Err(why) => run.stop(Stop::Lost(why)).await,
            },
            Outcome::Refused(text) => return Err(run.refusal(&text).await),
        };
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => run.stop(unreadable(&error)).await,
        }
    }
}

async fn long_answer_blob(run: &Execution, text: String) -> Result<Blob, ApiError> {
    let mut writer = run.ledger.blob_writer(text.len() as u64).map_err(ledger_failed)?;
    let written = blocking(move || {
        writer.write(text.as_bytes())?;
        writer.finish()
    });
    written.await
}

fn host_failed(error: &serde_json::Error) -> ApiError {
    tracing::error!(%error, "an answer could not be recorded");
    ApiError::new(ErrorCode::RuntimeError, "the host could not record the answer; its log has the reason")
}

fn unreadable(error: &serde_json::Error) -> Stop {
    Stop::Lost(format!("an answer in the journal cannot be read: {error}"))
}

impl Execution {
    /// The outcome of a call, as the journal stores it. Without a journal, no answer is encoded.
    pub(super) async fn recorded<T: Answer>(&self, outcome: &Result<T, ApiError>) -> Result<(Outcome, Vec<Blob>), ApiError> {
        if !self.journal.is_recording() {
            return Ok((Outcome::Answer(String::new()), Vec::new()));
        }
        match outcome {
            Ok(answer) => answer.record(self).await,
            Err(refusal) => {
                let text = serde_json::to_string(refusal).map_err(|error| host_failed(&error))?;
                Ok((Outcome::Refused(text), Vec::new()))
            }
        }
    }

    async fn refusal(&self, text: &str) -> ApiError {
        match serde_json::from_str(text) {
            Ok(refusal) => refusal,
            Err(error) => self.stop(unreadable(&error)).await,
        }
    }

    async fn long_answer(&self, sha256: &[u8; 32]) -> Result<Vec<u8>, String> {
        let blob = self.ledger.blob(&hex::encode(sha256)).map_err(|error| error.to_string())?;
        let blob = blob.ok_or_else(|| "a long answer is missing beside the journal".to_owned())?;
        blocking(move || blob.read_at(0, usize::MAX)).await.map_err(|error| error.message)
    }
}

/// Bytes that a call gives.
pub(crate) struct Content {
    /// `None` where there is no such value.
    pub(crate) bytes: Option<Vec<u8>>,
    /// The digest of the blob that has them, and their place in it.
    blob: Option<(String, u64)>,
}

/// Bytes, as the journal keeps them.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredBytes {
    /// As Base64.
    Inline(String),
    /// In a blob.
    Blob { sha256: String, offset: u64, bytes: usize },
}

impl Content {
    pub(crate) fn new(bytes: Option<Vec<u8>>) -> Self {
        Self { bytes, blob: None }
    }

    /// Bytes of a blob from `offset` on.
    pub(crate) fn of_blob(bytes: Vec<u8>, sha256: String, offset: u64) -> Self {
        Self { bytes: Some(bytes), blob: Some((sha256, offset)) }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes.unwrap_or_default()
    }
}

impl Answer for Content {
    async fn record(&self, run: &Execution) -> Result<(Outcome, Vec<Blob>), ApiError> {
        let (stored, blobs) = match (&self.bytes, &self.blob) {
            (Some(bytes), Some((sha256, offset))) if bytes.len() > MAX_INLINE_BYTES => {
                // The journal keeps the content from now on, even where the artifact expires.
                let pinned = run.ledger.pin_blob(sha256).map_err(ledger_failed)?;
                let stored = StoredBytes::Blob { sha256: sha256.clone(), offset: *offset, bytes: bytes.len() };
                (Some(stored), pinned.into_iter().collect())
            }
            (Some(bytes), _) => (Some(StoredBytes::Inline(STANDARD.encode(bytes))), Vec::new()),
            (None, _) => (None, Vec::new()),
        };
        let (outcome, more) = stored.record(run).await?;
        Ok((outcome, [blobs, more].concat()))
    }

    async fn recall(run: &Execution, outcome: Outcome) -> Result<Self, ApiError> {
        let Some(stored) = Option::<StoredBytes>::recall(run, outcome).await? else { return Ok(Self::new(None)) };
        let lost = |why: String| Stop::Lost(format!("bytes of an earlier answer cannot be read: {why}"));
        let (sha256, offset, bytes) = match stored {
            StoredBytes::Inline(text) => match STANDARD.decode(text) {
                Ok(bytes) => return Ok(Self::new(Some(bytes))),
                Err(error) => return run.stop(lost(error.to_string())).await,
            },
            StoredBytes::Blob { sha256, offset, bytes } => (sha256, offset, bytes),
        };
        let read = match run.ledger.blob(&sha256) {
            Ok(Some(blob)) => blocking(move || blob.read_at(offset, bytes)).await.map_err(|error| error.message),
            Ok(None) => Err(format!("there is no blob {sha256}")),
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(read) if read.len() == bytes => Ok(Self::of_blob(read, sha256, offset)),
            Ok(read) => run.stop(lost(format!("{} of {bytes} bytes are left", read.len()))).await,
            Err(why) => run.stop(lost(why)).await,
        }
    }
}
