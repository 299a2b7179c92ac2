//! Child runs speak under their subagent while they run, on every stream of their parent, and a client that is cut anywhere gets
//! the rest. Nothing here depends on time: a child waits at a gate until the test opens it.

use std::collections::{BTreeMap, HashMap, HashSet};

use agent_host_tests::world::PATIENCE;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use crate::agui::{
    node::{Client, play},
    scenarios::{result, tools},
    support::{Frame, Host, View, Wire, input, is_terminal, lines_of, problem, sound, verified, with},
};

/// Pieces are not joined, so that there are many places to cut at.
const EACH: &str = "coalesce_ms = 0";

/// A step that ends when the test opens the gate.
fn gate(name: &str) -> Value {
    json!({ "do": "ask", "kind": "confirmation", "title": name })
}

/// A child that is in the middle of a text when it comes to its gate.
fn gated(name: &str) -> Value {
    json!([
        { "do": "think", "id": "g0", "text": format!("{name} thinks."), "pieces": 2 },
        { "do": "say", "id": "g1", "text": format!("{name} begins"), "pieces": 3, "open": true },
        gate(name),
        tools(0),
        { "do": "say", "id": "g2", "text": format!("{name} ends."), "pieces": 3 },
    ])
}

fn children(scripts: Vec<Value>) -> Value {
    json!([
        { "do": "say", "text": "Off they go." },
        { "do": "children", "scripts": scripts },
        { "do": "say", "text": "All are back." },
    ])
}

/// Opens the gate of a child as soon as it is there.
async fn open(host: &Host, name: &str) {
    let began = std::time::Instant::now();
    loop {
        let open: Value = host.http.get(host.url("/api/v1/actions")).send().await.unwrap().json().await.unwrap();
        let found = open["items"].as_array().unwrap().iter().find(|action| action["request"]["title"] == name);
        if let Some(action) = found {
            let path = format!("/api/v1/actions/{}/respond", action["action_id"].as_str().unwrap());
            let answer = host.http.post(host.url(&path)).json(&json!({ "decision": "submit", "answer": true }));
            assert_eq!(answer.send().await.unwrap().status(), 200);
            return;
        }
        assert!(began.elapsed() < PATIENCE, "nobody is at the gate {name}: {open:#}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

/// A stream, and what came of it so far.
struct Reader {
    wire: Wire,
    frames: Vec<Frame>,
}

impl Reader {
    fn new(wire: Wire) -> Self {
        Self { wire, frames: Vec::new() }
    }

    fn events(&self) -> Vec<Value> {
        self.frames.iter().map(|frame| frame.data.clone()).collect()
    }

    /// Reads until a text of the assistant is this.
    async fn until_text(&mut self, text: &str) {
        while !View::of(&self.events()).texts("assistant").iter().any(|said| said == text) {
            let frame =
                self.wire.next().await.unwrap_or_else(|| panic!("it ended before `{text}`: {}", lines_of(&self.events())));
            assert!(!is_terminal(&frame.data), "it ended before `{text}`: {}", lines_of(&self.events()));
            self.frames.push(frame);
        }
    }

    async fn rest(mut self) -> Vec<Frame> {
        while let Some(frame) = self.wire.next().await {
            self.frames.push(frame);
        }
        assert!(!self.wire.broken, "{}", lines_of(&self.events()));
        self.frames
    }
}

fn data_of(frames: &[Frame]) -> Vec<Value> {
    frames.iter().map(|frame| frame.data.clone()).collect()
}

/// The sorted texts and calls: children that run at the same time are in no order.
fn essence(messages: &View) -> Value {
    let mut essence = messages.essence();
    for member in ["assistant", "reasoning"] {
        let mut texts: Vec<String> = serde_json::from_value(essence[member].clone()).unwrap();
        texts.sort();
        essence[member] = json!(texts);
    }
    essence
}

/// The events of each owner, in their order, without what differs between streams.
fn by_owner(events: &[Value]) -> BTreeMap<String, Vec<Value>> {
    let mut owners: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut parents: HashMap<String, String> = HashMap::new();
    for event in events {
        let kind = event["type"].as_str().unwrap();
        if ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT"].contains(&kind) {
            continue;
        }
        let subagent = event["subagentRunId"].as_str();
        if let (Some(subagent), Some(parent)) = (subagent, event["parentSubagentRunId"].as_str()) {
            parents.insert(subagent.to_owned(), parent.to_owned());
        }
        // The begin and the end of a subagent are facts of its parent.
        let owner = if kind.starts_with("SUBAGENT_") {
            subagent.and_then(|subagent| parents.get(subagent)).cloned()
        } else {
            subagent.map(str::to_owned)
        };
        let owner = owner.unwrap_or_else(|| "the agent".to_owned());
        let mut event = event.clone();
        for member in ["timestamp", "metadata", "runId"] {
            event.as_object_mut().unwrap().remove(member);
        }
        owners.entry(owner).or_default().push(event);
    }
    owners
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_is_heard_on_every_stream_before_it_ends() {
    let host = Host::start(EACH).await;
    let asked = input("live", "live-1", &children(vec![gated("Ada")]));
    let mut first = Reader::new(host.run(&asked).await);
    first.until_text("Ada begins").await;
    let events = first.events();
    let started = events.iter().find(|event| event["type"] == "SUBAGENT_STARTED").unwrap();
    let deltas = events.iter().filter(|event| event["delta"].as_str().is_some_and(|delta| "Ada begins".contains(delta)));
    assert!(deltas.clone().count() == 3 && deltas.clone().all(|event| event["subagentRunId"] == started["subagentRunId"]));
    assert!(events.iter().any(|event| event["type"] == "REASONING_MESSAGE_CONTENT"), "{}", lines_of(&events));
    // The page that is loaded now has it, too.
    let thread = host.thread("live").await;
    let message = thread["messages"].as_array().unwrap().iter().find(|message| message["content"] == "Ada begins");
    assert_eq!(message.map(|message| &message["subagentRunId"]), Some(&started["subagentRunId"]), "{thread:#}");
    let cursor = thread["activeRun"]["cursor"].as_str().unwrap();
    let last = first.frames.last().unwrap().id.clone().unwrap();
    assert!(last.contains('~'), "the cursor has a place in the record of the child: {last}");

    let observed = |run: &str| with(asked.clone(), json!({ "runId": run, "messages": [] }));
    let resumed =
        host.http.post(host.url("/agents/stage/run")).header("accept", "text/event-stream").header("last-event-id", &last);
    let resumed = Wire::open(resumed.json(&asked).send().await.unwrap()).await;
    let cursor_props = json!({ "script": asked["forwardedProps"]["script"], "agentHost": { "cursor": last } });
    let mut readers = [
        ("attach", Reader::new(host.run(&asked).await)),
        ("connect", Reader::new(host.connect(&observed("look")).await)),
        ("events", Reader::new(host.events("live", "live-1", None).await.unwrap())),
    ];
    for (door, reader) in &mut readers {
        reader.until_text("Ada begins").await;
        assert!(!reader.events().iter().any(|event| event["type"] == "SUBAGENT_FINISHED"), "{door}");
    }
    let behind = [
        ("post with an id", Reader::new(resumed)),
        ("cursor", Reader::new(host.run(&with(asked.clone(), json!({ "forwardedProps": cursor_props }))).await)),
        ("events after an id", Reader::new(host.events("live", "live-1", Some(&last)).await.unwrap())),
        ("events after the page", Reader::new(host.events("live", "live-1", Some(cursor)).await.unwrap())),
    ];
    let binary = host.http.post(host.url("/agents/stage/run")).header("accept", "application/vnd.ag-ui.event+proto");
    let mut binary = binary.json(&asked).send().await.unwrap().bytes_stream();
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    let mut frames = Vec::new();
    while !has(&frames, "Ada begins") {
        frames.extend(binary.next().await.unwrap().unwrap());
    }
    assert!(!has(&frames, "Ada ends."));

    open(&host, "Ada").await;
    while let Some(more) = binary.next().await {
        frames.extend(more.unwrap());
    }
    assert!(has(&frames, "All are back."));
    let whole = first.rest().await;
    sound(&data_of(&whole), "live", "live-1");
    let view = essence(&View::of(&data_of(&whole)));
    for expected in ["Off they go.", "Ada begins", "Ada ends.", "All are back."] {
        assert!(view["assistant"].as_array().unwrap().contains(&json!(expected)), "{expected}: {view:#}");
    }
    // The tools of the child are shown with their results.
    assert_eq!(view["calls"].as_array().unwrap().len(), 3, "{view:#}");
    for (door, reader) in readers {
        let events = data_of(&reader.rest().await);
        verified(&events);
        assert_eq!(essence(&View::of(&events)), view, "{door}: {}", lines_of(&events));
    }
    let seen = whole.iter().position(|frame| frame.id.as_deref() == Some(&last)).unwrap();
    for (door, reader) in behind {
        let frames = reader.rest().await;
        // Who is greeted hears first what is open.
        let after: Vec<Frame> =
            frames.into_iter().skip_while(|frame| door == "cursor" && frame.data["type"] != "TOOL_CALL_START").collect();
        let expected: Vec<Value> = data_of(&whole[seen + 1..])
            .into_iter()
            .skip_while(|event| door == "cursor" && event["type"] != "TOOL_CALL_START")
            .collect();
        assert_eq!(by_owner(&data_of(&after)), by_owner(&expected), "{door}");
    }
    // What is read when all is over is the same.
    let late = Reader::new(host.events("live", "live-1", None).await.unwrap()).rest().await;
    assert_eq!(by_owner(&data_of(&late)), by_owner(&data_of(&whole)));
    let page = host.thread("live").await;
    let shown =
        View { messages: page["messages"].as_array().unwrap().clone(), state: json!({}), ends: vec!["RUN_FINISHED".to_owned()] };
    assert_eq!(essence(&shown), view);
}

/// Two children at the same time, one of which has a child of its own, and one that fails in the middle of a text.
fn family(delay_ms: u64) -> Value {
    let say = |id: &str, text: &str| json!({ "do": "say", "id": id, "text": text, "pieces": 4, "delay_ms": delay_ms });
    let deep = json!([say("d", "Deep down."), tools(delay_ms)]);
    let one = json!([
        { "do": "think", "id": "t", "text": "What now?", "pieces": 2, "delay_ms": delay_ms },
        say("o", "One begins."),
        { "do": "children", "scripts": [deep], "steps": [say("p", "One goes on.")] },
        result("ui.activity", json!({ "activity_id": "plan", "activity_type": "PLAN", "content": { "done": true } })),
    ]);
    let two = json!([
        tools(delay_ms),
        say("w", "Two has something to say."),
        { "do": "say", "id": "h", "text": "Half a sent", "pieces": 3, "delay_ms": delay_ms, "open": true },
        { "do": "fail", "code": "stage.failed", "message": "as it was asked to" },
    ]);
    json!([
        say("a", "We begin."),
        { "do": "children", "scripts": [one, two], "steps": [say("b", "Meanwhile."), { "do": "state", "key": "n", "value": 1 }] },
        say("c", "We end."),
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_with_children_that_is_cut_after_each_event_goes_on_behind_it() {
    let host = Host::start(EACH).await;
    let script = family(3);
    let calm = host.run(&input("calm", "calm-1", &script)).await.rest().await;
    sound(&calm, "calm", "calm-1");
    let whole = essence(&View::of(&calm));
    assert_eq!(calm.iter().filter(|event| event["type"] == "SUBAGENT_STARTED").count(), 3, "{}", lines_of(&calm));
    assert_eq!(calm.iter().filter(|event| event["type"] == "SUBAGENT_ERROR").count(), 1, "{}", lines_of(&calm));
    let nested: Vec<_> = calm.iter().filter(|event| event["parentSubagentRunId"].is_string()).collect();
    assert_eq!(nested.len(), 1, "{}", lines_of(&calm));
    let cases: Vec<_> = (1..=calm.len()).flat_map(|cut| ["post", "events", "attach"].map(|door| (cut, door))).collect();
    stream::iter(cases)
        .for_each_concurrent(6, |(cut, door)| {
            let (host, whole, script) = (&host, &whole, &script);
            async move {
                let (thread, run) = (format!("{door}-{cut}"), format!("{door}-{cut}-run"));
                let asked = input(&thread, &run, script);
                let mut wire = host.run(&asked).await;
                let mut frames = wire.take(cut).await;
                drop(wire);
                // Cut twice: the second time in what comes after.
                for count in [1 + cut % 5, usize::MAX] {
                    let last = frames.last().and_then(|frame| frame.id.clone()).unwrap();
                    if frames.last().is_some_and(|frame| is_terminal(&frame.data)) {
                        break;
                    }
                    let wire = match door {
                        "post" => {
                            let request = host.http.post(host.url("/agents/stage/run")).header("accept", "text/event-stream");
                            Some(Wire::open(request.header("last-event-id", &last).json(&asked).send().await.unwrap()).await)
                        }
                        "events" => host.events(&thread, &run, Some(&last)).await,
                        _ => {
                            let frames = host.run(&asked).await.rest().await;
                            sound(&frames, &thread, &run);
                            assert_eq!(essence(&View::of(&frames)), *whole, "attached after {cut}: {}", lines_of(&frames));
                            return;
                        }
                    };
                    if let Some(mut wire) = wire {
                        frames.extend(wire.take(count).await);
                    }
                }
                let events = data_of(&frames);
                sound(&events, &thread, &run);
                let ids: HashSet<_> = frames.iter().map(|frame| frame.id.clone().unwrap()).collect();
                assert_eq!(ids.len(), frames.len(), "each event has a place of its own: {}", lines_of(&events));
                // Nothing is missing, and nothing comes twice.
                let late = host.events(&thread, &run, None).await.unwrap().rest().await;
                let (ours, theirs) = (by_owner(&events), by_owner(&late));
                for (owner, expected) in &theirs {
                    assert_eq!(ours.get(owner), Some(expected), "{door} after {cut}, of {owner}");
                }
                assert_eq!(ours.len(), theirs.len());
            }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_outside_of_the_records_is_refused() {
    let host = Host::start(EACH).await;
    let asked = input("places", "places-1", &children(vec![gated("Ada")]));
    let mut reader = Reader::new(host.run(&asked).await);
    reader.until_text("Ada begins").await;
    let last = reader.frames.last().unwrap().id.clone().unwrap();
    let (root, _) = last.split_once('~').unwrap();
    for behind in ["~1.1.0", "~99999.1.0", "~~2.1.0", "~2", "~", "~18446744073709551616.1.0", "~1.1.0~1.1.0"] {
        let path = format!("/agents/stage/threads/places/runs/places-1/events?after={root}{behind}");
        let (status, response) = problem(host.http.get(host.url(&path)).send().await.unwrap()).await;
        assert_eq!((status, &response["code"]), (400, &json!("invalid_cursor")), "{behind}: {response:#}");
    }
    let too_far = format!("{}9999.0", &last[..=last.rfind('.').map(|at| last[..at].rfind('.').unwrap()).unwrap()]);
    let path = format!("/agents/stage/threads/places/runs/places-1/events?after={too_far}");
    let (status, _) = problem(host.http.get(host.url(&path)).send().await.unwrap()).await;
    assert_eq!(status, 400, "{too_far}");
    open(&host, "Ada").await;
    sound(&data_of(&reader.rest().await), "places", "places-1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_that_is_killed_while_children_speak_goes_on_where_they_were() {
    let mut host = Host::start(EACH).await;
    let asked = input("killed", "killed-1", &children(vec![gated("Ada"), gated("Bob")]));
    let mut reader = Reader::new(host.run(&asked).await);
    reader.until_text("Ada begins").await;
    reader.until_text("Bob begins").await;
    let mut frames = reader.frames;
    host.kill();
    host.revive();
    let last = frames.last().unwrap().id.clone().unwrap();
    let mut behind = Reader::new(host.events("killed", "killed-1", Some(&last)).await.unwrap());
    let mut attached = Reader::new(host.run(&asked).await);
    attached.until_text("Ada begins").await;
    open(&host, "Bob").await;
    behind.until_text("Bob ends.").await;
    // Another time, with one child at its gate and the other at its end.
    frames.extend(behind.frames);
    host.kill();
    host.revive();
    open(&host, "Ada").await;
    let last = frames.last().unwrap().id.clone().unwrap();
    frames.extend(Reader::new(host.events("killed", "killed-1", Some(&last)).await.unwrap()).rest().await);
    let events = data_of(&frames);
    sound(&events, "killed", "killed-1");
    let late = host.events("killed", "killed-1", None).await.unwrap().rest().await;
    assert_eq!(by_owner(&events), by_owner(&late));
    let again = host.run(&asked).await.rest().await;
    assert_eq!(essence(&View::of(&again)), essence(&View::of(&events)));
    host.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_goes_on_while_its_parent_asks_and_is_heard_in_the_next_run() {
    let host = Host::start(EACH).await;
    for (thread, opens_first) in [("early", true), ("late", false)] {
        let asks = json!({ "do": "ask", "kind": "confirmation", "title": "May I?" });
        let script = json!([
            { "do": "children", "scripts": [gated(thread)], "steps": [asks, { "do": "say", "text": "Thank you." }] },
            { "do": "say", "text": "All are back." },
        ]);
        let first = host.run(&input(thread, "r1", &script)).await.rest().await;
        sound(&first, thread, "r1");
        let interrupt = &first.last().unwrap()["outcome"]["interrupts"][0]["id"];
        let suspended = first.iter().find(|event| event["type"] == "SUBAGENT_FINISHED").unwrap();
        assert_eq!(suspended["outcome"]["type"], "suspended");
        if opens_first {
            open(&host, thread).await;
            host.until(thread, |page| {
                View { messages: page["messages"].as_array().unwrap().clone(), ..View::default() }
                    .texts("assistant")
                    .iter()
                    .any(|text| text.ends_with(" ends."))
            })
            .await;
        }
        let resume = json!([{ "interruptId": interrupt, "status": "resolved", "payload": true }]);
        let resumed = with(input(thread, "r2", &json!([])), json!({ "messages": [], "resume": resume }));
        let mut second = Reader::new(host.run(&resumed).await);
        second.until_text(&format!("{thread} begins")).await;
        let kinds: Vec<String> = second.events().iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect();
        assert_eq!(kinds[..2], ["RUN_STARTED", "MESSAGES_SNAPSHOT"]);
        if !opens_first {
            second.until_text("Thank you.").await;
            open(&host, thread).await;
        }
        let frames = second.rest().await;
        let events = data_of(&frames);
        sound(&events, thread, "r2");
        let texts = View::of(&events).texts("assistant");
        for expected in
            [format!("{thread} begins"), format!("{thread} ends."), "Thank you.".to_owned(), "All are back.".to_owned()]
        {
            assert_eq!(texts.iter().filter(|text| **text == expected).count(), 1, "{expected}: {}", lines_of(&events));
        }
        // Cut after each event of this run, too.
        for cut in 1..frames.len() {
            let last = frames[cut - 1].id.clone().unwrap();
            let mut joined = frames[..cut].to_vec();
            joined.extend(Reader::new(host.events(thread, "r2", Some(&last)).await.unwrap()).rest().await);
            let joined = data_of(&joined);
            sound(&joined, thread, "r2");
            assert_eq!(essence(&View::of(&joined)), essence(&View::of(&events)), "after {cut} ({last}): {}", lines_of(&joined));
        }
        let page = host.thread(thread).await;
        let shown = View { messages: page["messages"].as_array().unwrap().clone(), ..View::default() };
        assert_eq!(shown.texts("assistant").iter().filter(|text| text.ends_with(" begins")).count(), 1, "{page:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_is_cancelled_ends_what_its_children_say() {
    let host = Host::start(EACH).await;
    let asked = input("cancelled", "cancelled-1", &children(vec![gated("Ada"), gated("Bob")]));
    let mut reader = Reader::new(host.run(&asked).await);
    reader.until_text("Ada begins").await;
    reader.until_text("Bob begins").await;
    assert_eq!(host.cancel("cancelled", "cancelled-1").await, 202);
    let events = data_of(&reader.rest().await);
    sound(&events, "cancelled", "cancelled-1");
    assert_eq!(events.last().unwrap()["outcome"]["type"], "cancelled");
    assert_eq!(events.iter().filter(|event| event["type"] == "SUBAGENT_ERROR").count(), 2, "{}", lines_of(&events));
    // What they have said stays in the thread.
    let late = host.events("cancelled", "cancelled-1", None).await.unwrap().rest().await;
    sound(&late, "cancelled", "cancelled-1");
    let page = host.thread("cancelled").await;
    let shown = View { messages: page["messages"].as_array().unwrap().clone(), ..View::default() };
    for texts in [View::of(&late).texts("assistant"), shown.texts("assistant")] {
        assert!(["Ada begins", "Bob begins"].iter().all(|text| texts.iter().any(|said| said == text)), "{texts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stock_client_shows_children_as_text_and_as_protobuf() {
    let host = Host::start("").await;
    let script = family(3);
    let scenario = |name: &str, accept: &str| {
        let turn = json!({ "runId": format!("{name}-1"), "say": "Do it.", "props": { "script": script } });
        json!({ "name": name, "url": host.url("/agents/stage/run"), "threadId": name, "accept": accept, "turns": [turn] })
    };
    let played = play(
        Client::Today,
        &[scenario("text", "text/event-stream"), scenario("binary", "application/vnd.ag-ui.event+proto, text/event-stream")],
    );
    let views = [0, 1].map(|number| {
        let turn = played[number].turn(0);
        turn.ended_without_fault("RUN_FINISHED");
        let view = View { messages: turn.messages().to_vec(), state: turn.0["state"].clone(), ends: Vec::new() };
        let owners: HashSet<_> = turn.messages().iter().filter_map(|message| message["subagentRunId"].as_str()).collect();
        assert_eq!(owners.len(), 3, "{:#}", turn.0["messages"]);
        essence(&view)
    });
    assert_eq!(views[0], views[1]);
    let old = play(Client::Old, &[scenario("old", "text/event-stream")]);
    old[0].turn(0).ended_without_fault("RUN_FINISHED");
}
