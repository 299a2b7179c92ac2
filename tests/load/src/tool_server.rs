//! A server of one tool, over stdio: the least of MCP that a host needs, and nothing that takes time.

use std::io::{BufRead, Write, stdin, stdout};

use serde_json::{Value, json};

/// Answers until its input ends.
pub(crate) fn serve() -> anyhow::Result<()> {
    let mut out = stdout().lock();
    for line in stdin().lock().lines() {
        let Ok(request) = serde_json::from_str::<Value>(&line?) else { continue };
        if let Some(answer) = answer(&request) {
            writeln!(out, "{answer}")?;
            out.flush()?;
        }
    }
    Ok(())
}

/// None for a notification.
fn answer(request: &Value) -> Option<Value> {
    let id = request.get("id")?;
    let result = match request.get("method").and_then(Value::as_str).unwrap_or_default() {
        "initialize" => json!({
            "protocolVersion": request.pointer("/params/protocolVersion"),
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "bench", "version": "1.0.0" },
        }),
        "tools/list" => json!({ "tools": [{
            "name": "add",
            "description": "Adds two numbers.",
            "inputSchema": {
                "type": "object",
                "properties": { "a": { "type": "number" }, "b": { "type": "number" } },
                "required": ["a", "b"],
            },
            "annotations": { "readOnlyHint": true, "idempotentHint": true },
        }] }),
        "tools/call" => {
            let number = |name: &str| request.pointer(&format!("/params/arguments/{name}")).and_then(Value::as_f64);
            let sum = number("a").unwrap_or_default() + number("b").unwrap_or_default();
            json!({ "content": [{ "type": "text", "text": sum.to_string() }], "structuredContent": { "sum": sum } })
        }
        "ping" => json!({}),
        other => {
            let error = json!({ "code": -32601, "message": format!("there is no method {other}") });
            return Some(json!({ "jsonrpc": "2.0", "id": id, "error": error }));
        }
    };
    Some(json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_and_notifications_are_not() {
        let call = json!({ "id": 7, "method": "tools/call", "params": { "name": "add", "arguments": { "a": 1, "b": 2 } } });
        let answer = super::answer(&call).unwrap();
        assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!(7), &json!("3")));
        assert!(super::answer(&json!({ "method": "notifications/initialized" })).is_none());
        assert!(super::answer(&json!({ "id": 1, "method": "prompts/list" })).unwrap()["error"].is_object());
    }
}
