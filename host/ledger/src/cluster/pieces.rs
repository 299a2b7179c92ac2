//! The pieces of a snapshot: rows of one table, in the order of keys.
//!
//! A piece is `table u8 | rows`, and a row `length of the key u32 | length of the value u32 | key | value`. The cuts between pieces
//! depend on the keys, so that two snapshots have the same pieces wherever they have the same rows, also behind rows that only one of
//! them has; a piece of known content is not sent again.

use xxhash_rust::xxh3::xxh3_64;

use crate::rows::Table;

/// Bytes after which a piece ends with the next row.
const MOST: usize = 1024 * 1024;
/// Bytes before which a piece has no cut that depends on its keys.
const LEAST: usize = 128 * 1024;
/// One key of so many is a cut: a piece of small rows has some 150 KB, one of large rows 1 MiB.
const CUT: u64 = 256;

/// The rows of a piece in the making.
pub(crate) struct Piece {
    bytes: Vec<u8>,
}

impl Piece {
    pub(crate) fn of(table: Table) -> Self {
        Self { bytes: vec![table.id()] }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() <= 1
    }

    /// Adds a row. True if the piece ends with it.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) -> bool {
        // Keys and values have far fewer bytes than a `u32` counts.
        for part in [key, value] {
            self.bytes.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        }
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.bytes.len() >= MOST || (self.bytes.len() >= LEAST && xxh3_64(key).is_multiple_of(CUT))
    }

    /// The bytes of the piece, which has no rows afterwards.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let next = self.bytes.get(..1).unwrap_or_default().to_vec();
        std::mem::replace(&mut self.bytes, next)
    }
}

/// Keys and values of rows.
type PieceRows<'a> = Vec<(&'a [u8], &'a [u8])>;

/// The table and the rows of a piece. `None` where the bytes are not those of a piece.
pub(crate) fn read_piece(bytes: &[u8]) -> Option<(Table, PieceRows<'_>)> {
    let (table, mut rest) = bytes.split_first()?;
    let mut rows = Vec::new();
    while !rest.is_empty() {
        let (key, after) = rest.split_first_chunk::<4>()?;
        let (value, after) = after.split_first_chunk::<4>()?;
        let (key, after) = after.split_at_checked(usize::try_from(u32::from_be_bytes(*key)).ok()?)?;
        let (value, after) = after.split_at_checked(usize::try_from(u32::from_be_bytes(*value)).ok()?)?;
        rows.push((key, value));
        rest = after;
    }
    Some((Table::from_id(*table)?, rows))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn pieces(rows: &[([u8; 8], Vec<u8>)]) -> Vec<Vec<u8>> {
        let (mut piece, mut pieces) = (Piece::of(Table::State), Vec::new());
        for (key, value) in rows {
            if piece.add(key, value) {
                pieces.push(piece.take());
            }
        }
        if !piece.is_empty() {
            pieces.push(piece.take());
        }
        pieces
    }

    #[test]
    fn pieces_read_back_and_one_row_more_changes_few_of_them() {
        let mut rows: Vec<_> = (0..40_000u64).map(|key| ((key * 10).to_be_bytes(), vec![key as u8; 200])).collect();
        let before = pieces(&rows);
        assert!(before.len() > 20 && before.iter().all(|piece| piece.len() <= MOST + 300), "{}", before.len());
        let read: Vec<_> = before.iter().flat_map(|piece| read_piece(piece).unwrap().1).collect();
        assert!(read.iter().zip(&rows).all(|(read, row)| read.0 == row.0 && read.1 == row.1) && read.len() == rows.len());
        rows.insert(3, (25u64.to_be_bytes(), vec![7; 200]));
        let known: HashSet<_> = before.iter().collect();
        let new = pieces(&rows).iter().filter(|piece| !known.contains(piece)).count();
        assert!((1..=3).contains(&new), "{new} of {}", before.len());
    }

    #[test]
    fn a_piece_of_other_bytes_is_none() {
        let mut piece = Piece::of(Table::Runs);
        assert!(!piece.add(b"key", b"value"));
        let bytes = piece.take();
        assert!(piece.is_empty() && read_piece(&bytes).is_some());
        assert!((2..bytes.len()).all(|end| read_piece(&bytes[..end]).is_none()));
        assert!(read_piece(&[]).is_none() && read_piece(&[255]).is_none());
        assert!(read_piece(&[[2].as_slice(), &[255; 8]].concat()).is_none());
    }
}
