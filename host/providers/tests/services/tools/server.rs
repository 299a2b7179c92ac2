//! An MCP server over stdio with good and bad behaviour on request: this test binary, started again.
//!
//! libtest prints its own lines to the same standard output first, so every test that uses it also shows that lines that
//! are not JSON do no harm.

use std::{
    collections::BTreeMap,
    io::{BufRead, Write},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use agent_host_providers::tools::{EnvValue, McpServerConfig};
use serde_json::{Value, json};

/// Behaviour from the start.
const MODE: &str = "MCP_TEST_MODE";
/// File for process ids, a line for each start.
const STARTS: &str = "MCP_TEST_STARTS";
/// The subscription of a notification.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// The configuration that starts this binary as a server.
pub(crate) fn config(id: &str, mode: &str) -> McpServerConfig {
    McpServerConfig {
        id: id.into(),
        command: Some(std::env::current_exe().unwrap().to_str().unwrap().into()),
        args: ["--exact", "tools::server::speaks_mcp", "--ignored", "--nocapture"].map(String::from).to_vec(),
        env: BTreeMap::from([(MODE.into(), EnvValue::Plain(mode.into()))]),
        // This binary is large and the machine may be busy.
        start_timeout_ms: 20_000,
        ..McpServerConfig::default()
    }
}

/// The same, and it notes each of its starts.
pub(crate) fn counted(id: &str, mode: &str, starts: &std::path::Path) -> McpServerConfig {
    let mut config = config(id, mode);
    config.env.insert(STARTS.into(), EnvValue::Plain(starts.to_str().unwrap().into()));
    config
}

/// The server process, not a test of its own.
#[test]
#[ignore = "runs as a child process of other tests"]
fn speaks_mcp() {
    let Ok(mode) = std::env::var(MODE) else { return };
    if let Ok(path) = std::env::var(STARTS) {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        // In one write: servers that start at the same time share the file.
        file.write_all(format!("{}\n", std::process::id()).as_bytes()).unwrap();
    }
    match mode.as_str() {
        "exit" => {
            eprintln!("cannot start with {}", std::env::var("TOKEN").unwrap_or_default());
            std::process::exit(3);
        }
        "silent" => loop {
            thread::sleep(Duration::from_secs(60));
        },
        "rubbish" => loop {
            let _ = std::io::stdout().lock().write_all(b"this is not JSON\n");
        },
        "endless" => loop {
            let _ = std::io::stdout().lock().write_all(&[b'x'; 4096]);
        },
        // Ends neither when its input is closed nor after a signal.
        "stubborn" => {
            drop(Command::new("sh").args(["-c", "trap '' TERM; sleep 300"]).spawn());
        }
        _ => {}
    }
    Server { mode, ..Server::default() }.serve();
    std::process::exit(0);
}

#[derive(Default)]
struct Server {
    mode: String,
    more_tools: AtomicBool,
    lists: AtomicU64,
    next_id: AtomicU64,
    cancelled: Mutex<Vec<Value>>,
    listener: Mutex<Value>,
    waiting: Mutex<BTreeMap<String, mpsc::Sender<Value>>>,
}

fn send(message: &Value) {
    let mut line = message.to_string();
    line.push('\n');
    if std::io::stdout().lock().write_all(line.as_bytes()).is_err() {
        std::process::exit(0);
    }
}

fn notify(method: &str, params: &Value) {
    send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
}

fn text(text: impl ToString) -> Value {
    json!({ "content": [{ "type": "text", "text": text.to_string() }] })
}

impl Server {
    fn serve(self) {
        let server = Arc::new(self);
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
            match (message["method"].as_str(), message.get("id").cloned()) {
                (Some("notifications/cancelled"), _) => {
                    server.cancelled.lock().unwrap().push(message["params"]["requestId"].clone());
                }
                (Some(method), Some(id)) => {
                    let (server, method, params) = (server.clone(), method.to_owned(), message["params"].clone());
                    thread::spawn(move || {
                        let mut answer = match server.answer(&method, &params, &id) {
                            Ok(Some(result)) => json!({ "result": result }),
                            Ok(None) => return,
                            Err(error) => json!({ "error": error }),
                        };
                        answer["jsonrpc"] = "2.0".into();
                        answer["id"] = id;
                        send(&answer);
                    });
                }
                (None, Some(id)) => {
                    if let Some(waiting) = server.waiting.lock().unwrap().remove(id.as_str().unwrap_or_default()) {
                        let _ = waiting.send(message);
                    }
                }
                _ => {}
            }
        }
        if server.mode == "stubborn" {
            thread::sleep(Duration::from_secs(300));
        }
    }

    fn answer(&self, method: &str, params: &Value, id: &Value) -> Result<Option<Value>, Value> {
        Ok(Some(match method {
            "initialize" => {
                json!({ "protocolVersion": params["protocolVersion"], "capabilities": { "tools": { "listChanged": true } },
                "serverInfo": { "name": "test", "version": "1" } })
            }
            "tools/list" => self.list(params),
            "tools/call" => return self.call(params, id),
            _ => return Err(json!({ "code": -32601, "message": "no such method" })),
        }))
    }

    fn list(&self, params: &Value) -> Value {
        self.lists.fetch_add(1, Ordering::Relaxed);
        if self.mode == "endless-list" {
            let n = params["cursor"].as_str().map_or(0, |cursor| cursor.parse::<u64>().unwrap());
            return json!({ "tools": [tool(&format!("t{n}"))], "nextCursor": (n + 1).to_string() });
        }
        if self.mode == "bad-tools" {
            let mut large = tool("large");
            large["inputSchema"]["description"] = "x".repeat(70 << 10).into();
            let mut wordy = tool("wordy");
            wordy["description"] = "x".repeat(10_000).into();
            let mut broken = tool("broken");
            broken["inputSchema"]["properties"] = json!({ "a": { "$ref": "https://example.com/schema" } });
            return json!({ "tools": [large, wordy, broken, tool("twice"), tool("twice"), tool("a.b"), tool("a b"), { "name": "no schema" }] });
        }
        match params["cursor"].as_str() {
            None => {
                let names = ["add", "ask", "bad", "cancelled", "change", "crash", "env", "fail", "flood", "garbage"];
                let mut tools: Vec<Value> = names.map(tool).to_vec();
                tools[0]["inputSchema"] = json!({ "type": "object", "properties": { "a": { "type": "number" }, "b": { "type": "number" } },
                    "required": ["a", "b"], "additionalProperties": false });
                tools[0]["annotations"] = json!({ "readOnlyHint": true, "idempotentHint": true, "destructiveHint": false });
                json!({ "tools": tools, "nextCursor": "second" })
            }
            Some(_) => {
                let mut names = vec!["hang", "huge", "lists", "pid", "refuse", "slow", "spawn"];
                if self.more_tools.load(Ordering::Relaxed) {
                    names.push("new");
                    names.retain(|name| *name != "huge");
                }
                json!({ "tools": names.into_iter().map(tool).collect::<Vec<_>>() })
            }
        }
    }

    fn call(&self, params: &Value, id: &Value) -> Result<Option<Value>, Value> {
        let arguments = &params["arguments"];
        let number = |key: &str| arguments[key].as_u64().unwrap_or_default();
        Ok(Some(match params["name"].as_str().unwrap() {
            "add" => {
                let sum = arguments["a"].as_f64().unwrap() + arguments["b"].as_f64().unwrap();
                json!({ "content": [{ "type": "text", "text": sum.to_string() }], "structuredContent": { "sum": sum } })
            }
            "ask" => text(json!({
                "sampling": self.ask("sampling/createMessage", &json!({ "messages": [{ "role": "user", "content": { "type": "text",
                    "text": std::env::var("TOKEN").unwrap_or_default() } }], "maxTokens": 1 })),
                "roots": self.ask("roots/list", &json!({})),
                "elicitation": self.ask("elicitation/create", &json!({ "message": "who?", "requestedSchema": { "type": "object", "properties": {} } })),
                "ping": self.ask("ping", &json!({})),
                "other": self.ask("other/thing", &json!({})),
            })),
            "bad" => {
                send(&json!({ "jsonrpc": "2.0", "id": id, "nothing": true }));
                return Ok(None);
            }
            "cancelled" => text(json!(*self.cancelled.lock().unwrap())),
            "change" => {
                self.more_tools.store(true, Ordering::Relaxed);
                let params = match self.listener.lock().unwrap().clone() {
                    Value::Null => json!({}),
                    listener => json!({ "_meta": { SUBSCRIPTION: listener } }),
                };
                for _ in 0..number("times").max(1) {
                    notify("notifications/tools/list_changed", &params);
                }
                text("changed")
            }
            "crash" => {
                eprintln!("crashing with {}", std::env::var("TOKEN").unwrap_or_default());
                std::process::exit(7);
            }
            "env" => text(json!(std::env::vars().collect::<BTreeMap<_, _>>())),
            "fail" => {
                let mut result = text("it did not work");
                result["isError"] = true.into();
                result
            }
            "flood" => {
                let token = &params["_meta"]["progressToken"];
                for n in 0..number("times") {
                    notify(
                        "notifications/progress",
                        &json!({ "progressToken": token, "progress": n, "message": "x".repeat(2000) }),
                    );
                    notify("notifications/message", &json!({ "level": "info", "data": "x" }));
                }
                text("flooded")
            }
            "garbage" => {
                let _ = std::io::stdout().lock().write_all(b"oops {\n\xff\xfe\n[1,2\n{\"jsonrpc\":\"2.0\"}\n");
                text("after garbage")
            }
            "hang" => {
                thread::sleep(Duration::from_secs(300));
                return Ok(None);
            }
            "huge" => text("x".repeat(usize::try_from(number("bytes")).unwrap())),
            "lists" => text(self.lists.load(Ordering::Relaxed)),
            "pid" => text(std::process::id()),
            "refuse" => {
                return Err(
                    json!({ "code": arguments["code"].as_i64().unwrap_or(-32000), "message": format!("no: {}", std::env::var("TOKEN").unwrap_or_default()) }),
                );
            }
            "slow" => {
                let (steps, token) = (number("steps"), &params["_meta"]["progressToken"]);
                for n in 1..=steps {
                    thread::sleep(Duration::from_millis(number("ms")));
                    let message = format!("step {n} {}", std::env::var("TOKEN").unwrap_or_default());
                    notify(
                        "notifications/progress",
                        &json!({ "progressToken": token, "progress": n, "total": steps, "message": message }),
                    );
                }
                text("done")
            }
            "spawn" => text(Command::new("sleep").arg("300").spawn().unwrap().id()),
            _ => return Err(json!({ "code": -32602, "message": "unknown tool" })),
        }))
    }

    /// Asks the host for something, as no server should.
    fn ask(&self, method: &str, params: &Value) -> Value {
        let id = format!("s{}", self.next_id.fetch_add(1, Ordering::Relaxed));
        let (sender, answer) = mpsc::channel();
        self.waiting.lock().unwrap().insert(id.clone(), sender);
        send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        answer.recv_timeout(Duration::from_secs(10)).unwrap_or(Value::Null)
    }
}

fn tool(name: &str) -> Value {
    json!({ "name": name, "description": format!("does {name}"), "inputSchema": { "type": "object", "properties": {} } })
}
