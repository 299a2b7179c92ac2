//! Evidence of a run or of a thread, read from a ledger: `agent_host_facts::evidence` says what its lines are.
//!
//! The lines of an ended run are the same whenever they are read, until its conversation is forgotten or its audit records are pruned.
//! Events are read a piece at a time: evidence of any run takes bounded memory.

use std::collections::{BTreeSet, VecDeque};

use agent_host_facts::{
    Projector, Turn,
    evidence::{Chain, Completeness, EvidenceError, Header, Part, RecordState, ThreadHeader, VERSION},
};
use agent_host_ledger::{Ledger, RunRecord};
use agent_host_protocol::{Event, RecordDigest, Run, RunEvent, RunId, limits::MAX_PAGE};
use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::threads::{LedgerChildren, Thread, ThreadError, Threads};
use crate::record::{HostError, is_forgotten};

/// Events that are read at a time.
const PIECE: usize = 256;

impl From<EvidenceError> for HostError {
    fn from(error: EvidenceError) -> Self {
        Self::Internal(error.to_string())
    }
}

fn of_thread(error: ThreadError) -> HostError {
    match error {
        ThreadError::Ledger(error) => error.into(),
        error => HostError::Internal(error.to_string()),
    }
}

/// The lines of the evidence of a run, or of all turns of a thread, in pieces of whole lines. Each piece is read when it is asked
/// for.
pub struct Evidence {
    chain: Chain,
    /// The turns of a thread that are to come.
    turns: Option<Turns>,
    /// The run whose lines come next.
    run: Option<RunLines>,
}

/// The turns of a thread, one after the other.
struct Turns {
    threads: Threads,
    /// The first line, until it is written.
    header: Option<Box<ThreadHeader>>,
    /// Runs, and whether each has its place in the thread.
    runs: VecDeque<(RunId, bool)>,
    /// The number of the next fact of the thread.
    next: u64,
}

/// The lines of one run.
struct RunLines {
    source: Source,
    stage: Stage,
}

/// The next piece.
enum Stage {
    Beginning,
    /// Events after this one; the digest of the record up to it.
    Record(u64, Option<RecordDigest>),
    /// Facts of the turn, as far as they are projected.
    Facts(Box<Projector>),
    Artifacts,
    /// Audit records from this cursor on.
    Audit(Option<String>),
    End,
    Done,
}

impl Evidence {
    /// Opens the evidence of a run: reads its record once, to say in the first line what there is of it.
    ///
    /// # Errors
    /// [`HostError::NotFound`] where there is no such run, or that the ledger cannot be read.
    pub fn open(ledger: &Ledger, threads: &Threads, id: RunId) -> Result<Self, HostError> {
        let record = find(ledger, id)?;
        let turn = if is_forgotten(&record.run) { None } else { threads.turn_of(&record.run).map_err(of_thread)? };
        let run = RunLines { source: Source::read(ledger.clone(), record, turn)?, stage: Stage::Beginning };
        Ok(Self { chain: Chain::default(), turns: None, run: Some(run) })
    }

    /// The evidence of a thread, as it is now. Each turn is read when its lines are asked for.
    #[must_use]
    pub fn of_thread(threads: &Threads, thread: &Thread) -> Self {
        let ids = thread.key().ids();
        let first = thread.turns().iter().chain(thread.queued()).next();
        let with_place = thread.turns().iter().map(|record| (record.run.run_id, true));
        let runs: VecDeque<_> = with_place.chain(thread.queued().iter().map(|record| (record.run.run_id, false))).collect();
        let header = ThreadHeader {
            version: VERSION.to_owned(),
            session_id: ids.session_id,
            thread_id: ids.thread_id,
            workspace_id: first.and_then(|record| record.run.workspace_id.clone()),
            turns: runs.iter().map(|(run, _)| *run).collect(),
        };
        let turns = Turns { threads: threads.clone(), header: Some(Box::new(header)), runs, next: 1 };
        Self { chain: Chain::default(), turns: Some(turns), run: None }
    }

    /// The next piece; `None` behind the last.
    fn piece(&mut self) -> Result<Option<String>, HostError> {
        if let Some(header) = self.turns.as_mut().and_then(|turns| turns.header.take()) {
            return Ok(Some(self.chain.line(&Part::Thread(&header))?));
        }
        if self.run.is_none() {
            self.run = self.turns.as_mut().map(Turns::open_next).transpose()?.flatten();
        }
        let Some(run) = &mut self.run else { return Ok(None) };
        let piece = run.piece(&mut self.chain, self.turns.as_mut().map(|turns| &mut turns.next))?;
        if matches!(run.stage, Stage::Done) {
            self.run = None;
        }
        Ok(Some(piece))
    }
}

impl Turns {
    fn open_next(&mut self) -> Result<Option<RunLines>, HostError> {
        let Some((id, has_place)) = self.runs.pop_front() else { return Ok(None) };
        let ledger = self.threads.ledger();
        let record = find(ledger, id)?;
        let turn = if has_place && !is_forgotten(&record.run) {
            Some(self.threads.turn(&record.run, self.next == 1, self.next).map_err(of_thread)?)
        } else {
            None
        };
        Ok(Some(RunLines { source: Source::read(ledger.clone(), record, turn)?, stage: Stage::Beginning }))
    }
}

fn find(ledger: &Ledger, id: RunId) -> Result<RunRecord, HostError> {
    ledger.run(id)?.ok_or_else(|| HostError::NotFound(format!("there is no run {id}")))
}

impl RunLines {
    /// The next lines. `next` gets the number of the fact behind the turn.
    fn piece(&mut self, chain: &mut Chain, next: Option<&mut u64>) -> Result<String, HostError> {
        let Self { source, stage } = self;
        let mut piece = String::new();
        let mut add = |part: &Part<'_>| -> Result<(), HostError> {
            piece.push_str(&chain.line(part)?);
            Ok(())
        };
        *stage = match std::mem::replace(stage, Stage::Done) {
            Stage::Beginning => {
                add(&Part::Header(&source.header()))?;
                add(&Part::Run(&source.record.run))?;
                add(&Part::Grant(source.grant().as_deref()))?;
                add(&Part::Event(source.event.as_deref()))?;
                Stage::Record(0, source.first_digest().filter(|_| source.state != RecordState::Forgotten))
            }
            Stage::Record(after, mut link) => {
                let events = source.events_after(after)?;
                for event in &events {
                    link = link.map(|digest| digest.and(event.into()));
                    add(&Part::Record { event, link })?;
                }
                match (events.last(), &source.turn) {
                    (Some(last), _) => Stage::Record(last.sequence, link),
                    (None, Some(turn)) => {
                        let mut projector = Projector::new(turn.clone());
                        for fact in &projector.begin() {
                            add(&Part::Fact(fact))?;
                        }
                        Stage::Facts(Box::new(projector))
                    }
                    (None, None) => Stage::Artifacts,
                }
            }
            Stage::Facts(mut projector) => {
                let events = source.events_after(projector.last_event())?;
                let children = LedgerChildren(source.ledger.clone());
                for event in &events {
                    for fact in &projector.push(event, &children) {
                        add(&Part::Fact(fact))?;
                    }
                }
                if events.is_empty() || projector.is_over() {
                    if let Some(next) = next {
                        *next = projector.next_sequence();
                    }
                    Stage::Artifacts
                } else {
                    Stage::Facts(projector)
                }
            }
            Stage::Artifacts => {
                for id in &source.artifacts {
                    let Some(artifact) = source.ledger.artifact(id)? else { continue };
                    add(&Part::Artifact(json!({
                        "artifact_id": artifact.artifact_id, "sha256": artifact.sha256, "size": artifact.size,
                        "media_type": artifact.media_type, "name": artifact.name, "created_at": artifact.created_at,
                    })))?;
                }
                Stage::Audit(None)
            }
            Stage::Audit(cursor) => {
                let page = source.ledger.audit_page(source.record.run.run_id, cursor.as_deref(), MAX_PAGE)?;
                for record in &page.items {
                    add(&Part::Audit(serde_json::to_value(record).map_err(EvidenceError::from)?))?;
                }
                let next = page.next_cursor.filter(|_| page.has_more);
                next.map_or(Stage::End, |cursor| Stage::Audit(Some(cursor)))
            }
            Stage::End => {
                add(&Part::End)?;
                Stage::Done
            }
            Stage::Done => Stage::Done,
        };
        Ok(piece)
    }
}

impl Iterator for Evidence {
    type Item = Result<String, HostError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.piece() {
                Ok(Some(piece)) if piece.is_empty() => {}
                Ok(piece) => return piece.map(Ok),
                Err(error) => {
                    // What failed is over: the file ends without its last line.
                    (self.run, self.turns) = (None, None);
                    return Some(Err(error));
                }
            }
        }
    }
}

/// The parts of a run that are read before its first line is written.
struct Source {
    ledger: Ledger,
    record: RunRecord,
    /// The turn of the run at its place in its thread.
    turn: Option<Turn>,
    /// The event that the run answers, byte for byte.
    event: Option<Box<RawValue>>,
    terms: Option<Terms>,
    state: RecordState,
    /// Number of events that are there.
    events: u64,
    /// The artifacts that they name.
    artifacts: BTreeSet<String>,
    missing_artifacts: u64,
}

/// The part of the terms of a run that evidence shows.
#[derive(Deserialize)]
struct Terms {
    #[serde(default)]
    grant: Option<Box<RawValue>>,
}

/// The digest of the component in a grant.
#[derive(Deserialize)]
struct ComponentOf {
    #[serde(default)]
    component: Option<String>,
}

impl Source {
    fn read(ledger: Ledger, record: RunRecord, turn: Option<Turn>) -> Result<Self, HostError> {
        let id = record.run.run_id;
        let event = ledger.event_json(record.run.event_id)?;
        let terms = ledger.terms(id)?.and_then(|terms| serde_json::from_str(terms.get()).ok());
        let (artifacts, state) = (BTreeSet::new(), RecordState::Unsealed);
        let mut source = Self { ledger, record, turn, event, terms, state, events: 0, artifacts, missing_artifacts: 0 };
        let (mut digest, mut after) = (source.first_digest(), 0);
        loop {
            let events = source.events_after(after)?;
            let Some(last) = events.last() else { break };
            after = last.sequence;
            for event in &events {
                source.events += 1;
                digest = digest.map(|digest| digest.and(event.into()));
                source.artifacts.extend(event.artifact_refs().into_iter().map(|artifact| artifact.artifact_id));
            }
        }
        source.state = match source.record.run.record_digest {
            _ if is_forgotten(&source.record.run) => RecordState::Forgotten,
            None => RecordState::Unsealed,
            stored if stored == digest => RecordState::Whole,
            Some(_) => RecordState::Changed,
        };
        for artifact in &source.artifacts {
            source.missing_artifacts += u64::from(source.ledger.artifact(artifact)?.is_none());
        }
        Ok(source)
    }

    /// The digest of the record before its first event.
    fn first_digest(&self) -> Option<RecordDigest> {
        let event = self.event.as_ref()?;
        Some(RecordDigest::begin(self.record.run.run_id, event.get().as_bytes()))
    }

    fn grant(&self) -> Option<Box<RawValue>> {
        self.terms.as_ref().and_then(|terms| terms.grant.clone())
    }

    fn header(&self) -> Header {
        let Run { run_id, event_id, parent_run_id, retry_of, .. } = *self.record.run;
        let run = &self.record.run;
        let component = self.grant().and_then(|grant| serde_json::from_str::<ComponentOf>(grant.get()).ok()?.component);
        let event = self.event.as_ref().and_then(|event| serde_json::from_str::<Event>(event.get()).ok());
        Header {
            version: VERSION.to_owned(),
            run_id,
            event_id,
            parent_run_id,
            retry_of,
            conversation_id: run.conversation_id.clone(),
            thread_id: run.thread_id.clone(),
            workspace_id: run.workspace_id.clone(),
            bot_id: run.bot_id.clone(),
            agent_id: run.agent_id.clone(),
            binding_id: run.binding_id.clone(),
            runner_id: run.runner_id.to_string(),
            runner_version: run.runner_version.clone(),
            component,
            trace_id: event.and_then(|event| event.envelope.trace_id),
            status: run.status.as_str().to_owned(),
            record_digest: run.record_digest,
            completeness: Completeness {
                ended: run.status.is_terminal(),
                record: self.state,
                events: self.events,
                facts: self.turn.is_some(),
                missing_artifacts: self.missing_artifacts,
            },
        }
    }

    /// The next events of those that the run had when it was read.
    fn events_after(&self, after: u64) -> Result<Vec<RunEvent>, HostError> {
        let RunRecord { run_no, run } = &self.record;
        let mut events = self.ledger.run_events_after(*run_no, run.run_id, after, PIECE)?;
        events.retain(|event| event.sequence <= run.last_sequence);
        Ok(events)
    }
}
