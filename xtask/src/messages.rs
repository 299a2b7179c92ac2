//! `cargo xtask messages`: every text that a person may read of the host, in one list.
//!
//! The list is made from the source: strings of at least three words outside of tests, and the help of the command line.
//! `xtask/messages.txt` stores it, so that a change of a text is visible in a review.

use std::{fs, mem, path::Path, process::ExitCode, str::FromStr};

use anyhow::Context;
use clap::Args;
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::workspace::Workspace;

/// The list, from the root of the workspace.
const FILE: &str = "xtask/messages.txt";

/// The source that is looked at, from the root of the workspace.
const SOURCE: [&str; 10] = [
    "host/cli/src",
    "host/config/src",
    "host/harness/src",
    "host/server/src",
    "host/runs/src",
    "host/providers/src",
    "host/sandbox/src",
    "host/ledger/src",
    "host/protocol/src",
    "guest-sdk/rust/src",
];

/// Fewer words are names, paths and patterns.
const MIN_WORDS: usize = 3;

/// Print every text that a person may read: help, errors, refusals, log lines
#[derive(Debug, Args)]
pub(crate) struct Messages {
    /// Write the list to `xtask/messages.txt` instead
    #[arg(long)]
    write: bool,
}

impl Messages {
    pub(crate) fn execute(&self, workspace: &Workspace) -> anyhow::Result<ExitCode> {
        let list = list(workspace.root())?;
        if self.write {
            fs::write(workspace.root().join(FILE), list).with_context(|| format!("{FILE} cannot be written"))?;
        } else {
            print!("{list}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The texts of all files, each file under its path.
fn list(root: &Path) -> anyhow::Result<String> {
    let mut list = String::new();
    for dir in SOURCE {
        let mut files = Vec::new();
        collect(&root.join(dir), &mut files)?;
        files.sort();
        for path in files {
            let text = fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
            let found = texts(&text).with_context(|| format!("{} is not Rust", path.display()))?;
            if found.is_empty() {
                continue;
            }
            let display = path.strip_prefix(root).unwrap_or(&path).display();
            list.push_str(&format!("# {display}\n"));
            found.iter().for_each(|text| list.push_str(&format!("{text}\n")));
            list.push('\n');
        }
    }
    Ok(list)
}

/// The source files below a folder, but for those of tests.
fn collect(dir: &Path, files: &mut Vec<std::path::PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("{} cannot be read", dir.display()))? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if matches!(name, "tests" | "test" | "samples" | "faults") {
            continue;
        }
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The texts of one file, each once, in the order of the file.
fn texts(source: &str) -> anyhow::Result<Vec<String>> {
    let tokens = TokenStream::from_str(source).map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut found = Vec::new();
    items(tokens, &mut found);
    let mut seen = std::collections::HashSet::new();
    found.retain(|text| text.split_whitespace().count() >= MIN_WORDS && seen.insert(text.clone()));
    Ok(found)
}

/// The attributes before an item or a field.
#[derive(Default)]
struct Attributes {
    is_test: bool,
    /// True if clap makes help of the comments.
    is_help: bool,
    doc: Vec<String>,
}

impl Attributes {
    fn take(&mut self, attribute: &Group, found: &mut Vec<String>) {
        let mut tokens = attribute.stream().into_iter();
        let name = tokens.next().map(|name| name.to_string()).unwrap_or_default();
        match name.as_str() {
            "doc" => self.doc.extend(tokens.filter_map(|token| text_of(&token))),
            "cfg" if attribute.to_string().contains("test") => self.is_test = true,
            "test" => self.is_test = true,
            "derive" => {
                let derived = attribute.to_string();
                self.is_help |= ["Args", "Parser", "Subcommand", "ValueEnum"].iter().any(|name| derived.contains(name));
            }
            // Reasons for readers of the code.
            "allow" | "expect" => {}
            _ => items(attribute.stream(), found),
        }
    }
}

/// Looks through items, fields or statements.
fn items(tokens: TokenStream, found: &mut Vec<String>) {
    let mut tokens = tokens.into_iter().peekable();
    let mut before = Attributes::default();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                tokens.next_if(|token| matches!(token, TokenTree::Punct(bang) if bang.as_char() == '!'));
                if let Some(TokenTree::Group(attribute)) = tokens.next_if(is_bracketed) {
                    before.take(&attribute, found);
                }
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let Attributes { is_test, is_help, doc } = mem::take(&mut before);
                if is_test {
                    continue;
                }
                if is_help {
                    push_help(doc, found);
                    help(group.stream(), found);
                }
                items(group.stream(), found);
            }
            TokenTree::Group(group) if !before.is_test => items(group.stream(), found),
            TokenTree::Punct(punct) if punct.as_char() == ';' => before = Attributes::default(),
            token if !before.is_test => found.extend(text_of(&token)),
            _ => {}
        }
    }
}

/// The comments of the fields or variants of a type that clap makes help of.
fn help(tokens: TokenStream, found: &mut Vec<String>) {
    let mut before = Attributes::default();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                if let Some(TokenTree::Group(attribute)) = tokens.next_if(is_bracketed) {
                    before.take(&attribute, &mut Vec::new());
                }
            }
            TokenTree::Punct(punct) if punct.as_char() == ',' => {}
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => help(group.stream(), found),
            _ => push_help(mem::take(&mut before).doc, found),
        }
    }
}

/// The lines of a comment as one text.
fn push_help(doc: Vec<String>, found: &mut Vec<String>) {
    let lines: Vec<_> = doc.iter().map(|line| line.trim()).collect();
    let text = lines.join(" ").trim().to_owned();
    if !text.is_empty() {
        found.push(text);
    }
}

fn is_bracketed(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket)
}

/// The text of a string, in one line.
fn text_of(token: &TokenTree) -> Option<String> {
    let TokenTree::Literal(literal) = token else { return None };
    let source = literal.to_string();
    let is_raw = source.starts_with('r');
    let text = source.trim_start_matches('r').trim_matches('#').strip_prefix('"')?.strip_suffix('"')?;
    let mut display = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if !is_raw => match chars.next() {
                // The text continues in the next line.
                Some('\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                Some('n') => display.push_str("\\n"),
                Some(escaped) => display.push(escaped),
                None => {}
            },
            '\n' => display.push_str("\\n"),
            c => display.push(c),
        }
    }
    Some(display)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_where_people_read_them_and_nowhere_else() {
        let source = r##"
            //! About this module, for its readers.
            /// About a function, for readers of the code.
            fn f() -> Result<(), E> {
                tracing::warn!(id = %id, "a line of the log");
                let path = "a/b c";
                Err(E::new(format!("it is \"broken\": \
                                    {why}")))
            }
            #[derive(Debug, thiserror::Error)]
            enum E { #[error("an error with a text")] One }
            #[allow(dead_code, reason = "a reason for readers")]
            const TEXT: &str = r#"a raw "text" here"#;
            /// Show one of them
            #[derive(Debug, Args)]
            struct Show {
                /// The one that is shown,
                /// by its id
                #[arg(long)]
                id: String,
            }
            #[cfg(test)]
            mod tests { fn g() { panic!("a text of a test"); } }
        "##;
        assert_eq!(
            texts(source).unwrap(),
            [
                "a line of the log",
                "it is \"broken\": {why}",
                "an error with a text",
                "a raw \"text\" here",
                "Show one of them",
                "The one that is shown, by its id",
            ]
        );
    }

    /// A text that changes is read again by somebody.
    #[test]
    fn the_list_is_that_of_the_source() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let (now, kept) = (list(root).unwrap(), fs::read_to_string(root.join(FILE)).unwrap());
        let differs = now.lines().zip(kept.lines()).find(|(now, kept)| now != kept);
        assert!(
            now == kept,
            "{FILE} is not of this source: run `cargo xtask messages --write`; the first difference: {differs:?}"
        );
    }
}
