//! A run outlives its host: hosts are killed in the middle of what they do, and come back on the same directories.

use agent_host_tests::support;

mod model;
#[path = "../../../host/ledger/tests/common/postgres.rs"]
#[allow(dead_code, missing_docs, reason = "the tests of the ledger use the rest")]
mod postgres;
#[path = "../../../host/ledger/tests/common/proxy.rs"]
#[allow(dead_code, missing_docs, reason = "the tests of the ledger use the rest")]
mod proxy;

mod clock;
mod cluster;
mod cluster_components;
mod crash;
mod doubts;
mod family;
mod faults;
mod forwarding;
mod kills;
mod outside;
mod parking;
mod partition_executors;
mod partition_import;
mod partitions;
mod policies;
mod replays;
mod storage;
mod undisturbed;
mod versions;
