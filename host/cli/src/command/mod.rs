//! The command line, and its commands, one file each with its own arguments.

mod action_text;
mod actions;
mod backend;
mod cluster;
mod completions;
mod config;
mod config_check;
mod conformance;
mod create;
mod deliveries;
mod event_text;
mod evidence;
mod executors;
mod failure_text;
mod fork;
#[cfg(target_os = "linux")]
pub(crate) mod harness;
mod health;
mod import;
mod init;
mod init_files;
mod inspect;
mod journal_text;
mod keys;
mod knowledge;
mod ledger;
mod man;
mod mcp_bridge;
mod open_actions;
mod openapi;
mod plugin_text;
mod plugins;
mod replay;
mod run;
mod run_host;
mod run_logs;
mod run_text;
mod runners;
mod runs;
mod schedules;
mod serve;
mod serve_cluster;
mod show_run;
mod standby;
mod statistics;
#[cfg(test)]
mod tests;
mod threads;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::{args::Global, client, output::Output, settings::Settings};

/// Runs agent runners: WebAssembly plugins that answer events.
#[derive(Debug, Parser)]
#[command(
    name = "agent-host",
    version,
    propagate_version = false,
    after_help = "Exit codes: 0 it worked; 1 it did not; 2 the command line is wrong."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Init(init::Init),
    Serve(serve::Serve),
    Run(Box<run::Run>),
    Runners(runners::Runners),
    Inspect(inspect::Inspect),
    #[command(subcommand)]
    Plugins(plugins::Plugins),
    #[command(subcommand)]
    Runs(runs::Runs),
    #[command(subcommand)]
    Threads(threads::Threads),
    Backend(backend::Backend),
    Statistics(statistics::Statistics),
    #[command(subcommand)]
    Actions(actions::Actions),
    #[command(subcommand)]
    Schedules(schedules::Schedules),
    #[command(subcommand)]
    Deliveries(deliveries::Deliveries),
    #[command(subcommand)]
    Executors(executors::Executors),
    #[cfg(target_os = "linux")]
    Harness(harness::HarnessCommand),
    #[command(subcommand)]
    DeadLetters(create::DeadLetters),
    #[command(subcommand)]
    Evidence(evidence::EvidenceCommand),
    Replay(replay::Replay),
    Fork(fork::Fork),
    #[command(subcommand)]
    Keys(keys::Keys),
    #[command(subcommand)]
    Ledger(ledger::LedgerCommand),
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    #[command(subcommand)]
    Knowledge(knowledge::KnowledgeCommand),
    #[command(subcommand)]
    Config(config::ConfigCommand),
    Import(import::Import),
    Conformance(conformance::Conformance),
    McpBridge(mcp_bridge::McpBridge),
    #[command(name = "openapi")]
    OpenApi(openapi::OpenApi),
    Completions(completions::Completions),
    Man(man::Man),
    Health(health::Health),
}

/// Does what the command line says.
pub(crate) async fn execute(cli: Cli, output: &Output) -> anyhow::Result<ExitCode> {
    let output = *output;
    // Commands without a configuration must not fail because of one.
    match &cli.command {
        Command::Completions(args) => return args.execute(),
        Command::Man(args) => return args.execute(),
        Command::OpenApi(args) => return args.execute(),
        Command::Conformance(args) => return args.execute(output),
        Command::McpBridge(args) => return args.execute().await,
        Command::Init(args) => return args.execute(output).await,
        _ => {}
    }
    let settings = Settings::load(&cli.global)?;
    client::use_key(cli.global.key.clone())?;
    client::use_workspace(cli.global.for_workspace.clone())?;
    match cli.command {
        Command::Init(args) => args.execute(output).await,
        Command::Serve(args) => args.execute(settings.config, cli.global, output).await,
        Command::Run(args) => args.execute(settings.config, output).await,
        Command::Runners(args) => args.execute(&settings.config, output).await,
        Command::Inspect(args) => args.execute(&settings.config, output).await,
        Command::Plugins(command) => command.execute(settings.config, output).await,
        Command::Evidence(command) => command.execute(&settings.config, output).await,
        Command::Replay(args) => args.execute(&settings.config, output).await,
        Command::Fork(args) => args.execute(&settings.config, output).await,
        Command::Actions(command) => command.execute(&settings.config, output).await,
        Command::Schedules(command) => command.execute(&settings.config, output).await,
        Command::Deliveries(command) => command.execute(&settings.config, output).await,
        Command::Import(args) => args.execute(settings.config, output).await,
        Command::Runs(command) => command.execute(&settings.config, output).await,
        Command::Threads(command) => command.execute(&settings.config, output).await,
        Command::Backend(args) => args.execute(&settings.config, output).await,
        Command::Executors(command) => command.execute(&settings.config, output).await,
        #[cfg(target_os = "linux")]
        Command::Harness(args) => args.execute(&settings.config, cli.global.key, output).await,
        Command::DeadLetters(command) => command.execute(&settings.config, output).await,
        Command::Keys(command) => command.execute(&settings.config, output).await,
        Command::Ledger(command) => command.execute(&settings.config, output).await,
        Command::Cluster(command) => command.execute(&settings.config, output).await,
        Command::Knowledge(command) => command.execute(&settings.config, output).await,
        Command::Config(command) => command.execute(&settings, output).await,
        Command::Statistics(args) => args.execute(&settings.config, output).await,
        Command::Completions(args) => args.execute(),
        Command::Man(args) => args.execute(),
        Command::Health(args) => args.execute(&settings.config, output).await,
        Command::OpenApi(args) => args.execute(),
        Command::Conformance(args) => args.execute(output),
        Command::McpBridge(args) => args.execute().await,
    }
}

/// The program whose processes compile components and read documents: this one, even if its file was replaced meanwhile.
fn compiler() -> Option<PathBuf> {
    if cfg!(target_os = "linux") { Some("/proc/self/exe".into()) } else { std::env::current_exe().ok() }
}
