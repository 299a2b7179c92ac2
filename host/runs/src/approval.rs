//! Approval: what of that which a run wants is done at once, asked of people, or refused; and who may answer.

use std::collections::BTreeMap;

use agent_host_providers::secret::{Secret, SecretError, SecretRef};
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The action under which questions of runs are judged.
pub(crate) const QUESTION: &str = "interactions.ask";

/// What becomes of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalPolicy {
    /// It is done.
    Allow,
    /// A person says whether it is done.
    Ask,
    /// It is refused.
    Deny,
}

/// What becomes of some actions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRule {
    /// Name of the action, whole or with `*` at its end. `interactions.ask` stands for questions to people, `effect.repeat`
    /// for effects in doubt.
    pub action: String,
    /// Fields of the target, each a regular expression that must match the whole of its text. A target without the field
    /// does not fit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub target: BTreeMap<String, String>,
    /// What becomes of it.
    pub policy: ApprovalPolicy,
    /// How long people have to answer. Without it: `limits.ask_expires_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// Who may answer, by the ids of `[[approvers]]`. Without any: each of them.
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
                "`{QUESTION}` is a question: it is asked (`ask`) or refused (`deny`), nobody can answer it by `allow`"
            ));
        }
        if self.expires_ms == Some(0) {
            return Err("`expires_ms` must be at least 1".to_owned());
        }
        self.target.iter().try_for_each(|(field, text)| {
            whole(text).map(drop).map_err(|error| format!("`target.{field}` is not a regular expression: {error}"))
        })
    }

    fn fits(&self, action: &str, target: &Value) -> bool {
        let named = match self.action.strip_suffix('*') {
            Some(beginning) => action.starts_with(beginning),
            None => self.action == action,
        };
        named
            && self.target.iter().all(|(field, text)| {
                let value = match target.get(field) {
                    Some(Value::String(text)) => text.clone(),
                    Some(Value::Null) | None => return false,
                    Some(other) => other.to_string(),
                };
                // Checked when the configuration was read. One that cannot be compiled any more fits nothing.
                whole(text).is_ok_and(|regex| regex.is_match(&value))
            })
    }
}

fn whole(text: &str) -> Result<Regex, regex::Error> {
    // The size limit keeps a line of configuration from taking the memory of the host.
    regex::RegexBuilder::new(&format!("^(?:{text})$")).size_limit(1 << 20).build()
}

/// What becomes of one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ruling {
    pub(crate) policy: ApprovalPolicy,
    pub(crate) expires_ms: Option<u64>,
    pub(crate) approvers: Vec<String>,
}

/// Judges an action by the rules of a run: the first that fits; where none does, people are asked.
pub(crate) fn judge(rules: &[ApprovalRule], action: &str, target: &Value) -> Ruling {
    match rules.iter().find(|rule| rule.fits(action, target)) {
        Some(rule) => Ruling { policy: rule.policy, expires_ms: rule.expires_ms, approvers: rule.approvers.clone() },
        None => Ruling { policy: ApprovalPolicy::Ask, expires_ms: None, approvers: Vec::new() },
    }
}

/// Somebody who may answer what runs ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApproverConfig {
    /// Who it is: what the record says.
    pub id: String,
    /// What proves it, sent as `Authorization: Bearer TOKEN`.
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

/// Everyone who may answer.
#[derive(Debug)]
pub(crate) struct Approvers(Vec<(String, Result<Secret, SecretError>)>);

impl Approvers {
    pub(crate) fn new(configs: &[ApproverConfig]) -> Self {
        Self(configs.iter().map(|config| (config.id.clone(), config.token.resolve())).collect())
    }

    /// Whether nobody is named: then whoever reaches the API may answer.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose token this is.
    pub(crate) fn who(&self, token: &str) -> Option<&str> {
        let same = |secret: &Secret| same_text(secret.expose().as_bytes(), token.as_bytes());
        self.0.iter().find(|(_, secret)| secret.as_ref().is_ok_and(same)).map(|(id, _)| id.as_str())
    }

    /// What an operator should look at.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|(id, secret)| secret.as_ref().err().map(|error| format!("approver `{id}`: {error}")))
    }
}

/// Compares without telling by its time where the difference is: the digests of both, byte by byte.
fn same_text(a: &[u8], b: &[u8]) -> bool {
    use sha2::{Digest, Sha256};
    Sha256::digest(a).iter().zip(Sha256::digest(b).iter()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(action: &str, target: &[(&str, &str)], policy: ApprovalPolicy) -> ApprovalRule {
        let target = target.iter().map(|(field, text)| ((*field).to_owned(), (*text).to_owned())).collect();
        ApprovalRule { action: action.into(), target, policy, expires_ms: None, approvers: Vec::new() }
    }

    #[test]
    fn the_first_rule_that_fits_counts_and_people_are_asked_where_none_does() {
        use ApprovalPolicy::{Allow, Ask, Deny};
        let rules = [
            rule("issue.close", &[("repo", "acme/.*"), ("number", "[0-9]+")], Allow),
            rule("issue.*", &[("repo", "acme/secret")], Deny),
            rule("message.send", &[], Allow),
        ];
        for (action, target, policy) in [
            ("issue.close", json!({ "repo": "acme/site", "number": 4 }), Allow),
            ("issue.close", json!({ "repo": "acme/site" }), Ask),
            ("issue.close", json!({ "repo": "x/acme/site", "number": 4 }), Ask),
            ("issue.open", json!({ "repo": "acme/secret" }), Deny),
            ("issue.open", json!({ "repo": ["acme/secret"] }), Ask),
            ("issue.open", json!("acme/secret"), Ask),
            ("message.send", json!(null), Allow),
            ("message.sends", json!(null), Ask),
        ] {
            assert_eq!(judge(&rules, action, &target).policy, policy, "{action} {target}");
        }
    }

    #[test]
    fn what_cannot_be_is_said() {
        assert!(rule("", &[], ApprovalPolicy::Ask).check().is_err());
        assert!(rule("a", &[("x", "(")], ApprovalPolicy::Ask).check().unwrap_err().contains("target.x"));
        assert!(rule(QUESTION, &[], ApprovalPolicy::Allow).check().is_err());
    }
}
