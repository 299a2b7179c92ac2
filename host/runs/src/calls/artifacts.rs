//! `artifacts`.

use std::sync::{Arc, atomic::Ordering};

use agent_host_ledger::{ArtifactRecord, ArtifactScope, BlobReader, BlobWriter, RunWrite, new_artifact_id};
use agent_host_protocol::{
    ApiError, ErrorCode, Event, ResultKind, artifact::ArtifactMetadata, encoded::JsonText, manifest::ArtifactOperation,
    message::ArtifactRef, result::host_data, time,
};
use agent_host_providers::{ArtifactContent, ArtifactSource};
use agent_host_sandbox::{ArtifactCalls, ArtifactReader, ArtifactWriter};
use futures_util::future::BoxFuture;
use serde_json::json;

use super::{RunCalls, granted, not_found, within};
use crate::{
    execution::{
        Execution,
        answer::Content,
        blocking,
        call::{Call, WriteTicket},
    },
    policy::media,
    record::{facts::host_event, journal::request_digest, ledger_failed},
};

/// A name to show.
const MAX_NAME_BYTES: usize = 255;

/// The artifacts that one run may know of.
#[derive(Clone)]
pub(crate) struct RunArtifacts {
    pub(crate) run: Arc<Execution>,
    pub(crate) event: Arc<Event>,
}

impl RunArtifacts {
    /// The record of an artifact that the run may read: an artifact of its conversation, of the run itself, of its binding
    /// if the run has no conversation, or one that its event or its grant names. Any other id is `not_found`, so that a run
    /// cannot probe for ids.
    pub(crate) fn visible(&self, id: &str) -> Result<ArtifactRecord, ApiError> {
        let record = self.run.ledger.artifact(id).map_err(ledger_failed)?;
        record
            .filter(|record| !record.is_expired(time::now()) && self.is_for_run(record))
            .ok_or_else(|| not_found("artifact", id))
    }

    fn is_for_run(&self, record: &ArtifactRecord) -> bool {
        let grant = &self.run.terms.grant;
        let scope = &record.scope;
        if grant.names_artifact(&record.artifact_id) {
            return true;
        }
        if scope.run_id == Some(self.run.run_id) || self.event.envelope.artifact_ids().any(|id| id == record.artifact_id) {
            return true;
        }
        if self.run.knowledge.input_artifacts.lock().contains(&record.artifact_id) {
            return true;
        }
        // A child's own things are its parent's as well, and nobody else's.
        if scope.run_id.is_some_and(|made_by| self.run.family.children.has(made_by)) {
            return true;
        }
        match (&scope.conversation, &grant.conversation) {
            (Some(its), Some(own)) => its == own,
            (None, None) => {
                let is_own_binding = scope.binding_id.as_ref() == Some(&grant.binding_id);
                self.run.terms.depth == 0 && is_own_binding && scope.workspace == grant.workspace()
            }
            _ => false,
        }
    }

    fn scope(&self) -> ArtifactScope {
        let grant = &self.run.terms.grant;
        ArtifactScope {
            workspace: grant.workspace().to_owned(),
            conversation: grant.conversation.clone(),
            run_id: Some(self.run.run_id),
            // An artifact of a child is visible to the child and its parent, not to other runs of the binding.
            binding_id: (self.run.terms.depth == 0).then(|| grant.binding_id.clone()),
        }
    }

    fn writer(&self) -> Result<BlobWriter, ApiError> {
        self.run.ledger.blob_writer(self.run.limits.artifact_bytes).map_err(ledger_failed)
    }

    /// Counts bytes that the run writes, before they are written.
    fn take(&self, bytes: usize) -> Result<(), ApiError> {
        let limit = self.run.limits.run_artifact_bytes;
        let before = self.run.knowledge.artifact_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if before.saturating_add(bytes as u64) > limit {
            let message = format!("a run writes at most {limit} bytes of artifacts");
            return Err(ApiError::new(ErrorCode::PayloadTooLarge, message));
        }
        Ok(())
    }

    /// Keeps what the host itself has in hand, such as the long output of a tool.
    pub(crate) async fn keep(
        &self,
        bytes: Vec<u8>,
        media_type: &str,
        name: Option<String>,
        source: &str,
    ) -> Result<ArtifactRef, ApiError> {
        self.take(bytes.len())?;
        self.run.has_quota()?;
        let mut writer = self.writer()?;
        let writer = blocking(move || {
            writer.write(&bytes)?;
            Ok(writer)
        })
        .await?;
        // A tool may lie about a type; what the content shows counts, and its content is kept in any case.
        let media_type = media::judge(media_type, writer.head()).unwrap_or_else(|_| media::UNKNOWN.to_owned());
        let name = name.map(|name| name.chars().filter(|c| !c.is_control()).take(MAX_NAME_BYTES / 4).collect());
        self.finish(None, writer, media_type, name, source).await
    }

    /// Stores the written content as an artifact. The artifact is durable when this function returns. With a `ticket`, the
    /// artifact is the effect of that call.
    async fn finish(
        &self,
        ticket: Option<WriteTicket>,
        writer: BlobWriter,
        media_type: String,
        name: Option<String>,
        source: &str,
    ) -> Result<ArtifactRef, ApiError> {
        let blob = blocking(move || writer.finish()).await?;
        let (at, scope) = (time::now(), self.scope());
        let record = ArtifactRecord {
            artifact_id: new_artifact_id(&scope.workspace),
            sha256: blob.sha256.clone(),
            size: blob.size,
            media_type,
            name,
            created_at: at,
            expires_at: None,
            scope,
            source: source.to_owned(),
        };
        let reference = record.reference();
        let data = JsonText::from(host_data(&json!({ "artifact": reference })));
        let write = |sequence| {
            let event = host_event(ResultKind::ArtifactCreated, data, sequence, at);
            RunWrite { events: vec![event], artifacts: vec![record], ..RunWrite::default() }
        };
        let (reference, written) = match ticket {
            Some(ticket) => self.run.commit(ticket, |sequence| Ok((write(sequence), reference))).await?,
            None => (reference, self.run.writer.append(|sequence| Ok(write(sequence))).await?),
        };
        written.durable().await?;
        drop(blob);
        Ok(reference)
    }

    pub(crate) fn blob(&self, record: &ArtifactRecord) -> Result<BlobReader, ApiError> {
        let blob = self.run.ledger.blob(&record.sha256).map_err(ledger_failed)?;
        blob.ok_or_else(|| {
            tracing::error!(
                artifact_id = record.artifact_id,
                "the content of an artifact is missing: run `agent-host ledger check`"
            );
            ApiError::new(ErrorCode::RuntimeError, "the content of this artifact is lost; the host's log has details")
        })
    }
}

impl ArtifactSource for RunArtifacts {
    fn content<'a>(&'a self, artifact: &'a ArtifactRef, max_bytes: usize) -> BoxFuture<'a, Result<ArtifactContent, ApiError>> {
        Box::pin(async move {
            let record = self.visible(&artifact.artifact_id)?;
            within("the artifact", usize::try_from(record.size).unwrap_or(usize::MAX), max_bytes)?;
            let blob = self.blob(&record)?;
            let bytes = blocking(move || blob.read_at(0, max_bytes)).await?;
            Ok(ArtifactContent { media_type: record.media_type, bytes: bytes.into() })
        })
    }
}

impl ArtifactCalls for RunCalls {
    fn artifact_metadata(&mut self, artifact_id: String) -> BoxFuture<'_, Result<ArtifactMetadata, ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let allowed = || granted(&run.terms.grant.permissions.artifacts, &ArtifactOperation::Metadata, "artifacts.metadata");
            let effect = async |()| self.artifacts().visible(&artifact_id).map(|record| record.metadata());
            let call = Call::read("artifacts.metadata", run.journal.digest(&artifact_id)).resource(artifact_id.as_str());
            run.pass(call, allowed, effect).await.outcome
        })
    }

    fn artifact_read_range(&mut self, artifact_id: String, offset: u64, length: u32) -> BoxFuture<'_, Result<Vec<u8>, ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let artifacts = self.artifacts();
            let digest = run.journal.digest(&(&artifact_id, offset, length));
            let length = length as usize;
            let call = Call::read("artifacts.read-range", digest).resource(artifact_id.as_str()).bytes(length);
            let allowed = || {
                granted(&run.terms.grant.permissions.artifacts, &ArtifactOperation::Read, "artifacts.read-range")?;
                artifacts.visible(&artifact_id)?;
                within("a range", length, run.limits.artifact_read_bytes)
            };
            let effect = async |()| {
                let record = artifacts.visible(&artifact_id)?;
                let blob = artifacts.blob(&record)?;
                let bytes = blocking(move || blob.read_at(offset, length)).await?;
                Ok(Content::of_blob(bytes, record.sha256, offset))
            };
            run.pass(call, allowed, effect).await.outcome.map(Content::into_bytes)
        })
    }

    fn artifact_open(&mut self, artifact_id: String) -> BoxFuture<'_, Result<Box<dyn ArtifactReader>, ApiError>> {
        Box::pin(async move {
            let run = &self.run;
            let artifacts = self.artifacts();
            let allowed = || {
                granted(&run.terms.grant.permissions.artifacts, &ArtifactOperation::Read, "artifacts.open")?;
                artifacts.visible(&artifact_id).map(drop)
            };
            let mut opened = None;
            let effect = async |()| {
                opened = Some(artifacts.content_of(&artifact_id)?);
                Ok(())
            };
            let call = Call::read("artifacts.open", run.journal.digest(&artifact_id)).resource(artifact_id.as_str());
            run.pass(call, allowed, effect).await.outcome?;
            let reader = Reader { artifacts: artifacts.clone(), artifact_id, content: opened, offset: 0 };
            Ok(Box::new(reader) as Box<dyn ArtifactReader>)
        })
    }

    fn artifact_create(
        &mut self,
        media_type: String,
        name: Option<String>,
    ) -> BoxFuture<'_, Result<Box<dyn ArtifactWriter>, ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let artifacts = self.artifacts();
            let allowed = || {
                granted(&run.terms.grant.permissions.artifacts, &ArtifactOperation::Create, "artifacts.create")?;
                media::check_type(&media_type).map_err(ApiError::invalid_argument)?;
                if let Some(name) = &name
                    && (name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control))
                {
                    return Err(ApiError::invalid_argument(format!(
                        "a name has 1 to {MAX_NAME_BYTES} bytes and no control characters"
                    )));
                }
                run.has_quota()
            };
            let mut content = Draft::Empty;
            let effect = async |()| {
                content = Draft::OnDisk(Box::new(artifacts.writer()?));
                Ok(())
            };
            let digest = run.journal.digest(&(&media_type, &name));
            run.pass(Call::read("artifacts.create", digest).resource(name.as_deref()), allowed, effect).await.outcome?;
            let writer = Writer { artifacts: artifacts.clone(), content, media_type, name };
            Ok(Box::new(writer) as Box<dyn ArtifactWriter>)
        })
    }
}

struct Reader {
    artifacts: RunArtifacts,
    artifact_id: String,
    /// `None` until the content is opened again, if an earlier execution opened it.
    content: Option<OpenContent>,
    offset: u64,
}

/// The content of an artifact, open.
#[derive(Clone)]
struct OpenContent {
    sha256: String,
    blob: Arc<BlobReader>,
}

impl RunArtifacts {
    fn content_of(&self, artifact_id: &str) -> Result<OpenContent, ApiError> {
        let record = self.visible(artifact_id)?;
        let blob = Arc::new(self.blob(&record)?);
        Ok(OpenContent { sha256: record.sha256, blob })
    }
}

impl ArtifactReader for Reader {
    fn read(&mut self, max_bytes: u32) -> BoxFuture<'_, Result<Vec<u8>, ApiError>> {
        Box::pin(async move {
            let Self { artifacts, artifact_id, content, offset } = self;
            let run = &*artifacts.run;
            let allowed = || {
                if max_bytes == 0 {
                    return Err(ApiError::invalid_argument("`max-bytes` is at least 1: an empty list would look like the end"));
                }
                Ok(())
            };
            let digest = run.journal.digest(&(&*artifact_id, *offset, max_bytes));
            // The contract says "at most", so a larger value is shortened and not refused.
            let length = (max_bytes as usize).min(run.limits.artifact_read_bytes);
            let call = Call::read("artifacts.reader.read", digest).resource(artifact_id.as_str()).bytes(length);
            let effect = async |()| {
                let OpenContent { sha256, blob } = match content {
                    Some(open) => open.clone(),
                    None => content.insert(artifacts.content_of(artifact_id)?).clone(),
                };
                let at = *offset;
                let bytes = blocking(move || blob.read_at(at, length)).await?;
                Ok(Content::of_blob(bytes, sha256, at))
            };
            let bytes = run.pass(call, allowed, effect).await.outcome?.into_bytes();
            *offset += bytes.len() as u64;
            Ok(bytes)
        })
    }
}

struct Writer {
    artifacts: RunArtifacts,
    content: Draft,
    media_type: String,
    name: Option<String>,
}

/// Content written to an artifact that is not finished. It is on disk from the first byte, also while the journal of an earlier
/// execution is followed: all runs that wake together would have theirs in memory.
enum Draft {
    OnDisk(Box<BlobWriter>),
    /// Created by an earlier execution, and nothing written since.
    Empty,
    /// A write failed: what is there is not what the guest meant.
    Broken,
}

/// True if the gate refused the call; false if writing failed.
fn of_the_gate(error: &ApiError) -> bool {
    matches!(error.code, ErrorCode::RateLimited | ErrorCode::Cancelled | ErrorCode::DeadlineExceeded)
}

fn broken() -> ApiError {
    ApiError::new(ErrorCode::Conflict, "a write to this artifact was refused, so it cannot be finished: create another one")
}

impl Draft {
    /// Takes it out, on disk; what is left is broken until it is put back.
    fn take(&mut self, artifacts: &RunArtifacts) -> Result<BlobWriter, ApiError> {
        match std::mem::replace(self, Self::Broken) {
            Self::OnDisk(writer) => Ok(*writer),
            Self::Broken => Err(broken()),
            Self::Empty => artifacts.writer(),
        }
    }

    /// Writes to it; it is broken where that fails.
    async fn write(&mut self, artifacts: &RunArtifacts, bytes: Vec<u8>) -> Result<(), ApiError> {
        let mut writer = self.take(artifacts)?;
        let write = move || {
            writer.write(&bytes)?;
            Ok(writer)
        };
        *self = Self::OnDisk(Box::new(blocking(write).await?));
        Ok(())
    }
}

impl ArtifactWriter for Writer {
    fn write(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), ApiError>> {
        Box::pin(async move {
            let Self { artifacts, content, .. } = self;
            let count = bytes.len();
            let run = &*artifacts.run;
            let digest = run.journal.digest(&request_digest::bytes(&bytes));
            let call = Call::read("artifacts.writer.write", digest).bytes(count);
            let mut bytes = Some(bytes);
            let effect = async |()| {
                if let Err(error) = artifacts.take(count) {
                    *content = Draft::Broken;
                    return Err(error);
                }
                content.write(artifacts, bytes.take().unwrap_or_default()).await
            };
            let passed = run.pass(call, || within("a write", count, run.limits.artifact_read_bytes), effect).await;
            if passed.past.is_none() {
                return passed.outcome;
            }
            match (&passed.outcome, content) {
                (Ok(()), Draft::Broken) => {}
                (Ok(()), content) => {
                    // The artifact was within the limit when the earlier execution made it.
                    let _ = artifacts.take(count);
                    if let Err(error) = content.write(artifacts, bytes.unwrap_or_default()).await {
                        tracing::warn!(run_id = %run.run_id, %error, "content of an unfinished artifact cannot be written again");
                    }
                }
                // The gate refused it, so it was not begun.
                (Err(error), _) if count > run.limits.artifact_read_bytes || of_the_gate(error) => {}
                (_, content) => *content = Draft::Broken,
            }
            passed.outcome
        })
    }

    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<ArtifactRef, ApiError>> {
        Box::pin(async move {
            let Self { artifacts, mut content, media_type, name } = *self;
            let run = &artifacts.run;
            let digest = run.journal.digest(&(&media_type, &name));
            let effect = async |ticket| {
                let blob = content.take(&artifacts)?;
                let media_type = media::judge(&media_type, blob.head()).map_err(ApiError::invalid_argument)?;
                artifacts.finish(Some(ticket), blob, media_type, name.clone(), "run").await
            };
            run.pass(Call::write("artifacts.writer.finish", digest), || Ok(()), effect).await.outcome
        })
    }
}
