//! `agent-host run`.

use std::{
    fs::File,
    io::{self, IsTerminal, Read},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use agent_host_config::{BindingConfig, Config};
use agent_host_protocol::{
    Principal, Run as RunRecord, RunId, RunnerId,
    context::{Actor, Conversation, Delivery},
    event::Envelope,
};
use agent_host_runs::Host;
use anyhow::Context;
use clap::Args;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::{
    run_host::RunHost,
    show_run::{Shown, exit_code_of, show},
};
use crate::{
    client::Client,
    failure::Failure,
    output::Output,
    progress::Progress,
    resolve::{can_mean, resolve},
    signals::{INTERRUPTED, Signals},
};

/// Time for other waiting runs of the ledger to end after this run.
const GRACE: Duration = Duration::from_secs(2);

/// Run a runner, or a binding of the configuration, once
#[derive(Debug, Args)]
#[command(
    long_about = "Run a runner, or a binding of the configuration, once.\n\n\
        A runner runs without a server, and with what its manifest asks for. With --binding, the run has the configuration, the \
        resources and the tools of the binding; a server that has the data directory makes it, and without one this process \
        does.\n\n\
        The run is as durable as any: `agent-host runs show ID` shows it afterwards. The text of its messages is \
        printed as it streams; with --json, each event of the run as a line, then the run itself.\n\n\
        What the run asks is asked at the terminal. Without one, or with --json, nobody answers, and the run ends when \
        the question expires, by default after a day, or when --timeout passes.\n\n\
        Ctrl-C cancels the run and shows its end; a second Ctrl-C leaves at once. Exits with 1 when the run did not \
        complete.",
    after_long_help = "Examples:\n  \
        agent-host run echo 'hello there'\n  \
        agent-host run --binding support 'where is my parcel?'\n  \
        agent-host run acme/support/default --file question.txt --conversation c1 --actor alice\n  \
        git diff | agent-host run reviewer - --config-json '{\"style\":\"short\"}' --json"
)]
pub(crate) struct Run {
    /// The runner: its id, the end of it such as `echo/default`, or its plugin's name. With --binding, the message
    #[arg(required_unless_present = "binding")]
    runner: Option<String>,
    /// Message; `-` or no argument reads standard input
    #[arg(conflicts_with_all = ["file", "binding"])]
    text: Option<String>,
    /// The binding of the configuration, instead of a runner
    #[arg(long, value_name = "ID")]
    binding: Option<String>,
    /// Read the message from a file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The conversation that it belongs to; runs of one conversation share history and state
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
    /// Id of the sender
    #[arg(long, value_name = "ID")]
    actor: Option<String>,
    /// The workspace that it belongs to
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
    /// Configuration of the runner, a JSON object; with --binding, in place of keys of its configuration
    #[arg(long, value_name = "JSON", value_parser = object)]
    config_json: Option<Object>,
    /// Deadline of the run. The time in which the run waits for an answer counts; with --binding, where the binding says so
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
}

/// A JSON object.
#[derive(Debug, Clone)]
pub(super) struct Object(pub(super) Map<String, Value>);

pub(super) fn object(text: &str) -> Result<Object, String> {
    serde_json::from_str(text).map(Object).map_err(|error| format!("not a JSON object: {error}"))
}

impl Run {
    pub(crate) async fn execute(self, config: Config, output: Output) -> anyhow::Result<ExitCode> {
        let envelope = self.envelope(config.limits.http_body_bytes)?;
        let mut signals = Signals::listen().context("signals cannot be listened for")?;
        if let Some(binding) = &self.binding {
            if let Some(client) = Client::local(&config).await? {
                let body = self.request(binding, &envelope);
                let run: RunRecord = client.ask(Method::POST, "api/v1/runs", &[], Some(&body)).await?;
                let run = show(RunHost::Server(&client), run.run_id, Shown::Stream, &mut signals, output).await?;
                return Ok(exit_code_of(&run, output));
            }
            refuse_executors(&config, binding)?;
        } else if let Some(client) = Client::local(&config).await? {
            return Err(self.served(&config, client.url()).into());
        }
        let progress = Progress::spinner(output, "opening the ledger and loading plugins");
        let host = tokio::select! {
            host = Host::start_with(config, super::compiler()) => host?,
            () = signals.next() => return Err(Failure::new("interrupted", "interrupted before the run began").into()),
        };
        drop(progress);
        let run = self.run(&host, envelope, &mut signals, output).await;
        tokio::select! {
            () = host.shutdown(GRACE) => {}
            () = signals.next() => std::process::exit(INTERRUPTED),
        }
        Ok(exit_code_of(&run?, output))
    }

    /// Starts the run and shows it to its end.
    async fn run(&self, host: &Host, envelope: Envelope, signals: &mut Signals, output: Output) -> anyhow::Result<RunRecord> {
        let id = match &self.binding {
            Some(binding) => {
                let request = serde_json::from_value(self.request(binding, &envelope))?;
                host.create_run(request, &Principal::loopback(), None).await?.run.run_id
            }
            None => self.start_runner(host, envelope).await?,
        };
        show(RunHost::Embedded(host), id, Shown::Stream, signals, output).await
    }

    /// The request of a run of a binding, as `POST /api/v1/runs` takes it.
    fn request(&self, binding: &str, envelope: &Envelope) -> Value {
        let config = self.config_json.as_ref().map(|Object(config)| config);
        json!({ "binding_id": binding, "event": envelope, "config": config, "deadline_ms": self.deadline_ms() })
    }

    fn deadline_ms(&self) -> Option<u64> {
        self.timeout.map(|seconds| seconds * 1000)
    }

    /// The refusal to run a runner without a binding beside the host that has the data directory.
    fn served(&self, config: &Config, url: &str) -> Failure {
        let name = self.runner.as_deref().unwrap_or_default();
        let binding = match config.bindings.iter().find(|binding| can_mean(name, &binding.runner)) {
            Some(binding) => format!("`agent-host run --binding {} TEXT` sends the message to it", binding.id),
            None => {
                "give the runner a binding in agent-host.toml, and `agent-host run --binding ID TEXT` sends the message to it"
                    .to_owned()
            }
        };
        let message =
            format!("a host has this data directory ({url}): {binding}; or try the runner apart from it, with `--data-dir DIR`");
        Failure::new("ledger_in_use", message)
    }

    /// Starts a run of the runner, without a binding.
    async fn start_runner(&self, host: &Host, envelope: Envelope) -> anyhow::Result<RunId> {
        let name = self.runner.as_deref().unwrap_or_default();
        let mut binding = BindingConfig::for_runner(resolve(name, &host.plugins())?);
        binding.id = "cli".to_owned();
        if let Some(Object(config)) = &self.config_json {
            binding.config.clone_from(config);
        }
        binding.deadline_ms = self.deadline_ms();
        // A person who gives a time limit waits no longer, whatever the run waits for.
        binding.waiting_counts = self.timeout.is_some();
        let accepted = host.accept_for(binding, envelope).await?;
        Ok(*accepted.runs.first().ok_or_else(|| Failure::new("failed", "the event made no run"))?)
    }

    /// The message of the command line. With a binding, the only argument is the message.
    const fn message(&self) -> Option<&String> {
        if self.binding.is_some() { self.runner.as_ref() } else { self.text.as_ref() }
    }

    fn envelope(&self, limit: usize) -> anyhow::Result<Envelope> {
        let text = match (self.message(), &self.file) {
            (Some(_), Some(_)) => {
                return Err(Failure::new("usage", "there are two messages: give a text or --file FILE").into());
            }
            (None, Some(path)) => {
                let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
                read(file, limit, path)?
            }
            (Some(text), None) if text != "-" => text.clone(),
            (text, None) => {
                if text.is_none() && io::stdin().is_terminal() {
                    return Err(Failure::new("usage", "there is no message: give a text, --file FILE, or `-` to type it").into());
                }
                read(io::stdin().lock(), limit, Path::new("standard input"))?
            }
        };
        let mut envelope = Envelope::message(text, "api");
        if self.conversation.is_some() || self.workspace.is_some() {
            let (conversation_id, workspace_id) = (self.conversation.clone(), self.workspace.clone());
            envelope.conversation = Some(Conversation { conversation_id, workspace_id, ..Conversation::default() });
        }
        envelope.actor = self.actor.clone().map(|id| Actor {
            actor_type: "user".to_owned(),
            actor_id: Some(id),
            actor_name: None,
            metadata: Map::new(),
        });
        envelope.delivery = Some(Delivery::streaming("cli"));
        envelope.check().map_err(|problem| Failure::new("invalid_argument", problem))?;
        let size = serde_json::to_vec(&envelope)?.len();
        if size > limit { Err(too_large(&format!("has {size} bytes"), limit).into()) } else { Ok(envelope) }
    }
}

/// Refuses a binding whose runs executors execute: this process has none.
fn refuse_executors(config: &Config, id: &str) -> Result<(), Failure> {
    let external = config.external_manifests();
    let is_external = |runner: &RunnerId| {
        external.iter().any(|manifest| manifest.id == *runner)
            || config.executor_runners.iter().any(|entry| entry.runner_ids.names(runner.as_str()))
    };
    match config.bindings.iter().find(|binding| binding.id == id) {
        Some(binding) if is_external(&binding.runner) => {
            let message = format!(
                "the runner of binding `{id}` needs a server: coding agents and other executors work for `agent-host serve`; start it, and \
                 repeat the command"
            );
            Err(Failure::new("no_server", message))
        }
        _ => Ok(()),
    }
}

/// The same limit as over HTTP, so that what works here works there.
fn too_large(size: &str, limit: usize) -> Failure {
    let message =
        format!("the event {size}; as JSON it may have at most {limit} bytes ([limits] http_body_bytes in agent-host.toml)");
    Failure::new("payload_too_large", message)
}

/// All of `from`, if it is text and can fit an event.
fn read(from: impl Read, limit: usize, name: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let cannot_read = || format!("{} cannot be read", name.display());
    from.take(limit as u64 + 1).read_to_end(&mut bytes).with_context(cannot_read)?;
    if bytes.len() > limit {
        return Err(too_large(&format!("from {} has more than {limit} bytes", name.display()), limit).into());
    }
    String::from_utf8(bytes).map_err(|_| Failure::new("invalid_argument", format!("{} is not UTF-8 text", name.display())).into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::command::{Cli, Command};

    fn run(arguments: &[&str]) -> Box<Run> {
        match Cli::try_parse_from([&["agent-host", "run"], arguments].concat()).unwrap().command {
            Command::Run(run) => run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_event_says_who_and_where() {
        let envelope = run(&["echo", "hi", "--conversation", "c", "--actor", "a", "--workspace", "w"]).envelope(10_000).unwrap();
        assert_eq!(envelope.input.text.as_deref(), Some("hi"));
        let conversation = envelope.conversation.unwrap();
        assert_eq!((conversation.conversation_id.as_deref(), conversation.workspace_id.as_deref()), (Some("c"), Some("w")));
        assert_eq!(envelope.actor.unwrap().actor_id.as_deref(), Some("a"));
        assert!(run(&["echo", "hi"]).envelope(10_000).unwrap().conversation.is_none());
    }

    #[test]
    fn the_only_argument_beside_a_binding_is_the_message() {
        let bound = run(&["--binding", "support", "where is it?", "--timeout", "5", "--config-json", "{\"a\":1}"]);
        let envelope = bound.envelope(10_000).unwrap();
        assert_eq!(envelope.input.text.as_deref(), Some("where is it?"));
        let body = bound.request("support", &envelope);
        assert_eq!(
            (&body["binding_id"], &body["deadline_ms"], &body["config"]["a"]),
            (&json!("support"), &json!(5000), &json!(1))
        );
        let request: agent_host_runs::CreateRun = serde_json::from_value(body).unwrap();
        assert_eq!(request.event.unwrap(), envelope);
        let two = run(&["--binding", "support", "hi", "--file", "f"]).envelope(10_000).unwrap_err();
        assert!(two.to_string().contains("two messages"), "{two}");
    }

    #[test]
    fn a_binding_of_an_executor_needs_a_server() {
        let config = Config::parse(
            "[[bindings]]\nid = \"coder\"\nrunner = \"plugin:a/coder/default\"\n[[bindings]]\nid = \"echo\"\nrunner = \"plugin:a/echo/default\"\n\
             [[harnesses]]\nid = \"plugin:a/coder/default\"\npreset = \"claude-code\"\n",
            Path::new("/etc/agent"),
        );
        let config = config.unwrap();
        assert!(refuse_executors(&config, "coder").unwrap_err().to_string().contains("needs a server"));
        assert!(refuse_executors(&config, "echo").is_ok());
    }

    #[test]
    fn a_text_that_is_too_large_or_none_is_refused() {
        let refusal = |run: Box<Run>, limit| run.envelope(limit).unwrap_err().to_string();
        assert!(refusal(run(&["echo", &"x".repeat(1000)]), 1000).contains("http_body_bytes"));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, [0xff, 0xfe]).unwrap();
        let file = file.to_str().unwrap();
        assert!(refusal(run(&["echo", "--file", file]), 1000).contains("not UTF-8"));
        std::fs::write(file, "x".repeat(1001)).unwrap();
        assert!(refusal(run(&["echo", "--file", file]), 1000).contains("more than 1000 bytes"));
        assert!(refusal(run(&["echo", "--file", "/not/there"]), 1000).contains("cannot be read"));
        assert!(refusal(run(&["echo", "hi", "--conversation", ""]), 1000).contains("conversation_id"));
    }
}
