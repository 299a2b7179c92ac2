//! Merges that fail, that are held, and that a crash interrupts: between the parts of the log, in the middle of a merge,
//! and when a part is written again.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use agent_host_protocol::RunId;
use serde_json::json;

use super::{Fault, PART_BYTES, Switches, crash, new_run, open, open_with, raw};
use crate::{Health, Ledger, LedgerError, Options, RunRecord, RunWrite, StateWrite, check, rows::Table};

const NEVER: Duration = Duration::from_secs(3_600);

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what} did not come true");
}

/// A write of about so many bytes to a run, which says by the state `k` how many there were.
fn filler(run_no: u64, n: u64, bytes: usize) -> RunWrite {
    let text = |value: serde_json::Value| raw(&value.to_string());
    let value = |key: String, value| StateWrite { scope_key: "s".into(), key, value: Some(value), ..StateWrite::default() };
    let state = vec![value("k".into(), text(json!(n))), value(format!("f{}", n % 50), text(json!("x".repeat(bytes))))];
    RunWrite { run_no, state, ..RunWrite::default() }
}

async fn fill(ledger: &Ledger, run_no: u64, n: u64) -> Result<(), LedgerError> {
    ledger.submit(filler(run_no, n, 60_000)).await?.await.map(drop)
}

/// Writes until a merge has begun and is held. Gives how many writes there were.
async fn fill_until_held(ledger: &Ledger, run_no: u64, switches: &Switches) -> u64 {
    for n in 1..200 {
        fill(ledger, run_no, n).await.unwrap();
        if switches.store.is_holding() {
            return n;
        }
    }
    panic!("no merge has begun");
}

fn reopened(dir: &Path) -> Ledger {
    Options { checkpoint_interval: NEVER, checkpoint_wal_bytes: PART_BYTES, ..Options::new(dir) }.open().unwrap()
}

/// Opens the files after a crash and checks their contents, whether or not a merge reached redb.
fn check_crashed(dir: &Path, runs: &[RunRecord], n: u64) {
    let copy = tempfile::tempdir().unwrap();
    crash(dir, copy.path());
    let ledger = reopened(copy.path());
    assert_eq!(ledger.state_get("s", "k").unwrap(), Some(json!(n)));
    assert_eq!(ledger.active_runs().unwrap(), runs);
    drop(ledger);
    let report = check(copy.path(), |_| ()).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_any_moment_of_a_merge_loses_and_repeats_nothing() {
    let mut at = 0;
    loop {
        let dir = tempfile::tempdir().unwrap();
        let (ledger, switches) = open(dir.path(), Duration::from_millis(1));
        let mut runs = vec![new_run(&ledger).await.unwrap()];
        until("the first merge", || ledger.activity().log_bytes == 0).await;
        // A merge begins after a write, and is held at one of its operations on the file.
        switches.store.set_after(at, Fault::Held);
        fill(&ledger, 1, 1).await.unwrap();
        let merges = ledger.activity().checkpoints;
        until("a held merge", || switches.store.is_holding() || ledger.activity().checkpoints > merges).await;
        let is_over = !switches.store.is_holding();
        check_crashed(dir.path(), &runs, 1);
        // Later batches are in the other part.
        fill(&ledger, 1, 2).await.unwrap();
        runs.push(new_run(&ledger).await.unwrap());
        if !is_over {
            check_crashed(dir.path(), &runs, 2);
        }
        assert_eq!(ledger.active_runs().unwrap(), runs);
        switches.store.set(Fault::None);
        ledger.close().await.unwrap();
        assert_eq!(reopened(dir.path()).active_runs().unwrap(), runs);
        if is_over {
            break;
        }
        at += 1;
    }
    assert!(at > 3, "a merge writes more than {at} times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_while_a_part_is_written_again_loses_and_repeats_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, _) = open(dir.path(), NEVER);
    let runs = [new_run(&ledger).await.unwrap()];
    for n in 1..=80 {
        fill(&ledger, 1, n).await.unwrap();
        if n % 4 == 0 {
            // Merges begin by size alone, so none begins here.
            let before = ledger.activity();
            until("the end of a merge", || {
                let now = ledger.activity();
                now.log_bytes <= PART_BYTES || now.checkpoints > before.checkpoints
            })
            .await;
            check_crashed(dir.path(), &runs, n);
        }
    }
    assert!(ledger.activity().checkpoints > 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_writer_waits_where_merges_cannot_follow_and_memory_stays_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, switches) = open(dir.path(), NEVER);
    let run_no = new_run(&ledger).await.unwrap().run_no;
    switches.store.set(Fault::Held);
    let mut n = fill_until_held(&ledger, run_no, &switches).await;
    // The other part takes some more, then nothing.
    let waiting = loop {
        n += 1;
        let commit = ledger.submit(filler(run_no, n, 60_000)).await.unwrap();
        let mut commit = Box::pin(commit);
        match tokio::time::timeout(Duration::from_millis(500), &mut commit).await {
            Ok(answer) => drop(answer.unwrap()),
            Err(_) => break commit,
        }
        assert!(ledger.activity().log_bytes <= 3 * PART_BYTES, "{:?}", ledger.activity());
    };
    assert!(ledger.activity().log_bytes > 2 * PART_BYTES, "{:?}", ledger.activity());
    assert_eq!(ledger.run_by_no(run_no).unwrap().unwrap().run_no, run_no);
    switches.store.set(Fault::None);
    waiting.await.unwrap();
    assert_eq!(ledger.state_get("s", "k").unwrap(), Some(json!(n)));
    ledger.close().await.unwrap();
    assert!(check(dir.path(), |_| ()).unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merge_that_fails_loses_nothing_and_is_repeated() {
    for fault in [Fault::Write, Fault::Sync] {
        let dir = tempfile::tempdir().unwrap();
        let (ledger, switches) = open(dir.path(), NEVER);
        let record = new_run(&ledger).await.unwrap();
        switches.store.set(fault);
        let (mut n, mut refused) = (0, 0);
        while ledger.activity().log_bytes <= PART_BYTES {
            n += 1;
            fill(&ledger, record.run_no, n).await.unwrap();
        }
        until("a failed merge", || matches!(ledger.health(), Health::MergesFail { is_full: false, .. })).await;
        // Refusals meet merges that are tried again, and redb while it is opened.
        let began = Instant::now();
        while refused < 3 || began.elapsed() < Duration::from_millis(300) {
            match fill(&ledger, record.run_no, n + 1).await {
                Ok(()) => n += 1,
                Err(error) => {
                    assert!(matches!(error, LedgerError::Storage(_)), "{error}");
                    assert!(error.to_string().contains("the log is full"), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(matches!(ledger.health(), Health::MergesFail { is_full: true, .. }), "{:?}", ledger.health());
        // Two parts were filled meanwhile. All of it can be read: redb is open again after each failure.
        assert!(n * 60_000 > 2 * PART_BYTES, "{n}");
        let read =
            |ledger: &Ledger| (ledger.run(record.run.run_id), ledger.state_get("s", "k"), ledger.state_keys("s", None, 100));
        until("a read", || {
            let read = read(&ledger);
            let errors = [read.0.as_ref().err(), read.1.as_ref().err(), read.2.as_ref().err()];
            assert!(errors.iter().flatten().all(|error| matches!(error, LedgerError::Reopening)), "{errors:?}");
            matches!(read, (Ok(Some(run)), Ok(Some(k)), Ok(keys)) if run == record && k == json!(n) && keys.len() as u64 == n.min(50) + 1)
        })
        .await;
        check_crashed_after_failure(dir.path(), &record, n);
        switches.store.set(Fault::None);
        until("a write", || ledger.activity().checkpoints > 0).await;
        fill(&ledger, record.run_no, n + 1).await.unwrap();
        until("a good state", || ledger.health() == Health::Ok).await;
        assert_eq!(read(&ledger).1.unwrap(), Some(json!(n + 1)));
        ledger.close().await.unwrap();
        let report = check(dir.path(), |_| ()).unwrap();
        assert!(report.is_ok(), "{:?}", report.findings);
        assert_eq!(reopened(dir.path()).state_get("s", "k").unwrap(), Some(json!(n + 1)));
    }
}

/// A crash after failed merges. The copy may meet one that is under way, so it is repeated until redb can be opened.
fn check_crashed_after_failure(dir: &Path, record: &RunRecord, n: u64) {
    for _ in 0..50 {
        let copy = tempfile::tempdir().unwrap();
        crash(dir, copy.path());
        let opened = Options { checkpoint_interval: NEVER, ..Options::new(copy.path()) }.open();
        let Ok(ledger) = opened else { continue };
        assert_eq!(ledger.state_get("s", "k").unwrap(), Some(json!(n)));
        assert_eq!(ledger.active_runs().unwrap(), std::slice::from_ref(record));
        return;
    }
    panic!("no copy could be opened");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_is_closed_while_merges_fail_says_so_and_has_all_when_it_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, switches) = open(dir.path(), NEVER);
    let runs = [new_run(&ledger).await.unwrap(), new_run(&ledger).await.unwrap()];
    switches.store.set(Fault::Write);
    let error = ledger.close().await.unwrap_err();
    assert!(matches!(error, LedgerError::Unavailable(_)) && error.to_string().contains("in the log"), "{error}");
    switches.store.set(Fault::None);
    assert_eq!(reopened(dir.path()).active_runs().unwrap(), runs);
}

/// A frame that failed, and could not be taken back, stands at the end of a part when the log is to go on in the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_fails_between_its_parts_gives_no_number_twice() {
    for fault in [Fault::Sync, Fault::Torn, Fault::Write] {
        let dir = tempfile::tempdir().unwrap();
        let (ledger, switches) = open(dir.path(), NEVER);
        let run_no = new_run(&ledger).await.unwrap().run_no;
        let mut n = 0;
        for _ in 0..6 {
            // Up to the brink of a part, then failures, then over it.
            while ledger.activity().log_bytes < PART_BYTES - 200_000 {
                n += 1;
                fill(&ledger, run_no, n).await.unwrap();
            }
            switches.log.set(fault);
            for _ in 0..3 {
                assert!(matches!(fill(&ledger, run_no, 1_000).await, Err(LedgerError::Storage(_))), "{fault:?}");
            }
            switches.log.set(Fault::None);
            let merges = ledger.activity().checkpoints;
            while ledger.activity().checkpoints == merges {
                n += 1;
                fill(&ledger, run_no, n).await.unwrap();
            }
            assert_eq!(ledger.state_get("s", "k").unwrap(), Some(json!(n)));
        }
        ledger.close().await.unwrap();
        assert!(check(dir.path(), |_| ()).unwrap().is_ok());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_larger_than_the_log_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, _) = open(dir.path(), NEVER);
    let record = new_run(&ledger).await.unwrap();
    for n in 1..=6 {
        ledger.submit(filler(record.run_no, n, 5_000_000)).await.unwrap().await.unwrap();
        until("the end of a merge", || ledger.activity().log_bytes == 0).await;
        check_crashed(dir.path(), std::slice::from_ref(&record), n);
    }
    ledger.close().await.unwrap();
    reopened(dir.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_see_one_moment_however_merges_go() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        Options { checkpoint_interval: Duration::from_millis(1), checkpoint_wal_bytes: 1 << 14, ..Options::new(dir.path()) };
    let (ledger, _) = open_with(options);
    let run_no = new_run(&ledger).await.unwrap().run_no;
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (ledger, stop) = (ledger.clone(), std::sync::Arc::clone(&stop));
            std::thread::spawn(move || {
                let (mut reads, mut last) = (0, 0);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    // Every write sets all ten keys to one value, and says in the table of usage what they take.
                    let rows = ledger.reader().unwrap().table(Table::State).unwrap();
                    let forward: Vec<_> = rows.iter().unwrap().map(|row| row.unwrap().1.value().to_vec()).collect();
                    let back: Vec<_> = rows.iter().unwrap().rev().map(|row| row.unwrap().1.value().to_vec()).collect();
                    let count = rows.len().unwrap();
                    assert!(forward.windows(2).all(|pair| pair[0] == pair[1]), "{forward:?}");
                    assert!(back == forward && count == forward.len() as u64 && [0, 10].contains(&count));
                    if let Some(value) = forward.first() {
                        let value: u64 = serde_json::from_slice(value).unwrap();
                        assert!(value >= last, "{value} after {last}");
                        last = value;
                    }
                    reads += 1;
                }
                reads
            })
        })
        .collect();
    for n in 1..=1_500u64 {
        let value = |key: u32| StateWrite {
            scope_key: "s".into(),
            key: key.to_string(),
            value: Some(raw(&n.to_string())),
            ..StateWrite::default()
        };
        let write = RunWrite { run_no, state: (0..10).map(value).collect(), ..RunWrite::default() };
        ledger.submit(write).await.unwrap().await.unwrap();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let reads: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    assert!(reads > 100 && ledger.activity().checkpoints > 5, "{reads} reads, {:?}", ledger.activity());
    assert!(ledger.run(RunId::new()).unwrap().is_none());
}
