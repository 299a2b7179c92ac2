//! One execution: a fresh instance in a store of its own, dropped afterwards.

use agent_host_protocol::{
    FailureCode, Limits,
    context::RunContext,
    run::{RunCompletion, RunFailure},
};
use wasmtime::{Engine, PoolConcurrencyLimitError, Store, Trap, component::ResourceTableError};

use crate::{
    bindings::AgentRunnerPre,
    convert,
    guest::Guest,
    limits::{ExceededLimit, HostMemory},
    threads,
};

/// The end of a guest.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The guest returned a completion.
    Completed(RunCompletion),
    /// The guest returned a failure.
    Failed(RunFailure),
    /// The guest trapped, or its return value breaks the contract.
    Broken {
        /// The failure code.
        code: FailureCode,
        /// Description, for a person.
        message: String,
    },
}

/// The reason why a guest trapped.
pub(crate) struct Breakage {
    pub(crate) code: FailureCode,
    pub(crate) message: String,
}

/// A store for one guest, with all its limits.
pub(crate) fn store(engine: &Engine, guest: Guest, limits: &Limits) -> Store<Guest> {
    let mut store = Store::new(engine, guest);
    store.limiter(|guest| &mut guest.limits);
    store.set_hostcall_fuel(limits.host_call_bytes);
    store.set_max_component_handles(limits.guest_handles);
    // A guest that computes gives way from time to time, so that others have their slot and its driver can drop it at its
    // deadline or after a cancellation. The callback touches no data of the guest.
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(|_| Ok(threads::on_look()));
    store
}

/// Runs `runner` once.
///
/// Executes a guest. Its inputs are `context`, and the world and the answers of `guest`: equal inputs give equal behaviour.
///
/// Dropping the future ends the guest wherever it is, in a host call or computing.
pub(crate) async fn run(
    pre: &AgentRunnerPre<Guest>,
    limits: &Limits,
    runner: &str,
    context: Box<RunContext>,
    guest: Guest,
) -> Outcome {
    let mut store = store(pre.engine(), guest, limits);
    let guest = match pre.instantiate_async(&mut store).await {
        Ok(guest) => guest,
        Err(error) => {
            let Breakage { code, message } = breakage(&error, store.data());
            let code = if code == FailureCode::HostError { FailureCode::RunnerStart } else { code };
            return Outcome::Broken { code, message: format!("the runner could not be started: {message}") };
        }
    };
    let context = convert::context_out(*context);
    let invalid =
        |error: agent_host_protocol::ApiError| Outcome::Broken { code: FailureCode::InvalidResult, message: error.message };
    match guest.agent_host_runner_runner().call_run(&mut store, runner, &context).await {
        Ok(Ok(completion)) => convert::completion(completion).map_or_else(invalid, Outcome::Completed),
        Ok(Err(failure)) => convert::failure(failure).map_or_else(invalid, Outcome::Failed),
        Err(error) => {
            let Breakage { code, message } = breakage(&error, store.data());
            Outcome::Broken { code, message }
        }
    }
}

/// Names what went wrong in a guest.
pub(crate) fn breakage(error: &wasmtime::Error, guest: &Guest) -> Breakage {
    let (code, message) = if let Some(host) = error.downcast_ref::<HostMemory>() {
        (FailureCode::HostError, host.to_string())
    } else if let Some(exhausted) = error.downcast_ref::<PoolConcurrencyLimitError>() {
        (FailureCode::HostError, format!("the host has no room for the guest now: {exhausted}"))
    } else if let Some(exit) = error.downcast_ref::<wasmtime_wasi::I32Exit>() {
        (FailureCode::GuestExited, format!("the runner called exit({}) instead of returning", exit.0))
    } else if let Some(trap) = error.downcast_ref::<Trap>() {
        match (trap, guest.limits.exceeded()) {
            (Trap::StackOverflow, _) => (FailureCode::GuestStack, "the runner recursed deeper than its stack".to_owned()),
            (_, Some(ExceededLimit::Memory)) => {
                (FailureCode::GuestMemory, format!("the runner needed more memory than a run may have ({trap})"))
            }
            (_, Some(ExceededLimit::Table)) => {
                (FailureCode::GuestMemory, format!("the runner needed larger tables than a run may have ({trap})"))
            }
            (trap, None) => (FailureCode::GuestTrapped, format!("the runner trapped: {trap}")),
        }
    } else {
        // The remaining errors are those of the ABI: a bad pointer, text that is not UTF-8, a forged handle.
        let message = root_cause(error);
        let code = if guest.limits.exceeded().is_some() {
            FailureCode::GuestMemory
        } else if is_limit(error, &message) {
            FailureCode::GuestAbuse
        } else {
            FailureCode::GuestTrapped
        };
        (code, format!("the runner broke the contract: {message}"))
    };
    Breakage { code, message }
}

/// True for a limit of the store that a guest has met: bytes of one call, and handles.
fn is_limit(error: &wasmtime::Error, message: &str) -> bool {
    // wasmtime has no types for its own two.
    const TEXTS: [&str; 2] = ["fuel allocated for hostcalls has been exhausted", "store handle limit exceeded"];
    matches!(error.downcast_ref(), Some(ResourceTableError::Full)) || TEXTS.iter().any(|text| message.contains(text))
}

fn root_cause(error: &wasmtime::Error) -> String {
    error.root_cause().to_string()
}
