//! The program of one target: its name is the name of the target.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| (agent_host_fuzz::target(env!("CARGO_BIN_NAME")).run)(data));
