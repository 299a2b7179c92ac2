//! The store: redb, the write-ahead log, and how the one catches up with the other.

mod database;
mod filesystem;
mod identity;
mod legacy;
mod live;
mod log;
mod merge;
mod open;
mod upgrade;

pub(crate) use database::{create, database_path, io_error, open_database};
#[cfg(test)]
pub(crate) use filesystem::{FileSystem, OpenFile};
pub(crate) use filesystem::{Files, real_files};
pub(crate) use identity::{Identity, identity_path};
pub(crate) use legacy::{legacy_path, readable_batches as legacy_batches};
pub(crate) use live::{Store, WriteError};
pub(crate) use log::{PARTS, part_path, readable_batches};
pub(crate) use merge::{MergeEvents, merge};
pub(crate) use open::{MissingLedger, OpenedStore, open};
