//! What a test makes the platform and people answer.

use serde_json::Value;

use super::TestHost;
use crate::contract::{ActionOutcome, AskedQuestion, QuestionAnswer};
use crate::error::ApiError;

/// What comes of a scripted platform action. A JSON value is one: what the platform answered. So is an [`ApiError`]: the
/// platform failed.
#[derive(Clone, Debug, PartialEq)]
pub struct ActionReply(pub(super) Result<ActionOutcome, ApiError>);

impl ActionReply {
    /// It was allowed, and the platform has done it and answered this.
    #[must_use]
    pub fn executed(answer: Value) -> Self {
        Self(Ok(ActionOutcome::Executed(answer.to_string())))
    }

    /// Policy or a person said no.
    #[must_use]
    pub fn denied(reason: &str) -> Self {
        Self(Ok(ActionOutcome::Denied(reason.to_owned())))
    }

    /// Nobody said anything in time. A day passes.
    #[must_use]
    pub fn expired() -> Self {
        Self(Ok(ActionOutcome::Expired))
    }
}

impl From<Value> for ActionReply {
    fn from(answer: Value) -> Self {
        Self::executed(answer)
    }
}

impl From<ApiError> for ActionReply {
    fn from(error: ApiError) -> Self {
        Self(Err(error))
    }
}

/// What a scripted person answers to a question. A JSON value, a truth value or a text is one that was submitted.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerReply(pub(super) Result<QuestionAnswer, ApiError>);

impl AnswerReply {
    /// They say this. It is not checked against the schema, so it may be what a wrong form lets through.
    #[must_use]
    pub fn submitted(answer: Value) -> Self {
        Self(Ok(QuestionAnswer::Submitted(answer.to_string())))
    }

    /// They will not say, for this reason; none where it is empty.
    #[must_use]
    pub fn declined(reason: &str) -> Self {
        Self(Ok(QuestionAnswer::Declined((!reason.is_empty()).then(|| reason.to_owned()))))
    }

    /// Nobody says anything. The time passes until the question expires.
    #[must_use]
    pub fn expired() -> Self {
        Self(Ok(QuestionAnswer::Expired))
    }
}

impl From<Value> for AnswerReply {
    fn from(answer: Value) -> Self {
        Self::submitted(answer)
    }
}

impl From<bool> for AnswerReply {
    fn from(answer: bool) -> Self {
        Self::submitted(answer.into())
    }
}

impl From<&str> for AnswerReply {
    fn from(answer: &str) -> Self {
        Self::submitted(answer.into())
    }
}

impl From<ApiError> for AnswerReply {
    fn from(error: ApiError) -> Self {
        Self(Err(error))
    }
}

/// A platform action that a run asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct TestAction {
    /// Its name.
    pub action: String,
    /// What it is done to.
    pub target: Value,
    /// What is done.
    pub payload: Value,
}

/// Platform actions, and questions to people. Without a script neither is granted: the call answers `unauthorized`.
impl TestHost {
    /// What comes of a platform action with this name, by its target and its payload. The manifest must name it.
    pub fn action<R: Into<ActionReply>>(mut self, action: &str, mut answer: impl FnMut(Value, Value) -> R + 'static) -> Self {
        let answer = Box::new(move |asked: &TestAction| answer(asked.target.clone(), asked.payload.clone()).into());
        self.host.beyond.actions.push((Some(action.to_owned()), answer));
        self
    }

    /// What comes of platform actions in order, whatever they are called. One more fails the test. An action that has a
    /// script of its own by [`action`](Self::action) is not counted.
    pub fn actions<R: Into<ActionReply>>(mut self, replies: impl IntoIterator<Item = R>) -> Self {
        let mut replies = replies.into_iter().map(Into::into).collect::<Vec<ActionReply>>().into_iter();
        let answer = Box::new(move |asked: &TestAction| {
            replies.next().unwrap_or_else(|| panic!("`{}` was asked for, once more than there are replies", asked.action))
        });
        self.host.beyond.actions.push((None, answer));
        self
    }

    /// What a person answers to each question.
    pub fn answer<R: Into<AnswerReply>>(mut self, mut answer: impl FnMut(&AskedQuestion) -> R + 'static) -> Self {
        self.host.beyond.person = Some(Box::new(move |question| answer(question).into()));
        self
    }

    /// What a person answers to questions, in order. One more fails the test.
    pub fn answers<R: Into<AnswerReply>>(self, replies: impl IntoIterator<Item = R>) -> Self {
        let mut replies = replies.into_iter().map(Into::into).collect::<Vec<AnswerReply>>().into_iter();
        self.answer(move |question| {
            replies.next().unwrap_or_else(|| panic!("`{}` was asked, once more than there are answers", question.title))
        })
    }
}
