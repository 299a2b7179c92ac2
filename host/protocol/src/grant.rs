//! Grants: what one run may use, frozen when the run is created.

use std::{
    borrow::Cow,
    cell::Cell,
    collections::BTreeMap,
    fmt::{self, Write},
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

use crate::{
    context::{SkillResource, StaticRef},
    hosts,
    id::RunnerId,
    manifest::{Permissions, RunnerManifest, StateScope, StorageArea},
    message::ArtifactRef,
    tool::ClientTool,
};

crate::named_enum! {
    /// An interface of the contract that a grant can give, in the order of the contract. `results` and `log` need none.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[repr(u8)]
    pub enum Interface {
        /// Language models.
        Models = "models",
        /// Tools.
        Tools = "tools",
        /// Knowledge bases.
        Knowledge = "knowledge",
        /// The transcript.
        History = "history",
        /// The event log.
        Events = "events",
        /// Artifacts.
        Artifacts = "artifacts",
        /// Small JSON values.
        State = "state",
        /// Bytes.
        Storage = "storage",
        /// Platform actions.
        Platform = "platform",
        /// Questions to people.
        Interactions = "interactions",
        /// Input while the run is active.
        Steering = "steering",
        /// Other runs.
        Runs = "runs",
        /// Requests to the outside.
        Http = "http",
        /// Waiting.
        Timers = "timers",
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of interfaces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct InterfaceSet(u32);

impl InterfaceSet {
    /// True if the set contains `interface`.
    #[must_use]
    pub const fn contains(self, interface: Interface) -> bool {
        self.0 & (1 << interface as u8) != 0
    }

    /// With `interface` in it.
    #[must_use]
    pub const fn with(self, interface: Interface) -> Self {
        Self(self.0 | 1 << interface as u8)
    }

    /// The interfaces that are in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The interfaces that are in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The interfaces of the set, in the order of the contract.
    pub fn iter(self) -> impl Iterator<Item = Interface> {
        Interface::ALL.iter().copied().filter(move |interface| self.contains(*interface))
    }
}

impl FromIterator<Interface> for InterfaceSet {
    fn from_iter<T: IntoIterator<Item = Interface>>(iter: T) -> Self {
        iter.into_iter().fold(Self::default(), Self::with)
    }
}

impl fmt::Debug for InterfaceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Interface::as_str)).finish()
    }
}

impl Permissions {
    /// The interfaces that these permissions open. Steering is a capability, and timers need no permission:
    /// see [`RunnerManifest::interfaces`].
    #[must_use]
    pub fn interfaces(&self) -> InterfaceSet {
        [
            (Interface::Models, !self.models.is_empty()),
            (Interface::Tools, !self.tools.is_empty()),
            (Interface::Knowledge, !self.knowledge_bases.is_empty()),
            (Interface::History, !self.history.is_empty()),
            (Interface::Events, !self.events.is_empty()),
            (Interface::Artifacts, !self.artifacts.is_empty()),
            (Interface::State, !self.state.is_empty()),
            (Interface::Storage, !self.storage.is_empty()),
            (Interface::Platform, !self.platform_api.is_empty()),
            (Interface::Interactions, self.interactions),
            (Interface::Runs, !self.runs.is_empty()),
            (Interface::Http, !self.http_hosts.is_empty()),
        ]
        .into_iter()
        .filter_map(|(interface, open)| open.then_some(interface))
        .collect()
    }

    /// The permissions that both allow: never more than either.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        fn both<T: PartialEq + Clone>(a: &[T], b: &[T]) -> Vec<T> {
            a.iter().filter(|item| b.contains(item)).cloned().collect()
        }
        Self {
            models: both(&self.models, &other.models),
            tools: both(&self.tools, &other.tools),
            knowledge_bases: both(&self.knowledge_bases, &other.knowledge_bases),
            history: both(&self.history, &other.history),
            events: both(&self.events, &other.events),
            conversations: both(&self.conversations, &other.conversations),
            artifacts: both(&self.artifacts, &other.artifacts),
            state: both(&self.state, &other.state),
            storage: both(&self.storage, &other.storage),
            runs: both(&self.runs, &other.runs),
            platform_api: both(&self.platform_api, &other.platform_api),
            interactions: self.interactions && other.interactions,
            http_hosts: hosts::intersection(&self.http_hosts, &other.http_hosts),
        }
    }
}

impl RunnerManifest {
    /// The interfaces that this runner may ever use.
    #[must_use]
    pub fn interfaces(&self) -> InterfaceSet {
        let interfaces = self.permissions.interfaces().with(Interface::Timers);
        if self.capabilities.steering { interfaces.with(Interface::Steering) } else { interfaces }
    }
}

/// The rights of one run: manifest ∩ binding ∩ scope of the run. Stored with the run, and never widened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// The runner that it is for.
    pub runner_id: RunnerId,
    /// The binding that it comes from.
    pub binding_id: String,
    /// `sha256:HEX` of the component that it was made for.
    pub component: String,
    /// Permissions of the run.
    pub permissions: Permissions,
    /// Ids of the models that may be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Names of the tools that may be used: what was there when the run was created, and no tool that came later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Tools of the client that asked for the run, where the binding lets it bring some. None has the name of one above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_tools: Vec<ClientTool>,
    /// Ids of the knowledge bases that may be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub knowledge_bases: Vec<String>,
    /// Runners that may be started: what was there when the run was created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runners: Vec<RunnerId>,
    /// Names of secrets that requests to the outside may carry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub http_secrets: Vec<String>,
    /// Skills that may be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<SkillResource>,
    /// The other files of these skills.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skill_files: Vec<ArtifactRef>,
    /// Content that does not change from run to run, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub static_refs: BTreeMap<String, StaticRef>,
    /// True if the run may take input while it is active.
    #[serde(default)]
    pub steering: bool,
    /// The workspace that it is limited to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// The conversation that it is limited to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationKey>,
    /// Actor, for state of scope `actor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Subject, for state of scope `subject`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

impl Grant {
    /// The interfaces that this run's guest is linked to in earnest. All others can only refuse.
    #[must_use]
    pub fn interfaces(&self) -> InterfaceSet {
        let interfaces = self.permissions.interfaces().with(Interface::Timers);
        if self.steering { interfaces.with(Interface::Steering) } else { interfaces }
    }

    /// The key under which the values of one scope are kept, where this run has that scope.
    ///
    /// Every key begins with the runner, so no runner reads what another keeps, and the values of one
    /// workspace are never those of another.
    #[must_use]
    pub fn state_key(&self, scope: StateScope) -> Option<String> {
        if !self.permissions.state.contains(&scope) {
            return None;
        }
        let workspace = self.workspace();
        let owner = match scope {
            StateScope::Conversation => {
                return self.conversation.as_ref().map(|conversation| conversation.state_key(&self.runner_id));
            }
            StateScope::Actor => self.actor.clone()?,
            StateScope::Subject => self.subject.clone()?,
            StateScope::Runner => String::new(),
            StateScope::Binding => self.binding_id.clone(),
        };
        Some(key(&[self.runner_id.as_str(), scope.as_str(), workspace, &owner]))
    }
}

impl Grant {
    /// True if the grant names this artifact: a file of a skill, or the content of a static reference.
    #[must_use]
    pub fn names_artifact(&self, id: &str) -> bool {
        let skills = self.skills.iter().map(|skill| &skill.content);
        let contents = self.static_refs.values().filter_map(|reference| reference.content.as_ref());
        skills.chain(&self.skill_files).chain(contents).any(|artifact| artifact.artifact_id == id)
    }

    /// The tool of the client with this name.
    #[must_use]
    pub fn client_tool(&self, name: &str) -> Option<&ClientTool> {
        self.client_tools.iter().find(|tool| tool.name == name)
    }

    /// The workspace that the run belongs to; empty where the event names none.
    #[must_use]
    pub fn workspace(&self) -> &str {
        self.workspace.as_deref().unwrap_or_default()
    }

    /// The key under which the bytes of one area are kept. Areas of one workspace are never those of another; what a
    /// plugin keeps, its runners share, and what a binding keeps belongs to its runner.
    #[must_use]
    pub fn storage_key(&self, area: StorageArea) -> String {
        let workspace = self.workspace();
        match area {
            StorageArea::Plugin => key(&[area.as_str(), workspace, self.runner_id.plugin()]),
            StorageArea::Workspace => key(&[area.as_str(), workspace]),
            StorageArea::Binding => key(&[area.as_str(), workspace, self.runner_id.as_str(), &self.binding_id]),
        }
    }
}

/// Joins parts to one key. Each part carries its length, so no choice of parts can look like another.
fn key(parts: &[&str]) -> String {
    let mut key = String::with_capacity(key_len(parts));
    write_key(&mut key, parts);
    key
}

fn write_key(key: &mut String, parts: &[&str]) {
    for part in parts {
        let _ = write!(key, "{}:{part}/", part.len());
    }
}

/// A part of a key that was joined; `None` where it has none at this place.
fn part_of(key: &str, place: usize) -> Option<&str> {
    let mut rest = key;
    for at in 0.. {
        let (len, parts) = rest.split_once(':')?;
        let (part, after) = parts.split_at_checked(len.parse().ok()?)?;
        if at == place {
            return Some(part);
        }
        rest = after.strip_prefix('/').unwrap_or_default();
    }
    None
}

/// The workspace in a key of [`Grant::state_key`].
#[must_use]
pub fn workspace_of_state(key: &str) -> Option<&str> {
    part_of(key, 2)
}

/// The workspace in a key of [`Grant::storage_key`].
#[must_use]
pub fn workspace_of_storage(key: &str) -> Option<&str> {
    part_of(key, 1)
}

/// Bytes of a key of these parts.
fn key_len(parts: &[&str]) -> usize {
    parts.iter().map(|part| part.len().checked_ilog10().unwrap_or(0) as usize + 3 + part.len()).sum()
}

/// Memory that a thread keeps for the next key: several times the longest key of ids that are accepted.
const MAX_SCRATCH_BYTES: usize = 4 * 1024;

/// Names a transcript: one thread of one conversation of one workspace. Clones share one string.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ConversationKey {
    /// The parts, joined: see [`write_key`].
    index: Arc<str>,
}

/// Names a transcript: one thread of one conversation of one workspace.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
struct ConversationIds<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    workspace: Cow<'a, str>,
    conversation: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    thread: Cow<'a, str>,
}

/// The thread within a conversation that is an end user's own. Nobody else has a conversation key with it.
#[must_use]
pub fn of_end_user(user: &str) -> String {
    format!("user:{user}")
}

impl ConversationKey {
    /// The key of one thread of one conversation of one workspace; `""` means none.
    #[must_use]
    pub fn new(workspace: &str, conversation: &str, thread: &str) -> Self {
        // Keys are made several times for a run: in memory that the thread keeps, and copied once.
        thread_local! {
            static SCRATCH: Cell<String> = const { Cell::new(String::new()) };
        }
        let mut scratch = SCRATCH.take();
        scratch.clear();
        write_key(&mut scratch, &[workspace, conversation, thread]);
        let index = scratch.as_str().into();
        // Ids are short; a long one is a mistake that is refused later.
        if scratch.capacity() <= MAX_SCRATCH_BYTES {
            SCRATCH.set(scratch);
        }
        Self { index }
    }

    /// The key of a conversation, where it has an id.
    #[must_use]
    pub fn of(conversation: &crate::context::Conversation) -> Option<Self> {
        let (workspace, thread) = (conversation.workspace_id.as_deref(), conversation.thread_id.as_deref());
        let id = conversation.conversation_id.as_deref()?;
        Some(Self::new(workspace.unwrap_or_default(), id, thread.unwrap_or_default()))
    }

    /// The workspace; empty where there is none.
    #[must_use]
    pub fn workspace(&self) -> &str {
        self.part(0)
    }

    /// The conversation.
    #[must_use]
    pub fn conversation(&self) -> &str {
        self.part(1)
    }

    /// The thread; empty where there is none.
    #[must_use]
    pub fn thread(&self) -> &str {
        self.part(2)
    }

    fn part(&self, place: usize) -> &str {
        part_of(&self.index, place).unwrap_or_default()
    }

    /// The key under which a runner keeps its values of state of scope `conversation`.
    #[must_use]
    pub fn state_key(&self, runner_id: &RunnerId) -> String {
        let place = [runner_id.as_str(), StateScope::Conversation.as_str(), self.workspace()];
        let owner = [self.conversation(), self.thread()];
        let owner_len = key_len(&owner);
        let mut key = String::with_capacity(key_len(&place) + owner_len + 8);
        write_key(&mut key, &place);
        // The owner is a part as well: a key within the key.
        let _ = write!(key, "{owner_len}:");
        write_key(&mut key, &owner);
        key.push('/');
        key
    }

    /// As one string, for an index. Different keys give different strings.
    #[must_use]
    pub fn index(&self) -> &str {
        &self.index
    }

    fn ids(&self) -> ConversationIds<'_> {
        let [workspace, conversation, thread] = [self.workspace(), self.conversation(), self.thread()].map(Cow::Borrowed);
        ConversationIds { workspace, conversation, thread }
    }
}

impl Default for ConversationKey {
    fn default() -> Self {
        Self::new("", "", "")
    }
}

impl fmt::Debug for ConversationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConversationKey").field(&self.index).finish()
    }
}

impl Serialize for ConversationKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.ids().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ConversationKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ConversationIds { workspace, conversation, thread } = ConversationIds::deserialize(deserializer)?;
        Ok(Self::new(&workspace, &conversation, &thread))
    }
}

impl PartialSchema for ConversationKey {
    fn schema() -> RefOr<Schema> {
        ConversationIds::schema()
    }
}

impl ToSchema for ConversationKey {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::manifest::HistoryOperation;

    fn grant() -> Grant {
        Grant {
            runner_id: "plugin:a/b/c".parse().unwrap(),
            binding_id: "main".into(),
            component: "sha256:00".into(),
            permissions: Permissions { state: StateScope::ALL.to_vec(), ..Permissions::default() },
            models: Vec::new(),
            tools: Vec::new(),
            client_tools: Vec::new(),
            knowledge_bases: Vec::new(),
            runners: Vec::new(),
            http_secrets: Vec::new(),
            skills: Vec::new(),
            skill_files: Vec::new(),
            static_refs: BTreeMap::new(),
            steering: false,
            workspace: Some("w".into()),
            conversation: Some(ConversationKey::new("w", "c", "")),
            actor: Some("alice".into()),
            subject: None,
        }
    }

    #[test]
    fn a_scope_that_the_run_does_not_have_has_no_key() {
        assert!(grant().state_key(StateScope::Actor).is_some());
        assert_eq!(grant().state_key(StateScope::Subject), None);
        let narrow = Grant { permissions: Permissions::default(), ..grant() };
        assert!(StateScope::ALL.iter().all(|scope| narrow.state_key(*scope).is_none()));
    }

    #[test]
    fn the_owner_of_state_of_a_conversation_is_one_part_of_its_key() {
        let conversation = ConversationKey::new("w", &"c".repeat(123), "");
        let grant = Grant { conversation: Some(conversation), ..grant() };
        let owner = key(&[&"c".repeat(123), ""]);
        assert_eq!(owner.len(), key_len(&[&"c".repeat(123), ""]));
        let whole = key(&["plugin:a/b/c", "conversation", "w", &owner]);
        assert_eq!(grant.state_key(StateScope::Conversation), Some(whole));
    }

    #[test]
    fn keys_of_state_and_storage_say_their_workspace() {
        for scope in [StateScope::Conversation, StateScope::Actor, StateScope::Runner, StateScope::Binding] {
            assert_eq!(workspace_of_state(&grant().state_key(scope).unwrap()), Some("w"));
        }
        for area in [StorageArea::Plugin, StorageArea::Workspace, StorageArea::Binding] {
            assert_eq!(workspace_of_storage(&grant().storage_key(area)), Some("w"));
        }
        for foreign in ["", "s", "1:a", "9:a/", "1:a/1:b/", "x:a/", "18446744073709551616:a/"] {
            assert_eq!(workspace_of_state(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn an_intersection_opens_only_what_both_open() {
        let a = Permissions {
            history: vec![HistoryOperation::Page, HistoryOperation::Search],
            interactions: true,
            ..Permissions::default()
        };
        let b = Permissions { history: vec![HistoryOperation::Page], state: vec![StateScope::Actor], ..Permissions::default() };
        let both = a.intersection(&b);
        assert_eq!(both, Permissions { history: vec![HistoryOperation::Page], ..Permissions::default() });
        assert_eq!(format!("{:?}", both.interfaces()), r#"{"history"}"#);
    }

    #[test]
    fn hosts_are_intersected_by_what_they_cover() {
        let hosts = |hosts: &[&str]| Permissions {
            http_hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            ..Permissions::default()
        };
        let both = hosts(&["*.example.com", "other.net"]).intersection(&hosts(&["api.example.com:443", "*:80"]));
        assert_eq!(both.http_hosts, ["api.example.com:443"]);
        let none = hosts(&["https://a.example"]).intersection(&hosts(&["https://a.example"]));
        assert!(!none.interfaces().contains(Interface::Http), "an entry that cannot be read opens nothing");
    }

    proptest! {
        #[test]
        fn different_conversations_have_different_keys(a in "[/:0-9a]{0,6}", b in "[/:0-9a]{0,6}", c in "[/:0-9a]{0,6}", d in "[/:0-9a]{0,6}") {
            let one = ConversationKey::new(&a, &b, "");
            let other = ConversationKey::new(&c, &d, "");
            prop_assert_eq!(one == other, one.index() == other.index());
        }
    }
}
