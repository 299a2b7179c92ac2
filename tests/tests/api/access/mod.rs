//! Access to the HTTP server, with the real binary and real sockets: keys, scopes, workspaces, loopback, limits and CORS.

mod approvers;
mod cors;
mod feeds;
mod key_limits;
mod keys;
mod limits;
mod local;
mod routes;
mod stream_tokens;
pub(crate) mod support;
