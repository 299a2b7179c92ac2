//! Messages and their content, in both directions.

use serde_json::{Value, json};

use super::members::{Members, object};

/// The scheme of addresses that name artifacts: `artifact:ID;MEDIA/TYPE`. LangBot's content elements have addresses and no
/// artifacts.
const ARTIFACT: &str = "artifact:";
/// The media type of a file that has none.
const UNKNOWN_MEDIA_TYPE: &str = "application/octet-stream";

/// A message of the host as a `Message`.
pub(super) fn to_langbot(message: Value) -> Value {
    let mut ours = Members::of(message);
    let calls = ours.list("tool_calls", |call| {
        let mut call = Members::of(call);
        let arguments = call.take("parameters").unwrap_or_else(|| json!({})).to_string();
        let function = object([("name", call.take("tool_name")), ("arguments", Some(arguments.into()))]);
        object([("id", call.take("call_id")), ("type", Some("function".into())), ("function", Some(function))])
    });
    object([
        ours.named("role"),
        ours.named("name"),
        ("content", ours.take("content").map(content_to_langbot)),
        ("tool_calls", (!calls.is_empty()).then(|| calls.into())),
        ours.named("tool_call_id"),
    ])
}

/// Content of the host: a text, or a list of content elements.
pub(super) fn content_to_langbot(content: Value) -> Value {
    match content {
        Value::Array(parts) => parts.into_iter().map(element).collect(),
        text => text,
    }
}

/// A part of content as a `ContentElement`.
pub(super) fn element(part: Value) -> Value {
    if part.get("type").and_then(Value::as_str) != Some("artifact") {
        return part;
    }
    let mut artifact = Members::of(part).within("artifact");
    let id = artifact.text("artifact_id").unwrap_or_default();
    let media_type = artifact.text("media_type").unwrap_or_else(|| UNKNOWN_MEDIA_TYPE.to_owned());
    let name = artifact.take("name").unwrap_or_else(|| id.clone().into());
    object([
        ("type", Some("file_url".into())),
        ("file_url", Some(format!("{ARTIFACT}{id};{media_type}").into())),
        ("file_name", Some(name)),
    ])
}

/// A `Message` as a message of the host. Members that the host does not have are left out, as LangBot does.
pub(super) fn from_langbot(message: Value) -> Result<Value, String> {
    let mut theirs = Members::of(message);
    let role = match theirs.text("role").as_deref() {
        Some(role @ ("system" | "developer" | "user" | "assistant" | "tool")) => role.to_owned(),
        // Answers of commands and plugins are answers.
        Some("command" | "plugin") => "assistant".to_owned(),
        Some(role) => return Err(format!("`role` is {role:?}: give `user`, `assistant`, `system` or `tool`")),
        None => return Err("a message has a `role`".to_owned()),
    };
    let mut calls = Vec::new();
    if let Some(Value::Array(sent)) = theirs.take("tool_calls") {
        for call in sent {
            calls.push(call_from_langbot(call)?);
        }
    }
    Ok(object([
        ("role", Some(role.into())),
        theirs.named("name"),
        ("content", theirs.take("content").map(content_from_langbot)),
        ("tool_calls", (!calls.is_empty()).then(|| calls.into())),
        theirs.named("tool_call_id"),
    ]))
}

fn call_from_langbot(call: Value) -> Result<Value, String> {
    let mut call = Members::of(call);
    let mut function = call.within("function");
    let arguments = match function.take("arguments") {
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        Some(Value::String(text)) => {
            serde_json::from_str(&text).map_err(|error| format!("the arguments of a tool call are no JSON: {error}"))?
        }
        Some(arguments) => arguments,
        None => json!({}),
    };
    Ok(object([("call_id", call.take("id")), ("tool_name", function.take("name")), ("parameters", Some(arguments))]))
}

/// Content of LangBot: a text, or a list of parts. The members of an element that are `null` are left out.
pub(super) fn content_from_langbot(content: Value) -> Value {
    match content {
        Value::Array(elements) => elements.into_iter().map(part).collect(),
        text => text,
    }
}

/// A `ContentElement` as a part of content.
fn part(element: Value) -> Value {
    let named = |name: &str| element.get(name).and_then(Value::as_str);
    let address = named("file_url").and_then(|url| url.strip_prefix(ARTIFACT)).filter(|_| named("type") == Some("file_url"));
    if let Some((id, media_type)) = address.and_then(|address| address.split_once(';')) {
        return json!({ "type": "artifact", "artifact": { "artifact_id": id, "media_type": media_type } });
    }
    match element {
        Value::Object(mut members) => {
            members.retain(|_, value| !value.is_null());
            Value::Object(members)
        }
        other => other,
    }
}

/// The text of a `MessageChunk`: that of its text elements.
pub(super) fn chunk_text(content: Option<Value>) -> Result<String, String> {
    match content {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(elements)) => Ok(elements.iter().filter_map(|element| element.get("text")?.as_str()).collect()),
        Some(_) => Err("the `content` of a chunk is a text or a list of content elements".to_owned()),
    }
}

/// Usage of the host as an `LLMTokenUsage`.
pub(super) fn usage(usage: Value) -> Value {
    let mut ours = Members::of(usage);
    let count = |value: &Option<Value>| value.as_ref().and_then(Value::as_u64);
    let (input, output) = (ours.take("input"), ours.take("output"));
    let total = count(&input).zip(count(&output)).map(|(input, output)| input.saturating_add(output).into());
    let within = |name: &'static str, value: Option<Value>| value.map(|value| object([(name, Some(value))]));
    object([
        ("prompt_tokens", input),
        ("completion_tokens", output),
        ("total_tokens", total),
        ("prompt_tokens_details", within("cached_tokens", ours.take("cached_input"))),
        ("completion_tokens_details", within("reasoning_tokens", ours.take("reasoning"))),
    ])
}

/// An `LLMTokenUsage` as usage of the host, where it has both counts.
pub(super) fn usage_from_langbot(usage: &Value) -> Option<Value> {
    let count = |path: &str| usage.pointer(path).and_then(Value::as_u64);
    Some(object([
        ("input", Some(count("/prompt_tokens")?.into())),
        ("output", Some(count("/completion_tokens")?.into())),
        ("cached_input", count("/prompt_tokens_details/cached_tokens").map(Value::from)),
        ("reasoning", count("/completion_tokens_details/reasoning_tokens").map(Value::from)),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_as_it_was() {
        let ours = json!({
            "role": "assistant",
            "content": [
                { "type": "text", "text": "here" },
                { "type": "artifact", "artifact": { "artifact_id": "a-1", "media_type": "image/png" } },
                { "type": "image_url", "image_url": { "url": "https://example.com/a.png" } },
            ],
            "tool_calls": [{ "call_id": "c", "tool_name": "t", "parameters": { "x": 1 } }],
        });
        let theirs = to_langbot(ours.clone());
        assert_eq!(theirs["tool_calls"][0]["function"]["arguments"], r#"{"x":1}"#);
        assert_eq!(from_langbot(theirs), Ok(ours));
        let text = json!({ "role": "tool", "content": "4", "tool_call_id": "c" });
        assert_eq!(from_langbot(to_langbot(text.clone())), Ok(text));
    }

    #[test]
    fn malformed_messages_are_named() {
        for (message, says) in [
            (json!({ "role": "poet" }), "poet"),
            (json!("hi"), "role"),
            (json!({ "role": "assistant", "tool_calls": [{ "function": { "arguments": "{" } }] }), "no JSON"),
        ] {
            assert!(from_langbot(message.clone()).unwrap_err().contains(says), "{message}");
        }
        assert!(chunk_text(Some(json!(7))).is_err());
    }

    #[test]
    fn usage_has_both_counts_or_is_unknown() {
        let ours = json!({ "input": 5, "output": 2, "cached_input": 3, "reasoning": 1 });
        assert_eq!(usage(ours.clone())["total_tokens"], 7);
        assert_eq!(usage_from_langbot(&usage(ours.clone())), Some(ours));
        assert_eq!(usage_from_langbot(&json!({ "prompt_tokens": 5 })), None);
    }
}
