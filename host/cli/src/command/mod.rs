//! The commands, one file each.

mod action_text;
pub(crate) mod actions;
mod asked;
pub(crate) mod completions;
pub(crate) mod config;
mod event_text;
pub(crate) mod fork;
pub(crate) mod inspect;
mod journal_text;
pub(crate) mod knowledge;
pub(crate) mod ledger;
mod plugin_text;
pub(crate) mod replay;
pub(crate) mod run;
mod run_text;
pub(crate) mod runners;
pub(crate) mod runs;
pub(crate) mod serve;

use std::process::ExitCode;

use crate::{
    args::{Cli, Command},
    output::Output,
    settings::Settings,
};

/// Does what the command line says.
pub(crate) async fn execute(cli: Cli, output: &Output) -> anyhow::Result<ExitCode> {
    let output = *output;
    if let Command::Completions(args) = cli.command {
        return args.execute();
    }
    let settings = Settings::load(&cli.global)?;
    match cli.command {
        Command::Serve(args) => args.execute(settings.config, output).await,
        Command::Run(args) => args.execute(settings.config, output).await,
        Command::Runners(args) => args.execute(&settings.config, output).await,
        Command::Inspect(args) => args.execute(&settings.config, output).await,
        Command::Replay(args) => args.execute(&settings.config, output).await,
        Command::Fork(args) => args.execute(&settings.config, output).await,
        Command::Actions(command) => command.execute(&settings.config, output).await,
        Command::Runs(command) => command.execute(&settings.config, output).await,
        Command::Ledger(command) => command.execute(&settings.config, output).await,
        Command::Knowledge(command) => command.execute(&settings.config, output).await,
        Command::Config(command) => command.execute(&settings, output),
        Command::Completions(args) => args.execute(),
    }
}
