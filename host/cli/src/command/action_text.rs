//! The text form of actions, for people.

use agent_host_protocol::{Page, time};
use serde_json::Value;

use crate::{styled::StyledText, table::Table, text};

/// A target, payload or answer on one line.
const MAX_VALUE: usize = 1000;

/// Actions, one row each.
pub(crate) fn table(page: &Page<Value>) -> StyledText {
    let mut table = Table::new(["ACTION", "STATUS", "ASKED", "EXPIRES", "WHAT"]);
    for action in &page.items {
        let request = text::member(action, "/request");
        table.row([
            string(text::member(action, "/action_id")),
            status(action),
            at(text::member(action, "/requested_at")).unwrap_or_default(),
            at(text::member(request, "/expires_at")).unwrap_or_else(|| "-".to_owned()),
            what(request),
        ]);
    }
    let mut output = table.render();
    if let Some(cursor) = page.next_cursor.as_ref().filter(|_| page.has_more) {
        output.push_str(&format!("more: --cursor {cursor}\n"));
    }
    output
}

/// The request in short: the title of a question, the action and its target, or the tool and its parameters.
pub(crate) fn what(request: &Value) -> String {
    let named = |name| text::member(request, name).as_str();
    match (named("/title"), named("/action"), named("/tool_name")) {
        (Some(title), ..) => title.to_owned(),
        (None, Some(action), _) => format!("{action} {}", value(text::member(request, "/target"))),
        (None, None, Some(tool)) => format!("{tool} {}", value(text::member(request, "/parameters"))),
        (None, None, None) => String::new(),
    }
}

/// The details that a person needs to decide, one per line, besides the title.
pub(crate) fn particulars(request: &Value) -> Vec<(&'static str, String)> {
    let names = [
        "title",
        "description",
        "message",
        "question",
        "action",
        "target",
        "payload",
        "tool_name",
        "parameters",
        "answer_schema",
    ];
    let present = names.into_iter().filter(|name| !request[*name].is_null());
    present.map(|name| (label(name), text::one_line(&value(&request[name]), MAX_VALUE))).collect()
}

fn label(name: &'static str) -> &'static str {
    match name {
        "message" => "why",
        "question" => "wants",
        "answer_schema" => "schema",
        "tool_name" => "tool",
        other => other,
    }
}

/// All details of an action.
pub(crate) fn details(action: &Value) -> String {
    let (request, answered, resolved) =
        (text::member(action, "/request"), text::member(action, "/answered"), text::member(action, "/resolved"));
    let mut fields = vec![
        ("id", string(text::member(action, "/action_id"))),
        ("run", string(text::member(action, "/run_id"))),
        ("status", status(action)),
        ("kind", string(text::member(request, "/kind"))),
    ];
    fields.extend(particulars(request));
    let mut also = |name, value: Option<String>| fields.extend(value.map(|value| (name, text::one_line(&value, MAX_VALUE))));
    let some = |of: &Value| Some(value(of)).filter(|_| !of.is_null());
    also("asked", at(text::member(action, "/requested_at")));
    also("expires", at(text::member(request, "/expires_at")));
    also("answered by", names_of(text::member(request, "/approvers")).map(|names| format!("{names} only")));
    also("decisions", names_of(text::member(request, "/decisions")).filter(|_| answered.is_null() && resolved.is_null()));
    also("decision", some(text::member(answered, "/decision")));
    also("by", some(text::member(answered, "/by")));
    also("at", at(text::member(answered, "/at")));
    also("reason", some(text::member(answered, "/reason")));
    also("answer", some(text::member(answered, "/answer")));
    also("result", some(text::member(resolved, "/result")));
    also("error", some(text::member(resolved, "/error/message")));
    text::fields(fields)
}

/// `open`, `answered`, or what came of it.
fn status(action: &Value) -> String {
    match text::member(action, "/resolved/outcome").as_str() {
        Some(outcome) => outcome.to_owned(),
        None => string(text::member(action, "/status")),
    }
}

/// The answer of a person, from `action.answered`.
pub(crate) fn answer_text(answered: &Value) -> String {
    let mut output = string(text::member(answered, "/decision"));
    if let Some(by) = text::member(answered, "/by").as_str() {
        output.push_str(&format!(" by {by}"));
    }
    for more in [text::member(answered, "/reason"), text::member(answered, "/answer")] {
        if !more.is_null() {
            output.push_str(&format!(": {}", value(more)));
        }
    }
    output
}

/// The outcome, from `action.resolved`.
pub(crate) fn outcome_text(resolved: &Value) -> String {
    let mut output = string(text::member(resolved, "/outcome"));
    for more in [text::member(resolved, "/error/message"), text::member(resolved, "/reason"), text::member(resolved, "/result")] {
        if !more.is_null() {
            output.push_str(&format!(": {}", value(more)));
        }
    }
    output
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

/// A text as it is, anything else as JSON.
fn value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn at(value: &Value) -> Option<String> {
    value.as_u64().map(time::display)
}

fn names_of(value: &Value) -> Option<String> {
    let names: Vec<&str> = value.as_array()?.iter().filter_map(Value::as_str).collect();
    Some(names.join(" or ")).filter(|names| !names.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn closed() -> Value {
        json!({
            "action_id": "01890a5d-ac96-774b-bcce-b302099a8057.2",
            "run_id": "01890a5d-ac96-774b-bcce-b302099a8057",
            "status": "resolved",
            "requested_at": 1_700_000_000_123_u64,
            "request": {
                "action_id": "01890a5d-ac96-774b-bcce-b302099a8057.2", "kind": "platform_action", "action": "issue.close",
                "target": { "repo": "acme/site" }, "payload": { "comment": "done" }, "policy": "ask",
                "expires_at": 1_700_000_600_123_u64, "approvers": ["alice", "bob"], "decisions": ["approve", "deny"],
            },
            "answered": { "decision": "approve", "by": "alice", "reason": "go on", "at": 1_700_000_100_000_u64 },
            "resolved": { "outcome": "failed", "error": { "message": "the webhook refuses (403)" } },
        })
    }

    fn open() -> Value {
        json!({
            "action_id": "01890a5d-ac96-774b-bcce-b302099a8057.3",
            "run_id": "01890a5d-ac96-774b-bcce-b302099a8057",
            "status": "open",
            "requested_at": 1_700_000_000_123_u64,
            "request": {
                "kind": "question", "question": "choice", "title": "Which one?", "answer_schema": { "enum": ["a", "b"] },
                "decisions": ["submit", "decline"],
            },
        })
    }

    #[test]
    fn actions_are_a_table() {
        let page = Page { items: vec![closed(), open()], next_cursor: Some("c1".to_owned()), prev_cursor: None, has_more: true };
        insta::assert_snapshot!(table(&page), @r#"
        ACTION                                  STATUS  ASKED                     EXPIRES                   WHAT
        01890a5d-ac96-774b-bcce-b302099a8057.2  failed  2023-11-14T22:13:20.123Z  2023-11-14T22:23:20.123Z  issue.close {"repo":"acme/site"}
        01890a5d-ac96-774b-bcce-b302099a8057.3  open    2023-11-14T22:13:20.123Z  -                         Which one?
        more: --cursor c1
        "#);
    }

    #[test]
    fn an_action_is_shown_with_what_it_has() {
        insta::assert_snapshot!(details(&closed()), @r#"
        id           01890a5d-ac96-774b-bcce-b302099a8057.2
        run          01890a5d-ac96-774b-bcce-b302099a8057
        status       failed
        kind         platform_action
        action       issue.close
        target       {"repo":"acme/site"}
        payload      {"comment":"done"}
        asked        2023-11-14T22:13:20.123Z
        expires      2023-11-14T22:23:20.123Z
        answered by  alice or bob only
        decision     approve
        by           alice
        at           2023-11-14T22:15:00.000Z
        reason       go on
        error        the webhook refuses (403)
        "#);
        insta::assert_snapshot!(details(&open()), @r#"
        id         01890a5d-ac96-774b-bcce-b302099a8057.3
        run        01890a5d-ac96-774b-bcce-b302099a8057
        status     open
        kind       question
        title      Which one?
        wants      choice
        schema     {"enum":["a","b"]}
        asked      2023-11-14T22:13:20.123Z
        decisions  submit or decline
        "#);
    }
}
