//! Runs that wait for an executor, and executors that wait for a run.
//!
//! Assignment happens here, under one lock: a run leaves the queue for one executor, and a waiting executor receives the
//! first run that matches as soon as the run is there. The run itself writes the claim, before the executor receives an
//! answer.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use agent_host_protocol::{RunId, RunnerId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::lifecycle::claims::{ClaimedRun, Reply};

/// Peekers that hear of one run. One of them may take another run, and all of them be gone: the others peek again now and then.
const NOTIFIED: usize = 2;

/// Runs and executors that wait for each other.
#[derive(Default)]
pub(crate) struct WaitingRuns(Mutex<State>);

#[derive(Default)]
struct State {
    /// Runs of one kind are in one bucket, so that nobody looks at those that do not fit.
    buckets: HashMap<Arc<Kind>, BTreeMap<Place, Run>>,
    /// In the order in which they came.
    executors: BTreeMap<u64, Executor>,
    /// Executors that want to hear of a run, and may claim another one.
    peekers: BTreeMap<u64, Peeker>,
    last_ticket: u64,
    /// Every queue that a run has ever waited in: one that is empty is shown so.
    queues: BTreeSet<String>,
}

/// The properties that decide who may claim a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub(crate) queue: String,
    pub(crate) runner_id: RunnerId,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) workspace: Option<String>,
}

/// Higher priorities first, then older runs.
type Place = (Reverse<i32>, u64);

struct Run {
    run_id: RunId,
    sender: oneshot::Sender<Offer>,
}

struct Executor {
    filter: Arc<ClaimFilter>,
    sender: oneshot::Sender<AssignedRun>,
}

struct Peeker {
    filter: Arc<ClaimFilter>,
    sender: oneshot::Sender<()>,
}

/// A run that waits, as one that an executor could claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingRun {
    /// Higher ones come first.
    pub priority: i32,
    /// The older one comes first: ids sort by their time.
    pub run_id: RunId,
}

/// The runs that an executor asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ClaimFilter {
    /// Any of these. None: every queue.
    pub(crate) queues: Vec<String>,
    /// Any of these. None: every runner.
    pub(crate) runner_ids: Vec<RunnerId>,
    /// Labels of the executor.
    pub(crate) labels: BTreeMap<String, String>,
    /// If set, only runs of this workspace.
    pub(crate) workspace: Option<String>,
}

impl ClaimFilter {
    fn fits(&self, kind: &Kind) -> bool {
        (self.queues.is_empty() || self.queues.contains(&kind.queue))
            && (self.runner_ids.is_empty() || self.runner_ids.contains(&kind.runner_id))
            && kind.labels.iter().all(|(name, value)| self.labels.get(name) == Some(value))
            && (self.workspace.is_none() || self.workspace == kind.workspace)
    }
}

/// An executor that was given a run, and asks it for the claim.
pub(crate) struct Offer {
    pub(crate) executor_id: String,
    pub(crate) lease_ms: Option<u64>,
    /// True if the run starts with the claim.
    pub(crate) start: bool,
    pub(crate) reply: Reply<ClaimedRun>,
}

/// A run that was assigned to an executor. If it is dropped, the run goes back to its place.
pub(crate) struct AssignedRun {
    pub(crate) run_id: RunId,
    pub(crate) offer: oneshot::Sender<Offer>,
}

/// A place of a run. Dropping it leaves the queue.
pub(crate) struct QueuePlace<'a> {
    waiting: &'a WaitingRuns,
    kind: Arc<Kind>,
    place: Place,
    /// An error where the executor that was given the run has gone: it is to be put into the queue again.
    pub(crate) offered: oneshot::Receiver<Offer>,
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let mut state = self.waiting.0.lock();
        if let Some(bucket) = state.buckets.get_mut(&self.kind) {
            bucket.remove(&self.place);
            if bucket.is_empty() {
                state.buckets.remove(&self.kind);
            }
        }
    }
}

/// An executor that waits. Dropping it leaves.
pub(crate) struct Ticket<'a> {
    waiting: &'a WaitingRuns,
    number: u64,
    pub(crate) found: oneshot::Receiver<AssignedRun>,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.waiting.0.lock().executors.remove(&self.number);
    }
}

/// An executor that wants to hear of a run. Dropping it leaves.
pub(crate) struct PeekTicket<'a> {
    waiting: &'a WaitingRuns,
    number: u64,
    /// Told when a run that fits waits, or did for a moment.
    pub(crate) notified: oneshot::Receiver<()>,
}

impl Drop for PeekTicket<'_> {
    fn drop(&mut self) {
        self.waiting.0.lock().peekers.remove(&self.number);
    }
}

impl State {
    fn next_ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// The first run that fits.
    fn first(&self, filter: &ClaimFilter) -> Option<(Place, Arc<Kind>)> {
        let first = self.buckets.iter().filter(|(kind, _)| filter.fits(kind)).filter_map(|(kind, bucket)| {
            let (place, _) = bucket.first_key_value()?;
            Some((*place, Arc::clone(kind)))
        });
        first.min_by_key(|(place, _)| *place)
    }
}

impl WaitingRuns {
    /// Puts a run into the queue, or gives it to the executor that waits longest for such a one.
    pub(crate) fn enter(&self, kind: Kind, priority: i32, run_no: u64, run_id: RunId) -> QueuePlace<'_> {
        let (offer, offered) = oneshot::channel();
        let kind = Arc::new(kind);
        let place = (Reverse(priority), run_no);
        let queued = QueuePlace { waiting: self, kind: Arc::clone(&kind), place, offered };
        let mut found = AssignedRun { run_id, offer };
        let mut state = self.0.lock();
        loop {
            let first = state.executors.iter().find(|(_, executor)| executor.filter.fits(&kind)).map(|(number, _)| *number);
            let Some(executor) = first.and_then(|number| state.executors.remove(&number)) else { break };
            match executor.sender.send(found) {
                Ok(()) => {
                    drop(state);
                    return queued;
                }
                // The executor went away at the same moment.
                Err(back) => found = back,
            }
        }
        if !state.queues.contains(&kind.queue) {
            state.queues.insert(kind.queue.clone());
        }
        let notified: Vec<_> = state.peekers.extract_if(.., |_, peeker| peeker.filter.fits(&kind)).take(NOTIFIED).collect();
        state.buckets.entry(kind).or_default().insert(place, Run { run_id, sender: found.offer });
        drop(state);
        for (_, peeker) in notified {
            // It may have gone away at the same moment.
            let _ = peeker.sender.send(());
        }
        queued
    }

    /// The first run that fits, which stays where it is; else a place among those who hear of the next one.
    pub(crate) fn peek(&self, filter: &Arc<ClaimFilter>) -> Result<WaitingRun, PeekTicket<'_>> {
        let mut state = self.0.lock();
        if let Some(((Reverse(priority), run_no), kind)) = state.first(filter)
            && let Some(run) = state.buckets.get(&kind).and_then(|bucket| bucket.get(&(Reverse(priority), run_no)))
        {
            return Ok(WaitingRun { priority, run_id: run.run_id });
        }
        let (sender, notified) = oneshot::channel();
        let number = state.next_ticket();
        state.peekers.insert(number, Peeker { filter: Arc::clone(filter), sender });
        drop(state);
        Err(PeekTicket { waiting: self, number, notified })
    }

    /// The first run that fits; else a place among those who wait for one.
    pub(crate) fn claim(&self, filter: &Arc<ClaimFilter>) -> Result<AssignedRun, Ticket<'_>> {
        let mut state = self.0.lock();
        if let Some((place, kind)) = state.first(filter)
            && let Some(bucket) = state.buckets.get_mut(&kind)
            && let Some(run) = bucket.remove(&place)
        {
            if bucket.is_empty() {
                state.buckets.remove(&kind);
            }
            return Ok(AssignedRun { run_id: run.run_id, offer: run.sender });
        }
        let (sender, found) = oneshot::channel();
        let number = state.next_ticket();
        state.executors.insert(number, Executor { filter: Arc::clone(filter), sender });
        drop(state);
        Err(Ticket { waiting: self, number, found })
    }

    /// The number of waiting runs in one queue.
    pub(crate) fn depth(&self, queue: &str) -> usize {
        let state = self.0.lock();
        state.buckets.iter().filter(|(kind, _)| kind.queue == queue).map(|(_, bucket)| bucket.len()).sum()
    }

    /// The number of waiting runs in each queue.
    pub(crate) fn depths(&self) -> BTreeMap<String, u64> {
        let state = self.0.lock();
        let mut depths: BTreeMap<_, _> = state.queues.iter().map(|queue| (queue.clone(), 0)).collect();
        for (kind, bucket) in &state.buckets {
            *depths.entry(kind.queue.clone()).or_default() += bucket.len() as u64;
        }
        depths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(queue: &str) -> Kind {
        Kind { queue: queue.into(), runner_id: "plugin:a/b/c".parse().unwrap(), labels: BTreeMap::new(), workspace: None }
    }

    fn filter(queues: &[&str]) -> Arc<ClaimFilter> {
        Arc::new(ClaimFilter { queues: queues.iter().map(|queue| (*queue).to_owned()).collect(), ..ClaimFilter::default() })
    }

    fn claimed(waiting: &WaitingRuns, filter: &Arc<ClaimFilter>) -> Option<RunId> {
        waiting.claim(filter).ok().map(|found| found.run_id)
    }

    #[test]
    fn the_highest_priority_comes_first_then_the_oldest() {
        let waiting = WaitingRuns::default();
        let ids: Vec<_> = (0..4).map(|_| RunId::new()).collect();
        let _places: Vec<_> = [(0, 1, "a"), (5, 2, "b"), (5, 3, "a"), (0, 4, "c")]
            .into_iter()
            .zip(&ids)
            .map(|((priority, no, queue), id)| waiting.enter(kind(queue), priority, no, *id))
            .collect();
        assert_eq!(waiting.depths(), BTreeMap::from([("a".into(), 2), ("b".into(), 1), ("c".into(), 1)]));
        let any = filter(&[]);
        assert_eq!(claimed(&waiting, &filter(&["c"])), Some(ids[3]));
        let order: Vec<_> = std::iter::from_fn(|| claimed(&waiting, &any)).collect();
        assert_eq!(order, [ids[1], ids[2], ids[0]]);
        assert!(waiting.0.lock().buckets.is_empty());
    }

    #[test]
    fn labels_runners_and_workspaces_are_kept_apart() {
        let waiting = WaitingRuns::default();
        let id = RunId::new();
        let labels = BTreeMap::from([("gpu".to_owned(), "a100".to_owned())]);
        let special = Kind { labels: labels.clone(), workspace: Some("w".into()), ..kind("a") };
        let _place = waiting.enter(special, 0, 1, id);
        for no in [
            ClaimFilter::default(),
            ClaimFilter { labels: BTreeMap::from([("gpu".into(), "t4".into())]), ..ClaimFilter::default() },
            ClaimFilter { labels: labels.clone(), workspace: Some("other".into()), ..ClaimFilter::default() },
            ClaimFilter { labels: labels.clone(), runner_ids: vec!["plugin:x/y/z".parse().unwrap()], ..ClaimFilter::default() },
        ] {
            assert_eq!(claimed(&waiting, &Arc::new(no.clone())), None, "{no:?}");
        }
        let more = labels.into_iter().chain([("zone".to_owned(), "eu".to_owned())]).collect();
        assert_eq!(
            claimed(&waiting, &Arc::new(ClaimFilter { labels: more, workspace: Some("w".into()), ..ClaimFilter::default() })),
            Some(id)
        );
    }

    #[tokio::test]
    async fn the_longest_waiting_run_is_next_and_gone_ones_are_skipped() {
        let waiting = WaitingRuns::default();
        let any = filter(&[]);
        let (Err(gone), Err(other), Err(mut first), Err(mut second)) =
            (waiting.claim(&any), waiting.claim(&filter(&["b"])), waiting.claim(&any), waiting.claim(&any))
        else {
            panic!("there is nothing to claim")
        };
        drop(gone);
        let (one, two) = (RunId::new(), RunId::new());
        let _place = waiting.enter(kind("a"), 0, 1, one);
        assert_eq!((&mut first.found).await.unwrap().run_id, one);
        let mut place = waiting.enter(kind("a"), 0, 2, two);
        drop((&mut second.found).await.unwrap());
        assert!((&mut place.offered).await.is_err(), "who was given it is gone: the run hears of that");
        drop((first, second, other));
        assert!(waiting.0.lock().executors.is_empty());
    }

    #[tokio::test]
    async fn a_peek_takes_no_run() {
        let waiting = WaitingRuns::default();
        let (any, other) = (filter(&[]), filter(&["b"]));
        let (Err(mut peek), Err(mut of_b)) = (waiting.peek(&any), waiting.peek(&other)) else { panic!("nothing waits") };
        let (low, high) = (RunId::new(), RunId::new());
        let _low = waiting.enter(kind("a"), 0, 1, low);
        (&mut peek.notified).await.unwrap();
        let _high = waiting.enter(kind("a"), 3, 2, high);
        assert_eq!(waiting.peek(&any).ok(), Some(WaitingRun { priority: 3, run_id: high }));
        assert!(of_b.notified.try_recv().is_err(), "no run of its queue came");
        assert_eq!((claimed(&waiting, &any), claimed(&waiting, &any)), (Some(high), Some(low)), "a peek takes nothing");
        // A run that an executor waits for goes to it, and nobody else hears of it.
        let (Err(mut claim), Err(mut peek)) = (waiting.claim(&any), waiting.peek(&any)) else { panic!("nothing waits") };
        let _place = waiting.enter(kind("a"), 0, 3, RunId::new());
        assert!((&mut claim.found).await.is_ok() && peek.notified.try_recv().is_err());
        drop((peek, of_b, claim));
        assert!(waiting.0.lock().peekers.is_empty());
    }

    #[test]
    fn a_run_that_left_the_queue_is_not_assigned() {
        let waiting = WaitingRuns::default();
        drop(waiting.enter(kind("a"), 0, 1, RunId::new()));
        assert_eq!(claimed(&waiting, &filter(&[])), None);
    }
}
