//! Rules for logs of runtime events, from whichever runtime: envelope, ids, order, lifecycles, failures, sizes, secrets,
//! references, and what is derived from a log.
//!
//! A log is JSON Lines, one thread a file. [`Checker`] takes its bytes in pieces, keeps the open items of the present turn and
//! digests of ids, and gives a [`Report`]. No input makes it fail or panic: what cannot be read is a finding.
//!
//! - [`Rule`]: the table; docs/CONFORMANCE.md has a row for each;
//! - `event`, `content`, `secret`: one event, whatever stands before it;
//! - `thread`, `turn`, `seen`: order, ids and lifecycles;
//! - `models`: read model and task snapshot, compared with the log;
//! - [`Scenario`]: what a fixture of a scenario must have.

mod content;
mod event;
mod finding;
mod lines;
mod models;
mod rule;
mod scenario;
mod secret;
mod seen;
#[cfg(test)]
mod tests;
mod thread;
mod turn;

use serde::Serialize;
use serde_json::{Map, Value};

pub use self::{
    content::{MAX_PAYLOAD_CHARS, MAX_TEXT_CHARS},
    finding::{Finding, MAX_FINDINGS},
    lines::{Line, Lines, MAX_LINE_BYTES},
    rule::Rule,
    scenario::Scenario,
};
use self::{
    event::Event,
    finding::{Findings, Place},
    scenario::Types,
    thread::Thread,
};
use crate::json::{self, JsonError};

/// The parts of a check beside the rules that every log is under.
#[derive(Debug, Default)]
pub struct Options {
    /// True for the log of a thread that goes on: its last turn may be open.
    pub open: bool,
    /// The scenario that the log is a fixture of.
    pub expect: Option<Scenario>,
    /// The read model of the thread.
    pub read_model: Option<Map<String, Value>>,
    /// The snapshot of one task of the thread.
    pub task: Option<Map<String, Value>>,
}

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// True for a log without findings.
    pub conforms: bool,
    /// Number of events.
    pub events: u64,
    /// Number of turns.
    pub turns: u64,
    /// The findings, in the order of the log.
    pub findings: Vec<Finding>,
    /// Number of findings beyond [`MAX_FINDINGS`].
    pub unlisted: u64,
}

impl Report {
    /// True if the report has a finding of the rule.
    #[must_use]
    pub fn has(&self, rule: Rule) -> bool {
        self.findings.iter().any(|finding| finding.rule == rule)
    }
}

/// A check in progress.
#[derive(Debug)]
pub struct Checker {
    lines: Lines,
    state: State,
}

/// The state of a check, apart from the splitter that feeds it.
#[derive(Debug)]
struct State {
    line: u64,
    events: u64,
    thread: Thread,
    types: Types,
    findings: Findings,
    open: bool,
    expect: Option<Scenario>,
}

impl Checker {
    /// A check of a log whose bytes follow.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let Options { open, expect, read_model, task } = options;
        let state = State {
            line: 0,
            events: 0,
            thread: Thread::new(read_model, task),
            types: Types::default(),
            findings: Findings::default(),
            open,
            expect,
        };
        Self { lines: Lines::default(), state }
    }

    /// Takes the next bytes of the log.
    pub fn push(&mut self, bytes: &[u8]) {
        let Self { lines, state } = self;
        lines.push(bytes, |line| state.line(line));
    }

    /// Takes the end of the log.
    #[must_use]
    pub fn finish(self) -> Report {
        let Self { lines, mut state } = self;
        lines.finish(|line| state.line(line));
        state.finish()
    }
}

/// The report on a whole log.
#[must_use]
pub fn check(log: &[u8], options: Options) -> Report {
    let mut checker = Checker::new(options);
    checker.push(log);
    checker.finish()
}

impl State {
    fn line(&mut self, line: Line<'_>) {
        self.line += 1;
        let place = Place { line: Some(self.line), event_id: None };
        let (bytes, is_ended) = match line {
            Line::Whole(bytes) => (bytes, true),
            Line::Unended(bytes) => (bytes, false),
            Line::TooLong { bytes } => {
                self.findings.add(Rule::LineSize, place, format!("the line has {bytes} bytes"));
                return;
            }
        };
        let Ok(text) = std::str::from_utf8(bytes) else {
            let rule = if is_ended { Rule::LineEncoding } else { Rule::LineTorn };
            self.findings.add(rule, place, "the line is not UTF-8");
            return;
        };
        if text.trim().is_empty() {
            return;
        }
        let value = match json::parse(text) {
            Ok(value) => value,
            Err(error) => {
                let rule = match error {
                    JsonError::Torn if !is_ended => Rule::LineTorn,
                    JsonError::Torn | JsonError::Syntax(_) => Rule::LineJson,
                    JsonError::Depth => Rule::LineDepth,
                    JsonError::DoubledKey(_) => Rule::LineDoubledKey,
                };
                self.findings.add(rule, place, finding::short(&error.to_string()));
                return;
            }
        };
        let Value::Object(top) = value else {
            self.findings.add(Rule::LineJson, place, "the line is no object");
            return;
        };
        self.events += 1;
        let event = Event::read(&top, self.line, &mut self.findings);
        if let Some(event) = &event {
            content::check(event, &mut self.findings);
            self.types.add(event);
        }
        self.thread.follow(&top, event.as_ref(), self.line, &mut self.findings);
    }

    fn finish(mut self) -> Report {
        let turns = self.thread.turns();
        self.thread.finish(self.line, self.open, &mut self.findings);
        if let Some(scenario) = self.expect {
            self.types.check(scenario, self.line, &mut self.findings);
        }
        let (findings, unlisted) = self.findings.into_parts();
        Report { conforms: findings.is_empty(), events: self.events, turns, findings, unlisted }
    }
}
