//! `agent-host mcp-bridge`, as a program that speaks MCP over standard input and output starts it.

use std::process::Stdio;

use agent_host_tests::{grants::EVERYTHING, process, world::PATIENCE};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::mcp::{
    client::{Client, access},
    outside::ExecutorHost,
    programs::play,
};

/// The program that has started the bridge.
struct Bridge {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Bridge {
    fn start(url: &str, token: &str) -> Self {
        let dir = std::env::temp_dir();
        let mut command = Command::from(process::command(&dir));
        command.arg("mcp-bridge").env("AGENT_HOST_MCP_URL", url).env("AGENT_HOST_MCP_TOKEN", token);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        Self { child, input, output }
    }

    async fn send(&mut self, message: Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    /// The next message with this id.
    async fn answer(&mut self, id: u64) -> Value {
        loop {
            let line = timeout(PATIENCE, self.output.next_line()).await.unwrap().unwrap().expect("the bridge answers");
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id {
                return message;
            }
        }
    }

    /// The end of the bridge, after that of its input.
    async fn ended(self) -> (Option<i32>, String) {
        let Self { child, input, .. } = self;
        drop(input);
        Self::output(child).await
    }

    /// The end of the bridge while its input is open.
    async fn failed(self) -> (Option<i32>, String) {
        let Self { child, input: _input, .. } = self;
        Self::output(child).await
    }

    async fn output(child: Child) -> (Option<i32>, String) {
        let output = timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn messages_pass_and_the_end_of_the_input_ends_the_session() {
    let outside = ExecutorHost::new(EVERYTHING, "state = { scopes = [\"runner\"] }").await;
    let held = outside.claimed_run().await;
    let (path, token) = access(&held);
    let url = format!("{}{path}", outside.host.urls().borrow().as_str());
    let mut bridge = Bridge::start(&url, &token);
    bridge.send(Client::initialization()).await;
    assert_eq!(bridge.answer(0).await["result"]["serverInfo"]["name"], "agent-host");
    bridge.send(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
    // Two at once: the second does not wait for the first.
    let call = |id: u64, name: &str, arguments: Value| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": name, "arguments": arguments } });
    bridge.send(call(1, "ask_user", json!({ "title": "Which?" }))).await;
    bridge.send(call(2, "a__add", json!({ "a": 1, "b": 2 }))).await;
    assert_eq!(bridge.answer(2).await["result"]["content"][0]["text"], "3");
    let asked = outside.host.until(&held.run, |event| event["type"] == "action.requested").await;
    let respond = format!("/api/v1/actions/{}/respond", asked["data"]["action_id"].as_str().unwrap());
    assert_eq!(outside.post(&respond, "", &json!({ "decision": "submit", "answer": "this" })).await.0, 200);
    assert_eq!(bridge.answer(1).await["result"]["structuredContent"]["answer"], "this");
    let (code, log) = bridge.ended().await;
    assert_eq!(code, Some(0), "{log}");
    outside.complete(&held).await;
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_wrong_token_is_said_to_the_program_and_ends_the_bridge() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let url = format!("{}{}", outside.host.urls().borrow().as_str(), access(&held).0);
    let mut bridge = Bridge::start(&url, "ahm_nonsense");
    bridge.send(Client::initialization()).await;
    let refused = bridge.answer(0).await;
    assert!(refused["error"]["message"].as_str().unwrap().contains("has not taken the request"), "{refused:#}");
    let (code, log) = bridge.failed().await;
    assert_eq!(code, Some(1), "{log}");
    for wrong in ["nonsense", "ftp://127.0.0.1/mcp"] {
        let (code, log) = Bridge::start(wrong, "x").ended().await;
        assert_eq!(code, Some(1), "{log}");
        assert!(log.contains(wrong), "{log}");
    }
    outside.complete(&held).await;
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_official_client_starts_the_bridge() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let (path, token) = access(&held);
    let url = format!("{}{path}", outside.host.urls().borrow().as_str());
    let command = process::command(&std::env::temp_dir());
    let program = command.get_program().to_str().unwrap().to_owned();
    let seen = play("bridge", &json!({ "url": url, "token": token, "program": program })).await;
    assert_eq!(seen["sum"]["structuredContent"], json!({ "sum": 5 }), "{seen:#}");
    assert!(seen["tools"].as_array().unwrap().contains(&json!("history_page")), "{seen:#}");
    outside.complete(&held).await;
    outside.host.check();
}
