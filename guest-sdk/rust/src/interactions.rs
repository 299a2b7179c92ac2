//! Questions to a person. The run waits, costs nothing meanwhile, and survives a restart of its host.
//!
//! ```
//! use agent_host_sdk::interactions::{Answer, Confirmed, Question};
//! use agent_host_sdk::{Completion, Context, Failure};
//! use std::time::Duration;
//!
//! fn run(ctx: Context) -> Result<Completion, Failure> {
//!     let question = Question::confirm("Delete 3 files?").describe("a.txt, b.txt, c.txt").expires_in(Duration::from_secs(3600));
//!     match ctx.ask(question)? {
//!         Confirmed::Yes => ctx.reply("Gone.")?,
//!         Confirmed::No(why) => ctx.reply(&format!("Kept. {}", why.unwrap_or_default()))?,
//!         Confirmed::Expired => ctx.reply("Nobody answered: they are kept.")?,
//!     }
//!
//!     if let Answer::Submitted(format) = ctx.ask(Question::choice("Which format?", ["pdf", "html"]))? {
//!         ctx.reply(&format!("As {format} then."))?;
//!     }
//!     Ok(Completion::stop())
//! }
//! ```
//!
//! The manifest must declare [`interactions`](crate::Manifest::interactions);
//! `ctx.available_apis().interactions` says whether this run may ask.

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

/// What a person answered to a question with a form, or with choices.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer<T> {
    /// This.
    Submitted(T),
    /// They would not say, perhaps for this reason.
    Declined(Option<String>),
    /// Nobody said anything in time.
    Expired,
}

impl<T> Answer<T> {
    /// What was answered, if something was.
    pub fn submitted(self) -> Option<T> {
        match self {
            Self::Submitted(value) => Some(value),
            Self::Declined(_) | Self::Expired => None,
        }
    }
}

/// What a person answered to a confirmation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// Go on.
    Yes,
    /// Do not, perhaps for this reason.
    No(Option<String>),
    /// Nobody said anything in time. Not a yes.
    Expired,
}

impl Confirmed {
    /// Whether a person said yes.
    #[must_use]
    pub fn is_yes(&self) -> bool {
        matches!(self, Self::Yes)
    }
}

/// What a person says to a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Review {
    /// Do it, perhaps with a remark.
    Approved(Option<String>),
    /// Change it as this says, and show it again.
    Changes(String),
    /// Drop it, perhaps for this reason.
    Declined(Option<String>),
    /// Nobody said anything in time. Not an approval.
    Expired,
}

/// A question whose answer is an `A`. [`Context::ask`](crate::Context::ask) asks it.
#[must_use = "a question is not asked until it is given to `Context::ask`"]
#[derive(Clone, Debug)]
pub struct Question<A> {
    contract: AskedQuestion,
    /// From now on; made a time when the question is asked.
    expires_in: Option<Duration>,
    read: fn(QuestionAnswer) -> Result<A, ApiError>,
}

impl Question<Confirmed> {
    /// Yes or no.
    pub fn confirm(title: impl Into<String>) -> Self {
        Self::new(QuestionKind::Confirmation, title, |answer| {
            Ok(match read::<bool>(answer)? {
                Answer::Submitted(true) => Confirmed::Yes,
                Answer::Submitted(false) => Confirmed::No(None),
                Answer::Declined(why) => Confirmed::No(why),
                Answer::Expired => Confirmed::Expired,
            })
        })
        .schema(r#"{"type":"boolean"}"#)
    }
}

impl Question<Answer<String>> {
    /// One of these. The answer is one of them, word for word: the host checks it.
    pub fn choice<C: Into<String>>(title: impl Into<String>, choices: impl IntoIterator<Item = C>) -> Self {
        let choices: Vec<_> = choices.into_iter().map(|choice| choice.into().into_json()).collect();
        let schema = format!(r#"{{"type":"string","enum":[{}]}}"#, choices.join(","));
        Self::new(QuestionKind::Choice, title, read).schema(schema)
    }

    /// A line of text.
    pub fn text(title: impl Into<String>) -> Self {
        Self::new(QuestionKind::Form, title, read).schema(r#"{"type":"string"}"#)
    }
}

impl Question<Answer<Value>> {
    /// A form, as a JSON Schema. The host checks the answer against it.
    pub fn form(title: impl Into<String>, schema: impl IntoJson) -> Self {
        Self::new(QuestionKind::Form, title, read).schema(schema.into_json())
    }
}

#[cfg(feature = "schemars")]
impl<T: DeserializeOwned + schemars::JsonSchema> Question<Answer<T>> {
    /// A form that is a Rust type: its fields, with their doc comments, are what the person sees.
    pub fn form_of(title: impl Into<String>) -> Self {
        Self::new(QuestionKind::Form, title, read).schema(crate::tools::schema_of::<T>())
    }
}

impl Question<Review> {
    /// A plan that a person approves, or wants changed.
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

    /// More than the title has room for.
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.contract.description = Some(description.into());
        self
    }

    /// Nobody needs to answer any more after so long, counted from when it is asked. Where nothing is said, the host
    /// decides (a day).
    pub fn expires_in(mut self, time: Duration) -> Self {
        self.expires_in = Some(time);
        self
    }

    /// Nobody needs to answer any more after this time, Unix milliseconds.
    pub fn expires_at(mut self, at: u64) -> Self {
        self.expires_in = None;
        self.contract.expires_at = Some(at);
        self
    }

    /// The record that the host gets.
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
        // The host checks it against the schema; this is for a schema that says less than the type.
        QuestionAnswer::Submitted(json) => Answer::Submitted(
            from_str(&json)
                .map_err(|error| ApiError::new(ErrorCode::RuntimeError, format!("the answer does not fit: {error}")))?,
        ),
        QuestionAnswer::Declined(why) => Answer::Declined(why),
        QuestionAnswer::Expired => Answer::Expired,
    })
}
