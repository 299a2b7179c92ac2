//! The arguments of each function. An unknown member is refused, so that a misspelt one is not ignored.

use agent_host_protocol::{
    ApiError,
    ask::QuestionKind,
    manifest::{StateScope, StorageArea},
    page::Direction,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

/// JSON that is parsed behind the gate.
type Json = Box<RawValue>;

/// Items on a page where nobody says how many.
const PAGE: u32 = 50;

fn page() -> u32 {
    PAGE
}

fn backward() -> Direction {
    Direction::Backward
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
    Model { model_id: String, request: Json }
    Rerank { model_id: String, query: String, documents: Vec<String>, top_k: Option<u32> }
    Embed { model_id: String, texts: Vec<String> }
    Count { model_id: String, messages: Json }
    Detail { tool_name: String }
    Tool { call_id: String, tool_name: String, parameters: Json }
    Tools { calls: Vec<Tool> }
    Retrieve { kb_id: String, query: String, top_k: u32, filters: Option<Json> }
    History {
        conversation_id: Option<String>,
        before: Option<String>,
        after: Option<String>,
        #[serde(default = "page")]
        limit: u32,
        #[serde(default = "backward")]
        direction: Direction,
        #[serde(default)]
        include_artifacts: bool,
    }
    Search { query: String, filters: Option<Json>, top_k: u32 }
    Event { event_id: String }
    Events {
        before: Option<String>,
        #[serde(default)]
        event_types: Vec<String>,
        #[serde(default = "page")]
        limit: u32,
    }
    Artifact { artifact_id: String }
    Range { artifact_id: String, offset: u64, length: u32 }
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
        #[serde(default = "page")]
        limit: u32,
    }
    RunEvents {
        run_id: String,
        after: Option<String>,
        #[serde(default = "page")]
        limit: u32,
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

#[cfg(test)]
mod tests {
    use super::*;

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
