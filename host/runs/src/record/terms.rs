//! The terms of a run: what was settled when it was created, and holds whatever is configured later.

use std::borrow::Cow;

use agent_host_ledger::JsonParts;
use agent_host_protocol::{
    Grant,
    context::Delivery,
    encoded::JsonText,
    grant::ConversationKey,
    run::{Execution, RunFailure},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use agent_host_config::{ApprovalRule, Bootstrap, Budget, Durability, InDoubt, QueuePolicy, default_max_attempts};

/// Stored with the run in the same commit, and read by everything that happens to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// The grant of the run.
    pub grant: Grant,
    /// The configuration of its binding, with the defaults of the runner's form.
    pub config: Map<String, Value>,
    /// Capabilities of the client that shows the answer.
    pub delivery: Delivery,
    /// Time limit of the guest, in ms.
    pub deadline_ms: u64,
    /// True if the time in which the run waits for people or for its client counts towards the deadline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waiting_counts: bool,
    /// The part of the transcript in the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// The side that decided on that part: the manifest or the binding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline_reason: Option<Cow<'static, str>>,
    /// Behaviour if the host stops while the run is active.
    #[serde(default)]
    pub durability: Durability,
    /// Largest number of attempts, and of resumptions without progress.
    #[serde(default = "default_max_attempts")]
    pub max_attempts: u32,
    /// Handling of effects in doubt.
    #[serde(default)]
    pub in_doubt: InDoubt,
    /// The tokens and the cost that the run and its descendants may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// The API key whose budget pays for the run and its descendants, by id. `None` where the run was begun without such a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged_key: Option<String>,
    /// The rules for platform actions: execute at once, ask people, or refuse.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<ApprovalRule>,
    /// The place of execution: the host, or executors.
    #[serde(default, skip_serializing_if = "Execution::is_host")]
    pub execution: Execution,
    /// The policy of its queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Box<QueuePolicy>>,
    /// True if the run was created for a runner by name, without a binding of the configuration.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ad_hoc: bool,
    /// True if a client reads the run as a stream, and has no other way to stop it than to leave.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub streamed: bool,
    /// The webhooks that receive the results, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deliver: Vec<String>,
    /// The number of ancestors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub depth: u32,
    /// The failure of a run that cannot be executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<RunFailure>,
}

/// The part of [`Terms`] that runs of one binding do not have alike. Read as one object with the rest.
#[derive(Serialize)]
struct Own<'a> {
    grant: GrantOwner<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery: Option<ReplyTarget<'a>>,
}

#[derive(Serialize)]
struct ReplyTarget<'a> {
    reply_target: &'a Value,
}

/// The owner of a [`Grant`].
#[derive(Serialize)]
struct GrantOwner<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation: &'a Option<ConversationKey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: &'a Option<String>,
}

impl Terms {
    /// As the ledger stores them: what belongs to this run alone, apart from what the runs of its binding have alike. The
    /// terms are the same afterwards.
    ///
    /// # Errors
    /// Never fails for terms that came from JSON or from a binding.
    pub fn stored(&mut self) -> serde_json::Result<JsonParts> {
        let grant = &mut self.grant;
        let (workspace, conversation) = (grant.workspace.take(), grant.conversation.take());
        let (actor, subject) = (grant.actor.take(), grant.subject.take());
        let reply_target = self.delivery.reply_target.take();
        let whose = GrantOwner { workspace: &workspace, conversation: &conversation, actor: &actor, subject: &subject };
        let delivery = reply_target.as_ref().map(|reply_target| ReplyTarget { reply_target });
        let own = JsonText::of(&Own { grant: whose, delivery });
        let shared = JsonText::of(self);
        let grant = &mut self.grant;
        (grant.workspace, grant.conversation, grant.actor, grant.subject) = (workspace, conversation, actor, subject);
        self.delivery.reply_target = reply_target;
        Ok(JsonParts { shared: shared?, own: own? })
    }
}

fn is_zero(depth: &u32) -> bool {
    *depth == 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn terms_are_stored_apart_from_what_belongs_to_one_run_and_stay_as_they_are() {
        let conversation = json!({ "conversation": "c", "thread": "t" });
        let mut terms: Terms = serde_json::from_value(json!({
            "grant": {
                "runner_id": "plugin:a/b/c", "binding_id": "main", "component": "sha256:00", "permissions": {}, "models": ["m"],
                "workspace": "w", "conversation": conversation, "actor": "ada", "subject": "s",
            },
            "config": { "tone": "dry" },
            "delivery": { "surface": "chat", "reply_target": { "chat": 7 } },
            "deadline_ms": 1_000,
        }))
        .unwrap();
        let before = terms.clone();
        let JsonParts { shared, own } = terms.stored().unwrap();
        assert_eq!(terms, before);
        let read = |text: JsonText| serde_json::from_str::<Value>(text.get()).unwrap();
        assert_eq!(
            read(own),
            json!({
                "grant": { "workspace": "w", "conversation": conversation, "actor": "ada", "subject": "s" },
                "delivery": { "reply_target": { "chat": 7 } },
            })
        );
        // The other fields are equal for every actor and place.
        let mut other = before;
        other.grant.conversation = None;
        other.grant.actor = Some("bob".to_owned());
        other.delivery.reply_target = None;
        assert_eq!(read(other.stored().unwrap().shared), read(shared));
    }
}
