//! Taking over: the fence, the lease, and what a copy holds.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use agent_host_ledger::{AcceptOutcome, Ledger, LedgerError, Options, Standby, cluster_status};
use serde_json::json;

use crate::{
    common::{postgres::shared, *},
    hosts::*,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_cluster_is_written_closed_and_opened_again() {
    let (dir, database) = (tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    let ledger = active(dir.path(), &url, "a:1");
    let run = new_run(&ledger).await;
    finish(&ledger, run.run_no, 5).await;
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    let began = Instant::now();
    let ledger = active(dir.path(), &url, "a:1");
    assert!(began.elapsed() < LEASE, "a host that has given the ledger back takes it without a wait");
    assert_eq!(exported(&ledger), before);
    finish(&ledger, new_run(&ledger).await.run_no, 2).await;
    ledger.close().await.unwrap();
    is_whole(dir.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_without_files_has_everything_from_the_log() {
    let (dir, other, database) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    let ledger = active(dir.path(), &url, "a:1");
    for _ in 0..20 {
        finish(&ledger, new_run(&ledger).await.run_no, 3).await;
    }
    let kept = blob(&ledger, &vec![7; 3_000_000]);
    ledger.add_artifact(artifact("artifact-a", &kept, "runner")).await.unwrap();
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    drop(dir);
    let ledger = active(other.path(), &url, "b:1");
    assert_eq!(exported(&ledger), before);
    let content = ledger.blob(&kept.sha256).unwrap().unwrap();
    assert_eq!(content.read_at(2_999_990, 100).unwrap(), [7; 10]);
    ledger.close().await.unwrap();
    is_whole(other.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warm_copy_equals_the_owners_row_by_row() {
    let (dir, other, database) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    let ledger = active(dir.path(), &url, "a:1");
    let warm = Warm::start(other.path(), &url, "b:1");
    let kept = blob(&ledger, b"content");
    ledger.add_artifact(artifact("artifact-a", &kept, "runner")).await.unwrap();
    for n in 0..60u64 {
        let run = new_run(&ledger).await;
        let value = state(&format!("key-{}", n % 7), Some(&json!(n)));
        let transcript = vec![item("c", "said", run.run.event_id)];
        let first = agent_host_ledger::RunWrite { changes: vec![start()], state: vec![value], transcript, ..write(run.run_no) };
        ledger.submit(first).await.unwrap().await.unwrap();
        let end = agent_host_ledger::RunWrite {
            changes: vec![completed()],
            events: [deltas(1..=n % 4 + 1), vec![new_event(n % 4 + 2, "run.completed")]].concat(),
            ..write(run.run_no)
        };
        ledger.submit(end).await.unwrap().await.unwrap();
    }
    warm.has(last_batch(shared(), &database));
    let before = exported(&ledger);
    assert_eq!(warm.watch.status().active.as_deref(), Some("a:1"));
    warm.stop();
    ledger.close().await.unwrap();
    is_whole(dir.path());
    is_whole(other.path());
    // Rows of events are packed by each merge, and the bytes of workspaces count the packed rows.
    let apart = |row: &(String, Vec<u8>, Vec<u8>)| !matches!(row.0.as_str(), "run_events" | "workspaces" | "meta");
    let of = |dir: &std::path::Path| rows(dir).into_iter().filter(apart).collect::<Vec<_>>();
    let (owner, copy) = (of(dir.path()), of(other.path()));
    assert!(owner.len() > 400, "{}", owner.len());
    assert_eq!(owner.len(), copy.len());
    assert!(owner == copy);
    let ledger = active(other.path(), &url, "b:1");
    assert_eq!(exported(&ledger), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warm_host_takes_over_at_once_when_the_owner_closes() {
    let (dir, other, database) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    let ledger = active(dir.path(), &url, "a:1");
    let warm = Warm::start(other.path(), &url, "b:1");
    let run = new_run(&ledger).await;
    ledger.submit(agent_host_ledger::RunWrite { changes: vec![start()], ..write(run.run_no) }).await.unwrap().await.unwrap();
    let status = cluster_status(&member(&url, "x").server).unwrap();
    assert_eq!(
        status.hosts.iter().map(|host| (&*host.advertise, host.is_active())).collect::<Vec<_>>(),
        [("a:1", true), ("b:1", false)]
    );
    assert!(status.hosts.iter().all(|host| host.lease_left_ms > 0) && status.partitions[0].epoch > 0, "{status:?}");
    let began = Instant::now();
    ledger.close().await.unwrap();
    let ledger = tokio::task::spawn_blocking(|| warm.wait()).await.unwrap();
    assert!(began.elapsed() < LEASE, "{:?}", began.elapsed());
    // The run goes on where it was.
    let end = agent_host_ledger::RunWrite {
        changes: vec![completed()],
        events: vec![new_event(1, "run.completed")],
        ..write(run.run_no)
    };
    ledger.submit(end).await.unwrap().await.unwrap();
    assert!(first_partition(&url).epoch > status.partitions[0].epoch);
}

/// The numbers of turns go on where the copy has the rows of the last ones in memory alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warm_host_goes_on_with_the_numbers_of_turns() {
    let (dir, other, database) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    let never_merged = Options { checkpoint_interval: Duration::from_secs(3_600), ..host_options(other.path()) };
    let ledger = active(dir.path(), &url, "a:1");
    let warm = Warm::start_with(never_merged, &url, "b:1");
    let turn = async |ledger: &Ledger| {
        let event = event();
        let run = agent_host_protocol::Run { conversation_id: Some("c".into()), ..run_of(&event) };
        let AcceptOutcome::New { runs, .. } = ledger.accept(accept(event, vec![run])).await.unwrap() else { panic!("repeated") };
        let begin = agent_host_ledger::RunWrite { changes: vec![start()], ..write(runs[0].run_no) };
        ledger.submit(begin).await.unwrap().await.unwrap().turn
    };
    assert_eq!((turn(&ledger).await, turn(&ledger).await), (Some(1), Some(2)));
    warm.has(last_batch(shared(), &database));
    ledger.close().await.unwrap();
    let ledger = tokio::task::spawn_blocking(|| warm.wait()).await.unwrap();
    assert_eq!((turn(&ledger).await, turn(&ledger).await), (Some(3), Some(4)));
}

/// A clock that was ahead and was set right leaves the time of the host ahead, which goes on more slowly; the host joins all the same.
#[test]
fn a_host_whose_clock_was_set_back_joins() {
    let (dir, database) = (tempfile::tempdir().unwrap(), cluster(shared()));
    let ahead = agent_host_protocol::time::wall() + 60_000;
    assert!(agent_host_protocol::time::go_on_from(ahead) && agent_host_protocol::time::ahead_ms() > 50_000);
    drop(active(dir.path(), &shared().url(&database), "a:1"));
}

/// The database does not know the owner any more, as after a pause; the owner does not know that yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_owner_commits_nothing_and_gives_the_ledger_up() {
    let (dir, other, database) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    let (lost, told) = mpsc::channel();
    let standby = Standby::join(host_options(dir.path()), &member(&url, "a:1")).unwrap();
    let ledger = standby.activate(|| false, move |end| drop(lost.send(end.to_string()))).unwrap().unwrap();
    let run = new_run(&ledger).await;
    // Whatever clocks do: only the number of the batch protects what the new owner writes.
    shared().sql(&database, "update agent_host.partitions set owner = null");
    let began = Instant::now();
    let new = tokio::task::spawn_blocking({
        let (dir, url) = (other.path().to_owned(), url.clone());
        move || active(&dir, &url, "b:1")
    });
    let new = new.await.unwrap();
    finish(&new, run.run_no, 3).await;
    let refused = ledger.accept(accept(event(), Vec::new())).await.unwrap_err();
    assert!(matches!(refused, LedgerError::Unavailable(_)) && refused.to_string().contains("another host"), "{refused}");
    assert!(ledger.run(run.run.run_id).is_err(), "a replaced owner answers no reads");
    assert!(ledger.check_lease().is_err());
    assert!(told.recv_timeout(Duration::from_secs(5)).unwrap().contains("another host"));
    assert!(began.elapsed() < Duration::from_secs(20));
    let (refused, left) = (exported(&new), last_batch(shared(), &database));
    drop(ledger);
    assert_eq!((exported(&new), last_batch(shared(), &database)), (refused, left));
    new.close().await.unwrap();
    is_whole(other.path());
}

/// Two owners take the ledger from each other many times; what each acknowledged is there once, in the order of epochs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_that_replace_each_other_lose_nothing_and_repeat_nothing() {
    let (dirs, database) = ([tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()], cluster(shared()));
    let url = shared().url(&database);
    let mut acknowledged = Vec::new();
    let mut before: Option<agent_host_ledger::Ledger> = None;
    for round in 0..8usize {
        let (dir, url) = (dirs[round % 2].path().to_owned(), url.clone());
        shared().sql(&database, "update agent_host.partitions set owner = null");
        let advertise = format!("{}:1", round % 2);
        // The owner before writes on meanwhile.
        let (writer, stop) = (before.clone(), std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let stopped = std::sync::Arc::clone(&stop);
        let writing = tokio::spawn(async move {
            let mut done = Vec::new();
            while let Some(ledger) = writer.as_ref().filter(|_| !stopped.load(std::sync::atomic::Ordering::Relaxed)) {
                let event = event();
                let run = run_of(&event);
                let id = run.run_id;
                match ledger.accept(accept(event, vec![run])).await {
                    Ok(_) => done.push(id),
                    Err(_) => break,
                }
            }
            done
        });
        // The files of the round before the last belong to a ledger that was given up.
        let ledger = tokio::task::spawn_blocking(move || active(&dir, &url, &advertise)).await.unwrap();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        acknowledged.extend(writing.await.unwrap());
        acknowledged.push(new_run(&ledger).await.run.run_id);
        drop(before.replace(ledger));
    }
    let ledger = before.unwrap();
    for id in &acknowledged {
        assert!(ledger.run(*id).unwrap().is_some(), "run {id} is lost");
    }
    assert!(acknowledged.len() > 8);
    ledger.close().await.unwrap();
    assert_eq!(
        shared().sql(
            &database,
            "select count(*) from (select epoch, lag(epoch) over (order by seq) as l from agent_host.log) x where l > epoch"
        ),
        "0"
    );
    is_whole(dirs[1].path());
}

/// An owner that stopped in the middle of a transaction holds up nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_transaction_of_the_owner_before_is_ended() {
    let (dir, other, database) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    let ledger = active(dir.path(), &url, "a:1");
    new_run(&ledger).await;
    let name = shared().sql(&database, "select 'agent-host ' || host_id || ' ' || incarnation || ' 0' from agent_host.hosts");
    let next = last_batch(shared(), &database) + 1;
    let sql = format!(
        "set application_name = '{name}'; begin; insert into agent_host.log values (0, {next}, 1, 'x'); select pg_sleep(600); commit"
    );
    let silent = std::process::Command::new("psql")
        .args([&url.replace("?sslmode=disable", ""), "-c", &sql])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("the transaction is open", || {
        shared().sql(&database, "select count(*) from pg_stat_activity where query like '%pg_sleep(600)%' and state = 'active' and pid <> pg_backend_pid()") != "0"
    });
    shared().sql(&database, "delete from agent_host.hosts");
    let new = tokio::task::spawn_blocking({
        let (dir, url) = (other.path().to_owned(), url.clone());
        move || active(&dir, &url, "b:1")
    });
    let new = tokio::time::timeout(Duration::from_secs(10), new).await.unwrap().unwrap();
    new_run(&new).await;
    drop(ledger);
    let mut silent = silent;
    silent.wait().unwrap();
}
