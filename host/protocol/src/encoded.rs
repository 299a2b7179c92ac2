//! The length and the hash of a value as JSON, without the text in memory.

use std::io::{self, Write};

use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

/// Counts bytes.
#[derive(Default)]
struct Counter(usize);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Hashes bytes.
struct Hasher(Xxh3);

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes of a value as JSON; `usize::MAX` for a value that JSON does not take.
#[must_use]
pub fn json_len(value: &impl Serialize) -> usize {
    let mut counter = Counter::default();
    serde_json::to_writer(&mut counter, value).map_or(usize::MAX, |()| counter.0)
}

/// The XXH3 hash of a value as JSON; that of no bytes for a value that JSON does not take.
#[must_use]
pub fn json_hash(value: &impl Serialize) -> u64 {
    let mut hasher = Hasher(Xxh3::new());
    match serde_json::to_writer(&mut hasher, value) {
        Ok(()) => hasher.0.digest(),
        Err(_) => Xxh3::new().digest(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    #[test]
    fn length_and_hash_are_those_of_the_text() {
        for value in [json!(null), json!({ "text": "é\n\"", "n": [1.5, -3] }), json!("x".repeat(5_000))] {
            let text = serde_json::to_vec(&value).unwrap();
            assert_eq!(json_len(&value), text.len());
            assert_eq!(json_hash(&value), xxh3_64(&text));
        }
    }
}
