//! Values as people read them.

use std::{borrow::Cow, fmt::Write};

use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// A member of a JSON value by its JSON pointer; `null` where it is not there.
pub(crate) fn member<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}

/// Text without control characters other than line breaks and tabs: each is shown as `\u{1b}` and the like.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    if text.chars().all(harmless) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if harmless(c) {
            escaped.push(c);
        } else {
            escaped.extend(c.escape_default());
        }
    }
    Cow::Owned(escaped)
}

/// The cells of a terminal that a text takes: two for a Chinese character, none for an accent of its own.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Text on one line, at most `max` cells and `max` characters of it.
pub(crate) fn one_line(text: &str, max: usize) -> String {
    let (mut flat, mut cells) = (String::new(), 0);
    for (count, c) in text.chars().enumerate() {
        let c = if c.is_control() { ' ' } else { c };
        cells += c.width().unwrap_or(0);
        if cells > max || count == max {
            return flat + "…";
        }
        flat.push(c);
    }
    flat
}

/// A size: `128.4 KiB`.
pub(crate) fn bytes(size: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if size < 1024 {
        return format!("{size} B");
    }
    // Exact enough to read: a tenth of a unit.
    let mut tenths = u128::from(size) * 10;
    let mut unit = "B";
    for next in UNITS {
        if tenths < 10_240 {
            break;
        }
        tenths = (tenths + 512) / 1024;
        unit = next;
    }
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// A duration: `340 ms`, `2.5 s`, `3 min 20 s`.
pub(crate) fn duration_ms(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        _ => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1_000),
    }
}

/// Lines of `name: value`, with the values under each other.
pub(crate) fn fields<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let fields: Vec<_> = fields.into_iter().collect();
    let width = fields.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    fields.into_iter().fold(String::new(), |mut text, (name, value)| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:width$}  {value}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        assert_eq!(printable("a\u{1b}[2Jb\n\tc\u{9b}"), "a\\u{1b}[2Jb\n\tc\\u{9b}");
        assert_eq!(one_line("a\nb\u{1b}cdef", 5), "a b c…");
        assert_eq!(one_line("abcde", 5), "abcde");
        assert_eq!(one_line("代理主机", 5), "代理…");
        assert_eq!(one_line(&"\u{301}".repeat(9), 5), "\u{301}".repeat(5) + "…");
    }

    #[test]
    fn sizes_and_durations_are_short() {
        for (size, expect) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (131_500, "128.4 KiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(bytes(size), expect);
        }
        for (ms, expect) in [(7, "7 ms"), (2_549, "2.5 s"), (200_999, "3 min 20 s")] {
            assert_eq!(duration_ms(ms), expect);
        }
    }

    #[test]
    fn fields_stand_under_each_other() {
        assert_eq!(fields([("run", "1".to_owned()), ("status", "failed".to_owned())]), "run     1\nstatus  failed\n");
    }
}
