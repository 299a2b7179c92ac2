//! The strict profile with the examples of the document that it is from, and with addresses that are not the host's.

use serde_json::{Value, json};

use crate::agui::support::{Host, upload};

const THREAD: &str = "550e8400-e29b-41d4-a716-446655440000";
const RUNS: &str = "/api/v1/agent/runs";
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";

async fn post(host: &Host, body: &Value) -> (u16, Value) {
    let answer = host.http.post(host.url(RUNS)).json(body).send().await.unwrap();
    let status = answer.status().as_u16();
    (status, answer.json().await.unwrap())
}

/// Waits for the end of a run.
async fn ended(host: &Host, thread: &str, run: &str) -> String {
    let events = host.http.get(host.url(&format!("{RUNS}/{thread}/events?runId={run}"))).send().await.unwrap();
    assert_eq!(events.status(), 200);
    events.text().await.unwrap()
}

/// A request of the document: all of them call their message `msg-001`.
fn example(run: &str, content: Value, tools: Value) -> Value {
    json!({
        "threadId": THREAD, "runId": run, "state": {}, "messages": [{ "id": "msg-001", "role": "user", "content": content }],
        "tools": tools, "context": [], "forwardedProps": {},
    })
}

async fn uploaded(host: &Host) -> String {
    let kept = upload(host.http.post(host.url("/api/v1/agent/attachments")), PNG).await;
    kept["url"].as_str().unwrap_or_else(|| panic!("{kept:#}")).to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_examples_of_the_document_work_one_after_the_other() {
    let host = Host::start("[agui.api]\nagent = \"stage\"").await;
    let url = uploaded(&host).await;
    let picture = json!([
        { "type": "text", "text": "这张图片里的内容是什么?" },
        { "type": "binary", "mimeType": "image/png", "url": url },
    ]);
    let weather = json!([{ "name": "get_weather", "description": "获取指定城市的天气信息", "parameters": {
        "type": "object", "properties": { "city": { "type": "string", "description": "城市名称" } }, "required": ["city"] } }]);
    for (run, content, tools, text) in [
        ("run-001", json!("帮我查一下北京今天的天气"), json!([]), "帮我查一下北京今天的天气"),
        ("run-002", picture, json!([]), "这张图片里的内容是什么?"),
        ("run-003", json!("北京天气怎么样?"), weather, "北京天气怎么样?"),
    ] {
        let body = example(run, content, tools);
        let (status, task) = post(&host, &body).await;
        assert_eq!((status, &task["created"]), (202, &json!(run == "run-001")), "{task:#}");
        assert!(ended(&host, THREAD, run).await.contains("RUN_FINISHED"));
        // The same run once more is the same run.
        let (status, again) = post(&host, &body).await;
        assert_eq!((status, &again["taskId"]), (202, &task["taskId"]), "{again:#}");
        let answer = host.http.get(host.url(&format!("/api/v1/agent/history?threadId={THREAD}"))).send().await.unwrap();
        let history: Value = answer.json().await.unwrap();
        let users: Vec<_> = history["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "user").collect();
        assert_eq!(
            (&users.last().unwrap()["id"], &users.last().unwrap()["content"]),
            (&json!("msg-001"), &json!(text)),
            "{history:#}"
        );
    }
    // A thread has one name, however a client writes it, and a run one length.
    let mut body = example(&"é".repeat(128), json!("x"), json!([]));
    body["threadId"] = THREAD.to_uppercase().into();
    let (status, task) = post(&host, &body).await;
    assert_eq!((status, &task["threadId"], &task["created"]), (202, &json!(THREAD), &json!(false)), "{task:#}");
    let shown =
        host.http.get(host.url(&format!("/api/v1/agent/history?threadId={}", THREAD.to_uppercase()))).send().await.unwrap();
    assert_eq!(shown.json::<Value>().await.unwrap()["threadId"], THREAD);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_an_address_that_this_host_has_signed() {
    let host = Host::start("[agui.api]\nagent = \"stage\"").await;
    let url = uploaded(&host).await;
    let (path, query) = url.split_once('?').unwrap();
    let id = path.rsplit('/').next().unwrap();
    let whole = host.url(&url);
    let requires = "binary content requires url";
    for (n, (address, detail)) in [
        (url.clone(), None),
        (whole.clone(), None),
        (format!("https://evil.example{url}"), Some(requires)),
        (format!("//evil.example{url}"), Some(requires)),
        (path.to_owned(), Some(requires)),
        (format!("/api/v1/artifacts/{id}"), Some(requires)),
        (host.url(&format!("/api/v1/artifacts/{id}/content")), Some(requires)),
        (format!("{path}?{}", query.replace("signature=", "signature=0")), Some(requires)),
        ("https://storage.example.com/a.png?signature=xxx".to_owned(), Some(requires)),
        ("data:image/png;base64,AA==".to_owned(), Some("binary content data is not allowed")),
    ]
    .into_iter()
    .enumerate()
    {
        let run = format!("run-{n}");
        let old = json!([{ "type": "binary", "mimeType": "image/png", "url": address }]);
        let new = json!([{ "type": "image", "source": { "type": "url", "value": address, "mimeType": "image/png" } }]);
        for (form, content) in [("old", old), ("new", new)] {
            let (status, response) = post(&host, &example(&format!("{run}-{form}"), content, json!([]))).await;
            match detail {
                None => {
                    assert_eq!(status, 202, "{address} {form}: {response:#}");
                    ended(&host, THREAD, &format!("{run}-{form}")).await;
                }
                Some(detail) => {
                    assert_eq!(
                        (status, &response["code"]),
                        (422, &json!("AGENT_RUN_MESSAGES_INVALID")),
                        "{address}: {response:#}"
                    );
                    assert_eq!(response["detail"], detail, "{address}");
                }
            }
        }
    }
    for (member, value, detail) in [
        ("threadId", Value::Null, "threadId must be a valid UUID"),
        ("threadId", THREAD.replace('-', "").into(), "threadId must be a valid UUID"),
        ("runId", "é".repeat(129).into(), "runId exceeds length limit"),
    ] {
        let mut body = example("r", json!("x"), json!([]));
        body[member] = value;
        let (status, response) = post(&host, &body).await;
        assert_eq!((status, &response["detail"]), (422, &json!(detail)), "{response:#}");
    }
}
