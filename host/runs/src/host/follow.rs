//! Following a run or a feed of the host: what is committed, in order, without a gap, as it comes.

use std::{collections::VecDeque, time::Duration};

use agent_host_ledger::{FeedBounds, FeedStep, Ledger, LedgerError};
use agent_host_protocol::{RunEvent, RunId, page::Direction};
use futures_util::{
    Stream,
    stream::{self, BoxStream},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{lifecycle::Runs, record::HostError};

/// Events read at one time, at first and at most. A follower holds one such piece and nothing else, however slow it is.
const FIRST_PIECE: usize = 16;
const PIECE: usize = 256;
/// Target size of one read, in bytes: thousands of idle followers must not exhaust the memory of the host.
const PIECE_BYTES: usize = 64 * 1024;

/// Items of a feed that one read examines: about a millisecond.
const EXAMINED: usize = 256;
/// Items of a feed that one read gives at most: a follower holds them.
const FEED_PIECE: u32 = 16;
/// Pause of a follower of a feed after a commit, so that a busy host wakes it some twenty times a second.
const FEED_PAUSE: Duration = Duration::from_millis(50);

struct Follower {
    ledger: Ledger,
    run_id: RunId,
    run_no: u64,
    after: u64,
    read: std::vec::IntoIter<RunEvent>,
    /// The number of events to read next: smaller if events are large.
    piece: usize,
    watch: agent_host_ledger::Watch,
    ended: bool,
    stopping: CancellationToken,
}

/// The committed events of a run after sequence `after`, as they come. The stream ends after the terminal event, or when
/// the host goes down.
///
/// The stream is pulled: a slow or stopped reader delays no other reader and no run.
pub(crate) fn follow(
    runs: &Runs,
    id: RunId,
    after: u64,
) -> Result<impl Stream<Item = Result<RunEvent, HostError>> + Send + 'static + use<>, HostError> {
    let ledger = runs.ledger.clone();
    let record = runs.record(id)?;
    // A run that has ended has nothing to wait for, even when all of it was read.
    let ended = record.run.status.is_terminal() && after >= record.run.last_sequence;
    let follower = Follower {
        watch: ledger.watch(record.run_no),
        ledger,
        run_id: id,
        run_no: record.run_no,
        after,
        read: Vec::new().into_iter(),
        piece: FIRST_PIECE,
        ended,
        stopping: runs.stopping.clone(),
    };
    Ok(stream::try_unfold(follower, |mut follower| async move { Ok(follower.next().await?.map(|event| (event, follower))) }))
}

impl Follower {
    async fn next(&mut self) -> Result<Option<RunEvent>, HostError> {
        loop {
            if self.ended {
                return Ok(None);
            }
            if let Some(event) = self.read.next() {
                self.after = event.sequence;
                self.ended = event.is_terminal();
                return Ok(Some(event));
            }
            let read = match self.ledger.run_events_after(self.run_no, self.run_id, self.after, self.piece) {
                Ok(read) => read,
                // The host shuts down, and the run continues after the next start: followers connect again.
                Err(LedgerError::Unavailable(_)) if self.stopping.is_cancelled() => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            if read.is_empty() {
                self.watch.changed().await;
            }
            if let Some(largest) = read.iter().map(|event| event.data.get().len()).max() {
                self.piece = (PIECE_BYTES / largest.max(1)).clamp(1, PIECE);
            }
            self.read = read.into_iter();
        }
    }
}

/// A feed that is followed.
pub struct FollowedFeed<T> {
    /// The cursor after which the items come.
    pub after: String,
    /// The items as they come, each with its cursor.
    pub items: BoxStream<'static, Result<(String, T), HostError>>,
}

struct FeedFollower<T, R> {
    ledger: Ledger,
    read: R,
    position: u64,
    items: VecDeque<(u64, T)>,
    commits: watch::Receiver<()>,
    stopping: CancellationToken,
}

/// The items of a feed after `after`, each with its number, as they come. The stream ends when the host goes down.
///
/// The stream is pulled: a slow or stopped reader delays no other reader and no write.
pub(crate) fn follow_feed<T: Send + 'static>(
    runs: &Runs,
    after: u64,
    read: impl Fn(&Ledger, FeedBounds) -> Result<FeedStep<T>, LedgerError> + Send + 'static,
) -> impl Stream<Item = Result<(u64, T), HostError>> + Send + 'static {
    let ledger = runs.ledger.clone();
    let commits = ledger.commits();
    let (items, stopping) = (VecDeque::new(), runs.stopping.clone());
    let follower = FeedFollower { ledger, read, position: after, items, commits, stopping };
    stream::try_unfold(follower, |mut follower| async move { Ok(follower.next().await?.map(|item| (item, follower))) })
}

impl<T, R: Fn(&Ledger, FeedBounds) -> Result<FeedStep<T>, LedgerError>> FeedFollower<T, R> {
    async fn next(&mut self) -> Result<Option<(u64, T)>, HostError> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Ok(Some(item));
            }
            let bounds = FeedBounds { direction: Direction::Forward, from: self.position, limit: FEED_PIECE, examined: EXAMINED };
            let FeedStep { items, position, has_more } = match (self.read)(&self.ledger, bounds) {
                Ok(step) => step,
                // The host shuts down: followers connect again.
                Err(LedgerError::Unavailable(_)) if self.stopping.is_cancelled() => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            (self.items, self.position) = (items.into(), position);
            if has_more {
                tokio::task::yield_now().await;
            } else if self.items.is_empty() {
                tokio::select! {
                    // An error means that the ledger is gone, which the next read says.
                    _ = self.commits.changed() => {}
                    () = self.stopping.cancelled() => return Ok(None),
                }
                tokio::time::sleep(FEED_PAUSE).await;
            }
        }
    }
}
