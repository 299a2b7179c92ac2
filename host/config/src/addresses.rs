//! The addresses that guests and confined agents may reach.
//!
//! Both reach only addresses that are routed in the public internet, and those that `egress.allow_addresses` names. The list follows
//! the registries of special addresses of IANA (RFC 6890 and its successors); unassigned addresses are refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::egress::network;

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6(a: u16, b: u16, length: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), length)
}

/// IPv4 that is not public.
const SPECIAL_V4: [Ipv4Net; 17] = [
    v4(0, 0, 0, 0, 8),        // this network
    v4(10, 0, 0, 0, 8),       // private
    v4(100, 64, 0, 0, 10),    // between providers and their customers; 100.100.100.200 is the metadata of a cloud
    v4(127, 0, 0, 0, 8),      // loopback
    v4(168, 63, 129, 16, 32), // public by its number, and the host of the machine in a cloud
    v4(169, 254, 0, 0, 16),   // link-local; 169.254.169.254 is the metadata of most clouds
    v4(172, 16, 0, 0, 12),    // private
    v4(192, 0, 0, 0, 24),     // protocols; 192.0.0.192 is the metadata of a cloud
    v4(192, 0, 2, 0, 24),     // documentation
    v4(192, 31, 196, 0, 24),  // AS112
    v4(192, 88, 99, 0, 24),   // relays of 6to4
    v4(192, 168, 0, 0, 16),   // private
    v4(198, 18, 0, 0, 15),    // benchmarks
    v4(198, 51, 100, 0, 24),  // documentation
    v4(203, 0, 113, 0, 24),   // documentation
    v4(224, 0, 0, 0, 4),      // multicast
    v4(240, 0, 0, 0, 4),      // reserved, and broadcast
];

/// The range of all public IPv6 unicast addresses...
const UNICAST_V6: Ipv6Net = v6(0x2000, 0, 3);
/// ... or in here: IPv4 behind a translator.
const NAT64: Ipv6Net = v6(0x64, 0xff9b, 96);
/// IPv4 within IPv6 by tunnel.
const SIX_TO_FOUR: Ipv6Net = v6(0x2002, 0, 16);
/// ... and its exceptions.
const SPECIAL_V6: [Ipv6Net; 3] = [
    v6(0x2001, 0, 23),     // protocols: Teredo (IPv4 within), benchmarks, ORCHID
    v6(0x2001, 0xdb8, 32), // documentation
    v6(0x3fff, 0, 20),     // documentation
];

/// The rules for addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressRules {
    allowed: Vec<IpNet>,
}

impl AddressRules {
    /// The rules with what the operator allows besides: networks as `10.0.0.0/8`, or single addresses.
    ///
    /// # Errors
    /// Fails if a text is neither.
    pub fn new(texts: &[String]) -> Result<Self, String> {
        let allowed = texts.iter().map(|text| network(text)).collect::<Result<_, _>>()?;
        Ok(Self { allowed })
    }

    /// True if the address may be reached.
    #[must_use]
    pub fn permits(&self, address: IpAddr) -> bool {
        // `::ffff:a.b.c.d` connects to a.b.c.d.
        let address = address.to_canonical();
        self.allows(address)
            || match address {
                IpAddr::V4(address) => !SPECIAL_V4.iter().any(|net| net.contains(&address)),
                IpAddr::V6(address) => {
                    let public = NAT64.contains(&address)
                        || (UNICAST_V6.contains(&address) && !SPECIAL_V6.iter().any(|net| net.contains(&address)));
                    public && within(address).is_none_or(|address| self.permits(IpAddr::V4(address)))
                }
            }
    }

    /// True if a secret may be sent to the address without TLS: the address is this machine, and the operator allows it.
    #[must_use]
    pub fn permits_plain_secrets(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_loopback() && self.allows(address)
    }

    fn allows(&self, address: IpAddr) -> bool {
        self.allowed.iter().any(|net| net.contains(&address))
    }
}

/// The IPv4 address within a public IPv6 address, where it holds one: what a translator or a tunnel connects to.
fn within(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [_, a, b, .., c, d] = address.segments();
    let (high, low) = if NAT64.contains(&address) {
        (c, d)
    } else if SIX_TO_FOUR.contains(&address) {
        (a, b)
    } else {
        return None;
    };
    Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allowed: &[&str]) -> AddressRules {
        AddressRules::new(&allowed.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn only_public_addresses_are_reached() {
        let rules = rules(&[]);
        for refused in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::808:808",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::808:808",
            "100::1",
            "2001::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2001:2::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2002:a9fe:a9fe::",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fdff::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!rules.permits(refused.parse().unwrap()), "{refused}");
        }
        for open in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.255.255",
            "172.32.0.1",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
            "2606:4700::1111",
            "2a00:1450::1",
        ] {
            assert!(rules.permits(open.parse().unwrap()), "{open}");
        }
    }

    #[test]
    fn the_operator_may_open_more() {
        let rules = rules(&["127.0.0.0/8", "10.1.2.3", "fd00::/8"]);
        for (address, expect) in [
            ("127.0.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("64:ff9b::7f00:1", true),
            ("10.1.2.3", true),
            ("10.1.2.4", false),
            ("::ffff:10.1.2.4", false),
            ("fd00:ec2::254", true),
            ("fc00::1", false),
            ("::1", false),
            ("169.254.169.254", false),
        ] {
            assert_eq!(rules.permits(address.parse().unwrap()), expect, "{address}");
        }
    }

    #[test]
    fn a_whole_family_of_ipv6_does_not_open_ipv4() {
        assert!(!rules(&["::/0"]).permits("::ffff:127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn secrets_go_without_tls_only_to_the_machine_itself() {
        let local = rules(&["127.0.0.1", "10.0.0.0/8"]);
        assert!(local.permits_plain_secrets("127.0.0.1".parse().unwrap()));
        assert!(local.permits_plain_secrets("::ffff:127.0.0.1".parse().unwrap()));
        for address in ["127.0.0.2", "10.0.0.1", "8.8.8.8", "::1"] {
            assert!(!local.permits_plain_secrets(address.parse().unwrap()), "{address}");
        }
    }
}
