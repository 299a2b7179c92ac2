//! Records as runs leave them, and their facts.

use agent_host_protocol::{EventSource, RunId, run::Execution};
use serde_json::{Value, json};

use super::{
    NoChildren, Projector, ThreadIds, Turn, TurnTerms,
    properties::{faults, record},
};
use crate::{
    fact::Fact,
    kind::FactType,
    task::TaskFold,
    thread::{ThreadReadModel, ThreadStatus},
};

const RUN: &str = "01890a5d-ac96-774b-bcce-b302099a8000";

pub(crate) fn turn(first_sequence: u64, started: bool) -> Turn {
    Turn {
        runtime_id: "agent-host".into(),
        run_id: RUN.parse::<RunId>().unwrap(),
        turn_id: RUN.into(),
        thread: ThreadIds::new("c1", None),
        is_first: true,
        first_sequence,
        agent: "main".into(),
        runner_id: "plugin:a/b/c".into(),
        parent_run_id: None,
        retry_of: None,
        execution: Execution::Host,
        has_queue: false,
        created_at: 1_700_000_000_000,
        started_at: started.then_some(1_700_000_000_000),
        terms: TurnTerms::read(
            &serde_json::value::to_raw_value(&json!({
                "grant": { "runner_id": "plugin:a/b/c", "binding_id": "main", "component": "sha256:00", "permissions": {},
                    "models": ["m"], "tools": ["search"] },
                "deadline_ms": 5_000, "budget": { "max_tokens": 100 }, "config": {},
            }))
            .unwrap(),
        ),
        event_id: RUN.into(),
        origin: "api".into(),
        input: Some("hello".into()),
        trace_id: Some("trace".into()),
    }
}

/// The facts of a record; the first events are those of the host unless they say otherwise.
fn project(events: &[(&str, Value)]) -> Vec<Fact> {
    let events: Vec<_> =
        events.iter().map(|(kind, data)| ((*kind).to_owned(), data.clone(), EventSource::of_stored(kind))).collect();
    let mut projector = Projector::new(turn(1, true));
    let mut facts = projector.begin();
    for event in record(RUN.parse().unwrap(), &events) {
        facts.extend(projector.push(&event, &NoChildren));
    }
    let faults = faults(&facts, 1);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    facts
}

fn kinds(facts: &[Fact]) -> Vec<&'static str> {
    facts.iter().map(|fact| fact.kind.as_str()).collect()
}

fn of(facts: &[Fact], kind: FactType) -> &Fact {
    facts.iter().find(|fact| fact.kind == kind).unwrap_or_else(|| panic!("no {kind} in {:?}", kinds(facts)))
}

const PRELUDE: [&str; 10] = [
    "session.created",
    "thread.started",
    "turn.submitted",
    "turn.started",
    "run.status",
    "context.resolved",
    "permission.evaluated",
    "routing.single_candidate",
    "sandbox.applied",
    "limit.changed",
];

#[test]
fn a_text_turn_has_its_life_its_message_and_its_snapshot() {
    let facts = project(&[
        ("message.delta", json!({ "message_id": "m", "chunk": { "role": "assistant", "content": "hel" } })),
        ("message.delta", json!({ "message_id": "m", "chunk": { "role": "assistant", "content": "lo" } })),
        ("message.completed", json!({ "message_id": "m", "message": { "role": "assistant", "content": "hello" } })),
        ("run.completed", json!({ "finish_reason": "stop" })),
    ]);
    let rest = [
        "model.requested",
        "model.delta",
        "model.delta",
        "model.completed",
        "evidence.changed",
        "turn.completed",
        "snapshot.updated",
    ];
    assert_eq!(kinds(&facts), [&PRELUDE[..], &rest].concat());
    let requested = of(&facts, FactType::ModelRequested);
    assert_eq!((requested.text("origin"), &requested.payload["model"]), (Some("runner"), &Value::Null));
    let completed = of(&facts, FactType::ModelCompleted);
    assert_eq!((completed.text("messageId"), completed.text("text")), (Some(format!("{RUN}:m").as_str()), Some("hello")));
    assert_eq!(completed.text("source"), Some("runner"));
    let end = facts.last().unwrap();
    assert_eq!((end.text("status"), end.text("eventCursor")), (Some("completed"), Some("17")));
    assert_eq!(end.event_id, format!("{RUN}:4.2"));
    assert_eq!(of(&facts, FactType::LimitChanged).payload["limits"]["modelUsage"], 100);
}

#[test]
fn a_tool_turn_has_its_calls_and_large_output_is_a_reference() {
    let long = "x".repeat(9_000);
    let facts = project(&[
        ("model.call.started", json!({ "model_call_id": "mc", "model_id": "m", "operation": "invoke" })),
        ("model.call.completed", json!({ "model_call_id": "mc", "model_id": "m", "usage": "unknown", "duration_ms": 3 })),
        (
            "tool.call.started",
            json!({ "tool_call_id": "1", "tool_name": "search", "parameters": { "q": "a", "api_key": "canary" } }),
        ),
        (
            "tool.call.completed",
            json!({ "tool_call_id": "1", "tool_name": "search", "result": [{ "type": "text", "text": long }], "duration_ms": 4 }),
        ),
        ("tool.call.started", json!({ "tool_call_id": "1", "tool_name": "search", "parameters": {} })),
        (
            "tool.call.completed",
            json!({ "tool_call_id": "1", "tool_name": "search", "error": "no", "code": "runtime_error", "category": "tool_error" }),
        ),
        ("run.completed", json!({ "finish_reason": "stop", "message": { "role": "assistant", "content": "done" } })),
    ]);
    let cost = of(&facts, FactType::CostRecorded);
    assert_eq!(
        (cost.text("status"), cost.text("reason"), &cost.payload["usage"]),
        (Some("unknown"), Some("provider_did_not_report"), &Value::Null)
    );
    assert_eq!(of(&facts, FactType::ToolArgs).payload["safeArgs"], json!({ "q": "a", "redacted": "[redacted]" }));
    let spilled = of(&facts, FactType::OutputSpilled);
    let result = of(&facts, FactType::ToolResult);
    assert_eq!((spilled.text("outputRef"), &spilled.payload["bytes"]), (result.text("outputRef"), &json!(9_000)));
    assert_eq!(result.scope.tool_call_id, Some(format!("{RUN}:1")));
    let failed = of(&facts, FactType::ToolFailed);
    assert_eq!(failed.scope.tool_call_id, Some(format!("{RUN}:1:2")), "an id is used once in a thread");
    assert_eq!((failed.text("failureCategory"), failed.text("error")), (Some("tool_failed"), Some("no")));
    assert!(!facts.iter().any(|fact| fact.kind == FactType::ModelRequested && fact.text("origin") == Some("runner")));
}

#[test]
fn a_denied_action_ends_its_tool_without_a_result() {
    let action = format!("{RUN}.1");
    let asked = json!({ "action_id": action, "kind": "platform_action", "action": "message.edit", "target": {}, "payload": {},
        "policy": "ask", "decisions": ["approve", "deny"], "expires_at": 1_700_000_009_000_u64 });
    let facts = project(&[
        ("action.requested", asked.clone()),
        ("run.status", json!({ "status": "waiting", "reason": "approval" })),
        ("action.answered", json!({ "action_id": action, "decision": "deny", "by": "ada", "at": 1, "reason": "not now" })),
        ("action.resolved", json!({ "action_id": action, "decision": "deny", "outcome": "denied" })),
        ("run.status", json!({ "status": "running", "reason": "answered" })),
        ("run.completed", json!({ "finish_reason": "stop" })),
    ]);
    let rest = [
        "tool.started",
        "tool.args",
        "permission.requested",
        "action.required",
        "run.status",
        "action.resolved",
        "permission.resolved",
        "permission.denied",
        "tool.failed",
        "run.status",
        "run.status",
        "evidence.changed",
        "turn.completed",
        "snapshot.updated",
    ];
    assert_eq!(kinds(&facts)[PRELUDE.len()..], rest);
    assert_eq!(of(&facts, FactType::ActionRequired).text("expiresAt"), Some("2023-11-14T22:13:29.000Z"));
    assert_eq!(of(&facts, FactType::ToolFailed).text("failureCategory"), Some("permission_denied"));

    let facts = project(&[
        ("action.requested", asked.clone()),
        ("action.answered", json!({ "action_id": action, "decision": "approve", "at": 1 })),
        ("action.resolved", json!({ "action_id": action, "outcome": "executed", "result": { "ok": true } })),
        ("run.completed", json!({ "finish_reason": "stop" })),
    ]);
    assert_eq!(of(&facts, FactType::ToolResult).text("outputPreview"), Some("{\"ok\":true}"));

    let facts = project(&[
        ("action.requested", asked),
        ("action.resolved", json!({ "action_id": action, "outcome": "expired" })),
        ("run.failed", json!({ "code": "runner.error", "message": "nobody answered" })),
    ]);
    assert_eq!(of(&facts, FactType::ToolFailed).text("failureCategory"), Some("requires_user_action"));
    assert_eq!(of(&facts, FactType::PermissionResolved).text("decision"), Some("expired"));
}

#[test]
fn requests_that_were_sent_again_and_the_size_of_outputs_are_facts() {
    let call = json!({ "model_call_id": "c1", "model_id": "m", "operation": "stream" });
    let retries =
        json!([{ "category": "provider_rate_limited", "pause_ms": 20 }, { "category": "provider_unavailable", "pause_ms": 500 }]);
    let end = json!({ "model_call_id": "c1", "model_id": "m", "operation": "stream", "duration_ms": 9, "finish_reason": "stop",
        "retries": retries, "usage": { "input": 1, "output": 2 } });
    let tool = json!({ "tool_call_id": "1", "tool_name": "search", "duration_ms": 1, "result": "the beginning", "output_bytes": 50_000,
        "truncated": true });
    let facts = project(&[
        ("model.call.started", call),
        ("model.call.completed", end),
        ("tool.call.started", json!({ "tool_call_id": "1", "tool_name": "search", "parameters": {} })),
        ("tool.call.completed", tool),
        ("run.completed", json!({ "finish_reason": "stop" })),
    ]);
    let limit = of(&facts, FactType::RateLimitHit);
    assert_eq!((limit.text("retryAfter"), limit.scope.model_request_id.is_some()), (Some("20 ms"), true));
    let again = of(&facts, FactType::RuntimeWarning);
    assert_eq!((again.text("code"), again.payload.get("pauseMs")), (Some("provider_retry"), Some(&json!(500))));
    assert!(!kinds(&facts).contains(&"model.failed"), "a call that came to a good end has not failed");
    let result = of(&facts, FactType::ToolResult);
    assert_eq!(
        (result.payload.get("outputBytes"), result.payload.get("outputTruncated")),
        (Some(&json!(50_000)), Some(&json!(true)))
    );
}

#[test]
fn a_model_that_failed_before_another_answered_is_a_fact_and_no_failure() {
    let call = |model: &str, rest: Value| {
        let mut data = json!({ "model_call_id": "c1", "model_id": model, "operation": "stream" });
        data.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        data
    };
    let fallbacks = json!([{ "model_id": "first", "category": "provider_unavailable", "duration_ms": 40 }]);
    let end = json!({ "duration_ms": 60, "finish_reason": "stop", "fallbacks": fallbacks, "usage": { "input": 1, "output": 2 } });
    let facts = project(&[
        ("model.call.started", call("first", json!({}))),
        ("model.call.completed", call("second", end)),
        ("run.completed", json!({ "finish_reason": "stop" })),
    ]);
    let warning = of(&facts, FactType::RuntimeWarning);
    assert_eq!((warning.text("code"), warning.text("model")), (Some("model_fallback"), Some("first")));
    assert_eq!(warning.payload.get("durationMs"), Some(&json!(40)));
    assert_eq!(of(&facts, FactType::CostRecorded).text("model"), Some("second"));
    assert!(!kinds(&facts).contains(&"model.failed"));
}

#[test]
fn output_that_is_an_artifact_as_a_whole_is_spilled() {
    let artifact =
        |id: &str| json!({ "type": "artifact", "artifact": { "artifact_id": id, "media_type": "text/plain", "size": 50_000 } });
    let end = |parts: Value| json!({ "tool_call_id": "1", "tool_name": "book", "result": parts });
    let beginning = json!({ "type": "text", "text": "It was" });
    let check = |end: Value, source: EventSource, spills: bool| {
        let mut projector = Projector::new(turn(1, true));
        let mut facts = projector.begin();
        let events = [
            ("tool.call.completed".to_owned(), end.clone(), source),
            ("run.completed".to_owned(), json!({ "finish_reason": "stop" }), EventSource::Host),
        ];
        for event in record(RUN.parse().unwrap(), &events) {
            facts.extend(projector.push(&event, &NoChildren));
        }
        let result = of(&facts, FactType::ToolResult);
        assert_eq!(
            (result.text("outputPreview"), result.text("outputRef")),
            (Some("It was"), Some("/api/v1/artifacts/a")),
            "{end}"
        );
        let spilled = facts.iter().find(|fact| fact.kind == FactType::OutputSpilled);
        assert_eq!(
            spilled.map(|fact| (fact.text("outputRef"), &fact.payload["bytes"])),
            spills.then_some((Some("/api/v1/artifacts/a"), &json!(50_000))),
            "{end}"
        );
        assert_eq!(result.payload.get("outputTruncated").is_some(), spills || end["truncated"] == true, "{end}");
    };
    let whole = end(json!([beginning, artifact("a")]));
    check(whole.clone(), EventSource::Import, true);
    // A file that the output names, not the output.
    check(whole.clone(), EventSource::Runner, false);
    let cut = |mut end: Value| {
        end["truncated"] = true.into();
        end
    };
    check(cut(whole), EventSource::Host, true);
    check(cut(end(json!([artifact("a"), beginning, artifact("b")]))), EventSource::Host, false);
}

#[test]
fn a_failed_turn_says_its_category_and_what_to_do() {
    let facts = project(&[
        ("tool.call.started", json!({ "tool_call_id": "1", "tool_name": "search", "parameters": {} })),
        ("sandbox.violation", json!({ "code": "runner.trapped", "message": "panicked" })),
        ("run.failed", json!({ "code": "runner.trapped", "message": "panicked", "retryable": false })),
    ]);
    let failed = of(&facts, FactType::TurnFailed);
    assert_eq!(failed.text("failureCategory"), Some("runner_crashed"));
    assert!(failed.text("recoveryHint").is_some_and(|hint| !hint.is_empty()));
    assert_eq!(of(&facts, FactType::SandboxBlocked).text("reasonCode"), Some("runner.trapped"));
    assert_eq!(facts.last().unwrap().text("status"), Some("failed"));

    let facts = project(&[("run.failed", json!({ "code": "cancelled", "message": "user" }))]);
    assert_eq!(of(&facts, FactType::TurnCanceled).text("reason"), Some("user"));
    assert_eq!(facts.last().unwrap().text("status"), Some("canceled"));
}

#[test]
fn a_turn_that_never_began_is_queued_and_ends() {
    let mut projector = Projector::new(turn(5, false));
    let mut facts = projector.begin();
    let cancelled = ("run.failed".to_owned(), json!({ "code": "cancelled", "message": "gone" }), EventSource::Host);
    for event in record(RUN.parse().unwrap(), &[cancelled]) {
        facts.extend(projector.push(&event, &NoChildren));
    }
    let expected = [
        "session.created",
        "thread.started",
        "turn.submitted",
        "run.status",
        "evidence.changed",
        "turn.canceled",
        "snapshot.updated",
    ];
    assert_eq!(kinds(&facts), expected);
    assert_eq!((facts[0].sequence, projector.next_sequence()), (5, 12));
}

#[test]
fn a_retried_run_has_attempts() {
    let facts = project(&[
        ("tool.call.started", json!({ "tool_call_id": "1", "tool_name": "search", "parameters": {} })),
        ("run.status", json!({ "status": "running", "reason": "retried", "attempt": 2 })),
        ("tool.call.started", json!({ "tool_call_id": "1", "tool_name": "search", "parameters": {} })),
        ("tool.call.completed", json!({ "tool_call_id": "1", "tool_name": "search", "result": "r" })),
        ("run.completed", json!({ "finish_reason": "stop" })),
    ]);
    assert_eq!(of(&facts, FactType::ToolFailed).scope.tool_call_id, Some(format!("{RUN}:1")));
    assert_eq!(of(&facts, FactType::ToolResult).scope.tool_call_id, Some(format!("{RUN}:2:1")));
    assert_eq!(of(&facts, FactType::TaskAttemptStarted).scope.attempt_id, Some(format!("{RUN}:attempt:2")));
    assert_eq!(of(&facts, FactType::TaskAttemptCompleted).scope.attempt_id, Some(format!("{RUN}:attempt:2")));
    let mut task = TaskFold::new(RUN);
    facts.iter().for_each(|fact| task.apply(fact));
    let attempts: Vec<_> = task.finish().unwrap().attempts.into_iter().map(|attempt| attempt.status).collect();
    assert_eq!(attempts, ["failed", "completed"]);

    let facts = project(&[
        ("run.status", json!({ "status": "running", "reason": "retried", "attempt": 2 })),
        ("run.failed", json!({ "code": "runner.trapped", "message": "panicked", "retryable": false })),
    ]);
    let failed = facts.iter().rev().find(|fact| fact.kind == FactType::TaskAttemptFailed).unwrap();
    assert_eq!((failed.text("failureCategory"), failed.payload.get("retryable")), (Some("runner_crashed"), Some(&json!(false))));
}

#[test]
fn a_child_is_a_task_whose_output_keeps_its_ids() {
    let child = "01890a5d-ac96-774b-bcce-b302099a8057";
    let facts = project(&[
        ("run.child.started", json!({ "run_id": child, "objective": "look", "runner_id": "plugin:a/b/c" })),
        ("run.child.ended", json!({ "run_id": child, "status": "completed", "usage": { "calls": 1, "input": 3, "output": 4 } })),
        ("run.child.started", json!({ "run_id": "01890a5d-ac96-774b-bcce-b302099a8058", "objective": "look" })),
        ("run.completed", json!({ "finish_reason": "stop" })),
    ]);
    let rest = [
        "task.created",
        "subagent.started",
        "channel.opened",
        "evidence.changed",
        "cost.recorded",
        "subagent.completed",
        "task.completed",
        "task.created",
        "subagent.started",
        "channel.opened",
        "subagent.failed",
        "task.cancelled",
        "evidence.changed",
        "turn.completed",
        "snapshot.updated",
    ];
    assert_eq!(kinds(&facts)[PRELUDE.len()..], rest);
    let evidence = of(&facts, FactType::EvidenceChanged);
    assert_eq!((evidence.scope.task_id.as_deref(), evidence.scope.subagent_id.as_deref()), (Some(child), Some(child)));
    assert_eq!(of(&facts, FactType::CostRecorded).payload["usage"]["total"], 7);
}

#[test]
fn the_read_models_are_folds_of_the_stream() {
    let child = "01890a5d-ac96-774b-bcce-b302099a8057";
    let action = format!("{RUN}.1");
    let facts = project(&[
        ("run.child.started", json!({ "run_id": child, "objective": "look", "runner_id": "plugin:a/b/c" })),
        ("fact.task.progress", json!({ "task_id": child, "completed": 1, "total": 3 })),
        ("artifact.created", json!({ "artifact": { "artifact_id": "art", "media_type": "text/plain", "name": "a.txt" } })),
        (
            "action.requested",
            json!({ "action_id": action, "kind": "platform_action", "action": "message.edit", "policy": "ask",
            "target": {}, "payload": {}, "decisions": ["approve", "deny"] }),
        ),
        ("run.status", json!({ "status": "waiting", "reason": "approval" })),
        ("action.answered", json!({ "action_id": action, "decision": "deny", "at": 1 })),
        ("run.child.ended", json!({ "run_id": child, "status": "failed" })),
        ("run.failed", json!({ "code": "deadline_exceeded", "message": "late" })),
    ]);
    let fold = |until: &Fact| {
        let mut model = ThreadReadModel::new("agent-host", "c1", "c1");
        let mut task = TaskFold::new(child);
        for fact in facts.iter().filter(|fact| fact.sequence <= until.sequence) {
            model.apply(fact);
            task.apply(fact);
        }
        (model, task.finish())
    };
    let (waiting, task) = fold(of(&facts, FactType::ActionRequired));
    assert_eq!(waiting.status, ThreadStatus::Waiting);
    assert_eq!(waiting.pending_actions[0].action_id, action);
    assert_eq!((waiting.tool_calls[0].status.as_str(), waiting.active_turn_id.as_deref()), ("waiting", Some(RUN)));
    let task = task.unwrap();
    assert_eq!(
        (task.status.as_str(), task.objective.as_deref(), task.parent_task_id.as_deref()),
        ("running", Some("look"), Some(RUN))
    );
    assert_eq!(task.progress.map(|progress| (progress.completed_steps, progress.total_steps)), Some((Some(1), Some(3))));
    assert_eq!(task.current_run_id.as_deref(), Some(child));
    let (ended, task) = fold(facts.last().unwrap());
    let outcome = ended.last_outcome.unwrap();
    assert_eq!((ended.status, outcome.failure_category.as_deref()), (ThreadStatus::Failed, Some("deadline_exceeded")));
    assert!(outcome.recovery_hint.is_some());
    assert_eq!((ended.artifact_refs[0].uri.as_str(), ended.tool_calls[0].status.as_str()), ("/api/v1/artifacts/art", "failed"));
    let task = task.unwrap();
    assert_eq!((task.status.as_str(), task.evidence_refs.len(), task.subagents[0].status.as_str()), ("failed", 1, "failed"));
    let gap = &facts[3];
    let mut model = ThreadReadModel::new("agent-host", "c1", "c1");
    model.apply(gap);
    assert_eq!(model.status, ThreadStatus::Stale, "a gap is said");
}
