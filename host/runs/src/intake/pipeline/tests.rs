//! Tests of `pipeline`.

use serde_json::json;

use super::*;

const LOCAL: &str = "plugin:agent-host/local-agent/default";

fn query() -> Value {
    json!({
        "query_id": 7,
        "launcher_type": "group",
        "launcher_id": 1001,
        "sender_id": 2002,
        "bot_uuid": "bot-1",
        "pipeline_uuid": "5f0c",
        "message_event": {
            "type": "GroupMessage",
            "time": 1_700_000_000.5,
            "sender": { "id": 2002, "member_name": "Ada", "group": { "id": 1001, "name": "Engines" } },
            "message_chain": [{ "type": "Plain", "text": "hi" }],
            "source_platform_object": { "raw": true },
        },
        "message_chain": [
            { "type": "Source", "id": 31, "time": 1_700_000_000 },
            { "type": "Plain", "text": "hi " },
            { "type": "Image", "image_id": "i", "base64": "AAAA" },
            { "type": "Plain", "text": "there" },
        ],
        "session": { "using_conversation": { "uuid": "c-1", "messages": ["long"] } },
        "user_message": { "role": "user", "content": [{ "type": "text", "text": "hi there" }] },
        "variables": { "city": "Berlin", "api_key": "sk-1", "_fallback_model_uuids": ["m-2"], "_internal": 1,
            "_knowledge_base_uuids": ["kb-1"] },
        "prompt": { "name": "default", "messages": [{ "role": "system", "content": "Be brief." }] },
        "messages": [{ "role": "user", "content": "earlier" }],
        "use_llm_model_uuid": "m-1",
        "use_funcs": [{ "name": "weather", "description": "…" }, "clock"],
        "resp_messages": [],
        "adapter": { "object": "of the platform" },
        "current_stage_name": "PreProcessor",
        "extensions": { "x": 1, "max_round": 3 },
    })
}

fn config() -> Value {
    json!({
        "trigger": { "group-respond-rules": { "at": true } },
        "safety": { "rate-limit": { "limitation": 60 } },
        "ai": {
            "runner": { "runner": "local-agent", "expire-time": 0 },
            "local-agent": { "max-round": 10, "model": "m-1", "prompt": [{ "role": "system", "content": "Be brief." }] },
            "dify-service-api": { "api-key": "app-secret" },
        },
        "output": {
            "long-text-processing": { "threshold": 1000, "strategy": "forward" },
            "misc": { "at-sender": true, "remove-think": false },
        },
    })
}

fn adapted(query: &Value, config: &Value) -> Result<AdaptedQuery, String> {
    adapted_for(query, config, None)
}

fn adapted_for(query: &Value, config: &Value, runner_id: Option<&str>) -> Result<AdaptedQuery, String> {
    let request = json!({ "query": query, "pipeline_config": config, "runner_id": runner_id });
    serde_json::from_value::<PipelineQuery>(request).unwrap().adapt(&RunnerAliases::default())
}

fn with(mut value: Value, pointer: &str, new: Value) -> Value {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = if parent.is_empty() { &mut value } else { value.pointer_mut(parent).unwrap() };
    parent[name] = new;
    value
}

#[test]
fn a_query_becomes_an_event() {
    let AdaptedQuery { envelope, .. } = adapted(&query(), &config()).unwrap();
    assert_eq!(envelope.check(), Ok(()));
    let expected = json!({
      "event_type": "message.received",
      "source": "pipeline_adapter",
      "event_time": 1_700_000_000_500_u64,
      "source_event_type": "GroupMessage",
      "data": {
        "sender": {
          "group": {
            "id": 1001,
            "name": "Engines"
          },
          "id": 2002,
          "member_name": "Ada"
        },
        "time": 1700000000.5
      },
      "conversation": {
        "conversation_id": "c-1",
        "launcher_type": "group",
        "launcher_id": "1001",
        "bot_id": "bot-1"
      },
      "actor": {
        "actor_type": "user",
        "actor_id": "2002",
        "actor_name": "Ada",
        "metadata": {}
      },
      "subject": {
        "subject_type": "message",
        "subject_id": "31",
        "data": {}
      },
      "input": {
        "text": "hi there",
        "contents": [
          {
            "type": "text",
            "text": "hi there"
          }
        ],
        "message_chain": {
          "root": [
            {
              "id": 31,
              "time": 1700000000,
              "type": "Source"
            },
            {
              "text": "hi ",
              "type": "Plain"
            },
            {
              "image_id": "i",
              "type": "Image"
            },
            {
              "text": "there",
              "type": "Plain"
            }
          ]
        }
      },
      "delivery": {
        "surface": "platform",
        "reply_target": {
          "message_id": "31"
        },
        "supports_streaming": true,
        "supports_edit": false,
        "supports_reaction": false,
        "max_message_size": 1000,
        "platform_capabilities": {
          "output": {
            "long-text-processing": {
              "strategy": "forward",
              "threshold": 1000
            },
            "misc": {
              "at-sender": true,
              "remove-think": false
            }
          }
        }
      },
      "adapter": {
        "params": {
          "city": "Berlin"
        },
        "pipeline": {
          "safety": {
            "rate-limit": {
              "limitation": 60
            }
          },
          "trigger": {
            "group-respond-rules": {
              "at": true
            }
          }
        },
        "pipeline_uuid": "5f0c",
        "prompt": [
          {
            "content": "Be brief.",
            "role": "system"
          }
        ],
        "query": {
          "extensions": {
            "x": 1
          }
        },
        "query_id": "7"
      }
    });
    assert_eq!(serde_json::to_value(envelope).unwrap(), expected);
}

#[test]
fn a_configuration_becomes_a_binding() {
    let AdaptedQuery { binding, .. } = adapted(&query(), &config()).unwrap();
    assert_eq!((binding.id.as_str(), binding.runner.to_string().as_str()), ("pipeline.5f0c", LOCAL));
    assert_eq!(binding.config.keys().collect::<Vec<_>>(), ["model", "prompt"]);
    assert_eq!(binding.resources.model_ids, Some(Names(vec!["m-1".to_owned(), "m-2".to_owned()])));
    assert_eq!(binding.resources.tool_names, Some(Names(vec!["weather".to_owned(), "clock".to_owned()])));
    assert_eq!(binding.resources.kb_ids, Some(Names(vec!["kb-1".to_owned()])));
    assert!(Binding::new(binding).is_ok());
}

#[test]
fn rounds_are_a_bounded_tail() {
    for (rounds, events) in [(json!(1), 2), (json!(10), 20), (json!(50), 100), (json!(51), 100), (json!(u64::MAX), 100)] {
        let binding = adapted(&query(), &with(config(), "/ai/local-agent/max-round", rounds)).unwrap().binding;
        let bootstrap = binding.bootstrap.clone().unwrap();
        assert_eq!((bootstrap.mode, bootstrap.max_events), (BootstrapMode::RecentTail, events));
        assert!(Binding::new(binding).is_ok());
    }
    for rounds in [json!(0), json!(null)] {
        let adapted = adapted(&query(), &with(config(), "/ai/local-agent/max-round", rounds)).unwrap();
        assert_eq!(adapted.binding.bootstrap, None);
    }
    for rounds in [json!(-1), json!(1.5), json!("10"), json!([])] {
        let error = adapted(&query(), &with(config(), "/ai/local-agent/max-round", rounds)).unwrap_err();
        assert!(error.starts_with("`pipeline_config.ai.local-agent.max-round`"), "{error}");
    }
}

#[test]
fn adapted_queries_have_neither_rounds_nor_secrets() {
    let config = with(config(), "/trigger/max-round", json!(5));
    let AdaptedQuery { envelope, binding } = adapted(&query(), &config).unwrap();
    let all = format!("{}{}", serde_json::to_string(&envelope).unwrap(), serde_json::to_string(&binding).unwrap());
    for word in ["max-round", "max_round", "app-secret", "sk-1", "AAAA", "earlier", "_internal"] {
        assert!(!all.contains(word), "{word}: {all}");
    }
}

#[test]
fn a_runner_is_named_in_several_ways() {
    let mine = "plugin:acme/bot/default";
    let runner = |config: &Value, given: Option<&str>| {
        adapted_for(&query(), config, given).map(|adapted| (adapted.binding.runner.to_string(), adapted.binding.config))
    };
    let (id, own) = runner(&config(), Some(mine)).unwrap();
    assert_eq!((id.as_str(), &own["model"]), (mine, &json!("m-1")), "the section is that of the name which is configured");
    let newer = json!({ "ai": { "runner": { "id": mine, "runner": "local-agent" },
        "runner_config": { mine: { "a": 1, "max-round": 2 }, LOCAL: { "b": 2 } } } });
    let (id, own) = runner(&newer, None).unwrap();
    assert_eq!((id.as_str(), json!(own)), (mine, json!({ "a": 1 })));
    let (_, own) = runner(&newer, Some(LOCAL)).unwrap();
    assert_eq!(json!(own), json!({ "b": 2 }));
    assert_eq!(
        runner(&json!({ "ai": { "runner": { "runner": "coze-api" } } }), None).unwrap().0,
        "plugin:langbot/coze-agent/default"
    );
    for (config, says) in [
        (json!({}), "`pipeline_config.ai.runner.runner` is missing"),
        (json!({ "ai": { "runner": { "runner": "my-agent" } } }), "my-agent"),
        (json!({ "ai": { "runner": "local-agent" } }), "`pipeline_config.ai.runner` must be an object"),
        (json!({ "ai": [] }), "`pipeline_config.ai` must be an object"),
        (json!({ "ai": { "runner": { "runner": "local-agent" }, "local-agent": 7 } }), "`pipeline_config.ai.local-agent`"),
    ] {
        let error = runner(&config, None).unwrap_err();
        assert!(error.contains(says), "{config}: {error}");
    }
}

#[test]
fn the_configuration_may_stand_in_the_query() {
    let whole = with(query(), "/pipeline_config", config());
    let request = json!({ "query": whole });
    let within = serde_json::from_value::<PipelineQuery>(request).unwrap().adapt(&RunnerAliases::default()).unwrap();
    assert_eq!(within, adapted(&query(), &config()).unwrap());
}

#[test]
fn missing_fields_of_a_query_have_defaults() {
    let small = json!({ "message_chain": { "message_id": -1, "root": [{ "type": "Plain", "text": "hi" }] },
        "launcher_type": "person", "launcher_id": "42" });
    let AdaptedQuery { envelope, binding } = adapted(&small, &config()).unwrap();
    let conversation = envelope.conversation.unwrap();
    assert_eq!(conversation.conversation_id.as_deref(), Some("person_42"));
    assert_eq!((envelope.input.text.as_deref(), envelope.actor), (Some("hi"), None));
    let delivery = envelope.delivery.unwrap();
    assert_eq!((delivery.reply_target, delivery.supports_streaming), (None, true));
    assert_eq!(binding.id, "pipeline");
    let quiet = with(small, "/is_stream", json!(false));
    assert!(!adapted(&quiet, &config()).unwrap().envelope.delivery.unwrap().supports_streaming);
    let unbounded = with(config(), "/output/long-text-processing/strategy", json!("none"));
    assert_eq!(adapted(&query(), &unbounded).unwrap().envelope.delivery.unwrap().max_message_size, None);
}

#[test]
fn malformed_values_are_named() {
    for (pointer, value, says) in [
        ("/message_event", json!("x"), "`query.message_event`"),
        ("/variables", json!([]), "`query.variables`"),
        ("/query_id", json!({}), "`query.query_id`"),
        ("/launcher_id", json!("x".repeat(257)), "`query.launcher_id`"),
        ("/sender_id", json!("a\u{0}b"), "`query.sender_id`"),
        ("/use_funcs", json!([{}]), "`query.use_funcs`"),
        ("/use_funcs", json!("weather"), "`query.use_funcs`"),
        ("/user_message", json!(7), "`query.user_message`"),
        ("/user_message/content", json!(7), "`query.user_message.content`"),
        ("/user_message/content", json!([{ "text": "x" }]), "`query.user_message.content[0]`"),
        ("/variables/_knowledge_base_uuids", json!("kb"), "`query.variables._knowledge_base_uuids`"),
    ] {
        let error = adapted(&with(query(), pointer, value), &config()).unwrap_err();
        assert!(error.contains(says), "{pointer}: {error}");
    }
    let error = adapted(&json!({ "message_chain": [] }), &config()).unwrap_err();
    assert!(error.contains("has no message"), "{error}");
    let deep = serde_json::from_str(&format!("{}{}", "[".repeat(100), "]".repeat(100))).unwrap();
    assert!(adapted(&with(query(), "/deep", deep), &config()).unwrap_err().contains("deeper"));
}

#[test]
fn bytes_within_a_message_are_found() {
    let content = json!([
        { "type": "text", "text": "look" },
        { "type": "image_base64", "image_base64": "data:image/png;base64,AA==" },
        { "type": "image_url", "image_url": { "url": "https://a.example/x.png" } },
        { "type": "file_base64" },
    ]);
    let adapted = adapted(&with(query(), "/user_message/content", content), &config()).unwrap();
    let found: Vec<_> = adapted.envelope.input.contents.iter().map(inline_bytes).collect();
    assert_eq!(found, [None, Some("data:image/png;base64,AA=="), None, Some("")]);
}

#[test]
fn a_runner_is_configured_with_what_its_form_has() {
    let mut config = json!({ "model": "m", "prompt": [], "api-key": "k" }).as_object().unwrap().clone();
    let unknown = unknown_to(&mut config, |key| key == "model");
    assert_eq!((json!(config), json!(unknown)), (json!({ "model": "m" }), json!({ "prompt": [] })));
}
