//! Uploads: bounded in size and time while they arrive, and on disk piece by piece.

use std::{future::Future, time::Duration};

use agent_host_protocol::time;
use agent_host_runs::{ArtifactRecord, ArtifactScope, BlobWriter, LedgerError, UPLOAD, new_artifact_id};
use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, header},
};
use http_body_util::BodyExt;

use crate::{
    access::authentication::is_allowed_origin,
    app::{App, off_thread},
    http::{
        Problem, ProblemCode,
        body::DISCARDED_BYTES,
        headers::{SEC_FETCH_SITE, content_length},
    },
};

/// A client that sends nothing for so long holds a connection for nothing.
pub(crate) const IDLE: Duration = Duration::from_secs(30);
/// Time limit of an upload: 64 MiB at 110 kB a second.
pub(crate) const ARRIVAL: Duration = Duration::from_secs(600);
/// Pieces are gathered to so much before they go to disk.
pub(crate) const WRITE_BYTES: usize = 512 * 1024;

/// The body of an upload, piece by piece.
pub(crate) struct UploadBody {
    body: Body,
    size: u64,
    limit: u64,
}

impl UploadBody {
    /// A body of at most `limit` bytes. Refuses one that announces more.
    pub(crate) async fn new(headers: &HeaderMap, body: Body, limit: u64) -> Result<Self, Problem> {
        if content_length(headers).is_some_and(|length| length > limit) {
            return Err(refuse(body, limit).await);
        }
        Ok(Self { body, size: 0, limit })
    }

    /// The next piece; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        loop {
            let frame = tokio::time::timeout(IDLE, self.body.frame()).await.map_err(|_| {
                Problem::new(ProblemCode::RequestTimeout, format!("the body stood still for {} seconds", IDLE.as_secs()))
            })?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| Problem::invalid("body", format!("the body broke off: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            self.size = self.size.saturating_add(data.len() as u64);
            if self.size > self.limit {
                return Err(refuse(std::mem::take(&mut self.body), self.limit).await);
            }
            return Ok(Some(data));
        }
    }

    /// Writes all pieces to disk. An upload that is given up leaves nothing there.
    pub(crate) async fn write(mut self, app: &App) -> Result<BlobWriter, Problem> {
        let mut spool = Spool::open(app, self.limit).await?;
        while let Some(data) = self.next().await? {
            spool = spool.push(&data).await?;
        }
        spool.end().await
    }
}

/// Bounds the time that an upload takes.
pub(crate) async fn in_time<T>(upload: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    tokio::time::timeout(ARRIVAL, upload).await.unwrap_or_else(|_| {
        let detail = format!("the body did not arrive within {} seconds", ARRIVAL.as_secs());
        Err(Problem::new(ProblemCode::RequestTimeout, detail))
    })
}

/// Content on its way to disk.
pub(crate) struct Spool {
    writer: BlobWriter,
    gathered: Vec<u8>,
}

impl Spool {
    /// For content of at most `limit` bytes.
    pub(crate) async fn open(app: &App, limit: u64) -> Result<Self, Problem> {
        let records = app.host.record_writer();
        let writer = blocking(move || records.blob_writer(limit)).await?;
        Ok(Self { writer, gathered: Vec::new() })
    }

    pub(crate) async fn push(mut self, bytes: &[u8]) -> Result<Self, Problem> {
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() < WRITE_BYTES {
            return Ok(self);
        }
        Ok(Self { writer: self.end().await?, gathered: Vec::new() })
    }

    /// All of it, written.
    pub(crate) async fn end(self) -> Result<BlobWriter, Problem> {
        let Self { mut writer, gathered } = self;
        blocking(move || writer.write(&gathered).map(|()| writer)).await
    }
}

/// An artifact of content that is written.
pub(crate) struct NewUpload {
    pub(crate) media_type: String,
    pub(crate) name: Option<String>,
    pub(crate) expires_in_ms: Option<u64>,
    pub(crate) scope: ArtifactScope,
}

/// Makes an artifact of the written content. The artifact is durable when this function returns.
pub(crate) async fn create_artifact(app: &App, writer: BlobWriter, new: NewUpload) -> Result<ArtifactRecord, Problem> {
    let NewUpload { media_type, name, expires_in_ms, scope } = new;
    // Held until the record is there: it keeps the content.
    let blob = blocking(move || writer.finish()).await?;
    let now = time::now();
    let record = ArtifactRecord {
        artifact_id: new_artifact_id(&scope.workspace),
        sha256: blob.sha256.clone(),
        size: blob.size,
        media_type,
        name,
        created_at: now,
        expires_at: expires_in_ms.map(|ms| now.saturating_add(ms)),
        scope,
        source: UPLOAD.to_owned(),
    };
    app.host.record_writer().add_artifact(record.clone()).await?;
    drop(blob);
    Ok(record)
}

/// Does something with content, off the threads that serve.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LedgerError> + Send + 'static,
) -> Result<T, Problem> {
    off_thread(move || {
        work().map_err(|error| match error {
            LedgerError::TooLarge { limit } => too_large(limit),
            error => error.into(),
        })
    })
    .await
}

pub(crate) fn too_large(limit: u64) -> Problem {
    Problem::new(ProblemCode::PayloadTooLarge, format!("the body is larger than {limit} bytes, the limit of an upload"))
}

/// Of a body that is too large, some is read and thrown away, so that a client which writes all before it reads
/// still sees the refusal instead of a broken connection.
pub(crate) async fn refuse(mut body: Body, limit: u64) -> Problem {
    let discard = async {
        let mut discarded = 0;
        while let Some(Ok(frame)) = body.frame().await {
            discarded += frame.data_ref().map_or(0, Bytes::len);
            if discarded > DISCARDED_BYTES {
                break;
            }
        }
    };
    // The answer does not depend on the rest of the upload.
    let _ = tokio::time::timeout(IDLE, discard).await;
    too_large(limit)
}

/// Refuses pages of other sites where nobody needs a key, but for those that the configuration names: unlike JSON, they may
/// send a plain body without asking first.
pub(crate) fn refuse_pages(app: &App, headers: &HeaderMap) -> Result<(), Problem> {
    let is_foreign = headers.get(SEC_FETCH_SITE).is_some_and(|site| site == "cross-site" || site == "same-site");
    let config = app.host.config();
    if is_foreign && !headers.get(header::ORIGIN).is_some_and(|origin| is_allowed_origin(&config, origin)) {
        return Err(Problem::invalid("Sec-Fetch-Site", "pages of other sites may not upload here"));
    }
    Ok(())
}

/// The media type that the client declares. Forms are refused: they are how pages of other sites could post here
/// without asking, and their parts are not the content.
pub(crate) fn declared_type(headers: &HeaderMap) -> Result<String, Problem> {
    let declared = match headers.get(header::CONTENT_TYPE) {
        Some(value) => value.to_str().map_err(|_| Problem::invalid("Content-Type", "`Content-Type` is not ASCII"))?.to_owned(),
        None => String::new(),
    };
    let essence = declared.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "multipart/form-data" || essence == "application/x-www-form-urlencoded" {
        let detail = "send the content itself as the body, with its own media type as `Content-Type`";
        return Err(Problem::new(ProblemCode::UnsupportedMediaType, detail));
    }
    Ok(declared)
}
