//! The ledger against a simple model of it.

#[path = "../common/mod.rs"]
mod common;

mod model;

/// The log of these ledgers.
const LOG: common::LogPlace = common::LogPlace::Files;
