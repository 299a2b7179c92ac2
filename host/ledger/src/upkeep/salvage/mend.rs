//! Rows of a salvaged ledger that follow from others, made anew, and the things that its rows name and that are missing.

use std::collections::{HashMap, HashSet};

use agent_host_protocol::{Event, Run, grant::ConversationKey};
use redb::{Database, WriteTransaction};

use super::Missing;
use crate::{
    error::LedgerError,
    record::Usage,
    rows::{
        BY_ARTIFACT, ConversationRow, EventRow, IdempotencyRow, Layer, MAX_KEY_BYTES, Reader, Rows, Table, derive, encode, json,
        malformed, number, pair, read_number, read_stored, schema, stored_audit,
    },
};

/// Tables that are made anew from others.
const MADE: [Table; 7] =
    [Table::Active, Table::RunLists, Table::AuditRuns, Table::RunIds, Table::EventIds, Table::Usage, Table::Workspaces];

/// Tables whose keys begin with the number of a run.
const OF_RUNS: [Table; 6] = [Table::RunEvents, Table::RunEnds, Table::Journal, Table::Terms, Table::Contexts, Table::Parked];

/// Removes rows that belong to runs, events and parked runs that are not there, and lists how many there were.
pub(super) fn remove_orphans(database: &Database, reader: &Reader, missing: &mut Vec<Missing>) -> Result<(), LedgerError> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    let mut remove = |table: Table, of: &str, is_orphan: &dyn Fn(&[u8]) -> Result<bool, LedgerError>| {
        let mut to = transaction.open_table(table.definition())?;
        let mut count = 0;
        for row in reader.merged(table)?.iter()? {
            let (key, _) = row?;
            if is_orphan(key.value())? {
                to.remove(key.value())?;
                count += 1;
            }
        }
        if count > 0 {
            missing.push(Missing::new("row", table.name(), format!("{count} rows belong to {of} that are missing")));
        }
        Ok::<_, LedgerError>(())
    };
    let has = |table: Table, no: Option<&[u8]>| match no {
        Some(no) => reader.has(table, no),
        None => Ok(false),
    };
    for table in OF_RUNS {
        remove(table, "runs", &|key| Ok(!has(Table::Runs, key.get(..8))?))?;
    }
    for table in [Table::Wakes, Table::Waits] {
        let is_there = |no: Option<&[u8]>| Ok::<_, LedgerError>(has(Table::Runs, no)? && has(Table::Parked, no)?);
        remove(table, "parked runs", &|key| Ok(!is_there(key.last_chunk::<8>().map(<[u8; 8]>::as_slice))?))?;
    }
    remove(Table::ConversationEvents, "events", &|key| Ok(!has(Table::Events, key.get(8..))?))?;
    remove(Table::IdempotencyAge, "events", &|key| Ok(!has(Table::Events, Some(key))?))?;
    remove(Table::Idempotency, "events", &|key| {
        let event = |row: &[u8]| json::<IdempotencyRow>(Table::Idempotency, row).map(|row| row.event_no);
        match reader.get(Table::Idempotency, key, event)? {
            Some(event_no) => Ok(!reader.has(Table::Events, &number(event_no))?),
            None => Ok(true),
        }
    })?;
    transaction.commit()?;
    Ok(())
}

/// Makes the tables anew that follow from others. `reader` has the rows of the database.
pub(super) fn indexes(database: &Database, reader: &Reader) -> Result<(), LedgerError> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    for table in MADE {
        transaction.delete_table(table.definition())?;
        transaction.open_table(table.definition())?;
    }
    for table in [Table::Active, Table::RunLists, Table::AuditRuns] {
        let source = if table == Table::AuditRuns { Table::Audit } else { Table::Runs };
        let mut to = transaction.open_table(table.definition())?;
        for row in reader.merged(source)?.iter()? {
            let (key, value) = row?;
            let mut rows = Rows::default();
            rows.put(source, key.value(), value.value());
            let mut layer = Layer::default();
            layer.apply(rows.bytes()).map_err(|_| malformed(source))?;
            for derived in derive(table, &layer.table(source))?.iter() {
                if let Some(value) = derived.value() {
                    to.insert(derived.key(), value)?;
                }
            }
        }
    }
    let mut to = transaction.open_table(Table::RunIds.definition())?;
    for row in reader.merged(Table::Runs)?.iter()? {
        let (key, value) = row?;
        let run: Run = json(Table::Runs, value.value())?;
        to.insert(run.run_id.to_bytes().as_slice(), key.value())?;
    }
    drop(to);
    events(&transaction, reader)?;
    let mut to = transaction.open_table(Table::Usage.definition())?;
    for (key, usage) in usages(reader)? {
        to.insert(key.as_slice(), pair(usage.bytes, usage.keys).as_slice())?;
    }
    drop(to);
    let mut to = transaction.open_table(Table::Workspaces.definition())?;
    for (workspace, bytes) in reader.counted_usage()? {
        to.insert(workspace.as_bytes(), number(bytes).as_slice())?;
    }
    drop(to);
    transaction.commit()?;
    Ok(())
}

/// The ids of events, the events of conversations, and conversations that events name.
fn events(transaction: &WriteTransaction, reader: &Reader) -> Result<(), LedgerError> {
    let mut ids = transaction.open_table(Table::EventIds.definition())?;
    let mut listed = transaction.open_table(Table::ConversationEvents.definition())?;
    let mut conversations = transaction.open_table(Table::Conversations.definition())?;
    for row in reader.merged(Table::Events)?.iter()? {
        let (key, value) = row?;
        let event_no = read_number(key.value()).ok_or_else(|| malformed(Table::Events))?;
        let (row, _) = EventRow::read(event_no, value.value())?;
        ids.insert(row.event_id.to_bytes().as_slice(), key.value())?;
        let Some(no) = row.conversation_no else { continue };
        let event: Event = json(Table::Events, row.event)?;
        let conversation = event.envelope.conversation.as_ref().and_then(ConversationKey::of);
        let Some(conversation) = conversation.filter(|key| key.index().len() <= MAX_KEY_BYTES) else { continue };
        listed.insert(pair(no, event_no).as_slice(), event.envelope.event_type.as_bytes())?;
        if !reader.has(Table::Conversations, conversation.index().as_bytes())? {
            let row = encode(&ConversationRow { no, key: conversation.clone() })?;
            conversations.insert(conversation.index().as_bytes(), row.as_slice())?;
        }
    }
    Ok(())
}

fn usages(reader: &Reader) -> Result<HashMap<Vec<u8>, Usage>, LedgerError> {
    let mut usages: HashMap<Vec<u8>, Usage> = HashMap::new();
    for table in [Table::State, Table::Storage] {
        for row in reader.merged(table)?.iter()? {
            let (row_key, value) = row?;
            let (scope, key) = schema::read_state_key(row_key.value()).ok_or_else(|| malformed(table))?;
            let size = match table {
                Table::State => value.value().len() as u64,
                _ => read_stored(value.value()).ok_or_else(|| malformed(table))?.content().size(),
            };
            let usage = usages.entry(schema::usage_key(table, scope)).or_default();
            usage.bytes += key.len() as u64 + size;
            usage.keys += 1;
        }
    }
    Ok(usages)
}

/// Lists the events, runs and artifacts that rows name or numbers leave out, and that are not there.
pub(super) fn list_missing(reader: &Reader, missing: &mut Vec<Missing>) -> Result<(), LedgerError> {
    let mut named = HashSet::new();
    let mut next = 1;
    for row in reader.merged(Table::Events)?.iter()? {
        let (key, value) = row?;
        let event_no = read_number(key.value()).ok_or_else(|| malformed(Table::Events))?;
        list_gap("event", next, event_no, event_no - next, missing);
        next = event_no + 1;
        let (row, runs) = EventRow::read(event_no, value.value())?;
        for run in runs {
            if !reader.has(Table::Runs, &number(run.run_no))? {
                named.insert(run.run_no);
                missing.push(Missing::new("run", run.id, format!("its row cannot be read; event {} began it", row.event_id)));
            }
        }
    }
    let mut next = 1;
    for row in reader.merged(Table::Runs)?.iter()? {
        let (key, value) = row?;
        let run_no = read_number(key.value()).ok_or_else(|| malformed(Table::Runs))?;
        let unnamed = (run_no - next) - named.iter().filter(|no| (next..run_no).contains(*no)).count() as u64;
        list_gap("run", next, run_no, unnamed, missing);
        next = run_no + 1;
        let run: Run = json(Table::Runs, value.value())?;
        if let Some(reason) = incomplete(reader, run_no, &run)? {
            missing.push(Missing::new("run", run.run_id, reason));
        }
    }
    // The first records may have been pruned, so nothing before them is missed.
    let mut next = u64::MAX;
    for row in reader.merged(Table::Audit)?.iter()? {
        let (key, value) = row?;
        let first = read_number(key.value()).ok_or_else(|| malformed(Table::Audit))?;
        list_gap("audit", next, first, first.saturating_sub(next), missing);
        next = first;
        for record in stored_audit(first, value.value())? {
            next = record?.0 + 1;
        }
    }
    for row in reader.merged(Table::BlobRefs)?.iter()? {
        let (key, _) = row?;
        let (_, kind, name) = schema::read_blob_ref(key.value()).ok_or_else(|| malformed(Table::BlobRefs))?;
        if kind == BY_ARTIFACT && !reader.has(Table::Artifacts, name)? {
            missing.push(Missing::new("artifact", String::from_utf8_lossy(name), "its row cannot be read"));
        }
    }
    Ok(())
}

/// Lists numbers that are missing before one that is there.
fn list_gap(kind: &'static str, from: u64, to: u64, count: u64, missing: &mut Vec<Missing>) {
    let name = match to.saturating_sub(from) {
        1 => format!("number {from}"),
        _ => format!("numbers {from} to {}", to.saturating_sub(1)),
    };
    if count > 0 {
        missing.push(Missing::new(kind, name, format!("{count} of them cannot be read")));
    }
}

/// The events that a run lacks, in words; `None` for a run that has all.
fn incomplete(reader: &Reader, run_no: u64, run: &Run) -> Result<Option<String>, LedgerError> {
    let (mut count, mut last) = (0, 0);
    let read = reader.each_event(run_no, 0, |sequence, _| {
        (count, last) = (count + 1, sequence);
        Ok(true)
    });
    if let Err(error) = read {
        return Ok(Some(error.to_string()));
    }
    // Of a forgotten run only the last event is left.
    let is_forgotten = run.metadata.contains_key(crate::rows::FORGOTTEN);
    let wanted = if is_forgotten { run.last_sequence.min(1) } else { run.last_sequence };
    let has_all = count == wanted && (last == run.last_sequence || wanted == 0);
    Ok((!has_all).then(|| format!("it has {count} events that can be read, and had {wanted}")))
}
