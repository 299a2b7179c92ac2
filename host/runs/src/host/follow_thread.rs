//! Following a thread: the facts of its turns as they come, on through later turns.

use std::{collections::VecDeque, sync::Arc};

use agent_host_facts::{Fact, Projector};
use agent_host_ledger::Watch;
use agent_host_protocol::{Run, RunEvent, RunId};
use futures_util::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};

use super::{
    follow,
    threads::{FollowPlace, LedgerChildren, ThreadError, ThreadKey, Threads},
};
use crate::{lifecycle::Runs, record::HostError};

/// Follows one thread.
struct ThreadFollower {
    runs: Runs,
    threads: Threads,
    key: ThreadKey,
    after: u64,
    /// The turn that is followed, or comes next.
    index: usize,
    /// The number of the first fact of that turn.
    next: u64,
    current: Option<FollowedTurn>,
    /// Ended turns behind it.
    behind: VecDeque<RunId>,
    out: VecDeque<Fact>,
    /// Made before the first read of the thread, so that no turn is missed.
    next_turn: Watch,
}

struct FollowedTurn {
    run: Arc<Run>,
    projector: Projector,
    events: BoxStream<'static, Result<RunEvent, HostError>>,
}

/// The facts of a thread after the number `after`, as they come, on through later turns. The stream ends when the host goes
/// down.
///
/// The stream is pulled: a slow or stopped reader delays no other reader and no run.
pub(crate) fn follow_thread(
    runs: &Runs,
    threads: Threads,
    key: ThreadKey,
    after: u64,
) -> Result<impl Stream<Item = Result<Fact, HostError>> + Send + 'static + use<>, HostError> {
    let next_turn = match &key {
        ThreadKey::Run(run) => threads.ledger().watch(runs.record(*run)?.run_no),
        ThreadKey::Conversation(key) => threads.ledger().watch_turns(key.clone()),
    };
    let follower = ThreadFollower {
        next_turn,
        runs: runs.clone(),
        threads,
        key,
        after,
        index: 0,
        next: 1,
        current: None,
        behind: VecDeque::new(),
        out: VecDeque::new(),
    };
    Ok(stream::try_unfold(follower, |mut follower| async move { Ok(follower.next().await?.map(|fact| (fact, follower))) }))
}

impl ThreadFollower {
    async fn next(&mut self) -> Result<Option<Fact>, HostError> {
        loop {
            if let Some(fact) = self.out.pop_front() {
                return Ok(Some(fact));
            }
            if let Some(turn) = &mut self.current {
                let Some(event) = turn.events.next().await else { return Ok(None) };
                let children = LedgerChildren(self.threads.ledger().clone());
                let facts = turn.projector.push(&event?, &children);
                self.out.extend(facts.into_iter().filter(|fact| fact.sequence > self.after));
                if turn.projector.is_over() {
                    let next = turn.projector.next_sequence();
                    self.threads.keep_count(&turn.run, next - self.next);
                    (self.next, self.index, self.current) = (next, self.index + 1, None);
                }
                continue;
            }
            if !self.begin().await? && !self.wait().await {
                return Ok(None);
            }
        }
    }

    /// Begins the next turn; false where none has begun.
    async fn begin(&mut self) -> Result<bool, HostError> {
        let (threads, key) = (self.threads.clone(), self.key.clone());
        let (index, next, after) = (self.index, self.next, self.after);
        let behind = std::mem::take(&mut self.behind);
        let find = move || {
            if behind.is_empty() {
                threads.place(&key, index, next, after)
            } else {
                threads.place_behind(&key, index, next, behind)
            }
        };
        let found = tokio::task::spawn_blocking(find).await;
        let found = found.map_err(|error| HostError::Internal(error.to_string()))?;
        let FollowPlace { index, next, turn, behind } = match found {
            Ok(found) => found,
            Err(ThreadError::Ledger(error)) => return Err(error.into()),
            Err(error) => return Err(HostError::NotFound(error.to_string())),
        };
        (self.index, self.next, self.behind) = (index, next, behind);
        let Some((record, turn)) = turn else { return Ok(false) };
        let events = follow::follow(&self.runs, record.run.run_id, 0)?.boxed();
        let mut projector = Projector::new(turn);
        self.out.extend(projector.begin().into_iter().filter(|fact| fact.sequence > self.after));
        self.current = Some(FollowedTurn { run: record.run, projector, events });
        Ok(true)
    }

    /// Waits until another turn may have begun; false when the host goes down.
    async fn wait(&mut self) -> bool {
        tokio::select! {
            () = self.next_turn.changed() => !self.runs.stopping.is_cancelled(),
            () = self.runs.stopping.cancelled() => false,
        }
    }
}
