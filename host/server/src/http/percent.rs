//! Percent-encoding (RFC 3986).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// All but the unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The bytes of a text. `None` where a `%` stands before something else than two hexadecimal digits.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let is_byte = |rest: &str| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    text.split('%').skip(1).all(is_byte).then(|| percent_decode_str(text).collect())
}

/// A text as a segment of a path, or as a value of a query.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percent_sign_without_two_digits_is_no_encoding() {
        assert_eq!(decode("a%20%C3%a4+").unwrap(), "a ä+".as_bytes());
        assert_eq!(decode("%ff").unwrap(), [0xff]);
        for wrong in ["%", "%4", "%zz", "%+1", "%%41", "a%2"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
        assert_eq!(encode("a b/é"), "a%20b%2F%C3%A9");
    }
}
