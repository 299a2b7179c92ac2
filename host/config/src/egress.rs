//! `[egress]` and `[[http_secrets]]` of agent-host.toml.

use std::net::IpAddr;

use agent_host_protocol::hosts::HostPattern;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::secret::SecretRef;

/// The longest name of a secret.
const MAX_NAME: usize = 64;
/// Redirects of one request, whatever the configuration says. Browsers give up after 20.
const MAX_REDIRECTS: usize = 20;
/// The longest time that a configuration may set, in ms.
const MAX_TIMEOUT_MS: u64 = 10 * 60 * 1000;

/// HTTP requests of guests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EgressConfig {
    /// Addresses that guests, and coding agents in a sandbox of `bwrap`, may reach although they are not public: `10.1.2.0/24`,
    /// `127.0.0.1`, `fd00::/8`. The owner of a name decides by its DNS which address it has, so these are open to every run that
    /// may reach any host.
    pub allow_addresses: Vec<String>,
    /// Redirects of one request that are followed.
    pub max_redirects: usize,
    /// Time limit for connecting, with DNS and TLS, in ms.
    pub connect_timeout_ms: u64,
}

impl Default for EgressConfig {
    fn default() -> Self {
        Self { allow_addresses: Vec::new(), max_redirects: 5, connect_timeout_ms: 10_000 }
    }
}

impl EgressConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// Fails with the problem, for the author of the file.
    pub fn check(&self) -> Result<(), String> {
        for text in &self.allow_addresses {
            network(text).map_err(|problem| format!("`egress.allow_addresses`: {problem}"))?;
        }
        if self.max_redirects > MAX_REDIRECTS {
            return Err(format!("`egress.max_redirects` is at most {MAX_REDIRECTS}"));
        }
        if !(1..=MAX_TIMEOUT_MS).contains(&self.connect_timeout_ms) {
            return Err(format!("`egress.connect_timeout_ms` is from 1 to {MAX_TIMEOUT_MS}"));
        }
        Ok(())
    }
}

/// A secret that the host puts into headers, so that no guest holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpSecretConfig {
    /// Name, 1 to 64 of `A-Za-z0-9_-`, for `{{secret:NAME}}`.
    pub name: String,
    /// Reference to the secret.
    pub value: SecretRef,
    /// Allowed targets: patterns of hosts.
    pub hosts: Vec<String>,
}

impl HttpSecretConfig {
    /// Checks the values. Reads no secret.
    ///
    /// # Errors
    /// Fails with the problem and the secret, for the author of the file.
    pub fn check(&self) -> Result<(), String> {
        self.patterns().map(|_| ())
    }

    /// The allowed targets.
    ///
    /// # Errors
    /// As [`check`](Self::check) has them.
    pub fn patterns(&self) -> Result<Vec<HostPattern>, String> {
        let name_is_fine = (1..=MAX_NAME).contains(&self.name.len())
            && self.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        let problem = |problem: &str| format!("the HTTP secret `{}`: {problem}", self.name.escape_debug());
        if !name_is_fine {
            return Err(problem("its `name` is 1 to 64 of `A-Za-z0-9_-`"));
        }
        if self.hosts.is_empty() {
            return Err(problem("its `hosts` are empty: name where it may go"));
        }
        let hosts = self.hosts.iter().map(|host| host.parse::<HostPattern>()).collect::<Result<Vec<_>, _>>();
        let hosts = hosts.map_err(|error| problem(&error))?;
        if hosts.iter().any(HostPattern::is_any_host) {
            return Err(problem("one of its `hosts` is `*`, which would give it to anyone: name where it may go"));
        }
        Ok(hosts)
    }
}

/// Reads a network as `10.0.0.0/8`, or a single address.
///
/// # Errors
/// Fails if the text is neither an address nor a network.
pub fn network(text: &str) -> Result<IpNet, String> {
    let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let net = net.map_err(|_| format!("\"{}\" is neither an address nor a network such as `10.0.0.0/8`", text.escape_debug()))?;
    if matches!(net, IpNet::V6(net) if net.addr().to_ipv4_mapped().is_some()) {
        return Err(format!("\"{text}\" is IPv4 within IPv6: write it as IPv4"));
    }
    Ok(net)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_defaults_and_no_unknown_keys() {
        assert_eq!(toml::from_str::<EgressConfig>("").unwrap(), EgressConfig::default());
        assert!(toml::from_str::<EgressConfig>("proxy = \"x\"").is_err());
        assert!(EgressConfig::default().check().is_ok());
    }

    #[test]
    fn invalid_settings_are_refused_with_their_key() {
        let config = EgressConfig::default();
        let allow = |text: &str| EgressConfig { allow_addresses: vec![text.into()], ..config.clone() };
        for (config, says) in [
            (allow("10.0.0.0/33"), "10.0.0.0/33"),
            (allow("localhost"), "localhost"),
            (allow("::ffff:10.0.0.0/104"), "IPv4"),
            (EgressConfig { max_redirects: 21, ..config.clone() }, "max_redirects"),
            (EgressConfig { connect_timeout_ms: 0, ..config.clone() }, "connect_timeout_ms"),
        ] {
            let error = config.check().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!(allow("10.0.0.0/8").check().is_ok() && allow("::1").check().is_ok());
    }

    #[test]
    fn a_secret_goes_to_named_hosts_only() {
        let secret = |name: &str, hosts: &[&str]| HttpSecretConfig {
            name: name.into(),
            value: SecretRef::Env("NONE".into()),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        };
        assert!(secret("api_key-1", &["api.example.com", "*.example.org:*"]).check().is_ok());
        for (config, says) in [
            (secret("", &["a.example"]), "name"),
            (secret("a b", &["a.example"]), "name"),
            (secret(&"x".repeat(65), &["a.example"]), "name"),
            (secret("k", &[]), "hosts"),
            (secret("k", &["*"]), "`*`"),
            (secret("k", &["a.example", "*:8080"]), "`*`"),
            (secret("k", &["https://a.example"]), "URL"),
        ] {
            let error = config.check().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
