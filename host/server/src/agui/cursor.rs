//! Places in the record of a host run, as the AG-UI events that it was projected to have them.

use std::{fmt, num::IntErrorKind, str::FromStr};

use super::event::Event;

/// The place of an AG-UI event: the host event that it was made of, and which of those that were made of it.
///
/// Ordered as the events are. On the wire it is `{sequence}.{part}`: what a client has read so far, so that it reads on
/// after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Cursor {
    /// The sequence number of the host event in its run.
    pub(crate) sequence: u64,
    /// Index among the AG-UI events of that host event, from 0.
    pub(crate) part: u32,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.sequence, self.part)
    }
}

/// The reason why a text is no cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CursorError {
    /// The text is not two whole numbers with a dot between.
    #[error("a cursor is `{{sequence}}.{{part}}`: two whole numbers, such as `12.0`")]
    Shape,
    /// A number is larger than any place.
    #[error("a number of the cursor is too large")]
    TooLarge,
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let (sequence, part) = text.split_once('.').ok_or(CursorError::Shape)?;
        Ok(Self { sequence: number(sequence)?, part: number(part)? })
    }
}

/// Digits only: `u64::from_str` also takes a `+`, and two texts of one place would not compare equal.
fn number<N: FromStr<Err = std::num::ParseIntError>>(digits: &str) -> Result<N, CursorError> {
    let canonical = digits == "0" || !digits.starts_with('0');
    if !canonical || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(CursorError::Shape);
    }
    digits.parse().map_err(|error: std::num::ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => CursorError::TooLarge,
        _ => CursorError::Shape,
    })
}

/// An event, and its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StampedEvent {
    pub(crate) event: Event,
    pub(crate) at: Cursor,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_read_back() {
        for cursor in [Cursor::default(), Cursor { sequence: 12, part: 3 }, Cursor { sequence: u64::MAX, part: u32::MAX }] {
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        assert_eq!(Cursor { sequence: 12, part: 3 }.to_string(), "12.3");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", ".", "1", "1.", ".1", "1.2.3", "+1.0", "-1.0", "1. 0", "01.0", "1.00", "a.b", "1,0"] {
            assert_eq!(text.parse::<Cursor>(), Err(CursorError::Shape), "{text:?}");
        }
        for text in ["18446744073709551616.0", "0.4294967296"] {
            assert_eq!(text.parse::<Cursor>(), Err(CursorError::TooLarge), "{text:?}");
        }
    }

    #[test]
    fn order_is_that_of_the_events() {
        let mut cursors = ["10.0", "2.11", "2.2", "0.7"].map(|text| text.parse::<Cursor>().unwrap());
        cursors.sort();
        assert_eq!(cursors.map(|cursor| cursor.to_string()), ["0.7", "2.2", "2.11", "10.0"]);
    }
}
