//! The kernel: from an event to runs, and each run from its creation to its one end.
//!
//! It is: bindings, grants, the gate, the life of a run, the line of a conversation, recovery. It is not: HTTP,
//! WebAssembly, or a file format; those are the houses beside and below.
//!
//! [`Host`] is the running thing. The way of an event through it:
//!
//! ```text
//! accept.rs ──► binding.rs ──► ledger (committed) ──► line.rs ──► life.rs ──► sandbox
//!                                                                   │  calls/ ──► gate.rs ──► services.rs, ledger
//!                                                                   └► the end, committed, then told
//! ```

mod accept;
mod approval;
mod asks;
mod beginning;
mod binding;
mod calls;
mod children;
mod config;
mod context;
mod detached;
mod doubt;
mod error;
mod facts;
mod follow;
mod fork;
mod gate;
mod host;
mod journal;
mod library;
mod life;
mod line;
mod log;
mod mail;
pub mod media;
mod memory;
mod pattern;
mod recording;
mod recovery;
mod replay;
mod results;
mod services;
mod steering;
mod terms;

pub use accept::AcceptedEvent;
pub use agent_host_ledger::Idempotency;
pub use agent_host_providers::{egress, knowledge as knowledge_bases, models, secret, tools, webhook};
pub use approval::{ApprovalPolicy, ApprovalRule, ApproverConfig};
pub use asks::{Action, ActionStatus, AskKind, Decision, Response};
pub use binding::BindingReport;
pub use config::{
    BindingConfig, Bootstrap, Config, ConfigError, DeliveryPolicy, Durability, InDoubt, Match, Names, ResourcePolicy, Retention,
};
pub use error::{HostError, StartError};
pub use fork::Fork;
pub use host::{Host, Readiness, inspect};
pub use journal::timeline::{CallOutcome, JournaledCall};
pub use library::{LibraryError, SkillConfig, StaticRefConfig};
pub use recording::{RecordedBlob, RecordedSegment, Recording, RecordingError, journaled_calls};
pub use replay::{Ending, Replay, ReplayError, ReplayReport, replay};
pub use services::knowledge;
pub use terms::Terms;
