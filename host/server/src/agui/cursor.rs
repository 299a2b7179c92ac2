//! Places in the record of a host run, as the AG-UI events that it was projected to have them.
//!
//! [`Cursor`] is a place in one record. A stream also has the content of child runs, each with a record of its own, so a place in
//! a stream is a [`Place`]: one in the record of the run, and one in that of each open child.

use std::{fmt, num::IntErrorKind, str::FromStr};

use super::event::Event;

/// Children in a place that a client sends, on all levels together. More than any stream has.
const MAX_CHILDREN: usize = 128;
/// Levels of children below each other.
const MAX_DEPTH: usize = 8;

/// The place of an AG-UI event in one record: the host event that it was made of, and which of those that were made of it.
///
/// Ordered as the events are. On the wire it is `{sequence}.{part}`.
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

/// The place of an AG-UI event in a stream: what a client has read so far, so that it reads on after it.
///
/// On the wire it is the cursor of the run, and behind it an entry for each open child of which something was said:
/// `{cursor}~{started}.{cursor}`. A child of that child is behind it, with one more `~`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Place {
    /// In the record of the run.
    pub(crate) cursor: Cursor,
    /// In the records of its open children, in the order of their start.
    pub(crate) children: Vec<ChildPlace>,
}

/// The place in the record of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChildPlace {
    /// The sequence number of the child's `run.child.started` in the record of its parent.
    pub(crate) started: u64,
    pub(crate) place: Place,
}

impl From<Cursor> for Place {
    fn from(cursor: Cursor) -> Self {
        Self { cursor, children: Vec::new() }
    }
}

impl Place {
    /// The place in the record of the child that began at event `started`, if anything of that child was said.
    pub(crate) fn child(&self, started: u64) -> Option<&Self> {
        self.children.iter().find(|child| child.started == started).map(|child| &child.place)
    }

    /// Likewise, of a child of a child: along `path`.
    pub(crate) fn descendant(&self, path: &[u64]) -> Option<&Self> {
        path.iter().try_fold(self, |place, started| place.child(*started))
    }

    /// The same place, with another one in the record of a child.
    pub(crate) fn with_child(mut self, started: u64, place: Self) -> Self {
        match self.children.iter_mut().find(|child| child.started == started) {
            Some(child) => child.place = place,
            None => {
                let index = self.children.partition_point(|child| child.started < started);
                self.children.insert(index, ChildPlace { started, place });
            }
        }
        self
    }

    /// The same place, with another cursor in the record of a child, along `path`.
    pub(crate) fn with_cursor(mut self, path: &[u64], cursor: Cursor) -> Self {
        self.set_cursor(path, cursor);
        self
    }

    fn set_cursor(&mut self, path: &[u64], cursor: Cursor) {
        match path.split_first() {
            None => self.cursor = cursor,
            Some((started, rest)) => {
                if let Some(child) = self.children.iter_mut().find(|child| child.started == *started) {
                    child.place.set_cursor(rest, cursor);
                }
            }
        }
    }

    fn fmt_children(&self, depth: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ChildPlace { started, place } in &self.children {
            write!(f, "{:~>depth$}{started}.{}", "", place.cursor)?;
            place.fmt_children(depth + 1, f)?;
        }
        Ok(())
    }

    /// Adds an entry of a text to the children at this depth.
    fn push(&mut self, depth: usize, entry: ChildPlace) -> Result<(), CursorError> {
        let last = self.children.last_mut();
        match (depth, last) {
            (1, last) if last.as_ref().is_none_or(|last| last.started < entry.started) => {
                self.children.push(entry);
                Ok(())
            }
            (2.., Some(last)) => last.place.push(depth - 1, entry),
            _ => Err(CursorError::Shape),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cursor.fmt(f)?;
        self.fmt_children(1, f)
    }
}

/// The reason why a text is no cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CursorError {
    /// The text has another form.
    #[error(
        "a cursor is `{{sequence}}.{{part}}`: two whole numbers, such as `12.0`; with child runs, what came with the event, such \
         as `12.0~9.4.1`"
    )]
    Shape,
    /// A number is larger than any place.
    #[error("a number of the cursor is too large")]
    TooLarge,
    /// The cursor has more children than a stream shows.
    #[error("the cursor names more child runs than a stream shows")]
    TooMany,
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let (sequence, part) = text.split_once('.').ok_or(CursorError::Shape)?;
        Ok(Self { sequence: number(sequence)?, part: number(part)? })
    }
}

impl FromStr for Place {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let mut entries = text.split('~');
        let mut place = Self::from(entries.next().unwrap_or_default().parse::<Cursor>()?);
        let (mut depth, mut count) = (1, 0);
        for entry in entries {
            if entry.is_empty() {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(CursorError::TooMany);
                }
                continue;
            }
            count += 1;
            if count > MAX_CHILDREN {
                return Err(CursorError::TooMany);
            }
            let (started, cursor) = entry.split_once('.').ok_or(CursorError::Shape)?;
            place.push(depth, ChildPlace { started: number(started)?, place: cursor.parse::<Cursor>()?.into() })?;
            depth = 1;
        }
        if depth == 1 { Ok(place) } else { Err(CursorError::Shape) }
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
    pub(crate) at: Place,
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
    fn places_in_records_of_children_read_back() {
        let at = |text: &str| Place::from(text.parse::<Cursor>().unwrap());
        let deep = at("4.0").with_child(2, at("3.1"));
        let place = at("12.3").with_child(9, at("1.0")).with_child(7, deep);
        assert_eq!(place.to_string(), "12.3~7.4.0~~2.3.1~9.1.0");
        assert_eq!(place.to_string().parse(), Ok(place.clone()));
        assert_eq!(place.descendant(&[7, 2]), Some(&at("3.1")));
        assert_eq!((place.child(9), place.descendant(&[9, 2])), (Some(&at("1.0")), None));
        assert_eq!(place.clone().with_child(9, at("5.5")).child(9), Some(&at("5.5")));
        // A place without children is what it was before streams had children.
        assert_eq!("12.3".parse(), Ok(at("12.3")));
    }

    #[test]
    fn other_texts_of_children_are_refused() {
        for text in
            ["1.0~", "1.0~2", "1.0~2.3", "1.0~2.3.4~", "1.0~~2.3.4", "1.0~2.3.4~2.3.4", "1.0~3.3.4~2.3.4", "1.0~2.3.4.5", "~1.0"]
        {
            assert_eq!(text.parse::<Place>(), Err(CursorError::Shape), "{text:?}");
        }
        let many = (1..=MAX_CHILDREN + 1).fold("1.0".to_owned(), |text, started| format!("{text}~{started}.1.0"));
        assert_eq!(many.parse::<Place>(), Err(CursorError::TooMany));
        assert_eq!(format!("1.0{}", "~".repeat(1_000_000)).parse::<Place>(), Err(CursorError::TooMany));
        assert_eq!("1.0~18446744073709551616.1.0".parse::<Place>(), Err(CursorError::TooLarge));
    }

    #[test]
    fn order_is_that_of_the_events() {
        let mut cursors = ["10.0", "2.11", "2.2", "0.7"].map(|text| text.parse::<Cursor>().unwrap());
        cursors.sort();
        assert_eq!(cursors.map(|cursor| cursor.to_string()), ["0.7", "2.2", "2.11", "10.0"]);
    }
}
