//! Full-text search in any language, for knowledge and for transcripts.
//!
//! It is: one [`Analyzer`] that cuts text into terms, the same for what is kept and for what is asked, and the index of
//! transcripts. A query is plain text, never a language with operators: no text of a user or a model can be a wrong one.

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
