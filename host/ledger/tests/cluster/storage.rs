//! Contents of blobs and of snapshots in an object store: here a folder that all hosts have.

use std::{
    fs,
    path::{Path, PathBuf},
};

use agent_host_ledger::{
    ClusterError, ClusterOptions, OpenError, PostgresServer, Repair, RunWrite, Standby, StorageAddress, import_ledger,
    init_cluster, repair_cluster,
};

use crate::{
    common::{postgres::shared, *},
    hosts::*,
    snapshots::{eager, number, some_runs, status, until_trimmed},
};

fn folder(dir: &Path) -> StorageAddress {
    StorageAddress::parse(&format!("file://{}", dir.display())).unwrap()
}

fn refused(dir: &Path, options: &ClusterOptions) -> ClusterError {
    for _ in 0..100 {
        match Standby::join(host_options(dir), options) {
            Err(OpenError::Cluster(error)) => return error,
            // A process that another test starts has the lock of an earlier host for a moment.
            Err(OpenError::AlreadyOpen { .. }) => std::thread::sleep(std::time::Duration::from_millis(20)),
            other => panic!("{other:?}"),
        }
    }
    panic!("{} is still open", dir.display());
}

/// All objects of a kind, `blobs` or `pieces`.
fn objects(dir: &Path, kind: &str) -> Vec<PathBuf> {
    let Ok(shards) = fs::read_dir(dir.join(kind)) else { return Vec::new() };
    shards.flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap().map(|file| file.unwrap().path())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_has_no_contents_and_a_host_without_files_has_all() {
    let [store, dir, other, fresh] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let database = cluster_with(shared(), Some(&folder(store.path())));
    let url = shared().url(&database);
    assert_eq!(status_of(&url).blobs, Some(folder(store.path()).to_string()));
    let ledger = active(dir.path(), &url, "a:1");
    let warm = Warm::start_with(eager(other.path()), &url, "b:1");
    // More than one part.
    let large: Vec<u8> = (0..9_000_000u32).map(|at| (at % 253) as u8).collect();
    let kept = [blob(&ledger, &large), blob(&ledger, b"small")];
    for (id, kept) in ["artifact-a", "artifact-b"].into_iter().zip(&kept) {
        ledger.add_artifact(artifact(id, kept, "runner")).await.unwrap();
    }
    until_trimmed(&ledger, &url, &database).await;
    until_trimmed(&ledger, &url, &database).await;
    warm.stop();
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    assert_eq!(objects(store.path(), "blobs").len(), 2);
    for none in [
        "select count(*) from agent_host.blob_pieces",
        "select count(*) from agent_host.blobs",
        "select count(*) from agent_host.snapshot_contents where content <> ''",
    ] {
        assert_eq!(shared().sql(&database, none), "0", "{none}");
    }
    // Contents that no snapshot names are removed with their names.
    let named = number(shared(), &database, "select count(*) from agent_host.snapshot_contents");
    assert_eq!(objects(store.path(), "pieces").len() as u64, named);
    let ledger = active(fresh.path(), &url, "c:1");
    assert_eq!(exported(&ledger), before);
    assert!(ledger.blob(&kept[0].sha256).unwrap().unwrap().read_at(0, large.len()).unwrap() == large);
    assert_eq!(ledger.blob(&kept[1].sha256).unwrap().unwrap().read_at(0, 10).unwrap(), b"small");
    // A content that the store has lost is an error of whoever reads it, and no panic.
    let lost = blob(&ledger, b"of which nothing is left");
    ledger.close().await.unwrap();
    for file in objects(store.path(), "blobs") {
        fs::remove_file(file).unwrap();
    }
    let ledger = active(dir.path(), &url, "a:1");
    assert!(ledger.blob(&lost.sha256).unwrap().is_none());
    ledger.close().await.unwrap();
    is_whole(fresh.path());
}

/// The host with this copy makes two snapshots, and one without files begins from them.
async fn new_snapshots_are_taken_over(copy: &Path, database: &str) {
    let url = shared().url(database);
    let host = Standby::join(eager(copy), &member(&url, "a:1")).unwrap();
    let ledger = host.activate(|| false, |_| ()).unwrap().unwrap();
    until_trimmed(&ledger, &url, database).await;
    until_trimmed(&ledger, &url, database).await;
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    let fresh = tempfile::tempdir().unwrap();
    let ledger = active(fresh.path(), &url, "c:1");
    assert_eq!(exported(&ledger), before);
    ledger.close().await.unwrap();
    is_whole(fresh.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_piece_that_the_store_has_lost_or_changed_is_refused_and_sent_again() {
    let [store, dir] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let database = cluster_with(shared(), Some(&folder(store.path())));
    let url = shared().url(&database);
    let host = Standby::join(eager(dir.path()), &member(&url, "a:1")).unwrap();
    let ledger = host.activate(|| false, |_| ()).unwrap().unwrap();
    until_trimmed(&ledger, &url, &database).await;
    ledger.close().await.unwrap();
    objects(store.path(), "pieces").iter().for_each(|file| fs::remove_file(file).unwrap());
    let lost = tempfile::tempdir().unwrap();
    let error = refused(lost.path(), &member(&url, "b:1"));
    assert!(matches!(error, ClusterError::NoSnapshot { .. }) && error.to_string().contains("has no content"), "{error}");
    // A host that has a copy makes new snapshots, and sends what is gone.
    new_snapshots_are_taken_over(dir.path(), &database).await;
    // Other bytes are no rows of a copy.
    objects(store.path(), "pieces").iter().for_each(|file| fs::write(file, b"other").unwrap());
    let error = refused(lost.path(), &member(&url, "b:1"));
    assert!(matches!(error, ClusterError::NoSnapshot { .. }) && error.to_string().contains("has another content"), "{error}");
    // The refused host has removed their rows: they are sent again.
    new_snapshots_are_taken_over(dir.path(), &database).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_is_that_of_one_cluster_and_all_hosts_have_the_same() {
    let [store, dir, empty] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let own = folder(store.path());
    let database = cluster_with(shared(), Some(&own));
    let url = shared().url(&database);
    let server = |url: &str| PostgresServer::parse(url, None).unwrap();
    // Another cluster does not take it, and is not made.
    let other = empty_database(shared());
    let error = init_cluster(&server(&shared().url(&other)), Some(&own), 1).unwrap_err();
    assert!(matches!(error, ClusterError::ForeignStorage { .. }) && error.to_string().contains("prefix of its own"), "{error}");
    assert_eq!(shared().sql(&other, "select count(*) from pg_namespace where nspname = 'agent_host'"), "0");
    let missing = folder(&dir.path().join("not mounted"));
    let error = init_cluster(&server(&shared().url(&other)), Some(&missing), 1).unwrap_err();
    assert!(matches!(error, ClusterError::Storage { .. }), "{error}");
    // A cluster that cannot be made leaves no mark.
    let unmade = folder(empty.path());
    shared().sql(&other, "create schema agent_host; create function agent_host.nothing() returns int language sql as 'select 1'");
    shared().sql(&other, "create type agent_host.cluster as (x int)");
    assert!(init_cluster(&server(&shared().url(&other)), Some(&unmade), 1).is_err());
    assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0);
    // A host with another place does not join; one that names none takes that of the cluster.
    let options = ClusterOptions { blobs: Some(unmade), ..member(&url, "a:1") };
    let error = refused(dir.path(), &options);
    assert!(matches!(&error, ClusterError::OtherStorage { found, .. } if *found == own.to_string()), "{error}");
    let plain = shared().url(&cluster(shared()));
    let options = ClusterOptions { blobs: Some(own.clone()), ..member(&plain, "a:1") };
    let error = refused(dir.path(), &options);
    assert!(error.to_string().contains("has its contents in the database"), "{error}");
    let ledger = active(dir.path(), &url, "a:1");
    ledger.close().await.unwrap();
    // A folder that is not mounted is empty.
    fs::remove_file(store.path().join("cluster.json")).unwrap();
    let error = refused(dir.path(), &ClusterOptions { blobs: Some(own), ..member(&url, "a:1") });
    assert!(matches!(error, ClusterError::NoStorage { .. }) && error.to_string().contains("mount the folder"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_sends_contents_to_the_store_and_a_repair_puts_them_back() {
    let [store, dir, fresh] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let ledger = open(dir.path());
    let kept = blob(&ledger, &[5; 70_000]);
    ledger.add_artifact(artifact("artifact-a", &kept, "runner")).await.unwrap();
    some_runs(&ledger, 5).await;
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    let database = cluster_with(shared(), Some(&folder(store.path())));
    let url = shared().url(&database);
    let imported =
        import_ledger(&PostgresServer::parse(&url, None).unwrap(), dir.path().join("ledger"), &|_, _| None, |_| ()).unwrap();
    assert_eq!((imported.blobs, objects(store.path(), "blobs").len()), (1, 1));
    assert_eq!(shared().sql(&database, "select count(*) from agent_host.blob_pieces"), "0");
    let ledger = active(fresh.path(), &url, "a:1");
    assert_eq!(exported(&ledger), before);
    assert_eq!(ledger.blob(&kept.sha256).unwrap().unwrap().read_at(0, 70_000).unwrap(), [5; 70_000]);
    some_runs(&ledger, 3).await;
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    // The database forgets the end of its log, and the store the blob.
    fs::remove_file(&objects(store.path(), "blobs")[0]).unwrap();
    shared().sql(&database, "delete from agent_host.log where seq > (select max(seq) - 2 from agent_host.log)");
    let error = refused(fresh.path(), &member(&url, "a:1"));
    assert!(matches!(error, ClusterError::LostCommits { .. }), "{error}");
    until("the lease of the host that was here is over", || {
        let repaired = repair_cluster(&member(&url, "a:1"), 0, fresh.path().join("ledger"), Repair::Whole, |_| ());
        repaired.is_ok_and(|repaired| repaired.blobs == 1 && repaired.missing_blobs == 0)
    });
    assert_eq!(objects(store.path(), "blobs").len(), 1);
    let ledger = active(fresh.path(), &url, "a:1");
    assert_eq!(exported(&ledger), before);
    ledger.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_joins_upgrades_the_tables_of_the_version_before() {
    let dir = tempfile::tempdir().unwrap();
    let database = cluster(shared());
    let url = shared().url(&database);
    shared().sql(
        &database,
        "alter table agent_host.hosts drop column drained, drop column follows, drop column copies, drop column reads_packed; \
         alter table agent_host.cluster drop column blobs; \
         drop table agent_host.permits; alter table agent_host.blobs drop column p, add primary key (sha256); \
         alter table agent_host.blob_pieces drop column p, add primary key (sha256, piece); \
         update agent_host.cluster set schema_version = 1",
    );
    // A command leaves them as they are: hosts of that version may be running.
    let error = agent_host_ledger::cluster_status(&PostgresServer::parse(&url, None).unwrap()).unwrap_err();
    assert!(matches!(error, ClusterError::OtherFormat { found_schema: 1, .. }), "{error}");
    let ledger = active(dir.path(), &url, "a:1");
    some_runs(&ledger, 1).await;
    ledger.close().await.unwrap();
    let seen = status(&url);
    assert!(status_of(&url).blobs.is_none() && seen.last_batch > 1, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_are_packed_when_no_host_of_the_version_before_is_left() {
    let [dir, other] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let database = cluster(shared());
    let url = shared().url(&database);
    shared().sql(
        &database,
        "insert into agent_host.hosts (host_id, incarnation, advertise, version, lease_ms, started_at, lease_until) values \
         ('before', 1, 'b:1', 'before', 10000, clock_timestamp(), clock_timestamp() + interval '1 hour')",
    );
    let ledger = active(dir.path(), &url, "a:1");
    let run = new_run(&ledger).await;
    ledger.submit(RunWrite { changes: vec![start()], ..write(run.run_no) }).await.unwrap().await.unwrap();
    // The largest frame of those that the write adds.
    let adds = async |key: &str| {
        let before = last_batch(shared(), &database);
        let state = vec![state(key, Some(&serde_json::json!("value ".repeat(10_000))))];
        ledger.submit(RunWrite { state, ..write(run.run_no) }).await.unwrap().await.unwrap();
        number(shared(), &database, &format!("select max(octet_length(frame)) from agent_host.log where seq > {before}"))
    };
    assert!(adds("plain").await > 60_000);
    shared().sql(&database, "delete from agent_host.hosts where host_id = 'before'");
    let began = std::time::Instant::now();
    while adds("packed").await > 6_000 {
        assert!(began.elapsed() < LEASE, "frames are not packed");
    }
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    // A host without files reads both.
    assert_eq!(exported(&active(other.path(), &url, "c:1")), before);
}
