//! Tools of a client: the run asks the client for their answers, as it asks people, and continues with them.

use std::{fs, time::Duration};

use agent_host_tests::world::PATIENCE;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::asks::support::{EndedRun, Host, Random, lines_of};

/// A host with a scripted guest, a tool server that counts, and clients with tools of their own.
struct Shop {
    host: Host,
    http: reqwest::Client,
    world: TempDir,
}

/// The tools of the clients.
fn tools() -> Value {
    let color = json!({ "type": "object", "properties": { "why": { "type": "string" } }, "required": ["why"] });
    json!([
        { "name": "pick_color", "description": "Lets the user pick a color.", "parameters": color },
        { "name": "ask-name", "parameters": {} },
    ])
}

/// A call, as a step.
fn call(tool: &str, parameters: Value) -> Value {
    json!({ "call": "tools.call", "tool": tool, "parameters": parameters })
}

fn pick() -> Value {
    call("pick_color", json!({ "why": "for the wall" }))
}

/// The text of a tool's answer, as the guest reports it.
fn text_content(text: &str) -> Value {
    json!({ "content": [{ "bytes": text.len(), "text": text }], "is_error": false })
}

impl Shop {
    async fn new(limits: &str, binding: &str) -> Self {
        let world = tempfile::tempdir().unwrap();
        let config = format!(
            r#"
[limits]
max_live_runs = 50
{limits}

[[mcp_servers]]
id = "t"
command = "{server}"
env = {{ COUNT_FILE = {counted:?} }}
start_timeout_ms = 60000

[[bindings]]
id = "open"
runner = "plugin:test/caller/default"
resources = {{ tool_names = ["t__count"] }}
{binding}

[[bindings]]
id = "closed"
runner = "plugin:test/caller/default"
resources = {{ tool_names = ["t__count"], client_tools = false }}

[[bindings]]
id = "family"
runner = "plugin:test/family/default"
resources = {{ runs = ["start", "get", "list", "events", "cancel"] }}
"#,
            server = env!("CARGO_BIN_EXE_mcp-server"),
            counted = world.path().join("counted"),
        );
        let host = Host::limited(&["caller", "family"], &config);
        Self { host, http: reqwest::Client::new(), world }
    }

    /// The answer to a request with this body.
    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let url = format!("{}/api/v1/{path}", *self.host.urls().borrow());
        let answer = self.http.post(url).json(body).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    async fn make(&self, body: &Value) -> String {
        let (status, run) = self.post("runs", body).await;
        assert_eq!(status, 202, "{run:#}");
        run["run_id"].as_str().unwrap().to_owned()
    }

    /// Makes a run that takes these steps, for a client with those tools.
    async fn run(&self, steps: Value) -> String {
        let event = json!({ "event_type": "test.script", "data": { "steps": steps } });
        self.make(&json!({ "binding_id": "open", "event": event, "client_tools": tools() })).await
    }

    /// Waits until the run has asked its client for so much, and gives the data of each.
    async fn wait_for_asks(&self, run: &str, count: usize) -> Vec<Value> {
        let began = std::time::Instant::now();
        loop {
            let events = self.host.events(run).await;
            let asked: Vec<_> = events.iter().filter(|event| event["type"] == "action.requested").collect();
            if asked.len() >= count {
                return asked.into_iter().map(|event| event["data"].clone()).collect();
            }
            assert!(began.elapsed() < PATIENCE, "it asks for less than {count}: {}", lines_of(&events));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn parked(&self, runs: u64) {
        self.host.until_ready(|ready| ready["parked_runs"] == runs && ready["live_runs"] == 0).await;
    }

    async fn respond(&self, asked: &Value, response: Value) -> (u16, Value) {
        self.post(&format!("actions/{}/respond", id(asked)), &response).await
    }

    /// Answers for the client.
    async fn answer(&self, asked: &Value, text: &str) {
        let (status, text_content) = self.respond(asked, json!({ "decision": "submit", "answer": { "content": text } })).await;
        assert_eq!(status, 200, "{text_content:#}");
    }

    /// The ids of what waits for an answer.
    async fn open(&self) -> Vec<String> {
        let page = self.host.get("/api/v1/actions?limit=100").await;
        page["items"].as_array().unwrap().iter().map(|item| item["action_id"].as_str().unwrap().to_owned()).collect()
    }

    async fn grant(&self, run: &str) -> Value {
        self.host.get(&format!("/api/v1/runs/{run}/grant")).await
    }

    /// The calls of the host's tool.
    fn counted(&self) -> String {
        fs::read_to_string(self.world.path().join("counted")).unwrap_or_default()
    }
}

fn id(asked: &Value) -> &str {
    asked["action_id"].as_str().unwrap()
}

/// The outcomes of the guest's steps.
#[track_caller]
fn outcomes(ended: &EndedRun) -> Vec<Value> {
    let tool_outcomes = ended.of("test.answer");
    let [tool_outcomes] = tool_outcomes.as_slice() else { panic!("it tells once: {ended}") };
    tool_outcomes["outcomes"].as_array().unwrap().clone()
}

/// The types of the facts about something that was asked, and what came of it.
#[track_caller]
fn record(ended: &EndedRun, asked: &Value) -> (Vec<String>, Value) {
    let about = |event: &&Value| {
        event["type"].as_str().unwrap().starts_with("action.") && event["data"]["action_id"] == asked["action_id"]
    };
    let facts: Vec<_> = ended.events.iter().filter(about).collect();
    let kinds = facts.iter().map(|fact| fact["type"].as_str().unwrap().to_owned()).collect();
    (kinds, facts.last().unwrap_or_else(|| panic!("nothing about {asked}: {ended}"))["data"].clone())
}

const ANSWERED: [&str; 3] = ["action.requested", "action.answered", "action.resolved"];
const UNANSWERED: [&str; 2] = ["action.requested", "action.resolved"];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tool_of_the_client_is_shown_and_called_like_any() {
    let shop = Shop::new("", "").await;
    let detail = json!({ "call": "tools.detail", "tool": "pick_color" });
    let run = shop.run(json!([{ "call": "context" }, detail, pick()])).await;
    let asked = shop.wait_for_asks(&run, 1).await.remove(0);
    for (member, expect) in [
        ("kind", json!("client_tool")),
        ("tool_call_id", json!("c1")),
        ("tool_name", json!("pick_color")),
        ("parameters", json!({ "why": "for the wall" })),
        ("decisions", json!(["submit", "decline"])),
    ] {
        assert_eq!(asked[member], expect, "{asked:#}");
    }
    assert!(asked["expires_at"].is_u64() && id(&asked).starts_with(&run), "{asked:#}");
    shop.parked(1).await;
    let waiting = shop.host.run(&run).await;
    assert_eq!((&waiting["status"], &waiting["status_reason"]), (&json!("waiting"), &json!("client_tool")), "{waiting:#}");
    assert_eq!(shop.open().await, [id(&asked)]);

    let answer = json!({ "content": "blue", "message_id": "m7" });
    let (status, action) = shop.respond(&asked, json!({ "decision": "submit", "answer": answer })).await;
    assert_eq!((status, &action["answered"]["answer"]), (200, &answer), "{action:#}");
    let ended = shop.host.ended(&run).await.completed();
    let tool_outcomes = outcomes(&ended);
    assert_eq!(tool_outcomes[0]["tools"], json!(["t__count", "pick_color", "ask-name"]), "its own come last: {ended}");
    assert_eq!((&tool_outcomes[1], &tool_outcomes[2]), (&tools()[0]["parameters"], &text_content("blue")), "{ended}");
    let (kinds, resolved) = record(&ended, &asked);
    assert_eq!((kinds, &resolved["outcome"]), (ANSWERED.map(str::to_owned).to_vec(), &json!("submitted")), "{ended}");
    let answered = ended.events.iter().find(|event| event["type"] == "action.answered").unwrap();
    assert_eq!(answered["source"], "client", "{ended}");
    assert!(ended.events.iter().all(|event| !event["type"].as_str().unwrap().starts_with("tool.call.")), "{ended}");
    assert_eq!((ended.statuses("client_tool").len(), ended.resumes()), (1, 0), "{ended}");
    let audit = shop.host.get(&format!("/api/v1/runs/{run}/audit?limit=100")).await;
    let called = |record: &&Value| record["action"] == "tools.call" && record["resource"] == "pick_color";
    let called: Vec<_> = audit["items"].as_array().unwrap().iter().filter(called).collect();
    assert!(called.len() == 1 && called[0]["outcome"] == "ok", "{audit:#}");
    assert!(shop.open().await.is_empty());
    shop.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_call_outlives_the_host_before_its_answer_and_after() {
    let mut shop = Shop::new("", "").await;
    let mut random = Random(7);
    for round in 0..6 {
        let run = shop.run(json!([pick(), { "call": "sleep", "ms": 20 }, call("ask-name", json!({}))])).await;
        let asked = shop.wait_for_asks(&run, 1).await.remove(0);
        if round % 2 == 0 {
            shop.parked(1).await;
        } else {
            // The run may be leaving memory.
            tokio::time::sleep(Duration::from_millis(random.below(10))).await;
        }
        shop.host.kill_and_revive();
        assert_eq!(shop.wait_for_asks(&run, 1).await, std::slice::from_ref(&asked), "it is asked once");
        shop.answer(&asked, "blue").await;
        tokio::time::sleep(Duration::from_millis(random.below(20))).await;
        shop.host.kill_and_revive();
        let second = shop.wait_for_asks(&run, 2).await.remove(1);
        assert_eq!(second["tool_name"], "ask-name");
        shop.answer(&second, "Ada").await;
        let ended = shop.host.ended(&run).await.completed();
        let tool_outcomes = outcomes(&ended);
        assert_eq!((&tool_outcomes[0], &tool_outcomes[2]), (&text_content("blue"), &text_content("Ada")), "{ended}");
        for asked in [&asked, &second] {
            assert_eq!(record(&ended, asked).0, ANSWERED, "{ended}");
        }
    }
    shop.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_calls_ask_the_client_at_once_when_the_host_has_done_its_own() {
    for kill in [false, true] {
        let mut shop = Shop::new("", "").await;
        let one = |id: &str, tool: &str, parameters: Value| json!({ "call_id": id, "tool": tool, "parameters": parameters });
        let calls = json!([
            one("a", "pick_color", json!({ "why": "wall" })),
            one("b", "t__count", json!({ "note": "once" })),
            one("c", "ask-name", json!({})),
            one("d", "pick_color", json!({})),
        ]);
        let run = shop.run(json!([{ "call": "tools.call_many", "calls": calls }])).await;
        let asked = shop.wait_for_asks(&run, 2).await;
        assert_eq!(asked.iter().map(|asked| asked["tool_call_id"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "c"]);
        shop.parked(1).await;
        assert_eq!(shop.counted(), "count once\n");
        assert_eq!(shop.open().await, [id(&asked[0]), id(&asked[1])]);
        if kill {
            shop.host.kill_and_revive();
            shop.parked(1).await;
        }
        // The second first: the run waits on for the other, and does not come back for this one.
        shop.answer(&asked[1], "Ada").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        shop.parked(1).await;
        assert_eq!(shop.host.run(&run).await["status_reason"], "client_tool");
        assert_eq!(shop.open().await, [id(&asked[0])]);
        let (status, refused) = shop.respond(&asked[1], json!({ "decision": "decline" })).await;
        assert_eq!((status, &refused["code"]), (409, &json!("already_answered")), "{refused:#}");
        if kill {
            shop.host.kill_and_revive();
            shop.parked(1).await;
        }
        shop.answer(&asked[0], "blue").await;
        let ended = shop.host.ended(&run).await.completed();
        let tool_outcomes = outcomes(&ended).remove(0);
        assert_eq!(
            (&tool_outcomes[0], &tool_outcomes[1], &tool_outcomes[2]),
            (&text_content("blue"), &text_content("count once"), &text_content("Ada")),
            "{ended}"
        );
        assert_eq!(tool_outcomes[3]["error"], "invalid_argument", "its parameters do not fit, so nobody is asked: {ended}");
        assert_eq!(shop.counted(), "count once\n", "{ended}");
        assert_eq!((ended.statuses("client_tool").len(), ended.statuses("woken").len()), (1, 1), "{ended}");
        assert_eq!((ended.of("tool.call.completed").len(), ended.of("action.requested").len()), (1, 2), "{ended}");
        shop.host.check();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn answers_of_one_moment_are_both_taken() {
    let shop = Shop::new("", "").await;
    for round in 0..6 {
        let calls = json!([{ "call_id": "a", "tool": "ask-name", "parameters": {} }, { "call_id": "b", "tool": "ask-name", "parameters": {} }]);
        let run = shop.run(json!([{ "call": "tools.call_many", "calls": calls }])).await;
        let asked = shop.wait_for_asks(&run, 2).await;
        if round % 2 == 0 {
            shop.parked(1).await;
        }
        tokio::join!(shop.answer(&asked[0], "Ada"), shop.answer(&asked[1], "Bob"));
        let ended = shop.host.ended(&run).await.completed();
        assert_eq!(outcomes(&ended)[0], json!([text_content("Ada"), text_content("Bob")]), "{ended}");
    }
    shop.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_unanswered_client_call_is_an_error_of_the_tool() {
    let shop = Shop::new("ask_expires_ms = 3000", "").await;
    let run = shop.run(json!([pick(), pick(), pick(), { "call": "context" }])).await;
    let asked = shop.wait_for_asks(&run, 1).await.remove(0);
    assert_eq!(shop.respond(&asked, json!({ "decision": "decline", "reason": "not now" })).await.0, 200);
    let failed = shop.wait_for_asks(&run, 2).await.remove(1);
    let answer = json!({ "content": [{ "type": "text", "text": "half of it" }], "error": "no camera" });
    assert_eq!(shop.respond(&failed, json!({ "decision": "submit", "answer": answer })).await.0, 200);
    let expired = shop.wait_for_asks(&run, 3).await.remove(2);
    shop.parked(1).await;
    let ended = shop.host.ended(&run).await.completed();
    let tool_outcomes = outcomes(&ended);
    let texts = |outcome: &Value| -> Vec<String> {
        assert_eq!(outcome["is_error"], true, "{ended}");
        outcome["content"].as_array().unwrap().iter().map(|part| part["text"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(texts(&tool_outcomes[0]), ["the client has declined to do it: not now"]);
    assert_eq!(texts(&tool_outcomes[1]), ["half of it", "no camera"]);
    assert_eq!(texts(&tool_outcomes[2]), ["the client has not answered in time"]);
    assert_eq!(record(&ended, &asked).1["outcome"], "declined", "{ended}");
    assert_eq!(record(&ended, &failed).1["outcome"], "submitted", "{ended}");
    let (kinds, resolved) = record(&ended, &expired);
    assert_eq!((kinds, &resolved["outcome"]), (UNANSWERED.map(str::to_owned).to_vec(), &json!("expired")), "{ended}");
    let (status, late) = shop.respond(&expired, json!({ "decision": "submit", "answer": { "content": "blue" } })).await;
    assert_eq!((status, &late["code"]), (410, &json!("expired")), "{late:#}");
    shop.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_invalid_tool_answer_is_refused_and_the_call_stays_open() {
    let shop = Shop::new("", "").await;
    let run = shop.run(json!([pick()])).await;
    let asked = shop.wait_for_asks(&run, 1).await.remove(0);
    shop.parked(1).await;
    let before = shop.host.run(&run).await["last_sequence"].clone();
    let artifact = json!({ "type": "artifact", "artifact": { "artifact_id": "nothing", "media_type": "image/png" } });
    for response in [
        json!({ "decision": "submit" }),
        json!({ "decision": "submit", "answer": "blue" }),
        json!({ "decision": "submit", "answer": {} }),
        json!({ "decision": "submit", "answer": { "content": 1 } }),
        json!({ "decision": "submit", "answer": { "content": [{}] } }),
        json!({ "decision": "submit", "answer": { "content": [artifact] } }),
        json!({ "decision": "submit", "answer": { "content": "blue", "result": 1 } }),
        json!({ "decision": "submit", "answer": { "content": "blue", "error": true } }),
        json!({ "decision": "submit", "answer": { "content": "x".repeat(25_000) } }),
        json!({ "decision": "decline", "answer": { "content": "blue" } }),
        json!({ "decision": "approve" }),
        json!({ "decision": "skip" }),
    ] {
        let (status, refused) = shop.respond(&asked, response.clone()).await;
        assert_eq!((status, &refused["code"]), (400, &json!("invalid_argument")), "{response} → {refused:#}");
    }
    assert_eq!(shop.host.run(&run).await["last_sequence"], before);
    shop.answer(&asked, "blue").await;
    let (status, second) = shop.respond(&asked, json!({ "decision": "submit", "answer": { "content": "red" } })).await;
    assert_eq!((status, &second["code"]), (409, &json!("already_answered")), "{second:#}");
    assert_eq!(second["action"]["answered"]["answer"], json!({ "content": "blue" }), "{second:#}");
    let ended = shop.host.ended(&run).await.completed();
    assert_eq!(outcomes(&ended), [text_content("blue")], "{ended}");

    // Another attempt has them as well, and asks its client anew.
    let (status, again) = shop.post(&format!("runs/{run}/retry"), &json!({})).await;
    assert_eq!(status, 202, "{again:#}");
    let again = again["run_id"].as_str().unwrap();
    let asked = shop.wait_for_asks(again, 1).await.remove(0);
    shop.answer(&asked, "green").await;
    assert_eq!(outcomes(&shop.host.ended(again).await.completed()), [text_content("green")]);
    shop.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn invalid_tools_create_no_run() {
    let shop = Shop::new("client_tools = 3\nclient_tool_bytes = 300", "").await;
    let tool = |name: &str, parameters: Value| json!({ "name": name, "parameters": parameters });
    let any = |name: &str| tool(name, json!({ "type": "object" }));
    for (tools, why) in [
        (json!([any("t__count")]), "has a tool `t__count` of the host"),
        (json!([any("two words")]), "`client_tools[0].name`"),
        (json!([any("good"), any("")]), "`client_tools[1].name`"),
        (json!([any("good"), any("good")]), "two tools are named `good`"),
        (json!([tool("good", json!("string"))]), "`client_tools[0].parameters`"),
        (json!([tool("good", json!({ "type": "nothing" }))]), "`client_tools[0].parameters`"),
        (json!([tool("good", json!({ "description": "x".repeat(300) }))]), "the limit is 300"),
        (json!(["a", "b", "c", "d"].map(any)), "4 tools; the limit is 3"),
        (json!([{ "parameters": {} }]), "name"),
        (json!({}), "client_tools"),
    ] {
        for binding in ["open", "closed"] {
            // If the binding forbids client tools, they are checked all the same; but none conflicts with another.
            if binding == "closed" && why.contains("of the host") {
                continue;
            }
            let event = json!({ "event_type": "test.script" });
            let (status, refused) =
                shop.post("runs", &json!({ "binding_id": binding, "event": event, "client_tools": tools })).await;
            assert_eq!((status, &refused["code"]), (400, &json!("invalid_argument")), "{tools} → {refused:#}");
            let text_content = format!("{} {}", refused["field"], refused["detail"].as_str().unwrap());
            assert!(text_content.contains(why), "{tools} → {refused:#}");
        }
    }
    assert_eq!(shop.host.get("/api/v1/runs?limit=100").await["items"], json!([]));
    shop.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_permission_client_tools_are_left_out() {
    let shop = Shop::new("", "").await;
    let steps = json!([{ "call": "context" }, { "call": "tools.detail", "tool": "pick_color" }, pick()]);
    let event = json!({ "event_type": "test.script", "data": { "steps": steps } });
    for (binding, resources) in [
        ("closed", None),
        ("closed", Some(json!({ "client_tools": true }))),
        ("open", Some(json!({ "client_tools": false }))),
        ("open", Some(json!({ "tools": ["detail"] }))),
    ] {
        let mut body = json!({ "binding_id": binding, "event": event, "client_tools": tools() });
        if let Some(resources) = &resources {
            body["resources"] = resources.clone();
        }
        let run = shop.make(&body).await;
        let ended = shop.host.ended(&run).await.completed();
        let tool_outcomes = outcomes(&ended);
        assert_eq!(tool_outcomes[0]["tools"], json!(["t__count"]), "{ended}");
        assert_eq!(tool_outcomes[1]["error"], "not_found", "{ended}");
        assert!(["not_found", "unauthorized"].contains(&tool_outcomes[2]["error"].as_str().unwrap()), "{ended}");
        assert!(ended.of("action.requested").is_empty(), "{ended}");
        assert!(shop.grant(&run).await["client_tools"].is_null());
    }
    shop.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_that_no_client_could_answer_is_refused() {
    let shop = Shop::new("", "").await;
    let mut unnamed = pick();
    unnamed["call_id"] = json!("");
    let run = shop
        .run(json!([
            call("pick_color", json!({ "why": 1 })),
            call("ask-name", json!([])),
            call("ask-name", json!({ "x": "x".repeat(25_000) })),
            unnamed,
        ]))
        .await;
    let ended = shop.host.ended(&run).await.completed();
    let tool_outcomes = outcomes(&ended);
    let codes: Vec<_> = tool_outcomes.iter().map(|outcome| outcome["error"].as_str().unwrap()).collect();
    assert_eq!(codes, ["invalid_argument", "invalid_argument", "payload_too_large", "invalid_argument"], "{ended}");
    assert_eq!(tool_outcomes[0]["details"]["code"], "invalid_parameters", "{ended}");
    assert!(ended.of("action.requested").is_empty() && ended.statuses("client_tool").is_empty(), "{ended}");
    shop.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_without_a_journal_waits_for_its_client_in_memory() {
    let shop = Shop::new("", "durability = \"fail\"\n").await;
    let calls = json!([{ "call_id": "a", "tool": "ask-name", "parameters": {} }, { "call_id": "b", "tool": "ask-name", "parameters": {} }]);
    let run = shop.run(json!([pick(), { "call": "tools.call_many", "calls": calls }])).await;
    let asked = shop.wait_for_asks(&run, 1).await.remove(0);
    let waiting = shop.host.until_status(&run, "waiting").await;
    assert_eq!(waiting["status_reason"], "client_tool", "{waiting:#}");
    let ready = shop.host.get("/readyz").await;
    assert_eq!((&ready["live_runs"], &ready["parked_runs"]), (&json!(1), &json!(0)), "{ready}");
    assert_eq!(shop.open().await, [id(&asked)]);
    shop.answer(&asked, "blue").await;
    let both = shop.wait_for_asks(&run, 3).await.split_off(1);
    assert_eq!(shop.open().await.len(), 2);
    shop.answer(&both[1], "Bob").await;
    shop.answer(&both[0], "Ada").await;
    let ended = shop.host.ended(&run).await.completed();
    assert_eq!(outcomes(&ended), [text_content("blue"), json!([text_content("Ada"), text_content("Bob")])], "{ended}");
    assert!(ended.statuses("woken").is_empty(), "{ended}");
    shop.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_is_asked_by_a_run_that_is_cancelled_answers_nobody() {
    let shop = Shop::new("", "").await;
    let run = shop.run(json!([pick()])).await;
    let asked = shop.wait_for_asks(&run, 1).await.remove(0);
    shop.parked(1).await;
    shop.host.cancel(&run).await;
    let ended = shop.host.ended(&run).await.cancelled();
    let (kinds, resolved) = record(&ended, &asked);
    assert_eq!((kinds, &resolved["outcome"]), (UNANSWERED.map(str::to_owned).to_vec(), &json!("cancelled")), "{ended}");
    let (status, _) = shop.respond(&asked, json!({ "decision": "submit", "answer": { "content": "blue" } })).await;
    assert_eq!(status, 409);
    assert!(shop.open().await.is_empty());
    shop.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_child_has_none_of_the_tools_of_the_client_of_its_parent() {
    let shop = Shop::new("", "").await;
    let input = json!({ "text": "start default [try tool ask-name]; all 60000" });
    let run = shop.make(&json!({ "binding_id": "family", "input": input, "client_tools": tools() })).await;
    let parent = shop.host.ended(&run).await.completed();
    let child = parent.outcomes()[0].as_str().unwrap().to_owned();
    let child_ended = shop.host.ended(&child).await.completed();
    assert_eq!(child_ended.outcomes()[0]["error"], "not_found", "{child_ended}");
    assert_eq!(shop.grant(&run).await["client_tools"], tools());
    let grant = shop.grant(&child).await;
    assert!(grant["client_tools"].is_null() && grant["permissions"]["tools"] == json!(["detail", "call"]), "{grant:#}");
    shop.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_artifact_in_an_answer_is_one_of_the_conversation() {
    let shop = Shop::new("", "").await;
    let upload = async |conversation: &str| -> Value {
        let url = format!("{}/api/v1/artifacts?name=wall.txt&conversation_id={conversation}", *shop.host.urls().borrow());
        let answer = shop.http.post(url).header("content-type", "text/plain").body("a wall").send().await.unwrap();
        assert_eq!(answer.status(), 201);
        answer.json().await.unwrap()
    };
    let event = json!({
        "event_type": "test.script",
        "conversation": { "conversation_id": "c1" },
        "data": { "steps": [pick()] },
    });
    let run = shop.make(&json!({ "binding_id": "open", "event": event, "client_tools": tools() })).await;
    let asked = shop.wait_for_asks(&run, 1).await.remove(0);
    let (own, other) = (upload("c1").await, upload("c2").await);
    // The client's claims about the artifact are ignored.
    let named = |artifact: &Value| {
        let reference = json!({ "artifact_id": artifact["artifact_id"], "media_type": "image/png", "size": 1 });
        let content = json!([{ "type": "text", "text": "there" }, { "type": "artifact", "artifact": reference }]);
        json!({ "decision": "submit", "answer": { "content": content } })
    };
    let (status, refused) = shop.respond(&asked, named(&other)).await;
    assert_eq!((status, &refused["code"]), (400, &json!("invalid_argument")), "{refused:#}");
    assert_eq!(shop.respond(&asked, named(&own)).await.0, 200);
    let ended = shop.host.ended(&run).await.completed();
    let content = &outcomes(&ended)[0]["content"];
    for member in ["artifact_id", "media_type", "size", "sha256", "name"] {
        assert_eq!(content[1][member], own[member], "{ended}");
    }
    assert_eq!(content[1]["media_type"], "text/plain", "{ended}");
    shop.host.check();
}
