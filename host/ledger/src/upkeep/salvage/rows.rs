//! Reading the rows of a damaged table: around the pages that cannot be read.
//!
//! Reading from both ends finds all rows but those between the first and the last damaged page. What is between is divided
//! into halves by the first sixteen bytes of the keys, which are numbers or ids, again and again: the widest gaps first, so that
//! a bounded number of tries finds most.

use std::{collections::VecDeque, ops::Bound};

use crate::{
    error::LedgerError,
    rows::{Cell, Range, Reader, Table},
};

/// Gaps of one table that are tried: some milliseconds, and far more than damaged pages that an operator would not restore a
/// backup for.
const TRIES: usize = 2_000;

/// Called with each row that can be read.
type Each<'a, E> = dyn FnMut(&[u8], &[u8]) -> Result<(), E> + 'a;

/// Keys whose rows were not read yet, as prefixes of keys: from the first to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    from: u128,
    /// `None` to the end of the table.
    to: Option<u128>,
}

/// Hands every row that can be read to `each`, in no order. True if nothing was in the way.
pub(super) fn each_row<E>(reader: &Reader, table: Table, each: &mut Each<'_, E>) -> Result<bool, E> {
    let mut gaps = VecDeque::from([Gap { from: 0, to: None }]);
    let mut is_whole = true;
    for _ in 0..TRIES {
        let Some(gap) = gaps.pop_front() else { break };
        let Some(left) = read(reader, table, gap, each)? else { continue };
        is_whole = false;
        gaps.extend(left.halves().into_iter().flatten());
    }
    Ok(is_whole)
}

/// The first sixteen bytes of a key, as a number of the same order.
fn prefix(key: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    u128::from_be_bytes(bytes)
}

/// The least key with this prefix: short keys end before the zeros.
fn start_of(prefix: &[u8; 16]) -> &[u8] {
    let len = prefix.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    prefix.get(..len).unwrap_or(prefix)
}

impl Gap {
    /// `None` where the keys of the gap have one prefix.
    fn halves(self) -> Option<[Self; 2]> {
        let top = self.to.unwrap_or(u128::MAX);
        let middle = self.from.saturating_add(top.saturating_sub(self.from) / 2);
        let halves = [Self { from: self.from, to: Some(middle) }, Self { from: middle, to: self.to }];
        (self.from < middle && middle < top).then_some(halves)
    }
}

/// Reads a gap from both ends; gives what is left of it between damaged pages.
fn read<E>(reader: &Reader, table: Table, gap: Gap, each: &mut Each<'_, E>) -> Result<Option<Gap>, E> {
    let from = gap.from.to_be_bytes();
    let to = gap.to.map(u128::to_be_bytes);
    let end = to.as_ref().map_or(Bound::Unbounded, |to| Bound::Excluded(start_of(to)));
    let range = |begin: Bound<&[u8]>| reader.merged(table).and_then(|rows| rows.range((begin, end)));
    let front = take(range(Bound::Included(start_of(&from))), Range::next, each)?;
    if front.is_whole {
        return Ok(None);
    }
    let begin = front.last.as_deref().map_or(Bound::Included(start_of(&from)), Bound::Excluded);
    let back = take(range(begin), Range::next_back, each)?;
    Ok(Some(Gap {
        from: front.last.map_or(gap.from, |key| prefix(&key).saturating_add(1)),
        to: back.last.map(|key| prefix(&key)).or(gap.to),
    }))
}

/// Rows that were read in one direction.
struct Taken {
    /// False where a row could not be read.
    is_whole: bool,
    last: Option<Vec<u8>>,
}

fn take<E>(
    rows: Result<Range, LedgerError>,
    next: impl Fn(&mut Range) -> Option<Result<(Cell, Cell), LedgerError>>,
    each: &mut Each<'_, E>,
) -> Result<Taken, E> {
    let mut taken = Taken { is_whole: false, last: None };
    let Ok(mut rows) = rows else { return Ok(taken) };
    let mut direction = None;
    loop {
        let (key, value) = match next(&mut rows) {
            None => return Ok(Taken { is_whole: true, ..taken }),
            Some(Err(_)) => return Ok(taken),
            Some(Ok(row)) => row,
        };
        // A page that points to one before it would go round for ever.
        let order = taken.last.as_deref().map(|last| key.value().cmp(last));
        if order.is_some_and(|order| order.is_eq() || direction.is_some_and(|before| before != order)) {
            return Ok(taken);
        }
        direction = direction.or(order);
        each(key.value(), value.value())?;
        taken.last = Some(key.value().to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_divided_until_their_keys_have_one_prefix() {
        let gap = Gap { from: 5, to: Some(9) };
        assert_eq!(gap.halves(), Some([Gap { from: 5, to: Some(7) }, Gap { from: 7, to: Some(9) }]));
        assert_eq!(Gap { from: 5, to: Some(6) }.halves(), None);
        assert_eq!(Gap { from: 9, to: Some(5) }.halves(), None);
        assert!(Gap { from: u128::MAX, to: None }.halves().is_none());
        let key = 60u64.to_be_bytes();
        assert_eq!(start_of(&prefix(&key).to_be_bytes()), key);
        assert_eq!(start_of(&0u128.to_be_bytes()), b"");
        assert_eq!(prefix(b"a long key that goes on"), prefix(b"a long key that "));
    }
}
