//! Knowledge bases and the index of transcripts.

mod crash;
mod files;
mod transcripts;
