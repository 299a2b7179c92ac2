//! Threads of guests, apart from those that serve.
//!
//! Runs are executed on threads of their own, so that no client waits behind a guest. A guest that computes longer than
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
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::JoinHandle,
};
use wasmtime::UpdateDeadline;

use crate::slots::{ComputeShare, Slots};

/// Time between two looks at a guest that computes.
pub(crate) const SLICE: Duration = Duration::from_millis(2);
/// Looks at a computing guest in one slot while no other waits: the largest delay of a stop is that many slices.
const SLICES_ALONE: u32 = 5;
/// Looks at a guest that has not left the threads of runs. The first may come at once, since slices begin together.
const SLICES_AT_FIRST: u32 = 2;
/// Nice value of the threads of guests that compute: a tenth of the processor while others want all of it.
const NICE: i32 = 10;

thread_local! {
    /// Looks at the guest that is polled by this thread, and how many it may have.
    static LOOKS: Cell<(u32, u32)> = const { Cell::new((0, SLICES_AT_FIRST)) };
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
        guest: impl Future<Output = T> + Send + 'static,
    ) -> PacedGuest<T, S> {
        PacedGuest { threads: Arc::clone(self), share, here: Some(Box::pin(guest)), computing: None }
    }

    /// Executes a guest on the threads for guests that compute.
    pub(crate) fn compute<T: Send + 'static>(&self, share: ComputeShare, guest: BoxFuture<'static, T>) -> ComputingGuest<T> {
        let handle = self.computing.as_ref().map_or_else(Handle::current, |computing| computing.handle().clone());
        ComputingGuest(handle.spawn(in_slots(Arc::clone(&self.slots), share, guest)))
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
async fn in_slots<T>(slots: Arc<Slots>, share: ComputeShare, mut guest: BoxFuture<'static, T>) -> T {
    loop {
        let slot = slots.take(&share).await;
        let slices = if slots.are_short() { 1 } else { SLICES_ALONE };
        let polled = poll_fn(|cx| Poll::Ready(look(guest.as_mut(), cx, slices))).await;
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

/// Polls a guest, which gives way when it was looked at so often. True if it did.
fn look<F: Future + ?Sized>(guest: Pin<&mut F>, cx: &mut Context<'_>, slices: u32) -> (Poll<F::Output>, bool) {
    LOOKS.set((0, slices));
    let polled = guest.poll(cx);
    let (looks, _) = LOOKS.get();
    (polled, looks >= slices)
}

/// Looks at the guest that this thread executes: it goes on, or gives way.
pub(crate) fn on_look() -> UpdateDeadline {
    let (looks, slices) = LOOKS.get();
    LOOKS.set((looks + 1, slices));
    if looks + 1 >= slices { UpdateDeadline::Yield(1) } else { UpdateDeadline::Continue(1) }
}

impl<T: Send + 'static, S: Fn() -> ComputeShare + Unpin> Future for PacedGuest<T, S> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        if let Some(guest) = &mut this.here {
            match look(guest.as_mut(), cx, SLICES_AT_FIRST) {
                (Poll::Pending, false) => return Poll::Pending,
                (Poll::Ready(outcome), _) => {
                    this.here = None;
                    return Poll::Ready(outcome);
                }
                (Poll::Pending, true) => {}
            }
        }
        if let Some(guest) = this.here.take() {
            this.computing = Some(this.threads.compute((this.share)(), guest));
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
        time::Instant,
    };

    use parking_lot::Mutex;

    use super::*;

    /// Names of the threads that a guest was polled on, and nice values of these.
    type Seen = Arc<Mutex<HashSet<(String, i32)>>>;

    fn here() -> (String, i32) {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        (name, rustix::process::getpriority_process(None).unwrap())
    }

    /// A guest that computes, looked at as one is, until it is told to end.
    async fn computes(seen: Seen, ends: Arc<AtomicBool>) {
        poll_fn(|cx| {
            seen.lock().insert(here());
            loop {
                if ends.load(Ordering::Relaxed) {
                    return Poll::Ready(());
                }
                std::thread::sleep(Duration::from_micros(100));
                if matches!(on_look(), UpdateDeadline::Yield(_)) {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        })
        .await;
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
                let guest = threads.pace(|| share("computes"), computes(Arc::clone(&seen), Arc::clone(&ends)));
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
            let executed = threads.runs().spawn(threads.pace(|| share("quiet"), guest));
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
    fn a_dropped_guest_ends_while_it_computes_or_waits_for_its_slot() {
        let threads = GuestThreads::start().unwrap();
        let (seen, ends) = (Seen::default(), Arc::new(AtomicBool::new(false)));
        let guests: Vec<_> =
            (0..50).map(|_| threads.compute(share("x"), Box::pin(computes(Arc::clone(&seen), Arc::clone(&ends))))).collect();
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
                let mut guest = threads.pace(|| share("x"), computes(Arc::clone(&seen), Arc::clone(&ends)));
                // It computes, and is interrupted in the middle of it.
                let waited = tokio::time::timeout(Duration::from_millis(20), &mut guest).await;
                assert!(waited.is_err());
                guest.end().await;
            });
            assert_eq!(Arc::strong_count(&ends), 1, "it is gone");
        }
    }

    #[test]
    fn a_panic_of_a_computing_guest_is_that_of_its_run() {
        let threads = GuestThreads::start().unwrap();
        let guest = threads.compute(share("x"), Box::pin(async { panic!("as a test wants it") }));
        let joined: Result<(), _> = threads.runs().block_on(threads.runs().spawn(guest));
        assert!(joined.unwrap_err().is_panic());
    }
}
