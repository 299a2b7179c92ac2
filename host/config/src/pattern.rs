//! Regular expressions of the file, and `match` of a binding: which events it answers.

use agent_host_protocol::event::Envelope;
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// An expression that must match the whole of a text.
///
/// # Errors
/// The text is no regular expression, or one that is too large.
pub fn whole(text: &str) -> Result<Regex, regex::Error> {
    // The size limit keeps a line of configuration from taking the memory of the host.
    RegexBuilder::new(&format!("^(?:{text})$")).size_limit(1 << 20).build()
}

/// Events that a binding answers: each field is a regular expression that must match the whole of the event's field.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// Such as `message\..*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// Such as `api|webui`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Of the conversation id. An event without one matches only where this is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Of the workspace id. An event without one matches only where this is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
}

/// The expressions of a [`Match`].
#[derive(Debug)]
pub struct Pattern {
    event_type: Option<Regex>,
    source: Option<Regex>,
    conversation: Option<Regex>,
    workspace: Option<Regex>,
}

impl Pattern {
    /// Reads the expressions.
    ///
    /// # Errors
    /// Names the field that has none.
    pub fn new(matches: &Match) -> Result<Self, String> {
        let regex = |name: &str, text: &Option<String>| {
            let Some(text) = text else { return Ok(None) };
            whole(text).map(Some).map_err(|error| format!("`match.{name}` is not a regular expression: {error}"))
        };
        Ok(Self {
            event_type: regex("event_type", &matches.event_type)?,
            source: regex("source", &matches.source)?,
            conversation: regex("conversation", &matches.conversation)?,
            workspace: regex("workspace", &matches.workspace)?,
        })
    }

    /// True if an event matches.
    #[must_use]
    pub fn matches(&self, envelope: &Envelope) -> bool {
        let conversation = envelope.conversation.as_ref();
        let one = |regex: &Option<Regex>, value: Option<&str>| {
            regex.as_ref().is_none_or(|regex| value.is_some_and(|value| regex.is_match(value)))
        };
        one(&self.event_type, Some(&envelope.event_type))
            && one(&self.source, Some(&envelope.source))
            && one(&self.conversation, conversation.and_then(|c| c.conversation_id.as_deref()))
            && one(&self.workspace, conversation.and_then(|c| c.workspace_id.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: Match, envelope: &Envelope) -> bool {
        Pattern::new(&pattern).unwrap().matches(envelope)
    }

    #[test]
    fn a_pattern_matches_the_whole_value() {
        let event = Envelope::message("hi", "api");
        let event_type = |text: &str| Match { event_type: Some(text.into()), ..Match::default() };
        assert!(matches(Match::default(), &event));
        assert!(matches(event_type(r"message\..*"), &event));
        assert!(!matches(event_type("message"), &event), "half a match is none");
        assert!(!matches(event_type("x|message"), &event), "an alternative is anchored too");
        assert!(!matches(Match { conversation: Some(".*".into()), ..Match::default() }, &event), "no conversation, no match");
    }

    #[test]
    fn an_expression_that_would_take_all_memory_is_refused() {
        assert!(Pattern::new(&Match { source: Some("(a{1000}){1000}".into()), ..Match::default() }).is_err());
    }
}
