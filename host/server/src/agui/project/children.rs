//! Content of child runs, under the id of their subagent.
//!
//! A child is a run with a record of its own, and its content is shown when the parent hears of its end: then the record of the
//! child does not change any more, and every projection of the parent shows the same.

use std::{collections::HashSet, fmt, sync::Arc};

use agent_host_protocol::RunId;

use super::{Out, tools};
use crate::{
    agui::event::{Content, Kind, Message, MessageBody, ReasoningRole, TextRole, ToolCall},
    agui::verify::calls_of,
};

/// Messages of one child that are shown. A child that says more is read in its own record.
const MAX_MESSAGES: usize = 1_000;

/// The messages of runs that have ended. Without a source, children are shown without content.
#[derive(Clone, Default)]
pub(crate) struct Children(Option<Arc<Source>>);

/// The messages of a run, in their order.
type Source = dyn Fn(RunId) -> Arc<[Message]> + Send + Sync;

impl fmt::Debug for Children {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Children").field(&self.0.is_some()).finish()
    }
}

impl Children {
    pub(crate) fn new(source: impl Fn(RunId) -> Arc<[Message]> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(source)))
    }

    /// Shows the messages of a child as those of a subagent.
    pub(super) fn say(&self, out: &mut Out, run: RunId, subagent: &str) {
        let Some(source) = &self.0 else { return };
        let messages = source(run);
        let answered: HashSet<&str> = messages
            .iter()
            .filter_map(|message| match &message.body {
                MessageBody::Tool { tool_call_id, .. } => Some(tool_call_id.as_str()),
                _ => None,
            })
            .collect();
        out.end_reasoning();
        out.subagent = Some(subagent.to_owned());
        let mut shown = HashSet::new();
        for message in messages.iter().take(MAX_MESSAGES) {
            shown.extend(calls_of(&message.body).filter(|call| answered.contains(call)).map(str::to_owned));
            match &message.body {
                // Of a call that was not shown.
                MessageBody::Tool { tool_call_id, .. } if !shown.contains(tool_call_id) => {}
                _ => say(out, message, &answered),
            }
        }
        out.subagent = None;
    }
}

/// Shows a message whole. Calls without a result are left out: clients would take them for theirs.
fn say(out: &mut Out, message: &Message, answered: &HashSet<&str>) {
    let id = &message.id;
    match &message.body {
        MessageBody::Assistant { content, tool_calls, .. } => {
            text(out, id, TextRole::Assistant, content.as_deref().unwrap_or_default());
            tool_calls.iter().filter(|call| answered.contains(call.id.as_str())).for_each(|called| call(out, id, called));
        }
        MessageBody::User { content: Content::Text(content), .. } => text(out, id, TextRole::User, content),
        MessageBody::System { content, .. } => text(out, id, TextRole::System, content),
        MessageBody::Developer { content, .. } => text(out, id, TextRole::Developer, content),
        MessageBody::Tool { content, tool_call_id, .. } => {
            out.say(tools::result(id.clone(), tool_call_id.clone(), content.clone()));
        }
        MessageBody::Reasoning { content } => {
            if content.is_empty() {
                return;
            }
            let message_id = || id.clone();
            out.say(Kind::ReasoningStart { message_id: message_id() });
            out.say(Kind::ReasoningMessageStart { message_id: message_id(), role: ReasoningRole::Reasoning });
            out.say(Kind::ReasoningMessageContent { message_id: message_id(), delta: content.clone() });
            out.say(Kind::ReasoningMessageEnd { message_id: message_id() });
            out.say(Kind::ReasoningEnd { message_id: message_id() });
        }
        MessageBody::Activity { activity_type, content } => {
            let (message_id, activity_type, content) = (id.clone(), activity_type.clone(), content.clone());
            out.say(Kind::ActivitySnapshot { message_id, activity_type, content, replace: None });
        }
        MessageBody::User { .. } => {}
    }
    if let Some(value) = &message.encrypted_value {
        out.say(encrypted("message", id.clone(), value.clone()));
    }
}

fn text(out: &mut Out, id: &str, role: TextRole, content: &str) {
    if content.is_empty() {
        return;
    }
    let message_id = || id.to_owned();
    out.say(Kind::TextMessageStart { message_id: message_id(), role, name: None });
    out.say(Kind::TextMessageContent { message_id: message_id(), delta: content.to_owned() });
    out.say(Kind::TextMessageEnd { message_id: message_id() });
}

fn call(out: &mut Out, message: &str, call: &ToolCall) {
    let (id, function) = (|| call.id.clone(), &call.function);
    let parent_message_id = (call.id != message).then(|| message.to_owned());
    out.say(Kind::ToolCallStart { tool_call_id: id(), tool_call_name: function.name.clone(), parent_message_id });
    if !function.arguments.is_empty() {
        out.say(Kind::ToolCallArgs { tool_call_id: id(), delta: function.arguments.clone() });
    }
    out.say(Kind::ToolCallEnd { tool_call_id: id() });
    if let Some(value) = &call.encrypted_value {
        out.say(encrypted("tool-call", id(), value.clone()));
    }
}

/// A value that only the provider of the model can read.
pub(super) fn encrypted(subtype: &str, entity_id: String, encrypted_value: String) -> Kind {
    Kind::ReasoningEncryptedValue { subtype: subtype.to_owned(), entity_id, encrypted_value }
}
