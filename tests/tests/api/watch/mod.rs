//! Metrics, traces and the log, as operators see them, from the real binary.

mod host;
pub mod services;

mod logs;
mod metrics;
mod traces;
