//! Bodies of requests, made by a grammar: what clients send, and then something is wrong with it.

use serde_json::{Map, Value, json};

use crate::agui::scenarios::PIXEL;

/// A seeded generator (SplitMix64): the same bodies each time.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    pub fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }
}

/// A body for the profile of source 003, or for all of AG-UI. About half are valid.
pub fn body(random: &mut Random, number: usize, profile: bool) -> Vec<u8> {
    let mut body = input(random, number, profile);
    let faults = [0, 0, 0, 1, 1, 3][usize::try_from(random.below(6)).unwrap()];
    for _ in 0..faults {
        spoil(random, &mut body);
    }
    let mut bytes = body.to_string().into_bytes();
    match random.below(40) {
        0 => bytes.truncate(usize::try_from(random.below(bytes.len() as u64 + 1)).unwrap()),
        1 if !bytes.is_empty() => {
            let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
            bytes[at] = u8::try_from(random.below(256)).unwrap();
        }
        2 => bytes.extend_from_slice(b" trailing"),
        3 => bytes = random.of(&[&b""[..], b"[]", b"null", b"{}", b"\"\"", b"1e999", b"{\"a\":1,\"a\":2}"]).to_vec(),
        _ => {}
    }
    bytes
}

/// The input of a client.
fn input(random: &mut Random, number: usize, profile: bool) -> Value {
    let thread = match random.below(6) {
        // The threads of others, which may be busy or wait for something.
        0 => format!("shared-{}", random.below(20)),
        1 => format!("00000000-0000-4000-8000-{:012}", random.below(40)),
        _ if profile => format!("00000000-0000-4000-8001-{number:012}"),
        _ => format!("thread-{number}"),
    };
    let run = if random.one_in(12) { format!("run-{}", random.below(50)) } else { format!("run-{number}") };
    let mut input = Map::new();
    input.insert("threadId".to_owned(), json!(thread));
    input.insert("runId".to_owned(), json!(run));
    let count = [1, 1, 1, 1, 1, 1, 1, 2, 3, 0][usize::try_from(random.below(10)).unwrap()];
    let messages: Vec<Value> = (0..count).map(|n| message(random, number, n)).collect();
    input.insert("messages".to_owned(), json!(messages));
    if !random.one_in(4) {
        input.insert("protocolVersion".to_owned(), json!(random.of(&["1.0", "1.1", "2.0", "0.9"])));
    }
    if random.one_in(2) {
        let state = any(random, 3);
        input.insert("state".to_owned(), if random.one_in(3) { state } else { json!({ "key": state }) });
    }
    if random.one_in(3) {
        let tools: Vec<Value> = (0..random.below(3)).map(|n| tool(random, n)).collect();
        input.insert("tools".to_owned(), json!(tools));
    }
    if random.one_in(3) {
        input.insert("context".to_owned(), json!([{ "description": text(random), "value": text(random) }]));
    }
    if !random.one_in(3) {
        let mut props = json!({ "runtime_mode": random.of(&["chat", "automation", "dream"]) });
        if !random.one_in(3) {
            props["script"] = json!((0..random.below(4)).map(|_| step(random)).collect::<Vec<_>>());
        }
        match random.below(10) {
            0 => props["agentHost"] = json!({ "cursors": true }),
            1 => props["agentHost"] = json!({ "cursor": format!("run-{number}:{}.{}", random.below(9), random.below(3)) }),
            2 => props["agnoBackground"] = json!({ "enabled": true, "lastEventIndex": random.below(5), "lastSubIndex": 0 }),
            3 => props["client_time"] = json!({ "device_timezone": "Europe/Zurich", "client_epoch_ms": 1 }),
            _ => {}
        }
        input.insert("forwardedProps".to_owned(), props);
    }
    if random.one_in(20) {
        let resume = json!([{
            "interruptId": text(random), "status": random.of(&["resolved", "cancelled"]), "payload": any(random, 2),
        }]);
        input.insert("resume".to_owned(), resume);
    }
    if random.one_in(10) {
        input.insert("parentRunId".to_owned(), json!(text(random)));
    }
    // As the SDKs of other languages write it.
    let snake = |name: String| {
        name.chars().fold(String::new(), |name, letter| {
            if letter.is_uppercase() { name + "_" + &letter.to_lowercase().to_string() } else { name + &letter.to_string() }
        })
    };
    input.into_iter().map(|(name, value)| if random.one_in(8) { (snake(name), value) } else { (name, value) }).collect()
}

fn message(random: &mut Random, number: usize, n: usize) -> Value {
    let id = format!("m-{number}-{n}");
    let role = if random.one_in(8) {
        *random.of(&["assistant", "tool", "system", "developer", "reasoning", "activity"])
    } else {
        "user"
    };
    let content = if role == "user" && random.one_in(5) {
        json!((0..=random.below(3)).map(|_| part(random)).collect::<Vec<_>>())
    } else {
        json!(text(random))
    };
    let mut message = json!({ "id": id, "role": role, "content": content });
    match role {
        "tool" => message["toolCallId"] = json!(text(random)),
        "assistant" if random.one_in(2) => {
            let function = json!({ "name": "f", "arguments": "{}" });
            message["toolCalls"] = json!([{ "id": text(random), "type": "function", "function": function }]);
        }
        "activity" => {
            message["activityType"] = json!("PLAN");
            message["content"] = json!({ "a": 1 });
        }
        _ => {}
    }
    message
}

fn part(random: &mut Random) -> Value {
    match random.below(8) {
        0 => json!({ "type": "image", "source": { "type": "data", "value": PIXEL, "mimeType": "image/png" } }),
        1 => json!({ "type": "image", "source": { "type": "url", "value": "http://127.0.0.1:9/a.png" } }),
        2 => json!({ "type": "binary", "mimeType": "image/png", "data": PIXEL }),
        3 => json!({ "type": "binary", "mimeType": "image/png", "url": "https://example.invalid/a.png" }),
        4 => json!({ "type": "document", "source": { "type": "file", "value": text(random) } }),
        _ => json!({ "type": "text", "text": text(random) }),
    }
}

fn tool(random: &mut Random, n: u64) -> Value {
    json!({
        "name": format!("tool_{n}"), "description": text(random),
        "parameters": { "type": "object", "properties": { "x": { "type": "string" } } },
    })
}

fn step(random: &mut Random) -> Value {
    match random.below(14) {
        0 => json!({ "do": "think", "text": text(random), "pieces": 3 }),
        1 => json!({ "do": "state", "key": "k", "value": any(random, 3) }),
        2 => json!({ "do": "client", "calls": [{ "name": "tool_0", "parameters": { "x": text(random) } }] }),
        3 => json!({ "do": "ask", "kind": "confirmation", "title": text(random) }),
        4 => json!({ "do": "fail", "code": "x.y", "message": text(random) }),
        5 => {
            json!({ "do": "tool", "calls": [{ "id": text(random), "name": "t", "parameters": any(random, 2), "result": text(random) }] })
        }
        6 => json!({ "do": "result", "type": "ui.step.started", "data": { "name": text(random) } }),
        7 => json!({ "do": "result", "type": "ui.step.finished", "data": { "name": text(random) } }),
        8 => json!({ "do": "result", "type": "ui.activity", "data": {
            "activity_id": text(random), "activity_type": text(random), "content": { "x": any(random, 2) },
        } }),
        9 => json!({ "do": "result", "type": "ui.activity.delta", "data": {
            "activity_id": text(random), "activity_type": "T", "patch": [{ "op": "add", "path": "/x", "value": any(random, 2) }],
        } }),
        10 => {
            let kind = *random.of(&[
                "ui.subagent.started",
                "ui.subagent.finished",
                "ui.subagent.failed",
                "ui.schema",
                "ui.unknown",
                "x",
            ]);
            let data = json!({ "subagent_id": "s", "name": text(random), "message": text(random), "message_id": "m1", "schema": any(random, 2) });
            json!({ "do": "result", "type": kind, "data": if random.one_in(3) { any(random, 2) } else { data } })
        }
        11 => json!({ "do": "say", "id": random.of(&["m1", "m2"]), "text": text(random), "pieces": 2, "open": random.one_in(2) }),
        _ => json!({ "do": "say", "text": text(random), "pieces": 2 }),
    }
}

/// Texts of all kinds.
fn text(random: &mut Random) -> String {
    match random.below(14) {
        0 => String::new(),
        1 => "x".repeat(usize::try_from(random.below(400)).unwrap()),
        2 => "\u{0}\u{1}\r\n\t".to_owned(),
        3 => "data: x\n\ndata: {}\n\n".to_owned(),
        4 => "🙂好\u{202e}\u{feff}e\u{301}".to_owned(),
        5 => "../../etc/passwd".to_owned(),
        6 => "~1/~0".to_owned(),
        _ => random.of(&["a", "b", "c", "hello", "What is this?", "0", "null"]).to_string(),
    }
}

/// JSON of any kind.
fn any(random: &mut Random, depth: u64) -> Value {
    match random.below(if depth == 0 { 6 } else { 8 }) {
        0 => Value::Null,
        1 => json!(random.one_in(2)),
        2 => json!(random.below(u64::MAX)),
        3 => json!(-1.5e300),
        4 | 5 => json!(text(random)),
        6 => json!((0..random.below(4)).map(|_| any(random, depth - 1)).collect::<Vec<_>>()),
        _ => (0..random.below(4)).map(|_| (text(random), any(random, depth - 1))).collect(),
    }
}

/// Makes something wrong, somewhere.
fn spoil(random: &mut Random, value: &mut Value) {
    // Deeper, more often than not.
    let go_on = !random.one_in(3);
    match value {
        Value::Object(members) if go_on && !members.is_empty() => {
            let names: Vec<String> = members.keys().cloned().collect();
            let name = random.of(&names).clone();
            match random.below(7) {
                0 => drop(members.remove(&name)),
                1 => drop(members.insert(name, Value::Null)),
                2 => {
                    let other = any(random, 3);
                    members.insert(name, other);
                }
                3 => {
                    let other = any(random, 2);
                    members.insert(text(random), other);
                }
                _ => spoil(random, members.get_mut(&name).unwrap()),
            }
        }
        Value::Array(items) if go_on && !items.is_empty() => {
            let at = usize::try_from(random.below(items.len() as u64)).unwrap();
            match random.below(5) {
                0 => drop(items.remove(at)),
                1 => {
                    let twin = items[at].clone();
                    items.push(twin);
                }
                2 => items.push(any(random, 2)),
                _ => spoil(random, &mut items[at]),
            }
        }
        other => {
            *other = match random.below(5) {
                0 => Value::Null,
                1 => json!("x".repeat(20_000)),
                2 => nested(usize::try_from(random.below(140)).unwrap()),
                _ => any(random, 3),
            }
        }
    }
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |value, level| if level % 2 == 0 { json!([value]) } else { json!({ "a": value }) })
}
