//! Webhook sources: signed requests of other systems, mapped to events.
//!
//! The signature is checked over the original body, before the body is parsed. The mapping uses values that a sender can
//! choose; the workspace is never among them.

use std::{fmt, sync::Arc};

use agent_host_config::{ConfigError, EventMapping, SignatureScheme, Template, WebhookSourceConfig};
use agent_host_ledger::Idempotency;
use agent_host_protocol::{
    Timestamp,
    context::{Actor, Conversation, Input, Subject},
    event::Envelope,
    limits::{MAX_JSON_DEPTH, is_shallow},
};
use agent_host_providers::{secret::Secret, webhook::key};
use http::HeaderMap;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    signature::{accepts, only},
    template::TemplateValues,
};
use crate::record::HostError;

/// The longest idempotency key of the ledger, in bytes.
const MAX_KEY: usize = 255;

/// A request to a webhook source.
pub struct HookRequest<'a> {
    /// Headers of the request.
    pub headers: &'a HeaderMap,
    /// Query parameters, decoded.
    pub query: &'a [(String, String)],
    /// Body, byte for byte.
    pub body: &'a [u8],
}

/// The reason why a request was not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HookError {
    /// No source has the name.
    #[error("there is no webhook source with this name")]
    Unknown,
    /// The signature is missing or wrong. The answer does not say which, to help no attacker.
    #[error("the request is not signed as it must be")]
    Unsigned,
    /// The secret cannot be read.
    #[error("the host cannot check signatures of this source now; its log has the reason")]
    NoSecret,
    /// The body is no JSON.
    #[error("the body is not JSON: {0}")]
    NoJson(String),
    /// The mapping finds no value for something that must have one, or one that cannot be.
    #[error("{message}")]
    Unmapped {
        /// The member of the mapping.
        field: String,
        /// Description of the problem.
        message: String,
    },
    /// The event was not accepted.
    #[error(transparent)]
    NotAccepted(#[from] HostError),
}

/// A source, ready to be asked.
#[derive(Debug)]
pub(crate) struct HookSource {
    pub(crate) name: String,
    key: Result<Key, String>,
    scheme: SignatureScheme,
    pub(crate) mapping: EventMapping,
}

/// The secret of signatures. `Debug` does not show it.
struct Key(Vec<u8>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The sources of a configuration. A secret that cannot be read is a problem of its source and no error.
pub(crate) fn open(configs: &[WebhookSourceConfig]) -> Result<Vec<Arc<HookSource>>, ConfigError> {
    let source = |config: &WebhookSourceConfig| {
        let problem = |problem| ConfigError::Invalid(format!("webhook source `{}`: {problem}", config.name));
        let secret = Secret::read(&config.secret).map_err(|error| error.to_string());
        Ok(Arc::new(HookSource {
            name: config.name.clone(),
            key: secret.and_then(|secret| key(&secret)).map(Key),
            scheme: SignatureScheme::new(&config.signature).map_err(problem)?,
            mapping: EventMapping::new(config).map_err(problem)?,
        }))
    };
    configs.iter().map(source).collect()
}

impl HookSource {
    pub(crate) fn problem(&self) -> Option<String> {
        let problem = self.key.as_ref().err()?;
        Some(format!("webhook source `{}` cannot check signatures, and refuses all requests: {problem}", self.name))
    }

    pub(crate) fn event(
        &self,
        request: &HookRequest<'_>,
        now: Timestamp,
    ) -> Result<Option<(Envelope, Option<Idempotency>)>, HookError> {
        let Ok(Key(key)) = &self.key else { return Err(HookError::NoSecret) };
        if !accepts(&self.scheme, key, request, now) {
            return Err(HookError::Unsigned);
        }
        let body: Value = if self.mapping.reads_body {
            let body = serde_json::from_slice(request.body).map_err(|error| HookError::NoJson(error.to_string()))?;
            // The body becomes a value within `data`.
            if !is_shallow(&json!([&body])) {
                return Err(HookError::Unmapped {
                    field: "body".to_owned(),
                    message: format!("the body nests deeper than {} levels", MAX_JSON_DEPTH - 1),
                });
            }
            body
        } else {
            Value::Null
        };
        let filling = TemplateValues { headers: request.headers, query: request.query, body: &body };
        if !self.matches(&filling) {
            return Ok(None);
        }
        let idempotency = self.idempotency(&filling, request.body)?;
        Ok(Some((self.envelope(&filling)?, idempotency)))
    }
}

impl HookSource {
    fn matches(&self, filling: &TemplateValues<'_>) -> bool {
        self.mapping.when.iter().all(|(template, regex)| filling.text(template).is_ok_and(|text| regex.is_match(&text)))
    }

    fn envelope(&self, filling: &TemplateValues<'_>) -> Result<Envelope, HookError> {
        let required = |field: &str, template: &Template| {
            let unmapped = |missing| HookError::Unmapped { field: field.to_owned(), message: format!("`{field}`: {missing}") };
            filling.text(template).map_err(unmapped)
        };
        let id = |field: &str, template: &Option<Template>| template.as_ref().map(|it| required(field, it)).transpose();
        let optional = |template: &Option<Template>| template.as_ref().and_then(|it| filling.text(it).ok());

        let conversation = Conversation {
            conversation_id: id("conversation_id", &self.mapping.conversation_id)?,
            thread_id: id("thread_id", &self.mapping.thread_id)?,
            workspace_id: self.mapping.workspace_id.clone(),
            ..Conversation::default()
        };
        let actor = Actor {
            actor_type: "user".to_owned(),
            actor_id: id("actor_id", &self.mapping.actor_id)?,
            actor_name: optional(&self.mapping.actor_name),
            metadata: serde_json::Map::new(),
        };
        let subject_id = id("subject_id", &self.mapping.subject_id)?;
        let subject = optional(&self.mapping.subject_type).map(|subject_type| Subject {
            subject_type,
            subject_id,
            data: serde_json::Map::new(),
        });
        let mapped = self.mapping.data.iter().filter_map(|(name, template)| Some((name.clone(), filling.value(template).ok()?)));
        let mut data: serde_json::Map<_, _> = mapped.collect();
        data.insert("webhook".to_owned(), json!({ "name": self.name }));
        if self.mapping.include_payload {
            data.insert("payload".to_owned(), filling.body.clone());
        }
        let envelope = Envelope {
            event_type: required("event_type", &self.mapping.event_type)?,
            data,
            conversation: Some(conversation).filter(|it| *it != Conversation::default()),
            actor: Some(actor).filter(|it| it.actor_id.is_some() || it.actor_name.is_some()),
            subject,
            input: Input { text: optional(&self.mapping.text), ..Input::default() },
            ..Envelope::message("", "platform")
        };
        envelope.check().map_err(|message| {
            let field = message.split('`').nth(1).unwrap_or("body").to_owned();
            HookError::Unmapped { field, message }
        })?;
        Ok(envelope)
    }

    /// The idempotency key of a request, by which a repeated request is recognized.
    fn idempotency(&self, filling: &TemplateValues<'_>, body: &[u8]) -> Result<Option<Idempotency>, HookError> {
        let delivery_key = match (&self.mapping.idempotency_key, &self.mapping.delivery_id) {
            (Some(template), _) => Some(filling.text(template).map_err(|missing| HookError::Unmapped {
                field: "idempotency_key".to_owned(),
                message: format!("`idempotency_key`: {missing}"),
            })?),
            (None, Some(header)) => only(filling.headers, header.as_str()).filter(|id| !id.is_empty()).map(str::to_owned),
            (None, None) => None,
        };
        let Some(delivery_key) = delivery_key else { return Ok(None) };
        let name = &self.name;
        // A client's own key has no spaces, so no client can be in the way of a source.
        let mut key = format!("hook/{name} {delivery_key}");
        if key.len() > MAX_KEY {
            let digest: String = Sha256::digest(delivery_key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
            key = format!("hook/{name} sha256 {digest}");
        }
        Ok(Some(Idempotency { key, body_hash: Sha256::digest(body).into() }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use agent_host_providers::webhook::sign;
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use http::HeaderName;
    use tempfile::NamedTempFile;

    use super::*;

    const NOW: Timestamp = 1_700_000_000_000;
    const SECRET: &str = "It's a Secret to Everybody";

    /// A source of this configuration, with [`SECRET`].
    fn source(text: &str) -> Result<Arc<HookSource>, String> {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(SECRET.as_bytes()).unwrap();
        let text = format!("name = \"git\"\nsecret = {{ file = {:?} }}\n{text}", file.path());
        let config: WebhookSourceConfig = toml::from_str(&text).map_err(|error| error.to_string())?;
        open(&[config]).map(|mut sources| sources.remove(0)).map_err(|error| error.to_string())
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    fn ask(
        source: &HookSource,
        pairs: &[(&str, &str)],
        body: &str,
    ) -> Result<Option<(Envelope, Option<Idempotency>)>, HookError> {
        source.event(&HookRequest { headers: &headers(pairs), query: &[], body: body.as_bytes() }, NOW)
    }

    fn digest(parts: &[&str]) -> String {
        // With the signature of Standard Webhooks as the reference: it is HMAC-SHA256 as well.
        let whole = parts.concat();
        let (id, rest) = whole.split_once('.').unwrap();
        let (at, body) = rest.split_once('.').unwrap();
        let signature = sign(SECRET.as_bytes(), id, at.parse().unwrap(), body.as_bytes());
        STANDARD.decode(&signature[3..]).unwrap().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_standard_webhook_is_signed_now() {
        let source = source("signature = \"standard\"\nevent_type = \"order.{/kind}\"").unwrap();
        let body = r#"{"kind":"paid"}"#;
        let at = |offset: i64| (1_700_000_000_i64 + offset).to_string();
        let signature = |offset: i64| sign(SECRET.as_bytes(), "m1", (1_700_000_000 + offset) as u64, body.as_bytes());
        let try_at = |offset: i64| {
            ask(
                &source,
                &[("webhook-id", "m1"), ("webhook-timestamp", &at(offset)), ("webhook-signature", &signature(offset))],
                body,
            )
        };
        let (envelope, key) = try_at(0).unwrap().unwrap();
        assert_eq!((envelope.event_type.as_str(), envelope.source.as_str()), ("order.paid", "platform"));
        assert_eq!(envelope.data["payload"], json!({ "kind": "paid" }));
        assert_eq!(key.unwrap().key, "hook/git m1");
        assert!(try_at(300).is_ok() && try_at(-300).is_ok());
        for offset in [301, -301, -100_000] {
            assert!(matches!(try_at(offset), Err(HookError::Unsigned)), "{offset}");
        }
        let (right, zero, one) = (signature(0), at(0), at(1));
        let (right, zero, one) = (right.as_str(), zero.as_str(), one.as_str());
        for wrong in [
            &[("webhook-id", "m2"), ("webhook-timestamp", zero), ("webhook-signature", right)][..],
            &[("webhook-id", "m1"), ("webhook-timestamp", one), ("webhook-signature", right)],
            &[("webhook-id", "m1"), ("webhook-timestamp", zero)],
            &[("webhook-id", "m1"), ("webhook-signature", right)],
            &[("webhook-timestamp", zero), ("webhook-signature", right)],
            &[],
        ] {
            assert!(matches!(ask(&source, wrong, body), Err(HookError::Unsigned)), "{wrong:?}");
        }
    }

    #[test]
    fn the_example_of_github_is_taken() {
        let source = source(
            "signature = \"github\"\nevent_type = \"github.{header:x-github-event}\"\ninclude_payload = false\ntext = \"hi\"",
        )
        .unwrap();
        let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let pairs = [("x-hub-signature-256", signature), ("x-github-event", "push"), ("x-github-delivery", "d1")];
        // No template looks into the body, so it need not be JSON.
        let (envelope, key) = ask(&source, &pairs, "Hello, World!").unwrap().unwrap();
        assert_eq!((envelope.event_type.as_str(), key.unwrap().key.as_str()), ("github.push", "hook/git d1"));
        assert_eq!(envelope.input.text.as_deref(), Some("hi"));
        let upper = signature.to_uppercase();
        for (signature, body) in [
            (signature, "Hello, World?"),
            (upper.as_str(), "Hello, World!"),
            (&signature[7..], "Hello, World!"),
            (&signature[..70], "Hello, World!"),
            ("sha256=", "Hello, World!"),
        ] {
            let pairs = [("x-hub-signature-256", signature), ("x-github-event", "push")];
            assert!(matches!(ask(&source, &pairs, body), Err(HookError::Unsigned)), "{signature}");
        }
    }

    #[test]
    fn other_signatures_are_described() {
        let slack = "signature = { header = \"x-sig\", prefix = \"v0=\", encoding = \"hex\", algorithm = \"hmac-sha256\", \
                     timestamp_header = \"x-at\", signed = \"v0.{timestamp}.{body}\" }\nevent_type = \"slack.event\"";
        let source = source(slack).unwrap();
        let signature = format!("v0={}", digest(&["v0.1700000000.", "{}"]));
        let pairs = [("x-sig", signature.as_str()), ("x-at", "1700000000")];
        assert!(ask(&source, &pairs, "{}").unwrap().is_some());
        let signature = signature.as_str();
        for pairs in
            [&[("x-sig", signature)][..], &[("x-sig", signature), ("x-at", "1700000001")], &[("x-sig", signature), ("x-at", "0")]]
        {
            assert!(matches!(ask(&source, pairs, "{}"), Err(HookError::Unsigned)), "{pairs:?}");
        }
    }

    #[test]
    fn a_request_is_mapped_to_an_event() {
        let source = source(
            r#"
            signature = { header = "x-sig", encoding = "hex", algorithm = "hmac-sha256" }
            event_type = "issue.{/action}"
            conversation_id = "issue-{/issue/number}"
            workspace_id = "{acme}"
            actor_id = "{/sender/id}"
            actor_name = "{/sender/login}"
            subject_type = "issue"
            subject_id = "{/issue/number}"
            text = "{/issue/title}"
            idempotency_key = "{/id}"
            data = { labels = "{/issue/labels}", note = "{/issue/note}" }
            when = [{ value = "{/action}", matches = "opened|edited" }]
            include_payload = false
            "#,
        )
        .unwrap();
        let envelope = |action: &str, drop: &str| {
            let mut value = json!({
                "action": action,
                "id": "e.1",
                "sender": { "id": 7 },
                "issue": { "number": 3, "title": "t", "labels": ["a"] },
            });
            if let Some((object, member)) = drop.rsplit_once('/') {
                value.pointer_mut(object).unwrap().as_object_mut().unwrap().remove(member);
            }
            let filling = TemplateValues { headers: &HeaderMap::new(), query: &[], body: &value };
            if !source.matches(&filling) {
                return Ok(None);
            }
            let key = source.idempotency(&filling, b"x")?;
            Ok::<_, HookError>(Some((source.envelope(&filling)?, key)))
        };
        let (event, key) = envelope("opened", "").unwrap().unwrap();
        assert_eq!(event.event_type, "issue.opened");
        let conversation = event.conversation.unwrap();
        assert_eq!(conversation.conversation_id.as_deref(), Some("issue-3"));
        assert_eq!(conversation.workspace_id.as_deref(), Some("{acme}"), "a workspace is no template");
        let actor = event.actor.unwrap();
        assert_eq!((actor.actor_id.as_deref(), actor.actor_name), (Some("7"), None));
        assert_eq!(event.subject.unwrap().subject_id.as_deref(), Some("3"));
        assert_eq!(event.input.text.as_deref(), Some("t"));
        assert_eq!(Value::Object(event.data), json!({ "labels": ["a"], "webhook": { "name": "git" } }));
        assert_eq!(key.unwrap().key, "hook/git e.1");

        assert!(envelope("closed", "").unwrap().is_none());
        assert!(envelope("opened", "/issue/title").unwrap().unwrap().0.input.text.is_none());
        for (missing, field) in [("/issue/number", "conversation_id"), ("/sender/id", "actor_id")] {
            let error = envelope("opened", missing).unwrap_err();
            assert!(matches!(&error, HookError::Unmapped { field: named, .. } if named == field), "{missing}: {error}");
        }
    }

    #[test]
    fn invalid_requests_are_refused_with_the_reason() {
        let source = source("signature = \"standard\"\nevent_type = \"{/type}\"").unwrap();
        let signed = |body: &str| {
            let signature = sign(SECRET.as_bytes(), "m1", NOW / 1000, body.as_bytes());
            ask(&source, &[("webhook-id", "m1"), ("webhook-timestamp", "1700000000"), ("webhook-signature", &signature)], body)
        };
        assert!(matches!(signed("no json"), Err(HookError::NoJson(_))));
        assert!(matches!(signed("{}"), Err(HookError::Unmapped { field, .. }) if field == "event_type"));
        assert!(matches!(signed(r#"{"type":"a b"}"#), Err(HookError::Unmapped { field, .. }) if field == "event_type"));
        assert!(matches!(signed(r#"{"type":["a"]}"#), Err(HookError::Unmapped { field, .. }) if field == "event_type"));
        let deep = format!(r#"{{"type":"a","deep":{}1{}}}"#, "[".repeat(70), "]".repeat(70));
        assert!(matches!(signed(&deep), Err(HookError::Unmapped { field, .. }) if field == "body"));
        assert!(signed(r#"{"type":"a"}"#).is_ok());
    }
}
