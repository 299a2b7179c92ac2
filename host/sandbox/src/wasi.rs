//! WASI: the interfaces of `wasmtime-wasi`, and timers on the clock of the run.
//!
//! Clocks stand still between host calls. A sleep is a host call: `wasi:clocks/monotonic-clock` and `wasi:io/poll` are
//! linked to this module instead of the implementation of `wasmtime-wasi`, whose timers run in real time. Other pollables
//! (standard streams) are always ready; only a component that imports `wasi:http` really waits for readiness.

use std::time::Instant;

use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::p2::{
    DynPollable, Pollable,
    bindings::{clocks::monotonic_clock, io::poll},
    subscribe,
};

use crate::guest::{Guest, PollWait};

/// Links WASI: that of `wasmtime-wasi`, and over it the timers of this module.
pub(crate) fn link(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    linker.allow_shadowing(true);
    poll::add_to_linker::<_, Timers>(linker, |guest| Poller(guest))?;
    monotonic_clock::add_to_linker::<_, Timers>(linker, |guest| Poller(guest))?;
    linker.allow_shadowing(false);
    Ok(())
}

struct Timers;

impl HasData for Timers {
    type Data<'a> = Poller<'a>;
}

/// A guest as one who waits for time to pass.
struct Poller<'a>(&'a mut Guest);

/// The pollable of an instant. [`Guest::timers`] has its due time.
struct Timer;

#[async_trait::async_trait]
impl Pollable for Timer {
    /// Never called: this module polls timers.
    async fn ready(&mut self) {}
}

impl Poller<'_> {
    fn timer(&mut self, at_ns: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let timer = self.0.handles.push(Timer)?;
        let pollable = subscribe(&mut self.0.handles, timer)?;
        self.0.timers.insert(pollable.rep(), at_ns);
        Ok(pollable)
    }

    fn now_ns(&self) -> u64 {
        self.0.world.clock.elapsed_us().saturating_mul(1_000)
    }

    /// The due time of a timer; `None` for other pollables.
    fn due_ns(&self, pollable: &Resource<DynPollable>) -> wasmtime::Result<Option<u64>> {
        self.0.handles.get(pollable)?;
        let due = self.0.timers.get(&pollable.rep()).copied();
        // A pollable that is no timer is always ready.
        Ok(if self.0.waiting == PollWait::ForTimers { due.or(Some(0)) } else { due })
    }

    async fn wait(&mut self, at_ns: u64) {
        if at_ns > self.now_ns() {
            self.0.calls.wait_until(shown_at(at_ns)).await;
        }
    }

    /// Waits until one of `pollables` is ready, or until the clock shows `at_ns`. Returns the indices of the ready ones.
    async fn race(&mut self, pollables: Vec<Resource<DynPollable>>, at_ns: Option<u64>) -> wasmtime::Result<Vec<u32>> {
        let (began, shown) = (Instant::now(), self.0.world.clock.elapsed_us());
        let left = at_ns.filter(|at| *at > self.now_ns());
        let Guest { handles, calls, world, .. } = &mut *self.0;
        let timer = async {
            match (at_ns, left) {
                (None, _) => std::future::pending().await,
                (Some(_), None) => {}
                (Some(_), Some(at)) => calls.wait_until(shown_at(at)).await,
            }
        };
        let ready = tokio::select! {
            // Ready pollables are reported, even after the timeout.
            biased;
            ready = poll::Host::poll(handles, pollables) => ready?,
            () = timer => Vec::new(),
        };
        // Readiness is not a call of the kernel, which would have moved the clock.
        world.clock.advance_to(shown.saturating_add(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)));
        Ok(ready)
    }
}

/// The first microsecond of the clock that is not before the instant.
fn shown_at(at_ns: u64) -> u64 {
    at_ns.div_ceil(1_000)
}

impl poll::Host for Poller<'_> {
    async fn poll(&mut self, pollables: Vec<Resource<DynPollable>>) -> wasmtime::Result<Vec<u32>> {
        let due = pollables.iter().map(|pollable| self.due_ns(pollable)).collect::<wasmtime::Result<Vec<_>>>()?;
        let first = due.iter().flatten().min().copied();
        let (places, others): (Vec<u32>, Vec<_>) = (0..)
            .zip(&pollables)
            .zip(&due)
            .filter(|(_, due)| due.is_none())
            .map(|((place, pollable), _)| (place, Resource::new_borrow(pollable.rep())))
            .unzip();
        let mut ready = Vec::new();
        if !others.is_empty() {
            let raced = self.race(others, first).await?;
            ready.extend(raced.into_iter().filter_map(|place| places.get(usize::try_from(place).ok()?)).copied());
        } else {
            self.wait(first.ok_or_else(|| wasmtime::Error::msg("empty poll list"))?).await;
        }
        let now = self.now_ns();
        ready.extend((0..).zip(due).filter_map(|(place, due)| due.is_some_and(|due| due <= now).then_some(place)));
        Ok(ready)
    }
}

impl poll::HostPollable for Poller<'_> {
    async fn ready(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<bool> {
        match self.due_ns(&pollable)? {
            Some(due) => Ok(due <= self.now_ns()),
            None => poll::HostPollable::ready(&mut self.0.handles, pollable).await,
        }
    }

    async fn block(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        match self.due_ns(&pollable)? {
            Some(due) => self.wait(due).await,
            None => {
                self.race(vec![Resource::new_borrow(pollable.rep())], None).await?;
            }
        }
        Ok(())
    }

    fn drop(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        self.0.timers.remove(&pollable.rep());
        poll::HostPollable::drop(&mut self.0.handles, pollable)
    }
}

impl monotonic_clock::Host for Poller<'_> {
    fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(self.now_ns())
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        Ok(1_000)
    }

    fn subscribe_instant(&mut self, when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        self.timer(when)
    }

    fn subscribe_duration(&mut self, duration: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let when = self.now_ns().saturating_add(duration);
        self.timer(when)
    }
}

/// Waits for one pollable, as a guest does.
#[cfg(test)]
pub(crate) async fn block(guest: &mut Guest, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
    poll::HostPollable::block(&mut Poller(guest), pollable).await
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use agent_host_protocol::Limits;
    use wasmtime_wasi::p2::bindings::io::poll::{Host as _, HostPollable as _};

    use super::*;
    use crate::{
        calls::NoRun,
        world::{GuestClock, World},
    };

    /// Ready after a while, or never.
    struct Later(Option<Duration>);

    #[async_trait::async_trait]
    impl Pollable for Later {
        async fn ready(&mut self) {
            match self.0 {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
        }
    }

    /// A guest whose timers nobody ever rings: what it waits for otherwise must come by itself.
    fn guest(waiting: PollWait) -> Guest {
        let limits = Limits::default();
        let world = World::new(&limits, GuestClock::new(0), [0; 32]);
        Guest::new(&limits, waiting, world, Box::new(NoRun), Arc::new(NoRun))
    }

    fn later(guest: &mut Guest, after: Option<Duration>) -> Resource<DynPollable> {
        let later = guest.handles.push(Later(after)).unwrap();
        subscribe(&mut guest.handles, later).unwrap()
    }

    const SHORT: Duration = Duration::from_millis(20);
    const HOUR_NS: u64 = 3_600_000_000_000;

    #[tokio::test]
    async fn without_wasi_http_everything_but_timers_is_ready() {
        let mut guest = guest(PollWait::ForTimers);
        let never = later(&mut guest, None);
        let timer = Poller(&mut guest).timer(HOUR_NS).unwrap();
        let asked = vec![Resource::new_borrow(timer.rep()), Resource::new_borrow(never.rep())];
        assert_eq!(Poller(&mut guest).poll(asked).await.unwrap(), [1]);
        assert!(Poller(&mut guest).ready(Resource::new_borrow(never.rep())).await.unwrap());
        Poller(&mut guest).block(never).await.unwrap();
        assert_eq!(guest.world.clock.elapsed_us(), 0, "nothing was waited for");
    }

    #[tokio::test]
    async fn with_wasi_http_what_becomes_ready_comes_before_a_later_timer() {
        let mut guest = guest(PollWait::ForReadiness);
        let (never, soon) = (later(&mut guest, None), later(&mut guest, Some(SHORT)));
        let timer = Poller(&mut guest).timer(HOUR_NS).unwrap();
        assert!(!Poller(&mut guest).ready(Resource::new_borrow(soon.rep())).await.unwrap());
        let asked = [&timer, &never, &soon].map(|pollable| Resource::new_borrow(pollable.rep()));
        assert_eq!(Poller(&mut guest).poll(asked.into()).await.unwrap(), [2]);
        assert!(guest.world.clock.elapsed_us() >= 20_000, "the clock shows that it was waited");
    }

    #[tokio::test]
    async fn with_wasi_http_a_timer_that_is_due_ends_the_wait() {
        let mut guest = guest(PollWait::ForReadiness);
        let (never, now) = (later(&mut guest, None), later(&mut guest, Some(Duration::ZERO)));
        guest.world.clock.advance_to(5);
        let timer = Poller(&mut guest).timer(5_000).unwrap();
        let ask = |all: &[&Resource<DynPollable>]| all.iter().map(|one| Resource::new_borrow(one.rep())).collect::<Vec<_>>();
        assert_eq!(Poller(&mut guest).poll(ask(&[&never, &timer])).await.unwrap(), [1]);
        Poller(&mut guest).block(now).await.unwrap();
        assert!(Poller(&mut guest).poll(Vec::new()).await.is_err(), "an empty list is no question");
    }
}
