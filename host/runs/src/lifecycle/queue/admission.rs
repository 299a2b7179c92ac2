//! Limits on concurrent executions of a binding, and on the rate of their starts.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter, clock::Clock};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use agent_host_config::QueuePolicy;

/// The gates of all bindings that bound their runs.
#[derive(Default)]
pub(crate) struct Admissions(Mutex<HashMap<String, Gate>>);

#[derive(Default)]
struct Gate {
    running: u32,
    concurrency: Option<u32>,
    per_minute: Option<(u32, DefaultDirectRateLimiter)>,
    /// Higher priorities first, then older runs.
    waiting: BTreeMap<(Reverse<i32>, u64), oneshot::Sender<Admission>>,
    /// True if a task will look again when the rate allows the next start.
    awaited: bool,
}

/// A permit to execute one run of a binding, valid until it is dropped.
pub(crate) struct Admission(Option<(Arc<Admissions>, String)>);

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some((admission, binding)) = self.0.take() {
            let mut gates = admission.0.lock();
            if let Some(gate) = gates.get_mut(&binding) {
                gate.running = gate.running.saturating_sub(1);
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
        if let Some(gate) = self.admission.0.lock().get_mut(&self.binding) {
            gate.waiting.remove(&self.place);
        }
    }
}

impl Admissions {
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
            let mut gates = self.0.lock();
            let gate = gates.entry(binding.to_owned()).or_default();
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

    /// Bounds the runs of a binding by another policy from now on, those that wait already among them.
    pub(crate) fn adapt(self: &Arc<Self>, binding: &str, policy: &QueuePolicy) {
        if let Some(gate) = self.0.lock().get_mut(binding) {
            gate.bound(policy);
        }
        self.pump(binding);
    }

    /// Admits as many waiting runs as the limits allow.
    fn pump(self: &Arc<Self>, binding: &str) {
        loop {
            let next = {
                let mut gates = self.0.lock();
                let Some(gate) = gates.get_mut(binding) else { return };
                match gate.next() {
                    Next::Goes(admit) => admit,
                    Next::Nobody => {
                        if gate.running == 0 && gate.waiting.is_empty() && gate.per_minute.is_none() {
                            gates.remove(binding);
                        }
                        return;
                    }
                    Next::After(pause) => {
                        let (this, binding) = (Arc::clone(self), binding.to_owned());
                        tokio::spawn(async move {
                            tokio::time::sleep(pause).await;
                            if let Some(gate) = this.0.lock().get_mut(&binding) {
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
    fn bound(&mut self, policy: &QueuePolicy) {
        self.concurrency = policy.concurrency;
        if self.per_minute.as_ref().map(|(rate, _)| *rate) != policy.per_minute {
            self.per_minute = policy.per_minute.and_then(NonZeroU32::new).map(|rate| {
                // Starts are spread evenly: a burst of a whole minute's starts would defeat the limit.
                (rate.get(), RateLimiter::direct(Quota::per_minute(rate).allow_burst(NonZeroU32::MIN)))
            });
        }
    }

    fn next(&mut self) -> Next {
        while self.waiting.first_key_value().is_some_and(|(_, admit)| admit.is_closed()) {
            self.waiting.pop_first();
        }
        if self.waiting.is_empty() || self.concurrency.is_some_and(|most| self.running >= most) {
            return Next::Nobody;
        }
        if let Some((_, limiter)) = &self.per_minute {
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
    async fn unbounded_runs_do_not_wait() {
        let admission = Arc::<Admissions>::default();
        for no in 0..100 {
            assert!(admission.enter("b", &QueuePolicy::default(), 0, no).is_ok());
        }
        assert!(admission.0.lock().is_empty());
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
