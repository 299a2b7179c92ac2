//! The imports and exports of a component, read without executing or compiling it, and the verdict on each import.

use agent_host_protocol::{ImportReport, ImportVerdict, Interface, InterfaceSet, RefusalCode};
use semver::Version;
use wasmparser::{Encoding, Parser, Payload};

use crate::toolchain::Toolchain;

/// The package of the contract and its version.
const PACKAGE: &str = "agent-host:runner";
const VERSION: Version = Version::new(1, 0, 0);

/// The export that makes a component a runner.
const RUNNER: &str = "runner";

/// Interfaces of the contract that hold only types, or that every run has.
const ALWAYS: [&str; 5] = ["types", "manifest", "context", "results", "log"];

/// Packages of WASI 0.2 that the host links, with nothing in them.
const WASI: [&str; 6] = ["wasi:cli", "wasi:clocks", "wasi:filesystem", "wasi:io", "wasi:random", "wasi:sockets"];

/// The package of WASI 0.2 that leads to the outside, and its interface that does so.
const WASI_HTTP: &str = "wasi:http";
const OUTGOING: &str = "outgoing-handler";

/// The remedy for another WASI version.
const WASI_VERSION: &str = "the host has WASI 0.2: build for wasm32-wasip2";

/// Imports or exports of one component. A world has some forty; this keeps a report readable and a file that is
/// nothing but imports cheap.
const MAX_NAMES: usize = 1_000;

/// The names on the outside of a component.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Surface {
    pub(crate) imports: Vec<String>,
    pub(crate) exports: Vec<String>,
}

/// A reason to refuse, with what is wrong and what to do.
pub(crate) type ImportRefusal = (RefusalCode, String, String);

/// Reads the outside of a component.
pub(crate) fn surface(bytes: &[u8]) -> Result<Surface, ImportRefusal> {
    if !bytes.starts_with(b"\0asm") {
        return Err((
            RefusalCode::NotWasm,
            if bytes.is_empty() {
                "the file is empty".to_owned()
            } else {
                "the file does not begin as WebAssembly does".to_owned()
            },
            "put a component here: cargo build --target wasm32-wasip2 --release makes one".to_owned(),
        ));
    }
    let mut surface = Surface::default();
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(|error| damaged(&error))? {
            Payload::Version { encoding: Encoding::Module, .. } if depth == 0 => {
                return Err((
                    RefusalCode::CoreModule,
                    "the file is a core module, not a component".to_owned(),
                    "build for wasm32-wasip2, or turn the module into a component with `wasm-tools component new`".to_owned(),
                ));
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    surface.imports.push(import.map_err(|error| damaged(&error))?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    surface.exports.push(export.map_err(|error| damaged(&error))?.name.name.to_owned());
                }
            }
            _ => {}
        }
        if surface.imports.len().max(surface.exports.len()) > MAX_NAMES {
            return Err((
                RefusalCode::Invalid,
                format!("the component has more than {MAX_NAMES} imports or exports"),
                "import only the interfaces that the runner calls".to_owned(),
            ));
        }
    }
    surface.imports.sort();
    surface.imports.dedup();
    Ok(surface)
}

pub(crate) fn damaged(error: &wasmparser::BinaryReaderError) -> ImportRefusal {
    (
        RefusalCode::NotWasm,
        format!("the file is cut short or damaged: {}", error.message()),
        "copy the file again, best under another name and then renamed, so that the host never sees half of it".to_owned(),
    )
}

/// `package/interface@version`, taken apart.
struct Name<'a> {
    package: &'a str,
    interface: &'a str,
    version: Option<Version>,
}

impl<'a> Name<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let (path, version) = name.split_once('@').map_or((name, None), |(path, version)| (path, Some(version)));
        let (package, interface) = path.split_once('/')?;
        Some(Self { package, interface, version: version.and_then(|version| version.parse().ok()) })
    }

    fn is_wasi_0_2(&self) -> bool {
        self.version.as_ref().is_some_and(|version| version.major == 0 && version.minor == 2)
    }
}

/// Checks that a component with these exports is a runner.
pub(crate) fn check_exports(exports: &[String]) -> Result<(), ImportRefusal> {
    let runners =
        exports.iter().filter_map(|name| Name::parse(name)).filter(|name| name.package == PACKAGE && name.interface == RUNNER);
    let mut other = None;
    for name in runners {
        match name.version {
            Some(version) if version.major == VERSION.major => return Ok(()),
            version => other = version,
        }
    }
    let (message, fix) = match other {
        Some(version) => (
            format!("the component exports {PACKAGE}/{RUNNER}@{version}; this host runs version {}", VERSION.major),
            "build it against the contract of this host (wit/)".to_owned(),
        ),
        None => (
            format!(
                "the component does not export {PACKAGE}/{RUNNER}; it exports: {}",
                if exports.is_empty() { "nothing".to_owned() } else { exports.join(", ") }
            ),
            "implement the runner with the SDK and `agent_host_sdk::export!`".to_owned(),
        ),
    };
    Err((RefusalCode::WrongWorld, message, fix))
}

/// The verdict on each import, given the interfaces that the runners of the component declare (`None` before their
/// manifests are read).
pub(crate) fn judge(imports: &[String], declared: Option<InterfaceSet>) -> Vec<ImportReport> {
    imports.iter().map(|import| judge_one(import, declared)).collect()
}

fn judge_one(import: &str, declared: Option<InterfaceSet>) -> ImportReport {
    let report = |verdict, fix: Option<String>| ImportReport { name: import.to_owned(), verdict, fix };
    let Some(name) = Name::parse(import) else {
        return report(
            ImportVerdict::Unknown,
            Some("a runner can import only interfaces of the contract (wit/) and of WASI 0.2".to_owned()),
        );
    };
    if WASI.contains(&name.package) {
        return if name.is_wasi_0_2() {
            report(ImportVerdict::Inert, None)
        } else {
            report(ImportVerdict::OtherVersion, Some(WASI_VERSION.to_owned()))
        };
    }
    if name.package == WASI_HTTP {
        let (verdict, fix) = judge_wasi_http(&name, declared);
        return report(verdict, fix);
    }
    if name.package != PACKAGE {
        let fix = "remove the dependency that needs it, or compose the component with one that provides it (`wac plug`)";
        return report(ImportVerdict::Unknown, Some(fix.to_owned()));
    }
    let interface = Interface::from_name(name.interface);
    if interface.is_none() && !ALWAYS.contains(&name.interface) {
        return report(
            ImportVerdict::Unknown,
            Some(format!("version {VERSION} of the contract has no interface `{}`", name.interface)),
        );
    }
    match &name.version {
        Some(version) if version.major != VERSION.major => {
            return report(
                ImportVerdict::OtherVersion,
                Some(format!("build it against version {} of the contract", VERSION.major)),
            );
        }
        None => return report(ImportVerdict::OtherVersion, Some(format!("import it with its version, `@{VERSION}`"))),
        Some(_) => {}
    }
    match (interface, declared) {
        (Some(interface), Some(declared)) if !declared.contains(interface) => {
            report(ImportVerdict::Undeclared, Some(declaration(interface)))
        }
        _ => report(ImportVerdict::Provided, None),
    }
}

/// The verdict on an import of `wasi:http`: the outgoing half exists, for runners that may use `http`.
fn judge_wasi_http(name: &Name<'_>, declared: Option<InterfaceSet>) -> (ImportVerdict, Option<String>) {
    if !["types", OUTGOING].contains(&name.interface) {
        let fix = format!("use {PACKAGE}/http and name the hosts in the permission `http_hosts`");
        (ImportVerdict::Unknown, Some(fix))
    } else if !name.is_wasi_0_2() {
        (ImportVerdict::OtherVersion, Some(WASI_VERSION.to_owned()))
    } else if declared.is_some_and(|declared| !declared.contains(Interface::Http)) {
        (ImportVerdict::Undeclared, Some(declaration(Interface::Http)))
    } else if name.interface == OUTGOING {
        let fix = format!("runs of this component cannot be resumed after a restart of the host; with {PACKAGE}/http they can");
        (ImportVerdict::Provided, Some(fix))
    } else {
        (ImportVerdict::Provided, None)
    }
}

/// True if a component with these imports uses `wasi:http`.
pub(crate) fn uses_wasi_http(imports: &[String]) -> bool {
    imports.iter().filter_map(|import| Name::parse(import)).any(|name| name.package == WASI_HTTP)
}

/// The permission that declares an interface; `None` for the one that a capability declares.
const fn permission(interface: Interface) -> Option<&'static str> {
    match interface {
        Interface::Knowledge => Some("knowledge_bases"),
        Interface::Platform => Some("platform_api"),
        Interface::Http => Some("http_hosts"),
        Interface::Steering => None,
        other => Some(other.as_str()),
    }
}

/// The member of a manifest that declares an interface.
fn declaration(interface: Interface) -> String {
    match permission(interface) {
        Some(permission) => format!("declare the permission `{permission}` in the manifest, or do not call it"),
        None => "declare the capability `steering` in the manifest, or do not call it".to_owned(),
    }
}

/// The members of a manifest that declare these interfaces.
fn declarations(interfaces: InterfaceSet) -> String {
    let mut all = interfaces.iter();
    if let (Some(only), None) = (all.next(), all.next()) {
        return declaration(only);
    }
    let named =
        interfaces.iter().filter_map(permission).map(|permission| format!("`{permission}`")).collect::<Vec<_>>().join(", ");
    let capability = if interfaces.contains(Interface::Steering) { " and the capability `steering`" } else { "" };
    format!("declare the permissions {named}{capability} in the manifest, or do not call them")
}

/// The refusal for imports that cannot be admitted, if there are any. `tool` has built the component.
pub(crate) fn refusal(reports: &[ImportReport], tool: Option<Toolchain>) -> Option<ImportRefusal> {
    let bad: Vec<_> = reports.iter().filter(|report| !report.verdict.is_fine()).collect();
    let first = bad.first()?;
    let names: Vec<_> = bad.iter().map(|report| report.name.as_str()).collect();
    let (code, what) = if bad.iter().all(|report| report.verdict == ImportVerdict::Undeclared) {
        (RefusalCode::UndeclaredImport, "imports what its runners do not declare")
    } else if bad.iter().any(|report| matches!(report.verdict, ImportVerdict::Mismatch | ImportVerdict::NewerVersion)) {
        (RefusalCode::ImportMismatch, "imports functions or types that this host does not have")
    } else {
        (RefusalCode::UnknownImport, "imports what this host does not have")
    };
    let fix =
        if code == RefusalCode::UndeclaredImport { undeclared(reports, tool) } else { first.fix.clone().unwrap_or_default() };
    Some((code, format!("the component {what}: {}", names.join(", ")), fix))
}

/// The remedy for imports that no manifest declares. The SDK imports what a runner calls, so there the manifest is wrong. Other tools
/// import the whole world that they are given, called or not, so there the world is too large.
fn undeclared(reports: &[ImportReport], tool: Option<Toolchain>) -> String {
    let of = |is_wanted: fn(ImportVerdict) -> bool| -> InterfaceSet {
        reports.iter().filter(|report| is_wanted(report.verdict)).filter_map(|report| interface_of(&report.name)).collect()
    };
    let (declared, undeclared) = (of(ImportVerdict::is_fine), of(|verdict| verdict == ImportVerdict::Undeclared));
    let is_whole_world = Interface::ALL.iter().all(|interface| declared.union(undeclared).contains(*interface));
    if tool.is_none() && !is_whole_world {
        return declarations(undeclared);
    }
    let imports: String = declared.iter().map(|interface| format!(" import {PACKAGE}/{interface}@{VERSION};")).collect();
    let option =
        tool.map_or_else(|| "name that world when you build".to_owned(), |tool| format!("build with {}", tool.world_option()));
    format!(
        "build it for a world with no more than the manifest declares, instead of `agent-runner`: `world mine {{ include \
         {PACKAGE}/runner-base@{VERSION};{imports} }}`, and {option}; or {}",
        declarations(undeclared)
    )
}

/// The interface of the contract that an import belongs to.
fn interface_of(import: &str) -> Option<Interface> {
    let name = Name::parse(import)?;
    match name.package {
        PACKAGE => Interface::from_name(name.interface),
        WASI_HTTP => Some(Interface::Http),
        _ => None,
    }
}

/// Marks the import that linking failed on. `problem` is the engine's text, which names it.
pub(crate) fn mark_mismatch(reports: &mut [ImportReport], problem: &str) {
    let Some(report) = reports.iter_mut().find(|report| problem.contains(&format!("`{}`", report.name))) else { return };
    let newer = Name::parse(&report.name).and_then(|name| name.version).is_some_and(|version| version > VERSION);
    if report.name.starts_with(PACKAGE) && newer {
        report.verdict = ImportVerdict::NewerVersion;
        report.fix =
            Some(format!("this host has version {VERSION} of the contract: update the host, or build against {VERSION}"));
    } else {
        report.verdict = ImportVerdict::Mismatch;
        report.fix = Some("build it against the contract of this host (wit/), unchanged".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(import: &str, declared: &[Interface]) -> ImportVerdict {
        judge_one(import, Some(declared.iter().copied().collect())).verdict
    }

    #[test]
    fn each_import_has_its_verdict() {
        use ImportVerdict::{Inert, OtherVersion, Provided, Undeclared, Unknown};
        for (import, expected) in [
            ("agent-host:runner/types@1.0.0", Provided),
            ("agent-host:runner/results@1.0.0", Provided),
            ("agent-host:runner/state@1.0.0", Provided),
            ("agent-host:runner/state@1.2.0", Provided),
            ("agent-host:runner/state", OtherVersion),
            ("agent-host:runner/state@2.0.0", OtherVersion),
            ("agent-host:runner/history@1.0.0", Undeclared),
            ("agent-host:runner/teleport@1.0.0", Unknown),
            ("wasi:cli/environment@0.2.6", Inert),
            ("wasi:io/streams@0.3.0", OtherVersion),
            ("wasi:http/types@0.2.3", Undeclared),
            ("wasi:http/outgoing-handler@0.2.0", Undeclared),
            ("wasi:http/outgoing-handler@0.3.0", OtherVersion),
            ("wasi:http/outgoing-handler", OtherVersion),
            ("wasi:http/incoming-handler@0.2.0", Unknown),
            ("wasi:http/proxy@0.2.0", Unknown),
            ("example:unknown/thing", Unknown),
            ("thing", Unknown),
            ("", Unknown),
        ] {
            assert_eq!(verdict(import, &[Interface::State]), expected, "{import}");
        }
    }

    #[test]
    fn wasi_http_is_there_for_whom_may_use_http() {
        let handler = "wasi:http/outgoing-handler@0.2.4";
        let http = InterfaceSet::default().with(Interface::Http);
        let report = judge_one(handler, Some(http));
        assert_eq!(report.verdict, ImportVerdict::Provided);
        assert!(report.fix.unwrap().contains("cannot be resumed"));
        let types = judge_one("wasi:http/types@0.2.4", Some(http));
        assert_eq!((types.verdict, types.fix), (ImportVerdict::Provided, None));
        assert_eq!(judge_one(handler, None).verdict, ImportVerdict::Provided, "nobody was asked yet");
        let report = judge_one(handler, Some(InterfaceSet::default()));
        assert_eq!(report.verdict, ImportVerdict::Undeclared);
        assert!(report.fix.unwrap().contains("`http_hosts`"));
        let report = judge_one("wasi:http/incoming-handler@0.2.4", Some(http));
        assert_eq!(report.verdict, ImportVerdict::Unknown);
        assert!(report.fix.unwrap().contains("agent-host:runner/http"));
    }

    #[test]
    fn a_component_uses_wasi_http_where_it_imports_any_of_it() {
        let uses = |imports: &[&str]| uses_wasi_http(&imports.iter().map(|&import| import.to_owned()).collect::<Vec<_>>());
        assert!(uses(&["wasi:io/poll@0.2.6", "wasi:http/types@0.2.6"]));
        assert!(uses(&["wasi:http/outgoing-handler@0.2.0"]));
        assert!(!uses(&["wasi:io/poll@0.2.6", "agent-host:runner/http@1.0.0", "wasi:http-client/types@0.2.0", "thing"]));
    }

    #[test]
    fn every_interface_of_the_contract_says_how_to_declare_it() {
        for interface in Interface::ALL {
            let import = format!("{PACKAGE}/{interface}@{VERSION}");
            assert_eq!(verdict(&import, &[*interface]), ImportVerdict::Provided);
            let report = judge_one(&import, Some(InterfaceSet::default()));
            assert_eq!(report.verdict, ImportVerdict::Undeclared);
            assert!(report.fix.unwrap().contains("declare"));
        }
    }

    #[test]
    fn a_component_with_more_than_it_declares_is_told_what_to_change() {
        let all: Vec<String> = Interface::ALL.iter().map(|interface| format!("{PACKAGE}/{interface}@{VERSION}")).collect();
        let fix = |imports: &[String], declared: &[Interface], tool| {
            let reports = judge(imports, Some(declared.iter().copied().collect()));
            let (code, message, fix) = refusal(&reports, tool).unwrap();
            assert_eq!(code, RefusalCode::UndeclaredImport, "{message}");
            fix
        };
        // The SDK imports what is called: the manifest lacks it.
        assert_eq!(fix(&all[6..7], &[], None), "declare the permission `state` in the manifest, or do not call it");
        let some: Vec<String> = [&all[2..4], &all[10..11]].concat();
        assert_eq!(
            fix(&some, &[], None),
            "declare the permissions `knowledge_bases`, `history` and the capability `steering` in the manifest, or do not call them"
        );
        // The whole world, by whatever tool: the world is too large.
        let world = "`world mine { include agent-host:runner/runner-base@1.0.0; import agent-host:runner/models@1.0.0; \
                     import agent-host:runner/state@1.0.0; }`";
        let whole = fix(&all, &[Interface::State, Interface::Models], None);
        assert!(whole.contains(world) && whole.contains("instead of `agent-runner`") && whole.contains("`timers`"), "{whole}");
        let part = fix(&all[..3], &[Interface::Models], Some(Toolchain::ComponentizeQjs));
        assert!(part.contains("import agent-host:runner/models@1.0.0; }`, and build with `--world mine`; or declare"), "{part}");
    }

    #[test]
    fn other_files_than_components_are_distinguished() {
        let code = |bytes: &[u8]| surface(bytes).unwrap_err().0;
        assert_eq!(code(b""), RefusalCode::NotWasm);
        assert_eq!(code(b"hello"), RefusalCode::NotWasm);
        assert_eq!(code(b"\0asm\x01\0\0\0"), RefusalCode::CoreModule);
        assert_eq!(code(b"\0asm\x0d\0\x01"), RefusalCode::NotWasm);
        assert_eq!(
            surface(b"\0asm\x0d\0\x01\0"),
            Ok(Surface::default()),
            "an empty component is read, and refused for its world"
        );
        assert_eq!(check_exports(&[]).unwrap_err().0, RefusalCode::WrongWorld);
    }
}
