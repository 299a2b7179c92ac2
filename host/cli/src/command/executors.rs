//! `agent-host executors`.

use std::process::ExitCode;

use agent_host_config::Config;
use agent_host_protocol::{Page, time};
use agent_host_runs::{Executor, ExecutorState};
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::Value;

use super::runs::Server;
use crate::{client::Client, output::Output, styled::StyledText, table::Table};

/// The reason why the command needs a server.
const WHY: &str = "executors register with a running host";

/// Show the executors, and take back the runs that one holds
#[derive(Debug, Subcommand)]
pub(crate) enum Executors {
    List(List),
    /// Show one executor
    Show(ExecutorName),
    /// Deregister an executor: its runs go back to the queue
    Deregister(ExecutorName),
}

/// List executors, and whether they are there
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    server: Server,
}

/// One executor.
#[derive(Debug, Args)]
pub(crate) struct ExecutorName {
    #[command(flatten)]
    server: Server,
    /// The executor
    #[arg(value_name = "ID", value_parser = id)]
    id: String,
}

/// An id that is safe in a path.
fn id(text: &str) -> Result<String, String> {
    let named = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric());
    if named { Ok(text.to_owned()) } else { Err("the id of an executor has letters and digits".to_owned()) }
}

impl Executors {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::List(List { server }) => {
                let client = Client::running(config, server.url.as_deref(), WHY).await?;
                let page: Page<Executor> = client.get("api/v1/executors", &[]).await?;
                output.result(&page, || table(&page.items))?;
            }
            Self::Show(ExecutorName { server, id }) => {
                let client = Client::running(config, server.url.as_deref(), WHY).await?;
                let executor: Executor = client.get(&format!("api/v1/executors/{id}"), &[]).await?;
                output.result(&executor, || table(std::slice::from_ref(&executor)))?;
            }
            Self::Deregister(ExecutorName { server, id }) => {
                let client = Client::running(config, server.url.as_deref(), WHY).await?;
                client.request_without_answer(Method::DELETE, &format!("api/v1/executors/{id}")).await?;
                output.result(&Value::Null, || format!("executor {id} is deregistered; its runs go back to the queue\n"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn table(executors: &[Executor]) -> StyledText {
    if executors.is_empty() {
        return "no executor is registered\n".into();
    }
    let mut table = Table::new(["ID", "NAME", "STATE", "HOLDS", "SLOTS", "QUEUES", "LAST SEEN"]);
    for executor in executors {
        let state = match executor.state {
            ExecutorState::Online => "online",
            ExecutorState::Stale => "stale",
            ExecutorState::Gone => "gone",
        };
        let queues = if executor.queues.is_empty() { "all".to_owned() } else { executor.queues.join(", ") };
        table.row([
            executor.executor_id.clone(),
            executor.name.clone(),
            state.to_owned(),
            executor.held.len().to_string(),
            executor.slots.to_string(),
            queues,
            time::display(executor.last_seen_at),
        ]);
    }
    table.render()
}
