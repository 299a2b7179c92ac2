//! Processes with a ledger that are killed at any moment, with timing of their own: not beside other tests.

#[path = "../common/mod.rs"]
mod common;

mod backup;
mod crash;
mod damage;

/// The log of the ledgers that [`common::open`] opens.
const LOG: common::LogPlace = common::LogPlace::Files;
