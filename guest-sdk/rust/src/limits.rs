//! What the host accepts at most, and where this SDK stays below it.
//!
//! The host is the one that judges; these numbers only keep a runner that uses the helpers of this
//! SDK from being refused. Lengths are those of the JSON text, in bytes.

/// Data of one result, in the host's default configuration. More must be an artifact.
pub const RESULT_BYTES: usize = 32 * 1024;

/// Results of one `results.emit`.
pub const BATCH_RESULTS: usize = 64;

/// Data of all results of one `results.emit`.
pub const BATCH_BYTES: usize = 256 * 1024;

/// How much text [`MessageWriter::write`](crate::MessageWriter::write) collects before it emits:
/// a delta costs the host one ledger row, so a token each would be waste, and a reader does not
/// notice a line.
pub const FLUSH_BYTES: usize = 512;

/// From which length on text of a model that is being waited for is emitted: some words. A reader
/// does not see a wait of a few tokens, and a fast model does not cost a host call a token.
pub const STREAM_BYTES: usize = 32;

/// Text of one delta. Far below [`RESULT_BYTES`], so that a slow reader gets something early.
pub const DELTA_BYTES: usize = 8 * 1024;

/// Text of one message: [`RESULT_BYTES`] less room for its id and its frame. A longer text becomes
/// several messages.
pub const MESSAGE_BYTES: usize = RESULT_BYTES - 2 * 1024;

/// Room that a result takes beside its strings: names of fields, brackets, id of the run.
const FRAME_BYTES: usize = 256;

/// What one result adds to [`BATCH_BYTES`], never less than the host counts.
pub(crate) fn framed(strings: usize) -> usize {
    strings + FRAME_BYTES
}

/// Length of `text` as the inside of a JSON string.
pub(crate) fn json_len(text: &str) -> usize {
    text.chars().map(char_json_len).sum()
}

/// A time in milliseconds; one that is too long is the longest.
pub(crate) fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// As [`millis`], for the waits of the contract: at most some 49 days.
pub(crate) fn millis32(time: std::time::Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// The longest head of `text` whose JSON form has at most `max` bytes, and the rest. Never splits
/// a character; the head of a text is empty only when `max` is too small for its first character.
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
