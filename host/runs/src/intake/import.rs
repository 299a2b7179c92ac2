//! Captures of other frameworks become runs: the same capture is the same run.

use std::sync::Arc;

use agent_host_config::{BindingConfig, QueuePolicy};
use agent_host_facts::import::{self, Form};
use agent_host_ledger::{ArtifactRecord, ArtifactScope, Blob, BlobWriter, EntryWrite, new_artifact_id};
use agent_host_protocol::{
    EventId, FailureCode, Run, RunId, RunStatus,
    context::{Conversation, Input},
    event::Envelope,
    grant::ConversationKey,
    time,
};
use sha2::{Digest, Sha256};

use super::{Intake, accept::RunPlan};
use crate::{lifecycle::native::NATIVE_LINES, policy::binding::Binding, record::HostError};

/// Time limit of an import: the largest capture takes some seconds.
const DEADLINE_MS: u64 = 600_000;
/// Captures of one form that are imported at one time. Each is in memory, up to `limits.upload_bytes`.
const IMPORTED_AT_ONCE: u32 = 2;
/// Captures that are checked at one time, likewise.
pub(super) const CHECKED_AT_ONCE: usize = 2;

/// A capture that is to be imported.
pub struct NewImport {
    /// The form of its events.
    pub form: Form,
    /// The text, as it was written to disk.
    pub content: BlobWriter,
    /// A name to show.
    pub name: Option<String>,
    /// The conversation that it becomes a turn of. Without one, it is a thread of its own.
    pub conversation: Option<Conversation>,
}

/// The run of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportedRun {
    /// The run.
    pub run_id: RunId,
    /// True if the capture was imported before.
    pub repeated: bool,
}

impl Intake {
    /// Makes the run of a capture, unless it has one. The run is durable when this function returns, and writes what the
    /// capture says by itself.
    pub(crate) async fn import(&self, new: NewImport) -> Result<ImportedRun, HostError> {
        self.runs.check_running()?;
        let NewImport { form, content, name, conversation } = new;
        let ledger = self.ledger.clone();
        let permit = Arc::clone(&self.checking).acquire_owned().await.map_err(|error| HostError::Internal(error.to_string()))?;
        // Refused before anything is written of it. The check continues where its client has left, so it owns the permit.
        let checked = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let blob = content.finish()?;
            let size = usize::try_from(blob.size).unwrap_or(usize::MAX);
            let reader = ledger.blob(&blob.sha256)?.ok_or_else(|| HostError::Internal("a capture is lost".to_owned()))?;
            check(&reader.read_at(0, size)?)?;
            Ok::<_, HostError>(blob)
        });
        let blob = checked.await.map_err(|error| HostError::Internal(error.to_string()))??;
        let key = entry_key(form, &blob.sha256, conversation.as_ref());
        let _one = self.creating.lock().await;
        if let Some(run) = self.imported(&key)? {
            return Ok(ImportedRun { run_id: run.run_id, repeated: true });
        }
        let run_id = self.create(form, &blob, name, conversation, &key).await?;
        // Held until here: nothing else kept the content.
        drop(blob);
        Ok(ImportedRun { run_id, repeated: false })
    }

    /// The run of a capture that was imported before; `None` where there is none, or the host could not bring it to its end.
    fn imported(&self, key: &str) -> Result<Option<Arc<Run>>, HostError> {
        let Some(entry) = self.ledger.entry(key)? else { return Ok(None) };
        let id: RunId = serde_json::from_str(entry.get()).map_err(|error| HostError::Internal(error.to_string()))?;
        let run = self.ledger.run(id)?.map(|record| record.run);
        Ok(run.filter(|run| !is_broken(run)))
    }

    async fn create(
        &self,
        form: Form,
        blob: &Blob,
        name: Option<String>,
        conversation: Option<Conversation>,
        key: &str,
    ) -> Result<RunId, HostError> {
        let workspace = conversation.as_ref().and_then(|it| it.workspace_id.clone()).unwrap_or_default();
        let record = ArtifactRecord {
            artifact_id: new_artifact_id(&workspace),
            sha256: blob.sha256.clone(),
            size: blob.size,
            media_type: NATIVE_LINES.to_owned(),
            name,
            created_at: time::now(),
            expires_at: None,
            scope: ArtifactScope {
                workspace,
                conversation: conversation.as_ref().and_then(ConversationKey::of),
                run_id: None,
                binding_id: None,
            },
            source: "import".to_owned(),
        };
        let runner = form.runner().map_err(|error| HostError::Internal(error.to_string()))?;
        let mut binding = BindingConfig::for_runner(runner);
        binding.id = format!("import-{}", form.as_str());
        binding.deadline_ms = Some(DEADLINE_MS);
        binding.queue = Some(QueuePolicy { concurrency: Some(IMPORTED_AT_ONCE), ..QueuePolicy::default() });
        let plan = RunPlan { ad_hoc: true, ..RunPlan::of(Arc::new(Binding::new(binding).map_err(HostError::InvalidConfig)?)) };
        let mut envelope = Envelope::message("", "api");
        envelope.event_type = format!("import.{}", form.as_str());
        envelope.input = Input::default();
        envelope.raw_ref = Some(record.reference());
        envelope.conversation = conversation;
        self.ledger.add_artifact(record).await?;
        let entries = |_: EventId, runs: &[RunId]| -> Result<Vec<EntryWrite>, HostError> {
            Ok(runs.first().map(|run| EntryWrite::put(key, run)).transpose()?.into_iter().collect())
        };
        let accepted = self.accept_with_plans(envelope, None, vec![plan], &entries).await?;
        accepted.runs.first().copied().ok_or_else(|| HostError::Internal("a capture made no run".to_owned()))
    }
}

/// Reads a capture as its run will.
fn check(content: &[u8]) -> Result<(), HostError> {
    let text = std::str::from_utf8(content).map_err(|_| HostError::Invalid("the capture is not UTF-8 text".to_owned()))?;
    let invalid = |error: import::NativeError| HostError::Invalid(error.to_string());
    let events = import::events(text, 1).map_err(invalid)?;
    (1..).zip(events).try_for_each(|(number, event)| import::lines::parse(event, number).map(drop)).map_err(invalid)
}

/// True if the end of the run is not the end that the capture says: the capture may be imported again.
fn is_broken(run: &Run) -> bool {
    match run.status {
        RunStatus::Failed => {
            run.failure.as_ref().is_some_and(|failure| FailureCode::ALL.iter().any(|code| code.as_str() == failure.code))
        }
        RunStatus::Cancelled => run.cancel_requested_at.is_some(),
        RunStatus::Timeout => true,
        _ => false,
    }
}

/// The beginning of the keys of entries that name the run of a capture.
pub(crate) const ENTRIES: &str = "import/";

/// The entry that names the run of a capture.
fn entry_key(form: Form, sha256: &str, conversation: Option<&Conversation>) -> String {
    let place = serde_json::to_vec(&conversation).unwrap_or_default();
    let mut hash = Sha256::new();
    hash.update(sha256);
    hash.update(place);
    format!("{ENTRIES}{}/{}", form.as_str(), agent_host_protocol::hex::encode(&hash.finalize()))
}
