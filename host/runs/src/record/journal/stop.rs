//! Stops: why an execution does not go on by its journal.

use serde_json::{Value, json};

use super::function::Function;
use crate::record::WaitKey;

/// The reason why an execution cannot continue with its journal.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The guest asks for something else than it did before.
    Diverged(Box<Divergence>),
    /// The journal cannot be read.
    Lost(String),
    /// All recorded calls were answered, and no other call is allowed.
    Over { calls: u64, now: Value },
    /// The run is to leave memory until then, in milliseconds since 1970, or until somebody comes with one of the keys.
    Park { until: Option<u64>, reason: &'static str, keys: Vec<WaitKey> },
}

/// The first difference between two executions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Divergence {
    /// The number of the guest's call, from 1.
    pub(crate) call: u64,
    pub(crate) recorded: Side,
    pub(crate) now: Side,
    /// For `results.emit`: what was emitted lies between these sequences, the first excluded.
    pub(crate) emitted: Option<(u64, u64)>,
    /// The first difference of the requests: a JSON pointer and both values.
    pub(crate) difference: Option<(String, Value, Value)>,
}

/// The calls of one execution.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Side {
    pub(crate) function: &'static str,
    pub(crate) request: Value,
}

impl Side {
    pub(super) fn new(function: Function, outline: Option<&str>) -> Self {
        let request = outline.map(|text| serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned())));
        Self { function: function.name(), request: request.unwrap_or_default() }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({ "function": self.function, "request": self.request })
    }
}

impl Divergence {
    pub(crate) fn to_json(&self) -> Value {
        let difference = self.difference.as_ref();
        json!({
            "call": self.call,
            "recorded": self.recorded.to_json(),
            "now": self.now.to_json(),
            "difference": difference.map(|(at, recorded, now)| json!({ "at": at, "recorded": recorded, "now": now })),
        })
    }
}
