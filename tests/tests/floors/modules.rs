//! The top-level modules of a crate, and the arrows between them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::Path,
};

use crate::tokens::{Token, tokens, without_tests};

/// The top-level modules of one crate. A folder is one module.
#[derive(Debug, Default)]
pub struct Modules {
    /// The files of each module.
    pub files: BTreeMap<String, Vec<File>>,
    /// Each arrow: the module, the module that it imports, and the place of one such import.
    pub arrows: BTreeMap<(String, String), String>,
}

/// A parsed source file.
#[derive(Debug)]
pub struct File {
    /// Path from the folder `src`.
    pub path: String,
    /// Code without test items: each token and its line.
    pub code: Vec<(String, usize)>,
}

impl Modules {
    /// Reads the folder `src` of a crate. `lib.rs` and `main.rs` are the facade: they belong to no module.
    pub fn read(src: &Path) -> Self {
        let mut sources = Vec::new();
        read_sources(src, src, &mut sources);
        let mut this = Self::default();
        let mut test_modules = BTreeSet::new();
        for (path, source) in &sources {
            let (code, tests) = without_tests(&tokens(source));
            let module = path.split('/').next().unwrap().trim_end_matches(".rs");
            if ["lib.rs", "main.rs"].contains(&path.as_str()) {
                test_modules.extend(tests);
            } else {
                let code = code.into_iter().map(|token| (token.text.to_owned(), token.line)).collect();
                this.files.entry(module.to_owned()).or_default().push(File { path: path.clone(), code });
            }
        }
        this.files.retain(|module, _| !test_modules.contains(module.as_str()));
        for (module, files) in &this.files {
            for file in files {
                for (import, line) in imports(&file.tokens(), depth(&file.path)) {
                    if import != *module && this.files.contains_key(&import) {
                        let place = || format!("{}:{line}", file.path);
                        this.arrows.entry((module.clone(), import)).or_insert_with(place);
                    }
                }
            }
        }
        this
    }

    /// The modules that reach each other by imports, one group for each cycle.
    pub fn cycle_groups(&self) -> Vec<Vec<&str>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.files.keys().map(|module| (module.as_str(), self.reached(module))).collect();
        let mut groups: Vec<Vec<&str>> = Vec::new();
        for (module, forward) in &reached {
            let group: Vec<_> = forward.iter().copied().filter(|other| reached[other].contains(module)).collect();
            if !group.is_empty() && !groups.contains(&group) {
                groups.push(group);
            }
        }
        groups
    }

    /// The modules that are reached from this one by at least one arrow.
    fn reached(&self, from: &str) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut open = vec![from];
        while let Some(module) = open.pop() {
            for next in self.imported(module) {
                if found.insert(next) {
                    open.push(next);
                }
            }
        }
        found
    }

    fn imported<'a>(&'a self, module: &str) -> impl Iterator<Item = &'a str> {
        self.arrows.keys().filter(move |(from, _)| from == module).map(|(_, to)| to.as_str())
    }

    /// Each group of modules in a cycle as a message: the modules, and its shortest cycle with the place of one import for each arrow.
    pub fn violations(&self) -> Vec<String> {
        let violation = |group: &Vec<&str>| {
            let cycle = group.iter().filter_map(|module| self.cycle(module)).min_by_key(Vec::len).unwrap_or_default();
            let arrows = cycle.windows(2).map(|pair| {
                let arrow = (pair[0].to_owned(), pair[1].to_owned());
                format!("\n    {} -> {} ({})", arrow.0, arrow.1, self.arrows[&arrow])
            });
            format!("{} modules import each other: {}{}", group.len(), group.join(" "), arrows.collect::<String>())
        };
        self.cycle_groups().iter().map(violation).collect()
    }

    /// A shortest path from a module to itself.
    fn cycle(&self, start: &str) -> Option<Vec<&str>> {
        let mut before: BTreeMap<&str, &str> = BTreeMap::new();
        let mut open = VecDeque::from([start]);
        while let Some(module) = open.pop_front() {
            for next in self.imported(module) {
                if before.contains_key(next) {
                    continue;
                }
                before.insert(next, self.name(module));
                if next == start {
                    let mut path = vec![next];
                    while path.len() == 1 || path.last() != Some(&next) {
                        path.push(before[path.last()?]);
                    }
                    path.reverse();
                    return Some(path);
                }
                open.push_back(next);
            }
        }
        None
    }

    fn name(&self, module: &str) -> &str {
        self.files.get_key_value(module).map_or("", |(name, _)| name)
    }
}

impl File {
    /// The code of the file.
    pub fn tokens(&self) -> Vec<Token<'_>> {
        self.code.iter().map(|(text, line)| Token { text, line: *line }).collect()
    }
}

/// Reads the source files of a folder, without those of tests.
fn read_sources(src: &Path, folder: &Path, found: &mut Vec<(String, String)>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.trim_end_matches(".rs") == "tests" || name.starts_with("tests_") {
            continue;
        }
        if path.is_dir() {
            read_sources(src, &path, found);
        } else if name.ends_with(".rs") {
            let source = fs::read_to_string(&path).unwrap();
            found.push((path.strip_prefix(src).unwrap().to_str().unwrap().to_owned(), source));
        }
    }
}

/// The depth of a file's module below the root of the crate: 1 for `a.rs` and `a/mod.rs`, 2 for `a/b.rs`.
fn depth(path: &str) -> usize {
    path.trim_end_matches("/mod.rs").split('/').count()
}

/// The top-level modules that the code of a file names by `crate::` or by enough of `super::`, each with its line.
/// `depth` is that of the module of the file.
pub fn imports(code: &[Token<'_>], depth: usize) -> Vec<(String, usize)> {
    let text = |at: usize| code.get(at).map_or("", |token| token.text);
    let mut found = Vec::new();
    // The braces that are open, and for each whether it is that of a module.
    let mut braces: Vec<bool> = Vec::new();
    let mut at = 0;
    while at < code.len() {
        match text(at) {
            "{" => braces.push(at >= 2 && text(at - 2) == "mod"),
            "}" => {
                braces.pop();
            }
            "crate" if text(at + 1) == "::" => heads(code, at + 2, &mut found),
            "super" if text(at + 1) == "::" && (at == 0 || text(at - 1) != "::") => {
                let depth = depth + braces.iter().filter(|module| **module).count();
                let mut steps = 1;
                while text(at + 2 * steps) == "super" && text(at + 2 * steps + 1) == "::" {
                    steps += 1;
                }
                if steps == depth {
                    heads(code, at + 2 * steps, &mut found);
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// The first names of a path, or of each path in a group `{a::b, c}`.
fn heads(code: &[Token<'_>], at: usize, found: &mut Vec<(String, usize)>) {
    let Some(first) = code.get(at) else { return };
    if first.text != "{" {
        found.push((first.text.to_owned(), first.line));
        return;
    }
    let mut depth = 0_usize;
    for pair in code[at..].windows(2) {
        match pair[0].text {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return;
        }
        if depth == 1 && ["{", ","].contains(&pair[0].text) && pair[1].text != "}" {
            found.push((pair[1].text.to_owned(), pair[1].line));
        }
    }
}

/// A crate of these files, for tests of the reader.
#[cfg(test)]
pub fn fixture(files: &[(&str, &str)]) -> Modules {
    let dir = tempfile::tempdir().unwrap();
    for (path, source) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, source).unwrap();
    }
    Modules::read(dir.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &str, depth: usize) -> Vec<String> {
        imports(&without_tests(&tokens(source)).0, depth).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn paths_from_the_root_are_imports() {
        assert_eq!(read("use crate::a::B; fn f() { crate::c::d() }", 1), ["a", "c"]);
        assert_eq!(read("use crate::{a, b::{c, d}, e as f,\n g::*,};", 1), ["a", "b", "e", "g"]);
        assert_eq!(read("pub(crate) use other::crate_::x; use self::a::b;", 1), Vec::<String>::new());
    }

    #[test]
    fn enough_of_super_is_the_root() {
        assert_eq!(read("use super::a; use super::super::b;", 1), ["a"]);
        assert_eq!(read("use super::a; use super::super::b;", 2), ["b"]);
        assert_eq!(read("mod inner { use super::a; use super::super::b; } use super::c;", 1), ["b", "c"]);
        assert_eq!(read("use super::{a, b};", 1), ["a", "b"]);
    }

    #[test]
    fn a_cycle_is_found_and_named() {
        let modules = fixture(&[
            ("lib.rs", "mod a; mod b; mod c; pub use a::A;"),
            ("a.rs", "use crate::b::B;"),
            ("b/mod.rs", "mod deep;"),
            ("b/deep.rs", "\nfn f() { crate::c::g(); }"),
            ("c.rs", "use crate::{a::A};"),
            ("d.rs", "use crate::a::A;"),
        ]);
        assert_eq!(modules.cycle_groups(), [["a", "b", "c"]]);
        let violation = "3 modules import each other: a b c\n    a -> b (a.rs:1)\n    b -> c (b/deep.rs:2)\n    c -> a (c.rs:1)";
        assert_eq!(modules.violations(), [violation]);
    }

    #[test]
    fn a_path_in_a_comment_or_a_text_or_a_test_makes_no_cycle() {
        let modules = fixture(&[
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod faults;"),
            ("a.rs", "use crate::b::B; use crate::a::C;"),
            ("b.rs", "// crate::a\n/* crate::a */ const T: &str = \"crate::a\";\n#[cfg(test)]\nmod tests { use crate::a::A; }"),
            ("b/tests.rs", "use crate::a::A;"),
            ("b/tests_more.rs", "use crate::a::A;"),
            ("faults.rs", "use crate::a::A;"),
        ]);
        assert_eq!(modules.files.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(modules.violations(), Vec::<String>::new());
    }
}
