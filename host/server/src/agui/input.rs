//! `RunAgentInput`: what a client sends to start, resume or watch a run.
//!
//! A lenient reader: members may be in camelCase or snake_case, `null` means absent, and unknown members are ignored. A
//! known and malformed member is refused with its path, before any effect. Whether a thread accepts the messages is decided
//! later.

use std::fmt;

use agent_host_protocol::limits::MAX_JSON_DEPTH;
use serde_json::{Map, Value};

use super::event::{Content, Function, FunctionType, Message, MessageBody, Part, Source, ToolCall};
use crate::http::{Problem, ProblemCode};

/// Longest id of a thread, as of conversations in events.
const MAX_THREAD_ID: usize = 256;
/// Longest id of a run, in characters.
const MAX_RUN_ID: usize = 128;
/// Longest id of a message, a call or an interrupt. The host's own are the id of a run with what the guest says behind it,
/// and clients send them back.
const MAX_ITEM_ID: usize = 1024;
/// Longest name of a tool or a speaker, and longest media type.
const MAX_NAME: usize = 256;
/// Entries of one list. The size of the body bounds them too, but not what each costs once it is read.
pub(crate) const MAX_MESSAGES: usize = 10_000;
const MAX_ENTRIES: usize = 1024;
/// Levels of lists and objects in a value that is passed on. The value is stored a few levels down in an event.
const MAX_DEPTH: usize = MAX_JSON_DEPTH - 4;

/// The input of a client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunAgentInput {
    /// 1 to 256 bytes without control characters.
    pub(crate) thread_id: String,
    /// 1 to 128 characters, none of them a control character.
    pub(crate) run_id: String,
    pub(crate) parent_run_id: Option<String>,
    /// `MAJOR.MINOR`. Clients from before 1.0 say nothing.
    pub(crate) protocol_version: Option<String>,
    pub(crate) messages: Vec<Message>,
    pub(crate) state: Option<Value>,
    /// No two have the same name.
    pub(crate) tools: Vec<Tool>,
    pub(crate) context: Vec<ContextItem>,
    /// A value that is no object becomes the member `value`.
    pub(crate) forwarded_props: Map<String, Value>,
    /// No two are for the same interrupt.
    pub(crate) resume: Vec<Resume>,
}

/// A tool that the client executes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) description: String,
    /// A JSON Schema, always an object. Default: that of an object without members.
    pub(crate) parameters: Value,
    pub(crate) metadata: Map<String, Value>,
}

/// Something that the client wants the agent to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContextItem {
    pub(crate) description: String,
    pub(crate) value: String,
}

/// The answer to an interrupt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Resume {
    pub(crate) interrupt_id: String,
    pub(crate) status: ResumeStatus,
    pub(crate) payload: Option<Value>,
}

/// The status of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResumeStatus {
    Resolved,
    Cancelled,
}

/// The input in a body.
///
/// # Errors
/// `invalid_json`, or `invalid_argument` with the path of what is malformed in `field`, in camelCase:
/// `messages[2].content[0].source.mimeType`.
#[cfg(test)]
pub(crate) fn parse(body: &[u8]) -> Result<RunAgentInput, Problem> {
    read(document(body)?)
}

/// The members of a body, unread. A byte order mark in front of it is skipped.
pub(crate) fn document(body: &[u8]) -> Result<Map<String, Value>, Problem> {
    match value(body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body))? {
        Value::Object(members) => Ok(members),
        _ => Err(Problem::invalid("body", "the body must be a JSON object")),
    }
}

/// A part of a body.
pub(crate) fn value(json: &[u8]) -> Result<Value, Problem> {
    serde_json::from_slice(json).map_err(|error| Problem::new(ProblemCode::InvalidJson, format!("the body is not JSON: {error}")))
}

/// The message at this place of a body.
pub(crate) fn message_at(place: usize, value: Value) -> Result<Message, Problem> {
    let messages = Path::Member(&Path::Root, "messages");
    message(Member { value, at: Path::Entry(&messages, place) })
}

/// The input with these members.
pub(crate) fn read(members: Map<String, Value>) -> Result<RunAgentInput, Problem> {
    read_with(members, None)
}

/// Likewise, with messages that were read before.
pub(crate) fn read_with(members: Map<String, Value>, messages: Option<Vec<Message>>) -> Result<RunAgentInput, Problem> {
    let mut input = Object { members, at: Path::Root };
    let read = RunAgentInput {
        thread_id: input.id("threadId", MAX_THREAD_ID)?,
        run_id: input.required("runId")?.id_of_chars(MAX_RUN_ID)?,
        parent_run_id: input.member("parentRunId")?.map(|given| given.id_of_chars(MAX_RUN_ID)).transpose()?,
        protocol_version: version(&mut input)?,
        messages: match messages {
            Some(messages) => messages,
            None => input.required("messages")?.list(MAX_MESSAGES, message)?,
        },
        state: input.free("state")?,
        tools: input.list("tools", tool)?,
        context: input.list("context", context)?,
        forwarded_props: match input.free("forwardedProps")? {
            None => Map::new(),
            Some(Value::Object(props)) => props,
            Some(other) => Map::from_iter([("value".to_owned(), other)]),
        },
        resume: input.list("resume", resume)?,
    };
    input.finish();
    unique("tools", "name", read.tools.iter().map(|tool| tool.name.as_str()))?;
    unique("resume", "interruptId", read.resume.iter().map(|resume| resume.interrupt_id.as_str()))?;
    Ok(read)
}

/// Refuses the second of two that are named alike.
fn unique<'a>(list: &str, member: &str, names: impl Iterator<Item = &'a str>) -> Result<(), Problem> {
    let mut seen = std::collections::HashSet::new();
    for (index, name) in names.enumerate() {
        if !seen.insert(name) {
            let field = format!("{list}[{index}].{member}");
            let detail = format!("`{field}` is that of an earlier one: each may stand there once");
            return Err(Problem::invalid(field, detail));
        }
    }
    Ok(())
}

fn version(input: &mut Object<'_>) -> Result<Option<String>, Problem> {
    let Some(given) = input.member("protocolVersion")? else { return Ok(None) };
    let is_number = |text: &str| (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    match given.value.as_str().and_then(|text| text.split_once('.')) {
        Some((major, minor)) if is_number(major) && is_number(minor) => Ok(Some(given.text()?)),
        _ => Err(given.at.invalid("must be a version of AG-UI, such as \"1.0\"")),
    }
}

fn message(given: Member<'_>) -> Result<Message, Problem> {
    let mut object = given.object()?;
    let id = object.id("id", MAX_ITEM_ID)?;
    let body = body(&mut object)?;
    let subagent = object.optional_id("subagentRunId", MAX_ITEM_ID)?;
    let metadata = object.map("metadata")?;
    let encrypted_value = object.optional_text("encryptedValue")?;
    object.finish();
    Ok(Message { id, body, subagent, metadata, encrypted_value })
}

fn body(object: &mut Object<'_>) -> Result<MessageBody, Problem> {
    let role = object.required("role")?;
    Ok(match role.value.as_str() {
        Some("developer") => MessageBody::Developer { content: object.text("content")?, name: object.name()? },
        Some("system") => MessageBody::System { content: object.text("content")?, name: object.name()? },
        Some("user") => MessageBody::User { content: content(object)?, name: object.name()? },
        Some("assistant") => MessageBody::Assistant {
            content: object.optional_text("content")?,
            name: object.name()?,
            tool_calls: object.list("toolCalls", tool_call)?,
        },
        Some("tool") => MessageBody::Tool {
            content: content(object)?,
            tool_call_id: object.id("toolCallId", MAX_ITEM_ID)?,
            error: object.optional_text("error")?,
        },
        Some("reasoning") => MessageBody::Reasoning { content: object.text("content")? },
        Some("activity") => MessageBody::Activity {
            activity_type: object.bounded_text("activityType", MAX_NAME)?,
            content: object.required("content")?.map()?,
        },
        _ => {
            let what = "must be `developer`, `system`, `user`, `assistant`, `tool`, `reasoning` or `activity`";
            return Err(role.at.invalid(what));
        }
    })
}

fn content(object: &mut Object<'_>) -> Result<Content, Problem> {
    let given = object.required("content")?;
    match given.value {
        Value::String(text) => Ok(Content::Text(text)),
        Value::Array(_) => Ok(Content::Parts(given.list(MAX_ENTRIES, part)?)),
        _ => Err(given.at.invalid("must be a string or a list of parts")),
    }
}

fn tool_call(given: Member<'_>) -> Result<ToolCall, Problem> {
    let mut object = given.object()?;
    let id = object.id("id", MAX_ITEM_ID)?;
    let kind = object.required("type")?;
    if kind.value.as_str() != Some("function") {
        return Err(kind.at.invalid("must be `function`"));
    }
    let function = {
        let mut function = object.required("function")?.object()?;
        let read = Function { name: function.bounded_text("name", MAX_NAME)?, arguments: function.text("arguments")? };
        function.finish();
        read
    };
    object.optional_text("encryptedValue")?;
    object.map("metadata")?;
    object.finish();
    // The host keeps its own encrypted values.
    Ok(ToolCall { id, kind: FunctionType::Function, function, encrypted_value: None })
}

fn part(given: Member<'_>) -> Result<Part, Problem> {
    let mut object = given.object()?;
    let kind = object.required("type")?;
    let read = match kind.value.as_str() {
        Some("text") => Part::Text { text: object.text("text")? },
        Some("image") => Part::Image { source: source(&mut object)? },
        Some("audio") => Part::Audio { source: source(&mut object)? },
        Some("video") => Part::Video { source: source(&mut object)? },
        Some("document") => Part::Document { source: source(&mut object)? },
        Some("binary") => return binary(object),
        _ => {
            let what = "must be `text`, `image`, `audio`, `video`, `document` or, as before 1.0, `binary`";
            return Err(kind.at.invalid(what));
        }
    };
    object.optional_text("id")?;
    object.map("metadata")?;
    object.finish();
    Ok(read)
}

fn source(part: &mut Object<'_>) -> Result<Source, Problem> {
    let mut object = part.required("source")?.object()?;
    let kind = object.required("type")?;
    let read = match kind.value.as_str() {
        Some("data") => {
            Source::Data { value: object.filled_text("value")?, mime_type: object.bounded_text("mimeType", MAX_NAME)? }
        }
        Some("url") => Source::Url { value: object.filled_text("value")?, mime_type: object.mime_type()? },
        Some("file") => Source::File {
            value: object.id("value", MAX_ITEM_ID)?,
            provider: object.optional_text("provider")?,
            mime_type: object.mime_type()?,
        },
        _ => return Err(kind.at.invalid("must be `data`, `url` or `file`")),
    };
    object.finish();
    Ok(read)
}

/// Converts a part of the protocol before 1.0: its media type has the kind. Among several sources, the one that needs the
/// fewest requests is taken.
fn binary(mut object: Object<'_>) -> Result<Part, Problem> {
    let mime_type = object.bounded_text("mimeType", MAX_NAME)?;
    let (data, url) = (object.optional_filled("data")?, object.optional_filled("url")?);
    let id = object.optional_id("id", MAX_ITEM_ID)?;
    object.optional_text("filename")?;
    let (kind, _) = mime_type.split_once('/').unwrap_or_default();
    let kind = kind.trim().to_ascii_lowercase();
    let source = match (data, url, id) {
        (Some(value), _, _) => Source::Data { value, mime_type },
        (None, Some(value), _) => Source::Url { value, mime_type: Some(mime_type) },
        (None, None, Some(value)) => Source::File { value, provider: None, mime_type: Some(mime_type) },
        (None, None, None) => return Err(object.at.invalid("needs one of `url`, `data` and `id`")),
    };
    object.finish();
    Ok(match kind.as_str() {
        "image" => Part::Image { source },
        "audio" => Part::Audio { source },
        "video" => Part::Video { source },
        _ => Part::Document { source },
    })
}

fn tool(given: Member<'_>) -> Result<Tool, Problem> {
    let mut object = given.object()?;
    let read = Tool {
        name: object.bounded_text("name", MAX_NAME)?,
        description: object.text("description")?,
        parameters: match object.member("parameters")? {
            None => serde_json::json!({ "type": "object", "properties": {} }),
            Some(schema) => Value::Object(schema.map()?),
        },
        metadata: object.map("metadata")?,
    };
    object.finish();
    Ok(read)
}

fn context(given: Member<'_>) -> Result<ContextItem, Problem> {
    let mut object = given.object()?;
    let read = ContextItem { description: object.text("description")?, value: object.text("value")? };
    object.finish();
    Ok(read)
}

fn resume(given: Member<'_>) -> Result<Resume, Problem> {
    let mut object = given.object()?;
    let interrupt_id = object.id("interruptId", MAX_ITEM_ID)?;
    let status = object.required("status")?;
    let status = match status.value.as_str() {
        Some("resolved") => ResumeStatus::Resolved,
        Some("cancelled") => ResumeStatus::Cancelled,
        _ => return Err(status.at.invalid("must be `resolved` or `cancelled`")),
    };
    let payload = object.free("payload")?;
    object.map("metadata")?;
    object.finish();
    Ok(Resume { interrupt_id, status, payload })
}

/// The path of a value, built on the way down. Only a refusal makes text of it.
#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    Member(&'a Path<'a>, &'static str),
    Entry(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Member(Self::Root, name) => f.write_str(name),
            Self::Member(parent, name) => write!(f, "{parent}.{name}"),
            Self::Entry(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

impl Path<'_> {
    /// The refusal of a value that `must be` something else.
    fn invalid(&self, what: impl fmt::Display) -> Problem {
        let field = self.to_string();
        let detail = format!("`{field}` {what}");
        Problem::invalid(field, detail)
    }
}

/// A value that is there, and where.
struct Member<'a> {
    value: Value,
    at: Path<'a>,
}

impl<'a> Member<'a> {
    fn text(self) -> Result<String, Problem> {
        match self.value {
            Value::String(text) => Ok(text),
            _ => Err(self.at.invalid("must be a string")),
        }
    }

    /// At least one byte, at most so many.
    fn filled(self, max: usize) -> Result<String, Problem> {
        let at = self.at;
        match self.short(max)? {
            text if text.is_empty() => Err(at.invalid("must not be empty")),
            text => Ok(text),
        }
    }

    fn short(self, max: usize) -> Result<String, Problem> {
        let at = self.at;
        match self.text()? {
            text if text.len() > max => Err(at.invalid(format_args!("has {} bytes; there may be {max}", text.len()))),
            text => Ok(text),
        }
    }

    fn id(self, max: usize) -> Result<String, Problem> {
        let at = self.at;
        let is_id = |text: &str| (1..=max).contains(&text.len()) && !text.chars().any(char::is_control);
        match self.value {
            Value::String(text) if is_id(&text) => Ok(text),
            _ => Err(at.invalid(format_args!("must be a string of 1 to {max} bytes without control characters"))),
        }
    }

    fn id_of_chars(self, max: usize) -> Result<String, Problem> {
        let at = self.at;
        let is_id = |text: &str| (1..=max).contains(&text.chars().count()) && !text.chars().any(char::is_control);
        match self.value {
            Value::String(text) if is_id(&text) => Ok(text),
            _ => Err(at.invalid(format_args!("must be a string of 1 to {max} characters without control characters"))),
        }
    }

    fn object(self) -> Result<Object<'a>, Problem> {
        match self.value {
            Value::Object(members) => Ok(Object { members, at: self.at }),
            _ => Err(self.at.invalid("must be an object")),
        }
    }

    /// An object that is passed on as it is.
    fn map(self) -> Result<Map<String, Value>, Problem> {
        Ok(self.bounded()?.object()?.members)
    }

    /// Fails if the value is nested too deeply.
    fn bounded(self) -> Result<Self, Problem> {
        if fits(&self.value, MAX_DEPTH) {
            return Ok(self);
        }
        Err(self.at.invalid(format_args!("has more than {MAX_DEPTH} levels of lists and objects")))
    }

    fn list<T>(self, max: usize, read: impl Fn(Member<'_>) -> Result<T, Problem>) -> Result<Vec<T>, Problem> {
        let Value::Array(entries) = self.value else { return Err(self.at.invalid("must be a list")) };
        if entries.len() > max {
            return Err(self.at.invalid(format_args!("has {} entries; there may be {max}", entries.len())));
        }
        let entries = entries.into_iter().enumerate();
        entries.map(|(index, value)| read(Member { value, at: Path::Entry(&self.at, index) })).collect()
    }
}

/// True if a value has at most this many levels.
fn fits(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(entries) => levels > 0 && entries.iter().all(|entry| fits(entry, levels - 1)),
        Value::Object(members) => levels > 0 && members.values().all(|member| fits(member, levels - 1)),
        _ => true,
    }
}

/// An object, of which members are taken one by one.
struct Object<'a> {
    members: Map<String, Value>,
    at: Path<'a>,
}

impl Object<'_> {
    /// A member, by its name in camelCase. snake_case is accepted; `null` means absent.
    fn member<'b>(&'b mut self, name: &'static str) -> Result<Option<Member<'b>>, Problem> {
        let at = Path::Member(&self.at, name);
        match take(&mut self.members, name) {
            Ok(value) => Ok(value.map(|value| Member { value, at })),
            Err(DuplicateMember) => Err(at.invalid(TWICE)),
        }
    }

    fn required<'b>(&'b mut self, name: &'static str) -> Result<Member<'b>, Problem> {
        if given(&self.members, name).is_none() {
            return Err(Path::Member(&self.at, name).invalid("is missing"));
        }
        let at = Path::Member(&self.at, name);
        match take(&mut self.members, name) {
            Ok(value) => Ok(Member { value: value.unwrap_or_default(), at }),
            Err(DuplicateMember) => Err(at.invalid(TWICE)),
        }
    }

    fn text(&mut self, name: &'static str) -> Result<String, Problem> {
        self.required(name)?.text()
    }

    fn optional_text(&mut self, name: &'static str) -> Result<Option<String>, Problem> {
        self.member(name)?.map(Member::text).transpose()
    }

    fn filled_text(&mut self, name: &'static str) -> Result<String, Problem> {
        self.required(name)?.filled(usize::MAX)
    }

    fn optional_filled(&mut self, name: &'static str) -> Result<Option<String>, Problem> {
        self.member(name)?.map(|given| given.filled(usize::MAX)).transpose()
    }

    fn bounded_text(&mut self, name: &'static str, max: usize) -> Result<String, Problem> {
        self.required(name)?.filled(max)
    }

    fn id(&mut self, name: &'static str, max: usize) -> Result<String, Problem> {
        self.required(name)?.id(max)
    }

    fn optional_id(&mut self, name: &'static str, max: usize) -> Result<Option<String>, Problem> {
        self.member(name)?.map(|given| given.id(max)).transpose()
    }

    /// The `name` of a speaker.
    fn name(&mut self) -> Result<Option<String>, Problem> {
        self.member("name")?.map(|given| given.short(MAX_NAME)).transpose()
    }

    fn mime_type(&mut self) -> Result<Option<String>, Problem> {
        self.member("mimeType")?.map(|given| given.filled(MAX_NAME)).transpose()
    }

    /// Any JSON that is not too deep.
    fn free(&mut self, name: &'static str) -> Result<Option<Value>, Problem> {
        Ok(self.member(name)?.map(Member::bounded).transpose()?.map(|given| given.value))
    }

    fn map(&mut self, name: &'static str) -> Result<Map<String, Value>, Problem> {
        Ok(self.member(name)?.map(Member::map).transpose()?.unwrap_or_default())
    }

    fn list<T>(&mut self, name: &'static str, read: impl Fn(Member<'_>) -> Result<T, Problem>) -> Result<Vec<T>, Problem> {
        Ok(self.member(name)?.map(|given| given.list(MAX_ENTRIES, read)).transpose()?.unwrap_or_default())
    }

    /// The remaining members are unknown.
    fn finish(self) {
        for name in self.members.keys() {
            tracing::debug!(at = %self.at, ?name, "an unknown member of a RunAgentInput is ignored");
        }
    }
}

/// A member stands there in both forms.
struct DuplicateMember;

const TWICE: &str = "is given twice, in camelCase and in snake_case, with different values";

/// Takes a member in either form.
fn take(members: &mut Map<String, Value>, name: &str) -> Result<Option<Value>, DuplicateMember> {
    let mut get = |name: &str| members.remove(name).filter(|value| !value.is_null());
    let camel = get(name);
    let snake = snake(name).and_then(|snake| get(&snake));
    match (camel, snake) {
        (Some(camel), Some(snake)) if camel != snake => Err(DuplicateMember),
        (camel, snake) => Ok(camel.or(snake)),
    }
}

/// A member that may be written in either form, unread; `null` is as good as absent.
pub(crate) fn given<'a>(members: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let get = |name: &str| members.get(name).filter(|value| !value.is_null());
    get(name).or_else(|| snake(name).and_then(|snake| get(&snake)))
}

/// The name of a member in snake_case, where that is another.
fn snake(camel: &str) -> Option<String> {
    camel.bytes().any(|byte| byte.is_ascii_uppercase()).then(|| {
        let mut snake = String::with_capacity(camel.len() + 2);
        for c in camel.chars() {
            if c.is_ascii_uppercase() {
                snake.push('_');
            }
            snake.push(c.to_ascii_lowercase());
        }
        snake
    })
}

#[cfg(test)]
mod tests;
