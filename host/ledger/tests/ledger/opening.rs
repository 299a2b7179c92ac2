//! Opening, and the verbs of an operator.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use crate::common::*;
use agent_host_ledger::{
    JournalSegment, Ledger, OpenError, Options, Park, RunChange, RunRecord, RunWrite, check, compact, export,
};
use agent_host_protocol::{Run, RunEvent, page::Direction};
use redb::{Database, ReadableDatabase, ReadableTableMetadata, TableDefinition};
use serde_json::{Value, json};

const META: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("meta");
const CONVERSATIONS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("conversations");
const RUNS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("runs");

#[tokio::test]
async fn a_ledger_is_made_for_its_owner_alone_and_reopens() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    assert_eq!(fs::metadata(dir.path().join("ledger")).unwrap().permissions().mode() & 0o777, 0o700);
    let record = new_run(&ledger).await;
    drop(ledger);
    let ledger = open(dir.path());
    assert_eq!(ledger.run(record.run.run_id).unwrap(), Some(record));
    assert_eq!(new_run(&ledger).await.run_no, 2);
}

#[tokio::test]
async fn a_second_opener_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let error = options(dir.path()).open().unwrap_err();
    assert!(
        matches!(error, OpenError::AlreadyOpen { .. }) && error.to_string().contains("another agent-host process"),
        "{error}"
    );
    assert!(matches!(check(dir.path().join("ledger"), |_| ()), Err(OpenError::AlreadyOpen { .. })));
    assert!(matches!(compact(dir.path().join("ledger"), |_| ()), Err(OpenError::AlreadyOpen { .. })));
    new_run(&ledger).await;
    ledger.close().await.unwrap();
    open(dir.path());
}

#[test]
fn a_file_of_garbage_is_refused_and_left_alone() {
    for garbage in [
        b"not a ledger".to_vec(),
        vec![0x5a; 100_000],
        b"redb\x1a\x0a\xa9\x0d\x0a".iter().copied().chain(vec![7; 50_000]).collect(),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("ledger")).unwrap();
        let path = dir.path().join("ledger/ledger.redb");
        fs::write(&path, &garbage).unwrap();
        let error = options(dir.path()).open().unwrap_err();
        assert!(matches!(error, OpenError::NotALedger { .. }) && error.to_string().contains("backup"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), garbage);
    }
}

#[test]
fn another_redb_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("ledger")).unwrap();
    let database = Database::create(dir.path().join("ledger/ledger.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(TableDefinition::<u64, u64>::new("songs")).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = options(dir.path()).open().unwrap_err();
    assert!(matches!(error, OpenError::NotALedger { .. }) && error.to_string().contains("songs"), "{error}");
}

#[test]
fn a_newer_format_is_refused_with_both_versions() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let database = Database::open(dir.path().join("ledger/ledger.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert(b"format".as_slice(), 12u64.to_be_bytes().as_slice()).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = options(dir.path()).open().unwrap_err();
    assert!(matches!(error, OpenError::NewerFormat { found: 12, supported: 11, .. }), "{error}");
}

/// Tables that format 2 brought.
const SECOND: [&str; 7] =
    ["artifacts", "artifact_expiry", "unreferenced", "blob_refs", "storage", "usage", "conversation_events"];
/// Tables that format 3 brought.
const THIRD: [&str; 4] = ["journal", "parked", "wakes", "waits"];
/// The table that format 4 brought.
const FOURTH: [&str; 1] = ["entries"];

/// Puts the rows of format 5 in place of those of this format: one for each event of a run and each audit record, runs without
/// their agents, accepted events as JSON, and terms in a table of their own.
fn make_fifth(dir: &Path) {
    let mut lines = Vec::new();
    export(dir.join("ledger"), &mut lines, |_| ()).unwrap();
    let database = Database::open(dir.join("ledger/ledger.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let open = |name: &'static str| {
            let definition = TableDefinition::<&[u8], &[u8]>::new(name);
            transaction.delete_table(definition).unwrap();
            transaction.open_table(definition).unwrap()
        };
        let (mut events, mut audit, mut all_runs) = (open("run_events"), open("audit"), open("runs"));
        let (mut accepted, mut terms) = (open("events"), open("terms"));
        assert_eq!(open("run_ends").len().unwrap(), 0, "no run of these tests has a journal when it ends");
        let mut runs = std::collections::HashMap::new();
        let mut events_of_runs = Vec::new();
        for line in String::from_utf8(lines).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            match line["table"].as_str().unwrap() {
                "event" => events_of_runs.push(line),
                "run" => {
                    let (mut run, run_no) = (line["run"].clone(), line["run_no"].as_u64().unwrap());
                    assert!(run.as_object_mut().unwrap().remove("agent_id").is_some());
                    run.as_object_mut().unwrap().remove("record_digest");
                    all_runs.insert(run_no.to_be_bytes().as_slice(), run.to_string().as_bytes()).unwrap();
                    terms.insert(run_no.to_be_bytes().as_slice(), line["terms"].to_string().as_bytes()).unwrap();
                    runs.insert(run["run_id"].clone(), run_no);
                }
                "run_event" => {
                    let event = &line["event"];
                    let key = [runs[&event["run_id"]], event["sequence"].as_u64().unwrap()].map(u64::to_be_bytes).concat();
                    let row = json!({ "t": event["type"], "at": event["timestamp"], "d": event["data"] }).to_string();
                    events.insert(key.as_slice(), row.as_bytes()).unwrap();
                }
                "audit" => {
                    let key = line["audit_no"].as_u64().unwrap().to_be_bytes();
                    audit.insert(key.as_slice(), line["record"].to_string().as_bytes()).unwrap();
                }
                _ => {}
            }
        }
        for line in events_of_runs {
            let numbered: Vec<_> = line["runs"].as_array().unwrap().iter().map(|id| json!([runs[id], id])).collect();
            let mut row = json!({ "runs": numbered, "event": line["event"] });
            if let Some(seq) = line.get("transcript_seq") {
                row["transcript_seq"] = seq.clone();
            }
            let key = line["event_no"].as_u64().unwrap().to_be_bytes();
            accepted.insert(key.as_slice(), row.to_string().as_bytes()).unwrap();
        }
    }
    transaction.open_table(META).unwrap().insert(b"format".as_slice(), 5u64.to_be_bytes().as_slice()).unwrap();
    transaction.commit().unwrap();
}

/// All rows of a ledger, with the keys of JSON objects in order, and without the digests of records: older formats have none.
fn content(ledger: &Ledger) -> Vec<Value> {
    let mut lines = Vec::new();
    ledger.export(&mut lines, |_| ()).unwrap();
    let lines = String::from_utf8(lines).unwrap();
    let mut rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for run in rows.iter_mut().filter_map(|row| row.get_mut("run")?.as_object_mut()) {
        run.remove("record_digest");
    }
    rows
}

/// Runs as a ledger of an older format has them.
fn without_digests(records: Vec<RunRecord>) -> Vec<RunRecord> {
    let without = |run: &Run| Run { record_digest: None, ..run.clone() };
    records.into_iter().map(|RunRecord { run_no, run }| RunRecord { run_no, run: without(&run).into() }).collect()
}

#[tokio::test]
async fn a_ledger_of_format_5_keeps_its_rows_and_takes_new_ones_beside_them() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    filled(&ledger).await;
    let before = content(&ledger);
    let (ended, active) = (ledger.run_by_no(1).unwrap().unwrap().run.run_id, ledger.active_runs().unwrap());
    let of_a_run = agent_host_ledger::AuditRecord { run_id: Some(ended), action: "old".into(), ..Default::default() };
    ledger.audit(vec![of_a_run]).await.unwrap();
    ledger.close().await.unwrap();
    make_fifth(dir.path());

    let ledger = open(dir.path());
    let after = content(&ledger);
    assert_eq!(after.len(), before.len() + 1);
    assert!(before.iter().all(|line| after.contains(line)));
    let new =
        |n: usize| agent_host_ledger::AuditRecord { run_id: Some(ended), action: format!("new{n}").into(), ..Default::default() };
    ledger.audit(vec![new(1), new(2)]).await.unwrap();
    finish(&ledger, active[0].run_no, 3).await;
    let look = |ledger: &Ledger| {
        let newest = |from| {
            let step = audit_before(ledger, from, 2);
            (step.items.iter().map(|(_, record)| record.action.clone()).collect::<Vec<_>>(), step.position)
        };
        let actions = |page: &[agent_host_ledger::AuditRecord]| page.iter().map(|r| r.action.clone()).collect::<Vec<_>>();
        assert_eq!(actions(&ledger.audit_page(ended, None, 9).unwrap().items), ["old", "new1", "new2"]);
        let (last, position) = newest(u64::MAX);
        assert_eq!(last, ["new2", "new1"]);
        assert_eq!(newest(position).0, ["old", ""]);
        // Of an old run and of a new one, from any place.
        for (run_no, id, count) in [(1, ended, 6), (active[0].run_no, active[0].run.run_id, 4)] {
            let all = ledger.run_events_after(run_no, id, 0, 100).unwrap();
            assert_eq!(all.len(), count);
            for after in 0..count {
                let page = ledger.run_events_after(run_no, id, after as u64, 2).unwrap();
                let numbers = |events: &[RunEvent]| events.iter().map(|event| event.sequence).collect::<Vec<_>>();
                assert_eq!(numbers(&page), numbers(&all[after..count.min(after + 2)]));
            }
        }
    };
    look(&ledger);
    ledger.close().await.unwrap();
    let report = check(dir.path().join("ledger"), |_| ()).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
    look(&open(dir.path()));
}

/// Makes a ledger what format 2 had.
fn make_second(dir: &Path) {
    make_fifth(dir);
    let database = Database::open(dir.join("ledger/ledger.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    for name in THIRD.into_iter().chain(FOURTH) {
        assert!(transaction.delete_table(TableDefinition::<&[u8], &[u8]>::new(name)).unwrap(), "{name}");
    }
    transaction.open_table(META).unwrap().insert(b"format".as_slice(), 2u64.to_be_bytes().as_slice()).unwrap();
    transaction.commit().unwrap();
}

#[tokio::test]
async fn a_ledger_of_format_2_is_brought_to_this_format() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    filled(&ledger).await;
    let usage = ledger.state_usage("scope").unwrap();
    let active = without_digests(ledger.active_runs().unwrap());
    let before = content(&ledger);
    ledger.close().await.unwrap();
    make_second(dir.path());
    let report = check(dir.path().join("ledger"), |_| ()).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
    make_second(dir.path());
    let ledger = open(dir.path());
    assert!(
        content(&ledger) == before && ledger.state_usage("scope").unwrap() == usage && ledger.active_runs().unwrap() == active
    );
    let run_no = active[0].run_no;
    let segment = JournalSegment { first: 1, bytes: b"x".to_vec(), blobs: Vec::new() };
    let park = Some(Park { wake_at: 7, keys: vec!["k".into()] });
    let changes = vec![start(), RunChange::Wait { at: 1, reason: "r".into() }];
    let parking = RunWrite { changes, park, journal: Some(segment), ..write(run_no) };
    ledger.submit(parking).await.unwrap().await.unwrap();
    let entry = agent_host_ledger::EntryWrite::put("key/a", &json!({ "name": "a" })).unwrap();
    ledger.put_entries(&[entry]).await.unwrap();
    ledger.close().await.unwrap();
    // The ledger has the present format, and a second opening changes nothing.
    let ledger = open(dir.path());
    assert_eq!((ledger.parked_on("k", 9).unwrap(), ledger.journal_page(run_no, 0, 9).unwrap().len()), (vec![run_no], 1));
    assert_eq!(ledger.active_runs().unwrap().len() + 1, active.len());
    assert_eq!(ledger.entries("key/", None, 9).unwrap().len(), 1);
    assert_eq!(ledger.entry("key/a").unwrap().unwrap().get(), r#"{"name":"a"}"#);
}

/// Gives a ledger with the rows of format 5 the number and the tables of another one. Later formats kept older rows.
fn make_between(dir: &Path, format: u64) {
    let database = Database::open(dir.join("ledger/ledger.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    for (name, _) in [(FOURTH[0], 4), ("run_lists", 8)].into_iter().filter(|(_, since)| format < *since) {
        assert!(transaction.delete_table(TableDefinition::<&[u8], &[u8]>::new(name)).unwrap(), "{name}");
    }
    transaction.open_table(META).unwrap().insert(b"format".as_slice(), format.to_be_bytes().as_slice()).unwrap();
    transaction.commit().unwrap();
}

#[tokio::test]
async fn ledgers_of_formats_3_to_9_are_brought_to_this_format_and_take_branches() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    filled(&ledger).await;
    let event = event_in("c", "message.received");
    ledger.accept(accept(event.clone(), Vec::new())).await.unwrap();
    let before = content(&ledger);
    ledger.close().await.unwrap();
    make_fifth(dir.path());
    for format in 3..=9 {
        let old = tempfile::tempdir().unwrap();
        crash(dir.path(), old.path());
        make_between(old.path(), format);
        let ledger = open(old.path());
        assert!(content(&ledger) == before, "format {format}");
        let branch = Some(agent_host_ledger::Branch { from: event.event_id, until: None });
        let again = event_in("c", "message.received");
        ledger.accept(agent_host_ledger::Accept { branch, ..accept(again.clone(), Vec::new()) }).await.unwrap();
        ledger.close().await.unwrap();
        is_whole(old.path());
        let ledger = open(old.path());
        let left = |id| ledger.has_left_conversation(&conversation("c"), id).unwrap();
        assert!(left(event.event_id) && !left(again.event_id), "format {format}");
    }
}

/// Makes a ledger what format 1 had.
fn make_old(dir: &Path) {
    make_fifth(dir);
    fs::remove_dir_all(dir.join("ledger/blobs")).unwrap();
    let database = Database::open(dir.join("ledger/ledger.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    for name in SECOND.into_iter().chain(THIRD).chain(FOURTH) {
        assert!(transaction.delete_table(TableDefinition::<&[u8], &[u8]>::new(name)).unwrap(), "{name}");
    }
    // Format 1 had conversations with a transcript only.
    let silent = conversation("silent");
    transaction.open_table(CONVERSATIONS).unwrap().remove(silent.index().as_bytes()).unwrap().unwrap();
    transaction.open_table(META).unwrap().insert(b"format".as_slice(), 1u64.to_be_bytes().as_slice()).unwrap();
    transaction.commit().unwrap();
}

#[tokio::test]
async fn a_ledger_of_format_1_is_brought_to_this_format() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    filled(&ledger).await;
    for name in ["c", "silent", "c"] {
        ledger.accept(accept(event_in(name, "message.received"), Vec::new())).await.unwrap();
    }
    let usage = ledger.state_usage("scope").unwrap();
    assert!(usage.keys == 200 && usage.bytes > 200 * 3, "{usage:?}");
    ledger.close().await.unwrap();
    make_old(dir.path());

    // Every way of opening brings it up; here the host does.
    let ledger = open(dir.path());
    assert_eq!(ledger.state_usage("scope").unwrap(), usage);
    let events =
        |ledger: &Ledger, name: &str| ledger.conversation_events(&conversation(name), None, &[], 100).unwrap().items.len();
    assert_eq!((events(&ledger, "c"), events(&ledger, "silent"), events(&ledger, "other")), (2, 1, 0));
    ledger.accept(accept(event_in("other", "message.received"), Vec::new())).await.unwrap();
    let record = new_run(&ledger).await;
    ledger.submit(RunWrite { state: vec![state("k1", None)], ..write(record.run_no) }).await.unwrap().await.unwrap();
    assert_eq!(ledger.state_usage("scope").unwrap().keys, 199);
    assert_eq!((events(&ledger, "c"), events(&ledger, "silent"), events(&ledger, "other")), (2, 1, 1));
    ledger.close().await.unwrap();
    let report = check(dir.path().join("ledger"), |_| ()).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
    open(dir.path());
}

#[test]
fn the_verbs_need_a_ledger_that_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let none = dir.path().join("none");
    assert!(matches!(check(&none, |_| ()), Err(OpenError::NoLedger { .. })));
    assert!(matches!(compact(&none, |_| ()), Err(OpenError::NoLedger { .. })));
    assert!(matches!(export(&none, Vec::new(), |_| ()), Err(OpenError::NoLedger { .. })));
    assert!(!none.exists());
}

async fn filled(ledger: &Ledger) {
    for _ in 0..20 {
        for record in new_runs(ledger, 10).await {
            let transcript = vec![item("c", "said", record.run.event_id)];
            let state = vec![state(&format!("k{}", record.run_no), Some(&json!("v")))];
            let context = Some(raw(&json!({ "filler": "x".repeat(2_000) })));
            drop(ledger.submit(RunWrite { transcript, state, context, ..write(record.run_no) }).await.unwrap());
            if record.run_no % 3 != 0 {
                finish(ledger, record.run_no, 5).await;
            }
        }
    }
    ledger.audit(vec![agent_host_ledger::AuditRecord::default()]).await.unwrap();
    new_runs(ledger, 0).await;
}

#[tokio::test]
async fn a_check_finds_nothing_in_a_good_ledger_and_says_what_is_wrong_with_a_bad_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger");
    let ledger = open(dir.path());
    filled(&ledger).await;
    ledger.close().await.unwrap();
    let mut versions = Vec::new();
    let report = check(&path, |fraction| versions.push(fraction)).unwrap();
    assert!(report.is_ok() && report.rows > 900, "{:?}", report.findings);
    assert!(versions.is_sorted() && versions.first() == Some(&0.0) && versions.last() == Some(&1.0), "{versions:?}");

    let database = Database::open(path.join("ledger.redb")).unwrap();
    let row = {
        let runs = database.begin_read().unwrap().open_table(RUNS).unwrap();
        runs.get(1u64.to_be_bytes().as_slice()).unwrap().unwrap().value().to_vec()
    };
    let transaction = database.begin_write().unwrap();
    {
        let mut runs = transaction.open_table(RUNS).unwrap();
        let row = String::from_utf8(row).unwrap().replace("\"last_sequence\":6", "\"last_sequence\":7");
        runs.insert(1u64.to_be_bytes().as_slice(), row.as_bytes()).unwrap();
        runs.insert(2u64.to_be_bytes().as_slice(), b"{".as_slice()).unwrap();
        runs.remove(5u64.to_be_bytes().as_slice()).unwrap();
    }
    transaction.commit().unwrap();
    drop(database);
    let report = check(&path, |_| ()).unwrap();
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(!report.is_ok() && report.pages_intact);
    for wanted in ["run 1 ends with event 6, but says 7", "a row has the wrong content", "6 comes where 5 should"] {
        assert!(found.iter().any(|finding| finding.contains(wanted)), "{wanted} is not in {found:#?}");
    }
}

#[tokio::test]
async fn an_export_is_one_json_object_a_line_with_everything_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    filled(&ledger).await;
    let mut live = Vec::new();
    let report = ledger.export(&mut live, |_| ()).unwrap();
    ledger.close().await.unwrap();
    let mut closed = Vec::new();
    export(dir.path().join("ledger"), &mut closed, |_| ()).unwrap();
    assert!(live == closed && report.bytes == live.len() as u64);
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    for line in String::from_utf8(live).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        *counts.entry(line["table"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    let expected = [("audit", 1), ("event", 21), ("run", 200), ("run_event", 134 * 6), ("state", 200), ("transcript", 200)];
    assert_eq!(counts.iter().map(|(table, count)| (table.as_str(), *count)).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn compacting_shrinks_the_file_and_keeps_the_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger");
    let ledger = open(dir.path());
    filled(&ledger).await;
    let no = new_run(&ledger).await.run_no;
    // Nine of ten values go again; the tenth keeps the pages at the end of the file from being given back anyway.
    for n in 0..1_000 {
        let value = json!("x".repeat(6_000));
        drop(ledger.submit(RunWrite { state: vec![state(&format!("churn{n}"), Some(&value))], ..write(no) }).await.unwrap());
    }
    for n in (0..1_000).filter(|n| n % 10 != 9) {
        drop(ledger.submit(RunWrite { state: vec![state(&format!("churn{n}"), None)], ..write(no) }).await.unwrap());
    }
    ledger.close().await.unwrap();
    let mut before = Vec::new();
    export(&path, &mut before, |_| ()).unwrap();
    let report = compact(&path, |_| ()).unwrap();
    assert!(report.after * 2 < report.before, "{report:?}");
    let mut after = Vec::new();
    export(&path, &mut after, |_| ()).unwrap();
    assert!(before == after, "compacting changed the content");
    assert!(check(&path, |_| ()).unwrap().is_ok());
    let ledger = open(dir.path());
    finish(&ledger, no, 1).await;
    assert_eq!(ledger.transcript(&conversation("c"), None, None, 100, Direction::Backward).unwrap().items.len(), 100);
}

#[tokio::test]
async fn stats_count_rows_and_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Options::new(dir.path().join("ledger")).open().unwrap();
    filled(&ledger).await;
    let stats = ledger.stats().unwrap();
    let rows = |name: &str| stats.tables.iter().find(|table| table.name == name).map(|table| table.rows);
    // The events of a run are one row.
    assert_eq!((rows("runs"), rows("run_events"), rows("active")), (Some(200), Some(134), Some(66)));
    assert!(stats.wal_bytes > 400_000 && stats.file_bytes > 0 && stats.batches > 0 && stats.active_runs == 66, "{stats:?}");
}
