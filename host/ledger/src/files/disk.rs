//! Free space of the disk.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::error::LedgerError;

/// The file system is asked so often at most. A host at full speed writes some 10 MB meanwhile, a fraction of the
/// default reserve.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// With less than this left, nothing at all is written: redb must never meet a full disk, because after a failed
/// write it can only be opened anew, while a refused batch costs nothing. Half the default reserve.
const FLOOR_BYTES: u64 = 32 * 1024 * 1024;

/// The operations that the free space allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskNeed {
    /// A new event: the whole reserve must be there.
    NewEvent,
    /// Writes with which runs continue and end.
    AnyWrite,
}

pub(crate) struct Disk {
    dir: PathBuf,
    reserve: u64,
    last: Mutex<Option<(Instant, u64)>>,
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
        match self.free() {
            Some(free) if free < needed => Err(LedgerError::DiskLow { free, needed }),
            _ => Ok(()),
        }
    }

    /// Bytes that stay free for what is under way.
    pub(crate) fn reserve(&self) -> u64 {
        self.reserve
    }

    fn free(&self) -> Option<u64> {
        if self.reserve == 0 { None } else { self.free_bytes() }
    }

    /// The free space that the file system reports.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let mut last = self.last.lock();
        if let Some((at, free)) = *last
            && at.elapsed() < ASK_EVERY
        {
            return Some(free);
        }
        let free = free_in(&self.dir)?;
        *last = Some((Instant::now(), free));
        Some(free)
    }
}

/// Bytes that the disk of a directory has left; nothing where it does not say.
pub(crate) fn free_in(dir: &Path) -> Option<u64> {
    let answer =
        rustix::fs::statvfs(dir).inspect_err(|error| tracing::warn!(%error, "the free space of the disk is not known")).ok()?;
    Some(answer.f_bavail.saturating_mul(answer.f_frsize))
}
