//! `agent-host inspect`.

use std::{path::PathBuf, process::ExitCode};

use agent_host_config::Config;
use agent_host_protocol::PluginStatus;
use clap::Args;

use super::plugin_text;
use crate::{output::Output, progress::Progress};

/// Show the runners, imports and permissions of a component
///
/// The file is not installed. Exits with 1 if the host would refuse the file.
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The component
    #[arg(value_name = "FILE.wasm")]
    file: PathBuf,
}

impl Inspect {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        let progress = Progress::spinner(output, "compiling");
        let report = agent_host_runs::inspect(&self.file, &config.limits).await?;
        drop(progress);
        output.result(&report, || plugin_text::details(&report))?;
        Ok(if report.status == PluginStatus::Ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
