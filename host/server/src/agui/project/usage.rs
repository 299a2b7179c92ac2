//! Tokens of a segment, by model.

use std::collections::BTreeMap;

use agent_host_protocol::message::TokenUsage;
use agent_host_runs::facts::record::{self, ModelCallEnd};

use crate::agui::event::Usage;

/// The largest whole number that clients count to: JSON numbers are floating-point there.
const MAX_COUNT: u64 = (1 << 53) - 1;

/// The usage of model calls since the start of the segment.
#[derive(Debug, Default)]
pub(super) struct Tally {
    by_model: BTreeMap<String, TokenUsage>,
}

impl Tally {
    pub(super) fn count(&mut self, end: ModelCallEnd) {
        // The model may not say.
        let Some(record::Usage::Known(used)) = end.usage else { return };
        match self.by_model.get_mut(&end.call.model_id) {
            Some(sum) => {
                sum.input = sum.input.saturating_add(used.input);
                sum.output = sum.output.saturating_add(used.output);
                sum.cached_input = both(sum.cached_input, used.cached_input);
                sum.reasoning = both(sum.reasoning, used.reasoning);
            }
            None => drop(self.by_model.insert(end.call.model_id, used)),
        }
    }

    /// The usage of the segment, as the host measured it.
    pub(super) fn take(&mut self) -> Vec<Usage> {
        let by_model = std::mem::take(&mut self.by_model);
        by_model.into_iter().map(|(model, used)| usage_of(model, &used)).collect()
    }
}

/// Unknown is not zero.
fn both(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    }
}

fn usage_of(model: String, used: &TokenUsage) -> Usage {
    let count = |tokens: u64| Some(tokens.min(MAX_COUNT));
    Usage {
        provider: None,
        model: Some(model),
        input_tokens: count(used.input),
        output_tokens: count(used.output),
        total_tokens: count(used.input.saturating_add(used.output)),
        reasoning_tokens: used.reasoning.and_then(count),
        cached_input_tokens: used.cached_input.and_then(count),
    }
}
