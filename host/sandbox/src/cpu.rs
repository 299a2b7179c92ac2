//! CPU time that the guests of one tree of runs use together.

use std::{
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::sync::Notify;

/// The CPU time that some guests may use together, and have used.
///
/// Guests on the threads of runs are charged the time that they hold a thread, which is a slice or two at a time; guests that compute
/// are charged the CPU time of their thread.
#[derive(Debug)]
pub struct CpuBudget {
    limit: Duration,
    used_ns: AtomicU64,
    used_up: Notify,
}

impl CpuBudget {
    /// A budget of which nothing is used. Zero bounds nothing.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        let limit = if limit.is_zero() { Duration::MAX } else { limit };
        Self { limit, used_ns: AtomicU64::new(0), used_up: Notify::new() }
    }

    /// The CPU time that was used.
    #[must_use]
    pub fn used(&self) -> Duration {
        Duration::from_nanos(self.used_ns.load(Ordering::Relaxed))
    }

    /// The CPU time that there is.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns when all of it is used.
    pub async fn used_up(&self) {
        let mut notified = pin!(self.used_up.notified());
        loop {
            // What is used up between the look and the wait is not missed.
            notified.as_mut().enable();
            if self.used() >= self.limit {
                return;
            }
            notified.as_mut().await;
            notified.set(self.used_up.notified());
        }
    }

    pub(crate) fn spend(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let before = self.used_ns.fetch_add(ns, Ordering::Relaxed);
        if Duration::from_nanos(before) < self.limit && Duration::from_nanos(before.saturating_add(ns)) >= self.limit {
            self.used_up.notify_waiters();
        }
    }
}

/// The CPU time that this thread has used.
pub(crate) fn of_thread() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let (seconds, ns) = (u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0));
    Duration::new(seconds, ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_who_wait_hear_when_it_is_used_up_and_those_who_come_later_too() {
        let budget = CpuBudget::new(Duration::from_millis(10));
        let (one, two) = (budget.used_up(), budget.used_up());
        let spent = async {
            tokio::task::yield_now().await;
            budget.spend(Duration::from_millis(9));
            tokio::task::yield_now().await;
            assert_eq!(budget.used(), Duration::from_millis(9));
            budget.spend(Duration::from_millis(1));
        };
        let waited = async { tokio::join!(one, two, spent) };
        tokio::time::timeout(Duration::from_secs(60), waited).await.unwrap();
        tokio::time::timeout(Duration::from_secs(60), budget.used_up()).await.unwrap();
    }

    #[tokio::test]
    async fn zero_bounds_nothing() {
        let budget = CpuBudget::new(Duration::ZERO);
        budget.spend(Duration::from_secs(1 << 30));
        assert!(tokio::time::timeout(Duration::from_millis(10), budget.used_up()).await.is_err());
    }

    #[test]
    fn a_thread_that_computes_uses_cpu_time() {
        let before = of_thread();
        let mut turns = 0_u64;
        while of_thread() < before + Duration::from_millis(5) {
            turns = std::hint::black_box(turns.wrapping_add(1));
        }
        assert!(turns > 0);
    }
}
