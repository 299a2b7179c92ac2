//! The line of a conversation: one active run, the next ones wait in the order in which they were created.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use agent_host_protocol::grant::ConversationKey;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// All lines. A conversation without an active run has none.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<HashMap<ConversationKey, Line>>);

#[derive(Debug, Default)]
struct Line {
    active: Option<u64>,
    waiting: BTreeMap<u64, Arc<Notify>>,
}

/// A place in a line. Whoever drops it has left the line, or ends its turn.
#[derive(Debug)]
pub(crate) struct Turn {
    /// `None` for a run without a conversation, whose turn is always.
    place: Option<Place>,
}

#[derive(Debug)]
struct Place {
    lines: Arc<Lines>,
    key: ConversationKey,
    run_no: u64,
    called: Arc<Notify>,
    /// Its end is not that of the turn.
    parked: bool,
}

impl Lines {
    /// How many wait behind the active run of a conversation.
    pub(crate) fn waiting(&self, key: &ConversationKey) -> usize {
        self.0.lock().get(key).map_or(0, |line| line.waiting.len())
    }

    /// How many wait in all lines.
    pub(crate) fn waiting_in_all(&self) -> usize {
        self.0.lock().values().map(|line| line.waiting.len()).sum()
    }

    /// Joins the line of a conversation. Runs that were created earlier go first.
    ///
    /// A run that is parked is the active one of its conversation and costs no memory here: `parked` finds it.
    pub(crate) fn join(
        self: &Arc<Self>,
        key: Option<ConversationKey>,
        run_no: u64,
        parked: impl FnOnce(&ConversationKey) -> Option<u64>,
    ) -> Turn {
        let Some(key) = key else { return Turn { place: None } };
        let called = Arc::new(Notify::new());
        let mut lines = self.0.lock();
        let line = lines.entry(key.clone()).or_insert_with(|| Line { active: parked(&key), ..Line::default() });
        if line.active.is_none_or(|active| active == run_no) {
            line.active = Some(run_no);
        } else {
            line.waiting.insert(run_no, Arc::clone(&called));
        }
        drop(lines);
        Turn { place: Some(Place { lines: Arc::clone(self), key, run_no, called, parked: false }) }
    }
}

impl Turn {
    /// The run leaves memory, and its turn goes on: whoever waits goes on waiting. That the run is parked is on disk.
    pub(crate) fn leave_parked(mut self) {
        let Some(place) = &mut self.place else { return };
        place.parked = true;
        let mut lines = place.lines.0.lock();
        if lines.get(&place.key).is_some_and(|line| line.waiting.is_empty()) {
            lines.remove(&place.key);
        }
    }

    /// Whether it is this one's turn.
    pub(crate) fn is_now(&self) -> bool {
        self.place
            .as_ref()
            .is_none_or(|place| place.lines.0.lock().get(&place.key).is_some_and(|line| line.active == Some(place.run_no)))
    }

    /// Waits until it is this one's turn.
    pub(crate) async fn wait(&self) {
        while !self.is_now() {
            if let Some(place) = &self.place {
                // A call that came before this waits is kept by `Notify`.
                place.called.notified().await;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.parked {
            return;
        }
        let mut lines = self.lines.0.lock();
        let Some(line) = lines.get_mut(&self.key) else { return };
        line.waiting.remove(&self.run_no);
        if line.active == Some(self.run_no) {
            line.active = None;
            if let Some((next, called)) = line.waiting.pop_first() {
                line.active = Some(next);
                called.notify_one();
            }
        }
        if line.active.is_none() {
            lines.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> Option<ConversationKey> {
        Some(ConversationKey { conversation: "c".into(), ..ConversationKey::default() })
    }

    proptest! {
        /// Whoever joins and leaves in whatever order: never two active, always the oldest that waits, and
        /// nothing is left when all have gone.
        #[test]
        fn a_line_has_one_active_run_and_forgets_nobody(leaving in prop::collection::vec(any::<prop::sample::Index>(), 8)) {
            let lines = Arc::new(Lines::default());
            let mut turns: Vec<(u64, Turn)> = (1..=8).map(|no| (no, lines.join(key(), no, |_| None))).collect();
            for index in leaving {
                prop_assert_eq!(turns.iter().filter(|(_, turn)| turn.is_now()).count(), 1);
                let active = turns.iter().find(|(_, turn)| turn.is_now()).map(|(no, _)| *no);
                let (left, _) = turns.remove(index.index(turns.len()));
                let next = turns.iter().find(|(_, turn)| turn.is_now()).map(|(no, _)| *no);
                if active == Some(left) {
                    prop_assert_eq!(next, turns.iter().map(|(no, _)| *no).min());
                } else {
                    prop_assert_eq!(next, active);
                }
            }
            prop_assert!(lines.0.lock().is_empty());
        }
    }

    #[test]
    fn runs_without_a_conversation_do_not_wait() {
        let lines = Arc::new(Lines::default());
        assert!(lines.join(None, 1, |_| None).is_now() && lines.join(None, 2, |_| None).is_now());
    }

    #[tokio::test]
    async fn the_next_is_called_when_the_active_one_leaves() {
        let lines = Arc::new(Lines::default());
        let first = lines.join(key(), 1, |_| None);
        let second = lines.join(key(), 2, |_| None);
        assert_eq!(lines.waiting(&key().unwrap()), 1);
        let waits = tokio::spawn(async move { second.wait().await });
        drop(first);
        waits.await.unwrap();
    }

    #[tokio::test]
    async fn a_parked_run_keeps_its_turn_without_memory() {
        let lines = Arc::new(Lines::default());
        lines.join(key(), 1, |_| None).leave_parked();
        assert!(lines.0.lock().is_empty());
        let second = lines.join(key(), 2, |_| Some(1));
        assert!(!second.is_now());
        let first = lines.join(key(), 1, |_| Some(1));
        assert!(first.is_now());
        first.leave_parked();
        assert!(!second.is_now(), "it is parked again, and somebody waits");
        drop(lines.join(key(), 1, |_| Some(1)));
        second.wait().await;
    }
}
