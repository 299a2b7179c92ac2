//! A journal as people read it: one line for each call.

use agent_host_ledger::Ledger;
use agent_host_protocol::hex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    Entry, Outcome, Source, Stop,
    entry::{self, Unreadable},
    function::Function,
};

/// A host call of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JournaledCall {
    /// The number of the guest's call, from 1.
    pub call: u64,
    /// The number of the part, for a call with several parts; 0 for the call itself.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub part: u32,
    /// `interface.function`.
    pub function: String,
    /// Time of the answer in microseconds since the start of the run; time of the call if there is no answer.
    pub at_us: u64,
    /// The request, with long texts cut; absent for `results.emit`, whose results are in the events of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Value>,
    /// The outcome of the call.
    pub outcome: CallOutcome,
}

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallOutcome {
    /// The answer of the call.
    Answer(Value),
    /// A long answer is in a blob, this is its digest.
    LongAnswer(String),
    /// The error that it was answered with.
    Refused(Value),
    /// The host stopped before it had an answer.
    Unknown,
}

fn is_zero(part: &u32) -> bool {
    *part == 0
}

/// The calls of a run after call `after`, at most `limit` of them with their parts; nothing where the run has no journal.
pub(crate) fn timeline(ledger: &Ledger, run_no: u64, after: u64, limit: u64) -> Result<Option<Vec<JournaledCall>>, Stop> {
    let mut source = Source::new(ledger, run_no);
    let mut lines = Lines::default();
    let mut any = false;
    // A call has its answer, and all its parts, before the next one begins.
    while lines.call <= after.saturating_add(limit)
        && let Some(page) = source.more().map_err(|error| Stop::Lost(error.to_string()))?
    {
        any = true;
        for entry in page.entries {
            lines.add(entry);
            if lines.call <= after {
                lines.calls.clear();
            }
        }
    }
    lines.calls.retain(|line| line.call > after && line.call - after <= limit);
    Ok(any.then_some(lines.calls))
}

/// The calls in these segments.
pub(crate) fn of<'a>(segments: impl Iterator<Item = &'a [u8]>) -> Result<Vec<JournaledCall>, Unreadable> {
    let mut lines = Lines::default();
    for segment in segments {
        entry::read(segment)?.into_iter().for_each(|entry| lines.add(entry));
    }
    Ok(lines.calls)
}

#[derive(Default)]
struct Lines {
    calls: Vec<JournaledCall>,
    call: u64,
    at_us: u64,
}

impl Lines {
    fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Call(call, outcome) => self.begin(call, call_outcome(outcome)),
            Entry::Started(call, _) => self.begin(call, CallOutcome::Unknown),
            Entry::Ended { part, after_us, outcome } => {
                self.at_us += after_us;
                let open = self.calls.iter_mut().rev().find(|line| line.part == part && line.outcome == CallOutcome::Unknown);
                if let Some(line) = open {
                    line.at_us = self.at_us;
                    line.outcome = call_outcome(outcome);
                }
            }
            Entry::Begun { .. } | Entry::Resumed { .. } | Entry::Full | Entry::Suspended => {}
        }
    }

    fn begin(&mut self, call: entry::Call, outcome: CallOutcome) {
        self.at_us += call.after_us;
        self.call += u64::from(call.part == 0);
        self.calls.push(JournaledCall {
            call: self.call,
            part: call.part,
            function: Function(call.function).name().to_owned(),
            at_us: self.at_us,
            request: call.outline.map(|text| json(&text)),
            outcome,
        });
    }
}

fn call_outcome(outcome: Outcome) -> CallOutcome {
    match outcome {
        Outcome::Answer(text) => CallOutcome::Answer(json(&text)),
        Outcome::Refused(text) => CallOutcome::Refused(json(&text)),
        Outcome::LongAnswer { sha256 } => CallOutcome::LongAnswer(hex::encode(&sha256)),
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}
