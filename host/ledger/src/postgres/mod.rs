//! A client of PostgreSQL that blocks: one connection, statements with parameters, TLS, and an error that says whether the
//! outcome of a statement is known.
//!
//! Messages and passwords are encoded by `postgres-protocol`, the lower half of `tokio-postgres`. The upper half is not used: the
//! writer of a ledger is a thread that waits for its one statement, and must learn what became of it when the connection is
//! lost.

mod connection;
mod error;
mod server;
mod stream;

pub(crate) use connection::{Connection, Param, Row, column};
pub use error::PostgresError;
pub use server::PostgresServer;
