//! Taking documents in, and out again.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use agent_host_config::KnowledgeBaseConfig;
use agent_host_protocol::{ApiError, ErrorCode, hex};
use futures_util::{StreamExt, stream};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{
    Embedder,
    base::Base,
    error::KnowledgeError,
    extract::{self, MAX_FILE_BYTES, one_line},
    passages::{Passage, PassageSize},
    reader::{self, ReadDocument},
    report::{AddOptions, AddProgress, AddReport, FileFailure, FileOutcome, RemoveReport},
    scan::{self, Candidate, document_id},
    store::{DocumentRecord, RESERVED, Snapshot, Writer},
    vectors::normalized,
};

/// Reading one file takes so long at most.
const READ_LIMIT: Duration = Duration::from_secs(60);
/// A commit costs some ten milliseconds and a small segment; what is lost by a crash is done again.
const COMMIT_DOCUMENTS: u64 = 100;
const COMMIT_BYTES: usize = 16 * 1024 * 1024;
/// Embeddings cost time or money: they are made safe more often.
const COMMIT_AFTER: Duration = Duration::from_secs(10);
/// Passages in one request to an embedding model.
const EMBED_BATCH: usize = 64;
/// Time limit of one embedding request.
const EMBED_LIMIT: Duration = Duration::from_secs(120);
/// Files that are read at once. Each may have its whole size in memory some times over.
const READERS: usize = 4;
/// Changes when the same file would give other passages.
const EXTRACTION: &str = "1";
/// Metadata is stored with each document and given with each passage.
const MAX_METADATA_BYTES: usize = 16 * 1024;

/// The result of reading a file.
enum PreparedFile {
    Unchanged,
    Ignored,
    Failed(String),
    Ready(Box<Document>),
}

struct Document {
    record: DocumentRecord,
    passages: Vec<Passage>,
    replaces: bool,
    vectors: Option<Vec<Option<Vec<f32>>>>,
}

impl Document {
    fn text_bytes(&self) -> usize {
        self.passages.iter().map(|passage| passage.text.len()).sum()
    }
}

/// The settings that, with the content of a file, determine its passages.
struct Settings {
    config: KnowledgeBaseConfig,
    metadata: Map<String, Value>,
    embedding: Option<String>,
    /// The program whose processes read documents of nested formats.
    reader: Option<PathBuf>,
}

impl Settings {
    fn fingerprint(&self, content: &[u8]) -> String {
        let metadata = Value::Object(self.metadata.clone()).to_string();
        let settings = format!(
            "{EXTRACTION}\0{}\0{}\0{}\0{metadata}",
            self.config.passage_chars,
            self.config.overlap_chars,
            self.embedding.as_deref().unwrap_or_default()
        );
        hex::encode(&Sha256::new().chain_update(settings.as_bytes()).chain_update([0]).chain_update(content).finalize())
    }
}

fn check(options: &AddOptions) -> Result<(), KnowledgeError> {
    for (key, value) in &options.metadata {
        if key.is_empty() || RESERVED.contains(&key.as_str()) {
            return Err(KnowledgeError::Options(format!(
                "metadata cannot have the key `{key}`: the host sets {} itself",
                RESERVED.join(", ")
            )));
        }
        let plain = |value: &Value| matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_));
        if !plain(value) && !value.as_array().is_some_and(|values| values.iter().all(plain)) {
            return Err(KnowledgeError::Options(format!(
                "the metadata `{key}` is {value}: it can be a string, a number, a boolean or a list of those"
            )));
        }
    }
    let size = Value::Object(options.metadata.clone()).to_string().len();
    if size > MAX_METADATA_BYTES {
        return Err(KnowledgeError::Options(extract::too_large("the metadata", size as u64, MAX_METADATA_BYTES as u64)));
    }
    Ok(())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KnowledgeError> + Send + 'static,
) -> Result<T, KnowledgeError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| KnowledgeError::Internal(error.to_string()))?
}

/// A prepared file with the vectors of its passages, where the knowledge base has an embedding model. An error is one of
/// the model; a file that the model refuses is a failed file.
async fn with_vectors(prepared: PreparedFile, embedder: Option<&dyn Embedder>) -> Result<PreparedFile, ApiError> {
    let (document, embedder) = match (prepared, embedder) {
        (PreparedFile::Ready(document), Some(embedder)) => (document, embedder),
        (prepared, _) => return Ok(prepared),
    };
    match embed(*document, embedder).await {
        Ok(document) => Ok(PreparedFile::Ready(Box::new(document))),
        Err(error) if matches!(error.code, ErrorCode::InvalidArgument | ErrorCode::PayloadTooLarge) => {
            Ok(PreparedFile::Failed(format!("the embedding model refuses it: {error}")))
        }
        Err(error) => Err(error),
    }
}

/// Takes files in; see [`super::Knowledge::add`].
pub(crate) async fn add(
    base: Arc<Base>,
    paths: &[PathBuf],
    options: AddOptions,
    reader: Option<PathBuf>,
    progress: &mut (dyn FnMut(AddProgress) + Send),
) -> Result<AddReport, KnowledgeError> {
    check(&options)?;
    let embedder = base.services.embedder.clone();
    let prune = options.prune;
    let settings = Arc::new(Settings {
        config: base.config.clone(),
        metadata: options.metadata,
        embedding: embedder.as_ref().map(|embedder| embedder.name()),
        reader,
    });
    let (paths_given, of) = (paths.to_vec(), base.clone());
    let (writer, snapshot, scan) = blocking(move || {
        let store = of.store()?;
        let writer = store.clone().writer()?;
        // After the lock: nobody changes it any more.
        let snapshot = store.snapshot()?;
        Ok((writer, snapshot, scan::scan(&paths_given)?))
    })
    .await?;
    let files = scan.files.len() as u64;
    progress(AddProgress::Found { files });
    let mut adding = PendingAddition { writer: Some(writer), waiting: 0, waiting_bytes: 0, committed_at: Instant::now() };
    let mut report = AddReport { failed: scan.failed.clone(), ..AddReport::default() };
    let candidates: Vec<Candidate> = scan.files.values().cloned().collect();
    let kb_id = base.config.id.clone();
    let mut prepared = stream::iter(candidates)
        .map(|candidate| {
            let (settings, kb_id, snapshot) = (settings.clone(), kb_id.clone(), snapshot.clone());
            async move {
                let path = candidate.source.clone();
                let done = tokio::task::spawn_blocking(move || prepare(&kb_id, &candidate, &settings, &snapshot)).await;
                (path, done.unwrap_or_else(|error| PreparedFile::Failed(error.to_string())))
            }
        })
        .buffered(READERS);
    let mut done = 0;
    while let Some((path, prepared)) = prepared.next().await {
        let prepared = match with_vectors(prepared, embedder.as_deref()).await {
            Ok(prepared) => prepared,
            Err(source) => {
                adding.commit().await?;
                adding.finish().await?;
                return Err(KnowledgeError::Embedding { source, done, files });
            }
        };
        let outcome = adding.store(prepared).await?;
        report.count(&path, &outcome);
        done += 1;
        progress(AddProgress::File { done, files, path, outcome });
        if adding.is_due(embedder.is_some()) {
            adding.commit().await?;
            progress(AddProgress::Committed { done });
        }
    }
    drop(prepared);
    let missing: Vec<_> = snapshot.documents().filter(|document| scan.misses(&document.source)).cloned().collect();
    report.missing = missing.iter().map(|document| document.path.clone()).collect();
    report.missing.sort();
    if prune && !missing.is_empty() {
        report.pruned = missing.len() as u64;
        adding.delete(missing.iter().map(|document| document.id.clone()).collect()).await?;
    }
    adding.commit().await?;
    adding.finish().await?;
    progress(AddProgress::Committed { done });
    Ok(report)
}

impl AddReport {
    fn count(&mut self, path: &Path, outcome: &FileOutcome) {
        match outcome {
            FileOutcome::Added { passages } => {
                self.added += 1;
                self.passages += passages;
            }
            FileOutcome::Updated { passages } => {
                self.updated += 1;
                self.passages += passages;
            }
            FileOutcome::Unchanged => self.unchanged += 1,
            FileOutcome::Ignored => self.ignored += 1,
            FileOutcome::Failed { reason } => {
                self.failed.push(FileFailure { path: path.to_owned(), reason: reason.clone() });
            }
        }
    }
}

/// The writer and its uncommitted documents. The value moves into blocking tasks and back.
struct PendingAddition {
    writer: Option<Writer>,
    waiting: u64,
    waiting_bytes: usize,
    committed_at: Instant,
}

impl PendingAddition {
    /// Stores a prepared file.
    async fn store(&mut self, prepared: PreparedFile) -> Result<FileOutcome, KnowledgeError> {
        Ok(match prepared {
            PreparedFile::Unchanged => FileOutcome::Unchanged,
            PreparedFile::Ignored => FileOutcome::Ignored,
            PreparedFile::Failed(reason) => FileOutcome::Failed { reason },
            PreparedFile::Ready(document) => {
                let (passages, replaces) = (document.record.passages, document.replaces);
                self.put(*document).await?;
                if replaces { FileOutcome::Updated { passages } } else { FileOutcome::Added { passages } }
            }
        })
    }

    async fn with(
        &mut self,
        work: impl FnOnce(&mut Writer) -> Result<(), KnowledgeError> + Send + 'static,
    ) -> Result<(), KnowledgeError> {
        let mut writer = self.writer.take().ok_or_else(|| KnowledgeError::Internal("the writer has failed before".into()))?;
        let writer = blocking(move || {
            work(&mut writer)?;
            Ok(writer)
        })
        .await?;
        self.writer = Some(writer);
        Ok(())
    }

    async fn put(&mut self, document: Document) -> Result<(), KnowledgeError> {
        self.waiting += 1;
        self.waiting_bytes += document.text_bytes();
        self.with(move |writer| writer.put(&document.record, &document.passages, document.vectors.as_deref())).await
    }

    async fn delete(&mut self, ids: Vec<String>) -> Result<(), KnowledgeError> {
        self.waiting += 1;
        self.with(move |writer| {
            ids.iter().for_each(|id| writer.delete(id));
            Ok(())
        })
        .await
    }

    fn is_due(&self, embeds: bool) -> bool {
        self.waiting >= COMMIT_DOCUMENTS
            || self.waiting_bytes >= COMMIT_BYTES
            || (embeds && self.waiting > 0 && self.committed_at.elapsed() >= COMMIT_AFTER)
    }

    async fn commit(&mut self) -> Result<(), KnowledgeError> {
        if self.waiting > 0 {
            self.with(Writer::commit).await?;
        }
        (self.waiting, self.waiting_bytes, self.committed_at) = (0, 0, Instant::now());
        Ok(())
    }

    async fn finish(mut self) -> Result<(), KnowledgeError> {
        match self.writer.take() {
            Some(writer) => blocking(move || writer.finish()).await,
            None => Ok(()),
        }
    }
}

/// Looks at a file, and cuts it into passages if it is new.
fn prepare(kb_id: &str, candidate: &Candidate, settings: &Arc<Settings>, snapshot: &Snapshot) -> PreparedFile {
    if candidate.kind.is_none() && !candidate.named {
        return PreparedFile::Ignored;
    }
    let (bytes, modified_at) = match read(&candidate.source) {
        Ok(read) => read,
        Err(reason) => return PreparedFile::Failed(reason),
    };
    let id = document_id(kb_id, &candidate.source);
    let fingerprint = settings.fingerprint(&bytes);
    let known = snapshot.document(&id);
    if known.is_some_and(|known| known.fingerprint == fingerprint) {
        return PreparedFile::Unchanged;
    }
    let size = bytes.len() as u64;
    let passage_size = PassageSize::from(&settings.config);
    let read = reader::read(settings.reader.as_deref(), bytes, candidate.kind, passage_size, READ_LIMIT);
    let ReadDocument { kind, title, passages } = match read {
        Ok(read) => read,
        Err(reason) => return PreparedFile::Failed(reason),
    };
    let name = candidate.source.file_name().unwrap_or_default().to_string_lossy();
    let record = DocumentRecord {
        id,
        path: candidate.path.clone(),
        source: candidate.source.clone(),
        title: title.or_else(|| one_line(&name)).unwrap_or_default(),
        media_type: kind.media_type().to_owned(),
        modified_at,
        added_at: millis(SystemTime::now()),
        bytes: size,
        passages: passages.len() as u64,
        embedding: settings.embedding.clone(),
        fingerprint,
        metadata: settings.metadata.clone(),
    };
    PreparedFile::Ready(Box::new(Document { record, passages, replaces: known.is_some(), vectors: None }))
}

/// The content of a file, and when it was changed.
fn read(path: &Path) -> Result<(Vec<u8>, u64), String> {
    let unreadable = |error: std::io::Error| format!("it cannot be read: {error}");
    let file = fs::File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err("it is no longer a file".into());
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(extract::too_large("it", metadata.len(), MAX_FILE_BYTES));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default());
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(extract::too_large("it", bytes.len() as u64, MAX_FILE_BYTES));
    }
    Ok((bytes, metadata.modified().map(millis).unwrap_or_default()))
}

fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Adds the vectors of all passages.
async fn embed(mut document: Document, embedder: &dyn Embedder) -> Result<Document, ApiError> {
    let texts: Vec<String> = document
        .passages
        .iter()
        .map(|passage| match passage.heading.as_str() {
            "" => passage.text.clone(),
            heading => format!("{heading}\n{}", passage.text),
        })
        .collect();
    let mut vectors = Vec::with_capacity(texts.len());
    for batch in texts.chunks(EMBED_BATCH) {
        let deadline = Instant::now() + EMBED_LIMIT;
        let answer = tokio::time::timeout_at(deadline.into(), embedder.embed(batch, deadline)).await.map_err(|_| {
            ApiError::retryable(ErrorCode::DeadlineExceeded, format!("no answer in {} s", EMBED_LIMIT.as_secs()))
        })??;
        if answer.len() != batch.len() {
            return Err(ApiError::new(
                ErrorCode::RuntimeError,
                format!("it gave {} vectors for {} texts", answer.len(), batch.len()),
            ));
        }
        vectors.extend(answer.into_iter().map(normalized));
    }
    if !vectors.is_empty() && vectors.iter().all(Option::is_none) {
        return Err(ApiError::new(ErrorCode::RuntimeError, "its vectors are empty, or no numbers"));
    }
    document.vectors = Some(vectors);
    Ok(document)
}

/// Removes documents; see [`super::Knowledge::remove`].
pub(crate) fn remove(base: &Base, names: &[String]) -> Result<RemoveReport, KnowledgeError> {
    let store = base.store()?;
    let mut writer = store.clone().writer()?;
    let snapshot = store.snapshot()?;
    let mut report = RemoveReport::default();
    for name in names {
        let canonical = fs::canonicalize(name).unwrap_or_else(|_| PathBuf::from(name));
        let folder = format!("{}/", name.trim_end_matches('/'));
        let before = report.removed.len();
        let mut known = false;
        for document in snapshot.documents() {
            let fits = document.id == *name
                || document.path == *name
                || document.path.starts_with(&folder)
                || document.source.starts_with(&canonical);
            if fits && report.removed.iter().any(|removed| removed.id == document.id) {
                known = true;
            } else if fits {
                writer.delete(&document.id);
                report.removed.push(document.info());
            }
        }
        if report.removed.len() == before && !known {
            report.not_found.push(name.clone());
        }
    }
    if !report.removed.is_empty() {
        writer.commit()?;
        writer.finish()?;
    }
    report.removed.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(report)
}
