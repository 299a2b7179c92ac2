//! One knowledge base: its configuration, its models and its index.

use agent_host_config::KnowledgeBaseConfig;
use std::{path::PathBuf, sync::Arc};

use parking_lot::Mutex;

use super::{Services, error::KnowledgeError, report::KnowledgeBaseInfo, store::Store};

/// A knowledge base.
pub(crate) struct Base {
    pub(crate) config: KnowledgeBaseConfig,
    pub(crate) services: Services,
    dir: PathBuf,
    /// Opened at the first use, and again after a failure, so that a repaired folder needs no restart.
    store: Mutex<Option<Arc<Store>>>,
}

impl Base {
    pub(crate) fn new(config: KnowledgeBaseConfig, services: Services, dir: PathBuf) -> Self {
        Self { config, services, dir, store: Mutex::new(None) }
    }

    pub(crate) fn store(&self) -> Result<Arc<Store>, KnowledgeError> {
        let mut store = self.store.lock();
        match &*store {
            // Removed under a running host: begun anew.
            Some(opened) if self.dir.join("meta.json").exists() => Ok(opened.clone()),
            _ => {
                *store = None;
                Ok(store.insert(Arc::new(Store::open(&self.dir)?)).clone())
            }
        }
    }

    pub(crate) fn info(&self) -> KnowledgeBaseInfo {
        let (documents, passages, problem) = match self.store().and_then(|store| store.snapshot()) {
            Ok(snapshot) => (snapshot.document_count(), snapshot.passage_count(), None),
            Err(error) => (0, 0, Some(error.to_string())),
        };
        let name = self.config.name.clone().unwrap_or_else(|| self.config.id.clone());
        KnowledgeBaseInfo { id: self.config.id.clone(), name, documents, passages, problem }
    }
}
