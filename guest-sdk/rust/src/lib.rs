//! SDK for agent runners in Rust. A runner is one trait and one macro; no WIT is needed.
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
//! Built as a `cdylib` for `wasm32-wasip2`, the example is a component with the runner `plugin:acme/greeter/default`. The
//! component imports exactly the interfaces that its code calls. The host admits the component only if the manifest
//! declares these interfaces.
//!
//! # A runner
//!
//! - [`Runner`] is the trait: a manifest, and a function that answers one event. [`export!`] turns runners into a
//!   component.
//! - [`Manifest`] holds the names, the permissions and the form of the configuration ([`FormItem`]).
//! - [`Context`] is the input of a run: the event, the conversation, the grant, the configuration and a snapshot of the
//!   state.
//! - [`client`] is what a front end sends beside the message; [`Context::client`] reads it.
//! - [`Completion`] and [`Failure`] end a run. [`ApiError`] is the error of a host call; `?` converts any error into a
//!   [`Failure`].
//!
//! # Results
//!
//! - [`MessageWriter`] streams one message; [`Context::message`] creates one. [`Context::reply`] emits a complete text.
//! - [`results`] builds the other results and sends them in batches.
//! - [`ui`] has results for user interfaces: steps, activities, subagents.
//! - [`facts`] has results that say what only the runner knows: plans, progress, handoffs.
//!
//! # Host calls
//!
//! | module | purpose | access | permission |
//! |---|---|---|---|
//! | [`models`] | chat, embeddings, reranking, token counts | [`Context::model`] | [`Manifest::models`] |
//! | [`tools`] | tools of the host; [`Toolbox`] adds those of the runner | [`Context::tools`] | [`Manifest::tools`] |
//! | [`knowledge`] | passages of knowledge bases | [`Context::knowledge`] | [`Manifest::knowledge_bases`] |
//! | [`history`] | pages and search of the transcript | [`Context::history`] | [`Manifest::history`] |
//! | [`events`] | earlier events | [`Context::events`] | [`Manifest::events`] |
//! | [`artifacts`] | files | [`Context::artifacts`] | [`Manifest::artifacts`] |
//! | [`state`] | small JSON values in a scope | [`Context::state`] | [`Manifest::state`] |
//! | [`storage`] | bytes by key in an area | [`Context::storage`] | [`Manifest::storage`] |
//! | [`platform`] | platform actions | [`Context::platform`] | [`Manifest::platform_actions`] |
//! | [`interactions`] | questions to people | [`Context::ask`] | [`Manifest::interactions`] |
//! | [`steering`] | input that arrives during the run | [`Context::steering`] | [`Manifest::steering`] |
//! | [`runs`] | child runs, and runs of the conversation | [`Context::runs`] | [`Manifest::runs`] |
//! | [`http`] | HTTP requests | [`Context::http`] | [`Manifest::http_hosts`] |
//! | [`timers`], [`log`] | time, waiting, log lines | functions of the module | none |
//!
//! [`history`], [`events`] and [`runs`] read the conversation of the run. [`Manifest::conversations`] asks for others.
//!
//! # Helpers
//!
//! - [`memory`] fits a conversation into the token budget of a model.
//! - [`json`] reads and writes JSON with little code.
//! - [`limits`] has the sizes that the host accepts.
//! - [`contract`] is the whole contract, as generated from WIT.
//! - [`testing`] is a scripted host: outside of wasm a runner is plain Rust and runs in a unit test.
//!
//! Outside of wasm, a host call without a [`testing::TestHost`] panics.

// The generated code of `contract` names its runtime by the path that runners see.
extern crate self as agent_host_sdk;

pub mod artifacts;
pub mod client;
pub mod contract;
pub mod events;
pub mod facts;
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
#[cfg(feature = "schemars")]
mod schema;

pub use context::Context;
pub use contract::{
    ActionOutcome, ArtifactOperation, ArtifactRef, BootstrapMode, Capabilities, Chunk, ContentPart, ContextOwnership,
    ContextPolicy, ErrorCode, EventOperation, HistoryOperation, KnowledgeOperation, Message, ModelOperation, Permissions, Role,
    RunOperation, StateScope, StorageArea, ToolCall, ToolOperation,
};
pub use error::ApiError;
pub use form::FormItem;
pub use interactions::Question;
pub use json::IntoJson;
pub use manifest::{ConversationReach, Manifest};
pub use message::MessageWriter;
pub use models::{Model, ModelRequest, ModelResponse};
pub use outcome::{Completion, Failure};
pub use runs::{ChildRun, StartRun};
/// Re-export for `#[derive(JsonSchema)]` on the parameters of a [`Toolbox::local`] tool.
#[cfg(feature = "schemars")]
pub use schemars;
/// Re-export for `serde_json::json!`, so that a runner needs no dependency on `serde_json`.
pub use serde_json;
pub use tools::{ToolError, Toolbox};

/// A runner: a manifest, and a function that answers one event.
///
/// The trait has no `self`: every run has its own instance of the component, so memory does not outlive a run. Values
/// that must outlive the run belong in [`state`].
pub trait Runner {
    /// Name of the runner within the plugin and last part of the runner id: a single word, unique among the runners of a
    /// component.
    const NAME: &'static str = "default";

    /// Returns the manifest. The host reads the manifest once, when it admits the component.
    fn manifest() -> Manifest;

    /// Answers one event. The return value is the one terminal result of the run; all other results are emitted before.
    ///
    /// # Errors
    /// A [`Failure`] ends the run as failed. `?` converts any error into a `Failure`. A panic also ends the run, as a
    /// sandbox violation without a specific error code.
    fn run(ctx: Context) -> Result<Completion, Failure>;
}

/// Exports one or more [`Runner`]s as a component: `export!(Planner, Critic)`. Used once per crate.
///
/// A run for an unknown name fails with the code `runner.not_found`.
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

            // The export names of a component have no meaning for a native linker.
            #[cfg(target_family = "wasm")]
            $crate::contract::export_component!(AgentHostComponent with_types_in $crate::contract);
        };
    };
}

/// Guides, included as doctests so that their code is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../../docs/SDK.md")]
enum Guides {}

/// Support for the macros of this crate.
#[doc(hidden)]
pub mod __private {
    pub use wit_bindgen;

    use crate::contract::{RunCompletion, RunContext, RunFailure, RunnerManifest};
    use crate::{Context, Failure, Runner};

    pub fn manifest<R: Runner>(crate_version: &str) -> RunnerManifest {
        R::manifest().into_contract(R::NAME, crate_version)
    }

    pub fn run<R: Runner>(context: RunContext) -> Result<RunCompletion, RunFailure> {
        let context = Context::new(context);
        let messages = context.messages();
        let completion = R::run(context)?;
        messages.finish(&completion).map_err(Failure::from)?;
        Ok(completion.into())
    }

    pub fn not_found(runner_name: &str) -> RunFailure {
        let message = format!("this component has no runner `{runner_name}`");
        Failure::new("runner.not_found", message).into()
    }
}
