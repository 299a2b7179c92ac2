//! All output of the binary: results to standard output, the rest to standard error.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use serde::Serialize;
use serde_json::json;

use crate::{
    failure,
    styled::{self, StyledText},
    terminal, text,
};

/// The form of the output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) const fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// True if standard error is a terminal, so that progress is shown.
    pub(crate) fn shows_progress(self) -> bool {
        !self.json && io::stderr().is_terminal()
    }

    /// A result: one line of JSON, or the text.
    pub(crate) fn result<T: Into<StyledText>>(self, value: &impl Serialize, text: impl FnOnce() -> T) -> io::Result<()> {
        if self.json { self.json_line(value) } else { self.text(text()) }
    }

    /// Writes one line of JSON.
    pub(crate) fn json_line(self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        write(&line)
    }

    /// Text, as it is where it is piped, and in its styles on a terminal.
    pub(crate) fn text(self, text: impl Into<StyledText>) -> io::Result<()> {
        write(text.into().render(&io::stdout()).as_bytes())
    }

    /// Writes a remark for a person to standard error; silent with JSON.
    pub(crate) fn remark(self, text: &str) {
        if !self.json {
            complain(&text::printable(text));
        }
    }

    /// Says what went wrong and gives the exit code for it.
    pub(crate) fn report_failure(self, error: &anyhow::Error) -> ExitCode {
        if failure::reader_has_gone(error) {
            return ExitCode::SUCCESS;
        }
        let message = failure::message(error);
        if self.json {
            complain(&error_json(failure::code(error), &message));
        } else {
            let mut text = StyledText::default();
            text.push(styled::ERROR, "error:");
            text.push_str(&format!(" {message}"));
            complain(&text.render(&io::stderr()));
        }
        failure::exit_code(error).into()
    }
}

/// Answers a command line that cannot be parsed, or that only asks for help.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // The arguments could not be parsed.
    let json = std::env::args_os().any(|argument| argument == "--json");
    if error.use_stderr() && json {
        complain(&error_json("usage", error.to_string().trim_end()));
    } else {
        // Standard output or error is closed: no reader is left.
        let _ = error.print();
    }
    if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
}

fn error_json(code: &str, message: &str) -> String {
    json!({ "error": { "code": code, "message": message } }).to_string()
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

fn complain(line: &str) {
    // Standard error is closed: no reader is left.
    let _ = terminal::suspend(|| writeln!(io::stderr().lock(), "{line}"));
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_error_in_json_has_a_code_and_a_message() {
        insta::assert_snapshot!(super::error_json("in_use", "another \"process\""), @r#"{"error":{"code":"in_use","message":"another \"process\""}}"#);
    }
}
