//! The commands, one file each.

mod action_text;
pub(crate) mod actions;
mod asked;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod create;
pub(crate) mod deliveries;
mod event_text;
pub(crate) mod executors;
pub(crate) mod fork;
pub(crate) mod inspect;
mod journal_text;
pub(crate) mod keys;
pub(crate) mod knowledge;
pub(crate) mod ledger;
pub(crate) mod openapi;
mod plugin_text;
pub(crate) mod replay;
pub(crate) mod run;
mod run_text;
pub(crate) mod runners;
pub(crate) mod runs;
pub(crate) mod schedules;
pub(crate) mod serve;
pub(crate) mod statistics;

use std::process::ExitCode;

use crate::{
    args::{Cli, Command},
    client,
    output::Output,
    settings::Settings,
};

/// Does what the command line says.
pub(crate) async fn execute(cli: Cli, output: &Output) -> anyhow::Result<ExitCode> {
    let output = *output;
    // These need no configuration, and must not fail for one.
    match &cli.command {
        Command::Completions(args) => return args.execute(),
        Command::OpenApi(args) => return args.execute(),
        _ => {}
    }
    let settings = Settings::load(&cli.global)?;
    client::use_key(cli.global.key.clone())?;
    match cli.command {
        Command::Serve(args) => args.execute(settings.config, cli.global, output).await,
        Command::Run(args) => args.execute(settings.config, output).await,
        Command::Runners(args) => args.execute(&settings.config, output).await,
        Command::Inspect(args) => args.execute(&settings.config, output).await,
        Command::Replay(args) => args.execute(&settings.config, output).await,
        Command::Fork(args) => args.execute(&settings.config, output).await,
        Command::Actions(command) => command.execute(&settings.config, output).await,
        Command::Schedules(command) => command.execute(&settings.config, output).await,
        Command::Deliveries(command) => command.execute(&settings.config, output).await,
        Command::Runs(command) => command.execute(&settings.config, output).await,
        Command::Executors(command) => command.execute(&settings.config, output).await,
        Command::DeadLetters(command) => command.execute(&settings.config, output).await,
        Command::Keys(command) => command.execute(&settings.config, output).await,
        Command::Ledger(command) => command.execute(&settings.config, output).await,
        Command::Knowledge(command) => command.execute(&settings.config, output).await,
        Command::Config(command) => command.execute(&settings, output).await,
        Command::Statistics(args) => args.execute(&settings.config, output).await,
        Command::Completions(args) => args.execute(),
        Command::OpenApi(args) => args.execute(),
    }
}
