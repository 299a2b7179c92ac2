//! One event, read from foreign JSON, and the rules for its envelope.

use serde_json::{Map, Value};

use super::{
    finding::{Findings, Place, short},
    rule::Rule,
};
use crate::fact::SCHEMA_VERSION;

/// Names that earlier versions of the standard had for the ends of a turn.
const RETIRED_TYPES: [&str; 7] =
    ["turn.cancelled", "turn.done", "turn.final_done", "done", "final_done", "cancelled", "tool.catalog.resolved"];

/// The kinds of references.
const REF_KINDS: [&str; 6] = ["output", "artifact", "evidence", "diagnostic", "trace", "raw"];

/// Ids at the top of an event that `payload` repeats.
pub(crate) const SCOPE_IDS: [&str; 14] = [
    "toolCallId",
    "stepId",
    "actionId",
    "taskId",
    "parentTaskId",
    "attemptId",
    "subagentId",
    "channelId",
    "handoffId",
    "modelRequestId",
    "artifactId",
    "evidenceId",
    "reviewId",
    "workerId",
];

/// An event whose `type` and `payload` have their JSON type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event<'a> {
    pub(crate) top: &'a Map<String, Value>,
    pub(crate) kind: &'a str,
    pub(crate) payload: &'a Map<String, Value>,
    pub(crate) place: Place<'a>,
}

impl<'a> Event<'a> {
    /// The event of a line, with findings for its envelope. `None` where nothing further can be checked.
    pub(crate) fn read(top: &'a Map<String, Value>, line: u64, findings: &mut Findings) -> Option<Self> {
        let event_id = text(top, "eventId");
        let place = Place { line: Some(line), event_id };
        envelope(top, place, findings);
        let (Some(kind), Some(Value::Object(payload))) = (text(top, "type"), top.get("payload")) else { return None };
        Some(Self { top, kind, payload, place })
    }

    /// The text before the first dot of the type.
    pub(crate) fn family(&self) -> &'a str {
        self.kind.split('.').next().unwrap_or_default()
    }

    /// An id at the top, or in `payload`.
    pub(crate) fn id(&self, name: &str) -> Option<&'a str> {
        text(self.top, name).or_else(|| text(self.payload, name))
    }

    /// A text of the payload that is not empty.
    pub(crate) fn payload_text(&self, name: &str) -> Option<&'a str> {
        text(self.payload, name)
    }

    /// True if the payload has one of the members as a text that is not empty.
    pub(crate) fn says(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.payload_text(name).is_some())
    }

    /// The references of a kind, at the top or in `payload`.
    pub(crate) fn refs(&self, kind: &str) -> impl Iterator<Item = &'a str> {
        let list = |owner: Option<&'a Value>| owner?.get(kind)?.as_array().map(|list| list.iter().filter_map(Value::as_str));
        let top = list(self.top.get("refs"));
        let inner = list(self.payload.get("refs"));
        top.into_iter().flatten().chain(inner.into_iter().flatten())
    }

    /// True if the event names an artifact or evidence, whichever `kind` is: by id or by a list.
    pub(crate) fn has_ref(&self, id: &str, list: &str, kind: &str) -> bool {
        let listed = |owner: &Map<String, Value>| owner.get(list).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
        self.id(id).is_some() || listed(self.top) || listed(self.payload) || self.refs(kind).next().is_some()
    }
}

/// A text that is not empty.
pub(crate) fn text<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    object.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn envelope(top: &Map<String, Value>, place: Place<'_>, findings: &mut Findings) {
    match top.get("schemaVersion") {
        Some(Value::String(version)) if version == SCHEMA_VERSION => {}
        Some(Value::String(version)) => {
            findings.add(Rule::EnvelopeSchema, place, format!("`schemaVersion` is `{}`", short(version)));
        }
        _ => findings.add(Rule::EnvelopeSchema, place, "`schemaVersion` is missing or no text"),
    }
    for name in ["runtimeId", "sessionId", "threadId", "eventId", "type"] {
        if text(top, name).is_none() {
            findings.add(Rule::EnvelopeField, place, format!("`{name}` is missing, empty or no text"));
        }
    }
    for name in ["turnId", "runId", "traceId"].into_iter().chain(SCOPE_IDS) {
        if top.get(name).is_some_and(|id| !id.is_null() && id.as_str().is_none_or(str::is_empty)) {
            findings.add(Rule::EnvelopeField, place, format!("`{name}` is empty or no text"));
        }
    }
    if !top.get("payload").is_some_and(Value::is_object) {
        findings.add(Rule::EnvelopeField, place, "`payload` is missing or no object");
    }
    match top.get("timestamp").and_then(Value::as_str) {
        Some(at) if is_time(at) => {}
        Some(at) => findings.add(Rule::EnvelopeTimestamp, place, format!("`{}` is no time of RFC 3339", short(at))),
        None => findings.add(Rule::EnvelopeTimestamp, place, "`timestamp` is missing or no text"),
    }
    if let Some(kind) = text(top, "type") {
        if RETIRED_TYPES.contains(&kind) {
            findings.add(Rule::EnvelopeType, place, format!("`{kind}` is retired"));
        } else if !is_type(kind) {
            findings.add(Rule::EnvelopeType, place, format!("`{}` has not the form `family.name`", short(kind)));
        }
    }
    if let Some(refs) = top.get("refs") {
        check_refs(refs, place, findings);
    }
}

fn is_type(kind: &str) -> bool {
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-')
    };
    kind.contains('.') && kind.len() <= 128 && kind.split('.').all(is_word)
}

fn check_refs(refs: &Value, place: Place<'_>, findings: &mut Findings) {
    let Value::Object(refs) = refs else {
        findings.add(Rule::EnvelopeRefs, place, "`refs` is no object");
        return;
    };
    for (kind, list) in refs {
        if !REF_KINDS.contains(&kind.as_str()) {
            findings.add(Rule::EnvelopeRefs, place, format!("`refs` has the kind `{}`", short(kind)));
        } else if !list.as_array().is_some_and(|list| list.iter().all(|one| one.as_str().is_some_and(|one| !one.is_empty()))) {
            findings.add(Rule::EnvelopeRefs, place, format!("`refs.{kind}` is no list of texts"));
        }
    }
}

/// True for a date, a time and a zone in the form of RFC 3339, with values in range.
fn is_time(at: &str) -> bool {
    parse_time(at.as_bytes()).is_some()
}

fn parse_time(at: &[u8]) -> Option<()> {
    let number = |range: std::ops::Range<usize>, low: u32, high: u32| {
        let digits = at.get(range)?;
        let all = digits.iter().all(u8::is_ascii_digit);
        let value = digits.iter().fold(0, |value, digit| value * 10 + u32::from(digit.wrapping_sub(b'0') % 10));
        (all && (low..=high).contains(&value)).then_some(value)
    };
    let (year, month, day) = (number(0..4, 0, 9999)?, number(5..7, 1, 12)?, number(8..10, 1, 31)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if day > days {
        return None;
    }
    for (place, marks) in [(4, b"-".as_slice()), (7, b"-"), (10, b"Tt "), (13, b":"), (16, b":")] {
        at.get(place).filter(|byte| marks.contains(byte))?;
    }
    for (range, high) in [(11..13, 23), (14..16, 59), (17..19, 60)] {
        number(range, 0, high)?;
    }
    let rest = at.get(19..)?;
    let rest = match rest.strip_prefix(b".") {
        Some(fraction) => {
            let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            fraction.get(digits..).filter(|_| digits > 0)?
        }
        None => rest,
    };
    match rest {
        [b'Z' | b'z'] => Some(()),
        [b'+' | b'-', hours @ .., b':', ten, one] if hours.len() == 2 => {
            let is_number = hours.iter().chain([ten, one]).all(u8::is_ascii_digit);
            (is_number && hours <= b"23".as_slice() && *ten <= b'5').then_some(())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_zone_and_values_in_range() {
        for good in ["2026-11-22T10:00:00Z", "2024-02-29T23:59:60.123+05:30", "2026-11-22t10:00:00.5-00:00"] {
            assert!(is_time(good), "{good}");
        }
        for bad in [
            "",
            "2026-11-22",
            "2026-11-22T10:00:00",
            "2026-13-22T10:00:00Z",
            "2026-02-29T10:00:00Z",
            "2026-11-22T24:00:00Z",
            "2026-11-22T10:00:00.Z",
            "2026-11-22T10:00:00+5:30",
            "1732269600",
            "2026-11-22T10:00:00Zß",
        ] {
            assert!(!is_time(bad), "{bad}");
        }
    }

    #[test]
    fn types_are_words_with_dots() {
        for good in ["turn.started", "task.attempt.started", "rate_limit.hit", "vendor.thing-2"] {
            assert!(is_type(good), "{good}");
        }
        for bad in ["turn", "Turn.started", "turn..started", ".x", "turn.", "turn.ſ"] {
            assert!(!is_type(bad), "{bad}");
        }
    }
}
