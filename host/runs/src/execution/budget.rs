//! The budget of a run: the tokens and the cost that its binding allows.
//!
//! Owns the sums of one execution. A call is refused once a sum has reached its limit; calls that are open then continue, so
//! the sums can exceed the limits by what those use.

use std::sync::atomic::{AtomicU64, Ordering};

use agent_host_config::Budget;
use agent_host_facts::record::Limit;
use agent_host_protocol::{ApiError, ErrorCode, run::ModelUsage};
use serde_json::json;

/// The budget of one execution.
#[derive(Debug, Default)]
pub(crate) struct RunBudget {
    limits: Budget,
    tokens: AtomicU64,
    cost_micros: AtomicU64,
}

impl RunBudget {
    /// A budget of which `used` is spent.
    pub(crate) fn new(limits: Budget, used: &ModelUsage) -> Self {
        let (tokens, cost) = (used.tokens(), used.cost_micros.unwrap_or(0));
        Self { limits, tokens: AtomicU64::new(tokens), cost_micros: AtomicU64::new(cost) }
    }

    /// Fails if a limit is reached.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        let Some(Limit { limit, value: Some(value), .. }) = self.reached() else { return Ok(()) };
        Err(ApiError {
            details: Some(json!({ "code": "budget_exhausted", "limit": limit, "value": value })),
            ..ApiError::new(
                ErrorCode::Unauthorized,
                format!("the run has used the `{limit}` of its binding ({value}): answer without further model calls"),
            )
        })
    }

    /// Adds the use of ended calls. Returns the limit that this use reached.
    pub(crate) fn spend(&self, used: &ModelUsage) -> Option<Limit> {
        let before = self.reached().is_some();
        self.tokens.fetch_add(used.tokens(), Ordering::AcqRel);
        self.cost_micros.fetch_add(used.cost_micros.unwrap_or(0), Ordering::AcqRel);
        if before { None } else { self.reached() }
    }

    /// The rest, for a child.
    pub(crate) fn rest(&self) -> Budget {
        let rest = |limit: Option<u64>, used: &AtomicU64| Some(limit?.saturating_sub(used.load(Ordering::Acquire)));
        Budget {
            max_tokens: rest(self.limits.max_tokens, &self.tokens),
            max_cost_micros: rest(self.limits.max_cost_micros, &self.cost_micros),
        }
    }

    fn reached(&self) -> Option<Limit> {
        let limits = [
            ("max_tokens", self.limits.max_tokens, &self.tokens),
            ("max_cost_micros", self.limits.max_cost_micros, &self.cost_micros),
        ];
        limits.into_iter().find_map(|(limit, value, used)| {
            let value = value?;
            let effect = Some("further model calls are refused".into());
            (used.load(Ordering::Acquire) >= value).then_some(Limit {
                effect,
                limit: limit.into(),
                value: Some(value),
                ..Limit::default()
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(tokens: u64, cost: u64) -> ModelUsage {
        ModelUsage { calls: 1, input: tokens, cost_micros: Some(cost), ..ModelUsage::default() }
    }

    #[test]
    fn a_limit_is_reported_once_and_refuses_from_then_on() {
        let limits = Budget { max_tokens: Some(100), max_cost_micros: Some(50) };
        let budget = RunBudget::new(limits, &used(90, 10));
        budget.check().unwrap();
        assert!(budget.spend(&used(9, 10)).is_none());
        assert_eq!(budget.rest(), Budget { max_tokens: Some(1), max_cost_micros: Some(30) });
        assert_eq!(budget.spend(&used(1, 0)).unwrap().limit, "max_tokens");
        assert!(budget.spend(&used(1, 50)).is_none(), "reported before");
        let refusal = budget.check().unwrap_err();
        assert_eq!(refusal.details.unwrap()["code"], "budget_exhausted");
    }

    #[test]
    fn without_limits_nothing_is_refused() {
        let budget = RunBudget::new(Budget::default(), &used(u64::MAX, u64::MAX));
        budget.check().unwrap();
        assert_eq!(budget.rest(), Budget::default());
    }
}
