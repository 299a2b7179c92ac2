//! docs/REFERENCE.md lists the configuration keys that the host reads, docs/CLI.md its commands.

use std::{fs, path::Path};

use agent_host_tests::process;

/// The text before the first section.
const INTRODUCTION: &str = "\
# Configuration reference

After this page you know every key of `agent-host.toml`, as the code reads it (`agent-host config reference` prints this list). Unknown
keys are refused. Relative paths are relative to the file. [CONFIGURATION.md](CONFIGURATION.md) has examples. The test `reference` of `tests/tests/api` compares
this page with the code, and writes it: `UPDATE=1 cargo test --workspace --test api reference`.

";

#[test]
fn the_reference_is_that_of_the_code() {
    let dir = tempfile::tempdir().unwrap();
    let output = process::command(dir.path()).args(["config", "reference"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let expected = format!("{INTRODUCTION}{}", String::from_utf8(output.stdout).unwrap());
    is_page("docs/REFERENCE.md", &expected);
}

/// The text before the first command.
const COMMANDS: &str = "\
# Command line reference

After this page you know every command of `agent-host` and its options, as `--help` shows them. The test `reference` of
`tests/tests/api` compares this page with the binary, and writes it: `UPDATE=1 cargo test --workspace --test api reference`.

";

#[test]
fn the_reference_of_the_command_line_is_that_of_the_binary() {
    let mut page = COMMANDS.to_owned();
    describe(&mut Vec::new(), &mut page);
    assert!(page.matches("\n## ").count() > 30, "{page}");
    is_page("docs/CLI.md", &page);
}

/// Adds a command and its subcommands. The global options stand once, with the first.
fn describe(command: &mut Vec<String>, page: &mut String) {
    let dir = tempfile::tempdir().unwrap();
    let output = process::command(dir.path()).args(&*command).arg("--help").output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    let help = String::from_utf8(output.stdout).unwrap();
    let shown: Vec<&str> = help
        .split("\n\n")
        // The options of long help have paragraphs of their own, which are indented.
        .scan(false, |in_global, part| {
            *in_global = (*in_global && part.starts_with(' ')) || (!command.is_empty() && part.starts_with("Global options:"));
            Some((!*in_global).then_some(part))
        })
        .flatten()
        .collect();
    let text: Vec<&str> = shown.iter().flat_map(|part| part.lines().chain([""])).map(str::trim_end).collect();
    let name = [&["agent-host".to_owned()], &**command].concat().join(" ");
    page.push_str(&format!("## {name}\n\n```text\n{}\n```\n\n", text.join("\n").trim_end()));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' '))?.split(' ').next());
    for name in names.filter(|name| *name != "help") {
        command.push(name.to_owned());
        describe(command, page);
        command.pop();
    }
}

/// Compares a page with what it must be, or writes it.
fn is_page(page: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
    let found = fs::read_to_string(&path).unwrap_or_default();
    if found == expected {
        return;
    }
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, expected).unwrap();
        return;
    }
    let differs = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    panic!("{page} is not what the code says, first at {differs:#?}: run this test with UPDATE=1");
}
