//! Counting tokens with the encodings of OpenAI.
//!
//! For a model of another maker it is an estimate, usually within a fifth. An encoding is read when it is first needed,
//! which takes up to a second, and is then shared by all models.

use agent_host_protocol::{
    ApiError,
    message::{ContentPart, Message},
    model::ToolDefinition,
};
use tiktoken_rs::{
    CoreBPE, cl100k_base_singleton, o200k_base_singleton, o200k_harmony_singleton, p50k_base_singleton, r50k_base_singleton,
    tokenizer::{Tokenizer, get_tokenizer},
};

/// Largest text that is counted in one call, in bytes: more than the context of any model.
const MAX_BYTES: usize = 8 << 20;

/// Size of the pieces for the tokenizer, in bytes. Its regular expression backtracks over long runs of the same kind (a
/// megabyte of spaces) until it gives up, and then panics; within a piece it cannot.
const PIECE_BYTES: usize = 512;

/// Tokens that frame a message, as OpenAI documents for its chat models.
const PER_MESSAGE: u64 = 3;
/// Tokens of a `name` beyond its text.
const PER_NAME: u64 = 1;
/// Tokens that begin the answer.
const PER_REQUEST: u64 = 3;
/// Tokens that frame a tool call.
const PER_TOOL_CALL: u64 = 3;
/// Tokens that frame a tool, and the list of tools, as OpenAI documents for its newer models.
const PER_TOOL: u64 = 7;
const PER_TOOLS: u64 = 12;
/// Tokens of an image of 1024 by 1024 in full detail. The real number depends on the size, which is unknown here.
const PER_IMAGE: u64 = 765;
/// Tokens of the note that replaces other content.
const PER_NOTE: u64 = 40;

/// An encoding of text to tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Encoding {
    name: &'static str,
    load: fn() -> &'static CoreBPE,
}

const ENCODINGS: [Encoding; 5] = [
    Encoding { name: "o200k_base", load: o200k_base_singleton },
    Encoding { name: "o200k_harmony", load: o200k_harmony_singleton },
    Encoding { name: "cl100k_base", load: cl100k_base_singleton },
    Encoding { name: "p50k_base", load: p50k_base_singleton },
    Encoding { name: "r50k_base", load: r50k_base_singleton },
];

impl Encoding {
    /// By the name that the configuration has.
    pub(super) fn named(name: &str) -> Option<Self> {
        ENCODINGS.into_iter().find(|encoding| encoding.name == name)
    }

    /// By the name of the model; the newest common encoding for one that is not known.
    pub(super) fn of_model(model: &str) -> Self {
        let [newest, ..] = ENCODINGS;
        // Routers write `openai/gpt-4o`.
        let model = model.rsplit_once('/').map_or(model, |(_, name)| name);
        let name = match get_tokenizer(model) {
            Some(Tokenizer::O200kHarmony) => "o200k_harmony",
            Some(Tokenizer::Cl100kBase) => "cl100k_base",
            Some(Tokenizer::P50kBase | Tokenizer::P50kEdit) => "p50k_base",
            Some(Tokenizer::R50kBase | Tokenizer::Gpt2) => "r50k_base",
            Some(Tokenizer::O200kBase) | None => newest.name,
        };
        Self::named(name).unwrap_or(newest)
    }

    /// Tokens of messages and tools as a request, with the frame of each. A tool has its name, its description, and its schema as JSON,
    /// which is more than a service needs for it.
    pub(super) fn count(self, messages: &[Message], tools: &[ToolDefinition]) -> Result<u64, ApiError> {
        let parts = || messages.iter().flat_map(|message| &message.content);
        let calls = || messages.iter().flat_map(|message| &message.tool_calls);
        let parameters: Vec<String> = calls().map(|call| call.parameters.to_string()).collect();
        let schemas: Vec<String> = tools.iter().map(|tool| tool.parameters.to_string()).collect();
        let described = tools.iter().flat_map(|tool| [Some(tool.name.as_str()), tool.description.as_deref()]).flatten();
        let texts = parts()
            .filter_map(|part| if let ContentPart::Text(text) = part { Some(text.as_str()) } else { None })
            .chain(messages.iter().filter_map(|message| message.name.as_deref()))
            .chain(calls().map(|call| call.tool_name.as_str()))
            .chain(parameters.iter().chain(&schemas).map(String::as_str))
            .chain(described);
        let size = texts.clone().map(str::len).fold(0_usize, usize::saturating_add);
        if size > MAX_BYTES {
            return Err(ApiError::too_large("the text to count", size, MAX_BYTES));
        }
        let tokens: u64 = texts.map(|text| self.count_text(text)).sum();
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let content: u64 = parts()
            .map(|part| match part {
                ContentPart::Text(_) => 0,
                ContentPart::Artifact(artifact) if artifact.media_type.starts_with("image/") => PER_IMAGE,
                ContentPart::Artifact(_) | ContentPart::Other(_) => PER_NOTE,
            })
            .sum();
        let names = messages.iter().filter(|message| message.name.is_some()).count();
        let frame =
            number(messages.len()) * PER_MESSAGE + number(names) * PER_NAME + number(parameters.len()) * PER_TOOL_CALL + content;
        let of_tools = if tools.is_empty() { 0 } else { PER_TOOLS + number(tools.len()) * PER_TOOL };
        Ok(tokens + frame + of_tools + if messages.is_empty() { 0 } else { PER_REQUEST })
    }

    /// The tokens of a text. Text that looks like a special token counts as ordinary text.
    fn count_text(self, text: &str) -> u64 {
        if text.is_empty() {
            return 0;
        }
        let encoding = (self.load)();
        pieces(text).map(|piece| u64::try_from(encoding.count_ordinary(piece)).unwrap_or(u64::MAX)).sum()
    }
}

/// Cuts a text into pieces of at most [`PIECE_BYTES`]: before a single space between words, where no token crosses,
/// or in the middle of a run that has none, which costs a token at most.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let cut = if rest.len() <= PIECE_BYTES { rest.len() } else { cut(rest) };
        let (piece, after) = rest.split_at(cut);
        rest = after;
        Some(piece)
    })
}

/// The place to split a text that is longer than [`PIECE_BYTES`].
fn cut(text: &str) -> usize {
    let limit = (0..=PIECE_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let bytes = text.as_bytes().get(..limit).unwrap_or_default();
    let between_words = |window: &[u8]| matches!(window, [before, b' ', after] if !before.is_ascii_whitespace() && before.is_ascii() && !after.is_ascii_whitespace() && after.is_ascii());
    match bytes.windows(3).rposition(between_words) {
        Some(before) => before + 1,
        None => limit,
    }
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::message::{Role, ToolCall};
    use serde_json::{Value, json};

    use super::*;

    fn message(text: &str) -> Message {
        Message {
            role: Role::User,
            content: vec![ContentPart::Text(text.into())],
            name: None,
            tool_calls: vec![],
            tool_call_id: None,
        }
    }

    fn encoding() -> Encoding {
        Encoding::named("o200k_base").unwrap()
    }

    #[test]
    fn the_configuration_knows_every_encoding() {
        assert_eq!(ENCODINGS.map(|encoding| encoding.name), agent_host_config::TOKENIZERS);
    }

    #[test]
    fn the_encoding_follows_the_model() {
        assert_eq!(Encoding::of_model("gpt-4-0314").name, "cl100k_base");
        assert_eq!(Encoding::of_model("openai/gpt-4o").name, "o200k_base");
        assert_eq!(Encoding::of_model("qwen3").name, "o200k_base");
    }

    #[test]
    fn a_message_costs_its_text_and_its_frame() {
        assert_eq!(encoding().count(&[], &[]).unwrap(), 0);
        assert_eq!(encoding().count(&[message("hello world")], &[]).unwrap(), 2 + 3 + 3);
        let mut named = message("hello world");
        named.name = Some("hello".into());
        assert_eq!(encoding().count(&[named], &[]).unwrap(), 2 + 3 + 3 + 2);
        let mut calling = message("");
        calling.tool_calls =
            vec![ToolCall { call_id: "1".into(), tool_name: "hello".into(), parameters: json!({ "a": "hello world" }) }];
        assert!(encoding().count(&[calling], &[]).unwrap() > 3 + 3 + 3 + 2);
    }

    #[test]
    fn tools_cost_their_text_and_their_frame() {
        let tool = |description: Option<&str>, parameters: Value| ToolDefinition {
            name: "hello".into(),
            description: description.map(str::to_owned),
            parameters,
        };
        let count = |tools: &[ToolDefinition]| encoding().count(&[message("hello world")], tools).unwrap();
        let (plain, frame) = (count(&[]), PER_TOOLS + PER_TOOL);
        // `{}` is one token.
        assert_eq!(count(&[tool(None, json!({}))]), plain + frame + 2);
        assert_eq!(count(&[tool(Some("hello world"), json!({}))]), plain + frame + 4);
        let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
        assert!(count(&[tool(None, schema.clone())]) > plain + frame + 10);
        let (one, two) = (count(&[tool(None, schema.clone())]), count(&[tool(None, schema.clone()), tool(None, schema)]));
        assert_eq!(two + plain + PER_TOOLS, 2 * one, "the list has one frame");
        assert!(encoding().count(&[], &[tool(Some(&"a".repeat(MAX_BYTES)), json!({}))]).is_err());
    }

    #[test]
    fn cutting_does_not_change_the_count_of_prose() {
        let prose = "The quick brown fox, aged 12345 days, jumps over the lazy dog's back.\n\n  Then it \"rests\"... ".repeat(60);
        let whole = (encoding().load)().count_ordinary(&prose) as u64;
        assert_eq!(encoding().count_text(&prose), whole);
        assert!(pieces(&prose).all(|piece| piece.len() <= PIECE_BYTES));
        assert_eq!(pieces(&prose).collect::<String>(), prose);
    }

    #[test]
    fn long_runs_neither_panic_nor_take_forever() {
        for run in [" ", "a", "\n", "語", "!", "é", "1", "\u{a0}"] {
            let text = run.repeat((1 << 20) / run.len());
            let began = std::time::Instant::now();
            assert!(encoding().count_text(&text) > 0);
            assert!(began.elapsed().as_secs() < 60, "{run:?} took {:?}", began.elapsed());
        }
    }

    #[test]
    fn more_than_any_model_reads_is_refused() {
        let error = encoding().count(&[message(&"a".repeat(MAX_BYTES + 1))], &[]).unwrap_err();
        assert_eq!(error.code.as_str(), "payload_too_large");
    }
}
