//! The store: redb, the write-ahead log, and how the one catches up with the other.

mod database;
mod log;
mod upgrade;

pub(crate) use database::{Missing, Store, WrapLog, WriteError, create, database_path, io_error, log_path, open_database};
#[cfg(test)]
pub(crate) use log::LogFile;
