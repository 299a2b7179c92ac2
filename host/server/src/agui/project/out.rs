//! The output of a projection: steps, each with a place of its own.

use std::{collections::HashMap, mem};

use agent_host_protocol::{RunEvent, Timestamp};
use agent_host_runs::facts::record::{Chunk, Delta};
use serde_json::{Map, Value};

use super::{End, Step, filter::SubagentFilter, ids::Ids, metadata_of};
use crate::agui::{
    cursor::{ChildPlace, Cursor, Place, StampedEvent},
    event::{Event, Kind, Message, ReasoningRole},
};

/// The output of the present event.
#[derive(Debug, Default)]
pub(super) struct Out {
    steps: Vec<Step>,
    next: Cursor,
    /// The cursor of the last step.
    last: Cursor,
    /// The places in the records of children when the present event came.
    children: Vec<ChildPlace>,
    timestamp: Timestamp,
    reasoning: Option<Reasoning>,
    /// The ids of reasoning by the names that the guest gave it: of the last one under each.
    reasoned: HashMap<String, String>,
    /// Of the run of a subagent.
    filter: Option<SubagentFilter>,
    /// Metadata for the next event.
    metadata: Map<String, Value>,
}

/// An open reasoning: the next element of another kind ends it.
#[derive(Debug)]
struct Reasoning {
    /// As the guest names it.
    name: String,
    id: String,
}

impl Out {
    /// Of the run of a subagent with this id: only what a subagent says is shown.
    pub(super) fn of_subagent(subagent: String) -> Self {
        Self { filter: Some(SubagentFilter::new(subagent)), ..Self::default() }
    }

    /// True if the run is that of a subagent.
    pub(super) const fn is_embedded(&self) -> bool {
        self.filter.is_some()
    }

    /// True if the event is the next one.
    pub(super) fn begin(&mut self, event: &RunEvent, children: Vec<ChildPlace>) -> bool {
        let is_next = event.sequence > self.next.sequence || self.next == Cursor::default();
        if is_next {
            self.next = Cursor { sequence: event.sequence, part: 0 };
            self.children = children;
            self.timestamp = event.timestamp;
            self.metadata = metadata_of(event);
        }
        is_next
    }

    pub(super) fn say(&mut self, kind: Kind) {
        self.end_reasoning();
        self.event(kind);
    }

    /// Adds a member to the metadata of the next event.
    pub(super) fn mark(&mut self, name: &str, value: Value) {
        self.metadata.insert(name.to_owned(), value);
    }

    /// The last reasoning under this name.
    pub(super) fn reasoning_of(&self, name: &str) -> Option<&str> {
        self.reasoned.get(name).map(String::as_str)
    }

    pub(super) fn custom(&mut self, name: impl Into<String>, value: Value) {
        self.say(Kind::Custom { name: name.into(), value });
    }

    /// Says what the client of the run knows by itself. It knows no calls of subagents.
    pub(super) fn past(&mut self, kind: Kind) {
        self.end_reasoning();
        if self.is_embedded() {
            return self.event(kind);
        }
        let event = self.event_of(kind);
        let at = self.place();
        self.steps.push(Step::Past(StampedEvent { event, at }));
    }

    pub(super) fn correct(&mut self, mut message: Message) {
        self.end_reasoning();
        if let Some(filter) = &self.filter
            && !filter.tag(&mut message)
        {
            return;
        }
        let at = self.place();
        self.steps.push(Step::Correct(message, at));
    }

    /// Ends the segment. The segments of a subagent are those of its parent.
    pub(super) fn end(&mut self, end: End) {
        if !self.is_embedded() {
            let at = self.place();
            self.steps.push(Step::End(end, at));
        }
    }

    /// Shows steps of a child as part of the present event.
    pub(super) fn adopt(&mut self, steps: Vec<Step>) {
        for step in steps {
            let at = self.place();
            self.steps.push(step.moved(at));
        }
    }

    /// Takes the steps out.
    pub(super) fn take(&mut self) -> Vec<Step> {
        mem::take(&mut self.steps)
    }

    /// The cursor of the last step.
    pub(super) const fn last(&self) -> Cursor {
        self.last
    }

    /// Sets the cursor of the last step.
    pub(super) const fn move_to(&mut self, last: Cursor) {
        self.last = last;
    }

    /// The time of the present event.
    pub(super) const fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// Sets the time of the present event: that of an event of the parent, for steps that come with it.
    pub(super) const fn set_timestamp(&mut self, timestamp: Timestamp) {
        self.timestamp = timestamp;
    }

    /// Drops calls of a subagent that are not shown.
    pub(super) fn drop_calls(&mut self) {
        if let Some(filter) = &mut self.filter {
            filter.drop_calls();
        }
    }

    /// The places in the record, for [`Self::take_aside`].
    pub(super) const fn bookmark(&self) -> (Cursor, Cursor) {
        (self.next, self.last)
    }

    /// Takes the steps since then out. They have no place in the record.
    pub(super) fn take_aside(&mut self, (next, last): (Cursor, Cursor)) -> Vec<Step> {
        (self.next, self.last) = (next, last);
        self.metadata.clear();
        self.take()
    }

    pub(super) fn reasoning(&mut self, ids: &mut Ids, delta: Delta) {
        let Delta { message_id: name, chunk: Chunk { content: delta, .. } } = delta;
        if delta.is_empty() {
            return;
        }
        let id = match &self.reasoning {
            Some(open) if open.name == name => open.id.clone(),
            _ => {
                self.end_reasoning();
                let id = ids.reasoning(&name);
                self.event(Kind::ReasoningStart { message_id: id.clone() });
                self.event(Kind::ReasoningMessageStart { message_id: id.clone(), role: ReasoningRole::Reasoning });
                self.reasoned.insert(name.clone(), id.clone());
                self.reasoning = Some(Reasoning { name, id: id.clone() });
                id
            }
        };
        self.event(Kind::ReasoningMessageContent { message_id: id, delta });
    }

    pub(super) fn end_reasoning(&mut self) {
        if let Some(Reasoning { id, .. }) = self.reasoning.take() {
            self.event(Kind::ReasoningMessageEnd { message_id: id.clone() });
            self.event(Kind::ReasoningEnd { message_id: id });
        }
    }

    fn event(&mut self, kind: Kind) {
        let event = self.event_of(kind);
        match &mut self.filter {
            None => self.push(event),
            Some(filter) => {
                for event in filter.admit(event) {
                    self.push(event);
                }
            }
        }
    }

    fn push(&mut self, event: Event) {
        let at = self.place();
        self.steps.push(Step::Event(StampedEvent { event, at }));
    }

    fn event_of(&mut self, kind: Kind) -> Event {
        Event { metadata: mem::take(&mut self.metadata), ..Event::from(kind).at(self.timestamp) }
    }

    fn place(&mut self) -> Place {
        self.last = self.next;
        self.next.part = self.next.part.saturating_add(1);
        Place { cursor: self.last, children: self.children.clone() }
    }
}
