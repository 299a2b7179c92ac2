//! The surroundings of a host: a model server, a tool server and a collector of traces, which record what they receive.

use std::sync::{Arc, Mutex};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value},
    trace::v1::Span,
};
use prost::Message;
use serde_json::{Value, json};

async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

type SharedList<T> = Arc<Mutex<Vec<T>>>;

/// The headers and the bodies of requests.
#[derive(Clone, Default)]
pub struct Seen(SharedList<(HeaderMap, Value)>);

impl Seen {
    fn note(&self, headers: HeaderMap, body: Value) {
        self.0.lock().unwrap().push((headers, body));
    }

    /// The values of a header, request by request.
    pub fn header(&self, name: &str) -> Vec<Option<String>> {
        let seen = self.0.lock().unwrap();
        seen.iter().map(|(headers, _)| headers.get(name).map(|value| value.to_str().unwrap().to_owned())).collect()
    }

    pub fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// A model that asks for the tool `t__look` with `parameters`, and then says `text`.
pub struct Model {
    pub url: String,
    pub seen: Seen,
}

impl Model {
    pub async fn start(parameters: Value, text: &str) -> Self {
        let seen = Seen::default();
        let (keep, text) = (seen.clone(), text.to_owned());
        let answer = move |headers: HeaderMap, Json(body): Json<Value>| {
            let last = body["messages"].as_array().unwrap().last().unwrap();
            let delta = if last["role"] == "tool" || body.get("tools").is_none() {
                json!({ "content": text })
            } else {
                let function = json!({ "name": "t__look", "arguments": parameters.to_string() });
                json!({ "tool_calls": [{ "index": 0, "id": "call-1", "type": "function", "function": function }] })
            };
            let reason = if delta.get("content").is_some() { "stop" } else { "tool_calls" };
            keep.note(headers, body);
            let chunk = json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }] });
            let usage = json!({ "choices": [], "usage": { "prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19 } });
            async move { ([("content-type", "text/event-stream")], format!("data: {chunk}\n\ndata: {usage}\n\ndata: [DONE]\n\n")) }
        };
        Self { url: serve(Router::new().route("/v1/chat/completions", post(answer))).await, seen }
    }
}

/// A tool server over HTTP with the tool `look`, that says `text`.
pub struct Tools {
    pub url: String,
    /// The calls.
    pub seen: Seen,
}

impl Tools {
    pub async fn start(text: &str) -> Self {
        let seen = Seen::default();
        let (keep, text) = (seen.clone(), text.to_owned());
        let answer = async move |headers: HeaderMap, Json(body): Json<Value>| -> Response {
            let result = match body["method"].as_str() {
                Some("initialize") => json!({
                    "protocolVersion": body["params"]["protocolVersion"],
                    "capabilities": { "tools": {} },
                    "serverInfo": { "name": "look", "version": "1" },
                }),
                Some("tools/list") => json!({
                    "tools": [{ "name": "look", "description": "Looks.", "inputSchema": { "type": "object" } }],
                }),
                Some("tools/call") => {
                    keep.note(headers, body.clone());
                    json!({ "content": [{ "type": "text", "text": text }] })
                }
                _ => return StatusCode::ACCEPTED.into_response(),
            };
            Json(json!({ "jsonrpc": "2.0", "id": body["id"], "result": result })).into_response()
        };
        let answer = move |headers: HeaderMap, body: Json<Value>| {
            let answer = answer.clone();
            async move { answer(headers, body).await }
        };
        Self { url: format!("{}/mcp", serve(Router::new().route("/mcp", post(answer))).await), seen }
    }
}

/// A collector of traces.
#[derive(Clone, Default)]
pub struct Collector {
    pub url: String,
    kept: SharedList<(HeaderMap, Bytes)>,
}

impl Collector {
    pub async fn start() -> Self {
        let kept = SharedList::default();
        let take = async |State(kept): State<SharedList<(HeaderMap, Bytes)>>, headers: HeaderMap, body: Bytes| {
            kept.lock().unwrap().push((headers, body));
            // An empty answer is an empty message.
            ([("content-type", "application/x-protobuf")], Vec::<u8>::new())
        };
        let router =
            Router::new().route("/v1/traces", post(take)).layer(DefaultBodyLimit::disable()).with_state(Arc::clone(&kept));
        Self { url: serve(router).await, kept }
    }

    fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        let kept = self.kept.lock().unwrap();
        kept.iter().map(|(_, body)| ExportTraceServiceRequest::decode(body.clone()).unwrap()).collect()
    }

    /// Every span.
    pub fn spans(&self) -> Vec<Span> {
        let resources = self.requests().into_iter().flat_map(|request| request.resource_spans);
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }

    /// The attributes of the host.
    pub fn resource(&self) -> Vec<KeyValue> {
        let request = self.requests().into_iter().next().expect("there was a request");
        request.resource_spans[0].resource.clone().unwrap().attributes
    }

    pub fn headers(&self) -> Vec<HeaderMap> {
        self.kept.lock().unwrap().iter().map(|(headers, _)| headers.clone()).collect()
    }

    /// True if a text occurs anywhere in the received data.
    pub fn has(&self, text: &str) -> bool {
        let kept = self.kept.lock().unwrap();
        kept.iter().any(|(_, body)| body.windows(text.len()).any(|window| window == text.as_bytes()))
    }
}

/// A value of an attribute.
pub fn attribute(attributes: &[KeyValue], name: &str) -> Option<Value> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    Some(json_of(found.value.as_ref()?))
}

fn json_of(value: &AnyValue) -> Value {
    match value.value.as_ref().unwrap() {
        any_value::Value::StringValue(text) => json!(text),
        any_value::Value::IntValue(number) => json!(number),
        any_value::Value::BoolValue(is) => json!(is),
        any_value::Value::DoubleValue(number) => json!(number),
        any_value::Value::ArrayValue(array) => array.values.iter().map(json_of).collect(),
        other => panic!("{other:?}"),
    }
}

/// An id in the form of headers.
pub fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The agent with a model and a tool; `more` stands before its binding.
pub fn agent(model: &Model, tools: &Tools, more: &str) -> String {
    format!(
        "[[models]]\nid = \"chat\"\nprovider = \"openai\"\nmodel = \"gpt-test\"\nbase_url = \"{}/v1\"\n\n\
         [[mcp_servers]]\nid = \"t\"\nurl = \"{}\"\n\n{more}\n\
         [[bindings]]\nid = \"agent\"\nrunner = \"plugin:agent-host/local-agent/default\"\n\
         resources = {{ tool_names = [\"t__*\"] }}\n",
        model.url, tools.url
    )
}
