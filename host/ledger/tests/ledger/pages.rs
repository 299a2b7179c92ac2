//! Pages and cursors.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use crate::common::*;
use agent_host_ledger::{Accept, AuditRecord, Feed, FeedBounds, Ledger, LedgerError, RunFilter, RunWrite};
use agent_host_protocol::{EventId, Page, RunEvent, RunId, RunStatus, page::Direction, transcript::TranscriptItem};

fn seqs(page: &Page<TranscriptItem>) -> Vec<u64> {
    page.items.iter().map(|item| item.seq).collect()
}

async fn write_messages(ledger: &Ledger, name: &str, count: usize) {
    for n in 0..count {
        let event = event();
        let transcript = Some(item(name, &format!("message {n}"), event.event_id));
        ledger.accept(Accept { transcript, ..accept(event, Vec::new()) }).await.unwrap();
    }
}

#[tokio::test]
async fn a_transcript_is_paged_in_both_directions() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    write_messages(&ledger, "other", 3).await;
    write_messages(&ledger, "c", 10).await;
    let key = conversation("c");
    assert_eq!(ledger.transcript_len(&key).unwrap(), 10);

    let page = ledger.transcript(&key, None, None, 4, Direction::Backward).unwrap();
    assert_eq!((seqs(&page), page.has_more), (vec![10, 9, 8, 7], true));
    let page = ledger.transcript(&key, page.next_cursor.as_deref(), None, 4, Direction::Backward).unwrap();
    assert_eq!(seqs(&page), [6, 5, 4, 3]);
    let page = ledger.transcript(&key, page.next_cursor.as_deref(), None, 4, Direction::Backward).unwrap();
    assert_eq!((seqs(&page), page.has_more, page.next_cursor), (vec![2, 1], false, None));

    let page = ledger.transcript(&key, None, None, 6, Direction::Forward).unwrap();
    assert_eq!((seqs(&page), page.has_more), (vec![1, 2, 3, 4, 5, 6], true));
    let page = ledger.transcript(&key, None, page.next_cursor.as_deref(), 6, Direction::Forward).unwrap();
    assert_eq!((seqs(&page), page.has_more), (vec![7, 8, 9, 10], false));
    let end = page.next_cursor.clone();
    let page = ledger.transcript(&key, None, end.as_deref(), 6, Direction::Forward).unwrap();
    assert!(page.items.is_empty() && page.next_cursor == end && !page.has_more);
    write_messages(&ledger, "c", 1).await;
    assert_eq!(seqs(&ledger.transcript(&key, None, end.as_deref(), 6, Direction::Forward).unwrap()), [11]);

    let (low, high) = (Ledger::transcript_cursor(&key, 3), Ledger::transcript_cursor(&key, 6));
    for (direction, expected) in [(Direction::Forward, [4, 5]), (Direction::Backward, [5, 4])] {
        assert_eq!(seqs(&ledger.transcript(&key, Some(&high), Some(&low), 100, direction).unwrap()), expected);
        assert!(ledger.transcript(&key, Some(&low), Some(&high), 100, direction).unwrap().items.is_empty());
    }
    let item = &ledger.transcript(&key, None, None, 1, Direction::Forward).unwrap().items[0];
    assert_eq!(
        (item.conversation_id.as_deref(), item.thread_id.as_deref(), &item.cursor),
        (Some("c"), None, &Ledger::transcript_cursor(&key, 1))
    );
}

#[tokio::test]
async fn a_conversation_without_a_word_is_an_empty_page() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let page = ledger.transcript(&conversation("c"), None, None, 10, Direction::Backward).unwrap();
    assert!(page.items.is_empty() && !page.has_more && page.next_cursor.is_none());
    assert_eq!(ledger.transcript_len(&conversation("c")).unwrap(), 0);
}

#[tokio::test]
async fn a_follower_of_a_run_goes_on_from_any_page() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let record = new_run(&ledger).await;
    let id = record.run.run_id;
    let empty = ledger.run_events(id, None, 10).unwrap();
    assert!(empty.items.is_empty() && !empty.has_more);
    drop(
        ledger
            .submit(RunWrite { changes: vec![start()], events: deltas(1..=5), ..write(record.run_no) })
            .await
            .unwrap()
            .await
            .unwrap(),
    );
    let page = ledger.run_events(id, empty.next_cursor.as_deref(), 5).unwrap();
    assert_eq!((page.items.len(), page.has_more), (5, false));
    assert_eq!(page.next_cursor.as_deref(), Some(Ledger::run_cursor(id, 5).as_str()));
    let page = ledger.run_events(id, Some(&Ledger::run_cursor(id, 2)), 2).unwrap();
    assert_eq!((page.items[0].sequence, page.items[1].sequence, page.has_more), (3, 4, true));
    let end = ledger.run_events(id, Some(&Ledger::run_cursor(id, u64::MAX)), 2).unwrap();
    assert!(end.items.is_empty() && !end.has_more);
    assert_eq!(Ledger::parse_run_cursor(id, &Ledger::run_cursor(id, 5)).unwrap(), 5);
    assert!(matches!(ledger.run_events(RunId::new(), None, 5), Err(LedgerError::NotFound(_))));

    // Backward, from the end and between two places; each page continues where the one before ended.
    let backward = |before: Option<u64>, after: Option<u64>, limit| {
        let [before, after] = [before, after].map(|place| place.map(|sequence| Ledger::run_cursor(id, sequence)));
        ledger.run_events_page(id, before.as_deref(), after.as_deref(), limit, Direction::Backward).unwrap()
    };
    let numbers = |page: &Page<RunEvent>| page.items.iter().map(|event| event.sequence).collect::<Vec<_>>();
    let newest = backward(None, None, 2);
    assert_eq!((numbers(&newest), newest.has_more), (vec![5, 4], true));
    assert_eq!(newest.next_cursor, Some(Ledger::run_cursor(id, 4)));
    assert_eq!(newest.prev_cursor, Some(Ledger::run_cursor(id, 5)));
    let rest = backward(Some(4), None, 3);
    assert_eq!((numbers(&rest), rest.has_more, &rest.next_cursor), (vec![3, 2, 1], false, &None));
    for (before, after, numbered) in
        [(Some(5), Some(2), vec![4, 3]), (Some(1), None, vec![]), (None, Some(5), vec![]), (Some(u64::MAX), Some(4), vec![5])]
    {
        assert_eq!(numbers(&backward(before, after, 100)), numbered, "{before:?} {after:?}");
    }
    let before = Ledger::run_cursor(id, 4);
    let between = ledger.run_events_page(id, Some(&before), None, 2, Direction::Forward).unwrap();
    assert_eq!((numbers(&between), between.has_more), (vec![1, 2], true));
}

#[tokio::test]
async fn a_foreign_or_malformed_cursor_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let (one, two) = (new_run(&ledger).await, new_run(&ledger).await);
    write_messages(&ledger, "c", 1).await;
    let of_run = Ledger::run_cursor(one.run.run_id, 1);
    let of_other = Ledger::transcript_cursor(&conversation("other"), 1);
    let refused = |result: Result<(), LedgerError>| assert!(matches!(result, Err(LedgerError::InvalidCursor(_))), "{result:?}");
    for cursor in [of_run.as_str(), of_other.as_str(), "", "x", "e0", "é".repeat(20).as_str()] {
        refused(ledger.run_events(two.run.run_id, Some(cursor), 5).map(drop));
        refused(ledger.transcript(&conversation("c"), Some(cursor), None, 5, Direction::Backward).map(drop));
        refused(ledger.transcript(&conversation("c"), None, Some(cursor), 5, Direction::Forward).map(drop));
        refused(ledger.runs_page(&RunFilter::default(), Some(cursor), 5).map(drop));
        refused(ledger.audit_page(one.run.run_id, Some(cursor), 5).map(drop));
        refused(Feed::Audit.number(cursor).map(drop));
        refused(Feed::Events.number(&Feed::Audit.cursor(1)).map(drop));
        refused(Ledger::parse_run_cursor(two.run.run_id, cursor).map(drop));
    }
}

#[tokio::test]
async fn a_page_has_1_to_100_items() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let id = new_run(&ledger).await.run.run_id;
    for limit in [0, 101, u32::MAX] {
        let refused =
            |result: Result<(), LedgerError>| assert!(matches!(result, Err(LedgerError::InvalidLimit(l)) if l == limit));
        refused(ledger.run_events(id, None, limit).map(drop));
        refused(ledger.runs_page(&RunFilter::default(), None, limit).map(drop));
        refused(ledger.transcript(&conversation("c"), None, None, limit, Direction::Forward).map(drop));
        refused(ledger.audit_page(id, None, limit).map(drop));
        let bounds = FeedBounds { direction: Direction::Backward, from: u64::MAX, limit, examined: 9 };
        refused(ledger.audit_feed(bounds, |_| true).map(drop));
        refused(ledger.state_keys("s", None, limit).map(drop));
    }
    assert!(ledger.run_events(id, None, 1).is_ok() && ledger.run_events(id, None, 100).is_ok());
}

fn all_runs(ledger: &Ledger, filter: &RunFilter, limit: u32) -> (Vec<RunId>, usize) {
    let (mut ids, mut pages, mut cursor) = (Vec::new(), 0, None);
    loop {
        let page = ledger.runs_page(filter, cursor.as_deref(), limit).unwrap();
        ids.extend(page.items.iter().map(|run| run.run_id));
        pages += 1;
        assert_eq!(page.has_more, page.next_cursor.is_some());
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => return (ids, pages),
        }
    }
}

#[tokio::test]
async fn runs_are_listed_newest_first_and_filtered() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let mut records = Vec::new();
    for _ in 0..5 {
        records.extend(new_runs(&ledger, 5).await);
    }
    for record in records.iter().filter(|record| record.run_no % 2 == 0) {
        finish(&ledger, record.run_no, 1).await;
    }
    records.reverse();
    let ids = |keep: &dyn Fn(u64) -> bool| records.iter().filter(|r| keep(r.run_no)).map(|r| r.run.run_id).collect::<Vec<_>>();
    for limit in [1, 7, 25, 100] {
        assert_eq!(all_runs(&ledger, &RunFilter::default(), limit).0, ids(&|_| true));
        let completed = RunFilter { status: Some(RunStatus::Completed), ..RunFilter::default() };
        assert_eq!(all_runs(&ledger, &completed, limit).0, ids(&|no| no % 2 == 0));
        let created = RunFilter { status: Some(RunStatus::Created), ..RunFilter::default() };
        assert_eq!(all_runs(&ledger, &created, limit).0, ids(&|no| no % 2 == 1));
        let of_event = RunFilter { event_id: Some(records[7].run.event_id), ..RunFilter::default() };
        assert_eq!(all_runs(&ledger, &of_event, limit).0, ids(&|no| (16..=20).contains(&no)));
        let nobody = RunFilter { binding_id: Some("none".into()), ..RunFilter::default() };
        assert_eq!(all_runs(&ledger, &nobody, limit).0, Vec::new());
    }
}

#[tokio::test]
async fn rare_runs_are_found_at_once_by_their_lists_and_else_within_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let event = event();
    let rare = agent_host_protocol::Run {
        binding_id: "rare".into(),
        runner_id: "plugin:test/rare/default".parse().unwrap(),
        conversation_id: Some("rare".into()),
        parent_run_id: Some(RunId::new()),
        ..run_of(&event)
    };
    let mut runs = vec![rare.clone()];
    runs.extend((0..4_500).map(|_| run_of(&event)));
    ledger.accept(accept(event, runs)).await.unwrap();
    ledger
        .submit(RunWrite { changes: vec![failed()], events: vec![new_event(1, "run.failed")], ..write(1) })
        .await
        .unwrap()
        .await
        .unwrap();
    let all = RunFilter::default;
    let listed = [
        RunFilter { binding_id: Some("rare".into()), ..all() },
        RunFilter { conversation_id: Some("rare".into()), ..all() },
        RunFilter { parent_run_id: rare.parent_run_id, ..all() },
        RunFilter { status: Some(RunStatus::Failed), ..all() },
        RunFilter { status: Some(RunStatus::Failed), binding_id: Some("rare".into()), ..all() },
    ];
    let none = [
        RunFilter { binding_id: Some("rar".into()), ..all() },
        RunFilter { conversation_id: Some("rare\u{7f}".into()), ..all() },
        RunFilter { status: Some(RunStatus::Cancelled), ..all() },
    ];
    let look = |ledger: &Ledger| {
        for filter in &listed {
            assert_eq!(all_runs(ledger, filter, 10), (vec![rare.run_id], 1), "{filter:?}");
        }
        for filter in &none {
            assert_eq!(all_runs(ledger, filter, 10), (Vec::new(), 1), "{filter:?}");
        }
    };
    look(&ledger);
    // Runners have no list: a page looks at a bounded number of runs.
    let filter = RunFilter { runner_id: Some(rare.runner_id.clone()), ..all() };
    let first = ledger.runs_page(&filter, None, 10).unwrap();
    assert!(first.items.is_empty() && first.has_more);
    assert_eq!(all_runs(&ledger, &filter, 10), (vec![rare.run_id], 3));
    // From redb as well.
    ledger.close().await.unwrap();
    let report = agent_host_ledger::check(dir.path().join("ledger"), |_| ()).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
    look(&open(dir.path()));
}

#[tokio::test]
async fn audit_records_are_paged_by_run_and_all_together() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let (one, two) = (new_run(&ledger).await, new_run(&ledger).await);
    let record = |run: Option<RunId>, n: u64| AuditRecord {
        at: n,
        run_id: run,
        action: "a".into(),
        outcome: "ok".into(),
        ..AuditRecord::default()
    };
    for n in 0..6 {
        let id = if n % 2 == 0 { one.run.run_id } else { two.run.run_id };
        ledger.audit(vec![record(Some(id), n), record(None, n)]).await.unwrap();
    }
    ledger.submit(write(one.run_no)).await.unwrap().await.unwrap();
    let page = ledger.audit_page(one.run.run_id, None, 2).unwrap();
    assert_eq!((page.items.iter().map(|r| r.at).collect::<Vec<_>>(), page.has_more), (vec![0, 2], true));
    let page = ledger.audit_page(one.run.run_id, page.next_cursor.as_deref(), 2).unwrap();
    assert_eq!((page.items.iter().map(|r| r.at).collect::<Vec<_>>(), page.has_more), (vec![4], false));
    let step = audit_before(&ledger, u64::MAX, 7);
    assert_eq!((step.items[0].1.at, step.items.len(), step.has_more), (5, 7, true));
    let rest = audit_before(&ledger, step.position, 7);
    assert_eq!((rest.items.len(), rest.has_more), (5, false));
    // Forward from any place: what follows, oldest first, in bounded steps.
    let all: Vec<u64> = rest.items.iter().rev().chain(step.items.iter().rev()).map(|(number, _)| *number).collect();
    for from in [0, all[0], all[3], all[11]] {
        let (mut seen, mut place) = (Vec::new(), from);
        loop {
            let bounds = FeedBounds { direction: Direction::Forward, from: place, limit: 2, examined: 3 };
            let step = ledger.audit_feed(bounds, |record| record.run_id.is_some()).unwrap();
            seen.extend(step.items.iter().map(|(number, record)| (*number, record.at)));
            place = step.position;
            if !step.has_more {
                break;
            }
        }
        let wanted: Vec<u64> = all.iter().copied().filter(|number| *number > from && number % 2 == all[0] % 2).collect();
        assert_eq!(seen.iter().map(|(number, _)| *number).collect::<Vec<_>>(), wanted, "from {from}");
        assert_eq!(place, all[11]);
    }
    assert_eq!(ledger.feed_end(Feed::Audit).unwrap(), all[11]);
}

#[tokio::test]
async fn the_events_of_a_conversation_are_paged_backward_by_type() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let key = conversation("c");
    let mut ids = Vec::new();
    for n in 0..25 {
        let event = event_in("c", if n % 5 == 0 { "message.edited" } else { "message.received" });
        ids.push(event.event_id);
        ledger.accept(accept(event, Vec::new())).await.unwrap();
        ledger.accept(accept(event_in("other", "message.received"), Vec::new())).await.unwrap();
        new_runs(&ledger, 0).await;
    }
    ids.reverse();
    let types = |types: &[&str]| types.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let read = |types: &[String], limit| {
        let (mut found, mut before) = (Vec::new(), None);
        loop {
            let page = ledger.conversation_events(&key, before.as_deref(), types, limit).unwrap();
            assert!(page.items.len() <= limit as usize && page.has_more == page.next_cursor.is_some());
            found.extend(page.items.iter().map(|event| event.event_id));
            match page.next_cursor {
                Some(cursor) => before = Some(cursor),
                None => return found,
            }
        }
    };
    assert_eq!(read(&[], 4), ids);
    assert_eq!(read(&[], 100), ids);
    let edited: Vec<_> = ids.iter().rev().step_by(5).rev().copied().collect();
    assert_eq!(read(&types(&["message.edited"]), 2), edited);
    assert_eq!(read(&types(&["message.edited", "message.received"]), 7), ids);
    assert!(read(&types(&["nothing"]), 7).is_empty());

    let cursor = ledger.conversation_events(&key, None, &[], 1).unwrap().next_cursor.unwrap();
    assert_eq!(ledger.conversation_event_cursor(&key, ids[0]).unwrap(), Some(cursor.clone()));
    assert_eq!(ledger.conversation_event_cursor(&conversation("other"), ids[0]).unwrap(), None);
    for foreign in [cursor.as_str(), &Ledger::transcript_cursor(&conversation("other"), 3), "x"] {
        let error = ledger.conversation_events(&conversation("other"), Some(foreign), &[], 5).unwrap_err();
        assert!(matches!(error, LedgerError::InvalidCursor(_)), "{error}");
    }
    assert!(matches!(ledger.conversation_events(&key, None, &[], 0), Err(LedgerError::InvalidLimit(0))));
    assert!(ledger.conversation_events(&conversation("none"), None, &[], 5).unwrap().items.is_empty());
    // Entries without a transcript.
    assert_eq!(ledger.transcript_len(&key).unwrap(), 0);
    assert_eq!(ledger.conversations(None, 10).unwrap(), [key.clone(), conversation("other")]);
    assert_eq!(ledger.conversations(Some(&key), 10).unwrap(), [conversation("other")]);
}

#[tokio::test]
async fn items_of_a_transcript_are_found_by_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let run_no = running(&ledger).await;
    let transcript = (1..=7).map(|n| item("c", &format!("said {n}"), EventId::new())).collect();
    ledger.submit(RunWrite { transcript, ..write(run_no) }).await.unwrap().await.unwrap();
    let key = conversation("c");
    let seqs = |items: Vec<TranscriptItem>| items.iter().map(|item| item.seq).collect::<Vec<_>>();
    assert_eq!(seqs(ledger.transcript_items(&key, &[5, 1, 99, 0, 5]).unwrap()), [5, 1, 5]);
    assert_eq!(seqs(ledger.transcript_range(&key, 0, 3).unwrap()), [1, 2, 3]);
    assert_eq!(seqs(ledger.transcript_range(&key, 5, 100).unwrap()), [6, 7]);
    assert!(ledger.transcript_range(&key, u64::MAX, 3).unwrap().is_empty());
    assert!(ledger.transcript_items(&conversation("d"), &[1]).unwrap().is_empty());
    let item = ledger.transcript_items(&key, &[2]).unwrap().remove(0);
    let page = ledger.transcript(&key, None, None, 100, Direction::Forward).unwrap();
    assert_eq!(page.items[1], item);
}

#[tokio::test]
async fn old_audit_records_are_pruned_and_their_numbers_are_not_given_again() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let run = new_run(&ledger).await;
    let id = run.run.run_id;
    let record = |run_id: Option<RunId>, at: u64| AuditRecord { at, run_id, action: "a".into(), ..AuditRecord::default() };
    // More than one operation deletes, with and without a run.
    for n in 0..400 {
        ledger.audit(vec![record(Some(id), n), record(None, n), record(Some(id), n)]).await.unwrap();
        // A group commit, whose records are one row.
        ledger.submit(write(run.run_no)).await.unwrap().await.unwrap();
    }
    let of_run =
        |ledger: &Ledger| -> Vec<u64> { ledger.audit_page(id, None, 100).unwrap().items.iter().map(|item| item.at).collect() };
    assert_eq!(ledger.prune_audit(0).await.unwrap(), 0);
    assert_eq!(ledger.prune_audit(390).await.unwrap(), 390 * 3);
    let rest: Vec<u64> = (390..400).flat_map(|at| [at, at]).collect();
    assert_eq!(of_run(&ledger), rest);
    assert_eq!(audit_before(&ledger, u64::MAX, 100).items.len(), 30);
    let ledger = reopened(ledger, dir.path()).await;
    assert_eq!(of_run(&ledger), rest);
    // The last row stays, for its number.
    let end = ledger.feed_end(Feed::Audit).unwrap();
    assert_eq!(ledger.prune_audit(u64::MAX).await.unwrap(), 9 * 3);
    let ledger = reopened(ledger, dir.path()).await;
    ledger.audit(vec![record(None, 1_000)]).await.unwrap();
    ledger.submit(write(run.run_no)).await.unwrap().await.unwrap();
    assert_eq!((of_run(&ledger), ledger.feed_end(Feed::Audit).unwrap()), (vec![399, 399], end + 1));
    ledger.close().await.unwrap();
    let report = agent_host_ledger::salvage(dir.path().join("ledger"), dir.path().join("salvaged"), |_| ()).unwrap();
    assert!(report.missing.is_empty(), "{:?}", report.missing);
}

/// The ledger after a clean end and a check without findings.
async fn reopened(ledger: Ledger, dir: &std::path::Path) -> Ledger {
    ledger.close().await.unwrap();
    let report = agent_host_ledger::check(dir.join("ledger"), |_| ()).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
    open(dir)
}

#[tokio::test]
async fn the_newest_time_of_a_ledger_is_that_of_its_last_change() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    assert_eq!(ledger.newest_at().unwrap(), None);
    let run = new_run(&ledger).await;
    let accepted = ledger.newest_at().unwrap();
    assert!(accepted.is_some_and(|at| at < 2_000), "{accepted:?}");
    ledger.submit(RunWrite { changes: vec![start()], ..write(run.run_no) }).await.unwrap().await.unwrap();
    assert_eq!(ledger.newest_at().unwrap(), Some(2_000), "a run under way");
    let end = RunWrite { changes: vec![completed()], events: vec![new_event(1, "run.completed")], ..write(run.run_no) };
    ledger.submit(end).await.unwrap().await.unwrap();
    assert_eq!(ledger.newest_at().unwrap(), Some(3_000), "a run that has ended");
}
