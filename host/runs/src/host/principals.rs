//! Principals: who comes with a token.

use std::collections::BTreeSet;

use agent_host_protocol::{
    Principal, PrincipalKind,
    auth::{EXECUTOR_PREFIX, KEY_PREFIX, LEASE_PREFIX, MCP_PREFIX},
};

use super::cell::Cell;
use crate::{execution::Shared, record::HostError};

/// The principal of a token: that of a key, the credential of an executor, a token of a claim or that of an approver.
pub(crate) fn principal_of(shared: &Shared, cell: &Cell, token: &str) -> Result<Principal, HostError> {
    for (prefix, name) in [(LEASE_PREFIX, "lease"), (MCP_PREFIX, "mcp")] {
        if token.starts_with(prefix) {
            // The token names its run, so the run checks the token.
            let (kind, name) = (PrincipalKind::Lease, name.to_owned());
            return Ok(Principal { kind, name, scopes: BTreeSet::new(), workspace: None, end_user: None });
        }
    }
    if token.starts_with(EXECUTOR_PREFIX) {
        return cell.runs.executor_principal(token);
    }
    let key = if token.starts_with(KEY_PREFIX) { shared.keys.principal(token) } else { cell.runs.approver_principal(token) };
    key.ok_or_else(|| {
        HostError::Unauthenticated(
            "no API key, approver or executor has the token of this request: it is wrong, revoked or expired".to_owned(),
        )
    })
}
