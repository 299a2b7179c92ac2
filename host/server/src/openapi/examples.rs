//! Examples of the requests that most programs begin with.

use serde_json::{Value, json};

/// An example of each body: method, path, body.
fn examples() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        (
            "post",
            "/api/v1/events",
            json!({
                "event_type": "message.received", "conversation": { "conversation_id": "c1" },
                "actor": { "actor_type": "user", "actor_id": "alice" }, "input": { "text": "hello" },
            }),
        ),
        (
            "post",
            "/api/v1/runs",
            json!({
                "binding_id": "coder", "input": { "text": "repair the build" }, "conversation": { "conversation_id": "c1" },
                "deadline_ms": 600_000,
            }),
        ),
        ("post", "/api/v1/runs/{id}/cancel", json!({ "reason": "the question was withdrawn" })),
        ("post", "/api/v1/runs/{id}/fork", json!({ "at": 3, "input": "try the other branch" })),
        ("post", "/api/v1/threads/{id}/turns", json!({ "agent": "support", "input": { "text": "hello" }, "queueIfBusy": true })),
        ("post", "/api/v1/actions/{id}/respond", json!({ "decision": "approve", "reason": "the invoice is right" })),
        ("post", "/api/v1/keys", json!({ "name": "chat", "scopes": ["events:write", "runs:read"], "workspace": "acme" })),
        ("post", "/api/v1/stream-tokens", json!({ "run_id": "019a2b3c-4d5e-7f60-8123-456789abcdef" })),
        ("post", "/api/v1/executors", json!({ "name": "builder-1", "queues": ["builds"], "slots": 2 })),
        ("post", "/api/v1/claims", json!({})),
        (
            "post",
            "/api/v1/runs/{id}/append",
            json!({ "first": 1, "results": [{ "type": "progress.note", "data": { "done": 3 } }] }),
        ),
        ("post", "/api/v1/runs/{id}/finalize", json!({ "status": "completed" })),
        ("post", "/api/v1/backup", json!({ "to": "before-the-move" })),
    ]
}

/// Adds the examples to the operations.
pub(super) fn show(document: &mut Value) {
    for (method, path, example) in examples() {
        let operation = document.get_mut("paths").and_then(|paths| paths.get_mut(path)?.get_mut(method));
        let media =
            operation.and_then(|operation| operation.get_mut("requestBody")?.get_mut("content")?.get_mut("application/json"));
        if let Some(media) = media.and_then(Value::as_object_mut) {
            media.insert("example".to_owned(), example);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_shown() {
        let document: Value = serde_json::from_str(crate::routes::openapi()).unwrap();
        for (method, path, example) in examples() {
            let shown = &document["paths"][path][method]["requestBody"]["content"]["application/json"]["example"];
            assert_eq!(*shown, example, "{method} {path}");
        }
    }
}
