//! `agent-host runs`.

use std::{fs::File, io::Write, path::PathBuf, process::ExitCode};

use agent_host_config::Config;
use agent_host_ledger::{Ledger, RunFilter};
use agent_host_protocol::{EventId, Page, Run, RunEvent, RunId, RunStatus, RunnerId, limits::MAX_PAGE};
use agent_host_runs::ListedRun;
use anyhow::Context;
use clap::{Args, Subcommand};
use futures_util::StreamExt;
use serde_json::{json, value::RawValue};

use super::{actions, create, event_text, journal_text, run_logs, run_text};
use crate::{client::Client, output::Output, source::Source, text};

/// Make, find, show, follow, record, retry and cancel runs
///
/// Asks the server of --server. Without it, reads the ledger; if a server holds the ledger, asks
/// that server.
#[derive(Debug, Subcommand)]
pub(crate) enum Runs {
    List(List),
    Show(Show),
    Events(Events),
    Logs(run_logs::Logs),
    Journal(Journal),
    Record(Record),
    Cancel(Cancel),
    Create(Box<create::Create>),
    Retry(create::Retry),
    /// Answer an action of a run: the same as `agent-host actions respond`
    Respond(actions::Respond),
}

/// The choice of the server.
#[derive(Debug, Args)]
pub(crate) struct Server {
    /// Ask this server
    #[arg(long = "server", value_name = "URL", env = "AGENT_HOST_SERVER")]
    pub(crate) url: Option<String>,
}

/// List runs, newest first
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    server: Server,
    /// Runs with this status
    #[arg(long, value_name = "STATUS", value_parser = status)]
    status: Option<RunStatus>,
    /// Runs of this runner
    #[arg(long, value_name = "ID")]
    runner: Option<RunnerId>,
    /// Runs of this binding
    #[arg(long, value_name = "ID")]
    binding: Option<String>,
    /// Runs of this conversation
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
    /// Runs of this workspace
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
    /// Runs of this event
    #[arg(long, value_name = "ID")]
    event: Option<EventId>,
    /// Children of this run
    #[arg(long, value_name = "ID")]
    parent: Option<RunId>,
    /// Largest number of entries
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = page_size())]
    limit: u32,
    /// Go on where a page ended
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

/// Show one run
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    server: Server,
    /// The run
    #[arg(value_name = "ID")]
    id: RunId,
    /// Show what its runner was given instead
    #[arg(long)]
    context: bool,
}

/// Show the events of a run
#[derive(Debug, Args)]
pub(crate) struct Events {
    #[command(flatten)]
    server: Server,
    /// The run
    #[arg(value_name = "ID")]
    id: RunId,
    /// Show all events, then each new one, to the end of the run
    #[arg(long, conflicts_with = "limit")]
    follow: bool,
    /// Events after this cursor
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Largest number of entries
    #[arg(long, value_name = "N", default_value_t = MAX_PAGE, value_parser = page_size())]
    limit: u32,
}

/// Show the host calls of a run, each with its answer
///
/// The command executes no call: `agent-host replay` does that.
#[derive(Debug, Args)]
pub(crate) struct Journal {
    #[command(flatten)]
    server: Server,
    /// The run
    #[arg(value_name = "ID")]
    id: RunId,
}

/// Save all that is needed to execute a run again, as a file for `agent-host replay`
///
/// The recording contains the input of the runner and the answers of its calls, so treat it like the conversation.
#[derive(Debug, Args)]
pub(crate) struct Record {
    #[command(flatten)]
    server: Server,
    /// The run
    #[arg(value_name = "ID")]
    id: RunId,
    /// File for the output, instead of standard output; an existing file is not overwritten
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Ask for the end of a run
///
/// A run is cancelled by the host that runs it, so this needs its server.
#[derive(Debug, Args)]
pub(crate) struct Cancel {
    #[command(flatten)]
    server: Server,
    /// The run
    #[arg(value_name = "ID")]
    id: RunId,
    /// Reason; stored with the run
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub(super) fn page_size() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(MAX_PAGE))
}

fn status(name: &str) -> Result<RunStatus, String> {
    RunStatus::from_name(name).ok_or_else(|| format!("one of: {}", RunStatus::ALL.map(RunStatus::as_str).join(", ")))
}

impl Runs {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::List(list) => list.execute(config, output).await?,
            Self::Show(show) => show.execute(config, output).await?,
            Self::Events(events) => events.execute(config, output).await?,
            Self::Logs(logs) => logs.execute(config, output).await?,
            Self::Journal(journal) => journal.execute(config, output).await?,
            Self::Record(record) => record.execute(config, output).await?,
            Self::Cancel(cancel) => cancel.execute(config, output).await?,
            Self::Create(create) => return create.execute(config, output).await,
            Self::Retry(retry) => retry.execute(config, output).await?,
            Self::Respond(respond) => respond.execute(config, output).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl List {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let source = Source::open(config, self.server.url.as_deref()).await?;
        let filter = RunFilter {
            status: self.status,
            runner_id: self.runner,
            binding_id: self.binding,
            conversation_id: self.conversation,
            workspace_id: self.workspace,
            event_id: self.event,
            parent_run_id: self.parent,
        };
        let page: Page<ListedRun> = source.runs(&filter, self.cursor.as_deref(), self.limit).await?;
        Ok(output.result(&page, || run_text::table(&page))?)
    }
}

impl Show {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let source = Source::open(config, self.server.url.as_deref()).await?;
        if self.context {
            let context = source.context(self.id).await?;
            return Ok(output.result(&context, || pretty(&context))?);
        }
        let run = source.run(self.id).await?;
        // JSON is the run as the HTTP API gives it.
        let texts = if output.is_json() { run_text::Texts::default() } else { texts(&source, &run).await? };
        Ok(output.result(&run, || run_text::details(&run, &texts))?)
    }
}

/// The texts of a run, as far as the last page of its events has its last message.
async fn texts(source: &Source, run: &Run) -> anyhow::Result<run_text::Texts> {
    let input = source.input(run.event_id).await?;
    let start = run.last_sequence.saturating_sub(MAX_PAGE.into());
    let after = (start > 0).then(|| Ledger::run_cursor(run.run_id, start));
    let page = source.events(run.run_id, after.as_deref(), MAX_PAGE).await?;
    let output = page.items.iter().rev().find_map(event_text::message).map(|message| message.text());
    Ok(run_text::Texts { input, output })
}

fn pretty(json: &RawValue) -> String {
    let value: Result<serde_json::Value, _> = serde_json::from_str(json.get());
    let pretty = value.and_then(|value| serde_json::to_string_pretty(&value));
    pretty.unwrap_or_else(|_| json.get().to_owned()) + "\n"
}

impl Events {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let source = Source::open(config, self.server.url.as_deref()).await?;
        if self.follow {
            return self.follow(&source, output).await;
        }
        let page = source.events(self.id, self.after.as_deref(), self.limit).await?;
        Ok(output.result(&page, || {
            let mut output_text: String = page.items.iter().map(event_text::line).collect();
            if let Some(cursor) = page.next_cursor.as_ref().filter(|_| page.has_more) {
                output_text.push_str(&format!("more: --after {cursor}\n"));
            }
            output_text
        })?)
    }

    /// Every event, each as a line.
    async fn follow(self, source: &Source, output: Output) -> anyhow::Result<()> {
        let show = |event: &RunEvent| output.result(event, || event_text::line(event));
        if let Source::Server(client) = source {
            let mut events = std::pin::pin!(client.follow(self.id, self.after));
            while let Some(event) = events.next().await {
                show(&event?)?;
            }
            return Ok(());
        }
        // No event can come while this process holds the ledger.
        let mut after = self.after;
        loop {
            let page = source.events(self.id, after.as_deref(), MAX_PAGE).await?;
            for event in &page.items {
                show(event)?;
            }
            after = page.next_cursor.filter(|_| page.has_more);
            if after.is_none() {
                break;
            }
        }
        if !source.run(self.id).await?.status.is_terminal() {
            output.remark("the run has not ended, and no server runs it now: it continues or is closed when one starts");
        }
        Ok(())
    }
}

impl Journal {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let calls = Source::open(config, self.server.url.as_deref()).await?.calls(self.id).await?;
        if output.is_json() {
            return calls.iter().try_for_each(|call| Ok(output.json_line(call)?));
        }
        Ok(output.text(journal_text::timeline(&calls))?)
    }
}

impl Record {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let recording = Source::open(config, self.server.url.as_deref()).await?.recording(self.id).await?;
        let Some(path) = &self.out else { return Ok(output.json_line(&recording)?) };
        let mut bytes = serde_json::to_vec(&recording)?;
        bytes.push(b'\n');
        let cannot_write = || format!("{} cannot be written", path.display());
        let mut file = File::create_new(path).with_context(cannot_write)?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).with_context(cannot_write).inspect_err(|_| {
            // Half a recording is useless. If the file cannot be removed, the error still reports the failure.
            let _ = std::fs::remove_file(path);
        })?;
        let calls = recording.calls()?.iter().filter(|call| call.part == 0).count();
        let value = json!({ "file": path.display().to_string(), "calls": calls, "bytes": bytes.len() });
        Ok(output.result(&value, || format!("{calls} calls, {} in {}\n", text::bytes(bytes.len() as u64), path.display()))?)
    }
}

impl Cancel {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let why = "a run is cancelled by the host that runs it";
        let client = Client::running(config, self.server.url.as_deref(), why).await?;
        let run = client.cancel(self.id, self.reason.as_deref()).await?;
        Ok(output.result(&run, || format!("the cancel of run {} is requested; its status is {}\n", run.run_id, run.status))?)
    }
}
