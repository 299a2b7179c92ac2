//! A call of a tool.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_protocol::ApiError;
use rmcp::{
    RoleClient, ServiceError,
    model::{CallToolRequest, CallToolRequestParams, ClientRequest, ErrorCode, ProgressNotificationParam, ServerResult},
    service::{PeerRequestOptions, RequestHandle},
    transport::streamable_http_client::StreamableHttpError,
};
use serde_json::{Map, Value};
use tokio::{
    runtime::Handle,
    time::{sleep_until, timeout, timeout_at},
};

use super::{
    CallOptions, Progress, Tool, ToolResult,
    connection::service_words,
    failure::{self, MAX_SERVER_WORDS},
    inbox::{ProgressSlot, WantsProgress},
    output,
    server::{Link, Server},
    transport::{NOT_JSON_RPC, TOO_LARGE},
};
use crate::trace;

/// The shortest time between two reports of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);
/// The longest message of progress.
const MAX_PROGRESS_MESSAGE: usize = 1 << 10;
/// Time limit for the notice that a call is cancelled.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// After a wait of this length without an answer, the server is asked whether it is still there.
const SUSPICIOUS_AFTER: Duration = Duration::from_secs(10);

/// Calls `tool` within both deadlines.
pub(super) async fn call(
    server: &Server,
    tool: &Tool,
    parameters: Value,
    options: CallOptions<'_>,
) -> Result<ToolResult, ApiError> {
    let began = Instant::now();
    let longest = server.config.call_timeout();
    let deadline = began.checked_add(longest).map_or(options.deadline, |own| own.min(options.deadline));
    let run = run(server, tool, parameters, &options);
    match timeout_at(deadline.into(), run).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let waited = began.elapsed();
            if waited >= longest || waited >= SUSPICIOUS_AFTER {
                server.suspect();
            }
            Err(failure::timeout(&tool.name, waited))
        }
    }
}

async fn run(server: &Server, tool: &Tool, parameters: Value, options: &CallOptions<'_>) -> Result<ToolResult, ApiError> {
    let parameters = if parameters.is_null() { Value::Object(Map::new()) } else { parameters };
    let parameters = match tool.schema().admit(&format!("the tool `{}`", tool.name), parameters).await? {
        Value::Object(parameters) => parameters,
        _ => return Err(failure::refused_parameters(&tool.name, "they are not an object")),
    };
    let away = |why: &str| failure::unavailable(&server.config.id, why);
    server.link().map_err(|why| away(&why))?;
    let _permit = server.permits.acquire().await.map_err(|_| away("the host stops"))?;
    // The server may have been restarted while this call waited.
    let link = server.link().map_err(|why| away(&why))?;

    let slot = Arc::new(ProgressSlot::default());
    let mut request = CallToolRequest::new(CallToolRequestParams::new(tool.remote_name().to_owned()).with_arguments(parameters));
    if options.progress.is_some() {
        request.extensions.insert(WantsProgress(Arc::downgrade(&slot)));
    }
    if let Some(context) = trace::current() {
        request.extensions.insert(InTrace(context));
    }
    let sent = link.peer.send_cancellable_request(ClientRequest::CallToolRequest(request), PeerRequestOptions::no_options());
    let handle = sent.await.map_err(|_| away("it went away"))?;
    let mut call = InFlight { handle: Some(handle), link: link.clone(), runtime: server.runtime.clone() };
    let answer = call.answer(&slot, options).await;
    match answer {
        Ok(result) => output::read(&tool.name, result, server.config.max_output_bytes, &link.redactor),
        Err(error) => Err(failed(server, tool, &link, error)),
    }
}

/// Travels with a `tools/call` to the transport: another task sends it.
#[derive(Debug, Clone)]
pub(super) struct InTrace(pub(super) trace::SpanContext);

/// An open call. Dropping it before its answer notifies the server.
struct InFlight {
    handle: Option<RequestHandle<RoleClient>>,
    link: Link,
    runtime: Handle,
}

impl InFlight {
    async fn answer(&mut self, slot: &ProgressSlot, options: &CallOptions<'_>) -> Result<ServerResult, ServiceError> {
        let Some(handle) = &mut self.handle else { return Err(ServiceError::TransportClosed) };
        let report = |progress: ProgressNotificationParam| {
            if let Some(report) = options.progress {
                let message = progress.message.map(|text| self.link.redactor.cut(&text, MAX_PROGRESS_MESSAGE));
                report(Progress { progress: progress.progress, total: progress.total, message });
            }
        };
        let mut next = Instant::now();
        let answer = loop {
            let arrived = async {
                slot.arrived().await;
                sleep_until(next.into()).await;
            };
            tokio::select! {
                biased;
                answer = &mut handle.rx => break answer,
                () = arrived => {
                    slot.take().map(report);
                    next = Instant::now() + PROGRESS_EVERY;
                }
            }
        };
        // The last report came just before the answer.
        slot.take().map(report);
        if let Some(handle) = self.handle.take() {
            self.link.inbox.forget(&handle.progress_token);
        }
        answer.unwrap_or(Err(ServiceError::TransportClosed))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.link.inbox.forget(&handle.progress_token);
            self.runtime.spawn(timeout(CANCEL_TIMEOUT, handle.cancel(Some("the caller does not wait any longer".into()))));
        }
    }
}

fn failed(server: &Server, tool: &Tool, link: &Link, error: ServiceError) -> ApiError {
    let limit = server.config.max_output_bytes;
    let words = |error: &ServiceError| link.redactor.cut(&service_words(error), MAX_SERVER_WORDS);
    match &error {
        ServiceError::McpError(answer) => match answer.code {
            TOO_LARGE => failure::output_too_large(&tool.name, None, limit),
            NOT_JSON_RPC => failure::protocol(&tool.name, &words(&error)),
            ErrorCode::INVALID_PARAMS => failure::refused_parameters(&tool.name, &words(&error)),
            code => failure::refused(&tool.name, code.0, &words(&error)),
        },
        ServiceError::TransportSend(sent) => {
            server.suspect();
            match sent.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
                Some(StreamableHttpError::ResponseBodyTooLarge { .. }) => failure::output_too_large(&tool.name, None, limit),
                Some(
                    StreamableHttpError::UnexpectedServerResponse(_)
                    | StreamableHttpError::UnexpectedContentType(_)
                    | StreamableHttpError::Deserialize(_)
                    | StreamableHttpError::Sse(_)
                    | StreamableHttpError::UnexpectedEndOfStream,
                ) => failure::protocol(&tool.name, &words(&error)),
                _ => failure::unavailable(&server.config.id, &words(&error)),
            }
        }
        ServiceError::TransportClosed => {
            let why = link.inbox.fault().unwrap_or_else(|| "it went away".into());
            let why = link.redactor.cut(&why, MAX_SERVER_WORDS);
            failure::unavailable(&server.config.id, &format!("{why} during the call; the effects of the tool are unknown"))
        }
        _ => failure::protocol(&tool.name, &words(&error)),
    }
}
