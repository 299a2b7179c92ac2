//! Values as JSON: their text in one block of its size, and their length and hash without the text.

use std::{
    cell::RefCell,
    io::{self, Write},
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error};
use serde_json::value::RawValue;
use xxhash_rust::xxh3::Xxh3;

/// Memory that a thread keeps to encode in.
const MAX_SCRATCH_BYTES: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Encodes a value in memory that the thread keeps, and gives what `take` makes of the text.
fn encoded<T>(value: &impl Serialize, take: impl FnOnce(&[u8]) -> T) -> serde_json::Result<T> {
    let mut scratch = SCRATCH.take();
    scratch.clear();
    let result = serde_json::to_writer(&mut scratch, value).map(|()| take(&scratch));
    if scratch.capacity() <= MAX_SCRATCH_BYTES {
        SCRATCH.set(scratch);
    }
    result
}

/// The JSON of a value, in one block of its size.
///
/// # Errors
/// For a value that JSON does not take.
pub fn json_bytes(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    encoded(value, <[u8]>::to_vec)
}

/// The JSON text of a value, in one block of its size.
///
/// # Errors
/// For a value that JSON does not take.
pub fn json_string(value: &impl Serialize) -> serde_json::Result<String> {
    encoded(value, |bytes| std::str::from_utf8(bytes).map(str::to_owned))?.map_err(Error::custom)
}

/// The JSON of a value as raw JSON, in one block of its size.
///
/// # Errors
/// For a value that JSON does not take.
pub fn json_raw(value: &impl Serialize) -> serde_json::Result<Box<RawValue>> {
    encoded(value, |bytes| serde_json::from_slice::<&RawValue>(bytes).map(ToOwned::to_owned))?
}

/// JSON text that is written as it is: it was encoded here, or read as JSON. Clones share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonText(Arc<str>);

impl JsonText {
    /// The text of a value.
    ///
    /// # Errors
    /// For a value that JSON does not take.
    pub fn of(value: &impl Serialize) -> serde_json::Result<Self> {
        encoded(value, |bytes| std::str::from_utf8(bytes).map(|text| Self(text.into())))?.map_err(Error::custom)
    }

    /// `{}`.
    #[must_use]
    pub fn empty_object() -> Self {
        Self("{}".into())
    }

    /// JSON that somebody has written, without the white space around its values: its members stay in their order.
    ///
    /// # Errors
    /// For a text that is no JSON.
    pub fn compact(text: &str) -> serde_json::Result<Self> {
        let _: &RawValue = serde_json::from_str(text)?;
        let mut compact = String::with_capacity(text.len());
        let (mut in_string, mut is_escaped) = (false, false);
        for c in text.chars() {
            if in_string {
                in_string = is_escaped || c != '"';
                is_escaped = !is_escaped && c == '\\';
            } else if c.is_ascii_whitespace() {
                continue;
            } else {
                in_string = c == '"';
            }
            compact.push(c);
        }
        Ok(Self(compact.into()))
    }

    /// The text.
    #[must_use]
    pub fn get(&self) -> &str {
        &self.0
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(&self.0).map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JsonText {
    /// Of JSON as text. A value that was read before has lost the order of its members.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self::from)
    }
}

impl From<Box<RawValue>> for JsonText {
    fn from(value: Box<RawValue>) -> Self {
        Self(Box::<str>::from(value).into())
    }
}

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
    fn compact_json_keeps_the_order_of_its_members() {
        let text = " {\n \"b\" : [ 1, \"a \\\" b \\\\\" ] ,\t\"a\": { \"z\": null, \"y\" : 2 }\r}\n";
        let compact = JsonText::compact(text).unwrap();
        assert_eq!(compact.get(), r#"{"b":[1,"a \" b \\"],"a":{"z":null,"y":2}}"#);
        assert_eq!(serde_json::to_string(&[&compact]).unwrap(), format!("[{}]", compact.get()));
        assert_eq!(serde_json::from_str::<JsonText>(compact.get()).unwrap(), compact);
        assert!(JsonText::compact("{} {}").is_err() && JsonText::compact("\"").is_err());
    }

    #[test]
    fn length_and_hash_are_those_of_the_text() {
        for value in [json!(null), json!({ "text": "é\n\"", "n": [1.5, -3] }), json!("x".repeat(5_000))] {
            let text = serde_json::to_vec(&value).unwrap();
            assert_eq!(json_len(&value), text.len());
            assert_eq!(json_hash(&value), xxh3_64(&text));
            assert_eq!(JsonText::of(&value).unwrap().get().as_bytes(), text);
        }
    }
}
