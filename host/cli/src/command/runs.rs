//! `agent-host runs`.

use std::process::ExitCode;

use agent_host_ledger::RunFilter;
use agent_host_protocol::{EventId, Page, Run, RunEvent, RunId, RunStatus, RunnerId, limits::MAX_PAGE};
use agent_host_runs::Config;
use clap::{Args, Subcommand};
use futures_util::StreamExt;
use serde_json::value::RawValue;

use super::{event_text, run_text};
use crate::{client::Client, failure::Failure, output::Output, settings::local_url, source::Source};

/// Find, show, follow and cancel runs
///
/// Asks the server that --server names. Without it, reads the ledger; where another process has that open, asks
/// the server that the configuration tells of.
#[derive(Debug, Subcommand)]
pub(crate) enum Runs {
    List(List),
    Show(Show),
    Events(Events),
    Cancel(Cancel),
}

/// Which server.
#[derive(Debug, Args)]
struct Server {
    /// Ask this server
    #[arg(long = "server", value_name = "URL", env = "AGENT_HOST_SERVER")]
    url: Option<String>,
}

/// List runs, newest first
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    server: Server,
    /// Only runs with this status
    #[arg(long, value_name = "STATUS", value_parser = status)]
    status: Option<RunStatus>,
    /// Only runs of this runner
    #[arg(long, value_name = "ID")]
    runner: Option<RunnerId>,
    /// Only runs of this binding
    #[arg(long, value_name = "ID")]
    binding: Option<String>,
    /// Only runs of this conversation
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
    /// Only runs of this workspace
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
    /// Only runs that answer this event
    #[arg(long, value_name = "ID")]
    event: Option<EventId>,
    /// How many
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
    /// Show all, and go on as they come, to the end of the run
    #[arg(long, conflicts_with = "limit")]
    follow: bool,
    /// Only events after this cursor
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// How many
    #[arg(long, value_name = "N", default_value_t = MAX_PAGE, value_parser = page_size())]
    limit: u32,
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
    /// Why; kept with the run
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

fn page_size() -> clap::builder::RangedI64ValueParser<u32> {
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
            Self::Cancel(cancel) => cancel.execute(config, output).await?,
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
        };
        let page: Page<Run> = source.runs(&filter, self.cursor.as_deref(), self.limit).await?;
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
        Ok(output.result(&run, || run_text::details(&run))?)
    }
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
            let mut shown: String = page.items.iter().map(event_text::line).collect();
            if let Some(cursor) = page.next_cursor.as_ref().filter(|_| page.has_more) {
                shown.push_str(&format!("more: --after {cursor}\n"));
            }
            shown
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
        // Nothing can come while this process has the ledger.
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
            output.remark("the run has not ended, and no server runs it now: it goes on, or is closed, when one starts");
        }
        Ok(())
    }
}

impl Cancel {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let client = match &self.server.url {
            Some(url) => Client::new(url)?,
            None => {
                let client = Client::new(&local_url(config.listen))?;
                if !client.answers().await {
                    let message = format!(
                        "no server answers at {}: a run is cancelled by the host that runs it; name its server with --server URL",
                        client.url()
                    );
                    return Err(Failure::new("no_server", message).into());
                }
                client
            }
        };
        let run = client.cancel(self.id, self.reason.as_deref()).await?;
        Ok(output.result(&run, || format!("run {} is asked to end; it is {}\n", run.run_id, run.status))?)
    }
}
