//! Names of files, as headers have them.

use axum::http::{HeaderMap, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::http::percent;

/// Longest name of a file that common file systems take.
const MAX_NAME_BYTES: usize = 255;
/// Characters that are encoded in an extended parameter (RFC 8187): all but `attr-char`.
const NO_ATTRIBUTE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// `Content-Disposition` (RFC 6266): the name in ASCII for old clients, and as it is (RFC 8187) for all others.
pub(crate) fn disposition(shown: bool, name: Option<&str>) -> String {
    let kind = if shown { "inline" } else { "attachment" };
    let Some(name) = name.and_then(plain_name) else { return kind.to_owned() };
    // Percent signs are taken for an encoding by some clients.
    let plain = |c: char| if c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '%') || c == ' ' { c } else { '_' };
    let ascii: String = name.chars().map(plain).collect();
    let mut text = format!("{kind}; filename=\"{ascii}\"");
    if ascii != name {
        text.push_str("; filename*=UTF-8''");
        text.extend(utf8_percent_encode(&name, NO_ATTRIBUTE));
    }
    text
}

/// A name without folders, control characters and marks that turn the direction of writing (which make `gpj.exe` look
/// like `exe.jpg`), or nothing where nothing is left.
pub(crate) fn plain_name(name: &str) -> Option<String> {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let name: String = last.chars().filter(|c| !c.is_control() && !turns(*c)).collect();
    let mut name = name.trim().trim_start_matches('.');
    while name.len() > MAX_NAME_BYTES {
        let mut chars = name.chars();
        chars.next_back();
        name = chars.as_str();
    }
    (!name.is_empty()).then(|| name.to_owned())
}

/// The name that a client gives in `Content-Disposition`; `filename*` before `filename`.
pub(crate) fn disposition_name(headers: &HeaderMap) -> Option<String> {
    // Some clients send UTF-8 where the standard has only ASCII.
    let value = std::str::from_utf8(headers.get(header::CONTENT_DISPOSITION)?.as_bytes()).ok()?;
    let parameters = parameters(value);
    let named = |wanted: &str| parameters.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
    named("filename*").and_then(|value| extended(&value)).or_else(|| named("filename"))
}

/// The parameters of a header, in lower case, quotes taken off.
fn parameters(value: &str) -> Vec<(String, String)> {
    let mut parts = vec![String::new()];
    let (mut quoted, mut escaped) = (false, false);
    for c in value.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => {
                escaped = true;
                continue;
            }
            '"' => {
                quoted = !quoted;
                continue;
            }
            ';' if !quoted => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    let pair =
        |part: &String| part.split_once('=').map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()));
    parts.iter().filter_map(pair).collect()
}

/// A value of RFC 8187: `UTF-8'language'percent%20encoded`.
fn extended(value: &str) -> Option<String> {
    let mut parts = value.splitn(3, '\'');
    let (charset, _, text) = (parts.next()?, parts.next()?, parts.next()?);
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    String::from_utf8(percent::decode(text)?).ok()
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        [(name, HeaderValue::from_bytes(value.as_bytes()).unwrap())].into_iter().collect()
    }

    #[test]
    fn a_name_cannot_leave_its_place() {
        let check = |name: &str, expect: Option<&str>| assert_eq!(plain_name(name).as_deref(), expect, "{name:?}");
        check("a.txt", Some("a.txt"));
        check("../../etc/passwd", Some("passwd"));
        check("C:\\x\\y.txt", Some("y.txt"));
        check("a\r\nSet-Cookie: b", Some("aSet-Cookie: b"));
        check("photo\u{202e}gpj.exe", Some("photogpj.exe"));
        check(".bashrc", Some("bashrc"));
        for nothing in ["", "..", "a/", " ", "\0"] {
            check(nothing, None);
        }
        assert_eq!(plain_name(&"ä".repeat(200)).unwrap().len(), 254);
    }

    #[test]
    fn a_disposition_has_the_name_in_both_forms() {
        assert_eq!(disposition(false, None), "attachment");
        assert_eq!(disposition(true, Some("a b.png")), "inline; filename=\"a b.png\"");
        assert_eq!(
            disposition(false, Some("größe \"x\".txt")),
            "attachment; filename=\"gr__e _x_.txt\"; filename*=UTF-8''gr%C3%B6%C3%9Fe%20%22x%22.txt"
        );
        assert!(HeaderValue::try_from(disposition(false, Some("a\r\nb: c"))).is_ok());
    }

    #[test]
    fn the_name_of_an_upload_is_read_from_its_disposition() {
        let of = |value: &str| disposition_name(&headers(header::CONTENT_DISPOSITION, value));
        assert_eq!(of("attachment; filename=\"a; b\\\"c.txt\"").as_deref(), Some("a; b\"c.txt"));
        assert_eq!(of("attachment; FileName=plain.txt").as_deref(), Some("plain.txt"));
        assert_eq!(of("attachment; filename=x; filename*=UTF-8'de'gr%C3%BCn.txt").as_deref(), Some("grün.txt"));
        assert_eq!(of("attachment; filename=x; filename*=UTF-8''%ff").as_deref(), Some("x"));
        assert_eq!(of("attachment"), None);
    }
}
