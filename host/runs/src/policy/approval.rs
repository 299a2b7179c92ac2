//! Approval: what of that which a run wants is done at once, asked of people, or refused; and who may answer.

use agent_host_config::{ApprovalPolicy, ApprovalRule, ApproverConfig, whole};
use agent_host_providers::secret::{Secret, SecretError};
use serde_json::Value;

/// The ruling on one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ruling {
    pub(crate) policy: ApprovalPolicy,
    pub(crate) expires_ms: Option<u64>,
    pub(crate) approvers: Vec<String>,
}

/// Judges an action by the rules of a run: the first that fits; where none does, people are asked.
pub(crate) fn judge(rules: &[ApprovalRule], action: &str, target: &Value) -> Ruling {
    match rules.iter().find(|rule| fits(rule, action, target)) {
        Some(rule) => Ruling { policy: rule.policy, expires_ms: rule.expires_ms, approvers: rule.approvers.clone() },
        None => Ruling { policy: ApprovalPolicy::Ask, expires_ms: None, approvers: Vec::new() },
    }
}

/// True if a rule matches an action.
fn fits(rule: &ApprovalRule, action: &str, target: &Value) -> bool {
    let named = match rule.action.strip_suffix('*') {
        Some(beginning) => action.starts_with(beginning),
        None => rule.action == action,
    };
    named
        && rule.target.iter().all(|(field, text)| {
            let value = match target.get(field) {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Null) | None => return false,
                Some(other) => other.to_string(),
            };
            // The pattern was checked with the configuration. A pattern that does not compile any more matches no value.
            whole(text).is_ok_and(|regex| regex.is_match(&value))
        })
}

/// All configured approvers.
#[derive(Debug)]
pub(crate) struct Approvers(Vec<(String, Result<Secret, SecretError>)>);

impl Approvers {
    pub(crate) fn new(configs: &[ApproverConfig]) -> Self {
        Self(configs.iter().map(|config| (config.id.clone(), Secret::read(&config.token))).collect())
    }

    /// True without configured approvers: every caller with access to the API may answer then.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose token this is.
    pub(crate) fn approver(&self, token: &str) -> Option<&str> {
        let same = |secret: &Secret| same_text(secret.expose().as_bytes(), token.as_bytes());
        self.0.iter().find(|(_, secret)| secret.as_ref().is_ok_and(same)).map(|(id, _)| id.as_str())
    }

    /// Problems that an operator should look at.
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
}
