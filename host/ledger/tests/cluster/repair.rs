//! Acknowledged batches that the database lost: who notices, and how they come back.

use std::{path::Path, sync::mpsc::channel, time::Duration};

use agent_host_ledger::{ClusterError, LeaseEnd, Ledger, LostBatch, OpenError, Repair, RepairedCluster, Standby, repair_cluster};

use crate::{
    common::{
        postgres::{Postgres, shared},
        proxy::{Network, Proxy},
        *,
    },
    hosts::*,
};

fn repair(url: &str, dir: &Path, repair: Repair) -> Result<RepairedCluster, OpenError> {
    repair_cluster(&member(url, "repair:1"), 0, dir.join("ledger"), repair, |_| ())
}

fn lost(url: &str) -> Option<LostBatch> {
    first_partition(url).lost
}

/// Removes the batches after `last` from the log: what a standby does not have that is promoted without them.
fn lose_after(database: &str, last: u64) {
    shared().sql(database, &format!("delete from agent_host.log where seq > {last}"));
}

/// An owner whose next batch fails because the database lost one, and whose files have all it acknowledged then.
async fn notices(ledger: Ledger) {
    let error = ledger.accept(accept(event(), Vec::new())).await.unwrap_err();
    assert!(error.to_string().contains("engine_lost_commits") && error.to_string().contains("cluster repair"), "{error}");
    // It ends with an error that says why.
    let error = ledger.close().await.unwrap_err();
    assert!(error.to_string().contains("engine_lost_commits"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_promoted_standby_lacks_is_put_back_from_a_copy() {
    let (a, b, c) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let primary = Postgres::start();
    let database = cluster(&primary);
    let standby = primary.standby();
    let proxy = Proxy::start(primary.port);
    let url = proxy.url(&primary.url(&database));
    let ledger = active(a.path(), &url, "a:1");
    let warm = Warm::start(b.path(), &url, "b:1");
    let mut runs = vec![new_run(&ledger).await.run.run_id];
    primary.cut_off(&standby);
    let end = last_batch(&primary, &database);
    let kept = blob(&ledger, b"written to the primary alone");
    ledger.add_artifact(artifact("artifact-a", &kept, "runner")).await.unwrap();
    for _ in 0..20 {
        runs.push(new_run(&ledger).await.run.run_id);
    }
    let (last, before) = (last_batch(&primary, &database), exported(&ledger));
    assert!(last > end);
    warm.has(last);
    primary.kill();
    assert_eq!(standby.sql("postgres", "select pg_promote()"), "t");
    assert_eq!(last_batch(&standby, &database), end);
    proxy.switch(standby.port);
    // The owner notices, and so does a follower that has more than the log. Both have everything in their files then.
    notices(ledger).await;
    let error = tokio::task::spawn_blocking(|| warm.result().unwrap_err()).await.unwrap();
    assert!(matches!(error, OpenError::Cluster(ClusterError::LostCommits { copy, .. }) if copy == last), "{error}");
    let noted = lost(&url).unwrap();
    assert!(noted.batch == last && ["a:1", "b:1"].contains(&noted.host.as_str()), "{noted:?}");
    // A host that has no more than the log does not go on with that.
    let other = Warm::start(c.path(), &url, "c:1");
    until("the host waits for the repair", || {
        other
            .watch
            .status()
            .problem
            .is_some_and(|problem| problem.contains("engine_lost_commits") && problem.contains(&noted.host))
    });
    other.stop();
    let error = repair(&url, c.path(), Repair::Whole).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::RepairBehind { batch, .. }) if batch == last), "{error}");
    let error = Standby::join(host_options(a.path()), &member(&url, "a:1")).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::LostCommits { .. })), "{error}");

    let repaired = repair(&url, a.path(), Repair::Whole).unwrap();
    let wanted = RepairedCluster { log_ended: end, last_batch: last, given_up: None, blobs: 1, missing_blobs: 0 };
    assert_eq!(repaired, wanted);
    assert_eq!(lost(&url), None);
    // Hosts whose copies have all, less, and nothing.
    let d = tempfile::tempdir().unwrap();
    for (dir, advertise) in [(&b, "b:1"), (&c, "c:1"), (&d, "d:1"), (&a, "a:1")] {
        let ledger = active(dir.path(), &url, advertise);
        if advertise == "b:1" {
            assert_eq!(exported(&ledger), before);
        }
        for run in &runs {
            assert!(ledger.run(*run).unwrap().is_some(), "{advertise} lacks {run}");
        }
        let content = ledger.blob(&kept.sha256).unwrap().unwrap().read_at(0, 100).unwrap();
        assert_eq!(content, b"written to the primary alone");
        runs.push(new_run(&ledger).await.run.run_id);
        ledger.close().await.unwrap();
        is_whole(dir.path());
    }
    let error = repair(&url, a.path(), Repair::Whole).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::NothingLost { .. })), "{error}");
}

/// An owner that has written nothing since the database lost a batch, and that gives the ledger back: no host takes it with a copy that has
/// less.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_ends_notices_what_the_database_lost() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let database = cluster(shared());
    let url = shared().url(&database);
    let ledger = active(a.path(), &url, "a:1");
    let run = new_run(&ledger).await.run.run_id;
    let last = last_batch(shared(), &database);
    lose_after(&database, last - 1);
    ledger.close().await.unwrap();
    assert_eq!(lost(&url), Some(LostBatch { batch: last, host: "a:1".to_owned() }));
    let other = Warm::start(b.path(), &url, "b:1");
    until("the host waits for the repair", || {
        other.watch.status().problem.is_some_and(|problem| problem.contains("engine_lost_commits"))
    });
    other.stop();
    repair(&url, a.path(), Repair::Whole).unwrap();
    let ledger = active(b.path(), &url, "b:1");
    assert!(ledger.run(run).unwrap().is_some());
}

/// A follower misses what it has. The owner, which had more, says so when it ends.
#[tokio::test]
async fn an_owner_that_ends_has_more_than_the_follower_that_noticed() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let database = cluster(shared());
    let url = shared().url(&database);
    let ledger = active(a.path(), &url, "a:1");
    new_run(&ledger).await;
    let follower = Warm::start(b.path(), &url, "b:1");
    let of_follower = last_batch(shared(), &database);
    until("the follower has all", || follower.watch.status().last_batch == Some(of_follower));
    follower.stop();
    let run = new_run(&ledger).await.run.run_id;
    let last = last_batch(shared(), &database);
    lose_after(&database, of_follower - 1);
    let error = Standby::join(host_options(b.path()), &member(&url, "b:1")).unwrap_err();
    assert!(error.to_string().contains("engine_lost_commits"), "{error}");
    assert_eq!(lost(&url), Some(LostBatch { batch: of_follower, host: "b:1".to_owned() }));
    ledger.close().await.unwrap();
    assert_eq!(lost(&url), Some(LostBatch { batch: last, host: "a:1".to_owned() }));
    repair(&url, a.path(), Repair::Whole).unwrap();
    let ledger = active(b.path(), &url, "b:1");
    assert!(ledger.run(run).unwrap().is_some());
}

/// The hook of an owner comes before any caller is told; what the owner had in memory is in its files then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_told_of_lost_batches_before_the_owner_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let database = cluster(shared());
    let url = shared().url(&database);
    let standby = Standby::join(host_options(dir.path()), &member(&url, "a:1")).unwrap();
    let ((ends, has_ended), (go_on, may_go_on)) = (channel(), channel::<()>());
    let hook = move |end: &LeaseEnd| {
        ends.send(end.clone()).unwrap();
        may_go_on.recv().unwrap();
    };
    let ledger = standby.activate(|| false, hook).unwrap().unwrap();
    let run = new_run(&ledger).await.run.run_id;
    lose_after(&database, last_batch(shared(), &database) - 1);
    let accepting = |ledger: &Ledger| {
        let ledger = ledger.clone();
        tokio::spawn(async move { ledger.accept(accept(event(), Vec::new())).await })
    };
    let mut waiting = vec![accepting(&ledger)];
    let end = tokio::task::spawn_blocking(move || has_ended.recv().unwrap()).await.unwrap();
    assert!(matches!(&end, LeaseEnd::LostCommits(reason) if reason.contains("engine_lost_commits")), "{end}");
    waiting.push(accepting(&ledger));
    let reader = ledger.clone();
    let reading = tokio::task::spawn_blocking(move || reader.run(run).map(|record| record.is_some()));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()) && !reading.is_finished(), "somebody is told");
    go_on.send(()).unwrap();
    for waiting in waiting {
        let error = waiting.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("engine_lost_commits"), "{error}");
    }
    assert!(reading.await.unwrap().is_err());
    drop(ledger);
    let error = Standby::join(host_options(dir.path()), &member(&url, "a:1")).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::LostCommits { .. })), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_copy_with_most_is_gone_the_rest_is_given_up_by_a_word() {
    let (a, b, c) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let database = cluster(shared());
    let url = shared().url(&database);
    let ledger = active(a.path(), &url, "a:1");
    let warm = Warm::start(b.path(), &url, "b:1");
    let first = new_run(&ledger).await.run.run_id;
    let end = last_batch(shared(), &database);
    let second = new_run(&ledger).await.run.run_id;
    let of_b = last_batch(shared(), &database);
    warm.has(of_b);
    warm.stop();
    let third = new_run(&ledger).await.run.run_id;
    let of_a = last_batch(shared(), &database);
    lose_after(&database, end);
    // The owner has not noticed yet, and holds the ledger.
    let error = repair(&url, b.path(), Repair::Whole).unwrap_err();
    assert!(matches!(&error, OpenError::Cluster(ClusterError::RepairHeld { host, .. }) if host.contains("a:1")), "{error}");
    notices(ledger).await;
    assert_eq!(lost(&url), Some(LostBatch { batch: of_a, host: "a:1".to_owned() }));
    let error = repair(&url, b.path(), Repair::Whole).unwrap_err();
    assert!(error.to_string().contains("--give-up-the-rest"), "{error}");
    let repaired = repair(&url, b.path(), Repair::GiveUpTheRest).unwrap();
    assert_eq!((repaired.log_ended, repaired.last_batch, repaired.given_up.unwrap().batch), (end, of_b, of_a));
    let ledger = active(c.path(), &url, "c:1");
    let has = |run| ledger.run(run).unwrap().is_some();
    assert!(has(first) && has(second) && !has(third));
    // The copy that was not gone after all does not join, and holds nobody up.
    let error = Standby::join(host_options(a.path()), &member(&url, "a:1")).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::LostCommits { .. })), "{error}");
    assert_eq!(lost(&url), None);
    ledger.close().await.unwrap();
    // A host that has nothing of what was lost gives all of it up.
    let ledger = active(b.path(), &url, "b:1");
    let end = last_batch(shared(), &database);
    new_run(&ledger).await;
    lose_after(&database, end);
    notices(ledger).await;
    Standby::join(host_options(c.path()), &member(&url, "c:1")).unwrap().activate(|| true, |_| ()).unwrap();
    let repaired = repair(&url, c.path(), Repair::GiveUpTheRest);
    // Its copy may end before the log does; that does not matter.
    let repaired = repaired.unwrap();
    assert_eq!((repaired.log_ended, repaired.last_batch), (end, end));
    assert_eq!(repaired.given_up.unwrap().host, "b:1");
    // The host whose batches were given up holds nobody up, also before another one has taken the ledger.
    let error = Standby::join(host_options(b.path()), &member(&url, "b:1")).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::LostCommits { .. })), "{error}");
    assert_eq!(lost(&url), None);
    new_run(&active(c.path(), &url, "c:1")).await;
    // A copy that the trimmed log goes on behind has lost nothing.
    let last = last_batch(shared(), &database);
    let ledger = active(a.path().join("new").as_path(), &url, "a:1");
    new_run(&ledger).await;
    ledger.close().await.unwrap();
    shared().sql(
        &database,
        &format!("update agent_host.partitions set log_first = {last} + 1; delete from agent_host.log where seq <= {last}"),
    );
    let error = repair(&url, c.path(), Repair::Whole).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::NothingLost { .. })), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_the_log_has_left_behind_is_not_put_back() {
    let (a, b, none) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let database = cluster(shared());
    let url = shared().url(&database);
    let ledger = active(a.path(), &url, "a:1");
    new_run(&ledger).await;
    let end = last_batch(shared(), &database);
    new_run(&ledger).await;
    ledger.close().await.unwrap();
    lose_after(&database, end);
    // Before the host with the copy starts again, another one has gone on.
    let other = active(b.path(), &url, "b:1");
    new_run(&other).await;
    let error = Standby::join(host_options(a.path()), &member(&url, "a:1")).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::LostCommits { .. })), "{error}");
    assert_eq!(lost(&url), None, "the log goes on");
    other.close().await.unwrap();
    let before = last_batch(shared(), &database);
    let error = repair(&url, a.path(), Repair::Whole).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::RepairForked { .. })), "{error}");
    assert!(error.to_string().contains("ledger export"), "{error}");
    let error = repair(&url, none.path(), Repair::Whole).unwrap_err();
    assert!(matches!(error, OpenError::NoLedger { .. }), "{error}");
    assert_eq!((last_batch(shared(), &database), lost(&url)), (before, None));
    let other = active(b.path(), &url, "b:1");
    let error = repair(&url, b.path(), Repair::Whole).unwrap_err();
    assert!(matches!(error, OpenError::AlreadyOpen { .. }), "{error}");
    drop(other);
}

/// The standby knows of no takeover since: it says that an owner which is gone holds the ledger, and that its time is over. So any host could take
/// it that has come as far as the standby, which here is there already. The owner, which gets no event, looks and finds that batches are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_promoted_standby_lacks_is_put_back_with_the_takeover_before_it() {
    let (a, b, c) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let primary = Postgres::start();
    let database = cluster(&primary);
    let standby = primary.standby();
    let (of_a, of_b) = (Proxy::start(primary.port), Proxy::start(primary.port));
    let [url_a, url_b] = [&of_a, &of_b].map(|proxy| proxy.url(&primary.url(&database)));
    let ledger = active(b.path(), &url_b, "b:1");
    let mut runs = vec![new_run(&ledger).await.run.run_id];
    let follower = Warm::start(a.path(), &url_a, "a:1");
    let end = last_batch(&primary, &database);
    follower.has(end);
    of_a.is(Network::Cut);
    primary.cut_off(&standby);
    // Two takeovers.
    ledger.close().await.unwrap();
    let ledger = active(b.path(), &url_b, "b:1");
    runs.push(new_run(&ledger).await.run.run_id);
    ledger.close().await.unwrap();
    let ledger = active(b.path(), &url_b, "b:1");
    for _ in 0..20 {
        runs.push(new_run(&ledger).await.run.run_id);
    }
    let last = last_batch(&primary, &database);
    std::thread::sleep(LEASE);
    primary.kill();
    assert_eq!(standby.sql("postgres", "select pg_promote()"), "t");
    assert_eq!(last_batch(&standby, &database), end);
    of_a.switch(standby.port);
    of_a.is(Network::Whole);
    of_b.switch(standby.port);
    until("the host waits for the repair", || {
        follower.watch.status().problem.is_some_and(|problem| problem.contains("engine_lost_commits") && problem.contains("b:1"))
    });
    follower.stop();
    assert_eq!(lost(&url_b), Some(LostBatch { batch: last, host: "b:1".to_owned() }));
    let error = ledger.close().await.unwrap_err();
    assert!(error.to_string().contains("engine_lost_commits"), "{error}");
    let repaired = repair(&url_b, b.path(), Repair::Whole).unwrap();
    assert_eq!((repaired.log_ended, repaired.last_batch), (end, last));
    for (dir, advertise) in [(&b, "b:1"), (&a, "a:1"), (&c, "c:1")] {
        let ledger = active(dir.path(), &url_b, advertise);
        for run in &runs {
            assert!(ledger.run(*run).unwrap().is_some(), "{advertise} lacks {run}");
        }
        runs.push(new_run(&ledger).await.run.run_id);
        ledger.close().await.unwrap();
        is_whole(dir.path());
    }
}

/// A standby that was away since the cluster began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_log_gets_back_what_it_lost() {
    let a = tempfile::tempdir().unwrap();
    let database = cluster(shared());
    let url = shared().url(&database);
    let ledger = active(a.path(), &url, "a:1");
    let run = new_run(&ledger).await.run.run_id;
    let last = last_batch(shared(), &database);
    shared().sql(
        &database,
        "delete from agent_host.log; update agent_host.partitions set epoch = 0, owner = null, incarnation = null",
    );
    until("the loss is noted", || lost(&url).is_some_and(|lost| lost.batch == last));
    assert!(ledger.close().await.is_err());
    let repaired = repair(&url, a.path(), Repair::Whole).unwrap();
    assert_eq!((repaired.log_ended, repaired.last_batch), (0, last));
    assert!(active(a.path(), &url, "a:1").run(run).unwrap().is_some());
}
