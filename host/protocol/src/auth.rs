//! The sender of a request, and its rights.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A right of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema, schemars::JsonSchema)]
#[allow(missing_docs, reason = "the table in docs/OPERATIONS.md says what each opens")]
pub enum Scope {
    #[serde(rename = "events:write")]
    EventsWrite,
    #[serde(rename = "runs:read")]
    RunsRead,
    #[serde(rename = "runs:control")]
    RunsControl,
    #[serde(rename = "runs:execute")]
    RunsExecute,
    #[serde(rename = "actions:respond")]
    ActionsRespond,
    #[serde(rename = "on_behalf_of")]
    OnBehalfOf,
    #[serde(rename = "admin")]
    Admin,
}

impl Scope {
    /// Every one.
    pub const ALL: [Self; 7] = [
        Self::EventsWrite,
        Self::RunsRead,
        Self::RunsControl,
        Self::RunsExecute,
        Self::ActionsRespond,
        Self::OnBehalfOf,
        Self::Admin,
    ];

    /// The name as JSON shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EventsWrite => "events:write",
            Self::RunsRead => "runs:read",
            Self::RunsControl => "runs:control",
            Self::RunsExecute => "runs:execute",
            Self::ActionsRespond => "actions:respond",
            Self::OnBehalfOf => "on_behalf_of",
            Self::Admin => "admin",
        }
    }

    /// The scope with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == name)
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Begins every API key.
pub const KEY_PREFIX: &str = "ahk_";
/// Begins the credential of every executor.
pub const EXECUTOR_PREFIX: &str = "ahx_";
/// Begins the token of every claim of a run.
pub const LEASE_PREFIX: &str = "ahl_";
/// Begins the token of the MCP endpoint of every claim of a run.
pub const MCP_PREFIX: &str = "ahm_";
/// Begins the token of one stream of events.
pub const STREAM_PREFIX: &str = "aht_";

/// The id of the executor that a credential names. The credential itself is checked by the host.
#[must_use]
pub fn executor_of(credential: &str) -> Option<&str> {
    credential.strip_prefix(EXECUTOR_PREFIX)?.split_once('_').map(|(id, _)| id)
}

/// The header that names the workspace of a request whose sender is of none.
pub const WORKSPACE_HEADER: &str = "x-workspace";

/// The sender of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    /// The kind of credential.
    pub kind: PrincipalKind,
    /// Name in the record: the name of the key, the id of the executor.
    pub name: String,
    /// Rights of the sender. `admin` includes all of them.
    pub scopes: BTreeSet<Scope>,
    /// The workspace that the sender sees; `None` for all.
    pub workspace: Option<String>,
    /// The end user for whom the sender asks: the request reaches the agents alone, and there the threads of this user. `None` for
    /// an operator or a program of its own.
    pub end_user: Option<String>,
}

/// Longest id of an end user, in bytes: it is part of the ids of conversations.
pub const MAX_END_USER: usize = 128;

/// True if a text can be the id of an end user.
#[must_use]
pub fn is_end_user(id: &str) -> bool {
    (1..=MAX_END_USER).contains(&id.len()) && !id.chars().any(char::is_control)
}

/// The credential by which a sender is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PrincipalKind {
    /// By nothing but its address, which the configuration says is enough.
    Loopback,
    /// By an API key, with this id.
    Key(String),
    /// By the credential of an executor, with this id.
    Executor(String),
    /// By the token of an `[[approvers]]` entry, with this id: it answers what runs ask, and nothing else.
    Approver(String),
    /// By a token of an identity provider with this name; the principal has the name of the user there.
    IdentityProvider(String),
    /// By a token that is good for one claim of one run: the routes of that run judge it.
    Lease,
}

/// Beginning of the ids of end users of identity providers. An `X-End-User` with this beginning is refused, so a key cannot name one of
/// these users.
pub const PROVIDER_USER_PREFIX: &str = "idp:";

/// The id of an end user of an identity provider. Names of providers have no colon, so no other pair has the same id.
#[must_use]
pub fn provider_user(provider: &str, user: &str) -> String {
    format!("{PROVIDER_USER_PREFIX}{provider}:{user}")
}

/// The identity provider that has named an end user, and the user's name there; `None` for users of other kinds.
#[must_use]
pub fn provider_of(end_user: &str) -> Option<(&str, &str)> {
    end_user.strip_prefix(PROVIDER_USER_PREFIX)?.split_once(':')
}

impl Principal {
    /// A user of this machine, where the configuration trusts it.
    #[must_use]
    pub fn loopback() -> Self {
        let scopes = BTreeSet::from(Scope::ALL);
        Self { kind: PrincipalKind::Loopback, name: "loopback".to_owned(), scopes, workspace: None, end_user: None }
    }

    /// True if the sender has this right.
    #[must_use]
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope) || self.scopes.contains(&Scope::Admin)
    }

    /// True if the sender sees data of this workspace.
    #[must_use]
    pub fn sees(&self, workspace: Option<&str>) -> bool {
        self.workspace.is_none() || self.workspace.as_deref() == workspace
    }
}
