//! What is written and what is read: the public records of the ledger.

mod value;

pub use value::{
    ArtifactRecord, ArtifactScope, EntryWrite, Expected, Quota, STORAGE_INLINE_BYTES, StateWrite, StorageContent, StorageValue,
    StorageWrite, UPLOAD, Usage, new_artifact_id,
};

use std::{borrow::Cow, sync::Arc};

use agent_host_protocol::{
    Event, EventId, Run, RunId, RunStatus, RunnerId, Timestamp,
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
    /// The event. Its id must be new.
    pub event: Arc<Event>,
    /// Makes a repeated request harmless.
    pub idempotency: Option<Idempotency>,
    /// The runs that answer it. Their ids must be new, their status `created`, their `last_sequence` 0.
    pub runs: Vec<NewRun>,
    /// What it adds to a transcript.
    pub transcript: Option<NewItem>,
    /// Artifacts that come with it, such as a raw payload that is too large for the event. Their blobs are there.
    pub artifacts: Vec<ArtifactRecord>,
    /// Ids of artifacts that it refers to: uploads are kept from now on. One that is not there refuses the event with
    /// [`crate::LedgerError::NotFound`].
    pub refers_to: Vec<String>,
    /// Entries that are put or deleted with it.
    pub entries: Vec<EntryWrite>,
    /// State that comes with it. Written only where the event is new; readers see it as soon as it is admitted.
    pub state: Vec<StateWrite>,
}

/// A conversation to be forgotten ([`crate::Ledger::forget_conversation`]).
#[derive(Debug, Clone)]
pub struct Forget {
    /// Which.
    pub conversation: ConversationKey,
    /// Its runs and those that they have started, by number and id: each before the one that has started it. All of them
    /// have ended.
    pub runs: Vec<(u64, RunId)>,
    /// The scopes in which its state is.
    pub state: Vec<String>,
    /// What a parked run of it waits for, among other things. Where one does, the conversation is not forgotten.
    pub waits: String,
}

/// What was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forgotten {
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

/// A JSON object in two parts that are read as one: members of `own` stand beside those of `shared`, also within members
/// that are objects in both. The ledger does not look into them otherwise.
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
    /// Its record.
    pub run: Run,
    /// What it was granted and configured with. The ledger does not look into it.
    pub terms: JsonParts,
}

/// What [`crate::Ledger::accept`] did.
#[derive(Debug, Clone)]
pub enum Accepted {
    /// The event is in the ledger.
    New {
        /// Its number.
        event_no: u64,
        /// Its runs, in the order given.
        runs: Vec<RunRecord>,
        /// Where its item stands in the transcript.
        transcript_seq: Option<u64>,
    },
    /// The same request was accepted before; nothing was written.
    Repeated {
        /// The event that it made then.
        event_id: EventId,
    },
}

/// An item for a transcript. Its place is given by the ledger.
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
    /// What was said.
    pub content: Vec<ContentPart>,
    /// What came with it.
    pub artifacts: Vec<ArtifactRef>,
    /// When the host took it.
    pub created_at: Timestamp,
}

/// Everything that happens to a run at one moment: all of it is written, or none.
#[derive(Debug, Clone, Default)]
pub struct RunWrite {
    /// The run.
    pub run_no: u64,
    /// Steps of its life, in order.
    pub changes: Vec<RunChange>,
    /// Its context.
    pub context: Option<NewContext>,
    /// Events that continue the run's sequence without a gap.
    pub events: Vec<NewEvent>,
    /// What it adds to transcripts.
    pub transcript: Vec<NewItem>,
    /// State that it sets or deletes.
    pub state: Vec<StateWrite>,
    /// Bytes that it keeps or deletes.
    pub storage: Vec<StorageWrite>,
    /// Artifacts that it makes. Their blobs are there.
    pub artifacts: Vec<ArtifactRecord>,
    /// Ids of artifacts that it refers to: uploads are kept from now on. Those that are not there (any more) are passed
    /// over: who must know asks [`crate::Ledger::artifact`] first.
    pub refers_to: Vec<String>,
    /// What it was allowed or refused.
    pub audit: Vec<AuditRecord>,
    /// What its journal goes on with. With [`RunChange::Retry`] in the same write, what it begins with.
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
    /// Blobs that the entries name. They are kept for as long as the segment is.
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
    /// When it goes on, whatever has happened until then.
    pub wake_at: Timestamp,
    /// What else it waits for: at most 64 names of 1 to 4,088 bytes. The ledger does not look into them.
    #[serde(default)]
    pub keys: Vec<String>,
}

/// A new run for an event that is already in the ledger.
#[derive(Debug, Clone)]
pub struct AddRun {
    /// Its record: a new id, the id of the event, status `created`, and as many events as come with it.
    pub run: Run,
    /// What it was granted and configured with. The ledger does not look into it.
    pub terms: JsonParts,
    /// Its context, where it is given one already.
    pub context: Option<NewContext>,
    /// Its events so far, numbered from 1 without a gap. None of them is terminal.
    pub events: Vec<NewEvent>,
    /// Its journal so far.
    pub journal: Option<JournalSegment>,
    /// Entries that are put or deleted with it.
    pub entries: Vec<EntryWrite>,
}

/// A step in the life of a run.
#[derive(Debug, Clone)]
pub enum RunChange {
    /// It waits for its turn.
    Queue {
        /// When.
        at: Timestamp,
    },
    /// Its guest begins (again).
    Start {
        /// When.
        at: Timestamp,
        /// When it must have ended; nothing leaves it as it is.
        deadline_at: Option<Timestamp>,
    },
    /// It waits for something outside.
    Wait {
        /// When.
        at: Timestamp,
        /// For what.
        reason: String,
    },
    /// It goes on.
    Resume {
        /// When.
        at: Timestamp,
    },
    /// A new attempt of a run that was under way when the host died: its journal is deleted, and it is `running`. Only
    /// of a run that is `claimed`, `running` or `waiting`.
    Retry {
        /// When.
        at: Timestamp,
        /// When the new attempt must have ended; nothing leaves it without a deadline.
        deadline_at: Option<Timestamp>,
    },
    /// It is brought back after the host had stopped, and stays what it is. Only of a run that is `claimed`, `running`
    /// or `waiting`.
    Recover {
        /// When.
        at: Timestamp,
    },
    /// Somebody outside has claimed it, and is to execute it. Only of a run with a place in a queue.
    Claim {
        /// When.
        at: Timestamp,
        /// Who.
        executor_id: String,
        /// Until when, unless the claim is renewed.
        lease_expires_at: Timestamp,
    },
    /// Its claim lasts longer.
    Renew {
        /// When.
        at: Timestamp,
        /// Until when.
        lease_expires_at: Timestamp,
    },
    /// Its executor has appended results, up to this number.
    Append {
        /// The number of the last one, counted by the executor from 1.
        through: u64,
    },
    /// Its claim was given back or lost: it waits for another one.
    Release {
        /// When.
        at: Timestamp,
        /// Why.
        reason: String,
        /// It is not given out before this.
        not_before: Option<Timestamp>,
        /// Whether this counts as an attempt.
        attempted: bool,
    },
    /// Someone asked for its end. The first request is kept, later ones change nothing.
    CancelRequested {
        /// When.
        at: Timestamp,
        /// Why.
        reason: String,
    },
    /// It ends. The terminal event comes last in the same write.
    End {
        /// When.
        at: Timestamp,
        /// How.
        terminal: Terminal,
    },
    /// Makes a parked run due: the wake time of its park row becomes `at`. Status, reason and keys stay, unless the same
    /// write has a new park row. Only of a run that is parked ([`crate::LedgerError::Transition`]).
    Due {
        /// When.
        at: Timestamp,
    },
}

/// One event of a run, numbered by the host.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// 1 for the first event of the run.
    pub sequence: u64,
    /// Its type.
    pub kind: Cow<'static, str>,
    /// Its data, a JSON value.
    pub data: JsonText,
    /// When the host took it.
    pub timestamp: Timestamp,
}

/// What was done or refused, by whom, to what.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct AuditRecord {
    /// When.
    pub at: Timestamp,
    /// The run that did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// Its runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<RunnerId>,
    /// Its binding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding_id: Option<String>,
    /// What was done, such as `state.set`.
    pub action: Cow<'static, str>,
    /// To what.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// In which scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Cow<'static, str>>,
    /// `ok`, or the code of the refusal.
    pub outcome: Cow<'static, str>,
    /// How long it took, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// How much went over.
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
    pub run: Run,
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
    /// Where its item stands in the transcript of its conversation.
    pub transcript_seq: Option<u64>,
}

/// Which runs to list. What is absent matches every run.
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
    /// Whether the run is one of them.
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
