//! Components that other tools than the SDK make: a refusal names the tool and what to change in its command line, and that helps.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use agent_host_protocol::{PluginReport, PluginStatus, RefusalCode};
use agent_host_tests::{npm, world::limits};

/// The contract, as authors have it.
const WIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wit");
const RUNNER: &str = include_str!("toolchains/runner.js");

/// Builds the runner with componentize-qjs.
fn built(dir: &Path, wit: &Path, world: &str, options: &[&str]) -> PathBuf {
    let (script, component) = (dir.join("runner.js"), dir.join("runner.wasm"));
    fs::write(&script, RUNNER).unwrap();
    let mut command = Command::new(npm::program("componentize-qjs", "0.4.5", "componentize-qjs"));
    command.arg("--wit").arg(wit).arg("--js").arg(&script).arg("--output").arg(&component).args(["--world", world]).args(options);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    component
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
    fs::create_dir_all(wit.join("deps/runner")).unwrap();
    for file in fs::read_dir(WIT).unwrap() {
        let file = file.unwrap().path();
        fs::copy(&file, wit.join("deps/runner").join(file.file_name().unwrap())).unwrap();
    }
    fs::write(wit.join("world.wit"), format!("package test:mine;\n{world}\n")).unwrap();
    let report = inspected(&built(dir.path(), &wit, "mine", &["--sync"])).await;
    assert_eq!(report.status, PluginStatus::Ready, "{report:#?}");
    assert_eq!(report.runners[0].id.to_string(), "plugin:test/js/default");
}
