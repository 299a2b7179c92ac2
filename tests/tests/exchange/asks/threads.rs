//! A thread as a stream of facts: read, followed, acted on, across restarts.

use std::{
    io::Write,
    process::Stdio,
    time::{Duration, Instant},
};

use agent_host_tests::world::PATIENCE;
use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};

use crate::asks::desk::{Desk, act};

fn request(desk: &Desk, method: Method, path: &str) -> RequestBuilder {
    let slash = if path.is_empty() { "" } else { "/" };
    let url = format!("{}/api/v1/threads{slash}{path}", *desk.host.urls().borrow());
    Client::new().request(method, url).timeout(PATIENCE)
}

async fn answer(request: RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

async fn get(desk: &Desk, path: &str) -> Value {
    let (status, body) = answer(request(desk, Method::GET, path)).await;
    assert_eq!(status, 200, "{path}: {body:#}");
    body
}

#[track_caller]
fn is_refused((status, problem): (u16, Value), expected: u16, code: &str) -> Value {
    assert_eq!((status, problem["code"].as_str()), (expected, Some(code)), "{problem:#}");
    problem
}

/// All facts of a thread, page by page.
async fn facts(desk: &Desk, thread: &str) -> Vec<Value> {
    let (mut facts, mut after) = (Vec::new(), "0".to_owned());
    loop {
        let page = get(desk, &format!("{thread}/events?limit=7&after={after}")).await;
        facts.extend(page["items"].as_array().unwrap().clone());
        after = page["next_cursor"].as_str().unwrap().to_owned();
        if page["has_more"] == false {
            break;
        }
    }
    for (fact, sequence) in facts.iter().zip(1_u64..) {
        assert_eq!(fact["sequence"], sequence, "{fact:#}");
    }
    facts
}

fn kinds(facts: &[Value]) -> Vec<&str> {
    facts.iter().map(|fact| fact["type"].as_str().unwrap()).collect()
}

#[track_caller]
fn of<'a>(facts: &'a [Value], kind: &str) -> &'a Value {
    facts.iter().rev().find(|fact| fact["type"] == kind).unwrap_or_else(|| panic!("no {kind}: {:?}", kinds(facts)))
}

async fn start(desk: &Desk, thread: &str, body: &Value) -> (u16, Value) {
    answer(request(desk, Method::POST, &format!("{thread}/turns")).json(body)).await
}

async fn until(desk: &Desk, thread: &str, status: &str) -> Value {
    let began = Instant::now();
    loop {
        let model = get(desk, thread).await;
        if model["status"] == status {
            return model;
        }
        assert!(began.elapsed() < PATIENCE, "it does not become {status}: {model:#}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Facts of a stream after a number, so many.
async fn streamed(desk: &Desk, thread: &str, after: u64, count: usize) -> Vec<Value> {
    let stream = request(desk, Method::GET, &format!("{thread}/events"))
        .header("accept", "text/event-stream")
        .header("last-event-id", after.to_string())
        .send()
        .await
        .unwrap();
    assert_eq!(stream.status(), 200);
    let events = stream.bytes_stream().eventsource().map(Result::unwrap).filter(|event| {
        let is_fact = event.event == "fact";
        async move { is_fact }
    });
    let events: Vec<_> = tokio::time::timeout(PATIENCE, events.take(count).collect()).await.unwrap();
    let facts: Vec<Value> = events.iter().map(|event| serde_json::from_str(&event.data).unwrap()).collect();
    assert!(events.iter().zip(&facts).all(|(event, fact)| event.id.parse::<u64>().ok() == fact["sequence"].as_u64()));
    facts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thread_is_one_stream_that_is_the_same_for_everybody_and_after_a_restart() {
    let mut desk = Desk::ruled(&[]).await;
    is_refused(answer(request(&desk, Method::GET, "t1")).await, 404, "not_found");

    // A turn is started once, whoever repeats the request.
    let said = json!({ "agent": "asks", "turnId": "mine", "input": { "text": "say hello" } });
    let (status, started) = start(&desk, "t1", &said).await;
    assert_eq!((status, &started["turnId"], &started["eventCursor"]), (202, &json!("mine"), &json!("0")), "{started:#}");
    let (status, again) = start(&desk, "t1", &said).await;
    assert_eq!((status, &again["runId"]), (202, &started["runId"]));
    let other = json!({ "agent": "asks", "turnId": "mine", "input": { "text": "say something else" } });
    is_refused(start(&desk, "t1", &other).await, 409, "turn_id_conflict");
    let model = until(&desk, "t1", "completed").await;
    assert_eq!(model["lastOutcome"]["turnId"], "mine");
    let first = facts(&desk, "t1").await;
    let order = ["session.created", "thread.started", "turn.submitted", "turn.started", "run.status", "context.resolved"];
    assert_eq!(kinds(&first)[..6], order);
    assert_eq!(kinds(&first)[first.len() - 3..], ["evidence.changed", "turn.completed", "snapshot.updated"]);
    assert!(first[2..].iter().all(|fact| fact["turnId"] == "mine" && fact["runId"] == started["runId"]));
    let text = first.iter().find(|fact| fact["type"] == "model.completed").unwrap();
    assert_eq!((&text["payload"]["text"], &text["payload"]["source"]), (&json!("hello"), &json!("runner")));
    assert_eq!(of(&first, "model.requested")["payload"]["origin"], "runner", "no model was called");

    // A turn waits for a person; another one is refused meanwhile.
    let asks = json!({ "agent": "asks", "input": { "text": act("message.send", json!({ "api_key": "canary-77" })) } });
    let (status, second) = start(&desk, "t1", &asks).await;
    assert_eq!((status, &second["eventCursor"]), (202, &json!(first.len().to_string())), "{second:#}");
    let waiting = until(&desk, "t1", "waiting").await;
    let action = waiting["pendingActions"][0]["actionId"].as_str().unwrap().to_owned();
    assert_eq!(waiting["pendingActions"][0]["actionType"], "permission");
    assert_eq!((&waiting["toolCalls"][0]["status"], &waiting["activeTurnId"]), (&json!("waiting"), &second["turnId"]));
    let busy = is_refused(start(&desk, "t1", &asks).await, 409, "turn_already_active");
    assert_eq!(busy["details"]["activeTurnId"], second["turnId"]);
    desk.parked(1).await;

    // The host dies; the facts and the read model are what they were.
    let before = facts(&desk, "t1").await;
    assert_eq!(before[..first.len()], first);
    // The message of the user is shown as it is; the arguments of the call are not.
    let others = before.iter().filter(|fact| fact["type"] != "turn.submitted");
    assert!(!others.map(Value::to_string).any(|fact| fact.contains("canary-77")), "a secret got into a fact");
    let model_before = get(&desk, "t1").await;
    desk.host.kill_and_revive();
    assert_eq!(facts(&desk, "t1").await, before);
    assert_eq!(get(&desk, "t1").await, model_before);

    // Followers see what comes: one from the beginning, one that was cut.
    let cut = before.len() as u64 - 3;
    let rest = streamed(&desk, "t1", cut, 3).await;
    assert_eq!(rest, before[before.len() - 3..]);

    // The answer: its scope is checked, it counts once, and a repetition has the same event.
    let respond = |action: &str, body: Value| {
        let request = request(&desk, Method::POST, &format!("t1/actions/{action}/respond")).json(&body);
        async move { answer(request).await }
    };
    let scope = json!({ "sessionId": "t1", "threadId": "t1", "turnId": second["turnId"] });
    let denies = json!({ "decision": "deny", "reason": "not now", "actionScope": scope });
    is_refused(respond("nonsense", denies.clone()).await, 404, "not_found");
    let foreign = json!({ "decision": "deny", "actionScope": { "sessionId": "t1", "threadId": "t1", "turnId": "mine" } });
    is_refused(respond(&action, foreign).await, 409, "action_scope_mismatch");
    is_refused(respond(&action, json!({ "decision": "deny" })).await, 400, "invalid_argument");
    let (status, resolved) = respond(&action, denies.clone()).await;
    assert_eq!(
        (status, &resolved["type"], &resolved["actionId"]),
        (200, &json!("action.resolved"), &json!(action)),
        "{resolved:#}"
    );
    let (status, repeated) = respond(&action, denies).await;
    assert_eq!((status, &repeated), (200, &resolved));
    let approves = json!({ "decision": "approve", "actionScope": scope });
    is_refused(respond(&action, approves).await, 409, "already_answered");
    until(&desk, "t1", "completed").await;
    let all = facts(&desk, "t1").await;
    assert_eq!(all[resolved["sequence"].as_u64().unwrap() as usize - 1], resolved);
    let of_second = &all[first.len()..];
    assert_eq!(of(of_second, "tool.failed")["payload"]["failureCategory"], "permission_denied");
    assert!(!kinds(of_second).contains(&"tool.result"), "{:?}", kinds(of_second));
    assert_eq!(streamed(&desk, "t1", 0, all.len()).await, all);

    // A read model at any fact; a tag of what was seen; shapes; lines; a task.
    let at = before.len() - 1;
    assert_eq!(get(&desk, &format!("t1?at={at}")).await["eventCursor"], at.to_string());
    assert_eq!(get(&desk, &format!("t1?at={}", all.len())).await["status"], "completed");
    let shown = request(&desk, Method::GET, "t1").send().await.unwrap();
    let tag = shown.headers()["etag"].clone();
    let seen = request(&desk, Method::GET, "t1").header("if-none-match", tag).send().await.unwrap();
    assert_eq!(seen.status(), 304);
    let contracts = get(&desk, "t1/events?shape=contracts&limit=1").await;
    assert_eq!(contracts["items"][0]["eventClass"], "session.created");
    let profile = get(&desk, "t1/events?shape=profile-0.4.0&limit=1").await;
    assert_eq!(profile["items"][0]["schemaVersion"], "lime-profile-0.4.0");
    is_refused(answer(request(&desk, Method::GET, "t1/events?shape=odd")).await, 400, "invalid_argument");
    assert_eq!(get(&desk, "t1/tasks/mine").await["status"], "completed");
    is_refused(answer(request(&desk, Method::GET, "t1/tasks/nobody")).await, 404, "not_found");
    let lines = request(&desk, Method::GET, "t1/events?after=2").header("accept", "application/x-ndjson").send().await.unwrap();
    assert_eq!(lines.headers()["content-type"], "application/x-ndjson");
    let piece = tokio::time::timeout(PATIENCE, lines.bytes_stream().next()).await.unwrap().unwrap().unwrap();
    let line: Value = serde_json::from_slice(piece.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    assert_eq!(line, all[2]);

    // Cursors of nobody.
    let past = all.len() + 1;
    for (path, status, code) in [
        (format!("t1/events?after={past}"), 400, "invalid_cursor"),
        (format!("t1?at={past}"), 400, "invalid_cursor"),
        ("t1/events?after=x".to_owned(), 400, "invalid_cursor"),
        ("t1/events?after=3@9".to_owned(), 410, "projection_changed"),
        ("t1?at=3@9".to_owned(), 410, "projection_changed"),
        ("t1?sessionId=other".to_owned(), 404, "not_found"),
    ] {
        is_refused(answer(request(&desk, Method::GET, &path)).await, status, code);
    }
    assert_eq!(get(&desk, &format!("t1/events?after={}", all.len())).await["items"], json!([]));
    let listed = get(&desk, "").await;
    assert!(listed["items"].as_array().unwrap().iter().any(|thread| thread["threadId"] == "t1"), "{listed:#}");

    // Deleted content is gone, and its numbers are nobody's.
    let url = format!("{}/agents/asks/threads/t1", *desk.host.urls().borrow());
    assert_eq!(Client::new().delete(url).send().await.unwrap().status(), 204);
    for path in ["t1", "t1/events", "t1/tasks/mine"] {
        is_refused(answer(request(&desk, Method::GET, path)).await, 410, "thread_forgotten");
    }
    is_refused(start(&desk, "t1", &asks).await, 410, "thread_forgotten");
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_follower_goes_on_through_later_turns_and_turns_are_cancelled_once() {
    let desk = Desk::ruled(&[]).await;
    let sleeps = json!({ "agent": "asks", "input": { "text": "say one;;sleep 600000" } });
    let (_, first) = start(&desk, "t2", &sleeps).await;
    let stream = request(&desk, Method::GET, "t2/events").header("accept", "text/event-stream").send().await.unwrap();
    let mut events = stream.bytes_stream().eventsource().map(Result::unwrap);

    // One turn waits behind the other, and has no number yet.
    let queued = json!({ "agent": "asks", "input": { "text": "say two" }, "queueIfBusy": true });
    let (status, behind) = start(&desk, "t2", &queued).await;
    assert_eq!(status, 202, "{behind:#}");
    let (_, last) = start(&desk, "t2", &queued).await;
    until(&desk, "t2", "waiting").await;
    let model = get(&desk, "t2").await;
    let waiting: Vec<_> = model["queuedTurns"].as_array().unwrap().iter().map(|turn| turn["turnId"].clone()).collect();
    assert_eq!(waiting, [behind["turnId"].clone(), last["turnId"].clone()], "{model:#}");
    let cancel = |turn: &Value| {
        let path = format!("t2/turns/{}/cancel", turn.as_str().unwrap());
        let request = request(&desk, Method::POST, &path);
        async move { answer(request).await }
    };
    let (status, pending) = cancel(&behind["turnId"]).await;
    assert_eq!((status, &pending["turnId"], &pending["sequence"]), (202, &behind["turnId"], &Value::Null), "{pending:#}");

    let (status, canceled) = cancel(&first["turnId"]).await;
    assert_eq!(
        (status, &canceled["type"], &canceled["turnId"]),
        (200, &json!("turn.canceled"), &first["turnId"]),
        "{canceled:#}"
    );
    is_refused(cancel(&first["turnId"]).await, 409, "turn_ended");
    is_refused(cancel(&json!("nobody")).await, 404, "not_found");
    until(&desk, "t2", "completed").await;
    let all = facts(&desk, "t2").await;
    assert_eq!(all[canceled["sequence"].as_u64().unwrap() as usize - 1], canceled);

    // The turn that was cancelled in line ended before the last one began, and never began itself.
    let of_turn = |turn: &Value| -> Vec<&str> {
        all.iter().filter(|fact| fact["turnId"] == *turn).map(|fact| fact["type"].as_str().unwrap()).collect()
    };
    assert_eq!(
        of_turn(&behind["turnId"]),
        ["turn.submitted", "run.status", "evidence.changed", "turn.canceled", "snapshot.updated"]
    );
    let mut turns: Vec<&Value> = all.iter().map(|fact| &fact["turnId"]).filter(|turn| !turn.is_null()).collect();
    turns.dedup();
    assert_eq!(turns, [&first["turnId"], &behind["turnId"], &last["turnId"]], "each turn is in one piece");

    // The follower that came first has seen all of it, in order.
    let mut seen: Vec<Value> = Vec::new();
    while seen.len() < all.len() {
        let event = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap();
        if event.event == "fact" {
            seen.push(serde_json::from_str(&event.data).unwrap());
        }
    }
    assert_eq!(seen, all);

    // A turn as a stream ends with the turn.
    let stream =
        request(&desk, Method::POST, "t2/turns").header("accept", "text/event-stream").json(&queued).send().await.unwrap();
    assert_eq!(stream.status(), 200);
    let events = stream.bytes_stream().eventsource().map(Result::unwrap).collect::<Vec<_>>();
    let events = tokio::time::timeout(PATIENCE, events).await.unwrap();
    let of_turn: Vec<Value> =
        events.iter().filter(|event| event.event == "fact").map(|event| serde_json::from_str(&event.data).unwrap()).collect();
    assert_eq!((&of_turn[0]["type"], &of_turn[0]["sequence"]), (&json!("turn.submitted"), &json!(all.len() + 1)));
    assert_eq!(of_turn.last().unwrap()["type"], "snapshot.updated");
    desk.check();
}

/// The command, with JSON, in the directory of a host.
fn agent_host(desk: &Desk, arguments: &[&str], input: Option<&str>) -> (bool, Vec<Value>) {
    let mut command = agent_host_tests::process::command(desk.host.dir());
    command.args(arguments).arg("--json").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = tokio::task::block_in_place(|| {
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.unwrap_or_default().as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    });
    let lines = String::from_utf8(output.stdout).unwrap();
    (output.status.success(), lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn commands_show_the_same_thread_with_and_without_a_server_and_speak_for_the_host() {
    let mut desk = Desk::ruled(&[]).await;
    let server = desk.host.urls().borrow().clone();
    let speak = |desk: &Desk, line: Value| {
        let server = desk.host.urls().borrow().clone();
        agent_host(desk, &["backend", "--agent", "asks", "--server", &server], Some(&format!("{line}\n")))
    };

    // A backend writes the facts of a turn until a person is asked, and goes on in another process.
    let asks = act("message.send", json!({}));
    let first = json!({ "kind": "turnStart", "request": { "session": "t3", "turn": "b-1", "input": { "text": asks } } });
    let (success, lines) = speak(&desk, first);
    assert!(success, "{lines:#?}");
    let asked = lines.last().unwrap();
    assert_eq!((&asked["type"], &asked["payload"]["turnId"]), (&json!("action.required"), &json!("b-1")), "{lines:#?}");
    let action = asked["payload"]["actionId"].clone();
    let answers = |decision: &str| {
        let request = json!({ "session": "t3", "turn": "b-1", "requestId": action, "decision": decision });
        json!({ "kind": "actionRespond", "request": request })
    };
    assert!(!speak(&desk, answers("allow_for_session")).0);
    let (success, lines) = speak(&desk, answers("allow_once"));
    let kinds: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert!(success && kinds.contains(&"tool.result"), "{kinds:?}");
    assert_eq!((kinds[0], *kinds.last().unwrap()), ("action.resolved", "turn.completed"));
    assert!(lines.iter().all(|line| line["payload"]["sessionId"] == "t3" && line["payload"]["runId"].is_string()));
    let (success, read) = speak(&desk, json!({ "kind": "threadRead", "request": { "session": "t3" } }));
    assert!(success && read[0]["payload"]["threadReadModel"]["status"] == "completed", "{read:#?}");
    let says = json!({ "kind": "turnStart", "request": { "session": "t3", "input": "say hello" } });
    let (success, lines) = speak(&desk, says);
    assert!(success && lines.iter().any(|line| line["type"] == "model.completed"), "{lines:#?}");
    assert!(!speak(&desk, json!({ "kind": "odd", "request": { "session": "t3" } })).0);

    // A thread beside its session, and a turn that is cancelled while it waits.
    let of = |turn: &str, more: Value| {
        let mut request = json!({ "session": { "sessionId": "s5", "threadId": "t5" }, "turn": turn });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    let begins = |turn: &str| json!({ "kind": "turnStart", "request": of(turn, json!({ "input": asks })) });
    let (success, lines) = speak(&desk, begins("c-1"));
    assert!(success && lines.last().unwrap()["type"] == "action.required", "{lines:#?}");
    let action = lines.last().unwrap()["payload"]["actionId"].clone();
    let answer = of("c-1", json!({ "requestId": action, "decision": "deny" }));
    let (success, lines) = speak(&desk, json!({ "kind": "actionRespond", "request": answer }));
    assert!(success && lines.iter().all(|line| line["payload"]["threadId"] == "t5"), "{lines:#?}");
    assert!(speak(&desk, begins("c-2")).0);
    let (success, lines) = speak(&desk, json!({ "kind": "turnCancel", "request": of("c-2", json!({})) }));
    assert!(success && lines.len() == 1 && lines[0]["type"] == "turn.canceled", "{lines:#?}");

    // A server and the ledger show the same.
    let all = facts(&desk, "t3").await;
    let commands: [&[&str]; 4] = [
        &["threads", "events", "t3"],
        &["threads", "show", "t3"],
        &["threads", "show", "t3", "--at", "5"],
        &["threads", "tasks", "t3", "b-1"],
    ];
    let with_server: Vec<_> =
        commands.iter().map(|arguments| agent_host(&desk, &[arguments, &["--server", &server][..]].concat(), None)).collect();
    assert_eq!(with_server[0].1[0]["items"], json!(all));
    desk.host.terminate();
    for (arguments, (success, shown)) in commands.iter().zip(with_server) {
        assert!(success, "{arguments:?}");
        assert_eq!(agent_host(&desk, arguments, None), (true, shown), "{arguments:?}");
    }
    let (success, followed) = agent_host(&desk, &["threads", "events", "t3", "--follow", "--after", "3"], None);
    assert!(success && followed == all[3..], "{followed:#?}");
    assert!(!agent_host(&desk, &["threads", "show", "nobody"], None).0);
    assert!(!agent_host(&desk, &["threads", "show", "t3", "--at", "100000"], None).0);
    let (_, listed) = agent_host(&desk, &["threads", "list"], None);
    let mut threads: Vec<&str> =
        listed[0].as_array().unwrap().iter().map(|thread| thread["threadId"].as_str().unwrap()).collect();
    threads.sort_unstable();
    assert_eq!(threads, ["t3", "t5"], "{listed:#?}");
    desk.host.revive();
    desk.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_only_a_runner_knows_is_a_fact_of_source_runner() {
    let desk = Desk::ruled(&[]).await;
    let (status, _) = start(&desk, "t4", &json!({ "agent": "asks", "input": { "text": "claim" } })).await;
    assert_eq!(status, 202);
    until(&desk, "t4", "completed").await;
    let all = facts(&desk, "t4").await;
    let payload = |kind: &str| {
        let fact = of(&all, kind);
        assert_eq!(fact["payload"]["source"], "runner", "{fact:#}");
        fact["payload"].clone()
    };
    let steps = json!([{ "step": "read", "status": "completed" }, { "step": "answer", "status": "in_progress" }]);
    assert_eq!(payload("plan.delta")["plan"], steps);
    assert_eq!(payload("task.progress")["progress"], json!({ "completedSteps": 1, "totalSteps": 2 }));
    let handoff = payload("handoff.requested");
    assert_eq!((&handoff["target"], &handoff["reason"]), (&json!("a person"), &json!("the sum is too large")));
    assert_eq!(payload("history.compacted")["summary"], "They talked.");
    assert_eq!(payload("cost.recorded")["usage"]["input"], 3);
    // The one result that the host does not know is the guest's own, `x.step`.
    let warnings: Vec<_> = all.iter().filter(|fact| fact["type"] == "runtime.warning").collect();
    assert!(warnings.len() == 1 && warnings[0].to_string().contains("x.step"), "{warnings:#?}");
    // The log of the host warns of results that it does not know, and of no claim.
    desk.check();
}
