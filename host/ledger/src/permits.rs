//! Permits: the limits of a binding over all partitions of a cluster.
//!
//! [`BindingPermits`] has the permits of one binding that are lent to each partition, and how many the partition wants. The owner of a partition
//! reports what the partition uses and wants, never a difference, so a request may be repeated. A partition without an owner keeps its permits, since
//! its runs continue under the next owner, which gives back what they do not use.
//!
//! Each partition that wants permits gets an equal share; what others do not want is for whoever asks. Where there are more partitions than permits,
//! they take turns: one that had a permit is behind those that have asked before it gave the permit back.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::error::LedgerError;

/// Starts that were not taken are lost after so long, in µs: no burst follows a pause.
const CATCH_UP_US: u64 = 250_000;
/// A partition that has not asked for so long, in µs, has no owner that could use a permit: nothing is kept for what it wants. What it has stays lent.
const STALE_US: u64 = 6_000_000;
/// The time of a request is written again after so long, in µs.
const SEEN_US: u64 = 2_000_000;
const MINUTE_US: u64 = 60_000_000;

/// The permits of the partition that a ledger is. Its functions block.
pub trait PermitStore: Send + Sync {
    /// Gives back the permits of all bindings that are not `used`: the owner before had them.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] where the database does not answer, or the lease of this host is over.
    fn give_back_unused(&self, used: &[String]) -> Result<(), LedgerError>;

    /// Asks for permits of a binding. Those that the partition has and does not use go back.
    ///
    /// # Errors
    /// As [`Self::give_back_unused`].
    fn lend(&self, binding: &str, request: &PermitRequest) -> Result<LentPermits, LedgerError>;
}

/// The permits of a partition, shared.
pub type Permits = Arc<dyn PermitStore>;

/// The use of a binding in one partition, and its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PermitRequest {
    /// Runs that are executed at one time, in all partitions. `None`: no limit.
    pub concurrency: Option<u32>,
    /// Runs that begin in one minute, in all partitions. `None`: no limit.
    pub per_minute: Option<u32>,
    /// Runs of the partition that are executed.
    pub running: u32,
    /// Runs of the partition that wait.
    pub waiting: u32,
    /// Runs of those that could begin now, if the rate allowed it.
    pub starts: u32,
}

/// The permits of a binding for one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LentPermits {
    /// Runs that may be executed at one time.
    pub lent: u32,
    /// True if other partitions want more than they have, or all have more than there is.
    pub is_contended: bool,
    /// Runs that may begin now, where the rate is limited.
    pub starts: u32,
    /// The rate allows the next start after so long.
    pub next_start: Duration,
}

/// The permits of one binding, as the database has them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct BindingPermits {
    #[serde(default)]
    partitions: BTreeMap<u32, PartitionPermits>,
    /// Time of the next start, in µs.
    #[serde(default)]
    next_start: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct PartitionPermits {
    lent: u32,
    wanted: u32,
    /// Time in µs from which on the partition has wanted a permit, while it has none.
    asked: u64,
    /// Time in µs of the last request, or some moments before.
    seen: u64,
}

impl BindingPermits {
    /// The partition has no permits any more.
    pub(crate) fn forget(&mut self, partition: u32) {
        self.partitions.remove(&partition);
    }

    /// Lends to a partition what it may have now.
    pub(crate) fn lend(&mut self, partition: u32, request: &PermitRequest, now: u64) -> LentPermits {
        let (starts, next_start) = self.starts(request, now);
        let wanted = request.running.saturating_add(request.waiting);
        let Some(limit) = request.concurrency else {
            self.partitions.remove(&partition);
            return LentPermits { lent: wanted, is_contended: false, starts, next_start };
        };
        let before = self.partitions.get(&partition).copied().unwrap_or_default();
        let is_current = |permits: &PartitionPermits| now.saturating_sub(permits.seen) < STALE_US;
        let has_waited = before.lent == 0 && before.wanted > 0 && is_current(&before);
        let asked = if has_waited { before.asked.min(now) } else { now };
        let others = self.partitions.iter().filter(|(other, _)| **other != partition);
        let others: Vec<PartitionPermits> = others
            .map(|(_, permits)| PartitionPermits {
                wanted: if is_current(permits) { permits.wanted } else { 0 },
                asked: permits.asked.min(now),
                ..*permits
            })
            .collect();
        let wanting = others.iter().filter(|other| other.wanted > 0).count() + 1;
        let share = (limit / u32::try_from(wanting).unwrap_or(u32::MAX)).max(1);
        let is_scarce = wanting > limit as usize;
        let free = others.iter().fold(limit, |free, other| free.saturating_sub(other.lent));
        let missing = |other: &&PartitionPermits| other.lent < other.wanted.min(share);
        let first = others.iter().filter(missing).filter(|other| !is_scarce || other.asked < asked);
        let reserved = first.fold(0_u32, |sum, other| sum.saturating_add(other.wanted.min(share) - other.lent));
        let lent = wanted.min(free.saturating_sub(reserved)).max(request.running);
        if wanted == 0 {
            self.partitions.remove(&partition);
        } else {
            let is_new = before.wanted == 0 || before.seen > now || now - before.seen >= SEEN_US;
            let seen = if is_new { now } else { before.seen };
            self.partitions.insert(partition, PartitionPermits { lent, wanted, asked: if lent == 0 { asked } else { 0 }, seen });
        }
        let all = others.iter().fold(lent, |all, other| all.saturating_add(other.lent));
        LentPermits { lent, is_contended: all > limit || others.iter().any(|other| missing(&other)), starts, next_start }
    }

    /// Runs that may begin now, and the time until the next.
    fn starts(&mut self, request: &PermitRequest, now: u64) -> (u32, Duration) {
        let Some(rate) = request.per_minute.filter(|rate| *rate > 0) else { return (0, Duration::ZERO) };
        let interval = (MINUTE_US / u64::from(rate)).max(1);
        // One that was made under another rate, or another clock, is not waited for longer than this rate allows.
        self.next_start = self.next_start.clamp(now.saturating_sub(CATCH_UP_US), now.saturating_add(interval));
        let mut starts = 0;
        while starts < request.starts && self.next_start <= now {
            self.next_start += interval;
            starts += 1;
        }
        (starts, Duration::from_micros(self.next_start.saturating_sub(now)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asks(concurrency: u32, running: u32, waiting: u32) -> PermitRequest {
        PermitRequest { concurrency: Some(concurrency), per_minute: None, running, waiting, starts: 0 }
    }

    #[test]
    fn a_partition_alone_has_all_and_shares_when_another_asks() {
        let mut permits = BindingPermits::default();
        assert_eq!(permits.lend(0, &asks(8, 0, 20), 1).lent, 8);
        let second = permits.lend(1, &asks(8, 0, 20), 2);
        assert_eq!((second.lent, second.is_contended), (0, false));
        // It keeps what it uses, and is told that another one wants more.
        let first = permits.lend(0, &asks(8, 8, 12), 3);
        assert_eq!((first.lent, first.is_contended), (8, true));
        assert_eq!(permits.lend(0, &asks(8, 5, 12), 4).lent, 5);
        assert_eq!(permits.lend(1, &asks(8, 0, 20), 5).lent, 3);
        assert_eq!(permits.lend(0, &asks(8, 3, 12), 6).lent, 4, "half of all");
        assert_eq!(permits.lend(1, &asks(8, 3, 17), 7).lent, 4);
        // One that wants no more leaves the rest to the other.
        assert_eq!(permits.lend(0, &asks(8, 1, 0), 8).lent, 1);
        assert_eq!(permits.lend(1, &asks(8, 4, 16), 9).lent, 7);
        permits.lend(0, &asks(8, 0, 0), 10);
        assert_eq!(permits.lend(1, &asks(8, 7, 13), 11).lent, 8);
    }

    #[test]
    fn partitions_take_turns_where_there_are_fewer_permits() {
        let mut permits = BindingPermits::default();
        let mut order = Vec::new();
        let mut now = 3;
        for partition in 0..3 {
            permits.lend(partition, &asks(1, 0, 9), u64::from(partition));
        }
        for _ in 0..12 {
            // Each asks until one has the permit, executes one run, and wants more.
            let turn = (0..3).cycle().find(|partition| {
                now += 1;
                permits.lend(*partition, &asks(1, 0, 9), now).lent == 1
            });
            let partition = turn.unwrap();
            order.push(partition);
            now += 1;
            assert!(permits.lend(partition, &asks(1, 1, 8), now).is_contended);
        }
        for turns in order.windows(3) {
            assert!((0..3).all(|partition| turns.contains(&partition)), "{order:?}");
        }
    }

    #[test]
    fn nothing_is_kept_for_a_partition_that_does_not_ask_any_more() {
        let mut permits = BindingPermits::default();
        permits.lend(0, &asks(1, 0, 9), 1);
        assert_eq!(permits.lend(1, &asks(1, 0, 9), 2).lent, 0);
        // It is the turn of the other one, which has no owner.
        assert_eq!(permits.lend(0, &asks(1, 0, 9), 3).lent, 0);
        assert_eq!(permits.lend(0, &asks(1, 0, 9), 3 + STALE_US).lent, 1);
        // What it has stays its own: its runs may be executed still.
        let mut permits = BindingPermits::default();
        permits.lend(1, &asks(1, 0, 1), 1);
        assert_eq!(permits.lend(0, &asks(1, 0, 9), 2 * STALE_US).lent, 0);
    }

    #[test]
    fn a_smaller_limit_is_reached_as_runs_end() {
        let mut permits = BindingPermits::default();
        permits.lend(0, &asks(8, 0, 4), 1);
        permits.lend(1, &asks(8, 0, 4), 2);
        let (first, second) = (permits.lend(0, &asks(4, 4, 9), 3), permits.lend(1, &asks(4, 3, 9), 4));
        assert!(first.lent == 4 && first.is_contended && second.lent == 3 && second.is_contended);
        assert_eq!(permits.lend(0, &asks(4, 1, 9), 5).lent, 1);
        assert_eq!(permits.lend(1, &asks(4, 1, 9), 6).lent, 2);
        assert_eq!(permits.lend(0, &asks(4, 1, 9), 7).lent, 2);
    }

    #[test]
    fn starts_are_spread_over_all_partitions() {
        let mut permits = BindingPermits::default();
        let asks = |starts| PermitRequest { concurrency: None, per_minute: Some(60), running: 0, waiting: starts, starts };
        let second = 1_000_000;
        let mut now = 100 * second;
        let mut started = 0;
        for step in 0..600 {
            now += second / 10;
            started += permits.lend(step % 4, &asks(5), now).starts;
        }
        assert!((60..=61).contains(&started), "{started} in a minute");
        // No burst after a pause.
        assert_eq!(permits.lend(0, &asks(5), now + 100 * second).starts, 1);
        let fast = PermitRequest { per_minute: Some(60_000), ..asks(500) };
        assert_eq!(permits.lend(0, &fast, now + 200 * second).starts, 251, "what was missed in a quarter of a second");
    }

    proptest! {
        /// Partitions that use what they are lent, and ask at any time.
        #[test]
        fn no_more_is_lent_than_there_is_and_nobody_waits_for_ever(
            limit in 1_u32..6,
            steps in prop::collection::vec((0_u32..5, 0_u32..4, 0_u32..4), 1..120),
        ) {
            let mut permits = BindingPermits::default();
            let mut running = [0_u32; 5];
            let mut now = 0;
            for (partition, ended, waiting) in steps {
                now += 1;
                let runs = &mut running[partition as usize];
                *runs = runs.saturating_sub(ended);
                let lent = permits.lend(partition, &asks(limit, *runs, waiting), now).lent;
                prop_assert!(lent >= *runs && lent <= *runs + waiting);
                *runs = lent;
                prop_assert!(running.iter().sum::<u32>() <= limit, "{running:?}");
            }
            // All end, and each that asks gets its turn.
            for partition in 0..5 {
                now += 1;
                permits.lend(partition, &asks(limit, 0, 1), now);
            }
            let mut served = [false; 5];
            for _ in 0..12 {
                for partition in 0..5 {
                    now += 1;
                    served[partition as usize] |= permits.lend(partition, &asks(limit, 0, 1), now).lent > 0;
                }
            }
            prop_assert!(served.iter().all(|served| *served), "{served:?}");
        }
    }
}
