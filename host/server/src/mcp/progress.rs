//! Progress of a request: what the tool reports, and a sign of life while nothing is reported, so that no client gives up.

use std::time::Duration;

use futures_util::{Stream, StreamExt};
use rmcp::{
    Peer, RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Time between two signs of life. Clients give up after 60 s and more.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
/// Progress of a sign of life: progress increases with each notification.
const STEP: f64 = 0.001;

/// A report of how far a request is.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Report {
    pub(super) progress: f64,
    pub(super) total: Option<f64>,
    pub(super) message: Option<String>,
}

/// The notifications of one request. Without a token of the client there are none.
pub(super) struct Progress {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    last: f64,
    signs: Interval,
}

impl Progress {
    pub(super) fn new(peer: Peer<RoleServer>, token: Option<ProgressToken>) -> Self {
        let mut signs = interval_at(Instant::now() + SIGN_OF_LIFE, SIGN_OF_LIFE);
        signs.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { peer, token, last: 0.0, signs }
    }

    /// True if the client wants notifications.
    pub(super) fn is_wanted(&self) -> bool {
        self.token.is_some()
    }

    /// Does something, and notifies the client of `reports` and of time that passes. `waiting` is the message of a sign of life.
    pub(super) async fn during<T>(
        mut self,
        work: impl Future<Output = T>,
        reports: impl Stream<Item = Report>,
        waiting: &str,
    ) -> T {
        let mut work = std::pin::pin!(work);
        let mut reports = std::pin::pin!(reports.fuse());
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                Some(report) = reports.next() => self.notify(report).await,
                () = self.sign_of_life() => self.say_alive(waiting).await,
            }
        }
    }

    /// Waits until the client is to be told that the request is alive; for ever where it does not want to be told.
    pub(super) async fn sign_of_life(&mut self) {
        if self.is_wanted() {
            self.signs.tick().await;
        } else {
            std::future::pending().await
        }
    }

    /// Tells the client that the request is alive.
    pub(super) async fn say_alive(&mut self, waiting: &str) {
        let progress = self.last + STEP;
        self.notify(Report { progress, total: None, message: Some(waiting.to_owned()) }).await;
    }

    /// Tells the client one step more.
    pub(super) async fn say(&mut self, message: String) {
        let progress = self.last.floor() + 1.0;
        self.notify(Report { progress, total: None, message: Some(message) }).await;
    }

    async fn notify(&mut self, report: Report) {
        let Some(token) = &self.token else { return };
        self.last = increased(self.last, report.progress);
        let mut param = ProgressNotificationParam::new(token.clone(), self.last);
        param.total = report.total;
        param.message = report.message;
        // A client that has gone is noticed by its transport.
        drop(self.peer.notify_progress(param).await);
        self.signs.reset();
    }
}

/// The progress to say: a tool may report the same twice.
fn increased(last: f64, reported: f64) -> f64 {
    if reported > last { reported } else { last + STEP }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_increases() {
        let mut last = 0.0;
        for reported in [0.0, 1.0, 1.0, 0.5, f64::NAN, 2.0] {
            let next = increased(last, reported);
            assert!(next > last, "{reported}");
            last = next;
        }
        assert!((last - 2.0).abs() < f64::EPSILON);
    }
}
