//! Kills during streams: no event that a client received is missing afterwards.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use agent_host_tests::{Process, process, world::PATIENCE};
use eventsource_stream::Eventsource;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::support::Host;

const CONFIG: &str = r#"
[[bindings]]
id = "hostile"
runner = "plugin:test/hostile/default"
"#;

/// The data that clients received: acknowledged events with their runs, and shown run events.
#[derive(Default)]
struct SeenByClients {
    acknowledged: BTreeMap<String, (String, Vec<String>)>,
    streamed: BTreeMap<(String, u64), Value>,
}

/// The event that a client sends as its `n`th.
fn message(client: usize, n: usize) -> Value {
    json!({
        "event_type": "message.received",
        "conversation": { "conversation_id": format!("c{client}") },
        "input": { "text": format!("emit-n {}", 5 + n % 20) },
    })
}

/// Sends events and follows their runs until the host is gone.
async fn client(url: String, round: usize, client: usize, seen: Arc<Mutex<SeenByClients>>) {
    let http = reqwest::Client::new();
    for n in 0..10_000 {
        let key = format!("{round}-{client}-{n}");
        let event = message(client, n);
        let sent = http.post(format!("{url}/api/v1/events")).header("idempotency-key", &key).json(&event).send().await;
        let Ok(answer) = sent else { return };
        assert_eq!(answer.status(), 202);
        let Ok(answer) = answer.json::<Value>().await else { return };
        let runs: Vec<String> =
            answer["runs"].as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap().to_owned()).collect();
        seen.lock().await.acknowledged.insert(key, (answer["event_id"].as_str().unwrap().to_owned(), runs.clone()));
        for run in runs {
            let stream = http.get(format!("{url}/api/v1/runs/{run}/events")).header("accept", "text/event-stream").send().await;
            let Ok(stream) = stream else { return };
            let mut stream = stream.bytes_stream().eventsource();
            while let Some(Ok(event)) = stream.next().await {
                let event: Value = serde_json::from_str(&event.data).unwrap();
                seen.lock().await.streamed.insert((run.clone(), event["sequence"].as_u64().unwrap()), event);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_events_that_clients_saw_survive_a_kill() {
    let seen = Arc::new(Mutex::new(SeenByClients::default()));
    let mut host = Process::start(&["hostile"], CONFIG);
    for round in 0..12_usize {
        let clients: Vec<_> = (0..4).map(|n| tokio::spawn(client(host.url.clone(), round, n, Arc::clone(&seen)))).collect();
        // Another moment each time; what is checked holds at any.
        tokio::time::sleep(Duration::from_millis(40 + (round as u64 * 137) % 400)).await;
        let dir = host.kill();
        for client in clients {
            tokio::time::timeout(PATIENCE, client).await.expect("a client of a dead host ends").unwrap();
        }
        host = Process::start_in(dir, CONFIG);
    }
    let seen = Arc::into_inner(seen).unwrap().into_inner();
    assert!(seen.acknowledged.len() > 20 && seen.streamed.len() > 100, "too little happened to prove anything");

    let http = reqwest::Client::new();
    let get = async |path: String| {
        let answer = http.get(host.url(&path)).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer.json::<Value>().await.unwrap()
    };
    let mut restarted = 0;
    for (key, (event, runs)) in &seen.acknowledged {
        let kept = get(format!("/api/v1/events/{event}")).await;
        assert!(kept.to_string().contains("emit-n"), "{key}: {kept}");
        for id in runs {
            // A run that waited in line at the crash continues without a client.
            let events = ended(&http, &host.url(&format!("/api/v1/runs/{id}/events"))).await;
            let run = get(format!("/api/v1/runs/{id}")).await;
            restarted += usize::from(run["failure"]["code"] == "host_restarted");
            let sequences: Vec<_> = events.iter().map(|event| event["sequence"].as_u64().unwrap()).collect();
            assert_eq!(sequences, (1..=events.len() as u64).collect::<Vec<_>>(), "{id} has a gap");
            let terminals =
                events.iter().filter(|event| ["run.completed", "run.failed"].contains(&event["type"].as_str().unwrap())).count();
            assert_eq!(terminals, 1, "{id}: {events:#?}");
            for event in &events {
                if let Some(shown) = seen.streamed.get(&(id.clone(), event["sequence"].as_u64().unwrap())) {
                    assert_eq!(shown, event, "a client was shown something else");
                }
            }
            let last = events.len() as u64;
            let beyond = seen.streamed.range((id.clone(), last + 1)..=(id.clone(), u64::MAX)).next();
            assert!(beyond.is_none(), "a client was shown what is not there: {beyond:?}");
        }
    }
    println!(
        "{} events, {} results shown, {restarted} runs ended as host_restarted",
        seen.acknowledged.len(),
        seen.streamed.len()
    );

    // The same key again is the same event, also across a crash.
    let (key, (event, _)) = seen.acknowledged.iter().next().unwrap();
    let [_, client, n] = key.split('-').map(|part| part.parse().unwrap()).collect::<Vec<usize>>().try_into().unwrap();
    let body = message(client, n);
    let again = http.post(host.url("/api/v1/events")).header("idempotency-key", key).json(&body).send().await.unwrap();
    assert_eq!(again.headers()["idempotency-replayed"], "true");
    assert_eq!(&again.json::<Value>().await.unwrap()["event_id"], event.as_str());

    let dir = host.terminate();
    let check = process::command(dir.path()).args(["ledger", "check", "--json"]).output().unwrap();
    assert!(check.status.success(), "{}\n{}", String::from_utf8_lossy(&check.stdout), String::from_utf8_lossy(&check.stderr));
}

/// All events of a run, once it has ended.
async fn ended(http: &reqwest::Client, url: &str) -> Vec<Value> {
    let stream = http.get(url).header("accept", "text/event-stream").send().await.unwrap();
    let events = stream.bytes_stream().eventsource().map(|event| serde_json::from_str(&event.unwrap().data).unwrap());
    tokio::time::timeout(PATIENCE, events.collect()).await.expect("every run comes to its end")
}

/// A process that the killed host was about to start has its files for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_is_left_open_for_a_moment_is_waited_for() {
    let mut host = Host::steps("");
    host.kill();
    let file = std::fs::File::open(host.dir().join("data/ledger/ledger.redb")).unwrap();
    file.lock().unwrap();
    let left = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(600));
        drop(file);
    });
    host.revive();
    left.join().unwrap();
    host.take("say hello").await;
}
