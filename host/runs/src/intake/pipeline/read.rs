//! Members of a query and of a configuration, read and cleaned.

use std::fmt;

use agent_host_protocol::event::MAX_FOREIGN_ID_LEN;
use serde_json::{Map, Value};

/// Parts of names whose values are secret.
const SECRETS: [&str; 6] = ["secret", "token", "password", "credential", "api-key", "apikey"];
/// Members of events and messages that carry content, or objects of a platform's own.
const PAYLOADS: [&str; 4] = ["source_platform_object", "message_chain", "base64", "image_base64"];

/// Without members that carry content.
pub(super) fn without_payload(mut value: Value) -> Value {
    match &mut value {
        Value::Object(members) => {
            members.retain(|name, _| !PAYLOADS.contains(&name.as_str()));
            members.values_mut().for_each(|member| *member = without_payload(member.take()));
        }
        Value::Array(entries) => entries.iter_mut().for_each(|entry| *entry = without_payload(entry.take())),
        _ => {}
    }
    value
}

pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('_', "-");
    name == "key" || SECRETS.iter().any(|secret| name.contains(secret))
}

/// Without members that are secrets by their names, at any depth.
pub(super) fn without_secrets(members: &mut Map<String, Value>) {
    members.retain(|name, _| !is_secret(name));
    each_object(members, &mut without_secrets);
}

/// Without rounds, at any depth.
pub(super) fn without_rounds(members: &mut Map<String, Value>) {
    members.retain(|name, _| name != "max-round" && name != "max_round");
    each_object(members, &mut without_rounds);
}

fn each_object(members: &mut Map<String, Value>, with: &mut dyn FnMut(&mut Map<String, Value>)) {
    fn within(value: &mut Value, with: &mut dyn FnMut(&mut Map<String, Value>)) {
        match value {
            Value::Object(members) => with(members),
            Value::Array(entries) => entries.iter_mut().for_each(|entry| within(entry, with)),
            _ => {}
        }
    }
    members.values_mut().for_each(|value| within(value, with));
}

/// A member that is there: `null` is as good as none.
pub(super) fn take(members: &mut Map<String, Value>, name: &str) -> Option<Value> {
    members.remove(name).filter(|value| !value.is_null())
}

pub(super) fn object(value: Option<Value>, at: &str) -> Result<Map<String, Value>, String> {
    match value {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(members)) => Ok(members),
        Some(_) => Err(format!("`{at}` must be an object")),
    }
}

pub(super) fn text(value: Option<Value>, at: &str) -> Result<Option<String>, String> {
    match value {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(_) => Err(format!("`{at}` must be a text")),
    }
}

pub(super) fn texts(value: Option<Value>, at: impl fmt::Display) -> Result<Vec<String>, String> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(value) => serde_json::from_value(value).map_err(|_| format!("`{at}` must be a list of texts")),
    }
}

/// An id of a platform: a text, or a number.
pub(super) fn id(value: Option<Value>, at: &str) -> Result<Option<String>, String> {
    let text = match value {
        None => return Ok(None),
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) => text,
        Some(Value::Number(number)) if number.is_i64() || number.is_u64() => number.to_string(),
        Some(_) => return Err(format!("`{at}` must be a text or a whole number")),
    };
    if text.len() > MAX_FOREIGN_ID_LEN || text.chars().any(char::is_control) {
        return Err(format!("`{at}` has at most {MAX_FOREIGN_ID_LEN} bytes and no control characters"));
    }
    Ok(Some(text))
}
