//! Every path of the server, and the layers around them.

use axum::{
    Router,
    http::{Method, Uri},
};

use crate::{
    access::cors,
    app::App,
    http::{Problem, ProblemCode},
    layer::RequestLayer,
    routes,
};

/// Every path of the server.
pub(crate) fn router(app: App) -> Router {
    let (routes, _) = routes::routes().split_for_parts();
    let routes = routes.fallback(unknown_path).method_not_allowed_fallback(wrong_method).layer(RequestLayer::new(app.clone()));
    // Outside of the authentication: a browser asks without a key whether it may send one.
    let routes = if app.host.config().cors_origins.is_empty() { routes } else { routes.layer(cors::layer(&app.host)) };
    routes.with_state(app)
}

async fn unknown_path(uri: Uri) -> Problem {
    Problem::not_found(format!("there is nothing at {}; the API is under /api/v1, such as /api/v1/runs", shortened(uri.path())))
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    Problem::new(
        ProblemCode::MethodNotAllowed,
        format!(
            "{} does not support {}; the header `Allow` lists the supported methods",
            shortened(uri.path()),
            shortened(method.as_str())
        ),
    )
}

/// A foreign text, short enough for a message. Paths and methods have no control characters.
fn shortened(text: &str) -> String {
    const MAX: usize = 200;
    let mut short: String = text.chars().take(MAX).collect();
    if text.chars().nth(MAX).is_some() {
        short.push('…');
    }
    short
}
