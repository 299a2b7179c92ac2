//! `[[bindings]]`: which runner answers which event, and on what terms.

use agent_host_protocol::{RunnerId, manifest::BootstrapMode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    approval::{ApprovalRule, ApproverConfig},
    name::is_name,
    pattern::{Match, Pattern},
    queue::QueuePolicy,
    resources::{ResourcePolicy, StatePolicy},
    webhooks::ResultHookConfig,
};

/// Largest `max_cost`. Millionths of it are exact in a floating-point number.
const MAX_COST: f64 = 1e9;

/// Longest label: a line of a list.
const MAX_LABEL_CHARS: usize = 100;

/// A run may be given a day, for runs that wait for people.
const MAX_DEADLINE_MS: u64 = 24 * 60 * 60 * 1000;

/// A binding: the runner that answers events, and the terms of its runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BindingConfig {
    /// Names the binding; state of scope `binding` belongs to it.
    pub id: String,
    /// Name for people, in lists of agents. Without it: the label of the runner, which other bindings may have too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The runner.
    #[schemars(with = "String")]
    pub runner: RunnerId,
    /// Bindings with a higher one come first where several match.
    #[serde(default)]
    pub priority: i32,
    /// Events that the binding answers. Default: all.
    #[serde(default, rename = "match")]
    pub matches: Match,
    /// Configuration of the runner, checked against its form.
    #[serde(default)]
    pub config: Map<String, Value>,
    /// The part of its manifest's requests that the runner may use.
    #[serde(default)]
    pub resources: ResourcePolicy,
    /// Scopes of state that the runner may use. Without it: all that it asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StatePolicy>,
    /// Abilities of the place that shows the answer, for events that do not say.
    #[serde(default)]
    pub delivery: DeliveryPolicy,
    /// Deadline of a run. Without it: `limits.run_deadline_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// True if the time in which a run waits for people, or for the client that brought a tool along, counts towards the
    /// deadline. Otherwise `limits.ask_expires_ms` bounds it.
    #[serde(default)]
    pub waiting_counts: bool,
    /// The treatment of messages of role `system` and `developer` that a client of AG-UI sends.
    #[serde(default)]
    pub client_instructions: ClientInstructions,
    /// The part of the transcript in the context of a run, within what the manifest of the runner allows. Without it: what the
    /// manifest asks for. A runner that manages its own context (`self_managed`) gets none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// The fate of a run that is active when the host stops.
    #[serde(default)]
    pub durability: Durability,
    /// Largest number of attempts (`retry`), or of resumptions without progress (`resume`), 1 to 100.
    #[serde(default = "default_max_attempts")]
    pub max_attempts: u32,
    /// The answer to a call with an effect whose outcome is unknown, since the host stopped in the middle of it, and whose
    /// repetition could do harm.
    #[serde(default)]
    pub in_doubt: InDoubt,
    /// Tokens that the model calls of one run and its children may use, read and written together. Further calls are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Cost of the model calls of one run and its children, in the currency of `models.price`. Further calls are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<f64>,
    /// Rules that say which actions are carried out at once, asked of people, or refused. The first rule that fits counts;
    /// where none does, people are asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<ApprovalRule>,
    /// Queue of its runs, and rules for executors. Default: no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueuePolicy>,
    /// Webhooks that receive the results of its runs, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deliver: Vec<String>,
}

/// The use of models that a binding allows to one run and its descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Budget {
    /// Tokens, read and written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Cost in millionths of the currency of the prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost_micros: Option<u64>,
}

/// The answer to a call with an effect whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InDoubt {
    /// The runner receives an error with `details.code` `effect_in_doubt`.
    #[default]
    Error,
    /// The run waits until a person says whether to repeat it.
    Ask,
}

/// The treatment of messages of role `system` and `developer` that a client of AG-UI sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientInstructions {
    /// The request is refused: the runner and its binding decide what the agent receives.
    #[default]
    Refuse,
    /// The runner receives them as instructions of the client, and decides what they are worth.
    Offer,
}

/// The fate of a run that is active when the host stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The run continues at the call where it was: no effect is repeated.
    #[default]
    Resume,
    /// The run starts again, as another attempt; its effects are repeated.
    Retry,
    /// The run fails with code `host_restarted`.
    Fail,
}

/// Largest number of attempts without a setting in the binding.
#[must_use]
pub const fn default_max_attempts() -> u32 {
    3
}

/// Abilities of the place that shows the answer, for events that do not say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DeliveryPolicy {
    /// Kind of the place, such as `chat` or `api`.
    pub surface: String,
    /// If true, the client shows an answer while it is generated.
    pub supports_streaming: bool,
    /// If true, the client can change a shown message.
    pub supports_edit: bool,
    /// If true, the client can show reactions.
    pub supports_reaction: bool,
    /// Largest message that the client shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_message_size: Option<u32>,
}

impl Default for DeliveryPolicy {
    fn default() -> Self {
        Self {
            surface: "api".to_owned(),
            supports_streaming: true,
            supports_edit: false,
            supports_reaction: false,
            max_message_size: None,
        }
    }
}

/// The part of the transcript in the context of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bootstrap {
    /// `recent_tail` brings the newest messages before this event; `summary_tail` brings the summary that the runner keeps in
    /// state of scope `conversation` under `context.summary`, and the newest messages after it; `none` and `current_event`
    /// bring none.
    pub mode: BootstrapMode,
    /// At most so many messages, 1 to 100.
    #[serde(default = "default_bootstrap_events")]
    pub max_events: u32,
    /// At most so many bytes of them.
    #[serde(default = "default_bootstrap_bytes")]
    pub max_bytes: u32,
}

/// Millionths of an amount that [`BindingConfig::check`] allows.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 10^15")]
fn micros(amount: f64) -> u64 {
    (amount * 1e6).round().max(1.0) as u64
}

fn default_bootstrap_events() -> u32 {
    20
}

fn default_bootstrap_bytes() -> u32 {
    32 * 1024
}

impl BindingConfig {
    /// A binding of every event to this runner, with nothing configured.
    #[must_use]
    pub fn for_runner(runner: RunnerId) -> Self {
        Self {
            id: "default".to_owned(),
            label: None,
            runner,
            priority: 0,
            matches: Match::default(),
            config: Map::new(),
            resources: ResourcePolicy::default(),
            state: None,
            delivery: DeliveryPolicy::default(),
            deadline_ms: None,
            waiting_counts: false,
            client_instructions: ClientInstructions::default(),
            bootstrap: None,
            durability: Durability::default(),
            max_attempts: default_max_attempts(),
            in_doubt: InDoubt::default(),
            max_tokens: None,
            max_cost: None,
            approvals: Vec::new(),
            queue: None,
            deliver: Vec::new(),
        }
    }
}

impl BindingConfig {
    /// The budget of each run, where the binding sets one.
    #[must_use]
    pub fn budget(&self) -> Option<Budget> {
        let budget = Budget { max_tokens: self.max_tokens, max_cost_micros: self.max_cost.map(micros) };
        (budget != Budget::default()).then_some(budget)
    }

    /// Checks what the shape alone does not say.
    ///
    /// # Errors
    /// The first value that cannot be, and what could.
    pub fn check(&self) -> Result<(), String> {
        if !is_name(&self.id) {
            return Err("`id` must have 1 to 64 letters, digits, `.`, `_` or `-`".to_owned());
        }
        let is_label =
            |label: &str| (1..=MAX_LABEL_CHARS).contains(&label.chars().count()) && !label.chars().any(char::is_control);
        if self.label.as_deref().is_some_and(|label| !is_label(label.trim())) {
            return Err(format!(
                "`label` must have 1 to {MAX_LABEL_CHARS} characters in one line; leave it out for that of the runner"
            ));
        }
        if self.deadline_ms.is_some_and(|deadline| deadline == 0 || deadline > MAX_DEADLINE_MS) {
            return Err(format!("`deadline_ms` must be between 1 and {MAX_DEADLINE_MS} (a day)"));
        }
        if !(1..=100).contains(&self.max_attempts) {
            return Err("`max_attempts` must be between 1 and 100".to_owned());
        }
        if self.max_tokens == Some(0) {
            return Err(
                "`max_tokens` must be at least 1; to grant no models, set `resources.model_ids` to an empty list".to_owned()
            );
        }
        if self.max_cost.is_some_and(|cost| !(cost > 0.0 && cost <= MAX_COST)) {
            return Err(format!("`max_cost` must be more than 0 and at most {MAX_COST}"));
        }
        if let Some(queue) = &self.queue {
            queue.check()?;
        }
        if self.bootstrap.as_ref().is_some_and(|bootstrap| !(1..=100).contains(&bootstrap.max_events)) {
            return Err("`bootstrap.max_events` must be between 1 and 100".to_owned());
        }
        for (place, rule) in self.approvals.iter().enumerate() {
            rule.check().map_err(|problem| format!("`approvals`, rule {}: {problem}", place + 1))?;
        }
        for host in self.resources.http_hosts.iter().flatten() {
            agent_host_protocol::hosts::check(host).map_err(|problem| format!("`resources.http_hosts`: {problem}"))?;
        }
        Pattern::new(&self.matches).map(drop)
    }

    /// Fails if a webhook of `deliver` is not configured.
    pub(crate) fn check_deliver(&self, known: &[ResultHookConfig]) -> Result<(), String> {
        for (place, name) in self.deliver.iter().enumerate() {
            if !known.iter().any(|hook| hook.name == *name) {
                return Err(format!("`deliver` names the webhook `{name}`, and no `[[webhooks]]` entry has that name"));
            }
            if self.deliver.iter().take(place).any(|other| other == name) {
                return Err(format!("`deliver` names the webhook `{name}` twice"));
            }
        }
        Ok(())
    }

    /// Fails if an approver of a rule is not configured.
    pub(crate) fn check_approvers(&self, known: &[ApproverConfig]) -> Result<(), String> {
        let named = self.approvals.iter().flat_map(|rule| &rule.approvers);
        match named.into_iter().find(|id| !known.iter().any(|approver| approver.id == **id)) {
            Some(id) => Err(format!("`approvals` names the approver `{id}`, and no `[[approvers]]` entry has that id")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_one_line_for_people() {
        let check = |label: &str| {
            let runner: RunnerId = "plugin:a/b/c".parse().unwrap();
            BindingConfig { label: Some(label.to_owned()), ..BindingConfig::for_runner(runner) }.check()
        };
        for label in ["Support", "Hilfe für Kunden", &"ä".repeat(100)] {
            assert_eq!(check(label), Ok(()), "{label}");
        }
        for label in ["", " ", "two\nlines", &"x".repeat(101)] {
            assert!(check(label).unwrap_err().starts_with("`label` must have 1 to 100 characters"), "{label}");
        }
    }
}
