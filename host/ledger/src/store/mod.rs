//! The store: redb, the write-ahead log, and how the one catches up with the other.

mod database;
mod identity;
mod legacy;
mod live;
mod log;
mod merge;
mod open;
mod upgrade;

pub(crate) use database::{create, database_path, io_error, open_database, sync_directory};
pub(crate) use identity::{Identity, identity_path};
pub(crate) use legacy::{legacy_path, readable_batches as legacy_batches};
pub(crate) use live::{Store, WriteError};
#[cfg(test)]
pub(crate) use log::LogFile;
pub(crate) use log::{PARTS, WrapLog, part_path, readable_batches};
pub(crate) use merge::{MergeEvents, merge};
pub(crate) use open::{MissingLedger, OpenedStore, open};

/// Files that tests put in place of the real ones.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) log: Option<WrapLog>,
    pub(crate) store: Option<OpenStore>,
}

/// Opens redb.
pub(crate) type OpenStore =
    std::sync::Arc<dyn Fn(&std::path::Path, usize) -> Result<redb::Database, redb::DatabaseError> + Send + Sync>;
