//! Failures, each with a code for programs.

use std::io;

use agent_host_config::ConfigError;
use agent_host_ledger::{BackupError, ClusterError, LedgerError, OpenError};
use agent_host_protocol::ApiError;
use agent_host_runs::{HostError, RecordingError, ReplayError, StartError, ThreadError, knowledge_bases::KnowledgeError};
use agent_host_server::{BindError, ServeError};

/// An error of the command itself, or of a server that it asked.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    code: String,
    message: String,
    exit_code: u8,
}

impl Failure {
    pub(crate) fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), exit_code: 1 }
    }

    /// The failure of a process that ends with another exit code.
    pub(crate) fn exiting_with(self, exit_code: u8) -> Self {
        Self { exit_code, ..self }
    }

    pub(crate) fn code(&self) -> &str {
        &self.code
    }
}

/// The message of a failure: the texts of its chain, outermost first. Many errors have the text of their source in their own
/// text, so a text that the message already has is left out.
pub(crate) fn message(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |message, cause| {
        let text = cause.to_string();
        if message.is_empty() {
            text
        } else if message.contains(text.trim()) {
            message
        } else {
            format!("{message}: {text}")
        }
    })
}

/// The exit code of the process.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    error.downcast_ref().map_or(1, |failure: &Failure| failure.exit_code)
}

/// The code of a failure: the first in the chain that has one.
pub(crate) fn code(error: &anyhow::Error) -> &str {
    error.chain().find_map(code_of).unwrap_or("failed")
}

fn code_of<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a str> {
    if let Some(failure) = cause.downcast_ref::<Failure>() {
        return Some(&failure.code);
    }
    if let Some(error) = cause.downcast_ref::<HostError>() {
        return Some(error.code());
    }
    if cause.is::<ConfigError>() {
        return Some("invalid_config");
    }
    if let Some(error) = cause.downcast_ref::<StartError>() {
        return Some(match error {
            StartError::Config(_) => "invalid_config",
            StartError::Ledger(error) => open_code(error),
            StartError::InCluster | StartError::Password(_) => "cluster",
            StartError::Knowledge(error) => knowledge_code(error),
            _ => "start_failed",
        });
    }
    if let Some(error) = cause.downcast_ref::<OpenError>() {
        return Some(open_code(error));
    }
    if cause.is::<ClusterError>() {
        return Some("cluster");
    }
    if let Some(error) = cause.downcast_ref::<BackupError>() {
        return Some(match error {
            BackupError::AlreadyThere { .. } | BackupError::LedgerThere { .. } => "already_there",
            BackupError::NotABackup { .. } => "not_a_backup",
            BackupError::Damaged { .. } => "damaged_backup",
            BackupError::Open(error) => open_code(error),
            BackupError::Ledger(error) => ledger_code(error),
            _ => "backup_failed",
        });
    }
    if let Some(error) = cause.downcast_ref::<LedgerError>() {
        return Some(ledger_code(error));
    }
    if let Some(error) = cause.downcast_ref::<ThreadError>() {
        return Some(match error {
            ThreadError::NotFound(_) => "not_found",
            ThreadError::Forgotten(_) => "thread_forgotten",
            ThreadError::BehindEnd { .. } => "invalid_cursor",
            ThreadError::Ledger(error) => ledger_code(error),
        });
    }
    if let Some(error) = cause.downcast_ref::<RecordingError>() {
        return Some(recording_code(error));
    }
    if let Some(error) = cause.downcast_ref::<ReplayError>() {
        return Some(match error {
            ReplayError::Recording(error) => recording_code(error),
            ReplayError::Runner(_) => "runner_not_found",
            _ => "replay_failed",
        });
    }
    if let Some(error) = cause.downcast_ref::<KnowledgeError>() {
        return Some(knowledge_code(error));
    }
    if let Some(error) = cause.downcast_ref::<ApiError>() {
        return Some(error.code.as_str());
    }
    if cause.is::<BindError>() || cause.is::<ServeError>() {
        return Some("listen_failed");
    }
    cause.is::<io::Error>().then_some("io")
}

const fn ledger_code(error: &LedgerError) -> &'static str {
    match error {
        LedgerError::NotFound(_) => "not_found",
        LedgerError::InvalidCursor(_) => "invalid_cursor",
        _ => "ledger",
    }
}

const fn recording_code(error: &RecordingError) -> &'static str {
    match error {
        RecordingError::NotFound(_) => "not_found",
        RecordingError::NoJournal(_) => "no_journal",
        RecordingError::Ledger(error) => ledger_code(error),
        _ => "invalid_recording",
    }
}

const fn knowledge_code(error: &KnowledgeError) -> &'static str {
    match error {
        KnowledgeError::UnknownBase { .. } => "not_found",
        KnowledgeError::Config(_) => "invalid_config",
        KnowledgeError::Options(_) | KnowledgeError::Path { .. } => "invalid_argument",
        _ => "knowledge",
    }
}

const fn open_code(error: &OpenError) -> &'static str {
    match error {
        OpenError::AlreadyOpen { .. } => "ledger_in_use",
        OpenError::NoLedger { .. } => "no_ledger",
        OpenError::NewerFormat { .. } => "newer_ledger",
        OpenError::Cluster(_) => "cluster",
        _ => "ledger",
    }
}

/// True if the reader of our output has gone, as `head` does: that is no failure.
pub(crate) fn reader_has_gone(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe))
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_code_is_found_under_its_context() {
        let error = Err::<(), _>(Failure::new("in_use", "m")).context("while reading").unwrap_err();
        assert_eq!(code(&error), "in_use");
        assert_eq!(code(&anyhow::anyhow!("something")), "failed");
        let id = agent_host_protocol::RunId::new();
        for error in [RecordingError::NoJournal(id).into(), ReplayError::from(RecordingError::NoJournal(id)).into()] {
            assert_eq!(code(&error), "no_journal");
        }
    }

    #[test]
    fn a_message_has_each_text_of_its_chain_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{path} cannot be read: {source}. Make it", path = "the file")]
        struct Outer {
            source: io::Error,
        }
        let outer = || Outer { source: io::Error::other("the disk is gone") };
        assert_eq!(message(&outer().into()), "the file cannot be read: the disk is gone. Make it");
        let under_context = Err::<(), _>(outer()).context("the start failed").unwrap_err();
        assert_eq!(message(&under_context), "the start failed: the file cannot be read: the disk is gone. Make it");
        let error = agent_host_config::Config::load(std::path::Path::new("/not/there.toml")).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(message(&error.into()).matches(&cause).count(), 1);
    }
}
