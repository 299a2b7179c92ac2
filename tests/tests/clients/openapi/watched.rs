//! A proxy before a host that holds every answer against the description.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, header},
    response::Response,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The description, ready to check answers.
struct Description {
    document: Value,
    /// The path with its parameters, split at slashes, those without parameters first.
    paths: Vec<(String, Vec<String>)>,
    validators: Mutex<BTreeMap<String, Arc<jsonschema::Validator>>>,
}

impl Description {
    fn new(mut document: Value) -> Self {
        // An answer must not have members outside of the description.
        for schema in document["components"]["schemas"].as_object_mut().unwrap().values_mut() {
            let schema = schema.as_object_mut().unwrap();
            if schema.contains_key("properties") && !schema.contains_key("additionalProperties") {
                schema.insert("additionalProperties".to_owned(), false.into());
            }
        }
        let split = |path: &String| (path.clone(), path.split('/').map(str::to_owned).collect::<Vec<_>>());
        let mut paths: Vec<_> = document["paths"].as_object().unwrap().keys().map(split).collect();
        paths.sort_by_key(|(path, _)| path.matches('{').count());
        Self { document, paths, validators: Mutex::default() }
    }

    /// The path that an address is of.
    fn path(&self, address: &str) -> Option<&str> {
        let parts: Vec<&str> = address.split('/').collect();
        let fits = |pattern: &Vec<String>| {
            pattern.len() == parts.len()
                && pattern.iter().zip(&parts).all(|(pattern, part)| pattern.starts_with('{') || pattern == part)
        };
        self.paths.iter().find(|(_, pattern)| fits(pattern)).map(|(path, _)| path.as_str())
    }

    /// Checks an answer; returns its operation.
    fn check(&self, method: &Method, address: &str, answer: &Answer) -> Result<Option<String>, String> {
        let known = self.path(address).map(|path| (path, &self.document["paths"][path]));
        let operation = known.and_then(|(path, item)| Some((path, item.get(method.as_str().to_lowercase())?)));
        let Some((path, operation)) = operation else {
            let code = if known.is_some() { "method_not_allowed" } else { "not_found" };
            let problem: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let fits = problem["code"] == code && known.is_none() == (answer.status == StatusCode::NOT_FOUND);
            return if fits { Ok(None) } else { Err(format!("the description has no such operation: {problem:#}")) };
        };
        let status = answer.status.as_str();
        let response = operation["responses"].get(status).ok_or_else(|| format!("the description has no {status} of it"))?;
        // What operations refuse with is described once for all of them, with the codes of each.
        let shared =
            response["$ref"].as_str().map(|target| &self.document["components"]["responses"][target.rsplit('/').next().unwrap()]);
        if shared.is_some() && *method != Method::HEAD {
            let problem: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let codes = operation["x-problem-codes"][status].as_array().map(Vec::as_slice).unwrap_or_default();
            if !codes.contains(&problem["code"]) || problem["status"] != answer.status.as_u16() {
                return Err(format!("the description has other codes of {status}, {codes:?}: {problem:#}"));
            }
        }
        let response = shared.unwrap_or(response);
        let content = response.get("content").and_then(Value::as_object).filter(|content| !content.is_empty());
        match content {
            None if answer.body.is_empty() => {}
            None => return Err(format!("the description has no body of {status}")),
            Some(_) if *method == Method::HEAD => {}
            Some(content) => {
                let (kind, media) = content
                    .iter()
                    .find(|(kind, _)| essence(kind) == answer.kind || **kind == "*/*")
                    .ok_or_else(|| format!("the description has no {} of {status}", answer.kind))?;
                self.check_body(&format!("{method} {path} {status} {kind}"), kind, &media["schema"], &answer.body)?;
            }
        }
        Ok(Some(format!("{method} {path} {status}")))
    }

    fn check_body(&self, key: &str, kind: &str, schema: &Value, body: &[u8]) -> Result<(), String> {
        match kind {
            "application/json" | "application/problem+json" => self.check_json(key, schema, body),
            "text/event-stream" => {
                let item = if key.contains("/api/v1/threads/") { "Fact" } else { "RunEvent" };
                let event = json!({ "$ref": format!("#/components/schemas/{item}") });
                let text = String::from_utf8_lossy(body);
                let mut events = text.lines().filter_map(|line| line.strip_prefix("data: "));
                if key.contains(" /mcp") {
                    return events.try_for_each(|data| check_rpc(key, data));
                }
                if AGUI.iter().any(|path| key.contains(path)) {
                    return events.try_for_each(|data| check_agui(key, data));
                }
                // Each event of a stream is an item of a page, too; the rest is about the connection.
                events.try_for_each(|data| self.check_json(key, &event, data.as_bytes()))
            }
            _ => Ok(()),
        }
    }

    fn check_json(&self, key: &str, schema: &Value, body: &[u8]) -> Result<(), String> {
        let value: Value = serde_json::from_slice(body).map_err(|error| format!("{key}: no JSON: {error}"))?;
        let mut validators = self.validators.lock().unwrap();
        let validator = validators.entry(key.to_owned()).or_insert_with(|| {
            let components = &self.document["components"];
            let whole =
                json!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "allOf": [schema], "components": components });
            let options = jsonschema::options().should_validate_formats(true);
            Arc::new(options.build(&whole).unwrap_or_else(|error| panic!("{key}: its schema cannot be used: {error}")))
        });
        let wrong: Vec<String> =
            validator.iter_errors(&value).map(|error| format!("{}: {error}", error.instance_path())).collect();
        if wrong.is_empty() { Ok(()) } else { Err(format!("{key}: {}\n{value:#}", wrong.join("\n"))) }
    }
}

/// Paths whose streams are those of AG-UI, which has a description of its own.
const AGUI: [&str; 2] = [" /agents/", " /api/v1/agent/"];

/// Checks a message of MCP; an event without data only says where its stream begins.
fn check_rpc(key: &str, data: &str) -> Result<(), String> {
    let message: Value =
        if data.is_empty() { json!({ "jsonrpc": "2.0" }) } else { serde_json::from_str(data).unwrap_or_default() };
    if message["jsonrpc"] == "2.0" { Ok(()) } else { Err(format!("{key}: no message of JSON-RPC: {data}")) }
}

fn check_agui(key: &str, data: &str) -> Result<(), String> {
    let event: Result<ag_ui::Event, _> = serde_json::from_str(data);
    event.map(drop).map_err(|error| format!("{key}: no event of AG-UI: {error}\n{data}"))
}

/// A media type without its parameters.
fn essence(kind: &str) -> &str {
    kind.split(';').next().unwrap_or_default().trim()
}

struct Answer {
    status: StatusCode,
    kind: String,
    headers: HeaderMap,
    body: Bytes,
}

/// The proxy.
pub struct Watched {
    /// Address of the proxy.
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    host: String,
    http: reqwest::Client,
    description: Description,
    seen: Mutex<BTreeSet<String>>,
    wrong: Mutex<Vec<String>>,
}

impl Watched {
    /// Stands before the host at this address.
    pub async fn new(host: &str) -> Self {
        let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        let document = http.get(format!("{host}/api/v1/openapi.json")).send().await.unwrap().json().await.unwrap();
        let description = Description::new(document);
        let shared = Shared { host: host.to_owned(), http, description, seen: Mutex::default(), wrong: Mutex::default() };
        let shared = Arc::new(shared);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(pass).with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, shared }
    }

    /// An address on it.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Panics where an answer was not as the description says; gives what was answered, as `GET /path 200`.
    pub fn seen(&self) -> BTreeSet<String> {
        let wrong = self.shared.wrong.lock().unwrap();
        assert!(wrong.is_empty(), "{} answers are not as they are described:\n\n{}", wrong.len(), wrong.join("\n\n"));
        self.shared.seen.lock().unwrap().clone()
    }

    /// The description: each operation with each of its successful statuses.
    pub fn described(&self) -> BTreeSet<String> {
        let paths = self.shared.description.document["paths"].as_object().unwrap();
        let of = |(path, item): (&String, &Value)| {
            let operations = item.as_object().unwrap().iter();
            let good = |(method, operation): (&String, &Value)| {
                let statuses = operation["responses"].as_object().unwrap().keys().filter(|status| status.starts_with(['2', '3']));
                statuses.map(|status| format!("{} {path} {status}", method.to_uppercase())).collect::<Vec<_>>()
            };
            operations.flat_map(good).collect::<Vec<_>>()
        };
        paths.iter().flat_map(of).collect()
    }
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let url = format!("{}{}", shared.host, parts.uri);
    let mut headers = parts.headers;
    headers.remove(header::HOST);
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let answered = shared.http.request(parts.method.clone(), url).headers(headers).body(body).send().await.unwrap();
    let (status, headers) = (answered.status(), answered.headers().clone());
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap()).unwrap_or_default();
    let kind = essence(kind).to_owned();
    // Streams end with their run.
    let answer = Answer { status, kind, headers, body: answered.bytes().await.unwrap() };
    match shared.description.check(&parts.method, parts.uri.path(), &answer) {
        Ok(seen) => shared.seen.lock().unwrap().extend(seen),
        Err(wrong) => shared.wrong.lock().unwrap().push(format!("{} {}: {} {wrong}", parts.method, parts.uri, answer.status)),
    }
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response.headers_mut().remove(header::TRANSFER_ENCODING);
    if parts.method == Method::HEAD {
        // The length is that of a GET; a HEAD has no body.
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    response
}
