//! Limits on concurrent executions of a binding, and on the rate of their starts.
//!
//! In a cluster with several partitions the limits hold over all of them. A gate admits as many runs then as it has permits, which a
//! [task](super::permits) requests from the database.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use agent_host_ledger::{LentPermits, PermitRequest};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter, clock::Clock};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use agent_host_config::QueuePolicy;

/// Interval between requests of a binding that uses permits: other partitions may want some.
const REFRESH: Duration = Duration::from_secs(1);
/// Interval between equal requests.
pub(super) const AGAIN: Duration = Duration::from_millis(100);

/// The gates of all bindings that bound their runs.
#[derive(Default)]
pub(crate) struct Admissions {
    gates: Mutex<HashMap<String, Gate>>,
    /// True if other partitions share the limits.
    is_shared: bool,
    /// Notified when a gate has another use for permits.
    pub(super) changed: Notify,
}

#[derive(Default)]
struct Gate {
    running: u32,
    /// Present where other partitions share the limits.
    permits: Option<GatePermits>,
    concurrency: Option<u32>,
    per_minute: Option<(u32, DefaultDirectRateLimiter)>,
    /// Higher priorities first, then older runs.
    waiting: BTreeMap<(Reverse<i32>, u64), oneshot::Sender<Admission>>,
    /// True if a task will look again when the rate allows the next start.
    awaited: bool,
}

/// The permits of a gate.
#[derive(Debug, Clone, Copy, Default)]
struct GatePermits {
    /// The permits that the database has lent, as it said last.
    booked: u32,
    /// The permits of those that may be used: fewer where another partition is to have the next one, and while they are asked for.
    lent: u32,
    /// The runs of the last report that the database has: it has to be told when they have left. `u32::MAX` after a request without an answer.
    reported: u32,
    /// True if other partitions wanted more than they had.
    is_contended: bool,
    /// Runs that may begin, where the rate is limited.
    starts: u32,
    /// True from a request to its answer.
    is_asking: bool,
    /// The last request, and its time.
    asked: Option<(PermitRequest, Instant)>,
    /// Time from which on the rate allows the next start.
    next_start: Option<Instant>,
}

/// A permit to execute one run of a binding, valid until it is dropped.
pub(crate) struct Admission(Option<(Arc<Admissions>, String)>);

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some((admission, binding)) = self.0.take() {
            let mut gates = admission.gates.lock();
            if let Some(gate) = gates.get_mut(&binding) {
                gate.running = gate.running.saturating_sub(1);
                // Another partition may be the next.
                if let Some(permits) = gate.permits.as_mut().filter(|permits| permits.is_contended) {
                    permits.lent = permits.lent.min(gate.running);
                }
            }
            drop(gates);
            admission.pump(&binding);
        }
    }
}

impl Admission {
    /// A permit without limits.
    pub(crate) fn unbounded() -> Self {
        Self(None)
    }
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Admission")
    }
}

/// A waiting run. Dropping it leaves the queue.
pub(crate) struct AdmissionPlace {
    admission: Arc<Admissions>,
    binding: String,
    place: (Reverse<i32>, u64),
    admitted: oneshot::Receiver<Admission>,
}

impl std::fmt::Debug for AdmissionPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdmissionPlace")
    }
}

impl AdmissionPlace {
    /// AdmissionPlace until the run may be executed.
    pub(crate) async fn wait(&mut self) -> Admission {
        // A gate is never dropped with somebody in it.
        (&mut self.admitted).await.unwrap_or_else(|_| Admission::unbounded())
    }
}

impl Drop for AdmissionPlace {
    fn drop(&mut self) {
        if let Some(gate) = self.admission.gates.lock().get_mut(&self.binding) {
            gate.waiting.remove(&self.place);
        }
        self.admission.changed.notify_one();
    }
}

impl Admissions {
    /// The gates of a cell. With `is_shared` their permits come from [`Admissions::lent`].
    pub(crate) fn new(is_shared: bool) -> Self {
        Self { is_shared, ..Self::default() }
    }

    /// The request for permits that is due for a binding.
    pub(super) fn request(&self, binding: &str, now: Instant) -> Option<PermitRequest> {
        let mut gates = self.gates.lock();
        let request = gates.get_mut(binding)?.request(now);
        if gates.get(binding).is_some_and(Gate::is_done) {
            gates.remove(binding);
        }
        request
    }

    /// The bindings that have gates.
    pub(super) fn bindings(&self) -> Vec<String> {
        self.gates.lock().keys().cloned().collect()
    }

    /// The permits that were lent to a binding, as it has asked.
    pub(super) fn lent(self: &Arc<Self>, binding: &str, request: &PermitRequest, answer: LentPermits) {
        let LentPermits { lent, is_contended, starts, next_start } = answer;
        if let Some(permits) = self.gates.lock().get_mut(binding).and_then(|gate| gate.permits.as_mut()) {
            // Without a limit nothing is lent.
            let limited = |number: u32| if request.concurrency.is_some() { number } else { 0 };
            (permits.booked, permits.lent) = (limited(lent), limited(lent));
            permits.reported = limited(request.running.saturating_add(request.waiting));
            permits.is_asking = false;
            permits.is_contended = is_contended;
            permits.starts = permits.starts.saturating_add(starts);
            permits.next_start = Some(Instant::now() + next_start);
        }
        self.pump(binding);
    }

    /// A request has no answer, and may have been carried out.
    pub(super) fn unanswered(&self, binding: &str) {
        if let Some(permits) = self.gates.lock().get_mut(binding).and_then(|gate| gate.permits.as_mut()) {
            (permits.reported, permits.is_asking) = (u32::MAX, false);
        }
    }

    /// Admits a run of a binding, or gives it a place. The policy of the newest run holds for all.
    pub(crate) fn enter(
        self: &Arc<Self>,
        binding: &str,
        policy: &QueuePolicy,
        priority: i32,
        run_no: u64,
    ) -> Result<Admission, AdmissionPlace> {
        if !policy.bounds() {
            return Ok(Admission::unbounded());
        }
        let place = (Reverse(priority), run_no);
        let (admit, admitted) = oneshot::channel();
        {
            let mut gates = self.gates.lock();
            let gate = gates.entry(binding.to_owned()).or_insert_with(|| Gate::new(self.is_shared));
            gate.bound(policy);
            gate.waiting.insert(place, admit);
        }
        self.pump(binding);
        let mut waits = AdmissionPlace { admission: Arc::clone(self), binding: binding.to_owned(), place, admitted };
        match waits.admitted.try_recv() {
            Ok(admitted) => Ok(admitted),
            Err(_) => Err(waits),
        }
    }

    /// Counts a run of a binding that is executed already.
    pub(crate) fn count(self: &Arc<Self>, binding: &str, policy: &QueuePolicy) -> Admission {
        if !policy.bounds() {
            return Admission::unbounded();
        }
        let mut gates = self.gates.lock();
        let gate = gates.entry(binding.to_owned()).or_insert_with(|| Gate::new(self.is_shared));
        gate.bound(policy);
        gate.running += 1;
        drop(gates);
        self.changed.notify_one();
        Admission(Some((Arc::clone(self), binding.to_owned())))
    }

    /// Bounds the runs of a binding by another policy from now on, those that wait already among them.
    pub(crate) fn adapt(self: &Arc<Self>, binding: &str, policy: &QueuePolicy) {
        if let Some(gate) = self.gates.lock().get_mut(binding) {
            gate.bound(policy);
        }
        self.pump(binding);
    }

    /// Admits as many waiting runs as the limits allow.
    fn pump(self: &Arc<Self>, binding: &str) {
        loop {
            let next = {
                let mut gates = self.gates.lock();
                let Some(gate) = gates.get_mut(binding) else { return };
                match gate.next() {
                    Next::Goes(admit) => admit,
                    Next::Nobody => {
                        if gate.is_done() {
                            gates.remove(binding);
                        } else if gate.permits.is_some() {
                            self.changed.notify_one();
                        }
                        return;
                    }
                    Next::After(pause) => {
                        let (this, binding) = (Arc::clone(self), binding.to_owned());
                        tokio::spawn(async move {
                            tokio::time::sleep(pause).await;
                            if let Some(gate) = this.gates.lock().get_mut(&binding) {
                                gate.awaited = false;
                            }
                            this.pump(&binding);
                        });
                        return;
                    }
                }
            };
            // A run that has left returns its permit when the permit is dropped here.
            drop(next.send(Admission(Some((Arc::clone(self), binding.to_owned())))));
        }
    }
}

enum Next {
    Goes(oneshot::Sender<Admission>),
    Nobody,
    After(Duration),
}

impl Gate {
    fn new(is_shared: bool) -> Self {
        Self { permits: is_shared.then(GatePermits::default), ..Self::default() }
    }

    fn bound(&mut self, policy: &QueuePolicy) {
        if let Some(permits) = self.permits.as_mut().filter(|_| self.concurrency.is_none() && policy.concurrency.is_some()) {
            permits.lent = 0;
        }
        self.concurrency = policy.concurrency;
        if self.per_minute.as_ref().map(|(rate, _)| *rate) != policy.per_minute {
            if let Some(permits) = &mut self.permits {
                permits.starts = 0;
            }
            self.per_minute = policy.per_minute.and_then(NonZeroU32::new).map(|rate| {
                // Starts are spread evenly: a burst of a whole minute's starts would defeat the limit.
                (rate.get(), RateLimiter::direct(Quota::per_minute(rate).allow_burst(NonZeroU32::MIN)))
            });
        }
    }

    /// True if nothing of the gate is needed any more.
    fn is_done(&self) -> bool {
        let keeps = match &self.permits {
            Some(permits) => permits.is_asking || permits.reported > 0,
            None => self.per_minute.is_some(),
        };
        self.running == 0 && self.waiting.is_empty() && !keeps
    }

    /// The request for permits that is due. `None`: the gate has what it needs, or has requested the same a moment ago.
    fn request(&mut self, now: Instant) -> Option<PermitRequest> {
        let permits = self.permits?;
        let (running, waiting) = (self.running, u32::try_from(self.waiting.len()).unwrap_or(u32::MAX));
        let since = permits.asked.map_or(REFRESH, |(_, at)| now.duration_since(at));
        let wanted = running.saturating_add(waiting.min(1));
        let wants_more = self.concurrency.is_some_and(|most| wanted > permits.lent && permits.lent < most);
        // Permits are kept for a moment, as long as nobody else wants them.
        let all = running.saturating_add(waiting);
        let may_give_back = permits.reported > 0 && (permits.is_contended || since >= REFRESH);
        let has_more = may_give_back && (all == 0 || permits.booked > all || self.concurrency.is_none());
        let uses = self.concurrency.is_some() && permits.booked > 0 && since >= REFRESH;
        let per_minute = self.per_minute.as_ref().map(|(rate, _)| *rate);
        let room = self.concurrency.map_or(u32::MAX, |_| permits.lent.saturating_sub(running));
        let starts = per_minute.map_or(0, |_| waiting.min(room).saturating_sub(permits.starts));
        let wants_start = starts > 0 && permits.next_start.is_none_or(|at| at <= now);
        let request = PermitRequest { concurrency: self.concurrency, per_minute, running, waiting, starts };
        let is_another = since >= AGAIN || permits.asked.is_none_or(|(asked, _)| asked != request);
        if !is_another || !(wants_more || has_more || wants_start || uses) {
            return None;
        }
        // What is given back is not used meanwhile.
        let lent = permits.lent.min(running);
        self.permits = Some(GatePermits { lent, is_asking: true, asked: Some((request, now)), ..permits });
        Some(request)
    }

    fn next(&mut self) -> Next {
        while self.waiting.first_key_value().is_some_and(|(_, admit)| admit.is_closed()) {
            self.waiting.pop_first();
        }
        if self.waiting.is_empty() || self.concurrency.is_some_and(|most| self.running >= most) {
            return Next::Nobody;
        }
        if let Some(permits) = &mut self.permits {
            let lacks_start = self.per_minute.is_some() && permits.starts == 0;
            if lacks_start || self.concurrency.is_some() && self.running >= permits.lent {
                return Next::Nobody;
            }
            permits.starts = permits.starts.saturating_sub(1);
        } else if let Some((_, limiter)) = &self.per_minute {
            if self.awaited {
                return Next::Nobody;
            }
            if let Err(not_yet) = limiter.check() {
                self.awaited = true;
                return Next::After(not_yet.wait_time_from(limiter.clock().now()));
            }
        }
        match self.waiting.pop_first() {
            Some((_, admit)) => {
                self.running += 1;
                Next::Goes(admit)
            }
            None => Next::Nobody,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(concurrency: Option<u32>, per_minute: Option<u32>) -> QueuePolicy {
        QueuePolicy { concurrency, per_minute, ..QueuePolicy::default() }
    }

    #[tokio::test]
    async fn so_many_run_at_one_time_and_the_next_is_the_most_urgent() {
        let admission = Arc::<Admissions>::default();
        let two = policy(Some(2), None);
        let first = admission.enter("b", &two, 0, 1).unwrap();
        let _second = admission.enter("b", &two, 0, 2).unwrap();
        let mut third = admission.enter("b", &two, 0, 3).unwrap_err();
        let mut urgent = admission.enter("b", &two, 9, 4).unwrap_err();
        let gone = admission.enter("b", &two, 99, 5).unwrap_err();
        assert!(admission.enter("other", &two, 0, 6).is_ok());
        drop((gone, first));
        let urgent = urgent.wait().await;
        assert!(third.admitted.try_recv().is_err());
        drop(urgent);
        third.wait().await;
    }

    #[tokio::test]
    async fn a_run_that_is_executed_already_counts() {
        let (two, alone, shared) = (policy(Some(2), None), Arc::<Admissions>::default(), Arc::new(Admissions::new(true)));
        let (first, _second) = (alone.count("b", &two), alone.count("b", &two));
        let mut third = alone.enter("b", &two, 0, 3).unwrap_err();
        drop(first);
        third.wait().await;
        let _first = shared.count("b", &two);
        let request = PermitRequest { concurrency: Some(2), running: 1, ..FOUR };
        assert_eq!(shared.request("b", Instant::now()), Some(request));
    }

    #[tokio::test]
    async fn unbounded_runs_do_not_wait() {
        let admission = Arc::<Admissions>::default();
        for no in 0..100 {
            assert!(admission.enter("b", &QueuePolicy::default(), 0, no).is_ok());
        }
        assert!(admission.gates.lock().is_empty());
    }

    const FOUR: PermitRequest = PermitRequest { concurrency: Some(4), per_minute: None, running: 0, waiting: 0, starts: 0 };

    fn lent(lent: u32, is_contended: bool) -> LentPermits {
        LentPermits { lent, is_contended, ..LentPermits::default() }
    }

    #[tokio::test]
    async fn runs_of_a_shared_binding_wait_for_permits_and_give_them_back() {
        let admission = Arc::new(Admissions::new(true));
        let four = policy(Some(4), None);
        let mut first = admission.enter("b", &four, 0, 1).unwrap_err();
        let mut second = admission.enter("b", &four, 0, 2).unwrap_err();
        let asked = |running, waiting| PermitRequest { running, waiting, ..FOUR };
        let now = Instant::now();
        assert_eq!(admission.request("b", now), Some(asked(0, 2)));
        admission.lent("b", &asked(0, 2), lent(1, true));
        let first = first.wait().await;
        assert!(second.admitted.try_recv().is_err(), "one was lent");
        // Another partition wants the permit: what waits here asks again.
        drop(first);
        assert!(second.admitted.try_recv().is_err());
        assert_eq!(admission.request("b", now), Some(asked(0, 1)));
        admission.lent("b", &asked(0, 1), lent(2, false));
        let second = second.wait().await;
        let third = admission.enter("b", &four, 0, 3).unwrap();
        assert_eq!(admission.request("b", now), None, "it has what it needs");
        // What is about to go back is not used.
        drop(third);
        assert_eq!(admission.request("b", now + REFRESH), Some(asked(1, 0)));
        let mut third = admission.enter("b", &four, 0, 3).unwrap_err();
        admission.lent("b", &asked(1, 0), lent(1, false));
        assert!(third.admitted.try_recv().is_err());
        assert_eq!(admission.request("b", now + REFRESH), Some(asked(1, 1)));
        admission.lent("b", &asked(1, 1), lent(2, false));
        drop((second, third.wait().await));
        assert_eq!(admission.request("b", now + REFRESH), None, "they are kept for a moment");
        assert_eq!(admission.request("b", now + 2 * REFRESH), Some(asked(0, 0)));
        admission.lent("b", &asked(0, 0), lent(0, false));
        assert!(admission.gates.lock().is_empty());
    }

    #[tokio::test]
    async fn the_database_hears_of_every_run_that_left() {
        let admission = Arc::new(Admissions::new(true));
        let four = policy(Some(4), None);
        let (now, waits) = (Instant::now(), PermitRequest { waiting: 1, ..FOUR });
        // The last run ends while another partition wants the permit.
        let mut last = admission.enter("b", &four, 0, 4).unwrap_err();
        admission.lent("b", &waits, lent(1, true));
        drop(last.wait().await);
        assert_eq!(admission.request("b", now), Some(FOUR), "the permit goes back");
        admission.unanswered("b");
        assert_eq!(admission.request("b", now + REFRESH), Some(FOUR), "nobody knows whether it did");
        admission.lent("b", &FOUR, lent(0, true));
        assert!(admission.gates.lock().is_empty());
        // A run leaves before the answer comes, which lends one or none.
        for number in 0..2 {
            let gone = admission.enter("b", &four, 0, 5).unwrap_err();
            assert_eq!(admission.request("b", now), Some(waits));
            drop(gone);
            admission.lent("b", &waits, lent(number, true));
            assert_eq!(admission.request("b", now), Some(FOUR), "nothing is wanted any more");
            admission.lent("b", &FOUR, lent(0, false));
            assert!(admission.gates.lock().is_empty());
        }
    }

    #[tokio::test]
    async fn a_limit_that_comes_or_goes_with_a_reload_is_told() {
        let admission = Arc::new(Admissions::new(true));
        let (now, rate) = (Instant::now(), policy(None, Some(600)));
        let mut first = admission.enter("b", &rate, 0, 1).unwrap_err();
        let asked = admission.request("b", now).unwrap();
        assert_eq!((asked.concurrency, asked.starts), (None, 1));
        admission.lent("b", &asked, LentPermits { lent: 9, starts: 1, ..LentPermits::default() });
        let first = first.wait().await;
        admission.adapt("b", &policy(Some(4), None));
        let mut second = admission.enter("b", &policy(Some(4), None), 0, 2).unwrap_err();
        let one_more = PermitRequest { running: 1, waiting: 1, ..FOUR };
        assert_eq!(admission.request("b", now), Some(one_more), "nothing was lent before");
        admission.lent("b", &one_more, lent(2, false));
        let second = second.wait().await;
        admission.adapt("b", &rate);
        let without = admission.request("b", now + REFRESH).unwrap();
        assert_eq!((without.concurrency, without.running), (None, 2), "what was lent goes back");
        admission.lent("b", &without, LentPermits::default());
        drop((first, second));
        assert!(admission.gates.lock().is_empty());
    }

    #[tokio::test]
    async fn starts_of_a_shared_binding_come_from_the_database() {
        let admission = Arc::new(Admissions::new(true));
        let both = policy(Some(1), Some(60));
        let mut first = admission.enter("b", &both, 0, 1).unwrap_err();
        let mut second = admission.enter("b", &both, 0, 2).unwrap_err();
        let now = Instant::now();
        let asked = admission.request("b", now).unwrap();
        assert_eq!(asked.starts, 0, "no run could begin");
        admission.lent("b", &asked, LentPermits { lent: 1, ..LentPermits::default() });
        let asked = admission.request("b", Instant::now()).unwrap();
        assert_eq!(asked.starts, 1);
        let next_start = Duration::from_secs(1);
        admission.lent("b", &asked, LentPermits { lent: 1, starts: 1, next_start, ..LentPermits::default() });
        let first = first.wait().await;
        let refreshed = admission.request("b", Instant::now() + REFRESH).unwrap();
        assert_eq!(refreshed.starts, 0, "the place is taken");
        admission.lent("b", &refreshed, LentPermits { lent: 1, next_start, ..LentPermits::default() });
        drop(first);
        assert!(second.admitted.try_recv().is_err() && admission.request("b", now + REFRESH).is_none(), "it is too early");
        let asked = admission.request("b", Instant::now() + next_start).unwrap();
        assert_eq!(asked.starts, 1);
        admission.lent("b", &asked, LentPermits { lent: 1, starts: 1, ..LentPermits::default() });
        drop(second.wait().await);
    }

    #[tokio::test]
    async fn so_many_begin_in_a_minute() {
        let admission = Arc::<Admissions>::default();
        let quick = policy(None, Some(6_000));
        let first = admission.enter("b", &quick, 0, 1);
        assert!(first.is_ok());
        drop(first);
        let mut second = admission.enter("b", &quick, 0, 2).unwrap_err();
        second.wait().await;
    }
}
