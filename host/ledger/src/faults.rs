//! A log that fails: what was refused is gone, what was answered is there, and the ledger goes on.

use std::{
    fs::File,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use agent_host_protocol::{Event, EventId, Run, RunId, RunStatus, event::Envelope};
use serde_json::{Map, value::RawValue};

use crate::{
    Accept, Accepted, Health, Ledger, LedgerError, NewEvent, NewRun, Options, RunChange, RunRecord, RunWrite, StateWrite, check,
    log::LogFile,
};

#[derive(Debug, Clone, Copy)]
#[repr(u8)]
enum Fault {
    None,
    /// The disk is full: nothing is written.
    Write,
    /// Half of it is written, then the disk is full.
    Torn,
    /// All is written, but not known to be durable.
    Sync,
}

#[derive(Clone, Default)]
struct Switch(Arc<AtomicU8>);

impl Switch {
    fn set(&self, fault: Fault) {
        self.0.store(fault as u8, Ordering::SeqCst);
    }

    fn is(&self, fault: Fault) -> bool {
        self.0.load(Ordering::SeqCst) == fault as u8
    }
}

struct Failing {
    file: File,
    switch: Switch,
}

impl LogFile for Failing {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.switch.is(Fault::Write) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if self.switch.is(Fault::Torn) {
            LogFile::write_at(&mut self.file, &bytes[..bytes.len() / 2], offset)?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        LogFile::write_at(&mut self.file, bytes, offset)
    }

    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        LogFile::read_at(&mut self.file, bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.switch.is(Fault::Sync) {
            return Err(io::Error::other("the sync failed"));
        }
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        LogFile::len(&self.file)
    }
}

fn open(dir: &Path, interval: Duration) -> (Ledger, Switch) {
    let switch = Switch::default();
    let failing = switch.clone();
    let options = Options { checkpoint_interval: interval, checkpoint_wal_bytes: 1 << 20, ..Options::new(dir) };
    let ledger = options.open_with_log(Some(Box::new(|file| Box::new(Failing { file, switch: failing })))).unwrap();
    (ledger, switch)
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn accept() -> Accept {
    let event = Event { event_id: EventId::new(), received_at: 1, envelope: Envelope::message("x", "api") };
    let run = Run {
        run_id: RunId::new(),
        event_id: event.event_id,
        binding_id: "main".into(),
        runner_id: "plugin:a/b/c".parse().unwrap(),
        runner_version: "1".into(),
        conversation_id: None,
        thread_id: None,
        workspace_id: None,
        bot_id: None,
        status: RunStatus::Created,
        status_reason: None,
        failure: None,
        attempt: 1,
        created_at: 1,
        started_at: None,
        finished_at: None,
        updated_at: 1,
        deadline_at: None,
        cancel_requested_at: None,
        cancel_reason: None,
        last_sequence: 0,
        usage: None,
        metadata: Map::new(),
    };
    Accept {
        event,
        idempotency: None,
        runs: vec![NewRun { run, terms: raw("{}") }],
        transcript: None,
        artifacts: Vec::new(),
        refers_to: Vec::new(),
    }
}

async fn new_run(ledger: &Ledger) -> Result<RunRecord, LedgerError> {
    match ledger.accept(accept()).await? {
        Accepted::New { mut runs, .. } => Ok(runs.remove(0)),
        Accepted::Repeated { .. } => panic!("repeated"),
    }
}

fn said(run_no: u64, sequence: u64) -> RunWrite {
    let events = vec![NewEvent { sequence, kind: "message.delta".into(), data: raw("{}"), timestamp: 1 }];
    let state = vec![StateWrite {
        scope_key: "s".into(),
        key: "k".into(),
        value: Some(raw(&sequence.to_string())),
        ..StateWrite::default()
    }];
    RunWrite { run_no, events, state, ..RunWrite::default() }
}

async fn check_goes_on_after(fault: Fault) {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, switch) = open(dir.path(), Duration::from_secs(3600));
    let record = new_run(&ledger).await.unwrap();
    let start =
        RunWrite { run_no: record.run_no, changes: vec![RunChange::Start { at: 1, deadline_at: None }], ..RunWrite::default() };
    ledger.submit(start).await.unwrap().await.unwrap();
    ledger.submit(said(record.run_no, 1)).await.unwrap().await.unwrap();
    for _ in 0..2 {
        switch.set(fault);
        assert!(matches!(new_run(&ledger).await, Err(LedgerError::Storage(_))), "{fault:?}");
        assert!(matches!(ledger.submit(said(record.run_no, 2)).await.unwrap().await, Err(LedgerError::Storage(_))));
        assert_eq!(ledger.run(record.run.run_id).unwrap().unwrap().run.last_sequence, 1);
        assert_eq!(ledger.state_get("s", "k").unwrap(), Some(1.into()), "a refused value is seen");
        assert_eq!(ledger.active_runs().unwrap().len(), 1);
        assert_eq!(ledger.health(), Health::Ok);
    }
    switch.set(Fault::None);
    // The numbers that were refused are given again.
    let other = new_run(&ledger).await.unwrap();
    assert_eq!(other.run_no, record.run_no + 1);
    ledger.submit(said(record.run_no, 2)).await.unwrap().await.unwrap();
    assert_eq!(ledger.state_get("s", "k").unwrap(), Some(2.into()));

    // As after a crash: the log alone has what happened since opening.
    let copy = tempfile::tempdir().unwrap();
    for file in ["ledger.redb", "ledger.wal"] {
        std::fs::copy(dir.path().join(file), copy.path().join(file)).unwrap();
    }
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
async fn what_was_refused_for_a_failed_sync_is_not_there_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, switch) = open(dir.path(), Duration::from_secs(3600));
    let kept = new_run(&ledger).await.unwrap();
    switch.set(Fault::Sync);
    assert!(new_run(&ledger).await.is_err());
    let copy = tempfile::tempdir().unwrap();
    for file in ["ledger.redb", "ledger.wal"] {
        std::fs::copy(dir.path().join(file), copy.path().join(file)).unwrap();
    }
    let reopened = Options::new(copy.path()).open().unwrap();
    assert_eq!(reopened.active_runs().unwrap(), [kept]);
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
        for file in ["ledger.redb", "ledger.wal"] {
            // The order of the copies matters: a checkpoint in between is what a crash cannot do.
            if round % 2 == 0 {
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            std::fs::copy(dir.path().join(file), copy.path().join(file)).unwrap();
        }
        let reopened = Options::new(copy.path()).open().unwrap();
        assert_eq!(reopened.active_runs().unwrap().len(), runs, "round {round}");
        drop(reopened);
        assert!(check(copy.path(), |_| ()).unwrap().is_ok());
    }
}
