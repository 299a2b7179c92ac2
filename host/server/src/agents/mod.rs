//! AG-UI: a user interface talks with an agent, and loses nothing when it loses the connection.
//!
//! The way of a request: `routes` reads it, `engine` begins the run once (`history` compares the client's messages, `branch`
//! finds their place in the thread, `claims` bounds history that the host has not seen, `media` stores content, `store` remembers
//! the run), `stream` sends the events (`replay` brings it to the place of a client, `follower` reads on in the records of a run and
//! of its children). `thread` builds a thread from the records of its runs. `profile` is another API of the
//! same engine.

mod branch;
mod claims;
mod engine;
mod follower;
mod history;
pub(crate) mod list;
pub(crate) mod media;
pub(crate) mod profile;
pub(crate) mod read;
mod replay;
pub(crate) mod routes;
mod session;
mod sign;
mod store;
mod stream;
mod thread;

pub(crate) use engine::actor_of;
