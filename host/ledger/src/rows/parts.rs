//! Terms, contexts, and rows of [`Table::SharedParts`].
//!
//! The terms of a run and its context are a version (one byte), the SHA-256 of the part that it shares with other runs, and
//! the JSON of its own part; a context in parts also has what its event says. Terms are in the row of the event, a context is in
//! [`Table::RunEnds`] or [`Table::Contexts`]. Formats before 9 had terms in [`Table::Terms`]. Formats before 7 had the whole as
//! JSON, and so has the context of a fork: such a value begins with `{`.

use agent_host_protocol::{
    Event,
    context::{EventPart, join},
    encoded::JsonText,
};
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value, to_value},
};
use sha2::{Digest as _, Sha256};

use crate::{
    digest::Digest,
    error::LedgerError,
    record::{JsonParts, NewContext},
    rows::{EventRow, Reader, RunEnd, Table, json, malformed, number, raw},
};

const VERSION: u8 = 1;

/// JSON in two parts, with the digest of the shared one.
pub(crate) struct PartsRow {
    pub(crate) digest: Digest,
    parts: JsonParts,
}

impl PartsRow {
    pub(crate) fn prepare(parts: JsonParts) -> Self {
        Self { digest: digest(parts.shared.get().as_bytes()), parts }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.shared().len() + self.parts.own.get().len()
    }

    pub(crate) fn shared(&self) -> &[u8] {
        self.parts.shared.get().as_bytes()
    }

    pub(crate) fn write(&self, value: &mut Vec<u8>) {
        value.push(VERSION);
        value.extend_from_slice(&self.digest);
        value.extend_from_slice(self.parts.own.get().as_bytes());
    }
}

/// A context to be stored.
pub(crate) enum ContextRow {
    Whole(JsonText),
    Parts(PartsRow),
}

impl ContextRow {
    pub(crate) fn prepare(context: NewContext) -> Self {
        match context {
            NewContext::Whole(text) => Self::Whole(text),
            NewContext::Parts(parts) => Self::Parts(PartsRow::prepare(parts)),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Whole(text) => text.get().len(),
            Self::Parts(row) => row.bytes(),
        }
    }
}

/// The name of a shared part.
pub(crate) fn digest(shared: &[u8]) -> Digest {
    Sha256::digest(shared).into()
}

/// A row of [`Table::Terms`] or [`Table::Contexts`].
pub(crate) enum StoredParts<'a> {
    Whole(&'a [u8]),
    Parts { digest: &'a Digest, own: &'a [u8] },
}

impl<'a> StoredParts<'a> {
    pub(crate) fn read(table: Table, value: &'a [u8]) -> Result<Self, LedgerError> {
        match value.split_first() {
            Some((b'{', _)) => Ok(Self::Whole(value)),
            Some((&VERSION, rest)) => {
                let (digest, own) = rest.split_first_chunk().ok_or_else(|| malformed(table))?;
                Ok(Self::Parts { digest, own })
            }
            _ => Err(malformed(table)),
        }
    }
}

impl Reader {
    /// The terms of a run.
    pub(crate) fn terms(&self, run_no: u64) -> Result<Option<Box<RawValue>>, LedgerError> {
        self.read_terms(run_no, |value| self.joined(Table::Terms, value, |_| Ok(())))
    }

    /// Reads the stored terms of a run.
    pub(crate) fn read_terms<T>(
        &self,
        run_no: u64,
        read: impl Fn(&[u8]) -> Result<T, LedgerError>,
    ) -> Result<Option<T>, LedgerError> {
        let with_event = self.with_event_of(run_no, |event_no, row| {
            let (_, runs) = EventRow::read(event_no, row)?;
            runs.iter().find(|run| run.run_no == run_no).and_then(|run| run.terms).map(&read).transpose()
        })?;
        match with_event.flatten() {
            Some(terms) => Ok(Some(terms)),
            None => self.get(Table::Terms, &number(run_no), read),
        }
    }

    /// The context of a run.
    pub(crate) fn context(&self, run_no: u64) -> Result<Option<Box<RawValue>>, LedgerError> {
        let table = Table::Contexts;
        let read = |value: &[u8]| {
            self.joined(table, value, |context| {
                let event = self.with_event_of(run_no, |event_no, row| {
                    let (row, _) = EventRow::read(event_no, row)?;
                    json::<Event>(Table::Events, row.event)
                })?;
                let event = event.ok_or_else(|| LedgerError::damaged("the event of a context is not there"))?;
                match to_value(EventPart::of(&event)).map_err(|error| LedgerError::not_json(&error))? {
                    Value::Object(part) => join(context, part),
                    _ => return Err(malformed(Table::Events)),
                }
                Ok(())
            })
        };
        if let Some(end) = self.run_end(run_no)?
            && let Some(context) = RunEnd::read(end.value())?.context
        {
            return read(context).map(Some);
        }
        self.get(table, &number(run_no), read)
    }

    /// A value that may be in parts, as one object; `add` puts in what is stored elsewhere.
    fn joined(
        &self,
        table: Table,
        value: &[u8],
        add: impl FnOnce(&mut Map<String, Value>) -> Result<(), LedgerError>,
    ) -> Result<Box<RawValue>, LedgerError> {
        match StoredParts::read(table, value)? {
            StoredParts::Whole(text) => raw(table, text),
            StoredParts::Parts { digest, own } => {
                let lost = || LedgerError::damaged(format!("the shared part of a row of `{}` is not there", table.name()));
                let shared = self.get(Table::SharedParts, digest, |text| json::<Map<String, Value>>(Table::SharedParts, text))?;
                let mut object = shared.ok_or_else(lost)?;
                join(&mut object, json(table, own)?);
                add(&mut object)?;
                to_raw_value(&object).map_err(|error| LedgerError::not_json(&error))
            }
        }
    }

    /// Reads the row of the event that a run answers.
    fn with_event_of<T>(
        &self,
        run_no: u64,
        read: impl FnOnce(u64, &[u8]) -> Result<T, LedgerError>,
    ) -> Result<Option<T>, LedgerError> {
        let Some(run) = self.run(run_no)? else { return Ok(None) };
        let Some(event_no) = self.number(Table::EventIds, &run.event_id.to_bytes())? else { return Ok(None) };
        self.get(Table::Events, &number(event_no), |row| read(event_no, row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_bytes_are_no_parts() {
        for bytes in [&b""[..], &[2; 40], &[VERSION, 7]] {
            assert!(StoredParts::read(Table::Terms, bytes).is_err());
        }
    }
}
