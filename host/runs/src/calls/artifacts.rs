//! `artifacts`.

use std::sync::{Arc, atomic::Ordering};

use agent_host_ledger::{ArtifactRecord, ArtifactScope, BlobReader, BlobWriter, NewEvent, RunWrite, new_artifact_id};
use agent_host_protocol::{
    ApiError, ErrorCode, Event, ResultKind, artifact::ArtifactMetadata, manifest::ArtifactOperation, message::ArtifactRef,
    result::host_data, time,
};
use agent_host_providers::{ArtifactContent, ArtifactSource};
use agent_host_sandbox::{ArtifactCalls, ArtifactReader, ArtifactWriter};
use async_trait::async_trait;
use serde_json::json;

use super::{RunCalls, blocking, granted, not_found, within};
use crate::{
    error::ledger_failed,
    gate::{Call, RunState},
    media,
};

/// A name to show.
const MAX_NAME_BYTES: usize = 255;

/// The artifacts that one run may know of.
#[derive(Clone)]
pub(crate) struct RunArtifacts {
    pub(crate) run: Arc<RunState>,
    pub(crate) event: Arc<Event>,
}

impl RunArtifacts {
    /// An artifact that the run may know of: one of its conversation, of its own, of its binding where it has no
    /// conversation, or one that its event names. Whether there are others is not for it to know.
    pub(crate) fn visible(&self, id: &str) -> Result<ArtifactRecord, ApiError> {
        let record = self.run.ledger.artifact(id).map_err(ledger_failed)?;
        record
            .filter(|record| !record.is_expired(time::now()) && self.is_for_run(record))
            .ok_or_else(|| not_found("artifact", id))
    }

    fn is_for_run(&self, record: &ArtifactRecord) -> bool {
        let grant = &self.run.terms.grant;
        let scope = &record.scope;
        if scope.run_id == Some(self.run.run_id) || self.event.envelope.artifact_ids().any(|id| id == record.artifact_id) {
            return true;
        }
        match (&scope.conversation, &grant.conversation) {
            (Some(its), Some(own)) => its == own,
            (None, None) => scope.binding_id.as_ref() == Some(&grant.binding_id),
            _ => false,
        }
    }

    fn scope(&self) -> ArtifactScope {
        let grant = &self.run.terms.grant;
        ArtifactScope {
            workspace: grant.workspace().to_owned(),
            conversation: grant.conversation.clone(),
            run_id: Some(self.run.run_id),
            binding_id: Some(grant.binding_id.clone()),
        }
    }

    fn writer(&self) -> Result<BlobWriter, ApiError> {
        self.run.ledger.blob_writer(self.run.limits.artifact_bytes).map_err(ledger_failed)
    }

    /// Counts bytes that the run writes, before they are written.
    fn take(&self, bytes: usize) -> Result<(), ApiError> {
        let limit = self.run.limits.run_artifact_bytes;
        let before = self.run.artifact_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
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
        let mut writer = self.writer()?;
        let writer = blocking(move || {
            writer.write(&bytes)?;
            Ok(writer)
        })
        .await?;
        // A tool may lie about a type; what the content shows counts, and its content is kept in any case.
        let media_type = media::judge(media_type, writer.head()).unwrap_or_else(|_| media::UNKNOWN.to_owned());
        let name = name.map(|name| name.chars().filter(|c| !c.is_control()).take(MAX_NAME_BYTES / 4).collect());
        self.finish(writer, media_type, name, source).await
    }

    /// Makes an artifact of what was written; durable when it returns.
    async fn finish(
        &self,
        writer: BlobWriter,
        media_type: String,
        name: Option<String>,
        source: &str,
    ) -> Result<ArtifactRef, ApiError> {
        let blob = blocking(move || writer.finish()).await?;
        let at = time::now();
        let record = ArtifactRecord {
            artifact_id: new_artifact_id(),
            sha256: blob.sha256.clone(),
            size: blob.size,
            media_type,
            name,
            created_at: at,
            expires_at: None,
            scope: self.scope(),
            source: source.to_owned(),
        };
        let reference = record.reference();
        let data = host_data(&json!({ "artifact": reference }));
        let write = |sequence| {
            let event = NewEvent { sequence, kind: ResultKind::ArtifactCreated.as_str().to_owned(), data, timestamp: at };
            Ok(RunWrite { events: vec![event], artifacts: vec![record], ..RunWrite::default() })
        };
        self.run.write(write).await?.durable().await?;
        drop(blob);
        Ok(reference)
    }

    fn blob(&self, record: &ArtifactRecord) -> Result<BlobReader, ApiError> {
        let blob = self.run.ledger.blob(&record.sha256).map_err(ledger_failed)?;
        blob.ok_or_else(|| {
            tracing::error!(
                artifact_id = record.artifact_id,
                "the content of an artifact is missing: run `agent-host ledger check`"
            );
            ApiError::new(ErrorCode::RuntimeError, "the host has lost the content of this artifact; its log says so")
        })
    }
}

#[async_trait]
impl ArtifactSource for RunArtifacts {
    async fn content(&self, artifact: &ArtifactRef, max_bytes: usize) -> Result<ArtifactContent, ApiError> {
        let record = self.visible(&artifact.artifact_id)?;
        within("the artifact", usize::try_from(record.size).unwrap_or(usize::MAX), max_bytes)?;
        let blob = self.blob(&record)?;
        let bytes = blocking(move || blob.read_at(0, max_bytes)).await?;
        Ok(ArtifactContent { media_type: record.media_type, bytes: bytes.into() })
    }
}

fn call<'a>(action: &'a str, artifact_id: &'a str, bytes: usize) -> Call<'a> {
    Call { action, resource: Some(artifact_id), scope: None, bytes }
}

#[async_trait]
impl ArtifactCalls for RunCalls {
    async fn artifact_metadata(&mut self, artifact_id: String) -> Result<ArtifactMetadata, ApiError> {
        let run = &*self.run;
        let allowed = || granted(&run.terms.grant.permissions.artifacts, &ArtifactOperation::Metadata, "artifacts.metadata");
        let effect = async { self.artifacts().visible(&artifact_id).map(|record| record.metadata()) };
        run.pass(call("artifacts.metadata", &artifact_id, 0), allowed, effect).await
    }

    async fn artifact_read_range(&mut self, artifact_id: String, offset: u64, length: u32) -> Result<Vec<u8>, ApiError> {
        let run = &*self.run;
        let artifacts = self.artifacts();
        let length = length as usize;
        let mut found = None;
        let allowed = || {
            granted(&run.terms.grant.permissions.artifacts, &ArtifactOperation::Read, "artifacts.read-range")?;
            artifacts.visible(&artifact_id)?;
            within("a range", length, run.limits.artifact_read_bytes)
        };
        let effect = async {
            let blob = artifacts.blob(&artifacts.visible(&artifact_id)?)?;
            found = Some(blocking(move || blob.read_at(offset, length)).await?);
            Ok(())
        };
        run.pass(call("artifacts.read-range", &artifact_id, length), allowed, effect).await?;
        Ok(found.unwrap_or_default())
    }

    async fn artifact_open(&mut self, artifact_id: String) -> Result<Box<dyn ArtifactReader>, ApiError> {
        let run = &self.run;
        let artifacts = self.artifacts();
        let allowed = || {
            granted(&run.terms.grant.permissions.artifacts, &ArtifactOperation::Read, "artifacts.open")?;
            artifacts.visible(&artifact_id).map(drop)
        };
        let effect = async {
            let blob = Arc::new(artifacts.blob(&artifacts.visible(&artifact_id)?)?);
            let (run, artifact_id) = (Arc::clone(run), artifact_id.clone());
            Ok(Box::new(Reader { run, artifact_id, blob, offset: 0 }) as Box<dyn ArtifactReader>)
        };
        run.pass(call("artifacts.open", &artifact_id, 0), allowed, effect).await
    }

    async fn artifact_create(&mut self, media_type: String, name: Option<String>) -> Result<Box<dyn ArtifactWriter>, ApiError> {
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
            Ok(())
        };
        let effect = async {
            let blob = Some(artifacts.writer()?);
            let (media_type, name) = (media_type.clone(), name.clone());
            Ok(Box::new(Writer { artifacts: artifacts.clone(), blob, media_type, name }) as Box<dyn ArtifactWriter>)
        };
        let call = Call { action: "artifacts.create", resource: name.as_deref(), scope: None, bytes: 0 };
        run.pass(call, allowed, effect).await
    }
}

struct Reader {
    run: Arc<RunState>,
    artifact_id: String,
    blob: Arc<BlobReader>,
    offset: u64,
}

#[async_trait]
impl ArtifactReader for Reader {
    async fn read(&mut self, max_bytes: u32) -> Result<Vec<u8>, ApiError> {
        let Self { run, artifact_id, blob, offset } = self;
        let allowed = || {
            if max_bytes == 0 {
                return Err(ApiError::invalid_argument("`max-bytes` is at least 1: an empty list would look like the end"));
            }
            Ok(())
        };
        // It says "at most", so more than the limit is no mistake.
        let length = (max_bytes as usize).min(run.limits.artifact_read_bytes);
        let effect = async {
            let (blob, at) = (Arc::clone(blob), *offset);
            let bytes = blocking(move || blob.read_at(at, length)).await?;
            *offset += bytes.len() as u64;
            Ok(bytes)
        };
        run.pass(call("artifacts.reader.read", artifact_id, length), allowed, effect).await
    }
}

struct Writer {
    artifacts: RunArtifacts,
    /// Nothing after a write that failed: what is there is not what the guest meant.
    blob: Option<BlobWriter>,
    media_type: String,
    name: Option<String>,
}

fn broken() -> ApiError {
    ApiError::new(ErrorCode::Conflict, "a write to this artifact was refused, so it cannot be finished: create it anew")
}

#[async_trait]
impl ArtifactWriter for Writer {
    async fn write(&mut self, bytes: Vec<u8>) -> Result<(), ApiError> {
        let Self { artifacts, blob, .. } = self;
        let count = bytes.len();
        let run = &artifacts.run;
        let effect = async {
            let mut writer = blob.take().ok_or_else(broken)?;
            artifacts.take(count)?;
            *blob = Some(
                blocking(move || {
                    writer.write(&bytes)?;
                    Ok(writer)
                })
                .await?,
            );
            Ok(())
        };
        let allowed = || within("a write", count, run.limits.artifact_read_bytes);
        run.pass(Call { action: "artifacts.writer.write", resource: None, scope: None, bytes: count }, allowed, effect).await
    }

    async fn finish(self: Box<Self>) -> Result<ArtifactRef, ApiError> {
        let Self { artifacts, blob, media_type, name } = *self;
        let effect = async {
            let blob = blob.ok_or_else(broken)?;
            let media_type = media::judge(&media_type, blob.head()).map_err(ApiError::invalid_argument)?;
            artifacts.finish(blob, media_type, name, "run").await
        };
        let call = Call { action: "artifacts.writer.finish", resource: None, scope: None, bytes: 0 };
        artifacts.run.pass(call, || Ok(()), effect).await
    }
}
