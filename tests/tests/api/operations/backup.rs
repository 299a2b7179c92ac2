//! A backup of a running host is complete, and another host continues from it.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use agent_host_tests::{Process, process};
use serde_json::{Value, json};

use crate::operations::host::{Host, LIMITS, echo, output_text, text};

/// A directory for a host with the components of another one.
fn beside(host: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("plugins")).unwrap();
    for file in fs::read_dir(host.join("plugins")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), dir.path().join("plugins").join(file.file_name())).unwrap();
    }
    dir
}

fn agent_host(dir: &Path, arguments: &[&str]) -> (bool, String) {
    let output = process::command(dir).args(arguments).output().unwrap();
    (output.status.success(), text(&output))
}

/// Sends messages from several tasks until stopped, and records the acknowledged ones.
fn load(url: String, stop: &Arc<AtomicBool>, acknowledged: &Arc<Mutex<HashSet<String>>>) -> Vec<tokio::task::JoinHandle<()>> {
    let sender = |n: usize| {
        let (url, stop, acknowledged) = (url.clone(), Arc::clone(stop), Arc::clone(acknowledged));
        tokio::spawn(async move {
            let http = reqwest::Client::new();
            while !stop.load(Ordering::Relaxed) {
                let event = json!({ "event_type": "message.received", "input": { "text": format!("from {n}") } });
                let Ok(answer) = http.post(format!("{url}/api/v1/events")).json(&event).send().await else { return };
                let Ok(answer) = answer.json::<Value>().await else { return };
                acknowledged.lock().unwrap().insert(answer["event_id"].as_str().unwrap().to_owned());
            }
        })
    };
    (0..4).map(sender).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn another_host_goes_on_from_a_backup_under_load() {
    let config = format!("{LIMITS}{}", echo("one", ""));
    let host = Host::start(&["echo"], &config);
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(HashSet::new())));
    let senders = load(host.process.url.clone(), &stop, &acknowledged);
    tokio::time::sleep(Duration::from_millis(700)).await;
    let before = acknowledged.lock().unwrap().clone();
    let (status, made) = host.post("/api/v1/backup", &json!({ "to": "nightly" })).await;
    assert_eq!(status, 201, "{made}");
    let path = PathBuf::from(made["path"].as_str().unwrap());
    assert!(path.is_absolute() && path.ends_with("data/backups/nightly"), "{made}");
    let (status, problem) = host.post("/api/v1/backup", &json!({ "to": "nightly" })).await;
    assert_eq!((status, problem["code"].as_str()), (409, Some("conflict")), "{problem}");
    for name in ["", "..", "../x", "/etc/x", "a/b", ".x", "x y"] {
        let (status, problem) = host.post("/api/v1/backup", &json!({ "to": name })).await;
        assert_eq!((status, problem["field"].as_str()), (400, Some("to")), "{name}: {problem}");
    }
    assert_eq!(host.post("/api/v1/backup", &json!({ "to": "x", "dir": "/" })).await.0, 400);
    // The command line moves a backup to a given folder.
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("mine");
    let printed = host.command(&["ledger", "backup", target.to_str().unwrap()]);
    assert!(printed.status.success() && target.join("backup.json").exists(), "{}", text(&printed));
    let again = host.command(&["ledger", "backup", target.to_str().unwrap()]);
    assert!(!again.status.success() && text(&again).contains("is there already"), "{}", text(&again));
    let left: Vec<_> = fs::read_dir(host.dir().join("data/backups")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["nightly"]);
    let served = acknowledged.lock().unwrap().len();
    stop.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.await.unwrap();
    }
    assert!(!before.is_empty() && served > before.len(), "{} before, {served} afterwards", before.len());

    let other = beside(host.dir());
    let (done, printed) = agent_host(other.path(), &["ledger", "restore", path.to_str().unwrap()]);
    assert!(done && printed.contains("rows"), "{printed}");
    assert_eq!(fs::read_dir(other.path().join("data/components")).unwrap().count(), 1);
    let (sound, printed) = agent_host(other.path(), &["ledger", "check"]);
    assert!(sound && printed.contains("sound"), "{printed}");
    let (done, printed) = agent_host(other.path(), &["ledger", "restore", path.to_str().unwrap()]);
    assert!(!done && printed.contains("there is a ledger"), "{printed}");
    let other = Host::of(tokio::task::block_in_place(|| Process::start_in(other, &config)));
    for event in &before {
        let (status, shown) = other.get(&format!("/api/v1/events/{event}")).await;
        assert_eq!(status, 200, "{shown}");
    }
    assert!(output_text(&other.say("and on").await[0]).contains("and on"));
    drop(host);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_that_is_killed_leaves_no_half_backup() {
    let config = format!("{LIMITS}{}", echo("one", ""));
    let mut host = Host::start(&["echo"], &config);
    let mut unfinished = 0;
    for round in 0..6_u64 {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(HashSet::new())));
        let senders = load(host.process.url.clone(), &stop, &acknowledged);
        tokio::time::sleep(Duration::from_millis(200)).await;
        let url = host.process.url("/api/v1/backup");
        let asking = tokio::spawn(async move {
            for n in 0.. {
                let name = json!({ "to": format!("{round}-{n}") });
                if reqwest::Client::new().post(&url).json(&name).send().await.is_err() {
                    return;
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(60 + round * 23)).await;
        let dir = tokio::task::block_in_place(|| host.process.kill());
        stop.store(true, Ordering::Relaxed);
        asking.await.unwrap();
        for sender in senders {
            sender.await.unwrap();
        }
        let backups = fs::read_dir(dir.path().join("data/backups")).into_iter().flatten().map(|entry| entry.unwrap().path());
        let (half, whole): (Vec<_>, Vec<_>) = backups.partition(|path| path.extension().is_some_and(|end| end == "partial"));
        unfinished += half.len();
        if let Some(last) = whole.iter().max() {
            let other = beside(dir.path());
            let (done, printed) = agent_host(other.path(), &["ledger", "restore", last.to_str().unwrap()]);
            assert!(done, "{printed}");
        }
        host = Host::of(tokio::task::block_in_place(|| Process::start_in(dir, &config)));
        let (status, made) = host.post("/api/v1/backup", &json!({ "to": format!("after-{round}") })).await;
        assert_eq!(status, 201, "{made}");
        let rest = fs::read_dir(host.dir().join("data/backups")).unwrap().map(|entry| entry.unwrap().path());
        assert_eq!(rest.filter(|path| path.extension().is_some_and(|end| end == "partial")).count(), 0);
    }
    assert!(unfinished > 0, "no backup was interrupted: nothing was shown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_stopped_is_backed_up_too() {
    let config = format!("{LIMITS}{}", echo("one", ""));
    let host = Host::start(&["echo"], &config);
    let run = host.say("kept").await.remove(0);
    let dir = tokio::task::block_in_place(|| host.process.terminate());
    let (done, printed) = agent_host(dir.path(), &["ledger", "backup", "saved", "--json"]);
    assert!(done && dir.path().join("saved/ledger/ledger.redb").exists(), "{printed}");
    let (done, printed) = agent_host(dir.path(), &["ledger", "restore", "saved", "--data-dir", "other"]);
    assert!(done, "{printed}");
    let (done, printed) = agent_host(dir.path(), &["runs", "show", run["run_id"].as_str().unwrap(), "--data-dir", "other"]);
    assert!(done && printed.contains("completed"), "{printed}");
    let (done, printed) = agent_host(dir.path(), &["ledger", "restore", "plugins", "--data-dir", "third", "--json"]);
    assert!(!done && printed.contains("not_a_backup"), "{printed}");
}
