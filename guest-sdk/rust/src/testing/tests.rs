//! Tests of the wrappers against the scripted host, and of the scripted host against the rules of the real one.

use std::io::{Read as _, Write as _};

use serde_json::json;

use super::*;
use crate::contract::{Chunk, ErrorCode, ModelOperation, RunResult, ToolCall};
use crate::state::StateError;
use crate::{Completion, ContentPart, Failure, Manifest, ModelRequest, Role, Toolbox, log, results, timers};

fn down() -> ApiError {
    ApiError { retryable: true, ..ApiError::new(ErrorCode::RuntimeError, "down") }
}

#[test]
fn a_stream_is_an_iterator_that_ends_with_the_whole_answer() {
    let mut host = TestHost::new().replies("chat", [Reply::text("one two").reasoning("hm").usage(1, 2)]);
    let (chunks, response) = host.with(|ctx| {
        let mut stream = ctx.model("chat").unwrap().stream(&ModelRequest::new().user("count")).unwrap();
        let chunks: Vec<_> = stream.by_ref().collect::<Result<_, _>>().unwrap();
        (chunks, stream.response().unwrap())
    });
    assert_eq!(chunks[..3], [Chunk::Reasoning("hm".into()), Chunk::Text("one ".into()), Chunk::Text("two".into())]);
    assert_eq!(chunks[3], Chunk::Done(response.clone()));
    assert_eq!(response.text(), "one two");
}

#[test]
fn a_stream_that_breaks_gives_what_came_and_then_the_error_once() {
    let mut host = TestHost::new().replies("chat", [Reply::text("one two").then_fails(down())]);
    host.with(|ctx| {
        let mut stream = ctx.default_model().unwrap().stream(&ModelRequest::new()).unwrap();
        let seen: Vec<_> = stream.by_ref().collect();
        assert_eq!(seen.len(), 3);
        assert_eq!(seen[2], Err(down()));
        assert_eq!(stream.response().unwrap_err().code, ErrorCode::RuntimeError);
    });
}

struct Streams;

impl Runner for Streams {
    fn manifest() -> Manifest {
        Manifest::new("acme", "streams").models([ModelOperation::Stream])
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let mut out = ctx.message();
        ctx.default_model()?.stream(&ModelRequest::new().user(ctx.text()))?.write_to(&mut out)?;
        out.finish()?;
        Ok(Completion::stop())
    }
}

#[test]
fn streamed_text_starts_at_once_and_then_travels_in_words_not_in_tokens() {
    let text = "a ".repeat(500);
    let run = TestHost::new().replies("chat", [text.as_str()]).run::<Streams>("go");
    assert_eq!(run.streamed(), text);
    assert_eq!(run.text(), text);
    let RunResult::MessageDelta(first) = &run.results[0] else { panic!("{:?}", run.results[0]) };
    assert_eq!(first.text, "a ");
    // About 32 host calls for 1,000 bytes in pieces of 32, not 500.
    assert!((20..=40).contains(&run.batches.len()), "{}", run.batches.len());
}

/// Writes a message without its end, and fails if the text says so.
struct Forgets;

impl Runner for Forgets {
    fn manifest() -> Manifest {
        Manifest::new("acme", "forgets")
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let mut out = ctx.message();
        out.write("half")?;
        if ctx.text() == "fail" { Err(Failure::new("forgets.failed", "as it was asked to")) } else { Ok(Completion::stop()) }
    }
}

#[test]
#[should_panic(expected = "without `finish` for the messages [\"half\"]")]
fn a_message_that_was_not_finished_fails_the_test() {
    TestHost::new().run::<Forgets>("complete");
}

#[test]
fn a_run_that_fails_need_not_finish_its_messages() {
    assert_eq!(TestHost::new().run::<Forgets>("fail").failure().code, "forgets.failed");
}

#[test]
fn a_component_finishes_a_message_that_its_runner_did_not() {
    let mut host = TestHost::new();
    let end = |host: &mut TestHost, text: &str| {
        let context = host.context(text);
        super::scripted::install(std::mem::take(&mut host.host));
        let end = crate::__private::run::<Forgets>(context);
        host.host = super::scripted::take();
        end
    };
    assert_eq!(end(&mut host, "fail").unwrap_err().code, "forgets.failed");
    assert!(host.host.results.is_empty() && host.host.log.is_empty());
    assert_eq!(end(&mut host, "complete").unwrap().finish_reason, "stop");
    let whole = results::message_completed("m1", Message::assistant("half"));
    assert_eq!(host.host.results, [results::message_delta("m1", "half"), whole]);
    let [(level, line)] = host.host.log.as_slice() else { panic!("{:?}", host.host.log) };
    assert!(*level == crate::log::Level::Warn && line.contains("`finish`"), "{line}");
}

#[test]
fn an_operation_that_the_manifest_does_not_name_is_unauthorized() {
    struct Invokes;
    impl Runner for Invokes {
        fn manifest() -> Manifest {
            Manifest::new("acme", "invokes").models([ModelOperation::Stream])
        }
        fn run(ctx: Context) -> Result<Completion, Failure> {
            ctx.default_model()?.invoke(&ModelRequest::new())?;
            Ok(Completion::stop())
        }
    }
    let run = TestHost::new().model("chat", |_| "never").run::<Invokes>("go");
    assert_eq!(run.failure().code, "unauthorized");
}

#[test]
#[should_panic(expected = "its manifest declares nothing of that interface")]
fn an_interface_that_the_manifest_does_not_declare_fails_the_test() {
    struct Undeclared;
    impl Runner for Undeclared {
        fn manifest() -> Manifest {
            Manifest::new("acme", "undeclared")
        }
        fn run(ctx: Context) -> Result<Completion, Failure> {
            ctx.history().backward().next().transpose()?;
            Ok(Completion::stop())
        }
    }
    let _run = TestHost::new().run::<Undeclared>("go");
}

#[test]
#[should_panic(expected = "TestHost::new().run")]
fn a_host_call_without_a_host_says_what_to_use() {
    let _answer = results::emit(&[]);
}

#[test]
fn the_log_needs_no_host() {
    log::info!("nobody reads this");
}

#[test]
fn batches_and_json_are_judged_as_the_host_does() {
    TestHost::new().with(|_| {
        let code = |results: &[RunResult]| results::emit(results).unwrap_err().code;
        let many = vec![results::message_delta("m", "x"); 65];
        assert_eq!(code(&many), ErrorCode::InvalidArgument);
        assert_eq!(code(&[results::message_delta("m", "x".repeat(33 * 1024))]), ErrorCode::PayloadTooLarge);
        let bad = crate::contract::CustomResult { type_: "x".to_owned(), data: "{".to_owned() };
        assert_eq!(code(&[RunResult::Other(bad)]), ErrorCode::InvalidArgument);
    });
}

#[test]
fn the_details_of_an_error_name_the_failure_where_they_have_a_code() {
    let named = ApiError { details: Some(r#"{"code": "provider_not_ready", "n": 1}"#.to_owned()), ..down() };
    assert_eq!(Failure::from(named).code, "provider_not_ready");
    for details in [None, Some("{}"), Some(r#"{"code": 7}"#), Some(r#"{"code": ""}"#), Some("[1]"), Some("no JSON")] {
        let failure = Failure::from(ApiError { details: details.map(str::to_owned), ..down() });
        assert_eq!((failure.code.as_str(), failure.retryable), ("runtime_error", true), "{details:?}");
    }
}

#[test]
fn an_error_inside_of_an_io_error_names_the_failure() {
    let failure = Failure::from(std::io::Error::other(ApiError::new(ErrorCode::NotFound, "gone")));
    assert_eq!((failure.code.as_str(), failure.message.as_str()), ("not_found", "gone"));
    assert_eq!(Failure::from(std::io::Error::other("plain")).code, "runner.error");
}

#[test]
fn artifacts_are_read_and_written_as_files() {
    let mut host = TestHost::new().artifact("text/plain", "big.txt", "0123456789".repeat(20_000));
    host.with(|ctx| {
        let artifacts = ctx.artifacts();
        let mut copy = artifacts.create("text/plain", Some("copy.txt")).unwrap();
        std::io::copy(&mut artifacts.open("artifact-1").unwrap(), &mut copy).unwrap();
        write!(copy, "end").unwrap();
        let reference = copy.finish().unwrap();
        assert_eq!(reference.size, Some(200_003));

        let mut text = String::new();
        artifacts.open(&reference.artifact_id).unwrap().read_to_string(&mut text).unwrap();
        assert!(text.starts_with("0123456789") && text.ends_with("789end"));
        assert_eq!(artifacts.read_text(&reference.artifact_id, 200_003).unwrap(), text);
        assert_eq!(artifacts.read_all(&reference.artifact_id, 200_002).unwrap_err().code, ErrorCode::PayloadTooLarge);
        assert_eq!(artifacts.read_range(&reference.artifact_id, 200_000, 10).unwrap(), b"end");
        assert_eq!(artifacts.metadata(&reference.artifact_id).unwrap().artifact.name.as_deref(), Some("copy.txt"));
        assert_eq!(artifacts.open("artifact-9").unwrap_err().code, ErrorCode::NotFound);
        assert_eq!(artifacts.store("text/plain", None, "").unwrap().size, Some(0));
    });
    // An artifact without `finish` does not exist.
    host.with(|ctx| ctx.artifacts().create("text/plain", None).map(drop)).unwrap();
    assert_eq!(host.with(|ctx| ctx.artifacts().metadata("artifact-4")).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn parts_of_a_text_are_whole_characters_and_lead_to_each_other() {
    let text = "aä€🦀".repeat(50);
    let mut host = TestHost::new().artifact("text/plain", "t", text.as_str());
    for max in 1..9 {
        let read = host.with(|ctx| {
            let mut read = String::new();
            let mut at = Some(0);
            while let Some(offset) = at {
                let (part, next) = ctx.artifacts().text_part("artifact-1", offset, max).unwrap();
                assert!(next.is_none_or(|next| next > offset), "no step forward");
                read.push_str(&part);
                at = next;
            }
            read
        });
        assert_eq!(read, text, "in parts of {max}");
    }
}

#[test]
fn storage_keeps_bytes_and_values() {
    let mut host = TestHost::new().storage(StorageArea::Plugin, "a/1", "raw").storage(StorageArea::Workspace, "a/2", "other");
    host.with(|ctx| {
        let storage = ctx.storage(StorageArea::Plugin);
        assert_eq!(storage.get("a/1").unwrap().as_deref(), Some(&b"raw"[..]));
        storage.set_json("a/3", &vec![1, 2]).unwrap();
        assert_eq!(storage.get_json::<Vec<u8>>("a/3").unwrap(), Some(vec![1, 2]));
        assert_eq!(storage.get_json::<u8>("missing").unwrap(), None);
        assert_eq!(storage.keys("a/", 10).unwrap(), ["a/1", "a/3"]);
        storage.delete("a/1").unwrap();
        assert_eq!(storage.keys("", 10).unwrap(), ["a/3"]);
        let failure = Failure::from(storage.get_json::<u8>("a/3").unwrap_err());
        assert_eq!(failure.code, "runner.invalid_storage");
        assert!(failure.message.contains("`a/3`"), "{}", failure.message);
    });
}

#[test]
fn an_update_is_tried_again_with_the_value_that_won_but_not_for_ever() {
    let conflict = || ApiError::new(ErrorCode::Conflict, "another run was faster");
    let mut host = TestHost::new().state(StateScope::Runner, "n", json!(4)).fail("state.set", conflict());
    let mut asked = 0;
    let n = host.with(|ctx| {
        ctx.state(StateScope::Runner).update("n", |n: Option<u32>| {
            asked += 1;
            n.unwrap_or(0) + 1
        })
    });
    assert_eq!((n.unwrap(), asked), (5, 2));

    let mut host = (0..crate::state::UPDATE_TRIES).fold(TestHost::new(), |host, _| host.fail("state.set", conflict()));
    let lost = host.with(|ctx| ctx.state(StateScope::Runner).update("n", |_: Option<u32>| 1)).unwrap_err();
    assert!(matches!(lost, StateError::Host(error) if error.code == ErrorCode::Conflict));
}

#[test]
fn the_best_passage_of_each_base_comes_first_and_a_broken_base_is_left_out() {
    let bases = || {
        TestHost::new()
            .knowledge("a", [("a1", "red apple"), ("a2", "apple")])
            .knowledge("b", [("b1", "a red red apple pie"), ("b2", "an apple")])
    };
    let found = |host: &mut TestHost, top_k| {
        host.with(|ctx| ctx.knowledge().retrieve_all("red apple", top_k))
            .map(|found| found.into_iter().map(|passage| passage.hit.document_id).collect::<Vec<_>>())
    };
    assert_eq!(found(&mut bases(), 3).unwrap(), ["a1", "b1", "a2"]);
    assert_eq!(found(&mut bases().fail("knowledge.retrieve", down()), 3).unwrap(), ["b1", "b2"]);
    let broken = found(&mut bases().fail("knowledge.retrieve", down()).fail("knowledge.retrieve", down()), 3);
    assert_eq!(broken.unwrap_err(), down());
    assert!(found(&mut TestHost::new(), 3).unwrap().is_empty());
}

#[test]
fn a_passage_is_called_by_what_is_known_of_it() {
    let mut hit = Hit::from(("d7", "text"));
    assert_eq!(hit.source_name(), "d7");
    hit.metadata = json!({"path": "docs/a.md", "title": " "}).to_string();
    assert_eq!(hit.source_name(), "docs/a.md");
    hit.metadata = json!({"path": "docs/a.md", "title": "A"}).to_string();
    assert_eq!(hit.source_name(), "A");
    hit.metadata = "no JSON".to_owned();
    assert_eq!(hit.source_name(), "d7");
}

#[test]
fn search_and_events_ask_for_what_was_said() {
    let mut host = TestHost::new().history([("user", "the red house"), ("assistant", "red red wine"), ("user", "blue")]);
    let found = host.with(|ctx| ctx.history().search("red").roles(["user"]).since(0).top_k(5).run()).unwrap();
    assert_eq!(found.iter().map(|item| item.text.as_deref().unwrap()).collect::<Vec<_>>(), ["the red house"]);
    for _ in 0..4 {
        host.with(|_| ());
    }
    let ids = host.with(|ctx| {
        let pages = ctx.events().backward().limit(2).types(["message.received"]);
        pages.map(|page| page.unwrap().items.into_iter().map(|event| event.event_id).collect::<Vec<_>>()).collect::<Vec<_>>()
    });
    assert_eq!(ids, [["event-6", "event-5"], ["event-4", "event-3"], ["event-2", "event-1"]]);
    assert_eq!(host.with(|ctx| ctx.events().get("event-2")).unwrap().event_id, "event-2");
}

#[test]
fn definitions_are_sorted_and_a_tool_that_is_gone_is_left_out() {
    let host = || TestHost::new().tool("z__z", json!({"type": "object"}), |_| "z").tool("a__a", json!({}), |_| "a");
    let names = |host: &mut TestHost| {
        let definitions = host.with(|ctx| ctx.tools().definitions()).unwrap();
        definitions.into_iter().map(|tool| tool.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&mut host()), ["a__a", "z__z"]);
    assert_eq!(names(&mut host().fail("tools.get-detail", down())), ["a__a"]);
    assert_eq!(names(&mut host().deny(ToolOperation::Detail)), ["a__a", "z__z"]);
    assert!(names(&mut host().deny(ToolOperation::Call)).is_empty());
}

#[test]
fn a_tool_result_for_the_model_has_texts_notes_and_structure() {
    let artifact = ArtifactRef {
        artifact_id: "x1".to_owned(),
        media_type: "text/csv".to_owned(),
        name: Some("all.csv".to_owned()),
        size: Some(9),
        sha256: None,
    };
    let output = |content, structured: Option<&str>| crate::tools::ToolOutput {
        content,
        structured: structured.map(str::to_owned),
        is_error: false,
    };
    let both = output(vec![ContentPart::Text("first lines".to_owned()), ContentPart::Artifact(artifact)], Some("{}"));
    assert_eq!(both.text(), "first lines\n[artifact x1, all.csv, text/csv, 9 bytes]");
    assert_eq!(output(Vec::new(), Some(r#"{"n":1}"#)).text(), r#"{"n":1}"#);
}

#[test]
fn tools_are_called_one_by_one_or_together_with_ids_of_their_own() {
    let mut host = TestHost::new().tool("t__t", json!({}), |p: Value| p["n"].to_string()).tool("t__no", json!({}), |_| down());
    host.with(|ctx| {
        let tools = ctx.tools();
        assert_eq!(tools.call("t__t", json!({"n": 1})).unwrap().text(), "1");
        let calls = [tools.new_call("t__no", json!({})), tools.new_call("t__t", json!({"n": 2}))];
        let outcomes = tools.call_many(&calls);
        assert_eq!(outcomes[0], Err(down()));
        assert_eq!(outcomes[1].as_ref().unwrap().text(), "2");
        assert_eq!(tools.call("t__t", "no object").unwrap_err().code, ErrorCode::InvalidArgument);
        assert_eq!(tools.call("t__none", json!({})).unwrap_err().code, ErrorCode::NotFound);
    });
    let ids: Vec<_> = host.host.tool_calls.iter().map(|call| call.call_id.as_str()).collect();
    assert_eq!(ids, ["t1", "t2", "t3", "t5"]);
}

#[test]
fn a_flood_of_calls_is_answered_and_not_made() {
    let mut host = TestHost::new().tool("t__t", json!({}), |_| "ok");
    let calls: Vec<_> = (0..100)
        .map(|n| ToolCall { call_id: n.to_string(), tool_name: "t__t".to_owned(), parameters: "{}".to_owned() })
        .collect();
    let answers = host.with(|ctx| Toolbox::new(ctx).call_many(&calls)).unwrap();
    assert_eq!(answers.iter().filter(|answer| answer.text() == "ok").count(), crate::tools::CALLS_AT_ONCE);
    assert!(answers.iter().zip(&calls).all(|(answer, call)| answer.tool_call_id.as_ref() == Some(&call.call_id)));
    assert!(answers.iter().all(|answer| answer.role == Role::Tool));
}

#[cfg(feature = "schemars")]
#[test]
fn a_local_tool_shows_its_type_and_records_its_calls() {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    #[allow(dead_code, reason = "only read from JSON")]
    struct Place {
        /// Street and number.
        street: String,
        kind: Option<Kind>,
    }
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        Home,
        Work,
    }
    let schema: Value = serde_json::from_str(&crate::tools::schema_of::<Place>()).unwrap();
    assert_eq!(schema["properties"]["street"]["description"], "Street and number.");
    assert_eq!(schema["required"], json!(["street"]));
    assert!(schema.get("$schema").is_none() && schema.get("title").is_none() && schema.get("$defs").is_none(), "{schema}");

    let call = |parameters: Value| ToolCall {
        call_id: "c".to_owned(),
        tool_name: "find".to_owned(),
        parameters: parameters.to_string(),
    };
    let calls = [call(json!({"street": "Main St 1", "kind": "home"})), call(json!({"kind": "moon"}))];
    let mut host = TestHost::new();
    let answers = host.with(|_| {
        Toolbox::empty().local("find", "Finds.", |place: Place| Ok("x".repeat(40_000) + &place.street)).call_many(&calls)
    });
    let answers = answers.unwrap();
    assert!(answers[0].text().ends_with("Main St 1") && answers[0].text().len() > 40_000);
    assert!(answers[1].text().starts_with("Error: the parameters do not fit:"), "{}", answers[1].text());
    assert_eq!(host.host.results.len(), 4);
}

#[test]
fn embeddings_reranking_and_time_are_scripted_too() {
    let mut host = TestHost::new()
        .embedding("e", |text| vec![text.len() as f32])
        .reranker("r", |query, document| if document.contains(query) { 1.0 } else { 0.0 });
    host.with(|ctx| {
        let vectors = ctx.model("e").unwrap().embed(&["ab".to_owned(), String::new()]).unwrap();
        assert_eq!(vectors, [vec![2.0], vec![0.0]]);
        let hits = ctx.model("r").unwrap().rerank("b", &["a".to_owned(), "b".to_owned()], Some(1)).unwrap();
        assert_eq!(hits[0].index, 1);
        assert_eq!(hits.len(), 1);
        assert_eq!(ctx.default_model().unwrap_err().code, "provider_not_ready");
        let before = timers::now();
        timers::sleep(90_000).unwrap();
        assert_eq!(timers::now(), before + 90_000);
    });
}

#[test]
fn extra_arguments_are_one_json_object_and_the_last_value_counts() {
    let request = ModelRequest::new().temperature(0.5).extra("stop", json!(["a\"b"])).temperature(0.25).max_tokens(9);
    let extra: Value = serde_json::from_str(request.contract().extra_args.as_deref().unwrap()).unwrap();
    assert_eq!(extra, json!({"temperature": 0.25, "stop": ["a\"b"], "max_tokens": 9}));
    assert_eq!(ModelRequest::new().contract().extra_args, None);
}
