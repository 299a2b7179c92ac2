//! The parts of requests, extracted so that a refusal is a problem document.

use std::str::FromStr;

use agent_host_protocol::{EventId, IdError, RunId};
use axum::{
    extract::{self, FromRequestParts},
    http::request::Parts,
};

use serde::de::DeserializeOwned;

use super::{problem::Problem, query::Query};

/// The texts of a path. Bytes that are no text are `not_found`.
pub(crate) struct Path<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match extract::Path::from_request_parts(parts, state).await {
            Ok(extract::Path(texts)) => Ok(Self(texts)),
            Err(_) => Err(Problem::not_found("the path is not UTF-8")),
        }
    }
}

/// The `{id}` of a path. A malformed id is `not_found`, like an unknown one.
pub(crate) struct Id<T>(pub(crate) T);

/// An id in a path, with the noun that refusals use for it.
pub(crate) trait PathId: FromStr<Err = IdError> {
    const WHAT: &'static str;
}

impl PathId for RunId {
    const WHAT: &'static str = "run";
}

impl PathId for EventId {
    const WHAT: &'static str = "event";
}

impl<S: Send + Sync, T: PathId> FromRequestParts<S> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Ok(extract::Path(text)) = extract::Path::<String>::from_request_parts(parts, state).await else {
            return Err(Problem::not_found(format!("the id of a {} is not UTF-8", T::WHAT)));
        };
        text.parse().map(Self).map_err(|error| Problem::not_found(format!("no {}: {error}", T::WHAT)))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::parse(parts.uri.query())
    }
}
