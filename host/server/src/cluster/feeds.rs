//! Streams of what all partitions accept or record, for senders of no workspace.
//!
//! Each partition has a stream, which begins with the place after which its events come ([`RequestPart::Feed`]). An event of the merged stream has
//! the places of all partitions as its id, so a client goes on from there, at any host.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::HeaderValue,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::{
    StreamExt,
    future::{BoxFuture, join_all},
    stream::{self, BoxStream},
};

use super::{
    listeners::ClusterPartition,
    partitioned::{PartitionedRequest, unreadable, whole_events},
};
use crate::http::{
    Problem, ProblemCode,
    forwarded::RequestPart,
    headers::{LAST_EVENT_ID, last_event_id},
    query::Query,
};

/// Time in which the streams of all partitions begin.
const SOON: Duration = Duration::from_secs(10);
/// An event of a feed is held until it is whole. One that is longer ends the stream.
const EVENT_BYTES: usize = 64 << 20;

/// True for the streams of all that is accepted or recorded.
pub(super) fn is_feed(path: &str) -> bool {
    ["/api/v1/audit", "/api/v1/events"].contains(&path)
}

/// The answer to a request for the stream of all partitions. Where a partition refuses it or has no owner, that is the answer.
pub(super) async fn answer(partitions: &[ClusterPartition], request: Request) -> Response {
    merged(partitions, request).await.unwrap_or_else(|refusal| refusal)
}

async fn merged(partitions: &[ClusterPartition], request: Request) -> Result<Response, Response> {
    let (head, _) = PartitionedRequest::new(request);
    let requests = requests(&head, partitions.len()).map_err(IntoResponse::into_response)?;
    let mut asked = partitions
        .iter()
        .zip(requests)
        .map(|(partition, request)| -> BoxFuture<'_, Response> { Box::pin(partition.answer(request)) });
    let Some(first) = asked.next() else { return Err(Problem::internal("the cluster has no partition").into_response()) };
    // It refuses senders that may not follow, before the others are asked.
    let first = first.await;
    if !first.status().is_success() {
        return Err(first);
    }
    let (parts, body) = first.into_parts();
    let mut bodies = vec![body];
    for answer in join_all(asked).await {
        if !answer.status().is_success() {
            return Err(answer);
        }
        bodies.push(answer.into_body());
    }
    let feeds = tokio::time::timeout(SOON, join_all(bodies.into_iter().map(PartitionFeed::begin))).await;
    let feeds = feeds.map_err(|_| {
        // As from a host of the version before, which knows no such streams.
        let detail = "the stream of a partition does not begin: connect again";
        Problem::new(ProblemCode::PartitionMoving, detail).into_response()
    })?;
    let feeds = feeds.into_iter().collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    Ok(Response::from_parts(parts, Body::from_stream(events_of_all(feeds))))
}

/// The requests to the partitions, each with its place, where the client names one.
fn requests(head: &PartitionedRequest, partitions: usize) -> Result<Vec<Request>, Problem> {
    let parts = head.parts();
    let mut query = Query::parse(parts.uri.query())?;
    let after = query.text("after");
    let from = last_event_id(&parts.headers)?.or(after);
    let places = match from {
        None => vec![None; partitions],
        Some(from) => {
            let places = places_of(&from).filter(|places| places.len() == partitions).ok_or_else(foreign_place)?;
            places.into_iter().map(Some).collect()
        }
    };
    let uri = head.uri(query.all())?;
    let request = |place: Option<String>| {
        let mut request = head.request(uri.clone(), Bytes::new(), Some(RequestPart::Feed));
        request.headers_mut().remove(LAST_EVENT_ID);
        if let Some(place) = place {
            request.headers_mut().insert(LAST_EVENT_ID, HeaderValue::try_from(place).map_err(|_| foreign_place())?);
        }
        Ok(request)
    };
    places.into_iter().map(request).collect()
}

fn foreign_place() -> Problem {
    let detail = "`Last-Event-ID` or `after` is not an id of a stream of all partitions: follow without it, or name the workspace whose stream \
                  gave it in the header `X-Workspace`";
    Problem::new(ProblemCode::InvalidCursor, detail)
}

/// The stream of one partition, behind its first place.
struct PartitionFeed {
    place: String,
    /// Events that have come with the place.
    first: Vec<u8>,
    rest: BoxStream<'static, Result<Vec<u8>, axum::Error>>,
}

impl PartitionFeed {
    async fn begin(body: Body) -> Result<Self, axum::Error> {
        let mut rest = whole_events(body, EVENT_BYTES).boxed();
        while let Some(piece) = rest.next().await {
            let first = piece?;
            let place = blocks(&first).find_map(|block| id_in(block).map(ToOwned::to_owned));
            if let Some(place) = place {
                return Ok(Self { place, first, rest });
            }
        }
        Err(axum::Error::new("the stream of a partition has ended"))
    }
}

/// The events of all partitions, as they come. The stream breaks off where that of one does.
fn events_of_all(feeds: Vec<PartitionFeed>) -> impl stream::Stream<Item = Result<Vec<u8>, axum::Error>> + Send {
    let mut places = Vec::with_capacity(feeds.len());
    let mut streams = Vec::with_capacity(feeds.len());
    for (number, PartitionFeed { place, first, rest }) in feeds.into_iter().enumerate() {
        places.push(place);
        streams.push(stream::once(std::future::ready(Ok(first))).chain(rest).map(move |piece| (number, piece)).boxed());
    }
    stream::select_all(streams).scan(Some(places), |state, (number, piece)| {
        let given = match (state.take(), piece) {
            (Some(mut places), Ok(piece)) => {
                let given = with_places(&mut places, number, &piece);
                *state = Some(places);
                Some(Ok(given))
            }
            (Some(_), Err(error)) => Some(Err(error)),
            (None, _) => None,
        };
        std::future::ready(given)
    })
}

/// Events of a partition, each with the places of all as its id. What has an id alone says where the partition is, and is no event.
fn with_places(places: &mut [String], partition: usize, events: &[u8]) -> Vec<u8> {
    let mut given = Vec::with_capacity(events.len());
    for block in blocks(events) {
        if let (Some(id), Some(place)) = (id_in(block), places.get_mut(partition)) {
            id.clone_into(place);
        }
        if block.starts_with(b"id:") && block.iter().filter(|byte| **byte == b'\n').count() == 2 {
            continue;
        }
        for line in block.split_inclusive(|byte| *byte == b'\n') {
            if line.starts_with(b"id:") {
                given.extend_from_slice(format!("id: {}\n", id_of(places)).as_bytes());
            } else {
                given.extend_from_slice(line);
            }
        }
    }
    given
}

/// Events and comments, each with the empty line behind it.
fn blocks(events: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = events;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.windows(2).position(|pair| pair == b"\n\n").map_or(rest.len(), |at| at + 2);
        let (block, behind) = rest.split_at(end);
        rest = behind;
        Some(block)
    })
}

fn id_in(block: &[u8]) -> Option<&str> {
    let line = block.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"id:"))?;
    std::str::from_utf8(line).ok().map(str::trim_ascii)
}

fn id_of(places: &[String]) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(places).unwrap_or_default())
}

fn places_of(id: &str) -> Option<Vec<String>> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(id).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(place: &str, first: &str, rest: &[&str]) -> PartitionFeed {
        let rest: Vec<_> = rest.iter().map(|piece| Ok(piece.as_bytes().to_vec())).collect();
        PartitionFeed { place: place.to_owned(), first: first.as_bytes().to_vec(), rest: stream::iter(rest).boxed() }
    }

    #[test]
    fn an_event_has_the_places_of_all_partitions_as_its_id() {
        let mut places = vec!["a1".to_owned(), "b1".to_owned()];
        let given = with_places(&mut places, 1, b"id: b1\n\n: hello\n\nretry: 1\nid: b2\nevent: accepted\ndata: id: x\n\n");
        let expect = format!(": hello\n\nretry: 1\nid: {}\nevent: accepted\ndata: id: x\n\n", id_of(&places));
        assert_eq!((String::from_utf8(given).unwrap(), &*places[1]), (expect, "b2"));
        assert_eq!(places_of(&id_of(&places)).unwrap(), ["a1", "b2"]);
        // Without an id, as a problem has none.
        let given = with_places(&mut places, 0, b"event: problem\ndata: {}\n\n");
        assert_eq!(given, b"event: problem\ndata: {}\n\n");
    }

    #[tokio::test]
    async fn a_partition_that_breaks_off_ends_the_stream() {
        let broken = stream::iter([Err(axum::Error::new("gone")), Ok(b"id: b3\ndata: x\n\n".to_vec())]).boxed();
        let other = PartitionFeed { place: "b1".to_owned(), first: b"id: b1\n\n".to_vec(), rest: broken };
        let pieces: Vec<_> = events_of_all(vec![feed("a1", "id: a1\n\nid: a2\ndata: y\n\n", &[]), other]).collect().await;
        assert!(pieces.last().unwrap().is_err(), "{pieces:?}");
        let given: Vec<u8> = pieces.into_iter().filter_map(Result::ok).flatten().collect();
        let places = ["a2", "b1"].map(ToOwned::to_owned);
        assert_eq!(String::from_utf8(given).unwrap(), format!("id: {}\ndata: y\n\n", id_of(&places)));
    }

    #[tokio::test]
    async fn a_feed_begins_with_its_place() {
        let body = Body::from_stream(stream::iter(["id: ", "a1\n", "\nid: a2\ndata: y\n\n"].map(Ok::<_, std::io::Error>)));
        let feed = PartitionFeed::begin(body).await.unwrap();
        assert_eq!((&*feed.place, &*feed.first), ("a1", b"id: a1\n\nid: a2\ndata: y\n\n".as_slice()));
        assert!(PartitionFeed::begin(Body::from(": nothing\n\n")).await.is_err());
    }

    #[test]
    fn each_partition_is_asked_from_its_place_on() {
        let of = |uri: &str, last: Option<&str>| {
            let mut request = Request::builder().uri(uri);
            if let Some(last) = last {
                request = request.header(LAST_EVENT_ID, last);
            }
            requests(&PartitionedRequest::new(request.body(Body::empty()).unwrap()).0, 2)
        };
        let asked = of("/api/v1/events?source=x", None).unwrap();
        assert!(asked.iter().all(|request| request.uri() == "/api/v1/events?source=x"));
        assert!(asked.iter().all(|request| !request.headers().contains_key(LAST_EVENT_ID)));
        let id = id_of(&["a1".to_owned(), "b1".to_owned()]);
        let places =
            |requests: Vec<Request>| requests.iter().map(|asked| asked.headers()[LAST_EVENT_ID].clone()).collect::<Vec<_>>();
        assert_eq!(places(of("/api/v1/events", Some(&id)).unwrap()), ["a1", "b1"]);
        let asked = of(&format!("/api/v1/events?after={id}"), None).unwrap();
        assert!(asked.iter().all(|request| request.uri() == "/api/v1/events"));
        assert_eq!(places(asked), ["a1", "b1"]);
        for bad in ["a1".to_owned(), id_of(&["a1".to_owned()]), id_of(&["a\n1".to_owned(), "b".to_owned()])] {
            assert_eq!(of("/api/v1/events", Some(&bad)).unwrap_err().code(), ProblemCode::InvalidCursor, "{bad}");
        }
    }
}
