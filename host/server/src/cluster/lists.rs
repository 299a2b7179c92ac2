//! Lists of what is of all partitions, for senders of no workspace.
//!
//! Each partition is asked for a page, and the pages are merged. A cursor of such a list has one of each partition. A partition of which the
//! merged page has only the first items is asked again for so many, since only the partition knows the cursor behind them.

use std::{cmp::Reverse, collections::BinaryHeap};

use agent_host_runs::Executor;
use axum::{
    body::Bytes,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::{StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    executors,
    listeners::ClusterPartition,
    partitioned::{AT_ONCE, MERGES, PartitionedRequest, unreadable, value},
};
use crate::http::{Problem, json, query::Query};

/// The order of a list.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    /// By the time in this member, the newest first.
    Newest(&'static str),
    /// By the id in this member, which sorts by time.
    Oldest(&'static str),
    /// One partition after the other.
    Partitions,
    /// Likewise, all of it on one page, without parameters.
    Whole,
    /// Likewise, and what several partitions know is one item.
    Executors,
}

impl Order {
    const fn is_whole(self) -> bool {
        matches!(self, Self::Whole | Self::Executors)
    }
}

/// The order of the list at a path, if it can be merged.
pub(super) fn order_of(path: &str) -> Option<Order> {
    Some(match path {
        "/api/v1/actions" => Order::Oldest("action_id"),
        "/api/v1/audit" => Order::Newest("at"),
        "/api/v1/dead-letters" | "/api/v1/deliveries" => Order::Oldest("run_id"),
        "/api/v1/events" => Order::Newest("received_at"),
        "/api/v1/executors" => Order::Executors,
        "/api/v1/schedules" => Order::Whole,
        "/api/v1/runs" => Order::Newest("created_at"),
        "/api/v1/threads" => Order::Partitions,
        _ => return None,
    })
}

/// The place in the list of a partition at which a page begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Place {
    Start,
    After(String),
    End,
}

/// A page of a partition.
#[derive(Debug, Deserialize)]
struct PartitionPage {
    items: Vec<Box<RawValue>>,
    #[serde(default)]
    next_cursor: Option<String>,
    #[serde(default)]
    has_more: bool,
}

impl PartitionPage {
    const fn none() -> Self {
        Self { items: Vec::new(), next_cursor: None, has_more: false }
    }

    /// The place behind the page.
    fn end(&self) -> Place {
        self.next_cursor.clone().filter(|_| self.has_more).map_or(Place::End, Place::After)
    }
}

#[derive(Serialize)]
struct MergedPage {
    items: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
    prev_cursor: Option<String>,
    has_more: bool,
}

/// A list that a sender asks for.
struct ListRequest {
    head: PartitionedRequest,
    order: Order,
    /// The parameters without `cursor` and `limit`.
    parameters: Vec<(String, String)>,
    limit: u32,
    places: Vec<Place>,
}

/// The answer to a request for the list of all partitions. Where a partition refuses it or has no owner, that is the answer.
pub(super) async fn answer(partitions: &[ClusterPartition], order: Order, request: Request) -> Response {
    let request = match ListRequest::new(request, order, partitions.len()) {
        Ok(request) => request,
        Err(problem) => return problem.into_response(),
    };
    match request.merged(partitions).await {
        Ok(page) => json(StatusCode::OK, &page),
        Err(refusal) => refusal,
    }
}

/// The executors of all partitions, which the request asks for by their list.
pub(super) async fn executors(partitions: &[ClusterPartition], request: Request) -> Result<Vec<Executor>, Response> {
    let request = ListRequest::new(request, Order::Executors, partitions.len()).map_err(IntoResponse::into_response)?;
    let page = request.merged(partitions).await?;
    let executors: serde_json::Result<_> = page.items.iter().map(|item| serde_json::from_str(item.get())).collect();
    executors.map_err(unreadable)
}

impl ListRequest {
    fn new(request: Request, order: Order, partitions: usize) -> Result<Self, Problem> {
        let (head, _) = PartitionedRequest::new(request);
        let mut query = Query::parse(head.parts().uri.query())?;
        let (mut limit, mut places) = (0, vec![Place::Start; partitions]);
        if !order.is_whole() {
            limit = query.limit()?;
            if let Some(cursor) = query.text("cursor") {
                // Where all lists are at their ends, no host gives a cursor, and no partition would see who asks.
                let is_ours = |places: &Vec<Place>| places.len() == partitions && places.iter().any(|place| *place != Place::End);
                places = places_of(&cursor).filter(is_ours).ok_or_else(Problem::foreign_cursor)?;
            }
        }
        Ok(Self { head, order, parameters: query.all(), limit, places })
    }

    async fn merged(&self, partitions: &[ClusterPartition]) -> Result<MergedPage, Response> {
        let mut pages: Vec<_> = partitions.iter().map(|_| PartitionPage::none()).collect();
        let limits: Vec<_> = self.places.iter().map(|place| (*place != Place::End).then_some(self.limit)).collect();
        self.read(partitions, &limits, &mut pages).await?;
        if self.order.is_whole() {
            let items = pages.into_iter().flat_map(|page| page.items);
            let items = if matches!(self.order, Order::Executors) {
                executors::merged_list(items).map_err(unreadable)?
            } else {
                items.collect()
            };
            return Ok(MergedPage { items, next_cursor: None, prev_cursor: None, has_more: false });
        }
        let taken = self.taken(&pages);
        // Those of which the merged page has some and not all.
        let is_cut = |(taken, page): (&usize, &PartitionPage)| (1..page.items.len()).contains(taken);
        let limit = |cut: (&usize, &PartitionPage)| u32::try_from(*cut.0).ok().filter(|_| is_cut(cut));
        let limits: Vec<_> = taken.iter().zip(&pages).map(limit).collect();
        self.read(partitions, &limits, &mut pages).await?;
        Ok(self.merge(pages, &taken))
    }

    /// Reads the pages of the partitions that have a limit. The first one refuses senders that may not see the list, before the others are asked.
    async fn read(
        &self,
        partitions: &[ClusterPartition],
        limits: &[Option<u32>],
        pages: &mut [PartitionPage],
    ) -> Result<(), Response> {
        let mut reads: Vec<BoxFuture<'_, Result<(), Response>>> = Vec::new();
        for (((partition, place), page), limit) in partitions.iter().zip(&self.places).zip(pages).zip(limits) {
            let Some(limit) = *limit else { continue };
            let request = self.request(place, limit).map_err(IntoResponse::into_response)?;
            reads.push(Box::pin(async move {
                *page = value(partition.answer(request).await).await?;
                Ok(())
            }));
        }
        let mut reads = reads.into_iter();
        if let Some(first) = reads.next() {
            first.await?;
        }
        // It is never closed.
        let _permit = MERGES.acquire().await;
        stream::iter(reads).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// The request to one partition.
    fn request(&self, place: &Place, limit: u32) -> Result<Request, Problem> {
        let limit = (!self.order.is_whole()).then(|| ("limit".to_owned(), limit.to_string()));
        let cursor = match place {
            Place::After(cursor) => Some(("cursor".to_owned(), cursor.clone())),
            Place::Start | Place::End => None,
        };
        let uri = self.head.uri(self.parameters.iter().cloned().chain(limit).chain(cursor))?;
        Ok(self.head.request(uri, Bytes::new(), None))
    }

    /// The number of items of each partition on the merged page. It ends where a partition may have further items that come before those of
    /// others.
    fn taken(&self, pages: &[PartitionPage]) -> Vec<usize> {
        let mut taken = vec![0; pages.len()];
        let mut heads = BinaryHeap::new();
        for (number, page) in pages.iter().enumerate() {
            match page.items.first() {
                Some(item) => heads.push(Reverse((self.key(number, item), number))),
                // It has looked at a part of its list, and found nothing there.
                None if page.has_more => return taken,
                None => {}
            }
        }
        while taken.iter().sum::<usize>() < self.limit as usize
            && let Some(Reverse((_, number))) = heads.pop()
        {
            let (Some(taken), Some(page)) = (taken.get_mut(number), pages.get(number)) else { break };
            *taken += 1;
            match page.items.get(*taken) {
                Some(item) => heads.push(Reverse((self.key(number, item), number))),
                None if page.has_more => break,
                None => {}
            }
        }
        taken
    }

    /// The merged page. Of partitions with none on it, the next page begins where this one did, except behind a page that was empty.
    fn merge(&self, pages: Vec<PartitionPage>, taken: &[usize]) -> MergedPage {
        let mut places = Vec::with_capacity(pages.len());
        let mut items = Vec::new();
        for (number, page) in pages.into_iter().enumerate() {
            let is_on_it = taken.get(number).is_some_and(|taken| *taken > 0);
            let place = self.places.get(number).cloned().unwrap_or(Place::End);
            places.push(if is_on_it || page.items.is_empty() { page.end() } else { place });
            if is_on_it {
                items.extend(page.items.into_iter().map(|item| (self.key(number, &item), number, item)));
            }
        }
        items.sort_by(|(a, of_a, _), (b, of_b, _)| (a, of_a).cmp(&(b, of_b)));
        let has_more = places.iter().any(|place| *place != Place::End);
        let next_cursor = has_more.then(|| cursor_of(&places));
        MergedPage { items: items.into_iter().map(|(_, _, item)| item).collect(), next_cursor, prev_cursor: None, has_more }
    }

    /// The key by which an item of a partition is sorted.
    fn key(&self, partition: usize, item: &RawValue) -> String {
        let member =
            |name: &str| serde_json::from_str::<serde_json::Value>(item.get()).ok().and_then(|item| item.get(name).cloned());
        match self.order {
            Order::Newest(name) => {
                let time = member(name).and_then(|time| time.as_u64()).unwrap_or_default();
                format!("{:020}", u64::MAX - time)
            }
            Order::Oldest(name) => member(name).and_then(|id| id.as_str().map(ToOwned::to_owned)).unwrap_or_default(),
            Order::Partitions | Order::Whole | Order::Executors => format!("{partition:010}"),
        }
    }
}

fn cursor_of(places: &[Place]) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(places).unwrap_or_default())
}

fn places_of(cursor: &str) -> Option<Vec<Place>> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::HeaderName};
    use serde_json::{Value, json};

    use super::*;

    fn list(order: Order, limit: u32, partitions: usize) -> ListRequest {
        let uri = format!("/api/v1/runs?limit={limit}&status=completed&binding_id=a%20b");
        ListRequest::new(Request::builder().uri(uri).body(Body::empty()).unwrap(), order, partitions).unwrap()
    }

    fn page(items: &[Value], next: Option<&str>) -> PartitionPage {
        let page = json!({ "items": items, "next_cursor": next, "has_more": next.is_some() });
        serde_json::from_value(page).unwrap()
    }

    fn run(at: u64) -> Value {
        json!({ "created_at": at })
    }

    fn times(page: &MergedPage) -> Vec<u64> {
        let time = |item: &RawValue| serde_json::from_str::<Value>(item.get()).unwrap()["created_at"].as_u64().unwrap();
        page.items.iter().map(|item| time(item)).collect()
    }

    #[test]
    fn the_newest_of_all_partitions_come_first() {
        let list = list(Order::Newest("created_at"), 4, 3);
        let pages = [page(&[run(9), run(5), run(4), run(3)], Some("a")), page(&[run(8), run(7)], None), page(&[run(1)], None)];
        let taken = list.taken(&pages);
        assert_eq!(taken, [2, 2, 0]);
        // The first is asked again for two.
        let [_, second, third] = pages;
        let merged = list.merge(vec![page(&[run(9), run(5)], Some("b")), second, third], &taken);
        assert_eq!(times(&merged), [9, 8, 7, 5]);
        assert!(merged.has_more);
        let places = places_of(&merged.next_cursor.unwrap()).unwrap();
        assert_eq!(places, [Place::After("b".to_owned()), Place::End, Place::Start]);
    }

    /// The next item of a partition whose page is at its end may be newer than all others.
    #[test]
    fn a_page_ends_where_a_partition_has_more_behind_its_own() {
        let list = list(Order::Newest("created_at"), 10, 2);
        let pages = [page(&[run(9), run(8)], Some("a")), page(&[run(7), run(6)], None)];
        let taken = list.taken(&pages);
        assert_eq!(taken, [2, 0]);
        // Nothing was found in what was looked at.
        let pages = [page(&[], Some("b")), page(&[run(7)], None)];
        let taken = list.taken(&pages);
        assert_eq!(taken, [0, 0]);
        let merged = list.merge(pages.into(), &taken);
        assert!(merged.items.is_empty() && merged.has_more);
        assert_eq!(places_of(&merged.next_cursor.unwrap()).unwrap(), [Place::After("b".to_owned()), Place::Start]);
    }

    #[test]
    fn the_last_page_has_no_cursor_and_partitions_may_come_one_after_the_other() {
        let list = list(Order::Partitions, 10, 2);
        let pages = [page(&[run(1), run(9)], None), page(&[run(5)], None)];
        let taken = list.taken(&pages);
        let merged = list.merge(pages.into(), &taken);
        assert_eq!(times(&merged), [1, 9, 5]);
        assert!(!merged.has_more && merged.next_cursor.is_none());
    }

    /// A length without a body would take the next request on the connection for one.
    #[test]
    fn a_body_that_a_client_sends_with_its_request_is_none_of_the_partitions() {
        let request = Request::builder().uri("/api/v1/runs").header("content-length", "5").header("transfer-encoding", "chunked");
        let request = request.header("accept-encoding", "gzip").header("authorization", "Bearer x").body(Body::from("12345"));
        let asked =
            ListRequest::new(request.unwrap(), Order::Newest("created_at"), 1).unwrap().request(&Place::Start, 1).unwrap();
        assert_eq!(asked.headers().keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["authorization"]);
    }

    #[test]
    fn a_partition_is_asked_with_the_parameters_and_its_own_cursor() {
        let uri = |request: Request| request.uri().to_string();
        let first = list(Order::Newest("created_at"), 4, 2).request(&Place::Start, 4).unwrap();
        assert_eq!(uri(first), "/api/v1/runs?binding_id=a%20b&status=completed&limit=4");
        let cursor = cursor_of(&[Place::After("x=".to_owned()), Place::End]);
        let of = |uri: String, order| ListRequest::new(Request::builder().uri(uri).body(Body::empty()).unwrap(), order, 2);
        let next = of(format!("/api/v1/threads?cursor={cursor}"), Order::Partitions).unwrap();
        assert_eq!(uri(next.request(&next.places[0], 3).unwrap()), "/api/v1/threads?limit=3&cursor=x%3D");
        let whole = of("/api/v1/executors".to_owned(), Order::Whole).unwrap();
        assert_eq!(uri(whole.request(&Place::Start, 0).unwrap()), "/api/v1/executors");
        for bad in ["x".to_owned(), cursor_of(&[Place::Start]), cursor_of(&[Place::End, Place::End])] {
            assert!(of(format!("/api/v1/runs?cursor={bad}"), Order::Partitions).is_err(), "{bad}");
        }
    }
}
