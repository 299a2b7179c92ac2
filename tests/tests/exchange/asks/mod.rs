//! Runs ask people and platforms: nothing is done that nobody allowed, what was allowed is done once, and who waits may wait
//! for as long as it takes, whatever becomes of the host.

use crate::support;

mod desk;

mod answers;
mod approvers;
mod client_tools;
mod emitted;
mod gates;
mod memory;
mod outcomes;
mod questions;
mod secrets;
mod threads;
mod waiting;
