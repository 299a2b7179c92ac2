//! Events, runs and state: what is written is read back, and what breaks a rule is refused whole.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use crate::common::*;
use agent_host_ledger::{
    Accept, AcceptOutcome, AddRun, AppendMark, AuditRecord, Health, Idempotency, JsonParts, Ledger, LedgerError, NewContext,
    NewEvent, NewRun, Options, RunChange, RunRecord, RunWrite, check,
};
use agent_host_protocol::{EventSource, RecordDigest, Run, RunStatus, encoded::JsonText, run::Terminal};
use redb::{Database, TableDefinition};
use serde_json::{Value, json};

#[tokio::test]
async fn an_event_and_its_runs_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let event = event();
    let runs = vec![run_of(&event), run_of(&event)];
    let accept = Accept { transcript: Some(item("c", "hello", event.event_id)), ..accept(event.clone(), runs.clone()) };
    let AcceptOutcome::New { event_no, runs: records, transcript_seq } = ledger.accept(accept).await.unwrap() else {
        panic!("repeated")
    };
    assert_eq!((event_no, transcript_seq), (1, Some(1)));
    assert_eq!(records.iter().map(|record| record.run_no).collect::<Vec<_>>(), [1, 2]);
    for (record, run) in records.iter().zip(&runs) {
        assert_eq!(*record.run, Run { record_digest: record.run.record_digest, ..run.clone() });
        assert_eq!(ledger.run(run.run_id).unwrap().as_ref(), Some(record));
        assert_eq!(ledger.terms(run.run_id).unwrap().unwrap().get(), r#"{"granted":[]}"#);
        assert!(ledger.context(run.run_id).unwrap().is_none());
    }
    let record = ledger.event(event.event_id).unwrap().unwrap();
    assert_eq!(record.event, event);
    assert_eq!(record.runs, runs.iter().map(|run| run.run_id).collect::<Vec<_>>());
    assert_eq!((record.event_no, record.transcript_seq), (1, Some(1)));
    assert_eq!(ledger.active_runs().unwrap(), records);
    assert!(ledger.run(agent_host_protocol::RunId::new()).unwrap().is_none());
}

#[tokio::test]
async fn equal_parts_of_terms_and_contexts_are_stored_once_and_read_with_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    let mut rows = Vec::new();
    let add = async |ledger: &Ledger, model: &str, actor: &str| {
        let event = event();
        let run = run_of(&event);
        let shared = raw(&json!({ "grant": { "models": [model] }, "config": {} }));
        let terms = JsonParts { shared, own: raw(&json!({ "grant": { "actor": actor } })) };
        let runs = vec![NewRun { run: run.clone(), terms, events: Vec::new() }];
        let text = event.envelope.input.text.clone();
        let AcceptOutcome::New { runs, .. } = ledger.accept(Accept { runs, ..accept(event, Vec::new()) }).await.unwrap() else {
            panic!("the event was there before")
        };
        let parts = JsonParts { shared: raw(&json!({ "config": { "model": model } })), own: raw(&json!({ "actor_id": actor })) };
        let context = Some(NewContext::Parts(parts));
        ledger.submit(RunWrite { changes: vec![start()], context, ..write(runs[0].run_no) }).await.unwrap().await.unwrap();
        (
            run.run_id,
            json!({ "grant": { "models": [model], "actor": actor }, "config": {} }),
            (model.to_owned(), actor.to_owned(), text),
        )
    };
    for (model, actor) in [("a", "ada"), ("a", "bob"), ("b", "ada")] {
        rows.push(add(&ledger, model, actor).await);
    }
    // The ledger does not remember across a restart which parts it has.
    ledger.close().await.unwrap();
    ledger = open(dir.path());
    rows.push(add(&ledger, "a", "eve").await);
    for (id, wanted, (model, actor, text)) in &rows {
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(&value(ledger.terms(*id).unwrap().unwrap().get()), wanted);
        let context = value(ledger.context(*id).unwrap().unwrap().get());
        // The row of the event has the other members.
        assert_eq!(
            (&context["config"]["model"], &context["actor_id"], &context["input"]["text"]),
            (&json!(model), &json!(actor), &json!(text))
        );
    }
    let parts = |name: &str| ledger.stats().unwrap().tables.iter().find(|table| table.name == name).unwrap().rows;
    assert_eq!((parts("contexts"), parts("shared_parts")), (4, 4));
    assert_eq!(parts("terms"), 0, "the row of an event has the terms of its runs");
    ledger.close().await.unwrap();
    assert!(check(dir.path().join("ledger"), |_| {}).unwrap().is_ok());

    // Every reader reports a lost part.
    let database = Database::open(dir.path().join("ledger/ledger.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let shared = TableDefinition::<&[u8], &[u8]>::new("shared_parts");
    transaction.open_table(shared).unwrap().retain(|_, text| !text.starts_with(br#"{"config":{"model":"a""#)).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let report = check(dir.path().join("ledger"), |_| {}).unwrap();
    let found: Vec<_> = report.findings.iter().map(|finding| (finding.table, &*finding.what)).collect();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.iter().all(|(table, what)| *table == "contexts" && what.contains("shared part is not there")), "{found:?}");
    let ledger = open(dir.path());
    assert!(matches!(ledger.context(rows[0].0), Err(LedgerError::Damaged(_))));
    assert!(ledger.terms(rows[0].0).unwrap().is_some());
    assert!(ledger.export(&mut Vec::new(), |_| {}).is_err());
    ledger.close().await.unwrap();
}

#[tokio::test]
async fn a_run_lives_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let record = new_run(&ledger).await;
    let id = record.run.run_id;
    let started = RunWrite { changes: vec![start()], context: Some(raw(&json!({ "run_id": 1 }))), ..write(record.run_no) };
    let run = ledger.submit(started).await.unwrap().await.unwrap();
    assert_eq!((run.status, run.started_at, run.deadline_at), (RunStatus::Running, Some(2_000), Some(9_000)));
    let delta_write = RunWrite { events: deltas(1..=3), transcript: vec![item("c", "hi", run.event_id)], ..write(record.run_no) };
    drop(ledger.submit(delta_write).await.unwrap());
    let ended = RunWrite { changes: vec![completed()], events: vec![new_event(4, "run.completed")], ..write(record.run_no) };
    let run = ledger.submit(ended).await.unwrap().await.unwrap();
    assert_eq!((run.status, run.last_sequence, run.finished_at), (RunStatus::Completed, 4, Some(3_000)));
    assert_eq!(ledger.run(id).unwrap().unwrap().run, run);
    assert!(ledger.active_runs().unwrap().is_empty());
    assert_eq!(ledger.context(id).unwrap().unwrap().get(), r#"{"run_id":1}"#);
    let events = ledger.run_events_after(record.run_no, id, 0, 10).unwrap();
    assert_eq!(events.iter().map(|event| event.sequence).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(
        events[3].is_terminal() && events[0].data.get() == r#"{"n":1}"# && events[0].run_id == id && events[2].timestamp == 1_003
    );
    assert_eq!(ledger.transcript_len(&conversation("c")).unwrap(), 1);
}

#[tokio::test]
async fn a_write_that_breaks_a_rule_is_refused_whole() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let record = new_run(&ledger).await;
    let no = record.run_no;
    let submit = async |write: RunWrite| match ledger.submit(write).await {
        Ok(commit) => commit.await,
        Err(error) => Err(error),
    };
    submit(RunWrite { changes: vec![start()], events: deltas(1..=2), ..write(no) }).await.unwrap();

    let gap = RunWrite { events: deltas(4..=5), state: vec![state("k", Some(&json!(1)))], ..write(no) };
    assert!(matches!(submit(gap).await, Err(LedgerError::Sequence { expected: 3, found: 4 })));
    assert_eq!(ledger.state_get("scope", "k").unwrap(), None);
    let torn = RunWrite { events: vec![new_event(3, "a"), new_event(5, "b")], ..write(no) };
    assert!(matches!(submit(torn).await, Err(LedgerError::Sequence { expected: 4, found: 5 })));
    for invalid in [
        RunWrite { changes: vec![completed()], ..write(no) },
        RunWrite { events: vec![new_event(3, "run.completed")], ..write(no) },
        RunWrite { changes: vec![completed()], events: vec![new_event(3, "run.failed")], ..write(no) },
        RunWrite { changes: vec![failed()], events: vec![new_event(3, "run.completed")], ..write(no) },
        RunWrite {
            changes: vec![completed()],
            events: vec![new_event(3, "run.completed"), new_event(4, "message.delta")],
            ..write(no)
        },
        RunWrite {
            changes: vec![completed(), RunChange::Resume { at: 1 }],
            events: vec![new_event(3, "run.completed")],
            ..write(no)
        },
    ] {
        assert!(matches!(submit(invalid).await, Err(LedgerError::Invalid(_))));
    }
    assert!(matches!(
        submit(RunWrite { changes: vec![RunChange::Queue { at: 1 }], ..write(no) }).await,
        Err(LedgerError::Transition(_))
    ));
    assert!(matches!(submit(write(77)).await, Err(LedgerError::NotFound(_))));
    let run = ledger.run(record.run.run_id).unwrap().unwrap().run;
    assert_eq!((run.status, run.last_sequence), (RunStatus::Running, 2));

    submit(RunWrite { changes: vec![failed()], events: vec![new_event(3, "run.failed")], ..write(no) }).await.unwrap();
    assert!(matches!(submit(RunWrite { events: deltas(4..=4), ..write(no) }).await, Err(LedgerError::Terminal { .. })));
    let audit = AuditRecord { run_id: Some(record.run.run_id), action: "late".into(), ..AuditRecord::default() };
    let run = submit(RunWrite { audit: [audit].into(), ..write(no) }).await.unwrap();
    assert_eq!((run.status, run.status_reason.as_deref()), (RunStatus::Failed, Some("runner.error")));
    assert_eq!(ledger.audit_page(run.run_id, None, 10).unwrap().items.len(), 1);
}

#[tokio::test]
async fn a_refused_write_does_not_disturb_the_others_of_its_batch() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let records = new_runs(&ledger, 100).await;
    let mut commits = Vec::new();
    for record in &records {
        let events = deltas(if record.run_no % 3 == 0 { 5..=6 } else { 1..=2 });
        commits.push(ledger.submit(RunWrite { changes: vec![start()], events, ..write(record.run_no) }).await.unwrap());
    }
    for (commit, record) in commits.into_iter().zip(&records) {
        assert_eq!(commit.await.is_err(), record.run_no % 3 == 0);
        let run = ledger.run(record.run.run_id).unwrap().unwrap().run;
        assert_eq!(run.last_sequence, if record.run_no % 3 == 0 { 0 } else { 2 });
    }
}

#[tokio::test]
async fn writes_that_wait_together_are_committed_together() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let records = new_runs(&ledger, 500).await;
    let before = ledger.stats().unwrap().batches;
    let mut commits = Vec::new();
    for record in &records {
        commits.push(
            ledger.submit(RunWrite { changes: vec![start()], events: deltas(1..=2), ..write(record.run_no) }).await.unwrap(),
        );
    }
    for commit in commits {
        commit.await.unwrap();
    }
    let batches = ledger.stats().unwrap().batches - before;
    assert!(batches < 250, "500 writes took {batches} commits");
}

#[tokio::test]
async fn a_repeated_request_is_answered_with_the_first_event() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let with_key = |key: &str, hash: u8, received_at: u64| {
        let event = agent_host_protocol::Event { received_at, ..event() };
        let run = run_of(&event);
        Accept { idempotency: Some(Idempotency { key: key.into(), body_hash: [hash; 32] }), ..accept(event, vec![run]) }
    };
    let now = agent_host_protocol::time::now();
    let first = with_key("k", 1, now);
    let first_id = first.event.event_id;
    assert!(matches!(ledger.accept(first).await, Ok(AcceptOutcome::New { .. })));
    for ledger in [ledger.clone(), ledger] {
        assert!(
            matches!(ledger.accept(with_key("k", 1, now)).await, Ok(AcceptOutcome::Repeated { event_id }) if event_id == first_id)
        );
        assert!(
            matches!(ledger.accept(with_key("k", 2, now)).await, Err(LedgerError::IdempotencyConflict { event_id }) if event_id == first_id)
        );
        assert!(matches!(ledger.accept(with_key("", 1, now)).await, Err(LedgerError::Invalid(_))));
        assert!(matches!(ledger.accept(with_key(&"k".repeat(256), 1, now)).await, Err(LedgerError::Invalid(_))));
        assert_eq!(ledger.active_runs().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn two_equal_requests_at_once_make_one_event() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let mut answers = Vec::new();
    for _ in 0..50 {
        let ledger = ledger.clone();
        answers.push(tokio::spawn(async move {
            let idempotency = Some(Idempotency { key: "k".into(), body_hash: [1; 32] });
            ledger.accept(Accept { idempotency, ..accept(event(), Vec::new()) }).await.unwrap()
        }));
    }
    let mut new = 0;
    for answer in answers {
        new += usize::from(matches!(answer.await.unwrap(), AcceptOutcome::New { .. }));
    }
    assert_eq!(new, 1);
}

#[tokio::test]
async fn an_idempotency_key_is_forgotten_after_a_day() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let day = 24 * 60 * 60 * 1000;
    let now = agent_host_protocol::time::now();
    let with_key = |received_at| {
        let idempotency = Some(Idempotency { key: "k".into(), body_hash: [1; 32] });
        Accept { idempotency, ..accept(agent_host_protocol::Event { received_at, ..event() }, Vec::new()) }
    };
    assert!(matches!(ledger.accept(with_key(now - 2 * day)).await, Ok(AcceptOutcome::New { .. })));
    assert!(matches!(ledger.accept(with_key(now)).await, Ok(AcceptOutcome::New { .. })));
    assert!(matches!(ledger.accept(with_key(now)).await, Ok(AcceptOutcome::Repeated { .. })));
    ledger.close().await.unwrap();
    let ledger = open(dir.path());
    let rows = |name: &str| ledger.stats().unwrap().tables.iter().find(|table| table.name == name).unwrap().rows;
    let count = || (rows("idempotency"), rows("idempotency_age"));
    // Over PostgreSQL the writer forgets keys soon after the ledger is open.
    for _ in 0..1_000 {
        if count() == (1, 1) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(count(), (1, 1));
    assert!(matches!(ledger.accept(with_key(now)).await, Ok(AcceptOutcome::Repeated { .. })));
}

#[tokio::test]
async fn an_id_that_is_known_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let event = event();
    let run = run_of(&event);
    ledger.accept(accept(event.clone(), vec![run.clone()])).await.unwrap();
    assert!(matches!(ledger.accept(accept(event, Vec::new())).await, Err(LedgerError::Invalid(_))));
    let other = crate::common::event();
    let again = agent_host_protocol::Run { event_id: other.event_id, ..run };
    assert!(matches!(ledger.accept(accept(other.clone(), vec![again])).await, Err(LedgerError::Invalid(_))));
    let twice = run_of(&other);
    assert!(matches!(
        ledger.accept(accept(other.clone(), vec![twice.clone(), twice.clone()])).await,
        Err(LedgerError::Invalid(_))
    ));
    let started = agent_host_protocol::Run { status: RunStatus::Running, ..twice };
    assert!(matches!(ledger.accept(accept(other, vec![started])).await, Err(LedgerError::Invalid(_))));
}

#[tokio::test]
async fn a_run_reads_the_state_that_it_wrote_before_it_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let no = new_run(&ledger).await.run_no;
    for n in 0..200 {
        let write =
            RunWrite { state: vec![state("k", Some(&json!(n))), state(&format!("x{n}"), Some(&json!("v")))], ..write(no) };
        drop(ledger.submit(write).await.unwrap());
        assert_eq!(ledger.state_get("scope", "k").unwrap(), Some(json!(n)));
        assert_eq!(ledger.state_keys("scope", Some(&format!("x{n}")), 1).unwrap(), [format!("x{n}")]);
    }
    drop(ledger.submit(RunWrite { state: vec![state("k", None)], ..write(no) }).await.unwrap());
    assert_eq!(ledger.state_get("scope", "k").unwrap(), None);
    assert_eq!(ledger.state_scope("scope", 1 << 20).unwrap().len(), 200);
    ledger.submit(write(no)).await.unwrap().await.unwrap();
    assert_eq!(ledger.state_get("scope", "k").unwrap(), None);
    assert_eq!(ledger.state_keys("scope", Some("x1"), 100).unwrap().len(), 100);
    assert_eq!(ledger.state_keys("scop", None, 100).unwrap(), Vec::<String>::new());
    assert_eq!(ledger.state_scope("scope", 10).unwrap().len(), 2);
    assert!(matches!(ledger.state_keys("scope", None, 0), Err(LedgerError::InvalidLimit(0))));
}

#[tokio::test]
async fn a_cancel_and_a_wait_are_facts_of_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let no = new_run(&ledger).await.run_no;
    let changes = vec![
        start(),
        RunChange::Wait { at: 2_100, reason: "approval".into() },
        RunChange::CancelRequested { at: 2_200, reason: "user".into() },
    ];
    let run = ledger.submit(RunWrite { changes, ..write(no) }).await.unwrap().await.unwrap();
    assert_eq!(
        (run.status, run.status_reason.as_deref(), run.cancel_requested_at),
        (RunStatus::Waiting, Some("approval"), Some(2_200))
    );
    let end = RunChange::End { at: 2_300, terminal: Terminal::Cancelled { reason: "user".into() } };
    let run = ledger
        .submit(RunWrite { changes: vec![end], events: vec![new_event(1, "run.failed")], ..write(no) })
        .await
        .unwrap()
        .await
        .unwrap();
    assert_eq!((run.status, run.status_reason.as_deref(), run.updated_at), (RunStatus::Cancelled, Some("user"), 2_300));
}

#[tokio::test]
async fn with_little_disk_left_new_events_are_refused_and_runs_still_end() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let no = new_run(&ledger).await.run_no;
    ledger.close().await.unwrap();
    let ledger = Options { min_free_disk_bytes: u64::MAX, ..options(dir.path()) }.start();
    assert!(matches!(ledger.accept(accept(event(), Vec::new())).await, Err(LedgerError::DiskLow { needed: u64::MAX, .. })));
    assert!(matches!(ledger.health(), Health::DiskLow { .. }));
    assert_eq!(finish(&ledger, no, 2).await.status, RunStatus::Completed);
}

#[tokio::test]
async fn a_watcher_never_misses_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let records = new_runs(&ledger, 20).await;
    let mut followers = Vec::new();
    for record in &records {
        let (ledger, no, id) = (ledger.clone(), record.run_no, record.run.run_id);
        let mut watch = ledger.watch(no);
        followers.push(tokio::spawn(async move {
            let mut seen = 0;
            while seen < 51 {
                for event in ledger.run_events_after(no, id, seen, 7).unwrap() {
                    assert_eq!(event.sequence, seen + 1);
                    seen += 1;
                }
                if seen < 51 && ledger.run_events_after(no, id, seen, 1).unwrap().is_empty() {
                    watch.changed().await;
                }
            }
        }));
    }
    for sequence in 1..=50 {
        for record in &records {
            let changes = if sequence == 1 { vec![start()] } else { Vec::new() };
            drop(ledger.submit(RunWrite { changes, events: deltas(sequence..=sequence), ..write(record.run_no) }).await.unwrap());
        }
        tokio::task::yield_now().await;
    }
    for record in &records {
        drop(
            ledger
                .submit(RunWrite {
                    changes: vec![completed()],
                    events: vec![new_event(51, "run.completed")],
                    ..write(record.run_no)
                })
                .await
                .unwrap(),
        );
    }
    for follower in followers {
        tokio::time::timeout(std::time::Duration::from_secs(20), follower).await.expect("a follower hangs").unwrap();
    }
}

#[tokio::test]
async fn a_closed_ledger_refuses_and_wakes_everyone() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let record = new_run(&ledger).await;
    let other = ledger.clone();
    let mut watch = other.watch(record.run_no);
    let commit = ledger.submit(RunWrite { changes: vec![start()], ..write(record.run_no) }).await.unwrap();
    ledger.close().await.unwrap();
    assert_eq!(commit.await.unwrap().status, RunStatus::Running);
    watch.changed().await;
    assert!(matches!(other.run(record.run.run_id), Err(LedgerError::Unavailable(_))));
    assert!(matches!(other.accept(accept(event(), Vec::new())).await, Err(LedgerError::Unavailable(_))));
    assert!(matches!(other.submit(write(1)).await, Err(LedgerError::Unavailable(_))));
    let again = open(dir.path());
    assert_eq!(again.run(record.run.run_id).unwrap().unwrap().run.status, RunStatus::Running);
    other.close().await.unwrap();
}

#[tokio::test]
async fn a_merge_joins_the_rows_of_a_stream_and_readers_see_no_difference() {
    let dir = tempfile::tempdir().unwrap();
    // Merged when it is closed, and not before.
    let open = || Options::new(dir.path().join("ledger")).start();
    let ledger = open();
    let RunRecord { run_no, run } = new_run(&ledger).await;
    let text = json!({ "text": "x".repeat(1_000) });
    let append = async |ledger: &Ledger, sequences: std::ops::RangeInclusive<u64>| {
        for sequence in sequences {
            // Waited for, so that each is in a batch of its own.
            let events = vec![NewEvent {
                sequence,
                kind: "message.delta".into(),
                data: raw(&text),
                timestamp: sequence,
                source: agent_host_protocol::EventSource::Host,
                metadata: None,
            }];
            ledger.submit(RunWrite { events, ..write(run_no) }).await.unwrap().await.unwrap();
        }
    };
    let rows = |ledger: &Ledger| {
        let stats = ledger.stats().unwrap();
        stats.tables.iter().find(|table| table.name == "run_events").unwrap().rows
    };
    let look = |ledger: &Ledger, last: u64| {
        for after in [0, 1, 62, 63, 64, last - 1, last] {
            let events = ledger.run_events_after(run_no, run.run_id, after, 10).unwrap();
            let wanted: Vec<_> = (after + 1..=last.min(after + 10)).collect();
            assert_eq!(events.iter().map(|event| event.sequence).collect::<Vec<_>>(), wanted);
            assert!(events.iter().all(|event| event.timestamp == event.sequence && event.data_value() == text));
        }
    };
    append(&ledger, 1..=100).await;
    assert_eq!(rows(&ledger), 100);
    look(&ledger, 100);
    ledger.close().await.unwrap();

    let ledger = open();
    assert_eq!(rows(&ledger), 2, "two rows of at most 64 KiB");
    look(&ledger, 100);
    append(&ledger, 101..=110).await;
    look(&ledger, 110);
    ledger.close().await.unwrap();
    let ledger = open();
    assert_eq!(rows(&ledger), 3);
    look(&ledger, 110);
    ledger.close().await.unwrap();
    assert!(check(dir.path().join("ledger"), |_| ()).unwrap().is_ok());
}

/// The digest of a record, computed from what readers see.
fn digest_of(ledger: &Ledger, record: &RunRecord) -> RecordDigest {
    let event = ledger.event_json(record.run.event_id).unwrap().unwrap();
    let begun = RecordDigest::begin(record.run.run_id, event.get().as_bytes());
    let events = ledger.run_events_after(record.run_no, record.run.run_id, 0, usize::MAX).unwrap();
    events.iter().fold(begun, |digest, event| digest.and(event.into()))
}

#[tokio::test]
async fn the_digest_of_a_record_covers_its_event_and_its_events_however_they_were_written() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Options::new(dir.path()).open().unwrap();
    let at_once = new_run(&ledger).await;
    finish(&ledger, at_once.run_no, 3).await;
    let in_steps = new_run(&ledger).await;
    assert_eq!(in_steps.run.record_digest, Some(digest_of(&ledger, &in_steps)));
    let mut seen = vec![in_steps.run.record_digest.unwrap()];
    let marked = |metadata: Option<&str>| {
        let metadata = metadata.map(|text| raw::<JsonText>(&serde_json::from_str::<Value>(text).unwrap()));
        AppendMark { claim: 1, number: 1, hash: 7 }.with(metadata.as_ref())
    };
    let second = NewEvent { metadata: marked(Some("{\"a\":1}")), source: EventSource::Executor, ..new_event(2, "message.delta") };
    let third = NewEvent { metadata: marked(None), ..new_event(3, "message.delta") };
    let writes = [
        RunWrite { changes: vec![start()], events: deltas(1..=1), ..write(in_steps.run_no) },
        RunWrite { events: vec![second, third], ..write(in_steps.run_no) },
        RunWrite { changes: vec![completed()], events: vec![new_event(4, "run.completed")], ..write(in_steps.run_no) },
    ];
    for write in writes {
        let run = ledger.submit(write).await.unwrap().await.unwrap();
        let record = ledger.run(run.run_id).unwrap().unwrap();
        assert_eq!(record.run.record_digest, Some(digest_of(&ledger, &record)));
        seen.push(record.run.record_digest.unwrap());
    }
    let distinct: std::collections::HashSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len());
    // A run that is added to an event, with a digest of another run in its record.
    let mut run = run_of(&ledger.event(at_once.run.event_id).unwrap().unwrap().event);
    (run.last_sequence, run.record_digest) = (2, Some(seen[0]));
    let id = run.run_id;
    let add = AddRun {
        run,
        terms: raw(&serde_json::json!({})),
        context: None,
        events: deltas(1..=2),
        journal: None,
        entries: Vec::new(),
    };
    ledger.add_run(add).await.unwrap();
    ledger.close().await.unwrap();
    let ledger = Options::new(dir.path()).open().unwrap();
    for id in [at_once.run.run_id, in_steps.run.run_id, id] {
        let record = ledger.run(id).unwrap().unwrap();
        assert_eq!(record.run.record_digest, Some(digest_of(&ledger, &record)), "{id}");
    }
    ledger.close().await.unwrap();
    let report = agent_host_ledger::check(dir.path(), |_| ()).unwrap();
    assert!(report.is_ok(), "{report:?}");
}

#[tokio::test]
async fn runs_of_a_conversation_are_numbered_as_turns_when_they_begin_or_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    let add = async |ledger: &Ledger, thread: Option<&str>| {
        let event = event();
        let run = agent_host_protocol::Run {
            conversation_id: Some("c".into()),
            workspace_id: Some("w".into()),
            thread_id: thread.map(Into::into),
            ..run_of(&event)
        };
        let AcceptOutcome::New { runs, .. } = ledger.accept(accept(event, vec![run])).await.unwrap() else { panic!("repeated") };
        runs[0].run_no
    };
    let turn = |ledger: &Ledger, run_no| ledger.run_by_no(run_no).unwrap().unwrap().run.turn;
    let (first, second, third) = (add(&ledger, None).await, add(&ledger, None).await, add(&ledger, None).await);
    let other = add(&ledger, Some("t")).await;
    assert_eq!(turn(&ledger, first), None, "it waits");
    // The second ends without having begun, before the first begins.
    let cancel = RunWrite { changes: vec![failed()], events: vec![new_event(1, "run.failed")], ..write(second) };
    assert_eq!(ledger.submit(cancel).await.unwrap().await.unwrap().turn, Some(1));
    let begin = |run_no| RunWrite { changes: vec![start()], ..write(run_no) };
    assert_eq!(ledger.submit(begin(first)).await.unwrap().await.unwrap().turn, Some(2));
    assert_eq!(ledger.submit(begin(other)).await.unwrap().await.unwrap().turn, Some(1), "another thread");
    // A number is given once, and the next one is known after the ledger was closed.
    let wait = RunWrite { changes: vec![RunChange::Wait { at: 2_500, reason: "x".into() }, start()], ..write(first) };
    assert_eq!(ledger.submit(wait).await.unwrap().await.unwrap().turn, Some(2));
    ledger.close().await.unwrap();
    ledger = open(dir.path());
    assert_eq!(finish(&ledger, third, 1).await.turn, Some(3));
    assert_eq!((turn(&ledger, first), turn(&ledger, second)), (Some(2), Some(1)));
    let alone = new_run(&ledger).await;
    assert_eq!(finish(&ledger, alone.run_no, 1).await.turn, None, "no conversation");
}
