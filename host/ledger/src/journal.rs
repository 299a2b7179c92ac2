//! Journals: what a run was told, in the order in which it was told, so that it can be brought back.
//!
//! A journal is an append-only sequence of segments. The ledger keeps them and the blobs that they name, and does not
//! look into them. A segment is in [`Table::Journal`] under the number of its first entry; the writer sees to it that
//! these numbers grow.

use std::sync::Arc;

use agent_host_protocol::Run;

use crate::{
    batch::Batch,
    blobs::{Blob, Pin},
    error::LedgerError,
    handle::Ledger,
    memory::JournalEnd,
    operation::WriteOperation,
    read::{Reader, malformed},
    record::{JournalRow, JournalSegment, RunChange},
    rows::Rows,
    schema::{BY_JOURNAL, Digest, Table, blob_ref, pair, read_pair},
};

/// What a blob adds to a batch: its digest in the row, and the row that lists it.
const BLOB_BYTES: usize = 32 + 56;

/// A segment, encoded, and its blobs, pinned.
pub(crate) struct NewSegment {
    pub(crate) first: u64,
    value: Vec<u8>,
    digests: Vec<Digest>,
    /// Held until the row is committed.
    pins: Vec<Arc<Pin>>,
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

/// A row of [`Table::Journal`]: the blobs that it needs, and the entries.
pub(crate) fn read_segment(value: &[u8]) -> Option<(&[Digest], &[u8])> {
    let (count, rest) = value.split_first_chunk::<4>()?;
    let count = usize::try_from(u32::from_be_bytes(*count)).ok()?;
    let (digests, bytes) = rest.split_at_checked(count.checked_mul(32)?)?;
    Some((digests.as_chunks().0, bytes))
}

/// Deletes a segment and what lists its blobs. A blob that nothing lists any more is garbage.
pub(crate) fn delete_segment(rows: &mut Rows, run_no: u64, first: u64, digests: &[Digest]) {
    let key = pair(run_no, first);
    for digest in digests {
        rows.delete(Table::BlobRefs, &blob_ref(digest, BY_JOURNAL, &key));
    }
    rows.delete(Table::Journal, &key);
}

impl Reader {
    /// `first` of the last segment of a run.
    fn last_segment(&self, run_no: u64) -> Result<Option<u64>, LedgerError> {
        let rows = self.table(Table::Journal)?;
        let range = pair(run_no, 0)..=pair(run_no, u64::MAX);
        let Some(row) = rows.range::<&[u8]>(range.start().as_slice()..=range.end().as_slice())?.next_back() else {
            return Ok(None);
        };
        read_pair(row?.0.value()).map(|(_, first)| Some(first)).ok_or_else(|| malformed(Table::Journal))
    }

    /// Segments of a run from `from` on, until `each` says that it is enough.
    pub(crate) fn segments(
        &self,
        run_no: u64,
        from: u64,
        mut each: impl FnMut(u64, &[Digest], &[u8]) -> bool,
    ) -> Result<(), LedgerError> {
        let rows = self.table(Table::Journal)?;
        let range = pair(run_no, from)..=pair(run_no, u64::MAX);
        for row in rows.range::<&[u8]>(range.start().as_slice()..=range.end().as_slice())? {
            let (key, value) = row?;
            let (_, first) = read_pair(key.value()).ok_or_else(|| malformed(Table::Journal))?;
            let (digests, bytes) = read_segment(value.value()).ok_or_else(|| malformed(Table::Journal))?;
            if !each(first, digests, bytes) {
                break;
            }
        }
        Ok(())
    }
}

impl Batch<'_> {
    /// Whether the journal can go on as a write says; gives what is deleted before it does.
    pub(crate) fn check_journal(&mut self, write: &WriteOperation) -> Result<Rows, LedgerError> {
        let run_no = write.run_no;
        let mut deleted = Rows::default();
        let last = if write.changes.iter().any(|change| matches!(change, RunChange::Retry { .. })) {
            self.reader()?.segments(run_no, 0, |first, digests, _| {
                delete_segment(&mut deleted, run_no, first, digests);
                true
            })?;
            // Those of this batch, which the reader does not see.
            for (first, digests) in self.journal.get(&run_no).into_iter().flatten() {
                delete_segment(&mut deleted, run_no, *first, digests);
            }
            None
        } else if write.journal.is_some() {
            self.journal_end(run_no)?
        } else {
            return Ok(deleted);
        };
        match (&write.journal, last) {
            (Some(segment), Some(last)) if segment.first <= last => Err(LedgerError::invalid(format!(
                "the journal of run {run_no} has a segment that begins with {last}, so the next cannot begin with {}",
                segment.first
            ))),
            _ => Ok(deleted),
        }
    }

    fn journal_end(&mut self, run_no: u64) -> Result<Option<u64>, LedgerError> {
        match self.memory.active.get(&run_no).map(|active| active.journal) {
            Some(JournalEnd::At(last)) => Ok(last),
            _ => {
                let last = self.reader()?.last_segment(run_no)?;
                self.set_journal_end(run_no, last);
                Ok(last)
            }
        }
    }

    fn set_journal_end(&mut self, run_no: u64, last: Option<u64>) {
        if let Some(active) = self.memory.active.get_mut(&run_no) {
            active.journal = JournalEnd::At(last);
        }
    }

    /// Does what [`Self::check_journal`] has allowed.
    pub(crate) fn put_journal(&mut self, run_no: u64, deleted: &Rows, segment: Option<NewSegment>) {
        if !deleted.is_empty() {
            self.rows.append(deleted);
            self.journal.remove(&run_no);
            self.set_journal_end(run_no, None);
        }
        let Some(NewSegment { first, value, digests, pins }) = segment else { return };
        let key = pair(run_no, first);
        self.rows.put(Table::Journal, &key, &value);
        for digest in &digests {
            self.rows.put(Table::BlobRefs, &blob_ref(digest, BY_JOURNAL, &key), &[]);
        }
        self.outcome.pins.extend(pins);
        self.journal.entry(run_no).or_default().push((first, digests));
        self.set_journal_end(run_no, Some(first));
    }
}

impl Ledger {
    /// Segments of the journal of a run that begin with `from` or later, in order: as many as `max_bytes` hold, and at
    /// least one where there is one. A run that is not there, or whose journal was pruned, has none.
    ///
    /// Only what is committed is seen: the segment of a write when its [`crate::Commit`] has resolved.
    ///
    /// # Errors
    /// Where the ledger is damaged or not available.
    pub fn journal_page(&self, run_no: u64, from: u64, max_bytes: usize) -> Result<Vec<JournalRow>, LedgerError> {
        let mut page = Vec::new();
        let mut left = max_bytes;
        self.reader()?.segments(run_no, from, |first, blobs, bytes| {
            if bytes.len() > left && !page.is_empty() {
                return false;
            }
            left = left.saturating_sub(bytes.len());
            page.push(JournalRow { first, bytes: bytes.to_vec(), blobs: blobs.to_vec() });
            true
        })?;
        Ok(page)
    }
}

/// Whether a run has ended before this time.
pub(crate) fn ended_before(run: &Run, time: u64) -> bool {
    run.status.is_terminal() && run.finished_at.unwrap_or(run.updated_at) < time
}

#[cfg(test)]
mod tests {
    use super::*;

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
