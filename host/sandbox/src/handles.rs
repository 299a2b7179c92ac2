//! What stands behind the handles that a guest holds.

#![allow(unreachable_pub, reason = "named by the generated traits, which are public")]

use crate::calls::{ArtifactReader, ArtifactWriter, HttpResponse, ResponseStream};

/// `models.response-stream`.
pub struct Responses(pub(crate) Box<dyn ResponseStream>);

/// `artifacts.reader`.
pub struct Reader(pub(crate) Box<dyn ArtifactReader>);

/// `artifacts.writer`.
pub struct Writer(pub(crate) Box<dyn ArtifactWriter>);

/// `http.response`.
pub struct Response(pub(crate) Box<dyn HttpResponse>);
