//! Broken logs: a good one with one small change, and the rule that refuses it.

use serde_json::{Value, json};

use super::{
    super::{Options, Rule, Scenario, check},
    codes,
    logs::{Log, good},
};

type Change = fn(&mut Log);

/// A payload member of the first event of a type.
fn set(log: &mut Log, kind: &str, name: &str, value: Value) {
    log.event(kind)["payload"][name] = value;
}

/// A member at the top of the first event of a type.
fn set_top(log: &mut Log, kind: &str, name: &str, value: Value) {
    log.event(kind)[name] = value;
}

fn unset(log: &mut Log, kind: &str, name: &str) {
    log.event(kind)["payload"].as_object_mut().unwrap().remove(name);
}

/// Takes the first event of a type out, and numbers the rest again.
fn remove(log: &mut Log, kind: &str) {
    let at = log.position(kind);
    log.0.remove(at);
    log.number();
}

/// Moves the first event of a type to the place of the first one of another, and numbers them again.
fn move_to(log: &mut Log, kind: &str, before: &str) {
    let event = log.0.remove(log.position(kind));
    let at = log.position(before);
    log.0.insert(at, event);
    log.number();
}

/// Puts a copy with a new id of its own behind the first event of a type.
fn repeat(log: &mut Log, kind: &str) {
    let at = log.position(kind);
    let mut copy = log.0[at].clone();
    copy["eventId"] = json!("again");
    log.0.insert(at + 1, copy);
    log.number();
}

/// Puts an event in front of the first one of a type.
fn put_before(log: &mut Log, before: &str, kind: &str, payload: Value) {
    let at = log.position(before);
    log.insert(at, kind, payload);
}

fn put_behind(log: &mut Log, behind: &str, kind: &str, payload: Value) {
    let at = log.position(behind) + 1;
    log.insert(at, kind, payload);
}

use Scenario::{ArtifactEvidence, HitlAction, SubagentHandoff, TextBasic, ToolFailure, ToolSuccess, TurnFailure};

const CALL: &str = "r1:call_1";

/// The name, the good log, the change, the rule.
const BROKEN: &[(&str, Scenario, Change, Rule)] = &[
    ("another schema", TextBasic, |l| set_top(l, "turn.started", "schemaVersion", json!("0.1")), Rule::EnvelopeSchema),
    ("no event id", TextBasic, |l| set_top(l, "turn.started", "eventId", json!("")), Rule::EnvelopeField),
    ("no payload", TextBasic, |l| set_top(l, "model.delta", "payload", json!([])), Rule::EnvelopeField),
    ("a number as run", TextBasic, |l| set_top(l, "turn.started", "runId", json!(7)), Rule::EnvelopeField),
    ("sequence as text", TextBasic, |l| set_top(l, "turn.started", "sequence", json!("4")), Rule::EnvelopeSequence),
    ("sequence 0", TextBasic, |l| set_top(l, "session.created", "sequence", json!(0)), Rule::EnvelopeSequence),
    ("a time in seconds", TextBasic, |l| set_top(l, "turn.started", "timestamp", json!(1_732_269_600)), Rule::EnvelopeTimestamp),
    (
        "a time without zone",
        TextBasic,
        |l| set_top(l, "turn.started", "timestamp", json!("2026-11-22T10:00:00")),
        Rule::EnvelopeTimestamp,
    ),
    ("a retired end", TextBasic, |l| set_top(l, "turn.completed", "type", json!("turn.done")), Rule::EnvelopeType),
    ("a type in capitals", TextBasic, |l| set_top(l, "run.status", "type", json!("RunStatus")), Rule::EnvelopeType),
    ("refs as a list", ArtifactEvidence, |l| set_top(l, "artifact.changed", "refs", json!(["a"])), Rule::EnvelopeRefs),
    (
        "refs of another kind",
        ArtifactEvidence,
        |l| set_top(l, "artifact.changed", "refs", json!({ "file": ["a"] })),
        Rule::EnvelopeRefs,
    ),
    ("no source", TextBasic, |l| unset(l, "model.delta", "source"), Rule::PayloadSource),
    (
        "a runner forges the sandbox",
        TextBasic,
        |l| {
            put_behind(l, "run.status", "sandbox.applied", json!({ "engine": "none" }));
            set(l, "sandbox.applied", "source", json!("runner"));
        },
        Rule::SourceHostOnly,
    ),
    ("a runner forges its end", TextBasic, |l| set(l, "turn.completed", "source", json!("runner")), Rule::SourceHostOnly),
    (
        "a tool without a step",
        ToolSuccess,
        |l| {
            unset(l, "tool.started", "stepId");
            l.event("tool.started").as_object_mut().unwrap().remove("stepId");
        },
        Rule::ScopeMissing,
    ),
    (
        "an artifact without a name",
        ArtifactEvidence,
        |l| {
            unset(l, "artifact.changed", "artifactId");
            l.event("artifact.changed").as_object_mut().unwrap().remove("artifactId");
        },
        Rule::ScopeMissing,
    ),
    (
        "a text without a turn",
        TextBasic,
        |l| {
            l.event("model.delta").as_object_mut().unwrap().remove("turnId");
        },
        Rule::ScopeMissing,
    ),
    ("an id only at the top", ToolSuccess, |l| unset(l, "tool.result", "toolCallId"), Rule::ScopeMirror),
    ("another id in the payload", ToolSuccess, |l| set(l, "tool.args", "stepId", json!("r1:step:2")), Rule::ScopeMirror),
    ("another thread", TextBasic, |l| set_top(l, "model.delta", "threadId", json!("c2")), Rule::ScopeThread),
    ("another turn", TextBasic, |l| set_top(l, "model.delta", "turnId", json!("t7")), Rule::ScopeTurn),
    ("a session in a turn", TextBasic, |l| set_top(l, "session.created", "turnId", json!("t1")), Rule::ScopeTurn),
    ("another run", TextBasic, |l| set_top(l, "model.delta", "runId", json!("r9")), Rule::ScopeRun),
    (
        "an event twice",
        TextBasic,
        |l| {
            let at = l.position("model.delta");
            let copy = l.0[at].clone();
            l.0.insert(at, copy);
        },
        Rule::IdDuplicate,
    ),
    (
        "one id for two events",
        TextBasic,
        |l| {
            let id = l.event("turn.started")["eventId"].clone();
            set_top(l, "model.delta", "eventId", id);
        },
        Rule::IdConflict,
    ),
    (
        "a call id of an earlier turn",
        ToolSuccess,
        |l| {
            l.turn("t2", |_| {}, "turn.completed");
            let of = json!({ "toolCallId": CALL, "stepId": "s" });
            let end = l.0.len() - 2;
            let mut started = of.clone();
            started["toolName"] = json!("search");
            l.insert(end, "tool.started", started);
            l.insert(end + 1, "tool.result", of);
        },
        Rule::IdReuse,
    ),
    ("a turn id again", TextBasic, |l| l.turn("t1", |_| {}, "turn.completed"), Rule::IdReuse),
    (
        "a log from its middle",
        TextBasic,
        |l| {
            l.0.remove(0);
        },
        Rule::OrderStart,
    ),
    (
        "a missing event",
        TextBasic,
        |l| {
            let at = l.position("turn.started");
            l.0.remove(at);
        },
        Rule::OrderGap,
    ),
    (
        "two events in the wrong order",
        TextBasic,
        |l| {
            let at = l.position("model.requested");
            l.0.swap(at, at + 1);
        },
        Rule::OrderBackwards,
    ),
    ("a session twice", TextBasic, |l| repeat(l, "session.created"), Rule::ThreadTwice),
    ("no submission", TextBasic, |l| remove(l, "turn.submitted"), Rule::TurnNotSubmitted),
    ("a start twice", TextBasic, |l| repeat(l, "turn.started"), Rule::TurnTwice),
    ("a submission twice", TextBasic, |l| repeat(l, "turn.submitted"), Rule::TurnTwice),
    ("no start", TextBasic, |l| remove(l, "turn.started"), Rule::TurnNotStarted),
    (
        "two open turns",
        TextBasic,
        |l| {
            l.0.truncate(6);
            l.turn("t2", |_| {}, "turn.completed");
        },
        Rule::TurnOverlap,
    ),
    ("text before a status", TextBasic, |l| remove(l, "run.status"), Rule::TurnStatusFirst),
    ("no end", TextBasic, |l| remove(l, "turn.completed"), Rule::TurnOpen),
    ("two ends", TextBasic, |l| repeat(l, "turn.completed"), Rule::TurnTerminalTwice),
    ("text after the end", TextBasic, |l| move_to(l, "model.delta", "snapshot.updated"), Rule::TurnAfterTerminal),
    ("an open call", ToolSuccess, |l| remove(l, "tool.result"), Rule::TurnOpenTool),
    ("an open action", HitlAction, |l| remove(l, "action.resolved"), Rule::TurnOpenAction),
    ("an open message", TextBasic, |l| remove(l, "model.completed"), Rule::TurnOpenModel),
    ("an open subagent", SubagentHandoff, |l| remove(l, "subagent.completed"), Rule::TurnOpenSubagent),
    ("no snapshot", TextBasic, |l| remove(l, "snapshot.updated"), Rule::TurnSnapshot),
    (
        "a snapshot that hides a failure",
        TurnFailure,
        |l| set(l, "snapshot.updated", "status", json!("completed")),
        Rule::TurnSnapshot,
    ),
    ("text without a request", TextBasic, |l| remove(l, "model.requested"), Rule::ModelNotRequested),
    ("a message without its text", TextBasic, |l| unset(l, "model.completed", "text"), Rule::ModelFields),
    ("a delta without its message", TextBasic, |l| unset(l, "model.delta", "messageId"), Rule::ModelFields),
    ("a message that goes on", TextBasic, |l| move_to(l, "model.delta", "turn.completed"), Rule::ModelAfterCompleted),
    ("a call without a name", ToolSuccess, |l| unset(l, "tool.started", "toolName"), Rule::ToolFields),
    ("a result without a start", ToolSuccess, |l| remove(l, "tool.started"), Rule::ToolNotStarted),
    ("arguments before the start", ToolSuccess, |l| move_to(l, "tool.args", "tool.started"), Rule::ToolNotStarted),
    ("a call started twice", ToolSuccess, |l| repeat(l, "tool.started"), Rule::ToolTwice),
    ("two results", ToolSuccess, |l| repeat(l, "tool.result"), Rule::ToolTwice),
    (
        "a result of another step",
        ToolSuccess,
        |l| {
            set(l, "tool.result", "stepId", json!("s9"));
            set_top(l, "tool.result", "stepId", json!("s9"));
        },
        Rule::ToolStep,
    ),
    ("a failure as a result", ToolSuccess, |l| set(l, "tool.result", "success", json!(false)), Rule::ToolSuccess),
    ("a result before the answer", HitlAction, |l| move_to(l, "tool.result", "action.resolved"), Rule::ToolBeforeAnswer),
    ("a result after a denial", HitlAction, |l| set(l, "action.resolved", "decision", json!("reject")), Rule::ToolAfterDenial),
    (
        "a result after an expiry",
        HitlAction,
        |l| set_top(l, "action.resolved", "type", json!("action.expired")),
        Rule::ToolAfterDenial,
    ),
    (
        "a result of a blocked call",
        ToolSuccess,
        |l| put_before(l, "tool.result", "sandbox.blocked", json!({ "toolCallId": CALL, "reasonCode": "x" })),
        Rule::ToolAfterDenial,
    ),
    ("a question without a title", HitlAction, |l| unset(l, "action.required", "title"), Rule::ActionFields),
    ("an answer without a decision", HitlAction, |l| unset(l, "action.resolved", "decision"), Rule::ActionFields),
    ("an answer without a question", HitlAction, |l| remove(l, "action.required"), Rule::ActionNotRequired),
    ("two answers", HitlAction, |l| repeat(l, "action.resolved"), Rule::ActionTwice),
    ("a question twice", HitlAction, |l| repeat(l, "action.required"), Rule::ActionTwice),
    ("a failure without a category", TurnFailure, |l| unset(l, "turn.failed", "failureCategory"), Rule::FailureCategory),
    ("a category of its own", ToolFailure, |l| set(l, "tool.failed", "failureCategory", json!("oops")), Rule::FailureCategory),
    ("a failure without words", ToolFailure, |l| unset(l, "tool.failed", "error"), Rule::FailureText),
    ("a cancel without a reason", Scenario::Cancel, |l| unset(l, "turn.canceled", "reason"), Rule::FailureText),
    ("a failure without a hint", TurnFailure, |l| unset(l, "turn.failed", "recoveryHint"), Rule::FailureHint),
    (
        "a denial without a reason",
        ToolFailure,
        |l| put_before(l, "tool.failed", "permission.denied", json!({ "toolCallId": CALL })),
        Rule::FailureReason,
    ),
    (
        "an unknown cost without a reason",
        TextBasic,
        |l| put_before(l, "turn.completed", "cost.recorded", json!({ "usage": { "status": "unknown" } })),
        Rule::FactUnknown,
    ),
    ("a cost that says nothing", TextBasic, |l| put_before(l, "turn.completed", "cost.recorded", json!({})), Rule::FactUnknown),
    ("a subagent without a start", SubagentHandoff, |l| remove(l, "subagent.started"), Rule::SubagentNotStarted),
    ("a subagent twice", SubagentHandoff, |l| repeat(l, "subagent.completed"), Rule::SubagentTwice),
    (
        "an artifact without its task",
        SubagentHandoff,
        |l| {
            unset(l, "artifact.changed", "taskId");
            l.event("artifact.changed").as_object_mut().unwrap().remove("taskId");
        },
        Rule::SubagentTask,
    ),
    ("a long text", TextBasic, |l| set(l, "model.completed", "text", json!("ä".repeat(8_001))), Rule::SizeText),
    ("a large payload", TextBasic, |l| set(l, "model.completed", "parts", json!(vec!["x".repeat(7_000); 5])), Rule::SizePayload),
    ("a count of tokens by that name", TextBasic, |l| set(l, "turn.completed", "inputTokens", json!(7)), Rule::SecretKey),
    (
        "a key in the arguments",
        ToolSuccess,
        |l| set(l, "tool.args", "safeArgs", json!({ "h": ["Bearer abcdefghij0123456789"] })),
        Rule::SecretValue,
    ),
    ("cut output without the whole", ToolSuccess, |l| set(l, "tool.result", "outputTruncated", json!(true)), Rule::RefMissing),
    (
        "a spill without a reference",
        ToolSuccess,
        |l| put_before(l, "tool.result", "output.spilled", json!({ "bytes": 9_000 })),
        Rule::RefMissing,
    ),
    ("an absolute path", ArtifactEvidence, |l| set(l, "artifact.changed", "path", json!("/etc/passwd")), Rule::RefPath),
    ("a path that climbs", ArtifactEvidence, |l| set(l, "artifact.changed", "path", json!("out/../../x")), Rule::RefPath),
    (
        "an artifact with its bytes",
        ArtifactEvidence,
        |l| set(l, "artifact.changed", "content", json!("aGVsbG8=")),
        Rule::RefInline,
    ),
];

#[test]
fn each_broken_log_is_refused_by_its_own_rule() {
    assert!(BROKEN.len() >= 40);
    for (name, scenario, change, rule) in BROKEN {
        let mut log = good(*scenario);
        change(&mut log);
        let report = check(&log.bytes(), Options::default());
        assert!(report.has(*rule), "{name}: {} expected, found {:?}", rule.code(), report.findings);
        let finding = report.findings.iter().find(|finding| finding.rule == *rule).unwrap();
        assert!(finding.line.is_some_and(|line| line >= 1 && line <= report.events), "{name}: {finding:?}");
    }
}

#[test]
fn most_changes_break_one_rule_only() {
    let single = BROKEN.iter().filter(|(_, scenario, change, rule)| {
        let mut log = good(*scenario);
        change(&mut log);
        let report = check(&log.bytes(), Options::default());
        codes(&report).iter().all(|code| *code == rule.code())
    });
    // The others break what follows from it too: without its start, a call has no arguments and no result either.
    assert!(single.count() * 4 >= BROKEN.len() * 3);
}

#[test]
fn broken_lines_are_refused_by_the_rules_for_lines() {
    let log = String::from_utf8(good(TextBasic).bytes()).unwrap();
    let deep = format!("{}{}\n", "[".repeat(100), "]".repeat(100));
    let cases: Vec<(&str, Vec<u8>, Rule)> = vec![
        ("torn", log.as_bytes()[..log.len() - 30].to_vec(), Rule::LineTorn),
        ("torn in the middle", log.replacen(",\"type\"", "\n", 1).into_bytes(), Rule::LineJson),
        ("no JSON", format!("hello\n{log}").into_bytes(), Rule::LineJson),
        ("a list", format!("[]\n{log}").into_bytes(), Rule::LineJson),
        ("deep", format!("{deep}{log}").into_bytes(), Rule::LineDepth),
        ("a doubled key", log.replacen("\"type\"", "\"type\":\"x.y\",\"type\"", 1).into_bytes(), Rule::LineDoubledKey),
        ("huge", format!("{{\"a\":\"{}\"}}\n{log}", "x".repeat(1 << 20)).into_bytes(), Rule::LineSize),
        ("latin-1", [b"{\"a\":\"\xe4\"}\n", log.as_bytes()].concat(), Rule::LineEncoding),
    ];
    for (name, log, rule) in cases {
        let report = check(&log, Options::default());
        assert!(report.has(rule), "{name}: {:?}", report.findings);
    }
}

#[test]
fn a_log_without_the_scenario_is_no_fixture_of_it() {
    for scenario in Scenario::ALL {
        let other = if scenario == TextBasic { ToolSuccess } else { TextBasic };
        let report = check(&good(other).bytes(), Options { expect: Some(scenario), ..Options::default() });
        assert!(codes(&report).iter().all(|code| *code == "expect.missing") && !report.conforms, "{}", scenario.as_str());
    }
}

#[test]
fn every_rule_for_events_has_a_broken_log() {
    let tested: Vec<_> = BROKEN.iter().map(|(.., rule)| *rule).collect();
    let elsewhere = ["line", "readmodel", "task", "expect", "check"];
    for rule in Rule::ALL {
        let family = rule.code().split('.').next().unwrap();
        assert!(elsewhere.contains(&family) || tested.contains(rule), "{rule} has no broken log");
    }
}
