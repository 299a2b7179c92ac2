//! Limits of API keys: requests in a minute, and tokens of models in a day.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_ledger::{EntryWrite, Ledger};
use agent_host_protocol::time::{self, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::record::HostError;

/// Begins the key of every entry of the ledger that has the use of a key.
const ENTRIES: &str = "key-usage/";
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// Entries that are read at one time.
const PIECE: usize = 1_000;

/// Requests that a key may send: as many at once as in a minute, then evenly. In memory only: a restart gives all of them back.
#[derive(Debug)]
pub(crate) struct RequestRate {
    per_minute: f64,
    /// Requests that are left, at a time.
    left: Mutex<(f64, Instant)>,
}

impl RequestRate {
    pub(crate) fn new(per_minute: u32) -> Self {
        Self { per_minute: f64::from(per_minute), left: Mutex::new((f64::from(per_minute), Instant::now())) }
    }

    /// Takes one request; fails with the time until there is one.
    pub(crate) fn take(&self, now: Instant) -> Result<(), Duration> {
        let a_second = self.per_minute / 60.0;
        let mut left = self.left.lock();
        let passed = now.saturating_duration_since(left.1).as_secs_f64();
        *left = ((left.0 + passed * a_second).min(self.per_minute), now.max(left.1));
        if left.0 >= 1.0 {
            left.0 -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - left.0) / a_second))
    }
}

/// The tokens that runs for a key have used on a day (UTC).
#[derive(Debug, Default)]
pub(crate) struct KeySpending {
    spent: Mutex<Spent>,
    /// True if the entry of the ledger has an earlier state.
    changed: AtomicBool,
}

/// As the ledger keeps it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Spent {
    /// Days since 1970.
    day: u64,
    tokens: u64,
}

impl KeySpending {
    /// The tokens of the day of this time.
    pub(crate) fn today(&self, now: Timestamp) -> u64 {
        let spent = *self.spent.lock();
        if spent.day == now / DAY_MS { spent.tokens } else { 0 }
    }

    /// Adds tokens that were used now.
    pub(crate) fn add(&self, tokens: u64) {
        self.add_at(time::now(), tokens);
    }

    fn add_at(&self, now: Timestamp, tokens: u64) {
        let mut spent = self.spent.lock();
        let before = if spent.day == now / DAY_MS { spent.tokens } else { 0 };
        *spent = Spent { day: now / DAY_MS, tokens: before.saturating_add(tokens) };
        self.changed.store(true, Ordering::Release);
    }
}

/// The time from now to the next day (UTC).
pub(crate) fn until_tomorrow(now: Timestamp) -> Duration {
    Duration::from_millis(DAY_MS - now % DAY_MS)
}

/// The use of all keys that have a budget.
#[derive(Debug, Default)]
pub(crate) struct KeyUsage(Mutex<HashMap<String, Arc<KeySpending>>>);

impl KeyUsage {
    /// Reads the use that is written in a ledger. Where this process has counted more of a day, that stays.
    pub(crate) fn load(&self, ledger: &Ledger) -> Result<(), HostError> {
        let mut after: Option<String> = None;
        loop {
            let piece = ledger.entries(ENTRIES, after.as_deref(), PIECE)?;
            let is_last = piece.len() < PIECE;
            for (entry, value) in piece {
                let written: Spent = serde_json::from_str(value.get()).unwrap_or_default();
                let known = self.of(entry.trim_start_matches(ENTRIES));
                let mut spent = known.spent.lock();
                *spent = (*spent).max(written);
                drop(spent);
                after = Some(entry);
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// The use of one key.
    pub(crate) fn of(&self, id: &str) -> Arc<KeySpending> {
        Arc::clone(self.0.lock().entry(id.to_owned()).or_default())
    }

    /// Writes the use of the keys that belong to a ledger, where it has changed since the last time.
    pub(crate) async fn write(&self, ledger: &Ledger, belongs: impl Fn(&str) -> bool) -> Result<(), HostError> {
        let changed: Vec<_> = {
            let all = self.0.lock();
            let own = all.iter().filter(|(id, _)| belongs(id));
            let changed = own.filter(|(_, spending)| spending.changed.swap(false, Ordering::AcqRel));
            changed.map(|(id, spending)| (id.clone(), Arc::clone(spending))).collect()
        };
        if changed.is_empty() {
            return Ok(());
        }
        let entry =
            |(id, spending): &(String, Arc<KeySpending>)| EntryWrite::put(format!("{ENTRIES}{id}"), &*spending.spent.lock());
        let written = match changed.iter().map(entry).collect::<Result<Vec<_>, _>>() {
            Ok(entries) => ledger.put_entries(&entries).await,
            Err(error) => Err(error),
        };
        if written.is_err() {
            changed.iter().for_each(|(_, spending)| spending.changed.store(true, Ordering::Release));
        }
        Ok(written?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_gives_a_minute_at_once_and_then_evenly() {
        let rate = RequestRate::new(60);
        let began = Instant::now();
        let taken = (0..100).filter(|_| rate.take(began).is_ok()).count();
        assert_eq!(taken, 60);
        let wait = rate.take(began).unwrap_err();
        assert!(wait > Duration::from_millis(900) && wait <= Duration::from_secs(1), "{wait:?}");
        assert!(rate.take(began + wait + Duration::from_millis(1)).is_ok());
        assert!(rate.take(began + wait + Duration::from_millis(1)).is_err());
        // A pause gives back no more than a minute.
        let later = began + Duration::from_secs(3600);
        assert_eq!((0..100).filter(|_| rate.take(later).is_ok()).count(), 60);
    }

    #[tokio::test]
    async fn the_use_of_a_day_survives_a_restart_and_ends_with_the_day() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = agent_host_ledger::Options::new(dir.path()).open().unwrap();
        let usage = KeyUsage::default();
        usage.load(&ledger).unwrap();
        let noon = 20_000 * DAY_MS + DAY_MS / 2;
        usage.of("a").add_at(noon, 5);
        usage.of("a").add_at(noon + 1, 7);
        assert_eq!((usage.of("a").today(noon), usage.of("b").today(noon)), (12, 0));
        usage.write(&ledger, |_| true).await.unwrap();
        let again = KeyUsage::default();
        again.load(&ledger).unwrap();
        assert_eq!(again.of("a").today(noon), 12);
        assert_eq!(again.of("a").today(noon + DAY_MS), 0);
        again.of("a").add_at(noon + DAY_MS, 1);
        assert_eq!(again.of("a").today(noon + DAY_MS), 1);
        assert_eq!(until_tomorrow(noon), Duration::from_millis(DAY_MS / 2));
    }
}
