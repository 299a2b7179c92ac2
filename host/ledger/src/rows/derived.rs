//! Tables that follow from others. The log has no rows of them: a merge puts them into redb beside the rows that they follow
//! from, and readers derive them from the rows in memory.
//!
//! | table | follows from |
//! |---|---|
//! | [`Table::Active`] | [`Table::Runs`]: the status of each run |
//! | [`Table::RunLists`] | [`Table::Runs`]: conversation, parent, binding and final status of each run |
//! | [`Table::AuditRuns`] | [`Table::Audit`]: the run of each record |

use agent_host_protocol::RunStatus;
use serde::Deserialize;

use crate::{
    error::LedgerError,
    rows::{Layer, ListedRun, MalformedRow, RowSet, Rows, Table, audit_run, json, malformed, read_number, stored_audit},
};

/// All that is read of a run to know whether it is active.
#[derive(Deserialize)]
struct Status {
    status: RunStatus,
}

/// The table that a table follows from.
pub(crate) fn source(table: Table) -> Option<Table> {
    match table {
        Table::Active | Table::RunLists => Some(Table::Runs),
        Table::AuditRuns => Some(Table::Audit),
        _ => None,
    }
}

/// The rows of `table` that follow from rows of its source.
pub(crate) fn derive(table: Table, rows: &RowSet) -> Result<RowSet, LedgerError> {
    let mut derived = Rows::default();
    for row in rows.iter() {
        // Runs are never deleted; the deletion of audit records names the rows that follow from them.
        let Some(value) = row.value() else { continue };
        match table {
            Table::Active => {
                let Status { status } = json(Table::Runs, value)?;
                if status.is_terminal() {
                    derived.delete(table, row.key());
                } else {
                    derived.put(table, row.key(), &[]);
                }
            }
            Table::RunLists => {
                let run_no = read_number(row.key()).ok_or_else(|| malformed(Table::Runs))?;
                let listed: ListedRun<'_> = json(Table::Runs, value)?;
                listed.each_key(run_no, |key| derived.put(table, key, &[]));
            }
            Table::AuditRuns => {
                let first = read_number(row.key()).ok_or_else(|| malformed(Table::Audit))?;
                for record in stored_audit(first, value)? {
                    let (audit_no, record) = record?;
                    if let Some(run_id) = record.run_id() {
                        derived.put(table, &audit_run(run_id, audit_no), &[]);
                    }
                }
            }
            _ => {}
        }
    }
    let mut layer = Layer::default();
    layer.apply(derived.bytes()).map_err(|MalformedRow| malformed(table))?;
    Ok(layer.table(table))
}
