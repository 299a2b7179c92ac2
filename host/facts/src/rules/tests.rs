//! Good logs of each scenario, and broken ones: each a good log with one small change, refused by its own rule.

mod broken;
mod logs;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use logs::{Log, good};

fn codes(report: &Report) -> Vec<&'static str> {
    report.findings.iter().map(|finding| finding.rule.code()).collect()
}

#[test]
fn good_logs_have_no_findings_and_are_fixtures_of_their_scenarios() {
    for scenario in Scenario::ALL {
        let log = good(scenario);
        let report = check(&log.bytes(), Options { expect: Some(scenario), ..Options::default() });
        assert_eq!(report.findings, [], "{}", scenario.as_str());
        assert_eq!((report.events, report.turns > 0), (log.0.len() as u64, true));
        assert_eq!(Scenario::from_name(scenario.as_str()), Some(scenario));
    }
}

#[test]
fn a_log_of_several_turns_is_one_thread() {
    let mut log = good(Scenario::ToolSuccess);
    log.turn("t2", |log| log.text("m2", "again"), "turn.completed");
    assert_eq!(check(&log.bytes(), Options::default()).findings, []);
}

#[test]
fn a_log_is_checked_the_same_in_any_pieces() {
    let log = good(Scenario::HitlAction).bytes();
    let broken = [&log[..200], &log[300..]].concat();
    let whole = check(&broken, Options::default());
    assert!(!whole.conforms);
    for size in [1, 7, 4096] {
        let mut checker = Checker::new(Options::default());
        broken.chunks(size).for_each(|piece| checker.push(piece));
        assert_eq!(checker.finish(), whole, "{size}");
    }
}

#[test]
fn an_open_turn_is_allowed_for_a_thread_that_goes_on() {
    let mut log = good(Scenario::HitlAction);
    let asked = log.position("action.required") + 1;
    log.0.truncate(asked);
    assert_eq!(codes(&check(&log.bytes(), Options::default())), ["turn.open"]);
    assert_eq!(check(&log.bytes(), Options { open: true, ..Options::default() }).findings, []);
}

#[test]
fn a_repair_covers_a_gap() {
    let mut log = good(Scenario::TextBasic);
    let at = log.position("model.completed");
    log.0.remove(at);
    log.insert(at + 1, "snapshot.updated", json!({ "status": "completed", "repairReason": "sequence_gap" }));
    log.0[at + 1]["sequence"] = json!(at + 2);
    log.0.swap(at, at + 1);
    for (event, sequence) in log.0[at..].iter_mut().zip(at as u64 + 2..) {
        event["sequence"] = json!(sequence);
    }
    let report = check(&log.bytes(), Options::default());
    assert_eq!(codes(&report), ["turn.open_model"], "a repair does not complete a message: {:?}", report.findings);
}

#[test]
fn findings_beyond_the_bound_are_counted() {
    let log = "{}\n".repeat(500);
    let report = check(log.as_bytes(), Options::default());
    assert_eq!(report.findings.len(), MAX_FINDINGS);
    assert!(report.unlisted > 1_000 && !report.conforms);
}

#[test]
fn huge_lines_are_findings_and_take_no_memory() {
    let mut checker = Checker::new(Options::default());
    for _ in 0..64 {
        checker.push(&vec![b'x'; 1 << 20]);
    }
    checker.push(b"\n");
    let report = checker.finish();
    assert_eq!(codes(&report), ["line.size"]);
    assert_eq!(report.findings[0].message, "the line has 67108864 bytes");
}

/// The read model of a log at its end.
fn model_of(log: &Log, status: &str) -> Map<String, Value> {
    let model = json!({
        "schemaVersion": "v1", "runtimeId": "host", "sessionId": "c1", "threadId": "c1", "status": status, "activeTurnId": null,
        "pendingActions": [], "toolCalls": [], "queuedTurns": [], "incidents": [], "diagnostics": [], "lastOutcome": null,
        "historyCursor": null, "eventCursor": log.0.len(),
    });
    model.as_object().unwrap().clone()
}

fn with_model(log: &Log, model: Map<String, Value>) -> Vec<&'static str> {
    codes(&check(&log.bytes(), Options { read_model: Some(model), ..Options::default() }))
}

#[test]
fn a_read_model_is_compared_at_its_cursor() {
    let log = good(Scenario::ToolSuccess);
    let mut model = model_of(&log, "completed");
    model["toolCalls"] = json!([{ "toolCallId": "r1:call_1", "status": "completed" }]);
    assert_eq!(with_model(&log, model.clone()), [""; 0]);
    // In the middle of the call.
    model["eventCursor"] = json!((log.position("tool.started") + 1).to_string());
    assert_eq!(with_model(&log, model.clone()), ["readmodel.status", "readmodel.status", "readmodel.tools"]);
    (model["status"], model["activeTurnId"]) = (json!("running"), json!("t1"));
    model["toolCalls"] = json!([{ "toolCallId": "r1:call_1", "status": "running" }]);
    assert_eq!(with_model(&log, model.clone()), [""; 0]);
    let asked = good(Scenario::HitlAction);
    let mut model = model_of(&asked, "waiting");
    model["eventCursor"] = json!(asked.position("action.required") + 1);
    model["activeTurnId"] = json!("t1");
    assert_eq!(with_model(&asked, model.clone()), ["readmodel.actions"]);
    model["pendingActions"] = json!([{ "actionId": "r1:a1" }]);
    assert_eq!(with_model(&asked, model), [""; 0]);
}

#[test]
fn wrong_read_models_and_tasks_are_refused_by_their_own_rules() {
    let failed = good(Scenario::TurnFailure);
    let mut good_model = model_of(&failed, "failed");
    good_model["lastOutcome"] = json!({ "failureCategory": "deadline_exceeded" });
    assert_eq!(with_model(&failed, good_model.clone()), [""; 0]);
    let cases: [(&str, Value, &str); 7] = [
        ("status", json!("completed"), "readmodel.status"),
        ("status", json!("fine"), "readmodel.field"),
        ("activeTurnId", json!("t9"), "readmodel.status"),
        ("pendingActions", json!([{ "actionId": "x" }]), "readmodel.actions"),
        ("lastOutcome", json!({ "failureCategory": "unknown" }), "readmodel.status"),
        ("eventCursor", json!(999), "readmodel.cursor"),
        ("threadId", json!("other"), "readmodel.ids"),
    ];
    for (field, value, code) in cases {
        let mut model = good_model.clone();
        model[field] = value;
        let found = with_model(&failed, model);
        assert!(found.contains(&code), "{field}: {found:?}");
    }
    let log = good(Scenario::SubagentHandoff);
    let task = json!({
        "taskId": "r1:task_1", "parentTaskId": null, "objective": "look", "status": "completed", "currentRunId": "r2", "attempts": [],
        "dependencies": [], "subagents": [], "progress": null, "outputs": [], "artifactRefs": [], "evidenceRefs": [],
        "eventCursor": log.0.len(),
    });
    let with_task = |task: &Value| codes(&check(&log.bytes(), Options { task: task.as_object().cloned(), ..Options::default() }));
    assert_eq!(with_task(&task), [""; 0]);
    let cases =
        [("status", json!("running"), "task.state"), ("taskId", json!("x"), "task.state"), ("attempts", json!(1), "task.field")];
    for (field, value, code) in cases {
        let mut task = task.clone();
        task[field] = value;
        assert_eq!(with_task(&task), [code], "{field}");
    }
}

/// The part of a page behind a heading, up to the next heading.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let behind = page.split_once(heading).unwrap_or_else(|| panic!("no {heading}")).1;
    behind.split_once("\n## ").map_or(behind, |(section, _)| section)
}

#[test]
fn the_page_has_a_row_for_each_rule_category_and_scenario() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CONFORMANCE.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let rows: String = Rule::ALL.iter().map(|rule| format!("| `{rule}` | {} | {} |\n", rule.sentence(), rule.fix())).collect();
    let table = section(&page, "## Rules\n");
    let found: String = table.lines().filter(|line| line.starts_with("| `")).map(|line| format!("{line}\n")).collect();
    if found != rows && std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, page.replace(&found, &rows)).unwrap();
        return;
    }
    assert_eq!(found, rows, "run this test with UPDATE=1");
    for category in crate::FailureCategory::ALL {
        assert!(section(&page, "## Failure categories\n").contains(&format!("`{category}`")), "{category}");
    }
    for scenario in Scenario::ALL {
        assert!(section(&page, "## Scenarios\n").contains(&format!("| `{}`", scenario.as_str())), "{}", scenario.as_str());
    }
}

/// Lines that look like events: much of a good log, with some parts replaced by anything.
fn any_line() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(vec![
        "type",
        "payload",
        "sequence",
        "eventId",
        "turnId",
        "toolCallId",
        "turn.submitted",
        "tool.started",
        "tool.result",
        "turn.completed",
        "action.required",
        "actionId",
        "refs",
        "t1",
        "r1:call_1",
        "subagent.started",
        "subagentId",
        "taskId",
    ]);
    let value = prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        words.clone().prop_map(Value::from)
    ];
    let event = prop::collection::vec((words, value), 0..10).prop_map(|members| {
        let mut event = json!({ "payload": {}, "sequence": 1 });
        members.into_iter().for_each(|(key, value)| event[key] = value);
        event.to_string().into_bytes()
    });
    prop_oneof![event, prop::collection::vec(any::<u8>(), 0..80), any::<String>().prop_map(String::into_bytes)]
}

proptest! {
    #[test]
    fn arbitrary_lines_never_panic(lines in prop::collection::vec(any_line(), 0..12)) {
        let model = json!({ "eventCursor": 1, "toolCalls": [1, { "toolCallId": "r1:call_1" }] });
        let options = Options { read_model: model.as_object().cloned(), task: model.as_object().cloned(), ..Options::default() };
        let log = lines.join(&b'\n');
        let report = check(&log, options);
        prop_assert!(!report.conforms);
    }

    #[test]
    fn a_good_log_with_any_byte_changed_never_panics(at in 0_usize..4_000, byte in any::<u8>()) {
        let mut log = good(Scenario::HitlAction).bytes();
        let at = at % log.len();
        log[at] = byte;
        let _ = check(&log, Options::default());
    }

    #[test]
    fn a_doubled_or_cut_log_is_refused(scenario in prop::sample::select(Scenario::ALL.to_vec()), at in 0_usize..100) {
        let log = good(scenario);
        let at = at % log.0.len();
        let mut doubled = log.clone();
        doubled.0.insert(at, log.0[at].clone());
        prop_assert!(check(&doubled.bytes(), Options::default()).has(Rule::IdDuplicate));
        let mut cut = log;
        cut.0.remove(at);
        // A repair says what it covers.
        let is_covered = cut.0.get(at).is_some_and(|next| next["payload"]["repairReason"].is_string());
        prop_assert_eq!(check(&cut.bytes(), Options::default()).conforms, is_covered);
    }
}
