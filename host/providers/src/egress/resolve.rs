//! A name is resolved once, right before the connection, and the resolver returns only allowed addresses. The connection
//! uses the checked address, so a DNS server with changing answers gains nothing.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use agent_host_config::AddressRules;
use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Asks for the addresses of a name.
pub(super) trait Lookup: fmt::Debug + Send + Sync {
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// Asks the system.
#[derive(Debug)]
pub(super) struct System;

impl Lookup for System {
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect()) })
    }
}

/// The use of the address.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// A request that only needs an allowed address.
    Plain,
    /// Secrets, without TLS.
    UnencryptedSecrets,
}

/// The resolver of an HTTP client.
#[derive(Debug)]
pub(super) struct Resolver {
    pub(super) lookup: Arc<dyn Lookup>,
    pub(super) rules: Arc<AddressRules>,
    pub(super) purpose: Purpose,
}

/// The reason why no address is available.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResolveError {
    #[error("the name cannot be resolved: {0}")]
    Failed(String),
    #[error("the name has no address that may be reached")]
    NotAllowed,
    #[error("the name has no address that a secret may be sent to without TLS")]
    NeedsTls,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let found = self.lookup.lookup(name.as_str().to_owned());
        let (rules, purpose) = (Arc::clone(&self.rules), self.purpose);
        Box::pin(async move {
            let found = found.await.map_err(|error| ResolveError::Failed(error.to_string()))?;
            let usable = usable(found, &rules, purpose)?;
            // The port is the URL's.
            Ok(Box::new(usable.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}

fn usable(found: Vec<IpAddr>, rules: &AddressRules, purpose: Purpose) -> Result<Vec<IpAddr>, ResolveError> {
    if found.is_empty() {
        return Err(ResolveError::Failed("it has no address".into()));
    }
    let mut usable: Vec<IpAddr> = found.into_iter().filter(|address| rules.permits(*address)).collect();
    if usable.is_empty() {
        return Err(ResolveError::NotAllowed);
    }
    if matches!(purpose, Purpose::UnencryptedSecrets) {
        usable.retain(|address| rules.permits_plain_secrets(*address));
        if usable.is_empty() {
            return Err(ResolveError::NeedsTls);
        }
    }
    Ok(usable)
}
