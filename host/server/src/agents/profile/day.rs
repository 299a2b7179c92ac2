//! Days of a transcript, in UTC, and where in it they are.

use std::fmt;

use agent_host_protocol::Timestamp;
use jiff::{civil::Date, tz::TimeZone};

/// The milliseconds of a day. UTC has no other days, as computers count it.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// The first day that has a time.
const EPOCH: Date = jiff::civil::date(1970, 1, 1);

/// A day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Day {
    /// First millisecond of the day.
    pub(super) start: Timestamp,
}

impl Day {
    /// The day of a time.
    pub(super) const fn of(at: Timestamp) -> Self {
        Self { start: at - at % DAY_MS }
    }

    /// True if a time is on this day.
    pub(super) const fn has(self, at: Timestamp) -> bool {
        at / DAY_MS == self.start / DAY_MS
    }

    /// The day that is written `YYYY-MM-DD`. Days before 1970 are as good as the first, as nothing happened in them.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let date: Date = text.parse().ok()?;
        // Other forms of ISO 8601 are none of the profile's.
        if date.to_string() != text {
            return None;
        }
        let days = date.since(EPOCH).ok()?.get_days();
        Some(Self { start: u64::try_from(days).unwrap_or(0) * DAY_MS })
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = i64::try_from(self.start).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        match at {
            Some(at) => write!(f, "{}", at.to_zoned(TimeZone::UTC).date()),
            // No calendar has it.
            None => write!(f, "{}", self.start),
        }
    }
}

/// The items of one day.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) day: Day,
    /// The sequence number of the first.
    pub(super) first: u64,
    /// The index after the last item.
    pub(super) end: u64,
}

/// The newest day before `before`, among items that are numbered from 1 to `len` in the order of time; `at` returns the
/// time of an item. The search reads few items, however many exist.
pub(super) fn newest<E>(len: u64, before: Option<Day>, at: impl Fn(u64) -> Result<Timestamp, E>) -> Result<Option<Span>, E> {
    let all = len.saturating_add(1);
    let end = match before {
        Some(before) => first_since(before.start, all, &at)?,
        None => all,
    };
    if end <= 1 {
        return Ok(None);
    }
    let day = Day::of(at(end - 1)?);
    let first = first_since(day.start, end, &at)?;
    Ok(Some(Span { day, first, end }))
}

/// The first item from `since` on, before `end`; else `end`.
fn first_since<E>(since: Timestamp, end: u64, at: &impl Fn(u64) -> Result<Timestamp, E>) -> Result<u64, E> {
    let (mut low, mut high) = (1, end);
    while low < high {
        let middle = low + (high - low) / 2;
        if at(middle)? < since {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn day(text: &str) -> Day {
        Day::parse(text).unwrap()
    }

    fn at(text: &str) -> Timestamp {
        u64::try_from(text.parse::<jiff::Timestamp>().unwrap().as_millisecond()).unwrap()
    }

    #[test]
    fn a_day_reads_back_as_it_is_written() {
        for text in ["1970-01-01", "2024-02-29", "2026-03-15", "2026-12-31"] {
            assert_eq!(day(text).to_string(), text);
        }
        for text in ["", "2026-3-15", "20260315", "2026-02-29", "2026-13-01", "2026-03-15T00:00:00", " 2026-03-15", "15.03.2026"]
        {
            assert_eq!(Day::parse(text), None, "{text}");
        }
        assert_eq!((day("1969-12-31").start, day("-009999-01-01").start), (0, 0));
        assert!(day("9999-12-31").start > day("9999-12-30").start);
    }

    #[test]
    fn a_day_is_from_midnight_to_midnight() {
        let of = |text: &str| Day::of(at(text)).to_string();
        assert_eq!(of("2026-03-15T00:00:00Z"), "2026-03-15");
        assert_eq!(of("2026-03-15T23:59:59.999Z"), "2026-03-15");
        assert_eq!(of("2026-03-16T00:00:00Z"), "2026-03-16");
        // Wherever the client is.
        assert_eq!(of("2026-03-16T01:00:00+02:00"), "2026-03-15");
        assert!(day("2026-03-15").has(at("2026-03-15T12:00:00Z")) && !day("2026-03-15").has(at("2026-03-16T00:00:00Z")));
    }

    #[test]
    fn the_newest_day_before_a_day_is_found() {
        let times: Vec<Timestamp> = [
            "2026-03-12T23:59:59.999Z",
            "2026-03-15T00:00:00Z",
            "2026-03-15T00:00:00Z",
            "2026-03-15T23:59:59.999Z",
            "2026-03-16T08:00:00Z",
        ]
        .map(at)
        .to_vec();
        let find = |times: &[Timestamp], before: Option<&str>| {
            let at = |seq: u64| Ok::<_, Infallible>(times[usize::try_from(seq).unwrap() - 1]);
            let found = newest(times.len() as u64, before.map(day), at).unwrap();
            found.map(|span| (span.day.to_string(), span.first, span.end))
        };
        let expect = |day: &str, first, end| Some((day.to_owned(), first, end));
        assert_eq!(find(&times, None), expect("2026-03-16", 5, 6));
        assert_eq!(find(&times, Some("2026-03-17")), expect("2026-03-16", 5, 6));
        assert_eq!(find(&times, Some("2026-03-16")), expect("2026-03-15", 2, 5));
        assert_eq!(find(&times, Some("2026-03-15")), expect("2026-03-12", 1, 2));
        assert_eq!(find(&times, Some("2026-03-12")), None);
        assert_eq!(find(&[], None), None);
        assert_eq!(find(&times[..1], None), expect("2026-03-12", 1, 2));
    }

    #[test]
    fn every_day_is_reached_and_every_item_is_in_one() {
        // A few items a day, days left out: stepping back by `before` shows each item once.
        let mut times: Vec<Timestamp> = (0..500_u64).map(|n| 1_700_000_000_000 + (n * n % 7 + n * 3) * 3_600_000).collect();
        times.sort_unstable();
        let (mut before, mut seen) = (None, Vec::new());
        loop {
            let at = |seq: u64| Ok::<_, Infallible>(times[usize::try_from(seq).unwrap() - 1]);
            let Some(span) = newest(times.len() as u64, before, at).unwrap() else { break };
            assert!((span.first..span.end).all(|seq| span.day.has(times[usize::try_from(seq).unwrap() - 1])));
            seen.extend((span.first..span.end).rev());
            before = Some(span.day);
        }
        assert_eq!(seen, (1..=500).rev().collect::<Vec<u64>>());
    }
}
