//! Digests of blobs, and their text: 64 hexadecimal digits.

use std::fmt;

/// SHA-256 of the bytes of a blob.
pub(crate) type Digest = [u8; 32];

pub(crate) fn hex(digest: &Digest) -> String {
    use fmt::Write;
    digest.iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A digest as people and records write it; only lower case, so that a blob has one name.
pub(crate) fn parse_hex(text: &str) -> Option<Digest> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut digest = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_back_and_has_one_spelling() {
        let digest: Digest = std::array::from_fn(|place| place as u8 * 7);
        assert_eq!(parse_hex(&hex(&digest)), Some(digest));
        assert_eq!(parse_hex(&hex(&digest).to_uppercase()), None);
        for wrong in ["", "ab", "../../../../../../../etc/passwd", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(parse_hex(wrong), None, "{wrong}");
        }
    }
}
