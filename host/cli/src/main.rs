//! The binary `agent-host`: serve, run, inspect, and look after the ledger.
//!
//! The binary turns arguments into calls of the host or of a running server, and answers into text or JSON. The binary has no
//! rules: the crates below decide on acceptance, grants and refusals.
//!
//! Each command has a file under [`command`]. Standard output has only the result, standard error everything else, so
//! output can be piped; `--json` makes both machine-readable. Exit codes: 0 for success, 1 for failure (`run`: the run did
//! not complete; `inspect`: the file is refused), 2 for a wrong command line.

mod address;
mod allocator;
mod args;
mod client;
mod command;
mod failure;
#[cfg(target_os = "linux")]
mod harness_transport;
mod logging;
mod output;
mod progress;
mod resolve;
mod settings;
mod signals;
mod source;
mod styled;
mod table;
mod telemetry;
mod terminal;
mod text;

use std::{process::ExitCode, time::Duration};

use clap::Parser;

use crate::{
    command::{Cli, Command},
    output::Output,
    settings::Settings,
    telemetry::Telemetry,
};

/// A run allocates many small things on one thread and frees them on another, which the system's allocator is slow at
/// (docs/PERFORMANCE.md has the difference).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Threads that still read or compile when the command is done are not waited for longer than this.
const LEFTOVERS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    // Before anything else: a launcher reads no configuration, and confines itself while it has one thread.
    #[cfg(target_os = "linux")]
    if std::env::args_os().nth(1).is_some_and(|argument| argument == command::harness::LAUNCHER) {
        return agent_host_harness::launch(std::env::args_os().skip(2).collect());
    }
    if std::env::args_os().nth(1).is_some_and(|argument| argument == agent_host_sandbox::COMPILER) {
        let arguments: Vec<_> = std::env::args_os().skip(2).collect();
        return agent_host_sandbox::compile(&arguments);
    }
    if std::env::args_os().nth(1).is_some_and(|argument| argument == agent_host_runs::knowledge_bases::DOCUMENT_READER) {
        let arguments: Vec<_> = std::env::args_os().skip(2).collect();
        return agent_host_runs::knowledge_bases::read_document(&arguments);
    }
    allocator::keep_freed_memory();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return output::usage(&error),
    };
    let output = Output::new(cli.global.json);
    // The command reports errors of the configuration.
    let watched = Settings::load(&cli.global).map(|settings| settings.config.telemetry).unwrap_or_default();
    logging::start(&cli.global, is_service(&cli.command), &watched);
    // Traces exist only for commands that execute runs.
    let traced = if matches!(cli.command, Command::Serve(_) | Command::Run(_)) {
        Telemetry::start(&watched)
    } else {
        Ok(Telemetry::off())
    };
    let telemetry = match traced {
        Ok(telemetry) => telemetry,
        Err(why) => return output.report_failure(&anyhow::Error::msg(why)),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return output.report_failure(&error.into()),
    };
    let done = runtime.block_on(command::execute(cli, &output));
    runtime.shutdown_timeout(LEFTOVERS);
    telemetry.finish();
    match done {
        Ok(code) => code,
        Err(error) => output.report_failure(&error),
    }
}

/// True for a command that runs until it is ended, and logs what happens.
const fn is_service(command: &Command) -> bool {
    match command {
        Command::Serve(_) => true,
        #[cfg(target_os = "linux")]
        Command::Harness(_) => true,
        _ => false,
    }
}
