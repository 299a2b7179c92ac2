//! Days of a transcript, in a time zone, and where in it they are.

use std::fmt;

use agent_host_protocol::Timestamp;
use jiff::{civil::Date, tz::TimeZone};

/// A day in a time zone: 23 to 25 hours, where clocks are changed on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Day {
    date: Date,
    /// First millisecond of the day.
    pub(super) start: Timestamp,
    /// First millisecond of the next one.
    end: Timestamp,
}

impl Day {
    /// The day of a time.
    pub(super) fn of(at: Timestamp, zone: &TimeZone) -> Self {
        let at = i64::try_from(at).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        // A time that no calendar has is later than every day.
        let at = at.unwrap_or(jiff::Timestamp::MAX);
        Self::on(zone.to_datetime(at).date(), zone)
    }

    fn on(date: Date, zone: &TimeZone) -> Self {
        let start_of = |date: Date| {
            let start = date.to_zoned(zone.clone()).ok().map(|day| day.timestamp().as_millisecond());
            start.map(|ms| u64::try_from(ms).unwrap_or(0))
        };
        // A day that no clock reaches is before or behind all others.
        let start = start_of(date).unwrap_or(if date.year() > 1970 { u64::MAX - 1 } else { 0 });
        let end = date.tomorrow().ok().and_then(start_of).unwrap_or(u64::MAX);
        Self { date, start, end }
    }

    /// True if a time is on this day.
    pub(super) const fn has(self, at: Timestamp) -> bool {
        self.start <= at && at < self.end
    }

    /// The day that is written `YYYY-MM-DD`. Days before 1970 are as good as the first, as nothing happened in them.
    pub(super) fn parse(text: &str, zone: &TimeZone) -> Option<Self> {
        let date: Date = text.parse().ok()?;
        // Other forms of ISO 8601 are none of the profile's.
        (date.to_string() == text).then(|| Self::on(date, zone))
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.date)
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
pub(super) fn newest<E>(
    len: u64,
    before: Option<Day>,
    zone: &TimeZone,
    at: impl Fn(u64) -> Result<Timestamp, E>,
) -> Result<Option<Span>, E> {
    let all = len.saturating_add(1);
    let end = match before {
        Some(before) => first_since(before.start, all, &at)?,
        None => all,
    };
    if end <= 1 {
        return Ok(None);
    }
    let day = Day::of(at(end - 1)?, zone);
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
        Day::parse(text, &TimeZone::UTC).unwrap()
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
            assert_eq!(Day::parse(text, &TimeZone::UTC), None, "{text}");
        }
        assert_eq!((day("1969-12-31").start, day("-009999-01-01").start), (0, 0));
        assert!(day("9999-12-31").start > day("9999-12-30").start);
    }

    #[test]
    fn a_day_is_from_midnight_to_midnight() {
        let of = |text: &str| Day::of(at(text), &TimeZone::UTC).to_string();
        assert_eq!(of("2026-03-15T00:00:00Z"), "2026-03-15");
        assert_eq!(of("2026-03-15T23:59:59.999Z"), "2026-03-15");
        assert_eq!(of("2026-03-16T00:00:00Z"), "2026-03-16");
        // The offset in which a time is written has no influence.
        assert_eq!(of("2026-03-16T01:00:00+02:00"), "2026-03-15");
        assert!(day("2026-03-15").has(at("2026-03-15T12:00:00Z")) && !day("2026-03-15").has(at("2026-03-16T00:00:00Z")));
    }

    #[test]
    fn the_time_zone_decides_days_also_where_clocks_are_changed() {
        let zone = |name: &str| TimeZone::get(name).unwrap();
        let of = |text: &str, name: &str| Day::of(at(text), &zone(name)).to_string();
        assert_eq!(of("2026-03-15T16:00:00Z", "Asia/Shanghai"), "2026-03-16");
        assert_eq!(of("2026-03-15T15:59:59Z", "Asia/Shanghai"), "2026-03-15");
        assert_eq!(of("2026-03-15T03:59:59Z", "America/New_York"), "2026-03-14");
        let hours = |text: &str| {
            let day = Day::parse(text, &zone("Europe/Berlin")).unwrap();
            (day.end - day.start) / 3_600_000
        };
        assert_eq!((hours("2026-03-28"), hours("2026-03-29"), hours("2026-10-25")), (24, 23, 25));
        // A day without a midnight begins with its first minute.
        let day = Day::parse("2018-11-04", &zone("America/Sao_Paulo")).unwrap();
        assert_eq!(day.start, at("2018-11-04T03:00:00Z"));
        assert_eq!(Day::of(u64::MAX, &TimeZone::UTC).to_string(), "9999-12-30");
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
            let found = newest(times.len() as u64, before.map(day), &TimeZone::UTC, at).unwrap();
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
            let Some(span) = newest(times.len() as u64, before, &TimeZone::UTC, at).unwrap() else { break };
            assert!((span.first..span.end).all(|seq| span.day.has(times[usize::try_from(seq).unwrap() - 1])));
            seen.extend((span.first..span.end).rev());
            before = Some(span.day);
        }
        assert_eq!(seen, (1..=500).rev().collect::<Vec<u64>>());
    }
}
