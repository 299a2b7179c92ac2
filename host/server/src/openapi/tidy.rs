//! Corrections of the generated document: each step adds one detail that the generator cannot express.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{examples, shared::share_problems};
use crate::{http::headers::MAX_IDEMPOTENCY_KEY_LEN, langbot};

/// All of it.
pub(crate) fn tidy(mut document: Value) -> Value {
    share_problems(&mut document);
    langbot::describe(&mut document);
    name_timestamps(&mut document);
    if let Some(Value::Object(schemas)) = document.pointer_mut("/components/schemas") {
        flatten(schemas);
        pages(schemas);
    }
    walk(&mut document, &mut optional_body);
    close_bodies(&mut document);
    walk(&mut document, &mut integers);
    walk(&mut document, &mut parameter);
    walk(&mut document, &mut sets);
    name_operations(&mut document);
    examples::show(&mut document);
    while drop_unused(&mut document) {}
    document
}

/// `Timestamp` is another name of `u64` in the code, and is a schema of its own under the name of that.
fn name_timestamps(document: &mut Value) {
    const ALIAS: &str = "#/components/schemas/u64";
    if let Some(Value::Object(schemas)) = document.pointer_mut("/components/schemas")
        && schemas.remove("u64").is_some()
    {
        let timestamp = json!({
            "type": "integer", "format": "int64", "minimum": 0, "description": "Unix time in milliseconds.",
        });
        schemas.insert("Timestamp".to_owned(), timestamp);
    }
    walk(document, &mut |object| {
        if object.get("$ref").is_some_and(|target| target == ALIAS) {
            object.insert("$ref".to_owned(), "#/components/schemas/Timestamp".into());
        }
    });
}

/// `#[serde(flatten)]` becomes `allOf`, whose parts would refuse each other's members if one of them has
/// `additionalProperties: false`. One object with all members expresses the same.
fn flatten(schemas: &mut Map<String, Value>) {
    let before = schemas.clone();
    for schema in schemas.values_mut() {
        if let Some(merged) = merged(schema, &before) {
            *schema = merged;
        }
    }
}

/// A page of something has that as its items, which the generator writes out where the type has a parameter.
fn pages(schemas: &mut Map<String, Value>) {
    let names: Vec<String> = schemas.keys().cloned().collect();
    for name in names {
        let Some(of) = name.strip_prefix("Page_").filter(|of| schemas.contains_key(*of)) else { continue };
        let target = json!({ "$ref": format!("#/components/schemas/{of}") });
        if let Some(items) = schemas.get_mut(&name).and_then(|page| page.pointer_mut("/properties/items/items")) {
            *items = target;
        }
    }
}

/// Members that a body may not have are refused, also where it has several forms, of which the generator does not say it.
fn close_bodies(document: &mut Value) {
    let mut names = Vec::new();
    walk(document, &mut |object| {
        let content = object.get("requestBody").and_then(|body| body.get("content")).and_then(Value::as_object);
        let targets = content.into_iter().flat_map(Map::values).filter_map(|media| media.pointer("/schema/$ref")?.as_str());
        names.extend(targets.filter_map(|target| target.rsplit('/').next()).map(str::to_owned));
    });
    for name in names {
        let forms = document.pointer_mut(&format!("/components/schemas/{name}/oneOf")).and_then(Value::as_array_mut);
        for form in forms.into_iter().flatten().filter_map(Value::as_object_mut) {
            if form.contains_key("properties") {
                form.entry("additionalProperties").or_insert(false.into());
            }
        }
    }
}

/// A set is read from a list in which something may stand twice, and counts once.
fn sets(object: &mut Map<String, Value>) {
    object.remove("uniqueItems");
}

/// Removes schemas that are no longer referenced. Returns true if there were any, because their parts may be unused now.
fn drop_unused(document: &mut Value) -> bool {
    let mut used = BTreeSet::new();
    walk(document, &mut |object| {
        let target = object.get("$ref").and_then(Value::as_str).and_then(|target| target.rsplit('/').next());
        used.extend(target.map(str::to_owned));
    });
    let Some(Value::Object(schemas)) = document.pointer_mut("/components/schemas") else { return false };
    let before = schemas.len();
    schemas.retain(|name, _| used.contains(name));
    schemas.len() < before
}

fn merged(schema: &Value, schemas: &Map<String, Value>) -> Option<Value> {
    let parts = schema.get("allOf")?.as_array()?;
    let mut whole = schema.as_object()?.clone();
    whole.remove("allOf");
    whole.insert("type".to_owned(), "object".into());
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for part in parts {
        let part = resolve(part, schemas)?;
        let part = merged(part, schemas).unwrap_or_else(|| part.clone());
        properties.extend(part.get("properties")?.as_object()?.clone());
        required.extend(part.get("required").and_then(Value::as_array).cloned().unwrap_or_default());
        if let Some(more) = part.get("additionalProperties") {
            whole.insert("additionalProperties".to_owned(), more.clone());
        }
    }
    whole.insert("properties".to_owned(), properties.into());
    whole.insert("required".to_owned(), required.into());
    Some(whole.into())
}

fn resolve<'a>(schema: &'a Value, schemas: &'a Map<String, Value>) -> Option<&'a Value> {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(target) => schemas.get(target.strip_prefix("#/components/schemas/")?),
        None => Some(schema),
    }
}

/// The formats `int32` and `int64` are signed; what is unsigned in the code says so, and says its largest value.
fn integers(object: &mut Map<String, Value>) {
    let unsigned = object.get("minimum").and_then(Value::as_f64).is_some_and(|minimum| minimum >= 0.0);
    let (format, smallest, largest) = match (object.get("format").and_then(Value::as_str), unsigned) {
        (Some("int32"), true) => ("uint32", json!(u32::MIN), json!(u32::MAX)),
        (Some("int64"), true) => ("uint64", json!(u64::MIN), json!(u64::MAX)),
        (Some("int32"), false) => ("int32", json!(i32::MIN), json!(i32::MAX)),
        (Some("int64"), false) => ("int64", json!(i64::MIN), json!(i64::MAX)),
        _ => return,
    };
    object.insert("format".to_owned(), format.into());
    object.entry("minimum").or_insert(smallest);
    object.entry("maximum").or_insert(largest);
}

/// A body that may be left out is one of `Option<T>` in the code, which says that it may be `null` too: it may not.
fn optional_body(object: &mut Map<String, Value>) {
    let Some(content) = object.get_mut("requestBody").and_then(|body| body.get_mut("content")) else { return };
    for media in content.as_object_mut().into_iter().flat_map(Map::values_mut) {
        let Some(forms) = media.pointer("/schema/oneOf").and_then(Value::as_array) else { continue };
        let mut forms = forms.iter().filter(|form| form.get("type").is_none_or(|kind| kind != "null"));
        if let (Some(only), None) = (forms.next().cloned(), forms.next())
            && let Some(media) = media.as_object_mut()
        {
            media.insert("schema".to_owned(), only);
        }
    }
}

/// An optional parameter is an `Option<T>` in the code, but a header cannot be `null`. Idempotency keys have the same
/// schema everywhere.
fn parameter(object: &mut Map<String, Value>) {
    if !(object.contains_key("in") && object.contains_key("name")) {
        return;
    }
    let is_key = object.get("name").and_then(Value::as_str).is_some_and(|name| name.eq_ignore_ascii_case("idempotency-key"));
    let Some(Value::Object(schema)) = object.get_mut("schema") else { return };
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
        }
    }
    if is_key {
        schema.extend([("minLength".to_owned(), 1.into()), ("maxLength".to_owned(), MAX_IDEMPOTENCY_KEY_LEN.into())]);
        schema.insert("pattern".to_owned(), "^[!-~]+$".into());
    }
}

/// Operations are named after their handlers, which are unique only within their part of the API.
fn name_operations(document: &mut Value) {
    let Some(Value::Object(paths)) = document.get_mut("paths") else { return };
    for operations in paths.values_mut().filter_map(Value::as_object_mut) {
        for (method, operation) in operations {
            let name = operation.get("operationId").and_then(Value::as_str).map(str::to_owned);
            let tag = operation.pointer("/tags/0").and_then(Value::as_str).map(str::to_owned);
            if let (Some(name), Some(tag)) = (name, tag) {
                // One handler may answer GET and HEAD.
                let suffix = if method == "head" && !name.ends_with("head") { "_head" } else { "" };
                let id = format!("{tag}_{name}{suffix}");
                operation.as_object_mut().and_then(|operation| operation.insert("operationId".to_owned(), id.into()));
            }
        }
    }
}

/// Every object in a document.
fn walk(value: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            change(object);
            object.values_mut().for_each(|value| walk(value, change));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| walk(value, change)),
        _ => {}
    }
}
