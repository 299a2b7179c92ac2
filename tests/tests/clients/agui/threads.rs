//! A thread as a page finds it that opens it: everything in one answer, of nobody else, and gone when it is deleted.

use agent_host_tests::process;
use serde_json::{Value, json};

use crate::agui::{
    scenarios::{everything, pick, picker},
    support::{Host, View, config, input, plain, problem, sound, with},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_is_there_whole_in_one_answer() {
    let host = Host::start("").await;
    let empty = host.thread("nobody-was-here").await;
    assert_eq!((&empty["messages"], &empty["pendingInterrupts"], &empty["hasMore"]), (&json!([]), &json!([]), &json!(false)));
    assert!(empty.get("activeRun").is_none(), "{empty:#}");

    let events = host.run(&with(input("t", "t-1", &everything(0)), json!({ "state": { "mine": 1 } }))).await.rest().await;
    sound(&events, "t", "t-1");
    let found = host.thread("t").await;
    let mut view = View::of(&events);
    view.state["mine"] = json!(1);
    let shown = View { messages: messages(&found), state: found["state"].clone(), ends: view.ends.clone() };
    assert_eq!(shown.essence(), view.essence(), "what was streamed is what is shown");
    assert_eq!(shown.texts("user"), ["Do it."]);
    assert_eq!(shown.messages[0]["id"], "t-1-user", "the client's own id");

    // An active run is named, with the position from which it can be followed.
    let slow = json!([{ "do": "say", "text": "It takes its time to say this.", "pieces": 15, "delay_ms": 40 }]);
    let mut wire = host.run(&input("t", "t-2", &slow)).await;
    wire.until(|event| event["type"] == "TEXT_MESSAGE_CONTENT").await;
    let found = host.thread("t").await;
    assert_eq!(found["activeRun"]["runId"], "t-2", "{found:#}");
    let cursor = plain(&found["activeRun"]["cursor"]);
    let id = if cursor.starts_with("t-2:") { cursor } else { format!("t-2:{cursor}") };
    let mut seen = View { messages: messages(&found), ..View::default() };
    let rest = host.events("t", "t-2", Some(&id)).await.expect("it goes on").rest().await;
    rest.iter().for_each(|event| seen.apply(event));
    assert_eq!(seen.texts("assistant").last().unwrap(), "It takes its time to say this.", "{rest:#?}");
    drop(wire);

    // The thread contains the open question.
    let ask = json!([{ "do": "ask", "kind": "confirmation", "title": "May I?" }]);
    host.run(&input("t", "t-3", &ask)).await.rest().await;
    let found = host.thread("t").await;
    assert_eq!(found["pendingInterrupts"].as_array().unwrap().len(), 1, "{found:#}");
    assert!(found.get("activeRun").is_none(), "for the client the run is over: {found:#}");
    host.run(&with(input("tool", "tool-1", &json!([pick()])), json!({ "tools": [picker()] }))).await.rest().await;
    let found = host.thread("tool").await;
    assert_eq!(found["pendingToolCallIds"].as_array().unwrap().len(), 1, "{found:#}");
}

fn messages(thread: &Value) -> Vec<Value> {
    thread["messages"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_thread_shows_its_newest_messages_first() {
    let host = Host::start("").await;
    for n in 0..30 {
        host.run(&input("long", &format!("r{n}"), &json!([{ "do": "say", "text": format!("answer {n}") }]))).await.rest().await;
    }
    let shown = |thread: Value| -> Vec<String> {
        let all = messages(&thread);
        all.iter().filter(|message| message["role"] == "assistant").map(|message| plain(&message["content"])).collect()
    };
    let all =
        host.http.get(host.url("/agents/stage/threads/long?limit=100")).send().await.unwrap().json::<Value>().await.unwrap();
    assert_eq!(all["hasMore"], false);
    assert_eq!(shown(all), (0..30).map(|n| format!("answer {n}")).collect::<Vec<_>>());
    let few = host.http.get(host.url("/agents/stage/threads/long?limit=4")).send().await.unwrap().json::<Value>().await.unwrap();
    assert_eq!(few["hasMore"], true);
    let few = shown(few);
    assert!((2..=4).contains(&few.len()) && few.last().unwrap() == "answer 29", "{few:?}");
    for limit in ["-1", "x", "1000000"] {
        let answer = host.http.get(host.url(&format!("/agents/stage/threads/long?limit={limit}"))).send().await.unwrap();
        assert_eq!(problem(answer).await.0, 400, "{limit}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_thread_is_gone_and_one_that_works_is_not_deleted() {
    let host = Host::start("").await;
    let url = host.url("/agents/stage/threads/gone");
    let delete = || async { host.http.delete(&url).send().await.unwrap() };
    assert_eq!(delete().await.status(), 204, "what is not there is deleted already");
    host.run(&with(input("gone", "g-1", &everything(0)), json!({ "state": { "secret": 1 } }))).await.rest().await;
    let slow = json!([{ "do": "sleep", "ms": 600_000 }]);
    let wire = host.run(&input("gone", "g-2", &slow)).await;
    assert_eq!(problem(delete().await).await.0, 409, "a run is under way");
    assert_eq!(host.cancel("gone", "g-2").await, 202);
    wire.rest().await;
    assert_eq!(delete().await.status(), 204);
    assert_eq!(delete().await.status(), 204);
    let found = host.thread("gone").await;
    assert_eq!((&found["messages"], &found["hasMore"]), (&json!([]), &json!(false)), "{found:#}");
    assert!(!found.to_string().contains("secret"), "{found:#}");
    // A deleted thread can begin again, without any earlier message.
    let run_input = json!([{ "do": "history" }, { "do": "input" }]);
    let events = host.run(&input("gone", "g-3", &run_input)).await.rest().await;
    sound(&events, "gone", "g-3");
    let texts = View::of(&events).texts("assistant");
    assert!(!texts[0].contains("end of it") && !texts[1].contains("secret"), "{texts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workspaces_do_not_see_the_threads_of_each_other() {
    let dir = agent_host_tests::Process::lay_out(&["stage"]);
    let key = |workspace: &str| {
        let scopes = ["events:write", "runs:read", "runs:control", "actions:respond"];
        let scopes = scopes.iter().flat_map(|scope| ["--scope", scope]);
        let mut made = process::command(dir.path());
        let made = made.args(["keys", "create", "--workspace", workspace, "--json"]).args(scopes).output().unwrap();
        let made: Value = serde_json::from_slice(&made.stdout).unwrap_or_else(|_| panic!("{made:?}"));
        plain(&made["token"])
    };
    let (ours, theirs) = (key("ours"), key("theirs"));
    let host = Host::lives_in(dir, "", &config("", "")).await;
    let send = |key: &str, method: reqwest::Method, path: &str, body: Option<Value>| {
        let mut request = host.http.request(method, host.url(path)).bearer_auth(key).header("accept", "text/event-stream");
        if let Some(body) = body {
            request = request.json(&body);
        }
        async { request.send().await.unwrap() }
    };
    let slow = json!([{ "do": "say", "text": "A secret of ours.", "pieces": 2 }, { "do": "sleep", "ms": 600_000 }]);
    let run_input = input("same-id", "r-1", &slow);
    let wire =
        crate::agui::support::Wire::open(send(&ours, reqwest::Method::POST, "/agents/stage/run", Some(run_input.clone())).await)
            .await;
    // A request without a key.
    assert_eq!(host.http.get(host.url("/agents/stage/threads/same-id")).send().await.unwrap().status(), 401);
    assert_eq!(host.http.post(host.url("/agents/stage/run")).json(&run_input).send().await.unwrap().status(), 401);
    // The same ids in another workspace are another thread.
    let get = reqwest::Method::GET;
    let found = send(&theirs, get.clone(), "/agents/stage/threads/same-id", None).await.json::<Value>().await.unwrap();
    assert_eq!(found["messages"], json!([]), "{found:#}");
    let answer = send(&theirs, get.clone(), "/agents/stage/threads/same-id/runs/r-1/events", None).await;
    assert_eq!(problem(answer).await.0, 404);
    let answer = send(&theirs, reqwest::Method::POST, "/agents/stage/threads/same-id/runs/r-1/cancel", None).await;
    assert_eq!(problem(answer).await.0, 404);
    let short = input("same-id", "r-1", &json!([{ "do": "history" }, { "do": "say", "text": "Theirs." }]));
    let answer = send(&theirs, reqwest::Method::POST, "/agents/stage/run", Some(short)).await;
    let events = crate::agui::support::Wire::open(answer).await.rest().await;
    sound(&events, "same-id", "r-1");
    assert!(!json!(events).to_string().contains("secret"), "{events:#?}");
    assert_eq!(send(&theirs, reqwest::Method::DELETE, "/agents/stage/threads/same-id", None).await.status(), 204);
    let found = send(&ours, get, "/agents/stage/threads/same-id", None).await.json::<Value>().await.unwrap();
    assert!(found.to_string().contains("A secret of ours."), "{found:#}");
    let cancelled = send(&ours, reqwest::Method::POST, "/agents/stage/threads/same-id/runs/r-1/cancel", None).await;
    assert_eq!(cancelled.status(), 202);
    sound(&wire.rest().await, "same-id", "r-1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_of_one_runner_have_the_labels_of_their_bindings() {
    let second = "[[bindings]]\nid = \"second\"\nlabel = \"Second stage\"\nrunner = \"plugin:test/stage/default\"\n\
                  match = { event_type = \"nothing of this kind\" }\n";
    let host = Host::with_config("loopback_without_key = true", &format!("{}{second}", config("", ""))).await;
    let get = async |path: &str| host.http.get(host.url(path)).send().await.unwrap().json::<Value>().await.unwrap();
    let agents = get("/agents").await;
    let name = |id: &str| agents["agents"].as_array().unwrap().iter().find(|agent| agent["id"] == id).unwrap()["name"].clone();
    assert_eq!(name("second"), "Second stage");
    assert!(name("stage").is_string() && name("stage") != name("second"), "{agents:#}");
    assert_eq!(get("/agents/second/capabilities").await["identity"]["name"], "Second stage");
    let runners = get("/api/v1/runners").await;
    let label = |id: &str| {
        let bindings = runners["bindings"].as_array().unwrap();
        bindings.iter().find(|binding| binding["id"] == id).unwrap().get("label").cloned()
    };
    assert_eq!((label("second"), label("stage")), (Some(json!("Second stage")), None), "{runners:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_are_listed_and_say_what_they_can() {
    let host = Host::start("").await;
    let get = |path: &str| {
        let request = host.http.get(host.url(path));
        async { request.send().await.unwrap() }
    };
    let agents = get("/agents").await.json::<Value>().await.unwrap();
    let stage = agents["agents"].as_array().unwrap().iter().find(|agent| agent["id"] == "stage").unwrap().clone();
    assert_eq!(stage["runner_id"], "plugin:test/stage/default", "{agents:#}");
    let can = get("/agents/stage/capabilities").await.json::<Value>().await.unwrap();
    assert_eq!((&can["transport"]["streaming"], &can["transport"]["resumable"]), (&json!(true), &json!(true)), "{can:#}");
    for path in ["/agents/nobody/capabilities", "/agents/nobody/threads/t"] {
        let (status, body) = problem(get(path).await).await;
        assert_eq!((status, &body["code"]), (404, &json!("not_found")), "{path}");
    }
    let (status, _) = problem(host.post("/agents/nobody/run", &input("t", "r", &json!([]))).await).await;
    assert_eq!(status, 404);
}
