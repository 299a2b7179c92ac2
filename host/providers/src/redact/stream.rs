//! Secrets are taken out of bytes that come in pieces, in the forms in which a service may repeat them.
//!
//! A service that received a secret may return it as it is, or within base64, a URL, JSON, HTML or hexadecimal. Each of
//! these forms is found, for any split into pieces. A service's own encoding is not found.

use std::{fmt, fmt::Write, sync::Arc};

use agent_host_protocol::hex;
use aho_corasick::{AhoCorasick, Input, MatchKind};
use base64::{
    Engine as _, alphabet,
    engine::{GeneralPurpose, general_purpose::NO_PAD},
};

const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, NO_PAD);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, NO_PAD);

/// The shortest secret whose forms can be looked for: shorter ones would be found by chance in what has nothing to do
/// with them.
pub(crate) const MIN_SECRET: usize = 8;

/// A secret's forms, and what is put in their place.
#[derive(Clone)]
pub(crate) struct Forms {
    mark: String,
    forms: Vec<Vec<u8>>,
}

impl Forms {
    /// Of the secret with this name.
    pub(crate) fn new(name: &str, secret: &str) -> Self {
        let mut forms = forms(secret);
        // Short forms would be found by chance, and an empty one everywhere.
        forms.retain(|form| form.len() >= MIN_SECRET);
        forms.sort();
        forms.dedup();
        Self { mark: format!("[secret {name}]"), forms }
    }
}

/// All forms of `secret`.
fn forms(secret: &str) -> Vec<Vec<u8>> {
    let bytes = secret.as_bytes();
    let mut forms = vec![bytes.to_vec()];
    for engine in [&STANDARD, &URL_SAFE] {
        let whole = engine.encode(bytes);
        let padding = "=".repeat(whole.len().next_multiple_of(4) - whole.len());
        forms.push(format!("{whole}{padding}").into_bytes());
        // Inside a longer text (`user:secret`), the secret begins at one of three places in a group, and the characters at
        // its ends depend on its neighbours: the characters between do not.
        for before in 0..3 {
            let encoded = engine.encode([vec![0; before], bytes.to_vec()].concat());
            let (first, last) = ((before * 8).div_ceil(6), (before + bytes.len()) * 8 / 6);
            forms.push(encoded.as_bytes().get(first..last).unwrap_or_default().to_vec());
        }
        forms.push(whole.into_bytes());
    }
    for kept in ["-_.~", "-_.~!*'()", "-_.*"] {
        for upper in [true, false] {
            let encoded = percent(bytes, kept, upper);
            forms.push(encoded.replace("%20", "+").into_bytes());
            forms.push(encoded.into_bytes());
        }
    }
    let json = serde_json::to_string(secret).unwrap_or_default();
    let json = json.get(1..json.len().saturating_sub(1)).unwrap_or_default();
    let unicode = |text: &str, of: &[char]| {
        text.chars().fold(String::new(), |mut text, c| {
            if of.contains(&c) || !c.is_ascii() {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| _ = write!(text, "\\u{unit:04x}"));
            } else {
                text.push(c);
            }
            text
        })
    };
    forms.extend([json.to_owned(), json.replace('/', "\\/")].map(String::into_bytes));
    forms.extend(
        [unicode(json, &[]), unicode(json, &['<', '>', '&']), unicode(json, &['<', '>', '&', '\'', '+'])].map(String::into_bytes),
    );
    let html = secret.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    for (double, single) in [("\"", "'"), ("&quot;", "'"), ("&quot;", "&#39;"), ("&#34;", "&#39;"), ("&quot;", "&#x27;")] {
        forms.push(html.replace('"', double).replace('\'', single).into_bytes());
    }
    let hex = hex::encode(bytes);
    forms.extend([hex.to_ascii_uppercase(), hex].map(String::into_bytes));
    forms
}

/// `bytes` in URL encoding. `kept` are the characters that are not encoded, besides letters and digits.
fn percent(bytes: &[u8], kept: &str, upper: bool) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        _ = match byte {
            byte if byte.is_ascii_alphanumeric() || kept.as_bytes().contains(byte) => write!(text, "{}", char::from(*byte)),
            byte if upper => write!(text, "%{byte:02X}"),
            byte => write!(text, "%{byte:02x}"),
        };
        text
    })
}

/// Finds the forms of some secrets.
pub(crate) struct Cleaner {
    search: AhoCorasick,
    /// The searched forms, each with its replacement.
    patterns: Vec<(Vec<u8>, Arc<str>)>,
    longest: usize,
    /// True for each first byte of a form.
    begins: [bool; 256],
}

impl fmt::Debug for Cleaner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cleaner(..)")
    }
}

impl Cleaner {
    /// A search for these secrets. If one form is a part of another, the longest form that begins first is replaced.
    pub(crate) fn new<'a>(secrets: impl IntoIterator<Item = &'a Forms>) -> Result<Self, String> {
        let mut patterns = Vec::new();
        for secret in secrets {
            let mark: Arc<str> = secret.mark.as_str().into();
            patterns.extend(secret.forms.iter().map(|form| (form.clone(), Arc::clone(&mark))));
        }
        let search = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(patterns.iter().map(|(form, _)| form))
            .map_err(|error| format!("the search for secrets cannot be set up: {error}"))?;
        let longest = patterns.iter().map(|(form, _)| form.len()).max().unwrap_or_default();
        let mut begins = [false; 256];
        for first in patterns.iter().filter_map(|(form, _)| form.first()) {
            if let Some(begins) = begins.get_mut(usize::from(*first)) {
                *begins = true;
            }
        }
        Ok(Self { search, patterns, longest, begins })
    }

    /// `bytes`, which is all there is, without secrets.
    pub(crate) fn clean(&self, bytes: &[u8]) -> Vec<u8> {
        let mut clean = Vec::with_capacity(bytes.len());
        self.take(bytes, bytes.len(), &mut clean);
        clean
    }

    /// True if `text` contains a secret, with letters of any case.
    pub(crate) fn is_in_any_case(&self, text: &str) -> bool {
        let text = text.to_ascii_lowercase();
        self.patterns.iter().any(|(form, _)| text.as_bytes().windows(form.len()).any(|part| part.eq_ignore_ascii_case(form)))
    }

    /// Writes what may go out of `bytes`, with marks, to `clean`. Says how far it came: what follows begins at or after
    /// `until`, unless a secret reaches beyond it.
    fn take(&self, bytes: &[u8], until: usize, clean: &mut Vec<u8>) -> usize {
        let mut at = 0;
        while let Some(found) = self.search.find(Input::new(bytes).range(at..)).filter(|found| found.start() < until) {
            clean.extend_from_slice(bytes.get(at..found.start()).unwrap_or_default());
            clean.extend_from_slice(
                self.patterns.get(found.pattern().as_usize()).map(|(_, mark)| mark.as_bytes()).unwrap_or_default(),
            );
            at = found.end();
            if at >= until {
                return at;
            }
        }
        clean.extend_from_slice(bytes.get(at..until).unwrap_or_default());
        until
    }

    /// The place, at or after `from`, where an incomplete form may begin.
    fn unfinished(&self, bytes: &[u8], from: usize) -> usize {
        let first = bytes.len().saturating_sub(self.longest.saturating_sub(1)).max(from);
        (first..bytes.len())
            .find(|at| {
                let rest = bytes.get(*at..).unwrap_or_default();
                let begins = rest.first().and_then(|byte| self.begins.get(usize::from(*byte))).is_some_and(|begins| *begins);
                begins && self.patterns.iter().any(|(form, _)| form.len() > rest.len() && form.starts_with(rest))
            })
            .unwrap_or(bytes.len())
    }
}

/// Removes secrets from a stream of bytes. Holds back only a possible beginning of a secret.
#[derive(Debug)]
pub(crate) struct CleanStream {
    cleaner: Arc<Cleaner>,
    buffer: Vec<u8>,
}

impl CleanStream {
    pub(crate) fn new(cleaner: Arc<Cleaner>) -> Self {
        Self { cleaner, buffer: Vec::new() }
    }

    /// The output after the next piece, perhaps empty.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.buffer.extend_from_slice(piece);
        let mut clean = Vec::with_capacity(self.buffer.len());
        let mut at = 0;
        // A secret that begins before the unfinished one may reach into it: then there may be another unfinished one
        // after its end, or none.
        loop {
            let rest = self.buffer.get(at..).unwrap_or_default();
            let until = self.cleaner.unfinished(rest, 0);
            let came = self.cleaner.take(rest, until, &mut clean);
            at += came;
            if came <= until {
                break;
            }
        }
        self.buffer.drain(..at);
        clean
    }

    /// The rest of the output at the end.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        self.cleaner.clean(&std::mem::take(&mut self.buffer))
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};
    use proptest::prelude::*;

    use super::*;

    const SECRET: &str = "ca/na+ry\"k?y<~ü&' x";

    fn cleaner(secrets: &[(&str, &str)]) -> Arc<Cleaner> {
        let forms: Vec<Forms> = secrets.iter().map(|(name, secret)| Forms::new(name, secret)).collect();
        Arc::new(Cleaner::new(&forms).unwrap())
    }

    fn in_pieces(cleaner: &Arc<Cleaner>, bytes: &[u8], size: usize) -> Vec<u8> {
        let mut stream = CleanStream::new(Arc::clone(cleaner));
        let mut clean: Vec<u8> = bytes.chunks(size).flat_map(|piece| stream.push(piece)).collect();
        clean.extend(stream.finish());
        clean
    }

    #[test]
    fn every_form_is_found_however_the_pieces_are_cut() {
        let cleaner = cleaner(&[("api", SECRET)]);
        let hex = hex::encode(SECRET.as_bytes());
        for form in [
            SECRET.to_owned(),
            STANDARD.encode(SECRET),
            URL_SAFE.encode(SECRET),
            URL_SAFE_NO_PAD.encode(SECRET),
            url::form_urlencoded::byte_serialize(SECRET.as_bytes()).collect(),
            "ca%2Fna%2Bry%22k%3Fy%3C~%C3%BC%26'%20x".into(),
            "ca%2fna%2bry%22k%3fy%3c~%c3%bc%26%27%20x".into(),
            r#"ca/na+ry\"k?y<~ü&' x"#.into(),
            r#"ca\/na+ry\"k?y<~ü&' x"#.into(),
            r#"ca/na+ry\"k?y\u003c~\u00fc\u0026' x"#.into(),
            "ca/na+ry&quot;k?y&lt;~ü&amp;&#39; x".into(),
            hex.to_uppercase(),
            hex,
        ] {
            for size in 1..40 {
                let clean = in_pieces(&cleaner, format!("before {form} after").as_bytes(), size);
                assert_eq!(String::from_utf8_lossy(&clean), "before [secret api] after", "{form} by {size}");
            }
        }
    }

    #[test]
    fn a_secret_within_base64_is_found_at_each_place() {
        let secret = "canary-0123456789";
        let cleaner = cleaner(&[("api", secret)]);
        for user in ["", "u", "us", "use", "user"] {
            for after in ["", "1", "12", "123"] {
                for engine in [&STANDARD, &URL_SAFE, &URL_SAFE_NO_PAD] {
                    let encoded = engine.encode(format!("{user}{secret}{after}"));
                    let clean = String::from_utf8(in_pieces(&cleaner, encoded.as_bytes(), 3)).unwrap();
                    assert!(clean.contains("[secret api]"), "{encoded}: {clean}");
                    // Only the characters remain that are shared with the neighbours.
                    let left = clean.replace("[secret api]", "").len();
                    assert!(left <= (user.len() + after.len()) * 4 / 3 + 4, "{encoded}: {clean}");
                }
            }
        }
    }

    #[test]
    fn text_that_cannot_become_a_secret_is_not_held_back() {
        let mut stream = CleanStream::new(cleaner(&[("api", "canary-0123456789")]));
        assert_eq!(stream.push(b"data: hello\n\n"), b"data: hello\n\n");
        assert_eq!(stream.push(b"data: can"), b"data: ");
        assert_eq!(stream.push(b"not\n\n"), b"cannot\n\n");
        assert_eq!(stream.push(b"canary-01234567"), b"");
        assert_eq!(stream.finish(), b"canary-01234567");
    }

    #[test]
    fn the_longest_secret_wins_and_names_are_told_apart() {
        let cleaner = cleaner(&[("short", "canary-0"), ("long", "canary-0123456789"), ("other", "0123456789abc")]);
        assert_eq!(cleaner.clean(b"canary-0!canary-0123456789abc"), b"[secret short]![secret long]abc");
        assert!(cleaner.is_in_any_case("x-CANARY-0") && !cleaner.is_in_any_case("x-canary"));
        assert_eq!(format!("{cleaner:?}"), "Cleaner(..)");
    }

    proptest! {
        #[test]
        fn pieces_are_cleaned_like_the_whole(text in "(abcabcab|abcabcabcabc|cabcabcax|ab|c|a|x){0,12}", cuts in prop::collection::vec(1..9usize, 1..20)) {
            let cleaner = cleaner(&[("one", "abcabcab"), ("two", "abcabcabcabc"), ("three", "cabcabcax")]);
            let mut stream = CleanStream::new(Arc::clone(&cleaner));
            let (mut rest, mut clean) = (text.as_bytes(), Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, later) = rest.split_at(rest.len().min(*cut));
                clean.extend(stream.push(piece));
                rest = later;
            }
            clean.extend(stream.finish());
            prop_assert_eq!(String::from_utf8(clean).unwrap(), String::from_utf8(cleaner.clean(text.as_bytes())).unwrap());
        }
    }
}
