//! The HTTP API of the real binary, with real sockets.

use std::time::Duration;

use agent_host_tests::{Process, process, world::PATIENCE};
use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};

const ECHO: &str = r#"
[[bindings]]
id = "echo"
runner = "plugin:agent-host/echo/default"
match = { event_type = "message\\..*" }
"#;

const HOSTILE: &str = r#"
[[bindings]]
id = "hostile"
runner = "plugin:test/hostile/default"
"#;

fn message(text: &str) -> Value {
    json!({ "event_type": "message.received", "input": { "text": text } })
}

/// Sends an event, waits for the end of its runs, and returns the answer.
async fn send_and_wait(host: &Process, event: &Value) -> Value {
    let request = Client::new().post(host.url("/api/v1/events")).header("prefer", "wait=30").json(event);
    request.send().await.unwrap().json().await.unwrap()
}

async fn problem(answer: reqwest::Response, status: u16, code: &str) -> Value {
    let got = answer.status();
    assert_eq!(answer.headers()["content-type"], "application/problem+json", "{got}");
    let problem: Value = answer.json().await.unwrap();
    assert_eq!((got.as_u16(), problem["code"].as_str().unwrap()), (status, code), "{problem:#}");
    assert_eq!(problem["status"], status);
    assert!(!problem["detail"].as_str().unwrap().is_empty() && !problem["title"].as_str().unwrap().is_empty());
    problem
}

#[tokio::test]
async fn an_event_is_accepted_then_followed_to_its_end() {
    let host = Process::start(&["echo"], ECHO);
    let http = Client::new();
    assert_eq!(http.get(host.url("/healthz")).send().await.unwrap().status(), 200);
    let ready: Value = http.get(host.url("/readyz")).send().await.unwrap().json().await.unwrap();
    assert_eq!(ready["ready"], true, "{ready}");

    let accepted = http.post(host.url("/api/v1/events")).json(&message("a b c")).send().await.unwrap();
    assert_eq!(accepted.status(), StatusCode::ACCEPTED);
    let location = accepted.headers()["location"].to_str().unwrap().to_owned();
    let body: Value = accepted.json().await.unwrap();
    let run = body["runs"][0]["run_id"].as_str().unwrap().to_owned();
    assert_eq!(location, format!("/api/v1/runs/{run}"));

    let stream = http.get(host.url(&format!("{location}/events"))).header("accept", "text/event-stream").send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    assert_eq!(stream.headers()["cache-control"], "no-cache");
    let events: Vec<_> = stream.bytes_stream().eventsource().map(Result::unwrap).collect().await;
    let data: Vec<Value> = events.iter().map(|event| serde_json::from_str(&event.data).unwrap()).collect();
    assert!(events.iter().zip(&data).all(|(event, data)| event.event == data["type"].as_str().unwrap()));
    let text: String = data
        .iter()
        .filter(|event| event["type"] == "message.delta")
        .map(|event| event["data"]["chunk"]["content"].as_str().unwrap())
        .collect();
    assert!(text.contains("a b c"), "{data:#?}");
    assert_eq!(data.last().unwrap()["type"], "run.completed");

    // From the middle on: exactly the rest, by either way of saying where.
    let middle = &events[1].id;
    let resumed = http
        .get(host.url(&format!("{location}/events")))
        .header("accept", "text/event-stream")
        .header("last-event-id", middle)
        .send()
        .await
        .unwrap();
    let resumed: Vec<_> = resumed.bytes_stream().eventsource().map(|event| event.unwrap().id).collect().await;
    assert_eq!(resumed, events[2..].iter().map(|event| event.id.clone()).collect::<Vec<_>>());
    let page: Value =
        http.get(host.url(&format!("{location}/events?after={middle}&limit=100"))).send().await.unwrap().json().await.unwrap();
    assert_eq!(page["items"].as_array().unwrap().as_slice(), &data[2..]);
    assert_eq!(page["has_more"], false);
    // A stream of a run that has ended, from its end on, is empty and ends.
    let last = &events.last().unwrap().id;
    let after = http
        .get(host.url(&format!("{location}/events")))
        .header("accept", "text/event-stream")
        .header("last-event-id", last)
        .send()
        .await
        .unwrap();
    let nothing = tokio::time::timeout(PATIENCE, after.bytes_stream().eventsource().collect::<Vec<_>>()).await.unwrap();
    assert!(nothing.is_empty(), "{nothing:?}");

    let context: Value = http.get(host.url(&format!("{location}/context"))).send().await.unwrap().json().await.unwrap();
    assert_eq!(context["run_id"], run.as_str());
    assert_eq!(context["input"]["text"], "a b c");
    let grant: Value = http.get(host.url(&format!("{location}/grant"))).send().await.unwrap().json().await.unwrap();
    assert_eq!(grant["binding_id"], "echo");
}

#[tokio::test]
async fn a_client_may_wait_for_the_end() {
    let host = Process::start(&["echo", "hostile"], &format!("{ECHO}{HOSTILE}"));
    let http = Client::new();
    let waited = http
        .post(host.url("/api/v1/events"))
        .header("prefer", "respond-async, wait=30")
        .json(&message("ok hi"))
        .send()
        .await
        .unwrap();
    assert_eq!(waited.status(), StatusCode::OK);
    assert!(waited.headers()["preference-applied"].to_str().unwrap().contains("wait="));
    let body: Value = waited.json().await.unwrap();
    let runs = body["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2, "both bindings match");
    assert!(runs.iter().all(|run| run["status"] == "completed"), "{body:#}");
    assert_eq!(runs[1]["output"]["content"], "ok hi", "{body:#}");

    let slow =
        http.post(host.url("/api/v1/events")).header("prefer", "wait=0").json(&message("sleep 300000")).send().await.unwrap();
    assert_eq!(slow.status(), StatusCode::ACCEPTED);
    let body: Value = slow.json().await.unwrap();
    for run in body["runs"].as_array().unwrap() {
        let url = host.url(&format!("/api/v1/runs/{}/cancel", run["run_id"].as_str().unwrap()));
        if run["runner_id"] == "plugin:test/hostile/default" {
            let cancelled = http.post(&url).json(&json!({ "reason": "enough" })).send().await.unwrap();
            assert_eq!(cancelled.status(), StatusCode::ACCEPTED);
            let events = http.get(url.replace("/cancel", "/events")).header("accept", "text/event-stream").send().await.unwrap();
            let events: Vec<_> =
                tokio::time::timeout(PATIENCE, events.bytes_stream().eventsource().map(|event| event.unwrap().data).collect())
                    .await
                    .unwrap();
            assert!(events.last().unwrap().contains("\"cancelled\""), "{events:?}");
            problem(http.post(&url).send().await.unwrap(), 409, "conflict").await;
        }
    }
}

#[tokio::test]
async fn the_same_key_is_the_same_event() {
    let host = Process::start(&["echo"], ECHO);
    let http = Client::new();
    let send = async |body: Value| {
        http.post(host.url("/api/v1/events")).header("idempotency-key", "key-1").json(&body).send().await.unwrap()
    };
    let first: Value = send(message("hi")).await.json().await.unwrap();
    let again = send(message("hi")).await;
    assert_eq!(again.headers()["idempotency-replayed"], "true");
    let again: Value = again.json().await.unwrap();
    assert_eq!((&first["event_id"], &first["runs"][0]["run_id"]), (&again["event_id"], &again["runs"][0]["run_id"]));
    problem(send(message("something else")).await, 422, "idempotency_conflict").await;
    let runs: Value = http.get(host.url("/api/v1/runs")).send().await.unwrap().json().await.unwrap();
    assert_eq!(runs["items"].as_array().unwrap().len(), 1);
    // Many at once are one, too.
    let racing = futures_util::future::join_all((0..20).map(|_| async {
        let answer =
            http.post(host.url("/api/v1/events")).header("idempotency-key", "key-2").json(&message("race")).send().await.unwrap();
        answer.json::<Value>().await.unwrap()["event_id"].as_str().unwrap().to_owned()
    }))
    .await;
    assert!(racing.windows(2).all(|pair| pair[0] == pair[1]), "{racing:?}");
}

#[tokio::test]
async fn bad_requests_get_a_problem_that_says_what_to_do() {
    let host = Process::start(&["echo"], ECHO);
    let http = Client::new();
    let post = async |body: Vec<u8>| {
        http.post(host.url("/api/v1/events")).header("content-type", "application/json").body(body).send().await.unwrap()
    };
    let deep = |levels: usize| {
        format!("{{\"event_type\":\"a\",\"data\":{{\"x\":{}{}}}}}", "[".repeat(levels), "]".repeat(levels)).into_bytes()
    };
    problem(post(b"{".to_vec()).await, 400, "invalid_json").await;
    problem(post(b"\xff\xfe".to_vec()).await, 400, "invalid_json").await;
    problem(post(b"[]".to_vec()).await, 400, "invalid_argument").await;
    problem(post(b"{}".to_vec()).await, 400, "invalid_argument").await;
    problem(post(br#"{"event_type":"a b"}"#.to_vec()).await, 400, "invalid_argument").await;
    problem(post(br#"{"event_type":"a","source":"moon"}"#.to_vec()).await, 400, "invalid_argument").await;
    let unknown = problem(post(br#"{"event_type":"a","txet":"hi"}"#.to_vec()).await, 400, "invalid_argument").await;
    assert!(unknown["detail"].as_str().unwrap().contains("txet"), "{unknown}");
    let too_deep = post(deep(70)).await;
    assert_eq!(too_deep.status(), 400);
    let far_too_deep = post(deep(50_000)).await;
    assert_eq!(far_too_deep.status(), 400);
    assert_eq!(post(deep(60)).await.status(), 202);
    problem(post(vec![b' '; 300 * 1024]).await, 413, "payload_too_large").await;
    problem(http.post(host.url("/api/v1/events")).body("{}").send().await.unwrap(), 415, "unsupported_media_type").await;
    problem(
        http.post(host.url("/api/v1/events")).header("idempotency-key", "").json(&message("x")).send().await.unwrap(),
        400,
        "invalid_argument",
    )
    .await;

    let accepted = send_and_wait(&host, &message("hi")).await;
    let other = send_and_wait(&host, &message("hi")).await;
    let run = accepted["runs"][0]["run_id"].as_str().unwrap();
    let foreign = other["runs"][0]["run_id"].as_str().unwrap();
    let events: Value =
        http.get(host.url(&format!("/api/v1/runs/{foreign}/events?limit=1"))).send().await.unwrap().json().await.unwrap();
    let cursor = events["next_cursor"].as_str().unwrap();
    for (path, status, code) in [
        ("/api/v1/nothing", 404, "not_found"),
        ("/api/v1/runs/nonsense", 404, "not_found"),
        ("/api/v1/runs/01890a5d-ac96-774b-bcce-b302099a8057", 404, "not_found"),
        ("/api/v1/runs/01890a5d-ac96-774b-bcce-b302099a8057/events", 404, "not_found"),
        ("/api/v1/events/01890a5d-ac96-774b-bcce-b302099a8057", 404, "not_found"),
        (&format!("/api/v1/runs/{run}/events?limit=0"), 400, "invalid_argument"),
        (&format!("/api/v1/runs/{run}/events?limit=101"), 400, "invalid_argument"),
        (&format!("/api/v1/runs/{run}/events?limt=5"), 400, "invalid_argument"),
        (&format!("/api/v1/runs/{run}/events?after=nonsense"), 400, "invalid_cursor"),
        (&format!("/api/v1/runs/{run}/events?after={cursor}"), 400, "invalid_cursor"),
        ("/api/v1/runs?status=sleeping", 400, "invalid_argument"),
        ("/api/v1/runs?cursor=nonsense", 400, "invalid_cursor"),
        (&format!("/api/v1/runs/{run}/cancel"), 405, "method_not_allowed"),
    ] {
        let answer = http.get(host.url(path)).send().await.unwrap();
        if status == 405 {
            assert!(answer.headers().contains_key("allow"));
        }
        problem(answer, status, code).await;
    }
    for id in [cursor, "nonsense", "5"] {
        let url = host.url(&format!("/api/v1/runs/{run}/events"));
        let answer = http.get(url).header("accept", "text/event-stream").header("last-event-id", id).send().await.unwrap();
        problem(answer, 400, "invalid_cursor").await;
    }
    let picky = http.get(host.url(&format!("/api/v1/runs/{run}/events"))).header("accept", "image/png").send().await.unwrap();
    problem(picky, 406, "not_acceptable").await;
}

#[tokio::test]
async fn lists_are_paged_newest_first_and_filtered() {
    let host = Process::start(&["echo"], ECHO);
    let http = Client::new();
    for n in 0..5 {
        let mut event = message(&format!("message {n}"));
        event["conversation"] = json!({ "conversation_id": format!("c{}", n % 2) });
        send_and_wait(&host, &event).await;
    }
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page: Value =
            http.get(host.url(&format!("/api/v1/runs?limit=2{cursor}"))).send().await.unwrap().json().await.unwrap();
        seen.extend(page["items"].as_array().unwrap().iter().map(|run| run["created_at"].as_u64().unwrap()));
        if page["has_more"] == false {
            break;
        }
        cursor = format!("&cursor={}", page["next_cursor"].as_str().unwrap());
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.is_sorted_by(|a, b| a >= b), "{seen:?}");
    let page: Value =
        http.get(host.url("/api/v1/runs?conversation_id=c0&status=completed")).send().await.unwrap().json().await.unwrap();
    assert_eq!(page["items"].as_array().unwrap().len(), 3);
    let runners: Value = http.get(host.url("/api/v1/runners")).send().await.unwrap().json().await.unwrap();
    assert_eq!(runners["plugins"][0]["status"], "ready");
    assert_eq!(runners["runners"][0]["id"], "plugin:agent-host/echo/default");
}

#[tokio::test]
async fn an_event_that_nothing_matches_is_kept_without_runs() {
    let host = Process::start(&["echo"], ECHO);
    let answer: Value = Client::new()
        .post(host.url("/api/v1/events"))
        .json(&json!({ "event_type": "timer.fired" }))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(answer["runs"], json!([]));
    let kept =
        Client::new().get(host.url(&format!("/api/v1/events/{}", answer["event_id"].as_str().unwrap()))).send().await.unwrap();
    assert_eq!(kept.status(), 200);
}

#[tokio::test]
async fn a_nearly_full_disk_refuses_new_events_and_says_so() {
    let host = Process::start(&["echo"], &format!("[limits]\nmin_free_disk_bytes = {}\n{ECHO}", u64::MAX >> 1));
    let http = Client::new();
    problem(http.post(host.url("/api/v1/events")).json(&message("hi")).send().await.unwrap(), 507, "insufficient_storage").await;
    let ready = http.get(host.url("/readyz")).send().await.unwrap();
    assert_eq!(ready.status(), 503);
}

#[tokio::test]
async fn a_full_workspace_refuses_new_events_until_its_quota_is_raised() {
    let with = |bytes: u64| format!("[quotas.workspaces]\nacme = {bytes}\n{ECHO}");
    let host = Process::start(&["echo"], &with(1));
    let http = Client::new();
    let send = |workspace: &str| {
        let mut event = message("hi");
        event["conversation"] = json!({ "conversation_id": "c", "workspace_id": workspace });
        http.post(host.url("/api/v1/events")).json(&event).send()
    };
    let first = send("acme").await.unwrap();
    assert!(first.status().is_success(), "{}", first.text().await.unwrap());
    let full = problem(send("acme").await.unwrap(), 507, "workspace_full").await;
    assert!(full["detail"].as_str().unwrap().contains("raise its quota"), "{full:#}");
    assert!(send("other").await.unwrap().status().is_success());
    let page = http.get(host.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let kept = page.lines().find_map(|line| line.strip_prefix("agent_host_workspace_kept_bytes{workspace=\"acme\"} "));
    assert!(kept.unwrap_or_else(|| panic!("{page}")).parse::<f64>().unwrap() > 100.0, "{kept:?}");

    host.write(&with(1 << 40));
    let reloaded = http.post(host.url("/api/v1/config/reload")).json(&json!({})).send().await.unwrap();
    assert_eq!(reloaded.status(), 200, "{}", reloaded.text().await.unwrap());
    assert!(send("acme").await.unwrap().status().is_success());
}

#[tokio::test]
async fn a_host_that_is_asked_to_end_lets_runs_end_and_keeps_what_waits() {
    let host = Process::start(&["hostile"], HOSTILE);
    let http = Client::new();
    let send = async |text: &str| {
        let mut event = message(text);
        event["conversation"] = json!({ "conversation_id": "c" });
        let answer: Value = http.post(host.url("/api/v1/events")).json(&event).send().await.unwrap().json().await.unwrap();
        answer["runs"][0]["run_id"].as_str().unwrap().to_owned()
    };
    let active = send("sleep 500").await;
    let waiting = send("ok after the restart").await;
    let stream =
        http.get(host.url(&format!("/api/v1/runs/{waiting}/events"))).header("accept", "text/event-stream").send().await.unwrap();
    while http.get(host.url(&format!("/api/v1/runs/{active}"))).send().await.unwrap().json::<Value>().await.unwrap()["status"]
        != "running"
    {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let dir = tokio::task::spawn_blocking(move || host.terminate()).await.unwrap();
    drop(stream);
    let host = Process::start_in(dir, HOSTILE);
    let url = |id: &str| host.url(&format!("/api/v1/runs/{id}"));
    let run: Value = http.get(url(&active)).send().await.unwrap().json().await.unwrap();
    assert_eq!(run["status"], "completed", "it had the time that it needed: {run:#}");
    let stream = http.get(format!("{}/events", url(&waiting))).header("accept", "text/event-stream").send().await.unwrap();
    let events: Vec<_> =
        tokio::time::timeout(PATIENCE, stream.bytes_stream().eventsource().map(|event| event.unwrap().event).collect())
            .await
            .unwrap();
    assert_eq!(events.last().unwrap(), "run.completed");
}

#[tokio::test]
async fn a_journal_is_read_saved_and_branched_off_from() {
    let host = Process::start(&["echo", "hostile"], &format!("{ECHO}{HOSTILE}durability = \"fail\"\n"));
    let http = Client::new();
    let get = async |path: String| http.get(host.url(&path)).send().await.unwrap();
    let mut event = message("ok hi");
    event["conversation"] = json!({ "conversation_id": "c" });
    let answer = send_and_wait(&host, &event).await;
    let run_of = |binding: &str| {
        let run = answer["runs"].as_array().unwrap().iter().find(|run| run["binding_id"] == binding);
        run.unwrap_or_else(|| panic!("{answer:#}"))["run_id"].as_str().unwrap().to_owned()
    };
    let (echo, without) = (run_of("echo"), run_of("hostile"));
    let base = format!("/api/v1/runs/{echo}");

    // Every call once, over pages of one.
    let whole: Value = get(format!("{base}/journal?limit=100")).await.json().await.unwrap();
    assert_eq!(whole["has_more"], false, "{whole:#}");
    let functions: Vec<_> = whole["items"].as_array().unwrap().iter().map(|call| call["function"].as_str().unwrap()).collect();
    assert_eq!(functions, ["history.page", "results.emit"]);
    let first: Value = get(format!("{base}/journal?limit=1")).await.json().await.unwrap();
    assert_eq!((&first["items"][0], &first["has_more"]), (&whole["items"][0], &json!(true)));
    assert_eq!(first["items"][0]["call"], 1);
    assert!(first["items"][0]["request"]["limit"].is_u64() && first["items"][0]["outcome"]["answer"].is_object(), "{first:#}");
    let cursor = first["next_cursor"].as_str().unwrap();
    let second: Value = get(format!("{base}/journal?limit=1&cursor={cursor}")).await.json().await.unwrap();
    assert_eq!((&second["items"], &second["has_more"]), (&json!([whole["items"][1]]), &json!(false)));

    let saved = get(format!("{base}/recording")).await;
    assert_eq!(saved.headers()["content-type"], "application/json");
    let name = format!("attachment; filename=\"run-{echo}.recording.json\"");
    assert_eq!(saved.headers()["content-disposition"].to_str().unwrap(), name);
    let recording = agent_host_runs::Recording::parse(&saved.text().await.unwrap()).unwrap();
    assert_eq!(serde_json::to_value(recording.calls().unwrap()).unwrap(), whole["items"]);

    // A fork that hears something else after what it has read.
    let fork =
        async |id: &str, body: Value| http.post(host.url(&format!("/api/v1/runs/{id}/fork"))).json(&body).send().await.unwrap();
    let forked = fork(&echo, json!({ "at": 1, "input": "all new", "config": { "prefix": "so: " } })).await;
    assert_eq!(forked.status(), StatusCode::ACCEPTED);
    let location = forked.headers()["location"].to_str().unwrap().to_owned();
    let run: Value = forked.json().await.unwrap();
    assert_eq!(location, format!("/api/v1/runs/{}", run["run_id"].as_str().unwrap()));
    assert_eq!((&run["metadata"]["forked_from"], &run["metadata"]["forked_at"]), (&json!(echo), &json!(1)), "{run:#}");
    let stream = http.get(host.url(&format!("{location}/events"))).header("accept", "text/event-stream").send().await.unwrap();
    let events: Vec<Value> = tokio::time::timeout(
        PATIENCE,
        stream.bytes_stream().eventsource().map(|event| serde_json::from_str(&event.unwrap().data).unwrap()).collect(),
    )
    .await
    .unwrap();
    assert_eq!(events.last().unwrap()["type"], "run.completed", "{events:#?}");
    let answer_body = events.iter().find(|event| event["type"] == "message.completed").unwrap();
    assert!(answer_body.to_string().contains("so: all new"), "{answer_body:#}");
    let shared: Value = get(format!("{location}/journal")).await.json().await.unwrap();
    assert_eq!(shared["items"][0], whole["items"][0], "the first call is the other run's");

    for (body, code) in [
        (json!({ "at": 3 }), "invalid_argument"),
        (json!({ "at": -1 }), "invalid_argument"),
        (json!({}), "invalid_argument"),
        (json!({ "at": 1, "inputs": "x" }), "invalid_argument"),
        (json!({ "at": 1, "config": [] }), "invalid_argument"),
    ] {
        let refused = problem(fork(&echo, body.clone()).await, 400, code).await;
        assert!(refused["field"].is_string(), "{body}: {refused}");
    }
    let refused = problem(fork(&echo, json!({ "at": 3 })).await, 400, "invalid_argument").await;
    assert!(refused["field"] == "at" && refused["detail"].as_str().unwrap().contains("2 calls"), "{refused}");
    let no_json = http.post(host.url(&format!("{base}/fork"))).body("{\"at\":0}").send().await.unwrap();
    problem(no_json, 415, "unsupported_media_type").await;

    for path in ["journal", "recording"] {
        problem(get(format!("/api/v1/runs/{without}/{path}")).await, 409, "no_journal").await;
        problem(get(format!("/api/v1/runs/01890a5d-ac96-774b-bcce-b302099a8057/{path}")).await, 404, "not_found").await;
        problem(get(format!("{base}/{path}?what=1")).await, 400, "invalid_argument").await;
    }
    problem(fork(&without, json!({ "at": 0 })).await, 409, "no_journal").await;
    problem(fork("01890a5d-ac96-774b-bcce-b302099a8057", json!({ "at": 0 })).await, 404, "not_found").await;
    problem(get(format!("{base}/journal?limit=101")).await, 400, "invalid_argument").await;
    let foreign = shared["next_cursor"].as_str().unwrap();
    for cursor in ["nonsense", foreign] {
        problem(get(format!("{base}/journal?cursor={cursor}")).await, 400, "invalid_cursor").await;
    }
}

/// The webhook is never called: the action is denied.
const ASKS: &str = r#"
[[action_hooks]]
actions = ["issue.*"]
url = "http://127.0.0.1:9/"
secret = { env = "NOBODY_SETS_THIS" }

[[bindings]]
id = "asks"
runner = "plugin:test/asks/default"
resources = { platform_api = ["issue.close"] }
"#;

#[tokio::test]
async fn actions_of_a_run_are_listed_shown_and_answered_once() {
    let host = Process::start(&["asks"], ASKS);
    let http = Client::new();
    let get = async |path: String| http.get(host.url(&path)).send().await.unwrap();
    let read = async |path: String| get(path).await.json::<Value>().await.unwrap();
    let asked = async || {
        let waits = async {
            loop {
                let open = read("/api/v1/actions".to_owned()).await;
                match open["items"].as_array().unwrap().first() {
                    Some(first) => return first.clone(),
                    None => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, waits).await.unwrap()
    };
    assert_eq!(read("/api/v1/actions".to_owned()).await["items"], json!([]));
    let text = "act issue.close {\"n\":4} {\"why\":\"done\"} ;; ask confirmation - Sure?";
    let accepted: Value = http.post(host.url("/api/v1/events")).json(&message(text)).send().await.unwrap().json().await.unwrap();
    let run = accepted["runs"][0]["run_id"].as_str().unwrap().to_owned();

    let action = asked().await;
    let id = action["action_id"].as_str().unwrap().to_owned();
    assert!(id.starts_with(&format!("{run}.")) && action["run_id"] == run.as_str(), "{action:#}");
    assert_eq!((&action["status"], &action["request"]["kind"]), (&json!("open"), &json!("platform_action")));
    assert_eq!((&action["request"]["target"], &action["request"]["payload"]), (&json!({ "n": 4 }), &json!({ "why": "done" })));
    assert_eq!(action["request"]["decisions"], json!(["approve", "deny"]));
    assert_eq!(read(format!("/api/v1/actions/{id}")).await, action);
    assert_eq!(read(format!("/api/v1/runs/{run}/actions")).await["items"], json!([action]));

    let say = async |id: &str, body: String| {
        let request = http.post(host.url(&format!("/api/v1/actions/{id}/respond"))).header("content-type", "application/json");
        request.body(body).send().await.unwrap()
    };
    for (body, code) in [
        ("{", "invalid_json"),
        ("{}", "invalid_argument"),
        (r#"{"decision":"maybe"}"#, "invalid_argument"),
        (r#"{"decision":"deny","because":"no"}"#, "invalid_argument"),
        (r#"{"decision":"submit"}"#, "invalid_argument"),
        (r#"{"decision":"repeat"}"#, "invalid_argument"),
        (r#"{"decision":"deny","answer":1}"#, "invalid_argument"),
    ] {
        problem(say(&id, body.to_owned()).await, 400, code).await;
    }
    let long = json!({ "decision": "deny", "reason": "x".repeat(30_000) }).to_string();
    problem(say(&id, long).await, 400, "invalid_argument").await;
    let huge = json!({ "decision": "deny", "reason": "x".repeat(300_000) }).to_string();
    problem(say(&id, huge).await, 413, "payload_too_large").await;
    let respond = host.url(&format!("/api/v1/actions/{id}/respond"));
    problem(http.post(&respond).body(r#"{"decision":"deny"}"#).send().await.unwrap(), 415, "unsupported_media_type").await;
    problem(http.post(format!("{respond}?as=me")).json(&json!({})).send().await.unwrap(), 400, "invalid_argument").await;
    problem(get(format!("/api/v1/actions/{id}/respond")).await, 405, "method_not_allowed").await;
    for unknown in ["7".to_owned(), format!("{run}.99"), "01890a5d-ac96-774b-bcce-b302099a8057.1".to_owned(), "%00".to_owned()] {
        problem(get(format!("/api/v1/actions/{unknown}")).await, 404, "not_found").await;
        problem(say(&unknown, r#"{"decision":"deny"}"#.to_owned()).await, 404, "not_found").await;
    }
    problem(get("/api/v1/runs/01890a5d-ac96-774b-bcce-b302099a8057/actions".to_owned()).await, 404, "not_found").await;
    for query in ["limit=0", "limit=101", "what=1"] {
        problem(get(format!("/api/v1/actions?{query}")).await, 400, "invalid_argument").await;
        problem(get(format!("/api/v1/runs/{run}/actions?{query}")).await, 400, "invalid_argument").await;
    }
    problem(get(format!("/api/v1/actions?cursor={}", "x".repeat(200))).await, 400, "invalid_cursor").await;
    assert_eq!(asked().await, action, "nothing of that was an answer");

    let answer_body: Value = say(&id, r#"{"decision":"deny","reason":"too late"}"#.to_owned()).await.json().await.unwrap();
    assert_eq!(
        (&answer_body["answered"]["decision"], &answer_body["answered"]["reason"]),
        (&json!("deny"), &json!("too late")),
        "{answer_body:#}"
    );
    assert_eq!(answer_body["resolved"]["outcome"], "denied", "{answer_body:#}");
    let second = problem(say(&id, r#"{"decision":"approve"}"#.to_owned()).await, 409, "already_answered").await;
    assert_eq!(second["action"]["answered"], answer_body["answered"], "{second:#}");

    let question = asked().await;
    assert_eq!((&question["request"]["kind"], &question["request"]["title"]), (&json!("question"), &json!("Sure?")));
    let id = question["action_id"].as_str().unwrap();
    let answer_body: Value = say(id, r#"{"decision":"submit"}"#.to_owned()).await.json().await.unwrap();
    assert_eq!(answer_body["answered"]["answer"], true, "{answer_body:#}");
    let events = http.get(host.url(&format!("/api/v1/runs/{run}/events"))).header("accept", "text/event-stream");
    let events = events.send().await.unwrap().bytes_stream().eventsource().map(|event| event.unwrap().event);
    let events: Vec<_> = tokio::time::timeout(PATIENCE, events.collect()).await.unwrap();
    assert_eq!(events.last().unwrap(), "run.completed");
    for kind in ["action.requested", "action.answered", "action.resolved"] {
        assert_eq!(events.iter().filter(|event| *event == kind).count(), 2, "{kind}: {events:?}");
    }
    assert_eq!(read("/api/v1/actions".to_owned()).await["items"], json!([]));
}

#[test]
fn a_configuration_that_cannot_be_says_where_and_what() {
    for (config, says) in [
        ("[server]\nlisten_at = \"x\"\n", "listen_at"),
        ("[[bindings]]\nid = \"a\"\nrunner = \"plugin:a/b/c\"\nmatch = { source = \"(\" }\n", "match.source"),
        ("[limits]\nmax_live_runs = \"many\"\n", "max_live_runs"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("agent-host.toml"), config).unwrap();
        let output = process::command(dir.path()).arg("serve").output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(says), "{config}: {error}");
    }
}
