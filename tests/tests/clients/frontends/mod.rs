//! The front ends of others in Chromium, against the real binary with its default configuration: a person chats, stops, asks
//! again, edits, sends a photo, and reloads the page.

use std::{fs, net::TcpListener};

use agent_host_tests::{Process, npm};
use serde_json::json;

use crate::chat::{browser::Browser, long_reply};

/// assistant-ui over its AG-UI runtime. All versions are named: what one of them asks for is not always published.
const ASSISTANT_UI: [&str; 9] = [
    "@assistant-ui/react@0.15.18",
    "@assistant-ui/react-ag-ui@0.0.57",
    "@assistant-ui/core@0.3.17",
    "@assistant-ui/store@0.3.12",
    "@assistant-ui/react-generative-ui@0.0.16",
    "@ag-ui/client@0.0.58",
    "react@19.2.0",
    "react-dom@19.2.0",
    "esbuild@0.25.0",
];

/// CopilotKit with an agent that the page names itself.
const COPILOTKIT: [&str; 6] = [
    "@copilotkit/react-core@1.74.0",
    "@ag-ui/client@0.0.59",
    "react@19.2.0",
    "react-dom@19.2.0",
    "zod@3.25.76",
    "esbuild@0.25.0",
];

fn script() -> String {
    format!(
        r#"
{long}
[[reply]]
when = '^pick'
after_tool = false
tool_calls = [{{ name = "pick_color", parameters = {{}} }}]

[[reply]]
when = 'copilotkitSuggest'
after_tool = false
tool_calls = [{{ name = "copilotkitSuggest", parameters = {{ suggestions = [{{ title = "Ask for a sum", message = "what is one and one?" }}] }} }}]

[[reply]]
text = "You said: {{{{last_user}}}}"
"#,
        long = long_reply(),
    )
}

/// The configuration of a new user: a model, two agents, and the line of docs/AGUI.md for CopilotKit.
const CONFIG: &str = r#"
[agui]
foreign_history = "accept"

[[models]]
id = "chat"
provider = "scripted"
script = "script.toml"

[[bindings]]
id = "agent"
runner = "plugin:agent-host/local-agent/default"

[[bindings]]
id = "echo"
runner = "plugin:agent-host/echo/default"
"#;

/// A port that is free now, for the page.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Plays all steps on a page of this folder.
fn play(page_name: &str, packages: &[&str]) {
    let port = free_port();
    let dir = Process::lay_out(&["local_agent", "echo"]);
    fs::write(dir.path().join("script.toml"), script()).unwrap();
    // The page has an origin of its own.
    let server = format!("loopback_without_key = true\ncors_origins = [\"http://127.0.0.1:{port}\"]");
    let host = Process::start_as(dir, &server, CONFIG);
    let page = format!("{}/tests/clients/frontends/{page_name}.jsx", env!("CARGO_MANIFEST_DIR"));
    let modules = npm::packages(page_name, packages);
    let input = json!({ "page": page, "url": host.url, "port": port, "modules": modules });
    Browser::play("frontends/frontends.mjs", input).done();
}

#[test]
fn assistant_ui_chats_stops_asks_again_edits_and_reloads() {
    play("assistant-ui", &ASSISTANT_UI);
}

#[test]
fn copilotkit_chats_stops_asks_again_edits_and_suggests() {
    play("copilotkit", &COPILOTKIT);
}
