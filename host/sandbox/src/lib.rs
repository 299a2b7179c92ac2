//! Guests: the engine, the admission and linking of components, the limits of a guest, and one execution.
//!
//! The crate contains all uses of `wasmtime`. The crate has no store, no server and no policy. [`HostCalls`] declares the host
//! calls of a guest; the kernel implements them.
//!
//! - [`Sandbox`] is the running thing: an engine and a cache of compiled code. Cheap to clone.
//! - [`Plugins`] is the plugins directory, scanned and watched: files become [`Component`]s or [`Refusal`](agent_host_protocol::Refusal)s.
//! - [`Sandbox::guest`] is one run: a fresh instance in a store of its own, thrown away afterwards. [`Sandbox::pace`] executes it,
//!   apart from what serves clients.

mod admission;
mod bindings;
mod cache;
mod calls;
mod compiler;
mod component;
mod components;
mod convert;
mod cpu;
mod engine;
#[doc(hidden)]
pub mod fuzz;
mod guest;
mod handles;
mod imports;
mod limits;
mod manifests;
mod plugins;
mod run;
mod sandbox;
mod slots;
mod structure;
mod threads;
mod toolchain;
mod wasi;
mod wasi_context;
mod wasi_http;
mod world;

pub use calls::{
    ActionRequest, ArtifactCalls, AskedQuestion, Batch, ChatMessages, ChatRequest, ChildCalls, EventCalls, HistoryCalls,
    HostCalls, HttpBody, HttpCalls, InteractionCalls, KnowledgeCalls, LogSource, ModelCalls, PageRequest, PlatformCalls,
    Refusals, ResultCalls, RunLog, SharedLog, StartInput, StartRequest, StateCalls, SteeringCalls, StorageCalls, TimeCalls,
    ToolCalls, ToolRequest,
};
pub use compiler::{COMPILER, compile};
pub use component::Component;
pub use convert::json as parse_json;
pub use cpu::CpuBudget;
pub use engine::EngineError;
pub use handles::{ArtifactReader, ArtifactWriter, HttpResponse, ResponseStream};
pub use plugins::{Plugins, PluginsError, Runner};
pub use run::Outcome;
pub use sandbox::{Options, Place, Sandbox, SandboxError};
pub use slots::ComputeShare;
pub use threads::PacedGuest;
pub use world::{GuestClock, World};
