//! `interactions`.

use agent_host_facts::record::Decision;
use agent_host_protocol::{
    ApiError,
    ask::{Answer, Question},
    encoded::JsonText,
    limits::is_shallow,
    time,
};
use agent_host_providers::tools::check_schema;
use agent_host_sandbox::{AskedQuestion, InteractionCalls, parse_json};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::{RunCalls, within};
use crate::{
    execution::{
        Execution,
        answers::{Resolution, WaitMode},
        call::Call,
        open_calls::OpenCall,
    },
    policy::approval::{self, Ruling},
    record::action::{Ask, AskKind, AskSubject, action_id},
};
use agent_host_config::{ApprovalPolicy, QUESTION};

/// Longest title: it is shown in one line.
const MAX_TITLE_CHARS: usize = 300;

fn parsed(question: &AskedQuestion) -> Result<Question, ApiError> {
    if question.title.trim().is_empty() || question.title.chars().count() > MAX_TITLE_CHARS {
        return Err(ApiError::invalid_argument(format!("the title of a question has 1 to {MAX_TITLE_CHARS} characters")));
    }
    let answer_schema = match &question.answer_schema {
        None => None,
        Some(text) => {
            let schema: Value = parse_json("the schema of the answer", text)?;
            if !is_shallow(&schema) {
                return Err(ApiError::invalid_argument("the schema of the answer nests too deep"));
            }
            check_schema(&schema)?;
            // The value has lost the order of its members.
            let text = JsonText::compact(text);
            Some(text.map_err(|error| ApiError::invalid_argument(format!("the schema of the answer is no JSON: {error}")))?)
        }
    };
    Ok(Question {
        kind: question.kind,
        title: question.title.clone(),
        description: question.description.clone(),
        answer_schema,
        expires_at: question.expires_at,
    })
}

impl Execution {
    /// The ruling of the approval rules on a question: who may answer, and until when.
    fn may_ask(&self, question: &Question) -> Result<Ruling, ApiError> {
        let target = json!({ "kind": question.kind, "title": question.title });
        let ruling = approval::judge(&self.terms.approvals, QUESTION, &target);
        if ruling.policy == ApprovalPolicy::Deny {
            return Err(ApiError {
                details: Some(json!({ "code": "denied_by_policy" })),
                ..ApiError::unauthorized("the approval policy of the binding refuses this question")
            });
        }
        Ok(ruling)
    }

    fn ask_of(&self, question: Question, ruling: Ruling) -> Ask {
        let latest = time::now().saturating_add(ruling.expires_ms.unwrap_or(self.limits.ask_expires_ms));
        Ask {
            expires_at: Some(question.expires_at.map_or(latest, |expires_at| expires_at.min(latest))),
            approvers: ruling.approvers,
            subject: AskSubject::Question {
                answer_schema: question.answer_schema,
                description: question.description,
                question: question.kind,
                title: question.title,
            },
        }
    }
}

impl InteractionCalls for RunCalls {
    fn interaction_ask(&mut self, question: AskedQuestion) -> BoxFuture<'_, Result<Answer, ApiError>> {
        Box::pin(async move {
            let run = &self.run;
            let bytes = question.bytes();
            let allowed = || within("a question", bytes, run.limits.ask_bytes);
            let digest = run.journal.digest(&question);
            let effect = async |ticket| {
                let question = parsed(&question)?;
                let ruling = run.may_ask(&question)?;
                let open_call = OpenCall::action(run, &ticket, run.ask_of(question, ruling)).await?;
                let id = action_id(run.run_id, open_call.number());
                let wait = WaitMode::of(run);
                let answer = run.await_answer(&id, AskKind::Question, wait).await?;
                // The record says so already.
                open_call.ended_before();
                Ok(match answer {
                    Resolution::Expired => Answer::Expired,
                    Resolution::Answered(given) if given.decision == Decision::Submit => {
                        Answer::Submitted(given.answer.unwrap_or_default())
                    }
                    Resolution::Answered(given) => Answer::Declined(given.reason),
                })
            };
            run.pass(Call::effect(QUESTION, digest).bytes(bytes), allowed, effect).await.outcome
        })
    }
}
