//! Results of runs: those that an executor sends in LangBot's form, and the events of the record in it.

use serde_json::{Map, Value, json};

use super::{
    members::{Members, has, object},
    message,
};

/// Longest text of a `processor.log`, in characters, as LangBot has it.
const MAX_LOG_CHARS: usize = 65_536;
/// Prefix of the types of events whose data LangBot cannot express. LangBot passes over types that it does not know.
const OWN: &str = "agent-host.";

/// The data of an event of the record, and its type, as LangBot has them. A type that LangBot does not have keeps its data.
pub(super) fn to_langbot(kind: &str, data: Value) -> (String, Value) {
    let mut ours = Members::of(data);
    let data = match kind {
        "message.delta" => {
            let mut chunk = ours.within("chunk");
            object([(
                "chunk",
                Some(object([
                    ("resp_message_id", ours.take("message_id")),
                    chunk.named("role"),
                    ("content", chunk.take("content")),
                ])),
            )])
        }
        "message.completed" => {
            let id = ours.take("message_id");
            let mut message = message::to_langbot(ours.take("message").unwrap_or_default());
            if let (Value::Object(message), Some(id)) = (&mut message, id) {
                message.insert("resp_message_id".to_owned(), id);
            }
            json!({ "message": message })
        }
        "tool.call.started" => object([ours.named("tool_call_id"), ours.named("tool_name"), ours.named("parameters")]),
        "tool.call.completed" => object([
            ours.named("tool_call_id"),
            ours.named("tool_name"),
            ("result", ours.take("result").map(|content| json!({ "content": message::content_to_langbot(content) }))),
            ("error", ours.take("error").map(error_text)),
        ]),
        "state.updated" => {
            let scope = ours.take("scope");
            let (key, value) = (ours.take("key"), ours.take("value").unwrap_or_default());
            let is_own = scope.as_ref().and_then(Value::as_str) == Some("binding");
            let data = object([("scope", scope), ("key", key), ("value", Some(value))]);
            return (if is_own { format!("{OWN}{kind}") } else { kind.to_owned() }, data);
        }
        "action.requested" => object([ours.named("action"), ours.named("target"), ours.named("payload")]),
        "run.completed" => {
            let message = ours.take("message").map(message::to_langbot);
            object([ours.named("finish_reason"), ("message", message)])
        }
        "run.failed" => {
            let code = ours.text("code").unwrap_or_default();
            let is_late = code == "deadline_exceeded";
            let retryable = ours.take("retryable").and_then(|retryable| retryable.as_bool()).unwrap_or(false);
            object([
                ("error", ours.take("message")),
                ("code", Some(if is_late { "runner.timeout".to_owned() } else { code }.into())),
                ("retryable", Some((retryable || is_late).into())),
            ])
        }
        _ => Value::Object(ours.rest()),
    };
    (kind.to_owned(), data)
}

/// The text of an error, which is a text or an object with a `message`.
fn error_text(error: Value) -> Value {
    match error {
        Value::Object(mut error) => error.remove("message").unwrap_or_else(|| Value::Object(error).to_string().into()),
        text => text,
    }
}

/// The request of an append: `result`, or `results` with `first`. Runs may be named as LangBot's API names them, by `run_id` and
/// `target_run_id`.
pub(super) fn append(body: Value, run_id: &str) -> Result<Value, String> {
    let Value::Object(mut members) = body else { return Err("the body must be a JSON object".to_owned()) };
    for name in ["run_id", "target_run_id"] {
        let named = members.remove(name).filter(|named| !named.is_null());
        if named.is_some_and(|named| named != run_id) {
            return Err(format!("`{name}` is not this run, {run_id}: leave it out, or send that id"));
        }
    }
    if let Some(result) = members.remove("result") {
        members.insert("result".to_owned(), from_langbot(result)?);
    }
    if let Some(Value::Array(results)) = members.get_mut("results") {
        for result in results {
            *result = from_langbot(result.take())?;
        }
    }
    Ok(Value::Object(members))
}

/// A `RunnerResult` as a result of the host. Its number stays; its usage is a claim of the runner: of the whole run where it comes
/// with the end, else a fact of the result.
fn from_langbot(result: Value) -> Result<Value, String> {
    let mut theirs = Members::of(result);
    let kind = theirs.text("type").ok_or("a result has a `type`, such as `message.delta`")?;
    let mut metadata = Map::new();
    let usage = theirs.take("usage");
    let within = |error: String| format!("the data of `{kind}`: {error}");
    let mut data = data(&kind, theirs.within("data"), &mut metadata).map_err(within)?;
    if let Some(usage) = usage {
        match (kind == "run.completed", message::usage_from_langbot(&usage), &mut data) {
            (true, Some(usage), Value::Object(data)) => drop(data.insert("usage".to_owned(), usage)),
            // The end of a run has no metadata beside its data.
            _ if matches!(kind.as_str(), "run.completed" | "run.failed") => {}
            _ => drop(metadata.insert("usage".to_owned(), usage)),
        }
    }
    Ok(object([
        ("type", Some(kind.into())),
        ("data", Some(data)),
        theirs.named("run_id"),
        theirs.named("sequence"),
        theirs.named("timestamp"),
        ("metadata", (!metadata.is_empty()).then_some(Value::Object(metadata))),
    ]))
}

fn data(kind: &str, mut theirs: Members, metadata: &mut Map<String, Value>) -> Result<Value, String> {
    let required = |theirs: &mut Members, name: &str| theirs.text(name).ok_or(format!("`{name}` is missing"));
    let data = match kind {
        "message.delta" => {
            let mut chunk = theirs.within("chunk");
            let role = chunk.text("role").ok_or("`chunk` has a `role`")?;
            let role = if matches!(role.as_str(), "command" | "plugin") { "assistant".to_owned() } else { role };
            let content = message::chunk_text(chunk.take("content"))?;
            let id = chunk.take("resp_message_id");
            for name in ["is_final", "tool_calls"] {
                metadata.extend(chunk.take(name).filter(|value| *value != false).map(|value| (name.to_owned(), value)));
            }
            object([("message_id", id), ("chunk", Some(json!({ "role": role, "content": content })))])
        }
        "message.completed" => {
            let message = theirs.take("message").ok_or("`message` is missing")?;
            let id = message.get("resp_message_id").filter(|id| !id.is_null()).cloned();
            let files = theirs.take("file_ids").filter(|files| files.as_array().is_some_and(|files| !files.is_empty()));
            metadata.extend(files.map(|files| ("file_ids".to_owned(), files)));
            object([("message_id", id), ("message", Some(message::from_langbot(message)?))])
        }
        "tool.call.started" => object([
            ("tool_call_id", Some(required(&mut theirs, "tool_call_id")?.into())),
            ("tool_name", Some(required(&mut theirs, "tool_name")?.into())),
            ("parameters", Some(theirs.take("parameters").unwrap_or_else(|| json!({})))),
        ]),
        "tool.call.completed" => {
            let (id, name) = (required(&mut theirs, "tool_call_id")?, required(&mut theirs, "tool_name")?);
            let error = theirs.take("error");
            let result = theirs.take("result").map(content_of_result).filter(|_| error.is_none());
            let result = result.or_else(|| error.is_none().then(|| json!([])));
            object([("tool_call_id", Some(id.into())), ("tool_name", Some(name.into())), ("result", result), ("error", error)])
        }
        "state.updated" => {
            let scope = required(&mut theirs, "scope")?;
            let key = required(&mut theirs, "key")?;
            json!({ "scope": scope, "key": key, "value": theirs.take("value") })
        }
        "action.requested" => {
            let action = required(&mut theirs, "action")?;
            let open = |value: Option<Value>| value.unwrap_or_else(|| json!({}));
            json!({ "action": action, "target": open(theirs.take("target")), "payload": open(theirs.take("payload")) })
        }
        "run.completed" => object([
            ("finish_reason", theirs.take("finish_reason")),
            ("message", theirs.take("message").map(message::from_langbot).transpose()?),
        ]),
        "run.failed" => object([
            ("message", Some(required(&mut theirs, "error")?.into())),
            ("code", theirs.take("code")),
            ("retryable", theirs.take("retryable")),
        ]),
        "processor.log" => {
            let text = required(&mut theirs, "text")?;
            let level = theirs.text("level").unwrap_or_else(|| "info".to_owned());
            if text.chars().count() > MAX_LOG_CHARS {
                return Err(format!("`text` has more than {MAX_LOG_CHARS} characters"));
            }
            if !matches!(level.as_str(), "debug" | "info" | "warning" | "error") {
                return Err(format!("`level` is {level:?}: give `debug`, `info`, `warning` or `error`"));
            }
            json!({ "text": text, "level": level })
        }
        _ => return Ok(Value::Object(theirs.rest())),
    };
    // LangBot forbids further members in the data of the types that it has.
    match theirs.rest().keys().next() {
        None => Ok(data),
        Some(unknown) => Err(format!("`{}` is not a member of it", unknown.escape_debug())),
    }
}

/// The result of a tool in LangBot is an object: its `content` where that is all, else the object as JSON.
fn content_of_result(result: Value) -> Value {
    match result {
        Value::Object(mut members) if members.len() == 1 && members.contains_key("content") => match members.remove("content") {
            Some(content @ (Value::String(_) | Value::Array(_))) => message::content_from_langbot(content),
            Some(other) => other.to_string().into(),
            None => json!([]),
        },
        Value::String(text) => text.into(),
        other => other.to_string().into(),
    }
}

/// The request of a finalize: `status` with `reason`, `usage` and `metadata`. A body in the host's own form stays as it is.
pub(super) fn finalize(body: Value, run_id: &str) -> Result<Value, String> {
    let Value::Object(mut members) = body else { return Err("the body must be a JSON object".to_owned()) };
    for name in ["run_id", "target_run_id"] {
        let named = members.remove(name).filter(|named| !named.is_null());
        if named.is_some_and(|named| named != run_id) {
            return Err(format!("`{name}` is not this run, {run_id}: leave it out, or send that id"));
        }
    }
    let mut theirs = Members::of(Value::Object(members.clone()));
    let status = theirs.text("status").unwrap_or_default();
    let reason = theirs.take("reason");
    let data = match status.as_str() {
        "failed" if !members.contains_key("message") => {
            json!({ "status": "failed", "message": reason.unwrap_or_else(|| "failed".into()) })
        }
        "timeout" => json!({ "status": "failed", "code": "runner.timeout", "retryable": true,
                             "message": reason.unwrap_or_else(|| "the runner ran out of time".into()) }),
        "cancelled" => object([("status", Some("cancelled".into())), ("reason", reason)]),
        "completed" if has(&Value::Object(members.clone()), "message") || members.contains_key("finish_reason") => {
            let message = theirs.take("message").map(message::from_langbot).transpose()?;
            let usage = theirs.take("usage").and_then(|usage| message::usage_from_langbot(&usage).or(Some(usage)));
            object([
                ("status", Some("completed".into())),
                theirs.named("finish_reason"),
                ("message", message),
                ("usage", usage),
                theirs.named("metadata"),
            ])
        }
        "completed" => {
            let usage = theirs.take("usage").and_then(|usage| message::usage_from_langbot(&usage));
            object([("status", Some("completed".into())), ("usage", usage), theirs.named("metadata")])
        }
        _ => Value::Object(members),
    };
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "01890000-0000-7000-8000-000000000000";

    /// The result of the host that a result of LangBot becomes, without what frames it.
    fn sent(kind: &str, data: Value) -> Result<Value, String> {
        let body = json!({ "run_id": RUN, "result": { "run_id": RUN, "type": kind, "data": data, "usage": null } });
        Ok(append(body, RUN)?["result"]["data"].clone())
    }

    #[test]
    fn results_come_back_as_they_were() {
        for (kind, data) in [
            ("message.delta", json!({ "chunk": { "resp_message_id": "m", "role": "assistant", "content": "he" } })),
            ("message.completed", json!({ "message": { "resp_message_id": "m", "role": "assistant", "content": "hello" } })),
            ("tool.call.started", json!({ "tool_call_id": "c", "tool_name": "t", "parameters": { "a": 1 } })),
            ("tool.call.completed", json!({ "tool_call_id": "c", "tool_name": "t", "result": { "content": "4" } })),
            ("tool.call.completed", json!({ "tool_call_id": "c", "tool_name": "t", "error": "no" })),
            ("state.updated", json!({ "scope": "actor", "key": "k", "value": null })),
            ("action.requested", json!({ "action": "a", "target": {}, "payload": { "x": 1 } })),
            ("run.completed", json!({ "finish_reason": "stop", "message": { "role": "assistant", "content": "hi" } })),
            ("run.failed", json!({ "error": "broken", "code": "acme.broken", "retryable": true })),
            ("processor.log", json!({ "text": "a line", "level": "warning" })),
            ("acme.progress", json!({ "any": "thing" })),
        ] {
            let ours = sent(kind, data.clone()).unwrap();
            assert_eq!(to_langbot(kind, ours), (kind.to_owned(), data));
        }
    }

    #[test]
    fn malformed_results_are_named() {
        for (kind, data, says) in [
            ("message.delta", json!({ "chunk": {} }), "role"),
            ("message.completed", json!({}), "message"),
            ("state.updated", json!({ "scope": "actor", "key": "k", "value": 1, "ttl": 5 }), "ttl"),
            ("run.failed", json!({ "message": "the seed's name" }), "error"),
            ("processor.log", json!({ "text": "x", "level": "loud" }), "loud"),
        ] {
            let error = sent(kind, data).unwrap_err();
            assert!(error.contains(says) && error.contains(kind), "{error}");
        }
        let other = json!({ "target_run_id": "another", "result": {} });
        assert!(append(other, RUN).unwrap_err().contains("target_run_id"));
    }

    #[test]
    fn ends_of_the_host_have_langbots_codes() {
        let late = json!({ "code": "deadline_exceeded", "message": "late", "retryable": false });
        assert_eq!(to_langbot("run.failed", late).1, json!({ "error": "late", "code": "runner.timeout", "retryable": true }));
        let (kind, _) = to_langbot("state.updated", json!({ "scope": "binding", "key": "k", "value": 1 }));
        assert_eq!(kind, "agent-host.state.updated");
        let failed = json!({ "status": "failed", "reason": "no luck", "run_id": RUN });
        assert_eq!(finalize(failed, RUN), Ok(json!({ "status": "failed", "message": "no luck" })));
    }
}
