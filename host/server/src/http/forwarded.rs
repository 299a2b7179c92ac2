//! The facts that a host of a cluster says of a client whose request it forwards.

use std::net::SocketAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// The address of the client, and whether the request counts as one of the client's own machine. Read from connections of hosts alone,
/// and left out of every request that a client sends.
const FORWARDED_CLIENT: HeaderName = HeaderName::from_static("agent-host-client");
/// On the answer of a host that was asked as the active one and is not.
const MOVED: HeaderName = HeaderName::from_static("agent-host-moved");
/// The partition that a forwarded request is for. Hosts of the version before send none: their clusters have one.
const PARTITION: HeaderName = HeaderName::from_static("agent-host-partition");
/// A part of a request that is one at each partition ([`RequestPart`]).
const PART: HeaderName = HeaderName::from_static("agent-host-part");
/// Begins the name of every header that hosts send to each other.
const PREFIX: &str = "agent-host-";

/// The relation of a client to the machine of the host that it asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locality {
    /// The host lets the request in as one of its own machine, if it needs no key for these.
    ThisMachine,
    /// The request needs a key.
    Elsewhere,
}

/// A request that another host of the cluster has forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ForwardedRequest {
    /// The client, as the first host sees it.
    pub(crate) client: SocketAddr,
    pub(crate) locality: Locality,
}

impl ForwardedRequest {
    /// Writes the facts into the headers of a request. Headers of this kind that the client sent are gone afterwards.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        remove(headers);
        let locality = match self.locality {
            Locality::ThisMachine => "this-machine",
            Locality::Elsewhere => "elsewhere",
        };
        if let Ok(value) = HeaderValue::try_from(format!("{} {locality}", self.client)) {
            headers.insert(FORWARDED_CLIENT, value);
        }
    }

    /// Takes the facts out of the headers of a request. `None` where they are missing or malformed.
    pub(crate) fn take(headers: &mut HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(FORWARDED_CLIENT).iter();
        let (value, more) = (values.next(), values.next());
        let read = value.filter(|_| more.is_none()).and_then(Self::read);
        remove(headers);
        read
    }

    fn read(value: &HeaderValue) -> Option<Self> {
        let (client, locality) = value.to_str().ok()?.split_once(' ')?;
        let locality = match locality {
            "this-machine" => Locality::ThisMachine,
            "elsewhere" => Locality::Elsewhere,
            _ => return None,
        };
        Some(Self { client: client.parse().ok()?, locality })
    }
}

/// The part of a partition in what a sender of no workspace asks of all of them. An extension of the request, which no client can set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestPart {
    /// An executor has this credential, which the first partition has given.
    Registration { credential: String },
    /// The run that an executor could claim is shown, and not claimed.
    Peek,
    /// Counts that are merged with those of other partitions take the place of statistics. So many runs are looked at.
    Counts { most: u64 },
    /// A stream begins with the place after which its events come.
    Feed,
}

/// An extension of a request that does not wait for the owner of its partition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FailFast;

impl RequestPart {
    /// Writes the part into the headers of a request for another host.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        let value = match self {
            Self::Registration { credential } => HeaderValue::try_from(format!("registration {credential}")).ok(),
            Self::Peek => Some(HeaderValue::from_static("peek")),
            Self::Feed => Some(HeaderValue::from_static("feed")),
            Self::Counts { most } => HeaderValue::try_from(format!("counts {most}")).ok(),
        };
        if let Some(mut value) = value {
            value.set_sensitive(true);
            headers.insert(PART, value);
        }
    }

    /// The part in the headers of a request that another host has sent.
    pub(crate) fn read(headers: &HeaderMap) -> Option<Self> {
        let value = headers.get(PART)?.to_str().ok()?;
        match value.split_once(' ') {
            Some(("registration", credential)) => Some(Self::Registration { credential: credential.to_owned() }),
            Some(("counts", most)) => most.parse().ok().map(|most| Self::Counts { most }),
            None if value == "peek" => Some(Self::Peek),
            None if value == "feed" => Some(Self::Feed),
            _ => None,
        }
    }
}

/// Says which partition a request is for.
pub(crate) fn set_partition(headers: &mut HeaderMap, partition: u32) {
    headers.insert(PARTITION, partition.into());
}

/// The partition that a request of another host is for. `None` where the text is no number.
pub(crate) fn partition(headers: &HeaderMap) -> Option<u32> {
    match headers.get(PARTITION) {
        None => Some(0),
        Some(value) => value.to_str().ok()?.parse().ok(),
    }
}

/// Marks an answer as that of a host that is not the active one.
pub(crate) fn mark_moved(headers: &mut HeaderMap) {
    headers.insert(MOVED, HeaderValue::from_static("1"));
}

/// True for the answer of a host that is not the active one.
pub(crate) fn is_moved(headers: &HeaderMap) -> bool {
    headers.contains_key(MOVED)
}

/// Leaves out every header of hosts among themselves.
pub(crate) fn remove(headers: &mut HeaderMap) {
    let ours: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(PREFIX)).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_as_they_were_written_and_those_of_a_client_are_gone() {
        for client in ["203.0.113.7:5123", "[2001:db8::7]:5123"] {
            for locality in [Locality::ThisMachine, Locality::Elsewhere] {
                let facts = ForwardedRequest { client: client.parse().unwrap(), locality };
                let mut headers = HeaderMap::new();
                headers.append(FORWARDED_CLIENT, HeaderValue::from_static("127.0.0.1:1 this-machine"));
                headers.append(MOVED, HeaderValue::from_static("1"));
                facts.write(&mut headers);
                assert_eq!(headers.len(), 1);
                assert_eq!(ForwardedRequest::take(&mut headers), Some(facts));
                assert!(headers.is_empty());
            }
        }
    }

    #[test]
    fn a_part_is_read_as_it_was_written_and_leaves_with_the_facts() {
        let registration = RequestPart::Registration { credential: "ahx_0_s".to_owned() };
        for part in [RequestPart::Peek, registration, RequestPart::Counts { most: 7 }, RequestPart::Feed] {
            let mut headers = HeaderMap::new();
            part.write(&mut headers);
            assert_eq!(RequestPart::read(&headers), Some(part));
            remove(&mut headers);
            assert_eq!(RequestPart::read(&headers), None);
        }
        for text in ["", "registration", "peek 1", "counts", "counts x", "other x"] {
            let headers: HeaderMap = [(PART, HeaderValue::from_str(text).unwrap())].into_iter().collect();
            assert_eq!(RequestPart::read(&headers), None, "{text}");
        }
    }

    #[test]
    fn facts_that_no_host_writes_are_none() {
        for text in ["", "127.0.0.1:1", "127.0.0.1 this-machine", "127.0.0.1:1 here", "127.0.0.1:1  this-machine"] {
            let mut headers: HeaderMap = [(FORWARDED_CLIENT, HeaderValue::from_str(text).unwrap())].into_iter().collect();
            assert_eq!(ForwardedRequest::take(&mut headers), None, "{text}");
        }
        let mut twice = HeaderMap::new();
        twice.append(FORWARDED_CLIENT, HeaderValue::from_static("127.0.0.1:1 elsewhere"));
        twice.append(FORWARDED_CLIENT, HeaderValue::from_static("127.0.0.1:1 this-machine"));
        assert_eq!(ForwardedRequest::take(&mut twice), None);
    }
}
