//! Killed at any moment, a ledger holds everything that it had acknowledged.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::common::*;
use agent_host_ledger::{AuditRecord, JournalSegment, Ledger, Park, RunChange, RunWrite, check};
use agent_host_protocol::{RunId, RunStatus};
use serde_json::json;

const DIR: &str = "LEDGER_CRASH_DIR";
const KILLS: u64 = 25;

/// The child process of `every_acknowledged_write_survives_a_kill`, not a test of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as a child process of another test"]
async fn writes_until_it_is_killed() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let ledger = open(dir.as_ref());
    let tasks: Vec<_> = (0..16).map(|task| tokio::spawn(write_forever(ledger.clone(), task))).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

async fn write_forever(ledger: Ledger, task: u32) {
    let acknowledge = |text: String| std::io::stderr().lock().write_all(text.as_bytes()).unwrap();
    for n in 0u64.. {
        let record = new_run(&ledger).await;
        let (id, no) = (record.run.run_id, record.run_no);
        acknowledge(format!("ack {id} created 0\n"));
        let context = Some(raw(&json!({ "filler": "x".repeat(200 + usize::try_from(n % 7).unwrap() * 300) })));
        let segment = |first: u64| Some(JournalSegment { first, bytes: first.to_be_bytes().to_vec(), blobs: Vec::new() });
        drop(ledger.submit(RunWrite { changes: vec![start()], context, journal: segment(1), ..write(no) }).await.unwrap());
        let audit = AuditRecord { run_id: Some(id), action: "test".into(), ..AuditRecord::default() };
        let value = state(&format!("task-{task}"), Some(&json!(id)));
        let transcript = vec![item(&format!("task-{task}"), "said", record.run.event_id)];
        let delta_write = RunWrite { events: deltas(1..=3), transcript, state: vec![value], audit: [audit].into(), ..write(no) };
        // Parks and resumes, with a journal that continues or begins again.
        let park = Some(Park { wake_at: n, keys: vec![format!("task-{task}"), "all".into()] });
        let wait = RunChange::Wait { at: 1, reason: "r".into() };
        let delta_write = RunWrite { changes: vec![wait], park, journal: segment(2), ..delta_write };
        drop(ledger.submit(delta_write).await.unwrap());
        let back = match n % 2 {
            0 => RunWrite { changes: vec![RunChange::Resume { at: 1 }], journal: segment(3), ..write(no) },
            _ => RunWrite { changes: vec![RunChange::Retry { at: 1, deadline_at: None }], journal: segment(1), ..write(no) },
        };
        let run = ledger.submit(back).await.unwrap().await.unwrap();
        acknowledge(format!("ack {id} {} {}\n", run.status, run.last_sequence));
        if n % 4 != 3 {
            let end = RunWrite { changes: vec![completed()], events: vec![new_event(4, "run.completed")], ..write(no) };
            let run = ledger.submit(end).await.unwrap().await.unwrap();
            acknowledge(format!("ack {id} {} {}\n", run.status, run.last_sequence));
        }
    }
}

#[test]
fn every_acknowledged_write_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path());
    let mut acknowledged: HashMap<RunId, (RunStatus, u64)> = HashMap::new();
    for round in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::writes_until_it_is_killed", "--ignored", "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let reader = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());
        // Some rounds end while the ledger is being opened.
        std::thread::sleep(Duration::from_millis(5 + (round * round * 37) % 400));
        child.kill().unwrap();
        child.wait().unwrap();
        for line in reader.join().unwrap() {
            let mut words = line.split(' ');
            // The last line may be torn.
            let (Some("ack"), Some(id), Some(status), Some(sequence)) = (words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            if let (Ok(id), Some(status), Ok(sequence)) = (id.parse(), RunStatus::from_name(status), sequence.parse()) {
                acknowledged.insert(id, (status, sequence));
            }
        }
        let opening = Instant::now();
        let ledger = open(dir.path());
        assert!(opening.elapsed() < Duration::from_secs(10), "opening took {:?}", opening.elapsed());
        for (id, (status, sequence)) in &acknowledged {
            let record = ledger.run(*id).unwrap().unwrap_or_else(|| panic!("round {round}: run {id} is lost"));
            assert!(record.run.last_sequence >= *sequence, "round {round}: run {id} lost events");
            assert!(record.run.status == *status || !status.is_terminal(), "round {round}: run {id} lost its end");
            let events = ledger.run_events_after(record.run_no, *id, 0, 10).unwrap();
            assert_eq!(events.len() as u64, record.run.last_sequence);
            let journal: Vec<_> = ledger.journal_page(record.run_no, 0, 100).unwrap().iter().map(|row| row.first).collect();
            let parked = ledger.parked(record.run_no).unwrap().is_some();
            assert_eq!(parked, record.run.status == RunStatus::Waiting, "round {round}: run {id}");
            let expected: &[u64] = match (record.run.attempt, record.run.last_sequence) {
                (1, 0) if record.run.status == RunStatus::Created => &[],
                (1, 0) | (2, _) => &[1],
                _ if parked => &[1, 2],
                _ => &[1, 2, 3],
            };
            assert_eq!(journal, expected, "round {round}: run {id}");
        }
        assert_eq!(ledger.parked_on("all", 1_000).unwrap().len() as u64, ledger.parked_count());
        drop(ledger);
        if round % 5 == 4 || round + 1 == KILLS {
            let report = check(dir.path().join("ledger"), |_| ()).unwrap();
            assert!(report.is_ok(), "round {round}: {:?}", report.findings);
        }
    }
    assert!(acknowledged.len() > 100, "the children wrote next to nothing: {}", acknowledged.len());
}
