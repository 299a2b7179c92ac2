//! Knowledge bases: retrieval of passages for a query.
//!
//! ```
//! use agent_host_sdk::{Completion, Context, Failure, serde_json::json};
//!
//! fn run(ctx: Context) -> Result<Completion, Failure> {
//!     let everywhere = ctx.knowledge().retrieve_all(ctx.text(), 5)?;
//!     let manuals = ctx.knowledge().retrieve_where("handbook", ctx.text(), 3, json!({"kind": "manual"}))?;
//!     ctx.reply(&format!("{} passages, {} of manuals", everywhere.len(), manuals.len()))?;
//!     Ok(Completion::stop())
//! }
//! ```

use serde::de::DeserializeOwned;

use crate::contract::{Hit, KnowledgeBaseResource, KnowledgeOperation};
use crate::error::ApiError;
use crate::host::knowledge as host;
use crate::json::IntoJson;
use crate::{log, state};

/// Knowledge bases of this run, from [`Context::knowledge`](crate::Context::knowledge). The manifest must declare
/// [`KnowledgeOperation::Retrieve`](crate::KnowledgeOperation).
#[derive(Clone, Copy, Debug)]
pub struct Knowledge<'a> {
    granted: &'a [KnowledgeBaseResource],
}

/// A passage and its knowledge base.
#[derive(Clone, Debug, PartialEq)]
pub struct Passage {
    /// Id of the knowledge base.
    pub kb_id: String,
    /// The passage, with its document and score.
    pub hit: Hit,
}

impl<'a> Knowledge<'a> {
    pub(crate) fn new(granted: &'a [KnowledgeBaseResource]) -> Self {
        Self { granted }
    }

    /// Returns the granted knowledge bases, without a host call.
    #[must_use]
    pub fn granted(&self) -> &'a [KnowledgeBaseResource] {
        self.granted
    }

    /// Returns the knowledge bases that are available now. Needs [`KnowledgeOperation::List`](crate::KnowledgeOperation).
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn list(&self) -> Result<Vec<KnowledgeBaseResource>, ApiError> {
        Ok(host::list()?)
    }

    /// Returns the best `top_k` passages (1 to 50) of one knowledge base, best first.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn retrieve(&self, kb_id: &str, query: &str, top_k: u32) -> Result<Vec<Hit>, ApiError> {
        Ok(host::retrieve(kb_id, query, top_k, None)?)
    }

    /// Like [`Knowledge::retrieve`], only from documents whose metadata match the filters, a JSON object.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn retrieve_where(&self, kb_id: &str, query: &str, top_k: u32, filters: impl IntoJson) -> Result<Vec<Hit>, ApiError> {
        Ok(host::retrieve(kb_id, query, top_k, Some(&filters.into_json()))?)
    }

    /// Returns the best `top_k` passages of all granted knowledge bases. Scores of different knowledge bases are not
    /// comparable, so the result has the best passage of each base first, then the second of each, and so on.
    ///
    /// A base that cannot be searched is left out and logged.
    ///
    /// # Errors
    /// Fails with the error of the host if no base could be searched, or if the run was cancelled.
    pub fn retrieve_all(&self, query: &str, top_k: u32) -> Result<Vec<Passage>, ApiError> {
        let mut ranked = Vec::new();
        let mut refused = None;
        let mut searched = false;
        for base in self.granted.iter().filter(|base| base.operations.contains(&KnowledgeOperation::Retrieve)) {
            match self.retrieve(&base.kb_id, query, top_k) {
                Ok(hits) => {
                    searched = true;
                    let passages = hits.into_iter().map(|hit| Passage { kb_id: base.kb_id.clone(), hit });
                    ranked.extend(passages.enumerate());
                }
                Err(error) if error.is_cancelled() => return Err(error),
                Err(error) => {
                    log::warn!("the knowledge base `{}` is left out: {error}", base.kb_id);
                    refused = Some(error);
                }
            }
        }
        if let (false, Some(error)) = (searched, refused) {
            return Err(error);
        }
        // The sort is stable: bases keep their order within a rank.
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.truncate(usize::try_from(top_k).unwrap_or(usize::MAX));
        Ok(ranked.into_iter().map(|(_, passage)| passage).collect())
    }
}

impl Hit {
    /// Returns a member of the metadata; `None` if the member is missing or has another shape.
    ///
    /// ```
    /// # use agent_host_sdk::contract::Hit;
    /// fn title(hit: &Hit) -> Option<String> {
    ///     hit.meta("title")
    /// }
    /// ```
    #[must_use]
    pub fn meta<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        state::member(&self.metadata, key).ok().flatten()
    }

    /// Returns the name of the document for a citation: its `title`, or else `path`, `source`, file name or id.
    #[must_use]
    pub fn source_name(&self) -> String {
        ["title", "path", "source"]
            .iter()
            .find_map(|key| self.meta::<String>(key).filter(|name| !name.trim().is_empty()))
            .or_else(|| self.source.as_ref()?.name.clone())
            .unwrap_or_else(|| self.document_id.clone())
    }
}
