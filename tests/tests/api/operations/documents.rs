//! The documents list the codes of the source, and their examples work.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use agent_host_protocol::{ErrorCode, FailureCode, RefusalCode};
use agent_host_tests::process;
use reqwest::{Method, StatusCode};
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

/// The rows of the tables of a page that begin with a code, as cells.
fn rows_of_codes(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim_matches([' ', '`'])).collect()).collect()
}

/// Fails unless each row has all its cells: the last two are the cause and the remedy.
fn assert_are_whole(rows: &[Vec<&str>], cells: usize) {
    for row in rows {
        assert!(row.len() == cells && row.iter().all(|cell| !cell.is_empty()), "cause or remedy is missing: {row:?}");
    }
}

#[test]
fn every_failure_code_is_documented_and_no_other() {
    let text = document("docs/FAILURES.md");
    let (failures, refusals) = text.split_once("## Refusals").unwrap();
    let (failures, refusals) = (rows_of_codes(failures), rows_of_codes(refusals));
    assert_are_whole(&failures, 4);
    let codes: Vec<_> = FailureCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(failures.iter().map(|row| row[0]).collect::<Vec<_>>(), codes);
    assert_are_whole(&refusals, 3);
    let named: BTreeSet<_> = ErrorCode::NAMED.iter().map(ErrorCode::as_str).collect();
    assert_eq!(refusals.iter().map(|row| row[0]).collect::<BTreeSet<_>>(), named);
}

#[test]
fn every_refusal_of_a_file_is_documented() {
    let text = document("guest-sdk/README.md") + &document("docs/PLUGINS.md");
    for code in RefusalCode::ALL {
        assert!(text.contains(code.as_str()), "`{}` is not documented", code.as_str());
    }
}

#[test]
fn every_problem_code_is_documented_with_its_status_cause_and_remedy() {
    let text = document("docs/API.md");
    let table = text.split_once("## Problem codes").unwrap().1;
    let rows = rows_of_codes(table.split("\n## ").next().unwrap());
    assert_are_whole(&rows, 4);
    let documented: BTreeSet<_> = rows.iter().map(|row| (row[0].to_owned(), row[1].to_owned())).collect();
    let codes = agent_host_server::ProblemCode::ALL.iter();
    let codes: BTreeSet<_> = codes.map(|code| (code.as_str().to_owned(), code.status().as_u16().to_string())).collect();
    let differ: Vec<_> = documented.symmetric_difference(&codes).collect();
    assert!(differ.is_empty(), "docs/API.md and `ProblemCode` differ: {differ:?}");
}

#[test]
fn every_code_of_the_agent_api_is_documented_with_its_status_cause_and_remedy() {
    let source = document("host/server/src/agents/profile/errors.rs");
    // `Forbidden = "AGENT_FORBIDDEN", FORBIDDEN;`
    let codes = source.lines().filter_map(|line| line.split_once(" = \"")?.1.strip_suffix(';')?.split_once("\", "));
    let codes: BTreeSet<_> = codes.map(|(code, status)| (code.to_owned(), status.to_owned())).collect();
    let text = document("docs/AGUI.md");
    let rows = rows_of_codes(text.split_once("### Refusals").unwrap().1.split("\n## ").next().unwrap());
    assert_are_whole(&rows, 4);
    let name = |status: &str| {
        let status: StatusCode = status.parse().unwrap();
        status.canonical_reason().unwrap().to_uppercase().replace(' ', "_")
    };
    let documented: BTreeSet<_> = rows.iter().map(|row| (row[0].to_owned(), name(row[1]))).collect();
    let differ: Vec<_> = documented.symmetric_difference(&codes).collect();
    assert!(codes.len() > 25 && differ.is_empty(), "docs/AGUI.md and `profile/errors.rs` differ: {differ:?}");
}

/// The string literals among the arguments of a macro call that are no value of a field.
fn messages_of_call(arguments: &str) -> Vec<String> {
    let (mut found, mut depth, mut before) = (Vec::new(), 0, ' ');
    let mut chars = arguments.chars();
    while let Some(c) = chars.next() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => break,
            ')' | ']' | '}' => depth -= 1,
            '"' => {
                let mut text = String::new();
                while let Some(c) = chars.next().filter(|c| *c != '"') {
                    match if c == '\\' { chars.next() } else { None } {
                        // The line goes on behind the spaces of the next one.
                        Some('\n') => {
                            let rest = chars.as_str().trim_start();
                            chars = rest.chars();
                        }
                        Some(escaped) => text.push(escaped),
                        None => text.push(c),
                    }
                }
                if depth == 0 && matches!(before, ' ' | ',') {
                    found.push(text);
                }
            }
            _ => {}
        }
        if !c.is_whitespace() {
            before = c;
        }
    }
    found
}

/// A message without its values and marks: as a document shows it.
fn as_documented(message: &str) -> String {
    let (mut plain, mut rest) = (String::new(), message);
    while let Some((text, value)) = rest.split_once('{') {
        plain += text;
        plain += "…";
        rest = value.split_once('}').map_or("", |(_, rest)| rest);
    }
    (plain + rest).replace('`', "")
}

/// The messages of warnings and errors in the source below `dir`, without those that are only a value.
fn logged(dir: &Path, found: &mut BTreeSet<String>) {
    for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            logged(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).unwrap();
            let source = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            for call in ["warn!(", "error!("] {
                let calls = source.split(call).skip(1).flat_map(messages_of_call);
                let messages = calls.map(|message| as_documented(&message));
                found.extend(messages.filter(|message| message.chars().any(char::is_alphabetic)));
            }
        }
    }
}

#[test]
fn every_warning_of_the_log_is_documented_with_cause_and_remedy() {
    let mut messages = BTreeSet::new();
    for entry in fs::read_dir(root().join("host")).unwrap() {
        let source = entry.unwrap().path().join("src");
        if source.is_dir() {
            logged(&source, &mut messages);
        }
    }
    assert!(messages.len() > 80, "{} messages were found in the source", messages.len());
    let text = document("docs/WARNINGS.md");
    let rows: Vec<Vec<_>> = text
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| line |"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    assert_are_whole(&rows, 3);
    let documented: BTreeSet<_> = rows.iter().flat_map(|row| row[0].split(" <br> ")).map(str::to_owned).collect();
    let missing: Vec<_> = messages.difference(&documented).collect();
    assert!(missing.is_empty(), "these lines are not in docs/WARNINGS.md: {missing:#?}");
    // The texts of the lines that consist of a value only.
    let source = document("xtask/messages.txt").replace('`', "");
    for line in documented.difference(&messages) {
        let part = line.split('…').max_by_key(|part| part.len()).unwrap();
        assert!(source.contains(part.trim()), "docs/WARNINGS.md has a line that the host does not write: {line}");
    }
}

#[test]
fn the_messages_of_a_call_are_found() {
    let call = "name = \"field\", %error, \"it is {x:?}, see `a`: \\\n     more\"); other(\"not this\")";
    assert_eq!(messages_of_call(call), ["it is {x:?}, see `a`: more"]);
    assert_eq!(as_documented("it is {x:?}, see `a`"), "it is …, see a");
}

/// Pages whose beginning has another form: the tables of contents and of changes, and the front pages of folders.
const OTHER_BEGINNINGS: [&str; 2] = ["docs/SUMMARY.md", "README.md"];
/// Pages that are lists of terms or of keys, and have no example of their own.
const LISTS: [&str; 2] = ["docs/GLOSSARY.md", "docs/REFERENCE.md"];

#[test]
fn every_page_says_what_its_reader_can_do_after_it_and_has_an_example() {
    for (name, text) in documents() {
        if OTHER_BEGINNINGS.contains(&name.as_str()) {
            continue;
        }
        let first = text.split("\n\n").nth(1).unwrap_or_default();
        assert!(first.starts_with("After this page "), "{name} begins with `{first}`");
        let examples = blocks(&text, &["toml", "json", "console", "sh", "rust", "ts", "python", "yaml", "text"]);
        assert!(!examples.is_empty() || LISTS.contains(&name.as_str()), "{name} has no example");
    }
}

#[test]
fn every_configuration_that_is_shown_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agent-host.toml");
    let mut checked = 0;
    for (name, text) in documents() {
        // A configuration that a command writes: `cat > agent-host.toml <<'END'`.
        let written = blocks(&text, &["console", "sh"]);
        let written = written.iter().filter_map(|block| block.split_once("<<'END'\n")?.1.split_once("\nEND\n"));
        for block in blocks(&text, &["toml"]).into_iter().chain(written.map(|(block, _)| block)) {
            toml::from_str::<toml::Table>(block).unwrap_or_else(|error| panic!("{name}: {error}\n{block}"));
            // A manifest of cargo, and the replies of a scripted model.
            if block.starts_with("[package]") || block.starts_with("[[reply]]") {
                continue;
            }
            fs::write(&file, block).unwrap();
            let output =
                Command::new(process::binary()).arg("--config").arg(&file).args(["--json", "config", "check"]).output().unwrap();
            let complaint = String::from_utf8_lossy(&output.stderr);
            // The runners and secrets of an example are not here.
            let is_valid = output.status.success() || complaint.contains("\"incomplete_config\"");
            assert!(is_valid, "{name}: {complaint}\n{block}");
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

/// A request of `curl` in a document.
struct CurlRequest<'a> {
    method: &'a str,
    path: &'a str,
    /// The JSON behind `-d`.
    body: Option<&'a str>,
}

impl<'a> CurlRequest<'a> {
    /// The request of a command line. `None` if it is no `curl`.
    fn parse(line: &'a str) -> Option<Self> {
        let arguments = line.trim().trim_start_matches("$ ").strip_prefix("curl ")?;
        let (_, address) = arguments.split_once("http://127.0.0.1:7070")?;
        let path = address.split([' ', '\'', '"', '?']).next()?;
        let body = arguments.split_once("-d '").and_then(|(_, body)| Some(body.split_once('\'')?.0));
        let sends = body.is_some() || ["-F ", "--data"].iter().any(|option| arguments.contains(option));
        let method = arguments.split_once("-X ").and_then(|(_, method)| method.split(' ').next());
        Some(Self { method: method.unwrap_or(if sends { "POST" } else { "GET" }), path, body })
    }

    /// The operation of the OpenAPI document that the request calls, as `METHOD PATH`.
    fn operation(&self, document: &Value) -> Option<String> {
        let is_same = |template: &&String| {
            let (parts, given) = (template.split('/').collect::<Vec<_>>(), self.path.split('/').collect::<Vec<_>>());
            parts.len() == given.len() && parts.iter().zip(given).all(|(part, given)| part.starts_with('{') || *part == given)
        };
        let paths = document["paths"].as_object()?;
        let path = paths.keys().filter(is_same).find(|path| !paths[*path][self.method.to_lowercase()].is_null())?;
        Some(format!("{} {path}", self.method))
    }
}

/// Every command line in the code of a document, those over several lines in one.
fn command_lines(text: &str) -> Vec<String> {
    let code = text.split("\n```").skip(1).step_by(2).collect::<Vec<_>>().join("\n");
    code.replace("\\\n", " ").lines().map(str::to_owned).collect()
}

/// The schema of a request or an answer in the OpenAPI document.
fn schema<'a>(document: &'a Value, operation: &str) -> Option<&'a Value> {
    let words: Vec<_> = operation.split(' ').collect();
    let operation = &document["paths"][words[1]][words[0].to_lowercase()];
    let body = match words.get(2) {
        Some(status) => match operation["responses"][status]["$ref"].as_str().and_then(|target| target.strip_prefix('#')) {
            Some(target) => document.pointer(target)?,
            None => &operation["responses"][status],
        },
        None => &operation["requestBody"],
    };
    body["content"].as_object()?.iter().find(|(media, _)| media.contains("json")).map(|(_, content)| &content["schema"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_of_an_operation_is_what_the_openapi_document_says() {
    let host = Guarded::small(&[], "", "");
    let document = host.ask(None, Method::GET, "/api/v1/openapi.json", None).await.good();
    let check = |name: &str, operation: &str, code: &str| {
        let schema = schema(&document, operation).unwrap_or_else(|| panic!("{name}: no JSON is described for {operation}"));
        let mut schema = schema.clone();
        schema["components"] = document["components"].clone();
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
        let example: Value = serde_json::from_str(code).unwrap_or_else(|error| panic!("{name}: {operation}: {error}\n{code}"));
        let errors: Vec<_> = validator.iter_errors(&example).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{name}: {operation}: {errors:#?}");
    };
    let (mut examples, mut requests) = (0, 0);
    for (name, text) in documents() {
        for (operation, code) in json_of_operations(&text) {
            check(&name, operation, code);
            examples += 1;
        }
        for line in command_lines(&text) {
            let Some(request) = CurlRequest::parse(&line) else { continue };
            let operation = request.operation(&document).unwrap_or_else(|| panic!("{name}: no route answers `{line}`"));
            if let Some(body) = request.body {
                check(&name, &operation, body);
            }
            requests += 1;
        }
    }
    assert!(examples >= 9, "{examples} examples of operations");
    assert!(requests >= 7, "{requests} requests of curl");
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

/// A default that stands behind a key of the configuration, such as `limits.x` (100).
fn repeated_default(line: &str) -> bool {
    ["`limits.", "`queue.", "`retention."].iter().any(|section| {
        line.split(section).skip(1).any(|rest| {
            let behind = rest.split_once("` (").filter(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
            behind.is_some_and(|(_, value)| value.starts_with(|c: char| c.is_ascii_digit()))
        })
    })
}

#[test]
fn defaults_of_keys_stand_in_the_reference_alone() {
    for (name, text) in documents().into_iter().filter(|(name, _)| name != "docs/REFERENCE.md") {
        for line in text.lines() {
            assert!(!repeated_default(line), "{name} repeats a default of docs/REFERENCE.md: {line}");
            assert!(!line.to_lowercase().starts_with("| key | default |"), "{name} has a second list of keys");
        }
    }
    assert!(repeated_default("at most `limits.child_runs` (256) in all") && !repeated_default("`limits.child_runs` (of a run)"));
}

#[test]
fn the_format_of_the_ledger_is_documented() {
    let schema = document("host/ledger/src/rows/schema.rs");
    let format = schema.split_once("const FORMAT: u32 = ").unwrap().1.split(';').next().unwrap();
    let row = format!("| ledger (now {format}) |");
    assert!(document("docs/OPERATIONS.md").contains(&row), "`{row}` is missing in docs/OPERATIONS.md");
}
