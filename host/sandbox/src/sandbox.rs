//! The running sandbox.

use std::{collections::HashSet, io, path::PathBuf, sync::Arc, time::Duration};

use agent_host_protocol::{FailureCode, InterfaceSet, Limits, PluginReport, RunnerManifest, context::RunContext};
use tokio::{runtime::Handle, sync::Semaphore};

use crate::{
    admission::{self, Admissions},
    cache::CodeCache,
    calls::{HostCalls, SharedLog},
    component::Component,
    components::Components,
    cpu::CpuBudget,
    engine::{EngineError, GuestEngine},
    guest::Guest,
    run::{self, Outcome},
    slots::ComputeShare,
    threads::{GuestThreads, PacedGuest},
    world::World,
};

/// The options of a sandbox.
#[derive(Debug, Clone)]
pub struct Options {
    /// Limits of guests and of admission.
    pub limits: Limits,
    /// Directory for compiled code; without it, no compiled code is stored.
    pub code_cache: Option<PathBuf>,
    /// The program whose processes compile (`COMPILER`), in a cache of code; without it, components are compiled in this process.
    pub compiler: Option<PathBuf>,
    /// Directory for admitted components by digest, for runs that outlive the file; without it, no component is stored.
    pub components: Option<PathBuf>,
}

/// The reason why a sandbox could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The threads of guests.
    #[error("the threads of guests could not be started: {0}. Raise the limit of threads of the host")]
    Threads(io::Error),
    /// A directory of the sandbox.
    #[error("{path}, where the host keeps components, cannot be used: {source}", path = path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// An engine, its cache, and the places for guests. Cheap to clone.
#[derive(Clone)]
pub struct Sandbox {
    pub(crate) admissions: Arc<Admissions>,
    /// One permit for each guest in memory, so that the demand never exceeds the pool.
    places: Arc<Semaphore>,
    threads: Arc<GuestThreads>,
}

impl Options {
    /// Starts the sandbox.
    ///
    /// # Errors
    /// Fails if the engine or the cache cannot be set up.
    pub fn build(self) -> Result<Sandbox, SandboxError> {
        let engine = GuestEngine::new(&self.limits)?;
        let cache = match self.code_cache {
            Some(path) => {
                Some(CodeCache::open(&path, engine.code_version()).map_err(|source| SandboxError::Directory { path, source })?)
            }
            None => None,
        };
        let components = Components::open(self.components.clone())
            .map_err(|source| SandboxError::Directory { path: self.components.unwrap_or_default(), source })?;
        let places = Arc::new(Semaphore::new(self.limits.max_live_runs as usize));
        let threads = GuestThreads::start().map_err(SandboxError::Threads)?;
        let admissions = Admissions::new(engine, (cache, self.compiler), components, Arc::clone(&threads), self.limits);
        Ok(Sandbox { admissions: Arc::new(admissions), places, threads })
    }
}

impl Sandbox {
    /// Waits for a place for one guest. A host that is full delays runs and refuses none, and what a run waits
    /// here is not counted against its deadline.
    pub async fn place(&self) -> Place {
        Place { _permit: Arc::clone(&self.places).acquire_owned().await.ok() }
    }

    /// The threads on which runs are executed, apart from those that serve clients.
    #[must_use]
    pub fn threads_of_runs(&self) -> Handle {
        self.threads.runs()
    }

    /// A guest that runs a runner of `component` once, linked to what is `granted`; everything else can only refuse.
    ///
    /// Dropping the future ends the guest wherever it is.
    #[allow(clippy::too_many_arguments, reason = "each is one thing that a run is made of, and none has a default")]
    pub fn guest(
        &self,
        place: Place,
        component: &Component,
        granted: InterfaceSet,
        runner: Arc<RunnerManifest>,
        context: Box<RunContext>,
        world: World,
        calls: Box<dyn HostCalls>,
        log: SharedLog,
    ) -> impl Future<Output = Outcome> + Send + use<> {
        let (linked, waiting) = (component.linked(granted), component.waiting());
        let admissions = Arc::clone(&self.admissions);
        async move {
            let outcome = match linked {
                Ok(pre) => {
                    let guest = Guest::new(&admissions.limits, waiting, world, calls, log);
                    run::run(&pre, &admissions.limits, runner.name.as_str(), context, guest).await
                }
                Err(error) => Outcome::Broken {
                    code: FailureCode::RunnerStart,
                    message: format!("the runner could not be linked: {error:#}"),
                },
            };
            drop(place);
            outcome
        }
    }

    /// Executes a guest where this future is polled, and in slots on threads of low priority once it computes. The slots are
    /// shared fairly. What the guest computes is taken from `cpu`; who polls ends it when that is used up. A guest whose run ends is
    /// ended with [`PacedGuest::end`]: dropped, it may go on for a moment.
    pub fn pace<T: Send + 'static, S: Fn() -> ComputeShare + Unpin>(
        &self,
        share: S,
        cpu: Arc<CpuBudget>,
        guest: impl Future<Output = T> + Send + 'static,
    ) -> PacedGuest<T, S> {
        self.threads.pace(share, cpu, guest)
    }

    /// The number of guests in memory.
    #[must_use]
    pub fn live(&self) -> usize {
        (self.admissions.limits.max_live_runs as usize).saturating_sub(self.places.available_permits())
    }

    /// Looks at a file as admission does, and gives the report; nothing is kept or served.
    pub async fn inspect(&self, path: &std::path::Path) -> PluginReport {
        admission::admit(&self.admissions, path).await.report
    }

    /// A component that was admitted once, by its digest: from memory, or from what is kept on disk.
    ///
    /// # Errors
    /// Fails if the component is no longer stored, or this host no longer accepts it; the text says which.
    pub async fn component(&self, digest: &str) -> Result<Arc<Component>, String> {
        let components = &self.admissions.components;
        if let Some(component) = components.loaded(digest) {
            return Ok(component);
        }
        let _loading = components.loading.lock().await;
        if let Some(component) = components.loaded(digest) {
            return Ok(component);
        }
        let path = self.kept_file(digest).ok_or_else(|| format!("component {digest} is no longer kept on this host"))?;
        self.load(&path, Some(digest)).await
    }

    /// True if the component with this digest is in memory or kept on disk.
    #[must_use]
    pub fn keeps(&self, digest: &str) -> bool {
        self.admissions.components.is_kept(digest)
    }

    /// The file in which a component is kept on disk.
    #[must_use]
    pub fn kept_file(&self, digest: &str) -> Option<PathBuf> {
        self.admissions.components.path(digest).filter(|path| path.exists())
    }

    /// Keeps the bytes of a component that was admitted elsewhere, in place of the file that is there. [`Self::component`] judges it.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub async fn restore_component(&self, digest: &str, bytes: Vec<u8>) -> io::Result<()> {
        let (this, digest) = (Arc::clone(&self.admissions), digest.to_owned());
        tokio::task::spawn_blocking(move || this.components.restore(&digest, &bytes)).await.map_err(io::Error::other)?
    }

    /// The kept components that were not needed for so long, by digest. These are `needed` now.
    ///
    /// # Errors
    /// Fails if the files cannot be looked at.
    pub async fn unused_components(&self, needed: HashSet<String>, unused_for: Duration) -> io::Result<Vec<String>> {
        let this = Arc::clone(&self.admissions);
        tokio::task::spawn_blocking(move || this.components.unused(&needed, unused_for)).await.map_err(io::Error::other)?
    }

    /// A component from any file, judged as one of the plugins directory is.
    ///
    /// # Errors
    /// Fails if the component is not admitted; the text has the reason.
    pub async fn load(&self, path: &std::path::Path, digest: Option<&str>) -> Result<Arc<Component>, String> {
        let admission = admission::admit(&self.admissions, path).await;
        let refusal = admission.report.refusal.map(|refusal| refusal.message).unwrap_or_default();
        let component = admission.component.ok_or_else(|| format!("{} is not admitted: {refusal}", path.display()))?;
        if digest.is_some_and(|digest| digest != component.digest()) {
            return Err(format!("{} has changed: its digest is {}", path.display(), component.digest()));
        }
        Ok(component)
    }

    /// Removes kept components that are `unused` ([`Self::unused_components`]) and not `needed` after all, and the code of components that are not
    /// kept and were not for so long.
    pub async fn forget_components(&self, unused: Vec<String>, needed: HashSet<String>, unused_for: Duration) {
        let this = Arc::clone(&self.admissions);
        let forgotten = tokio::task::spawn_blocking(move || {
            let mut removed = this.components.forget(&unused, &needed)?;
            if let Some(cache) = &this.cache {
                let is_kept = |digest: &str| this.components.is_kept(digest);
                removed += cache.forget(is_kept, unused_for)?;
            }
            Ok::<_, std::io::Error>(removed)
        });
        let forgotten = forgotten.await;
        match forgotten {
            Ok(Ok(removed)) => tracing::debug!(removed, "components that no run needs were removed"),
            Ok(Err(error)) => tracing::warn!(%error, "components that no run needs could not be removed"),
            Err(error) => tracing::warn!(%error, "components that no run needs could not be removed"),
        }
    }
}

/// A place for one guest, free again when dropped.
#[derive(Debug)]
pub struct Place {
    _permit: Option<tokio::sync::OwnedSemaphorePermit>,
}
