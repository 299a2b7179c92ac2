//! Memory of the writer: the runs that have not ended and are not parked, the next numbers, the newest ids, the ends of
//! transcripts, and the usage of scopes.
//!
//! The store has all of these values, and they are read again after a batch that could not be written. The writer looks up
//! no value that the ledger already knows: new ids, and conversations and scopes in use.

use std::sync::Arc;

use agent_host_protocol::{Run, grant::ConversationKey};
use rustc_hash::FxHashMap;

use crate::{
    apply::{ids::Ids, recent::Recent},
    digest::Digest,
    error::LedgerError,
    record::{Park, Usage},
    rows::{BatchUsage, ConversationRow, ListedRuns, Reader, Table, json, read_number, read_pair},
};

/// Conversations whose end is remembered, twice as many at most. About 150 bytes each; one that is not costs two lookups.
const CONVERSATIONS: usize = 25_000;

/// Conversations whose last turn is remembered, twice as many at most: more than have a run in the rows in memory. About 150 bytes
/// each; one that is not costs a look at each of its runs.
const TURNS: usize = 50_000;

/// Scopes and areas whose usage is remembered, twice as many at most. About 100 bytes each; one that is not costs a lookup.
const USAGES: usize = 25_000;

/// Shared parts that are remembered, twice as many at most: of the terms and of the contexts of each binding, and those of
/// clients with tools.
const SHARED_PARTS: usize = 10_000;

pub(crate) struct Memory {
    pub(crate) active: FxHashMap<u64, ActiveRun>,
    pub(crate) next_event_no: u64,
    pub(crate) next_run_no: u64,
    pub(crate) next_audit_no: u64,
    next_conversation_no: u64,
    conversations: Recent<ConversationKey, ConversationFacts>,
    /// The number of the last turn of each conversation.
    turns: Recent<ConversationKey, u64>,
    /// The last batch that was there before this memory. While redb lacks it, rows that it lacks may have turns that `turns` does not know.
    /// `None` once redb has it.
    before: Option<u64>,
    pub(crate) event_ids: Ids,
    pub(crate) run_ids: Ids,
    /// The usage of the scopes and areas that were written last, by the key of their row.
    pub(crate) usages: Recent<Vec<u8>, Usage>,
    /// Bytes that the last batch has brought, by workspace. Zero between batches.
    pub(crate) usage: BatchUsage,
    /// Shared parts of terms that are in the store.
    pub(crate) shared_parts: Recent<Digest, ()>,
    /// Runs that were parked, or loaded because a write named them: those that are parked after the batch leave.
    leaving: Vec<u64>,
}

pub(crate) struct ActiveRun {
    pub(crate) run: Arc<Run>,
    /// Differs from its row until the batch is finished.
    pub(crate) dirty: bool,
    /// End of the journal.
    pub(crate) journal: JournalEnd,
    /// Rows in the tables of parked runs, until the batch is written.
    pub(crate) park: Option<Box<Park>>,
}

/// The end of the journal of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum JournalEnd {
    /// The store knows.
    Unknown,
    /// `first` of its last segment; nothing where it has none.
    At(Option<u64>),
}

impl ActiveRun {
    /// A run that is in the store.
    fn stored(run: Arc<Run>) -> Self {
        Self { run, dirty: false, journal: JournalEnd::Unknown, park: None }
    }

    /// A run that is made.
    pub(crate) fn new(run: Arc<Run>) -> Self {
        Self { run, dirty: false, journal: JournalEnd::At(None), park: None }
    }
}

/// Knowledge of a conversation.
enum ConversationFacts {
    /// The store has no journal of the run.
    New,
    There(Conversation),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Conversation {
    pub(crate) no: u64,
    pub(crate) last_seq: u64,
}

impl Memory {
    pub(crate) fn load(reader: &Reader) -> Result<Self, LedgerError> {
        let next = |table| Ok::<_, LedgerError>(reader.last_key(table, read_number)?.map_or(1, |last| last + 1));
        let conversation = |table| reader.last_key(table, |key| read_pair(key).map(|(conversation, _)| conversation));
        let conversation = conversation(Table::Transcript)?.max(conversation(Table::ConversationEvents)?);
        let active = reader.active()?.into_iter();
        Ok(Self {
            active: active.map(|record| (record.run_no, ActiveRun::stored(record.run))).collect(),
            next_event_no: next(Table::Events)?,
            next_run_no: next(Table::Runs)?,
            next_audit_no: reader.next_audit_no()?,
            next_conversation_no: conversation.map_or(1, |last| last + 1),
            conversations: Recent::new(CONVERSATIONS),
            turns: Recent::new(TURNS),
            before: Some(reader.last_batch()),
            event_ids: Ids::load(Table::EventIds, reader)?,
            run_ids: Ids::load(Table::RunIds, reader)?,
            usages: Recent::new(USAGES),
            usage: BatchUsage::default(),
            shared_parts: Recent::new(SHARED_PARTS),
            leaving: Vec::new(),
        })
    }

    /// Brings back a run that has not ended and is not in memory: one that was parked by an earlier batch.
    pub(crate) fn load_parked(&mut self, run_no: u64, run: Run, reader: &Reader) -> Result<(), LedgerError> {
        let park = reader.park(run_no)?.map(Box::new);
        self.active.insert(run_no, ActiveRun { park, ..ActiveRun::stored(Arc::new(run)) });
        self.leaving.push(run_no);
        Ok(())
    }

    /// The run leaves after the batch, where it is parked then.
    pub(crate) fn leaves(&mut self, run_no: u64) {
        self.leaving.push(run_no);
    }

    /// Reads the end of a transcript, or its absence. [`Self::place`] creates it then.
    pub(crate) fn load_conversation(&mut self, key: &ConversationKey, reader: &Reader) -> Result<(), LedgerError> {
        if self.conversations.get(key).is_some() {
            return Ok(());
        }
        let row = reader
            .get(Table::Conversations, key.index().as_bytes(), |bytes| json::<ConversationRow>(Table::Conversations, bytes))?;
        let known = match row {
            Some(ConversationRow { no, .. }) => {
                ConversationFacts::There(Conversation { no, last_seq: reader.last_of(Table::Transcript, no)? })
            }
            None => ConversationFacts::New,
        };
        self.conversations.insert(key.clone(), known);
        Ok(())
    }

    /// Reads the number of the last turn of a conversation.
    pub(crate) fn load_turns(&mut self, key: &ConversationKey, reader: &Reader) -> Result<(), LedgerError> {
        if self.turns.get(key).is_none() {
            if let Some(before) = self.before
                && reader.merged_batch()? >= before
            {
                self.before = None;
            }
            let runs = if self.before.is_none() { ListedRuns::Merged } else { ListedRuns::All };
            let last = reader.last_turn(key, runs)?;
            self.turns.insert(key.clone(), last);
        }
        Ok(())
    }

    /// Takes the number of the next turn of a conversation, whose last turn was loaded.
    pub(crate) fn next_turn(&mut self, key: &ConversationKey) -> u64 {
        if let Some(last) = self.turns.get(key) {
            *last += 1;
            return *last;
        }
        self.turns.insert(key.clone(), 1);
        1
    }

    /// The number of a conversation that was loaded; `None` for a new one.
    pub(crate) fn conversation_no(&mut self, key: &ConversationKey) -> Option<u64> {
        match self.conversations.get(key) {
            Some(ConversationFacts::There(conversation)) => Some(conversation.no),
            _ => None,
        }
    }

    /// A conversation that was loaded. The second is true where it is new.
    pub(crate) fn conversation(&mut self, key: &ConversationKey) -> (Conversation, bool) {
        self.advance(key, 0)
    }

    /// Takes the next place in a transcript that was loaded. The second is true where the conversation is new.
    pub(crate) fn place(&mut self, key: &ConversationKey) -> (Conversation, bool) {
        self.advance(key, 1)
    }

    fn advance(&mut self, key: &ConversationKey, by: u64) -> (Conversation, bool) {
        if let Some(ConversationFacts::There(conversation)) = self.conversations.get(key) {
            conversation.last_seq += by;
            return (*conversation, false);
        }
        let conversation = Conversation { no: self.next_conversation_no, last_seq: by };
        self.next_conversation_no += 1;
        self.turns.insert(key.clone(), 0);
        self.conversations.insert(key.clone(), ConversationFacts::There(conversation));
        (conversation, true)
    }

    /// Called between batches, when every place that was taken and every run that was parked is in the store.
    pub(crate) fn trim(&mut self) {
        for run_no in self.leaving.drain(..) {
            if self.active.get(&run_no).is_some_and(|active| active.park.is_some()) {
                self.active.remove(&run_no);
            }
        }
        self.conversations.trim();
        self.turns.trim();
        self.usages.trim();
        if self.usage.len() > USAGES {
            self.usage.clear();
        }
        self.shared_parts.trim();
        self.event_ids.trim();
        self.run_ids.trim();
    }
}
