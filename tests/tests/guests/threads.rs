//! Agents and their threads, as the kernel has them: a run that somebody asks an agent for, what a thread has going on, and
//! the end of a thread.

use std::time::{Duration, Instant};

use agent_host_ledger::{EntryWrite, check};
use agent_host_protocol::{EventId, Principal, RunId, context::Conversation, event::Envelope, grant::ConversationKey};
use agent_host_runs::{AcceptedEvent, AgentRun, Host, HostError, Idempotency};
use agent_host_tests::{
    World,
    world::{PATIENCE, in_conversation},
};
use serde_json::{Map, Value, json};

const BINDINGS: &str = r#"
[limits]
park_after_ms = 50

[[bindings]]
id = "main"
runner = "plugin:test/caller/default"
match = { event_type = "nobody\\.sends\\.this" }

[[bindings]]
id = "stateless"
runner = "plugin:test/caller/second"
match = { event_type = "nobody\\.sends\\.this" }
state = { scopes = [] }

[[bindings]]
id = "gone"
runner = "plugin:test/stranger/default"
match = { event_type = "nobody\\.sends\\.this" }

[[bindings]]
id = "family"
runner = "plugin:test/family/default"
match = { event_type = "nobody\\.sends\\.this" }
resources = { runs = ["start", "get", "list", "events", "cancel"] }
"#;

/// A text that must not be found after the deletion.
const SECRET: &str = "thewordthatwassaid";

async fn world() -> World {
    World::from_text(&["caller", "family"], BINDINGS, |_| {}).await
}

fn key(thread: &str) -> ConversationKey {
    ConversationKey::new("", thread, "")
}

fn agent_run(agent: &str, thread: &str, text: &str, steps: Value) -> AgentRun {
    let mut envelope = in_conversation(thread, text);
    envelope.data = Map::from_iter([("steps".to_owned(), steps)]);
    AgentRun { metadata: Map::from_iter([("from".to_owned(), "a client".into())]), ..AgentRun::new(agent, envelope) }
}

fn no_entries(_: EventId, _: &[RunId]) -> Result<Vec<EntryWrite>, HostError> {
    Ok(Vec::new())
}

async fn begin(host: &Host, run: AgentRun) -> Result<AcceptedEvent, HostError> {
    host.begin_agent_run(run, None, &no_entries).await
}

/// The outcomes of a run's steps.
async fn outcomes(world: &World, run: RunId) -> Vec<Value> {
    let ended = world.ended(run).await;
    let answer = ended.events.iter().find(|event| event.kind == "test.answer");
    answer.unwrap_or_else(|| panic!("{ended:#?}")).data_value()["outcomes"].as_array().unwrap().clone()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_of_an_agent_begins_with_its_state_and_entries_in_one_commit() {
    let world = world().await;
    let host = &world.host;
    let agents = host.agents();
    assert_eq!(agents.iter().map(|agent| agent.id.as_str()).collect::<Vec<_>>(), ["main", "stateless", "family"]);
    let main = host.agent("main").unwrap();
    assert_eq!((&main, main.runner_id.as_str()), (&agents[0], "plugin:test/caller/default"));
    assert!(main.client_tools && !main.permissions.state.is_empty() && !main.name.is_empty());
    assert!(host.agent("stateless").unwrap().permissions.state.is_empty());
    let unknown = |error: HostError| match error {
        HostError::NotFound(message) => message,
        other => panic!("{other:?}"),
    };
    let message = unknown(host.agent("nobody").unwrap_err());
    assert!(message.contains("\"main\"") && message.contains("\"family\"") && !message.contains("gone"), "{message}");
    let message = unknown(begin(host, agent_run("gone", "t", "hello", json!([]))).await.unwrap_err());
    assert!(message.contains("plugin:test/stranger/default"), "{message}");

    let steps = json!([{ "call": "context" }, { "call": "state.get", "scope": "conversation", "key": "k" }]);
    let state = json!({ "k": { "a": [1] }, "other": null }).as_object().unwrap().clone();
    let run = AgentRun { state, ..agent_run("main", "t", "hello", steps.clone()) };
    let idempotency = || Some(Idempotency { key: "t r1".into(), body_hash: [1; 32] });
    let entries = |event: EventId, runs: &[RunId]| {
        Ok(vec![EntryWrite::put(format!("test/{}", runs[0]), &json!({ "event_id": event, "runs": runs.len() }))?])
    };
    let accepted = host.begin_agent_run(run.clone(), idempotency(), &entries).await.unwrap();
    let [id] = accepted.runs[..] else { panic!("{accepted:?}") };
    let entry = host.ledger().entry(&format!("test/{id}")).unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(entry.get()).unwrap(), json!({ "event_id": accepted.event_id, "runs": 1 }));
    let outcomes_of = outcomes(&world, id).await;
    assert_eq!(outcomes_of[0]["state"]["conversation"], json!({ "k": { "a": [1] }, "other": null }));
    assert_eq!(outcomes_of[1], json!({ "a": [1] }));
    let record = host.wait(id, PATIENCE).await.unwrap();
    assert_eq!((record.binding_id.as_str(), &record.metadata["from"]), ("main", &json!("a client")));

    // Repeated, nothing is written: neither state nor entries.
    let again = AgentRun { state: Map::from_iter([("k".to_owned(), "changed".into())]), ..run.clone() };
    let never = |_: EventId, runs: &[RunId]| Ok(vec![EntryWrite::put(format!("test/{}", runs[0]), &"again")?]);
    let repeated = host.begin_agent_run(again, idempotency(), &never).await.unwrap();
    assert_eq!((repeated.repeated, repeated.runs), (true, vec![id]));
    assert_eq!(host.ledger().entries("test/", None, 10).unwrap().len(), 1);
    let scope = key("t").state_key(&main.runner_id);
    assert_eq!(host.ledger().state_get(&scope, "k").unwrap(), Some(json!({ "a": [1] })));

    // A run that is not granted that state has none of it.
    let state = Map::from_iter([("k".to_owned(), "kept out".into())]);
    let bare = begin(host, AgentRun { state, ..agent_run("stateless", "t", "hello", steps) }).await.unwrap();
    let outcomes_of = outcomes(&world, bare.runs[0]).await;
    assert_eq!((&outcomes_of[0]["state"]["conversation"], &outcomes_of[1]["error"]), (&json!({}), &json!("unauthorized")));

    let before = host.ledger().conversation_runs(&key("t")).unwrap().len();
    for wrong in [json!({ "": 1 }), json!({ "a\u{1}": 1 }), json!({ "k": "x".repeat(300_000) })] {
        let refused =
            begin(host, AgentRun { state: wrong.as_object().unwrap().clone(), ..agent_run("main", "t", "x", json!([])) }).await;
        assert!(matches!(refused, Err(HostError::Invalid(_))), "{refused:?}");
    }
    let metadata = Map::from_iter([("m".to_owned(), "x".repeat(20_000).into())]);
    let refused = begin(host, AgentRun { metadata, ..agent_run("main", "t", "x", json!([])) }).await;
    assert!(matches!(refused, Err(HostError::Invalid(_))), "{refused:?}");
    assert_eq!(host.ledger().conversation_runs(&key("t")).unwrap().len(), before);

    // A message without a run joins the transcript.
    let noted = host.note_message(in_conversation("t", "for the record"), None, &no_entries).await.unwrap();
    assert!(noted.runs.is_empty());
    let nowhere = host.note_message(Envelope::message("x", "api"), None, &no_entries).await;
    assert!(matches!(nowhere, Err(HostError::Invalid(_))), "{nowhere:?}");
    let items = host.ledger().transcript_range(&key("t"), 0, 100).unwrap();
    assert!(items.iter().any(|item| item.event_id == noted.event_id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thread_says_who_has_its_turn_and_who_waits_also_where_that_is_parked() {
    let world = world().await;
    let host = &world.host;
    let active = || host.active_runs(&key("t")).unwrap().iter().map(|run| run.run_id).collect::<Vec<_>>();
    assert!(active().is_empty());
    let sleeper = |thread: &str| agent_run("family", thread, "sleep 600000", json!([]));
    let first = begin(host, sleeper("t")).await.unwrap().runs[0];
    assert_eq!(active(), [first]);
    until("the first is parked", || host.ledger().parked_count() == 1).await;
    assert_eq!(active(), [first]);
    let second = begin(host, agent_run("main", "t", "second", json!([]))).await.unwrap().runs[0];
    let third = begin(host, agent_run("stateless", "t", "third", json!([]))).await.unwrap().runs[0];
    let elsewhere = begin(host, sleeper("u")).await.unwrap().runs[0];
    assert_eq!(active(), [first, second, third]);
    let refused = host.forget_conversation(&key("t")).await;
    assert!(matches!(&refused, Err(HostError::Conflict(message)) if message.contains(&first.to_string())), "{refused:?}");
    host.cancel(first, "enough".into()).await.unwrap();
    world.ended(third).await;
    until("the thread is at rest", || active().is_empty()).await;
    assert_eq!(host.active_runs(&key("u")).unwrap()[0].run_id, elsewhere);
}

fn export(world: &World) -> String {
    let mut out = Vec::new();
    world.host.ledger().export(&mut out, |_| ()).unwrap();
    String::from_utf8(out).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thread_that_is_forgotten_is_found_nowhere() {
    let world = world().await;
    let host = &world.host;
    let steps = json!([
        { "call": "state.set", "scope": "conversation", "key": "k", "value": SECRET },
        { "call": "artifacts.create", "media_type": "text/plain", "text": SECRET },
        { "call": "history.search", "query": SECRET },
        { "call": "emit", "message": SECRET },
        { "call": "log", "text": SECRET },
    ]);
    let first = begin(host, agent_run("main", "t", SECRET, steps)).await.unwrap().runs[0];
    let found = outcomes(&world, first).await;
    assert!(found[2].to_string().contains(SECRET), "the index has it: {found:?}");
    let parent =
        in_conversation("t", &format!("start default [say {SECRET}] {{\"objective\":\"{SECRET}\"}}; all 60000; say {SECRET}"));
    let parent = AgentRun { envelope: parent, ..agent_run("family", "t", "", json!([])) };
    let parent = begin(host, parent).await.unwrap().runs[0];
    let ended = world.ended(parent).await;
    assert!(ended.kinds().contains(&"run.child.started"), "{ended:#?}");
    host.note_message(in_conversation("t", SECRET), None, &no_entries).await.unwrap();
    let other = begin(host, agent_run("main", "u", "elsewhere", json!([]))).await.unwrap().runs[0];
    world.ended(other).await;
    let texts = async || world.events(other).await.unwrap().iter().map(|event| event.data.get().to_owned()).collect::<Vec<_>>();
    let before = texts().await;
    assert!(export(&world).matches(SECRET).count() > 8);

    let log = |run| host.run_log(run, None, 100).unwrap().items.into_iter().map(|line| line.text).collect::<Vec<_>>();
    assert!(log(first).iter().any(|line| line.contains(SECRET)));

    let done = host.forget_conversation(&key("t")).await.unwrap();
    assert!(log(first).is_empty());
    assert!(done.items >= 3 && done.values == 1 && done.artifacts == 1, "{done:?}");
    assert_eq!((done.runs, done.events), (3, 4), "the child and its event are among them");
    let again = host.forget_conversation(&key("t")).await.unwrap();
    assert_eq!((again.items, again.values, again.runs, again.events), (0, 0, 0, 0));
    assert_eq!(host.forget_conversation(&key("never")).await.unwrap(), agent_host_runs::DeletedData::default());
    let export = export(&world);
    let left: Vec<_> = export.lines().filter(|line| line.contains(SECRET)).collect();
    assert!(left.is_empty(), "{left:#?}");

    // The record of a run remains, with its end.
    let run = host.wait(first, PATIENCE).await.unwrap();
    assert_eq!(Value::from(run.metadata.clone()), json!({ "forgotten": true }));
    let events = world.events(first).await.unwrap();
    assert_eq!(events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["run.completed"]);
    let retried = host.retry_run(first, &Principal::loopback(), None).await;
    assert!(matches!(retried, Err(HostError::Conflict(_))), "{retried:?}");
    assert_eq!(texts().await, before);

    // The thread can be begun anew, and knows nothing.
    let steps = json!([
        { "call": "context" },
        { "call": "history.page" },
        { "call": "history.search", "query": SECRET },
        { "call": "state.get", "scope": "conversation", "key": "k" },
    ]);
    let anew = begin(host, agent_run("main", "t", "anew", steps)).await.unwrap().runs[0];
    let seen = outcomes(&world, anew).await;
    assert_eq!(seen[0]["state"]["conversation"], json!({}));
    assert_eq!((&seen[2], &seen[3]), (&json!([]), &Value::Null));
    assert!(!Value::from(seen).to_string().contains(SECRET));
    let items = host.ledger().transcript_range(&key("t"), 0, 10).unwrap();
    assert!(items.first().is_some_and(|item| item.seq > done.items), "numbers go on: {items:#?}");

    let World { host, dir } = world;
    host.shutdown(PATIENCE).await;
    drop(host);
    let report = check(dir.path().join("data/ledger"), |_| ()).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
}

#[test]
fn a_thread_is_a_conversation_of_a_workspace() {
    let of = |workspace: Option<&str>| {
        let conversation = Conversation {
            conversation_id: Some("t".into()),
            workspace_id: workspace.map(str::to_owned),
            ..Conversation::default()
        };
        ConversationKey::of(&conversation).unwrap()
    };
    let runner = "plugin:test/caller/default".parse().unwrap();
    assert_ne!(of(None).state_key(&runner), of(Some("w")).state_key(&runner));
    assert_eq!(of(None), key("t"));
}
