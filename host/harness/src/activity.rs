//! Connections on which nothing is sent any more.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, sleep},
};

/// The time of the last byte of a connection.
#[derive(Clone)]
pub(crate) struct Activity {
    began: Instant,
    /// Milliseconds after `began`.
    last: Arc<AtomicU64>,
}

impl Default for Activity {
    fn default() -> Self {
        Self { began: Instant::now(), last: Arc::default() }
    }
}

impl Activity {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn note(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    /// Resolves when there was no byte for `idle`.
    pub(crate) async fn is_over(&self, idle: Duration) {
        loop {
            let quiet = Duration::from_millis(self.now().saturating_sub(self.last.load(Ordering::Relaxed)));
            match idle.checked_sub(quiet) {
                Some(rest) if !rest.is_zero() => sleep(rest).await,
                _ => return,
            }
        }
    }
}

/// A stream whose bytes are noted: all bytes of a connection pass it, in one direction or the other.
pub(crate) struct Watched<S> {
    pub(crate) stream: S,
    pub(crate) activity: Activity,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.activity.note();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_ready() {
            self.activity.note();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_is_over_when_no_byte_has_passed_for_long() {
        let activity = Activity::default();
        let over = activity.is_over(Duration::from_millis(150));
        let noting = async {
            for _ in 0..4 {
                sleep(Duration::from_millis(60)).await;
                activity.note();
            }
        };
        let began = Instant::now();
        tokio::join!(over, noting);
        assert!(began.elapsed() >= Duration::from_millis(380), "{:?}", began.elapsed());
    }
}
