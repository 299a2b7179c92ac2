//! A backup of a running host: its ledger, and the components that its runs were of.

use std::{path::PathBuf, sync::Arc, time::Instant};

use agent_host_config::Config;
use agent_host_ledger::{Backup, BackupError, BackupManifest, remove_unfinished};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::cell::Cell;
use crate::record::HostError;

/// The longest name of a backup.
const MAX_NAME: usize = 64;

/// A backup that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BackupReport {
    /// Name of the backup.
    pub name: String,
    /// Path of the backup, on the machine of the host.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Duration of the backup, in milliseconds.
    pub took_ms: u64,
    /// Contents of the backup.
    #[serde(flatten)]
    pub manifest: BackupManifest,
}

/// The plan of a backup of this host into this folder.
#[must_use]
pub fn backup_to(config: &Config, to: PathBuf) -> Backup {
    let left_out = [
        "agent-host.toml and the files that it names: secrets, skills, static references".to_owned(),
        format!("the plugins directory, {}", config.plugins_dir.display()),
        "knowledge: the indexes of the knowledge bases; copy the folder while nothing is added, or add the documents again"
            .to_owned(),
        "compiled code and search indexes: the host makes them again".to_owned(),
        "run-logs: the kept logs of runs".to_owned(),
    ];
    Backup {
        to,
        // A run that is to go on needs the very component that it began with.
        beside: vec![("components".to_owned(), config.data_dir.join("components"))],
        left_out: left_out.into(),
        agent_host: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

impl Cell {
    /// Makes a backup of the committed state in a folder of this name below the backup directory (`Config::backups`).
    /// Writes continue meanwhile. The backup is completed even if the caller goes away.
    pub(crate) async fn backup(
        &self,
        config: Arc<Config>,
        one_at_a_time: &Arc<Mutex<()>>,
        name: &str,
    ) -> Result<BackupReport, HostError> {
        check_name(name).map_err(HostError::Invalid)?;
        self.runs.check_running()?;
        let busy = || HostError::Conflict("a backup is being made: wait for its end, then ask again".to_owned());
        let guard = Arc::clone(one_at_a_time).try_lock_owned().map_err(|_| busy())?;
        let (ledger, name) = (self.ledger.clone(), name.to_owned());
        let work = move || {
            let _one_at_a_time = guard;
            let began = Instant::now();
            let dir = config.backups();
            match remove_unfinished(&dir) {
                Ok(0) => {}
                Ok(count) => tracing::info!(count, "backups that were not finished were removed"),
                Err(error) => tracing::warn!(%error, "backups that were not finished could not be removed"),
            }
            let path = dir.join(&name);
            let manifest = ledger.backup(&backup_to(&config, path.clone()))?;
            let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            tracing::info!(name, took_ms, rows = manifest.rows, blobs = manifest.blobs, "a backup was made");
            let path = std::path::absolute(&path).unwrap_or(path);
            Ok(BackupReport { name, path, took_ms, manifest })
        };
        let report = tokio::task::spawn_blocking(work).await.map_err(|error| HostError::Internal(error.to_string()))?;
        report.map_err(|error: BackupError| {
            let message = error.to_string();
            match error {
                BackupError::AlreadyThere { .. } | BackupError::Busy { .. } => HostError::Conflict(message),
                BackupError::DiskLow { .. } => HostError::InsufficientStorage(message),
                BackupError::Ledger(error) => error.into(),
                _ => HostError::Unavailable(message),
            }
        })
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > MAX_NAME || name.starts_with('.') || !name.chars().all(legal) {
        return Err(format!(
            "the name of a backup has 1 to {MAX_NAME} letters, digits, `.`, `_` or `-`, and does not begin with `.`"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_path() {
        for name in ["a", "2026-11-22T13.54", "x_1"] {
            assert_eq!(check_name(name), Ok(()));
        }
        for name in ["", ".", "..", ".hidden", "a/b", "/etc", "a\\b", "a b", "é", "a\0", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
