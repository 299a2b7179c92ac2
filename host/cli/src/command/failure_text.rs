//! Failures of runs as people read them: with what the guest said before it failed.

use agent_host_protocol::run::RunFailure;

/// The words by which Rust announces a panic.
const PANICKED: &str = "panicked at ";
/// The line by which Rust ends the report of a panic; a guest has no such variable.
const BACKTRACE: &str = "note: run with `RUST_BACKTRACE";

/// The last lines that the guest logged: its panic, if there is one, else the end of its log.
pub(crate) fn last_words(failure: &RunFailure) -> Option<String> {
    let log = failure.details.as_ref()?.get("log")?.as_str()?;
    let lines = log.lines().filter(|line| !line.starts_with(BACKTRACE)).collect::<Vec<_>>();
    let panic = lines.iter().rposition(|line| line.contains(PANICKED)).unwrap_or(0);
    let words = lines.get(panic..)?.join("\n");
    (!words.trim().is_empty()).then_some(words)
}

/// The same lines, indented, each with its end; empty without any.
pub(crate) fn quoted(failure: &RunFailure) -> String {
    last_words(failure).iter().flat_map(|words| words.lines()).map(|line| format!("  {line}\n")).collect()
}

/// A failure in one sentence: the panic of the guest with its place where there was one, else the message of the host.
pub(crate) fn sentence(failure: &RunFailure) -> String {
    let words = last_words(failure);
    let panic = words.as_deref().and_then(|words| Some((words.get(words.find(PANICKED)?..)?).trim_end()));
    format!("{}: {}", failure.code, panic.unwrap_or(&failure.message))
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::FailureCode;
    use serde_json::json;

    use super::*;

    fn failure(log: &str) -> RunFailure {
        let failure = RunFailure::host(FailureCode::GuestTrapped, "wasm `unreachable` instruction executed");
        RunFailure { details: Some(json!({ "log": log })), ..failure }
    }

    #[test]
    fn a_panic_is_shown_with_its_place_and_its_message() {
        let panicked = failure(
            "reading\n\nthread '<unnamed>' (1) panicked at src/lib.rs:12:5:\nno such key: x\nnote: run with `RUST_BACKTRACE=1` \
             environment variable to display a backtrace",
        );
        let words = "thread '<unnamed>' (1) panicked at src/lib.rs:12:5:\nno such key: x";
        assert_eq!(last_words(&panicked).as_deref(), Some(words));
        assert_eq!(quoted(&panicked), "  thread '<unnamed>' (1) panicked at src/lib.rs:12:5:\n  no such key: x\n");
        assert_eq!(sentence(&panicked), "runner.trapped: panicked at src/lib.rs:12:5:\nno such key: x");
    }

    #[test]
    fn a_failure_without_a_panic_has_the_message_of_the_host_and_the_log_of_the_guest() {
        let logged = failure("one\ntwo");
        assert_eq!(last_words(&logged).as_deref(), Some("one\ntwo"));
        assert_eq!(sentence(&logged), "runner.trapped: wasm `unreachable` instruction executed");
        assert_eq!(last_words(&failure("\n")), None);
        assert_eq!(last_words(&RunFailure { details: None, ..logged }), None);
    }
}
