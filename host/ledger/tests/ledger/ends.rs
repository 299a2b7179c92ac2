//! Runs that end in the batch that has their events and their journal: one row, which every reader sees as the rows of its pieces.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use std::path::Path;

use crate::common::*;
use agent_host_ledger::{
    Blob, JournalSegment, JsonParts, Ledger, NewContext, NewEvent, Options, PrunedSegments, RunRecord, RunWrite,
};
use agent_host_protocol::RunEvent;
use serde_json::{Value, json};

/// Starts a run and ends it with its first write: `events` deltas, and a segment that names a blob.
async fn ended_at_once(ledger: &Ledger, events: u64, named: &Blob) -> RunRecord {
    let record = new_run(ledger).await;
    ending(ledger, &record, 1, deltas(1..=events), 4, named, true).await;
    record
}

async fn ending(
    ledger: &Ledger,
    record: &RunRecord,
    first: u64,
    mut events: Vec<NewEvent>,
    segment: u64,
    named: &Blob,
    starts: bool,
) {
    events.push(new_event(first + events.len() as u64, "run.completed"));
    let parts = JsonParts { shared: raw(&json!({ "config": {} })), own: raw(&json!({ "own": record.run_no })) };
    let mut changes = vec![completed()];
    if starts {
        changes.insert(0, start());
    }
    let write = RunWrite {
        changes,
        context: starts.then_some(NewContext::Parts(parts)),
        events,
        journal: Some(JournalSegment { first: segment, bytes: b"entry".to_vec(), blobs: vec![named.clone()] }),
        ..write(record.run_no)
    };
    ledger.submit(write).await.unwrap().await.unwrap();
}

fn rows(ledger: &Ledger, name: &str) -> u64 {
    ledger.stats().unwrap().tables.iter().find(|table| table.name == name).unwrap().rows
}

fn sequences(ledger: &Ledger, record: &RunRecord, after: u64, limit: usize) -> Vec<u64> {
    let events = ledger.run_events_after(record.run_no, record.run.run_id, after, limit).unwrap();
    events.iter().map(|event: &RunEvent| event.sequence).collect()
}

fn segments(ledger: &Ledger, record: &RunRecord) -> Vec<u64> {
    ledger.journal_page(record.run_no, 0, usize::MAX).unwrap().iter().map(|row| row.first).collect()
}

fn own(ledger: &Ledger, record: &RunRecord) -> Value {
    let context = ledger.context(record.run.run_id).unwrap().unwrap();
    serde_json::from_str::<Value>(context.get()).unwrap()["own"].clone()
}

#[tokio::test]
async fn an_end_with_all_of_its_run_is_one_row_in_memory_after_a_crash_and_in_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let in_memory = |dir: &Path| {
        let never = std::time::Duration::from_secs(3_600);
        Options { checkpoint_interval: never, checkpoint_wal_bytes: 1 << 24, ..options(dir) }.start()
    };
    let ledger = in_memory(dir.path());
    let named = blob(&ledger, b"named");
    let at_once = ended_at_once(&ledger, 3, &named).await;
    // Another one that has written before it ends.
    let later = new_run(&ledger).await;
    let before = JournalSegment { first: 1, bytes: b"before".to_vec(), blobs: Vec::new() };
    let begin = RunWrite { changes: vec![start()], events: deltas(1..=3), journal: Some(before), ..write(later.run_no) };
    ledger.submit(begin).await.unwrap().await.unwrap();
    ending(&ledger, &later, 4, deltas(4..=5), 9, &named, false).await;
    let look = |ledger: &Ledger| {
        assert_eq!((rows(ledger, "run_ends"), rows(ledger, "run_events"), rows(ledger, "journal")), (2, 1, 1));
        assert_eq!(ledger.stats().unwrap().journal.rows, 3);
        for (record, last) in [(&at_once, 4), (&later, 6)] {
            for after in 0..=last {
                assert_eq!(sequences(ledger, record, after, 2), (after + 1..=last).take(2).collect::<Vec<_>>());
            }
        }
        assert_eq!((segments(ledger, &at_once), segments(ledger, &later)), (vec![4], vec![1, 9]));
        assert_eq!(own(ledger, &at_once), json!(at_once.run_no));
        let text = exported(ledger);
        let lines: Vec<&str> = text.lines().collect();
        let of = |table: &str| lines.iter().filter(|line| line.starts_with(&format!("{{\"table\":\"{table}\""))).count();
        assert_eq!((of("run_event"), of("journal")), (10, 3));
    };
    look(&ledger);
    let copy = tempfile::tempdir().unwrap();
    crash(dir.path(), copy.path());
    look(&in_memory(copy.path()));
    drop(named);
    ledger.close().await.unwrap();
    is_whole(dir.path());
    let ledger = open(dir.path());
    look(&ledger);
    assert_eq!(
        ledger.collect_garbage(agent_host_protocol::time::now() + 100_000_000).await.unwrap().blobs,
        0,
        "both ends name the blob"
    );
}

#[tokio::test]
async fn pruning_an_end_moves_the_rest_of_its_row() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let named = blob(&ledger, b"named");
    let (one, two) = (ended_at_once(&ledger, 2, &named).await, ended_at_once(&ledger, 0, &named).await);
    let unended = new_run(&ledger).await;
    drop(named);
    let first = ledger.prune_journals(9_000, 1).await.unwrap();
    assert_eq!(first, PrunedSegments { runs: 1, rows: 1, bytes: 5, more: true });
    assert_eq!((segments(&ledger, &one), segments(&ledger, &two)), (vec![], vec![4]));
    // Two prunings at once count each segment once.
    let both = tokio::join!(ledger.prune_journals(9_000, 9), ledger.prune_journals(9_000, 9));
    assert_eq!(both.0.unwrap().rows + both.1.unwrap().rows, 1);
    assert_eq!((rows(&ledger, "run_ends"), rows(&ledger, "contexts"), rows(&ledger, "journal")), (0, 2, 0));
    for (record, last) in [(&one, 3), (&two, 1)] {
        assert_eq!(sequences(&ledger, record, 0, 9), (1..=last).collect::<Vec<_>>());
        assert_eq!(own(&ledger, record), json!(record.run_no));
    }
    assert_eq!(ledger.run_by_no(unended.run_no).unwrap().unwrap().run.last_sequence, 0);
    ledger.close().await.unwrap();
    is_whole(dir.path());
}

#[tokio::test]
async fn a_plain_run_writes_eight_rows() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let named = blob(&ledger, b"named");
    // The parts that runs share are stored once.
    ended_at_once(&ledger, 1, &named).await;
    let before = ledger.stats().unwrap().rows;
    let event = event_in("c", "message.received");
    let (run, event_id) = (run_of(&event), event.event_id);
    let accept = agent_host_ledger::Accept { transcript: Some(item("c", "hello", event_id)), ..accept(event, vec![run]) };
    let agent_host_ledger::AcceptOutcome::New { runs, .. } = ledger.accept(accept).await.unwrap() else { panic!("it is new") };
    let parts = JsonParts { shared: raw(&json!({ "config": {} })), own: raw(&json!({ "own": 1 })) };
    let mut events = deltas(1..=2);
    events.push(new_event(3, "run.completed"));
    let write = RunWrite {
        changes: vec![start(), completed()],
        context: Some(NewContext::Parts(parts)),
        events,
        transcript: vec![item("c", "said", event_id)],
        state: vec![state("turn", Some(&json!(1)))],
        journal: Some(JournalSegment { first: 1, bytes: b"entry".to_vec(), blobs: Vec::new() }),
        ..write(runs[0].run_no)
    };
    ledger.submit(write).await.unwrap().await.unwrap();
    // The event, the run, the item; the run, its end, the answer, the value and the usage of its scope.
    assert_eq!(ledger.stats().unwrap().rows - before, 8);
    assert_eq!(ledger.conversation_events(&conversation("c"), None, &[], 10).unwrap().items[0].event_id, event_id);
    assert_eq!(ledger.event(event_id).unwrap().unwrap().runs, [runs[0].run.run_id]);
}
