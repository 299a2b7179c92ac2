//! The documents list the codes of the source, and their examples work.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use agent_host_protocol::{ErrorCode, FailureCode, RefusalCode};
use agent_host_tests::process;
use reqwest::Method;
use serde_json::Value;

use crate::access::support::Guarded;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn document(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// Every document for users, by its name.
fn documents() -> BTreeMap<String, String> {
    let pages = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages = pages.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}"));
    let names = pages.chain(["README.md", "guest-sdk/README.md"].map(str::to_owned));
    names.map(|name| (name.clone(), document(&name))).collect()
}

/// The blocks of code of a document that are in one of these languages.
fn blocks<'a>(text: &'a str, languages: &[&str]) -> Vec<&'a str> {
    let fences: Vec<_> = text.split("\n```").skip(1).step_by(2).collect();
    let block = |fence: &'a str| {
        let (tag, code) = fence.split_once('\n')?;
        tag.split(' ').next().filter(|language| languages.contains(language)).map(|_| code)
    };
    fences.into_iter().filter_map(block).collect()
}

#[test]
fn every_failure_code_is_documented_and_no_other() {
    let text = document("docs/FAILURES.md");
    let table = text.split("## Refusals").next().unwrap();
    let documented: Vec<_> = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let codes: Vec<_> = FailureCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(documented, codes);
    let refusals = text.split("## Refusals").nth(1).unwrap();
    for line in refusals.lines().filter_map(|line| line.strip_prefix("| `")) {
        let code = line.split('`').next().unwrap();
        assert!(!matches!(ErrorCode::from(code), ErrorCode::Other(_)), "{code} is documented and not a code");
    }
}

#[test]
fn every_refusal_of_a_file_is_documented() {
    let text = document("guest-sdk/README.md") + &document("docs/PLUGINS.md");
    for code in RefusalCode::ALL {
        assert!(text.contains(code.as_str()), "`{}` is not documented", code.as_str());
    }
}

#[test]
fn every_problem_code_is_documented_with_its_status() {
    let text = document("docs/API.md");
    for code in agent_host_server::ProblemCode::ALL {
        let row = format!("| `{}` | {} |", code.as_str(), code.status().as_u16());
        assert!(text.contains(&row), "{row} is missing in docs/API.md");
    }
}

#[test]
fn every_configuration_that_is_shown_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agent-host.toml");
    let mut checked = 0;
    for (name, text) in documents() {
        for block in blocks(&text, &["toml"]) {
            toml::from_str::<toml::Table>(block).unwrap_or_else(|error| panic!("{name}: {error}\n{block}"));
            // A manifest of cargo, and the replies of a scripted model.
            if block.starts_with("[package]") || block.starts_with("[[reply]]") {
                continue;
            }
            fs::write(&file, block).unwrap();
            let output = Command::new(process::binary()).arg("--config").arg(&file).args(["config", "check"]).output().unwrap();
            assert!(output.status.success(), "{name}: {}\n{block}", String::from_utf8_lossy(&output.stderr));
            checked += 1;
        }
    }
    assert!(checked >= 10, "{checked} examples of a configuration");
}

#[test]
fn all_json_that_is_shown_is_json() {
    let mut checked = 0;
    for (name, text) in documents() {
        for block in blocks(&text, &["json"]) {
            serde_json::from_str::<serde_json::Value>(block).unwrap_or_else(|error| panic!("{name}: {error}\n{block}"));
            checked += 1;
        }
    }
    assert!(checked >= 5, "{checked} examples of JSON");
}

/// The examples of JSON that name an operation, with it: `json POST /api/v1/events` shows a request, and with a status an answer.
fn json_of_operations(text: &str) -> Vec<(&str, &str)> {
    let fences = text.split("\n```").skip(1).step_by(2).filter_map(|fence| fence.split_once('\n'));
    fences.filter_map(|(tag, code)| Some((tag.strip_prefix("json ")?, code))).collect()
}

/// The schema of a request or an answer in the OpenAPI document.
fn schema<'a>(document: &'a Value, operation: &str) -> Option<&'a Value> {
    let words: Vec<_> = operation.split(' ').collect();
    let operation = &document["paths"][words[1]][words[0].to_lowercase()];
    let body = match words.get(2) {
        Some(status) => &operation["responses"][status],
        None => &operation["requestBody"],
    };
    body["content"].as_object()?.iter().find(|(media, _)| media.contains("json")).map(|(_, content)| &content["schema"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_of_an_operation_is_what_the_openapi_document_says() {
    let host = Guarded::small(&[], "", "");
    let document = host.ask(None, Method::GET, "/api/v1/openapi.json", None).await.good();
    let mut checked = 0;
    for (name, text) in documents() {
        for (operation, code) in json_of_operations(&text) {
            let schema = schema(&document, operation).unwrap_or_else(|| panic!("{name}: no JSON is described for {operation}"));
            let mut schema = schema.clone();
            schema["components"] = document["components"].clone();
            let validator = jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
            let example: Value = serde_json::from_str(code).unwrap();
            let errors: Vec<_> =
                validator.iter_errors(&example).map(|error| format!("{}: {error}", error.instance_path())).collect();
            assert!(errors.is_empty(), "{name}: {operation}: {errors:#?}");
            checked += 1;
        }
    }
    assert!(checked >= 8, "{checked} examples of operations");
}

/// The commands in the examples of a document and in its text.
fn commands(text: &str) -> BTreeSet<String> {
    let shell =
        blocks(text, &["console", "sh"]).into_iter().flat_map(str::lines).map(|line| line.trim().trim_start_matches("$ "));
    let inline = text.split('`').filter(|code| !code.contains('\n'));
    shell.chain(inline).filter(|code| code.starts_with("agent-host ")).map(str::to_owned).collect()
}

#[test]
fn every_command_that_is_shown_is_one() {
    let mut helps = BTreeMap::new();
    let mut help = |words: &[&str]| -> Option<String> {
        let run = || {
            let output = Command::new(process::binary()).args(words).arg("--help").output().unwrap();
            output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
        };
        helps.entry(words.join(" ")).or_insert_with(run).clone()
    };
    let mut checked = 0;
    for (name, text) in documents() {
        for command in commands(&text) {
            let line = command.split('#').next().unwrap();
            let is_word = |word: &&str| {
                word.starts_with(|c: char| c.is_ascii_lowercase()) && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
            };
            let words: Vec<_> = line.split_whitespace().skip(1).take_while(is_word).collect();
            // The last words may be arguments.
            let found = (1..=words.len()).rev().find_map(|count| help(&words[..count]));
            // `agent-host --config FILE` and the like.
            let found = if words.is_empty() { help(&[]) } else { found };
            let found = found.unwrap_or_else(|| panic!("{name}: there is no `{command}`"));
            for flag in line.split_whitespace().filter_map(|word| word.strip_prefix("--")).filter(|flag| !flag.is_empty()) {
                let flag = flag.split('=').next().unwrap();
                let everywhere = help(&[]).unwrap();
                let is_there = found.contains(&format!("--{flag}")) || everywhere.contains(&format!("--{flag}"));
                assert!(is_there, "{name}: `{command}`: there is no --{flag}");
            }
            checked += 1;
        }
    }
    assert!(checked >= 40, "{checked} commands");
}
