//! Images for the model.

use base64::{Engine, engine::general_purpose::STANDARD};

use super::{prompts::Recorder, *};

/// The smallest PNG there is.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

#[tokio::test]
async fn an_image_that_was_uploaded_reaches_the_model() {
    let model = Recorder::start().await;
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("plugins")).unwrap();
    fs::copy(agent_host_tests::component("local_agent"), dir.path().join("plugins/local_agent.wasm")).unwrap();
    fs::write(dir.path().join("canary"), CANARY).unwrap();
    let config = model.agent();
    let host = tokio::task::spawn_blocking(move || Process::start_in(dir, &config)).await.unwrap();
    let http = reqwest::Client::new();

    let image = STANDARD.decode(PNG).unwrap();
    let upload = |name: &str, kind: &str, bytes: Vec<u8>| {
        http.post(host.url(&format!("/api/v1/artifacts?name={name}&conversation_id=c")))
            .header("content-type", kind)
            .body(bytes)
            .send()
    };
    let image = upload("dot.png", "image/png", image).await.unwrap();
    assert_eq!(image.status(), 201);
    let image: Value = image.json().await.unwrap();
    let notes: Value = upload("notes.txt", "text/plain", b"Buy milk.".to_vec()).await.unwrap().json().await.unwrap();
    let reference = |artifact: &Value| json!({ "artifact_id": artifact["artifact_id"], "media_type": artifact["media_type"] });
    let event = json!({
        "event_type": "message.received",
        "conversation": { "conversation_id": "c" },
        "input": { "text": "What is this?", "attachments": [reference(&image), reference(&notes)] },
    });
    let answer = http.post(host.url("/api/v1/events")).header("prefer", "wait=30").json(&event).send().await.unwrap();
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["runs"][0]["status"], "completed", "{answer:#}");
    assert_eq!(answer["runs"][0]["output"]["content"], "noted", "{answer:#}");

    let messages = model.last_messages();
    let content = messages.last().unwrap()["content"].as_array().unwrap_or_else(|| panic!("{messages:#?}")).clone();
    let shown: Vec<_> = content.iter().filter(|part| part["type"] == "image_url").collect();
    assert_eq!(shown.len(), 1, "{content:#?}");
    assert_eq!(shown[0]["image_url"]["url"], format!("data:image/png;base64,{PNG}"));
    let text: String = content.iter().filter_map(|part| part["text"].as_str()).collect();
    assert!(text.contains("What is this?") && text.contains("notes.txt"), "{content:#?}");

    // The bytes are in the request and nowhere else, and the key neither.
    let url = host.url(&format!("/api/v1/runs/{}/events?limit=100", answer["runs"][0]["run_id"].as_str().unwrap()));
    let events = http.get(url).send().await.unwrap().text().await.unwrap();
    assert!(events.contains("model.call.completed") && !events.contains(&PNG[..40]) && !events.contains(CANARY), "{events}");
}

#[tokio::test]
async fn an_image_of_another_conversation_does_not_reach_the_model() {
    let model = Recorder::start().await;
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("plugins")).unwrap();
    fs::copy(agent_host_tests::component("local_agent"), dir.path().join("plugins/local_agent.wasm")).unwrap();
    fs::write(dir.path().join("canary"), CANARY).unwrap();
    let config = model.agent();
    let host = tokio::task::spawn_blocking(move || Process::start_in(dir, &config)).await.unwrap();
    let http = reqwest::Client::new();
    let upload = http.post(host.url("/api/v1/artifacts?conversation_id=theirs")).header("content-type", "image/png");
    let image: Value = upload.body(STANDARD.decode(PNG).unwrap()).send().await.unwrap().json().await.unwrap();
    let event = json!({
        "event_type": "message.received",
        "conversation": { "conversation_id": "mine" },
        "input": { "text": "Look", "attachments": [{ "artifact_id": image["artifact_id"], "media_type": "image/png" }] },
    });
    let answer = http.post(host.url("/api/v1/events")).header("prefer", "wait=30").json(&event).send().await.unwrap();
    let (status, answer) = (answer.status(), answer.json::<Value>().await.unwrap());
    let asked = serde_json::to_string(&*model.requests.lock().unwrap().iter().map(|(_, body)| body).collect::<Vec<_>>()).unwrap();
    assert!(!asked.contains("data:image"), "{status} {answer:#}");
    assert!(status.is_client_error() || answer["runs"][0]["status"] == "failed", "{status} {answer:#}");
}
