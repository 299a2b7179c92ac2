//! The order of events in an AG-UI stream.
//!
//! Clients check most rules, and throw: the run is lost to them. A violation that they do not check shows wrong content or
//! breaks the next request. The host therefore checks before it sends, and knows the open elements at each moment: how to
//! end in order ([`Verifier::closing`]), and how a client that joins late gets to the same state ([`Verifier::reopening`]).
//!
//! The rules are those of `@ag-ui/client` 1.0.0, and those of the specification that it leaves to the server.

mod form;
mod item;
mod violation;

use std::collections::{HashMap, HashSet};

pub(crate) use self::violation::Violation;
use self::{
    form::{takes_tag, well_formed},
    item::{Act, Item, act, opened},
};
use super::event::{Event, Kind, Message, MessageBody, Outcome, TextRole};

/// Checks the events of one stream, which may have several runs one after the other.
#[derive(Debug, Default)]
pub(crate) struct Verifier {
    phase: Phase,
    /// Thread and run, as RUN_STARTED said.
    run: Option<(String, String)>,
    /// The STARTs of what is open, in order. Subagents apart.
    open: Vec<Event>,
    /// The subagents of this run, in order of their start.
    subagents: Vec<Subagent>,
    owners: Owners,
    /// Calls that this run started, in order, and those of them that have their result.
    calls: Vec<String>,
    answered: HashSet<String>,
    known: KnownElements,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Before,
    Active,
    Finished,
    Failed,
}

#[derive(Debug)]
struct Subagent {
    id: String,
    start: Event,
    end: Option<Event>,
}

/// The owner of each element of this run: a subagent, or the agent itself. Kept after the end, and separately for each
/// kind: a message and a call may have the same id.
#[derive(Debug, Default)]
struct Owners {
    messages: HashMap<String, Option<String>>,
    calls: HashMap<String, Option<String>>,
    /// Spans too: a span and the message in it belong together.
    reasoning: HashMap<String, Option<String>>,
    activities: HashMap<String, Option<String>>,
    /// Messages that clients made for a call: they have its tag, though nobody started them.
    made: HashMap<String, Option<String>>,
}

/// The elements that the client has, of this run and of earlier ones.
#[derive(Debug, Default)]
struct KnownElements {
    messages: HashMap<String, Nature>,
    calls: HashSet<String>,
    answered: HashSet<String>,
    /// True if the list is complete. Otherwise a result without a known call is accepted.
    all: bool,
    all_activities: bool,
}

/// The kinds of messages that an id may not change between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nature {
    Text(TextRole),
    Tool,
    Reasoning,
    Activity,
}

impl Nature {
    const ASSISTANT: Self = Self::Text(TextRole::Assistant);

    const fn of(body: &MessageBody) -> Self {
        match body {
            MessageBody::Developer { .. } => Self::Text(TextRole::Developer),
            MessageBody::System { .. } => Self::Text(TextRole::System),
            MessageBody::User { .. } => Self::Text(TextRole::User),
            MessageBody::Assistant { .. } => Self::ASSISTANT,
            MessageBody::Tool { .. } => Self::Tool,
            MessageBody::Reasoning { .. } => Self::Reasoning,
            MessageBody::Activity { .. } => Self::Activity,
        }
    }
}

impl Verifier {
    /// Of a stream that has not begun.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    #[cfg(test)]
    /// The messages that the client has before the stream begins, all of them: results and changes of activities are
    /// checked against them. A MESSAGES_SNAPSHOT on the stream does the same.
    pub(crate) fn know(&mut self, messages: &[Message]) {
        self.known = KnownElements::of(messages);
        self.known.all_activities = true;
    }

    #[cfg(test)]
    /// True if a run has started.
    pub(crate) fn is_started(&self) -> bool {
        self.phase != Phase::Before
    }

    /// True if the last run has ended. A stream that stops before that looks complete to clients, and is not.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Finished | Phase::Failed)
    }

    /// Takes the event as sent, where it may be.
    ///
    /// # Errors
    ///
    /// Fails with the first violated rule. If [`Violation::throws`], the event is not counted as sent.
    pub(crate) fn admit(&mut self, event: &Event) -> Result<(), Violation> {
        self.order(event)?;
        well_formed(event)?;
        self.item(event)?;
        self.tag(event)?;
        let flaw = self.flaw(event);
        self.take(event);
        flaw.map_or(Ok(()), Err)
    }

    /// The ends of all open elements, so that RUN_FINISHED may follow. The element that was opened last ends first;
    /// subagents end after the elements that they may own.
    pub(crate) fn closing(&self) -> Vec<Event> {
        if self.phase != Phase::Active {
            return Vec::new();
        }
        let items = self.open.iter().rev().filter_map(|start| self.end_of(start));
        let subagents = self.subagents.iter().rev().filter(|subagent| subagent.end.is_none()).map(|subagent| {
            let message = "its run ended before it did".to_owned();
            Event::from(Kind::SubagentError { subagent_run_id: subagent.id.clone(), message, code: None })
        });
        items.chain(subagents).collect()
    }

    /// The events for a client that has RUN_STARTED and the snapshots: the STARTs of all open elements. The subagents of
    /// the run come first, ended ones with their end: messages of the snapshot name them, and so may later subagents.
    pub(crate) fn reopening(&self) -> Vec<Event> {
        if self.phase != Phase::Active {
            return Vec::new();
        }
        let subagents = self.subagents.iter().flat_map(|subagent| std::iter::once(&subagent.start).chain(&subagent.end));
        // Tagged as the snapshot tags them, which may have changed the owner.
        let items = self.open.iter().map(|start| Event { subagent: self.owner_of(start), ..start.clone() });
        subagents.cloned().chain(items).collect()
    }

    /// Before, in, and after a run.
    fn order(&self, event: &Event) -> Result<(), Violation> {
        let name = event.kind.name();
        let starts = matches!(event.kind, Kind::RunStarted { .. });
        let fails = matches!(event.kind, Kind::RunError { .. });
        match self.phase {
            Phase::Before if !starts && !fails => Err(Violation::NotStarted { event: name }),
            Phase::Active if starts => Err(Violation::StillActive),
            // A late failure of what had finished is legal.
            Phase::Finished if !starts && !fails => Err(Violation::Over { event: name, terminal: "RUN_FINISHED" }),
            Phase::Failed if !starts => Err(Violation::Over { event: name, terminal: "RUN_ERROR" }),
            _ => Ok(()),
        }
    }

    /// Checks the elements that must be open, or must not be.
    fn item(&self, event: &Event) -> Result<(), Violation> {
        let name = event.kind.name();
        match act(event) {
            Act::Open(item) if self.is_open(item) => {
                return Err(Violation::AlreadyOpen { event: name, item: item.to_string() });
            }
            Act::Continue(item) | Act::Close(item) if !self.is_open(item) => {
                return Err(Violation::NotOpen { event: name, item: item.to_string() });
            }
            _ => {}
        }
        match &event.kind {
            Kind::SubagentStarted { subagent_run_id, parent_subagent_run_id, .. } => {
                if self.subagent(subagent_run_id).is_some() {
                    return Err(Violation::SubagentReused { id: subagent_run_id.clone() });
                }
                match parent_subagent_run_id {
                    Some(parent) if self.subagent(parent).is_none() => Err(Violation::UnknownParent { parent: parent.clone() }),
                    _ => Ok(()),
                }
            }
            Kind::RunFinished { .. } => {
                let live = self.subagents.iter().filter(|subagent| subagent.end.is_none());
                let items: Vec<_> = self
                    .open
                    .iter()
                    .filter_map(opened)
                    .chain(live.map(|subagent| Item::Subagent(&subagent.id)))
                    .map(|item| item.to_string())
                    .collect();
                if items.is_empty() { Ok(()) } else { Err(Violation::LeftOpen { items: items.join(", ") }) }
            }
            _ => Ok(()),
        }
    }

    /// A tag may be absent; a present one must match the owner of the element.
    fn tag(&self, event: &Event) -> Result<(), Violation> {
        let owners = &self.owners;
        if let Kind::ToolCallStart { tool_call_id, parent_message_id: Some(parent), .. } = &event.kind
            && let Some(owner) = owners.messages.get(parent)
        {
            // The call belongs to the message that carries it.
            let item = || Item::Text(parent).to_string();
            agree(event, owner, item)?;
            if let (None, Some(known)) = (&event.subagent, owners.calls.get(tool_call_id))
                && known != owner
            {
                return Err(foreign(event, known.as_deref(), item(), owner.as_deref()));
            }
        }
        let (owner, item) = match &event.kind {
            Kind::TextMessageStart { message_id: id, .. }
            | Kind::TextMessageContent { message_id: id, .. }
            | Kind::TextMessageEnd { message_id: id } => (owners.messages.get(id), Item::Text(id)),
            Kind::ToolCallStart { tool_call_id: id, .. }
            | Kind::ToolCallArgs { tool_call_id: id, .. }
            | Kind::ToolCallEnd { tool_call_id: id } => (owners.calls.get(id), Item::Call(id)),
            Kind::ReasoningStart { message_id: id }
            | Kind::ReasoningEnd { message_id: id }
            | Kind::ReasoningMessageStart { message_id: id, .. }
            | Kind::ReasoningMessageContent { message_id: id, .. }
            | Kind::ReasoningMessageEnd { message_id: id } => (owners.reasoning.get(id), Item::Reasoning(id)),
            Kind::ReasoningEncryptedValue { subtype, entity_id: id, .. } if subtype == "tool-call" => {
                (owners.calls.get(id), Item::Call(id))
            }
            Kind::ReasoningEncryptedValue { entity_id: id, .. } => {
                (owners.messages.get(id).or_else(|| owners.reasoning.get(id)), Item::Reasoning(id))
            }
            Kind::ActivityDelta { message_id: id, .. } => {
                let Some(owner) = owners.activities.get(id) else { return Ok(()) };
                return agree(event, owner, || format!("activity `{id}`"));
            }
            _ => return Ok(()),
        };
        let Some(owner) = owner else { return Ok(()) };
        agree(event, owner, || item.to_string())
    }

    /// A violation that clients do not check.
    fn flaw(&self, event: &Event) -> Option<Violation> {
        let name = event.kind.name();
        if event.subagent.is_some() && !takes_tag(&event.kind) {
            return Some(Violation::Untaggable { event: name });
        }
        match &event.kind {
            Kind::RunStarted { protocol_version: None, .. } => Some(Violation::NoVersion),
            Kind::RunFinished { thread_id, run_id, outcome, .. } => {
                self.other_run(thread_id, run_id).or_else(|| self.pending(outcome.as_ref()))
            }
            Kind::TextMessageStart { message_id, role, .. } => {
                self.taken_id(event, message_id, Nature::Text(*role)).or_else(|| self.misattributed(event, Some(message_id)))
            }
            // In no snapshot, so who joins later could not know.
            Kind::ReasoningStart { .. } => self.misattributed(event, None),
            Kind::ReasoningMessageStart { message_id, .. } => {
                self.taken_id(event, message_id, Nature::Reasoning).or_else(|| self.misattributed(event, Some(message_id)))
            }
            Kind::ActivitySnapshot { message_id, .. } => self.taken_id(event, message_id, Nature::Activity),
            Kind::ActivityDelta { message_id, .. } => match self.known.messages.get(message_id) {
                None if !self.known.all_activities => None,
                None => Some(Violation::UnknownActivity { id: message_id.clone() }),
                Some(_) => self.taken_id(event, message_id, Nature::Activity),
            },
            Kind::ToolCallStart { tool_call_id, parent_message_id, .. } if self.known.calls.contains(tool_call_id) => {
                self.moved(event, tool_call_id, parent_message_id.as_deref()?)
            }
            Kind::ToolCallStart { parent_message_id: Some(parent), .. } => {
                self.taken_id(event, parent, Nature::ASSISTANT).or_else(|| self.misattributed(event, Some(parent)))
            }
            // The call creates a message with its own id.
            Kind::ToolCallStart { tool_call_id: id, .. } => {
                let taken = self.known.messages.contains_key(id);
                taken.then(|| Violation::TakenId { event: name, id: id.clone() }).or_else(|| self.misattributed(event, Some(id)))
            }
            Kind::ToolCallResult { message_id, tool_call_id, .. } => self.result(message_id, tool_call_id),
            Kind::ReasoningEncryptedValue { subtype, entity_id, .. } if subtype == "message" && event.subagent.is_some() => {
                self.misattributed(event, Some(entity_id))
            }
            Kind::MessagesSnapshot { messages } => self.dropped(messages),
            _ => None,
        }
    }

    fn other_run(&self, thread: &str, run: &str) -> Option<Violation> {
        let (started_thread, started) = self.run.as_ref()?;
        (started_thread != thread || started != run)
            .then(|| Violation::OtherRun { started: started.clone(), finished: run.to_owned() })
    }

    /// A success names exactly the calls that the client has to answer. Without a list, clients assume all calls of the run
    /// without a result.
    fn pending(&self, outcome: Option<&Outcome>) -> Option<Violation> {
        let named: &[String] = match outcome {
            None => &[],
            Some(Outcome::Success { pending_tool_call_ids }) => pending_tool_call_ids,
            Some(Outcome::Interrupt { .. } | Outcome::Cancelled) => return None,
        };
        let mut seen = HashSet::new();
        let wrong = named.iter().find(|id| {
            let known = self.known.calls.contains(*id) || !self.known.all;
            !known || self.known.answered.contains(*id) || !seen.insert(id.as_str())
        });
        if let Some(id) = wrong {
            return Some(Violation::NotPending { id: id.clone() });
        }
        let unanswered = self.calls.iter().find(|id| !self.answered.contains(*id) && !named.contains(id));
        unanswered.map(|id| Violation::Unanswered { id: id.clone() })
    }

    fn taken_id(&self, event: &Event, id: &str, nature: Nature) -> Option<Violation> {
        let known = self.known.messages.get(id)?;
        (*known != nature).then(|| Violation::TakenId { event: event.kind.name(), id: id.to_owned() })
    }

    /// The element that clients create at this START has one owner for them and another for the stream.
    fn misattributed(&self, event: &Event, message: Option<&str>) -> Option<Violation> {
        let made = message.and_then(|message| self.owners.made.get(message));
        let is_new = message.is_none_or(|message| !self.known.messages.contains_key(message));
        let owner = match made {
            Some(owner) => (*owner != event.subagent).then(|| owner.clone())?,
            None if is_new && event.subagent.is_none() => {
                let of_parent = || message.and_then(|message| self.owners.messages.get(message)?.clone());
                Some(self.owner_of(event).or_else(of_parent)?)
            }
            None => return None,
        };
        let item = opened(event).or_else(|| message.map(Item::Text))?.to_string();
        let tag = owner_name(event.subagent.as_deref());
        Some(Violation::Misattributed { event: event.kind.name(), tag, item, owner: owner_name(owner.as_deref()) })
    }

    /// A call that is in a message already names another message, which clients made for a call of another owner. A
    /// snapshot has that message with its owner, and clients that got it throw.
    fn moved(&self, event: &Event, call: &str, parent: &str) -> Option<Violation> {
        let made = self.owners.made.get(parent)?;
        let tag = event.subagent.as_deref().map(Some).or_else(|| self.owners.calls.get(call).map(Option::as_deref))?;
        (made.as_deref() != tag).then(|| Violation::Misattributed {
            event: event.kind.name(),
            tag: owner_name(tag),
            item: Item::Text(parent).to_string(),
            owner: owner_name(made.as_deref()),
        })
    }

    fn result(&self, message: &str, call: &str) -> Option<Violation> {
        if self.known.answered.contains(call) {
            return Some(Violation::AnsweredTwice { id: call.to_owned() });
        }
        if self.known.messages.contains_key(message) {
            return Some(Violation::TakenId { event: "TOOL_CALL_RESULT", id: message.to_owned() });
        }
        let known = self.known.calls.contains(call) || !self.known.all;
        (!known).then(|| Violation::UnknownCall { id: call.to_owned() })
    }

    /// An open element that the snapshot leaves out would lose its later events.
    fn dropped(&self, messages: &[Message]) -> Option<Violation> {
        let snapshot = KnownElements::of(messages);
        let item = self.open.iter().filter_map(opened).find(|item| match item {
            Item::Text(id) => !matches!(snapshot.messages.get(*id), Some(Nature::Text(_))),
            Item::Call(id) => !snapshot.calls.contains(*id),
            // Clients keep those that they have, where the snapshot has none.
            Item::Reasoning(id) => {
                snapshot.messages.values().any(|nature| *nature == Nature::Reasoning)
                    && snapshot.messages.get(*id) != Some(&Nature::Reasoning)
            }
            Item::Span(_) | Item::Step(..) | Item::Subagent(_) => false,
        })?;
        Some(Violation::DroppedOpen { item: item.to_string() })
    }

    fn take(&mut self, event: &Event) {
        match act(event) {
            Act::Open(Item::Subagent(id)) => {
                self.subagents.push(Subagent { id: id.to_owned(), start: bare(event), end: None });
            }
            Act::Close(Item::Subagent(id)) => {
                if let Some(subagent) = self.subagents.iter_mut().find(|subagent| subagent.id == id) {
                    subagent.end = Some(bare(event));
                }
            }
            Act::Open(item) => {
                let mut start = bare(event);
                if let (Item::Call(id), Kind::ToolCallStart { parent_message_id, .. }) = (item, &mut start.kind)
                    && self.known.calls.contains(id)
                {
                    // The call is in a message already, whatever this event names.
                    *parent_message_id = None;
                }
                self.open.push(start);
            }
            Act::Close(item) => self.open.retain(|start| opened(start) != Some(item)),
            Act::Continue(_) | Act::None => {}
        }
        let tag = || event.subagent.clone();
        match &event.kind {
            Kind::RunStarted { thread_id, run_id, .. } => self.begin(thread_id, run_id),
            Kind::RunFinished { .. } => self.phase = Phase::Finished,
            Kind::RunError { .. } => self.phase = Phase::Failed,
            Kind::TextMessageStart { message_id: id, role, .. } => {
                self.owners.messages.entry(id.clone()).or_insert_with(tag);
                self.known.messages.entry(id.clone()).or_insert(Nature::Text(*role));
            }
            Kind::ReasoningStart { message_id: id } => {
                self.owners.reasoning.entry(id.clone()).or_insert_with(tag);
            }
            Kind::ReasoningMessageStart { message_id: id, .. } => {
                self.owners.reasoning.entry(id.clone()).or_insert_with(tag);
                self.known.messages.entry(id.clone()).or_insert(Nature::Reasoning);
            }
            Kind::ToolCallStart { tool_call_id, parent_message_id, .. } => {
                self.take_call(tool_call_id, parent_message_id.as_deref(), tag());
            }
            Kind::ToolCallResult { message_id, tool_call_id, .. } => {
                self.owners.messages.insert(message_id.clone(), tag());
                self.known.messages.insert(message_id.clone(), Nature::Tool);
                self.known.answered.insert(tool_call_id.clone());
                self.answered.insert(tool_call_id.clone());
            }
            Kind::ActivitySnapshot { message_id: id, replace, .. } => {
                if *replace != Some(false) || !self.owners.activities.contains_key(id) {
                    self.owners.activities.insert(id.clone(), tag());
                }
                self.known.messages.entry(id.clone()).or_insert(Nature::Activity);
            }
            Kind::MessagesSnapshot { messages } => self.replace(messages),
            _ => {}
        }
    }

    fn begin(&mut self, thread: &str, run: &str) {
        *self = Self {
            phase: Phase::Active,
            run: Some((thread.to_owned(), run.to_owned())),
            // Earlier messages stay.
            known: std::mem::take(&mut self.known),
            ..Self::default()
        };
    }

    fn take_call(&mut self, id: &str, parent: Option<&str>, tag: Option<String>) {
        let inherited = parent.and_then(|parent| self.owners.messages.get(parent)).cloned();
        let owner = self.owners.calls.entry(id.to_owned()).or_insert_with(|| tag.or_else(|| inherited.flatten())).clone();
        if !self.calls.iter().any(|call| call == id) {
            self.calls.push(id.to_owned());
        }
        if self.known.calls.insert(id.to_owned()) {
            // The message that clients make for it, where there is none, has its tag.
            let message = parent.unwrap_or(id);
            if !self.known.messages.contains_key(message) {
                self.owners.made.insert(message.to_owned(), owner);
                self.known.messages.insert(message.to_owned(), Nature::ASSISTANT);
            }
        }
    }

    /// A snapshot says who owns the messages in it, and which there are.
    fn replace(&mut self, messages: &[Message]) {
        for message in messages {
            let owners = match &message.body {
                MessageBody::Reasoning { .. } => &mut self.owners.reasoning,
                MessageBody::Activity { .. } => &mut self.owners.activities,
                _ => &mut self.owners.messages,
            };
            owners.insert(message.id.clone(), message.subagent.clone());
            self.owners.made.remove(&message.id);
            for call in calls_of(&message.body) {
                self.owners.calls.insert(call.to_owned(), message.subagent.clone());
            }
        }
        let before = std::mem::replace(&mut self.known, KnownElements::of(messages));
        // Clients keep the reasoning and the activities that they have, where the snapshot has none.
        let has = |known: &KnownElements, nature| known.messages.values().any(|other| *other == nature);
        for nature in [Nature::Reasoning, Nature::Activity] {
            if !has(&self.known, nature) {
                let kept = before.messages.iter().filter(|(_, other)| **other == nature);
                let kept: Vec<_> = kept.map(|(id, nature)| (id.clone(), *nature)).collect();
                self.known.messages.extend(kept);
            }
        }
        self.known.all_activities = before.all_activities || messages.iter().any(|message| message.body.role() == "activity");
    }

    fn is_open(&self, item: Item<'_>) -> bool {
        match item {
            Item::Subagent(id) => self.subagent(id).is_some_and(|subagent| subagent.end.is_none()),
            // The continued element was mostly opened last.
            _ => self.open.iter().rev().any(|start| opened(start) == Some(item)),
        }
    }

    fn subagent(&self, id: &str) -> Option<&Subagent> {
        self.subagents.iter().find(|subagent| subagent.id == id)
    }

    fn end_of(&self, start: &Event) -> Option<Event> {
        let kind = match opened(start)? {
            Item::Text(id) => Kind::TextMessageEnd { message_id: id.to_owned() },
            Item::Call(id) => Kind::ToolCallEnd { tool_call_id: id.to_owned() },
            Item::Span(id) => Kind::ReasoningEnd { message_id: id.to_owned() },
            Item::Reasoning(id) => Kind::ReasoningMessageEnd { message_id: id.to_owned() },
            Item::Step(_, name) => Kind::StepFinished { step_name: name.to_owned() },
            Item::Subagent(_) => return None,
        };
        Some(Event { subagent: self.owner_of(start), ..Event::from(kind) })
    }

    /// The present owner of the element that this START opened.
    fn owner_of(&self, start: &Event) -> Option<String> {
        match opened(start)? {
            Item::Text(id) => self.owners.messages.get(id)?.clone(),
            Item::Call(id) => self.owners.calls.get(id)?.clone(),
            Item::Span(id) | Item::Reasoning(id) => self.owners.reasoning.get(id)?.clone(),
            Item::Step(owner, _) => owner.map(str::to_owned),
            Item::Subagent(_) => None,
        }
    }
}

impl KnownElements {
    fn of(messages: &[Message]) -> Self {
        let mut known = Self { all: true, ..Self::default() };
        for message in messages {
            known.messages.insert(message.id.clone(), Nature::of(&message.body));
            known.calls.extend(calls_of(&message.body).map(str::to_owned));
            if let MessageBody::Tool { tool_call_id, .. } = &message.body {
                known.answered.insert(tool_call_id.clone());
            }
        }
        known
    }
}

/// The ids of the calls in a message.
pub(super) fn calls_of(body: &MessageBody) -> impl Iterator<Item = &str> {
    let calls = match body {
        MessageBody::Assistant { tool_calls, .. } => tool_calls.as_slice(),
        _ => &[],
    };
    calls.iter().map(|call| call.id.as_str())
}

/// To be said again later, when metadata of the events between has been merged: it would undo them.
fn bare(event: &Event) -> Event {
    Event { metadata: serde_json::Map::new(), ..event.clone() }
}

fn agree(event: &Event, owner: &Option<String>, item: impl FnOnce() -> String) -> Result<(), Violation> {
    match &event.subagent {
        Some(tag) if owner.as_ref() != Some(tag) => Err(foreign(event, Some(tag), item(), owner.as_deref())),
        _ => Ok(()),
    }
}

fn foreign(event: &Event, tag: Option<&str>, item: String, owner: Option<&str>) -> Violation {
    Violation::ForeignTag { event: event.kind.name(), tag: owner_name(tag), item, owner: owner_name(owner) }
}

fn owner_name(tag: Option<&str>) -> String {
    tag.map_or_else(|| "the agent itself".to_owned(), |tag| format!("subagent `{tag}`"))
}

#[cfg(test)]
mod tests;
