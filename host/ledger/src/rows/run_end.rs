//! Rows of [`Table::RunEnds`]: the part of a run in the batch that ended it, in one row instead of three or more.
//!
//! A run that answers at once is started, says all it says and ends in one batch: its context, its events and its journal are
//! this row. A row has a version (one byte), the own part of the context, the events with the number of the first, and at least
//! one segment of the journal with its number; each piece behind its length. What does not fit, and what earlier batches brought, is in
//! [`Table::Contexts`], [`Table::RunEvents`] and [`Table::Journal`]. Pruning the journal of the run moves the rest of the row there.

use crate::{
    error::LedgerError,
    rows::{
        Cell, PackedItems, Reader, Rows, Table, malformed, number, pair,
        piece::{put_piece, put_piece_with, take_piece},
    },
};

const VERSION: u8 = 1;

/// The largest row, in bytes: the context, some results and the journal of a run that answers at once fit several times over.
/// A page of the events of a run reads its row whole.
const MAX_RUN_END_BYTES: usize = 16 * 1024;

/// The part of a batch that belongs to one run, until the batch is finished.
#[derive(Default)]
pub(crate) struct BatchPart {
    /// The own part of the context, as a row of [`Table::Contexts`].
    pub(crate) context: Option<Vec<u8>>,
    /// The last events, as far as one row has room.
    pub(crate) events: Option<PackedItems>,
    /// Segments of the journal: the number of the first entry, and a row of [`Table::Journal`].
    pub(crate) segments: Vec<(u64, Vec<u8>)>,
}

impl BatchPart {
    /// Puts the part of a run that has ended in this batch: as one row, where it fits.
    pub(crate) fn put_end(self, rows: &mut Rows, run_no: u64) {
        if self.segments.is_empty() || self.bytes() > MAX_RUN_END_BYTES {
            return self.put(rows, run_no);
        }
        rows.put_with(Table::RunEnds, &number(run_no), |bytes| {
            bytes.push(VERSION);
            put_piece(bytes, self.context.as_deref().unwrap_or_default());
            let first = self.events.as_ref().map_or(0, |events| events.first);
            put_numbered(bytes, first, |bytes| {
                if let Some(events) = &self.events {
                    events.write(bytes);
                }
            });
            for (first, segment) in &self.segments {
                put_numbered(bytes, *first, |bytes| bytes.extend_from_slice(segment));
            }
        });
    }

    /// Puts the part as rows of their own.
    pub(crate) fn put(self, rows: &mut Rows, run_no: u64) {
        if let Some(context) = &self.context {
            rows.put(Table::Contexts, &number(run_no), context);
        }
        if let Some(events) = &self.events {
            events.put(rows, Table::RunEvents, &pair(run_no, events.first));
        }
        for (first, segment) in &self.segments {
            rows.put(Table::Journal, &pair(run_no, *first), segment);
        }
    }

    fn bytes(&self) -> usize {
        self.context.as_ref().map_or(0, Vec::len)
            + self.events.as_ref().map_or(0, PackedItems::bytes)
            + self.segments.iter().map(|(_, segment)| segment.len()).sum::<usize>()
    }
}

fn put_numbered(bytes: &mut Vec<u8>, first: u64, write: impl FnOnce(&mut Vec<u8>)) {
    bytes.extend_from_slice(&number(first));
    put_piece_with(bytes, write);
}

/// A row, as it is read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunEnd<'a> {
    /// A row of [`Table::Contexts`].
    pub(crate) context: Option<&'a [u8]>,
    /// The number of the first event, and a row of [`Table::RunEvents`].
    pub(crate) events: Option<(u64, &'a [u8])>,
    /// The number of the first entry of each segment, and a row of [`Table::Journal`].
    pub(crate) segments: Vec<(u64, &'a [u8])>,
}

impl<'a> RunEnd<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, LedgerError> {
        Self::parse(bytes).ok_or_else(|| malformed(Table::RunEnds))
    }

    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&[VERSION])?;
        let (context, rest) = take_piece(rest)?;
        let ((first, events), mut rest) = take_numbered(rest)?;
        let mut segments = Vec::with_capacity(1);
        while !rest.is_empty() {
            let (segment, left) = take_numbered(rest)?;
            segments.push(segment);
            rest = left;
        }
        Some(Self {
            context: (!context.is_empty()).then_some(context),
            events: (!events.is_empty()).then_some((first, events)),
            segments,
        })
    }

    /// True if the journal has a segment in the row that begins with this entry.
    pub(crate) fn has_segment(&self, first: u64) -> bool {
        self.segments.iter().any(|(begins, _)| *begins == first)
    }

    /// Moves the row into the tables of its pieces, without the segments that `is_kept` refuses.
    pub(crate) fn unpack(&self, rows: &mut Rows, run_no: u64, is_kept: impl Fn(u64) -> bool) {
        rows.delete(Table::RunEnds, &number(run_no));
        if let Some(context) = self.context {
            rows.put(Table::Contexts, &number(run_no), context);
        }
        if let Some((first, events)) = self.events {
            rows.put(Table::RunEvents, &pair(run_no, first), events);
        }
        for (first, segment) in self.segments.iter().filter(|(first, _)| is_kept(*first)) {
            rows.put(Table::Journal, &pair(run_no, *first), segment);
        }
    }
}

type NumberedPiece<'a> = (u64, &'a [u8]);

fn take_numbered(bytes: &[u8]) -> Option<(NumberedPiece<'_>, &[u8])> {
    let (first, rest) = bytes.split_first_chunk()?;
    let (piece, rest) = take_piece(rest)?;
    Some(((u64::from_be_bytes(*first), piece), rest))
}

impl Reader {
    /// The row of a run, for [`RunEnd::read`].
    pub(crate) fn run_end(&self, run_no: u64) -> Result<Option<Cell>, LedgerError> {
        self.table(Table::RunEnds)?.get(&number(run_no))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rows::changes;

    fn part(segments: &[(u64, Vec<u8>)]) -> BatchPart {
        BatchPart { context: Some(b"context".to_vec()), events: Some(PackedItems::new(3)), segments: segments.to_vec() }
    }

    fn tables(rows: &Rows) -> Vec<(Table, Vec<u8>, bool)> {
        changes(rows.bytes()).map(|change| change.unwrap()).map(|c| (c.table, c.key.to_vec(), c.value.is_some())).collect()
    }

    #[test]
    fn a_small_end_is_one_row_that_reads_back_and_unpacks() {
        let mut rows = Rows::default();
        part(&[(1, b"one".to_vec()), (5, b"two".to_vec())]).put_end(&mut rows, 9);
        let (mut events, row) = (Vec::new(), changes(rows.bytes()).next().unwrap().unwrap());
        PackedItems::new(3).write(&mut events);
        let end = RunEnd::read(row.value.unwrap()).unwrap();
        assert_eq!((row.table, rows.count()), (Table::RunEnds, 1));
        assert_eq!(
            end,
            RunEnd { context: Some(b"context"), events: Some((3, &events)), segments: vec![(1, &b"one"[..]), (5, &b"two"[..])] }
        );
        let mut unpacked = Rows::default();
        end.unpack(&mut unpacked, 9, |first| first == 5);
        assert_eq!(
            tables(&unpacked),
            [
                (Table::RunEnds, number(9).to_vec(), false),
                (Table::Contexts, number(9).to_vec(), true),
                (Table::RunEvents, pair(9, 3).to_vec(), true),
                (Table::Journal, pair(9, 5).to_vec(), true),
            ]
        );
    }

    #[test]
    fn an_end_without_a_journal_or_without_room_has_rows_of_its_own() {
        for segments in [vec![], vec![(1, vec![0; MAX_RUN_END_BYTES])]] {
            let mut rows = Rows::default();
            part(&segments).put_end(&mut rows, 9);
            assert!(tables(&rows).iter().all(|(table, ..)| *table != Table::RunEnds));
            assert_eq!(rows.count(), 2 + segments.len() as u64);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = RunEnd::read(&[&[VERSION][..], &bytes].concat());
        }
    }
}
