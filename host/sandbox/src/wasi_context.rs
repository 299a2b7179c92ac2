//! The WASI contexts of one guest: no environment, no arguments, no files, no sockets.
//!
//! Guests in every language import WASI even where they use none of it, so it is there. The host provides of it the
//! clocks and random bytes of the run's [`World`], and standard output and error, which go to the log of the run.

use std::sync::Arc;

use bytes::Bytes;
use wasmtime_wasi::{
    WasiCtx, WasiCtxBuilder,
    cli::{IsTerminal, StdoutStream},
    p2::{OutputStream, Pollable, StreamResult},
};
use wasmtime_wasi_http::WasiHttpCtx;

use crate::{
    calls::{LogSource, SharedLog},
    world::{Purpose, World},
};

/// Random bytes in one call. More is asked only by who wants the host to work.
const MAX_RANDOM_BYTES: u64 = 64 * 1024;

/// Bytes that a guest may write to a standard stream in one call: the log bounds the total.
const STREAM_PERMIT: usize = 64 * 1024;

/// Names and values of one set of headers. Servers commonly take 8 to 16 KiB; a guest can hold as many sets as it can
/// hold handles.
const MAX_FIELDS_BYTES: usize = 32 * 1024;

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

/// A context of `wasi:http` with the bound of the headers that a guest builds.
pub(crate) fn http() -> WasiHttpCtx {
    let mut context = WasiHttpCtx::new();
    context.set_field_size_limit(MAX_FIELDS_BYTES);
    context
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
