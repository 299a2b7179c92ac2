//! The rules for what one event says, whatever stands before it: scope ids, source, failures, sizes, references.

use serde_json::{Map, Value};

use super::{
    event::{Event, SCOPE_IDS, text},
    finding::{Findings, short},
    rule::Rule,
    secret,
};
use crate::{failure::FailureCategory, kind};

/// Characters of a payload, as JSON.
pub const MAX_PAYLOAD_CHARS: usize = 32_000;

/// Characters of one text in a payload.
pub const MAX_TEXT_CHARS: usize = 8_000;

/// Families whose events belong to a turn.
const OF_TURN: [&str; 16] = [
    "turn",
    "run",
    "model",
    "reasoning",
    "plan",
    "tool",
    "action",
    "permission",
    "sandbox",
    "context",
    "routing",
    "cost",
    "rate_limit",
    "quota",
    "limit",
    "output",
];

/// Types that end something badly, and so have a category.
const FAILURES: [&str; 6] =
    ["turn.failed", "tool.failed", "model.failed", "subagent.failed", "task.failed", "task.attempt.failed"];

pub(crate) fn check(event: &Event<'_>, findings: &mut Findings) {
    scope(event, findings);
    source(event, findings);
    failure(event, findings);
    fields(event, findings);
    references(event, findings);
    sizes(event, findings);
    secret::check(event, findings);
}

fn scope(event: &Event<'_>, findings: &mut Findings) {
    let mut needed: Vec<&str> = Vec::new();
    let family = event.family();
    if OF_TURN.contains(&family) {
        needed.push("turnId");
    }
    match family {
        "tool" => needed.extend(["toolCallId", "stepId"]),
        "action" => needed.push("actionId"),
        "task" => needed.push("taskId"),
        "subagent" => needed.extend(["subagentId", "taskId"]),
        "channel" => needed.push("channelId"),
        "handoff" => needed.push("handoffId"),
        _ => {}
    }
    for name in needed {
        if event.id(name).is_none() {
            findings.add(Rule::ScopeMissing, event.place, format!("`{}` has no `{name}`", short(event.kind)));
        }
    }
    let named = match family {
        "artifact" => event.has_ref("artifactId", "artifactRefs", "artifact"),
        "evidence" => event.has_ref("evidenceId", "evidenceRefs", "evidence"),
        _ => true,
    };
    if !named {
        let message = format!("`{}` names no {family}: neither `{family}Id` nor `refs.{family}`", short(event.kind));
        findings.add(Rule::ScopeMissing, event.place, message);
    }
    for name in SCOPE_IDS {
        match (text(event.top, name), text(event.payload, name)) {
            (Some(top), Some(inner)) if top != inner => {
                let message = format!("`{name}` is `{}` at the top and `{}` in `payload`", short(top), short(inner));
                findings.add(Rule::ScopeMirror, event.place, message);
            }
            (Some(_), None) => {
                findings.add(Rule::ScopeMirror, event.place, format!("`{name}` stands at the top and not in `payload`"));
            }
            // A payload may name another object, such as the parent task of a snapshot.
            (None, Some(_)) if is_own_id(event, name) => {
                findings.add(Rule::ScopeMirror, event.place, format!("`{name}` stands in `payload` and not at the top"));
            }
            _ => {}
        }
    }
}

/// True for the ids that an event of this family is about.
fn is_own_id(event: &Event<'_>, name: &str) -> bool {
    matches!(
        (event.family(), name),
        ("tool", "toolCallId" | "stepId")
            | ("action", "actionId")
            | ("task", "taskId")
            | ("subagent", "subagentId" | "taskId")
            | ("channel", "channelId")
            | ("handoff", "handoffId")
    )
}

fn source(event: &Event<'_>, findings: &mut Findings) {
    match event.payload.get("source").map(|source| source.as_str().unwrap_or_default()) {
        Some("host" | "import") => {}
        Some("runner") => {
            if kind::is_of_host(event.kind) {
                let message = format!("`{}` has the source `runner`", short(event.kind));
                findings.add(Rule::SourceHostOnly, event.place, message);
            }
        }
        Some(other) => findings.add(Rule::PayloadSource, event.place, format!("`payload.source` is `{}`", short(other))),
        None => findings.add(Rule::PayloadSource, event.place, "`payload.source` is missing"),
    }
}

fn failure(event: &Event<'_>, findings: &mut Findings) {
    let (kind, place) = (event.kind, event.place);
    let mut add = |rule: Rule, message: String| findings.add(rule, place, message);
    if FAILURES.contains(&kind) || event.payload.contains_key("failureCategory") {
        match event.payload.get("failureCategory").and_then(Value::as_str) {
            Some(category) if FailureCategory::from_name(category).is_some() => {}
            Some(category) => {
                add(Rule::FailureCategory, format!("`failureCategory` is `{}`, which the list does not have", short(category)));
            }
            None => add(Rule::FailureCategory, format!("`{}` has no `failureCategory`", short(kind))),
        }
    }
    let needed: &[&str] = match kind {
        "tool.failed" => &["error"],
        "turn.failed" => &["message", "error"],
        "turn.canceled" => &["reason"],
        _ => &[],
    };
    // A runner may have failed without a word: its text is empty then, and still there.
    let says = |name: &&str| event.payload.get(*name).is_some_and(|value| value.is_string() || value.is_object());
    if !needed.is_empty() && !needed.iter().any(says) {
        add(Rule::FailureText, format!("`{kind}` has no `{}`", needed.join("` or `")));
    }
    if matches!(kind, "turn.failed" | "tool.failed") && !event.says(&["recoveryHint", "recoveryHintRef"]) {
        add(Rule::FailureHint, format!("`{kind}` has no `recoveryHint`"));
    }
    if matches!(kind, "permission.denied" | "sandbox.blocked" | "quota.blocked") && !event.says(&["reasonCode"]) {
        add(Rule::FailureReason, format!("`{kind}` has no `reasonCode`"));
    }
}

fn fields(event: &Event<'_>, findings: &mut Findings) {
    let mut add = |rule: Rule, message: &str| findings.add(rule, event.place, message);
    let has = |name: &str| event.payload.get(name).is_some_and(|value| !value.is_null());
    match event.kind {
        "model.delta"
            if event.payload_text("messageId").is_none() || !event.payload.get("delta").is_some_and(Value::is_string) =>
        {
            add(Rule::ModelFields, "`model.delta` has no `messageId` or no `delta`");
        }
        "model.completed" => {
            let has_text = event.payload.get("text").is_some_and(Value::is_string)
                || event.says(&["outputRef", "contentRef"])
                || event.refs("output").next().is_some();
            if event.payload_text("messageId").is_none() || !has_text {
                add(Rule::ModelFields, "`model.completed` has no `messageId`, or neither `text` nor `outputRef`");
            }
        }
        "tool.started" if !event.says(&["toolName"]) => add(Rule::ToolFields, "`tool.started` has no `toolName`"),
        "tool.result" => {
            let is = |name: &str, value: bool| event.payload.get(name) == Some(&Value::Bool(value));
            if is("success", false)
                || is("isError", true)
                || is("is_error", true)
                || event.payload.contains_key("failureCategory")
            {
                add(Rule::ToolSuccess, "`tool.result` says that the call failed");
            }
        }
        "action.required" => {
            for name in ["actionType", "title"] {
                if !event.says(&[name]) {
                    findings.add(Rule::ActionFields, event.place, format!("`action.required` has no `{name}`"));
                }
            }
        }
        "action.resolved" if !event.says(&["decision"]) => add(Rule::ActionFields, "`action.resolved` has no `decision`"),
        "cost.recorded" if !["usage", "amount", "status"].into_iter().any(has) => {
            add(Rule::FactUnknown, "`cost.recorded` has no `usage`, no `amount`, and no `status` that says so");
        }
        _ => {}
    }
    let is_unknown = |object: &Map<String, Value>| {
        let unknown = matches!(text(object, "status"), Some("unknown" | "unavailable"));
        unknown && text(object, "reason").is_none()
    };
    if is_unknown(event.payload) || event.payload.values().filter_map(Value::as_object).any(is_unknown) {
        findings.add(Rule::FactUnknown, event.place, "a value is unknown or unavailable without a `reason`");
    }
}

fn references(event: &Event<'_>, findings: &mut Findings) {
    let names_whole = event.says(&["outputRef", "contentRef", "uri", "reason"]) || event.refs("output").next().is_some();
    let is_cut = event.payload.get("outputTruncated") == Some(&Value::Bool(true));
    if (event.kind == "output.spilled" || is_cut) && !names_whole {
        findings.add(Rule::RefMissing, event.place, format!("`{}` does not name the whole output", short(event.kind)));
    }
    for name in ["path", "relativePath"] {
        if event.payload_text(name).is_some_and(is_absolute) {
            findings.add(Rule::RefPath, event.place, format!("`payload.{name}` is absolute, or leaves its folder"));
        }
    }
    let inline = ["bytes", "content", "data", "base64", "body"];
    if event.family() == "artifact" && inline.iter().any(|name| event.payload.get(*name).is_some_and(|value| !value.is_number()))
    {
        findings.add(Rule::RefInline, event.place, format!("`{}` carries content", short(event.kind)));
    }
}

fn is_absolute(path: &str) -> bool {
    let drive = path.as_bytes().get(1) == Some(&b':');
    path.starts_with(['/', '\\', '~']) || drive || path.starts_with("file:") || path.split(['/', '\\']).any(|part| part == "..")
}

fn sizes(event: &Event<'_>, findings: &mut Findings) {
    let mut longest = (0, "");
    for (name, value) in event.payload {
        each_text(value, &mut |text| {
            // Texts of fewer bytes have fewer characters.
            if text.len() > longest.0 {
                let length = text.chars().count();
                longest = longest.max((length, name.as_str()));
            }
        });
    }
    let (length, name) = longest;
    if length > MAX_TEXT_CHARS {
        let message = format!("a text in `payload.{}` has {length} characters", short(name));
        findings.add(Rule::SizeText, event.place, message);
    }
    let total = payload_chars(event.payload);
    if total > MAX_PAYLOAD_CHARS {
        findings.add(Rule::SizePayload, event.place, format!("`payload` has {total} characters as JSON"));
    }
}

fn payload_chars(payload: &Map<String, Value>) -> usize {
    let text = serde_json::to_string(payload).unwrap_or_default();
    if text.len() <= MAX_PAYLOAD_CHARS { text.len() } else { text.chars().count() }
}

fn each_text(value: &Value, each: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => each(text),
        Value::Array(items) => items.iter().for_each(|item| each_text(item, each)),
        Value::Object(members) => members.values().for_each(|value| each_text(value, each)),
        _ => {}
    }
}
