//! The contract, generated from `wit/`. The module contains no hand-written code.

#![allow(unsafe_code, reason = "generated: typed handles to exports whose types were checked when the component was linked")]
#![allow(missing_docs, unreachable_pub, reason = "generated from wit/, which is where the documentation stands")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "agent-runner",
    imports: { default: async | trappable },
    exports: { default: async },
    // Requests are hashed and shown in the journal of a run.
    additional_derives: [serde::Serialize],
    with: {
        "agent-host:runner/models.response-stream": crate::handles::Responses,
        "agent-host:runner/artifacts.reader": crate::handles::Reader,
        "agent-host:runner/artifacts.writer": crate::handles::Writer,
        "agent-host:runner/http.response": crate::handles::Response,
    },
});

pub use agent_host::runner::{
    artifacts, context, events, history, http, interactions, knowledge, log, manifest, models, platform, results, runs, state,
    steering, storage, timers, tools, types,
};
pub use exports::agent_host::runner::runner;
