//! The transcript as a projection of the record: beside messages the calls of tools, their results, and notices of runs that did
//! not end well.
//!
//! An item is written in the commit of the event that it shows. Long parameters and results are cut; the event has them whole.

use agent_host_facts::record::{ToolCallEnd, ToolCallStart};
use agent_host_ledger::{NewEvent, NewItem};
use agent_host_protocol::{
    EventId, ResultKind, Run, RunId, Timestamp,
    grant::ConversationKey,
    message::{ArtifactRef, ContentPart, content},
    run::Terminal,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::facts::shortened;

/// Largest text and largest parameters of an item.
const MAX_ITEM_BYTES: usize = 8 * 1024;
/// Longest notice.
const MAX_NOTICE_BYTES: usize = 1024;

/// The place of the items of a run.
#[derive(Debug, Clone)]
pub(crate) struct ItemPlace {
    pub(crate) conversation: ConversationKey,
    pub(crate) event_id: EventId,
    pub(crate) run_id: RunId,
}

impl ItemPlace {
    /// The place of the items of a stored run; `None` for a run without a conversation.
    pub(crate) fn of(run: &Run) -> Option<Self> {
        Some(Self { conversation: run.conversation_key()?, event_id: run.event_id, run_id: run.run_id })
    }

    fn item(&self, role: &'static str, item_type: &'static str, content: Vec<ContentPart>, at: Timestamp) -> NewItem {
        let artifacts = content.iter().filter_map(|part| match part {
            ContentPart::Artifact(artifact) => Some(artifact.clone()),
            _ => None,
        });
        NewItem {
            conversation: self.conversation.clone(),
            event_id: self.event_id,
            run_id: Some(self.run_id),
            role: role.into(),
            item_type: item_type.into(),
            artifacts: artifacts.collect::<Vec<ArtifactRef>>(),
            content,
            created_at: at,
        }
    }

    /// The item of an event: `None` for events that are neither a call of a tool nor its end.
    pub(crate) fn of_event(&self, event: &NewEvent) -> Option<NewItem> {
        match ResultKind::from_name(&event.kind)? {
            ResultKind::ToolCallStarted => {
                let ToolCallStart { tool_call_id, tool_name, parameters, parameters_bytes, .. } =
                    serde_json::from_str(event.data.get()).ok()?;
                let size = || parameters.as_ref().map(|parameters| parameters.get().len() as u64);
                let bytes = parameters_bytes.or_else(size).filter(|bytes| *bytes > MAX_ITEM_BYTES as u64);
                let whole = parameters.filter(|_| bytes.is_none());
                let mut part =
                    json!({ "type": "tool_call", "call_id": tool_call_id, "tool_name": tool_name, "parameters": whole });
                if let (Some(bytes), Some(members)) = (bytes, part.as_object_mut()) {
                    members.insert("parameters_bytes".to_owned(), bytes.into());
                }
                Some(self.item("assistant", "tool-call", vec![ContentPart::Other(part)], event.timestamp))
            }
            ResultKind::ToolCallCompleted => {
                let ToolCallEnd { tool_call_id, tool_name, result, error, .. } = serde_json::from_str(event.data.get()).ok()?;
                let is_error = error.is_some();
                let mut content = match (result, error) {
                    (Some(result), _) => parts_of(result),
                    (None, error) => vec![ContentPart::Text(error.map(text_of).unwrap_or_default())],
                };
                for part in &mut content {
                    if let ContentPart::Text(text) = part {
                        *text = shortened(text, MAX_ITEM_BYTES);
                    }
                }
                let part =
                    json!({ "type": "tool_result", "call_id": tool_call_id, "tool_name": tool_name, "is_error": is_error });
                content.push(ContentPart::Other(part));
                Some(self.item("tool", "tool-result", content, event.timestamp))
            }
            _ => None,
        }
    }

    /// The notice of a run that ends otherwise than well.
    pub(crate) fn notice(&self, terminal: &Terminal, at: Timestamp) -> Option<NewItem> {
        let text = match terminal {
            Terminal::Completed(_) => return None,
            Terminal::Failed(failure) => format!("The run failed: {}: {}", failure.code, failure.message),
            Terminal::Cancelled { reason } => format!("The run was cancelled: {reason}"),
            Terminal::Timeout { message } => format!("The run timed out: {message}"),
        };
        let text = shortened(&text, MAX_NOTICE_BYTES);
        Some(self.item("system", "notice", vec![ContentPart::Text(text)], at))
    }
}

/// The parts of a result: content as it is, any other JSON as text.
fn parts_of(result: Value) -> Vec<ContentPart> {
    #[derive(Deserialize)]
    struct Content(#[serde(with = "content")] Vec<ContentPart>);
    match Content::deserialize(&result) {
        Ok(Content(parts)) => parts.into_iter().filter(|part| !matches!(part, ContentPart::Other(_))).collect(),
        Err(_) => vec![ContentPart::Text(result.to_string())],
    }
}

fn text_of(error: Value) -> String {
    match error {
        Value::String(text) => text,
        other => other.get("message").and_then(Value::as_str).map_or_else(|| other.to_string(), str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::{encoded::JsonText, run::RunFailure};

    use super::*;
    use crate::record::facts::host_event;

    fn place() -> ItemPlace {
        ItemPlace { conversation: ConversationKey::new("", "c", ""), event_id: EventId::new(), run_id: RunId::new() }
    }

    fn of(kind: ResultKind, data: &Value) -> Option<NewItem> {
        place().of_event(&host_event(kind, JsonText::of(data).unwrap(), 1, 7))
    }

    fn texts(item: &NewItem) -> Vec<&str> {
        item.content
            .iter()
            .filter_map(|part| if let ContentPart::Text(text) = part { Some(text.as_str()) } else { None })
            .collect()
    }

    #[test]
    fn a_call_and_its_end_are_items() {
        let call = json!({ "tool_call_id": "c1", "tool_name": "add", "parameters": { "a": 1 } });
        let item = of(ResultKind::ToolCallStarted, &call).unwrap();
        assert_eq!((&*item.role, &*item.item_type, item.created_at), ("assistant", "tool-call", 7));
        let wanted = json!({ "type": "tool_call", "call_id": "c1", "tool_name": "add", "parameters": { "a": 1 } });
        assert_eq!(item.content, [ContentPart::Other(wanted)]);

        for (end, texts_of_end, is_error) in [
            (json!({ "result": [{ "type": "text", "text": "2" }] }), vec!["2"], false),
            (json!({ "result": "two" }), vec!["two"], false),
            (json!({ "result": { "sum": 2 } }), vec![r#"{"sum":2}"#], false),
            (json!({ "error": "broken" }), vec!["broken"], true),
            (json!({ "error": { "code": "timeout", "message": "late" } }), vec!["late"], true),
        ] {
            let mut data = json!({ "tool_call_id": "c1", "tool_name": "add" });
            data.as_object_mut().unwrap().extend(end.as_object().unwrap().clone());
            let item = of(ResultKind::ToolCallCompleted, &data).unwrap();
            assert_eq!((&*item.role, &*item.item_type, texts(&item)), ("tool", "tool-result", texts_of_end), "{end}");
            let wanted = json!({ "type": "tool_result", "call_id": "c1", "tool_name": "add", "is_error": is_error });
            assert_eq!(item.content.last(), Some(&ContentPart::Other(wanted)), "{end}");
        }
        assert!(of(ResultKind::MessageDelta, &json!({})).is_none());
    }

    #[test]
    fn what_is_long_is_cut() {
        let long = "x".repeat(100_000);
        let call = json!({ "tool_call_id": "c1", "tool_name": "add", "parameters": { "a": long } });
        let item = of(ResultKind::ToolCallStarted, &call).unwrap();
        let [ContentPart::Other(part)] = item.content.as_slice() else { panic!("{item:?}") };
        assert_eq!((&part["parameters"], &part["parameters_bytes"]), (&Value::Null, &json!(100_008)));
        let end = json!({ "tool_call_id": "c1", "tool_name": "add", "result": long });
        let item = of(ResultKind::ToolCallCompleted, &end).unwrap();
        assert!(texts(&item)[0].len() <= MAX_ITEM_BYTES + 16 && texts(&item)[0].ends_with("[cut]"));
    }

    #[test]
    fn a_run_that_does_not_end_well_leaves_a_notice() {
        let failure = RunFailure { code: "x.y".into(), message: "no\u{fffd}".into(), retryable: false, details: None };
        let item = place().notice(&Terminal::Failed(failure), 9).unwrap();
        assert_eq!((&*item.role, &*item.item_type, texts(&item)), ("system", "notice", vec!["The run failed: x.y: no\u{fffd}"]));
        let cancelled = place().notice(&Terminal::Cancelled { reason: "enough".into() }, 9).unwrap();
        assert_eq!(texts(&cancelled), ["The run was cancelled: enough"]);
    }
}
