//! Time as the protocol shows it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix time in milliseconds.
pub type Timestamp = u64;

/// Now, by the wall clock of the machine. A clock before 1970 reads as 0.
#[must_use]
pub fn now() -> Timestamp {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}

/// Now, in microseconds since 1970.
#[must_use]
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX))
}

/// A timestamp for people: `2026-11-21T23:04:05.678Z`. A timestamp outside of the calendar is shown as its number.
#[must_use]
pub fn display(at: Timestamp) -> String {
    i64::try_from(at)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| at.to_string(), |t| format!("{t:.3}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_timestamp_is_shown_in_utc_with_milliseconds() {
        assert_eq!(super::display(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(super::display(u64::MAX), u64::MAX.to_string());
    }
}
