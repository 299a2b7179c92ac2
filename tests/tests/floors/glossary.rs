//! The glossary: each term has a type or module that is there, and a page that is there.

use std::{fs, path::Path};

use crate::FLOORS;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// All source text of a crate.
fn source(dir: &Path, text: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            source(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// The problem of a glossary row.
fn wrong(row: &str) -> Option<String> {
    let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [term, _, types, page] = cells[..] else { return Some(format!("{row}: not four cells")) };
    let link = page.split_once("](").and_then(|(_, rest)| rest.split_once(')'));
    let Some((page, _)) = link else { return Some(format!("{term} has no page")) };
    if !root().join("docs").join(page).is_file() {
        return Some(format!("{term}: there is no page {page}"));
    }
    let mut is_named = false;
    // `CRATE `PATH``, and further types of the same crate.
    let mut text = String::new();
    for part in types.split(", ") {
        if let Some((house, _)) = part.split_once(' ') {
            text.clear();
            source(&root().join("host").join(house).join("src"), &mut text);
        }
        for path in part.split('`').skip(1).step_by(2) {
            is_named = true;
            for name in path.split("::") {
                let declared = ["struct", "enum", "trait", "mod", "type", "union", "pub", "pub(crate)"]
                    .iter()
                    .any(|word| [" ", "(", "<", ";", ":", "{"].iter().any(|end| text.contains(&format!("{word} {name}{end}"))));
                if !declared {
                    return Some(format!("{term}: there is no {name} of `{path}`"));
                }
            }
        }
    }
    (!is_named).then(|| format!("{term} has no type"))
}

#[test]
fn the_glossary_names_types_and_pages_that_are_there() {
    assert!(FLOORS.iter().all(|(house, _)| root().join("host").join(house).is_dir()));
    let text = fs::read_to_string(root().join("docs/GLOSSARY.md")).unwrap();
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with("| **")).collect();
    assert!(rows.len() >= 40, "{} terms", rows.len());
    let found: Vec<_> = rows.iter().filter_map(|row| wrong(row)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    let terms: Vec<_> = rows.iter().filter_map(|row| row.split("**").nth(1)).collect();
    assert!(terms.is_sorted(), "the terms stand in alphabetical order");
}
