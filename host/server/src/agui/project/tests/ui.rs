//! Steps, activities, subagents and forms.

use super::*;

#[test]
fn steps_activities_subagents_and_forms() {
    check(
        &[
            ("ui.step.finished", json!({ "name": "a" })),
            ("ui.step.started", json!({ "name": "a" })),
            ("ui.step.started", json!({ "name": "a" })),
            ("ui.step.started", json!({ "name": "b" })),
            ("ui.step.finished", json!({ "name": "a" })),
            ("ui.activity.delta", json!({ "activity_id": "p", "activity_type": "plan", "patch": [] })),
            ("ui.activity", json!({ "activity_id": "p", "activity_type": "plan", "content": { "n": 1 } })),
            (
                "ui.activity.delta",
                json!({ "activity_id": "p", "activity_type": "plan", "patch": [{ "op": "replace", "path": "/n", "value": 2 }] }),
            ),
            started("t"),
            (
                "ui.subagent.started",
                json!({ "subagent_id": "s", "name": "critic", "description": "d", "parent_tool_call_id": "t" }),
            ),
            ("ui.subagent.started", json!({ "subagent_id": "s", "name": "critic" })),
            ("ui.subagent.finished", json!({ "subagent_id": "s", "result": 1 })),
            ("ui.subagent.started", json!({ "subagent_id": "s", "name": "critic" })),
            ("ui.subagent.failed", json!({ "subagent_id": "s", "message": "no", "code": "x" })),
            ("ui.subagent.failed", json!({ "subagent_id": "s", "message": "no" })),
            ("run.child.started", json!({ "run_id": "c1", "runner_id": "plugin:a/b/helper", "objective": "help" })),
            ("run.child.started", json!({ "run_id": "c2" })),
            ("run.child.ended", json!({ "run_id": "c1", "status": "completed" })),
            ("ui.schema", json!({ "tool_call_id": "t", "schema": { "version": "2.0", "root": { "type": "divider" }, "a": 1 } })),
            ("ui.schema", json!({ "message_id": "m", "schema": { "version": "2.0", "root": { "type": "divider" }, "a": 2 } })),
            ("ui.schema", json!({ "message_id": "m", "schema": { "version": "2.0", "root": { "type": "divider" }, "a": 3 } })),
            completed("m", "x"),
            ended("t", ""),
            ("run.failed", json!({ "code": "runner_error", "message": "broken", "details": { "log": "secret" } })),
        ],
        &[
            "s[a",
            "s[b",
            "s]a",
            r#"{"type":"ACTIVITY_SNAPSHOT","messageId":"p:activity","activityType":"plan","content":{"n":1}}"#,
            r#"{"type":"ACTIVITY_DELTA","messageId":"p:activity","activityType":"plan","patch":[{"op":"replace","path":"/n","value":2}]}"#,
            "c[t look",
            r#"c.t {"at":1.0}"#,
            "c]t",
            r#"g[s critic Some("d") Some("t")"#,
            "g]s",
            "g[s:2 critic None None",
            r#"g!s:2 Some("x")"#,
            r#"g[c1 helper Some("help") None"#,
            "g[c2 run None None",
            "g]c1",
            r#"{"type":"ACTIVITY_SNAPSHOT","messageId":"t:ui","activityType":"ui_schema","content":{"a":1,"root":{"type":"divider"},"version":"2.0"}}"#,
            r#"{"type":"ACTIVITY_SNAPSHOT","messageId":"m:ui","activityType":"ui_schema","content":{"a":2,"root":{"type":"divider"},"version":"2.0"}}"#,
            r#"{"type":"ACTIVITY_SNAPSHOT","messageId":"m:ui","activityType":"ui_schema","content":{"a":3,"root":{"type":"divider"},"version":"2.0"}}"#,
            "t[m",
            "t.m x",
            "t]m",
            "x.t ",
            "s]b",
            "g!c2 None",
            "ERROR runner_error broken",
        ],
    );
}

#[test]
fn results_that_have_not_their_form_are_shown_as_they_are() {
    check(
        &[
            ("ui.step.started", json!({ "name": "" })),
            ("ui.activity", json!({ "activity_id": "p", "activity_type": "plan", "content": [] })),
            (
                "ui.activity.delta",
                json!({ "activity_id": "p", "activity_type": "plan", "patch": [{ "op": "frob", "path": "" }] }),
            ),
            (
                "ui.activity.delta",
                json!({ "activity_id": "p", "activity_type": "plan", "patch": [{ "op": "remove", "path": "n" }] }),
            ),
            ("ui.subagent.started", json!("s")),
            ("ui.schema", json!({ "schema": {} })),
            ("ui.schema", json!({ "message_id": "m", "schema": { "version": "2.0", "root": { "type": "script" } } })),
            ("ui.hints", json!({ "message_id": "m", "hints": {} })),
            ("message.delta", json!({ "message_id": 1 })),
            done(),
        ],
        &[
            r#"ui.step.started {"name":""}"#,
            r#"ui.activity {"activity_id":"p","activity_type":"plan","content":[]}"#,
            r#"ui.activity.delta {"activity_id":"p","activity_type":"plan","patch":[{"op":"frob","path":""}]}"#,
            r#"ui.activity.delta {"activity_id":"p","activity_type":"plan","patch":[{"op":"remove","path":"n"}]}"#,
            r#"ui.subagent.started "s""#,
            r#"ui.schema {"schema":{}}"#,
            r#"ui.schema {"message_id":"m","schema":{"root":{"type":"script"},"version":"2.0"}}"#,
            r#"ui.hints {"hints":{},"message_id":"m"}"#,
            SUCCESS,
        ],
    );
}
