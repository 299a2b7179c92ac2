//! Tests of `input`.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// The members of every input.
fn with(members: Value) -> Value {
    let mut whole = json!({ "threadId": "t", "runId": "r", "messages": [] });
    for (name, value) in members.as_object().unwrap() {
        whole[name] = value.clone();
    }
    whole
}

fn of(whole: &Value) -> Result<RunAgentInput, Problem> {
    parse(whole.to_string().as_bytes())
}

fn message_of(message: Value) -> Message {
    let input = of(&with(json!({ "messages": [message] }))).unwrap_or_else(|problem| panic!("{problem:?}"));
    input.messages.into_iter().next().unwrap()
}

/// A value with so many levels.
fn deep(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, level| if level % 2 == 0 { json!([inner]) } else { json!({ "x": inner }) })
}

#[test]
fn the_least_is_a_thread_a_run_and_messages() {
    let expect = RunAgentInput {
        thread_id: "t".into(),
        run_id: "r".into(),
        parent_run_id: None,
        protocol_version: None,
        messages: Vec::new(),
        state: None,
        tools: Vec::new(),
        context: Vec::new(),
        forwarded_props: Map::new(),
        resume: Vec::new(),
    };
    let nulls = json!({
        "parentRunId": null, "protocolVersion": null, "state": null, "tools": null, "context": null,
        "forwardedProps": null, "resume": null, "nobodyKnows": {"this": [1]}, "parent_run_id": null, "": 1,
    });
    assert_eq!(of(&with(json!({}))).unwrap(), expect);
    assert_eq!(of(&with(nulls)).unwrap(), expect);
}

#[test]
fn both_ways_of_writing_say_the_same() {
    let camel = json!({
        "threadId": "t", "runId": "r", "parentRunId": "p", "protocolVersion": "1.0",
        "messages": [
            { "id": "1", "role": "user", "content": [
                { "type": "image", "source": { "type": "data", "value": "AA==", "mimeType": "image/png" } },
                { "type": "binary", "mimeType": "audio/wav", "url": "u" },
            ], "subagentRunId": "s" },
            { "id": "2", "role": "assistant", "toolCalls": [
                { "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" }, "encryptedValue": "e" },
            ] },
            { "id": "3", "role": "tool", "content": "x", "toolCallId": "c" },
            { "id": "4", "role": "reasoning", "content": "x", "encryptedValue": "e" },
            { "id": "5", "role": "activity", "activityType": "a", "content": {} },
        ],
        "forwardedProps": { "runtime_mode": "chat", "innerName": 1 },
        "resume": [{ "interruptId": "i", "status": "resolved", "payload": { "isKept": 1 } }],
    });
    let mut snake = camel.to_string();
    for name in [
        "threadId",
        "runId",
        "parentRunId",
        "protocolVersion",
        "mimeType",
        "subagentRunId",
        "toolCalls",
        "encryptedValue",
        "toolCallId",
        "activityType",
        "forwardedProps",
        "interruptId",
    ] {
        let there = format!("\"{name}\":");
        assert!(snake.contains(&there), "{name}");
        snake = snake.replace(&there, &format!("\"{}\":", super::snake(name).unwrap()));
    }
    assert!(snake.contains("\"sub_agent") || snake.contains("\"subagent_run_id\":"));
    let read = of(&camel).unwrap();
    assert_eq!(parse(snake.as_bytes()).unwrap(), read);
    // Passed-on values keep their form.
    assert_eq!(Value::Object(read.forwarded_props), json!({ "runtime_mode": "chat", "innerName": 1 }));
    assert_eq!(read.resume[0].payload, Some(json!({ "isKept": 1 })));
    assert_eq!(read.messages[0].subagent.as_deref(), Some("s"));
}

#[test]
fn both_ways_at_once_must_agree() {
    assert_eq!(of(&with(json!({ "thread_id": "t", "run_id": null }))).unwrap().thread_id, "t");
    let mut only = with(json!({ "thread_id": "t" }));
    only["threadId"] = Value::Null;
    assert_eq!(of(&only).unwrap().thread_id, "t");
    let problem = of(&with(json!({ "thread_id": "other" }))).unwrap_err();
    assert_eq!(problem.field(), Some("threadId"));
    assert!(problem.detail().contains("twice"), "{problem:?}");
}

#[test]
fn every_role_is_read() {
    let check = |message: Value, expect: Value| assert_eq!(serde_json::to_value(message_of(message)).unwrap(), expect);
    let same = |message: Value| check(message.clone(), message);
    same(json!({ "id": "1", "role": "developer", "content": "x", "name": "n" }));
    same(json!({ "id": "1", "role": "system", "content": "" }));
    same(json!({ "id": "1", "role": "user", "content": "grüß 🦀", "name": "n", "metadata": { "a": null } }));
    same(json!({ "id": "1", "role": "assistant" }));
    same(json!({ "id": "1", "role": "assistant", "content": "x", "toolCalls": [
        { "id": "c", "type": "function", "function": { "name": "f", "arguments": "not json" } },
        { "id": "d", "type": "function", "function": { "name": "g", "arguments": "" } },
    ] }));
    same(json!({ "id": "1", "role": "tool", "content": "x", "toolCallId": "c", "error": "e" }));
    same(json!({ "id": "1", "role": "tool", "content": [{ "type": "text", "text": "x" }], "toolCallId": "c" }));
    same(json!({ "id": "1", "role": "reasoning", "content": "x", "encryptedValue": "e" }));
    same(json!({ "id": "1", "role": "activity", "activityType": "a", "content": { "x": [1, null, 1.5] } }));
    check(
        json!({ "id": "1", "role": "assistant", "content": null, "name": null, "toolCalls": null, "encryptedValue": null,
            "subagentRunId": null, "metadata": null, "unknown": 1 }),
        json!({ "id": "1", "role": "assistant" }),
    );
    // Members of another role are unknown here.
    check(
        json!({ "id": "1", "role": "user", "content": "x", "toolCalls": 7, "toolCallId": 7 }),
        json!({ "id": "1", "role": "user", "content": "x" }),
    );
    check(
        json!({ "id": "1", "role": "assistant", "toolCalls": [
            { "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}", "x": 1 }, "x": 1, "metadata": {} },
        ] }),
        json!({ "id": "1", "role": "assistant", "toolCalls": [
            { "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" } },
        ] }),
    );
}

#[test]
fn every_part_is_read() {
    let check = |part: Value, expect: Value| {
        let message = message_of(json!({ "id": "1", "role": "user", "content": [part] }));
        let message = serde_json::to_value(message).unwrap();
        assert_eq!(message["content"], json!([expect]));
    };
    let same = |part: Value| check(part.clone(), part);
    same(json!({ "type": "text", "text": "" }));
    for kind in ["image", "audio", "video", "document"] {
        same(json!({ "type": kind, "source": { "type": "data", "value": "AA==", "mimeType": "a/b" } }));
        same(json!({ "type": kind, "source": { "type": "url", "value": "https://a.example/x" } }));
        same(json!({ "type": kind, "source": { "type": "url", "value": "https://a.example/x", "mimeType": "a/b" } }));
        same(json!({ "type": kind, "source": { "type": "file", "value": "f1", "provider": "p", "mimeType": "a/b" } }));
    }
    check(
        json!({ "type": "image", "id": "i", "metadata": {}, "x": 1,
            "source": { "type": "url", "value": "u", "mimeType": null, "x": 1 } }),
        json!({ "type": "image", "source": { "type": "url", "value": "u" } }),
    );
    // Forms of the protocol before 1.0.
    let binary = |members: Value, expect: Value| {
        let mut part = members;
        part["type"] = "binary".into();
        check(part, expect);
    };
    binary(
        json!({ "mimeType": "image/png", "url": "u", "filename": "a.png" }),
        json!({ "type": "image", "source": { "type": "url", "value": "u", "mimeType": "image/png" } }),
    );
    binary(
        json!({ "mimeType": "Audio/wav", "data": "AA==", "url": null }),
        json!({ "type": "audio", "source": { "type": "data", "value": "AA==", "mimeType": "Audio/wav" } }),
    );
    binary(
        json!({ "mimeType": "video/mp4", "id": "f1" }),
        json!({ "type": "video", "source": { "type": "file", "value": "f1", "mimeType": "video/mp4" } }),
    );
    binary(
        json!({ "mimeType": "application/pdf", "id": "f1", "url": "u" }),
        json!({ "type": "document", "source": { "type": "url", "value": "u", "mimeType": "application/pdf" } }),
    );
    binary(
        json!({ "mimeType": "nonsense", "data": "AA==", "url": "u" }),
        json!({ "type": "document", "source": { "type": "data", "value": "AA==", "mimeType": "nonsense" } }),
    );
}

#[test]
fn tools_context_props_and_answers_are_read() {
    let input = of(&with(json!({
        "state": [1, { "a": null }],
        "tools": [
            { "name": "a", "description": "", "parameters": { "type": "object" }, "metadata": { "x": 1 }, "y": 1 },
            { "name": "b", "description": "d", "parameters": null },
        ],
        "context": [{ "description": "", "value": "v", "x": 1 }],
        "forwardedProps": [1],
        "resume": [
            { "interruptId": "1", "status": "resolved", "payload": false, "metadata": {} },
            { "interruptId": "2", "status": "cancelled", "payload": null },
        ],
        "protocolVersion": "12.34",
    })))
    .unwrap();
    assert_eq!(input.state, Some(json!([1, { "a": null }])));
    let metadata = Map::from_iter([("x".to_owned(), json!(1))]);
    let tool = |name: &str, description: &str, parameters, metadata| Tool {
        name: name.into(),
        description: description.into(),
        parameters,
        metadata,
    };
    let none = json!({ "type": "object", "properties": {} });
    assert_eq!(input.tools, [tool("a", "", json!({ "type": "object" }), metadata), tool("b", "d", none, Map::new())]);
    assert_eq!(input.context, [ContextItem { description: String::new(), value: "v".into() }]);
    assert_eq!(Value::Object(input.forwarded_props), json!({ "value": [1] }));
    let resume = |id: &str, status, payload| Resume { interrupt_id: id.into(), status, payload };
    let answers = [resume("1", ResumeStatus::Resolved, Some(json!(false))), resume("2", ResumeStatus::Cancelled, None)];
    assert_eq!(input.resume, answers);
    assert_eq!(input.protocol_version.as_deref(), Some("12.34"));
}

#[test]
fn malformed_members_are_refused_with_their_path() {
    let check = |whole: Value, field: &str, says: &str| {
        let problem = of(&whole).map(|input| panic!("{whole} gives {input:?}")).unwrap_err();
        assert_eq!((problem.code(), problem.field()), (ProblemCode::InvalidArgument, Some(field)), "{whole}");
        assert!(problem.detail().starts_with(&format!("`{field}` ")), "{problem:?}");
        assert!(problem.detail().contains(says), "{whole}: {problem:?}");
    };
    for (members, field, says) in [
        (json!({ "threadId": null }), "threadId", "missing"),
        (json!({ "threadId": 7 }), "threadId", "1 to 256 bytes"),
        (json!({ "threadId": "" }), "threadId", "1 to 256 bytes"),
        (json!({ "threadId": "x".repeat(257) }), "threadId", "1 to 256 bytes"),
        (json!({ "threadId": "a\nb" }), "threadId", "control"),
        (json!({ "threadId": "a\u{85}b" }), "threadId", "control"),
        (json!({ "runId": null }), "runId", "missing"),
        (json!({ "runId": {} }), "runId", "1 to 128 characters"),
        (json!({ "runId": "ü".repeat(129) }), "runId", "1 to 128 characters"),
        (json!({ "parentRunId": [] }), "parentRunId", "1 to 128 characters"),
        (json!({ "parent_run_id": "\0" }), "parentRunId", "control"),
        (json!({ "protocolVersion": 1.0 }), "protocolVersion", "\"1.0\""),
        (json!({ "protocolVersion": "1" }), "protocolVersion", "\"1.0\""),
        (json!({ "protocolVersion": "1.0.0" }), "protocolVersion", "\"1.0\""),
        (json!({ "protocolVersion": "+1.0" }), "protocolVersion", "\"1.0\""),
        (json!({ "protocolVersion": "1.0000000000" }), "protocolVersion", "\"1.0\""),
        (json!({ "messages": null }), "messages", "missing"),
        (json!({ "messages": {} }), "messages", "list"),
        (json!({ "messages": vec![0; 10_001] }), "messages", "10001 entries; there may be 10000"),
        (json!({ "tools": {} }), "tools", "list"),
        (json!({ "tools": vec![0; 1025] }), "tools", "there may be 1024"),
        (json!({ "tools": [null] }), "tools[0]", "object"),
        (json!({ "tools": [{ "description": "" }] }), "tools[0].name", "missing"),
        (json!({ "tools": [{ "name": "", "description": "" }] }), "tools[0].name", "empty"),
        (json!({ "tools": [{ "name": "x".repeat(257), "description": "" }] }), "tools[0].name", "257 bytes; there may be 256"),
        (json!({ "tools": [{ "name": "a" }] }), "tools[0].description", "missing"),
        (json!({ "tools": [{ "name": "a", "description": 1 }] }), "tools[0].description", "string"),
        (json!({ "tools": [{ "name": "a", "description": "", "parameters": true }] }), "tools[0].parameters", "object"),
        (json!({ "tools": [{ "name": "a", "description": "", "metadata": [] }] }), "tools[0].metadata", "object"),
        (json!({ "tools": [{ "name": "a", "description": "" }, { "name": "a", "description": "x" }] }), "tools[1].name", "once"),
        (json!({ "context": "x" }), "context", "list"),
        (json!({ "context": [{ "description": "", "value": "" }, []] }), "context[1]", "object"),
        (json!({ "context": [{ "value": "" }] }), "context[0].description", "missing"),
        (json!({ "context": [{ "description": "", "value": {} }] }), "context[0].value", "string"),
        (json!({ "resume": {} }), "resume", "list"),
        (json!({ "resume": [1] }), "resume[0]", "object"),
        (json!({ "resume": [{ "status": "resolved" }] }), "resume[0].interruptId", "missing"),
        (json!({ "resume": [{ "interruptId": "i" }] }), "resume[0].status", "missing"),
        (json!({ "resume": [{ "interruptId": "i", "status": "Resolved" }] }), "resume[0].status", "`cancelled`"),
        (json!({ "resume": [{ "interruptId": "i", "status": 1 }] }), "resume[0].status", "`cancelled`"),
        (
            json!({ "resume": [{ "interruptId": "i", "status": "resolved" }, { "interruptId": "i", "status": "cancelled" }] }),
            "resume[1].interruptId",
            "once",
        ),
    ] {
        check(with(members), field, says);
    }
    for (message, path, says) in [
        (json!("x"), "", "object"),
        (json!({ "role": "user", "content": "" }), ".id", "missing"),
        (json!({ "id": "", "role": "user", "content": "" }), ".id", "1 to 1024 bytes"),
        (json!({ "id": "1", "content": "" }), ".role", "missing"),
        (json!({ "id": "1", "role": "User", "content": "" }), ".role", "`activity`"),
        (json!({ "id": "1", "role": ["user"], "content": "" }), ".role", "`activity`"),
        (json!({ "id": "1", "role": "user" }), ".content", "missing"),
        (json!({ "id": "1", "role": "user", "content": 1 }), ".content", "list of parts"),
        (json!({ "id": "1", "role": "user", "content": {} }), ".content", "list of parts"),
        (json!({ "id": "1", "role": "user", "content": vec![0; 1025] }), ".content", "there may be 1024"),
        (json!({ "id": "1", "role": "user", "content": "", "name": 1 }), ".name", "string"),
        (json!({ "id": "1", "role": "user", "content": "", "name": "x".repeat(257) }), ".name", "there may be 256"),
        (json!({ "id": "1", "role": "user", "content": "", "metadata": 1 }), ".metadata", "object"),
        (json!({ "id": "1", "role": "user", "content": "", "subagent_run_id": "" }), ".subagentRunId", "1 to 1024"),
        (json!({ "id": "1", "role": "user", "content": "", "encryptedValue": 1 }), ".encryptedValue", "string"),
        (json!({ "id": "1", "role": "system", "content": [] }), ".content", "string"),
        (json!({ "id": "1", "role": "developer", "content": null }), ".content", "missing"),
        (json!({ "id": "1", "role": "assistant", "content": [] }), ".content", "string"),
        (json!({ "id": "1", "role": "assistant", "toolCalls": {} }), ".toolCalls", "list"),
        (json!({ "id": "1", "role": "assistant", "toolCalls": [{}] }), ".toolCalls[0].id", "missing"),
        (json!({ "id": "1", "role": "assistant", "toolCalls": [{ "id": "c" }] }), ".toolCalls[0].type", "missing"),
        (
            json!({ "id": "1", "role": "assistant", "toolCalls": [{ "id": "c", "type": "tool" }] }),
            ".toolCalls[0].type",
            "`function`",
        ),
        (
            json!({ "id": "1", "role": "assistant", "toolCalls": [{ "id": "c", "type": "function" }] }),
            ".toolCalls[0].function",
            "missing",
        ),
        (
            json!({ "id": "1", "role": "assistant", "tool_calls": [{ "id": "c", "type": "function", "function": { "name": "" } }] }),
            ".toolCalls[0].function.name",
            "empty",
        ),
        (
            json!({ "id": "1", "role": "assistant", "toolCalls":
                [{ "id": "c", "type": "function", "function": { "name": "f", "arguments": {} } }] }),
            ".toolCalls[0].function.arguments",
            "string",
        ),
        (json!({ "id": "1", "role": "tool", "content": "" }), ".toolCallId", "missing"),
        (json!({ "id": "1", "role": "tool", "toolCallId": "c" }), ".content", "missing"),
        (json!({ "id": "1", "role": "tool", "toolCallId": "c", "content": "", "error": {} }), ".error", "string"),
        (json!({ "id": "1", "role": "tool", "toolCallId": "c", "content": [1] }), ".content[0]", "object"),
        (json!({ "id": "1", "role": "reasoning", "content": ["x"] }), ".content", "string"),
        (json!({ "id": "1", "role": "activity", "content": {} }), ".activityType", "missing"),
        (json!({ "id": "1", "role": "activity", "activityType": "a", "content": "x" }), ".content", "object"),
    ] {
        let good = json!({ "id": "0", "role": "user", "content": "" });
        check(with(json!({ "messages": [good, message] })), &format!("messages[1]{path}"), says);
    }
    for (part, path, says) in [
        (json!("x"), "", "object"),
        (json!({ "text": "x" }), ".type", "missing"),
        (json!({ "type": "picture" }), ".type", "`binary`"),
        (json!({ "type": 1 }), ".type", "`binary`"),
        (json!({ "type": "text" }), ".text", "missing"),
        (json!({ "type": "text", "text": {} }), ".text", "string"),
        (json!({ "type": "text", "text": "", "id": 1 }), ".id", "string"),
        (json!({ "type": "text", "text": "", "metadata": "" }), ".metadata", "object"),
        (json!({ "type": "image" }), ".source", "missing"),
        (json!({ "type": "image", "source": "https://a.example" }), ".source", "object"),
        (json!({ "type": "image", "source": {} }), ".source.type", "missing"),
        (json!({ "type": "image", "source": { "type": "base64" } }), ".source.type", "`file`"),
        (json!({ "type": "image", "source": { "type": "data", "mimeType": "a/b" } }), ".source.value", "missing"),
        (json!({ "type": "image", "source": { "type": "data", "value": "", "mimeType": "a/b" } }), ".source.value", "empty"),
        (json!({ "type": "image", "source": { "type": "data", "value": "AA==" } }), ".source.mimeType", "missing"),
        (json!({ "type": "video", "source": { "type": "data", "value": "AA==", "mimeType": 1 } }), ".source.mimeType", "string"),
        (json!({ "type": "audio", "source": { "type": "url" } }), ".source.value", "missing"),
        (json!({ "type": "audio", "source": { "type": "url", "value": [] } }), ".source.value", "string"),
        (json!({ "type": "audio", "source": { "type": "url", "value": "u", "mime_type": "" } }), ".source.mimeType", "empty"),
        (json!({ "type": "document", "source": { "type": "file", "value": "a\tb" } }), ".source.value", "control"),
        (json!({ "type": "document", "source": { "type": "file", "value": "f", "provider": 1 } }), ".source.provider", "string"),
        (json!({ "type": "binary", "url": "u" }), ".mimeType", "missing"),
        (json!({ "type": "binary", "mimeType": "" , "url": "u" }), ".mimeType", "empty"),
        (json!({ "type": "binary", "mimeType": "image/png" }), "", "one of `url`, `data` and `id`"),
        (json!({ "type": "binary", "mimeType": "image/png", "url": "" }), ".url", "empty"),
        (json!({ "type": "binary", "mimeType": "image/png", "data": 1 }), ".data", "string"),
        (json!({ "type": "binary", "mimeType": "image/png", "id": "" }), ".id", "1 to 1024"),
        (json!({ "type": "binary", "mimeType": "image/png", "url": "u", "filename": 1 }), ".filename", "string"),
    ] {
        let message = json!({ "id": "1", "role": "user", "content": [{ "type": "text", "text": "" }, part] });
        check(with(json!({ "messages": [message] })), &format!("messages[0].content[1]{path}"), says);
    }
}

#[test]
fn ids_may_be_as_long_as_they_may_be() {
    let message = json!({ "id": "x".repeat(1024), "role": "user", "content": "" });
    let whole = with(json!({
        "threadId": "ü".repeat(128), "runId": "x".repeat(128), "parentRunId": " ", "messages": [message],
    }));
    assert!(of(&whole).is_ok());
}

#[test]
fn passed_on_values_are_not_too_deep() {
    type Place = (&'static str, fn(Value) -> Value);
    let places: [Place; 6] = [
        ("state", |value| json!({ "state": value })),
        ("forwardedProps", |value| json!({ "forwardedProps": value })),
        ("tools[0].parameters", |value| json!({ "tools": [{ "name": "a", "description": "", "parameters": value }] })),
        ("resume[0].payload", |value| json!({ "resume": [{ "interruptId": "i", "status": "resolved", "payload": value }] })),
        (
            "messages[0].metadata",
            |value| json!({ "messages": [{ "id": "1", "role": "user", "content": "", "metadata": value }] }),
        ),
        (
            "messages[0].content",
            |value| json!({ "messages": [{ "id": "1", "role": "activity", "activityType": "a", "content": value }] }),
        ),
    ];
    for (field, place) in places {
        // An even number of levels ends with an object.
        assert!(of(&with(place(deep(MAX_DEPTH)))).is_ok(), "{field}");
        let problem = of(&with(place(deep(MAX_DEPTH + 1)))).unwrap_err();
        assert_eq!(problem.field(), Some(field));
        assert!(problem.detail().contains("more than 60 levels"), "{problem:?}");
    }
    // An ignored member may be as deep as JSON may be.
    assert!(of(&with(json!({ "unknown": deep(100) }))).is_ok());
    let endless = format!(r#"{{"threadId":"t","runId":"r","messages":[],"state":{}"#, "[".repeat(1_000_000));
    let problem = parse(endless.as_bytes()).unwrap_err();
    assert_eq!(problem.code(), ProblemCode::InvalidJson);
    assert!(problem.detail().contains("recursion limit"), "{problem:?}");
}

#[test]
fn large_bodies_are_stored_completely() {
    let text = "ä".repeat(2_000_000);
    let message = message_of(json!({ "id": "1", "role": "user", "content": [{ "type": "image",
        "source": { "type": "data", "value": text, "mimeType": "image/png" } }] }));
    let MessageBody::User { content: Content::Parts(parts), .. } = message.body else { panic!() };
    let [Part::Image { source: Source::Data { value, .. } }] = parts.as_slice() else { panic!() };
    assert_eq!(value.len(), 4_000_000);
    let numbers = r#"{"threadId":"t","runId":"r","messages":[],"state":[18446744073709551615,-9223372036854775808,0.1,1e300]}"#;
    let state = parse(numbers.as_bytes()).unwrap().state.unwrap();
    assert_eq!(state.to_string(), "[18446744073709551615,-9223372036854775808,0.1,1e+300]");
}

#[test]
fn an_input_must_be_a_json_object() {
    for (body, code) in [
        (&b""[..], ProblemCode::InvalidJson),
        (b"{", ProblemCode::InvalidJson),
        (b"{} x", ProblemCode::InvalidJson),
        (b"\xff\xfe", ProblemCode::InvalidJson),
        (b"{\"state\":1e999}", ProblemCode::InvalidJson),
        (b"{\"threadId\":\"\\ud800\"}", ProblemCode::InvalidJson),
        (b"[]", ProblemCode::InvalidArgument),
        (b"null", ProblemCode::InvalidArgument),
        (b"\"x\"", ProblemCode::InvalidArgument),
    ] {
        assert_eq!(parse(body).unwrap_err().code(), code, "{}", String::from_utf8_lossy(body));
    }
}

#[test]
fn names_become_snake_case() {
    for (camel, expect) in [("threadId", Some("thread_id")), ("subagentRunId", Some("subagent_run_id")), ("content", None)] {
        assert_eq!(snake(camel).as_deref(), expect);
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop_oneof!["user|assistant|tool|binary|image|data|url|resolved|function|1\\.0", ".{0,6}"].prop_map(Value::from),
    ];
    let name = prop_oneof![
        "threadId|runId|run_id|messages|tools|context|resume|state|id|role|content|type|source|value|mimeType|toolCalls",
        "function|name|arguments|toolCallId|metadata|interruptId|status|payload|forwardedProps|[a-z]{0,3}",
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(name.clone(), inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Every input is read completely or refused with a path; a value that was read reads back the same.
    #[test]
    fn every_input_is_read_completely_or_refused(whole in any_json(), messages in any_json()) {
        let _ = of(&whole);
        match of(&with(json!({ "messages": [messages] }))) {
            Err(problem) => prop_assert!(problem.field().is_some_and(|field| field.starts_with("messages[0]"))),
            Ok(input) => {
                let again = of(&with(json!({ "messages": input.messages }))).unwrap();
                prop_assert_eq!(again.messages, input.messages);
            }
        }
    }

    #[test]
    fn no_bytes_are_too_much(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&body);
    }
}
