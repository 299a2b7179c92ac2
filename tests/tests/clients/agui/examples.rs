//! The JSON examples of the document of the profile, verbatim: each request is taken, and what history answers has the members of the
//! example. The examples are those of `example.json` beside this file, which has them from the document (a tool, three requests, a
//! day of history). The document of the protocol has its own (`exchange/calls/protocol.rs`); the other documents have no JSON.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::agui::support::{Host, Wire, sound};

const RUNS: &str = "/api/v1/agent/runs";
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";

/// The names of the members of objects, those within included.
fn members(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_the_profile_are_taken_and_answered_as_they_stand() {
    let host = Host::start("[agui.api]\nagent = \"stage\"\nprofile = \"strict\"\n").await;
    let examples: Vec<Value> = serde_json::from_str(include_str!("example.json")).unwrap();
    let [tool, plain, image, with_tool, day] = <[Value; 5]>::try_from(examples).unwrap();

    // An address of the document leads nowhere here: the picture is uploaded first, as the document says.
    let head = "--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"p.png\"\r\nContent-Type: image/png\r\n\r\n";
    let upload =
        host.http.post(host.url("/api/v1/agent/attachments")).header("content-type", "multipart/form-data; boundary=edge");
    let upload = upload.body([head.as_bytes(), PNG, b"\r\n--edge--\r\n"].concat()).send().await.unwrap();
    assert_eq!(upload.status(), 200);
    let kept: Value = upload.json().await.unwrap();
    let mut image = image;
    image["messages"][0]["content"][1]["url"] = kept["url"].clone();
    // The tool of the document is offered like the one of its third request.
    let mut both = with_tool.clone();
    both["runId"] = "run-004".into();
    both["tools"].as_array_mut().unwrap().push(json!({ "name": "other", "description": "x", "parameters": tool["parameters"] }));

    for (place, input) in [&plain, &image, &with_tool, &both].into_iter().enumerate() {
        let (thread, run) = (input["threadId"].as_str().unwrap(), input["runId"].as_str().unwrap());
        let answer = host.http.post(host.url(RUNS)).json(input).send().await.unwrap();
        let (status, location) = (answer.status().as_u16(), answer.headers().get("location").cloned());
        let task: Value = answer.json().await.unwrap();
        // The first one begins the thread.
        let wanted = (202, &input["runId"], &json!(place == 0));
        assert_eq!((status, &task["runId"], &task["created"]), wanted, "{task:#}\nfor {input:#}");
        let events = host.http.get(host.url(location.unwrap().to_str().unwrap()));
        let seen = Wire::open(events.header("accept", "text/event-stream").send().await.unwrap()).await.rest().await;
        sound(&seen, thread, run);
    }
    let history = host.url(&format!("/api/v1/agent/history?threadId={}", plain["threadId"].as_str().unwrap()));
    let shown: Value = host.http.get(history).send().await.unwrap().json().await.unwrap();
    assert_eq!((members(&shown), &shown["scope"]), (members(&day), &day["scope"]), "{shown:#}");
    let message = shown["messages"].as_array().unwrap().iter().find(|message| message["role"] == "user").unwrap();
    let wanted = members(&day["messages"][0]);
    assert!(members(message).is_superset(&wanted), "{message:#}\nlacks some of {wanted:?}");
}
