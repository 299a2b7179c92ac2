//! The tool that built a component, by what it left in the file: refusals name it, and the option of it that is the remedy.
//!
//! Tools write their names into the section `producers`, as the tool conventions of WebAssembly have it. Some do not; they export
//! from a module the addresses of the library that they link into every component.

use agent_host_protocol::RefusalCode;
use wasmparser::{KnownCustom, Parser, Payload};

/// A tool that builds components of programs in another language than that of the SDK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Toolchain {
    ComponentizeJs,
    ComponentizePy,
    ComponentizeQjs,
    TinyGo,
}

/// A name that a tool leaves in a component, in `producers` or at the beginning of the name of a library.
const MARKS: [(&str, Toolchain); 4] = [
    ("ComponentizeJS", Toolchain::ComponentizeJs),
    ("libcomponentize_py_runtime", Toolchain::ComponentizePy),
    ("componentize_qjs_runtime", Toolchain::ComponentizeQjs),
    ("TinyGo", Toolchain::TinyGo),
];

impl Toolchain {
    /// The tool that built a component, where it is one of these.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        // What cannot be read is refused elsewhere.
        Parser::new(0).parse_all(bytes).map_while(Result::ok).find_map(|payload| match payload {
            Payload::CustomSection(section) => match section.as_known() {
                KnownCustom::Producers(fields) => fields
                    .into_iter()
                    .map_while(Result::ok)
                    .flat_map(|field| field.values.into_iter().map_while(Result::ok))
                    .find_map(|value| Self::marked(value.name)),
                _ => None,
            },
            Payload::ExportSection(section) => {
                section.into_iter().map_while(Result::ok).find_map(|export| Self::marked(export.name))
            }
            _ => None,
        })
    }

    fn marked(name: &str) -> Option<Self> {
        MARKS.into_iter().find(|(mark, _)| name.starts_with(mark)).map(|(_, tool)| tool)
    }

    /// The name of the tool for people.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ComponentizeJs => "ComponentizeJS",
            Self::ComponentizePy => "componentize-py",
            Self::ComponentizeQjs => "componentize-qjs",
            Self::TinyGo => "TinyGo",
        }
    }

    /// The option of the tool that names the world.
    pub(crate) const fn world_option(self) -> &'static str {
        match self {
            Self::ComponentizeJs => "`worldName: \"mine\"` (`--world-name mine` of jco)",
            Self::ComponentizePy => "`--world mine`",
            Self::ComponentizeQjs => "`--world mine`",
            Self::TinyGo => "`--wit-world mine`",
        }
    }

    /// The remedy for a component that uses the component-model async ABI.
    const fn synchronous(self) -> Option<&'static str> {
        match self {
            Self::ComponentizeQjs => Some("add `--sync` to the command line of componentize-qjs"),
            Self::ComponentizeJs | Self::ComponentizePy | Self::TinyGo => None,
        }
    }

    /// The remedy for a component with too many memories.
    const fn fewer_memories(self) -> Option<&'static str> {
        match self {
            Self::ComponentizeQjs => {
                Some("leave out `--stub-wasi` of componentize-qjs, which adds a module with a memory of its own")
            }
            Self::ComponentizeJs | Self::ComponentizePy | Self::TinyGo => None,
        }
    }
}

/// A refusal with the tool, where one is known, and with the remedy for what the compiler did not take.
pub(crate) fn explain(
    (code, message, fix): (RefusalCode, String, String),
    tool: Option<Toolchain>,
) -> (RefusalCode, String, String) {
    let fix = if code == RefusalCode::Invalid { remedy(&message, tool).unwrap_or(fix) } else { fix };
    let message = match tool {
        Some(tool) if !message.contains(tool.name()) => format!("{message} (built with {})", tool.name()),
        _ => message,
    };
    (code, message, fix)
}

/// The remedy for a component that the compiler refuses with this text.
fn remedy(message: &str, tool: Option<Toolchain>) -> Option<String> {
    if message.contains("component model async") {
        let general = "build it without async functions: the host has no component-model async, and its calls are synchronous";
        return Some(tool.and_then(Toolchain::synchronous).map_or_else(
            || general.to_owned(),
            |how| format!("{how}: the host has no component-model async, and its calls are synchronous"),
        ));
    }
    if message.contains("linear memories") {
        let inert = "WASI needs no stub: the host has it, with nothing in it";
        return Some(tool.and_then(Toolchain::fewer_memories).map_or_else(
            || format!("link its modules into one that has one memory, without adapters that have their own; {inert}"),
            |how| format!("{how}; {inert}"),
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{Component, ExportKind, ExportSection, Module, ModuleSection, ProducersField, ProducersSection};

    use super::*;

    fn produced(field: &str, tool: &str) -> ProducersSection {
        let mut values = ProducersField::new();
        values.value("wit-component", "0.258.0").value(tool, "1.2.3");
        let mut section = ProducersSection::new();
        section.field(field, &values);
        section
    }

    #[test]
    fn a_tool_is_known_by_its_name_at_any_depth() {
        let of = |tool: &str| {
            let mut inner = Module::new();
            inner.section(&produced("processed-by", tool));
            let mut component = Component::new();
            component.section(&ModuleSection(&inner));
            Toolchain::of(&component.finish())
        };
        assert_eq!(of("ComponentizeJS"), Some(Toolchain::ComponentizeJs));
        assert_eq!(of("TinyGo"), Some(Toolchain::TinyGo));
        assert_eq!(of("rustc"), None);
        let mut outer = Component::new();
        outer.section(&produced("processed-by", "ComponentizeJS"));
        assert_eq!(Toolchain::of(&outer.finish()), Some(Toolchain::ComponentizeJs));
        assert_eq!(Toolchain::of(b"\0asm\x0d\0\x01"), None);
    }

    #[test]
    fn a_tool_that_does_not_name_itself_is_known_by_its_library() {
        let of = |name: &str| {
            let mut exports = ExportSection::new();
            exports.export(name, ExportKind::Global, 0);
            let mut linker = Module::new();
            linker.section(&exports);
            let mut component = Component::new();
            component.section(&ModuleSection(&linker));
            Toolchain::of(&component.finish())
        };
        assert_eq!(of("componentize_qjs_runtime.wasm:memory_base"), Some(Toolchain::ComponentizeQjs));
        assert_eq!(of("libcomponentize_py_runtime.so:memory_base"), Some(Toolchain::ComponentizePy));
        assert_eq!(of("memory"), None);
    }

    #[test]
    fn a_remedy_is_that_of_the_tool() {
        let refused = |message: &str, tool| explain((RefusalCode::Invalid, message.to_owned(), "general".to_owned()), tool);
        let asynchronous = "`task.cancel` requires the component model async feature";
        let (_, message, fix) = refused(asynchronous, Some(Toolchain::ComponentizeQjs));
        assert!(message.ends_with("(built with componentize-qjs)") && fix.contains("`--sync`"), "{message}: {fix}");
        let (_, message, fix) = refused(asynchronous, None);
        assert!(message == asynchronous && fix.starts_with("build it without async functions"), "{message}: {fix}");
        let memories = "The component transitively contains 3 Wasm linear memories, which exceeds the configured maximum of 2";
        assert!(refused(memories, Some(Toolchain::ComponentizeQjs)).2.contains("`--stub-wasi`"));
        assert!(refused(memories, Some(Toolchain::ComponentizePy)).2.starts_with("link its modules into one"));
        assert_eq!(refused("threads are off", Some(Toolchain::TinyGo)).2, "general");
    }
}
