//! The rooms of the kernel: the top-level modules of `host/runs`, lowest first.

use std::collections::BTreeSet;

use crate::modules::Modules;

/// The rooms, lowest first. A room imports only rooms below it.
pub const ROOMS: [&str; 7] = ["record", "policy", "execution", "calls", "lifecycle", "intake", "host"];

/// Modules that every room may import and that import no room.
pub const LEAVES: [&str; 0] = [];

/// The one file that submits writes of runs to the ledger.
const WRITER: &str = "execution/writer.rs";

/// The files that may hold an `impl Host`.
const IMPL_FILES: usize = 3;

/// Rules that the rooms of a kernel break.
pub fn violations(kernel: &Modules, leaves: &[&str]) -> Vec<String> {
    [
        outside_rooms(kernel, leaves),
        upward(kernel, leaves),
        names_of_the_facade(kernel),
        too_many_impls(kernel),
        other_writers(kernel),
    ]
    .concat()
}

fn floor(module: &str) -> Option<usize> {
    ROOMS.iter().position(|room| *room == module)
}

/// Modules that are neither a room nor a leaf.
fn outside_rooms(kernel: &Modules, leaves: &[&str]) -> Vec<String> {
    let known = |module: &&String| floor(module).is_some() || leaves.contains(&module.as_str());
    let outside_rooms = kernel.files.keys().filter(|module| !known(module));
    outside_rooms.map(|module| format!("the module {module} is no room of the kernel: move it into one")).collect()
}

/// Arrows from a room to a higher one, and from a leaf to a room.
fn upward(kernel: &Modules, leaves: &[&str]) -> Vec<String> {
    let wrong = kernel.arrows.iter().filter(|((from, to), _)| match (floor(from), floor(to)) {
        (Some(from), Some(to)) => from < to,
        (None, Some(_)) => leaves.contains(&from.as_str()),
        (_, None) => false,
    });
    wrong.map(|((from, to), place)| format!("{from} imports {to}, which is above it ({place})")).collect()
}

/// Places below the room `host` that name the facade.
fn names_of_the_facade(kernel: &Modules) -> Vec<String> {
    let below = kernel.files.iter().filter(|(module, _)| *module != "host").flat_map(|(_, files)| files);
    // `Execution::Host`, `EventSource::Host` and `RunLogSource::Host` are variants of the protocol: who executes a run, and the
    // source of an event or of a line of a log.
    let is_facade = |code: &[(String, usize)]| match code {
        [(name, _), (colons, _), (host, _)] => {
            host == "Host" && !(colons == "::" && ["Execution", "EventSource", "RunLogSource"].contains(&name.as_str()))
        }
        _ => false,
    };
    let named = below.filter_map(|file| {
        let padded: Vec<_> = [(String::new(), 0), (String::new(), 0)].into_iter().chain(file.code.iter().cloned()).collect();
        Some((file, padded.windows(3).find(|code| is_facade(code))?.last()?.clone()))
    });
    named.map(|(file, (_, line))| format!("{}:{line} names `Host`: only the room `host` knows the facade", file.path)).collect()
}

/// Files besides the one writer that submit a write of a run to the ledger.
fn other_writers(kernel: &Modules) -> Vec<String> {
    let others = kernel.files.values().flatten().filter(|file| file.path != WRITER);
    let found = others.filter_map(|file| {
        let submit = |code: &&[(String, usize)]| code.iter().map(|(text, _)| text.as_str()).eq([".", "submit", "("]);
        Some((file, file.code.windows(3).find(submit)?.first()?.1))
    });
    found.map(|(file, line)| format!("{}:{line} submits a write of a run: only {WRITER} does", file.path)).collect()
}

/// More files with an `impl Host` than there may be.
fn too_many_impls(kernel: &Modules) -> Vec<String> {
    let mut files = BTreeSet::new();
    for file in kernel.files.values().flatten() {
        let words: Vec<_> = file.code.iter().map(|(text, _)| text.as_str()).collect();
        for (at, _) in words.iter().enumerate().filter(|(_, word)| **word == "impl") {
            let head: Vec<_> = words[at..].iter().take_while(|word| **word != "{").copied().collect();
            if head.last() == Some(&"Host") && !head.contains(&"for") {
                files.insert(&file.path);
            }
        }
    }
    if files.len() <= IMPL_FILES {
        return Vec::new();
    }
    vec![format!("`impl Host` stands in {} files, and may in {IMPL_FILES}: {files:?}", files.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::fixture;

    fn wrong(files: &[(&str, &str)]) -> Vec<String> {
        violations(&fixture(files), &["error"])
    }

    #[test]
    fn arrows_downward_are_right() {
        let files = [
            ("lib.rs", "mod record; mod host; pub use host::Host;"),
            ("error.rs", "pub enum Error {}"),
            ("record.rs", "use crate::error::Error; // crate::host and Host"),
            ("calls/mod.rs", "use crate::{record::Row, error::Error};"),
            ("host/mod.rs", "use crate::calls::Call; pub struct Host; impl Host {} impl Drop for Host {}"),
            ("host/more.rs", "use super::Host; impl super::Host {}"),
        ];
        assert_eq!(wrong(&files), Vec::<String>::new());
    }

    #[test]
    fn an_arrow_upward_is_wrong() {
        let files = [("record.rs", "\nuse crate::host::x;"), ("host.rs", ""), ("error.rs", "use crate::record::Row;")];
        let expected =
            ["error imports record, which is above it (error.rs:1)", "record imports host, which is above it (record.rs:2)"];
        assert_eq!(wrong(&files), expected);
    }

    #[test]
    fn a_module_outside_of_the_rooms_is_wrong() {
        assert_eq!(wrong(&[("life.rs", ""), ("intake.rs", "")]), ["the module life is no room of the kernel: move it into one"]);
    }

    #[test]
    fn a_lower_room_that_names_the_facade_is_wrong() {
        let files = [("calls/http.rs", "use crate::Host;"), ("host.rs", "struct Host;"), ("policy.rs", "struct HostName;")];
        assert_eq!(wrong(&files), ["calls/http.rs:1 names `Host`: only the room `host` knows the facade"]);
    }

    #[test]
    fn a_variant_of_the_protocol_is_not_the_facade() {
        assert_eq!(wrong(&[("policy.rs", "let who = Execution::Host;")]), Vec::<String>::new());
    }

    #[test]
    fn a_second_writer_is_wrong() {
        let files = [("execution/writer.rs", "ledger.submit(write)"), ("intake.rs", "\nself.ledger.submit(write).await")];
        assert_eq!(wrong(&files), ["intake.rs:2 submits a write of a run: only execution/writer.rs does"]);
    }

    #[test]
    fn the_facade_is_not_spread_over_files() {
        let files = ["host/a.rs", "host/b.rs", "host/c.rs", "host/d.rs"].map(|path| (path, "impl Host { fn f() {} }"));
        let expected =
            "`impl Host` stands in 4 files, and may in 3: {\"host/a.rs\", \"host/b.rs\", \"host/c.rs\", \"host/d.rs\"}";
        assert_eq!(wrong(&files), [expected]);
    }
}
