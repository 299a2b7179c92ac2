//! `agent-host fork`.

use std::process::ExitCode;

use agent_host_config::Config;
use agent_host_protocol::RunId;
use anyhow::Context;
use clap::Args;
use serde_json::json;

use super::{
    run::{Object, object},
    run_host::RunHost,
    runs::Server,
    show_run::{Shown, exit_code_of, show},
};
use crate::{client::Client, output::Output, signals::Signals};

/// Branch a new run off from another
///
/// The new run shares the first calls of the other: they are answered from its journal and not done again. From there on
/// it is a run of its own, with real calls. A run is made by a host, so this needs its server.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  \
    agent-host runs journal RUN\n  \
    agent-host fork RUN --at 3 --follow\n  \
    agent-host fork RUN --at 0 --input 'another question' --config-json '{\"style\":\"short\"}'")]
pub(crate) struct Fork {
    #[command(flatten)]
    server: Server,
    /// The run that it branches off from
    #[arg(value_name = "RUN")]
    id: RunId,
    /// Number of shared calls; `agent-host runs journal RUN` lists the calls
    #[arg(long, value_name = "N")]
    at: u64,
    /// Configuration of the runner, a JSON object, in place of keys of the run's
    #[arg(long, value_name = "JSON", value_parser = object)]
    config_json: Option<Object>,
    /// Another text of the event
    #[arg(long, value_name = "TEXT")]
    input: Option<String>,
    /// Show it until its end, as `agent-host run` does; exits with 1 if it does not complete. Ctrl-C cancels it
    #[arg(long)]
    follow: bool,
}

impl Fork {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        let client = Client::running(config, self.server.url.as_deref(), "a run is made by a host").await?;
        let config = self.config_json.map(|Object(config)| config);
        let body = json!({ "at": self.at, "config": config, "input": self.input });
        let run = client.fork(self.id, &body).await?;
        if self.follow {
            let mut signals = Signals::listen().context("signals cannot be listened for")?;
            output.remark(&format!("following run {}", run.run_id));
            let run = show(RunHost::Server(&client), run.run_id, Shown::Stream, &mut signals, output).await?;
            return Ok(exit_code_of(&run, output));
        }
        output.result(&run, || {
            let (of, at, id) = (self.id, self.at, run.run_id);
            format!("run {id} shares the first {at} calls of run {of}\nfollow it: agent-host runs events {id} --follow\n")
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
