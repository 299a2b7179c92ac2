//! Host interface of this SDK: on wasm the functions of the contract, elsewhere the scripted host of
//! [`testing`](crate::testing).
//!
//! Both have the same names and signatures. On wasm this module only re-exports names, so a component still imports
//! exactly the interfaces that its code calls.

#[cfg(target_family = "wasm")]
pub(crate) use crate::contract::agent_host::runner::{
    artifacts, events, history, http, interactions, knowledge, log, models, platform, results, runs, state, steering, storage,
    timers, tools,
};
#[cfg(not(target_family = "wasm"))]
pub(crate) use crate::testing::bindings::{
    artifacts, events, history, http, interactions, knowledge, log, models, platform, results, runs, state, steering, storage,
    timers, tools,
};
