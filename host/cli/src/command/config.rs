//! `agent-host config`.

use std::{process::ExitCode, time::Duration};

use agent_host_config::config_reference;
use agent_host_runs::ReloadReport;
use clap::Subcommand;
use serde_json::json;

use super::runs::Server;
use crate::{client::Client, output::Output, settings::Settings};

/// New servers of tools may take 15 seconds to show that they work.
const RELOAD: Duration = Duration::from_secs(120);

/// Look after the configuration
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration, and show the values in effect
    ///
    /// Runners are not loaded, so a binding to a runner that is not installed passes; `agent-host serve` reports it.
    Check,
    /// Reload the configuration of a running host, and show the changes
    ///
    /// A valid configuration is applied as a whole. With an error, the configuration before stays in force, and the command
    /// fails. Settings that are read only at the start (addresses, directories, limits of the engine) are named and need a
    /// restart. Active runs keep their configuration. SIGHUP does the same.
    Reload {
        #[command(flatten)]
        server: Server,
    },
    /// Show every key of the configuration with its type, default and meaning, in Markdown
    Reference,
}

impl ConfigCommand {
    pub(crate) async fn execute(&self, settings: &Settings, output: Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::Check => check(settings, output)?,
            Self::Reload { server } => reload(settings, server, output).await?,
            Self::Reference => {
                let text = config_reference();
                output.result(&json!({ "markdown": text }), || text.clone())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn check(settings: &Settings, output: Output) -> anyhow::Result<()> {
    let file = settings.file.as_ref().map(|file| file.display().to_string());
    // In the shape of the file, so that a part of it can be copied there.
    let config = &settings.config;
    let effective = json!({
        "server": {
            "listen": config.listen,
            "loopback_without_key": config.loopback_without_key,
            "cors_origins": config.cors_origins,
            "data_dir": config.data_dir,
            "plugins_dir": config.plugins_dir,
        },
        "limits": config.limits,
        "models": config.models,
        "mcp_servers": config.mcp_servers,
        "knowledge_bases": config.knowledge_bases,
        "harnesses": config.harnesses,
        "bindings": config.bindings,
    });
    output.result(&json!({ "file": file, "config": effective }), || {
        let from = file
            .as_deref()
            .map_or_else(|| "no file: the defaults are in effect".to_owned(), |file| format!("{file} is valid; in effect:"));
        let toml_text = toml::to_string_pretty(&effective).unwrap_or_else(|error| format!("cannot be shown as TOML: {error}\n"));
        format!("# {from}\n\n{toml_text}")
    })?;
    Ok(())
}

async fn reload(settings: &Settings, server: &Server, output: Output) -> anyhow::Result<()> {
    let why = "only a running host can reload its configuration";
    let client = Client::running(&settings.config, server.url.as_deref(), why).await?;
    let report: ReloadReport = client.post("api/v1/config/reload", &json!({}), RELOAD).await?;
    output.result(&report, || reload_text(&report))?;
    Ok(())
}

fn reload_text(report: &ReloadReport) -> String {
    let mut text = String::from("the configuration was reloaded");
    text.push_str(if report.changes.is_empty() { "; nothing in it has changed\n" } else { ":\n" });
    for change in &report.changes {
        let parts = [("added", &change.added), ("changed", &change.changed), ("removed", &change.removed)];
        let parts = parts.into_iter().filter(|(_, names)| !names.is_empty());
        let parts: Vec<_> = parts.map(|(what, names)| format!("{what} {}", names.join(", "))).collect();
        text.push_str(&format!("  {}: {}\n", change.section, parts.join("; ")));
    }
    for problem in &report.problems {
        text.push_str(&format!("look at: {problem}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use agent_host_runs::SectionChange;

    use super::*;

    #[test]
    fn a_reload_says_what_changed() {
        let mut report = ReloadReport { generation: 1, changes: Vec::new(), problems: Vec::new() };
        assert_eq!(reload_text(&report), "the configuration was reloaded; nothing in it has changed\n");
        report.changes.push(SectionChange {
            section: "bindings".to_owned(),
            added: vec!["a".to_owned(), "b".to_owned()],
            removed: vec!["c".to_owned()],
            ..SectionChange::default()
        });
        report.problems.push("model `x` is not ready".to_owned());
        insta::assert_snapshot!(reload_text(&report), @r"
        the configuration was reloaded:
          bindings: added a, b; removed c
        look at: model `x` is not ready
        ");
    }
}
