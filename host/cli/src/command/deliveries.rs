//! `agent-host deliveries`.

use std::process::ExitCode;

use agent_host_config::Config;
use agent_host_protocol::{Page, RunId, time};
use agent_host_runs::DeliveryState;
use clap::{Args, Subcommand};
use serde_json::Value;

use super::runs::{Server, page_size};
use crate::{client::Client, output::Output, styled::StyledText, table::Table, text};

/// The reason why the command needs a server.
const WHY: &str = "the host that executes the runs delivers the results";

/// Show the deliveries to webhooks that are pending or dead letters, and try them again
///
/// Finished deliveries are not listed. Dead letters are deliveries that were given up: the webhook refused a request
/// `max_attempts` times, or was removed.
#[derive(Debug, Subcommand)]
pub(crate) enum Deliveries {
    List(List),
    Retry(Retry),
}

/// List unfinished deliveries, oldest run first
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    server: Server,
    /// Deliveries in this state: `pending` or `dead`
    #[arg(long, value_name = "STATE", value_parser = state)]
    state: Option<DeliveryState>,
    /// Deliveries to this webhook
    #[arg(long, value_name = "NAME")]
    webhook: Option<String>,
    /// Deliveries of this run
    #[arg(long, value_name = "ID")]
    run: Option<RunId>,
    /// Largest number of entries
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = page_size())]
    limit: u32,
    /// Go on where a page ended
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

/// Retry a dead letter, or a delivery that waits for its next attempt
#[derive(Debug, Args)]
pub(crate) struct Retry {
    #[command(flatten)]
    server: Server,
    /// The run
    #[arg(value_name = "RUN")]
    run: RunId,
    /// The webhook, by its name
    #[arg(value_name = "WEBHOOK", value_parser = name)]
    webhook: String,
}

fn state(text: &str) -> Result<DeliveryState, String> {
    DeliveryState::from_name(text).ok_or_else(|| "the states are `pending` and `dead`".to_owned())
}

/// A name that is safe in a path.
fn name(text: &str) -> Result<String, String> {
    let named = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    if named { Ok(text.to_owned()) } else { Err("a webhook has letters, digits, `.`, `_` and `-` in its name".to_owned()) }
}

impl Deliveries {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::List(list) => list.execute(config, output).await?,
            Self::Retry(retry) => retry.execute(config, output).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl List {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let client = Client::running(config, self.server.url.as_deref(), WHY).await?;
        let query = [
            ("state", self.state.map(|state| state.as_str().to_owned())),
            ("webhook", self.webhook),
            ("run_id", self.run.map(|run| run.to_string())),
            ("limit", Some(self.limit.to_string())),
            ("cursor", self.cursor),
        ];
        let page: Page<Value> = client.get("api/v1/deliveries", &query).await?;
        Ok(output
            .result(&page, || if page.items.is_empty() { "there are no unfinished deliveries\n".into() } else { table(&page) })?)
    }
}

impl Retry {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let client = Client::running(config, self.server.url.as_deref(), WHY).await?;
        let delivery = client.retry_delivery(self.run, &self.webhook).await?;
        Ok(output.result(&delivery, || format!("the delivery of run {1} to `{0}` is sent again\n", self.webhook, self.run))?)
    }
}

fn table(page: &Page<Value>) -> StyledText {
    let mut table = Table::new(["RUN", "WEBHOOK", "STATE", "TOLD", "FAILED", "NEXT", "WHY"]);
    for delivery in &page.items {
        let member = |name: &str| text::member(delivery, &format!("/{name}"));
        let column = |name: &str| member(name).as_str().map(ToOwned::to_owned);
        table.row([
            column("run_id").unwrap_or_default(),
            column("webhook").unwrap_or_default(),
            column("state").unwrap_or_default(),
            member("cursor").to_string(),
            member("attempts").to_string(),
            member("next_at").as_u64().map_or_else(|| "-".to_owned(), time::display),
            column("problem").or_else(|| column("last_error")).unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    let mut rendered = table.render();
    if let Some(cursor) = page.next_cursor.as_ref().filter(|_| page.has_more) {
        rendered.push_str(&format!("more: --cursor {cursor}\n"));
    }
    rendered
}
