//! Files that are made while they are downloaded.

use agent_host_runs::HostError;
use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;

use crate::{
    app::{App, off_thread},
    http::Problem,
};

/// A file as a download: its pieces as they are read. A piece that cannot be read ends the file early, and the client sees
/// that the response is not whole.
pub(super) fn download<E>(
    app: &App,
    pieces: impl Iterator<Item = Result<String, E>> + Send + 'static,
    content_type: &'static str,
    name: &str,
) -> Result<Response, Problem>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let place = app.subscribe()?;
    // Each piece is read when the client takes it: a slow one holds a piece, and no thread.
    let pieces = stream::unfold(Some((pieces, place)), |state| async move {
        let (pieces, place) = state?;
        match off_thread(move || Ok::<_, HostError>(next_piece(pieces))).await {
            Ok((pieces, Some(Ok(piece)))) => Some((Ok(Bytes::from(piece)), Some((pieces, place)))),
            Ok((_, None)) => None,
            Ok((_, Some(Err(error)))) => Some((Err(std::io::Error::other(error)), None)),
            Err(problem) => Some((Err(std::io::Error::other(problem.code().as_str())), None)),
        }
    });
    let disposition = HeaderValue::try_from(format!("attachment; filename=\"{name}\""));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::CONTENT_DISPOSITION, disposition.map_err(Problem::internal)?),
    ];
    Ok((StatusCode::OK, headers, Body::from_stream(pieces)).into_response())
}

fn next_piece<I: Iterator>(mut pieces: I) -> (I, Option<I::Item>) {
    let piece = pieces.next();
    (pieces, piece)
}
