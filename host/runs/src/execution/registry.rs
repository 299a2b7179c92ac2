//! The registry: where each run of a cell is, under one lock, and the mail of those that are in memory.
//!
//! A run is live (its task takes mail), leaving (its task still writes, and takes no more mail) or parked (no task; the
//! ledger has its park row). An answer for a run is posted here or, where the run is parked, written to its record. A
//! sender that meets a leaving run waits for the move of that run.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use agent_host_protocol::{Run, RunId};
use parking_lot::Mutex;
use tokio::sync::{Notify, futures::OwnedNotified, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::record::{HostError, action::RecordedAnswer};

/// The places of all runs of a cell: live, leaving or parked.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Places>);

#[derive(Default)]
struct Places {
    runs: HashMap<RunId, Entry>,
    /// Notified when the run moves. An entry lives as long as somebody waits for it.
    moves: HashMap<RunId, Arc<Notify>>,
    /// Actions that runs in memory await an answer to.
    awaited: BTreeSet<String>,
}

struct Entry {
    handle: Handle,
    arrivals: Arc<watch::Sender<()>>,
    /// `None` while the run leaves memory.
    letters: Option<PostedAnswers>,
}

#[derive(Default)]
struct PostedAnswers {
    waiting: Vec<PostedAnswer>,
    /// Letters that the run has taken and is writing.
    writing: usize,
}

/// The handle by which others reach a run in memory.
#[derive(Clone)]
pub(crate) struct Handle {
    /// Cancelled once the request to cancel the run is committed.
    pub(crate) cancelled: CancellationToken,
    /// The record after the end, once that is committed; or why it could not be written.
    pub(crate) ended: watch::Receiver<Option<Result<Arc<Run>, String>>>,
}

/// The location of a run.
pub(crate) enum Location {
    /// In memory, and takes mail.
    Live,
    /// In memory, and takes no more mail.
    Leaving,
    /// Not in memory. With a park row in the ledger the run is parked; otherwise the run has ended or its task has not
    /// begun.
    Parked,
}

/// An answer on its way to a run.
pub(crate) struct PostedAnswer {
    pub(crate) action_id: String,
    pub(crate) recorded_answer: RecordedAnswer,
    /// Set when the run begins to write the answer: from then on the answer may be durable, whatever becomes of the run.
    pub(crate) writing: Arc<AtomicBool>,
    /// Sent when the answer is durable. Dropped where the run does not take the answer.
    pub(crate) receipt: oneshot::Sender<Result<(), HostError>>,
}

impl Registry {
    /// Enters a run whose task begins. `None` where it has a task already.
    pub(crate) fn enter(self: &Arc<Self>, run_id: RunId, handle: Handle) -> Option<Arc<Mailbox>> {
        let mut places = self.0.lock();
        if places.runs.contains_key(&run_id) {
            return None;
        }
        let arrivals = Arc::new(watch::Sender::new(()));
        let entry = Entry { handle, arrivals: Arc::clone(&arrivals), letters: Some(PostedAnswers::default()) };
        places.runs.insert(run_id, entry);
        places.moved(run_id);
        Some(Arc::new(Mailbox { registry: Arc::clone(self), run_id, arrivals }))
    }

    /// Removes a run whose task is over. Letters that it did not take go back to their senders.
    pub(crate) fn leave(&self, run_id: RunId) {
        let mut places = self.0.lock();
        let entry = places.runs.remove(&run_id);
        places.moved(run_id);
        drop(places);
        drop(entry);
    }

    pub(crate) fn locate(&self, run_id: RunId) -> Location {
        match self.0.lock().runs.get(&run_id) {
            Some(Entry { letters: Some(_), .. }) => Location::Live,
            Some(_) => Location::Leaving,
            None => Location::Parked,
        }
    }

    /// The handle of a run that is in memory, live or leaving.
    pub(crate) fn handle(&self, run_id: RunId) -> Option<Handle> {
        self.0.lock().runs.get(&run_id).map(|entry| entry.handle.clone())
    }

    /// Resolves when the run moves after this call.
    pub(crate) fn next_move(&self, run_id: RunId) -> OwnedNotified {
        let mut places = self.0.lock();
        // Removes the entries whose senders gave up.
        places.moves.retain(|_, waiting| Arc::strong_count(waiting) > 1);
        Arc::clone(places.moves.entry(run_id).or_default()).notified_owned()
    }

    /// Posts an answer to a live run; gives the location of a run that is not live.
    pub(crate) fn post(&self, run_id: RunId, letter: PostedAnswer) -> Result<(), Location> {
        let mut places = self.0.lock();
        let Some(entry) = places.runs.get_mut(&run_id) else { return Err(Location::Parked) };
        let Some(letters) = &mut entry.letters else { return Err(Location::Leaving) };
        letters.waiting.push(letter);
        entry.arrivals.send_replace(());
        Ok(())
    }

    /// Tells a run in memory that something happened that it may wait for. `false` where it is not in memory.
    pub(crate) fn notify(&self, run_id: RunId) -> bool {
        self.0.lock().runs.get(&run_id).is_some_and(|entry| {
            entry.arrivals.send_replace(());
            true
        })
    }

    /// Ids of the actions that runs in memory await an answer to, for which `wanted` holds.
    pub(crate) fn awaited(&self, wanted: impl Fn(&String) -> bool) -> Vec<String> {
        self.0.lock().awaited.iter().filter(|id| wanted(id)).cloned().collect()
    }

    pub(crate) fn awaited_count(&self) -> usize {
        self.0.lock().awaited.len()
    }
}

impl Places {
    fn moved(&mut self, run_id: RunId) {
        if !self.moves.is_empty()
            && let Some(waiting) = self.moves.remove(&run_id)
        {
            waiting.notify_waiters();
        }
    }
}

/// The mailbox of a run in memory. The run writes its own record, so an answer is posted here, and its sender hears when
/// it is durable.
pub(crate) struct Mailbox {
    registry: Arc<Registry>,
    run_id: RunId,
    arrivals: Arc<watch::Sender<()>>,
}

impl Mailbox {
    /// The mailbox of a replayed run, which nobody reaches.
    pub(crate) fn unreachable(run_id: RunId) -> Arc<Self> {
        Arc::new(Self { registry: Arc::default(), run_id, arrivals: Arc::new(watch::Sender::new(())) })
    }

    /// Lists an action as awaited, as long as the guard lives.
    pub(crate) fn await_action(&self, action_id: &str) -> AwaitedAction<'_> {
        self.registry.0.lock().awaited.insert(action_id.to_owned());
        AwaitedAction { registry: &self.registry, action_id: action_id.to_owned() }
    }

    /// Changes with every arrival. Subscribe before looking at anything.
    pub(crate) fn arrivals(&self) -> watch::Receiver<()> {
        self.arrivals.subscribe()
    }

    /// The first answer to an action. The letters behind it go back to their senders once it is durable.
    pub(crate) fn take(&self, action_id: &str) -> Option<(PostedAnswer, WritingLetter<'_>)> {
        let mut places = self.registry.0.lock();
        let letters = places.runs.get_mut(&self.run_id)?.letters.as_mut()?;
        let place = letters.waiting.iter().position(|letter| letter.action_id == action_id)?;
        let letter = letters.waiting.remove(place);
        letters.writing += 1;
        letter.writing.store(true, Ordering::Release);
        Some((letter, WritingLetter(self)))
    }

    /// Sends back the letters for an action that takes no answer any more.
    pub(crate) fn refuse(&self, action_id: &str) {
        self.with_letters(|letters| letters.waiting.retain(|letter| letter.action_id != action_id));
    }

    /// Closes the mailbox if it is empty and nothing of it is being written: the run is leaving. [`Mailbox::reopen`] undoes
    /// that.
    pub(crate) fn close_if_idle(&self) -> bool {
        let mut places = self.registry.0.lock();
        let Some(entry) = places.runs.get_mut(&self.run_id) else { return false };
        let idle = entry.letters.as_ref().is_some_and(|letters| letters.waiting.is_empty() && letters.writing == 0);
        if idle {
            entry.letters = None;
        }
        idle
    }

    pub(crate) fn reopen(&self) {
        let mut places = self.registry.0.lock();
        if let Some(entry) = places.runs.get_mut(&self.run_id) {
            entry.letters.get_or_insert_default();
            places.moved(self.run_id);
        }
    }

    fn with_letters(&self, change: impl FnOnce(&mut PostedAnswers)) {
        if let Some(letters) = self.registry.0.lock().runs.get_mut(&self.run_id).and_then(|entry| entry.letters.as_mut()) {
            change(letters);
        }
    }
}

/// As long as it lives, a letter is being written.
pub(crate) struct WritingLetter<'a>(&'a Mailbox);

impl Drop for WritingLetter<'_> {
    fn drop(&mut self) {
        self.0.with_letters(|letters| letters.writing = letters.writing.saturating_sub(1));
    }
}

/// As long as it lives, the run awaits an answer to the action.
pub(crate) struct AwaitedAction<'a> {
    registry: &'a Registry,
    action_id: String,
}

impl Drop for AwaitedAction<'_> {
    fn drop(&mut self) {
        self.registry.0.lock().awaited.remove(&self.action_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_host_facts::record::Decision;

    fn handle() -> Handle {
        Handle { cancelled: CancellationToken::new(), ended: watch::channel(None).1 }
    }

    fn letter() -> (PostedAnswer, oneshot::Receiver<Result<(), HostError>>) {
        let (receipt, received) = oneshot::channel();
        let recorded_answer = RecordedAnswer { decision: Decision::Approve, by: None, reason: None, answer: None, at: 0 };
        (PostedAnswer { action_id: "a".to_owned(), recorded_answer, writing: Arc::default(), receipt }, received)
    }

    #[tokio::test]
    async fn a_sender_that_meets_a_leaving_run_hears_when_it_has_moved() {
        let registry = Arc::new(Registry::default());
        let run_id = RunId::new();
        assert!(matches!(registry.post(run_id, letter().0), Err(Location::Parked)));
        let mail = registry.enter(run_id, handle()).unwrap();
        assert!(registry.enter(run_id, handle()).is_none(), "a run has one task");
        assert!(matches!(registry.locate(run_id), Location::Live));

        let (first, received) = letter();
        registry.post(run_id, first).unwrap_or_else(|_| panic!("the run is live"));
        assert!(!mail.close_if_idle(), "a letter waits");
        let (taken, writing) = mail.take("a").unwrap();
        assert!(taken.writing.load(Ordering::Acquire) && !mail.close_if_idle(), "a letter is being written");
        drop((taken, writing));
        assert!(received.await.is_err(), "a letter that is dropped goes back");

        assert!(mail.close_if_idle());
        let moved = registry.next_move(run_id);
        assert!(matches!(registry.post(run_id, letter().0), Err(Location::Leaving)));
        registry.leave(run_id);
        moved.await;
        assert!(matches!(registry.locate(run_id), Location::Parked));
        assert!(registry.0.lock().moves.is_empty());
    }

    #[tokio::test]
    async fn letters_go_back_when_a_run_leaves_and_a_run_that_stays_opens_again() {
        let registry = Arc::new(Registry::default());
        let run_id = RunId::new();
        let mail = registry.enter(run_id, handle()).unwrap();
        assert!(mail.close_if_idle());
        let moved = registry.next_move(run_id);
        mail.reopen();
        moved.await;
        let (first, received) = letter();
        registry.post(run_id, first).unwrap_or_else(|_| panic!("the run is live again"));
        registry.leave(run_id);
        assert!(received.await.is_err());
        assert!(!registry.notify(run_id) && !mail.close_if_idle() && mail.take("a").is_none());
    }

    #[test]
    fn an_action_is_awaited_as_long_as_its_guard_lives() {
        let registry = Arc::new(Registry::default());
        let mail = registry.enter(RunId::new(), handle()).unwrap();
        let guard = mail.await_action("a");
        assert_eq!((registry.awaited(|_| true), registry.awaited_count()), (vec!["a".to_owned()], 1));
        drop(guard);
        assert_eq!(registry.awaited_count(), 0);
    }
}
