//! The deadline of an execution. The time in which a run waits for people is not counted (`Terms::waiting_counts`), so it
//! moves.
//!
//! A run that is parked meanwhile gets the time back when it is executed again (`lifecycle/start`); this module moves the
//! deadline of a run that waits in memory.

use std::time::{Duration, Instant};

use agent_host_protocol::{Timestamp, time};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::sleep_until};

/// The instant at which an execution times out.
#[derive(Debug)]
pub(crate) struct Deadline {
    clock: Mutex<Clock>,
    /// Notified when it is paused, and when it goes on.
    changed: Notify,
}

#[derive(Debug)]
struct Clock {
    at: Instant,
    /// So many waits pause it.
    waits: usize,
    /// Since when.
    since: Option<Instant>,
}

impl Clock {
    fn pause(&self, now: Instant) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

impl Deadline {
    pub(crate) fn new(at: Instant) -> Self {
        let clock = Clock { at, waits: 0, since: None };
        Self { clock: Mutex::new(clock), changed: Notify::new() }
    }

    /// The deadline as it is now. It moves on while it is paused.
    pub(crate) fn at(&self) -> Instant {
        let clock = self.clock.lock();
        clock.at + clock.pause(Instant::now())
    }

    /// The same, as a time on the wall: no earlier than the deadline, and at most two milliseconds later.
    pub(crate) fn timestamp(&self) -> Timestamp {
        let left = self.at().saturating_duration_since(Instant::now());
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        time::now().saturating_add(left_ms)
    }

    /// True if it has passed.
    pub(crate) fn is_past(&self) -> bool {
        Instant::now() >= self.at()
    }

    /// Waits until it has passed.
    pub(crate) async fn passed(&self) {
        loop {
            let changed = self.changed.notified();
            let (at, is_paused) = {
                let clock = self.clock.lock();
                (clock.at, clock.since.is_some())
            };
            if is_paused {
                changed.await;
                continue;
            }
            tokio::select! {
                biased;
                () = sleep_until(at.into()) => return,
                () = changed => {}
            }
        }
    }

    /// Stops counting until the pause is dropped. Pauses may overlap.
    pub(crate) fn pause(&self) -> Pause<'_> {
        let mut clock = self.clock.lock();
        clock.waits += 1;
        let now = Instant::now();
        // A deadline that has passed stays passed.
        if clock.since.is_none() && clock.at > now {
            clock.since = Some(now);
        }
        drop(clock);
        self.changed.notify_waiters();
        Pause(self)
    }
}

/// A wait whose time does not count.
pub(crate) struct Pause<'a>(&'a Deadline);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let mut clock = self.0.clock.lock();
        clock.waits = clock.waits.saturating_sub(1);
        if clock.waits == 0
            && let Some(since) = clock.since.take()
        {
            clock.at += since.elapsed();
        }
        drop(clock);
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pause_moves_the_deadline_by_its_length() {
        let deadline = Deadline::new(Instant::now() + Duration::from_millis(60));
        let (first, second) = (deadline.pause(), deadline.pause());
        let passed = deadline.passed();
        assert!(tokio::time::timeout(Duration::from_millis(120), passed).await.is_err(), "it is paused");
        drop(first);
        assert!(!deadline.is_past(), "another wait goes on");
        drop(second);
        assert!(!deadline.is_past() && deadline.timestamp() > time::now());
        deadline.passed().await;
        assert!(deadline.is_past());
        let _late = deadline.pause();
        assert!(deadline.is_past(), "what has passed stays passed");
    }

    #[tokio::test]
    async fn a_waiter_notices_a_pause_that_begins_later() {
        let deadline = Deadline::new(Instant::now() + Duration::from_millis(80));
        let waits = async {
            deadline.passed().await;
            Instant::now()
        };
        let pauses = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let pause = deadline.pause();
            tokio::time::sleep(Duration::from_millis(150)).await;
            drop(pause);
            Instant::now()
        };
        let (passed, resumed) = futures_util::future::join(waits, pauses).await;
        assert!(passed >= resumed, "it passed during the pause");
    }
}
