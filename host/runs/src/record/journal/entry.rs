//! The format of one journal entry on disk.
//!
//! A segment of the ledger is a format byte and then entries, one after the other, in postcard. Entries of a later
//! format are refused rather than misread; variants are only ever added at the end of an enum.

use serde::{Deserialize, Serialize};

/// The format of the segments that this host writes.
pub(crate) const FORMAT: u8 = 1;

/// An entry of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Entry {
    /// The first entry: the values that the guest could see besides its calls.
    Begun {
        /// Microseconds since 1970.
        began_us: u64,
        seed: [u8; 32],
        memory_bytes: u64,
        table_elements: u64,
    },
    /// A call that was answered, effect and entry in one commit.
    Call(Call, Outcome),
    /// An effect outside the ledger is about to begin. Durable before it does.
    Started(Call, Effect),
    /// The outcome of a call, by part.
    Ended { part: u32, after_us: u64, outcome: Outcome },
    /// The start of another execution.
    Resumed {
        /// Milliseconds since 1970.
        at: u64,
    },
    /// The journal became too long: from here on nothing is recorded, so the run cannot be resumed.
    Full,
    /// The host stopped in good order, and the run with it.
    Suspended,
}

impl Entry {
    /// Says how long after the entry before it was made, in microseconds.
    pub(crate) fn set_after(&mut self, us: u64) {
        match self {
            Self::Call(call, _) | Self::Started(call, _) => call.after_us = us,
            Self::Ended { after_us, .. } => *after_us = us,
            Self::Begun { .. } | Self::Resumed { .. } | Self::Full | Self::Suspended => {}
        }
    }
}

/// A call of the guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Call {
    /// [`super::function::Function`].
    pub(crate) function: u16,
    /// 0 for what the guest called; the calls within a `tools.call-many` are numbered from 1.
    pub(crate) part: u32,
    /// Of the whole request.
    pub(crate) hash: [u8; 8],
    /// The request, with long texts cut; `None` for `results.emit`, whose request is in the events.
    pub(crate) outline: Option<String>,
    /// Microseconds since the entry before.
    pub(crate) after_us: u64,
}

/// The identity of an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Effect {
    /// Number of the call among those to models and tools; 0 where it leaves no facts.
    pub(crate) number: u64,
}

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// JSON text.
    Answer(String),
    /// JSON text of an `ApiError`.
    Refused(String),
    /// JSON text in a blob, since it is long.
    LongAnswer { sha256: [u8; 32] },
}

/// The reason why bytes are no segment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("a segment of the journal has format {0}; this host reads {FORMAT}: use the host that wrote it, or a later one")]
    Format(u8),
    #[error("a segment of the journal is damaged")]
    Damaged,
}

/// Adds an entry to a segment; an empty one becomes one by that.
pub(crate) fn write(segment: &mut Vec<u8>, entry: &Entry) {
    if segment.is_empty() {
        segment.push(FORMAT);
    }
    // Writing to memory does not fail, and no type here can.
    let encoded = postcard::to_io(entry, segment);
    debug_assert!(encoded.is_ok(), "an entry of a journal cannot be encoded");
}

/// Reads a segment.
pub(crate) fn read(segment: &[u8]) -> Result<Vec<Entry>, Unreadable> {
    let (format, mut rest) = segment.split_first().ok_or(Unreadable::Damaged)?;
    if *format != FORMAT {
        return Err(Unreadable::Format(*format));
    }
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (entry, left) = postcard::take_from_bytes(rest).map_err(|_| Unreadable::Damaged)?;
        entries.push(entry);
        rest = left;
    }
    Ok(entries)
}

/// A segment of the journal as this host writes what it has read in it, for fuzzing (`tests/fuzz`). `None` where the bytes are no
/// segment.
pub fn rewritten(segment: &[u8]) -> Option<Vec<u8>> {
    let mut written = Vec::new();
    read(segment).ok()?.iter().for_each(|entry| write(&mut written, entry));
    Some(written)
}

impl Outcome {
    /// Bytes of the outcome in the journal.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Answer(text) | Self::Refused(text) => text.len(),
            Self::LongAnswer { .. } => 32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Vec<Entry> {
        let call = |part| Call { function: 8, part, hash: [3; 8], outline: Some("{}".into()), after_us: 70_000 };
        vec![
            Entry::Begun { began_us: 1, seed: [9; 32], memory_bytes: 2, table_elements: 3 },
            Entry::Call(call(0), Outcome::Answer("null".into())),
            Entry::Started(call(1), Effect { number: 4 }),
            Entry::Ended { part: 1, after_us: 5, outcome: Outcome::Refused("{}".into()) },
            Entry::Resumed { at: 6 },
            Entry::Call(call(0), Outcome::LongAnswer { sha256: [1; 32] }),
            Entry::Full,
            Entry::Suspended,
        ]
    }

    #[test]
    fn entries_read_back() {
        let mut segment = Vec::new();
        some().iter().for_each(|entry| write(&mut segment, entry));
        assert_eq!(read(&segment).unwrap(), some());
    }

    #[test]
    fn invalid_segments_are_refused() {
        let mut segment = Vec::new();
        some().iter().for_each(|entry| write(&mut segment, entry));
        assert_eq!(read(&[]), Err(Unreadable::Damaged));
        assert_eq!(read(&segment[..segment.len() - 1]).unwrap().len(), some().len() - 1, "the last entry has one byte");
        assert_eq!(read(&segment[..segment.len() - 3]), Err(Unreadable::Damaged));
        segment[0] = 9;
        assert_eq!(read(&segment), Err(Unreadable::Format(9)));
    }

    /// Journals on disk are read by later hosts.
    #[test]
    fn the_format_does_not_change_by_accident() {
        let mut segment = Vec::new();
        write(
            &mut segment,
            &Entry::Call(
                Call { function: 300, part: 0, hash: [1, 2, 3, 4, 5, 6, 7, 8], outline: None, after_us: 300 },
                Outcome::Answer("7".into()),
            ),
        );
        assert_eq!(segment, [1, 1, 172, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 172, 2, 0, 1, b'7']);
    }
}
