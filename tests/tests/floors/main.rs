//! The floors of the host: no crate depends on a higher one, crates of one floor do not know each other, no crate has an
//! import cycle between its top-level modules, and the rooms of the kernel import only rooms below them.

mod glossary;
mod links;
mod modules;
mod rooms;
mod security;
mod tokens;
mod words;

use std::{collections::BTreeMap, fs, path::Path};

use crate::modules::Modules;

/// The floors, lowest first (ARCHITECTURE.md, "Houses and floors").
const FLOORS: [(&str, u32); 10] = [
    ("protocol", 0),
    ("config", 1),
    ("facts", 1),
    ("ledger", 1),
    ("sandbox", 1),
    ("harness", 2),
    ("providers", 2),
    ("runs", 3),
    ("server", 4),
    ("cli", 5),
];

fn modules(house: &str) -> Modules {
    Modules::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../host").join(house).join("src"))
}

fn dependencies(house: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host").join(house).join("Cargo.toml");
    let manifest: toml::Table = fs::read_to_string(path).unwrap().parse().unwrap();
    let mut found = Vec::new();
    for section in ["dependencies", "build-dependencies"] {
        let names = manifest.get(section).and_then(toml::Value::as_table).into_iter().flat_map(|table| table.keys());
        found.extend(names.filter_map(|name| name.strip_prefix("agent-host-")).map(str::to_owned));
    }
    found
}

#[test]
fn no_arrow_points_upward() {
    let floors = BTreeMap::from(FLOORS);
    for (house, floor) in &floors {
        for dependency in dependencies(house) {
            let below = floors
                .get(dependency.as_str())
                .unwrap_or_else(|| panic!("{house} depends on {dependency}, which is on no floor of the host"));
            assert!(
                below < floor,
                "{house} (floor {floor}) depends on {dependency} (floor {below}): nothing imports upward or sideways"
            );
        }
    }
}

/// The floor of `providers` would allow more: only `config` is shared by everybody above it.
#[test]
fn the_crates_in_the_middle_do_not_know_each_other() {
    for house in ["ledger", "sandbox", "providers"] {
        let others: Vec<_> =
            dependencies(house).into_iter().filter(|name| !matches!(name.as_str(), "protocol" | "config")).collect();
        assert_eq!(others, Vec::<String>::new(), "{house}");
    }
}

#[test]
fn every_house_is_on_a_floor() {
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host");
    for entry in fs::read_dir(host).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            FLOORS.iter().any(|(house, _)| *house == name),
            "{name} is on no floor: put it on one, here and in ARCHITECTURE.md"
        );
    }
}

#[test]
fn only_the_sandbox_knows_the_engine_and_only_the_ledger_knows_the_store() {
    for (house, _) in FLOORS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host").join(house).join("Cargo.toml");
        let manifest: toml::Table = fs::read_to_string(path).unwrap().parse().unwrap();
        let names: Vec<_> = manifest["dependencies"].as_table().unwrap().keys().cloned().collect();
        assert_eq!(names.iter().any(|name| name.starts_with("wasmtime")), house == "sandbox", "{house}");
        assert_eq!(names.iter().any(|name| name == "redb"), house == "ledger", "{house}");
        assert_eq!(names.iter().any(|name| name == "axum"), house == "server", "{house}");
    }
}

#[test]
fn no_modules_import_each_other() {
    let violations = |(house, _)| modules(house).violations().into_iter().map(move |violation| format!("{house}: {violation}"));
    let found: Vec<_> = FLOORS.into_iter().flat_map(violations).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn rooms_of_the_kernel_import_only_rooms_below_them() {
    let found = rooms::violations(&modules("runs"), &rooms::LEAVES);
    assert!(found.is_empty(), "{}", found.join("\n"));
}
