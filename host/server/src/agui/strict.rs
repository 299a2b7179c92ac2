//! The strict profile: what a run may be started with where the host holds the conversation and the client says one
//! thing at a time.
//!
//! The table of rules of `POST /api/v1/agent/runs`, in its order, each with its exact message. The rules for `binary` parts
//! hold for the later parts (`image`, `document`, ...) too. An accepted request is read like any other input
//! ([`super::input`]).

use serde_json::{Map, Value};
use uuid::Uuid;

use super::input::{self, RunAgentInput, given};
use crate::http::{Problem, ProblemCode};

/// Bytes of the body.
pub(crate) const MAX_BODY: usize = 256 * 1024;
/// The longest id of a run.
const MAX_RUN_ID: usize = 128;
const MAX_MESSAGES: usize = 200;
/// Characters of the texts of a message of the user.
const MAX_USER_TEXT: usize = 10_000;

/// The input in a body, by the rules of the strict profile.
///
/// # Errors
/// All are 422: `AGENT_SESSION_ID_INVALID` for the thread, `AGENT_RUN_MESSAGES_INVALID` for the messages, and
/// `AGENT_RUN_INPUT_INVALID` for all else, a body that is no JSON too.
pub(crate) fn parse(body: &[u8]) -> Result<RunAgentInput, Problem> {
    check_size(body.len())?;
    let mut members = input::document(body).map_err(restate)?;
    check(body.len(), &members)?;
    if let Some(id) = given(&members, "threadId").and_then(Value::as_str).and_then(thread_id) {
        members.remove("thread_id");
        members.insert("threadId".to_owned(), id.into());
    }
    input::read(members).map_err(restate)
}

/// The id of a thread in its one form: a UUID in lower case, with hyphens. `None` for other texts and other forms of a UUID.
pub(crate) fn thread_id(given: &str) -> Option<String> {
    let is_hyphenated = given.len() == uuid::fmt::Hyphenated::LENGTH;
    let id = Uuid::try_parse(given).ok().filter(|_| is_hyphenated)?;
    Some(id.hyphenated().to_string())
}

/// The refusal of an image whose address this host has not signed.
pub(crate) fn not_signed(place: usize, index: usize) -> Problem {
    let field = format!("messages[{place}].content[{index}]");
    Problem::at(ProblemCode::AgentRunMessagesInvalid, field, "binary content requires url")
}

/// Checks the members of a body of this size against the table. A missing member, or one that is neither list nor text, is
/// left to the reader.
pub(crate) fn check(body_bytes: usize, members: &Map<String, Value>) -> Result<(), Problem> {
    check_size(body_bytes)?;
    if given(members, "threadId").and_then(Value::as_str).and_then(thread_id).is_none() {
        return Err(Problem::at(ProblemCode::AgentSessionIdInvalid, "threadId", "threadId must be a valid UUID"));
    }
    if given(members, "runId").and_then(Value::as_str).is_some_and(|id| id.chars().count() > MAX_RUN_ID) {
        return Err(Problem::at(ProblemCode::AgentRunInputInvalid, "runId", "runId exceeds length limit"));
    }
    match given(members, "messages") {
        Some(Value::Array(messages)) => check_messages(messages),
        _ => Ok(()),
    }
}

fn check_size(bytes: usize) -> Result<(), Problem> {
    if bytes > MAX_BODY { Err(too_large()) } else { Ok(()) }
}

/// The body has too many bytes, also where it was not even taken for that.
pub(crate) fn too_large() -> Problem {
    Problem::at(ProblemCode::AgentRunInputInvalid, "body", "RunAgentInput payload exceeds size limit")
}

fn check_messages(messages: &[Value]) -> Result<(), Problem> {
    let refuse = |field: String, detail: &str| Err(Problem::at(ProblemCode::AgentRunMessagesInvalid, field, detail));
    if messages.len() > MAX_MESSAGES {
        return refuse("messages".into(), "RunAgentInput.messages exceeds limit");
    }
    let is_user = |message: &Value| message.get("role").and_then(Value::as_str) == Some("user");
    let users: Vec<(usize, &Value)> = messages.iter().enumerate().filter(|(_, message)| is_user(message)).collect();
    if let Some((index, _)) = users.iter().find(|(_, message)| text_chars(message) > MAX_USER_TEXT) {
        return refuse(format!("messages[{index}].content"), "RunAgentInput user message text exceeds limit");
    }
    if users.len() != 1 {
        return refuse("messages".into(), "RunAgentInput.messages must contain exactly one user message");
    }
    if !messages.first().is_some_and(is_user) {
        return refuse("messages[0].role".into(), "RunAgentInput.messages[0].role must be user");
    }
    let parts: Vec<(usize, Media)> = users.iter().flat_map(|(_, message)| media(message)).collect();
    for (broken, member, detail) in RULES {
        if let Some((index, part)) = parts.iter().find(|(_, part)| broken(part)) {
            let member = if part.is_binary { member } else { "source" };
            return refuse(format!("messages[0].content[{index}].{member}"), detail);
        }
    }
    Ok(())
}

/// The condition of a violation, the violating member of a `binary` part, and the message.
type Rule = (fn(&Media) -> bool, &'static str, &'static str);

const RULES: [Rule; 3] = [
    (|part| !part.is_image, "mimeType", "binary content requires image mimeType"),
    (|part| !part.has_url, "url", "binary content requires url"),
    (|part| part.has_data, "data", "binary content data is not allowed"),
];

/// The members of a part with media that the rules check.
struct Media {
    /// Written as before 1.0.
    is_binary: bool,
    is_image: bool,
    has_url: bool,
    has_data: bool,
}

/// The parts of a message that refer to bytes, each with its place.
fn media(message: &Value) -> Vec<(usize, Media)> {
    let parts = message.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    parts.iter().enumerate().filter_map(|(index, part)| Some((index, Media::of(part.as_object()?)?))).collect()
}

impl Media {
    fn of(part: &Map<String, Value>) -> Option<Self> {
        let kind = part.get("type")?.as_str()?;
        let text = |members: &Map<String, Value>, name: &str| given(members, name).and_then(Value::as_str).map(str::to_owned);
        let is_data = |url: &str| url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
        let is_image = |mime_type: &str| mime_type.trim_start().get(..6).is_some_and(|kind| kind.eq_ignore_ascii_case("image/"));
        match kind {
            "binary" => Some(Self {
                is_binary: true,
                is_image: text(part, "mimeType").is_some_and(|mime_type| is_image(&mime_type)),
                has_url: text(part, "url").is_some_and(|url| !url.is_empty()),
                has_data: given(part, "data").is_some() || text(part, "url").is_some_and(|url| is_data(&url)),
            }),
            "image" | "audio" | "video" | "document" => {
                let source = part.get("source").and_then(Value::as_object)?;
                let from = text(source, "type");
                let mime_type = text(source, "mimeType");
                Some(Self {
                    is_binary: false,
                    is_image: kind == "image" && mime_type.is_none_or(|mime_type| is_image(&mime_type)),
                    has_url: from.as_deref() == Some("url"),
                    has_data: from.as_deref() == Some("data") || text(source, "value").is_some_and(|url| is_data(&url)),
                })
            }
            _ => None,
        }
    }
}

/// The characters of what a message says in text.
fn text_chars(message: &Value) -> usize {
    match message.get("content") {
        Some(Value::String(text)) => text.chars().count(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().filter(|part| part.get("type").and_then(Value::as_str) == Some("text"));
            texts.filter_map(|part| part.get("text")?.as_str()).map(|text| text.chars().count()).sum()
        }
        _ => 0,
    }
}

/// A refusal of the reading, in the codes of this profile.
fn restate(problem: Problem) -> Problem {
    let code = match problem.field() {
        Some(field) if field.starts_with("messages") => ProblemCode::AgentRunMessagesInvalid,
        Some("threadId") => ProblemCode::AgentSessionIdInvalid,
        _ => ProblemCode::AgentRunInputInvalid,
    };
    problem.with_code(code)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const THREAD: &str = "550e8400-e29b-41d4-a716-446655440000";

    fn with(members: Value) -> Value {
        let message = json!({ "id": "m", "role": "user", "content": "x" });
        let mut whole = json!({ "threadId": THREAD, "runId": "run-001", "state": {}, "messages": [message], "tools": [],
            "context": [], "forwardedProps": {} });
        for (name, value) in members.as_object().unwrap() {
            whole[name] = value.clone();
        }
        whole
    }

    fn of(whole: &Value) -> Result<RunAgentInput, Problem> {
        parse(whole.to_string().as_bytes())
    }

    fn user(content: Value) -> Value {
        json!({ "id": "m", "role": "user", "content": content })
    }

    fn assistant() -> Value {
        json!({ "id": "a", "role": "assistant", "content": null, "toolCalls": null })
    }

    fn part(members: Value) -> Value {
        json!({ "messages": [user(json!([{ "type": "text", "text": "t" }, members]))] })
    }

    /// An input with a body of exactly so many bytes.
    fn sized(bytes: usize) -> Value {
        let empty = with(json!({ "state": "" })).to_string().len();
        with(json!({ "state": "x".repeat(bytes - empty) }))
    }

    const INPUT: ProblemCode = ProblemCode::AgentRunInputInvalid;
    const MESSAGES: ProblemCode = ProblemCode::AgentRunMessagesInvalid;
    const SESSION: ProblemCode = ProblemCode::AgentSessionIdInvalid;

    #[test]
    fn each_rule_says_its_message() {
        let check = |whole: Value, code: ProblemCode, field: &str, detail: &str| {
            let problem = of(&whole).map(|input| panic!("{whole} gives {input:?}")).unwrap_err();
            assert_eq!((problem.code(), problem.field(), problem.detail()), (code, Some(field), detail), "{whole}");
        };
        check(sized(MAX_BODY + 1), INPUT, "body", "RunAgentInput payload exceeds size limit");
        let forms = [json!(THREAD.replace('-', "")), json!(format!("urn:uuid:{THREAD}")), json!(format!("{{{THREAD}}}"))];
        let others = [json!("t"), json!(""), json!("550e8400-e29b-41d4-a716-44665544000g"), json!(7), json!(null)];
        for id in forms.into_iter().chain(others) {
            check(with(json!({ "threadId": id })), SESSION, "threadId", "threadId must be a valid UUID");
        }
        let mut snake = with(json!({ "thread_id": "t" }));
        snake["threadId"].take();
        check(snake, SESSION, "threadId", "threadId must be a valid UUID");
        check(with(json!({ "runId": "é".repeat(129) })), INPUT, "runId", "runId exceeds length limit");
        let many = [vec![user(json!("x"))], vec![assistant(); 200]].concat();
        check(with(json!({ "messages": many })), MESSAGES, "messages", "RunAgentInput.messages exceeds limit");
        let long = "RunAgentInput user message text exceeds limit";
        check(with(json!({ "messages": [user(json!("好".repeat(10_001)))] })), MESSAGES, "messages[0].content", long);
        let halves = json!([{ "type": "text", "text": "x".repeat(5_000) }, { "type": "text", "text": "x".repeat(5_001) }]);
        check(with(json!({ "messages": [assistant(), user(halves)] })), MESSAGES, "messages[1].content", long);
        let one = "RunAgentInput.messages must contain exactly one user message";
        for messages in [json!([]), json!([assistant()]), json!([user(json!("x")), assistant(), user(json!("x"))]), json!([7])] {
            check(with(json!({ "messages": messages })), MESSAGES, "messages", one);
        }
        let first = "RunAgentInput.messages[0].role must be user";
        check(with(json!({ "messages": [assistant(), user(json!("x"))] })), MESSAGES, "messages[0].role", first);
        let place = |member: &str| format!("messages[0].content[1].{member}");
        for mime_type in [json!("application/pdf"), json!(null), json!("images/png"), json!("image"), json!(1)] {
            let binary = json!({ "type": "binary", "mimeType": mime_type, "url": "https://a.example" });
            check(with(part(binary)), MESSAGES, &place("mimeType"), "binary content requires image mimeType");
        }
        for url in [json!(null), json!(""), json!(7)] {
            let binary = json!({ "type": "binary", "mime_type": "image/png", "url": url });
            check(with(part(binary)), MESSAGES, &place("url"), "binary content requires url");
        }
        for url in ["data:image/png;base64,AA==", "DATA:,x"] {
            let binary = json!({ "type": "binary", "mimeType": "image/png", "url": url });
            check(with(part(binary)), MESSAGES, &place("data"), "binary content data is not allowed");
        }
        for data in [json!("AA=="), json!(""), json!(7)] {
            let binary = json!({ "type": "binary", "mimeType": "image/png", "url": "https://a.example", "data": data });
            check(with(part(binary)), MESSAGES, &place("data"), "binary content data is not allowed");
        }
    }

    #[test]
    fn the_newer_parts_have_the_same_rules() {
        let check = |kind: &str, source: Value, detail: &str| {
            let problem = of(&with(part(json!({ "type": kind, "source": source })))).unwrap_err();
            assert_eq!((problem.code(), problem.field()), (MESSAGES, Some("messages[0].content[1].source")), "{detail}");
            assert_eq!(problem.detail(), detail);
        };
        let url = |mime_type: &str| json!({ "type": "url", "value": "https://a.example", "mimeType": mime_type });
        check("document", url("image/png"), "binary content requires image mimeType");
        check("image", url("text/html"), "binary content requires image mimeType");
        check("image", json!({ "type": "file", "value": "f" }), "binary content requires url");
        check("image", json!({ "type": "data", "value": "AA==", "mimeType": "image/png" }), "binary content requires url");
        assert!(of(&with(part(json!({ "type": "image", "source": url("image/png") })))).is_ok());
        let unsaid = json!({ "type": "url", "value": "https://a.example", "mimeType": null });
        assert!(of(&with(part(json!({ "type": "image", "source": unsaid })))).is_ok());
    }

    #[test]
    fn of_several_broken_rules_the_first_of_the_table_is_said() {
        let nothing = json!({ "type": "binary", "mimeType": "text/html", "data": "x" });
        let two = json!([assistant(), user(json!("x".repeat(10_001))), user(json!([nothing]))]);
        let many = [vec![assistant(); 200], two.as_array().unwrap().clone()].concat();
        let mut whole =
            with(json!({ "threadId": "t", "runId": "x".repeat(129), "messages": many, "state": "x".repeat(MAX_BODY) }));
        let mut violations = Vec::new();
        for mend in [
            ("state", json!({})),
            ("threadId", json!(THREAD)),
            ("runId", json!("r")),
            ("messages", two),
            ("messages", json!([assistant(), user(json!("x")), user(json!([nothing]))])),
            ("messages", json!([assistant(), user(json!([nothing]))])),
            ("messages", json!([user(json!([nothing]))])),
            ("messages", json!([user(json!([{ "type": "binary", "mimeType": "image/png", "data": "x" }]))])),
            ("messages", json!([user(json!([{ "type": "binary", "mimeType": "image/png", "data": "x", "url": "u" }]))])),
            ("messages", json!([user(json!([{ "type": "binary", "mimeType": "image/png", "url": "u" }]))])),
        ] {
            violations.push(of(&whole).unwrap_err().detail().to_owned());
            whole[mend.0] = mend.1;
        }
        assert_eq!(
            violations,
            [
                "RunAgentInput payload exceeds size limit",
                "threadId must be a valid UUID",
                "runId exceeds length limit",
                "RunAgentInput.messages exceeds limit",
                "RunAgentInput user message text exceeds limit",
                "RunAgentInput.messages must contain exactly one user message",
                "RunAgentInput.messages[0].role must be user",
                "binary content requires image mimeType",
                "binary content requires url",
                "binary content data is not allowed",
            ]
        );
        assert!(of(&whole).is_ok());
    }

    #[test]
    fn values_at_the_limit_pass() {
        assert!(of(&sized(MAX_BODY)).is_ok());
        assert_eq!(of(&with(json!({ "threadId": THREAD.to_uppercase() }))).unwrap().thread_id, THREAD);
        let mut snake = with(json!({ "thread_id": THREAD.to_uppercase() }));
        snake["threadId"].take();
        assert_eq!(of(&snake).unwrap().thread_id, THREAD);
        assert!(of(&with(json!({ "runId": "é".repeat(128) }))).is_ok());
        let many = [vec![user(json!("x"))], vec![assistant(); 199]].concat();
        assert!(of(&with(json!({ "messages": many }))).is_ok());
        assert!(of(&with(json!({ "messages": [user(json!("好".repeat(10_000)))] }))).is_ok());
        assert!(of(&with(part(json!({ "type": "binary", "mimeType": "IMAGE/png", "url": "u", "data": null })))).is_ok());
    }

    /// The examples of the document that the rules are from.
    #[test]
    fn the_examples_pass() {
        let input = of(&with(json!({ "messages": [user(json!("帮我查一下北京今天的天气"))] }))).unwrap();
        assert_eq!((input.thread_id.as_str(), input.messages.len()), (THREAD, 1));
        let image = json!({ "type": "binary", "mimeType": "image/png",
            "url": "https://storage.example.com/agent-inputs/user-123/image.png?signature=xxx" });
        assert!(of(&with(part(image))).is_ok());
        let tool = json!({ "name": "get_weather", "description": "获取指定城市的天气信息", "parameters": { "type": "object",
            "properties": { "city": { "type": "string", "description": "城市名称" } }, "required": ["city"] } });
        assert_eq!(of(&with(json!({ "tools": [tool] }))).unwrap().tools.len(), 1);
    }

    #[test]
    fn parse_errors_have_the_codes_of_the_profile() {
        let check = |whole: Value, code: ProblemCode, field: Option<&str>| {
            let problem = of(&whole).unwrap_err();
            assert_eq!((problem.code(), problem.field()), (code, field), "{whole}");
        };
        check(with(json!({ "threadId": null })), SESSION, Some("threadId"));
        check(with(json!({ "runId": 7 })), INPUT, Some("runId"));
        check(with(json!({ "messages": null })), MESSAGES, Some("messages"));
        check(with(json!({ "messages": "x" })), MESSAGES, Some("messages"));
        check(with(json!({ "messages": [{ "role": "user", "content": "" }] })), MESSAGES, Some("messages[0].id"));
        check(with(json!({ "messages": [user(json!([7]))] })), MESSAGES, Some("messages[0].content[0]"));
        check(with(json!({ "tools": 7 })), INPUT, Some("tools"));
        check(json!([]), INPUT, Some("body"));
        assert_eq!(parse(b"{").unwrap_err().code(), INPUT);
        // Too large is said before anything is read.
        assert_eq!(parse(&vec![b'['; MAX_BODY + 1]).unwrap_err().detail(), "RunAgentInput payload exceeds size limit");
    }
}
