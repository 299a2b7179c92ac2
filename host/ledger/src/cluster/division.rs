//! The rows of a ledger of its own, divided among the partitions of a cluster by the workspaces that they belong to.
//!
//! A partition numbers its events, its runs and its audit records from 1 without gaps, so these get other numbers, in the same order. Ids stay, and
//! so do the numbers of conversations. What several workspaces have in common, such as shared parts of terms, goes to each partition.

use std::borrow::Cow;

use agent_host_protocol::{
    EventId, HashSlot, RunId,
    grant::{workspace_of_state, workspace_of_storage},
};
use rustc_hash::FxHashMap;
use serde::Deserialize;

use crate::{
    cluster::partition::Partition,
    cluster_error::ClusterError,
    error::{LedgerError, OpenError},
    rows::{
        BY_ARTIFACT, BY_JOURNAL, BY_STORAGE, Branches, ConversationRow, EventRow, IdempotencyRow, Owner, PackedItems, Reader,
        StoredAudit, Table, blob_ref, encode, json, kept, malformed, number, pair, read_number, read_pair, read_wait_key, schema,
        stored_audit, wait_key,
    },
};

/// The place of an entry of the ledger in a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryPlace {
    /// The first partition.
    First,
    /// Each partition.
    Everywhere,
    /// The partition of a run.
    OfRun(RunId),
    /// The partition of a workspace.
    OfWorkspace(Option<String>),
}

/// Tells the place of an entry by its key and its JSON. `None` for an entry of no known kind.
pub type PlaceOfEntry<'a> = &'a dyn Fn(&str, &str) -> Option<EntryPlace>;

/// Numbers of rows that follow each other, and those that they get, each in one partition.
struct Numbers {
    /// The number of the first one.
    first: u64,
    /// A partition and its number there.
    given: Vec<(u8, u64)>,
    /// The next number of each partition.
    next: Vec<u64>,
}

impl Numbers {
    fn new(first: u64, parts: u32) -> Self {
        Self { first, given: Vec::new(), next: vec![1; parts as usize] }
    }

    /// Gives the next row a number in a partition.
    fn give(&mut self, part: u32) -> u64 {
        let number = self.next.get_mut(part as usize).map_or(0, |next| {
            *next += 1;
            *next - 1
        });
        // A cluster has 64 partitions at most.
        self.given.push((u8::try_from(part).unwrap_or(u8::MAX), number));
        number
    }

    /// The number that the next row has in the ledger.
    fn wanted(&self) -> u64 {
        self.first + self.given.len() as u64
    }

    /// The first and the last number in a partition of the rows `first..=last`. `None` where none of them is there.
    fn of_interval(&self, part: u32, first: u64, last: u64) -> Option<(u64, u64)> {
        let place = |old: u64| usize::try_from(old.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let end = self.given.len().min(place(last).saturating_add(1));
        let mut there = self.given.get(place(first)..end)?.iter().filter(|(of, _)| u32::from(*of) == part);
        let first = there.next()?.1;
        Some((first, there.next_back().map_or(first, |(_, last)| *last)))
    }

    fn of(&self, table: Table, old: u64) -> Result<(u32, u64), LedgerError> {
        let place = old.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        let given = place.and_then(|place| self.given.get(place)).ok_or_else(|| malformed(table))?;
        Ok((given.0.into(), given.1))
    }
}

/// The members of a run that say where it is.
#[derive(Deserialize)]
struct RunHead<'a> {
    run_id: RunId,
    event_id: EventId,
    #[serde(default, borrow)]
    workspace_id: Option<Cow<'a, str>>,
}

/// Takes a row of a partition.
pub(crate) type Put<'a, E> = &'a mut dyn FnMut(u32, &[u8], &[u8]) -> Result<(), E>;

/// See the module.
pub(crate) struct Division<'a> {
    reader: &'a Reader,
    parts: u32,
    entries: PlaceOfEntry<'a>,
    runs: Numbers,
    events: Numbers,
    audit: Numbers,
    conversations: FxHashMap<u64, u32>,
    /// Runs whose ids end with the slot of another partition, as those of versions before.
    pub(crate) other_ids: u64,
}

impl<'a> Division<'a> {
    /// Numbers the rows for so many partitions.
    ///
    /// # Errors
    /// [`ClusterError::ImportDivides`] where rows that belong together would come apart; [`ClusterError::ImportOtherIds`] where a run that has not
    /// ended would not be found by its id; [`OpenError`] where rows cannot be read.
    pub(crate) fn new(dir: &str, reader: &'a Reader, parts: u32, entries: PlaceOfEntry<'a>) -> Result<Self, OpenError> {
        let first_audit = reader.table(Table::Audit)?.first()?.map(|(key, _)| read_number(key.value()));
        let mut division = Self {
            reader,
            parts,
            entries,
            runs: Numbers::new(1, parts),
            events: Numbers::new(1, parts),
            audit: Numbers::new(first_audit.flatten().unwrap_or(1), parts),
            conversations: FxHashMap::default(),
            other_ids: 0,
        };
        let waiting = division.number_runs()?;
        if waiting > 0 {
            return Err(ClusterError::ImportOtherIds { dir: dir.to_owned(), runs: waiting }.into());
        }
        division.number_events()?;
        match division.divided()? {
            Some(what) => Err(ClusterError::ImportDivides { dir: dir.to_owned(), what }.into()),
            None => Ok(division),
        }
    }

    /// Number of the partitions.
    pub(crate) fn parts(&self) -> u32 {
        self.parts
    }

    fn of_slot(&self, slot: HashSlot) -> u32 {
        Partition::of_slot(slot, self.parts).number()
    }

    fn of_workspace(&self, workspace: Option<&str>) -> u32 {
        self.of_slot(HashSlot::of_workspace(workspace))
    }

    /// Numbers the runs; gives the number of those that have not ended and that no request would find by their ids.
    fn number_runs(&mut self) -> Result<u64, LedgerError> {
        let active = self.reader.table(Table::Active)?;
        let mut waiting = 0;
        for row in self.reader.table(Table::Runs)?.iter()? {
            let (key, value) = row?;
            let head: RunHead<'_> = json(Table::Runs, value.value())?;
            let part = self.of_workspace(head.workspace_id.as_deref());
            if self.of_id(head.run_id) != part {
                self.other_ids += 1;
                waiting += u64::from(active.get(key.value())?.is_some());
            }
            follows(Table::Runs, &self.runs, key.value())?;
            self.runs.give(part);
        }
        Ok(waiting)
    }

    fn number_events(&mut self) -> Result<(), LedgerError> {
        for row in self.reader.table(Table::Events)?.iter()? {
            let (key, value) = row?;
            let part = match kept(Table::Events, key.value(), value.value()) {
                Some((Owner::Run(run_no), _)) => self.runs.of(Table::Events, run_no)?.0,
                Some((Owner::Workspace(workspace), _)) => self.of_workspace(Some(&workspace)),
                None => return Err(malformed(Table::Events)),
            };
            follows(Table::Events, &self.events, key.value())?;
            self.events.give(part);
        }
        for row in self.reader.table(Table::Conversations)?.iter()? {
            let (_, value) = row?;
            let row: ConversationRow = json(Table::Conversations, value.value())?;
            self.conversations.insert(row.no, self.of_workspace(Some(row.key.workspace())));
        }
        Ok(())
    }

    /// Two rows that belong together and are in two partitions: a run and its event, or an event and its conversation.
    fn divided(&self) -> Result<Option<String>, LedgerError> {
        for row in self.reader.table(Table::Runs)?.iter()? {
            let (key, value) = row?;
            let head: RunHead<'_> = json(Table::Runs, value.value())?;
            let part = self.of_run(Table::Runs, key.value())?.0;
            let event_no = self.reader.number(Table::EventIds, &head.event_id.to_bytes())?;
            if let Some(event_no) = event_no
                && self.events.of(Table::Runs, event_no)?.0 != part
            {
                return Ok(Some(format!("the run {} and its event {}", head.run_id, head.event_id)));
            }
        }
        for row in self.reader.table(Table::ConversationEvents)?.iter()? {
            let (key, _) = row?;
            let (conversation, event_no) = read_pair(key.value()).ok_or_else(|| malformed(Table::ConversationEvents))?;
            if self.events.of(Table::ConversationEvents, event_no)?.0 != self.of_conversation(conversation)? {
                return Ok(Some(format!("the event {event_no} and its conversation {conversation}")));
            }
        }
        Ok(None)
    }

    fn of_id(&self, run_id: RunId) -> u32 {
        HashSlot::of_id(&run_id.to_string()).map_or(0, |slot| self.of_slot(slot))
    }

    fn of_run(&self, table: Table, key: &[u8]) -> Result<(u32, u64), LedgerError> {
        self.runs.of(table, read_number(key).ok_or_else(|| malformed(table))?)
    }

    /// The partition of a run. That of its id where the run was deleted.
    fn of_run_id(&self, run_id: RunId) -> Result<u32, LedgerError> {
        match self.reader.run_no(run_id)? {
            Some(run_no) => Ok(self.runs.of(Table::RunIds, run_no)?.0),
            None => Ok(self.of_id(run_id)),
        }
    }

    fn of_conversation(&self, no: u64) -> Result<u32, LedgerError> {
        self.conversations.get(&no).copied().ok_or_else(|| malformed(Table::Conversations))
    }

    fn of_artifact(&self, id: &[u8]) -> Result<u32, LedgerError> {
        let part = self.reader.get(Table::Artifacts, id, |value| self.of_owner(Table::Artifacts, id, value))?;
        Ok(part.unwrap_or_default())
    }

    /// The partition of a row that says its workspace.
    fn of_owner(&self, table: Table, key: &[u8], value: &[u8]) -> Result<u32, LedgerError> {
        match kept(table, key, value) {
            Some((Owner::Workspace(workspace), _)) => Ok(self.of_workspace(Some(&workspace))),
            _ => Err(malformed(table)),
        }
    }

    /// The partition of a row that refers to a blob, and the key of the reference there.
    pub(crate) fn blob_ref(&self, key: &[u8]) -> Result<(u32, Vec<u8>), LedgerError> {
        let unknown = || malformed(Table::BlobRefs);
        let (digest, kind, name) = schema::read_blob_ref(key).ok_or_else(unknown)?;
        let part = match kind {
            BY_ARTIFACT => self.of_artifact(name)?,
            BY_STORAGE => {
                let (area, _) = schema::read_state_key(name).ok_or_else(unknown)?;
                self.of_workspace(workspace_of_storage(area))
            }
            BY_JOURNAL => {
                let (run_no, first) = read_pair(name).ok_or_else(unknown)?;
                let (part, run_no) = self.runs.of(Table::BlobRefs, run_no)?;
                return Ok((part, blob_ref(digest, kind, &pair(run_no, first))));
            }
            _ => return Err(unknown()),
        };
        Ok((part, key.to_vec()))
    }

    /// Gives a row to the partitions that it belongs to, with the numbers that it has there. Rows of a table come in the order of their keys, and
    /// tables in that of their numbers.
    pub(crate) fn row<E: From<LedgerError>>(&mut self, table: Table, key: &[u8], value: &[u8], put: Put<'_, E>) -> Result<(), E> {
        let unknown = || malformed(table);
        match table {
            Table::Events => {
                let (part, event) = self.event(key, value)?;
                put(part, &number(self.events.of(table, read_number(key).ok_or_else(unknown)?)?.1), &event)
            }
            Table::EventIds => {
                let (part, event_no) = self.events.of(table, read_number(value).ok_or_else(unknown)?)?;
                put(part, key, &number(event_no))
            }
            Table::RunIds => {
                let (part, run_no) = self.of_run(table, value)?;
                put(part, key, &number(run_no))
            }
            Table::Runs | Table::Active | Table::Terms | Table::Contexts | Table::Parked | Table::RunEnds => {
                let (part, run_no) = self.of_run(table, key)?;
                put(part, &number(run_no), value)
            }
            Table::RunEvents | Table::Journal => {
                let (run_no, second) = read_pair(key).ok_or_else(unknown)?;
                let (part, run_no) = self.runs.of(table, run_no)?;
                put(part, &pair(run_no, second), value)
            }
            Table::Wakes | Table::RunLists => {
                let (rest, run_no) = key.split_last_chunk::<8>().ok_or_else(unknown)?;
                let (part, run_no) = self.of_run(table, run_no)?;
                put(part, &[rest, &number(run_no)].concat(), value)
            }
            Table::Waits => {
                let (name, run_no) = read_wait_key(key).ok_or_else(unknown)?;
                let (part, run_no) = self.runs.of(table, run_no)?;
                put(part, &wait_key(name, run_no), value)
            }
            Table::Conversations => {
                let row: ConversationRow = json(table, value)?;
                put(self.of_conversation(row.no)?, key, value)
            }
            Table::Transcript => {
                let (conversation, _) = read_pair(key).ok_or_else(unknown)?;
                put(self.of_conversation(conversation)?, key, value)
            }
            Table::ConversationEvents => {
                let (conversation, event_no) = read_pair(key).ok_or_else(unknown)?;
                let (part, event_no) = self.events.of(table, event_no)?;
                put(part, &pair(conversation, event_no), value)
            }
            Table::State | Table::Storage | Table::Artifacts => put(self.of_owner(table, key, value)?, key, value),
            Table::Usage => {
                let (of, scope) = key.split_first().ok_or_else(unknown)?;
                let scope = std::str::from_utf8(scope).map_err(|_| unknown())?;
                let is_state = Table::from_id(*of) == Some(Table::State);
                let workspace = if is_state { workspace_of_state(scope) } else { workspace_of_storage(scope) };
                put(self.of_workspace(workspace), key, value)
            }
            Table::ArtifactExpiry => {
                let (_, id) = schema::read_expiry(key).ok_or_else(unknown)?;
                put(self.of_artifact(id.as_bytes())?, key, value)
            }
            Table::Unreferenced => put(self.of_artifact(key)?, key, value),
            Table::BlobRefs => {
                let (part, key) = self.blob_ref(key)?;
                put(part, &key, value)
            }
            Table::Idempotency => {
                let row: IdempotencyRow = json(table, value)?;
                let (part, event_no) = self.events.of(table, row.event_no)?;
                put(part, key, &encode(&IdempotencyRow { event_no, ..row })?)
            }
            Table::IdempotencyAge => {
                let (part, event_no) = self.events.of(table, read_number(key).ok_or_else(unknown)?)?;
                put(part, &number(event_no), value)
            }
            Table::Audit => self.audit_row(key, value, put),
            Table::AuditRuns => {
                let (run_id, audit_no) = schema::read_audit_run(key).ok_or_else(unknown)?;
                let (part, audit_no) = self.audit.of(table, audit_no)?;
                put(part, &schema::audit_run(run_id, audit_no), value)
            }
            Table::Entries => self.entry(key, value, put),
            Table::SharedParts => self.everywhere(key, value, put),
            Table::Workspaces => {
                let workspace = std::str::from_utf8(key).map_err(|_| unknown())?;
                put(self.of_workspace(Some(workspace)), key, value)
            }
            // The facts of one file.
            Table::Meta => Ok(()),
        }
    }

    fn everywhere<E>(&self, key: &[u8], value: &[u8], put: Put<'_, E>) -> Result<(), E> {
        (0..self.parts).try_for_each(|part| put(part, key, value))
    }

    fn event(&self, key: &[u8], value: &[u8]) -> Result<(u32, Vec<u8>), LedgerError> {
        let event_no = read_number(key).ok_or_else(|| malformed(Table::Events))?;
        let (row, mut runs) = EventRow::read(event_no, value)?;
        let (part, event_no) = self.events.of(Table::Events, event_no)?;
        for run in &mut runs {
            run.run_no = self.runs.of(Table::Events, run.run_no)?.1;
        }
        let mut event = Vec::with_capacity(value.len());
        EventRow { event_no, ..row }.write(&mut event, |to| runs.iter().for_each(|run| to.keep(run)));
        Ok((part, event))
    }

    /// The records of a row, which may be of several partitions.
    fn audit_row<E: From<LedgerError>>(&mut self, key: &[u8], value: &[u8], put: Put<'_, E>) -> Result<(), E> {
        let table = Table::Audit;
        follows(table, &self.audit, key)?;
        let mut of_parts: Vec<(u32, PackedItems)> = Vec::new();
        for record in stored_audit(self.audit.wanted(), value)? {
            let (_, record): (u64, StoredAudit<'_>) = record?;
            // What no run did is of the host, as the API keys.
            let part = record.run_id().map_or(Ok(0), |run_id| self.of_run_id(run_id))?;
            let audit_no = self.audit.give(part);
            match of_parts.iter_mut().find(|(of, _)| *of == part) {
                Some((_, row)) => row.push(&record),
                None => {
                    let mut row = PackedItems::new(audit_no);
                    row.push(&record);
                    of_parts.push((part, row));
                }
            }
        }
        for (part, row) in of_parts {
            let mut value = Vec::with_capacity(row.bytes());
            row.write(&mut value);
            put(part, &number(row.first), &value)?;
        }
        Ok(())
    }

    fn entry<E: From<LedgerError>>(&self, key: &[u8], value: &[u8], put: Put<'_, E>) -> Result<(), E> {
        let table = Table::Entries;
        let [name, text] = [key, value].map(std::str::from_utf8);
        let (name, text) = (name.map_err(|_| malformed(table))?, text.map_err(|_| malformed(table))?);
        if let Some(conversation) = name.strip_prefix(Branches::PREFIX) {
            let conversation = u64::from_str_radix(conversation, 16).map_err(|_| malformed(table))?;
            let part = self.of_conversation(conversation)?;
            let branches: Branches = json(table, value)?;
            let branches = branches.renumbered(|(first, last)| self.events.of_interval(part, *first, *last));
            return put(part, key, &encode(&branches)?);
        }
        let part = match (self.entries)(name, text) {
            Some(EntryPlace::Everywhere) => return self.everywhere(key, value, put),
            Some(EntryPlace::First) => 0,
            Some(EntryPlace::OfRun(run_id)) => self.of_run_id(run_id)?,
            Some(EntryPlace::OfWorkspace(workspace)) => self.of_workspace(workspace.as_deref()),
            None => return Err(LedgerError::damaged(format!("the entry `{name}` is of no known kind")).into()),
        };
        put(part, key, value)
    }
}

/// Fails where a row does not follow the one before.
fn follows(table: Table, numbers: &Numbers, key: &[u8]) -> Result<(), LedgerError> {
    if read_number(key) == Some(numbers.wanted()) { Ok(()) } else { Err(malformed(table)) }
}
