//! Time as the protocol shows it, and the clock that tells it.
//!
//! The clock of a machine can be set back, and then whatever waits for a time would wait for as much longer. So the time of the host
//! never goes back: it follows the machine's clock forward, and where that was set back, it goes on at nine tenths of its pace until
//! both agree again. Times that others wrote are compared with the machine's clock itself: tokens, signatures, calendars.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Unix time in milliseconds.
pub type Timestamp = u64;

/// A day, in milliseconds. A clock that was ahead by more than that was wrong.
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
const NS_PER_MS: i64 = 1_000_000;
/// The part of its pace that the time of the host gives up to agree with the clock of the machine again.
const SLOWED_BY: i64 = 10;
/// A smaller difference is that between two readings.
const TOLERANCE_NS: i64 = NS_PER_MS;

static CLOCK: LazyLock<(Instant, Clock)> = LazyLock::new(|| (Instant::now(), Clock::new()));

/// Now, by the clock of the machine: for times that others wrote. A clock before 1970 reads as 0.
#[must_use]
pub fn wall() -> Timestamp {
    u64::try_from(readings().0 / NS_PER_MS).unwrap_or(0)
}

/// Now, as the host counts.
#[must_use]
pub fn now() -> Timestamp {
    now_us() / 1_000
}

/// Now, in microseconds since 1970.
#[must_use]
pub fn now_us() -> u64 {
    let (wall, steady) = readings();
    u64::try_from(CLOCK.1.at(wall, steady) / 1_000).unwrap_or(0)
}

/// Milliseconds by which the time of the host is ahead of the clock of the machine, because that was set back.
#[must_use]
pub fn ahead_ms() -> u64 {
    let (wall, steady) = readings();
    u64::try_from((CLOCK.1.at(wall, steady) - wall) / NS_PER_MS).unwrap_or(0)
}

/// Lets the time go on from the newest time that an earlier process has recorded. False if that is more than a day ahead: then the
/// clock was wrong, and its times are not gone on from.
pub fn go_on_from(recorded: Timestamp) -> bool {
    let (wall, steady) = readings();
    CLOCK.1.go_on_from(recorded, wall, steady)
}

/// The clock of the machine and one that is never set, in nanoseconds.
fn readings() -> (i64, i64) {
    // The clock of the machine first: if the thread loses its core in between, that looks like a clock that is behind, never ahead.
    let wall =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX));
    (wall, i64::try_from(CLOCK.0.elapsed().as_nanos()).unwrap_or(i64::MAX))
}

/// The time of the host, as a difference to a clock that is never set.
#[derive(Debug)]
struct Clock {
    offset: AtomicI64,
    /// The last reading that slowed the time down; 0 for none since both agreed.
    slowed_at: AtomicI64,
}

impl Clock {
    const fn new() -> Self {
        Self { offset: AtomicI64::new(i64::MIN), slowed_at: AtomicI64::new(0) }
    }

    fn at(&self, wall: i64, steady: i64) -> i64 {
        let offset = wall - steady;
        let ahead = self.offset.fetch_max(offset, Relaxed).saturating_sub(offset);
        if ahead <= TOLERANCE_NS {
            if self.slowed_at.load(Relaxed) != 0 {
                self.slowed_at.store(0, Relaxed);
            }
        } else {
            let before = self.slowed_at.swap(steady, Relaxed);
            let passed = if before == 0 { 0 } else { (steady - before).max(0) };
            self.offset.fetch_sub((passed / SLOWED_BY).min(ahead), Relaxed);
        }
        steady + self.offset.load(Relaxed)
    }

    fn go_on_from(&self, recorded: Timestamp, wall: i64, steady: i64) -> bool {
        let wall_ms = u64::try_from(wall / NS_PER_MS).unwrap_or(0);
        if recorded > wall_ms.saturating_add(DAY_MS) {
            return false;
        }
        let recorded = i64::try_from(recorded).unwrap_or(i64::MAX).saturating_mul(NS_PER_MS);
        self.offset.fetch_max(recorded.saturating_sub(steady), Relaxed);
        true
    }
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
    use super::*;

    const SECOND: i64 = 1_000 * NS_PER_MS;
    const START: i64 = 1_700_000_000 * SECOND;

    #[test]
    fn a_timestamp_is_shown_in_utc_with_milliseconds() {
        assert_eq!(display(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(display(u64::MAX), u64::MAX.to_string());
    }

    #[test]
    fn time_follows_the_clock_forward_and_never_goes_back() {
        let clock = Clock::new();
        assert_eq!(clock.at(START, 0), START);
        assert_eq!(clock.at(START + SECOND, SECOND), START + SECOND);
        assert_eq!(clock.at(START + 100 * SECOND, 2 * SECOND), START + 100 * SECOND, "set forward");
        // Set back by ten seconds.
        let mut before = START + 100 * SECOND;
        for tenth in 1..=1_200 {
            let passed = tenth * SECOND / 10;
            let now = clock.at(START + 90 * SECOND + passed, 2 * SECOND + passed);
            assert!(now >= before, "it went back by {}", before - now);
            assert!(now - before <= SECOND / 10, "it leaps");
            before = now;
        }
        assert_eq!(before, START + 210 * SECOND, "ten seconds are made good within less than two minutes");
        // Interrupted between two readings.
        assert_eq!(clock.at(START + 210 * SECOND, 122 * SECOND + 900_000), START + 210 * SECOND + 900_000);
    }

    #[test]
    fn time_goes_on_from_what_is_recorded_unless_that_was_wrong() {
        let clock = Clock::new();
        let recorded = u64::try_from(START / NS_PER_MS).unwrap() + 3_600_000;
        assert!(clock.go_on_from(recorded, START, 5));
        assert_eq!(clock.at(START, 5), START + 3_600 * SECOND);
        assert!(!clock.go_on_from(recorded + 2 * DAY_MS, START, 6));
        assert!(clock.go_on_from(recorded - 7_200_000, START, 7));
        assert_eq!(clock.at(START + 2, 7), START + 3_600 * SECOND + 2);
        assert!(!clock.go_on_from(u64::MAX, START, 8));
    }
}
