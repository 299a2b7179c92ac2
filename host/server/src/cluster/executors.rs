//! Executors of no workspace, which take runs of every partition.
//!
//! Such an executor is registered in each partition, under one credential. A request of it, or about it, goes to all of them; what they answer
//! is merged. For a claim, each partition shows the run that it would give ([`RequestPart::Peek`]), and the first one of all, by priority and age,
//! is claimed where it is. A partition without an owner is not waited for by a claim. An executor of a workspace belongs to one partition.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use agent_host_protocol::{HashSlot, auth::executor_of};
use agent_host_runs::{ClaimPeek, Executor, ExecutorState, HostError, HostProcess, WaitingRun};
use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::{
    StreamExt,
    future::{BoxFuture, join_all},
    stream::{self, FuturesUnordered},
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value, value::RawValue};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    listeners::ClusterPartition,
    partitioned::{PartitionedRequest, is_unknown_there, unreadable, value, whole_events},
};
use crate::http::{
    Problem, ProblemCode, body,
    forwarded::{FailFast, RequestPart},
};

/// Largest body of a request of an executor that goes to all partitions.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// News of an executor are no longer.
const NEWS_BYTES: usize = 1 << 20;
/// A partition that cannot show its runs is asked again after so long.
const PAUSE: Duration = Duration::from_millis(500);
/// A partition that does not answer a peek so soon is left out of a claim.
const SOON: Duration = Duration::from_secs(1);
/// Runs that others claim before one request does, at most.
const MAX_MISSES: usize = 64;
/// Peeks that wait at partitions at the same time: each may have a connection to another host.
static PEEKS: Semaphore = Semaphore::const_new(1024);

/// A request of an executor of no workspace, or about one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExecutorRequest {
    Register,
    Claim,
    /// An executor is shown, changed or deregistered.
    One,
    News,
}

impl ExecutorRequest {
    /// The request at a path, if it is one that goes to all partitions: executors of no workspace have ids with its slot. Whoever has no credential of
    /// one claims nothing, as the first partition says.
    pub(super) fn at(method: &Method, path: &str, is_executor: bool) -> Option<Self> {
        if ![Method::GET, Method::POST, Method::DELETE].contains(method) {
            return None;
        }
        match path {
            "/api/v1/executors" => return (method == Method::POST).then_some(Self::Register),
            "/api/v1/claims" => return (method == Method::POST && is_executor).then_some(Self::Claim),
            _ => {}
        }
        let (id, rest) = path.strip_prefix("/api/v1/executors/").map(|rest| rest.split_once('/').unwrap_or((rest, "")))?;
        if HashSlot::of_id(id) != Some(HashSlot::of_workspace(None)) {
            return None;
        }
        match rest {
            "" | "heartbeat" => Some(Self::One),
            "events" => (method == Method::GET).then_some(Self::News),
            _ => None,
        }
    }
}

/// The answer to a request that goes to all partitions.
pub(super) async fn answer(
    partitions: &[ClusterPartition],
    process: &HostProcess,
    kind: ExecutorRequest,
    request: Request,
) -> Response {
    let (head, sent) = PartitionedRequest::new(request);
    let answered = match (kind, body::read(sent, MAX_BODY_BYTES).await) {
        (_, Err(problem)) => Err(problem.into_response()),
        (ExecutorRequest::Register, Ok(body)) => {
            let partitions = partitions.to_vec();
            // A client that disconnects does not interrupt the registration.
            let registering = tokio::spawn(async move { register(&partitions, &head, body).await });
            match registering.await {
                Ok(registered) => registered,
                Err(error) => Err(unreadable(error)),
            }
        }
        (ExecutorRequest::Claim, Ok(body)) => claim(partitions, process, &head, &body).await,
        (ExecutorRequest::One, Ok(body)) => one(partitions, &head, &body).await,
        (ExecutorRequest::News, Ok(_)) => news(partitions, &head).await,
    };
    answered.unwrap_or_else(|refusal| refusal)
}

async fn register(partitions: &[ClusterPartition], head: &PartitionedRequest, body: Bytes) -> Result<Response, Response> {
    #[derive(Deserialize)]
    struct Registered {
        credential: String,
        workspace: Option<String>,
    }
    if partitions.iter().any(ClusterPartition::is_moving) {
        let detail = "an executor of no workspace is registered in each partition, and one of them has no owner at the moment: send the request again";
        return Err(Problem::new(ProblemCode::PartitionMoving, detail).into_response());
    }
    let (first, _) = first_and_others(partitions).map_err(IntoResponse::into_response)?;
    let (parts, answer) = first.answer(head.same(body.clone())).await.into_parts();
    if parts.status != StatusCode::CREATED {
        return Ok(Response::from_parts(parts, answer));
    }
    let answer = axum::body::to_bytes(answer, 2 * MAX_BODY_BYTES).await.map_err(unreadable)?;
    let Registered { credential, workspace } = serde_json::from_slice(&answer).map_err(unreadable)?;
    if workspace.is_none() {
        register_in_others(partitions, body, &credential).await?;
    }
    Ok(Response::from_parts(parts, Body::from(answer)))
}

fn first_and_others(partitions: &[ClusterPartition]) -> Result<(&ClusterPartition, &[ClusterPartition]), Problem> {
    partitions.split_first().ok_or_else(|| Problem::internal("the cluster has no partition"))
}

/// Registers an executor of no workspace, which the first partition has registered, in the others. Where one of them refuses it, the executor is
/// deregistered in all partitions.
///
/// # Errors
/// The answer of the partition that refuses it.
pub(super) async fn register_in_others(
    partitions: &[ClusterPartition],
    registration: Bytes,
    credential: &str,
) -> Result<(), Response> {
    let (_, others) = first_and_others(partitions).map_err(IntoResponse::into_response)?;
    let requests = others.iter().map(|partition| async {
        let request = own_request(Method::POST, "/api/v1/executors", credential, registration.clone());
        let mut request = request.map_err(IntoResponse::into_response)?;
        request.extensions_mut().insert(RequestPart::Registration { credential: credential.to_owned() });
        value::<IgnoredAny>(partition.answer(request).await).await
    });
    let refusal = join_all(requests).await.into_iter().find_map(Result::err);
    if refusal.is_some() {
        deregister(partitions, credential);
    }
    refusal.map_or(Ok(()), Err)
}

/// Deregisters an executor in these partitions, in the background: each may have to wait for an owner.
pub(super) fn deregister(partitions: &[ClusterPartition], credential: &str) {
    let path = format!("/api/v1/executors/{}", executor_of(credential).unwrap_or_default());
    for partition in partitions {
        if let Ok(request) = own_request(Method::DELETE, &path, credential, Bytes::new()) {
            let partition = partition.clone();
            tokio::spawn(async move { drop(partition.answer(request).await) });
        }
    }
}

/// A request of this host for an executor.
fn own_request(method: Method, path: &str, credential: &str, body: Bytes) -> Result<Request, Problem> {
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
    request.header(header::AUTHORIZATION, format!("Bearer {credential}")).body(Body::from(body)).map_err(Problem::internal)
}

/// Shows, changes or deregisters an executor. Each partition judges the sender.
async fn one(partitions: &[ClusterPartition], head: &PartitionedRequest, body: &Bytes) -> Result<Response, Response> {
    let (first, others) = first_and_others(partitions).map_err(IntoResponse::into_response)?;
    let ask_others = || join_all(others.iter().map(|partition| partition.answer(head.same(body.clone()))));
    if head.parts().method == Method::DELETE {
        // The first comes last: as long as it knows the executor, the request can be repeated.
        let answers = ask_others().await;
        let failed = answers.into_iter().find(|answer| !answer.status().is_success() && !is_unknown_there(answer));
        return match failed {
            Some(failed) => Err(failed),
            None => Ok(first.answer(head.same(Bytes::new())).await),
        };
    }
    let first = first.answer(head.same(body.clone())).await;
    if !first.status().is_success() {
        return Ok(first);
    }
    let (mut parts, answer) = first.into_parts();
    let mut executor: Executor = value(Response::new(answer)).await?;
    for answer in ask_others().await.into_iter().filter(|answer| !is_unknown_there(answer)) {
        add(&mut executor, value(answer).await?);
    }
    let body = serde_json::to_vec(&executor).map_err(unreadable)?;
    parts.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(parts, Body::from(body)))
}

/// The news of all partitions. The stream breaks off where that of one does.
async fn news(partitions: &[ClusterPartition], head: &PartitionedRequest) -> Result<Response, Response> {
    let (first, others) = first_and_others(partitions).map_err(IntoResponse::into_response)?;
    let first = first.answer(head.same(Bytes::new())).await;
    if !first.status().is_success() {
        return Ok(first);
    }
    let (parts, body) = first.into_parts();
    let mut bodies = vec![body];
    for answer in join_all(others.iter().map(|partition| partition.answer(head.same(Bytes::new())))).await {
        if answer.status().is_success() {
            bodies.push(answer.into_body());
        } else if !is_unknown_there(&answer) {
            return Err(answer);
        }
    }
    let pieces = stream::select_all(bodies.into_iter().map(|body| whole_events(body, NEWS_BYTES).boxed()));
    let pieces = pieces.scan(false, |is_over, piece| {
        let goes_on = !std::mem::replace(is_over, piece.is_err());
        std::future::ready(goes_on.then_some(piece))
    });
    Ok(Response::from_parts(parts, Body::from_stream(pieces)))
}

/// A partition, and its answer to a peek.
type PeekAnswer = (usize, Result<ClaimPeek, Response>);

/// A claim of the first run of all partitions, by priority, then by age.
struct Claim<'a> {
    partitions: &'a [ClusterPartition],
    head: &'a PartitionedRequest,
    request: Map<String, Value>,
}

async fn claim(
    partitions: &[ClusterPartition],
    process: &HostProcess,
    head: &PartitionedRequest,
    body: &Bytes,
) -> Result<Response, Response> {
    let request: Map<String, Value> = match body.is_empty() {
        true => Map::new(),
        false => {
            body::require_json(&head.parts().headers).and_then(|()| body::parse(body)).map_err(IntoResponse::into_response)?
        }
    };
    let wait = match request.get("wait_ms") {
        None => 0,
        Some(wait) => wait.as_u64().ok_or_else(|| Problem::invalid("wait_ms", "`wait_ms` is a number of ms").into_response())?,
    };
    let wait = wait.min(process.config().limits.claim_wait_ms);
    Claim { partitions, head, request }.answer(Instant::now() + Duration::from_millis(wait)).await
}

impl Claim<'_> {
    async fn answer(&self, until: Instant) -> Result<Response, Response> {
        let mut shown = self.first_peeks().await?;
        let (mut peeks, mut peeking) = (FuturesUnordered::new(), BTreeSet::new());
        let mut misses = 0;
        while misses < MAX_MISSES {
            if let Some((at, _)) = first_of(&shown) {
                shown.remove(&at);
                let answer = self.ask(at, Duration::ZERO, None).await;
                match answer.status() {
                    // Another executor was faster: the partition shows what it has now.
                    StatusCode::NO_CONTENT => {
                        misses += 1;
                        shown.extend(self.peek_now(at).await.1.ok().and_then(|peek| peek.first).map(|run| (at, run)));
                    }
                    StatusCode::SERVICE_UNAVAILABLE => {
                        nothing_was_done(answer).await?;
                        misses += 1;
                        if peeking.insert(at) {
                            peeks.push(self.peek(at, until, PAUSE));
                        }
                    }
                    _ => return Ok(answer),
                }
                continue;
            }
            if Instant::now() >= until {
                break;
            }
            for at in (0..self.partitions.len()).filter(|at| peeking.insert(*at)) {
                peeks.push(self.peek(at, until, Duration::ZERO));
            }
            tokio::select! {
                Some((at, peek)) = peeks.next() => match peek {
                    Ok(peek) => {
                        peeking.remove(&at);
                        shown.extend(peek.first.map(|run| (at, run)));
                    }
                    // It does not know the executor, or that has no free slot any more: what it has is not for this claim.
                    Err(refusal) if refusal.status().is_client_error() => {
                        if at == 0 {
                            return Err(refusal);
                        }
                    }
                    Err(_) => peeks.push(self.peek(at, until, PAUSE)),
                },
                () = tokio::time::sleep_until(until) => break,
            }
        }
        Ok(StatusCode::NO_CONTENT.into_response())
    }

    /// The runs that all partitions show, the first one before the others: it knows every executor. One without an owner is left out.
    async fn first_peeks(&self) -> Result<BTreeMap<usize, WaitingRun>, Response> {
        let (mut shown, mut held, mut refused) = (BTreeMap::new(), 0, None);
        let (_, first) = self.peek_now(0).await;
        if let Err(refusal) = &first
            && refusal.status().is_client_error()
        {
            return first.map(|_| shown);
        }
        let others = join_all((1..self.partitions.len()).map(|at| self.peek_now(at))).await;
        let mut is_known = false;
        for (at, peek) in std::iter::once((0, first)).chain(others) {
            match peek {
                Ok(peek) => {
                    is_known = true;
                    held += peek.held;
                    if held >= peek.slots as usize {
                        return Err(Problem::from(HostError::no_free_slot(held, peek.slots)).into_response());
                    }
                    shown.extend(peek.first.map(|run| (at, run)));
                }
                Err(refusal) if refusal.status().is_client_error() && !is_unknown_there(&refusal) => return Err(refusal),
                Err(refusal) => refused = refused.or(Some(refusal)),
            }
        }
        match refused {
            Some(refusal) if !is_known => Err(refusal),
            _ => Ok(shown),
        }
    }

    /// The run that a partition would give now. One that does not answer soon is left out.
    async fn peek_now(&self, at: usize) -> PeekAnswer {
        let peek = async { value(self.ask(at, Duration::ZERO, Some(RequestPart::Peek)).await).await };
        let late = || Problem::new(ProblemCode::PartitionMoving, "the owner of the partition does not answer");
        match tokio::time::timeout(SOON, peek).await {
            Ok(peek) => (at, peek),
            Err(_) => (at, Err(late().into_response())),
        }
    }

    /// The run that a partition would give, after a pause and until then at most. Where too many wait at partitions, they are asked now and then.
    fn peek(&self, at: usize, until: Instant, pause: Duration) -> BoxFuture<'_, PeekAnswer> {
        Box::pin(async move {
            tokio::time::sleep(pause).await;
            let Ok(_place) = PEEKS.try_acquire() else {
                tokio::time::sleep(PAUSE).await;
                return self.peek_now(at).await;
            };
            let left = until.saturating_duration_since(Instant::now());
            (at, value(self.ask(at, left, Some(RequestPart::Peek)).await).await)
        })
    }

    async fn ask(&self, at: usize, wait: Duration, part: Option<RequestPart>) -> Response {
        match self.partitions.get(at) {
            Some(partition) => partition.answer(self.request(wait, part)).await,
            None => StatusCode::NO_CONTENT.into_response(),
        }
    }

    /// The request to a partition, which waits for a run for so long, and for an owner not at all.
    fn request(&self, wait: Duration, part: Option<RequestPart>) -> Request {
        let mut request = self.request.clone();
        request.insert("wait_ms".to_owned(), u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into());
        let mut request = self.head.request(self.head.parts().uri.clone(), Value::Object(request).to_string().into(), part);
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.extensions_mut().insert(FailFast);
        request
    }
}

/// Fails with an answer that does not say that nothing was done: a run may be claimed.
async fn nothing_was_done(answer: Response) -> Result<(), Response> {
    #[derive(Deserialize)]
    struct Refusal {
        code: String,
    }
    let (parts, body) = answer.into_parts();
    let body = axum::body::to_bytes(body, MAX_BODY_BYTES).await.map_err(unreadable)?;
    let refusal = serde_json::from_slice::<Refusal>(&body).ok();
    match refusal.and_then(|refusal| ProblemCode::from_name(&refusal.code)) {
        Some(ProblemCode::PartitionMoving | ProblemCode::PartitionUnreachable | ProblemCode::ShuttingDown) => Ok(()),
        _ => Err(Response::from_parts(parts, Body::from(body))),
    }
}

/// The first of the runs that partitions have shown, by priority, then by age.
fn first_of(shown: &BTreeMap<usize, WaitingRun>) -> Option<(usize, WaitingRun)> {
    let first = shown.iter().min_by_key(|(_, run)| (Reverse(run.priority), run.run_id));
    first.map(|(at, run)| (*at, *run))
}

/// Adds what another partition knows of the same executor.
fn add(executor: &mut Executor, other: Executor) {
    executor.held.extend(other.held);
    executor.held.sort_unstable();
    executor.last_seen_at = executor.last_seen_at.max(other.last_seen_at);
    let silence = |state: ExecutorState| match state {
        ExecutorState::Online => 0,
        ExecutorState::Stale => 1,
        ExecutorState::Gone => 2,
    };
    if silence(other.state) < silence(executor.state) {
        executor.state = other.state;
    }
}

/// The executors in the lists of all partitions, each once.
pub(super) fn merged_list(items: impl Iterator<Item = Box<RawValue>>) -> serde_json::Result<Vec<Box<RawValue>>> {
    let mut places = HashMap::new();
    let mut executors = Vec::<Executor>::new();
    for item in items {
        let executor: Executor = serde_json::from_str(item.get())?;
        let place = *places.entry(executor.executor_id.clone()).or_insert(executors.len());
        match executors.get_mut(place) {
            Some(known) => add(known, executor),
            None => executors.push(executor),
        }
    }
    executors.iter().map(serde_json::value::to_raw_value).collect()
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::RunId;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_run_of_all_partitions_has_the_highest_priority_and_is_the_oldest() {
        let ids: Vec<_> = (0..3).map(|_| RunId::new()).collect();
        let run = |priority, at: usize| WaitingRun { priority, run_id: ids[at] };
        let mut shown = BTreeMap::from([(0, run(0, 0)), (1, run(2, 2)), (2, run(2, 1))]);
        let order = std::iter::from_fn(|| {
            let (at, _) = first_of(&shown)?;
            shown.remove(&at).map(|_| at)
        });
        assert_eq!(order.collect::<Vec<_>>(), [2, 1, 0]);
    }

    #[test]
    fn an_executor_of_several_partitions_is_one_item_with_all_that_it_holds() {
        let runs: Vec<_> = (0..3).map(|_| RunId::new()).collect();
        let executor = |id: &str, state: &str, seen: u64, held: &[RunId]| {
            let value = json!({
                "executor_id": id, "name": "n", "runner_ids": [], "queues": [], "labels": {}, "slots": 3, "capabilities": {},
                "registered_at": 1, "last_seen_at": seen, "state": state, "held": held,
            });
            serde_json::value::to_raw_value(&value).unwrap()
        };
        let lists = [
            executor("a", "stale", 5, &runs[2..]),
            executor("b", "gone", 1, &[]),
            executor("a", "online", 9, &runs[..2]),
            executor("a", "gone", 2, &[]),
        ];
        let merged: Vec<Executor> =
            merged_list(lists.into_iter()).unwrap().iter().map(|item| serde_json::from_str(item.get()).unwrap()).collect();
        assert_eq!(merged.iter().map(|executor| executor.executor_id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((merged[0].state, merged[0].last_seen_at, &merged[0].held), (ExecutorState::Online, 9, &runs));
    }

    #[tokio::test]
    async fn news_are_whole_events_and_the_end_of_a_part_is_an_error() {
        let pieces = ["data: on", "e\n\ndata: tw", "o\n\n"].map(|piece| Ok::<_, axum::Error>(Bytes::from(piece)));
        let stream = whole_events(Body::from_stream(stream::iter(pieces)), NEWS_BYTES);
        let mut stream = std::pin::pin!(stream);
        let mut whole = Vec::new();
        while let Some(Ok(piece)) = stream.next().await {
            whole.extend(Some(String::from_utf8(piece).unwrap()).filter(|piece| !piece.is_empty()));
        }
        assert_eq!(whole, ["data: one\n\n", "data: two\n\n"]);
    }
}
