//! Import: a ledger of its own becomes the beginning of a cluster.

use std::path::Path;

use agent_host_ledger::{ClusterError, ImportedLedger, OpenError, PostgresServer, RunWrite, Standby, import_ledger};
use serde_json::json;

use crate::{
    common::{postgres::shared, *},
    hosts::*,
};

fn import(url: &str, dir: &Path) -> Result<ImportedLedger, OpenError> {
    import_ledger(&PostgresServer::parse(url, None).unwrap(), dir.join("ledger"), &|_, _| None, |_| ())
}

/// A closed ledger with runs, one of which is under way, state, a transcript and a blob. Gives its export, that run, and the digest.
async fn embedded(dir: &Path) -> (String, u64, String) {
    let ledger = host_options(dir).open().unwrap();
    let kept = blob(&ledger, &vec![9; 2_500_000]);
    ledger.add_artifact(artifact("artifact-a", &kept, "runner")).await.unwrap();
    for n in 0..40u64 {
        let run = new_run(&ledger).await;
        let value = state(&format!("key-{}", n % 7), Some(&json!(n)));
        let transcript = vec![item("c", "said", run.run.event_id)];
        let first = RunWrite { changes: vec![start()], state: vec![value], transcript, ..write(run.run_no) };
        ledger.submit(first).await.unwrap().await.unwrap();
        let end = RunWrite { changes: vec![completed()], events: vec![new_event(1, "run.completed")], ..write(run.run_no) };
        ledger.submit(end).await.unwrap().await.unwrap();
    }
    let run_no = running(&ledger).await;
    let exported = exported(&ledger);
    ledger.close().await.unwrap();
    (exported, run_no, kept.sha256.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_imported_ledger_goes_on_in_the_cluster() {
    let (dir, one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let database = cluster(shared());
    let url = shared().url(&database);
    let (before, run_no, kept) = embedded(dir.path()).await;
    let imported = import(&url, dir.path()).unwrap();
    assert!(imported.rows > 100 && imported.bytes > 1_000, "{imported:?}");
    assert_eq!((imported.blobs, imported.blob_bytes), (1, 2_500_000));
    let seen = first_partition(&url);
    assert_eq!((seen.first_batch, seen.last_batch, seen.snapshots.len()), (1, 1, 1));
    // The first host, and one that has only the database.
    let ledger = active(one.path(), &url, "a:1");
    assert_eq!(exported(&ledger), before);
    let end = RunWrite { changes: vec![completed()], events: vec![new_event(1, "run.completed")], ..write(run_no) };
    ledger.submit(end).await.unwrap().await.unwrap();
    finish(&ledger, new_run(&ledger).await.run_no, 3).await;
    let after = exported(&ledger);
    ledger.close().await.unwrap();
    is_whole(one.path());
    let ledger = active(two.path(), &url, "b:1");
    assert_eq!(exported(&ledger), after);
    assert_eq!(ledger.blob(&kept).unwrap().unwrap().read_at(2_499_995, 100).unwrap(), [9; 5]);
    ledger.close().await.unwrap();
    is_whole(two.path());
    // What was imported is as it was.
    is_whole(dir.path());
    let ledger = host_options(dir.path()).open().unwrap();
    assert_eq!(exported(&ledger), before);
    finish(&ledger, new_run(&ledger).await.run_no, 1).await;
    ledger.close().await.unwrap();
    // A second one has no place.
    let error = import(&url, dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::HasBatches { .. })), "{error}");
    assert!(error.to_string().contains("another database"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_joined_before_the_import_does_not_go_on_without_it() {
    let (dir, early, database) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    let (before, ..) = embedded(dir.path()).await;
    let standby = Standby::join(host_options(early.path()), &member(&url, "a:1")).unwrap();
    import(&url, dir.path()).unwrap();
    let error = standby.activate(|| false, |_| ()).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::CopyBehind { copy: 0, first: 1, .. })), "{error}");
    let ledger = active(early.path(), &url, "a:1");
    assert_eq!(exported(&ledger), before);
}

/// The error of an import that leaves the cluster empty.
#[track_caller]
fn refused(url: &str, dir: &Path, wanted: &str) -> OpenError {
    let error = import(url, dir).unwrap_err();
    assert!(error.to_string().contains(wanted), "{error}");
    let seen = first_partition(url);
    assert_eq!((seen.last_batch, seen.snapshots.len()), (0, 0), "{seen:?}");
    error
}

/// Sets the format of a closed ledger; gives the one before.
fn set_format(dir: &Path, format: u64) -> u64 {
    let database = redb::Database::open(dir.join("ledger/ledger.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let before = {
        let mut table = transaction.open_table(redb::TableDefinition::<&[u8], &[u8]>::new("meta")).unwrap();
        let before = table.insert(b"format".as_slice(), format.to_be_bytes().as_slice()).unwrap().unwrap();
        u64::from_be_bytes(before.value().try_into().unwrap())
    };
    transaction.commit().unwrap();
    before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_is_missing_open_damaged_a_copy_or_of_another_format_is_refused() {
    let (dir, empty, copy, database) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    assert!(matches!(refused(&url, empty.path(), "no ledger"), OpenError::NoLedger { .. }));
    assert!(!empty.path().join("ledger").exists());
    let (before, _, kept) = embedded(dir.path()).await;
    let open = host_options(dir.path()).open().unwrap();
    assert!(matches!(refused(&url, dir.path(), "stop it first"), OpenError::AlreadyOpen { .. }));
    open.close().await.unwrap();
    let other = shared().url(&cluster(shared()));
    active(copy.path(), &other, "a:1").close().await.unwrap();
    assert!(matches!(refused(&url, copy.path(), "is a copy"), OpenError::Cluster(ClusterError::IsACopy { .. })));
    // A cluster in which a host has begun.
    let error = import(&other, dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::HasBatches { .. })), "{error}");
    for (format, wanted) in [(10, "raises the format"), (99, "newer agent-host")] {
        let before = set_format(dir.path(), format);
        refused(&url, dir.path(), wanted);
        assert_eq!(set_format(dir.path(), before), format, "an import changes no format");
    }
    let file = dir.path().join("ledger/blobs").join(&kept[..2]).join(&kept);
    let content = std::fs::read(&file).unwrap();
    let damaged = |wanted: &str| {
        let error = refused(&url, dir.path(), wanted);
        assert!(matches!(error, OpenError::Cluster(ClusterError::SourceDamaged { .. })), "{error}");
    };
    // As long as it was, with other bytes; then not there at all.
    std::fs::write(&file, vec![8; content.len()]).unwrap();
    damaged("has another content");
    std::fs::remove_file(&file).unwrap();
    damaged("ledger check");
    std::fs::write(&file, content).unwrap();
    // Bytes of the store itself.
    let store = dir.path().join("ledger/ledger.redb");
    let whole = std::fs::read(&store).unwrap();
    let mut bytes = whole.clone();
    let at = bytes.windows(6).position(|window| window == b"key-3\0" || window == b"hello\"").unwrap_or(bytes.len() / 2);
    bytes[at] ^= 0xff;
    std::fs::write(&store, bytes).unwrap();
    refused(&url, dir.path(), "");
    std::fs::write(&store, whole).unwrap();
    // Nothing of the failed ones is in the way.
    import(&url, dir.path()).unwrap();
    let one = tempfile::tempdir().unwrap();
    assert_eq!(exported(&active(one.path(), &url, "a:1")), before);
}
