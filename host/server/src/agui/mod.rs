//! AG-UI 1.0: a user interface talks with an agent, and loses nothing when it loses the connection.
//!
//! The way of a request: `routes` reads it (`input`, `strict`), `engine` begins the run once (`history` judges what the client
//! shows, `media` keeps what comes with it, `store` remembers which run it is), `stream` sends what comes of it.
//! The way of an event: the record of the host's run is projected (`project`), looked at by a verifier (`verify`), joined
//! where it may be (`coalesce`), said otherwise to old clients (`legacy`), and written (`wire`). Snapshots are the same
//! stream, folded (`fold`, `thread`).

mod capabilities;
mod coalesce;
pub(crate) mod cursor;
pub(crate) mod engine;
pub(crate) mod event;
mod fold;
mod history;
pub(crate) mod input;
mod interrupts;
mod legacy;
pub(crate) mod media;
pub(crate) mod profile;
pub(crate) mod project;
mod proto;
pub(crate) mod routes;
#[cfg(test)]
mod sample;
pub(crate) mod sign;
pub(crate) mod store;
pub(crate) mod stream;
pub(crate) mod strict;
pub(crate) mod thread;
mod verify;
mod wire;
