//! Journals of runs: what was appended is read back, keeps its blobs, and goes when it is pruned or a run begins anew.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use std::{path::Path, time::Duration};

use crate::common::*;
use agent_host_ledger::{
    AddRun, Blob, CollectionCounts, JournalRow, JournalSegment, Ledger, LedgerError, Options, PrunedSegments, RunChange,
    RunFilter, RunRecord, RunWrite, check,
};
use agent_host_protocol::{EventId, Run, RunId, RunStatus};
use redb::{Database, TableDefinition};
use serde_json::{Value, json};

fn segment(first: u64, bytes: &[u8]) -> Option<JournalSegment> {
    Some(JournalSegment { first, bytes: bytes.to_vec(), blobs: Vec::new() })
}

fn naming(first: u64, blobs: &[&Blob]) -> Option<JournalSegment> {
    Some(JournalSegment { first, bytes: b"entry".to_vec(), blobs: blobs.iter().map(|blob| (*blob).clone()).collect() })
}

async fn submit(ledger: &Ledger, write: RunWrite) -> Result<std::sync::Arc<Run>, LedgerError> {
    ledger.submit(write).await?.await
}

async fn append(ledger: &Ledger, run_no: u64, journal: Option<JournalSegment>) -> Result<std::sync::Arc<Run>, LedgerError> {
    submit(ledger, RunWrite { journal, ..write(run_no) }).await
}

fn journal(ledger: &Ledger, run_no: u64) -> Vec<(u64, Vec<u8>)> {
    let page = ledger.journal_page(run_no, 0, usize::MAX).unwrap();
    page.into_iter().map(|JournalRow { first, bytes, .. }| (first, bytes)).collect()
}

fn firsts(ledger: &Ledger, run_no: u64, from: u64, max_bytes: usize) -> Vec<u64> {
    ledger.journal_page(run_no, from, max_bytes).unwrap().iter().map(|row| row.first).collect()
}

fn retry() -> RunChange {
    RunChange::Retry { at: 5_000, deadline_at: Some(60_000) }
}

/// A write that keeps the writer busy, so that what follows is one batch.
async fn busy(ledger: &Ledger, run_no: u64) {
    let context = Some(raw(&json!({ "long": "x".repeat(8 << 20) })));
    drop(ledger.submit(RunWrite { context, ..write(run_no) }).await.unwrap());
}

async fn end(ledger: &Ledger, run_no: u64) {
    let end = RunWrite { changes: vec![failed()], events: vec![new_event(1, "run.failed")], ..write(run_no) };
    submit(ledger, end).await.unwrap();
}

/// Far behind the time in which a blob that was just written is left alone.
async fn collect(ledger: &Ledger) -> CollectionCounts {
    ledger.collect_garbage(agent_host_protocol::time::now() + 1_000_000_000).await.unwrap()
}

/// The state after a crash: a copy of the files, opened.
fn crashed(dir: &Path, copy: &Path) -> Ledger {
    crash(dir, copy);
    open(copy)
}

fn without_checkpoints(dir: &Path) -> Ledger {
    let never = Duration::from_secs(3_600);
    Options { checkpoint_interval: never, checkpoint_wal_bytes: 1 << 24, ..options(dir) }.start()
}

fn findings(dir: &Path) -> Vec<String> {
    check(dir.join("ledger"), |_| ()).unwrap().findings.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn segments_read_back_in_order_and_in_pages() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = without_checkpoints(dir.path());
    let (run_no, other) = (running(&ledger).await, running(&ledger).await);
    let mut expected = Vec::new();
    for first in [0, 1, 7, 300, 70_000] {
        let bytes = vec![first as u8; 10];
        append(&ledger, run_no, segment(first, &bytes)).await.unwrap();
        append(&ledger, other, segment(first + 1, b"theirs")).await.unwrap();
        expected.push((first, bytes));
    }
    assert_eq!(journal(&ledger, run_no), expected);
    assert_eq!(firsts(&ledger, run_no, 1, 20), [1, 7]);
    assert_eq!(firsts(&ledger, run_no, 2, 19), [7]);
    assert_eq!(firsts(&ledger, run_no, 2, 0), [7], "there is always one");
    assert_eq!(firsts(&ledger, run_no, 300, 1_000), [300, 70_000]);
    assert!(firsts(&ledger, run_no, 70_001, 1_000).is_empty() && firsts(&ledger, 99, 0, 1_000).is_empty());

    // A segment that does not continue the last one is refused with its whole write.
    for first in [70_000, 5, 0] {
        let refused = RunWrite { journal: segment(first, b"x"), events: deltas(1..=1), ..write(run_no) };
        assert!(matches!(submit(&ledger, refused).await, Err(LedgerError::Invalid(_))), "{first}");
    }
    let run = append(&ledger, run_no, segment(70_001, b"")).await.unwrap();
    assert_eq!(run.last_sequence, 0);
    expected.push((70_001, Vec::new()));

    // In one batch too: the later one knows of the earlier.
    let mut commits = Vec::new();
    for first in [80_000, 80_000, 80_001] {
        commits.push(ledger.submit(RunWrite { journal: segment(first, b"y"), ..write(run_no) }).await.unwrap());
    }
    let mut answers = Vec::new();
    for commit in commits {
        answers.push(commit.await.is_ok());
    }
    assert_eq!(answers, [true, false, true]);
    expected.extend([(80_000, b"y".to_vec()), (80_001, b"y".to_vec())]);
    assert_eq!(journal(&ledger, run_no), expected);

    let copy = tempfile::tempdir().unwrap();
    let reopened = crashed(dir.path(), copy.path());
    assert_eq!(journal(&reopened, run_no), expected);
    assert!(append(&reopened, run_no, segment(80_001, b"x")).await.is_err(), "it knows where it ended");
    append(&reopened, run_no, segment(80_002, b"x")).await.unwrap();
    reopened.close().await.unwrap();
    assert!(findings(copy.path()).is_empty());

    // With its end a run takes a last segment, and then none.
    let last = RunWrite {
        changes: vec![completed()],
        events: vec![new_event(1, "run.completed")],
        journal: segment(90_000, b"end"),
        ..write(run_no)
    };
    submit(&ledger, last).await.unwrap();
    assert!(matches!(append(&ledger, run_no, segment(90_001, b"x")).await, Err(LedgerError::Terminal { .. })));
    assert_eq!(firsts(&ledger, run_no, 90_000, 1), [90_000]);
    assert_eq!(ledger.run_by_no(run_no).unwrap().unwrap().run.status, RunStatus::Completed);
    assert_eq!(ledger.run_by_no(99).unwrap(), None);
    let stats = ledger.stats().unwrap().journal;
    assert!(stats.rows == 14 && stats.bytes > 14 * 20 && stats.share > 0.0 && stats.share < 1.0, "{stats:?}");
}

#[tokio::test]
async fn blobs_of_a_journal_are_kept_until_it_is_pruned() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let (run_no, other) = (running(&ledger).await, running(&ledger).await);
    let (one, two, shared) = (blob(&ledger, b"one"), blob(&ledger, b"two"), blob(&ledger, b"shared"));
    append(&ledger, run_no, naming(1, &[&one, &shared, &one])).await.unwrap();
    append(&ledger, run_no, naming(2, &[&two, &one])).await.unwrap();
    append(&ledger, other, naming(1, &[&shared])).await.unwrap();
    let named = [one.sha256.clone(), two.sha256.clone(), shared.sha256.clone()];
    drop((one, two, shared));
    let there = |ledger: &Ledger| named.each_ref().map(|name| ledger.blob(name).unwrap().is_some());
    assert_eq!((collect(&ledger).await.blobs, there(&ledger)), (0, [true; 3]));
    ledger.close().await.unwrap();
    assert!(findings(dir.path()).is_empty());
    let ledger = open(dir.path());
    assert_eq!((collect(&ledger).await.blobs, there(&ledger)), (0, [true; 3]));

    let mut lines = Vec::new();
    ledger.export(&mut lines, |_| ()).unwrap();
    let lines: Vec<Value> = String::from_utf8(lines).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let exported: Vec<_> = lines.iter().filter(|line| line["table"] == "journal").collect();
    let id = ledger.run_by_no(other).unwrap().unwrap().run.run_id;
    assert_eq!(exported.len(), 3);
    let wanted = json!({ "table": "journal", "run_id": id, "first": 1, "base64": "ZW50cnk=", "blobs": [named[2]] });
    assert_eq!(*exported[2], wanted);

    end(&ledger, run_no).await;
    assert_eq!(ledger.prune_journals(3_000, 10).await.unwrap(), PrunedSegments::default(), "it ended at that time, not before");
    let pruned = ledger.prune_journals(3_001, 10).await.unwrap();
    assert_eq!(pruned, PrunedSegments { runs: 1, rows: 2, bytes: 10, more: false });
    assert!(journal(&ledger, run_no).is_empty());
    assert_eq!((collect(&ledger).await.blobs, there(&ledger)), (2, [false, false, true]));
    assert_eq!(ledger.prune_journals(u64::MAX, 10).await.unwrap(), PrunedSegments::default(), "the other is under way");
    ledger.close().await.unwrap();
    assert!(findings(dir.path()).is_empty());
}

#[tokio::test]
async fn pruning_takes_old_ended_runs_alone_and_so_many_as_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = without_checkpoints(dir.path());
    let mut old = Vec::new();
    for n in 0..6 {
        let run_no = running(&ledger).await;
        for first in 0..3 {
            append(&ledger, run_no, segment(first, b"12345")).await.unwrap();
        }
        if n % 2 == 0 {
            end(&ledger, run_no).await;
            old.push(run_no);
        }
    }
    // Ended, and created too late.
    let event = event();
    let young = Run { created_at: 50_000, ..run_of(&event) };
    let agent_host_ledger::AcceptOutcome::New { runs, .. } = ledger.accept(accept(event, vec![young])).await.unwrap() else {
        panic!("it is new")
    };
    let young = runs[0].run_no;
    append(&ledger, young, segment(1, b"x")).await.unwrap();
    submit(&ledger, RunWrite { changes: vec![start()], ..write(young) }).await.unwrap();
    end(&ledger, young).await;

    assert_eq!(ledger.prune_journals(9_000, 0).await.unwrap(), PrunedSegments { more: true, ..PrunedSegments::default() });
    let two = ledger.prune_journals(9_000, 2).await.unwrap();
    assert_eq!(two, PrunedSegments { runs: 2, rows: 6, bytes: 30, more: true });
    assert_eq!(old.iter().map(|no| journal(&ledger, *no).len()).collect::<Vec<_>>(), [0, 0, 3]);
    let copy = tempfile::tempdir().unwrap();
    let reopened = crashed(dir.path(), copy.path());
    let one = ledger.prune_journals(9_000, 1).await.unwrap();
    assert_eq!(one, PrunedSegments { runs: 1, rows: 3, bytes: 15, more: false });
    assert_eq!(reopened.prune_journals(9_000, 100).await.unwrap(), one, "what was pruned stays so, and only that");
    assert_eq!(ledger.prune_journals(9_000, 100).await.unwrap(), PrunedSegments::default());
    for live in [2, 4, 6] {
        assert_eq!(journal(&ledger, live).len(), 3, "run {live} has not ended");
    }
    assert_eq!(journal(&ledger, young).len(), 1);
    assert_eq!(ledger.prune_journals(u64::MAX, 100).await.unwrap().runs, 1);
}

#[tokio::test]
async fn long_journals_are_pruned_in_pieces_and_two_prunings_count_each_segment_once() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = without_checkpoints(dir.path());
    let shared = blob(&ledger, b"shared");
    for _ in 0..3 {
        let run_no = running(&ledger).await;
        let mut commits = Vec::new();
        for first in 0..700 {
            let journal = if first == 650 { naming(first, &[&shared]) } else { segment(first, b"12345") };
            commits.push(ledger.submit(RunWrite { journal, ..write(run_no) }).await.unwrap());
        }
        for commit in commits {
            commit.await.unwrap();
        }
        end(&ledger, run_no).await;
    }
    let two = tokio::join!(ledger.prune_journals(9_000, 100), ledger.prune_journals(9_000, 100));
    let (one, other) = (two.0.unwrap(), two.1.unwrap());
    assert_eq!((one.rows + other.rows, one.bytes + other.bytes), (2_100, 10_500));
    let runs = one.runs + other.runs;
    assert!(runs == 3 && !one.more && !other.more, "{one:?} {other:?}");
    drop(shared);
    assert_eq!((ledger.stats().unwrap().journal.rows, collect(&ledger).await.blobs), (0, 1));
    ledger.close().await.unwrap();
    assert!(findings(dir.path()).is_empty());
}

#[tokio::test]
async fn a_retry_replaces_the_journal_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = without_checkpoints(dir.path());
    let run_no = running(&ledger).await;
    let (old, kept) = (blob(&ledger, b"old"), blob(&ledger, b"kept"));
    append(&ledger, run_no, naming(1, &[&old, &kept])).await.unwrap();
    append(&ledger, run_no, segment(50, b"x")).await.unwrap();
    submit(&ledger, RunWrite { events: deltas(1..=2), ..write(run_no) }).await.unwrap();

    // Refused, it deletes nothing.
    let refused = RunWrite { changes: vec![retry()], events: deltas(9..=9), ..write(run_no) };
    assert!(matches!(submit(&ledger, refused).await, Err(LedgerError::Sequence { .. })));
    assert_eq!(firsts(&ledger, run_no, 0, 100), [1, 50]);

    let again = RunWrite { changes: vec![retry()], journal: naming(1, &[&kept]), ..write(run_no) };
    let run = submit(&ledger, again).await.unwrap();
    assert_eq!((run.attempt, run.status, run.deadline_at), (2, RunStatus::Running, Some(60_000)));
    assert_eq!((run.last_sequence, run.started_at), (2, Some(2_000)), "what it has said stays");
    assert_eq!(journal(&ledger, run_no), [(1, b"entry".to_vec())]);
    drop((old, kept));
    assert_eq!(collect(&ledger).await.blobs, 1);

    // Segments and retries in one batch.
    let mut commits = Vec::new();
    for (changes, first) in [(vec![], 2), (vec![retry()], 1), (vec![], 2), (vec![retry()], 1), (vec![], 3)] {
        commits.push(ledger.submit(RunWrite { changes, journal: segment(first, b"y"), ..write(run_no) }).await.unwrap());
    }
    for commit in commits {
        commit.await.unwrap();
    }
    assert_eq!(firsts(&ledger, run_no, 0, 100), [1, 3]);
    submit(&ledger, RunWrite { changes: vec![retry()], ..write(run_no) }).await.unwrap();
    assert!(journal(&ledger, run_no).is_empty());
    append(&ledger, run_no, segment(0, b"z")).await.unwrap();

    let copy = tempfile::tempdir().unwrap();
    let reopened = crashed(dir.path(), copy.path());
    assert_eq!(journal(&reopened, run_no), [(0, b"z".to_vec())]);
    assert_eq!(reopened.run_by_no(run_no).unwrap().unwrap().run.attempt, 5);
    reopened.close().await.unwrap();
    assert!(findings(copy.path()).is_empty());
    assert_eq!(collect(&ledger).await.blobs, 1);
}

#[tokio::test]
async fn only_what_was_under_way_is_brought_back() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let recover = RunChange::Recover { at: 7_000 };
    let run_no = new_run(&ledger).await.run_no;
    let change = |change: &RunChange| RunWrite { changes: vec![change.clone()], ..write(run_no) };
    for queued in [false, true] {
        for refused in [&recover, &retry()] {
            assert!(matches!(submit(&ledger, change(refused)).await, Err(LedgerError::Invalid(_))), "{queued}");
        }
        if !queued {
            submit(&ledger, change(&RunChange::Queue { at: 1 })).await.unwrap();
        }
    }
    submit(&ledger, change(&start())).await.unwrap();
    let run = submit(&ledger, change(&recover)).await.unwrap();
    assert_eq!((run.status, run.resumes, run.attempt, run.updated_at), (RunStatus::Running, 1, 1, 7_000));
    let wait = RunWrite { changes: vec![RunChange::Wait { at: 1, reason: "approval".into() }, recover.clone()], ..write(run_no) };
    let run = submit(&ledger, wait).await.unwrap();
    assert_eq!((run.status, run.resumes, run.status_reason.as_deref()), (RunStatus::Waiting, 2, Some("approval")));
    ledger.close().await.unwrap();
    let ledger = open(dir.path());
    assert_eq!(ledger.run_by_no(run_no).unwrap().unwrap().run, run);
    let run = submit(&ledger, change(&RunChange::Retry { at: 8_000, deadline_at: None })).await.unwrap();
    assert_eq!((run.status, run.status_reason.as_deref(), run.attempt, run.deadline_at), (RunStatus::Running, None, 2, None));
    end(&ledger, run_no).await;
    for refused in [&recover, &retry()] {
        assert!(matches!(submit(&ledger, change(refused)).await, Err(LedgerError::Terminal { .. })));
    }
}

fn fork(of: EventId, events: u64) -> AddRun {
    let run = Run { event_id: of, last_sequence: events, ..run_of(&event()) };
    AddRun {
        run,
        terms: raw(&json!({ "granted": [] })),
        context: Some(raw(&json!({ "forked": true }))),
        events: deltas(1..=events),
        journal: segment(1, b"inherited"),
        entries: Vec::new(),
    }
}

#[tokio::test]
async fn a_run_is_added_to_an_event_that_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = without_checkpoints(dir.path());
    let event_in = event_in("c", "message.received");
    let first = run_of(&event_in);
    let accepted = accept(event_in.clone(), vec![first.clone()]);
    // Both are waiting at once, behind one that takes long: the event is found in the batch that makes it.
    let filler = new_run(&ledger).await.run_no;
    busy(&ledger, filler).await;
    let second = fork(event_in.event_id, 0);
    let (made, forked) = tokio::join!(ledger.accept(accepted), ledger.add_run(second.clone()));
    made.unwrap();
    let second = forked.unwrap();
    let kept = blob(&ledger, b"kept");
    let more = AddRun { journal: naming(4, &[&kept]), ..fork(event_in.event_id, 3) };
    busy(&ledger, filler).await;
    let (third, fourth) = tokio::join!(ledger.add_run(more), ledger.add_run(fork(event_in.event_id, 1)));
    let (third, fourth) = (third.unwrap(), fourth.unwrap());
    let numbers = [&second, &third, &fourth].map(|record| record.run_no);
    assert_eq!(numbers, [3, 4, 5]);
    drop(kept);

    let check_all = |ledger: &Ledger| {
        let ids = [first.run_id, second.run.run_id, third.run.run_id, fourth.run.run_id];
        let record = ledger.event(event_in.event_id).unwrap().unwrap();
        assert_eq!((record.runs, &record.event), (ids.to_vec(), &event_in));
        let filter = RunFilter { event_id: Some(event_in.event_id), ..RunFilter::default() };
        assert_eq!(ledger.runs_page(&filter, None, 10).unwrap().items.len(), 4);
        assert_eq!(ledger.run(third.run.run_id).unwrap().as_ref(), Some(&third));
        assert_eq!(ledger.run_events_after(4, third.run.run_id, 0, 10).unwrap().len(), 3);
        assert_eq!(ledger.context(fourth.run.run_id).unwrap().unwrap().get(), r#"{"forked":true}"#);
        assert!(ledger.terms(fourth.run.run_id).unwrap().is_some());
        assert_eq!((journal(ledger, 4), firsts(ledger, 5, 0, 100)), (vec![(4, b"entry".to_vec())], vec![1]));
        assert_eq!(ledger.active_runs().unwrap().len(), 5);
    };
    check_all(&ledger);
    let copy = tempfile::tempdir().unwrap();
    check_all(&crashed(dir.path(), copy.path()));
    assert_eq!(collect(&ledger).await.blobs, 0);

    // The run continues like any other.
    assert!(append(&ledger, 4, segment(4, b"x")).await.is_err());
    let begun = RunWrite { changes: vec![start()], events: deltas(4..=4), journal: segment(5, b"x"), ..write(4) };
    assert_eq!(submit(&ledger, begun).await.unwrap().last_sequence, 4);
    assert_eq!(new_run(&ledger).await.run_no, 6);
    ledger.close().await.unwrap();
    assert!(findings(dir.path()).is_empty(), "{:?}", findings(dir.path()));
}

#[tokio::test]
async fn a_run_that_cannot_be_added_is_refused_whole() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let RunRecord { run, .. } = new_run(&ledger).await;
    let of = run.event_id;
    let with = |change: fn(&mut AddRun)| {
        let mut new = fork(of, 2);
        change(&mut new);
        new
    };
    let unknown = fork(EventId::new(), 2);
    assert!(matches!(ledger.add_run(unknown).await, Err(LedgerError::NotFound(_))));
    let known = AddRun { run: Run { run_id: run.run_id, last_sequence: 2, ..(*run).clone() }, ..fork(of, 2) };
    let refused = [
        known,
        with(|new| new.run.status = RunStatus::Running),
        with(|new| new.run.last_sequence = 3),
        with(|new| new.run.last_sequence = 0),
        with(|new| new.events[1] = new_event(2, "run.failed")),
        with(|new| new.events[0] = new_event(1, "run.completed")),
    ];
    for (place, refused) in refused.into_iter().enumerate() {
        let answer = ledger.add_run(refused).await;
        assert!(matches!(answer, Err(LedgerError::Invalid(_))), "{place}: {answer:?}");
    }
    for gap in [with(|new| new.events[1].sequence = 3), with(|new| new.events[0].sequence = 0)] {
        assert!(matches!(ledger.add_run(gap).await, Err(LedgerError::Sequence { .. })));
    }
    assert_eq!(ledger.event(of).unwrap().unwrap().runs, [run.run_id]);
    // Of two with one id at once, one is made.
    let twice = fork(of, 0);
    let both = tokio::join!(ledger.add_run(twice.clone()), ledger.add_run(twice));
    assert!(both.0.is_ok() && matches!(both.1, Err(LedgerError::Invalid(_))));
    ledger.close().await.unwrap();
    assert!(findings(dir.path()).is_empty());
}

#[tokio::test]
async fn a_check_says_what_is_wrong_with_a_journal() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let run_no = running(&ledger).await;
    let blobs = [blob(&ledger, b"unlisted"), blob(&ledger, b"unneeded"), blob(&ledger, b"missing")];
    for (blob, first) in blobs.iter().zip(1..) {
        append(&ledger, run_no, naming(first, &[blob])).await.unwrap();
    }
    ledger.close().await.unwrap();
    let [unlisted, unneeded, missing] = blobs.map(|blob| blob.sha256);
    let digest = |hex: &str| (0..32).map(|n| u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).unwrap()).collect::<Vec<_>>();
    let key = |run_no: u64, first: u64| [run_no.to_be_bytes(), first.to_be_bytes()].concat();
    let database = Database::open(dir.path().join("ledger/ledger.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let table = |name| transaction.open_table(TableDefinition::<&[u8], &[u8]>::new(name)).unwrap();
    let listed = [digest(&unlisted).as_slice(), b"j", &key(run_no, 1)].concat();
    assert!(table("blob_refs").remove(listed.as_slice()).unwrap().is_some());
    assert!(table("journal").remove(key(run_no, 2).as_slice()).unwrap().is_some());
    table("journal").insert(key(99, 1).as_slice(), [0; 4].as_slice()).unwrap();
    table("journal").insert(key(99, 2).as_slice(), [0, 0, 0, 9].as_slice()).unwrap();
    transaction.commit().unwrap();
    drop(database);
    std::fs::remove_file(dir.path().join("ledger/blobs").join(&missing[..2]).join(&missing)).unwrap();
    let found = findings(dir.path());
    // What a copy of a cluster's ledger does not have, the database has.
    let missed = (crate::LOG == LogPlace::Files).then(|| format!("journal: blob {missing} is not there"));
    let others = [
        format!("blob {unlisted} is needed and not listed"),
        format!("blob {unneeded} is listed for nothing"),
        "there is a journal of run 99, which is not there".to_owned(),
        // Of the entries that have gone.
        "workspaces: a workspace keeps".to_owned(),
    ];
    assert_eq!(found.len(), 5 + usize::from(missed.is_some()), "{found:#?}");
    for wanted in others.into_iter().chain(missed) {
        assert!(found.iter().any(|finding| finding.contains(&wanted)), "{wanted} is not in {found:#?}");
    }
}

#[test]
fn a_run_that_was_never_brought_back_is_written_as_before() {
    let run = run_of(&event());
    let text = serde_json::to_value(&run).unwrap();
    assert!(text.get("resumes").is_none());
    assert_eq!(serde_json::from_value::<Run>(text).unwrap(), run);
    let again = Run { resumes: 3, run_id: RunId::new(), ..run };
    assert_eq!(serde_json::to_value(&again).unwrap()["resumes"], 3);
}
