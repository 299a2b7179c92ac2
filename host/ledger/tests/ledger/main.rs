//! The ledger by its handle: what is written is read back, what breaks a rule is refused, and nothing is lost by reopening.

#[path = "../common/mod.rs"]
mod common;

mod artifacts;
mod branches;
mod ends;
mod forget;
mod journal;
mod opening;
mod pages;
mod parking;
mod runs;
mod salvage;
mod statistics;
mod values;
mod workspaces;

/// The log of the ledgers that [`common::open`] opens.
const LOG: common::LogPlace = common::LogPlace::Files;
