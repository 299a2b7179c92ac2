//! JSON, small: the contract has `json` where a shape is open, and a component shall not grow by
//! 40 KB for it.
//!
//! [`from_str`] reads any type that `serde` can build, and its errors name the field. [`IntoJson`]
//! writes the values that cannot fail to have a JSON form. `serde_json` (re-exported by this crate)
//! does everything else, at the price of its size.

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
