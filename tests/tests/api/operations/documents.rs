//! What the documents list is what the code has.

use std::{fs, path::Path};

use agent_host_protocol::{ErrorCode, FailureCode, RefusalCode};

fn document(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)).unwrap()
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
