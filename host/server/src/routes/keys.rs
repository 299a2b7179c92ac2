//! `/api/v1/keys`: who may come in.

use agent_host_protocol::{Page, Scope};
use agent_host_runs::{Key, NewKey};
use axum::{http::StatusCode, response::Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    access::ApiRequest,
    http::{Path, Problem, json, located, page},
    openapi::{PageParams, refusals},
};

/// A name, a workspace and all scopes, however they are spelt.
const MAX_BODY_BYTES: usize = 4 * 1024;
/// Longer than any id.
const MAX_CURSOR_BYTES: usize = 64;

/// A key that was just made.
#[derive(Serialize, ToSchema)]
#[schema(as = CreatedKey)]
struct CreatedKey {
    #[serde(flatten)]
    key: Key,
    /// The key itself. Shown once.
    token: String,
}

refusals!(CreateRefusals = [JSON, WRITE] + [Conflict]);

/// Makes a key
///
/// The key is durable when this request returns, and `token` is shown once. A key of a workspace creates keys of that
/// workspace, and no key creates one that is valid for longer than itself.
#[utoipa::path(post, path = "/api/v1/keys", tag = "keys", security(("bearer" = ["admin"])),
    request_body = NewKey,
    responses(
        (status = 201, description = "The key.", body = CreatedKey, headers(("Location" = String, description = "The key, without its secret."))),
        CreateRefusals,
    ))]
pub(crate) async fn create(mut request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::Admin)?;
    let new_key: NewKey = request.json(MAX_BODY_BYTES).await?;
    let (key, token) = request.app.host.create_key(&request.caller.0, new_key).await.map_err(Problem::of_field)?;
    let location = format!("/api/v1/keys/{}", key.key_id);
    Ok(located(StatusCode::CREATED, location, &CreatedKey { key, token }))
}

refusals!(ListRefusals = [InvalidCursor]);

/// Lists keys, the oldest first
///
/// The list includes revoked and expired keys. No secret is shown.
#[utoipa::path(get, path = "/api/v1/keys", tag = "keys", security(("bearer" = ["admin"])), params(PageParams),
    responses((status = 200, description = "A page of keys.", body = Page<Key>), ListRefusals))]
pub(crate) async fn list(mut request: ApiRequest) -> Result<Response, Problem> {
    let (after, limit) = request.page(Scope::Admin)?;
    if after.as_deref().is_some_and(|after| after.len() > MAX_CURSOR_BYTES) {
        return Err(Problem::foreign_cursor());
    }
    let found = request.app.host.keys().list(&request.caller.0, after.as_deref(), limit as usize + 1);
    Ok(page(found, limit, |key| key.key_id.clone()))
}

refusals!(RevokeRefusals = [WRITE] + [NotFound]);

/// Takes a key back
///
/// When this request returns, the key admits no request, and its open streams have ended. A revoked key stays as it is.
#[utoipa::path(delete, path = "/api/v1/keys/{id}", tag = "keys", security(("bearer" = ["admin"])),
    params(("id" = String, Path, description = "The `key_id`.")),
    responses((status = 200, description = "The key, as it is now.", body = Key), RevokeRefusals))]
pub(crate) async fn revoke(Path(id): Path<String>, request: ApiRequest) -> Result<Response, Problem> {
    request.allow(Scope::Admin)?;
    Ok(json(StatusCode::OK, &request.app.host.revoke_key(&request.caller.0, &id).await?))
}
