//! Waits of an execution, and its stop: the run leaves memory, or its journal cannot be followed.

use std::{sync::Arc, time::Duration};

use agent_host_protocol::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Execution, registry::Mailbox};
use crate::record::journal::Stop;

/// The waits of one execution.
pub(crate) struct Waits {
    pub(crate) mail: Arc<Mailbox>,
    /// The reason to stop; `None` while the execution continues.
    stop: Mutex<Option<Stop>>,
    stopped: Notify,
}

impl Waits {
    pub(crate) fn new(mail: Arc<Mailbox>) -> Self {
        Self { mail, stop: Mutex::default(), stopped: Notify::new() }
    }

    /// Stops the execution. The host call of the guest does not return.
    pub(crate) async fn stop<T>(&self, stop: Stop) -> T {
        self.stop.lock().get_or_insert(stop);
        self.stopped.notify_one();
        std::future::pending().await
    }

    /// Waits until the execution is to stop; gives the reason.
    pub(crate) async fn stopped(&self) -> Stop {
        loop {
            if let Some(stop) = self.stop.lock().take() {
                return stop;
            }
            self.stopped.notified().await;
        }
    }
}

impl Execution {
    /// Stops the execution, as [`Waits::stop`].
    pub(crate) async fn stop<T>(&self, stop: Stop) -> T {
        self.waits.stop(stop).await
    }

    /// Waits until the run has lasted so long. A run that would wait long leaves memory instead, and comes back.
    pub(crate) async fn wait_until(&self, elapsed_us: u64) {
        let left = Duration::from_micros(elapsed_us.saturating_sub(self.journal.elapsed_us()));
        if self.parks_for(left) {
            let until = self.journal.clock().began_us().saturating_add(elapsed_us).div_ceil(1_000);
            self.stop(Stop::Park { until: Some(until), reason: "timer", keys: Vec::new() }).await
        }
        // Real time and the clock of the run differ by microseconds; the guest sees that the wait is over.
        while self.journal.elapsed_us() < elapsed_us {
            let left = elapsed_us.saturating_sub(self.journal.elapsed_us());
            tokio::time::sleep(Duration::from_micros(left)).await;
        }
    }

    /// The rest of a wait of `wait_ms` since the beginning of a call, and the time when it is over. An earlier execution may have
    /// begun the wait.
    pub(crate) fn time_left(&self, began_us: u64, wait_ms: u64) -> (Duration, Timestamp) {
        let end_us = began_us.saturating_add(wait_ms.saturating_mul(1_000));
        let left = Duration::from_micros(end_us.saturating_sub(self.journal.elapsed_us()));
        (left, self.journal.clock().began_us().saturating_add(end_us).div_ceil(1_000))
    }

    /// True if the run leaves memory for a wait of this length.
    pub(crate) fn parks_for(&self, left: Duration) -> bool {
        left >= Duration::from_millis(self.limits.park_after_ms) && self.journal.can_resume() && !self.open.any()
    }
}
