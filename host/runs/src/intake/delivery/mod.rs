//! Delivery of results to webhooks.
//!
//! Guarantees:
//! - A run whose binding names webhooks is created in one commit with an entry `delivery/RUN_ID/WEBHOOK` for each. The
//!   entry stores the progress of the delivery and is removed with the last event: a run that has ended and was delivered
//!   leaves no entry.
//! - Requests of one run to one webhook come one after the other, in the order of its events. Runs do not wait for each other.
//! - A request is sent until it is accepted: at least once. Each request has an id, `RUN_ID.FIRST_SEQUENCE`; a repeated
//!   request has the same id and the same bytes, also after a crash. The events of a request are fixed before it is sent:
//!   either they could be no others (the request is full, or contains the end of the run), or their range is written first.
//! - An accepted request is on disk before the next request of the run is sent.
//!
//! In memory there is only a small [`Slot`](queue) for each delivery that is not finished. Events are read when their request
//! is sent, and a bounded number of requests is under way.

mod list;
mod queue;
mod worker;

use agent_host_ledger::EntryWrite;
use agent_host_protocol::{Run, RunId, Timestamp};
use serde::{Deserialize, Serialize};

pub use self::list::{Delivery, DeliveryFilter};
pub(crate) use self::queue::Deliveries;
use crate::record::{HostError, terms::Terms};

/// Keys of entries.
pub(crate) const ENTRIES: &str = "delivery/";

/// The state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// Events are, or may be, left to send.
    Pending,
    /// The delivery was given up: a dead letter.
    Dead,
}

impl DeliveryState {
    /// The state as JSON shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Dead => "dead",
        }
    }

    /// The state with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Pending, Self::Dead].into_iter().find(|state| state.as_str() == name)
    }
}

/// The progress of a delivery, as the ledger stores it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    state: DeliveryState,
    /// The events up to this one were taken.
    cursor: u64,
    /// The last event of the request that is under way, where that was written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    through: Option<u64>,
    /// Failed tries of that request.
    attempts: u32,
    /// Time of the next try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_at: Option<Timestamp>,
    created_at: Timestamp,
    changed_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    binding_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workspace_id: Option<String>,
}

/// The entries that a run is created with.
pub(crate) fn entries(run: &Run, terms: &Terms) -> Result<Vec<EntryWrite>, HostError> {
    if terms.deliver.is_empty() {
        return Ok(Vec::new());
    }
    let row = Row {
        state: DeliveryState::Pending,
        cursor: 0,
        through: None,
        attempts: 0,
        next_at: None,
        created_at: run.created_at,
        changed_at: run.created_at,
        last_error: None,
        binding_id: run.binding_id.clone(),
        workspace_id: run.workspace_id.clone(),
    };
    terms.deliver.iter().map(|name| Ok(EntryWrite::put(key(run.run_id, name), &row)?)).collect()
}

fn key(run_id: RunId, webhook: &str) -> String {
    format!("{}{webhook}", of_run(run_id))
}

/// The key prefix of all deliveries of a run.
pub(crate) fn of_run(run_id: RunId) -> String {
    format!("{ENTRIES}{run_id}/")
}

/// The run and the webhook of a key.
pub(crate) fn parse_key(key: &str) -> Option<(RunId, &str)> {
    let (run_id, webhook) = key.strip_prefix(ENTRIES)?.split_once('/')?;
    Some((run_id.parse().ok()?, webhook))
}
