//! Calls to tools, and their results.

use std::collections::HashMap;

use agent_host_protocol::message::Message;
use agent_host_runs::facts::{
    open::OpenElements,
    record::{ToolCallArguments, ToolCallEnd, ToolCallProgress, ToolCallStart},
};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use super::{CloseReason, content, ids::Ids, out::Out, text::Texts, with};
use crate::agui::event::{Content, Kind, ToolRole};

/// CUSTOM event: a tool says how far it is.
const PROGRESS: &str = "agent-host.tool.progress";

/// A tool that nobody names.
const UNNAMED: &str = "tool";

/// The calls of an attempt, by the ids that the guest or its model gave them.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// Without a result, with their ids on the wire.
    running: OpenElements<String>,
    /// With one, or the client's to make: of the last call under that name.
    done: HashMap<String, String>,
    /// Calls whose arguments are not whole yet: those of one call come one after the other.
    incomplete: OpenElements<String>,
    /// Messages of which only the id is known.
    named: HashMap<String, String>,
}

/// A call, as it begins.
pub(super) struct Call<'a> {
    /// As the guest or its model has it.
    pub(super) name: &'a str,
    pub(super) tool: &'a str,
    /// `None` if the parameters are unknown.
    pub(super) parameters: Option<&'a RawValue>,
    /// The message that it belongs to, as the guest names that.
    pub(super) message: Option<&'a str>,
}

impl Tools {
    pub(super) fn started(&mut self, out: &mut Out, ids: &mut Ids, texts: &mut Texts, started: ToolCallStart) {
        let ToolCallStart { tool_call_id, tool_name, parameters, parameters_bytes, message_id } = started;
        let (parameters, message) = (parameters.as_deref(), message_id.as_deref());
        let call = Call { name: &tool_call_id, tool: &tool_name, parameters, message };
        if parameters.is_some() || parameters_bytes.is_none() {
            self.begin(out, ids, texts, &call);
        } else if !self.running.contains(&tool_call_id) {
            let id = call.opened(out, ids, texts, &mut self.named);
            self.running.get_or_insert_with(&tool_call_id, || id.clone());
            self.incomplete.get_or_insert_with(&tool_call_id, || id);
        }
    }

    /// Shows a piece of the arguments of a call that has begun.
    pub(super) fn arguments(&mut self, out: &mut Out, arguments: ToolCallArguments) {
        let ToolCallArguments { tool_call_id, delta, last, .. } = arguments;
        let Some(id) = self.incomplete.get(&tool_call_id).cloned() else { return };
        out.say(Kind::ToolCallArgs { tool_call_id: id.clone(), delta });
        if last {
            self.incomplete.remove(&tool_call_id);
            out.say(Kind::ToolCallEnd { tool_call_id: id });
        }
    }

    /// A call that the client has to execute, by its id on the wire. Only the client knows the outcome.
    pub(super) fn asked_of_client(&mut self, out: &mut Out, ids: &mut Ids, texts: &mut Texts, call: &Call<'_>) -> String {
        self.cut(out, call.name);
        let shown = self.running.remove(call.name);
        let id = shown.unwrap_or_else(|| call.show(out, ids, texts, &mut self.named));
        self.done.insert(call.name.to_owned(), id.clone());
        id
    }

    /// Shows a call. An open call is shown already: a guest that reports its host calls does not make two calls.
    fn begin(&mut self, out: &mut Out, ids: &mut Ids, texts: &mut Texts, call: &Call<'_>) {
        let Self { running, named, .. } = self;
        running.get_or_insert_with(call.name, || call.show(out, ids, texts, named));
    }

    pub(super) fn completed(&mut self, out: &mut Out, ids: &mut Ids, texts: &mut Texts, completed: ToolCallEnd) {
        let ToolCallEnd { tool_call_id: call_id, tool_name, result, error, .. } = completed;
        if !self.running.contains(&call_id) {
            if self.done.contains_key(&call_id) {
                return;
            }
            self.begin(out, ids, texts, &Call { name: &call_id, tool: &tool_name, parameters: None, message: None });
        }
        let stated = match error {
            Some(Value::String(error)) => Content::Text(error),
            Some(error) if !error.is_null() => Content::Text(error.to_string()),
            _ => content::content(result.unwrap_or_default()),
        };
        self.result(out, ids, &call_id, stated);
    }

    /// A guest that makes calls by itself may say what came of them in a message for its history.
    pub(super) fn answered_in_message(
        &mut self,
        out: &mut Out,
        ids: &mut Ids,
        texts: &mut Texts,
        call_id: &str,
        message: &Message,
    ) {
        if !self.running.contains(call_id) {
            let Some(call) = texts.announced(call_id).cloned() else { return };
            let parameters = to_raw_value(&call.parameters).ok();
            let call = Call { name: call_id, tool: &call.tool_name, parameters: parameters.as_deref(), message: None };
            self.begin(out, ids, texts, &call);
        }
        self.result(out, ids, call_id, content::message_content(&message.content));
    }

    /// Says what came of a call that runs; nothing where it does not.
    fn result(&mut self, out: &mut Out, ids: &mut Ids, call_id: &str, stated: Content) {
        self.cut(out, call_id);
        if let Some(id) = self.running.remove(call_id) {
            out.say(result(ids.result(&id), id.clone(), stated));
            self.done.insert(call_id.to_owned(), id);
        }
    }

    /// Ends the arguments of a call that have no last piece.
    fn cut(&mut self, out: &mut Out, call_id: &str) {
        if let Some(id) = self.incomplete.remove(call_id) {
            out.say(Kind::ToolCallEnd { tool_call_id: id });
        }
    }

    /// Ends all arguments that have no last piece. Pieces are in the commit of their call, so these are of a record that was cut.
    pub(super) fn cut_all(&mut self, out: &mut Out) {
        for (_, id) in self.incomplete.take() {
            out.say(Kind::ToolCallEnd { tool_call_id: id });
        }
    }

    pub(super) fn progress(&self, out: &mut Out, progress: ToolCallProgress) {
        let ToolCallProgress { tool_call_id, progress, total, message, .. } = progress;
        let Some(id) = self.running.get(&tool_call_id) else { return };
        let mut value = json!({ "toolCallId": id, "progress": progress });
        with(&mut value, "total", total);
        with(&mut value, "message", message);
        out.custom(PROGRESS, value);
    }

    /// The id on the wire of the last call under this name, where one has begun.
    pub(super) fn known(&self, call_id: &str) -> Option<&str> {
        self.running.get(call_id).or_else(|| self.done.get(call_id)).map(String::as_str)
    }

    /// Likewise, of one that may begin later.
    pub(super) fn id_of(&mut self, ids: &mut Ids, call_id: &str) -> &str {
        if let Some(id) = self.running.get(call_id).or_else(|| self.done.get(call_id)) {
            return id;
        }
        self.named.entry(call_id.to_owned()).or_insert_with(|| ids.call(call_id))
    }

    /// Gives every call that has none a result: clients take calls without one for theirs, and models refuse such histories.
    pub(super) fn close(&mut self, out: &mut Out, ids: &mut Ids, closing: CloseReason) {
        let why = match closing {
            CloseReason::Retries => "another attempt of the run began before the call had a result",
            CloseReason::Waits | CloseReason::Completes | CloseReason::Fails => "the run ended before the call had a result",
        };
        self.cut_all(out);
        for (_, id) in self.running.take() {
            out.say(result(ids.result(&id), id, Content::Text(why.to_owned())));
        }
        *self = Self::default();
    }
}

impl Call<'_> {
    /// Shows it, with all of its arguments; gives its id.
    fn show(&self, out: &mut Out, ids: &mut Ids, texts: &mut Texts, named: &mut HashMap<String, String>) -> String {
        let id = self.opened(out, ids, texts, named);
        // Clients parse them.
        let delta = self.parameters.map_or("{}", RawValue::get).to_owned();
        out.say(Kind::ToolCallArgs { tool_call_id: id.clone(), delta });
        out.say(Kind::ToolCallEnd { tool_call_id: id.clone() });
        id
    }

    /// Shows that it begins; gives its id.
    fn opened(&self, out: &mut Out, ids: &mut Ids, texts: &mut Texts, named: &mut HashMap<String, String>) -> String {
        let id = named.remove(self.name).unwrap_or_else(|| ids.call(self.name));
        let wanted = texts.take_wanted(self.name);
        let stated = self.message.and_then(|message| texts.parent(ids, message));
        let parent_message_id = stated.or(wanted).or_else(|| ids.carrier(&id));
        let tool_call_name = if self.tool.is_empty() { UNNAMED } else { self.tool }.to_owned();
        out.say(Kind::ToolCallStart { tool_call_id: id.clone(), tool_call_name, parent_message_id });
        id
    }
}

/// The result of a call.
pub(super) fn result(message_id: String, tool_call_id: String, content: Content) -> Kind {
    Kind::ToolCallResult { message_id, tool_call_id, content, role: ToolRole::Tool }
}
