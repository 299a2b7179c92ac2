//! Where events come from besides the API: schedules, and signed requests of other systems.

mod hooks;
mod schedule;
mod scheduler;
mod signature;
mod template;

pub use self::{
    hooks::{Condition, HookError, HookOutcome, HookRequest, WebhookSourceConfig, WebhookSourceReport},
    schedule::{Missed, ScheduleConfig},
    scheduler::ScheduleReport,
    signature::{Algorithm, CustomSignature, Encoding, NamedSignature, SignatureConfig},
};
pub(crate) use self::{
    hooks::{HookSource, open as open_hooks},
    schedule::Schedule,
    scheduler::Scheduler,
};
