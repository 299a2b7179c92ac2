//! The description of the API, from the table of routes.

use std::sync::OnceLock;

use axum::{http::StatusCode, response::Response};

use crate::{
    http::{Problem, Query, raw_json},
    openapi::{refusals, tidy},
};

/// The whole document as JSON text: of every route, in a stable order.
pub fn openapi() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let document = serde_json::to_value(super::routes().into_openapi()).map(tidy);
        // The document has text keys and only JSON numbers, so it can be written.
        document.and_then(|document| serde_json::to_string_pretty(&document)).unwrap_or_default()
    })
}

/// The description of this API (OpenAPI 3.1)
///
/// The same as `agent-host openapi` prints. The document does not depend on the configuration or on stored data.
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "host", security(()),
    responses((status = 200, description = "The document.", body = Value), DocumentRefusals))]
pub(crate) async fn document(query: Query) -> Result<Response, Problem> {
    query.finish()?;
    Ok(raw_json(StatusCode::OK, openapi()))
}

refusals!(DocumentRefusals = []);

#[cfg(test)]
mod tests;
