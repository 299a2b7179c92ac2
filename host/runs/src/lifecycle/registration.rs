//! Registrations: what an executor says of itself, and may change.

use std::collections::BTreeMap;

use agent_host_config::{check_labels, is_name};
use agent_host_protocol::{RunnerId, encoded::json_len, limits::is_shallow};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{policy::registered::SentManifest, record::HostError};

/// Names in a list of a registration.
const MAX_NAMES: usize = 100;
/// Runs that one executor may hold.
const MAX_SLOTS: u32 = 10_000;
/// Largest description of an executor's capabilities, in bytes of JSON.
const MAX_CAPABILITIES_BYTES: usize = 16 * 1024;

/// The registration of an executor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// Name for people.
    pub name: String,
    /// Version of the executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Runners whose runs it takes. None: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runner_ids: Vec<RunnerId>,
    /// Queues that it takes runs from. None: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<String>,
    /// Labels of the executor: runs that need a label go to executors that have it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Runs that it holds at one time, at most.
    #[serde(default = "one")]
    pub slots: u32,
    /// More of it, for people: nothing is decided by it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub capabilities: Map<String, Value>,
    /// Manifests of runners that the executor serves, as far as `[[executor_runners]]` allows them. They are there as long as the
    /// executor is registered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub manifests: Vec<SentManifest>,
}

/// The change of an executor by its heartbeat. An absent member stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutorChange {
    /// New labels, in place of the old ones.
    pub labels: Option<BTreeMap<String, String>>,
    /// Runs that it holds at one time, at most. Runs that it already holds stay.
    pub slots: Option<u32>,
    /// New capabilities, in place of the old ones.
    pub capabilities: Option<Map<String, Value>>,
}

impl ExecutorChange {
    pub(super) fn applied(self, kept: &StoredRegistration) -> StoredRegistration {
        let Self { labels, slots, capabilities } = self;
        StoredRegistration {
            labels: labels.unwrap_or_else(|| kept.labels.clone()),
            slots: slots.unwrap_or(kept.slots),
            capabilities: capabilities.unwrap_or_else(|| kept.capabilities.clone()),
            ..kept.clone()
        }
    }
}

const fn one() -> u32 {
    1
}

impl Registration {
    pub(super) fn check(&self) -> Result<(), HostError> {
        let invalid = |message: &str| Err(HostError::Invalid(message.to_owned()));
        let short = |text: &str| (1..=128).contains(&text.len()) && !text.chars().any(char::is_control);
        if !short(&self.name) || self.version.as_deref().is_some_and(|version| !short(version)) {
            return invalid("`name` and `version` have 1 to 128 bytes and no control characters");
        }
        if self.queues.len() > MAX_NAMES || self.runner_ids.len() > MAX_NAMES {
            return invalid("`queues` and `runner_ids` name at most 100 each: leave them out to take all");
        }
        if !self.queues.iter().all(|queue| is_name(queue)) {
            return invalid("`queues`: a queue has 1 to 64 letters, digits, `.`, `_`, `-` or `/`");
        }
        check_labels(&self.labels).map_err(HostError::Invalid)?;
        if !(1..=MAX_SLOTS).contains(&self.slots) {
            return invalid("`slots` is between 1 and 10000");
        }
        let capabilities = json_len(&self.capabilities);
        if capabilities > MAX_CAPABILITIES_BYTES || !self.capabilities.values().all(is_shallow) {
            return invalid("`capabilities` have at most 16384 bytes, and nest at most 64 levels");
        }
        Ok(())
    }
}

/// A registration, without the refusal of unknown fields that flattening does not allow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredRegistration {
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    #[serde(default)]
    pub(super) runner_ids: Vec<RunnerId>,
    #[serde(default)]
    pub(super) queues: Vec<String>,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
    pub(super) slots: u32,
    #[serde(default)]
    pub(super) capabilities: Map<String, Value>,
}
