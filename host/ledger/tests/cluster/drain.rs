//! Draining: the owner gives the ledger to a host that is not drained, and takes it again only where there is none.

use std::path::Path;

use agent_host_ledger::{ClusterError, ClusterMember, Drain, Options, cluster_status, drain_host};

use crate::{
    common::{postgres::shared, *},
    hosts::*,
};

fn drain(url: &str, advertise: &str) -> Result<Drain, ClusterError> {
    drain_host(&member(url, "x").server, advertise)
}

/// The addresses of the hosts that are drained, and of the owner.
fn hosts(url: &str) -> (Vec<String>, Option<String>) {
    let hosts = cluster_status(&member(url, "x").server).unwrap().hosts;
    let of = |is: fn(&agent_host_ledger::HostStatus) -> bool| {
        hosts.iter().filter(move |host| is(host)).map(|host| host.advertise.clone())
    };
    (of(|host| host.is_drained).collect(), of(agent_host_ledger::HostStatus::is_active).next())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_drained_gives_the_ledger_away_and_takes_it_only_where_nobody_else_does() {
    let (a, b, c) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let database = cluster(shared());
    let url = shared().url(&database);
    let joined = ClusterMember::join(&host_options(a.path()), &member(&url, "a:1")).unwrap();
    let ledger = tokio::task::block_in_place(|| Warm::again(&joined, a.path()).wait());
    let run = new_run(&ledger).await;
    assert!(!ledger.gives_way());
    let error = drain(&url, "nobody:1").unwrap_err();
    assert!(matches!(error, ClusterError::NoSuchHost { .. }), "{error}");
    let error = drain(&url, "a:1").unwrap_err();
    assert!(matches!(error, ClusterError::NobodyToTakeOver { .. }), "{error}");
    assert!(hosts(&url).0.is_empty(), "a request that is refused leaves no mark");

    let warm = Warm::start(b.path(), &url, "b:1");
    let asked = std::thread::spawn({
        let url = url.clone();
        move || drain(&url, "a:1")
    });
    until("the owner is told", || ledger.gives_way());
    finish(&ledger, run.run_no, 1).await;
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    let drained = Warm::again(&joined, a.path());
    let taken = tokio::task::spawn_blocking(|| warm.wait()).await.unwrap();
    assert_eq!(exported(&taken), before);
    let outcome = asked.join().unwrap().unwrap();
    assert!(outcome.owned == 1 && outcome.active == ["b:1"], "{outcome:?}");
    assert_eq!(hosts(&url), (vec!["a:1".to_owned()], Some("b:1".to_owned())));
    until("the host knows that it is drained", || drained.watch.status().is_drained);

    // A host that is warm is marked alone. Of two that follow, the one that is not drained takes the ledger.
    let third = Warm::start(c.path(), &url, "c:1");
    let outcome = drain(&url, "c:1").unwrap();
    assert!(outcome.owned == 0 && outcome.active == ["b:1"], "{outcome:?}");
    let error = drain(&url, "b:1").unwrap_err();
    assert!(matches!(error, ClusterError::NobodyToTakeOver { .. }), "{error}");
    third.stop();
    let third = Warm::start(c.path(), &url, "c:1");
    taken.close().await.unwrap();
    let taken = tokio::task::spawn_blocking(|| third.wait()).await.unwrap();
    assert_eq!(hosts(&url), (vec!["a:1".to_owned()], Some("c:1".to_owned())), "a start ends the mark");
    // Where nobody else is left, a drained host is better than none.
    taken.close().await.unwrap();
    let taken = tokio::task::spawn_blocking(|| drained.wait()).await.unwrap();
    assert_eq!(exported(&taken), before);
    assert!(hosts(&url).0.is_empty() && !taken.gives_way(), "a takeover ends the mark");
    taken.close().await.unwrap();
}

/// A host whose disk is low gives the ledger to another one; alone, or as the last one, it keeps it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_with_a_full_disk_leaves_the_ledger_to_another_one() {
    let [a, b] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let database = cluster(shared());
    let url = shared().url(&database);
    let full = |dir: &Path| Options { min_free_disk_bytes: u64::MAX / 8, ..host_options(dir) };
    let joined = ClusterMember::join(&full(a.path()), &member(&url, "a:1")).unwrap();
    let standby = joined.follow(0, full(a.path())).unwrap();
    let ledger = standby.activate(|| false, |_| ()).unwrap().unwrap();
    std::thread::sleep(LEASE);
    assert!(!ledger.gives_way(), "nobody else would take it");
    // The disk of the other one is full too.
    let warm = Warm::start_with(full(b.path()), &url, "b:1");
    until("the owner gives way", || ledger.gives_way());
    ledger.close().await.unwrap();
    let drained = Warm::again(&joined, a.path());
    let taken = tokio::task::spawn_blocking(|| warm.wait()).await.unwrap();
    std::thread::sleep(LEASE);
    assert!(!taken.gives_way(), "it is the last one");
    assert_eq!(hosts(&url), (vec!["a:1".to_owned()], Some("b:1".to_owned())));
    drained.stop();
    taken.close().await.unwrap();
}
