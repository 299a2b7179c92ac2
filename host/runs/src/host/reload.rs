//! A new configuration for a running host, all of it or nothing.
//!
//! A reload builds the new setup completely beside the old one: bindings, models, tools, knowledge bases, secrets, skills.
//! If every part works, the new setup replaces the old one in one step. A run keeps the setup that it began with; later
//! runs use the new one. Resources of the old setup are dropped with the last run that holds them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use agent_host_config::{Config, ConfigError, section_names};
use agent_host_providers::tools::McpServerStatus;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::{Mutex, MutexGuard};

use super::{cell::Cell, readiness};
use crate::{
    execution::Shared,
    policy::{StartError, setup::Setup},
};

/// Settings that the host reads once at its start: keys and whole sections, named as in the file. The engine with its pool
/// of instances, the files of the ledger and the listener depend on them.
const NEEDS_RESTART: &[&str] = &[
    "cluster",
    "harnesses",
    "server",
    "limits.artifact_unreferenced_ms",
    "limits.compile_memory_bytes",
    "limits.compile_ms",
    "limits.component_bytes",
    "limits.component_runners",
    "limits.gc_interval_ms",
    "limits.guest_handles",
    "limits.guest_memory_bytes",
    "limits.guest_stack_bytes",
    "limits.guest_table_elements",
    "limits.host_call_bytes",
    "limits.http_connections",
    "limits.http_header_ms",
    "limits.http_slow_reader_ms",
    "limits.http_subscribers",
    "limits.manifest_ms",
    "limits.max_live_runs",
    "limits.min_free_disk_bytes",
    "limits.plugins_wait_ms",
    "telemetry",
];

/// Keys that a reload can change although their section needs a restart.
const NEEDS_NO_RESTART: &[&str] = &["server.backup_dir", "server.loopback_without_key"];

/// The source of a reload: the file that the host was started with, and its command line.
type Source = Arc<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

/// Reloads of the configuration, one at a time.
#[derive(Default)]
pub(crate) struct Reloads {
    source: OnceLock<Source>,
    /// Held while the setup is replaced.
    one_at_a_time: Mutex<()>,
}

impl Reloads {
    pub(crate) fn set_source(&self, source: impl Fn() -> Result<Config, ConfigError> + Send + Sync + 'static) {
        // A host is started once.
        let _ = self.source.set(Arc::new(source));
    }

    /// No reload takes place while the guard is held.
    pub(crate) async fn lock(&self) -> MutexGuard<'_, ()> {
        self.one_at_a_time.lock().await
    }

    pub(crate) async fn reload_again(
        &self,
        shared: &Shared,
        cells: impl FnOnce() -> Vec<Cell>,
    ) -> Result<ReloadReport, ReloadError> {
        let source = self.source.get().map(Arc::clone).ok_or(ReloadError::NoSource)?;
        let _one_at_a_time = self.one_at_a_time.lock().await;
        let config = tokio::task::spawn_blocking(move || source()).await;
        replace_setup(shared, &cells(), config.map_err(|error| ReloadError::Internal(error.to_string()))??).await
    }

    pub(crate) async fn reload(
        &self,
        shared: &Shared,
        cells: impl FnOnce() -> Vec<Cell>,
        config: Config,
    ) -> Result<ReloadReport, ReloadError> {
        let _one_at_a_time = self.one_at_a_time.lock().await;
        replace_setup(shared, &cells(), config).await
    }
}

/// The reason why a reload was refused. The configuration before stays in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// The host was started without a file.
    #[error("this host was started without a configuration that can be reloaded")]
    NoSource,
    /// The configuration, or what it names.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A resource of the configuration could not be opened.
    #[error(transparent)]
    Setup(#[from] StartError),
    /// A server of tools that is new or changed does not work.
    #[error(
        "the MCP server `{id}` does not work: {problem}. Repair the server or correct its entry in `[[mcp_servers]]`, then reload again"
    )]
    Server {
        /// Id of the entry.
        id: String,
        /// Description of the problem.
        problem: String,
    },
    /// Something changed that is read only when the host starts.
    #[error("{} cannot change while the host runs: restart the host, or take the change back and reload again", named(fields))]
    NeedsRestart {
        /// The keys, as in the file.
        fields: Vec<String>,
    },
    /// The host ends.
    #[error("the host is shutting down")]
    ShuttingDown,
    /// The host failed.
    #[error("the configuration could not be read: {0}")]
    Internal(String),
}

fn named(fields: &[String]) -> String {
    fields.iter().map(|field| format!("`{field}`")).collect::<Vec<_>>().join(", ")
}

impl ReloadError {
    /// The keys that need a restart, where they are why.
    #[must_use]
    pub fn fields(&self) -> &[String] {
        if let Self::NeedsRestart { fields } = self { fields } else { &[] }
    }
}

/// The changes of a reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReloadReport {
    /// Number of reloads since the start, this one included.
    pub generation: u64,
    /// Differences from the configuration before. Secrets, skills and static references are read again in any case.
    pub changes: Vec<SectionChange>,
    /// Problems for an operator, as `/readyz` shows them. None of them prevented the reload.
    pub problems: Vec<String>,
}

/// The changes of one section of the configuration: names of entries, or keys.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SectionChange {
    /// The section, as in the file.
    pub section: String,
    /// New names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<String>,
    /// Names whose values differ from before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Removed names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
}

/// Replaces the setup by what this configuration says, or changes nothing.
async fn replace_setup(shared: &Shared, cells: &[Cell], config: Config) -> Result<ReloadReport, ReloadError> {
    if shared.stopping.is_cancelled() {
        return Err(ReloadError::ShuttingDown);
    }
    let before = shared.setup();
    let changes = changes(&sections(&before.config)?, &sections(&config)?);
    let fields = needs_restart(&changes);
    if !fields.is_empty() {
        return Err(ReloadError::NeedsRestart { fields });
    }
    let after = Setup::new(config, Some(&before)).await?;
    tools_work(&before, &after)?;
    for cell in cells {
        after.services.library.keep_in(&cell.ledger).await.map_err(StartError::from)?;
    }
    if shared.stopping.is_cancelled() {
        // The tasks that the new setup has started would never be stopped.
        return Err(ReloadError::ShuttingDown);
    }
    let quotas = after.quotas();
    shared.replace_setup(after);
    for cell in cells {
        cell.ledger.set_quotas(quotas.clone());
        cell.intake.setup_changed();
    }
    let mut generation = 0;
    shared.reloads.send_modify(|count| {
        *count += 1;
        generation = *count;
    });
    let problems = readiness::problems(shared, cells);
    tracing::info!(generation, sections = changes.len(), problems = problems.len(), "the configuration was reloaded");
    for problem in &problems {
        tracing::warn!("{problem}");
    }
    Ok(ReloadReport { generation, changes, problems })
}

/// An unchanged server may be unreachable for a while, as at any time. A new or changed server has to answer, so that a
/// reload does not remove tools by mistake.
fn tools_work(before: &Setup, after: &Setup) -> Result<(), ReloadError> {
    let is_new = |id: &str| {
        let of = |setup: &Setup| setup.config.mcp_servers.iter().find(|server| server.id == id).cloned();
        of(before) != of(after)
    };
    let reports = after.services.tools.reports();
    match reports.into_iter().find(|report| report.status != McpServerStatus::Ready && is_new(&report.id)) {
        Some(report) => {
            let problem = report.problem.unwrap_or_else(|| "it did not answer in time".to_owned());
            Err(ReloadError::Server { id: report.id, problem })
        }
        None => Ok(()),
    }
}

/// The configuration in the shape of the file.
fn sections(config: &Config) -> Result<Map<String, Value>, ReloadError> {
    let failed = |error: serde_json::Error| ReloadError::Internal(error.to_string());
    let Value::Object(fields) = serde_json::to_value(config).map_err(failed)? else {
        return Err(ReloadError::Internal("the configuration is no table".to_owned()));
    };
    // A key outside of the file's sections belongs to `[server]`; a part of `Config` with such a name keeps its own.
    let names = section_names();
    let (mut sections, server): (Map<_, _>, Map<_, _>) = fields.into_iter().partition(|(name, _)| names.contains(name));
    if let Value::Object(section) = sections.entry("server").or_insert_with(|| Value::Object(Map::new())) {
        section.extend(server);
    }
    Ok(sections)
}

/// The name of an entry of a list. Entries without a name are numbered.
fn name_of(place: usize, entry: &Value) -> String {
    let named = ["id", "name", "url", "path"].into_iter().find_map(|key| entry.get(key)?.as_str());
    named.map_or_else(|| (place + 1).to_string(), ToOwned::to_owned)
}

/// The parts of a section by name. Several may have one.
fn parts(section: Option<&Value>) -> BTreeMap<String, Vec<&Value>> {
    let mut parts: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    match section {
        Some(Value::Object(keys)) => {
            for (key, value) in keys {
                parts.entry(key.clone()).or_default().push(value);
            }
        }
        Some(Value::Array(entries)) => {
            for (place, entry) in entries.iter().enumerate() {
                parts.entry(name_of(place, entry)).or_default().push(entry);
            }
        }
        _ => {}
    }
    parts
}

fn changes(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<SectionChange> {
    let sections: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let change = |section: &String| {
        let (old, new) = (before.get(section), after.get(section));
        let (old_parts, new_parts) = (parts(old), parts(new));
        let mut change = SectionChange { section: section.clone(), ..SectionChange::default() };
        for (name, value) in &new_parts {
            match old_parts.get(name) {
                None => change.added.push(name.clone()),
                Some(before) if before != value => change.changed.push(name.clone()),
                Some(_) => {}
            }
        }
        change.removed = old_parts.into_keys().filter(|name| !new_parts.contains_key(name)).collect();
        if change.added.is_empty() && change.changed.is_empty() && change.removed.is_empty() {
            // The order of a list may count: the first of two bindings with one priority is asked first.
            if old == new {
                return None;
            }
            change.changed.push("order".to_owned());
        }
        Some(change)
    };
    sections.into_iter().filter_map(change).collect()
}

/// The keys that changed and cannot.
fn needs_restart(changes: &[SectionChange]) -> Vec<String> {
    let mut fields = Vec::new();
    for SectionChange { section, added, changed, removed } in changes {
        let keys: BTreeSet<&String> = added.iter().chain(changed).chain(removed).collect();
        for key in keys {
            let field = format!("{section}.{key}");
            let fixed = NEEDS_RESTART.iter().any(|fixed| fixed == section || *fixed == field);
            if fixed && !NEEDS_NO_RESTART.contains(&field.as_str()) {
                fields.push(field);
            }
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Map<String, Value> {
        sections(&Config::parse(text, Path::new("/etc")).unwrap()).unwrap()
    }

    fn binding(id: &str, more: &str) -> String {
        format!("[[bindings]]\nid = \"{id}\"\nrunner = \"plugin:a/b/c\"\n{more}\n")
    }

    #[test]
    fn changes_are_named() {
        let before = config(&[binding("a", ""), binding("b", ""), binding("c", "")].concat());
        let after = config(&format!(
            "[limits]\nrun_deadline_ms = 7\n[egress]\nmax_redirects = 1\n{}{}{}",
            binding("a", ""),
            binding("b", "priority = 1"),
            binding("d", "")
        ));
        let expected = |section: &str, added: &[&str], changed: &[&str], removed: &[&str]| {
            let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            SectionChange { section: section.into(), added: list(added), changed: list(changed), removed: list(removed) }
        };
        assert_eq!(
            changes(&before, &after),
            [
                expected("bindings", &["d"], &["b"], &["c"]),
                expected("egress", &[], &["max_redirects"], &[]),
                expected("limits", &[], &["run_deadline_ms"], &[]),
            ]
        );
        assert_eq!(changes(&before, &before), []);
        let turned = config(&[binding("b", ""), binding("a", ""), binding("c", "")].concat());
        assert_eq!(changes(&before, &turned), [expected("bindings", &[], &["order"], &[])]);
        assert_eq!(needs_restart(&changes(&before, &after)), Vec::<String>::new());
    }

    #[test]
    fn settings_that_are_read_once_need_a_restart() {
        let before = config("");
        let after = config(
            "[server]\nlisten = \"127.0.0.1:1\"\nbackup_dir = \"b\"\ndata_dir = \"x\"\n\
             [limits]\nmax_live_runs = 1\nrun_deadline_ms = 1\nguest_memory_bytes = 2000000",
        );
        let fields = needs_restart(&changes(&before, &after));
        assert_eq!(fields, ["limits.guest_memory_bytes", "limits.max_live_runs", "server.data_dir", "server.listen"]);
        let error = ReloadError::NeedsRestart { fields };
        assert!(error.to_string().contains("`limits.max_live_runs`, `server.data_dir`"), "{error}");
    }

    #[test]
    fn the_list_names_what_there_is() {
        let limits = serde_json::to_value(agent_host_protocol::Limits::default()).unwrap();
        for field in NEEDS_RESTART.iter().filter_map(|field| field.strip_prefix("limits.")) {
            assert!(limits.get(field).is_some(), "{field}");
        }
    }
}
