//! WASI with nothing in it: no environment, no arguments, no files, no sockets.
//!
//! Guests in every language import WASI even where they use none of it, so it is there. What is left of it are
//! clocks, bounded randomness, and standard output and error, which go to the log of the run.

use std::sync::Arc;

use bytes::Bytes;
use wasmtime_wasi::{
    WasiCtx, WasiCtxBuilder,
    cli::{IsTerminal, StdoutStream},
    p2::{OutputStream, Pollable, StreamResult},
};

use crate::calls::{LogSource, SharedLog};

/// Random bytes in one call. More is asked only by who wants the host to work.
const MAX_RANDOM_BYTES: u64 = 64 * 1024;

/// Bytes that a guest may write to a standard stream in one call: the log bounds the total.
const STREAM_PERMIT: usize = 64 * 1024;

/// A context of WASI with nothing in it but clocks, randomness and the log.
pub(crate) fn inert(log: &SharedLog) -> WasiCtx {
    WasiCtxBuilder::new()
        .stdout(LogStream { log: Arc::clone(log), source: LogSource::Stdout })
        .stderr(LogStream { log: Arc::clone(log), source: LogSource::Stderr })
        .max_random_size(MAX_RANDOM_BYTES)
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false)
        .build()
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
