//! `agent-host harness`.

use std::{process::ExitCode, sync::Arc};

use agent_host_config::{AddressRules, Config, EnvValue, HarnessConfig};
use agent_host_harness::{Diagnosis, Harness, HarnessSetup, Transport, Variable, diagnose};
use agent_host_providers::secret::{Secret, SecretError};
use anyhow::Context;
use clap::{Args, Subcommand};
use futures_util::future::join_all;
use reqwest::Url;

use crate::{
    failure::Failure, harness_transport::HttpTransport, output::Output, signals::Signals, styled::StyledText, table::Table,
};

/// The argument by which this program becomes the launcher of an agent's process.
pub(crate) const LAUNCHER: &str = "harness-exec";

/// Run the coding agents of [[harnesses]] for a host elsewhere
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    long_about = "Run the coding agents of [[harnesses]] for a host elsewhere.\n\n\
        Registers each harness of the configuration as an executor of the host, and starts a process of its agent for each run. \
        `agent-host serve` does the same for its own configuration, within its process.\n\n\
        The key (--key, AGENT_HOST_KEY) needs the scope runs:execute. SIGINT or SIGTERM ends it: its runs go back to the queue.",
    after_long_help = "Examples:\n  \
        agent-host harness --server http://10.0.0.5:7070\n  \
        agent-host harness doctor"
)]
pub(crate) struct HarnessCommand {
    /// URL of the host
    #[arg(long, value_name = "URL", required = true)]
    server: Option<Url>,
    #[command(subcommand)]
    action: Option<HarnessAction>,
}

#[derive(Debug, Subcommand)]
enum HarnessAction {
    /// Examine the coding agents of this machine: do they start, in which version, and what is missing?
    ///
    /// Starts each agent and lets it introduce itself; nothing is sent to a model. Exits with 1 if one does not start.
    Doctor,
}

impl HarnessCommand {
    pub(crate) async fn execute(self, config: &Config, key: Option<String>, output: Output) -> anyhow::Result<ExitCode> {
        if config.harnesses.is_empty() {
            let message = "the configuration has no [[harnesses]]: docs/HARNESSES.md shows one for each coding agent";
            return Err(Failure::new("no_harness", message).into());
        }
        match (self.action, self.server) {
            (Some(HarnessAction::Doctor), _) | (None, None) => doctor(config, output).await,
            (None, Some(server)) => serve(config, &server, key, output).await,
        }
    }
}

async fn serve(config: &Config, server: &Url, key: Option<String>, output: Output) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen().context("signals cannot be listened for")?;
    let transport: Arc<dyn Transport> = Arc::new(HttpTransport::new(server, key.unwrap_or_default())?);
    let harnesses = start(config, &transport)?;
    output.remark(&format!("coding agents execute runs of {server}: {}", harnesses.len()));
    signals.next().await;
    output.remark("ending: runs go back to the queue");
    join_all(harnesses.into_iter().map(Harness::end)).await;
    Ok(ExitCode::SUCCESS)
}

async fn doctor(config: &Config, output: Output) -> anyhow::Result<ExitCode> {
    let setups = config.harnesses.iter().map(|harness| setup(config, harness)).collect::<Result<Vec<_>, _>>()?;
    let all = join_all(setups.into_iter().map(diagnose)).await;
    output.result(&all, || text(&all))?;
    let is_well = all.iter().all(|diagnosis| diagnosis.problem.is_none());
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(all: &[Diagnosis]) -> StyledText {
    let mut table = Table::new(["HARNESS", "AGENT", "VERSION", "ISOLATION", "RESUMES", "MCP", "STATE"]);
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    for diagnosis in all {
        let isolation = serde_json::to_string(&diagnosis.isolation).unwrap_or_default();
        table.row([
            diagnosis.harness.clone(),
            diagnosis.agent.clone().unwrap_or_else(|| "-".to_owned()),
            diagnosis.version.clone().unwrap_or_else(|| "-".to_owned()),
            isolation.trim_matches('"').to_owned(),
            yes(diagnosis.resumes),
            yes(diagnosis.mcp),
            if diagnosis.problem.is_none() { "ready" } else { "unavailable" }.to_owned(),
        ]);
    }
    let problems = all.iter().filter_map(|it| Some(format!("\n{}: {}\n", it.harness, it.problem.as_ref()?)));
    table.render() + problems.collect::<String>()
}

/// Starts every harness of the configuration.
pub(crate) fn start(config: &Config, transport: &Arc<dyn Transport>) -> anyhow::Result<Vec<Harness>> {
    let setups = config.harnesses.iter().map(|harness| setup(config, harness)).collect::<Result<Vec<_>, _>>()?;
    setups.into_iter().map(|setup| Ok(Harness::start(setup, Arc::clone(transport))?)).collect()
}

/// A harness with its secrets and its launcher, which is this very program.
fn setup(config: &Config, harness: &HarnessConfig) -> anyhow::Result<HarnessSetup> {
    let read = |(name, value): (&String, &EnvValue)| -> Result<Variable, SecretError> {
        let (value, is_secret) = match value {
            EnvValue::Plain(text) => (text.clone(), false),
            EnvValue::Secret(reference) => (Secret::read(reference)?.expose().to_owned(), true),
        };
        Ok(Variable { name: name.clone(), value, is_secret })
    };
    let env = harness.env.iter().map(read).collect::<Result<_, _>>();
    let env = env.with_context(|| format!("the environment of the harness `{}` is not complete", harness.id))?;
    let program = std::env::current_exe().context("the file of this program cannot be found")?;
    let launcher = vec![program.into_os_string(), LAUNCHER.into()];
    let addresses = AddressRules::new(&config.egress.allow_addresses).map_err(anyhow::Error::msg)?;
    let (config, data_dir) = (harness.clone(), config.data_dir.clone());
    Ok(HarnessSetup { config, env, data_dir, launcher, addresses: Arc::new(addresses) })
}
