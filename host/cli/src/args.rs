//! Options of every command.

use std::path::PathBuf;

use agent_host_config::LogFormat;
use clap::{ArgAction, Args, ValueEnum};

/// The arguments that every command accepts.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// Configuration file [default: ./agent-host.toml if there is one]
    #[arg(long, global = true, value_name = "FILE", env = "AGENT_HOST_CONFIG", help_heading = "Global options")]
    pub(crate) config: Option<PathBuf>,
    /// Folder of the ledger and the compiled code, instead of [server] data_dir
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Folder of the plugins, instead of [server] plugins_dir
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    pub(crate) plugins_dir: Option<PathBuf>,
    /// The API key for requests to servers; the environment hides it from other users of the machine
    #[arg(
        long,
        global = true,
        value_name = "KEY",
        env = "AGENT_HOST_KEY",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub(crate) key: Option<String>,
    /// The workspace that requests are about, where the key is of none and the cluster has several partitions
    #[arg(long, global = true, value_name = "ID", env = "AGENT_HOST_WORKSPACE", help_heading = "Global options")]
    pub(crate) for_workspace: Option<String>,
    /// Write JSON, on standard output and for errors on standard error
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// Log more to standard error (-vv for most)
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "log", help_heading = "Global options")]
    pub(crate) verbose: u8,
    /// Level of the log; AGENT_HOST_LOG accepts filters such as `warn,agent_host_runs=debug`
    #[arg(long, global = true, value_name = "LEVEL", help_heading = "Global options")]
    pub(crate) log: Option<LogLevel>,
    /// Format of the log, instead of [telemetry] log_format
    #[arg(long, global = true, value_name = "FORMAT", help_heading = "Global options")]
    pub(crate) log_format: Option<LogForm>,
}

/// The format of the log.
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

/// The level of the log.
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
