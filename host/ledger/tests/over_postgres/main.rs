//! The tests of the ledger that go through its handle, over a log in PostgreSQL. What is about the files of a log is in `ledger/opening.rs`,
//! `ledger/salvage.rs` and `killed/damage.rs`, and not here.

#[path = "../common/mod.rs"]
mod common;

#[path = "../ledger/artifacts.rs"]
mod artifacts;
#[path = "../ledger/branches.rs"]
mod branches;
#[path = "../killed/crash.rs"]
mod crash;
#[path = "../ledger/ends.rs"]
mod ends;
#[path = "../ledger/forget.rs"]
mod forget;
#[path = "../ledger/journal.rs"]
mod journal;
#[path = "../model/model.rs"]
mod model;
#[path = "../ledger/pages.rs"]
mod pages;
#[path = "../ledger/parking.rs"]
mod parking;
#[path = "../ledger/runs.rs"]
mod runs;
#[path = "../ledger/statistics.rs"]
mod statistics;
#[path = "../ledger/values.rs"]
mod values;
#[path = "../ledger/workspaces.rs"]
mod workspaces;

/// The log of these ledgers.
const LOG: common::LogPlace = common::LogPlace::Postgres;
