//! Prompts of the turns of one conversation and of several: what a model server is asked, request by request.

use std::sync::{Arc, Mutex};

use agent_host_tests::world::in_conversation;
use axum::{Json, Router, http::HeaderMap, response::IntoResponse, routing::post};

use super::*;

/// A model server in the form of OpenAI's that answers each request with "noted", and keeps them.
pub(super) struct Recorder {
    url: String,
    pub(super) requests: Arc<Mutex<Vec<(HeaderMap, Value)>>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Recorder {
    pub(super) async fn start() -> Self {
        let requests = Arc::<Mutex<Vec<(HeaderMap, Value)>>>::default();
        let keep = Arc::clone(&requests);
        let answer = move |headers: HeaderMap, Json(body): Json<Value>| {
            let keep = Arc::clone(&keep);
            async move {
                let messages = body["messages"].as_array().unwrap();
                let adds = messages.last().is_some_and(|last| last["role"] == "user" && last["content"] == "add");
                let number = messages.len();
                keep.lock().unwrap().push((headers, body));
                let function = json!({ "name": "t__add", "arguments": "{\"a\":2,\"b\":3}" });
                let call = json!({ "tool_calls": [{ "index": 0, "id": format!("call-{number}"), "type": "function", "function": function }] });
                let (delta, reason) = if adds { (call, "tool_calls") } else { (json!({ "content": "noted" }), "stop") };
                let usage =
                    json!({ "prompt_tokens": 50, "completion_tokens": 2, "prompt_tokens_details": { "cached_tokens": 40 } });
                let chunk = json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }], "usage": usage });
                ([("content-type", "text/event-stream")], format!("data: {chunk}\n\ndata: [DONE]\n\n")).into_response()
            }
        };
        let app = Router::new().route("/v1/chat/completions", post(answer)).layer(axum::extract::DefaultBodyLimit::disable());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, requests, serving }
    }

    /// The configuration of an agent that asks it. The key is in the file `canary`.
    pub(super) fn agent(&self) -> String {
        format!(
            "[[models]]\nid = \"chat\"\nprovider = \"openai\"\nbase_url = \"{}\"\napi_key = {{ file = \"canary\" }}\n\n\
             [[bindings]]\nid = \"agent\"\nrunner = \"plugin:agent-host/local-agent/default\"\n",
            self.url
        )
    }

    /// The messages of the last request. Each request had the key.
    pub(super) fn last_messages(&self) -> Vec<Value> {
        let requests = self.requests.lock().unwrap();
        for (headers, body) in &*requests {
            assert_eq!(headers["authorization"], format!("Bearer {CANARY}"));
            assert_eq!(body["model"], "chat");
        }
        requests.last().expect("there was a request").1["messages"].as_array().unwrap().clone()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[tokio::test]
async fn the_prompt_of_a_turn_begins_with_the_prompt_of_the_turn_before() {
    let recorder = Recorder::start().await;
    let config = format!(
        "{}resources = {{ tool_names = [\"t__*\"] }}\n\n[[mcp_servers]]\nid = \"t\"\ncommand = \"{}\"\n",
        recorder.agent().replace("api_key =", "prompt_cache_key = true\napi_key ="),
        env!("CARGO_BIN_EXE_mcp-server"),
    );
    let world = configured_world(&config, "").await;
    for text in ["Good day", "add", "And now?", "add", "Thank you"] {
        let ended = world.say_in("c", text).await;
        completed(&ended);
        let usage = ended.run.usage.unwrap();
        assert_eq!((usage.input, usage.cached_input), (50 * usage.calls, 40 * usage.calls), "cached tokens are counted");
    }
    completed(&world.say_in("other", "Hello").await);
    let requests = recorder.requests.lock().unwrap();
    let (of_other, of_c) = requests.split_last().unwrap();
    // Seven requests: two turns had a tool call, and the request after it.
    assert_eq!(of_c.len(), 7);
    for pair in of_c.windows(2) {
        let [before, after] = [&pair[0].1, &pair[1].1].map(|body| body["messages"].as_array().unwrap());
        assert!(after.starts_with(before), "{before:#?}\nis not how this begins:\n{after:#?}");
        assert_eq!(pair[0].1["tools"], pair[1].1["tools"], "unchanged schemas in an unchanged order");
        assert_eq!(pair[0].1["prompt_cache_key"], pair[1].1["prompt_cache_key"]);
    }
    let key = |(_, body): &(HeaderMap, Value)| body["prompt_cache_key"].as_str().unwrap().to_owned();
    assert!(key(&of_c[0]).starts_with("s_") && key(of_other) != key(&of_c[0]));
}

#[tokio::test]
async fn a_context_names_its_session_and_what_does_not_change() {
    let world = world("[[reply]]\ntext = \"yes\"\n[[reply]]\ntext = \"yes\"\n[[reply]]\ntext = \"yes\"\n", "").await;
    let mut contexts = Vec::new();
    for conversation in ["c", "c", "other"] {
        let ended = world.say_in(conversation, "Hi").await;
        let context = world.host.records().context(ended.run.run_id).unwrap().unwrap();
        contexts.push(serde_json::from_str::<Value>(context.get()).unwrap());
    }
    let key = |n: usize| contexts[n]["context"]["session_key"].as_str().unwrap();
    assert!(key(0) == key(1) && key(0) != key(2), "{contexts:#?}");
    let refs = contexts[0]["runtime"]["static_refs"].as_object().unwrap();
    for name in ["host.tool_schemas", "host.resource_manifest"] {
        assert_eq!(refs[name]["sha256"].as_str().unwrap().len(), 64, "{refs:#?}");
    }
    assert!(!refs.contains_key("host.platform_policy"), "no approvals and no platform actions: {refs:#?}");
    for context in &contexts {
        assert_eq!(context["runtime"]["static_refs"].as_object(), Some(refs), "the same bytes in every run");
    }
}

#[tokio::test]
async fn the_second_turn_of_a_conversation_knows_the_first_and_no_other() {
    let model = Recorder::start().await;
    let world = configured_world(&model.agent(), "").await;
    completed(&world.say_in("a", "My name is Ada.").await);
    completed(&world.say_in("b", "My name is Bob.").await);
    let ended = world.say_in("a", "Who am I?").await;
    completed(&ended);
    assert_eq!(ended.answer_text(), "noted");
    let usage = &facts(&ended, "model.call.completed")[0]["usage"];
    assert_eq!(usage, &json!({ "input": 50, "output": 2, "cached_input": 40 }), "the server's own numbers");
    let messages = model.last_messages();
    let spoken: Vec<_> =
        messages.iter().map(|message| (message["role"].as_str().unwrap(), message["content"].as_str().unwrap())).collect();
    assert_eq!(
        spoken,
        [("system", "You are a helpful assistant."), ("user", "My name is Ada."), ("assistant", "noted"), ("user", "Who am I?"),]
    );
    // Nor does it know anything without a conversation.
    completed(&world.say("Who am I?").await);
    assert_eq!(model.last_messages().len(), 2);
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn runs_at_the_same_time_do_not_disturb_each_other() {
    let script = r#"
[[reply]]
after_tool = false
tool_calls = [{ name = "t__repeat", parameters = { text = "{{last_user}}", times = 2 } }]

[[reply]]
after_tool = true
text = "{{tool_results}}"
"#;
    // Each message has a run of its own: none is taken as input by the run before it.
    let config = agent("").replace("tool_names = [\"t__*\"]", "tool_names = [\"t__*\"], steering = false");
    let world = configured_world(&config, script).await;
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(world.send(in_conversation(&format!("c{}", n % 5), &format!("<{n}>"))).await);
    }
    for (n, id) in ids.into_iter().enumerate() {
        let ended = world.ended(id).await;
        completed(&ended);
        assert_eq!(ended.answer_text(), format!("<{n}><{n}>"));
    }
    world.host.shutdown(PATIENCE).await;
}
