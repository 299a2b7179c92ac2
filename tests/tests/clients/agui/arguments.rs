//! Long arguments of tool calls: what was called is seen by the client, in the history and in the record, and a call that a client
//! cannot be asked for fails where it can be seen.

use serde_json::{Value, json};

use crate::agui::{
    node::{Client, play},
    support::{Host, View, config, input, sound, with},
};

/// A host whose agent may call the tools of a server. Scripts of its guest, which have the arguments, are in the event.
async fn host(limits: &str) -> Host {
    let config = config("coalesce_ms = 0", &format!("event_inline_bytes = 200000\n{limits}"))
        .replace("resources = {", "resources = { tool_names = [\"t__*\"],");
    let server = format!("{config}\n[[mcp_servers]]\nid = \"t\"\ncommand = \"{}\"\n", env!("CARGO_BIN_EXE_mcp-server"));
    Host::with_config("loopback_without_key = true", &server).await
}

/// Arguments of about so many bytes, with characters of more than one byte and such that JSON escapes.
fn arguments(bytes: usize) -> Value {
    json!({ "a": 1, "b": 2, "note": "ä\"\\🙂x".repeat(bytes / 9) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_arguments_are_seen_by_the_client_in_the_history_and_in_the_record() {
    let host = host("").await;
    let parameters = arguments(60_000);
    let script = json!([{ "do": "client", "calls": [{ "name": "t__add", "parameters": parameters }] }]);
    let events = host.run(&input("t", "r1", &script)).await.rest().await;
    sound(&events, "t", "r1");
    let pieces = events.iter().filter(|event| event["type"] == "TOOL_CALL_ARGS").count();
    assert!(pieces > 4, "{pieces}");
    let called = |view: &View| {
        let calls = view.calls();
        let [(name, given, result)] = calls.iter().collect::<Vec<_>>()[..] else { panic!("{calls:?}") };
        assert_eq!((name.as_str(), result.as_str()), ("t__add", "3"));
        assert_eq!(serde_json::from_str::<Value>(given).unwrap(), parameters);
    };
    called(&View::of(&events));
    // A client that was cut among the pieces gets the rest of them.
    let mut whole = host.events("t", "r1", None).await.unwrap();
    let mut seen = Vec::new();
    let mut args = 0;
    let cut = loop {
        let frame = whole.next().await.expect("pieces come");
        args += usize::from(frame.data["type"] == "TOOL_CALL_ARGS");
        seen.push(frame.data);
        if args == 3 {
            break frame.id.expect("an event has an id");
        }
    };
    seen.extend(host.events("t", "r1", Some(&cut)).await.unwrap().rest().await);
    called(&View::of(&seen));
    // The history has it, and the record.
    let shown = host.thread("t").await;
    let call = shown["messages"].as_array().unwrap().iter().find_map(|message| message["toolCalls"].get(0)).unwrap();
    assert_eq!(serde_json::from_str::<Value>(call["function"]["arguments"].as_str().unwrap()).unwrap(), parameters);
    let runs: Value = host.http.get(host.url("/api/v1/runs")).send().await.unwrap().json().await.unwrap();
    let path = format!("/api/v1/runs/{}/events?limit=100", runs["items"][0]["run_id"].as_str().unwrap());
    let record: Value = host.http.get(host.url(&path)).send().await.unwrap().json().await.unwrap();
    let deltas = record["items"].as_array().unwrap().iter().filter(|event| event["type"] == "tool.call.arguments");
    let text: String = deltas.map(|event| event["data"]["delta"].as_str().unwrap()).collect();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), parameters);
    // A stock client that shows it again contradicts nothing.
    let scenario = json!({ "name": "long arguments", "url": host.url("/agents/stage/run"), "threadId": "stock", "turns": [
        { "runId": "s1", "say": "Add.", "props": { "script": script } },
        { "runId": "s2", "say": "And?", "props": { "script": [{ "do": "say", "text": "Done." }] } },
    ] });
    let played = &play(Client::Today, &[scenario])[0];
    played.turns().for_each(|turn| turn.ended_without_fault("RUN_FINISHED"));
    assert_eq!(played.turn(1).of("MESSAGES_SNAPSHOT").len(), 0, "{:#}", played.turn(1).0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frontend_tool_call_that_is_too_large_fails_where_it_is_seen() {
    let host = host("").await;
    let tool = json!({ "name": "paint", "description": "Paints.", "parameters": { "type": "object" } });
    let large = arguments(40_000);
    for many in [false, true] {
        let (thread, run) = (format!("t-{many}"), format!("r-{many}"));
        let script = json!([
            { "do": "client", "many": many, "calls": [{ "name": "paint", "parameters": large, "id": "p1" }] },
            { "do": "say", "text": "On we go." },
        ]);
        let body = with(input(&thread, &run, &script), json!({ "tools": [tool] }));
        let events = host.run(&body).await.rest().await;
        sound(&events, &thread, &run);
        let view = View::of(&events);
        let calls = view.calls();
        let [(name, given, result)] = calls.iter().collect::<Vec<_>>()[..] else { panic!("{calls:?}") };
        assert_eq!((name.as_str(), serde_json::from_str::<Value>(given).unwrap()), ("paint", large.clone()));
        assert!(result.contains("the parameters of a call to a tool of the client"), "{result}");
        assert_eq!(view.texts("assistant").last().unwrap(), "On we go.");
        assert_eq!(events.last().unwrap()["outcome"]["type"], "success", "{:#}", events.last().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_arguments_count_as_the_events_that_they_are() {
    let host = host("run_events = 6").await;
    let script = json!([{ "do": "client", "calls": [{ "name": "t__add", "parameters": arguments(60_000) }] }]);
    let events = host.run(&input("t", "r1", &script)).await.rest().await;
    assert!(events.iter().all(|event| event["type"] != "TOOL_CALL_ARGS"), "{events:#?}");
    let runs: Value = host.http.get(host.url("/api/v1/runs")).send().await.unwrap().json().await.unwrap();
    let path = format!("/api/v1/runs/{}/audit", runs["items"][0]["run_id"].as_str().unwrap());
    let audit: Value = host.http.get(host.url(&path)).send().await.unwrap().json().await.unwrap();
    let refused = |record: &Value| record["action"] == "tools.call" && record["outcome"] == "payload_too_large";
    assert!(audit["items"].as_array().unwrap().iter().any(refused), "{audit:#}");
}
