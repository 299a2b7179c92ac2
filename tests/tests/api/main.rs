//! The real binary with real sockets: its HTTP API, its command line, what an operator does to it and sees of it.

mod access;
mod cli;
mod first_start;
mod http;
mod operations;
mod pipeline;
mod run_logs;
mod secrets;
mod watch;
