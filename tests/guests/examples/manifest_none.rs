//! A component that is a plugin by its exports and holds no runner.

#![allow(unsafe_code, reason = "exports of a component, made without the macro of the SDK")]

use agent_host_sdk::contract::{Guest, RunCompletion, RunContext, RunFailure, RunnerManifest};

#[allow(dead_code, reason = "nothing calls the exports where this is not built for wasm")]
struct Empty;

impl Guest for Empty {
    fn list_runners() -> Vec<RunnerManifest> {
        Vec::new()
    }

    fn run(_: String, _: RunContext) -> Result<RunCompletion, RunFailure> {
        Err(RunFailure {
            code: "runner.not_found".to_owned(),
            message: "there is none".to_owned(),
            retryable: false,
            details: None,
        })
    }
}

#[cfg(target_family = "wasm")]
agent_host_sdk::contract::export_component!(Empty with_types_in agent_host_sdk::contract);
