//! The running sandbox.

use std::{io, path::PathBuf, sync::Arc};

use agent_host_protocol::{InterfaceSet, Limits, PluginReport, context::RunContext};
use tokio::sync::Semaphore;

use crate::{
    admission,
    cache::CodeCache,
    calls::{HostCalls, SharedLog},
    component::Component,
    engine::{EngineError, GuestEngine},
    run::{self, Outcome},
};

/// What a sandbox needs to know.
#[derive(Debug, Clone)]
pub struct Options {
    /// Limits of guests and of admission.
    pub limits: Limits,
    /// Where compiled code is kept; without it nothing is.
    pub code_cache: Option<PathBuf>,
}

/// Why a sandbox could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The directory of compiled code.
    #[error("the code cache {path} cannot be used: {source}", path = path.display())]
    Cache {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// An engine, its cache, and the places for guests. Cheap to clone.
#[derive(Clone)]
pub struct Sandbox(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) engine: Arc<GuestEngine>,
    pub(crate) cache: Option<CodeCache>,
    pub(crate) limits: Limits,
    /// One permit for each guest in memory, so that the pool is never asked for more than it has.
    places: Arc<Semaphore>,
    /// One permit for each component that is being admitted, compiler included.
    pub(crate) admissions: Arc<Semaphore>,
}

impl Options {
    /// Starts the sandbox.
    ///
    /// # Errors
    /// When the engine or the cache cannot be set up.
    pub fn build(self) -> Result<Sandbox, SandboxError> {
        let engine = GuestEngine::new(&self.limits)?;
        let cache = match self.code_cache {
            Some(path) => {
                Some(CodeCache::open(&path, engine.code_version()).map_err(|source| SandboxError::Cache { path, source })?)
            }
            None => None,
        };
        let places = Arc::new(Semaphore::new(self.limits.max_live_runs as usize));
        let admissions = Arc::new(Semaphore::new(admission::AT_ONCE));
        Ok(Sandbox(Arc::new(Inner { engine, cache, limits: self.limits, places, admissions })))
    }
}

impl Sandbox {
    /// Waits for a place for one guest. A host that is full delays runs and refuses none, and what a run waits
    /// here is not counted against its deadline.
    pub async fn place(&self) -> Place {
        Place { _permit: Arc::clone(&self.0.places).acquire_owned().await.ok() }
    }

    /// Runs a runner of `component` once, linked to what is `granted`; everything else can only refuse.
    ///
    /// Dropping the future ends the guest wherever it is.
    #[allow(clippy::too_many_arguments, reason = "each is one thing that a run is made of, and none has a default")]
    pub async fn run(
        &self,
        place: Place,
        component: &Component,
        granted: InterfaceSet,
        runner: &str,
        context: &RunContext,
        calls: Box<dyn HostCalls>,
        log: SharedLog,
    ) -> Outcome {
        let outcome = match component.linked(granted) {
            Ok(pre) => run::run(&pre, &self.0.limits, runner, context, calls, log).await,
            Err(error) => Outcome::Broken {
                code: agent_host_protocol::FailureCode::RunnerStart,
                message: format!("the runner could not be linked: {error:#}"),
            },
        };
        drop(place);
        outcome
    }

    /// How many guests are in memory.
    #[must_use]
    pub fn live(&self) -> usize {
        (self.0.limits.max_live_runs as usize).saturating_sub(self.0.places.available_permits())
    }

    /// Looks at a file as admission does, and gives the report; nothing is kept or served.
    pub async fn inspect(&self, path: &std::path::Path) -> PluginReport {
        admission::admit(&self.0, path).await.report
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

/// A place for one guest, free again when dropped.
#[derive(Debug)]
pub struct Place {
    _permit: Option<tokio::sync::OwnedSemaphorePermit>,
}
