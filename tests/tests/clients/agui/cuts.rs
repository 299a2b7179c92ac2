//! The connection breaks after each single event of a run, and the host dies in the middle: in every way to come back the
//! client ends with all that was said, once, and with one end.

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use crate::agui::{
    node::{Client, play},
    scenarios::{everything, pick, picker},
    support::{Frame, Host, View, Wire, input, is_terminal, lines_of, sound, verified, with},
};

/// Pieces are not joined, so that there are many places to cut at.
const EACH: &str = "coalesce_ms = 0";
/// Between two pieces: a run is live when it is looked at again.
const DELAY_MS: u64 = 6;
/// Runs at once.
const AT_ONCE: usize = 6;

/// The ways to come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reconnect {
    /// The same run once more.
    Run,
    /// Under another run id.
    Connect,
    /// From a cursor in what the front end passes on.
    Cursor,
    /// Likewise, as agno's client does it.
    Agno,
    /// The log, from the id of the last event.
    Events,
}

const RECONNECTS: [Reconnect; 5] = [Reconnect::Run, Reconnect::Connect, Reconnect::Cursor, Reconnect::Agno, Reconnect::Events];

/// The view of a client so far.
#[derive(Default)]
struct SeenEvents {
    view: View,
    /// Of those who put together what came before a cut and after it: one stream.
    joined: Vec<Value>,
    /// The last event that says where it stands.
    last: Option<Frame>,
}

impl SeenEvents {
    /// A view without an interruption.
    fn of(way: Reconnect, frames: Vec<Frame>) -> Self {
        let joined: Vec<Value> = frames.iter().map(|frame| frame.data.clone()).collect();
        let last = frames.into_iter().rev().find(|frame| way.place(frame).is_some());
        Self { view: View::of(&joined), joined, last }
    }
}

impl Reconnect {
    /// The first request of a client that will reconnect in this way.
    fn prepare(self, mut input: Value) -> Value {
        match self {
            Self::Cursor => input["forwardedProps"]["agentHost"] = json!({ "cursors": true }),
            Self::Agno => input["forwardedProps"]["agnoBackground"] = json!({ "enabled": true }),
            Self::Run | Self::Connect | Self::Events => {}
        }
        input
    }

    /// Reads so many events of a new run, then the connection is gone.
    async fn begin(self, host: &Host, thread: &str, run: &str, input: &Value, count: usize) -> SeenEvents {
        let mut wire = match self {
            // The ids are those of the log, so the run is followed there; somebody else has asked for it.
            Self::Events => {
                let asked = host.run(input).await;
                let wire = host.events(thread, run, None).await.expect("it begins");
                drop(asked);
                wire
            }
            _ => host.run(input).await,
        };
        SeenEvents::of(self, wire.take(count).await)
    }

    /// Comes back, and reads so many events, or to the end.
    async fn come_back(self, host: &Host, thread: &str, run: &str, input: &Value, seen: &mut SeenEvents, count: usize) {
        let mut run_id = run.to_owned();
        let wire = match self {
            Self::Run => Some(host.run(&with_half(input, &seen.view)).await),
            Self::Connect => {
                run_id = format!("{run}-observed");
                Some(host.connect(&with(input.clone(), json!({ "runId": run_id, "messages": [] }))).await)
            }
            Self::Cursor | Self::Agno => {
                let answer = host.post("/agents/stage/run", &self.after(input, seen.last.as_ref())).await;
                // A client that asks for a run receives its end, whatever it has seen.
                assert_eq!(answer.status(), 200, "{self:?} after {:?} of {}", seen.last, lines_of(&seen.joined));
                Some(Wire::open(answer).await)
            }
            Self::Events => {
                let last = seen.last.as_ref().and_then(|frame| frame.id.as_deref());
                host.events(thread, run, last).await
            }
        };
        let frames = match wire {
            Some(mut wire) => wire.take(count).await,
            None => Vec::new(),
        };
        let events: Vec<Value> = frames.iter().map(|frame| frame.data.clone()).collect();
        let whole = events.last().is_some_and(is_terminal);
        let before = seen.last.as_ref().and_then(|last| self.place(last));
        match self {
            Self::Run | Self::Connect | Self::Cursor => {
                if whole {
                    // A separate stream for the stock client. A client has all events before its cursor.
                    let mut run_input = events.clone();
                    if self == Self::Cursor {
                        assert!(!events.iter().any(|event| event["type"] == "MESSAGES_SNAPSHOT"), "{}", lines_of(&events));
                        run_input.insert(1, json!({ "type": "MESSAGES_SNAPSHOT", "messages": seen.view.messages }));
                    }
                    sound(&run_input, thread, &run_id);
                }
                // A page that has seen the end does not come back; one that has been reloaded does.
                seen.view.ends.clear();
                events.iter().for_each(|event| seen.view.apply(event));
            }
            Self::Agno | Self::Events => {
                let over = seen.joined.last().is_some_and(is_terminal);
                for frame in &frames {
                    // As the client does it that is made for this: what has no place is for those who begin anew.
                    let place = self.place(frame);
                    if is_terminal(&frame.data) {
                        seen.joined.extend((!over).then(|| frame.data.clone()));
                    } else if place.is_some() {
                        assert!(before.is_none() || place > before, "it was seen before: {}", frame.data);
                        seen.joined.push(frame.data.clone());
                    }
                }
                if count == usize::MAX {
                    sound(&seen.joined, thread, run);
                }
                seen.view = View::of(&seen.joined);
            }
        }
        seen.last = frames.into_iter().rev().find(|frame| self.place(frame).is_some()).or(seen.last.take());
    }

    /// The position of an event, if it has one.
    fn place(self, frame: &Frame) -> Option<(i64, i64)> {
        let cursor = match self {
            Self::Cursor => frame.data["metadata"]["agentHost"]["cursor"].as_str()?,
            Self::Agno => {
                let stamp = &frame.data["metadata"]["agnoBackground"];
                return Some((stamp["eventIndex"].as_i64()?, stamp["subIndex"].as_i64()?));
            }
            Self::Events => frame.id.as_deref()?,
            Self::Run | Self::Connect => return None,
        };
        let (sequence, part) = cursor.rsplit_once(':')?.1.split_once('.')?;
        Some((sequence.parse().ok()?, part.parse().ok()?))
    }

    fn after(self, input: &Value, last: Option<&Frame>) -> Value {
        let mut input = input.clone();
        let place = last.and_then(|last| self.place(last));
        match (self, last, place) {
            (Self::Cursor, Some(last), _) => {
                let cursor = &last.data["metadata"]["agentHost"]["cursor"];
                input["forwardedProps"]["agentHost"] = json!({ "cursors": true, "cursor": cursor });
            }
            (Self::Agno, _, Some((index, sub))) => {
                input["forwardedProps"]["agnoBackground"] =
                    json!({ "enabled": true, "lastEventIndex": index, "lastSubIndex": sub });
            }
            _ => {}
        }
        input
    }
}

/// A client that comes back sends what it has, also half of an answer.
fn with_half(input: &Value, view: &View) -> Value {
    let half = view.messages.iter().filter(|message| message["role"] == "assistant" && message["content"].is_string());
    let mut messages = input["messages"].as_array().unwrap().clone();
    messages.extend(half.cloned());
    with(input.clone(), json!({ "messages": messages }))
}

/// The undisturbed run: the number of its events, and its view.
async fn calm(host: &Host, script: &Value) -> (usize, Value) {
    let events = host.run(&input("calm", "calm-1", script)).await.rest().await;
    sound(&events, "calm", "calm-1");
    (events.len(), View::of(&events).essence())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_cut_after_each_event_is_seen_whole_in_every_way() {
    let host = Host::start(EACH).await;
    let count = cut_everywhere(&host, &everything(DELAY_MS)).await;
    assert!(count > 30, "{count} events are too few to cut at");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_that_no_event_tells_of_is_seen_whole_too() {
    let host = Host::start(EACH).await;
    let set = |key: &str, value: u64| json!({ "do": "state", "key": key, "value": value, "set": true });
    let say = json!({ "do": "say", "text": "Some words.", "pieces": 3, "delay_ms": DELAY_MS });
    let script = json!([set("early", 1), say, set("middle", 2), say, set("late", 3)]);
    cut_everywhere(&host, &script).await;
}

/// Cuts a run after each of its events, in each way, and gives how many there are.
async fn cut_everywhere(host: &Host, script: &Value) -> usize {
    let (count, whole) = calm(host, script).await;
    let cases: Vec<_> = (1..=count).flat_map(|cut| RECONNECTS.map(|way| (cut, way))).collect();
    println!("{} cuts", cases.len());
    let faults: Vec<String> = stream::iter(cases)
        .map(|(cut, way)| {
            let whole = &whole;
            async move {
                let (thread, run) = (format!("cut-{way:?}-{cut}"), format!("run-{way:?}-{cut}"));
                let run_input = way.prepare(input(&thread, &run, script));
                let mut seen = way.begin(host, &thread, &run, &run_input, cut).await;
                if cut % 3 > 0 {
                    // Cut once more, soon: in what is said to those who come back.
                    way.come_back(host, &thread, &run, &run_input, &mut seen, 1 + cut % 4).await;
                }
                way.come_back(host, &thread, &run, &run_input, &mut seen, usize::MAX).await;
                let seen = seen.view.essence();
                (seen != *whole).then(|| format!("{way:?} after {cut}: {seen}"))
            }
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(|fault| async { fault })
        .collect()
        .await;
    assert!(faults.is_empty(), "{} differ from {whole:#}:\n{}", faults.len(), faults[..faults.len().min(3)].join("\n"));
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stock_client_that_is_cut_after_each_event_shows_the_whole_answer_once() {
    let host = Host::start(EACH).await;
    let script = everything(2);
    let (count, whole) = calm(&host, &script).await;
    let mut run_input = Vec::new();
    for cut in 1..=count {
        for way in ["run", "connect", "reload"] {
            let (thread, run) = (format!("cut-{way}-{cut}"), format!("run-{way}-{cut}"));
            let url = host.url("/agents/stage/run");
            let first = json!({
                "runId": run, "say": "Do it.", "props": { "script": script }, "headers": { "x-cut-after": cut.to_string() },
            });
            let second = match way {
                "run" => json!({ "runId": run, "props": { "script": script } }),
                "connect" => json!({ "runId": format!("{run}-observed"), "url": host.url("/agents/stage/connect") }),
                _ => json!({
                    "runId": format!("{run}-observed"), "url": host.url("/agents/stage/connect"), "fresh": true,
                }),
            };
            run_input.push(json!({ "name": format!("{way} {cut}"), "url": url, "threadId": thread, "turns": [first, second] }));
        }
    }
    for client in [Client::Today, Client::Old] {
        // Another client needs other threads.
        let run_input: Vec<Value> = run_input
            .iter()
            .map(|scenario| {
                with(scenario.clone(), json!({ "threadId": format!("{client:?}-{}", scenario["threadId"].as_str().unwrap()) }))
            })
            .collect();
        let played = play(client, &run_input);
        for played in &played {
            let (first, second) = (played.turn(0), played.turn(1));
            let ended = first.events().last().is_some_and(is_terminal);
            assert!(ended || first.0["error"] != Value::Null, "{}: nothing was cut: {:#}", played.name(), first.0);
            second.ended_without_fault("RUN_FINISHED");
            let view = View {
                messages: second.messages().to_vec(),
                state: second.0["state"].clone(),
                ends: vec!["RUN_FINISHED".to_owned()],
            };
            assert_eq!(view.essence(), whole, "{client:?} {}", played.name());
            let activities: Vec<_> = second.messages().iter().filter(|message| message["role"] == "activity").collect();
            assert!(activities.len() == 1 && activities[0]["content"]["done"] == true, "{}: {activities:?}", played.name());
            let users = second.texts("user");
            assert_eq!(users, ["Do it."], "{}", played.name());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_that_is_killed_in_the_middle_of_an_answer_goes_on_where_it_was() {
    let mut host = Host::start(EACH).await;
    // The pauses are longer than it takes to see an event and to kill.
    let script = everything(40);
    let (count, whole) = calm(&host, &script).await;
    // The beginning, the end, and between: in the reasoning, in the text, between tools, and after them.
    let places: Vec<usize> = [1, 3, 6, 9, 14, 19, 24, count - 4].into_iter().filter(|place| *place < count).collect();
    for (round, place) in places.into_iter().enumerate() {
        let run_input = RECONNECTS.map(|way| {
            let (thread, run) = (format!("kill-{round}-{way:?}"), format!("run-{round}-{way:?}"));
            (way, way.prepare(input(&thread, &run, &script)), thread, run)
        });
        // All at once: the host dies once a round.
        let began = run_input.iter().map(|(way, run_input, thread, run)| way.begin(&host, thread, run, run_input, place));
        let seen = futures_util::future::join_all(began).await;
        host.kill();
        host.revive();
        for ((way, run_input, thread, run), mut seen) in run_input.iter().zip(seen) {
            way.come_back(&host, thread, run, run_input, &mut seen, usize::MAX).await;
            assert_eq!(seen.view.essence(), whole, "{way:?}, killed after {place}");
        }
    }
    host.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn questions_and_tools_of_the_front_end_survive_a_kill_and_are_answered_once() {
    let mut host = Host::start("").await;
    let ask = json!({ "do": "ask", "kind": "confirmation", "title": "May I?", "schema": { "type": "boolean" } });
    let asks = input("asks", "asks-1", &json!([{ "do": "say", "text": "Before." }, ask, { "do": "say", "text": "After." }]));
    let picks =
        with(input("picks", "picks-1", &json!([pick(), { "do": "say", "text": "Thanks." }])), json!({ "tools": [picker()] }));
    let asked = host.run(&asks).await.rest().await;
    let picked = host.run(&picks).await.rest().await;
    sound(&asked, "asks", "asks-1");
    sound(&picked, "picks", "picks-1");
    let interrupt = asked.last().unwrap()["outcome"]["interrupts"][0]["id"].clone();
    let call = picked.iter().find(|event| event["type"] == "TOOL_CALL_START").unwrap()["toolCallId"].clone();
    host.kill();
    host.revive();
    // The view of a page that was loaded afterwards.
    let thread = host.thread("asks").await;
    assert_eq!(thread["pendingInterrupts"][0]["id"], interrupt, "{thread:#}");
    let thread = host.thread("picks").await;
    assert_eq!(thread["pendingToolCallIds"], json!([call]), "{thread:#}");
    // Another request sees the same end.
    let again = host.run(&asks).await.rest().await;
    sound(&again, "asks", "asks-1");
    assert_eq!(again.last().unwrap()["outcome"], asked.last().unwrap()["outcome"]);

    let resume = json!([{ "interruptId": interrupt, "status": "resolved", "payload": true }]);
    let resumed = with(input("asks", "asks-2", &json!([])), json!({ "messages": [], "resume": resume }));
    let resumed_events = host.run(&resumed).await.rest().await;
    sound(&resumed_events, "asks", "asks-2");
    assert!(View::of(&resumed_events).texts("assistant").ends_with(&[r#"{"submitted":true}"#.to_owned(), "After.".to_owned()]));
    let answer = json!([{ "id": "answer", "role": "tool", "toolCallId": call, "content": "blue" }]);
    let answered = with(input("picks", "picks-2", &json!([])), json!({ "messages": answer, "tools": [picker()] }));
    let answered_events = host.run(&answered).await.rest().await;
    sound(&answered_events, "picks", "picks-2");
    assert_eq!(View::of(&answered_events).texts("assistant").last().unwrap(), "Thanks.");

    // The same once more, before and after another kill: nothing happens twice.
    host.kill();
    host.revive();
    for (body, thread, run) in [(&resumed, "asks", "asks-2"), (&answered, "picks", "picks-2")] {
        let again = host.run(body).await.rest().await;
        sound(&again, thread, run);
        let texts = View::of(&again).texts("assistant");
        let mut once = texts.clone();
        once.dedup();
        assert_eq!(texts, once, "{}", lines_of(&again));
    }
    let whole = host.thread("asks").await;
    let contents: Vec<_> = whole["messages"].as_array().unwrap().iter().map(|message| message["content"].clone()).collect();
    assert_eq!(contents, ["Do it.", "Before.", r#"{"submitted":true}"#, "After."], "{whole:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_look_at_one_run_and_all_see_it_whole() {
    let host = Host::start("").await;
    let script = everything(10);
    let (_, whole) = calm(&host, &script).await;
    let run_input = input("many", "many-1", &script);
    let first = host.run(&run_input).await;
    let mut others: Vec<Wire> = Vec::new();
    for n in 0..12 {
        others.push(if n % 2 == 0 {
            host.run(&run_input).await
        } else {
            host.connect(&with(run_input.clone(), json!({ "runId": format!("look-{n}"), "messages": [] }))).await
        });
        tokio::time::sleep(std::time::Duration::from_millis(DELAY_MS)).await;
    }
    assert_eq!(View::of(&first.rest().await).essence(), whole);
    for wire in others {
        let events = wire.rest().await;
        verified(&events);
        assert_eq!(View::of(&events).essence(), whole, "{}", lines_of(&events));
    }
}
