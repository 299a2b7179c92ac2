//! `agent-host config`.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use crate::{output::Output, settings::Settings};

/// Look after the configuration
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Read the configuration, say what is wrong with it, show what is in effect
    ///
    /// Runners are not loaded, so a binding to a runner that is not installed passes; `agent-host serve` reports it.
    Check,
}

impl ConfigCommand {
    pub(crate) fn execute(&self, settings: &Settings, output: Output) -> anyhow::Result<ExitCode> {
        let Self::Check = self;
        let file = settings.file.as_ref().map(|file| file.display().to_string());
        // In the shape of the file, so that a part of it can be copied there.
        let config = &settings.config;
        let effective = json!({
            "server": { "listen": config.listen, "data_dir": config.data_dir, "plugins_dir": config.plugins_dir },
            "limits": config.limits,
            "models": config.models,
            "mcp_servers": config.mcp_servers,
            "knowledge_bases": config.knowledge_bases,
            "bindings": config.bindings,
        });
        output.result(&json!({ "file": file, "config": effective }), || {
            let from = file
                .as_deref()
                .map_or_else(|| "no file: the defaults are in effect".to_owned(), |file| format!("{file} is valid; in effect:"));
            let shown = toml::to_string_pretty(&effective).unwrap_or_else(|error| format!("cannot be shown as TOML: {error}\n"));
            format!("# {from}\n\n{shown}")
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
