//! `/api/v1/keys`: who may come in.

use agent_host_protocol::{Page, Scope};
use agent_host_runs::{Key, NewKey};
use axum::{
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    app::{App, json},
    body,
    caller::Caller,
    extract::Path,
    openapi::{PageParams, refusals},
    problem::{Problem, ProblemCode},
    query::Query,
};

/// A name, a workspace and all scopes, however they are spelt.
const MAX_BODY_BYTES: usize = 4 * 1024;
/// Longer than any id.
const MAX_CURSOR_BYTES: usize = 64;

/// A key that was just made.
#[derive(Serialize, ToSchema)]
#[schema(as = CreatedKey)]
struct Created {
    #[serde(flatten)]
    key: Key,
    /// The key itself. It is shown this once.
    token: String,
}

refusals!(CreateRefusals = [JSON, WRITE] + [Conflict]);

/// Makes a key
///
/// It is durable when this answers, and `token` is shown this once. A key of a workspace makes keys of that workspace, and no
/// key makes one that is good for longer than itself.
#[utoipa::path(post, path = "/api/v1/keys", tag = "keys", security(("bearer" = ["admin"])),
    request_body = NewKey,
    responses(
        (status = 201, description = "The key.", body = Created, headers(("Location" = String, description = "The key, without its secret."))),
        CreateRefusals,
    ))]
pub(crate) async fn create(State(app): State<App>, caller: Caller, query: Query, request: Request) -> Result<Response, Problem> {
    caller.may(Scope::Admin)?;
    query.finish()?;
    let (parts, body) = request.into_parts();
    body::require_json(&parts.headers)?;
    let wanted: NewKey = body::parse(&body::read(body, MAX_BODY_BYTES).await?)?;
    let (key, token) = app.host.create_key(&caller.0, wanted).await.map_err(Problem::of_field)?;
    let location = HeaderValue::try_from(format!("/api/v1/keys/{}", key.key_id)).map_err(Problem::internal)?;
    let mut response = json(StatusCode::CREATED, &Created { key, token });
    response.headers_mut().insert(header::LOCATION, location);
    Ok(response)
}

refusals!(ListRefusals = [InvalidCursor]);

/// Lists keys, the oldest first
///
/// Those that were revoked or have expired, too. No secret is shown.
#[utoipa::path(get, path = "/api/v1/keys", tag = "keys", security(("bearer" = ["admin"])), params(PageParams),
    responses((status = 200, description = "A page of keys.", body = Page<Key>), ListRefusals))]
pub(crate) async fn list(State(app): State<App>, caller: Caller, mut query: Query) -> Result<Response, Problem> {
    caller.may(Scope::Admin)?;
    let after = query.text("cursor");
    let limit = query.limit()? as usize;
    query.finish()?;
    if after.as_deref().is_some_and(|after| after.len() > MAX_CURSOR_BYTES) {
        return Err(Problem::new(ProblemCode::InvalidCursor, "`cursor` is not one that this host gave"));
    }
    // One more tells whether there are more.
    let mut items = app.host.keys().list(&caller.0, after.as_deref(), limit + 1);
    let has_more = items.len() > limit;
    items.truncate(limit);
    let next_cursor = has_more.then(|| items.last().map(|key| key.key_id.clone())).flatten();
    Ok(json(StatusCode::OK, &Page { items, next_cursor, prev_cursor: None, has_more }))
}

refusals!(RevokeRefusals = [WRITE] + [NotFound]);

/// Takes a key back
///
/// When this answers, nobody comes in by it any more, and what was open by it ends. A key that was revoked before stays as it
/// is.
#[utoipa::path(delete, path = "/api/v1/keys/{id}", tag = "keys", security(("bearer" = ["admin"])),
    params(("id" = String, Path, description = "The `key_id`.")),
    responses((status = 200, description = "The key, as it is now.", body = Key), RevokeRefusals))]
pub(crate) async fn revoke(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query,
) -> Result<Response, Problem> {
    caller.may(Scope::Admin)?;
    query.finish()?;
    Ok(json(StatusCode::OK, &app.host.revoke_key(&caller.0, &id).await?))
}
