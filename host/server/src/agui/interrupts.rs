//! Actions of a host run as interrupts of AG-UI, and their answers by `resume`.

use agent_host_protocol::{RunId, Timestamp, encoded::JsonText, time};
use agent_host_runs::{AskKind, Response, facts::record::Decision};
use serde_json::{Map, Value, json};

use super::{event::Interrupt, input::ResumeStatus, project::tool_call_id};

/// Reason of an interrupt: yes or no.
const CONFIRMATION: &str = "confirmation";
/// Reason of an interrupt: an answer of any form.
const INPUT_REQUIRED: &str = "input_required";
/// Reason of an interrupt: the client is to make a call.
const TOOL_CALL: &str = "tool_call";
/// Reason of an interrupt: nobody knows whether something was done.
const IN_DOUBT: &str = "agent-host:effect_in_doubt";

/// The interrupt of an action, from its id, the data of `action.requested`, and the schema in it.
pub(crate) fn interrupt(run: RunId, action_id: &str, request: &Value, schema: Option<&JsonText>) -> Interrupt {
    let text = |name: &str| request.get(name).and_then(Value::as_str);
    let expires_at = request.get("expires_at").and_then(Value::as_u64).and_then(rfc3339);
    let (reason, message, response_schema) = match text("kind") {
        Some("question") => {
            let asked = schema.filter(|schema| schema.get().starts_with('{')).cloned();
            let is_confirmation = is_confirmation(request);
            let reason = if is_confirmation { CONFIRMATION } else { INPUT_REQUIRED };
            (
                reason,
                question(text("title"), text("description")),
                asked.or_else(|| if is_confirmation { approval() } else { None }),
            )
        }
        Some("platform_action") => {
            let message = text("action").map(|action| format!("May the agent do `{action}`?"));
            (CONFIRMATION, message, approval())
        }
        Some("client_tool") => {
            let message = text("tool_name").map(|tool| format!("The agent calls `{tool}`, a tool of the client."));
            (TOOL_CALL, message, None)
        }
        // Ledgers of hosts before had no other.
        _ => (IN_DOUBT, text("message").map(str::to_owned), repetition()),
    };
    let tool_call_id =
        (reason == TOOL_CALL).then(|| tool_call_id(run, attempt_of(action_id), text("tool_call_id").unwrap_or(action_id)));
    Interrupt {
        id: action_id.to_owned(),
        reason: reason.to_owned(),
        message,
        tool_call_id,
        response_schema,
        expires_at,
        metadata: metadata(request),
    }
}

/// The host's response for an entry of `resume`.
///
/// # Errors
/// Fails with the expected form of the payload.
pub(crate) fn response(kind: AskKind, request: &Value, status: ResumeStatus, payload: Option<Value>) -> Result<Response, String> {
    let payload = payload.filter(|payload| !payload.is_null());
    if status == ResumeStatus::Cancelled {
        let decision = match kind {
            AskKind::PlatformAction => Decision::Deny,
            AskKind::EffectInDoubt => Decision::Skip,
            _ => Decision::Decline,
        };
        return Ok(Response { decision, reason: payload.as_ref().and_then(reason), answer: None });
    }
    match kind {
        AskKind::PlatformAction => judged(payload.as_ref(), "approved", Decision::Approve, Decision::Deny),
        AskKind::EffectInDoubt => {
            let Some(payload) = &payload else {
                return Err("must say whether to do it again: {\"repeat\": true} or {\"repeat\": false}".to_owned());
            };
            judged(Some(payload), "repeat", Decision::Repeat, Decision::Skip)
        }
        AskKind::Question if is_confirmation(request) => confirmed(request, payload),
        AskKind::ClientTool => Ok(Response { decision: Decision::Submit, reason: None, answer: Some(result(payload)) }),
        _ => Ok(Response { decision: Decision::Submit, reason: None, answer: payload }),
    }
}

/// Reads yes or no. A resolution without a payload means yes.
fn judged(payload: Option<&Value>, field: &str, yes: Decision, no: Decision) -> Result<Response, String> {
    let reply = match payload {
        None => true,
        Some(payload) => {
            let reply = payload.as_bool().or_else(|| payload.get(field)?.as_bool());
            reply.ok_or_else(|| format!("must be true, false, or {{\"{field}\": true or false, \"reason\"?: TEXT}}"))?
        }
    };
    Ok(Response { decision: if reply { yes } else { no }, reason: payload.and_then(reason), answer: None })
}

/// A question for a yes may want more than that: what is neither a plain yes nor a plain no is the answer.
fn confirmed(request: &Value, payload: Option<Value>) -> Result<Response, String> {
    let plain = judged(payload.as_ref(), "approved", Decision::Submit, Decision::Decline);
    match (plain, payload) {
        (Ok(no), _) if no.decision == Decision::Decline => Ok(no),
        // The schema may be that of the payload itself.
        (Ok(yes), Some(payload @ Value::Object(_))) if has_schema(request) => Ok(Response { answer: Some(payload), ..yes }),
        (Ok(yes), _) => Ok(yes),
        (Err(_), Some(payload)) if has_schema(request) => {
            Ok(Response { decision: Decision::Submit, reason: None, answer: Some(payload) })
        }
        (Err(wrong), _) => Err(wrong),
    }
}

/// The result of a frontend tool that comes by `resume` and not in a message.
fn result(payload: Option<Value>) -> Value {
    match payload {
        None => json!({ "content": "" }),
        Some(Value::String(text)) => json!({ "content": text }),
        Some(payload) => {
            let content = payload.get("content").filter(|content| content.is_string() || content.is_array());
            match content {
                Some(content) => {
                    let mut result = json!({ "content": content });
                    if let (Some(result), Some(error)) =
                        (result.as_object_mut(), payload.get("error").filter(|error| error.is_string()))
                    {
                        result.insert("error".to_owned(), error.clone());
                    }
                    result
                }
                None => json!({ "content": payload.to_string() }),
            }
        }
    }
}

fn is_confirmation(request: &Value) -> bool {
    request.get("question").and_then(Value::as_str) == Some("confirmation")
}

fn has_schema(request: &Value) -> bool {
    request.get("answer_schema").is_some_and(|schema| !schema.is_null())
}

fn reason(payload: &Value) -> Option<String> {
    payload.get("reason").and_then(Value::as_str).map(str::to_owned)
}

fn question(title: Option<&str>, description: Option<&str>) -> Option<String> {
    let parts: Vec<&str> = title.into_iter().chain(description).filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

/// The values that a client needs to show the interrupt, besides the texts.
fn metadata(request: &Value) -> Map<String, Value> {
    let shown = ["kind", "question", "title", "description", "action", "target", "payload", "tool_name", "parameters"];
    let member = |name: &str| Some((name.to_owned(), request.get(name).filter(|value| !value.is_null())?.clone()));
    shown.into_iter().filter_map(member).collect()
}

fn approval() -> Option<JsonText> {
    schema("approved")
}

fn repetition() -> Option<JsonText> {
    schema("repeat")
}

/// Of an object that says yes or no, and why.
fn schema(field: &str) -> Option<JsonText> {
    let properties = [(field.to_owned(), json!({ "type": "boolean" })), ("reason".to_owned(), json!({ "type": "string" }))];
    let properties: Map<String, Value> = properties.into_iter().collect();
    let members = [("type", json!("object")), ("properties", Value::Object(properties)), ("required", json!([field]))];
    let members: Map<String, Value> = members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    JsonText::of(&members).ok()
}

/// A time as clients read it; nothing where no calendar holds it.
fn rfc3339(at: Timestamp) -> Option<String> {
    Some(time::display(at)).filter(|text| text.ends_with('Z'))
}

/// The attempt that has asked: numbers of calls of another attempt are others.
fn attempt_of(action_id: &str) -> u32 {
    let number = action_id.split_once('.').and_then(|(_, number)| number.parse::<u64>().ok()).unwrap_or_default();
    u32::try_from(number >> 40).unwrap_or_default().saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(kind: &str, schema: Value) -> Value {
        json!({ "kind": "question", "question": kind, "title": "Ship it?", "description": null, "answer_schema": schema,
            "expires_at": 1_700_000_000_123_u64, "decisions": ["submit", "decline"] })
    }

    #[test]
    fn interrupts_have_the_reasons_of_the_protocol() {
        let run = RunId::new();
        let asked = |request: &Value| {
            let schema = JsonText::of(&request["answer_schema"]).ok();
            interrupt(run, &format!("{run}.3"), request, schema.as_ref())
        };

        let confirmation = asked(&question("confirmation", Value::Null));
        assert_eq!(confirmation.id, format!("{run}.3"));
        assert_eq!(confirmation.reason, "confirmation");
        assert_eq!(confirmation.message.as_deref(), Some("Ship it?"));
        assert_eq!(confirmation.expires_at.as_deref(), Some("2023-11-14T22:13:20.123Z"));
        assert_eq!(confirmation.response_schema, approval());
        assert_eq!(confirmation.tool_call_id, None);

        let form = asked(&question("form", json!({ "type": "object" })));
        assert_eq!(form.reason, "input_required");
        assert_eq!(form.response_schema.unwrap().get(), r#"{"type":"object"}"#);
        assert_eq!(asked(&question("choice", Value::Null)).response_schema, None);

        let action = asked(&json!({ "kind": "platform_action", "action": "message.edit", "target": { "id": 1 },
            "payload": { "text": "x" }, "policy": "ask", "decisions": ["approve", "deny"] }));
        assert_eq!(action.reason, "confirmation");
        assert_eq!(
            Value::Object(action.metadata),
            json!({ "kind": "platform_action", "action": "message.edit", "target": { "id": 1 }, "payload": { "text": "x" } })
        );

        let doubt = asked(&json!({ "kind": "effect_in_doubt", "message": "find out", "expires_at": u64::MAX }));
        assert_eq!((doubt.reason.as_str(), doubt.message.as_deref()), ("agent-host:effect_in_doubt", Some("find out")));
        assert_eq!(doubt.expires_at, None);

        let request = json!({ "kind": "client_tool", "tool_call_id": "c1", "tool_name": "ask", "parameters": {} });
        let call = asked(&request);
        assert_eq!((call.reason.as_str(), call.tool_call_id), ("tool_call", Some(format!("{run}:c1"))));
        let later = interrupt(run, &format!("{run}.{}", (1_u64 << 40) + 3), &request, None);
        assert_eq!(later.tool_call_id, Some(format!("{run}:2:c1")));
    }

    fn check(
        kind: AskKind,
        request: &Value,
        payload: Option<Value>,
        expect: Result<(Decision, Option<&str>, Option<Value>), ()>,
    ) {
        let reply = response(kind, request, ResumeStatus::Resolved, payload.clone());
        let reply = reply.as_ref().map(|reply| (reply.decision, reply.reason.as_deref(), reply.answer.clone())).map_err(drop);
        assert_eq!(reply, expect, "{kind:?} {payload:?}");
    }

    #[test]
    fn resolved_interrupts_become_valid_responses() {
        let confirmation = question("confirmation", Value::Null);
        for yes in [None, Some(Value::Null), Some(json!(true)), Some(json!({ "approved": true }))] {
            check(AskKind::Question, &confirmation, yes.clone(), Ok((Decision::Submit, None, None)));
            check(AskKind::PlatformAction, &json!({}), yes, Ok((Decision::Approve, None, None)));
        }
        let no = json!({ "approved": false, "reason": "too late" });
        check(AskKind::Question, &confirmation, Some(no.clone()), Ok((Decision::Decline, Some("too late"), None)));
        check(AskKind::PlatformAction, &json!({}), Some(no), Ok((Decision::Deny, Some("too late"), None)));
        check(AskKind::Question, &confirmation, Some(json!(false)), Ok((Decision::Decline, None, None)));
        check(AskKind::Question, &confirmation, Some(json!("maybe")), Err(()));
        check(AskKind::PlatformAction, &json!({}), Some(json!({})), Err(()));

        let with_schema = question("confirmation", json!({ "type": "string" }));
        check(AskKind::Question, &with_schema, Some(json!("yes")), Ok((Decision::Submit, None, Some(json!("yes")))));

        let form = question("form", Value::Null);
        check(AskKind::Question, &form, Some(json!({ "a": 1 })), Ok((Decision::Submit, None, Some(json!({ "a": 1 })))));
        check(AskKind::Question, &form, Some(json!(false)), Ok((Decision::Submit, None, Some(json!(false)))));
        check(AskKind::Question, &form, None, Ok((Decision::Submit, None, None)));

        check(AskKind::EffectInDoubt, &json!({}), Some(json!({ "repeat": true })), Ok((Decision::Repeat, None, None)));
        check(AskKind::EffectInDoubt, &json!({}), Some(json!({ "repeat": false })), Ok((Decision::Skip, None, None)));
        check(AskKind::EffectInDoubt, &json!({}), None, Err(()));

        for (payload, content) in [
            (None, json!({ "content": "" })),
            (Some(json!("blue")), json!({ "content": "blue" })),
            (Some(json!({ "color": "blue" })), json!({ "content": "{\"color\":\"blue\"}" })),
            (Some(json!({ "content": "blue", "error": "x", "y": 1 })), json!({ "content": "blue", "error": "x" })),
        ] {
            check(AskKind::ClientTool, &json!({}), payload, Ok((Decision::Submit, None, Some(content))));
        }
    }

    #[test]
    fn a_cancelled_run_is_refused() {
        for (kind, decision) in [
            (AskKind::Question, Decision::Decline),
            (AskKind::ClientTool, Decision::Decline),
            (AskKind::PlatformAction, Decision::Deny),
            (AskKind::EffectInDoubt, Decision::Skip),
        ] {
            let reply = response(kind, &json!({}), ResumeStatus::Cancelled, Some(json!({ "reason": "no" }))).unwrap();
            assert_eq!((reply.decision, reply.reason.as_deref(), reply.answer), (decision, Some("no"), None));
        }
    }
}
