//! Free space of the disk, and the rate at which it shrinks.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::error::LedgerError;

/// The file system is asked so often at most. What is written meanwhile is predicted by the rate of before.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// With less than this left, nothing at all is written: redb must never meet a full disk, because after a failed
/// write it can only be opened anew, while a refused batch costs nothing. Half the default reserve.
const FLOOR_BYTES: u64 = 32 * 1024 * 1024;

/// The prediction adds at most so many times the reserve: another program may have written a large file in a moment.
const MOST_AHEAD: u64 = 4;

/// The operations that the free space allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskNeed {
    /// A new event: the whole reserve must be there.
    NewEvent,
    /// Writes with which runs continue and end.
    AnyWrite,
}

/// One look at the file system.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    free: u64,
    /// Bytes a second by which the free space has shrunk.
    rate: u64,
}

impl Look {
    fn first(at: Instant, free: u64) -> Self {
        Self { at, free, rate: 0 }
    }

    /// The next look. The rate follows a faster loss at once, and a slower one by halves.
    fn then(self, at: Instant, free: u64) -> Self {
        let ms = at.saturating_duration_since(self.at).as_millis().max(1);
        let lost = u128::from(self.free.saturating_sub(free)) * 1000 / ms;
        Self { at, free, rate: u64::try_from(lost).unwrap_or(u64::MAX).max(self.rate / 2) }
    }

    /// Bytes that are gone before the next look, at this rate.
    fn ahead(self) -> u64 {
        self.rate / 1000 * u64::try_from(ASK_EVERY.as_millis()).unwrap_or(u64::MAX)
    }
}

pub(crate) struct Disk {
    dir: PathBuf,
    reserve: u64,
    last: Mutex<Option<Look>>,
}

impl Disk {
    pub(crate) fn new(dir: PathBuf, reserve: u64) -> Self {
        Self { dir, reserve, last: Mutex::new(None) }
    }

    /// # Errors
    /// [`LedgerError::DiskLow`] where less is left than the need asks for. A file system that does not say counts as
    /// large enough.
    pub(crate) fn check(&self, need: DiskNeed) -> Result<(), LedgerError> {
        let needed = match need {
            DiskNeed::NewEvent => self.reserve,
            DiskNeed::AnyWrite => self.reserve.min(FLOOR_BYTES),
        };
        if self.reserve == 0 {
            return Ok(());
        }
        let Some(look) = self.look() else { return Ok(()) };
        let needed = needed + look.ahead().min(self.reserve.saturating_mul(MOST_AHEAD));
        if look.free < needed { Err(LedgerError::DiskLow { free: look.free, needed }) } else { Ok(()) }
    }

    /// Bytes that stay free for what is under way.
    pub(crate) fn reserve(&self) -> u64 {
        self.reserve
    }

    /// The free space that the file system reports.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.look().map(|look| look.free)
    }

    fn look(&self) -> Option<Look> {
        let mut last = self.last.lock();
        if let Some(look) = *last
            && look.at.elapsed() < ASK_EVERY
        {
            return Some(look);
        }
        let (now, free) = (Instant::now(), free_in(&self.dir)?);
        let look = last.map_or_else(|| Look::first(now, free), |before| before.then(now, free));
        *last = Some(look);
        Some(look)
    }
}

/// Bytes that the disk of a directory has left; nothing where it does not say.
pub(crate) fn free_in(dir: &Path) -> Option<u64> {
    let answer =
        rustix::fs::statvfs(dir).inspect_err(|error| tracing::warn!(%error, "the free space of the disk is not known")).ok()?;
    Some(answer.f_bavail.saturating_mul(answer.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_fills_fast_is_low_before_it_is_full() {
        const MB: u64 = 1_000_000;
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let first = Look::first(start, 1_000 * MB);
        assert_eq!(first.ahead(), 0);
        // 500 MB a second: 100 MB are gone before the next look.
        let fast = first.then(at(200), 900 * MB);
        assert_eq!((fast.rate, fast.ahead()), (500 * MB, 100 * MB));
        // A pause, or space that comes back, lets the prediction fade and not end.
        let pause = fast.then(at(400), 950 * MB);
        assert_eq!(pause.ahead(), 50 * MB);
        assert_eq!((0..40).fold(pause, |look, n| look.then(at(600 + 200 * n), 950 * MB)).ahead(), 0);
        // A look after an hour does not take the hour's loss for that of a moment.
        assert!(first.then(at(3_600_000), 900 * MB).ahead() < MB);
    }

    #[test]
    fn a_need_grows_with_the_rate_and_not_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::new(dir.path().to_owned(), 1_000_000);
        let look = |rate| *disk.last.lock() = Some(Look { at: Instant::now(), free: 3_000_000, rate });
        look(0);
        assert!(disk.check(DiskNeed::NewEvent).is_ok());
        look(20_000_000);
        assert!(matches!(disk.check(DiskNeed::NewEvent), Err(LedgerError::DiskLow { needed: 5_000_000, .. })));
        look(u64::MAX);
        assert!(matches!(disk.check(DiskNeed::AnyWrite), Err(LedgerError::DiskLow { needed: 5_000_000, .. })));
        let none = Disk::new(dir.path().to_owned(), 0);
        assert!(none.check(DiskNeed::NewEvent).is_ok());
    }
}
