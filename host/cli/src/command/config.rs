//! `agent-host config`.

use std::{process::ExitCode, time::Duration};

use agent_host_config::{config_reference, config_schema};
use agent_host_runs::ReloadReport;
use clap::Subcommand;
use serde_json::json;

use super::{config_check, runs::Server};
use crate::{client::Client, output::Output, settings::Settings};

/// New servers of tools may take 15 seconds to show that they work.
const RELOAD: Duration = Duration::from_secs(120);

/// Look after the configuration
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration, and show its sections and the values in effect
    ///
    /// Fails if the file is not valid, if a secret that it names cannot be read here, or if the runner of a binding is neither
    /// in the plugins directory nor external. Components are looked at as `agent-host runners` does; the ledger is not opened.
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
    /// Write the JSON Schema of the configuration to standard output, for editors
    ///
    /// With `#:schema ./agent-host.schema.json` as its first line, `agent-host.toml` is completed and checked by editors that use
    /// Taplo, such as Even Better TOML for VS Code.
    Schema,
}

impl ConfigCommand {
    pub(crate) async fn execute(&self, settings: &Settings, output: Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::Check => config_check::check(settings, output).await?,
            Self::Reload { server } => reload(settings, server, output).await?,
            Self::Reference => {
                let text = config_reference();
                output.result(&json!({ "markdown": text }), || text.clone())?;
            }
            Self::Schema => {
                let schema = config_schema();
                output.result(&schema, || format!("{schema:#}\n"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
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
