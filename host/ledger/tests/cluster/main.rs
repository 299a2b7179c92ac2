//! A ledger whose log is in a PostgreSQL that the tests start: one active host, and warm ones.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

#[path = "../common/mod.rs"]
mod common;

mod division;
mod drain;
mod errors;
mod followers;
mod hosts;
mod import;
mod killed;
mod lost_answers;
mod partitions;
mod repair;
mod snapshots;
mod storage;
mod takeover;

/// The log of the ledgers that [`common::open`] opens.
const LOG: common::LogPlace = common::LogPlace::Files;
