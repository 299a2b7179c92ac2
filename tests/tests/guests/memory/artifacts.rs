//! Artifacts of runs, conversations and uploads.

use super::*;

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

    // Unfinished and refused artifacts leave no file.
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

    // Without a conversation it belongs to the binding, in its workspace.
    let created = play(&world, "main", json!({}), create).await;
    let id = created[0]["artifact_id"].clone();
    assert_eq!(play(&world, "main", json!({}), look(&id)).await[1]["text"], "hello");
    for binding in ["other", "second", "stranger"] {
        for outcome in play(&world, binding, json!({}), look(&id)).await {
            refused(&outcome, "not_found");
        }
    }
    for elsewhere in [in_conversation("c"), json!({ "conversation": { "workspace_id": "w" } })] {
        for outcome in play(&world, "main", elsewhere, look(&id)).await {
            refused(&outcome, "not_found");
        }
    }

    // A missing and a malformed id get the same answer.
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
    let conversation = conversation.map(|id| ConversationKey::new("", id, ""));
    let record = ArtifactRecord {
        artifact_id: new_artifact_id(""),
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
        // The host's record counts, not the sender's claims, except for the name.
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

    // The artifact expires while the run could still see it.
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
    let completed = ended.events.iter().find(|event| event.kind == "message.completed").unwrap().data_value();
    assert!(completed.to_string().contains("text/plain") && !completed.to_string().contains("image/lie"), "{completed}");

    let pages = json!([{ "call": "history.page", "artifacts": true }, { "call": "history.page" }]);
    let pages = play(&world, "main", in_conversation("c"), pages).await;
    let item = &pages[0]["items"][0];
    assert_eq!(pages[0]["items"].as_array().unwrap().len(), 1, "what was refused is nowhere: {}", pages[0]);
    assert_eq!(item["artifacts"], json!([did[1]]), "the host says what it is, not the runner");
    assert_eq!(pages[1]["items"][0]["artifacts"], json!([]));
    world.host.shutdown(PATIENCE).await;
}
