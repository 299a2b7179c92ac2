//! Threads of guests, apart from those that serve.
//!
//! Runs are executed on threads of their own, so that no client waits behind a guest. A guest that uses CPU time for longer than
//! [`SLICE`] leaves them: it goes on on threads of low priority, for one slice in each of its slots. Runs that compute little,
//! clients and the ledger have the processor first.

use std::{
    cell::Cell,
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    thread::available_parallelism,
    time::{Duration, Instant},
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::JoinHandle,
};
use wasmtime::UpdateDeadline;

use crate::{
    cpu::{self, CpuBudget},
    slots::{ComputeShare, Slots},
};

/// Time between two looks at a guest that computes.
pub(crate) const SLICE: Duration = Duration::from_millis(2);
/// Looks at a computing guest in one slot while no other waits: the largest delay of a stop is that many slices.
const SLICES_ALONE: u32 = 5;
/// CPU time from the first look at a guest on the threads of runs to the look at which it leaves them: a slice, but for the unevenness of
/// looks. The first look may come at once, since slices begin together.
const CPU_AT_FIRST: Duration = Duration::from_micros(1_500);
/// Nice value of the threads of guests that compute: a tenth of the processor while others want all of it.
const NICE: i32 = 10;

thread_local! {
    /// Rule for the guest that is polled by this thread.
    static RULE: Cell<YieldRule> = const { Cell::new(YieldRule::AfterLooks(1)) };
}

/// A rule that says at which look a guest gives way.
#[derive(Debug, Clone, Copy)]
enum YieldRule {
    /// After so many looks, in a slot.
    AfterLooks(u32),
    /// Once it has computed, on the threads of runs: with the CPU time of the thread at the first look. A guest whose thread has waited for
    /// the processor meanwhile, beside guests that compute, has not.
    AfterCpuTime(Option<Duration>),
    /// The guest has given way.
    Now,
}

/// The threads of guests.
pub(crate) struct GuestThreads {
    runs: Option<Runtime>,
    computing: Option<Runtime>,
    slots: Arc<Slots>,
}

/// A guest that begins on the threads of runs, and goes on on those for guests that compute.
///
/// Dropping it ends the guest soon; [`PacedGuest::end`] says when.
pub struct PacedGuest<T, S> {
    threads: Arc<GuestThreads>,
    share: S,
    cpu: Arc<CpuBudget>,
    here: Option<BoxFuture<'static, T>>,
    computing: Option<ComputingGuest<T>>,
}

/// A guest on the threads for guests that compute. It ends when this is dropped.
pub(crate) struct ComputingGuest<T>(JoinHandle<T>);

impl GuestThreads {
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let count = available_parallelism().map_or(1, usize::from);
        let runtime = |name| {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(count).thread_name(name).enable_all();
            builder
        };
        let runs = runtime("runs").build()?;
        let computing = runtime("computing")
            // A poll takes a slice here, where tokio expects microseconds: who comes from elsewhere (a guest that begins to compute, one
            // that is stopped) is looked for after each, and not after dozens of them.
            .global_queue_interval(1)
            .event_interval(1)
            .on_thread_start(|| {
                // On Linux, this concerns the calling thread.
                if let Err(error) = rustix::process::setpriority_process(None, NICE) {
                    tracing::debug!(%error, "guests that compute have the priority of the host");
                }
            })
            .build()?;
        Ok(Arc::new(Self { runs: Some(runs), computing: Some(computing), slots: Slots::new(count) }))
    }

    /// The threads on which runs are executed.
    pub(crate) fn runs(&self) -> Handle {
        self.runs.as_ref().map_or_else(Handle::current, |runs| runs.handle().clone())
    }

    /// Executes a guest where this future is polled, and on the threads for guests that compute once it does.
    pub(crate) fn pace<T: Send + 'static, S: Fn() -> ComputeShare>(
        self: &Arc<Self>,
        share: S,
        cpu: Arc<CpuBudget>,
        guest: impl Future<Output = T> + Send + 'static,
    ) -> PacedGuest<T, S> {
        PacedGuest { threads: Arc::clone(self), share, cpu, here: Some(Box::pin(guest)), computing: None }
    }

    /// Executes a guest on the threads for guests that compute.
    pub(crate) fn compute<T: Send + 'static>(
        &self,
        share: ComputeShare,
        cpu: Arc<CpuBudget>,
        guest: BoxFuture<'static, T>,
    ) -> ComputingGuest<T> {
        let handle = self.computing.as_ref().map_or_else(Handle::current, |computing| computing.handle().clone());
        ComputingGuest(handle.spawn(in_slots(Arc::clone(&self.slots), share, cpu, guest)))
    }
}

impl Drop for GuestThreads {
    fn drop(&mut self) {
        // The last run may drop it, on a thread that cannot wait for itself.
        self.runs.take().into_iter().chain(self.computing.take()).for_each(Runtime::shutdown_background);
    }
}

impl<T, S> PacedGuest<T, S> {
    /// Ends the guest wherever it is. Nothing of it is executed any more when this returns.
    pub async fn end(mut self) {
        self.here = None;
        if let Some(mut computing) = self.computing.take() {
            computing.0.abort();
            // Cancelled, or ended meanwhile.
            drop((&mut computing.0).await);
        }
    }
}

/// Polls a guest once in each slot.
async fn in_slots<T>(slots: Arc<Slots>, share: ComputeShare, cpu: Arc<CpuBudget>, mut guest: BoxFuture<'static, T>) -> T {
    loop {
        let slot = slots.take(&share).await;
        let slices = if slots.are_short() { 1 } else { SLICES_ALONE };
        // One poll stays on one thread.
        let polled = poll_fn(|cx| {
            let before = cpu::of_thread();
            let polled = look(guest.as_mut(), cx, YieldRule::AfterLooks(slices));
            cpu.spend(cpu::of_thread().saturating_sub(before));
            Poll::Ready(polled)
        })
        .await;
        drop(slot);
        match polled {
            (Poll::Ready(outcome), _) => return outcome,
            // The task ends here where it was aborted, also if nobody else wants a slot.
            (Poll::Pending, true) => tokio::task::yield_now().await,
            (Poll::Pending, false) => woken().await,
        }
    }
}

/// Waits until the task is woken: by what its guest waits for, which has the waker of the task.
async fn woken() {
    let mut waits = true;
    poll_fn(|_| if std::mem::take(&mut waits) { Poll::Pending } else { Poll::Ready(()) }).await;
}

/// Polls a guest, which gives way by this rule. True if it did.
fn look<F: Future + ?Sized>(guest: Pin<&mut F>, cx: &mut Context<'_>, rule: YieldRule) -> (Poll<F::Output>, bool) {
    RULE.set(rule);
    let polled = guest.poll(cx);
    (polled, matches!(RULE.get(), YieldRule::Now))
}

/// Looks at the guest that this thread executes: it goes on, or gives way.
pub(crate) fn on_look() -> UpdateDeadline {
    let next = match RULE.get() {
        YieldRule::AfterLooks(0 | 1) | YieldRule::Now => YieldRule::Now,
        YieldRule::AfterLooks(looks) => YieldRule::AfterLooks(looks - 1),
        YieldRule::AfterCpuTime(None) => YieldRule::AfterCpuTime(Some(cpu::of_thread())),
        YieldRule::AfterCpuTime(Some(first)) if cpu::of_thread().saturating_sub(first) >= CPU_AT_FIRST => YieldRule::Now,
        waits @ YieldRule::AfterCpuTime(Some(_)) => waits,
    };
    RULE.set(next);
    if matches!(next, YieldRule::Now) { UpdateDeadline::Yield(1) } else { UpdateDeadline::Continue(1) }
}

impl<T: Send + 'static, S: Fn() -> ComputeShare + Unpin> Future for PacedGuest<T, S> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        if let Some(guest) = &mut this.here {
            let began = Instant::now();
            let polled = look(guest.as_mut(), cx, YieldRule::AfterCpuTime(None));
            this.cpu.spend(began.elapsed());
            match polled {
                (Poll::Pending, false) => return Poll::Pending,
                (Poll::Ready(outcome), _) => {
                    this.here = None;
                    return Poll::Ready(outcome);
                }
                (Poll::Pending, true) => {}
            }
        }
        if let Some(guest) = this.here.take() {
            this.computing = Some(this.threads.compute((this.share)(), Arc::clone(&this.cpu), guest));
        }
        let polled = this.computing.as_mut().map_or(Poll::Pending, |guest| guest.poll_unpin(cx));
        if polled.is_ready() {
            this.computing = None;
        }
        polled
    }
}

impl<T> Future for ComputingGuest<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.0.poll_unpin(cx) {
            Poll::Ready(Ok(outcome)) => Poll::Ready(outcome),
            Poll::Ready(Err(error)) => match error.try_into_panic() {
                // A panic goes on in the task that waits.
                Ok(panic) => std::panic::resume_unwind(panic),
                // The threads are gone, and with them the host.
                Err(_) => Poll::Pending,
            },
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T> Drop for ComputingGuest<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashSet,
        sync::atomic::{AtomicBool, Ordering},
    };

    use parking_lot::Mutex;

    use super::*;

    /// Names of the threads that a guest was polled on, and nice values of these.
    type Seen = Arc<Mutex<HashSet<(String, i32)>>>;

    fn here() -> (String, i32) {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        (name, rustix::process::getpriority_process(None).unwrap())
    }

    fn spin() {
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(100) {}
    }

    /// A guest that computes, and is looked at, until it is told to end.
    async fn computes(seen: Seen, ends: Arc<AtomicBool>) {
        poll_fn(|cx| {
            seen.lock().insert(here());
            while !ends.load(Ordering::Relaxed) {
                spin();
                if matches!(on_look(), UpdateDeadline::Yield(_)) {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
            Poll::Ready(())
        })
        .await;
    }

    fn cpu() -> Arc<CpuBudget> {
        Arc::new(CpuBudget::new(Duration::ZERO))
    }

    fn share(binding: &str) -> ComputeShare {
        ComputeShare { binding: binding.into(), ..ComputeShare::default() }
    }

    #[test]
    fn a_guest_that_computes_leaves_the_threads_of_runs_and_others_do_not_wait_for_it() {
        let threads = GuestThreads::start().unwrap();
        let (seen, ends) = (Seen::default(), Arc::new(AtomicBool::new(false)));
        let computing: Vec<_> = (0..50)
            .map(|_| {
                let guest = threads.pace(|| share("computes"), cpu(), computes(Arc::clone(&seen), Arc::clone(&ends)));
                threads.runs().spawn(guest)
            })
            .collect();
        let quiet = Seen::default();
        for _ in 0..100 {
            let quiet = Arc::clone(&quiet);
            let guest = async move {
                quiet.lock().insert(here());
                tokio::time::sleep(Duration::from_millis(1)).await;
                quiet.lock().insert(here());
            };
            let executed = threads.runs().spawn(threads.pace(|| share("quiet"), cpu(), guest));
            threads.runs().block_on(executed).unwrap();
        }
        assert_eq!(*quiet.lock(), HashSet::from([("runs".to_owned(), 0)]), "a run that does not compute stays");
        assert!(seen.lock().contains(&("computing".to_owned(), NICE)), "{seen:?}");
        ends.store(true, Ordering::Relaxed);
        for guest in computing {
            threads.runs().block_on(guest).unwrap();
        }
    }

    #[test]
    fn a_guest_whose_thread_waits_for_the_processor_does_not_compute() {
        let threads = GuestThreads::start().unwrap();
        let seen = Seen::default();
        let waits = {
            let seen = Arc::clone(&seen);
            poll_fn(move |cx| {
                seen.lock().insert(here());
                // Five slices, in which it uses no CPU time worth the name.
                for _ in 0..5 {
                    std::thread::sleep(SLICE);
                    if matches!(on_look(), UpdateDeadline::Yield(_)) {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                Poll::Ready(())
            })
        };
        let waits = threads.runs().spawn(threads.pace(|| share("waits"), cpu(), waits));
        threads.runs().block_on(waits).unwrap();
        assert_eq!(*seen.lock(), HashSet::from([("runs".to_owned(), 0)]));
    }

    #[test]
    fn a_dropped_guest_ends_while_it_computes_or_waits_for_its_slot() {
        let threads = GuestThreads::start().unwrap();
        let (seen, ends) = (Seen::default(), Arc::new(AtomicBool::new(false)));
        let guests: Vec<_> = (0..50)
            .map(|_| threads.compute(share("x"), cpu(), Box::pin(computes(Arc::clone(&seen), Arc::clone(&ends)))))
            .collect();
        let until = |is: &dyn Fn() -> bool| {
            let began = Instant::now();
            while !is() {
                assert!(began.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        until(&|| !seen.lock().is_empty());
        drop(guests);
        // Each guest holds one reference.
        until(&|| Arc::strong_count(&ends) == 1);
        assert!(!threads.slots.are_short());
    }

    #[test]
    fn an_ended_guest_does_nothing_any_more() {
        let threads = GuestThreads::start().unwrap();
        for _ in 0..20 {
            let (seen, ends) = (Seen::default(), Arc::new(AtomicBool::new(false)));
            let runs = threads.runs();
            runs.block_on(async {
                let mut guest = threads.pace(|| share("x"), cpu(), computes(Arc::clone(&seen), Arc::clone(&ends)));
                // It computes, and is interrupted in the middle of it.
                let waited = tokio::time::timeout(Duration::from_millis(20), &mut guest).await;
                assert!(waited.is_err());
                guest.end().await;
            });
            assert_eq!(Arc::strong_count(&ends), 1, "it is gone");
        }
    }

    #[test]
    fn guests_use_up_one_budget_together_and_quiet_ones_nearly_nothing() {
        let threads = GuestThreads::start().unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let budget = Arc::new(CpuBudget::new(Duration::from_millis(50)));
        let guests: Vec<_> = (0..4)
            .map(|_| {
                threads.runs().spawn(threads.pace(
                    || share("x"),
                    Arc::clone(&budget),
                    computes(Seen::default(), Arc::clone(&ends)),
                ))
            })
            .collect();
        let quiet = Arc::new(CpuBudget::new(Duration::from_secs(3_600)));
        let sleeps = async { tokio::time::sleep(Duration::from_secs(2)).await };
        let sleeping = threads.runs().spawn(threads.pace(|| share("quiet"), Arc::clone(&quiet), sleeps));
        threads.runs().block_on(async {
            tokio::time::timeout(Duration::from_secs(60), budget.used_up()).await.unwrap();
            sleeping.await.unwrap();
        });
        assert!(budget.used() >= Duration::from_millis(50));
        // Its polls are short, but on a busy machine.
        assert!(quiet.used() < Duration::from_secs(1), "{:?}", quiet.used());
        ends.store(true, Ordering::Relaxed);
        for guest in guests {
            threads.runs().block_on(guest).unwrap();
        }
    }

    #[test]
    fn a_panic_of_a_computing_guest_is_that_of_its_run() {
        let threads = GuestThreads::start().unwrap();
        let guest = threads.compute(share("x"), cpu(), Box::pin(async { panic!("as a test wants it") }));
        let joined: Result<(), _> = threads.runs().block_on(threads.runs().spawn(guest));
        assert!(joined.unwrap_err().is_panic());
    }
}
