//! The queue between everyone and the writer thread: bounded by bytes, so that a full one holds producers back. Each run has a small share
//! of it, so that a run which writes without end is no long line before the next one.

use std::{sync::Arc, time::Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::operation::Operation;

/// Place in the queue is given out in pieces of this size; an operation takes at least one.
const UNIT_BYTES: usize = 1024;
/// The share of one producer, in these pieces: enough for a commit to have several results of a run that does not wait for them.
const SHARE_UNITS: u32 = 8;

/// An operation, and the place that it takes.
pub(crate) struct QueuedOperation {
    pub(crate) operation: Operation,
    pub(crate) place: Place,
    /// Given back when the writer takes the operation.
    pub(crate) of_share: Option<OwnedSemaphorePermit>,
}

/// The share of one run in the queue: what it has there together. A larger operation takes all of it.
#[derive(Debug)]
pub struct QueueShare(Arc<Semaphore>);

impl Default for QueueShare {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(SHARE_UNITS as usize)))
    }
}

impl QueueShare {
    /// Waits until the share has room for an operation of this size.
    pub(crate) async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, QueueClosed> {
        let units = units(bytes, SHARE_UNITS);
        match Arc::clone(&self.0).try_acquire_many_owned(units) {
            Ok(room) => Ok(room),
            // Rare, so the futures of those who write have no room for it.
            Err(_) => Box::pin(Arc::clone(&self.0).acquire_many_owned(units)).await.map_err(|_| QueueClosed),
        }
    }
}

fn units(bytes: usize, most: u32) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).clamp(1, most)
}

/// Place in the queue. Given back with [`Queue::release`] when the operation has been answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place(u32);

impl Place {
    pub(crate) const fn units(self) -> u64 {
        self.0 as u64
    }
}

/// The ledger takes no more operations.
#[derive(Debug)]
pub(crate) struct QueueClosed;

pub(crate) struct Queue {
    waiting: Mutex<QueueState>,
    wake: Condvar,
    space: Semaphore,
    units: u32,
}

#[derive(Default)]
struct QueueState {
    operations: Vec<QueuedOperation>,
    closed: bool,
}

/// The reason why [`Queue::take`] returned.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TakeOutcome {
    Operations,
    TimedOut,
    /// No operation is left and none will come.
    Closed,
}

impl Queue {
    pub(crate) fn new(bytes: usize) -> Self {
        let units = u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX).max(1);
        Self { waiting: Mutex::default(), wake: Condvar::new(), space: Semaphore::new(units as usize), units }
    }

    /// Waits for place, first come first served. An operation larger than the whole queue takes all of it.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<Place, QueueClosed> {
        let units = units(bytes, self.units);
        self.space.acquire_many(units).await.map_err(|_| QueueClosed)?.forget();
        Ok(Place(units))
    }

    /// Admits an operation. From here on it takes effect whether or not anyone waits for it.
    pub(crate) fn push(
        &self,
        operation: Operation,
        place: Place,
        of_share: Option<OwnedSemaphorePermit>,
    ) -> Result<(), QueueClosed> {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return Err(QueueClosed);
        }
        waiting.operations.push(QueuedOperation { operation, place, of_share });
        if waiting.operations.len() == 1 {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Operations that wait for the writer.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.lock().operations.len()
    }

    /// Takes all that is there into `into`, which is empty; waits until `deadline` where nothing is.
    pub(crate) fn take(&self, into: &mut Vec<QueuedOperation>, deadline: Option<Instant>) -> TakeOutcome {
        let mut waiting = self.waiting.lock();
        loop {
            if !waiting.operations.is_empty() {
                // Threads that make operations go first where the processors are busy, so that a commit has more of them.
                MutexGuard::unlocked(&mut waiting, std::thread::yield_now);
                std::mem::swap(&mut waiting.operations, into);
                return TakeOutcome::Operations;
            }
            if waiting.closed {
                return TakeOutcome::Closed;
            }
            match deadline {
                None => self.wake.wait(&mut waiting),
                Some(deadline) => {
                    if self.wake.wait_until(&mut waiting, deadline).timed_out()
                        && waiting.operations.is_empty()
                        && !waiting.closed
                    {
                        return TakeOutcome::TimedOut;
                    }
                }
            }
        }
    }

    /// Gives back the place of answered operations.
    pub(crate) fn release(&self, units: u64) {
        self.space.add_permits(usize::try_from(units).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS >> 1));
    }

    /// Refuses further operations. Admitted operations are still executed.
    pub(crate) fn close(&self) {
        self.waiting.lock().closed = true;
        self.space.close();
        self.wake.notify_all();
    }

    /// Drops what was admitted and is not executed any more, after [`Self::close`]: else those who wait for it would wait for ever.
    pub(crate) fn abandon(&self) {
        let abandoned = std::mem::take(&mut self.waiting.lock().operations);
        drop(abandoned);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn audit() -> Operation {
        Operation::Audit(Vec::new())
    }

    #[tokio::test]
    async fn a_full_queue_holds_producers_back_until_operations_are_answered() {
        let queue = Queue::new(4 * UNIT_BYTES);
        let place = queue.reserve(3 * UNIT_BYTES).await.unwrap();
        queue.push(audit(), place, None).unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), queue.reserve(2 * UNIT_BYTES)).await.is_err());
        let mut taken = Vec::new();
        assert_eq!(queue.take(&mut taken, None), TakeOutcome::Operations);
        queue.release(taken[0].place.units());
        queue.reserve(usize::MAX).await.unwrap();
    }

    #[tokio::test]
    async fn a_run_that_writes_without_end_has_a_share_of_the_queue_and_others_have_place() {
        let queue = Queue::new(UNIT_BYTES * 100);
        let share = QueueShare::default();
        let push = async |share: &QueueShare, bytes| {
            let room = share.room(bytes).await.unwrap();
            let place = queue.reserve(bytes).await.unwrap();
            queue.push(audit(), place, Some(room)).unwrap();
        };
        for _ in 0..SHARE_UNITS {
            push(&share, 1).await;
        }
        assert!(tokio::time::timeout(Duration::from_millis(20), share.room(1)).await.is_err());
        // One that is larger than a share takes all of it.
        push(&QueueShare::default(), UNIT_BYTES * 50).await;
        let mut taken = Vec::new();
        assert_eq!(queue.take(&mut taken, None), TakeOutcome::Operations);
        assert_eq!(taken.len(), SHARE_UNITS as usize + 1);
        taken.clear();
        drop(share.room(UNIT_BYTES * 50).await.unwrap());
    }

    #[tokio::test]
    async fn a_closed_queue_gives_out_what_it_has_and_takes_nothing() {
        let queue = Queue::new(UNIT_BYTES * 10);
        let place = queue.reserve(1).await.unwrap();
        queue.push(audit(), place, None).unwrap();
        queue.close();
        assert!(queue.reserve(1).await.is_err() && queue.push(audit(), place, None).is_err());
        let mut taken = Vec::new();
        assert_eq!(queue.take(&mut taken, None), TakeOutcome::Operations);
        taken.clear();
        assert_eq!(queue.take(&mut taken, None), TakeOutcome::Closed);
    }

    #[test]
    fn an_empty_queue_waits_until_the_deadline() {
        let queue = Queue::new(UNIT_BYTES);
        assert_eq!(queue.take(&mut Vec::new(), Some(Instant::now() + Duration::from_millis(5))), TakeOutcome::TimedOut);
    }
}
