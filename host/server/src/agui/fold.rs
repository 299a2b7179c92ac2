//! The state of a client after some events: the reducer of `@ag-ui/client` 1.0.0, so that a snapshot of the host equals the
//! result of the stream.
//!
//! Metadata of messages are kept, and encrypted values of messages and calls. Metadata of calls are not: our messages have no
//! member for them, and the host sends none.

use std::collections::HashMap;

use json_patch::{
    AddOperation, CopyOperation, MoveOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation,
    jsonptr::PointerBuf,
};
use serde_json::{Map, Value};

use super::{
    event::{Content, Event, Function, FunctionType, Kind, Message, MessageBody, PatchOp, TextRole, ToolCall},
    verify::calls_of,
};

/// The member of a snapshot that lists the types of activities for which it is complete.
const ACTIVITY_AUTHORITY: &str = "@ag-ui/client";

/// The messages and the state of a thread, as a client has them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct View {
    pub(crate) messages: Vec<Message>,
    pub(crate) state: Value,
}

impl Default for View {
    /// Without messages, and with the state of a thread that has none.
    fn default() -> Self {
        Self { messages: Vec::new(), state: Value::Object(Map::new()) }
    }
}

impl View {
    /// Applies an event. An event that does not apply (content of no message, a patch of a missing value) changes nothing,
    /// as with clients; [`super::verify`] prevents such events.
    pub(crate) fn apply(&mut self, event: &Event) {
        match &event.kind {
            Kind::TextMessageStart { message_id, role, name } => {
                self.begin(event, message_id, || text(*role, name.clone()));
            }
            Kind::ReasoningMessageStart { message_id, .. } => {
                let body = || MessageBody::Reasoning { content: String::new() };
                self.begin(event, message_id, body);
            }
            Kind::TextMessageContent { message_id, delta } | Kind::ReasoningMessageContent { message_id, delta } => {
                self.append(event, message_id, delta);
            }
            Kind::TextMessageEnd { message_id } | Kind::ReasoningMessageEnd { message_id } => {
                self.append(event, message_id, "");
            }
            Kind::ToolCallStart { tool_call_id, tool_call_name, parent_message_id } => {
                self.call(event, tool_call_id, tool_call_name, parent_message_id.as_deref());
            }
            Kind::ToolCallArgs { tool_call_id, delta } => {
                if let Some(call) = self.call_mut(tool_call_id) {
                    call.function.arguments.push_str(delta);
                }
            }
            Kind::ToolCallResult { message_id, tool_call_id, content, .. } => {
                self.result(event, message_id, tool_call_id, content);
            }
            Kind::StateSnapshot { snapshot } => self.state.clone_from(snapshot),
            Kind::StateDelta { delta } => patch(&mut self.state, delta),
            Kind::MessagesSnapshot { messages } => self.reconcile(event, messages),
            Kind::ActivitySnapshot { message_id, activity_type, content, replace } => {
                let body = MessageBody::Activity { activity_type: activity_type.clone(), content: content.clone() };
                self.activity(event, message_id, body, replace.unwrap_or(true));
            }
            Kind::ActivityDelta { message_id, activity_type, patch } => {
                self.change(event, message_id, activity_type, patch);
            }
            Kind::ReasoningEncryptedValue { subtype, entity_id, encrypted_value } if subtype == "message" => {
                if let Some(message) = self.find(entity_id)
                    && !matches!(message.body, MessageBody::Activity { .. })
                {
                    message.encrypted_value = Some(encrypted_value.clone());
                }
            }
            Kind::ReasoningEncryptedValue { entity_id, encrypted_value, .. } => {
                if let Some(call) = self.call_mut(entity_id) {
                    call.encrypted_value = Some(encrypted_value.clone());
                }
            }
            Kind::RunStarted { .. }
            | Kind::RunFinished { .. }
            | Kind::RunError { .. }
            | Kind::StepStarted { .. }
            | Kind::StepFinished { .. }
            | Kind::ToolCallEnd { .. }
            | Kind::ReasoningStart { .. }
            | Kind::ReasoningEnd { .. }
            | Kind::SubagentStarted { .. }
            | Kind::SubagentFinished { .. }
            | Kind::SubagentError { .. }
            | Kind::Raw { .. }
            | Kind::Custom { .. } => {}
        }
    }

    #[cfg(test)]
    /// The view after these events.
    pub(crate) fn of<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut view = Self::default();
        for event in events {
            view.apply(event);
        }
        view
    }

    #[cfg(test)]
    /// The calls that no message answers, in order.
    pub(crate) fn unanswered_calls(&self) -> Vec<&str> {
        let answered: std::collections::HashSet<&str> =
            self.messages.iter().filter_map(|message| answers(&message.body)).collect();
        let calls = self.messages.iter().flat_map(|message| calls_of(&message.body));
        calls.filter(|call| !answered.contains(*call)).collect()
    }

    /// Replaces the streamed text of a message. Its calls stay.
    pub(crate) fn correct(&mut self, message: Message) {
        let Some(known) = self.find(&message.id) else {
            self.messages.push(message);
            return;
        };
        match (&mut known.body, message.body) {
            (MessageBody::Assistant { content, .. }, MessageBody::Assistant { content: updated, .. }) => *content = updated,
            (body, updated) => *body = updated,
        }
    }

    /// From the end: what changes was mostly said last, and ids are unique.
    fn find(&mut self, id: &str) -> Option<&mut Message> {
        self.messages.iter_mut().rev().find(|message| message.id == id)
    }

    fn call_mut(&mut self, id: &str) -> Option<&mut ToolCall> {
        self.messages.iter_mut().rev().find_map(|message| match &mut message.body {
            MessageBody::Assistant { tool_calls, .. } => tool_calls.iter_mut().find(|call| call.id == id),
            _ => None,
        })
    }

    /// A START of an existing message continues it.
    fn begin(&mut self, event: &Event, id: &str, body: impl FnOnce() -> MessageBody) {
        match self.find(id) {
            // An id that is taken: the text is dropped.
            Some(Message { body: MessageBody::Activity { .. }, .. }) => {}
            Some(message) => merge(message, event),
            None => self.messages.push(minted(event, id, body())),
        }
    }

    fn append(&mut self, event: &Event, id: &str, delta: &str) {
        let Some(message) = self.find(id) else { return };
        match &mut message.body {
            MessageBody::Developer { content, .. }
            | MessageBody::System { content, .. }
            | MessageBody::Reasoning { content, .. } => content.push_str(delta),
            MessageBody::Assistant { content, .. } => {
                // An END says nothing: a message of calls stays without text.
                if !delta.is_empty() || !ends(event) {
                    content.get_or_insert_default().push_str(delta);
                }
            }
            MessageBody::User { content, .. } | MessageBody::Tool { content, .. } => match content {
                Content::Text(text) => text.push_str(delta),
                Content::Parts(_) if ends(event) => {}
                Content::Parts(_) => *content = Content::Text(delta.to_owned()),
            },
            MessageBody::Activity { .. } => return,
        }
        merge(message, event);
    }

    fn call(&mut self, event: &Event, id: &str, name: &str, parent: Option<&str>) {
        if let Some(call) = self.call_mut(id) {
            // Said again: it has its arguments.
            name.clone_into(&mut call.function.name);
            return;
        }
        let call = ToolCall {
            id: id.to_owned(),
            kind: FunctionType::Function,
            function: Function { name: name.to_owned(), arguments: String::new() },
            encrypted_value: None,
        };
        let mut own = parent.unwrap_or(id);
        if let Some(message) = parent.and_then(|parent| self.find(parent)) {
            if let MessageBody::Assistant { tool_calls, .. } = &mut message.body {
                tool_calls.push(call);
                return;
            }
            // No message that could carry it.
            own = id;
        }
        let body = MessageBody::Assistant { content: None, name: None, tool_calls: vec![call] };
        // The metadata is that of the call.
        self.messages.push(Message { metadata: Map::new(), ..minted(event, own, body) });
    }

    /// Right after the message with the call, behind the results that are there: models accept no other order.
    fn result(&mut self, event: &Event, id: &str, call: &str, content: &Content) {
        let body = MessageBody::Tool { content: content.clone(), tool_call_id: call.to_owned(), error: None };
        let result = minted(event, id, body);
        let owner = self.messages.iter().position(|message| calls_of(&message.body).any(|other| other == call));
        let place = owner.map_or(self.messages.len(), |owner| {
            let results = self.messages.iter().skip(owner + 1).take_while(|message| is_role(message, "tool"));
            owner + 1 + results.count()
        });
        self.messages.insert(place, result);
    }

    /// Replaces messages in their places, adds new ones at the end, and drops the others: but for reasoning and
    /// activities, which many servers do not keep. A snapshot with some of them has them all.
    fn reconcile(&mut self, event: &Event, snapshot: &[Message]) {
        let authority = Authority::of(event);
        let all_activities = snapshot.iter().any(|message| is_role(message, "activity"));
        let all_reasoning = snapshot.iter().any(|message| is_role(message, "reasoning"));
        let mut fresh: HashMap<&str, &Message> = snapshot.iter().map(|message| (message.id.as_str(), message)).collect();
        for message in std::mem::take(&mut self.messages) {
            if let Some(replacement) = fresh.remove(message.id.as_str()) {
                self.messages.push(replacement.clone());
                continue;
            }
            let kept = match &message.body {
                MessageBody::Activity { activity_type, .. } => match &authority {
                    Authority::Unsaid => !all_activities,
                    Authority::All => false,
                    Authority::Types(types) => !types.contains(&activity_type.as_str()),
                },
                MessageBody::Reasoning { .. } => !all_reasoning,
                _ => false,
            };
            if kept {
                self.messages.push(message);
            }
        }
        self.messages.extend(snapshot.iter().filter(|message| fresh.remove(message.id.as_str()).is_some()).cloned());
    }

    fn activity(&mut self, event: &Event, id: &str, body: MessageBody, replace: bool) {
        let Some(message) = self.find(id) else {
            self.messages.push(minted(event, id, body));
            return;
        };
        if is_role(message, "activity") {
            if replace {
                message.body = body;
                message.subagent.clone_from(&event.subagent);
            }
            merge(message, event);
        } else if replace {
            *message = minted(event, id, body);
        }
    }

    fn change(&mut self, event: &Event, id: &str, kind: &str, delta: &[PatchOp]) {
        let Some(message) = self.find(id) else { return };
        let MessageBody::Activity { activity_type, content } = &mut message.body else { return };
        let mut changed = Value::Object(content.clone());
        if try_patch(&mut changed, delta).is_ok()
            && let Value::Object(changed) = changed
        {
            *content = changed;
            kind.clone_into(activity_type);
        }
        merge(message, event);
    }
}

/// For which types of activities a snapshot is complete, so that those it leaves out are gone.
enum Authority<'a> {
    Unsaid,
    All,
    Types(Vec<&'a str>),
}

impl<'a> Authority<'a> {
    fn of(snapshot: &'a Event) -> Self {
        let Some(authority) = snapshot.metadata.get(ACTIVITY_AUTHORITY) else { return Self::Unsaid };
        // A malformed list removes nothing.
        let Value::Object(authority) = authority else { return Self::Types(Vec::new()) };
        match authority.get("authoritativeActivityTypes") {
            None => Self::Unsaid,
            Some(Value::Null) => Self::All,
            Some(Value::Array(types)) => Self::Types(types.iter().map(Value::as_str).collect::<Option<_>>().unwrap_or_default()),
            Some(_) => Self::Types(Vec::new()),
        }
    }
}

#[cfg(test)]
/// The call that a message answers.
fn answers(body: &MessageBody) -> Option<&str> {
    match body {
        MessageBody::Tool { tool_call_id, .. } => Some(tool_call_id),
        _ => None,
    }
}

fn text(role: TextRole, name: Option<String>) -> MessageBody {
    let content = String::new();
    match role {
        TextRole::Developer => MessageBody::Developer { content, name },
        TextRole::System => MessageBody::System { content, name },
        TextRole::User => MessageBody::User { content: Content::Text(content), name },
        TextRole::Assistant => MessageBody::Assistant { content: Some(content), name, tool_calls: Vec::new() },
    }
}

/// A message that this event makes.
fn minted(event: &Event, id: &str, body: MessageBody) -> Message {
    Message { subagent: event.subagent.clone(), metadata: event.metadata.clone(), ..Message::new(id, body) }
}

/// Key by key: what is said last holds.
fn merge(message: &mut Message, event: &Event) {
    message.metadata.extend(event.metadata.clone());
}

fn is_role(message: &Message, role: &str) -> bool {
    message.body.role() == role
}

const fn ends(event: &Event) -> bool {
    matches!(event.kind, Kind::TextMessageEnd { .. } | Kind::ReasoningMessageEnd { .. })
}

/// All of it, or nothing.
pub(crate) fn patch(document: &mut Value, delta: &[PatchOp]) {
    // Undone by the library where an operation fails: the document is as it was.
    let _unchanged = try_patch(document, delta);
}

/// A patch that does not apply.
struct DoesNotApply;

fn try_patch(document: &mut Value, delta: &[PatchOp]) -> Result<(), DoesNotApply> {
    let operations = delta.iter().map(operation).collect::<Result<_, _>>()?;
    json_patch::patch(document, &Patch(operations)).map_err(|_| DoesNotApply)
}

fn operation(op: &PatchOp) -> Result<PatchOperation, DoesNotApply> {
    let pointer = |text: &String| PointerBuf::parse(text.clone()).map_err(|_| DoesNotApply);
    Ok(match op {
        PatchOp::Add { path, value } => PatchOperation::Add(AddOperation { path: pointer(path)?, value: value.clone() }),
        PatchOp::Remove { path } => PatchOperation::Remove(RemoveOperation { path: pointer(path)? }),
        PatchOp::Replace { path, value } => {
            PatchOperation::Replace(ReplaceOperation { path: pointer(path)?, value: value.clone() })
        }
        PatchOp::Move { from, path } => PatchOperation::Move(MoveOperation { from: pointer(from)?, path: pointer(path)? }),
        PatchOp::Copy { from, path } => PatchOperation::Copy(CopyOperation { from: pointer(from)?, path: pointer(path)? }),
        PatchOp::Test { path, value } => PatchOperation::Test(TestOperation { path: pointer(path)?, value: value.clone() }),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agui::sample::{assistant_message, event, events};

    fn messages_of(words: &str) -> Value {
        serde_json::to_value(View::of(&events(words)).messages).unwrap()
    }

    fn assistant(id: &str, content: &str) -> Value {
        json!({"id": id, "role": "assistant", "content": content})
    }

    fn calling(id: &str, call: &str, arguments: &str) -> Value {
        let function = json!({"name": format!("tool-{call}"), "arguments": arguments});
        json!({"id": id, "role": "assistant", "toolCalls": [{"id": call, "type": "function", "function": function}]})
    }

    fn result(call: &str) -> Value {
        json!({"id": format!("x{call}"), "role": "tool", "content": "done", "toolCallId": call})
    }

    fn activity(id: &str, steps: Value) -> Value {
        json!({"id": id, "role": "activity", "activityType": "plan", "content": {"steps": steps}})
    }

    /// Each of these was given to `@ag-ui/client` 1.0.0 too.
    #[test]
    fn messages_are_those_of_the_client() {
        for (words, messages) in [
            ("t[a t.a t.a t]a", json!([assistant("a", "(a)(a)")])),
            ("t[a t.a t]a t[a t.a t]a", json!([assistant("a", "(a)(a)")])),
            ("t[a t[b t.b t.a t]a t]b", json!([assistant("a", "(a)"), assistant("b", "(b)")])),
            ("u[a t.a t]a", json!([{"id": "a", "role": "user", "content": "(a)"}])),
            ("t[a@g t.a", json!([{"id": "a", "role": "assistant", "content": "(a)", "subagentRunId": "g"}])),
            ("t.a t]a c.a m.a a.a", json!([])),
            ("r[a m[a m.a m]a r]a", json!([{"id": "a", "role": "reasoning", "content": "(a)"}])),
            ("m[a m.a e.a", json!([{"id": "a", "role": "reasoning", "content": "(a)", "encryptedValue": "?"}])),
            ("t[a t.a t]a e.a", json!([{"id": "a", "role": "assistant", "content": "(a)", "encryptedValue": "?"}])),
            // Calls make their message, under the id of the parent or their own.
            ("c[a c.a c.a c]a", json!([calling("a", "a", "(a)(a)")])),
            ("c[a<m c.a", json!([calling("m", "a", "(a)")])),
            ("c[a c.a c]a c[a c.a c]a", json!([calling("a", "a", "(a)(a)")])),
            ("u[m t]m c[a<m c.a", json!([{"id": "m", "role": "user", "content": ""}, calling("a", "a", "(a)")])),
            (
                "c[a<m c]a t[m t.m t]m",
                json!([{
                    "id": "m", "role": "assistant", "content": "(m)",
                    "toolCalls": [{"id": "a", "type": "function", "function": {"name": "tool-a", "arguments": ""}}],
                }]),
            ),
            // Results stand behind their calls, in the order in which they came.
            ("c[a c]a t[b t.b t]b x.a", json!([calling("a", "a", ""), result("a"), assistant("b", "(b)")])),
            ("c[a c]a c[b c]b x.b x.a", json!([calling("a", "a", ""), result("a"), calling("b", "b", ""), result("b")])),
            ("t[b t]b x.a", json!([assistant("b", ""), result("a")])),
            // Activities.
            ("a=i a.i a.i", json!([activity("i", json!(["next", "next"]))])),
            ("a=i a.i a=i", json!([activity("i", json!([]))])),
            ("a=i a.i a?i", json!([activity("i", json!(["next"]))])),
            ("t[i t]i a?i", json!([assistant("i", "")])),
            ("t[i t]i a=i", json!([activity("i", json!([]))])),
            ("a=i t[i t.i t]i m[i m.i", json!([activity("i", json!([]))])),
            (
                "a=i a=i@g",
                json!([{"id": "i", "role": "activity", "activityType": "plan", "content": {"steps": []}, "subagentRunId": "g"}]),
            ),
            // Snapshots replace in place, add at the end, and drop: but for reasoning and activities.
            (
                "t[a t.a t]a t[b t]b m[r m.r m]r a=i t[c t.c t]c snap=d,c,a",
                json!([
                    assistant("a", ""),
                    {"id": "r", "role": "reasoning", "content": "(r)"},
                    activity("i", json!([])),
                    assistant("c", ""),
                    assistant("d", ""),
                ]),
            ),
        ] {
            assert_eq!(messages_of(words), messages, "{words}");
        }
    }

    #[test]
    fn two_calls_of_one_message_have_their_results_in_the_order_of_arrival() {
        let view = View::of(&events("c[a<m c]a c[b<m c]b t[z t]z x.b x.a"));
        let ids: Vec<_> = view.messages.iter().map(|message| message.id.as_str()).collect();
        assert_eq!(ids, ["m", "xb", "xa", "z"]);
        let view = View::of(&events("c[a<m c]a c[b c]b x.b c[d<m c]d"));
        assert_eq!(view.unanswered_calls(), ["a", "d"]);
    }

    #[test]
    fn patches_change_all_or_nothing() {
        let add = |path: &str, value| PatchOp::Add { path: path.into(), value };
        for (ops, state) in [
            (vec![add("/a", json!(1)), add("/list/-", json!(2)), add("/list/0", json!(1))], json!({"a": 1, "list": [1, 2]})),
            (vec![add("/a", json!(1)), PatchOp::Remove { path: "/none".into() }], json!({"list": []})),
            (vec![add("/a", json!(1)), PatchOp::Replace { path: "/none".into(), value: json!(1) }], json!({"list": []})),
            (vec![add("/a", json!(1)), PatchOp::Test { path: "/a".into(), value: json!(2) }], json!({"list": []})),
            (vec![add("/none/a", json!(1))], json!({"list": []})),
            (vec![add("/list/1", json!(1))], json!({"list": []})),
            (vec![add("no pointer", json!(1))], json!({"list": []})),
            (vec![add("/a~1b", json!(1))], json!({"list": [], "a/b": 1})),
            (vec![PatchOp::Move { from: "/list".into(), path: "/other".into() }], json!({"other": []})),
            (vec![PatchOp::Copy { from: "/list".into(), path: "/other".into() }], json!({"list": [], "other": []})),
            (vec![add("", json!({"all": true}))], json!({"all": true})),
        ] {
            let mut view = View::of(&events("set"));
            view.apply(&Kind::StateDelta { delta: ops.clone() }.into());
            assert_eq!(view.state, state, "{ops:?}");
        }
    }

    #[test]
    fn a_patch_that_makes_no_object_of_an_activity_changes_nothing() {
        let mut view = View::of(&events("a=i"));
        let patch = vec![PatchOp::Replace { path: String::new(), value: json!([]) }];
        view.apply(&Kind::ActivityDelta { message_id: "i".into(), activity_type: "other".into(), patch }.into());
        assert_eq!(view, View::of(&events("a=i")));
    }

    #[test]
    fn metadata_is_merged_key_by_key() {
        let tagged = |word: &str, metadata: Value| {
            let mut event = event(word);
            event.metadata = metadata.as_object().cloned().unwrap_or_default();
            event
        };
        let list = [
            tagged("t[a", json!({"one": 1, "two": {"deep": 1}})),
            tagged("t.a", json!({"two": {"other": 2}})),
            tagged("t]a", json!({"three": 3})),
            tagged("c[b", json!({"of": "the call"})),
            tagged("x.b", json!({"of": "the result"})),
        ];
        let view = View::of(&list);
        let metadata: Vec<_> = view.messages.iter().map(|message| Value::Object(message.metadata.clone())).collect();
        assert_eq!(metadata, [json!({"one": 1, "two": {"other": 2}, "three": 3}), json!({}), json!({"of": "the result"})]);
    }

    #[test]
    fn a_snapshot_may_say_which_activities_it_has_all_of() {
        let before = "a=i a=j";
        let mut other = event("a=k");
        if let Kind::ActivitySnapshot { activity_type, .. } = &mut other.kind {
            *activity_type = "other".into();
        }
        let activity = View::of([&event("a=n")]).messages;
        for (messages, authority, left) in [
            (vec![assistant_message("a", "")], None, vec!["i", "j", "k", "a"]),
            (activity, None, vec!["n"]),
            (vec![], Some(json!({"authoritativeActivityTypes": null})), vec![]),
            (vec![], Some(json!({"authoritativeActivityTypes": ["plan"]})), vec!["k"]),
            (vec![], Some(json!({"authoritativeActivityTypes": [1]})), vec!["i", "j", "k"]),
            (vec![], Some(json!({"authoritativeActivityTypes": "plan"})), vec!["i", "j", "k"]),
            (vec![], Some(json!({})), vec!["i", "j", "k"]),
            (vec![], Some(json!(null)), vec!["i", "j", "k"]),
        ] {
            let mut view = View::of(events(before).iter().chain([&other]));
            let mut snapshot = Event::from(Kind::MessagesSnapshot { messages });
            snapshot.metadata.extend(authority.clone().map(|authority| (ACTIVITY_AUTHORITY.to_owned(), authority)));
            view.apply(&snapshot);
            let ids: Vec<_> = view.messages.iter().map(|message| message.id.as_str()).collect();
            assert_eq!(ids, left, "{authority:?}");
        }
    }

    #[test]
    fn a_correction_changes_what_is_said_and_keeps_the_calls() {
        let mut view = View::of(&events("c[a<m c.a c]a t[m t.m t]m"));
        view.correct(assistant_message("m", "better"));
        view.correct(assistant_message("n", "new"));
        let messages_of = serde_json::to_value(&view.messages).unwrap();
        let mut first = calling("m", "a", "(a)");
        first["content"] = "better".into();
        assert_eq!(messages_of, json!([first, assistant("n", "new")]));
    }
}
