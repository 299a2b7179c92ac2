//! What a host says of what it does: numbers, traces and a log, as operators have them, from the real binary.

mod host;
mod services;

mod logs;
mod metrics;
mod traces;
