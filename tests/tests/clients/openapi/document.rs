//! The description as a document.

use std::{
    fs,
    process::{Command, Output},
};

use agent_host_tests::{Process, process};

use crate::openapi::programs;

fn printed() -> Output {
    let dir = tempfile::tempdir().unwrap();
    process::command(dir.path()).arg("openapi").output().unwrap()
}

#[tokio::test]
async fn a_host_serves_what_the_command_line_prints() {
    let printed = printed();
    assert!(printed.status.success() && printed.stderr.is_empty(), "{printed:?}");
    let host = Process::start(&[], "");
    let served = reqwest::get(host.url("/api/v1/openapi.json")).await.unwrap();
    assert_eq!(served.status(), 200);
    assert_eq!(served.headers()["content-type"], "application/json");
    assert_eq!(served.text().await.unwrap(), String::from_utf8(printed.stdout).unwrap().trim_end());
}

#[test]
fn a_configuration_that_cannot_be_read_keeps_nobody_from_the_description() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("agent-host.toml"), "nonsense = 7\n").unwrap();
    let printed = process::command(dir.path()).arg("openapi").output().unwrap();
    assert!(printed.status.success(), "{printed:?}");
}

#[test]
fn it_is_a_valid_document_of_openapi_3_1() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("openapi.json");
    fs::write(&file, printed().stdout).unwrap();
    let validate =
        || Command::new(programs().join("openapi-spec-validator")).args(["--schema", "3.1"]).arg(&file).output().unwrap();
    let said = validate();
    assert!(said.status.success(), "{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));

    // The validator would see it.
    let broken = fs::read_to_string(&file).unwrap().replacen("\"responses\"", "\"answers\"", 1);
    fs::write(&file, broken).unwrap();
    assert!(!validate().status.success());
}
