//! The marks of results that executors have appended.

use agent_host_protocol::encoded::JsonText;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The place of a result among those that an executor has appended in a claim, and the hash of what it sent. It is stored with the
/// event of the result and shown to no reader of events: [`crate::Ledger::appended_results`] gives it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendMark {
    /// Number of the claim.
    pub claim: u32,
    /// Number of the result, counted by the executor from 1 in each claim.
    pub number: u64,
    /// Hash of the result as it was sent.
    pub hash: u64,
}

/// The stored form: an array in the place of the metadata, which is an object.
#[derive(Serialize, Deserialize)]
struct StoredMark<'a>(u32, u64, u64, #[serde(borrow)] Option<&'a RawValue>);

impl AppendMark {
    /// The mark together with the metadata of the result, in the form of a row. `None` if it cannot be written as JSON.
    #[must_use]
    pub fn with(self, metadata: Option<&JsonText>) -> Option<JsonText> {
        let metadata = match metadata {
            Some(metadata) => Some(serde_json::from_str::<&RawValue>(metadata.get()).ok()?),
            None => None,
        };
        let Self { claim, number, hash } = self;
        serde_json::value::to_raw_value(&StoredMark(claim, number, hash, metadata)).ok().map(JsonText::from)
    }

    /// The mark and the metadata of a row. A row of a result that nobody has marked has metadata alone.
    pub(crate) fn split(stored: &str) -> (Option<Self>, &str) {
        if !stored.starts_with('[') {
            return (None, stored);
        }
        match serde_json::from_str(stored) {
            Ok(StoredMark(claim, number, hash, metadata)) => {
                (Some(Self { claim, number, hash }), metadata.map_or("", RawValue::get))
            }
            Err(_) => (None, stored),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_back_beside_the_metadata() {
        let mark = AppendMark { claim: 3, number: 17, hash: u64::MAX };
        let metadata = JsonText::from(RawValue::from_string("{\"a\": [1]}".to_owned()).unwrap());
        for (metadata, text) in [(None, ""), (Some(metadata), "{\"a\": [1]}")] {
            let stored = mark.with(metadata.as_ref()).unwrap();
            assert_eq!(AppendMark::split(stored.get()), (Some(mark), text));
        }
        assert_eq!(AppendMark::split("{}"), (None, "{}"));
        assert_eq!(AppendMark::split(""), (None, ""));
    }
}
