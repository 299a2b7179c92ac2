//! Effects whose outcome is in doubt: the host died between their start and their end.
//!
//! An effect that is harmless to repeat is repeated. For any other effect the guest receives an error or a person decides
//! (`answers.rs`), as the binding says.

use agent_host_config::InDoubt;
use agent_host_facts::record::{ActionRequest, Decision};
use agent_host_protocol::{ApiError, ErrorCode, time};
use serde_json::{Value, json};

use super::{
    Execution,
    answers::{Resolution, WaitMode},
};
use crate::{
    policy::approval,
    record::{
        action::{Ask, AskKind, AskSubject, action_id},
        facts::Fact,
    },
};

/// The action that is asked for.
const ACTION: &str = "effect.repeat";

/// An effect in doubt, for the person who decides on it.
pub(crate) struct Doubt {
    /// Number of the call among those with effects.
    pub(crate) number: u64,
    /// The call, as words of a sentence.
    pub(crate) what: String,
    /// The same for programs.
    pub(crate) target: Value,
    /// The payload of the call.
    pub(crate) payload: Value,
}

impl Execution {
    /// Returns for each effect in doubt whether to repeat the effect. If a person has not decided yet, this function does
    /// not return: the run is parked until then.
    pub(crate) async fn may_repeat(&self, doubts: &[Doubt]) -> Result<Vec<bool>, ApiError> {
        if self.terms.in_doubt == InDoubt::Error || !self.journal.can_resume() {
            return Ok(vec![false; doubts.len()]);
        }
        let mut ids = Vec::new();
        for doubt in doubts {
            let id = action_id(self.run_id, doubt.number);
            if self.action(&id)?.is_none() {
                let request = ActionRequest { action_id: Some(id.clone()), request: self.in_time(self.ask_about(doubt)) };
                self.writer.record_fact(&Fact::ActionRequested(request)).await?;
            }
            ids.push(id);
        }
        let resolutions = self.await_answers(&ids, AskKind::EffectInDoubt, WaitMode::Park).await?;
        let repeat = |it: Resolution| matches!(it, Resolution::Answered(given) if given.decision == Decision::Repeat);
        Ok(resolutions.into_iter().map(repeat).collect())
    }

    fn ask_about(&self, doubt: &Doubt) -> Ask {
        let ruling = approval::judge(&self.terms.approvals, ACTION, &doubt.target);
        let message = format!(
            "the host stopped while {} was called, and its outcome is unknown: find out what it did, and decide whether to call it again",
            doubt.what
        );
        Ask {
            expires_at: Some(time::now().saturating_add(ruling.expires_ms.unwrap_or(self.limits.ask_expires_ms))),
            approvers: ruling.approvers,
            subject: AskSubject::EffectInDoubt {
                action: ACTION,
                message,
                payload: doubt.payload.clone(),
                target: doubt.target.clone(),
            },
        }
    }
}

/// The error that the guest receives for an effect that is not repeated.
pub(crate) fn in_doubt(what: &str) -> ApiError {
    ApiError {
        details: Some(json!({ "code": "effect_in_doubt" })),
        ..ApiError::new(
            ErrorCode::RuntimeError,
            format!(
                "the host stopped while {what} was called, and its outcome is unknown; it was not called again, since \
                 doing it twice could do harm: find out its effect, or ask a person"
            ),
        )
    }
}
