//! The lease of a host that has taken over partitions of a cluster: until when it may act, by its own clock.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use crate::error::LedgerError;

/// A host acts no longer than its lease less this, or less a fifth of a short lease: clocks of two machines do not run equally fast,
/// and what has begun needs some time to end.
const MARGIN: Duration = Duration::from_secs(2);

/// The reason for which a host does not own a partition any more.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseEnd {
    /// Another host has the partition, or may take it: no effect may begin any more.
    Over(String),
    /// The database has lost batches that the copy of this host has. No host takes the partition until an operator has put them back. The
    /// host has time to end in good order, so that its copies of other partitions, of which batches may be lost too, are in their files.
    LostCommits(String),
}

impl fmt::Display for LeaseEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Over(reason) | Self::LostCommits(reason)) = self;
        f.write_str(reason)
    }
}

/// Called once, with the reason for which the lease is over, before anybody is told so: a hook that ends the process leaves no call an answer.
/// It must not use the ledger.
type EndHook = Box<dyn FnOnce(&LeaseEnd) + Send>;

/// The time for which a host may act, which its heartbeat renews.
pub(crate) struct LeaseTime {
    length: Duration,
    /// The moment at which the host stops, in milliseconds of [`now_ms`].
    until_ms: AtomicU64,
}

impl LeaseTime {
    pub(crate) fn new(length: Duration) -> Self {
        Self { length, until_ms: AtomicU64::new(0) }
    }

    /// Length of the lease in the database.
    pub(crate) fn length(&self) -> Duration {
        self.length
    }

    /// The database has renewed the lease by a statement that was sent at `sent_ms`. The database counts from later on, so the host
    /// stops earlier than another one begins.
    pub(crate) fn renew(&self, sent_ms: u64) {
        let acting = self.length.saturating_sub(MARGIN.min(self.length / 5));
        self.until_ms.fetch_max(sent_ms.saturating_add(milliseconds(acting)), Ordering::AcqRel);
    }

    /// Time that is left.
    pub(crate) fn left(&self) -> Duration {
        Duration::from_millis(self.until_ms.load(Ordering::Acquire).saturating_sub(now_ms()))
    }
}

/// The lease of a host for one partition. See the module.
pub(crate) struct Lease {
    time: Arc<LeaseTime>,
    /// The epoch of the ownership; 0 where the host does not own the partition.
    epoch: AtomicU64,
    /// The host was asked to give all that it owns to others.
    drained: AtomicBool,
    /// Another host is to have the partition.
    moving: AtomicBool,
    /// The database knows less of the partition than this host.
    doubted: AtomicBool,
    ended: Mutex<EndState>,
}

#[derive(Default)]
struct EndState {
    reason: Option<LeaseEnd>,
    hook: Option<EndHook>,
}

/// Milliseconds since the machine was started, with the time in which it was suspended.
pub(crate) fn now_ms() -> u64 {
    #[cfg(target_os = "linux")]
    let clock = rustix::time::ClockId::Boottime;
    // The monotonic clock of these systems counts on while they are suspended, or they have no better one.
    #[cfg(not(target_os = "linux"))]
    let clock = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(clock);
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000).saturating_add(nanoseconds / 1_000_000)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Lease {
    pub(crate) fn new(time: Arc<LeaseTime>) -> Self {
        Self {
            time,
            epoch: AtomicU64::new(0),
            drained: AtomicBool::new(false),
            moving: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
            ended: Mutex::default(),
        }
    }

    /// Length of the lease in the database.
    pub(crate) fn length(&self) -> Duration {
        self.time.length()
    }

    /// The host owns the ledger with this epoch. `hook` is called when that is over; at once where it is over already.
    pub(crate) fn take(&self, epoch: u64, hook: EndHook) {
        self.epoch.store(epoch, Ordering::Release);
        let mut ended = self.ended.lock();
        match &ended.reason {
            Some(reason) => hook(reason),
            None => ended.hook = Some(hook),
        }
    }

    /// The epoch of the ownership; 0 where the host owns nothing.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// True if the host is to give the partition to another one.
    pub(crate) fn gives_way(&self) -> bool {
        self.drained.load(Ordering::Acquire) || self.moving.load(Ordering::Acquire)
    }

    /// The host was asked to give all that it owns to others, or is so no more.
    pub(crate) fn set_drained(&self, drained: bool) {
        self.drained.store(drained, Ordering::Release);
    }

    /// Another host is to have the partition.
    pub(crate) fn set_moving(&self) {
        self.moving.store(true, Ordering::Release);
    }

    /// The database knows an earlier epoch than that of this host: it may have lost batches. The next one shows that.
    pub(crate) fn doubt(&self) {
        self.doubted.store(true, Ordering::Release);
    }

    /// True once after [`Self::doubt`].
    pub(crate) fn take_doubt(&self) -> bool {
        self.doubted.swap(false, Ordering::AcqRel)
    }

    /// Time that is left.
    pub(crate) fn left(&self) -> Duration {
        self.time.left()
    }

    /// An error where the host may not act.
    pub(crate) fn check(&self) -> Result<(), LedgerError> {
        if self.left().is_zero() {
            self.end(LeaseEnd::Over("the database has not renewed the lease of this host in time".to_owned()));
        }
        match &self.ended.lock().reason {
            Some(reason) => Err(LedgerError::unavailable(reason.to_string())),
            None => Ok(()),
        }
    }

    /// The host does not own the ledger any more. The first reason counts.
    pub(crate) fn end(&self, reason: LeaseEnd) {
        let mut ended = self.ended.lock();
        if ended.reason.is_some() {
            return;
        }
        // Under the lock, on which everybody waits who asks whether the host may act.
        if let Some(hook) = ended.hook.take() {
            hook(&reason);
        }
        ended.reason = Some(reason);
    }

    /// The reason for which it is over.
    pub(crate) fn ended(&self) -> Option<LeaseEnd> {
        self.ended.lock().reason.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_lease_is_over_before_the_database_says_so_and_stays_over() {
        let time = Arc::new(LeaseTime::new(Duration::from_millis(500)));
        let lease = Lease::new(Arc::clone(&time));
        time.renew(now_ms());
        assert!(lease.check().is_ok());
        let left = lease.left();
        assert!(left <= Duration::from_millis(400), "{left:?}");
        let calls = Arc::new(AtomicUsize::new(0));
        let called = Arc::clone(&calls);
        lease.take(3, Box::new(move |_| called.store(1, Ordering::Relaxed)));
        std::thread::sleep(left + Duration::from_millis(2));
        assert!(lease.check().is_err());
        time.renew(now_ms());
        lease.end(LeaseEnd::Over("again".to_owned()));
        assert!(lease.check().unwrap_err().to_string().contains("has not renewed"));
        assert_eq!((calls.load(Ordering::Relaxed), lease.epoch()), (1, 3));
    }

    #[test]
    fn nobody_is_told_before_the_hook_is_done() {
        let time = Arc::new(LeaseTime::new(Duration::from_secs(10)));
        time.renew(now_ms());
        let lease = Arc::new(Lease::new(time));
        let (began, has_begun) = std::sync::mpsc::channel();
        let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
        lease.take(
            1,
            Box::new(move |_| {
                began.send(()).unwrap();
                may_go_on.recv().unwrap();
            }),
        );
        let ending = Arc::clone(&lease);
        let ending = std::thread::spawn(move || ending.end(LeaseEnd::Over("taken over".to_owned())));
        has_begun.recv().unwrap();
        let (told, is_told) = std::sync::mpsc::channel();
        let asking = std::thread::spawn(move || told.send(lease.check().is_err()).unwrap());
        assert!(is_told.recv_timeout(Duration::from_millis(50)).is_err());
        go_on.send(()).unwrap();
        assert!(is_told.recv().unwrap());
        ending.join().unwrap();
        asking.join().unwrap();
    }

    #[test]
    fn a_lease_that_ended_before_it_was_taken_ends_what_takes_it() {
        let lease = Lease::new(Arc::new(LeaseTime::new(Duration::from_secs(10))));
        lease.end(LeaseEnd::Over("taken over".to_owned()));
        let (sent, got) = std::sync::mpsc::channel();
        lease.take(1, Box::new(move |reason| sent.send(reason.to_owned()).unwrap()));
        assert_eq!(got.recv().unwrap(), LeaseEnd::Over("taken over".to_owned()));
    }
}
