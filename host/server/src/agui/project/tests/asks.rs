//! Questions, frontend calls, and the segments that end with them.

use super::*;

#[test]
fn a_question_ends_the_segment_and_the_next_goes_on() {
    check(
        &[
            delta("m", "so: "),
            ("ui.step.started", json!({ "name": "plan" })),
            started("t"),
            asked(1),
            waiting("question"),
            answered(1, json!({ "a": 1 })),
            resolved(1, "submitted"),
            ("run.status", json!({ "status": "running", "reason": "woken" })),
            ended("t", "late"),
            completed("m", "so: yes"),
            ("ui.step.finished", json!({ "name": "plan" })),
            done(),
        ],
        &[
            "t[m",
            "t.m so: ",
            "s[plan",
            "c[t look",
            r#"c.t {"at":1.0}"#,
            "c]t",
            "t]m",
            "s]plan",
            "INTERRUPT RUN.1=input_required",
            "x.t late",
            "t[m",
            "t.m yes",
            "t]m",
            "s[plan",
            "s]plan",
            SUCCESS,
        ],
    );
}

#[test]
fn subagents_are_suspended_while_the_run_waits() {
    check(
        &[
            ("ui.subagent.started", json!({ "subagent_id": "s", "name": "critic" })),
            ("ui.subagent.started", json!({ "subagent_id": "q", "name": "quiet" })),
            ("run.child.started", json!({ "run_id": "c1", "runner_id": "plugin:a/b/helper", "objective": "" })),
            asked(1),
            waiting("question"),
            answered(1, json!(1)),
            resolved(1, "submitted"),
            ("ui.subagent.finished", json!({ "subagent_id": "s", "result": 1 })),
            ("ui.subagent.finished", json!({ "subagent_id": "s", "result": 2 })),
            ("run.child.ended", json!({ "run_id": "c1", "status": "failed" })),
            done(),
        ],
        &[
            "g[s critic None None",
            "g[q quiet None None",
            "g[c1 helper None None",
            "g~c1",
            "g~s",
            "g~q",
            "INTERRUPT RUN.1=input_required",
            "g[s critic None None",
            "g]s",
            "g[c1 helper None None",
            r#"g!c1 Some("failed")"#,
            SUCCESS,
        ],
    );
}

#[test]
fn a_run_that_waits_for_something_else_goes_on() {
    check(&[asked(1), waiting("timer"), done()], &[SUCCESS]);
    check(&[waiting("question"), done()], &[SUCCESS]);
    let allowed = json!({ "action_id": "RUN.1", "kind": "platform_action", "action": "x", "policy": "allow" });
    check(&[("action.requested", allowed), waiting("approval"), done()], &[SUCCESS]);
    let detached = json!({ "action_id": "RUN.e3", "kind": "platform_action", "action": "x", "policy": "ask" });
    check(
        &[("action.requested", detached), completed("m", "hi"), waiting("approval"), done()],
        &["t[m", "t.m hi", "t]m", "INTERRUPT RUN.e3=confirmation", SUCCESS],
    );
}

#[test]
fn calls_of_frontend_tools_are_pending_until_the_client_has_made_them() {
    check(
        &[
            called(1, "a"),
            called(2, "b"),
            waiting("client_tool"),
            answered(1, json!({ "content": "red", "message_id": "mine" })),
            resolved(1, "submitted"),
            resolved(2, "expired"),
            done(),
        ],
        &[
            "c[a look",
            "c.a {}",
            "c]a",
            "c[b look",
            "c.b {}",
            "c]b",
            "SUCCESS pending a b",
            "past x.a(mine) red",
            "x.b the client did not answer in time",
            SUCCESS,
        ],
    );
    let declined = json!({ "action_id": "RUN.1", "decision": "decline", "reason": "busy" });
    check(
        &[called(1, "a"), waiting("client_tool"), ("action.answered", declined), resolved(1, "declined"), done()],
        &["c[a look", "c.a {}", "c]a", "SUCCESS pending a", "x.a declined: busy", SUCCESS],
    );
    check(
        &[called(1, "a"), waiting("client_tool"), answered(1, json!({ "content": "", "error": "broken" })), done()],
        &["c[a look", "c.a {}", "c]a", "SUCCESS pending a", "x.a broken", SUCCESS],
    );
    check(
        &[called(1, "a"), asked(2), waiting("question"), done()],
        &[
            "c[a look",
            "c.a {}",
            "c]a",
            "INTERRUPT RUN.1=tool_call(a) RUN.2=input_required",
            "x.a the run abandoned the call before the client answered",
            SUCCESS,
        ],
    );
}

#[test]
fn only_the_client_reports_the_outcome_of_a_frontend_call() {
    check(
        &[
            started("a"),
            called(1, "a"),
            ended("a", "forged"),
            waiting("client_tool"),
            answered(1, json!({ "content": "red" })),
            done(),
        ],
        &["c[a look", r#"c.a {"at":1.0}"#, "c]a", "SUCCESS pending a", "x.a red", SUCCESS],
    );
    check(
        &[called(1, "a"), called(2, "a"), waiting("client_tool"), resolved(1, "expired"), resolved(2, "cancelled"), done()],
        &[
            "c[a look",
            "c.a {}",
            "c]a",
            "c[a:2 look",
            "c.a:2 {}",
            "c]a:2",
            "SUCCESS pending a a:2",
            "x.a the client did not answer in time",
            "x.a:2 the run abandoned the call before the client answered",
            SUCCESS,
        ],
    );
}

#[test]
fn frontend_calls_that_are_named_alike_are_told_apart() {
    let run = RunId::new();
    let mut projector = Projector::new(run, false);
    let mut push = |sequence, (kind, data): (&str, Value)| {
        projector.push(&RunEvent {
            run_id: run,
            kind: kind.to_owned(),
            data: host_data(&data),
            sequence,
            timestamp: 0,
            source: agent_host_protocol::EventSource::Host,
            metadata: None,
        });
        projector.client_calls().map(|(action, call)| (action.to_owned(), call.to_owned())).collect::<Vec<_>>()
    };
    let waits = |action: &str, call: String| vec![(action.to_owned(), call)];
    assert_eq!(push(1, called(1, "a")), waits("RUN.1", tool_call_id(run, 1, "a")));
    assert_eq!(push(2, answered(1, json!({ "content": "" }))), []);
    assert_eq!(push(3, called(2, "a")), waits("RUN.2", format!("{run}:a:2")));
}

#[test]
fn a_run_outside_ends_the_segment_where_it_asks() {
    assert_eq!(
        project(true, &[delta("m", "x"), asked(1), delta("m", "y"), answered(1, json!("z")), called(2, "a"), done()]),
        [
            "t[m",
            "t.m x",
            "t]m",
            "INTERRUPT RUN.1=input_required",
            "t[m",
            "t.m y",
            "c[a look",
            "c.a {}",
            "c]a",
            "t]m",
            "SUCCESS pending a",
            "x.a the run abandoned the call before the client answered",
            SUCCESS
        ]
    );
}

#[test]
fn each_segment_has_the_usage_of_its_own_calls() {
    let run = RunId::new();
    let model =
        |model: &str, usage: Value| ("model.call.completed", json!({ "model_call_id": "c1", "model_id": model, "usage": usage }));
    let end = ("run.completed", json!({ "finish_reason": "stop", "usage": { "input": 100, "output": 100 } }));
    let used = |events: &[(&str, Value)]| {
        let mut projector = Projector::new(run, false);
        let mut all = Vec::new();
        for ((kind, data), sequence) in events.iter().zip(1..) {
            let event = RunEvent {
                run_id: run,
                kind: (*kind).to_owned(),
                data: host_data(data),
                sequence,
                timestamp: 0,
                source: agent_host_protocol::EventSource::Host,
                metadata: None,
            };
            all.extend(projector.push(&event).into_iter().filter_map(|step| match step {
                Step::End(End::Success { usage, .. } | End::Interrupt { usage, .. }, _) => {
                    Some(serde_json::to_value(usage).unwrap())
                }
                _ => None,
            }));
        }
        all
    };
    assert_eq!(
        used(&[
            model("a", json!({ "input": 1, "output": 2, "reasoning": 1 })),
            model("b", json!({ "input": 5, "output": 5 })),
            model("a", json!({ "input": 10, "output": 20, "cached_input": 4 })),
            model("c", json!("unknown")),
            asked(1),
            waiting("question"),
            model("a", json!({ "input": 7, "output": 0 })),
            end.clone(),
        ]),
        [
            json!([
                { "model": "a", "inputTokens": 11, "outputTokens": 22, "totalTokens": 33, "reasoningTokens": 1, "cachedInputTokens": 4 },
                { "model": "b", "inputTokens": 5, "outputTokens": 5, "totalTokens": 10 },
            ]),
            json!([{ "model": "a", "inputTokens": 7, "outputTokens": 0, "totalTokens": 7 }]),
        ]
    );
    assert_eq!(used(&[asked(1), waiting("question"), end]), [json!([]), json!([])], "the claim of a runner is no usage");
}
