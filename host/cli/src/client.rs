//! A running server, asked over HTTP.

use std::{collections::VecDeque, sync::OnceLock, time::Duration};

use agent_host_config::Config;
use agent_host_protocol::{
    Run, RunEvent, RunId,
    auth::WORKSPACE_HEADER,
    sse::{EventReader, EventTooLarge},
};
use agent_host_runs::Recording;
use futures_util::{Stream, stream};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, Response, Url, header};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{address, failure::Failure};

/// A server that does not take the connection within this is not there.
const CONNECT: Duration = Duration::from_secs(5);
/// An answer takes milliseconds; streams are not bound by this.
const ANSWER: Duration = Duration::from_secs(30);
/// A recording has all that a run was answered.
const RECORDING: Duration = Duration::from_secs(300);
/// To find out whether a server is there at all.
const PROBE: Duration = Duration::from_secs(1);
/// An event of a run is at most a result with its frame; a server that sends more is none.
const MAX_EVENT_BYTES: usize = 64 << 20;
/// A stream that breaks is taken up again after this, so many times in a row.
const RECONNECT: Duration = Duration::from_secs(1);
const RECONNECTS: u32 = 5;

/// The Authorization header of all clients of this process: a command line has one key.
static KEY: OnceLock<header::HeaderValue> = OnceLock::new();

/// Lets every client of this process send this key.
pub(crate) fn use_key(key: Option<String>) -> Result<(), Failure> {
    let Some(key) = key.filter(|key| !key.is_empty()) else { return Ok(()) };
    let value = header::HeaderValue::try_from(format!("Bearer {}", key.trim()));
    let mut value = value.map_err(|_| Failure::new("invalid_key", "the API key has characters that no key has"))?;
    value.set_sensitive(true);
    // A second one cannot be: this runs once.
    let _ = KEY.set(value);
    Ok(())
}

/// The `X-Workspace` header of all clients of this process.
static WORKSPACE: OnceLock<header::HeaderValue> = OnceLock::new();

/// Lets every client of this process name this workspace.
pub(crate) fn use_workspace(workspace: Option<String>) -> Result<(), Failure> {
    let Some(workspace) = workspace else { return Ok(()) };
    let value = header::HeaderValue::try_from(workspace);
    let value = value.map_err(|_| Failure::new("invalid_workspace", "the workspace has characters that no header has"))?;
    // A second one cannot be: this runs once.
    let _ = WORKSPACE.set(value);
    Ok(())
}

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    base: Url,
    http: reqwest::Client,
}

impl Client {
    /// A client of the server at `url`, such as `http://127.0.0.1:7070`.
    pub(crate) fn new(url: &str) -> Result<Self, Failure> {
        let failure = |why: &str| {
            Failure::new("invalid_server", format!("`{url}` is not the URL of a server: {why}, such as http://127.0.0.1:7070"))
        };
        let base = Url::parse(url).map_err(|error| failure(&format!("{error}; write one")))?;
        if base.scheme() != "http" || base.cannot_be_a_base() {
            return Err(failure("only http is spoken; write one"));
        }
        // A proxy of the environment knows nothing of this machine.
        let key = KEY.get().map(|key| (header::AUTHORIZATION, key.clone()));
        let workspace = WORKSPACE.get().map(|workspace| (header::HeaderName::from_static(WORKSPACE_HEADER), workspace.clone()));
        let headers = key.into_iter().chain(workspace).collect();
        let http = reqwest::Client::builder().connect_timeout(CONNECT).no_proxy().default_headers(headers).build();
        let http = http.map_err(|error| Failure::new("http", format!("no HTTP client can be made: {error}")))?;
        Ok(Self { base, http })
    }

    /// A client of the named server, else of the server that has the data directory.
    pub(crate) async fn running(config: &Config, server: Option<&str>, why: &str) -> Result<Self, Failure> {
        if let Some(url) = server {
            return Self::new(url);
        }
        Self::local(config).await?.ok_or_else(|| {
            let dir = config.data_dir.display();
            Failure::new(
                "no_server",
                format!("no server that answers has the data directory {dir}: {why}; name a server with --server URL"),
            )
        })
    }

    /// A client of the server that has the data directory, if one has it and answers.
    pub(crate) async fn local(config: &Config) -> Result<Option<Self>, Failure> {
        let Some(url) = address::find(&config.data_dir) else { return Ok(None) };
        let client = Self::new(&url)?;
        Ok(client.answers().await.then_some(client))
    }

    pub(crate) fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// True if an agent-host answers at this address.
    pub(crate) async fn answers(&self) -> bool {
        let Ok(url) = self.at("healthz", &[]) else { return false };
        match self.http.get(url).timeout(PROBE).send().await {
            Ok(response) => response.status().is_success(),
            Err(_) => false,
        }
    }

    /// The JSON at `path`. Parameters without a value are left out.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, Option<String>)]) -> Result<T, Failure> {
        let request = self.http.get(self.at(path, query)?).timeout(ANSWER);
        self.json(self.send(request).await?).await
    }

    /// Sends a request, with JSON where there is some, and gives the JSON of the answer.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, Option<String>)],
        body: Option<&Value>,
    ) -> Result<T, Failure> {
        let request = self.http.request(method, self.at(path, query)?).timeout(ANSWER);
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        self.json(self.send(request).await?).await
    }

    /// The answer to a POST request within `patience`.
    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value, patience: Duration) -> Result<T, Failure> {
        let request = self.http.request(Method::POST, self.at(path, &[])?).timeout(patience).json(body);
        self.json(self.send(request).await?).await
    }

    /// Sends a body that is no JSON value, and gives the JSON of the answer.
    pub(crate) async fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, Option<String>)],
        media_type: &'static str,
        content: Vec<u8>,
    ) -> Result<T, Failure> {
        let request = self.http.post(self.at(path, query)?).timeout(RECORDING);
        let request = request.header(reqwest::header::CONTENT_TYPE, media_type).body(content);
        self.json(self.send(request).await?).await
    }

    /// Asks for something to be done that has no answer.
    pub(crate) async fn request_without_answer(&self, method: Method, path: &str) -> Result<(), Failure> {
        let request = self.http.request(method, self.at(path, &[])?).timeout(ANSWER);
        self.send(request).await.map(drop)
    }

    /// All that is needed to execute a run again.
    pub(crate) async fn recording(&self, id: RunId) -> anyhow::Result<Recording> {
        let request = self.http.get(self.at(&format!("api/v1/runs/{id}/recording"), &[])?).timeout(RECORDING);
        let text = self.send(request).await?.text().await.map_err(|error| self.unreachable(&error))?;
        Ok(Recording::parse(&text)?)
    }

    /// The evidence at this path, as it arrives.
    pub(crate) async fn evidence(&self, path: &str, query: &[(&str, Option<String>)]) -> Result<Download, Failure> {
        let request = self.http.get(self.at(path, query)?).timeout(RECORDING);
        Ok(Download(self.send(request).await?))
    }

    /// A new run that shares the first calls of another.
    pub(crate) async fn fork(&self, id: RunId, request_body: &serde_json::Value) -> Result<Run, Failure> {
        let url = self.at(&format!("api/v1/runs/{id}/fork"), &[])?;
        let request = self.http.request(Method::POST, url).timeout(ANSWER).json(request_body);
        self.json(self.send(request).await?).await
    }

    /// Asks for the end of a run.
    pub(crate) async fn cancel(&self, id: RunId, reason: Option<&str>) -> Result<Run, Failure> {
        let url = self.at(&format!("api/v1/runs/{id}/cancel"), &[])?;
        let body = serde_json::json!({ "reason": reason });
        let request = self.http.request(Method::POST, url).timeout(ANSWER).json(&body);
        self.json(self.send(request).await?).await
    }

    /// Has a delivery to a webhook tried again.
    pub(crate) async fn retry_delivery(&self, run: RunId, webhook: &str) -> Result<Value, Failure> {
        let url = self.at(&format!("api/v1/deliveries/{run}/{webhook}/retry"), &[])?;
        self.json(self.send(self.http.request(Method::POST, url).timeout(ANSWER)).await?).await
    }

    /// Answers what a run asks people for. `token` says who answers, where the host wants to know.
    pub(crate) async fn respond(&self, action: &str, answer: &Value, token: Option<&str>) -> Result<Value, Failure> {
        let url = self.at(&format!("api/v1/actions/{action}/respond"), &[])?;
        let mut request = self.http.request(Method::POST, url).timeout(ANSWER).json(answer);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        self.json(self.send(request).await?).await
    }

    /// The events of a run after a cursor, as they come; ends after the terminal event.
    pub(crate) fn follow(&self, id: RunId, after: Option<String>) -> impl Stream<Item = Result<RunEvent, Failure>> + use<> {
        let reading = ResumingReader { client: self.clone(), id, after, open: None, failures: 0, ended: false };
        stream::unfold(reading, |mut reading| async move { reading.next().await.map(|event| (event, reading)) })
    }

    async fn stream(&self, id: RunId, after: Option<&str>) -> Result<Response, Failure> {
        let url = self.at(&format!("api/v1/runs/{id}/events"), &[])?;
        let mut request = self.http.get(url).header(header::ACCEPT, "text/event-stream");
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        self.send(request).await
    }

    /// The lines of an answer of any length, as they come.
    pub(crate) async fn lines(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, Option<String>)],
        body: Option<&Value>,
    ) -> Result<LineStream, Failure> {
        let request = self.http.request(method, self.at(path, query)?).header(header::ACCEPT, "application/x-ndjson");
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        Ok(LineStream { response: self.send(request).await?, arrived: Vec::new() })
    }

    fn at(&self, path: &str, query: &[(&str, Option<String>)]) -> Result<Url, Failure> {
        let url = format!("{}/{path}", self.url());
        let parameters = query.iter().filter_map(|(name, value)| value.as_ref().map(|value| (*name, value)));
        let url = if query.is_empty() { Url::parse(&url) } else { Url::parse_with_params(&url, parameters) };
        url.map_err(|error| Failure::new("invalid_server", format!("{}: {error}", self.base)))
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = response.bytes().await.unwrap_or_default();
        Err(match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => Failure::new(problem.code, problem.detail),
            Err(_) => Failure::new("http", format!("{} answered {status}, and not as an agent-host does", self.base)),
        })
    }

    async fn json<T: DeserializeOwned>(&self, response: Response) -> Result<T, Failure> {
        let body = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&body).map_err(|error| {
            Failure::new(
                "http",
                format!(
                    "{} answered with something else than expected ({error}): is it an agent-host of this version?",
                    self.base
                ),
            )
        })
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let mut cause: &dyn std::error::Error = error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        Failure::new("unreachable", format!("{} does not answer: {cause}", self.base))
    }
}

/// All but the unreserved characters of an address.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A text as a segment of a path.
pub(crate) fn segment(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// The body of an answer, in pieces.
pub(crate) struct Download(Response);

impl Download {
    /// The next piece; `None` at the end of the body.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let piece = self.0.chunk().await.map_err(|error| Failure::new("broken_stream", error.to_string()))?;
        Ok(piece.map(Into::into))
    }
}

/// The problem document of a server.
#[derive(Deserialize)]
struct Problem {
    code: String,
    detail: String,
}

/// The lines of one response.
pub(crate) struct LineStream {
    response: Response,
    arrived: Vec<u8>,
}

impl LineStream {
    /// The next line, without its end; `None` at the end of the response. Safe to be dropped while it waits.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            if let Some(end) = self.arrived.iter().position(|byte| *byte == b'\n') {
                let rest = self.arrived.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.arrived, rest);
                line.truncate(end);
                return Ok(Some(line));
            }
            if self.arrived.len() > MAX_EVENT_BYTES {
                return Err(Failure::new("broken_stream", format!("a line has more than {MAX_EVENT_BYTES} bytes")));
            }
            let piece = self.response.chunk().await.map_err(|error| Failure::new("broken_stream", error.to_string()))?;
            let Some(piece) = piece else { return Ok(None) };
            self.arrived.extend_from_slice(&piece);
        }
    }
}

/// The events of one response.
struct EventStream {
    response: Response,
    reader: EventReader,
    /// The id and the data of events that have arrived and were not given yet.
    arrived: VecDeque<(String, Vec<u8>)>,
}

impl EventStream {
    fn new(response: Response) -> Self {
        Self { response, reader: EventReader::new(MAX_EVENT_BYTES), arrived: VecDeque::new() }
    }

    /// The id and the data of the next event; `None` at the end of the response.
    async fn next(&mut self) -> Result<Option<(String, Vec<u8>)>, Failure> {
        while self.arrived.is_empty() {
            let piece = self.response.chunk().await.map_err(|error| Failure::new("broken_stream", error.to_string()))?;
            let Some(piece) = piece else { return Ok(None) };
            let arrived = &mut self.arrived;
            let pushed = self.reader.push(&piece, |event| {
                arrived.push_back((String::from_utf8_lossy(event.id).into_owned(), event.data.to_owned()));
                Ok::<_, EventTooLarge>(())
            });
            pushed.map_err(|EventTooLarge| {
                Failure::new("broken_stream", format!("an event has more than {MAX_EVENT_BYTES} bytes"))
            })?;
        }
        Ok(self.arrived.pop_front())
    }
}

/// A stream that is taken up again where it broke.
struct ResumingReader {
    client: Client,
    id: RunId,
    after: Option<String>,
    open: Option<EventStream>,
    failures: u32,
    ended: bool,
}

impl ResumingReader {
    async fn next(&mut self) -> Option<Result<RunEvent, Failure>> {
        while !self.ended {
            match self.try_next().await {
                Ok(event) => {
                    self.failures = 0;
                    self.ended = event.is_terminal();
                    return Some(Ok(event));
                }
                Err(broken) if broken.hopeless || self.failures >= RECONNECTS => {
                    self.ended = true;
                    return Some(Err(broken.failure));
                }
                Err(_) => {
                    self.failures += 1;
                    self.open = None;
                    tokio::time::sleep(RECONNECT).await;
                }
            }
        }
        None
    }

    async fn try_next(&mut self) -> Result<RunEvent, StreamFault> {
        let events = match &mut self.open {
            Some(events) => events,
            None => {
                // The first connection shows a wrong id or a missing server; later connections find a server that restarts.
                let first = self.after.is_none() && self.failures == 0;
                let response = self.client.stream(self.id, self.after.as_deref()).await;
                let response = response.map_err(|failure| StreamFault { failure, hopeless: first })?;
                self.open.insert(EventStream::new(response))
            }
        };
        let passing = |failure| StreamFault { failure, hopeless: false };
        let (id, data) = match events.next().await.map_err(passing)? {
            Some(event) => event,
            None => return Err(passing(Failure::new("broken_stream", "the stream ended before the run did"))),
        };
        let parsed = serde_json::from_slice(&data);
        let parsed = parsed.map_err(|error| StreamFault {
            failure: Failure::new("broken_stream", format!("not a run event: {error}")),
            hopeless: false,
        })?;
        self.after = Some(id);
        Ok(parsed)
    }
}

/// The reason why there is no next event.
struct StreamFault {
    failure: Failure,
    /// Another connection would not help.
    hopeless: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_an_http_url() {
        for (url, base) in [("http://127.0.0.1:7070", "http://127.0.0.1:7070"), ("http://h/below/", "http://h/below")] {
            assert_eq!(Client::new(url).unwrap().url(), base);
        }
        for url in ["", "localhost:7070", "https://h", "file:///x", "mailto:x"] {
            assert!(Client::new(url).is_err(), "{url}");
        }
    }

    #[test]
    fn parameters_without_a_value_are_left_out() {
        let client = Client::new("http://h").unwrap();
        let url = client.at("api/v1/runs", &[("status", None), ("conversation_id", Some("a b&c".to_owned()))]).unwrap();
        assert_eq!(url.as_str(), "http://h/api/v1/runs?conversation_id=a+b%26c");
    }
}
