//! What outlives a run: state, storage, artifacts, the transcript and the events, each with who may see it, how much
//! of it there may be, and what becomes of two who write at once.

#![allow(clippy::needless_range_loop, reason = "a place names the step of a script and its outcome together")]

use std::{fs, path::Path};

use agent_host_ledger::{ArtifactRecord, ArtifactScope, UPLOAD, new_artifact_id};
use agent_host_protocol::{event::Envelope, grant::ConversationKey, time};
use agent_host_runs::{Host, HostError};
use agent_host_tests::{
    World,
    world::{Ended, PATIENCE},
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
    World::told(&["caller", "stranger"], &format!("[limits]\n{limits}\n{BINDINGS}"), |_| {}).await
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

/// What came of each step.
#[track_caller]
fn outcomes(ended: &Ended) -> Vec<Value> {
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

/// Who and where, with one thing changed at a time.
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

    // Which scopes are still the same ones when one thing is another.
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
        // What the context shows counts as seen.
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
            // There is something to be seen.
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
            let said = slow.events.iter().filter(|event| event.kind == "message.completed").count();
            assert_eq!(said, usize::from(through_emit));
        }
    }

    // A key that was seen to be absent, and a delete, are held against the same.
    let slow = json!([
        { "call": "state.get", "scope": "runner", "key": "new" },
        { "call": "state.get", "scope": "runner", "key": "k" },
        { "call": "storage.set", "area": "plugin", "key": "begun" },
        { "call": "await", "key": "done" },
        { "call": "state.set", "scope": "runner", "key": "new", "value": "slow" },
        { "call": "state.delete", "scope": "runner", "key": "k" },
        // Never seen, so it is simply set.
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

    // What a result writes is counted in the same place.
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
    assert_eq!(ended.said(), "goes on", "the run is told, and goes on: {ended:#?}");
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

    // What was replaced and deleted leaves the disk, once no journal needs it any more.
    assert_eq!(files(&world).len(), 2, "{:?}", files(&world));
    world.host.ledger().collect_garbage(time::now() + A_DAY / 2).await.unwrap();
    assert_eq!(files(&world).len(), 2, "the journals of runs that read them are kept");
    world.host.ledger().prune_journals(time::now() + A_DAY / 2, 1_000).await.unwrap();
    world.host.ledger().collect_garbage(time::now() + A_DAY / 2).await.unwrap();
    assert_eq!(files(&world), Vec::<String>::new());
    world.host.shutdown(PATIENCE).await;
}

const PNG_TEXT: &str = "this is not a picture";

#[tokio::test]
async fn an_artifact_is_written_in_pieces_and_read_in_ranges() {
    let world = world("artifact_bytes = 3000000\nrun_artifact_bytes = 4000000").await;
    let id = "$it";
    let ended = world.ended(world.send(event("main", in_conversation("c"), json!([
        { "call": "artifacts.create", "media_type": "text/plain", "name": "a b.txt", "text": "0123456789", "fill": 1_500_000, "pieces": 400_000, "as": "it" },
        { "call": "artifacts.metadata", "id": id },
        { "call": "artifacts.read", "id": id, "offset": 1_000_003, "length": 4 },
        { "call": "artifacts.read", "id": id, "offset": 1_499_998, "length": 100 },
        { "call": "artifacts.read", "id": id, "offset": 99_000_000, "length": 100 },
        { "call": "artifacts.read", "id": id, "offset": u64::MAX, "length": 100 },
        { "call": "artifacts.read", "id": id, "offset": 0, "length": 2_000_000 },
        { "call": "artifacts.read_all", "id": id, "max": 70_000 },
        { "call": "artifacts.read_all", "id": id, "max": u32::MAX },
        { "call": "artifacts.read_all", "id": id, "max": 0 },
        // A type that the content is not, and things that are no type or name.
        { "call": "artifacts.create", "media_type": "image/png", "text": PNG_TEXT },
        { "call": "artifacts.create", "media_type": "image", "text": "x" },
        { "call": "artifacts.create", "media_type": "text/plain", "name": "a\u{0}b", "text": "x" },
        { "call": "artifacts.create", "media_type": "text/plain", "text": "x", "drop": true },
        // Larger than one may be; and then, all together, more than a run may write.
        { "call": "artifacts.create", "media_type": "text/plain", "fill": 3_000_001, "pieces": 1_000_000, "text": "too large" },
    ]))).await).await;
    let did = outcomes(&ended);
    assert_eq!((&did[0]["size"], &did[0]["name"]), (&json!(1_500_000), &json!("a b.txt")), "{}", did[0]);
    assert_eq!(did[0]["sha256"].as_str().unwrap().len(), 64);
    assert_eq!(did[1]["artifact"], did[0]);
    assert_eq!(did[2]["text"], "3456");
    assert_eq!(did[3]["text"], "89");
    assert_eq!((&did[4]["bytes"], &did[5]["bytes"]), (&json!(0), &json!(0)), "behind the end there is nothing");
    refused(&did[6], "payload_too_large");
    assert_eq!(did[7]["bytes"], 1_500_000);
    assert_eq!(did[7], did[8], "however it is cut");
    refused(&did[9], "invalid_argument");
    for place in 10..13 {
        refused(&did[place], "invalid_argument");
    }
    assert!(did[10]["message"].as_str().unwrap().contains("image/png"), "{}", did[10]);
    assert_eq!(did[13], Value::Null);
    refused(&did[14], "payload_too_large");
    assert_eq!(ended.kinds().iter().filter(|kind| **kind == "artifact.created").count(), 1, "{:?}", ended.kinds());

    // A run has a measure of its own, and the next run begins anew.
    let steps = json!([
        { "call": "artifacts.create", "media_type": "text/plain", "fill": 2_500_000, "pieces": 1_000_000, "text": "first" },
        { "call": "artifacts.create", "media_type": "text/plain", "fill": 2_500_000, "pieces": 1_000_000, "text": "second" },
    ]);
    for _ in 0..2 {
        let did = play(&world, "main", in_conversation("c"), steps.clone()).await;
        assert_eq!(did[0]["size"], 2_500_000);
        refused(&did[1], "payload_too_large");
    }

    // What was not finished, or refused, leaves nothing behind.
    world.host.ledger().collect_garbage(time::now() + A_DAY / 2).await.unwrap();
    assert_eq!(files(&world).len(), 2, "two contents, the second of them twice: {:?}", files(&world));
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn an_artifact_is_seen_where_it_belongs_and_nowhere_else() {
    let world = world("").await;
    let create = json!([{ "call": "artifacts.create", "media_type": "text/plain", "text": "hello", "as": "it" }]);
    let created = play(&world, "main", in_conversation("c"), create.clone()).await;
    let id = created[0]["artifact_id"].clone();
    let look = |id: &Value| {
        json!([
            { "call": "artifacts.metadata", "id": id },
            { "call": "artifacts.read", "id": id },
            { "call": "artifacts.read_all", "id": id },
            { "call": "emit", "artifact": id },
        ])
    };
    // A later run of the conversation, whatever its binding.
    for binding in ["main", "other", "stranger"] {
        let seen = play(&world, binding, in_conversation("c"), look(&id)).await;
        assert_eq!((&seen[1]["text"], &seen[2]["text"]), (&json!("hello"), &json!("hello")), "{binding}: {seen:?}");
        assert!(seen[3].is_u64(), "{}", seen[3]);
    }
    for elsewhere in [
        in_conversation("d"),
        json!({}),
        json!({ "conversation": { "conversation_id": "c", "thread_id": "t" } }),
        json!({ "conversation": { "conversation_id": "c", "workspace_id": "w" } }),
    ] {
        for outcome in play(&world, "main", elsewhere.clone(), look(&id)).await {
            refused(&outcome, "not_found");
        }
        // Nor can an event bring it there.
        let mut more = elsewhere;
        more["input"] = json!({ "attachments": [{ "artifact_id": id, "media_type": "text/plain" }] });
        let error = world.host.accept(event("main", more, json!([])), None).await.unwrap_err();
        assert!(matches!(&error, HostError::Invalid(message) if message.contains("upload it")), "{error}");
    }

    // Without a conversation it belongs to the binding.
    let created = play(&world, "main", json!({}), create).await;
    let id = created[0]["artifact_id"].clone();
    assert_eq!(play(&world, "main", json!({}), look(&id)).await[1]["text"], "hello");
    for binding in ["other", "second", "stranger"] {
        for outcome in play(&world, binding, json!({}), look(&id)).await {
            refused(&outcome, "not_found");
        }
    }
    for outcome in play(&world, "main", in_conversation("c"), look(&id)).await {
        refused(&outcome, "not_found");
    }

    // What never was, and what cannot be, look the same.
    for id in ["01900000-0000-7000-8000-000000000000", "../../etc/passwd", "", "\u{0}"] {
        for outcome in play(&world, "main", in_conversation("c"), look(&id.into())).await {
            refused(&outcome, "not_found");
        }
    }
    world.host.shutdown(PATIENCE).await;
}

/// As an upload would add it.
async fn upload(host: &Host, conversation: Option<&str>, bytes: &[u8], expires_at: Option<u64>) -> String {
    let mut writer = host.ledger().blob_writer(1 << 20).unwrap();
    writer.write(bytes).unwrap();
    let blob = writer.finish().unwrap();
    let conversation = conversation.map(|id| ConversationKey { conversation: id.to_owned(), ..ConversationKey::default() });
    let record = ArtifactRecord {
        artifact_id: new_artifact_id(),
        sha256: blob.sha256.clone(),
        size: blob.size,
        media_type: "text/plain".to_owned(),
        name: Some("upload.txt".to_owned()),
        created_at: time::now(),
        expires_at,
        scope: ArtifactScope { conversation, ..ArtifactScope::default() },
        source: UPLOAD.to_owned(),
    };
    host.ledger().add_artifact(record.clone()).await.unwrap();
    record.artifact_id
}

#[tokio::test]
async fn an_event_brings_what_is_attached_to_it_and_what_has_expired_is_gone() {
    let world = world("").await;
    let attached = |id: &str| json!([{ "artifact_id": id, "media_type": "image/lie", "name": "as sent.txt", "size": 1 }]);
    let look = |id: &str| json!([{ "call": "context" }, { "call": "artifacts.read_all", "id": id }]);

    // In a conversation, and in none.
    for conversation in [Some("c"), None] {
        let id = upload(&world.host, None, b"attached", None).await;
        let mut more = conversation.map_or_else(|| json!({}), in_conversation);
        more["input"] = json!({ "text": "see this", "attachments": attached(&id) });
        let seen = play(&world, "main", more, look(&id)).await;
        assert_eq!(seen[1]["text"], "attached");
        // What the host knows of it counts, not what the sender says; but for the name.
        let shown = &seen[0]["attachments"][0];
        assert_eq!((&shown["media_type"], &shown["size"]), (&json!("text/plain"), &json!(8)), "{shown}");
        assert_eq!(shown["name"], "as sent.txt");
        assert_eq!(seen[0]["artifacts"][0]["artifact_id"], id.as_str());
        // The next event does not name it.
        let seen = play(&world, "main", in_conversation("c"), look(&id)).await;
        refused(&seen[1], "not_found");
    }

    // An event that names nothing that is there makes no run.
    for id in ["01900000-0000-7000-8000-000000000000", "", "../x"] {
        let more = json!({ "input": { "text": "see this", "attachments": attached(id) } });
        let error = world.host.accept(event("main", more, json!([])), None).await.unwrap_err();
        assert!(matches!(&error, HostError::Invalid(message) if message.contains("POST /api/v1/artifacts")), "{error}");
    }

    // Its time passes while the run could still see it.
    let soon = time::now() + 300;
    let id = upload(&world.host, Some("c"), b"short-lived", Some(soon)).await;
    let seen = play(
        &world,
        "main",
        in_conversation("c"),
        json!([{ "call": "artifacts.metadata", "id": id }, { "call": "sleep", "ms": 400 }, { "call": "artifacts.metadata", "id": id }]),
    )
    .await;
    // On a machine that stands still for so long it has expired before it was looked at.
    if seen[0].get("error").is_none() {
        assert_eq!(seen[0]["times"]["expires_at"], soon);
    }
    refused(&seen[2], "not_found");
    let mut more = in_conversation("c");
    more["input"] = json!({ "attachments": attached(&id) });
    assert!(world.host.accept(event("main", more, json!([])), None).await.is_err());
    world.host.ledger().collect_garbage(time::now()).await.unwrap();
    assert!(world.host.ledger().artifact(&id).unwrap().is_none());
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_message_names_artifacts_that_are_there_and_the_transcript_shows_them() {
    let world = world("").await;
    let steps = json!([
        { "call": "emit", "message": "look", "artifact": "01900000-0000-7000-8000-000000000000" },
        { "call": "artifacts.create", "media_type": "text/plain", "name": "n.txt", "text": "content", "as": "it" },
        { "call": "emit", "message": "look", "artifact": "$it" },
    ]);
    let ended = world.ended(world.send(event("main", in_conversation("c"), steps)).await).await;
    let did = outcomes(&ended);
    refused(&did[0], "not_found");
    let said = ended.events.iter().find(|event| event.kind == "message.completed").unwrap().data_value();
    assert!(said.to_string().contains("text/plain") && !said.to_string().contains("image/lie"), "{said}");

    let pages = json!([{ "call": "history.page", "artifacts": true }, { "call": "history.page" }]);
    let pages = play(&world, "main", in_conversation("c"), pages).await;
    let item = &pages[0]["items"][0];
    assert_eq!(pages[0]["items"].as_array().unwrap().len(), 1, "what was refused is nowhere: {}", pages[0]);
    assert_eq!(item["artifacts"], json!([did[1]]), "the host says what it is, not the runner");
    assert_eq!(pages[1]["items"][0]["artifacts"], json!([]));
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn the_transcript_is_paged_in_both_directions() {
    let world = world("").await;
    // Messages that no binding answers are in the transcript all the same.
    for n in 1..=7 {
        let mut said = in_conversation("c");
        said["event_type"] = "message.received".into();
        said["input"] = json!({ "text": format!("m{n}") });
        assert!(world.host.accept(serde_json::from_value(said).unwrap(), None).await.unwrap().runs.is_empty());
    }
    let texts = |page: &Value| -> Vec<String> {
        page["items"].as_array().unwrap().iter().map(|item| item["text"].as_str().unwrap().to_owned()).collect()
    };
    let page = |more: Value| {
        let mut page = json!({ "call": "history.page", "limit": 3 });
        page.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        page
    };
    let did = play(
        &world,
        "main",
        in_conversation("c"),
        json!([
            page(json!({ "as": "b1" })),
            page(json!({ "as": "b2", "before": "$b1" })),
            page(json!({ "before": "$b2" })),
            page(json!({ "as": "f1", "direction": "forward" })),
            page(json!({ "as": "f2", "direction": "forward", "after": "$f1" })),
            page(json!({ "direction": "forward", "after": "$f2" })),
            page(json!({ "limit": 0 })),
            page(json!({ "limit": 101 })),
            page(json!({ "before": "nonsense" })),
            page(json!({ "conversation": "d" })),
        ]),
    )
    .await;
    let walk: Vec<_> = did[..3].iter().flat_map(texts).collect();
    // Whatever the order within a page is, it is the same for both directions or it is the way of the walk.
    let mut sorted = walk.clone();
    sorted.sort();
    assert_eq!(sorted, ["m1", "m2", "m3", "m4", "m5", "m6", "m7"]);
    let mut newest = texts(&did[0]);
    newest.sort();
    assert_eq!(newest, ["m5", "m6", "m7"]);
    assert_eq!(did[3..6].iter().flat_map(texts).collect::<Vec<_>>(), sorted);
    let more: Vec<_> = did[..6].iter().map(|page| page["has_more"].as_bool().unwrap()).collect();
    assert_eq!(more, [true, true, false, true, true, false]);
    for place in 6..9 {
        refused(&did[place], "invalid_argument");
    }
    refused(&did[9], "unauthorized");

    // A cursor is of its own conversation.
    let cursor = did[0]["next"].clone();
    let elsewhere = play(&world, "main", in_conversation("d"), json!([page(json!({ "before": cursor }))])).await;
    refused(&elsewhere[0], "invalid_argument");
    let nowhere = play(&world, "main", json!({}), json!([page(json!({})), { "call": "history.search", "query": "m1" }])).await;
    nowhere.iter().for_each(|outcome| refused(outcome, "unauthorized"));
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn the_transcript_is_searched_in_every_language() {
    let world = world("").await;
    let say = async |conversation: &str, kind: &str, text: &str| {
        let mut said = in_conversation(conversation);
        said["event_type"] = kind.into();
        said["input"] = json!({ "text": text });
        world.host.accept(serde_json::from_value(said).unwrap(), None).await.unwrap();
    };
    let texts = [
        ("message.received", "今天北京的天气非常好,我们去公园散步"),
        ("message.received", "明日は東京で会議があります"),
        ("message.edited", "오늘 서울에서 커피를 마셨습니다"),
        ("message.received", "The invoices were paid on Thursday"),
        ("message.received", "Nothing of interest"),
    ];
    for (kind, text) in texts {
        say("c", kind, text).await;
    }
    say("d", "message.received", "Their invoice is in another conversation").await;
    play(&world, "main", in_conversation("c"), json!([{ "call": "emit", "message": "I have seen the invoice" }])).await;

    let search = |query: &str| json!({ "call": "history.search", "query": query });
    let filtered = |query: &str, filters: Value| json!({ "call": "history.search", "query": query, "filters": filters });
    let top = |top_k: u32| json!({ "call": "history.search", "query": "invoice", "top_k": top_k });
    let did = play(
        &world,
        "main",
        in_conversation("c"),
        json!([
            search("天气"),
            search("公园"),
            search("会議"),
            search("커피"),
            search("invoice"),
            search("absent"),
            filtered("invoice", json!({ "roles": ["assistant"] })),
            filtered("invoice", json!({ "roles": ["user"] })),
            filtered("서울", json!({ "event_types": ["message.received"] })),
            filtered("서울", json!({ "event_types": ["message.edited"] })),
            filtered("invoice", json!({ "since": time::now() + A_DAY })),
            filtered("invoice", json!({ "until": time::now() - A_DAY })),
            filtered("invoice", json!({ "since": time::now() - A_DAY, "until": time::now() + A_DAY })),
            filtered("invoice", json!({ "conversation_id": "c" })),
            top(1),
            top(50),
            top(0),
            top(51),
            filtered("invoice", json!({ "conversation_id": "d" })),
            filtered("invoice", json!({ "role": ["user"] })),
            filtered("invoice", json!(["user"])),
            { "call": "history.search", "query": "invoice", "filters_text": "{" },
            // What a query language would stumble over is only words.
            search("\"invoice AND (NOT"),
        ]),
    )
    .await;
    let found = |place: usize| -> Vec<&str> {
        let items = did[place].as_array().unwrap_or_else(|| panic!("{place}: {}", did[place]));
        items.iter().map(|item| item["text"].as_str().unwrap()).collect()
    };
    assert_eq!((found(0), found(1)), (vec![texts[0].1], vec![texts[0].1]));
    assert_eq!((found(2), found(3)), (vec![texts[1].1], vec![texts[2].1]));
    for place in [4, 12, 13, 15] {
        let mut found = found(place);
        found.sort_unstable();
        assert_eq!(found, ["I have seen the invoice", texts[3].1], "of its own conversation only");
    }
    assert!(found(5).is_empty());
    assert_eq!(found(6), ["I have seen the invoice"]);
    assert_eq!(found(7), [texts[3].1]);
    assert!(found(8).is_empty());
    assert_eq!(found(9), [texts[2].1]);
    assert!(found(10).is_empty() && found(11).is_empty());
    assert_eq!(found(14).len(), 1);
    refused(&did[16], "invalid_argument");
    refused(&did[17], "invalid_argument");
    refused(&did[18], "unauthorized");
    for place in 19..22 {
        refused(&did[place], "invalid_argument");
    }
    assert!(!found(22).is_empty());

    // What is said later is found as well, after a restart too.
    say("c", "message.received", "a later thought about kangaroos").await;
    let later = play(&world, "main", in_conversation("c"), json!([search("kangaroo")])).await;
    assert_eq!(later[0][0]["text"], "a later thought about kangaroos");
    let (limits, bindings) = (world.host.config().limits.clone(), world.host.config().bindings.clone());
    let world = world.restarted(limits, bindings).await;
    let later = play(&world, "main", in_conversation("c"), json!([search("kangaroo"), search("天气")])).await;
    assert_eq!((&later[0][0]["text"], &later[1][0]["text"]), (&json!("a later thought about kangaroos"), &json!(texts[0].1)));
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn the_events_of_a_conversation_are_paged_by_type_and_never_show_the_adapter() {
    let world = world("").await;
    let mut ids = Vec::new();
    for n in 0..6 {
        let mut said = in_conversation("c");
        said["event_type"] = if n % 2 == 0 { "message.received" } else { "reaction.added" }.into();
        said["input"] = json!({ "text": format!("m{n}") });
        said["adapter"] = json!({ "raw": "ADAPTER-PAYLOAD" });
        ids.push(world.host.accept(serde_json::from_value(said).unwrap(), None).await.unwrap().event_id.to_string());
    }
    let mut elsewhere = in_conversation("d");
    elsewhere["event_type"] = "message.received".into();
    let foreign = world.host.accept(serde_json::from_value(elsewhere).unwrap(), None).await.unwrap().event_id.to_string();
    let mut more = in_conversation("c");
    more["adapter"] = json!({ "raw": "ADAPTER-PAYLOAD" });
    let did = play(
        &world,
        "main",
        more,
        json!([
            { "call": "events.page", "limit": 4, "as": "one" },
            { "call": "events.page", "limit": 4, "before": "$one" },
            { "call": "events.page", "types": ["reaction.added"], "limit": 2, "as": "reactions" },
            { "call": "events.page", "types": ["reaction.added"], "limit": 2, "before": "$reactions" },
            { "call": "events.page", "types": ["never.was"] },
            { "call": "events.get", "id": ids[0] },
            { "call": "context", "as": "context" },
            { "call": "events.get", "id": foreign },
            { "call": "events.get", "id": "not an id" },
            { "call": "events.page", "limit": 0 },
            { "call": "events.page", "limit": 101 },
            { "call": "events.page", "before": "nonsense" },
            { "call": "events.page", "types": vec!["a.b"; 51] },
        ]),
    )
    .await;
    let of = |page: &Value| -> Vec<String> {
        page["items"].as_array().unwrap().iter().map(|event| event["event_id"].as_str().unwrap().to_owned()).collect()
    };
    let all: Vec<_> = did[..2].iter().flat_map(of).collect();
    assert_eq!(all.len(), 7, "the six, and the event of this run: {all:?}");
    assert!(ids.iter().all(|id| all.contains(id)) && !all.contains(&foreign));
    let reactions: Vec<_> = did[2..4].iter().flat_map(of).collect();
    assert_eq!(reactions, [ids[5].clone(), ids[3].clone(), ids[1].clone()]);
    assert_eq!((&did[2]["has_more"], &did[3]["has_more"]), (&json!(true), &json!(false)));
    assert_eq!(did[4]["items"], json!([]));
    assert_eq!(did[5]["event_type"], "message.received");
    refused(&did[7], "not_found");
    refused(&did[8], "not_found");
    for place in 9..13 {
        refused(&did[place], "invalid_argument");
    }
    assert!(!json!(did).to_string().contains("ADAPTER-PAYLOAD"), "{did:#?}");
    world.host.shutdown(PATIENCE).await;
}
