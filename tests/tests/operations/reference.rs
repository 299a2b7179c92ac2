//! The reference of the configuration says what the host reads.

use std::{fs, path::Path};

use agent_host_tests::process;

const BEGIN: &str = "<!-- reference: begin; `UPDATE=1 cargo test --workspace --test operations reference` writes it -->\n";
const END: &str = "<!-- reference: end -->\n";

#[test]
fn the_reference_is_that_of_the_code() {
    let dir = tempfile::tempdir().unwrap();
    let output = process::command(dir.path()).args(["config", "reference"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let reference = format!("\n{}\n", String::from_utf8(output.stdout).unwrap());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/OPERATIONS.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the mark of the beginning is there");
    let (found, after) = rest.split_once(END).expect("the mark of the end is there");
    if found == reference {
        return;
    }
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{reference}{END}{after}")).unwrap();
        return;
    }
    let differs = found.lines().zip(reference.lines()).find(|(found, expected)| found != expected);
    panic!("docs/OPERATIONS.md is not what the code says, first at {differs:#?}: run this test with UPDATE=1");
}
