//! A backup of a ledger in use is a whole ledger, or it is not there.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use std::{
    collections::HashSet,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::common::*;
use agent_host_ledger::{
    Accept, Backup, BackupError, EntryWrite, Ledger, LedgerError, Options, RunWrite, StorageContent, StorageValue, StorageWrite,
    UPLOAD, backup, check, remove_unfinished, restore,
};
use agent_host_protocol::{RunId, time::now};
use serde_json::json;

fn to(dir: &Path, name: &str) -> Backup {
    Backup {
        to: dir.join(name),
        beside: vec![("components".into(), dir.join("components"))],
        left_out: vec!["knowledge".into()],
        agent_host: "1.2.3".into(),
    }
}

/// Small checkpoints, and nothing is spared by the collector.
fn eager(dir: &Path) -> Ledger {
    Options { blob_grace: Duration::ZERO, artifact_unreferenced: Duration::ZERO, ..options(dir) }.open().unwrap()
}

/// A run with events, state, a large storage value and an artifact, each made, and the ones before it unmade.
async fn work(ledger: &Ledger, task: usize, n: usize) -> RunId {
    let event = event_in(&format!("c{task}"), "message.received");
    let run = run_of(&event);
    let id = run.run_id;
    let content = format!("{task}/{n}/").repeat(20_000);
    let kept = blob(ledger, content.as_bytes());
    let upload = artifact(&format!("a-{task}-{n}"), &kept, UPLOAD);
    let item = item(&format!("c{task}"), "said", event.event_id);
    let entries = vec![EntryWrite::put(format!("key/{task}/{n}"), &json!({ "n": n })).unwrap()];
    let accept = Accept { transcript: Some(item), artifacts: vec![upload], entries, ..accept(event, vec![run]) };
    ledger.accept(accept).await.unwrap();
    let run_no = ledger.run(id).unwrap().unwrap().run_no;
    let value = StorageValue::Blob(kept);
    let storage = StorageWrite { area_key: "area".into(), key: format!("k{task}"), value: Some(value), quota: None };
    let write = RunWrite { storage: vec![storage], state: vec![state(&format!("s{task}"), Some(&json!(n)))], ..write(run_no) };
    ledger.submit(write).await.unwrap().await.unwrap();
    finish(ledger, run_no, 3).await;
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backup_under_load_has_all_that_was_acknowledged_before_it() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("components")).unwrap();
    fs::write(dir.path().join("components/abc.wasm"), b"component").unwrap();
    fs::write(dir.path().join("components/def.partial-7"), b"half").unwrap();
    let ledger = eager(dir.path());
    let (done, stop) = (Arc::new(Mutex::new(HashSet::new())), Arc::new(AtomicBool::new(false)));
    let mut tasks: Vec<_> = (0..6)
        .map(|task| {
            let (ledger, done, stop) = (ledger.clone(), Arc::clone(&done), Arc::clone(&stop));
            tokio::spawn(async move {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let id = work(&ledger, task, n).await;
                    done.lock().unwrap().insert(id);
                }
            })
        })
        .collect();
    // Blobs that nobody needs any more go away all the time.
    let (collecting, halt) = (ledger.clone(), Arc::clone(&stop));
    let collected = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&collected);
    tasks.push(tokio::spawn(async move {
        while !halt.load(Ordering::Relaxed) {
            let removed = collecting.collect_garbage(now() + 1_000).await.unwrap();
            count.fetch_add(usize::try_from(removed.blobs).unwrap(), Ordering::Relaxed);
        }
    }));
    let mut backups = Vec::new();
    for n in 0..5 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let before = done.lock().unwrap().clone();
        let (ledger, backup) = (ledger.clone(), to(dir.path(), &format!("backup-{n}")));
        let manifest = tokio::task::spawn_blocking(move || ledger.backup(&backup)).await.unwrap().unwrap();
        assert_eq!((manifest.agent_host.as_str(), manifest.beside.as_slice()), ("1.2.3", &["components".to_owned()][..]));
        let during = done.lock().unwrap().len();
        backups.push((n, before, during, manifest));
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    assert!(collected.load(Ordering::Relaxed) > 0, "nothing was collected, so nothing was shown");
    assert!(backups.iter().any(|(_, before, during, _)| *during > before.len()), "nothing was written during the backups");
    ledger.close().await.unwrap();
    for (n, before, _, manifest) in backups {
        assert!(!before.is_empty() && manifest.blobs > 0);
        let target = tempfile::tempdir().unwrap();
        let report = restore(dir.path().join(format!("backup-{n}")), target.path().join("ledger"), |_| ()).unwrap();
        assert_eq!((&report.backup, report.files), (&manifest, 1));
        assert_eq!(fs::read(target.path().join("components/abc.wasm")).unwrap(), b"component");
        assert!(!target.path().join("components/def.partial-7").exists());
        let ledger = open(target.path());
        for id in &before {
            let run = ledger.run(*id).unwrap().unwrap_or_else(|| panic!("backup {n} lacks run {id}")).run;
            assert!(run.status.is_terminal() && run.last_sequence == 4);
        }
        for task in 0..6 {
            let Some(StorageContent::Blob { sha256, size }) = ledger.storage_get("area", &format!("k{task}")).unwrap() else {
                continue;
            };
            let read = ledger.blob(&sha256).unwrap().unwrap().read_at(0, usize::MAX).unwrap();
            assert_eq!(read.len() as u64, size);
        }
        assert!(!ledger.entries("key/", None, 10).unwrap().is_empty());
        // The restored ledger works like any other.
        let id = work(&ledger, 9, 9).await;
        ledger.close().await.unwrap();
        let ledger = open(target.path());
        assert!(ledger.run(id).unwrap().is_some());
        ledger.close().await.unwrap();
        let report = check(target.path().join("ledger"), |_| ()).unwrap();
        assert!(report.is_ok(), "{:?}", report.findings);
    }
}

#[tokio::test]
async fn a_backup_takes_no_place_that_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    work(&ledger, 0, 0).await;
    let backup_to = to(dir.path(), "b");
    ledger.backup(&backup_to).unwrap();
    assert!(matches!(ledger.backup(&backup_to), Err(BackupError::AlreadyThere { .. })));
    // Blobs are not kept twice.
    let blob = first_file(&dir.path().join("b/ledger/blobs"));
    assert_eq!(fs::metadata(&blob).unwrap().nlink(), 2);
    assert!(matches!(restore(&backup_to.to, dir.path().join("ledger"), |_| ()), Err(BackupError::LedgerThere { .. })));
    let offline = to(dir.path(), "c");
    assert!(matches!(backup(dir.path().join("ledger"), &offline), Err(BackupError::Open(_))));
    ledger.close().await.unwrap();
    let manifest = backup(dir.path().join("ledger"), &offline).unwrap();
    assert!(manifest.rows > 0 && manifest.blobs == 1 && offline.to.join("backup.json").exists());
    assert_eq!(unfinished(dir.path()), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_ledger_that_was_closed_is_not_backed_up() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    ledger.clone().close().await.unwrap();
    let error = ledger.backup(&to(dir.path(), "b")).unwrap_err();
    assert!(matches!(error, BackupError::Ledger(LedgerError::Unavailable(_))), "{error}");
    assert!(!dir.path().join("b").exists());
}

#[tokio::test]
async fn a_damaged_backup_is_not_restored() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    for n in 0..3 {
        work(&ledger, n, n).await;
    }
    let spoil = |name: &str, spoil: &dyn Fn(&Path)| {
        let backup_to = to(dir.path(), name);
        ledger.backup(&backup_to).unwrap();
        spoil(&backup_to.to);
        let target = tempfile::tempdir().unwrap();
        let error = restore(&backup_to.to, target.path().join("ledger"), |_| ()).unwrap_err();
        assert_eq!(fs::read_dir(target.path()).unwrap().count(), 0, "something was left behind");
        error
    };
    let flip = |path: &Path| {
        // The link cannot be changed in place: the ledger has the same file.
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::remove_file(path).unwrap();
        fs::write(path, bytes).unwrap();
    };
    let error = spoil("store", &|to| flip(&to.join("ledger/ledger.redb")));
    assert!(matches!(&error, BackupError::Damaged { reason, .. } if reason.contains("ledger.redb")), "{error}");
    let error = spoil("blob", &|to| flip(&first_file(&to.join("ledger/blobs"))));
    assert!(matches!(&error, BackupError::Damaged { reason, .. } if reason.contains("blob")), "{error}");
    let error = spoil("missing", &|to| fs::remove_file(first_file(&to.join("ledger/blobs"))).unwrap());
    assert!(matches!(&error, BackupError::Damaged { reason, .. } if reason.contains("2 blobs")), "{error}");
    let error = spoil("manifest", &|to| fs::remove_file(to.join("backup.json")).unwrap());
    assert!(matches!(error, BackupError::NotABackup { .. }), "{error}");
    let rewrite = |to: &Path, key: &str, value: serde_json::Value| {
        let path = to.join("backup.json");
        let mut manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        manifest[key] = value;
        fs::write(path, manifest.to_string()).unwrap();
    };
    let error = spoil("newer", &|to| rewrite(to, "backup_format", json!(2)));
    assert!(matches!(&error, BackupError::NotABackup { reason, .. } if reason.contains("1.2.3")), "{error}");
    let error = spoil("path", &|to| rewrite(to, "beside", json!(["../../etc"])));
    assert!(matches!(&error, BackupError::NotABackup { reason, .. } if reason.contains("etc")), "{error}");
}

fn first_file(dir: &Path) -> PathBuf {
    let shards = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    shards.flat_map(|shard| fs::read_dir(shard).unwrap()).map(|entry| entry.unwrap().path()).min().unwrap()
}

fn unfinished(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "partial")).collect()
}

const DIR: &str = "LEDGER_BACKUP_DIR";

/// The child process of `a_backup_that_is_killed_is_not_there`, not a test of its own.
#[test]
#[ignore = "runs as a child process of another test"]
fn makes_backups_until_it_is_killed() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let dir = Path::new(&dir);
    let ledger = open(dir);
    for n in 0.. {
        ledger.backup(&to(&dir.join("backups"), &format!("{}-{n}", std::process::id()))).unwrap();
        std::io::stderr().lock().write_all(format!("made {}-{n}\n", std::process::id()).as_bytes()).unwrap();
    }
}

#[test]
fn a_backup_that_is_killed_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let backups = dir.path().join("backups");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let ledger = open(dir.path());
        for n in 0..30 {
            work(&ledger, n % 3, n).await;
        }
        ledger.close().await.unwrap();
    });
    let (mut interrupted, mut made) = (0, HashSet::new());
    for round in 0..20u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "backup::makes_backups_until_it_is_killed", "--ignored", "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let reader = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(60 + (round * 37) % 150));
        child.kill().unwrap();
        child.wait().unwrap();
        made.extend(reader.join().unwrap().iter().filter_map(|line| line.strip_prefix("made ").map(ToOwned::to_owned)));
        if backups.exists() {
            interrupted += unfinished(&backups).len();
            remove_unfinished(&backups).unwrap();
            assert_eq!(unfinished(&backups), Vec::<PathBuf>::new());
        }
    }
    assert!(interrupted > 3 && !made.is_empty(), "{interrupted} were interrupted, {} made", made.len());
    let there: HashSet<_> =
        fs::read_dir(&backups).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    // The last backup of a round may have its name without having been reported.
    assert!(made.is_subset(&there) && there.len() <= made.len() + 20);
    for name in there.iter().filter(|name| !made.contains(*name)).chain(made.iter().take(2)) {
        let target = tempfile::tempdir().unwrap();
        restore(backups.join(name), target.path().join("ledger"), |_| ()).unwrap();
    }
}
