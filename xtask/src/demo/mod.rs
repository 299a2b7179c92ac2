//! `cargo xtask demo`: one real event through the real host, and what is left of it.

mod input;
mod show;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    guests,
    host::{Group, HostProcess, Start},
    http::Client,
    process,
    workspace::Workspace,
};

/// The runner that answers.
const RUNNER: &str = "plugin:agent-host/echo/default";
/// One conversation for all demos, so that the runner counts its turns from one to the next.
const CONVERSATION: &str = "demo";
/// A first start compiles the runners; this is for a slow machine.
const START: Duration = Duration::from_secs(120);
/// A run of the demo takes a moment; this is for a slow machine.
const RUN: Duration = Duration::from_secs(120);

/// Build everything, start the host, send it a real event, and show what becomes of it
#[derive(Debug, Args)]
#[command(
    after_help = "What it leaves is in `target/demo`: the configuration, the plugins and the ledger, in which turns count on."
)]
pub(crate) struct Demo {
    /// What to say; `-` reads standard input [default: the project's README.md]
    #[arg(conflicts_with = "file")]
    text: Option<String>,
    /// Read what to say from a file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Keep the host running until Ctrl-C
    #[arg(long)]
    serve: bool,
}

impl Demo {
    pub(crate) fn execute(self, workspace: &Workspace) -> anyhow::Result<ExitCode> {
        let input = input::read(self.text.as_deref(), self.file.as_deref(), workspace.root())?;
        let components = guests::runners(workspace)?;
        // As the tests build it. Cargo gives a dependency the features that the selected packages ask for, so with a
        // smaller selection the engine would be built a second time by the first `test`.
        process::run(&mut workspace.cargo(&["build", "--workspace", "--all-targets"]))?;

        let dir = workspace.target().join("demo");
        let config = lay_out(&dir, &components)?;
        let binary = workspace.target().join("debug").join("agent-host");
        let log = dir.join("agent-host.log");
        let host = HostProcess::start(&Start { binary: &binary, config: &config, log, within: START, group: Group::Own })?;
        host.end_on_signals()?;

        show::title(&format!("{} listens at {}", workspace.shown(&binary).display(), host.url()));
        let client = Client::new(host.url());
        let run = follow(&client, &input)?;
        show::title("The run, as it stands in the ledger");
        show::run(&run);
        show::title("Its events");
        show::events(&client, run_id(&run)?)?;
        show::title("How to go on");
        show::how_to_go_on(workspace, &binary, &config);
        if run.pointer("/status").and_then(Value::as_str) != Some("completed") {
            bail!("the run did not complete");
        }

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

/// Sends the event and shows the answer as it streams; gives the run as it is in the end.
fn follow(client: &Client, input: &input::Input) -> anyhow::Result<Value> {
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
    let mut answer = show::Answer::default();
    client.stream(&format!("/api/v1/runs/{id}/events"), RUN, |event| answer.add(&event))?;
    answer.finish();
    client.get(&format!("/api/v1/runs/{id}"))
}

fn run_id(run: &Value) -> anyhow::Result<&str> {
    run.pointer("/run_id").and_then(Value::as_str).context("the host shows a run without an id")
}

/// Puts plugins and configuration where the host finds them; gives the configuration. The ledger stays as it is.
fn lay_out(dir: &Path, components: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let plugins = dir.join("plugins");
    fs::create_dir_all(&plugins).with_context(|| format!("{} cannot be made", plugins.display()))?;
    for component in components {
        drop_in(component, &plugins)
            .with_context(|| format!("{} cannot be copied to {}", component.display(), plugins.display()))?;
    }
    let config = dir.join("agent-host.toml");
    let text = format!(
        r#"# Written by `cargo xtask demo`, anew each time. Paths are relative to this file.
[server]
listen = "127.0.0.1:0"
data_dir = "data"
plugins_dir = "plugins"

[[bindings]]
id = "echo"
runner = "{RUNNER}"
match = {{ event_type = 'message\..*' }}
"#
    );
    fs::write(&config, text).with_context(|| format!("{} cannot be written", config.display()))?;
    Ok(config)
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
            let config = lay_out(&demo, std::slice::from_ref(&component)).unwrap();
            assert!(fs::read_to_string(config).unwrap().contains("match = { event_type = 'message\\..*' }"));
            assert_eq!(fs::read_to_string(demo.join("plugins/echo.wasm")).unwrap(), content);
        }
        assert_eq!(fs::read_dir(demo.join("plugins")).unwrap().count(), 1);
    }
}
