//! Journals that grow, that begin anew, and that are pruned.

use crate::{
    apply::{Batch, memory::JournalEnd},
    error::LedgerError,
    operation::{NewSegment, PrunableRun, PruneOperation, PrunedSegments, WriteOperation},
    record::RunChange,
    rows::{BY_JOURNAL, Rows, RunEnd, Table, blob_ref, delete_segment, ended_before, pair},
};

impl Batch<'_> {
    /// Checks the journal of a write, and returns the rows to delete first.
    pub(crate) fn check_journal(&mut self, write: &WriteOperation) -> Result<Rows, LedgerError> {
        let run_no = write.run_no;
        let mut deleted = Rows::default();
        let last = if write.changes.iter().any(|change| matches!(change, RunChange::Retry { .. })) {
            self.reader.segments(run_no, 0, |first, digests, _| {
                delete_segment(&mut deleted, run_no, first, digests);
                true
            })?;
            // The rows of this batch, which the reader does not see.
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
                let last = self.reader.last_segment(run_no)?;
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
            if let Some(part) = self.parts.get_mut(&run_no) {
                part.segments.clear();
            }
            self.set_journal_end(run_no, None);
        }
        let Some(NewSegment { first, value, digests, pins }) = segment else { return };
        let key = pair(run_no, first);
        self.parts_bytes += value.len();
        self.parts.entry(run_no).or_default().segments.push((first, value));
        for digest in &digests {
            self.rows.put(Table::BlobRefs, &blob_ref(digest, BY_JOURNAL, &key), &[]);
        }
        self.outcome.pins.extend(pins);
        self.journal.entry(run_no).or_default().push((first, digests));
        self.set_journal_end(run_no, Some(first));
    }
}

impl Batch<'_> {
    /// Deletes what is still to be deleted; gives what was.
    pub(crate) fn prune(&mut self, prune: &PruneOperation) -> Result<PrunedSegments, LedgerError> {
        let (mut found, mut unpacked) = (Vec::new(), Rows::default());
        for PrunableRun { run_no, ends, segments, .. } in &prune.runs {
            let reader = self.reader;
            if !reader.run(*run_no)?.is_some_and(|run| ended_before(&run, prune.ended_before)) {
                continue;
            }
            // An ended run takes no segments, so those that are there are those that were found. Some may have been
            // deleted meanwhile, by another pruning.
            let journal = reader.table(Table::Journal)?;
            let row = reader.run_end(*run_no)?;
            let end = row.as_ref().map(|row| RunEnd::read(row.value())).transpose()?;
            let is_in_end = |first: u64| end.as_ref().is_some_and(|end| end.has_segment(first));
            for (segment, after) in segments.iter().zip((0..segments.len()).rev()) {
                if is_in_end(segment.first) || journal.get(pair(*run_no, segment.first).as_slice())?.is_some() {
                    found.push((*run_no, *ends && after == 0, segment));
                }
            }
            if let Some(end) = end.as_ref().filter(|end| segments.iter().any(|segment| end.has_segment(segment.first))) {
                end.unpack(&mut unpacked, *run_no, |first| !self.pruned.contains(&(*run_no, first)));
            }
        }
        self.rows.append(&unpacked);
        let mut pruned = PrunedSegments::default();
        for (run_no, is_last, segment) in found {
            if !self.pruned.insert((run_no, segment.first)) {
                continue;
            }
            delete_segment(self.rows, run_no, segment.first, &segment.digests);
            pruned.runs += u64::from(is_last);
            pruned.rows += 1;
            pruned.bytes += segment.bytes;
        }
        Ok(pruned)
    }
}
