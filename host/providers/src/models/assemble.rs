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
    forms::{Form, Piece, PieceReader},
    names::ToolNames,
    pieces::Pieces,
    signatures,
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
    /// `None` for chat completions.
    reader: Option<PieceReader>,
    text: ModelText,
    reasoning: ModelText,
    refused: bool,
    calls: Vec<PartialCall>,
    /// The position of the call with an index in `calls`.
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
struct ModelText {
    pieces: Pieces,
    whole: String,
}

/// A call whose pieces are still coming.
#[derive(Debug, Default)]
struct PartialCall {
    id: String,
    name: String,
    arguments: String,
    /// The signature of the thoughts behind it; empty where the provider gives none.
    signature: String,
}

impl Assembler {
    /// For the answer to a conversation of `turn` messages, with at most `limit` bytes of content.
    pub(super) fn new(form: Form, names: ToolNames, redactor: Redactor, turn: usize, limit: usize) -> Self {
        let spoken = || ModelText { pieces: Pieces::new(&redactor), whole: String::new() };
        Self {
            text: spoken(),
            reasoning: spoken(),
            reader: form.reader(),
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

    /// True if the model has given its finish reason: only the usage can follow.
    pub(super) const fn is_finished(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// True if the provider has sent the end of the stream.
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
        self.event_value(&value, out)
    }

    /// Takes in one event, and gives what can be passed on.
    pub(super) fn event_value(&mut self, value: &Value, out: &mut Vec<ModelChunk>) -> Result<(), ApiError> {
        if self.ended {
            return Ok(());
        }
        match &mut self.reader {
            None => self.value(value, "delta", out),
            Some(reader) => {
                let pieces = reader.event(value);
                pieces.into_iter().try_for_each(|piece| self.piece(piece, out))
            }
        }
    }

    /// Takes in a piece of an answer in another form than that of chat completions.
    fn piece(&mut self, piece: Piece, out: &mut Vec<ModelChunk>) -> Result<(), ApiError> {
        match piece {
            Piece::Text(text) => self.say(&text, out)?,
            Piece::Reasoning(text) => self.think(&text, out)?,
            Piece::Refusal(text) => {
                self.refused |= !text.is_empty();
                self.say(&text, out)?;
            }
            Piece::Call { index, id, name, arguments } => {
                let function = json!({ "name": name, "arguments": arguments });
                self.call(Some(index), Some(&Value::String(id)), &function)?;
            }
            Piece::Signature { index, signature } => {
                self.take(signature.len())?;
                let at = self.by_index.get(&index).copied();
                if let Some(call) = at.and_then(|at| self.calls.get_mut(at)) {
                    call.signature.push_str(&signature);
                }
            }
            Piece::Finish(reason) => self.finish_reason = Some(self.reason(&reason)),
            Piece::Usage(usage) => self.usage = plausible(usage),
            Piece::Failed(error) => return Err(ProviderMessage::of_value(&error, &self.redactor).into_late_error()),
            Piece::Broken { category, message } => return Err(category.error(quote(&self.redactor.text(&message)))),
            Piece::End => self.ended = true,
        }
        Ok(())
    }

    /// A reason to stop, without the key and no longer than such a word is.
    fn reason(&self, reason: &str) -> String {
        self.redactor.text(reason).chars().take(MAX_FINISH_REASON_CHARS).collect()
    }

    /// Takes in a whole answer, of a provider that does not stream.
    pub(super) fn whole(&mut self, value: &Value, out: &mut Vec<ModelChunk>) -> Result<(), ApiError> {
        if self.reader.is_some() {
            if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
                return Err(ProviderMessage::of_value(error, &self.redactor).into_late_error());
            }
            return Err(Category::InvalidResponse.error("the provider was asked for a stream of events, and gives none"));
        }
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
            self.finish_reason = Some(self.reason(reason));
        }
        Ok(())
    }

    fn delta(&mut self, delta: &Value, out: &mut Vec<ModelChunk>) -> Result<(), ApiError> {
        let reasoning = ["reasoning_content", "reasoning"].iter().filter_map(|key| delta.get(*key)?.as_str());
        if let Some(reasoning) = reasoning.into_iter().find(|text| !text.is_empty()) {
            self.think(reasoning, out)?;
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

    fn think(&mut self, text: &str, out: &mut Vec<ModelChunk>) -> Result<(), ApiError> {
        self.take(text.len())?;
        let piece = self.reasoning.pieces.push(text);
        if !piece.is_empty() {
            out.push(ModelChunk::Reasoning(piece));
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

    /// Adds a piece of a call. The index names the call; if a provider omits the index or repeats it for all calls (both
    /// occur), a new id with a name begins a new call.
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
        let (tool_calls, signatures) = self.tool_calls(reason.as_deref())?;
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
        let mut content = if text.is_empty() { vec![] } else { vec![ContentPart::Text(text)] };
        content.extend(signatures);
        let message = Message { role: Role::Assistant, content, name: None, tool_calls, tool_call_id: None };
        // Something was read, and what was said took tokens: zeros are a provider that does not count.
        let usage = self.usage.filter(|usage| usage.input > 0 && (usage.output > 0 || nothing));
        out.push(ModelChunk::Done(ModelResponse { message, finish_reason, usage }));
        Ok(())
    }

    /// The tool calls, and the parts of the message that keep their signatures.
    fn tool_calls(&mut self, reason: Option<&str>) -> Result<(Vec<ToolCall>, Vec<ContentPart>), ApiError> {
        let mut signatures = Vec::new();
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
            let is_taken = |id: &str| id.is_empty() || calls.iter().any(|call| call.call_id == id);
            let mut call_id = self.redactor.text(&call.id).into_owned();
            if is_taken(&call_id) {
                call_id = format!("call_{}_{at}", self.turn);
                while is_taken(&call_id) {
                    call_id.push('_');
                }
            }
            if !call.signature.is_empty() {
                signatures.push(signatures::part(&call_id, &self.redactor.text(&call.signature)));
            }
            calls.push(ToolCall { call_id, tool_name, parameters });
        }
        Ok((calls, signatures))
    }
}

/// The usage that a provider reports, if it is plausible.
pub(super) fn plausible_usage(usage: &Value) -> Option<TokenUsage> {
    let number = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64).filter(|tokens| *tokens <= MAX_PLAUSIBLE_TOKENS);
    let input = number("/prompt_tokens").or_else(|| number("/input_tokens"))?;
    let output = number("/completion_tokens").or_else(|| number("/output_tokens"))?;
    let cached = number("/prompt_tokens_details/cached_tokens").or_else(|| number("/prompt_cache_hit_tokens"));
    let reasoning = number("/completion_tokens_details/reasoning_tokens");
    plausible(TokenUsage { input, output, cached_input: cached, reasoning })
}

/// The same usage without what cannot be; `None` where its sums cannot be.
fn plausible(usage: TokenUsage) -> Option<TokenUsage> {
    let TokenUsage { input, output, cached_input, reasoning } = usage;
    (input.max(output) <= MAX_PLAUSIBLE_TOKENS).then(|| TokenUsage {
        input,
        output,
        cached_input: cached_input.filter(|cached| *cached <= input),
        reasoning: reasoning.filter(|reasoning| *reasoning <= output),
    })
}

#[cfg(test)]
mod tests;
