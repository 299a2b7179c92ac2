//! Effects whose outcome nobody knows: a person says whether they are repeated, where the binding lets one.

use std::{
    fs,
    time::{Duration, Instant},
};

use agent_host_tests::{process, world::PATIENCE};
use serde_json::{Value, json};

use crate::support::Host;

const SCRIPT: &str = r#"
[[reply]]
after_tool = false
tool_calls = [
    { name = "t__count", parameters = { note = "one" } },
    { name = "t__count", parameters = { note = "two" } },
]

[[reply]]
after_tool = true
text = "They say: {{tool_results}}"
"#;

/// An agent that calls two tools at once, which are killed in the middle; `in_doubt` is its binding's.
async fn interrupted(in_doubt: &str, world: &std::path::Path) -> (Host, String) {
    fs::write(world.join("script.toml"), SCRIPT).unwrap();
    let config = format!(
        r#"
[[models]]
id = "chat"
provider = "scripted"
script = {script:?}

[[mcp_servers]]
id = "t"
command = "{server}"
env = {{ COUNT_FILE = {counted:?}, HOLD_FILE = {hold:?} }}
start_timeout_ms = 60000

[[bindings]]
id = "agent"
runner = "plugin:agent-host/local-agent/default"
resources = {{ tool_names = ["t__*"] }}
in_doubt = "{in_doubt}"
"#,
        script = world.join("script.toml"),
        counted = world.join("counted"),
        hold = world.join("hold"),
        server = env!("CARGO_BIN_EXE_mcp-server"),
    );
    fs::write(world.join("hold"), "").unwrap();
    let mut host = Host::start(&["local_agent"], &config);
    let run = host.send("count twice").await;
    for note in ["one", "two"] {
        host.until(&run, |event| event["type"] == "tool.call.started" && event["data"]["parameters"]["note"] == note).await;
    }
    // The tool is at the first call; the second waits for it in the pipe.
    let began = Instant::now();
    while count(world) < 1 {
        assert!(began.elapsed() < PATIENCE, "the tool does not work");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    host.kill();
    fs::remove_file(world.join("hold")).unwrap();
    host.revive();
    (host, run)
}

fn count(world: &std::path::Path) -> usize {
    fs::read_to_string(world.join("counted")).map_or(0, |text| text.lines().count())
}

async fn respond(host: &Host, action: &str, decision: &str) -> (u16, Value) {
    let url = format!("{}/api/v1/actions/{action}/respond", *host.urls().borrow());
    let answer = reqwest::Client::new().post(url).json(&json!({ "decision": decision })).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_person_is_asked_where_the_binding_says_so() {
    let world = tempfile::tempdir().unwrap();
    let (mut host, run) = interrupted("ask", world.path()).await;
    host.until_status(&run, "waiting").await;
    let asked: Vec<Value> = host.events(&run).await.into_iter().filter(|event| event["type"] == "action.requested").collect();
    assert_eq!(asked.len(), 2, "{asked:#?}");
    assert!(asked.iter().all(|event| event["data"]["target"]["tool_name"] == "t__count"), "{asked:#?}");
    let actions: Vec<&str> = asked.iter().map(|event| event["data"]["action_id"].as_str().unwrap()).collect();
    assert_eq!(host.run(&run).await["status_reason"], "effect_in_doubt");

    // The question stands, whatever becomes of the host.
    host.kill_and_revive();
    host.until_ready(|ready| ready["parked_runs"] == 1).await;
    assert_eq!(host.run(&run).await["status"], "waiting");
    assert_eq!(count(world.path()), 1, "nothing was repeated");

    let (status, problem) = respond(&host, &format!("{run}.99"), "repeat").await;
    assert_eq!((status, problem["code"].as_str()), (404, Some("not_found")));
    assert_eq!(respond(&host, "nonsense", "repeat").await.0, 404);
    assert_eq!(respond(&host, actions[0], "perhaps").await.0, 400);

    // Two concurrent answers: one of them is refused as the second.
    let answers = tokio::join!(respond(&host, actions[0], "repeat"), respond(&host, actions[0], "repeat"));
    let mut statuses = [answers.0.0, answers.1.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409], "{answers:?}");

    // The other answer, by the command line, when the run waits again.
    host.until_status(&run, "waiting").await;
    let server = host.urls().borrow().clone();
    let respond = ["runs", "respond", "--server", &server, actions[1], "skip"];
    let mut warning = None;
    for _ in 0..100 {
        let output = process::command(host.dir()).args(respond).output().unwrap();
        if output.status.success() {
            warning = Some(String::from_utf8(output.stdout).unwrap());
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(warning.is_some_and(|warning| warning.contains("the run continues")));

    let ended = host.ended(&run).await.completed();
    assert_eq!(count(world.path()), 2, "one was made again, the other was not: {ended}");
    let ends = ended.of("tool.call.completed");
    assert_eq!(ends.len(), 2, "{ended}");
    let in_doubt = ends.iter().filter(|end| end["category"] == "effect_in_doubt").count();
    assert_eq!(in_doubt, 1, "{ended}");
    assert_eq!(ended.of("action.resolved").len(), 2, "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_waits_for_an_answer_can_be_cancelled() {
    let world = tempfile::tempdir().unwrap();
    let (host, run) = interrupted("ask", world.path()).await;
    host.until_status(&run, "waiting").await;
    host.cancel(&run).await;
    let ended = host.ended(&run).await;
    assert_eq!(ended.run["status"], "cancelled", "{ended}");
    assert_eq!(ended.of("tool.call.started").len(), ended.of("tool.call.completed").len(), "{ended}");
    let asked = ended.of("action.requested")[0]["action_id"].as_str().unwrap().to_owned();
    assert_eq!(respond(&host, &asked, "repeat").await.0, 409);
    assert_eq!(count(world.path()), 1);
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn otherwise_the_runner_is_told() {
    let world = tempfile::tempdir().unwrap();
    let (host, run) = interrupted("error", world.path()).await;
    let ended = host.ended(&run).await.completed();
    assert_eq!(count(world.path()), 1, "nothing was repeated: {ended}");
    let ends = ended.of("tool.call.completed");
    assert!(ends.len() == 2 && ends.iter().all(|end| end["category"] == "effect_in_doubt"), "{ended}");
    host.check();
}
