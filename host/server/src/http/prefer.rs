//! `Prefer: wait=SECONDS` (RFC 7240).

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};

pub(crate) const PREFER: HeaderName = HeaderName::from_static("prefer");
pub(crate) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The time that the client waits for runs to end; `None` without a positive wait.
///
/// A preference is a wish: what is unknown or malformed is ignored, and of several the first counts.
pub(crate) fn wait(headers: &HeaderMap, longest: Duration) -> Option<Duration> {
    let lines = headers.get_all(PREFER).iter().filter_map(|line| line.to_str().ok());
    let preferences = lines.flat_map(|line| split(line, ','));
    let value = preferences.filter_map(|preference| {
        // The text after a semicolon belongs to the preference, and `wait` has no such parameters.
        let (name, value) = split(preference, ';').next()?.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim())
    });
    let seconds = unquoted(value.into_iter().next()?);
    if seconds.is_empty() || !seconds.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // More seconds than fit a number are still a wish for more than the longest wait.
    let requested = Duration::from_secs(seconds.parse().unwrap_or(u64::MAX));
    Some(requested.min(longest)).filter(|wait| !wait.is_zero())
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value)
}

/// The parts of `text` between separators that stand outside of quoted strings.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let mut escaped = false;
    text.split(move |c| {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => return c == separator && !quoted,
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(60);

    fn check(lines: &[&'static str], expect: Option<u64>) {
        let headers = lines.iter().map(|line| (PREFER, line.parse().unwrap())).collect();
        assert_eq!(wait(&headers, LONGEST), expect.map(Duration::from_secs), "{lines:?}");
    }

    #[test]
    fn a_wait_is_found_among_other_preferences() {
        check(&["wait=10"], Some(10));
        check(&["respond-async, WAIT = 10"], Some(10));
        check(&["return=minimal; foo=\"a,wait=3\", wait=\"7\""], Some(7));
        check(&["handling=lenient", "wait=5;x=y"], Some(5));
        check(&["wait=5, wait=9"], Some(5));
        check(&[r#"note="a\", wait=1", wait=2"#], Some(2));
    }

    #[test]
    fn a_wait_has_a_longest() {
        check(&["wait=3600"], Some(60));
        check(&["wait=99999999999999999999999"], Some(60));
    }

    #[test]
    fn preferences_other_than_wait_are_ignored() {
        for line in ["", "wait", "wait=", "wait=0", "wait=-1", "wait=1.5", "wait=soon", "await=5", "wait=\"", "respond-async"] {
            check(&[line], None);
        }
    }
}
