//! AG-UI: a user interface talks with an agent, and loses nothing when it loses the connection.
//!
//! The way of a request: `routes` reads it, `engine` begins the run once (`history` compares the client's messages, `media`
//! stores their content, `store` remembers the run), `stream` sends the events. `thread` builds a thread from the records
//! of its runs. `profile` is another API of the same engine.

mod engine;
mod history;
pub(crate) mod media;
pub(crate) mod profile;
pub(crate) mod routes;
mod session;
mod sign;
mod store;
mod stream;
mod thread;
