//! Tables and keys. Every table maps bytes to bytes; numbers in keys are big-endian, so they sort as numbers.

use agent_host_protocol::RunId;
use redb::TableDefinition;

use crate::digest::Digest;

/// Version of the format on disk. A file with a larger one is refused; a change that older hosts would misread
/// raises it.
///
/// 2: artifacts, storage, usage and the events of a conversation. A ledger of format 1 is brought to it when it is
/// opened (`upgrade.rs`).
///
/// 3: journals of runs and parked runs.
///
/// 4: entries.
///
/// 5: the log is in two files, and rows that redb does not have are in it and in memory.
///
/// 6: a row of run events or of audit records holds several, and the log has no rows of tables that follow from others.
///
/// 7: what the terms and the contexts of many runs have alike is stored once, and a context has nothing that its event says.
///
/// 8: an event of a run has its source, and the metadata that an executor has sent with it; lists of runs.
///
/// 9: the row of an event has the terms of its runs and is its own index in the log; the end of a run is one row.
///
/// 10: conversations have branches, which are entries.
///
/// 11: the bytes that workspaces keep.
pub(crate) const FORMAT: u32 = 11;

/// Longest key of any table: the longest conversation index (three ids of 256 bytes) and the longest state key
/// (a scope of four such parts and a key of 256 bytes) fit several times over.
pub(crate) const MAX_KEY_BYTES: usize = 4096;

macro_rules! tables {
    ($($(#[$doc:meta])* $variant:ident = $id:literal $name:literal),* $(,)?) => {
        /// Every table, with the number that names it in the log. Numbers are never reused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub(crate) enum Table { $($(#[$doc])* $variant = $id),* }

        impl Table {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            pub(crate) const fn from_id(id: u8) -> Option<Self> {
                match id { $($id => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

tables! {
    /// Format, seed of the log, last batch that is in the file. Written by merges, never through the log.
    Meta = 0 "meta",
    /// `event_no` → event, its runs with their terms, its place in its conversation.
    Events = 1 "events",
    /// 16 bytes of the event id → `event_no`. A piece of the row in `events`, as are those of `run_ids`, `conversation_events` and
    /// of the conversations that events begin: the log has no rows of them.
    EventIds = 2 "event_ids",
    /// `run_no` → run.
    Runs = 3 "runs",
    /// 16 bytes of the run id → `run_no`.
    RunIds = 4 "run_ids",
    /// `run_no` → digest of the shared part of its terms, and JSON of the rest: of runs of formats before 9.
    Terms = 5 "terms",
    /// `run_no` → digest of the shared part of its context, and JSON of its own part; the event has the rest.
    Contexts = 6 "contexts",
    /// `(run_no, sequence of the first)` → events that follow each other: type, data and time of each.
    RunEvents = 7 "run_events",
    /// `run_no` → nothing, for every run whose status is not terminal. Follows from `runs`.
    Active = 8 "active",
    /// Index of the conversation → its number and its key.
    Conversations = 9 "conversations",
    /// `(conversation_no, seq)` → item.
    Transcript = 10 "transcript",
    /// `(scope, key)` → JSON text.
    State = 11 "state",
    /// `audit_no` of the first → records that follow each other: run and JSON of each.
    Audit = 12 "audit",
    /// `(run id, audit_no)` → nothing. Follows from `audit`.
    AuditRuns = 13 "audit_runs",
    /// Idempotency key → hash of the body, event, time.
    Idempotency = 14 "idempotency",
    /// `event_no` → its idempotency key and the time, so that old ones are found in order.
    IdempotencyAge = 15 "idempotency_age",
    /// Artifact id → record.
    Artifacts = 16 "artifacts",
    /// `(expires_at, artifact id)` → nothing, for every artifact that expires.
    ArtifactExpiry = 17 "artifact_expiry",
    /// Artifact id → when it was taken, for every upload that nothing refers to yet.
    Unreferenced = 18 "unreferenced",
    /// `(sha256, kind, name)` → nothing, for every row that needs a blob.
    BlobRefs = 19 "blob_refs",
    /// `(area, key)` → bytes, or the blob that has them.
    Storage = 20 "storage",
    /// `(table, scope or area)` → bytes and keys that it has in that table.
    Usage = 21 "usage",
    /// `(conversation_no, event_no)` → type of the event, for every event that belongs to a conversation.
    ConversationEvents = 22 "conversation_events",
    /// `(run_no, number of the first entry)` → digests of the blobs that the segment needs, and its bytes.
    Journal = 23 "journal",
    /// `run_no` → until when and for what, for every run that has left the memory of the host.
    Parked = 24 "parked",
    /// `(wake_at, run_no)` → nothing, for every parked run.
    Wakes = 25 "wakes",
    /// `key, run_no` → nothing, for everything that a parked run waits for.
    Waits = 26 "waits",
    /// `KIND/ID` → JSON.
    Entries = 27 "entries",
    /// SHA-256 → JSON that the terms or the contexts of many runs have alike.
    SharedParts = 28 "shared_parts",
    /// `(kind of list, value, run_no)` → nothing: the runs of conversations, parents, bindings and final statuses. Follows from
    /// `runs`.
    RunLists = 29 "run_lists",
    /// `run_no` → context, events and segments of the journal that the batch has which ended the run.
    RunEnds = 30 "run_ends",
    /// Workspace → bytes that the ledger keeps for it. Follows from other tables; written by merges, never through the log.
    Workspaces = 31 "workspaces",
}

/// The type of every table in redb.
type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

impl Table {
    pub(crate) const fn definition(self) -> Definition {
        TableDefinition::new(self.name())
    }

    pub(crate) const fn id(self) -> u8 {
        self as u8
    }
}

/// Rows of [`Table::Meta`].
pub(crate) mod meta {
    pub(crate) const FORMAT: &[u8] = b"format";
    pub(crate) const LOG_SEED: &[u8] = b"log_seed";
    pub(crate) const APPLIED_BATCH: &[u8] = b"applied_batch";
    /// Present if the ledger has files of the log.
    pub(crate) const HAS_LOG: &[u8] = b"has_log";
    /// Present if the ledger is a copy of a cluster's: the epoch of `APPLIED_BATCH`.
    pub(crate) const APPLIED_EPOCH: &[u8] = b"applied_epoch";
    /// The epochs of a copy up to `APPLIED_BATCH`, the newest first: pairs of an epoch and its last batch.
    pub(crate) const EPOCHS: &[u8] = b"epochs";
}

pub(crate) const fn number(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

pub(crate) fn read_number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

pub(crate) fn pair(first: u64, second: u64) -> [u8; 16] {
    ((u128::from(first) << 64) | u128::from(second)).to_be_bytes()
}

pub(crate) fn read_pair(bytes: &[u8]) -> Option<(u64, u64)> {
    let both = u128::from_be_bytes(bytes.try_into().ok()?);
    Some((u64::try_from(both >> 64).ok()?, both as u64))
}

pub(crate) fn audit_run(run_id: RunId, audit_no: u64) -> [u8; 24] {
    let mut key = [0; 24];
    let (id, no) = key.split_at_mut(16);
    id.copy_from_slice(&run_id.to_bytes());
    no.copy_from_slice(&number(audit_no));
    key
}

pub(crate) fn read_audit_run(bytes: &[u8]) -> Option<(RunId, u64)> {
    let (id, no) = bytes.split_at_checked(16)?;
    Some((RunId::from_bytes(id.try_into().ok()?), read_number(no)?))
}

/// The scope carries its length, so no choice of scope and key can look like another.
pub(crate) fn state_key(scope: &str, key: &str) -> Vec<u8> {
    let len = u32::try_from(scope.len()).unwrap_or(u32::MAX);
    [&len.to_be_bytes(), scope.as_bytes(), key.as_bytes()].concat()
}

pub(crate) fn read_state_key(bytes: &[u8]) -> Option<(&str, &str)> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    let (scope, key) = rest.split_at_checked(len)?;
    Some((std::str::from_utf8(scope).ok()?, std::str::from_utf8(key).ok()?))
}

/// A kind of reference to a blob: the third part of a key of [`Table::BlobRefs`] is the id of an artifact.
pub(crate) const BY_ARTIFACT: u8 = b'a';
/// A kind of reference to a blob: the third part of a key of [`Table::BlobRefs`] is a key of [`Table::Storage`].
pub(crate) const BY_STORAGE: u8 = b's';
/// A kind of reference to a blob: the third part of a key of [`Table::BlobRefs`] is a key of [`Table::Journal`].
pub(crate) const BY_JOURNAL: u8 = b'j';

pub(crate) fn blob_ref(digest: &Digest, kind: u8, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(digest.len() + 1 + name.len());
    key.extend_from_slice(digest);
    key.push(kind);
    key.extend_from_slice(name);
    key
}

pub(crate) fn read_blob_ref(bytes: &[u8]) -> Option<(&Digest, u8, &[u8])> {
    let (digest, rest) = bytes.split_first_chunk()?;
    let (kind, name) = rest.split_first()?;
    Some((digest, *kind, name))
}

pub(crate) fn expiry(at: u64, id: &str) -> Vec<u8> {
    [&number(at), id.as_bytes()].concat()
}

pub(crate) fn read_expiry(bytes: &[u8]) -> Option<(u64, &str)> {
    let (at, id) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*at), std::str::from_utf8(id).ok()?))
}

/// The number has a fixed length, so the key needs no length.
pub(crate) fn wait_key(key: &str, run_no: u64) -> Vec<u8> {
    [key.as_bytes(), &number(run_no)].concat()
}

pub(crate) fn read_wait_key(bytes: &[u8]) -> Option<(&str, u64)> {
    let (key, run_no) = bytes.split_last_chunk::<8>()?;
    Some((std::str::from_utf8(key).ok()?, u64::from_be_bytes(*run_no)))
}

/// Passes the key of a usage on. A key of usual length takes no memory.
pub(crate) fn with_usage_key<T>(table: Table, scope: &str, take: impl FnOnce(&[u8]) -> T) -> T {
    let mut short = [0; 256];
    match short.get_mut(..=scope.len()).and_then(<[u8]>::split_first_mut) {
        Some((first, rest)) => {
            *first = table.id();
            rest.copy_from_slice(scope.as_bytes());
        }
        None => return take(&usage_key(table, scope)),
    }
    take(short.get(..=scope.len()).unwrap_or_default())
}

pub(crate) fn usage_key(table: Table, scope: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(scope.len() + 1);
    key.push(table.id());
    key.extend_from_slice(scope.as_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_and_sort_as_numbers() {
        assert_eq!(read_pair(&pair(7, u64::MAX)), Some((7, u64::MAX)));
        assert!(pair(1, u64::MAX) < pair(2, 0) && number(255) < number(256));
        let id = RunId::new();
        assert_eq!(read_audit_run(&audit_run(id, 9)), Some((id, 9)));
        assert_eq!(read_state_key(&state_key("a/b", "k")), Some(("a/b", "k")));
        assert_ne!(state_key("a", "bc"), state_key("ab", "c"));
        let digest = [7; 32];
        assert_eq!(read_blob_ref(&blob_ref(&digest, BY_STORAGE, b"x")), Some((&digest, BY_STORAGE, &b"x"[..])));
        assert_eq!(read_expiry(&expiry(9, "id")), Some((9, "id")));
        assert_eq!(read_wait_key(&wait_key("é", u64::MAX)), Some(("é", u64::MAX)));
    }

    #[test]
    fn a_usage_has_one_key_whatever_its_length() {
        for len in [0, 1, 254, 255, 256, 1_000] {
            let scope = "s".repeat(len);
            assert_eq!(with_usage_key(Table::State, &scope, <[u8]>::to_vec), usage_key(Table::State, &scope));
        }
    }

    #[test]
    fn foreign_bytes_are_no_keys() {
        assert_eq!(read_number(b"short"), None);
        assert_eq!(read_pair(b""), None);
        assert_eq!(read_state_key(&[0, 0, 0, 9, b'x']), None);
        assert_eq!(read_blob_ref(&[0; 32]), None);
        assert_eq!(read_expiry(b"short"), None);
        assert_eq!(read_wait_key(b"short"), None);
    }

    #[test]
    fn every_table_has_its_own_number_and_name() {
        for (place, table) in Table::ALL.iter().enumerate() {
            assert_eq!(Table::from_id(table.id()), Some(*table));
            assert_eq!(usize::from(table.id()), place);
            assert_eq!(Table::ALL.iter().filter(|other| other.name() == table.name()).count(), 1);
        }
        assert_eq!(Table::from_id(200), None);
    }
}
