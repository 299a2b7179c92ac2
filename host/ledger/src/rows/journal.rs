//! Rows of journals: segments, and the blobs that they name.

use agent_host_protocol::Run;

use crate::{
    digest::Digest,
    error::LedgerError,
    rows::{BY_JOURNAL, Reader, Rows, RunEnd, Table, blob_ref, malformed, pair, read_pair},
};

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

/// True if a run has ended before this time.
pub(crate) fn ended_before(run: &Run, time: u64) -> bool {
    run.status.is_terminal() && run.finished_at.unwrap_or(run.updated_at) < time
}

impl Reader {
    /// `first` of the last segment of a run that has not ended.
    pub(crate) fn last_segment(&self, run_no: u64) -> Result<Option<u64>, LedgerError> {
        let rows = self.table(Table::Journal)?;
        let range = pair(run_no, 0)..=pair(run_no, u64::MAX);
        let Some(row) = rows.range(range.start().as_slice()..=range.end().as_slice())?.next_back() else {
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
        for row in rows.range(range.start().as_slice()..=range.end().as_slice())? {
            let (key, value) = row?;
            let (_, first) = read_pair(key.value()).ok_or_else(|| malformed(Table::Journal))?;
            let (digests, bytes) = read_segment(value.value()).ok_or_else(|| malformed(Table::Journal))?;
            if !each(first, digests, bytes) {
                return Ok(());
            }
        }
        // The segments of the end are the last ones.
        let Some(end) = self.run_end(run_no)? else { return Ok(()) };
        for (first, segment) in RunEnd::read(end.value())?.segments {
            let (digests, bytes) = read_segment(segment).ok_or_else(|| malformed(Table::RunEnds))?;
            if first >= from && !each(first, digests, bytes) {
                break;
            }
        }
        Ok(())
    }
}
