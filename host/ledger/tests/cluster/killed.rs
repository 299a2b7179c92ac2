//! Owners and databases that are killed and stopped at any moment.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use agent_host_ledger::{ClusterOptions, Ledger, Standby};
use agent_host_protocol::RunId;
use rustix::process::Signal;

use crate::{
    common::{
        postgres::{Postgres, shared, signal},
        *,
    },
    hosts::*,
};

const DIR: &str = "CLUSTER_TEST_DIR";
const URL: &str = "CLUSTER_TEST_URL";
/// The exit code of a process whose lease is over.
const LOST: i32 = 75;

/// The child process of other tests, not a test of its own: an owner that writes, and says what was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as a child process of another test"]
async fn owns_and_writes_until_it_is_killed() {
    let (Ok(dir), Ok(url)) = (std::env::var(DIR), std::env::var(URL)) else { return };
    let standby = Standby::join(host_options(dir.as_ref()), &member(&url, "child:1")).unwrap();
    let ledger = tokio::task::spawn_blocking(|| standby.activate(|| false, |_| std::process::exit(LOST)));
    let ledger = ledger.await.unwrap().unwrap().unwrap();
    let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(write_forever(ledger.clone()))).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

async fn write_forever(ledger: Ledger) {
    loop {
        let event = event();
        let run = run_of(&event);
        let id = run.run_id;
        if ledger.accept(accept(event, vec![run])).await.is_err() {
            return;
        }
        // An owner that may not act begins no effect: it says nothing any more.
        if ledger.check_lease().is_ok() {
            std::io::stderr().lock().write_all(format!("ack {id}\n").as_bytes()).unwrap();
        }
    }
}

struct Owner {
    child: Child,
    acknowledged: Receiver<RunId>,
}

impl Owner {
    fn start(dir: &Path, url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::owns_and_writes_until_it_is_killed", "--ignored", "--nocapture"])
            .env(DIR, dir)
            .env(URL, url)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (found, acknowledged) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(id) = line.strip_prefix("ack ").and_then(|id| id.parse().ok()) {
                    let _ = found.send(id);
                }
            }
        });
        Self { child, acknowledged }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Waits for the first acknowledgements.
    fn first(&self, count: usize) -> Vec<RunId> {
        (0..count).map(|_| self.acknowledged.recv_timeout(Duration::from_secs(60)).unwrap()).collect()
    }

    fn kill(mut self) -> Vec<RunId> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.acknowledged.iter().collect()
    }
}

fn are_there(ledger: &Ledger, runs: &[RunId]) {
    for id in runs {
        assert!(ledger.run(*id).unwrap().is_some(), "run {id} is lost, of {}", runs.len());
    }
}

#[test]
fn a_warm_host_takes_over_from_a_killed_owner_what_that_acknowledged() {
    for round in 0..3u64 {
        let (dir, other, database) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster(shared()));
        let url = shared().url(&database);
        let owner = Owner::start(dir.path(), &url);
        let mut acknowledged = owner.first(20);
        let warm = Warm::start(other.path(), &url, "b:1");
        std::thread::sleep(Duration::from_millis(round * 130));
        acknowledged.extend(owner.kill());
        let killed = Instant::now();
        let ledger = warm.wait();
        assert!(killed.elapsed() < LEASE + Duration::from_secs(3), "{:?}", killed.elapsed());
        are_there(&ledger, &acknowledged);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            finish(&ledger, new_run(&ledger).await.run_no, 1).await;
            ledger.close().await.unwrap();
        });
        is_whole(other.path());
        // The killed host comes back as a warm one, with files that end somewhere in the middle.
        let ledger = active(dir.path(), &url, "child:1");
        are_there(&ledger, &acknowledged);
        drop(ledger);
        is_whole(dir.path());
    }
}

#[test]
fn a_killed_owner_that_starts_again_does_not_wait_for_its_own_lease() {
    let (dir, database) = (tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    let owner = Owner::start(dir.path(), &url);
    let mut acknowledged = owner.first(20);
    acknowledged.extend(owner.kill());
    let ledger = active(dir.path(), &url, "child:1");
    are_there(&ledger, &acknowledged);
}

#[test]
fn a_paused_owner_changes_nothing_and_ends_itself() {
    let (dir, other, database) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    let mut owner = Owner::start(dir.path(), &url);
    let mut acknowledged = owner.first(20);
    let warm = Warm::start(other.path(), &url, "b:1");
    signal(owner.pid(), Signal::STOP);
    let ledger = warm.wait();
    acknowledged.extend(owner.acknowledged.try_iter());
    are_there(&ledger, &acknowledged);
    let (before, batch) = (exported(&ledger), last_batch(shared(), &database));
    signal(owner.pid(), Signal::CONT);
    let ended = owner.child.wait().unwrap();
    assert_eq!(ended.code(), Some(LOST), "{ended}");
    // What was written to the pipe and not read yet was acknowledged before the pause.
    let late: Vec<_> = owner.acknowledged.iter().collect();
    are_there(&ledger, &late);
    assert_eq!((exported(&ledger), last_batch(shared(), &database)), (before, batch));
}

/// The lease is longer than the database is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_database_loses_nothing_and_the_owner_goes_on() {
    let (dir, mut postgres) = (tempfile::tempdir().unwrap(), Postgres::start());
    let database = cluster(&postgres);
    let url = postgres.url(&database);
    let options = ClusterOptions { lease: Duration::from_secs(40), ..member(&url, "a:1") };
    let standby = Standby::join(host_options(dir.path()), &options).unwrap();
    let ledger = standby.activate(|| false, |reason| panic!("{reason}")).unwrap().unwrap();
    let mut runs = Vec::new();
    for _ in 0..2 {
        let writing = tokio::spawn({
            let ledger = ledger.clone();
            async move {
                let mut done = Vec::new();
                for _ in 0..100 {
                    done.push(new_run(&ledger).await.run.run_id);
                }
                done
            }
        });
        std::thread::sleep(Duration::from_millis(100));
        postgres.kill();
        std::thread::sleep(Duration::from_millis(300));
        postgres.restart();
        runs.extend(writing.await.unwrap());
    }
    are_there(&ledger, &runs);
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    let other = tempfile::tempdir().unwrap();
    let ledger = active(other.path(), &url, "b:1");
    assert_eq!(exported(&ledger), before);
}

/// The database is away for longer than the lease: the owner may not act meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_without_its_database_ends_with_its_lease() {
    let (dir, mut postgres) = (tempfile::tempdir().unwrap(), Postgres::start());
    let database = cluster(&postgres);
    let url = postgres.url(&database);
    let (lost, told) = std::sync::mpsc::channel();
    let standby = Standby::join(host_options(dir.path()), &member(&url, "a:1")).unwrap();
    let ledger = standby.activate(|| false, move |end| drop(lost.send(end.to_string()))).unwrap().unwrap();
    let run = new_run(&ledger).await;
    postgres.kill();
    let killed = Instant::now();
    let refused = ledger.accept(accept(event(), Vec::new())).await.unwrap_err();
    assert!(killed.elapsed() < LEASE, "{:?}", killed.elapsed());
    assert!(refused.to_string().contains("lease"), "{refused}");
    assert!(ledger.run(run.run.run_id).is_err() && told.recv_timeout(Duration::from_secs(1)).is_ok());
    drop(ledger);
    postgres.restart();
    let ledger = active(dir.path(), &url, "a:1");
    assert!(ledger.run(run.run.run_id).unwrap().is_some());
}
