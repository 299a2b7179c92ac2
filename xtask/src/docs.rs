//! `cargo xtask docs`: the site of the documents, built with mdBook.
//!
//! Pages keep their places (`README.md`, `docs/API.md`), so one link is right in the repository and on the site. mdBook and its
//! Mermaid preprocessor are installed below the target folder when they are missing. Every link of the built pages is checked;
//! the examples in them are run by the tests (`documents` of the API tests, the doc tests of the SDK).

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Component, Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, ensure};
use clap::Args;

use crate::{
    process,
    tools::{self, Tool},
    workspace::Workspace,
};

const TOOLS: [Tool; 2] = [
    Tool { name: "mdbook", version: "0.5.4", features: Some("search") },
    Tool { name: "mdbook-mermaid", version: "0.17.1", features: Some("") },
];
/// Folders of the repository whose files are copied because pages link to them.
const COPIED: [&str; 1] = ["wit"];
/// Pages that mdBook makes from all others, without links of their own.
const DERIVED: [&str; 3] = ["print.html", "404.html", "toc.html"];

/// Build the site of the documents with mdBook, and check its links
#[derive(Debug, Args)]
pub(crate) struct Docs {}

impl Docs {
    pub(crate) fn execute(&self, workspace: &Workspace) -> anyhow::Result<ExitCode> {
        let site = build(workspace)?;
        println!("{}", workspace.relative(&site.join("index.html")).display());
        Ok(ExitCode::SUCCESS)
    }
}

/// Builds the site and returns its folder. Fails with all broken links.
pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let tools = tools::install(workspace, &TOOLS)?;
    let book = workspace.target().join("docs");
    if book.exists() {
        fs::remove_dir_all(&book).with_context(|| format!("{} cannot be removed", book.display()))?;
    }
    stage(workspace.root(), &book)?;
    let path = env::join_paths([tools].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())))?;
    for command in [["mdbook-mermaid", "install"], ["mdbook", "build"]] {
        process::run(Command::new(command[0]).arg(command[1]).arg(&book).env("PATH", &path))?;
    }
    let site = book.join("book");
    let broken = broken_links(&site)?;
    ensure!(broken.is_empty(), "broken links on the site:\n{}", broken.join("\n"));
    Ok(site)
}

/// Copies the pages and what they link to below `book`, with a summary for mdBook.
fn stage(root: &Path, book: &Path) -> anyhow::Result<()> {
    let summary = fs::read_to_string(root.join("docs/SUMMARY.md")).context("docs/SUMMARY.md cannot be read")?;
    let mut files: BTreeSet<PathBuf> = BTreeSet::new();
    for dir in COPIED {
        files_below(root, Path::new(dir), &mut files)?;
    }
    let pages: Vec<_> = targets(&summary).into_iter().map(|target| normal(&Path::new("docs").join(target))).collect();
    for page in &pages {
        let text = fs::read_to_string(root.join(page)).with_context(|| format!("{} cannot be read", page.display()))?;
        let dir = page.parent().unwrap_or(Path::new(""));
        let linked = targets(&text).into_iter().map(|target| normal(&dir.join(target.split('#').next().unwrap_or_default())));
        files.extend(linked.filter(|path| !pages.contains(path) && root.join(path).is_file()));
        write(&book.join("src").join(page), links_to_index(&text).as_bytes())?;
    }
    for file in files {
        write(&book.join("src").join(&file), &fs::read(root.join(&file))?)?;
    }
    write(&book.join("src/SUMMARY.md"), summary.replace("](", "](docs/").replace("](docs/../", "](").as_bytes())?;
    write(&book.join("book.toml"), &fs::read(root.join("docs/book.toml")).context("docs/book.toml cannot be read")?)
}

/// mdBook makes `index.html` of a `README.md`, and shows the summary beside every page.
fn links_to_index(text: &str) -> String {
    text.replace("README.md)", "index.md)").replace("README.md#", "index.md#").replace("docs/SUMMARY.md)", "index.md)")
}

fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let write = || fs::create_dir_all(path.parent().unwrap_or(path)).and_then(|()| fs::write(path, content));
    write().with_context(|| format!("{} cannot be written", path.display()))
}

fn files_below(root: &Path, dir: &Path, files: &mut BTreeSet<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(root.join(dir)).with_context(|| format!("{} cannot be read", dir.display()))? {
        let entry = entry?;
        let path = dir.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            files_below(root, &path, files)?;
        } else {
            files.insert(path);
        }
    }
    Ok(())
}

/// The targets of the links of a Markdown page that are paths.
fn targets(text: &str) -> Vec<&str> {
    let ends = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    ends.map(|(target, _)| target).filter(|target| !target.contains("://") && !target.starts_with('#')).collect()
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// The links of the built pages that lead nowhere, each with its page.
fn broken_links(site: &Path) -> anyhow::Result<Vec<String>> {
    let mut files = BTreeSet::new();
    files_below(site, Path::new(""), &mut files)?;
    let mut pages = BTreeMap::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "html")) {
        pages.insert(path.clone(), fs::read_to_string(site.join(path))?);
    }
    let mut broken = Vec::new();
    for (page, text) in pages.iter().filter(|(page, _)| !DERIVED.iter().any(|derived| page.ends_with(derived))) {
        let links = attributes(text, "href").chain(attributes(text, "src"));
        for link in links.filter(|link| !link.contains(':') && !link.starts_with("//")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let dir = page.parent().unwrap_or(Path::new(""));
            let target = if file.is_empty() { page.clone() } else { normal(&dir.join(file.split('?').next().unwrap_or(file))) };
            let is_there = match pages.get(&target) {
                Some(text) => anchor.is_empty() || attributes(text, "id").any(|id| id == anchor),
                None => files.contains(&target) || site.join(&target).is_dir(),
            };
            if !is_there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok(broken)
}

/// The values of an attribute in HTML as mdBook writes it.
fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let start = format!(" {name}=\"");
    let starts: Vec<_> = html.match_indices(&start).map(|(at, _)| at + start.len()).collect();
    starts.into_iter().filter_map(|at| Some(html[at..].split_once('"')?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_keep_their_places_and_bring_linked_files() {
        let (root, book) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let place = |name: &str, text: &str| write(&root.path().join(name), text.as_bytes()).unwrap();
        place("docs/SUMMARY.md", "[Start](../README.md)\n- [A](A.md)\n");
        place("docs/book.toml", "[book]\n");
        place("README.md", "[a](docs/A.md) and [code](src/x.rs) and [far](https://example.com)");
        place("docs/A.md", "[start](../README.md#x), [above](#y)");
        place("src/x.rs", "fn x() {}");
        place("wit/a/b.wit", "package a:b;");
        stage(root.path(), book.path()).unwrap();
        let read = |name: &str| fs::read_to_string(book.path().join("src").join(name)).unwrap();
        assert_eq!(read("SUMMARY.md"), "[Start](README.md)\n- [A](docs/A.md)\n");
        assert_eq!(read("docs/A.md"), "[start](../index.md#x), [above](#y)");
        assert_eq!((read("src/x.rs"), read("wit/a/b.wit")), ("fn x() {}".to_owned(), "package a:b;".to_owned()));
    }

    #[test]
    fn links_of_built_pages_are_checked() {
        let site = tempfile::tempdir().unwrap();
        let place = |name: &str, text: &str| write(&site.path().join(name), text.as_bytes()).unwrap();
        place(
            "index.html",
            r##"<a href="docs/a.html#there"></a><a href="docs/a.html#gone"></a><img src="no.png"><a href="#me" id="me"></a>"##,
        );
        place(
            "docs/a.html",
            r#"<h2 id="there"></h2><a href="../index.html"></a><a href="https://example.com"></a><a href="b.html"></a>"#,
        );
        assert_eq!(
            broken_links(site.path()).unwrap(),
            ["docs/a.html: b.html", "index.html: docs/a.html#gone", "index.html: no.png"]
        );
    }
}
