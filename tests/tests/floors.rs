//! The floors of the house: no crate depends on a higher one, and the middle ones do not know each other.

use std::{collections::BTreeMap, fs, path::Path};

/// The floors, lowest first (ARCHITECTURE.md, "Houses and floors").
const FLOORS: [(&str, u32); 7] =
    [("protocol", 0), ("ledger", 1), ("sandbox", 1), ("providers", 1), ("runs", 2), ("server", 3), ("cli", 4)];

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
