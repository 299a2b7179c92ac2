//! An admitted component.

use std::sync::Arc;

use agent_host_protocol::{InterfaceSet, RunnerManifest};
use parking_lot::Mutex;

use crate::{
    bindings::AgentRunnerPre,
    engine::GuestEngine,
    guest::{Guest, PollWait},
};

/// A component that was admitted: compiled, asked for its manifests, and ready to run.
///
/// The value keeps its code alive, so a run ends on the component that it began with, even if the file changes or goes.
pub struct Component {
    engine: Arc<GuestEngine>,
    component: wasmtime::component::Component,
    digest: String,
    runners: Vec<RunnerManifest>,
    uses_wasi_http: bool,
    /// Ready to instantiate, by what is granted. Linking costs some 100 µs and depends on nothing else.
    linked: Mutex<Vec<(InterfaceSet, Arc<AgentRunnerPre<Guest>>)>>,
}

impl Component {
    pub(crate) fn new(
        engine: Arc<GuestEngine>,
        component: wasmtime::component::Component,
        digest: String,
        runners: Vec<RunnerManifest>,
        uses_wasi_http: bool,
    ) -> Self {
        Self { engine, component, digest, runners, uses_wasi_http, linked: Mutex::new(Vec::new()) }
    }

    /// `sha256:HEX` of its bytes.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The runners that it holds.
    #[must_use]
    pub fn runners(&self) -> &[RunnerManifest] {
        &self.runners
    }

    /// True if the component imports `wasi:http`. The order in which requests complete is not journaled, so its runs cannot
    /// be resumed.
    #[must_use]
    pub fn uses_wasi_http(&self) -> bool {
        self.uses_wasi_http
    }

    pub(crate) fn waiting(&self) -> PollWait {
        if self.uses_wasi_http { PollWait::ForReadiness } else { PollWait::ForTimers }
    }

    pub(crate) fn linked(&self, granted: InterfaceSet) -> wasmtime::Result<Arc<AgentRunnerPre<Guest>>> {
        if let Some((_, pre)) = self.linked.lock().iter().find(|(set, _)| *set == granted) {
            return Ok(Arc::clone(pre));
        }
        let pre = Arc::new(link(&self.engine, &self.component, granted)?);
        self.linked.lock().push((granted, Arc::clone(&pre)));
        Ok(pre)
    }
}

impl std::fmt::Debug for Component {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Component").field("digest", &self.digest).finish_non_exhaustive()
    }
}

/// Links a component for a grant. Fails if the component imports a function that the host does not have or has with another
/// type.
pub(crate) fn link(
    engine: &GuestEngine,
    component: &wasmtime::component::Component,
    granted: InterfaceSet,
) -> wasmtime::Result<AgentRunnerPre<Guest>> {
    AgentRunnerPre::new(engine.linker(granted)?.instantiate_pre(component)?)
}
