//! The kept log of a run: what its guest wrote to `log` and to its standard streams.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::time::Timestamp;

/// The source of a line of the log of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunLogSource {
    /// Standard output.
    Stdout,
    /// Standard error; the message of a panic is here.
    Stderr,
    /// `log.write` of level `trace`.
    Trace,
    /// `log.write` of level `debug`.
    Debug,
    /// `log.write` of level `info`.
    Info,
    /// `log.write` of level `warn`.
    Warn,
    /// `log.write` of level `error`.
    Error,
    /// A remark of the host, such as the count of dropped bytes.
    Host,
}

impl RunLogSource {
    /// The name in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
            Self::Host => "host",
        }
    }
}

/// A line of the log of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunLogLine {
    /// Number of the line in the log of its run, from 1. Numbers that are missing belong to dropped lines.
    pub no: u64,
    /// Time at which the host took the line.
    pub at: Timestamp,
    /// Source of the line.
    pub source: RunLogSource,
    /// Text without its line break and without control characters.
    pub text: String,
    /// Bytes that the run wrote before this line and that were dropped, because they came faster than `limits.log_bytes_per_second`
    /// allows. Only in lines of source `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped_bytes: Option<u64>,
}

/// A page of the log of a run, oldest line first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct RunLogPage {
    /// Lines of the page.
    pub items: Vec<RunLogLine>,
    /// Cursor of the lines after this page. The log of an active run may grow behind it.
    #[serde(default)]
    pub next_cursor: Option<String>,
    /// True if there are more lines now.
    pub has_more: bool,
    /// Lines before the oldest kept one. They were dropped to stay within `limits.log_bytes`.
    pub dropped_lines: u64,
}
