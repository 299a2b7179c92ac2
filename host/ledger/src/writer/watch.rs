//! Waiting for a run to change, or for a conversation to have another turn, at no cost to those that nobody watches.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use agent_host_protocol::grant::ConversationKey;
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;
use tokio::sync::watch;

/// A follower of a run, or of the turns of a conversation.
///
/// Make it first and read afterwards: whatever is committed after it was made, or after the last
/// [`Watch::changed`], wakes it, so nothing falls between reading and waiting.
#[derive(Debug)]
pub struct Watch {
    subject: Subject,
    receiver: watch::Receiver<()>,
    watchers: Arc<Watchers>,
}

impl Watch {
    /// Returns after a commit that touches the run or takes a turn of the conversation, or when the ledger has closed or failed
    /// (the next read has the error). Several commits may cause one wake. The future may be dropped at any time.
    pub async fn changed(&mut self) {
        // An error means that the watchers are gone, which the next read says.
        let _ = self.receiver.changed().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = self.watchers.watched.lock();
        if let Entry::Occupied(entry) = watched.entry(self.subject.clone())
            && entry.get().receiver_count() <= 1
        {
            entry.remove();
            self.watchers.count.store(watched.len(), Ordering::Release);
        }
    }
}

/// The subject of a [`Watch`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    Run(u64),
    Turns(ConversationKey),
}

/// Hears the numbers of the runs that a commit has touched.
type Listener = Box<dyn Fn(&[u64]) + Send + Sync>;

#[derive(Default)]
pub(crate) struct Watchers {
    watched: Mutex<HashMap<Subject, watch::Sender<()>, FxBuildHasher>>,
    /// Entries in `watched`, so that the writer need not lock where there are none.
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
        self.watch_subject(Subject::Run(run_no))
    }

    /// Follows the turns of a conversation.
    pub(crate) fn watch_turns(self: &Arc<Self>, key: ConversationKey) -> Watch {
        self.watch_subject(Subject::Turns(key))
    }

    fn watch_subject(self: &Arc<Self>, subject: Subject) -> Watch {
        let mut watched = self.watched.lock();
        let receiver = watched.entry(subject.clone()).or_insert_with(|| watch::channel(()).0).subscribe();
        self.count.store(watched.len(), Ordering::Release);
        drop(watched);
        Watch { subject, receiver, watchers: Arc::clone(self) }
    }

    /// Follows all commits.
    pub(crate) fn commits(&self) -> watch::Receiver<()> {
        self.commits.subscribe()
    }

    /// Sets the one listener. Later ones are not heard.
    pub(crate) fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }

    /// Called after a commit, with the runs that it touched and the conversations in which they took their turn. A later watch
    /// reads the committed rows.
    pub(crate) fn notify(&self, touched: &[u64], turns: Vec<ConversationKey>) {
        if let Some(listener) = self.listener.get() {
            listener(touched);
        }
        if self.commits.receiver_count() > 0 {
            self.commits.send_replace(());
        }
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let watched = self.watched.lock();
        let runs = touched.iter().map(|run_no| Subject::Run(*run_no));
        for subject in runs.chain(turns.into_iter().map(Subject::Turns)) {
            if let Some(sender) = watched.get(&subject) {
                sender.send_replace(());
            }
        }
    }

    /// Wakes everyone, for the last time.
    pub(crate) fn notify_all(&self) {
        self.commits.send_replace(());
        for sender in self.watched.lock().values() {
            sender.send_replace(());
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.watched.lock().len()
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
        watchers.notify(&[6, 7], Vec::new());
        one.changed().await;
        two.changed().await;
        assert!(tokio::time::timeout(Duration::from_millis(10), one.changed()).await.is_err());
    }

    #[tokio::test]
    async fn a_turn_wakes_who_follows_its_conversation() {
        let watchers = Arc::new(Watchers::default());
        let (key, other) = (ConversationKey::new("", "c", ""), ConversationKey::new("", "d", ""));
        let mut turns = watchers.watch_turns(key.clone());
        watchers.notify(&[7], vec![other.clone()]);
        assert!(tokio::time::timeout(Duration::from_millis(10), turns.changed()).await.is_err());
        watchers.notify(&[7], vec![other, key]);
        turns.changed().await;
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
