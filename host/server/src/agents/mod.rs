//! AG-UI: a user interface talks with an agent, and loses nothing when it loses the connection.
//!
//! The way of a request: `routes` reads it, `engine` begins the run once (`history` judges what the client shows, `media` keeps
//! what comes with it, `store` remembers which run it is), `stream` sends what comes of it. `thread` puts a thread together from
//! the records of its runs. `profile` is another face of the same engine.

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
