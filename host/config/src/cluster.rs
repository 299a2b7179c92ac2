//! `[cluster]`.

use std::{net::SocketAddr, path::Path};

use serde::{Deserialize, Serialize};

use crate::secret::SecretRef;

/// Lengths of a lease, in milliseconds.
const LEASE_MS: std::ops::RangeInclusive<u64> = 1_000..=600_000;
/// Hosts that follow a partition.
const FOLLOWERS: std::ops::RangeInclusive<u32> = 0..=63;
/// Bytes of log between two snapshots.
const SNAPSHOT_LOG_BYTES: std::ops::RangeInclusive<u64> = 1 << 17..=1 << 40;
/// Beginnings of the addresses of object stores. The rest is read by the ledger.
const STORES: [&str; 4] = ["s3://", "gs://", "az://", "file:///"];

/// The membership of this host in a cluster, whose database `[server] ledger` names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// Address at which the other hosts reach this one, such as `10.0.0.7:7071`. Each host has its own.
    pub advertise: String,
    /// Address of the listener for the other hosts alone, which forward requests to it. Default: `advertise`, where that is an IP
    /// address. Only with `secret`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Secret of the cluster, at least 32 bytes and the same on each host: by it the hosts know each other. With it, a warm host
    /// forwards requests to the active one. Default: requests are not forwarded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretRef>,
    /// Password of the database's user. Default: none is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<SecretRef>,
    /// Address of the object store of the contents of blobs and of snapshots, the same on each host: `s3://BUCKET/PREFIX`,
    /// `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or `file:///FOLDER`. `agent-host cluster init` writes it into the database. Credentials
    /// are those of the environment, under the names of the provider (`AWS_ACCESS_KEY_ID`, ...), else those of the machine. Default: contents
    /// are in the database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blobs: Option<String>,
    /// Length of the lease of the active host, in milliseconds, from 1,000 to 600,000. Another host takes over when it is over. The
    /// active host ends itself where the database is away for as long, less two seconds.
    pub lease_ms: u64,
    /// Hosts that follow each partition into a copy, beside its owner, from 0 to 63. Each host has a copy of the first partition, with the API keys. With 0 a
    /// partition whose owner is gone begins from a snapshot.
    pub followers: u32,
    /// Bytes of log, packed, after which a snapshot of the ledger is due, from 128 KiB to 1 TiB. The log is trimmed behind the older of two snapshots; a host
    /// that begins anew reads a snapshot and the log after it.
    pub snapshot_log_bytes: u64,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            advertise: String::new(),
            listen: None,
            secret: None,
            password: None,
            blobs: None,
            lease_ms: 10_000,
            followers: 1,
            snapshot_log_bytes: 64 << 20,
        }
    }
}

impl ClusterConfig {
    pub(crate) fn relative_to(&mut self, base: &Path) {
        for secret in [&mut self.password, &mut self.secret].into_iter().flatten() {
            secret.relative_to(base);
        }
    }

    /// Address of the listener for the other hosts. `None` where requests are not forwarded.
    #[must_use]
    pub fn hosts_listen(&self) -> Option<SocketAddr> {
        self.secret.as_ref()?;
        self.listen.or_else(|| self.advertise.parse().ok())
    }

    fn check(&self, clients: SocketAddr) -> Result<(), String> {
        let (host, port) = self.advertise.rsplit_once(':').unwrap_or_default();
        if host.is_empty() || self.advertise.len() > 255 || port.parse::<u16>().is_err() {
            return Err(format!(
                "`cluster.advertise` is `{}`: write the address at which others reach this host, with its port, such as \
                 10.0.0.7:7070",
                self.advertise
            ));
        }
        if !LEASE_MS.contains(&self.lease_ms) {
            return Err(format!("`cluster.lease_ms` is {}, and a lease has 1,000 to 600,000 milliseconds", self.lease_ms));
        }
        if !FOLLOWERS.contains(&self.followers) {
            return Err(format!("`cluster.followers` is {}, and a partition has 0 to 63 of them", self.followers));
        }
        if !SNAPSHOT_LOG_BYTES.contains(&self.snapshot_log_bytes) {
            return Err(format!(
                "`cluster.snapshot_log_bytes` is {}: write 131,072 (128 KiB) to 1,099,511,627,776 (1 TiB)",
                self.snapshot_log_bytes
            ));
        }
        if self.blobs.as_ref().is_some_and(|blobs| !STORES.iter().any(|store| blobs.starts_with(store))) {
            return Err("`cluster.blobs` is no address of an object store: write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, \
                        az://CONTAINER/PREFIX or file:///FOLDER"
                .to_owned());
        }
        self.check_listen(clients)
    }

    /// Checks the listener for hosts beside that for clients.
    fn check_listen(&self, clients: SocketAddr) -> Result<(), String> {
        if self.secret.is_none() {
            return match self.listen {
                None => Ok(()),
                Some(_) => {
                    Err("`cluster.listen` is for hosts that forward requests, and `cluster.secret` is not set: name the place \
                                of the cluster's secret, such as secret = { env = \"AGENT_HOST_CLUSTER_SECRET\" }, or take \
                                `cluster.listen` out"
                        .to_owned())
                }
            };
        }
        let Some(hosts) = self.hosts_listen() else {
            return Err(format!(
                "`cluster.advertise` is the name `{}`, so the address of the listener for hosts is not known: set \
                 `cluster.listen`, such as 0.0.0.0:7071",
                self.advertise
            ));
        };
        if hosts.port() == 0 {
            return Err(
                "the listener for hosts has no port: write one in `cluster.listen`, that of `cluster.advertise`".to_owned()
            );
        }
        let is_same_machine = hosts.ip() == clients.ip() || hosts.ip().is_unspecified() || clients.ip().is_unspecified();
        if is_same_machine && hosts.port() == clients.port() {
            return Err(format!(
                "the listener for hosts ({hosts}) and `server.listen` ({clients}) are one port: with `cluster.secret`, \
                 `cluster.advertise` and `cluster.listen` are for hosts alone and have a port of their own, such as 7071"
            ));
        }
        Ok(())
    }
}

/// Checks `[server] listen`, `[server] ledger` and `[cluster]` together. The URL itself is read by the ledger.
pub(crate) fn check_cluster(listen: SocketAddr, ledger: Option<&str>, cluster: Option<&ClusterConfig>) -> Result<(), String> {
    let (ledger, cluster) = match (ledger, cluster) {
        (None, None) => return Ok(()),
        (None, Some(_)) => {
            return Err("`[cluster]` is for hosts that share a ledger: set `server.ledger` to the URL of its database, or take \
                        `[cluster]` out"
                .to_owned());
        }
        (Some(_), None) => {
            return Err(
                "`server.ledger` is set, so this host is one of a cluster: set `cluster.advertise` to the address of this \
                        host, or take `server.ledger` out"
                    .to_owned(),
            );
        }
        (Some(ledger), Some(cluster)) => (ledger, cluster),
    };
    let authority = ledger.split_once("://").map_or(ledger, |(_, rest)| rest);
    let authority = authority.split(['/', '?']).next().unwrap_or_default();
    if authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':')) {
        return Err(
            "`server.ledger` has a password: take it out of the URL, and name the place where it is in `cluster.password`, \
                    such as password = { env = \"AGENT_HOST_LEDGER_PASSWORD\" }"
                .to_owned(),
        );
    }
    cluster.check(listen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_has_a_database_an_address_and_a_lease_and_no_password_in_the_url() {
        let url = Some("postgres://agent_host@db/agent_host");
        let cluster = ClusterConfig { advertise: "10.0.0.7:7070".into(), ..ClusterConfig::default() };
        let listen = SocketAddr::from(([0, 0, 0, 0], 7070));
        let refused = |ledger, cluster: Option<ClusterConfig>, wanted: &str| {
            let error = check_cluster(listen, ledger, cluster.as_ref()).unwrap_err();
            assert!(error.contains(wanted) && !error.contains("pass-word"), "{error}");
        };
        assert_eq!(check_cluster(listen, None, None), Ok(()));
        assert_eq!(check_cluster(listen, url, Some(&cluster)), Ok(()));
        refused(None, Some(cluster.clone()), "server.ledger");
        refused(url, None, "cluster.advertise");
        refused(Some("postgres://u:pass-word@db/d"), Some(cluster.clone()), "cluster.password");
        for advertise in ["", "10.0.0.7", ":7070", "host:x"] {
            refused(url, Some(ClusterConfig { advertise: advertise.into(), ..cluster.clone() }), "cluster.advertise");
        }
        for lease_ms in [0, 999, 600_001] {
            refused(url, Some(ClusterConfig { lease_ms, ..cluster.clone() }), "lease_ms");
        }
        for snapshot_log_bytes in [0, (1 << 17) - 1, (1 << 40) + 1] {
            refused(url, Some(ClusterConfig { snapshot_log_bytes, ..cluster.clone() }), "snapshot_log_bytes");
        }
        refused(url, Some(ClusterConfig { followers: 64, ..cluster.clone() }), "followers");
        for blobs in ["agents/production", "https://pass-word@bucket", "file://folder"] {
            refused(url, Some(ClusterConfig { blobs: Some(blobs.into()), ..cluster.clone() }), "s3://BUCKET/PREFIX");
        }
    }

    #[test]
    fn hosts_that_forward_have_a_listener_of_their_own_and_a_secret() {
        let secret = Some(SecretRef::Env("SECRET".into()));
        let cluster = |advertise: &str, listen: Option<&str>, secret: &Option<SecretRef>| ClusterConfig {
            advertise: advertise.into(),
            listen: listen.map(|listen| listen.parse().unwrap()),
            secret: secret.clone(),
            ..ClusterConfig::default()
        };
        let check = |clients: &str, cluster: &ClusterConfig| {
            check_cluster(clients.parse().unwrap(), Some("postgres://agent_host@db/agent_host"), Some(cluster))
        };
        for (advertise, listen, clients, hosts) in [
            ("10.0.0.7:7071", None, "0.0.0.0:7070", "10.0.0.7:7071"),
            ("10.0.0.7:7071", Some("0.0.0.0:7071"), "0.0.0.0:7070", "0.0.0.0:7071"),
            ("one.internal:7071", Some("0.0.0.0:7071"), "0.0.0.0:7070", "0.0.0.0:7071"),
            ("10.0.0.7:7070", None, "127.0.0.1:7070", "10.0.0.7:7070"),
        ] {
            let cluster = cluster(advertise, listen, &secret);
            assert_eq!(check(clients, &cluster), Ok(()), "{advertise}");
            assert_eq!(cluster.hosts_listen(), Some(hosts.parse().unwrap()));
        }
        assert_eq!(cluster("10.0.0.7:7070", None, &None).hosts_listen(), None);
        for (cluster, wanted) in [
            (cluster("10.0.0.7:7071", Some("0.0.0.0:7071"), &None), "`cluster.secret` is not set"),
            (cluster("one.internal:7071", None, &secret), "set `cluster.listen`"),
            (cluster("10.0.0.7:7070", None, &secret), "are one port"),
            (cluster("10.0.0.7:7071", Some("0.0.0.0:0"), &secret), "has no port"),
        ] {
            let error = check("0.0.0.0:7070", &cluster).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
