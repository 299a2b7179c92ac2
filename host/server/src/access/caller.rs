//! The sender of a request, for all routes.

use std::sync::Arc;

use agent_host_protocol::{Principal, Run, RunId, Scope, event::Envelope};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};

use crate::{
    app::App,
    http::{Problem, ProblemCode, headers},
};

/// The principal of the request, from admission. Every route of the API takes one, and says with
/// [`Caller::may`] what it is there for.
pub(crate) struct Caller(pub(crate) Principal);

impl Caller {
    /// Fails if the caller does not have the scope.
    pub(crate) fn may(&self, scope: Scope) -> Result<(), Problem> {
        if self.0.may(scope) {
            return Ok(());
        }
        Err(Problem::new(
            ProblemCode::Forbidden,
            format!("this needs a key with the scope `{scope}`, and `{}` has none", self.0.name),
        ))
    }

    /// Refuses who has not the scope for the whole host: what concerns every workspace is nothing for a key of one.
    pub(crate) fn may_everywhere(&self, scope: Scope) -> Result<(), Problem> {
        self.may(scope)?;
        match &self.0.workspace {
            None => Ok(()),
            Some(own) => Err(Problem::new(
                ProblemCode::Forbidden,
                format!("this concerns the whole host, and `{}` is a key of the workspace `{own}`", self.0.name),
            )),
        }
    }

    /// True if the caller sees data of this workspace.
    pub(crate) fn sees(&self, workspace: Option<&str>) -> bool {
        self.0.sees(workspace)
    }

    /// A run that the caller sees. A run of another workspace is `not_found`.
    pub(crate) fn run(&self, app: &App, id: RunId) -> Result<Arc<Run>, Problem> {
        let record = app.host.records().run(id)?.filter(|record| self.sees(record.run.workspace_id.as_deref()));
        Ok(record.ok_or_else(|| Problem::not_found(format!("there is no run {id}")))?.run)
    }

    /// The workspace that something new belongs to: where the caller has one, that and no other.
    pub(crate) fn workspace(&self, field: &str, requested: Option<String>) -> Result<Option<String>, Problem> {
        match (&self.0.workspace, requested) {
            (None, requested) => Ok(requested),
            (Some(own), None) => Ok(Some(own.clone())),
            (Some(own), Some(requested)) if *own == requested => Ok(Some(requested)),
            (Some(own), Some(_)) => {
                Err(Problem::forbidden(field, format!("`{field}` names another workspace than `{own}`, that of the key")))
            }
        }
    }

    /// Puts an event into the workspace of the caller.
    pub(crate) fn place(&self, envelope: &mut Envelope) -> Result<(), Problem> {
        if self.0.workspace.is_none() {
            return Ok(());
        }
        let conversation = envelope.conversation.get_or_insert_default();
        conversation.workspace_id = self.workspace("conversation.workspace_id", conversation.workspace_id.take())?;
        Ok(())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match parts.extensions.get::<Principal>() {
            Some(principal) => Ok(Self(principal.clone())),
            None => Err(Problem::internal("a route was reached without the check of its caller")),
        }
    }
}

/// The token that a request shows.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers::bearer(headers.get(header::AUTHORIZATION)?)
}
