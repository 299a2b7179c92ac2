//! The digest of the record of a run: a chain of SHA-256 over its events, which the ledger keeps with the run.
//!
//! ```text
//! digest 0 = SHA-256(piece("agent-host record v1") piece(run id) SHA-256(JSON of the event that the run answers))
//! digest n = SHA-256(digest n-1  piece(sequence) piece(type) piece(timestamp) piece(source) piece(data) piece(metadata))
//! ```
//!
//! A piece is a text behind its length in bytes (8 bytes, big-endian). Numbers are decimal; `data` and `metadata` are JSON, byte for
//! byte as the host stores and shows them; absent metadata is the empty text. Whoever has the events can compute the digest again, so
//! a changed, missing or added event shows.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use sha2::{Digest, Sha256};

use crate::{EventSource, RunEvent, RunId, Timestamp, hex};

/// The name of the chain, which no other hash of the host begins with.
const NAME: &str = "agent-host record v1";

/// A digest of the record of a run up to one event.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordDigest([u8; 32]);

/// The parts of an event that the digest covers.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields of a `RunEvent`")]
pub struct DigestedEvent<'a> {
    pub sequence: u64,
    pub kind: &'a str,
    pub timestamp: Timestamp,
    pub source: EventSource,
    pub data: &'a str,
    /// Empty for an event without metadata.
    pub metadata: &'a str,
}

impl<'a> From<&'a RunEvent> for DigestedEvent<'a> {
    fn from(event: &'a RunEvent) -> Self {
        Self {
            sequence: event.sequence,
            kind: &event.kind,
            timestamp: event.timestamp,
            source: event.source,
            data: event.data.get(),
            metadata: event.metadata.as_ref().map_or("", |metadata| metadata.get()),
        }
    }
}

impl RecordDigest {
    /// The digest of a run without events. `event` is the JSON of the event that the run answers.
    #[must_use]
    pub fn begin(run_id: RunId, event: &[u8]) -> Self {
        let mut hash = Sha256::new();
        piece(&mut hash, NAME.as_bytes());
        // A UUID in its usual form, without an allocation for it.
        let mut id = [0; uuid::fmt::Hyphenated::LENGTH];
        piece(&mut hash, uuid::Uuid::from_bytes(run_id.to_bytes()).hyphenated().encode_lower(&mut id).as_bytes());
        hash.update(Sha256::digest(event));
        Self(hash.finalize().into())
    }

    /// The digest after one more event.
    #[must_use]
    pub fn and(self, event: DigestedEvent<'_>) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        number(&mut hash, event.sequence);
        piece(&mut hash, event.kind.as_bytes());
        number(&mut hash, event.timestamp);
        piece(&mut hash, event.source.as_str().as_bytes());
        piece(&mut hash, event.data.as_bytes());
        piece(&mut hash, event.metadata.as_bytes());
        Self(hash.finalize().into())
    }
}

fn piece(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_be_bytes());
    hash.update(bytes);
}

/// The decimal digits of a number, without an allocation.
fn number(hash: &mut Sha256, mut number: u64) {
    let mut digits = [0_u8; 20];
    let mut count = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
        (number, count) = (number / 10, count + 1);
        if number == 0 {
            break;
        }
    }
    piece(hash, digits.get(digits.len() - count..).unwrap_or_default());
}

impl fmt::Display for RecordDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RecordDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for RecordDigest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = hex::decode(text).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or("a digest is 64 hexadecimal digits")
    }
}

impl Serialize for RecordDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0_u8; 64];
        for (pair, byte) in text.as_chunks_mut::<2>().0.iter_mut().zip(self.0) {
            let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or_default();
            *pair = [digit(byte >> 4), digit(byte & 15)];
        }
        serializer.serialize_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for RecordDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event<'a>(sequence: u64, data: &'a str) -> DigestedEvent<'a> {
        DigestedEvent {
            sequence,
            kind: "message.delta",
            timestamp: 1_700_000_000_123,
            source: EventSource::Runner,
            data,
            metadata: "",
        }
    }

    #[test]
    fn the_digest_is_the_chain_of_the_page() {
        let id: RunId = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
        let begun = RecordDigest::begin(id, b"{}");
        let framed = |texts: &[&str]| -> Vec<u8> {
            texts.iter().flat_map(|text| [&(text.len() as u64).to_be_bytes()[..], text.as_bytes()].concat()).collect()
        };
        let first = [framed(&[NAME, &id.to_string()]), Sha256::digest(b"{}").to_vec()].concat();
        assert_eq!(begun.to_string(), hex::encode(&Sha256::digest(first)));
        let pieces = framed(&["18446744073709551615", "message.delta", "1700000000123", "runner", "{\"a\": 1}", ""]);
        let next = [begun.0.to_vec(), pieces].concat();
        assert_eq!(begun.and(event(u64::MAX, "{\"a\": 1}")).to_string(), hex::encode(&Sha256::digest(next)));
        assert_eq!(framed(&["0"]).len(), 9, "zero has one digit");
    }

    #[test]
    fn every_part_counts_and_pieces_do_not_run_together() {
        let begun = RecordDigest::begin(RunId::new(), b"{}");
        let base = event(1, "{}");
        let digests = [
            begun.and(base),
            begun.and(event(2, "{}")),
            begun.and(event(1, "{ }")),
            begun.and(DigestedEvent { timestamp: 1, ..base }),
            begun.and(DigestedEvent { source: EventSource::Host, ..base }),
            begun.and(DigestedEvent { kind: "message.delta{}", data: "", ..base }),
            begun.and(DigestedEvent { data: "", metadata: "{}", ..base }),
            begun.and(base).and(base),
            begun,
            RecordDigest::begin(RunId::new(), b"{}"),
        ];
        let distinct: std::collections::HashSet<_> = digests.iter().collect();
        assert_eq!(distinct.len(), digests.len());
    }

    #[test]
    fn json_has_hexadecimal_digits_and_nothing_else_is_read() {
        let digest = RecordDigest::begin(RunId::new(), b"{}");
        let text = serde_json::to_string(&digest).unwrap();
        assert_eq!(text, format!("\"{digest}\""));
        assert_eq!(serde_json::from_str::<RecordDigest>(&text).unwrap(), digest);
        for bad in ["\"\"", "\"00\"", "7", &text.replace(|c: char| c.is_ascii_hexdigit(), "g")] {
            assert!(serde_json::from_str::<RecordDigest>(bad).is_err(), "{bad}");
        }
    }
}
