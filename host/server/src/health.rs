//! Whether the process lives, and whether it can take events.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};

use crate::app::{App, json};

/// `GET /healthz`: 200 while the process answers at all.
pub(crate) async fn healthz() -> impl IntoResponse {
    (StatusCode::OK, "ok")
}

/// `GET /readyz`: 200 when events can be taken, else 503; the body says why.
pub(crate) async fn readyz(State(app): State<App>) -> Response {
    let readiness = app.host.readiness();
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, &readiness)
}
