//! Words and requests of an agent become results, questions and state.

use serde_json::{Value, json};

use crate::{
    World,
    host::{RUNS, TestHost},
    is_at_the_door, no_file, peer, python,
};

const RUN: &str = RUNS[0];

async fn said(world: &World, run: &str, text: &str) -> String {
    world.host.offer(run, text, "c1", json!({}));
    let (how, end) = world.host.end(run).await;
    assert_eq!((how.as_str(), &end["status"]), ("finalize", &json!("completed")), "{end}");
    world.host.text(run)
}

/// The types of the results; pieces of one message count once, however they came.
fn kinds(host: &TestHost, run: &str) -> Vec<String> {
    let mut kinds: Vec<String> = host.results(run).iter().map(|result| result["type"].as_str().unwrap().to_owned()).collect();
    kinds.dedup_by(|next, kind| next == kind && kind.ends_with(".delta"));
    kinds
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_end_to_end() {
    let mut world = World::new("");
    let text = "think hm\nsay hello \nsay there\nplan a,b\ntool ls -la\nusage\nsay done";
    assert_eq!(said(&world, RUN, text).await, "hello there|done");
    assert_eq!(
        kinds(&world.host, RUN),
        [
            "harness.session",
            "state.updated",
            "state.updated",
            "state.updated",
            "reasoning.delta",
            "message.delta",
            "message.completed",
            "fact.plan",
            "tool.call.started",
            "tool.call.completed",
            "harness.context",
            "message.delta",
            "message.completed",
        ]
    );
    assert_eq!(
        world.host.data(RUN, "fact.plan"),
        [json!({ "steps": [{ "step": "a", "status": "pending" }, { "step": "b", "status": "pending" }], "final": false })]
    );
    let started = &world.host.data(RUN, "tool.call.started")[0];
    assert_eq!((&started["tool_name"], &started["parameters"]), (&json!("execute"), &json!({ "command": "ls -la" })));
    let completed = &world.host.data(RUN, "tool.call.completed")[0];
    assert_eq!(completed["tool_call_id"], started["tool_call_id"]);
    assert_eq!(completed["result"][0], json!({ "type": "text", "text": "out" }));
    assert_eq!(completed["result"][1]["type"], "diff");
    let (_, end) = world.host.end(RUN).await;
    assert_eq!((&end["finish_reason"], &end["usage"]), (&json!("stop"), &json!({ "input": 3, "output": 4 })));
    let registration = &world.host.registrations()[0];
    let capabilities = &registration["capabilities"];
    assert_eq!((&capabilities["state"], &capabilities["version"]), (&json!("ready"), &json!("1.2.3")), "{registration}");
    assert_eq!((&registration["slots"], &registration["runner_ids"]), (&json!(4), &json!(["plugin:acme/coder/default"])));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_a_run_say_what_it_is_about() {
    let mut world = World::new("");
    let attachment = json!({ "artifact_id": "a1", "media_type": "text/plain", "name": "../../notes.txt", "size": 5 });
    let large = json!({ "artifact_id": "a2", "media_type": "text/plain", "name": "large.txt", "size": 1u64 << 40 });
    let skill = json!({ "skill_name": "pdf", "description": "Reads.", "content": { "artifact_id": "s1", "media_type": "text/markdown" } });
    let more = json!({
        "input": { "text": "say hi\nenv AGENT_HOST_CONTEXT\n", "attachments": [attachment, large] },
        "resources": { "skills": [skill], "artifacts": [{ "artifact_id": "s2", "media_type": "text/x-python", "name": "pdf/scripts/a.py" }] },
        "actor": { "actor_type": "user", "actor_id": "u1" },
    });
    world.host.offer_with(RUN, "", "c1", json!({}), more);
    world.host.end(RUN).await;
    let own = world.dir.path().canonicalize().unwrap().join("data/harness/plugin_acme_coder_default-");
    let own = own.parent().unwrap().read_dir().unwrap().next().unwrap().unwrap().path().join("runs").join(RUN);
    let mode = std::os::unix::fs::PermissionsExt::mode(&own.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
    let context: Value = serde_json::from_slice(&std::fs::read(own.join("agent-context.json")).unwrap()).unwrap();
    let members: Vec<_> = context.as_object().unwrap().keys().cloned().collect();
    assert_eq!(
        members,
        ["actor", "context", "delivery", "event", "input", "resources", "run_id", "runtime", "schema", "state", "subject"]
    );
    assert_eq!(context["schema"], "agent-host.external_harness_context.v1");
    let page = std::fs::read_to_string(own.join("AGENT_CONTEXT.md")).unwrap();
    assert!(page.contains("artifact `a2` of the host") && page.contains("`pdf`: Reads."), "{page}");
    let files: Vec<_> = own.join("attachments").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(std::fs::read_to_string(&files[0]).unwrap(), "content of a1");
    assert_eq!(std::fs::read_to_string(own.join("skills/pdf/scripts/a.py")).unwrap(), "content of s2");
    assert!(world.host.text(RUN).ends_with("agent-context.json"));
    assert_eq!(world.workspace("c1").read_dir().unwrap().count(), 0, "nothing is written into the workspace");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_with_the_next_message() {
    let mut world = World::new("");
    said(&world, RUN, "remember one").await;
    let state = |host: &TestHost, run: &str| -> Value {
        let updates = host.data(run, "state.updated");
        Value::Object(updates.iter().map(|data| (data["key"].as_str().unwrap().to_owned(), data["value"].clone())).collect())
    };
    let kept = state(&world.host, RUN);
    assert_eq!(kept["external.agent_version"], "1.2.3");
    assert_eq!(kept["external.working_directory"], json!(world.workspace("c1")));
    world.host.offer(RUNS[1], "remember two\nrecall", "c1", kept.clone());
    world.host.end(RUNS[1]).await;
    assert_eq!(world.host.text(RUNS[1]), "one;two;", "and the repeated turn is not recorded");
    assert_eq!(world.host.data(RUNS[1], "harness.session")[0]["resumed"], true);
    // The workspace is deleted: another session, which says why.
    std::fs::remove_dir_all(world.workspace("c1")).unwrap();
    world.host.offer(RUNS[2], "recall", "c1", kept);
    world.host.end(RUNS[2]).await;
    let session = &world.host.data(RUNS[2], "harness.session")[0];
    assert_eq!((&session["resumed"], &session["reason"]), (&json!(false), &json!("the workspace was deleted")));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_cannot_be_loaded_begins_anew() {
    let mut world = World::new("");
    said(&world, RUN, "say first").await;
    let kept = json!({ "external.session_id": "gone", "external.working_directory": world.workspace("c1") });
    world.host.offer(RUNS[1], "say second", "c1", kept);
    world.host.end(RUNS[1]).await;
    let session = &world.host.data(RUNS[1], "harness.session")[0];
    assert_eq!(session["resumed"], false);
    assert!(session["reason"].as_str().unwrap().contains("no such session"), "{session}");
    assert_eq!(world.host.text(RUNS[1]), "second");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_turn_that_an_agent_repeats_late_is_no_answer() {
    let mut world = World::with_command("", &[&python().0, "-B", &peer(), "--late"]);
    said(&world, RUN, "remember first").await;
    let session = world.host.data(RUN, "harness.session")[0]["session_id"].clone();
    let kept = json!({ "external.session_id": session, "external.working_directory": world.workspace("c1") });
    world.host.offer(RUNS[1], "recall", "c1", kept);
    world.host.end(RUNS[1]).await;
    assert_eq!(world.host.data(RUNS[1], "harness.session")[0]["resumed"], true);
    assert_eq!(world.host.text(RUNS[1]), "first;");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_are_answered_by_rules_and_by_people() {
    let rules = r#"rules = [
        { policy = "allow", kinds = ["execute"], commands = ["git status"] },
        { policy = "deny", commands = ["rm"] },
    ]"#;
    let mut world = World::new(rules);
    world.host.answer_next(json!({ "outcome": "submitted", "answer": "Allow_Always" }));
    world.host.answer_next(json!({ "outcome": "declined" }));
    world.host.answer_next(json!({ "outcome": "expired" }));
    let text = "permission execute git status -s\npermission execute rm -rf /\npermission execute make\npermission execute make\npermission execute make";
    let said = said(&world, RUN, text).await;
    let chosen: Vec<&str> = said.split(r#""optionId": ""#).skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(chosen, ["allow_once", "reject_once", "allow_always", "reject_once", "reject_once"], "{said}");
    let questions = world.host.questions();
    assert_eq!(questions.len(), 3);
    let question = &questions[0];
    assert_eq!(
        (&question["kind"], &question["title"], &question["description"]),
        (&json!("choice"), &json!("make"), &json!("make"))
    );
    assert_eq!(question["answer_schema"]["enum"], json!(["Allow_Once", "Allow_Always", "Reject_Once"]));
    assert!(question["expires_at"].as_u64().unwrap() > agent_host_protocol::time::now() + 500_000);
    let by_rule = world.host.data(RUN, "harness.permission");
    assert_eq!(by_rule.iter().map(|data| data["granted"].clone()).collect::<Vec<_>>(), [json!(true), json!(false)]);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_arrives_meanwhile_is_answered_by_the_same_run() {
    let mut world = World::new("");
    world.host.offer(RUN, "say one\nsleep 0.3", "c1", json!({}));
    world.host.until("the first piece", |host| host.data(RUN, "message.delta").first().cloned()).await;
    world.host.say("say two");
    world.host.end(RUN).await;
    assert_eq!(world.host.text(RUN), "one|two");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mcp_endpoint_of_the_run_is_handed_to_the_agent() {
    let mut world = World::new("");
    let home = said(&world, RUN, "env HOME").await;
    let servers: Value = serde_json::from_slice(&std::fs::read(format!("{home}/mcp")).unwrap()).unwrap();
    is_at_the_door(&servers[0]["url"], RUN);
    let expected = json!([{ "type": "http", "name": "agent-host", "url": servers[0]["url"],
        "headers": [{ "name": "Authorization", "value": "Bearer ahm_token-of-the-run" }] }]);
    assert_eq!(servers, expected);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_takes_no_mcp_server_by_its_protocol_has_it_in_its_configuration() {
    let (python, peer) = (python().0, peer());
    let command = [python.as_str(), "-B", &peer, "--no-mcp"];
    let mut world = World::with_command("preset = \"codex\"", &command);
    let text = said(&world, RUN, "arguments\nsay  \nenv AGENT_HOST_MCP_TOKEN").await;
    let url = text.split('"').nth(1).unwrap();
    is_at_the_door(&json!(url), RUN);
    let settings = format!(
        "-c mcp_servers.agent-host.url=\"{url}\" -c mcp_servers.agent-host.bearer_token_env_var=\"AGENT_HOST_MCP_TOKEN\" [secret]"
    );
    assert_eq!(text, format!("--no-mcp {settings}"), "the token is in the environment alone");
    world.end().await;

    let mut world = World::with_command("preset = \"opencode\"", &command);
    let file = said(&world, RUN, "env OPENCODE_CONFIG").await;
    world.end().await;
    assert!(file.ends_with("/opencode.json") && !std::path::Path::new(&file).exists(), "{file}");

    let mut world = World::with_command("preset = \"gemini\"", &command);
    let path = said(&world, RUN, "env GEMINI_CLI_SYSTEM_DEFAULTS_PATH").await;
    let next = path.replace(RUN, RUNS[1]);
    world.host.offer(RUNS[1], &format!("cat {next}"), "c1", json!({}));
    world.host.end(RUNS[1]).await;
    let settings: Value = serde_json::from_str(&world.host.text(RUNS[1])).unwrap();
    let server = &settings["mcpServers"]["agent-host"];
    is_at_the_door(&server["httpUrl"], RUNS[1]);
    assert_eq!(server["headers"]["Authorization"], "Bearer $AGENT_HOST_MCP_TOKEN");
    world.end().await;
    assert!(!std::path::Path::new(&path).exists() && !std::path::Path::new(&next).exists());

    let mut world = World::with_command("preset = \"pi\"", &command);
    let home = said(&world, RUN, "env HOME").await;
    let servers = std::path::Path::new(&home).join(".pi/agent/mcp.json");
    no_file(&servers).await;
    world.host.offer(RUNS[1], &format!("cat {}", servers.display()), "c1", json!({}));
    world.host.end(RUNS[1]).await;
    let settings: Value = serde_json::from_str(&world.host.text(RUNS[1])).unwrap();
    let server = &settings["mcpServers"]["agent-host"];
    is_at_the_door(&server["url"], RUNS[1]);
    assert_eq!(server["headers"]["Authorization"], "Bearer ${AGENT_HOST_MCP_TOKEN}");
    // Servers of somebody else stay.
    no_file(&servers).await;
    std::fs::write(&servers, r#"{ "mcpServers": { "mine": { "command": "x" } } }"#).unwrap();
    world.host.offer(RUNS[2], &format!("cat {}", servers.display()), "c1", json!({}));
    world.host.end(RUNS[2]).await;
    assert!(world.host.text(RUNS[2]).contains("mine"), "{}", world.host.text(RUNS[2]));
    world.end().await;
    assert!(servers.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_for_the_agent_go_through_no_link_of_the_agent() {
    let (python, peer) = (python().0, peer());
    let mut world = World::with_command("preset = \"pi\"", &[python.as_str(), "-B", &peer, "--no-mcp"]);
    let home = said(&world, RUN, "env HOME").await;
    let outside = world.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let own = std::path::Path::new(&home).join(".pi/agent");
    no_file(&own.join("mcp.json")).await;
    std::fs::remove_dir(&own).unwrap();
    std::os::unix::fs::symlink(&outside, &own).unwrap();
    world.host.offer(RUNS[1], "say hi", "c1", json!({}));
    world.host.end(RUNS[1]).await;
    assert_eq!(world.host.text(RUNS[1]), "hi");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_output_becomes_an_artifact() {
    let mut world = World::new("");
    said(&world, RUN, "big 200000").await;
    let part = &world.host.data(RUN, "tool.call.completed")[0]["result"][0];
    assert_eq!((&part["type"], &part["artifact"]["artifact_id"]), (&json!("truncated"), &json!("artifact-1")), "{part}");
    assert_eq!(world.host.artifacts()[0].1.len(), 200_000);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_answers_with_lines_of_results() {
    let program = r#"
import json, sys
request = json.load(sys.stdin)
def put(kind, **data): print(json.dumps({"type": kind, "data": data}), flush=True)
print("a line of a log")
put("harness.session", session_id="mine")
put("message.delta", chunk={"content": "session " + str(request["session_id"])})
put("message.completed", message={"content": ""})
put("acme.progress", percent=50)
put("message.completed", message={"content": request["text"]})
put("run.completed", finish_reason="length", usage={"input": 1, "output": 2})
"#;
    let mut world = World::with_command("preset = \"command\"", &[&python().0, "-c", program]);
    assert_eq!(said(&world, RUN, "hello").await, "session None|hello");
    let (_, end) = world.host.end(RUN).await;
    assert_eq!((&end["finish_reason"], &end["usage"]["output"]), (&json!("length"), &json!(2)));
    assert_eq!(world.host.data(RUN, "acme.progress"), [json!({ "percent": 50 })]);
    assert_eq!(world.host.data(RUN, "harness.garbage")[0]["lines"], 1);
    let kept = json!({ "external.session_id": "mine", "external.working_directory": world.workspace("c1") });
    world.host.offer(RUNS[1], "again", "c1", kept);
    world.host.end(RUNS[1]).await;
    assert_eq!(world.host.text(RUNS[1]), "session mine|again");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_a_login_says_what_to_do() {
    let mut world = World::with_command("", &[&python().0, &peer(), "--login"]);
    world.host.offer(RUN, "say hi", "c1", json!({}));
    let (_, end) = world.host.end(RUN).await;
    assert_eq!((&end["status"], &end["code"]), (&json!("failed"), &json!("harness_unavailable")));
    assert!(end["message"].as_str().unwrap().contains("`env`"), "{end}");
    assert_eq!(world.host.registrations()[0]["capabilities"]["state"], "unavailable");
    world.end().await;
}
