//! `agent-host runs create | retry` and `agent-host dead-letters`: runs that are made on a running host.

use std::process::ExitCode;

use agent_host_config::Config;
use agent_host_protocol::{EventId, Page, Run, RunId, RunnerId, time};
use agent_host_runs::DeadLetter;
use anyhow::Context;
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::{
    run_host::RunHost,
    runs::{Server, page_size},
    show_run::{Shown, exit_code_of, show},
};
use crate::{client::Client, output::Output, signals::Signals, styled::StyledText, table::Table};

/// The reason why the command needs a server.
const WHY: &str = "a run is made by the host that runs it";

/// Make a run
///
/// The run belongs to a binding of the configuration, or to a runner without a binding. The run answers a message, or an
/// existing event.
#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(flatten)]
    server: Server,
    /// The binding of the run
    #[arg(long, value_name = "ID", required_unless_present = "runner", conflicts_with = "runner")]
    binding: Option<String>,
    /// The runner, without a binding
    #[arg(long, value_name = "ID")]
    runner: Option<RunnerId>,
    /// The message for the run
    #[arg(value_name = "TEXT", required_unless_present = "event", conflicts_with = "event")]
    text: Option<String>,
    /// The event for the run
    #[arg(long, value_name = "ID")]
    event: Option<EventId>,
    /// The conversation of the message
    #[arg(long, value_name = "ID", conflicts_with = "event")]
    conversation: Option<String>,
    /// Replaces keys of the configuration of the binding
    #[arg(long, value_name = "JSON", value_parser = object)]
    config_json: Option<Map<String, Value>>,
    /// `now`, `queue` or `external`
    #[arg(long, value_name = "WHEN", value_parser = ["now", "queue", "external"])]
    start: Option<String>,
    /// The queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Runs with a higher one come first
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
    /// Time limit of the run, in ms
    #[arg(long, value_name = "MS")]
    deadline_ms: Option<u64>,
    /// Wait for the end of the run, and show its text or, with --json, the run; exits with 1 if it does not complete. Ctrl-C
    /// cancels it
    #[arg(long, conflicts_with = "stream")]
    wait: bool,
    /// Show the run as it goes, as `agent-host run` does; exits with 1 if it does not complete. Ctrl-C cancels it
    #[arg(long)]
    stream: bool,
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("a JSON object: {error}"))
}

impl Create {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        let mut signals =
            (self.wait || self.stream).then(Signals::listen).transpose().context("signals cannot be listened for")?;
        let shown = if self.stream { Shown::Stream } else { Shown::End };
        let mut body = Map::new();
        let mut insert = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(name.to_owned(), value);
            }
        };
        insert("binding_id", self.binding.map(Value::from));
        insert("runner_id", self.runner.map(|runner| runner.to_string().into()));
        insert("event_id", self.event.map(|event| event.to_string().into()));
        insert("input", self.text.map(|text| json!({ "text": text })));
        insert("conversation", self.conversation.map(|id| json!({ "conversation_id": id })));
        insert("config", self.config_json.map(Value::Object));
        insert("start", self.start.map(Value::from));
        insert("deadline_ms", self.deadline_ms.map(Value::from));
        let mut queue = Map::new();
        queue.extend(self.queue.map(|name| ("name".to_owned(), name.into())));
        queue.extend(self.priority.map(|priority| ("priority".to_owned(), priority.into())));
        insert("queue", (!queue.is_empty()).then_some(Value::Object(queue)));
        let client = Client::running(config, self.server.url.as_deref(), WHY).await?;
        let run: Run = client.ask(Method::POST, "api/v1/runs", &[], Some(&Value::Object(body))).await?;
        if let Some(signals) = &mut signals {
            output.remark(&format!("following run {}", run.run_id));
            let run = show(RunHost::Server(&client), run.run_id, shown, signals, output).await?;
            return Ok(exit_code_of(&run, output));
        }
        output.result(&run, || format!("run {} is {}\n", run.run_id, run.status))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Try a run again that has ended
#[derive(Debug, Args)]
pub(crate) struct Retry {
    #[command(flatten)]
    server: Server,
    /// The run
    #[arg(value_name = "ID")]
    id: RunId,
}

impl Retry {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let client = Client::running(config, self.server.url.as_deref(), WHY).await?;
        let run: Run = client.ask(Method::POST, &format!("api/v1/runs/{}/retry", self.id), &[], None).await?;
        Ok(output.result(&run, || format!("run {} is another attempt at it; it is {}\n", run.run_id, run.status))?)
    }
}

/// Show dead letters, and requeue them
#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetters {
    List(List),
    Requeue(Requeue),
}

/// List dead letters, oldest first
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    server: Server,
    /// Runs of this queue alone
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Largest number of entries
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = page_size())]
    limit: u32,
    /// Go on where a page ended
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

/// Requeue a dead letter, as another attempt
#[derive(Debug, Args)]
pub(crate) struct Requeue {
    #[command(flatten)]
    server: Server,
    /// The run
    #[arg(value_name = "ID")]
    id: RunId,
}

impl DeadLetters {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::List(list) => {
                let client = Client::running(config, list.server.url.as_deref(), WHY).await?;
                let query = [("queue", list.queue), ("limit", Some(list.limit.to_string())), ("cursor", list.cursor)];
                let page: Page<DeadLetter> = client.get("api/v1/dead-letters", &query).await?;
                output.result(&page, || table(&page))?;
            }
            Self::Requeue(Requeue { server, id }) => {
                let client = Client::running(config, server.url.as_deref(), WHY).await?;
                let run: Run = client.ask(Method::POST, &format!("api/v1/dead-letters/{id}/requeue"), &[], None).await?;
                output.result(&run, || format!("run {} is another attempt at it; it is {}\n", run.run_id, run.status))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn table(page: &Page<DeadLetter>) -> StyledText {
    if page.items.is_empty() {
        return "there are no dead letters\n".into();
    }
    let mut table = Table::new(["RUN", "QUEUE", "BINDING", "ATTEMPTS", "GIVEN UP", "WHY"]);
    for letter in &page.items {
        table.row([
            letter.run_id.to_string(),
            letter.queue.clone(),
            letter.binding_id.clone(),
            letter.attempts.to_string(),
            time::display(letter.at),
            letter.failure.code.clone(),
        ]);
    }
    let mut rendered = table.render();
    if let Some(cursor) = page.next_cursor.as_ref().filter(|_| page.has_more) {
        rendered.push_str(&format!("more: --cursor {cursor}\n"));
    }
    rendered
}
