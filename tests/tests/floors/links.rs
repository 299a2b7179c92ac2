//! The documents: every link between them leads somewhere, and every page is in the summary.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The Markdown files of a folder, without those below it.
fn pages(dir: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(dir)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// The lines of a page that are not code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// The targets of the links of a page.
fn links(text: &str) -> Vec<&str> {
    let of_line = |line| str::split(line, "](").skip(1).filter_map(|rest: &str| Some(rest.split_once(')')?.0));
    prose(text).flat_map(of_line).collect()
}

/// The anchors of the headings of a page, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let anchor = |heading: &str| -> String {
        let letters = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        letters.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    prose(text).filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// The problem of a link on the page at `path`.
fn wrong(path: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let target = if file.is_empty() { path.to_owned() } else { path.parent().unwrap().join(file) };
    if !target.exists() {
        return Some(format!("{}: there is no {link}", path.display()));
    }
    let missing = anchor.filter(|anchor| !anchors(&fs::read_to_string(&target).unwrap()).contains(*anchor))?;
    Some(format!("{}: {file} has no heading `{missing}`", path.display()))
}

#[test]
fn every_link_leads_somewhere() {
    let pages: Vec<_> = [".", "docs", "guest-sdk"].into_iter().flat_map(pages).collect();
    let (mut found, mut count) = (Vec::new(), 0);
    for path in &pages {
        let text = fs::read_to_string(path).unwrap();
        let links = links(&text);
        count += links.len();
        found.extend(links.into_iter().filter_map(|link| wrong(path, link)));
    }
    assert!(count > 100, "{count} links in {} pages", pages.len());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_page_is_in_the_summary_once() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let listed = links(&summary);
    for path in pages("docs") {
        let name = path.file_name().unwrap().to_str().unwrap();
        let times = listed.iter().filter(|link| **link == name).count();
        assert_eq!(times, usize::from(name != "SUMMARY.md"), "{name} in docs/SUMMARY.md");
    }
}

#[test]
fn a_broken_link_is_found() {
    let page = root().join("README.md");
    assert!(wrong(&page, "docs/NOTHING.md").is_some() && wrong(&page, "docs/API.md#no-such-heading").is_some());
    assert!(wrong(&page, "docs/API.md#problem-codes").is_none() && wrong(&page, "https://example.com").is_none());
    assert_eq!(links("a [b](c.md) and [d](e.md#f)\n```\n[g](h)\n```\n"), ["c.md", "e.md#f"]);
}

/// Modules of the SDK that are lists: the generated contract, and the sizes.
const LISTS_OF_THE_SDK: [&str; 2] = ["contract", "limits"];

#[test]
fn every_module_of_the_sdk_begins_with_an_example() {
    let source = root().join("guest-sdk/rust/src");
    let tour = fs::read_to_string(source.join("lib.rs")).unwrap();
    let modules: Vec<_> = tour.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert!(modules.len() > 18, "{modules:?}");
    for module in modules {
        assert!(tour.contains(&format!("[`{module}`]")), "the tour lacks {module}");
        let file =
            [source.join(format!("{module}.rs")), source.join(module).join("mod.rs")].into_iter().find(|file| file.exists());
        let text = fs::read_to_string(file.unwrap()).unwrap();
        let has_example = text.lines().any(|line| line.starts_with("//! ```"));
        assert!(has_example || LISTS_OF_THE_SDK.contains(&module), "the module {module} of the SDK has no example");
    }
}
