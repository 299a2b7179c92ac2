//! Artifacts as resources, skills as prompts.

use agent_host_tests::grants::EVERYTHING;
use serde_json::{Value, json};

use crate::mcp::{client::Client, outside::ExecutorHost};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn artifacts_are_resources_and_ranges_are_bounded() {
    let outside = ExecutorHost::limited(EVERYTHING, "", "artifact_read_bytes = 1000").await;
    let held = outside.claimed_run().await;
    let client = Client::open(&outside, &held).await;
    assert_eq!(client.request("resources/list", json!({})).await.result()["resources"], json!([]));
    let text = "ä".repeat(400);
    let created = client.call("artifact_create", json!({ "media_type": "text/plain", "name": "a.txt", "text": text })).await;
    let reference = created.result()["structuredContent"].clone();
    let id = reference["artifact_id"].as_str().unwrap_or_else(|| panic!("{reference:#}"));
    let link = &created.result()["content"][1];
    let uri = format!("artifact://{id}");
    assert_eq!(
        (&link["type"], &link["uri"], &link["name"], &link["size"]),
        (&json!("resource_link"), &json!(uri), &json!("a.txt"), &json!(800))
    );
    // Bytes that are no text.
    let bytes = client.done("artifact_create", json!({ "media_type": "application/octet-stream", "content": "/wD/" })).await;
    let other = bytes["artifact_id"].as_str().unwrap();

    let listed = client.request("resources/list", json!({})).await;
    let uris: Vec<_> = listed.result()["resources"].as_array().unwrap().iter().map(|resource| resource["uri"].clone()).collect();
    assert_eq!(uris, [json!(uri), json!(format!("artifact://{other}"))]);
    let templates = client.request("resources/templates/list", json!({})).await;
    assert_eq!(templates.result()["resourceTemplates"][0]["uriTemplate"], "artifact://{artifact_id}{?offset,length}");

    let read = async |uri: String| client.request("resources/read", json!({ "uri": uri })).await;
    let whole = read(uri.clone()).await;
    let contents = &whole.result()["contents"][0];
    assert_eq!((&contents["uri"], &contents["text"], &contents["mimeType"]), (&json!(uri), &json!(text), &json!("text/plain")));
    assert_eq!(
        (&contents["_meta"]["agent-host/size"], &contents["_meta"]["agent-host/next_offset"]),
        (&json!(800), &Value::Null)
    );
    // A range that ends within a character ends before it.
    let range = read(format!("{uri}?offset=10&length=5")).await;
    let contents = &range.result()["contents"][0];
    assert_eq!((&contents["text"], &contents["_meta"]["agent-host/next_offset"]), (&json!("ää"), &json!(14)), "{contents:#}");
    let blob = read(format!("artifact://{other}")).await;
    assert_eq!(blob.result()["contents"][0]["blob"], "/wD/");
    let by_tool = client.call("artifact_read", json!({ "artifact_id": id, "length": 4 })).await;
    assert_eq!(by_tool.result()["content"][0]["text"], "ää");
    assert_eq!(by_tool.result()["structuredContent"]["next_offset"], 4);

    assert_eq!(read(format!("{uri}?length=1001")).await.code().1, "payload_too_large");
    assert_eq!(read("artifact://nonsense".to_owned()).await.code(), (-32002, "not_found"));

    // An artifact of another conversation is not there.
    outside.host.send_in("elsewhere", "hello").await;
    let stranger = outside.claim().await;
    let stranger = Client::open(&outside, &stranger).await;
    let foreign = stranger.request("resources/read", json!({ "uri": uri })).await;
    assert_eq!(foreign.code(), (-32002, "not_found"));
    let audit = outside.audit(&held.run).await;
    assert!(audit.iter().filter(|(action, _)| action == "artifacts.read-range").count() >= 5, "{audit:?}");
    outside.complete(&held).await;
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_resources_come_in_pages() {
    let outside = ExecutorHost::new(EVERYTHING, "").await;
    let held = outside.claimed_run().await;
    let client = Client::open(&outside, &held).await;
    for number in 0..101 {
        client.done("artifact_create", json!({ "media_type": "text/plain", "text": format!("{number}") })).await;
    }
    let first = client.request("resources/list", json!({})).await;
    assert_eq!(first.result()["resources"].as_array().unwrap().len(), 100);
    let last = client.request("resources/list", json!({ "cursor": first.result()["nextCursor"] })).await;
    assert_eq!((last.result()["resources"].as_array().unwrap().len(), last.result().get("nextCursor")), (1, None));
    outside.complete(&held).await;
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn skills_are_prompts() {
    let dir = tempfile::tempdir().unwrap();
    let text = "---\nname: pdf\ndescription: Reads PDF forms.\n---\n\n# Reading a PDF\n\nRun `scripts/text.py`.\n";
    std::fs::create_dir_all(dir.path().join("pdf/scripts")).unwrap();
    std::fs::write(dir.path().join("pdf/SKILL.md"), text).unwrap();
    std::fs::write(dir.path().join("pdf/scripts/text.py"), "print('text')\n").unwrap();
    let skill = format!("[[skills]]\npath = {:?}\n", dir.path().join("pdf"));
    // Smaller reads than the text: it comes in pieces.
    let outside = ExecutorHost::with(EVERYTHING, "", "artifact_read_bytes = 20", &skill).await;
    let held = outside.claimed_run().await;
    let mut client = Client::new(&outside, &held);
    let info = client.initialize().await;
    assert!(info["capabilities"]["prompts"].is_object(), "{info:#}");
    let listed = client.request("prompts/list", json!({})).await;
    assert_eq!(listed.result()["prompts"], json!([{ "name": "pdf", "description": "Reads PDF forms." }]));
    let prompt = client.request("prompts/get", json!({ "name": "pdf" })).await;
    let messages = prompt.result()["messages"].as_array().unwrap();
    assert_eq!(messages[0], json!({ "role": "user", "content": { "type": "text", "text": text } }));
    assert_eq!(
        (&messages[1]["content"]["type"], &messages[1]["content"]["name"]),
        (&json!("resource_link"), &json!("pdf/scripts/text.py"))
    );
    let file = client.request("resources/read", json!({ "uri": messages[1]["content"]["uri"] })).await;
    assert_eq!(file.result()["contents"][0]["text"], "print('text')\n");
    let listed = client.request("resources/list", json!({})).await;
    assert_eq!(listed.result()["resources"][0]["name"], "pdf/scripts/text.py");
    assert_eq!(client.request("prompts/get", json!({ "name": "other" })).await.code(), (-32602, "not_found"));
    outside.complete(&held).await;
    outside.host.check();
}
