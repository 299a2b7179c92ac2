//! Interaction with the user: confirmation of destructive calls, questions of the model, and input during the run.

use std::collections::BTreeMap;

use agent_host_sdk::interactions::{Answer, Confirmation, Question};
use agent_host_sdk::models::ModelRequest;
use agent_host_sdk::tools::CALLS_AT_ONCE;
use agent_host_sdk::{ApiError, Context, Message, ToolCall, ToolError, ToolOperation, Toolbox};
use schemars::JsonSchema;
use serde::Deserialize;

/// Maximum length of call parameters in a question, in characters.
const SHOWN_CHARS: usize = 2_000;

/// Parameters of the tool `ask_user`. The doc comments are what the model reads.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct AskUser {
    /// What to ask, in one sentence, in the language of the user.
    question: String,
    /// Answers to choose from; leave it out for a free answer.
    choices: Option<Vec<String>>,
}

/// User of the run, asked only if the run may ask.
pub(crate) struct Person<'a> {
    ctx: &'a Context,
    /// Known tools: true if destructive.
    destructive: BTreeMap<String, bool>,
}

impl<'a> Person<'a> {
    pub(crate) fn new(ctx: &'a Context) -> Self {
        Self { ctx, destructive: BTreeMap::new() }
    }

    /// Executes the calls of the model, except destructive calls that the user declines. Returns a message for each call,
    /// in order; the message of a declined call has the reason.
    pub(crate) fn call_many(&mut self, tools: &mut Toolbox<'_>, calls: &[ToolCall]) -> Result<Vec<Message>, ApiError> {
        if !self.ctx.available_apis().interactions {
            return tools.call_many(calls);
        }
        // A model with a hundred calls must not cause a hundred questions.
        let (calls, too_many) = calls.split_at(calls.len().min(CALLS_AT_ONCE));
        let mut refusals = Vec::with_capacity(calls.len());
        for call in calls {
            refusals.push(if self.is_destructive(&call.tool_name)? { self.refusal(call)? } else { None });
        }
        let wanted = calls.iter().zip(&refusals).filter(|(_, refusal)| refusal.is_none());
        let wanted: Vec<_> = wanted.map(|(call, _)| call.clone()).collect();
        let mut done = tools.call_many(&wanted)?.into_iter();

        let mut messages = Vec::with_capacity(calls.len());
        for (call, refusal) in calls.iter().zip(refusals) {
            messages.extend(refusal.map(|why| Message::tool(&call.call_id, why)).or_else(|| done.next()));
        }
        let why = format!("Error: not called, since at most {CALLS_AT_ONCE} calls are made at once.");
        messages.extend(too_many.iter().map(|call| Message::tool(&call.call_id, why.as_str())));
        Ok(messages)
    }

    /// Returns true if a tool of the host is marked as destructive, or if its details are not available.
    fn is_destructive(&mut self, name: &str) -> Result<bool, ApiError> {
        if let Some(known) = self.destructive.get(name) {
            return Ok(*known);
        }
        let tools = self.ctx.tools();
        let says = |tool: &&agent_host_sdk::contract::ToolResource| {
            tool.tool_name == name && tool.operations.contains(&ToolOperation::Detail)
        };
        let destructive = match tools.list().iter().find(says).map(|tool| tools.detail(&tool.tool_name)) {
            None => false,
            Some(Ok(detail)) => detail.destructive == Some(true),
            Some(Err(error)) if error.is_cancelled() => return Err(error),
            Some(Err(_)) => return Ok(true),
        };
        self.destructive.insert(name.to_owned(), destructive);
        Ok(destructive)
    }

    /// Asks the user to confirm a call. Returns `None` if confirmed, otherwise an error text for the model.
    fn refusal(&self, call: &ToolCall) -> Result<Option<String>, ApiError> {
        let parameters: String = call.parameters.chars().take(SHOWN_CHARS).collect();
        let question = Question::confirm(format!("Call the tool {}?", call.tool_name)).describe(parameters);
        Ok(match self.ctx.ask(question) {
            Ok(Confirmation::Yes) => None,
            Ok(Confirmation::No(Some(why))) => Some(format!("Error: not called. The user does not want it: {why}")),
            Ok(Confirmation::No(None)) => Some("Error: not called. The user does not want it.".to_owned()),
            Ok(Confirmation::Expired) => Some("Error: not called. The user was asked and did not answer.".to_owned()),
            Err(error) if error.is_cancelled() => return Err(error),
            Err(error) => Some(format!("Error: not called. The user could not be asked: {error}")),
        })
    }
}

/// Executes the tool `ask_user`.
pub(crate) fn ask_user(ctx: &Context, asked: AskUser) -> Result<String, ToolError> {
    let question = match asked.choices {
        Some(choices) if !choices.is_empty() => Question::choice(asked.question, choices),
        _ => Question::text(asked.question),
    };
    Ok(match ctx.ask(question)? {
        Answer::Submitted(answer) => answer,
        Answer::Declined(Some(why)) => format!("The user will not say: {why}"),
        Answer::Declined(None) => "The user will not say.".to_owned(),
        Answer::Expired => "The user did not answer. Go on without.".to_owned(),
    })
}

/// Adds the input of the user since the last turn of the model.
pub(crate) fn listen(ctx: &Context, request: &mut ModelRequest) -> Result<(), ApiError> {
    if ctx.available_apis().steering {
        for input in ctx.steering().inputs() {
            request.push(input?.message());
        }
    }
    Ok(())
}
