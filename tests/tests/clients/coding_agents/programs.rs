//! Coding agents that others wrote, each with a model server that others wrote: what is installed, and what is peculiar to it.

use std::path::{Path, PathBuf};

use agent_host_tests::{
    npm::{self, NodeServer},
    support::Host,
};
use serde_json::{Value, json};

/// The versions that are run: newer ones are tried by changing them here.
const AIMOCK: &str = "@copilotkit/aimock@1.43.0";
const CLAUDE_ACP: &str = "@agentclientprotocol/claude-agent-acp@0.49.0";
const CLAUDE: &str = "@anthropic-ai/claude-code@2.1.330";
const CODEX_ACP: &str = "@zed-industries/codex-acp@0.16.0";
const CODEX: &str = "@openai/codex@0.169.0";
const GEMINI: &str = "@google/gemini-cli@0.61.0";
const OPENCODE: &str = "opencode-ai@1.18.33";
const KIMI: &str = "@moonshot-ai/kimi-code@2.1.0";
const PI_ACP: &str = "pi-acp@0.0.34";
const PI: &str = "@earendil-works/pi-coding-agent@1.5.2";
/// Node.js for agents that want a newer one than the rest.
const NODE: &str = "22.23.3";

/// A key that no service takes.
const KEY: &str = "sk-of-the-test";

/// The ways in which agents name a tool of an MCP server to their models, up to the name of the tool.
const TOOLS: [&str; 5] = ["mcp__agent-host__", "agent-host_", "mcp_agent-host_", "mcp__agent_host__", "mcp__agent_host."];
/// The tools by which agents execute commands of a shell.
const SHELLS: [&str; 4] = ["Bash", "bash", "run_shell_command", "exec_command"];

/// Stands before a model server that cannot name the namespace of a tool, as Codex wants it.
const NAMESPACES: &str = r#"
import http from "node:http";
const [port, model] = process.argv.slice(2);
http.createServer((request, response) => {
  const { url: path, method, headers } = request;
  const sent = http.request({ host: "127.0.0.1", port: model, path, method, headers }, (answer) => {
    response.writeHead(answer.statusCode, { "content-type": answer.headers["content-type"] ?? "text/plain" });
    let text = "";
    answer.setEncoding("utf8").on("data", (part) => { text += part; });
    answer.on("end", () => response.end(text.replaceAll('"name":"mcp__agent_host.', '"namespace":"mcp__agent_host","name":"')));
  });
  request.pipe(sent);
}).listen(Number(port), "127.0.0.1");
"#;

/// A rule that lets an agent call tools that are neither files nor commands without a question: some ask for each tool of the host.
const TRUSTED: &str = "rules = [{ policy = \"allow\", kinds = [\"other\"] }]\n";

/// The answers of the model: what it says, and the tools that it calls for an order that names them.
fn fixtures() -> String {
    let says = |text: &str, answer: &str| json!({ "match": { "userMessage": text }, "response": { "content": answer } });
    let said = |text: &str, answer: &str| json!({ "match": { "userMessage": text, "hasToolResult": true }, "response": { "content": answer } });
    let calls = |text: String, name: String, arguments: Value| {
        let calls = json!([{ "name": name, "arguments": arguments.to_string() }]);
        json!({ "match": { "userMessage": text, "hasToolResult": false }, "response": { "toolCalls": calls } })
    };
    let mut all = Vec::new();
    for shell in SHELLS {
        for (order, command) in
            [("make the folder one", "mkdir one"), ("make the folder two", "mkdir two"), ("wait", "sh wait.sh")]
        {
            let arguments = match shell {
                // As long as it may be before the command goes on in the background.
                "exec_command" => json!({ "cmd": command, "yield_time_ms": 30_000 }),
                _ => json!({ "command": command, "description": "Do it" }),
            };
            all.push(calls(format!("{order} by {shell};"), shell.to_owned(), arguments));
        }
    }
    for tools in TOOLS {
        let place = json!({ "scope": "conversation", "key": "color" });
        let mut value = place.clone();
        value["value"] = json!("blue");
        all.push(calls(format!("keep blue by {tools};"), format!("{tools}state_set"), value));
        all.push(calls(format!("find blue by {tools};"), format!("{tools}state_get"), place));
    }
    all.extend([
        said("make the folder one", "Folder one is there."),
        said("make the folder two", "There is no folder two."),
        said("wait by ", "It has waited."),
        said("blue by ", "Blue."),
        says("hello", "Hello from the scripted model."),
        says("<system-reminder>", "Hello from the scripted model."),
        says("and again", "Again, in the same session."),
    ]);
    json!({ "fixtures": all }).to_string()
}

/// A program with its model.
pub(super) struct Program {
    name: &'static str,
    /// The folder with its packages.
    modules: PathBuf,
    command: Vec<String>,
    /// Keys of its harness beside the command.
    keys: String,
    /// Tool by which its model executes commands of a shell.
    pub(super) shell: &'static str,
    /// Names that tools of the host have for its model, up to the name of the tool.
    pub(super) tools: &'static str,
    /// Option that allows a command once; `None` where the program asks for none.
    pub(super) allow: Option<&'static str>,
    /// The server that the program knows, and the model behind it.
    model: NodeServer,
    _behind: Option<NodeServer>,
}

impl Program {
    /// A host whose one runner it is. `front` is a script before it, and `more` are keys of the harness.
    pub(super) fn host(&self, front: Option<&str>, more: &str) -> Host {
        let front = front.into_iter().flat_map(|script| ["sh", "-c", script, "front"]).map(str::to_owned);
        let command: Vec<String> = front.chain(self.command.iter().cloned()).collect();
        let runner = format!("plugin:agent-host/{}/default", self.name);
        let harness = format!(
            "[[harnesses]]\nid = \"{runner}\"\nconnect_ports = [{}]\nreadable = [{:?}]\ncommand = {command:?}\n\
             {}\n{more}\n",
            self.model.port, self.modules, self.keys
        );
        Host::start(&[], &format!("{harness}{}", super::binding(&runner)))
    }

    /// A program without command and keys, and its model.
    fn new(name: &'static str, modules: &Path, shell: &'static str, tools: &'static str) -> Self {
        let model = NodeServer::start(&[("fixtures.json", fixtures())], |node, port| {
            node.arg(modules.join(".bin/llmock")).args(["-p", &port.to_string(), "-f", "fixtures.json"]);
        });
        let (modules, command, keys) = (modules.to_owned(), Vec::new(), String::new());
        Self { name, modules, command, keys, shell, tools, allow: Some("Allow"), model, _behind: None }
    }

    /// Likewise for Codex, whose model names namespaces.
    fn codex(name: &'static str, modules: &Path) -> Self {
        let behind = Self::new(name, modules, "exec_command", "mcp__agent_host.");
        let model = NodeServer::start(&[("relay.mjs", NAMESPACES.to_owned())], |node, port| {
            node.args(["relay.mjs", &port.to_string(), &behind.model.port.to_string()]);
        });
        Self { model, _behind: Some(behind.model), ..behind }
    }

    fn command(&mut self, program: &Path, arguments: &[&str]) {
        self.command = std::iter::once(program.to_string_lossy().into_owned())
            .chain(arguments.iter().map(|word| (*word).to_owned()))
            .collect();
    }
}

/// The name of this machine's architecture in packages.
fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" }
}

/// The package with the newer Node.js for this machine.
fn node_package() -> String {
    format!("node-linux-{}@{NODE}", architecture())
}

/// The program in it.
fn newer_node(modules: &Path) -> PathBuf {
    modules.join(format!("node-linux-{}/bin/node", architecture()))
}

/// The packages of Claude Code over ACP.
fn claude_acp_packages() -> PathBuf {
    npm::packages("claude-code", &[CLAUDE_ACP, AIMOCK])
}

/// The example agent of the SDK of ACP, with which Claude Code over ACP is made.
pub(super) fn example_of_the_sdk() -> PathBuf {
    claude_acp_packages().join("@agentclientprotocol/sdk/dist/examples/agent.js")
}

pub(super) fn claude_code_acp() -> Program {
    let modules = claude_acp_packages();
    let mut program = Program::new("claude-code", &modules, "Bash", "mcp__agent-host__");
    program.command(&modules.join(".bin/claude-agent-acp"), &[]);
    program.keys = format!(
        "preset = \"claude-code\"\nenv = {{ ANTHROPIC_BASE_URL = \"http://127.0.0.1:{}\", ANTHROPIC_API_KEY = \"{KEY}\" }}",
        program.model.port
    );
    program
}

pub(super) fn claude_code() -> Program {
    let modules = npm::packages("claude-code-native", &[CLAUDE, AIMOCK]);
    let mut program = Program::new("claude-native", &modules, "Bash", "mcp__agent-host__");
    // The package for this machine: no installation script has put its program into the other one.
    program.command(&modules.join(format!("@anthropic-ai/claude-code-linux-{}/claude", architecture())), &[]);
    program.keys = format!(
        "preset = \"claude-code\"\nprotocol = \"native\"\n\
         env = {{ ANTHROPIC_BASE_URL = \"http://127.0.0.1:{}\", ANTHROPIC_API_KEY = \"{KEY}\" }}",
        program.model.port
    );
    program
}

/// The provider of Codex that is the model of the test.
fn codex_provider(port: u16) -> String {
    format!(
        "model_providers.mock={{name=\"mock\",base_url=\"http://127.0.0.1:{port}/v1\",env_key=\"OPENAI_API_KEY\",wire_api=\"responses\"}}"
    )
}

pub(super) fn codex() -> Program {
    let modules = npm::packages("codex-native", &[CODEX, AIMOCK]);
    let mut program = Program::codex("codex-native", &modules);
    let provider = codex_provider(program.model.port);
    // A model that Codex does not know has the tools themselves, and not a program that calls them.
    let arguments = ["app-server", "-c", "model=mock", "-c", "model_provider=mock", "-c", &provider];
    program.command(&modules.join(".bin/codex"), &arguments);
    program.keys = format!("preset = \"codex\"\nprotocol = \"native\"\nenv = {{ OPENAI_API_KEY = \"{KEY}\" }}");
    program
}

pub(super) fn codex_acp() -> Program {
    let modules = npm::packages("codex-acp", &[CODEX_ACP, AIMOCK]);
    let mut program = Program::codex("codex-acp", &modules);
    let provider = codex_provider(program.model.port);
    // Its own sandbox cannot be made within the confinement. It repeats the command without one then, but not always.
    let settings = ["approval_policy=untrusted", "sandbox_mode=danger-full-access", "model_provider=mock", &provider];
    program.command(&modules.join(".bin/codex-acp"), &settings.map(|setting| ["-c", setting]).concat());
    program.keys = format!("preset = \"codex\"\nenv = {{ OPENAI_API_KEY = \"{KEY}\" }}");
    program.allow = Some("Yes, proceed");
    program
}

pub(super) fn gemini() -> Program {
    let modules = npm::packages("gemini", &[GEMINI, AIMOCK]);
    let mut program = Program::new("gemini", &modules, "run_shell_command", "mcp_agent-host_");
    program.command(&modules.join(".bin/gemini"), &["--acp"]);
    program.keys = format!(
        "preset = \"gemini\"\n{TRUSTED}env = {{ GEMINI_API_KEY = \"{KEY}\", GEMINI_DEFAULT_AUTH_TYPE = \"gemini-api-key\", \
         GEMINI_MODEL = \"gemini-2.5-flash\", GOOGLE_GEMINI_BASE_URL = \"http://127.0.0.1:{}\" }}",
        program.model.port
    );
    program
}

pub(super) fn opencode() -> Program {
    let modules = npm::packages("opencode", &[OPENCODE, AIMOCK]);
    let mut program = Program::new("opencode", &modules, "bash", "agent-host_");
    program.command(&modules.join(format!("opencode-linux-{}/bin/opencode", architecture())), &["acp"]);
    let settings = json!({
        "autoupdate": false, "share": "disabled", "model": "mock/m", "small_model": "mock/m", "enabled_providers": ["mock"],
        "permission": { "bash": "ask" },
        "provider": { "mock": {
            "npm": "@ai-sdk/openai-compatible", "name": "Mock", "models": { "m": { "name": "m" } },
            "options": { "baseURL": format!("http://127.0.0.1:{}/v1", program.model.port), "apiKey": KEY },
        } },
    });
    program.keys = format!("preset = \"opencode\"\nenv = {{ OPENCODE_CONFIG_CONTENT = '{settings}' }}");
    program.allow = Some("Allow once");
    program
}

pub(super) fn kimi() -> Program {
    let modules = npm::packages("kimi", &[KIMI, &node_package(), AIMOCK]);
    let mut program = Program::new("kimi", &modules, "Bash", "mcp__agent-host__");
    let main = modules.join("@moonshot-ai/kimi-code/dist/main.mjs");
    program.command(&newer_node(&modules), &[&main.to_string_lossy(), "acp"]);
    program.keys = format!(
        "preset = \"kimi\"\n{TRUSTED}\
         env = {{ KIMI_MODEL_NAME = \"mock\", KIMI_MODEL_API_KEY = \"{KEY}\", KIMI_MODEL_PROVIDER_TYPE = \"openai\", \
         KIMI_MODEL_BASE_URL = \"http://127.0.0.1:{}/v1\" }}",
        program.model.port
    );
    program.allow = Some("Approve once");
    program
}

pub(super) fn pi() -> Program {
    let modules = npm::packages("pi", &[PI_ACP, PI, &node_package(), AIMOCK]);
    let mut program = Program::new("pi", &modules, "bash", "mcp__agent_host__");
    // Pi has its providers in its home only: a program before it puts them there.
    let providers = json!({ "providers": { "mock": {
        "baseUrl": format!("http://127.0.0.1:{}/v1", program.model.port), "api": "openai-completions", "apiKey": KEY,
        "models": [{ "id": "mock" }],
    } } });
    let chosen = json!({ "defaultProvider": "mock", "defaultModel": "mock", "quietStartup": true });
    let node = newer_node(&modules);
    let begin = format!(
        "mkdir -p ~/.pi/agent && echo '{providers}' > ~/.pi/agent/models.json && echo '{chosen}' > ~/.pi/agent/settings.json && \
         exec {} {}",
        node.display(),
        modules.join("pi-acp/dist/index.js").display()
    );
    program.command(Path::new("sh"), &["-c", &begin]);
    let path = format!("{}:{}:/usr/bin:/bin", node.parent().unwrap().display(), modules.join(".bin").display());
    program.keys = format!("preset = \"pi\"\nenv = {{ PATH = \"{path}\" }}");
    program.allow = None;
    program
}
