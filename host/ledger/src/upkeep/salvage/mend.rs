//! What follows from other rows of a salvaged ledger, made anew, and what its rows say is missing.

use std::collections::{HashMap, HashSet};

use agent_host_protocol::Run;
use redb::Database;

use super::Missing;
use crate::{
    error::LedgerError,
    record::Usage,
    rows::{
        BY_ARTIFACT, EventRow, Layer, Reader, Rows, Table, derive, json, malformed, number, pair, read_number, read_stored,
        schema, stored_audit,
    },
};

/// Tables that are made anew from others.
const MADE: [Table; 6] = [Table::Active, Table::RunLists, Table::AuditRuns, Table::RunIds, Table::EventIds, Table::Usage];

/// Makes the tables anew that follow from others. `reader` has the rows of the database.
pub(super) fn indexes(database: &Database, reader: &Reader) -> Result<(), LedgerError> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    for table in MADE {
        transaction.delete_table(table.definition())?;
        transaction.open_table(table.definition())?;
    }
    let put = |table: Table, key: &[u8], value: &[u8]| -> Result<(), LedgerError> {
        transaction.open_table(table.definition())?.insert(key, value)?;
        Ok(())
    };
    for table in [Table::Active, Table::RunLists, Table::AuditRuns] {
        let source = if table == Table::AuditRuns { Table::Audit } else { Table::Runs };
        for row in reader.merged(source)?.iter()? {
            let (key, value) = row?;
            let mut rows = Rows::default();
            rows.put(source, key.value(), value.value());
            let mut layer = Layer::default();
            layer.apply(rows.bytes()).map_err(|_| malformed(source))?;
            for derived in derive(table, &layer.table(source))?.iter() {
                if let Some(value) = derived.value() {
                    put(table, derived.key(), value)?;
                }
            }
        }
    }
    for row in reader.merged(Table::Runs)?.iter()? {
        let (key, value) = row?;
        let run: Run = json(Table::Runs, value.value())?;
        put(Table::RunIds, &run.run_id.to_bytes(), key.value())?;
    }
    for row in reader.merged(Table::Events)?.iter()? {
        let (key, value) = row?;
        let event_no = read_number(key.value()).ok_or_else(|| malformed(Table::Events))?;
        let (row, _) = EventRow::read(event_no, value.value())?;
        put(Table::EventIds, &row.event_id.to_bytes(), key.value())?;
    }
    for (key, usage) in usages(reader)? {
        put(Table::Usage, &key, pair(usage.bytes, usage.keys).as_slice())?;
    }
    transaction.commit()?;
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
        for absent in next..event_no {
            missing.push(Missing::new("event", format!("number {absent}"), "its row cannot be read"));
        }
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
        for absent in (next..run_no).filter(|absent| !named.contains(absent)) {
            missing.push(Missing::new("run", format!("number {absent}"), "its row cannot be read"));
        }
        next = run_no + 1;
        let run: Run = json(Table::Runs, value.value())?;
        if let Some(reason) = incomplete(reader, run_no, &run)? {
            missing.push(Missing::new("run", run.run_id, reason));
        }
    }
    let mut next = 1;
    for row in reader.merged(Table::Audit)?.iter()? {
        let (key, value) = row?;
        let first = read_number(key.value()).ok_or_else(|| malformed(Table::Audit))?;
        if first > next {
            missing.push(Missing::new("audit", format!("records {next} to {}", first - 1), "their rows cannot be read"));
        }
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

/// What a run lacks of its events; `None` for a run that has all.
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
