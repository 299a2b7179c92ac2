//! A group commit under construction: operations are applied one after the other, each whole or not at all.
//!
//! Each operation first reads and checks all that it needs, and only then changes anything, so a refusal
//! leaves no trace. Answers are kept until the batch is durable.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use agent_host_protocol::{Run, grant::ConversationKey};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use crate::{
    apply::{
        Memory,
        value::{Plan, Values},
    },
    digest::Digest,
    error::LedgerError,
    files::Pin,
    operation::{AcceptAnswer, PrunedSegments, ValueRow},
    overlay::AdmittedValues,
    rows::{
        BatchPart, Branches, IdempotencyRow, Owner, PackedItems, Reader, Rows, Table, add_usage, changes, kept, number, pair,
    },
};

pub(crate) struct Batch<'a> {
    pub(crate) memory: &'a mut Memory,
    /// The rows that were committed before this batch.
    pub(crate) reader: &'a Reader,
    pub(crate) rows: &'a mut Rows,
    /// Runs whose row is to be written when the batch is finished: several writes to a run cost one row.
    pub(crate) dirty: Vec<u64>,
    pub(crate) ended: FxHashMap<u64, Arc<Run>>,
    /// Context, events and journal of runs that are still to be put: those of a batch that follow each other are one row.
    pub(crate) parts: FxHashMap<u64, BatchPart>,
    /// Bytes of `parts`.
    pub(crate) parts_bytes: usize,
    /// Audit records that are still to be put.
    pub(crate) audit: Option<PackedItems>,
    /// Ids and keys of this batch, which the reader does not see yet.
    pub(crate) ids: HashSet<[u8; 16]>,
    pub(crate) keys: HashMap<String, IdempotencyRow>,
    /// State and storage that this batch has changed.
    pub(crate) values: Values,
    /// Artifacts of this batch: true where it adds them, false where it forgets them.
    pub(crate) artifacts: HashMap<String, bool>,
    /// Artifacts that this batch refers to.
    pub(crate) referenced: HashSet<String>,
    /// Segments that this batch has added, with their blobs.
    pub(crate) journal: FxHashMap<u64, Vec<(u64, Vec<Digest>)>>,
    /// Segments that this batch has pruned.
    pub(crate) pruned: HashSet<(u64, u64)>,
    /// Rows of events that this batch has added runs to.
    pub(crate) forked: HashMap<[u8; 16], WithRun>,
    /// Branches that this batch has changed, by the number of their conversation.
    pub(crate) branches: FxHashMap<u64, Branches>,
    pub(crate) outcome: Outcome,
}

/// Work that follows the batch, whether it became durable or not.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) answers: Vec<Answer>,
    /// Runs that changed.
    pub(crate) touched: Vec<u64>,
    /// Conversations that have another turn, or one that was forgotten.
    pub(crate) turns: Vec<ConversationKey>,
    /// State to take from the overlay, whether the batch became durable or not.
    pub(crate) admitted: Vec<AdmittedValues>,
    /// Blobs that the batch refers to. Let go when the answers are given.
    pub(crate) pins: Vec<Arc<Pin>>,
    /// Change of the number of parked runs.
    pub(crate) parked: i64,
}

/// An answer and the channel of its caller. Refusals wait for the batch too, so that a refused caller does not read the refused state.
pub(crate) enum Answer {
    Accept(oneshot::Sender<Result<AcceptAnswer, LedgerError>>, Result<AcceptAnswer, LedgerError>),
    Write(oneshot::Sender<Result<Arc<Run>, LedgerError>>, Result<Arc<Run>, LedgerError>),
    Count(oneshot::Sender<Result<u64, LedgerError>>, Result<u64, LedgerError>),
    Pruned(oneshot::Sender<Result<PrunedSegments, LedgerError>>, Result<PrunedSegments, LedgerError>),
}

/// The row of an event after a run was added to it.
pub(crate) struct WithRun {
    pub(crate) event_no: u64,
    pub(crate) row: Vec<u8>,
}

impl Outcome {
    /// Sends every answer. A caller that has stopped waiting is no error.
    pub(crate) fn answer(self, durable: Result<(), &LedgerError>) {
        fn known<T>(answer: Result<T, LedgerError>, durable: Result<(), &LedgerError>) -> Result<T, LedgerError> {
            answer.and_then(|answer| durable.map(|()| answer).map_err(Clone::clone))
        }
        for answer in self.answers {
            match answer {
                Answer::Accept(reply, answer) => drop(reply.send(known(answer, durable))),
                Answer::Write(reply, answer) => drop(reply.send(known(answer, durable))),
                Answer::Count(reply, answer) => drop(reply.send(known(answer, durable))),
                Answer::Pruned(reply, answer) => drop(reply.send(known(answer, durable))),
            }
        }
    }
}

impl<'a> Batch<'a> {
    /// `rows` is empty and receives the changes.
    pub(crate) fn new(memory: &'a mut Memory, reader: &'a Reader, rows: &'a mut Rows) -> Self {
        Self {
            memory,
            reader,
            rows,
            dirty: Vec::new(),
            ended: FxHashMap::default(),
            parts: FxHashMap::default(),
            parts_bytes: 0,
            audit: None,
            ids: HashSet::new(),
            keys: HashMap::new(),
            values: Values::default(),
            artifacts: HashMap::new(),
            referenced: HashSet::new(),
            journal: FxHashMap::default(),
            pruned: HashSet::new(),
            forked: HashMap::new(),
            branches: FxHashMap::default(),
            outcome: Outcome::default(),
        }
    }

    /// Bytes of the changes so far.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.bytes().len() + self.parts_bytes
    }

    /// Events that follow those which the run has.
    pub(crate) fn put_events(&mut self, run_no: u64, events: Vec<PackedItems>) {
        for next in events {
            self.parts_bytes += next.bytes();
            let part = self.parts.entry(run_no).or_default();
            match &mut part.events {
                None => part.events = Some(next),
                Some(before) => {
                    if !before.take_over(&next) {
                        let full = std::mem::replace(before, next);
                        self.parts_bytes = self.parts_bytes.saturating_sub(full.bytes());
                        full.put(self.rows, Table::RunEvents, &pair(run_no, full.first));
                    }
                }
            }
        }
    }

    /// Writes the rows of the runs that changed, and those that were still to be put. No operation follows.
    ///
    /// The second is an error where a row cannot be encoded; then no row of the batch may be written.
    pub(crate) fn finish(mut self) -> (Outcome, Result<(), LedgerError>) {
        let mut result = Ok(());
        for run_no in &self.dirty {
            let run = match self.memory.active.get_mut(run_no) {
                Some(active) => {
                    active.dirty = false;
                    &active.run
                }
                None => match self.ended.get(run_no) {
                    Some(run) => run,
                    None => continue,
                },
            };
            result = result.and_then(|()| self.rows.put_json(Table::Runs, &number(*run_no), &**run));
        }
        for (run_no, part) in std::mem::take(&mut self.parts) {
            if self.ended.contains_key(&run_no) {
                part.put_end(self.rows, run_no);
            } else {
                part.put(self.rows, run_no);
            }
        }
        if let Some(audit) = &self.audit {
            audit.put(self.rows, Table::Audit, &number(audit.first));
        }
        self.count_usage();
        self.outcome.touched.sort_unstable();
        self.outcome.touched.dedup();
        (self.outcome, result)
    }

    /// Counts what the rows bring to their workspaces. Rows of runs, which are written again and again, are counted by the merge.
    fn count_usage(&mut self) {
        for change in changes(self.rows.bytes()).flatten().filter(|change| change.table != Table::Runs) {
            let Some((owner, bytes)) = change.value.and_then(|value| kept(change.table, change.key, value)) else { continue };
            match owner {
                Owner::Workspace(workspace) => add_usage(&mut self.memory.usage, &workspace, bytes),
                Owner::Run(run_no) => {
                    let active = self.memory.active.get(&run_no).map(|active| &active.run);
                    // Rows of other runs are moved: they are there already.
                    if let Some(run) = active.or_else(|| self.ended.get(&run_no)) {
                        add_usage(&mut self.memory.usage, run.workspace_id.as_deref().unwrap_or_default(), bytes);
                    }
                }
            }
        }
    }

    pub(crate) fn load_conversation(&mut self, key: &ConversationKey) -> Result<(), LedgerError> {
        self.memory.load_conversation(key, self.reader)
    }

    pub(crate) fn plan(&mut self, writes: &[ValueRow]) -> Result<Plan, LedgerError> {
        if writes.is_empty() {
            return Ok(Plan::default());
        }
        self.values.plan(writes, self.reader, &mut self.memory.usages)
    }

    /// Carries a plan out.
    pub(crate) fn carry_out(&mut self, plan: Plan) {
        self.values.carry_out(plan, self.rows, &mut self.memory.usages);
    }

    /// The run, where it has ended; else it is in memory afterwards.
    pub(crate) fn find_run(&mut self, run_no: u64) -> Result<Option<Arc<Run>>, LedgerError> {
        if self.memory.active.contains_key(&run_no) {
            return Ok(None);
        }
        if let Some(run) = self.ended.get(&run_no) {
            return Ok(Some(Arc::clone(run)));
        }
        let run = self.reader.run(run_no)?.ok_or_else(|| LedgerError::NotFound(format!("run with number {run_no}")))?;
        if run.status.is_terminal() {
            return Ok(Some(Arc::new(run)));
        }
        // Every run that has not ended is in memory or parked.
        self.memory.load_parked(run_no, run, self.reader)?;
        Ok(None)
    }
}
