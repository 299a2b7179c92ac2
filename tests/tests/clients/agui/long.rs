//! Long threads and large messages: stock clients send all of them with every run.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::agui::{
    node::{Client, play},
    scenarios::PIXEL,
    support::{Host, Wire, config, input, problem, sound, with},
};

/// A picture of so many bytes: what follows the end of a PNG is ignored.
fn photo(bytes: usize) -> Vec<u8> {
    let mut photo = BASE64_STANDARD.decode(PIXEL).unwrap();
    let mut state = 1_u32;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    });
    let missing = bytes - photo.len();
    photo.extend(noise.take(missing));
    photo
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_with_long_answers_goes_on() {
    let host = Host::start("").await;
    let answer = "A long answer, in words. ".repeat(820);
    for (client, name) in [(Client::Today, "today"), (Client::Old, "old")] {
        let turn = |n: u32| {
            json!({ "runId": format!("{name}-{n}"), "say": format!("Question {n}"),
            "props": { "script": [{ "do": "say", "text": format!("{n}: {answer}") }] } })
        };
        let turns: Vec<Value> = (0..24).map(turn).collect();
        let scenario = json!({ "name": name, "url": host.url("/agents/stage/run"), "threadId": name, "turns": turns });
        let played = &play(client, &[scenario])[0];
        for (n, turn) in played.turns().enumerate() {
            turn.ended_without_fault("RUN_FINISHED");
            assert!(turn.texts("assistant").last().unwrap().starts_with(&format!("{n}: ")), "{name} {n}");
            assert_eq!(turn.of("MESSAGES_SNAPSHOT").len(), 0, "what the client has is what the host has");
        }
    }
    // A client whose history differs in one of these answers is told so, although the host keeps none of them.
    let shown = host.thread("today").await;
    let mut messages = shown["messages"].as_array().unwrap().clone();
    let changed = messages.iter().rposition(|message| message["role"] == "assistant").unwrap();
    messages[changed]["content"] = json!("Something else.");
    messages.push(json!({ "id": "more", "role": "user", "content": "And?" }));
    let body = with(input("today", "more", &json!([{ "do": "say", "text": "This." }])), json!({ "messages": messages }));
    let events = host.run(&body).await.rest().await;
    sound(&events, "today", "more");
    let snapshot = events.iter().find(|event| event["type"] == "MESSAGES_SNAPSHOT").expect("it is told");
    assert!(snapshot.to_string().contains("23: A long answer"), "{snapshot}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_photo_in_a_message_is_taken_and_comes_again_with_the_history() {
    let host = Host::start("").await;
    let photo = photo(4_000_000);
    let data = BASE64_STANDARD.encode(&photo);
    let image = |source: Value| json!([{ "type": "text", "text": "What is this?" }, { "type": "image", "source": source }]);
    for (client, name) in [(Client::Today, "today"), (Client::Old, "old")] {
        let sources = [
            json!({ "type": "data", "value": data, "mimeType": "image/png" }),
            json!({ "type": "url", "value": format!("data:image/png;base64,{data}") }),
        ];
        for (n, source) in sources.into_iter().enumerate() {
            let thread = format!("{name}-{n}");
            let scenario = json!({ "name": thread, "url": host.url("/agents/stage/run"), "threadId": thread, "turns": [
                { "runId": format!("{thread}-1"), "say": image(source), "props": { "script": [{ "do": "input" }] } },
                { "runId": format!("{thread}-2"), "say": "And now?", "props": { "script": [{ "do": "say", "text": "The same." }] } },
            ] });
            let played = &play(client, &[scenario])[0];
            played.turns().for_each(|turn| turn.ended_without_fault("RUN_FINISHED"));
            let seen = played.turn(0).printed();
            let parts = ["contents", "attachments"].map(|name| seen[name].as_array().unwrap()).into_iter().flatten();
            let pictures: Vec<_> = parts.filter(|part| part["media_type"] == "image/png").collect();
            assert!(!pictures.is_empty() && pictures.iter().all(|part| part["size"] == photo.len()), "{seen}");
            assert_eq!(played.turn(1).texts("assistant").last(), Some(&"The same."));
        }
    }
    // The same request once more is the same run: the picture is compared by its digest.
    let message =
        json!({ "id": "p", "role": "user", "content": image(json!({ "type": "data", "value": data, "mimeType": "image/png" })) });
    let body = with(input("again", "r", &json!([{ "do": "say", "text": "Once." }])), json!({ "messages": [message] }));
    for _ in 0..2 {
        let events = host.run(&body).await.rest().await;
        sound(&events, "again", "r");
        assert_eq!(crate::agui::support::View::of(&events).texts("assistant"), ["Once."]);
    }
    let mut other = body.clone();
    let mut changed = photo;
    *changed.last_mut().unwrap() ^= 1;
    other["messages"][0]["content"][1]["source"]["value"] = BASE64_STANDARD.encode(&changed).into();
    let (status, response) = problem(host.post("/agents/stage/run", &other).await).await;
    assert_eq!((status, &response["code"]), (409, &json!("run_id_conflict")), "{response:#}");
    // What is no picture, or no base64, is refused where it is long as well.
    for value in [BASE64_STANDARD.encode(vec![b'x'; 200_000]), format!("{}!", &data[..200_000]), "\\u0041".repeat(20_000)] {
        let mut bad = body.clone();
        bad["runId"] = "bad".into();
        bad["messages"][0]["id"] = "bad".into();
        bad["messages"][0]["content"][1]["source"]["value"] = value.into();
        let (status, response) = problem(host.post("/agents/stage/run", &bad).await).await;
        assert_eq!((status, &response["code"]), (422, &json!("media_invalid")), "{response:#}");
        assert!(response["field"].as_str().unwrap().starts_with("messages[0]"), "{response:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_have_a_bound_of_their_own() {
    let host = Host::with_config("loopback_without_key = true", &config("body_bytes = 400000", "")).await;
    let message = |run: &str, text: String| json!([{ "id": format!("{run}-m"), "role": "user", "content": text }]);
    let body = |run: &str, context: usize, text: usize| {
        let context = json!([{ "description": "page", "value": "x".repeat(context) }]);
        with(
            input("t", run, &json!([{ "do": "say", "text": "ok" }])),
            json!({ "context": context, "messages": message(run, "y".repeat(text)) }),
        )
    };
    let events = host.run(&body("r1", 300_000, 10)).await.rest().await;
    sound(&events, "t", "r1");
    for (run, context, text) in [("r2", 400_000, 10), ("r3", 10, 300_000)] {
        let (status, response) = problem(host.post("/agents/stage/run", &body(run, context, text)).await).await;
        assert_eq!((status, &response["code"]), (413, &json!("payload_too_large")), "{response:#}");
    }
    // A byte order mark is skipped, and what is no object is refused with its place.
    let send = async |text: String| {
        let request = host.http.post(host.url("/agents/stage/run")).header("content-type", "application/json");
        request.header("accept", "text/event-stream").body(text).send().await.unwrap()
    };
    let marked = format!("\u{feff}{}", body("r4", 10, 10));
    sound(&Wire::open(send(marked).await).await.rest().await, "t", "r4");
    for text in ["{\"threadId\":\"t\",", "[]", "{\"messages\":[1,]}"] {
        let (status, response) = problem(send(text.to_owned()).await).await;
        assert_eq!(status, 400, "{response:#}");
    }
}
