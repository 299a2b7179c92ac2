//! Deliveries as people see them.

use std::time::Duration;

use agent_host_ledger::EntryWrite;
use agent_host_protocol::{Page, RunId, Timestamp, time};
use serde::Serialize;

use super::{DeliveryState, ENTRIES, Row, key, parse_key};
use crate::{intake::Intake, record::HostError};

/// Entries that are read at one time.
const READ: usize = 256;

/// A delivery of a run's results to a webhook. Finished deliveries are not listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = ResultDelivery)]
pub struct Delivery {
    /// The run.
    pub run_id: RunId,
    /// The webhook, by its name.
    pub webhook: String,
    /// State of the delivery.
    pub state: DeliveryState,
    /// The events of the run up to this one were taken.
    pub cursor: u64,
    /// Failed tries of the next request.
    pub attempts: u32,
    /// Time of the next try, after a failed one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// Creation time of the run.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub changed_at: Timestamp,
    /// Error of the last request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The binding of the run.
    pub binding_id: String,
    /// The workspace of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    /// Reason why no request is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Filters of the list of deliveries. An absent field matches every delivery.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the fields of a delivery")]
pub struct DeliveryFilter {
    pub state: Option<DeliveryState>,
    pub webhook: Option<String>,
    pub run_id: Option<RunId>,
    pub workspace_id: Option<String>,
}

impl Intake {
    /// Deliveries that are not finished, oldest run first.
    pub(crate) async fn deliveries(
        &self,
        filter: DeliveryFilter,
        cursor: Option<String>,
        limit: u32,
    ) -> Result<Page<Delivery>, HostError> {
        let intake = self.clone();
        let page = tokio::task::spawn_blocking(move || intake.deliveries_page(&filter, cursor.as_deref(), limit)).await;
        page.map_err(|error| HostError::Internal(error.to_string()))?
    }

    fn deliveries_page(&self, filter: &DeliveryFilter, cursor: Option<&str>, limit: u32) -> Result<Page<Delivery>, HostError> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let prefix = filter.run_id.map_or_else(|| ENTRIES.to_owned(), |run_id| key(run_id, ""));
        let after = cursor.map(|cursor| format!("{ENTRIES}{cursor}"));
        let mut after = match after {
            Some(after) if parse_key(&after).is_none() || !after.starts_with(&prefix) => {
                return Err(HostError::InvalidCursor("`cursor` is not one that this list gave".to_owned()));
            }
            after => after,
        };
        let mut items: Vec<Delivery> = Vec::new();
        loop {
            let entries = self.ledger.entries(&prefix, after.as_deref(), READ)?;
            let all = entries.len() < READ;
            for (key, row) in entries {
                let Some((run_id, webhook)) = parse_key(&key) else { continue };
                let row: Row = serde_json::from_str(row.get()).map_err(|error| HostError::Internal(format!("{key}: {error}")))?;
                let fits = filter.state.is_none_or(|state| state == row.state)
                    && filter.webhook.as_deref().is_none_or(|name| name == webhook)
                    && filter.workspace_id.as_ref().is_none_or(|id| row.workspace_id.as_ref() == Some(id));
                if fits && items.len() == limit {
                    let next_cursor = items.last().map(|last| format!("{}/{}", last.run_id, last.webhook));
                    return Ok(Page { items, next_cursor, prev_cursor: None, has_more: true });
                }
                if fits {
                    items.push(self.delivery_of(run_id, webhook, row));
                }
                after = Some(key);
            }
            if all {
                return Ok(Page { items, next_cursor: None, prev_cursor: None, has_more: false });
            }
        }
    }

    /// Has a delivery tried now: a dead letter is put back, with all its attempts; one that waits for its time waits no more.
    pub(crate) async fn retry_delivery(&self, run_id: RunId, webhook: &str) -> Result<Delivery, HostError> {
        let key = key(run_id, webhook);
        let missing = || {
            HostError::NotFound(format!(
                "there is no delivery of run {run_id} to `{webhook}`: completed deliveries are not listed"
            ))
        };
        let mut row = self.delivery_row(&key)?.ok_or_else(missing)?;
        let record = self.runs.record(run_id)?;
        if row.state == DeliveryState::Dead {
            // A dead letter has no other writer.
            row = Row { state: DeliveryState::Pending, attempts: 0, next_at: None, changed_at: time::now(), ..row };
            self.ledger.put_entries(&[EntryWrite::put(key, &row)?]).await?;
        }
        self.deliveries.add(record.run_no, run_id, webhook, Duration::ZERO);
        Ok(self.delivery_of(run_id, webhook, row))
    }

    fn delivery_of(&self, run_id: RunId, webhook: &str, row: Row) -> Delivery {
        let problem = match self.shared.setup().webhooks.get(webhook) {
            None => Some(format!("no `[[webhooks]]` entry has the name `{webhook}`: add one; its deliveries wait until then")),
            Some(hook) if !hook.can_sign() => Some(
                "the secret of the webhook cannot be read: correct `secret` of its entry; its deliveries wait until then"
                    .to_owned(),
            ),
            Some(_) => None,
        };
        Delivery {
            run_id,
            webhook: webhook.to_owned(),
            state: row.state,
            cursor: row.cursor,
            attempts: row.attempts,
            next_at: row.next_at,
            created_at: row.created_at,
            changed_at: row.changed_at,
            last_error: row.last_error,
            binding_id: row.binding_id,
            workspace_id: row.workspace_id,
            problem: problem.filter(|_| row.state == DeliveryState::Pending),
        }
    }
}
