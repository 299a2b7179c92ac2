//! JSON, small: the contract has `json` where a shape is open, and a component shall not grow by
//! 40 KB for it.
//!
//! [`from_str`] reads any type that `serde` can build, and its errors name the field. [`IntoJson`]
//! writes the values that cannot fail to have a JSON form. `serde_json` (re-exported by this crate)
//! does everything else, at the price of its size.
//!
//! Measured against `serde_json` with `alloc` (release components, profile `guest`): `echo` has 145 KB with this reader, 162 KB
//! with `serde_json`, and 185 KB with its `float_roundtrip`, without which the last digit of a long number may be read wrong;
//! `local-agent`, which needs `serde_json` anyway, has 353, 339 and 361 KB. A context of 16 KB is read in 201 to 228 µs here, in
//! 83 to 115 µs there. The reader stays because a small component stays small (`echo` below 150 KiB, which a test holds) and
//! numbers are exact; it goes where size no longer counts.

mod error;
mod read;
mod scan;
#[cfg(test)]
mod tests;
mod write;

pub use error::JsonError;
pub use read::from_str;
pub(crate) use scan::Reader;
pub use write::IntoJson;

/// Whether `json` is a JSON object, whatever is in it.
pub(crate) fn is_object(json: &str) -> bool {
    json.trim_start().starts_with('{') && from_str::<serde::de::IgnoredAny>(json).is_ok()
}
