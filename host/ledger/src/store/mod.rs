//! The store: redb, the write-ahead log, and how the one catches up with the other.

mod database;
mod epochs;
mod filesystem;
mod identity;
mod legacy;
mod live;
mod log;
mod merge;
mod new_copy;
mod open;
mod upgrade;

pub(crate) use database::{create, database_path, io_error, open_database, read_format};
pub(crate) use epochs::{EpochEnd, Epochs};
pub(crate) use filesystem::{FileSystem, Files, OpenFile, real_files};
pub(crate) use identity::{Identity, identity_path};
pub(crate) use legacy::{legacy_path, readable_batches as legacy_batches};
pub(crate) use live::{LogSource, Store, WriteError, part_room};
pub(crate) use log::{AppendError, FRAMES, FileLog, Log, PARTS, part_path, readable_batches};
pub(crate) use merge::{MergeEvents, merge};
pub(crate) use new_copy::NewCopy;
pub(crate) use open::{MissingLedger, OpenedStore, open, open_copy};
