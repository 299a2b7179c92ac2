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
mod beginning;
mod binding;
mod calls;
mod config;
mod context;
mod doubt;
mod error;
mod facts;
mod follow;
mod fork;
mod gate;
mod host;
mod journal;
mod life;
mod line;
mod log;
pub mod media;
mod memory;
mod pattern;
mod recording;
mod recovery;
mod replay;
mod results;
mod services;
mod terms;

pub use accept::AcceptedEvent;
pub use agent_host_ledger::Idempotency;
pub use agent_host_providers::{knowledge as knowledge_bases, models, secret, tools};
pub use binding::BindingReport;
pub use config::{
    BindingConfig, Bootstrap, Config, ConfigError, DeliveryPolicy, Durability, InDoubt, Match, Names, ResourcePolicy, Retention,
};
pub use doubt::Decision;
pub use error::{HostError, StartError};
pub use fork::Fork;
pub use host::{Host, Readiness, inspect};
pub use journal::timeline::{CallOutcome, JournaledCall};
pub use recording::{RecordedBlob, RecordedSegment, Recording, RecordingError, journaled_calls};
pub use replay::{Ending, Replay, ReplayError, ReplayReport, replay};
pub use services::knowledge;
pub use terms::Terms;
