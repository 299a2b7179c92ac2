//! The parts that routes of an HTTP API share: bodies, parameters, headers, problems, connections.

pub(crate) mod accept;
pub(crate) mod body;
mod codes;
pub(crate) mod connections;
mod extract;
pub(crate) mod forwarded;
pub(crate) mod headers;
pub(crate) mod metrics;
pub(crate) mod paced_stream;
pub(crate) mod percent;
pub(crate) mod prefer;
mod problem;
pub(crate) mod query;
mod respond;
pub(crate) mod sse;
pub(crate) mod workspaces;

pub use self::problem::{Problem, ProblemCode};
pub(crate) use self::{
    codes::problem_codes,
    extract::{Id, Path, PathId},
    query::Query,
    respond::{json, located, page, raw_json, replayed, whole_page},
};
