//! Data that outlive a run: state, storage, artifacts, the transcript and the events, each with its readers, its quota, and
//! its rule for concurrent writes.

#![allow(clippy::needless_range_loop, reason = "a place names the step of a script and its outcome together")]

mod artifacts;
mod transcript;

use std::{fs, path::Path};

use agent_host_ledger::{ArtifactRecord, ArtifactScope, UPLOAD, new_artifact_id};
use agent_host_protocol::{event::Envelope, grant::ConversationKey, time};
use agent_host_runs::{Host, HostError};
use agent_host_tests::{
    World,
    world::{EndedRun, PATIENCE},
};
use serde_json::{Value, json};

const BINDINGS: &str = r#"
[[bindings]]
id = "main"
runner = "plugin:test/caller/default"
match = { event_type = "test\\.main" }
resources = { storage = ["plugin", "workspace", "binding"] }

[[bindings]]
id = "other"
runner = "plugin:test/caller/default"
match = { event_type = "test\\.other" }
resources = { storage = ["plugin", "workspace", "binding"] }

[[bindings]]
id = "second"
runner = "plugin:test/caller/second"
match = { event_type = "test\\.second" }
resources = { storage = ["plugin", "workspace", "binding"] }

[[bindings]]
id = "stranger"
runner = "plugin:test/stranger/default"
match = { event_type = "test\\.stranger" }
resources = { storage = ["plugin", "workspace", "binding"] }
"#;

async fn world(limits: &str) -> World {
    World::from_text(&["caller", "stranger"], &format!("[limits]\n{limits}\n{BINDINGS}"), |_| {}).await
}

/// An event for the binding with this name: `more` is the rest of the event, `steps` what its run does.
fn event(binding: &str, mut more: Value, steps: Value) -> Envelope {
    more["event_type"] = format!("test.{binding}").into();
    more["data"] = json!({ "steps": steps });
    serde_json::from_value(more).unwrap()
}

fn in_conversation(id: &str) -> Value {
    json!({ "conversation": { "conversation_id": id } })
}

/// The outcomes of the steps.
#[track_caller]
fn outcomes(ended: &EndedRun) -> Vec<Value> {
    let answer = ended.events.iter().find(|event| event.kind == "test.answer");
    let answer = answer.unwrap_or_else(|| panic!("the script did not come to its end: {ended:#?}"));
    answer.data_value()["outcomes"].as_array().unwrap().clone()
}

async fn play(world: &World, binding: &str, more: Value, steps: Value) -> Vec<Value> {
    outcomes(&world.ended(world.send(event(binding, more, steps)).await).await)
}

#[track_caller]
fn refused(outcome: &Value, code: &str) {
    assert_eq!(outcome["error"], code, "{outcome:#}");
    assert!(!outcome["message"].as_str().unwrap().is_empty(), "{outcome:#}");
}

/// Files of content in the data directory, those that are being written included.
fn files(world: &World) -> Vec<String> {
    fn walk(dir: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).into_iter().flatten().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                walk(&entry.path(), found);
            } else {
                found.push(entry.path().display().to_string());
            }
        }
    }
    let mut found = Vec::new();
    walk(&world.dir.path().join("data/ledger/blobs"), &mut found);
    found
}

const A_DAY: u64 = 24 * 60 * 60 * 1000;

/// Actor and place, with one property changed at a time.
fn somewhere(change: &str) -> Value {
    let is = |what: &str, usual: &'static str, other: &'static str| if change == what { other } else { usual };
    json!({
        "conversation": {
            "conversation_id": is("conversation", "c1", "c2"),
            "thread_id": is("thread", "t1", "t2"),
            "workspace_id": is("workspace", "w1", "w2"),
        },
        "actor": { "actor_type": "user", "actor_id": is("actor", "a1", "a2") },
        "subject": { "subject_type": "ticket", "subject_id": is("subject", "s1", "s2") },
    })
}

const SCOPES: [&str; 5] = ["conversation", "actor", "subject", "runner", "binding"];

#[tokio::test]
async fn state_is_kept_apart_by_all_that_its_scope_names() {
    let world = world("").await;
    let all = |call: &str| -> Value {
        SCOPES.map(|scope| json!({ "call": call, "scope": scope, "key": "k", "value": format!("of {scope}") })).to_vec().into()
    };
    let written = play(&world, "main", somewhere(""), all("state.set")).await;
    assert_eq!(written, vec![Value::Null; 5]);

    // The scopes that stay the same when one property changes.
    for (binding, change, seen) in [
        ("main", "", SCOPES.as_slice()),
        ("main", "conversation", &["actor", "subject", "runner", "binding"]),
        ("main", "thread", &["actor", "subject", "runner", "binding"]),
        ("main", "actor", &["conversation", "subject", "runner", "binding"]),
        ("main", "subject", &["conversation", "actor", "runner", "binding"]),
        ("main", "workspace", &[]),
        ("other", "", &["conversation", "actor", "subject", "runner"]),
        // Another runner of the same plugin, and another plugin, see nothing.
        ("second", "", &[]),
        ("stranger", "", &[]),
    ] {
        let mut steps = all("state.get");
        let steps_list = steps.as_array_mut().unwrap();
        steps_list.push(json!({ "call": "context" }));
        steps_list.push(json!({ "call": "state.list", "scope": "runner" }));
        let found = play(&world, binding, somewhere(change), steps).await;
        for (place, scope) in SCOPES.into_iter().enumerate() {
            let expected = if seen.contains(&scope) { json!(format!("of {scope}")) } else { Value::Null };
            assert_eq!(found[place], expected, "{scope} of binding {binding} with another {change}");
            // The context shows the same.
            assert_eq!(found[5]["state"][scope]["k"], expected, "{scope} of binding {binding} with another {change}");
        }
        let keys = if seen.contains(&"runner") { json!(["k"]) } else { json!([]) };
        assert_eq!(found[6], keys);
    }

    // Without an actor there is nothing of an actor to be had.
    let found = play(&world, "main", json!({}), all("state.get")).await;
    for scope in 0..3 {
        refused(&found[scope], "unauthorized");
    }
    assert_eq!(found[3..], [Value::Null, Value::Null], "no workspace is a workspace of its own");
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn of_two_runs_that_write_at_once_one_wins_and_the_other_is_told() {
    let world = world("").await;
    let actor = || json!({ "actor": { "actor_type": "user", "actor_id": "a" } });
    for (round, scope, first) in [
        (1, "runner", json!({ "call": "state.get", "scope": "runner", "key": "k" })),
        (2, "actor", json!({ "call": "state.get", "scope": "actor", "key": "k" })),
        // A value in the context counts as seen.
        (3, "runner", json!({ "call": "context" })),
        (4, "actor", json!({ "call": "context" })),
    ] {
        for through_emit in [false, true] {
            let name = format!("{round}-{through_emit}");
            let (begun, done) = (format!("begun-{name}"), format!("done-{name}"));
            let write = |value: &str| {
                if through_emit {
                    json!({ "call": "emit", "message": "with it", "state": [{ "scope": scope, "key": "k", "value": value }] })
                } else {
                    json!({ "call": "state.set", "scope": scope, "key": "k", "value": value })
                }
            };
            let get = json!({ "call": "state.get", "scope": scope, "key": "k" });
            // A value to see.
            play(&world, "main", actor(), json!([{ "call": "state.set", "scope": scope, "key": "k", "value": name }])).await;
            let slow = json!([
                first,
                { "call": "storage.set", "area": "plugin", "key": begun },
                { "call": "await", "key": done },
                write("slow"),
                get,
                write("slow again"),
                get,
            ]);
            let quick = json!([
                { "call": "await", "key": begun },
                get,
                write("quick"),
                { "call": "storage.set", "area": "plugin", "key": done },
            ]);
            let (slow, quick) = (world.send(event("main", actor(), slow)).await, world.send(event("main", actor(), quick)).await);
            let (slow, quick) = (world.ended(slow).await, world.ended(quick).await);
            let (slow_did, quick_did) = (outcomes(&slow), outcomes(&quick));
            assert_eq!(quick_did[1], name, "{scope}");
            assert!(quick_did[2].get("error").is_none(), "{}", quick_did[2]);
            refused(&slow_did[3], "conflict");
            assert_eq!(slow_did[3]["retryable"], true, "it is worth another try: {}", slow_did[3]);
            assert_eq!(slow_did[4], "quick", "the value that won is there");
            assert!(slow_did[5].get("error").is_none(), "after reading again: {}", slow_did[5]);
            assert_eq!(slow_did[6], "slow again");
            // A batch is admitted whole, or not at all.
            let completed_messages = slow.events.iter().filter(|event| event.kind == "message.completed").count();
            assert_eq!(completed_messages, usize::from(through_emit));
        }
    }

    // A key that was seen to be absent, and a delete, are compared in the same way.
    let slow = json!([
        { "call": "state.get", "scope": "runner", "key": "new" },
        { "call": "state.get", "scope": "runner", "key": "k" },
        { "call": "storage.set", "area": "plugin", "key": "begun" },
        { "call": "await", "key": "done" },
        { "call": "state.set", "scope": "runner", "key": "new", "value": "slow" },
        { "call": "state.delete", "scope": "runner", "key": "k" },
        // The value was never seen, so it is set without a check.
        { "call": "state.set", "scope": "runner", "key": "unseen", "value": "slow" },
    ]);
    let quick = json!([
        { "call": "await", "key": "begun" },
        { "call": "state.set", "scope": "runner", "key": "new", "value": "quick" },
        { "call": "state.set", "scope": "runner", "key": "k", "value": "quick" },
        { "call": "state.set", "scope": "runner", "key": "unseen", "value": "quick" },
        { "call": "storage.set", "area": "plugin", "key": "done" },
    ]);
    let (slow, quick) = (world.send(event("main", json!({}), slow)).await, world.send(event("main", json!({}), quick)).await);
    let (slow, quick) = (outcomes(&world.ended(slow).await), outcomes(&world.ended(quick).await));
    assert_eq!(quick, vec![Value::Null; 5]);
    refused(&slow[4], "conflict");
    refused(&slow[5], "conflict");
    assert_eq!(slow[6], Value::Null);
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_scope_and_an_area_that_are_full_refuse_more() {
    let limits = "state_scope_bytes = 3000\nstate_scope_keys = 4\nstorage_area_bytes = 100000\nstorage_area_keys = 4\nstate_value_bytes = 2500\nstorage_value_bytes = 90000";
    let world = world(limits).await;
    let set = |key: &str, fill: u64| json!({ "call": "state.set", "scope": "runner", "key": key, "fill": fill });
    let put = |key: &str, fill: u64| json!({ "call": "storage.set", "area": "plugin", "key": key, "fill": fill });
    for (kind, set, large, half, small) in
        [("state", &set as &dyn Fn(&str, u64) -> Value, 2600, 1600, 10), ("storage", &put, 90_001, 60_000, 10)]
    {
        let delete = match kind {
            "state" => json!({ "call": "state.delete", "scope": "runner", "key": "a" }),
            _ => json!({ "call": "storage.delete", "area": "plugin", "key": "a" }),
        };
        let did = play(
            &world,
            "main",
            json!({}),
            json!([
                set("a", large),
                set("a", half),
                set("b", half),
                // A value that grows in its place counts once.
                set("a", half + 1),
                delete,
                set("b", half),
                set("c", small),
                set("d", small),
                set("e", small),
                set("f", small),
            ]),
        )
        .await;
        let expected = [Some(()), None, Some(()), None, None, None, None, None, None, Some(())];
        for (place, (outcome, refusal)) in did.iter().zip(expected).enumerate() {
            match refusal {
                Some(()) => assert_eq!(outcome["error"], "payload_too_large", "{kind}, step {place}: {outcome}"),
                None => assert_eq!(*outcome, Value::Null, "{kind}, step {place}"),
            }
        }
        // Another scope, and another area, has room of its own.
        let elsewhere = match kind {
            "state" => json!({ "call": "state.set", "scope": "binding", "key": "a", "fill": half }),
            _ => json!({ "call": "storage.set", "area": "binding", "key": "a", "fill": half }),
        };
        assert_eq!(play(&world, "main", json!({}), json!([elsewhere])).await, [Value::Null]);
    }

    // A write by a result counts for the same quota.
    let update = json!({ "call": "emit", "message": "no", "state": [{ "scope": "runner", "key": "g", "value": 1 }] });
    let ended = world.ended(world.send(event("main", json!({}), json!([update]))).await).await;
    refused(&outcomes(&ended)[0], "payload_too_large");
    assert!(!ended.kinds().contains(&"message.completed"), "none of the batch is kept");

    // Each of these has room, all together have not.
    let value = "x".repeat(1_200);
    let updates: Vec<_> = ["a", "b", "c"].map(|key| json!({ "scope": "conversation", "key": key, "value": value })).into();
    let steps = json!([{ "call": "emit", "message": "no", "state": updates }, { "call": "emit", "message": "goes on" }]);
    let ended = world.ended(world.send(event("main", in_conversation("full"), steps)).await).await;
    refused(&outcomes(&ended)[0], "payload_too_large");
    assert_eq!(ended.answer_text(), "goes on", "the run is told, and goes on: {ended:#?}");
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn storage_is_shared_by_a_plugin_a_workspace_or_a_binding_and_outlives_the_host() {
    let world = world("").await;
    let areas = ["plugin", "workspace", "binding"];
    let all = |call: &str| -> Value {
        areas.map(|area| json!({ "call": call, "area": area, "key": "k", "text": format!("of {area}") })).to_vec().into()
    };
    let in_workspace = |id: &str| json!({ "conversation": { "workspace_id": id } });
    assert_eq!(play(&world, "main", in_workspace("w1"), all("storage.set")).await, vec![Value::Null; 3]);
    for (binding, workspace, seen) in [
        ("main", "w1", areas.as_slice()),
        ("other", "w1", &["plugin", "workspace"]),
        ("second", "w1", &["plugin", "workspace"]),
        ("stranger", "w1", &["workspace"]),
        ("main", "w2", &[]),
    ] {
        let found = play(&world, binding, in_workspace(workspace), all("storage.get")).await;
        for (place, area) in areas.into_iter().enumerate() {
            let expected = if seen.contains(&area) { json!(format!("of {area}")) } else { Value::Null };
            assert_eq!(found[place]["text"], expected, "{area} for {binding} in {workspace}");
        }
    }

    // Small ones, large ones beside the ledger, and one that is too large.
    let ten_mib: u64 = 10 << 20;
    let put = |key: &str, fill: u64| json!({ "call": "storage.set", "area": "plugin", "key": key, "text": key, "fill": fill });
    let get = |key: &str| json!({ "call": "storage.get", "area": "plugin", "key": key });
    let list = |prefix: &str, limit: u32| json!({ "call": "storage.list", "area": "plugin", "prefix": prefix, "limit": limit });
    let did = play(
        &world,
        "main",
        json!({}),
        json!([
            put("inline", 32 * 1024),
            put("large/one", 40 * 1024),
            put("large/most", ten_mib),
            put("large/over", ten_mib + 1),
            get("inline"),
            get("large/one"),
            get("large/most"),
            get("large/over"),
            list("large/", 10),
            list("", 2),
            list("nothing", 10),
            list("", 0),
            list("", 101),
            put("", 1),
            { "call": "storage.set", "area": "plugin", "key": "a\nb" },
        ]),
    )
    .await;
    assert_eq!(did[..3], [Value::Null, Value::Null, Value::Null]);
    refused(&did[3], "payload_too_large");
    assert_eq!(did[3]["details"]["limit"], ten_mib, "{}", did[3]);
    assert_eq!((&did[4]["bytes"], &did[5]["bytes"], &did[6]["bytes"]), (&json!(32 * 1024), &json!(40 * 1024), &json!(ten_mib)));
    assert_eq!(did[7], Value::Null);
    assert_eq!(did[8], json!(["large/most", "large/one"]));
    assert_eq!(did[9].as_array().unwrap().len(), 2);
    assert_eq!(did[10], json!([]));
    for place in 11..15 {
        refused(&did[place], "invalid_argument");
    }

    // Another host on the same directory.
    let (limits, bindings) = (world.host.config().limits.clone(), world.host.config().bindings.clone());
    let world = world.restarted(limits, bindings).await;
    let after = play(
        &world,
        "main",
        json!({}),
        json!([
            get("inline"),
            get("large/one"),
            get("large/most"),
            { "call": "storage.delete", "area": "plugin", "key": "large/one" },
            { "call": "storage.delete", "area": "plugin", "key": "large/one" },
            get("large/one"),
            list("large/", 10),
            put("large/most", 5),
            get("large/most"),
        ]),
    )
    .await;
    assert_eq!(after[..3], did[4..7]);
    assert_eq!(after[3..6], [Value::Null, Value::Null, Value::Null], "what is not there can be deleted");
    assert_eq!(after[6], json!(["large/most"]));
    assert_eq!(after[8]["text"], "large");
    let left = play(&world, "main", in_workspace("w1"), all("storage.get")).await;
    assert_eq!(left[2]["text"], "of binding");

    // Replaced and deleted values are removed from disk when no journal refers to them.
    assert_eq!(files(&world).len(), 2, "{:?}", files(&world));
    world.host.ledger().collect_garbage(time::now() + A_DAY / 2).await.unwrap();
    assert_eq!(files(&world).len(), 2, "the journals of runs that read them are kept");
    world.host.ledger().prune_journals(time::now() + A_DAY / 2, 1_000).await.unwrap();
    world.host.ledger().collect_garbage(time::now() + A_DAY / 2).await.unwrap();
    assert_eq!(files(&world), Vec::<String>::new());
    world.host.shutdown(PATIENCE).await;
}
