//! Does a row read back as what its table holds? A row of a damaged page can have any bytes.

use agent_host_protocol::{Event, Run};
use serde_json::value::RawValue;

use crate::{
    error::LedgerError,
    record::{ArtifactRecord, Park},
    rows::{
        ConversationRow, EventRow, IdempotencyAgeRow, IdempotencyRow, RunEnd, StoredParts, Table, TranscriptRow, json,
        listed_run_no, part_digest, read_number, read_pair, read_segment, read_stored, read_usage, read_wait_key, schema,
        stored_audit, stored_events,
    },
};

/// Numbers of events, runs and the like are far below: a larger one is a damaged key, and the next number would follow it.
const NUMBERS: u64 = 1 << 48;

/// True if the key and the value are those of a row of the table. What a row refers to is not looked at.
pub(crate) fn is_row(table: Table, key: &[u8], value: &[u8]) -> bool {
    read(table, key, value).ok().flatten().is_some()
}

fn read(table: Table, key: &[u8], value: &[u8]) -> Result<Option<()>, LedgerError> {
    let is = |holds: bool| Ok(holds.then_some(()));
    let no = read_number(key).filter(|no| *no < NUMBERS);
    let pair = read_pair(key).filter(|(first, second)| *first < NUMBERS && *second < NUMBERS);
    match table {
        Table::Meta => is(true),
        Table::Events => {
            let Some(event_no) = no else { return Ok(None) };
            let (row, _) = EventRow::read(event_no, value)?;
            let event: Event = json(table, row.event)?;
            is(event.event_id == row.event_id)
        }
        Table::EventIds | Table::RunIds => is(key.len() == 16 && read_number(value).is_some()),
        Table::Runs => json::<Run>(table, value).map(|_| no.map(drop)),
        Table::Terms | Table::Contexts => {
            let own = match StoredParts::read(table, value)? {
                StoredParts::Whole(text) => text,
                StoredParts::Parts { own, .. } => own,
            };
            json::<&RawValue>(table, own).map(|_| no.map(drop))
        }
        Table::RunEvents => {
            let Some((run_no, first)) = pair else { return Ok(None) };
            for event in stored_events(first, value)? {
                serde_json::from_str::<&RawValue>(event?.1.data).map_err(LedgerError::damaged)?;
            }
            is(run_no > 0)
        }
        Table::Active => is(no.is_some() && value.is_empty()),
        Table::Conversations => {
            json::<ConversationRow>(table, value).map(|row| (row.key.index().as_bytes() == key).then_some(()))
        }
        Table::Transcript => json::<TranscriptRow>(table, value).map(|_| pair.map(drop)),
        Table::State => json::<&RawValue>(table, value).map(|_| schema::read_state_key(key).map(drop)),
        Table::Audit => {
            let Some(first) = no else { return Ok(None) };
            for record in stored_audit(first, value)? {
                record?.1.record()?;
            }
            is(true)
        }
        Table::AuditRuns => is(schema::read_audit_run(key).is_some()),
        Table::Idempotency => json::<IdempotencyRow>(table, value).map(|_| Some(())),
        Table::IdempotencyAge => json::<IdempotencyAgeRow<'_>>(table, value).map(|_| no.map(drop)),
        Table::Artifacts => json::<ArtifactRecord>(table, value).map(|row| (row.artifact_id.as_bytes() == key).then_some(())),
        Table::ArtifactExpiry => is(schema::read_expiry(key).is_some()),
        Table::Unreferenced => is(read_number(value).is_some() && std::str::from_utf8(key).is_ok()),
        Table::BlobRefs => is(schema::read_blob_ref(key).is_some()),
        Table::Storage => is(schema::read_state_key(key).is_some() && read_stored(value).is_some()),
        Table::Usage => is(read_usage(value).is_some()),
        Table::ConversationEvents => is(pair.is_some()),
        Table::Journal => is(pair.is_some() && read_segment(value).is_some()),
        Table::Parked => json::<Park>(table, value).map(|_| no.map(drop)),
        Table::Wakes => is(read_pair(key).is_some()),
        Table::Waits => is(read_wait_key(key).is_some()),
        Table::Entries => json::<&RawValue>(table, value).map(|_| std::str::from_utf8(key).ok().map(drop)),
        Table::SharedParts => is(part_digest(value) == key),
        Table::Workspaces => is(std::str::from_utf8(key).is_ok() && read_number(value).is_some()),
        Table::RunLists => is(listed_run_no(key).is_ok()),
        Table::RunEnds => {
            let end = RunEnd::read(value)?;
            if let Some((first, events)) = end.events {
                for event in stored_events(first, events)? {
                    event?;
                }
            }
            Ok(no.map(drop))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{number, pair};

    #[test]
    fn rows_of_other_tables_and_of_damaged_keys_are_no_rows() {
        let state = schema::state_key("scope", "key");
        assert!(
            is_row(Table::State, &state, b"{}") && !is_row(Table::State, &state, b"{") && !is_row(Table::State, b"key", b"{}")
        );
        assert!(is_row(Table::Active, &number(7), b"") && !is_row(Table::Active, &number(7), b"x"));
        assert!(!is_row(Table::Active, &number(NUMBERS), b""));
        assert!(is_row(Table::ConversationEvents, &pair(1, 2), b"message"));
        assert!(!is_row(Table::ConversationEvents, &pair(1, u64::MAX), b"message"));
        assert!(!is_row(Table::Runs, &number(1), b"{}") && !is_row(Table::Events, &number(1), &[7; 40]));
        assert!(
            is_row(Table::SharedParts, &part_digest(b"{}"), b"{}") && !is_row(Table::SharedParts, &part_digest(b"{}"), b"[]")
        );
        for table in Table::ALL.iter().filter(|table| **table != Table::Meta) {
            assert!(!is_row(*table, b"\xff\xfe", b"\xff\xff\xff"), "{}", table.name());
        }
    }
}
