//! For any operations in any order, the ledger answers as a simple model does, before and after reopening.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use std::collections::BTreeMap;

use crate::common::*;
use agent_host_ledger::{
    Accept, AcceptOutcome, AuditRecord, DeletedData, ExpectedValue, Forget, Idempotency, Ledger, LedgerError, Quota, RunChange,
    RunFilter, RunWrite, StateWrite, StorageContent, StorageValue, StorageWrite, Usage, check, state_tag,
};
use agent_host_protocol::{
    EventId, RunId, RunStatus,
    page::Direction,
    run::{IllegalTransition, Terminal},
};
use proptest::prelude::*;
use serde_json::{Value, json};

#[derive(Debug, Clone)]
enum Step {
    Accept {
        runs: usize,
        key: Option<(u8, u8)>,
        conversation: Option<u8>,
        state: Option<(u8, Option<u8>)>,
    },
    Write {
        run: usize,
        changes: Vec<u8>,
        skip: u64,
        events: u64,
        end_event: bool,
        conversation: Option<u8>,
        state: Option<(u8, Option<u8>, Expects)>,
        storage: Option<(u8, Option<u8>)>,
        audit: usize,
    },
    /// Forgets a conversation, those of these runs that have ended, and the state.
    Forget {
        conversation: u8,
        runs: Vec<usize>,
        state: bool,
    },
    Reopen,
}

/// The expectation of a write of state.
#[derive(Debug, Clone, Copy)]
enum Expects {
    Anything,
    Nothing,
    /// The value that the model has, where it has one.
    Known,
    Other,
}

/// The quota of the model's storage, small enough that some writes exceed it.
const QUOTA: Quota = Quota { max_bytes: 20, max_keys: 3 };

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let accept = (
        0usize..3,
        prop::option::weighted(0.3, (0u8..3, 0u8..2)),
        prop::option::of(0u8..3),
        prop::option::weighted(0.4, (0u8..4, prop::option::of(0u8..9))),
    )
        .prop_map(|(runs, key, conversation, state)| Step::Accept { runs, key, conversation, state });
    let forget = (0u8..3, prop::collection::vec(0usize..12, 0..4), prop::bool::weighted(0.3))
        .prop_map(|(conversation, runs, state)| Step::Forget { conversation, runs, state });
    let write = (
        0usize..12,
        prop::collection::vec(0u8..7, 0..3),
        prop::sample::select(vec![0, 0, 0, 0, 1]),
        0u64..3,
        prop::bool::weighted(0.4),
        prop::option::of(0u8..3),
        prop::option::of((
            0u8..4,
            prop::option::of(0u8..9),
            prop::sample::select(vec![
                Expects::Anything,
                Expects::Anything,
                Expects::Anything,
                Expects::Nothing,
                Expects::Known,
                Expects::Known,
                Expects::Other,
            ]),
        )),
        prop::option::weighted(0.4, (0u8..5, prop::option::of(0u8..9))),
        0usize..2,
    )
        .prop_map(|(run, changes, skip, events, end_event, conversation, state, storage, audit)| Step::Write {
            run,
            changes,
            skip,
            events,
            end_event,
            conversation,
            state,
            storage,
            audit,
        });
    prop::collection::vec(prop_oneof![3 => accept, 8 => write, 1 => forget, 1 => Just(Step::Reopen)], 1..60)
}

#[derive(Default)]
struct Model {
    runs: Vec<ModelRun>,
    keys: BTreeMap<u8, (u8, EventId)>,
    transcripts: BTreeMap<u8, Vec<String>>,
    /// The number of deleted items of a transcript.
    forgotten: BTreeMap<u8, usize>,
    state: BTreeMap<String, Value>,
    storage: BTreeMap<String, Vec<u8>>,
    audit: usize,
    messages: usize,
}

struct ModelRun {
    id: RunId,
    event: EventId,
    status: RunStatus,
    sequence: u64,
    ended: bool,
    forgotten: bool,
}

fn change(kind: u8) -> RunChange {
    match kind {
        0 => RunChange::Queue { at: 1 },
        1 | 2 => start(),
        3 => RunChange::Wait { at: 2, reason: "r".into() },
        4 => RunChange::Resume { at: 3 },
        5 => completed(),
        _ => RunChange::CancelRequested { at: 4, reason: "r".into() },
    }
}

/// A step of a run. The only way back to a queue is the end of a claim, which does not occur here.
fn step(status: RunStatus, to: RunStatus) -> Result<RunStatus, IllegalTransition> {
    match (status, to) {
        (from, RunStatus::Queued) if from != RunStatus::Created => Err(IllegalTransition { from, to }),
        _ => status.transition(to),
    }
}

fn target(change: &RunChange) -> Option<RunStatus> {
    match change {
        RunChange::Queue { .. } => Some(RunStatus::Queued),
        RunChange::Start { .. } | RunChange::Resume { .. } => Some(RunStatus::Running),
        RunChange::Wait { .. } => Some(RunStatus::Waiting),
        RunChange::End { terminal: Terminal::Completed(_), .. } => Some(RunStatus::Completed),
        _ => None,
    }
}

fn usage(storage: &BTreeMap<String, Vec<u8>>) -> Usage {
    let bytes: usize = storage.iter().map(|(key, value)| key.len() + value.len()).sum();
    Usage { bytes: bytes as u64, keys: storage.len() as u64 }
}

impl Model {
    fn text(&mut self, conversation: u8) -> String {
        self.messages += 1;
        let text = format!("said {}", self.messages);
        self.transcripts.entry(conversation).or_default().push(text.clone());
        text
    }

    async fn accept(
        &mut self,
        ledger: &Ledger,
        runs: usize,
        key: Option<(u8, u8)>,
        conversation: Option<u8>,
        state_of: Option<(u8, Option<u8>)>,
    ) {
        let event = agent_host_protocol::Event { received_at: agent_host_protocol::time::now(), ..event() };
        let new: Vec<_> = (0..runs).map(|_| run_of(&event)).collect();
        let known = key.and_then(|(key, hash)| self.keys.get(&key).map(|(first, id)| (*first == hash, *id)));
        let transcript = conversation.map(|c| (c, if known.is_none() { self.text(c) } else { String::new() }));
        let accept = Accept {
            idempotency: key.map(|(key, hash)| Idempotency { key: format!("k{key}"), body_hash: [hash; 32] }),
            transcript: transcript.as_ref().map(|(c, text)| item(&format!("c{c}"), text, event.event_id)),
            state: state_of.map(|(key, value)| state(&format!("s{key}"), value.map(|v| json!(v)).as_ref())).into_iter().collect(),
            ..accept(event.clone(), new.clone())
        };
        match (ledger.accept(accept).await, known) {
            (Ok(AcceptOutcome::Repeated { event_id }), Some((true, first))) => assert_eq!(event_id, first),
            (Err(LedgerError::IdempotencyConflict { event_id }), Some((false, first))) => assert_eq!(event_id, first),
            (Ok(AcceptOutcome::New { runs, transcript_seq, .. }), None) => {
                if let Some((key, hash)) = key {
                    self.keys.insert(key, (hash, event.event_id));
                }
                match state_of {
                    Some((key, Some(value))) => drop(self.state.insert(format!("s{key}"), json!(value))),
                    Some((key, None)) => drop(self.state.remove(&format!("s{key}"))),
                    None => {}
                }
                assert_eq!(transcript_seq, transcript.map(|(c, _)| self.transcripts[&c].len() as u64));
                for (record, run) in runs.iter().zip(&new) {
                    assert_eq!(record.run_no, self.runs.len() as u64 + 1);
                    self.runs.push(ModelRun {
                        id: run.run_id,
                        event: event.event_id,
                        status: RunStatus::Created,
                        sequence: 0,
                        ended: false,
                        forgotten: false,
                    });
                }
            }
            (answer, known) => panic!("{answer:?}, but the model knows {known:?}"),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of a step")]
    async fn write(
        &mut self,
        ledger: &Ledger,
        run: usize,
        kinds: &[u8],
        skip: u64,
        events: u64,
        end_event: bool,
        conversation: Option<u8>,
        state_of: Option<(u8, Option<u8>, Expects)>,
        stored: Option<(u8, Option<u8>)>,
        audit: usize,
    ) {
        let changes: Vec<_> = kinds.iter().map(|kind| change(*kind)).collect();
        let known = self.runs.get(run);
        let next = known.map_or(1, |run| run.sequence + 1) + skip;
        let mut new = (next..next + events).map(|n| new_event(n, "message.delta")).collect::<Vec<_>>();
        if end_event {
            new.push(new_event(next + events, "run.completed"));
        }
        let ends = matches!(changes.last(), Some(RunChange::End { .. }));
        let count = new.len() as u64;
        let status = known.map(|run| changes.iter().filter_map(target).try_fold(run.status, step));
        let audit_only = changes.is_empty() && new.is_empty() && conversation.is_none() && state_of.is_none() && stored.is_none();
        let tag = |value: &Value| ExpectedValue::Value(state_tag(&value.to_string()));
        let current = state_of.and_then(|(key, ..)| self.state.get(&format!("s{key}")));
        let expected = state_of.and_then(|(.., expects)| match expects {
            Expects::Anything => None,
            Expects::Nothing => Some(ExpectedValue::Absent),
            Expects::Known => current.map(tag),
            Expects::Other => Some(tag(&json!("another"))),
        });
        let is_expected = expected.is_none_or(|expected| expected == current.map_or(ExpectedValue::Absent, tag));
        let mut storage = self.storage.clone();
        match stored {
            Some((key, Some(len))) => drop(storage.insert(format!("v{key}"), vec![key; usize::from(len)])),
            Some((key, None)) => drop(storage.remove(&format!("v{key}"))),
            None => {}
        }
        let (before, after) = (usage(&self.storage), usage(&storage));
        let fits = (after.bytes <= QUOTA.max_bytes || after.bytes <= before.bytes) && after.keys <= QUOTA.max_keys;
        let allowed = kinds.iter().filter(|kind| **kind == 5).count() == usize::from(ends)
            && ends == end_event
            && is_expected
            && fits
            && match (known, status) {
                (Some(run), _) if run.ended => audit_only,
                (Some(_), Some(Ok(_))) => count == 0 || skip == 0,
                _ => false,
            };
        let text = conversation.map(|c| (c, if allowed { self.text(c) } else { String::new() }));
        let records = (0..audit).map(|_| AuditRecord { run_id: self.runs.get(run).map(|run| run.id), ..AuditRecord::default() });
        let write = RunWrite {
            changes,
            events: new,
            transcript: text.map(|(c, text)| item(&format!("c{c}"), &text, EventId::new())).into_iter().collect(),
            state: state_of
                .map(|(key, value, _)| StateWrite { expected, ..state(&format!("s{key}"), value.map(|v| json!(v)).as_ref()) })
                .into_iter()
                .collect(),
            storage: stored
                .map(|(key, len)| StorageWrite {
                    area_key: "area".into(),
                    key: format!("v{key}"),
                    value: len.map(|len| StorageValue::Inline(vec![key; usize::from(len)])),
                    quota: Some(QUOTA),
                })
                .into_iter()
                .collect(),
            audit: records.collect(),
            ..write(run as u64 + 1)
        };
        let answer = match ledger.submit(write).await {
            Ok(commit) => commit.await,
            Err(error) => Err(error),
        };
        assert_eq!(answer.is_ok(), allowed, "{answer:?}");
        let (Ok(record), Some(run)) = (answer, self.runs.get_mut(run)) else { return };
        run.status = status.and_then(Result::ok).unwrap_or(run.status);
        run.sequence += count;
        run.ended |= ends;
        self.audit += audit;
        assert_eq!((record.status, record.last_sequence), (run.status, run.sequence));
        match state_of {
            Some((key, Some(value), _)) => drop(self.state.insert(format!("s{key}"), json!(value))),
            Some((key, None, _)) => drop(self.state.remove(&format!("s{key}"))),
            None => {}
        }
        self.storage = storage;
    }

    async fn forget(&mut self, ledger: &Ledger, c: u8, runs: &[usize], state: bool) {
        // An event is forgotten with its runs, so all of them have to have ended.
        let ended = |event| self.runs.iter().filter(|run| run.event == event).all(|run| run.ended);
        let mut chosen: Vec<_> =
            runs.iter().copied().filter(|run| self.runs.get(*run).is_some_and(|run| ended(run.event))).collect();
        chosen.sort_unstable();
        chosen.dedup();
        let forget = Forget {
            conversation: conversation(&format!("c{c}")),
            runs: chosen.iter().map(|run| (*run as u64 + 1, self.runs[*run].id)).collect(),
            state: if state { vec!["scope".into()] } else { Vec::new() },
            waits: "nothing".into(),
        };
        let done = ledger.forget_conversation(forget.clone()).await.unwrap();
        let items = self.transcripts.get(&c).map_or(0, Vec::len);
        let before = self.forgotten.insert(c, items).unwrap_or(0);
        // The place of those that were forgotten before goes with them.
        let place = usize::from(before > 0 && items > before);
        assert_eq!(done.items as usize, items - before + place);
        for run in chosen {
            self.runs[run].forgotten = true;
        }
        if state {
            assert_eq!(done.values as usize, self.state.len());
            self.state.clear();
        }
        assert_eq!(ledger.forget_conversation(forget).await.unwrap(), DeletedData::default());
    }

    fn compare(&self, ledger: &Ledger) {
        for run in &self.runs {
            let record = ledger.run(run.id).unwrap().unwrap();
            assert_eq!((record.run.status, record.run.last_sequence), (run.status, run.sequence));
            let events = ledger.run_events(run.id, None, 100).unwrap().items;
            let left = if run.forgotten { 1 } else { run.sequence };
            assert_eq!(events.len() as u64, left);
            assert_eq!(events.last().map_or(0, |event| event.sequence), run.sequence);
            assert_eq!(events.last().is_some_and(agent_host_protocol::RunEvent::is_terminal), run.ended);
        }
        let active = self.runs.iter().filter(|run| !run.ended).map(|run| run.id).collect::<Vec<_>>();
        assert_eq!(ledger.active_runs().unwrap().iter().map(|record| record.run.run_id).collect::<Vec<_>>(), active);
        let newest: Vec<_> = self.runs.iter().rev().take(100).map(|run| run.id).collect();
        let page = ledger.runs_page(&RunFilter::default(), None, 100).unwrap();
        assert_eq!(page.items.iter().map(|run| run.run_id).collect::<Vec<_>>(), newest);
        for (c, texts) in &self.transcripts {
            let page = ledger.transcript(&conversation(&format!("c{c}")), None, None, 100, Direction::Forward).unwrap();
            let messages: Vec<_> = page
                .items
                .iter()
                .map(|item| serde_json::to_value(item).unwrap()["content"].as_str().unwrap().to_owned())
                .collect();
            assert_eq!(messages, texts[self.forgotten.get(c).copied().unwrap_or(0)..]);
        }
        let state: BTreeMap<_, _> = ledger.state_scope("scope", 1 << 20).unwrap().into_iter().collect();
        assert_eq!(state, self.state);
        assert_eq!(ledger.state_keys("scope", None, 100).unwrap(), self.state.keys().cloned().collect::<Vec<_>>());
        assert_eq!(ledger.storage_keys("area", None, 100).unwrap(), self.storage.keys().cloned().collect::<Vec<_>>());
        for (key, value) in &self.storage {
            assert_eq!(ledger.storage_get("area", key).unwrap(), Some(StorageContent::Inline(value.clone())));
        }
        assert_eq!(ledger.storage_usage("area").unwrap(), usage(&self.storage));
        let state_bytes: usize = self.state.iter().map(|(key, value)| key.len() + value.to_string().len()).sum();
        let state_usage = Usage { bytes: state_bytes as u64, keys: self.state.len() as u64 };
        assert_eq!(ledger.state_usage("scope").unwrap(), state_usage);
        assert_eq!(audit_before(ledger, u64::MAX, 100).items.len(), self.audit.min(100));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_answers_as_the_model_does(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        runtime.block_on(async {
            let mut ledger = open(dir.path());
            let mut model = Model::default();
            for step in steps {
                match step {
                    Step::Accept { runs, key, conversation, state } => {
                        model.accept(&ledger, runs, key, conversation, state).await;
                    }
                    Step::Forget { conversation, runs, state } => model.forget(&ledger, conversation, &runs, state).await,
                    Step::Write { run, changes, skip, events, end_event, conversation, state, storage, audit } => {
                        model.write(&ledger, run, &changes, skip, events, end_event, conversation, state, storage, audit).await;
                    }
                    Step::Reopen => {
                        ledger.close().await.unwrap();
                        ledger = open(dir.path());
                    }
                }
            }
            model.compare(&ledger);
            ledger.close().await.unwrap();
            let report = check(dir.path().join("ledger"), |_| ()).unwrap();
            assert!(report.is_ok(), "{:?}", report.findings);
            model.compare(&open(dir.path()));
        });
    }
}
