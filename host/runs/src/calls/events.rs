//! `events`.

use agent_host_protocol::{
    ApiError, Event, EventId, Page, context::EventContext, grant::ConversationKey, manifest::EventOperation,
};
use agent_host_sandbox::EventCalls;
use async_trait::async_trait;

use super::{RunCalls, granted, not_found};
use crate::{execution::call::Call, record::ledger_failed};

/// Types that a page can be narrowed to at a time.
const MAX_TYPES: usize = 50;

impl RunCalls {
    /// True if the run may read an event: its own, or one of its conversation.
    fn sees(&self, event: &Event) -> bool {
        let own = self.run.terms.grant.conversation.as_ref();
        let its = event.envelope.conversation.as_ref().and_then(ConversationKey::of);
        event.event_id == self.event.event_id || (own.is_some() && own == its.as_ref())
    }
}

#[async_trait]
impl EventCalls for RunCalls {
    async fn event_get(&mut self, event_id: String) -> Result<EventContext, ApiError> {
        let run = &*self.run;
        let asked = run.journal.asked(&event_id);
        let call = Call::read("events.get", asked).resource(event_id.as_str()).scope("conversation");
        let find = || {
            granted(&run.terms.grant.permissions.events, &EventOperation::Get, "events.get")?;
            // An id that cannot be, one that is not, and one of another conversation look the same.
            let missing = || not_found("event", &event_id);
            let id: EventId = event_id.parse().map_err(|_| missing())?;
            let record = run.ledger.event(id).map_err(ledger_failed)?.filter(|record| self.sees(&record.event));
            Ok(EventContext::of(&record.ok_or_else(missing)?.event))
        };
        run.pass(call, || find().map(drop), async |()| find()).await.outcome
    }

    async fn event_page(
        &mut self,
        before: Option<String>,
        event_types: Vec<String>,
        limit: u32,
    ) -> Result<Page<EventContext>, ApiError> {
        let run = &*self.run;
        let own = run.terms.grant.conversation.as_ref();
        let resource = own.map(|key| key.conversation());
        let asked = run.journal.asked(&(&before, &event_types, limit));
        let call = Call::read("events.page", asked).resource(resource).scope("conversation");
        let allowed = || {
            granted(&run.terms.grant.permissions.events, &EventOperation::Page, "events.page")?;
            if event_types.len() > MAX_TYPES {
                return Err(ApiError::invalid_argument(format!("a page can be narrowed to at most {MAX_TYPES} types of event")));
            }
            Ok(())
        };
        let effect = async |()| {
            let Some(own) = own else { return Err(not_found("conversation", "")) };
            let page = run.ledger.conversation_events(own, before.as_deref(), &event_types, limit).map_err(ledger_failed)?;
            Ok(page.map(|event| EventContext::of(&event)))
        };
        run.pass(call, allowed, effect).await.outcome
    }
}
