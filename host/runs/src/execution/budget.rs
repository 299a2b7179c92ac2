//! The budget of a run: the tokens and the cost that its binding allows, for the run and for all that it starts.
//!
//! A call is refused once a sum has reached its limit; calls that are open then continue, so the sums can exceed the limits by what
//! those use.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use agent_host_config::Budget;
use agent_host_facts::record::Limit;
use agent_host_protocol::{ApiError, ErrorCode, run::ModelUsage};
use serde_json::json;

use crate::policy::key_limits::ChargedKey;

/// Sums, and their limits.
#[derive(Debug, Default)]
pub(crate) struct Spending {
    limits: Budget,
    tokens: AtomicU64,
    cost_micros: AtomicU64,
}

impl Spending {
    /// A budget of which `used` is spent.
    pub(crate) fn new(limits: Budget, used: &ModelUsage) -> Self {
        let (tokens, cost) = (used.tokens(), used.cost_micros.unwrap_or(0));
        Self { limits, tokens: AtomicU64::new(tokens), cost_micros: AtomicU64::new(cost) }
    }

    fn add(&self, used: &ModelUsage) {
        self.tokens.fetch_add(used.tokens(), Ordering::AcqRel);
        self.cost_micros.fetch_add(used.cost_micros.unwrap_or(0), Ordering::AcqRel);
    }

    fn rest(&self) -> Budget {
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

/// The budget of one execution.
#[derive(Debug, Default)]
pub(crate) struct RunBudget {
    /// The sums of the run and of its children that have ended.
    own: Spending,
    /// The sums of the whole tree of runs, where the run may be one of several.
    tree: Option<Arc<Spending>>,
    /// The use of the API key that pays. It ends no run that has begun.
    key: Option<ChargedKey>,
}

impl RunBudget {
    /// A budget of which `used` is spent, within that of the tree.
    pub(crate) fn new(limits: Budget, used: &ModelUsage, tree: Option<Arc<Spending>>) -> Self {
        Self { own: Spending::new(limits, used), tree, key: None }
    }

    /// The same, charged to the use of a key.
    pub(crate) fn charged_to(self, key: Option<ChargedKey>) -> Self {
        Self { key, ..self }
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

    /// Adds the use of an ended call. Returns the limit that this use reached.
    pub(crate) fn spend(&self, used: &ModelUsage) -> Option<Limit> {
        let before = self.reached().is_some();
        self.own.add(used);
        if let Some(tree) = &self.tree {
            tree.add(used);
        }
        if let Some(key) = &self.key {
            key.add(used.tokens());
        }
        if before { None } else { self.reached() }
    }

    /// Adds the use of a child that has ended. The tree has it already.
    pub(crate) fn add_child(&self, used: &ModelUsage) {
        self.own.add(used);
    }

    /// The rest, for a child.
    pub(crate) fn rest(&self) -> Budget {
        let (own, tree) = (self.own.rest(), self.tree.as_ref().map(|tree| tree.rest()).unwrap_or_default());
        let less = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        Budget {
            max_tokens: less(own.max_tokens, tree.max_tokens),
            max_cost_micros: less(own.max_cost_micros, tree.max_cost_micros),
        }
    }

    fn reached(&self) -> Option<Limit> {
        self.own.reached().or_else(|| self.tree.as_ref()?.reached())
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
        let budget = RunBudget::new(limits, &used(90, 10), None);
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
        let budget = RunBudget::new(Budget::default(), &used(u64::MAX, u64::MAX), None);
        budget.check().unwrap();
        assert_eq!(budget.rest(), Budget::default());
    }

    #[test]
    fn runs_of_a_tree_share_its_budget() {
        let limits = Budget { max_tokens: Some(100), max_cost_micros: None };
        let tree = Arc::new(Spending::new(limits, &used(10, 0)));
        let run = |rest, spent| RunBudget::new(rest, &used(spent, 0), Some(Arc::clone(&tree)));
        let root = run(limits, 10);
        let [one, two] = [root.rest(), root.rest()].map(|rest| run(rest, 0));
        assert_eq!(root.rest().max_tokens, Some(90));
        assert!(one.spend(&used(50, 0)).is_none());
        // Neither has spent what it was left when it began, and together they have.
        assert_eq!(two.spend(&used(40, 0)).unwrap().limit, "max_tokens");
        for budget in [&root, &one, &two] {
            assert_eq!(budget.check().unwrap_err().details.unwrap()["value"], 100);
            assert_eq!(budget.rest().max_tokens, Some(0));
        }
        root.add_child(&used(50, 0));
        assert_eq!(tree.rest().max_tokens, Some(0), "the tree has it once");
    }
}
