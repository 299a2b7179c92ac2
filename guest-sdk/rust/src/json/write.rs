//! Conversion to JSON for types that always have a JSON form.

use serde_json::Value;

/// Argument type of the builders for `json` fields of the contract: `serde_json::json!({...})`, a number, a text, a
/// boolean. For other types use `serde_json::to_value`, which can fail, and pass the [`Value`].
///
/// A separate trait instead of `Into<Value>` keeps the writer of arbitrary JSON (some 15 KB) out of a runner that only
/// writes a number.
pub trait IntoJson {
    /// Returns the JSON document.
    fn into_json(self) -> String;
}

impl IntoJson for Value {
    fn into_json(self) -> String {
        self.to_string()
    }
}

impl IntoJson for bool {
    fn into_json(self) -> String {
        if self { "true" } else { "false" }.to_owned()
    }
}

impl IntoJson for String {
    fn into_json(self) -> String {
        self.as_str().into_json()
    }
}

impl IntoJson for &str {
    fn into_json(self) -> String {
        let mut json = String::with_capacity(self.len() + 2);
        json.push('"');
        for char in self.chars() {
            match char {
                '"' => json.push_str("\\\""),
                '\\' => json.push_str("\\\\"),
                '\u{0}'..='\u{1f}' => {
                    json.push_str("\\u00");
                    let digit = |value: u32| char::from_digit(value, 16).unwrap_or('0');
                    json.push(digit(u32::from(char) >> 4));
                    json.push(digit(u32::from(char) & 15));
                }
                char => json.push(char),
            }
        }
        json.push('"');
        json
    }
}

macro_rules! integers {
    ($($integer:ty),+) => {
        $(impl IntoJson for $integer {
            fn into_json(self) -> String {
                self.to_string()
            }
        })+
    };
}

integers!(i8, i16, i32, i64, isize, u8, u16, u32, u64, usize);

/// A number without a JSON form is `null`, as in `serde_json`.
impl IntoJson for f64 {
    fn into_json(self) -> String {
        if self.is_finite() { self.to_string() } else { "null".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_the_one_that_serde_json_reads_back() {
        for text in ["", "plain", "a\"b\\c\n\t\u{0}\u{1f}", "größer 🦀 \u{2028}\u{7f}"] {
            assert_eq!(serde_json::from_str::<String>(&text.into_json()).unwrap(), text);
        }
        assert_eq!(true.into_json(), "true");
        assert_eq!((-3).into_json(), "-3");
        assert_eq!((0.2).into_json(), "0.2");
        assert_eq!(f64::NAN.into_json(), "null");
        assert_eq!(u64::MAX.into_json(), "18446744073709551615");
        assert_eq!(serde_json::json!({"a": [1, null]}).into_json(), r#"{"a":[1,null]}"#);
    }
}
