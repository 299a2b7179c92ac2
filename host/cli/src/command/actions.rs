//! `agent-host actions`.

use std::process::ExitCode;

use agent_host_config::Config;
use agent_host_facts::record::Decision;
use agent_host_protocol::{Page, RunId};
use clap::{
    Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use serde_json::{Value, json};

use super::{
    action_text,
    runs::{Server, page_size},
};
use crate::{client::Client, output::Output};

/// The reason why the command needs a server.
const WHY: &str = "the host that executes the runs takes the answers";

/// Find, show and answer what runs ask people for
///
/// Platform actions that need approval, questions, and effects in doubt. The host that executes the runs answers this
/// command: the server of --server, else the server that has the data directory.
#[derive(Debug, Subcommand)]
pub(crate) enum Actions {
    List(List),
    Show(Show),
    Respond(Respond),
}

/// List the open actions, or all actions of one run
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    server: Server,
    /// All actions of this run, answered or not
    #[arg(long, value_name = "ID", conflicts_with_all = ["limit", "cursor"])]
    run: Option<RunId>,
    /// Largest number of entries
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = page_size())]
    limit: u32,
    /// Go on where a page ended
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

/// Show an action and its outcome
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    server: Server,
    /// The action, as `actions list` names it
    #[arg(value_name = "ACTION", value_parser = action_id)]
    action: String,
}

/// Answer an action of a run
///
/// The first answer counts; a later one fails and shows the first.
#[derive(Debug, Args)]
pub(crate) struct Respond {
    #[command(flatten)]
    server: Server,
    /// The action, as `actions list` and the events of its run name it
    #[arg(value_name = "ACTION", value_parser = action_id)]
    action: String,
    /// The answer: `approve` or `deny` an action, `submit` or `decline` to answer a question, `repeat` or `skip` an effect
    /// in doubt
    #[arg(value_name = "DECISION", value_parser = decision())]
    decision: Decision,
    /// Reason, for the runner and the record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// The answer to a question, as JSON
    #[arg(long, value_name = "JSON", value_parser = json_value)]
    answer: Option<Value>,
    /// Token of an `[[approvers]]` entry that answers, instead of --key
    #[arg(long, env = "AGENT_HOST_APPROVER_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,
}

/// Parses a decision; the help lists them.
fn decision() -> impl TypedValueParser<Value = Decision> {
    PossibleValuesParser::new(Decision::ALL.iter().map(|decision| decision.as_str()))
        .try_map(|name| Decision::from_name(&name).ok_or("there is no such decision"))
}

/// An action id that is safe in a path: a run id, a dot, and a number (`e` before it if the run did not wait).
fn action_id(text: &str) -> Result<String, String> {
    let is_id = text.split_once('.').is_some_and(|(run, name)| {
        run.parse::<RunId>().is_ok() && !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric())
    });
    if is_id { Ok(text.to_owned()) } else { Err("the id of an action is the id of its run, a dot and a number".to_owned()) }
}

/// Any JSON. Left to itself, clap takes every text as a JSON string.
fn json_value(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON ({error}); a text needs quotes: '\"yes\"'"))
}

impl Actions {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::List(list) => list.execute(config, output).await?,
            Self::Show(show) => show.execute(config, output).await?,
            Self::Respond(respond) => respond.execute(config, output).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl List {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let client = Client::running(config, self.server.url.as_deref(), WHY).await?;
        let page: Page<Value> = match self.run {
            Some(run) => client.get(&format!("api/v1/runs/{run}/actions"), &[]).await?,
            None => client.get("api/v1/actions", &[("cursor", self.cursor), ("limit", Some(self.limit.to_string()))]).await?,
        };
        let nothing = if self.run.is_some() { "the run has no actions\n" } else { "there are no open actions\n" };
        Ok(output.result(&page, || if page.items.is_empty() { nothing.into() } else { action_text::table(&page) })?)
    }
}

impl Show {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let client = Client::running(config, self.server.url.as_deref(), WHY).await?;
        let action: Value = client.get(&format!("api/v1/actions/{}", self.action), &[]).await?;
        Ok(output.result(&action, || action_text::details(&action))?)
    }
}

impl Respond {
    pub(super) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<()> {
        let client = Client::running(config, self.server.url.as_deref(), WHY).await?;
        let mut answer = json!({ "decision": self.decision });
        if let Some(members) = answer.as_object_mut() {
            members.extend(self.reason.map(|reason| ("reason".to_owned(), reason.into())));
            members.extend(self.answer.map(|answer| ("answer".to_owned(), answer)));
        }
        let answered = client.respond(&self.action, &answer, self.token.as_deref()).await?;
        Ok(output.result(&answered, || format!("action {} is answered; the run continues\n", self.action))?)
    }
}
