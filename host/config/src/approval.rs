//! `approvals` of a binding, and `[[approvers]]`: what of that which a run wants is done at once, asked of people, or
//! refused; and who may answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{pattern::whole, secret::SecretRef};

/// The action under which questions of runs are judged.
pub const QUESTION: &str = "interactions.ask";

/// The ruling on an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalPolicy {
    /// The action is executed.
    Allow,
    /// A person says whether it is done.
    Ask,
    /// The action is refused.
    Deny,
}

/// The policy for actions of some kinds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRule {
    /// Name of the action, whole or with `*` at its end. `interactions.ask` means questions to people, `effect.repeat`
    /// effects in doubt.
    pub action: String,
    /// Fields of the target, each a regular expression that must match the whole of its text. A target without the field
    /// does not fit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub target: BTreeMap<String, String>,
    /// Carry the action out at once, ask people, or refuse it.
    pub policy: ApprovalPolicy,
    /// Time for people to answer, in ms. Default: `limits.ask_expires_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// Ids of the `[[approvers]]` that may answer. Without any: each of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<String>,
}

impl ApprovalRule {
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.action.is_empty() {
            return Err("`action` names an action, such as `message.*`".to_owned());
        }
        if self.action == QUESTION && self.policy == ApprovalPolicy::Allow {
            return Err(format!(
                "`{QUESTION}` is a question: it can be asked (`ask`) or refused (`deny`), but `allow` has no answer for it"
            ));
        }
        if self.expires_ms == Some(0) {
            return Err("`expires_ms` must be at least 1".to_owned());
        }
        self.target.iter().try_for_each(|(field, text)| {
            whole(text).map(drop).map_err(|error| format!("`target.{field}` is not a regular expression: {error}"))
        })
    }
}

/// A person who may answer actions of runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApproverConfig {
    /// Id of the approver in the record.
    pub id: String,
    /// The secret that the approver sends as `Authorization: Bearer TOKEN`.
    pub token: SecretRef,
}

impl ApproverConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
        if self.id.is_empty() || self.id.len() > 64 || !self.id.chars().all(named) {
            return Err("`id` must have 1 to 64 letters, digits, `.`, `_`, `-` or `@`".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(action: &str, target: &[(&str, &str)], policy: ApprovalPolicy) -> ApprovalRule {
        let target = target.iter().map(|(field, text)| ((*field).to_owned(), (*text).to_owned())).collect();
        ApprovalRule { action: action.into(), target, policy, expires_ms: None, approvers: Vec::new() }
    }

    #[test]
    fn invalid_values_are_reported() {
        assert!(rule("", &[], ApprovalPolicy::Ask).check().is_err());
        assert!(rule("a", &[("x", "(")], ApprovalPolicy::Ask).check().unwrap_err().contains("target.x"));
        assert!(rule(QUESTION, &[], ApprovalPolicy::Allow).check().is_err());
    }
}
