//! Bringing a ledger of an older format to this one.
//!
//! The upgrade happens when the ledger is opened, after the log was applied, in one durable transaction: a crash leaves the
//! old format, which is upgraded the next time. An upgrade takes about a second for each million events and state values.

use std::{borrow::Cow, collections::HashMap};

use agent_host_protocol::{Event, grant::ConversationKey};
use redb::{Database, ReadableTable, WriteTransaction};

use crate::{
    error::LedgerError,
    record::Usage,
    rows::{
        ConversationRow, EventRow, FORMAT, ListedRun, Table, UsageChanges, changed, encode, json, malformed, meta, number, pair,
        schema, workspace_of_run,
    },
};

/// From format 1 to 2: the new tables, the usage of each scope of state, and the events of each conversation. From 2 to 3
/// and from 3 to 4: the new tables. From 4 to 7: only the number and an empty table, since the log was taken over before and
/// rows of older formats stay as they are. To 8: the lists of runs. To 9 and 10: as to 7. To 11: the bytes that workspaces keep,
/// which takes a look at each row that counts.
pub(crate) fn upgrade(database: &Database, from: u32) -> Result<(), LedgerError> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    for table in Table::ALL {
        transaction.open_table(table.definition())?;
    }
    if from < 8 {
        list_runs(&transaction)?;
    }
    if from < 2 {
        count_state(&transaction)?;
        list_events(&transaction)?;
    }
    if from < 11 {
        count_workspaces(&transaction)?;
    }
    transaction.open_table(Table::Meta.definition())?.insert(meta::FORMAT, number(u64::from(FORMAT)).as_slice())?;
    transaction.commit()?;
    tracing::info!(from, to = FORMAT, "the ledger was brought to the format of this version");
    Ok(())
}

/// The lists of runs, which format 8 brought.
fn list_runs(transaction: &WriteTransaction) -> Result<(), LedgerError> {
    let mut lists = transaction.open_table(Table::RunLists.definition())?;
    for row in transaction.open_table(Table::Runs.definition())?.iter()? {
        let (key, value) = row?;
        let run_no = schema::read_number(key.value()).ok_or_else(|| malformed(Table::Runs))?;
        let listed: ListedRun<'_> = json(Table::Runs, value.value())?;
        let mut inserted = Ok(());
        listed.each_key(run_no, |key| {
            if inserted.is_ok() {
                inserted = lists.insert(key, [].as_slice()).map(drop);
            }
        });
        inserted?;
    }
    Ok(())
}

/// Bytes that workspaces keep, which format 11 brought. A merge before may have begun to count.
pub(crate) fn count_workspaces(transaction: &WriteTransaction) -> Result<(), LedgerError> {
    transaction.delete_table(Table::Workspaces.definition())?;
    let mut usage = UsageChanges::new(|run_no| {
        let runs = transaction.open_table(Table::Runs.definition())?;
        let row = runs.get(number(run_no).as_slice())?;
        Ok(row.and_then(|row| workspace_of_run(row.value()).map(Cow::into_owned)).unwrap_or_default())
    });
    for table in Table::ALL {
        for row in transaction.open_table(table.definition())?.iter()? {
            let (key, value) = row?;
            usage.put(*table, key.value(), value.value())?;
        }
    }
    let mut to = transaction.open_table(Table::Workspaces.definition())?;
    for (workspace, bytes) in usage.changes() {
        to.insert(workspace.as_bytes(), number(changed(0, bytes)).as_slice())?;
    }
    Ok(())
}

fn count_state(transaction: &WriteTransaction) -> Result<(), LedgerError> {
    let mut usages: HashMap<Vec<u8>, Usage> = HashMap::new();
    for row in transaction.open_table(Table::State.definition())?.iter()? {
        let (row_key, value) = row?;
        let (scope, key) = schema::read_state_key(row_key.value()).ok_or_else(|| malformed(Table::State))?;
        let usage = usages.entry(schema::usage_key(Table::State, scope)).or_default();
        usage.bytes += (key.len() + value.value().len()) as u64;
        usage.keys += 1;
    }
    let mut table = transaction.open_table(Table::Usage.definition())?;
    for (key, usage) in usages {
        table.insert(key.as_slice(), pair(usage.bytes, usage.keys).as_slice())?;
    }
    Ok(())
}

fn list_events(transaction: &WriteTransaction) -> Result<(), LedgerError> {
    let mut conversations = transaction.open_table(Table::Conversations.definition())?;
    let mut numbers: HashMap<ConversationKey, u64> = HashMap::new();
    for row in conversations.iter()? {
        let row: ConversationRow = json(Table::Conversations, row?.1.value())?;
        numbers.insert(row.key, row.no);
    }
    let mut next = numbers.values().max().map_or(1, |last| last + 1);
    let mut listed = transaction.open_table(Table::ConversationEvents.definition())?;
    for row in transaction.open_table(Table::Events.definition())?.iter()? {
        let (event_no, row) = row?;
        let event_no = schema::read_number(event_no.value()).ok_or_else(|| malformed(Table::Events))?;
        let (row, _) = EventRow::read(event_no, row.value())?;
        let event: Event = json(Table::Events, row.event)?;
        let Some(key) = event.envelope.conversation.as_ref().and_then(ConversationKey::of) else { continue };
        if key.index().len() > schema::MAX_KEY_BYTES {
            continue;
        }
        let no = match numbers.get(&key) {
            Some(no) => *no,
            None => {
                let no = next;
                next += 1;
                let row = ConversationRow { no, key: key.clone() };
                conversations.insert(key.index().as_bytes(), encode(&row)?.as_slice())?;
                numbers.insert(key, no);
                no
            }
        };
        listed.insert(pair(no, event_no).as_slice(), event.envelope.event_type.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use redb::backends::InMemoryBackend;

    use super::*;
    use crate::{
        rows::{Layer, Rows},
        store::merge,
    };

    #[test]
    fn a_ledger_of_format_10_counts_what_its_workspaces_keep() {
        let database = Database::builder().create_with_backend(InMemoryBackend::new()).unwrap();
        let (mut rows, mut layer) = (Rows::default(), Layer::default());
        let run = |workspace: &str| format!(r#"{{"workspace_id":"{workspace}","status":"created","binding_id":"b"}}"#);
        rows.put(Table::Runs, &number(1), run("a").as_bytes());
        rows.put(Table::Runs, &number(2), run("b").as_bytes());
        rows.put(Table::Journal, &pair(1, 1), &[0; 100]);
        rows.put(Table::State, &schema::state_key("1:r/1:s/1:a/0:/", "k"), b"{}");
        layer.apply(rows.bytes()).unwrap();
        merge(&database, &layer, 1).unwrap();
        let counted = || -> Vec<(Vec<u8>, u64)> {
            let transaction = database.begin_write().unwrap();
            let table = transaction.open_table(Table::Workspaces.definition()).unwrap();
            let rows = table.iter().unwrap().map(|row| row.unwrap());
            rows.map(|(key, value)| (key.value().to_vec(), schema::read_number(value.value()).unwrap())).collect()
        };
        let merged = counted();
        assert_eq!(merged.iter().map(|(name, _)| name.as_slice()).collect::<Vec<_>>(), [b"a", b"b"]);
        assert!(merged[0].1 > merged[1].1 + 100, "{merged:?}");
        // A merge of the log of a ledger of format 10 has begun to count, without the rows from before.
        let transaction = database.begin_write().unwrap();
        transaction.open_table(Table::Workspaces.definition()).unwrap().insert(b"a".as_slice(), number(1).as_slice()).unwrap();
        transaction.commit().unwrap();
        upgrade(&database, 10).unwrap();
        assert_eq!(counted(), merged);
    }
}
