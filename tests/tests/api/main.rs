//! The real binary with real sockets: its HTTP API, its command line, what an operator does to it and sees of it.

mod access;
mod cli;
mod http;
mod operations;
mod pipeline;
mod secrets;
mod watch;
