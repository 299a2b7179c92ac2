//! `queue` of a binding: how its runs wait for their turn, and for executors.

use std::collections::BTreeMap;

use agent_host_protocol::{
    Timestamp,
    run::{DEFAULT_QUEUE, QueueEntry},
};
use serde::{Deserialize, Serialize};

/// Queue of the runs of a binding, and rules for claims.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QueuePolicy {
    /// The queue that executors name when they claim.
    pub name: String,
    /// Runs with a higher one come first, then older ones.
    pub priority: i32,
    /// Labels that an executor must have to claim such a run.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Runs of the binding that are executed at one time. Without it: as many as there are places.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Runs of the binding that begin in one minute. Without it: as many as come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<u32>,
    /// Default and largest duration of a lease, in ms.
    pub lease_ms: u64,
    /// A run that was claimed begins within so long, or the claim is lost.
    pub dispatch_timeout_ms: u64,
    /// Time of an executor to append and finish after its run was cancelled, in ms. The run ends without it after that.
    pub cancel_grace_ms: u64,
    /// A run that nobody has claimed for so long ends as failed. Without it: it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_timeout_ms: Option<u64>,
    /// Pause before the second attempt, in ms. It doubles with each further attempt.
    pub backoff_ms: u64,
    /// The longest pause between two attempts.
    pub max_backoff_ms: u64,
    /// The fate of a run whose claim is lost.
    pub on_lost: OnLost,
}

/// The fate of a run whose claim is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnLost {
    /// The run waits for another executor, up to `max_attempts` of its binding.
    #[default]
    Requeue,
    /// The run fails.
    Fail,
}

impl Default for QueuePolicy {
    fn default() -> Self {
        Self {
            name: DEFAULT_QUEUE.to_owned(),
            priority: 0,
            labels: BTreeMap::new(),
            concurrency: None,
            per_minute: None,
            lease_ms: 60_000,
            dispatch_timeout_ms: 60_000,
            cancel_grace_ms: 2_000,
            claim_timeout_ms: None,
            backoff_ms: 1_000,
            max_backoff_ms: 60_000,
            on_lost: OnLost::Requeue,
        }
    }
}

/// The shortest lease: shorter ones are lost to an ordinary pause of a network.
pub const MIN_LEASE_MS: u64 = 1_000;
/// The longest lease and pause.
const MAX_MS: u64 = 24 * 60 * 60 * 1000;
/// Priorities are within this of 0.
const MAX_PRIORITY: i32 = 1_000_000;
/// Largest number of labels of an executor or a run.
const MAX_LABELS: usize = 32;

/// True if a text can be the name of a queue, or a label.
#[must_use]
pub fn is_queue_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/'))
}

/// Checks labels.
///
/// # Errors
/// Names the label that cannot be.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), String> {
    if labels.len() > MAX_LABELS {
        return Err(format!("`labels` are at most {MAX_LABELS}"));
    }
    match labels.iter().find(|(name, value)| !is_queue_name(name) || !is_queue_name(value)) {
        Some((name, _)) => Err(format!(
            "label {:?}: names and values have 1 to 64 letters, digits, `.`, `_`, `-` or `/`",
            name.chars().take(64).collect::<String>()
        )),
        None => Ok(()),
    }
}

impl QueuePolicy {
    /// Checks what the shape alone does not say.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !is_queue_name(&self.name) {
            return Err("`queue.name` has 1 to 64 letters, digits, `.`, `_`, `-` or `/`".to_owned());
        }
        if !(-MAX_PRIORITY..=MAX_PRIORITY).contains(&self.priority) {
            return Err(format!("`queue.priority` is between -{MAX_PRIORITY} and {MAX_PRIORITY}"));
        }
        check_labels(&self.labels).map_err(|problem| format!("`queue`: {problem}"))?;
        if self.concurrency == Some(0) || self.per_minute == Some(0) {
            return Err("`queue.concurrency` and `queue.per_minute` are at least 1: without them nothing is bounded".to_owned());
        }
        for (name, ms, least) in [
            ("lease_ms", self.lease_ms, MIN_LEASE_MS),
            ("dispatch_timeout_ms", self.dispatch_timeout_ms, 1),
            ("claim_timeout_ms", self.claim_timeout_ms.unwrap_or(1), 1),
            ("cancel_grace_ms", self.cancel_grace_ms, 0),
            ("backoff_ms", self.backoff_ms, 0),
            ("max_backoff_ms", self.max_backoff_ms, 0),
        ] {
            if !(least..=MAX_MS).contains(&ms) {
                return Err(format!("`queue.{name}` is between {least} and {MAX_MS} (a day)"));
            }
        }
        Ok(())
    }

    /// True if runs of the host may have to wait.
    #[must_use]
    pub fn bounds(&self) -> bool {
        self.concurrency.is_some() || self.per_minute.is_some()
    }

    /// The place of a new run.
    #[must_use]
    pub fn entry(&self) -> Box<QueueEntry> {
        Box::new(QueueEntry { labels: self.labels.clone(), ..QueueEntry::new(self.name.clone(), self.priority) })
    }

    /// Earliest time of the attempt after `attempts` attempts.
    #[must_use]
    pub fn not_before(&self, attempts: u32, now: Timestamp) -> Option<Timestamp> {
        let doubled = self.backoff_ms.saturating_mul(1 << attempts.saturating_sub(1).min(20));
        let pause = doubled.min(self.max_backoff_ms.max(self.backoff_ms));
        (pause > 0).then(|| now.saturating_add(pause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let policy = QueuePolicy { backoff_ms: 100, max_backoff_ms: 350, ..QueuePolicy::default() };
        let pauses: Vec<_> = (1..=4).map(|attempts| policy.not_before(attempts, 0).unwrap()).collect();
        assert_eq!(pauses, [100, 200, 350, 350]);
        assert_eq!(QueuePolicy { backoff_ms: 0, ..policy }.not_before(3, 5), None);
    }

    #[test]
    fn invalid_values_are_reported() {
        let ok = QueuePolicy::default();
        assert_eq!(ok.check(), Ok(()));
        for (wrong, says) in [
            (QueuePolicy { name: String::new(), ..ok.clone() }, "queue.name"),
            (QueuePolicy { concurrency: Some(0), ..ok.clone() }, "concurrency"),
            (QueuePolicy { lease_ms: 5, ..ok.clone() }, "lease_ms"),
            (QueuePolicy { labels: BTreeMap::from([("a b".to_owned(), "c".to_owned())]), ..ok.clone() }, "label"),
            (QueuePolicy { priority: i32::MAX, ..ok }, "priority"),
        ] {
            assert!(wrong.check().unwrap_err().contains(says), "{wrong:?}");
        }
    }
}
