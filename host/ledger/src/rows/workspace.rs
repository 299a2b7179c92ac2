//! Bytes that the ledger keeps for each workspace: a sum that follows from other rows.
//!
//! Each row of some tables counts for one workspace, with its key and value, and with its content where that is a file. A merge adds
//! the difference that its rows make to the sums in [`Table::Workspaces`], in the same commit; so the sums are right after a crash,
//! and become smaller with rows that are deleted. What is not merged yet is counted in memory ([`PendingUsage`]), where rows that
//! are written again count again, until the merge.
//!
//! | table | workspace |
//! |---|---|
//! | runs, their events, ends, contexts, terms and journals | that of the run |
//! | events | that of the first run; without one, that of the conversation |
//! | state and storage | that in the key of the scope or area |
//! | artifacts | that of their scope |

use std::{borrow::Cow, collections::HashMap};

use agent_host_protocol::grant::{workspace_of_state, workspace_of_storage};
use rustc_hash::FxHashMap;
use serde::Deserialize;

use crate::{
    error::LedgerError,
    rows::{
        Reader, StoredValue, Table,
        event_row::{event_json, first_run},
        json, malformed, number, read_number, read_stored, schema,
    },
};

/// Tables whose rows count.
const COUNTED: [Table; 10] = [
    Table::Events,
    Table::Runs,
    Table::Terms,
    Table::Contexts,
    Table::RunEvents,
    Table::State,
    Table::Artifacts,
    Table::Storage,
    Table::Journal,
    Table::RunEnds,
];

/// Runs whose workspace is remembered at most: some megabytes.
const KNOWN_RUNS: usize = 100_000;

/// The workspace that a row counts for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Owner<'a> {
    /// The workspace of the run with this number.
    Run(u64),
    Workspace(Cow<'a, str>),
}

/// The part of a run that says its workspace.
#[derive(Deserialize)]
struct RunHead<'a> {
    #[serde(default, borrow)]
    workspace_id: Option<Cow<'a, str>>,
}

/// The part of an event that says its workspace.
#[derive(Deserialize)]
struct EventHead<'a> {
    #[serde(default, borrow)]
    conversation: Option<RunHead<'a>>,
}

/// The part of the record of an artifact that counts.
#[derive(Deserialize)]
struct ArtifactHead<'a> {
    size: u64,
    #[serde(default, borrow)]
    scope: ScopeHead<'a>,
}

#[derive(Default, Deserialize)]
struct ScopeHead<'a> {
    #[serde(default, borrow)]
    workspace: Cow<'a, str>,
}

/// The workspace that a row counts for, and its bytes. `None` for a row of another table, and for one that cannot be read, which
/// counts for nobody when it comes and when it goes.
pub(crate) fn kept<'a>(table: Table, key: &'a [u8], value: &'a [u8]) -> Option<(Owner<'a>, u64)> {
    let bytes = (key.len() + value.len()) as u64;
    Some(match table {
        Table::Runs => (Owner::Workspace(workspace_of_run(value)?), bytes),
        Table::Terms | Table::Contexts | Table::RunEvents | Table::Journal | Table::RunEnds => {
            (Owner::Run(read_number(key.get(..8)?)?), bytes)
        }
        Table::Events => match first_run(value) {
            Some(run_no) => (Owner::Run(run_no), bytes),
            None => {
                let EventHead { conversation } = serde_json::from_slice(event_json(value)?).ok()?;
                (Owner::Workspace(conversation.and_then(|head| head.workspace_id).unwrap_or_default()), bytes)
            }
        },
        Table::State => {
            let (scope, _) = schema::read_state_key(key)?;
            (Owner::Workspace(workspace_of_state(scope).unwrap_or_default().into()), bytes)
        }
        Table::Storage => {
            let (area, _) = schema::read_state_key(key)?;
            let content = if let StoredValue::Blob(_, size) = read_stored(value)? { size } else { 0 };
            (Owner::Workspace(workspace_of_storage(area).unwrap_or_default().into()), bytes.saturating_add(content))
        }
        Table::Artifacts => {
            let ArtifactHead { size, scope } = serde_json::from_slice(value).ok()?;
            (Owner::Workspace(scope.workspace), bytes.saturating_add(size))
        }
        _ => return None,
    })
}

/// The workspace in the row of a run; empty for a run without one.
pub(crate) fn workspace_of_run(value: &[u8]) -> Option<Cow<'_, str>> {
    let RunHead { workspace_id } = serde_json::from_slice(value).ok()?;
    Some(workspace_id.unwrap_or_default())
}

/// The sums of some changes of rows. `F` gives the workspace of a run that is not among them.
pub(crate) struct UsageChanges<F> {
    workspace_of: F,
    /// Places in `sums`.
    runs: FxHashMap<u64, usize>,
    by_name: HashMap<String, usize>,
    sums: Vec<i64>,
}

impl<F: FnMut(u64) -> Result<String, LedgerError>> UsageChanges<F> {
    pub(crate) fn new(workspace_of: F) -> Self {
        Self { workspace_of, runs: FxHashMap::default(), by_name: HashMap::new(), sums: Vec::new() }
    }

    /// Counts a row that came.
    pub(crate) fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), LedgerError> {
        self.count(table, key, value, false)
    }

    /// Counts a row that went.
    pub(crate) fn remove(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), LedgerError> {
        self.count(table, key, value, true)
    }

    fn count(&mut self, table: Table, key: &[u8], value: &[u8], is_gone: bool) -> Result<(), LedgerError> {
        let Some((owner, bytes)) = kept(table, key, value) else { return Ok(()) };
        let place = match owner {
            Owner::Run(run_no) => match self.runs.get(&run_no) {
                Some(place) => *place,
                None => {
                    let name = (self.workspace_of)(run_no)?;
                    let place = self.place(&name);
                    self.know(run_no, place);
                    place
                }
            },
            Owner::Workspace(name) => {
                let place = self.place(&name);
                if let (Table::Runs, Some(run_no)) = (table, read_number(key)) {
                    self.know(run_no, place);
                }
                place
            }
        };
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if let Some(sum) = self.sums.get_mut(place) {
            *sum = if is_gone { sum.saturating_sub(bytes) } else { sum.saturating_add(bytes) };
        }
        Ok(())
    }

    fn know(&mut self, run_no: u64, place: usize) {
        if self.runs.len() >= KNOWN_RUNS {
            self.runs.clear();
        }
        self.runs.insert(run_no, place);
    }

    fn place(&mut self, name: &str) -> usize {
        if let Some(place) = self.by_name.get(name) {
            return *place;
        }
        let place = self.sums.len();
        self.sums.push(0);
        self.by_name.insert(name.to_owned(), place);
        place
    }

    /// The changes of the sums that are not zero.
    pub(crate) fn changes(self) -> impl Iterator<Item = (String, i64)> {
        let Self { by_name, sums, .. } = self;
        by_name.into_iter().map(move |(name, place)| (name, sums.get(place).copied().unwrap_or(0))).filter(|(_, sum)| *sum != 0)
    }
}

/// A sum after a change.
pub(crate) fn changed(bytes: u64, change: i64) -> u64 {
    bytes.saturating_add_signed(change)
}

/// Bytes that batches have brought and no merge has counted yet, by workspace. The log bounds them.
#[derive(Default)]
pub(crate) struct PendingUsage {
    /// Bytes of the layer that is being merged.
    frozen: BatchUsage,
    fresh: BatchUsage,
}

/// The bytes that one batch or more have brought, by workspace.
pub(crate) type BatchUsage = FxHashMap<Box<str>, u64>;

/// Adds bytes to the sum of a workspace. A workspace that has one costs no memory.
pub(crate) fn add_usage(to: &mut BatchUsage, workspace: &str, bytes: u64) {
    match to.get_mut(workspace) {
        Some(sum) => *sum = sum.saturating_add(bytes),
        None => drop(to.insert(workspace.into(), bytes)),
    }
}

impl PendingUsage {
    /// Takes over the sums of a batch, which are zero afterwards.
    pub(crate) fn add(&mut self, batch: &mut BatchUsage) {
        for (workspace, bytes) in batch.iter_mut().filter(|(_, bytes)| **bytes > 0) {
            add_usage(&mut self.fresh, workspace, std::mem::take(bytes));
        }
    }

    pub(crate) fn freeze(&mut self) {
        self.frozen = std::mem::take(&mut self.fresh);
    }

    pub(crate) fn merged(&mut self) {
        self.frozen = BatchUsage::default();
    }

    pub(crate) fn of(&self, workspace: &str) -> u64 {
        let of = |usage: &BatchUsage| usage.get(workspace).copied().unwrap_or(0);
        of(&self.frozen).saturating_add(of(&self.fresh))
    }
}

impl Reader {
    /// The sums, with what the rows in memory change: each workspace with rows, in the order of names.
    pub(crate) fn workspace_usage(&self) -> Result<Vec<(String, u64)>, LedgerError> {
        let mut changes = UsageChanges::new(|run_no| self.workspace_of(run_no));
        for table in COUNTED {
            self.table(table)?.each_change(|key, before, after| {
                if let Some(before) = before {
                    changes.remove(table, key, before)?;
                }
                after.map_or(Ok(()), |after| changes.put(table, key, after))
            })?;
        }
        let mut sums = std::collections::BTreeMap::new();
        for row in self.merged(Table::Workspaces)?.iter()? {
            let (name, bytes) = row?;
            let name = std::str::from_utf8(name.value()).map_err(|_| malformed(Table::Workspaces))?;
            let bytes = read_number(bytes.value()).ok_or_else(|| malformed(Table::Workspaces))?;
            sums.insert(name.to_owned(), bytes);
        }
        for (name, change) in changes.changes() {
            let sum = sums.entry(name).or_default();
            *sum = changed(*sum, change);
        }
        sums.retain(|_, bytes| *bytes > 0);
        Ok(sums.into_iter().collect())
    }

    /// The sums, counted row by row, for a check and for tables that are made anew.
    pub(crate) fn counted_usage(&self) -> Result<Vec<(String, u64)>, LedgerError> {
        let mut changes = UsageChanges::new(|run_no| self.workspace_of(run_no));
        for table in COUNTED {
            for row in self.table(table)?.iter()? {
                let (key, value) = row?;
                changes.put(table, key.value(), value.value())?;
            }
        }
        let mut sums: Vec<_> = changes.changes().map(|(name, sum)| (name, changed(0, sum))).collect();
        sums.sort_unstable();
        Ok(sums)
    }

    /// The workspace of a run; empty for a run without one.
    pub(crate) fn workspace_of(&self, run_no: u64) -> Result<String, LedgerError> {
        let read =
            |row: &[u8]| json::<RunHead<'_>>(Table::Runs, row).map(|head| head.workspace_id.unwrap_or_default().into_owned());
        Ok(self.get(Table::Runs, &number(run_no), read)?.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::grant::ConversationKey;

    use super::*;
    use crate::rows::pair;

    fn sums(rows: &[(Table, Vec<u8>, Vec<u8>, bool)]) -> Vec<(String, i64)> {
        let mut changes = UsageChanges::new(|run_no| Ok(format!("of-run-{run_no}")));
        for (table, key, value, is_gone) in rows {
            let counted = if *is_gone { changes.remove(*table, key, value) } else { changes.put(*table, key, value) };
            counted.unwrap();
        }
        let mut sums: Vec<_> = changes.changes().collect();
        sums.sort();
        sums
    }

    #[test]
    fn rows_count_for_their_workspace_with_their_contents() {
        let state = ConversationKey::new("w", "c", "").state_key(&"plugin:a/b/c".parse().unwrap());
        let state_key = schema::state_key(&state, "k");
        let blob = [&[1][..], &[7; 32], &number(1_000)].concat();
        let storage_key = schema::state_key("9:workspace/1:w/", "k");
        let (state_len, storage_len) = (state_key.len() as i64, storage_key.len() as i64);
        let artifact = br#"{"artifact_id":"a","size":500,"scope":{"workspace":"w"}}"#.to_vec();
        let artifact_len = artifact.len() as i64;
        let found = sums(&[
            (Table::Runs, number(1).to_vec(), br#"{"workspace_id":"w"}"#.to_vec(), false),
            (Table::RunEvents, pair(1, 1).to_vec(), vec![0; 10], false),
            (Table::Journal, pair(2, 1).to_vec(), vec![0; 10], false),
            (Table::State, state_key, b"{}".to_vec(), false),
            (Table::Storage, storage_key, blob.clone(), false),
            (Table::Artifacts, b"a".to_vec(), artifact, false),
            (Table::Audit, number(1).to_vec(), vec![0; 10], false),
        ]);
        let all = 8 + 20 + 16 + 10 + state_len + 2 + storage_len + blob.len() as i64 + 1_000 + 1 + artifact_len + 500;
        assert_eq!(found, [("of-run-2".to_owned(), 26), ("w".to_owned(), all)]);
    }

    #[test]
    fn a_row_that_comes_and_goes_leaves_nothing_and_foreign_bytes_count_for_nobody() {
        let mut rows = Vec::new();
        for table in Table::ALL {
            for value in [&b"\xff\xfe"[..], b"{}", b"", b"\x01"] {
                rows.push((*table, b"key".to_vec(), value.to_vec(), false));
                rows.push((*table, pair(1, 1).to_vec(), value.to_vec(), false));
            }
        }
        let gone: Vec<_> = rows.iter().map(|(table, key, value, _)| (*table, key.clone(), value.clone(), true)).collect();
        assert_eq!(sums(&[rows, gone].concat()), []);
    }

    #[test]
    fn what_is_pending_is_counted_until_its_merge() {
        let (mut pending, mut batch) = (PendingUsage::default(), BatchUsage::default());
        add_usage(&mut batch, "w", 10);
        pending.add(&mut batch);
        pending.add(&mut batch);
        assert_eq!((pending.of("w"), batch["w"]), (10, 0));
        pending.freeze();
        add_usage(&mut batch, "w", 5);
        pending.add(&mut batch);
        assert_eq!(pending.of("w"), 15);
        pending.merged();
        assert_eq!((pending.of("w"), pending.of("v")), (5, 0));
    }
}
