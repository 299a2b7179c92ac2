//! Findings: the places where a log breaks a rule.

use serde::Serialize;

use super::rule::Rule;

/// Findings that a report lists; the others are counted. A log with one systematic fault has a finding for each line.
pub const MAX_FINDINGS: usize = 1_000;

/// Characters of a foreign text that a message repeats.
const MAX_QUOTE: usize = 80;

/// A place where a log breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The broken rule.
    pub rule: Rule,
    /// The line, counted from 1; `None` for the read model and the task snapshot.
    pub line: Option<u64>,
    /// The event, where it has an id.
    pub event_id: Option<String>,
    /// The fault, with the values.
    pub message: String,
    /// The remedy.
    pub fix: &'static str,
}

/// A place in a log.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place<'a> {
    pub(crate) line: Option<u64>,
    pub(crate) event_id: Option<&'a str>,
}

/// The findings so far.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    list: Vec<Finding>,
    unlisted: u64,
}

impl Findings {
    pub(crate) fn add(&mut self, rule: Rule, place: Place<'_>, message: impl Into<String>) {
        if self.list.len() >= MAX_FINDINGS {
            self.unlisted += 1;
            return;
        }
        let event_id = place.event_id.map(|id| short(id).into_owned());
        self.list.push(Finding { rule, line: place.line, event_id, message: message.into(), fix: rule.fix() });
    }

    /// The listed findings, and the number of the others.
    pub(crate) fn into_parts(self) -> (Vec<Finding>, u64) {
        (self.list, self.unlisted)
    }
}

/// A foreign text, cut for a message.
pub(crate) fn short(text: &str) -> std::borrow::Cow<'_, str> {
    match text.char_indices().nth(MAX_QUOTE) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()).into(),
        None => text.into(),
    }
}
