//! One connection to a server: opening, listing tools, closing.

use std::{collections::HashMap, error::Error, sync::Arc, time::Duration};

use agent_host_config::McpServerConfig;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::{
    ClientHandler, ErrorData, Peer, RoleClient, ServiceError,
    model::{
        ClientCapabilities, ClientConfig, ClientRequest, CustomRequest, CustomResult, ErrorCode, Implementation,
        ListToolsRequest, PaginatedRequestParams, ProtocolVersion, ServerResult, SubscriptionFilter,
    },
    service::{
        ClientInitializeError, ClientLifecycleMode, PeerRequestOptions, RequestContext, RunningServiceCancellationToken,
        serve_client_with_lifecycle,
    },
    transport::{
        StreamableHttpClientTransport,
        streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError},
    },
};
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{timeout, timeout_at},
};
use url::Url;

use super::{
    Tool,
    failure::MAX_SERVER_WORDS,
    inbox::{ELICIT, Inbox},
    names::full_names,
    output::json_bytes,
    process::{Process, drain},
    schema::MAX_SCHEMA,
    server::{Link, ToolMap},
    transport::{Http, Stdio},
    value::ResolvedValue,
    web::Web,
};
use crate::redact::Redactor;
use crate::secret::Secret;

/// Tools of one server.
const MAX_TOOLS: usize = 1000;
/// Pages of a list of tools.
const MAX_PAGES: usize = 100;
/// The longest description; what is longer is cut.
const MAX_DESCRIPTION: usize = 4 << 10;
/// The longest name that a server may give a tool.
const MAX_REMOTE_NAME: usize = 256;
/// Bytes of a message besides the content of a call: names, links, progress.
const MESSAGE_OVERHEAD: usize = 64 << 10;
/// A page of a list of tools fits, however little a call may bring.
const MIN_MESSAGE: usize = 4 << 20;
/// Time limit for the closing handshake of a server.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// This host, as a client of tool servers. The client offers servers no model, no files, and no person to ask.
#[derive(Debug)]
struct Client;

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("agent-host", env!("CARGO_PKG_VERSION")))
            .with_protocol_version(ProtocolVersion::V_2025_11_25)
    }

    /// All that a server asks of the host arrives as this (see `inbox`).
    async fn on_custom_request(&self, request: CustomRequest, _: RequestContext<RoleClient>) -> Result<CustomResult, ErrorData> {
        if request.method == ELICIT {
            return Ok(CustomResult::new(json!({ "action": "decline" })));
        }
        let message = format!("this host does not do {} for tool servers", request.method);
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, None))
    }
}

/// The end of a connection.
#[derive(Debug)]
pub(super) enum ConnectionEnd {
    /// The host stops.
    Stopped,
    /// By itself, or because the server does not answer any more.
    Because(String),
}

/// The reason why a connection could not be opened, or the tools not listed.
#[derive(Debug)]
pub(super) struct ConnectFailure {
    /// For operators; without secrets.
    pub(super) problem: String,
    /// The server is there, and answered with an error.
    pub(super) answered: bool,
    /// True if the other handshake may succeed.
    pub(super) other_lifecycle: bool,
}

impl ConnectFailure {
    fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), answered: false, other_lifecycle: false }
    }
}

/// The tools of a server.
#[derive(Debug)]
pub(super) struct List {
    pub(super) tools: ToolMap,
    /// Something is wrong with some of them.
    pub(super) problem: Option<String>,
}

/// A server that answers.
pub(super) struct Connection {
    link: Link,
    process: Option<Process>,
    service: JoinHandle<()>,
    token: Option<RunningServiceCancellationToken>,
    stderr: Option<JoinHandle<Option<String>>>,
    listening: Option<JoinHandle<()>>,
}

impl Connection {
    /// Starts or reaches the server, says hello and lists its tools, within `start_timeout_ms`.
    pub(super) async fn open(config: &McpServerConfig, lifecycle: ClientLifecycleMode) -> Result<(Self, List), ConnectFailure> {
        let deadline = tokio::time::Instant::now() + config.start_timeout();
        let too_slow = || ConnectFailure::new(format!("it was not ready within {} ms", config.start_timeout_ms));
        let discover = matches!(lifecycle, ClientLifecycleMode::Discover { .. });
        let opened = match timeout_at(deadline, Self::connect(config, lifecycle)).await {
            Ok(opened) => opened,
            Err(_) => Err(too_slow()),
        };
        let connection =
            opened.map_err(|failed| ConnectFailure { other_lifecycle: failed.other_lifecycle || discover, ..failed })?;
        let patience = deadline.saturating_duration_since(tokio::time::Instant::now());
        match connection.lister().list(config, patience).await {
            Ok(list) => Ok((connection, list)),
            Err(failed) => {
                connection.close().await;
                Err(failed)
            }
        }
    }

    async fn connect(config: &McpServerConfig, lifecycle: ClientLifecycleMode) -> Result<Self, ConnectFailure> {
        let values = if config.url.is_some() { &config.headers } else { &config.env };
        let values = values.iter().map(|(name, value)| Ok((name.clone(), ResolvedValue::of(value)?)));
        let values: Vec<(String, ResolvedValue)> = values
            .collect::<Result<_, _>>()
            .map_err(|error: crate::secret::SecretError| ConnectFailure::new(error.to_string()))?;
        let redactor = Redactor::new(secrets(config, &values));
        let inbox = Arc::new(Inbox::default());
        let max_message = config.max_output_bytes.saturating_mul(2).saturating_add(MESSAGE_OVERHEAD).max(MIN_MESSAGE);

        let (served, process, stderr) = if let Some(url) = &config.url {
            let transport = http_transport(url, config, &values, max_message).map_err(ConnectFailure::new)?;
            (serve_client_with_lifecycle(Client, Http::new(transport, inbox.clone()), lifecycle).await, None, None)
        } else {
            let (mut process, pipes) = Process::start(config, &values).map_err(ConnectFailure::new)?;
            let stderr = tokio::spawn(drain(config.id.clone(), pipes.stderr, redactor.clone(), inbox.clone()));
            let transport = Stdio::new(pipes.stdin, pipes.stdout, max_message, inbox.clone());
            let served = serve_client_with_lifecycle(Client, transport, lifecycle).await;
            if served.is_err() {
                // The exit status says more than the closed output.
                if let Ok(how) = timeout(Duration::from_millis(200), process.ended()).await {
                    inbox.set_fault(how);
                    if let Ok(Ok(Some(words))) = timeout(Duration::from_millis(200), stderr).await {
                        let fault = inbox.fault().unwrap_or_default();
                        return Err(ConnectFailure::new(format!("{fault}; it said: {}", redactor.cut(&words, MAX_SERVER_WORDS))));
                    }
                    return Err(ConnectFailure::new(inbox.fault().unwrap_or_default()));
                }
                stderr.abort();
            }
            (served, Some(process), Some(stderr))
        };
        let running = served.map_err(|error| ConnectFailure {
            problem: inbox.fault().unwrap_or_else(|| redactor.cut(&start_words(&error), MAX_SERVER_WORDS)),
            answered: false,
            other_lifecycle: matches!(
                error,
                ClientInitializeError::JsonRpcError(_)
                    | ClientInitializeError::ExpectedInitResult(_)
                    | ClientInitializeError::UncorrelatedErrorResponse { .. }
                    | ClientInitializeError::NoCompatibleProtocolVersion { .. }
            ),
        })?;
        let peer = running.peer().clone();
        let token = running.cancellation_token();
        let listening = listen(&peer);
        let service = tokio::spawn(async move {
            // The process and the inbox have the reason of the end.
            let _ = running.waiting().await;
        });
        let link = Link { peer, inbox, redactor };
        Ok(Self { link, process, service, token: Some(token), stderr, listening })
    }

    pub(super) fn link(&self) -> Link {
        self.link.clone()
    }

    pub(super) fn inbox(&self) -> Arc<Inbox> {
        self.link.inbox.clone()
    }

    pub(super) fn lister(&self) -> Lister {
        Lister(self.link.clone())
    }

    /// Waits until it has ended by itself, and says why. May be asked again.
    pub(super) async fn ended(&mut self) -> String {
        let how = match &mut self.process {
            Some(process) => tokio::select! {
                how = process.ended() => how,
                _ = &mut self.service, if !self.service.is_finished() => "it closed the connection".into(),
            },
            None => {
                if !self.service.is_finished() {
                    let _ = (&mut self.service).await;
                }
                "the connection was closed".into()
            }
        };
        let how = self.link.inbox.fault().unwrap_or(how);
        self.link.redactor.cut(&how, MAX_SERVER_WORDS)
    }

    /// Says goodbye and ends what was started. Bounded.
    pub(super) async fn close(mut self) {
        if let Some(listening) = &self.listening {
            listening.abort();
        }
        if let Some(token) = self.token.take() {
            token.cancel();
        }
        if !self.service.is_finished() {
            let _ = timeout(CLOSE_TIMEOUT, &mut self.service).await;
        }
        if let Some(process) = self.process.take() {
            process.end().await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Both hold what the connection needs; a process is ended by its own drop.
        self.service.abort();
        for task in [self.listening.take()].into_iter().flatten() {
            task.abort();
        }
        if let Some(stderr) = self.stderr.take() {
            stderr.abort();
        }
    }
}

/// Servers of the newest protocol notify only subscribers of changed tools.
fn listen(peer: &Peer<RoleClient>) -> Option<JoinHandle<()>> {
    let modern = peer.peer_info().is_some_and(|info| !info.protocol_version.has_initialize());
    modern.then(|| {
        let peer = peer.clone();
        tokio::spawn(async move {
            if let Ok(mut changes) = peer.listen(SubscriptionFilter::builder().tools_list_changed().build()).await {
                // The transport takes the notifications; this keeps the subscription.
                while let Ok(Some(_)) = changes.next().await {}
            }
        })
    })
}

fn secrets(config: &McpServerConfig, values: &[(String, ResolvedValue)]) -> Vec<Secret> {
    let mut secrets = Vec::new();
    for (_, value) in values {
        if let ResolvedValue::Secret(secret) = value {
            secrets.push(secret.clone());
            // As it stands within JSON, and behind `Bearer `.
            let quoted = Value::from(secret.expose()).to_string();
            if let Some(inner) = quoted.get(1..quoted.len().saturating_sub(1))
                && inner != secret.expose()
            {
                secrets.push(Secret::new(inner));
            }
            if let Some((_, token)) = secret.expose().split_once(' ') {
                secrets.push(Secret::new(token.trim()));
            }
        }
    }
    // Errors of HTTP repeat the address; its query may hold a key.
    let url = config.url.as_deref().and_then(|url| Url::parse(url).ok());
    secrets.extend(url.as_ref().and_then(Url::query).map(Secret::new));
    secrets
}

fn http_transport(
    url: &str,
    config: &McpServerConfig,
    values: &[(String, ResolvedValue)],
    max_message: usize,
) -> Result<StreamableHttpClientTransport<Web>, String> {
    // Redirects are not followed: the headers are for this address.
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(config.start_timeout())
        .user_agent(concat!("agent-host/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| format!("HTTP cannot be used: {error}"))?;
    let mut headers = HashMap::new();
    for (name, value) in values {
        let broken = || format!("the header `{name}` cannot be sent: its value has characters that no header may have");
        let mut content = HeaderValue::from_str(value.expose()).map_err(|_| broken())?;
        content.set_sensitive(matches!(value, ResolvedValue::Secret(_)));
        headers.insert(HeaderName::try_from(name).map_err(|_| broken())?, content);
    }
    let config = StreamableHttpClientTransportConfig::with_uri(url)
        .custom_headers(headers)
        .max_concurrent_requests(config.max_concurrent.saturating_add(2))
        .max_sse_event_size(max_message);
    Ok(StreamableHttpClientTransport::with_client(Web(client), config))
}

/// Asks a server for its tools.
pub(super) struct Lister(Link);

impl Lister {
    /// All pages, within `patience`.
    pub(super) async fn list(&self, config: &McpServerConfig, patience: Duration) -> Result<List, ConnectFailure> {
        match timeout(patience, self.pages()).await {
            Ok(Ok((tools, problem))) => Ok(self.build(config, tools, problem)),
            Ok(Err(failed)) => Err(failed),
            Err(_) => Err(ConnectFailure::new(format!("it did not list its tools within {} ms", patience.as_millis()))),
        }
    }

    async fn pages(&self) -> Result<(Vec<rmcp::model::Tool>, Option<String>), ConnectFailure> {
        let (mut tools, mut problem, mut cursor) = (Vec::new(), None, None::<String>);
        for _ in 0..MAX_PAGES {
            let params = PaginatedRequestParams::default().with_cursor(cursor.clone());
            let request = ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params));
            let (page, next) = match self.ask(request).await {
                Ok(ServerResult::ListToolsResult(list)) => (list.tools, list.next_cursor),
                // One malformed tool must not hide the others.
                Ok(ServerResult::CustomResult(list)) => lenient_page(list.0, &mut problem)?,
                Ok(_) => return Err(ConnectFailure { answered: true, ..ConnectFailure::new("its list of tools is not one") }),
                Err(ServiceError::McpError(error)) if error.code == ErrorCode::METHOD_NOT_FOUND => return Ok((tools, None)),
                Err(error) => {
                    let answered = matches!(error, ServiceError::McpError(_));
                    let words = self.0.redactor.cut(&service_words(&error), MAX_SERVER_WORDS);
                    return Err(ConnectFailure {
                        answered,
                        ..ConnectFailure::new(format!("its tools cannot be listed: {words}"))
                    });
                }
            };
            tools.extend(page);
            if tools.len() > MAX_TOOLS {
                tools.truncate(MAX_TOOLS);
                return Ok((tools, Some(format!("it has more than {MAX_TOOLS} tools; the others are left out"))));
            }
            match next.filter(|next| !next.is_empty()) {
                None => return Ok((tools, problem)),
                next if next == cursor => return Ok((tools, Some("its list of tools does not end".into()))),
                next => cursor = next,
            }
        }
        Ok((tools, Some(format!("its list of tools has more than {MAX_PAGES} pages; the others are left out"))))
    }

    async fn ask(&self, request: ClientRequest) -> Result<ServerResult, ServiceError> {
        // The peer's own `list_tools` answers from a cache whose age the server decides.
        self.0.peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await?.await_response().await
    }

    fn build(&self, config: &McpServerConfig, offered: Vec<rmcp::model::Tool>, mut problem: Option<String>) -> List {
        let mut leave_out = |name: &str, why: &str| {
            let why = format!("the tool `{}` is left out: {why}", self.0.redactor.cut(name, MAX_REMOTE_NAME));
            tracing::warn!(server = config.id, "{why}");
            problem.get_or_insert(why);
        };
        let mut seen = std::collections::HashSet::new();
        let mut usable = Vec::new();
        for tool in offered {
            if !config.offers(&tool.name) {
            } else if tool.name.is_empty() || tool.name.len() > MAX_REMOTE_NAME {
                leave_out(&tool.name, "its name is empty or too long");
            } else if json_bytes(&Value::Object((*tool.input_schema).clone())) > MAX_SCHEMA {
                leave_out(&tool.name, "its schema is larger than 64 KiB");
            } else if !seen.insert(tool.name.to_string()) {
                leave_out(&tool.name, "there are two of this name");
            } else {
                usable.push(tool);
            }
        }
        let names = full_names(&config.id, &usable.iter().map(|tool| tool.name.as_ref()).collect::<Vec<_>>());
        let mut tools = ToolMap::new();
        for (name, tool) in names.into_iter().zip(usable) {
            if tools.contains_key(&name) {
                leave_out(&tool.name, "another one has the same name");
            } else {
                tools.insert(name.clone(), Arc::new(self.tool(name, tool)));
            }
        }
        List { tools, problem }
    }

    fn tool(&self, name: String, tool: rmcp::model::Tool) -> Tool {
        let redactor = &self.0.redactor;
        let schema = redactor.value(Value::Object(Arc::unwrap_or_clone(tool.input_schema)));
        let hints = tool.annotations.unwrap_or_default();
        let description = tool.description.map(std::borrow::Cow::into_owned).or(tool.title).or(hints.title);
        let detail = agent_host_protocol::tool::ToolDetail {
            name: name.clone(),
            description: description.map(|text| redactor.cut(&text, MAX_DESCRIPTION)),
            parameters: schema,
            read_only: hints.read_only_hint,
            idempotent: hints.idempotent_hint,
            destructive: hints.destructive_hint,
        };
        Tool::new(name, detail, tool.name.into_owned())
    }
}

fn lenient_page(list: Value, problem: &mut Option<String>) -> Result<(Vec<rmcp::model::Tool>, Option<String>), ConnectFailure> {
    let next = list.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
    let Some(Value::Array(entries)) = list.as_object().and_then(|list| list.get("tools")) else {
        return Err(ConnectFailure { answered: true, ..ConnectFailure::new("its list of tools is not one") });
    };
    let mut tools = Vec::new();
    for entry in entries.iter().take(MAX_TOOLS + 1) {
        match serde_json::from_value(entry.clone()) {
            Ok(tool) => tools.push(tool),
            Err(_) => drop(problem.get_or_insert_with(|| "a tool is left out: it has no name or no schema".into())),
        }
    }
    Ok((tools, next))
}

/// An error with its causes, each once.
pub(super) fn words(error: &(dyn Error + 'static)) -> String {
    if let Some(StreamableHttpError::Client(error)) = error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        // The error does not name its cause as source.
        return words(error);
    }
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        cause = error.source();
    }
    words
}

fn start_words(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::TransportError { error, .. } => words(&*error.error),
        ClientInitializeError::ConnectionClosed(_) => "it closed the connection".into(),
        ClientInitializeError::JsonRpcError(error) => format!("it refused: {}", error.message),
        ClientInitializeError::ExpectedInitResult(_) => "its answer to `initialize` is not one".into(),
        other => words(other),
    }
}

pub(super) fn service_words(error: &ServiceError) -> String {
    match error {
        ServiceError::TransportSend(error) => words(&*error.error),
        ServiceError::McpError(error) => error.message.to_string(),
        other => words(other),
    }
}
