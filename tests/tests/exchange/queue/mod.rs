//! Runs that are made by name, wait in queues, are claimed, held and given back, and executors that come and go: over HTTP,
//! on the real binary.

use crate::support;

pub mod desk;

mod appends;
mod board;
mod bounds;
mod claims;
mod create;
mod crowd;
mod executors;
mod restarts;
mod rows;
