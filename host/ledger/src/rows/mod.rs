//! Rows: tables and keys, their encoding, changes of rows, and the reader of committed rows, in memory and in redb.

mod audit;
mod branches;
mod change;
mod copy;
mod derived;
mod event_row;
mod forgotten;
mod format;
mod journal;
mod layer;
mod packed;
mod parts;
mod piece;
mod range;
mod reader;
mod row_set;
mod run_end;
mod run_event;
mod run_list;
pub(crate) mod schema;
mod value;
mod view;
mod workspace;

pub(crate) use audit::{AuditRow, StoredAudit, stored_audit};
pub(crate) use branches::{Branches, ReplacedEvents};
pub(crate) use change::{Change, HEADER, MalformedRow, Rows, changes};
pub use copy::CopyReader;
pub(crate) use derived::{derive, source as table_source};
pub(crate) use event_row::{EventRow, EventRun, stored_event};
pub(crate) use forgotten::{FORGOTTEN, forgotten_end, forgotten_event, forgotten_run};
pub(crate) use format::{
    ConversationRow, IDEMPOTENCY_TTL_MS, IdempotencyAgeRow, IdempotencyRow, TranscriptRow, bounded, encode, json, malformed, raw,
    stored_run,
};
pub(crate) use journal::{delete_segment, ended_before, read_segment};
pub(crate) use layer::{Layer, Row};
pub(crate) use packed::{PackedItems, count};
pub(crate) use parts::{ContextRow, PartsRow, StoredParts, digest as part_digest};
pub(crate) use range::{Cell, Range};
pub(crate) use reader::Reader;
pub(crate) use row_set::RowSet;
pub(crate) use run_end::{BatchPart, RunEnd};
pub(crate) use run_event::{StoredEvent, digest_after, pack_events, stored_events};
pub(crate) use run_list::{ListedRun, ListedRuns, RunList, listed_run_no};
pub(crate) use schema::{
    BY_ARTIFACT, BY_JOURNAL, BY_STORAGE, FORMAT, MAX_KEY_BYTES, Table, audit_run, blob_ref, expiry, meta, number, pair,
    read_number, read_pair, read_wait_key, wait_key,
};
pub use value::state_tag;
pub(crate) use value::{StoredValue, ValueSummary, is_expected, read_stored, read_usage};
#[cfg(test)]
pub(crate) use view::LOOKUPS;
pub(crate) use view::{Base, StoredRows, View, Views};
pub(crate) use workspace::{BatchUsage, Owner, UsageChanges, add_usage, changed, kept, workspace_of_run};
