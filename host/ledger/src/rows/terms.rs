//! Rows of [`Table::Terms`] and [`Table::SharedTerms`].
//!
//! The terms of a run are a version (one byte), the SHA-256 of the part that it shares with other runs, and the JSON of its
//! own part. Formats before 7 had the whole as JSON: such a value begins with `{`.

use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};
use sha2::{Digest as _, Sha256};

use crate::{
    digest::Digest,
    error::LedgerError,
    record::NewTerms,
    rows::{Reader, Table, json, malformed, raw},
};

const VERSION: u8 = 1;

/// Terms of a new run, with the digest of the shared part.
pub(crate) struct TermsRow {
    pub(crate) digest: Digest,
    terms: NewTerms,
}

impl TermsRow {
    pub(crate) fn prepare(terms: NewTerms) -> Self {
        Self { digest: digest(terms.shared.get().as_bytes()), terms }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.shared().len() + self.terms.own.get().len()
    }

    pub(crate) fn shared(&self) -> &[u8] {
        self.terms.shared.get().as_bytes()
    }

    pub(crate) fn write(&self, value: &mut Vec<u8>) {
        value.push(VERSION);
        value.extend_from_slice(&self.digest);
        value.extend_from_slice(self.terms.own.get().as_bytes());
    }
}

/// The name of a shared part.
pub(crate) fn digest(shared: &[u8]) -> Digest {
    Sha256::digest(shared).into()
}

/// A row of [`Table::Terms`].
pub(crate) enum StoredTerms<'a> {
    Whole(&'a [u8]),
    Parts { digest: &'a Digest, own: &'a [u8] },
}

impl<'a> StoredTerms<'a> {
    pub(crate) fn read(value: &'a [u8]) -> Result<Self, LedgerError> {
        match value.split_first() {
            Some((b'{', _)) => Ok(Self::Whole(value)),
            Some((&VERSION, rest)) => {
                let (digest, own) = rest.split_first_chunk().ok_or_else(|| malformed(Table::Terms))?;
                Ok(Self::Parts { digest, own })
            }
            _ => Err(malformed(Table::Terms)),
        }
    }
}

impl Reader {
    /// The terms of the run with this number, as a key.
    pub(crate) fn terms(&self, run_no: &[u8]) -> Result<Option<Box<RawValue>>, LedgerError> {
        let found = self.get(Table::Terms, run_no, |value| match StoredTerms::read(value)? {
            StoredTerms::Whole(text) => raw(Table::Terms, text),
            StoredTerms::Parts { digest, own } => {
                let lost = || LedgerError::damaged("the shared part of the terms of a run is not there");
                let shared = self.get(Table::SharedTerms, digest, |text| json::<Map<String, Value>>(Table::SharedTerms, text))?;
                let mut terms = shared.ok_or_else(lost)?;
                join(&mut terms, json(Table::Terms, own)?);
                to_raw_value(&terms).map_err(|error| LedgerError::not_json(&error))
            }
        })?;
        Ok(found)
    }
}

fn join(to: &mut Map<String, Value>, own: Map<String, Value>) {
    for (name, value) in own {
        match (to.get_mut(&name), value) {
            (Some(Value::Object(to)), Value::Object(own)) => join(to, own),
            (_, value) => drop(to.insert(name, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_parts_are_read_as_one_object() {
        let object = |value: Value| value.as_object().cloned().unwrap();
        let mut terms = object(json!({ "grant": { "runner": "r", "actor": null }, "config": {} }));
        join(&mut terms, object(json!({ "grant": { "actor": "ada" }, "depth": 1 })));
        assert_eq!(Value::Object(terms), json!({ "grant": { "runner": "r", "actor": "ada" }, "config": {}, "depth": 1 }));
    }

    #[test]
    fn foreign_bytes_are_no_terms() {
        for bytes in [&b""[..], &[2; 40], &[VERSION, 7]] {
            assert!(StoredTerms::read(bytes).is_err());
        }
    }
}
