//! Branches: what a conversation has left out stays on disk and is not of the present conversation.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use std::path::Path;

use crate::common::*;
use agent_host_ledger::{Accept, Branch, Ledger, LedgerError, NewRun, RunWrite, check, export};
use agent_host_protocol::{EventId, grant::ConversationKey, page::Direction};
use serde_json::{Value, json};

/// Says something in the conversation `c`, with a branch.
async fn say(ledger: &Ledger, text: &str, branch: Option<Branch>) -> Result<EventId, LedgerError> {
    let event = event_in("c", "message.received");
    let (id, transcript) = (event.event_id, Some(item("c", text, event.event_id)));
    ledger.accept(Accept { transcript, branch, ..accept(event, Vec::new()) }).await.map(|_| id)
}

const fn from(from: EventId) -> Option<Branch> {
    Some(Branch { from, until: None })
}

fn key() -> ConversationKey {
    conversation("c")
}

/// The numbers of the items of the present conversation, read in each way.
fn present(ledger: &Ledger) -> Vec<u64> {
    let seqs =
        |items: Vec<agent_host_protocol::transcript::TranscriptItem>| items.iter().map(|item| item.seq).collect::<Vec<_>>();
    let all = seqs(ledger.transcript_range(&key(), 0, 100).unwrap());
    let forward = ledger.transcript(&key(), None, None, 100, Direction::Forward).unwrap();
    let mut backward = seqs(ledger.transcript(&key(), None, None, 100, Direction::Backward).unwrap().items);
    backward.reverse();
    let some: Vec<u64> = (1..=ledger.transcript_len(&key()).unwrap()).collect();
    assert_eq!(all, seqs(forward.items));
    assert_eq!(all, backward);
    assert_eq!(all, seqs(ledger.transcript_items(&key(), &some).unwrap()));
    let events = ledger.conversation_events(&key(), None, &[], 100).unwrap().items;
    assert_eq!(events.len(), all.len());
    all
}

fn lines(dir: &Path) -> Vec<Value> {
    let mut text = Vec::new();
    export(dir.join("ledger"), &mut text, |_| ()).unwrap();
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(|line| serde_json::from_slice(line).unwrap()).collect()
}

#[tokio::test]
async fn a_branch_takes_the_place_of_what_followed() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let one = say(&ledger, "one", None).await.unwrap();
    let two = say(&ledger, "two", None).await.unwrap();
    let three = say(&ledger, "three", None).await.unwrap();
    let foreign = event_in("other", "message.received");
    let foreign_id = foreign.event_id;
    ledger.accept(accept(foreign, Vec::new())).await.unwrap();
    // The last one, twice; then one before it, with another one that stays.
    let again = say(&ledger, "three again", from(three)).await.unwrap();
    assert_eq!(present(&ledger), [1, 2, 4]);
    say(&ledger, "three once more", from(again)).await.unwrap();
    assert_eq!(present(&ledger), [1, 2, 5]);
    let stays = say(&ledger, "two, better", None).await.unwrap();
    let last = say(&ledger, "and more", Some(Branch { from: two, until: Some(stays) })).await.unwrap();
    assert_eq!(present(&ledger), [1, 6, 7]);
    assert!(ledger.has_left_conversation(&key(), two).unwrap());
    assert!(!ledger.has_left_conversation(&key(), last).unwrap());
    // What has left, what is of another conversation, and what is not there begin nothing, and change nothing.
    for wrong in [two, three, foreign_id] {
        let refused = say(&ledger, "no", from(wrong)).await;
        assert!(matches!(refused, Err(LedgerError::Conflict { .. })), "{refused:?}");
    }
    assert!(matches!(say(&ledger, "no", from(EventId::new())).await, Err(LedgerError::NotFound(_))));
    assert_eq!(present(&ledger), [1, 6, 7]);
    // In one batch, each sees the one before.
    let both = tokio::join!(say(&ledger, "a", from(last)), say(&ledger, "b", from(last)));
    assert!(matches!(both, (Ok(_), Err(LedgerError::Conflict { .. }))), "{both:?}");
    assert_eq!(present(&ledger), [1, 6, 8]);
    assert_eq!(ledger.transcript_item(&key(), 2).unwrap().unwrap().event_id, two, "the record has it");
    ledger.close().await.unwrap();

    let ledger = open(dir.path());
    assert_eq!(present(&ledger), [1, 6, 8]);
    say(&ledger, "from the beginning", from(one)).await.unwrap();
    assert_eq!(present(&ledger), [9]);
    ledger.close().await.unwrap();
    let report = check(dir.path().join("ledger"), |_| ()).unwrap();
    assert!(report.is_ok(), "{report:?}");
    let lines = lines(dir.path());
    let items: Vec<_> = lines.iter().filter(|line| line["table"] == "transcript").collect();
    let left: Vec<_> = items.iter().filter(|line| line["left"] != true).map(|line| line["item"]["seq"].clone()).collect();
    assert_eq!((items.len(), left), (9, vec![json!(9)]));
}

#[tokio::test]
async fn long_parts_that_have_left_are_passed_over_in_bounded_pages() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    say(&ledger, "one", None).await.unwrap();
    let first = say(&ledger, "first", None).await.unwrap();
    let run_no = running(&ledger).await;
    let transcript = (0..2_500).map(|_| item("c", "more", first)).collect();
    ledger.submit(RunWrite { transcript, ..write(run_no) }).await.unwrap().await.unwrap();
    say(&ledger, "again", from(first)).await.unwrap();
    for direction in [Direction::Forward, Direction::Backward] {
        let (mut seen, mut pages, mut cursor) = (Vec::new(), 0, None::<String>);
        loop {
            let (before, after) =
                if direction == Direction::Backward { (cursor.as_deref(), None) } else { (None, cursor.as_deref()) };
            let page = ledger.transcript(&key(), before, after, 10, direction).unwrap();
            seen.extend(page.items.iter().map(|item| item.seq));
            pages += 1;
            cursor = page.next_cursor;
            if !page.has_more {
                break;
            }
        }
        seen.sort_unstable();
        assert_eq!((seen, pages), (vec![1, 2_503], 2), "{direction:?}");
    }
}

#[tokio::test]
async fn a_run_has_the_fact_of_its_branch_from_its_creation_on() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let event = event();
    let fact = new_event(1, "conversation.branched");
    let mut run = run_of(&event);
    run.last_sequence = 1;
    let run_id = run.run_id;
    let new = |events| NewRun { run: run.clone(), terms: raw(&json!({ "granted": [] })), events };
    let with = |runs| Accept { runs, ..accept(event.clone(), Vec::new()) };
    assert!(matches!(ledger.accept(with(vec![new(Vec::new())])).await, Err(LedgerError::Invalid(_))));
    let ending = vec![new_event(1, "run.completed")];
    assert!(matches!(ledger.accept(with(vec![new(ending)])).await, Err(LedgerError::Invalid(_))));
    ledger.accept(with(vec![new(vec![fact])])).await.unwrap();
    ledger.close().await.unwrap();
    let ledger = open(dir.path());
    let events = ledger.run_events(run_id, None, 10).unwrap().items;
    assert_eq!((events.len(), events[0].kind.as_str(), events[0].sequence), (1, "conversation.branched", 1));
}
