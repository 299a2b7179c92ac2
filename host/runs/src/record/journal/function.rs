//! The functions of the contract, as a journal names them.

/// Every function that leaves an entry, `interface.function`, methods of resources with the resource between. The place
/// in this list is its code on disk: it only ever grows at its end.
const FUNCTIONS: &[&str] = &[
    "results.emit",
    "models.invoke",
    "models.stream",
    "models.response-stream.next",
    "models.rerank",
    "models.embed",
    "models.count-tokens",
    "tools.get-detail",
    "tools.call",
    "tools.call-many",
    "knowledge.list",
    "knowledge.retrieve",
    "history.page",
    "history.search",
    "events.get",
    "events.page",
    "artifacts.metadata",
    "artifacts.read-range",
    "artifacts.open",
    "artifacts.reader.read",
    "artifacts.create",
    "artifacts.writer.write",
    "artifacts.writer.finish",
    "state.get",
    "state.set",
    "state.delete",
    "state.list-keys",
    "storage.get",
    "storage.set",
    "storage.delete",
    "storage.list",
    "timers.now",
    "timers.sleep-until",
    // Of WASI: a guest that waits for its clock.
    "wasi.wait",
    "platform.request-action",
    "interactions.ask",
    "steering.pull",
    "runs.start",
    "runs.wait-any",
    "runs.get",
    "runs.list",
    "runs.events-page",
    "runs.cancel",
    "http.send",
    "http.response.status",
    "http.response.headers",
    "http.response.read",
    // Of WASI: requests to the outside. Runs with them have no journal.
    "wasi.http",
    "http.wasi-outgoing-handler.handle",
];

/// Every function, by name.
pub(crate) fn functions() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().copied()
}

/// A function of the contract, by its place in [`FUNCTIONS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Function(pub(crate) u16);

impl Function {
    /// The function of this name. Every name in use is listed: a test holds the list against `wit/`.
    pub(crate) fn named(name: &str) -> Self {
        let code = FUNCTIONS.iter().position(|known| *known == name);
        debug_assert!(code.is_some(), "{name} is not in FUNCTIONS");
        Self(code.and_then(|code| u16::try_from(code).ok()).unwrap_or(u16::MAX))
    }

    /// The name of the function; `None` for a function that a later host has added.
    pub(crate) fn name(self) -> &'static str {
        FUNCTIONS.get(usize::from(self.0)).copied().unwrap_or("a function of a later host")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The meaning of the numbers in journals on disk.
    #[test]
    fn codes_never_change() {
        for (name, code) in [
            ("results.emit", 0),
            ("models.response-stream.next", 3),
            ("tools.call-many", 9),
            ("state.get", 23),
            ("timers.now", 31),
            ("wasi.wait", 33),
            ("http.response.read", 46),
        ] {
            assert_eq!(Function::named(name).0, code);
            assert_eq!(Function(code).name(), name);
        }
    }

    #[test]
    fn every_function_of_the_contract_has_a_code() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit");
        let mut found = 0;
        for file in std::fs::read_dir(root).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let (mut interface, mut resource) = (String::new(), None::<String>);
            for line in text.lines().map(str::trim) {
                if let Some(name) = line.strip_prefix("interface ") {
                    interface = name.trim_end_matches([' ', '{']).to_owned();
                } else if let Some(name) = line.strip_prefix("resource ") {
                    resource = Some(name.trim_end_matches([' ', '{']).to_owned());
                } else if line == "}" {
                    resource = None;
                }
                let Some((name, _)) = line.split_once(": func(").or_else(|| line.split_once(": static func(")) else { continue };
                // Exports of a plugin, and functions without an answer.
                if interface == "runner" || interface == "log" {
                    continue;
                }
                let name = name.trim_start_matches('%');
                let name = match &resource {
                    Some(resource) => format!("{interface}.{resource}.{name}"),
                    None => format!("{interface}.{name}"),
                };
                assert!(FUNCTIONS.contains(&name.as_str()), "{name} has no code: add it at the end of FUNCTIONS");
                found += 1;
            }
        }
        assert!(found >= 40, "only {found} functions were found in wit/");
    }
}
