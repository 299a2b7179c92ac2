//! The data of Agent Host as JSON shows it: ids, events, contexts, results, runs, grants, errors, limits.
//!
//! Types with their JSON form, and rules that need only the value (valid names, transitions of status, size limits). No
//! function reads a shared clock, a file, a socket or a guest.
//!
//! Field names follow the AgentRunner protocol v1 (manifests, contexts, results, errors) and the run ledger
//! note (runs, run events, pages). Two things are said once here and hold everywhere:
//!
//! - every time is Unix time in **milliseconds**, every size is in **bytes**, and a field that is a
//!   duration says its unit in its name;
//! - a field that is absent and a field that is `null` mean the same.

pub mod artifact;
pub mod ask;
pub mod auth;
pub mod child;
pub mod context;
pub mod encoded;
pub mod error;
pub mod event;
pub mod fact;
pub mod grant;
pub mod hash_slot;
pub mod hex;
pub mod hosts;
pub mod http;
pub mod id;
pub mod import;
pub mod knowledge;
pub mod limits;
pub mod manifest;
pub mod message;
pub mod model;
mod named;
pub mod page;
pub mod plugin;
pub mod record_digest;
pub mod result;
pub mod run;
pub mod run_log;
pub mod sent;
pub mod sse;
pub mod time;
pub mod tool;
pub mod transcript;
pub mod ui;

pub use auth::{Principal, PrincipalKind, Scope};
pub use error::{ApiError, ErrorCode, FailureCode};
pub use event::Event;
pub use grant::{Grant, Interface, InterfaceSet};
pub use hash_slot::HashSlot;
pub use id::{EventId, IdError, RunId, RunnerId};
pub use limits::Limits;
pub use manifest::RunnerManifest;
pub use page::Page;
pub use plugin::{ImportReport, ImportVerdict, PluginReport, PluginStatus, Refusal, RefusalCode};
pub use record_digest::RecordDigest;
pub use result::{EventSource, ResultKind, RunEvent, RunResult};
pub use run::{Run, RunStatus};
pub use run_log::{RunLogLine, RunLogPage, RunLogSource};
pub use sent::SentResult;
pub use time::Timestamp;
