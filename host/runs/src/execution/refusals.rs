//! Refusals of the gate, as facts of the run and in the audit: the first of each kind when it happens, the others as a count.
//!
//! A guest may be refused some hundred times a second, so what repeats is counted: the counts are written when the run ends or
//! leaves memory. A kind is a function, a resource and a code. After [`MAX_KINDS`], refusals of new kinds are
//! counted by their codes alone.

use agent_host_facts::record::{Limit, PermissionDenial};
use agent_host_protocol::{ApiError, ErrorCode, Limits};
use parking_lot::Mutex;

use crate::record::facts::Fact;

/// Kinds of refusals that an execution tells apart: more than the contract has functions.
const MAX_KINDS: usize = 100;

/// The function of kinds that are counted by their codes alone.
const ANY: &str = "*";

/// Characters of the message of a refusal in its fact. It may have names that the guest has given.
const MAX_MESSAGE_CHARS: usize = 500;

/// The refusals of one execution.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<Vec<Count>>);

struct Count {
    kind: RefusalKind,
    fact: Option<Fact>,
    /// Refusals after the first.
    more: u64,
}

/// A function that was refused, for what, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusalKind {
    pub(crate) function: String,
    pub(crate) resource: Option<String>,
    pub(crate) code: ErrorCode,
}

/// The first refusal of its kind.
pub(crate) struct FirstRefusal {
    /// Fact of the run. Other errors than those of grants and rates are the answer to a bad request, and no fact.
    pub(crate) fact: Option<Fact>,
}

/// Refusals of one kind after the first.
pub(crate) struct RepeatedRefusal {
    pub(crate) kind: RefusalKind,
    pub(crate) count: u64,
    pub(crate) fact: Option<Fact>,
}

impl Refusals {
    /// Counts a refusal. `None` if it is not the first of its kind.
    pub(crate) fn note(
        &self,
        function: &str,
        resource: Option<&str>,
        refusal: &ApiError,
        limits: &Limits,
    ) -> Option<FirstRefusal> {
        let mut kinds = self.0.lock();
        let is_rate = is_rate_of_calls(refusal);
        let known = kinds.iter_mut().find(|Count { kind, fact, .. }| {
            // The rate is that of all calls together.
            let is_of_rate = matches!(fact, Some(Fact::LimitReached(_)));
            is_of_rate == is_rate
                && (is_rate || kind.function == function && kind.resource.as_deref() == resource && kind.code == refusal.code)
        });
        if let Some(known) = known {
            known.more += 1;
            return None;
        }
        let is_denial = matches!(refusal.code, ErrorCode::Unauthorized | ErrorCode::RateLimited);
        let denial = |function: &str, resource: Option<&str>, message: String| {
            let (code, resource) = (refusal.code.as_str().to_owned(), resource.map(str::to_owned));
            Fact::PermissionDenied(PermissionDenial { code, count: None, function: function.to_owned(), message, resource })
        };
        let kind = |function: &str, resource: Option<&str>| RefusalKind {
            function: function.to_owned(),
            resource: resource.map(str::to_owned),
            code: refusal.code.clone(),
        };
        if kinds.len() >= MAX_KINDS {
            let further = kind(ANY, None);
            match kinds.iter_mut().find(|count| count.kind == further) {
                Some(known) => known.more += 1,
                None => {
                    let message = "calls of further kinds were refused, and are counted together".to_owned();
                    kinds.push(Count { kind: further, fact: is_denial.then(|| denial(ANY, None, message)), more: 1 });
                }
            }
            return None;
        }
        let fact = if is_rate {
            let value = Some(limits.host_calls_per_second.into());
            let effect = Some("calls of the run are refused until it makes fewer".into());
            Some(Fact::LimitReached(Limit { effect, limit: "host_calls_per_second".into(), value, ..Limit::default() }))
        } else {
            is_denial.then(|| denial(function, resource, refusal.message.chars().take(MAX_MESSAGE_CHARS).collect()))
        };
        kinds.push(Count { kind: kind(function, resource), fact: fact.clone(), more: 0 });
        Some(FirstRefusal { fact })
    }

    /// Takes the counts of what was refused more than once.
    pub(crate) fn take_counts(&self) -> Vec<RepeatedRefusal> {
        let kinds = std::mem::take(&mut *self.0.lock());
        let repeated = kinds.into_iter().filter(|count| count.more > 0).map(|Count { kind, mut fact, more }| {
            match &mut fact {
                Some(Fact::LimitReached(limit)) => limit.count = Some(more),
                Some(Fact::PermissionDenied(denial)) => denial.count = Some(more),
                _ => {}
            }
            RepeatedRefusal { kind, count: more, fact }
        });
        repeated.collect()
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

    fn counted(refusals: &Refusals) -> Vec<(String, Option<String>, u64, bool)> {
        let counts = refusals.take_counts().into_iter();
        counts.map(|of| (of.kind.function, of.kind.resource, of.count, of.fact.is_some())).collect()
    }

    #[test]
    fn the_first_of_each_kind_is_said_and_the_rest_is_counted() {
        let (refusals, limits) = (Refusals::default(), Limits::default());
        let note = |resource| refusals.note("models.invoke", Some(resource), &denied(), &limits);
        assert!(note("a").is_some_and(|first| first.fact.is_some()) && note("b").is_some());
        assert!(note("a").is_none() && note("a").is_none());
        // A bad request is no fact, and fills the audit no more than the others.
        let bad = || refusals.note("tools.call", None, &ApiError::new(ErrorCode::NotFound, "?"), &limits);
        assert!(bad().is_some_and(|first| first.fact.is_none()) && bad().is_none());
        let expected = [("models.invoke".to_owned(), Some("a".to_owned()), 2, true), ("tools.call".to_owned(), None, 1, false)];
        assert_eq!(counted(&refusals), expected);
        assert!(refusals.take_counts().is_empty());
    }

    #[test]
    fn kinds_are_bounded() {
        let (refusals, limits) = (Refusals::default(), Limits::default());
        let named: Vec<_> = (0..MAX_KINDS + 5).map(|n| n.to_string()).collect();
        let first = named.iter().filter_map(|name| refusals.note("storage.get", Some(name), &denied(), &limits));
        assert_eq!(first.count(), MAX_KINDS);
        // Other answers are counted too, and are no denials.
        let missing = ApiError::new(ErrorCode::NotFound, "?");
        assert!(named.iter().all(|name| refusals.note("artifacts.open", Some(name), &missing, &limits).is_none()));
        let expected = [(ANY.to_owned(), None, 5, true), (ANY.to_owned(), None, named.len() as u64, false)];
        assert_eq!(counted(&refusals), expected);
    }
}
