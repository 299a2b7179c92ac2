//! The HTTP face of the host: the native API under `/api/v1`, and the health of the process.
//!
//! It is: requests into calls of [`agent_host_runs::Host`], and answers and committed run events back into
//! JSON and server-sent events. It is not: a place of facts. It keeps nothing between two requests, decides
//! nothing about runs, and everything that it shows was committed before.
//!
//! - Every error is a problem document (RFC 9457) with a `code` for programs: see [`ProblemCode`].
//! - A reader, however slow, holds nothing but its own connection: streams are pulled from the ledger.
//! - What a client sends cannot make it panic, and is bounded before it is parsed.

mod accept;
mod actions;
mod agui;
mod app;
mod artifacts;
mod body;
mod caller;
mod calls;
mod chat;
mod claims;
mod connections;
mod cors;
mod create;
mod deliveries;
mod door;
mod events;
mod executors;
mod extract;
mod health;
mod hooks;
mod idempotency;
mod keys;
mod metrics;
mod openapi;
mod operations;
mod output;
mod paced;
mod pipeline;
mod prefer;
mod problem;
mod query;
mod replay;
mod runners;
mod runs;
mod schedules;
mod server;
mod sse;
mod statistics;
mod watch;

pub use openapi::openapi;
pub use problem::{Problem, ProblemCode};
pub use server::{BindError, ServeError, Server};
