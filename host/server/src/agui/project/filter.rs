//! The run of a subagent within the stream of its parent: the part of it that is shown, in a legal order.

use std::collections::{HashMap, HashSet};

use crate::agui::event::{Event, Kind, Message};

/// Messages, calls and activities of one child that are shown. A child that says more is read in its own record.
const MAX_SHOWN: usize = 1_000;

/// The filter for the events of a child.
///
/// Texts, reasoning and activities are shown as they come. A call is shown when it has its result: clients take calls without
/// one for theirs to make. Steps, state, custom events and ends of the run are the child's own.
#[derive(Debug)]
pub(super) struct SubagentFilter {
    subagent: String,
    /// Ids of what is shown.
    shown: HashSet<String>,
    /// Calls without a result, with the events about them.
    calls: HashMap<String, Vec<Event>>,
}

impl SubagentFilter {
    pub(super) fn new(subagent: String) -> Self {
        Self { subagent, shown: HashSet::new(), calls: HashMap::new() }
    }

    /// Marks a message as one of the subagent. False if the message is not shown.
    pub(super) fn tag(&self, message: &mut Message) -> bool {
        message.subagent = Some(self.subagent.clone());
        self.shown.contains(&message.id)
    }

    /// Drops calls without a result. A place in a stream does not say that they have begun, so an end of the parent shows none.
    pub(super) fn drop_calls(&mut self) {
        self.calls.clear();
    }

    /// The events to show, now that the child says `event`.
    pub(super) fn admit(&mut self, mut event: Event) -> Vec<Event> {
        event.subagent = Some(self.subagent.clone());
        let is_shown = match &mut event.kind {
            Kind::TextMessageStart { message_id: id, .. }
            | Kind::ReasoningStart { message_id: id }
            | Kind::ActivitySnapshot { message_id: id, .. } => {
                let id = id.clone();
                self.show(id)
            }
            Kind::TextMessageContent { message_id: id, .. }
            | Kind::TextMessageEnd { message_id: id }
            | Kind::ReasoningMessageStart { message_id: id, .. }
            | Kind::ReasoningMessageContent { message_id: id, .. }
            | Kind::ReasoningMessageEnd { message_id: id }
            | Kind::ReasoningEnd { message_id: id }
            | Kind::ActivityDelta { message_id: id, .. } => self.shown.contains(id),
            Kind::ToolCallStart { tool_call_id: id, .. } => {
                self.calls.insert(id.clone(), vec![event]);
                return Vec::new();
            }
            Kind::ToolCallArgs { tool_call_id: id, .. } | Kind::ToolCallEnd { tool_call_id: id } => {
                if let Some(call) = self.calls.get_mut(id) {
                    call.push(event);
                }
                return Vec::new();
            }
            Kind::ToolCallResult { tool_call_id: id, .. } => {
                let id = id.clone();
                let Some(mut call) = self.calls.remove(&id) else { return Vec::new() };
                if !self.show(id) {
                    return Vec::new();
                }
                call.push(event);
                return call;
            }
            Kind::ReasoningEncryptedValue { subtype, entity_id: id, .. } => {
                // A message and a call may have the same id.
                if subtype == "tool-call"
                    && let Some(call) = self.calls.get_mut(id)
                {
                    call.push(event);
                    return Vec::new();
                }
                self.shown.contains(id)
            }
            Kind::SubagentStarted { parent_subagent_run_id, .. } => {
                parent_subagent_run_id.get_or_insert_with(|| self.subagent.clone());
                // The id in the event is its own.
                event.subagent = None;
                true
            }
            Kind::SubagentFinished { .. } | Kind::SubagentError { .. } => {
                event.subagent = None;
                true
            }
            Kind::RunStarted { .. }
            | Kind::RunFinished { .. }
            | Kind::RunError { .. }
            | Kind::StepStarted { .. }
            | Kind::StepFinished { .. }
            | Kind::StateSnapshot { .. }
            | Kind::StateDelta { .. }
            | Kind::MessagesSnapshot { .. }
            | Kind::Raw { .. }
            | Kind::Custom { .. } => false,
        };
        if is_shown { vec![event] } else { Vec::new() }
    }

    fn show(&mut self, id: String) -> bool {
        self.shown.contains(&id) || self.shown.len() < MAX_SHOWN && self.shown.insert(id)
    }
}
