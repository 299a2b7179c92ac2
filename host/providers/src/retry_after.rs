//! The retry time of a busy service.

use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, HeaderValue, RETRY_AFTER};

/// The retry time of a service: seconds, or a date, or (OpenAI) milliseconds.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).map(str::trim);
    if let Some(milliseconds) = text("retry-after-ms").and_then(|text| text.parse().ok()) {
        return Some(Duration::from_millis(milliseconds));
    }
    let text = text(RETRY_AFTER.as_str())?;
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    // Some write fractions of a second.
    if let Some(seconds) = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        return Some(seconds);
    }
    let at = SystemTime::from(jiff::fmt::rfc2822::parse(text).ok()?.timestamp());
    Some(at.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date_or_milliseconds() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 30);
        for (name, value, expect) in [
            ("retry-after", "7", Some(7_000)),
            ("retry-after", " 0 ", Some(0)),
            ("retry-after", "1.5", Some(1_500)),
            ("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT", Some(30_000)),
            ("retry-after", "Tue, 06 Nov 1984 08:49:37 GMT", Some(0)),
            ("retry-after-ms", "250", Some(250)),
            ("retry-after", "-3", None),
            ("retry-after", "soon", None),
            ("retry-after", "NaN", None),
            ("retry-after", "1e300", None),
        ] {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_static(value))]);
            assert_eq!(retry_after(&headers, now), expect.map(Duration::from_millis), "{name}: {value}");
        }
    }
}
