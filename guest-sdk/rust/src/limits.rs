//! Size limits of the host, and the lower limits of this SDK.
//!
//! The host enforces its limits. The constants only keep the helpers of this SDK below them. Lengths are in bytes of the
//! JSON text.

/// Maximum data of one result, in the host's default configuration. Larger data must be an artifact.
pub const RESULT_BYTES: usize = 32 * 1024;

/// Maximum number of results of one `results.emit`.
pub const BATCH_RESULTS: usize = 64;

/// Maximum data of all results of one `results.emit`.
pub const BATCH_BYTES: usize = 256 * 1024;

/// Length of text that [`MessageWriter::write`](crate::MessageWriter::write) collects before it emits a delta. A delta
/// costs the host one ledger row, so one delta per token would be waste, and a reader does not notice a delay of one
/// line.
pub const FLUSH_BYTES: usize = 512;

/// Length at which the text of a streaming model is emitted: a few words. A reader does not notice a delay of a few
/// tokens, and a fast model does not cost one host call per token.
pub const STREAM_BYTES: usize = 32;

/// Maximum text of one delta. Far below [`RESULT_BYTES`], so that a slow reader receives text early.
pub const DELTA_BYTES: usize = 8 * 1024;

/// Maximum text of one message: [`RESULT_BYTES`] less room for the id and the frame. A longer text becomes several
/// messages.
pub const MESSAGE_BYTES: usize = RESULT_BYTES - 2 * 1024;

/// Size of a result beside its strings: field names, brackets, run id.
const FRAME_BYTES: usize = 256;

/// Returns the size of one result for [`BATCH_BYTES`]; never less than the host counts.
pub(crate) fn frame_bytes(strings: usize) -> usize {
    strings + FRAME_BYTES
}

/// Returns the length of `text` inside a JSON string, in bytes.
pub(crate) fn json_len(text: &str) -> usize {
    text.chars().map(char_json_len).sum()
}

/// Converts a duration to milliseconds. Saturates at `u64::MAX`.
pub(crate) fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Converts a duration to milliseconds for the waits of the contract. Saturates at `u32::MAX`, about 49 days.
pub(crate) fn millis32(time: std::time::Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// Splits `text` into the longest head whose JSON form has at most `max` bytes, and the rest, at a character boundary.
/// The head of a non-empty text is empty only if `max` is too small for the first character.
pub(crate) fn split_at_json_len(text: &str, max: usize) -> (&str, &str) {
    let mut len = 0;
    for (at, char) in text.char_indices() {
        len += char_json_len(char);
        if len > max {
            return text.split_at(at);
        }
    }
    (text, "")
}

fn char_json_len(char: char) -> usize {
    match char {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\u{0}'..='\u{1f}' => 6,
        _ => char.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_that_of_the_json_text() {
        for text in ["", "plain", "a\"b\\c\nd", "\u{0}\u{1f}", "größer 🦀 \u{2028}\u{7f}"] {
            let json = serde_json::to_string(text).unwrap();
            assert_eq!(json_len(text) + 2, json.len(), "{json}");
        }
    }

    #[test]
    fn a_character_is_never_split() {
        assert_eq!(split_at_json_len("añ🦀z", 3), ("añ", "🦀z"));
        assert_eq!(split_at_json_len("añ🦀z", 6), ("añ", "🦀z"));
        assert_eq!(split_at_json_len("añ🦀z", 7), ("añ🦀", "z"));
        assert_eq!(split_at_json_len("añ🦀z", 8), ("añ🦀z", ""));
        assert_eq!(split_at_json_len("\"\"", 3), ("\"", "\""));
        assert_eq!(split_at_json_len("🦀", 3), ("", "🦀"));
    }
}
