//! The log of a run: its `log` calls, its standard output and its standard error, bounded.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use agent_host_protocol::{Limits, RunId};
use agent_host_sandbox::{LogSource, RunLog};
use parking_lot::Mutex;

/// A line longer than this is cut: nobody reads it.
const MAX_LINE: usize = 4 * 1024;
/// Bytes that a line of the host's log has besides its text: time, level, ids. They count as its text does.
const LINE_PREFIX: usize = 256;
/// Bytes of the end of the log that a failed run shows.
const TAIL: usize = 2 * 1024;

/// Takes the diagnostic lines of one run to the host's own log, and keeps the newest for the record of a failure.
pub(crate) struct GuestLog {
    run_id: RunId,
    /// True while an earlier execution has already written the present output.
    replaying: Arc<AtomicBool>,
    per_second: u32,
    kept_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The beginning of a line that is not complete.
    partial: Vec<u8>,
    lines: VecDeque<String>,
    kept_bytes: usize,
    /// Bytes taken in the second that began at `since`.
    bytes_this_second: u32,
    since: Option<Instant>,
    dropped: u64,
}

impl GuestLog {
    pub(crate) fn new(run_id: RunId, limits: &Limits, replaying: Arc<AtomicBool>) -> Self {
        Self { run_id, replaying, per_second: limits.log_bytes_per_second, kept_bytes: limits.log_bytes, state: Mutex::default() }
    }

    /// The end of the log, for the record of a failure.
    pub(crate) fn tail(&self) -> Option<String> {
        let mut state = self.state.lock();
        if !state.partial.is_empty() {
            let line = std::mem::take(&mut state.partial);
            self.line(&mut state, LogSource::Stderr, &line);
        }
        let mut tail: Vec<&str> = Vec::new();
        let mut bytes = 0;
        for line in state.lines.iter().rev() {
            bytes += line.len() + 1;
            if bytes > TAIL && !tail.is_empty() {
                break;
            }
            tail.push(line);
        }
        tail.reverse();
        let mut text = tail.join("\n");
        if state.dropped > 0 {
            text.push_str(&format!("\n[{} bytes of log were dropped: over the limit]", state.dropped));
        }
        (!text.is_empty()).then_some(text)
    }

    fn line(&self, state: &mut State, source: LogSource, line: &[u8]) {
        let line = printable(line);
        if line.is_empty() {
            return;
        }
        match source {
            LogSource::Error => tracing::error!(target: "agent_host::guest", run_id = %self.run_id, "{line}"),
            LogSource::Warn => tracing::warn!(target: "agent_host::guest", run_id = %self.run_id, "{line}"),
            LogSource::Trace => tracing::trace!(target: "agent_host::guest", run_id = %self.run_id, "{line}"),
            LogSource::Info => tracing::info!(target: "agent_host::guest", run_id = %self.run_id, "{line}"),
            _ => tracing::debug!(target: "agent_host::guest", run_id = %self.run_id, "{line}"),
        }
        state.kept_bytes += line.len();
        state.lines.push_back(line);
        while state.kept_bytes > self.kept_bytes {
            let Some(oldest) = state.lines.pop_front() else { break };
            state.kept_bytes -= oldest.len();
        }
    }
}

/// A line as a terminal can bear it: valid text in its own order, without control characters, not too long.
fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line.get(..MAX_LINE).unwrap_or(line));
    text.trim_end().chars().map(|c| if (c.is_control() && c != '\t') || is_bidi_control(c) { '\u{fffd}' } else { c }).collect()
}

/// A character that changes the direction of text: a line could look like another one.
fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl RunLog for GuestLog {
    fn write(&self, source: LogSource, bytes: &[u8]) {
        if self.replaying.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        if state.since.is_none_or(|since| since.elapsed().as_secs() >= 1) {
            state.since = Some(Instant::now());
            state.bytes_this_second = 0;
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n').flat_map(|line| line.chunks(MAX_LINE)) {
            let text = piece.strip_suffix(b"\n");
            let cost =
                piece.len() + if text.is_some() || state.partial.len() + piece.len() >= MAX_LINE { LINE_PREFIX } else { 0 };
            let taken = state.bytes_this_second.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
            if taken > self.per_second {
                state.dropped += piece.len() as u64;
                continue;
            }
            state.bytes_this_second = taken;
            state.partial.extend_from_slice(text.unwrap_or(piece));
            if text.is_some() || state.partial.len() >= MAX_LINE {
                let line = std::mem::take(&mut state.partial);
                self.line(&mut state, source, &line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(limits: &Limits) -> GuestLog {
        GuestLog::new(RunId::new(), limits, Arc::default())
    }

    #[test]
    fn lines_are_put_together_and_cleaned() {
        let log = log(&Limits::default());
        log.write(LogSource::Stderr, b"pan");
        log.write(LogSource::Stderr, b"ic: \x1b[31mred\x07\nsecond\nthi");
        log.write(LogSource::Stderr, b"rd \xff \xe2\x80\xae");
        assert_eq!(log.tail().unwrap(), "panic: \u{fffd}[31mred\u{fffd}\nsecond\nthird \u{fffd} \u{fffd}");
    }

    #[test]
    fn short_lines_cost_what_the_host_writes_for_them() {
        let log = log(&Limits { log_bytes_per_second: 10_000, ..Limits::default() });
        log.write(LogSource::Stdout, &b"x\n".repeat(10_000));
        let lines = log.state.lock().lines.len();
        assert_eq!(lines, 10_000 / (LINE_PREFIX + 2));
    }

    #[test]
    fn a_flood_is_cut_and_counted() {
        let log = log(&Limits { log_bytes_per_second: 1000, log_bytes: 500, ..Limits::default() });
        for _ in 0..1000 {
            log.write(LogSource::Stdout, b"0123456789 0123456789 0123456789\n");
        }
        log.write(LogSource::Stdout, &[b'x'; 1 << 20]);
        let tail = log.tail().unwrap();
        assert!(tail.contains("bytes of log were dropped"), "{tail}");
        let state = log.state.lock();
        assert!(state.kept_bytes <= 500 && state.partial.len() <= MAX_LINE);
    }
}
