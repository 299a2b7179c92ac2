//! `agent-host schedules`.

use std::process::ExitCode;

use agent_host_config::Config;
use agent_host_protocol::{Page, time};
use clap::{Args, Subcommand};
use serde_json::Value;

use super::runs::Server;
use crate::{client::Client, output::Output, styled::StyledText, table::Table, text};

/// The reason why the command needs a server.
const WHY: &str = "schedules tick at the host that serves";

/// Show the schedules
#[derive(Debug, Subcommand)]
pub(crate) enum Schedules {
    List(List),
}

/// List the schedules, with their last and next ticks
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    server: Server,
}

impl Schedules {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        let Self::List(list) = self;
        let client = Client::running(config, list.server.url.as_deref(), WHY).await?;
        let page: Page<Value> = client.get("api/v1/schedules", &[]).await?;
        output.result(&page, || if page.items.is_empty() { "there are no schedules\n".into() } else { table(&page) })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn table(page: &Page<Value>) -> StyledText {
    let mut table = Table::new(["SCHEDULE", "WHEN", "NEXT", "LAST", "EVENT", "PROBLEM"]);
    for schedule in &page.items {
        let member = |name: &str| text::member(schedule, &format!("/{name}"));
        let column = |name: &str| member(name).as_str().map_or_else(|| "-".to_owned(), ToOwned::to_owned);
        let at = |name: &str| member(name).as_u64().map_or_else(|| "-".to_owned(), time::display);
        let when = match member("every_ms").as_u64() {
            Some(every) => format!("every {every} ms"),
            None => format!("{} {}", column("cron"), column("timezone")),
        };
        let next = if *member("enabled") == Value::Bool(false) { "disabled".to_owned() } else { at("next_tick_at") };
        table.row([column("id"), when, next, at("last_tick_at"), column("last_event_id"), column("problem")]);
    }
    table.render()
}
