//! State that is compared before it is set, storage, and what both may have.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use crate::common::*;
use agent_host_ledger::{
    ExpectedValue, Ledger, LedgerError, Options, Quota, RunWrite, STORAGE_INLINE_BYTES, StateWrite, StorageContent, StorageValue,
    StorageWrite, Usage, check, export, state_tag,
};
use serde_json::{Value, json};

fn tag(value: &Value) -> u64 {
    state_tag(&value.to_string())
}

fn cas(key: &str, expected: ExpectedValue, value: Option<&Value>) -> StateWrite {
    StateWrite { expected: Some(expected), ..state(key, value) }
}

fn keep(key: &str, value: Option<StorageValue>) -> StorageWrite {
    StorageWrite { area_key: "area".into(), key: key.into(), value, quota: None }
}

fn inline(bytes: &[u8]) -> Option<StorageValue> {
    Some(StorageValue::Inline(bytes.to_vec()))
}

async fn set(ledger: &Ledger, run_no: u64, state: Vec<StateWrite>) -> Result<(), LedgerError> {
    ledger.submit(RunWrite { state, ..write(run_no) }).await?.await.map(|_| ())
}

async fn store(ledger: &Ledger, run_no: u64, storage: Vec<StorageWrite>) -> Result<(), LedgerError> {
    ledger.submit(RunWrite { storage, ..write(run_no) }).await?.await.map(|_| ())
}

fn assert_conflict(result: Result<(), LedgerError>, wanted: &str) {
    assert!(matches!(&result, Err(LedgerError::Conflict { key }) if key == wanted), "{result:?}");
}

#[tokio::test]
async fn a_value_is_set_only_where_it_is_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let run_no = running(&ledger).await;
    let (one, two) = (json!({ "n": 1 }), json!({ "n": 2 }));
    assert_conflict(set(&ledger, run_no, vec![cas("k", ExpectedValue::Value(tag(&one)), Some(&two))]).await, "k");
    set(&ledger, run_no, vec![cas("k", ExpectedValue::Absent, Some(&one))]).await.unwrap();
    assert_eq!(ledger.state_get_tagged("scope", "k").unwrap(), Some((one.clone(), tag(&one))));
    assert_conflict(set(&ledger, run_no, vec![cas("k", ExpectedValue::Absent, Some(&two))]).await, "k");
    assert_conflict(set(&ledger, run_no, vec![cas("k", ExpectedValue::Value(tag(&two)), Some(&two))]).await, "k");
    set(&ledger, run_no, vec![cas("k", ExpectedValue::Value(tag(&one)), Some(&two))]).await.unwrap();

    // Admitted writes count before their commit.
    let first = ledger.submit(RunWrite { state: vec![state("k", Some(&one))], ..write(run_no) }).await.unwrap();
    assert_conflict(set(&ledger, run_no, vec![cas("k", ExpectedValue::Value(tag(&two)), None)]).await, "k");
    let second = RunWrite { state: vec![cas("k", ExpectedValue::Value(tag(&one)), None)], ..write(run_no) };
    let second = ledger.submit(second).await.unwrap();
    let third = RunWrite { state: vec![cas("k", ExpectedValue::Absent, Some(&two))], ..write(run_no) };
    let third = ledger.submit(third).await.unwrap();
    for commit in [first, second, third] {
        commit.await.unwrap();
    }
    assert_eq!(ledger.state_get("scope", "k").unwrap(), Some(two.clone()));

    // Within one write the values are those that it sets itself, and a conflict refuses all of it.
    let both = vec![state("k", Some(&one)), cas("k", ExpectedValue::Value(tag(&one)), Some(&two))];
    set(&ledger, run_no, both).await.unwrap();
    let half = vec![state("other", Some(&one)), cas("k", ExpectedValue::Absent, Some(&one))];
    let refused = RunWrite { state: half, events: deltas(1..=1), ..write(run_no) };
    assert!(matches!(ledger.submit(refused).await, Err(LedgerError::Conflict { .. })));
    assert_eq!(ledger.state_get("scope", "other").unwrap(), None);
    ledger.submit(RunWrite { events: deltas(1..=1), ..write(run_no) }).await.unwrap().await.unwrap();
}

#[tokio::test]
async fn a_value_that_was_expected_and_then_refused_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let (ended, run_no) = (new_run(&ledger).await.run_no, running(&ledger).await);
    finish(&ledger, ended, 1).await;
    // Admitted, and refused by the writer because the run has ended. Until then it is seen.
    let refused = ledger.submit(RunWrite { state: vec![state("k", Some(&json!(1)))], ..write(ended) }).await.unwrap();
    let after = RunWrite { state: vec![cas("k", ExpectedValue::Value(tag(&json!(1))), Some(&json!(2)))], ..write(run_no) };
    let result = match ledger.submit(after).await {
        Ok(commit) => commit.await.map(|_| ()),
        Err(error) => Err(error),
    };
    assert_conflict(result, "k");
    assert!(matches!(refused.await, Err(LedgerError::Terminal { .. })));
    assert_eq!(ledger.state_get("scope", "k").unwrap(), None);
}

#[test]
fn of_two_with_the_same_expectation_one_wins() {
    const THREADS: usize = 4;
    const ROUNDS: u64 = 100;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let runs: Vec<_> = (0..THREADS).map(|_| runtime.block_on(running(&ledger))).collect();
    let wins: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = runs
            .iter()
            .map(|run_no| {
                let (ledger, runtime) = (&ledger, &runtime);
                scope.spawn(move || {
                    let mut wins = 0;
                    loop {
                        let seen = ledger.state_get_tagged("scope", "count").unwrap();
                        let n = seen.as_ref().map_or(0, |(value, _)| value.as_u64().unwrap());
                        if n == ROUNDS {
                            return wins;
                        }
                        let expected = seen.map_or(ExpectedValue::Absent, |(_, tag)| ExpectedValue::Value(tag));
                        let next = json!(n + 1);
                        match runtime.block_on(set(ledger, *run_no, vec![cas("count", expected, Some(&next))])) {
                            Ok(()) => wins += 1,
                            Err(LedgerError::Conflict { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // Every step was made once, by one of them.
    assert_eq!(wins.iter().sum::<u64>(), ROUNDS, "{wins:?}");
}

#[tokio::test]
async fn a_scope_of_state_has_what_it_may_have() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let run_no = running(&ledger).await;
    let within = |max_bytes, max_keys, write| StateWrite { quota: Some(Quota { max_bytes, max_keys }), ..write };
    // `"0123456789"` has 12 bytes, its key one.
    let ten = json!("0123456789");
    set(&ledger, run_no, vec![within(26, 2, state("a", Some(&ten))), within(26, 2, state("b", Some(&ten)))]).await.unwrap();
    assert_eq!(ledger.state_usage("scope").unwrap(), Usage { bytes: 26, keys: 2 });
    let error = set(&ledger, run_no, vec![within(99, 2, state("c", Some(&json!(1))))]).await.unwrap_err();
    assert!(matches!(error, LedgerError::QuotaExceeded { what: "keys", used: 3, limit: 2 }), "{error}");
    let error = set(&ledger, run_no, vec![within(26, 2, state("a", Some(&json!("0123456789x"))))]).await.unwrap_err();
    assert!(matches!(error, LedgerError::QuotaExceeded { what: "bytes", used: 27, limit: 26 }), "{error}");
    assert_eq!(ledger.state_get("scope", "a").unwrap(), Some(ten.clone()));
    // A delete makes room in the same write, or while the quota is exceeded anyway.
    set(&ledger, run_no, vec![state("a", None), within(26, 2, state("c", Some(&ten)))]).await.unwrap();
    set(&ledger, run_no, vec![within(5, 1, state("c", Some(&json!(1))))]).await.unwrap();
    assert_eq!(ledger.state_usage("scope").unwrap(), Usage { bytes: 15, keys: 2 });
    set(&ledger, run_no, vec![state("b", None), state("c", None), state("never", None)]).await.unwrap();
    assert_eq!(ledger.state_usage("scope").unwrap(), Usage::default());
    ledger.close().await.unwrap();
    let report = check(dir.path().join("ledger"), |_| ()).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
}

#[tokio::test]
async fn writes_that_are_committed_together_count_together() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let run_no = running(&ledger).await;
    let quota = Some(Quota { max_bytes: 1_000, max_keys: 10 });
    let mut commits = Vec::new();
    for n in 0..30 {
        let storage = vec![StorageWrite { quota, ..keep(&format!("k{n:02}"), inline(b"x")) }];
        commits.push(ledger.submit(RunWrite { storage, ..write(run_no) }).await.unwrap());
    }
    let mut kept = 0;
    for commit in commits {
        match commit.await {
            Ok(_) => kept += 1,
            Err(LedgerError::QuotaExceeded { what: "keys", used: 11, limit: 10 }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(kept, 10);
    assert_eq!(ledger.storage_usage("area").unwrap(), Usage { bytes: 40, keys: 10 });
    assert_eq!(ledger.storage_keys("area", None, 100).unwrap().len(), 10);
}

#[tokio::test]
async fn storage_keeps_bytes_by_area_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let run_no = running(&ledger).await;
    let large = blob(&ledger, &[7; 100_000]);
    let most = vec![1; STORAGE_INLINE_BYTES];
    store(
        &ledger,
        run_no,
        vec![
            keep("a/1", inline(b"")),
            keep("a/2", inline(&[0, 255, 1])),
            keep("a/3", Some(StorageValue::Blob(large.clone()))),
            keep("b", inline(&most)),
            StorageWrite { area_key: "other".into(), ..keep("a/1", inline(b"theirs")) },
        ],
    )
    .await
    .unwrap();
    let read = |ledger: &Ledger, key: &str| ledger.storage_get("area", key).unwrap();
    let check_all = |ledger: &Ledger| {
        assert_eq!(read(ledger, "a/1"), Some(StorageContent::Inline(Vec::new())));
        assert_eq!(read(ledger, "a/2"), Some(StorageContent::Inline(vec![0, 255, 1])));
        let content = StorageContent::Blob { sha256: large.sha256.clone(), size: 100_000 };
        assert_eq!((content.size(), read(ledger, "a/3")), (100_000, Some(content)));
        assert_eq!(read(ledger, "a"), None);
        assert_eq!(ledger.storage_get("other", "a/1").unwrap(), Some(StorageContent::Inline(b"theirs".to_vec())));
        assert_eq!(ledger.storage_keys("area", None, 100).unwrap(), ["a/1", "a/2", "a/3", "b"]);
        assert_eq!(ledger.storage_keys("area", Some("a/"), 2).unwrap(), ["a/1", "a/2"]);
        assert!(ledger.storage_keys("are", None, 100).unwrap().is_empty());
        let bytes = (10 + 3 + 100_000 + STORAGE_INLINE_BYTES) as u64;
        assert_eq!(ledger.storage_usage("area").unwrap(), Usage { bytes, keys: 4 });
    };
    check_all(&ledger);
    assert!(matches!(ledger.storage_keys("area", None, 0), Err(LedgerError::InvalidLimit(0))));
    for refused in [
        keep("c", inline(&vec![1; STORAGE_INLINE_BYTES + 1])),
        StorageWrite { area_key: "x".repeat(4_000), ..keep(&"k".repeat(100), inline(b"")) },
    ] {
        assert!(matches!(store(&ledger, run_no, vec![refused]).await, Err(LedgerError::Invalid(_))));
    }
    let mut lines = Vec::new();
    ledger.export(&mut lines, |_| ()).unwrap();
    let lines = String::from_utf8(lines).unwrap();
    assert!(lines.contains(r#""key":"a/2","base64":"AP8B","size":3"#), "{lines}");
    assert!(lines.contains(&format!(r#""key":"a/3","sha256":"{}","size":100000"#, large.sha256)), "{lines}");
    ledger.close().await.unwrap();
    let ledger = open(dir.path());
    check_all(&ledger);

    // A blob that is replaced or deleted is garbage.
    let sha256 = large.sha256.clone();
    drop(large);
    store(&ledger, running(&ledger).await, vec![keep("a/3", None)]).await.unwrap();
    let later = agent_host_protocol::time::now() + 1_000_000;
    assert_eq!(ledger.collect_garbage(later).await.unwrap().blobs, 1);
    assert!(ledger.blob(&sha256).unwrap().is_none());
    ledger.close().await.unwrap();
    let report = check(dir.path().join("ledger"), |_| ()).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
    assert!(export(dir.path().join("ledger"), Vec::new(), |_| ()).unwrap().lines > 0);
}

#[tokio::test]
async fn storage_of_the_host_is_of_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let large = blob(&ledger, &[7; 100_000]);
    let sha256 = large.sha256.clone();
    ledger.put_storage(vec![keep("a", Some(StorageValue::Blob(large))), keep("b", inline(b"b"))]).await.unwrap();
    let content = StorageContent::Blob { sha256: sha256.clone(), size: 100_000 };
    assert_eq!(ledger.storage_get("area", "a").unwrap(), Some(content));
    assert_eq!(ledger.storage_usage("area").unwrap(), Usage { bytes: 100_003, keys: 2 });
    // All of it or nothing.
    let quota = Some(Quota { max_bytes: 100_010, max_keys: 10 });
    let refused = ledger.put_storage(vec![keep("b", None), StorageWrite { quota, ..keep("c", inline(&[0; 50])) }]).await;
    assert!(matches!(refused, Err(LedgerError::QuotaExceeded { what: "bytes", .. })), "{refused:?}");
    let long = ledger.put_storage(vec![keep(&"k".repeat(5_000), None)]).await;
    assert!(matches!(long, Err(LedgerError::Invalid(_))), "{long:?}");
    assert_eq!(ledger.storage_keys("area", None, 10).unwrap(), ["a", "b"]);
    ledger.close().await.unwrap();

    let ledger = open(dir.path());
    let later = agent_host_protocol::time::now() + 1_000_000;
    assert_eq!(ledger.collect_garbage(later).await.unwrap().blobs, 0);
    ledger.put_storage(vec![keep("a", None), keep("b", None)]).await.unwrap();
    assert_eq!(ledger.storage_usage("area").unwrap(), Usage::default());
    assert_eq!(ledger.collect_garbage(later).await.unwrap().blobs, 1);
    assert!(ledger.blob(&sha256).unwrap().is_none());
    ledger.close().await.unwrap();
    let report = check(dir.path().join("ledger"), |_| ()).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
}

#[tokio::test]
async fn values_are_there_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Options { checkpoint_interval: std::time::Duration::from_secs(3_600), ..options(dir.path()) }.start();
    let run_no = running(&ledger).await;
    store(&ledger, run_no, vec![keep("k", inline(b"v"))]).await.unwrap();
    set(&ledger, run_no, vec![state("k", Some(&json!(1)))]).await.unwrap();
    let copy = tempfile::tempdir().unwrap();
    crash(dir.path(), copy.path());
    let reopened = open(copy.path());
    assert_eq!(reopened.storage_get("area", "k").unwrap(), Some(StorageContent::Inline(b"v".to_vec())));
    assert_eq!(reopened.storage_usage("area").unwrap(), Usage { bytes: 2, keys: 1 });
    assert_eq!(reopened.state_usage("scope").unwrap(), Usage { bytes: 2, keys: 1 });
}
