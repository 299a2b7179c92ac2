//! Scripted platform actions and scripted answers of people.

use serde_json::Value;

use super::TestHost;
use crate::contract::{ActionOutcome, AskedQuestion, QuestionAnswer};
use crate::error::ApiError;

/// Scripted outcome of a platform action. A JSON value is the answer of the platform, an [`ApiError`] a failure of the
/// platform.
#[derive(Clone, Debug, PartialEq)]
pub struct ActionReply(pub(super) Result<ActionOutcome, ApiError>);

impl ActionReply {
    /// Creates the outcome of an action that was executed and answered with this value.
    #[must_use]
    pub fn executed(answer: Value) -> Self {
        Self(Ok(ActionOutcome::Executed(answer.to_string())))
    }

    /// Creates the outcome of an action that a policy or a person denied.
    #[must_use]
    pub fn denied(reason: &str) -> Self {
        Self(Ok(ActionOutcome::Denied(reason.to_owned())))
    }

    /// Creates the outcome of an expired action. The clock advances by a day.
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

/// Scripted answer to a question. A JSON value, a boolean or a text is a submitted answer.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerReply(pub(super) Result<QuestionAnswer, ApiError>);

impl AnswerReply {
    /// Creates a submitted answer. The answer is not checked against the schema, so a test can submit an invalid one.
    #[must_use]
    pub fn submitted(answer: Value) -> Self {
        Self(Ok(QuestionAnswer::Submitted(answer.to_string())))
    }

    /// Creates a declined answer, with a reason unless `reason` is empty.
    #[must_use]
    pub fn declined(reason: &str) -> Self {
        Self(Ok(QuestionAnswer::Declined((!reason.is_empty()).then(|| reason.to_owned()))))
    }

    /// Creates an expired answer. The clock advances to the expiry of the question.
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

/// Platform action that a run requested.
#[derive(Clone, Debug, PartialEq)]
pub struct TestAction {
    /// Name of the action.
    pub action: String,
    /// Target of the action.
    pub target: Value,
    /// Payload of the action.
    pub payload: Value,
}

/// Platform actions, and questions to people. Without a script neither is granted: the call fails with `unauthorized`.
impl TestHost {
    /// Sets the outcome of a platform action with this name, by target and payload. The manifest must name the action.
    pub fn action<R: Into<ActionReply>>(mut self, action: &str, mut answer: impl FnMut(Value, Value) -> R + 'static) -> Self {
        let answer = Box::new(move |request: &TestAction| answer(request.target.clone(), request.payload.clone()).into());
        self.host.beyond.actions.push((Some(action.to_owned()), answer));
        self
    }

    /// Sets the outcomes of platform actions with any name, in order. A further action fails the test. Actions with a
    /// script of [`action`](Self::action) are not counted.
    pub fn actions<R: Into<ActionReply>>(mut self, replies: impl IntoIterator<Item = R>) -> Self {
        let mut replies = replies.into_iter().map(Into::into).collect::<Vec<ActionReply>>().into_iter();
        let answer = Box::new(move |request: &TestAction| {
            replies.next().unwrap_or_else(|| panic!("`{}` was asked for, once more than there are replies", request.action))
        });
        self.host.beyond.actions.push((None, answer));
        self
    }

    /// Sets the function that answers each question.
    pub fn answer<R: Into<AnswerReply>>(mut self, mut answer: impl FnMut(&AskedQuestion) -> R + 'static) -> Self {
        self.host.beyond.person = Some(Box::new(move |question| answer(question).into()));
        self
    }

    /// Sets the answers to questions, in order. A further question fails the test.
    pub fn answers<R: Into<AnswerReply>>(self, replies: impl IntoIterator<Item = R>) -> Self {
        let mut replies = replies.into_iter().map(Into::into).collect::<Vec<AnswerReply>>().into_iter();
        self.answer(move |question| {
            replies.next().unwrap_or_else(|| panic!("`{}` was asked, once more than there are answers", question.title))
        })
    }
}
