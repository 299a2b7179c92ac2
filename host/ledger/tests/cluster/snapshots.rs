//! Snapshots: hosts make them, the log ends behind the older one, and copies begin from them.

use std::{path::Path, time::Duration};

use agent_host_ledger::{ClusterError, Ledger, OpenError, Options, PartitionStatus, Standby};

use crate::{
    common::{
        postgres::{Postgres, shared},
        proxy::{Network, Proxy},
        *,
    },
    hosts::*,
};

/// Options of a host that makes snapshots at every opportunity.
pub fn eager(dir: &Path) -> Options {
    Options { snapshot_interval: Duration::from_millis(200), ..host_options(dir) }
}

pub fn status(url: &str) -> PartitionStatus {
    first_partition(url)
}

pub fn number(postgres: &Postgres, database: &str, sql: &str) -> u64 {
    postgres.sql(database, sql).parse().unwrap()
}

pub async fn some_runs(ledger: &Ledger, count: u64) {
    for n in 0..count {
        finish(ledger, new_run(ledger).await.run_no, n % 3 + 1).await;
    }
}

/// Writes runs until the log was trimmed behind a snapshot of at least the batch that is the last one now.
pub async fn until_trimmed(ledger: &Ledger, url: &str, database: &str) -> PartitionStatus {
    let last = last_batch(shared(), database);
    for _ in 0..200 {
        some_runs(ledger, 3).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let status = status(url);
        if status.first_batch >= last.max(2) {
            return status;
        }
    }
    panic!("the log is not trimmed: {:?}", status(url));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warm_host_makes_snapshots_and_a_host_without_files_begins_from_one() {
    let (dir, other, fresh) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let database = cluster(shared());
    let url = shared().url(&database);
    let ledger = active(dir.path(), &url, "a:1");
    let warm = Warm::start_with(eager(other.path()), &url, "b:1");
    let kept = blob(&ledger, &vec![7; 1_500_000]);
    ledger.add_artifact(artifact("artifact-a", &kept, "runner")).await.unwrap();
    let value = state("key", Some(&serde_json::json!([1, 2])));
    let run = new_run(&ledger).await;
    let first = agent_host_ledger::RunWrite { changes: vec![start()], state: vec![value], ..write(run.run_no) };
    ledger.submit(first).await.unwrap().await.unwrap();
    let seen = until_trimmed(&ledger, &url, &database).await;
    assert_eq!(seen.snapshots.len(), 2, "{seen:?}");
    assert!(seen.snapshots.iter().all(|snapshot| snapshot.made_by == "b:1" && snapshot.rows > 10 && snapshot.bytes > 1_000));
    assert!(seen.snapshots[0].batch > seen.snapshots[1].batch && seen.snapshots[1].batch >= seen.first_batch, "{seen:?}");
    warm.stop();
    some_runs(&ledger, 5).await;
    let seen = status(&url);
    assert!(seen.first_batch > 1 && seen.snapshots[0].batch < seen.last_batch, "{seen:?}");
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    is_whole(dir.path());
    is_whole(other.path());
    let ledger = active(fresh.path(), &url, "c:1");
    assert_eq!(exported(&ledger), before);
    assert_eq!(ledger.blob(&kept.sha256).unwrap().unwrap().read_at(1_499_990, 100).unwrap(), [7; 10]);
    // The run that is under way ends on the new host.
    let end = agent_host_ledger::RunWrite {
        changes: vec![completed()],
        events: vec![new_event(1, "run.completed")],
        ..write(run.run_no)
    };
    ledger.submit(end).await.unwrap().await.unwrap();
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    is_whole(fresh.path());
    assert!(!fresh.path().join("ledger/ledger.redb.snapshot").exists());
    // The other copies go on from the log, which they are not behind of, or from the snapshot.
    let ledger = active(dir.path(), &url, "a:1");
    assert_eq!(exported(&ledger), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_alone_trims_its_log_and_old_pieces_are_removed() {
    let (dir, fresh, database) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    // A maker that was killed in the middle of its work.
    shared().sql(
        &database,
        "insert into agent_host.snapshots (p, seq, epoch, made_by) values (0, 1, 0, 'dead:1'); \
         insert into agent_host.snapshot_pieces values (0, 1, 0, '\\x00'); insert into agent_host.snapshot_contents values ('\\x00', 'x')",
    );
    let standby = Standby::join(eager(dir.path()), &member(&url, "a:1")).unwrap();
    let ledger = standby.activate(|| false, |_| ()).unwrap().unwrap();
    for _ in 0..3 {
        until_trimmed(&ledger, &url, &database).await;
    }
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    assert_eq!(shared().sql(&database, "select count(*) from agent_host.snapshots where made_by <> 'a:1'"), "0");
    let seen = status(&url);
    let kept = number(shared(), &database, "select count(*) from agent_host.log");
    assert!(kept <= seen.last_batch - seen.first_batch + 1 && kept < seen.last_batch, "{kept} {seen:?}");
    // One more may have been begun when the host was closed.
    assert!(number(shared(), &database, "select count(*) from agent_host.snapshots") <= 4);
    assert_eq!(shared().sql(&database, "select count(*) from agent_host.snapshot_contents where sha256 = '\\x00'"), "0");
    // Pieces that did not change are there once.
    let named = number(shared(), &database, "select count(*) from agent_host.snapshot_pieces");
    assert!(number(shared(), &database, "select count(*) from agent_host.snapshot_contents") < named);
    let ledger = active(fresh.path(), &url, "b:1");
    assert_eq!(exported(&ledger), before);
    ledger.close().await.unwrap();
    is_whole(fresh.path());
}

/// Damages the pieces that one of two snapshots has and the other has not.
fn damage(database: &str, of: u64, not_of: u64, what: &str) -> u64 {
    let sql = format!(
        "with damaged as ({what} where sha256 in (select sha256 from agent_host.snapshot_pieces where seq = {of} except select sha256 \
         from agent_host.snapshot_pieces where seq = {not_of}) returning 1) select count(*) from damaged"
    );
    number(shared(), database, &sql)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_snapshot_is_passed_over_and_without_any_a_copy_heals_the_cluster() {
    const OTHER_BYTES: &str = "update agent_host.snapshot_contents set content = set_byte(content, 1, 255)";
    const GONE: &str = "delete from agent_host.snapshot_contents";
    let (dir, database) = (tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    let standby = Standby::join(eager(dir.path()), &member(&url, "a:1")).unwrap();
    let ledger = standby.activate(|| false, |_| ()).unwrap().unwrap();
    until_trimmed(&ledger, &url, &database).await;
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    let [newer, older] = status(&url).snapshots.try_into().unwrap();
    for what in [OTHER_BYTES, GONE] {
        let damaged = format!("{database}_{}", what.len());
        shared().clone_database(&database, &damaged);
        let url = shared().url(&damaged);
        assert!(damage(&damaged, newer.batch, older.batch, what) > 0);
        let fresh = tempfile::tempdir().unwrap();
        let ledger = active(fresh.path(), &url, "b:1");
        assert_eq!(exported(&ledger), before);
        ledger.close().await.unwrap();
        is_whole(fresh.path());
        // Neither can be read.
        assert!(damage(&damaged, older.batch, 0, what) > 0);
        let lost = tempfile::tempdir().unwrap();
        let error = Standby::join(host_options(lost.path()), &member(&url, "c:1")).unwrap_err();
        assert!(matches!(&error, OpenError::Cluster(ClusterError::NoSnapshot { first, .. }) if *first == older.batch), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&format!("that of batch {}: piece", newer.batch)) && text.contains("restore the database"),
            "{text}"
        );
        // The host that has a copy makes another one, and sends what is damaged again.
        let standby = Standby::join(eager(fresh.path()), &member(&url, "b:1")).unwrap();
        let ledger = standby.activate(|| false, |_| ()).unwrap().unwrap();
        until_trimmed(&ledger, &url, &damaged).await;
        let before = exported(&ledger);
        ledger.close().await.unwrap();
        let wrong = "select count(*) from agent_host.snapshot_pieces s join agent_host.snapshots n using (p, seq) left join \
                     agent_host.snapshot_contents c using (sha256) where n.read_back_at is not null and (c.sha256 is null or \
                     sha256(c.content) <> c.sha256)";
        let whole = tempfile::tempdir().unwrap();
        let ledger = active(whole.path(), &url, "d:1");
        assert_eq!(exported(&ledger), before);
        drop(ledger);
        assert_eq!(status(&url).snapshots.len(), 2);
        assert_eq!(shared().sql(&damaged, wrong), "0");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_ends_before_the_log_begins_anew_from_a_snapshot() {
    let (dir, behind, database) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    let ledger = active(behind.path(), &url, "b:1");
    some_runs(&ledger, 2).await;
    ledger.close().await.unwrap();
    let standby = Standby::join(eager(dir.path()), &member(&url, "a:1")).unwrap();
    let ledger = standby.activate(|| false, |_| ()).unwrap().unwrap();
    until_trimmed(&ledger, &url, &database).await;
    let proxy = Proxy::start(shared().port);
    let warm = Warm::start(behind.path(), &proxy.url(&url), "b:1");
    warm.has(last_batch(shared(), &database));
    some_runs(&ledger, 2).await;
    let last = last_batch(shared(), &database);
    warm.has(last);
    // A host that follows, is cut off and falls behind says so, and begins from a snapshot when it is started again.
    proxy.is(Network::Cut);
    some_runs(&ledger, 1).await;
    let first_batch = until_trimmed(&ledger, &url, &database).await.first_batch;
    assert!(first_batch > last, "{first_batch} {last}");
    proxy.is(Network::Whole);
    match warm.result() {
        Err(OpenError::Cluster(error @ ClusterError::CopyBehind { .. })) => {
            assert!(error.to_string().contains("start the host again"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    let ledger = active(behind.path(), &url, "b:1");
    assert_eq!(exported(&ledger), before);
    ledger.close().await.unwrap();
    is_whole(behind.path());
}
