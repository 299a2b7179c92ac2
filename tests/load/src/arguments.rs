//! Arguments that several commands have.

use std::{net::SocketAddr, time::Duration};

use clap::Args;

/// Runs whose journals are weighed.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Weighed {
    /// Echo runs
    Echo,
    /// Runs that read and write state
    State,
    /// A run that passes on what a model streams
    Stream,
}

/// A host that serves.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Address of the host
    #[arg(long)]
    pub(crate) address: SocketAddr,
    /// Process id of the host
    #[arg(long)]
    pub(crate) pid: u32,
}

/// Rate and duration.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Load {
    /// Number of concurrent runs
    #[arg(long)]
    pub(crate) in_flight: usize,
    /// Time before counting
    #[arg(long, value_name = "MS", default_value = "1000", value_parser = milliseconds)]
    pub(crate) warm_up: Duration,
    /// Time of counting
    #[arg(long, value_name = "MS", default_value = "5000", value_parser = milliseconds)]
    pub(crate) measure: Duration,
}

/// A number of runs.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Batch {
    /// Number of concurrent runs
    #[arg(long)]
    pub(crate) in_flight: usize,
    /// Number of runs
    #[arg(long)]
    pub(crate) runs: usize,
}

pub(crate) fn milliseconds(text: &str) -> Result<Duration, std::num::ParseIntError> {
    text.parse().map(Duration::from_millis)
}
