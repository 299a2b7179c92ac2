//! Import of a ledger into a cluster with several partitions: each gets what belongs to its workspaces.

use std::path::Path;

use agent_host_ledger::{
    Accept, AcceptOutcome, ArtifactRecord, ArtifactScope, AuditRecord, Branch, ClusterError, EntryPlace, EntryWrite, Idempotency,
    ImportedLedger, JournalSegment, Ledger, OpenError, Park, Partition, PostgresServer, RunChange, RunRecord, RunWrite,
    StateWrite, StorageValue, StorageWrite, import_ledger,
};
use agent_host_protocol::{Event, EventId, HashSlot, Run, RunId, grant::ConversationKey};
use serde_json::{Value, json};

use crate::{
    common::{postgres::shared, *},
    hosts::*,
    partitions::{Host, copy},
};

const PARTITIONS: u32 = 4;
const WORKSPACES: [Option<&str>; 6] = [None, Some("a"), Some("b"), Some("c"), Some("d"), Some("e")];

fn of(workspace: Option<&str>) -> u32 {
    Partition::of_slot(HashSlot::of_workspace(workspace), PARTITIONS).number()
}

fn import(url: &str, dir: &Path) -> Result<ImportedLedger, OpenError> {
    let place = |key: &str, value: &str| match key.split_once('/')? {
        ("key", _) => Some(EntryPlace::First),
        ("everywhere", _) => Some(EntryPlace::Everywhere),
        ("run", _) => Some(EntryPlace::OfRun(serde_json::from_str(value).ok()?)),
        ("workspace", _) => Some(EntryPlace::OfWorkspace(serde_json::from_str(value).ok()?)),
        _ => None,
    };
    import_ledger(&PostgresServer::parse(url, None).unwrap(), dir.join("ledger"), &place, |_| ())
}

fn event_of(workspace: Option<&str>) -> Event {
    let (event_id, received_at) = (EventId::of_workspace(workspace), agent_host_protocol::time::now());
    let mut event = Event { event_id, received_at, ..event() };
    let place = json!({ "workspace_id": workspace, "conversation_id": "c" });
    event.envelope.conversation = Some(serde_json::from_value(place).unwrap());
    event
}

fn run_in(workspace: Option<&str>, event: &Event) -> Run {
    Run {
        run_id: RunId::of_workspace(workspace),
        workspace_id: workspace.map(Into::into),
        conversation_id: Some("c".into()),
        ..run_of(event)
    }
}

async fn accepted(ledger: &Ledger, accept: Accept) -> RunRecord {
    let AcceptOutcome::New { runs, .. } = ledger.accept(accept).await.unwrap() else { panic!("repeated") };
    runs.into_iter().next().unwrap()
}

/// A turn of the conversation of a workspace, with one of everything that a ledger has.
async fn turn(ledger: &Ledger, workspace: Option<&str>, n: u64) -> EventId {
    let event = event_of(workspace);
    let (event_id, name) = (event.event_id, workspace.unwrap_or_default());
    let key = ConversationKey::new(name, "c", "");
    let said = || agent_host_ledger::NewItem { conversation: key.clone(), ..item("c", "said", event_id) };
    let run = run_in(workspace, &event);
    let run_id = run.run_id;
    let new = Accept {
        idempotency: Some(Idempotency { key: format!("{name}/{n}"), body_hash: [7; 32] }),
        transcript: Some(said()),
        entries: vec![EntryWrite::put(format!("run/{run_id}"), &run_id).unwrap()],
        ..accept(event, vec![run])
    };
    let run_no = accepted(ledger, new).await.run_no;
    let kept = blob(ledger, format!("content {} of {name}", n % 2).as_bytes());
    let scope = ArtifactScope { workspace: name.to_owned(), ..ArtifactScope::default() };
    let made = ArtifactRecord {
        scope,
        expires_at: n.is_multiple_of(2).then_some(u64::MAX / 4),
        ..artifact(&EventId::of_workspace(workspace).to_string(), &kept, "runner")
    };
    let storage = |key: &str, value| StorageWrite {
        area_key: format!("9:workspace/{}:{name}/", name.len()),
        key: key.to_owned(),
        value: Some(value),
        quota: None,
    };
    let scope_key = key.state_key(&"plugin:a/b/c".parse().unwrap());
    let first = RunWrite {
        changes: vec![start()],
        events: deltas(1..=2),
        transcript: vec![said()],
        state: vec![StateWrite { scope_key, ..state(&format!("key-{}", n % 3), Some(&json!(n))) }],
        storage: vec![storage("inline", StorageValue::Inline(vec![1; 20])), storage("blob", StorageValue::Blob(kept.clone()))],
        artifacts: vec![made],
        audit: vec![AuditRecord { run_id: Some(run_id), action: "state.set".into(), ..AuditRecord::default() }].into(),
        journal: Some(JournalSegment { first: 1, bytes: b"entries".to_vec(), blobs: vec![kept] }),
        ..write(run_no)
    };
    ledger.submit(first).await.unwrap().await.unwrap();
    let last = if n.is_multiple_of(3) {
        let wait = RunChange::Wait { at: 2_500, reason: "sleep".into() };
        RunWrite { changes: vec![wait], park: Some(Park { wake_at: 9_000 + n, keys: vec!["run/x".into()] }), ..write(run_no) }
    } else {
        RunWrite { changes: vec![completed()], events: vec![new_event(3, "run.completed")], ..write(run_no) }
    };
    ledger.submit(last).await.unwrap().await.unwrap();
    event_id
}

/// The lines of an export, without the numbers that each partition gives for itself.
fn lines(export: &str) -> Vec<String> {
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        for number in ["event_no", "run_no", "audit_no"] {
            line.as_object_mut().unwrap().remove(number);
        }
        line.to_string()
    };
    let mut lines: Vec<_> = export.lines().map(line).collect();
    lines.sort();
    lines
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_partition_gets_what_belongs_to_its_workspaces_and_goes_on_with_it() {
    let [dir, one, other] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let ledger = host_options(dir.path()).open().unwrap();
    let mut events = Vec::new();
    for n in 0..10 {
        for workspace in WORKSPACES {
            events.push((workspace, turn(&ledger, workspace, n).await));
        }
    }
    // The third message of each conversation is asked again, and what followed has left it.
    for workspace in WORKSPACES {
        let from = events.iter().filter(|(of, _)| *of == workspace).nth(2).unwrap().1;
        let event = event_of(workspace);
        let run = run_in(workspace, &event);
        accepted(&ledger, Accept { branch: Some(Branch { from, until: None }), ..accept(event, vec![run]) }).await;
        ledger.put_entries(&[EntryWrite::put(format!("workspace/{workspace:?}"), &workspace).unwrap()]).await.unwrap();
    }
    let entries = [EntryWrite::put("key/1", &1).unwrap(), EntryWrite::put("everywhere/1", &1).unwrap()];
    ledger.put_entries(&entries).await.unwrap();
    ledger.audit(vec![AuditRecord { action: "keys.create".into(), ..AuditRecord::default() }]).await.unwrap();
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    // Now all is merged, and rows of events are packed.
    let ledger = host_options(dir.path()).open().unwrap();
    let mut usage = ledger.workspaces(100).unwrap();
    usage.sort_by(|one, other| one.workspace.cmp(&other.workspace));
    ledger.close().await.unwrap();

    let url = shared().url(&cluster_of(shared(), PARTITIONS));
    let imported = import(&url, dir.path()).unwrap();
    assert_eq!(imported.other_ids, 0);
    // Two contents of each workspace.
    assert_eq!(imported.blobs, 2 * WORKSPACES.len() as u64, "{imported:?}");
    let host = Host::of(one.path(), &member(&url, "a:1"));
    until("the host has all partitions", || host.owns().len() == PARTITIONS as usize);
    let ledgers: Vec<_> = (0..PARTITIONS).map(|partition| host.ledger(partition).unwrap()).collect();
    let all: String = ledgers.iter().map(exported).collect();
    let (found, wanted) = (lines(&all), lines(&before));
    let missing: Vec<_> = wanted.iter().filter(|line| !found.contains(line)).collect();
    let foreign: Vec<_> = found.iter().filter(|line| !wanted.contains(line)).collect();
    assert!(found == wanted, "missing: {missing:?}; foreign: {foreign:?}");
    let mut usages: Vec<_> = ledgers.iter().flat_map(|ledger| ledger.workspaces(100).unwrap()).collect();
    usages.sort_by(|one, other| one.workspace.cmp(&other.workspace));
    assert_eq!(usages, usage);
    for (number, ledger) in (0..).zip(&ledgers) {
        let has = |key: &str| ledger.entry(key).unwrap().is_some();
        assert!(has("everywhere/1") && has("key/1") == (number == 0));
        for workspace in WORKSPACES {
            assert_eq!(has(&format!("workspace/{workspace:?}")), of(workspace) == number, "{workspace:?} in {number}");
        }
    }
    for workspace in WORKSPACES {
        let ledger = &ledgers[of(workspace) as usize];
        let key = ConversationKey::new(workspace.unwrap_or_default(), "c", "");
        // Two messages are left, and the new one, which has no item.
        assert_eq!(ledger.transcript_range(&key, 0, 100).unwrap().len(), 4, "{workspace:?}");
        let (_, event_id) = events.iter().find(|(of, _)| *of == workspace).unwrap();
        assert_eq!(ledger.event(*event_id).unwrap().unwrap().event.event_id, *event_id);
        // A message that was sent before the import is known, and new ones follow.
        let again = Idempotency { key: format!("{}/3", workspace.unwrap_or_default()), body_hash: [7; 32] };
        let repeated = ledger.accept(Accept { idempotency: Some(again), ..accept(event_of(workspace), vec![]) }).await.unwrap();
        assert!(matches!(repeated, AcceptOutcome::Repeated { .. }));
        turn(ledger, workspace, 100).await;
    }
    let after: Vec<_> = ledgers.iter().map(exported).collect();
    drop(ledgers);
    host.stop();
    (0..PARTITIONS).for_each(|partition| is_whole(copy(one.path(), partition).dir.parent().unwrap()));
    // A host that has only the database.
    let host = Host::of(other.path(), &member(&url, "b:1"));
    until("the next host has all partitions", || host.owns().len() == PARTITIONS as usize);
    for (partition, after) in (0..).zip(after) {
        assert_eq!(exported(&host.ledger(partition).unwrap()), after);
    }
    host.stop();
    (0..PARTITIONS).for_each(|partition| is_whole(copy(other.path(), partition).dir.parent().unwrap()));
    let error = import(&url, dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::HasBatches { .. })), "{error}");
}

/// Ids of versions before do not say their partition: a run that has ended is found by its workspace, one that has not is not imported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_under_way_that_no_request_would_find_are_refused_and_so_is_an_entry_of_no_known_kind() {
    let dir = tempfile::tempdir().unwrap();
    let url = shared().url(&cluster_of(shared(), PARTITIONS));
    let ledger = host_options(dir.path()).open().unwrap();
    let event = event_of(Some("a"));
    let elsewhere = WORKSPACES.into_iter().find(|other| of(*other) != of(Some("a"))).unwrap();
    let run = Run { run_id: RunId::of_workspace(elsewhere), ..run_in(Some("a"), &event) };
    let run = accepted(&ledger, accept(event, vec![run])).await;
    ledger.put_entries(&[EntryWrite::put("unknown/1", &1).unwrap()]).await.unwrap();
    ledger.close().await.unwrap();
    let error = import(&url, dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::ImportOtherIds { runs: 1, .. })), "{error}");
    let ledger = host_options(dir.path()).open().unwrap();
    finish(&ledger, run.run_no, 1).await;
    ledger.close().await.unwrap();
    let error = import(&url, dir.path()).unwrap_err();
    assert!(error.to_string().contains("`unknown/1` is of no known kind"), "{error}");
    let ledger = host_options(dir.path()).open().unwrap();
    ledger.put_entries(&[EntryWrite::delete("unknown/1")]).await.unwrap();
    // An event of one workspace with a run of another one.
    let event = event_of(elsewhere);
    let run = accepted(&ledger, accept(event.clone(), vec![run_in(Some("a"), &event)])).await;
    ledger.close().await.unwrap();
    let error = import(&url, dir.path()).unwrap_err();
    assert!(matches!(&error, OpenError::Cluster(ClusterError::ImportDivides { .. })), "{error} {run:?}");
    assert!(status_of(&url).partitions.iter().all(|partition| partition.last_batch == 0 && partition.snapshots.is_empty()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_whose_run_has_ended_is_imported_whatever_its_id() {
    let (dir, one) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let url = shared().url(&cluster_of(shared(), PARTITIONS));
    let ledger = host_options(dir.path()).open().unwrap();
    let event = event_of(Some("a"));
    let elsewhere = WORKSPACES.into_iter().find(|other| of(*other) != of(Some("a"))).unwrap();
    let run = Run { run_id: RunId::of_workspace(elsewhere), ..run_in(Some("a"), &event) };
    let run_id = run.run_id;
    let run = accepted(&ledger, accept(event, vec![run])).await;
    finish(&ledger, run.run_no, 1).await;
    ledger.close().await.unwrap();
    assert_eq!(import(&url, dir.path()).unwrap().other_ids, 1);
    let host = Host::of(one.path(), &member(&url, "a:1"));
    until("the host has all partitions", || host.owns().len() == PARTITIONS as usize);
    let found = |partition| host.ledger(partition).unwrap().run(run_id).unwrap().is_some();
    assert_eq!((0..PARTITIONS).filter(|partition| found(*partition)).collect::<Vec<_>>(), [of(Some("a"))]);
    host.stop();
}
