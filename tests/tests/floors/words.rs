//! The words of doc comments: a paragraph begins with a noun or a verb, not with a clause or a pronoun (docs/GLOSSARY.md has the
//! terms).

use std::{fs, path::Path};

/// Words with which no paragraph of a doc comment begins.
const FORBIDDEN: [&str; 16] = [
    "Who", "Whoever", "What", "Whatever", "Whether", "Where", "Wherever", "How", "Nothing", "Nobody", "Somebody", "It", "Its",
    "They", "That", "Those",
];
/// Pictures of household work in place of the terms of the field.
const HOUSEHOLD: [&str; 9] = [
    "held against",
    "let go of",
    "in vain",
    "nobody's",
    "come to its end",
    "comes to its end",
    "came to its end",
    "put down",
    "mend it",
];
/// Comments that become part of a JSON Schema, which a model or a person reads as an instruction.
const INSTRUCTIONS: [&str; 2] = ["example-runners/local-agent/src/lib.rs", "example-runners/local-agent/src/person.rs"];

/// The paragraphs of the doc comments of a file that begin with a forbidden word, each with its line.
fn clauses(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut is_inside, mut in_code) = (Vec::new(), false, false);
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim_start();
        let Some(comment) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            (is_inside, in_code) = (false, false);
            continue;
        };
        let comment = comment.trim();
        in_code ^= comment.starts_with("```");
        let start = comment.strip_prefix("- ").filter(|_| !in_code);
        let begins = !in_code && (!is_inside || start.is_some());
        let first = start.unwrap_or(comment).split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        if begins && FORBIDDEN.contains(&first) {
            found.push((number, comment.to_owned()));
        }
        is_inside = !comment.is_empty();
    }
    found
}

/// The household words of a text, each with its line.
fn household(text: &str) -> Vec<(usize, String)> {
    let lines = text.lines().zip(1..).filter(|(line, _)| HOUSEHOLD.iter().any(|words| line.contains(words)));
    lines.map(|(line, number)| (number, line.trim().to_owned())).collect()
}

/// The forbidden beginnings in all source files below `dir`.
fn look(root: &Path, dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() && name != "target" && name != "node_modules" {
            look(root, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let shown = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            if !INSTRUCTIONS.contains(&shown.as_str()) {
                let clauses = clauses(&fs::read_to_string(&path).unwrap());
                found.extend(clauses.into_iter().map(|(line, comment)| format!("{shown}:{line}: {comment}")));
            }
        }
    }
}

#[test]
fn doc_comments_name_their_subject() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).canonicalize().unwrap();
    let mut found = Vec::new();
    for dir in ["host", "guest-sdk", "example-runners", "xtask", "tests"] {
        look(&root, &root.join(dir), &mut found);
    }
    assert!(found.is_empty(), "begin with the noun that the sentence is about:\n{}", found.join("\n"));
}

#[test]
fn documents_and_messages_have_no_household_words() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).canonicalize().unwrap();
    let pages = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let others = ["README.md", "SECURITY.md", "ARCHITECTURE.md", "CHANGELOG.md", "guest-sdk/README.md", "xtask/messages.txt"];
    let mut found = Vec::new();
    for path in pages.chain(others.map(|name| root.join(name))) {
        let words = household(&fs::read_to_string(&path).unwrap());
        found.extend(words.into_iter().map(|(line, text)| format!("{}:{line}: {text}", path.display())));
    }
    assert!(found.is_empty(), "say it with a term of the field (docs/GLOSSARY.md):\n{}", found.join("\n"));
    assert_eq!(household("fine\nheld against the schema").len(), 1);
}

#[test]
fn a_clause_is_found() {
    let text = "/// What it is.\n///\n/// It is: `x`.\n/// Who goes on\nfn x() {}\n//! - Whether so.\n/// ```\n/// What\n/// ```\n/// Fine.\n";
    let lines: Vec<_> = clauses(text).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [1, 3, 6]);
}
