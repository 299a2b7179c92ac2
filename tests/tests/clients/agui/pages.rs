//! The needs of pages besides the stream: a list of threads, a stream that any client of server-sent events resumes, and a way on
//! after a reload.

use serde_json::{Value, json};

use crate::agui::{
    node::{Client, play},
    scenarios::{pick, picker},
    support::{Host, View, Wire, config, input, is_terminal, plain, problem, sound, with},
};

fn says(text: &str) -> Value {
    json!([{ "do": "say", "text": text }])
}

async fn get(host: &Host, path: &str) -> Value {
    let answer = host.http.get(host.url(path)).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{path}");
    answer.json().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_was_reloaded_goes_on_while_a_frontend_tool_waits() {
    let host = Host::start("").await;
    for (client, name) in [(Client::Today, "today"), (Client::Old, "old")] {
        for (fresh, thread) in [(false, format!("{name}-kept")), (true, format!("{name}-fresh"))] {
            let run = |n: u32| format!("{thread}-{n}");
            let asks = json!([pick(), { "do": "say", "text": "Thanks." }]);
            let scenario = json!({ "name": thread, "url": host.url("/agents/stage/run"), "threadId": thread, "turns": [
                { "runId": run(1), "say": "Ask me.", "tools": [picker()], "props": { "script": asks } },
                { "runId": run(2), "say": "Never mind.", "tools": [picker()], "fresh": fresh, "props": { "script": says("Fine.") } },
                { "runId": run(3), "say": "And now?", "tools": [picker()], "props": { "script": says("Still here.") } },
            ] });
            let played = &play(client, &[scenario])[0];
            for turn in played.turns() {
                turn.ended_without_fault("RUN_FINISHED");
            }
            assert_eq!(played.turn(2).texts("assistant").last(), Some(&"Still here."), "{thread}");
            // The call has a result that says what became of it, and the run that asked is cancelled.
            let shown = host.thread(&thread).await;
            assert_eq!(shown["pendingToolCallIds"], json!([]), "{shown:#}");
            let view = View { messages: shown["messages"].as_array().unwrap().clone(), ..View::default() };
            let calls = view.calls();
            assert!(
                calls.iter().all(|(tool, _, result)| tool == "pick_color" && result.contains("before the client answered")),
                "{calls:?}"
            );
            let end = host.events(&thread, &run(1), None).await.expect("it is there").rest().await;
            assert!(is_terminal(end.last().unwrap()), "{end:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_are_listed_newest_first_and_found_by_their_titles() {
    let second = "\n[[bindings]]\nid = \"second\"\nrunner = \"plugin:test/stage/default\"\nmatch = { event_type = \"nothing of this kind\" }\n";
    let host = Host::with_config("loopback_without_key = true", &format!("{}{second}", config("", ""))).await;
    let list = async |path: &str| {
        let found = get(&host, path).await;
        let titles: Vec<_> = found["threads"].as_array().unwrap().iter().map(|thread| plain(&thread["title"])).collect();
        (titles, found)
    };
    assert_eq!(list("/agents/stage/threads").await.0, [""; 0]);
    for (thread, run, text) in [
        ("a", "a1", "Plan a trip to Zürich\nby train"),
        ("b", "b1", "Cook something"),
        ("c", "c1", "PLAN B"),
        ("a", "a2", "Another message"),
    ] {
        let messages = json!([{ "id": format!("{run}-user"), "role": "user", "content": text }]);
        host.run(&with(input(thread, run, &says("ok")), json!({ "messages": messages }))).await.rest().await;
    }
    let (titles, all) = list("/agents/stage/threads").await;
    assert_eq!(titles, ["Plan a trip to Zürich", "PLAN B", "Cook something"], "the title stays, the place does not");
    assert_eq!((&all["hasMore"], all.get("nextCursor")), (&json!(false), None));
    let first = &all["threads"][0];
    assert_eq!(first["threadId"], "a");
    assert!(first["updatedAt"].as_u64() > first["createdAt"].as_u64(), "{first}");
    assert_eq!(list("/agents/stage/threads?q=plan").await.0, ["Plan a trip to Zürich", "PLAN B"]);
    assert_eq!(list("/agents/stage/threads?q=Z%C3%9CRICH").await.0, ["Plan a trip to Zürich"]);
    assert_eq!(list("/agents/stage/threads?q=nothing").await.0, [""; 0]);
    // Pages.
    let (mut seen, mut path) = (Vec::new(), "/agents/stage/threads?limit=1".to_owned());
    loop {
        let (titles, page) = list(&path).await;
        seen.extend(titles);
        if page["hasMore"] == false {
            break;
        }
        path = format!("/agents/stage/threads?limit=1&cursor={}", plain(&page["nextCursor"]));
    }
    assert_eq!(seen, titles);
    // A thread is in the list of the agent that answered it last, and in none once it is deleted.
    let messages = json!([{ "id": "b2-user", "role": "user", "content": "More" }]);
    let other = with(input("b", "b2", &says("ok")), json!({ "messages": messages }));
    Wire::open(host.post("/agents/second/run", &other).await).await.rest().await;
    assert_eq!(list("/agents/second/threads").await.0, ["Cook something"]);
    assert_eq!(host.http.delete(host.url("/agents/stage/threads/a")).send().await.unwrap().status(), 204);
    assert_eq!(list("/agents/stage/threads").await.0, ["PLAN B"]);
    for (path, status) in [
        ("/agents/stage/threads?cursor=../..", 400),
        ("/agents/stage/threads?limit=0", 400),
        ("/agents/stage/threads?of=me", 400),
        ("/agents/nobody/threads", 404),
    ] {
        assert_eq!(problem(host.http.get(host.url(path)).send().await.unwrap()).await.0, status, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_client_of_server_sent_events_resumes_a_post() {
    let host = Host::start("coalesce_ms = 0").await;
    let script = json!([{ "do": "say", "text": "One letter after the other.", "pieces": 27, "delay_ms": 10 }]);
    let body = with(input("sse", "r", &script), json!({ "parentRunId": "parent-1" }));
    let mut wire = host.run(&body).await;
    let mut seen = wire.take(9).await;
    assert!(seen.iter().all(|frame| frame.id.as_deref().is_some_and(|id| id.starts_with("r:"))), "{seen:?}");
    assert_eq!(seen[0].data["parentRunId"], "parent-1");
    drop(wire);
    loop {
        let last = seen.iter().rev().find_map(|frame| frame.id.clone()).unwrap();
        let request = host.http.post(host.url("/agents/stage/run")).header("accept", "text/event-stream");
        let answer = request.header("last-event-id", last).json(&body).send().await.unwrap();
        let mut wire = Wire::open(answer).await;
        let more = wire.take(6).await;
        let ended = more.last().is_some_and(|frame| is_terminal(&frame.data));
        seen.extend(more);
        if ended {
            break;
        }
    }
    let events: Vec<Value> = seen.into_iter().map(|frame| frame.data).collect();
    sound(&events, "sse", "r");
    assert_eq!(View::of(&events).texts("assistant"), ["One letter after the other."]);
    // A run that is asked for again from the start says by whom it was asked for as well.
    let again = host.run(&body).await.rest().await;
    assert_eq!(again[0]["parentRunId"], "parent-1");
    // The cursor of another run is none.
    let request = host.http.post(host.url("/agents/stage/run")).header("accept", "text/event-stream");
    let answer = request.header("last-event-id", "other:3.0").json(&body).send().await.unwrap();
    let (status, response) = problem(answer).await;
    assert_eq!((status, &response["code"]), (400, &json!("invalid_cursor")), "{response:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capabilities_are_those_of_the_grant() {
    let bare = "\n[[bindings]]\nid = \"bare\"\nrunner = \"plugin:test/stage/default\"\nmatch = { event_type = \"nothing of this kind\" }\n\
                state = { scopes = [] }\nresources = { models = [], tools = [], interactions = false, platform_api = [], runs = [], client_tools = false }\n";
    let host = Host::with_config("loopback_without_key = true", &format!("{}{bare}", config("", ""))).await;
    for (agent, can) in [("stage", true), ("bare", false)] {
        let found = get(&host, &format!("/agents/{agent}/capabilities")).await;
        for pointer in [
            "/reasoning/supported",
            "/reasoning/streaming",
            "/tools/parallelCalls",
            "/tools/clientProvided",
            "/humanInTheLoop/interrupts",
            "/humanInTheLoop/approvals",
            "/state/memory",
            "/state/persistentState",
            "/multiAgent/supported",
        ] {
            assert_eq!(found.pointer(pointer), Some(&json!(can)), "{agent} {pointer}: {found:#}");
        }
    }
}
