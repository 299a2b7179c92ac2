//! Rows of [`Table::RunEvents`]: the events of a run that were written together.

use std::borrow::Cow;

use agent_host_protocol::{EventSource, RecordDigest, ResultKind, RunEvent, RunId, Timestamp, record_digest::DigestedEvent};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    error::LedgerError,
    record::{AppendMark, NewEvent},
    rows::{
        PackedItems, Table, json, malformed,
        packed::{Item, Items, MAX_PACKED_BYTES, unpack},
    },
};

/// Most bytes of an event beside its texts: three lengths, a time and the source.
const EVENT_OVERHEAD: usize = 26;

/// An event in the form of its row, without its number.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredEvent<'a> {
    #[serde(borrow)]
    pub(crate) kind: Cow<'a, str>,
    pub(crate) timestamp: Timestamp,
    /// JSON.
    pub(crate) data: &'a str,
    /// The place of the source in [`EventSource::ALL`].
    pub(crate) source: u8,
    /// JSON: metadata, or an [`AppendMark`] with it; empty for an event without either.
    pub(crate) metadata: &'a str,
}

/// An event of a row of format 6 or 7.
#[derive(Deserialize)]
struct Sourceless<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    timestamp: Timestamp,
    data: &'a str,
}

impl<'a> Item<'a> for StoredEvent<'a> {
    const VERSION: u8 = 2;

    fn read(version: u8, bytes: &'a [u8]) -> postcard::Result<(Self, &'a [u8])> {
        match version {
            1 => postcard::take_from_bytes(bytes)
                .map(|(Sourceless { kind, timestamp, data }, rest)| (Self::without_source(kind, timestamp, data), rest)),
            _ => postcard::take_from_bytes(bytes),
        }
    }
}

impl<'a> StoredEvent<'a> {
    fn of(event: &'a NewEvent) -> Self {
        Self {
            kind: Cow::Borrowed(&*event.kind),
            timestamp: event.timestamp,
            data: event.data.get(),
            source: number_of(event.source),
            metadata: event.metadata.as_ref().map_or("", |metadata| metadata.get()),
        }
    }

    /// An event of a row without the sources of its events.
    fn without_source(kind: Cow<'a, str>, timestamp: Timestamp, data: &'a str) -> Self {
        let source = number_of(EventSource::of_stored(&kind));
        Self { kind, timestamp, data, source, metadata: "" }
    }

    fn bytes(&self) -> usize {
        self.kind.len() + self.data.len() + self.metadata.len() + EVENT_OVERHEAD
    }

    pub(crate) fn is_terminal(&self) -> bool {
        ResultKind::from_name(&self.kind).is_some_and(ResultKind::is_terminal)
    }

    /// The parts that the digest of the record covers.
    pub(crate) fn digested(&self, sequence: u64) -> Result<DigestedEvent<'_>, LedgerError> {
        let (_, metadata) = AppendMark::split(self.metadata);
        let source = *EventSource::ALL.get(usize::from(self.source)).ok_or_else(|| malformed(Table::RunEvents))?;
        Ok(DigestedEvent { sequence, kind: &self.kind, timestamp: self.timestamp, source, data: self.data, metadata })
    }

    pub(crate) fn event(self, run_id: RunId, sequence: u64) -> Result<RunEvent, LedgerError> {
        let json = |text: &str| RawValue::from_string(text.to_owned()).map_err(|_| malformed(Table::RunEvents));
        let data = json(self.data)?;
        let (_, metadata) = AppendMark::split(self.metadata);
        let metadata = if metadata.is_empty() { None } else { Some(json(metadata)?) };
        let source = *EventSource::ALL.get(usize::from(self.source)).ok_or_else(|| malformed(Table::RunEvents))?;
        Ok(RunEvent { run_id, kind: self.kind.into_owned(), data, sequence, timestamp: self.timestamp, source, metadata })
    }
}

/// The number that a row has for a source.
fn number_of(source: EventSource) -> u8 {
    EventSource::ALL.iter().position(|other| *other == source).and_then(|place| u8::try_from(place).ok()).unwrap_or_default()
}

/// The only event of a row of formats before 6, as JSON.
#[derive(Deserialize)]
struct Single<'a> {
    #[serde(rename = "t", borrow)]
    kind: Cow<'a, str>,
    #[serde(rename = "at")]
    timestamp: Timestamp,
    #[serde(rename = "d", borrow)]
    data: &'a RawValue,
}

/// The digest of a record after these events.
///
/// # Errors
/// For a row that cannot be read.
pub(crate) fn digest_after(digest: RecordDigest, events: &[PackedItems]) -> Result<RecordDigest, LedgerError> {
    let mut items = events.iter().flat_map(|row| row.items::<StoredEvent<'_>>(Table::RunEvents));
    items.try_fold(digest, |digest, item| {
        let (sequence, event) = item?;
        Ok(digest.and(event.digested(sequence)?))
    })
}

/// Encodes events that follow each other: one row of them, or more where one would be too long.
pub(crate) fn pack_events(events: &[NewEvent]) -> Vec<PackedItems> {
    let mut left: usize = events.iter().map(|event| StoredEvent::of(event).bytes()).sum();
    let mut rows: Vec<PackedItems> = Vec::new();
    for event in events {
        let stored = StoredEvent::of(event);
        let bytes = stored.bytes();
        let room = left.min(MAX_PACKED_BYTES);
        left -= bytes;
        match rows.last_mut().filter(|row| row.bytes() + bytes - EVENT_OVERHEAD < MAX_PACKED_BYTES) {
            Some(row) => row.push(&stored),
            None => {
                let mut row = PackedItems::with_room(event.sequence, room.max(bytes));
                row.push(&stored);
                rows.push(row);
            }
        }
    }
    rows
}

/// The events of a row whose first one has the number `first`, each with its number.
pub(crate) fn stored_events(first: u64, value: &[u8]) -> Result<Items<'_, StoredEvent<'_>>, LedgerError> {
    unpack(Table::RunEvents, first, value, |value| {
        let Single { kind, timestamp, data } = json(Table::RunEvents, value)?;
        Ok(StoredEvent::without_source(kind, timestamp, data.get()))
    })
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::encoded::JsonText;

    use super::*;

    fn event(sequence: u64, data: String) -> NewEvent {
        NewEvent {
            sequence,
            kind: "message.delta".into(),
            data: RawValue::from_string(data).unwrap().into(),
            timestamp: 9,
            source: EventSource::Executor,
            metadata: (sequence == 6).then(JsonText::empty_object),
        }
    }

    #[test]
    fn events_read_back_from_as_few_rows_as_hold_them() {
        let long = format!("\"{}\"", "x".repeat(MAX_PACKED_BYTES));
        let data = ["1".to_owned(), long.clone(), "2".to_owned(), "3".to_owned()];
        let events: Vec<_> = (5..).zip(&data).map(|(sequence, data)| event(sequence, data.clone())).collect();
        let rows = pack_events(&events);
        assert_eq!(rows.iter().map(|row| row.first).collect::<Vec<_>>(), [5, 6, 7]);
        let mut read = Vec::new();
        for row in &rows {
            let mut value = Vec::new();
            row.write(&mut value);
            read.extend(stored_events(row.first, &value).unwrap().map(|event| {
                let (sequence, event) = event.unwrap();
                event.event(RunId::new(), sequence).unwrap()
            }));
        }
        for (read, event) in read.iter().zip(&events) {
            assert_eq!((read.sequence, &*read.kind, read.data.get()), (event.sequence, &*event.kind, event.data.get()));
            let metadata = event.metadata.as_ref().map(JsonText::get);
            assert_eq!((read.source, read.metadata.as_deref().map(RawValue::get)), (event.source, metadata));
        }
        assert_eq!(read.len(), events.len());
    }

    #[test]
    fn a_row_of_formats_before_6_is_one_event() {
        let row = br#"{"t":"run.completed","at":3,"d":{"a":1}}"#;
        let events: Vec<_> = stored_events(4, row).unwrap().map(Result::unwrap).collect();
        let wanted = StoredEvent::without_source("run.completed".into(), 3, r#"{"a":1}"#);
        assert!(wanted.is_terminal());
        assert_eq!(events, [(4, wanted)]);
    }

    #[test]
    fn the_source_of_an_event_of_format_7_follows_from_its_type() {
        let stored = [("message.delta", EventSource::Runner), ("run.failed", EventSource::Host)];
        let stored = stored.into_iter().chain([("action.answered", EventSource::Person)]);
        for (kind, source) in stored {
            let mut row = [&[1][..], &1_u32.to_be_bytes()].concat();
            row.extend(postcard::to_stdvec(&(kind, 7_u64, "{}")).unwrap());
            let (sequence, event) = stored_events(2, &row).unwrap().next().unwrap().unwrap();
            let event = event.event(RunId::new(), sequence).unwrap();
            assert_eq!((event.sequence, event.timestamp, event.source), (2, 7, source), "{kind}");
        }
        assert!(stored_events(2, &[3, 0, 0, 0, 0]).is_err(), "a version that this one does not know");
    }
}
