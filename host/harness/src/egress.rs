//! Destinations that the processes of one run may reach by the proxy of their sandbox.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use agent_host_config::AddressRules;
use agent_host_protocol::hosts::HostPattern;
use http::Uri;
use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};

/// Time for the addresses of a name, and for a connection to one of them.
const CONNECT: Duration = Duration::from_secs(10);
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 8;

/// The rules for the destinations of one run.
#[derive(Debug)]
pub(crate) struct Egress {
    /// Hosts that the harness and the binding allow.
    hosts: Vec<HostPattern>,
    /// Addresses that these hosts may have.
    addresses: Arc<AddressRules>,
    /// Ports of this machine.
    local_ports: BTreeSet<u16>,
    /// The port of the host of the run, where it is this machine.
    own_port: Option<u16>,
    /// The host of the run, where it is not this machine.
    own_host: Option<(String, u16)>,
}

/// The reason why a destination is not reached.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EgressError {
    /// No rule names the host.
    #[error("no rule allows this host and port")]
    HostNotAllowed,
    /// The host has no address that may be reached.
    #[error("the host has only addresses that are not public")]
    AddressNotAllowed,
    /// The name cannot be resolved.
    #[error("the name cannot be resolved: {0}")]
    Unresolved(String),
    /// The addresses do not answer.
    #[error("no connection: {0}")]
    Unreachable(String),
}

impl EgressError {
    /// The code that the record has, where a rule refused the destination. `None`: the network failed.
    pub(crate) const fn refusal(&self) -> Option<&'static str> {
        match self {
            Self::HostNotAllowed => Some("host_not_allowed"),
            Self::AddressNotAllowed => Some("address_not_allowed"),
            Self::Unresolved(_) | Self::Unreachable(_) => None,
        }
    }
}

impl Egress {
    /// The rules for a run. An entry of `hosts` that is no pattern allows nothing. The host of the run, at `base_url`, is always
    /// allowed.
    pub(crate) fn new<'a>(
        hosts: impl Iterator<Item = &'a String>,
        addresses: Arc<AddressRules>,
        connect_ports: &[u16],
        base_url: &str,
    ) -> Self {
        let mut local_ports: BTreeSet<u16> = connect_ports.iter().copied().filter(|port| is_forwarded(*port)).collect();
        let (mut own_host, mut own_port) = (authority(base_url), None);
        if let Some((_, port)) = own_host.take_if(|(host, _)| is_loopback(host)) {
            local_ports.insert(port);
            own_port = Some(port);
        }
        let hosts = hosts.filter_map(|host| host.parse().ok()).collect();
        Self { hosts, addresses, local_ports, own_port, own_host }
    }

    /// Ports of this machine that may be reached.
    pub(crate) const fn local_ports(&self) -> &BTreeSet<u16> {
        &self.local_ports
    }

    /// True if the other end of a connection is the host of the run on this machine, by whatever name it was found. The host may trust
    /// programs of this machine, which an agent is not.
    pub(crate) fn is_own_host(&self, peer: SocketAddr) -> bool {
        self.own_port == Some(peer.port()) && peer.ip().to_canonical().is_loopback()
    }

    /// Connects to a destination. A name is resolved once, and the address that was judged is the one that is connected to.
    pub(crate) async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, EgressError> {
        let addresses = timeout(CONNECT, self.addresses_of(host, port)).await;
        let addresses =
            addresses.unwrap_or_else(|_| Err(EgressError::Unresolved("the name servers do not answer".to_owned())))?;
        let mut problem = io::Error::other("there is no address");
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            match timeout(CONNECT, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => problem = error,
                Err(_) => problem = io::Error::from(io::ErrorKind::TimedOut),
            }
        }
        Err(EgressError::Unreachable(problem.to_string()))
    }

    /// The addresses of a destination that may be reached. There is at least one.
    async fn addresses_of(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, EgressError> {
        if is_loopback(host) && self.local_ports.contains(&port) {
            let both = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
            return Ok(both.map(|address| SocketAddr::new(address, port)).to_vec());
        }
        let is_own_host = self.own_host.as_ref().is_some_and(|(own, at)| own.eq_ignore_ascii_case(host) && *at == port);
        if !is_own_host && !self.hosts.iter().any(|pattern| pattern.matches(host, port)) {
            return Err(EgressError::HostNotAllowed);
        }
        let literal = unbracketed(host).parse::<IpAddr>();
        let mut addresses: Vec<SocketAddr> = match literal {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => lookup_host((host, port)).await.map_err(|error| EgressError::Unresolved(error.to_string()))?.collect(),
        };
        if addresses.is_empty() {
            return Err(EgressError::Unresolved("it has no address".to_owned()));
        }
        // The operator has named the host of the run, which may be in a private network.
        if !is_own_host {
            addresses.retain(|address| self.addresses.permits(address.ip()));
        }
        if addresses.is_empty() { Err(EgressError::AddressNotAllowed) } else { Ok(addresses) }
    }
}

/// True if a port of `connect_ports` is one of this machine that a sandbox gets: programs without privileges listen on these.
const fn is_forwarded(port: u16) -> bool {
    port >= 1024
}

/// Host and port of a URL.
fn authority(url: &str) -> Option<(String, u16)> {
    let url = url.parse::<Uri>().ok()?;
    let default = if url.scheme_str() == Some("https") { 443 } else { 80 };
    Some((url.host()?.to_owned(), url.port_u16().unwrap_or(default)))
}

/// The address of a host on this machine that speaks HTTP at this URL; `None` for any other.
pub(crate) fn own_address(url: &str) -> Option<SocketAddr> {
    let is_http = url.parse::<Uri>().is_ok_and(|url| url.scheme_str() == Some("http"));
    let (host, port) = authority(url).filter(|(host, _)| is_http && is_loopback(host))?;
    let address = unbracketed(&host).parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    Some(SocketAddr::new(address, port))
}

/// True if a host is this machine itself, as programs write it.
fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || matches!(host, "127.0.0.1" | "[::1]" | "::1")
}

fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_host_on_this_machine_is_known() {
        for (url, address) in [
            ("http://127.0.0.1:7070", Some("127.0.0.1:7070")),
            ("http://localhost", Some("127.0.0.1:80")),
            ("http://[::1]:1", Some("[::1]:1")),
            ("https://127.0.0.1:7070", None),
            ("http://10.0.0.5:7070", None),
            ("", None),
        ] {
            assert_eq!(own_address(url), address.map(|address| address.parse().unwrap()), "{url}");
        }
    }

    fn egress(hosts: &[&str], addresses: &[&str], ports: &[u16], base_url: &str) -> Egress {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>();
        let rules = AddressRules::new(&texts(addresses)).unwrap();
        Egress::new(texts(hosts).iter(), Arc::new(rules), ports, base_url)
    }

    async fn check(egress: &Egress, host: &str, port: u16, expect: Result<&str, EgressError>) {
        let found = egress.addresses_of(host, port).await.map(|addresses| addresses.first().unwrap().to_string());
        assert_eq!(found, expect.map(ToOwned::to_owned), "{host}:{port}");
    }

    #[tokio::test]
    async fn a_destination_needs_a_rule_and_a_public_address() {
        let rules = egress(&["8.8.8.8", "10.0.0.1:*", "*:8443", "localhost:9999", "no pattern"], &[], &[], "");
        check(&rules, "8.8.8.8", 443, Ok("8.8.8.8:443")).await;
        check(&rules, "8.8.8.8", 80, Err(EgressError::HostNotAllowed)).await;
        check(&rules, "no pattern", 443, Err(EgressError::HostNotAllowed)).await;
        for host in
            ["10.0.0.1", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "127.1", "2130706433", "169.254.169.254", "localhost"]
        {
            check(&rules, host, 8443, Err(EgressError::AddressNotAllowed)).await;
        }
        check(&rules, "localhost", 9999, Err(EgressError::AddressNotAllowed)).await;
        let open = egress(&["10.0.0.1:*"], &["10.0.0.0/8"], &[], "");
        check(&open, "10.0.0.1", 8443, Ok("10.0.0.1:8443")).await;
        check(&open, "10.0.0.2", 8443, Err(EgressError::HostNotAllowed)).await;
    }

    #[tokio::test]
    async fn ports_of_this_machine_are_those_of_the_configuration_and_of_the_host() {
        let rules = egress(&[], &[], &[80, 443, 9000], "http://127.0.0.1:7070");
        assert_eq!(rules.local_ports().iter().copied().collect::<Vec<_>>(), [7070, 9000]);
        for host in ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"] {
            check(&rules, host, 9000, Ok("127.0.0.1:9000")).await;
            check(&rules, host, 7070, Ok("127.0.0.1:7070")).await;
            check(&rules, host, 443, Err(EgressError::HostNotAllowed)).await;
        }
        check(&rules, "10.0.0.1", 9000, Err(EgressError::HostNotAllowed)).await;
        for (peer, expect) in [
            ("127.0.0.1:7070", true),
            ("127.0.0.2:7070", true),
            ("[::1]:7070", true),
            ("[::ffff:127.0.0.1]:7070", true),
            ("127.0.0.1:9000", false),
            ("10.0.0.1:7070", false),
        ] {
            assert_eq!(rules.is_own_host(peer.parse().unwrap()), expect, "{peer}");
        }
    }

    #[tokio::test]
    async fn the_host_of_the_run_is_reached_wherever_it_is() {
        let rules = egress(&[], &[], &[], "http://10.0.0.5:7070");
        check(&rules, "10.0.0.5", 7070, Ok("10.0.0.5:7070")).await;
        check(&rules, "10.0.0.5", 7071, Err(EgressError::HostNotAllowed)).await;
        assert!(rules.local_ports().is_empty());
        assert_eq!(authority("https://host.example/base"), Some(("host.example".to_owned(), 443)));
    }

    #[tokio::test]
    async fn a_destination_that_does_not_answer_is_no_refusal() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let rules = egress(&[], &[], &[closed], "");
        let error = rules.connect("127.0.0.1", closed).await.unwrap_err();
        assert!(matches!(error, EgressError::Unreachable(_)) && error.refusal().is_none(), "{error}");
    }
}
