//! The HTTP face of the host: the native API under `/api/v1`, and the health of the process.
//!
//! The server turns requests into calls of [`agent_host_runs::Host`], and answers and committed run events into JSON and
//! server-sent events. The crate stores no facts: it keeps nothing between two requests, makes no decision about runs, and shows
//! only committed data.
//!
//! - Every error is a problem document (RFC 9457) with a `code` for programs: see [`ProblemCode`].
//! - A reader, however slow, holds nothing but its own connection: streams are pulled from the ledger.
//! - Input of a client never causes a panic, and its size is limited before it is parsed.
//!
//! The rooms, lowest first. None imports a higher one:
//!
//! ```text
//! http       bodies, parameters, headers, problems, connections; serve_error: why a server does not listen
//! agui       AG-UI 1.0 as values: events, projection, verification, encodings
//! openapi    the parts of the description
//! langbot    the dialect of LangBot 4.11: requests and answers with the names that LangBot released
//! mcp        servers of MCP: the endpoint of a run, and the agents as tools
//! app        what every request has at hand; request_log: its id, its lines, its numbers
//! access     callers, keys, tokens of identity providers, idempotency, CORS
//! cluster    hosts among themselves: requests that a warm host forwards to the active one, and the listeners of each
//! artifacts  uploads and downloads
//! agents     threads and runs of AG-UI, their routes, the profile
//! routes     one module for each resource, and the table
//! control_audit  records of requests to the control plane
//! layer      around every route: request log, dialect, authentication, audit
//! fuzz       readers of requests, given bytes: what `tests/fuzz` calls
//! router     the routes in their layers; local: requests from within the process; server: listen, serve, end
//! ```

mod access;
mod agents;
mod agui;
mod app;
mod artifacts;
mod cluster;
mod control_audit;
#[doc(hidden)]
pub mod fuzz;
mod http;
mod langbot;
mod layer;
mod local;
mod mcp;
mod openapi;
mod request_log;
mod router;
mod routes;
mod serve_error;
mod server;

pub use cluster::{
    listeners::{ClusterListeners, ClusterPartition, Departure},
    local_client::ClusterClient,
};
pub use http::{Problem, ProblemCode};
pub use local::{LocalAnswer, LocalClient, LocalError, LocalRequest};
pub use routes::openapi;
pub use serve_error::{BindError, ServeError};
pub use server::{ActivePartition, Server};
