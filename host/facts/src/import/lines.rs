//! The events in a text: JSON lines, one JSON array, or the lines of server-sent events.

use std::fmt;

use serde::{
    Deserializer,
    de::{SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

/// Longest native event, in bytes: a whole state of a graph with the documents in it.
pub const MAX_EVENT_BYTES: usize = 4 << 20;

/// Most native events in a text: each has a place in memory besides its bytes, and a run has no more results.
pub const MAX_EVENTS: usize = 1_000_000;

/// The refusal of a text with native events. The numbers count events from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NativeError {
    /// The event is no JSON, nests deeper than 127 levels, or ends too early.
    #[error("native event {number} is no JSON value: {reason}; send one value a line, or one array")]
    Syntax {
        /// The event.
        number: u64,
        /// The reason.
        reason: String,
    },
    /// The event is too long.
    #[error("native event {number} has {bytes} bytes, and the largest has {MAX_EVENT_BYTES}: leave out what it repeats")]
    TooLarge {
        /// The event.
        number: u64,
        /// The size of the event.
        bytes: usize,
    },
    /// The text has more events than [`MAX_EVENTS`].
    #[error("there are more than {MAX_EVENTS} native events: send the events of one run alone")]
    TooMany,
    /// The text has no event.
    #[error("there is no native event: send one JSON value a line, or one array")]
    Empty,
}

/// The events of a text, as their JSON, in order. A text that begins with `[` and is one array has its items; another has one
/// event a line, where blank lines, the frame of server-sent events (`data:`, `event:`, `id:`, `retry:`, comments) and their
/// `[DONE]` do not count.
///
/// # Errors
/// [`NativeError`], by the number of the first event that is refused; `first` is the number of the first event.
pub fn events(text: &str, first: u64) -> Result<Vec<&str>, NativeError> {
    let trimmed = text.trim();
    let events: Vec<&str> = match items_of(trimmed) {
        // One line of a stream of LangGraph is an array as well: a stream mode and its part.
        Some(items) if !is_single_event(&items) => items,
        _ => text.lines().filter_map(event_of_line).take(MAX_EVENTS + 1).collect(),
    };
    match events.len() {
        0 => return Err(NativeError::Empty),
        count if count > MAX_EVENTS => return Err(NativeError::TooMany),
        _ => {}
    }
    for (number, event) in (first..).zip(&events) {
        if event.len() > MAX_EVENT_BYTES {
            return Err(NativeError::TooLarge { number, bytes: event.len() });
        }
    }
    Ok(events)
}

/// The value of an event.
///
/// # Errors
/// [`NativeError::Syntax`].
pub fn parse(event: &str, number: u64) -> Result<Value, NativeError> {
    serde_json::from_str(event).map_err(|error| NativeError::Syntax { number, reason: error.to_string() })
}

/// The items of a text that is one array, each as its JSON; `None` for another text. At most one more than [`MAX_EVENTS`] are kept.
fn items_of(text: &str) -> Option<Vec<&str>> {
    struct Items;

    impl<'de> Visitor<'de> for Items {
        type Value = Vec<&'de str>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = seq.next_element::<&RawValue>()? {
                if items.len() <= MAX_EVENTS {
                    items.push(item.get());
                }
            }
            Ok(items)
        }
    }

    if !text.starts_with('[') {
        return None;
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let items = deserializer.deserialize_seq(Items).ok()?;
    deserializer.end().ok().map(|()| items)
}

/// True for an array that is an event itself: its first item is a text (a stream mode), or a namespace before one.
fn is_single_event(items: &[&str]) -> bool {
    let is_text = |item: Option<&&str>| item.is_some_and(|item| item.starts_with('"'));
    let is_list = |item: Option<&&str>| item.is_some_and(|item| item.starts_with('['));
    is_text(items.first()) || items.len() == 3 && is_list(items.first()) && is_text(items.get(1))
}

/// The event of a line; `None` for a line without one.
fn event_of_line(line: &str) -> Option<&str> {
    let line = line.trim_start_matches('\u{feff}').trim();
    if line.is_empty() || line.starts_with(':') {
        return None;
    }
    if ["event:", "id:", "retry:"].iter().any(|field| line.starts_with(field)) {
        return None;
    }
    let event = line.strip_prefix("data:").map_or(line, str::trim);
    (!event.is_empty() && event != "[DONE]").then_some(event)
}
