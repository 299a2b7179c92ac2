//! The deliveries that have work, and those that wait for a time or an event.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use agent_host_ledger::RunRecord;
use agent_host_protocol::RunId;
use agent_host_providers::webhook::{ResultHook, ResultHooks};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// A run that does something often does more in the same moment: one request instead of three.
const LINGER: Duration = Duration::from_millis(10);
/// Requests under way in all. Each holds its body, and a connection.
const AT_ONCE: usize = 256;

/// The deliveries that are not finished.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    state: Mutex<State>,
    /// Notified if there may be something to send.
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By the number of the run. Most runs have one.
    slots: HashMap<u64, Vec<Slot>>,
    queues: Vec<Queue>,
    sending: usize,
}

/// A delivery: one run and one webhook.
#[derive(Debug)]
struct Slot {
    queue: usize,
    run_id: RunId,
    /// Every event up to this sequence was sent or does not concern the webhook.
    scanned: u64,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No event to send is known.
    Idle,
    /// The next turn is at this time.
    Later(Instant),
    /// The slot is in `ready` of its queue.
    Ready,
    /// A request is under way; and whether the run has done something meanwhile.
    Sending { touched: bool },
}

/// The deliveries of one webhook.
#[derive(Debug)]
struct Queue {
    name: Arc<str>,
    ready: VecDeque<u64>,
    later: BTreeSet<(Instant, u64)>,
    sending: usize,
    /// The webhook has asked for quiet until then.
    rests_until: Option<Instant>,
}

/// A delivery that has its turn.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) run_no: u64,
    pub(super) run_id: RunId,
    pub(super) scanned: u64,
    pub(super) hook: Arc<ResultHook>,
    queue: usize,
}

/// The state of a delivery after a turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The delivery is complete, or was given up.
    Finished,
    /// Perhaps more.
    Again,
    /// There is no further event after this one, for now.
    Idle { scanned: u64 },
    /// The same once more, after a pause; and whether the webhook has asked for quiet.
    After { pause: Duration, rest: bool },
}

impl Deliveries {
    /// Adds the deliveries of a new run.
    pub(crate) fn begin(&self, record: &RunRecord, webhooks: &[String]) {
        for name in webhooks {
            self.add(record.run_no, record.run.run_id, name, LINGER);
        }
    }

    /// Schedules a delivery after a delay. A delivery that is already listed has its turn at that time at the latest.
    pub(super) fn add(&self, run_no: u64, run_id: RunId, webhook: &str, after: Duration) {
        let mut state = self.state.lock();
        let queue = state.queue(webhook);
        let slots = state.slots.entry(run_no).or_default();
        if !slots.iter().any(|slot| slot.queue == queue) {
            slots.push(Slot { queue, run_id, scanned: 0, phase: Phase::Idle });
        }
        state.hurry(run_no, queue, Instant::now() + after);
        drop(state);
        self.changed.notify_one();
    }

    /// Runs have done something.
    pub(super) fn touched(&self, runs: &[u64]) {
        let mut state = self.state.lock();
        if state.slots.is_empty() {
            return;
        }
        let mut any = false;
        let at = Instant::now() + LINGER;
        for run_no in runs {
            let Some(slots) = state.slots.get_mut(run_no) else { continue };
            let mut woken = Vec::new();
            for slot in slots {
                match &mut slot.phase {
                    Phase::Idle => {
                        slot.phase = Phase::Later(at);
                        woken.push(slot.queue);
                    }
                    Phase::Sending { touched } => *touched = true,
                    Phase::Later(_) | Phase::Ready => {}
                }
            }
            any |= !woken.is_empty();
            for queue in woken {
                state.queues.get_mut(queue).map(|queue| queue.later.insert((at, *run_no)));
            }
        }
        drop(state);
        if any {
            self.changed.notify_one();
        }
    }

    /// The setup was replaced: who rested under the old one need not under the new one.
    pub(crate) fn setup_changed(&self) {
        self.state.lock().queues.iter_mut().for_each(|queue| queue.rests_until = None);
        self.changed.notify_one();
    }

    /// The deliveries whose turn is now, and the time of the next turn.
    pub(super) fn turns(&self, hooks: &ResultHooks) -> (Vec<Turn>, Option<Instant>) {
        let mut state = self.state.lock();
        let State { slots, queues, sending } = &mut *state;
        let now = Instant::now();
        let mut turns = Vec::new();
        let mut next: Option<Instant> = None;
        let mut open = Vec::new();
        for (index, queue) in queues.iter_mut().enumerate() {
            // Deliveries wait while no webhook of that name can sign.
            let Some(hook) = hooks.get(&queue.name).filter(|hook| hook.can_sign()) else { continue };
            queue.due(index, now, slots);
            if let Some(until) = queue.rests_until.filter(|until| *until > now) {
                next = Some(next.map_or(until, |next| next.min(until)));
                continue;
            }
            queue.rests_until = None;
            if let Some((at, _)) = queue.later.first() {
                next = Some(next.map_or(*at, |next| next.min(*at)));
            }
            open.push((index, Arc::clone(hook)));
        }
        // Round robin over the queues, so that a webhook with many deliveries does not delay others.
        while *sending < AT_ONCE && !open.is_empty() {
            open.retain(|(index, hook)| {
                let Some(queue) = queues.get_mut(*index).filter(|_| *sending < AT_ONCE) else { return false };
                if queue.sending >= hook.config.concurrency {
                    return false;
                }
                let Some(run_no) = queue.ready.pop_front() else { return false };
                let slot = slots.get_mut(&run_no).and_then(|slots| slots.iter_mut().find(|slot| slot.queue == *index));
                let Some(slot) = slot else { return true };
                slot.phase = Phase::Sending { touched: false };
                queue.sending += 1;
                *sending += 1;
                let (run_id, scanned) = (slot.run_id, slot.scanned);
                turns.push(Turn { run_no, run_id, scanned, hook: Arc::clone(hook), queue: *index });
                true
            });
        }
        (turns, next)
    }

    /// A turn is over.
    pub(super) fn done(&self, turn: &Turn, next: &Next) {
        let mut state = self.state.lock();
        let State { slots, queues, sending } = &mut *state;
        *sending = sending.saturating_sub(1);
        let Some(queue) = queues.get_mut(turn.queue) else { return };
        queue.sending = queue.sending.saturating_sub(1);
        let now = Instant::now();
        let Some(of_run) = slots.get_mut(&turn.run_no) else { return };
        let Some(slot) = of_run.iter_mut().find(|slot| slot.queue == turn.queue) else { return };
        let touched = slot.phase == Phase::Sending { touched: true };
        slot.phase = match *next {
            // A dead letter may have been put back in this moment: one more look finds it.
            Next::Finished if touched => queue.later(turn.run_no, now),
            Next::Finished => {
                of_run.retain(|slot| slot.queue != turn.queue);
                if of_run.is_empty() {
                    slots.remove(&turn.run_no);
                }
                drop(state);
                self.changed.notify_one();
                return;
            }
            Next::Again => {
                queue.ready.push_back(turn.run_no);
                Phase::Ready
            }
            Next::Idle { scanned } => {
                slot.scanned = scanned;
                if touched { queue.later(turn.run_no, now + LINGER) } else { Phase::Idle }
            }
            Next::After { pause, rest } => {
                let at = now.checked_add(pause).unwrap_or(now);
                if rest {
                    queue.rests_until = queue.rests_until.max(Some(at));
                }
                queue.later(turn.run_no, at)
            }
        };
        drop(state);
        self.changed.notify_one();
    }

    /// The number of unfinished deliveries, and the number of open requests.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.slots.values().map(Vec::len).sum(), state.sending)
    }
}

impl State {
    /// The queue of a webhook. There are as many queues as names were ever configured.
    fn queue(&mut self, name: &str) -> usize {
        if let Some(at) = self.queues.iter().position(|queue| &*queue.name == name) {
            return at;
        }
        let (ready, later) = (VecDeque::new(), BTreeSet::new());
        self.queues.push(Queue { name: name.into(), ready, later, sending: 0, rests_until: None });
        self.queues.len() - 1
    }

    /// Gives a slot its turn at this time at the latest.
    fn hurry(&mut self, run_no: u64, queue: usize, at: Instant) {
        let slot = self.slots.get_mut(&run_no).and_then(|slots| slots.iter_mut().find(|slot| slot.queue == queue));
        let (Some(slot), Some(queue)) = (slot, self.queues.get_mut(queue)) else { return };
        match &mut slot.phase {
            Phase::Ready => {}
            Phase::Sending { touched } => *touched = true,
            Phase::Later(before) if *before <= at => {}
            Phase::Later(before) => {
                queue.later.remove(&(*before, run_no));
                slot.phase = queue.later(run_no, at);
            }
            Phase::Idle => slot.phase = queue.later(run_no, at),
        }
    }
}

impl Queue {
    fn later(&mut self, run_no: u64, at: Instant) -> Phase {
        self.later.insert((at, run_no));
        Phase::Later(at)
    }

    /// Moves the slots whose time has come to `ready`.
    fn due(&mut self, index: usize, now: Instant, slots: &mut HashMap<u64, Vec<Slot>>) {
        while let Some((at, run_no)) = self.later.first().copied().filter(|(at, _)| *at <= now) {
            self.later.remove(&(at, run_no));
            let slot = slots.get_mut(&run_no).and_then(|slots| slots.iter_mut().find(|slot| slot.queue == index));
            if let Some(slot) = slot.filter(|slot| slot.phase == Phase::Later(at)) {
                slot.phase = Phase::Ready;
                self.ready.push_back(run_no);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn hooks(concurrency: usize) -> (ResultHooks, tempfile::NamedTempFile) {
        let mut secret = tempfile::NamedTempFile::new().unwrap();
        secret.write_all(b"s").unwrap();
        let config = |name: &str| {
            let text = format!(
                "name = \"{name}\"\nurl = \"http://127.0.0.1:9/\"\nsecret = {{ file = {:?} }}\nconcurrency = {concurrency}",
                secret.path()
            );
            toml::from_str(&text).unwrap()
        };
        (ResultHooks::open(&[config("a"), config("b")]).unwrap(), secret)
    }

    fn names(turns: &[Turn]) -> Vec<(u64, &str)> {
        turns.iter().map(|turn| (turn.run_no, turn.hook.config.name.as_str())).collect()
    }

    #[test]
    fn a_run_has_one_request_under_way_and_a_webhook_as_many_as_it_may() {
        let (hooks, _secret) = hooks(2);
        let deliveries = Deliveries::default();
        for run_no in 1..=4 {
            deliveries.add(run_no, RunId::new(), "a", Duration::ZERO);
        }
        deliveries.add(1, RunId::new(), "b", Duration::ZERO);
        let (turns, _) = deliveries.turns(&hooks);
        assert_eq!(names(&turns), [(1, "a"), (1, "b"), (2, "a")]);
        deliveries.touched(&[1, 3]);
        std::thread::sleep(2 * LINGER);
        assert!(deliveries.turns(&hooks).0.is_empty(), "there is no room, and run 1 is at work");
        deliveries.done(&turns[0], &Next::Idle { scanned: 5 });
        assert_eq!(names(&deliveries.turns(&hooks).0), [(3, "a")]);
        deliveries.done(&turns[2], &Next::Finished);
        assert_eq!(names(&deliveries.turns(&hooks).0), [(4, "a")]);
        assert_eq!(deliveries.counts(), (4, 3));
        std::thread::sleep(2 * LINGER);
        assert!(deliveries.turns(&hooks).0.is_empty());
    }

    #[test]
    fn changes_during_a_request_are_not_lost() {
        let (hooks, _secret) = hooks(1);
        let deliveries = Deliveries::default();
        deliveries.add(1, RunId::new(), "a", Duration::ZERO);
        let (turns, _) = deliveries.turns(&hooks);
        deliveries.touched(&[1]);
        deliveries.done(&turns[0], &Next::Idle { scanned: 3 });
        let (none, next) = deliveries.turns(&hooks);
        assert!(none.is_empty() && next.is_some());
        std::thread::sleep(2 * LINGER);
        let (turns, _) = deliveries.turns(&hooks);
        assert_eq!(turns[0].scanned, 3);
        deliveries.done(&turns[0], &Next::Idle { scanned: 3 });
        assert_eq!(deliveries.turns(&hooks).1, None, "nothing happened since");
        deliveries.touched(&[7]);
        assert_eq!(deliveries.turns(&hooks).1, None, "and what other runs do is nothing to it");
    }

    #[test]
    fn a_pause_is_kept_and_a_webhook_that_asks_for_quiet_has_it() {
        let (hooks, _secret) = hooks(8);
        let deliveries = Deliveries::default();
        for run_no in 1..=2 {
            deliveries.add(run_no, RunId::new(), "a", Duration::ZERO);
        }
        let (turns, _) = deliveries.turns(&hooks);
        let pause = Duration::from_millis(300);
        deliveries.done(&turns[0], &Next::After { pause, rest: true });
        deliveries.done(&turns[1], &Next::Again);
        deliveries.touched(&[1]);
        assert!(deliveries.turns(&hooks).0.is_empty(), "all that is for it rests");
        std::thread::sleep(pause);
        assert_eq!(names(&deliveries.turns(&hooks).0).len(), 2);
    }

    #[test]
    fn a_requeued_dead_letter_skips_the_pause() {
        let (hooks, _secret) = hooks(8);
        let deliveries = Deliveries::default();
        let run_id = RunId::new();
        deliveries.add(1, run_id, "a", Duration::from_secs(3600));
        assert!(deliveries.turns(&hooks).0.is_empty());
        deliveries.add(1, run_id, "a", Duration::ZERO);
        assert_eq!(names(&deliveries.turns(&hooks).0), [(1, "a")]);
        assert_eq!(deliveries.turns(&hooks).1, None, "it has one turn, not two");
    }

    #[test]
    fn a_delivery_retried_while_given_up_has_a_turn() {
        let (hooks, _secret) = hooks(8);
        let deliveries = Deliveries::default();
        let run_id = RunId::new();
        deliveries.add(1, run_id, "a", Duration::ZERO);
        let (turns, _) = deliveries.turns(&hooks);
        deliveries.add(1, run_id, "a", Duration::ZERO);
        deliveries.done(&turns[0], &Next::Finished);
        let (turns, _) = deliveries.turns(&hooks);
        assert_eq!(names(&turns), [(1, "a")]);
        deliveries.done(&turns[0], &Next::Finished);
        assert_eq!(deliveries.counts(), (0, 0));
    }

    #[test]
    fn deliveries_to_a_removed_webhook_wait() {
        let (hooks, _secret) = hooks(8);
        let deliveries = Deliveries::default();
        deliveries.add(1, RunId::new(), "gone", Duration::ZERO);
        assert_eq!(deliveries.turns(&hooks).1, None);
        assert_eq!(deliveries.counts(), (1, 0));
    }
}
