//! Agents by protocols of their own: each test is for Codex and for Claude Code.

use serde_json::{Value, json};

use crate::{World, content, gone, host::RUNS, is_alive, is_at_the_door, python};

const RUN: &str = RUNS[0];

/// A protocol, and how its scripted agent is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dialect {
    Codex,
    Claude,
}

const DIALECTS: [Dialect; 2] = [Dialect::Codex, Dialect::Claude];

impl Dialect {
    fn world(self, more: &str) -> World {
        self.world_with(more, &[])
    }

    fn world_with(self, more: &str, arguments: &[&str]) -> World {
        let (preset, dialect) = match self {
            Self::Codex => ("codex", "codex"),
            Self::Claude => ("claude-code", "claude"),
        };
        let more = format!("preset = \"{preset}\"\nprotocol = \"native\"\n{more}");
        let peer = format!("{}/tests/harness/native_peer.py", env!("CARGO_MANIFEST_DIR"));
        let python = python().0;
        World::with_command(&more, &[&[&python, "-B", &peer, dialect], arguments].concat())
    }
}

async fn said(world: &World, run: &str, text: &str) -> String {
    world.host.offer(run, text, "c1", json!({}));
    let (how, end) = world.host.end(run).await;
    assert_eq!((how.as_str(), &end["status"]), ("finalize", &json!("completed")), "{end}");
    world.host.text(run)
}

async fn failed(world: &World, text: &str) -> (String, String) {
    world.host.offer(RUN, text, "c1", json!({}));
    let (_, end) = world.host.end(RUN).await;
    assert_eq!(end["status"], "failed", "{end}");
    (end["code"].as_str().unwrap().to_owned(), end["message"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_end_to_end() {
    for dialect in DIALECTS {
        let mut world = dialect.world("");
        let text = "think hm\nspell hello\nplan a,b\ntool ls -la\nedit /w/a\nusage\nsay done";
        assert_eq!(said(&world, RUN, text).await, "hello|done", "{dialect:?}");
        let data = |kind: &str| world.host.data(RUN, kind);
        assert_eq!(data("reasoning.delta")[0]["chunk"]["content"], "hm");
        let steps = json!([{ "step": "a", "status": "in_progress" }, { "step": "b", "status": "in_progress" }]);
        assert_eq!(data("fact.plan")[0]["steps"], steps, "{dialect:?}");
        let (started, completed) = (data("tool.call.started"), data("tool.call.completed"));
        let place = started.iter().position(|call| call["parameters"]["command"] == "ls -la").unwrap();
        assert_eq!(completed[place]["tool_call_id"], started[place]["tool_call_id"]);
        assert_eq!(completed[place]["result"][0], json!({ "type": "text", "text": "out" }));
        let diff = &completed[place + 1]["result"][0];
        assert_eq!((&diff["type"], &diff["path"]), (&json!("diff"), &json!("/w/a")), "{completed:?}");
        assert_eq!((&diff["old_text"], &diff["new_text"]), (&json!("x\n"), &json!("y\n")));
        let results = world.host.results(RUN);
        let edit = results.iter().filter(|result| result["type"] == "tool.call.started").nth(place + 1).unwrap();
        assert_eq!((&edit["metadata"]["kind"], &edit["metadata"]["locations"][0]["path"]), (&json!("edit"), &json!("/w/a")));
        let context = data("harness.context").pop().unwrap();
        assert_eq!((&context["used"], &context["size"]), (&json!(10), &json!(200)), "{dialect:?}");
        let (_, end) = world.host.end(RUN).await;
        assert_eq!(end["finish_reason"], "stop");
        match dialect {
            Dialect::Codex => {
                assert_eq!((&end["usage"]["input"], &end["usage"]["output"]), (&json!(6), &json!(4)), "{end}");
            }
            Dialect::Claude => {
                assert_eq!(end["usage"], json!({ "input": 3, "output": 4, "cached_input": 1 }));
                assert_eq!(context["cost"], json!({ "amount": 0.5, "currency": "USD" }));
            }
        }
        let capabilities = world.host.registrations()[0]["capabilities"].clone();
        assert_eq!(
            (&capabilities["state"], &capabilities["version"], &capabilities["protocol"], &capabilities["logged_in"]),
            (&json!("ready"), &json!("1.2.3"), &json!("native"), &json!("yes")),
            "{capabilities}"
        );
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_with_the_next_message_and_one_that_is_gone_begins_anew() {
    for dialect in DIALECTS {
        let mut world = dialect.world("");
        said(&world, RUN, "remember one").await;
        let session = world.host.data(RUN, "harness.session")[0].clone();
        assert_eq!((&session["resumed"], &session["version"]), (&json!(false), &json!("1.2.3")), "{dialect:?}");
        let updates = world.host.data(RUN, "state.updated");
        let kept: Value = updates.iter().map(|data| (data["key"].as_str().unwrap().to_owned(), data["value"].clone())).collect();
        world.host.offer(RUNS[1], "remember two\nrecall", "c1", kept);
        world.host.end(RUNS[1]).await;
        assert_eq!(world.host.text(RUNS[1]), "one;two;");
        let again = &world.host.data(RUNS[1], "harness.session")[0];
        assert_eq!((&again["resumed"], &again["session_id"]), (&json!(true), &session["session_id"]));
        let lost = json!({ "external.session_id": "lost", "external.working_directory": world.workspace("c1") });
        world.host.offer(RUNS[2], "recall\nsay hello", "c1", lost);
        world.host.end(RUNS[2]).await;
        let anew = &world.host.data(RUNS[2], "harness.session")[0];
        assert_eq!(anew["resumed"], false, "{dialect:?}");
        assert!(anew["reason"].as_str().unwrap().contains("lost"), "{anew}");
        assert_eq!(world.host.text(RUNS[2]), "hello", "{dialect:?}");
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_are_answered_by_rules_and_by_people() {
    let rules = r#"rules = [
        { policy = "allow", kinds = ["execute"], commands = ["git status"] },
        { policy = "deny", commands = ["rm"] },
    ]"#;
    for dialect in DIALECTS {
        let mut world = dialect.world(rules);
        let always = match dialect {
            Dialect::Codex => "Allow `make all` always",
            Dialect::Claude => "Allow from now on",
        };
        world.host.answer_next(json!({ "outcome": "submitted", "answer": always }));
        world.host.answer_next(json!({ "outcome": "submitted", "answer": "Allow" }));
        world.host.answer_next(json!({ "outcome": "declined" }));
        let text = "permission git status -s\npermission rm -rf /\npermission make all\npermission make all\npermission make all";
        let expected = match dialect {
            Dialect::Codex => {
                r#""accept"|"decline"|{"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["make", "all"]}}|"accept"|"decline""#
            }
            // A rule holds for the session, and no mode is changed.
            Dialect::Claude => r#"["allow"]|["deny"]|["allow", "addRules session"]|["allow"]|["deny"]"#,
        };
        assert_eq!(said(&world, RUN, text).await, expected);
        let questions = world.host.questions();
        assert_eq!(questions.len(), 3, "{questions:#?}");
        assert_eq!((&questions[0]["title"], &questions[0]["description"]), (&json!("make all"), &json!("make all")));
        let by_rule = world.host.data(RUN, "harness.permission");
        assert_eq!(by_rule.iter().map(|data| data["granted"].clone()).collect::<Vec<_>>(), [json!(true), json!(false)]);
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_arrives_meanwhile_is_answered_by_the_same_run() {
    for dialect in DIALECTS {
        let mut world = dialect.world("");
        world.host.offer(RUN, "say one\nsleep 0.3", "c1", json!({}));
        world.host.until("the first piece", |host| host.data(RUN, "message.delta").first().cloned()).await;
        world.host.say("say two");
        world.host.end(RUN).await;
        assert_eq!(world.host.text(RUN), "one|two", "{dialect:?}");
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_takes_a_message_in_the_middle_of_a_turn() {
    let mut world = Dialect::Codex.world("");
    world.host.offer(RUN, "say one\nsteered_in", "c1", json!({}));
    world.host.until("the first piece", |host| host.data(RUN, "message.delta").first().cloned()).await;
    world.host.say("say two");
    world.host.end(RUN).await;
    assert_eq!(world.host.text(RUN), "one|steered|two");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_interrupts_the_turn_and_leaves_no_process() {
    for dialect in DIALECTS {
        for last in ["sleep 60\nsay never", "hang"] {
            let mut world = dialect.world("");
            let own = world.workspace("c1").join("own");
            world.host.offer(RUN, &format!("say working\nfile {}\n{last}", own.display()), "c1", json!({}));
            let pid = content(&own).await;
            assert!(is_alive(&pid));
            world.host.cancel(RUN);
            let (_, end) = world.host.end(RUN).await;
            assert_eq!((end["status"].as_str(), world.host.text(RUN).as_str()), (Some("cancelled"), "working"));
            gone(&pid).await;
            world.end().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_withdraws_the_question_of_an_agent() {
    for dialect in DIALECTS {
        let mut world = dialect.world("");
        world.host.offer(RUN, "permission make", "c1", json!({}));
        world.host.until("the question", |host| host.questions().first().cloned()).await;
        world.host.cancel(RUN);
        let (_, end) = world.host.end(RUN).await;
        assert_eq!(end["status"], "cancelled");
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_and_a_failed_turn_are_reported_with_their_reasons() {
    for dialect in DIALECTS {
        let mut world = dialect.world("");
        let (code, message) = failed(&world, "say before\ntool ls\ncrash out of cheese, key sk-canary-of-the-test").await;
        assert_eq!(code, "harness_crashed", "{dialect:?}");
        assert!(message.contains("exit code 3") && message.contains("out of cheese, key [secret]"), "{message}");
        assert_eq!(world.host.text(RUN), "before");
        world.host.offer(RUNS[1], "fail the model is away", "c1", json!({}));
        let (_, end) = world.host.end(RUNS[1]).await;
        assert_eq!(end["code"], "harness_agent_error", "{end}");
        assert!(end["message"].as_str().unwrap().contains("the model is away"), "{end}");
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_passed_over_and_a_flood_is_taken_as_far_as_it_may_come() {
    for dialect in DIALECTS {
        let mut world = dialect.world("limits = { output_bytes = 20000000 }");
        let text = said(&world, RUN, "garbage\nflood 5000\nsay hello").await.replace('|', "");
        assert!(text.starts_with("0 1 2 ") && text.ends_with("4999 hello"), "{dialect:?}");
        assert_eq!(world.host.data(RUN, "harness.garbage")[0]["lines"], 3);
        world.host.offer(RUNS[1], "garbage 1000", "c1", json!({}));
        let (_, end) = world.host.end(RUNS[1]).await;
        assert_eq!(end["code"], "harness_protocol", "{end}");
        world.end().await;
        let mut world = dialect.world("limits = { output_bytes = 100000 }");
        let (code, _) = failed(&world, "flood 20000").await;
        assert_eq!(code, "harness_output_limit", "{dialect:?}");
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_may_say_any_number_of_tokens() {
    for dialect in DIALECTS {
        let mut world = dialect.world("");
        assert_eq!(said(&world, RUN, "say hello\nboast").await, "hello", "{dialect:?}");
        let context = world.host.data(RUN, "harness.context").pop().unwrap();
        assert_eq!(context["used"], json!(u64::MAX), "{dialect:?}");
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mcp_endpoint_of_the_run_is_handed_over_and_its_token_does_not_outlive_the_run() {
    let mut world = Dialect::Codex.world("");
    let text = said(&world, RUN, "mcp\narguments").await;
    let (mcp, arguments) = text.split_once('|').unwrap();
    let mcp: Value = serde_json::from_str(mcp).unwrap();
    let server = &mcp["config"]["mcp_servers"]["agent-host"];
    is_at_the_door(&server["url"], RUN);
    assert_eq!(server["bearer_token_env_var"], "AGENT_HOST_MCP_TOKEN");
    assert_eq!(mcp["token"], "[secret]", "the agent has it, and the record has not");
    assert!(!arguments.contains("[secret]"), "{arguments}");
    world.end().await;

    let mut world = Dialect::Claude.world("");
    let text = said(&world, RUN, "mcp\narguments").await;
    let (file, arguments) = text.split_once('|').unwrap();
    let (mode, mcp) = file.split_once(' ').unwrap();
    assert_eq!(mode, "0o600");
    let mcp: Value = serde_json::from_str(mcp).unwrap();
    is_at_the_door(&mcp["mcpServers"]["agent-host"]["url"], RUN);
    assert!(arguments.contains("--allowedTools=mcp__agent-host") && !arguments.contains("[secret]"), "{arguments}");
    world.end().await;
    let path = arguments.split(' ').find_map(|argument| argument.strip_prefix("--mcp-config=")).unwrap();
    assert!(!std::path::Path::new(path).exists(), "{path}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_a_login_says_what_to_do() {
    for dialect in DIALECTS {
        let mut world = dialect.world_with("", &["--login"]);
        let (code, message) = failed(&world, "say hi").await;
        assert_eq!(code, "harness_unavailable", "{dialect:?}");
        assert!(message.contains("_API_KEY") && message.contains("`env`"), "{message}");
        let capabilities = world.host.registrations()[0]["capabilities"].clone();
        assert_eq!((&capabilities["state"], &capabilities["logged_in"]), (&json!("unavailable"), &json!("no")), "{capabilities}");
        assert!(capabilities["problem"].as_str().unwrap().contains("_API_KEY"), "{capabilities}");
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_is_logged_in_by_the_key_of_its_harness() {
    let mut world = Dialect::Codex.world_with("", &["--login", "--key"]);
    assert_eq!(said(&world, RUN, "key").await, "[secret]", "the record does not have the key");
    let capabilities = world.host.registrations()[0]["capabilities"].clone();
    assert_eq!((&capabilities["state"], &capabilities["logged_in"]), (&json!("ready"), &json!("yes")), "{capabilities}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_asks_for_what_it_does_and_leaves_confinement_to_the_harness() {
    for (isolation, sandbox) in [("landlock", "danger-full-access"), ("none", "workspace-write")] {
        let mut world = Dialect::Codex.world(&format!("isolation = \"{isolation}\""));
        assert_eq!(said(&world, RUN, "cat approvals").await, format!("[\"untrusted\", \"{sandbox}\"]"));
        world.end().await;
    }
    let mut world = Dialect::Codex.world_with("", &["-c", "approval_policy=never", "-c", "sandbox_mode=read-only"]);
    assert_eq!(said(&world, RUN, "cat approvals").await, "[null, null]", "the operator has said so");
    world.host.offer(RUNS[1], "unauthorized", "c1", json!({}));
    let (_, end) = world.host.end(RUNS[1]).await;
    assert_eq!(end["code"], "harness_unavailable", "{end}");
    world.end().await;
}
