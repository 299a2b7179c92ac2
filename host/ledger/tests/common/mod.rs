//! Helpers of the ledger's tests.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

#[allow(dead_code, unused_imports, reason = "not every test file has a database")]
pub mod postgres;
#[allow(dead_code, reason = "not every test file has a network")]
pub mod proxy;

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use agent_host_ledger::{
    Accept, AcceptOutcome, ArtifactRecord, ArtifactScope, Blob, ClusterOptions, DEFAULT_LEASE, Ledger, NewEvent, NewItem, NewRun,
    Options, PostgresServer, RunChange, RunRecord, RunWrite, Standby, StateWrite, check, init_cluster,
};
use agent_host_protocol::{
    Event, EventId, Run, RunId, RunStatus,
    event::Envelope,
    grant::ConversationKey,
    message::ContentPart,
    run::{RunCompletion, RunFailure, Terminal},
};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

pub fn options(dir: &Path) -> Options {
    Options {
        checkpoint_interval: Duration::from_millis(20),
        checkpoint_wal_bytes: 64 * 1024,
        ..Options::new(dir.join("ledger"))
    }
}

/// The files of the rows, in the folder of a ledger.
pub const FILES: [&str; 3] = ["ledger.redb", "ledger-1.wal", "ledger-2.wal"];

/// Copies `dir/ledger` as a crash leaves it to `copy/ledger`. No merge may be under way: a copy takes longer than a crash.
pub fn crash(dir: &Path, copy: &Path) {
    std::fs::create_dir_all(copy.join("ledger")).unwrap();
    for file in FILES {
        if crate::LOG == LogPlace::Files || file == FILES[0] {
            std::fs::copy(dir.join("ledger").join(file), copy.join("ledger").join(file)).unwrap();
        }
    }
    if crate::LOG == LogPlace::Postgres {
        // The copy has a log of its own, with what is committed at this moment.
        let url = database_of(&dir.join("ledger"));
        let name = url.split(['/', '?']).nth(3).unwrap();
        let copied = format!("{name}_{:x}", std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), copy) >> 32);
        postgres::shared().clone_database(name, &copied);
        std::fs::write(copy.join(DATABASE), url.replace(name, &copied)).unwrap();
    }
}

/// The place of the log of a test's ledgers: `crate::LOG`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LogPlace {
    Files,
    Postgres,
}

/// Opens a ledger whose log is where `crate::LOG` says.
pub trait Start {
    fn start(self) -> Ledger;
}

impl Start for Options {
    fn start(self) -> Ledger {
        if crate::LOG == LogPlace::Files {
            return self.open().unwrap();
        }
        let server = PostgresServer::parse(&database_of(&self.dir), None).unwrap();
        let advertise = format!("{}:1", self.dir.display());
        let cluster =
            ClusterOptions { server, advertise, version: "test".to_owned(), lease: DEFAULT_LEASE, followers: 1, blobs: None };
        Standby::join(self, &cluster).unwrap().activate(|| false, |_| ()).unwrap().unwrap()
    }
}

/// The URL of the database of a ledger's log, which a file beside the ledger keeps. A new one has a new cluster.
fn database_of(ledger: &Path) -> String {
    let file = ledger.parent().unwrap().join(DATABASE);
    std::fs::read_to_string(&file).unwrap_or_else(|_| {
        let name = format!("ledger_{:016x}", std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ledger));
        postgres::shared().create(&name);
        let url = postgres::shared().url(&name);
        init_cluster(&PostgresServer::parse(&url, None).unwrap(), None, 1).unwrap();
        std::fs::write(&file, &url).unwrap();
        url
    })
}

/// The file with the URL of a database.
const DATABASE: &str = "database";

/// Makes the database of the ledgers in `dir`, where they need one, for processes that this one starts.
pub fn prepare(dir: &Path) {
    if crate::LOG == LogPlace::Postgres {
        database_of(&dir.join("ledger"));
    }
}

pub fn open(dir: &Path) -> Ledger {
    options(dir).start()
}

/// The export of a ledger.
pub fn exported(ledger: &Ledger) -> String {
    let mut out = Vec::new();
    ledger.export(&mut out, |_| ()).unwrap();
    String::from_utf8(out).unwrap()
}

/// Fails if `ledger check` finds anything in the closed ledger of `dir`.
pub fn is_whole(dir: &Path) {
    let report = check(dir.join("ledger"), |_| ()).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
}

pub fn raw<T: From<Box<RawValue>>>(value: &Value) -> T {
    T::from(to_raw_value(value).unwrap())
}

pub fn event() -> Event {
    Event { event_id: EventId::new(), received_at: 1_000, envelope: Envelope::message("hello", "api") }
}

/// An event of a conversation.
pub fn event_in(name: &str, event_type: &str) -> Event {
    let mut event = event();
    event.envelope.event_type = event_type.into();
    let place = json!({ "workspace_id": "w", "conversation_id": name });
    event.envelope.conversation = Some(serde_json::from_value(place).unwrap());
    event
}

/// An active run.
pub async fn running(ledger: &Ledger) -> u64 {
    let run_no = new_run(ledger).await.run_no;
    ledger.submit(RunWrite { changes: vec![start()], ..write(run_no) }).await.unwrap().await.unwrap();
    run_no
}

/// A blob with this content.
pub fn blob(ledger: &Ledger, content: &[u8]) -> Blob {
    let mut writer = ledger.blob_writer(1 << 30).unwrap();
    writer.write(content).unwrap();
    writer.finish().unwrap()
}

/// The record of an artifact with this blob.
pub fn artifact(id: &str, blob: &Blob, source: &str) -> ArtifactRecord {
    ArtifactRecord {
        artifact_id: id.into(),
        sha256: blob.sha256.clone(),
        size: blob.size,
        media_type: "text/plain".into(),
        name: None,
        created_at: agent_host_protocol::time::now(),
        expires_at: None,
        scope: ArtifactScope::default(),
        source: source.into(),
    }
}

pub fn run_of(event: &Event) -> Run {
    Run {
        run_id: RunId::new(),
        parent_run_id: None,
        retry_of: None,
        execution: agent_host_protocol::run::Execution::Host,
        queue: None,
        event_id: event.event_id,
        agent_id: "main".into(),
        binding_id: "main".into(),
        runner_id: "plugin:demo/echo/default".parse().unwrap(),
        runner_version: "1.0.0".into(),
        conversation_id: None,
        thread_id: None,
        workspace_id: None,
        bot_id: None,
        turn: None,
        status: RunStatus::Created,
        status_reason: None,
        failure: None,
        attempt: 1,
        resumes: 0,
        created_at: 1_000,
        started_at: None,
        finished_at: None,
        updated_at: 1_000,
        deadline_at: None,
        cancel_requested_at: None,
        cancel_reason: None,
        last_sequence: 0,
        record_digest: None,
        usage: None,
        usage_by_model: BTreeMap::new(),
        claimed_usage: None,
        children_usage: None,
        metadata: serde_json::Map::new(),
    }
}

pub fn accept(event: Event, runs: Vec<Run>) -> Accept {
    let runs = runs
        .into_iter()
        .map(|run| NewRun { run, terms: raw(&serde_json::json!({ "granted": [] })), events: Vec::new() })
        .collect();
    Accept {
        event: Arc::new(event),
        idempotency: None,
        runs,
        history: Vec::new(),
        transcript: None,
        artifacts: Vec::new(),
        refers_to: Vec::new(),
        entries: Vec::new(),
        state: Vec::new(),
        branch: None,
    }
}

pub async fn new_runs(ledger: &Ledger, count: usize) -> Vec<RunRecord> {
    let event = event();
    let runs = (0..count).map(|_| run_of(&event)).collect();
    match ledger.accept(accept(event, runs)).await.unwrap() {
        AcceptOutcome::New { runs, .. } => runs,
        AcceptOutcome::Repeated { .. } => panic!("a new event was taken for a repeated one"),
    }
}

pub async fn new_run(ledger: &Ledger) -> RunRecord {
    new_runs(ledger, 1).await.remove(0)
}

pub fn new_event(sequence: u64, kind: &str) -> NewEvent {
    NewEvent {
        sequence,
        kind: kind.to_owned().into(),
        data: raw(&serde_json::json!({ "n": sequence })),
        timestamp: 1_000 + sequence,
        source: agent_host_protocol::EventSource::of_stored(kind),
        metadata: None,
    }
}

pub fn deltas(range: std::ops::RangeInclusive<u64>) -> Vec<NewEvent> {
    range.map(|sequence| new_event(sequence, "message.delta")).collect()
}

pub fn start() -> RunChange {
    RunChange::Start { at: 2_000, deadline_at: Some(9_000) }
}

pub fn completed() -> RunChange {
    let completion = RunCompletion { finish_reason: "stop".into(), message: None, usage: None, metadata: None };
    RunChange::End { at: 3_000, terminal: Terminal::Completed(completion) }
}

pub fn failed() -> RunChange {
    let failure = RunFailure { code: "runner.error".into(), message: "no".into(), retryable: false, details: None };
    RunChange::End { at: 3_000, terminal: Terminal::Failed(failure) }
}

pub fn write(run_no: u64) -> RunWrite {
    RunWrite { run_no, ..RunWrite::default() }
}

/// Starts a run, gives it `events` deltas, and ends it.
pub async fn finish(ledger: &Ledger, run_no: u64, events: u64) -> Arc<Run> {
    let mut all = deltas(1..=events);
    all.push(new_event(events + 1, "run.completed"));
    let write = RunWrite { changes: vec![start(), completed()], events: all, ..write(run_no) };
    ledger.submit(write).await.unwrap().await.unwrap()
}

pub fn state(key: &str, value: Option<&Value>) -> StateWrite {
    StateWrite { scope_key: "scope".into(), key: key.into(), value: value.map(raw), ..StateWrite::default() }
}

pub fn conversation(name: &str) -> ConversationKey {
    ConversationKey::new("w", name, "")
}

pub fn item(name: &str, text: &str, event_id: EventId) -> NewItem {
    NewItem {
        conversation: conversation(name),
        event_id,
        run_id: None,
        role: "user".into(),
        item_type: "message".into(),
        content: vec![ContentPart::Text(text.into())],
        artifacts: Vec::new(),
        created_at: 1_000,
    }
}

/// The audit records before a place, newest first.
pub fn audit_before(ledger: &Ledger, from: u64, limit: u32) -> agent_host_ledger::FeedStep<agent_host_ledger::AuditRecord> {
    let direction = agent_host_protocol::page::Direction::Backward;
    ledger.audit_feed(agent_host_ledger::FeedBounds { direction, from, limit, examined: 1_000 }, |_| true).unwrap()
}
