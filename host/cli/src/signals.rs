//! Being asked to end.

use std::io;

/// The exit code of a process that a second signal ended: that of a shell for SIGINT.
pub(crate) const INTERRUPTED: i32 = 130;

/// Signals that ask the process to end. From when this exists they no longer end it by themselves.
#[cfg(unix)]
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// The next one. May be dropped and called again; none is lost.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Signals that ask for the configuration to be read again. From when this exists they no longer end the process.
#[cfg(unix)]
pub(crate) struct Hangups(tokio::signal::unix::Signal);

#[cfg(unix)]
impl Hangups {
    pub(crate) fn listen() -> io::Result<Self> {
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).map(Self)
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        self.0.recv().await;
    }
}

/// A system without SIGHUP.
#[cfg(not(unix))]
pub(crate) struct Hangups;

#[cfg(not(unix))]
impl Hangups {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self)
    }

    /// Never returns.
    pub(crate) async fn next(&mut self) {
        std::future::pending().await
    }
}

/// Signals that ask the process to end.
#[cfg(not(unix))]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self)
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
