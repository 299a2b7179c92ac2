//! Segments of journals: a new one, encoded, and those to be pruned.

use std::sync::Arc;

use agent_host_protocol::Timestamp;
use tokio::sync::oneshot;

use crate::{
    digest::Digest,
    error::LedgerError,
    files::{Blob, Pin},
    record::JournalSegment,
};

/// Bytes that a blob adds to a batch: its digest in the row, and the row that lists it.
const BLOB_BYTES: usize = 32 + 56;

/// A segment, encoded, and its blobs, pinned.
pub(crate) struct NewSegment {
    pub(crate) first: u64,
    pub(crate) value: Vec<u8>,
    pub(crate) digests: Vec<Digest>,
    /// Held until the row is committed.
    pub(crate) pins: Vec<Arc<Pin>>,
}

impl NewSegment {
    pub(crate) fn prepare(segment: JournalSegment) -> Self {
        let JournalSegment { first, bytes, blobs } = segment;
        let mut digests: Vec<_> = blobs.iter().map(Blob::digest).collect();
        // A blob that is named twice is needed once.
        digests.sort_unstable();
        digests.dedup();
        // Far fewer fit one operation.
        let count = u32::try_from(digests.len()).unwrap_or(u32::MAX);
        let mut value = Vec::with_capacity(4 + digests.len() * 32 + bytes.len());
        value.extend_from_slice(&count.to_be_bytes());
        digests.iter().for_each(|digest| value.extend_from_slice(digest));
        value.extend_from_slice(&bytes);
        let pins = blobs.into_iter().map(|blob| blob.pin).collect();
        Self { first, value, digests, pins }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.value.len() + self.digests.len() * BLOB_BYTES
    }
}

/// Segments that [`crate::Ledger::prune_journals`] removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrunedSegments {
    /// Runs whose journals were deleted to the end.
    pub runs: u64,
    /// Segments.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// True if there are more to prune.
    pub more: bool,
}

/// Deletes segments of runs that have ended before a time. Answers with what it deleted.
pub(crate) struct PruneOperation {
    pub(crate) ended_before: Timestamp,
    pub(crate) runs: Vec<PrunableRun>,
    pub(crate) reply: oneshot::Sender<Result<PrunedSegments, LedgerError>>,
}

pub(crate) struct PrunableRun {
    pub(crate) run_no: u64,
    /// True if these are the first segments found.
    pub(crate) begins: bool,
    /// True if these are the last segments.
    pub(crate) ends: bool,
    pub(crate) segments: Vec<PrunableSegment>,
}

pub(crate) struct PrunableSegment {
    pub(crate) first: u64,
    pub(crate) bytes: u64,
    pub(crate) digests: Vec<Digest>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::read_segment;

    #[test]
    fn a_segment_reads_back_and_foreign_bytes_are_none() {
        let segment = NewSegment::prepare(JournalSegment { first: 1, bytes: b"entries".to_vec(), blobs: Vec::new() });
        assert_eq!(read_segment(&segment.value), Some((&[][..], &b"entries"[..])));
        let one = [&[0, 0, 0, 1][..], &[7; 32], b"x"].concat();
        assert_eq!(read_segment(&one), Some((&[[7; 32]][..], &b"x"[..])));
        for foreign in [&b""[..], &[0, 0, 0], &[0, 0, 0, 1, 2], &[255; 40]] {
            assert_eq!(read_segment(foreign), None);
        }
    }
}
