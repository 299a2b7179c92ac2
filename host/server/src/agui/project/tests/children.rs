//! Content of child runs, and encrypted values.

use serde_json::value::to_raw_value;

use super::*;

#[test]
fn encrypted_values_belong_to_reasoning_texts_and_calls() {
    check(
        &[
            thought("m", "hm"),
            ("ui.encrypted", json!({ "message_id": "m", "encrypted_value": "e1" })),
            started("t"),
            ended("t", ""),
            ("ui.encrypted", json!({ "tool_call_id": "t", "encrypted_value": "e2" })),
            completed("plain", "hello"),
            ("ui.encrypted", json!({ "message_id": "plain", "encrypted_value": "e4" })),
            ("ui.encrypted", json!({ "message_id": "nobody", "encrypted_value": "e3" })),
            done(),
        ],
        &[
            "R[m:reasoning",
            "r[m:reasoning",
            "r.m:reasoning hm",
            "r]m:reasoning",
            "R]m:reasoning",
            r#"{"type":"REASONING_ENCRYPTED_VALUE","subtype":"message","entityId":"m:reasoning","encryptedValue":"e1"}"#,
            "c[t look",
            r#"c.t {"at":1.0}"#,
            "c]t",
            "x.t ",
            r#"{"type":"REASONING_ENCRYPTED_VALUE","subtype":"tool-call","entityId":"t","encryptedValue":"e2"}"#,
            "t[plain",
            "t.plain hello",
            "t]plain",
            r#"{"type":"REASONING_ENCRYPTED_VALUE","subtype":"message","entityId":"plain","encryptedValue":"e4"}"#,
            r#"ui.encrypted {"encrypted_value":"e3","message_id":"nobody"}"#,
            SUCCESS,
        ],
    );
}

fn record(run: RunId, events: impl IntoIterator<Item = (&'static str, Value)>) -> Vec<RunEvent> {
    let event = |(sequence, (kind, data)): (u64, (&str, Value))| RunEvent {
        run_id: run,
        kind: kind.to_owned(),
        data: host_data(&data),
        sequence,
        timestamp: sequence,
        source: agent_host_protocol::EventSource::Executor,
        metadata: (sequence == 2).then(|| to_raw_value(&json!({ "note": 1, "agentHost": 2 })).unwrap()),
    };
    (1..).zip(events).map(event).collect()
}

fn begins(child: RunId) -> (&'static str, Value) {
    ("run.child.started", json!({ "run_id": child, "runner_id": "plugin:a/b/helper", "objective": "" }))
}

fn ends(child: RunId) -> (&'static str, Value) {
    ("run.child.ended", json!({ "run_id": child, "status": "completed" }))
}

/// Records that children are read from.
fn source(records: Vec<Vec<RunEvent>>) -> Children {
    Children::new(move |run, until, with| {
        let of_run = records.iter().flatten().filter(|event| event.run_id == run);
        of_run.filter(|event| event.sequence <= until).for_each(with);
    })
}

fn events_of(steps: &[Step]) -> Vec<&StampedEvent> {
    steps.iter().filter_map(|step| if let Step::Event(stamped) = step { Some(stamped) } else { None }).collect()
}

/// Each event with its place and its owner: ids of children without the run.
fn lines(steps: &[Step], names: &[(RunId, &str)]) -> Vec<String> {
    let line = |stamped: &&StampedEvent| {
        let owner = stamped.event.subagent.as_ref().map(|owner| format!("{owner} ")).unwrap_or_default();
        let line = format!("{} {owner}{}", stamped.at, event(&stamped.event.kind));
        names.iter().fold(line, |line, (run, name)| line.replace(&format!("{run}:"), "").replace(&run.to_string(), name))
    };
    events_of(steps).iter().map(line).collect()
}

fn admitted(steps: &[Step]) {
    let mut verifier = crate::agui::verify::Verifier::new();
    let begins =
        Kind::RunStarted { thread_id: "t".into(), run_id: "r".into(), protocol_version: Some("1.0"), parent_run_id: None };
    verifier.admit(&begins.into()).unwrap();
    events_of(steps).iter().for_each(|stamped| verifier.admit(&stamped.event).unwrap());
}

#[test]
fn a_child_that_is_not_live_speaks_under_its_subagent_when_it_has_ended() {
    let (parent, child) = (RunId::new(), RunId::new());
    let of_child = record(child, [started("t"), ended("t", "found"), started("open"), completed("m", "hello"), done()]);
    let of_parent = record(parent, [begins(child), completed("m", "wait"), ends(child), done()]);
    let mut projector = Projector::new(parent, false).with_children(source(vec![of_child]));
    let seen: Vec<Step> = of_parent.iter().flat_map(|event| projector.push(event)).collect();
    assert_eq!(
        lines(&seen, &[(child, "C"), (parent, "P")])[4..],
        [
            "3.0 C c[t look",
            r#"3.1 C c.t {"at":1.0}"#,
            "3.2 C c]t",
            "3.3 C x.t found",
            "3.4 C t[m",
            "3.5 C t.m hello",
            "3.6 C t]m",
            "3.7 C c[open look",
            r#"3.8 C c.open {"at":1.0}"#,
            "3.9 C c]open",
            "3.10 C x.open the run ended before the call had a result",
            "3.11 g]C",
        ]
    );
    let result = events_of(&seen).into_iter().find(|stamped| matches!(stamped.event.kind, Kind::ToolCallResult { .. })).unwrap();
    assert_eq!(Value::Object(result.event.metadata.clone()), json!({ "note": 1 }), "what an executor has sent beside it");
    admitted(&seen);
}

#[test]
fn a_live_child_speaks_while_it_runs() {
    let (parent, child, grandchild) = (RunId::new(), RunId::new(), RunId::new());
    let of_parent = record(parent, [begins(child), delta("m", "one"), delta("m", "two"), ends(child), done()]);
    let step = ("ui.step.started", json!({ "name": "of its own" }));
    let of_child = record(
        child,
        [delta("m", "a"), started("t"), begins(grandchild), step, delta("m", "b"), ended("t", "x"), ends(grandchild), done()],
    );
    let of_grandchild = record(grandchild, [delta("m", "deep"), done()]);
    let mut projector = Projector::new(parent, false).with_children(source(Vec::new()).live());
    let mut seen = Vec::new();
    seen.extend(projector.push(&of_parent[0]));
    seen.extend(projector.push(&of_parent[1]));
    of_child[..4].iter().for_each(|event| seen.extend(projector.push_child(child, event)));
    assert_eq!(
        projector.live_children().iter().map(|live| (live.run, live.after)).collect::<Vec<_>>(),
        [(child, 4), (grandchild, 0)]
    );
    seen.extend(projector.push(&of_parent[2]));
    seen.extend(projector.push_child(grandchild, &of_grandchild[0]));
    seen.extend(projector.push_child(child, &of_child[4]));
    seen.extend(projector.push_child(grandchild, &of_grandchild[1]));
    of_child[5..].iter().for_each(|event| seen.extend(projector.push_child(child, event)));
    assert_eq!(projector.place().to_string(), "3.0~1.8.0");
    of_parent[3..].iter().for_each(|event| seen.extend(projector.push(event)));
    assert_eq!(
        lines(&seen, &[(child, "C"), (parent, "P"), (grandchild, "G")]),
        [
            "1.0 g[C helper None None",
            "2.0 t[m",
            "2.1 t.m one",
            "2.1~1.1.0 C t[m",
            "2.1~1.1.1 C t.m a",
            // Its parent is the child, which is in the event. The call waits for its result.
            "2.1~1.3.0 g[G helper None None",
            "3.0~1.3.0 t.m two",
            "3.0~1.3.0~~3.1.0 G t[m",
            "3.0~1.3.0~~3.1.1 G t.m deep",
            "3.0~1.5.0~~3.1.1 C t.m b",
            "3.0~1.5.0~~3.2.0 G t]m",
            "3.0~1.6.0~~3.2.0 C c[t look",
            r#"3.0~1.6.1~~3.2.0 C c.t {"at":1.0}"#,
            "3.0~1.6.2~~3.2.0 C c]t",
            "3.0~1.6.3~~3.2.0 C x.t x",
            "3.0~1.7.0~~3.2.0 g]G",
            "3.0~1.8.0 C t]m",
            "4.0~1.8.0 g]C",
            "5.0 t]m",
        ]
    );
    let nested = events_of(&seen).into_iter().find_map(|stamped| match &stamped.event.kind {
        Kind::SubagentStarted { parent_subagent_run_id, .. } => parent_subagent_run_id.clone(),
        _ => None,
    });
    assert_eq!(nested, Some(child.to_string()));
    admitted(&seen);
}

#[test]
fn a_child_that_its_parent_leaves_is_closed() {
    let (parent, child) = (RunId::new(), RunId::new());
    let of_child = record(child, [delta("m", "half"), started("t"), thought("m", "hm")]);
    let asked = ("action.requested", json!({ "action_id": "r.1", "kind": "question", "title": "?" }));
    let waits = ("run.status", json!({ "status": "waiting", "reason": "question" }));
    let failed = ("run.failed", json!({ "code": "cancelled", "message": "m" }));
    let retried = ("run.status", json!({ "status": "queued", "attempt": 2 }));
    for (end, last) in [(done(), "g]C"), (failed, r#"g!C None"#), (retried, r#"g!C None"#), (waits, "g~C")] {
        let of_parent = record(parent, [begins(child), asked.clone(), end]);
        let mut projector = Projector::new(parent, false).with_children(source(Vec::new()).live());
        let mut seen = Vec::new();
        of_parent[..2].iter().for_each(|event| seen.extend(projector.push(event)));
        of_child.iter().for_each(|event| seen.extend(projector.push_child(child, event)));
        seen.extend(projector.push(&of_parent[2]));
        let mut lines = lines(&seen, &[(child, "C"), (parent, "P")]);
        lines.retain(|line| line.starts_with("3."));
        let at = |part: usize, rest: &str| format!("3.{part}~1.3.2 {rest}");
        let mut closed: Vec<String> = ["C r]m:reasoning", "C R]m:reasoning", "C t]m"].map(str::to_owned).into();
        // Its call has no result, so it is not shown.
        closed.push(last.to_owned());
        assert_eq!(lines, closed.iter().enumerate().map(|(part, rest)| at(part, rest)).collect::<Vec<_>>(), "{last}");
        admitted(&seen);
    }
}

#[test]
fn a_suspended_child_goes_on_in_the_next_segment() {
    let (parent, child) = (RunId::new(), RunId::new());
    let asked = ("action.requested", json!({ "action_id": "r.1", "kind": "question", "title": "?" }));
    let waits = ("run.status", json!({ "status": "waiting", "reason": "question" }));
    let of_parent = record(parent, [begins(child), asked, waits, ends(child), done()]);
    let of_child = record(child, [delta("m", "one"), delta("m", "two"), done()]);
    let mut projector = Projector::new(parent, false).with_children(source(Vec::new()).live());
    of_parent[..3].iter().for_each(|event| drop(projector.push(event)));
    let starts = projector.resume();
    assert!(matches!(&starts[..], [Event { kind: Kind::SubagentStarted { .. }, .. }]), "{starts:?}");
    let mut seen = Vec::new();
    of_child.iter().for_each(|event| seen.extend(projector.push_child(child, event)));
    of_parent[3..].iter().for_each(|event| seen.extend(projector.push(event)));
    let names = [(child, "C"), (parent, "P")];
    assert_eq!(
        lines(&seen, &names),
        ["3.1~1.1.0 C t[m", "3.1~1.1.1 C t.m one", "3.1~1.2.0 C t.m two", "3.1~1.3.0 C t]m", "4.0~1.3.0 g]C"]
    );
}

#[test]
fn more_children_than_are_live_speak_at_their_end() {
    let parent = RunId::new();
    let children: Vec<RunId> = (0..20).map(|_| RunId::new()).collect();
    let of_child = |child: &RunId| record(*child, [completed("m", "hello"), done()]);
    let of_parent = record(parent, children.iter().map(|child| begins(*child)).chain(children.iter().map(|child| ends(*child))));
    let mut projector = Projector::new(parent, false).with_children(source(children.iter().map(of_child).collect()).live());
    let mut seen = Vec::new();
    of_parent[..20].iter().for_each(|event| seen.extend(projector.push(event)));
    let live = projector.live_children();
    assert_eq!(live.iter().map(|live| live.run).collect::<Vec<_>>(), children[..16]);
    for child in &live {
        of_child(&child.run).iter().for_each(|event| seen.extend(projector.push_child(child.run, event)));
    }
    of_parent[20..].iter().for_each(|event| seen.extend(projector.push(event)));
    let said: Vec<_> =
        events_of(&seen).into_iter().filter(|stamped| matches!(stamped.event.kind, Kind::TextMessageContent { .. })).collect();
    assert_eq!(said.len(), 20);
    assert!(said.iter().all(|stamped| stamped.at.children.len() <= 16));
    admitted(&seen);
}

#[test]
fn a_child_shows_so_much_and_no_more() {
    let (parent, child) = (RunId::new(), RunId::new());
    let said = |number: usize| {
        ("message.completed", json!({ "message_id": format!("m{number}"), "message": { "role": "assistant", "content": "x" } }))
    };
    let of_child = record(child, (0..1_100).map(said).chain([done()]));
    let of_parent = record(parent, [begins(child), ends(child), done()]);
    let mut projector = Projector::new(parent, false).with_children(source(vec![of_child]));
    let seen: Vec<Step> = of_parent.iter().flat_map(|event| projector.push(event)).collect();
    let starts = events_of(&seen).into_iter().filter(|stamped| matches!(stamped.event.kind, Kind::TextMessageStart { .. }));
    assert_eq!(starts.count(), 1_000);
    admitted(&seen);
}
