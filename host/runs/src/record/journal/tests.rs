use super::*;

fn journal() -> Journal {
    let limits = Limits::default();
    let world = World::new(&limits, GuestClock::new(1_000_000), [7; 32]);
    let journal = Journal::begin(Mode::Recording, &world, &limits);
    assert_eq!(written(&journal).len(), 1, "the beginning");
    journal
}

fn live(journal: &Journal, function: &str) -> Ticket {
    match journal.enter(function, RequestDigest::of(&())).unwrap() {
        Step::Live(ticket) => ticket,
        Step::Answered(_) => panic!("there is no past"),
    }
}

/// The entries that the next write takes along.
fn written(journal: &Journal) -> Vec<Entry> {
    journal.take().split().0.map(|segment| entry::read(&segment.bytes).unwrap()).unwrap_or_default()
}

fn answer(text: &str) -> Outcome {
    Outcome::Answer(text.to_owned())
}

#[test]
fn the_gate_settles_only_calls_that_their_effect_has_not_settled() {
    let journal = journal();
    let ticket = live(&journal, "state.get");
    let call = ticket.call();
    assert!(!journal.is_settled(call));
    journal.settle(ticket, answer("1"), Vec::new());
    assert!(journal.is_settled(call));
    journal.settle_open(call, answer("2"), Vec::new());
    journal.close(call);
    assert!(journal.is_settled(call), "a closed call takes no outcome");
    let entries = written(&journal);
    assert!(matches!(&entries[..], [Entry::Call(_, Outcome::Answer(text))] if text == "1"), "{entries:?}");

    let dropped = live(&journal, "state.get").call();
    journal.settle_open(dropped, answer("3"), Vec::new());
    let entries = written(&journal);
    assert!(matches!(&entries[..], [Entry::Call(_, Outcome::Answer(text))] if text == "3"), "{entries:?}");
}

#[test]
fn a_refused_write_opens_its_call_again_and_keeps_the_entries_of_others() {
    let journal = journal();
    let read = live(&journal, "state.get");
    journal.settle(read, answer("read"), Vec::new());
    let write = live(&journal, "state.set");
    let call = write.call();
    journal.settle(write, answer("null"), Vec::new());
    let (_, refused) = journal.take().split();
    journal.put_back(refused, Some(call));
    assert!(!journal.is_settled(call));
    journal.settle_open(call, Outcome::Refused("{}".to_owned()), Vec::new());
    let entries = written(&journal);
    assert!(
        matches!(&entries[..], [Entry::Call(_, Outcome::Answer(text)), Entry::Call(_, Outcome::Refused(_))] if text == "read"),
        "{entries:?}"
    );
}

#[test]
fn a_refused_end_leaves_the_start_of_its_effect_in_the_journal() {
    let journal = journal();
    let ticket = live(&journal, "tools.call");
    let call = ticket.call();
    journal.start(&ticket, Effect { number: 4 });
    journal.start(&ticket, Effect { number: 4 });
    let entries = written(&journal);
    assert!(matches!(&entries[..], [Entry::Started(_, Effect { number: 4 })]), "{entries:?}");
    journal.settle(ticket, answer("1"), Vec::new());
    let (_, refused) = journal.take().split();
    journal.put_back(refused, Some(call));
    journal.settle_open(call, answer("1"), Vec::new());
    let entries = written(&journal);
    assert!(matches!(&entries[..], [Entry::Ended { part: 0, .. }]), "{entries:?}");
}
