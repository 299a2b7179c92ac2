//! The description of the API is true: other people's programs take it for valid, every answer that a host gives fits it, and
//! a program that reads nothing else finds no fault with the host.

mod agents;
mod conversation;
mod document;
mod fuzzed;
mod watched;

/// The programs that these tests run.
fn programs() -> std::path::PathBuf {
    agent_host_tests::pip::programs(include_str!("requirements.txt"))
}
