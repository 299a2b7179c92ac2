//! `agent-host mcp-bridge`: messages of MCP between standard input and output and an endpoint over HTTP.
//!
//! `rmcp` owns both transports: lines on this side; sessions, streams and reconnection on the other. The bridge carries each
//! message as it is, and answers a request that cannot be delivered with the reason.

use std::process::ExitCode;

use clap::Args;
use futures_util::{StreamExt, stream::FuturesUnordered};
use rmcp::{
    RoleServer,
    model::{ClientJsonRpcMessage, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::{
        StreamableHttpClientTransport, Transport, async_rw::AsyncRwTransport, stdio,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};

use crate::failure::Failure;

/// Longest message in bytes: more than any endpoint of a host takes.
const MAX_MESSAGE_BYTES: usize = 128 << 20;

/// Connect a program that speaks MCP over standard input and output to an MCP endpoint of a host
///
/// The program starts this command as its MCP server. It ends with the input, or when the endpoint ends.
#[derive(Debug, Args)]
pub(crate) struct McpBridge {
    /// URL of the endpoint, such as http://127.0.0.1:7070/mcp/runs/RUN_ID
    #[arg(long, value_name = "URL", env = "AGENT_HOST_MCP_URL")]
    url: String,
    /// Token of the endpoint; the environment hides it from other users of the machine
    #[arg(long, value_name = "TOKEN", env = "AGENT_HOST_MCP_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

impl McpBridge {
    pub(crate) async fn execute(&self) -> anyhow::Result<ExitCode> {
        let refused = |why: String| Failure::new("invalid_server", why);
        let url = reqwest::Url::parse(&self.url).map_err(|error| refused(format!("`{}` is no URL: {error}", self.url)))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(
                refused(format!("`{}` is no URL of an endpoint over HTTP, such as http://127.0.0.1:7070/mcp", self.url)).into()
            );
        }
        // A proxy of the environment knows nothing of this machine, and no endpoint redirects with its token.
        let http = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build();
        let http = http.map_err(|error| Failure::new("http", format!("no HTTP client can be made: {error}")))?;
        let mut config = StreamableHttpClientTransportConfig::with_uri(self.url.as_str());
        config.max_sse_event_size = MAX_MESSAGE_BYTES;
        if let Some(token) = self.token.as_ref().filter(|token| !token.is_empty()) {
            config = config.auth_header(token);
        }
        let endpoint = StreamableHttpClientTransport::with_client(http, config);
        let (input, output) = stdio();
        carry(AsyncRwTransport::new_server(input, output).with_max_line_length(MAX_MESSAGE_BYTES), endpoint).await?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Carries messages until one side ends.
async fn carry(
    mut program: impl Transport<RoleServer>,
    mut endpoint: StreamableHttpClientTransport<reqwest::Client>,
) -> Result<(), Failure> {
    // Requests are delivered side by side; a delivery that fails is answered here.
    let mut deliveries = FuturesUnordered::new();
    let mut failure = None;
    loop {
        tokio::select! {
            message = program.receive() => match message {
                Some(message) => {
                    let id = request_id(&message);
                    let sending = endpoint.send(message);
                    deliveries.push(async move { (id, sending.await.map_err(|error| error.to_string())) });
                }
                None => break,
            },
            message = endpoint.receive() => match message {
                Some(message) => answer(&mut program, message).await?,
                None => {
                    while let Some((id, delivered)) = deliveries.next().await {
                        failure = undelivered(&mut program, id, delivered).await?.or(failure);
                    }
                    let why = failure.unwrap_or_else(|| "the endpoint has ended".to_owned());
                    return Err(Failure::new("endpoint_ended", why));
                }
            },
            Some((id, delivered)) = deliveries.next() => {
                failure = undelivered(&mut program, id, delivered).await?.or(failure);
            }
        }
    }
    // Ends the session, so that its place is free at once.
    drop(endpoint.close().await);
    Ok(())
}

/// Answers a request that was not delivered, with the reason; gives the reason of a delivery that failed.
async fn undelivered(
    program: &mut impl Transport<RoleServer>,
    id: Option<RequestId>,
    delivered: Result<(), String>,
) -> Result<Option<String>, Failure> {
    let Err(why) = delivered else { return Ok(None) };
    if let Some(id) = id {
        let error = ErrorData::internal_error(format!("the endpoint has not taken the request: {why}"), None);
        answer(program, ServerJsonRpcMessage::error(error, Some(id))).await?;
    }
    Ok(Some(why))
}

async fn answer(program: &mut impl Transport<RoleServer>, message: ServerJsonRpcMessage) -> Result<(), Failure> {
    program.send(message).await.map_err(|error| Failure::new("io", format!("the program does not read its input: {error}")))
}

fn request_id(message: &ClientJsonRpcMessage) -> Option<RequestId> {
    match message {
        JsonRpcMessage::Request(request) => Some(request.id.clone()),
        _ => None,
    }
}
