//! The clients that watch runs, and the runs whose clients have left.
//!
//! A *streamed* run (`Terms::streamed`) belongs to a client that reads it as a stream and has no other way to stop it than to
//! leave. Such a run is *abandoned* while no client watches it: a new message of its conversation may replace it, and it is
//! cancelled when the grace of the configuration is over. Other runs are never abandoned.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::{Duration, Instant},
};

use agent_host_config::OnDisconnect;
use agent_host_protocol::RunId;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::sleep_until};

use super::Runs;
use crate::record::{
    HostError,
    action::{Action, ActionStatus},
    terms::Terms,
};

/// Time in which the client that asked for a run opens its stream: the run counts as watched until then. The host opens the
/// stream in the same request, so only a client that left in between takes longer.
const OPENING: Duration = Duration::from_secs(10);

/// Time in which the host notices that a client has hung up: the request that follows may overtake the end of the connection.
const NOTICE: Duration = Duration::from_millis(500);

/// Clients by run. A run that no client watches or has left has no entry.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    watched: Mutex<WatchedRuns>,
    /// Notified when a deadline was added.
    armed: Notify,
    /// Notified when the last client of a run has left.
    left: Notify,
}

#[derive(Debug, Default)]
struct WatchedRuns {
    runs: HashMap<RunId, Presence>,
    /// Deadlines, soonest first. One that its run does not have any more is ignored.
    deadlines: BinaryHeap<Reverse<(Instant, RunId)>>,
}

/// The presence of clients at a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// The client that asked for it is about to open its stream.
    Expected { until: Instant },
    /// So many clients read it. One that has left without the end makes the run one whose client hung up.
    Watching { count: usize, hung_up: bool },
    /// The last client left before the end.
    Left { until: Instant },
}

/// The way in which a client stops watching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaveKind {
    /// The client has received the end of its request.
    Ended,
    /// Before the end.
    HungUp,
    /// The client has only looked: another client asked for the run.
    Looked,
}

impl WatchedRuns {
    fn arm(&mut self, run: RunId, presence: Presence) {
        let (Presence::Expected { until } | Presence::Left { until }) = presence else { return };
        self.runs.insert(run, presence);
        self.deadlines.push(Reverse((until, run)));
    }

    /// Takes the runs whose deadline has come.
    fn due(&mut self, now: Instant) -> Vec<RunId> {
        let mut due = Vec::new();
        while let Some(Reverse((until, run))) = self.deadlines.peek().copied().filter(|Reverse((until, _))| *until <= now) {
            self.deadlines.pop();
            let is_current = matches!(self.runs.get(&run),
                Some(Presence::Expected { until: at } | Presence::Left { until: at }) if *at == until);
            if is_current {
                self.runs.remove(&run);
                due.push(run);
            }
        }
        due
    }
}

impl Watchers {
    /// A client that asked for a run is about to open its stream.
    pub(crate) fn expect(&self, run: RunId) {
        let mut watched = self.watched.lock();
        if !matches!(watched.runs.get(&run), Some(Presence::Watching { .. })) {
            watched.arm(run, Presence::Expected { until: Instant::now() + OPENING });
            drop(watched);
            self.armed.notify_one();
        }
    }

    /// A client reads a run from now on, until [`Watchers::leave`].
    fn join(&self, run: RunId) {
        let mut watched = self.watched.lock();
        let presence = watched.runs.entry(run).or_insert(Presence::Watching { count: 0, hung_up: false });
        *presence = match *presence {
            Presence::Watching { count, hung_up } => Presence::Watching { count: count.saturating_add(1), hung_up },
            // A client that has come back, or the one that was expected. Until it has the end, the run is one that was left.
            Presence::Left { .. } => Presence::Watching { count: 1, hung_up: true },
            Presence::Expected { .. } => Presence::Watching { count: 1, hung_up: false },
        };
    }

    /// A client has left. Where it was the last, and one has hung up, the run is cancelled after `grace`.
    fn leave(&self, run: RunId, leaving: LeaveKind, grace: Option<Duration>) {
        let mut watched = self.watched.lock();
        let (left, before) = match watched.runs.get(&run) {
            Some(Presence::Watching { count, hung_up }) => (count.saturating_sub(1), *hung_up),
            _ => (0, false),
        };
        let hung_up = match leaving {
            LeaveKind::Ended => false,
            LeaveKind::HungUp => true,
            LeaveKind::Looked => before,
        };
        if left > 0 {
            watched.runs.insert(run, Presence::Watching { count: left, hung_up });
            return;
        }
        watched.runs.remove(&run);
        if let Some(grace) = grace.filter(|_| hung_up) {
            watched.arm(run, Presence::Left { until: Instant::now() + grace });
            self.armed.notify_one();
        }
        drop(watched);
        self.left.notify_waiters();
    }

    /// Waits until no client watches a run, at most `patience`.
    async fn wait_until_unwatched(&self, run: RunId, patience: Duration) {
        let left = async {
            loop {
                let left = self.left.notified();
                let mut left = std::pin::pin!(left);
                left.as_mut().enable();
                if !self.has(run) {
                    return;
                }
                left.await;
            }
        };
        // A run that is watched on stays.
        let _ = tokio::time::timeout(patience, left).await;
    }

    /// True if a client watches a run, or is about to.
    fn has(&self, run: RunId) -> bool {
        matches!(self.watched.lock().runs.get(&run), Some(Presence::Watching { .. } | Presence::Expected { .. }))
    }

    fn next(&self) -> Option<Instant> {
        self.watched.lock().deadlines.peek().map(|Reverse((until, _))| *until)
    }
}

/// A client that watches a run, until it is dropped.
#[derive(Debug)]
pub struct RunWatch {
    runs: RunsHandle,
    run: RunId,
    leaving: LeaveKind,
}

/// [`Runs`] without its insides in the text for debugging.
struct RunsHandle(Runs);

impl std::fmt::Debug for RunsHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Runs")
    }
}

impl RunWatch {
    /// The client has received the end of what it asked for: to leave is not to hang up any more.
    pub fn stream_ended(&mut self) {
        self.leaving = LeaveKind::Ended;
    }

    /// The client only looks: while it is there the run is watched, and nothing follows from its leaving.
    #[must_use]
    pub fn looking(mut self) -> Self {
        self.leaving = LeaveKind::Looked;
        self
    }
}

impl Drop for RunWatch {
    fn drop(&mut self) {
        let runs = &self.runs.0;
        // A host that goes down breaks off its streams itself.
        let grace = runs.grace().filter(|_| !runs.stopping.is_cancelled());
        runs.watchers.leave(self.run, self.leaving, grace);
    }
}

impl Runs {
    /// A client watches a run from now on.
    pub(crate) fn watch(&self, run: RunId) -> RunWatch {
        self.watchers.join(run);
        RunWatch { runs: RunsHandle(self.clone()), run, leaving: LeaveKind::HungUp }
    }

    /// The time that a run whose clients have left goes on; `None` where it goes on to its end.
    fn grace(&self) -> Option<Duration> {
        let setup = self.shared.setup();
        let agui = &setup.config.agui;
        (agui.on_disconnect == OnDisconnect::Cancel).then(|| Duration::from_millis(agui.disconnect_grace_ms))
    }

    /// A streamed run that the host found at its start: its clients were cut off, and have the grace to come back.
    pub(crate) fn await_client(&self, run: RunId) {
        self.watchers.leave(run, LeaveKind::HungUp, self.grace());
    }

    /// True if a run is streamed and no client watches it.
    pub(crate) fn is_abandoned(&self, run: RunId) -> Result<bool, HostError> {
        Ok(!self.watchers.has(run) && self.is_streamed(run)?)
    }

    /// Waits a moment for the client of a streamed run to leave, as one does that stops a run and sends the next message at
    /// once.
    pub(crate) async fn notice_hang_up(&self, run: RunId) -> Result<(), HostError> {
        if self.watchers.has(run) && self.is_streamed(run)? {
            self.watchers.wait_until_unwatched(run, NOTICE).await;
        }
        Ok(())
    }

    fn is_streamed(&self, run: RunId) -> Result<bool, HostError> {
        let Some(terms) = self.ledger.terms(run)? else { return Ok(false) };
        let terms: Terms = serde_json::from_str(terms.get())
            .map_err(|error| HostError::Internal(format!("run {run} has terms that cannot be read: {error}")))?;
        Ok(terms.streamed)
    }

    /// Cancels runs whose clients have left, when their grace is over, as long as the host lives.
    pub(crate) fn keep_watch(&self) {
        let runs = self.clone();
        tokio::spawn(async move {
            loop {
                let next = runs.watchers.next();
                let due = async {
                    match next {
                        Some(at) => sleep_until(at.into()).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = runs.stopping.cancelled() => return,
                    () = runs.watchers.armed.notified() => continue,
                    () = due => {}
                }
                let due = runs.watchers.watched.lock().due(Instant::now());
                // A reload may have changed what happens to them.
                if runs.grace().is_none() {
                    continue;
                }
                for run in due {
                    match runs.is_streamed(run) {
                        Ok(true) => {
                            let runs = runs.clone();
                            tokio::spawn(async move { runs.cancel_left(run).await });
                        }
                        Ok(false) => {}
                        Err(error) => tracing::error!(run_id = %run, %error, "a run without clients cannot be cancelled"),
                    }
                }
            }
        });
    }

    /// Cancels a run whose clients have left. One that waits for people costs nothing, and goes on when they have answered.
    async fn cancel_left(&self, run: RunId) {
        let asks = |actions: Vec<Action>| actions.iter().any(|action| action.status == ActionStatus::Open);
        if self.actions(run).is_ok_and(asks) {
            return;
        }
        match self.cancel(run, "the client disconnected".to_owned()).await {
            // A run that has ended meanwhile needs no cancellation.
            Ok(_) | Err(HostError::Conflict(_)) => {}
            Err(error) => tracing::error!(run_id = %run, %error, "a run without clients cannot be cancelled"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(watchers: &Watchers) -> Vec<RunId> {
        watchers.watched.lock().due(Instant::now() + 2 * OPENING)
    }

    #[test]
    fn a_run_is_watched_from_the_request_until_its_last_client_leaves() {
        let (watchers, run, grace) = (Watchers::default(), RunId::new(), Some(Duration::ZERO));
        assert!(!watchers.has(run));
        watchers.expect(run);
        assert!(watchers.has(run), "its client is about to come");
        watchers.join(run);
        watchers.join(run);
        watchers.expect(run);
        watchers.leave(run, LeaveKind::HungUp, grace);
        assert!(watchers.has(run), "one is left");
        assert_eq!(due(&watchers), []);
        watchers.leave(run, LeaveKind::Looked, grace);
        assert!(!watchers.has(run));
        assert_eq!(due(&watchers), [run]);
        assert!(watchers.watched.lock().runs.is_empty());
    }

    #[test]
    fn a_client_that_comes_back_in_time_keeps_its_run() {
        let (watchers, run, grace) = (Watchers::default(), RunId::new(), Some(Duration::ZERO));
        watchers.join(run);
        watchers.leave(run, LeaveKind::HungUp, grace);
        watchers.join(run);
        assert_eq!(due(&watchers), []);
        assert!(watchers.has(run));
        watchers.leave(run, LeaveKind::Looked, grace);
        assert_eq!(due(&watchers), [run], "the client that asked has not come back");
        watchers.join(run);
        watchers.leave(run, LeaveKind::HungUp, grace);
        watchers.join(run);
        watchers.leave(run, LeaveKind::Ended, grace);
        assert_eq!(due(&watchers), [], "a client with its end has not hung up");
        watchers.expect(run);
        assert_eq!(due(&watchers), [run], "a client that never opens its stream has left");
        watchers.join(run);
        watchers.leave(run, LeaveKind::HungUp, None);
        assert_eq!(due(&watchers), [], "the configuration lets runs go on");
    }
}
