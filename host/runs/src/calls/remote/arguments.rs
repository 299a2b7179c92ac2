//! The arguments of each function. An unknown member is refused, so that a misspelt one is not ignored.

use std::{borrow::Cow, collections::BTreeMap};

use agent_host_protocol::{
    ApiError, RunId, RunStatus,
    ask::QuestionKind,
    manifest::{StateScope, StorageArea},
    page::Direction,
};
use agent_host_sandbox::{ChatMessages, ChatRequest};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::{RawValue, to_raw_value};

use crate::calls::models::CountedInput;

/// JSON that is parsed behind the gate.
type Json = Box<RawValue>;

/// Items on a page where nobody says how many.
const PAGE: u32 = 50;

fn page() -> u32 {
    PAGE
}

/// Passages of a retrieval, hits of a search, and bytes of a range where the request does not say, as the protocol has them
/// (v1, sections 7.3, 7.4 and 7.6).
fn passages() -> u32 {
    5
}
fn hits() -> u32 {
    10
}
fn range() -> u32 {
    65_536
}

fn backward() -> Direction {
    Direction::Backward
}

fn forward() -> Direction {
    Direction::Forward
}

/// Reads the arguments of a function.
pub(super) fn read<T: DeserializeOwned>(function: &str, body: &[u8]) -> Result<T, ApiError> {
    let body = body.trim_ascii();
    let body = if body.is_empty() { b"{}" } else { body };
    // serde would read a list as the members of a struct, in their order.
    if body.first() != Some(&b'{') {
        return Err(ApiError::invalid_argument(format!("the arguments of `{function}` are a JSON object")));
    }
    serde_json::from_slice(body).map_err(|error| ApiError::invalid_argument(format!("the arguments of `{function}`: {error}")))
}

/// Bytes that came as Base64.
pub(super) fn bytes(member: &str, text: &str) -> Result<Vec<u8>, ApiError> {
    STANDARD.decode(text).map_err(|error| {
        ApiError::invalid_argument(format!("`{member}` is Base64 with its padding (RFC 4648, section 4): {error}"))
    })
}

macro_rules! arguments {
    ($($name:ident { $($(#[$attribute:meta])* $member:ident: $type:ty),* $(,)? })*) => {$(
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $name { $($(#[$attribute])* pub(super) $member: $type),* }
    )*};
}

arguments! {
    Nothing {}
    Model {
        model_id: String,
        request: Option<Json>,
        messages: Option<Json>,
        tools: Option<Json>,
        extra_args: Option<Json>,
    }
    Rerank { model_id: String, query: String, documents: Vec<String>, top_k: Option<u32> }
    Embed { model_id: String, texts: Vec<String> }
    Count { model_id: String, messages: Json, tools: Option<Json> }
    Detail { tool_name: String }
    Tool {
        #[serde(default = "call_id")]
        call_id: String,
        tool_name: String,
        parameters: Json,
    }
    Tools { calls: Vec<Tool> }
    Retrieve {
        kb_id: String,
        #[serde(alias = "query_text")]
        query: String,
        #[serde(default = "passages")]
        top_k: u32,
        filters: Option<Json>,
    }
    History {
        conversation_id: Option<String>,
        thread_id: Option<String>,
        #[serde(alias = "before_cursor")]
        before: Option<String>,
        #[serde(alias = "after_cursor")]
        after: Option<String>,
        #[serde(default = "page")]
        limit: u32,
        #[serde(default = "backward")]
        direction: Direction,
        #[serde(default)]
        include_artifacts: bool,
    }
    Search {
        query: String,
        filters: Option<Json>,
        #[serde(default = "hits")]
        top_k: u32,
    }
    Event { event_id: String }
    Events {
        #[serde(alias = "before_cursor")]
        before: Option<String>,
        #[serde(default)]
        event_types: Vec<String>,
        #[serde(default = "page")]
        limit: u32,
    }
    Artifact { artifact_id: String }
    Range {
        artifact_id: String,
        #[serde(default)]
        offset: u64,
        #[serde(default = "range")]
        length: u32,
    }
    Create { media_type: String, name: Option<String>, content: String }
    State { scope: StateScope, key: String }
    SetState { scope: StateScope, key: String, value: Json }
    StateKeys {
        scope: StateScope,
        prefix: Option<String>,
        #[serde(default = "page")]
        limit: u32,
    }
    Storage { area: StorageArea, key: String }
    SetStorage { area: StorageArea, key: String, value: String }
    StorageKeys {
        area: StorageArea,
        prefix: Option<String>,
        #[serde(default = "page")]
        limit: u32,
    }
    Action { action: String, target: Json, payload: Json }
    Ask {
        kind: QuestionKind,
        title: String,
        description: Option<String>,
        answer_schema: Option<Json>,
        expires_at: Option<u64>,
    }
    Pull {
        #[serde(default = "page")]
        limit: u32,
        #[serde(default)]
        wait_ms: u32,
    }
    Start { runner_id: String, input: Json, objective: String, config: Option<Json> }
    WaitAny {
        run_ids: Vec<String>,
        #[serde(default)]
        wait_ms: u32,
    }
    Run { run_id: String }
    RunList {
        parent_run_id: Option<String>,
        #[serde(default)]
        statuses: Vec<RunStatus>,
        #[serde(alias = "before_cursor")]
        before: Option<String>,
        #[serde(default = "page")]
        limit: u32,
    }
    RunEvents {
        run_id: String,
        #[serde(alias = "before_cursor")]
        before: Option<String>,
        #[serde(alias = "after_cursor")]
        after: Option<String>,
        #[serde(default = "page")]
        limit: u32,
        #[serde(default = "forward")]
        direction: Direction,
    }
    Cancel {
        run_id: String,
        #[serde(default)]
        reason: String,
    }
    Request {
        method: String,
        url: String,
        #[serde(default)]
        headers: Vec<(String, String)>,
        body: Option<String>,
        text: Option<String>,
        timeout_ms: Option<u32>,
    }
}

/// An id for a tool call that came without one.
fn call_id() -> String {
    format!("call_{}", RunId::new())
}

impl Model {
    /// The request: a member of its own, or its members beside the model, as the protocol has them (v1, section 7.1).
    pub(super) fn request(self) -> Result<(String, Json), ApiError> {
        let Self { model_id, request, messages, tools, extra_args } = self;
        let request = match (request, messages) {
            (Some(request), None) if tools.is_none() && extra_args.is_none() => request,
            (None, Some(messages)) => {
                let members = [("messages", Some(messages)), ("tools", tools), ("extra_args", extra_args)];
                let members: BTreeMap<_, _> = members.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
                to_raw_value(&members).map_err(|error| ApiError::invalid_argument(error.to_string()))?
            }
            _ => {
                return Err(ApiError::invalid_argument(
                    "a model call has either a `request`, or `messages` with `tools` and `extra_args` beside the `model_id`",
                ));
            }
        };
        Ok((model_id, request))
    }
}

impl Count {
    /// The messages; with tools, a request that has both.
    pub(super) fn request(self) -> Result<(String, CountedInput), ApiError> {
        let Self { model_id, messages, tools } = self;
        let Some(tools) = tools else { return Ok((model_id, CountedInput::Messages(ChatMessages::sent(messages)))) };
        let members = BTreeMap::from([("messages", messages), ("tools", tools)]);
        let request = to_raw_value(&members).map_err(|error| ApiError::invalid_argument(error.to_string()))?;
        Ok((model_id, CountedInput::Request(ChatRequest::sent(request))))
    }
}

/// The arguments without the `run_id` that programs of the protocol send with every call (v1, section 7).
///
/// # Errors
/// `invalid_argument` if it is the id of another run.
pub(super) fn without_run_id(body: &[u8], run_id: RunId) -> Result<Cow<'_, [u8]>, ApiError> {
    let Ok(mut members) = serde_json::from_slice::<BTreeMap<String, Json>>(body) else { return Ok(Cow::Borrowed(body)) };
    let Some(sent) = members.remove("run_id") else { return Ok(Cow::Borrowed(body)) };
    if serde_json::from_str::<RunId>(sent.get()).ok() != Some(run_id) {
        return Err(ApiError::invalid_argument(format!("`run_id` is not this run, {run_id}: leave it out, or send that id")));
    }
    let rest = serde_json::to_vec(&members).map_err(|error| ApiError::invalid_argument(error.to_string()))?;
    Ok(Cow::Owned(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_the_protocol_are_read() {
        let run = RunId::new();
        let body = format!(r#"{{"run_id":"{run}","kb_id":"k","query_text":"q"}}"#);
        let Retrieve { query, top_k, .. } = read("f", &without_run_id(body.as_bytes(), run).unwrap()).unwrap();
        assert_eq!((query.as_str(), top_k), ("q", 5));
        assert!(without_run_id(body.as_bytes(), RunId::new()).unwrap_err().message.contains("`run_id`"));
        let flat: Model = read("f", br#"{"model_id":"m","messages":[],"tools":null,"extra_args":{"seed":1}}"#).unwrap();
        assert_eq!(flat.request().unwrap().1.get(), r#"{"extra_args":{"seed":1},"messages":[]}"#);
        for both in [&br#"{"model_id":"m"}"#[..], br#"{"model_id":"m","request":{},"messages":[]}"#] {
            assert!(read::<Model>("f", both).unwrap().request().is_err());
        }
        let Range { offset, length, .. } = read("f", br#"{"artifact_id":"a"}"#).unwrap();
        assert_eq!((offset, length), (0, 65_536));
        let History { before, .. } = read("f", br#"{"before_cursor":"c"}"#).unwrap();
        assert_eq!(before.as_deref(), Some("c"));
        let [one, other] = [(), ()].map(|()| read::<Tool>("f", br#"{"tool_name":"t","parameters":{}}"#).unwrap().call_id);
        assert!(one.starts_with("call_") && one != other);
    }

    #[test]
    fn arguments_are_an_object_and_nothing_else() {
        assert!(read::<Nothing>("f", b"").is_ok() && read::<Nothing>("f", b" {} ").is_ok());
        for wrong in ["[]", "null", "{", "{} {}", "{\"x\":1}", "\"a\"", "\u{feff}{}"] {
            let error = read::<Nothing>("f", wrong.as_bytes()).map(drop).unwrap_err();
            assert!(error.message.contains("`f`"), "{error}");
        }
        assert!(read::<Detail>("f", br#"{"tool_name":"a","tool_name":"b"}"#).is_err(), "twice is not clear");
        assert!(read::<Detail>("f", br#"["a"]"#).is_err());
    }

    #[test]
    fn json_within_stays_as_it_came() {
        let SetState { value, .. } = read("f", br#"{"scope":"runner","key":"k","value": {"a": 1.0} }"#).unwrap();
        assert_eq!(value.get(), r#"{"a": 1.0}"#);
        let SetState { value, .. } = read("f", br#"{"scope":"runner","key":"k","value":null}"#).unwrap();
        assert_eq!(value.get(), "null");
        assert!(read::<SetState>("f", br#"{"scope":"runner","key":"k"}"#).is_err(), "no value is not the value null");
        let Search { filters, .. } = read("f", br#"{"query":"q","filters":null,"top_k":1}"#).unwrap();
        assert!(filters.is_none());
    }

    #[test]
    fn bytes_are_base64_with_its_padding() {
        assert_eq!(bytes("value", "aGk=").unwrap(), b"hi");
        assert_eq!(bytes("value", "").unwrap(), b"");
        for wrong in ["aGk", "a-_=", "aGk=\n", "a"] {
            assert!(bytes("value", wrong).is_err(), "{wrong:?}");
        }
    }
}
