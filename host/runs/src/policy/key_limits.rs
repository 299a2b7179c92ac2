//! Limits of API keys: requests in a minute, and tokens of models in a day.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_ledger::{CopyReader, EntryWrite, Ledger, Partition};
use agent_host_protocol::time::{self, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::record::HostError;

/// Begins the key of every entry of the ledger that has the use of a key.
pub(crate) const ENTRIES: &str = "key-usage/";
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

/// The tokens that runs for a key have used on a day (UTC), by the number of their partition. The ledger of each partition has what its own runs have
/// used; a host of a cluster hears of that of others from their owners ([`PartitionUsage`]).
#[derive(Debug, Default)]
pub(crate) struct KeySpending(Mutex<BTreeMap<u32, Share>>);

/// The use of a key by the runs of one partition.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    spent: Spent,
    /// True if the entry of the ledger has an earlier state.
    changed: bool,
}

/// The use of a key, with the partition of a run that adds to it.
#[derive(Debug, Clone)]
pub(crate) struct ChargedKey {
    spending: Arc<KeySpending>,
    partition: Partition,
}

impl ChargedKey {
    /// Adds tokens that were used now.
    pub(crate) fn add(&self, tokens: u64) {
        self.spending.add(self.partition, time::now(), tokens);
    }
}

/// The use of keys by the runs of one partition, by the id of the key, as its owner tells other hosts.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct PartitionUsage(BTreeMap<String, Spent>);

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
        self.0.lock().values().fold(0, |sum, share| sum.saturating_add(share.spent.on(now / DAY_MS)))
    }

    fn add(&self, partition: Partition, now: Timestamp, tokens: u64) {
        let mut shares = self.0.lock();
        let share = shares.entry(partition.number()).or_default();
        let day = now / DAY_MS;
        let tokens = share.spent.on(day).saturating_add(tokens);
        *share = Share { spent: Spent { day, tokens }, changed: true };
    }

    /// The ledger of a partition, or its owner, says so much. What this process has counted may be more.
    fn read(&self, partition: Partition, written: Spent) {
        let mut shares = self.0.lock();
        let share = shares.entry(partition.number()).or_default();
        share.spent = share.spent.max(written);
    }

    /// The use by the runs of a partition, where the ledger has an earlier state.
    fn take_changed(&self, partition: Partition) -> Option<Spent> {
        let mut shares = self.0.lock();
        let share = shares.get_mut(&partition.number()).filter(|share| share.changed)?;
        share.changed = false;
        Some(share.spent)
    }

    /// The use of this day by the runs of a partition, where there is any.
    fn of_day(&self, partition: Partition, day: u64) -> Option<Spent> {
        self.0.lock().get(&partition.number()).map(|share| share.spent).filter(|spent| spent.on(day) > 0)
    }

    fn not_written(&self, partition: Partition) {
        self.0.lock().entry(partition.number()).or_default().changed = true;
    }
}

impl Spent {
    const fn on(self, day: u64) -> u64 {
        if self.day == day { self.tokens } else { 0 }
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
    /// Reads the use that is written in the ledger of a partition. Where this process has counted more of a day, that stays.
    pub(crate) fn load(&self, copy: &CopyReader, partition: Partition) -> Result<(), HostError> {
        let mut after: Option<String> = None;
        loop {
            let piece = copy.entries(ENTRIES, after.as_deref(), PIECE)?;
            let is_last = piece.len() < PIECE;
            for (entry, value) in piece {
                let written: Spent = serde_json::from_str(value.get()).unwrap_or_default();
                self.of(entry.trim_start_matches(ENTRIES)).read(partition, written);
                after = Some(entry);
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// The use of this day by the runs of a partition.
    pub(crate) fn of_partition(&self, partition: Partition, now: Timestamp) -> PartitionUsage {
        let all = self.0.lock();
        let used = all.iter().filter_map(|(id, spending)| Some((id.clone(), spending.of_day(partition, now / DAY_MS)?)));
        PartitionUsage(used.collect())
    }

    /// The owner of a partition says what its runs have used. Where this process knows of more of a day, that stays.
    pub(crate) fn note(&self, partition: Partition, usage: PartitionUsage) {
        for (id, spent) in usage.0 {
            self.of(&id).read(partition, spent);
        }
    }

    /// The use of one key.
    pub(crate) fn of(&self, id: &str) -> Arc<KeySpending> {
        Arc::clone(self.0.lock().entry(id.to_owned()).or_default())
    }

    /// The use of one key by a run of this partition.
    pub(crate) fn charged(&self, id: &str, partition: Partition) -> ChargedKey {
        ChargedKey { spending: self.of(id), partition }
    }

    /// Writes into the ledger of a partition what its runs have used, where that has changed since the last time.
    pub(crate) async fn write(&self, ledger: &Ledger, partition: Partition) -> Result<(), HostError> {
        let (mut changed, mut entries) = (Vec::new(), Vec::new());
        for (id, spending) in &*self.0.lock() {
            if let Some(spent) = spending.take_changed(partition) {
                changed.push(Arc::clone(spending));
                entries.push(EntryWrite::put(format!("{ENTRIES}{id}"), &spent));
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        let written = match entries.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(entries) => ledger.put_entries(&entries).await,
            Err(error) => Err(error),
        };
        if written.is_err() {
            changed.iter().for_each(|spending| spending.not_written(partition));
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
        usage.load(&ledger.copy_reader(), Partition::ONLY).unwrap();
        let noon = 20_000 * DAY_MS + DAY_MS / 2;
        usage.of("a").add(Partition::ONLY, noon, 5);
        usage.of("a").add(Partition::ONLY, noon + 1, 7);
        assert_eq!((usage.of("a").today(noon), usage.of("b").today(noon)), (12, 0));
        usage.write(&ledger, Partition::ONLY).await.unwrap();
        let again = KeyUsage::default();
        again.load(&ledger.copy_reader(), Partition::ONLY).unwrap();
        assert_eq!(again.of("a").today(noon), 12);
        assert_eq!(again.of("a").today(noon + DAY_MS), 0);
        again.of("a").add(Partition::ONLY, noon + DAY_MS, 1);
        assert_eq!(again.of("a").today(noon + DAY_MS), 1);
        assert_eq!(until_tomorrow(noon), Duration::from_millis(DAY_MS / 2));
    }

    /// Two hosts have a partition each, and tell each other.
    #[tokio::test]
    async fn the_use_of_a_key_is_that_of_all_partitions_and_each_ledger_has_its_own() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let ledgers = dirs.each_ref().map(|dir| agent_host_ledger::Options::new(dir.path()).open().unwrap());
        let [first, second] = [Partition::new(0, 2), Partition::new(1, 2)];
        let (one, other) = (KeyUsage::default(), KeyUsage::default());
        let noon = 20_000 * DAY_MS + DAY_MS / 2;
        one.of("a").add(first, noon, 5);
        other.of("a").add(second, noon, 7);
        assert_eq!((one.of("a").today(noon), other.of("a").today(noon)), (5, 7));
        let told = |usage: &PartitionUsage| serde_json::from_str(&serde_json::to_string(usage).unwrap()).unwrap();
        let follow = async || {
            one.write(&ledgers[0], first).await.unwrap();
            other.write(&ledgers[1], second).await.unwrap();
            one.note(second, told(&other.of_partition(second, noon)));
            other.note(first, told(&one.of_partition(first, noon)));
        };
        follow().await;
        assert_eq!((one.of("a").today(noon), other.of("a").today(noon)), (12, 12));
        // Again, and nothing counts twice.
        follow().await;
        assert_eq!((one.of("a").today(noon), other.of("a").today(noon)), (12, 12));
        // The second partition moves to the first host.
        one.of("a").add(second, noon, 1);
        one.load(&ledgers[1].copy_reader(), second).unwrap();
        one.write(&ledgers[1], second).await.unwrap();
        other.note(second, told(&one.of_partition(second, noon)));
        assert_eq!((one.of("a").today(noon), other.of("a").today(noon)), (13, 13));
        let again = KeyUsage::default();
        again.load(&ledgers[1].copy_reader(), second).unwrap();
        assert_eq!(again.of("a").today(noon), 8);
        assert!(one.of_partition(second, noon + DAY_MS).0.is_empty());
    }
}
