//! The log of a run: its `log` calls, its standard output and its standard error, bounded.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use agent_host_protocol::{Limits, RunId, RunLogSource, time};
use agent_host_sandbox::{LogSource, RunLog};
use parking_lot::Mutex;

use super::run_logs::{LiveLog, RunLogs};

/// A line longer than this is cut: nobody reads it.
const MAX_LINE: usize = 4 * 1024;
/// Bytes that a line of the host's log has besides its text: time, level, ids. They count as its text does.
const LINE_PREFIX: usize = 256;
/// Bytes of the end of the log that a failed run shows.
const TAIL: usize = 2 * 1024;

/// Takes the diagnostic lines of one run to the host's own log and to the kept log of the run, and holds the newest for the record
/// of a failure.
pub(crate) struct GuestLog {
    run_id: RunId,
    /// True while an earlier execution has already written the present output.
    replaying: Arc<AtomicBool>,
    per_second: u32,
    /// The kept logs, and the most bytes of this one. `None` during offline replay, and where none are to be kept.
    kept: Option<(Arc<RunLogs>, usize)>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The beginning of a line that is not complete.
    partial: Vec<u8>,
    /// The newest lines, about [`TAIL`] bytes.
    lines: VecDeque<String>,
    line_bytes: usize,
    /// The kept log, from the first line on.
    live: Option<Arc<LiveLog>>,
    /// Bytes taken in the second that began at `since`.
    bytes_this_second: u32,
    since: Option<Instant>,
    dropped: u64,
    /// Dropped bytes that the kept log does not mention yet.
    unmentioned: u64,
}

impl GuestLog {
    pub(crate) fn new(run_id: RunId, limits: &Limits, replaying: Arc<AtomicBool>, kept: Option<Arc<RunLogs>>) -> Self {
        let kept = kept.map(|logs| (logs, limits.log_bytes)).filter(|(_, max_bytes)| *max_bytes > 0);
        Self { run_id, replaying, per_second: limits.log_bytes_per_second, kept, state: Mutex::default() }
    }

    /// The end of the log, for the record of a failure.
    pub(crate) fn tail(&self) -> Option<String> {
        let mut state = self.state.lock();
        self.finish(&mut state);
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

    /// Ends the last line, which the guest has not ended, and mentions bytes that were dropped.
    fn finish(&self, state: &mut State) {
        if !state.partial.is_empty() {
            let line = std::mem::take(&mut state.partial);
            self.line(state, LogSource::Stderr, &line);
        }
        self.mention_dropped(state);
    }

    fn mention_dropped(&self, state: &mut State) {
        let dropped = std::mem::take(&mut state.unmentioned);
        if dropped > 0 {
            let text = format!("{dropped} bytes were dropped: over limits.log_bytes_per_second");
            self.keep(state, RunLogSource::Host, &text, Some(dropped));
        }
    }

    fn keep(&self, state: &mut State, source: RunLogSource, text: &str, dropped: Option<u64>) {
        if let Some((logs, max_bytes)) = &self.kept {
            let live = state.live.get_or_insert_with(|| logs.open(self.run_id, *max_bytes));
            live.push(time::now(), source, text.to_owned(), dropped);
        }
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
        self.keep(state, source_of(source), &line, None);
        state.line_bytes += line.len() + 1;
        state.lines.push_back(line);
        while let Some(oldest) = state.lines.front()
            && state.line_bytes - oldest.len() > TAIL
        {
            state.line_bytes -= oldest.len() + 1;
            state.lines.pop_front();
        }
    }
}

impl Drop for GuestLog {
    fn drop(&mut self) {
        let mut state = std::mem::take(self.state.get_mut());
        self.finish(&mut state);
    }
}

fn source_of(source: LogSource) -> RunLogSource {
    match source {
        LogSource::Stdout => RunLogSource::Stdout,
        LogSource::Stderr => RunLogSource::Stderr,
        LogSource::Trace => RunLogSource::Trace,
        LogSource::Debug => RunLogSource::Debug,
        LogSource::Info => RunLogSource::Info,
        LogSource::Warn => RunLogSource::Warn,
        LogSource::Error => RunLogSource::Error,
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
            self.mention_dropped(&mut state);
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n').flat_map(|line| line.chunks(MAX_LINE)) {
            let text = piece.strip_suffix(b"\n");
            let cost =
                piece.len() + if text.is_some() || state.partial.len() + piece.len() >= MAX_LINE { LINE_PREFIX } else { 0 };
            let taken = state.bytes_this_second.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
            if taken > self.per_second {
                state.dropped += piece.len() as u64;
                state.unmentioned += piece.len() as u64;
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
        GuestLog::new(RunId::new(), limits, Arc::default(), None)
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
        let state = log.state.lock();
        let lines = state.lines.len();
        assert_eq!(lines, 10_000 / (LINE_PREFIX + 2));
    }

    #[test]
    fn a_flood_is_cut_and_counted() {
        let log = log(&Limits { log_bytes_per_second: 1000, ..Limits::default() });
        for _ in 0..1000 {
            log.write(LogSource::Stdout, b"0123456789 0123456789 0123456789\n");
        }
        log.write(LogSource::Stdout, &[b'x'; 1 << 20]);
        let tail = log.tail().unwrap();
        assert!(tail.contains("bytes of log were dropped"), "{tail}");
        let state = log.state.lock();
        assert!(state.line_bytes <= TAIL + MAX_LINE && state.partial.len() <= MAX_LINE);
    }

    #[test]
    fn lines_are_kept_with_their_run_and_dropped_bytes_are_mentioned() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Arc::new(RunLogs::new(dir.path(), agent_host_ledger::Partition::ONLY));
        let limits = Limits { log_bytes_per_second: 1000, ..Limits::default() };
        let silent = GuestLog::new(RunId::new(), &limits, Arc::default(), Some(Arc::clone(&logs)));
        drop(silent);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a run without a log has no file");
        let run_id = RunId::new();
        let log = GuestLog::new(run_id, &limits, Arc::default(), Some(Arc::clone(&logs)));
        log.write(LogSource::Info, b"first\n");
        log.write(LogSource::Stdout, &[b'x'; 2000]);
        log.write(LogSource::Stderr, b"no end of the line");
        drop(log);
        let page = logs.page(run_id, 0, 10).unwrap();
        let kept: Vec<_> = page.items.iter().map(|line| (line.no, line.source, line.text.as_str(), line.dropped_bytes)).collect();
        let mention = "2000 bytes were dropped: over limits.log_bytes_per_second";
        let expect = [
            (1, RunLogSource::Info, "first", None),
            (2, RunLogSource::Stderr, "no end of the line", None),
            (3, RunLogSource::Host, mention, Some(2000)),
        ];
        assert_eq!(kept, expect);
    }
}
