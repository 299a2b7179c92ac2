//! `agent-host import`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use agent_host_config::Config;
use agent_host_ledger::OpenError;
use agent_host_protocol::{Run, context::Conversation, event::Envelope};
use agent_host_runs::{Host, NewImport, StartError, facts::import::Form};
use anyhow::Context;
use clap::Args;

use super::runs::Server;
use crate::{client::Client, failure::Failure, output::Output, progress::Progress};

/// Time for other waiting runs of the ledger to end after the import.
const GRACE: Duration = Duration::from_secs(2);
/// Pause before a server is asked again whether the run has ended.
const PAUSE: Duration = Duration::from_millis(500);

/// Import a capture of another agent framework
///
/// The native events of the capture become the results of a run in the one log, and the capture is kept as its artifact.
/// The same capture again is the same run, and adds nothing. Needs no server; where one holds the ledger, it is asked.
#[derive(Debug, Args)]
#[command(after_long_help = "Forms:\n  \
    ai-sdk         chunks of a UI message stream or parts of fullStream (npm `ai`)\n  \
    openai-agents  stream events of the OpenAI Agents SDK, for Python or JavaScript\n  \
    langgraph      parts of a stream of LangGraph, for Python or JavaScript\n  \
    mcp            JSON-RPC messages of a session of the Model Context Protocol\n\n\
    Examples:\n  \
    agent-host import --from ai-sdk stream.jsonl\n  \
    agent-host import --from langgraph run.json --conversation support-7\n  \
    agent-host threads events RUN")]
pub(crate) struct Import {
    #[command(flatten)]
    server: Server,
    /// The form of its events: `ai-sdk`, `openai-agents`, `langgraph` or `mcp`
    #[arg(long, value_name = "FORM", value_parser = form)]
    from: Form,
    /// The capture: one JSON value a line, one JSON array, or server-sent events
    file: PathBuf,
    /// The conversation that the run is a turn of; without it, the run is a thread of its own
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
    /// The workspace that it belongs to
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
}

fn form(name: &str) -> Result<Form, String> {
    let known = || Form::ALL.iter().map(|form| form.as_str()).collect::<Vec<_>>().join(", ");
    Form::from_name(name).ok_or_else(|| format!("the form is one of {}", known()))
}

impl Import {
    pub(crate) async fn execute(self, config: Config, output: Output) -> anyhow::Result<ExitCode> {
        let content = self.content(config.limits.upload_bytes.min(config.limits.artifact_bytes))?;
        let progress = Progress::spinner(output, "importing");
        let run = match self.server.url.as_deref() {
            Some(url) => self.send(&Client::new(url)?, content).await?,
            None => match Host::start_with(config.clone(), super::compiler()).await {
                Ok(host) => {
                    let run = self.write(&host, content).await;
                    host.shutdown(GRACE).await;
                    run?
                }
                Err(StartError::Ledger(OpenError::AlreadyOpen { .. })) => {
                    let why = "another process has the ledger open, so its server imports";
                    self.send(&Client::running(&config, None, why).await?, content).await?
                }
                Err(error) => return Err(error.into()),
            },
        };
        drop(progress);
        output.result(&run, || {
            let (id, events) = (run.run_id, run.last_sequence);
            let why =
                run.failure.as_ref().map_or_else(String::new, |failure| format!(" ({}): {}", failure.code, failure.message));
            let thread = run.conversation_id.clone().unwrap_or_else(|| id.to_string());
            format!("run {id}: {}{why}, {events} events\nits facts: agent-host threads events {thread}\n", run.status)
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn content(&self, limit: u64) -> anyhow::Result<Vec<u8>> {
        let cannot_read = || format!("{} cannot be read", self.file.display());
        let size = fs::metadata(&self.file).with_context(cannot_read)?.len();
        if size > limit {
            let message = format!(
                "{} has {size} bytes; a capture has at most {limit} ([limits] upload_bytes in agent-host.toml)",
                self.file.display()
            );
            return Err(Failure::new("payload_too_large", message).into());
        }
        fs::read(&self.file).with_context(cannot_read)
    }

    /// Has a server import the capture.
    async fn send(&self, client: &Client, content: Vec<u8>) -> anyhow::Result<Run> {
        let query = [
            ("form", Some(self.from.as_str().to_owned())),
            ("name", self.name()),
            ("conversation_id", self.conversation.clone()),
            ("workspace_id", self.workspace.clone()),
        ];
        let mut run: Run = client.upload("api/v1/imports", &query, "application/x-ndjson", content).await?;
        while !run.status.is_terminal() {
            tokio::time::sleep(PAUSE).await;
            run = client.get(&format!("api/v1/runs/{}", run.run_id), &[]).await?;
        }
        Ok(run)
    }

    /// Imports the capture into the ledger of this process.
    async fn write(&self, host: &Host, content: Vec<u8>) -> anyhow::Result<Run> {
        let mut envelope = Envelope::message("", "api");
        if self.conversation.is_some() || self.workspace.is_some() {
            let (conversation_id, workspace_id) = (self.conversation.clone(), self.workspace.clone());
            envelope.conversation = Some(Conversation { conversation_id, workspace_id, ..Conversation::default() });
        }
        envelope.check().map_err(|problem| Failure::new("invalid_argument", problem))?;
        let records = host.record_writer();
        let written = tokio::task::spawn_blocking(move || {
            let mut writer = records.blob_writer(content.len() as u64)?;
            writer.write(&content).map(|()| writer)
        });
        let new = NewImport { form: self.from, content: written.await??, name: self.name(), conversation: envelope.conversation };
        let imported = host.import(new).await?;
        loop {
            let run = host.wait(imported.run_id, PAUSE).await?;
            if run.status.is_terminal() {
                return Ok((*run).clone());
            }
        }
    }

    fn name(&self) -> Option<String> {
        Path::new(&self.file).file_name().map(|name| name.to_string_lossy().into_owned())
    }
}
