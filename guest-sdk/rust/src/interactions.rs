//! Questions to a person. The run waits for the answer, is parked meanwhile, and survives a restart of the host.
//!
//! ```
//! use agent_host_sdk::interactions::{Answer, Confirmation, Question};
//! use agent_host_sdk::{Completion, Context, Failure};
//! use std::time::Duration;
//!
//! fn run(ctx: Context) -> Result<Completion, Failure> {
//!     let question = Question::confirm("Delete 3 files?").describe("a.txt, b.txt, c.txt").expires_in(Duration::from_secs(3600));
//!     match ctx.ask(question)? {
//!         Confirmation::Yes => ctx.reply("Gone.")?,
//!         Confirmation::No(why) => ctx.reply(&format!("Kept. {}", why.unwrap_or_default()))?,
//!         Confirmation::Expired => ctx.reply("Nobody answered: they are kept.")?,
//!     }
//!
//!     if let Answer::Submitted(format) = ctx.ask(Question::choice("Which format?", ["pdf", "html"]))? {
//!         ctx.reply(&format!("As {format} then."))?;
//!     }
//!     Ok(Completion::stop())
//! }
//! ```
//!
//! The manifest must declare [`interactions`](crate::Manifest::interactions). The flag
//! `ctx.available_apis().interactions` is true if this run may ask.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::contract::{AskedQuestion, ErrorCode, QuestionAnswer, QuestionKind};
use crate::error::ApiError;
use crate::host::interactions as host;
use crate::json::{IntoJson, from_str};
use crate::limits::millis;
use crate::timers;

/// Answer of a person to a form or a choice.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer<T> {
    /// Answer of the person.
    Submitted(T),
    /// The person declined, with an optional reason.
    Declined(Option<String>),
    /// No answer before the question expired.
    Expired,
}

impl<T> Answer<T> {
    /// Returns the submitted answer; `None` if declined or expired.
    pub fn submitted(self) -> Option<T> {
        match self {
            Self::Submitted(value) => Some(value),
            Self::Declined(_) | Self::Expired => None,
        }
    }
}

/// Answer of a person to a confirmation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// The person agreed.
    Yes,
    /// The person disagreed or declined, with an optional reason.
    No(Option<String>),
    /// No answer before the question expired. Does not count as yes.
    Expired,
}

impl Confirmation {
    /// Returns true if a person agreed.
    #[must_use]
    pub fn is_yes(&self) -> bool {
        matches!(self, Self::Yes)
    }
}

/// Answer of a person to a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Review {
    /// The plan is approved, with an optional remark.
    Approved(Option<String>),
    /// The plan must change as described and be reviewed again.
    Changes(String),
    /// The plan is dropped, with an optional reason.
    Declined(Option<String>),
    /// No answer before the question expired. Does not count as approval.
    Expired,
}

/// Question with an answer of type `A`, for [`Context::ask`](crate::Context::ask).
#[must_use = "a question is not asked until it is given to `Context::ask`"]
#[derive(Clone, Debug)]
pub struct Question<A> {
    contract: AskedQuestion,
    /// Time until the question expires; converted to `expires_at` when the question is asked.
    expires_in: Option<Duration>,
    read: fn(QuestionAnswer) -> Result<A, ApiError>,
}

impl Question<Confirmation> {
    /// Creates a question for yes or no.
    pub fn confirm(title: impl Into<String>) -> Self {
        Self::new(QuestionKind::Confirmation, title, |answer| {
            Ok(match read::<bool>(answer)? {
                Answer::Submitted(true) => Confirmation::Yes,
                Answer::Submitted(false) => Confirmation::No(None),
                Answer::Declined(why) => Confirmation::No(why),
                Answer::Expired => Confirmation::Expired,
            })
        })
        .schema(r#"{"type":"boolean"}"#)
    }
}

impl Question<Answer<String>> {
    /// Creates a question with choices. The host checks that the answer is literally one of the choices.
    pub fn choice<C: Into<String>>(title: impl Into<String>, choices: impl IntoIterator<Item = C>) -> Self {
        let choices: Vec<_> = choices.into_iter().map(|choice| choice.into().into_json()).collect();
        let schema = format!(r#"{{"type":"string","enum":[{}]}}"#, choices.join(","));
        Self::new(QuestionKind::Choice, title, read).schema(schema)
    }

    /// Creates a question for one line of text.
    pub fn text(title: impl Into<String>) -> Self {
        Self::new(QuestionKind::Form, title, read).schema(r#"{"type":"string"}"#)
    }
}

impl Question<Answer<Value>> {
    /// Creates a form from a JSON Schema. The host checks the answer against the schema.
    pub fn form(title: impl Into<String>, schema: impl IntoJson) -> Self {
        Self::new(QuestionKind::Form, title, read).schema(schema.into_json())
    }
}

#[cfg(feature = "schemars")]
impl<T: DeserializeOwned + schemars::JsonSchema> Question<Answer<T>> {
    /// Creates a form from a Rust type. The person sees the fields with their doc comments.
    pub fn form_of(title: impl Into<String>) -> Self {
        Self::new(QuestionKind::Form, title, read).schema(crate::tools::schema_of::<T>())
    }
}

impl Question<Review> {
    /// Creates a review of a plan. The person approves the plan or requests changes.
    pub fn plan_review(title: impl Into<String>, plan: impl Into<String>) -> Self {
        Self::new(QuestionKind::PlanReview, title, |answer| {
            Ok(match read::<PlanAnswer>(answer)? {
                Answer::Submitted(PlanAnswer { approved: true, comment }) => Review::Approved(comment),
                Answer::Submitted(PlanAnswer { approved: false, comment }) => Review::Changes(comment.unwrap_or_default()),
                Answer::Declined(why) => Review::Declined(why),
                Answer::Expired => Review::Expired,
            })
        })
        .schema(
            r#"{"type":"object","properties":{"approved":{"type":"boolean"},"comment":{"type":"string"}},"required":["approved"]}"#,
        )
        .describe(plan)
    }
}

#[derive(Deserialize)]
struct PlanAnswer {
    approved: bool,
    comment: Option<String>,
}

impl<A> Question<A> {
    fn new(kind: QuestionKind, title: impl Into<String>, read: fn(QuestionAnswer) -> Result<A, ApiError>) -> Self {
        let contract = AskedQuestion { kind, title: title.into(), description: None, answer_schema: None, expires_at: None };
        Self { contract, expires_in: None, read }
    }

    fn schema(mut self, schema: impl Into<String>) -> Self {
        self.contract.answer_schema = Some(schema.into());
        self
    }

    /// Adds a description to the title.
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.contract.description = Some(description.into());
        self
    }

    /// Sets the time until the question expires, counted from the call of `Context::ask`. Default: set by the host (a
    /// day).
    pub fn expires_in(mut self, time: Duration) -> Self {
        self.expires_in = Some(time);
        self
    }

    /// Sets the time at which the question expires, in ms since the Unix epoch.
    pub fn expires_at(mut self, at: u64) -> Self {
        self.expires_in = None;
        self.contract.expires_at = Some(at);
        self
    }

    /// Returns the record that the host receives.
    #[must_use]
    pub fn contract(&self) -> &AskedQuestion {
        &self.contract
    }

    pub(crate) fn ask(mut self) -> Result<A, ApiError> {
        if let Some(time) = self.expires_in {
            self.contract.expires_at = Some(timers::now().saturating_add(millis(time)));
        }
        (self.read)(host::ask(&self.contract)?)
    }
}

fn read<T: DeserializeOwned>(answer: QuestionAnswer) -> Result<Answer<T>, ApiError> {
    Ok(match answer {
        // The host checks the answer against the schema. The error is for a schema that is weaker than the type.
        QuestionAnswer::Submitted(json) => Answer::Submitted(
            from_str(&json)
                .map_err(|error| ApiError::new(ErrorCode::RuntimeError, format!("the answer does not fit: {error}")))?,
        ),
        QuestionAnswer::Declined(why) => Answer::Declined(why),
        QuestionAnswer::Expired => Answer::Expired,
    })
}
