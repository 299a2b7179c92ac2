//! The public records of the ledger, for writing and reading.

mod append_mark;
mod value;

pub use append_mark::AppendMark;
pub use value::{
    ArtifactRecord, ArtifactScope, EntryWrite, ExpectedValue, Quota, STORAGE_INLINE_BYTES, StateWrite, StorageContent,
    StorageValue, StorageWrite, UPLOAD, Usage, new_artifact_id,
};

use std::{borrow::Cow, sync::Arc};

use agent_host_protocol::{
    Event, EventId, EventSource, Run, RunId, RunStatus, RunnerId, Timestamp,
    context::RunContext,
    encoded::JsonText,
    grant::ConversationKey,
    message::{ArtifactRef, ContentPart},
    run::Terminal,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use crate::files::Blob;

/// A new event, with the runs that it makes.
#[derive(Debug, Clone)]
pub struct Accept {
    /// The event, with a new id.
    pub event: Arc<Event>,
    /// Makes a repeated request harmless.
    pub idempotency: Option<Idempotency>,
    /// The runs that answer it. Their ids must be new, their status `created`, their `last_sequence` the number of the
    /// events that they come with.
    pub runs: Vec<NewRun>,
    /// Items for the transcript in front of that of the event, oldest first: history that the event brings along.
    pub history: Vec<NewItem>,
    /// Item for the transcript.
    pub transcript: Option<NewItem>,
    /// Artifacts that come with it, such as a raw payload that is too large for the event. Their blobs are there.
    pub artifacts: Vec<ArtifactRecord>,
    /// Ids of artifacts that the event refers to: uploads are kept from now on. An unknown id refuses the event with
    /// [`crate::LedgerError::NotFound`].
    pub refers_to: Vec<String>,
    /// Entries that are put or deleted with it.
    pub entries: Vec<EntryWrite>,
    /// State that comes with it. Written only where the event is new; readers see it as soon as it is admitted.
    pub state: Vec<StateWrite>,
    /// The events that leave its conversation with it.
    pub branch: Option<Branch>,
}

/// A new branch of a conversation: the events from one on leave it, and the accepted event takes their place. Their rows stay, with
/// their runs and items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Branch {
    /// The first event that leaves. It is an event of the conversation and has not left it before, or the accept is refused with
    /// [`crate::LedgerError::Conflict`].
    pub from: EventId,
    /// The first event that stays, where the client has sent several messages; later ones stay too.
    pub until: Option<EventId>,
}

/// A conversation to be forgotten ([`crate::Ledger::forget_conversation`]).
#[derive(Debug, Clone)]
pub struct Forget {
    /// The conversation.
    pub conversation: ConversationKey,
    /// Runs of the conversation and their descendants, by number and id: each before its parent. All of them have ended.
    pub runs: Vec<(u64, RunId)>,
    /// The scopes in which its state is.
    pub state: Vec<String>,
    /// The wait key of its parked runs. The conversation is not deleted while a run waits for the key.
    pub waits: String,
}

/// The deleted data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeletedData {
    /// Values of state.
    pub values: u64,
    /// Items of the transcript.
    pub items: u64,
    /// Artifacts.
    pub artifacts: u64,
    /// Runs whose events, context and journal were deleted.
    pub runs: u64,
    /// Events whose content was taken out.
    pub events: u64,
}

/// A key that a client gives to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// 1 to 255 bytes.
    pub key: String,
    /// Tells a repetition from another request with the same key.
    pub body_hash: [u8; 32],
}

/// A JSON object in two parts that are read as one: members of `own` are merged with those of `shared`, also within members
/// that are objects in both. The ledger does not interpret them otherwise.
#[derive(Debug, Clone)]
pub struct JsonParts {
    /// A JSON object that many runs have alike: equal ones are stored once.
    pub shared: JsonText,
    /// A JSON object with the rest.
    pub own: JsonText,
}

impl From<JsonText> for JsonParts {
    fn from(shared: JsonText) -> Self {
        Self { shared, own: JsonText::empty_object() }
    }
}

impl From<Box<RawValue>> for JsonParts {
    fn from(whole: Box<RawValue>) -> Self {
        JsonText::from(whole).into()
    }
}

/// The context of a run, as it is given to the runner.
#[derive(Debug, Clone)]
pub enum NewContext {
    /// A JSON object, which is stored as it is.
    Whole(JsonText),
    /// Without what the event of the run says: read with [`agent_host_protocol::context::EventPart`] of it.
    Parts(JsonParts),
}

impl NewContext {
    /// A context in parts.
    ///
    /// # Errors
    /// For a context that JSON does not take; one that was read from JSON is none.
    pub fn of(context: &RunContext) -> serde_json::Result<Self> {
        let (shared, own) = context.parts();
        Ok(Self::Parts(JsonParts { shared: JsonText::of(&shared)?, own: JsonText::of(&own)? }))
    }
}

impl From<Box<RawValue>> for NewContext {
    fn from(whole: Box<RawValue>) -> Self {
        Self::Whole(whole.into())
    }
}

/// A run to be.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Record of the run.
    pub run: Run,
    /// Terms of the run. The ledger does not interpret them.
    pub terms: JsonParts,
    /// Facts of its creation: its events from 1 on. None of them ends the run.
    pub events: Vec<NewEvent>,
}

/// The outcome of [`crate::Ledger::accept`].
#[derive(Debug, Clone)]
pub enum AcceptOutcome {
    /// The event is in the ledger.
    New {
        /// Number of the event.
        event_no: u64,
        /// Runs of the event, in the given order.
        runs: Vec<RunRecord>,
        /// Number of the item in the transcript.
        transcript_seq: Option<u64>,
    },
    /// The same request was accepted before; nothing was written.
    Repeated {
        /// The event that it made then.
        event_id: EventId,
    },
}

/// An item for a transcript. The ledger assigns its number.
#[derive(Debug, Clone)]
pub struct NewItem {
    /// The transcript.
    pub conversation: ConversationKey,
    /// The event that it belongs to.
    pub event_id: EventId,
    /// The run that said it, where one did.
    pub run_id: Option<RunId>,
    /// `user`, `assistant`, `tool`, `system` or `developer`.
    pub role: Cow<'static, str>,
    /// `message`, `tool-call`, `tool-result`, `notice`, ...
    pub item_type: Cow<'static, str>,
    /// Content of the message.
    pub content: Vec<ContentPart>,
    /// Artifacts of the message.
    pub artifacts: Vec<ArtifactRef>,
    /// Time at which the host accepted the item.
    pub created_at: Timestamp,
}

/// The changes of a run at one moment: written as a whole or not at all.
#[derive(Debug, Clone, Default)]
pub struct RunWrite {
    /// The run.
    pub run_no: u64,
    /// Steps of its life, in order.
    pub changes: Vec<RunChange>,
    /// Context of the run.
    pub context: Option<NewContext>,
    /// Events that continue the run's sequence without a gap.
    pub events: Vec<NewEvent>,
    /// Items for transcripts.
    pub transcript: Vec<NewItem>,
    /// State that it sets or deletes.
    pub state: Vec<StateWrite>,
    /// Bytes that it keeps or deletes.
    pub storage: Vec<StorageWrite>,
    /// Artifacts that it makes. Their blobs are there.
    pub artifacts: Vec<ArtifactRecord>,
    /// Ids of artifacts that the write refers to: uploads are kept from now on. Unknown ids are ignored: a caller that must
    /// know asks [`crate::Ledger::artifact`] first.
    pub refers_to: Vec<String>,
    /// Audit records.
    pub audit: Arc<[AuditRecord]>,
    /// Next segment of the journal. With [`RunChange::Retry`] in the same write, the first one.
    pub journal: Option<JournalSegment>,
    /// Parks it: valid only where [`RunChange::Wait`] or [`RunChange::Due`] is the last step of the same write.
    pub park: Option<Park>,
    /// Entries that are put or deleted with it.
    pub entries: Vec<EntryWrite>,
    /// The claim under which it is written, else nothing of the whole write happens
    /// ([`crate::LedgerError::Fenced`]).
    pub claim: Option<u32>,
}

/// A piece of the journal of a run: an append-only sequence that the ledger does not look into.
#[derive(Debug, Clone)]
pub struct JournalSegment {
    /// Number of its first entry: larger than that of every earlier segment of the run.
    pub first: u64,
    /// The entries, as the caller writes them.
    pub bytes: Vec<u8>,
    /// Blobs that the entries name. They are kept as long as the segment.
    pub blobs: Vec<Blob>,
}

/// A segment of a journal, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRow {
    /// Number of its first entry.
    pub first: u64,
    /// The entries.
    pub bytes: Vec<u8>,
    /// Digests of the blobs that it keeps.
    pub blobs: Vec<[u8; 32]>,
}

/// Until when a run that has left the memory of the host waits, and for what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Park {
    /// Time at which the run continues at the latest.
    pub wake_at: Timestamp,
    /// Wait keys: at most 64 names of 1 to 4,088 bytes. The ledger does not interpret them.
    #[serde(default)]
    pub keys: Vec<String>,
}

/// A new run for an event that is already in the ledger.
#[derive(Debug, Clone)]
pub struct AddRun {
    /// Record of the run: a new id, the id of the event, status `created`, and the number of its events.
    pub run: Run,
    /// Terms of the run. The ledger does not interpret them.
    pub terms: JsonParts,
    /// Context, if the run has one already.
    pub context: Option<NewContext>,
    /// Events so far, numbered from 1 without a gap. None of them is terminal.
    pub events: Vec<NewEvent>,
    /// Journal so far.
    pub journal: Option<JournalSegment>,
    /// Entries that are put or deleted with it.
    pub entries: Vec<EntryWrite>,
}

/// A step in the life of a run.
#[derive(Debug, Clone)]
pub enum RunChange {
    /// The run waits for its turn.
    Queue {
        /// Time of the change.
        at: Timestamp,
    },
    /// The guest starts (again).
    Start {
        /// Time of the change.
        at: Timestamp,
        /// New deadline; `None` keeps the present one.
        deadline_at: Option<Timestamp>,
    },
    /// The run waits.
    Wait {
        /// Time of the change.
        at: Timestamp,
        /// For what.
        reason: String,
    },
    /// The run continues.
    Resume {
        /// Time of the change.
        at: Timestamp,
    },
    /// A new attempt of a run that was active when the host crashed: its journal is deleted, and its status is `running`.
    /// Allowed for a run that is `claimed`, `running` or `waiting`.
    Retry {
        /// Time of the change.
        at: Timestamp,
        /// Deadline of the new attempt; `None` for no deadline.
        deadline_at: Option<Timestamp>,
    },
    /// The run is resumed after a stop of the host, with its status unchanged. Allowed for a run that is `claimed`,
    /// `running` or `waiting`.
    Recover {
        /// Time of the change.
        at: Timestamp,
    },
    /// The run is offered to an executor that waits for one. Allowed for a run with a place in a queue.
    Dispatch {
        /// Time of the change.
        at: Timestamp,
    },
    /// An executor has claimed the run and will execute it. Allowed for a run with a place in a queue.
    Claim {
        /// Time of the change.
        at: Timestamp,
        /// Id of the executor.
        executor_id: String,
        /// Until when, unless the claim is renewed.
        lease_expires_at: Timestamp,
    },
    /// The lease of the claim is renewed.
    Renew {
        /// Time of the change.
        at: Timestamp,
        /// Until when.
        lease_expires_at: Timestamp,
    },
    /// The executor has appended results, up to this number.
    Append {
        /// The number of the last one, counted by the executor from 1.
        through: u64,
    },
    /// The claim was released or lost, or an offer was not taken: the run waits for another claim.
    Release {
        /// Time of the change.
        at: Timestamp,
        /// Reason of the change.
        reason: String,
        /// Earliest time of the next claim.
        not_before: Option<Timestamp>,
        /// True if the claim counts as an attempt.
        attempted: bool,
    },
    /// Someone asked for its end. The first request is kept, later ones change nothing.
    CancelRequested {
        /// Time of the change.
        at: Timestamp,
        /// Reason of the change.
        reason: String,
    },
    /// The run ends. The terminal event comes last in the same write.
    End {
        /// Time of the change.
        at: Timestamp,
        /// End of the run.
        terminal: Terminal,
    },
    /// Makes a parked run due: the wake time of its park row becomes `at`. Status, reason and keys stay, unless the same
    /// write has a new park row. Refused for a run that is not parked ([`crate::LedgerError::Transition`]).
    Due {
        /// Time of the change.
        at: Timestamp,
    },
}

/// An event of a run, numbered by the host.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// 1 for the first event of the run.
    pub sequence: u64,
    /// Type of the event.
    pub kind: Cow<'static, str>,
    /// Data of the event, a JSON value.
    pub data: JsonText,
    /// Time at which the host accepted the event.
    pub timestamp: Timestamp,
    /// Author of the event.
    pub source: EventSource,
    /// The metadata that an executor has sent beside the data: a JSON object.
    pub metadata: Option<JsonText>,
}

/// A record of an allowed or refused call: the caller, the function, and its target.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct AuditRecord {
    /// Time of the call.
    pub at: Timestamp,
    /// The run that did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// Runner of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<RunnerId>,
    /// Binding of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding_id: Option<String>,
    /// Function of the call, such as `state.set`.
    pub action: Cow<'static, str>,
    /// To what.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// In which scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Cow<'static, str>>,
    /// `ok`, or the code of the refusal.
    pub outcome: Cow<'static, str>,
    /// Duration, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// Number of bytes transferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// More of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

/// A run and the number under which the ledger keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// Later runs have larger numbers.
    pub run_no: u64,
    /// The run.
    pub run: Arc<Run>,
}

/// An event and what came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRecord {
    /// Later events have larger numbers.
    pub event_no: u64,
    /// The event.
    pub event: Event,
    /// The runs that it made.
    pub runs: Vec<RunId>,
    /// Number of the event's item in the transcript of its conversation: of the last one, where it brought history along.
    pub transcript_seq: Option<u64>,
}

/// The filters of a list of runs. An absent field matches every run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of the fields of a run")]
pub struct RunFilter {
    pub status: Option<RunStatus>,
    pub runner_id: Option<RunnerId>,
    pub binding_id: Option<String>,
    pub conversation_id: Option<String>,
    pub workspace_id: Option<String>,
    pub event_id: Option<EventId>,
    pub parent_run_id: Option<RunId>,
}

impl RunFilter {
    /// True if the run matches.
    #[must_use]
    pub fn matches(&self, run: &Run) -> bool {
        fn same(wanted: Option<&String>, has: Option<&String>) -> bool {
            wanted.is_none() || wanted == has
        }
        self.status.is_none_or(|status| status == run.status)
            && self.event_id.is_none_or(|event_id| event_id == run.event_id)
            && self.parent_run_id.is_none_or(|parent| run.parent_run_id == Some(parent))
            && self.runner_id.as_ref().is_none_or(|runner_id| *runner_id == run.runner_id)
            && same(self.binding_id.as_ref(), Some(&run.binding_id))
            && same(self.conversation_id.as_ref(), run.conversation_id.as_ref())
            && same(self.workspace_id.as_ref(), run.workspace_id.as_ref())
    }
}
