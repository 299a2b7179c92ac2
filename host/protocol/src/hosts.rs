//! Patterns of hosts: where a runner may send requests, and where a secret may go.
//!
//! `HOST[:PORT]`. HOST is a name (`api.example.com`), all names below one (`*.example.com`, not `example.com` itself), an
//! address (`192.0.2.7`, `[2001:db8::7]`), or `*`. PORT is a number or `*`; without it, it is 443. Two patterns have nothing
//! in common, or one pattern says exactly what they have in common, so a grant is an intersection that is written down in
//! the same form.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// The port of a pattern that names none: that of https.
const DEFAULT_PORT: u16 = 443;
/// The longest name (RFC 1035, as text without the dot of the root).
const MAX_NAME: usize = 253;
/// The longest label (RFC 1035).
const MAX_LABEL: usize = 63;

/// Hosts and ports, as `HOST[:PORT]` names them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPattern {
    host: Host,
    port: Port,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Host {
    Any,
    /// The suffix, without `*.`.
    Below(String),
    Name(String),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Port {
    Any,
    One(u16),
}

/// Checks a pattern of hosts, for configurations and manifests.
///
/// # Errors
/// Fails with the problem, for the author of the pattern.
pub fn check(text: &str) -> Result<(), String> {
    text.parse::<HostPattern>().map(|_| ())
}

/// The patterns that both lists allow, in the form of `Display`, without duplicates. An invalid entry allows no host.
#[must_use]
pub fn intersection(a: &[String], b: &[String]) -> Vec<String> {
    let parse = |list: &[String]| list.iter().filter_map(|text| text.parse().ok()).collect::<Vec<HostPattern>>();
    let (a, b) = (parse(a), parse(b));
    let mut both: Vec<String> = Vec::new();
    for text in a.iter().flat_map(|a| b.iter().filter_map(|b| a.intersection(b))).map(|pattern| pattern.to_string()) {
        if !both.contains(&text) {
            both.push(text);
        }
    }
    both
}

/// True if one of `patterns` matches. An invalid entry matches no host.
#[must_use]
pub fn any_matches(patterns: &[String], host: &str, port: u16) -> bool {
    patterns.iter().filter_map(|text| text.parse::<HostPattern>().ok()).any(|pattern| pattern.matches(host, port))
}

impl HostPattern {
    /// True if the pattern matches this host and port. `host` has the form of a parsed URL: a name, or an address, IPv6
    /// with or without brackets.
    #[must_use]
    pub fn matches(&self, host: &str, port: u16) -> bool {
        let port_matches = match self.port {
            Port::Any => true,
            Port::One(one) => one == port,
        };
        port_matches && self.host.matches(host)
    }

    /// True if the pattern matches every host that `other` matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.host.covers(&other.host) && (self.port == Port::Any || self.port == other.port)
    }

    /// The pattern of the hosts that both match, if any. If one pattern covers the other, the result is the narrower one;
    /// `*:443` and `example.com:*` give `example.com:443`.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let host = if self.host.covers(&other.host) {
            other.host.clone()
        } else if other.host.covers(&self.host) {
            self.host.clone()
        } else {
            return None;
        };
        let port = match (self.port, other.port) {
            (Port::Any, port) | (port, Port::Any) => port,
            (a, b) if a == b => a,
            _ => return None,
        };
        Some(Self { host, port })
    }

    /// True if the pattern matches every host, on one port or on all.
    #[must_use]
    pub fn is_any_host(&self) -> bool {
        self.host == Host::Any
    }
}

impl Host {
    fn matches(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Name(name) => name.eq_ignore_ascii_case(host),
            Self::Below(suffix) => {
                let host = host.to_ascii_lowercase();
                host.strip_suffix(suffix.as_str())
                    .and_then(|rest| rest.strip_suffix('.'))
                    .is_some_and(|above| !above.is_empty() && above.split('.').all(|label| !label.is_empty()))
            }
            Self::V4(address) => host.parse() == Ok(*address),
            Self::V6(address) => {
                let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
                host.parse() == Ok(*address)
            }
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Below(suffix), Self::Below(other)) => suffix == other || self.matches(other),
            (Self::Below(_), Self::Name(name)) => self.matches(name),
            (one, other) => one == other,
        }
    }
}

impl FromStr for HostPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|problem| format!("\"{}\" is no pattern of hosts: {problem}", text.escape_debug()))
    }
}

fn parse(text: &str) -> Result<HostPattern, &'static str> {
    if text.contains('/') {
        return Err("name a host and no URL, such as `api.example.com:443`");
    }
    if text.contains('@') {
        return Err("it has user information; a secret belongs into the configuration of secrets");
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']').ok_or("a `]` is missing")?;
            let address = address.parse().map_err(|_| "between the brackets there is no IPv6 address")?;
            let port = match rest {
                "" => None,
                _ => Some(rest.strip_prefix(':').ok_or("after `]` there may only be `:PORT`")?),
            };
            (Host::V6(address), port)
        }
        None => {
            let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
            if port.is_some_and(|port| port.contains(':')) {
                return Err("an IPv6 address needs brackets");
            }
            (parse_host(host)?, port)
        }
    };
    let port = match port {
        None => Port::One(DEFAULT_PORT),
        Some("*") => Port::Any,
        Some(number) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
            Port::One(number.parse().ok().filter(|port| *port > 0).ok_or("a port is a number from 1 to 65535, or `*`")?)
        }
        Some(_) => return Err("a port is a number from 1 to 65535, or `*`"),
    };
    Ok(HostPattern { host, port })
}

fn parse_host(host: &str) -> Result<Host, &'static str> {
    if host == "*" {
        return Ok(Host::Any);
    }
    if let Some(suffix) = host.strip_prefix("*.") {
        return match parse_name(suffix)? {
            Host::Name(suffix) => Ok(Host::Below(suffix)),
            _ => Err("below an address there are no hosts"),
        };
    }
    parse_name(host)
}

/// A name, or an IPv4 address: what ends in a number is never a name (URL standard).
fn parse_name(host: &str) -> Result<Host, &'static str> {
    if !host.is_ascii() {
        return Err("only ASCII is read here: write an international name in its `xn--` form");
    }
    if host.is_empty() {
        return Err("it names no host");
    }
    if host.contains('*') {
        return Err("`*` is allowed alone, or at the beginning as in `*.example.com`");
    }
    let last = host.rsplit('.').next().unwrap_or_default();
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    if (!last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()))
        || hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
    {
        return host.parse().map(Host::V4).map_err(|_| "it ends in a number and is no IPv4 address such as `192.0.2.7`");
    }
    if host.len() > MAX_NAME {
        return Err("a name has at most 253 characters");
    }
    let valid = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if !host.split('.').all(valid) {
        return Err("a name is made of labels with 1 to 63 of `A-Za-z0-9_-`, joined by dots");
    }
    Ok(Host::Name(host.to_ascii_lowercase()))
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Any => f.write_str("*")?,
            Host::Below(suffix) => write!(f, "*.{suffix}")?,
            Host::Name(name) => f.write_str(name)?,
            Host::V4(address) => write!(f, "{address}")?,
            Host::V6(address) => write!(f, "[{address}]")?,
        }
        match self.port {
            Port::Any => f.write_str(":*"),
            Port::One(port) => write!(f, ":{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> HostPattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_pattern_is_shown_in_one_form() {
        for (text, plain) in [
            ("api.example.com", "api.example.com:443"),
            ("API.Example.COM:80", "api.example.com:80"),
            ("*.example.com:*", "*.example.com:*"),
            ("*", "*:443"),
            ("*:*", "*:*"),
            ("192.0.2.7:8080", "192.0.2.7:8080"),
            ("[2001:DB8:0::7]", "[2001:db8::7]:443"),
            ("[::1]:*", "[::1]:*"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example:443"),
            ("my_service:9000", "my_service:9000"),
            ("localhost:1", "localhost:1"),
        ] {
            assert_eq!(pattern(text).to_string(), plain);
            assert_eq!(pattern(plain), pattern(text), "{plain}");
        }
    }

    #[test]
    fn invalid_patterns_are_refused_with_the_reason() {
        let long = format!("{}.com", "a".repeat(64));
        let longer = vec!["abcdefgh"; 30].join(".");
        for (text, reason) in [
            ("", "no host"),
            (":443", "no host"),
            ("https://example.com", "no URL"),
            ("example.com/path", "no URL"),
            ("user@example.com", "user information"),
            ("example.com:", "a port is"),
            ("example.com:0", "a port is"),
            ("example.com:65536", "a port is"),
            ("example.com:+80", "a port is"),
            ("example.com:https", "a port is"),
            ("2001:db8::7", "brackets"),
            ("[2001:db8::7", "`]`"),
            ("[2001:db8::7]443", "`:PORT`"),
            ("[example.com]", "IPv6"),
            ("[fe80::1%eth0]", "IPv6"),
            ("bücher.example", "ASCII"),
            ("a.*.example.com", "`*`"),
            ("*example.com", "`*`"),
            ("**", "`*`"),
            ("*.", "no host"),
            ("*.192.0.2.7", "address"),
            ("example..com", "labels"),
            ("example.com.", "labels"),
            (".example.com", "labels"),
            ("-a.example.com", "labels"),
            ("exa mple.com", "labels"),
            ("example.com\r\n", "labels"),
            ("127.1", "IPv4"),
            ("2130706433", "IPv4"),
            ("0x7f.0x1", "IPv4"),
            ("192.0.2.256", "IPv4"),
            (&long, "labels"),
            (&longer, "253"),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(!error.contains(['\r', '\n']), "{error:?}");
        }
    }

    #[test]
    fn a_request_is_matched_by_host_and_port() {
        for (text, host, port, expect) in [
            ("example.com", "example.com", 443, true),
            ("example.com", "EXAMPLE.com", 443, true),
            ("example.com", "example.com", 80, false),
            ("example.com", "example.com.", 443, false),
            ("example.com", "www.example.com", 443, false),
            ("example.com:*", "example.com", 80, true),
            ("*.example.com", "example.com", 443, false),
            ("*.example.com", "a.example.com", 443, true),
            ("*.example.com", "a.b.example.com", 443, true),
            ("*.example.com", "aexample.com", 443, false),
            ("*.example.com", ".example.com", 443, false),
            ("*.example.com", "a..example.com", 443, false),
            ("*.example.com", "a.example.com.evil.net", 443, false),
            ("*", "anything.example", 443, true),
            ("*", "10.0.0.1", 443, true),
            ("*", "anything.example", 444, false),
            ("127.0.0.1:80", "127.0.0.1", 80, true),
            ("127.0.0.1:80", "127.0.0.2", 80, false),
            ("127.0.0.1:80", "[::ffff:127.0.0.1]", 80, false),
            ("[::1]:80", "[::1]", 80, true),
            ("[::1]:80", "::1", 80, true),
            ("[::1]:80", "[0:0:0:0:0:0:0:1]", 80, true),
            ("[::1]:80", "[::2]", 80, false),
        ] {
            assert_eq!(pattern(text).matches(host, port), expect, "{text} and {host}:{port}");
        }
    }

    #[test]
    fn an_intersection_is_the_narrower_pattern() {
        for (a, b, expect) in [
            ("example.com", "example.com:443", Some("example.com:443")),
            ("*", "example.com", Some("example.com:443")),
            ("*:443", "example.com:*", Some("example.com:443")),
            ("*.com:*", "*.example.com:80", Some("*.example.com:80")),
            ("*.example.com", "*.example.com", Some("*.example.com:443")),
            ("*.example.com", "a.example.com", Some("a.example.com:443")),
            ("*.example.com", "example.com", None),
            ("*.a.com", "*.b.com", None),
            ("example.com:80", "example.com:443", None),
            ("*", "[::1]", Some("[::1]:443")),
            ("*.1.example", "10.0.0.1", None),
        ] {
            let (a, b) = (pattern(a), pattern(b));
            let both = a.intersection(&b).map(|both| both.to_string());
            assert_eq!(both.as_deref(), expect, "{a} and {b}");
            assert_eq!(b.intersection(&a), a.intersection(&b));
        }
    }

    #[test]
    fn lists_are_intersected_without_duplicates_and_without_what_cannot_be_read() {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        let a = list(&["*.example.com", "a.example.com:443", "https://evil", "other.net", "bad host"]);
        let b = list(&["a.example.com", "A.example.com:443", "https://evil", "bad host"]);
        assert_eq!(intersection(&a, &b), ["a.example.com:443"]);
        assert!(intersection(&a, &[]).is_empty());
        assert!(!any_matches(&list(&["https://evil", "*:x"]), "evil", 443));
        assert!(any_matches(&list(&["bad host", "evil"]), "evil", 443));
    }

    fn host() -> impl Strategy<Value = String> {
        prop_oneof![
            prop::collection::vec(prop_oneof![Just("a"), Just("b"), Just("com")], 1..4).prop_map(|labels| labels.join(".")),
            Just("127.0.0.1".to_owned()),
            Just("[::1]".to_owned()),
        ]
    }

    fn text() -> impl Strategy<Value = String> {
        let host = prop_oneof![
            3 => host(),
            1 => Just("*".to_owned()),
            3 => prop::collection::vec(prop_oneof![Just("a"), Just("b"), Just("com")], 1..3)
                .prop_map(|labels| format!("*.{}", labels.join("."))),
        ];
        (host, prop_oneof![Just(""), Just(":443"), Just(":80"), Just(":*")]).prop_map(|(host, port)| host + port)
    }

    proptest! {
        #[test]
        fn covered_hosts_match(a in text(), b in text(), host in host(), port in prop_oneof![Just(443), Just(80), Just(1)]) {
            let (a, b) = (pattern(&a), pattern(&b));
            prop_assert!(!(a.covers(&b) && b.matches(&host, port)) || a.matches(&host, port));
            prop_assert!(a.covers(&a));
            if a.covers(&b) {
                prop_assert_eq!(a.intersection(&b), Some(b));
            }
        }

        #[test]
        fn an_intersection_allows_what_both_allow_and_nothing_else(
            a in prop::collection::vec(text(), 0..4),
            b in prop::collection::vec(text(), 0..4),
            host in host(),
            port in prop_oneof![Just(443), Just(80), Just(1)],
        ) {
            let both = intersection(&a, &b);
            let allowed = any_matches(&a, &host, port) && any_matches(&b, &host, port);
            prop_assert_eq!(any_matches(&both, &host, port), allowed, "{:?}", both);
        }

        #[test]
        fn whatever_is_read_reads_back(text in "[a-z0-9*.:_\\[\\]-]{0,20}") {
            if let Ok(read) = text.parse::<HostPattern>() {
                prop_assert_eq!(read.to_string().parse(), Ok(read));
            }
        }
    }
}
