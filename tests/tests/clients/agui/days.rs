//! Days of the history in the time zone of the client, and interfaces that are made of hints.

use serde_json::{Value, json};

use crate::agui::support::{Host, input, problem, sound};

async fn history(host: &Host, query: &str) -> Value {
    let answer = host.http.get(host.url(&format!("/api/v1/agent/history{query}"))).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{query}");
    answer.json().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_zone_of_the_client_decides_days_and_hints_become_an_interface() {
    let host = Host::start("[agui.api]\nagent = \"stage\"\nprofile = \"plain\"").await;
    // More than a day apart: they never have the same date.
    let [east, west] = ["Pacific/Kiritimati", "Pacific/Pago_Pago"];
    let script = json!([
        { "do": "say", "id": "m", "text": "Booked." },
        { "do": "result", "type": "ui.hints", "data": { "message_id": "m", "hints": { "status": "success", "title": "Booked" } } },
    ]);
    let mut run = input("t", "r1", &script);
    run["forwardedProps"]["client_time"] = json!({ "device_timezone": east });
    sound(&host.run(&run).await.rest().await, "t", "r1");
    let own = history(&host, "").await;
    let [eastern, western] =
        [history(&host, &format!("?timezone={east}")).await, history(&host, &format!("?timezone={west}")).await];
    assert_eq!(own, eastern, "the time zone of the last message is the default");
    assert_ne!(eastern["day"], western["day"]);
    assert_eq!(eastern["messages"], western["messages"]);
    let before = format!("?timezone={west}&before={}", western["day"].as_str().unwrap());
    assert_eq!(history(&host, &before).await["messages"], json!([]));
    for zone in ["Mars/Olympus", "%2B14", "x/../y"] {
        let answer = host.http.get(host.url(&format!("/api/v1/agent/history?timezone={zone}"))).send().await.unwrap();
        let (status, response) = problem(answer).await;
        assert_eq!((status, &response["code"]), (422, &json!("AGENT_PAYLOAD_INVALID")), "{zone}");
    }
    assert_eq!(
        own["messages"][1]["ui_schema"],
        json!({ "version": "2.0", "locale": "und", "status": "success", "theme": "default", "root": {
            "type": "stack", "appearance": "card", "children": [
                { "type": "text", "content": "Booked", "role": "title" },
                { "type": "badge", "label": "SUCCESS", "status": "success" },
            ] } })
    );
}
