//! An MCP server over stdio for the tests, written against the protocol and not against a library, so that it can behave
//! well and badly. The called tool chooses the behaviour.

use std::{
    io::{BufRead, Write, stdin, stdout},
    process::exit,
    thread::sleep,
    time::Duration,
};

use serde_json::{Value, json};

fn main() {
    // A canary that must never be seen anywhere outside this process.
    let canary = std::env::var("CANARY").unwrap_or_default();
    let mut changed = false;
    for line in stdin().lock().lines() {
        let Ok(line) = line else { return };
        let Ok(request) = serde_json::from_str::<Value>(&line) else { continue };
        let Some(id) = request.get("id").cloned() else { continue };
        let params = request.get("params").cloned().unwrap_or_default();
        let result = match request["method"].as_str().unwrap_or_default() {
            "initialize" => json!({
                "protocolVersion": params["protocolVersion"],
                "capabilities": { "tools": { "listChanged": true } },
                "serverInfo": { "name": "tests", "version": "1.0.0" },
            }),
            "tools/list" => json!({ "tools": tools(changed) }),
            "tools/call" => match call(&params, &canary, &mut changed) {
                Ok(result) => result,
                Err(message) => {
                    send(&json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32603, "message": message } }));
                    continue;
                }
            },
            "ping" => json!({}),
            other => {
                let error = json!({ "code": -32601, "message": format!("no method {other}") });
                send(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
                continue;
            }
        };
        send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }
}

fn send(message: &Value) {
    let mut out = stdout().lock();
    // The host may be gone; then this process ends with it.
    if writeln!(out, "{message}").and_then(|()| out.flush()).is_err() {
        exit(0);
    }
}

fn tools(changed: bool) -> Vec<Value> {
    let object =
        |properties: Value, required: &[&str]| json!({ "type": "object", "properties": properties, "required": required });
    let plain = |name: &str, says: &str| json!({ "name": name, "description": says, "inputSchema": object(json!({}), &[]) });
    let mut tools = vec![
        json!({
            "name": "add",
            "description": "Adds two numbers.",
            "inputSchema": object(json!({ "a": { "type": "number" }, "b": { "type": "number" } }), &["a", "b"]),
            "annotations": { "readOnlyHint": true, "idempotentHint": true, "destructiveHint": false },
        }),
        json!({
            "name": "repeat",
            "description": "Says a text many times.",
            "inputSchema": object(json!({ "text": { "type": "string" }, "times": { "type": "integer" } }), &["text", "times"]),
        }),
        json!({
            "name": "wait",
            "description": "Waits, and says how far it is.",
            "inputSchema": object(json!({ "ms": { "type": "integer" } }), &["ms"]),
        }),
        plain("fail", "Reports a failure."),
        plain("refuse", "Answers with an error of the protocol that repeats its secret."),
        plain("tell", "Says its secret."),
        plain("picture", "Gives an image."),
        plain("crash", "Ends the server in the middle of a call."),
        plain("hang", "Never answers."),
        plain("garbage", "Writes what is not JSON, then answers."),
        plain("flood", "Sends ten thousand notifications, then answers."),
        plain("change", "Changes the list of tools."),
    ];
    if counts() {
        let counts = |name: &str, says: &str, annotations: Value| {
            let schema = object(json!({ "note": { "type": "string" } }), &["note"]);
            json!({ "name": name, "description": says, "inputSchema": schema, "annotations": annotations })
        };
        tools.push(counts("count", "Counts, and must not do so twice.", json!({})));
        tools.push(counts("look", "Looks, as often as one likes.", json!({ "readOnlyHint": true })));
    }
    if changed {
        tools.push(plain("later", "Was not there before."));
        tools.retain(|tool| tool["name"] != "picture");
    }
    tools
}

fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn call(params: &Value, canary: &str, changed: &mut bool) -> Result<Value, String> {
    let arguments = &params["arguments"];
    Ok(match params["name"].as_str().unwrap_or_default() {
        "add" => {
            let sum = arguments["a"].as_f64().unwrap_or_default() + arguments["b"].as_f64().unwrap_or_default();
            json!({ "content": [{ "type": "text", "text": format!("{sum}") }], "structuredContent": { "sum": sum } })
        }
        "repeat" => {
            let times = usize::try_from(arguments["times"].as_u64().unwrap_or(1)).unwrap_or(1);
            text(&arguments["text"].as_str().unwrap_or_default().repeat(times))
        }
        "wait" => {
            let ms = arguments["ms"].as_u64().unwrap_or_default();
            for step in 1..=4_u64 {
                sleep(Duration::from_millis(ms / 4));
                if let Some(token) = params["_meta"].get("progressToken") {
                    let progress =
                        json!({ "progressToken": token, "progress": step, "total": 4, "message": format!("step {step}") });
                    send(&json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": progress }));
                }
            }
            text("done")
        }
        "fail" => json!({ "content": [{ "type": "text", "text": "it did not work" }], "isError": true }),
        "refuse" => {
            eprintln!("tried the key {canary}");
            return Err(format!("the key {canary} is not good enough"));
        }
        "tell" => json!({
            "content": [{ "type": "text", "text": format!("my key is {canary}, I think") }],
            "structuredContent": { "key": canary, canary: 1 },
        }),
        // The smallest PNG there is.
        "picture" => json!({ "content": [{ "type": "image", "mimeType": "image/png", "data": PNG }] }),
        "crash" => exit(3),
        "hang" => loop {
            sleep(Duration::from_secs(3600));
        },
        "garbage" => {
            println!("this is not JSON");
            text("after the garbage")
        }
        "flood" => {
            for n in 0..10_000 {
                let data = json!({ "level": "info", "data": n });
                send(&json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": data }));
            }
            text("after the flood")
        }
        "change" => {
            *changed = true;
            send(&json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }));
            text("changed")
        }
        "later" => text("here now"),
        name @ ("count" | "look") if counts() => {
            let note = arguments["note"].as_str().unwrap_or_default();
            count(name, note);
            text(&format!("{name} {note}"))
        }
        other => return Err(format!("no tool {other}")),
    })
}

/// Before an effect, and once more after it: there is a time in which it is under way, and one in which only its answer
/// is.
const TAKES: Duration = Duration::from_millis(4);

/// True if calls are counted, for tests of external effects: in the file of `COUNT_FILE`.
fn counts() -> bool {
    std::env::var_os("COUNT_FILE").is_some()
}

/// Works as long as there is the file that `HOLD_FILE` names, and ends where its host has.
fn hold() {
    let Some(path) = std::env::var_os("HOLD_FILE") else { return };
    let host = std::os::unix::process::parent_id();
    while std::path::Path::new(&path).exists() {
        if std::os::unix::process::parent_id() != host {
            std::process::exit(1);
        }
        sleep(TAKES);
    }
}

/// One write: the line is complete or absent, even if this process is killed.
fn count(tool: &str, note: &str) {
    sleep(TAKES);
    let path = std::env::var_os("COUNT_FILE").unwrap_or_default();
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).expect("the file can be opened");
    let line = format!("{tool} {note}\n");
    assert_eq!(file.write(line.as_bytes()).expect("the call is counted"), line.len());
    hold();
    sleep(TAKES);
}

const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
