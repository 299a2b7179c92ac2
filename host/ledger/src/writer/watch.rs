//! Waiting for a run to change, at no cost to runs that nobody watches.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;
use tokio::sync::watch;

/// A follower of a run.
///
/// Make it first and read afterwards: whatever is committed after it was made, or after the last
/// [`Watch::changed`], wakes it, so nothing falls between reading and waiting.
#[derive(Debug)]
pub struct Watch {
    run_no: u64,
    receiver: watch::Receiver<()>,
    watchers: Arc<Watchers>,
}

impl Watch {
    /// Returns after a commit that touches the run, or when the ledger has closed or failed (the next read has the error).
    /// Several commits may cause one wake. The future may be dropped at any time.
    pub async fn changed(&mut self) {
        // An error means that the watchers are gone, which the next read says.
        let _ = self.receiver.changed().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut runs = self.watchers.runs.lock();
        if let Entry::Occupied(entry) = runs.entry(self.run_no)
            && entry.get().receiver_count() <= 1
        {
            entry.remove();
            self.watchers.count.store(runs.len(), Ordering::Release);
        }
    }
}

/// Hears the numbers of the runs that a commit has touched.
type Listener = Box<dyn Fn(&[u64]) + Send + Sync>;

#[derive(Default)]
pub(crate) struct Watchers {
    runs: Mutex<HashMap<u64, watch::Sender<()>, FxBuildHasher>>,
    /// Entries in `runs`, so that the writer need not lock where there are none.
    count: AtomicUsize,
    listener: OnceLock<Listener>,
    commits: watch::Sender<()>,
}

impl std::fmt::Debug for Watchers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watchers").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Watchers {
    pub(crate) fn watch(self: &Arc<Self>, run_no: u64) -> Watch {
        let mut runs = self.runs.lock();
        let receiver = runs.entry(run_no).or_insert_with(|| watch::channel(()).0).subscribe();
        self.count.store(runs.len(), Ordering::Release);
        drop(runs);
        Watch { run_no, receiver, watchers: Arc::clone(self) }
    }

    /// Follows all commits.
    pub(crate) fn commits(&self) -> watch::Receiver<()> {
        self.commits.subscribe()
    }

    /// Sets the one listener. Later ones are not heard.
    pub(crate) fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }

    /// Called after a commit. A later watch reads the committed rows.
    pub(crate) fn notify(&self, touched: &[u64]) {
        if let Some(listener) = self.listener.get() {
            listener(touched);
        }
        if self.commits.receiver_count() > 0 {
            self.commits.send_replace(());
        }
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let runs = self.runs.lock();
        for run_no in touched {
            if let Some(sender) = runs.get(run_no) {
                sender.send_replace(());
            }
        }
    }

    /// Wakes everyone, for the last time.
    pub(crate) fn notify_all(&self) {
        self.commits.send_replace(());
        for sender in self.runs.lock().values() {
            sender.send_replace(());
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.runs.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_change_between_registering_and_waiting_is_not_lost() {
        let watchers = Arc::new(Watchers::default());
        let mut one = watchers.watch(7);
        let mut two = watchers.watch(7);
        watchers.notify(&[6, 7]);
        one.changed().await;
        two.changed().await;
        assert!(tokio::time::timeout(Duration::from_millis(10), one.changed()).await.is_err());
    }

    #[test]
    fn the_entry_goes_with_the_last_watch() {
        let watchers = Arc::new(Watchers::default());
        let (one, two) = (watchers.watch(7), watchers.watch(7));
        drop(one);
        assert_eq!(watchers.len(), 1);
        drop(two);
        assert_eq!((watchers.len(), watchers.count.load(Ordering::Acquire)), (0, 0));
    }
}
