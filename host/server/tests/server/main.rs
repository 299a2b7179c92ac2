//! The HTTP server over a host of this process.

mod artifacts;
mod problems;
mod runs;
mod support;
