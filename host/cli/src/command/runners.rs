//! `agent-host runners`.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use agent_host_config::Config;
use agent_host_protocol::{Limits, PluginReport, PluginStatus, Refusal, RefusalCode, RunnerId, RunnerManifest};
use agent_host_sandbox::Options;
use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plugin_text;
use crate::{
    client::Client, failure::Failure, output::Output, progress::Progress, settings::code_dir, styled::StyledText, table::Table,
};

/// Show what is in the plugins directory, and why a file is refused
///
/// Reads the files themselves; the ledger is not opened, so a server may be running. With --server, shows what
/// that server has loaded.
#[derive(Debug, Args)]
pub(crate) struct Runners {
    /// Ask this server instead
    #[arg(long, value_name = "URL", env = "AGENT_HOST_SERVER")]
    server: Option<String>,
}

/// As `GET /api/v1/runners` answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct InstalledRunners {
    pub(super) plugins: Vec<PluginReport>,
    pub(super) runners: Vec<RunnerManifest>,
    /// Runners that executors serve.
    #[serde(default)]
    external: Vec<RunnerId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    bindings: Vec<Value>,
}

impl Runners {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        let installed = match self.server {
            Some(url) => Client::new(&url)?.get("api/v1/runners", &[]).await?,
            None => inspect_all(config, output).await?,
        };
        output.result(&installed, || {
            let plugins = if installed.plugins.is_empty() {
                format!("no .wasm file in {}\n", config.plugins_dir.display()).into()
            } else {
                plugin_text::table(&installed.plugins)
            };
            plugins + externals(&installed)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The runners that executors serve, one row each.
fn externals(installed: &InstalledRunners) -> StyledText {
    if installed.external.is_empty() {
        return StyledText::default();
    }
    let mut table = Table::new(["RUNNER OF EXECUTORS", "VERSION", "LABEL"]);
    for runner in installed.runners.iter().filter(|runner| installed.external.contains(&runner.id)) {
        table.row([runner.id.to_string(), runner.version.to_string(), runner.label.fallback().to_owned()]);
    }
    StyledText::from("\n") + table.render()
}

/// The content of the plugins directory, and the runners of executors that the configuration names.
pub(super) async fn inspect_all(config: &Config, output: Output) -> anyhow::Result<InstalledRunners> {
    // Compiled code of a host is used; without a host's directory, none is made.
    let plugins = inspect_plugins(config, Some(code_dir(config)).filter(|dir| dir.is_dir()), output).await?;
    let ready = plugins.iter().filter(|plugin| plugin.status == PluginStatus::Ready);
    let mut runners: Vec<RunnerManifest> = ready.flat_map(|plugin| plugin.runners.clone()).collect();
    let externals: Vec<RunnerManifest> = config.external_manifests();
    let external: Vec<RunnerId> = externals.iter().map(|manifest| manifest.id.clone()).collect();
    runners.retain(|runner| !external.contains(&runner.id));
    runners.extend(externals);
    Ok(InstalledRunners { plugins, runners, external, bindings: Vec::new() })
}

/// The files of the plugins directory as admission sees them, by name. Code that is compiled goes into `code_cache`.
pub(super) async fn inspect_plugins(
    config: &Config,
    code_cache: Option<PathBuf>,
    output: Output,
) -> anyhow::Result<Vec<PluginReport>> {
    let files = components(config)?;
    // One instance is enough to read manifests; the size of the pool is not in the code.
    let limits = Limits { max_live_runs: 1, ..config.limits.clone() };
    let sandbox = Options { limits, code_cache, compiler: super::compiler(), components: None }.build()?;
    let progress = Progress::bar(output, "compiling", files.len() as u64);
    let mut plugins = Vec::with_capacity(files.len());
    for (done, file) in files.iter().enumerate() {
        progress.describe(file.file_name().unwrap_or_default().to_string_lossy().into_owned());
        plugins.push(sandbox.inspect(file).await);
        progress.done(done as u64 + 1);
    }
    refuse_duplicates(&mut plugins);
    Ok(plugins)
}

/// The files of the plugins directory that the host would load, by name.
fn components(config: &Config) -> anyhow::Result<Vec<PathBuf>> {
    let dir = &config.plugins_dir;
    if !dir.is_dir() {
        let message = format!("there is no plugins directory at {}: make it and drop components (.wasm) into it", dir.display());
        return Err(Failure::new("no_plugins_dir", message).into());
    }
    let cannot_read = || format!("the plugins directory {} cannot be read", dir.display());
    let mut files = Vec::new();
    for entry in dir.read_dir().with_context(cannot_read)? {
        let path = entry.with_context(cannot_read)?.path();
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.extension().is_some_and(|extension| extension == "wasm") && !hidden {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Each file was looked at alone; of two with one runner id the host takes the first.
fn refuse_duplicates(plugins: &mut [PluginReport]) {
    let mut owners: BTreeMap<RunnerId, String> = BTreeMap::new();
    for plugin in plugins.iter_mut().filter(|plugin| plugin.status == PluginStatus::Ready) {
        let change =
            plugin.runners.iter().find_map(|runner| owners.get(&runner.id).map(|owner| (runner.id.clone(), owner.clone())));
        match change {
            None => owners.extend(plugin.runners.iter().map(|runner| (runner.id.clone(), plugin.file.clone()))),
            Some((id, owner)) => {
                plugin.status = PluginStatus::Refused;
                plugin.refusal = Some(Refusal {
                    code: RefusalCode::DuplicateRunner,
                    message: format!("{owner} already holds the runner {id}"),
                    fix: format!(
                        "remove one of the two files, or give the plugin another author, name or runner name than {owner} has"
                    ),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_two_files_with_one_runner_the_first_is_taken() {
        let plugin = |file: &str, id: &str| -> PluginReport {
            let runner = json!({ "id": id, "name": "n", "author": "a", "plugin": "p", "version": "1.0.0", "label": {} });
            serde_json::from_value(json!({ "file": file, "status": "ready", "size_bytes": 1, "runners": [runner] })).unwrap()
        };
        let mut plugins = [plugin("a.wasm", "plugin:a/x/n"), plugin("b.wasm", "plugin:a/x/n"), plugin("c.wasm", "plugin:a/y/n")];
        refuse_duplicates(&mut plugins);
        assert_eq!(
            plugins.each_ref().map(|plugin| plugin.status),
            [PluginStatus::Ready, PluginStatus::Refused, PluginStatus::Ready]
        );
        assert!(plugins[1].refusal.as_ref().unwrap().message.contains("a.wasm"));
    }
}
