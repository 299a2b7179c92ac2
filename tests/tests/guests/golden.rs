//! Journals of an earlier host, with the components that they are of: every later host executes them again, call by call.
//!
//! `tests/golden` is made once for each version of the format, by this test with `AGENT_HOST_MAKE_GOLDEN=1`, and never
//! changed afterwards. A test that fails here means that runs in flight would not survive an upgrade of the host.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use agent_host_protocol::{Limits, RunStatus};
use agent_host_runs::{Recording, Replay, ReplayEnd, ReplayReport, replay};
use agent_host_sandbox::{Component, Options, Sandbox};
use agent_host_tests::{
    World, component,
    world::{EndedRun, in_conversation, limits},
};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

const SCRIPT: &str = r#"
[[reply]]
when = "add"
after_tool = false
tool_calls = [
    { name = "a__add", parameters = { a = 1, b = 2 } },
    { name = "a__add", parameters = { a = 20, b = 22 } },
]

[[reply]]
reasoning = "Both sums are there."
text = "The sums are three and forty-two, which is all that was asked for."
chunk_chars = 7
delay_ms = 2
"#;

fn golden_config(binding: &str, runner: &str) -> String {
    format!(
        r#"
[[models]]
id = "a-chat"
provider = "scripted"
script = "script.toml"

[[mcp_servers]]
id = "a"
command = "{server}"

[[knowledge_bases]]
id = "a-base"

[[bindings]]
id = "{binding}"
runner = "{runner}"

[bindings.resources]
tool_names = ["a__add"]
storage = ["plugin", "workspace", "binding"]
"#,
        server = env!("CARGO_BIN_EXE_mcp-server"),
    )
}

async fn ran(guest: &str, runner: &str, text: &str) -> (World, EndedRun) {
    let world =
        World::from_text(&[guest], &golden_config("golden", runner), |dir| fs::write(dir.join("script.toml"), SCRIPT).unwrap())
            .await;
    let ended = world.ended(world.send(in_conversation("golden", text)).await).await;
    (world, ended)
}

/// A component without the paths of the build machine, which its panic messages contain.
fn anonymous(mut wasm: Vec<u8>) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned();
    let home = PathBuf::from(std::env::var_os("HOME").unwrap());
    for path in [root, home] {
        let path = path.as_os_str().as_encoded_bytes();
        while let Some(at) = wasm.windows(path.len()).position(|window| window == path) {
            wasm[at..at + path.len()].fill(b'_');
        }
    }
    wasm
}

/// Each with a guest, its runner, and its input.
const SET: [(&str, &str, &str); 3] = [
    ("local_agent", "plugin:agent-host/local-agent/default", "Please add one and two, and twenty and twenty-two."),
    ("deterministic", "plugin:test/deterministic/default", "5 10"),
    ("probe", "plugin:test/probe/default", "{}"),
];

async fn replayed(sandbox: &Sandbox, component: &Arc<Component>, recording: &Recording) -> ReplayReport {
    let scratch = tempfile::tempdir().unwrap();
    let how = Replay { component: Arc::clone(component), until: None };
    replay(sandbox, recording, &how, &Limits::default(), scratch.path()).await.unwrap()
}

fn sandbox() -> Sandbox {
    Options { limits: limits(), code_cache: None, compiler: None, components: None }.build().unwrap()
}

#[track_caller]
fn is_same(report: &ReplayReport, recording: &Recording) {
    assert!(matches!(report.ending, ReplayEnd::Same { .. }), "{report:#?}");
    let calls = recording.calls().unwrap().iter().filter(|call| call.part == 0).count() as u64;
    assert_eq!(report.calls, calls);
    assert!(calls >= 3, "{calls} calls prove little");
}

#[tokio::test]
async fn journals_of_earlier_hosts_are_executed_again() {
    let folder = golden().join("1");
    if std::env::var_os("AGENT_HOST_MAKE_GOLDEN").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (guest, runner, text) in SET {
            let (world, ended) = ran(guest, runner, text).await;
            let recording = Recording::read(world.host.ledger(), ended.run.run_id).unwrap();
            fs::write(folder.join(format!("{guest}.json")), serde_json::to_string(&recording).unwrap()).unwrap();
            fs::write(folder.join(format!("{guest}.wasm")), anonymous(fs::read(component(guest)).unwrap())).unwrap();
        }
    }
    let sandbox = sandbox();
    let mut seen = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let recording = Recording::parse(&fs::read_to_string(&path).unwrap()).unwrap();
        let component = sandbox.load(&path.with_extension("wasm"), None).await.unwrap();
        let report = replayed(&sandbox, &component, &recording).await;
        is_same(&report, &recording);
        seen += 1;
    }
    assert_eq!(seen, SET.len());
}

/// Clocks, random numbers, hash maps, sleeping: `tests/guests/examples/deterministic.rs`.
#[tokio::test]
async fn a_run_is_the_same_a_thousand_times() {
    let (world, ended) = ran("deterministic", "plugin:test/deterministic/default", "20 2").await;
    assert_eq!(ended.run.status, RunStatus::Completed, "{ended:#?}");
    let recording = Recording::read(world.host.ledger(), ended.run.run_id).unwrap();
    let sandbox = sandbox();
    let component = sandbox.load(&component("deterministic"), None).await.unwrap();
    for _ in 0..1_000 {
        is_same(&replayed(&sandbox, &component, &recording).await, &recording);
    }
}

#[tokio::test]
async fn live_runs_are_replayed() {
    let sandbox = sandbox();
    for (guest, runner, text) in SET {
        let (world, ended) = ran(guest, runner, text).await;
        let recording = Recording::read(world.host.ledger(), ended.run.run_id).unwrap();
        let component = sandbox.load(&component(guest), None).await.unwrap();
        is_same(&replayed(&sandbox, &component, &recording).await, &recording);
        // A recording that went through a file is the same.
        let read = Recording::parse(&serde_json::to_string(&recording).unwrap()).unwrap();
        is_same(&replayed(&sandbox, &component, &read).await, &read);
    }
}
