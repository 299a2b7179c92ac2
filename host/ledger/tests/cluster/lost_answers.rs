//! A network that loses answers of the database, and what a host then knows.

use std::time::Duration;

use agent_host_ledger::{ClusterOptions, Standby};

use crate::{
    common::{postgres::shared, proxy::Proxy, *},
    hosts::*,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_lost_at_a_commit_loses_and_repeats_nothing() {
    let (dir, database) = (tempfile::tempdir().unwrap(), cluster(shared()));
    let proxy = Proxy::start(shared().port);
    let url = proxy.url(&shared().url(&database));
    // Answers to the heartbeat are lost too.
    let options = ClusterOptions { lease: Duration::from_secs(60), ..member(&url, "a:1") };
    let ledger = Standby::join(host_options(dir.path()), &options).unwrap().activate(|| false, |_| ()).unwrap().unwrap();
    let mut runs = Vec::new();
    for _ in 0..40 {
        // Sometimes the answer to the heartbeat is lost, mostly that to the commit, which took place.
        proxy.loses_next(true);
        runs.push(new_run(&ledger).await);
    }
    assert!(proxy.lost() >= 30, "{}", proxy.lost());
    for run in &runs {
        assert!(ledger.run(run.run.run_id).unwrap().is_some());
    }
    let numbers: Vec<_> = runs.iter().map(|run| run.run_no).collect();
    assert_eq!(numbers, (1..=40).collect::<Vec<_>>());
    proxy.loses_next(false);
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    let other = tempfile::tempdir().unwrap();
    assert_eq!(exported(&active(other.path(), &shared().url(&database), "b:1")), before);
}
