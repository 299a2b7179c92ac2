//! docs/REFERENCE.md lists the configuration keys that the host reads.

use std::{fs, path::Path};

use agent_host_tests::process;

/// The text before the first section.
const INTRODUCTION: &str = "\
# Configuration reference

Every key of `agent-host.toml`, as the code reads it (`agent-host config reference` prints this list). Unknown keys are refused. Relative
paths are relative to the file. [CONFIGURATION.md](CONFIGURATION.md) has examples. The test `reference` of `tests/tests/api` compares
this page with the code, and writes it: `UPDATE=1 cargo test --workspace --test api reference`.

";

#[test]
fn the_reference_is_that_of_the_code() {
    let dir = tempfile::tempdir().unwrap();
    let output = process::command(dir.path()).args(["config", "reference"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let expected = format!("{INTRODUCTION}{}", String::from_utf8(output.stdout).unwrap());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/REFERENCE.md");
    let found = fs::read_to_string(&path).unwrap_or_default();
    if found == expected {
        return;
    }
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, expected).unwrap();
        return;
    }
    let differs = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    panic!("docs/REFERENCE.md is not what the code says, first at {differs:#?}: run this test with UPDATE=1");
}
