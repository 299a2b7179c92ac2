//! Full-text search in any language, for knowledge and for transcripts.
//!
//! One [`Analyzer`] that splits text into terms, the same for documents and queries, and the index of transcripts. A query
//! is plain text without operators, so no text of a user or a model is invalid.

mod analyzer;
mod error;
pub(crate) mod open;
mod query;
mod transcript;

pub use analyzer::{ANALYZER, Analyzer, MAX_TERM_BYTES};
pub use error::SearchError;

pub use query::{MAX_QUERY_BYTES, MAX_QUERY_TERMS};
pub(crate) use query::{WeightedField, text_query};
pub use transcript::{TranscriptDoc, TranscriptFilter, TranscriptIndex};
