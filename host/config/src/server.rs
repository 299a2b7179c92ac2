//! `[server]`.

use std::{net::SocketAddr, path::PathBuf};

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServerConfig {
    /// Address of the HTTP server.
    pub(crate) listen: SocketAddr,
    /// If true, requests of this machine need no key. Refused at other addresses than loopback.
    pub(crate) loopback_without_key: bool,
    /// Origins of pages that may use the API from a browser, such as `https://app.example.com`.
    pub(crate) cors_origins: Vec<String>,
    /// Directory of the ledger, artifacts, knowledge and compiled code. Relative to the file, as all paths.
    pub(crate) data_dir: PathBuf,
    /// Directory of plugins.
    pub(crate) plugins_dir: PathBuf,
    /// Directory of backups. Default: `backups` in the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backup_dir: Option<PathBuf>,
    /// Database of the ledger of a cluster, without the password:
    /// `postgres://USER@HOST:5432/DATABASE?sslmode=verify-full&sslrootcert=FILE`. `sslmode` is `verify-full` or `disable`. Default: the
    /// ledger is in the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ledger: Option<String>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7070)),
            loopback_without_key: false,
            cors_origins: Vec::new(),
            data_dir: "data".into(),
            plugins_dir: "plugins".into(),
            backup_dir: None,
            ledger: None,
        }
    }
}

/// Checks the settings of access that depend on each other.
pub(crate) fn check_admission(listen: SocketAddr, loopback_without_key: bool, cors_origins: &[String]) -> Result<(), String> {
    if loopback_without_key && !listen.ip().is_loopback() {
        return Err(format!(
            "`server.loopback_without_key` is for this machine alone, and `server.listen` is {listen}: listen at \
             127.0.0.1, or take `loopback_without_key` out and make a key with `agent-host keys create --scope admin`"
        ));
    }
    if loopback_without_key && cors_origins.iter().any(|origin| origin == "*") {
        return Err(
            "`server.cors_origins` has `*` and `server.loopback_without_key` is on, so every page that a browser on this \
             machine opens could do everything: name the origins, or use keys"
                .to_owned(),
        );
    }
    let is_origin = |origin: &str| {
        let visible = origin.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase());
        let host = origin.split_once("://").filter(|(scheme, _)| !scheme.is_empty()).map(|(_, host)| host);
        origin == "*" || visible && host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@', '*']))
    };
    match cors_origins.iter().find(|origin| !is_origin(origin)) {
        Some(origin) => Err(format!(
            "`server.cors_origins` has `{origin}`: write an origin as browsers send it, scheme, host in lower case and port \
             without a path, such as https://app.example.com"
        )),
        None => Ok(()),
    }
}
