//! An entry point for fuzzing (`tests/fuzz`): one execution of any component, without its admission.

use std::sync::Arc;

use agent_host_protocol::{Interface, InterfaceSet, Limits, context::RunContext};

use crate::{
    calls::NoRun,
    component::link,
    engine::GuestEngine,
    guest::{Guest, PollWait},
    run::{self, Outcome},
    sandbox::SandboxError,
    world::{GuestClock, World},
};

/// An engine for components that nobody has admitted. Their host calls are lifted, and then refused.
pub struct AbiHarness {
    engine: Arc<GuestEngine>,
    limits: Limits,
}

impl AbiHarness {
    /// An engine with these limits.
    ///
    /// # Errors
    /// Fails if the engine cannot be set up.
    pub fn new(limits: Limits) -> Result<Self, SandboxError> {
        Ok(Self { engine: GuestEngine::new(&limits)?, limits })
    }

    /// Compiles a component in this process, grants it all interfaces, and runs it once with this context.
    ///
    /// # Errors
    /// Fails if the component is not valid or does not fit the contract, with the reason.
    pub async fn run(&self, component: &[u8], context: Box<RunContext>) -> Result<Outcome, String> {
        let code = wasmtime::component::Component::from_binary(&self.engine.wasmtime, component);
        let code = code.map_err(|error| format!("{error:#}"))?;
        let granted = Interface::ALL.iter().fold(InterfaceSet::default(), |set, interface| set.with(*interface));
        let pre = link(&self.engine, &code, granted).map_err(|error| format!("{error:#}"))?;
        let world = World::new(&self.limits, GuestClock::new(0), [0; 32]);
        let guest = Guest::new(&self.limits, PollWait::ForTimers, world, Box::new(NoRun), Arc::new(NoRun));
        Ok(run::run(&pre, &self.limits, "fuzz", context, guest).await)
    }
}
