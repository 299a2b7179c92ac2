//! The clients of npm, as they are, take everything the host sends: no error, no warning, and what they show is what the
//! agent did.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::agui::{
    node::{Client, PlayedScenario, Turn, play},
    scenarios::{self, PIXEL, TEXT, pick, picker},
    support::Host,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_of_today_takes_everything_as_it_was_meant() {
    plays_all_scenarios(Client::Today).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_that_knows_nothing_of_1_0_takes_everything_too() {
    plays_all_scenarios(Client::Old).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protobuf_says_the_same_as_text() {
    let host = Host::start("").await;
    let mut inputs = Vec::new();
    for (n, scenario) in scenarios::all().into_iter().enumerate() {
        for (wire, accept) in [("sse", "text/event-stream"), ("proto", "application/vnd.ag-ui.event+proto, text/event-stream")] {
            let mut scenario = single_turn(&host, &scenario, &format!("{wire}-{n}"));
            scenario["accept"] = json!(accept);
            inputs.push(scenario);
        }
    }
    let played = play(Client::Today, &inputs);
    for two in played.chunks(2) {
        let [text, binary] = [&two[0], &two[1]].map(|played| played.turn(0));
        let end = text.events().last().unwrap()["type"].as_str().unwrap();
        binary.ended_without_fault(end);
        let shape = |turn: Turn<'_>| -> Vec<Value> {
            let messages = turn.messages().iter();
            messages.map(|message| json!([message["role"], without_ids(&message["content"]), calls(message)])).collect()
        };
        let [mut text_shape, mut binary_shape] = [text, binary].map(shape);
        if two[1].name().starts_with("subagents") {
            // A child and its parent are two runs: which of them is heard first is a matter of moments.
            for shape in [&mut text_shape, &mut binary_shape] {
                shape.sort_by_key(Value::to_string);
            }
        }
        assert_eq!(text_shape, binary_shape, "{}", two[1].name());
        assert_eq!(text.0["state"], binary.0["state"], "{}", two[1].name());
    }
    // Protobuf is only for clients that name it.
    let input = crate::agui::support::input("curious", "r1", &json!([]));
    for accept in ["*/*", "application/*", "application/json, */*"] {
        let request = host.http.post(host.url("/agents/stage/run")).header("accept", accept);
        let answer = request.json(&input).send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], "text/event-stream", "{accept}");
    }
    let request = host.http.post(host.url("/agents/stage/run")).header("accept", "application/vnd.ag-ui.event+proto");
    let answer = request.json(&input).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/vnd.ag-ui.event+proto");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_come_by_their_address_and_are_kept() {
    // A server of pictures, which is asked once for each message.
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let picture = move || async move {
        count.fetch_add(1, Ordering::Relaxed);
        ([("content-type", "image/png")], BASE64_STANDARD.decode(PIXEL).unwrap())
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = axum::Router::new().route("/a.png", axum::routing::get(picture));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });

    let agui = format!("fetch_hosts = [\"127.0.0.1:{port}\"]\n[egress]\nallow_addresses = [\"127.0.0.1\"]");
    let host = Host::start(&agui).await;
    // The address of an upload.
    let upload = host.http.post(host.url("/api/v1/artifacts?name=b.png")).header("content-type", "image/png");
    let upload = upload.body(BASE64_STANDARD.decode(PIXEL).unwrap()).send().await.unwrap();
    let uploaded = upload.json::<Value>().await.unwrap();
    let id = uploaded["artifact_id"].as_str().unwrap_or_else(|| panic!("{uploaded:#}"));
    let content = json!([
        { "type": "text", "text": "Which?" },
        { "type": "image", "source": { "type": "url", "value": format!("http://127.0.0.1:{port}/a.png") } },
        { "type": "image", "source": { "type": "file", "value": id, "mimeType": "image/png" } },
    ]);
    for client in [Client::Today, Client::Old] {
        // Sources that name files are none of 0.0.59.
        let parts = if client == Client::Old { 2 } else { 3 };
        let content = &content.as_array().unwrap()[..parts];
        let inputs = json!({
            "name": "image by url", "url": host.url("/agents/stage/run"), "threadId": format!("{client:?}"), "turns": [
                { "runId": "u1", "say": content, "props": { "script": [{ "do": "input" }] } },
                { "runId": "u2", "say": "And?", "props": { "script": [{ "do": "say", "text": "Fine." }] } },
            ],
        });
        let before = asked.load(Ordering::Relaxed);
        let played = &play(client, &[inputs])[0];
        played.turns().for_each(|turn| turn.ended_without_fault("RUN_FINISHED"));
        let seen = played.turn(0).printed();
        let pictures = ["contents", "attachments"].map(|name| seen[name].as_array().unwrap()).into_iter().flatten();
        let pictures: Vec<_> = pictures.filter(|part| part["media_type"] == "image/png").collect();
        assert!(pictures.len() >= parts - 1, "{seen}");
        assert_eq!(asked.load(Ordering::Relaxed) - before, 1, "it is kept, also where the history comes again");
    }
}

/// Name and arguments of the tool calls of a message.
fn calls(message: &Value) -> Vec<(Value, Value)> {
    let calls = message["toolCalls"].as_array().map(Vec::as_slice).unwrap_or_default();
    calls.iter().map(|call| (call["function"]["name"].clone(), call["function"]["arguments"].clone())).collect()
}

/// Removes the values that differ from run to run from a text.
fn without_ids(content: &Value) -> Value {
    const UUID: usize = 36;
    let Some(text) = content.as_str() else { return content.clone() };
    let mut rest = text;
    let mut kept = String::new();
    while let Some(letter) = rest.chars().next() {
        let is_id = rest.get(..UUID).is_some_and(|id| {
            id.bytes()
                .enumerate()
                .all(|(at, byte)| if [8, 13, 18, 23].contains(&at) { byte == b'-' } else { byte.is_ascii_hexdigit() })
        });
        kept.push(if is_id { '#' } else { letter });
        rest = &rest[if is_id { UUID } else { letter.len_utf8() }..];
    }
    kept.into()
}

/// A scenario of one run in a thread of its own.
fn single_turn(host: &Host, scenario: &scenarios::Scenario, thread: &str) -> Value {
    let turn = json!({ "runId": format!("{thread}-1"), "say": "Do it.", "props": { "script": scenario.script } });
    json!({
        "name": scenario.name, "url": host.url("/agents/stage/run"), "threadId": thread, "state": { "mine": "first" },
        "turns": [turn],
    })
}

async fn plays_all_scenarios(client: Client) {
    let host = Host::start("").await;
    let simple = scenarios::all();
    let mut inputs: Vec<Value> =
        simple.iter().enumerate().map(|(n, scenario)| single_turn(&host, scenario, &format!("simple-{n}"))).collect();
    inputs.extend(conversations(&host));
    let played = play(client, &inputs);
    for (scenario, played) in simple.iter().zip(&played) {
        println!("{client:?}: {}", scenario.name);
        let turn = played.turn(0);
        turn.ended_without_fault(scenario.end);
        assert_eq!(turn.events()[0]["type"], "RUN_STARTED");
        shows(client, scenario.name, turn);
    }
    for played in &played[simple.len()..] {
        println!("{client:?}: {}", played.name());
        went(client, played);
    }
}

/// Checks the view of a client after a scenario of one run.
fn shows(client: Client, name: &str, turn: Turn<'_>) {
    let last = turn.events().last().unwrap();
    let assistant = turn.texts("assistant");
    match name {
        "text" => {
            assert_eq!(assistant, [TEXT]);
            assert_eq!(turn.texts("user"), ["Do it."]);
            if client == Client::Today {
                assert_eq!(turn.events()[0]["protocolVersion"], "1.0");
            }
        }
        "slow text" => {
            assert_eq!(assistant, ["One letter after the other."]);
            let deltas = turn.of("TEXT_MESSAGE_CONTENT").len();
            assert!((1..27).contains(&deltas), "small pieces travel together: {deltas}");
        }
        "parallel tools" => {
            let calls: Vec<_> = turn.messages().iter().flat_map(calls).collect();
            let named: Vec<_> = calls.iter().map(|(name, _)| name.as_str().unwrap()).collect();
            assert_eq!(named, ["weather", "clock", "oracle"]);
            let parameters: Value = serde_json::from_str(calls[0].1.as_str().unwrap()).unwrap();
            assert_eq!(parameters, json!({ "city": "Zürich" }));
            let mut results = turn.texts("tool");
            results.sort_unstable();
            assert_eq!(results.len(), 3, "{results:?}");
            assert!(results.contains(&"sunny") && results.contains(&"noon"), "{results:?}");
            assert!(results.iter().any(|result| result.contains("it is silent")), "{results:?}");
            assert_eq!(assistant, ["Three tools."]);
        }
        "reasoning" => {
            assert_eq!(turn.texts("reasoning"), ["Let me think about this.", "And once more."]);
            assert_eq!(assistant, ["Thought.", "Done."]);
        }
        "state" => {
            let state = &turn.0["state"];
            assert_eq!((&state["count"], &state["mine"]), (&json!(3), &json!("first")), "{state}");
            assert_eq!(state["a/b~c"], json!({ "deep": [1, null, "x"] }));
        }
        "activities" => {
            let activity = turn.messages().iter().find(|message| message["role"] == "activity").unwrap();
            assert_eq!(activity["activityType"], "PLAN");
            assert_eq!(activity["content"], json!({ "steps": [{ "name": "a", "done": true }] }));
        }
        "steps" => {
            let names = |kind: &str| turn.of(kind).iter().map(|event| event["stepName"].clone()).collect::<Vec<_>>();
            assert_eq!(names("STEP_STARTED"), ["search", "never finished"]);
            assert_eq!(names("STEP_FINISHED"), ["search", "never finished"]);
        }
        "subagents" => {
            let started = turn.of("SUBAGENT_STARTED");
            assert_eq!(started.len(), 3, "{started:#?}");
            let ended = turn.of("SUBAGENT_FINISHED").len() + turn.of("SUBAGENT_ERROR").len();
            assert_eq!(ended, 3, "what began has ended");
            assert_eq!(turn.of("SUBAGENT_ERROR")[0]["message"], "no muse");
            let printed: Value = assistant.iter().rev().find_map(|text| serde_json::from_str(text).ok()).unwrap();
            assert_eq!(printed["said"], "I am the child.");
            // What the child says is its own.
            let child = started.iter().find(|started| started["name"] == "default").unwrap_or_else(|| panic!("{started:#?}"));
            let message = turn.messages().iter().find(|message| message["content"] == "I am the child.");
            let message = message.unwrap_or_else(|| panic!("{:#}", turn.0["messages"]));
            let tags: Vec<_> =
                turn.of("TEXT_MESSAGE_CONTENT").into_iter().filter(|event| event["messageId"] == message["id"]).collect();
            assert!(tags.iter().all(|event| event["subagentRunId"] == child["subagentRunId"]) && !tags.is_empty(), "{tags:#?}");
        }
        "usage" => {
            assert_eq!(assistant, ["A model says this, word by word."]);
            let usage = &last["usage"][0];
            assert_eq!((&usage["inputTokens"], &usage["outputTokens"]), (&json!(11), &json!(7)), "{last}");
        }
        "artifacts" => {
            let customs = turn.of("CUSTOM");
            let named = |name: &str| customs.iter().filter(|custom| custom["name"] == name).count();
            assert!(named("agent-host.artifact") >= 1, "{customs:#?}");
            assert_eq!(named("x.of.nobody"), 1, "{customs:#?}");
        }
        "schema" => {
            let activity = turn.messages().iter().find(|message| message["role"] == "activity").unwrap();
            assert_eq!((&activity["activityType"], &activity["content"]["version"]), (&json!("ui_schema"), &json!("2.0")));
        }
        "final message" => assert_eq!(assistant, ["The last word."]),
        "nothing" => assert_eq!(assistant.len(), 0),
        "error" => {
            assert_eq!((&last["code"], &last["message"]), (&json!("stage.failed"), &json!("as it was asked to")));
            assert_eq!(assistant, ["Half a sent"]);
        }
        "trap" => assert!(last["message"].as_str().is_some_and(|message| !message.is_empty()), "{last}"),
        other => panic!("nobody says what {other} shows"),
    }
}

/// Conversations of more than one run.
fn conversations(host: &Host) -> Vec<Value> {
    let url = host.url("/agents/stage/run");
    let of = |name: &str, turns: Value| json!({ "name": name, "url": url, "threadId": name.replace(' ', "-"), "turns": turns });
    let script = |steps: Value| json!({ "script": steps });
    let cancel = |thread: &str, run: &str| host.url(&format!("/agents/stage/threads/{thread}/runs/{run}/cancel"));
    let ask = |kind: &str, schema: Value| json!({ "do": "ask", "kind": kind, "title": "May I?", "schema": schema });
    let confirmation = ask("confirmation", json!({ "type": "boolean" }));
    let yes = json!({ "status": "resolved", "payload": true });
    let image = |source: Value| json!([{ "type": "text", "text": "What is this?" }, { "type": "image", "source": source }]);
    vec![
        of(
            "two turns",
            json!([
                { "runId": "tt1", "say": "First.", "props": script(json!([{ "do": "say", "text": "One." }])) },
                { "runId": "tt2", "say": "Second.", "props": script(json!([{ "do": "say", "text": "Two." }, { "do": "history" }])) },
            ]),
        ),
        of(
            "state back",
            json!([
                { "runId": "sb1", "say": "a", "setState": { "color": "red" },
                  "props": script(json!([{ "do": "state", "key": "size", "value": 1 }])) },
                { "runId": "sb2", "say": "b", "setState": { "color": "blue", "size": 2 }, "props": script(json!([{ "do": "input" }])) },
            ]),
        ),
        of(
            "frontend tool",
            json!([
                { "runId": "ft1", "say": "Ask me.", "tools": [picker()], "props": script(json!([pick(), { "do": "say", "text": "Thanks." }])) },
                { "runId": "ft2", "answers": ["blue"], "tools": [picker()] },
            ]),
        ),
        of(
            "two frontend tools",
            json!([
                { "runId": "ff1", "say": "Ask me twice.", "tools": [picker()], "props": script(json!([
                    { "do": "client", "many": true, "calls": [
                        { "name": "pick_color", "parameters": { "of": ["a"] } }, { "name": "pick_color", "parameters": { "of": ["b"] } },
                    ] },
                ])) },
                { "runId": "ff2", "answers": ["1st", "2nd"], "tools": [picker()] },
            ]),
        ),
        of(
            "interrupt",
            json!([
                { "runId": "in1", "say": "Ask.", "props": script(json!([
                    { "do": "say", "text": "Before." }, confirmation, { "do": "say", "text": "After." },
                ])) },
                { "runId": "in2", "resumeAll": yes },
            ]),
        ),
        of(
            "interrupt with a form",
            json!([
                { "runId": "fo1", "say": "Ask.", "props": script(json!([ask("form", json!({
                    "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"],
                }))])) },
                { "runId": "fo2", "resumeAll": { "status": "resolved", "payload": { "name": "Ada" } } },
            ]),
        ),
        of(
            "declined",
            json!([
                { "runId": "de1", "say": "Ask.", "props": script(json!([confirmation])) },
                { "runId": "de2", "resumeAll": { "status": "cancelled" } },
            ]),
        ),
        of(
            "asked twice",
            json!([
                { "runId": "at1", "say": "Ask.", "props": script(json!([confirmation, ask("choice", json!({ "enum": ["x", "y"] }))])) },
                { "runId": "at2", "resumeAll": yes },
                { "runId": "at3", "resumeAll": { "status": "resolved", "payload": "y" } },
            ]),
        ),
        of(
            "approval",
            json!([
                { "runId": "ap1", "say": "Act.", "props": script(json!([
                    { "do": "act", "action": "message.edit", "target": { "message": "m" }, "payload": { "text": "new" } },
                ])) },
                { "runId": "ap2", "resumeAll": { "status": "resolved", "payload": { "approved": false, "reason": "no" } } },
            ]),
        ),
        of(
            "cancel",
            json!([
                { "runId": "ca1", "say": "Talk.",
                  "cancelOn": { "type": "TEXT_MESSAGE_CONTENT", "url": cancel("cancel", "ca1") },
                  "props": script(json!([{ "do": "say", "text": "word ".repeat(3000), "pieces": 3000, "delay_ms": 20 }])) },
                { "runId": "ca2", "say": "And now?", "props": script(json!([{ "do": "say", "text": "Here." }])) },
            ]),
        ),
        of(
            "after an error",
            json!([
                { "runId": "ae1", "say": "Fail.", "props": script(json!([{ "do": "fail" }])) },
                { "runId": "ae2", "say": "Again.", "props": script(json!([{ "do": "say", "text": "Better." }])) },
            ]),
        ),
        of(
            "image",
            json!([
                { "runId": "im1", "say": image(json!({ "type": "data", "value": PIXEL, "mimeType": "image/png" })),
                  "props": script(json!([{ "do": "input" }])) },
                { "runId": "im2", "say": "And then?", "props": script(json!([{ "do": "say", "text": "Nothing." }])) },
            ]),
        ),
        of(
            "hung up",
            json!([
                { "runId": "hu1", "say": "Talk.", "abortOn": "TEXT_MESSAGE_CONTENT",
                  "props": script(json!([{ "do": "say", "text": "It goes on without you.", "pieces": 12, "delay_ms": 20 }])) },
                { "runId": "hu1" },
            ]),
        ),
        of(
            "same run again",
            json!([
                { "runId": "sr1", "say": "Talk.", "props": script(json!([{ "do": "say", "text": "Once." }])) },
                { "runId": "sr1" },
                { "runId": "sr1", "fresh": true },
            ]),
        ),
    ]
}

/// Checks the view of a client after a conversation.
fn went(client: Client, played: &PlayedScenario) {
    let turn = |number| played.turn(number);
    let last = played.turns().last().unwrap();
    match played.name() {
        "two turns" => {
            played.turns().for_each(|turn| turn.ended_without_fault("RUN_FINISHED"));
            let texts = last.texts("assistant");
            assert_eq!((texts.len(), &texts[..2]), (3, &["One.", "Two."][..]), "{texts:?}");
            let history = last.printed().to_string();
            // The whole history was sent twice, and is there once.
            for printed in ["First.", "One.", "Second."] {
                assert_eq!(history.matches(printed).count(), 1, "{printed} in {history}");
            }
        }
        "state back" => {
            played.turns().for_each(|turn| turn.ended_without_fault("RUN_FINISHED"));
            assert_eq!(turn(0).0["state"], json!({ "color": "red", "size": 1 }));
            assert_eq!(last.printed()["state"], json!({ "color": "blue", "size": 2 }));
            assert_eq!(last.0["state"], json!({ "color": "blue", "size": 2 }));
        }
        "frontend tool" => {
            turn(0).ended_without_fault("RUN_FINISHED");
            assert_eq!(turn(0).of("TOOL_CALL_RESULT").len(), 0, "it is for the front end to answer");
            let call = turn(0).of("TOOL_CALL_START")[0]["toolCallId"].clone();
            let outcome = &turn(0).events().last().unwrap()["outcome"];
            match client {
                Client::Today => assert_eq!(*outcome, json!({ "type": "success", "pendingToolCallIds": [call] })),
                Client::Old => assert_eq!(outcome["pendingToolCallIds"], Value::Null),
            }
            last.ended_without_fault("RUN_FINISHED");
            let texts = last.texts("assistant");
            assert!(texts.iter().any(|text| text.contains("blue")), "{texts:?}");
            assert_eq!(texts.last(), Some(&"Thanks."));
        }
        "two frontend tools" => {
            played.turns().for_each(|turn| turn.ended_without_fault("RUN_FINISHED"));
            let printed = last.printed();
            let texts: Vec<_> = printed.as_array().unwrap().iter().map(|output| &output["text"]).collect();
            assert_eq!(texts, ["1st", "2nd"]);
        }
        "interrupt" => {
            turn(0).ended_without_fault("RUN_FINISHED");
            let first = turn(0);
            let interrupts = first.0["interrupts"].as_array().unwrap();
            assert_eq!(interrupts.len(), 1, "{interrupts:?}");
            assert_eq!((&interrupts[0]["reason"], &interrupts[0]["message"]), (&json!("confirmation"), &json!("May I?")));
            last.ended_without_fault("RUN_FINISHED");
            assert_eq!(last.texts("assistant"), ["Before.", r#"{"submitted":true}"#, "After."]);
            assert_eq!(last.0["interrupts"], json!([]));
        }
        "interrupt with a form" => {
            turn(0).ended_without_fault("RUN_FINISHED");
            let interrupt = &turn(0).0["interrupts"][0];
            assert_eq!(
                (&interrupt["reason"], &interrupt["responseSchema"]["required"]),
                (&json!("input_required"), &json!(["name"]))
            );
            last.ended_without_fault("RUN_FINISHED");
            assert_eq!(last.printed(), json!({ "submitted": { "name": "Ada" } }));
        }
        "declined" => {
            last.ended_without_fault("RUN_FINISHED");
            assert!(last.printed().get("declined").is_some(), "{}", last.printed());
        }
        "asked twice" => {
            assert_eq!(turn(1).0["interrupts"].as_array().unwrap().len(), 1);
            last.ended_without_fault("RUN_FINISHED");
            assert_eq!(last.texts("assistant"), [r#"{"submitted":true}"#, r#"{"submitted":"y"}"#]);
        }
        "approval" => {
            let interrupt = &turn(0).0["interrupts"][0];
            assert_eq!(interrupt["metadata"]["action"], "message.edit", "{interrupt}");
            last.ended_without_fault("RUN_FINISHED");
            assert!(last.printed().get("denied").is_some(), "{}", last.printed());
        }
        "cancel" => {
            let cancelled = turn(0);
            assert_eq!(cancelled.0["cancelStatus"], 202);
            let end = cancelled.events().last().unwrap();
            match client {
                Client::Today => {
                    cancelled.ended_without_fault("RUN_FINISHED");
                    assert_eq!(end["outcome"], json!({ "type": "cancelled" }), "{end}");
                }
                Client::Old => {
                    cancelled.ended_without_fault("RUN_ERROR");
                    assert_eq!(end["code"], "RUN_CANCELED", "{end}");
                }
            }
            assert_eq!(cancelled.of("TEXT_MESSAGE_END").len(), 1, "what was open is closed");
            last.ended_without_fault("RUN_FINISHED");
            assert_eq!(last.texts("assistant").last(), Some(&"Here."));
        }
        "after an error" => {
            turn(0).ended_without_fault("RUN_ERROR");
            last.ended_without_fault("RUN_FINISHED");
            assert_eq!(last.texts("assistant"), ["Better."]);
        }
        "image" => {
            played.turns().for_each(|turn| turn.ended_without_fault("RUN_FINISHED"));
            let seen = turn(0).printed();
            let parts = ["contents", "attachments"].map(|name| seen[name].as_array().unwrap()).into_iter().flatten();
            let pictures: Vec<_> = parts.filter(|part| part["media_type"] == "image/png").collect();
            assert!(!pictures.is_empty(), "{seen}");
            let size = BASE64_STANDARD.decode(PIXEL).unwrap().len();
            assert_eq!(pictures[0]["size"], size, "{seen}");
            assert!(seen["text"].as_str().is_some_and(|text| text.contains("What is this?")), "{seen}");
        }
        "hung up" => {
            last.ended_without_fault("RUN_FINISHED");
            assert_eq!(last.texts("assistant"), ["It goes on without you."]);
        }
        "same run again" => {
            for turn in played.turns() {
                turn.ended_without_fault("RUN_FINISHED");
                assert_eq!(turn.texts("assistant"), ["Once."], "it was not executed again, and is not shown twice");
            }
            assert_eq!(last.texts("user"), ["Talk."], "another page sees what was said");
        }
        other => panic!("nobody says how {other} went"),
    }
}
