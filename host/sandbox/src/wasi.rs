//! WASI with nothing in it: no environment, no arguments, no files, no sockets.
//!
//! Guests in every language import WASI even where they use none of it, so it is there. What is left of it are the
//! clocks and random bytes of the run's [`World`], and standard output and error, which go to the log of the run.
//!
//! Clocks stand still between host calls. To sleep is a host call: `wasi:clocks/monotonic-clock` and `wasi:io/poll` are
//! linked to what is here instead of to the implementation of `wasmtime-wasi`, whose timers run in real time. Everything
//! else that can be polled (standard streams) is always ready.

use std::sync::Arc;

use bytes::Bytes;
use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::{
    WasiCtx, WasiCtxBuilder,
    cli::{IsTerminal, StdoutStream},
    p2::{
        DynPollable, OutputStream, Pollable, StreamResult,
        bindings::{clocks::monotonic_clock, io::poll},
        subscribe,
    },
};

use crate::{
    calls::{LogSource, SharedLog},
    guest::Guest,
    world::{Purpose, World},
};

/// Random bytes in one call. More is asked only by who wants the host to work.
const MAX_RANDOM_BYTES: u64 = 64 * 1024;

/// Bytes that a guest may write to a standard stream in one call: the log bounds the total.
const STREAM_PERMIT: usize = 64 * 1024;

/// A context of WASI with nothing in it but clocks, randomness and the log.
pub(crate) fn inert(world: &World, log: &SharedLog) -> WasiCtx {
    WasiCtxBuilder::new()
        .stdout(LogStream { log: Arc::clone(log), source: LogSource::Stdout })
        .stderr(LogStream { log: Arc::clone(log), source: LogSource::Stderr })
        .wall_clock(world.clock.clone())
        .monotonic_clock(world.clock.clone())
        .secure_random(world.random(Purpose::Secure))
        .insecure_random(world.random(Purpose::Insecure))
        .insecure_random_seed(world.insecure_seed())
        .max_random_size(MAX_RANDOM_BYTES)
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false)
        .build()
}

/// Links WASI: that of `wasmtime-wasi`, and over it the timers of this module.
pub(crate) fn link(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    linker.allow_shadowing(true);
    poll::add_to_linker::<_, Timers>(linker, |guest| Waiting(guest))?;
    monotonic_clock::add_to_linker::<_, Timers>(linker, |guest| Waiting(guest))?;
    linker.allow_shadowing(false);
    Ok(())
}

struct Timers;

impl HasData for Timers {
    type Data<'a> = Waiting<'a>;
}

/// A guest as one who waits for time to pass.
struct Waiting<'a>(&'a mut Guest);

/// What a pollable for a moment points to. When that is, is in [`Guest::timers`].
struct Timer;

#[async_trait::async_trait]
impl Pollable for Timer {
    /// Never asked: who polls is in this module.
    async fn ready(&mut self) {}
}

impl Waiting<'_> {
    fn timer(&mut self, at_ns: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let timer = self.0.handles.push(Timer)?;
        let pollable = subscribe(&mut self.0.handles, timer)?;
        self.0.timers.insert(pollable.rep(), at_ns);
        Ok(pollable)
    }

    fn now_ns(&self) -> u64 {
        self.0.world.clock.elapsed_us().saturating_mul(1_000)
    }

    /// When it is ready: never later than now, where it is no timer.
    fn at_ns(&self, pollable: &Resource<DynPollable>) -> wasmtime::Result<u64> {
        self.0.handles.get(pollable)?;
        Ok(self.0.timers.get(&pollable.rep()).copied().unwrap_or(0))
    }

    async fn wait(&mut self, at_ns: u64) {
        if at_ns > self.now_ns() {
            // A clock that shows microseconds must have reached the moment, not the microsecond before.
            self.0.calls.wait_until(at_ns.div_ceil(1_000)).await;
        }
    }
}

impl poll::Host for Waiting<'_> {
    async fn poll(&mut self, pollables: Vec<Resource<DynPollable>>) -> wasmtime::Result<Vec<u32>> {
        let at = pollables.iter().map(|pollable| self.at_ns(pollable)).collect::<wasmtime::Result<Vec<_>>>()?;
        let first = at.iter().min().ok_or_else(|| wasmtime::Error::msg("empty poll list"))?;
        self.wait(*first).await;
        let now = self.now_ns();
        Ok((0..).zip(at).filter_map(|(place, at)| (at <= now).then_some(place)).collect())
    }
}

impl poll::HostPollable for Waiting<'_> {
    async fn ready(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<bool> {
        Ok(self.at_ns(&pollable)? <= self.now_ns())
    }

    async fn block(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        let at = self.at_ns(&pollable)?;
        self.wait(at).await;
        Ok(())
    }

    fn drop(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        self.0.timers.remove(&pollable.rep());
        poll::HostPollable::drop(&mut self.0.handles, pollable)
    }
}

impl monotonic_clock::Host for Waiting<'_> {
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

/// A standard stream that ends in the log of the run.
#[derive(Clone)]
struct LogStream {
    log: SharedLog,
    source: LogSource,
}

impl IsTerminal for LogStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for LogStream {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }
}

#[async_trait::async_trait]
impl Pollable for LogStream {
    async fn ready(&mut self) {}
}

impl OutputStream for LogStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.log.write(self.source, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(STREAM_PERMIT)
    }
}
