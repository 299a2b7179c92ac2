//! Empty requests, the same message once more, and changed messages: the thread is what its newest branch says, for clients,
//! runners, and after a restart; the record keeps the rest.

use serde_json::{Value, json};

use crate::agui::{
    node::{Client, play},
    support::{Host, View, Wire, config, input, plain, problem, sound, with},
};

fn say(text: &str) -> Value {
    json!([{ "do": "say", "text": text }])
}

fn user(id: &str, text: &str) -> Value {
    json!({ "id": id, "role": "user", "content": text })
}

/// The messages of a thread that people see: role and text.
async fn thread_texts(host: &Host, thread: &str) -> Vec<String> {
    let found = host.thread(thread).await;
    let all = found["messages"].as_array().unwrap().iter();
    all.map(|message| format!("{}: {}", plain(&message["role"]), plain(&message["content"]))).collect()
}

/// The messages of a thread, as a client sends them.
async fn history(host: &Host, thread: &str) -> Vec<Value> {
    host.thread(thread).await["messages"].as_array().unwrap().clone()
}

async fn run(host: &Host, thread: &str, run_id: &str, script: &Value, messages: Vec<Value>) -> Vec<Value> {
    let events = host.run(&with(input(thread, run_id, script), json!({ "messages": messages }))).await.rest().await;
    sound(&events, thread, run_id);
    events
}

/// A thread of two turns: u1, one, u2, two.
async fn two_turns(host: &Host, thread: &str) {
    run(host, thread, &format!("{thread}-1"), &say("one"), vec![user("u1", "first")]).await;
    let mut before = history(host, thread).await;
    before.push(user("u2", "second"));
    run(host, thread, &format!("{thread}-2"), &say("two"), before).await;
    assert_eq!(thread_texts(host, thread).await, ["user: first", "assistant: one", "user: second", "assistant: two"]);
}

/// The facts of branches in the record of an AG-UI run.
async fn branch_of(host: &Host, thread: &str) -> Vec<Value> {
    let runs = host.http.get(host.url(&format!("/api/v1/runs?conversation_id={thread}&limit=1"))).send().await.unwrap();
    let runs: Value = runs.json().await.unwrap();
    let id = plain(&runs["items"][0]["run_id"]);
    let events =
        host.http.get(host.url(&format!("/api/v1/runs/{id}/events"))).send().await.unwrap().json::<Value>().await.unwrap();
    let events = events["items"].as_array().unwrap_or_else(|| panic!("{events:#}")).clone();
    events.into_iter().filter(|event| event["type"] == "conversation.branched").collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_an_empty_input() {
    let host = Host::start("").await;
    let script = json!([{ "do": "input" }]);
    let events = run(&host, "empty", "e-1", &script, Vec::new()).await;
    let seen: Value = serde_json::from_str(&View::of(&events).texts("assistant")[0]).unwrap();
    assert_eq!(seen["text"].as_str().unwrap_or_default(), "", "{seen:#}");
    assert_eq!(thread_texts(&host, "empty").await.len(), 1, "the answer, and no message of the user");
    // The same request is the same run, and a thread with history takes an empty request too.
    let again = host.run(&with(input("empty", "e-1", &script), json!({ "messages": [] }))).await.rest().await;
    sound(&again, "empty", "e-1");
    run(&host, "empty", "e-2", &say("still here"), Vec::new()).await;
    assert_eq!(thread_texts(&host, "empty").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_message_again_has_another_answer() {
    let mut host = Host::start("").await;
    two_turns(&host, "t").await;
    let before = history(&host, "t").await;
    let script = json!([{ "do": "history" }]);
    let events = run(&host, "t", "again", &script, before[..3].to_vec()).await;
    assert!(!events.iter().any(|event| event["type"] == "MESSAGES_SNAPSHOT"), "the client shows what holds: {events:#?}");
    let seen = View::of(&events).texts("assistant").pop().unwrap();
    assert!(seen.contains("one") && seen.contains("second") && !seen.contains("two"), "{seen}");
    let facts = branch_of(&host, "t").await;
    assert_eq!(
        (facts.len(), &facts[0]["data"]["reason"], &facts[0]["sequence"]),
        (1, &json!("regenerate"), &json!(1)),
        "{facts:#?}"
    );
    assert_eq!(facts[0]["data"]["message_id"], "u2");
    let now = thread_texts(&host, "t").await;
    assert_eq!((now.len(), &now[..3]), (4, ["user: first", "assistant: one", "user: second"].map(str::to_owned).as_slice()));
    assert!(!now[3].contains("two"), "{now:?}");
    // The record of the first answer is as it was.
    let old = host.events("t", "t-2", None).await.expect("it is kept").rest().await;
    assert_eq!(View::of(&old).texts("assistant"), ["two"]);
    // It holds after a power failure, and from the beginning as well.
    host.kill();
    host.revive();
    assert_eq!(thread_texts(&host, "t").await, now);
    run(&host, "t", "first-again", &say("uno"), before[..1].to_vec()).await;
    assert_eq!(thread_texts(&host, "t").await, ["user: first", "assistant: uno"]);
    // Who shows an answer that has left is behind: the message is taken, and the client is shown what holds.
    let mut behind = before.clone();
    behind.push(user("u3", "third"));
    let events = run(&host, "t", "behind", &script, behind).await;
    assert!(events.iter().any(|event| event["type"] == "MESSAGES_SNAPSHOT"), "{events:#?}");
    let seen = View::of(&events).texts("assistant").pop().unwrap();
    assert!(seen.contains("uno") && seen.contains("third") && !seen.contains("two"), "{seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_message_begins_another_branch() {
    let host = Host::start("").await;
    // The last one, with its id; then the first one, with another id in its place.
    two_turns(&host, "t").await;
    let mut edited = history(&host, "t").await[..3].to_vec();
    edited[2] = user("u2", "second, better");
    let events = run(&host, "t", "edit-last", &say("better"), edited).await;
    let snapshot = events.iter().find(|event| event["type"] == "MESSAGES_SNAPSHOT").expect("it is shown what holds");
    assert!(snapshot.to_string().contains("second, better") && !snapshot.to_string().contains("two"), "{snapshot}");
    assert_eq!(thread_texts(&host, "t").await, ["user: first", "assistant: one", "user: second, better", "assistant: better"]);
    assert_eq!(branch_of(&host, "t").await[0]["data"]["reason"], "edit");
    // Again, after the edit.
    let before = history(&host, "t").await;
    run(&host, "t", "again", &say("best"), before[..3].to_vec()).await;
    assert_eq!(thread_texts(&host, "t").await[3], "assistant: best");
    // Another message in the place of the second.
    let mut replaced = history(&host, "t").await[..2].to_vec();
    replaced.push(user("u9", "instead"));
    run(&host, "t", "replace", &json!([{ "do": "history" }]), replaced).await;
    let now = thread_texts(&host, "t").await;
    assert_eq!((now.len(), now[2].as_str()), (4, "user: instead"));
    assert!(!now[3].contains("best") && !now[3].contains("better"), "{now:?}");
    // An earlier message, and a new one behind it: both are taken, and the new one is answered.
    let mut both = history(&host, "t").await;
    both[0] = user("u1", "first, otherwise");
    both.push(user("u10", "last"));
    run(&host, "t", "both", &say("done"), both).await;
    assert_eq!(thread_texts(&host, "t").await, ["user: first, otherwise", "user: last", "assistant: done"]);
    // The list names the thread by its first message.
    let list = host.http.get(host.url("/agents/stage/threads")).send().await.unwrap().json::<Value>().await.unwrap();
    assert!(list.to_string().contains("last") || list.to_string().contains("otherwise"), "{list:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_tools_leave_with_their_branch() {
    let host = Host::start("").await;
    let tools = json!([{ "do": "tool", "calls": [{ "id": "c1", "name": "look", "result": "found" }] }, { "do": "say", "text": "looked" }]);
    run(&host, "t", "t-1", &tools, vec![user("u1", "look")]).await;
    let first = history(&host, "t").await;
    assert!(first.iter().any(|message| message["role"] == "tool"), "{first:#?}");
    let mut longer = first.clone();
    longer.push(user("u2", "and now?"));
    run(&host, "t", "t-2", &tools, longer).await;
    let all = history(&host, "t").await;
    // The last message again: its calls are new ones; then the first: nothing of the old ones is left.
    run(&host, "t", "t-3", &tools, all[..=first.len()].to_vec()).await;
    let now = history(&host, "t").await;
    assert_eq!((now.len(), &now[..=first.len()]), (all.len(), &all[..=first.len()]));
    assert_ne!(now.last(), all.last());
    let events = run(&host, "t", "t-4", &json!([{ "do": "history" }]), all[..1].to_vec()).await;
    let seen = View::of(&events).texts("assistant").pop().unwrap();
    assert!(seen.contains("look") && !seen.contains("found") && !seen.contains("tool"), "{seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_tabs_one_begins_the_branch() {
    for busy in ["replace_abandoned", "queue"] {
        let host = Host::start(&format!("busy = \"{busy}\"")).await;
        two_turns(&host, "t").await;
        let before = history(&host, "t").await;
        let slow = json!([{ "do": "say", "text": "word by word", "pieces": 12, "delay_ms": 60 }]);
        let body = |run: &str| with(input("t", run, &slow), json!({ "messages": before[..3].to_vec() }));
        let (first, second) = (body("tab-1"), body("tab-2"));
        let (one, two) =
            futures_util::future::join(host.post("/agents/stage/run", &first), host.post("/agents/stage/run", &second)).await;
        let (taken, refused) = if one.status() == 200 { (one, two) } else { (two, one) };
        let (status, response) = problem(refused).await;
        assert_eq!((status, &response["code"]), (409, &json!("thread_busy")), "{busy}: {response:#}");
        Wire::open(taken).await.rest().await;
        assert_eq!(thread_texts(&host, "t").await, ["user: first", "assistant: one", "user: second", "assistant: word by word"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_clients_ask_again_and_edit() {
    let host = Host::with_config("loopback_without_key = true", &config("", "")).await;
    for (client, name) in [(Client::Today, "today"), (Client::Old, "old")] {
        let turn = |n: usize, members: Value, text: &str| {
            with(json!({ "runId": format!("{name}-{n}"), "props": { "script": say(text) } }), members)
        };
        let turns = json!([
            turn(0, json!({ "say": "first" }), "one"),
            turn(1, json!({ "say": "second" }), "two"),
            turn(2, json!({ "keep": 3 }), "two again"),
            turn(3, json!({ "keep": 3, "rewrite": "second, better" }), "better"),
            turn(4, json!({ "keep": 3 }), "best"),
            turn(5, json!({ "keep": 1, "rewrite": "first, better" }), "uno"),
            turn(6, json!({ "say": "third" }), "three"),
        ]);
        let scenario = json!({ "name": name, "url": host.url("/agents/stage/run"), "threadId": name, "turns": turns });
        let played = &play(client, &[scenario])[0];
        played.turns().for_each(|turn| turn.ended_without_fault("RUN_FINISHED"));
        assert_eq!(played.turn(2).texts("assistant"), ["one", "two again"], "{client:?}");
        assert_eq!(played.turn(3).texts("user"), ["first", "second, better"], "{client:?}");
        assert_eq!(played.turn(4).texts("assistant"), ["one", "best"], "{client:?}");
        assert_eq!(played.turn(6).texts("assistant"), ["uno", "three"], "{client:?}");
        assert_eq!(played.turn(6).texts("user"), ["first, better", "third"], "{client:?}");
        let expected = ["user: first, better", "assistant: uno", "user: third", "assistant: three"];
        assert_eq!(thread_texts(&host, name).await, expected, "{client:?}");
    }
}
