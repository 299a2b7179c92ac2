//! Reads of a run: its conversation, the runs in it, and other conversations where its grant reaches them.

use serde_json::{Value, json};

use crate::calls::outside::{ClaimedRun, ExecutorHost};

const READS: &str = "runs = [\"get\", \"list\", \"events\"]";

impl ExecutorHost {
    /// Completes a run that has called a tool and said something.
    async fn says(&self, held: &ClaimedRun, text: &str) {
        self.answered(held, "tools.call", json!({ "tool_name": "a__add", "parameters": { "a": 2, "b": 3 } })).await;
        let message = json!({ "role": "assistant", "content": text });
        let result = json!({ "type": "message.completed", "data": { "message_id": "m", "message": message } });
        let (status, answer) = self.post(&held.path("/append"), &held.token, &json!({ "first": 1, "results": [result] })).await;
        assert_eq!(status, 200, "{answer:#}");
        self.finish(held, json!({ "status": "completed" })).await;
    }

    async fn finish(&self, held: &ClaimedRun, end: Value) {
        let (status, answer) = self.post(&held.path("/finalize"), &held.token, &end).await;
        assert_eq!(status, 200, "{answer:#}");
    }
}

fn outline(page: &Value) -> Vec<(&str, &str, &str)> {
    let items = page["items"].as_array().unwrap_or_else(|| panic!("{page:#}"));
    items
        .iter()
        .map(|item| {
            let text = match &item["content"] {
                Value::String(text) => text.as_str(),
                _ => item["content"][0]["text"].as_str().unwrap_or_default(),
            };
            (item["item_type"].as_str().unwrap(), item["role"].as_str().unwrap(), text)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_transcript_has_calls_of_tools_their_results_and_notices() {
    let outside = ExecutorHost::new(READS, "").await;
    let first = outside.held_in("w", "c", "", "add").await;
    outside.says(&first, "five").await;
    let second = outside.held_in("w", "c", "", "fail").await;
    outside.finish(&second, json!({ "status": "failed", "code": "acme.broken", "message": "it broke" })).await;

    let held = outside.held_in("w", "c", "", "now").await;
    let page = outside.answered(&held, "history.page", json!({ "direction": "forward" })).await;
    let expected = [
        ("message", "user", "add"),
        ("tool-call", "assistant", ""),
        ("tool-result", "tool", "5"),
        ("message", "assistant", "five"),
        ("message", "user", "fail"),
        ("notice", "system", "The run failed: acme.broken: it broke"),
        ("message", "user", "now"),
    ];
    assert_eq!(outline(&page), expected, "{page:#}");
    let (call, result) = (&page["items"][1]["content"][0], &page["items"][2]["content"][1]);
    assert_eq!(
        (&call["type"], &call["tool_name"], &call["parameters"]),
        (&json!("tool_call"), &json!("a__add"), &json!({ "a": 2, "b": 3 }))
    );
    assert_eq!((&result["type"], &result["call_id"]), (&json!("tool_result"), &call["call_id"]));
    // Pages continue over items of all types; a search finds messages.
    let newest = outside.answered(&held, "history.page", json!({ "limit": 2 })).await;
    let older = outside.answered(&held, "history.page", json!({ "limit": 4, "before": newest["next_cursor"] })).await;
    assert_eq!(
        older["items"].as_array().unwrap().iter().map(|item| item["seq"].as_u64().unwrap()).collect::<Vec<_>>(),
        [5, 4, 3, 2]
    );
    let found = outside.answered(&held, "history.search", json!({ "query": "five broke" })).await;
    assert_eq!(outline(&found), [("message", "assistant", "five")]);
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_reads_the_runs_and_the_run_events_of_its_conversation() {
    let outside = ExecutorHost::new(READS, "").await;
    let first = outside.held_in("w", "c", "", "add").await;
    outside.says(&first, "five").await;
    let foreign = outside.held_in("w", "other", "", "add").await;
    outside.says(&foreign, "foreign").await;
    let second = outside.held_in("w", "c", "", "fail").await;
    outside.finish(&second, json!({ "status": "failed", "code": "acme.broken", "message": "it broke" })).await;

    let held = outside.held_in("w", "c", "", "now").await;
    let listed = outside.answered(&held, "runs.list", json!({})).await;
    let ids = |list: &Value| list["items"].as_array().unwrap().iter().map(|run| run["run_id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&listed), [json!(second.run), json!(first.run)], "newest first, without itself");
    let children = outside.answered(&held, "runs.list", json!({ "parent_run_id": held.run })).await;
    assert_eq!(ids(&children), [] as [Value; 0]);
    assert_eq!(outside.answered(&held, "runs.get", json!({ "run_id": second.run })).await["status"], "failed");
    let events = outside.answered(&held, "runs.events-page", json!({ "run_id": first.run })).await;
    assert!(events["items"].as_array().unwrap().iter().any(|event| event["type"] == "tool.call.completed"), "{events:#}");
    for function in ["runs.get", "runs.events-page"] {
        let missing = outside.refused(&held, function, json!({ "run_id": foreign.run }), 404, "not_found").await;
        let nonsense = outside
            .refused(&held, function, json!({ "run_id": held.run.replace(|c: char| c.is_ascii_digit(), "0") }), 404, "not_found")
            .await;
        assert_eq!(missing["detail"].as_str().unwrap().len(), nonsense["detail"].as_str().unwrap().len(), "one answer for both");
    }
    // To end other runs is for their parent.
    let outside_all = outside.call(&held, "runs.cancel", &json!({ "run_id": first.run, "reason": "x" })).await;
    assert!(outside_all.0 == 403 || outside_all.0 == 404, "{outside_all:?}");

    // Events of runs among those of the conversation, in pages of any size.
    let types = ["message.received", "tool.call.completed", "run.failed", "run.completed"];
    for limit in [1, 2, 50] {
        let (mut seen, mut before) = (Vec::new(), Value::Null);
        loop {
            let mut arguments = json!({ "event_types": types, "limit": limit });
            if before.is_string() {
                arguments["before"] = before.clone();
            }
            let page = outside.answered(&held, "events.page", arguments).await;
            let items = page["items"].as_array().unwrap();
            assert!(items.len() <= limit);
            seen.extend(items.iter().map(|item| {
                let run = item["data"]["run_id"].as_str().map(str::to_owned);
                (item["event_type"].as_str().unwrap().to_owned(), run)
            }));
            before = page["next_cursor"].clone();
            if page["has_more"] != true {
                break;
            }
        }
        let of = |kind: &str, run: Option<&ClaimedRun>| (kind.to_owned(), run.map(|claimed| claimed.run.clone()));
        let expected = [
            of("message.received", None),
            of("run.failed", Some(&second)),
            of("message.received", None),
            of("run.completed", Some(&first)),
            of("tool.call.completed", Some(&first)),
            of("message.received", None),
        ];
        assert_eq!(seen, expected, "by {limit}");
    }
    let page = outside.answered(&held, "events.page", json!({ "event_types": ["run.failed"] })).await;
    let failed = &page["items"][0];
    assert_eq!(
        (&failed["source"], &failed["data"]["source"], &failed["data"]["data"]["code"]),
        (&json!("run"), &json!("host"), &json!("acme.broken"))
    );
    for wrong in ["x", "x:1", &format!("{}:1", foreign.run), &format!("{}:x", first.run)] {
        let arguments = json!({ "event_types": ["run.failed"], "before": wrong });
        outside.refused(&held, "events.page", arguments, 400, "invalid_argument").await;
    }
    outside.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_conversations_are_read_where_manifest_and_binding_say_so_and_never_across_workspaces() {
    for (resources, threads, workspace) in [
        (READS.to_owned(), false, false),
        (format!("{READS}\nconversations = [\"threads\"]"), true, false),
        (format!("{READS}\nconversations = [\"workspace\"]"), true, true),
    ] {
        let outside = ExecutorHost::new(&resources, "").await;
        let mut runs = Vec::new();
        for (of, conversation, thread, text) in
            [("w", "c", "", "main"), ("w", "c", "t", "thread"), ("w", "d", "", "other"), ("v", "d", "", "of another workspace")]
        {
            let held = outside.held_in(of, conversation, thread, text).await;
            outside.says(&held, &format!("answer to {text}")).await;
            runs.push(held);
        }
        let held = outside.held_in("w", "c", "t", "now").await;
        let cases = [
            (json!({}), Some("answer to thread")),
            (json!({ "conversation_id": "c" }), Some("answer to thread")),
            (json!({ "conversation_id": "c", "thread_id": "" }), threads.then_some("answer to main")),
            (json!({ "thread_id": "t" }), Some("answer to thread")),
            (json!({ "conversation_id": "d" }), workspace.then_some("answer to other")),
            (json!({ "conversation_id": "nowhere" }), workspace.then_some("")),
        ];
        for (arguments, expected) in cases {
            let (status, page) = outside.call(&held, "history.page", &arguments).await;
            let found = (status == 200).then(|| {
                let read_item = page["items"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .find(|item| item["role"] == "assistant" && item["item_type"] == "message");
                read_item.and_then(|item| item["content"].as_str()).unwrap_or_default().to_owned()
            });
            assert_eq!(found.as_deref(), expected, "{resources}: {arguments}: {page:#}");
            assert!(status == 200 || (status == 403 && page["detail"].as_str().unwrap().contains("`conversations`")), "{page:#}");
        }
        let filters = json!({ "query": "answer", "filters": { "conversation_id": "d" } });
        let (status, found) = outside.call(&held, "history.search", &filters).await;
        assert_eq!(status == 200, workspace, "{found:#}");
        if workspace {
            assert_eq!(outline(&found), [("message", "assistant", "answer to other")]);
        }
        // Runs and their events by the same reach.
        for (run, expected) in runs.iter().zip([threads, true, workspace, false]) {
            let (status, answer) = outside.call(&held, "runs.get", &json!({ "run_id": run.run })).await;
            assert_eq!(status == 200, expected, "{resources}: {answer:#}");
        }
        // Each read of another conversation is in the audit, by its name.
        let audit = outside.host.get(&format!("/api/v1/runs/{}/audit?limit=100", held.run)).await;
        let resources: Vec<_> =
            audit["items"].as_array().unwrap().iter().filter_map(|record| record["resource"].as_str()).collect();
        assert!(resources.contains(&"d") && resources.contains(&"c/"), "{resources:?}");
        outside.host.check();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_without_a_conversation_reads_its_own_event() {
    let outside = ExecutorHost::new("", "").await;
    let event = json!({ "event_type": "ticket.opened", "data": { "number": 7 } });
    let (status, accepted) = outside.post("/api/v1/events", "", &event).await;
    assert_eq!(status, 202, "{accepted:#}");
    let held = outside.claim().await;
    let own = outside.answered(&held, "events.get", json!({ "event_id": accepted["event_id"] })).await;
    assert_eq!((&own["event_type"], &own["data"]["number"]), (&json!("ticket.opened"), &json!(7)));
    outside.refused(&held, "events.page", json!({}), 403, "unauthorized").await;
    let runners = outside.host.get("/api/v1/runners").await;
    let runner = runners["runners"].as_array().unwrap().iter().find(|runner| runner["id"] == "plugin:test/outside/default");
    let runner = runner.unwrap_or_else(|| panic!("{runners:#}"));
    assert!(runner.to_string().contains(r#""conversations":["threads","workspace"]"#), "{runner:#}");
    outside.host.check();
}
