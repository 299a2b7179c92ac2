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

/// A line as a terminal can bear it: valid text, without control characters, not too long.
fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line.get(..MAX_LINE).unwrap_or(line));
    text.trim_end().chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
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
        let room = self.per_second.saturating_sub(state.bytes_this_second) as usize;
        let admitted = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        state.bytes_this_second = state.bytes_this_second.saturating_add(u32::try_from(admitted.len()).unwrap_or(u32::MAX));
        state.dropped += (bytes.len() - admitted.len()) as u64;
        let mut rest = admitted;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (head, tail) = rest.split_at(end);
            let mut line = std::mem::take(&mut state.partial);
            line.extend_from_slice(head);
            self.line(&mut state, source, &line);
            rest = tail.get(1..).unwrap_or_default();
        }
        state.partial.extend_from_slice(rest);
        if state.partial.len() >= MAX_LINE {
            let line = std::mem::take(&mut state.partial);
            self.line(&mut state, source, &line);
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
        log.write(LogSource::Stderr, b"rd \xff");
        assert_eq!(log.tail().unwrap(), "panic: \u{fffd}[31mred\u{fffd}\nsecond\nthird \u{fffd}");
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
