//! Puts an answer together from the pieces that a provider sends.

use std::collections::HashMap;

use agent_host_protocol::{
    ApiError,
    limits::is_shallow,
    message::{ContentPart, Message, Role, TokenUsage, ToolCall},
    model::{ModelChunk, ModelResponse},
};
use serde_json::{Map, Value, json};

use super::{
    failure::{Category, ProviderMessage, quote},
    names::ToolNames,
    pieces::Pieces,
};
use crate::redact::Redactor;

/// Calls in one answer. No model asks for as many.
const MAX_CALLS: usize = 256;
/// Bytes of the name or id of a call.
const MAX_NAME_BYTES: usize = 256;
/// Characters of a finish reason.
const MAX_FINISH_REASON_CHARS: usize = 64;
/// More tokens than this in one call are not believed.
const MAX_PLAUSIBLE_TOKENS: u64 = 100_000_000;

/// The answer so far.
#[derive(Debug)]
pub(super) struct Assembler {
    names: ToolNames,
    redactor: Redactor,
    text: Spoken,
    reasoning: Spoken,
    refused: bool,
    calls: Vec<PartialCall>,
    /// Where the call with an index is in `calls`.
    by_index: HashMap<u64, usize>,
    finish_reason: Option<String>,
    usage: Option<TokenUsage>,
    ended: bool,
    /// Makes ids for calls that have none; differs from message to message of a conversation.
    turn: usize,
    /// Bytes that may still come.
    left: usize,
    limit: usize,
}

/// Text that was passed on.
#[derive(Debug)]
struct Spoken {
    pieces: Pieces,
    whole: String,
}

/// A call whose pieces are still coming.
#[derive(Debug, Default)]
struct PartialCall {
    id: String,
    name: String,
    arguments: String,
}

impl Assembler {
    /// For the answer to a conversation of `turn` messages, with at most `limit` bytes of content.
    pub(super) fn new(names: ToolNames, redactor: Redactor, turn: usize, limit: usize) -> Self {
        let spoken = || Spoken { pieces: Pieces::new(&redactor), whole: String::new() };
        Self {
            text: spoken(),
            reasoning: spoken(),
            names,
            redactor,
            refused: false,
            calls: Vec::new(),
            by_index: HashMap::new(),
            finish_reason: None,
            usage: None,
            ended: false,
            turn,
            left: limit,
            limit,
        }
    }

    /// Whether the model has said why it stops: what follows can only be the usage.
    pub(super) const fn is_finished(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// Whether the provider has said that nothing follows.
    pub(super) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Takes in the data of one event, and gives what can be passed on.
    pub(super) fn event(&mut self, data: &[u8], out: &mut Vec<ModelChunk>) -> Result<(), ApiError> {
        let data = data.trim_ascii();
        if self.ended || data.is_empty() {
            return Ok(());
        }
        if data == b"[DONE]" {
            self.ended = true;
            return Ok(());
        }
        let value: Value = serde_json::from_slice(data)
            .map_err(|_| Category::InvalidResponse.error("the provider sends something in its stream that is not JSON"))?;
        self.value(&value, "delta", out)
    }

    /// Takes in a whole answer, of a provider that does not stream.
    pub(super) fn whole(&mut self, value: &Value, out: &mut Vec<ModelChunk>) -> Result<(), ApiError> {
        self.value(value, "message", out)?;
        if value.get("choices").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            return Err(Category::InvalidResponse.error("the response of the provider has no `choices`"));
        }
        self.ended = true;
        Ok(())
    }

    fn value(&mut self, value: &Value, field: &str, out: &mut Vec<ModelChunk>) -> Result<(), ApiError> {
        let Some(object) = value.as_object() else {
            return Err(Category::InvalidResponse.error("the provider sends something that is not a JSON object"));
        };
        if let Some(error) = object.get("error").filter(|error| !error.is_null()) {
            return Err(ProviderMessage::of_value(error, &self.redactor).into_late_error());
        }
        if object.get("object").is_some_and(|kind| kind == "error") {
            return Err(ProviderMessage::of_value(value, &self.redactor).into_late_error());
        }
        if let Some(usage) = object.get("usage").filter(|usage| !usage.is_null()) {
            self.usage = plausible_usage(usage);
        }
        let choices = object.get("choices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let first = choices.iter().find(|choice| choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0);
        let Some(choice) = first else { return Ok(()) };
        if let Some(delta) = choice.get(field).or_else(|| choice.get("delta")).or_else(|| choice.get("message")) {
            self.delta(delta, out)?;
        }
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str).filter(|reason| !reason.is_empty()) {
            let reason: String = self.redactor.text(reason).chars().take(MAX_FINISH_REASON_CHARS).collect();
            self.finish_reason = Some(reason);
        }
        Ok(())
    }

    fn delta(&mut self, delta: &Value, out: &mut Vec<ModelChunk>) -> Result<(), ApiError> {
        let reasoning = ["reasoning_content", "reasoning"].iter().filter_map(|key| delta.get(*key)?.as_str());
        if let Some(reasoning) = reasoning.into_iter().find(|text| !text.is_empty()) {
            self.take(reasoning.len())?;
            let piece = self.reasoning.pieces.push(reasoning);
            if !piece.is_empty() {
                out.push(ModelChunk::Reasoning(piece));
            }
        }
        match delta.get("content") {
            Some(Value::String(text)) => self.say(text, out)?,
            // Some send parts; those without a text (such as thoughts) are passed over.
            Some(Value::Array(parts)) => {
                for text in parts.iter().filter_map(|part| part.get("text")?.as_str()) {
                    self.say(text, out)?;
                }
            }
            _ => {}
        }
        if let Some(refusal) = delta.get("refusal").and_then(Value::as_str).filter(|refusal| !refusal.is_empty()) {
            self.refused = true;
            self.say(refusal, out)?;
        }
        for call in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            self.call(call.get("index").and_then(Value::as_u64), call.get("id"), call.get("function").unwrap_or(call))?;
        }
        // The form before tools.
        if let Some(function) = delta.get("function_call").filter(|call| call.is_object()) {
            self.call(Some(0), None, function)?;
        }
        Ok(())
    }

    fn say(&mut self, text: &str, out: &mut Vec<ModelChunk>) -> Result<(), ApiError> {
        self.take(text.len())?;
        let piece = self.text.pieces.push(text);
        if !piece.is_empty() {
            self.text.whole.push_str(&piece);
            out.push(ModelChunk::Text(piece));
        }
        Ok(())
    }

    /// Takes in a piece of a call. Which call it belongs to is for the index to say; where a provider leaves that out,
    /// or gives all calls the same (both are seen), a new id together with a name begins a new call.
    fn call(&mut self, index: Option<u64>, id: Option<&Value>, function: &Value) -> Result<(), ApiError> {
        let id = id.and_then(Value::as_str).unwrap_or_default();
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        let at = match index {
            Some(index) => self.by_index.get(&index).copied(),
            None if id.is_empty() => self.calls.len().checked_sub(1),
            None => self.calls.iter().position(|call| call.id == id).or_else(|| {
                // An id that comes late belongs to the call before, if that has none.
                self.calls.len().checked_sub(1).filter(|_| name.is_empty())
            }),
        };
        let begins = |call: &PartialCall| {
            let other_id = !id.is_empty() && !call.id.is_empty() && call.id != id;
            // Without ids, a name after arguments have come.
            let other_name = index.is_none() && id.is_empty() && !call.arguments.is_empty();
            !name.is_empty() && (other_id || other_name)
        };
        let at = match at.filter(|at| !self.calls.get(*at).is_some_and(begins)) {
            Some(at) => at,
            None => {
                if self.calls.len() == MAX_CALLS {
                    return Err(Category::InvalidResponse.error(format!("the model asks for more than {MAX_CALLS} tool calls")));
                }
                self.calls.push(PartialCall::default());
                self.calls.len() - 1
            }
        };
        if let Some(index) = index {
            self.by_index.insert(index, at);
        }
        let arguments = match function.get("arguments") {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => String::new(),
            // Some send the object itself.
            Some(value) => value.to_string(),
        };
        self.take(id.len() + name.len() + arguments.len())?;
        let Some(call) = self.calls.get_mut(at) else { return Ok(()) };
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        // A name may come in pieces, or again with every piece.
        if call.name != name {
            call.name.push_str(name);
        }
        call.arguments.push_str(&arguments);
        if call.name.len() > MAX_NAME_BYTES || call.id.len() > MAX_NAME_BYTES {
            return Err(Category::InvalidToolCall.error("the model asks for a tool with a name or id of enormous length"));
        }
        Ok(())
    }

    /// Counts bytes against the limit.
    fn take(&mut self, bytes: usize) -> Result<(), ApiError> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                let details = Map::from_iter([("limit".to_owned(), json!(self.limit))]);
                let message = format!("the answer of the model has more than {} bytes", self.limit);
                Err(Category::ResponseTooLarge.error_with(message, details))
            }
        }
    }

    /// The end: what was held back, and the whole answer.
    pub(super) fn finish(&mut self, out: &mut Vec<ModelChunk>) -> Result<(), ApiError> {
        if !self.ended && self.finish_reason.is_none() {
            return Err(Category::Interrupted.error("the answer of the provider broke off before its end"));
        }
        let reasoning = self.reasoning.pieces.finish();
        if !reasoning.is_empty() {
            out.push(ModelChunk::Reasoning(reasoning));
        }
        let text = self.text.pieces.finish();
        if !text.is_empty() {
            self.text.whole.push_str(&text);
            out.push(ModelChunk::Text(text));
        }
        let reason = self.finish_reason.take();
        let tool_calls = self.tool_calls(reason.as_deref())?;
        let finish_reason = match reason.as_deref() {
            Some("tool_calls" | "function_call" | "stop") if !tool_calls.is_empty() => "tool-calls",
            Some("content_filter") => "content-filter",
            Some("tool_calls" | "function_call") => "tool-calls",
            Some("stop") if self.refused => "refusal",
            Some(other) => other,
            None if !tool_calls.is_empty() => "tool-calls",
            None => "unknown",
        }
        .to_owned();
        let nothing = self.text.whole.is_empty() && tool_calls.is_empty();
        let text = std::mem::take(&mut self.text.whole);
        let content = if text.is_empty() { vec![] } else { vec![ContentPart::Text(text)] };
        let message = Message { role: Role::Assistant, content, name: None, tool_calls, tool_call_id: None };
        // Something was read, and what was said took tokens: zeros are a provider that does not count.
        let usage = self.usage.filter(|usage| usage.input > 0 && (usage.output > 0 || nothing));
        out.push(ModelChunk::Done(ModelResponse { message, finish_reason, usage }));
        Ok(())
    }

    fn tool_calls(&mut self, reason: Option<&str>) -> Result<Vec<ToolCall>, ApiError> {
        let mut calls: Vec<ToolCall> = Vec::with_capacity(self.calls.len());
        for (at, call) in std::mem::take(&mut self.calls).into_iter().enumerate() {
            let tool_name = self.redactor.text(self.names.to_host(call.name.trim())).into_owned();
            let invalid = |what: &str| {
                let details = Map::from_iter([
                    ("tool_name".to_owned(), json!(quote(&tool_name))),
                    ("finish_reason".to_owned(), json!(reason)),
                ]);
                let cut_off = if reason == Some("length") { " (its answer was cut off: allow more tokens)" } else { "" };
                Category::InvalidToolCall
                    .error_with(format!("the model asks for the tool `{}` {what}{cut_off}", quote(&tool_name)), details)
            };
            if tool_name.is_empty() {
                return Err(invalid("without naming it"));
            }
            let mut parameters = match call.arguments.trim() {
                "" => Value::Object(Map::new()),
                arguments => serde_json::from_str(arguments).map_err(|_| invalid("with parameters that are not JSON"))?,
            };
            if !parameters.is_object() {
                return Err(invalid("with parameters that are not a JSON object"));
            }
            if !is_shallow(&parameters) {
                return Err(invalid("with parameters that nest too deep"));
            }
            parameters = self.redactor.value(parameters);
            let taken = |id: &str| id.is_empty() || calls.iter().any(|call| call.call_id == id);
            let mut call_id = self.redactor.text(&call.id).into_owned();
            if taken(&call_id) {
                call_id = format!("call_{}_{at}", self.turn);
                while taken(&call_id) {
                    call_id.push('_');
                }
            }
            calls.push(ToolCall { call_id, tool_name, parameters });
        }
        Ok(calls)
    }
}

/// What a provider says that the call cost, where it can be true.
pub(super) fn plausible_usage(usage: &Value) -> Option<TokenUsage> {
    let number = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64).filter(|tokens| *tokens <= MAX_PLAUSIBLE_TOKENS);
    let input = number("/prompt_tokens").or_else(|| number("/input_tokens"))?;
    let output = number("/completion_tokens").or_else(|| number("/output_tokens"))?;
    let cached = number("/prompt_tokens_details/cached_tokens").or_else(|| number("/prompt_cache_hit_tokens"));
    let reasoning = number("/completion_tokens_details/reasoning_tokens");
    Some(TokenUsage {
        input,
        output,
        cached_input: cached.filter(|cached| *cached <= input),
        reasoning: reasoning.filter(|reasoning| *reasoning <= output),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::sse::Events, *};

    /// What comes of a stream of events, and whether all of it passed on says the same as the whole.
    fn assemble(events: &[Value]) -> Result<ModelResponse, ApiError> {
        let text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        read(&[text.as_bytes()])
    }

    fn read(chunks: &[&[u8]]) -> Result<ModelResponse, ApiError> {
        let names = ToolNames::new(["files/read"]);
        let mut assembler = Assembler::new(names, Redactor::default(), 3, 10_000);
        let (mut events, mut out) = (Events::new(10_000), vec![]);
        for chunk in chunks {
            events.push(chunk, |data| assembler.event(data, &mut out).map_err(Failed))?;
        }
        assembler.finish(&mut out)?;
        let Some(ModelChunk::Done(response)) = out.pop() else { panic!("the last chunk is the whole answer") };
        let said: String =
            out.iter().filter_map(|chunk| if let ModelChunk::Text(text) = chunk { Some(text.as_str()) } else { None }).collect();
        assert_eq!(response.message.text(), said);
        Ok(response)
    }

    struct Failed(ApiError);
    impl From<super::super::sse::TooLarge> for Failed {
        fn from(_: super::super::sse::TooLarge) -> Self {
            Self(ApiError::invalid_argument("too large"))
        }
    }
    impl From<Failed> for ApiError {
        fn from(Failed(error): Failed) -> Self {
            error
        }
    }

    fn delta(delta: Value) -> Value {
        json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] })
    }

    fn finish(reason: &str) -> Value {
        json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })
    }

    fn calls(pieces: &[Value], reason: &str) -> Result<Vec<(String, String, Value)>, ApiError> {
        let mut events: Vec<Value> = pieces.iter().map(|piece| delta(json!({ "tool_calls": piece }))).collect();
        events.push(finish(reason));
        let calls = assemble(&events)?.message.tool_calls;
        Ok(calls.into_iter().map(|call| (call.call_id, call.tool_name, call.parameters)).collect())
    }

    fn code(error: &ApiError) -> &str {
        error.details.as_ref().unwrap()["code"].as_str().unwrap()
    }

    #[test]
    fn calls_are_put_together_whatever_a_provider_leaves_out() {
        let one = || (String::from("a"), String::from("t"), json!({ "x": 1 }));
        let two = || (String::from("b"), String::from("u"), json!({ "y": 2 }));
        let f = |name: &str, arguments: &str| json!({ "name": name, "arguments": arguments });
        for (what, pieces) in [
            (
                "as OpenAI does",
                vec![
                    json!([{ "index": 0, "id": "a", "function": f("t", "") }]),
                    json!([{ "index": 0, "function": { "arguments": "{\"x\"" } }]),
                    json!([{ "index": 1, "id": "b", "function": f("u", "{\"y\"") }]),
                    json!([{ "index": 0, "function": { "arguments": ":1}" } }, { "index": 1, "function": { "arguments": ":2}" } }]),
                ],
            ),
            (
                "at once, without index",
                vec![json!([
                    { "id": "a", "function": f("t", "{\"x\":1}") }, { "id": "b", "function": f("u", "{\"y\":2}") },
                ])],
            ),
            (
                "all with the same index",
                vec![
                    json!([{ "index": 0, "id": "a", "function": f("t", "{\"x\":1}") }]),
                    json!([{ "index": 0, "id": "b", "function": f("u", "{\"y\":2}") }]),
                ],
            ),
            (
                "pieces without index and id",
                vec![
                    json!([{ "id": "a", "function": f("t", "{\"x\"") }]),
                    json!([{ "function": { "arguments": ":1}" } }]),
                    json!([{ "id": "b", "function": f("u", "") }]),
                    json!([{ "function": { "arguments": "{\"y\":2}" } }]),
                ],
            ),
            (
                "id and name with every piece",
                vec![
                    json!([{ "index": 0, "id": "a", "function": f("t", "{\"x\"") }]),
                    json!([{ "index": 0, "id": "a", "function": f("t", ":1}") }]),
                    json!([{ "index": 1, "id": "b", "function": f("u", "{\"y\":2}") }]),
                ],
            ),
            (
                "another id with every piece",
                vec![
                    json!([{ "index": 0, "id": "a", "function": f("t", "{\"x\"") }]),
                    json!([{ "index": 0, "id": "a2", "function": { "name": null, "arguments": ":1}" } }]),
                    json!([{ "index": 1, "id": "b", "function": f("u", "{\"y\":2}") }]),
                ],
            ),
            (
                "arguments as an object",
                vec![
                    json!([{ "index": 0, "id": "a", "function": { "name": "t", "arguments": { "x": 1 } } }]),
                    json!([{ "index": 7, "id": "b", "function": { "name": "u", "arguments": { "y": 2 } } }]),
                ],
            ),
        ] {
            assert_eq!(calls(&pieces, "tool_calls").unwrap(), [one(), two()], "{what}");
        }
    }

    #[test]
    fn a_call_without_id_gets_one_and_ids_differ() {
        let pieces = [json!([
            { "index": 0, "function": { "name": "files_read" } },
            { "index": 1, "id": "call_3_2", "function": { "name": "t", "arguments": " " } },
            { "index": 2, "function": { "name": "t", "arguments": null } },
        ])];
        let calls = calls(&pieces, "stop").unwrap();
        let ids: Vec<&str> = calls.iter().map(|call| call.0.as_str()).collect();
        assert_eq!(ids, ["call_3_0", "call_3_2", "call_3_2_"]);
        assert_eq!((calls[0].1.as_str(), &calls[0].2), ("files/read", &json!({})));
    }

    #[test]
    fn parameters_that_are_not_an_object_are_an_error() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100), "]".repeat(100));
        for arguments in ["{\"x\":", "[1]", "null", "\"a\"", "{} {}", &deep] {
            let error =
                calls(&[json!([{ "index": 0, "id": "a", "function": { "name": "t", "arguments": arguments } }])], "length");
            let error = error.unwrap_err();
            assert_eq!((code(&error), error.retryable), ("invalid_tool_call", true), "{arguments}");
            assert_eq!(error.details.as_ref().unwrap()["tool_name"], "t");
            assert!(error.message.contains("cut off"), "{error}");
        }
        let error = calls(&[json!([{ "index": 0, "id": "a", "function": { "arguments": "{}" } }])], "stop").unwrap_err();
        assert!(error.message.contains("without naming it"), "{error}");
    }

    #[test]
    fn calls_without_end_are_bounded() {
        let flood =
            |call: fn(usize) -> Value| calls(&(0..2000).map(|at| json!([call(at)])).collect::<Vec<_>>(), "stop").unwrap_err();
        assert_eq!(code(&flood(|at| json!({ "index": at, "function": { "name": "t" } }))), "invalid_response");
        assert_eq!(code(&flood(|_| json!({ "index": 0, "function": { "arguments": "123456789" } }))), "response_too_large");
        assert_eq!(code(&flood(|at| json!({ "index": 0, "function": { "name": format!("t{at}") } }))), "invalid_tool_call");
    }

    #[test]
    fn finish_reasons_have_the_names_of_the_contract() {
        let call = || delta(json!({ "tool_calls": [{ "index": 0, "id": "a", "function": { "name": "t" } }] }));
        let text = || delta(json!({ "content": "a" }));
        for (events, expect) in [
            (vec![text(), finish("stop")], "stop"),
            (vec![text(), finish("length")], "length"),
            (vec![text(), finish("content_filter")], "content-filter"),
            (vec![text(), finish("end_turn")], "end_turn"),
            (vec![call(), finish("tool_calls")], "tool-calls"),
            (vec![call(), finish("stop")], "tool-calls"),
            (vec![delta(json!({ "function_call": { "name": "t", "arguments": "{}" } })), finish("function_call")], "tool-calls"),
            (vec![delta(json!({ "refusal": "no" })), finish("stop")], "refusal"),
        ] {
            assert_eq!(assemble(&events).unwrap().finish_reason, expect);
        }
        assert_eq!(
            read(&[b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n"]).unwrap().finish_reason,
            "unknown"
        );
        assert_eq!(code(&assemble(&[text()]).unwrap_err()), "stream_interrupted");
    }

    #[test]
    fn usage_is_known_only_where_it_can_be_true() {
        let usage = |usage: Value| {
            assemble(&[delta(json!({ "content": "a" })), finish("stop"), json!({ "choices": [], "usage": usage })]).unwrap().usage
        };
        let known = usage(json!({ "prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": { "cached_tokens": 4 },
            "completion_tokens_details": { "reasoning_tokens": 1 } }));
        assert_eq!(known, Some(TokenUsage { input: 5, output: 2, cached_input: Some(4), reasoning: Some(1) }));
        let partly = usage(json!({ "prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": { "cached_tokens": 6 },
            "completion_tokens_details": { "reasoning_tokens": -1 } }));
        assert_eq!(partly, Some(TokenUsage { input: 5, output: 2, cached_input: None, reasoning: None }));
        for lie in [
            json!({ "prompt_tokens": -5, "completion_tokens": 2 }),
            json!({ "prompt_tokens": 5.5, "completion_tokens": 2 }),
            json!({ "prompt_tokens": "5", "completion_tokens": 2 }),
            json!({ "prompt_tokens": 5, "completion_tokens": 1e30 }),
            json!({ "prompt_tokens": 5, "completion_tokens": 100_000_001 }),
            json!({ "prompt_tokens": 0, "completion_tokens": 0 }),
            json!({ "prompt_tokens": 5, "completion_tokens": 0 }),
            json!({ "prompt_tokens": 5 }),
            json!([1, 2]),
            json!("many"),
        ] {
            assert_eq!(usage(lie.clone()), None, "{lie}");
        }
    }

    #[test]
    fn what_is_not_an_answer_is_an_error_and_what_is_odd_is_passed_over() {
        for (data, expect) in [
            ("{\"choices\":", "invalid_response"),
            ("[]", "invalid_response"),
            ("{\"error\":{\"message\":\"x\",\"type\":\"server_error\"}}", "provider_error"),
            ("{\"object\":\"error\",\"message\":\"x\"}", "provider_error"),
        ] {
            let error = read(&[format!("data: {data}\n\n").as_bytes()]).unwrap_err();
            assert_eq!(code(&error), expect, "{data}");
        }
        let odd = assemble(&[
            json!({}),
            json!({ "choices": null }),
            json!({ "choices": [{ "index": 1, "delta": { "content": "other" } }] }),
            json!({ "choices": [{ "delta": null }] }),
            json!({ "choices": [{ "delta": { "content": 7, "tool_calls": "no", "reasoning": {} } }] }),
            delta(json!({ "content": [{ "type": "thinking", "thinking": [] }, { "type": "text", "text": "a" }] })),
            finish("stop"),
        ]);
        assert_eq!(odd.unwrap().message.text(), "a");
    }

    proptest! {
        #[test]
        fn a_stream_cut_anywhere_gives_the_same_response(cuts in prop::collection::vec(1usize..40, 0..60), crlf in any::<bool>()) {
            let events = [
                delta(json!({ "role": "assistant", "content": "" })),
                delta(json!({ "reasoning_content": "héh 語" })),
                delta(json!({ "content": "Grüße, 世界 \u{1f600}" })),
                delta(json!({ "content": "\n\ndata: x\r\n" })),
                delta(json!({ "tool_calls": [{ "index": 0, "id": "a", "function": { "name": "t", "arguments": "{\"x\":\"" } }] })),
                delta(json!({ "tool_calls": [{ "index": 0, "function": { "arguments": "語\"}" } }] })),
                finish("tool_calls"),
                json!({ "choices": [], "usage": { "prompt_tokens": 5, "completion_tokens": 2 } }),
            ];
            let end = if crlf { "\r\n" } else { "\n" };
            let mut text: String = events.iter().map(|event| format!(": note{end}data: {event}{end}{end}")).collect();
            text += &format!("data: [DONE]{end}{end}");
            let (mut chunks, mut rest) = (vec![], text.as_bytes());
            for cut in cuts {
                let (chunk, after) = rest.split_at(cut.min(rest.len()));
                chunks.push(chunk);
                rest = after;
            }
            chunks.push(rest);
            prop_assert_eq!(read(&chunks).unwrap(), assemble(&events).unwrap());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), json in "[\\{\\}\\[\\]:,\"a-z0-9 ]{0,60}") {
            let _any = read(&[&bytes]);
            let _any = read(&[format!("data: {json}\n\ndata: [DONE]\n\n").as_bytes()]);
        }
    }
}
