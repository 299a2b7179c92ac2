//! `SECURITY.md` and `docs/HOSTILE.md`: the tests and source files that they name are there, and limits have the defaults that
//! they say.

use std::{fs, path::Path};

/// The pages, each with the least number of tests that it names.
const PAGES: [(&str, usize); 2] = [("SECURITY.md", 100), ("docs/HOSTILE.md", 50)];
/// The families of hostile guests.
const FAMILIES: usize = 28;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// The code spans of a page, each with the text behind it.
fn spans(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let parts: Vec<&str> = line.split('`').collect();
        for pair in parts[1..].chunks_exact(2) {
            found.push((pair[0], pair[1]));
        }
    }
    found
}

/// True if a source text has a test of this name.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    let declares = |line: &str| {
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        function.and_then(|function| function.strip_prefix(name)).is_some_and(|rest| rest.starts_with('('))
    };
    let Some(at) = lines.iter().position(|&line| declares(line)) else { return false };
    let above = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    let attributes: Vec<&str> = above.copied().filter(|line| line.starts_with("#[")).collect();
    let runs = attributes.iter().any(|line| *line == "#[test]" || line.starts_with("#[tokio::test"));
    runs && !attributes.iter().any(|line| line.starts_with("#[ignore"))
}

/// The default of a key of `[limits]`, from the reference of the configuration.
fn default_of(key: &str) -> Option<u64> {
    let reference = page("docs/REFERENCE.md");
    let (_, limits) = reference.split_once("\n### `[limits]`")?;
    let limits = limits.split("\n### ").next()?;
    let beginning = format!("| `{key}` | integer | `");
    let default = limits.lines().find_map(|line| line.strip_prefix(beginning.as_str()))?;
    default.split('`').next()?.parse().ok()
}

/// The number of bytes, milliseconds or things that a text says, such as `64 MiB` or `20,000`.
fn number(text: &str) -> Option<u64> {
    let (digits, unit) = text.split_once(' ').unwrap_or((text, ""));
    let factor: u64 = match unit {
        "" | "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    digits.replace(',', "").parse::<u64>().ok()?.checked_mul(factor)
}

/// The problem of a code span that names a test, a source file or a limit.
fn wrong(span: &str, behind: &str) -> Option<String> {
    if let Some((path, name)) = span.split_once(".rs::") {
        let path = format!("{path}.rs");
        let Ok(source) = fs::read_to_string(root().join(&path)) else { return Some(format!("{span}: there is no {path}")) };
        return (!has_test(&source, name)).then(|| format!("{span}: {path} has no test of this name"));
    }
    if span.ends_with(".rs") {
        return (!root().join(span).is_file()).then(|| format!("there is no {span}"));
    }
    let Some(default) = default_of(span.strip_prefix("limits.")?) else { return Some(format!("there is no {span}")) };
    let stated = behind.strip_prefix(" = ")?.split(['|', '<', ';', ')']).next()?;
    let stated = stated.split(", ").next()?.trim();
    (number(stated) != Some(default)).then(|| format!("{span} has the default {default}, not {stated}"))
}

#[test]
fn the_pages_name_tests_files_and_defaults_that_are_there() {
    for (name, least) in PAGES {
        let text = page(name);
        let spans = spans(&text);
        let tests = spans.iter().filter(|(span, _)| span.contains(".rs::")).count();
        assert!(tests >= least, "{name} names {tests} tests");
        let found: Vec<_> = spans.into_iter().filter_map(|(span, behind)| wrong(span, behind)).collect();
        assert!(found.is_empty(), "{name}:\n{}", found.join("\n"));
    }
}

#[test]
fn every_family_names_its_tests_or_says_that_there_are_none() {
    let text = page("docs/HOSTILE.md");
    let sections: Vec<_> = text.split("\n### ").skip(1).collect();
    assert_eq!(sections.len(), FAMILIES);
    for (section, number) in sections.into_iter().zip(1..) {
        assert!(section.starts_with(&format!("{number}. ")), "the family {number} begins with {section:.40}");
        let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| part |")).collect();
        assert!(!rows.is_empty(), "the family {number} has no parts");
        for row in rows {
            assert!(row.contains(".rs::") || row.contains("not tested yet"), "the family {number}: {row}");
        }
        assert!(section.contains("Reference: "), "the family {number} has no reference");
    }
}

#[test]
fn a_missing_test_or_file_and_another_default_are_found() {
    let here = "tests/tests/floors/security.rs";
    assert_eq!(wrong(&format!("{here}::a_missing_test_or_file_and_another_default_are_found"), ""), None);
    assert!(wrong(&format!("{here}::no_such_test"), "").is_some());
    assert!(wrong(&format!("{here}::has_test"), "").is_some(), "a function that is no test");
    assert!(wrong("tests/tests/floors/nothing.rs::no_such_test", "").is_some());
    assert!(wrong(here, "").is_none() && wrong("tests/tests/floors/nothing.rs", "").is_some());
    assert!(wrong("limits.guest_memory_bytes", " = 64 MiB<br>").is_none() && wrong("limits.guest_memory_bytes", "").is_none());
    assert!(wrong("limits.guest_memory_bytes", " = 63 MiB |").is_some() && wrong("limits.nothing", "").is_some());
    assert!(wrong("limits.guest_table_elements", " = 20,000, and more").is_none() && wrong("runs:read", "").is_none());
    assert_eq!(spans("a `b` c `d`e\nf"), [("b", " c "), ("d", "e")]);
}
