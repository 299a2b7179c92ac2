//! The write-ahead log: one frame for each group commit, durable before anyone is answered.
//!
//! A [`Log`] has two parts that are written in turn: while the batches of one part are merged into redb, later batches go
//! to the other. Batches are numbered without a gap for the life of the ledger, and each batch is self-contained: it
//! depends only on the rows of earlier batches. The one implementation, [`FileLog`], keeps each part in a file.

mod file;
mod frame;
mod recovery;
mod salvage;

use std::io;

pub(crate) use file::{FileLog, PARTS, part_path};
pub(crate) use salvage::readable_batches;

use crate::error::OpenError;

/// The storage that makes batches durable before redb has them.
pub(crate) trait Log: Send {
    /// Hands every batch after `applied` to `each`, oldest first; gives the number of the last batch. The caller makes
    /// redb durable up to that batch before it appends one.
    ///
    /// A batch that was being written when the host died, and was never acknowledged, is cut off. Damage to one that
    /// was acknowledged is an error.
    fn recover(&mut self, applied: u64, each: &mut dyn FnMut(&[u8]) -> Result<(), OpenError>) -> Result<u64, OpenError>;

    /// True if a batch of this size can be appended without a turn.
    fn has_room(&self, bytes: usize) -> bool;

    /// Makes a batch durable; gives the bytes that it takes in the log.
    ///
    /// # Errors
    /// Then the batch is not part of the log: the next one takes its number.
    fn append(&mut self, payload: &[u8]) -> io::Result<u64>;

    /// Goes on with the other part. redb must durably have the batches that are there.
    ///
    /// # Errors
    /// Then the part is the same as before.
    fn turn(&mut self) -> io::Result<()>;

    /// Number of the last batch.
    fn last(&self) -> u64;

    /// Bytes of the batches in the part that is being written.
    fn part_bytes(&self) -> u64;
}
