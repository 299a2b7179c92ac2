//! A failing log: refused writes are absent, acknowledged writes are present, and the ledger continues.

use std::time::Duration;

use agent_host_protocol::{Run, RunId};

use super::{
    Fault, crash, delta_write,
    disk::{self, Calls, Disk, FaultyCalls, Plan},
    new_run, open, raw,
};
use crate::{AddRun, Health, JournalSegment, Ledger, LedgerError, Options, Park, RunChange, RunWrite, check};

async fn check_goes_on_after(fault: Fault) {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, switches) = open(dir.path(), Duration::from_secs(3600));
    let record = new_run(&ledger).await.unwrap();
    let start =
        RunWrite { run_no: record.run_no, changes: vec![RunChange::Start { at: 1, deadline_at: None }], ..RunWrite::default() };
    ledger.submit(start).await.unwrap().await.unwrap();
    ledger.submit(delta_write(record.run_no, 1)).await.unwrap().await.unwrap();
    for _ in 0..2 {
        switches.log.set(fault);
        assert!(matches!(new_run(&ledger).await, Err(LedgerError::Storage(_))), "{fault:?}");
        assert!(matches!(ledger.submit(delta_write(record.run_no, 2)).await.unwrap().await, Err(LedgerError::Storage(_))));
        assert_eq!(ledger.run(record.run.run_id).unwrap().unwrap().run.last_sequence, 1);
        assert_eq!(ledger.state_get("s", "k").unwrap(), Some(1.into()), "a refused value is seen");
        assert_eq!(ledger.active_runs().unwrap().len(), 1);
        assert!(matches!(ledger.health(), Health::WritesFail { .. }), "{:?}", ledger.health());
    }
    switches.log.set(Fault::None);
    // The writer finds by itself that the disk works again, by a batch without rows.
    let until_ok = async {
        while ledger.health() != Health::Ok {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), until_ok).await.unwrap();
    // The numbers that were refused are given again.
    let other = new_run(&ledger).await.unwrap();
    assert_eq!(other.run_no, record.run_no + 1);
    ledger.submit(delta_write(record.run_no, 2)).await.unwrap().await.unwrap();
    assert_eq!(ledger.state_get("s", "k").unwrap(), Some(2.into()));

    // As after a crash: the log alone has what happened since opening.
    let copy = tempfile::tempdir().unwrap();
    crash(dir.path(), copy.path());
    let reopened = Options::new(copy.path()).open().unwrap();
    assert_eq!(reopened.run(record.run.run_id).unwrap().unwrap().run.last_sequence, 2);
    assert_eq!(reopened.active_runs().unwrap().len(), 2);
    drop(reopened);
    assert!(check(copy.path(), |_| ()).unwrap().is_ok());
    ledger.close().await.unwrap();
    assert!(check(dir.path(), |_| ()).unwrap().is_ok());
}

#[tokio::test]
async fn the_ledger_goes_on_when_a_full_disk_has_space_again() {
    check_goes_on_after(Fault::Write).await;
}

#[tokio::test]
async fn the_ledger_goes_on_after_a_torn_write() {
    check_goes_on_after(Fault::Torn).await;
}

#[tokio::test]
async fn the_ledger_goes_on_after_a_failed_sync() {
    check_goes_on_after(Fault::Sync).await;
}

#[tokio::test]
async fn a_disk_that_does_not_answer_shows_and_what_waits_for_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, switches) = open(dir.path(), Duration::from_secs(3600));
    switches.log.set(Fault::Held);
    let waits = tokio::spawn({
        let ledger = ledger.clone();
        async move { new_run(&ledger).await }
    });
    let until_hanging = async {
        while !matches!(ledger.health(), Health::WritesHang { .. }) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), until_hanging).await.unwrap();
    switches.log.set(Fault::None);
    waits.await.unwrap().unwrap();
    assert_eq!(ledger.health(), Health::Ok);
    ledger.close().await.unwrap();
}

/// The writer ends while it has one operation in hand, and another one is in its queue.
#[tokio::test]
async fn what_waits_for_a_writer_that_fails_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, switches) = open(dir.path(), Duration::from_secs(3600));
    let run_no = new_run(&ledger).await.unwrap().run_no;
    switches.log.set(Fault::Held);
    let in_hand = ledger.submit(delta_write(run_no, 1)).await.unwrap();
    while !switches.log.is_holding() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let in_line = ledger.submit(delta_write(run_no, 2)).await.unwrap();
    ledger.shared().fail("it cannot be used");
    switches.log.set(Fault::Write);
    for commit in [in_hand, in_line] {
        let answer = tokio::time::timeout(Duration::from_secs(30), commit).await.expect("an answer");
        assert!(matches!(answer, Err(LedgerError::Unavailable(_))), "{answer:?}");
    }
}

/// A batch that is larger than a part of the log needs a larger file, which gets the name of the part; then something fails.
#[tokio::test]
async fn a_log_whose_larger_file_is_not_known_to_have_its_name_loses_nothing() {
    // The file is made, gets its name, and the directory is synced.
    for failing in 1..=3 {
        let dir = tempfile::tempdir().unwrap();
        let (disk, options) = (Disk::new(failing), Options { checkpoint_wal_bytes: 100, ..Options::new(dir.path()) });
        let options = Options { checkpoint_interval: Duration::from_secs(3600), ..options };
        disk.begin(Plan::default());
        let ledger = options.clone().open_with(std::sync::Arc::new(disk.clone())).unwrap();
        let fault = FaultyCalls { calls: Calls::Names, from: failing, count: 1, fault: disk::Fault::Fails };
        disk.begin(Plan { faults: vec![fault], ..Plan::default() });
        assert!(matches!(new_run(&ledger).await, Err(LedgerError::Storage(_))), "{failing}");
        let entry = crate::EntryWrite::put("a/b".to_owned(), &1).unwrap();
        ledger.put_entries(&[entry]).await.unwrap();
        let kept = new_run(&ledger).await.unwrap();
        disk.turn_off();
        drop(ledger);
        disk.lose();
        disk.put_into_directory();
        let reopened = options.open().unwrap();
        assert_eq!(reopened.entries("", None, 10).unwrap().len(), 1, "{failing}");
        assert_eq!(reopened.active_runs().unwrap(), [kept], "{failing}");
    }
}

async fn put(ledger: &Ledger, key: &str) -> Result<(), LedgerError> {
    ledger.put_entries(&[crate::EntryWrite::put(key.to_owned(), &1).unwrap()]).await
}

/// Fills parts of the log until so many were merged. The next batch goes to the part behind them.
async fn put_until_merged(ledger: &Ledger, merges: u64) {
    for n in 0.. {
        if ledger.activity().checkpoints >= merges {
            return;
        }
        put(ledger, &format!("a/{n}")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn keys(ledger: &Ledger) -> Vec<String> {
    ledger.entries("", None, 100).unwrap().into_iter().map(|(key, _)| key).collect()
}

/// The log is made anew in another size, a call fails, and the process ends. The next one takes the files that it finds.
#[tokio::test]
async fn a_log_whose_files_have_names_that_are_not_durable_loses_nothing() {
    // Which names are left depends on the seed.
    for seed in 0..8 {
        for failing in 1.. {
            let dir = tempfile::tempdir().unwrap();
            let options = Options { checkpoint_interval: Duration::from_secs(3600), ..Options::new(dir.path()) };
            let options = |checkpoint_wal_bytes| Options { checkpoint_wal_bytes, ..options.clone() };
            let disk = Disk::new(seed);
            let open = |bytes| options(bytes).open_with(std::sync::Arc::new(disk.clone()));
            disk.begin(Plan::default());
            let ledger = open(1_000).unwrap();
            put(&ledger, "0").await.unwrap();
            ledger.close().await.unwrap();
            disk.put_into_directory();
            let fault = FaultyCalls { calls: Calls::Names, from: failing, count: 1, fault: disk::Fault::Fails };
            disk.begin(Plan { faults: vec![fault], ..Plan::default() });
            let is_over = open(600).is_ok();
            disk.begin(Plan::default());
            let ledger = open(600).unwrap();
            put_until_merged(&ledger, 1).await;
            put(&ledger, "b").await.unwrap();
            let kept = keys(&ledger);
            disk.turn_off();
            drop(ledger);
            disk.lose();
            disk.put_into_directory();
            assert_eq!(keys(&options(600).open().unwrap()), kept, "{failing}, {seed}");
            if is_over {
                break;
            }
        }
    }
}

/// As a file system that is mounted read-only does: every call that changes something fails.
#[tokio::test]
async fn a_disk_that_takes_no_writes_is_refused_at_the_start_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(1);
    let open = || Options::new(dir.path()).open_with(std::sync::Arc::new(disk.clone()));
    disk.begin(Plan::default());
    let ledger = open().unwrap();
    put(&ledger, "a").await.unwrap();
    ledger.close().await.unwrap();
    let changes = [Calls::LogWrites, Calls::StoreWrites, Calls::Names];
    // A full disk writes nothing; one that fails may write a part.
    let faults = changes.map(|calls| FaultyCalls { calls, from: 1, count: u64::MAX, fault: disk::Fault::Full });
    disk.begin(Plan { faults: faults.into(), ..Plan::default() });
    let Err(refused) = open() else { panic!("it was opened") };
    assert!(disk.has_failed() && !refused.to_string().is_empty(), "{refused}");
    disk.begin(Plan::default());
    assert_eq!(keys(&open().unwrap()), ["a"]);
}

/// The sync of a batch fails, that of its removal, too, and the process ends. The disk may have the batch, and the next process
/// sees it removed.
#[tokio::test]
async fn a_batch_whose_removal_is_seen_and_not_durable_is_no_damage_later() {
    for (seed, turns) in (0..20).flat_map(|seed| [(seed, 0), (seed, 1)]) {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { checkpoint_interval: Duration::from_secs(3600), ..Options::new(dir.path()) };
        let options = Options { checkpoint_wal_bytes: 600, ..options };
        let disk = Disk::new(seed);
        let open = || options.clone().open_with(std::sync::Arc::new(disk.clone())).unwrap();
        disk.begin(Plan::default());
        let ledger = open();
        put_until_merged(&ledger, turns).await;
        put(&ledger, "b").await.unwrap();
        // The header, the payload and the sync; the removal and its sync.
        let faults = [3, 5].map(|from| FaultyCalls { calls: Calls::LogWrites, from, count: 1, fault: disk::Fault::Fails });
        disk.begin(Plan { faults: faults.into(), ..Plan::default() });
        assert!(matches!(put(&ledger, "c").await, Err(LedgerError::Storage(_))));
        disk.turn_off();
        drop(ledger);
        disk.begin(Plan::default());
        let ledger = open();
        let mut kept = keys(&ledger);
        put(&ledger, "d").await.unwrap();
        kept.push("d".to_owned());
        disk.turn_off();
        drop(ledger);
        disk.lose();
        disk.put_into_directory();
        let ledger = options.open().unwrap_or_else(|error| panic!("{seed}, {turns}: {error}"));
        assert_eq!(keys(&ledger), kept, "{seed}, {turns}");
    }
}

#[tokio::test]
async fn a_write_refused_by_a_failed_sync_is_absent_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, switches) = open(dir.path(), Duration::from_secs(3600));
    let kept = new_run(&ledger).await.unwrap();
    switches.log.set(Fault::Sync);
    assert!(new_run(&ledger).await.is_err());
    let copy = tempfile::tempdir().unwrap();
    crash(dir.path(), copy.path());
    let reopened = Options::new(copy.path()).open().unwrap();
    assert_eq!(reopened.active_runs().unwrap(), [kept]);
}

/// Remains of a refused batch, and of its removal, are not taken for damage to an acknowledged one.
#[tokio::test]
async fn a_refused_batch_is_no_damage_after_a_crash() {
    for fault in [Fault::Write, Fault::Torn, Fault::Sync] {
        // The header, the payload, the removal.
        for after in 0..4 {
            let dir = tempfile::tempdir().unwrap();
            let (ledger, switches) = open(dir.path(), Duration::from_secs(3600));
            let mut kept = vec![new_run(&ledger).await.unwrap(), new_run(&ledger).await.unwrap()];
            let reopened = |what: &str| {
                let copy = tempfile::tempdir().unwrap();
                crash(dir.path(), copy.path());
                let checked = check(copy.path(), |_| ());
                assert!(checked.as_ref().is_ok_and(crate::CheckReport::is_ok), "{fault:?} after {after}, {what}: {checked:?}");
                Options::new(copy.path()).open().unwrap().active_runs().unwrap()
            };
            switches.log.set_after(after, fault);
            let refused = new_run(&ledger).await;
            let found = reopened("refused");
            // A batch whose answer is an error may be there where its removal failed, too.
            assert!(found.starts_with(&kept) && found.len() <= kept.len() + 1, "{fault:?} after {after}");
            kept.extend(refused.ok());
            switches.log.set(Fault::None);
            kept.push(new_run(&ledger).await.unwrap());
            kept.push(new_run(&ledger).await.unwrap());
            assert_eq!(reopened("later"), kept, "{fault:?} after {after}");
        }
    }
}

/// A park, a journal and a fork that were refused are gone from memory and from the store, and can be made again.
#[tokio::test]
async fn a_refused_batch_neither_parks_nor_forks() {
    for fault in [Fault::Write, Fault::Torn, Fault::Sync] {
        let dir = tempfile::tempdir().unwrap();
        let (ledger, switches) = open(dir.path(), Duration::from_secs(3600));
        let record = new_run(&ledger).await.unwrap();
        let run_no = record.run_no;
        let segment = |first| Some(JournalSegment { first, bytes: vec![1], blobs: Vec::new() });
        let park = || RunWrite {
            run_no,
            changes: vec![RunChange::Wait { at: 1, reason: "r".into() }],
            park: Some(Park { wake_at: 5, keys: vec!["k".into()] }),
            journal: segment(2),
            ..RunWrite::default()
        };
        let resume = || RunWrite {
            run_no,
            changes: vec![RunChange::Retry { at: 1, deadline_at: None }],
            journal: segment(1),
            ..RunWrite::default()
        };
        let start = RunChange::Start { at: 1, deadline_at: None };
        let start = RunWrite { run_no, changes: vec![start], journal: segment(1), ..RunWrite::default() };
        ledger.submit(start).await.unwrap().await.unwrap();
        let fork = || AddRun {
            run: Run { run_id: RunId::new(), ..(*record.run).clone() },
            terms: raw("{}"),
            context: None,
            events: Vec::new(),
            journal: segment(1),
            entries: Vec::new(),
        };
        let firsts = || ledger.journal_page(run_no, 0, 100).unwrap().iter().map(|row| row.first).collect::<Vec<_>>();
        let seen = |ledger: &Ledger| {
            let in_memory = ledger.stats().unwrap().active_in_memory;
            (ledger.parked_count(), ledger.parked_on("k", 9).unwrap().len(), in_memory, firsts())
        };

        switches.log.set(fault);
        assert!(matches!(ledger.submit(park()).await.unwrap().await, Err(LedgerError::Storage(_))), "{fault:?}");
        assert!(matches!(ledger.add_run(fork()).await, Err(LedgerError::Storage(_))));
        assert_eq!((seen(&ledger), ledger.event(record.run.event_id).unwrap().unwrap().runs.len()), ((0, 0, 1, vec![1]), 1));
        switches.log.set(Fault::None);
        ledger.submit(park()).await.unwrap().await.unwrap();
        assert_eq!(seen(&ledger), (1, 1, 0, vec![1, 2]));
        switches.log.set(fault);
        assert!(matches!(ledger.submit(resume()).await.unwrap().await, Err(LedgerError::Storage(_))));
        assert_eq!(seen(&ledger), (1, 1, 0, vec![1, 2]), "{fault:?}: the refused retry left a trace");
        switches.log.set(Fault::None);
        ledger.submit(resume()).await.unwrap().await.unwrap();
        assert_eq!(seen(&ledger), (0, 0, 1, vec![1]));
        assert_eq!(ledger.add_run(fork()).await.unwrap().run_no, run_no + 1);
        assert_eq!(ledger.event(record.run.event_id).unwrap().unwrap().runs.len(), 2);
        ledger.close().await.unwrap();
        assert!(check(dir.path(), |_| ()).unwrap().is_ok());
    }
}

#[tokio::test]
async fn a_blob_is_kept_while_the_journal_that_names_it_is_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, switches) = open(dir.path(), Duration::from_secs(3600));
    let run_no = new_run(&ledger).await.unwrap().run_no;
    let mut writer = ledger.blob_writer(100).unwrap();
    writer.write(b"content").unwrap();
    let blob = writer.finish().unwrap();
    let sha256 = blob.sha256.clone();
    switches.log.set(Fault::Slow);
    let journal = Some(JournalSegment { first: 1, bytes: Vec::new(), blobs: vec![blob] });
    let commit = ledger.submit(RunWrite { run_no, journal, ..RunWrite::default() }).await.unwrap();
    // The writer waits for the disk meanwhile.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let later = agent_host_protocol::time::now() + 1_000_000_000;
    assert_eq!(ledger.collect_garbage(later).await.unwrap().blobs, 0);
    commit.await.unwrap();
    assert_eq!(ledger.collect_garbage(later).await.unwrap().blobs, 0);
    assert!(ledger.blob(&sha256).unwrap().is_some());
}

#[tokio::test]
async fn many_rounds_of_the_log_and_a_crash_in_each_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut runs = 0;
    for round in 0..6 {
        let (ledger, _) = open(dir.path(), Duration::from_millis(if round % 2 == 0 { 1 } else { 3_600_000 }));
        for _ in 0..30 {
            new_run(&ledger).await.unwrap();
            runs += 1;
        }
        let copy = tempfile::tempdir().unwrap();
        // A merge while the files are copied is what a crash cannot do.
        while round % 2 == 0 && ledger.activity().log_bytes > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        crash(dir.path(), copy.path());
        let reopened = Options::new(copy.path()).open().unwrap();
        assert_eq!(reopened.active_runs().unwrap().len(), runs, "round {round}");
        drop(reopened);
        assert!(check(copy.path(), |_| ()).unwrap().is_ok());
    }
}
