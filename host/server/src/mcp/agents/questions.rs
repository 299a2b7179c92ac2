//! Questions of a run to people, asked of the user of the client by elicitation.

use agent_host_protocol::{Principal, RunEvent, RunId, Scope, encoded::JsonText};
use agent_host_runs::{
    Host, HostError, Response, answer_schema,
    facts::record::{ActionRequest, read},
};
use rmcp::{
    Peer, RoleServer,
    model::{
        ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, ServerRequest,
    },
};
use serde_json::{Value, json};

use crate::agui::{input::ResumeStatus, interrupts};

/// The member of a form that stands for an answer that is no object.
const ANSWER: &str = "answer";

/// An answer that does not fit is asked for again with the reason, so many times in all.
const ATTEMPTS: usize = 3;

/// An action that a run has asked for.
pub(super) struct OpenQuestion {
    pub(super) run_id: RunId,
    pub(super) action_id: String,
    /// The request, as the record has it.
    pub(super) request: Value,
    schema: Option<JsonText>,
}

impl OpenQuestion {
    /// The action that an event asks for, where people answer it.
    pub(super) fn of(event: &RunEvent) -> Option<Self> {
        let ActionRequest { action_id, request } = read::<ActionRequest>(event)?;
        let is = |member: &str, value: &str| request.get(member).is_some_and(|given| given == value);
        if is("kind", "client_tool") || is("policy", "allow") {
            return None;
        }
        let schema = answer_schema(event.data.get());
        Some(Self { run_id: event.run_id, action_id: action_id?, request: Value::Object(request), schema })
    }

    /// The question in words.
    pub(super) fn message(&self) -> String {
        let interrupt = interrupts::interrupt(self.run_id, &self.action_id, &self.request, self.schema.as_ref());
        interrupt.message.unwrap_or_else(|| "The agent asks for an answer.".to_owned())
    }

    /// The form of the answer: that of the question, where a form can have it; else one text.
    fn form(&self) -> (ElicitationSchema, AnswerPlace) {
        let interrupt = interrupts::interrupt(self.run_id, &self.action_id, &self.request, self.schema.as_ref());
        let wanted = interrupt.response_schema.and_then(|schema| serde_json::from_str::<Value>(schema.get()).ok());
        let is_object = |schema: &Value| schema.get("type").is_some_and(|kind| kind == "object");
        if let Some(schema) = wanted.clone().filter(is_object)
            && let Ok(form) = serde_json::from_value(schema)
        {
            return (form, AnswerPlace::Whole);
        }
        let single = |schema: Value| {
            let form = json!({ "type": "object", "properties": { ANSWER: schema }, "required": [ANSWER] });
            serde_json::from_value::<ElicitationSchema>(form).ok()
        };
        match wanted.and_then(single) {
            Some(form) => (form, AnswerPlace::Member),
            None => {
                let text = single(json!({ "type": "string" }));
                (text.unwrap_or_else(|| ElicitationSchema::new(std::collections::BTreeMap::new())), AnswerPlace::Text)
            }
        }
    }
}

/// The part of a filled form that is the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerPlace {
    /// All of it.
    Whole,
    /// The value of its one member.
    Member,
    /// A text that may be JSON, for an answer that no form has.
    Text,
}

impl AnswerPlace {
    fn answer(self, content: Option<Value>) -> Option<Value> {
        let member = |content: Value| content.get(ANSWER).cloned();
        match self {
            Self::Whole => content,
            Self::Member => content.and_then(member),
            Self::Text => content.and_then(member).map(|answer| match answer {
                Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
                other => other,
            }),
        }
    }
}

/// True if questions can be asked of this client by this principal.
pub(super) fn can_ask(peer: &Peer<RoleServer>, principal: &Principal) -> bool {
    let has_forms = peer.peer_info().and_then(|info| info.capabilities.elicitation.clone()).is_some_and(|elicitation| {
        // Without a mode a client has forms.
        elicitation.form.is_some() || elicitation.url.is_none()
    });
    has_forms && principal.may(Scope::ActionsRespond)
}

/// The reason why an action has no answer of the client.
pub(super) enum NoAnswer {
    /// The client, its user or the rules of the host do not let the question be answered here.
    Here,
    /// The question has an answer of somebody else, or its time is over.
    Elsewhere,
}

/// Asks the user of the client, and gives the answer to the run.
pub(super) async fn ask(
    host: &Host,
    peer: &Peer<RoleServer>,
    principal: &Principal,
    asked: &OpenQuestion,
) -> Result<(), NoAnswer> {
    let by = host.answers_as(principal).map_err(|_| NoAnswer::Here)?;
    let action = host.action(&asked.action_id).map_err(|_| NoAnswer::Elsewhere)?;
    let [_, refusal] = action.kind().decisions();
    let probe = Response { decision: refusal, reason: None, answer: None };
    match host.may_respond(&asked.action_id, &probe, by.as_deref()) {
        Ok(_) => {}
        Err(HostError::Answered { .. } | HostError::Expired(_)) => return Err(NoAnswer::Elsewhere),
        Err(_) => return Err(NoAnswer::Here),
    }
    let mut message = asked.message();
    for _ in 0..ATTEMPTS {
        let (requested_schema, form) = asked.form();
        let params = ElicitRequestParams::FormElicitationParams { meta: None, message: message.clone(), requested_schema };
        let request = ServerRequest::ElicitRequest(ElicitRequest::new(params));
        let Ok(ClientResult::ElicitResult(ElicitResult { action: taken, content, .. })) = peer.send_request(request).await else {
            return Err(NoAnswer::Here);
        };
        let (status, payload) = match taken {
            ElicitationAction::Accept => (ResumeStatus::Resolved, form.answer(content)),
            ElicitationAction::Decline => (ResumeStatus::Cancelled, None),
            // The user has closed the form: the question is still open.
            _ => return Err(NoAnswer::Here),
        };
        let why = match interrupts::response(action.kind(), &asked.request, status, payload) {
            Err(why) => why,
            Ok(response) => match host.respond(&asked.action_id, response, by.clone()).await {
                Ok(_) => return Ok(()),
                Err(HostError::Answered { .. } | HostError::Expired(_)) => return Err(NoAnswer::Elsewhere),
                Err(error) => error.to_string(),
            },
        };
        message = format!("{}\n\n{why}", asked.message());
    }
    Err(NoAnswer::Here)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(data: &Value) -> Option<OpenQuestion> {
        let event = json!({ "run_id": RunId::new(), "type": "action.requested", "sequence": 1, "timestamp": 1, "data": data });
        OpenQuestion::of(&serde_json::from_value(event).unwrap())
    }

    fn asked(schema: &Value) -> OpenQuestion {
        let data =
            json!({ "kind": "question", "question": "form", "action_id": "r.1", "title": "Which?", "answer_schema": schema });
        question(&data).unwrap()
    }

    #[test]
    fn a_question_has_a_form_that_clients_show() {
        let flat = json!({ "type": "object", "properties": { "colour": { "type": "string" }, "n": { "type": "integer" } } });
        assert_eq!(asked(&flat).form().1, AnswerPlace::Whole);
        for (schema, form) in [
            (json!({ "type": "string", "enum": ["a", "b"] }), AnswerPlace::Member),
            (json!({ "type": "boolean" }), AnswerPlace::Member),
            (json!({ "type": "array", "items": { "type": "object" } }), AnswerPlace::Text),
            (json!({ "type": "object", "properties": { "deep": { "type": "object" } } }), AnswerPlace::Text),
            (Value::Null, AnswerPlace::Text),
        ] {
            let (shown, is) = asked(&schema).form();
            assert_eq!(is, form, "{schema}");
            assert!(shown.properties.contains_key(ANSWER), "{schema}");
        }
        assert_eq!(asked(&Value::Null).message(), "Which?");
    }

    #[test]
    fn a_filled_form_becomes_the_answer() {
        assert_eq!(AnswerPlace::Whole.answer(Some(json!({ "a": 1 }))), Some(json!({ "a": 1 })));
        assert_eq!(AnswerPlace::Member.answer(Some(json!({ "answer": true }))), Some(json!(true)));
        assert_eq!(AnswerPlace::Text.answer(Some(json!({ "answer": "{\"a\":1}" }))), Some(json!({ "a": 1 })));
        assert_eq!(AnswerPlace::Text.answer(Some(json!({ "answer": "blue" }))), Some(json!("blue")));
        assert_eq!(AnswerPlace::Member.answer(None), None);
    }

    #[test]
    fn calls_of_tools_of_the_client_and_allowed_actions_are_no_questions() {
        assert!(question(&json!({ "kind": "client_tool", "action_id": "r.1" })).is_none());
        let action = |policy: &str| json!({ "kind": "platform_action", "action_id": "r.1", "action": "a", "policy": policy });
        assert!(question(&action("allow")).is_none());
        assert!(question(&action("ask")).is_some());
    }
}
