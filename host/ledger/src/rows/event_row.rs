//! Rows of [`Table::Events`]: an event, its runs with their terms, and its place in its conversation.
//!
//! Numbers are big-endian. A row is
//!
//! | bytes | field |
//! |---|---|
//! | 1 | version |
//! | 16 | id of the event |
//! | 8 | number of its conversation; 0 for an event that is listed in none |
//! | 8 | number of the event, as in the key |
//! | 8 | its place in the transcript; 0 for an event without an item |
//! | 4 + n | type |
//! | 4 + n | JSON of the event |
//! | 2 + n, 4 + n | key and row of the conversation that the event begins; empty for an existing conversation |
//! | (16 + 8 + 4 + n) × | id, number and terms of each run, to the end of the row |
//!
//! The rows of [`Table::EventIds`], [`Table::RunIds`], [`Table::ConversationEvents`] and of the new conversation in
//! [`Table::Conversations`] are pieces of these bytes: the log has no rows of them ([`index_rows`]).
//!
//! Formats before 9 had JSON, with the terms in [`Table::Terms`]: such a row begins with `{`.

use agent_host_protocol::{EventId, RunId};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    error::LedgerError,
    record::EventRecord,
    rows::{
        Table, json, malformed, number,
        piece::{put_piece, put_piece_with},
    },
};

const VERSION: u8 = 1;

/// A row, without its runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventRow<'a> {
    pub(crate) event_no: u64,
    pub(crate) event_id: EventId,
    pub(crate) conversation_no: Option<u64>,
    pub(crate) transcript_seq: Option<u64>,
    pub(crate) event_type: &'a str,
    /// JSON.
    pub(crate) event: &'a [u8],
    /// Key and row of the conversation that the event begins.
    pub(crate) begins: Option<(&'a [u8], &'a [u8])>,
}

/// A run of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventRun<'a> {
    pub(crate) run_no: u64,
    pub(crate) id: RunId,
    /// A row of terms in parts; `None` if [`Table::Terms`] has it.
    pub(crate) terms: Option<&'a [u8]>,
}

/// A row of formats before 9.
#[derive(Deserialize)]
struct JsonRow<'a> {
    #[serde(default)]
    runs: Vec<(u64, RunId)>,
    #[serde(default)]
    transcript_seq: Option<u64>,
    #[serde(borrow)]
    event: &'a RawValue,
}

/// The id in the JSON of an event.
#[derive(Deserialize)]
struct EventHead {
    event_id: EventId,
}

impl<'a> EventRow<'a> {
    /// Reads a row and its runs.
    pub(crate) fn read(event_no: u64, bytes: &'a [u8]) -> Result<(Self, Vec<EventRun<'a>>), LedgerError> {
        if bytes.first() == Some(&b'{') {
            return Self::read_json(event_no, bytes);
        }
        let mut places = Places::new(bytes);
        let row = Pieces::read(&mut places).ok_or_else(|| malformed(Table::Events))?;
        let runs = std::iter::from_fn(|| (!places.is_at_end()).then(|| RunPieces::read(&mut places)))
            .map(|run| run.and_then(|run| run.run(bytes)).ok_or_else(|| malformed(Table::Events)))
            .collect::<Result<Vec<_>, _>>()?;
        Ok((row.row(event_no, bytes).ok_or_else(|| malformed(Table::Events))?, runs))
    }

    fn read_json(event_no: u64, bytes: &'a [u8]) -> Result<(Self, Vec<EventRun<'a>>), LedgerError> {
        let JsonRow { runs, transcript_seq, event } = json(Table::Events, bytes)?;
        let event = event.get().as_bytes();
        let EventHead { event_id } = json(Table::Events, event)?;
        // The event has its row in the list of its conversation, so neither is needed when the row is written again.
        let (conversation_no, event_type) = (None, "");
        let row = Self { event_no, event_id, conversation_no, transcript_seq, event_type, event, begins: None };
        Ok((row, runs.into_iter().map(|(run_no, id)| EventRun { run_no, id, terms: None }).collect()))
    }

    /// Appends the row; `runs` appends the runs.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>, runs: impl FnOnce(&mut EventRuns<'_>)) {
        let (key, conversation) = self.begins.unwrap_or_default();
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.event_id.to_bytes());
        bytes.extend_from_slice(&number(self.conversation_no.unwrap_or(0)));
        bytes.extend_from_slice(&number(self.event_no));
        bytes.extend_from_slice(&number(self.transcript_seq.unwrap_or(0)));
        put_piece(bytes, self.event_type.as_bytes());
        put_piece(bytes, self.event);
        put_piece(bytes, key);
        put_piece(bytes, conversation);
        runs(&mut EventRuns(bytes));
    }
}

/// The runs of a row that is being written.
pub(crate) struct EventRuns<'a>(&'a mut Vec<u8>);

impl EventRuns<'_> {
    /// Appends a run; `terms` appends its terms, or nothing if [`Table::Terms`] has them.
    pub(crate) fn push(&mut self, run_no: u64, id: RunId, terms: impl FnOnce(&mut Vec<u8>)) {
        self.0.extend_from_slice(&id.to_bytes());
        self.0.extend_from_slice(&number(run_no));
        put_piece_with(self.0, terms);
    }

    /// Appends a run that was read.
    pub(crate) fn keep(&mut self, run: &EventRun<'_>) {
        self.push(run.run_no, run.id, |bytes| bytes.extend_from_slice(run.terms.unwrap_or_default()));
    }
}

/// Reads an event by its number.
pub(crate) fn stored_event(event_no: u64, bytes: &[u8]) -> Result<EventRecord, LedgerError> {
    let (row, runs) = EventRow::read(event_no, bytes)?;
    let event = json(Table::Events, row.event)?;
    Ok(EventRecord { event_no, event, runs: runs.into_iter().map(|run| run.id).collect(), transcript_seq: row.transcript_seq })
}

/// A piece of the bytes of a row.
pub(crate) type Place = std::ops::Range<usize>;

/// A row of another table whose key and value are pieces of the row of an event.
pub(crate) struct IndexRow {
    pub(crate) table: Table,
    pub(crate) key: Place,
    pub(crate) value: Place,
}

/// The rows that follow from the row of an event, in each table at most one for the event and one for each run. None for a row of
/// formats before 9, whose batches have them. `None` if the bytes are no row.
pub(crate) fn index_rows(bytes: &[u8], mut each: impl FnMut(IndexRow)) -> Option<()> {
    if bytes.first() == Some(&b'{') {
        return Some(());
    }
    let mut places = Places::new(bytes);
    let row = Pieces::read(&mut places)?;
    each(IndexRow { table: Table::EventIds, key: row.event_id.clone(), value: row.event_no.clone() });
    if number_at(bytes, &row.conversation_no)? != 0 {
        let key = row.conversation_no.start..row.event_no.end;
        each(IndexRow { table: Table::ConversationEvents, key, value: row.event_type.clone() });
    }
    if !row.conversation_key.is_empty() {
        each(IndexRow { table: Table::Conversations, key: row.conversation_key, value: row.conversation });
    }
    while !places.is_at_end() {
        let run = RunPieces::read(&mut places)?;
        each(IndexRow { table: Table::RunIds, key: run.id, value: run.run_no });
    }
    Some(())
}

/// The number of the first run of an event; `None` for an event without a run.
pub(crate) fn first_run(bytes: &[u8]) -> Option<u64> {
    if bytes.first() == Some(&b'{') {
        return serde_json::from_slice::<JsonRow<'_>>(bytes).ok()?.runs.first().map(|(run_no, _)| *run_no);
    }
    let mut places = Places::new(bytes);
    Pieces::read(&mut places)?;
    number_at(bytes, &RunPieces::read(&mut places)?.run_no)
}

/// The JSON of the event of a row.
pub(crate) fn event_json(bytes: &[u8]) -> Option<&[u8]> {
    if bytes.first() == Some(&b'{') {
        return serde_json::from_slice::<JsonRow<'_>>(bytes).ok().map(|row| row.event.get().as_bytes());
    }
    bytes.get(Pieces::read(&mut Places::new(bytes))?.event)
}

/// Takes pieces off the front of a row.
struct Places<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Places<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn take(&mut self, len: usize) -> Option<Place> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len())?;
        Some(std::mem::replace(&mut self.at, end)..end)
    }

    /// A piece behind its length.
    fn take_piece(&mut self) -> Option<Place> {
        let len = self.take(4)?;
        let len = self.bytes.get(len)?.first_chunk().copied().map(u32::from_be_bytes)?;
        self.take(usize::try_from(len).ok()?)
    }
}

/// The pieces of a row.
struct Pieces {
    event_id: Place,
    conversation_no: Place,
    event_no: Place,
    transcript_seq: Place,
    event_type: Place,
    event: Place,
    conversation_key: Place,
    conversation: Place,
}

impl Pieces {
    fn read(places: &mut Places<'_>) -> Option<Self> {
        let version = places.take(1)?;
        (places.bytes.get(version)? == [VERSION]).then_some(())?;
        Some(Self {
            event_id: places.take(16)?,
            conversation_no: places.take(8)?,
            event_no: places.take(8)?,
            transcript_seq: places.take(8)?,
            event_type: places.take_piece()?,
            event: places.take_piece()?,
            conversation_key: places.take_piece()?,
            conversation: places.take_piece()?,
        })
    }

    fn row<'a>(self, event_no: u64, bytes: &'a [u8]) -> Option<EventRow<'a>> {
        let piece = |place: Place| bytes.get(place);
        let some = |number: u64| (number != 0).then_some(number);
        (number_at(bytes, &self.event_no)? == event_no).then_some(())?;
        Some(EventRow {
            event_no,
            event_id: EventId::from_bytes(piece(self.event_id)?.try_into().ok()?),
            conversation_no: some(number_at(bytes, &self.conversation_no)?),
            transcript_seq: some(number_at(bytes, &self.transcript_seq)?),
            event_type: std::str::from_utf8(piece(self.event_type)?).ok()?,
            event: piece(self.event)?,
            begins: if self.conversation_key.is_empty() {
                None
            } else {
                Some((piece(self.conversation_key)?, piece(self.conversation)?))
            },
        })
    }
}

/// The pieces of a run.
struct RunPieces {
    id: Place,
    run_no: Place,
    terms: Place,
}

impl RunPieces {
    fn read(places: &mut Places<'_>) -> Option<Self> {
        Some(Self { id: places.take(16)?, run_no: places.take(8)?, terms: places.take_piece()? })
    }

    fn run<'a>(self, bytes: &'a [u8]) -> Option<EventRun<'a>> {
        let terms = bytes.get(self.terms)?;
        Some(EventRun {
            run_no: number_at(bytes, &self.run_no)?,
            id: RunId::from_bytes(bytes.get(self.id)?.try_into().ok()?),
            terms: (!terms.is_empty()).then_some(terms),
        })
    }
}

fn number_at(bytes: &[u8], place: &Place) -> Option<u64> {
    bytes.get(place.clone())?.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write(row: &EventRow<'_>, runs: &[EventRun<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        row.write(&mut bytes, |to| runs.iter().for_each(|run| to.keep(run)));
        bytes
    }

    fn index(bytes: &[u8]) -> Vec<(Table, Vec<u8>, Vec<u8>)> {
        let mut rows = Vec::new();
        index_rows(bytes, |IndexRow { table, key, value }| rows.push((table, bytes[key].to_vec(), bytes[value].to_vec())))
            .unwrap();
        rows
    }

    #[test]
    fn a_row_reads_back_and_gives_the_rows_that_find_it() {
        let (event_id, a, b) = (EventId::new(), RunId::new(), RunId::new());
        let row = EventRow {
            event_no: 7,
            event_id,
            conversation_no: Some(3),
            transcript_seq: Some(9),
            event_type: "message.received",
            event: br#"{"a":1}"#,
            begins: Some((b"key", b"row")),
        };
        let runs = [EventRun { run_no: 4, id: a, terms: Some(b"terms") }, EventRun { run_no: 5, id: b, terms: None }];
        let bytes = write(&row, &runs);
        assert_eq!(EventRow::read(7, &bytes).unwrap(), (row, runs.to_vec()));
        assert_eq!((first_run(&bytes), event_json(&bytes)), (Some(4), Some(row.event)));
        assert!(EventRow::read(8, &bytes).is_err(), "the number of another event");
        assert_eq!(
            index(&bytes),
            [
                (Table::EventIds, event_id.to_bytes().to_vec(), number(7).to_vec()),
                (Table::ConversationEvents, crate::rows::pair(3, 7).to_vec(), b"message.received".to_vec()),
                (Table::Conversations, b"key".to_vec(), b"row".to_vec()),
                (Table::RunIds, a.to_bytes().to_vec(), number(4).to_vec()),
                (Table::RunIds, b.to_bytes().to_vec(), number(5).to_vec()),
            ]
        );
        let alone = EventRow { conversation_no: None, transcript_seq: None, begins: None, ..row };
        let bytes = write(&alone, &[]);
        assert_eq!(EventRow::read(7, &bytes).unwrap(), (alone, Vec::new()));
        assert_eq!((index(&bytes).len(), first_run(&bytes)), (1, None));
    }

    #[test]
    fn a_row_of_formats_before_9_is_json() {
        let (event_id, run) = (EventId::new(), RunId::new());
        let bytes = format!(
            r#"{{"runs":[[4,"{run}"]],"transcript_seq":2,"event":{{"event_id":"{event_id}","event_type":"timer.fired"}}}}"#
        );
        let (row, runs) = EventRow::read(1, bytes.as_bytes()).unwrap();
        assert_eq!((row.event_id, row.event_type, row.transcript_seq), (event_id, "", Some(2)));
        assert_eq!(runs, [EventRun { run_no: 4, id: run, terms: None }]);
        assert_eq!((first_run(bytes.as_bytes()), event_json(bytes.as_bytes())), (Some(4), Some(row.event)));
        assert!(index(bytes.as_bytes()).is_empty(), "batches of that format have the rows");
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = [&[VERSION][..], &bytes].concat();
            let _ = EventRow::read(1, &bytes);
            let _ = (first_run(&bytes), event_json(&bytes));
            let _ = index_rows(&bytes, |row| assert!(row.key.end <= bytes.len() && row.value.end <= bytes.len()));
        }
    }
}
