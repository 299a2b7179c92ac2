//! A model that plays a file of replies: for demonstrations and tests, only where the configuration says so.
//!
//! The file is TOML (`[[reply]]`), or JSON lines (`*.jsonl`, a reply on each line). The request alone determines the reply:
//! the first reply whose conditions all hold. Concurrent runs are therefore independent, and the same request always has
//! the same answer. Without a matching reply the call fails; there is no default answer.
//!
//! ```toml
//! # First turn: the model thinks, says something, and asks for two tools at once.
//! [[reply]]
//! when = '(?i)weather in (?P<city>\w+)'   # on the text of the last user message
//! after_tool = false                      # no tool has answered since that message
//! reasoning = "The user wants to know the weather."
//! text = "Let me look."
//! tool_calls = [
//!   { name = "weather", parameters = { city = "{{match.city}}" } },
//!   { name = "clock" },
//! ]
//!
//! # Second turn: it answers with what the tools said.
//! [[reply]]
//! when = '(?i)weather in (?P<city>\w+)'
//! after_tool = true
//! text = "In {{match.city}}: {{tool_results:400}}"
//! chunk_chars = 12                        # characters in each piece of the stream
//! delay_ms = 20                           # before each piece
//! usage = { input = 120, output = 30 }    # otherwise it is unknown
//!
//! # The answer from passages that the agent put into its instructions.
//! [[reply]]
//! system = '(?s)# Passages\n(?P<passage>.+)'
//! text = "The documents say: {{match.passage:300}}"
//!
//! # It fails, after the text if there is one.
//! [[reply]]
//! when = "fail"
//! error = { code = "rate_limited", message = "slow down", retryable = true }
//! ```
//!
//! | condition | holds when |
//! |---|---|
//! | `when` | the regular expression is found in the text of the last user message |
//! | `system` | ... in the texts of `system` and `developer` messages, a line feed between them |
//! | `tool_result` | ... in the texts of the tools since the last user message, a line feed between them |
//! | `after_tool` | a tool has (`true`) or has not (`false`) answered since the last user message |
//! | `round` | the model has asked for tools in so many messages since the last user message |
//! | `has_tool` | the request offers the tool with this name |
//!
//! Texts, and texts within `parameters`, are templates: `{{last_user}}`, `{{system}}`, `{{tool_results}}`, `{{round}}`,
//! `{{match.NAME}}` for a named group of any of the expressions; with `:N`, at most N characters.
//!
//! `finish_reason` is `tool-calls` where there are calls and otherwise `stop`, unless the reply says something else.

use std::{
    collections::{HashMap, VecDeque},
    fs::File,
    io::Read,
    path::Path,
    time::{Duration, Instant},
};

use agent_host_protocol::{
    ApiError, ErrorCode,
    message::{ContentPart, Message, Role, TokenUsage, ToolCall},
    model::{ModelChunk, ModelRequest, ModelResponse},
};
use regex::Regex;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::sleep_until;

use super::{
    failure::{Category, deadline_exceeded},
    template::{self, Part},
};

/// A script is read as a whole.
const MAX_SCRIPT_BYTES: u64 = 4 << 20;
/// Longest pause before a piece: longer than any idle timeout that is worth playing.
const MAX_DELAY_MS: u64 = 600_000;
/// Characters in each piece where the reply does not say.
const CHUNK_CHARS: usize = 12;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptFile {
    #[serde(default)]
    reply: Vec<RuleText>,
}

/// A reply as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RuleText {
    when: Option<String>,
    system: Option<String>,
    tool_result: Option<String>,
    after_tool: Option<bool>,
    round: Option<usize>,
    has_tool: Option<String>,
    text: String,
    reasoning: String,
    tool_calls: Vec<CallText>,
    chunk_chars: Option<usize>,
    delay_ms: u64,
    finish_reason: Option<String>,
    usage: Option<TokenUsage>,
    error: Option<ErrorText>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallText {
    name: String,
    #[serde(default)]
    parameters: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ErrorText {
    #[serde(default = "runtime_error")]
    code: ErrorCode,
    message: String,
    #[serde(default)]
    retryable: bool,
}

fn runtime_error() -> ErrorCode {
    ErrorCode::RuntimeError
}

/// A reply with its conditions.
#[derive(Debug)]
struct Rule {
    text: RuleText,
    when: Option<Regex>,
    system: Option<Regex>,
    tool_result: Option<Regex>,
}

/// A file of replies.
#[derive(Debug)]
pub(super) struct Script {
    rules: Vec<Rule>,
}

impl Script {
    /// Reads and checks a file.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let fail = |reason: String| format!("the script {}: {reason}", path.display());
        let mut text = String::new();
        let file = File::open(path).map_err(|error| fail(format!("cannot be opened: {}", error.kind())))?;
        let size = file
            .take(MAX_SCRIPT_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(|error| fail(format!("cannot be read: {}", error.kind())))?;
        if u64::try_from(size).unwrap_or(u64::MAX) > MAX_SCRIPT_BYTES {
            return Err(fail(format!("has more than {MAX_SCRIPT_BYTES} bytes")));
        }
        let lines = path.extension().is_some_and(|extension| extension == "jsonl" || extension == "ndjson");
        if lines { Self::from_json_lines(&text) } else { Self::from_toml(&text) }.map_err(fail)
    }

    fn from_toml(text: &str) -> Result<Self, String> {
        let file: ScriptFile = toml::from_str(text).map_err(|error| error.to_string())?;
        Self::new(file.reply)
    }

    fn from_json_lines(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let rules = lines.map(|(at, line)| serde_json::from_str(line).map_err(|error| format!("line {}: {error}", at + 1)));
        Self::new(rules.collect::<Result<_, _>>()?)
    }

    fn new(rules: Vec<RuleText>) -> Result<Self, String> {
        if rules.is_empty() {
            return Err("has no `[[reply]]`".into());
        }
        let rules = rules.into_iter().enumerate();
        let rules = rules.map(|(at, rule)| Rule::new(rule).map_err(|error| format!("reply {}: {error}", at + 1)));
        Ok(Self { rules: rules.collect::<Result<_, _>>()? })
    }

    /// The reply to a request, of at most `max_bytes`.
    pub(super) fn reply(&self, request: &ModelRequest, max_bytes: usize) -> Result<Reply, ApiError> {
        let scene = Scene::of(request);
        let Some((rule, groups)) = self.rules.iter().find_map(|rule| Some((rule, rule.fits(&scene)?))) else {
            let details =
                Map::from_iter([("after_tool".to_owned(), json!(scene.after_tool)), ("round".to_owned(), json!(scene.round))]);
            return Err(Category::ScriptUnmatched.error_with("no reply of the script fits this request", details));
        };
        rule.play(&scene, &groups, max_bytes)
    }
}

/// The parts of a request that conditions and templates see.
struct Scene<'a> {
    request: &'a ModelRequest,
    last_user: String,
    system: String,
    tool_results: String,
    after_tool: bool,
    round: usize,
}

impl<'a> Scene<'a> {
    fn of(request: &'a ModelRequest) -> Self {
        let messages = &request.messages;
        let last_user = messages.iter().rposition(|message| message.role == Role::User);
        let since = messages.get(last_user.map_or(0, |at| at + 1)..).unwrap_or_default();
        let texts = |messages: &[Message], roles: &[Role]| {
            let texts: Vec<String> = messages.iter().filter(|message| roles.contains(&message.role)).map(Message::text).collect();
            texts.join("\n")
        };
        Self {
            request,
            last_user: last_user.and_then(|at| messages.get(at)).map(Message::text).unwrap_or_default(),
            system: texts(messages, &[Role::System, Role::Developer]),
            tool_results: texts(since, &[Role::Tool]),
            after_tool: since.iter().any(|message| message.role == Role::Tool),
            round: since.iter().filter(|message| !message.tool_calls.is_empty()).count(),
        }
    }
}

/// The matches of the named groups of a rule's expressions.
type Groups = HashMap<String, String>;

impl Rule {
    fn new(text: RuleText) -> Result<Self, String> {
        let regex = |name: &str, text: &Option<String>| match text {
            Some(text) => Regex::new(text).map(Some).map_err(|error| format!("`{name}`: {error}")),
            None => Ok(None),
        };
        let rule = Self {
            when: regex("when", &text.when)?,
            system: regex("system", &text.system)?,
            tool_result: regex("tool_result", &text.tool_result)?,
            text,
        };
        rule.check()?;
        Ok(rule)
    }

    fn expressions(&self) -> impl Iterator<Item = &Regex> {
        [&self.when, &self.system, &self.tool_result].into_iter().flatten()
    }

    fn check(&self) -> Result<(), String> {
        let text = &self.text;
        if text.text.is_empty() && text.tool_calls.is_empty() && text.error.is_none() {
            return Err("has none of `text`, `tool_calls` and `error`".into());
        }
        if text.error.is_some() && !text.tool_calls.is_empty() {
            return Err("has `tool_calls` and an `error`: a model that fails asks for nothing".into());
        }
        if text.tool_calls.iter().any(|call| call.name.is_empty()) {
            return Err("has a tool call without a name".into());
        }
        if text.delay_ms > MAX_DELAY_MS {
            return Err(format!("`delay_ms` must be at most {MAX_DELAY_MS}"));
        }
        if text.chunk_chars == Some(0) {
            return Err("`chunk_chars` must be at least 1".into());
        }
        let groups: Vec<&str> = self.expressions().flat_map(|regex| regex.capture_names().flatten()).collect();
        let check = |text: &str| {
            for part in template::parts(text)? {
                let Part::Field { name, .. } = part else { continue };
                let known = match name.strip_prefix("match.") {
                    Some(group) => groups.contains(&group),
                    None => matches!(name, "last_user" | "system" | "tool_results" | "round"),
                };
                if !known {
                    return Err(format!(
                        "`{{{{{name}}}}}` is not known: use last_user, system, tool_results, round, or match.NAME for a group (?P<NAME>...)"
                    ));
                }
            }
            Ok(())
        };
        check(&text.text)?;
        check(&text.reasoning)?;
        text.tool_calls.iter().flat_map(|call| call.parameters.values()).try_for_each(|value| each_text(value, &check))
    }

    /// The groups that its expressions found; none where a condition does not hold.
    fn fits(&self, scene: &Scene<'_>) -> Option<Groups> {
        let text = &self.text;
        let holds = text.after_tool.is_none_or(|after| after == scene.after_tool)
            && text.round.is_none_or(|round| round == scene.round)
            && text.has_tool.as_ref().is_none_or(|name| scene.request.tools.iter().any(|tool| tool.name == *name));
        if !holds {
            return None;
        }
        let mut groups = Groups::new();
        let all = [(&self.when, &scene.last_user), (&self.system, &scene.system), (&self.tool_result, &scene.tool_results)];
        for (regex, text) in all {
            let Some(regex) = regex else { continue };
            let found = regex.captures(text)?;
            for name in regex.capture_names().flatten() {
                if let Some(group) = found.name(name) {
                    groups.insert(name.to_owned(), group.as_str().to_owned());
                }
            }
        }
        Some(groups)
    }

    fn play(&self, scene: &Scene<'_>, groups: &Groups, max_bytes: usize) -> Result<Reply, ApiError> {
        let field = |name: &str| match name {
            "last_user" => scene.last_user.clone(),
            "system" => scene.system.clone(),
            "tool_results" => scene.tool_results.clone(),
            "round" => scene.round.to_string(),
            name => name.strip_prefix("match.").and_then(|name| groups.get(name)).cloned().unwrap_or_default(),
        };
        // Templates were checked when the script was read.
        let fill = |text: &str| template::fill(text, field).map_err(|error| Category::Scripted.error(error));
        let RuleText { delay_ms, chunk_chars, .. } = self.text;
        let (text, reasoning) = (fill(&self.text.text)?, fill(&self.text.reasoning)?);
        let mut tool_calls = Vec::with_capacity(self.text.tool_calls.len());
        for (at, call) in self.text.tool_calls.iter().enumerate() {
            let mut parameters = Value::Object(call.parameters.clone());
            fill_texts(&mut parameters, &fill)?;
            let call_id = format!("call_{}_{at}", scene.request.messages.len());
            tool_calls.push(ToolCall { call_id, tool_name: call.name.clone(), parameters });
        }
        let size = text.len() + reasoning.len() + tool_calls.iter().map(|call| call.parameters.to_string().len()).sum::<usize>();
        if size > max_bytes {
            let message = format!("the reply of the script has more than {max_bytes} bytes");
            return Err(Category::ResponseTooLarge.error(message));
        }
        let chars = chunk_chars.unwrap_or(CHUNK_CHARS);
        let mut chunks: VecDeque<ModelChunk> = pieces(&reasoning, chars).map(ModelChunk::Reasoning).collect();
        chunks.extend(pieces(&text, chars).map(ModelChunk::Text));
        let end = match &self.text.error {
            Some(error) => {
                let details = Some(json!({ "code": Category::Scripted.as_str() }));
                Err(ApiError { code: error.code.clone(), message: error.message.clone(), retryable: error.retryable, details })
            }
            None => {
                let usual = if tool_calls.is_empty() { "stop" } else { "tool-calls" };
                let finish_reason = self.text.finish_reason.clone().unwrap_or_else(|| usual.to_owned());
                let content = if text.is_empty() { vec![] } else { vec![ContentPart::Text(text)] };
                let message = Message { role: Role::Assistant, content, name: None, tool_calls, tool_call_id: None };
                Ok(ModelResponse { message, finish_reason, usage: self.text.usage })
            }
        };
        Ok(Reply { chunks, end, delay: Duration::from_millis(delay_ms) })
    }
}

/// Calls `check` with each text in a value.
fn each_text(value: &Value, check: &impl Fn(&str) -> Result<(), String>) -> Result<(), String> {
    match value {
        Value::String(text) => check(text),
        Value::Array(items) => items.iter().try_for_each(|item| each_text(item, check)),
        Value::Object(map) => map.values().try_for_each(|item| each_text(item, check)),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// Fills in each text in a value.
fn fill_texts(value: &mut Value, fill: &impl Fn(&str) -> Result<String, ApiError>) -> Result<(), ApiError> {
    match value {
        Value::String(text) => {
            *text = fill(text)?;
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(|item| fill_texts(item, fill)),
        Value::Object(map) => map.values_mut().try_for_each(|item| fill_texts(item, fill)),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// A text in pieces of so many characters.
fn pieces(text: &str, chars: usize) -> impl Iterator<Item = String> {
    let mut rest = text.chars().peekable();
    std::iter::from_fn(move || rest.peek().is_some().then(|| rest.by_ref().take(chars).collect()))
}

/// The reply to play.
#[derive(Debug)]
pub(super) struct Reply {
    chunks: VecDeque<ModelChunk>,
    end: Result<ModelResponse, ApiError>,
    delay: Duration,
}

/// A reply on its way.
pub(super) struct PlayingReply {
    chunks: VecDeque<ModelChunk>,
    /// None once it was given.
    end: Option<Result<ModelResponse, ApiError>>,
    delay: Duration,
    /// Time of the next piece.
    next: Option<Instant>,
    deadline: Instant,
}

impl PlayingReply {
    pub(super) fn new(reply: Reply, deadline: Instant) -> Self {
        let Reply { chunks, end, delay } = reply;
        Self { chunks, end: Some(end), delay, next: None, deadline }
    }

    /// Waits for pieces and gives those whose time has come; true is the end.
    pub(super) async fn advance(&mut self, out: &mut Vec<ModelChunk>, max: usize) -> Result<bool, ApiError> {
        let next = *self.next.get_or_insert_with(|| Instant::now() + self.delay);
        let until = next.min(self.deadline);
        // A timer has a tick of a millisecond, even for a moment that has passed.
        if until > Instant::now() {
            sleep_until(until.into()).await;
        }
        let now = Instant::now();
        if now >= self.deadline {
            return Err(deadline_exceeded());
        }
        let mut due = next;
        while due <= now && out.len() < max {
            match self.chunks.pop_front() {
                Some(chunk) => out.push(chunk),
                None => break,
            }
            due += self.delay;
        }
        self.next = Some(due);
        if !self.chunks.is_empty() {
            return Ok(false);
        }
        // The end comes with the last piece.
        match self.end.take() {
            Some(Ok(response)) => {
                out.push(ModelChunk::Done(response));
                Ok(true)
            }
            Some(Err(error)) => Err(error),
            None => Ok(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The script of the documentation.
    fn example() -> Script {
        let text: String = include_str!("scripted.rs")
            .lines()
            .skip_while(|line| *line != "//! ```toml")
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .map(|line| format!("{}\n", line.trim_start_matches("//!").trim_start()))
            .collect();
        Script::from_toml(&text).unwrap()
    }

    fn message(role: Role, text: &str) -> Message {
        Message { role, content: vec![ContentPart::Text(text.into())], name: None, tool_calls: vec![], tool_call_id: None }
    }

    async fn play(script: &Script, messages: &[Message]) -> Result<(String, String, ModelResponse), ApiError> {
        let request = ModelRequest { messages: messages.to_vec(), ..ModelRequest::default() };
        let mut playing = PlayingReply::new(script.reply(&request, 10_000)?, Instant::now() + Duration::from_secs(60));
        let (mut text, mut reasoning) = (String::new(), String::new());
        loop {
            let mut out = vec![];
            playing.advance(&mut out, 3).await?;
            for chunk in out {
                match chunk {
                    ModelChunk::Text(piece) => text += &piece,
                    ModelChunk::Reasoning(piece) => reasoning += &piece,
                    ModelChunk::Done(response) => return Ok((text, reasoning, response)),
                }
            }
        }
    }

    #[tokio::test]
    async fn an_agent_loop_is_played_from_the_request_alone() {
        let script = example();
        let mut messages = vec![message(Role::System, "be kind"), message(Role::User, "What is the weather in Oslo?")];
        let (text, reasoning, response) = play(&script, &messages).await.unwrap();
        assert_eq!((text.as_str(), response.finish_reason.as_str()), ("Let me look.", "tool-calls"));
        assert_eq!(reasoning, "The user wants to know the weather.");
        let calls = &response.message.tool_calls;
        assert_eq!((calls[0].tool_name.as_str(), &calls[0].parameters), ("weather", &json!({ "city": "Oslo" })));
        assert_eq!((calls[1].call_id.as_str(), &calls[1].parameters), ("call_2_1", &json!({})));

        messages.push(response.message);
        messages.push(message(Role::Tool, "12 degrees {{system}}"));
        messages.push(message(Role::Tool, "noon"));
        let (text, _, response) = play(&script, &messages).await.unwrap();
        assert_eq!(text, "In Oslo: 12 degrees {{system}}\nnoon");
        assert_eq!(response.message.text(), text);
        assert_eq!((response.finish_reason.as_str(), response.usage.unwrap().input), ("stop", 120));

        // The next user message begins anew.
        messages.push(message(Role::User, "And the weather in Rome?"));
        assert_eq!(play(&script, &messages).await.unwrap().2.message.tool_calls[0].parameters["city"], "Rome");
    }

    #[tokio::test]
    async fn passages_failures_and_requests_that_nothing_fits() {
        let script = example();
        let messages = [message(Role::Developer, "# Passages\nruns end\nsomehow"), message(Role::User, "how?")];
        assert_eq!(play(&script, &messages).await.unwrap().0, "The documents say: runs end\nsomehow");
        let error = play(&script, &[message(Role::User, "fail")]).await.unwrap_err();
        assert_eq!((error.code, error.retryable, error.message.as_str()), (ErrorCode::RateLimited, true, "slow down"));
        let error = play(&script, &[message(Role::User, "hello")]).await.unwrap_err();
        assert_eq!(error.details.unwrap()["code"], "script_unmatched");
    }

    #[test]
    fn a_script_with_a_mistake_says_which_reply_has_it() {
        for (text, expect) in [
            ("", "no `[[reply]]`"),
            ("[[reply]]", "reply 1: has none of"),
            ("[[reply]]\ntext = 'a'\n[[reply]]\nwhen = '('\ntext = 'b'", "reply 2: `when`"),
            ("[[reply]]\ntext = '{{user}}'", "`{{user}}` is not known"),
            ("[[reply]]\nwhen = 'a'\ntext = '{{match.city}}'", "`{{match.city}}` is not known"),
            ("[[reply]]\ntool_calls = [{ name = 'a', parameters = { b = ['{{c}}'] } }]", "`{{c}}` is not known"),
            ("[[reply]]\ntext = 'a'\nchunk_chars = 0", "at least 1"),
            ("[[reply]]\ntext = 'a'\ndelay = 1", "unknown field"),
        ] {
            let error = Script::from_toml(text).unwrap_err();
            assert!(error.contains(expect), "{text}: {error}");
        }
        assert!(Script::from_json_lines("{\"text\":\"a\"}\n\n{\"txt\":1}").unwrap_err().starts_with("line 3"));
        assert_eq!(Script::from_json_lines("{\"text\":\"a\"}\n{\"text\":\"b\"}").unwrap().rules.len(), 2);
    }

    #[test]
    fn a_reply_that_templates_blow_up_is_refused() {
        let script = Script::from_toml("[[reply]]\ntext = '{{last_user}}{{last_user}}'").unwrap();
        let request = ModelRequest { messages: vec![message(Role::User, &"a".repeat(60))], ..ModelRequest::default() };
        assert_eq!(script.reply(&request, 100).unwrap_err().code, ErrorCode::PayloadTooLarge);
    }
}
