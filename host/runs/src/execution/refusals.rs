//! Refusals of the gate, as facts of the run: the first of each kind when it happens, the others as a count.
//!
//! A guest may be refused some hundred times a second, so what repeats is counted: the counts are written when the run ends or
//! leaves memory. A kind is a function, a resource and a code. After [`MAX_KINDS`], refusals of new kinds are counted together.
//! The audit has every refusal.

use agent_host_facts::record::{Limit, PermissionDenial};
use agent_host_protocol::{ApiError, ErrorCode, Limits};
use parking_lot::Mutex;

use crate::record::facts::Fact;

/// Kinds of refusals that an execution tells apart.
const MAX_KINDS: usize = 32;

/// Characters of the message of a refusal in its fact. It may have names that the guest has given.
const MAX_MESSAGE_CHARS: usize = 500;

/// The refusals of one execution.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    kinds: Vec<Count>,
    /// Refusals of kinds beyond the bound.
    others: u64,
}

struct Count {
    fact: Fact,
    /// Refusals after the first.
    more: u64,
}

impl Refusals {
    /// Counts a refusal. Returns its fact if it is the first of its kind. Other errors than those of grants and rates are the
    /// answer to a bad request, and no fact.
    pub(crate) fn note(&self, function: &str, resource: Option<&str>, refusal: &ApiError, limits: &Limits) -> Option<Fact> {
        if !matches!(refusal.code, ErrorCode::Unauthorized | ErrorCode::RateLimited) {
            return None;
        }
        let mut counts = self.0.lock();
        let is_rate = is_rate_of_calls(refusal);
        let known = counts.kinds.iter_mut().find(|count| match &count.fact {
            Fact::LimitReached(_) => is_rate,
            Fact::PermissionDenied(denial) => {
                !is_rate
                    && denial.function == function
                    && denial.resource.as_deref() == resource
                    && denial.code == refusal.code.as_str()
            }
            _ => false,
        });
        if let Some(known) = known {
            known.more += 1;
            return None;
        }
        if counts.kinds.len() >= MAX_KINDS {
            counts.others += 1;
            return None;
        }
        let fact = if is_rate {
            let value = Some(limits.host_calls_per_second.into());
            let effect = Some("calls of the run are refused until it makes fewer".into());
            Fact::LimitReached(Limit { effect, limit: "host_calls_per_second".into(), value, ..Limit::default() })
        } else {
            Fact::PermissionDenied(PermissionDenial {
                code: refusal.code.as_str().to_owned(),
                count: None,
                function: function.to_owned(),
                message: refusal.message.chars().take(MAX_MESSAGE_CHARS).collect(),
                resource: resource.map(str::to_owned),
            })
        };
        counts.kinds.push(Count { fact: fact.clone(), more: 0 });
        Some(fact)
    }

    /// Takes the counts of what was refused more than once.
    pub(crate) fn take_counts(&self) -> Vec<Fact> {
        let Counts { kinds, others } = std::mem::take(&mut *self.0.lock());
        let repeated = kinds.into_iter().filter(|count| count.more > 0).map(|Count { mut fact, more }| {
            match &mut fact {
                Fact::LimitReached(limit) => limit.count = Some(more),
                Fact::PermissionDenied(denial) => denial.count = Some(more),
                _ => {}
            }
            fact
        });
        let others = (others > 0).then(|| {
            Fact::PermissionDenied(PermissionDenial {
                code: ErrorCode::Unauthorized.as_str().to_owned(),
                count: Some(others),
                function: "*".to_owned(),
                message: "further calls were refused: the audit has each of them".to_owned(),
                resource: None,
            })
        });
        repeated.chain(others).collect()
    }
}

/// True for the refusal of a call that comes too soon after others, which has the rate in its details.
fn is_rate_of_calls(refusal: &ApiError) -> bool {
    refusal.code == ErrorCode::RateLimited && refusal.details.as_ref().is_some_and(|details| details.get("per_second").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied() -> ApiError {
        ApiError::new(ErrorCode::Unauthorized, "not granted")
    }

    #[test]
    fn the_first_of_each_kind_is_a_fact_and_the_rest_is_counted() {
        let (refusals, limits) = (Refusals::default(), Limits::default());
        let note = |resource| refusals.note("models.invoke", Some(resource), &denied(), &limits);
        assert!(note("a").is_some() && note("b").is_some());
        assert!(note("a").is_none() && note("a").is_none());
        assert!(refusals.note("tools.call", None, &ApiError::new(ErrorCode::NotFound, "?"), &limits).is_none());
        let counts = refusals.take_counts();
        let [Fact::PermissionDenied(denial)] = counts.as_slice() else { panic!("{counts:?}") };
        assert_eq!((denial.resource.as_deref(), denial.count), (Some("a"), Some(2)));
        assert!(refusals.take_counts().is_empty());
    }

    #[test]
    fn kinds_are_bounded() {
        let (refusals, limits) = (Refusals::default(), Limits::default());
        let named: Vec<_> = (0..MAX_KINDS + 5).map(|n| n.to_string()).collect();
        let facts = named.iter().filter_map(|name| refusals.note("storage.get", Some(name), &denied(), &limits));
        assert_eq!(facts.count(), MAX_KINDS);
        let counts = refusals.take_counts();
        let [Fact::PermissionDenied(others)] = counts.as_slice() else { panic!("{counts:?}") };
        assert_eq!((others.function.as_str(), others.count), ("*", Some(5)));
    }
}
