//! A run outlives its host: hosts are killed in the middle of what they do, and come back on the same directories.

use agent_host_tests::support;

mod model;

mod clock;
mod crash;
mod doubts;
mod family;
mod kills;
mod outside;
mod parking;
mod policies;
mod replays;
mod versions;
