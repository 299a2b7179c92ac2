//! The requests of one delivery are sent one after the other.

use std::{sync::Arc, time::Duration};

use agent_host_ledger::{EntryWrite, LedgerError};
use agent_host_protocol::{EventId, Run, RunEvent, RunId, RunnerId, Timestamp, time};
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until};

use super::{
    DeliveryState, ENTRIES, Row, key, parse_key,
    queue::{Next, Turn},
};
use crate::{execution::spans, intake::Intake, record::HostError};

/// Events that are read at one time.
const PIECE: usize = 256;
/// Entries that are read at one time.
const PAGE: usize = 256;
/// The data of a request, beyond its first event, in bytes.
const MAX_DATA: usize = 256 << 10;
/// Pause of a delivery after an error of the ledger.
const LEDGER_PAUSE: Duration = Duration::from_secs(1);
/// Interval between searches for old dead letters.
const SWEEP: Duration = Duration::from_secs(60 * 60);
/// The reason of a failure is kept with the delivery and shown in lists, in bytes.
const MAX_REASON: usize = 500;

/// The events of one request.
#[derive(Debug, Default)]
struct Batch {
    events: Vec<RunEvent>,
    /// The last event that was looked at.
    scanned: u64,
    /// True if the range of events is final, however late the request is built.
    settled: bool,
    /// True if the request contains the end of the run.
    ended: bool,
}

/// The members of a request that describe the run: only values that never change, so that a repeated request has the same
/// bytes.
#[derive(Serialize)]
struct About<'a> {
    run_id: RunId,
    event_id: EventId,
    binding_id: &'a str,
    runner_id: &'a RunnerId,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_run_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_of: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bot_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_id: Option<&'a str>,
    created_at: Timestamp,
}

impl<'a> About<'a> {
    fn new(run: &'a Run) -> Self {
        Self {
            run_id: run.run_id,
            event_id: run.event_id,
            binding_id: &run.binding_id,
            runner_id: &run.runner_id,
            parent_run_id: run.parent_run_id,
            retry_of: run.retry_of,
            workspace_id: run.workspace_id.as_deref(),
            bot_id: run.bot_id.as_deref(),
            conversation_id: run.conversation_id.as_deref(),
            thread_id: run.thread_id.as_deref(),
            created_at: run.created_at,
        }
    }
}

fn body(run: &Run, events: &[RunEvent], at: Timestamp) -> Result<Bytes, HostError> {
    #[derive(Serialize)]
    struct Body<'a> {
        r#type: &'a str,
        /// Of the last event: the same whenever it is sent.
        timestamp: String,
        data: Data<'a>,
    }
    #[derive(Serialize)]
    struct Data<'a> {
        run: About<'a>,
        events: &'a [RunEvent],
    }
    let data = Data { run: About::new(run), events };
    let body = serde_json::to_vec(&Body { r#type: "run.events", timestamp: time::display(at), data });
    body.map(Bytes::from).map_err(|error| HostError::Internal(error.to_string()))
}

impl Intake {
    /// Delivers what is to be delivered, as long as the host lives.
    pub(crate) fn keep_delivering(&self) {
        let intake = self.clone();
        let deliveries = Arc::clone(&self.deliveries);
        self.ledger.on_commit(move |touched| deliveries.touched(touched));
        tokio::spawn(async move {
            let mut sweep = Instant::now();
            loop {
                if sweep <= Instant::now() {
                    // Deliveries of an earlier host process are found here as well.
                    sweep = match intake.look_through().await {
                        Ok(()) => Instant::now() + SWEEP,
                        Err(error) => {
                            tracing::error!(%error, "deliveries cannot be looked through; trying again");
                            Instant::now() + LEDGER_PAUSE
                        }
                    };
                }
                let (turns, next) = intake.deliveries.turns(&intake.shared.setup().webhooks);
                for turn in turns {
                    let sender = intake.clone();
                    intake.runs.tasks.spawn(async move {
                        tokio::select! {
                            () = sender.runs.ending.cancelled() => {}
                            next = sender.deliver_results(&turn) => sender.deliveries.done(&turn, &next),
                        }
                    });
                }
                tokio::select! {
                    () = intake.runs.stopping.cancelled() => return,
                    () = intake.deliveries.changed.notified() => {}
                    () = sleep_until(next.map_or(sweep, |next| next.min(sweep))) => {}
                }
            }
        });
    }

    /// The number of unfinished deliveries, and the number of open requests to webhooks.
    #[must_use]
    pub(crate) fn delivery_counts(&self) -> (usize, usize) {
        self.deliveries.counts()
    }

    /// Takes up every delivery that is pending, and forgets those that were given up long ago.
    async fn look_through(&self) -> Result<(), HostError> {
        let mut after: Option<String> = None;
        loop {
            let (ledger, from) = (self.ledger.clone(), after.take());
            // A host with many must not hold up the threads that serve.
            let page = move || -> Result<_, HostError> {
                let entries = ledger.entries(ENTRIES, from.as_deref(), PAGE)?;
                let last = entries.last().map(|(key, _)| key.clone());
                let mut found = Vec::new();
                for (key, row) in entries {
                    let Some((run_id, webhook)) = parse_key(&key) else { continue };
                    let row: Row = serde_json::from_str(row.get()).map_err(|error| HostError::Internal(error.to_string()))?;
                    found.push((ledger.run(run_id)?.map(|record| record.run_no), run_id, webhook.to_owned(), row));
                }
                Ok((last, found))
            };
            let (last, found) =
                tokio::task::spawn_blocking(page).await.map_err(|error| HostError::Internal(error.to_string()))??;
            let now = time::now();
            let setup = self.shared.setup();
            let kept_ms = setup.config.retention.dead_letters_ms;
            for (run_no, run_id, webhook, row) in found {
                let given_up = row.state == DeliveryState::Dead || setup.webhooks.get(&webhook).is_none();
                let old = given_up && row.changed_at.saturating_add(kept_ms) <= now;
                let Some(run_no) = run_no.filter(|_| !old) else {
                    tracing::warn!(%run_id, webhook, "an old dead letter is deleted");
                    self.ledger.put_entries(&[EntryWrite::delete(key(run_id, &webhook))]).await?;
                    continue;
                };
                if row.state == DeliveryState::Pending {
                    let after = Duration::from_millis(row.next_at.map_or(0, |at| at.saturating_sub(now)));
                    self.deliveries.add(run_no, run_id, &webhook, after);
                }
            }
            if last.is_none() {
                return Ok(());
            }
            after = last;
        }
    }

    async fn deliver_results(&self, turn: &Turn) -> Next {
        match self.try_deliver(turn).await {
            Ok(next) => next,
            Err(error) => {
                if !self.runs.stopping.is_cancelled() {
                    tracing::error!(run_id = %turn.run_id, webhook = turn.hook.config.name, %error, "a delivery failed in the host");
                }
                Next::After { pause: LEDGER_PAUSE, rest: false }
            }
        }
    }

    /// Sends one request, and writes down what came of it.
    async fn try_deliver(&self, turn: &Turn) -> Result<Next, HostError> {
        let key = key(turn.run_id, &turn.hook.config.name);
        let write_row = async |row: Option<&Row>| -> Result<(), HostError> {
            let write = match row {
                Some(row) => EntryWrite::put(key.clone(), row)?,
                None => EntryWrite::delete(key.clone()),
            };
            Ok(self.ledger.put_entries(&[write]).await?)
        };
        let Some(row) = self.delivery_row(&key)?.filter(|row| row.state == DeliveryState::Pending) else {
            return Ok(Next::Finished);
        };
        let batch = self.batch(turn, &row)?;
        let (Some(first), Some(last)) = (batch.events.first(), batch.events.last()) else {
            if batch.ended {
                write_row(None).await?;
                return Ok(Next::Finished);
            }
            if row.through.is_some() {
                // The webhook does not receive the events of this request again.
                let cursor = batch.scanned;
                write_row(Some(&Row { cursor, through: None, attempts: 0, next_at: None, changed_at: time::now(), ..row }))
                    .await?;
                return Ok(Next::Again);
            }
            return Ok(Next::Idle { scanned: batch.scanned });
        };
        let through = if batch.settled { batch.scanned } else { last.sequence };
        let row = if batch.settled || row.through.is_some() {
            row
        } else {
            let row = Row { through: Some(through), ..row };
            write_row(Some(&row)).await?;
            row
        };
        let Some(record) = self.ledger.run_by_no(turn.run_no)? else {
            write_row(None).await?;
            return Ok(Next::Finished);
        };
        let id = format!("{}.{}", turn.run_id, first.sequence);
        let span = spans::of_delivery(&record.run, &turn.hook.config.name);
        let sent = span.within(turn.hook.send(&id, body(&record.run, &batch.events, last.timestamp)?)).await;
        let now = time::now();
        let outcome = if sent.is_ok() { "delivered" } else { "failed" };
        if sent.is_err() {
            span.failed(outcome);
        }
        drop(span);
        self.shared.metrics.delivered(&turn.hook.config.name, outcome);
        let failure = match sent {
            Ok(()) if batch.ended => {
                write_row(None).await?;
                return Ok(Next::Finished);
            }
            Ok(()) => {
                let next_row =
                    Row { cursor: through, through: None, attempts: 0, next_at: None, changed_at: now, last_error: None, ..row };
                write_row(Some(&next_row)).await?;
                return Ok(Next::Again);
            }
            Err(failure) => failure,
        };
        let attempts = row.attempts.saturating_add(1);
        let mut reason = failure.reason;
        reason.truncate(reason.floor_char_boundary(MAX_REASON));
        let row = Row { through: Some(through), attempts, changed_at: now, last_error: Some(reason), ..row };
        if failure.is_gone || attempts >= turn.hook.config.max_attempts {
            self.shared.metrics.delivered(&turn.hook.config.name, "dead");
            // The log line has no error text: the webhook may have quoted the request. The text is stored with the
            // delivery.
            tracing::warn!(run_id = %turn.run_id, webhook = turn.hook.config.name, attempts, "a delivery is a dead letter");
            write_row(Some(&Row { state: DeliveryState::Dead, next_at: None, ..row })).await?;
            return Ok(Next::Finished);
        }
        let pause = turn.hook.pause(attempts, failure.retry_after);
        let next_at = now.saturating_add(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        write_row(Some(&Row { next_at: Some(next_at), ..row })).await?;
        Ok(Next::After { pause, rest: failure.retry_after.is_some() })
    }

    pub(super) fn delivery_row(&self, key: &str) -> Result<Option<Row>, HostError> {
        let read = |row: Box<RawValue>| serde_json::from_str(row.get());
        let row = self.ledger.entry(key)?.map(read).transpose();
        row.map_err(|error| HostError::Internal(format!("{key}: {error}")))
    }

    /// The next request. A request whose range was written before is built again.
    fn batch(&self, turn: &Turn, row: &Row) -> Result<Batch, LedgerError> {
        let config = &turn.hook.config;
        let ledger = &self.ledger;
        let is_subscribed = |event: &RunEvent| config.events.contains(&event.kind);
        let mut batch = Batch { scanned: row.cursor.max(turn.scanned), ..Batch::default() };
        if row.through.is_some() {
            batch.scanned = row.cursor;
        }
        let mut bytes = 0_usize;
        loop {
            let read = ledger.run_events_after(turn.run_no, turn.run_id, batch.scanned, PIECE)?;
            let more = read.len() == PIECE;
            for event in read {
                if row.through.is_some_and(|through| event.sequence > through) {
                    batch.settled = true;
                    return Ok(batch);
                }
                let is_subscribed = is_subscribed(&event);
                let data = event.data.get().len();
                if is_subscribed && row.through.is_none() && !batch.events.is_empty() && bytes + data > MAX_DATA {
                    batch.settled = true;
                    return Ok(batch);
                }
                (batch.scanned, batch.ended) = (event.sequence, event.is_terminal());
                if is_subscribed {
                    bytes += data;
                    batch.events.push(event);
                }
                if batch.ended || (row.through.is_none() && batch.events.len() >= config.batch) {
                    batch.settled = true;
                    return Ok(batch);
                }
            }
            if !more {
                batch.settled = row.through.is_some_and(|through| batch.scanned >= through);
                return Ok(batch);
            }
        }
    }
}
