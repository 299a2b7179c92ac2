//! The form of one event, whatever came before it.

use serde_json::Value;

use super::Violation;
use crate::agui::event::{Event, Kind, Outcome, PatchOp, Usage};

/// Checks rules of the schema that our types cannot express.
pub(super) fn well_formed(event: &Event) -> Result<(), Violation> {
    let wrong = match &event.kind {
        Kind::RunFinished { outcome: Some(Outcome::Interrupt { interrupts }), .. } if interrupts.is_empty() => {
            "an interrupt without interrupts"
        }
        Kind::RunFinished { result: Some(Value::Null), .. } | Kind::SubagentFinished { result: Some(Value::Null), .. } => {
            "a result of `null`: it is to be left out"
        }
        Kind::RunFinished { usage, .. } | Kind::RunError { usage, .. } if !usage.iter().all(countable) => {
            "more tokens than a JSON number can count"
        }
        Kind::ReasoningEncryptedValue { subtype, .. } if !matches!(subtype.as_str(), "tool-call" | "message") => {
            "its subtype is neither `tool-call` nor `message`"
        }
        Kind::StateDelta { delta: patch } | Kind::ActivityDelta { patch, .. } if !patch.iter().all(pointed) => {
            "a path that is no JSON pointer"
        }
        // The member would be written twice, the second time over its own id.
        Kind::SubagentStarted { .. } | Kind::SubagentFinished { .. } | Kind::SubagentError { .. } if event.subagent.is_some() => {
            "it has its own id, and takes no tag"
        }
        _ => return Ok(()),
    };
    Err(Violation::Malformed { event: event.kind.name(), what: wrong })
}

/// The largest whole number that JavaScript keeps.
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

fn countable(usage: &Usage) -> bool {
    let Usage { input_tokens, output_tokens, total_tokens, reasoning_tokens, cached_input_tokens, .. } = usage;
    let counts = [input_tokens, output_tokens, total_tokens, reasoning_tokens, cached_input_tokens];
    counts.into_iter().flatten().all(|count| *count <= MAX_SAFE_INTEGER)
}

fn pointed(op: &PatchOp) -> bool {
    match op {
        PatchOp::Add { path, .. } | PatchOp::Remove { path } | PatchOp::Replace { path, .. } | PatchOp::Test { path, .. } => {
            is_pointer(path)
        }
        PatchOp::Move { from, path } | PatchOp::Copy { from, path } => is_pointer(from) && is_pointer(path),
    }
}

/// RFC 6901: empty, or tokens that each begin with `/`, in which `~` is always `~0` or `~1`.
fn is_pointer(path: &str) -> bool {
    let escaped = path.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    escaped && (path.is_empty() || path.starts_with('/'))
}

pub(super) const fn takes_tag(kind: &Kind) -> bool {
    !matches!(kind, Kind::RunStarted { .. } | Kind::RunFinished { .. } | Kind::RunError { .. } | Kind::MessagesSnapshot { .. })
}
