//! Hexadecimal, as digests, ids and signatures are written.

/// Lower-case digits, two for each byte.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    append(&mut text, bytes);
    text
}

/// The same digits at the end of a text.
pub fn append(text: &mut String, bytes: &[u8]) {
    text.extend(bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).filter_map(|digit| char::from_digit(digit.into(), 16)));
}

/// The bytes of digits of either case. `None` for any other character and for an odd number of digits.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| u8::try_from(char::from(byte).to_digit(16)?).ok();
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn digits_of_either_case_are_read_and_nothing_else() {
        assert_eq!(encode(&[0, 9, 0xab, 0xff]), "0009abff");
        assert_eq!(decode("0009aBFf"), Some(vec![0, 9, 0xab, 0xff]));
        assert_eq!(decode(""), Some(vec![]));
        for text in ["0", "000", "0g", "+1", " 1", "0x", "é", "1\u{661}"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn bytes_are_read_back(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let text = encode(&bytes);
            prop_assert_eq!(&text, &bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
            prop_assert_eq!(decode(&text), Some(bytes));
        }
    }
}
