//! A new configuration is applied as a whole, or the one before stays in force.

use std::fs;

use serde_json::{Value, json};

use crate::operations::host::{Host, LIMITS, echo, output_text, text, until};

fn names(report: &Value, section: &str, what: &str) -> Vec<String> {
    let changes = report["changes"].as_array().unwrap();
    let change = changes.iter().find(|change| change["section"] == section).unwrap_or_else(|| panic!("no {section}: {report}"));
    change[what].as_array().into_iter().flatten().map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_configuration_serves_without_a_restart() {
    let host = Host::start(&["echo"], &format!("{LIMITS}{}", echo("one", "old ")));
    assert!(output_text(&host.say("x").await[0]).starts_with("old x"));

    host.write(&format!("{LIMITS}run_deadline_ms = 9000\n{}{}", echo("one", "new "), echo("two", "second ")));
    let (status, report) = host.reload().await;
    assert_eq!(status, 200, "{report}");
    assert_eq!(
        (names(&report, "bindings", "added"), names(&report, "bindings", "changed")),
        (vec!["two".into()], vec!["one".into()])
    );
    assert_eq!(names(&report, "limits", "changed"), ["run_deadline_ms"]);
    assert_eq!(report["generation"], 1);
    let runs = host.say("y").await;
    let mut answers: Vec<_> = runs.iter().map(|run| output_text(run).split(' ').next().unwrap()).collect();
    answers.sort_unstable();
    assert_eq!(answers, ["new", "second"]);

    // The command line, and the signal.
    host.write(&format!("{LIMITS}{}", echo("one", "third ")));
    let printed = host.command(&["config", "reload"]);
    assert!(printed.status.success() && text(&printed).contains("bindings: changed one; removed two"), "{}", text(&printed));
    assert!(output_text(&host.say("z").await[0]).starts_with("third z"));
    host.write(&format!("{LIMITS}{}", echo("one", "fourth ")));
    host.process.hang_up();
    until("SIGHUP", async || output_text(&host.say("z").await[0]).starts_with("fourth z")).await;
    let (_, report) = host.reload().await;
    assert_eq!((&report["changes"], &report["generation"]), (&json!([]), &json!(4)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_configuration_changes_nothing_and_is_named() {
    let host = Host::start(&["echo"], &format!("{LIMITS}{}", echo("one", "old ")));
    let nowhere = host.dir().join("nowhere");
    let good = echo("one", "new ");
    for (config, code, says) in [
        (format!("{LIMITS}[[bindings\n{good}"), "config_refused", "line"),
        (format!("{LIMITS}{good}surprise = 1\n"), "config_refused", "surprise"),
        (format!("{LIMITS}{good}deadline_ms = 0\n"), "config_refused", "binding 1 (`one`): `deadline_ms`"),
        (format!("{LIMITS}{good}{good}"), "config_refused", "two bindings have the id `one`"),
        (format!("{LIMITS}{good}[[skills]]\npath = {nowhere:?}\n"), "config_refused", "nowhere"),
        (format!("{LIMITS}{good}[[static_refs]]\nname = \"n\"\npath = {nowhere:?}\n"), "config_refused", "nowhere"),
        (
            format!("{LIMITS}{good}[[mcp_servers]]\nid = \"t\"\ncommand = {nowhere:?}\n"),
            "config_refused",
            "the MCP server `t` does not work",
        ),
    ] {
        host.write(&config);
        let (status, problem) = host.reload().await;
        assert_eq!((status, problem["code"].as_str()), (422, Some(code)), "{config}\n{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(says), "{says}: {problem}");
        assert!(output_text(&host.say("x").await[0]).starts_with("old x"), "{config}");
    }
    // The allowed part of a refused change is not applied either.
    host.write(&format!("[limits]\nmax_live_runs = 51\nguest_memory_bytes = 33554432\nrun_deadline_ms = 1\n{good}"));
    let (status, problem) = host.reload().await;
    assert_eq!((status, problem["code"].as_str()), (409, Some("restart_needed")), "{problem}");
    assert_eq!(problem["fields"], json!(["limits.guest_memory_bytes", "limits.max_live_runs"]));
    assert!(output_text(&host.say("x").await[0]).starts_with("old x"));
    let printed = host.command(&["config", "reload"]);
    assert!(!printed.status.success() && text(&printed).contains("limits.max_live_runs"), "{}", text(&printed));
    // The file is read again, with what the command line said, so it is the file that is missed.
    fs::remove_file(host.dir().join("agent-host.toml")).unwrap();
    let (status, problem) = host.reload().await;
    assert_ne!(status, 200, "{problem}");
    host.write(&format!("{LIMITS}{good}"));
    assert_eq!(host.reload().await.0, 200);
    assert!(output_text(&host.say("x").await[0]).starts_with("new x"));
    let (status, problem) = host.post("/api/v1/config/reload", &json!({ "file": "/etc/passwd" })).await;
    assert_eq!((status, problem["field"].as_str()), (400, Some("file")), "{problem}");
}

/// Processes with this word in their command line.
fn processes(word: &str) -> Vec<u32> {
    let mut found: Vec<u32> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|id| fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(word)))
        .collect();
    found.sort_unstable();
    found
}

const SCRIPT: &str = r#"
[[reply]]
after_tool = false
tool_calls = [{ name = "goes__wait", parameters = { ms = 3000 } }]

[[reply]]
after_tool = true
text = "They say: {{tool_results}}"
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_in_flight_keeps_what_it_began_with() {
    let world = tempfile::tempdir().unwrap();
    fs::write(world.path().join("script.toml"), SCRIPT).unwrap();
    let unique = world.path().file_name().unwrap().to_str().unwrap().to_owned();
    let server = |id: &str| {
        let command = env!("CARGO_BIN_EXE_mcp-server");
        format!("[[mcp_servers]]\nid = \"{id}\"\ncommand = \"{command}\"\nargs = [\"{unique}-{id}\"]\n")
    };
    let model = format!("[[models]]\nid = \"chat\"\nprovider = \"scripted\"\nscript = {:?}\n", world.path().join("script.toml"));
    let binding = |tools: &str| {
        format!(
            "[[bindings]]\nid = \"agent\"\nrunner = \"plugin:agent-host/local-agent/default\"\nresources = {{ tool_names = [{tools}] }}\n"
        )
    };
    let before = format!("{LIMITS}{model}{}{}{}", server("stays"), server("goes"), binding("\"*\""));
    let host = Host::start(&["local_agent", "echo"], &before);
    let (stays, goes) = (format!("{unique}-stays"), format!("{unique}-goes"));
    let kept = processes(&stays);
    assert_eq!((kept.len(), processes(&goes).len()), (1, 1));

    let run = host.send("wait").await;
    until("the tool is called", async || host.events(&run).await.iter().any(|event| event["type"] == "tool.call.started")).await;
    host.write(&format!("{LIMITS}{model}{}{}{}", server("stays"), server("comes"), echo("other", "o ")));
    let (status, report) = host.reload().await;
    assert_eq!(status, 200, "{report}");
    assert_eq!(
        (names(&report, "mcp_servers", "added"), names(&report, "mcp_servers", "removed")),
        (vec!["comes".into()], vec!["goes".into()])
    );
    // Server and call go on: the run has them.
    assert_eq!(host.run(&run).await["status"], "running");
    assert_eq!((processes(&stays), processes(&goes).len()), (kept.clone(), 1));
    assert!(output_text(&host.say("x").await[0]).starts_with("o x"));

    until("the run ends", async || host.run(&run).await["status"] == "completed").await;
    let events = host.events(&run).await;
    let ended = events.iter().find(|event| event["type"] == "tool.call.completed").unwrap();
    assert!(ended["data"].to_string().contains("done") && ended["data"].get("error").is_none_or(Value::is_null), "{ended}");
    until("the old server ends", async || processes(&goes).is_empty()).await;
    assert_eq!((processes(&stays), processes(&format!("{unique}-comes")).len()), (kept, 1));
    drop(host.process.terminate());
    assert_eq!(processes(&unique), Vec::<u32>::new(), "a server outlives the host");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_was_changed_is_read_again() {
    let world = tempfile::tempdir().unwrap();
    let token = world.path().join("token");
    fs::write(&token, "first-token").unwrap();
    let config = format!(
        "{LIMITS}[[approvers]]\nid = \"alice\"\ntoken = {{ file = {token:?} }}\n[[bindings]]\nid = \"asks\"\n\
         runner = \"plugin:test/asks/default\"\n"
    );
    let host = Host::start(&["asks"], &config);
    let run = host.send("ask confirmation - sure").await;
    let asked = async || host.events(&run).await.into_iter().find(|event| event["type"] == "action.requested");
    until("it asks", async || asked().await.is_some()).await;
    let action = asked().await.unwrap()["data"]["action_id"].as_str().unwrap().to_owned();
    let answer = async |token: &str| {
        let url = host.process.url(&format!("/api/v1/actions/{action}/respond"));
        let request = reqwest::Client::new().post(url).bearer_auth(token).json(&json!({ "decision": "submit" }));
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(answer("second-token").await, 401);
    fs::write(&token, "second-token").unwrap();
    assert_eq!(answer("second-token").await, 401);
    let (status, report) = host.reload().await;
    assert_eq!((status, &report["changes"]), (200, &json!([])), "{report}");
    assert_eq!(answer("first-token").await, 401);
    assert_eq!(answer("second-token").await, 200);
    until("the run goes on", async || host.run(&run).await["status"] == "completed").await;
}
