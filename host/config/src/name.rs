//! Names in the file.

/// True if the text may be a name in the configuration, in paths and in keys of the ledger.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !text.is_empty() && text.len() <= 64 && text.chars().all(named)
}
