//! Captures of other agent frameworks: made with the real packages and models that follow a script, then imported.

mod appends;
mod captures;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use agent_host_tests::{npm, pip, process};
use serde_json::Value;
use tempfile::TempDir;

const NPM: [&str; 6] = [
    "ai@7.0.173",
    "@openai/agents@0.20.0",
    "@langchain/langgraph@1.7.3",
    "@langchain/core@1.4.0",
    "@modelcontextprotocol/sdk@1.32.2",
    "zod@4.6.7",
];

/// A script that makes captures.
#[derive(Clone, Copy)]
enum Script {
    Node(&'static str, &'static str),
    Python(&'static str, &'static str),
}

const AI_SDK: Script = Script::Node("ai_sdk.mjs", include_str!("ai_sdk.mjs"));
const AGENTS_JS: Script = Script::Node("agents.mjs", include_str!("agents.mjs"));
const AGENTS_PY: Script = Script::Python("record_agents.py", include_str!("agents.py"));
const GRAPH_JS: Script = Script::Node("graph.mjs", include_str!("graph.mjs"));
const GRAPH_PY: Script = Script::Python("graph.py", include_str!("graph.py"));
const SESSION_JS: Script = Script::Node("session.mjs", include_str!("session.mjs"));
const SESSION_PY: Script = Script::Python("session.py", include_str!("session.py"));

/// The captures of a script, in a folder.
fn record(script: Script) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut command = match script {
        Script::Node(name, text) => {
            fs::write(dir.path().join(name), text).unwrap();
            std::os::unix::fs::symlink(npm::packages("imports", &NPM), dir.path().join("node_modules")).unwrap();
            let mut node = Command::new("node");
            node.arg(name);
            node
        }
        Script::Python(name, text) => {
            fs::write(dir.path().join(name), text).unwrap();
            let mut python = Command::new(pip::programs(include_str!("requirements.txt")).join("python"));
            python.args(["-B", name]);
            python
        }
    };
    succeeded(command.current_dir(dir.path()).env("LANGSMITH_TRACING", "false").env("OPENAI_AGENTS_DISABLE_TRACING", "1"));
    dir
}

fn succeeded(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = || format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} ended with {}: {}", output.status, said());
    output
}

/// A ledger of its own, with nothing configured.
struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = process::command(self.0.path());
        command.args(arguments);
        command
    }

    /// Imports a capture; gives its run.
    fn import(&self, form: &str, file: &Path) -> Value {
        let output = succeeded(self.command(&["import", "--json", "--from", form]).arg(file));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The facts of a thread. The rules for such logs find no fault with them.
    fn facts(&self, thread: &str) -> Vec<Value> {
        let mut facts: Vec<Value> = Vec::new();
        loop {
            let after = facts.len().to_string();
            let output = succeeded(&mut self.command(&["threads", "events", thread, "--json", "--after", &after]));
            let page: Value = serde_json::from_slice(&output.stdout).unwrap();
            let items = page["items"].as_array().unwrap();
            if items.is_empty() {
                break;
            }
            facts.extend(items.iter().cloned());
        }
        let text: String = facts.iter().map(|fact| format!("{fact}\n")).collect();
        let log: PathBuf = self.0.path().join("facts.jsonl");
        fs::write(&log, &text).unwrap();
        let check = self.command(&["conformance"]).arg(&log).output().unwrap();
        assert!(check.status.success(), "{}\n{text}", String::from_utf8_lossy(&check.stdout));
        facts
    }
}

/// The facts of this type.
fn of<'a>(facts: &'a [Value], kind: &str) -> Vec<&'a Value> {
    facts.iter().filter(|fact| fact["type"] == kind).collect()
}
