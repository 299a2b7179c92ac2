//! The write-ahead log: one frame for each group commit, durable before anyone is answered.
//!
//! A [`Log`] has two parts that are written in turn: while the batches of one part are merged into redb, later batches go
//! to the other. Batches are numbered without a gap for the life of the ledger, and each batch is self-contained: it
//! depends only on the rows of earlier batches. [`FileLog`] keeps each part in a file. The log of a cluster
//! (`crate::cluster`) keeps the batches in PostgreSQL; its parts are numbers alone.

mod file;
mod frame;
mod recovery;
mod salvage;

use std::io;

pub(crate) use file::{FileLog, PARTS, part_path};
pub(crate) use frame::FRAMES;
pub(crate) use salvage::readable_batches;

use crate::{error::LedgerError, store::epochs::Epochs};

/// The reason why a batch did not become part of the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendError {
    /// The batch is not in the log: the next one takes its number.
    #[error(transparent)]
    Refused(#[from] io::Error),
    /// The log takes no more batches of this process, and this one may be in it.
    #[error(transparent)]
    Lost(LedgerError),
}

/// The storage that makes batches durable before redb has them.
pub(crate) trait Log: Send {
    /// True if a batch of this size can be appended without a turn.
    fn has_room(&self, bytes: usize) -> bool;

    /// Makes a batch durable; gives the bytes that it counts for in the log, before they are packed.
    ///
    /// # Errors
    /// [`AppendError`].
    fn append(&mut self, payload: &[u8]) -> Result<u64, AppendError>;

    /// Goes on with the other part. redb must durably have the batches that are there.
    ///
    /// # Errors
    /// Then the part is the same as before.
    fn turn(&mut self) -> io::Result<()>;

    /// Number of the last batch.
    fn last(&self) -> u64;

    /// Epochs of the owners that wrote the last batches. `None` where the log has one owner for ever.
    fn epochs(&self) -> Option<Epochs> {
        None
    }

    /// Bytes of the batches in the part that is being written.
    fn part_bytes(&self) -> u64;
}
