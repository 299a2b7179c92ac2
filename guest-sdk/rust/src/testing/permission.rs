//! Permissions that a manifest can declare and a grant can deny.

use crate::contract::{
    ArtifactOperation, EventOperation, HistoryOperation, KnowledgeOperation, ModelOperation, Permissions, RunOperation,
    RunnerManifest, StateScope, StorageArea, ToolOperation,
};

/// Permission that a manifest can declare and a grant can deny. [`TestHost::deny`](super::TestHost::deny) also takes the
/// operations of the contract.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum Permission {
    Model(ModelOperation),
    Tool(ToolOperation),
    Knowledge(KnowledgeOperation),
    History(HistoryOperation),
    Event(EventOperation),
    Artifact(ArtifactOperation),
    State(StateScope),
    Storage(StorageArea),
    Run(RunOperation),
    /// All platform actions.
    Platform,
    Interactions,
    Steering,
    /// All hosts.
    Http,
}

/// Permissions that a manifest declares.
#[derive(Clone, Debug, Default)]
pub(super) struct DeclaredPermissions {
    pub(super) permissions: Permissions,
    pub(super) steering: bool,
}

impl DeclaredPermissions {
    pub(super) fn by(manifest: RunnerManifest) -> Self {
        Self { steering: manifest.capabilities.steering, permissions: manifest.permissions }
    }
}

impl Permission {
    pub(super) fn declared(self, declared: &DeclaredPermissions) -> bool {
        let by = &declared.permissions;
        match self {
            Self::Model(operation) => by.models.contains(&operation),
            Self::Tool(operation) => by.tools.contains(&operation),
            Self::Knowledge(operation) => by.knowledge_bases.contains(&operation),
            Self::History(operation) => by.history.contains(&operation),
            Self::Event(operation) => by.events.contains(&operation),
            Self::Artifact(operation) => by.artifacts.contains(&operation),
            Self::State(scope) => by.state.contains(&scope),
            Self::Storage(area) => by.storage.contains(&area),
            Self::Run(operation) => by.runs.contains(&operation),
            Self::Platform | Self::Interactions | Self::Steering | Self::Http => self.interface_declared(declared),
        }
    }

    pub(super) fn interface_declared(self, declared: &DeclaredPermissions) -> bool {
        let by = &declared.permissions;
        match self {
            Self::Model(_) => !by.models.is_empty(),
            Self::Tool(_) => !by.tools.is_empty(),
            Self::Knowledge(_) => !by.knowledge_bases.is_empty(),
            Self::History(_) => !by.history.is_empty(),
            Self::Event(_) => !by.events.is_empty(),
            Self::Artifact(_) => !by.artifacts.is_empty(),
            Self::State(_) => !by.state.is_empty(),
            Self::Storage(_) => !by.storage.is_empty(),
            Self::Run(_) => !by.runs.is_empty(),
            Self::Platform => !by.platform_actions.is_empty(),
            Self::Interactions => by.interactions,
            Self::Steering => declared.steering,
            Self::Http => !by.http_hosts.is_empty(),
        }
    }
}

macro_rules! permissions {
    ($($variant:ident($operation:ty)),+) => {
        $(impl From<$operation> for Permission {
            fn from(operation: $operation) -> Self {
                Self::$variant(operation)
            }
        })+
    };
}

permissions!(
    Model(ModelOperation),
    Tool(ToolOperation),
    Knowledge(KnowledgeOperation),
    History(HistoryOperation),
    Event(EventOperation),
    Artifact(ArtifactOperation),
    State(StateScope),
    Storage(StorageArea),
    Run(RunOperation)
);

/// Returns all permissions of the scripted host. Platform actions are those of the script, since they have names.
pub(super) fn everything(platform_actions: Vec<String>) -> DeclaredPermissions {
    use StateScope::{Actor, Binding, Conversation, Runner, Subject};
    let permissions = Permissions {
        models: vec![
            ModelOperation::Invoke,
            ModelOperation::Stream,
            ModelOperation::Rerank,
            ModelOperation::Embed,
            ModelOperation::CountTokens,
        ],
        tools: vec![ToolOperation::Detail, ToolOperation::Call],
        knowledge_bases: vec![KnowledgeOperation::List, KnowledgeOperation::Retrieve],
        history: vec![HistoryOperation::Page, HistoryOperation::Search],
        events: vec![EventOperation::Get, EventOperation::Page],
        artifacts: vec![ArtifactOperation::Metadata, ArtifactOperation::Read, ArtifactOperation::Create],
        state: vec![Conversation, Actor, Subject, Runner, Binding],
        storage: vec![StorageArea::Plugin, StorageArea::Workspace, StorageArea::Binding],
        runs: vec![RunOperation::Start, RunOperation::Get, RunOperation::List, RunOperation::Events, RunOperation::Cancel],
        platform_actions,
        interactions: true,
        http_hosts: vec!["*:*".to_owned()],
    };
    DeclaredPermissions { permissions, steering: true }
}
