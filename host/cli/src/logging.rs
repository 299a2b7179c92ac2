//! The log of the process: to standard error, so that standard output stays what was asked for.

use std::io::{self, IsTerminal};

use tracing_subscriber::{EnvFilter, fmt};

use crate::args::{Cli, Command};

/// Filters, in the form of `tracing-subscriber`: `warn,agent_host_runs=debug`.
const VARIABLE: &str = "AGENT_HOST_LOG";

/// Starts logging. What the command line says comes first, then the environment, then what fits the command: a
/// server says what it does, everything else only what goes wrong.
pub(crate) fn start(cli: &Cli) {
    // A plugin that is refused is news to an operator; to who runs another one it is noise.
    let usual = if matches!(cli.command, Command::Serve(_)) { "info" } else { "warn,agent_host_sandbox=error" };
    let asked = match (cli.global.log, cli.global.verbose) {
        (Some(level), _) => Some(level.as_str()),
        (None, 0) => None,
        (None, 1) => Some("info"),
        (None, 2) => Some("debug"),
        (None, _) => Some("trace"),
    };
    let filter = match asked {
        Some(level) => EnvFilter::new(level),
        None => EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(usual)),
    };
    // It writes whole messages, at some levels with the headers of requests, and what is in them is between a tool and
    // who calls it. What goes wrong, `agent_host_providers` says.
    let filter = match "rmcp=off".parse() {
        Ok(quiet) => filter.add_directive(quiet),
        Err(_) => filter,
    };
    let builder = fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    // A second subscriber cannot be there: this runs once. Without a log the command still works.
    let _ = if cli.global.json { builder.json().try_init() } else { builder.try_init() };
}
