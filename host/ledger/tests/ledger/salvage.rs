//! A salvage: the readable part of a damaged ledger is in the new one, and the rest is listed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::common::*;
use agent_host_ledger::{
    AcceptOutcome, AuditRecord, BackupError, JournalSegment, Ledger, OpenError, Options, Park, RunChange, RunWrite,
    SalvageReport, check, salvage,
};
use agent_host_protocol::{Run, RunId};

/// The first frame of a file of the log.
const FRAMES: usize = 4096;
/// Bytes of a frame before its payload.
const HEADER: usize = 32;

fn salvaged(dir: &Path) -> (SalvageReport, tempfile::TempDir) {
    let to = tempfile::tempdir().unwrap();
    let report = salvage(dir.join("ledger"), to.path().join("ledger"), |_| ()).unwrap();
    (report, to)
}

fn all_runs(ledger: &Ledger) -> Vec<RunId> {
    let text = exported(ledger);
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.filter(|line| line["table"] == "run").map(|line| line["run"]["run_id"].as_str().unwrap().parse().unwrap()).collect()
}

/// A ledger whose last `batches` runs, each of one batch, are in its log alone. Gives their ids, and the export.
async fn with_a_log(dir: &Path, batches: usize) -> (Vec<RunId>, String) {
    let source = tempfile::tempdir().unwrap();
    let ledger = open(source.path());
    finish(&ledger, new_run(&ledger).await.run_no, 3).await;
    ledger.close().await.unwrap();
    let slow =
        Options { checkpoint_interval: Duration::from_secs(3_600), checkpoint_wal_bytes: 1 << 20, ..options(source.path()) };
    let ledger = slow.open().unwrap();
    let mut runs = Vec::new();
    for _ in 0..batches {
        runs.push(new_run(&ledger).await.run.run_id);
    }
    let text = exported(&ledger);
    crash(source.path(), dir);
    fs::copy(source.path().join("ledger/ledger.identity"), dir.join("ledger/ledger.identity")).unwrap();
    drop(ledger);
    (runs, text)
}

/// The places of the frames in the file of the log that has them.
fn frames(dir: &Path) -> (PathBuf, Vec<u8>, Vec<(usize, usize)>) {
    for part in ["ledger-1.wal", "ledger-2.wal"] {
        let path = dir.join("ledger").join(part);
        let bytes = fs::read(&path).unwrap();
        let (mut at, mut places) = (FRAMES, Vec::new());
        while bytes[at..].starts_with(b"AHL2") {
            let len = u32::from_be_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
            places.push((at, at + HEADER + len));
            at += HEADER + len;
        }
        if !places.is_empty() {
            return (path, bytes, places);
        }
    }
    panic!("the log has no frame");
}

#[tokio::test]
async fn a_sound_ledger_is_salvaged_completely_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    for n in 0..20 {
        let run_no = new_run(&ledger).await.run_no;
        if n % 2 == 0 {
            finish(&ledger, run_no, n).await;
        }
    }
    let content = blob(&ledger, b"content");
    ledger.add_artifact(artifact("a", &content, "upload")).await.unwrap();
    drop(content);
    let text = exported(&ledger);
    ledger.close().await.unwrap();
    let files = |dir: &Path| FILES.map(|file| fs::read(dir.join("ledger").join(file)).unwrap());
    let before = files(dir.path());
    let (report, to) = salvaged(dir.path());
    assert!(report.is_complete(), "{report:?}");
    assert_eq!((report.blobs, report.blob_bytes), (1, 7));
    assert!(before == files(dir.path()));
    let ledger = open(to.path());
    assert_eq!(exported(&ledger), text);
    new_run(&ledger).await;
    ledger.close().await.unwrap();
    is_whole(to.path());
}

#[tokio::test]
async fn a_flipped_byte_in_a_header_of_the_log_is_refused_and_salvaged_without_a_loss() {
    let dir = tempfile::tempdir().unwrap();
    let (_, text) = with_a_log(dir.path(), 12).await;
    let (path, whole, places) = frames(dir.path());
    assert_eq!(places.len(), 12);
    for (frame, (start, _)) in places.iter().enumerate() {
        // Magic, length, number, checksum of the payload, checksum of the fields.
        for field in [0, 5, 14, 19, 27] {
            let mut bytes = whole.clone();
            bytes[start + field] ^= 0x40;
            fs::write(&path, bytes).unwrap();
            let refused = options(dir.path()).open().unwrap_err();
            let OpenError::BatchLost { at, later, .. } = &refused else { panic!("{frame}, {field}: {refused}") };
            assert_eq!((*at, *later), (*start as u64, 11 - frame as u64), "{frame}, {field}");
            assert!(check(dir.path().join("ledger"), |_| ()).is_err());
        }
        let (report, to) = salvaged(dir.path());
        assert!(report.is_complete(), "{frame}: {report:?}");
        assert_eq!(exported(&open(to.path())), text, "{frame}");
    }
}

#[tokio::test]
async fn a_damaged_batch_costs_its_own_run() {
    let dir = tempfile::tempdir().unwrap();
    let (runs, _) = with_a_log(dir.path(), 12).await;
    let (path, whole, places) = frames(dir.path());
    for (frame, (start, end)) in places.iter().enumerate().take(11) {
        let mut bytes = whole.clone();
        bytes[start + HEADER + 20..*end - 5].fill(0x33);
        fs::write(&path, bytes).unwrap();
        assert!(matches!(options(dir.path()).open().unwrap_err(), OpenError::BatchLost { .. }));
        let (report, to) = salvaged(dir.path());
        assert!(!report.is_complete());
        let is_listed = |kind: &str| report.missing.iter().filter(|missing| missing.kind == kind).count();
        assert_eq!((is_listed("batch"), is_listed("run"), is_listed("event")), (1, 1, 1), "{:?}", report.missing);
        let found = all_runs(&open(to.path()));
        assert!(!found.contains(&runs[frame]));
        assert_eq!(found.len(), 12, "{frame}");
        assert!(runs.iter().enumerate().all(|(no, run)| no == frame || found.contains(run)));
    }
}

#[tokio::test]
async fn a_lost_store_leaves_what_the_log_has() {
    for empty in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (runs, _) = with_a_log(dir.path(), 5).await;
        let path = dir.path().join("ledger/ledger.redb");
        if empty {
            fs::write(&path, b"").unwrap()
        } else {
            fs::remove_file(&path).unwrap()
        }
        assert!(matches!(options(dir.path()).open().unwrap_err(), OpenError::LogWithoutStore { .. }));
        assert!(matches!(check(dir.path().join("ledger"), |_| ()), Err(OpenError::LogWithoutStore { .. })));
        let (report, to) = salvaged(dir.path());
        assert!(report.missing.iter().any(|missing| missing.kind == "store"), "{:?}", report.missing);
        assert!(all_runs(&open(to.path())).ends_with(&runs));
        // Without the key of the log, nothing can be read.
        fs::remove_file(dir.path().join("ledger/ledger.identity")).unwrap();
        let (report, to) = salvaged(dir.path());
        assert!(report.missing.iter().any(|missing| missing.kind == "log"), "{:?}", report.missing);
        assert!(all_runs(&open(to.path())).is_empty());
    }
}

#[tokio::test]
async fn a_damaged_page_costs_its_own_rows() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    for _ in 0..300 {
        finish(&ledger, new_run(&ledger).await.run_no, 5).await;
    }
    ledger.close().await.unwrap();
    let path = dir.path().join("ledger/ledger.redb");
    let whole = fs::read(&path).unwrap();
    // The pages with rows of runs, which name their binding.
    let text = b"\"binding_id\":\"main\"";
    let has_text = |page: &[u8]| page.windows(text.len()).any(|window| window == text);
    let pages = whole.chunks(4096).enumerate().filter(|(_, page)| has_text(page));
    let pages: Vec<usize> = pages.map(|(page, _)| page * 4096).collect();
    assert!(pages.len() > 20, "{}", pages.len());
    let (mut least, mut lost) = (300, 0);
    for page in pages.iter().step_by(7) {
        let mut bytes = whole.clone();
        bytes[*page..page + 4096].fill(0);
        fs::write(&path, bytes).unwrap();
        let (report, to) = salvaged(dir.path());
        let found = all_runs(&open(to.path())).len();
        least = least.min(found);
        if found < 300 {
            lost += 1;
            let listed = report.missing.iter().filter(|missing| missing.kind == "run").count();
            assert!(listed >= 300 - found, "{found}: {:?}", report.missing);
        }
    }
    assert!(least > 250 && lost > 0, "{least}, {lost}");
}

/// The log is not applied to a damaged store: the pages that it changes would get new checksums, and the damage would be hidden.
#[tokio::test]
async fn a_check_finds_a_changed_row_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let (_, text) = with_a_log(dir.path(), 5).await;
    let path = dir.path().join("ledger/ledger.redb");
    let files = |dir: &Path| FILES.map(|file| fs::read(dir.join("ledger").join(file)).unwrap());
    let before = files(dir.path());
    let identity_path = dir.path().join("ledger/ledger.identity");
    let identity = fs::read(&identity_path).unwrap();
    let row = b"\"binding_id\":\"main\"";
    let places = before[0].windows(row.len()).enumerate().filter(|(_, window)| *window == row).map(|(at, _)| at + row.len() - 2);
    let mut refused = 0;
    for at in places {
        let mut bytes = before[0].clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        for _ in 0..2 {
            match check(dir.path().join("ledger"), |_| ()) {
                Err(error) => {
                    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
                    assert!(fs::read(&path).unwrap() == bytes, "the store stays as it is");
                    refused += 1;
                }
                // A page of an older commit.
                Ok(report) => assert!(report.is_ok(), "{report:?}"),
            }
        }
        if refused == 0 {
            assert_eq!(exported(&open(dir.path())), text, "changed at {at}");
        }
        for (file, bytes) in FILES.iter().zip(&before) {
            fs::write(dir.path().join("ledger").join(file), bytes).unwrap();
        }
        fs::write(&identity_path, &identity).unwrap();
    }
    assert!(refused > 0 && refused % 2 == 0, "{refused}");
}

/// Indexes, lists and usage that are made anew are those that the host makes.
#[tokio::test]
async fn what_is_made_anew_is_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    for n in 0..6 {
        let event = event_in(&format!("talk-{}", n % 2), "message");
        let run = Run { conversation_id: Some(format!("talk-{}", n % 2)), ..run_of(&event) };
        let AcceptOutcome::New { runs, .. } = ledger.accept(accept(event, vec![run])).await.unwrap() else { panic!("repeated") };
        let record = &runs[0];
        let audit = AuditRecord { run_id: Some(record.run.run_id), action: "test".into(), ..AuditRecord::default() };
        let wait = RunChange::Wait { at: 1, reason: "r".into() };
        let work = RunWrite {
            changes: vec![start(), wait],
            events: deltas(1..=3),
            transcript: vec![item("said", "text", record.run.event_id)],
            state: vec![state(&format!("key-{n}"), Some(&serde_json::json!({ "n": n })))],
            audit: [audit].into(),
            journal: Some(JournalSegment { first: 1, bytes: vec![1, 2, 3], blobs: Vec::new() }),
            park: Some(Park { wake_at: n, keys: vec!["all".into()] }),
            ..write(record.run_no)
        };
        ledger.submit(work).await.unwrap().await.unwrap();
        finish(&ledger, new_run(&ledger).await.run_no, n).await;
    }
    let content = blob(&ledger, b"content");
    ledger.add_artifact(artifact("a", &content, "upload")).await.unwrap();
    drop(content);
    let text = exported(&ledger);
    ledger.close().await.unwrap();
    is_whole(dir.path());
    let older = FILES.map(|file| fs::read(dir.path().join("ledger").join(file)).unwrap());
    let ledger = open(dir.path());
    new_run(&ledger).await;
    ledger.close().await.unwrap();
    for (file, bytes) in FILES.iter().zip(older) {
        fs::write(dir.path().join("ledger").join(file), bytes).unwrap();
    }
    assert!(matches!(options(dir.path()).open().unwrap_err(), OpenError::AnotherLedger { .. }));
    let (report, to) = salvaged(dir.path());
    let kinds: Vec<_> = report.missing.iter().map(|missing| missing.kind).collect();
    assert!(kinds == ["batch"] && report.check.is_ok(), "{report:?}");
    let ledger = open(to.path());
    assert_eq!(exported(&ledger), text);
    let stats = ledger.stats().unwrap();
    assert_eq!((stats.active_runs, stats.parked_runs), (6, 6));
    ledger.close().await.unwrap();
}

#[tokio::test]
async fn lost_and_changed_contents_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    for (id, content) in [("kept", b"kept"), ("gone", b"gone"), ("turn", b"turn")] {
        let content = blob(&ledger, content);
        ledger.add_artifact(artifact(id, &content, "upload")).await.unwrap();
    }
    let file = |name: &str| {
        let sha256 = ledger.artifact(name).unwrap().unwrap().sha256;
        let shards = fs::read_dir(dir.path().join("ledger/blobs")).unwrap().map(|shard| shard.unwrap().path());
        (shards.map(|shard| shard.join(&sha256)).find(|path| path.exists()).unwrap(), sha256)
    };
    let (gone, changed) = (file("gone"), file("turn"));
    ledger.close().await.unwrap();
    fs::remove_file(gone.0).unwrap();
    fs::write(changed.0, b"other").unwrap();
    let (report, _to) = salvaged(dir.path());
    assert_eq!((report.blobs, report.missing_count), (1, 2), "{report:?}");
    for name in [gone.1, changed.1] {
        assert!(report.missing.iter().any(|missing| missing.kind == "content" && missing.name == name));
    }
    assert!(!report.check.is_ok());
}

#[tokio::test]
async fn a_salvage_needs_a_closed_ledger_and_an_empty_target() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let (from, to) = (dir.path().join("ledger"), dir.path().join("to"));
    let error = salvage(&from, &to, |_| ()).unwrap_err();
    assert!(matches!(error, BackupError::Open(OpenError::AlreadyOpen { .. })), "{error}");
    ledger.close().await.unwrap();
    assert!(matches!(salvage(&from, &from, |_| ()).unwrap_err(), BackupError::NotEmpty { .. }));
    assert!(matches!(salvage(&to, dir.path().join("third"), |_| ()).unwrap_err(), BackupError::Open(OpenError::NoLedger { .. })));
    fs::create_dir(&to).unwrap();
    salvage(&from, &to, |_| ()).unwrap();
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
