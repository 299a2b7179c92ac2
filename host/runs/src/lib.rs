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
mod agents;
mod agui_config;
mod approval;
mod asks;
mod backup;
mod beginning;
mod binding;
mod calls;
mod children;
mod client_tools;
mod config;
mod context;
mod create;
mod delivery;
mod detached;
mod doubt;
mod error;
mod executors;
mod facts;
mod fetch;
mod follow;
mod forget;
mod fork;
mod gate;
mod held;
mod host;
mod journal;
mod keys;
mod library;
mod life;
mod line;
mod log;
mod mail;
pub mod media;
mod memory;
pub mod metrics;
mod pattern;
mod pipeline;
mod queue;
mod recording;
mod recovery;
mod reference;
mod reload;
mod remote;
mod replay;
mod results;
mod services;
mod sources;
mod spans;
mod steering;
mod telemetry;
mod terms;
mod token;

pub use accept::AcceptedEvent;
pub use agent_host_ledger::{EntryWrite, Forgotten, Idempotency};
pub use agent_host_providers::{egress, knowledge as knowledge_bases, models, secret, tools, trace, webhook};
pub use agents::{Agent, AgentRun, NewEntries};
pub use agui_config::{AgentApiConfig, AgentProfile, AguiConfig, BusyThread, ForeignHistory, OnDisconnect};
pub use approval::{ApprovalPolicy, ApprovalRule, ApproverConfig};
pub use asks::{Action, ActionStatus, AskKind, Decision, Response};
pub use backup::BackupReport;
pub use binding::BindingReport;
pub use config::{
    BindingConfig, Bootstrap, Config, ConfigError, DeliveryPolicy, Durability, ExternalRunnerConfig, InDoubt, Match, Names,
    ResourcePolicy, Retention,
};
pub use create::{AD_HOC, CreateRun, CreatedRun, QueueRequest, StartMode, in_workspace};
pub use delivery::{Delivery, DeliveryFilter, DeliveryState};
pub use error::{HostError, StartError};
pub use executors::{Executor, ExecutorNews, ExecutorState, Registration};
pub use fork::Fork;
pub use held::{Appended, ClaimRequest, Claimed, DeadLetter};
pub use host::{Host, Readiness, inspect};
pub use journal::timeline::{CallOutcome, JournaledCall};
pub use keys::{Key, Keys, NewKey, Welcome};
pub use library::{LibraryError, SkillConfig, StaticRefConfig};
pub use metrics::Metrics;
pub use pipeline::{Adapted, PIPELINE_ADAPTER, PipelineQuery, inline_bytes};
pub use queue::{OnLost, QueuePolicy};
pub use recording::{RecordedBlob, RecordedSegment, Recording, RecordingError, journaled_calls};
pub use reference::config_reference;
pub use reload::{ReloadError, ReloadReport, SectionChange};
pub use remote::{Answer, CallError, Calls, Chunks, NewArtifact, call_functions};
pub use replay::{Ending, Replay, ReplayError, ReplayReport, replay};
pub use services::knowledge;
pub use sources::{
    Algorithm, Condition, CustomSignature, Encoding, HookError, HookOutcome, HookRequest, Missed, NamedSignature, ScheduleConfig,
    ScheduleReport, SignatureConfig, WebhookSourceConfig, WebhookSourceReport,
};
pub use telemetry::{LogFormat, TelemetryConfig};
pub use terms::Terms;
