//! Write an agent runner in Rust: a trait, a macro, and no line of WIT.
//!
//! ```
//! use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};
//!
//! struct Greeter;
//!
//! impl Runner for Greeter {
//!     fn manifest() -> Manifest {
//!         Manifest::new("acme", "greeter").label("en", "Greeter")
//!     }
//!
//!     fn run(ctx: Context) -> Result<Completion, Failure> {
//!         let mut out = ctx.message();
//!         write!(out, "Hello, {}!", ctx.text())?;
//!         out.finish()?;
//!         Ok(Completion::stop())
//!     }
//! }
//!
//! agent_host_sdk::export!(Greeter);
//! ```
//!
//! Built as a `cdylib` for `wasm32-wasip2` this is a component with the runner
//! `plugin:acme/greeter/default`. It imports what it calls and nothing else, and the host admits it
//! only when its manifest declares that.
//!
//! What is here: [`Manifest`] and [`FormItem`] for what the runner says of itself, [`Context`] for
//! what it is handed, [`MessageWriter`] and [`results`] for what it answers. From the context come
//! [`models`], [`tools`], [`knowledge`], [`artifacts`], [`history`], [`events`], [`state`] and
//! [`storage`]; [`memory`] makes of them what a model needs to know of a conversation. [`platform`]
//! actions and questions to people ([`interactions`]), [`steering`], other [`runs`] and [`http`]
//! come from it too. [`ui`] has results for user interfaces. [`json`], [`log`] and [`timers`] stand
//! for themselves. The whole contract is in [`contract`], as it is generated.
//!
//! On another target than wasm a runner is plain Rust, and [`testing`] is its host. Without one, a
//! host call panics there.

// The generated code of `contract` names its runtime by the path that runners see.
extern crate self as agent_host_sdk;

pub mod artifacts;
pub mod contract;
pub mod events;
pub mod history;
pub mod http;
pub mod interactions;
pub mod json;
pub mod knowledge;
pub mod limits;
pub mod log;
pub mod memory;
pub mod models;
pub mod platform;
pub mod results;
pub mod runs;
pub mod state;
pub mod steering;
pub mod storage;
#[cfg(not(target_family = "wasm"))]
pub mod testing;
pub mod timers;
pub mod tools;
pub mod ui;

mod context;
mod error;
mod form;
mod host;
mod manifest;
mod message;
mod outcome;

pub use context::Context;
pub use contract::{
    ActionOutcome, ArtifactOperation, ArtifactRef, Capabilities, Chunk, ContentPart, ContextPolicy, ErrorCode, EventOperation,
    HistoryOperation, KnowledgeOperation, Message, ModelOperation, Permissions, Role, RunOperation, StateScope, StorageArea,
    ToolCall, ToolOperation,
};
pub use error::ApiError;
pub use form::FormItem;
pub use interactions::Question;
pub use json::IntoJson;
pub use manifest::Manifest;
pub use message::MessageWriter;
pub use models::{Model, ModelRequest, ModelResponse};
pub use outcome::{Completion, Failure};
pub use runs::{ChildRun, StartRun};
/// For `#[derive(JsonSchema)]` on the parameters of a [`Toolbox::local`] tool.
#[cfg(feature = "schemars")]
pub use schemars;
/// For `serde_json::json!` without a dependency of one's own.
pub use serde_json;
pub use tools::{ToolError, Toolbox};

/// A runner: what it says of itself, and how it answers an event.
///
/// There is no `self`: every run has an instance of the component of its own, so nothing that is
/// kept in memory outlives a run. What shall, goes into [`state`].
pub trait Runner {
    /// The name within the plugin, the last part of the id. One word; runners of one component
    /// differ in it.
    const NAME: &'static str = "default";

    /// What the host reads once, when it admits the component.
    fn manifest() -> Manifest;

    /// Answers one event. What it returns is the one terminal result of the run; everything else
    /// is emitted before.
    ///
    /// # Errors
    /// A [`Failure`] ends the run as failed. `?` makes one of any error. A panic ends it too, as
    /// a violation of the sandbox and without a code that anyone could act on.
    fn run(ctx: Context) -> Result<Completion, Failure>;
}

/// Makes a component of one or more [`Runner`]s: `export!(Planner, Critic)`. Once in a crate.
///
/// A run for a name that none of them has fails with the code `runner.not_found`.
#[macro_export]
macro_rules! export {
    ($($runner:ty),+ $(,)?) => {
        #[allow(
            unsafe_code,
            dead_code,
            reason = "the exports of a component have a C ABI; elsewhere nothing calls them"
        )]
        const _: () = {
            enum AgentHostComponent {}

            impl $crate::contract::Guest for AgentHostComponent {
                fn list_runners() -> ::std::vec::Vec<$crate::contract::RunnerManifest> {
                    ::std::vec![$($crate::__private::manifest::<$runner>(
                        ::core::env!("CARGO_PKG_VERSION")
                    )),+]
                }

                fn run(
                    runner_name: ::std::string::String,
                    context: $crate::contract::RunContext,
                ) -> ::core::result::Result<
                    $crate::contract::RunCompletion,
                    $crate::contract::RunFailure,
                > {
                    $(
                        if runner_name == <$runner as $crate::Runner>::NAME {
                            return $crate::__private::run::<$runner>(context);
                        }
                    )+
                    ::core::result::Result::Err($crate::__private::not_found(&runner_name))
                }
            }

            // The names of the exports mean nothing to a native linker.
            #[cfg(target_family = "wasm")]
            $crate::contract::export_component!(AgentHostComponent with_types_in $crate::contract);
        };
    };
}

/// The guides, so that their code is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../../docs/SDK.md")]
enum Guides {}

/// For the macros of this crate.
#[doc(hidden)]
pub mod __private {
    pub use wit_bindgen;

    use crate::contract::{RunCompletion, RunContext, RunFailure, RunnerManifest};
    use crate::{Context, Failure, Runner};

    pub fn manifest<R: Runner>(crate_version: &str) -> RunnerManifest {
        R::manifest().into_contract(R::NAME, crate_version)
    }

    pub fn run<R: Runner>(context: RunContext) -> Result<RunCompletion, RunFailure> {
        match R::run(Context::new(context)) {
            Ok(completion) => Ok(completion.into()),
            Err(failure) => Err(failure.into()),
        }
    }

    pub fn not_found(runner_name: &str) -> RunFailure {
        let message = format!("this component has no runner `{runner_name}`");
        Failure::new("runner.not_found", message).into()
    }
}
