//! Blobs and artifacts: kept once, there before they are referred to, and collected when nothing needs them.

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
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::common::*;
use agent_host_ledger::{
    Accept, CollectionCounts, Ledger, LedgerError, Options, RunWrite, StorageContent, StorageValue, StorageWrite, UPLOAD, check,
};
use agent_host_protocol::time::now;

const DAY: u64 = 24 * 60 * 60 * 1000;
/// Later than every grace.
const LATER: u64 = 2 * DAY;

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(dir.join("ledger/blobs"))
        .unwrap()
        .flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .collect();
    found.sort();
    found
}

fn path_of(dir: &Path, sha256: &str) -> PathBuf {
    dir.join("ledger/blobs").join(&sha256[..2]).join(sha256)
}

async fn assert_sound(ledger: Ledger, dir: &Path) {
    ledger.close().await.unwrap();
    let report = check(dir.join("ledger"), |_| ()).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
}

#[tokio::test]
async fn a_blob_is_named_by_its_content_and_kept_once() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let content: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
    let mut writer = ledger.blob_writer(content.len() as u64).unwrap();
    let mut rest = content.as_slice();
    for size in [1, 7, 8_190, 70_000, 3, 200_000, 100_000] {
        let (piece, left) = rest.split_at(size.min(rest.len()));
        writer.write(piece).unwrap();
        rest = left;
    }
    assert_eq!((writer.head(), writer.size()), (&content[..8_192], 300_000));
    let first = writer.finish().unwrap();
    assert_eq!((first.size, first.sha256.len()), (300_000, 64));
    let second = blob(&ledger, &content);
    assert_eq!(second.sha256, first.sha256);
    assert_eq!(files(dir.path()), [path_of(dir.path(), &first.sha256)]);
    // SHA-256 of nothing, from the standard.
    let empty = blob(&ledger, b"");
    assert_eq!(empty.sha256, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");

    let reader = ledger.blob(&first.sha256).unwrap().unwrap();
    assert_eq!(reader.len(), 300_000);
    assert_eq!(reader.read_at(0, usize::MAX).unwrap(), content);
    assert_eq!(reader.read_at(299_998, 10).unwrap(), &content[299_998..]);
    assert!(reader.read_at(300_000, 10).unwrap().is_empty() && reader.read_at(u64::MAX, 10).unwrap().is_empty());
    assert_eq!(std::io::read_to_string(ledger.blob(&empty.sha256).unwrap().unwrap().into_file()).unwrap(), "");
    for none in ["", "../ledger.redb", &"0".repeat(64), &first.sha256.to_uppercase()] {
        assert!(ledger.blob(none).unwrap().is_none(), "{none}");
    }
    let stats = ledger.stats().unwrap();
    assert_eq!((stats.blob_files, stats.blob_bytes), (2, 300_000));
}

#[tokio::test]
async fn large_and_abandoned_uploads_leave_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let mut writer = ledger.blob_writer(10).unwrap();
    writer.write(b"0123456789").unwrap();
    assert!(matches!(writer.write(b"x"), Err(LedgerError::TooLarge { limit: 10 })));
    assert!(matches!(writer.write(b""), Err(LedgerError::TooLarge { limit: 10 })), "a part must not pass for the whole");
    assert!(matches!(writer.finish(), Err(LedgerError::TooLarge { limit: 10 })));
    let mut given_up = ledger.blob_writer(1 << 20).unwrap();
    given_up.write(&[7; 100_000]).unwrap();
    assert_eq!(files(dir.path()).len(), 1);
    drop(given_up);
    assert!(files(dir.path()).is_empty());
}

#[tokio::test]
async fn temporary_files_of_a_crash_are_removed_and_those_in_use_are_not() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    fs::write(dir.path().join("ledger/blobs/tmp/1-1"), b"torn").unwrap();
    let ledger = open(dir.path());
    assert!(files(dir.path()).is_empty());
    let mut writer = ledger.blob_writer(100).unwrap();
    writer.write(b"mine").unwrap();
    fs::write(dir.path().join("ledger/blobs/tmp/1-2"), b"torn").unwrap();
    let collected = ledger.collect_garbage(now() + LATER).await.unwrap();
    assert_eq!(collected, CollectionCounts { temporary: 1, ..CollectionCounts::default() });
    let kept = writer.finish().unwrap();
    assert_eq!(ledger.blob(&kept.sha256).unwrap().unwrap().read_at(0, 100).unwrap(), b"mine");
}

#[tokio::test]
async fn a_full_disk_refuses_blobs() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Options { min_free_disk_bytes: u64::MAX, ..options(dir.path()) }.start();
    assert!(matches!(ledger.blob_writer(10), Err(LedgerError::DiskLow { .. })));
    assert!(files(dir.path()).is_empty());
}

#[tokio::test]
async fn an_artifact_reads_back_and_needs_its_blob() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let content = blob(&ledger, b"hello");
    let mut record = artifact("0197-a", &content, UPLOAD);
    record.name = Some("hello.txt".into());
    record.scope.conversation = Some(conversation("c"));
    ledger.add_artifact(record.clone()).await.unwrap();
    assert_eq!(ledger.artifact("0197-a").unwrap(), Some(record.clone()));
    let json = serde_json::to_value(record.metadata()).unwrap();
    assert_eq!((json["artifact_id"].as_str(), json["size"].as_u64()), (Some("0197-a"), Some(5)));
    for none in ["0197-b", "", "é", &"a".repeat(5_000)] {
        assert_eq!(ledger.artifact(none).unwrap(), None);
    }

    let run_no = running(&ledger).await;
    let with = |record| RunWrite { artifacts: vec![record], ..write(run_no) };
    let refused = |error: LedgerError| assert!(matches!(error, LedgerError::Invalid(_)), "{error}");
    refused(ledger.add_artifact(record.clone()).await.unwrap_err());
    refused(ledger.submit(with(record.clone())).await.unwrap().await.unwrap_err());
    let twice = RunWrite { artifacts: vec![artifact("t", &content, "run"), artifact("t", &content, "run")], ..write(run_no) };
    refused(ledger.submit(twice).await.unwrap().await.unwrap_err());
    for wrong in [
        agent_host_ledger::ArtifactRecord { size: 6, artifact_id: "x".into(), ..record.clone() },
        agent_host_ledger::ArtifactRecord { sha256: "0".repeat(64), artifact_id: "x".into(), ..record.clone() },
        agent_host_ledger::ArtifactRecord { sha256: "no".into(), artifact_id: "x".into(), ..record.clone() },
        agent_host_ledger::ArtifactRecord { artifact_id: "../x".into(), ..record.clone() },
        agent_host_ledger::ArtifactRecord { artifact_id: String::new(), ..record.clone() },
    ] {
        refused(ledger.add_artifact(wrong.clone()).await.unwrap_err());
        refused(ledger.submit(with(wrong.clone())).await.unwrap_err());
        let accept = Accept { artifacts: vec![wrong], ..accept(event(), Vec::new()) };
        refused(ledger.accept(accept).await.unwrap_err());
    }
    ledger.submit(with(artifact("0197-r", &content, "run"))).await.unwrap().await.unwrap();
    let accept = Accept { artifacts: vec![artifact("0197-e", &content, "event")], ..accept(event(), Vec::new()) };
    ledger.accept(accept).await.unwrap();
    assert!(ledger.artifact("0197-r").unwrap().is_some() && ledger.artifact("0197-e").unwrap().is_some());
    assert_sound(ledger, dir.path()).await;
    assert!(open(dir.path()).artifact("0197-e").unwrap().is_some());
}

#[tokio::test]
async fn an_upload_that_nothing_refers_to_is_collected_after_a_day() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    for id in ["forgotten", "by-event", "by-run"] {
        let content = blob(&ledger, id.as_bytes());
        ledger.add_artifact(artifact(id, &content, UPLOAD)).await.unwrap();
    }
    let made = blob(&ledger, b"made");
    let run_no = running(&ledger).await;
    let refers = RunWrite {
        artifacts: vec![artifact("made", &made, "run")],
        refers_to: vec!["by-run".into(), "not there".into(), "x".repeat(10_000)],
        ..write(run_no)
    };
    ledger.submit(refers).await.unwrap().await.unwrap();
    drop(made);
    let accept_with =
        |ids: &[&str]| Accept { refers_to: ids.iter().map(|id| (*id).to_owned()).collect(), ..accept(event(), Vec::new()) };
    ledger.accept(accept_with(&["by-event"])).await.unwrap();
    let unknown = ledger.accept(accept_with(&["by-event", "unknown"])).await.unwrap_err();
    assert!(matches!(&unknown, LedgerError::NotFound(what) if what.contains("unknown")), "{unknown}");

    assert_eq!(ledger.collect_garbage(now() + DAY / 2).await.unwrap(), CollectionCounts::default());
    let collected = ledger.collect_garbage(now() + LATER).await.unwrap();
    assert_eq!(collected, CollectionCounts { artifacts: 1, blobs: 1, bytes: 9, temporary: 0 });
    assert_eq!(ledger.artifact("forgotten").unwrap(), None);
    for id in ["by-event", "by-run", "made"] {
        let record = ledger.artifact(id).unwrap().unwrap();
        assert_eq!(ledger.blob(&record.sha256).unwrap().unwrap().read_at(0, 100).unwrap(), id.as_bytes());
    }
    let late = ledger.accept(accept_with(&["forgotten"])).await.unwrap_err();
    assert!(matches!(late, LedgerError::NotFound(_)));
    assert_eq!(ledger.collect_garbage(now() + LATER).await.unwrap(), CollectionCounts::default());
    assert_sound(ledger, dir.path()).await;
}

#[tokio::test]
async fn an_artifact_expires_and_its_content_stays_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let content = blob(&ledger, b"shared");
    let at = now() + LATER;
    for (id, expires_at) in [("a", Some(at)), ("b", Some(at + 1_000)), ("c", None)] {
        let record = agent_host_ledger::ArtifactRecord { expires_at, ..artifact(id, &content, "run") };
        assert!(!record.is_expired(at - 1) && record.is_expired(at) == (id == "a"));
        ledger.add_artifact(record).await.unwrap();
    }
    let sha256 = content.sha256.clone();
    drop(content);
    assert_eq!(ledger.collect_garbage(at - 1).await.unwrap(), CollectionCounts::default());
    assert_eq!(ledger.collect_garbage(at).await.unwrap(), CollectionCounts { artifacts: 1, ..CollectionCounts::default() });
    assert_eq!(
        ledger.collect_garbage(at + 1_000).await.unwrap(),
        CollectionCounts { artifacts: 1, ..CollectionCounts::default() }
    );
    assert!(ledger.artifact("a").unwrap().is_none() && ledger.artifact("c").unwrap().is_some());
    assert!(ledger.blob(&sha256).unwrap().is_some());
    assert_sound(ledger, dir.path()).await;
}

#[tokio::test]
async fn many_artifacts_are_collected_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let content = blob(&ledger, b"many");
    let run_no = running(&ledger).await;
    let at = now() + 1;
    let artifacts = (0..1_203)
        .map(|n| agent_host_ledger::ArtifactRecord {
            expires_at: Some(if n % 2 == 0 { at } else { at + 2 * LATER }),
            ..artifact(&format!("{n}"), &content, UPLOAD)
        })
        .collect();
    // The artifacts with an odd number are referred to.
    let refers_to = (0..1_203).filter(|n| n % 2 == 1).map(|n| n.to_string()).collect();
    ledger.submit(RunWrite { artifacts, refers_to, ..write(run_no) }).await.unwrap().await.unwrap();
    assert_eq!(ledger.collect_garbage(at + LATER).await.unwrap().artifacts, 602);
    assert!(ledger.artifact("1202").unwrap().is_none() && ledger.artifact("1201").unwrap().is_some());
    assert_sound(ledger, dir.path()).await;
}

#[tokio::test]
async fn a_crash_between_blob_and_row_leaves_only_garbage() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let kept = blob(&ledger, b"kept");
    ledger.add_artifact(artifact("kept", &kept, "run")).await.unwrap();
    let orphan = blob(&ledger, b"orphan").sha256;
    // A copy of the files at this moment is what a crash would leave.
    let copy = tempfile::tempdir().unwrap();
    crash(dir.path(), copy.path());
    for file in files(dir.path()) {
        let to = copy.path().join(file.strip_prefix(dir.path()).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(file, to).unwrap();
    }
    let ledger = open(copy.path());
    assert!(ledger.blob(&orphan).unwrap().is_some());
    assert_eq!(ledger.collect_garbage(now()).await.unwrap(), CollectionCounts::default(), "too young");
    let collected = ledger.collect_garbage(now() + LATER).await.unwrap();
    assert_eq!(collected, CollectionCounts { blobs: 1, bytes: 6, ..CollectionCounts::default() });
    assert!(ledger.blob(&orphan).unwrap().is_none() && ledger.blob(&kept.sha256).unwrap().is_some());
    assert_sound(ledger, copy.path()).await;
}

#[tokio::test]
async fn a_blob_in_the_hand_is_not_collected_however_old() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let held = blob(&ledger, b"held");
    let clone = held.clone();
    drop(held);
    assert_eq!(ledger.collect_garbage(now() + LATER).await.unwrap(), CollectionCounts::default());
    let record = artifact("a", &clone, "run");
    drop(clone);
    assert_eq!(ledger.collect_garbage(now() + LATER).await.unwrap().blobs, 1);
    let error = ledger.add_artifact(record).await.unwrap_err();
    assert!(matches!(&error, LedgerError::Invalid(what) if what.contains("there is no blob")), "{error}");
}

/// Writers take the same few contents again and again, refer to them and let them expire, while the collector runs
/// without a pause and without any grace.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_collection_beside_writers_never_takes_what_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { blob_grace: Duration::ZERO, artifact_unreferenced: Duration::ZERO, ..options(dir.path()) };
    let ledger = options.start();
    let done = Arc::new(AtomicBool::new(false));
    let collector = tokio::spawn({
        let (ledger, done) = (ledger.clone(), Arc::clone(&done));
        async move {
            let mut blobs = 0;
            while !done.load(Ordering::SeqCst) {
                blobs += ledger.collect_garbage(now() + 10).await.unwrap().blobs;
            }
            blobs
        }
    });
    let run_no = running(&ledger).await;
    let writers = (0..4u32).map(|writer| {
        let ledger = ledger.clone();
        tokio::spawn(async move {
            for round in 0..60u32 {
                let content = format!("content {}", (writer + round) % 3).into_bytes();
                let held = {
                    let (ledger, content) = (ledger.clone(), content.clone());
                    tokio::task::spawn_blocking(move || blob(&ledger, &content)).await.unwrap()
                };
                let id = format!("{writer}-{round}");
                if round % 3 == 0 {
                    let value = Some(StorageValue::Blob(held));
                    let storage = vec![StorageWrite { area_key: "a".into(), key: writer.to_string(), value, quota: None }];
                    ledger.submit(RunWrite { storage, ..write(run_no) }).await.unwrap().await.unwrap();
                    match ledger.storage_get("a", &writer.to_string()).unwrap().unwrap() {
                        StorageContent::Blob { sha256, .. } => {
                            assert_eq!(ledger.blob(&sha256).unwrap().unwrap().read_at(0, 100).unwrap(), content);
                        }
                        StorageContent::Inline(_) => panic!("it is a blob"),
                    }
                } else {
                    let mut record = artifact(&id, &held, "run");
                    record.expires_at = (round % 2 == 0).then(|| now() + 5);
                    let lasts = record.expires_at.is_none();
                    ledger.add_artifact(record).await.unwrap();
                    drop(held);
                    if lasts {
                        let sha256 = ledger.artifact(&id).unwrap().unwrap().sha256;
                        assert_eq!(ledger.blob(&sha256).unwrap().unwrap().read_at(0, 100).unwrap(), content);
                    }
                }
                // Content that nobody keeps, so that there is something to collect.
                let (ledger, passing) = (ledger.clone(), format!("passing {writer} {round}"));
                drop(tokio::task::spawn_blocking(move || blob(&ledger, passing.as_bytes())).await.unwrap());
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    let collected = collector.await.unwrap();
    assert!(collected > 0, "nothing was collected, so nothing was tested");
    ledger.collect_garbage(now() + LATER).await.unwrap();
    assert_sound(ledger, dir.path()).await;
}

#[tokio::test]
async fn a_check_says_which_blob_is_missing_or_cut() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let run_no = running(&ledger).await;
    let (gone, cut) = (blob(&ledger, b"gone"), blob(&ledger, b"cut off"));
    ledger.add_artifact(artifact("a", &gone, "run")).await.unwrap();
    let value = Some(StorageValue::Blob(cut.clone()));
    let storage = vec![StorageWrite { area_key: "area".into(), key: "k".into(), value, quota: None }];
    ledger.submit(RunWrite { storage, ..write(run_no) }).await.unwrap().await.unwrap();
    ledger.close().await.unwrap();
    fs::remove_file(path_of(dir.path(), &gone.sha256)).unwrap();
    fs::write(path_of(dir.path(), &cut.sha256), b"cu").unwrap();
    let report = check(dir.path().join("ledger"), |_| ()).unwrap();
    let findings: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    // What a copy of a cluster's ledger does not have, the database has.
    let misses = crate::LOG == LogPlace::Files;
    assert_eq!(report.findings_count, 1 + u64::from(misses), "{findings:?}");
    let is_missed = |what: &String| what.contains(&gone.sha256) && what.contains("is not there");
    assert_eq!(findings.iter().any(is_missed), misses, "{findings:?}");
    assert!(findings.iter().any(|what| what.contains(&cut.sha256) && what.contains("2 bytes, not 7")), "{findings:?}");
}
