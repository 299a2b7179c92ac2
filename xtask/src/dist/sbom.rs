//! A list of the parts of the binary (SBOM), in CycloneDX 1.6: what `cargo metadata` says of the packages that it is built of.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{process, workspace::Workspace};

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    description: Option<String>,
    license: Option<String>,
    repository: Option<String>,
    /// `None` for a package of the workspace.
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    /// `None` for a usual dependency, else `build` or `dev`.
    kind: Option<String>,
}

/// The list for a package of the workspace, as JSON.
pub(super) fn of(workspace: &Workspace, package: &str, target: &str) -> anyhow::Result<String> {
    let mut cargo = workspace.cargo(&["metadata", "--format-version", "1", "--locked", "--filter-platform", target]);
    let metadata: Metadata = serde_json::from_str(&process::output(&mut cargo)?).context("cargo metadata cannot be read")?;
    let list = list(&metadata, package).with_context(|| format!("cargo knows no package {package}"))?;
    Ok(format!("{}\n", serde_json::to_string_pretty(&list)?))
}

fn list(metadata: &Metadata, package: &str) -> Option<Value> {
    let packages: BTreeMap<&str, &Package> = metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
    let root = metadata.packages.iter().find(|found| found.source.is_none() && found.name == package)?;
    let needs: BTreeMap<&str, BTreeSet<&str>> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), built(node))).collect();
    let (mut reached, mut open) = (BTreeSet::from([root.id.as_str()]), vec![root.id.as_str()]);
    while let Some(id) = open.pop() {
        open.extend(needs.get(id).into_iter().flatten().copied().filter(|next| reached.insert(next)));
    }
    let parts: Vec<_> = reached.iter().filter_map(|id| packages.get(id).copied()).collect();
    let dependencies: Vec<_> = parts
        .iter()
        .map(|part| {
            let on = needs.get(part.id.as_str()).into_iter().flatten().filter_map(|id| packages.get(id));
            json!({ "ref": reference(part), "dependsOn": on.map(|on| reference(on)).collect::<BTreeSet<_>>() })
        })
        .collect();
    let components: Vec<_> = parts.iter().filter(|part| part.id != root.id).map(|part| component(part, "library")).collect();
    Some(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": component(root, "application") },
        "components": components,
        "dependencies": dependencies,
    }))
}

/// The packages that one is built of or with, tests left out.
fn built(node: &Node) -> BTreeSet<&str> {
    let is_built = |dependency: &&Dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.as_deref() != Some("dev"));
    node.deps.iter().filter(is_built).map(|dependency| dependency.pkg.as_str()).collect()
}

/// The address of a package (package URL).
fn reference(package: &Package) -> String {
    // `+` of a version is not a character of such an address.
    format!("pkg:cargo/{}@{}", package.name, package.version.replace('+', "%2B"))
}

fn component(package: &Package, kind: &str) -> Value {
    let reference = reference(package);
    let mut component = json!({
        "type": kind,
        "bom-ref": reference,
        "purl": reference,
        "name": package.name,
        "version": package.version,
    });
    // The form of an expression before SPDX had one.
    let license =
        package.license.as_ref().map(|license| json!([{ "expression": license.replace(" / ", " OR ").replace('/', " OR ") }]));
    let repository = package.repository.as_ref().map(|url| json!([{ "type": "vcs", "url": url }]));
    let description = package.description.as_ref().map(|text| json!(text.split_whitespace().collect::<Vec<_>>().join(" ")));
    let more = [("description", description), ("licenses", license), ("externalReferences", repository)];
    if let Some(members) = component.as_object_mut() {
        members.extend(more.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_what_is_built_and_not_what_tests_use() {
        let package = |name: &str, source: Value| {
            json!({ "id": name, "name": name, "version": "1.0.0+b", "description": "a\n b", "license": "MIT/Apache-2.0",
                    "repository": null, "source": source })
        };
        let on = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [
                package("host", Value::Null), package("a", json!("registry")), package("b", json!("registry")),
                package("test", json!("registry")), package("other", Value::Null),
            ],
            "resolve": { "nodes": [
                { "id": "host", "deps": [on("a", Value::Null), on("test", json!("dev"))] },
                { "id": "a", "deps": [on("b", json!("build")), on("a", json!("dev"))] },
                { "id": "b", "deps": [] },
                { "id": "test", "deps": [] },
                { "id": "other", "deps": [on("test", Value::Null)] },
            ] },
        });
        let list = list(&serde_json::from_value(metadata).unwrap(), "host").unwrap();
        let names: Vec<_> = list["components"].as_array().unwrap().iter().map(|part| part["name"].clone()).collect();
        assert_eq!(names, ["a", "b"]);
        let a = &list["components"][0];
        assert_eq!(a["purl"], "pkg:cargo/a@1.0.0%2Bb");
        assert_eq!(
            (a["licenses"][0]["expression"].as_str(), a["description"].as_str()),
            (Some("MIT OR Apache-2.0"), Some("a b"))
        );
        assert_eq!(list["dependencies"][2], json!({ "ref": "pkg:cargo/host@1.0.0%2Bb", "dependsOn": ["pkg:cargo/a@1.0.0%2Bb"] }));
    }
}
