//! Signed requests of other systems as events.

use std::sync::Arc;

use agent_host_protocol::time;
use serde::Serialize;

use super::{
    Intake,
    accept::{AcceptedEvent, no_entries},
};
use crate::policy::sources::{HookError, HookRequest, HookSource};

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookOutcome {
    /// The request became an event.
    Accepted(AcceptedEvent),
    /// The request matches no `when`.
    Ignored,
}

/// A source, for an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = WebhookSource)]
pub struct WebhookSourceReport {
    /// Name of the source.
    pub name: String,
    /// Path that accepts requests.
    pub path: String,
    /// The workspace of its events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    /// Reason why requests are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Intake {
    /// Accepts a request to a webhook source. The event is durable when this function returns.
    pub(crate) async fn accept_hook(&self, name: &str, request: &HookRequest<'_>) -> Result<HookOutcome, HookError> {
        let setup = self.shared.setup();
        let source = setup.hooks.iter().find(|source| source.name == name).ok_or(HookError::Unknown)?;
        let event = source.event(request, time::wall());
        if let Err(HookError::NoSecret) = &event {
            tracing::error!(problem = source.problem(), "a webhook was refused");
        }
        let Some((envelope, idempotency)) = event? else { return Ok(HookOutcome::Ignored) };
        Ok(HookOutcome::Accepted(self.accept(envelope, idempotency, &no_entries, None).await?))
    }

    /// True if a webhook source has this name.
    #[must_use]
    pub(crate) fn has_hook(&self, name: &str) -> bool {
        self.shared.setup().hooks.iter().any(|source| source.name == name)
    }

    /// A report of each webhook source.
    #[must_use]
    pub(crate) fn webhook_sources(&self) -> Vec<WebhookSourceReport> {
        let report = |source: &Arc<HookSource>| WebhookSourceReport {
            name: source.name.clone(),
            path: format!("/api/v1/hooks/{}", source.name),
            workspace_id: source.mapping.workspace_id.clone(),
            problem: source.problem(),
        };
        self.shared.setup().hooks.iter().map(report).collect()
    }
}
