//! Schedules: their ticks, those that passed while the host was down, and their events.

use std::collections::VecDeque;

use agent_host_config::{ScheduleConfig, TickRule};
use agent_host_protocol::{Timestamp, event::Envelope};
use serde_json::json;

/// The most missed ticks that are made up for: the newest.
pub(crate) const MAX_MISSED: usize = 100;

/// A schedule, ready to be asked.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) config: ScheduleConfig,
    rule: TickRule,
    event: Envelope,
}

/// Ticks to make up for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PassedTicks {
    /// Oldest first, [`MAX_MISSED`] at most.
    pub(crate) ticks: Vec<Timestamp>,
    /// True if there were older ticks.
    pub(crate) more: bool,
}

impl Schedule {
    pub(crate) fn new(config: &ScheduleConfig) -> Result<Self, String> {
        Ok(Self { config: config.clone(), rule: TickRule::new(config)?, event: config.envelope()? })
    }

    /// Now, by the clock that the schedule follows.
    pub(crate) fn now(&self) -> Timestamp {
        self.rule.now()
    }

    /// The first tick after a moment, where there is one.
    pub(crate) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.rule.next(after)
    }

    /// The ticks after one moment, up to another.
    pub(crate) fn passed(&self, after: Timestamp, until: Timestamp) -> PassedTicks {
        if until <= after {
            return PassedTicks::default();
        }
        if let Some(every) = self.rule.interval() {
            let (first, last) = (after / every + 1, until / every);
            let count = last.saturating_add(1).saturating_sub(first);
            let from = last.saturating_add(1).saturating_sub(count.min(MAX_MISSED as u64));
            let ticks = (from..=last).map(|nth| nth.saturating_mul(every)).collect();
            return PassedTicks { ticks, more: count > MAX_MISSED as u64 };
        }
        // Backward in steps that grow: a tick a minute is not counted through a year.
        let mut span: u64 = 2 * 60 * 60 * 1000;
        loop {
            let from = after.max(until.saturating_sub(span));
            let mut ticks = VecDeque::new();
            let mut more = false;
            let mut at = from;
            while let Some(tick) = self.next(at).filter(|tick| *tick <= until) {
                at = tick;
                ticks.push_back(tick);
                if ticks.len() > MAX_MISSED {
                    ticks.pop_front();
                    more = true;
                }
            }
            if from == after || more {
                return PassedTicks { ticks: ticks.into(), more };
            }
            if ticks.len() == MAX_MISSED {
                // Another look at the rule shows whether there are older ticks.
                more = self.next(after).is_some_and(|first| ticks.front().is_some_and(|oldest| first < *oldest));
                return PassedTicks { ticks: ticks.into(), more };
            }
            span = span.saturating_mul(2);
        }
    }

    /// The event of a tick.
    pub(crate) fn tick(&self, at: Timestamp) -> Envelope {
        let mut event = self.event.clone();
        event.event_time = event.event_time.or(Some(at));
        event.data.insert("schedule".to_owned(), json!({ "id": self.config.id, "tick_at": at }));
        event
    }

    /// The rule as text. After a change of the rule, earlier ticks do not count as missed.
    pub(crate) fn rule_text(&self) -> String {
        let config = &self.config;
        match (config.enabled, &config.cron, config.every_ms) {
            (false, _, _) => "disabled".to_owned(),
            (true, Some(cron), _) => format!("{cron} {}", config.timezone.as_deref().unwrap_or("UTC")),
            (true, None, every) => format!("every {} ms", every.unwrap_or_default()),
        }
    }

    /// The workspace that its events belong to.
    pub(crate) fn workspace(&self) -> Option<&str> {
        self.event.workspace()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> ScheduleConfig {
        toml::from_str(&format!("id = \"s\"\nevent = {{ event_type = \"tick\" }}\n{text}")).unwrap()
    }

    fn cron(cron: &str, zone: &str) -> Schedule {
        Schedule::new(&config(&format!("cron = \"{cron}\"\ntimezone = \"{zone}\""))).unwrap()
    }

    fn at(text: &str) -> Timestamp {
        u64::try_from(text.parse::<jiff::Timestamp>().unwrap().as_millisecond()).unwrap()
    }

    #[test]
    fn intervals_are_aligned() {
        let schedule = Schedule::new(&config("every_ms = 1500")).unwrap();
        assert_eq!([0, 1, 1499, 1500, 1501].map(|after| schedule.next(after).unwrap()), [1500, 1500, 1500, 3000, 3000]);
        assert_eq!(schedule.passed(1499, 4500), PassedTicks { ticks: vec![1500, 3000, 4500], more: false });
        assert_eq!(schedule.passed(1500, 2999), PassedTicks::default());
        let all = schedule.passed(0, 1500 * 1000);
        assert!(all.more && all.ticks.len() == MAX_MISSED && all.ticks.last() == Some(&1_500_000));
        assert_eq!(schedule.passed(9000, 3000), PassedTicks::default(), "a clock that was set back has missed nothing");
    }

    #[test]
    fn missed_ticks_of_a_crontab_are_the_newest() {
        let schedule = cron("0 9 * * 1", "UTC");
        let passed = schedule.passed(at("2026-11-01T00:00:00Z"), at("2026-11-22T00:00:00Z"));
        let ticks: Vec<_> = passed
            .ticks
            .iter()
            .map(|tick| jiff::Timestamp::from_millisecond(i64::try_from(*tick).unwrap()).unwrap().to_string())
            .collect();
        assert_eq!(ticks, ["2026-11-02T09:00:00Z", "2026-11-09T09:00:00Z", "2026-11-16T09:00:00Z"]);
        assert!(!passed.more);
        let passed = cron("* * * * *", "UTC").passed(at("2025-11-01T00:00:00Z"), at("2026-11-22T00:00:00Z"));
        assert!(passed.more && passed.ticks.len() == MAX_MISSED);
        assert_eq!(passed.ticks.last(), Some(&at("2026-11-22T00:00:00Z")));
        assert_eq!(passed.ticks.first(), Some(&at("2026-11-21T22:21:00Z")));
    }

    #[test]
    fn the_event_of_a_tick_says_which() {
        let schedule = Schedule::new(&config("every_ms = 1000")).unwrap();
        let event = schedule.tick(5000);
        assert_eq!((event.source.as_str(), event.event_time), ("scheduler", Some(5000)));
        assert_eq!(event.data["schedule"], json!({ "id": "s", "tick_at": 5000 }));
    }
}
