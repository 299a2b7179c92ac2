//! The world of a guest besides its calls: a clock, random bytes, and memory limits.
//!
//! All of it is fixed when a run begins and stored with the run, so two executions of a run see the same (D13).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use agent_host_protocol::Limits;
use chacha20::{
    ChaCha20Rng,
    rand_core::{Rng as _, SeedableRng as _},
};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock};

/// The surroundings of one guest.
#[derive(Debug, Clone)]
pub struct World {
    /// The clock of the guest.
    pub clock: GuestClock,
    /// Seed of the guest's random bytes.
    pub seed: [u8; 32],
    /// Limit of linear memory, in bytes. The answer of `memory.grow` depends on it.
    pub memory_bytes: usize,
    /// Limit of the elements of one table. The answer of `table.grow` depends on it.
    pub table_elements: usize,
}

impl World {
    /// A world that begins now, with bounds from `limits` and a seed of its own.
    #[must_use]
    pub fn new(limits: &Limits, clock: GuestClock, seed: [u8; 32]) -> Self {
        Self { clock, seed, memory_bytes: limits.guest_memory_bytes, table_elements: limits.guest_table_elements }
    }

    /// Random bytes for one purpose: streams of one seed have nothing in common.
    pub(crate) fn random(&self, purpose: Purpose) -> ChaCha20Rng {
        let mut random = ChaCha20Rng::from_seed(self.seed);
        random.set_stream(purpose as u64);
        random
    }

    pub(crate) fn insecure_seed(&self) -> u128 {
        let mut random = self.random(Purpose::InsecureSeed);
        (u128::from(random.next_u64()) << 64) | u128::from(random.next_u64())
    }
}

/// The purpose of random bytes. The numbers are part of the journal's meaning: they never change.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Secure = 0,
    Insecure = 1,
    InsecureSeed = 2,
}

/// The time of one run as its guest sees it. The clock stands still while the guest computes, and advances when a host call
/// returns. Clones share the time.
#[derive(Debug, Clone)]
pub struct GuestClock(Arc<Times>);

#[derive(Debug)]
struct Times {
    /// Microseconds since 1970 when the run began.
    began_us: u64,
    /// Microseconds since then.
    elapsed_us: AtomicU64,
}

impl GuestClock {
    /// The clock of a run that began then, in microseconds since 1970.
    #[must_use]
    pub fn new(began_us: u64) -> Self {
        Self(Arc::new(Times { began_us, elapsed_us: AtomicU64::new(0) }))
    }

    /// Start of the run, in microseconds since 1970.
    #[must_use]
    pub fn began_us(&self) -> u64 {
        self.0.began_us
    }

    /// Duration of the run as the guest sees it, in microseconds.
    #[must_use]
    pub fn elapsed_us(&self) -> u64 {
        self.0.elapsed_us.load(Ordering::Relaxed)
    }

    /// Advances the clock. The clock never goes back.
    pub fn advance_to(&self, elapsed_us: u64) {
        self.0.elapsed_us.fetch_max(elapsed_us, Ordering::Relaxed);
    }

    /// The wall clock, in milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.0.began_us.saturating_add(self.elapsed_us()) / 1000
    }
}

impl HostWallClock for GuestClock {
    fn resolution(&self) -> Duration {
        Duration::from_micros(1)
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.0.began_us.saturating_add(self.elapsed_us()))
    }
}

impl HostMonotonicClock for GuestClock {
    fn resolution(&self) -> u64 {
        1_000
    }

    fn now(&self) -> u64 {
        self.elapsed_us().saturating_mul(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_shows_what_it_was_moved_to_and_never_goes_back() {
        let clock = GuestClock::new(1_000_000);
        clock.advance_to(2_500);
        clock.clone().advance_to(2_000);
        assert_eq!((clock.elapsed_us(), clock.now_ms()), (2_500, 1_002));
        assert_eq!(HostWallClock::now(&clock), Duration::from_micros(1_002_500));
        assert_eq!(HostMonotonicClock::now(&clock), 2_500_000);
    }

    /// Bytes that journals of today depend on: a change here makes every run in flight diverge.
    #[test]
    fn random_bytes_follow_from_the_seed_for_ever() {
        let world = World::new(&Limits::default(), GuestClock::new(0), [7; 32]);
        let first = |purpose| world.random(purpose).next_u64();
        assert_eq!(first(Purpose::Secure), first(Purpose::Secure));
        assert_ne!(first(Purpose::Secure), first(Purpose::Insecure));
        let bytes = (first(Purpose::Secure), first(Purpose::Insecure), world.insecure_seed());
        assert_eq!(
            bytes,
            (4_753_173_749_397_848_308, 17_250_399_114_163_879_021, 268_327_656_707_228_868_863_500_074_006_208_451_264)
        );
    }
}
