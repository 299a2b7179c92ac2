//! The command line.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Parser;

use crate::{
    arguments::{Batch, Load, Target, Weighed, milliseconds},
    stream::Streams,
    threads,
};

/// Load for the benchmarks; `cargo xtask bench` calls it.
#[derive(Debug, Parser)]
pub(crate) enum Command {
    /// Echo runs over HTTP, each created and waited for
    Http {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        load: Load,
        /// Keep each connection in one conversation, which has had so many runs before
        #[arg(long, value_name = "RUNS")]
        history: Option<usize>,
        /// Addresses of further hosts of the cluster
        #[arg(long, value_name = "ADDRESS")]
        also: Vec<SocketAddr>,
        /// Send the events of so many workspaces, as an operator
        #[arg(long, value_name = "COUNT")]
        workspaces: Option<usize>,
    },
    /// Echo runs of a host in this process
    InProcess {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
        #[command(flatten)]
        load: Load,
    },
    /// Counts of echo runs of a host in this process: memory, rows, bytes, system calls
    CountEcho {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
        #[command(flatten)]
        batch: Batch,
    },
    /// The same of runs over AG-UI, of clients in a process of their own
    CountAgui {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
        #[command(flatten)]
        batch: Batch,
    },
    /// Time of the stages of an echo run of a host in this process, where a stage has a thread of its own
    Stages {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
        #[command(flatten)]
        load: Load,
    },
    /// Latency of echo runs of a host in this process, during merges of the ledger and at other times
    Merges {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
        #[command(flatten)]
        load: Load,
    },
    /// Runs over HTTP that emit deltas, each followed by a client to its end
    Deltas {
        #[command(flatten)]
        target: Target,
        /// Number of concurrent runs
        #[arg(long)]
        in_flight: usize,
        /// Number of runs
        #[arg(long)]
        runs: usize,
        /// Number of deltas in each run
        #[arg(long)]
        deltas: usize,
    },
    /// Runs over HTTP that pass on what a model streams, each followed by a client to its end
    Stream {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        streams: Streams,
    },
    /// Host calls of a guest in a host in this process
    Calls {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
        /// A new directory, for the documents of its knowledge base
        #[arg(long)]
        documents: PathBuf,
        /// Names of calls, such as `state.get`
        calls: Vec<String>,
    },
    /// Documents taken into a knowledge base, and questions to it
    Knowledge {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
        /// A new directory, for the documents
        #[arg(long)]
        documents: PathBuf,
        /// Number of passages
        #[arg(long)]
        passages: usize,
        /// Time of queries
        #[arg(long, value_name = "MS", default_value = "3000", value_parser = milliseconds)]
        measure: Duration,
    },
    /// Artifacts over HTTP, beside copies of a file
    Artifacts {
        #[command(flatten)]
        target: Target,
        /// A directory on the disk of the host
        #[arg(long)]
        dir: PathBuf,
    },
    /// Echo runs with a journal and without, in turn, of a host in this process
    JournalEcho {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
        /// Number of concurrent runs
        #[arg(long)]
        in_flight: usize,
        /// Number of pairs of stretches
        #[arg(long, default_value = "9")]
        pairs: usize,
        /// Time of each stretch
        #[arg(long, value_name = "MS", default_value = "1500", value_parser = milliseconds)]
        measure: Duration,
    },
    /// Host calls with a journal and without, in turn, of a host in this process
    JournalCalls {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
        /// Names of calls, such as `state.get`
        calls: Vec<String>,
    },
    /// Size of journals on disk, by host call
    JournalWeight {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
        /// Of which runs
        #[arg(long)]
        of: Weighed,
    },
    /// A run with many host calls, executed again
    Replay {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
        /// Name of the call, such as `state.get`
        #[arg(long)]
        call: String,
        /// Number of calls
        #[arg(long)]
        times: u32,
    },
    /// Runs that leave memory for a short time, in a host in this process
    Parking {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
        /// Number of runs
        #[arg(long)]
        runs: u64,
    },
    /// The start of a host that a crash left with sleeping runs
    Restart {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
    },
    /// Questions of runs over HTTP, each answered by a client
    Approval {
        #[command(flatten)]
        target: Target,
        /// Number of rounds
        #[arg(long)]
        rounds: usize,
        /// Number of people who answer concurrently afterwards
        #[arg(long)]
        in_flight: usize,
        /// Number of answers of each person
        #[arg(long)]
        each: usize,
    },
    /// Messages over HTTP to a run that waits for them
    Steering {
        #[command(flatten)]
        target: Target,
        /// Number of rounds
        #[arg(long)]
        rounds: usize,
    },
    /// Runs that a run starts, and plain ones, in a host in this process
    Children {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
    },
    /// Requests of guests to the outside, and those of a client without the host
    Egress {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
    },
    /// Runs over HTTP that executors, as many as are in flight, take from a queue and bring to their end
    Queue {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        load: Load,
    },
    /// Executors over HTTP that claim runs which wait, each executor at one of several hosts of a cluster
    Claims {
        /// Addresses of the hosts
        #[arg(long, required = true)]
        address: Vec<SocketAddr>,
        /// Number of executors
        #[arg(long)]
        executors: usize,
        /// Number of runs
        #[arg(long)]
        runs: usize,
    },
    /// An executor over HTTP that waits for runs, which come one after the other
    Wake {
        #[command(flatten)]
        target: Target,
        /// Number of rounds
        #[arg(long)]
        rounds: usize,
    },
    /// Clients that follow one run, of whom half never read; says when all are there, and goes with its input
    Subscribers {
        #[command(flatten)]
        target: Target,
        /// Number of subscribers
        #[arg(long)]
        subscribers: usize,
    },
    /// Runs over AG-UI, one after the other on each connection
    Agui {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        load: Load,
    },
    /// A fixed number of runs over AG-UI
    AguiRuns {
        /// Address of the host
        #[arg(long)]
        address: SocketAddr,
        #[command(flatten)]
        batch: Batch,
    },
    /// Runs over AG-UI whose model takes its time
    AguiTokens {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        streams: Streams,
        /// Runs of each connection
        #[arg(long)]
        each: usize,
    },
    /// Clients that come back to a run over AG-UI, one after the other
    AguiReattach {
        #[command(flatten)]
        target: Target,
        /// Number of rounds
        #[arg(long)]
        rounds: usize,
    },
    /// The first screen of a long thread over AG-UI
    AguiThread {
        #[command(flatten)]
        target: Target,
        /// Number of messages
        #[arg(long)]
        messages: usize,
        /// Number of requests
        #[arg(long)]
        rounds: usize,
    },
    /// Runs of one client over AG-UI, one after the other, whose model says all of its tokens at once
    AguiDeltas {
        #[command(flatten)]
        target: Target,
        /// Tokens of a run
        #[arg(long)]
        tokens: usize,
        /// Number of runs
        #[arg(long)]
        rounds: usize,
    },
    /// Runs over AG-UI whose client sends a long history along
    AguiHistory {
        #[command(flatten)]
        target: Target,
        /// Turns of the history
        #[arg(long)]
        turns: usize,
        /// Number of runs
        #[arg(long)]
        rounds: usize,
    },
    /// Turns that are added to a thread until it has so many facts
    ThreadFill {
        #[command(flatten)]
        target: Target,
        /// Id of the thread
        #[arg(long)]
        thread: String,
        /// Number of facts
        #[arg(long)]
        facts: u64,
        /// Number of deltas in each turn
        #[arg(long)]
        deltas: usize,
    },
    /// Read models, pages and the whole stream of a thread
    ThreadRead {
        #[command(flatten)]
        target: Target,
        /// Id of the thread
        #[arg(long)]
        thread: String,
        /// Number of rounds
        #[arg(long)]
        rounds: usize,
    },
    /// Clients that follow a thread whose executor says one result after the other
    ThreadFollow {
        #[command(flatten)]
        target: Target,
        /// Id of the thread, or the beginning of the ids
        #[arg(long)]
        thread: String,
        /// Threads of the followers
        #[arg(long, default_value = "one")]
        followed: threads::Followed,
        /// Number of followers
        #[arg(long)]
        followers: usize,
        /// Number of results
        #[arg(long)]
        rounds: usize,
    },
    /// Honest runs beside runs of hostile guests, which are cancelled at the end
    Isolation {
        #[command(flatten)]
        target: Target,
        /// Text of the message to hostile guests
        #[arg(long)]
        attack: String,
        /// Number of hostile guests
        #[arg(long)]
        guests: usize,
        /// Time of counting
        #[arg(long, value_name = "MS", value_parser = milliseconds)]
        measure: Duration,
    },
    /// A tree of runs whose root is cancelled
    CancelTree {
        #[command(flatten)]
        target: Target,
        /// Text of the message to the root
        #[arg(long)]
        text: String,
        /// Number of runs below the root
        #[arg(long)]
        runs: usize,
    },
    /// Deliveries to a webhook; prints its address, then reads the address of the host
    Deliveries {
        /// Number of events
        #[arg(long)]
        events: usize,
        /// Number of concurrent runs
        #[arg(long)]
        in_flight: usize,
    },
    /// A model server that streams tokens; prints where it listens, ends with its input
    #[command(hide = true)]
    ModelServer,
    /// A tool server over stdio
    #[command(hide = true)]
    ToolServer,
    /// Copies of one real echo run, written to the ledger of a host that is not running
    Fill {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
        /// Number of runs
        #[arg(long)]
        runs: u64,
    },
    /// The writes of echo runs to ledgers, without a host
    Ledgers {
        /// Configuration of a host with a ledger in files
        #[arg(long)]
        config: PathBuf,
        /// Configuration of a host of a cluster: its partitions, in place of one ledger in files
        #[arg(long)]
        cluster: Option<PathBuf>,
        #[command(flatten)]
        load: Load,
    },
    /// Opening a ledger
    Open {
        /// Configuration of the host
        #[arg(long)]
        config: PathBuf,
    },
    /// The raw cost of one commit on a disk
    Commit {
        /// A directory on it
        #[arg(long)]
        dir: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Command::command().debug_assert();
    }
}
