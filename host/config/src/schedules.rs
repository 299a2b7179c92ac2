//! `[[schedules]]`: when they tick.
//!
//! - **Intervals** tick at the multiples of their length since 1970 (UTC). They need no memory, and two hosts with the same
//!   configuration tick at the same times.
//! - **Cron** with a free hour field (it begins with `*`) follows the time that passes: in the hour that a clock has twice, it
//!   ticks in both; in the hour that a clock has not, it does not tick, and no time is lost by that.
//! - **Cron** with fixed hours follows the calendar: every wall time ticks once. In an hour that occurs twice, the schedule
//!   ticks the first time; for times in a skipped hour it ticks once, when the clock moves on.

use agent_host_protocol::{Timestamp, event::Envelope, time};
use cronexpr::{Crontab, MakeTimestamp};
use jiff::tz::{AmbiguousOffset, TimeZone};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::name::is_name;

/// The shortest interval: a tick is an event, and runs.
const MIN_EVERY_MS: u64 = 1_000;
/// The longest interval: beyond it a calendar is what is meant.
const MAX_EVERY_MS: u64 = 366 * 24 * 60 * 60 * 1000;
/// Times on the wall that may map to nothing new, in a row: those of an hour that comes twice.
const MAX_FOLDED: usize = 24 * 60;

/// Events at certain times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Names it: 1 to 64 letters, digits, `.`, `_` or `-`.
    pub id: String,
    /// Minute, hour, day of month, month, day of week, as in a crontab. Either this or `every_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// An interval in ms, 1,000 or more. Either this or `cron`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// IANA name of the time zone of `cron`. Without it: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// The rule for ticks that passed while the host was down.
    #[serde(default)]
    pub missed: MissedTicks,
    /// If true, the schedule is active. Default: true.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// The event, without `source`, which is `scheduler`.
    pub event: Map<String, Value>,
}

const fn yes() -> bool {
    true
}

/// The rule for ticks that passed while the host was down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MissedTicks {
    /// Missed ticks are skipped.
    #[default]
    Skip,
    /// The newest is made up for.
    Once,
    /// All are made up for, the newest 100 at most.
    All,
}

impl ScheduleConfig {
    /// Checks what the shape alone does not say.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !is_name(&self.id) {
            return Err("`id` must have 1 to 64 letters, digits, `.`, `_` or `-`".to_owned());
        }
        TickRule::new(self)?;
        self.envelope().map(drop)
    }

    /// The event, without what only a tick can say.
    ///
    /// # Errors
    /// Names the key that cannot be.
    pub fn envelope(&self) -> Result<Envelope, String> {
        event(&self.event)
    }
}

/// The rule for the ticks of a schedule.
#[derive(Debug)]
pub struct TickRule(Rule);

#[derive(Debug)]
enum Rule {
    Every(u64),
    /// Follows the time that passes.
    Passing(Box<Crontab>),
    /// Follows the calendar: the expression is asked as if times on the wall were UTC.
    Wall {
        crontab: Box<Crontab>,
        zone: TimeZone,
    },
}

fn event(template: &Map<String, Value>) -> Result<Envelope, String> {
    let mut template = template.clone();
    if template.get("source").is_some_and(|source| source != "scheduler") {
        return Err("`event.source` is `scheduler`; leave it out".to_owned());
    }
    template.insert("source".to_owned(), "scheduler".into());
    if template.get("data").and_then(|data| data.get("schedule")).is_some() {
        return Err("`event.data.schedule`: the host writes this itself; take another name".to_owned());
    }
    let event: Envelope = serde_json::from_value(Value::Object(template)).map_err(|error| format!("`event`: {error}"))?;
    event.check().map_err(|problem| format!("`event`: {problem}"))?;
    Ok(event)
}

impl TickRule {
    /// Reads a configuration.
    ///
    /// # Errors
    /// Names the key that cannot be.
    pub fn new(config: &ScheduleConfig) -> Result<Self, String> {
        let cron = match (&config.cron, config.every_ms) {
            (Some(cron), None) => cron,
            (None, Some(_)) if config.timezone.is_some() => {
                return Err("`timezone` is for `cron`: an interval is the same everywhere".to_owned());
            }
            (None, Some(every)) if (MIN_EVERY_MS..=MAX_EVERY_MS).contains(&every) => return Ok(Self(Rule::Every(every))),
            (None, Some(_)) => return Err(format!("`every_ms` is from {MIN_EVERY_MS} to {MAX_EVERY_MS}")),
            _ => return Err("it has exactly one of `cron` and `every_ms`".to_owned()),
        };
        let name = config.timezone.as_deref().unwrap_or("UTC");
        let zone = TimeZone::get(name)
            .map_err(|_| format!("`timezone`: \"{}\" is no IANA name, such as `Europe/Berlin`", name.escape_debug()))?;
        let fields: Vec<_> = cron.split_whitespace().collect();
        let [_, hour, _, _, _] = fields.as_slice() else {
            return Err("`cron` has five fields: minute, hour, day of month, month, day of week".to_owned());
        };
        let parse = |zone: &str| {
            let crontab = cronexpr::parse_crontab(&format!("{} {zone}", fields.join(" ")));
            crontab.map(Box::new).map_err(|error| format!("`cron` cannot be read: {error}"))
        };
        let rule = if hour.starts_with('*') { Rule::Passing(parse(name)?) } else { Rule::Wall { crontab: parse("UTC")?, zone } };
        let rule = Self(rule);
        if rule.next(rule.now()).is_none() {
            return Err(format!("`cron`: \"{cron}\" is at no time within four years"));
        }
        Ok(rule)
    }

    /// Now, by the clock that the rule follows: a calendar is that of the machine, and intervals are those of the host.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Rule::Every(_) | Rule::Passing(_) => time::now(),
            Rule::Wall { .. } => time::wall(),
        }
    }

    /// The first tick after a moment, where there is one.
    #[must_use]
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.0 {
            Rule::Every(every) => (after / every).checked_add(1)?.checked_mul(*every),
            Rule::Passing(crontab) => milliseconds(find(crontab, instant(after)?)?),
            Rule::Wall { crontab, zone } => {
                let after = instant(after)?;
                let mut wall = TimeZone::UTC.to_timestamp(zone.to_datetime(after)).ok()?;
                // To go on from the wall's time never leaves one out: earlier times on the wall were earlier.
                for _ in 0..MAX_FOLDED {
                    wall = find(crontab, wall)?;
                    let at = on_the_wall(zone, wall)?;
                    if at > after {
                        return milliseconds(at);
                    }
                }
                None
            }
        }
    }

    /// The length of an interval.
    #[must_use]
    pub const fn interval(&self) -> Option<u64> {
        match &self.0 {
            Rule::Every(every) => Some(*every),
            Rule::Passing(_) | Rule::Wall { .. } => None,
        }
    }
}

fn find(crontab: &Crontab, after: jiff::Timestamp) -> Option<jiff::Timestamp> {
    Some(crontab.find_next(MakeTimestamp(after)).ok()?.timestamp())
}

fn instant(at: Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_millisecond(i64::try_from(at).ok()?).ok()
}

fn milliseconds(at: jiff::Timestamp) -> Option<Timestamp> {
    u64::try_from(at.as_millisecond()).ok()
}

/// The first instant at which the wall clock of a zone shows this time. A skipped time becomes the instant at which the
/// clock moves on.
fn on_the_wall(zone: &TimeZone, wall: jiff::Timestamp) -> Option<jiff::Timestamp> {
    let wall = TimeZone::UTC.to_datetime(wall);
    let ambiguous = zone.to_ambiguous_timestamp(wall);
    match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => ambiguous.earlier().ok(),
        AmbiguousOffset::Gap { .. } => {
            let before = ambiguous.earlier().ok()?;
            Some(zone.following(before).next()?.timestamp())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> ScheduleConfig {
        toml::from_str(&format!("id = \"s\"\nevent = {{ event_type = \"tick\" }}\n{text}")).unwrap()
    }

    fn cron(cron: &str, zone: &str) -> TickRule {
        TickRule::new(&config(&format!("cron = \"{cron}\"\ntimezone = \"{zone}\""))).unwrap()
    }

    fn at(text: &str) -> Timestamp {
        u64::try_from(text.parse::<jiff::Timestamp>().unwrap().as_millisecond()).unwrap()
    }

    /// The ticks after a moment.
    fn ticks(schedule: &TickRule, after: &str, count: usize) -> Vec<String> {
        let mut after = at(after);
        let mut ticks = Vec::new();
        for _ in 0..count {
            after = schedule.next(after).unwrap();
            ticks.push(instant(after).unwrap().to_string());
        }
        ticks
    }

    #[test]
    fn fixed_hours_tick_once_when_the_clock_is_put_forward() {
        // Berlin, 29 March 2026: 02:00 becomes 03:00 at 01:00 UTC.
        let schedule = cron("30 2 * * *", "Europe/Berlin");
        assert_eq!(
            ticks(&schedule, "2026-03-27T12:00:00Z", 4),
            ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z"]
        );
        // Two times that are left out are one moment, and 3 o'clock is the same.
        let schedule = cron("0,30 2,3 * * *", "Europe/Berlin");
        assert_eq!(
            ticks(&schedule, "2026-03-29T00:00:00Z", 3),
            ["2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:00:00Z"]
        );
    }

    #[test]
    fn fixed_hours_tick_once_when_the_clock_is_put_back() {
        // New York, 1 November 2026: 02:00 becomes 01:00 at 06:00 UTC.
        let schedule = cron("0,30 1 * * *", "America/New_York");
        assert_eq!(
            ticks(&schedule, "2026-11-01T04:00:00Z", 4),
            ["2026-11-01T05:00:00Z", "2026-11-01T05:30:00Z", "2026-11-02T06:00:00Z", "2026-11-02T06:30:00Z"]
        );
        assert_eq!(ticks(&schedule, "2026-11-01T06:10:00Z", 1), ["2026-11-02T06:00:00Z"], "asked in the second hour");
    }

    #[test]
    fn free_hours_follow_the_time_that_passes() {
        let schedule = cron("*/30 * * * *", "America/New_York");
        assert_eq!(
            ticks(&schedule, "2026-11-01T04:45:00Z", 5),
            [
                "2026-11-01T05:00:00Z",
                "2026-11-01T05:30:00Z",
                "2026-11-01T06:00:00Z",
                "2026-11-01T06:30:00Z",
                "2026-11-01T07:00:00Z"
            ]
        );
        let schedule = cron("0 * * * *", "Europe/Berlin");
        assert_eq!(
            ticks(&schedule, "2026-03-28T23:30:00Z", 3),
            ["2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"]
        );
    }

    #[test]
    fn invalid_values_are_named() {
        for (text, says) in [
            ("", "exactly one"),
            ("cron = \"* * * * *\"\nevery_ms = 1000", "exactly one"),
            ("every_ms = 999", "every_ms"),
            ("every_ms = 1000\ntimezone = \"UTC\"", "timezone"),
            ("cron = \"* * * *\"", "five fields"),
            ("cron = \"* * * * * UTC\"", "five fields"),
            ("cron = \"\"", "five fields"),
            ("cron = \"60 * * * *\"", "`cron` cannot be read"),
            ("cron = \"* * * * *\"\ntimezone = \"Mars/Base\"", "Mars/Base"),
            ("cron = \"0 0 30 2 *\"", "at no time"),
        ] {
            let error = config(text).check().expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
        for (event, says) in [
            ("{ event_type = \"a b\" }", "event_type"),
            ("{ event_type = \"a\", source = \"api\" }", "event.source"),
            ("{ event_type = \"a\", data = { schedule = 1 } }", "event.data.schedule"),
            ("{ event_type = \"a\", txet = 1 }", "txet"),
            ("{ }", "event_type"),
        ] {
            let config: ScheduleConfig = toml::from_str(&format!("id = \"s\"\nevery_ms = 1000\nevent = {event}")).unwrap();
            let error = config.check().expect_err(event);
            assert!(error.contains(says), "{event}: {error}");
        }
    }
}
