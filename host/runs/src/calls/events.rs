//! `events`.

use agent_host_ledger::{EventRecord, Ledger};
use agent_host_protocol::{
    ApiError, Event, EventId, Page, ResultKind, RunEvent, RunId,
    context::EventContext,
    grant::ConversationKey,
    limits::{MAX_PAGE, MIN_PAGE},
    manifest::EventOperation,
};
use agent_host_sandbox::EventCalls;
use futures_util::future::BoxFuture;
use serde_json::json;

use super::{RunCalls, granted, not_found};
use crate::{execution::call::Call, record::ledger_failed};

/// Types that a page can be narrowed to at a time.
const MAX_TYPES: usize = 50;

/// Accepted events that one page with events of runs examines.
const EXAMINED_EVENTS: usize = 200;
/// Events of runs that one page examines.
const EXAMINED_RUN_EVENTS: usize = 2_000;
/// Events of a run that are read at a time.
const PIECE: u64 = 64;
/// Bytes of data after which a page ends.
const MAX_PAGE_BYTES: usize = 1024 * 1024;

/// A page of the events of a conversation with those of its runs, newest first: the events of the runs that answer an event come
/// before it. The cursor behind an event of a run is `RUN:SEQUENCE`.
struct EventsOfRuns<'a> {
    ledger: &'a Ledger,
    conversation: &'a ConversationKey,
    types: &'a [String],
    limit: usize,
    page: Page<EventContext>,
    bytes: usize,
    examined: usize,
}

impl<'a> EventsOfRuns<'a> {
    fn new(ledger: &'a Ledger, conversation: &'a ConversationKey, types: &'a [String], limit: u32) -> Result<Self, ApiError> {
        if !(MIN_PAGE..=MAX_PAGE).contains(&limit) {
            return Err(ApiError::invalid_argument(format!("`limit` is between {MIN_PAGE} and {MAX_PAGE}, not {limit}")));
        }
        let page = Page { items: Vec::new(), next_cursor: None, prev_cursor: None, has_more: false };
        Ok(Self { ledger, conversation, types, limit: limit as usize, page, bytes: 0, examined: 0 })
    }

    fn page(mut self, before: Option<&str>) -> Result<Page<EventContext>, ApiError> {
        let mut before = before.map(str::to_owned);
        if let Some((run, sequence)) = before.as_deref().and_then(|cursor| cursor.split_once(':')) {
            let event = self.event_of_run(run)?;
            let sequence = sequence.parse().map_err(|_| invalid_cursor())?;
            let left = self.ledger.has_left_conversation(self.conversation, event.event.event_id).map_err(ledger_failed)?;
            // Its branch has left the conversation since the page before.
            if !left && !self.add(&event, Some((run.parse().map_err(|_| invalid_cursor())?, sequence)))? {
                return Ok(self.page);
            }
            before = self.cursor_of(event.event.event_id)?;
        }
        let mut left = EXAMINED_EVENTS;
        loop {
            let accepted =
                self.ledger.conversation_events(self.conversation, before.as_deref(), &[], 20).map_err(ledger_failed)?;
            for event in accepted.items {
                if left == 0 || self.is_full() {
                    (self.page.has_more, self.page.next_cursor) = (true, before);
                    return Ok(self.page);
                }
                left -= 1;
                let record = self.ledger.event(event.event_id).map_err(ledger_failed)?;
                if let Some(record) = record
                    && !self.add(&record, None)?
                {
                    return Ok(self.page);
                }
                before = self.cursor_of(event.event_id)?;
            }
            if !accepted.has_more {
                return Ok(self.page);
            }
        }
    }

    /// Adds the events of the runs of an event, below a place, and the event itself. False where the page is full.
    fn add(&mut self, record: &EventRecord, below: Option<(RunId, u64)>) -> Result<bool, ApiError> {
        let later = below.and_then(|(run_id, _)| record.runs.iter().position(|run| *run == run_id));
        let runs = record.runs.iter().take(later.map_or(usize::MAX, |last| last + 1));
        for run_id in runs.collect::<Vec<_>>().into_iter().rev() {
            let Some(run) = self.ledger.run(*run_id).map_err(ledger_failed)? else { continue };
            let mut end = match below {
                Some((of, sequence)) if of == *run_id => sequence,
                _ => run.run.last_sequence.saturating_add(1),
            };
            while end > 1 {
                let start = end.saturating_sub(PIECE).max(1);
                let piece = self.ledger.run_events_after(run.run_no, *run_id, start - 1, (end - start) as usize);
                for event in piece.map_err(ledger_failed)?.into_iter().rev() {
                    if self.is_full() {
                        (self.page.has_more, self.page.next_cursor) = (true, Some(format!("{run_id}:{end}")));
                        return Ok(false);
                    }
                    self.examined += 1;
                    end = event.sequence;
                    if self.types.contains(&event.kind) {
                        self.bytes += event.data.get().len();
                        self.page.items.push(context_of(record.event.event_id, &event));
                    }
                }
                end = start;
            }
        }
        if self.types.contains(&record.event.envelope.event_type) {
            if self.is_full() {
                let first = record.runs.first().map(|run| format!("{run}:1"));
                (self.page.has_more, self.page.next_cursor) = (true, first);
                return Ok(false);
            }
            self.page.items.push(EventContext::of(&record.event));
        }
        Ok(true)
    }

    fn is_full(&self) -> bool {
        self.page.items.len() == self.limit || self.examined >= EXAMINED_RUN_EVENTS || self.bytes >= MAX_PAGE_BYTES
    }

    fn cursor_of(&self, id: EventId) -> Result<Option<String>, ApiError> {
        self.ledger.conversation_event_cursor(self.conversation, id).map_err(ledger_failed)
    }

    /// The event that a run of this conversation answers.
    fn event_of_run(&self, run: &str) -> Result<EventRecord, ApiError> {
        let id: RunId = run.parse().map_err(|_| invalid_cursor())?;
        let record = self.ledger.run(id).map_err(ledger_failed)?.ok_or_else(invalid_cursor)?;
        let event = self.ledger.event(record.run.event_id).map_err(ledger_failed)?.ok_or_else(invalid_cursor)?;
        let its = event.event.envelope.conversation.as_ref().and_then(ConversationKey::of);
        if its.as_ref() == Some(self.conversation) { Ok(event) } else { Err(invalid_cursor()) }
    }
}

fn invalid_cursor() -> ApiError {
    ApiError::invalid_argument("`before` is not a cursor of the events of this conversation: give one back as the host gave it")
}

/// An event of a run as the event log shows it.
fn context_of(event_id: EventId, event: &RunEvent) -> EventContext {
    let data = json!({
        "id": format!("{}:{}", event.run_id, event.sequence),
        "run_id": event.run_id,
        "sequence": event.sequence,
        "source": event.source,
        "data": event.data_value(),
    });
    EventContext {
        event_id,
        event_type: event.kind.clone(),
        event_time: Some(event.timestamp),
        source: "run".to_owned(),
        source_event_type: None,
        raw_ref: None,
        data: data.as_object().cloned().unwrap_or_default(),
    }
}

impl RunCalls {
    /// True if the run may read an event: its own, or one of a conversation that it reads.
    fn sees(&self, event: &Event) -> bool {
        let its = event.envelope.conversation.as_ref().and_then(ConversationKey::of);
        event.event_id == self.event.event_id || its.is_some_and(|key| self.reads(&key))
    }
}

impl EventCalls for RunCalls {
    fn event_get(&mut self, event_id: String) -> BoxFuture<'_, Result<EventContext, ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let digest = run.journal.digest(&event_id);
            let call = Call::read("events.get", digest).resource(event_id.as_str()).scope("conversation");
            let find = || {
                granted(&run.terms.grant.permissions.events, &EventOperation::Get, "events.get")?;
                // An id that cannot be, one that is not, and one of another conversation look the same.
                let missing = || not_found("event", &event_id);
                let id: EventId = event_id.parse().map_err(|_| missing())?;
                let record = run.ledger.event(id).map_err(ledger_failed)?.filter(|record| self.sees(&record.event));
                Ok(EventContext::of(&record.ok_or_else(missing)?.event))
            };
            run.pass(call, || find().map(drop), async |()| find()).await.outcome
        })
    }

    fn event_page(
        &mut self,
        before: Option<String>,
        event_types: Vec<String>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<EventContext>, ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let own = run.terms.grant.conversation.as_ref();
            let resource = own.map(|key| key.conversation());
            let digest = run.journal.digest(&(&before, &event_types, limit));
            let call = Call::read("events.page", digest).resource(resource).scope("conversation");
            let allowed = || {
                granted(&run.terms.grant.permissions.events, &EventOperation::Page, "events.page")?;
                if event_types.len() > MAX_TYPES {
                    return Err(ApiError::invalid_argument(format!(
                        "a page can be narrowed to at most {MAX_TYPES} types of event"
                    )));
                }
                Ok(())
            };
            let effect = async |()| {
                let Some(own) = own else { return Err(not_found("conversation", "")) };
                if event_types.iter().any(|name| ResultKind::from_name(name).is_some()) {
                    return EventsOfRuns::new(&run.ledger, own, &event_types, limit)?.page(before.as_deref());
                }
                let page = run.ledger.conversation_events(own, before.as_deref(), &event_types, limit).map_err(ledger_failed)?;
                Ok(page.map(|event| EventContext::of(&event)))
            };
            run.pass(call, allowed, effect).await.outcome
        })
    }
}
