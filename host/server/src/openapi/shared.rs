//! Responses with problem documents, once for each status instead of once for each operation.
//!
//! Generators of clients make types of every inline response. An operation refers to `components/responses`, and lists the codes of its
//! own in the extension `x-problem-codes`, by status.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use super::{CODES, PROBLEM};

/// The response of one status and one schema, as all operations together have it.
#[derive(Default)]
struct SharedResponse {
    /// Each code, with its line of the description.
    codes: BTreeMap<String, String>,
    headers: Map<String, Value>,
    content: Value,
}

/// Moves the responses with problem documents to the components.
pub(super) fn share_problems(document: &mut Value) {
    let mut shared: BTreeMap<String, SharedResponse> = BTreeMap::new();
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    let operations = paths.into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut).flat_map(Map::values_mut);
    for operation in operations.filter_map(Value::as_object_mut) {
        let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else { continue };
        let mut own = Map::new();
        for (status, response) in responses {
            let Some(codes) = response.get_mut(CODES).map(Value::take) else { continue };
            let Some(name) = name(status, response) else { continue };
            *response = {
                shared.entry(name.clone()).or_default().add(&codes, response);
                json!({ "$ref": format!("#/components/responses/{name}") })
            };
            own.insert(status.clone(), codes);
        }
        if !own.is_empty() {
            operation.insert(CODES.to_owned(), own.into());
        }
    }
    let shared: Map<String, Value> = shared.into_iter().map(|(name, response)| (name, response.into())).collect();
    if let Some(components) = document.get_mut("components").and_then(Value::as_object_mut) {
        components.insert("responses".to_owned(), shared.into());
    }
}

/// The name of a response: the phrase of its status, after that of its schema where this is not `Problem`: `NotFound`,
/// `AgentNotFound`.
fn name(status: &str, response: &Value) -> Option<String> {
    let schema = response.get("content")?.get(PROBLEM)?.pointer("/schema/$ref")?.as_str()?;
    let owner = schema.rsplit('/').next()?.strip_suffix("Problem")?;
    let phrase = StatusCode::from_bytes(status.as_bytes()).ok()?.canonical_reason()?;
    Some(format!("{owner}{}", phrase.replace([' ', '-'], "")))
}

impl SharedResponse {
    fn add(&mut self, codes: &Value, response: &Value) {
        let described = response.get("description").and_then(Value::as_str).unwrap_or_default().split("\n\n");
        let codes = codes.as_array().into_iter().flatten().filter_map(Value::as_str);
        self.codes.extend(codes.zip(described).map(|(code, line)| (code.to_owned(), line.to_owned())));
        let headers = response.get("headers").and_then(Value::as_object);
        self.headers.extend(headers.into_iter().flatten().map(|(name, header)| (name.clone(), header.clone())));
        self.content = response.get("content").cloned().unwrap_or_default();
    }
}

impl From<SharedResponse> for Value {
    fn from(response: SharedResponse) -> Self {
        let SharedResponse { codes, headers, content } = response;
        let description = codes.values().cloned().collect::<Vec<_>>().join("\n\n");
        let mut shared = Map::from_iter([
            ("description".to_owned(), description.into()),
            ("content".to_owned(), content),
            (CODES.to_owned(), codes.into_keys().collect()),
        ]);
        if !headers.is_empty() {
            shared.insert("headers".to_owned(), headers.into());
        }
        shared.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(codes: &[&str], headers: Value) -> Value {
        let described: Vec<String> = codes.iter().map(|code| format!("`{code}`: meaning of {code}.")).collect();
        let content = json!({ PROBLEM: { "schema": { "$ref": "#/components/schemas/Problem" } } });
        json!({ "description": described.join("\n\n"), "content": content, CODES: codes, "headers": headers })
    }

    #[test]
    fn responses_of_one_status_become_one_with_the_codes_of_all() {
        let fine = json!({ "description": "Fine." });
        let mut document = json!({ "components": { "schemas": {} }, "paths": {
            "/a": { "get": { "responses": { "200": fine, "409": response(&["conflict"], json!({})) } } },
            "/b": { "post": { "responses": { "409": response(&["busy", "conflict"], json!({ "Retry-After": {} })) } } },
        }});
        share_problems(&mut document);
        let conflict = json!({ "$ref": "#/components/responses/Conflict" });
        assert_eq!(document["paths"]["/a"]["get"]["responses"], json!({ "200": fine, "409": conflict }));
        assert_eq!(document["paths"]["/a"]["get"][CODES], json!({ "409": ["conflict"] }));
        assert_eq!(document["paths"]["/b"]["post"][CODES], json!({ "409": ["busy", "conflict"] }));
        let expect = json!({ "Conflict": {
            "description": "`busy`: meaning of busy.\n\n`conflict`: meaning of conflict.",
            "content": { PROBLEM: { "schema": { "$ref": "#/components/schemas/Problem" } } },
            CODES: ["busy", "conflict"],
            "headers": { "Retry-After": {} },
        }});
        assert_eq!(document["components"]["responses"], expect);
    }
}
