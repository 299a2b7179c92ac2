//! Rows of [`Table::RunEvents`]: the events of a run that were written together.

use std::borrow::Cow;

use agent_host_protocol::{ResultKind, RunEvent, RunId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    error::LedgerError,
    record::NewEvent,
    rows::{
        Packed, Table, json, malformed,
        packed::{Items, MAX_PACKED_BYTES, unpack},
    },
};

/// Most bytes of an event beside its type and its data: two lengths and a time.
const EVENT_OVERHEAD: usize = 20;

/// An event in the form of its row, without its number.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredEvent<'a> {
    #[serde(borrow)]
    pub(crate) kind: Cow<'a, str>,
    pub(crate) timestamp: Timestamp,
    /// JSON.
    pub(crate) data: &'a str,
}

impl<'a> StoredEvent<'a> {
    fn of(event: &'a NewEvent) -> Self {
        Self { kind: Cow::Borrowed(&*event.kind), timestamp: event.timestamp, data: event.data.get() }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        ResultKind::from_name(&self.kind).is_some_and(ResultKind::is_terminal)
    }

    pub(crate) fn event(self, run_id: RunId, sequence: u64) -> Result<RunEvent, LedgerError> {
        let data = RawValue::from_string(self.data.to_owned()).map_err(|_| malformed(Table::RunEvents))?;
        Ok(RunEvent { run_id, kind: self.kind.into_owned(), data, sequence, timestamp: self.timestamp })
    }
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

/// Encodes events that follow each other: one row of them, or more where one would be too long.
pub(crate) fn pack_events(events: &[NewEvent]) -> Vec<Packed> {
    let bytes = |event: &NewEvent| event.kind.len() + event.data.get().len() + EVENT_OVERHEAD;
    let mut left: usize = events.iter().map(bytes).sum();
    let mut rows: Vec<Packed> = Vec::new();
    for event in events {
        let stored = StoredEvent::of(event);
        let room = left.min(MAX_PACKED_BYTES);
        left -= bytes(event);
        match rows.last_mut().filter(|row| row.bytes() + stored.kind.len() + stored.data.len() < MAX_PACKED_BYTES) {
            Some(row) => row.push(&stored),
            None => {
                let mut row = Packed::with_room(event.sequence, room.max(bytes(event)));
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
        Ok(StoredEvent { kind, timestamp, data: data.get() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(sequence: u64, data: String) -> NewEvent {
        NewEvent { sequence, kind: "message.delta".into(), data: RawValue::from_string(data).unwrap().into(), timestamp: 9 }
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
        }
        assert_eq!(read.len(), events.len());
    }

    #[test]
    fn a_row_of_formats_before_6_is_one_event() {
        let row = br#"{"t":"run.completed","at":3,"d":{"a":1}}"#;
        let events: Vec<_> = stored_events(4, row).unwrap().map(Result::unwrap).collect();
        let wanted = StoredEvent { kind: "run.completed".into(), timestamp: 3, data: r#"{"a":1}"# };
        assert!(wanted.is_terminal());
        assert_eq!(events, [(4, wanted)]);
    }
}
