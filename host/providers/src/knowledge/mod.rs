//! Knowledge bases: documents, cut into passages, found again.
//!
//! Reading of files, one index for each knowledge base, and retrieval by text, by meaning (with an embedding model), and
//! with reranking (with a rerank model). The caller decides who may read which knowledge base.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use agent_host_protocol::{ApiError, knowledge::KnowledgeHit, model::RerankHit};
use futures_util::future::BoxFuture;
use serde_json::Value;

mod add;
mod base;
mod error;
mod extract;
mod filter;
mod guard;
mod passages;
mod reader;
mod report;
mod retrieve;
mod scan;
mod store;
mod vectors;

pub use agent_host_config::KnowledgeBaseConfig;
use base::Base;
pub use error::KnowledgeError;
pub use reader::{DOCUMENT_READER, read_document};
pub use report::{AddOptions, AddProgress, AddReport, DocumentInfo, FileFailure, FileOutcome, KnowledgeBaseInfo, RemoveReport};

/// The text of a document, for [`crate::fuzz`].
pub(crate) fn document_text(bytes: &[u8], name: &str) -> Result<String, String> {
    extract::extract(bytes, extract::Kind::of_name(Path::new(name))).map(|extracted| extracted.text)
}

/// A model that turns texts into vectors.
pub trait Embedder: Send + Sync {
    /// Names the model: vectors of another name are never compared with its own.
    fn name(&self) -> String;

    /// One vector for each text, in order.
    fn embed<'a>(&'a self, texts: &'a [String], deadline: Instant) -> BoxFuture<'a, Result<Vec<Vec<f32>>, ApiError>>;
}

/// A model that says how well documents answer a query.
pub trait Reranker: Send + Sync {
    /// The documents by their index, best first.
    fn rerank<'a>(
        &'a self,
        query: &'a str,
        documents: &'a [String],
        top_k: Option<u32>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<RerankHit>, ApiError>>;
}

/// The models of a knowledge base.
#[derive(Clone, Default)]
pub struct Services {
    /// Finds passages by meaning.
    pub embedder: Option<Arc<dyn Embedder>>,
    /// Puts passages into their final order.
    pub reranker: Option<Arc<dyn Reranker>>,
}

/// All knowledge bases of a host. Cheap to clone.
///
/// Several processes may use the same folder: each finds what any of them has committed, and one at a time may write.
#[derive(Clone)]
pub struct Knowledge {
    bases: Arc<[Arc<Base>]>,
    reader: Option<PathBuf>,
}

impl Knowledge {
    /// The knowledge bases of a configuration, each in `dir/<id>/`, with the models that `services` gives.
    ///
    /// An unreadable index is no error here: [`Knowledge::list`] reports it as a `problem`, and the others work.
    ///
    /// # Errors
    /// Fails if a value of the configuration is invalid, or two entries have the same id.
    pub fn open(
        dir: &Path,
        configs: &[KnowledgeBaseConfig],
        services: impl Fn(&KnowledgeBaseConfig) -> Services,
    ) -> Result<Self, KnowledgeError> {
        let mut bases: Vec<Arc<Base>> = Vec::with_capacity(configs.len());
        for config in configs {
            config.check().map_err(KnowledgeError::Config)?;
            if bases.iter().any(|base| base.config.id == config.id) {
                return Err(KnowledgeError::Config(format!("two knowledge bases have the id `{}`: rename one", config.id)));
            }
            bases.push(Arc::new(Base::new(config.clone(), services(config), dir.join(&config.id))));
        }
        Ok(Self { bases: bases.into(), reader: None })
    }

    /// The same, with a program whose processes read PDF and HTML ([`DOCUMENT_READER`]): what a document asks of its parser is
    /// bounded then. Without one, threads of this process read them.
    #[must_use]
    pub fn with_reader(self, program: Option<PathBuf>) -> Self {
        Self { reader: program, ..self }
    }

    /// All, in the order of the configuration. Reads files where something has changed.
    #[must_use]
    pub fn list(&self) -> Vec<KnowledgeBaseInfo> {
        self.bases.iter().map(|base| base.info()).collect()
    }

    /// The passages that fit a query best, best first; `top_k` is 1 to 50.
    ///
    /// `query` is plain text in any language. `filters` is an object of metadata keys, each with a string, number or
    /// boolean, a list of those (any of them), or an object with `gte`, `gt`, `lte`, `lt` or `prefix`; all keys must fit, and
    /// only what fits is searched.
    ///
    /// The text search ranks by BM25. With an embedding model the nearest passages by meaning are fused with it
    /// (reciprocal ranks), with a rerank model the best 50 are put into its order. A model that fails is left out: the
    /// hits then have `"degraded": ["embedding"]` or `["rerank"]` in their metadata, and `"retrieval"` says how each was
    /// found: `text`, `vector` or `hybrid`. The metadata has further `path`, `title`, `media_type`, `modified_at`, `heading`,
    /// `passage` (from 1), `passages`, and what was given when the document was added.
    ///
    /// # Errors
    /// `not_found`, `invalid_argument` for `top_k` and filters, `deadline_exceeded`, and `runtime_error` where the index
    /// cannot be read.
    pub async fn retrieve(
        &self,
        kb_id: &str,
        query: &str,
        top_k: u32,
        filters: Option<&Value>,
        deadline: Instant,
    ) -> Result<Vec<KnowledgeHit>, ApiError> {
        retrieve::retrieve(self.base(kb_id)?, query, top_k, filters, deadline).await
    }

    /// Takes in files, and all files of folders that are text, Markdown, HTML or PDF. Hidden files and links do not count.
    ///
    /// Unchanged files are skipped; a changed file replaces its document. Unreadable files are reported and do not stop the
    /// rest. Documents are committed in batches, each document whole: after a crash, the same call adds the rest. A
    /// document is read again when the settings of the knowledge base, its embedding model or the metadata of this call
    /// have changed.
    ///
    /// # Errors
    /// [`SearchError::Busy`](crate::search::SearchError::Busy) while anyone else writes to this knowledge base;
    /// [`KnowledgeError::Embedding`] where the embedding model does not answer, with what is done kept.
    pub async fn add(
        &self,
        kb_id: &str,
        paths: &[PathBuf],
        options: AddOptions,
        progress: &mut (dyn FnMut(AddProgress) + Send),
    ) -> Result<AddReport, KnowledgeError> {
        add::add(self.base(kb_id)?, paths, options, self.reader.clone(), progress).await
    }

    /// All documents, by path. Reads files where something has changed.
    ///
    /// # Errors
    /// Fails if the knowledge base does not exist or cannot be read.
    pub fn documents(&self, kb_id: &str) -> Result<Vec<DocumentInfo>, KnowledgeError> {
        let snapshot = self.base(kb_id)?.store()?.snapshot()?;
        let mut documents: Vec<_> = snapshot.documents().map(|record| record.info()).collect();
        documents.sort_by(|a, b| a.path.cmp(&b.path).then_with(|| a.id.cmp(&b.id)));
        Ok(documents)
    }

    /// Removes documents by id, by path, by where their file is or was, or all below a folder. Reads and writes files.
    ///
    /// # Errors
    /// As [`Knowledge::add`].
    pub fn remove(&self, kb_id: &str, document_ids_or_paths: &[String]) -> Result<RemoveReport, KnowledgeError> {
        add::remove(self.base(kb_id)?.as_ref(), document_ids_or_paths)
    }

    fn base(&self, id: &str) -> Result<Arc<Base>, KnowledgeError> {
        self.bases.iter().find(|base| base.config.id == id).cloned().ok_or_else(|| KnowledgeError::UnknownBase {
            id: id.to_owned(),
            known: self.bases.iter().map(|base| base.config.id.clone()).collect(),
        })
    }
}
