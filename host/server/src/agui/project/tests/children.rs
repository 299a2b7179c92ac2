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

#[test]
fn a_child_speaks_under_its_subagent_when_it_has_ended() {
    let (parent, child) = (RunId::new(), RunId::new());
    let record = |run: RunId, sequence, kind: &str, data: Value| RunEvent {
        run_id: run,
        kind: kind.to_owned(),
        data: host_data(&data),
        sequence,
        timestamp: sequence,
        source: agent_host_protocol::EventSource::Executor,
        metadata: (sequence == 2).then(|| to_raw_value(&json!({ "note": 1, "agentHost": 2 })).unwrap()),
    };
    let mut view = crate::agui::fold::View::default();
    let mut of_child = Projector::new(child, false);
    for (sequence, (kind, data)) in
        (1..).zip([started("t"), ended("t", "found"), started("open"), completed("m", "hello"), done()])
    {
        for step in of_child.push(&record(child, sequence, kind, data)) {
            if let Step::Event(stamped) = step {
                view.apply(&stamped.event);
            }
        }
    }
    let messages: std::sync::Arc<[Message]> = view.messages.into();
    let children = Children::new(move |run| if run == child { messages.clone() } else { std::sync::Arc::default() });
    let mut projector = Projector::new(parent, false).with_children(children);
    let mut seen = Vec::new();
    let record_of_parent = [
        ("run.child.started", json!({ "run_id": child, "runner_id": "plugin:a/b/helper", "objective": "" })),
        completed("m", "wait"),
        ("run.child.ended", json!({ "run_id": child, "status": "completed" })),
        done(),
    ];
    for (sequence, (kind, data)) in (1..).zip(record_of_parent) {
        seen.extend(projector.push(&record(parent, sequence, kind, data)));
    }
    let events: Vec<_> =
        seen.iter().filter_map(|step| if let Step::Event(stamped) = step { Some(stamped) } else { None }).collect();
    let tagged = events.iter().filter(|stamped| stamped.event.subagent.is_some());
    let tagged: Vec<_> = tagged.map(|stamped| event(&stamped.event.kind).replace(&format!("{child}:"), "")).collect();
    let lines = ["c[t look", r#"c.t {"at":1.0}"#, "c]t", "x.t found", "t[m", "t.m hello", "t]m"];
    // Every call has a result when its run has ended.
    assert!(lines.iter().all(|line| tagged.iter().any(|tagged| tagged == line)), "{tagged:#?}");
    assert!(events.windows(2).all(|two| two[0].at < two[1].at), "each has a place of its own");
    let started = events.iter().find(|stamped| matches!(stamped.event.kind, Kind::TextMessageStart { .. })).unwrap();
    assert_eq!(Value::Object(started.event.metadata.clone()), json!({ "note": 1 }), "what an executor has sent beside it");
    let mut verifier = crate::agui::verify::Verifier::new();
    let begins =
        Kind::RunStarted { thread_id: "t".into(), run_id: "r".into(), protocol_version: Some("1.0"), parent_run_id: None };
    verifier.admit(&begins.into()).unwrap();
    events.iter().for_each(|stamped| verifier.admit(&stamped.event).unwrap());
}
