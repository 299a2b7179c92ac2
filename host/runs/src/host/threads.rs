//! Threads as streams of facts: the turns of a conversation one after the other, each projected from its record.
//!
//! The stream is not stored. A fact has its number from the order of the turns and the numbers of facts of the turns before; the
//! counts and the read models of ended turns are cached, and come back the same when the cache is lost.

use std::{
    collections::{HashMap, VecDeque},
    ops::ControlFlow,
    sync::Arc,
};

use agent_host_facts::{
    Children, Fact, Projector, QueuedTurn, TaskFold, TaskSnapshot, ThreadIds, ThreadReadModel, Turn, TurnTerms, fact,
    project::ChildOutput,
};
use agent_host_ledger::{Ledger, LedgerError, RunRecord};
use agent_host_protocol::{ResultKind, Run, RunEvent, RunId, grant::ConversationKey};
use parking_lot::Mutex;

use crate::record::is_forgotten;

/// The name of the host in facts.
pub(crate) const RUNTIME_ID: &str = "agent-host";

/// Events of a record that are read at one time.
const PIECE: usize = 1_000;
/// Artifacts of a child that are read.
const MAX_ARTIFACTS: usize = 100;
/// Ended turns whose counts are cached: some bytes each.
const CACHED_COUNTS: usize = 100_000;
/// Threads whose read model is cached: some KiB each, at most some hundred.
const CACHED_MODELS: usize = 256;
/// The member of the metadata of a run with the id that the client gave the turn.
pub const TURN_ID: &str = "turn_id";

/// A thread: a conversation, or a run without one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ThreadKey {
    /// The runs of a conversation.
    Conversation(ConversationKey),
    /// A run that belongs to no conversation, such as a child.
    Run(RunId),
}

impl ThreadKey {
    /// The thread of a run.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        run.conversation_key().map_or(Self::Run(run.run_id), Self::Conversation)
    }

    /// The ids of the thread in facts.
    #[must_use]
    pub fn ids(&self) -> ThreadIds {
        match self {
            Self::Conversation(key) => ThreadIds::new(key.conversation(), Some(key.thread())),
            Self::Run(run) => ThreadIds::new(&run.to_string(), None),
        }
    }
}

/// The reason why a thread cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ThreadError {
    /// No run belongs to it.
    #[error("there is no thread `{0}`: its first turn creates it")]
    NotFound(String),
    /// The content was deleted.
    #[error("the content of thread `{0}` was deleted: begin another one")]
    Forgotten(String),
    /// The number is behind the last fact.
    #[error(
        "the thread has {last} facts, and {at} is behind them: read from the beginning, or after a number that came with a fact"
    )]
    BehindEnd {
        /// The number.
        at: u64,
        /// The last fact.
        last: u64,
    },
    /// The ledger cannot be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// A thread at one moment.
#[derive(Debug)]
pub struct Thread {
    key: ThreadKey,
    /// Turns that have begun, or ended without beginning, in their order.
    turns: Vec<RunRecord>,
    /// Turns that wait for their place.
    queued: Vec<RunRecord>,
}

impl Thread {
    /// The key of the thread.
    #[must_use]
    pub const fn key(&self) -> &ThreadKey {
        &self.key
    }

    /// The turns with a place in the stream, in their order.
    #[must_use]
    pub fn turns(&self) -> &[RunRecord] {
        &self.turns
    }

    /// The turns that wait for their place, oldest first.
    #[must_use]
    pub fn queued(&self) -> &[RunRecord] {
        &self.queued
    }

    /// The turn with this id: that of its run, or the one that the client gave it.
    #[must_use]
    pub fn turn(&self, id: &str) -> Option<&RunRecord> {
        let all = || self.turns.iter().chain(&self.queued);
        let of_run = id.parse::<RunId>().ok().and_then(|run| all().find(|record| record.run.run_id == run));
        of_run.or_else(|| all().find(|record| turn_id(&record.run) == id))
    }
}

/// The id of a turn: the one that the client gave it, or that of its run.
#[must_use]
pub fn turn_id(run: &Run) -> String {
    let named = run.metadata.get(TURN_ID).and_then(serde_json::Value::as_str);
    named.map_or_else(|| run.run_id.to_string(), str::to_owned)
}

/// Reads threads. Cheap to clone; clones share what is cached. Every read blocks for as long as the disk takes.
#[derive(Debug, Clone)]
pub struct Threads {
    ledger: Ledger,
    cache: Arc<Mutex<Cache>>,
}

#[derive(Debug, Default)]
struct Cache {
    /// Numbers of facts of ended turns.
    counts: HashMap<RunId, u64>,
    /// Read models after ended turns: the number of turns in them, and the model.
    models: HashMap<ThreadKey, (usize, ThreadReadModel)>,
}

/// A listed thread.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListedThread {
    /// The conversation.
    pub session_id: String,
    /// The thread.
    pub thread_id: String,
    /// The workspace, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
}

/// The place of a follower in a thread.
#[derive(Debug)]
pub(crate) struct FollowPlace {
    /// The turn that is followed, or comes next.
    pub(crate) index: usize,
    /// The number of the first fact of that turn.
    pub(crate) next: u64,
    /// The turn, where it has begun.
    pub(crate) turn: Option<(RunRecord, Turn)>,
    /// Turns behind it that have ended, in their order: a follower that catches up reads the thread once.
    pub(crate) behind: VecDeque<RunId>,
}

/// The output of children, from the ledger.
pub(crate) struct LedgerChildren(pub(crate) Ledger);

impl Children for LedgerChildren {
    fn output(&self, child: RunId) -> ChildOutput {
        let read = || -> Result<ChildOutput, LedgerError> {
            let Some(record) = self.0.run(child)? else { return Ok(ChildOutput::default()) };
            let kinds = [ResultKind::ArtifactCreated.as_str()];
            let events = self.0.run_events_of(record.run_no, child, &kinds)?;
            let artifacts = events.iter().flat_map(RunEvent::artifact_refs);
            Ok(ChildOutput { artifacts: artifacts.take(MAX_ARTIFACTS).collect() })
        };
        read().unwrap_or_else(|error| {
            tracing::debug!(run_id = %child, %error, "a child is shown without its artifacts");
            ChildOutput::default()
        })
    }
}

impl Threads {
    /// Reads the threads of a ledger.
    #[must_use]
    pub fn new(ledger: Ledger) -> Self {
        Self { ledger, cache: Arc::default() }
    }

    /// The thread with these ids in a workspace: a conversation, or a run without one. `thread` is the thread within the
    /// conversation.
    ///
    /// # Errors
    /// [`ThreadError::NotFound`] if neither is there; [`ThreadError::Forgotten`].
    pub fn find(&self, workspace: &str, session: &str, thread: &str) -> Result<Thread, ThreadError> {
        let key = ConversationKey::new(workspace, session, thread);
        match self.load(&ThreadKey::Conversation(key)) {
            Err(ThreadError::NotFound(name)) => {
                let run = session.parse::<RunId>().ok().filter(|_| thread.is_empty());
                let of_run = run.map(|run| self.ledger.run(run)).transpose()?.flatten();
                let in_workspace = |run: &Run| run.workspace_id.as_deref().unwrap_or_default() == workspace;
                match of_run.filter(|record| record.run.conversation_id.is_none() && in_workspace(&record.run)) {
                    Some(record) => self.load(&ThreadKey::Run(record.run.run_id)),
                    None => Err(ThreadError::NotFound(name)),
                }
            }
            found => found,
        }
    }

    /// A thread, as it is now.
    ///
    /// # Errors
    /// [`ThreadError::NotFound`], [`ThreadError::Forgotten`].
    pub fn load(&self, key: &ThreadKey) -> Result<Thread, ThreadError> {
        let runs = match key {
            ThreadKey::Conversation(key) => self.ledger.conversation_runs(key)?,
            ThreadKey::Run(id) => self.ledger.run(*id)?.into_iter().collect(),
        };
        let name = || key.ids().thread_id;
        if runs.is_empty() {
            return Err(ThreadError::NotFound(name()));
        }
        if runs.iter().any(|record| is_forgotten(&record.run)) {
            return Err(ThreadError::Forgotten(name()));
        }
        let has_place = |record: &RunRecord| {
            let run = &record.run;
            run.turn.is_some() || run.started_at.is_some() || run.status.is_terminal()
        };
        let (mut turns, mut queued): (Vec<_>, Vec<_>) = runs.into_iter().partition(has_place);
        let began = |run: &Run| run.started_at.or(run.finished_at).unwrap_or_default();
        turns.sort_by_key(|record| (record.run.turn.unwrap_or(0), began(&record.run), record.run_no));
        queued.sort_by_key(|record| record.run_no);
        Ok(Thread { key: key.clone(), turns, queued })
    }

    /// At most `limit` facts of a thread after the number `after`.
    ///
    /// # Errors
    /// [`ThreadError::BehindEnd`]; also if the ledger cannot be read.
    pub fn facts(&self, thread: &Thread, after: u64, limit: usize) -> Result<Vec<Fact>, ThreadError> {
        let mut facts = Vec::new();
        let (index, mut next) = self.skip(thread, after)?;
        for (place, record) in thread.turns.iter().enumerate().skip(index) {
            if facts.len() >= limit {
                break;
            }
            next = self.project(record, place == 0, next, |fact| {
                if fact.sequence > after {
                    facts.push(fact);
                }
                if facts.len() >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        if facts.is_empty() && after >= next {
            return Err(ThreadError::BehindEnd { at: after, last: next - 1 });
        }
        Ok(facts)
    }

    /// The index of the turn that the fact after `after` belongs to, and the number of the first fact of that turn.
    fn skip(&self, thread: &Thread, after: u64) -> Result<(usize, u64), ThreadError> {
        let mut next = 1;
        for (place, record) in thread.turns.iter().enumerate() {
            if !record.run.status.is_terminal() {
                return Ok((place, next));
            }
            let count = self.count(record, place == 0)?;
            if next + count > after.saturating_add(1) {
                return Ok((place, next));
            }
            next += count;
        }
        Ok((thread.turns.len(), next))
    }

    /// The turn of a run at its place in its thread, before its record; `None` for a run that waits for its place, and for a thread
    /// whose content was deleted.
    ///
    /// # Errors
    /// Fails if the ledger cannot be read.
    pub(crate) fn turn_of(&self, run: &Run) -> Result<Option<Turn>, ThreadError> {
        let thread = match self.load(&ThreadKey::of(run)) {
            Ok(thread) => thread,
            Err(error @ ThreadError::Ledger(_)) => return Err(error),
            Err(_) => return Ok(None),
        };
        let mut next = 1;
        for (place, record) in thread.turns.iter().enumerate() {
            if record.run.run_id == run.run_id {
                return Ok(Some(self.turn(run, place == 0, next)?));
            }
            next += self.count(record, place == 0)?;
        }
        Ok(None)
    }

    /// The number of facts of an ended turn.
    fn count(&self, record: &RunRecord, is_first: bool) -> Result<u64, ThreadError> {
        if let Some(count) = self.cache.lock().counts.get(&record.run.run_id) {
            return Ok(*count);
        }
        let next = self.project(record, is_first, 1, |_| ControlFlow::Continue(()))?;
        Ok(next - 1)
    }

    /// Keeps the number of facts of an ended turn.
    pub(crate) fn keep_count(&self, run: &Run, count: u64) {
        let mut cache = self.cache.lock();
        if cache.counts.len() >= CACHED_COUNTS {
            cache.counts.clear();
        }
        cache.counts.insert(run.run_id, count);
    }

    /// The turn of a run, before its record.
    ///
    /// # Errors
    /// Fails if the ledger cannot be read.
    pub(crate) fn turn(&self, run: &Run, is_first: bool, first: u64) -> Result<Turn, ThreadError> {
        let terms = self.ledger.terms(run.run_id)?.map(|terms| TurnTerms::read(&terms)).unwrap_or_default();
        let event = self.ledger.event(run.event_id)?.map(|record| record.event);
        let turn = Turn::new(RUNTIME_ID, run, event.as_ref(), terms, is_first, first);
        Ok(Turn { turn_id: turn_id(run), ..turn })
    }

    /// Projects a turn; returns the number of the next fact.
    fn project(
        &self,
        record: &RunRecord,
        is_first: bool,
        first: u64,
        mut each: impl FnMut(Fact) -> ControlFlow<()>,
    ) -> Result<u64, ThreadError> {
        let children = LedgerChildren(self.ledger.clone());
        let mut projector = Projector::new(self.turn(&record.run, is_first, first)?);
        for fact in projector.begin() {
            if each(fact).is_break() {
                return Ok(projector.next_sequence());
            }
        }
        loop {
            let after = projector.last_event();
            let events = self.ledger.run_events_after(record.run_no, record.run.run_id, after, PIECE)?;
            let is_last = events.len() < PIECE;
            for event in events {
                for fact in projector.push(&event, &children) {
                    if each(fact).is_break() {
                        return Ok(projector.next_sequence());
                    }
                }
            }
            if is_last || projector.is_over() {
                break;
            }
        }
        if projector.is_over() {
            self.keep_count(&record.run, projector.next_sequence() - first);
        }
        Ok(projector.next_sequence())
    }

    /// The read model of a thread, as it is now or was after the fact `at`.
    ///
    /// # Errors
    /// [`ThreadError::BehindEnd`]; also if the ledger cannot be read.
    pub fn model(&self, thread: &Thread, at: Option<u64>) -> Result<ThreadReadModel, ThreadError> {
        let ids = thread.key.ids();
        let mut model = ThreadReadModel::new(RUNTIME_ID, &ids.session_id, &ids.thread_id);
        let mut index = 0;
        if at.is_none()
            && let Some((turns, cached)) = self.cache.lock().models.get(&thread.key).cloned()
            && turns <= thread.turns.len()
        {
            (index, model) = (turns, cached);
        }
        let until = at.unwrap_or(u64::MAX);
        let mut next = model.event_cursor.parse::<u64>().unwrap_or_default() + 1;
        for (place, record) in thread.turns.iter().enumerate().skip(index) {
            next = self.project(record, place == 0, next, |fact| {
                if fact.sequence > until {
                    return ControlFlow::Break(());
                }
                model.apply(&fact);
                ControlFlow::Continue(())
            })?;
            if next > until {
                return Ok(model);
            }
            if at.is_none() && record.run.status.is_terminal() && model.active_turn_id.is_none() {
                let mut cache = self.cache.lock();
                if cache.models.len() >= CACHED_MODELS && !cache.models.contains_key(&thread.key) {
                    cache.models.clear();
                }
                cache.models.insert(thread.key.clone(), (place + 1, model.clone()));
            }
        }
        if let Some(at) = at {
            return if at.saturating_add(1) == next { Ok(model) } else { Err(ThreadError::BehindEnd { at, last: next - 1 }) };
        }
        let queued = thread.queued.iter().map(|record| QueuedTurn {
            turn_id: turn_id(&record.run),
            agent: record.run.agent_id.clone(),
            submitted_at: fact::timestamp(record.run.created_at),
        });
        Ok(model.with_queued(queued.collect()))
    }

    /// A task of a thread, as it is now or was after the fact `at`; `None` where the thread has none with this id.
    ///
    /// # Errors
    /// [`ThreadError::BehindEnd`]; also if the ledger cannot be read.
    pub fn task(&self, thread: &Thread, id: &str, at: Option<u64>) -> Result<Option<TaskSnapshot>, ThreadError> {
        let mut fold = TaskFold::new(id);
        let until = at.unwrap_or(u64::MAX);
        let mut next = 1;
        for (place, record) in thread.turns.iter().enumerate() {
            next = self.project(record, place == 0, next, |fact| {
                if fact.sequence > until {
                    return ControlFlow::Break(());
                }
                fold.apply(&fact);
                ControlFlow::Continue(())
            })?;
            if next > until {
                return Ok(fold.finish());
            }
        }
        match at {
            Some(at) if at >= next => Err(ThreadError::BehindEnd { at, last: next - 1 }),
            _ => Ok(fold.finish()),
        }
    }

    /// The last fact of a turn that `wanted` says yes to. `None` also while the turn has no place in the stream, or waits for
    /// the end of the turns before.
    ///
    /// # Errors
    /// Fails if the ledger cannot be read.
    pub fn fact_of(&self, thread: &Thread, run: RunId, wanted: impl Fn(&Fact) -> bool) -> Result<Option<Fact>, ThreadError> {
        let mut next = 1;
        for (place, record) in thread.turns.iter().enumerate() {
            if record.run.run_id != run {
                if !record.run.status.is_terminal() {
                    return Ok(None);
                }
                next += self.count(record, place == 0)?;
                continue;
            }
            let mut found = None;
            self.project(record, place == 0, next, |fact| {
                if wanted(&fact) {
                    found = Some(fact);
                }
                ControlFlow::Continue(())
            })?;
            return Ok(found);
        }
        Ok(None)
    }

    /// The number of the last fact of a thread; 0 for a thread whose turns all wait.
    ///
    /// # Errors
    /// Fails if the ledger cannot be read.
    pub fn last_sequence(&self, thread: &Thread) -> Result<u64, ThreadError> {
        let (index, mut next) = self.skip(thread, u64::MAX - 1)?;
        for (place, record) in thread.turns.iter().enumerate().skip(index) {
            next = self.project(record, place == 0, next, |_| ControlFlow::Continue(()))?;
        }
        Ok(next - 1)
    }

    /// Conversations in a fixed order, the next after `after`: those that `sees` accepts. The second is where to go on.
    ///
    /// # Errors
    /// Fails if the ledger cannot be read.
    pub fn list(
        &self,
        after: Option<&ConversationKey>,
        limit: usize,
        sees: impl Fn(&ConversationKey) -> bool,
    ) -> Result<(Vec<ListedThread>, Option<ConversationKey>), ThreadError> {
        /// Conversations that are looked at for one page.
        const EXAMINED: usize = 2_000;
        let mut listed = Vec::new();
        let mut position = after.cloned();
        let found = self.ledger.conversations(after, EXAMINED)?;
        let is_end = found.len() < EXAMINED;
        for key in found {
            if listed.len() == limit {
                return Ok((listed, position));
            }
            if sees(&key) {
                let ids = ThreadIds::new(key.conversation(), Some(key.thread()));
                let workspace_id = Some(key.workspace().to_owned()).filter(|workspace| !workspace.is_empty());
                listed.push(ListedThread { session_id: ids.session_id, thread_id: ids.thread_id, workspace_id });
            }
            position = Some(key);
        }
        Ok((listed, position.filter(|_| !is_end)))
    }

    pub(crate) const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The place where a follower begins.
    ///
    /// # Errors
    /// As [`Threads::load`].
    pub(crate) fn place(&self, key: &ThreadKey, index: usize, mut next: u64, after: u64) -> Result<FollowPlace, ThreadError> {
        let thread = self.load(key)?;
        let count_of_turns = thread.turns.len();
        let mut turns = thread.turns.into_iter().enumerate().skip(index);
        while let Some((place, record)) = turns.next() {
            if record.run.status.is_terminal() {
                let count = self.count(&record, place == 0)?;
                if next + count <= after.saturating_add(1) {
                    next += count;
                    continue;
                }
            }
            let turn = self.turn(&record.run, place == 0, next)?;
            let ended = turns.map(|(_, record)| record.run).take_while(|run| run.status.is_terminal());
            let behind = ended.map(|run| run.run_id).collect();
            return Ok(FollowPlace { index: place, next, turn: Some((record, turn)), behind });
        }
        Ok(FollowPlace { index: index.max(count_of_turns), next, turn: None, behind: VecDeque::new() })
    }

    /// The place of a turn that a read of the thread has found behind others.
    ///
    /// # Errors
    /// [`ThreadError::Forgotten`] if the content was deleted since; also if the ledger cannot be read.
    pub(crate) fn place_behind(
        &self,
        key: &ThreadKey,
        index: usize,
        next: u64,
        mut behind: VecDeque<RunId>,
    ) -> Result<FollowPlace, ThreadError> {
        let forgotten = || ThreadError::Forgotten(key.ids().thread_id);
        let id = behind.pop_front().ok_or_else(forgotten)?;
        let record = self.ledger.run(id)?.filter(|record| !is_forgotten(&record.run)).ok_or_else(forgotten)?;
        let turn = self.turn(&record.run, index == 0, next)?;
        Ok(FollowPlace { index, next, turn: Some((record, turn)), behind })
    }
}
