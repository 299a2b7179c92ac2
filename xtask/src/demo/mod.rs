//! `cargo xtask demo`: one real event through the real host, and what is left of it.
//!
//! `local-agent` answers, with all parts of an agent: a model, tools of an MCP server, and a knowledge base. Only the model
//! is not real, so that the demo works on any machine: it plays a [script](SCRIPT).

mod answer;
mod input;
mod show;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};

use self::answer::Answer;
use crate::{
    build_progress, guests,
    host::{Group, HostProcess, Start},
    http::Client,
    process,
    workspace::Workspace,
};

/// The runner that answers.
const RUNNER: &str = "plugin:agent-host/local-agent/default";
/// The packages of the runners: the one that answers, and the one of the commands that are shown at the end.
const RUNNER_PACKAGES: [&str; 2] = ["local-agent-runner", "echo-runner"];
/// An estimate of the first build on two cores, for the message before it; README.md has the same figure.
const FIRST_BUILD_MINUTES: u32 = 10;
/// The replies of the model.
const SCRIPT: &str = include_str!("script.toml");
/// The knowledge base.
const KNOWLEDGE_BASE: &str = "docs";
/// The documents of the knowledge base, from the root of the project.
const DOCUMENTS: [&str; 4] = ["README.md", "ARCHITECTURE.md", "docs", "guest-sdk/README.md"];
/// One conversation for all demos, so that the runner remembers the demo before.
const CONVERSATION: &str = "demo";
/// A first start compiles the runners; this is for a slow machine.
const START: Duration = Duration::from_secs(120);
/// A run of the demo takes a moment; this is for a slow machine.
const RUN: Duration = Duration::from_secs(120);

/// Build what it runs, start the host, send it a real event, and show what becomes of it
#[derive(Debug, Args)]
#[command(
    after_help = "What it leaves is in `target/demo`: the configuration, the model's script, the plugins, the knowledge base \
                  and the ledger, in which the conversation goes on."
)]
pub(crate) struct Demo {
    /// Message; `-` reads standard input [default: a question about the project]
    #[arg(conflicts_with = "file")]
    text: Option<String>,
    /// Read the message from a file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Keep the host running until Ctrl-C
    #[arg(long)]
    serve: bool,
}

impl Demo {
    pub(crate) fn execute(self, workspace: &Workspace) -> anyhow::Result<ExitCode> {
        let input = input::read(self.text.as_deref(), self.file.as_deref())?;
        let components = build(workspace)?;

        let dir = workspace.target().join("demo");
        let built = |name: &str| workspace.target().join("debug").join(name);
        let config = lay_out(&dir, &components, &built("demo-tools"), workspace.root())?;
        let binary = built("agent-host");
        process::run(&mut add_knowledge(&binary, &config, workspace.root()))?;
        let log = dir.join("agent-host.log");
        let host = HostProcess::start(&Start {
            binary: &binary,
            config: &config,
            environment: &[],
            log,
            within: START,
            group: Group::Own,
        })?;
        host.end_on_signals()?;

        show::title(&format!("{} listens at {}", workspace.relative(&binary).display(), host.url()));
        let client = Client::new(host.url());
        let (run, answer) = follow(&client, &input)?;
        show::title("The run, as it stands in the ledger");
        show::run(&run);
        show::title("Its events");
        show::events(&client, run_id(&run)?)?;
        show::title("How to go on");
        show::how_to_go_on(workspace, &binary, &config);
        if run.pointer("/status").and_then(Value::as_str) != Some("completed") {
            bail!("the run did not complete");
        }
        answer.check()?;

        let status = if self.serve {
            println!("\nThe host goes on at {}. Ctrl-C ends it.", host.url());
            host.wait()?
        } else {
            host.stop()?
        };
        anyhow::ensure!(status.success(), "the host ended with {status}");
        Ok(ExitCode::SUCCESS)
    }
}

/// Builds the host, the tool server and the runners; gives the components of the runners.
fn build(workspace: &Workspace) -> anyhow::Result<Vec<PathBuf>> {
    if !workspace.target().join("debug").join("agent-host").exists() {
        eprintln!(
            "This builds the host, a tool server and two runners. The first build takes about {FIRST_BUILD_MINUTES} minutes on two cores, \
             most of them for the WebAssembly compiler."
        );
    }
    // Two binaries of the whole workspace, not two packages: cargo gives a dependency the features that the selected packages
    // ask for. With another selection than that of `cargo xtask test`, the tests would compile the engine again.
    build_progress::build(
        workspace,
        &["--workspace", "--bin", "agent-host", "--bin", "demo-tools"],
        &["agent-host", "agent-host-demo-tools"],
    )?;
    guests::runners_of(workspace, &RUNNER_PACKAGES)
}

/// Sends the event and shows the answer as it streams; gives the run as it is in the end, and what was seen of it.
fn follow(client: &Client, input: &input::Input) -> anyhow::Result<(Value, Answer)> {
    show::title(&format!("You say ({})", input.description));
    show::excerpt(&input.text);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let key = format!("demo-{}-{}", now.as_millis(), std::process::id());
    let event = json!({
        "event_type": "message.received",
        "conversation": { "conversation_id": CONVERSATION },
        "actor": { "actor_type": "user", "actor_id": "you" },
        "input": { "text": input.text },
    });
    let accepted = client.post("/api/v1/events", &[("Idempotency-Key", key.as_str())], &event)?;
    let run = accepted.pointer("/runs/0").context("the event made no run")?;
    let id = run_id(run)?;

    show::title(&format!("{RUNNER} answers, as it streams"));
    let mut answer = Answer::default();
    client.stream(&format!("/api/v1/runs/{id}/events"), RUN, |event| answer.add(&event))?;
    answer.finish();
    Ok((client.get(&format!("/api/v1/runs/{id}"))?, answer))
}

fn run_id(run: &Value) -> anyhow::Result<&str> {
    run.pointer("/run_id").and_then(Value::as_str).context("the host shows a run without an id")
}

/// The command that fills the knowledge base. Documents that have not changed since the last demo are not read again.
fn add_knowledge(binary: &Path, config: &Path, root: &Path) -> Command {
    let mut command = Command::new(binary);
    command
        .current_dir(root)
        .args(["knowledge", "add", KNOWLEDGE_BASE])
        .args(DOCUMENTS)
        .args(["--prune", "--config"])
        .arg(config);
    command
}

/// Puts plugins, script and configuration where the host finds them; gives the configuration. Ledger and knowledge base
/// stay as they are.
fn lay_out(dir: &Path, components: &[PathBuf], tool_server: &Path, root: &Path) -> anyhow::Result<PathBuf> {
    let plugins = dir.join("plugins");
    fs::create_dir_all(&plugins).with_context(|| format!("{} cannot be made", plugins.display()))?;
    for component in components {
        drop_in(component, &plugins)
            .with_context(|| format!("{} cannot be copied to {}", component.display(), plugins.display()))?;
    }
    let text = format!(
        r#"# Written by `cargo xtask demo`, anew each time. Paths are relative to this file.
[server]
listen = "127.0.0.1:0"
loopback_without_key = true       # whoever is on this machine; docs/OPERATIONS.md says how to make keys
data_dir = "data"
plugins_dir = "plugins"

# Stock front ends bring history and instructions along: docs/AGUI.md.
[agui]
foreign_history = "accept"

# A file of replies in place of a model. A real one takes as many lines: docs/MODELS.md.
[[models]]
id = "chat"
provider = "scripted"
script = "script.toml"

[[mcp_servers]]
id = "project"
command = {}
args = ["--root", {}]

[[knowledge_bases]]
id = "{KNOWLEDGE_BASE}"

[[bindings]]
id = "local-agent"
runner = "{RUNNER}"
match = {{ event_type = 'message\..*' }}
config = {{ system_prompt = "You answer questions about the project Agent Host. Look things up before you answer." }}
resources = {{ tool_names = ["project__*"] }}
client_instructions = "offer"
"#,
        quoted(tool_server)?,
        quoted(root)?
    );
    let config = dir.join("agent-host.toml");
    for (file, text) in [(&dir.join("script.toml"), SCRIPT), (&config, &text)] {
        fs::write(file, text).with_context(|| format!("{} cannot be written", file.display()))?;
    }
    Ok(config)
}

/// A path as a TOML string, which a JSON string is.
fn quoted(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8: the demo cannot name it", path.display()))?;
    Ok(Value::from(text).to_string())
}

/// Drops a file into a plugins directory as one should: under a hidden name first, then whole at once.
fn drop_in(component: &Path, plugins: &Path) -> anyhow::Result<()> {
    let name = component.file_name().context("a component has no file name")?;
    let hidden = plugins.join(format!(".{}.partial", name.display()));
    fs::copy(component, &hidden)?;
    Ok(fs::rename(hidden, plugins.join(name))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demo_is_laid_out_again_and_again() {
        let dir = tempfile::tempdir().unwrap();
        let component = dir.path().join("echo.wasm");
        let demo = dir.path().join("demo");
        for content in ["old", "new"] {
            fs::write(&component, content).unwrap();
            let config = lay_out(&demo, std::slice::from_ref(&component), Path::new("/t/x\"task"), Path::new("/r")).unwrap();
            let config = fs::read_to_string(config).unwrap();
            assert!(config.contains("match = { event_type = 'message\\..*' }"), "{config}");
            assert!(config.contains(r#"command = "/t/x\"task""#), "{config}");
            assert!(config.contains(r#"args = ["--root", "/r"]"#), "{config}");
            assert_eq!(fs::read_to_string(demo.join("plugins/echo.wasm")).unwrap(), content);
            assert_eq!(fs::read_to_string(demo.join("script.toml")).unwrap(), SCRIPT);
        }
        assert_eq!(fs::read_dir(demo.join("plugins")).unwrap().count(), 1);
    }

    #[test]
    fn the_documents_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for document in DOCUMENTS {
            assert!(root.join(document).exists(), "{document}");
        }
    }
}
