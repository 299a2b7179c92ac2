//! Components that other tools than the SDK make: the examples of docs/LANGUAGES.md answer, and a refusal names the tool and what to
//! change in its command line, and that helps.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use agent_host_protocol::{PluginReport, PluginStatus, RefusalCode};
use agent_host_runs::Config;
use agent_host_tests::{
    World, npm, pip,
    world::{bound, limits},
};

/// The contract, as authors have it.
const WIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wit");
const RUNNER: &str = include_str!("toolchains/runner.js");

/// Versions that docs/LANGUAGES.md names.
const COMPONENTIZE_QJS: &str = "0.4.5";
const COMPONENTIZE_PY: &str = "componentize-py==0.25.1";

/// A file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)
}

/// Builds the runner with componentize-qjs.
fn built(dir: &Path, wit: &Path, world: &str, options: &[&str]) -> PathBuf {
    let (script, component) = (dir.join("runner.js"), dir.join("runner.wasm"));
    fs::write(&script, RUNNER).unwrap();
    componentize_qjs(&script, &component, wit, world, options);
    component
}

fn componentize_qjs(script: &Path, component: &Path, wit: &Path, world: &str, options: &[&str]) {
    let mut command = Command::new(npm::program("componentize-qjs", COMPONENTIZE_QJS, "componentize-qjs"));
    command.arg("--wit").arg(wit).arg("--js").arg(script).arg("--output").arg(component).args(["--world", world]).args(options);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// A folder with the interfaces of the host, and this world that uses them.
fn lay_out_wit(wit: &Path, world: &str) {
    fs::create_dir_all(wit.join("deps/runner")).unwrap();
    for file in fs::read_dir(WIT).unwrap() {
        let file = file.unwrap().path();
        fs::copy(&file, wit.join("deps/runner").join(file.file_name().unwrap())).unwrap();
    }
    fs::write(wit.join("world.wit"), world).unwrap();
}

async fn inspected(component: &Path) -> PluginReport {
    agent_host_runs::inspect(component, &limits()).await.unwrap()
}

/// Code, message and fix of a refusal.
fn refusal(report: PluginReport) -> (RefusalCode, String, String) {
    let refusal = report.refusal.unwrap_or_else(|| panic!("{:?} is admitted", report.file));
    (refusal.code, refusal.message, refusal.fix)
}

#[tokio::test]
async fn a_component_of_componentize_qjs_is_refused_with_the_options_that_help() {
    let dir = tempfile::tempdir().unwrap();
    // As somebody begins: the stock world, and no option.
    let (code, message, fix) = refusal(inspected(&built(dir.path(), Path::new(WIT), "agent-runner", &[])).await);
    assert_eq!(code, RefusalCode::Invalid, "{message}");
    assert!(message.ends_with("(built with componentize-qjs)") && fix.contains("`--sync`"), "{message}: {fix}");
    let stubbed = built(dir.path(), Path::new(WIT), "agent-runner", &["--sync", "--stub-wasi"]);
    let (code, message, fix) = refusal(inspected(&stubbed).await);
    assert_eq!(code, RefusalCode::Invalid, "{message}");
    assert!(fix.starts_with("leave out `--stub-wasi`"), "{message}: {fix}");

    let (code, message, fix) = refusal(inspected(&built(dir.path(), Path::new(WIT), "agent-runner", &["--sync"])).await);
    assert_eq!(code, RefusalCode::UndeclaredImport, "{message}");
    assert!(fix.contains("instead of `agent-runner`") && fix.contains("`--world mine`"), "{fix}");
    // The world of the message is one.
    let world = fix.split('`').find(|code| code.starts_with("world mine {")).unwrap_or_else(|| panic!("{fix}"));
    let wit = dir.path().join("wit");
    lay_out_wit(&wit, &format!("package test:mine;\n{world}\n"));
    let report = inspected(&built(dir.path(), &wit, "mine", &["--sync"])).await;
    assert_eq!(report.status, PluginStatus::Ready, "{report:#?}");
    assert_eq!(report.runners[0].id.to_string(), "plugin:test/js/default");
}

/// Lets the example of a language answer: it streams, keeps a value between two runs, and fails with its own code.
async fn answers(component: &Path, runner: &str) {
    let world = World::configured(&[], |config| {
        fs::copy(component, config.plugins_dir.join("example.wasm")).unwrap();
        Config { bindings: vec![bound(runner)], ..config }
    })
    .await;
    let report = world.report("example.wasm").unwrap();
    assert_eq!(report.status, PluginStatus::Ready, "{report:#?}");
    for turn in 1..=2 {
        let ended = world.say_in("c", "hello there").await;
        let text = format!("{turn}: hello there");
        assert_eq!((ended.answer_text(), ended.streamed()), (text.clone(), format!("{text} ")), "{ended:?}");
        assert_eq!(ended.kinds().iter().filter(|kind| **kind == "message.delta").count(), 3, "{ended:?}");
    }
    let failed = world.say_in("c", "").await;
    assert_eq!(failed.failure(), "acme.no_text", "{failed:?}");
}

/// The page with its commands, which name what this test does.
fn says(command: &str) {
    let page = fs::read_to_string(repository("docs/LANGUAGES.md")).unwrap();
    assert!(page.contains(command), "docs/LANGUAGES.md does not say: {command}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_python_answers() {
    says(&format!("pip install {COMPONENTIZE_PY}\n$ componentize-py -d wit -w python-runner componentize app -o python.wasm\n"));
    let dir = tempfile::tempdir().unwrap();
    lay_out_wit(&dir.path().join("wit"), &fs::read_to_string(repository("example-runners/python/world.wit")).unwrap());
    fs::copy(repository("example-runners/python/app.py"), dir.path().join("app.py")).unwrap();
    let mut command = Command::new(pip::programs(COMPONENTIZE_PY).join("componentize-py"));
    command.current_dir(dir.path()).args(["-d", "wit", "-w", "python-runner", "componentize", "app", "-o", "python.wasm"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    answers(&dir.path().join("python.wasm"), "plugin:acme/python/default").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_javascript_answers() {
    let arguments = "--wit wit --world javascript-runner --js runner.js --output javascript.wasm --sync";
    says(&format!("npx --yes componentize-qjs@{COMPONENTIZE_QJS} {arguments}\n"));
    let dir = tempfile::tempdir().unwrap();
    let (wit, component) = (dir.path().join("wit"), dir.path().join("javascript.wasm"));
    lay_out_wit(&wit, &fs::read_to_string(repository("example-runners/javascript/world.wit")).unwrap());
    componentize_qjs(&repository("example-runners/javascript/runner.js"), &component, &wit, "javascript-runner", &["--sync"]);
    answers(&component, "plugin:acme/javascript/default").await;
}
