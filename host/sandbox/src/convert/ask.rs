//! Requests to people.

use agent_host_protocol::ask::{ActionOutcome, Answer, QuestionKind};

use crate::bindings::{interactions as wi, platform as wp};

same!(question_kind, question_kind_out, wi::QuestionKind, QuestionKind, { Confirmation, Choice, Form, PlanReview });

pub(crate) fn action_outcome_out(outcome: ActionOutcome) -> wp::ActionOutcome {
    match outcome {
        ActionOutcome::Executed(value) => wp::ActionOutcome::Executed(value.to_string()),
        ActionOutcome::Denied(reason) => wp::ActionOutcome::Denied(reason),
        ActionOutcome::Expired => wp::ActionOutcome::Expired,
    }
}

pub(crate) fn answer_out(answer: Answer) -> wi::Answer {
    match answer {
        Answer::Submitted(value) => wi::Answer::Submitted(value.to_string()),
        Answer::Declined(reason) => wi::Answer::Declined(reason),
        Answer::Expired => wi::Answer::Expired,
    }
}
