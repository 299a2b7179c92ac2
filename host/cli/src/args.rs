//! The command line.

use std::path::PathBuf;

use agent_host_runs::LogFormat;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use crate::command::{
    actions, completions, config, create, deliveries, executors, fork, inspect, keys, knowledge, ledger, openapi, replay, run,
    runners, runs, schedules, serve, statistics,
};

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

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// Configuration file [default: ./agent-host.toml if there is one]
    #[arg(long, global = true, value_name = "FILE", env = "AGENT_HOST_CONFIG", help_heading = "Global options")]
    pub(crate) config: Option<PathBuf>,
    /// Where the ledger and the compiled code are, instead of [server] data_dir
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Where the plugins are, instead of [server] plugins_dir
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    pub(crate) plugins_dir: Option<PathBuf>,
    /// The API key that servers are asked with; the environment hides it from other users of the machine
    #[arg(
        long,
        global = true,
        value_name = "KEY",
        env = "AGENT_HOST_KEY",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub(crate) key: Option<String>,
    /// Write JSON, on standard output and for errors on standard error
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// Log more to standard error (-vv for most)
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "log", help_heading = "Global options")]
    pub(crate) verbose: u8,
    /// How much to log; AGENT_HOST_LOG takes filters such as `warn,agent_host_runs=debug`
    #[arg(long, global = true, value_name = "LEVEL", help_heading = "Global options")]
    pub(crate) log: Option<LogLevel>,
    /// How to write the log, instead of [telemetry] log_format
    #[arg(long, global = true, value_name = "FORMAT", help_heading = "Global options")]
    pub(crate) log_format: Option<LogForm>,
}

/// How to write the log.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogForm {
    Text,
    Json,
}

impl From<LogForm> for LogFormat {
    fn from(form: LogForm) -> Self {
        match form {
            LogForm::Text => Self::Text,
            LogForm::Json => Self::Json,
        }
    }
}

/// How much to log.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(serve::Serve),
    Run(Box<run::Run>),
    Runners(runners::Runners),
    Inspect(inspect::Inspect),
    #[command(subcommand)]
    Runs(runs::Runs),
    Statistics(statistics::Statistics),
    #[command(subcommand)]
    Actions(actions::Actions),
    #[command(subcommand)]
    Schedules(schedules::Schedules),
    #[command(subcommand)]
    Deliveries(deliveries::Deliveries),
    #[command(subcommand)]
    Executors(executors::Executors),
    #[command(subcommand)]
    DeadLetters(create::DeadLetters),
    Replay(replay::Replay),
    Fork(fork::Fork),
    #[command(subcommand)]
    Keys(keys::Keys),
    #[command(subcommand)]
    Ledger(ledger::LedgerCommand),
    #[command(subcommand)]
    Knowledge(knowledge::KnowledgeCommand),
    #[command(subcommand)]
    Config(config::ConfigCommand),
    #[command(name = "openapi")]
    OpenApi(openapi::OpenApi),
    Completions(completions::Completions),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn global_options_stand_anywhere() {
        let cli = parse("agent-host runs list --json --data-dir d --limit 5").unwrap();
        assert!(cli.global.json && cli.global.data_dir.is_some());
        assert!(parse("agent-host --json runs list").unwrap().global.json);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for line in [
            "agent-host",
            "agent-host run",
            "agent-host run echo text --file f",
            "agent-host run echo --config-json [1]",
            "agent-host run echo --timeout 0",
            "agent-host runs show 7",
            "agent-host runs list --limit 101",
            "agent-host runs journal 7",
            "agent-host runs record 7",
            "agent-host replay",
            "agent-host replay a.json --until -1",
            "agent-host fork 01890a5d-ac96-774b-bcce-b302099a8057",
            "agent-host fork 7 --at 1",
            "agent-host fork 01890a5d-ac96-774b-bcce-b302099a8057 --at 1 --config-json [1]",
            "agent-host runs list --status done",
            "agent-host actions show 7",
            "agent-host actions show 01890a5d-ac96-774b-bcce-b302099a8057",
            "agent-host actions show 01890a5d-ac96-774b-bcce-b302099a8057.1/../x",
            "agent-host actions list --limit 101",
            "agent-host deliveries list --state lost",
            "agent-host deliveries list --limit 101",
            "agent-host deliveries retry 01890a5d-ac96-774b-bcce-b302099a8057",
            "agent-host deliveries retry 01890a5d-ac96-774b-bcce-b302099a8057 a/b",
            "agent-host deliveries retry 7 crm",
            "agent-host schedules",
            "agent-host actions list --run 01890a5d-ac96-774b-bcce-b302099a8057 --limit 5",
            "agent-host actions respond 01890a5d-ac96-774b-bcce-b302099a8057.1",
            "agent-host actions respond 01890a5d-ac96-774b-bcce-b302099a8057.1 maybe",
            "agent-host actions respond 01890a5d-ac96-774b-bcce-b302099a8057.1 submit --answer {",
            "agent-host serve --listen nowhere",
            "agent-host keys create",
            "agent-host keys create --scope everything",
            "agent-host keys create --scope admin --expires-in 5",
            "agent-host keys revoke ../runs",
            "agent-host knowledge add docs",
            "agent-host knowledge add docs . --meta year",
            "agent-host knowledge search docs word --top-k 51",
            "agent-host knowledge search docs word --filters [1]",
            "agent-host knowledge remove docs",
            "agent-host ledger backup",
            "agent-host ledger restore",
            "agent-host statistics --by workspace",
            "agent-host statistics --since yesterday",
            "agent-host -v --log debug runners",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn runs_respond_is_actions_respond() {
        let line = "respond 01890a5d-ac96-774b-bcce-b302099a8057.e7 submit --answer {} --reason r --token t";
        let by_action = parse(&format!("agent-host actions {line}")).unwrap().command;
        let by_run = parse(&format!("agent-host runs {line}")).unwrap().command;
        let (Command::Actions(actions::Actions::Respond(one)), Command::Runs(runs::Runs::Respond(other))) = (by_action, by_run)
        else {
            panic!("not respond")
        };
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
    }

    #[test]
    fn a_port_is_enough_to_listen() {
        let Command::Serve(serve) = parse("agent-host serve --listen 8080").unwrap().command else { panic!("not serve") };
        assert_eq!(serve.listen.unwrap().to_string(), "127.0.0.1:8080");
    }
}
