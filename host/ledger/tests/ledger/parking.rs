//! Parked runs are nowhere but in the store, and come back when they are named.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use std::{collections::BTreeMap, time::Duration};

use crate::common::*;
use agent_host_ledger::{JournalRow, JournalSegment, Ledger, LedgerError, Options, Park, RunChange, RunWrite, check};
use agent_host_protocol::RunStatus;
use proptest::prelude::*;
use redb::{Database, TableDefinition};

fn wait() -> RunChange {
    RunChange::Wait { at: 2_500, reason: "approval".into() }
}

fn park(wake_at: u64, keys: &[&str]) -> Park {
    Park { wake_at, keys: keys.iter().map(|key| (*key).to_owned()).collect() }
}

fn parking(run_no: u64, wake_at: u64, keys: &[&str]) -> RunWrite {
    RunWrite { changes: vec![wait()], park: Some(park(wake_at, keys)), ..write(run_no) }
}

async fn submit(ledger: &Ledger, write: RunWrite) -> Result<std::sync::Arc<agent_host_protocol::Run>, LedgerError> {
    ledger.submit(write).await?.await
}

fn resume() -> RunChange {
    RunChange::Resume { at: 2_600 }
}

fn failing(run_no: u64, sequence: u64) -> RunWrite {
    RunWrite { changes: vec![failed()], events: vec![new_event(sequence, "run.failed")], ..write(run_no) }
}

fn due(ledger: &Ledger) -> Vec<(u64, u64)> {
    ledger.due(u64::MAX, None, 1_000).unwrap()
}

fn assert_sound(dir: &std::path::Path) {
    let report = check(dir.join("ledger"), |_| ()).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
}

#[tokio::test]
async fn a_parked_run_is_found_by_time_and_by_key_until_it_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let (a, b, c) = (running(&ledger).await, running(&ledger).await, running(&ledger).await);
    assert_eq!((ledger.next_wake().unwrap(), ledger.parked_count()), (None, 0));
    for write in [parking(a, 300, &["call:1", "any"]), parking(b, 100, &["call:10", "any"]), parking(c, 200, &[])] {
        assert_eq!(submit(&ledger, write).await.unwrap().status, RunStatus::Waiting);
    }
    let check_all = |ledger: &Ledger| {
        assert_eq!((ledger.next_wake().unwrap(), ledger.parked_count()), (Some(100), 3));
        assert_eq!(due(ledger), [(100, b), (200, c), (300, a)]);
        assert_eq!(ledger.due(200, None, 10).unwrap(), [(100, b), (200, c)]);
        assert_eq!(ledger.due(300, Some((100, b)), 1).unwrap(), [(200, c)]);
        assert!(ledger.due(99, None, 10).unwrap().is_empty() && ledger.due(300, Some((300, a)), 10).unwrap().is_empty());
        assert!(ledger.due(100, Some((200, 0)), 10).unwrap().is_empty());
        assert!(ledger.due(u64::MAX, Some((u64::MAX, u64::MAX)), 10).unwrap().is_empty());
        assert_eq!(ledger.parked_on("any", 10).unwrap(), [a, b]);
        assert_eq!(ledger.parked_on("any", 1).unwrap(), [a]);
        assert_eq!((ledger.parked_on("call:1", 10).unwrap(), ledger.parked_on("call:10", 10).unwrap()), (vec![a], vec![b]));
        for none in ["call", "call:", "call:100", "", "b"] {
            assert!(ledger.parked_on(none, 10).unwrap().is_empty(), "{none}");
        }
        assert_eq!(ledger.parked(b).unwrap(), Some(park(100, &["call:10", "any"])));
        assert_eq!((ledger.parked(b + 10).unwrap(), ledger.active_runs().unwrap()), (None, vec![]));
        let stats = ledger.stats().unwrap();
        assert_eq!((stats.active_runs, stats.parked_runs, stats.active_in_memory), (3, 3, 0));
    };
    check_all(&ledger);
    ledger.close().await.unwrap();
    let ledger = open(dir.path());
    check_all(&ledger);

    // A change that keeps the status leaves a run parked.
    let cancel = RunChange::CancelRequested { at: 5_000, reason: "user".into() };
    let recovered = RunWrite { changes: vec![cancel, RunChange::Recover { at: 5_000 }], events: deltas(1..=1), ..write(b) };
    let run = submit(&ledger, recovered).await.unwrap();
    assert_eq!((run.status, run.resumes, run.last_sequence), (RunStatus::Waiting, 1, 1));
    check_all(&ledger);

    // A change of the status ends the park.
    let run = submit(&ledger, RunWrite { changes: vec![resume()], ..write(b) }).await.unwrap();
    assert_eq!((run.status, run.cancel_reason.as_deref()), (RunStatus::Running, Some("user")));
    assert_eq!((ledger.next_wake().unwrap(), ledger.parked_count()), (Some(200), 2));
    assert_eq!((ledger.parked_on("any", 10).unwrap(), ledger.parked(b).unwrap()), (vec![a], None));
    assert_eq!(ledger.active_runs().unwrap().iter().map(|record| record.run_no).collect::<Vec<_>>(), [b]);
    submit(&ledger, failing(a, 1)).await.unwrap();
    submit(&ledger, RunWrite { changes: vec![start()], ..write(c) }).await.unwrap();
    assert_eq!((due(&ledger), ledger.parked_count(), ledger.next_wake().unwrap()), (vec![], 0, None));
    assert!(ledger.parked_on("any", 10).unwrap().is_empty());
    assert_eq!(ledger.stats().unwrap().active_in_memory, 2);
    ledger.close().await.unwrap();
    assert_sound(dir.path());
}

#[tokio::test]
async fn due_changes_the_wake_time_and_leaves_what_the_pair_left() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let (a, b) = (running(&ledger).await, running(&ledger).await);
    for run_no in [a, b] {
        submit(&ledger, parking(run_no, 9_000, &["call:1", "any"])).await.unwrap();
    }
    let at = 2_700;
    let cancel = RunChange::CancelRequested { at, reason: "user".into() };
    let pair = vec![cancel.clone(), RunChange::Resume { at }, RunChange::Wait { at, reason: "approval".into() }];
    let pair = RunWrite { changes: pair, park: Some(park(at, &["call:1", "any"])), events: deltas(1..=1), ..write(a) };
    let due_write = RunWrite { changes: vec![cancel, RunChange::Due { at }], events: deltas(1..=1), ..write(b) };
    let (left, made_due) = (submit(&ledger, pair).await.unwrap(), submit(&ledger, due_write.clone()).await.unwrap());
    let (run_id, event_id, record_digest) = (left.run_id, left.event_id, left.record_digest);
    let same_ids = agent_host_protocol::Run { run_id, event_id, record_digest, ..(*made_due).clone() };
    assert_eq!(*left, same_ids);
    assert_eq!(due(&ledger), [(at, a), (at, b)]);
    assert_eq!(ledger.parked(a).unwrap(), ledger.parked(b).unwrap());
    assert_eq!((ledger.parked_on("any", 9).unwrap(), ledger.parked_count()), (vec![a, b], 2));
    assert_eq!(ledger.stats().unwrap().active_in_memory, 0);

    // A run that was woken meanwhile is not parked any more.
    submit(&ledger, RunWrite { changes: vec![resume()], ..write(b) }).await.unwrap();
    let again = RunWrite { events: Vec::new(), ..due_write };
    assert!(matches!(submit(&ledger, again.clone()).await, Err(LedgerError::Transition(_))));
    submit(&ledger, RunWrite { changes: vec![wait()], ..write(b) }).await.unwrap();
    assert!(matches!(submit(&ledger, again).await, Err(LedgerError::Transition(_))));
    ledger.close().await.unwrap();
    assert_sound(dir.path());
}

#[tokio::test]
async fn a_park_that_cannot_be_is_refused_whole() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let run_no = running(&ledger).await;
    let long = "k".repeat(4_088);
    let many: Vec<String> = (0..65).map(|n| format!("k{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for refused in [
        RunWrite { changes: Vec::new(), ..parking(run_no, 1, &[]) },
        RunWrite { changes: vec![wait(), resume()], ..parking(run_no, 1, &[]) },
        RunWrite { events: vec![new_event(1, "run.failed")], changes: vec![wait(), failed()], ..parking(run_no, 1, &[]) },
        parking(run_no, 1, &["a", ""]),
        parking(run_no, 1, &[&format!("{long}k")]),
        parking(run_no, 1, &many),
    ] {
        let printed = format!("{:?}", refused.changes);
        assert!(matches!(submit(&ledger, refused).await, Err(LedgerError::Invalid(_))), "{printed}");
    }
    // The status does not allow it: nothing of the write happens.
    let created = new_run(&ledger).await.run_no;
    assert!(matches!(submit(&ledger, parking(created, 1, &["a"])).await, Err(LedgerError::Transition(_))));
    let conflict = RunWrite { events: deltas(2..=2), ..parking(run_no, 1, &["a"]) };
    assert!(matches!(submit(&ledger, conflict).await, Err(LedgerError::Sequence { .. })));
    assert_eq!((ledger.parked_count(), ledger.parked_on("a", 9).unwrap(), due(&ledger)), (0, vec![], vec![]));
    assert_eq!(ledger.stats().unwrap().active_in_memory, 2);
    let most = [long.as_str()].into_iter().chain(many.iter().copied().take(63)).collect::<Vec<_>>();
    submit(&ledger, parking(run_no, u64::MAX, &most)).await.unwrap();
    assert_eq!((ledger.parked_on(&long, 9).unwrap(), due(&ledger)), (vec![run_no], vec![(u64::MAX, run_no)]));
    ledger.close().await.unwrap();
    assert_sound(dir.path());
}

#[tokio::test]
async fn parked_runs_cost_no_memory_also_after_a_reopen() {
    const RUNS: u64 = 3_000;
    let dir = tempfile::tempdir().unwrap();
    let never = Duration::from_secs(3_600);
    let ledger = Options { checkpoint_interval: never, ..Options::new(dir.path().join("ledger")) }.start();
    let mut commits = Vec::new();
    for record in new_runs(&ledger, usize::try_from(RUNS).unwrap()).await {
        let changes = vec![start(), wait()];
        let park = Some(park(record.run_no, &["all"]));
        commits.push(ledger.submit(RunWrite { changes, park, ..write(record.run_no) }).await.unwrap());
    }
    for commit in commits {
        commit.await.unwrap();
    }
    let kept = running(&ledger).await;
    for reopen in [true, false] {
        let stats = ledger.stats().unwrap();
        assert_eq!((stats.active_runs, stats.parked_runs, stats.active_in_memory), (RUNS + 1, RUNS, 1), "{reopen}");
        assert_eq!(ledger.active_runs().unwrap().iter().map(|record| record.run_no).collect::<Vec<_>>(), [kept]);
        assert_eq!(ledger.parked_on("all", 10_000).unwrap().len() as u64, RUNS);
        // Naming one brings it back for as long as the batch takes.
        let recovered = RunWrite { context: Some(raw(&serde_json::json!({}))), ..write(7) };
        assert_eq!(submit(&ledger, recovered).await.unwrap().status, RunStatus::Waiting);
        assert_eq!(ledger.stats().unwrap().active_in_memory, 1);
        if reopen {
            let copy = dir.path().join("copy");
            crash(dir.path(), &copy);
            let crashed = Options::new(copy.join("ledger")).start();
            let stats = crashed.stats().unwrap();
            assert_eq!((stats.parked_runs, stats.active_in_memory), (RUNS, 1));
        }
    }
}

/// A write that keeps the writer busy, so that what follows is one batch.
async fn busy(ledger: &Ledger, run_no: u64) {
    let context = Some(raw(&serde_json::json!({ "long": "x".repeat(8 << 20) })));
    drop(ledger.submit(RunWrite { context, ..write(run_no) }).await.unwrap());
}

#[tokio::test]
async fn a_batch_sees_its_own_parks() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Options { checkpoint_interval: Duration::from_secs(3_600), ..options(dir.path()) }.start();
    let run_no = running(&ledger).await;
    let filler = running(&ledger).await;
    for parked_before in [false, true] {
        if parked_before {
            submit(&ledger, parking(run_no, 1, &["old"])).await.unwrap();
        }
        busy(&ledger, filler).await;
        let mut commits = Vec::new();
        if parked_before {
            commits.push(ledger.submit(RunWrite { changes: vec![resume()], ..write(run_no) }).await.unwrap());
        }
        for (wake_at, key) in [(10, "x"), (20, "y"), (30, "z")] {
            commits.push(ledger.submit(parking(run_no, wake_at, &[key, "always"])).await.unwrap());
            commits.push(ledger.submit(RunWrite { changes: vec![resume()], ..write(run_no) }).await.unwrap());
        }
        // Goes on and is parked again by one write.
        let again = RunWrite { changes: vec![wait(), resume(), wait()], ..parking(run_no, 40, &["w", "always", "w"]) };
        commits.push(ledger.submit(again).await.unwrap());
        let again = RunWrite { changes: vec![resume(), wait()], ..parking(run_no, 50, &["v"]) };
        commits.push(ledger.submit(again).await.unwrap());
        for commit in commits {
            commit.await.unwrap();
        }
        assert_eq!((due(&ledger), ledger.parked_count()), (vec![(50, run_no)], 1));
        let on = |key: &str| ledger.parked_on(key, 9).unwrap();
        for none in ["old", "x", "y", "z", "w", "always"] {
            assert!(on(none).is_empty(), "{none}");
        }
        assert_eq!(on("v"), [run_no]);
        submit(&ledger, RunWrite { changes: vec![resume()], ..write(run_no) }).await.unwrap();
        assert_eq!((due(&ledger), ledger.parked_count(), on("v")), (vec![], 0, vec![]));
    }
    ledger.close().await.unwrap();
    assert_sound(dir.path());
}

#[tokio::test]
async fn a_check_says_where_the_tables_of_parked_runs_disagree() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    for n in 0..4 {
        let run_no = running(&ledger).await;
        submit(&ledger, parking(run_no, 10 + n, &["key"])).await.unwrap();
    }
    ledger.close().await.unwrap();
    let database = Database::open(dir.path().join("ledger/ledger.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let table = |name| transaction.open_table(TableDefinition::<&[u8], &[u8]>::new(name)).unwrap();
    let number = |n: u64| n.to_be_bytes();
    assert!(table("wakes").remove([number(10), number(1)].concat().as_slice()).unwrap().is_some());
    assert!(table("waits").remove([b"key".as_slice(), &number(2)].concat().as_slice()).unwrap().is_some());
    assert!(table("parked").remove(number(3).as_slice()).unwrap().is_some());
    let row = br#"{"wake_at":99,"keys":[]}"#;
    table("parked").insert(number(77).as_slice(), row.as_slice()).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let report = check(dir.path().join("ledger"), |_| ()).unwrap();
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    for wanted in [
        "run 1 is parked and never wakes",
        "run 2 waits for `key` and is not listed",
        "run 77 is parked and not there",
        "run 77 is parked and never wakes",
        "wakes: 3 runs are listed, 4 are parked",
    ] {
        assert!(found.iter().any(|finding| finding.contains(wanted)), "{wanted} is not in {found:#?}");
    }
}

const KEYS: [&str; 4] = ["a", "ab", "a\0\0\0\0\0\0\0\0", "b"];

#[derive(Debug, Clone)]
enum Step {
    /// Waits, parked or not.
    Wait(Option<(u64, Vec<usize>)>),
    /// Goes on and waits again.
    Again(u64, Vec<usize>),
    /// Becomes due.
    Due(u64),
    /// Becomes due, with another park row.
    DueWith(u64, Vec<usize>),
    Resume,
    Retry(Option<u64>),
    Recover,
    Cancel,
    Segment(u64),
    End,
}

#[derive(Debug, Clone)]
enum Group {
    /// Writes that are submitted one after the other, and only then waited for.
    Together(Vec<(usize, Step)>),
    Reopen,
}

fn groups() -> impl Strategy<Value = Vec<Group>> {
    let keys = || prop::collection::vec(0..KEYS.len(), 0..4);
    let step = prop_oneof![
        4 => prop::option::weighted(0.8, (0u64..5, keys())).prop_map(Step::Wait),
        2 => (0u64..5, keys()).prop_map(|(at, keys)| Step::Again(at, keys)),
        2 => (0u64..5).prop_map(Step::Due),
        1 => (0u64..5, keys()).prop_map(|(at, keys)| Step::DueWith(at, keys)),
        4 => Just(Step::Resume),
        2 => prop::option::of(0u64..3).prop_map(Step::Retry),
        1 => Just(Step::Recover),
        1 => Just(Step::Cancel),
        3 => (0u64..4).prop_map(Step::Segment),
        1 => Just(Step::End),
    ];
    let together = prop::collection::vec((0usize..RUNS, step), 1..12).prop_map(Group::Together);
    prop::collection::vec(prop_oneof![6 => together, 1 => Just(Group::Reopen)], 1..12)
}

const RUNS: usize = 4;

#[derive(Debug, Default)]
struct ModelRun {
    waits: bool,
    ended: bool,
    park: Option<Park>,
    journal: BTreeMap<u64, Vec<u8>>,
    attempt: u32,
    resumes: u32,
}

impl ModelRun {
    /// The write that a step is, and whether it is allowed.
    fn step(&mut self, run_no: u64, step: &Step) -> (RunWrite, bool) {
        let chosen = |at: u64, keys: &[usize]| park(at, &keys.iter().map(|key| KEYS[*key]).collect::<Vec<_>>());
        let segment = |first: u64| JournalSegment { first, bytes: first.to_be_bytes().to_vec(), blobs: Vec::new() };
        let last = self.journal.keys().last().copied();
        let (write, allowed) = match step {
            Step::Wait(parked) => {
                let park = parked.as_ref().map(|(at, keys)| chosen(*at, keys));
                (RunWrite { changes: vec![wait()], park, ..write(run_no) }, !self.waits)
            }
            Step::Again(at, keys) => {
                (RunWrite { changes: vec![resume(), wait()], park: Some(chosen(*at, keys)), ..write(run_no) }, self.waits)
            }
            Step::Due(at) => (RunWrite { changes: vec![RunChange::Due { at: *at }], ..write(run_no) }, self.park.is_some()),
            Step::DueWith(at, keys) => {
                let changes = vec![RunChange::Due { at: 2_700 }];
                (RunWrite { changes, park: Some(chosen(*at, keys)), ..write(run_no) }, self.park.is_some())
            }
            Step::Resume => (RunWrite { changes: vec![resume()], ..write(run_no) }, self.waits),
            Step::Retry(first) => {
                let changes = vec![RunChange::Retry { at: 3_000, deadline_at: None }];
                (RunWrite { changes, journal: first.map(segment), ..write(run_no) }, true)
            }
            Step::Recover => (RunWrite { changes: vec![RunChange::Recover { at: 1 }], ..write(run_no) }, true),
            Step::Cancel => {
                let changes = vec![RunChange::CancelRequested { at: 1, reason: "r".into() }];
                (RunWrite { changes, ..write(run_no) }, true)
            }
            Step::Segment(by) => {
                let first = last.unwrap_or(0) + by;
                (RunWrite { journal: Some(segment(first)), ..write(run_no) }, last.is_none_or(|last| last < first))
            }
            Step::End => (failing(run_no, 1), true),
        };
        if self.ended || !allowed {
            return (write, false);
        }
        match step {
            Step::Wait(_) | Step::Again(..) => {
                self.waits = true;
                self.park.clone_from(&write.park);
            }
            Step::Due(at) => self.park.iter_mut().for_each(|park| park.wake_at = *at),
            Step::DueWith(..) => self.park.clone_from(&write.park),
            Step::Resume | Step::Retry(_) | Step::End => {
                self.waits = false;
                self.park = None;
            }
            Step::Recover => self.resumes += 1,
            Step::Cancel | Step::Segment(_) => {}
        }
        if matches!(step, Step::Retry(_)) {
            self.journal.clear();
            self.attempt += 1;
        }
        self.ended |= matches!(step, Step::End);
        if let Some(JournalSegment { first, bytes, .. }) = &write.journal {
            self.journal.insert(*first, bytes.clone());
        }
        (write, true)
    }
}

fn compare(ledger: &Ledger, runs: &[ModelRun]) {
    let numbered = || runs.iter().zip(1u64..);
    let mut wakes = Vec::new();
    for (run, run_no) in numbered() {
        assert_eq!(ledger.parked(run_no).unwrap(), run.park, "run {run_no}");
        wakes.extend(run.park.as_ref().map(|park| (park.wake_at, run_no)));
        let found = ledger.journal_page(run_no, 0, usize::MAX).unwrap();
        let journal: Vec<_> = run
            .journal
            .iter()
            .map(|(first, bytes)| JournalRow { first: *first, bytes: bytes.clone(), blobs: Vec::new() })
            .collect();
        assert_eq!(found, journal, "run {run_no}");
        let record = ledger.run_by_no(run_no).unwrap().unwrap().run;
        let status = match run {
            ModelRun { ended: true, .. } => RunStatus::Failed,
            ModelRun { waits: true, .. } => RunStatus::Waiting,
            _ => RunStatus::Running,
        };
        assert_eq!((record.status, record.attempt, record.resumes), (status, run.attempt + 1, run.resumes), "run {run_no}");
    }
    wakes.sort_unstable();
    assert_eq!((ledger.parked_count(), due(ledger)), (wakes.len() as u64, wakes.clone()));
    assert_eq!(ledger.next_wake().unwrap(), wakes.first().map(|(at, _)| *at));
    for key in KEYS {
        let on = numbered().filter(|(run, _)| run.park.as_ref().is_some_and(|park| park.keys.iter().any(|k| k == key)));
        assert_eq!(ledger.parked_on(key, 100).unwrap(), on.map(|(_, run_no)| run_no).collect::<Vec<_>>(), "{key:?}");
    }
    let active: Vec<_> = numbered().filter(|(run, _)| !run.ended && run.park.is_none()).map(|(_, no)| no).collect();
    assert_eq!(ledger.active_runs().unwrap().iter().map(|record| record.run_no).collect::<Vec<_>>(), active);
    assert_eq!(ledger.stats().unwrap().active_in_memory, active.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// For any grouping into batches, the tables equal those of the single steps.
    #[test]
    fn parks_and_journals_are_what_a_model_says(groups in groups()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        runtime.block_on(async {
            let mut ledger = open(dir.path());
            let mut runs: Vec<ModelRun> = Vec::new();
            for _ in 0..RUNS {
                running(&ledger).await;
                runs.push(ModelRun::default());
            }
            for group in groups {
                match group {
                    Group::Together(steps) => {
                        let mut commits = Vec::new();
                        for (run, step) in steps {
                            let (write, allowed) = runs[run].step(run as u64 + 1, &step);
                            commits.push((ledger.submit(write).await.unwrap(), allowed, step));
                        }
                        for (commit, allowed, step) in commits {
                            let answer = commit.await;
                            assert_eq!(answer.is_ok(), allowed, "{step:?}: {answer:?}");
                        }
                    }
                    Group::Reopen => {
                        ledger.close().await.unwrap();
                        ledger = open(dir.path());
                    }
                }
                compare(&ledger, &runs);
            }
            ledger.close().await.unwrap();
            assert_sound(dir.path());
            compare(&open(dir.path()), &runs);
        });
    }
}
