//! The configuration that a command works with.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
};

use agent_host_config::{Config, ConfigError};

use crate::args::Global;

/// Read where it is and no other file is named.
const DEFAULT_FILE: &str = "agent-host.toml";

/// A configuration, and the file that it came from.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    pub(crate) file: Option<PathBuf>,
}

impl Settings {
    /// The file, then what the command line says over it.
    pub(crate) fn load(global: &Global) -> Result<Self, ConfigError> {
        let file = global.config.clone().or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|file| file.exists()));
        let mut config = match &file {
            Some(file) => Config::load(file)?,
            None => Config::default_in(Path::new(".")),
        };
        if let Some(dir) = &global.data_dir {
            config.data_dir.clone_from(dir);
        }
        if let Some(dir) = &global.plugins_dir {
            config.plugins_dir.clone_from(dir);
        }
        Ok(Self { config, file })
    }
}

/// The directory of compiled code of a configuration.
pub(crate) fn code_dir(config: &Config) -> PathBuf {
    config.data_dir.join("code")
}

/// The directory of the components of a configuration's runs.
pub(crate) fn components_dir(config: &Config) -> PathBuf {
    config.data_dir.join("components")
}

/// The URL of a server on this machine that listens at `listen`.
pub(crate) fn local_url(listen: SocketAddr) -> String {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, listen.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_listens_everywhere_is_reached_locally() {
        for (listen, url) in
            [("0.0.0.0:7070", "http://127.0.0.1:7070"), ("[::]:80", "http://[::1]:80"), ("127.0.0.2:1", "http://127.0.0.2:1")]
        {
            assert_eq!(local_url(listen.parse().unwrap()), url);
        }
    }
}
