//! Executors of no workspace, which take runs of every partition.
//!
//! Such an executor is registered in each partition, under one credential. A request of it, or about it, goes to all of them; what they answer
//! is merged. For a claim, each partition shows the run that it would give ([`RequestPart::Look`]), and the first one of all, by priority and age,
//! is claimed where it is. A partition without an owner is not waited for by a claim. An executor of a workspace belongs to one partition.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use agent_host_protocol::HashSlot;
use agent_host_runs::{ClaimLook, Executor, ExecutorState, HostProcess, WaitingRun};
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
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    events::EventSplitter,
    listeners::ClusterPartition,
    partitioned::{PartitionedRequest, is_unknown_there, value},
};
use crate::http::{
    Problem, ProblemCode, body,
    forwarded::{NoWait, RequestPart},
};

/// Largest body of a request of an executor that goes to all partitions.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// A partition that cannot show its runs is asked again after so long.
const PAUSE: Duration = Duration::from_millis(500);
/// A partition that does not answer a look so soon is left out of a claim.
const SOON: Duration = Duration::from_secs(1);
/// Runs that others claim before one request does, at most.
const MAX_MISSES: usize = 64;
/// Looks that wait at partitions at the same time: each may have a connection to another host.
static LOOKS: Semaphore = Semaphore::const_new(1024);

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
            // A client that goes away does not stop it midway.
            let registering = tokio::spawn(async move { register(&partitions, &head, body).await });
            match registering.await {
                Ok(registered) => registered,
                Err(error) => Err(internal(error)),
            }
        }
        (ExecutorRequest::Claim, Ok(body)) => claim(partitions, process, &head, &body).await,
        (ExecutorRequest::One, Ok(body)) => one(partitions, &head, &body).await,
        (ExecutorRequest::News, Ok(_)) => news(partitions, &head).await,
    };
    answered.unwrap_or_else(|refusal| refusal)
}

/// Makes an executor of no workspace that the first partition has registered known in the others. Where one does not register it, it is deregistered in
/// all, as soon as they have owners.
///
/// # Errors
/// The answer of a partition that does not register it.
pub(super) async fn introduce(
    partitions: &[ClusterPartition],
    registration: Bytes,
    executor_id: String,
    credential: String,
) -> Result<(), Response> {
    let introductions = partitions.iter().skip(1).map(|partition| {
        let mut request = own_request(Method::POST, "/api/v1/executors", &credential, registration.clone())?;
        request.extensions_mut().insert(RequestPart::Registration { credential: credential.clone() });
        Some(partition.answer(request))
    });
    let introductions = introductions.collect::<Option<Vec<_>>>().ok_or_else(|| internal("the credential is no header"))?;
    let Some(refusal) = join_all(introductions).await.into_iter().find(|answer| !answer.status().is_success()) else {
        return Ok(());
    };
    for partition in partitions {
        let partition = partition.clone();
        let path = format!("/api/v1/executors/{executor_id}");
        if let Some(request) = own_request(Method::DELETE, &path, &credential, Bytes::new()) {
            tokio::spawn(async move { drop(partition.answer(request).await) });
        }
    }
    Err(refusal)
}

/// A request of this host for an executor.
fn own_request(method: Method, path: &str, credential: &str, body: Bytes) -> Option<Request> {
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
    request.header(header::AUTHORIZATION, format!("Bearer {credential}")).body(Body::from(body)).ok()
}

async fn register(partitions: &[ClusterPartition], head: &PartitionedRequest, body: Bytes) -> Result<Response, Response> {
    #[derive(Deserialize)]
    struct Registered {
        executor_id: String,
        credential: String,
        workspace: Option<String>,
    }
    let Some(first) = partitions.first() else { return Err(StatusCode::NOT_FOUND.into_response()) };
    if partitions.iter().any(ClusterPartition::is_moving) {
        let detail = "an executor of no workspace is registered in each partition, and one of them has no owner at the moment: send the request again";
        return Err(Problem::new(ProblemCode::PartitionMoving, detail).into_response());
    }
    let (parts, answer) = first.answer(head.same(body.clone())).await.into_parts();
    if parts.status != StatusCode::CREATED {
        return Ok(Response::from_parts(parts, answer));
    }
    let answer = axum::body::to_bytes(answer, 2 * MAX_BODY_BYTES).await.map_err(internal)?;
    let Registered { executor_id, credential, workspace } = serde_json::from_slice(&answer).map_err(internal)?;
    if workspace.is_none() {
        introduce(partitions, body, executor_id, credential).await?;
    }
    Ok(Response::from_parts(parts, Body::from(answer)))
}

/// Shows, changes or deregisters an executor. Each partition judges the sender.
async fn one(partitions: &[ClusterPartition], head: &PartitionedRequest, body: &Bytes) -> Result<Response, Response> {
    let Some((first, others)) = partitions.split_first() else { return Err(StatusCode::NOT_FOUND.into_response()) };
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
    let body = serde_json::to_vec(&executor).map_err(internal)?;
    parts.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(parts, Body::from(body)))
}

/// The news of all partitions. The stream breaks off where that of one does.
async fn news(partitions: &[ClusterPartition], head: &PartitionedRequest) -> Result<Response, Response> {
    let Some((first, others)) = partitions.split_first() else { return Err(StatusCode::NOT_FOUND.into_response()) };
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
    let pieces = stream::select_all(bodies.into_iter().map(|body| events(body).boxed()));
    let pieces = pieces.scan(false, |is_over, piece| {
        let goes_on = !std::mem::replace(is_over, piece.is_err());
        std::future::ready(goes_on.then_some(piece))
    });
    Ok(Response::from_parts(parts, Body::from_stream(pieces)))
}

/// Whole events of a stream. Its end is an error.
fn events(body: Body) -> impl stream::Stream<Item = Result<Vec<u8>, axum::Error>> + Send {
    let pieces = body.into_data_stream();
    stream::unfold((pieces, EventSplitter::default()), |(mut pieces, mut splitter)| async move {
        let piece = match pieces.next().await {
            Some(Ok(bytes)) => Ok(splitter.push(&bytes)),
            Some(Err(error)) => Err(error),
            None => Err(axum::Error::new("a partition has ended its part of the stream")),
        };
        Some((piece, (pieces, splitter)))
    })
}

/// A partition and what it has shown.
type Shown = (usize, Result<ClaimLook, Response>);

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
        let mut shown = self.first_looks().await?;
        let (mut looks, mut looking) = (FuturesUnordered::new(), BTreeSet::new());
        let mut misses = 0;
        while misses < MAX_MISSES {
            if let Some((at, _)) = first_of(&shown) {
                shown.remove(&at);
                let answer = self.ask(at, Duration::ZERO, None).await;
                match answer.status() {
                    // Another executor was faster: the partition shows what it has now.
                    StatusCode::NO_CONTENT => {
                        misses += 1;
                        shown.extend(self.look_now(at).await.1.ok().and_then(|look| look.first).map(|run| (at, run)));
                    }
                    StatusCode::SERVICE_UNAVAILABLE => {
                        nothing_was_done(answer).await?;
                        misses += 1;
                        if looking.insert(at) {
                            looks.push(self.look(at, until, PAUSE));
                        }
                    }
                    _ => return Ok(answer),
                }
                continue;
            }
            if Instant::now() >= until {
                break;
            }
            for at in (0..self.partitions.len()).filter(|at| looking.insert(*at)) {
                looks.push(self.look(at, until, Duration::ZERO));
            }
            tokio::select! {
                Some((at, look)) = looks.next() => match look {
                    Ok(look) => {
                        looking.remove(&at);
                        shown.extend(look.first.map(|run| (at, run)));
                    }
                    // It does not know the executor, or that has no free slot any more: what it has is not for this claim.
                    Err(refusal) if refusal.status().is_client_error() => {
                        if at == 0 {
                            return Err(refusal);
                        }
                    }
                    Err(_) => looks.push(self.look(at, until, PAUSE)),
                },
                () = tokio::time::sleep_until(until) => break,
            }
        }
        Ok(StatusCode::NO_CONTENT.into_response())
    }

    /// The runs that all partitions show, the first one before the others: it knows every executor. One without an owner is left out.
    async fn first_looks(&self) -> Result<BTreeMap<usize, WaitingRun>, Response> {
        let (mut shown, mut held, mut refused) = (BTreeMap::new(), 0, None);
        let (_, first) = self.look_now(0).await;
        if let Err(refusal) = &first
            && refusal.status().is_client_error()
        {
            return first.map(|_| shown);
        }
        let others = join_all((1..self.partitions.len()).map(|at| self.look_now(at))).await;
        let mut is_known = false;
        for (at, look) in std::iter::once((0, first)).chain(others) {
            match look {
                Ok(look) => {
                    is_known = true;
                    held += look.held;
                    if held >= look.slots as usize {
                        return Err(no_free_slot(held, look.slots).into_response());
                    }
                    shown.extend(look.first.map(|run| (at, run)));
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
    async fn look_now(&self, at: usize) -> Shown {
        let look = async { value(self.ask(at, Duration::ZERO, Some(RequestPart::Look)).await).await };
        let late = || Problem::new(ProblemCode::PartitionMoving, "the owner of the partition does not answer");
        match tokio::time::timeout(SOON, look).await {
            Ok(look) => (at, look),
            Err(_) => (at, Err(late().into_response())),
        }
    }

    /// The run that a partition would give, after a pause and until then at most. Where too many wait at partitions, they are asked now and then.
    fn look(&self, at: usize, until: Instant, pause: Duration) -> BoxFuture<'_, Shown> {
        Box::pin(async move {
            tokio::time::sleep(pause).await;
            let Ok(_place) = LOOKS.try_acquire() else {
                tokio::time::sleep(PAUSE).await;
                return self.look_now(at).await;
            };
            let left = until.saturating_duration_since(Instant::now());
            (at, value(self.ask(at, left, Some(RequestPart::Look)).await).await)
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
        request.extensions_mut().insert(NoWait);
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
    let body = axum::body::to_bytes(body, MAX_BODY_BYTES).await.unwrap_or_default();
    let code = serde_json::from_slice::<Refusal>(&body).map(|refusal| refusal.code).unwrap_or_default();
    match code.as_str() {
        "partition_moving" | "partition_unreachable" | "shutting_down" => Ok(()),
        _ => Err(Response::from_parts(parts, Body::from(body))),
    }
}

/// The first of the runs that partitions have shown, by priority, then by age.
fn first_of(shown: &BTreeMap<usize, WaitingRun>) -> Option<(usize, WaitingRun)> {
    let first = shown.iter().min_by_key(|(_, run)| (Reverse(run.priority), run.run_id));
    first.map(|(at, run)| (*at, *run))
}

fn no_free_slot(held: usize, slots: u32) -> Problem {
    Problem::new(ProblemCode::Conflict, format!("the executor holds {held} runs, and has {slots} slots: finish some first"))
}

fn internal(error: impl std::fmt::Display) -> Response {
    Problem::internal(format!("the answer of a partition cannot be read: {error}")).into_response()
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
pub(super) fn merged_list(items: impl Iterator<Item = Box<RawValue>>) -> Vec<Box<RawValue>> {
    let mut places = HashMap::new();
    let mut executors = Vec::<Executor>::new();
    for executor in items.filter_map(|item| serde_json::from_str::<Executor>(item.get()).ok()) {
        let place = *places.entry(executor.executor_id.clone()).or_insert(executors.len());
        match executors.get_mut(place) {
            Some(known) => add(known, executor),
            None => executors.push(executor),
        }
    }
    executors.iter().filter_map(|executor| serde_json::value::to_raw_value(executor).ok()).collect()
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
            merged_list(lists.into_iter()).iter().map(|item| serde_json::from_str(item.get()).unwrap()).collect();
        assert_eq!(merged.iter().map(|executor| executor.executor_id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((merged[0].state, merged[0].last_seen_at, &merged[0].held), (ExecutorState::Online, 9, &runs));
    }

    #[tokio::test]
    async fn news_are_whole_events_and_the_end_of_a_part_is_an_error() {
        let pieces = ["data: on", "e\n\ndata: tw", "o\n\n"].map(|piece| Ok::<_, axum::Error>(Bytes::from(piece)));
        let stream = events(Body::from_stream(stream::iter(pieces)));
        let mut stream = std::pin::pin!(stream);
        let mut whole = Vec::new();
        while let Some(Ok(piece)) = stream.next().await {
            whole.extend(Some(String::from_utf8(piece).unwrap()).filter(|piece| !piece.is_empty()));
        }
        assert_eq!(whole, ["data: one\n\n", "data: two\n\n"]);
    }
}
