//! Transports of a harness to its host: within the process, and over HTTP.

use std::time::Duration;

use agent_host_harness::{Answer, Registered, Request, Transport, TransportError};
use agent_host_runs::{Host, Registration};
use agent_host_server::{ClusterClient, LocalAnswer, LocalClient, LocalRequest};
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use reqwest::{Url, header};
use serde_json::Value;

/// A server that does not take the connection within this is not there.
const CONNECT: Duration = Duration::from_secs(5);
/// An answer to a registration is short.
const MAX_REGISTERED: usize = 1 << 20;

/// The way within the process that serves.
pub(crate) struct LocalTransport {
    pub(crate) host: Host,
    pub(crate) client: LocalClient,
    /// The way to the other partitions of a cluster.
    pub(crate) cluster: Option<ClusterClient>,
    /// Address of the server for other processes.
    pub(crate) url: String,
}

impl Transport for LocalTransport {
    fn register(&self, mut registration: Value) -> BoxFuture<'_, Result<Registered, TransportError>> {
        Box::pin(async move {
            if let Some(registration) = registration.as_object_mut() {
                // The host has it from the same configuration.
                registration.remove("manifests");
            }
            let sent = Bytes::from(registration.to_string());
            let registration: Registration =
                serde_json::from_value(registration).map_err(|error| TransportError(error.to_string()))?;
            let registered = self.host.register_executor(registration, None).await;
            let (executor, credential) = registered.map_err(|error| TransportError(error.to_string()))?;
            if let Some(cluster) = &self.cluster
                && let Err(error) = cluster.register_in_others(sent, &credential).await
            {
                return Err(TransportError(error.to_string()));
            }
            Ok(Registered { executor_id: executor.executor_id, credential })
        })
    }

    fn send<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<Answer, TransportError>> {
        Box::pin(async move {
            let Request { method, path, token, body, max_bytes } = request;
            let request = LocalRequest { method, path, token, body, max_bytes };
            let answer = match &self.cluster {
                None => self.client.send(request).await,
                Some(cluster) => cluster.send(&self.client, request).await,
            };
            let answer = answer.map_err(|error| TransportError(error.to_string()))?;
            let LocalAnswer { status, retry_after, body } = answer;
            Ok(Answer { status, retry_after, body })
        })
    }

    fn base_url(&self) -> &str {
        &self.url
    }
}

/// The way to a server elsewhere.
pub(crate) struct HttpTransport {
    http: reqwest::Client,
    url: String,
    key: String,
}

impl HttpTransport {
    /// `key` has the scope `runs:execute`; empty for a host that trusts its own machine.
    pub(crate) fn new(url: &Url, key: String) -> Result<Self, reqwest::Error> {
        // A call may wait for a person, so that only the connection has a time limit.
        let http = reqwest::Client::builder().connect_timeout(CONNECT).no_proxy().build()?;
        Ok(Self { http, url: url.as_str().trim_end_matches('/').to_owned(), key })
    }

    async fn post_registration(&self, registration: &Value) -> Result<Answer, TransportError> {
        let body = Bytes::from(registration.to_string());
        self.send(Request {
            method: reqwest::Method::POST,
            path: "/api/v1/executors",
            token: &self.key,
            body: Some(("application/json", body)),
            max_bytes: MAX_REGISTERED,
        })
        .await
    }
}

impl Transport for HttpTransport {
    fn register(&self, mut registration: Value) -> BoxFuture<'_, Result<Registered, TransportError>> {
        Box::pin(async move {
            let mut answer = self.post_registration(&registration).await?;
            if matches!(answer.status, 403 | 409)
                && let Some(registration) = registration.as_object_mut()
            {
                // The host has a manifest of this runner, or takes none from executors.
                registration.remove("manifests");
                answer = self.post_registration(&Value::Object(registration.clone())).await?;
            }
            if answer.status != 201 {
                let text = String::from_utf8_lossy(&answer.body).into_owned();
                let detail =
                    serde_json::from_str::<Value>(&text).ok().and_then(|it| Some(it.get("detail")?.as_str()?.to_owned()));
                return Err(TransportError(format!("it answered {}: {}", answer.status, detail.unwrap_or(text))));
            }
            serde_json::from_slice(&answer.body).map_err(|error| TransportError(error.to_string()))
        })
    }

    fn send<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<Answer, TransportError>> {
        Box::pin(async move {
            let Request { method, path, token, body, max_bytes } = request;
            let failed = |error: reqwest::Error| TransportError(error.without_url().to_string());
            let mut builder = self.http.request(method, format!("{}{path}", self.url));
            if !token.is_empty() {
                builder = builder.bearer_auth(token);
            }
            if let Some((media_type, body)) = body {
                builder = builder.header(header::CONTENT_TYPE, media_type).body(body);
            }
            let mut response = builder.send().await.map_err(failed)?;
            let status = response.status().as_u16();
            let retry_after = response.headers().get(header::RETRY_AFTER);
            let retry_after = retry_after.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
            let mut body = BytesMut::new();
            while let Some(piece) = response.chunk().await.map_err(failed)? {
                if body.len() + piece.len() > max_bytes {
                    return Err(TransportError(format!("the answer has more than {max_bytes} bytes")));
                }
                body.extend_from_slice(&piece);
            }
            Ok(Answer { status, retry_after, body: body.freeze() })
        })
    }

    fn base_url(&self) -> &str {
        &self.url
    }
}
