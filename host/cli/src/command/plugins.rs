//! `agent-host plugins`.

use std::{path::PathBuf, process::ExitCode};

use agent_host_config::Config;
use agent_host_protocol::PluginStatus;
use anyhow::Context;
use clap::Subcommand;
use serde_json::json;

use super::{plugin_text, runners};
use crate::{output::Output, settings::code_dir};

/// Prepare the plugins directory
#[derive(Debug, Subcommand)]
pub(crate) enum Plugins {
    /// Compile all plugins for this program, so that the next start need not
    ///
    /// Before an upgrade, run the new program with the configuration of the host, also while the old one serves: the compiled code goes into
    /// the data directory beside that of the old program. Limits and messages are those of the host. Exits with 1 if the host would
    /// refuse a file.
    Compile {
        /// Folder of the plugins, instead of [server] plugins_dir
        #[arg(long = "plugins", value_name = "DIR")]
        plugins: Option<PathBuf>,
    },
}

impl Plugins {
    pub(crate) async fn execute(self, mut config: Config, output: Output) -> anyhow::Result<ExitCode> {
        let Self::Compile { plugins } = self;
        config.plugins_dir = plugins.unwrap_or(config.plugins_dir);
        let dir = code_dir(&config);
        std::fs::create_dir_all(&config.data_dir)
            .with_context(|| format!("the data directory {} cannot be made", config.data_dir.display()))?;
        let plugins = runners::inspect_plugins(&config, Some(dir), output).await?;
        output.result(&json!({ "plugins": plugins }), || match plugins.as_slice() {
            [] => format!("no .wasm file in {}\n", config.plugins_dir.display()).into(),
            plugins => plugin_text::compiled(plugins),
        })?;
        let is_ready = plugins.iter().all(|plugin| plugin.status == PluginStatus::Ready);
        Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
