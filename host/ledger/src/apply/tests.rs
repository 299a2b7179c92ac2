//! Look-ups of the writer, and ids that it must not take for new.

use std::sync::Arc;

use agent_host_protocol::{EventId, grant::ConversationKey};
use proptest::prelude::*;
use redb::{Database, backends::InMemoryBackend};
use serde_json::{json, value::to_raw_value};
use tokio::sync::oneshot;

use crate::{
    Accept, NewItem, RunWrite, StateWrite,
    apply::{Batch, Memory, apply, ids::Ids},
    error::LedgerError,
    files::Blobs,
    operation::{AcceptAnswer, AcceptOperation, Operation, WriteOperation},
    rows::{LOOKUPS, Layer, Reader, Rows, Table, View, Views},
    samples,
    store::create,
};

/// A ledger without threads and files, but for those of blobs.
struct Small {
    dir: tempfile::TempDir,
    _database: Database,
    views: Views,
    layer: Layer,
    memory: Memory,
    lookups: u64,
}

impl Small {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::builder().create_with_backend(InMemoryBackend::new()).unwrap();
        create(dir.path(), &database).unwrap();
        let views = Views::new(View::of(&database).unwrap(), 0);
        let memory = Memory::load(&Reader::new(views.current().unwrap())).unwrap();
        Self { dir, _database: database, views, layer: Layer::default(), memory, lookups: 0 }
    }

    fn reader(&self) -> Reader {
        Reader::new(self.views.current().unwrap())
    }

    /// Carries operations out as one batch, and counts what is looked up.
    fn batch(&mut self, operations: Vec<Operation>) {
        let (reader, mut rows) = (self.reader(), Rows::default());
        let before = LOOKUPS.get();
        let mut batch = Batch::new(&mut self.memory, &reader, &mut rows);
        operations.into_iter().for_each(|operation| apply(&mut batch, operation));
        let (outcome, finished) = batch.finish();
        self.lookups = LOOKUPS.get() - before;
        finished.unwrap();
        self.layer.apply(rows.bytes()).unwrap();
        self.views.show(&self.layer, 1);
        self.memory.trim();
        outcome.answer(Ok(()));
    }

    fn accept(&mut self, accept: Accept) -> Result<AcceptAnswer, LedgerError> {
        let (operation, answer) = self.accepting(accept);
        self.batch(vec![operation]);
        answer.blocking_recv().unwrap()
    }

    fn accepting(&self, accept: Accept) -> (Operation, oneshot::Receiver<Result<AcceptAnswer, LedgerError>>) {
        let blobs = Arc::new(Blobs::open(self.dir.path(), None).unwrap());
        let (operation, _, _, answer) = AcceptOperation::prepare(accept, &blobs).unwrap();
        (Operation::Accept(operation), answer)
    }

    fn write(&mut self, write: RunWrite) {
        let blobs = Arc::new(Blobs::open(self.dir.path(), None).unwrap());
        let (operation, _, _, answer) = WriteOperation::prepare(write, &blobs).unwrap();
        self.batch(vec![Operation::Write(operation)]);
        answer.blocking_recv().unwrap().unwrap();
    }
}

fn accept(conversation: &str) -> Accept {
    let mut accept = samples::accept();
    let event = &mut accept.event;
    Arc::make_mut(event).envelope.conversation =
        Some(serde_json::from_value(json!({ "conversation_id": conversation })).unwrap());
    Accept { transcript: Some(item(conversation, event.event_id)), ..accept }
}

fn item(conversation: &str, event_id: EventId) -> NewItem {
    NewItem {
        conversation: ConversationKey::new("", conversation, ""),
        event_id,
        run_id: None,
        role: "user".into(),
        item_type: "message".into(),
        content: Vec::new(),
        artifacts: Vec::new(),
        created_at: 1,
    }
}

fn state(run_no: u64, key: &str) -> RunWrite {
    let value = Some(to_raw_value(&1).unwrap());
    let state = vec![StateWrite { scope_key: format!("s{run_no}"), key: key.into(), value, ..StateWrite::default() }];
    RunWrite { run_no, state, ..RunWrite::default() }
}

/// Look-ups before: four for an event in a new conversation, three in a known one, and two for each value.
#[test]
fn the_writer_looks_nothing_up_that_it_knows() {
    let mut ledger = Small::new();
    for n in 1..=2 {
        ledger.accept(accept(&format!("c{n}"))).unwrap();
        assert_eq!(ledger.lookups, 1, "whether the conversation is new");
        ledger.accept(accept(&format!("c{n}"))).unwrap();
        assert_eq!(ledger.lookups, 0);
    }
    let mut write = state(1, "k");
    write.transcript = vec![item("c1", EventId::new())];
    ledger.write(write);
    assert_eq!(ledger.lookups, 1, "how much the scope has");
    ledger.write(state(1, "l"));
    assert_eq!(ledger.lookups, 1, "what the value was");
}

#[test]
fn an_id_from_outside_is_not_taken_twice() {
    let mut ledger = Small::new();
    let first = accept("c");
    let again = |first: &Accept| {
        let mut again = accept("c");
        Arc::make_mut(&mut again.event).event_id = first.event.event_id;
        again.runs.iter_mut().for_each(|new| new.run.event_id = first.event.event_id);
        again
    };
    let same_run = |first: &Accept| {
        let mut again = accept("c");
        again.runs[0].run.run_id = first.runs[0].run.run_id;
        again
    };
    // Of the same batch, of one before, and of a ledger that was opened again.
    let (one, answer) = ledger.accepting(first.clone());
    let (two, refused) = ledger.accepting(again(&first));
    let (three, refused_too) = ledger.accepting(same_run(&first));
    ledger.batch(vec![one, two, three]);
    assert!(matches!(answer.blocking_recv().unwrap(), Ok(AcceptAnswer::New { .. })));
    for refused in [refused, refused_too] {
        assert!(matches!(refused.blocking_recv().unwrap(), Err(LedgerError::Invalid(_))));
    }
    for _ in 0..2 {
        assert!(matches!(ledger.accept(again(&first)), Err(LedgerError::Invalid(_))));
        assert!(matches!(ledger.accept(same_run(&first)), Err(LedgerError::Invalid(_))));
        ledger.memory = Memory::load(&ledger.reader()).unwrap();
    }
    assert!(matches!(ledger.accept(accept("c")), Ok(AcceptAnswer::New { event_no: 2, first_run_no: 2, .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    /// Ids in any order, from any clock: what is said of each is what the table has.
    #[test]
    fn ids_are_known_whatever_their_order(ids in prop::collection::vec(any::<u16>(), 1..2_000), reload in 0usize..2_000) {
        let ledger = Small::new();
        let id = |n: u16| {
            let mut id = [0; 16];
            id[..2].copy_from_slice(&n.to_be_bytes());
            id
        };
        let (mut layer, mut taken) = (Layer::default(), std::collections::HashSet::new());
        let mut known = Ids::load(Table::EventIds, &ledger.reader()).unwrap();
        for (place, n) in ids.into_iter().enumerate() {
            let reader = ledger.reader();
            prop_assert_eq!(known.has(&id(n), &reader).unwrap(), taken.contains(&n));
            prop_assert_eq!(known.has(&id(n.wrapping_add(1)), &reader).unwrap(), taken.contains(&n.wrapping_add(1)));
            if taken.insert(n) {
                known.add(id(n));
                let mut rows = Rows::default();
                rows.put(Table::EventIds, &id(n), &[]);
                layer.apply(rows.bytes()).unwrap();
                ledger.views.show(&layer, 1);
                known.trim();
            }
            if place == reload {
                known = Ids::load(Table::EventIds, &ledger.reader()).unwrap();
            }
        }
    }
}
