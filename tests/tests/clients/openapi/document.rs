//! The description as a document.

use std::{
    fs,
    process::{Command, Output},
};

use agent_host_protocol::RunId;
use agent_host_tests::{Process, process};
use serde_json::Value;

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

#[tokio::test]
async fn a_route_takes_the_dialect_where_the_description_says_so() {
    let host = Process::start(&[], "");
    let document: Value = serde_json::from_slice(&printed().stdout).unwrap();
    let http = reqwest::Client::new();
    let mut takers = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
            let takes = parameters.iter().any(|parameter| parameter["name"] == "dialect");
            // Bodies and ids of other routes are judged before their parameters, and the profile says its own.
            let is_plain = method == "get" && path.starts_with("/api/v1/") && !path.starts_with("/api/v1/agent/");
            if !takes && (!is_plain || path.contains('{')) {
                continue;
            }
            let at = format!("{}?dialect=langbot-5", path.replace("{id}", &RunId::new().to_string()).replace("{function}", "x"));
            let method = method.to_uppercase().parse().unwrap();
            let answer = http.request(method, host.url(&at)).send().await.unwrap();
            let (status, text) = (answer.status(), answer.text().await.unwrap());
            assert_eq!(status, 400, "{at}: {text}");
            assert_eq!(text.contains("`langbot-4.11`"), takes, "{at}: {text}");
            takers += usize::from(takes);
        }
    }
    assert!(takers >= 20, "{takers}");
}

#[test]
fn examples_are_requests_that_the_description_allows() {
    let document: Value = serde_json::from_slice(&printed().stdout).unwrap();
    let operations = document["paths"].as_object().unwrap().iter().flat_map(|(path, operations)| {
        operations.as_object().unwrap().iter().map(move |(method, operation)| (format!("{method} {path}"), operation))
    });
    let mut examples = 0;
    for (at, operation) in operations {
        for media in operation["requestBody"]["content"].as_object().into_iter().flat_map(|content| content.values()) {
            let Some(example) = media.get("example") else { continue };
            let mut schema = media["schema"].clone();
            schema["components"] = document["components"].clone();
            let validator = jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
            let wrong: Vec<String> = validator.iter_errors(example).map(|error| error.to_string()).collect();
            assert!(wrong.is_empty(), "{at}: {wrong:#?}");
            examples += 1;
        }
    }
    assert!(examples >= 10, "{examples}");
}

/// Generators of clients make types of every response that is no reference: of a few hundred, a few hundred files.
#[test]
fn refusals_are_described_once_for_all_operations() {
    let document: Value = serde_json::from_slice(&printed().stdout).unwrap();
    let shared = document["components"]["responses"].as_object().unwrap();
    assert!(shared.contains_key("NotFound") && shared.len() < 50, "{:?}", shared.keys());
    let mut references = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for operation in operations.as_object().unwrap().values() {
            for (status, response) in operation["responses"].as_object().unwrap() {
                // Its answer has the reasons, and is no problem document.
                if status.starts_with(['4', '5']) && path != "/readyz" {
                    assert!(response["$ref"].is_string(), "{path} {status}: {response}");
                    assert!(operation["x-problem-codes"][status].as_array().is_some_and(|codes| !codes.is_empty()), "{path}");
                    references += 1;
                }
            }
        }
    }
    assert!(references > 500, "{references}");
    assert_eq!(document["servers"][0]["url"], "/");
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
    let host_answer = validate();
    assert!(
        host_answer.status.success(),
        "{}{}",
        String::from_utf8_lossy(&host_answer.stdout),
        String::from_utf8_lossy(&host_answer.stderr)
    );

    // The validator would see it.
    let broken = fs::read_to_string(&file).unwrap().replacen("\"responses\"", "\"answers\"", 1);
    fs::write(&file, broken).unwrap();
    assert!(!validate().status.success());
}
