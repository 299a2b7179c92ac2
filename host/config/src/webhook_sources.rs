//! `[[webhook_sources]]`: signed requests of other systems, mapped to events.

use std::collections::BTreeMap;

use http::HeaderName;
use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::{
    name::is_name,
    pattern::whole,
    secret::SecretRef,
    signature::{SignatureConfig, SignatureScheme},
    template::Template,
};

/// A system that sends signed requests, and what becomes of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookSourceConfig {
    /// Requests come to `POST /api/v1/hooks/NAME`: 1 to 64 letters, digits, `.`, `_` or `-`.
    pub name: String,
    /// Key of the signatures: `whsec_` and base64, or any other text.
    pub secret: SecretRef,
    /// Signature scheme of the requests.
    pub signature: SignatureConfig,
    /// Type of the event: a template, as all that follow but `workspace_id`.
    pub event_type: String,
    /// Conversation of the event. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    /// Thread of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Workspace of the event, a fixed text: a sender must not choose a workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    /// Id of the actor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_id: Option<String>,
    /// A name to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_name: Option<String>,
    /// Type of the subject: `issue`, `message`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_type: Option<String>,
    /// Id of the subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_id: Option<String>,
    /// The input of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Value that repetitions of a request share. Without it: `webhook-id` (`standard`), `x-github-delivery` (`github`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Facts of the event. A template that is one `{/pointer}` may be any JSON.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
    /// Requests that do not fit all of these are answered, and ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<Condition>,
    /// If true, the data of the event contains the whole body, as `payload`.
    #[serde(default = "yes")]
    pub include_payload: bool,
}

const fn yes() -> bool {
    true
}

/// A condition on requests: others make no event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// A template.
    pub value: String,
    /// A regular expression that must match the whole of its text. A template without a value does not fit.
    pub matches: String,
}

/// The mapping from a request to an event.
#[derive(Debug)]
pub struct EventMapping {
    /// Type of the event.
    pub event_type: Template,
    /// Conversation of the event.
    pub conversation_id: Option<Template>,
    /// Thread of the event.
    pub thread_id: Option<Template>,
    /// Workspace of the event, a fixed text.
    pub workspace_id: Option<String>,
    /// Id of the actor.
    pub actor_id: Option<Template>,
    /// A name to show.
    pub actor_name: Option<Template>,
    /// Type of the subject.
    pub subject_type: Option<Template>,
    /// Id of the subject.
    pub subject_id: Option<Template>,
    /// The input.
    pub text: Option<Template>,
    /// Idempotency key. If configured, a request without a value for it is refused.
    pub idempotency_key: Option<Template>,
    /// Header that serves as idempotency key without a configured one.
    pub delivery_id: Option<HeaderName>,
    /// Facts, by name.
    pub data: Vec<(String, Template)>,
    /// Conditions on requests: a template, and the expression that its text must match.
    pub when: Vec<(Template, Regex)>,
    /// True if the data of the event contains the whole body.
    pub include_payload: bool,
    /// True if the mapping reads the body.
    pub reads_body: bool,
}

impl WebhookSourceConfig {
    /// Checks the values. Reads no secret.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !is_name(&self.name) {
            return Err("`name` must have 1 to 64 letters, digits, `.`, `_` or `-`".to_owned());
        }
        SignatureScheme::new(&self.signature)?;
        EventMapping::new(self).map(drop)
    }
}

impl EventMapping {
    /// Reads the templates of a source.
    ///
    /// # Errors
    /// Names the key that cannot be.
    pub fn new(config: &WebhookSourceConfig) -> Result<Self, String> {
        let template = |field: &str, text: &str| Template::parse(text).map_err(|problem| format!("`{field}`: {problem}"));
        let optional = |field: &str, text: &Option<String>| text.as_deref().map(|text| template(field, text)).transpose();
        let data = config.data.iter().map(|(name, text)| {
            if matches!(name.as_str(), "payload" | "webhook") {
                return Err(format!("`data.{name}`: the host writes this itself; take another name"));
            }
            Ok((name.clone(), template(&format!("data.{name}"), text)?))
        });
        let when = config.when.iter().zip(1..).map(|(condition, place)| {
            let regex = whole(&condition.matches)
                .map_err(|error| format!("`when`, condition {place}: `matches` is not a regular expression: {error}"))?;
            Ok((template(&format!("when`, condition {place}, `value"), &condition.value)?, regex))
        });
        let mut mapping = Self {
            event_type: template("event_type", &config.event_type)?,
            conversation_id: optional("conversation_id", &config.conversation_id)?,
            thread_id: optional("thread_id", &config.thread_id)?,
            workspace_id: config.workspace_id.clone(),
            actor_id: optional("actor_id", &config.actor_id)?,
            actor_name: optional("actor_name", &config.actor_name)?,
            subject_type: optional("subject_type", &config.subject_type)?,
            subject_id: optional("subject_id", &config.subject_id)?,
            text: optional("text", &config.text)?,
            idempotency_key: optional("idempotency_key", &config.idempotency_key)?,
            delivery_id: config.signature.delivery_id(),
            data: data.collect::<Result<_, String>>()?,
            when: when.collect::<Result<_, String>>()?,
            include_payload: config.include_payload,
            reads_body: false,
        };
        if mapping.subject_id.is_some() && mapping.subject_type.is_none() {
            return Err("`subject_id` needs `subject_type`: what it is about, such as `issue`".to_owned());
        }
        if mapping.thread_id.is_some() && mapping.conversation_id.is_none() {
            return Err("`thread_id` needs `conversation_id`: a thread is one of a conversation".to_owned());
        }
        let single = [
            &mapping.conversation_id,
            &mapping.thread_id,
            &mapping.actor_id,
            &mapping.actor_name,
            &mapping.subject_type,
            &mapping.subject_id,
            &mapping.text,
            &mapping.idempotency_key,
        ];
        let all = single.into_iter().flatten().chain([&mapping.event_type]);
        let all = all.chain(mapping.data.iter().map(|(_, it)| it)).chain(mapping.when.iter().map(|(it, _)| it));
        let templates: Vec<_> = all.collect();
        let reads_body = mapping.include_payload || templates.iter().any(|template| template.reads_body());
        drop(templates);
        mapping.reads_body = reads_body;
        Ok(mapping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Result<(), String> {
        let text = format!("name = \"git\"\nsecret = {{ env = \"GIT\" }}\n{text}");
        let config: WebhookSourceConfig = toml::from_str(&text).map_err(|error| error.to_string())?;
        config.check()
    }

    #[test]
    fn a_configuration_that_cannot_be_is_refused_with_the_place() {
        let custom = |more: &str| {
            format!("event_type = \"a\"\nsignature = {{ header = \"x\", encoding = \"hex\", algorithm = \"hmac-sha256\"{more} }}")
        };
        for (text, says) in [
            ("signature = \"standard\"\nevent_type = \"{type}\"".to_owned(), "`event_type`: `{type}` is unknown"),
            ("signature = \"md5\"\nevent_type = \"a\"".to_owned(), "signature"),
            ("signature = \"standard\"".to_owned(), "event_type"),
            (
                "signature = \"standard\"\nevent_type = \"a\"\nwhen = [{ value = \"x\", matches = \"(\" }]".to_owned(),
                "condition 1",
            ),
            (
                "signature = \"standard\"\nevent_type = \"a\"\nwhen = [{ value = \"{x\", matches = \"x\" }]".to_owned(),
                "condition 1",
            ),
            ("signature = \"standard\"\nevent_type = \"a\"\ndata = { a = \"{/~}\" }".to_owned(), "`data.a`"),
            ("signature = \"standard\"\nevent_type = \"a\"\ndata = { payload = \"x\" }".to_owned(), "`data.payload`"),
            ("signature = \"standard\"\nevent_type = \"a\"\nsubject_id = \"x\"".to_owned(), "subject_type"),
            ("signature = \"standard\"\nevent_type = \"a\"\nthread_id = \"x\"".to_owned(), "conversation_id"),
            (custom(", timestamp_header = \"a b\""), "timestamp_header"),
            (custom(", signed = \"{timestamp}\""), "{body}"),
            (custom(", signed = \"{timestamp}{body}\""), "{timestamp}"),
            (custom(", timestamp_header = \"t\", signed = \"{body}\""), "{timestamp}"),
            (custom(", signed = \"{nonce}{body}\""), "{nonce}"),
        ] {
            let error = source(&text).expect_err(&text);
            assert!(error.contains(says), "{text}\n→ {error}");
        }
        assert!(source(&custom("")).is_ok());
    }
}
