//! Statistics of all partitions, for senders of no workspace: each partition counts, and the counts are merged.

use agent_host_protocol::{Timestamp, time};
use agent_host_runs::{RunCounts, SCAN_RUNS};
use axum::{
    body::Bytes,
    extract::Request,
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};

use super::{
    listeners::ClusterPartition,
    lists,
    partitioned::{AT_ONCE, MERGES, PartitionedRequest, value},
};
use crate::{
    http::{Problem, forwarded::RequestPart, json, query::Query},
    routes::ExecutorStatistics,
};

/// The things that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    Runs,
    Executors,
}

impl Counted {
    /// The statistics at a path.
    pub(super) fn at(path: &str) -> Option<Self> {
        match path {
            "/api/v1/statistics" => Some(Self::Runs),
            "/api/v1/executors/statistics" => Some(Self::Executors),
            _ => None,
        }
    }
}

/// The answer to a request for the statistics of all partitions. Where a partition refuses it or has no owner, that is the answer.
pub(super) async fn answer(partitions: &[ClusterPartition], counted: Counted, request: Request) -> Response {
    let answered = match counted {
        Counted::Runs => runs(partitions, request).await,
        Counted::Executors => executors(partitions, request).await,
    };
    answered.unwrap_or_else(|refusal| refusal)
}

async fn executors(partitions: &[ClusterPartition], mut request: Request) -> Result<Response, Response> {
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let list = format!("/api/v1/executors{query}").parse::<Uri>();
    *request.uri_mut() = list.map_err(|error| Problem::internal(error).into_response())?;
    let executors = lists::executors(partitions, request).await?;
    Ok(json(StatusCode::OK, &ExecutorStatistics::of(&executors, time::now())))
}

async fn runs(partitions: &[ClusterPartition], request: Request) -> Result<Response, Response> {
    let (head, _) = PartitionedRequest::new(request);
    let query = || Query::parse(head.parts().uri.query());
    let times = query().and_then(|mut query| Ok((query.parsed("since")?, query.parsed("until")?)));
    let (since, until) = times.map_err(IntoResponse::into_response)?;
    let count = RunCount { partitions, head: &head, most: SCAN_RUNS / (partitions.len() as u64).max(1) };
    let mut counts = count.since(since).await?;
    // What is before the earliest run that one partition has looked at is not counted in any.
    if let Some(covered) = counts.looked_at_since.filter(|covered| since.is_none_or(|since| since < *covered)) {
        counts = count.since(Some(covered)).await?;
        counts.truncated = true;
    }
    Ok(json(StatusCode::OK, &counts.statistics(since, until)))
}

/// A count of the runs of all partitions.
struct RunCount<'a> {
    partitions: &'a [ClusterPartition],
    head: &'a PartitionedRequest,
    /// Runs that each partition looks at.
    most: u64,
}

impl RunCount<'_> {
    /// The runs created at this time or later. The first partition refuses senders that may not count them, before the others are asked.
    async fn since(&self, since: Option<Timestamp>) -> Result<RunCounts, Response> {
        let uri = self.uri(since).map_err(IntoResponse::into_response)?;
        let asked = self.partitions.iter().map(|partition| -> BoxFuture<'_, Result<RunCounts, Response>> {
            let request = self.head.request(uri.clone(), Bytes::new(), Some(RequestPart::Counts { most: self.most }));
            Box::pin(async move { value(partition.answer(request).await).await })
        });
        let mut asked = asked.collect::<Vec<_>>().into_iter();
        let Some(first) = asked.next() else { return Ok(RunCounts::default()) };
        let first = first.await?;
        // It is never closed.
        let _permit = MERGES.acquire().await;
        let others = stream::iter(asked).buffer_unordered(AT_ONCE);
        others
            .try_fold(first, |mut counts, more| async {
                counts.merge(more);
                Ok(counts)
            })
            .await
    }

    fn uri(&self, since: Option<Timestamp>) -> Result<Uri, Problem> {
        let mut parameters = Query::parse(self.head.parts().uri.query())?.all();
        parameters.retain(|(name, _)| name != "since");
        parameters.extend(since.map(|since| ("since".to_owned(), since.to_string())));
        self.head.uri(parameters)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn partitions_are_asked_with_the_parameters_and_the_time_from_which_all_count() {
        let uri = |query: &str, since| {
            let uri = format!("/api/v1/statistics{query}");
            let (head, _) = PartitionedRequest::new(Request::builder().uri(uri).body(Body::empty()).unwrap());
            RunCount { partitions: &[], head: &head, most: 1 }.uri(since).unwrap().to_string()
        };
        assert_eq!(uri("", None), "/api/v1/statistics");
        assert_eq!(uri("", Some(7)), "/api/v1/statistics?since=7");
        assert_eq!(uri("?binding_id=a%20b&since=3", Some(3)), "/api/v1/statistics?binding_id=a%20b&since=3");
        assert_eq!(uri("?since=3&until=9", Some(5)), "/api/v1/statistics?until=9&since=5");
    }
}
