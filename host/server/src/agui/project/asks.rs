//! The actions of a host run, for people and for the client.

use agent_host_protocol::{RunEvent, RunId, encoded::JsonText};
use agent_host_runs::{
    answer_schema,
    facts::{
        open::OpenElements,
        record::{ActionAnswer, ActionEnd, ActionRequest, Decision, read},
    },
};
use serde::Deserialize;
use serde_json::{Map, Value, value::to_raw_value};

use super::{
    content,
    ids::Ids,
    out::Out,
    text::Texts,
    tools::{self, Call, Tools},
};
use crate::agui::{
    event::{Content, Interrupt},
    interrupts,
};

/// The answer that a model receives for a call that the client has not executed.
const EXPIRED: &str = "the client did not answer in time";
const LET_GO: &str = "the run abandoned the call before the client answered";

/// Open actions, by id.
#[derive(Debug, Default)]
pub(super) struct Asks(OpenElements<Ask>);

#[derive(Debug)]
struct Ask {
    request: Value,
    /// The schema in the request, with its members in the order of the runner.
    schema: Option<JsonText>,
    /// The id on the wire of the call of a frontend tool that it is.
    call: Option<String>,
}

/// Something is asked.
pub(super) struct Request {
    action_id: String,
    more: Map<String, Value>,
    /// As in [`Ask`].
    schema: Option<JsonText>,
}

impl Request {
    /// The request of an event.
    pub(super) fn of(event: &RunEvent) -> Option<Self> {
        let ActionRequest { action_id, request } = read(event)?;
        Some(Self { action_id: action_id?, more: request, schema: answer_schema(event.data.get()) })
    }
}

/// The client's answer to a call. Answers of people to questions have any form.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    OfClient {
        content: Value,
        #[serde(default)]
        error: Option<String>,
        #[serde(default)]
        message_id: Option<String>,
    },
    Other(Value),
}

impl Answer {
    fn of(answer: Value) -> Self {
        Self::deserialize(&answer).unwrap_or(Self::Other(answer))
    }
}

impl Asks {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the action asks: the policy may have allowed it before.
    pub(super) fn requested(
        &mut self,
        out: &mut Out,
        ids: &mut Ids,
        texts: &mut Texts,
        tools: &mut Tools,
        request: Request,
    ) -> bool {
        let Request { action_id, more, schema } = request;
        let text = |name: &str| more.get(name).and_then(Value::as_str);
        if text("policy") == Some("allow") || self.0.contains(&action_id) {
            return false;
        }
        let call = (text("kind") == Some("client_tool")).then(|| {
            let parameters = more.get("parameters").and_then(|parameters| to_raw_value(parameters).ok());
            let call = Call {
                name: text("tool_call_id").unwrap_or(&action_id),
                tool: text("tool_name").unwrap_or_default(),
                parameters: parameters.as_deref(),
                message: None,
            };
            tools.asked_of_client(out, ids, texts, &call)
        });
        self.0.get_or_insert_with(&action_id, || Ask { request: Value::Object(more), schema, call });
        true
    }

    pub(super) fn answered(&mut self, out: &mut Out, ids: &mut Ids, answered: ActionAnswer) {
        let Some(Ask { call: Some(call), .. }) = self.0.remove(&answered.action_id) else { return };
        if answered.decision != Decision::Submit {
            let why = answered.reason.map_or("declined".to_owned(), |reason| format!("declined: {reason}"));
            return unmade(out, ids, call, &why);
        }
        let (spoken, error, message_id) = match answered.answer.map(Answer::of) {
            Some(Answer::OfClient { content, error, message_id }) => (content, error, message_id),
            Some(Answer::Other(spoken)) => (spoken, None, None),
            None => (Value::Null, None, None),
        };
        let spoken = match (content::content(spoken), error) {
            (Content::Text(text), Some(error)) if text.is_empty() => Content::Text(error),
            (spoken, _) => spoken,
        };
        // An answer in a message of the client is in the client's history already; any other answer is sent.
        match message_id.filter(|id| !id.is_empty()) {
            Some(message_id) => out.past(tools::result(message_id, call, spoken)),
            None => out.say(tools::result(ids.result(&call), call, spoken)),
        }
    }

    /// The end of an action without further answers.
    pub(super) fn resolved(&mut self, out: &mut Out, ids: &mut Ids, resolved: &ActionEnd) {
        let Some(Ask { call: Some(call), .. }) = self.0.remove(&resolved.action_id) else { return };
        let why = if resolved.outcome == "expired" { EXPIRED } else { LET_GO };
        unmade(out, ids, call, why);
    }

    /// Closes all open actions.
    pub(super) fn close(&mut self, out: &mut Out, ids: &mut Ids) {
        for call in self.0.take().into_iter().filter_map(|(_, ask)| ask.call) {
            unmade(out, ids, call, LET_GO);
        }
    }

    /// Calls of frontend tools: the ids of their actions, and theirs on the wire.
    pub(super) fn calls(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(action, ask)| Some((action, ask.call.as_deref()?)))
    }

    /// The calls that the client is to make, where nothing else is asked.
    pub(super) fn pending(&self) -> Option<Vec<String>> {
        self.0.iter().map(|(_, ask)| ask.call.clone()).collect()
    }

    pub(super) fn interrupts(&self, run: RunId) -> Vec<Interrupt> {
        let interrupt = |(action, ask): (&str, &Ask)| {
            let interrupt = interrupts::interrupt(run, action, &ask.request, ask.schema.as_ref());
            Interrupt { tool_call_id: ask.call.clone(), ..interrupt }
        };
        self.0.iter().map(interrupt).collect()
    }
}

/// The end of a call that the client has not executed.
fn unmade(out: &mut Out, ids: &mut Ids, call: String, why: &str) {
    out.say(tools::result(ids.result(&call), call, Content::Text(why.to_owned())));
}
