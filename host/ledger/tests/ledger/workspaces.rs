//! The bytes that the ledger keeps for each workspace: they follow from its rows, whatever comes, goes, is merged or reopened.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use std::{path::Path, time::Duration};

use crate::common::*;
use agent_host_ledger::{
    Accept, AcceptOutcome, AddRun, ArtifactRecord, ArtifactScope, Backup, Forget, Ledger, LedgerError, NewEvent, Options,
    RunWrite, StateWrite, UPLOAD, WorkspaceQuotas, WorkspaceUsage, backup, restore,
};
use agent_host_protocol::{Run, grant::workspace_of_state};
use serde_json::json;

/// Answers an event of a workspace with one delta of this size, some state and an artifact of 5,000 bytes; gives the run.
async fn answered(ledger: &Ledger, workspace: &str, bytes: usize) -> (u64, Run) {
    let mut event = event();
    let place = json!({ "workspace_id": workspace, "conversation_id": "c" });
    event.envelope.conversation = Some(serde_json::from_value(place).unwrap());
    let run = Run { workspace_id: Some(workspace.into()), conversation_id: Some("c".into()), ..run_of(&event) };
    let run_id = run.run_id;
    let scope_key = format!("1:r/6:runner/{}:{workspace}/0:/", workspace.len());
    assert_eq!(workspace_of_state(&scope_key), Some(workspace));
    let content = blob(ledger, &[7; 5_000]);
    let scope = ArtifactScope { workspace: workspace.into(), run_id: Some(run_id), ..ArtifactScope::default() };
    let new = Accept {
        artifacts: vec![ArtifactRecord { scope, ..artifact(&event.event_id.to_string(), &content, UPLOAD) }],
        state: vec![StateWrite { scope_key, ..state("k", Some(&json!("v"))) }],
        ..accept(event, vec![run])
    };
    let AcceptOutcome::New { runs, .. } = ledger.accept(new).await.unwrap() else { panic!("a new event") };
    let run_no = runs[0].run_no;
    let said = NewEvent { data: raw(&json!("x".repeat(bytes))), ..new_event(1, "message.delta") };
    let write =
        RunWrite { changes: vec![start(), completed()], events: vec![said, new_event(2, "run.completed")], ..write(run_no) };
    let run = ledger.submit(write).await.unwrap().await.unwrap();
    (run_no, Run::clone(&run))
}

fn bytes(ledger: &Ledger, workspace: &str) -> u64 {
    let exact = ledger.workspaces(100).unwrap().into_iter().find(|usage| usage.workspace == workspace);
    exact.map_or(0, |usage| usage.bytes)
}

/// Until all rows are merged, and with them counted once.
async fn settled(ledger: &Ledger, workspace: &str) -> u64 {
    for _ in 0..500 {
        if bytes(ledger, workspace) == ledger.workspace_bytes(workspace).unwrap() {
            return bytes(ledger, workspace);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{} bytes, not {}", ledger.workspace_bytes(workspace).unwrap(), bytes(ledger, workspace));
}

#[tokio::test]
async fn a_workspace_has_the_bytes_of_its_rows_and_contents() {
    let dir = tempfile::tempdir().unwrap();
    let late = Options { checkpoint_interval: Duration::from_secs(3_600), ..options(dir.path()) };
    let ledger = late.start();
    answered(&ledger, "a", 20_000).await;
    answered(&ledger, "b", 100).await;
    // Before a merge: whole batches, and no row of a run.
    let (a, b) = (ledger.workspace_bytes("a").unwrap(), ledger.workspace_bytes("b").unwrap());
    assert!((25_000..29_000).contains(&a) && (5_000..9_000).contains(&b), "{a} {b}");
    assert_eq!(ledger.workspace_bytes("nobody").unwrap(), 0);
    let exact = ledger.workspaces(10).unwrap();
    assert_eq!(exact.iter().map(|usage| usage.workspace.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    ledger.close().await.unwrap();
    is_whole(dir.path());

    let ledger = open(dir.path());
    assert_eq!(ledger.workspaces(10).unwrap(), exact, "the merge counts what was there");
    assert_eq!(ledger.workspaces(1).unwrap().len(), 1);
    assert_eq!(ledger.stats().unwrap().workspaces, exact);
    answered(&ledger, "a", 20_000).await;
    let twice = settled(&ledger, "a").await;
    assert!(twice > exact[0].bytes + 25_000, "{twice}");
    ledger.close().await.unwrap();
    is_whole(dir.path());
}

#[tokio::test]
async fn what_is_forgotten_or_collected_frees_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let (run_no, run) = answered(&ledger, "w", 30_000).await;
    let before = settled(&ledger, "w").await;
    let forget =
        Forget { conversation: conversation("c"), runs: vec![(run_no, run.run_id)], state: Vec::new(), waits: String::new() };
    ledger.forget_conversation(forget).await.unwrap();
    ledger.close().await.unwrap();
    let ledger = Options { artifact_unreferenced: Duration::ZERO, ..options(dir.path()) }.start();
    let forgotten = settled(&ledger, "w").await;
    assert!(forgotten + 30_000 < before, "{forgotten} of {before}");
    // The upload goes with the run, or when nothing has referred to it for long enough.
    ledger.collect_garbage(u64::MAX).await.unwrap();
    let collected = settled(&ledger, "w").await;
    assert!(collected + 35_000 < before, "{collected} of {before}");
    ledger.close().await.unwrap();
    is_whole(dir.path());
}

#[tokio::test]
async fn a_value_that_is_written_again_counts_once_after_the_merge() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    answered(&ledger, "w", 100).await;
    let before = settled(&ledger, "w").await;
    let run_no = running(&ledger).await;
    for n in 0..50 {
        let scope_key = "1:r/6:runner/1:w/0:/".to_owned();
        let value = json!("v".repeat(1_000 + n));
        let state = vec![StateWrite { scope_key, ..state("other", Some(&value)) }];
        ledger.submit(RunWrite { state, ..write(run_no) }).await.unwrap().await.unwrap();
    }
    let after = settled(&ledger, "w").await;
    assert!((before + 1_000..before + 2_000).contains(&after), "{after} after {before}");
}

#[tokio::test]
async fn a_backup_and_a_crash_have_the_same_sums() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let late = || Options { checkpoint_interval: Duration::from_secs(3_600), ..options(dir.path()) };
    let ledger = late().start();
    answered(&ledger, "w", 3_000).await;
    ledger.close().await.unwrap();
    let ledger = late().start();
    // Not merged: only the log has it.
    answered(&ledger, "w", 3_000).await;
    let sums = ledger.workspaces(10).unwrap();
    let to = copy.path().join("backup");
    let made = Backup { to: to.clone(), beside: Vec::new(), left_out: Vec::new(), agent_host: "0".into() };
    ledger.backup(&made).unwrap();
    let crashed = tempfile::tempdir().unwrap();
    crash(dir.path(), crashed.path());
    assert_eq!(open(crashed.path()).workspaces(10).unwrap(), sums);

    // A restore checks what it has restored.
    restore(&to, copy.path().join("ledger"), |_| ()).unwrap();
    // It has a log of its own, in files.
    let restored = |dir: &Path| options(dir).open().unwrap();
    assert_eq!(restored(copy.path()).workspaces(10).unwrap(), sums);
    ledger.close().await.unwrap();
    let again = copy.path().join("again");
    backup(dir.path().join("ledger"), &Backup { to: again.clone(), ..made }).unwrap();
    restore(&again, copy.path().join("third/ledger"), |_| ()).unwrap();
    let third: Vec<WorkspaceUsage> = restored(&copy.path().join("third")).workspaces(10).unwrap();
    assert_eq!(third, sums);
}

#[tokio::test]
async fn a_full_workspace_gets_nothing_new_and_its_runs_end() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let place = |workspace: &str| {
        let mut event = event();
        let place = json!({ "workspace_id": workspace, "conversation_id": "c" });
        event.envelope.conversation = Some(serde_json::from_value(place).unwrap());
        let run = Run { workspace_id: Some(workspace.into()), ..run_of(&event) };
        accept(event, vec![run])
    };
    let AcceptOutcome::New { runs, .. } = ledger.accept(place("w")).await.unwrap() else { panic!("a new event") };
    let (run_no, event_id) = (runs[0].run_no, runs[0].run.event_id);
    answered(&ledger, "w", 10_000).await;
    let kept = settled(&ledger, "w").await;
    let own = std::iter::once(("w".to_owned(), kept)).collect();
    ledger.set_quotas(WorkspaceQuotas { default_bytes: Some(0), workspaces: own });

    let full = |outcome: Result<(), LedgerError>| {
        let Err(LedgerError::WorkspaceFull { workspace, bytes, limit }) = outcome else { panic!("{outcome:?}") };
        assert_eq!((&*workspace, bytes >= limit, limit), ("w", true, kept));
    };
    full(ledger.accept(place("w")).await.map(drop));
    let event = agent_host_protocol::Event { event_id, ..event() };
    let fork = Run { workspace_id: Some("w".into()), ..run_of(&event) };
    let terms = raw(&json!({}));
    let add = AddRun { run: fork, terms, context: None, events: Vec::new(), journal: None, entries: Vec::new() };
    full(ledger.add_run(add).await.map(drop));
    let content = blob(&ledger, b"x");
    let scope = ArtifactScope { workspace: "w".into(), ..ArtifactScope::default() };
    let upload = ArtifactRecord { scope, ..artifact("a", &content, UPLOAD) };
    full(ledger.add_artifact(upload.clone()).await);
    full(ledger.check_quota("w"));
    ledger.add_artifact(ArtifactRecord { source: "skill".into(), ..upload }).await.unwrap();
    finish(&ledger, run_no, 3).await;

    // The default is for all others, and for what has no workspace.
    assert!(matches!(ledger.accept(place("other")).await, Err(LedgerError::WorkspaceFull { limit: 0, .. })));
    assert!(matches!(ledger.accept(place("")).await, Err(LedgerError::WorkspaceFull { limit: 0, .. })));
    let more = std::iter::once(("w".to_owned(), u64::MAX)).collect();
    ledger.set_quotas(WorkspaceQuotas { default_bytes: None, workspaces: more });
    ledger.accept(place("w")).await.unwrap();
    ledger.accept(place("other")).await.unwrap();
}
