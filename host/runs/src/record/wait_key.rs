//! Wait keys: what wakes a parked run.
//!
//! The park row of a run has one text for each key, and the ledger finds a parked run by any of them.

use std::fmt;

use agent_host_protocol::{RunId, grant::ConversationKey};

/// The wait of a parked run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitKey {
    /// An answer to the action with this id.
    Action(String),
    /// The end of this child run.
    Child(RunId),
    /// Input in the conversation with this index.
    Steering(String),
    /// No value: the key finds the parked run that has the turn in the conversation with this index.
    Conversation(String),
}

impl WaitKey {
    /// The beginning of every key of an action.
    pub(crate) const ACTIONS: &str = "action/";
    /// The beginning of every key of a child run.
    pub(crate) const CHILDREN: &str = "run/";
    const STEERING: &str = "steering/";
    const CONVERSATIONS: &str = "conversation/";

    pub(crate) fn action(action_id: &str) -> Self {
        Self::Action(action_id.to_owned())
    }

    pub(crate) fn steering(conversation: &ConversationKey) -> Self {
        Self::Steering(conversation.index().to_owned())
    }

    pub(crate) fn conversation(conversation: &ConversationKey) -> Self {
        Self::Conversation(conversation.index().to_owned())
    }

    /// The key that a park row has as this text. `None` for a text of an unknown kind.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(id) = text.strip_prefix(Self::ACTIONS) {
            return Some(Self::Action(id.to_owned()));
        }
        if let Some(id) = text.strip_prefix(Self::CHILDREN) {
            return id.parse().ok().map(Self::Child);
        }
        if let Some(index) = text.strip_prefix(Self::STEERING) {
            return Some(Self::Steering(index.to_owned()));
        }
        text.strip_prefix(Self::CONVERSATIONS).map(|index| Self::Conversation(index.to_owned()))
    }
}

impl fmt::Display for WaitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Action(id) => write!(f, "{}{id}", Self::ACTIONS),
            Self::Child(id) => write!(f, "{}{id}", Self::CHILDREN),
            Self::Steering(index) => write!(f, "{}{index}", Self::STEERING),
            Self::Conversation(index) => write!(f, "{}{index}", Self::CONVERSATIONS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_from_its_text() {
        let conversation = ConversationKey::new("", "c", "");
        let keys = [
            (WaitKey::action("r.1"), WaitKey::ACTIONS),
            (WaitKey::Child(RunId::new()), WaitKey::CHILDREN),
            (WaitKey::steering(&conversation), "steering/"),
            (WaitKey::conversation(&conversation), "conversation/"),
        ];
        for (key, begins) in keys {
            let text = key.to_string();
            assert!(text.starts_with(begins), "{text}");
            assert_eq!(WaitKey::parse(&text), Some(key));
        }
        for text in ["", "other/1", "run/no-id"] {
            assert_eq!(WaitKey::parse(text), None, "{text}");
        }
    }
}
