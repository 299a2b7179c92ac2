//! A client that is cut after any event of a stream, and comes back, gets exactly the rest of that stream.

use std::collections::HashMap;

use agent_host_protocol::{EventSource, result::host_data};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::agui::{
    event::{Kind, PROTOCOL_VERSION},
    verify::Verifier,
};

/// The records of a run, of its children, and of theirs.
type Records = HashMap<RunId, Vec<RunEvent>>;

/// The order in which a stream has read events: the runs, and their sequence numbers.
type Schedule = Vec<(RunId, RunEvent)>;

fn run(number: u8) -> RunId {
    RunId::from_bytes([number; 16])
}

fn terminal() -> (&'static str, Value) {
    ("run.completed", json!({ "finish_reason": "stop" }))
}

/// An event of a run, by a number; names are few, so that they meet.
fn said(number: u8) -> (&'static str, Value) {
    let id = ["a", "b"][usize::from(number / 16 % 2)];
    let delta = |text: &str| json!({ "message_id": id, "chunk": { "role": "assistant", "content": text } });
    match number % 8 {
        0 | 1 => ("message.delta", delta("x")),
        2 => ("reasoning.delta", delta("y")),
        3 => ("message.completed", json!({ "message_id": id, "message": { "role": "assistant", "content": "xx" } })),
        4 => ("tool.call.started", json!({ "tool_call_id": id, "tool_name": "t", "parameters": {} })),
        5 => ("tool.call.completed", json!({ "tool_call_id": id, "result": "r" })),
        6 => ("ui.step.started", json!({ "name": id })),
        _ => ("ui.activity", json!({ "activity_id": id, "activity_type": "t", "content": {} })),
    }
}

/// A record: each number is an event, and the children begin and end in it.
fn record(id: RunId, numbers: &[u8], children: &[RunId], retries: bool) -> Vec<RunEvent> {
    let mut events = Vec::new();
    let (mut next, mut open) = (0, Vec::new());
    for number in numbers {
        match number % 11 {
            8 if next < children.len() => {
                open.push(children[next]);
                events.push(("run.child.started", json!({ "run_id": children[next], "runner_id": "plugin:a/b/c" })));
                next += 1;
            }
            9 if !open.is_empty() => {
                let ended = open.remove(usize::from(number / 11) % open.len());
                events.push(("run.child.ended", json!({ "run_id": ended, "status": "completed" })));
            }
            10 if retries => {
                events.push(("run.status", json!({ "status": "queued", "attempt": 2 + events.len() })));
                open.clear();
            }
            _ => events.push(said(*number)),
        }
    }
    events.extend(open.into_iter().map(|ended| ("run.child.ended", json!({ "run_id": ended, "status": "completed" }))));
    events.push(terminal());
    let event = |(sequence, (kind, data)): (u64, (&str, Value))| RunEvent {
        run_id: id,
        kind: kind.to_owned(),
        data: host_data(&data),
        sequence,
        timestamp: sequence,
        source: EventSource::Host,
        metadata: None,
    };
    (1..).zip(events).map(event).collect()
}

fn source(records: &Records) -> Children {
    let records = records.clone();
    Children::new(move |run, until, with| {
        records.get(&run).into_iter().flatten().filter(|event| event.sequence <= until).for_each(with);
    })
}

fn push_any(projector: &mut Projector, id: RunId, event: &RunEvent) -> Vec<Step> {
    if id == run(0) { projector.push(event) } else { projector.push_child(id, event) }
}

/// A stream from the beginning to the end, which reads the records in an order that `choices` make.
fn stream(records: &Records, choices: &[u8]) -> (Schedule, Vec<Vec<Step>>) {
    let mut projector = Projector::new(run(0), false).with_children(source(records).live());
    let (mut schedule, mut steps) = (Schedule::new(), Vec::new());
    let mut read = 0;
    for choice in choices.iter().cycle() {
        let live = projector.live_children();
        // Those that end are read to their end before.
        let mut ready: Vec<(RunId, RunEvent)> = Vec::new();
        for (id, after) in std::iter::once((run(0), read)).chain(live.iter().map(|child| (child.run, child.after))) {
            let Some(event) = records[&id].iter().find(|event| event.sequence > after) else { continue };
            let waits = ended_child(event)
                .is_some_and(|ended| live.iter().any(|child| child.run == ended && child.after < records[&ended].len() as u64));
            if !waits {
                ready.push((id, event.clone()));
            }
        }
        if ready.is_empty() {
            break;
        }
        let (id, event) = ready.swap_remove(usize::from(*choice) % ready.len());
        if id == run(0) {
            read = event.sequence;
        }
        steps.push(push_any(&mut projector, id, &event));
        schedule.push((id, event));
    }
    (schedule, steps)
}

/// Brings a projector to a place: gives the steps that the client has, and those of the last event that it has not.
fn replayed(projector: &mut Projector, records: &Records, place: &Place) -> (Vec<Step>, Vec<Step>) {
    let children = source(records);
    let (mut seen, mut rest, mut before) = (Vec::new(), Vec::new(), Vec::new());
    let mut take = |(step, is_seen)| match is_seen {
        StepState::Sent => seen.push(step),
        StepState::Due => rest.push(step),
    };
    for event in records[&run(0)].iter().filter(|event| event.sequence <= place.cursor.sequence) {
        if event.sequence == place.cursor.sequence {
            before = push_last(projector, &children, event, place, &mut take);
        } else {
            push(projector, &children, event, &mut take);
        }
    }
    open_children(projector, &children, before, place, &mut take).unwrap();
    (seen, rest)
}

fn admit(verifier: &mut Verifier, step: &Step) -> Result<(), TestCaseError> {
    match step {
        Step::Event(stamped) => match verifier.admit(&stamped.event) {
            Err(violation) if violation.throws() => Err(TestCaseError::fail(format!("{violation}: {step:?}"))),
            _ => Ok(()),
        },
        Step::Past(_) | Step::Correct(..) | Step::End(..) => Ok(()),
    }
}

fn verifier() -> Verifier {
    let mut verifier = Verifier::new();
    let (thread_id, run_id) = ("t".to_owned(), "r".to_owned());
    let started = Kind::RunStarted { thread_id, run_id, protocol_version: Some(PROTOCOL_VERSION), parent_run_id: None };
    verifier.admit(&started.into()).unwrap();
    verifier
}

fn numbers(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..most)
}

prop_compose! {
    fn records()(
        parent in numbers(20), children in prop::collection::vec(numbers(12), 3), deep in prop::collection::vec(numbers(6), 3),
        retries in any::<bool>(),
    ) -> Records {
        let of = |first: u8| [run(first), run(first + 1), run(first + 2)];
        let mut records = Records::new();
        records.insert(run(0), record(run(0), &parent, &of(1), retries));
        for (place, numbers) in children.iter().enumerate() {
            // The first of them has children of its own.
            let own: &[RunId] = if place == 0 { &of(4) } else { &[] };
            records.insert(of(1)[place], record(of(1)[place], numbers, own, retries));
        }
        for (place, numbers) in deep.iter().enumerate() {
            records.insert(of(4)[place], record(of(4)[place], numbers, &[], retries));
        }
        records
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_client_that_is_cut_anywhere_gets_the_rest(records in records(), choices in prop::collection::vec(any::<u8>(), 1..40)) {
        let (schedule, steps) = stream(&records, &choices);
        let mut whole = verifier();
        for step in steps.iter().flatten() {
            admit(&mut whole, step)?;
        }
        prop_assert!(whole.closing().is_empty());
        let mut places: Vec<String> = steps.iter().flatten().map(|step| step.at().to_string()).collect();
        places.sort();
        prop_assert!(places.windows(2).all(|two| two[0] != two[1]), "no two events have one place");
        for (batch, steps_of_event) in steps.iter().enumerate() {
            for (index, step) in steps_of_event.iter().enumerate() {
                let place: Place = step.at().to_string().parse().unwrap();
                prop_assert_eq!(&place, step.at());
                let mut projector = Projector::new(run(0), false).with_children(source(&records).live());
                let (seen, rest) = replayed(&mut projector, &records, &place);
                prop_assert_eq!(&rest[..], &steps_of_event[index + 1..], "after {}", place);
                // The verifier of a client that comes back.
                let mut client = verifier();
                for step in seen.iter().chain(&rest) {
                    admit(&mut client, step)?;
                }
                // Events that showed nothing are read again, and show nothing.
                for (id, event) in &schedule[..=batch] {
                    let after = if *id == run(0) {
                        place.cursor.sequence
                    } else {
                        projector.live_children().iter().find(|live| live.run == *id).map_or(u64::MAX, |live| live.after)
                    };
                    if event.sequence > after {
                        prop_assert_eq!(push_any(&mut projector, *id, event), vec![]);
                    }
                }
                for ((id, event), expected) in schedule.iter().zip(&steps).skip(batch + 1) {
                    let next = push_any(&mut projector, *id, event);
                    prop_assert_eq!(&next, expected, "after {}", place);
                    for step in &next {
                        admit(&mut client, step)?;
                    }
                }
                prop_assert!(client.closing().is_empty());
            }
        }
    }

    /// A view of the records has what a stream of them has said.
    #[test]
    fn a_view_has_what_a_stream_has_said(records in records(), choices in prop::collection::vec(any::<u8>(), 1..40), cut in any::<u8>()) {
        let (schedule, steps) = stream(&records, &choices);
        let batch = usize::from(cut) % steps.len();
        let mut streamed = crate::agui::fold::View::default();
        let mut projector = Projector::new(run(0), false).with_children(source(&records).live());
        let take = |view: &mut crate::agui::fold::View, step: Step| match step {
            Step::Event(stamped) | Step::Past(stamped) => view.apply(&stamped.event),
            Step::Correct(message, _) => view.correct(message),
            Step::End(..) => {}
        };
        let mut sequence = 0;
        for (id, event) in &schedule[..=batch] {
            if *id == run(0) {
                sequence = event.sequence;
            }
            push_any(&mut projector, *id, event).into_iter().for_each(|step| take(&mut streamed, step));
        }
        let place = projector.place();
        let mut view = crate::agui::fold::View::default();
        let mut folding = Projector::new(run(0), false).with_children(source(&records).view());
        for event in records[&run(0)].iter().filter(|event| event.sequence <= sequence) {
            folding.push(event).into_iter().for_each(|step| take(&mut view, step));
        }
        folding.catch_up(Some(&place), &mut |step| take(&mut view, step));
        let sorted = |mut messages: Vec<crate::agui::event::Message>| {
            messages.sort_by(|one, other| one.id.cmp(&other.id));
            messages
        };
        let (ours, theirs) = (sorted(view.messages), sorted(streamed.messages));
        // A child that another attempt has left behind may have said more since.
        let retried = records.values().flatten().any(|event| event.kind == "run.status");
        if retried {
            let has = |id: &str| ours.iter().any(|message| message.id == id);
            prop_assert!(theirs.iter().all(|message| has(&message.id)), "{:?} {:?}", ours, theirs);
        } else {
            prop_assert_eq!(ours, theirs);
        }
    }
}

#[test]
fn a_place_that_no_stream_has_is_refused() {
    let records: Records =
        [(run(0), record(run(0), &[8, 0, 0], &[run(1)], false)), (run(1), record(run(1), &[0, 0], &[], false))].into();
    let refused = |place: &str| {
        let mut projector = Projector::new(run(0), false).with_children(source(&records).live());
        let children = source(&records);
        let place: Place = place.parse().unwrap();
        let mut before = Vec::new();
        for event in records[&run(0)].iter().filter(|event| event.sequence <= place.cursor.sequence) {
            before = push_last(&mut projector, &children, event, &place, &mut |_| {});
        }
        open_children(&mut projector, &children, before, &place, &mut |_| {}).err().map(|problem| problem.code())
    };
    assert_eq!(refused("2.0~1.2.0"), None);
    for place in ["2.0~1.9.0", "2.0~2.1.0", "2.0~1.1.0~2.1.0"] {
        assert_eq!(refused(place), Some(ProblemCode::InvalidCursor), "{place}");
    }
}
