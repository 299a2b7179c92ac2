//! The line of a conversation: one active run, the next ones wait in the order in which they were created.
//!
//! Runs that are created at the same moment join in any order. None of them is called while another one is being created that may have a
//! smaller number: the order of runs is that of their messages in the transcript.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use agent_host_protocol::{RunId, grant::ConversationKey};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, futures::OwnedNotified};

use crate::execution::neighbours::WaitingRun;

/// All lines. A conversation without an active run has none.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<HashMap<ConversationKey, Line>>);

#[derive(Debug, Default)]
struct Line {
    active: Option<u64>,
    /// True if the active run takes waiting runs as input (`record/steering.rs`).
    steers: bool,
    waiting: BTreeMap<u64, Arc<Slot>>,
    /// Number of runs that were taken out and are neither given nor back.
    taken: usize,
    /// Runs that are being created, and have not joined: the numbers of their reservations.
    reserved: BTreeSet<u64>,
    /// Number of the last reservation.
    last_reservation: u64,
    /// Set while a run is being created that wants to be first.
    exclusive: bool,
    /// Notified when `exclusive` ends, and when the active run leaves.
    freed: Arc<Notify>,
    /// Called when somebody joins who waits.
    joined: Arc<Notify>,
}

/// A place of one who waits.
#[derive(Debug, Default)]
struct Slot {
    called: Notify,
    /// True if the run takes input during its turn.
    steers: bool,
    /// The last reservation when the run joined: later ones are of runs with larger numbers.
    reservation: u64,
    /// The run that has taken it as input.
    taken_by: Mutex<Option<RunId>>,
    /// Called when nobody waits here any more: what was taken has its end on disk.
    member_left: Notify,
    /// True if the run no longer waits here. Changed under the lock of the lines.
    left: AtomicBool,
}

/// The reason to call a waiting run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnCall {
    /// The turn of the run has come.
    Now,
    /// This run has taken its event as input.
    TakenBy(RunId),
}

/// The run that has its turn in a conversation and is not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ParkedTurn {
    pub(crate) run_no: u64,
    /// True if the run takes input.
    pub(crate) steers: bool,
}

/// A run that was taken out of its line. Dropping it puts the run back into its place.
pub(crate) struct TakenRun {
    lines: Arc<Lines>,
    key: ConversationKey,
    run_no: u64,
    slot: Arc<Slot>,
    done: bool,
}

impl WaitingRun for TakenRun {
    fn run_no(&self) -> u64 {
        self.run_no
    }

    fn give_to(mut self: Box<Self>, taker: RunId) -> BoxFuture<'static, ()> {
        self.done = true;
        *self.slot.taken_by.lock() = Some(taker);
        self.slot.called.notify_one();
        let slot = Arc::clone(&self.slot);
        Box::pin(async move { slot.member_left.notified().await })
    }
}

impl Drop for TakenRun {
    fn drop(&mut self) {
        let mut lines = self.lines.0.lock();
        let Some(line) = lines.get_mut(&self.key) else { return };
        line.taken = line.taken.saturating_sub(1);
        if !self.done && !self.slot.left.load(Ordering::Relaxed) {
            line.waiting.insert(self.run_no, Arc::clone(&self.slot));
            // The run that took it may have ended meanwhile.
            line.call_next();
        }
        if line.is_idle() {
            lines.remove(&self.key);
        }
    }
}

/// A run of the conversation is being created. Dropped once it has joined the line, or was not created.
#[derive(Debug)]
pub(crate) struct Reservation {
    lines: Arc<Lines>,
    key: ConversationKey,
    number: u64,
    /// True if every other run of the conversation waits until this one has joined.
    exclusive: bool,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut lines = self.lines.0.lock();
        if let Some(line) = lines.get_mut(&self.key) {
            line.reserved.remove(&self.number);
            if self.exclusive {
                line.exclusive = false;
                line.freed.notify_waiters();
            }
            line.call_next();
            if line.is_idle() {
                lines.remove(&self.key);
            }
        }
    }
}

/// The conversation is not idle.
#[derive(Debug)]
pub(crate) struct Busy {
    /// Number of the active run, and a future that is ready when it has left the line. `None` where it is being created.
    pub(crate) active: Option<(u64, Option<OwnedNotified>)>,
}

impl Line {
    /// True if no run is in the line or joining it.
    fn is_idle(&self) -> bool {
        self.active.is_none() && self.has_nobody_else()
    }

    /// True if no run but an active one is in the line, joining it or about to come back.
    fn has_nobody_else(&self) -> bool {
        self.waiting.is_empty() && self.reserved.is_empty() && self.taken == 0
    }

    /// Calls the run that is first, where none is active, and none that is being created may come before it.
    fn call_next(&mut self) {
        if self.active.is_some() {
            return;
        }
        if let Some(first) = self.waiting.first_entry()
            && self.reserved.first().is_none_or(|reserved| *reserved > first.get().reservation)
        {
            let (run_no, slot) = first.remove_entry();
            self.active = Some(run_no);
            self.steers = slot.steers;
            slot.called.notify_one();
        }
    }

    fn reserve(&mut self, lines: &Arc<Lines>, key: &ConversationKey, exclusive: bool) -> Reservation {
        self.last_reservation += 1;
        self.reserved.insert(self.last_reservation);
        self.exclusive = exclusive;
        Reservation { lines: Arc::clone(lines), key: key.clone(), number: self.last_reservation, exclusive }
    }
}

/// A place in a line. Dropping it leaves the line or ends the turn.
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
    slot: Arc<Slot>,
    /// True if the turn stays taken after the drop.
    parked: bool,
}

impl Lines {
    /// The number of runs that wait behind the active run of a conversation, and whether the active run takes them as
    /// input.
    pub(crate) fn waiting(&self, key: &ConversationKey) -> (usize, bool) {
        self.0.lock().get(key).map_or((0, false), |line| (line.waiting.len(), line.steers))
    }

    /// The runs of a conversation that are in memory, or parked with somebody behind them: the active one, then those that
    /// wait, in order.
    pub(crate) fn members(&self, key: &ConversationKey) -> Vec<u64> {
        let lines = self.0.lock();
        let Some(line) = lines.get(key) else { return Vec::new() };
        line.active.into_iter().chain(line.waiting.keys().copied()).collect()
    }

    /// Notified when a run joins the line of a conversation and waits. A run that joined before this call counts too.
    pub(crate) fn joined(&self, key: &ConversationKey) -> Option<Arc<Notify>> {
        self.0.lock().get(key).map(|line| Arc::clone(&line.joined))
    }

    /// Takes those out of a line, oldest first, at most `limit`, that `wanted` says yes to.
    pub(crate) fn take(self: &Arc<Self>, key: &ConversationKey, limit: usize, wanted: impl Fn(u64) -> bool) -> Vec<TakenRun> {
        let waiting: Vec<u64> = match self.0.lock().get(key) {
            Some(line) => line.waiting.keys().copied().collect(),
            None => return Vec::new(),
        };
        let wanted: Vec<u64> = waiting.into_iter().filter(|run_no| wanted(*run_no)).take(limit).collect();
        let mut lines = self.0.lock();
        let Some(line) = lines.get_mut(key) else { return Vec::new() };
        let taken = wanted.into_iter().filter_map(|run_no| {
            let slot = line.waiting.remove(&run_no)?;
            line.taken += 1;
            Some(TakenRun { lines: Arc::clone(self), key: key.clone(), run_no, slot, done: false })
        });
        taken.collect()
    }

    /// Says that a run of the conversation is being created. Waits until a run that wants to be first has joined.
    pub(crate) async fn reserve(self: &Arc<Self>, key: &ConversationKey) -> Reservation {
        loop {
            let freed = {
                let mut lines = self.0.lock();
                let line = lines.entry(key.clone()).or_default();
                if !line.exclusive {
                    return line.reserve(self, key, false);
                }
                Arc::clone(&line.freed).notified_owned()
            };
            freed.await;
        }
    }

    /// As [`Lines::reserve`], where no run of the conversation is active, parked or being created: the run is first.
    pub(crate) fn reserve_idle(
        self: &Arc<Self>,
        key: &ConversationKey,
        parked: impl FnOnce(&ConversationKey) -> Option<ParkedTurn>,
    ) -> Result<Reservation, Busy> {
        let mut lines = self.0.lock();
        if let Some(line) = lines.get(key).filter(|line| !line.is_idle()) {
            let left = || Some(Arc::clone(&line.freed).notified_owned());
            return Err(Busy { active: line.active.map(|run_no| (run_no, left())) });
        }
        if let Some(turn) = parked(key) {
            return Err(Busy { active: Some((turn.run_no, None)) });
        }
        Ok(lines.entry(key.clone()).or_default().reserve(self, key, true))
    }

    /// Reserves the place behind the active run `run_no`, which is about to be cancelled: the new run is next, and every other
    /// run of the conversation waits until it has joined. `None` where another run is active, waits or is being created.
    pub(crate) fn reserve_behind(
        self: &Arc<Self>,
        key: &ConversationKey,
        run_no: u64,
        parked: impl FnOnce(&ConversationKey) -> Option<ParkedTurn>,
    ) -> Option<Reservation> {
        let mut lines = self.0.lock();
        let (active, is_free) = match lines.get(key) {
            Some(line) => (line.active, line.waiting.is_empty() && line.reserved.is_empty() && !line.exclusive),
            None => (None, true),
        };
        let active = active.or_else(|| parked(key).map(|turn| turn.run_no));
        if active != Some(run_no) || !is_free {
            return None;
        }
        Some(lines.entry(key.clone()).or_default().reserve(self, key, true))
    }

    /// The number of waiting runs in all lines.
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
        steers: bool,
        parked: impl FnOnce(&ConversationKey) -> Option<ParkedTurn>,
    ) -> Turn {
        let Some(key) = key else { return Turn { place: None } };
        let mut lines = self.0.lock();
        let line = lines.entry(key.clone()).or_default();
        let slot = Arc::new(Slot { steers, reservation: line.last_reservation, ..Slot::default() });
        if line.active.is_none()
            && let Some(turn) = parked(&key)
        {
            (line.active, line.steers) = (Some(turn.run_no), turn.steers);
        }
        // One of those that are being created is this run.
        let is_first = line.waiting.is_empty() && line.reserved.len() <= 1;
        if line.active.map_or(is_first, |active| active == run_no) {
            line.active = Some(run_no);
            line.steers = steers;
        } else {
            line.waiting.insert(run_no, Arc::clone(&slot));
            line.joined.notify_one();
        }
        drop(lines);
        Turn { place: Some(Place { lines: Arc::clone(self), key, run_no, slot, parked: false }) }
    }
}

impl Turn {
    /// Leaves memory while the turn stays taken: waiting runs continue to wait. The park row is on disk.
    pub(crate) fn leave_parked(mut self) {
        let Some(place) = &mut self.place else { return };
        place.parked = true;
        let mut lines = place.lines.0.lock();
        if lines.get(&place.key).is_some_and(Line::has_nobody_else) {
            lines.remove(&place.key);
        }
    }

    /// True if the turn is this run's.
    pub(crate) fn is_now(&self) -> bool {
        self.place
            .as_ref()
            .is_none_or(|place| place.lines.0.lock().get(&place.key).is_some_and(|line| line.active == Some(place.run_no)))
    }

    /// The run that has taken it as input, where one has.
    pub(crate) fn taken_by(&self) -> Option<RunId> {
        self.place.as_ref().and_then(|place| *place.slot.taken_by.lock())
    }

    /// Waits until it is this one's turn, or another has taken it.
    pub(crate) async fn wait(&self) -> TurnCall {
        loop {
            if self.is_now() {
                return TurnCall::Now;
            }
            let Some(place) = &self.place else { return TurnCall::Now };
            if let Some(by) = self.taken_by() {
                return TurnCall::TakenBy(by);
            }
            // A call that came before this waits is kept by `Notify`.
            place.slot.called.notified().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.parked {
            return;
        }
        let mut lines = self.lines.0.lock();
        self.slot.left.store(true, Ordering::Relaxed);
        self.slot.member_left.notify_one();
        let Some(line) = lines.get_mut(&self.key) else { return };
        line.waiting.remove(&self.run_no);
        if line.active == Some(self.run_no) {
            line.active = None;
            line.steers = false;
            line.freed.notify_waiters();
        }
        line.call_next();
        if line.is_idle() {
            lines.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> Option<ConversationKey> {
        Some(ConversationKey::new("", "c", ""))
    }

    proptest! {
        /// In any order of joining and leaving, at most one run is active, the oldest waiting run is next, and an empty
        /// line is removed.
        #[test]
        fn a_line_has_one_active_run_and_forgets_nobody(leaving in prop::collection::vec(any::<prop::sample::Index>(), 8)) {
            let lines = Arc::new(Lines::default());
            let mut turns: Vec<(u64, Turn)> = (1..=8).map(|no| (no, lines.join(key(), no, false, |_| None))).collect();
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

    #[tokio::test]
    async fn a_run_that_is_put_back_has_its_turn_also_where_the_one_that_took_it_is_gone() {
        let lines = Arc::new(Lines::default());
        let key = key().unwrap();
        let join = |run_no| lines.join(Some(key.clone()), run_no, true, |_| None);
        let take = || lines.take(&key, 1, |_| true);
        let (first, second) = (join(1), join(2));
        let taken = take();
        assert_eq!(taken.len(), 1);
        drop(first);
        assert!(!second.is_now());
        drop(taken);
        assert!(second.is_now());

        // One that is parked keeps its turn.
        let third = join(3);
        let taken = take();
        second.leave_parked();
        drop(taken);
        assert!(!third.is_now());
        drop(join(2));
        assert!(third.is_now());

        // One that was given away leaves nothing behind.
        let fourth = join(4);
        let taken = take();
        drop(third);
        let given: Vec<_> = taken.into_iter().map(|taken| Box::new(taken).give_to(RunId::new())).collect();
        assert!(fourth.taken_by().is_some());
        drop(fourth);
        drop(given);
        assert!(lines.0.lock().is_empty());
    }

    #[tokio::test]
    async fn no_run_begins_while_one_with_a_smaller_number_is_being_created() {
        let lines = Arc::new(Lines::default());
        let key = key().unwrap();
        let join = |run_no| lines.join(Some(key.clone()), run_no, false, |_| None);
        let [of_first, of_second] = [lines.reserve(&key).await, lines.reserve(&key).await];
        let second = join(2);
        drop(of_second);
        assert!(!second.is_now());
        let first = join(1);
        // A run that is created from now on has a larger number.
        let of_third = lines.reserve(&key).await;
        assert!(!first.is_now(), "it may still be another one that is created");
        drop(of_first);
        assert!(first.is_now() && !second.is_now());
        // The same where the active run leaves.
        let of_fourth = lines.reserve(&key).await;
        let fourth = join(4);
        drop(of_fourth);
        drop(first);
        assert!(second.is_now());
        drop(second);
        assert!(!fourth.is_now());
        // The run was not created after all.
        drop(of_third);
        assert_eq!(fourth.wait().await, TurnCall::Now);
        drop(fourth);
        assert!(lines.0.lock().is_empty());
        // One that leaves while it waits makes way for the next.
        let [of_fifth, of_sixth] = [lines.reserve(&key).await, lines.reserve(&key).await];
        let sixth = join(6);
        drop((of_sixth, sixth, of_fifth));
        assert!(lines.0.lock().is_empty());
    }

    #[test]
    fn runs_without_a_conversation_do_not_wait() {
        let lines = Arc::new(Lines::default());
        assert!(lines.join(None, 1, false, |_| None).is_now() && lines.join(None, 2, false, |_| None).is_now());
    }

    #[tokio::test]
    async fn the_next_is_called_when_the_active_one_leaves() {
        let lines = Arc::new(Lines::default());
        let first = lines.join(key(), 1, false, |_| None);
        let second = lines.join(key(), 2, false, |_| None);
        assert_eq!(lines.waiting(&key().unwrap()), (1, false));
        assert_eq!(lines.members(&key().unwrap()), [1, 2]);
        let waits = tokio::spawn(async move { second.wait().await });
        drop(first);
        waits.await.unwrap();
    }

    #[tokio::test]
    async fn a_taken_run_names_its_taker_and_the_others_keep_their_place() {
        let lines = Arc::new(Lines::default());
        let active = lines.join(key(), 1, true, |_| None);
        let joined = lines.joined(&key().unwrap()).unwrap();
        let (second, third) = (lines.join(key(), 2, true, |_| None), lines.join(key(), 3, true, |_| None));
        joined.notified().await;
        assert_eq!(lines.waiting(&key().unwrap()), (2, true));
        drop(lines.take(&key().unwrap(), 5, |_| true));
        let taken = lines.take(&key().unwrap(), 5, |run_no| run_no == 2);
        assert_eq!(lines.waiting(&key().unwrap()).0, 1);
        let by = RunId::new();
        let gone: Vec<_> = taken.into_iter().map(|taken| Box::new(taken).give_to(by)).collect();
        assert_eq!(second.wait().await, TurnCall::TakenBy(by));
        drop((active, second));
        for gone in gone {
            gone.await;
        }
        assert_eq!(third.wait().await, TurnCall::Now);
    }

    #[tokio::test]
    async fn a_parked_run_keeps_its_turn_without_memory() {
        let lines = Arc::new(Lines::default());
        lines.join(key(), 1, false, |_| None).leave_parked();
        assert!(lines.0.lock().is_empty());
        assert_eq!(lines.members(&key().unwrap()), Vec::<u64>::new(), "the ledger knows it");
        let second = lines.join(key(), 2, false, |_| Some(ParkedTurn { run_no: 1, steers: false }));
        assert!(!second.is_now());
        assert_eq!(lines.members(&key().unwrap()), [1, 2]);
        let first = lines.join(key(), 1, false, |_| Some(ParkedTurn { run_no: 1, steers: false }));
        assert!(first.is_now());
        first.leave_parked();
        assert!(!second.is_now(), "it is parked again, and somebody waits");
        drop(lines.join(key(), 1, false, |_| Some(ParkedTurn { run_no: 1, steers: false })));
        second.wait().await;
    }

    #[tokio::test]
    async fn a_run_that_wants_an_idle_conversation_is_refused_by_every_other() {
        let lines = Arc::new(Lines::default());
        let key = key().unwrap();
        let created = lines.reserve(&key).await;
        let busy = |parked: fn(&ConversationKey) -> Option<ParkedTurn>| lines.reserve_idle(&key, parked).unwrap_err().active;
        assert!(busy(|_| None).is_none(), "a run is being created");
        let turn = lines.join(Some(key.clone()), 7, false, |_| None);
        drop(created);
        let (active, left) = busy(|_| None).unwrap();
        assert_eq!(active, 7);
        let mut left = std::pin::pin!(left.unwrap());
        assert!(futures_util::poll!(&mut left).is_pending(), "a run is active");
        drop(turn);
        left.await;
        let parked = |_: &ConversationKey| Some(ParkedTurn { run_no: 3, steers: false });
        assert!(matches!(busy(parked), Some((3, None))), "a run is parked");
        let idle = lines.reserve_idle(&key, |_| None).unwrap();
        assert!(lines.reserve_idle(&key, |_| None).is_err(), "only one is first");
        let mut next = std::pin::pin!(lines.reserve(&key));
        assert!(futures_util::poll!(&mut next).is_pending(), "the others join behind it");
        drop(idle);
        drop(next.await);
        assert!(lines.0.lock().is_empty());
        // The place behind a run is reserved while it is the only one, in memory or parked.
        let first = lines.join(Some(key.clone()), 9, false, |_| None);
        assert!(lines.reserve_behind(&key, 8, |_| None).is_none(), "another run is active");
        let behind = lines.reserve_behind(&key, 9, |_| None).unwrap();
        assert!(lines.reserve_behind(&key, 9, |_| None).is_none(), "one replaces it");
        let mut next = std::pin::pin!(lines.reserve(&key));
        assert!(futures_util::poll!(&mut next).is_pending(), "the others join behind the new run");
        let second = lines.join(Some(key.clone()), 10, false, |_| None);
        drop(behind);
        drop(next.await);
        assert!(lines.reserve_behind(&key, 9, |_| None).is_none(), "a run waits");
        drop(first);
        assert!(second.is_now());
        drop(second);
        drop(lines.reserve_behind(&key, 3, parked).unwrap());
        assert!(lines.0.lock().is_empty());
        // A reservation does not hide a parked run from a run that joins.
        let created = lines.reserve(&key).await;
        let turn = lines.join(Some(key.clone()), 8, false, parked);
        assert!(!turn.is_now());
        drop((created, turn));
    }
}
