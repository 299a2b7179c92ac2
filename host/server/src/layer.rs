//! The one layer around every route, which sees a request in these steps:
//!
//! 1. its id, its span and its metrics ([`request_log`](crate::request_log));
//! 2. under `/api/v1/agent`, the form of refusals ([`errors`]);
//! 3. its sender ([`authentication`]), for whom it may wait: for the keys of an identity provider;
//! 4. its dialect ([`Exchange`]);
//! 5. the route, whose panic becomes an answer too;
//! 6. the audit of the control plane ([`control_audit`](crate::control_audit)).
//!
//! Of what happens before the route, only the keys of an identity provider are waited for. Every other request is answered in place:
//! nothing of the route is cloned.

use std::{
    convert::Infallible,
    panic::AssertUnwindSafe,
    task::{Context, Poll},
};

use agent_host_runs::log_context::LogContext;
use axum::{
    extract::Request,
    response::{IntoResponse, Response},
};
use futures_util::{
    FutureExt,
    future::{BoxFuture, Either},
};
use tower::{Layer, Service};

use crate::{
    access::{
        authentication,
        identity::{Identities, Judgement, Verdict},
    },
    agents::profile::errors,
    app::App,
    control_audit::{self, AuditedRequest},
    http::Problem,
    langbot::Exchange,
    request_log::RequestLog,
};

/// Makes the layer.
#[derive(Clone)]
pub(crate) struct RequestLayer {
    app: App,
    identities: Identities,
}

impl RequestLayer {
    pub(crate) fn new(app: App) -> Self {
        Self { app, identities: Identities::default() }
    }
}

impl<S> Layer<S> for RequestLayer {
    type Service = RequestService<S>;

    fn layer(&self, route: S) -> RequestService<S> {
        RequestService { app: self.app.clone(), identities: self.identities.clone(), route }
    }
}

/// A route with the layer around it.
#[derive(Clone)]
pub(crate) struct RequestService<S> {
    app: App,
    identities: Identities,
    route: S,
}

impl<S> Service<Request> for RequestService<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.route.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let log = RequestLog::begin(&self.app, &request);
        let context = log.context();
        let answering = match context.clone().enter(|| authentication::judge_token(&self.app, &self.identities, &request)) {
            None => Either::Left(self.answer(context, request, None)),
            Some(Verdict::Ready(token)) => Either::Left(self.answer(context, request, Some(token))),
            Some(Verdict::Waiting(token)) => {
                let mut later = self.clone();
                Either::Right(async move {
                    let token = token.await;
                    later.answer(context, request, Some(token)).await
                })
            }
        };
        Box::pin(log.around(answering).map(Ok))
    }
}

impl<S> RequestService<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
    S::Future: Send + 'static,
{
    /// The answer to a request, once the token of an identity provider is judged, where it has one.
    fn answer(
        &mut self,
        context: LogContext,
        mut request: Request,
        token: Option<Judgement>,
    ) -> impl Future<Output = Response> + Send + use<S> {
        let instance = errors::instance(&request);
        let admitted = context.enter(|| authentication::admit(&self.app, &mut request, token));
        // Unknown callers leave no records: what they can write is bounded by nothing else.
        let audited =
            admitted.as_ref().ok().and_then(|_| AuditedRequest::begin(&request)).map(|audited| (audited, self.app.clone()));
        let admitted = admitted.and_then(|welcome| Ok((welcome, Exchange::begin(&mut request)?)));
        let admitted = admitted.map(|(welcome, exchange)| (welcome, exchange, self.route.call(request)));
        async move {
            let response = match admitted {
                Ok((welcome, exchange, route)) => {
                    let response = authentication::while_welcome(welcome, answer(route)).await;
                    match exchange {
                        Some(exchange) => exchange.finish(response).await,
                        None => response,
                    }
                }
                Err(problem) => problem.into_response(),
            };
            let record = audited.and_then(|(audited, app)| Some((audited.record(&response)?, app)));
            if let Some((record, app)) = record {
                control_audit::write(&app, record).await;
            }
            match instance {
                Some(instance) => errors::in_dialect(&instance, response).await,
                None => response,
            }
        }
    }
}

/// The answer of a route. A panic ends its own request only; the hook of the process has said where it happened.
async fn answer(route: impl Future<Output = Result<Response, Infallible>>) -> Response {
    match AssertUnwindSafe(route).catch_unwind().await {
        Ok(Ok(response)) => response,
        Err(_panic) => Problem::internal("the handler of the route panicked").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::SocketAddr,
        sync::{Arc, Mutex},
    };

    use agent_host_runs::{
        Config, Host,
        log_context::{self, LogValue},
    };
    use axum::{
        Router,
        body::{Body, to_bytes},
        http::StatusCode,
        routing::get,
    };
    use serde_json::Value;
    use tokio_util::sync::CancellationToken;
    use tower::ServiceExt;
    use tracing_subscriber::layer::{Context as LayerContext, SubscriberExt};

    use super::*;
    use crate::http::connections::Peer;

    /// Level, target and request id of a line.
    type Line = (tracing::Level, String, Option<String>);

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<Line>>>);

    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Lines {
        fn on_event(&self, event: &tracing::Event<'_>, _: LayerContext<'_, S>) {
            let mut request_id = None;
            LogContext::current().visit(&mut |ids| {
                ids.visit(&mut |name, value| {
                    if let ("request_id", LogValue::Text(id)) = (name, value) {
                        request_id = Some(id.to_owned());
                    }
                });
            });
            self.0.lock().unwrap().push((*event.metadata().level(), event.metadata().target().to_owned(), request_id));
        }
    }

    async fn spawns() -> &'static str {
        let spawned = tokio::spawn(log_context::inherit(async { tracing::info!(target: "spawned", "a line") }));
        spawned.await.unwrap();
        "done"
    }

    async fn panics() -> &'static str {
        tokio::task::yield_now().await;
        panic!("a test panics")
    }

    struct World {
        routes: Router,
        app: App,
        lines: Lines,
        _guard: tracing::subscriber::DefaultGuard,
        _dir: tempfile::TempDir,
    }

    impl World {
        async fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let mut config = Config::default_in(dir.path());
            config.loopback_without_key = true;
            let host = Host::start(config).await.unwrap();
            let shares = crate::app::ProcessShares::new(&host.config());
            let app = App::new(host, "127.0.0.1:1".parse().unwrap(), CancellationToken::new(), shares);
            let routes = Router::new()
                .route("/api/v1/panics", get(panics))
                .route("/api/v1/agent/panics", get(panics))
                .route("/api/v1/spawns", get(spawns));
            let lines = Lines::default();
            let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(lines.clone()));
            Self { routes: routes.layer(RequestLayer::new(app.clone())), app, lines, _guard: guard, _dir: dir }
        }

        /// Status, request id and body of an answer.
        async fn get(&self, path: &str, host: &str) -> (StatusCode, String, String) {
            let request = Request::get(path).header("host", host).header("x-request-id", "req-9");
            let mut request = request.body(Body::empty()).unwrap();
            request.extensions_mut().insert(Peer(SocketAddr::from(([127, 0, 0, 1], 9))));
            let response = self.routes.clone().oneshot(request).await.unwrap();
            let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
            let status = response.status();
            let body = to_bytes(response.into_body(), 10_000).await.unwrap();
            (status, id, String::from_utf8(body.to_vec()).unwrap())
        }

        fn lines(&self, target: &str) -> Vec<(tracing::Level, Option<String>)> {
            let lines = self.lines.0.lock().unwrap();
            lines.iter().filter(|line| line.1.starts_with(target)).map(|line| (line.0, line.2.clone())).collect()
        }
    }

    #[tokio::test]
    async fn a_panic_of_a_route_is_an_answer_and_a_line_with_the_request_id() {
        let world = World::new().await;
        let (status, id, body) = world.get("/api/v1/panics", "localhost").await;
        assert_eq!((status, id.as_str()), (StatusCode::INTERNAL_SERVER_ERROR, "req-9"));
        let problem: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(problem["code"], "internal", "{body}");
        assert!(!body.contains("a test panics"), "{body}");
        assert!(world.lines("agent_host_server").contains(&(tracing::Level::ERROR, Some("req-9".to_owned()))));
        // The next request is served.
        assert_eq!(world.get("/api/v1/spawns", "localhost").await.2, "done");
        let (status, _, body) = world.get("/api/v1/agent/panics", "localhost").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(body.contains("AGENT_INTERNAL") && body.contains("/api/v1/agent/panics"), "{body}");
    }

    #[tokio::test]
    async fn a_line_of_a_spawned_task_names_its_request() {
        let world = World::new().await;
        assert_eq!(world.get("/api/v1/spawns", "localhost").await.0, StatusCode::OK);
        assert_eq!(world.lines("spawned"), [(tracing::Level::INFO, Some("req-9".to_owned()))]);
    }

    #[tokio::test]
    async fn a_refused_request_is_counted_named_and_not_routed() {
        let world = World::new().await;
        let (status, id, _) = world.get("/api/v1/spawns", "evil.example").await;
        assert_eq!((status, id.as_str()), (StatusCode::UNAUTHORIZED, "req-9"));
        assert_eq!(world.lines("spawned"), []);
        let mut page = String::new();
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(world.app.http.clone().collector());
        prometheus_client::encoding::text::encode_registry(&mut page, &registry).unwrap();
        let row = "http_requests_total{route=\"/api/v1/spawns\",method=\"GET\",status=\"4xx\"} 1";
        assert!(page.contains(row), "{page}");
    }
}
