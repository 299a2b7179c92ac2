//! Small JSON support for components: the contract has `json` fields, and a reader for them should not add 40 KB to a
//! component.
//!
//! [`from_str`] reads any type that `serde` can build; its errors name the field. [`IntoJson`] writes values that always
//! have a JSON form. For everything else use `serde_json` (re-exported by this crate), at the cost of its size.
//!
//! ```
//! use agent_host_sdk::json;
//!
//! #[derive(serde::Deserialize)]
//! struct Order {
//!     id: u64,
//! }
//!
//! let order: Order = json::from_str(r#"{"id": 7}"#)?;
//! assert_eq!(order.id, 7);
//! # Ok::<_, json::JsonError>(())
//! ```
//!
//! Measured against `serde_json` with `alloc` (release components, profile `guest`): `echo` has 145 KB with this reader,
//! 162 KB with `serde_json`, and 185 KB with its `float_roundtrip`, without which the last digit of a long number may be
//! read wrong; `local-agent`, which needs `serde_json` anyway, has 353, 339 and 361 KB. A context of 16 KB takes 201 to
//! 228 µs here, and 83 to 115 µs with `serde_json`. This reader keeps a small component small (`echo` below 150 KiB,
//! which a test checks) and numbers exact.

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

/// Returns true if `json` is a JSON object.
pub(crate) fn is_object(json: &str) -> bool {
    json.trim_start().starts_with('{') && from_str::<serde::de::IgnoredAny>(json).is_ok()
}
