//! State that comes with an event, and conversations that are forgotten.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use std::{fs, time::Duration};

use crate::common::*;
use agent_host_ledger::{
    Accept, AcceptOutcome, ArtifactScope, Backup, DeletedData, ExpectedValue, Forget, Idempotency, JournalSegment, Ledger,
    LedgerError, NewEvent, NewItem, Options, Park, Quota, RunChange, RunFilter, RunRecord, RunWrite, StateWrite, UPLOAD, restore,
    state_tag,
};
use agent_host_protocol::{
    Event, Run, RunStatus,
    page::Direction,
    run::{RunCompletion, RunFailure, Terminal},
    time::now,
};
use serde_json::{Value, json};

/// A text that must not be found after the deletion.
const SECRET: &str = "the-word-that-was-said";

fn value(key: &str, value: &Value, expected: Option<ExpectedValue>) -> StateWrite {
    let quota = Some(Quota { max_bytes: 100, max_keys: 2 });
    StateWrite { expected, quota, ..state(key, Some(value)) }
}

#[tokio::test]
async fn state_that_comes_with_an_event_is_written_with_it_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let with = |key: &str, hash: u8, state: Vec<StateWrite>| {
        let event = event();
        let run = run_of(&event);
        let idempotency = Some(Idempotency { key: key.into(), body_hash: [hash; 32] });
        Accept { state, idempotency, ..accept(Event { received_at: now(), ..event }, vec![run]) }
    };
    let first = vec![value("a", &json!(1), None), value("b", &json!({ "x": [] }), Some(ExpectedValue::Absent))];
    assert!(matches!(ledger.accept(with("k", 1, first)).await.unwrap(), AcceptOutcome::New { .. }));
    let shown = |ledger: &Ledger| ledger.state_scope("scope", 1 << 20).unwrap();
    let expected = json!({ "a": 1, "b": { "x": [] } });
    assert_eq!(Value::from(shown(&ledger)), expected);

    // A repeated request changes nothing.
    let again = ledger.accept(with("k", 1, vec![value("a", &json!(2), None)])).await.unwrap();
    assert!(matches!(again, AcceptOutcome::Repeated { .. }));
    // A third key is over the quota, and so are too many bytes; a value that is not as expected is refused as well.
    let runs = ledger.runs_page(&RunFilter::default(), None, 100).unwrap().items.len();
    let refused = ledger.accept(with("l", 1, vec![value("a", &json!(3), None), value("c", &json!(1), None)])).await;
    assert!(matches!(refused, Err(LedgerError::QuotaExceeded { what: "keys", used: 3, limit: 2 })), "{refused:?}");
    let refused = ledger.accept(with("l", 1, vec![value("a", &json!("x".repeat(100)), None)])).await;
    assert!(matches!(refused, Err(LedgerError::QuotaExceeded { what: "bytes", .. })), "{refused:?}");
    for wrong in [ExpectedValue::Absent, ExpectedValue::Value(state_tag("7"))] {
        let refused = ledger.accept(with("l", 1, vec![value("a", &json!(3), Some(wrong))])).await;
        assert!(matches!(refused, Err(LedgerError::Conflict { .. })), "{refused:?}");
    }
    assert_eq!(ledger.runs_page(&RunFilter::default(), None, 100).unwrap().items.len(), runs);
    assert_eq!(Value::from(shown(&ledger)), expected);

    // A refused request did not use up the key.
    let right = vec![
        value("a", &json!(4), Some(ExpectedValue::Value(state_tag("1")))),
        StateWrite { value: None, ..value("b", &json!(0), None) },
    ];
    assert!(matches!(ledger.accept(with("l", 1, right)).await.unwrap(), AcceptOutcome::New { .. }));
    assert_eq!(Value::from(shown(&ledger)), json!({ "a": 4 }));
    assert_eq!(ledger.state_usage("scope").unwrap().keys, 1);
    ledger.close().await.unwrap();
    assert_eq!(Value::from(shown(&open(dir.path()))), json!({ "a": 4 }));
}

fn run_in(event: &Event, name: &str) -> Run {
    Run { conversation_id: Some(name.into()), workspace_id: Some("w".into()), ..run_of(event) }
}

fn scope(name: &str) -> ArtifactScope {
    ArtifactScope { workspace: "w".into(), conversation: Some(conversation(name)), ..ArtifactScope::default() }
}

fn message_item(event: &Event, name: &str, role: &'static str) -> NewItem {
    NewItem { role: role.into(), ..item(name, SECRET, event.event_id) }
}

fn event_of(sequence: u64, kind: &str, data: &Value) -> NewEvent {
    NewEvent { data: raw(data), ..new_event(sequence, kind) }
}

/// An event of a conversation with a run that has everything that a run can leave, and has ended.
async fn spoken(ledger: &Ledger, name: &str, deltas: u64, fails: bool) -> RunRecord {
    let mut event = event_in(name, "message.received");
    event.envelope.input.text = Some(SECRET.into());
    event.envelope.data.insert("note".into(), SECRET.into());
    event.envelope.actor = Some(serde_json::from_value(json!({ "actor_type": "user", "actor_id": SECRET })).unwrap());
    let mut run = run_in(&event, name);
    run.metadata.insert("objective".into(), SECRET.into());
    let upload = blob(ledger, format!("{SECRET} {}", event.event_id).as_bytes());
    let upload =
        agent_host_ledger::ArtifactRecord { scope: scope(name), ..artifact(&event.event_id.to_string(), &upload, UPLOAD) };
    let new = Accept {
        transcript: Some(message_item(&event, name, "user")),
        artifacts: vec![upload],
        state: vec![StateWrite { scope_key: format!("state/{name}"), ..state("k", Some(&json!(SECRET))) }],
        ..accept(event.clone(), vec![run])
    };
    let AcceptOutcome::New { runs, .. } = ledger.accept(new).await.unwrap() else { panic!("it is new") };
    let RunRecord { run_no, .. } = runs[0];
    let kept = blob(ledger, format!("journal {SECRET} {run_no}").as_bytes());
    let segment = JournalSegment { first: 1, bytes: SECRET.into(), blobs: vec![kept] };
    let mut events: Vec<_> = (1..=deltas).map(|n| event_of(n, "message.delta", &json!({ "text": SECRET }))).collect();
    let last = deltas + 1;
    let end = if fails {
        let failure = RunFailure {
            code: "acme.broken".into(),
            message: SECRET.into(),
            retryable: true,
            details: Some(json!({ "log": SECRET })),
        };
        events.push(event_of(last, "run.failed", &serde_json::to_value(&failure).unwrap()));
        Terminal::Failed(failure)
    } else {
        let message = serde_json::from_value(json!({ "role": "assistant", "content": SECRET })).unwrap();
        let completion = RunCompletion {
            finish_reason: "stop".into(),
            message: Some(message),
            usage: None,
            metadata: Some(json!({ "note": SECRET })),
        };
        events.push(event_of(last, "run.completed", &serde_json::to_value(&completion).unwrap()));
        Terminal::Completed(completion)
    };
    let made = blob(ledger, format!("made {SECRET} {run_no}").as_bytes());
    let made_scope = ArtifactScope { run_id: Some(runs[0].run.run_id), ..ArtifactScope::default() };
    let made = agent_host_ledger::ArtifactRecord {
        scope: made_scope,
        expires_at: Some(now() + 1_000_000),
        ..artifact(&runs[0].run.run_id.to_string(), &made, "runner")
    };
    let write = RunWrite {
        changes: vec![
            start(),
            RunChange::CancelRequested { at: 1, reason: SECRET.into() },
            RunChange::End { at: 3_000, terminal: end },
        ],
        context: Some(raw(&json!({ "input": SECRET }))),
        events,
        transcript: vec![message_item(&event, name, "assistant")],
        artifacts: vec![made],
        journal: Some(segment),
        ..write(run_no)
    };
    let run = ledger.submit(write).await.unwrap().await.unwrap();
    RunRecord { run_no, run }
}

fn forget(name: &str, runs: &[&RunRecord]) -> Forget {
    Forget {
        conversation: conversation(name),
        runs: runs.iter().map(|record| (record.run_no, record.run.run_id)).collect(),
        state: vec![format!("state/{name}")],
        waits: format!("conversation/{name}"),
    }
}

fn transcript(ledger: &Ledger, name: &str, direction: Direction) -> Vec<u64> {
    let page = ledger.transcript(&conversation(name), None, None, 100, direction).unwrap();
    page.items.into_iter().map(|item| item.seq).collect()
}

#[tokio::test]
async fn a_deleted_conversation_is_gone_and_the_others_are_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let eager = || Options { blob_grace: Duration::ZERO, ..options(dir.path()) }.start();
    let ledger = eager();
    let (first, second) = (spoken(&ledger, "c", 3, false).await, spoken(&ledger, "c", 0, true).await);
    let other = spoken(&ledger, "other", 2, false).await;
    let before = ledger.run(other.run.run_id).unwrap().unwrap();
    assert_eq!(ledger.conversation_runs(&conversation("c")).unwrap(), [first.clone(), second.clone()]);
    assert!(exported(&ledger).matches(SECRET).count() > 20);

    let done = ledger.forget_conversation(forget("c", &[&first, &second])).await.unwrap();
    assert_eq!(done, DeletedData { values: 1, items: 4, artifacts: 4, runs: 2, events: 2 });
    assert_eq!(ledger.forget_conversation(forget("c", &[&first, &second])).await.unwrap(), DeletedData::default());

    // The one conversation is empty, the other complete.
    assert_eq!(transcript(&ledger, "c", Direction::Forward), [0; 0]);
    assert_eq!(transcript(&ledger, "c", Direction::Backward), [0; 0]);
    assert_eq!(ledger.transcript_items(&conversation("c"), &[1, 2, 3, 4]).unwrap(), []);
    assert_eq!(ledger.transcript_range(&conversation("c"), 0, 10).unwrap(), []);
    assert_eq!(ledger.state_get("state/c", "k").unwrap(), None);
    assert_eq!(ledger.state_usage("state/c").unwrap().keys, 0);
    for (record, kind, left) in [(&first, "run.completed", 4), (&second, "run.failed", 1)] {
        let (run_no, id) = (record.run_no, record.run.run_id);
        let run = ledger.run(id).unwrap().unwrap().run;
        assert_eq!((run.status, run.last_sequence, run.finished_at), (record.run.status, left, record.run.finished_at));
        assert_eq!(Value::from(run.metadata.clone()), json!({ "forgotten": true }));
        assert_eq!(run.failure.as_ref().map(|failure| failure.code.as_str()), (kind == "run.failed").then_some("acme.broken"));
        let events = ledger.run_events_after(run_no, id, 0, 100).unwrap();
        assert_eq!(events.iter().map(|event| (event.sequence, event.kind.as_str())).collect::<Vec<_>>(), [(left, kind)]);
        assert!(events[0].is_terminal() && serde_json::from_str::<Value>(events[0].data.get()).unwrap().is_object());
        assert!(ledger.context(id).unwrap().is_none() && ledger.terms(id).unwrap().is_some());
        assert_eq!(ledger.journal_page(run_no, 0, usize::MAX).unwrap(), []);
        let event = ledger.event(record.run.event_id).unwrap().unwrap();
        assert_eq!((event.runs.as_slice(), event.event.envelope.event_type.as_str()), (&[id][..], "message.received"));
        assert_eq!(ledger.artifact(&id.to_string()).unwrap(), None);
    }
    assert_eq!(ledger.run(other.run.run_id).unwrap().unwrap(), before);
    assert_eq!(transcript(&ledger, "other", Direction::Forward), [1, 2]);
    let export = exported(&ledger);
    let leaks = export.lines().filter(|line| line.contains(SECRET) && !line.contains("other")).collect::<Vec<_>>();
    // The events, the journal and the artifact of the run of the other conversation do not name it.
    let id = other.run.run_id.to_string();
    assert!(leaks.iter().all(|line| line.contains(&id)), "{leaks:#?}");

    // The next collection removes its content.
    let collected = ledger.collect_garbage(now() + 1_000).await.unwrap();
    assert_eq!(collected.blobs, 6, "two uploads, two artifacts, two journals");

    // Numbers go on where they were, also after another start.
    ledger.close().await.unwrap();
    is_whole(dir.path());
    let ledger = eager();
    let third = spoken(&ledger, "c", 1, false).await;
    assert_eq!(transcript(&ledger, "c", Direction::Forward), [5, 6]);
    assert_eq!(transcript(&ledger, "c", Direction::Backward), [6, 5]);
    assert_eq!(ledger.transcript_range(&conversation("c"), 0, 1).unwrap()[0].seq, 5);

    // A backup of it is a whole ledger.
    let backup = Backup { to: dir.path().join("backup"), beside: Vec::new(), left_out: Vec::new(), agent_host: "1".into() };
    let of = ledger.clone();
    tokio::task::spawn_blocking(move || of.backup(&backup)).await.unwrap().unwrap();
    let restored = dir.path().join("restored");
    restore(dir.path().join("backup"), restored.join("ledger"), |_| ()).unwrap();
    let done = ledger.forget_conversation(forget("c", &[&first, &second, &third])).await.unwrap();
    assert_eq!(done, DeletedData { values: 1, items: 3, artifacts: 2, runs: 1, events: 1 });
    ledger.close().await.unwrap();
    is_whole(dir.path());
    is_whole(&restored);
    assert!(fs::read_dir(&restored).unwrap().count() > 0);
}

#[tokio::test]
async fn a_conversation_with_an_active_run_is_not_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let ended = spoken(&ledger, "c", 1, false).await;
    let event = event_in("c", "message.received");
    let run = run_in(&event, "c");
    let id = run.run_id;
    let AcceptOutcome::New { runs, .. } = ledger.accept(accept(event, vec![run])).await.unwrap() else { panic!("it is new") };
    let run_no = runs[0].run_no;
    let refused = |error: Result<DeletedData, LedgerError>| matches!(error, Err(LedgerError::Active { run_id }) if run_id == id);
    assert!(refused(ledger.forget_conversation(forget("c", &[&ended])).await));
    let wait = RunChange::Wait { at: 2, reason: "question".into() };
    let park = Park { wake_at: u64::MAX, keys: vec!["conversation/c".into()] };
    let parked = RunWrite { changes: vec![start(), wait], park: Some(park), ..write(run_no) };
    ledger.submit(parked).await.unwrap().await.unwrap();
    assert!(refused(ledger.forget_conversation(forget("c", &[&ended])).await), "it is parked");
    // An active run is never deleted.
    assert!(refused(ledger.forget_conversation(Forget { waits: "x".into(), ..forget("d", &[&runs[0]]) }).await));
    assert_eq!(transcript(&ledger, "c", Direction::Forward), [1, 2]);
    assert_eq!(ledger.state_get("state/c", "k").unwrap(), Some(json!(SECRET)));
    let end = RunWrite {
        changes: vec![RunChange::Resume { at: 3 }, completed()],
        events: vec![new_event(1, "run.completed")],
        ..write(run_no)
    };
    ledger.submit(end).await.unwrap().await.unwrap();
    let done = ledger.forget_conversation(forget("c", &[&ended, &runs[0]])).await.unwrap();
    assert_eq!((done.items, done.runs, done.events), (2, 2, 2));
    ledger.close().await.unwrap();
    is_whole(dir.path());
}

#[tokio::test]
async fn a_long_conversation_is_forgotten_piece_by_piece() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let long = spoken(&ledger, "c", 1_700, false).await;
    let mut runs = vec![long];
    for _ in 0..40 {
        runs.push(spoken(&ledger, "c", 20, true).await);
    }
    let event = event_in("c", "message.received");
    let items: Vec<_> = (0..1_200).map(|_| message_item(&event, "c", "assistant")).collect();
    let run = run_in(&event, "c");
    let AcceptOutcome::New { runs: new, .. } = ledger.accept(accept(event, vec![run])).await.unwrap() else {
        panic!("it is new")
    };
    let all = RunWrite {
        changes: vec![start(), completed()],
        events: vec![new_event(1, "run.completed")],
        transcript: items,
        state: (0..1_100)
            .map(|n| StateWrite { scope_key: "state/c".into(), ..state(&format!("n{n}"), Some(&json!(n))) })
            .collect(),
        ..write(new[0].run_no)
    };
    ledger.submit(all).await.unwrap().await.unwrap();
    runs.push(new[0].clone());
    let all: Vec<_> = runs.iter().collect();
    let done = ledger.forget_conversation(forget("c", &all)).await.unwrap();
    assert_eq!(done, DeletedData { values: 1_101, items: 1_282, artifacts: 82, runs: 42, events: 42 });
    assert_eq!(ledger.forget_conversation(forget("c", &all)).await.unwrap(), DeletedData::default());
    for record in &runs {
        let run = ledger.run(record.run.run_id).unwrap().unwrap().run;
        assert!(matches!(run.status, RunStatus::Completed | RunStatus::Failed), "{}", run.status);
        assert_eq!(ledger.run_events_after(record.run_no, run.run_id, 0, 10).unwrap().len(), 1);
    }
    assert!(!exported(&ledger).contains(SECRET));
    ledger.close().await.unwrap();
    is_whole(dir.path());
}
