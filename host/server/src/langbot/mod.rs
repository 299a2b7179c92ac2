//! The dialect of LangBot 4.11: the same requests and answers with the names that LangBot released (`langbot-plugin` from 0.6 on).
//!
//! A client asks for it with `?dialect=langbot-4.11` or the header `Agent-Dialect`; queries of pipelines are answered in it unless
//! the client asks for `v1`. The mapper is at the edge: no route stores or decides anything in the dialect. Answers are mapped
//! behind the route ([`Exchange`]), streams and requests in the routes that have them.
//!
//! Problem documents need no mapper: each is an `AgentAPIError` of LangBot as it stands.

mod calls;
mod context;
mod members;
mod message;
mod results;
mod rows;

use agent_host_protocol::{Run, RunId};
use axum::{
    body::{Bytes, to_bytes},
    extract::{MatchedPath, Request},
    http::{Method, Uri, header, uri::PathAndQuery},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

pub(crate) use self::calls::{Answer, Plan, answered, plan, streamed};
use crate::http::{Problem, raw_json};

/// The version of LangBot whose names these are.
pub(crate) const LANGBOT_VERSION: &str = "4.11.0";
/// Names the dialect in place of the query parameter.
pub(crate) const HEADER: &str = "agent-dialect";
const PARAMETER: &str = "dialect";
/// The routes of queries of pipelines, which are answered in the dialect by default.
const PIPELINE: &str = "/api/v1/pipeline/queries";

/// The form of an answer of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// A run.
    Run,
    /// A page of runs.
    Runs,
    /// A page of events of a run; its stream is mapped by the route.
    RunEvents,
    /// A context.
    Context,
    /// A run with its context, and perhaps the token of its claim.
    Claimed,
    /// An event of the log.
    Event,
    /// A page of events of the log.
    Events,
    /// Runners.
    Runners,
    /// An executor.
    Executor,
    /// A page of executors.
    Executors,
    /// An event with its run.
    Query,
    /// Mapped by the route.
    OfRoute,
}

/// The routes that know the dialect.
const ROUTES: [(Method, &str, Shape); 20] = [
    (Method::GET, "/api/v1/runs", Shape::Runs),
    (Method::POST, "/api/v1/runs", Shape::Run),
    (Method::GET, "/api/v1/runs/{id}", Shape::Run),
    (Method::GET, "/api/v1/runs/{id}/context", Shape::Context),
    (Method::GET, "/api/v1/runs/{id}/events", Shape::RunEvents),
    (Method::POST, "/api/v1/runs/{id}/cancel", Shape::Run),
    (Method::POST, "/api/v1/runs/{id}/retry", Shape::Run),
    (Method::POST, "/api/v1/claims", Shape::Claimed),
    (Method::POST, "/api/v1/runs/{id}/start", Shape::Claimed),
    (Method::POST, "/api/v1/runs/{id}/release", Shape::Run),
    (Method::POST, "/api/v1/runs/{id}/finalize", Shape::Run),
    (Method::POST, "/api/v1/runs/{id}/append", Shape::OfRoute),
    (Method::POST, "/api/v1/runs/{id}/calls/{function}", Shape::OfRoute),
    (Method::GET, "/api/v1/events", Shape::Events),
    (Method::GET, "/api/v1/events/{id}", Shape::Event),
    (Method::GET, "/api/v1/runners", Shape::Runners),
    (Method::POST, "/api/v1/executors", Shape::Executor),
    (Method::GET, "/api/v1/executors", Shape::Executors),
    (Method::GET, "/api/v1/executors/{id}", Shape::Executor),
    (Method::POST, PIPELINE, Shape::Query),
];

/// The routes that know the dialect.
#[cfg(test)]
pub(crate) fn routes() -> impl Iterator<Item = (Method, &'static str)> {
    ROUTES.into_iter().map(|(method, path, _)| (method, path))
}

/// Adds the parameter to the description of each route that knows it.
pub(crate) fn describe(document: &mut Value) {
    for (method, path, shape) in &ROUTES {
        let operation = document.get_mut("paths").and_then(|paths| paths.get_mut(*path));
        let operation = operation.and_then(|path| path.get_mut(method.as_str().to_ascii_lowercase()));
        let Some(operation) = operation.and_then(Value::as_object_mut) else { continue };
        let default = if *shape == Shape::Query { "langbot-4.11" } else { "v1" };
        let described = json!({
            "name": PARAMETER, "in": "query", "required": false,
            "description": "Names of the request and of its answer: `v1` are those of this description, `langbot-4.11` those of LangBot \
                            (docs/LANGBOT.md). The header `Agent-Dialect` says the same.",
            "schema": { "type": "string", "enum": ["langbot-4.11", "v1"], "default": default },
        });
        if let Some(parameters) = operation.entry("parameters").or_insert_with(|| json!([])).as_array_mut() {
            parameters.push(described);
        }
    }
}

/// The dialect of a request. Requests in the protocol's own names have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// The names of LangBot 4.11.
    Langbot,
}

impl Dialect {
    /// The dialect with this name; `None` within for the protocol itself.
    fn named(name: &str) -> Result<Option<Self>, Problem> {
        match name {
            "langbot-4.11" => Ok(Some(Self::Langbot)),
            "v1" => Ok(None),
            _ => Err(Problem::invalid(PARAMETER, "`dialect` is `langbot-4.11`, or `v1` for the protocol itself")),
        }
    }

    /// The body of an append, in the host's own form.
    pub(crate) fn append(self, body: &[u8], run_id: RunId) -> Result<Vec<u8>, Problem> {
        from_langbot(body, |body| results::append(body, &run_id.to_string()))
    }

    /// The body of a finalize, in the host's own form.
    pub(crate) fn finalize(self, body: &[u8], run_id: RunId) -> Result<Vec<u8>, Problem> {
        from_langbot(body, |body| results::finalize(body, &run_id.to_string()))
    }

    /// An event of a run.
    pub(crate) fn run_event(self, event: &impl serde::Serialize) -> Result<Value, Problem> {
        serde_json::to_value(event).map(rows::run_event).map_err(Problem::internal)
    }
}

/// Reads a body as JSON, changes it and writes it again. The route checks its members.
fn from_langbot(body: &[u8], change: impl FnOnce(Value) -> Result<Value, String>) -> Result<Vec<u8>, Problem> {
    let body: Value = crate::http::body::parse(body)?;
    let changed = change(body).map_err(|error| Problem::invalid("body", error))?;
    serde_json::to_vec(&changed).map_err(Problem::internal)
}

/// A request in the dialect, until it is answered.
pub(crate) struct Exchange(Shape);

impl Exchange {
    /// Finds the dialect of a request, and takes the parameter out of its query. Routes that do not know the dialect refuse the
    /// parameter like any unknown one, and pass over the header.
    pub(crate) fn begin(request: &mut Request) -> Result<Option<Self>, Problem> {
        let Some(route) = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str) else { return Ok(None) };
        let known = ROUTES.iter().find(|(method, path, _)| request.method() == method && route == *path);
        let Some((.., shape)) = known else { return Ok(None) };
        let is_pipeline = *shape == Shape::Query;
        let named = match without_parameter(request.uri())? {
            Some((name, uri)) => {
                *request.uri_mut() = uri;
                Some(Dialect::named(&name)?)
            }
            None => match request.headers().get(HEADER) {
                Some(name) => Some(Dialect::named(name.to_str().unwrap_or_default())?),
                None => None,
            },
        };
        let dialect = named.unwrap_or(is_pipeline.then_some(Dialect::Langbot));
        Ok(dialect.map(|dialect| {
            request.extensions_mut().insert(dialect);
            Self(*shape)
        }))
    }

    /// The answer in the dialect. Refusals and streams stay as they are.
    pub(crate) async fn finish(self, response: Response) -> Response {
        let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|value| value == "application/json");
        if self.0 == Shape::OfRoute || !response.status().is_success() || !is_json {
            return response;
        }
        let (mut parts, body) = response.into_parts();
        // The body is one that a route has put together in memory.
        let mapped = match to_bytes(body, usize::MAX).await {
            Ok(body) => {
                serde_json::from_slice(&body).map(|value| shaped(self.0, value)).and_then(|value| serde_json::to_vec(&value))
            }
            Err(error) => return Problem::internal(error).into_response(),
        };
        match mapped {
            Ok(body) => {
                parts.headers.remove(header::CONTENT_LENGTH);
                let mut response = raw_json(parts.status, body);
                *response.headers_mut() = parts.headers;
                *response.extensions_mut() = parts.extensions;
                response
            }
            Err(error) => Problem::internal(error).into_response(),
        }
    }
}

/// The value of the parameter, and the URI without it.
fn without_parameter(uri: &Uri) -> Result<Option<(String, Uri)>, Problem> {
    let prefix = format!("{PARAMETER}=");
    let Some(query) = uri.query() else { return Ok(None) };
    let named: Vec<&str> = query.split('&').filter_map(|pair| pair.strip_prefix(&prefix)).collect();
    let name = match named.as_slice() {
        [] => return Ok(None),
        [name] => (*name).to_owned(),
        _ => return Err(Problem::invalid(PARAMETER, "`dialect` is there twice")),
    };
    let rest: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with(&prefix)).collect();
    let rest = if rest.is_empty() { uri.path().to_owned() } else { format!("{}?{}", uri.path(), rest.join("&")) };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(rest).map_err(Problem::internal)?);
    Ok(Some((name, Uri::from_parts(parts).map_err(Problem::internal)?)))
}

fn shaped(shape: Shape, value: Value) -> Value {
    let mut ours = members::Members::of(value.clone());
    match shape {
        Shape::Run => rows::run(value),
        Shape::Runs => rows::page(value, rows::run),
        Shape::RunEvents => rows::page(value, rows::run_event),
        Shape::Context => context::to_langbot(value),
        Shape::Claimed => {
            let token = ours.take("lease_token");
            let mut run = rows::run(ours.take("run").unwrap_or_default());
            if let (Value::Object(run), Some(token)) = (&mut run, &token) {
                run.insert("claim_token".to_owned(), token.clone());
            }
            let context = ours.take("context").map(context::to_langbot);
            members::object([("run", Some(run)), ("lease_token", token), ("context", context)])
        }
        Shape::Event => rows::event(value),
        Shape::Events => rows::page(value, rows::event),
        Shape::Runners => {
            let runners = ours.list("runners", rows::manifest);
            json!({ "items": runners })
        }
        Shape::Executor => rows::executor(value),
        Shape::Executors => rows::page(value, rows::executor),
        Shape::Query => {
            let run = ours.take("run").map(rows::run);
            members::object([ours.named("event_id"), ours.named("run_ids"), ("run", run)])
        }
        Shape::OfRoute => value,
    }
}

/// The answer to an append: that of the host, and the number, type and data of the last result, as an `AgentRunEvent` has them.
pub(crate) fn appended(answer: &impl serde::Serialize, sent: &[u8], run: RunId) -> Result<Value, Problem> {
    let mut answer = serde_json::to_value(answer).map_err(Problem::internal)?;
    let sent: Value = serde_json::from_slice(sent).map_err(Problem::internal)?;
    let last = sent.get("result").or_else(|| sent.get("results")?.as_array()?.last());
    let member = |name: &str| last.and_then(|last| last.get(name)).cloned();
    if let Value::Object(members) = &mut answer {
        // The end of a run has a number of its own, and is no appended result.
        let sent = member("sequence").filter(|sequence| !sequence.is_null());
        let sequence = sent.or_else(|| members.get("appended").cloned());
        let more = [
            ("run_id", Some(run.to_string().into())),
            ("sequence", sequence),
            ("type", member("type")),
            ("data", member("data")),
        ];
        members.extend(more.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }
    Ok(answer)
}

/// The prompt in a context: that of the pipeline's adapter; none elsewhere.
pub(crate) fn prompt(context: Option<&str>) -> Result<Value, Problem> {
    let context: Value = context.map(serde_json::from_str).transpose().map_err(Problem::internal)?.unwrap_or_default();
    let prompt = context.pointer("/adapter/prompt").filter(|prompt| prompt.is_array()).cloned();
    Ok(json!({ "prompt": prompt.unwrap_or_else(|| json!([])) }))
}

/// The version of LangBot whose names these are, with the features of its API.
pub(crate) fn version() -> Value {
    json!({ "version": LANGBOT_VERSION, "api_features": ["llm.reasoning_level"] })
}

/// The arguments of a call, as JSON.
pub(crate) fn arguments(body: &Bytes) -> Result<Value, Problem> {
    if body.trim_ascii().is_empty() {
        return Ok(json!({}));
    }
    let refused = |problem: Problem| agent_host_protocol::ApiError::invalid_argument(problem.detail().to_owned()).into();
    crate::http::body::parse(body).map_err(refused)
}

/// The run that an answer is about, where it must be read for it.
pub(crate) fn run_to_read(answer: &Answer) -> Option<RunId> {
    if let Answer::RunNow(id) = answer { id.parse().ok() } else { None }
}

/// A run as an `AgentRun`.
pub(crate) fn run(run: &Run) -> Result<Value, Problem> {
    serde_json::to_value(run).map(rows::run).map_err(Problem::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameter_is_taken_out_of_the_query() {
        let of = |uri: &str| without_parameter(&uri.parse().unwrap());
        let (name, rest) = of("/api/v1/runs?limit=3&dialect=langbot-4.11&status=failed").unwrap().unwrap();
        assert_eq!((name.as_str(), rest.to_string().as_str()), ("langbot-4.11", "/api/v1/runs?limit=3&status=failed"));
        assert_eq!(of("/a?dialect=v1").unwrap().unwrap().1.to_string(), "/a");
        assert!(of("/a?limit=3").unwrap().is_none());
        assert!(of("/a?dialect=v1&dialect=v1").is_err());
        assert_eq!(Dialect::named("v1").unwrap(), None);
        assert!(Dialect::named("langbot-5").unwrap_err().detail().contains("langbot-4.11"));
    }
}
